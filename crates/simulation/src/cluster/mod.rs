//! Kubernetes' own controllers and kubelets, as small state machines over the simulated store, with their real manners.
//!
//! There is one task for all of them. Each change of an object makes jobs that are due a little later: a controller sees what happened,
//! and acts, after a time of its own. A job is one turn of one controller with one object, and reads what is then.

mod cron_job;
mod daemon_set;
mod deployment;
mod garbage;
mod history;
mod job;
mod kubelet;
mod manners;
mod namespace;
mod nodes;
mod queue;
mod read;
mod replica_set;
mod rollout;
mod sets;
mod stateful_set;
#[cfg(test)]
mod tests;
mod turn;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

pub(crate) use kubelet::cannot_be_ready;
pub use manners::{Machines, Manners, Span};

use crate::kinds::{Key, Kind};
use crate::random::Random;
use crate::store::{Change, Object, Refusal, Store, Writer};
use crate::{Shared, World};
use kubelet::{Around, Kubelet};
use manners::State;
use nodes::Nodes;
use queue::{Job, Queue};
use turn::Turn;

/// How long a controller waits after a refusal; twice as long after each further one.
const RETRY: Duration = Duration::from_millis(5);
const LONGEST_RETRY: Duration = Duration::from_secs(1_000);
const TICK: Duration = Duration::from_millis(1);

/// Runs all of it, for as long as it is polled.
pub async fn run(shared: Shared, random: Random, manners: Manners) {
    let machines = manners.machines.clone();
    let mut cluster = Cluster::new(random, manners);
    loop {
        let now = shared.now();
        let next = shared.with(|world| cluster.work(world, now));
        let pause = next.map_or(Duration::MAX, |at| at.duration_since(now).try_into().unwrap_or_default());
        tokio::select! {
            biased;
            () = shared.changed.notified() => {}
            () = machines.changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

struct Cluster {
    manners: Manners,
    machines: State,
    nodes: Nodes,
    kubelet: Kubelet,
    queue: Queue,
    /// What nobody looks after, and somebody may take in.
    orphans: BTreeSet<Key>,
    /// Rollouts that take their template from a Deployment.
    references: BTreeMap<Key, Key>,
    /// The last revision that was looked at.
    cursor: u64,
    random: Random,
    /// Each object has dice of its own: what happens to one does not change how quick others are.
    dice: BTreeMap<Key, Random>,
    failures: BTreeMap<Job, u32>,
    /// What controllers will do when they act again.
    stalled: BTreeSet<Job>,
}

impl Cluster {
    fn new(random: Random, manners: Manners) -> Self {
        Self {
            manners,
            machines: State::default(),
            nodes: Nodes::default(),
            kubelet: Kubelet::new(random.fork("kubelet")),
            queue: Queue::default(),
            orphans: BTreeSet::new(),
            references: BTreeMap::new(),
            cursor: 0,
            random,
            dice: BTreeMap::new(),
            failures: BTreeMap::new(),
            stalled: BTreeSet::new(),
        }
    }

    /// Does all that is due, and says when there is more to do.
    fn work(&mut self, world: &mut World, now: Timestamp) -> Option<Timestamp> {
        self.look_at_machines(&world.store, now);
        loop {
            self.take_in(&world.store, now);
            let Some(job) = self.queue.take(now) else { return self.queue.next() };
            if self.machines.is_stalled && job.is_of_controller() {
                self.stalled.insert(job);
            } else {
                self.perform(world, job, now);
            }
        }
    }

    fn look_at_machines(&mut self, store: &Store, now: Timestamp) {
        let state = self.manners.machines.state();
        if state == self.machines {
            return;
        }
        for node in state.lost.difference(&self.machines.lost) {
            self.nodes.lost.insert(*node, now);
            self.queue.add(Job::Node(*node), now);
        }
        for node in self.machines.lost.difference(&state.lost) {
            self.nodes.found(*node);
            for pod in nodes::pods_on(store, *node) {
                self.queue.add(Job::Pod(pod.key.clone()), now);
            }
        }
        let has_more_room = (self.machines.is_full && !state.is_full) || !self.machines.lost.is_subset(&state.lost);
        if has_more_room {
            self.kubelet.make_room(now);
            let waiting = store.list(Kind::Pod, None).filter(|pod| pod.value["spec"]["nodeName"].is_null());
            for pod in waiting {
                self.queue.add(Job::Pod(pod.key.clone()), now);
            }
        }
        if !state.is_stalled {
            for job in std::mem::take(&mut self.stalled) {
                self.queue.add(job, now);
            }
        }
        self.machines = state;
    }

    fn take_in(&mut self, store: &Store, now: Timestamp) {
        for change in store.changes_after(self.cursor) {
            self.cursor = change.revision;
            self.route(store, change, now);
        }
    }

    /// Makes the jobs that a change asks for.
    fn route(&mut self, store: &Store, change: &Change, now: Timestamp) {
        let key = &change.key;
        self.keep_accounts(change);
        match key.kind {
            // What they say of their own objects they know already; a Rollout's next step depends on it.
            Kind::Deployment
            | Kind::ReplicaSet
            | Kind::StatefulSet
            | Kind::DaemonSet
            | Kind::CronJob
            | Kind::ReplicationController
                if change.by == Writer::Controller && is_status_only(change) => {}
            Kind::Deployment
            | Kind::ReplicaSet
            | Kind::StatefulSet
            | Kind::DaemonSet
            | Kind::Job
            | Kind::CronJob
            | Kind::Rollout
            | Kind::ReplicationController
            | Kind::Namespace => self.soon(Job::Sync(key.clone()), now),
            Kind::Pod => self.route_pod(store, change, now),
            _ => {}
        }
        self.wake_owner(store, change, now);
        self.route_garbage(store, change, now);
    }

    fn route_pod(&mut self, store: &Store, change: &Change, now: Timestamp) {
        let is_leaving = |object: Option<&Object>| object.is_some_and(Object::is_deleted);
        match (&change.before, &change.after) {
            (Some(before), None) => {
                self.kubelet.forget(before.uid());
                self.wake_recreated(store, before, now);
            }
            (None, Some(_)) => self.queue.add(Job::Pod(change.key.clone()), now),
            (Some(before), Some(after)) if is_leaving(Some(after)) && !is_leaving(Some(before)) => {
                self.queue.add(Job::Pod(change.key.clone()), now);
            }
            _ => {}
        }
    }

    /// A Deployment that recreates waits for the last of its old pods.
    fn wake_recreated(&mut self, store: &Store, pod: &Object, now: Timestamp) {
        let owner = owner_key(pod).filter(|(key, _)| key.kind == Kind::ReplicaSet);
        let Some(set) = owner.and_then(|(key, _)| store.get(&key)) else { return };
        let Some((key, _)) = owner_key(set).filter(|(key, _)| key.kind == Kind::Deployment) else { return };
        if store.get(&key).is_some_and(|found| found.value["spec"]["strategy"]["type"] == "Recreate") {
            self.soon(Job::Sync(key), now);
        }
    }

    /// Tells the controller of whatever made it; or, if nobody looks after it any more, those who may want to.
    fn wake_owner(&mut self, store: &Store, change: &Change, now: Timestamp) {
        if !matches!(change.key.kind, Kind::Pod | Kind::ReplicaSet | Kind::Job) {
            return;
        }
        if change.key.kind == Kind::Pod && is_same_to_owner(change) {
            return;
        }
        let owner_of = |object: &Object| owner_key(object);
        let owners = [&change.before, &change.after].map(|object| object.as_deref().and_then(owner_of));
        let [before, after] = owners;
        let is_new_orphan = after.is_none() && (before.is_some() || !is_status_only(change));
        if change.after.is_some() && is_new_orphan {
            self.wake_adopters(store, change, now);
        }
        if before != after {
            self.wake(store, before, now);
        }
        self.wake(store, after, now);
    }

    /// An owner of the same name may be another one, which does not care.
    fn wake(&mut self, store: &Store, owner: Option<(Key, String)>, now: Timestamp) {
        if let Some((key, uid)) = owner
            && store.get(&key).is_some_and(|found| found.uid() == uid)
        {
            self.soon(Job::Sync(key), now);
        }
    }

    fn wake_adopters(&mut self, store: &Store, change: &Change, now: Timestamp) {
        let kinds: &[Kind] = match change.key.kind {
            Kind::Pod => {
                &[Kind::ReplicaSet, Kind::StatefulSet, Kind::DaemonSet, Kind::Job, Kind::ReplicationController]
            }
            _ => &[Kind::Deployment, Kind::Rollout],
        };
        let Some(orphan) = &change.after else { return };
        for kind in kinds {
            let takers = store.list(*kind, Some(&change.key.namespace));
            for taker in takers.filter(|taker| read::is_selected(orphan, &taker.value["spec"]["selector"])) {
                self.soon(Job::Sync(taker.key.clone()), now);
            }
        }
    }

    /// Remembers who nobody looks after, and who takes its template from whom.
    fn keep_accounts(&mut self, change: &Change) {
        let key = &change.key;
        if matches!(key.kind, Kind::Pod | Kind::ReplicaSet | Kind::ControllerRevision) {
            let is_orphan = change.after.as_deref().is_some_and(|object| read::controller(object).is_none());
            if is_orphan {
                self.orphans.insert(key.clone());
            } else {
                self.orphans.remove(key);
            }
        }
        if key.kind == Kind::Rollout {
            let name = change.after.as_deref().and_then(|object| object.value["spec"]["workloadRef"]["name"].as_str());
            match name {
                Some(name) => {
                    self.references.insert(key.clone(), Key::new(Kind::Deployment, &key.namespace, name));
                }
                None => drop(self.references.remove(key)),
            }
        }
    }

    fn route_garbage(&mut self, store: &Store, change: &Change, now: Timestamp) {
        let key = &change.key;
        if key.kind == Kind::Deployment {
            let takers: Vec<Key> =
                self.references.iter().filter(|(_, from)| *from == key).map(|(taker, _)| taker.clone()).collect();
            for taker in takers {
                self.soon(Job::Sync(taker), now);
            }
        }
        let Some(after) = &change.after else { return self.route_gone(store, change, now) };
        let is_waiting = after.is_deleted()
            && (read::has_finalizer(after, garbage::FOREGROUND) || read::has_finalizer(after, garbage::ORPHAN));
        let has_other_owners = change
            .before
            .as_ref()
            .is_none_or(|before| before.metadata()["ownerReferences"] != after.metadata()["ownerReferences"]);
        if is_waiting || (has_other_owners && garbage::is_loose(store, after)) {
            self.soon(Job::Collect(key.clone()), now);
        }
        if is_waiting {
            let dependents: Vec<Key> = store.owned_by(after.uid()).map(|found| found.key.clone()).collect();
            for dependent in dependents {
                self.soon(Job::Collect(dependent), now);
            }
        }
    }

    /// Something is gone: what it owned may have to go, its owner may have waited for that, and so may its namespace.
    fn route_gone(&mut self, store: &Store, change: &Change, now: Timestamp) {
        let Some(before) = &change.before else { return };
        let dependents: Vec<Key> = store.owned_by(before.uid()).map(|found| found.key.clone()).collect();
        for dependent in dependents {
            self.soon(Job::Collect(dependent), now);
        }
        for owner in before.owners() {
            let text = |name: &str| owner[name].as_str().unwrap_or_default();
            let Some(kind) = Kind::of(text("apiVersion"), text("kind")) else { continue };
            let owner = Key::new(kind, &change.key.namespace, text("name"));
            if store.get(&owner).is_some_and(|owner| owner.is_deleted()) {
                self.soon(Job::Collect(owner), now);
            }
        }
        let namespace = Key::new(Kind::Namespace, "", &change.key.namespace);
        if store.get(&namespace).is_some_and(|namespace| namespace.is_deleted()) {
            self.soon(Job::Sync(namespace), now);
        }
    }

    /// A controller takes a moment to see what happened; at times, a long one.
    fn soon(&mut self, job: Job, now: Timestamp) {
        let (Job::Sync(key) | Job::Pod(key) | Job::Collect(key)) = &job else { return };
        let manners = &self.manners;
        let dice = match self.dice.get_mut(key) {
            Some(dice) => dice,
            None => self.dice.entry(key.clone()).or_insert_with(|| self.random.fork(&key.to_string())),
        };
        let (low, high) = if dice.chance(manners.lag_percent) { manners.lag } else { manners.reaction };
        let at = read::after(now, dice.between(low, high));
        self.queue.add(job, at);
    }

    fn perform(&mut self, world: &mut World, job: Job, now: Timestamp) {
        let World { store, ran, .. } = world;
        let mut turn = Turn { store, now, orphans: &self.orphans, nodes: self.manners.nodes, again: None };
        let done = match &job {
            Job::Sync(key) => sync(&mut turn, key),
            Job::Collect(key) => garbage::sync(&mut turn, key),
            Job::Node(node) => self.nodes.sync(&mut turn, *node, &self.manners),
            Job::Pod(key) => match turn.get(key) {
                None => Ok(()),
                Some(pod) => {
                    let (machines, gone) = (&self.machines, &self.nodes.gone);
                    let mut around = Around { manners: &self.manners, machines, gone, ran };
                    self.kubelet.look(&mut turn, &pod, &mut around)
                }
            },
        };
        let again = turn.again;
        match done {
            Ok(()) => {
                if !self.failures.is_empty() {
                    self.failures.remove(&job);
                }
                if let Some(at) = again {
                    // Time goes on between two turns, or they would never end.
                    self.queue.add(job, at.max(read::after(now, TICK)));
                }
            }
            Err(refusal) => self.retry(job, &refusal, now),
        }
    }

    fn retry(&mut self, job: Job, refusal: &Refusal, now: Timestamp) {
        tracing::debug!(?job, refusal = refusal.message, "a controller was refused");
        let failures = self.failures.entry(job.clone()).or_default();
        let wait = RETRY.saturating_mul(1 << (*failures).min(20)).min(LONGEST_RETRY);
        *failures += 1;
        self.queue.add(job, read::after(now, wait));
    }
}

fn sync(turn: &mut Turn<'_>, key: &Key) -> Result<(), Refusal> {
    match key.kind {
        Kind::Deployment => deployment::sync(turn, key),
        Kind::ReplicaSet | Kind::ReplicationController => replica_set::sync(turn, key),
        Kind::StatefulSet => stateful_set::sync(turn, key),
        Kind::DaemonSet => daemon_set::sync(turn, key),
        Kind::Job => job::sync(turn, key),
        Kind::CronJob => cron_job::sync(turn, key),
        Kind::Rollout => rollout::sync(turn, key),
        Kind::Namespace => namespace::sync(turn, key),
        _ => Ok(()),
    }
}

/// Whether neither what is wanted of an object changed, nor that it is to go.
fn is_status_only(change: &Change) -> bool {
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return false };
    before.metadata()["generation"] == after.metadata()["generation"] && before.is_deleted() == after.is_deleted()
}

/// Whether nothing about a pod changed that a controller acts on: where it runs and how it starts are its kubelet's business.
fn is_same_to_owner(change: &Change) -> bool {
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return false };
    let [was_ready, is_ready] = [before, after].map(|pod| read::condition(&pod.value["status"], "Ready"));
    before.is_deleted() == after.is_deleted()
        && read::phase(before) == read::phase(after)
        && was_ready == is_ready
        && ["labels", "ownerReferences"].into_iter().all(|name| before.metadata()[name] == after.metadata()[name])
}

/// The key of what looks after an object, and its uid.
fn owner_key(object: &Object) -> Option<(Key, String)> {
    let owner = read::controller(object)?;
    let kind = Kind::of(owner["apiVersion"].as_str()?, owner["kind"].as_str()?)?;
    let key = Key::new(kind, &object.key.namespace, owner["name"].as_str()?);
    Some((key, owner["uid"].as_str()?.to_owned()))
}
