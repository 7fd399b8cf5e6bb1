//! What is kept of the cluster's objects: the few fields that decisions need. Contents of configs are never among them.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::core::DynamicObject;
use lockstep_api::{PinTable, Release, ReleasePolicy, ReleasePolicySpec, VersionedConfig};
use lockstep_core::config::is_object_name;
use lockstep_core::health::{Rollout, Unit};
use lockstep_core::keys::{self, KeyDigests, Used, mounted_keys, used_keys};
use lockstep_core::kinds::Kind;
use lockstep_core::release::ConsumerId;
use lockstep_core::rollout::rollout;
use lockstep_core::template::{Uses, uses};
use lockstep_core::{ConfigKind, ConfigRef, Entry, Pin, Pins, Table, Version, names};
use lockstep_core::{gate, template};

use crate::kinds::{Part, WorkloadKind};

/// One object of one watch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

/// A resource version, in the order of the API server's writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ResourceVersion(pub u64);

/// A ConfigMap or Secret, without its content.
#[derive(Debug, Clone)]
pub enum ConfigFact {
    Source(SourceFact),
    Version(VersionFact),
    Draft(DraftFact),
}

/// A version's content without its name and number: written ahead of its config, so that no pod can be quicker than it.
#[derive(Debug, Clone)]
pub struct DraftFact {
    pub resource_version: ResourceVersion,
    pub object: String,
    pub uid: String,
    pub config: ConfigRef,
    pub owners: Vec<OwnerReference>,
    created: Option<jiff::Timestamp>,
}

/// How long the write of a config may take after its draft.
pub const DRAFT_LIFE: jiff::SignedDuration = jiff::SignedDuration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFact {
    pub resource_version: ResourceVersion,
    pub uid: String,
    pub is_versioned: bool,
    pub is_ignored: bool,
    pub version_name: Option<String>,
    pub changed_by: Option<String>,
    pub reason: Option<String>,
    pub retain: Option<usize>,
    /// The name of its release policy.
    pub policy: Option<String>,
}

#[derive(Debug, Clone)]
pub struct VersionFact {
    pub resource_version: ResourceVersion,
    pub uid: String,
    pub config: ConfigRef,
    pub version: Version,
    pub owners: Vec<OwnerReference>,
    /// A short digest of each key's value; none if there are too many.
    pub keys: Option<KeyDigests>,
    pub created_at: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>,
}

impl ConfigFact {
    /// None for a version that somebody wrote by hand and got wrong: it is then nobody's version.
    pub fn read(kind: ConfigKind, meta: &ObjectMeta) -> Option<Self> {
        match label(meta, names::VERSION_OF) {
            Some(of) if of == kind.word() => {
                let draft = || DraftFact::read(kind, meta).map(Self::Draft);
                VersionFact::read(kind, meta).map(Self::Version).or_else(draft)
            }
            Some(_) => None,
            None => Some(Self::Source(SourceFact::read(meta))),
        }
    }

    pub fn resource_version(&self) -> ResourceVersion {
        match self {
            Self::Source(fact) => fact.resource_version,
            Self::Version(fact) => fact.resource_version,
            Self::Draft(fact) => fact.resource_version,
        }
    }
}

impl DraftFact {
    fn read(kind: ConfigKind, meta: &ObjectMeta) -> Option<Self> {
        let is_named = [names::VERSION, names::NUMBER].iter().any(|name| annotation(meta, name).is_some());
        let source = annotation(meta, names::SOURCE).filter(|_| !is_named)?;
        Some(Self {
            resource_version: resource_version(meta),
            object: meta.name.clone()?,
            uid: meta.uid.clone()?,
            config: ConfigRef::new(kind, source),
            owners: meta.owner_references.clone().unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map(|at| at.0),
        })
    }

    /// Whether the write that it was made for never came.
    pub fn is_abandoned(&self, now: jiff::Timestamp) -> bool {
        self.created.is_none_or(|created| now.duration_since(created) > DRAFT_LIFE)
    }
}

impl SourceFact {
    fn read(meta: &ObjectMeta) -> Self {
        let annotated = |name| annotation(meta, name).map(str::to_owned);
        Self {
            resource_version: resource_version(meta),
            uid: meta.uid.clone().unwrap_or_default(),
            is_versioned: label(meta, names::VERSIONED) == Some(names::ON),
            is_ignored: [label(meta, names::IGNORE), annotation(meta, names::IGNORE)].contains(&Some(names::ON)),
            version_name: annotated(names::VERSION),
            changed_by: annotated(names::CHANGED_BY),
            reason: annotated(names::REASON),
            retain: annotation(meta, names::RETAIN).and_then(|count| count.parse().ok()),
            policy: annotated(names::POLICY),
        }
    }
}

impl VersionFact {
    fn read(kind: ConfigKind, meta: &ObjectMeta) -> Option<Self> {
        let version = Version {
            object: meta.name.clone()?,
            name: annotation(meta, names::VERSION)?.parse().ok()?,
            number: annotation(meta, names::NUMBER)?.parse().ok()?,
            digest: annotation(meta, names::DIGEST)?.to_owned(),
            changed_by: annotation(meta, names::CHANGED_BY).map(str::to_owned),
            reason: annotation(meta, names::REASON).map(str::to_owned),
        };
        let source = annotation(meta, names::SOURCE).filter(|source| version.is_plausible(source))?;
        Some(Self {
            resource_version: resource_version(meta),
            uid: meta.uid.clone()?,
            config: ConfigRef::new(kind, source),
            version,
            owners: meta.owner_references.clone().unwrap_or_default(),
            keys: annotation(meta, names::KEYS).map(keys::read),
            created_at: meta.creation_timestamp.clone(),
        })
    }
}

/// Something that has a pod template.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each with its own name")]
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WorkloadFact {
    pub resource_version: ResourceVersion,
    pub owner: OwnerReference,
    /// The uid of what made it.
    pub made_by: Option<String>,
    /// Whether a person or pipeline writes it; otherwise another object makes it from its own template.
    pub is_consumer: bool,
    pub can_change: bool,
    /// Whether its template can never be changed, and it may still make pods: a Job that has not ended.
    pub is_fixed: bool,
    /// Whether pods are made from this very object, or may be again: it then holds the versions that it runs.
    pub is_holder: bool,
    pub is_auto: bool,
    pub references: Vec<ConfigRef>,
    /// What its pods run. In template mode only what the references really name.
    pub pins: Pins,
    /// What they are to run again: the annotation says so, and somebody wrote the config's name over it.
    pub slipped: Pins,
    /// Whether its references name versions.
    pub names_versions: bool,
    /// Its place in the order of consumers.
    pub wave: i32,
    /// A digest of its pod spec, without pins: another code makes another one.
    pub template: String,
    pub created: Option<jiff::Timestamp>,
    /// What it uses of each config.
    pub used: BTreeMap<ConfigRef, Used>,
    /// The keys that its pods cannot start without.
    pub mounted: BTreeMap<ConfigRef, BTreeSet<String>>,
    pub generation: i64,
    /// How far it is. What another object makes has that of its maker, and none of its own; but for a Job, whose template nobody can mend.
    pub rollout: Rollout,
    pub gate: GateFact,
    pub stands_in_for: Option<StandIn>,
}

/// A Rollout that makes the pods of a Deployment's template in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandIn {
    pub consumer: ConsumerId,
    /// The generation of the other one that it has seen.
    pub observed: i64,
}

/// Whether a workload can be stopped after its first new pods, and is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GateFact {
    pub can_close: bool,
    /// What its fields were before it was stopped.
    pub saved: Option<String>,
    /// How long it holds, if that goes by time.
    pub holds_for: Option<std::time::Duration>,
    pub partition: Option<gate::Partition>,
}

impl GateFact {
    /// Whether somebody wrote over what it set.
    pub fn is_forced(&self) -> bool {
        self.saved.is_some() && self.holds_for.is_none() && self.partition.is_none()
    }

    fn read(kind: &WorkloadKind, object: &DynamicObject) -> Self {
        let (kind, spec) = (Kind::named(&kind.resource.kind), &object.data["spec"]);
        let saved = annotation(&object.metadata, names::GATE);
        Self {
            can_close: gate::can_close(kind, spec),
            holds_for: gate::holds_for(spec, saved),
            partition: gate::Partition::of(kind, spec, saved),
            saved: saved.map(str::to_owned),
        }
    }
}

impl WorkloadFact {
    /// None if the object makes no pods.
    pub fn read(kind: &WorkloadKind, object: &DynamicObject) -> Option<Self> {
        let Some(template) = kind.template_of(&object.data) else { return Self::read_stand_in(kind, object) };
        let uses = uses(template, kind.carrier);
        let code = template::digest(template, &uses);
        let Uses { configs, pins, slipped, names_versions } = uses;
        let made_by = controller(&object.metadata);
        let is_made = made_by.is_some();
        let can_be_made = kind.part != Part::Workload;
        // A ReplicaSet of a Deployment that is gone for a moment, and takes it in again.
        let is_orphan = label(&object.metadata, "pod-template-hash").is_some() && kind.resource.kind == "ReplicaSet";
        let is_consumer = kind.part != Part::Record && !(can_be_made && (is_made || is_orphan));
        let has_progress = is_consumer || kind.part == Part::Fixed;
        Some(Self {
            resource_version: resource_version(&object.metadata),
            owner: owner_reference(kind, &object.metadata),
            made_by,
            is_consumer,
            can_change: is_consumer && kind.part != Part::Fixed,
            is_fixed: kind.part == Part::Fixed && !has_ended(object),
            is_holder: kind.part != Part::Workload,
            is_auto: annotation(&object.metadata, names::AUTO) == Some(names::ON),
            references: configs,
            pins,
            slipped,
            names_versions,
            wave: annotation(&object.metadata, names::WAVE).and_then(|wave| wave.parse().ok()).unwrap_or(0),
            template: code,
            created: object.metadata.creation_timestamp.as_ref().map(|at| at.0),
            used: if is_consumer { used_keys(&template["spec"]) } else { BTreeMap::new() },
            mounted: if is_consumer { mounted_keys(&template["spec"]) } else { BTreeMap::new() },
            generation: if has_progress { object.metadata.generation.unwrap_or(0) } else { 0 },
            rollout: if has_progress { progress(kind, object) } else { Rollout::default() },
            gate: GateFact::read(kind, object),
            stands_in_for: None,
        })
    }

    /// Whether another look at the same object says nothing but that it was written: a ReplicaSet is, with every pod of it that starts or goes.
    pub fn says_nothing_new(&mut self, old: &Self) -> bool {
        let seen = std::mem::replace(&mut self.resource_version, old.resource_version);
        let is_same = self == old;
        self.resource_version = seen;
        is_same
    }

    fn read_stand_in(kind: &WorkloadKind, object: &DynamicObject) -> Option<Self> {
        let reference = &object.data["spec"]["workloadRef"];
        let text = |field: &str| reference[field].as_str().map(str::to_owned);
        let observed = object.data["status"]["workloadObservedGeneration"].as_str();
        Some(Self {
            resource_version: resource_version(&object.metadata),
            owner: owner_reference(kind, &object.metadata),
            rollout: progress(kind, object),
            stands_in_for: Some(StandIn {
                consumer: ConsumerId { kind: text("kind")?, name: text("name")? },
                observed: observed.and_then(|text| text.parse().ok()).unwrap_or(0),
            }),
            ..Self::default()
        })
    }

    /// `kubectl rollout undo` replaces all annotations by those of the old ReplicaSet, also the one that says what a gate has borrowed.
    /// While the field is as the gate set it, the gate is there.
    pub fn keep_gate(&mut self, old: &Self) {
        let is_as_set = old.gate.holds_for.is_some_and(|hold| hold == self.rollout.min_ready);
        if self.owner.uid == old.owner.uid && is_as_set && self.gate.holds_for.is_none() {
            (self.gate.saved, self.gate.holds_for) = (old.gate.saved.clone(), old.gate.holds_for);
        }
    }

    pub fn id(&self) -> ConsumerId {
        ConsumerId { kind: self.owner.kind.clone(), name: self.owner.name.clone() }
    }

    /// The version that this template needs, also if it has to be put back first.
    pub fn needs(&self, config: &ConfigRef) -> Option<&Pin> {
        self.pins.get(config).or_else(|| self.slipped.get(config))
    }
}

/// Whether a Job is done, well or not.
fn has_ended(object: &DynamicObject) -> bool {
    let mut conditions = object.data["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|told| told["status"] == "True" && (told["type"] == "Complete" || told["type"] == "Failed"))
}

fn progress(kind: &WorkloadKind, object: &DynamicObject) -> Rollout {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    rollout(&kind.resource.kind, name, object.metadata.generation.unwrap_or(0), &object.data)
}

fn owner_reference(kind: &WorkloadKind, meta: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: kind.resource.api_version.clone(),
        kind: kind.resource.kind.clone(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        controller: Some(false),
        block_owner_deletion: Some(false),
    }
}

/// A VersionedConfig.
#[derive(Debug, Clone)]
pub struct ManagedFact {
    pub resource_version: ResourceVersion,
    pub config: ConfigRef,
    pub object: VersionedConfig,
}

impl ManagedFact {
    pub fn read(mut object: VersionedConfig) -> Self {
        object.metadata.managed_fields = None;
        Self { resource_version: resource_version(&object.metadata), config: (&object.spec.source).into(), object }
    }

    /// Only the one that is named after its config is the config's: another would be a second memory of it, and take the place of the first.
    pub fn read_named(object: VersionedConfig) -> Result<Self, String> {
        let fact = Self::read(object);
        let wanted = fact.config.versioned_config_name();
        if !is_object_name(&fact.config.name) {
            return Err("its spec.source.name is not the name of a ConfigMap or Secret".to_owned());
        }
        if fact.object.metadata.name.as_ref() != Some(&wanted) {
            return Err(format!("the VersionedConfig of {} must be named {wanted}", fact.config));
        }
        Ok(fact)
    }

    pub fn released(&self) -> Option<&str> {
        self.object.status.as_ref()?.current.as_ref().map(|current| current.object.as_str())
    }

    /// Whether a version of it failed and is held.
    pub fn is_held(&self) -> bool {
        self.object.status.as_ref().is_some_and(|status| status.held.is_some())
    }

    /// The release that failed with the version that is held.
    pub fn held_by(&self) -> Option<&str> {
        Some(self.object.status.as_ref()?.held.as_ref()?.release.as_str())
    }

    pub fn uid(&self) -> &str {
        self.object.metadata.uid.as_deref().unwrap_or_default()
    }
}

/// A Release.
#[derive(Debug, Clone)]
pub struct ReleaseFact {
    pub resource_version: ResourceVersion,
    pub object: Release,
    pub core: lockstep_core::release::Release,
}

impl ReleaseFact {
    pub fn read(mut object: Release) -> Self {
        object.metadata.managed_fields = None;
        Self { resource_version: resource_version(&object.metadata), core: object.to_core(), object }
    }

    pub fn has_ended(&self) -> bool {
        self.core.progress.phase.has_ended()
    }

    /// Whether it moves consumers, or moves them back.
    pub fn is_under_way(&self) -> bool {
        !self.has_ended() && self.core.progress.started_at.is_some()
    }

    /// Whether it is still looked after: also for a while after its end, if somebody did not run it then, and when a person wants to
    /// have it taken back that was left to them.
    pub fn is_watched(&self) -> bool {
        !self.has_ended() || self.core.progress.watched_until.is_some() || self.core.is_to_be_taken_back()
    }
}

/// A ReleasePolicy.
#[derive(Debug, Clone)]
pub struct PolicyFact {
    pub resource_version: ResourceVersion,
    pub spec: ReleasePolicySpec,
}

impl PolicyFact {
    pub fn read(object: ReleasePolicy) -> Self {
        Self { resource_version: resource_version(&object.metadata), spec: object.spec }
    }
}

/// A pod, as far as its health and its versions go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFact {
    pub resource_version: ResourceVersion,
    /// The uid of what made it.
    pub made_by: Option<String>,
    /// Which record of a StatefulSet's or DaemonSet's templates it was made from.
    pub revision: Option<String>,
    pub pins: Pins,
    /// Whether its containers have ended for good: it was evicted, or is done.
    pub has_ended: bool,
    pub unit: Unit,
}

impl PodFact {
    /// Whether another look at the same pod says nothing but that it was written.
    pub fn says_nothing_new(&self, old: &Self) -> bool {
        let Self { resource_version: _, made_by, revision, pins, has_ended, unit } = self;
        let same = (made_by, revision, pins, has_ended) == (&old.made_by, &old.revision, &old.pins, &old.has_ended);
        same && *unit == old.unit
    }

    /// Whether it has ended for a reason of its node's: its controller makes another one.
    pub fn was_evicted(&self) -> bool {
        self.has_ended && !self.unit.is_ready && self.unit.trouble.is_none()
    }

    /// None for a pod that is about to go.
    pub fn read(pod: &Pod) -> Option<Self> {
        if pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        Some(Self {
            resource_version: resource_version(&pod.metadata),
            made_by: controller(&pod.metadata),
            revision: label(&pod.metadata, "controller-revision-hash").map(str::to_owned),
            pins: Pins::read(annotation(&pod.metadata, names::PINS).unwrap_or_default()),
            has_ended: pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref())
                .is_some_and(|phase| ["Failed", "Succeeded"].contains(&phase)),
            unit: crate::pods::unit(pod),
        })
    }
}

fn controller(meta: &ObjectMeta) -> Option<String> {
    let owners = meta.owner_references.iter().flatten();
    owners.filter(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone()).next()
}

/// The pin table of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFact {
    pub resource_version: ResourceVersion,
    pub table: Table,
}

impl TableFact {
    pub fn read(object: &PinTable) -> Self {
        Self { resource_version: resource_version(&object.metadata), table: Table::from(&object.spec) }
    }

    pub fn entry(&self, config: &ConfigRef) -> Entry {
        self.table.get(config).cloned().unwrap_or_default()
    }
}

/// A namespace whose workloads opted in all at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceFact {
    pub resource_version: ResourceVersion,
    pub is_versioned: bool,
    /// All that is in it goes: nothing can be created there, and nothing needs to be.
    pub is_going: bool,
}

impl NamespaceFact {
    pub fn read(meta: &ObjectMeta) -> Self {
        Self {
            resource_version: resource_version(meta),
            is_versioned: label(meta, names::VERSIONED) == Some(names::ON),
            is_going: meta.deletion_timestamp.is_some(),
        }
    }
}

pub fn key(meta: &ObjectMeta) -> Key {
    Key { namespace: meta.namespace.clone().unwrap_or_default(), name: meta.name.clone().unwrap_or_default() }
}

/// Whether an owner keeps a version that nobody needs to run for that; all others run it.
pub fn is_keeper(owner: &OwnerReference) -> bool {
    ["VersionedConfig", "ConfigMap", "Secret"].contains(&owner.kind.as_str())
}

fn label<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.labels.as_ref()?.get(name).map(String::as_str)
}

fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(name).map(String::as_str)
}

pub fn resource_version(meta: &ObjectMeta) -> ResourceVersion {
    // Kubernetes promises that they are numbers and can be compared; anything else counts as the oldest.
    ResourceVersion(meta.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0))
}
