//! The loop: watches feed the index, the index makes work, work is done a bounded number at a time, and what it wrote goes back
//! into the index.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use futures::Stream;
use lockstep_core::policy::Policy;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::environment::Environment;
use crate::execute::{ConfigOutcome, ExecuteError, Executor, ReleaseOutcome, Written};
use crate::facts::{DRAFT_LIFE, Key, WorkloadFact};
use crate::index::{ConfigId, Index, ObjectId, PolicyId, ReleaseId, Watched, Work, WorkloadId};
use crate::inputs::{Input, Turns};
use crate::leader::Term;
use crate::metrics::Metrics;
use crate::pods::PodWatches;
use crate::put_backs::PutBacks;
use crate::watch::{Scope, WatchEvent, What};

/// How much is done at the same time.
const PARALLEL: usize = 32;
/// When to look again whether we still lead.
const TERM_RECHECK: Duration = Duration::from_secs(1);
/// What consumers, versions and our own writes say about a config is looked at together.
const GATHER: Duration = Duration::from_millis(200);
/// Owners are written a while after the last change: there is no hurry, and one write serves many.
const RETENTION_DELAY: Duration = Duration::from_secs(5);
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(60);
/// How often a release's start is put off, each time by `GATHER`: ten seconds in all.
const MOST_PUT_OFF: u32 = 50;

pub struct Controller {
    executor: Arc<Executor>,
    environment: Environment,
    metrics: Arc<Metrics>,
    /// How long a template into which a plain name slipped waits for further writes.
    settle: Duration,
    index: Index,
    pods: PodWatches,
    pod_events: mpsc::Receiver<WatchEvent>,
    queue: crate::queue::Queue<Work>,
    failures: BTreeMap<Work, u32>,
    put_backs: PutBacks,
    /// How often the start of a release was put off for what changed beside it.
    put_off: BTreeMap<ConfigId, u32>,
    listings: BTreeMap<(Watched, Scope), BTreeSet<Key>>,
    /// The watches that have not yet said all that there is.
    unlisted: BTreeSet<(Watched, Scope)>,
    term: Term,
}

#[expect(clippy::large_enum_variant, reason = "few exist at a time, and each only for a moment")]
enum Done {
    Config(ConfigId, Result<ConfigOutcome, ExecuteError>),
    Start(ConfigId, Result<Vec<Written>, ExecuteError>),
    Release(ReleaseId, Result<ReleaseOutcome, ExecuteError>),
    Consumer(WorkloadId, Result<Option<Written>, ExecuteError>),
    /// The people of a workload, by its uid.
    Told(WorkloadId, String, Result<(), ExecuteError>),
    /// A workload's controller, from waiting for a pod that never starts.
    Freed(WorkloadId, Result<(), ExecuteError>),
    Restore(ReleaseId, Result<Vec<Written>, ExecuteError>),
    Retention(ConfigId, Result<Vec<Written>, ExecuteError>),
    Unreadable(ObjectId, Result<(), ExecuteError>),
    Policy(PolicyId, Result<(), ExecuteError>),
}

impl Controller {
    pub fn new(
        executor: Executor,
        metrics: Arc<Metrics>,
        settle: Duration,
        watches: BTreeSet<(Watched, Scope)>,
        term: Term,
    ) -> Self {
        let environment = executor.environment.clone();
        let (pods, pod_events) = PodWatches::new(executor.client.clone(), environment.clone());
        Self {
            executor: Arc::new(executor),
            environment,
            metrics,
            settle,
            index: Index::new(Policy { settle, ..Policy::default() }),
            pods,
            pod_events,
            queue: crate::queue::Queue::default(),
            failures: BTreeMap::new(),
            put_backs: PutBacks::default(),
            put_off: BTreeMap::new(),
            listings: BTreeMap::new(),
            unlisted: watches,
            term,
        }
    }

    /// Runs until the stream of events ends, or work ends in a panic: what is known of the cluster may then be wrong.
    pub async fn run(mut self, events: impl Stream<Item = WatchEvent>) -> anyhow::Result<()> {
        let mut events = std::pin::pin!(events);
        let mut running: JoinSet<Done> = JoinSet::new();
        let mut turns = Turns::default();
        loop {
            self.watch_pods();
            self.start_due(&mut running);
            self.metrics.queued(self.queue.len());
            self.metrics.open(self.index.counts.open_releases(), self.index.counts.held_configs());
            self.metrics.unreadable(self.index.counts.unreadable());
            let wake = self.wake(&running);
            let input = tokio::select! {
                biased;
                input = turns.next(events.as_mut(), &mut self.pod_events, &mut running) => input,
                // Last, and yet never late: after each input, what is due is started.
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => continue,
            };
            match input {
                Input::Event(event) => self.observe(event),
                Input::Done(done) => self.finish(done),
                Input::Broken(error) => bail!("work did not come to its end, and what is known may be wrong: {error}"),
                Input::End => return Ok(()),
            }
        }
    }

    /// When to look for work again. None if there is something else to wait for.
    fn wake(&self, running: &JoinSet<Done>) -> Option<Instant> {
        let due = self.queue.next_due().filter(|_| self.is_ready() && running.len() < PARALLEL)?;
        Some(if self.term.is_running() { due } else { Instant::now() + TERM_RECHECK })
    }

    fn watch_pods(&mut self) {
        for namespace in self.pods.adjust(self.index.namespaces_with_releases()) {
            self.index.forget_pods(&namespace);
        }
    }

    /// Before everything was listed once, what looks missing may just not have been said yet.
    fn is_ready(&self) -> bool {
        self.unlisted.is_empty()
    }

    fn observe(&mut self, event: WatchEvent) {
        let watch = (event.watched, event.scope);
        match event.what {
            What::Listing => drop(self.listings.insert(watch, BTreeSet::new())),
            What::Listed => self.end_listing(&watch),
            What::Seen { key, fact, is_listing } => {
                self.note_listed(&watch, &key, is_listing);
                // The write of a workload may follow the write of its config within milliseconds, and should join it.
                let delay = if fact.is_source() { Duration::ZERO } else { GATHER };
                let work = self.index.apply(watch.0, &key, *fact);
                self.take_up(work, delay);
            }
            What::Gone { key, at, is_listing } => {
                self.note_listed(&watch, &key, is_listing);
                let work = self.index.remove_at(watch.0, &key, at);
                self.take_up(work, GATHER);
            }
            What::Unreadable { key, unreadable, is_listing } => {
                self.note_listed(&watch, &key, is_listing);
                let work = self.index.apply_unreadable(watch.0, &key, *unreadable);
                self.take_up(work, GATHER);
            }
            What::Failed(error) => {
                self.metrics.watch_failed();
                tracing::warn!(watch = ?watch.0, error, "a watch failed and is started again");
            }
        }
    }

    fn note_listed(&mut self, watch: &(Watched, Scope), key: &Key, is_listing: bool) {
        if let Some(listed) = self.listings.get_mut(watch).filter(|_| is_listing) {
            listed.insert(key.clone());
        }
    }

    /// What was not listed went while nobody looked.
    fn end_listing(&mut self, watch: &(Watched, Scope)) {
        let listed = self.listings.remove(watch).unwrap_or_default();
        for key in self.index.keys(watch.0, watch.1.as_deref()) {
            if !listed.contains(&key) {
                let work = self.index.remove(watch.0, &key);
                self.take_up(work, GATHER);
            }
        }
        if let (Watched::Pod, Some(namespace)) = watch {
            let work = self.index.pods_listed(namespace);
            self.take_up(work, Duration::ZERO);
        }
        if self.unlisted.remove(watch) && self.is_ready() {
            self.metrics.synced();
            tracing::info!("the first list of every kind is complete: work starts");
        }
    }

    fn take_up(&mut self, work: Vec<Work>, delay: Duration) {
        let now = Instant::now();
        for work in work {
            match &work {
                Work::Config(_) | Work::Start(_) | Work::Release(_) => self.queue.push(work, now, delay),
                Work::Restore(_) | Work::Unreadable(_) | Work::Policy(_) => self.queue.push(work, now, Duration::ZERO),
                Work::Consumer(id) => {
                    let delay = self.put_backs.wait(id, self.settle);
                    self.queue.push(work, now, delay);
                }
                Work::Retention(id) if self.index.lacks_holder(id) => self.queue.push(work, now, GATHER),
                Work::Retention(_) => self.queue.settle(work, now, RETENTION_DELAY),
            }
        }
    }

    fn start_due(&mut self, running: &mut JoinSet<Done>) {
        let now = Instant::now();
        // What we know may be old, and another replica at work.
        while self.term.is_running() && self.is_ready() && running.len() < PARALLEL {
            let Some(work) = self.queue.pop(now) else { return };
            if !self.start(&work, running) {
                self.queue.done(&work, now);
                self.failures.remove(&work);
            }
        }
    }

    /// False if there is nothing to do after all.
    fn start(&mut self, work: &Work, running: &mut JoinSet<Done>) -> bool {
        let executor = Arc::clone(&self.executor);
        match work {
            Work::Config(id) => {
                let Some(view) = self.index.config(id) else { return false };
                let (id, unreadable) = (id.clone(), self.index.stops(id));
                self.environment.process.spawn_into(running, async move {
                    let outcome = match unreadable {
                        Some(unreadable) => executor.refuse_for(view, &unreadable).await,
                        None => executor.config(view).await,
                    };
                    Done::Config(id, outcome)
                });
            }
            Work::Start(id) => {
                if self.is_crossed(work) || self.index.may_grow(id) && self.has_patience(id) {
                    self.queue.push(work.clone(), Instant::now(), GATHER);
                    return false;
                }
                self.put_off.remove(id);
                let Some(start) = self.index.start(id) else { return false };
                let id = id.clone();
                self.environment
                    .process
                    .spawn_into(running, async move { Done::Start(id, executor.start(start).await) });
            }
            Work::Release(id) => {
                if self.is_crossed(work) {
                    self.queue.push(work.clone(), Instant::now(), GATHER);
                    return false;
                }
                let Some(view) = self.index.release(id, self.environment.clock.now()) else { return false };
                let id = id.clone();
                self.environment
                    .process
                    .spawn_into(running, async move { Done::Release(id, executor.release(view).await) });
            }
            Work::Consumer(id) => return self.look_after(id, running),
            Work::Restore(id) => {
                let Some(lost) = self.index.lost(id) else { return false };
                let id = id.clone();
                self.environment.process.spawn_into(running, async move {
                    let written = executor.restore(&id, lost).await;
                    Done::Restore(id, written)
                });
            }
            Work::Policy(id) => {
                let Some(rules) = self.index.rules(id) else { return false };
                let id = id.clone();
                self.environment.process.spawn_into(running, async move {
                    let told = executor.check_policy(&id, rules).await;
                    Done::Policy(id, told)
                });
            }
            Work::Unreadable(id) => {
                let Some(unreadable) = self.index.unreadable(id) else { return false };
                let id = id.clone();
                self.environment.process.spawn_into(running, async move {
                    let told = executor.tell_unreadable(&unreadable).await;
                    Done::Unreadable(id, told)
                });
            }
            Work::Retention(id) => {
                let Some(view) = self.index.retention(id, self.environment.clock.now()) else { return false };
                self.index.note_lacking_holder(id, false);
                let id = id.clone();
                self.environment.process.spawn_into(running, async move {
                    let written = executor.retention(&id, view).await;
                    Done::Retention(id, written)
                });
            }
        }
        true
    }

    /// Whether something is being started at this moment that it has to know of before it starts itself.
    fn is_crossed(&self, work: &Work) -> bool {
        self.queue.running().any(|other| other != work && self.index.cross(work, other))
    }

    /// Counts, so that a config that cannot be read keeps no other waiting for long.
    fn has_patience(&mut self, id: &ConfigId) -> bool {
        let count = self.put_off.entry(id.clone()).or_insert(0);
        *count += 1;
        *count <= MOST_PUT_OFF
    }

    /// What no release looks after: a gate that is nobody's, a pin to a version that does not exist, pods that wait for such a version, and in
    /// template mode a plain name that somebody wrote over a version.
    fn look_after(&mut self, id: &WorkloadId, running: &mut JoinSet<Done>) -> bool {
        let is_concerned = |fact: &&WorkloadFact| fact.can_change || fact.is_fixed;
        let Some(fact) = self.index.workload(id).filter(is_concerned).cloned() else { return false };
        if self.index.has_orphaned_gate(id, &fact) {
            let (executor, id) = (Arc::clone(&self.executor), id.clone());
            self.environment.process.spawn_into(running, async move {
                let written = executor.open_gate_of(&id, &fact).await;
                Done::Consumer(id, written)
            });
            return true;
        }
        let (pins, unknown) = self.index.settled_pins(&id.namespace, &fact);
        let can_be_told = fact.can_change || !unknown.is_empty();
        if pins == fact.pins {
            return self.free(id, fact, running);
        }
        if !can_be_told {
            return false;
        }
        let forged = self.index.forged(id);
        if !fact.can_change {
            let (executor, id) = (Arc::clone(&self.executor), id.clone());
            self.environment.process.spawn_into(running, async move {
                let told = executor.tell_fixed(&id, &fact, &unknown, &forged).await;
                Done::Told(id, fact.owner.uid, told)
            });
            return true;
        }
        if !unknown.is_empty() {
            let (executor, id) = (Arc::clone(&self.executor), id.clone());
            self.environment.process.spawn_into(running, async move {
                let written = executor.replace_unknown(&id, &fact, &pins, &unknown, &forged).await;
                Done::Consumer(id, written)
            });
            return true;
        }
        if self.put_backs.note(id, Instant::now()) {
            tracing::warn!(
                namespace = id.namespace,
                workload = id.workload.name,
                "somebody writes plain names over the versions in its template again and again, each time a rollout: let that tool leave the references alone, or use admission.mode policy or webhook"
            );
        }
        let (executor, id) = (Arc::clone(&self.executor), id.clone());
        self.environment.process.spawn_into(running, async move {
            let written = executor.pin(&id, &fact, &pins, None).await;
            Done::Consumer(id, written)
        });
        true
    }

    /// Its template is well, and its controller may still wait for a pod from before. False if there is none.
    fn free(&self, id: &WorkloadId, fact: WorkloadFact, running: &mut JoinSet<Done>) -> bool {
        let unknown = self.index.left_unknown(&id.namespace, &fact);
        if unknown.is_empty() || !self.executor.may_delete_pods {
            return false;
        }
        let (executor, id, forged) = (Arc::clone(&self.executor), id.clone(), self.index.forged(id));
        self.environment.process.spawn_into(running, async move {
            let freed = executor.delete_waiting(&id, &fact, &unknown, &forged).await;
            Done::Freed(id, freed)
        });
        true
    }

    fn finish(&mut self, done: Done) {
        match done {
            Done::Config(id, mut outcome) => {
                let work = Work::Config(id.clone());
                if let Ok(outcome) = outcome.as_mut()
                    && std::mem::take(&mut outcome.is_refused)
                {
                    let outcome = std::mem::take(outcome);
                    return self.take_in_refused(&id, outcome);
                }
                let outcome = self.settle_failure(&work, outcome);
                self.queue.done(&work, Instant::now());
                if let Some(outcome) = outcome {
                    self.take_in_config(&id, outcome);
                }
            }
            Done::Start(id, written) => {
                let work = Work::Start(id);
                let written = self.settle_failure(&work, written);
                self.queue.done(&work, Instant::now());
                self.take_in(written.into_iter().flatten());
            }
            Done::Release(id, outcome) => {
                let work = Work::Release(id.clone());
                let is_gone = outcome.as_ref().is_err_and(ExecuteError::is_not_found);
                // A step can be taken although a write of it is in conflict: how often that was is forgotten further below.
                let outcome = if outcome.is_ok() { outcome.ok() } else { self.settle_failure(&work, outcome) };
                self.queue.done(&work, Instant::now());
                if let Some(outcome) = outcome {
                    self.take_in_release(&id, outcome);
                } else if is_gone {
                    let work = self.index.lose(&id);
                    self.take_up(work, Duration::ZERO);
                }
            }
            Done::Restore(id, written) => {
                if written.as_ref().is_err_and(ExecuteError::is_not_found) {
                    let work = self.index.give_up_lost(&id);
                    self.take_up(work, GATHER);
                }
                let work = Work::Restore(id);
                let written = self.settle_failure(&work, written);
                self.queue.done(&work, Instant::now());
                self.take_in(written.into_iter().flatten());
            }
            Done::Consumer(id, written) => {
                let work = Work::Consumer(id);
                let written = self.settle_failure(&work, written);
                self.queue.done(&work, Instant::now());
                if let Some(written) = written.flatten() {
                    self.metrics.pinned(1);
                    self.take_in([written]);
                }
            }
            Done::Told(id, uid, told) => {
                if told.is_ok() {
                    self.index.note_told(&id.namespace, uid);
                }
                let work = Work::Consumer(id);
                self.settle_failure(&work, told);
                self.queue.done(&work, Instant::now());
            }
            Done::Freed(id, freed) => {
                let work = Work::Consumer(id);
                // Until its controller is through: another such pod may come, and one that has just changed is still there.
                if freed.is_ok() {
                    let delay = self.back_off(&work);
                    self.queue.push(work.clone(), Instant::now(), delay);
                } else {
                    self.settle_failure(&work, freed);
                }
                self.queue.done(&work, Instant::now());
            }
            Done::Policy(id, told) => {
                let work = Work::Policy(id);
                self.settle_failure(&work, told);
                self.queue.done(&work, Instant::now());
            }
            Done::Unreadable(id, told) => {
                let work = Work::Unreadable(id);
                self.settle_failure(&work, told);
                self.queue.done(&work, Instant::now());
            }
            Done::Retention(id, written) => {
                let work = Work::Retention(id.clone());
                // Kubernetes' garbage collector writes owners, too, and its write must not put ours off.
                if written.as_ref().is_err_and(ExecuteError::is_conflict) {
                    self.index.note_lacking_holder(&id, true);
                }
                let written = self.settle_failure(&work, written);
                self.queue.done(&work, Instant::now());
                self.take_in(written.into_iter().flatten());
                if self.index.has_drafts(&id) {
                    self.queue.settle(work, Instant::now(), DRAFT_LIFE.unsigned_abs());
                }
            }
        }
    }

    fn take_in_config(&mut self, id: &ConfigId, outcome: ConfigOutcome) {
        if let Some((at, digest)) = outcome.digest {
            let work = self.index.remember_digest(id, at, digest);
            self.take_up(work, GATHER);
        }
        if let Some(version) = &outcome.created {
            self.metrics.version_created();
            tracing::info!(namespace = id.namespace, config = %id.config, version = %version.name, object = version.object, by = version.changed_by, "a new version");
        }
        self.take_in(outcome.written);
        if let Some(entry) = &outcome.published {
            self.index.note_published(id, entry);
        }
        let work = self.index.note_checked(id, outcome.checked);
        self.take_up(work, GATHER);
        let now = Instant::now();
        if let Some(wait) = outcome.wake {
            self.queue.push(Work::Config(id.clone()), now, wait);
        }
        let wants_release = outcome.release.is_some();
        let is_news = self.index.note_candidate(id, outcome.release);
        if wants_release {
            let (work, settle) = (Work::Start(id.clone()), self.index.settle(id));
            // A new change is worth waiting for more; being asked again about the same one is not.
            if is_news { self.queue.settle(work, now, settle) } else { self.queue.push(work, now, settle) }
        }
    }

    /// What the API server will not have now is tried again, later each time; our own report of that is no reason to hurry.
    fn take_in_refused(&mut self, id: &ConfigId, outcome: ConfigOutcome) {
        let work = Work::Config(id.clone());
        self.metrics.failed();
        self.queue.done(&work, Instant::now());
        let has_changed = self.queue.is_waiting(&work);
        self.take_in_config(id, outcome);
        if !has_changed {
            let delay = self.back_off(&work);
            self.queue.settle(work, Instant::now(), delay);
        }
    }

    fn take_in_release(&mut self, id: &ReleaseId, outcome: ReleaseOutcome) {
        let work = Work::Release(id.clone());
        self.metrics.pinned(outcome.pinned);
        if let Some(phase) = outcome.ended {
            self.metrics.release_ended(phase);
        }
        // Until the table says what is current now, a change that comes next is compared with what was.
        self.take_in_within(outcome.written, if outcome.ended.is_some() { Duration::ZERO } else { GATHER });
        let now = Instant::now();
        if outcome.conflicts > 0 {
            // Our watch may be behind for long, and each try would fail as this one did.
            let delay = self.back_off(&work);
            self.queue.push(work.clone(), now, delay);
        } else {
            self.failures.remove(&work);
        }
        if !outcome.refused.is_empty() {
            self.metrics.failed();
        }
        let retry = outcome.refused.values().map(|refusal| refusal.again_at).min();
        self.index.note_refused(id, outcome.refused);
        if let Some(wake) = outcome.wake.into_iter().chain(retry).min() {
            let wait = Duration::try_from(wake.duration_since(self.environment.clock.now())).unwrap_or_default();
            self.queue.push(work, now, wait);
        }
    }

    fn take_in(&mut self, written: impl IntoIterator<Item = Written>) {
        self.take_in_within(written, GATHER);
    }

    fn take_in_within(&mut self, written: impl IntoIterator<Item = Written>, delay: Duration) {
        for written in written {
            let work = match written.fact {
                Some(fact) => self.index.apply(written.watched, &written.key, fact),
                None => self.index.remove(written.watched, &written.key),
            };
            self.take_up(work, delay);
        }
    }

    /// How long to wait after one more failure.
    fn back_off(&mut self, work: &Work) -> Duration {
        let failures = self.failures.entry(work.clone()).or_insert(0);
        let delay = (FIRST_RETRY * 2_u32.saturating_pow(*failures)).min(LAST_RETRY);
        *failures = (*failures + 1).min(16);
        delay
    }

    /// The result, or nothing: what failed is tried again, later each time.
    fn settle_failure<T>(&mut self, work: &Work, result: Result<T, ExecuteError>) -> Option<T> {
        let error = match result {
            Ok(value) => {
                self.failures.remove(work);
                return Some(value);
            }
            Err(error) => error,
        };
        let delay = self.back_off(work);
        if !error.is_conflict() {
            self.metrics.failed();
            tracing::warn!(
                error = format!("{error:#}"),
                retry_ms = delay.as_millis(),
                "work failed and is tried again"
            );
        }
        self.queue.push(work.clone(), Instant::now(), delay);
        None
    }
}
