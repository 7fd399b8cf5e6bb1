//! Joining made certain: a change of a config is entered into the pin table before the write of the config returns, so that the write of a
//! workload that follows it joins in any case.
//!
//! It is entered as `next`, the version that a new or changed workload may join already. Its content is written before that as a draft, so
//! that no pod is quicker than its version; the operator gives it its name and number when it sees the config, releases it, and then
//! publishes it as current, which ends the entry. We are asked as a validating webhook: by then the API server has checked the object, and
//! its policies have let it pass. If the config's write is refused all the same, by another webhook or a quota, the operator finds an entry
//! that is not the source's content, and takes it back; the draft goes a minute later.
//!
//! What the policy's rules refuse must not be joined, so the change is validated here already, as the operator will do it again.
//!
//! A config's write is never held up by us: whatever fails here costs the certainty, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::try_join3;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Client};
use lockstep_api::ConditionType::Followed;
use lockstep_api::{Choice, GivenName, PinTable, ReleasePolicy, VersionSummary, VersionedConfig};
use lockstep_core::config::is_object_name;
use lockstep_core::digest::MAX_CONFIG_NAME_LENGTH;
use lockstep_core::validation::Validation;
use lockstep_core::{ConfigRef, Digest, DigestKey, Entry, VersionName, names};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::review::Request;
use crate::content::Content;
use crate::environment::Workshop;
use crate::execute::{SOURCE_GONE, VersionApi, keepers};
use crate::facts::{TableFact, VersionFact, is_keeper};
use crate::index::ConfigId;
use crate::tables::{Publication, Tables};
use crate::verdict::verdict;

/// How long we try: less than the API server waits for us.
const LIMIT: Duration = Duration::from_millis(2500);
/// The API server's policies read the pin table from a cache of theirs, which hears of our write a moment after it. `kubectl apply
/// --server-side` writes the workload 2 ms after the config: so long the config's write waits.
const CACHE_LAG: Duration = Duration::from_millis(50);
/// How many changes are validated at the same time; the others wait.
const CHECKS: usize = 4;
/// How often we look again because others wrote the same entry.
const ATTEMPTS: usize = 5;

/// Enters changes into pin tables.
pub struct Configs {
    client: Client,
    workshop: Workshop,
    digest_key: DigestKey,
    tables: Tables,
    checks: Semaphore,
}

/// A change of a config's content, on its way.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    config: ConfigRef,
    digest: Digest,
    /// The name of the version object that it is to become.
    object: String,
    /// What its user calls it.
    version_name: Option<String>,
    /// The ReleasePolicy that it names.
    policy: Option<String>,
    /// Whether it opted in itself; otherwise a workload or its namespace may have done so.
    is_labelled: bool,
}

/// What is to become of the entry's `next`.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Keep,
    Set(String),
    /// What is current is what the config will hold: there is nothing else to join.
    Remove,
}

impl Configs {
    pub fn new(client: Client, workshop: Workshop, digest_key: DigestKey) -> Self {
        let tables = Tables::new(client.clone(), None);
        Self { client, workshop, digest_key, tables, checks: Semaphore::new(CHECKS) }
    }

    /// Enters the change, if it is one.
    pub async fn admit(&self, request: &Request) {
        let Some((change, content)) = change(request, &self.digest_key).filter(|_| !request.is_dry_run()) else {
            return;
        };
        let (namespace, config) = (&request.namespace, &change.config);
        let outcome = timeout(LIMIT, self.enter(namespace, &change, content)).await;
        match outcome.context("the API server does not answer").flatten() {
            Ok(Next::Keep) => {
                tracing::info!(namespace, %config, version = change.object, "there is nothing to join, or it may not be joined");
            }
            Ok(Next::Set(_) | Next::Remove) => {
                tracing::info!(namespace, %config, version = change.object, "entered ahead of the config's write");
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(namespace, %config, error, "not entered ahead: the operator does it after the write");
            }
        }
    }

    /// Whoever else writes the entry at the same moment wins, and we look again, but not for ever.
    async fn enter(&self, namespace: &str, change: &Change, content: Content) -> Result<Next> {
        let content = Arc::new(content);
        for _ in 0..ATTEMPTS {
            if let Some(next) = self.try_enter(namespace, change, &content).await? {
                return Ok(next);
            }
        }
        bail!("its entry in the pin table of {namespace} is written by others all the time")
    }

    /// None if others wrote the entry meanwhile. The table is read from the API server and not from a cache: of two changes right after each
    /// other, the second must see the first.
    async fn try_enter(&self, namespace: &str, change: &Change, content: &Arc<Content>) -> Result<Option<Next>> {
        let tables: Api<PinTable> = Api::namespaced(self.client.clone(), namespace);
        let managed: Api<VersionedConfig> = Api::namespaced(self.client.clone(), namespace);
        let policies: Api<ReleasePolicy> = Api::namespaced(self.client.clone(), namespace);
        let name = change.config.versioned_config_name();
        let policy = change.policy.as_deref().unwrap_or(names::DEFAULT_POLICY);
        let found = try_join3(tables.get_opt(names::PIN_TABLE), managed.get_opt(&name), policies.get_opt(policy));
        let (table, managed, policy) = found.await.with_context(|| {
            format!("cannot read the pin table, VersionedConfig {name} and ReleasePolicy {policy} in {namespace}")
        })?;
        let table = table.map(|table| Arc::new(TableFact::read(&table)));
        let before = table.as_ref().map(|table| table.entry(&change.config)).unwrap_or_default();
        let next = next(change, &before, managed.as_ref());
        let entry = match &next {
            Next::Keep => return Ok(Some(next)),
            Next::Set(object) => Entry { next: Some(object.clone()), ..before.clone() },
            // New code must not keep what is taken back.
            Next::Remove => Entry { next: None, moving: None, ..before.clone() },
        };
        let is_refused = content.obstacle().is_some() || (policy.is_none() && change.policy.is_some());
        let current = released(&before, managed.as_ref()).unwrap_or_default().to_owned();
        let Some(managed) = managed.filter(|_| !is_refused) else { return Ok(Some(Next::Keep)) };
        let id = ConfigId { namespace: namespace.to_owned(), config: change.config.clone() };
        if !self.is_valid(&id, content, policy.as_ref(), &current).await? {
            return Ok(Some(Next::Keep));
        }
        if !self.ensure_exists(&id, change, content, &managed).await? {
            return Ok(Some(Next::Keep));
        }
        let publication = Publication { config: change.config.clone(), before, entry, seen: table };
        match self.tables.publish(namespace, publication).await {
            Err(kube::Error::Api(status)) if status.is_conflict() => Ok(None),
            published => {
                published.with_context(|| format!("cannot write the pin table of {namespace}"))?;
                sleep(CACHE_LAG).await;
                Ok(Some(next))
            }
        }
    }

    /// Whether the policy lets the content follow what is current.
    async fn is_valid(
        &self,
        id: &ConfigId,
        content: &Arc<Content>,
        policy: Option<&ReleasePolicy>,
        current: &str,
    ) -> Result<bool> {
        let rules = policy.and_then(|policy| policy.spec.validation.as_ref()).map(Validation::from).unwrap_or_default();
        let _permit = self.checks.acquire().await?;
        let fault = verdict(&self.client, &self.workshop, id, rules, content, current)
            .await
            .with_context(|| format!("cannot read version {current} in {}", id.namespace))?;
        Ok(fault.is_none())
    }

    /// Whether there is an object now with the content and the name of the version to be. What the account says does not count: the version may
    /// be on its way out, now that nobody wants it.
    async fn ensure_exists(
        &self,
        id: &ConfigId,
        change: &Change,
        content: &Content,
        managed: &VersionedConfig,
    ) -> Result<bool> {
        let failing = || format!("cannot write {} in {}", change.object, id.namespace);
        let owners = keepers(managed, &id.config, Some(content.uid()));
        let written = content.write_draft(&self.client, id, &change.digest, owners.clone()).await;
        if written.with_context(failing)?.is_some() {
            return Ok(true);
        }
        let config = ConfigRef::new(id.config.kind, change.object.as_str());
        let found = Content::read(&self.client, &ConfigId { namespace: id.namespace.clone(), config }).await;
        let (digest, key) = (change.digest.full(), &self.digest_key);
        let Some(found) = found.with_context(failing)? else { return Ok(false) };
        if let Some(version) = found.as_version(&id.config, digest, key) {
            self.keep(id, &version, &owners).await?;
            return Ok(true);
        }
        Ok(found.is_draft(&id.config, digest, key))
    }

    /// An earlier version that is wanted again must not go with those who run it now.
    async fn keep(&self, id: &ConfigId, version: &VersionFact, keepers: &[OwnerReference]) -> Result<()> {
        let is_owner = |keeper: &OwnerReference| version.owners.iter().any(|owner| owner.uid == keeper.uid);
        if keepers.iter().any(is_owner) {
            return Ok(());
        }
        let users = version.owners.iter().filter(|owner| !is_keeper(owner));
        let owners: Vec<OwnerReference> = users.chain(keepers).cloned().collect();
        let api = VersionApi { client: &self.client, namespace: &id.namespace, kind: id.config.kind };
        let written = api.set_owners(&version.into(), &owners).await;
        written.with_context(|| format!("cannot set the owners of {} in {}", version.version.object, id.namespace))?;
        Ok(())
    }
}

/// What a write changes; none if the content stays, or is nobody's to version.
fn change(request: &Request, key: &DigestKey) -> Option<(Change, Content)> {
    let kind = request.config_kind()?;
    let (object, old) = (&request.object, &request.old_object);
    // Empty if the API server is still to make it up: then nobody can refer to it yet.
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let is_labelled = object["metadata"]["labels"][names::VERSIONED] == names::ON;
    // The chart's policies run before us, and stamp what is in the table.
    let is_stamped = annotation(object, names::CHANGED_BY) == Some(&request.user_info.username);
    if !(is_labelled || is_stamped)
        || !is_source(object)
        || name.len() > MAX_CONFIG_NAME_LENGTH
        || !is_object_name(name)
    {
        return None;
    }
    let content = Content::parse(kind, object)?;
    let (digest, before) = (content.digest(key), Content::parse(kind, old).map(|old| old.digest(key)));
    if before.as_ref() == Some(&digest) {
        return None;
    }
    let change = Change {
        config: ConfigRef::new(kind, name),
        object: digest.version_object_name(name),
        digest,
        version_name: annotation(object, names::VERSION).map(str::to_owned),
        policy: annotation(object, names::POLICY).map(str::to_owned),
        is_labelled,
    };
    Some((change, content))
}

fn is_source(object: &Value) -> bool {
    let label = |name: &str| object["metadata"]["labels"][name].as_str();
    let is_ignored = [label(names::IGNORE), annotation(object, names::IGNORE)].contains(&Some(names::ON));
    label(names::VERSION_OF).is_none() && !is_ignored
}

fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][name].as_str()
}

/// A config that is not in the table is not released yet: its adoption restarts nobody, so there is nothing to join.
fn next(change: &Change, entry: &Entry, managed: Option<&VersionedConfig>) -> Next {
    let status = managed.and_then(|managed| managed.status.as_ref());
    let versions = status.map_or(&[][..], |status| status.versions.as_slice());
    let names = status.map_or(&[][..], |status| status.names.as_slice());
    if managed.is_some_and(|managed| may_not_be_joined(change, managed)) || !is_followed(change, managed) {
        return Next::Keep;
    }
    let goes_on = entry.moving.as_ref().is_some_and(|moving| *moving != change.object);
    let is_current = [entry.current.as_deref(), released(entry, managed)].iter().all(|it| *it == Some(&change.object));
    if entry.current.is_none() || is_misnamed(change, versions, names) {
        Next::Keep
    } else if is_current && (entry.next.is_some() || goes_on) {
        Next::Remove
    } else if is_current || entry.next.as_ref() == Some(&change.object) {
        Next::Keep
    } else {
        Next::Set(change.object.clone())
    }
}

/// What is current. Right after a release has ended, the table may still hand out what was so before.
fn released<'a>(entry: &'a Entry, managed: Option<&'a VersionedConfig>) -> Option<&'a str> {
    let current = managed.and_then(|managed| managed.status.as_ref()?.current.as_ref());
    current.map(|current| current.object.as_str()).or(entry.current.as_deref())
}

/// Whether it is for the operator to say when workloads may have it, if ever.
fn may_not_be_joined(change: &Change, managed: &VersionedConfig) -> bool {
    let is_held = |held: &lockstep_api::Held| held.object == change.object;
    let status = managed.status.as_ref();
    let waits = status.is_some_and(|status| status.waits_for_release || status.held.as_ref().is_some_and(is_held));
    let versions = status.map_or(&[][..], |status| status.versions.as_slice());
    let names = status.map_or(&[][..], |status| status.names.as_slice());
    waits || managed.spec.current.as_ref().is_some_and(|choice| is_chosen_instead(choice, change, versions, names))
}

/// Whether somebody chose another version to run in place of this content.
fn is_chosen_instead(choice: &Choice, change: &Change, versions: &[VersionSummary], names: &[GivenName]) -> bool {
    let Some(instead_of) = &choice.instead_of else { return true };
    let known = versions.iter().filter(|version| version.object == change.object).map(|version| &version.version);
    // A version that is gone still has its name.
    let given = names.iter().filter(|given| given.object == change.object).map(|given| &given.version);
    *instead_of == change.object || known.chain(given).any(|name| name == instead_of)
}

/// One that others opted in may be in the table and not followed any more. One that was only gone is made anew: as long as the table hands
/// it out, its workload must not come back with the old content.
fn is_followed(change: &Change, managed: Option<&VersionedConfig>) -> bool {
    let followed = managed.and_then(|managed| managed.status.as_ref()?.condition(Followed));
    change.is_labelled || followed.is_some_and(|followed| followed.status == "True" || followed.reason == SOURCE_GONE)
}

/// The operator makes no version with a name that cannot be, or that has other content already.
fn is_misnamed(change: &Change, versions: &[VersionSummary], names: &[GivenName]) -> bool {
    let Some(name) = &change.version_name else { return false };
    // Content that is a version already keeps that version's name, whatever the config says now.
    let is_known = versions.iter().any(|version| version.object == change.object);
    let was_given = names.iter().any(|given| given.version == *name && given.object != change.object);
    let is_taken = was_given || versions.iter().any(|version| version.version == *name);
    !is_known && (is_taken || VersionName::chosen(name).is_err())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lockstep_core::ConfigKind;
    use lockstep_core::digest::Content as Digestible;
    use serde_json::json;

    use super::super::fixtures::{self, CONFIG_MAP_UPDATE, DEPLOYMENT_CREATE, SECRET_CREATE};
    use super::super::review;
    use super::*;
    use crate::fake::Fake;

    fn key() -> DigestKey {
        DigestKey(vec![7; 32])
    }

    /// A review of a config that opted in, changed by the test.
    fn request(text: &str, edit: impl FnOnce(&mut Value)) -> Request {
        let mut review = fixtures::json(text);
        for object in ["object", "oldObject"] {
            if review["request"][object].is_object() {
                review["request"][object]["metadata"]["labels"] = json!({names::VERSIONED: names::ON});
            }
        }
        edit(&mut review["request"]);
        review::read(review.to_string().as_bytes()).unwrap()
    }

    fn found(text: &str, edit: impl FnOnce(&mut Value)) -> Option<Change> {
        change(&request(text, edit), &key()).map(|(change, _)| change)
    }

    fn green() -> Change {
        found(CONFIG_MAP_UPDATE, |_| {}).unwrap()
    }

    fn entry(current: &str, next: Option<&str>) -> Entry {
        let (baseline, current) = (Some("app-1".into()), Some(current.into()));
        Entry { baseline, current, next: next.map(str::to_owned), moving: None }
    }

    fn version(name: &str, object: &str) -> VersionSummary {
        let (version, object) = (name.to_owned(), object.to_owned());
        VersionSummary { version, number: 1, object, uid: None, changed_by: None, reason: None, created_at: None }
    }

    #[test]
    fn the_version_is_named_as_the_operator_will_name_it() {
        let content = Digestible { secret_type: "", text: [("color", &b"green"[..])].into(), binary: BTreeMap::new() };
        assert_eq!(green().config.to_string(), "configmap/app");
        assert_eq!(green().object, Digest::of_config_map(&content).version_object_name("app"));
    }

    #[test]
    fn a_secret_is_digested_with_the_key() {
        let content =
            Digestible { secret_type: "Opaque", text: [("password", &b"hunter2"[..])].into(), binary: BTreeMap::new() };
        let change = found(SECRET_CREATE, |_| {}).unwrap();
        assert_eq!(change.object, Digest::of_secret(&content, &key().of("shop", "db")).version_object_name("db"));
        assert!(!format!("{change:?}").contains("hunter2"));
    }

    #[test]
    fn only_changes_of_content_count() {
        assert_eq!(found(CONFIG_MAP_UPDATE, |request| request["object"]["data"] = json!({"color": "blue"})), None);
        assert!(found(CONFIG_MAP_UPDATE, |request| request["object"]["binaryData"] = json!({"a": "AQI="})).is_some());
        assert!(found(CONFIG_MAP_UPDATE, |request| drop(request["oldObject"].take())).is_some(), "made anew");
    }

    #[test]
    fn what_is_nobodys_to_version_is_passed_over() {
        let metadata = |change: Value| {
            found(CONFIG_MAP_UPDATE, |request| {
                json_patch::merge(&mut request["object"]["metadata"], &change);
            })
        };
        assert_eq!(metadata(json!({"labels": null})), None, "did not opt in");
        assert_eq!(metadata(json!({"labels": {names::IGNORE: "true"}})), None);
        assert_eq!(metadata(json!({"annotations": {names::IGNORE: "true"}})), None);
        assert_eq!(metadata(json!({"labels": {names::VERSION_OF: "configmap"}})), None, "a version itself");
        assert_eq!(metadata(json!({"name": null, "generateName": "app-"})), None);
        assert_eq!(metadata(json!({"name": "a".repeat(250)})), None);
        assert_eq!(found(DEPLOYMENT_CREATE, |_| {}), None);
    }

    #[test]
    fn a_change_is_entered_as_what_can_be_joined() {
        let change = green();
        let set = Next::Set(change.object.clone());
        assert_eq!(next(&change, &entry("app-1", None), None), set);
        assert_eq!(next(&change, &entry("app-1", Some("app-2")), None), set, "the later of two changes counts");
        assert_eq!(next(&change, &entry("app-1", Some(&change.object)), None), Next::Keep);
        assert_eq!(next(&change, &entry(&change.object, None), None), Next::Keep);
        assert_eq!(next(&change, &entry(&change.object, Some("app-2")), None), Next::Remove, "changed back");
        let moving = Entry { moving: Some("app-2".into()), ..entry(&change.object, None) };
        assert_eq!(next(&change, &moving, None), Next::Remove, "changed back while it moves");
    }

    #[test]
    fn going_back_right_after_a_release_is_a_change_although_the_table_does_not_know_of_that_release() {
        let change = green();
        let mut managed = with_versions(&[]);
        managed.status.as_mut().unwrap().current = Some(version("r2", "app-2"));
        let before = Entry { moving: Some("app-2".into()), ..entry(&change.object, Some("app-2")) };
        assert_eq!(next(&change, &before, Some(&managed)), Next::Set(change.object.clone()));
        assert_eq!(next(&change, &entry(&change.object, None), Some(&managed)), Next::Set(change.object.clone()));
        managed.status.as_mut().unwrap().current = Some(version("r1", &change.object));
        assert_eq!(next(&change, &before, Some(&managed)), Next::Remove);
        assert_eq!(next(&change, &entry("app-0", None), Some(&managed)), Next::Set(change.object.clone()));
    }

    #[test]
    fn a_config_that_is_not_released_yet_is_not_entered() {
        assert_eq!(next(&green(), &Entry::default(), None), Next::Keep);
    }

    #[test]
    fn a_name_that_the_operator_will_refuse_is_not_entered() {
        let named = |name: &str| Change { version_name: Some(name.to_owned()), ..green() };
        let entry = entry("app-1", None);
        let versions = [version("1.4.0", "app-1")];
        assert_eq!(
            next(&named("1.4.0"), &entry, Some(&with_versions(&versions))),
            Next::Keep,
            "it has other content already"
        );
        assert_eq!(next(&named("current"), &entry, Some(&with_versions(&versions))), Next::Keep);
        assert_eq!(next(&named("1.4.1"), &entry, Some(&with_versions(&versions))), Next::Set(green().object));
        let known = [version("1.4.0", "app-1"), version("1.3.0", &green().object)];
        assert_eq!(
            next(&named("1.4.0"), &entry, Some(&with_versions(&known))),
            Next::Set(green().object),
            "it has a name already"
        );
    }

    fn with_versions(versions: &[VersionSummary]) -> VersionedConfig {
        let source = lockstep_api::Source { kind: lockstep_api::SourceKind::ConfigMap, name: "app".into() };
        let spec = lockstep_api::VersionedConfigSpec { source, current: None, retry: None };
        let mut managed = VersionedConfig::new("configmap-app", spec);
        managed.status =
            Some(lockstep_api::VersionedConfigStatus { versions: versions.to_vec(), ..Default::default() });
        managed
    }

    #[test]
    fn what_is_held_or_waits_for_its_release_is_not_entered() {
        let entry = entry("app-1", None);
        let with = |edit: &dyn Fn(&mut VersionedConfig)| {
            let mut managed = with_versions(&[]);
            edit(&mut managed);
            next(&green(), &entry, Some(&managed))
        };
        assert_eq!(with(&|_| {}), Next::Set(green().object));
        let (object, empty) = (green().object, String::new);
        let held = lockstep_api::Held { object, version: empty(), release: empty(), reason: empty() };
        assert_eq!(with(&|managed| managed.status.as_mut().unwrap().held = Some(held.clone())), Next::Keep);
        assert_eq!(with(&|managed| managed.status.as_mut().unwrap().waits_for_release = true), Next::Keep);
        let chosen = |instead_of: Option<&str>| {
            let choice = Choice { version: "1.0.0".into(), instead_of: instead_of.map(str::to_owned) };
            with(&|managed| managed.spec.current = Some(choice.clone()))
        };
        assert_eq!(chosen(None), Next::Keep);
        assert_eq!(chosen(Some(&green().object)), Next::Keep, "somebody went back from this very content");
        assert_eq!(chosen(Some("r2")), Next::Set(green().object), "somebody went back from another one");
    }

    #[test]
    fn what_others_opted_in_is_entered_while_it_is_followed() {
        let entry = entry("app-1", None);
        let stamped = |edit: &dyn Fn(&mut Value)| {
            found(CONFIG_MAP_UPDATE, |request| {
                request["object"]["metadata"]["labels"].take();
                request["object"]["metadata"]["annotations"] = json!({names::CHANGED_BY: "admin"});
                edit(request);
            })
        };
        let change = stamped(&|_| {}).unwrap();
        assert_eq!(stamped(&|request| request["userInfo"]["username"] = json!("eve")), None, "an old stamp");
        let followed = |status: &str, reason: &str| {
            let mut managed = with_versions(&[]);
            managed.status.as_mut().unwrap().conditions = serde_json::from_value(json!([{
                "type": "Followed", "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]))
            .unwrap();
            next(&change, &entry, Some(&managed))
        };
        assert_eq!(followed("True", "OptedIn"), Next::Set(change.object.clone()));
        assert_eq!(followed("False", "OptedOut"), Next::Keep);
        assert_eq!(followed("False", SOURCE_GONE), Next::Set(change.object.clone()), "it is made anew");
        assert_eq!(next(&change, &entry, None), Next::Keep, "nobody knows");
    }

    const TABLE: &str = "/apis/lockstep.dev/v1alpha1/namespaces/shop/pintables/lockstep";

    fn with_table(spec: &Value) -> (Fake, Configs) {
        let fake = Fake::default();
        let (api_version, metadata) = ("lockstep.dev/v1alpha1", json!({"name": "lockstep", "namespace": "shop"}));
        fake.put(TABLE, json!({"apiVersion": api_version, "kind": "PinTable", "metadata": metadata, "spec": spec}));
        let mut managed = with_versions(&[]);
        (managed.metadata.namespace, managed.metadata.uid) = (Some("shop".into()), Some("1".into()));
        fake.put("/apis/lockstep.dev/v1alpha1/namespaces/shop/versionedconfigs/configmap-app", json!(managed));
        let configs = Configs::new(fake.client(), Workshop::threads(), key());
        (fake, configs)
    }

    #[tokio::test]
    async fn a_change_is_in_the_table_before_its_write_returns() {
        let (fake, configs) = with_table(&json!({"current": {"configmap/app": "app-1", "secret/db": "db-1"}}));
        configs.admit(&request(CONFIG_MAP_UPDATE, |_| {})).await;
        let spec = fake.get(TABLE).unwrap()["spec"].take();
        assert_eq!(spec["next"], json!({"configmap/app": green().object}));
        assert_eq!(spec["current"], json!({"configmap/app": "app-1", "secret/db": "db-1"}), "nothing else changes");
        assert_eq!(fake.writes(), [draft(), TABLE.to_owned()], "what the table names is there");
        let draft = Content::parse(ConfigKind::ConfigMap, &fake.get(&draft()).unwrap()).unwrap();
        assert!(draft.is_draft(&green().config, green().digest.full(), &key()));
    }

    fn draft() -> String {
        format!("/api/v1/namespaces/shop/configmaps/{}", green().object)
    }

    #[tokio::test]
    async fn what_is_in_the_way_of_the_version_is_not_entered() {
        let (fake, configs) = with_table(&json!({"current": {"configmap/app": "app-1"}}));
        let object = json!({"metadata": {"name": green().object, "uid": "2"}, "data": {"color": "evil"}});
        fake.put(&draft(), object);
        configs.admit(&request(CONFIG_MAP_UPDATE, |_| {})).await;
        assert!(fake.writes().is_empty());
        fake.delete(&draft());
        configs.admit(&request(CONFIG_MAP_UPDATE, |_| {})).await;
        assert_eq!(fake.writes(), [draft(), TABLE.to_owned()]);
        // The API server may ask twice.
        fake.put(TABLE, {
            let mut table = fake.get(TABLE).unwrap();
            table["spec"].as_object_mut().unwrap().remove("next");
            table
        });
        configs.admit(&request(CONFIG_MAP_UPDATE, |_| {})).await;
        assert_eq!(fake.writes(), [TABLE.to_owned()], "the draft is there already");
    }

    #[tokio::test]
    async fn a_version_that_the_account_still_has_and_that_is_gone_is_written_again() {
        let (fake, configs) = with_table(&json!({"current": {"configmap/app": "app-1"}}));
        let mut managed = with_versions(&[version("r2", &green().object)]);
        (managed.metadata.namespace, managed.metadata.uid) = (Some("shop".into()), Some("1".into()));
        fake.put("/apis/lockstep.dev/v1alpha1/namespaces/shop/versionedconfigs/configmap-app", json!(managed));
        configs.admit(&request(CONFIG_MAP_UPDATE, |_| {})).await;
        assert_eq!(fake.writes(), [draft(), TABLE.to_owned()]);
    }

    #[tokio::test]
    async fn a_version_that_is_wanted_again_is_kept_before_it_is_entered() {
        let (fake, configs) = with_table(&json!({"current": {"configmap/app": "app-1"}}));
        configs.admit(&request(CONFIG_MAP_UPDATE, |_| {})).await;
        let mut made = fake.get(&draft()).unwrap();
        made["metadata"]["annotations"][names::VERSION] = json!("r2");
        made["metadata"]["annotations"][names::NUMBER] = json!("2");
        let replica_set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "9"});
        made["metadata"]["ownerReferences"] = json!([replica_set]);
        let mut table = fake.get(TABLE).unwrap();
        table["spec"].as_object_mut().unwrap().remove("next");
        fake.put(&draft(), made);
        fake.put(TABLE, table);
        fake.writes();
        configs.admit(&request(CONFIG_MAP_UPDATE, |_| {})).await;
        assert_eq!(fake.writes(), [draft(), TABLE.to_owned()]);
        let owners = fake.get(&draft()).unwrap()["metadata"]["ownerReferences"].take();
        let kinds: Vec<&str> = owners.as_array().unwrap().iter().filter_map(|owner| owner["kind"].as_str()).collect();
        assert!(kinds.contains(&"ReplicaSet") && kinds.contains(&"VersionedConfig"), "{kinds:?}");
    }

    #[tokio::test]
    async fn a_change_that_the_policy_refuses_is_not_entered() {
        let (fake, configs) = with_table(&json!({"current": {"configmap/app": "app-1"}}));
        let refusing = |color: &str| {
            let rules = json!([{"expression": format!("data['color'] != '{color}'")}]);
            let (api_version, metadata) = ("lockstep.dev/v1alpha1", json!({"name": "default", "namespace": "shop"}));
            let spec = json!({"validation": {"rules": rules}});
            json!({"apiVersion": api_version, "kind": "ReleasePolicy", "metadata": metadata, "spec": spec})
        };
        let policy = "/apis/lockstep.dev/v1alpha1/namespaces/shop/releasepolicies/default";
        fake.put(policy, refusing("green"));
        configs.admit(&request(CONFIG_MAP_UPDATE, |_| {})).await;
        assert!(fake.writes().is_empty(), "it is refused");
        let unknown = |request: &mut Value| {
            request["object"]["metadata"]["annotations"] = json!({names::POLICY: "strict"});
        };
        configs.admit(&request(CONFIG_MAP_UPDATE, unknown)).await;
        assert!(fake.writes().is_empty(), "there is no such policy");
        fake.put(policy, refusing("red"));
        configs.admit(&request(CONFIG_MAP_UPDATE, |_| {})).await;
        assert_eq!(fake.get(TABLE).unwrap()["spec"]["next"], json!({"configmap/app": green().object}));
    }

    #[tokio::test]
    async fn a_dry_run_leaves_no_trace() {
        let (fake, configs) = with_table(&json!({"current": {"configmap/app": "app-1"}}));
        configs.admit(&request(CONFIG_MAP_UPDATE, |request| request["dryRun"] = json!(true))).await;
        assert!(fake.writes().is_empty());
    }

    #[tokio::test]
    async fn a_namespace_without_a_table_gets_none() {
        let fake = Fake::default();
        let configs = Configs::new(fake.client(), Workshop::threads(), key());
        configs.admit(&request(CONFIG_MAP_UPDATE, |_| {})).await;
        assert!(fake.writes().is_empty());
    }
}
