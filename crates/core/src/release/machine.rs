//! One step of a release.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;

use super::{
    Action, Block, ConsumerId, Counts, Gate, Member, Move, Observed, Phase, Progress, Record, Release, Stage, State,
    Step,
};
use crate::gate;
use crate::health::{self, Before, Goal, Health, Unit, Verdict};
use crate::policy::JoinedFailure;

/// What to do about a release now.
pub fn step(observed: &Observed<'_>, now: Timestamp) -> Step {
    let machine = Machine {
        observed,
        now,
        members: observed.members.iter().map(|member| (&member.consumer, member)).collect(),
        progress: observed.release.progress.clone(),
        actions: Vec::new(),
        wake: None,
        is_unsettled: false,
        awaited: None,
    };
    match observed.release.progress.phase {
        phase if phase.has_ended() => machine.finish(),
        Phase::RollingBack => machine.put_back(),
        Phase::Pending => machine.wait_to_start(),
        Phase::Paused if observed.release.progress.started_at.is_none() => machine.wait_to_start(),
        _ => machine.go_on(),
    }
}

struct Machine<'a> {
    observed: &'a Observed<'a>,
    now: Timestamp,
    members: HashMap<&'a ConsumerId, &'a Member>,
    progress: Progress,
    actions: Vec<Action>,
    wake: Option<Timestamp>,
    /// Whether a consumer that was ready is not so at the moment.
    is_unsettled: bool,
    /// What a consumer waits for, in a sentence.
    awaited: Option<String>,
}

/// Why a release cannot go on.
struct Failure {
    reason: String,
    /// The consumer that changed its code in the same step, if it is one of those.
    joined: Option<ConsumerId>,
}

impl<'a> Machine<'a> {
    fn finish(self) -> Step {
        Step { progress: self.progress, actions: self.actions, wake: self.wake }
    }

    fn release(&self) -> &'a Release {
        self.observed.release
    }

    fn enter(&mut self, phase: Phase, reason: impl Into<String>) {
        if self.progress.phase != phase {
            self.progress.phase_since = Some(self.now);
        }
        self.progress.phase = phase;
        self.progress.reason = reason.into();
        if phase.has_ended() {
            self.progress.ended_at = Some(self.now);
        }
    }

    fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |other| other.min(at)));
    }

    // --- before the start ---

    fn wait_to_start(mut self) -> Step {
        if let Some(newer) = self.observed.superseded_by {
            self.enter(Phase::Superseded, format!("release {newer} took its place before it started"));
        } else if self.observed.has_succeeded {
            // It started and ended in one step, and could not record that.
            self.take_in_members();
            self.look_who_is_judged();
            let reason = self.who_runs_it();
            self.enter(Phase::Succeeded, reason);
        } else if self.release().wishes.abort {
            let reason = "aborted by a person before it started".to_owned();
            self.actions.push(Action::Hold { reason: reason.clone() });
            self.enter(Phase::Aborted, reason);
        } else if let Some(reason) = self.observed.held {
            // Held before it started: its content is invalid, or it is too large.
            self.enter(Phase::Rejected, reason);
        } else if self.release().wishes.paused {
            self.enter(Phase::Paused, PAUSED);
        } else if let Some(block) = self.observed.blocked.clone() {
            self.wait_for(&block);
        } else if let Some(reason) = self.is_stopped_by_somebody() {
            self.enter(Phase::Pending, reason);
        } else if self.takes_nothing_back() {
            self.enter(Phase::Superseded, "the change was taken back before it started");
        } else if let Some(reason) = self.is_too_large() {
            self.actions.push(Action::Hold { reason: reason.clone() });
            self.enter(Phase::Rejected, reason);
        } else if self.observed.can_judge {
            self.start();
            return self.go_on();
        } else {
            self.enter(Phase::Pending, "the pods of its consumers are being read");
        }
        self.finish()
    }

    /// What a person has stopped is not started again by a change of config.
    fn is_stopped_by_somebody(&self) -> Option<String> {
        let mut moved = self.observed.members.iter().filter(|member| !member.concerned.is_empty());
        moved.find_map(|member| Some(format!("waits for {}: {}", member.consumer, member.rollout.stopped.as_ref()?)))
    }

    fn is_too_large(&self) -> Option<String> {
        let consumers = self.observed.members.iter().filter(|member| !member.concerned.is_empty()).count();
        (consumers > MAX_CONSUMERS).then(|| {
            format!(
                "it would move {consumers} workloads, and {MAX_CONSUMERS} are the most of which one release can keep a record: divide the config"
            )
        })
    }

    fn takes_nothing_back(&self) -> bool {
        self.observed.inherited.is_empty() && self.release().moves.iter().all(|step| step.from == step.to)
    }

    fn wait_for(&mut self, block: &Block) {
        let reason = match block {
            Block::Release(other) => format!("waits for release {other}, which moves one of its consumers"),
            Block::Storm { consumer, until } => {
                self.wake_at(*until);
                format!("{consumer} was rolled too often of late: waits until {until:.0}")
            }
            Block::Budget { until } => {
                self.wake_at(*until);
                format!("too many workloads of the cluster were rolled in the last minute: waits until {until:.0}")
            }
            Block::Unreadable(what) => what.clone(),
        };
        self.enter(Phase::Pending, reason);
    }

    fn start(&mut self) {
        self.progress.started_at = Some(self.now);
        self.progress.stage = Stage::FirstBatch;
        self.take_in_members();
        self.progress.wave = self.progress.consumers.iter().map(|record| record.wave).min().unwrap_or(0);
        self.enter(Phase::Progressing, String::new());
    }

    // --- records ---

    /// Consumers may come while a release is under way; new ones get what the table offers.
    fn take_in_members(&mut self) {
        let known: HashSet<&ConsumerId> = self.progress.consumers.iter().map(|record| &record.consumer).collect();
        let unknown = self.observed.members.iter().filter(|member| !known.contains(&member.consumer));
        let records: Vec<Record> = unknown.filter_map(|member| self.new_record(member)).collect();
        self.progress.consumers.extend(records);
    }

    fn new_record(&self, member: &Member) -> Option<Record> {
        let inherited = self.observed.inherited.iter().find(|record| record.consumer == member.consumer);
        let is_there = self.runs_it_all(member);
        if inherited.is_none() && member.concerned.is_empty() && !is_there {
            return None;
        }
        let configs = if is_there { &member.references } else { &member.concerned };
        let mut configs: Vec<_> = configs.iter().cloned().collect();
        let fresh_before = || Before { broken: health::broken(&member.units, self.now), moved_at: None };
        let (pins_before, template_before, before, had_joined) = match inherited {
            Some(old) => {
                configs.extend(
                    old.configs.iter().filter(|config| self.release().configs().any(|own| own == *config)).cloned(),
                );
                configs.sort();
                configs.dedup();
                (old.pins_before.clone(), old.template_before.clone(), old.before, old.has_joined)
            }
            // Behind a gate of ours it did not join: a release moved it of which nothing is known any more.
            None if is_there => (self.pins_from(member), member.template.clone(), Before::default(), !member.is_gated),
            // Other code is on its way out: if that fails, nobody can say which of the two is to blame.
            None => (member.pins.clone(), member.template.clone(), fresh_before(), member.rollout.is_midway),
        };
        Some(Record {
            consumer: member.consumer.clone(),
            wave: member.wave,
            configs,
            pins_before,
            template_before,
            before,
            has_joined: had_joined,
            state: State::Waiting,
            batch: None,
            progressed_at: Some(self.now),
            ready_at: None,
            unjudged: None,
            health: Counts::default(),
        })
    }

    /// Whether its template is pinned to all that is released, although nobody was told to pin it: it joined.
    fn runs_it_all(&self, member: &Member) -> bool {
        let is_its = |step: &&Move| step.from != step.to && member.references.contains(&step.config);
        let mut steps = self.release().moves.iter().filter(is_its).peekable();
        steps.peek().is_some()
            && steps.all(|step| member.pins.get(&step.config).is_some_and(|pin| pin.to_string() == step.to))
    }

    fn pins_from(&self, member: &Member) -> crate::pins::Pins {
        let mut pins = member.pins.clone();
        for step in self.release().moves.iter().filter(|step| member.references.contains(&step.config)) {
            pins.put(&step.config, Some(&crate::pins::Pin::Version(step.from.clone())));
        }
        pins
    }

    fn member(&self, consumer: &ConsumerId) -> Option<&'a Member> {
        self.members.get(consumer).copied()
    }

    // --- forward ---

    fn go_on(mut self) -> Step {
        if self.observed.has_succeeded {
            self.look_who_is_judged();
            let reason = self.who_runs_it();
            self.enter(Phase::Succeeded, reason);
            return self.finish();
        }
        let newer = self.observed.superseded_by;
        if let Some(newer) = newer.filter(|_| self.observed.superseded_at.is_none()) {
            self.enter(Phase::Superseded, format!("release {newer} took its place"));
            return self.finish();
        }
        if self.release().wishes.abort {
            self.give_up("aborted by a person".to_owned(), Phase::Aborted);
            return self.finish();
        }
        if let Some(reason) = self.observed.held {
            self.give_up(reason.to_owned(), Phase::RolledBack);
            return self.finish();
        }
        if !self.observed.can_judge {
            return self.finish();
        }
        self.take_in_members();
        self.adjust_gates();
        let failure = self.look_at_consumers().or_else(|| self.relapse());
        if let Some(failure) = failure {
            self.fail(failure);
        } else if self.release().wishes.paused {
            let reason = self.paused();
            self.enter(Phase::Paused, reason);
        } else if let Some(Block::Unreadable(what)) = &self.observed.blocked {
            self.enter(Phase::Paused, format!("{what}; failures still put the old version back"));
        } else if let Some((newer, at)) = newer.zip(self.observed.superseded_at) {
            self.await_successor(newer, at);
        } else {
            self.advance();
        }
        self.finish()
    }

    /// A Rollout has steps of its own, which we do not stop.
    fn paused(&self) -> String {
        let goes_on = |record: &&Record| record.state == State::Rolling && record.consumer.kind == ROLLOUT;
        match self.progress.consumers.iter().find(goes_on) {
            Some(Record { consumer, .. }) => {
                format!(
                    "{PAUSED}. {consumer} goes on with its own steps: `kubectl argo rollouts pause {}` stops it",
                    consumer.name
                )
            }
            None => PAUSED.to_owned(),
        }
    }

    /// Nobody wants it any more, but what was moved must not be left alone either.
    fn await_successor(&mut self, newer: &str, at: Timestamp) {
        let when = if at == Timestamp::MAX { "once that is resumed".to_owned() } else { format!("at {at:.0}") };
        self.progress.reason =
            format!("release {newer} takes its place {when}; failures still put the old version back");
        self.wake_at(at.min(after(self.now, RECHECK)));
    }

    /// Brings every record up to date. The first failure stops it.
    fn look_at_consumers(&mut self) -> Option<Failure> {
        let mut records = std::mem::take(&mut self.progress.consumers);
        let mut failure = None;
        for record in &mut records {
            let found = self.look_at(record);
            failure = failure.or(found);
        }
        self.progress.consumers = records;
        failure
    }

    fn look_at(&mut self, record: &mut Record) -> Option<Failure> {
        let Some(member) = self.member(&record.consumer) else {
            record.state = State::Gone;
            return None;
        };
        let is_pinned = self.release().target(&member.pins, record) == member.pins;
        // Recreated: it starts from nothing, like one that has not been seen before.
        if record.state == State::Gone {
            record.state = State::Waiting;
            record.before.broken = 0;
        }
        match record.state {
            // Who was left alone and has its pins again was only overwritten for a moment, by a manifest that knew nothing of them.
            State::Waiting | State::Pinning | State::LeftAlone if is_pinned => {
                record.has_joined |= member.template != record.template_before;
                self.begin_to_watch(record, member);
            }
            // New code, at any time: its pods are others from here on, and nobody can say which of the two is to blame.
            State::Rolling | State::Ready | State::StillBroken
                if is_pinned && member.template != record.template_before =>
            {
                record.has_joined = true;
                self.begin_to_watch(record, member);
            }
            State::Rolling | State::Ready | State::StillBroken if !is_pinned => record.state = State::LeftAlone,
            _ => {}
        }
        if record.state == State::LeftAlone && member.is_gated {
            self.actions.push(Action::OpenGate { consumer: record.consumer.clone() });
        }
        if record.state == State::Pinning {
            return self.unwritten(record);
        }
        if !is_moved(record) {
            return None;
        }
        if let Some(why) = self.observed.refused.get(&record.consumer) {
            self.awaited = Some(cannot_be_written(record, why));
        }
        self.delete_stuck_pods(member);
        let goal = self.goal(record, member);
        let health = self.judge(record, goal)?;
        self.note(record, &health)
    }

    /// The API server takes none of our writes.
    fn unwritten(&mut self, record: &Record) -> Option<Failure> {
        let why = self.observed.refused.get(&record.consumer)?;
        let due = after(record.progressed_at?, self.observed.policy.progress_deadline);
        if self.now >= due {
            return Some(Failure { reason: format!("{} cannot be written: {why}", record.consumer), joined: None });
        }
        self.wake_at(due);
        self.awaited = Some(cannot_be_written(record, why));
        None
    }

    fn begin_to_watch(&self, record: &mut Record, member: &Member) {
        record.template_before.clone_from(&member.template);
        record.state = State::Rolling;
        (record.progressed_at, record.before.moved_at) = (Some(self.now), Some(self.now));
        (record.ready_at, record.unjudged) = (None, None);
    }

    /// A StatefulSet waits for a broken pod before it replaces it, although the template is another one by now.
    fn delete_stuck_pods(&mut self, member: &Member) {
        let waits = member.consumer.kind == STATEFUL_SET && member.rollout.is_observed && !member.is_gated;
        if waits && self.observed.may_delete_pods {
            let delete = |unit: &Unit| Action::DeletePod {
                consumer: member.consumer.clone(),
                pod: unit.name.clone(),
                uid: unit.uid.clone(),
            };
            self.actions.extend(health::stuck(&member.units).map(delete));
        }
    }

    fn judge(&self, record: &Record, goal: Goal) -> Option<Health> {
        let member = self.member(&record.consumer)?;
        let Observed { policy, .. } = self.observed;
        let mut health = health::judge(&member.rollout, &member.units, record.before, goal, policy, self.now);
        // Behind a closed gate a workload may think that it is done.
        if goal == Goal::All && member.is_gated && health.verdict == Verdict::Healthy {
            health.verdict = Verdict::Rolling;
        }
        Some(health)
    }

    fn goal(&self, record: &Record, member: &Member) -> Goal {
        match self.batch(record, member) {
            Some(size) => Goal::Batch(size),
            None => Goal::All,
        }
    }

    /// How many pods of a consumer go first, if not all do.
    fn batch(&self, record: &Record, member: &Member) -> Option<u32> {
        let canary = self.observed.policy.canary?;
        let is_first = self.progress.stage == Stage::FirstBatch && record.wave == self.progress.wave;
        let size = record.batch.unwrap_or_else(|| canary.of(member.rollout.desired));
        let can_gate = member.can_gate && (!member.is_young || member.is_gated || record.batch.is_some());
        (is_first && can_gate && !record.has_joined && size < member.rollout.desired).then_some(size)
    }

    fn note(&mut self, record: &mut Record, health: &Health) -> Option<Failure> {
        let came_closer = health.ready > record.health.ready || health.updated > record.health.updated;
        record.health = Counts::from(health);
        if came_closer || matches!(health.verdict, Verdict::Waiting(_)) {
            record.progressed_at = Some(self.now);
        }
        let why = match &health.verdict {
            Verdict::Healthy => {
                record.ready_at = record.ready_at.filter(|_| record.state == State::Ready).or(Some(self.now));
                record.state = State::Ready;
                return None;
            }
            Verdict::StillBroken(why) => {
                record.unjudged = Some(format!("it was broken before, and is: {why}"));
                record.state = State::StillBroken;
                return None;
            }
            Verdict::Failed(why) => why.clone(),
            Verdict::Waiting(what) => {
                // Whoever waits with new pods that are ready is watched as in a bake.
                if health.ready > 0 && health.failing == 0 {
                    record.ready_at = record.ready_at.or(Some(self.now));
                }
                record.state = State::Rolling;
                self.awaited.get_or_insert_with(|| format!("{} waits for {what}", record.consumer));
                return None;
            }
            // What was ready and is lost is the bake's to judge.
            Verdict::Rolling if self.progress.phase == Phase::Baking && record.state == State::Ready => {
                self.is_unsettled = true;
                return None;
            }
            Verdict::Rolling if record.state == State::StillBroken => return None,
            Verdict::Rolling => {
                // What was ready and is lost begins to come back only now.
                if record.state == State::Ready {
                    record.progressed_at = Some(self.now);
                }
                record.state = State::Rolling;
                self.overdue(record)?
            }
        };
        let joined = record.has_joined.then(|| record.consumer.clone());
        Some(Failure { reason: format!("{}: {why}", record.consumer), joined })
    }

    fn overdue(&mut self, record: &Record) -> Option<String> {
        let deadline = self.observed.policy.progress_deadline;
        let member = self.member(&record.consumer)?;
        // What its own controller waits for, after its pods are ready, is no standstill. Behind our gate it waits for us.
        let patience = if member.is_gated { Duration::ZERO } else { member.rollout.min_ready };
        let due = after(record.progressed_at?, deadline + patience);
        if self.now < due {
            self.wake_at(due);
            return None;
        }
        if let Some(why) = self.observed.refused.get(&record.consumer) {
            return Some(format!("it cannot be written: {why}"));
        }
        let Counts { ready, desired, .. } = record.health;
        let place =
            self.member(&record.consumer)?.units.iter().find_map(|unit| {
                Some(format!(": pod {}: {}", unit.name, unit.homeless.as_ref().filter(|_| unit.is_new)?))
            });
        let place = place.unwrap_or_default();
        Some(format!("no progress for {} s, {ready} of {desired} new pods are ready{place}", deadline.as_secs()))
    }

    /// What was well and is not any more: in the bake, and wherever a consumer waits for a person.
    fn relapse(&self) -> Option<Failure> {
        let policy = self.observed.policy;
        let since = self.progress.phase_since.filter(|_| self.progress.phase == Phase::Baking);
        let is_overdue = since.is_some_and(|since| self.now >= after(since, policy.bake + policy.progress_deadline));
        if self.is_unsettled && is_overdue && !self.only_lacks_room() {
            let reason = "not all pods that were ready became ready again".to_owned();
            return Some(Failure { reason, joined: None });
        }
        self.progress.consumers.iter().find_map(|record| {
            let ready_at = record.ready_at.filter(|_| matches!(record.state, State::Rolling | State::Ready))?;
            let units = &self.member(&record.consumer)?.units;
            let why = health::relapse(units, record.before, ready_at, policy, self.now)?;
            let joined = record.has_joined.then(|| record.consumer.clone());
            Some(Failure { reason: format!("{}: {why}", record.consumer), joined })
        })
    }

    /// Whether all that is not ready has no place to run.
    fn only_lacks_room(&self) -> bool {
        let ready = self.progress.consumers.iter().filter(|record| record.state == State::Ready);
        ready.filter_map(|record| self.member(&record.consumer)).all(|member| {
            member.units.iter().all(|unit| unit.is_ready || !unit.is_new) || health::is_only_homeless(&member.units)
        })
    }

    fn advance(&mut self) {
        self.open_gates();
        let due: Vec<usize> = self.due_for_pins();
        for index in due {
            self.pin(index);
        }
        let wave = self.progress.wave;
        let is_under_way = |record: &&Record| {
            let is_due = record.wave <= wave || record.has_joined;
            is_due && matches!(record.state, State::Waiting | State::Pinning | State::Rolling)
        };
        let open: Vec<&Record> = self.progress.consumers.iter().filter(is_under_way).collect();
        if open.is_empty() {
            self.bake();
        } else {
            let reason = self.describe(&open);
            self.enter(Phase::Progressing, reason);
            // A pod that a probe must find ready is seen by the watch; this is for clocks alone.
            self.wake_at(after(self.now, RECHECK));
        }
    }

    fn describe(&self, open: &[&Record]) -> String {
        if let Some(awaited) = &self.awaited {
            return awaited.clone();
        }
        let total = self.progress.consumers.len();
        let done = total - self.progress.consumers.iter().filter(|record| is_open(record)).count();
        let batch = self.progress.stage == Stage::FirstBatch && self.observed.policy.canary.is_some();
        let what = if batch { "the first batch of its pods" } else { "its pods" };
        format!("{done} of {total} consumers are done; {} rolls {what}", open[0].consumer)
    }

    fn due_for_pins(&self) -> Vec<usize> {
        let all = self.progress.consumers.iter().enumerate();
        let under_way = all.clone().filter(|(_, record)| matches!(record.state, State::Rolling)).count();
        let again = all.clone().filter(|(_, record)| record.state == State::Pinning);
        let fresh = all.filter(|(_, record)| record.state == State::Waiting && record.wave <= self.progress.wave);
        let room = self.observed.policy.max_parallel.map_or(usize::MAX, |max| max.max(1).saturating_sub(under_way));
        again.chain(fresh).map(|(index, _)| index).take(room).collect()
    }

    fn pin(&mut self, index: usize) {
        let record = &self.progress.consumers[index];
        let Some(member) = self.member(&record.consumer) else { return };
        let pins = self.release().target(&member.pins, record);
        let batch = self.batch(record, member);
        let gate = batch.map_or(Gate::Open, |size| self.first_batch(member, size));
        self.actions.push(Action::Pin { consumer: record.consumer.clone(), pins, gate });
        let record = &mut self.progress.consumers[index];
        if record.state == State::Waiting {
            record.progressed_at = Some(self.now);
        }
        (record.state, record.batch) = (State::Pinning, batch);
    }

    fn first_batch(&self, member: &Member, size: u32) -> Gate {
        Gate::FirstBatch { size, hold: gate::hold(self.observed.policy.bake) + self.ready_for(member) }
    }

    /// How long the first of its new pods has been ready.
    fn ready_for(&self, member: &Member) -> Duration {
        let ready = member.units.iter().filter(|unit| unit.is_new && unit.is_ready);
        let first = ready.filter_map(|unit| unit.since).min();
        first.and_then(|since| Duration::try_from(self.now.duration_since(since)).ok()).unwrap_or_default()
    }

    /// Somebody scaled it: as many pods as before go first, and no more. Somebody paused it: its gate does not fall meanwhile.
    fn adjust_gates(&mut self) {
        let mut falls = None;
        let adjust = self.progress.consumers.iter().filter_map(|record| {
            let member = self.member(&record.consumer).filter(|member| is_moved(record) && member.is_gated)?;
            let size = self.batch(record, member)?;
            let is_off = member.partition.is_some_and(|partition| !partition.fits(member.rollout.desired, size));
            let rest = member.holds_for.map(|hold| hold.saturating_sub(self.ready_for(member) + gate::RENEW_BEFORE));
            falls = falls.into_iter().chain(rest).min();
            let (consumer, pins) = (record.consumer.clone(), member.pins.clone());
            let gate = self.first_batch(member, size);
            (is_off || rest == Some(Duration::ZERO)).then_some(Action::Pin { consumer, pins, gate })
        });
        let adjust: Vec<Action> = adjust.collect();
        self.actions.extend(adjust);
        if let Some(rest) = falls {
            self.wake_at(after(self.now, rest.max(RECHECK)));
        }
    }

    fn open_gates(&mut self) {
        let gated = self.progress.consumers.iter().filter_map(|record| {
            let member = self.member(&record.consumer)?;
            (is_moved(record) && member.is_gated && self.batch(record, member).is_none())
                .then(|| record.consumer.clone())
        });
        let open: Vec<Action> = gated.map(|consumer| Action::OpenGate { consumer }).collect();
        self.actions.extend(open);
    }

    fn bake(&mut self) {
        if self.progress.phase != Phase::Baking {
            self.enter(Phase::Baking, String::new());
        }
        let bake = if self.release().wishes.promote { Duration::ZERO } else { self.observed.policy.bake };
        let until = after(self.progress.phase_since.unwrap_or(self.now), bake);
        if self.now < until {
            self.wake_at(until);
            self.progress.reason = format!("all new pods are ready and are watched until {until:.0}");
            return;
        }
        if self.is_unsettled && !self.has_waited_for_room(until) {
            self.wake_at(after(self.now, RECHECK));
            "not all pods are ready any more: waits for them, or for the verdict".clone_into(&mut self.progress.reason);
            return;
        }
        if self.progress.stage == Stage::FirstBatch && self.observed.policy.canary.is_some() {
            self.progress.stage = Stage::All;
            // Its pods had to wait for us: the time until here was no standstill.
            self.progress.consumers.iter_mut().for_each(|record| record.progressed_at = Some(self.now));
            self.enter(Phase::Progressing, "the first batch is well: the rest follows");
        } else if let Some(next) = self.next_wave() {
            (self.progress.wave, self.progress.stage) = (next, Stage::FirstBatch);
            self.enter(Phase::Progressing, format!("wave {next} follows"));
        } else {
            self.conclude();
        }
    }

    /// Whether what is not ready lacks nothing but room, and had time to find some.
    fn has_waited_for_room(&self, since: Timestamp) -> bool {
        self.only_lacks_room() && self.now >= after(since, self.observed.policy.progress_deadline)
    }

    /// How it ends, computed from what is.
    fn conclude(&mut self) {
        self.look_who_is_judged();
        let left = |record: &Record| matches!(record.state, State::LeftAlone | State::Gone);
        let records = &self.progress.consumers;
        if !records.is_empty() && records.iter().all(left) {
            let why = listed(&self.not_judged());
            let again: Vec<String> =
                self.release().configs().map(|config| format!("`lockstep retry {config}`")).collect();
            let reason = format!("nobody runs it ({why}). It is held: {} tries it again", again.join(" or "));
            self.actions = vec![Action::Hold { reason: reason.clone() }];
            return self.enter(Phase::Failed, reason);
        }
        let reason = self.who_runs_it();
        self.actions.push(Action::Succeed);
        self.enter(Phase::Succeeded, reason);
    }

    fn look_who_is_judged(&mut self) {
        let mut records = std::mem::take(&mut self.progress.consumers);
        for record in &mut records {
            record.unjudged = self.unjudged(record);
        }
        self.progress.consumers = records;
    }

    fn not_judged(&self) -> Vec<String> {
        let told = |record: &Record| Some(format!("{}: {}", record.consumer, record.unjudged.as_ref()?));
        self.progress.consumers.iter().filter_map(told).collect()
    }

    fn who_runs_it(&self) -> String {
        let (all, unjudged) = (self.progress.consumers.len(), self.not_judged());
        match unjudged.len() {
            0 if all == 0 => "it is current; nobody uses it yet".to_owned(),
            0 => SUCCEEDED.to_owned(),
            some => {
                let well = all - some;
                format!(
                    "it is current; {well} of {all} consumers run it and are well. Not judged: {}",
                    listed(&unjudged)
                )
            }
        }
    }

    /// Why nobody can say how a consumer does under the new version.
    fn unjudged(&self, record: &Record) -> Option<String> {
        match record.state {
            State::Gone => return Some("it is gone".to_owned()),
            State::LeftAlone => return Some("somebody gave it other versions during the release".to_owned()),
            State::StillBroken => return record.unjudged.clone(),
            _ => {}
        }
        let member = self.member(&record.consumer)?;
        let runs = member.units.iter().any(|unit| unit.is_new && unit.is_ready);
        let homeless = member.units.iter().filter(|unit| unit.is_new).find_map(|unit| unit.homeless.as_ref());
        match (&member.rollout.idle, homeless) {
            (Some(idle), _) if !runs => Some(idle.clone()),
            (_, Some(why)) => Some(format!("a pod is not ready: {why}")),
            _ => None,
        }
    }

    fn next_wave(&self) -> Option<i32> {
        self.progress.consumers.iter().map(|record| record.wave).filter(|wave| *wave > self.progress.wave).min()
    }

    // --- back ---

    fn fail(&mut self, failure: Failure) {
        let Failure { reason, joined } = failure;
        let policy = self.observed.policy;
        if let Some(consumer) = joined.filter(|_| policy.joining.on_failure == JoinedFailure::Hold) {
            let (name, kind) = (&consumer.name, consumer.kind.to_lowercase());
            let (undo, history) = match consumer.kind.as_str() {
                ROLLOUT => {
                    (format!("kubectl argo rollouts undo {name}"), format!("kubectl argo rollouts get rollout {name}"))
                }
                _ => (format!("kubectl rollout undo {kind}/{name}"), format!("kubectl rollout history {kind}/{name}")),
            };
            let reason = format!(
                "{reason}. It changed its code, too, so it is left to you: `{undo}` goes back one step, `{history}` shows them"
            );
            self.give_up(reason, Phase::Failed);
        } else if policy.automatic_rollback {
            self.give_up(reason, Phase::RolledBack);
        } else {
            self.actions.push(Action::Hold { reason: reason.clone() });
            self.enter(Phase::Failed, format!("{reason}. The policy leaves the rollback to a person"));
        }
    }

    /// From here on there is only the way back.
    fn give_up(&mut self, reason: String, ends_as: Phase) {
        self.actions = vec![Action::Hold { reason: reason.clone() }];
        self.progress.ends_as = Some(ends_as);
        self.enter(Phase::RollingBack, reason);
    }

    fn put_back(mut self) -> Step {
        let mut records = std::mem::take(&mut self.progress.consumers);
        for record in &mut records {
            self.put_back_one(record);
        }
        let left: Vec<ConsumerId> = records
            .iter()
            .filter(|record| record.state == State::Restoring)
            .map(|record| record.consumer.clone())
            .collect();
        self.progress.consumers = records;
        let deadline = after(self.progress.phase_since.unwrap_or(self.now), self.observed.policy.progress_deadline);
        let reason = self.progress.reason.clone();
        if left.is_empty() {
            let end = self.progress.ends_as.unwrap_or(Phase::RolledBack);
            self.enter(end, reason);
        } else if self.now >= deadline {
            let not_back = left.iter().map(|consumer| self.not_back(consumer)).collect::<Vec<_>>();
            self.enter(Phase::Failed, format!("{reason}. Not all is back: {}", listed(&not_back)));
        } else {
            self.wake_at(deadline.min(after(self.now, RECHECK)));
        }
        self.finish()
    }

    /// What keeps a consumer from being as it was, and what helps.
    fn not_back(&self, consumer: &ConsumerId) -> String {
        let Some(member) = self.member(consumer) else { return format!("{consumer} is gone") };
        if let Some(why) = self.observed.refused.get(consumer) {
            return format!("{consumer} cannot be written: {why}");
        }
        if let Some(waits_for) = &member.rollout.waits_for {
            return format!("{consumer} waits for {waits_for}");
        }
        let bad =
            member.units.iter().find(|unit| !unit.is_new).or_else(|| member.units.iter().find(|unit| !unit.is_ready));
        match bad {
            Some(unit) if !unit.is_new => {
                format!("pod {0} of {consumer} still runs the failed version: `kubectl delete pod {0}`", unit.name)
            }
            Some(unit) => format!("pod {} of {consumer} is not ready with the old version either", unit.name),
            None => format!("{consumer} has not got its old pods back"),
        }
    }

    fn put_back_one(&mut self, record: &mut Record) {
        let Some(member) = self.member(&record.consumer) else {
            record.state = State::Gone;
            return;
        };
        let is_theirs = record.has_joined && self.observed.policy.joining.on_failure == JoinedFailure::Hold;
        let target = self.release().target(&member.pins, record);
        match record.state {
            // It was never moved: how it does is its own matter.
            State::Waiting if target != member.pins => {
                record.state = State::Restored;
                return;
            }
            State::LeftAlone if target != member.pins => return,
            State::Gone | State::Restored => return,
            _ if is_theirs => return,
            _ => {}
        }
        let restored = Release::restored(&member.pins, record);
        if target == member.pins && restored != member.pins {
            record.state = State::Restoring;
            let consumer = record.consumer.clone();
            self.actions.push(Action::Pin { consumer, pins: restored, gate: Gate::Open });
            return;
        }
        if member.is_gated {
            self.actions.push(Action::OpenGate { consumer: record.consumer.clone() });
        }
        self.delete_stuck_pods(member);
        if let Some(health) = self.judge(record, Goal::All) {
            // Whoever waits for a person with nothing but the old version left is as it was: its code is the person's.
            let has_only_old = || health.failing == 0 && member.units.iter().all(|unit| unit.is_new);
            let is_back = match &health.verdict {
                Verdict::Healthy | Verdict::StillBroken(_) => true,
                Verdict::Waiting(_) => has_only_old(),
                Verdict::Rolling | Verdict::Failed(_) => false,
            };
            record.health = Counts::from(&health);
            record.state = if is_back { State::Restored } else { State::Restoring };
        }
    }
}

fn cannot_be_written(record: &Record, why: &str) -> String {
    format!("{} cannot be written, and is tried again: {why}", record.consumer)
}

/// `a; b; and 3 more`: a sentence stays one.
fn listed(items: &[String]) -> String {
    let shown = items.iter().take(LISTED).cloned().collect::<Vec<_>>().join("; ");
    if items.len() > LISTED { format!("{shown}; and {} more", items.len() - LISTED) } else { shown }
}

/// Whether it was given the new versions and is looked after.
fn is_moved(record: &Record) -> bool {
    matches!(record.state, State::Rolling | State::Ready | State::StillBroken)
}

const SUCCEEDED: &str = "every consumer runs it and is well";
const PAUSED: &str = "paused by a person; failures still put the old version back";
/// A record has some 300 bytes, up to 600 with long names, and the API server stores 1.5 MiB at most.
const MAX_CONSUMERS: usize = 2500;
/// How many consumers a sentence names.
const LISTED: usize = 5;
const STATEFUL_SET: &str = "StatefulSet";
const ROLLOUT: &str = "Rollout";
/// How soon to look again at what has no event of its own.
const RECHECK: Duration = Duration::from_secs(5);

fn is_open(record: &Record) -> bool {
    matches!(record.state, State::Waiting | State::Pinning | State::Rolling)
}

fn after(at: Timestamp, wait: Duration) -> Timestamp {
    crate::storm::later(at, wait)
}
