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
use crate::config::ConfigRef;
use crate::health::{self, Before};
use crate::pins::{Pin, Pins};

/// How many consumers a sentence names.
const LISTED: usize = 5;
const PAUSED: &str = "paused by a person; failures still put the old version back";
const ROLLOUT: &str = "Rollout";
const STATEFUL_SET: &str = "StatefulSet";
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
        is_unsettled: false,
        awaited: None,
        has_veterans: false,
    };
    match observed.release.progress.phase {
        Phase::Succeeded => machine.watch_later(),
        Phase::Failed if observed.release.is_to_be_taken_back() => machine.take_back(),
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
    /// Whether a consumer that was ready is not so at the moment.
    is_unsettled: bool,
    /// What a consumer waits for, in a sentence.
    awaited: Option<String>,
    /// Whether somebody ran another version before: only they can show whether the change is good.
    has_veterans: bool,
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

    /// Consumers may come while a release is under way; new ones get what the table offers.
    fn take_in_members(&mut self) {
        let known: BTreeSet<&ConsumerId> = self.progress.consumers.iter().map(|record| &record.consumer).collect();
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
        let fresh_before =
            || Before { broken: health::broken(&member.units, member.rollout.desired, self.now), moved_at: None };
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
            None => {
                let pins = self.pins_to_go_back_to(member);
                (pins, member.template.clone(), fresh_before(), member.rollout.is_midway)
            }
        };
        Some(Record {
            consumer: member.consumer.clone(),
            wave: member.wave,
            configs,
            pins_before,
            template_before,
            before,
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

    /// Whether its template is pinned to all that is released, although nobody was told to pin it: it joined.
    fn runs_it_all(&self, member: &Member) -> bool {
        let is_its = |step: &&Move| step.from != step.to && member.references.contains(&step.config);
        let mut steps = self.release().moves.iter().filter(is_its).peekable();
        steps.peek().is_some()
            && steps.all(|step| member.pins.get(&step.config).is_some_and(|pin| pin.to_string() == step.to))
    }

    fn pins_from(&self, member: &Member) -> Pins {
        self.with_last_good(&member.pins, &member.references)
    }

    /// Those that it has; but nobody can go back to what is not there.
    fn pins_to_go_back_to(&self, member: &Member) -> Pins {
        self.with_last_good(&member.pins, &member.missing)
    }

    fn with_last_good(&self, pins: &Pins, configs: &BTreeSet<ConfigRef>) -> Pins {
        let mut pins = pins.clone();
        for step in self.release().moves.iter().filter(|step| configs.contains(&step.config)) {
            pins.put(&step.config, Some(&Pin::Version(step.from.clone())));
        }
        pins
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

fn after(at: Timestamp, wait: Duration) -> Timestamp {
    crate::storm::later(at, wait)
}
