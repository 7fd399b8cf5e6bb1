//! Performs what the core decided, with requests that can be repeated. What was written comes back as facts, so that the index knows
//! it before the watch says so.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::events::{Event, EventType};
use kube::{Api, Client, Resource};
use lockstep_api::{
    ConditionType, Consumer, Source as ApiSource, VersionSummary, VersionedConfig, VersionedConfigSpec,
    VersionedConfigStatus,
};
use lockstep_core::plan::{Action, ConsumerPin, Managed, Observed, Source, plan};
use lockstep_core::retention::{Change, DEFAULT_RETAIN, retain};
use lockstep_core::template::{Carrier, with_pins};
use lockstep_core::{ConfigKind, DigestKey, Entry, Pins, Version, names};
use serde_json::json;

use crate::content::Content;
use crate::events::Events;
use crate::facts::{self, ConfigFact, Key, ManagedFact, ResourceVersion, VersionFact, WorkloadFact};
use crate::index::{ConfigId, ConfigView, Fact, RetentionView, Watched, WorkloadId, WorkloadKey};
use crate::kinds::WorkloadKind;
use crate::tables::Tables;

/// How long the write of a config may take after its version was announced in the table.
pub const ANNOUNCEMENT: std::time::Duration = std::time::Duration::from_secs(2);

/// How many consumers a status lists.
const LISTED_CONSUMERS: usize = 100;

/// Everything that performing needs.
pub struct Executor {
    pub client: Client,
    pub digest_key: DigestKey,
    pub kinds: Vec<WorkloadKind>,
    pub events: Events,
    pub tables: Tables,
}

#[derive(Debug, thiserror::Error)]
#[error("{doing}: {cause}")]
pub struct ExecuteError {
    doing: String,
    #[source]
    cause: kube::Error,
}

impl ExecuteError {
    /// Somebody else wrote first: look again rather than report.
    pub fn is_conflict(&self) -> bool {
        matches!(&self.cause, kube::Error::Api(status) if status.is_conflict() || status.is_not_found())
    }
}

trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, ExecuteError>;
}

impl<T> Doing<T> for kube::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, ExecuteError> {
        self.map_err(|cause| ExecuteError { doing: what(), cause })
    }
}

/// An object as we left it.
#[derive(Debug)]
pub struct Written {
    pub watched: Watched,
    pub key: Key,
    /// None if it was deleted.
    pub fact: Option<Fact>,
}

/// What came of looking into a config.
#[derive(Debug, Default)]
pub struct ConfigOutcome {
    pub written: Vec<Written>,
    pub digest: Option<(ResourceVersion, lockstep_core::Digest)>,
    /// The consumers that do not have it yet.
    pub pin: Vec<WorkloadKey>,
    /// Whether the table says something new.
    pub published: bool,
    /// Whether a version was announced a moment ago whose config write we have not seen.
    pub awaits_announced: bool,
    pub created: Option<Version>,
    pub completed: Option<String>,
}

impl Executor {
    /// Reads what must be read, decides, and does it.
    pub async fn config(&self, view: ConfigView) -> Result<ConfigOutcome, ExecuteError> {
        let mut outcome = ConfigOutcome::default();
        let mut content = None;
        let digest = match (&view.source, &view.digest) {
            (Some(_), None) => {
                content = self.read(&view.id).await?;
                content.as_ref().map(|content| content.digest(&self.digest_key))
            }
            (_, known) => known.clone(),
        };
        if let (Some(content), Some(digest)) = (&content, &digest) {
            outcome.digest = content.resource_version.parse().ok().map(|at| (ResourceVersion(at), digest.clone()));
        }
        if let Some(obstacle) = content.as_ref().and_then(Content::obstacle) {
            self.report_refusal(&view, &obstacle, &mut outcome).await?;
            return Ok(outcome);
        }
        let observed = observed(&view, digest);
        outcome.awaits_announced = observed.next_is_fresh && observed.entry.next.is_some();
        let actions = plan(&observed);
        if actions.is_empty() && view.source.is_some() {
            self.refresh(&view, &mut outcome).await?;
        }
        self.perform(&view, actions, content, &mut outcome).await?;
        Ok(outcome)
    }

    async fn read(&self, id: &ConfigId) -> Result<Option<Content>, ExecuteError> {
        Content::read(&self.client, id).await.doing(|| format!("read {} in {}", id.config, id.namespace))
    }

    async fn perform(
        &self,
        view: &ConfigView,
        actions: Vec<Action>,
        mut content: Option<Content>,
        outcome: &mut ConfigOutcome,
    ) -> Result<(), ExecuteError> {
        let mut managed = view.managed.clone();
        let mut new_version = None;
        let mut new_entry = None;
        for action in actions {
            match action {
                Action::Adopt => managed = Some(self.adopt(&view.id, outcome).await?),
                Action::CreateVersion(version) => new_version = Some(version),
                Action::Publish(entry) => new_entry = Some(entry),
                Action::PinConsumers => {
                    self.release(view, managed.as_ref(), new_version.take(), new_entry.take(), &mut content, outcome)
                        .await?;
                    outcome.pin = view.consumers.iter().map(|(key, _)| key.clone()).collect();
                }
                Action::Complete { released, last_number } => {
                    self.release(view, managed.as_ref(), new_version.take(), new_entry.take(), &mut content, outcome)
                        .await?;
                    if let Some(managed) = &managed {
                        self.complete(view, managed, &released, last_number, outcome).await?;
                    }
                }
                Action::Forget => self.forget(view, outcome).await?,
                Action::Refuse(refusal) => self.report_refusal(view, &refusal.to_string(), outcome).await?,
            }
        }
        self.release(view, managed.as_ref(), new_version, new_entry, &mut content, outcome).await
    }

    async fn adopt(&self, id: &ConfigId, outcome: &mut ConfigOutcome) -> Result<ManagedFact, ExecuteError> {
        let api: Api<VersionedConfig> = Api::namespaced(self.client.clone(), &id.namespace);
        let name = id.config.versioned_config_name();
        let source = ApiSource { kind: id.config.kind.into(), name: id.config.name.clone() };
        let object = VersionedConfig::new(&name, VersionedConfigSpec { source });
        let created = match api.create(&post_params(), &object).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => api.get(&name).await,
            created => created,
        };
        let fact = ManagedFact::read(created.doing(|| format!("create VersionedConfig {name} in {}", id.namespace))?);
        outcome.written.push(written_managed(&fact));
        Ok(fact)
    }

    /// The table first: a workload that is written a moment later joins. No pod is so quick that the version would not be there.
    async fn release(
        &self,
        view: &ConfigView,
        managed: Option<&ManagedFact>,
        version: Option<Version>,
        entry: Option<Entry>,
        content: &mut Option<Content>,
        outcome: &mut ConfigOutcome,
    ) -> Result<(), ExecuteError> {
        if version.is_some() && content.is_none() {
            *content = self.read(&view.id).await?;
        }
        let digest = content.as_ref().map(|content| content.digest(&self.digest_key));
        if version.as_ref().is_some_and(|version| digest.as_ref().is_none_or(|digest| digest.full() != version.digest))
        {
            // It changed since the decision: the watch brings it up again.
            return Ok(());
        }
        if let Some(entry) = entry {
            outcome.written.extend(self.publish(view, &entry).await?);
            outcome.published = true;
        }
        let (Some(version), Some(content), Some(managed)) = (version, content, managed) else { return Ok(()) };
        outcome.written.extend(self.create_version(&view.id, &version, content, managed).await?);
        outcome.created = Some(version);
        Ok(())
    }

    async fn create_version(
        &self,
        id: &ConfigId,
        version: &Version,
        content: &Content,
        managed: &ManagedFact,
    ) -> Result<Option<Written>, ExecuteError> {
        let written = content.write_version(&self.client, id, version, our_reference(managed)).await;
        let fact =
            written.doing(|| format!("create version {} of {} in {}", version.object, id.config, id.namespace))?;
        let key = Key { namespace: id.namespace.clone(), name: version.object.clone() };
        Ok(fact.map(|fact| Written { watched: Watched::Config(id.config.kind), key, fact: Some(Fact::Config(fact)) }))
    }

    async fn publish(&self, view: &ConfigView, entry: &Entry) -> Result<Option<Written>, ExecuteError> {
        let id = &view.id;
        let written = self.tables.publish(&self.client, &id.namespace, view.has_table, &id.config, entry).await;
        let fact = written.doing(|| format!("publish {} in the pin table of {}", id.config, id.namespace))?;
        let key = Key { namespace: id.namespace.clone(), name: names::PIN_TABLE.to_owned() };
        Ok(fact.map(|fact| Written { watched: Watched::PinTable, key, fact: Some(Fact::Table(fact)) }))
    }

    async fn complete(
        &self,
        view: &ConfigView,
        managed: &ManagedFact,
        released: &str,
        last_number: u64,
        outcome: &mut ConfigOutcome,
    ) -> Result<(), ExecuteError> {
        let at =
            outcome.digest.as_ref().map(|(at, _)| *at).or(view.source.as_ref().map(|source| source.resource_version));
        let status = self.status(view, managed, &outcome.written, released, last_number, at);
        outcome.completed = status.current.as_ref().map(|current| current.version.clone());
        self.write_status(&view.id, managed, &status, outcome).await
    }

    /// When all is released, the report may still be behind: consumers come and go, versions are collected.
    async fn refresh(&self, view: &ConfigView, outcome: &mut ConfigOutcome) -> Result<(), ExecuteError> {
        let Some(managed) = &view.managed else { return Ok(()) };
        let (Some(old), Some(released)) = (&managed.object.status, managed.released()) else { return Ok(()) };
        let at = old.observed_resource_version.as_ref().and_then(|at| at.parse().ok()).map(ResourceVersion);
        let status = self.status(view, managed, &[], released, old.last_number, at);
        if status == *old { Ok(()) } else { self.write_status(&view.id, managed, &status, outcome).await }
    }

    fn status(
        &self,
        view: &ConfigView,
        managed: &ManagedFact,
        written: &[Written],
        released: &str,
        last_number: u64,
        observed: Option<ResourceVersion>,
    ) -> VersionedConfigStatus {
        let just_written = written.iter().filter_map(|written| match &written.fact {
            Some(Fact::Config(ConfigFact::Version(fact))) => Some(fact),
            _ => None,
        });
        let mut versions: Vec<VersionSummary> = view.versions.iter().chain(just_written).map(summary).collect();
        versions.sort_by_key(|version| std::cmp::Reverse(version.number));
        let current = versions.iter().find(|version| version.object == released).cloned();
        let name = current.as_ref().map_or("?", |current| current.version.as_str());
        let condition = condition(managed, true, "Released", &format!("version {name} is released to all consumers"));
        VersionedConfigStatus {
            current,
            versions,
            last_number,
            observed_resource_version: observed.map(|at| at.0.to_string()),
            consumer_count: view.consumers.len() as u64,
            consumers: self.listed_consumers(view),
            conditions: vec![condition],
        }
    }

    fn listed_consumers(&self, view: &ConfigView) -> Vec<Consumer> {
        let consumer = |(key, pin): &(WorkloadKey, ConsumerPin)| Consumer {
            kind: self.kinds.get(key.kind).map(|kind| kind.resource.kind.clone()).unwrap_or_default(),
            name: key.name.clone(),
            pinned: pin.pin.as_ref().map(ToString::to_string),
        };
        view.consumers.iter().take(LISTED_CONSUMERS).map(consumer).collect()
    }

    async fn write_status(
        &self,
        id: &ConfigId,
        managed: &ManagedFact,
        status: &VersionedConfigStatus,
        outcome: &mut ConfigOutcome,
    ) -> Result<(), ExecuteError> {
        let name = managed.object.metadata.name.clone().unwrap_or_default();
        let api: Api<VersionedConfig> = Api::namespaced(self.client.clone(), &id.namespace);
        let patch = Patch::Merge(json!({"status": status}));
        let written = api.patch_status(&name, &patch_params(), &patch).await;
        let fact =
            ManagedFact::read(written.doing(|| format!("report on VersionedConfig {name} in {}", id.namespace))?);
        outcome.written.push(written_managed(&fact));
        Ok(())
    }

    /// Says why nothing happens, once.
    async fn report_refusal(
        &self,
        view: &ConfigView,
        reason: &str,
        outcome: &mut ConfigOutcome,
    ) -> Result<(), ExecuteError> {
        if view.id.config.versioned_config_name().len() > lockstep_core::config::MAX_NAME_LENGTH {
            // No VersionedConfig can be named after it: the Event has to do.
            return self.warn(view, reason).await;
        }
        let managed = match &view.managed {
            Some(managed) => managed.clone(),
            None => self.adopt(&view.id, outcome).await?,
        };
        let mut status = managed.object.status.clone().unwrap_or_default();
        let condition = condition(&managed, false, "Refused", reason);
        if status.conditions.first().is_some_and(|old| old.message == condition.message) {
            return Ok(());
        }
        status.conditions = vec![condition];
        self.write_status(&view.id, &managed, &status, outcome).await?;
        self.warn(view, reason).await
    }

    async fn warn(&self, view: &ConfigView, reason: &str) -> Result<(), ExecuteError> {
        let Some(source) = &view.source else { return Ok(()) };
        let id = &view.id;
        tracing::warn!(namespace = id.namespace, config = %id.config, reason, "a change is refused");
        let subject = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(id.config.kind.kind().to_owned()),
            name: Some(id.config.name.clone()),
            namespace: Some(id.namespace.clone()),
            uid: Some(source.uid.clone()),
            resource_version: Some(source.resource_version.0.to_string()),
            field_path: None,
        };
        let event = Event {
            type_: EventType::Warning,
            reason: "Refused".to_owned(),
            action: "Release".to_owned(),
            note: Some(reason.to_owned()),
            secondary: None,
        };
        let published = self.events.publish(&event, &subject).await;
        published.doing(|| format!("write an Event about {} in {}", id.config, id.namespace))
    }

    /// Kubernetes' garbage collector takes the versions that only the VersionedConfig holds.
    async fn forget(&self, view: &ConfigView, outcome: &mut ConfigOutcome) -> Result<(), ExecuteError> {
        let id = &view.id;
        if view.has_table {
            outcome.written.extend(self.publish(view, &Entry::default()).await?);
        }
        let Some(managed) = &view.managed else { return Ok(()) };
        let name = managed.object.metadata.name.clone().unwrap_or_default();
        let api: Api<VersionedConfig> = Api::namespaced(self.client.clone(), &id.namespace);
        match api.delete(&name, &DeleteParams::background()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            deleted => drop(deleted.doing(|| format!("delete VersionedConfig {name} in {}", id.namespace))?),
        }
        outcome.written.push(Written { fact: None, ..written_managed(managed) });
        Ok(())
    }

    /// Writes a consumer's pins, unless it was written since we looked.
    pub async fn pin(
        &self,
        id: &WorkloadId,
        fact: &WorkloadFact,
        pins: &Pins,
    ) -> Result<Option<Written>, ExecuteError> {
        let kind = &self.kinds[id.workload.kind];
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &id.namespace, &kind.resource);
        let doing = || format!("pin {} {} in {}", kind.resource.kind, id.workload.name, id.namespace);
        let annotation = json!({"metadata": {"annotations": {names::PINS: pins.to_string()}}});
        let mut patch = match kind.carrier {
            Carrier::Annotation if !fact.names_versions => kind.wrap(annotation),
            _ => {
                let object = api.get(&id.workload.name).await.doing(doing)?;
                let Some(template) = kind.template_of(&object.data) else { return Ok(None) };
                // Lists are replaced as a whole; whoever changed them meanwhile has another resource version.
                let written = with_pins(template, pins, kind.carrier);
                kind.wrap(json!({"metadata": annotation["metadata"], "spec": written["spec"]}))
            }
        };
        patch["metadata"] = json!({"resourceVersion": fact.resource_version.0.to_string()});
        let written = api.patch(&id.workload.name, &patch_params(), &Patch::Merge(patch)).await;
        let object = written.doing(doing)?;
        let fact = WorkloadFact::read(kind, &object).map(Fact::Workload);
        Ok(fact.map(|fact| Written {
            watched: Watched::Workload(id.workload.kind),
            key: facts::key(&object.metadata),
            fact: Some(fact),
        }))
    }

    /// Brings the owners of a config's versions up to date and lets go of what nobody needs.
    pub async fn retention(&self, id: &ConfigId, view: RetentionView) -> Result<Vec<Written>, ExecuteError> {
        let Some(managed) = &view.managed else { return Ok(Vec::new()) };
        let count = view.retain.unwrap_or(DEFAULT_RETAIN);
        let mut written = Vec::new();
        for change in retain(&view.holdings, &view.protected, count, managed.uid()) {
            let (Change::SetOwners { object, .. } | Change::Delete { object }) = &change;
            let Some(version) = view.versions.iter().find(|version| version.version.object == *object) else {
                continue;
            };
            written.extend(self.change_version(id, managed, &view, version, &change).await?);
        }
        Ok(written)
    }

    async fn change_version(
        &self,
        id: &ConfigId,
        managed: &ManagedFact,
        view: &RetentionView,
        version: &VersionFact,
        change: &Change,
    ) -> Result<Option<Written>, ExecuteError> {
        let object = &version.version.object;
        let key = Key { namespace: id.namespace.clone(), name: object.clone() };
        let watched = Watched::Config(id.config.kind);
        let api = VersionApi { client: &self.client, namespace: &id.namespace, kind: id.config.kind };
        match change {
            Change::Delete { .. } => {
                api.delete(version)
                    .await
                    .doing(|| format!("delete the unused version {object} in {}", id.namespace))?;
                Ok(Some(Written { watched, key, fact: None }))
            }
            Change::SetOwners { add, keep_ours, .. } => {
                let mut owners: Vec<OwnerReference> =
                    version.owners.iter().filter(|owner| owner.uid != managed.uid()).cloned().collect();
                owners.extend(keep_ours.then(|| our_reference(managed)));
                owners.extend(
                    view.users.iter().filter(|user| add.contains(&user.owner.uid)).map(|user| user.owner.clone()),
                );
                let fact = api.set_owners(version, &owners).await;
                let fact = fact.doing(|| format!("set the owners of version {object} in {}", id.namespace))?;
                Ok(fact.map(|fact| Written { watched, key, fact: Some(Fact::Config(fact)) }))
            }
        }
    }
}

/// Versions of either kind, by their metadata alone.
struct VersionApi<'a> {
    client: &'a Client,
    namespace: &'a str,
    kind: ConfigKind,
}

impl VersionApi<'_> {
    async fn set_owners(&self, version: &VersionFact, owners: &[OwnerReference]) -> kube::Result<Option<ConfigFact>> {
        let patch = Patch::Merge(json!({"metadata": {
            "resourceVersion": version.resource_version.0.to_string(),
            "ownerReferences": owners,
        }}));
        let name = &version.version.object;
        let meta = match self.kind {
            ConfigKind::ConfigMap => {
                self.api::<k8s_openapi::api::core::v1::ConfigMap>()
                    .patch_metadata(name, &patch_params(), &patch)
                    .await?
                    .metadata
            }
            ConfigKind::Secret => {
                self.api::<k8s_openapi::api::core::v1::Secret>()
                    .patch_metadata(name, &patch_params(), &patch)
                    .await?
                    .metadata
            }
        };
        Ok(ConfigFact::read(self.kind, &meta))
    }

    /// Only as we know it: if somebody took it into use meanwhile, it stays.
    async fn delete(&self, version: &VersionFact) -> kube::Result<()> {
        let preconditions = Preconditions {
            uid: Some(version.uid.clone()),
            resource_version: Some(version.resource_version.0.to_string()),
        };
        let params = DeleteParams::background().preconditions(preconditions);
        let name = &version.version.object;
        match self.kind {
            ConfigKind::ConfigMap => {
                self.api::<k8s_openapi::api::core::v1::ConfigMap>().delete(name, &params).await.map(drop)
            }
            ConfigKind::Secret => {
                self.api::<k8s_openapi::api::core::v1::Secret>().delete(name, &params).await.map(drop)
            }
        }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), self.namespace)
    }
}

fn observed(view: &ConfigView, digest: Option<lockstep_core::Digest>) -> Observed {
    let source = view.source.as_ref().zip(digest).map(|(source, digest)| Source {
        digest,
        version_name: source.version_name.clone(),
        changed_by: source.changed_by.clone(),
        reason: source.reason.clone(),
    });
    Observed {
        config: view.id.config.clone(),
        source,
        versions: view.versions.iter().map(|fact| fact.version.clone()).collect(),
        entry: view.entry.clone(),
        managed: view.managed.as_ref().map(|managed| Managed {
            released: managed.released().map(str::to_owned),
            last_number: managed.object.status.as_ref().map_or(0, |status| status.last_number),
        }),
        consumers: view.consumers.iter().map(|(_, pin)| pin.clone()).collect(),
        next_is_fresh: view.announced.is_some_and(|at| at.elapsed() < ANNOUNCEMENT),
        has_unpinned_templates: view.has_unpinned_templates,
    }
}

fn written_managed(fact: &ManagedFact) -> Written {
    let key = facts::key(&fact.object.metadata);
    Written { watched: Watched::VersionedConfig, key, fact: Some(Fact::Managed(Box::new(fact.clone()))) }
}

fn our_reference(managed: &ManagedFact) -> OwnerReference {
    OwnerReference {
        api_version: VersionedConfig::api_version(&()).into_owned(),
        kind: VersionedConfig::kind(&()).into_owned(),
        name: managed.object.metadata.name.clone().unwrap_or_default(),
        uid: managed.uid().to_owned(),
        controller: Some(false),
        block_owner_deletion: Some(false),
    }
}

fn summary(fact: &VersionFact) -> VersionSummary {
    let version = &fact.version;
    VersionSummary {
        version: version.name.to_string(),
        number: version.number,
        object: version.object.clone(),
        changed_by: version.changed_by.clone(),
        reason: version.reason.clone(),
        created_at: fact.created_at.clone(),
    }
}

fn condition(managed: &ManagedFact, is_true: bool, reason: &str, message: &str) -> Condition {
    let status = if is_true { "True" } else { "False" };
    let mut old = managed.object.status.iter().flat_map(|status| &status.conditions);
    let same = old.find(|old| old.type_ == ConditionType::Ready.name() && old.status == status);
    let since = same.map(|old| old.last_transition_time.clone());
    Condition {
        type_: ConditionType::Ready.name().to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: since.unwrap_or_else(|| Time(jiff::Timestamp::now())),
        observed_generation: managed.object.metadata.generation,
    }
}

fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

fn post_params() -> PostParams {
    PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() }
}
