//! What the index knows of releases: which changes go together, who is part of one, and how they do.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use lockstep_core::health::{Rollout, Unit, may_stay_unready};
use lockstep_core::keys::{is_concerned, missing};
use lockstep_core::kinds::{Kind, MadeFrom};
use lockstep_core::plan::Stranded;
use lockstep_core::policy::Policy;
use lockstep_core::release::{
    Block, ConsumerId, Member, Move, Phase, Progress, Record, Release, State, Wait, is_new_pod, stopped_by_somebody,
};
use lockstep_core::storm;
use lockstep_core::validation::Validation;
use lockstep_core::{ConfigRef, Entry, Pin};

use super::{ConfigId, Index, Namespace, PolicyId, ReleaseId, Todo, Watched, WorkloadKey};
use crate::facts::{ManagedFact, PodFact, PolicyFact, ReleaseFact, ResourceVersion, VersionFact, WorkloadFact};
use crate::refusals::Refusals;

/// Everything about one release that a decision needs.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each with its own name")]
#[derive(Debug, Clone)]
pub struct ReleaseView {
    pub id: ReleaseId,
    pub fact: ReleaseFact,
    /// What it is to move by now, if it has not started and says something else.
    pub amended: Option<Box<Start>>,
    pub policy: Policy,
    pub members: Vec<Member>,
    /// The members' pods that are not ready, by their uid: as they were when that was seen.
    pub broken_pods: BTreeMap<String, ResourceVersion>,
    /// The objects behind the members.
    pub workloads: BTreeMap<ConsumerId, (WorkloadKey, WorkloadFact)>,
    pub blocked: Option<Block>,
    pub superseded_by: Option<String>,
    /// What the newer release has to wait for.
    pub successor_waits: Option<Wait>,
    pub is_overtaken: bool,
    pub is_offered: bool,
    pub has_succeeded: bool,
    pub held: Option<String>,
    pub inherited: Vec<Record>,
    /// Whom other releases judge.
    pub taken_over: BTreeSet<ConsumerId>,
    pub can_judge: bool,
    pub refused: Refusals,
    /// The VersionedConfigs of its configs.
    pub managed: Vec<ManagedFact>,
    /// The versions that it moves to.
    pub versions: Vec<VersionFact>,
}

/// Changes that are to become one release.
#[derive(Debug, Clone)]
pub struct Start {
    pub namespace: String,
    pub name: String,
    pub moves: Vec<Move>,
    pub how: How,
    /// Whether the release that it replaces is paused: so is what comes after it.
    pub is_paused: bool,
    pub versions: Vec<VersionFact>,
    pub managed: Option<ManagedFact>,
    /// Of the config that the VersionedConfig is of.
    pub source_uid: Option<String>,
}

/// A release that was deleted while it was under way, and the config that owns it.
#[derive(Debug, Clone)]
pub struct Lost {
    pub fact: ReleaseFact,
    pub managed: ManagedFact,
    pub source_uid: Option<String>,
}

#[derive(Debug, Clone)]
pub enum How {
    New,
    /// A release that has not started takes them in, and perhaps the place of one under way.
    Amend {
        release: Box<ReleaseFact>,
        supersedes: Option<String>,
    },
    /// A release under way is replaced.
    Supersede(String),
}

impl Index {
    /// Remembers where a config wants to go; true if that is news.
    pub fn note_candidate(&mut self, id: &ConfigId, to: Option<String>) -> bool {
        let Some(namespace) = self.namespaces.get_mut(&id.namespace) else { return false };
        match to {
            Some(to) => namespace.candidates.insert(id.config.clone(), to.clone()) != Some(to),
            None => namespace.candidates.remove(&id.config).is_some(),
        }
    }

    pub fn settle(&self, id: &ConfigId) -> std::time::Duration {
        let namespace = self.namespaces.get(&id.namespace);
        namespace
            .map_or(self.default_policy.settle, |namespace| namespace.policy(&id.config, &self.default_policy).settle)
    }

    /// The release that a change makes, together with what changed beside it.
    pub fn start(&self, id: &ConfigId) -> Option<Start> {
        let namespace = self.namespaces.get(&id.namespace)?;
        if namespace.unreadable_for(&id.config).is_some() {
            return None;
        }
        namespace.start(&id.namespace, &id.config)
    }

    /// Whether another config of its consumers was changed, too, and is not read yet: it may belong to the same release.
    pub fn may_grow(&self, id: &ConfigId) -> bool {
        self.namespaces.get(&id.namespace).is_some_and(|namespace| namespace.may_grow(&id.config))
    }

    /// Whether two pieces of work start something that meets: begun at the same time, neither would know of the other.
    pub fn cross(&self, one: &super::Work, other: &super::Work) -> bool {
        use super::Work::{Release, Start};
        match (one, other) {
            (Start(one), Start(other)) if one.namespace == other.namespace => {
                let namespace = self.namespaces.get(&one.namespace);
                namespace.is_some_and(|namespace| namespace.go_together(&one.config, &other.config))
            }
            (Release(one), Release(other)) if one.namespace == other.namespace => {
                let namespace = self.namespaces.get(&one.namespace);
                namespace.is_some_and(|namespace| namespace.would_collide(&one.name, &other.name))
            }
            _ => false,
        }
    }

    pub fn release(&self, id: &ReleaseId, now: Timestamp) -> Option<ReleaseView> {
        let namespace = self.namespaces.get(&id.namespace)?;
        let is_lost = namespace.lost.contains_key(&id.name);
        let fact = namespace.releases.get(&id.name).filter(|fact| fact.is_watched() && !is_lost)?;
        if namespace.cannot_record(fact) {
            return None;
        }
        let has_started = fact.core.progress.started_at.is_some();
        let budget = if has_started { None } else { self.budget(now) };
        Some(namespace.release_view(id, fact, &self.default_policy, budget, now))
    }

    /// What a policy demands of contents.
    pub fn rules(&self, id: &PolicyId) -> Option<Validation> {
        let fact = self.namespaces.get(&id.namespace)?.policies.get(&id.name)?;
        fact.spec.validation.as_ref().map(Validation::from)
    }

    /// A release that is to be written again as it was. None until its config is under our care again.
    pub fn lost(&self, id: &ReleaseId) -> Option<Lost> {
        let namespace = self.namespaces.get(&id.namespace)?;
        let fact = namespace.lost.get(&id.name).filter(|_| !namespace.fact.is_some_and(|fact| fact.is_going))?;
        let managed = fact.core.configs().find_map(|config| namespace.managed.get(config))?;
        let source_uid = namespace.source_uid(&managed.config);
        Some(Lost { fact: fact.clone(), managed: managed.clone(), source_uid })
    }

    /// The API server does not know it any more, although we do.
    pub fn lose(&mut self, id: &ReleaseId) -> Vec<super::Work> {
        let Some(namespace) = self.namespaces.get_mut(&id.namespace) else { return Vec::new() };
        let is_lost =
            namespace.releases.get(&id.name).is_some_and(|fact| fact.is_under_way() && namespace.is_wanted(fact));
        let work = if is_lost { namespace.remove_release(&id.name) } else { Todo::default() };
        self.count_releases(&id.namespace);
        work.within(&id.namespace)
    }

    /// There is no place for it any more. Its gates are then nobody's.
    pub fn give_up_lost(&mut self, id: &ReleaseId) -> Vec<super::Work> {
        let Some(namespace) = self.namespaces.get_mut(&id.namespace) else { return Vec::new() };
        let Some(lost) = namespace.lost.remove(&id.name) else { return Vec::new() };
        let configs: BTreeSet<ConfigRef> = lost.core.configs().cloned().collect();
        let consumers = namespace.behind_orphaned_gates(&configs);
        Todo { configs, consumers, ..Todo::default() }.within(&id.namespace)
    }

    /// Remembers which consumers of a release could not be written.
    pub fn note_refused(&mut self, id: &ReleaseId, refused: Refusals) {
        let Some(namespace) = self.namespaces.get_mut(&id.namespace) else { return };
        if refused.is_empty() {
            namespace.refused.remove(&id.name);
        } else {
            namespace.refused.insert(id.name.clone(), refused);
        }
    }

    /// Until when the whole cluster has rolled enough, if it has. What counts is in the releases themselves, so it outlives us.
    fn budget(&self, now: Timestamp) -> Option<Timestamp> {
        let recent = self.namespaces.values().flat_map(|namespace| namespace.releases.values()).filter_map(|fact| {
            let at = fact.core.progress.started_at.filter(|at| storm::is_within(*at, storm::BUDGET_WINDOW, now))?;
            Some((at, fact.core.progress.consumers.iter().filter(|record| was_pinned(record)).count()))
        });
        let (mut latest, mut pinned) = (None, 0);
        for (at, count) in recent {
            (latest, pinned) = (latest.max(Some(at)), pinned + count);
        }
        latest.filter(|_| pinned >= storm::BUDGET).map(|at| storm::later(at, storm::BUDGET_WINDOW))
    }

    /// The namespaces whose pods must be known.
    pub fn namespaces_with_releases(&self) -> &BTreeSet<String> {
        &self.with_releases
    }

    /// Pods of a namespace without releases are nobody's concern.
    pub fn forget_pods(&mut self, namespace: &str) {
        self.counts.forget_unreadable_pods(namespace);
        if let Some(namespace) = self.namespaces.get_mut(namespace) {
            namespace.pods.clear();
            namespace.unreadable.retain(|(watched, _), _| *watched != Watched::Pod);
            namespace.pods_are_known = false;
        }
    }

    /// All pods of a namespace were listed.
    pub fn pods_listed(&mut self, namespace: &str) -> Vec<super::Work> {
        let Some(state) = self.namespaces.get_mut(namespace) else { return Vec::new() };
        state.pods_are_known = true;
        Todo { releases: state.watched_releases(), ..Todo::default() }.within(namespace)
    }

    pub(super) fn count_releases(&mut self, namespace: &str) {
        let has =
            self.namespaces.get(namespace).is_some_and(|state| state.releases.values().any(ReleaseFact::is_watched));
        if has {
            self.with_releases.insert(namespace.to_owned());
        } else {
            self.with_releases.remove(namespace);
        }
    }
}

/// A workload that is older than this has been there before, whatever it runs.
const NEWCOMER: std::time::Duration = std::time::Duration::from_secs(600);

fn was_pinned(record: &Record) -> bool {
    !record.has_joined && !matches!(record.state, State::Waiting | State::Gone)
}

impl Namespace {
    pub(super) fn apply_release(&mut self, name: &str, fact: ReleaseFact) -> Todo {
        let configs: BTreeSet<ConfigRef> = fact.core.configs().cloned().collect();
        let has_ended = fact.has_ended();
        // What was written again and has no record yet would start from nothing.
        if fact.object.status.is_some() {
            self.lost.remove(name);
        }
        self.releases.insert(name.to_owned(), fact);
        // What waits for it, or is replaced by it, has to hear of it.
        let releases = self.watched_releases();
        let retention = if has_ended { configs.clone() } else { BTreeSet::new() };
        let consumers = if has_ended { self.left_by_releases(&configs) } else { BTreeSet::new() };
        Todo { configs, consumers, releases, retention, ..Todo::default() }
    }

    pub(super) fn remove_release(&mut self, name: &str) -> Todo {
        self.refused.remove(name);
        let Some(fact) = self.releases.remove(name) else { return Todo::default() };
        let configs = fact.core.configs().cloned().collect();
        let mut lost = BTreeSet::new();
        if fact.is_under_way() && self.is_wanted(&fact) {
            lost.insert(name.to_owned());
            self.lost.insert(name.to_owned(), fact);
        }
        Todo { configs, lost, releases: self.watched_releases(), ..Todo::default() }
    }

    /// Whether there is, or will be again, a VersionedConfig that a release can belong to.
    fn is_wanted(&self, fact: &ReleaseFact) -> bool {
        fact.core.configs().any(|config| self.managed.contains_key(config) || self.opted_in(config))
    }

    /// Forgets lost releases whose configs are nobody's concern any more. Their gates are then nobody's, too.
    pub(super) fn forget_unwanted(&mut self) -> BTreeSet<WorkloadKey> {
        let unwanted: Vec<String> =
            self.lost.iter().filter(|(_, fact)| !self.is_wanted(fact)).map(|(name, _)| name.clone()).collect();
        let forgotten = unwanted.iter().filter_map(|name| self.lost.remove(name));
        let configs: BTreeSet<ConfigRef> =
            forgotten.flat_map(|fact| fact.core.configs().cloned().collect::<Vec<_>>()).collect();
        self.behind_orphaned_gates(&configs)
    }

    pub(super) fn lost_of(&self, config: &ConfigRef) -> BTreeSet<String> {
        let moves = |fact: &ReleaseFact| fact.core.configs().any(|own| own == config);
        self.lost.iter().filter(|(_, fact)| moves(fact)).map(|(name, _)| name.clone()).collect()
    }

    /// Who needs something that a release would have done while it was there.
    fn left_by_releases(&self, configs: &BTreeSet<ConfigRef>) -> BTreeSet<WorkloadKey> {
        let in_need = configs.iter().flat_map(|config| self.in_need_of_care(config));
        in_need.chain(self.behind_orphaned_gates(configs)).collect()
    }

    fn behind_orphaned_gates(&self, configs: &BTreeSet<ConfigRef>) -> BTreeSet<WorkloadKey> {
        let users = configs.iter().flat_map(|config| self.changeable(config));
        users.filter(|(_, fact)| self.has_orphaned_gate(fact)).map(|(key, _)| key.clone()).collect()
    }

    /// Whether a workload is behind a gate that no release will open, under way or to come.
    pub(super) fn has_orphaned_gate(&self, fact: &WorkloadFact) -> bool {
        let is_expected = |config: &ConfigRef| {
            self.candidates.contains_key(config) || self.moving_to(config).is_some() || !self.lost_of(config).is_empty()
        };
        // Behind it may be the pods of a version that failed, left to a person: the rest must not follow. But not if nothing of the gate is
        // left: `kubectl rollout undo` brings back the note of one from long ago.
        let is_held = |config: &ConfigRef| {
            let managed = self.managed.get(config).filter(|_| !fact.gate.is_forced());
            let held = managed.and_then(|managed| managed.object.status.as_ref()?.held.as_ref());
            held.zip(fact.pins.get(config)).is_some_and(|(held, pin)| pin.to_string() == held.object)
        };
        // Or of one that failed before that: a release takes it back in a moment.
        let goes_back = |config: &ConfigRef| {
            let left = self.left_behind(config).filter(|_| self.opted_in(config));
            left.zip(fact.pins.get(config)).is_some_and(|(left, pin)| pin.to_string() == left)
        };
        fact.gate.saved.is_some()
            && !self.has_unreadable_releases()
            && self.releases_of(fact.references.iter()).is_empty()
            && !fact.references.iter().any(|config| is_expected(config) || is_held(config) || goes_back(config))
    }

    /// Whether what a held version failed together with is another by now: another config of that release, or the code of a consumer
    /// that changed with it. Then nobody knows any more that it is bad. What a person aborted stays so.
    pub(super) fn held_is_outdated(&self, config: &ConfigRef) -> bool {
        let held_by = self.managed.get(config).and_then(ManagedFact::held_by);
        let failed = held_by.and_then(|release| self.releases.get(release)).filter(|fact| {
            let progress = &fact.core.progress;
            let ends_as = progress.ends_as.unwrap_or(progress.phase);
            matches!(progress.phase, Phase::RollingBack | Phase::RolledBack | Phase::Failed)
                && ends_as != Phase::Aborted
        });
        failed.is_some_and(|fact| self.has_other_config(fact, config) || self.has_other_code(fact))
    }

    fn has_other_config(&self, failed: &ReleaseFact, config: &ConfigRef) -> bool {
        let name = Some(failed.core.name.as_str());
        let mut partners = failed.core.moves.iter().filter(|step| step.config != *config && step.from != step.to);
        partners.any(|step| {
            let managed = self.managed.get(&step.config);
            managed.is_some_and(|managed| managed.held_by() != name || managed.object.spec.retry.as_deref() == name)
        })
    }

    /// Of the consumer that failed, if it had joined. Whoever goes back to code from before the release wants the old pair, and not
    /// another try.
    fn has_other_code(&self, failed: &ReleaseFact) -> bool {
        let progress = &failed.core.progress;
        let mut joined = progress.consumers.iter().filter(|record| record.has_joined);
        let Some(record) = joined.find(|record| progress.reason.starts_with(&format!("{}: ", record.consumer))) else {
            return false;
        };
        let mut users = record.configs.iter().flat_map(|config| self.changeable(config));
        let consumer =
            users.find(|(_, fact)| fact.owner.name == record.consumer.name && fact.owner.kind == record.consumer.kind);
        consumer.is_some_and(|(_, fact)| {
            fact.template != record.template_before && self.is_new_code(fact, progress.started_at)
        })
    }

    /// Whether a consumer's code is none that it had before.
    fn is_new_code(&self, fact: &WorkloadFact, before: Option<Timestamp>) -> bool {
        // The ReplicaSets of a Rollout have defaults in their templates that its own lacks: they cannot be compared.
        if fact.id().kind() == Kind::Rollout {
            return fact.rollout.is_observed && fact.rollout.is_midway;
        }
        let is_old = |holder: &WorkloadFact| {
            holder.made_by.as_deref() == Some(fact.owner.uid.as_str())
                && holder.template == fact.template
                && holder.created < before
        };
        !self.workloads.values().any(is_old)
    }

    pub(super) fn apply_policy(&mut self, name: &str, fact: Option<PolicyFact>) -> Todo {
        let has_rules = fact.as_ref().is_some_and(|fact| fact.spec.validation.is_some());
        match fact {
            Some(fact) => drop(self.policies.insert(name.to_owned(), fact)),
            None => drop(self.policies.remove(name)),
        }
        let policies = has_rules.then(|| name.to_owned()).into_iter().collect();
        Todo {
            policies,
            configs: self.managed.keys().cloned().collect(),
            releases: self.watched_releases(),
            ..Todo::default()
        }
    }

    pub(super) fn apply_pod(&mut self, name: &str, fact: Option<PodFact>) -> Todo {
        if let (Some(new), Some(old)) = (&fact, self.pods.get_mut(name))
            && new.says_nothing_new(old)
        {
            old.resource_version = new.resource_version;
            return Todo::default();
        }
        let old = match fact {
            Some(fact) => self.pods.insert(name.to_owned(), fact),
            None => self.pods.remove(name),
        };
        let seen = [old.as_ref(), self.pods.get(name)];
        let configs: BTreeSet<&ConfigRef> =
            seen.into_iter().flatten().flat_map(|fact| fact.pins.iter().map(|(config, _)| config)).collect();
        Todo { releases: self.watched_releases_of(&configs), ..Todo::default() }
    }

    pub(super) fn watched_releases(&self) -> BTreeSet<String> {
        self.releases.iter().filter(|(_, fact)| fact.is_watched()).map(|(name, _)| name.clone()).collect()
    }

    /// The open releases that move one of these configs.
    pub(super) fn releases_of<'a>(&self, configs: impl Iterator<Item = &'a ConfigRef>) -> BTreeSet<String> {
        let watched = self.watched_releases_of(&configs.collect());
        watched.into_iter().filter(|name| self.releases.get(name).is_some_and(|fact| !fact.has_ended())).collect()
    }

    /// Also those that ended well and are waiting for somebody to run them.
    pub(super) fn watched_releases_of(&self, configs: &BTreeSet<&ConfigRef>) -> BTreeSet<String> {
        let moves = |fact: &ReleaseFact| fact.core.configs().any(|own| configs.contains(own));
        let watched = self.releases.iter().filter(|(_, fact)| fact.is_watched() && moves(fact));
        watched.map(|(name, _)| name.clone()).collect()
    }

    /// Where a release under way or about to start moves a config. Of two, the one that waits for the other's end has the last word.
    pub(super) fn moving_to(&self, config: &ConfigRef) -> Option<String> {
        let last = self.moving(config).min_by_key(|(fact, _)| fact.is_under_way());
        last.map(|(_, step)| step.to.clone())
    }

    /// Where a release that has started moves a config.
    pub(super) fn under_way(&self, config: &ConfigRef) -> Option<String> {
        let mut started = self.moving(config).filter(|(fact, _)| fact.is_under_way());
        started.next().map(|(_, step)| step.to.clone())
    }

    fn moving(&self, config: &ConfigRef) -> impl Iterator<Item = (&ReleaseFact, &Move)> {
        let open = self.releases.values().chain(self.lost.values()).filter(|fact| {
            !fact.has_ended() && fact.core.progress.phase != Phase::RollingBack && !self.is_superseded(fact)
        });
        let moves = open.flat_map(|fact| fact.core.moves.iter().map(move |step| (fact, step)));
        moves.filter(move |(_, step)| step.config == *config)
    }

    fn is_superseded(&self, fact: &ReleaseFact) -> bool {
        self.superseded_by(&fact.core.name).is_some()
    }

    /// The release that takes its place. One that ended before it started, rejected or aborted, does not.
    fn superseded_by(&self, name: &str) -> Option<&str> {
        let is_meant = |fact: &&ReleaseFact| fact.object.spec.supersedes.as_deref() == Some(name);
        let takes_place = |fact: &&ReleaseFact| !fact.has_ended() || fact.core.progress.started_at.is_some();
        let newer = self.releases.values().filter(is_meant).find(takes_place)?;
        Some(newer.core.name.as_str())
    }

    pub(super) fn policy(&self, config: &ConfigRef, default: &Policy) -> Policy {
        self.policy_fact(config).map_or_else(|| default.clone(), |fact| fact.spec.over(default))
    }

    pub(super) fn validation(&self, config: &ConfigRef) -> Validation {
        let spec = self.policy_fact(config).and_then(|fact| fact.spec.validation.as_ref());
        spec.map(Validation::from).unwrap_or_default()
    }

    fn policy_fact(&self, config: &ConfigRef) -> Option<&PolicyFact> {
        self.policies.get(self.policy_name(config))
    }

    pub(super) fn policy_name(&self, config: &ConfigRef) -> &str {
        let named = self.sources.get(config).and_then(|source| source.policy.as_deref());
        named.unwrap_or(lockstep_core::names::DEFAULT_POLICY)
    }

    /// The policy that a config names and that is not there.
    pub(super) fn missing_policy(&self, config: &ConfigRef) -> Option<String> {
        let named = self.sources.get(config)?.policy.clone()?;
        (!self.policies.contains_key(&named)).then_some(named)
    }

    /// Whether a workload that is written during a release may have the new version at once: not if others go before it.
    pub(super) fn can_join(&self, config: &ConfigRef, default: &Policy) -> bool {
        let waves: BTreeSet<i32> = self.changeable(config).map(|(_, fact)| fact.wave).collect();
        waves.len() <= 1 && self.policy(config, default).joining.enabled
    }

    /// What must stay for as long as a release may still go forward or back, or hold it against somebody.
    pub(super) fn needed_by_releases(&self, config: &ConfigRef) -> Vec<String> {
        let open = self.releases.values().filter(|fact| !fact.has_ended());
        let records = open.clone().flat_map(|fact| &fact.core.progress.consumers);
        let before = records.filter_map(|record| record.pins_before.get(config)).map(ToString::to_string);
        let moves = open.flat_map(|fact| &fact.core.moves).filter(|step| step.config == *config);
        let held = self.managed.get(config).and_then(|managed| managed.object.status.as_ref()?.held.as_ref());
        moves
            .flat_map(|step| [step.from.clone(), step.to.clone()])
            .chain(before)
            .chain(held.map(|held| held.object.clone()))
            .collect()
    }

    pub(super) fn rejected(&self, config: &ConfigRef) -> Vec<ReleaseFact> {
        let rejected = self.releases.values().filter(|fact| fact.core.progress.phase == Phase::Rejected);
        rejected.filter(|fact| fact.core.configs().any(|own| own == config)).cloned().collect()
    }

    pub(super) fn rejected_versions(&self, config: &ConfigRef) -> BTreeSet<String> {
        let mut last: BTreeMap<&str, &ReleaseFact> = BTreeMap::new();
        for fact in self.releases.values() {
            for step in fact.core.moves.iter().filter(|step| step.config == *config) {
                let known = last.entry(step.to.as_str()).or_insert(fact);
                if fact.core.progress.ended_at > known.core.progress.ended_at {
                    *known = fact;
                }
            }
        }
        let rejected = last.into_iter().filter(|(_, fact)| fact.core.progress.phase == Phase::Rejected);
        rejected.map(|(object, _)| object.to_owned()).collect()
    }

    /// The releases beyond the newest that are kept. What was superseded by an open release still says how things were before it, what was
    /// rejected must not be chosen for as long as its version is there, and what rolled somebody of late is the storm guard's memory: a
    /// config that flaps makes many releases that roll nobody, and they must not push it out.
    pub(super) fn old_releases(&self, config: &ConfigRef, policy: &Policy, now: Timestamp) -> Vec<ReleaseFact> {
        let first = |fact: &&ReleaseFact| fact.core.configs().next() == Some(config);
        let needed: BTreeSet<&str> = self
            .releases
            .values()
            .filter(|fact| !fact.has_ended())
            .filter_map(|fact| fact.object.spec.supersedes.as_deref())
            .collect();
        let mut ended: Vec<&ReleaseFact> =
            self.releases.values().filter(first).filter(|fact| fact.has_ended()).collect();
        ended.sort_by_key(|fact| std::cmp::Reverse(fact.core.progress.ended_at));
        let is_remembered = |fact: &ReleaseFact| {
            let progress = &fact.core.progress;
            let is_recent = progress.started_at.is_some_and(|at| storm::is_within(at, policy.storm.window, now));
            is_recent && progress.consumers.iter().any(was_pinned)
        };
        let rejected = self.rejected_versions(config);
        let says_why = |fact: &ReleaseFact| {
            let mut versions = fact.core.moves.iter().filter(|step| self.has_version(&step.config, &step.to));
            fact.core.progress.phase == Phase::Rejected && versions.any(|step| rejected.contains(&step.to))
        };
        let old = ended.into_iter().skip(policy.history.max(1));
        let awaits_a_person = |fact: &ReleaseFact| fact.core.progress.phase == Phase::Failed && fact.is_watched();
        let is_needed = |fact: &ReleaseFact| {
            needed.contains(fact.core.name.as_str()) || is_remembered(fact) || awaits_a_person(fact)
        };
        old.filter(|fact| !is_needed(fact) && !says_why(fact)).cloned().collect()
    }

    fn changeable(&self, config: &ConfigRef) -> impl Iterator<Item = (&WorkloadKey, &WorkloadFact)> {
        self.users_of(config).filter(|(_, fact)| fact.is_consumer && fact.can_change)
    }

    // --- which changes go together ---

    fn start(&self, namespace: &str, config: &ConfigRef) -> Option<Start> {
        let wanted = self.candidate(config)?;
        if self.moving_to(config).as_ref() == Some(wanted) {
            return None;
        }
        let group = self.group(config);
        let open = self.releases.values().filter(|fact| !fact.has_ended() && !self.is_superseded(fact));
        let waiting = open.clone().find(|fact| !fact.is_under_way() && self.meets(fact, &group));
        let under_way = open.filter(|fact| fact.is_under_way() && fact.core.progress.phase != Phase::RollingBack);
        let replaced = under_way.clone().find(|fact| fact.core.configs().any(|own| own == config));
        // A release takes the place of one other, at most.
        let is_free = |fact: &&ReleaseFact| fact.object.spec.supersedes.is_none();
        let replaced = replaced.filter(|_| waiting.as_ref().is_none_or(is_free));
        let mut targets: BTreeMap<ConfigRef, String> = BTreeMap::new();
        for fact in replaced.into_iter().chain(waiting) {
            targets.extend(fact.core.moves.iter().map(|step| (step.config.clone(), step.to.clone())));
        }
        // A config of another release under way waits for its end.
        let elsewhere = |config: &ConfigRef| {
            let mut others =
                under_way.clone().filter(|fact| replaced.is_none_or(|replaced| replaced.core.name != fact.core.name));
            others.any(|fact| fact.core.configs().any(|own| own == config))
        };
        let joined = group.into_iter().filter(|config| !elsewhere(config));
        targets.extend(joined.filter_map(|config| Some((config.clone(), self.candidate(&config)?.clone()))));
        let moves: Vec<Move> = targets.into_iter().filter_map(|(config, to)| self.step(config, to)).collect();
        let supersedes = replaced.map(|replaced| replaced.core.name.clone());
        let how = match (waiting, supersedes) {
            (Some(waiting), supersedes) => How::Amend { release: Box::new(waiting.clone()), supersedes },
            (None, Some(replaced)) => How::Supersede(replaced),
            (None, None) => How::New,
        };
        let is_paused = replaced.is_some_and(|replaced| replaced.core.wishes.paused) && !self.goes_back(&moves);
        self.start_with(namespace, moves, how, is_paused)
    }

    fn start_with(&self, namespace: &str, moves: Vec<Move>, how: How, is_paused: bool) -> Option<Start> {
        let first = moves.first()?.config.clone();
        let name = match &how {
            How::Amend { release, .. } => release.core.name.clone(),
            _ => self.next_name(&first),
        };
        let versions = moves.iter().filter_map(|step| self.versions.get(&step.config)).flat_map(BTreeMap::values);
        Some(Start {
            namespace: namespace.to_owned(),
            name,
            versions: versions.cloned().collect(),
            managed: self.managed.get(&first).cloned(),
            source_uid: self.source_uid(&first),
            is_paused,
            moves,
            how,
        })
    }

    /// Where a config wants to go, if it still may: what failed since it was last looked at is not tried again.
    fn candidate(&self, config: &ConfigRef) -> Option<&String> {
        let held = self.untried(config);
        self.candidates.get(config).filter(|wanted| held.is_none_or(|held| held.object != **wanted))
    }

    /// What failed, and nobody wants to be tried again.
    fn untried(&self, config: &ConfigRef) -> Option<&lockstep_api::Held> {
        let retried = self.managed.get(config).and_then(|managed| managed.object.spec.retry.as_ref());
        self.held(config).filter(|held| retried != Some(&held.release))
    }

    fn may_grow(&self, config: &ConfigRef) -> bool {
        let is_unread = |other: &ConfigRef| {
            // What stands still is not waited for.
            let is_read = self.opted_in(other) && self.unreadable_for(other).is_none();
            let source = self.sources.get(other).filter(|_| is_read);
            source.is_some_and(|source| self.known_digest(other, source, self.managed.get(other)).is_none())
        };
        let others: BTreeSet<&ConfigRef> = self.changeable(config).flat_map(|(_, fact)| &fact.references).collect();
        others.into_iter().any(|other| other != config && is_unread(other))
    }

    /// Whether it takes a change back, or goes where a person chose to go: nobody paused that.
    fn goes_back(&self, moves: &[Move]) -> bool {
        let is_chosen = |step: &Move| {
            let choice = self.managed.get(&step.config).and_then(|managed| managed.object.spec.current.as_ref());
            let version = self.versions.get(&step.config).and_then(|versions| versions.get(&step.to));
            choice.is_some_and(|choice| {
                choice.version == step.to || version.is_some_and(|fact| choice.version == fact.version.name.as_str())
            })
        };
        moves.iter().all(|step| step.from == step.to) || moves.iter().any(is_chosen)
    }

    fn step(&self, config: ConfigRef, to: String) -> Option<Move> {
        let from = self.managed.get(&config)?.released()?.to_owned();
        Some(Move { config, from, to })
    }

    /// All configs that want to move and meet in a consumer, directly or through others.
    fn group(&self, config: &ConfigRef) -> BTreeSet<ConfigRef> {
        let mut group = BTreeSet::from([config.clone()]);
        let mut open = vec![config.clone()];
        while let Some(config) = open.pop() {
            for (_, fact) in self.changeable(&config) {
                for other in fact.references.iter().filter(|other| self.candidates.contains_key(*other)) {
                    if group.insert(other.clone()) {
                        open.push(other.clone());
                    }
                }
            }
        }
        group
    }

    /// Whether two changes belong into one release, or would replace the same one.
    fn go_together(&self, one: &ConfigRef, other: &ConfigRef) -> bool {
        let moves_both = |fact: &ReleaseFact| {
            let moved = configs_of(fact);
            !fact.has_ended() && moved.contains(one) && moved.contains(other)
        };
        self.group(one).contains(other) || self.releases.values().any(moves_both)
    }

    /// Whether neither of two releases is under way, and only one may be. A person may have one opened again that had failed.
    fn would_collide(&self, one: &str, other: &str) -> bool {
        let may_be_opened = |fact: &ReleaseFact| fact.core.progress.phase == Phase::Failed && fact.is_watched();
        let may_begin = |fact: &&ReleaseFact| !fact.is_under_way() && (!fact.has_ended() || may_be_opened(fact));
        let waiting = |name: &str| self.releases.get(name).filter(may_begin);
        waiting(one).zip(waiting(other)).is_some_and(|(one, other)| self.meets(one, &configs_of(other)))
    }

    /// Whether a release shares a config or a consumer with a group.
    fn meets(&self, fact: &ReleaseFact, group: &BTreeSet<ConfigRef>) -> bool {
        let shares_config = fact.core.configs().any(|config| group.contains(config));
        let keys = |config: &ConfigRef| -> BTreeSet<WorkloadKey> {
            self.changeable(config).map(|(key, _)| key.clone()).collect()
        };
        let consumers: BTreeSet<WorkloadKey> = fact.core.configs().flat_map(keys).collect();
        shares_config || group.iter().any(|config| self.changeable(config).any(|(key, _)| consumers.contains(key)))
    }

    pub(super) fn next_name(&self, config: &ConfigRef) -> String {
        let prefix = release_prefix(config);
        // A name that somebody still speaks of is not given again, whoever deleted the release.
        let managed = self.managed.get(config).map(|managed| &managed.object);
        let retried = managed.and_then(|object| object.spec.retry.as_ref());
        let held = self.held(config).map(|held| &held.release);
        let facts = self.releases.values().chain(self.lost.values());
        let superseded = facts.filter_map(|fact| fact.object.spec.supersedes.as_ref());
        let names = self.releases.keys().chain(self.lost.keys()).chain(self.unreadable_releases());
        let names = names.chain(retried).chain(held).chain(superseded);
        let numbers = names.filter_map(|name| name.strip_prefix(&prefix)?.parse::<u64>().ok());
        // People may write Releases, too: with a number that has no successor, theirs is simply in the way.
        format!("{prefix}{}", numbers.max().unwrap_or(0).saturating_add(1))
    }

    // --- one release ---

    fn release_view(
        &self,
        id: &ReleaseId,
        fact: &ReleaseFact,
        default: &Policy,
        budget: Option<Timestamp>,
        now: Timestamp,
    ) -> ReleaseView {
        let policy = self.policy_of(fact, default);
        let workloads = self.workloads_of(&fact.core);
        let pods = self.pods_by_consumer();
        let member = |(key, workload): (&WorkloadKey, &WorkloadFact)| {
            let key = self.stand_ins.get(&workload.id()).unwrap_or(key);
            self.member(&fact.core, workload, pods.get(key).map_or(&[][..], Vec::as_slice), &policy, now)
        };
        let members: Vec<Member> = workloads.iter().map(|(key, fact)| member((key, fact))).collect();
        let managed: Vec<ManagedFact> =
            fact.core.configs().filter_map(|config| self.managed.get(config).cloned()).collect();
        let held = managed.iter().find_map(|managed| {
            let held = managed.object.status.as_ref()?.held.as_ref()?;
            (held.release == fact.core.name).then(|| held.reason.clone())
        });
        let is_done = |step: &Move| {
            let released = self.managed.get(&step.config).and_then(ManagedFact::released);
            // One that takes a change back moves to what is current all the time.
            (step.from != step.to || fact.has_ended()) && released == Some(step.to.as_str())
        };
        let unreadable = fact.core.configs().find_map(|config| self.unreadable_policy(config));
        let blocked = if let Some(unreadable) = unreadable {
            Some(Block::Unreadable(unreadable.told()))
        } else if fact.has_ended() {
            let later = self.overlapping(fact, &members).or_else(|| self.successor(fact));
            later.map(|other| Block::Release(other.core.name.clone()))
        } else if fact.core.progress.started_at.is_some() {
            None
        } else {
            let block = |other: &ReleaseFact| {
                let name = other.core.name.clone();
                let is_earlier = fact.object.spec.supersedes.as_ref() == Some(&name);
                if is_earlier { Block::Earlier(name) } else { Block::Release(name) }
            };
            let under_way = self.overlapping(fact, &members).map(block);
            under_way.or_else(|| self.held_back(&members, &policy, budget, now).filter(|_| !self.is_asked_for(fact)))
        };
        let superseded_by = self.superseded_by(&fact.core.name).and_then(|name| self.releases.get(name));
        let successor = superseded_by.filter(|_| fact.is_under_way());
        let successor_waits = successor.and_then(|newer| self.successor_waits(fact, newer, default, budget, now));
        let broken_pods = pods.values().flatten().filter(|pod| !pod.unit.is_ready);
        // What others recorded is of interest only for whom it has no record of its own yet.
        let recorded: BTreeSet<&ConsumerId> =
            fact.core.progress.consumers.iter().map(|record| &record.consumer).collect();
        let has_news = fact.core.progress.started_at.is_none()
            || members.iter().any(|member| !recorded.contains(&member.consumer));
        ReleaseView {
            id: id.clone(),
            broken_pods: broken_pods.map(|pod| (pod.unit.uid.clone(), pod.resource_version)).collect(),
            members,
            workloads: workloads.into_iter().map(|(key, fact)| (fact.id(), (key.clone(), fact.clone()))).collect(),
            blocked,
            superseded_by: superseded_by.map(|newer| newer.core.name.clone()),
            successor_waits,
            is_overtaken: self.is_overtaken(&fact.core),
            is_offered: self.is_offered(&fact.core),
            has_succeeded: !fact.core.moves.is_empty() && fact.core.moves.iter().all(is_done),
            held,
            inherited: if has_news { self.inherited(fact) } else { Vec::new() },
            taken_over: if fact.has_ended() { self.taken_over(fact) } else { BTreeSet::new() },
            can_judge: self.pods_are_known,
            refused: self.refused.get(&id.name).cloned().unwrap_or_default(),
            versions: fact
                .core
                .moves
                .iter()
                .filter_map(|step| self.versions.get(&step.config)?.get(&step.to).cloned())
                .collect(),
            managed,
            policy,
            amended: self.amended(&id.namespace, fact).map(Box::new),
            fact: fact.clone(),
        }
    }

    /// What keeps the release that is to take its place from starting.
    fn successor_waits(
        &self,
        fact: &ReleaseFact,
        newer: &ReleaseFact,
        default: &Policy,
        budget: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Wait> {
        // It may have to put back who joined it, although nobody wants it any more.
        if newer.core.progress.started_at.is_some() {
            return None;
        }
        let goes_back = newer.core.wishes.abort;
        if newer.core.wishes.paused && !goes_back {
            return Some(Wait::For("once that is resumed".to_owned()));
        }
        let policy = self.policy_of(newer, default);
        let workloads = self.workloads_of(&newer.core);
        let members: Vec<Member> =
            workloads.values().map(|workload| self.member(&newer.core, workload, &[], &policy, now)).collect();
        // One that is about to give up its own place, perhaps for one that waits for ours, is not waited for.
        let is_in_the_way = |other: &&ReleaseFact| other.core.name != fact.core.name && !self.is_superseded(other);
        if let Some(other) = self.under_way_with(newer, &members).find(is_in_the_way) {
            return Some(Wait::For(format!("once release {} has ended", other.core.name)));
        }
        if goes_back {
            return None;
        }
        if let Some(stopped) = stopped_by_somebody(&newer.core, &members, &fact.core.progress.consumers) {
            return Some(Wait::For(format!("later, and waits for {stopped}")));
        }
        // What a person asked for waits for nothing else.
        let held_back = self.held_back(&members, &policy, budget, now).filter(|_| !self.is_asked_for(newer));
        held_back?.until().map(Wait::Until)
    }

    /// What a release that has not started is to move by now: from what is current, and nothing that became current or failed meanwhile.
    fn amended(&self, namespace: &str, fact: &ReleaseFact) -> Option<Start> {
        if fact.has_ended() || fact.is_under_way() {
            return None;
        }
        let moves: Vec<Move> =
            fact.core.moves.iter().filter_map(|step| self.up_to_date(step, &fact.core.name)).collect();
        if moves.is_empty() || moves == fact.core.moves {
            return None;
        }
        let how = How::Amend { release: Box::new(fact.clone()), supersedes: None };
        self.start_with(namespace, moves, how, false)
    }

    fn up_to_date(&self, step: &Move, release: &str) -> Option<Move> {
        let Some(now) = self.step(step.config.clone(), step.to.clone()) else { return Some(step.clone()) };
        let is_current = now.from == now.to && step.from != step.to;
        let has_failed =
            self.untried(&step.config).is_some_and(|held| held.object == step.to && held.release != release);
        (!is_current && !has_failed).then_some(now)
    }

    /// Whether one of its configs is about to move to another version: it is wanted, or offered to whoever joins.
    fn is_overtaken(&self, release: &Release) -> bool {
        // What a release moves that waits for the end of this one is not waited for.
        let waits = |config: &ConfigRef| self.moving(config).any(|(fact, _)| !fact.is_under_way());
        release.moves.iter().any(|step| {
            let wanted = self.candidates.get(&step.config).cloned().or_else(|| self.entry(&step.config).next);
            wanted.is_some_and(|wanted| wanted != step.to) && !waits(&step.config)
        })
    }

    /// Whether new workloads still get what it moves to, and not because somebody wants it tried again.
    fn is_offered(&self, release: &Release) -> bool {
        let is_next = |step: &&Move| self.entry(&step.config).next.as_ref() == Some(&step.to);
        let is_retried = |step: &Move| {
            let managed = self.managed.get(&step.config);
            managed.is_some_and(|managed| managed.object.spec.retry.as_deref() == Some(release.name.as_str()))
        };
        let mut offered = release.moves.iter().filter(|step| step.from != step.to).filter(is_next);
        offered.any(|step| !is_retried(step))
    }

    fn policy_of(&self, fact: &ReleaseFact, default: &Policy) -> Policy {
        let mut policies = fact.core.configs().map(|config| self.policy(config, default));
        let first = policies.next().unwrap_or_else(|| default.clone());
        policies.fold(first, |all, policy| all.and(&policy))
    }

    fn workloads_of(&self, release: &Release) -> BTreeMap<&WorkloadKey, &WorkloadFact> {
        release.configs().flat_map(|config| self.changeable(config)).collect()
    }

    /// What is known of consumers that earlier releases moved and left there: the one whose place this takes, one that failed, or one whose
    /// successor is gone. Of two that moved the same consumer, each knows how it was before with its own configs.
    fn inherited(&self, fact: &ReleaseFact) -> Vec<Record> {
        let mut left: Vec<(Option<Timestamp>, Record)> = Vec::new();
        for config in fact.core.configs() {
            left.extend(self.left_with(config, fact));
        }
        let earlier = fact.object.spec.supersedes.as_ref().and_then(|name| self.releases.get(name));
        if let Some(earlier) = earlier.filter(|earlier| earlier.core.progress.phase == Phase::Superseded) {
            let Progress { started_at, consumers, .. } = &earlier.core.progress;
            left.extend(consumers.iter().map(|record| (*started_at, record.clone())));
        }
        left.sort_by_key(|(started_at, _)| *started_at);
        let mut inherited: BTreeMap<ConsumerId, Record> = BTreeMap::new();
        for (_, record) in left {
            let earlier = inherited.remove(&record.consumer);
            let record = earlier.map_or_else(|| record.clone(), |earlier| record.clone().after(&earlier));
            inherited.insert(record.consumer.clone(), record);
        }
        inherited.into_values().collect()
    }

    /// Who was left with a version of a config that was never good, and what its release recorded of it. Of its other configs a consumer may
    /// have got good versions since, so the record speaks of this one alone.
    fn left_with(&self, config: &ConfigRef, fact: &ReleaseFact) -> Vec<(Option<Timestamp>, Record)> {
        let released = self.managed.get(config).and_then(ManagedFact::released);
        let is_away = |fact: &&WorkloadFact| fact.pins.get(config).map(ToString::to_string).as_deref() != released;
        let away: Vec<&WorkloadFact> = self.changeable(config).map(|(_, fact)| fact).filter(is_away).collect();
        if away.is_empty() {
            return Vec::new();
        }
        let failed = self.held(config).and_then(|held| self.releases.get(&held.release));
        let failed = failed.map(|failed| records_with(failed, config)).unwrap_or_default();
        let stranded: BTreeSet<ConsumerId> = self.stranded(config).map(WorkloadFact::id).collect();
        let last = self.last_with(config, Some(fact));
        let of_one = |workload: &WorkloadFact| {
            let id = workload.id();
            let failed = failed.get(&id).filter(|_| stranded.contains(&id));
            let left = || last.get(&id).filter(|(release, record)| self.has_left(release, record, workload, config));
            let (release, record) = failed.or_else(left)?;
            let record = Record { configs: vec![config.clone()], ..(*record).clone() };
            Some((release.core.progress.started_at, record))
        };
        away.into_iter().filter_map(of_one).collect()
    }

    /// The last release, besides this one, that had each consumer with a config.
    fn last_with(&self, config: &ConfigRef, besides: Option<&ReleaseFact>) -> RecordsOf<'_> {
        let is_another = |other: &&ReleaseFact| besides.is_none_or(|fact| other.core.name != fact.core.name);
        let others = self.releases.values().filter(is_another);
        let mut others: Vec<&ReleaseFact> = others.collect();
        others.sort_by_key(|other| other.core.progress.started_at);
        others.into_iter().flat_map(|other| records_with(other, config)).collect()
    }

    /// Whether a release left a consumer with what was never good: it failed, or made room for another that may be gone. What told of that, a
    /// hold or the successor, may be gone, too.
    fn has_left(&self, release: &ReleaseFact, record: &Record, workload: &WorkloadFact, config: &ConfigRef) -> bool {
        let released = self.managed.get(config).and_then(ManagedFact::released);
        let has = workload.pins.get(config).map(ToString::to_string);
        // Its turn had not come, and it has what the release before that one gave it.
        let is_waiting = record.state == State::Waiting && record.before.moved_at.is_some();
        let moved_it = |step: &Move| {
            let is_its = step.config == *config && step.from != step.to && Some(step.from.as_str()) == released;
            is_its && (has.as_ref() == Some(&step.to) || is_waiting)
        };
        let has_left = matches!(release.core.progress.phase, Phase::Superseded | Phase::Failed);
        has_left && has.is_some() && release.core.moves.iter().any(moved_it)
    }

    fn held(&self, config: &ConfigRef) -> Option<&lockstep_api::Held> {
        self.managed.get(config)?.object.status.as_ref()?.held.as_ref()
    }

    /// The consumers that have the held version of a config, and use a key of it that is another than in what is current. The release that
    /// failed with it may be gone by now: what is held is what counts.
    fn stranded(&self, config: &ConfigRef) -> impl Iterator<Item = &WorkloadFact> {
        let released = self.managed.get(config).and_then(ManagedFact::released);
        let held = self.held(config).filter(|held| {
            let has_ended = self.releases.get(&held.release).is_none_or(ReleaseFact::has_ended);
            has_ended && !self.lost.contains_key(&held.release)
        });
        held.zip(released).into_iter().flat_map(move |(held, released)| {
            let keys = |object: &str| self.versions.get(config)?.get(object)?.keys.as_ref();
            self.changeable(config).map(|(_, fact)| fact).filter(move |fact| {
                let pin = fact.pins.get(config).map(ToString::to_string);
                pin.as_ref() == Some(&held.object)
                    && held.object != released
                    && is_concerned(fact.used.get(config), keys(&held.object), keys(released))
            })
        })
    }

    pub(super) fn is_stranded(&self, config: &ConfigRef) -> Stranded {
        let find = |name: &str| self.releases.get(name).or_else(|| self.lost.get(name));
        let failed = self.held(config).and_then(|held| find(&held.release));
        if failed.is_some_and(|failed| !failed.has_ended()) {
            return Stranded::NotYetKnown;
        }
        if self.stranded(config).next().is_none() {
            return Stranded::Nobody;
        }
        let judged = self.releases.values().filter(|fact| {
            let phase = fact.core.progress.phase;
            phase.has_ended() && !matches!(phase, Phase::Superseded | Phase::Rejected)
        });
        let own = judged.filter(|fact| fact.core.configs().any(|own| own == config));
        let last = own.max_by_key(|fact| fact.core.progress.ended_at);
        let took_back = |fact: &ReleaseFact| {
            let mut moves = fact.core.moves.iter();
            moves.any(|step| step.config == *config && step.from == step.to)
        };
        if last.is_some_and(took_back) { Stranded::ForGood } else { Stranded::Somebody }
    }

    /// What consumers have that was on its way, and no release knows of any more: that was lost, or the change was taken back before there was
    /// one. The table says so, or the release that moved them and made room for one that never came.
    pub(super) fn left_behind(&self, config: &ConfigRef) -> Option<String> {
        let mut open = self.releases.values().filter(|fact| !fact.has_ended()).chain(self.lost.values());
        if open.any(|fact| fact.core.configs().any(|own| own == config)) {
            return None;
        }
        let released = self.managed.get(config).and_then(ManagedFact::released);
        let held = self.held(config).map(|held| held.object.as_str());
        let has_it =
            |fact: &WorkloadFact, object: &str| fact.pins.get(config).is_some_and(|pin| pin.to_string() == object);
        let is_left = |object: &String| {
            let is_another = ![released, held].contains(&Some(object));
            is_another && self.changeable(config).any(|(_, fact)| has_it(fact, object))
        };
        let Entry { moving, next, .. } = self.entry(config);
        moving.into_iter().chain(next).find(is_left).or_else(|| self.left_by_its_release(config))
    }

    /// What a release left consumers with that does not take them back any more: it made room for another that never came, or it failed and
    /// was left to a person, and something else is held by now, because the config said something else, which broke a rule, or was aborted
    /// before it started. That release alone tells of it.
    fn left_by_its_release(&self, config: &ConfigRef) -> Option<String> {
        let released = self.managed.get(config).and_then(ManagedFact::released)?;
        let held = self.held(config).map(|held| held.object.as_str());
        let keys = |object: &str| self.versions.get(config)?.get(object)?.keys.as_ref();
        let other = |fact: &WorkloadFact| {
            let object = fact.pins.get(config)?.to_string();
            let is_other = object != released && Some(object.as_str()) != held;
            (is_other && is_concerned(fact.used.get(config), keys(&object), keys(released))).then_some(object)
        };
        let others: Vec<(&WorkloadFact, String)> =
            self.changeable(config).filter_map(|(_, fact)| Some((fact, other(fact)?))).collect();
        if others.is_empty() {
            return None;
        }
        let last = self.last_with(config, None);
        let has_left = |fact: &WorkloadFact| {
            last.get(&fact.id()).is_some_and(|(release, record)| {
                let is_over = matches!(record.state, State::LeftAlone | State::Gone | State::Restored);
                let gave_up = match release.core.progress.phase {
                    Phase::Failed => held.is_some(),
                    phase => phase == Phase::Superseded,
                };
                gave_up && !is_over && self.has_left(release, record, fact, config)
            })
        };
        others.into_iter().find(|(fact, _)| has_left(fact)).map(|(_, object)| object)
    }

    /// What must end before it may start: another release under way, or one that takes over from such a release, and whose consumers nobody
    /// looks after before it starts.
    fn overlapping(&self, fact: &ReleaseFact, members: &[Member]) -> Option<&ReleaseFact> {
        let configs = configs_of(fact);
        let goes_first = |other: &&ReleaseFact| {
            other.core.name != fact.core.name && self.takes_over(other) && self.meets(other, &configs)
        };
        let heirs = || self.releases.values().filter(|_| !self.takes_over(fact)).find(goes_first);
        self.under_way_with(fact, members).next().or_else(heirs)
    }

    /// The other releases under way that move one of its consumers, or one of its configs.
    fn under_way_with(&self, fact: &ReleaseFact, members: &[Member]) -> impl Iterator<Item = &ReleaseFact> {
        let consumers: BTreeSet<ConsumerId> = members.iter().map(|member| member.consumer.clone()).collect();
        let (name, configs) = (fact.core.name.clone(), configs_of(fact));
        let others = self.releases.values().filter(move |other| other.core.name != name && other.is_under_way());
        others.filter(move |other| {
            let mut records = other.core.progress.consumers.iter();
            records.any(|record| consumers.contains(&record.consumer))
                || other.core.configs().any(|config| configs.contains(config))
        })
    }

    /// Whether it has not started, and takes the place of one that had.
    fn takes_over(&self, fact: &ReleaseFact) -> bool {
        let earlier = fact.object.spec.supersedes.as_ref().and_then(|name| self.releases.get(name));
        let is_left = |earlier: &ReleaseFact| {
            let progress = &earlier.core.progress;
            progress.phase == Phase::Superseded && progress.started_at.is_some()
        };
        !fact.has_ended() && !fact.is_under_way() && earlier.is_some_and(is_left)
    }

    /// Whom another release moves right now, or has moved since this one with a config of its, and not back.
    fn taken_over(&self, fact: &ReleaseFact) -> BTreeSet<ConsumerId> {
        let is_later = |other: &ReleaseFact| other.core.progress.started_at > fact.core.progress.started_at;
        let others = self.releases.values().filter(|other| other.core.name != fact.core.name);
        let records = others.filter(|other| other.is_under_way() || is_later(other)).flat_map(|other| {
            let moves_one = |record: &&Record| {
                let shares = || record.configs.iter().any(|config| fact.core.configs().any(|own| own == config));
                other.is_under_way() || (record.state != State::Restored && shares())
            };
            other.core.progress.consumers.iter().filter(moves_one)
        });
        records.map(|record| record.consumer.clone()).collect()
    }

    /// A release that moved one of its configs after it.
    fn successor(&self, fact: &ReleaseFact) -> Option<&ReleaseFact> {
        let moves_one =
            |other: &&ReleaseFact| other.core.configs().any(|config| fact.core.configs().any(|own| own == config));
        let is_later = |other: &&ReleaseFact| other.core.progress.started_at > fact.core.progress.started_at;
        self.releases.values().filter(|other| other.core.name != fact.core.name).filter(is_later).find(moves_one)
    }

    /// Whether a person asked for it: they chose the version, promote it, want it tried again, or took back what failed. The guard is against
    /// storms, not against people.
    fn is_asked_for(&self, fact: &ReleaseFact) -> bool {
        let is_retried = |step: &Move| {
            let retried = self.managed.get(&step.config).and_then(|managed| managed.object.spec.retry.as_ref());
            self.held(&step.config).is_some_and(|held| held.object == step.to && retried == Some(&held.release))
        };
        let is_chosen = |step: &lockstep_api::Move| {
            let managed = self.managed.get(&ConfigRef::from(&step.source));
            let choice = managed.and_then(|managed| managed.object.spec.current.as_ref());
            choice.is_some_and(|choice| choice.version == step.to_version || choice.version == step.to)
        };
        let goes_back =
            || fact.core.takes_back() && fact.core.configs().any(|config| self.stranded(config).next().is_some());
        let is_wanted = fact.core.wishes.promote || fact.core.moves.iter().any(is_retried);
        is_wanted || fact.object.spec.moves.iter().any(is_chosen) || goes_back()
    }

    /// What has to pass before consumers may be rolled again.
    fn held_back(
        &self,
        members: &[Member],
        policy: &Policy,
        budget: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Block> {
        let to_pin = members.iter().filter(|member| !member.concerned.is_empty());
        let storms = to_pin.filter_map(|member| {
            let until = storm::wait_until(&self.rolled_at(&member.consumer), policy.storm, now)?;
            Some(Block::Storm { consumer: member.consumer.clone(), until })
        });
        let longest = storms.max_by_key(Block::until);
        longest.or_else(|| budget.filter(|until| *until > now).map(|until| Block::Budget { until }))
    }

    /// When earlier releases rolled a consumer.
    fn rolled_at(&self, consumer: &ConsumerId) -> Vec<Timestamp> {
        let rolled = |fact: &&ReleaseFact| {
            fact.core.progress.consumers.iter().any(|record| record.consumer == *consumer && was_pinned(record))
        };
        self.releases.values().filter(rolled).filter_map(|fact| fact.core.progress.started_at).collect()
    }

    fn member(
        &self,
        release: &Release,
        fact: &WorkloadFact,
        pods: &[&PodFact],
        policy: &Policy,
        now: Timestamp,
    ) -> Member {
        let references: BTreeSet<ConfigRef> =
            release.configs().filter(|config| fact.references.contains(config)).cloned().collect();
        let moves = || release.moves.iter().filter(|step| references.contains(&step.config));
        let is_newcomer = moves().any(|step| self.is_younger(fact, step, now));
        let concerned =
            moves().filter(|step| self.concerns(step, fact, policy)).map(|step| step.config.clone()).collect();
        let is_stranded = |config: &&ConfigRef| self.stranded(config).any(|stranded| stranded.id() == fact.id());
        let stranded = fact.references.iter().filter(is_stranded).cloned().collect();
        let is_unproven = |config: &&ConfigRef| {
            let pin = fact.pins.get(config);
            self.is_no_version(pin, config) || self.was_never_current(pin, config)
        };
        let unproven = references.iter().filter(is_unproven).cloned().collect();
        let lacks = self.lacks_key(fact);
        let unit = |pod: &&PodFact| {
            let is_new = is_new_pod(&pod.pins, &fact.pins, references.iter());
            let cannot_start = is_new && !pod.unit.is_ready && !pod.unit.was_ready && pod.unit.homeless.is_none();
            let trouble = pod.unit.trouble.clone().or_else(|| lacks.clone().filter(|_| cannot_start));
            Unit { is_new, trouble, ..pod.unit.clone() }
        };
        let units: Vec<Unit> = pods.iter().filter(|pod| !pod.was_evicted()).map(unit).collect();
        let stand_in = self.stand_ins.get(&fact.id()).and_then(|key| self.workloads.get(key));
        let rollout = stand_in.map_or_else(|| fact.rollout.clone(), |other| rollout_by(other, fact));
        let has_other_code = pods.iter().any(|pod| self.has_other_code_than(pod, fact));
        let is_midway = rollout.is_midway && !self.is_between_versions_alone(fact, &rollout);
        Member {
            consumer: fact.id(),
            wave: fact.wave,
            pins: fact.pins.clone(),
            template: fact.template.clone(),
            uid: fact.owner.uid.clone(),
            is_newcomer,
            references,
            unproven,
            concerned,
            stranded,
            // Whose old pods stay because somebody wants that is not on its way anywhere.
            rollout: Rollout { is_midway: is_midway || (has_other_code && rollout.replaces_all()), ..rollout },
            can_gate: fact.gate.can_close && stand_in.is_none(),
            is_unfit_for_gate: is_unfit_for_gate(fact.id().kind(), &units, policy, now),
            is_gated: fact.gate.saved.is_some(),
            is_forced: fact.gate.is_forced(),
            holds_for: fact.gate.holds_for,
            partition: fact.gate.partition,
            units,
        }
    }

    /// Whether a pin is to what is not there, or was written ahead of a change that nobody has looked at yet.
    fn is_no_version(&self, pin: Option<&Pin>, config: &ConfigRef) -> bool {
        let Some(Pin::Version(object)) = pin else { return false };
        !self.has_version(config, object)
    }

    /// Whether a pin is to a version that was never good: who has it was left with it by a release that nobody knows of any more, or was
    /// given it by hand.
    fn was_never_current(&self, pin: Option<&Pin>, config: &ConfigRef) -> bool {
        let Some(Pin::Version(object)) = pin else { return false };
        let status = self.managed.get(config).and_then(|managed| managed.object.status.as_ref());
        let mut given = status.into_iter().flat_map(|status| &status.names).filter(|given| given.object == *object);
        given.next().is_some_and(|given| !given.was_current)
    }

    /// Whether a workload came with a new version, or after it: not long ago, and not before it.
    fn is_younger(&self, fact: &WorkloadFact, step: &Move, now: Timestamp) -> bool {
        let version = self.versions.get(&step.config).and_then(|versions| versions.get(&step.to));
        let made = version.and_then(|version| version.created_at.as_ref());
        fact.created
            .zip(made)
            .is_some_and(|(created, made)| created >= made.0 && storm::is_within(created, NEWCOMER, now))
    }

    /// What a volume of its pods waits for in vain, in one sentence: a key that the version does not have.
    fn lacks_key(&self, fact: &WorkloadFact) -> Option<String> {
        fact.mounted.iter().find_map(|(config, needed)| {
            let Some(Pin::Version(object)) = fact.pins.get(config) else { return None };
            let version = self.versions.get(config)?.get(object)?;
            let key = missing(needed, version.keys.as_ref()?)?;
            Some(format!(
                "a volume needs the key {key} of {config}, which version {} does not have",
                version.version.name
            ))
        })
    }

    /// Whether a pod was made from another template than its workload has now.
    fn has_other_code_than(&self, pod: &PodFact, fact: &WorkloadFact) -> bool {
        let made_from = || match fact.id().kind().made_from() {
            Some(MadeFrom::ReplicaSet) => self.workloads.get(self.uids.get(pod.made_by.as_ref()?)?),
            Some(MadeFrom::Revision) => self.revision(fact, pod.revision.as_ref()?),
            None => None,
        };
        let is_its = |record: &&WorkloadFact| record.made_by.as_ref() == Some(&fact.owner.uid);
        !pod.has_ended && made_from().filter(is_its).is_some_and(|record| record.template != fact.template)
    }

    /// Whether the templates between which a workload is are of the same code: it is in the middle of a release of ours, or of its undo.
    fn is_between_versions_alone(&self, fact: &WorkloadFact, rollout: &Rollout) -> bool {
        let both =
            rollout.between.as_ref().and_then(|(from, to)| self.revision(fact, from).zip(self.revision(fact, to)));
        both.is_some_and(|(from, to)| from.template == to.template)
    }

    /// The ControllerRevision, or ReplicaSet, with this hash. The label of a StatefulSet's pod is its whole name, that of a DaemonSet's the end of it.
    fn revision(&self, fact: &WorkloadFact, hash: &str) -> Option<&WorkloadFact> {
        // There are few kinds, and there may be thousands of records.
        let kinds = 0..=self.workloads.last_key_value()?.0.kind;
        let names = [hash.to_owned(), format!("{}-{hash}", fact.owner.name)];
        let mut keys = kinds.flat_map(|kind| names.clone().map(|name| WorkloadKey { kind, name }));
        let is_its = |record: &&WorkloadFact| record.made_by.as_ref() == Some(&fact.owner.uid);
        keys.find_map(|key| self.workloads.get(&key).filter(is_its))
    }

    /// Whether a consumer is not there yet, and uses a key that differs.
    fn concerns(&self, step: &Move, fact: &WorkloadFact, policy: &Policy) -> bool {
        let runs = match fact.pins.get(&step.config) {
            Some(Pin::Live) => return false,
            Some(Pin::Version(version)) => Some(version.clone()),
            None => self.entry(&step.config).baseline,
        };
        if fact.pins.get(&step.config).is_some() && runs.as_deref() == Some(step.to.as_str()) {
            return false;
        }
        let keys = |object: &str| self.versions.get(&step.config)?.get(object)?.keys.as_ref();
        let old = runs.as_deref().and_then(keys);
        !policy.only_used_keys || is_concerned(fact.used.get(&step.config), old, keys(&step.to))
    }

    fn pods_by_consumer(&self) -> BTreeMap<&WorkloadKey, Vec<&PodFact>> {
        let mut found: BTreeMap<&WorkloadKey, Vec<&PodFact>> = BTreeMap::new();
        for pod in self.pods.values() {
            if let Some(key) = pod.made_by.as_deref().and_then(|uid| self.consumer_behind(uid)) {
                found.entry(key).or_default().push(pod);
            }
        }
        found
    }

    /// The workload that made what made a pod: a ReplicaSet's Deployment, a Job's CronJob.
    fn consumer_behind(&self, uid: &str) -> Option<&WorkloadKey> {
        let key = self.uids.get(uid)?;
        let fact = self.workloads.get(key)?;
        match &fact.made_by {
            Some(maker) if !fact.is_consumer => self.uids.get(maker),
            _ => Some(key),
        }
    }
}

/// What releases recorded of consumers.
type RecordsOf<'a> = BTreeMap<ConsumerId, (&'a ReleaseFact, &'a Record)>;

/// Whom a release has with a config.
fn records_with<'a>(fact: &'a ReleaseFact, config: &ConfigRef) -> RecordsOf<'a> {
    let records = fact.core.progress.consumers.iter().filter(|record| record.configs.contains(config));
    records.map(|record| (record.consumer.clone(), (fact, record))).collect()
}

fn configs_of(fact: &ReleaseFact) -> BTreeSet<ConfigRef> {
    fact.core.configs().cloned().collect()
}

/// How far the other one is with the template of this one.
fn rollout_by(stand_in: &WorkloadFact, fact: &WorkloadFact) -> Rollout {
    let has_seen = stand_in.stands_in_for.as_ref().is_some_and(|other| other.observed >= fact.generation);
    Rollout { is_observed: stand_in.rollout.is_observed && has_seen, ..stand_in.rollout.clone() }
}

/// Whether a gate would miss pods, or keep one that the controller waits for: better none than that.
fn is_unfit_for_gate(kind: Kind, units: &[Unit], policy: &Policy, now: Timestamp) -> bool {
    let misses = kind.gate_misses_young_pods() && !all_older(units, policy, now);
    misses || (kind.waits_for_broken_pods() && units.iter().any(|unit| may_stay_unready(unit, now)))
}

fn all_older(units: &[Unit], policy: &Policy, now: Timestamp) -> bool {
    let hold =
        jiff::SignedDuration::try_from(lockstep_core::gate::hold(policy.bake)).unwrap_or(jiff::SignedDuration::MAX);
    units.iter().all(|unit| unit.is_ready && unit.since.is_some_and(|since| now.duration_since(since) > hold))
}

/// What comes before the number in the names of a config's releases. A name too long for a number is cut, and told apart by a digest.
pub(super) fn release_prefix(config: &ConfigRef) -> String {
    let name = config.versioned_config_name();
    if name.len() <= LONGEST_PREFIX {
        return format!("{name}-");
    }
    let content = lockstep_core::digest::Content {
        secret_type: "",
        text: [("name", name.as_bytes())].into(),
        binary: BTreeMap::new(),
    };
    let digest = lockstep_core::Digest::of_config_map(&content);
    let digest: String = digest.full().chars().take(PREFIX_DIGEST_LENGTH).collect();
    let start: String = name.chars().take(LONGEST_PREFIX - PREFIX_DIGEST_LENGTH - 1).collect();
    format!("{}.{digest}-", start.trim_end_matches(['-', '.']))
}

/// Enough to tell the few configs with such names apart.
const PREFIX_DIGEST_LENGTH: usize = 8;

/// Leaves room for a number.
const LONGEST_PREFIX: usize = 240;

#[cfg(test)]
mod tests {
    use lockstep_core::ConfigKind;

    use super::*;

    #[test]
    fn names_of_releases_fit_and_tell_configs_apart() {
        let config = |name: &str| ConfigRef::new(ConfigKind::ConfigMap, name);
        assert_eq!(release_prefix(&config("app")), "configmap-app-");
        let (a, b) = (format!("{}a", "x".repeat(241)), format!("{}b", "x".repeat(241)));
        assert_ne!(release_prefix(&config(&a)), release_prefix(&config(&b)));
        assert!(release_prefix(&config(&a)).len() <= LONGEST_PREFIX + 1);
        let foreign = release_prefix(&config(&"ü".repeat(250)));
        assert!(foreign.starts_with("configmap-üü") && foreign.ends_with('-'), "{foreign}");
    }

    fn superseded(number: i64, state: &str) -> ReleaseFact {
        release(number, "Superseded", state)
    }

    fn release(number: i64, phase: &str, state: &str) -> ReleaseFact {
        let at = Timestamp::from_second(number).unwrap();
        let release = serde_json::json!({
            "apiVersion": "lockstep.dev/v1alpha1",
            "kind": "Release",
            "metadata": {"name": format!("configmap-app-{number}"), "namespace": "n", "resourceVersion": "1"},
            "spec": {"moves": [{
                "source": {"kind": "ConfigMap", "name": "app"},
                "from": "app-0", "to": format!("app-{number}"), "fromVersion": "1.0.0", "toVersion": format!("r{number}"),
            }]},
            "status": {
                "phase": phase,
                "startedAt": at,
                "endedAt": at,
                "consumers": [{"kind": "Deployment", "name": "web", "state": state, "configs": ["configmap/app"]}],
            },
        });
        ReleaseFact::read(serde_json::from_value(release).unwrap())
    }

    fn managed(name: &str, held_by: &str) -> ManagedFact {
        let held =
            serde_json::json!({"object": format!("{name}-2"), "version": "r2", "release": held_by, "reason": "bad"});
        let object = serde_json::json!({
            "apiVersion": "lockstep.dev/v1alpha1",
            "kind": "VersionedConfig",
            "metadata": {"name": format!("configmap-{name}"), "namespace": "n", "resourceVersion": "1"},
            "spec": {"source": {"kind": "ConfigMap", "name": name}},
            "status": {"held": if held_by.is_empty() { serde_json::Value::Null } else { held }},
        });
        ManagedFact::read(serde_json::from_value(object).unwrap())
    }

    fn config(name: &str) -> ConfigRef {
        ConfigRef::new(ConfigKind::ConfigMap, name)
    }

    fn consumer(pins: &str) -> WorkloadFact {
        let kind = crate::kinds::built_in().into_iter().find(|kind| kind.resource.kind == "Deployment").unwrap();
        let template = serde_json::json!({
            "metadata": {"annotations": {lockstep_core::names::PINS: pins}},
            "spec": {"volumes": [{"configMap": {"name": "app"}}]},
        });
        let metadata = serde_json::json!({"name": "web", "namespace": "n", "uid": "web", "resourceVersion": "1"});
        let metadata = serde_json::from_value(metadata).unwrap();
        let object = kube::core::DynamicObject { types: None, metadata, data: kind.wrap(template) };
        WorkloadFact::read(&kind, &object).unwrap()
    }

    #[test]
    fn a_release_that_is_deleted_under_way_is_lost_for_as_long_as_somebody_can_own_it() {
        let mut namespace = Namespace::default();
        namespace.apply_managed("configmap-app", managed("app", ""));
        namespace.apply_release("configmap-app-1", release(1, "Baking", "Ready"));
        let todo = namespace.remove_release("configmap-app-1");
        assert!(todo.lost.contains("configmap-app-1"));
        assert_eq!(namespace.moving_to(&config("app")).as_deref(), Some("app-1"), "it goes on");
        assert_eq!(namespace.next_name(&config("app")), "configmap-app-2", "its name is taken");
        namespace.remove_managed("configmap-app");
        assert_eq!(namespace.moving_to(&config("app")), None, "nobody wants it any more");
        namespace.apply_release("configmap-app-1", release(1, "Succeeded", "Ready"));
        assert!(namespace.remove_release("configmap-app-1").lost.is_empty(), "it has ended");
    }

    #[test]
    fn whoever_has_what_is_held_is_stranded_whatever_became_of_the_release() {
        let mut namespace = Namespace::default();
        let mut fact = managed("app", "configmap-app-1");
        fact.object.status.as_mut().unwrap().current =
            serde_json::from_value(serde_json::json!({"version": "1.0.0", "number": 1, "object": "app-0"})).unwrap();
        namespace.apply_managed("configmap-app", fact);
        namespace.apply_workload(0, "web", Some(consumer("configmap/app=app-2")));
        assert_eq!(namespace.is_stranded(&config("app")), Stranded::Somebody);
        namespace.apply_release("configmap-app-1", release(1, "RollingBack", "Rolling"));
        assert_eq!(namespace.is_stranded(&config("app")), Stranded::NotYetKnown, "it is under way");
        namespace.apply_release("configmap-app-1", release(1, "RolledBack", "Rolling"));
        assert_eq!(namespace.is_stranded(&config("app")), Stranded::Somebody, "it had joined");
        let mut back = release(2, "Failed", "Rolling");
        back.core.moves[0].to = "app-0".into();
        namespace.apply_release("configmap-app-2", back);
        assert_eq!(namespace.is_stranded(&config("app")), Stranded::ForGood, "that was tried");
        assert_eq!(namespace.next_name(&config("app")), "configmap-app-3");
        namespace.apply_workload(0, "web", Some(consumer("configmap/app=app-0")));
        assert_eq!(namespace.is_stranded(&config("app")), Stranded::Nobody);
    }

    /// A workload `web`, or a record of its template.
    fn of_kind(kind: &str, name: &str, code: &str) -> WorkloadFact {
        let kind = crate::kinds::built_in().into_iter().find(|known| known.resource.kind == kind).unwrap();
        let template = serde_json::json!({
            "metadata": {"annotations": {lockstep_core::names::PINS: "configmap/app=app-1"}},
            "spec": {"containers": [{"name": "app", "image": code}], "volumes": [{"configMap": {"name": "app"}}]},
        });
        let owner = serde_json::json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "web", "uid": "web", "controller": true,
        });
        let owners = if name == "web" { Vec::new() } else { vec![owner] };
        let metadata = serde_json::json!({
            "name": name, "namespace": "n", "uid": name, "resourceVersion": "1", "ownerReferences": owners,
        });
        let metadata = serde_json::from_value(metadata).unwrap();
        let object = kube::core::DynamicObject { types: None, metadata, data: kind.wrap(template) };
        WorkloadFact::read(&kind, &object).unwrap()
    }

    fn index_of(kind: &str) -> usize {
        crate::kinds::built_in().into_iter().position(|known| known.resource.kind == kind).unwrap()
    }

    fn pod(status: &serde_json::Value) -> PodFact {
        let pod = serde_json::json!({
            "metadata": {"name": "web-x", "uid": "x", "resourceVersion": "1", "labels": {"controller-revision-hash": "old"}},
            "status": status,
        });
        PodFact::read(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    /// A release that failed for this reason, with a consumer `web` that joined it.
    fn failed_with(kind: &str, reason: &str) -> ReleaseFact {
        let mut failed = release(1, "Failed", "Rolling");
        failed.core.progress.reason = reason.into();
        let record = &mut failed.core.progress.consumers[0];
        record.consumer.kind = kind.into();
        record.has_joined = true;
        record.template_before = of_kind(kind, "web", "code-2").template;
        failed
    }

    const NOT_WELL: &str = "Deployment web: pod web-x: CrashLoopBackOff. It changed its code, too";

    #[test]
    fn what_failed_with_code_is_tried_again_with_other_code_that_is_new() {
        let (deployments, replica_sets) = (index_of("Deployment"), index_of("ReplicaSet"));
        let mut namespace = Namespace::default();
        namespace.apply_managed("configmap-app", managed("app", "configmap-app-1"));
        namespace.apply_release("configmap-app-1", failed_with("Deployment", NOT_WELL));
        namespace.apply_workload(deployments, "web", Some(of_kind("Deployment", "web", "code-2")));
        assert!(!namespace.held_is_outdated(&config("app")), "it is the code that failed with it");
        namespace.apply_workload(deployments, "web", Some(of_kind("Deployment", "web", "code-3")));
        assert!(namespace.held_is_outdated(&config("app")));
        let made = |name: &str, second: i64| {
            let created = Some(Timestamp::from_second(second).unwrap());
            Some(WorkloadFact { created, ..of_kind("ReplicaSet", name, "code-3") })
        };
        namespace.apply_workload(replica_sets, "web-new", made("web-new", 9));
        assert!(namespace.held_is_outdated(&config("app")), "it came after the release");
        namespace.apply_workload(replica_sets, "web-old", made("web-old", 0));
        assert!(!namespace.held_is_outdated(&config("app")), "somebody wants the old pair");
    }

    #[test]
    fn what_failed_because_of_somebody_else_is_not_tried_again_with_new_code() {
        let mut namespace = Namespace::default();
        namespace.apply_managed("configmap-app", managed("app", "configmap-app-1"));
        let other = NOT_WELL.replace("Deployment web", "Deployment api");
        namespace.apply_release("configmap-app-1", failed_with("Deployment", &other));
        namespace.apply_workload(index_of("Deployment"), "web", Some(of_kind("Deployment", "web", "code-3")));
        assert!(!namespace.held_is_outdated(&config("app")));
    }

    #[test]
    fn a_rollout_between_two_versions_of_the_same_code_is_not_in_the_middle_of_other_code() {
        let mut namespace = Namespace::default();
        let web = of_kind("Rollout", "web", "code-1");
        let revision = |name: &str, code: &str| {
            let mut made = of_kind("ReplicaSet", name, code);
            made.made_by = Some(web.owner.uid.clone());
            made
        };
        let between = Rollout { between: Some(("a".into(), "b".into())), ..Rollout::default() };
        assert!(!namespace.is_between_versions_alone(&web, &between), "nobody can say");
        namespace.apply_workload(index_of("ReplicaSet"), "web-a", Some(revision("web-a", "code-1")));
        namespace.apply_workload(index_of("ReplicaSet"), "web-b", Some(revision("web-b", "code-1")));
        assert!(namespace.is_between_versions_alone(&web, &between));
        namespace.apply_workload(index_of("ReplicaSet"), "web-b", Some(revision("web-b", "code-2")));
        assert!(!namespace.is_between_versions_alone(&web, &between));
    }

    #[test]
    fn new_code_of_a_rollout_is_what_it_is_in_the_middle_of() {
        let mut namespace = Namespace::default();
        namespace.apply_managed("configmap-app", managed("app", "configmap-app-1"));
        let reason = NOT_WELL.replace("Deployment", "Rollout");
        namespace.apply_release("configmap-app-1", failed_with("Rollout", &reason));
        let mut fact = of_kind("Rollout", "web", "code-3");
        (fact.rollout.is_observed, fact.rollout.is_midway) = (true, false);
        namespace.apply_workload(index_of("Rollout"), "web", Some(fact.clone()));
        assert!(!namespace.held_is_outdated(&config("app")), "it is back where it was");
        fact.rollout.is_midway = true;
        namespace.apply_workload(index_of("Rollout"), "web", Some(fact));
        assert!(namespace.held_is_outdated(&config("app")));
    }

    #[test]
    fn pods_of_other_code_are_known_by_the_revision_that_they_name() {
        let mut namespace = Namespace::default();
        let fact = of_kind("DaemonSet", "web", "code-2");
        namespace.apply_workload(2, "web", Some(fact.clone()));
        namespace.apply_workload(4, "web-old", Some(of_kind("ControllerRevision", "web-old", "code-1")));
        let running = pod(&serde_json::json!({"phase": "Running"}));
        assert!(namespace.has_other_code_than(&running, &fact));
        namespace.apply_workload(4, "web-old", Some(of_kind("ControllerRevision", "web-old", "code-2")));
        assert!(!namespace.has_other_code_than(&running, &fact), "only its pins differ, if anything does");
    }

    #[test]
    fn a_pod_that_its_node_evicted_is_nobodys_fault() {
        assert!(pod(&serde_json::json!({"phase": "Failed", "reason": "Evicted"})).was_evicted());
        assert!(!pod(&serde_json::json!({"phase": "Running"})).was_evicted());
        let done = serde_json::json!({"phase": "Succeeded"});
        assert!(!pod(&done).was_evicted(), "a Job's pod is done");
    }

    #[test]
    fn a_note_of_a_gate_that_an_undo_brought_back_is_no_gate() {
        let mut namespace = Namespace::default();
        namespace.apply_managed("configmap-app", managed("app", "configmap-app-1"));
        let mut fact = consumer("configmap/app=app-2");
        fact.gate.saved = Some("{}".into());
        fact.gate.holds_for = Some(std::time::Duration::from_secs(600));
        assert!(!namespace.has_orphaned_gate(&fact), "what failed is behind it");
        fact.gate.holds_for = None;
        assert!(namespace.has_orphaned_gate(&fact), "nothing of it holds");
    }

    fn waiting(number: i64, supersedes: Option<&str>) -> ReleaseFact {
        let mut fact = release(number, "Pending", "Waiting");
        (fact.core.progress.started_at, fact.core.progress.ended_at) = (None, None);
        fact.object.spec.supersedes = supersedes.map(str::to_owned);
        fact
    }

    fn released(name: &str, current: &str) -> ManagedFact {
        let mut fact = managed(name, "");
        fact.object.status.as_mut().unwrap().current =
            serde_json::from_value(serde_json::json!({"version": "1.0.0", "number": 1, "object": current})).unwrap();
        fact
    }

    #[test]
    fn what_a_consumer_was_left_with_is_known_although_nothing_points_there_any_more() {
        let mut namespace = Namespace::default();
        namespace.apply_managed("configmap-app", released("app", "app-0"));
        namespace.apply_workload(0, "web", Some(consumer("configmap/app=app-1")));
        let newer = waiting(3, None);
        for phase in ["Superseded", "Failed"] {
            namespace.apply_release("configmap-app-1", release(1, phase, "Ready"));
            assert_eq!(namespace.inherited(&newer).len(), 1, "{phase}");
        }
        for phase in ["Succeeded", "RolledBack"] {
            namespace.apply_release("configmap-app-1", release(1, phase, "Ready"));
            assert_eq!(namespace.inherited(&newer), [], "{phase}: what it has is its own");
        }
        namespace.apply_release("configmap-app-1", superseded(1, "Ready"));
        namespace.apply_release("configmap-app-2", release(2, "RolledBack", "Restored"));
        assert_eq!(namespace.inherited(&newer), [], "a person went back to it since");
        let mut failed = release(2, "Failed", "Waiting");
        namespace.apply_release("configmap-app-2", failed.clone());
        assert_eq!(namespace.inherited(&newer), [], "it was never moved");
        failed.core.progress.consumers[0].before.moved_at = Some(Timestamp::UNIX_EPOCH);
        namespace.apply_release("configmap-app-2", failed);
        assert_eq!(namespace.inherited(&newer).len(), 1, "its turn had not come: it has what the first gave it");
    }

    #[test]
    fn what_failed_and_was_left_to_a_person_is_known_although_something_else_is_held() {
        let mut namespace = Namespace::default();
        let mut fact = released("app", "app-0");
        fact.object.status.as_mut().unwrap().held = Some(lockstep_api::Held {
            object: "app-9".into(),
            version: "r9".into(),
            release: "configmap-app-9".into(),
            reason: "it breaks a rule".into(),
        });
        namespace.apply_managed("configmap-app", fact);
        namespace.apply_workload(0, "web", Some(consumer("configmap/app=app-1")));
        assert_eq!(namespace.left_behind(&config("app")), None, "a person gave it that");
        for (phase, state, left) in [
            ("Failed", "Rolling", Some("app-1")),
            ("Failed", "Restored", None),
            ("RolledBack", "Rolling", None),
            ("Progressing", "Rolling", None),
        ] {
            namespace.apply_release("configmap-app-1", release(1, phase, state));
            assert_eq!(namespace.left_behind(&config("app")).as_deref(), left, "{phase} {state}");
        }
        namespace.apply_release("configmap-app-1", release(1, "Failed", "Rolling"));
        let mut back = release(2, "Failed", "Rolling");
        back.core.moves[0].to = "app-0".into();
        namespace.apply_release("configmap-app-2", back);
        assert_eq!(namespace.left_behind(&config("app")), None, "that was tried");
    }

    #[test]
    fn of_two_releases_that_left_a_consumer_each_knows_its_own_config() {
        let mut namespace = Namespace::default();
        let mut newer = waiting(4, None);
        let mut web = consumer("configmap/app=app-2,configmap/other=other-2");
        web.references = vec![config("app"), config("other")];
        for (number, name, before) in
            [(1, "app", "configmap/app=app-0"), (2, "other", "configmap/app=app-2,configmap/other=other-0")]
        {
            namespace.apply_managed(&format!("configmap-{name}"), released(name, &format!("{name}-0")));
            let mut failed = release(number, "Failed", "Rolling");
            let step = Move { config: config(name), from: format!("{name}-0"), to: format!("{name}-2") };
            let record = &mut failed.core.progress.consumers[0];
            (record.configs, record.pins_before) = (vec![config(name)], before.parse().unwrap());
            failed.core.moves = vec![step.clone()];
            newer.core.moves.retain(|step| step.to != "app-4");
            newer.core.moves.push(step);
            namespace.apply_release(&failed.core.name.clone(), failed);
        }
        namespace.apply_workload(0, "web", Some(web));
        let inherited = namespace.inherited(&newer);
        assert_eq!(inherited[0].pins_before.to_string(), "configmap/app=app-0,configmap/other=other-0");
        assert_eq!(inherited[0].configs, [config("app"), config("other")]);
    }

    #[test]
    fn of_two_releases_that_meet_only_one_is_started_at_a_time() {
        let mut namespace = Namespace::default();
        namespace.apply_release("configmap-app-1", waiting(1, None));
        namespace.apply_release("configmap-app-2", waiting(2, None));
        assert!(namespace.would_collide("configmap-app-1", "configmap-app-2"));
        let mut other = waiting(3, None);
        other.core.moves[0].config = config("other");
        namespace.apply_release("configmap-other-3", other);
        assert!(!namespace.would_collide("configmap-app-1", "configmap-other-3"), "they have nothing in common");
        namespace.apply_release("configmap-app-1", release(1, "Progressing", "Rolling"));
        assert!(!namespace.would_collide("configmap-app-1", "configmap-app-2"), "the other one waits for it");
        let mut failed = release(1, "Failed", "Rolling");
        failed.core.wishes.abort = true;
        namespace.apply_release("configmap-app-1", failed);
        assert!(namespace.would_collide("configmap-app-1", "configmap-app-2"), "a person opens it again");
    }

    #[test]
    fn what_takes_the_place_of_a_release_under_way_goes_before_others() {
        let mut namespace = Namespace::default();
        let (heir, other) = (waiting(2, Some("configmap-app-1")), waiting(3, None));
        namespace.apply_release("configmap-app-1", superseded(1, "Rolling"));
        namespace.apply_release("configmap-app-2", heir.clone());
        namespace.apply_release("configmap-app-3", other.clone());
        let waits_for = |fact| namespace.overlapping(fact, &[]).map(|other| other.core.name.as_str());
        assert_eq!(waits_for(&other), Some("configmap-app-2"));
        assert_eq!(waits_for(&heir), None);
    }

    #[test]
    fn a_change_that_failed_meanwhile_is_not_released_with_another() {
        let mut namespace = Namespace::default();
        namespace.candidates.insert(config("app"), "app-2".into());
        assert!(namespace.candidate(&config("app")).is_some());
        let mut failed = managed("app", "configmap-app-1");
        namespace.apply_managed("configmap-app", failed.clone());
        assert_eq!(namespace.candidate(&config("app")), None);
        failed.object.spec.retry = Some("configmap-app-1".into());
        namespace.apply_managed("configmap-app", failed);
        assert!(namespace.candidate(&config("app")).is_some(), "somebody wants it tried again");
    }

    #[test]
    fn a_release_that_waits_goes_from_what_is_current_when_it_starts() {
        let mut namespace = Namespace::default();
        namespace.apply_managed("configmap-app", released("app", "app-1"));
        let mut fact = waiting(2, None);
        fact.core.moves[0].to = "app-0".into();
        fact.core.moves[0].from = "app-0".into();
        let moves = |fact: &ReleaseFact| namespace.amended("n", fact).map(|start| start.moves);
        let back = Move { config: config("app"), from: "app-1".into(), to: "app-0".into() };
        assert_eq!(moves(&fact), Some(vec![back.clone()]), "it was to take back what has succeeded since");
        fact.core.moves = vec![back];
        assert_eq!(moves(&fact), None);
        fact.core.progress.started_at = Some(Timestamp::UNIX_EPOCH);
        fact.core.moves[0].from = "app-0".into();
        assert_eq!(moves(&fact), None, "what has started keeps its goal");
    }

    #[test]
    fn a_release_that_waits_drops_what_failed_or_became_current_meanwhile() {
        let mut namespace = Namespace::default();
        let mut failed = released("app", "app-0");
        failed.object.status.as_mut().unwrap().held =
            managed("app", "configmap-app-1").object.status.and_then(|status| status.held);
        namespace.apply_managed("configmap-app", failed);
        namespace.apply_managed("configmap-done", released("done", "done-2"));
        namespace.apply_managed("configmap-other", released("other", "other-1"));
        let step = |name: &str| Move { config: config(name), from: format!("{name}-1"), to: format!("{name}-2") };
        let mut fact = waiting(3, None);
        fact.core.moves = vec![step("app"), step("done"), step("other")];
        let amended = namespace.amended("n", &fact).map(|start| start.moves);
        assert_eq!(amended, Some(vec![step("other")]));
    }

    #[test]
    fn whoever_has_what_is_on_its_way_is_left_behind_once_no_release_knows_of_it() {
        let mut namespace = Namespace::default();
        namespace.apply_managed("configmap-app", released("app", "app-0"));
        namespace.apply_workload(0, "web", Some(consumer("configmap/app=app-1")));
        assert_eq!(namespace.left_behind(&config("app")), None, "the table says nothing of it");
        let table = serde_json::json!({
            "apiVersion": "lockstep.dev/v1alpha1",
            "kind": "PinTable",
            "metadata": {"name": "lockstep", "namespace": "n", "resourceVersion": "1"},
            "spec": {"current": {"configmap/app": "app-0"}, "moving": {"configmap/app": "app-1"}},
        });
        let table = crate::facts::TableFact::read(&serde_json::from_value(table).unwrap());
        namespace.apply_table(Some(std::sync::Arc::new(table)));
        assert_eq!(namespace.left_behind(&config("app")).as_deref(), Some("app-1"));
        namespace.apply_release("configmap-app-1", release(1, "RollingBack", "Rolling"));
        assert_eq!(namespace.left_behind(&config("app")), None, "it is put back");
    }

    #[test]
    fn what_ended_before_it_started_takes_nobodys_place() {
        let mut namespace = Namespace::default();
        let mut second = release(2, "Paused", "Waiting");
        (second.core.progress.started_at, second.core.progress.ended_at) = (None, None);
        second.object.spec.supersedes = Some("configmap-app-1".into());
        namespace.apply_release("configmap-app-1", release(1, "Baking", "Ready"));
        namespace.apply_release("configmap-app-2", second.clone());
        assert_eq!(namespace.superseded_by("configmap-app-1"), Some("configmap-app-2"));
        second.core.progress.phase = Phase::Aborted;
        namespace.apply_release("configmap-app-2", second);
        assert_eq!(namespace.superseded_by("configmap-app-1"), None);
        assert_eq!(namespace.moving_to(&config("app")).as_deref(), Some("app-1"), "it goes on");
    }

    #[test]
    fn a_name_that_a_release_took_the_place_of_is_not_given_again() {
        let mut namespace = Namespace::default();
        let mut heir = waiting(1, Some("configmap-app-4"));
        heir.core.name = "configmap-other-1".into();
        namespace.apply_release("configmap-other-1", heir);
        assert_eq!(namespace.next_name(&config("app")), "configmap-app-5", "it would take its place, too");
    }

    #[test]
    fn of_two_releases_of_a_config_one_is_under_way_and_the_other_has_the_last_word() {
        let waiting = |number| {
            let mut fact = release(number, "Pending", "Waiting");
            fact.core.progress.started_at = None;
            fact
        };
        for (first, second) in
            [(release(1, "Baking", "Ready"), waiting(2)), (waiting(1), release(2, "Baking", "Ready"))]
        {
            let last = if first.is_under_way() { "app-2" } else { "app-1" };
            let now = if first.is_under_way() { "app-1" } else { "app-2" };
            let mut namespace = Namespace::default();
            namespace.apply_release("configmap-app-1", first);
            namespace.apply_release("configmap-app-2", second);
            assert_eq!(namespace.moving_to(&config("app")).as_deref(), Some(last));
            assert_eq!(namespace.under_way(&config("app")).as_deref(), Some(now));
        }
    }

    #[test]
    fn what_was_moved_is_looked_after_for_as_long_as_the_successor_is_paused_also_if_a_person_asked_for_that() {
        let mut namespace = Namespace::default();
        let first = release(1, "Progressing", "Rolling");
        let mut second = release(2, "Paused", "Waiting");
        (second.core.wishes.paused, second.core.wishes.promote) = (true, true);
        second.core.progress.started_at = None;
        second.object.spec.supersedes = Some("configmap-app-1".into());
        namespace.apply_release("configmap-app-1", first.clone());
        let successor_waits = |namespace: &Namespace| {
            let id = ReleaseId { namespace: "n".into(), name: "configmap-app-1".into() };
            namespace.release_view(&id, &first, &Policy::default(), None, Timestamp::UNIX_EPOCH).successor_waits
        };
        namespace.apply_release("configmap-app-2", second.clone());
        assert!(matches!(successor_waits(&namespace), Some(Wait::For(_))));
        second.core.wishes.paused = false;
        namespace.apply_release("configmap-app-2", second.clone());
        assert_eq!(successor_waits(&namespace), None, "what a person asked for waits for nothing else");
        (second.core.wishes.paused, second.core.progress.started_at) = (true, Some(Timestamp::UNIX_EPOCH));
        namespace.apply_release("configmap-app-2", second);
        assert_eq!(successor_waits(&namespace), None, "it has begun, be it to put back who joined it");
    }

    #[test]
    fn a_release_needs_what_its_consumers_go_back_to() {
        let mut namespace = Namespace::default();
        let mut fact = release(2, "Progressing", "Rolling");
        fact.core.progress.ended_at = None;
        fact.core.progress.consumers[0].pins_before = "configmap/app=app-old".parse().unwrap();
        namespace.apply_release("configmap-app-2", fact);
        assert!(namespace.needed_by_releases(&config("app")).contains(&"app-old".to_owned()));
    }

    #[test]
    fn a_hold_ends_when_a_config_that_failed_with_it_changes_but_not_when_a_person_aborted() {
        let both = |phase: &str| {
            let mut fact = release(1, phase, "Restored");
            let other = Move { config: config("other"), from: "other-1".into(), to: "other-2".into() };
            fact.core.moves.push(other);
            fact
        };
        let mut namespace = Namespace::default();
        namespace.apply_release("configmap-app-1", both("RolledBack"));
        for name in ["app", "other"] {
            namespace.apply_managed(&format!("configmap-{name}"), managed(name, "configmap-app-1"));
        }
        assert!(!namespace.held_is_outdated(&config("app")));
        let todo = namespace.apply_managed("configmap-other", managed("other", ""));
        assert!(todo.configs.contains(&config("app")), "it is looked at again");
        assert!(namespace.held_is_outdated(&config("app")));
        namespace.apply_release("configmap-app-1", both("Aborted"));
        assert!(!namespace.held_is_outdated(&config("app")));
    }

    #[test]
    fn releases_that_rolled_nobody_do_not_make_the_storm_guard_forget() {
        let mut namespace = Namespace::default();
        for number in 1..=100 {
            let fact = superseded(number, if number % 10 == 0 { "Rolling" } else { "Waiting" });
            namespace.apply_release(&fact.core.name.clone(), fact);
        }
        let (config, policy) = (ConfigRef::new(ConfigKind::ConfigMap, "app"), Policy::default());
        let old = |second: i64| namespace.old_releases(&config, &policy, Timestamp::from_second(second).unwrap());
        let rolled =
            |old: &[ReleaseFact]| old.iter().filter(|fact| fact.core.progress.consumers.iter().any(was_pinned)).count();
        assert_eq!(old(101).len(), 81, "the newest ten stay, and nine more that rolled somebody");
        assert_eq!(rolled(&old(101)), 0);
        assert_eq!(old(10_000).len(), 90, "what is long ago is not remembered");
    }

    #[test]
    fn what_was_rejected_is_remembered_for_as_long_as_its_version_is_there() {
        let digest = lockstep_core::Digest::from("a".repeat(64));
        let object = digest.version_object_name("app");
        let ended_with_it = |number: i64, phase: &str| {
            let mut fact = release(number, phase, "Waiting");
            fact.core.moves[0].to.clone_from(&object);
            fact
        };
        let mut namespace = Namespace::default();
        namespace.apply_release("configmap-app-1", ended_with_it(1, "Rejected"));
        for number in 2..=30 {
            namespace.apply_release(&format!("configmap-app-{number}"), superseded(number, "Waiting"));
        }
        let is_kept = |namespace: &Namespace| {
            let now = Timestamp::from_second(10_000).unwrap();
            let old = namespace.old_releases(&config("app"), &Policy::default(), now);
            assert!(old.len() > 15, "the others go");
            old.iter().all(|fact| fact.core.name != "configmap-app-1")
        };
        assert!(!is_kept(&namespace), "its version is gone");
        let meta = serde_json::json!({
            "name": object, "namespace": "n", "uid": "v", "resourceVersion": "1",
            "labels": {lockstep_core::names::VERSION_OF: "configmap"},
            "annotations": {
                lockstep_core::names::SOURCE: "app", lockstep_core::names::VERSION: "r2",
                lockstep_core::names::NUMBER: "2", lockstep_core::names::DIGEST: digest.full(),
            },
        });
        let version = crate::facts::ConfigFact::read(ConfigKind::ConfigMap, &serde_json::from_value(meta).unwrap());
        namespace.apply_config(ConfigKind::ConfigMap, &object, version.unwrap());
        assert!(is_kept(&namespace), "somebody could choose it");
        namespace.apply_release("configmap-app-31", ended_with_it(31, "Succeeded"));
        assert!(!is_kept(&namespace), "it was good enough since");
    }

    #[test]
    fn what_a_person_wants_tried_again_does_not_wait_for_the_storm_to_pass() {
        let mut namespace = Namespace::default();
        namespace.apply_workload(0, "web", Some(consumer("configmap/app=app-0")));
        for number in 1..=8 {
            namespace.apply_release(&format!("configmap-app-{number}"), release(number, "RolledBack", "Restored"));
        }
        let mut again = waiting(9, None);
        again.core.moves[0].to = "app-2".into();
        namespace.apply_release("configmap-app-9", again.clone());
        let mut held = managed("app", "configmap-app-8");
        let mut blocked = |retry: Option<&str>| {
            held.object.spec.retry = retry.map(str::to_owned);
            namespace.apply_managed("configmap-app", held.clone());
            let id = ReleaseId { namespace: "n".into(), name: "configmap-app-9".into() };
            let now = Timestamp::from_second(9).unwrap();
            namespace.release_view(&id, &again, &Policy::default(), None, now).blocked
        };
        assert!(matches!(blocked(None), Some(Block::Storm { .. })));
        assert!(matches!(blocked(Some("configmap-app-7")), Some(Block::Storm { .. })), "that was another one");
        assert_eq!(blocked(Some("configmap-app-8")), None);
    }
}
