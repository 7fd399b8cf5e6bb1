//! The way back: the old pins are written, and a release ends when the pods are back.

use std::time::Duration;

use jiff::Timestamp;

use super::{Failure, LEFT_TO_A_PERSON, Machine, RECHECK, after, cannot_be_written, listed};
use crate::health::{Before, Goal, Unit, Verdict, runs_failed};
use crate::pins::Pins;
use crate::policy::JoinedFailure;
use crate::release::{Action, ConsumerId, Counts, Gate, Move, Phase, Record, Release, State, Step};

/// How long the table may take to say that nobody is offered what failed. Afterwards somebody wants it tried again.
const WITHDRAWAL: Duration = Duration::from_secs(10);
/// What follows the cause in a reason, where something is in the way of going back.
const ON_THE_WAY: &str = ". On the way back, ";

impl Machine<'_> {
    pub(super) fn fail(&mut self, failure: Failure) {
        let Failure { reason, consumer, has_joined } = failure;
        let policy = self.observed.policy;
        if self.release().takes_back() {
            let is_unwritten = consumer.as_ref().is_some_and(|consumer| self.observed.refused.contains_key(consumer));
            let stopped = consumer.as_ref().and_then(|consumer| self.member(consumer)?.rollout.stopped.as_deref());
            let told = match stopped {
                Some(stopped) => format!("; {stopped}"),
                None if is_unwritten => String::new(),
                None => "; it has the old version again and is not well with it: mend it, or change the config".into(),
            };
            return self.enter(Phase::Failed, format!("{reason}{told}"));
        }
        let is_theirs = has_joined && policy.joining.on_failure == JoinedFailure::Hold;
        if let Some(consumer) = consumer.filter(|_| is_theirs) {
            let config = self.release().configs().next().map(ToString::to_string).unwrap_or_default();
            let (name, typed) = (&consumer.name, consumer.kind.to_lowercase());
            let undo = consumer.kind().undo_command(&typed, name);
            let history = consumer.kind().history_command(&typed, name);
            let is_new = |record: &Record| record.consumer == consumer && record.is_newcomer;
            let stopped = self.member(&consumer).and_then(|member| member.rollout.stopped.as_deref());
            let reason = if self.progress.consumers.iter().any(is_new) {
                format!(
                    "{reason}. It is new, so it is left to you: mend it, or `lockstep abort {config}` puts the old config back"
                )
            } else if let Some(stopped) = stopped {
                // It would start again with the old config, if that were put back.
                format!("{reason}. It changed its code, too, so it is left to you: {stopped}")
            } else {
                format!(
                    "{reason}. It changed its code, too, so it is left to you: `{undo}` goes back one step, `{history}` shows them; \
                     `lockstep abort {config}` puts back the config alone"
                )
            };
            self.give_up(reason, Phase::Failed);
        } else if policy.automatic_rollback {
            self.give_up(reason, Phase::RolledBack);
        } else {
            self.leave_to_a_person(&reason);
        }
    }

    /// Its versions are held because of it, and it could not record that.
    pub(super) fn give_up_again(&mut self, reason: String) {
        if self.is_aborted() {
            self.give_up(reason, Phase::Aborted);
        } else if self.observed.policy.automatic_rollback {
            self.give_up(reason, Phase::RolledBack);
        } else {
            self.leave_to_a_person(&reason);
        }
    }

    fn leave_to_a_person(&mut self, reason: &str) {
        self.actions.push(Action::Hold { reason: reason.to_owned() });
        let config = self.release().configs().next().map(ToString::to_string).unwrap_or_default();
        let told =
            format!("The policy leaves the rollback to a person: `lockstep abort {config}` puts the old version back");
        self.enter(Phase::Failed, format!("{reason}. {told}"));
    }

    /// From here on there is only the way back.
    pub(super) fn give_up(&mut self, reason: String, ends_as: Phase) {
        self.actions = vec![Action::Hold { reason: reason.clone() }];
        self.progress.ends_as = Some(ends_as);
        self.enter(Phase::RollingBack, reason);
    }

    /// It failed and was left to a person, who wants the old version back: for as long as nothing else has happened since.
    pub(super) fn take_back(mut self) -> Step {
        if self.observed.blocked.is_none() && self.observed.can_judge {
            self.progress.watched_until = None;
            self.progress.ended_at = None;
            self.give_up("taken back by a person, after it had failed".to_owned(), Phase::Aborted);
        }
        self.finish()
    }

    /// Whether a person wanted it taken back, what they had stopped was in the way, and is not any more.
    pub(super) fn can_be_taken_back_now(&self) -> bool {
        self.progress.watched_until.is_some() && self.left_stopped().any(|is_stopped| !is_stopped)
    }

    /// Whether what a person had stopped is in the way of their wish to take it back.
    pub(super) fn awaits_a_person(&self) -> bool {
        self.left_stopped().any(|is_stopped| is_stopped)
    }

    /// Whom a person's wish to take it back did not reach, and whether it is stopped still.
    fn left_stopped(&self) -> impl Iterator<Item = bool> {
        let is_wanted = self.is_aborted() && self.progress.ends_as == Some(Phase::Aborted);
        let left = self
            .progress
            .consumers
            .iter()
            .filter(move |record| is_wanted && !is_settled(record) && self.still_has_it(record));
        left.filter_map(|record| Some(self.member(&record.consumer)?.rollout.stopped.is_some()))
    }

    /// Whether it changed its code with the config, and has that still.
    fn still_has_it(&self, record: &Record) -> bool {
        let member = self.member(&record.consumer);
        let pins = member.filter(|_| record.state != State::LeftAlone).map(|member| &member.pins);
        record.has_joined && pins.is_some_and(|pins| self.has_some_of_it(record, pins))
    }

    pub(super) fn put_back(mut self) -> Step {
        self.take_in_latecomers();
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
        let deadline = self.back_until(&left);
        let reason = self.cause().to_owned();
        let withdrawn_at = self.progress.phase_since.map_or(self.now, |since| after(since, WITHDRAWAL));
        let is_over = !self.observed.is_offered || self.now >= withdrawn_at.min(deadline);
        if left.is_empty() && is_over {
            let end = self.progress.ends_as.unwrap_or(Phase::RolledBack);
            self.end_back(end, reason);
        } else if self.now >= deadline {
            // What is left to a person is not written any more.
            self.actions.clear();
            let not_back = left.iter().map(|consumer| self.not_back(consumer)).collect::<Vec<_>>();
            self.enter(Phase::Failed, format!("{reason}. Not all is back: {}", listed(&not_back)));
        } else {
            let in_the_way = left.iter().find_map(|consumer| self.in_the_way(consumer));
            let told = in_the_way.map(|what| format!("{ON_THE_WAY}{what}")).unwrap_or_default();
            self.progress.reason = reason + &told;
            self.wake_at(deadline.min(after(self.now, RECHECK)));
        }
        self.finish()
    }

    /// Why it goes back, without what is in the way of that at the moment.
    fn cause(&self) -> &str {
        let reason = &self.progress.reason;
        reason.split_once(ON_THE_WAY).map_or(reason, |(cause, _)| cause)
    }

    /// Who changed its code with the config is left to a person. If others failed, nobody has been told yet.
    fn end_back(&mut self, end: Phase, reason: String) {
        let theirs: Vec<&Record> = self.progress.consumers.iter().filter(|record| self.still_has_it(record)).collect();
        match theirs.first() {
            Some(record) if matches!(end, Phase::RolledBack | Phase::Aborted) => {
                let consumer = &record.consumer;
                let config = record.configs.first().map(ToString::to_string).unwrap_or_default();
                let more =
                    if theirs.len() > 1 { format!(", and so do {} more", theirs.len() - 1) } else { String::new() };
                let stopped_of =
                    |record: &Record| self.member(&record.consumer).and_then(|member| member.rollout.stopped.as_ref());
                let stopped = stopped_of(record);
                let is_awaited = end == Phase::Aborted && theirs.iter().any(|record| stopped_of(record).is_some());
                let told = match stopped {
                    Some(stopped) => format!("its code was new, too, and {stopped}"),
                    None => {
                        format!("it changed its code, too. `lockstep abort {config}` puts back its config")
                    }
                };
                self.enter(
                    Phase::Failed,
                    format!("{reason}. The others are back. {consumer} still has it{more}: {told}"),
                );
                if is_awaited {
                    self.progress.watched_until = Some(after(self.now, LEFT_TO_A_PERSON));
                }
            }
            _ => self.enter(end, reason),
        }
    }

    fn has_some_of_it(&self, record: &Record, pins: &Pins) -> bool {
        let is_its = |step: &&Move| step.from != step.to && record.configs.contains(&step.config);
        let mut moves = self.release().moves.iter().filter(is_its);
        moves.any(|step| {
            let is_it = |pins: &Pins| pins.get(&step.config).is_some_and(|pin| pin.to_string() == step.to);
            is_it(pins) && !is_it(&record.pins_before)
        })
    }

    /// Until when consumers must be back. Their time begins with the last write: we may have been away until then.
    fn back_until(&self, left: &[ConsumerId]) -> Timestamp {
        let records = self.progress.consumers.iter().filter(|record| left.contains(&record.consumer));
        let tried = records.filter_map(|record| record.progressed_at).max();
        let since = tried.max(self.progress.phase_since).unwrap_or(self.now);
        after(since, self.observed.policy.progress_deadline)
    }

    /// What a consumer waits for that does not come by itself, while there is time.
    fn in_the_way(&self, consumer: &ConsumerId) -> Option<String> {
        if let Some(why) = self.observed.refused.get(consumer) {
            return Some(cannot_be_written(consumer, why));
        }
        let waits_for = self.member(consumer)?.rollout.waits_for.as_ref()?;
        Some(format!("{consumer} waits for {waits_for}"))
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
        // A pod that is not what the template says may be older than the release: it never ran what failed.
        let before =
            self.progress.consumers.iter().find(|record| record.consumer == *consumer).map(|record| record.before);
        let has_failed = |unit: &Unit| runs_failed(unit, before.unwrap_or_default());
        let failed = member.units.iter().find(|unit| has_failed(unit));
        match failed.or_else(|| member.units.iter().find(|unit| !unit.is_ready)) {
            Some(unit) if has_failed(unit) => {
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
        // Recreated: it may have come with what was offered a moment ago.
        if record.state == State::Gone || record.uid != member.uid {
            (record.state, record.before, record.has_joined) = (State::Waiting, Before::default(), false);
            record.uid.clone_from(&member.uid);
        }
        // Who aborts wants the config back, whoever changed the code.
        let is_aborted = self.progress.ends_as == Some(Phase::Aborted);
        let is_left_to_them = self.observed.policy.joining.on_failure == JoinedFailure::Hold && !is_aborted;
        // New code that a person stopped would start again, with another config: that is never what they want.
        let is_theirs = record.has_joined && (is_left_to_them || member.rollout.stopped.is_some());
        self.follow_references(record, member);
        let target = self.release().target(&member.pins, record);
        // An earlier release may have moved it, whose place this one took, or that nobody knows of any more.
        let was_moved =
            record.before.moved_at.is_some() || record.configs.iter().any(|own| member.unproven.contains(own));
        let has_it = self.has_some_of_it(record, &member.pins) || was_moved;
        match record.state {
            // It was never moved: how it does is its own matter.
            State::Waiting if !has_it => {
                record.state = State::Restored;
                return;
            }
            State::LeftAlone if target != member.pins => return,
            // Unless somebody went to another revision of it, which is the failed one.
            State::Restored if !self.has_some_of_it(record, &member.pins) => return,
            _ if is_theirs => return,
            _ => {}
        }
        let restored = Release::restored(&member.pins, record);
        // Of a release of several configs it may have joined a part.
        let is_unmoved = matches!(record.state, State::Waiting | State::Pinning | State::Restoring | State::Restored);
        let may_write = target == member.pins || (has_it && is_unmoved);
        if may_write && restored != member.pins {
            // Its time begins with the last try, but a try that is repeated at once is no news.
            let is_refused = self.observed.refused.contains_key(&record.consumer);
            let is_old = record.progressed_at.is_none_or(|tried| self.now >= after(tried, RECHECK));
            if record.state != State::Restoring || (!is_refused && is_old) {
                record.progressed_at = Some(self.now);
            }
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
            // Counters can say that all is done while a pod is left: nobody replaces it but a person, or it was only just deleted.
            let may_be_left = !record.consumer.kind().leaves_no_pod_behind();
            let is_left = may_be_left && member.units.iter().any(|unit| runs_failed(unit, record.before));
            let is_back = match &health.verdict {
                Verdict::Healthy | Verdict::StillBroken(_) => !is_left,
                Verdict::Waiting(_) => has_only_old(),
                Verdict::Rolling | Verdict::Failed(_) => false,
            };
            record.health = Counts::from(&health);
            record.state = if is_back { State::Restored } else { State::Restoring };
        }
    }
}

/// Whether nothing more is written to it.
fn is_settled(record: &Record) -> bool {
    matches!(record.state, State::Restoring | State::Restored | State::Gone)
}
