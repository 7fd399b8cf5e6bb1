//! One step of a release.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{
    Action, Block, ConsumerId, Counts, Gate, Member, Move, Observed, Phase, Progress, Record, Release, Stage, State,
    Step,
};
use crate::health::{self, Goal, Health, Verdict};
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
        let fresh_before = || health::before(&member.rollout, &member.pods, self.observed.policy);
        let (pins_before, template_before, health_before, had_joined) = match inherited {
            Some(old) => {
                configs.extend(
                    old.configs.iter().filter(|config| self.release().configs().any(|own| own == *config)).cloned(),
                );
                configs.sort();
                configs.dedup();
                (old.pins_before.clone(), old.template_before.clone(), old.health_before, old.has_joined)
            }
            None if is_there => (self.pins_from(member), member.template.clone(), health::Before::default(), true),
            None => (member.pins.clone(), member.template.clone(), fresh_before(), false),
        };
        Some(Record {
            consumer: member.consumer.clone(),
            wave: member.wave,
            configs,
            pins_before,
            template_before,
            health_before,
            has_joined: had_joined,
            state: State::Waiting,
            progressed_at: Some(self.now),
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
            self.enter(Phase::Succeeded, SUCCEEDED);
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
        let failure = self.look_at_consumers().or_else(|| self.relapse());
        if let Some(failure) = failure {
            self.fail(failure);
        } else if self.release().wishes.paused {
            self.enter(Phase::Paused, PAUSED);
        } else if let Some((newer, at)) = newer.zip(self.observed.superseded_at) {
            self.await_successor(newer, at);
        } else {
            self.advance();
        }
        self.finish()
    }

    /// Nobody wants it any more, but what was moved must not be left alone either.
    fn await_successor(&mut self, newer: &str, at: Timestamp) {
        self.progress.reason =
            format!("release {newer} takes its place at {at:.0}; failures still put the old version back");
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
        match record.state {
            State::Waiting | State::Pinning if is_pinned => {
                record.has_joined |= member.template != record.template_before;
                record.state = State::Rolling;
                record.progressed_at = Some(self.now);
            }
            State::Rolling | State::Ready if !is_pinned => record.state = State::LeftAlone,
            _ => {}
        }
        if record.state == State::LeftAlone && member.is_gated {
            self.actions.push(Action::OpenGate { consumer: record.consumer.clone() });
        }
        if !matches!(record.state, State::Rolling | State::Ready) {
            return None;
        }
        let goal = self.goal(record, self.member(&record.consumer)?);
        let health = self.judge(record, goal)?;
        self.note(record, &health)
    }

    fn judge(&self, record: &Record, goal: Goal) -> Option<Health> {
        let member = self.member(&record.consumer)?;
        let mut health = health::judge(&member.rollout, &member.pods, record.health_before, goal, self.observed.policy);
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
        let size = canary.of(member.rollout.desired);
        (is_first && member.can_gate && !record.has_joined && size < member.rollout.desired).then_some(size)
    }

    fn note(&mut self, record: &mut Record, health: &Health) -> Option<Failure> {
        let baked = record.health.restarts;
        let came_closer = health.ready > record.health.ready || health.updated > record.health.updated;
        record.health = Counts::from(health);
        if self.progress.phase == Phase::Baking {
            record.health.restarts = baked;
        }
        if came_closer || matches!(health.verdict, Verdict::Waiting(_)) {
            record.progressed_at = Some(self.now);
        }
        let why = match &health.verdict {
            Verdict::Healthy => {
                record.state = State::Ready;
                return None;
            }
            Verdict::Failed(why) => why.clone(),
            Verdict::Waiting(what) => {
                record.state = State::Rolling;
                self.awaited.get_or_insert_with(|| format!("{} waits for {what}", record.consumer));
                return None;
            }
            // What is lost during the bake is the bake's to judge.
            Verdict::Rolling if self.progress.phase == Phase::Baking => {
                self.is_unsettled = true;
                return None;
            }
            Verdict::Rolling => {
                record.state = State::Rolling;
                self.overdue(record)?
            }
        };
        let joined = record.has_joined.then(|| record.consumer.clone());
        Some(Failure { reason: format!("{}: {why}", record.consumer), joined })
    }

    fn overdue(&mut self, record: &Record) -> Option<String> {
        let deadline = self.observed.policy.progress_deadline;
        let due = after(record.progressed_at?, deadline);
        if self.now < due {
            self.wake_at(due);
            return None;
        }
        let Counts { ready, desired, .. } = record.health;
        Some(format!("no progress for {} s, {ready} of {desired} new pods are ready", deadline.as_secs()))
    }

    fn relapse(&self) -> Option<Failure> {
        let since = self.progress.phase_since.filter(|_| self.progress.phase == Phase::Baking)?;
        let policy = self.observed.policy;
        if self.is_unsettled && self.now >= after(since, policy.bake + policy.progress_deadline) {
            let reason = "not all pods that were ready became ready again".to_owned();
            return Some(Failure { reason, joined: None });
        }
        self.progress.consumers.iter().find_map(|record| {
            if !matches!(record.state, State::Rolling | State::Ready) {
                return None;
            }
            let why = health::relapse(&self.member(&record.consumer)?.pods, record.health.restarts, since, self.now)?;
            let joined = record.has_joined.then(|| record.consumer.clone());
            Some(Failure { reason: format!("{}: {why}", record.consumer), joined })
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
        let gate = self.batch(record, member).map_or(Gate::Open, Gate::FirstBatch);
        self.actions.push(Action::Pin { consumer: record.consumer.clone(), pins, gate });
        self.progress.consumers[index].state = State::Pinning;
    }

    fn open_gates(&mut self) {
        let gated = self.progress.consumers.iter().filter_map(|record| {
            let member = self.member(&record.consumer)?;
            let pinned = matches!(record.state, State::Rolling | State::Ready);
            (pinned && member.is_gated && self.batch(record, member).is_none()).then(|| record.consumer.clone())
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
        if self.is_unsettled {
            self.wake_at(after(self.now, RECHECK));
            "not all pods are ready any more: waits for them, or for the verdict".clone_into(&mut self.progress.reason);
            return;
        }
        if self.progress.stage == Stage::FirstBatch && self.observed.policy.canary.is_some() {
            self.progress.stage = Stage::All;
            self.enter(Phase::Progressing, "the first batch is well: the rest follows");
        } else if let Some(next) = self.next_wave() {
            (self.progress.wave, self.progress.stage) = (next, Stage::FirstBatch);
            self.enter(Phase::Progressing, format!("wave {next} follows"));
        } else {
            self.actions.push(Action::Succeed);
            self.enter(Phase::Succeeded, SUCCEEDED);
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
            let undo = format!("kubectl rollout undo {}/{}", consumer.kind.to_lowercase(), consumer.name);
            let reason = format!(
                "{reason}. It changed its code in the same step, so it is left to you: `{undo}` restores the old pair"
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
        let is_back = !records.iter().any(|record| record.state == State::Restoring);
        self.progress.consumers = records;
        let deadline = after(self.progress.phase_since.unwrap_or(self.now), self.observed.policy.progress_deadline);
        let pins_are_back = !self.actions.iter().any(|action| matches!(action, Action::Pin { .. }));
        if is_back || (pins_are_back && self.now >= deadline) {
            let end = self.progress.ends_as.unwrap_or(Phase::RolledBack);
            let reason = self.progress.reason.clone();
            self.enter(end, reason);
        } else {
            self.wake_at(deadline.max(after(self.now, RECHECK)));
        }
        self.finish()
    }

    fn put_back_one(&mut self, record: &mut Record) {
        let Some(member) = self.member(&record.consumer) else {
            record.state = State::Gone;
            return;
        };
        let is_theirs = record.has_joined && self.observed.policy.joining.on_failure == JoinedFailure::Hold;
        match record.state {
            State::Waiting => record.state = State::Restored,
            State::Gone | State::LeftAlone | State::Restored => return,
            _ if is_theirs => return,
            _ => {}
        }
        let target = self.release().target(&member.pins, record);
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
        if let Some(health) = self.judge(record, Goal::All) {
            let is_well = matches!(health.verdict, Verdict::Healthy);
            record.health = Counts::from(&health);
            record.state = if is_well { State::Restored } else { State::Restoring };
        }
    }
}

const SUCCEEDED: &str = "every consumer runs it and is well";
const PAUSED: &str = "paused by a person; failures still put the old version back";
/// A record has some 300 bytes, up to 600 with long names, and the API server stores 1.5 MiB at most.
const MAX_CONSUMERS: usize = 2500;
/// How soon to look again at what has no event of its own.
const RECHECK: Duration = Duration::from_secs(5);

fn is_open(record: &Record) -> bool {
    matches!(record.state, State::Waiting | State::Pinning | State::Rolling)
}

fn after(at: Timestamp, wait: Duration) -> Timestamp {
    SignedDuration::try_from(wait).ok().and_then(|wait| at.checked_add(wait).ok()).unwrap_or(Timestamp::MAX)
}
