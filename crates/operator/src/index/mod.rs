//! Who uses what: an in-memory picture of the cluster, kept from watches by plain synchronous methods.
//!
//! Every change says which work it makes. A change of a config costs as much as it has consumers; a config that nobody put under
//! our care costs nothing but a look-up.

mod counts;
mod releases;
mod unreadable;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use lockstep_core::plan::Stranded;
use lockstep_core::policy::Policy;
use lockstep_core::release::ConsumerId;
use lockstep_core::retention::{Draft, Holding, Keepers};
use lockstep_core::template::Unknown;
use lockstep_core::validation::Validation;
use lockstep_core::{ConfigKind, ConfigRef, Digest, Entry, Pin, Pins, Table, template};
use tokio::time::Instant;

use crate::facts::{
    ConfigFact, DraftFact, Key, ManagedFact, NamespaceFact, PodFact, PolicyFact, ReleaseFact, ResourceVersion,
    SourceFact, TableFact, VersionFact, WorkloadFact, is_keeper,
};
use crate::refusals::Refusals;
use crate::unreadable::Unreadable;

use crate::execute::{Checked, UNUSED};

use counts::Counts;
pub use releases::{How, Lost, ReleaseView, Start};
pub use unreadable::ObjectId;

/// Of how many objects of a namespace we remember that they went.
const GONE_REMEMBERED: usize = 500;

/// What is watched: one entry for each kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Watched {
    Config(ConfigKind),
    /// By its place in the list of workload kinds.
    Workload(usize),
    VersionedConfig,
    PinTable,
    Release,
    Policy,
    /// Only where a release is under way.
    Pod,
    Namespace,
}

/// An object as it was seen.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "few exist at a time, and each only for a moment")]
pub enum Fact {
    Config(ConfigFact),
    Workload(WorkloadFact),
    Managed(Box<ManagedFact>),
    Table(Arc<TableFact>),
    Release(Box<ReleaseFact>),
    Policy(Box<PolicyFact>),
    Pod(Box<PodFact>),
    Namespace(NamespaceFact),
}

impl Fact {
    /// Whether it is a config as its user writes it.
    pub fn is_source(&self) -> bool {
        matches!(self, Self::Config(ConfigFact::Source(_)))
    }

    fn resource_version(&self) -> ResourceVersion {
        match self {
            Self::Config(fact) => fact.resource_version(),
            Self::Workload(fact) => fact.resource_version,
            Self::Managed(fact) => fact.resource_version,
            Self::Table(fact) => fact.resource_version,
            Self::Release(fact) => fact.resource_version,
            Self::Policy(fact) => fact.resource_version,
            Self::Pod(fact) => fact.resource_version,
            Self::Namespace(fact) => fact.resource_version,
        }
    }
}

/// A config and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConfigId {
    pub namespace: String,
    pub config: ConfigRef,
}

/// A workload and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadId {
    pub namespace: String,
    pub workload: WorkloadKey,
}

/// A ReleasePolicy and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyId {
    pub namespace: String,
    pub name: String,
}

/// A release and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReleaseId {
    pub namespace: String,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadKey {
    pub kind: usize,
    pub name: String,
}

/// Something to look into.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Work {
    /// Is its content a version, and released?
    Config(ConfigId),
    /// Its content is to be released, together with what changes beside it.
    Start(ConfigId),
    /// How far is it?
    Release(ReleaseId),
    /// Did the versions slip out of its template? Is it behind a gate that is nobody's?
    Consumer(WorkloadId),
    /// Somebody deleted it while it was under way.
    Restore(ReleaseId),
    /// Who holds its versions, and which can go?
    Retention(ConfigId),
    /// It cannot be read, and its people have to hear of that.
    Unreadable(ObjectId),
    /// Are its rules and schemas sound? Its people hear of that now, and not when a change is rejected for it.
    Policy(PolicyId),
}

/// Everything about one config that a decision needs.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each with its own name")]
#[derive(Debug, Clone)]
pub struct ConfigView {
    pub id: ConfigId,
    /// None if it was deleted, or nobody put it under our care.
    pub source: Option<SourceFact>,
    /// Whether there is such a ConfigMap or Secret, opted in or not.
    pub has_source_object: bool,
    /// The digest of the source, if it was computed for exactly this resource version.
    pub digest: Option<Digest>,
    /// Without those that are known to be forged.
    pub versions: Vec<VersionFact>,
    /// The objects of those whose content nobody has looked at.
    pub unchecked: BTreeSet<String>,
    /// The objects of those that are there only for as long as somebody runs them.
    pub unkept: BTreeSet<String>,
    pub drafts: Vec<DraftFact>,
    /// The table as it was when this was put together.
    pub table: Option<Arc<TableFact>>,
    pub entry: Entry,
    pub managed: Option<ManagedFact>,
    /// What its VersionedConfig was when somebody deleted it.
    pub remembered: Option<ManagedFact>,
    pub consumers: Vec<(WorkloadKey, Option<Pin>)>,
    /// A consumer that is pinned to what is no version of it, and stays so.
    pub unknown: Option<UnknownPin>,
    pub has_unpinned_templates: bool,
    /// When somebody else last changed the table's `next`.
    pub announced: Option<Instant>,
    /// When it was first found without source and consumers.
    pub unused: Option<Instant>,
    /// The version that a release moves it to, or one that waits for that one's end.
    pub moving_to: Option<String>,
    /// The version that a release under way moves it to.
    pub under_way: Option<String>,
    /// Whether consumers still have the held version.
    pub stranded: Stranded,
    /// What the table says is on its way, or offers, if consumers have it and no release moves anybody there.
    pub left_behind: Option<String>,
    /// Whether what the held version failed together with is another by now.
    pub held_is_outdated: bool,
    pub can_join: bool,
    /// What its content must fulfil.
    pub validation: Validation,
    /// The policy that it names and that is not there.
    pub missing_policy: Option<String>,
    /// The releases that ended with its content being invalid.
    pub rejected: Vec<ReleaseFact>,
    /// The versions of which that was the last word.
    pub rejected_versions: BTreeSet<String>,
    pub next_release_name: String,
}

/// A pin that stands for no version of its config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPin {
    pub consumer: WorkloadKey,
    pub object: String,
    /// The config whose content it is in truth. None if there is no such object: no pod can be started with it.
    pub is_of: Option<ConfigRef>,
}

#[derive(Debug, Clone)]
pub struct RetentionView {
    pub holdings: Vec<Holding>,
    /// Who holds what was written ahead of changes.
    pub drafts: Vec<Draft>,
    /// The objects behind those.
    pub draft_facts: Vec<DraftFact>,
    pub protected: BTreeSet<String>,
    /// How many versions are kept besides those in use. None if nobody can say yet which may go.
    pub retain: Option<usize>,
    pub managed: Option<ManagedFact>,
    /// Of the config itself, if it is there and under our care.
    pub source_uid: Option<String>,
    pub versions: Vec<VersionFact>,
    /// The objects behind the holdings' users.
    pub users: Vec<WorkloadFact>,
    /// Releases that ended and that nobody needs to remember.
    pub old_releases: Vec<ReleaseFact>,
}

#[derive(Debug, Default)]
pub struct Index {
    namespaces: BTreeMap<String, Namespace>,
    default_policy: Policy,
    /// The namespaces with releases that have not ended.
    with_releases: BTreeSet<String>,
    pub counts: Counts,
}

#[derive(Debug, Default)]
struct Namespace {
    fact: Option<NamespaceFact>,
    /// Also those that are not under our care: they may be, with the next workload.
    sources: BTreeMap<ConfigRef, SourceFact>,
    digests: BTreeMap<ConfigRef, (ResourceVersion, Digest)>,
    versions: BTreeMap<ConfigRef, BTreeMap<String, VersionFact>>,
    /// What versions hold that were read, by their uid: the digest, or none for what can still change.
    contents: BTreeMap<String, Option<String>>,
    /// Whose version an object is.
    version_sources: BTreeMap<(ConfigKind, String), ConfigRef>,
    drafts: BTreeMap<(ConfigKind, String), DraftFact>,
    workloads: BTreeMap<WorkloadKey, WorkloadFact>,
    /// Which workload has a uid.
    uids: BTreeMap<String, WorkloadKey>,
    /// Who makes the pods of a workload in its place.
    stand_ins: BTreeMap<ConsumerId, WorkloadKey>,
    users: BTreeMap<ConfigRef, BTreeSet<WorkloadKey>>,
    table: Option<Arc<TableFact>>,
    /// When somebody else last changed an entry's `next`.
    announced: BTreeMap<ConfigRef, Instant>,
    /// When a config of ours was first found without source and consumers.
    unused: BTreeMap<ConfigRef, Instant>,
    managed: BTreeMap<ConfigRef, ManagedFact>,
    /// VersionedConfigs that somebody deleted although their configs are under our care.
    remembered: BTreeMap<ConfigRef, ManagedFact>,
    managed_names: BTreeMap<String, ConfigRef>,
    /// Where configs want to go.
    candidates: BTreeMap<ConfigRef, String>,
    releases: BTreeMap<String, ReleaseFact>,
    /// Releases that somebody deleted while they were under way: what they moved must not be left alone.
    lost: BTreeMap<String, ReleaseFact>,
    /// Configs of which a version has an owner less than it should: its user, or a keeper that was made anew.
    unheld: BTreeSet<ConfigRef>,
    /// The uids of those whose people were told that they are pinned to a version that nobody knows: nothing else can be done.
    told: BTreeSet<String>,
    /// What the API server said about consumers that it would not let a release write.
    refused: BTreeMap<String, Refusals>,
    policies: BTreeMap<String, PolicyFact>,
    pods: BTreeMap<String, PodFact>,
    pods_are_known: bool,
    /// Objects that cannot be read, by what they are and their names.
    unreadable: BTreeMap<(Watched, String), Unreadable>,
    /// What went last, and when.
    gone: BTreeMap<(Watched, String), ResourceVersion>,
}

impl Index {
    /// An index in which configs without a policy go by this one.
    pub fn new(default_policy: Policy) -> Self {
        Self { default_policy, ..Self::default() }
    }

    /// Takes in an object as it was seen or as we wrote it ourselves. What is known already, or older, is passed over.
    pub fn apply(&mut self, watched: Watched, key: &Key, fact: Fact) -> Vec<Work> {
        let name = if watched == Watched::Namespace { &key.name } else { &key.namespace };
        let namespace = self.namespaces.entry(name.clone()).or_default();
        if namespace.last_seen(watched, key) >= Some(fact.resource_version()) {
            return Vec::new();
        }
        self.counts.note(key, &fact);
        self.counts.forget_unreadable(watched, key);
        let mut mended = namespace.forget_unreadable(watched, &key.name);
        let mut work = match (watched, fact) {
            (Watched::Config(kind), Fact::Config(fact)) => namespace.apply_config(kind, &key.name, fact),
            (Watched::Workload(kind), Fact::Workload(fact)) => namespace.apply_workload(kind, &key.name, Some(fact)),
            (Watched::VersionedConfig, Fact::Managed(fact)) => namespace.apply_managed(&key.name, *fact),
            (Watched::PinTable, Fact::Table(fact)) => namespace.apply_table(Some(fact)),
            (Watched::Release, Fact::Release(fact)) => namespace.apply_release(&key.name, *fact),
            (Watched::Policy, Fact::Policy(fact)) => namespace.apply_policy(&key.name, Some(*fact)),
            (Watched::Pod, Fact::Pod(fact)) => namespace.apply_pod(&key.name, Some(*fact)),
            (Watched::Namespace, Fact::Namespace(fact)) => namespace.apply_namespace(fact),
            _ => Todo::default(),
        };
        work.append(&mut mended);
        if watched == Watched::Release {
            self.count_releases(name);
        }
        work.within(name)
    }

    /// A watch says that it is gone, which we may know better: our own write may have made it anew since. And what we wrote before it went
    /// may be told us only now.
    pub fn remove_at(&mut self, watched: Watched, key: &Key, at: ResourceVersion) -> Vec<Work> {
        if let Some(namespace) = self.namespaces.get_mut(&key.namespace) {
            if namespace.last_seen(watched, key) > Some(at) {
                return Vec::new();
            }
            namespace.note_gone(watched, &key.name, at);
        }
        self.remove(watched, key)
    }

    pub fn remove(&mut self, watched: Watched, key: &Key) -> Vec<Work> {
        if watched == Watched::Namespace {
            self.namespaces.remove(&key.name);
            self.with_releases.remove(&key.name);
            self.counts.forget_namespace(&key.name);
            return Vec::new();
        }
        self.counts.forget(watched, key);
        let Some(namespace) = self.namespaces.get_mut(&key.namespace) else { return Vec::new() };
        let mut mended = namespace.forget_unreadable(watched, &key.name);
        let mut work = match watched {
            Watched::Config(kind) => namespace.remove_config(kind, &key.name),
            Watched::Workload(kind) => namespace.apply_workload(kind, &key.name, None),
            Watched::VersionedConfig => namespace.remove_managed(&key.name),
            Watched::PinTable => namespace.apply_table(None),
            Watched::Release => namespace.remove_release(&key.name),
            Watched::Policy => namespace.apply_policy(&key.name, None),
            Watched::Pod => namespace.apply_pod(&key.name, None),
            Watched::Namespace => Todo::default(),
        };
        work.append(&mut mended);
        if watched == Watched::Release {
            self.count_releases(&key.namespace);
        }
        work.within(&key.namespace)
    }

    /// The keys of one watch, in one namespace or in all.
    pub fn keys(&self, watched: Watched, scope: Option<&str>) -> Vec<Key> {
        let in_scope = self.namespaces.iter().filter(|(name, _)| scope.is_none_or(|scope| scope == name.as_str()));
        in_scope
            .flat_map(|(namespace, state)| {
                let names = state.names(watched);
                let key = |name| match watched {
                    Watched::Namespace => Key { namespace: String::new(), name: namespace.clone() },
                    _ => Key { namespace: namespace.clone(), name },
                };
                names.into_iter().map(key)
            })
            .collect()
    }

    /// What the table offers of this config is our own word, and nobody else's; unless we only left standing what another had announced, or
    /// somebody has announced something since.
    pub fn note_published(&mut self, id: &ConfigId, entry: &Entry) {
        let Some(namespace) = self.namespaces.get_mut(&id.namespace) else { return };
        let is_ours = entry.next.is_none() || entry.next == entry.moving;
        if is_ours && namespace.entry(&id.config).next == entry.next {
            namespace.announced.remove(&id.config);
        }
    }

    /// What a config holds is known, and with it which of its versions can go.
    pub fn remember_digest(&mut self, id: &ConfigId, at: ResourceVersion, digest: Digest) -> Vec<Work> {
        let Some(namespace) = self.namespaces.get_mut(&id.namespace) else { return Vec::new() };
        let is_news = namespace.digests.insert(id.config.clone(), (at, digest)).is_none_or(|(known, _)| known != at);
        let retention = is_news.then(|| id.config.clone()).into_iter().collect();
        Todo { retention, ..Todo::default() }.within(&id.namespace)
    }

    /// Remembers what versions hold. It stays so for as long as they live: they are immutable. Whoever is pinned to what turns out to be
    /// forged needs another one.
    pub fn note_checked(&mut self, id: &ConfigId, checked: Vec<Checked>) -> Vec<Work> {
        let Some(namespace) = self.namespaces.get_mut(&id.namespace).filter(|_| !checked.is_empty()) else {
            return Vec::new();
        };
        namespace.contents.extend(checked.into_iter().map(|checked| (checked.uid, checked.digest)));
        let consumers = namespace.in_need_of_care(&id.config).collect();
        Todo { consumers, ..Todo::default() }.within(&id.namespace)
    }

    pub fn config(&mut self, id: &ConfigId) -> Option<ConfigView> {
        let namespace = self.namespaces.get_mut(&id.namespace)?;
        namespace.note_use(&id.config);
        namespace.is_ours(&id.config).then(|| namespace.view(id, &self.default_policy))
    }

    pub fn retention(&self, id: &ConfigId, now: Timestamp) -> Option<RetentionView> {
        let namespace = self.namespaces.get(&id.namespace)?;
        let is_concerned = namespace.is_ours(&id.config) && namespace.versions.contains_key(&id.config);
        if namespace.unreadable_for(&id.config).is_some() {
            return None;
        }
        is_concerned.then(|| namespace.retention(&id.config, &self.default_policy, now))
    }

    /// Whether something was written ahead of a change of it that has not come.
    pub fn has_drafts(&self, id: &ConfigId) -> bool {
        let namespace = self.namespaces.get(&id.namespace);
        namespace.is_some_and(|namespace| namespace.drafts.values().any(|draft| draft.config == id.config))
    }

    pub fn workload(&self, id: &WorkloadId) -> Option<&WorkloadFact> {
        self.namespaces.get(&id.namespace)?.workloads.get(&id.workload)
    }

    /// Its people hear once that it has to be made anew.
    pub fn note_told(&mut self, namespace: &str, uid: String) {
        if let Some(namespace) = self.namespaces.get_mut(namespace) {
            namespace.told.insert(uid);
        }
    }

    /// Whether a workload is behind a gate that no release will open.
    pub fn has_orphaned_gate(&self, id: &WorkloadId, fact: &WorkloadFact) -> bool {
        self.namespaces.get(&id.namespace).is_some_and(|namespace| namespace.has_orphaned_gate(fact))
    }

    /// Whether a version of it lacks one of its owners: it would go with the last of the others. So it is until somebody begins to
    /// write its owners.
    pub fn lacks_holder(&self, id: &ConfigId) -> bool {
        self.namespaces.get(&id.namespace).is_some_and(|namespace| namespace.unheld.contains(&id.config))
    }

    pub fn note_lacking_holder(&mut self, id: &ConfigId, lacks: bool) {
        let Some(namespace) = self.namespaces.get_mut(&id.namespace) else { return };
        if lacks {
            namespace.unheld.insert(id.config.clone());
        } else {
            namespace.unheld.remove(&id.config);
        }
    }

    /// What a workload's pods are to run as long as nothing is released: what it has, and what slipped. With it, what it has and nobody
    /// knows.
    pub fn settled_pins(&self, namespace: &str, fact: &WorkloadFact) -> (Pins, Vec<Unknown>) {
        let Some(namespace) = self.namespaces.get(namespace) else { return (fact.pins.clone(), Vec::new()) };
        let (mut pins, unknown) = namespace.known_pins(fact);
        let is_held = |config: &ConfigRef, object: &str| {
            let held = namespace.managed.get(config).and_then(|managed| managed.object.status.as_ref()?.held.as_ref());
            held.is_some_and(|held| held.object == object)
        };
        let exists = |config: &ConfigRef, object: &str| {
            let versions = namespace.versions.get(config);
            versions.is_some_and(|versions| versions.contains_key(object)) && !is_held(config, object)
        };
        let current = |config: &ConfigRef| namespace.table.as_ref()?.table.get(config)?.current.as_deref();
        for (config, pin) in template::put_back(&fact.slipped, exists, current).iter() {
            pins.set(config.clone(), pin.clone());
        }
        (pins, unknown)
    }

    /// The versions that nobody knows, and that a controller may still wait for with pods of an earlier template.
    pub fn left_unknown(&self, namespace: &str, fact: &WorkloadFact) -> Vec<Unknown> {
        self.namespaces.get(namespace).map(|namespace| namespace.left_unknown(fact)).unwrap_or_default()
    }

    /// The uids of objects that say that they are versions of a config, and are not.
    pub fn forged(&self, id: &WorkloadId) -> BTreeSet<String> {
        self.namespaces.get(&id.namespace).map(|namespace| namespace.forged_for(&id.workload)).unwrap_or_default()
    }
}

/// Work within one namespace.
#[derive(Debug, Default)]
struct Todo {
    configs: BTreeSet<ConfigRef>,
    consumers: BTreeSet<WorkloadKey>,
    releases: BTreeSet<String>,
    lost: BTreeSet<String>,
    retention: BTreeSet<ConfigRef>,
    policies: BTreeSet<String>,
}

impl Todo {
    fn config(config: &ConfigRef) -> Self {
        Self { configs: [config.clone()].into(), ..Self::default() }
    }

    fn append(&mut self, other: &mut Self) {
        self.configs.append(&mut other.configs);
        self.consumers.append(&mut other.consumers);
        self.releases.append(&mut other.releases);
        self.lost.append(&mut other.lost);
        self.retention.append(&mut other.retention);
        self.policies.append(&mut other.policies);
    }

    fn within(self, namespace: &str) -> Vec<Work> {
        let id = |config| ConfigId { namespace: namespace.to_owned(), config };
        let configs = self.configs.into_iter().map(|config| Work::Config(id(config)));
        let consumers = self
            .consumers
            .into_iter()
            .map(|workload| Work::Consumer(WorkloadId { namespace: namespace.to_owned(), workload }));
        let retention = self.retention.into_iter().map(|config| Work::Retention(id(config)));
        let release = |name| ReleaseId { namespace: namespace.to_owned(), name };
        let releases = self.releases.into_iter().map(|name| Work::Release(release(name)));
        let lost = self.lost.into_iter().map(|name| Work::Restore(release(name)));
        let policy = |name| Work::Policy(PolicyId { namespace: namespace.to_owned(), name });
        let policies = self.policies.into_iter().map(policy);
        configs.chain(consumers).chain(lost).chain(releases).chain(retention).chain(policies).collect()
    }
}

impl Namespace {
    /// The version of an object that was last seen, also of one that could not be read.
    fn last_seen(&self, watched: Watched, key: &Key) -> Option<ResourceVersion> {
        let unreadable = self.unreadable.get(&(watched, key.name.clone())).map(|found| found.resource_version);
        let gone = self.gone.get(&(watched, key.name.clone())).copied();
        self.known_version(watched, key).max(unreadable).max(gone)
    }

    /// For as long as an answer may be on its way that is older.
    fn note_gone(&mut self, watched: Watched, name: &str, at: ResourceVersion) {
        self.gone.insert((watched, name.to_owned()), at);
        if self.gone.len() > GONE_REMEMBERED {
            let oldest = self.gone.iter().min_by_key(|(_, at)| **at).map(|(object, _)| object.clone());
            if let Some(oldest) = oldest {
                self.gone.remove(&oldest);
            }
        }
    }

    fn known_version(&self, watched: Watched, key: &Key) -> Option<ResourceVersion> {
        match watched {
            Watched::Config(kind) => {
                let object = (kind, key.name.clone());
                let version =
                    || Some(self.versions.get(self.version_sources.get(&object)?)?.get(&key.name)?.resource_version);
                let source = || Some(self.sources.get(&ConfigRef::new(kind, key.name.as_str()))?.resource_version);
                let draft = || self.drafts.get(&object).map(|draft| draft.resource_version);
                version().or_else(source).or_else(draft)
            }
            Watched::Workload(kind) => {
                Some(self.workloads.get(&WorkloadKey { kind, name: key.name.clone() })?.resource_version)
            }
            Watched::VersionedConfig => Some(self.managed.get(self.managed_names.get(&key.name)?)?.resource_version),
            Watched::PinTable => Some(self.table.as_ref()?.resource_version),
            Watched::Release => Some(self.releases.get(&key.name)?.resource_version),
            Watched::Policy => Some(self.policies.get(&key.name)?.resource_version),
            Watched::Pod => Some(self.pods.get(&key.name)?.resource_version),
            Watched::Namespace => Some(self.fact.as_ref()?.resource_version),
        }
    }

    fn names(&self, watched: Watched) -> Vec<String> {
        let unreadable = self.unreadable.keys().filter(|(of, _)| *of == watched).map(|(_, name)| name.clone());
        self.known_names(watched).into_iter().chain(unreadable).collect()
    }

    fn known_names(&self, watched: Watched) -> Vec<String> {
        match watched {
            Watched::Config(kind) => {
                let sources =
                    self.sources.keys().filter(|config| config.kind == kind).map(|config| config.name.clone());
                let versions = self.version_sources.keys().filter(|(of, _)| *of == kind).map(|(_, name)| name.clone());
                let drafts = self.drafts.keys().filter(|(of, _)| *of == kind).map(|(_, name)| name.clone());
                sources.chain(versions).chain(drafts).collect()
            }
            Watched::Workload(kind) => {
                self.workloads.keys().filter(|key| key.kind == kind).map(|key| key.name.clone()).collect()
            }
            Watched::VersionedConfig => self.managed_names.keys().cloned().collect(),
            Watched::PinTable => self.table.iter().map(|_| lockstep_core::names::PIN_TABLE.to_owned()).collect(),
            Watched::Release => self.releases.keys().cloned().collect(),
            Watched::Policy => self.policies.keys().cloned().collect(),
            Watched::Pod => self.pods.keys().cloned().collect(),
            Watched::Namespace => self.fact.iter().map(|_| String::new()).collect(),
        }
    }

    fn apply_config(&mut self, kind: ConfigKind, name: &str, fact: ConfigFact) -> Todo {
        match fact {
            ConfigFact::Source(fact) => {
                let config = ConfigRef::new(kind, name);
                self.drafts.remove(&(kind, name.to_owned()));
                let stripped = self.remove_version(kind, name);
                let (was_ours, was_opted_in) = (self.is_ours(&config), self.opted_in(&config));
                let is_another = self.sources.get(&config).is_none_or(|old| old.uid != fact.uid);
                self.sources.insert(config.clone(), fact);
                self.forget_remembered(&config);
                let consumers = self.forget_unwanted();
                let is_ours = was_ours || self.is_ours(&config);
                // Who keeps its versions depends on whether it is under our care.
                let is_changed = is_another || was_opted_in != self.opted_in(&config);
                let is_changed = is_changed && self.versions.contains_key(&config);
                if is_changed {
                    self.unheld.insert(config.clone());
                }
                let retention = is_changed.then(|| config.clone()).into_iter().collect();
                let configs = stripped.into_iter().chain(is_ours.then_some(config)).collect();
                Todo { configs, consumers, retention, ..Todo::default() }
            }
            ConfigFact::Version(fact) => {
                let config = fact.config.clone();
                self.sources.remove(&ConfigRef::new(kind, name));
                self.drafts.remove(&(kind, name.to_owned()));
                self.version_sources.insert((kind, name.to_owned()), config.clone());
                self.versions.entry(config.clone()).or_default().insert(name.to_owned(), fact);
                Todo { configs: [config.clone()].into(), retention: [config].into(), ..Todo::default() }
            }
            ConfigFact::Draft(fact) => {
                let config = fact.config.clone();
                self.remove_version(kind, name);
                self.sources.remove(&ConfigRef::new(kind, name));
                self.drafts.insert((kind, name.to_owned()), fact);
                Todo { retention: [config].into(), ..Todo::default() }
            }
        }
    }

    fn remove_config(&mut self, kind: ConfigKind, name: &str) -> Todo {
        if self.drafts.remove(&(kind, name.to_owned())).is_some() {
            return Todo::default();
        }
        if let Some(config) = self.remove_version(kind, name) {
            return Todo { consumers: self.in_need_of_care(&config).collect(), ..Todo::config(&config) };
        }
        let config = ConfigRef::new(kind, name);
        let was_ours = self.is_ours(&config);
        self.sources.remove(&config);
        self.digests.remove(&config);
        let consumers = self.forget_unwanted();
        Todo { consumers, ..if was_ours { Todo::config(&config) } else { Todo::default() } }
    }

    /// The config whose version it was.
    fn remove_version(&mut self, kind: ConfigKind, name: &str) -> Option<ConfigRef> {
        let config = self.version_sources.remove(&(kind, name.to_owned()))?;
        if let Some(fact) = self.versions.get_mut(&config).and_then(|versions| versions.remove(name)) {
            self.contents.remove(&fact.uid);
        }
        Some(config)
    }

    /// The versions of a config, without those that are known to be forged.
    fn genuine_versions(&self, config: &ConfigRef) -> impl Iterator<Item = &VersionFact> {
        self.versions.get(config).into_iter().flat_map(BTreeMap::values).filter(|fact| !self.is_forged(fact))
    }

    /// Whether it is known to hold something else than it says.
    fn is_forged(&self, fact: &VersionFact) -> bool {
        let content = self.contents.get(&fact.uid);
        content.is_some_and(|digest| digest.as_ref() != Some(&fact.version.digest))
    }

    /// Among the versions of all that a workload uses.
    fn forged_for(&self, workload: &WorkloadKey) -> BTreeSet<String> {
        let references = self.workloads.get(workload).into_iter().flat_map(|fact| &fact.references);
        let versions = references.filter_map(|config| self.versions.get(config)).flat_map(BTreeMap::values);
        versions.filter(|fact| self.is_forged(fact)).map(|fact| fact.uid.clone()).collect()
    }

    fn apply_workload(&mut self, kind: usize, name: &str, mut fact: Option<WorkloadFact>) -> Todo {
        let key = WorkloadKey { kind, name: name.to_owned() };
        if let (Some(new), Some(old)) = (&mut fact, self.workloads.get_mut(&key)) {
            new.keep_gate(old);
            // What we write must be looked at again whoever wrote it: another try may depend on that.
            if !new.is_consumer && new.says_nothing_new(old) {
                old.resource_version = new.resource_version;
                return Todo::default();
            }
        }
        if let Some(fact) = fact.as_ref().filter(|fact| fact.is_holder) {
            self.note_unheld(fact);
        }
        let is_holder = fact.as_ref().is_some_and(|fact| fact.is_holder);
        let needs_care = fact.as_ref().is_some_and(|fact| self.needs_care(fact) || self.has_orphaned_gate(fact));
        let made_by = fact.as_ref().and_then(|fact| fact.made_by.clone());
        let mut concerned: BTreeSet<ConfigRef> = fact.iter().flat_map(|fact| fact.references.iter().cloned()).collect();
        for config in &concerned {
            self.users.entry(config.clone()).or_default().insert(key.clone());
        }
        if let Some(fact) = &fact {
            self.uids.insert(fact.owner.uid.clone(), key.clone());
        }
        let stands_in = fact.as_ref().and_then(|fact| fact.stands_in_for.clone());
        let stood_in = self.workloads.get(&key).and_then(|old| old.stands_in_for.clone());
        if let Some(old) = &stood_in {
            self.stand_ins.remove(&old.consumer);
        }
        if let Some(new) = &stands_in {
            self.stand_ins.insert(new.consumer.clone(), key.clone());
        }
        let old = match fact {
            Some(fact) => self.workloads.insert(key.clone(), fact),
            None => self.workloads.remove(&key),
        };
        let uid = |fact: &WorkloadFact| fact.owner.uid.clone();
        let gone = old.as_ref().map(uid).filter(|old| self.workloads.get(&key).map(uid).as_ref() != Some(old));
        if let Some(gone) = gone {
            self.uids.remove(&gone);
            self.told.remove(&gone);
        }
        for config in old.into_iter().flat_map(|old| old.references) {
            if concerned.insert(config.clone()) {
                self.forget_user(&config, &key);
            }
        }
        concerned.retain(|config| self.is_ours(config));
        let retention = if is_holder { concerned.clone() } else { BTreeSet::new() };
        let releases = match stands_in.or(stood_in) {
            Some(_) => self.watched_releases(),
            None => self.watched_releases_of(&concerned.iter().collect()),
        };
        let maker = made_by.and_then(|uid| self.uids.get(&uid).cloned()).filter(|maker| self.waits_for_unknown(maker));
        let consumers = needs_care.then_some(key).into_iter().chain(maker).collect();
        Todo { configs: concerned, consumers, releases, retention, ..Todo::default() }
    }

    fn waits_for_unknown(&self, key: &WorkloadKey) -> bool {
        self.workloads.get(key).is_some_and(|fact| !self.left_unknown(fact).is_empty())
    }

    /// Whether its template does not say what its pods are to run. One that cannot be changed is told so, once.
    fn needs_care(&self, fact: &WorkloadFact) -> bool {
        let is_to_be_told = || fact.is_fixed && !self.is_going() && !self.told.contains(&fact.owner.uid);
        let has_slipped = fact.can_change && !fact.slipped.is_empty();
        has_slipped
            || ((fact.can_change || is_to_be_told()) && !self.known_pins(fact).1.is_empty())
            || !self.left_unknown(fact).is_empty()
    }

    /// Its pins, with what is current in the place of versions that nobody knows, and those. Where its pods run all the same, nothing is
    /// replaced: the version is gone, and they would be restarted with another one. A release knows itself what it moves, also one that is
    /// about to start: new code does not get an old version meanwhile.
    fn known_pins(&self, fact: &WorkloadFact) -> (Pins, Vec<Unknown>) {
        if runs_already(fact) || self.is_on_the_move(fact) {
            return (fact.pins.clone(), Vec::new());
        }
        self.replace_unknown(fact)
    }

    fn replace_unknown(&self, fact: &WorkloadFact) -> (Pins, Vec<Unknown>) {
        let is_known =
            |config: &ConfigRef, object: &str| !fact.references.contains(config) || self.is_known(config, object);
        let current = |config: &ConfigRef| self.table.as_ref()?.table.get(config)?.current.as_deref();
        template::replace_unknown(&fact.pins, is_known, current)
    }

    /// Whether a release moves what it uses, is about to, or has just ended and the table does not say so yet.
    fn is_on_the_move(&self, fact: &WorkloadFact) -> bool {
        let is_behind = |config: &ConfigRef| {
            let released = self.managed.get(config).and_then(ManagedFact::released);
            released.zip(self.entry(config).current.as_deref()).is_some_and(|(released, current)| released != current)
        };
        let moves = |config: &ConfigRef| self.candidates.contains_key(config) || is_behind(config);
        fact.references.iter().any(moves) || !self.releases_of(fact.references.iter()).is_empty()
    }

    /// The versions in records of a workload's earlier templates that nobody knows, as long as its controller may wait for a pod of them:
    /// such a pod never starts. In a release, that sees to it.
    fn left_unknown(&self, fact: &WorkloadFact) -> Vec<Unknown> {
        let waits = fact.can_change && fact.rollout.may_wait_for_a_pod(fact.id().kind()) && fact.gate.saved.is_none();
        if !waits || runs_already(fact) || self.is_on_the_move(fact) {
            return Vec::new();
        }
        let records = self.workloads.values().filter(|record| record.made_by.as_ref() == Some(&fact.owner.uid));
        let unknown: BTreeSet<Unknown> = records.flat_map(|record| self.replace_unknown(record).1).collect();
        unknown.into_iter().collect()
    }

    /// What the table names may come, or goes from the table first: until then, pods without a pin would get it, too.
    fn is_known(&self, config: &ConfigRef, object: &str) -> bool {
        self.genuine_versions(config).any(|fact| fact.version.object == object) || self.entry(config).names(object)
    }

    /// A consumer that is pinned to what is no version of its config. Those whose pods do not run are mended.
    fn unknown_pin(&self, config: &ConfigRef) -> Option<UnknownPin> {
        let mut left = self.users_of(config).filter(|(_, fact)| fact.is_consumer && !is_mended(fact) && !is_over(fact));
        left.find_map(|(key, fact)| {
            let Some(Pin::Version(object)) = fact.pins.get(config) else { return None };
            let pin = || UnknownPin {
                consumer: key.clone(),
                object: object.clone(),
                is_of: self.content_of(config.kind, object, config),
            };
            // What never got a name is there all the same, for whoever joined it.
            let is_draft = self.drafts.contains_key(&(config.kind, object.clone()));
            (!self.is_known(config, object) && !is_draft).then(pin)
        })
    }

    /// Whose content an object has that is no version of this config, if there is such an object.
    fn content_of(&self, kind: ConfigKind, object: &str, config: &ConfigRef) -> Option<ConfigRef> {
        let (itself, of) = (ConfigRef::new(kind, object), self.version_sources.get(&(kind, object.to_owned())));
        // What says that it is a version of it, and is not, is nothing but itself.
        let is_itself = of == Some(config) || self.sources.contains_key(&itself);
        if is_itself { Some(itself) } else { of.cloned() }
    }

    fn has_version(&self, config: &ConfigRef, object: &str) -> bool {
        self.versions.get(config).is_some_and(|versions| versions.contains_key(object))
    }

    fn note_unheld(&mut self, fact: &WorkloadFact) {
        let is_unheld = |config: &&ConfigRef| {
            let Some(Pin::Version(object)) = fact.needs(config) else { return false };
            let version = self.versions.get(*config).and_then(|versions| versions.get(object));
            version.is_some_and(|version| version.owners.iter().all(is_keeper))
        };
        let unheld: Vec<ConfigRef> = fact.references.iter().filter(is_unheld).cloned().collect();
        self.unheld.extend(unheld);
    }

    fn forget_user(&mut self, config: &ConfigRef, key: &WorkloadKey) {
        if let Some(users) = self.users.get_mut(config) {
            users.remove(key);
            if users.is_empty() {
                self.users.remove(config);
            }
        }
    }

    fn apply_managed(&mut self, name: &str, fact: ManagedFact) -> Todo {
        let config = fact.config.clone();
        self.managed_names.insert(name.to_owned(), config.clone());
        let (held_by, retry) = (fact.held_by().map(str::to_owned), fact.object.spec.retry.clone());
        // One that says nothing yet was made again, by us who were cut off, and is still to be told what it was.
        if fact.object.status.is_some() {
            self.remembered.remove(&config);
        }
        let is_another = self.managed.get(&config).is_none_or(|old| old.uid() != fact.uid());
        // Its versions have one keeper less until it is among their owners.
        if is_another && self.kept(&config).any(|version| version.owners.iter().all(|owner| owner.uid != fact.uid())) {
            self.unheld.insert(config.clone());
        }
        let old = self.managed.insert(config.clone(), fact);
        let mut configs = BTreeSet::from([config.clone()]);
        // What was held with it may be tried again.
        let is_retried = old.as_ref().map(|old| &old.object.spec.retry) != Some(&retry);
        let let_go =
            old.as_ref().and_then(ManagedFact::held_by).filter(|old| is_retried || held_by.as_deref() != Some(old));
        let partners = let_go.and_then(|release| self.releases.get(release)).map(|fact| fact.core.configs());
        configs.extend(partners.into_iter().flatten().cloned());
        let releases = self.watched_releases_of(&[&config].into());
        let (lost, consumers) = (self.lost_of(&config), self.in_need_of_care(&config).collect());
        Todo { configs, consumers, releases, lost, retention: [config].into(), ..Todo::default() }
    }

    fn remove_managed(&mut self, name: &str) -> Todo {
        let Some(config) = self.managed_names.remove(name) else { return Todo::default() };
        // Whoever opts a config out means it, and what nobody needs for long is forgotten by us.
        let is_opted_out = self.sources.contains_key(&config) && !self.opted_in(&config);
        let is_forgotten = self.unused.get(&config).is_some_and(|since| since.elapsed() >= UNUSED);
        let lost = self.managed.remove(&config).filter(|_| !is_opted_out && !is_forgotten);
        self.remembered.extend(lost.map(|lost| (config.clone(), lost)));
        Todo { consumers: self.forget_unwanted(), ..Todo::config(&config) }
    }

    fn forget_remembered(&mut self, config: &ConfigRef) {
        if !self.opted_in(config) {
            self.remembered.remove(config);
        }
    }

    /// Only configs whose entry changed are looked into: a table may have thousands.
    fn apply_table(&mut self, fact: Option<Arc<TableFact>>) -> Todo {
        let old = std::mem::replace(&mut self.table, fact);
        let [old, new] = [&old, &self.table].map(|fact| fact.as_ref().map(|fact| &fact.table));
        let of = |table: Option<&'_ Table>, config: &ConfigRef| table.and_then(|table| table.get(config).cloned());
        let changed = |config: &ConfigRef| of(old, config) != of(new, config);
        let known = [old, new].into_iter().flatten().flat_map(Table::iter).map(|(config, _)| config);
        let configs: BTreeSet<ConfigRef> = known.filter(|config| changed(config)).cloned().collect();
        for config in &configs {
            let next = |table| of(table, config).and_then(|entry| entry.next);
            if next(old) != next(new) {
                self.announced.insert(config.clone(), Instant::now());
            }
        }
        let consumers = configs.iter().flat_map(|config| self.in_need_of_care(config)).collect();
        // One that goes back ends once nobody can join it any more.
        let releases = self.releases_of(configs.iter());
        Todo { consumers, releases, retention: configs.clone(), configs, ..Todo::default() }
    }

    fn in_need_of_care(&self, config: &ConfigRef) -> impl Iterator<Item = WorkloadKey> {
        self.users_of(config).filter(|(_, fact)| self.needs_care(fact)).map(|(key, _)| key.clone())
    }

    fn apply_namespace(&mut self, fact: NamespaceFact) -> Todo {
        let changed = self.fact.is_some_and(|old| old.is_versioned) != fact.is_versioned;
        self.fact = Some(fact);
        let configs = if changed { self.users.keys().cloned().collect() } else { BTreeSet::new() };
        Todo { configs, ..Todo::default() }
    }

    fn is_going(&self) -> bool {
        self.fact.is_some_and(|fact| fact.is_going)
    }

    /// Whether somebody put the config under our care, or did once.
    fn is_ours(&self, config: &ConfigRef) -> bool {
        if self.is_going() {
            return false;
        }
        let in_table = || self.table.as_ref().is_some_and(|fact| fact.table.get(config).is_some());
        self.managed.contains_key(config) || in_table() || self.opted_in(config)
    }

    fn opted_in(&self, config: &ConfigRef) -> bool {
        let Some(source) = self.sources.get(config) else { return false };
        let by_namespace = || self.fact.is_some_and(|fact| fact.is_versioned) && self.users_of(config).next().is_some();
        // Kubernetes copies a Deployment's annotations to its ReplicaSets, where nobody takes them off.
        let by_workload = || self.users_of(config).any(|(_, fact)| fact.is_auto && fact.is_consumer);
        !source.is_ignored && (source.is_versioned || by_namespace() || by_workload())
    }

    /// Of a config that is there and under our care.
    pub(super) fn source_uid(&self, config: &ConfigRef) -> Option<String> {
        self.opted_in(config).then(|| self.sources.get(config)).flatten().map(|source| source.uid.clone())
    }

    fn note_use(&mut self, config: &ConfigRef) {
        let is_unused = self.is_ours(config)
            && !self.opted_in(config)
            && self.consumers(config).is_empty()
            && !self.has_unreadable_workloads();
        if is_unused {
            self.unused.entry(config.clone()).or_insert_with(Instant::now);
        } else {
            self.unused.remove(config);
        }
    }

    fn users_of(&self, config: &ConfigRef) -> impl Iterator<Item = (&WorkloadKey, &WorkloadFact)> {
        let keys = self.users.get(config).into_iter().flatten();
        keys.filter_map(|key| Some((key, self.workloads.get(key)?)))
    }

    fn entry(&self, config: &ConfigRef) -> Entry {
        self.table.as_ref().map(|fact| fact.entry(config)).unwrap_or_default()
    }

    fn view(&self, id: &ConfigId, default: &Policy) -> ConfigView {
        let config = &id.config;
        let source = self.opted_in(config).then(|| self.sources.get(config).cloned()).flatten();
        let managed = self.managed.get(config).cloned();
        let digest = source.as_ref().and_then(|source| self.known_digest(config, source, managed.as_ref()));
        ConfigView {
            id: id.clone(),
            has_source_object: self.sources.contains_key(config),
            source,
            digest,
            versions: self.genuine_versions(config).cloned().collect(),
            unchecked: self
                .genuine_versions(config)
                .filter(|fact| !self.contents.contains_key(&fact.uid))
                .map(|fact| fact.version.object.clone())
                .collect(),
            unkept: self.unkept(config),
            drafts: self.drafts_of(config),
            table: self.table.clone(),
            entry: self.entry(config),
            managed,
            remembered: self.remembered.get(config).cloned(),
            consumers: self.consumers(config),
            unknown: self.unknown_pin(config),
            announced: self.announced.get(config).copied(),
            unused: self.unused.get(config).copied(),
            has_unpinned_templates: self.users_of(config).any(|(_, fact)| fact.pins.get(config).is_none()),
            moving_to: self.moving_to(config),
            under_way: self.under_way(config),
            stranded: self.is_stranded(config),
            left_behind: self.left_behind(config),
            held_is_outdated: self.held_is_outdated(config),
            can_join: self.can_join(config, default),
            validation: self.validation(config),
            missing_policy: self.missing_policy(config),
            rejected: self.rejected(config),
            rejected_versions: self.rejected_versions(config),
            next_release_name: self.next_name(config),
        }
    }

    /// A source that did not change since it was last released has the released version's digest: nothing needs to be read.
    fn known_digest(&self, config: &ConfigRef, source: &SourceFact, managed: Option<&ManagedFact>) -> Option<Digest> {
        if let Some((at, digest)) = self.digests.get(config) {
            return (*at == source.resource_version).then(|| digest.clone());
        }
        let status = managed?.object.status.as_ref()?;
        let observed = status.observed_resource_version.as_ref()?.parse().ok()?;
        let released = self.versions.get(config)?.get(managed?.released()?)?;
        (ResourceVersion(observed) == source.resource_version).then(|| Digest::from(released.version.digest.clone()))
    }

    /// The uids of those who keep its versions.
    fn keepers(&self, config: &ConfigRef) -> BTreeSet<String> {
        let managed = self.managed.get(config).map(|managed| managed.uid().to_owned());
        managed.into_iter().chain(self.source_uid(config)).collect()
    }

    /// The versions that somebody keeps, or did before that went.
    fn kept(&self, config: &ConfigRef) -> impl Iterator<Item = &VersionFact> {
        self.genuine_versions(config).filter(|version| version.owners.iter().any(is_keeper))
    }

    /// The versions that are there only for as long as somebody runs them.
    fn unkept(&self, config: &ConfigRef) -> BTreeSet<String> {
        let keepers = self.keepers(config);
        let is_unkept = |fact: &&VersionFact| !fact.owners.iter().any(|owner| keepers.contains(&owner.uid));
        self.genuine_versions(config).filter(is_unkept).map(|fact| fact.version.object.clone()).collect()
    }

    fn drafts_of(&self, config: &ConfigRef) -> Vec<DraftFact> {
        self.drafts.values().filter(|draft| draft.config == *config).cloned().collect()
    }

    fn consumers(&self, config: &ConfigRef) -> Vec<(WorkloadKey, Option<Pin>)> {
        let consumers = self.users_of(config).filter(|(_, fact)| fact.is_consumer);
        consumers.map(|(key, fact)| (key.clone(), fact.pins.get(config).cloned())).collect()
    }

    /// All of them where a workload cannot be read: it may use any. None if nobody has looked yet what the config holds.
    fn retained(&self, config: &ConfigRef, policy: &Policy) -> Option<usize> {
        if self.opted_in(config) && self.source_digest(config).is_none() {
            return None;
        }
        let chosen = self.sources.get(config).and_then(|source| source.retain).unwrap_or(policy.retain);
        Some(if self.has_unreadable_workloads() { usize::MAX } else { chosen })
    }

    /// Of what the config holds right now.
    fn source_digest(&self, config: &ConfigRef) -> Option<Digest> {
        self.known_digest(config, self.sources.get(config)?, self.managed.get(config))
    }

    /// The version that pods get which are made from this template now.
    fn runs(&self, fact: &WorkloadFact, config: &ConfigRef) -> Option<String> {
        match fact.needs(config) {
            Some(Pin::Version(object)) => Some(object.clone()),
            Some(Pin::Live) => self.entry(config).current,
            None => self.entry(config).baseline,
        }
    }

    /// Whether an owner of a version makes no pods with it any more: its template has another one by now, or names neither the config nor this
    /// very object. What we do not know may still need it.
    fn has_gone_on(&self, owner: &str, config: &ConfigRef, object: &str) -> bool {
        let Some(fact) = self.uids.get(owner).and_then(|key| self.workloads.get(key)) else { return false };
        let is_another = || self.runs(fact, config).is_some_and(|runs| runs != object);
        let is_named = fact.references.contains(&ConfigRef::new(config.kind, object));
        !self.has_unreadable_workloads() && !is_named && (!fact.references.contains(config) || is_another())
    }

    fn retention(&self, config: &ConfigRef, default: &Policy, now: Timestamp) -> RetentionView {
        let entry = self.entry(config);
        let policy = self.policy(config, default);
        let versions: Vec<VersionFact> = self.genuine_versions(config).cloned().collect();
        let of_source = self.source_digest(config).map(|digest| digest.version_object_name(&config.name));
        let all: Vec<&WorkloadFact> = self.users_of(config).map(|(_, fact)| fact).collect();
        let mut holders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut wanted: BTreeSet<String> = BTreeSet::new();
        for fact in &all {
            let Some(object) = self.runs(fact, config) else { continue };
            if fact.is_holder {
                holders.entry(object.clone()).or_default().insert(fact.owner.uid.clone());
            }
            if fact.is_consumer {
                wanted.insert(object);
            }
        }
        let source_uid = self.source_uid(config);
        let managed = self.managed.get(config).cloned();
        let keepers = self.keepers(config);
        let draft_facts = self.drafts_of(config);
        let former = |owners: &[OwnerReference], object: &str| {
            let owners = owner_uids(owners).into_iter();
            owners.filter(|uid| self.has_gone_on(uid, config, object)).collect()
        };
        let draft = |fact: &DraftFact| Draft {
            object: fact.object.clone(),
            is_abandoned: fact.is_abandoned(now),
            owners: owner_uids(&fact.owners),
            former: former(&fact.owners, &fact.object),
            kept_by: kept_by(&fact.owners, &keepers),
            users: holders.get(&fact.object).cloned().unwrap_or_default(),
            is_wanted: wanted.contains(&fact.object),
        };
        let holding = |fact: &VersionFact| Holding {
            version: fact.version.clone(),
            owners: owner_uids(&fact.owners),
            former: former(&fact.owners, &fact.version.object),
            kept_by: kept_by(&fact.owners, &keepers),
            users: holders.get(&fact.version.object).cloned().unwrap_or_default(),
            is_wanted: wanted.contains(&fact.version.object),
        };
        RetentionView {
            drafts: draft_facts.iter().map(draft).collect(),
            draft_facts,
            holdings: versions.iter().map(holding).collect(),
            protected: [entry.current, entry.next, entry.moving]
                .into_iter()
                .flatten()
                .chain(managed.as_ref().and_then(|managed| managed.released().map(str::to_owned)))
                .chain(of_source)
                .chain(self.needed_by_releases(config))
                .collect(),
            retain: self.retained(config, &policy),
            old_releases: self.old_releases(config, &policy, now),
            managed,
            source_uid,
            versions,
            users: all.into_iter().filter(|fact| fact.is_holder).cloned().collect(),
        }
    }
}

/// Whether its pods run what its template says.
fn runs_already(fact: &WorkloadFact) -> bool {
    fact.rollout.has_arrived() && fact.rollout.idle.is_none()
}

/// Whether a pin to a version that nobody knows is replaced, now or after the release that it is part of.
fn is_mended(fact: &WorkloadFact) -> bool {
    fact.can_change && !runs_already(fact)
}

/// Whether it makes no pods any more: a Job that has ended.
fn is_over(fact: &WorkloadFact) -> bool {
    !fact.can_change && !fact.is_fixed
}

/// Without keepers.
fn owner_uids(owners: &[OwnerReference]) -> BTreeSet<String> {
    owners.iter().filter(|owner| !is_keeper(owner)).map(|owner| owner.uid.clone()).collect()
}

fn kept_by(owners: &[OwnerReference], keepers: &BTreeSet<String>) -> Keepers {
    let found: BTreeSet<String> =
        owners.iter().filter(|owner| is_keeper(owner)).map(|owner| owner.uid.clone()).collect();
    match found {
        found if found.is_empty() => Keepers::None,
        found if found == *keepers => Keepers::All,
        _ => Keepers::Some,
    }
}

#[cfg(test)]
mod tests;
