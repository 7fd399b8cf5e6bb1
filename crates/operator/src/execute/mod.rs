//! Performs what the core decided, with requests that can be repeated. What was written comes back as facts, so that the index knows
//! it before the watch says so.

mod config;
mod policy;
mod release;
mod retention;
mod status;
#[cfg(test)]
mod tests;
mod unknown;
mod unreadable;

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use lockstep_api::VersionedConfig;
use lockstep_core::template::{self, Carrier, with_pins};
use lockstep_core::{ConfigRef, DigestKey, Pins, Version, names};
use serde_json::{Map, Value, json};

use crate::environment::Environment;
use crate::events::Events;
use crate::facts::{self, Key, ManagedFact, ResourceVersion, WorkloadFact};
use crate::index::{Fact, Watched, WorkloadId};
use crate::kinds::WorkloadKind;
use crate::tables::Tables;

pub use release::ReleaseOutcome;
pub(crate) use retention::VersionApi;
pub(crate) use status::SOURCE_GONE;

/// How long the write of a config may take after its version was announced in the table.
const ANNOUNCEMENT: Duration = Duration::from_secs(2);
/// How long a config that has neither a source nor consumers keeps its history: an object that is recreated is gone for a moment, too.
pub const UNUSED: Duration = Duration::from_secs(30);
/// When to look again at a config that was read newer than the watch knows it.
const WATCH_LAG: Duration = Duration::from_secs(1);

/// Everything that performing needs.
pub struct Executor {
    pub client: Client,
    pub environment: Environment,
    pub digest_key: DigestKey,
    pub kinds: Vec<WorkloadKind>,
    pub events: Events,
    pub tables: Tables,
    pub may_delete_pods: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("{doing}: {cause}")]
pub struct ExecuteError {
    doing: String,
    #[source]
    cause: kube::Error,
}

/// How much of what the API server says goes into a sentence for people.
const TOLD: usize = 300;

impl ExecuteError {
    /// What the API server said, for people.
    pub fn told(&self) -> String {
        let said = match &self.cause {
            kube::Error::Api(status) => status.message.clone(),
            cause => cause.to_string(),
        };
        said.chars().take(TOLD).collect()
    }

    /// The same where somebody's policy may have put a value of a Secret into its message. A quota counts, and quotes nothing.
    fn told_of_secret(&self) -> String {
        let told = self.told();
        if told.contains("exceeded quota") {
            return told;
        }
        "the API server refuses it. What it says is left out, because it may quote the Secret: `kubectl apply --dry-run=server` of a copy shows it"
            .to_owned()
    }

    pub fn is_not_found(&self) -> bool {
        matches!(&self.cause, kube::Error::Api(status) if status.is_not_found())
    }

    /// The API server will not have it, whoever asks again at once: a quota, a policy, a webhook, a right that is missing.
    fn is_refusal(&self) -> bool {
        matches!(&self.cause, kube::Error::Api(status) if ![404, 409, 429, 503, 504].contains(&status.code))
    }

    /// Somebody else wrote first: look again rather than report.
    pub fn is_conflict(&self) -> bool {
        matches!(&self.cause, kube::Error::Api(status) if status.is_conflict() || status.is_not_found())
    }

    /// Whether nobody can say from the answer what became of a write: the API server failed on the way, or there was no answer.
    pub fn is_undecided(&self) -> bool {
        !matches!(&self.cause, kube::Error::Api(status) if status.code < 500)
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
    /// The version that it is to be moved to.
    pub release: Option<String>,
    /// When to look again, although nothing happens.
    pub wake: Option<Duration>,
    pub created: Option<Version>,
    /// What versions hold that were read.
    pub checked: Vec<Checked>,
    /// What its entry in the table was made, if it was written.
    pub published: Option<lockstep_core::Entry>,
    /// Whether its new version could not be created: that is tried again, later each time.
    pub is_refused: bool,
}

/// What an object holds that says that it is a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    pub uid: String,
    /// The digest of its content; none if that can still change.
    pub digest: Option<String>,
}

impl Executor {
    /// Writes a consumer's pins and what goes with them, unless it was written since we looked.
    pub async fn pin(
        &self,
        id: &WorkloadId,
        fact: &WorkloadFact,
        pins: &Pins,
        besides: Option<Value>,
    ) -> Result<Option<Written>, ExecuteError> {
        let kind = &self.kinds[id.workload.kind];
        let annotation = json!({"metadata": {"annotations": {names::PINS: template::annotation(pins)}}});
        let mut patch = match kind.carrier {
            Carrier::Annotation if !fact.names_versions => kind.wrap(annotation),
            _ => {
                let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &id.namespace, &kind.resource);
                let object = api.get(&id.workload.name).await.doing(|| self.doing(id))?;
                let Some(template) = kind.template_of(&object.data) else { return Ok(None) };
                // Lists are replaced as a whole; whoever changed them meanwhile has another resource version.
                let written = with_pins(template, pins, kind.carrier);
                kind.wrap(json!({"metadata": annotation["metadata"], "spec": written["spec"]}))
            }
        };
        if let Some(besides) = besides {
            join(&mut patch, besides);
        }
        self.patch_workload(id, fact, patch).await
    }

    async fn patch_workload(
        &self,
        id: &WorkloadId,
        fact: &WorkloadFact,
        mut patch: Value,
    ) -> Result<Option<Written>, ExecuteError> {
        let kind = &self.kinds[id.workload.kind];
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &id.namespace, &kind.resource);
        patch["metadata"]["resourceVersion"] = json!(fact.resource_version.0.to_string());
        let written = api.patch(&id.workload.name, &patch_params(), &Patch::Merge(patch)).await;
        Ok(written_workload(kind, id, &written.doing(|| self.doing(id))?))
    }

    /// A workload as it is now.
    async fn read_workload(&self, id: &WorkloadId) -> Result<Option<Written>, ExecuteError> {
        let kind = &self.kinds[id.workload.kind];
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &id.namespace, &kind.resource);
        let read = api.get(&id.workload.name).await;
        let doing = || format!("read {} {} in {}", kind.resource.kind, id.workload.name, id.namespace);
        Ok(written_workload(kind, id, &read.doing(doing)?))
    }

    fn doing(&self, id: &WorkloadId) -> String {
        format!("pin {} {} in {}", self.kinds[id.workload.kind].resource.kind, id.workload.name, id.namespace)
    }
}

fn written_workload(kind: &WorkloadKind, id: &WorkloadId, object: &DynamicObject) -> Option<Written> {
    let fact = Fact::Workload(WorkloadFact::read(kind, object)?);
    let watched = Watched::Workload(id.workload.kind);
    Some(Written { watched, key: facts::key(&object.metadata), fact: Some(fact) })
}

/// Two merge patches as one: also what one of them removes stays removed.
fn join(patch: &mut Value, besides: Value) {
    match (patch, besides) {
        (Value::Object(fields), Value::Object(more)) => {
            for (name, value) in more {
                join(fields.entry(name).or_insert(Value::Null), value);
            }
        }
        (patch, besides) => *patch = besides,
    }
}

/// A status, for the object as it was. Large statuses are put into it as they are, and not copied.
fn status_patch(at: ResourceVersion, status: Value) -> Patch<Value> {
    let metadata = json!({"resourceVersion": at.0.to_string()});
    let fields = [("metadata".to_owned(), metadata), ("status".to_owned(), status)];
    Patch::Merge(Value::Object(fields.into_iter().collect()))
}

/// What to merge into the old fields so that only the new ones are left: what is not said again would stay.
fn in_place_of(old: &Value, mut new: Value) -> Value {
    for field in old.as_object().into_iter().flat_map(Map::keys) {
        if new.get(field).is_none() {
            new[field] = Value::Null;
        }
    }
    new
}

fn written_managed(fact: &ManagedFact) -> Written {
    let key = facts::key(&fact.object.metadata);
    Written { watched: Watched::VersionedConfig, key, fact: Some(Fact::Managed(Box::new(fact.clone()))) }
}

/// As an owner of what is kept for it.
fn reference_to(managed: &VersionedConfig) -> OwnerReference {
    OwnerReference {
        api_version: VersionedConfig::api_version(&()).into_owned(),
        kind: VersionedConfig::kind(&()).into_owned(),
        name: managed.metadata.name.clone().unwrap_or_default(),
        uid: managed.metadata.uid.clone().unwrap_or_default(),
        controller: Some(false),
        block_owner_deletion: Some(false),
    }
}

/// Who keeps the versions that nobody runs: the VersionedConfig, and the config itself if it is there. Whoever deletes one of the two loses no
/// content.
pub fn keepers(managed: &VersionedConfig, config: &ConfigRef, source_uid: Option<&str>) -> Vec<OwnerReference> {
    let source = source_uid.filter(|uid| !uid.is_empty()).map(|uid| OwnerReference {
        api_version: "v1".to_owned(),
        kind: config.kind.kind().to_owned(),
        name: config.name.clone(),
        uid: uid.to_owned(),
        controller: Some(false),
        block_owner_deletion: Some(false),
    });
    [reference_to(managed)].into_iter().chain(source).collect()
}

fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

fn post_params() -> PostParams {
    PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() }
}
