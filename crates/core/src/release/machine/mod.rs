//! One step of a release.

mod back;
mod ends;
mod forward;
mod later;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::{Action, ConsumerId, Counts, Member, Move, Observed, Phase, Progress, Record, Release, State, Step};
use crate::health::{self, Before};
use crate::pins::{Pin, Pins};

pub use start::stopped_by_somebody;

/// How many consumers a sentence names.
const LISTED: usize = 5;
/// For how long what failed and was left to a person is looked after: its gates are kept closed, and what stands in the way of their wish may go.
const LEFT_TO_A_PERSON: Duration = Duration::from_secs(365 * 24 * 3600);
/// How soon to look again at what has no event of its own.
const RECHECK: Duration = Duration::from_secs(5);

/// What to do about a release now.
pub fn step(observed: &Observed<'_>, now: Timestamp) -> Step {
    let machine = Machine {
        observed,
        now,
        members: observed.members.iter().map(|member| (&member.consumer, member)).collect(),
        progress: observed.release.progress.clone(),
        actions: Vec::new(),
        wake: None,
        unsettled: None,
        awaited: None,
        has_veterans: false,
    };
    match observed.release.progress.phase {
        Phase::Succeeded => machine.watch_later(),
        Phase::Failed if observed.release.is_to_be_taken_back() || machine.can_be_taken_back_now() => {
            machine.take_back()
        }
        Phase::Failed => machine.keep_gates(),
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
    members: BTreeMap<&'a ConsumerId, &'a Member>,
    progress: Progress,
    actions: Vec<Action>,
    wake: Option<Timestamp>,
    /// A consumer that was ready, and is not so at the moment.
    unsettled: Option<ConsumerId>,
    /// What a consumer waits for, in a sentence.
    awaited: Option<String>,
    /// Whether somebody ran another version before: only they can show whether the change is good.
    has_veterans: bool,
}

/// Why a release cannot go on.
struct Failure {
    reason: String,
    /// The consumer that is bad, if it is one of them.
    consumer: Option<ConsumerId>,
    /// Whether that one changed its code in the same step.
    has_joined: bool,
}

impl Failure {
    fn of(record: &Record, why: &str) -> Self {
        let Record { consumer, has_joined, .. } = record;
        Self { reason: format!("{consumer}: {why}"), consumer: Some(consumer.clone()), has_joined: *has_joined }
    }
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
        if phase == Phase::Failed && self.gates_that_fall().next().is_some() {
            self.progress.watched_until = Some(after(self.now, LEFT_TO_A_PERSON));
        }
    }

    fn paused_by_a_person(&self) -> String {
        format!("paused by a person; {}", self.despite_all())
    }

    /// What happens also while it stands still.
    fn despite_all(&self) -> &'static str {
        if self.observed.policy.automatic_rollback {
            "failures still put the old version back"
        } else {
            "failures still stop it"
        }
    }

    fn wake_at(&mut self, at: Timestamp) {
        self.wake = Some(self.wake.map_or(at, |other| other.min(at)));
    }

    /// Consumers may come while a release is under way; new ones get what the table offers.
    fn take_in_members(&mut self) {
        let records: Vec<Record> = self.unknown_members().filter_map(|member| self.new_record(member)).collect();
        self.progress.consumers.extend(records);
    }

    /// Who is written right after it failed still gets what it offered a moment ago. That is nobody's wish: they go back with the others.
    fn take_in_latecomers(&mut self) {
        let latecomers = self.unknown_members().filter(|member| self.joined(member).next().is_some());
        let records = latecomers.filter_map(|member| Some(Record { has_joined: false, ..self.new_record(member)? }));
        let records: Vec<Record> = records.collect();
        self.progress.consumers.extend(records);
    }

    fn unknown_members(&self) -> impl Iterator<Item = &'a Member> {
        let known: BTreeSet<&ConsumerId> = self.progress.consumers.iter().map(|record| &record.consumer).collect();
        self.observed.members.iter().filter(move |member| !known.contains(&member.consumer))
    }

    fn new_record(&self, member: &'a Member) -> Option<Record> {
        let inherited = self.observed.inherited.iter().find(|record| record.consumer == member.consumer);
        let is_there = self.runs_it_all(member);
        if inherited.is_none() && member.concerned.is_empty() && !is_there {
            return None;
        }
        let has_a_part = self.joined(member).next().is_some();
        let configs = if is_there { &member.references } else { &member.concerned };
        let joined = self.joined(member).map(|step| &step.config);
        let configs: BTreeSet<_> = configs.iter().chain(joined).cloned().collect();
        let mut configs: Vec<_> = configs.into_iter().collect();
        let fresh_before = || Before {
            broken: health::broken(&member.units, member.rollout.desired, self.observed.policy, self.now),
            moved_at: None,
        };
        let (pins_before, template_before, before, had_joined) = match inherited {
            Some(old) => {
                configs.extend(
                    old.configs.iter().filter(|config| self.release().configs().any(|own| own == *config)).cloned(),
                );
                configs.sort();
                configs.dedup();
                (self.pins_before(old, member), old.template_before.clone(), self.before(old), old.has_joined)
            }
            // Behind a gate of ours it did not join: a release moved it of which nothing is known any more.
            None if is_there => (self.pins_from(member), member.template.clone(), Before::default(), !member.is_gated),
            None if !member.stranded.is_empty() => {
                let (pins, before) = self.before_it_was_stranded(member);
                (pins, member.template.clone(), before, false)
            }
            // Other code is on its way out, or came with a part of what is released: if that fails, nobody can say what is to blame.
            None => {
                let has_other_code = member.rollout.is_midway || (has_a_part && !member.is_gated);
                (self.pins_from(member), member.template.clone(), fresh_before(), has_other_code)
            }
        };
        Some(Record {
            consumer: member.consumer.clone(),
            wave: member.wave,
            configs,
            pins_before,
            template_before,
            before,
            uid: member.uid.clone(),
            has_joined: had_joined,
            is_newcomer: inherited.is_none() && is_there && member.is_newcomer,
            state: State::Waiting,
            batch: None,
            progressed_at: Some(self.now),
            ready_at: None,
            unjudged: None,
            health: Counts::default(),
        })
    }

    /// What it had before an earlier release moved it. Of what that one did not move, it may have got other versions since.
    fn pins_before(&self, old: &Record, member: &'a Member) -> Pins {
        let mut pins = self.pins_from(member);
        for config in &old.configs {
            pins.put(config, old.pins_before.get(config));
        }
        pins
    }

    /// How it did before an earlier release, and when that moved it: what it has then is not its own until this one is done with it.
    fn before(&self, old: &Record) -> Before {
        let moved_at = match old.state {
            State::LeftAlone | State::Gone | State::Restored => None,
            State::Waiting => old.before.moved_at,
            _ => old.before.moved_at.or(Some(self.now)),
        };
        Before { moved_at, ..old.before }
    }

    /// What it had before a release of which nothing is known any more left it with what failed. If that is no config of ours, it is broken
    /// by something that is not ours to mend.
    fn before_it_was_stranded(&self, member: &'a Member) -> (Pins, Before) {
        let mut pins = self.pins_from(member);
        let ours = self.release().moves.iter().filter(|step| member.stranded.contains(&step.config));
        let mut is_ours = false;
        for step in ours {
            pins.put(&step.config, Some(&Pin::Version(step.from.clone())));
            is_ours = true;
        }
        let broken = if is_ours { 0 } else { member.rollout.desired };
        (pins, Before { broken, moved_at: None })
    }

    /// Whether its template is pinned to all that is released, although nobody was told to pin it: it joined.
    fn runs_it_all(&self, member: &Member) -> bool {
        let is_its = |step: &&Move| step.from != step.to && member.references.contains(&step.config);
        let mut steps = self.release().moves.iter().filter(is_its).peekable();
        steps.peek().is_some()
            && steps.all(|step| member.pins.get(&step.config).is_some_and(|pin| pin.to_string() == step.to))
    }

    /// What is released and a consumer has already, although nobody was told to pin it.
    fn joined(&self, member: &'a Member) -> impl Iterator<Item = &'a Move> + use<'a> {
        let is_its = move |step: &&Move| step.from != step.to && member.references.contains(&step.config);
        let has = move |step: &&Move| member.pins.get(&step.config).is_some_and(|pin| pin.to_string() == step.to);
        self.release().moves.iter().filter(is_its).filter(has)
    }

    /// What is taken back, and a consumer has another version of: it joined while that was on offer.
    fn left_behind(&self, member: &'a Member) -> impl Iterator<Item = &'a Move> + use<'a> {
        let is_its = move |step: &&Move| step.from == step.to && member.concerned.contains(&step.config);
        let is_pinned = move |step: &&Move| member.pins.get(&step.config).is_some();
        self.release().moves.iter().filter(is_its).filter(is_pinned)
    }

    /// What a consumer goes back to: where it has what is released, was taken back, is not there or was never good, to the last good version.
    fn pins_from(&self, member: &'a Member) -> Pins {
        let mut pins = member.pins.clone();
        let unproven = self.release().moves.iter().filter(|step| member.unproven.contains(&step.config));
        for step in self.joined(member).chain(self.left_behind(member)).chain(unproven) {
            pins.put(&step.config, Some(&Pin::Version(step.from.clone())));
        }
        pins
    }

    /// What it does not use any more is nobody's to pin. What it uses only since the release came with the new version.
    fn follow_references(&self, record: &mut Record, member: &'a Member) {
        record.configs.retain(|config| member.references.contains(config));
        for step in self.joined(member) {
            if record.configs.contains(&step.config) {
                continue;
            }
            record.configs.push(step.config.clone());
            if record.pins_before.get(&step.config).is_none() {
                record.pins_before.put(&step.config, Some(&Pin::Version(step.from.clone())));
            }
        }
    }

    fn record(&self, consumer: &ConsumerId) -> Option<&Record> {
        self.progress.consumers.iter().find(|record| record.consumer == *consumer)
    }

    fn member(&self, consumer: &ConsumerId) -> Option<&'a Member> {
        self.members.get(consumer).copied()
    }
}

/// `a; b; and 3 more`: a sentence stays one.
fn listed(items: &[String]) -> String {
    let shown = items.iter().take(LISTED).cloned().collect::<Vec<_>>().join("; ");
    if items.len() > LISTED { format!("{shown}; and {} more", items.len() - LISTED) } else { shown }
}

/// What the API server does not take, in its own words.
fn cannot_be_written(consumer: &ConsumerId, why: &str) -> String {
    format!("{consumer} cannot be written, and is tried again: {why}")
}

fn after(at: Timestamp, wait: Duration) -> Timestamp {
    crate::storm::later(at, wait)
}
