//! After the end: whoever did not run it then is watched for a while, and judged once it does. Nothing is put back any more: others run it
//! and are well. But nobody has to find out alone.

use std::time::Duration;

use super::ends::{keeps_old_pods, kept_back};
use super::{Machine, after};
use crate::health::{Goal, Unit, Verdict};
use crate::release::{Block, Member, Record, State, Step};

/// How long that is, from the end on.
pub(super) const WATCHED: Duration = Duration::from_secs(3600);

impl Machine<'_> {
    pub(super) fn watch_later(mut self) -> Step {
        let Some(until) = self.progress.watched_until else { return self.finish() };
        if self.now >= until {
            self.progress.watched_until = None;
            return self.finish();
        }
        self.wake_at(until);
        let is_unreadable = matches!(self.observed.blocked, Some(Block::Unreadable(_)));
        if !self.observed.can_judge || is_unreadable {
            return self.finish();
        }
        // A newer release judges those itself whom it moves. It does not move whoever uses nothing that it changes: they stay with ours.
        let is_ours = |record: &Record| is_awaited(record) && !self.observed.taken_over.contains(&record.consumer);
        let mut records = std::mem::take(&mut self.progress.consumers);
        for record in records.iter_mut().filter(|record| is_ours(record)) {
            self.judge_later(record);
        }
        if !records.iter().any(is_ours) {
            self.progress.watched_until = None;
        }
        self.progress.consumers = records;
        self.progress.reason = self.who_runs_it();
        self.finish()
    }

    fn judge_later(&mut self, record: &mut Record) {
        let Some(member) = self.member(&record.consumer) else {
            (record.state, record.unjudged) = (State::Gone, Some("it is gone".to_owned()));
            return;
        };
        if self.release().target(&member.pins, record) != member.pins {
            let why = "somebody gave it other versions after the release";
            (record.state, record.unjudged) = (State::LeftAlone, Some(why.to_owned()));
            return;
        }
        if record.state == State::Gone {
            (record.state, record.unjudged) = (State::Rolling, Some("it was made anew".to_owned()));
        }
        let Some(health) = self.judge(record, Goal::All) else { return };
        let runs = member.units.iter().any(|unit| unit.is_new);
        match (&health.verdict, &member.rollout.idle) {
            // What was not well at the end is told already, and so is what was bad a moment ago: in other words each time.
            (Verdict::Failed(_), _) if record.state == State::StillBroken || record.health.failing > 0 => {}
            (Verdict::Failed(why), _) => {
                let config = record.configs.first().map(ToString::to_string).unwrap_or_default();
                let help = if self.observed.has_succeeded {
                    format!("`lockstep rollback {config}` goes back")
                } else {
                    format!("`lockstep history {config}` shows what to go back to")
                };
                record.unjudged = Some(format!("it ran it only after the release, and is bad: {why}. {help}"));
                record.health = (&health).into();
            }
            (_, Some(idle)) if !runs || keeps_old_pods(member) => {
                (record.unjudged, record.health) = (Some(idle.clone()), (&health).into());
            }
            // What its user keeps back is told already.
            (Verdict::Healthy, _) if record.state == State::Ready && record.unjudged == kept_back(member) => {}
            (Verdict::Healthy, _) if self.has_baked(member) => {
                (record.state, record.unjudged) = (State::Ready, kept_back(member));
                (record.ready_at, record.health) = (Some(self.now), (&health).into());
            }
            _ if record.state == State::StillBroken || record.health.failing > 0 => {}
            _ if runs => {
                let homeless = member.units.iter().find_map(|unit| unit.homeless.as_ref());
                let why = homeless.map(|why| format!("a pod is not ready: {why}"));
                let young = || "it runs it only since the release, and has not proved itself".to_owned();
                record.unjudged = Some(why.unwrap_or_else(young));
            }
            _ => {}
        }
    }

    /// Whether all pods that it should have run it, and were ready for the length of a bake.
    fn has_baked(&mut self, member: &Member) -> bool {
        let new: Vec<&Unit> = member.units.iter().filter(|unit| unit.is_new).collect();
        let wanted =
            usize::try_from(member.rollout.desired.saturating_sub(member.rollout.kept_back)).unwrap_or(usize::MAX);
        if new.len() < wanted.max(1) || !new.iter().all(|unit| unit.is_ready) {
            return false;
        }
        let youngest = new.iter().filter_map(|unit| unit.since).max().unwrap_or(self.now);
        let due = after(youngest, self.observed.policy.bake);
        if self.now < due {
            self.wake_at(due);
        }
        self.now >= due
    }
}

/// Whether it may still run it. What somebody left alone will not; what is gone may be made anew.
pub(super) fn is_awaited(record: &Record) -> bool {
    record.unjudged.is_some() && record.state != State::LeftAlone
}
