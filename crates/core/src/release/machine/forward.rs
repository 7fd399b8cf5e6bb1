//! Forward: consumers are pinned, batch by batch and wave by wave, and their new pods are judged.

use std::time::Duration;

use super::{Failure, Machine, RECHECK, after, cannot_be_written};
use crate::gate;
use crate::health::{self, Before, Goal, Health, Unit, Verdict};
use crate::release::{Action, Block, Counts, Gate, Member, Observed, Phase, Record, Stage, State, Step, Wait};

impl Machine<'_> {
    pub(super) fn go_on(mut self) -> Step {
        if self.observed.has_succeeded {
            self.end_well();
            return self.finish();
        }
        // It had given up already, whatever happened since.
        if let Some(reason) = self.observed.held {
            self.give_up_again(reason.to_owned());
            return self.finish();
        }
        let newer = self.observed.superseded_by;
        if let Some(newer) = newer.filter(|_| self.observed.successor_waits.is_none()) {
            self.enter(Phase::Superseded, format!("release {newer} took its place"));
            return self.finish();
        }
        if self.is_aborted() {
            self.give_up("aborted by a person".to_owned(), Phase::Aborted);
            return self.finish();
        }
        if !self.observed.can_judge {
            return self.finish();
        }
        self.take_in_members();
        self.adjust_gates();
        let failure = self.look_at_consumers().or_else(|| self.relapse());
        if let Some(failure) = failure.filter(|_| !self.has_others_to_take_back()) {
            self.fail(failure);
        } else if self.release().wishes.paused {
            let reason = self.paused();
            self.enter(Phase::Paused, reason);
        } else if let Some(Block::Unreadable(what)) = &self.observed.blocked {
            self.enter(Phase::Paused, format!("{what}; {}", self.despite_all()));
        } else if let Some((newer, wait)) = newer.zip(self.observed.successor_waits.as_ref()) {
            self.await_successor(newer, wait);
        } else {
            self.advance();
        }
        self.finish()
    }

    /// Whether a person wants what was before. What takes a change back has nothing else to go to.
    pub(super) fn is_aborted(&self) -> bool {
        self.release().wishes.abort && !self.release().takes_back()
    }

    /// Whether somebody who is not well may not keep others from going back.
    fn has_others_to_take_back(&self) -> bool {
        let is_open = |record: &Record| matches!(record.state, State::Waiting | State::Pinning);
        let since = self.progress.started_at.unwrap_or(self.now);
        let has_time = self.now < after(since, self.observed.policy.progress_deadline);
        self.release().takes_back() && has_time && self.progress.consumers.iter().any(is_open)
    }

    /// Whoever goes on by itself is not stopped by us.
    fn paused(&self) -> String {
        let paused = self.paused_by_a_person();
        let mut rolling = self.progress.consumers.iter().filter(|record| record.state == State::Rolling);
        let told = rolling.find_map(|Record { consumer, .. }| {
            let stop = consumer.kind().stop_command(&consumer.name)?;
            let goes_on = self.member(consumer)?.rollout.goes_on_by_itself;
            goes_on.then(|| format!("{paused}. {consumer} goes on with its own steps: `{stop}` stops it"))
        });
        told.unwrap_or(paused)
    }

    /// Nobody wants it any more, but what was moved must not be left alone either.
    fn await_successor(&mut self, newer: &str, wait: &Wait) {
        let when = match wait {
            Wait::Until(at) => {
                self.wake_at(*at);
                format!("at {at:.0}")
            }
            Wait::For(what) => what.clone(),
        };
        self.progress.reason = format!("release {newer} takes its place {when}; {}", self.despite_all());
        self.wake_at(after(self.now, RECHECK));
    }

    /// Brings every record up to date. The first failure stops it.
    fn look_at_consumers(&mut self) -> Option<Failure> {
        self.has_veterans = self.progress.consumers.iter().any(|record| self.is_veteran(record));
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
        self.follow_references(record, member);
        let is_pinned = self.release().target(&member.pins, record) == member.pins;
        // Recreated: it starts from nothing, like one that has not been seen before.
        if record.state == State::Gone || record.uid != member.uid {
            (record.state, record.before) = (State::Waiting, Before::default());
            record.uid.clone_from(&member.uid);
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
            self.awaited = Some(cannot_be_written(&record.consumer, why));
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
            let consumer = Some(record.consumer.clone());
            let reason = format!("{} cannot be written: {why}", record.consumer);
            return Some(Failure { reason, consumer, has_joined: false });
        }
        self.wake_at(due);
        self.awaited = Some(cannot_be_written(&record.consumer, why));
        None
    }

    fn begin_to_watch(&self, record: &mut Record, member: &Member) {
        record.template_before.clone_from(&member.template);
        record.state = State::Rolling;
        (record.progressed_at, record.before.moved_at) = (Some(self.now), Some(self.now));
        (record.ready_at, record.unjudged) = (None, None);
    }

    /// A controller that waits for a broken pod would wait for ever.
    pub(super) fn delete_stuck_pods(&mut self, member: &Member) {
        let waits = member.rollout.may_wait_for_a_pod(member.consumer.kind()) && !member.is_gated;
        let goes_back = self.progress.phase == Phase::RollingBack;
        if waits && self.observed.may_delete_pods {
            let delete = |unit: &Unit| Action::DeletePod {
                consumer: member.consumer.clone(),
                pod: unit.name.clone(),
                uid: unit.uid.clone(),
            };
            let stuck = health::stuck(&member.units, &member.rollout, goes_back, self.now);
            self.actions.extend(stuck.map(delete));
        }
    }

    pub(super) fn judge(&self, record: &Record, goal: Goal) -> Option<Health> {
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
        let of_policy = self.observed.policy.canary.map(|canary| canary.of(member.rollout.desired));
        // Without its policy it stays as it is.
        let is_unreadable = matches!(self.observed.blocked, Some(Block::Unreadable(_)));
        let size = record.batch.filter(|_| of_policy.is_some() || is_unreadable).or(of_policy)?;
        let is_first = self.progress.stage == Stage::FirstBatch && record.wave == self.progress.wave;
        // What was decided when it was moved stays so, whatever becomes of its pods and however many somebody wants of them.
        let is_stopped = member.is_gated || record.batch.is_some();
        let could_stop = !is_moved(record) && !member.is_unfit_for_gate && size < member.rollout.desired;
        let is_meant = is_first && member.can_gate && !record.has_joined && !self.release().takes_back();
        (is_meant && (is_stopped || could_stop)).then_some(size)
    }

    fn note(&mut self, record: &mut Record, health: &Health) -> Option<Failure> {
        let came_closer = health.ready > record.health.ready || health.updated > record.health.updated;
        record.health = Counts::from(health);
        // For whoever waits for a person no time passes, and nothing has to be written: it begins anew after that.
        if matches!(health.verdict, Verdict::Waiting(_)) {
            record.progressed_at = None;
        } else if came_closer || record.progressed_at.is_none() {
            record.progressed_at = Some(self.now);
        }
        let why = match &health.verdict {
            Verdict::Healthy => {
                record.ready_at = record.ready_at.filter(|_| record.state == State::Ready).or(Some(self.now));
                record.state = State::Ready;
                return None;
            }
            Verdict::StillBroken(why) => {
                record.unjudged = Some(why.clone());
                // The others are watched as in any bake.
                record.ready_at = record.ready_at.filter(|_| record.state == State::StillBroken).or(Some(self.now));
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
                self.unsettled.get_or_insert_with(|| record.consumer.clone());
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
        if self.is_spared(record) {
            record.unjudged = Some(format!("it is new, and not well: {why}"));
            record.state = State::StillBroken;
            return None;
        }
        Some(Failure::of(record, &why))
    }

    /// Whether it ran another version before, and has pods that can show how the new one does.
    fn is_veteran(&self, record: &Record) -> bool {
        let can_show = matches!(record.state, State::Waiting | State::Pinning | State::Rolling | State::Ready);
        let has_pods = self.member(&record.consumer).is_some_and(|member| member.rollout.idle.is_none());
        !record.is_newcomer && can_show && has_pods
    }

    /// A workload that came with the new version never ran another: that it does not run says nothing about the change, as long as others
    /// can.
    fn is_spared(&self, record: &Record) -> bool {
        record.is_newcomer && self.has_veterans
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
        let homeless = member
            .units
            .iter()
            .find_map(|unit| Some(format!("pod {}: {}", unit.name, unit.homeless.as_ref().filter(|_| unit.is_new)?)));
        let why = member.rollout.hindrance.clone().or(homeless).map(|why| format!(": {why}")).unwrap_or_default();
        Some(format!("no progress for {} s, {ready} of {desired} new pods are ready{why}", deadline.as_secs()))
    }

    /// What was well and is not any more: in the bake, and wherever a consumer waits for a person.
    fn relapse(&self) -> Option<Failure> {
        let policy = self.observed.policy;
        let since = self.progress.phase_since.filter(|_| self.progress.phase == Phase::Baking);
        let is_overdue = since.is_some_and(|since| self.now >= after(since, policy.bake + policy.progress_deadline));
        let unsettled = self.unsettled.as_ref().filter(|_| is_overdue && !self.only_lacks_room());
        if let Some(record) = unsettled.and_then(|consumer| self.record(consumer)) {
            return Some(Failure::of(record, &self.what_is_not_ready(record)));
        }
        let blamed = self.progress.consumers.iter().filter(|record| !self.is_spared(record));
        blamed.into_iter().find_map(|record| {
            let ready_at = record.ready_at.filter(|_| is_moved(record))?;
            let units = &self.member(&record.consumer)?.units;
            let why = health::relapse(units, record.before, ready_at, policy, self.now)?;
            Some(Failure::of(record, &why))
        })
    }

    fn what_is_not_ready(&self, record: &Record) -> String {
        let mut units = self.member(&record.consumer).into_iter().flat_map(|member| &member.units);
        match units.find(|unit| unit.is_new && !unit.is_ready && unit.homeless.is_none()) {
            Some(unit) => {
                format!("pod {} did not become ready in the bake, nor for a progress deadline after it", unit.name)
            }
            None => {
                format!("only {} of {} new pods are ready after the bake", record.health.ready, record.health.desired)
            }
        }
    }

    /// Whether all that is not ready has no place to run.
    pub(super) fn only_lacks_room(&self) -> bool {
        let ready = self.progress.consumers.iter().filter(|record| record.state == State::Ready);
        ready.filter_map(|record| self.member(&record.consumer)).all(|member| {
            member.units.iter().all(|unit| unit.is_ready || !unit.is_new) || health::is_only_homeless(&member.units)
        })
    }

    fn advance(&mut self) {
        self.open_gates();
        let due: Vec<usize> = self.due_for_pins();
        for index in due {
            match self.is_stopped(&self.progress.consumers[index]) {
                Some(stopped) => drop(self.awaited.get_or_insert(stopped)),
                None => self.pin(index),
            }
        }
        let wave = self.progress.wave;
        let is_under_way = |record: &&Record| {
            // Whoever changed its code but waits for our pins has to wait for its wave, too.
            let is_due = record.wave <= wave || record.state != State::Waiting;
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
        let what = if self.is_first_batch() { "the first batch of its pods" } else { "its pods" };
        format!("{done} of {total} consumers are done; {} rolls {what}{}", open[0].consumer, self.forced())
    }

    /// Who does not stop after the first batch, because somebody took back the fields that would stop it.
    pub(super) fn forced(&self) -> String {
        let is_forced = |record: &&Record| {
            let member = self.member(&record.consumer);
            // A manifest that replaced it took the gate along with the note of it.
            let is_open = |member: &&Member| member.is_forced || (record.batch.is_some() && !member.is_gated);
            let member = member.filter(is_open).filter(|_| is_moved(record));
            member.is_some_and(|member| self.batch(record, member).is_some())
        };
        let forced = self.progress.consumers.iter().find(is_forced);
        forced.map_or_else(String::new, |record| {
            format!(
                "; {} does not stop after its first pods: somebody wrote over the fields that hold it",
                record.consumer
            )
        })
    }

    fn due_for_pins(&self) -> Vec<usize> {
        let all = self.progress.consumers.iter().enumerate();
        let under_way = all.clone().filter(|(_, record)| matches!(record.state, State::Rolling)).count();
        let again = all.clone().filter(|(_, record)| record.state == State::Pinning);
        let fresh = all.filter(|(_, record)| record.state == State::Waiting && record.wave <= self.progress.wave);
        let most = self.observed.policy.max_parallel.filter(|_| !self.release().takes_back());
        let room = most.map_or(usize::MAX, |max| max.max(1).saturating_sub(under_way));
        again.chain(fresh).map(|(index, _)| index).take(room).collect()
    }

    /// A person stopped it since the release started: what its template says would start again with a write of ours.
    fn is_stopped(&self, record: &Record) -> Option<String> {
        let member = self.member(&record.consumer)?;
        let stopped = member.rollout.stopped.as_ref()?;
        let is_as_it_was = !record.has_joined && record.template_before == member.template;
        let goes_back = self.release().takes_back() && is_as_it_was;
        (!goes_back).then(|| format!("waits for {}: {stopped}", record.consumer))
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

    /// It failed and was left to a person: behind a gate, the rest must not follow by itself.
    pub(super) fn keep_gates(mut self) -> Step {
        if self.progress.watched_until.is_none() || self.observed.blocked.is_some() || !self.observed.can_judge {
            return self.finish();
        }
        let mut falls = None;
        let mut renew = Vec::new();
        for (record, member, hold) in self.gates_that_fall() {
            let rest = hold.saturating_sub(self.ready_for(member) + gate::RENEW_BEFORE);
            falls = falls.into_iter().chain([rest]).min();
            if rest.is_zero() {
                let gate = self.first_batch(member, record.batch.unwrap_or(1));
                renew.push(Action::Pin { consumer: record.consumer.clone(), pins: member.pins.clone(), gate });
            }
        }
        self.actions.extend(renew);
        match falls {
            Some(rest) => self.wake_at(after(self.now, rest.max(RECHECK))),
            None if self.awaits_a_person() => {}
            None => self.progress.watched_until = None,
        }
        self.finish()
    }

    /// Who is held by a gate that goes by time, and has the version of this release.
    pub(super) fn gates_that_fall(&self) -> impl Iterator<Item = (&Record, &Member, Duration)> {
        self.progress.consumers.iter().filter_map(|record| {
            let member = self.member(&record.consumer).filter(|member| member.is_gated)?;
            let has_it = self.release().target(&member.pins, record) == member.pins;
            has_it.then_some((record, member, member.holds_for?))
        })
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
}

/// Whether it was given the new versions and is looked after.
fn is_moved(record: &Record) -> bool {
    matches!(record.state, State::Rolling | State::Ready | State::StillBroken)
}

fn is_open(record: &Record) -> bool {
    matches!(record.state, State::Waiting | State::Pinning | State::Rolling)
}
