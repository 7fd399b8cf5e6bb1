//! What a VersionedConfig tells people.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::Api;
use lockstep_api::ConditionType::{self, Followed, Ready};
use lockstep_api::{Consumer, GivenName, Held, VersionSummary, VersionedConfig, VersionedConfigStatus};
use lockstep_core::version::remember;
use lockstep_core::{Given, Pin, Version};
use serde_json::{Value, json};

use super::{ConfigOutcome, Doing, ExecuteError, Executor, patch_params, status_patch, written_managed};
use crate::events::Reason;
use crate::facts::{ConfigFact, ManagedFact, VersionFact};
use crate::index::{ConfigId, ConfigView, Fact, UnknownPin, WorkloadKey};

/// The condition's reason where a change cannot become a version.
pub(super) const REFUSED: &str = "Refused";
/// The condition's reason where a consumer is pinned to a version that does not exist.
const UNKNOWN_VERSION: &str = "UnknownVersion";
/// The condition's reason where there is no version to run: there never was one, or it is gone.
const NO_VERSION: &str = "NoVersion";
/// The condition's reason where a config is not followed because it is not there.
pub(crate) const SOURCE_GONE: &str = "SourceGone";
/// How many consumers a status lists.
const LISTED_CONSUMERS: usize = 100;

/// What came of a look at a config; what it does not say stays as it was.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) released: Option<String>,
    pub(super) last_number: Option<u64>,
    /// Why nothing happens.
    pub(super) refusal: Option<String>,
    /// A version that is invalid, and why.
    pub(super) rejected: Option<(String, String)>,
    pub(super) held: Option<Held>,
    /// What was held is so no more.
    pub(super) lets_go: bool,
    /// The object of a version that could not be made: its name is free again.
    pub(super) not_made: Option<String>,
}

impl Executor {
    /// Writes the report, if it says anything new.
    pub(super) async fn report(
        &self,
        view: &ConfigView,
        managed: Option<&ManagedFact>,
        report: Report,
        outcome: &mut ConfigOutcome,
    ) -> Result<(), ExecuteError> {
        if view.source.is_none() && managed.is_none() {
            return Ok(());
        }
        if view.id.config.versioned_config_name().len() > lockstep_core::config::MAX_NAME_LENGTH {
            // No VersionedConfig can be named after it: the Event has to do.
            return match &report.refusal {
                Some(refusal) => self.warn(view, Reason::Refused, refusal).await,
                None => Ok(()),
            };
        }
        let managed = match managed {
            Some(managed) => managed.clone(),
            None if report.refusal.is_some() => self.adopt(&view.id, outcome).await?,
            None => return Ok(()),
        };
        let old = managed.object.status.clone().unwrap_or_default();
        let status = self.status(view, &managed, &old, &report, outcome);
        // While a release is under way it counts the consumers itself.
        let is_counted = view.moving_to.is_some() && status == with_consumers_of(&status, &old);
        if is_counted || status == old {
            return Ok(());
        }
        let is_news = |told: &&Condition| old.condition(Ready).is_none_or(|old| old.message != told.message);
        let news = status.condition(Ready).filter(is_news);
        let warning = news.and_then(|news| {
            let reasons = [(REFUSED, Reason::Refused), (UNKNOWN_VERSION, Reason::UnknownVersion)];
            let (_, reason) = reasons.into_iter().find(|(name, _)| *name == news.reason)?;
            Some((reason, news.message.clone()))
        });
        self.write_status(&view.id, &managed, &status, outcome).await?;
        match warning {
            Some((reason, told)) => self.warn(view, reason, &told).await,
            None => Ok(()),
        }
    }

    fn status(
        &self,
        view: &ConfigView,
        managed: &ManagedFact,
        old: &VersionedConfigStatus,
        report: &Report,
        outcome: &ConfigOutcome,
    ) -> VersionedConfigStatus {
        let just_written = outcome.written.iter().filter_map(|written| match &written.fact {
            Some(Fact::Config(ConfigFact::Version(fact))) => Some(fact),
            _ => None,
        });
        let mut versions: Vec<VersionSummary> = view.versions.iter().chain(just_written).map(summary).collect();
        versions.sort_by_key(|version| std::cmp::Reverse(version.number));
        let named = |object: &str| versions.iter().find(|version| version.object == object);
        let current = match &report.released {
            Some(released) => named(released).cloned(),
            None => old.current.clone(),
        };
        let kept = old.held.clone().filter(|_| !report.lets_go);
        let held = report.held.clone().or(kept);
        let moving = view.moving_to.as_deref().or(outcome.release.as_deref());
        let releasing =
            moving.map(|object| named(object).map_or_else(|| object.to_owned(), |found| found.version.clone()));
        let missing = no_version(view, current.as_ref(), &versions);
        let fault = missing.or_else(|| Some((UNKNOWN_VERSION, self.unknown_pin(view, &versions)?)));
        let ready = ready(current.as_ref(), releasing.as_deref(), held.as_ref(), report.refusal.as_deref(), fault);
        let now = self.environment.clock.now();
        let conditions = vec![condition(managed, Ready, ready, now), condition(managed, Followed, followed(view), now)];
        let given = names(old, &versions, report.not_made.as_deref(), current.as_ref());
        let last_number = versions.iter().map(|version| version.number).max().unwrap_or(0).max(old.last_number);
        VersionedConfigStatus {
            observed_resource_version: compared(view, outcome, current.as_ref(), old),
            current,
            releasing,
            held,
            waits_for_release: !view.can_join,
            names: given,
            versions,
            last_number: report.last_number.map_or(last_number, |number| i64::try_from(number).unwrap_or(i64::MAX)),
            consumer_count: i64::try_from(view.consumers.len()).unwrap_or(i64::MAX),
            consumers: self.listed_consumers(view),
            conditions,
        }
    }

    /// What is wrong with a consumer that is pinned to what is no version of this config, and that nobody mends: its pods run for as long as
    /// nobody restarts them, or run something else.
    fn unknown_pin(&self, view: &ConfigView, versions: &[VersionSummary]) -> Option<String> {
        let is_made = |object: &str| versions.iter().any(|version| version.object == object);
        let UnknownPin { consumer, object, is_of } = view.unknown.as_ref().filter(|pin| !is_made(&pin.object))?;
        let kind = self.kinds.get(consumer.kind).map_or("", |kind| kind.resource.kind.as_str());
        let meaning = match is_of {
            Some(other) => format!("its pods run the content of {other}"),
            None => "its pods cannot be started again".to_owned(),
        };
        let help = match &view.entry.current {
            _ if kind == "Job" => "Delete it, and start it again".to_owned(),
            Some(current) => {
                let pins = lockstep_core::names::PINS;
                format!("Set {}={current} in the annotation {pins} of its template", view.id.config)
            }
            None => format!("Remove the annotation {} of its template", lockstep_core::names::PINS),
        };
        let name = &consumer.name;
        Some(format!("{kind} {name} is pinned to {object}, which is no version of this config: {meaning}. {help}"))
    }

    fn listed_consumers(&self, view: &ConfigView) -> Vec<Consumer> {
        let consumer = |(key, pin): &(WorkloadKey, Option<Pin>)| Consumer {
            kind: self.kinds.get(key.kind).map(|kind| kind.resource.kind.clone()).unwrap_or_default(),
            name: key.name.clone(),
            pinned: pin.as_ref().map(ToString::to_string),
        };
        view.consumers.iter().take(LISTED_CONSUMERS).map(consumer).collect()
    }

    /// Whoever wrote it since we looked wins: what a release noted there must not be lost.
    async fn write_status(
        &self,
        id: &ConfigId,
        managed: &ManagedFact,
        status: &VersionedConfigStatus,
        outcome: &mut ConfigOutcome,
    ) -> Result<(), ExecuteError> {
        let name = managed.object.metadata.name.clone().unwrap_or_default();
        let api: Api<VersionedConfig> = Api::namespaced(self.client.clone(), &id.namespace);
        let mut body = json!(status);
        if let Some(current) = &status.current {
            body["current"] = whole(current);
        }
        for field in ["current", "releasing", "held", "observedResourceVersion"] {
            // A merge patch removes only what it is told to.
            if body.get(field).is_none() {
                body[field] = Value::Null;
            }
        }
        body["waitsForRelease"] = json!(status.waits_for_release);
        for field in ["versions", "names", "consumers"] {
            if body.get(field).is_none() {
                body[field] = json!([]);
            }
        }
        let patch = status_patch(managed.resource_version, body);
        let written = api.patch_status(&name, &patch_params(), &patch).await;
        let fact =
            ManagedFact::read(written.doing(|| format!("report on VersionedConfig {name} in {}", id.namespace))?);
        outcome.written.push(written_managed(&fact));
        Ok(())
    }

    /// Tells that an object is passed over that says that it is a version of this config.
    pub(super) async fn tell_forged(&self, view: &ConfigView, fact: &VersionFact) {
        let (id, object) = (&view.id, &fact.version.object);
        let note = format!(
            "the object {object} says that it is version {} of {}, and is not: it has other content, or is not immutable. It is passed over: delete it",
            fact.version.name, id.config
        );
        tracing::warn!(namespace = id.namespace, config = %id.config, object, "a forged version is passed over");
        let Some(source) = &view.source else { return };
        // Nothing waits for the Event: whoever forges versions could otherwise stop the config.
        if let Err(error) = self.events.publish(Reason::ForgedVersion, note, &config_reference(id, &source.uid)).await {
            tracing::warn!(namespace = id.namespace, config = %id.config, %error, "the Event about a forged version was not written");
        }
    }

    async fn warn(&self, view: &ConfigView, reason: Reason, told: &str) -> Result<(), ExecuteError> {
        let Some(source) = &view.source else { return Ok(()) };
        let id = &view.id;
        tracing::warn!(namespace = id.namespace, config = %id.config, reason = reason.name(), told, "a config is in trouble");
        let about = config_reference(id, &source.uid);
        let published = self.events.publish(reason, told.to_owned(), &about).await;
        published.doing(|| format!("write an Event about {} in {}", id.config, id.namespace))
    }
}

/// The names that were given so far, and that of a version to be.
pub(super) fn with_name(old: &VersionedConfigStatus, version: &Version) -> Vec<GivenName> {
    let given = old.names.iter().map(Given::from).collect::<Vec<_>>();
    let (name, object) = (version.name.to_string(), version.object.clone());
    let to_be = Given { name, number: version.number, object, was_current: false };
    let versions: Vec<Given> = old.versions.iter().map(Given::from).chain([to_be]).collect();
    let current = old.current.as_ref().map(|current| current.object.as_str());
    remember(&given, &versions, current).iter().map(GivenName::from).collect()
}

/// All names that were ever given, as far as they are remembered. One that was put down for a version that could not be made was not.
fn names(
    old: &VersionedConfigStatus,
    versions: &[VersionSummary],
    not_made: Option<&str>,
    current: Option<&VersionSummary>,
) -> Vec<GivenName> {
    let given = old.names.iter().filter(|given| Some(given.object.as_str()) != not_made);
    let given: Vec<Given> = given.map(Given::from).collect();
    let versions: Vec<Given> = versions.iter().map(Given::from).collect();
    let current = current.map(|current| current.object.as_str());
    remember(&given, &versions, current).iter().map(GivenName::from).collect()
}

fn with_consumers_of(status: &VersionedConfigStatus, old: &VersionedConfigStatus) -> VersionedConfigStatus {
    let (consumers, consumer_count) = (status.consumers.clone(), status.consumer_count);
    VersionedConfigStatus { consumers, consumer_count, ..old.clone() }
}

/// The source's resource version, if it has the current version's content: then it need not be read after a restart. Never for what has
/// other content, and is held, or set aside by a person: nobody would know any more what the source says.
fn compared(
    view: &ConfigView,
    outcome: &ConfigOutcome,
    current: Option<&VersionSummary>,
    old: &VersionedConfigStatus,
) -> Option<String> {
    let (source, current) = (view.source.as_ref()?, current?);
    let read = outcome.digest.as_ref().map(|(at, digest)| (*at, digest));
    let known = read.or_else(|| Some((source.resource_version, view.digest.as_ref()?)));
    let Some((at, digest)) = known else {
        let is_as_it_was = old.current.as_ref().is_some_and(|old| old.object == current.object);
        return old.observed_resource_version.clone().filter(|_| is_as_it_was);
    };
    let mut versions = view.versions.iter().map(|fact| &fact.version).chain(&outcome.created);
    let is_current = versions.any(|version| version.object == current.object && version.digest == digest.full());
    is_current.then(|| at.0.to_string())
}

pub(super) fn config_reference(id: &ConfigId, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(id.config.kind.kind().to_owned()),
        name: Some(id.config.name.clone()),
        namespace: Some(id.namespace.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// A version for a merge patch, with nothing left of the one that stood there before.
pub(super) fn whole(version: &VersionSummary) -> Value {
    let mut body = json!(version);
    for field in ["uid", "changedBy", "reason", "createdAt"] {
        if body.get(field).is_none() {
            body[field] = Value::Null;
        }
    }
    body
}

pub(super) fn summary(fact: &VersionFact) -> VersionSummary {
    let version = &fact.version;
    VersionSummary {
        version: version.name.to_string(),
        number: i64::try_from(version.number).unwrap_or(i64::MAX),
        object: version.object.clone(),
        uid: Some(fact.uid.clone()),
        changed_by: version.changed_by.clone(),
        reason: version.reason.clone(),
        created_at: fact.created_at.clone(),
    }
}

/// What a condition says: whether it is true, the reason, and a sentence for people.
type Finding = (bool, &'static str, String);

fn ready(
    current: Option<&VersionSummary>,
    releasing: Option<&str>,
    held: Option<&Held>,
    refusal: Option<&str>,
    fault: Option<(&'static str, String)>,
) -> Finding {
    let name = current.map_or("?", |current| current.version.as_str());
    match (refusal, releasing, held) {
        (Some(refusal), ..) => (false, REFUSED, refusal.to_owned()),
        (None, Some(releasing), _) => {
            (false, "Releasing", format!("version {releasing} is being released; {name} is the last good one"))
        }
        (None, None, Some(held)) => (
            false,
            "Held",
            format!(
                "version {} failed in release {} and is held: {}. Change the config, or set spec.retry to {} to try it again",
                held.version, held.release, held.reason, held.release
            ),
        ),
        (None, None, None) => match fault {
            Some((reason, fault)) => (false, reason, fault),
            None => (true, "Released", format!("version {name} is current")),
        },
    }
}

/// Why nobody can be started with what is current, if so.
fn no_version(
    view: &ConfigView,
    current: Option<&VersionSummary>,
    versions: &[VersionSummary],
) -> Option<(&'static str, String)> {
    let (kind, name) = (view.id.config.kind.kind(), &view.id.config.name);
    let told = match current {
        Some(current) if versions.iter().any(|version| version.object == current.object) => return None,
        Some(current) => format!(
            "version {} was current, and its object {} is gone: no pod can be started with it. Apply the {kind} {name} again, or choose another version",
            current.version, current.object
        ),
        None if view.source.is_some() => "it has no version yet".to_owned(),
        None if view.has_source_object => format!(
            "the {kind} {name} does not opt in, and has no version: set its label {}={}, or delete this VersionedConfig",
            lockstep_core::names::VERSIONED,
            lockstep_core::names::ON
        ),
        None => format!("there is no {kind} {name}: create it, or delete this VersionedConfig"),
    };
    Some((NO_VERSION, told))
}

fn followed(view: &ConfigView) -> Finding {
    let kind = view.id.config.kind.kind();
    match &view.source {
        Some(_) => (true, "OptedIn", format!("changes of the {kind} become versions")),
        None if view.has_source_object => (
            false,
            "OptedOut",
            format!(
                "the {kind} does not opt in any more: changes of it are not followed, and pods keep the version that they have"
            ),
        ),
        None => (false, SOURCE_GONE, format!("the {kind} is not there: pods keep the version that they have")),
    }
}

fn condition(
    managed: &ManagedFact,
    of: ConditionType,
    (is_true, reason, message): Finding,
    now: Timestamp,
) -> Condition {
    let status = if is_true { "True" } else { "False" };
    let old = managed.object.status.as_ref().and_then(|status| status.condition(of));
    let since = old.filter(|old| old.status == status).map(|old| old.last_transition_time.clone());
    Condition {
        type_: of.name().to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: since.unwrap_or(Time(now)),
        observed_generation: managed.object.metadata.generation,
    }
}
