//! The bake, and how a release ends well: who runs it, who could not be judged.

use std::time::Duration;

use jiff::Timestamp;

use super::{Machine, RECHECK, after, later, listed};
use crate::health::Unit;
use crate::release::{Action, Member, Phase, Record, Stage, State};

/// So many times the bake, at most.
const LONGEST_BAKE: u32 = 3;
const SUCCEEDED: &str = "all consumers run it and are healthy";

impl Machine<'_> {
    pub(super) fn bake(&mut self) {
        if self.progress.phase != Phase::Baking {
            self.enter(Phase::Baking, String::new());
        }
        // Where nobody uses it, there is nothing to watch.
        let is_over = self.release().wishes.promote || self.progress.consumers.is_empty();
        let until = self.baked_at(if is_over { Duration::ZERO } else { self.observed.policy.bake });
        if self.now < until {
            self.wake_at(until);
            self.progress.reason = self.watched(until);
            return;
        }
        if self.unsettled.is_some() && !self.has_waited_for_room(until) {
            self.wake_at(after(self.now, RECHECK));
            "not all pods are ready: waits for them, or for the verdict".clone_into(&mut self.progress.reason);
            return;
        }
        if self.is_first_batch() {
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

    fn watched(&self, until: Timestamp) -> String {
        let mut units = self.observed.members.iter().flat_map(|member| &member.units);
        if units.any(|unit| unit.is_new && unit.is_ready) {
            format!("all new pods are ready and are watched until {until:.0}{}", self.forced())
        } else {
            format!("no pod runs it yet; what starts with it is watched until {until:.0}")
        }
    }

    /// Whether only the first pods of each consumer have it so far. What takes a change back goes in one step.
    pub(super) fn is_first_batch(&self) -> bool {
        let has_canary = self.observed.policy.canary.is_some() && !self.release().takes_back();
        self.progress.stage == Stage::FirstBatch && has_canary
    }

    /// Every new pod is watched for the whole time, also one that came in the place of another; but not for ever where pods come and go.
    fn baked_at(&self, bake: Duration) -> Timestamp {
        let since = self.progress.phase_since.unwrap_or(self.now);
        let units = self.observed.members.iter().flat_map(|member| &member.units);
        let youngest = units.filter(|unit| unit.is_new && unit.is_ready).filter_map(|unit| unit.since).max();
        let until = after(youngest.unwrap_or(since).max(since), bake);
        until.min(after(since, bake * LONGEST_BAKE))
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
            // Nobody refused it: they joined the change that comes after it.
            if self.observed.is_overtaken {
                self.wake_at(after(self.now, RECHECK));
                "its consumers have a newer version already: waits for the release of that"
                    .clone_into(&mut self.progress.reason);
                return;
            }
            let why = listed(&self.not_judged());
            if records.iter().all(|record| record.state == State::Gone) {
                // Nobody refused it: it goes on to whoever uses the config now.
                self.actions.clear();
                return self.enter(Phase::Failed, format!("nobody runs it ({why}). It is released anew"));
            }
            let again: Vec<String> =
                self.release().configs().map(|config| format!("`lockstep retry {config}`")).collect();
            let reason = format!("nobody runs it ({why}). It is held: {} tries it again", again.join(" or "));
            self.actions = vec![Action::Hold { reason: reason.clone() }];
            return self.enter(Phase::Failed, reason);
        }
        self.actions.push(Action::Succeed);
        self.end_well();
    }

    /// It has succeeded, and says with whom.
    pub(super) fn end_well(&mut self) {
        self.look_who_is_judged();
        let is_awaited = self.progress.consumers.iter().any(later::is_awaited);
        self.progress.watched_until = is_awaited.then(|| after(self.now, later::WATCHED));
        let reason = self.who_runs_it();
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

    pub(super) fn who_runs_it(&self) -> String {
        let (all, unjudged) = (self.progress.consumers.len(), self.not_judged());
        match unjudged.len() {
            0 if all == 0 && self.observed.members.is_empty() => "it is current; nobody uses it yet".to_owned(),
            0 if all == 0 => "it is current; nobody uses what changed".to_owned(),
            0 => SUCCEEDED.to_owned(),
            some => {
                // A later release may have made another one current since.
                let has_passed = self.progress.phase.has_ended() && !self.observed.has_succeeded;
                let is = if has_passed { "it was current" } else { "it is current" };
                let well = all - some;
                format!("{is}; {well} of {all} consumers run it and are healthy. Not judged: {}", listed(&unjudged))
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
        let left = member.units.iter().find(|unit| !unit.is_new && self.release().takes_back());
        match (&member.rollout.idle, homeless) {
            (Some(_), _) if let Some(Unit { name, .. }) = left => {
                Some(format!("pod {name} still runs what was taken back: `kubectl delete pod {name}`"))
            }
            (Some(idle), _) if !runs || keeps_old_pods(member) => Some(idle.clone()),
            (_, Some(why)) => Some(format!("a pod is not ready: {why}")),
            _ => kept_back(member),
        }
    }

    fn next_wave(&self) -> Option<i32> {
        self.progress.consumers.iter().map(|record| record.wave).filter(|wave| *wave > self.progress.wave).min()
    }
}

/// Whether pods of it are left that run what they had before, and only a person replaces.
pub(super) fn keeps_old_pods(member: &Member) -> bool {
    member.rollout.is_by_hand && member.units.iter().any(|unit| !unit.is_new)
}

/// That a user keeps some of its pods at their old version, in one sentence.
pub(super) fn kept_back(member: &Member) -> Option<String> {
    let kept_back = member.rollout.kept_back;
    (kept_back > 0).then(|| format!("its partition keeps {kept_back} of its pods at their old version"))
}
