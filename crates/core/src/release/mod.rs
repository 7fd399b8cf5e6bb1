//! A release: moving configs from one version to another across all their consumers, as one unit.
//!
//! `step(observed, now)` is called whenever something changed. It compares what is recorded with what is seen, and says what to do
//! and what to record. What it decides is recorded before it is done, so the operator can die at any instruction.
//!
//! ```text
//! Pending ─▶ Progressing ─▶ Baking ─▶ Succeeded          Rejected: its content is invalid, nothing moved
//!               ▲    │ ▲        │                        Superseded: a newer release took its place
//!               │    ▼ └────────┤ next batch, next wave  Failed: stopped, and left to a person
//!            Paused  RollingBack◀┘ ─▶ RolledBack, Aborted
//! ```

mod machine;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use crate::config::ConfigRef;
use crate::gate::Partition;
use crate::health::{Before, Health, Rollout, Unit};
use crate::kinds::Kind;
use crate::pins::{Pin, Pins};
use crate::policy::Policy;

pub use machine::{step, stopped_by_somebody};

/// A release as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    pub name: String,
    pub moves: Vec<Move>,
    pub wishes: Wishes,
    pub progress: Progress,
}

/// One config of a release: from the last version that was good to a new one. They are the same in a release that takes a change back
/// which was still on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    pub config: ConfigRef,
    pub from: String,
    pub to: String,
}

/// What a person asks of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wishes {
    pub paused: bool,
    /// Do not bake.
    pub promote: bool,
    pub abort: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Phase {
    #[default]
    Pending,
    Progressing,
    Baking,
    Paused,
    RollingBack,
    Succeeded,
    RolledBack,
    Aborted,
    Superseded,
    Rejected,
    Failed,
}

impl Phase {
    pub const ALL: [Self; 11] = [
        Self::Pending,
        Self::Progressing,
        Self::Baking,
        Self::Paused,
        Self::RollingBack,
        Self::Succeeded,
        Self::RolledBack,
        Self::Aborted,
        Self::Superseded,
        Self::Rejected,
        Self::Failed,
    ];

    pub fn has_ended(self) -> bool {
        use Phase::{Aborted, Failed, Rejected, RolledBack, Succeeded, Superseded};
        matches!(self, Succeeded | RolledBack | Aborted | Superseded | Rejected | Failed)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Progressing => "Progressing",
            Self::Baking => "Baking",
            Self::Paused => "Paused",
            Self::RollingBack => "RollingBack",
            Self::Succeeded => "Succeeded",
            Self::RolledBack => "RolledBack",
            Self::Aborted => "Aborted",
            Self::Superseded => "Superseded",
            Self::Rejected => "Rejected",
            Self::Failed => "Failed",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How far a release is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    pub phase: Phase,
    /// In one sentence: why it is in this phase, or what it waits for.
    pub reason: String,
    pub started_at: Option<Timestamp>,
    pub phase_since: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    /// The wave that is under way; those before it are done.
    pub wave: i32,
    pub stage: Stage,
    /// How it ends once all is put back.
    pub ends_as: Option<Phase>,
    /// Until when it is watched who runs it only after its end, if somebody does not yet.
    pub watched_until: Option<Timestamp>,
    pub consumers: Vec<Record>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stage {
    /// The first pods of each consumer, if the policy has a canary.
    #[default]
    FirstBatch,
    All,
}

/// A workload by kind and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId {
    pub kind: String,
    pub name: String,
}

impl ConsumerId {
    pub fn kind(&self) -> Kind {
        Kind::named(&self.kind)
    }
}

impl fmt::Display for ConsumerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// What is recorded of one consumer: enough to put it back exactly as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub consumer: ConsumerId,
    pub wave: i32,
    /// The configs of the release that it is moved to.
    pub configs: Vec<ConfigRef>,
    /// Its pins before the release.
    pub pins_before: Pins,
    /// Its pod spec before the release, as a digest.
    pub template_before: String,
    /// Of the object that was moved: one that is made anew under its name is another.
    pub uid: String,
    /// How it did before the release, and when it was moved.
    pub before: Before,
    /// Whether it changed its code in the same step.
    pub has_joined: bool,
    /// Whether it came with the new version, and never ran another: how it does says nothing about the change.
    pub is_newcomer: bool,
    pub state: State,
    /// How many of its pods went first. It stays so when somebody scales it meanwhile.
    pub batch: Option<u32>,
    /// When it last came closer to its goal.
    pub progressed_at: Option<Timestamp>,
    /// Since when it is well.
    pub ready_at: Option<Timestamp>,
    /// Why nobody can say how it does under the new version, in one sentence.
    pub unjudged: Option<String>,
    pub health: Counts,
}

impl Record {
    /// The same, if an earlier release had moved the consumer with other configs, and left it there.
    #[must_use]
    pub fn after(mut self, earlier: &Self) -> Self {
        for config in &earlier.configs {
            if !self.configs.contains(config) {
                self.pins_before.put(config, earlier.pins_before.get(config));
                self.configs.push(config.clone());
            }
        }
        self.configs.sort();
        self.before = earlier.before;
        self.has_joined |= earlier.has_joined;
        self
    }
}

/// How many pods of a consumer are where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub desired: u32,
    pub updated: u32,
    pub ready: u32,
    pub failing: u32,
}

impl From<&Health> for Counts {
    fn from(health: &Health) -> Self {
        let Health { desired, updated, ready, failing, verdict: _ } = health;
        Self { desired: *desired, updated: *updated, ready: *ready, failing: *failing }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Its wave has not come, or others roll before it.
    Waiting,
    /// About to be pinned.
    Pinning,
    Rolling,
    /// It runs the new version and is well.
    Ready,
    /// It runs the new version and is not well, which says nothing about that: it was broken for long before, or is new.
    StillBroken,
    /// Somebody changed its pins during the release: that counts until the next release.
    LeftAlone,
    Gone,
    /// It is put back.
    Restoring,
    Restored,
}

impl State {
    pub const ALL: [Self; 9] = [
        Self::Waiting,
        Self::Pinning,
        Self::Rolling,
        Self::Ready,
        Self::StillBroken,
        Self::LeftAlone,
        Self::Gone,
        Self::Restoring,
        Self::Restored,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Pinning => "Pinning",
            Self::Rolling => "Rolling",
            Self::Ready => "Ready",
            Self::StillBroken => "StillBroken",
            Self::LeftAlone => "LeftAlone",
            Self::Gone => "Gone",
            Self::Restoring => "Restoring",
            Self::Restored => "Restored",
        }
    }
}

/// A consumer as it is seen now.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each with its own name")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub consumer: ConsumerId,
    pub wave: i32,
    pub pins: Pins,
    /// Its pod spec, as a digest.
    pub template: String,
    pub uid: String,
    /// Whether it is younger than the new version.
    pub is_newcomer: bool,
    /// The configs of the release that it references.
    pub references: BTreeSet<ConfigRef>,
    /// Those of them whose version that it is pinned to is none to go back to: it does not exist, or was never current.
    pub unproven: BTreeSet<ConfigRef>,
    /// Those of them whose change concerns it: it uses a key that is different in the new version.
    pub concerned: BTreeSet<ConfigRef>,
    /// The configs, of this release or not, of which it still has a version that failed.
    pub stranded: BTreeSet<ConfigRef>,
    pub rollout: Rollout,
    /// Its pods; new ones have the template's pins.
    pub units: Vec<Unit>,
    /// Whether it can be stopped after a first batch.
    pub can_gate: bool,
    /// Whether a gate would do harm now: a DaemonSet replaces pods at once that are younger than its gate holds, and a StatefulSet waits for
    /// a broken pod that its gate would keep.
    pub is_unfit_for_gate: bool,
    /// Whether it is stopped so right now.
    pub is_gated: bool,
    /// Whether somebody took the gate's fields back, although its release has not: then the rest follows.
    pub is_forced: bool,
    /// For how long, if that goes by time.
    pub holds_for: Option<Duration>,
    /// Where, if that depends on how many pods it has.
    pub partition: Option<Partition>,
}

/// All that is known of one release.
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each with its own name")]
#[derive(Debug)]
pub struct Observed<'a> {
    pub release: &'a Release,
    pub policy: &'a Policy,
    pub members: &'a [Member],
    /// What must end or pass before it may start.
    pub blocked: Option<Block>,
    /// The newer release that takes its place.
    pub superseded_by: Option<&'a str>,
    /// What the newer release has to wait for, if this one is under way: so long it is looked after, but goes no further.
    pub successor_waits: Option<Wait>,
    /// Whether its configs want to go elsewhere already, although no newer release is there yet.
    pub is_overtaken: bool,
    /// Whether a workload that is written now would still get its versions.
    pub is_offered: bool,
    /// Whether its versions are the good ones already: it succeeded, but could not record that.
    pub has_succeeded: bool,
    /// Why its versions are held because of it, if they are: it gave up, but could not record that.
    pub held: Option<&'a str>,
    /// What an earlier release recorded whose place this one takes.
    pub inherited: &'a [Record],
    /// Whom other releases move, or have moved since this one ended: they judge them.
    pub taken_over: &'a BTreeSet<ConsumerId>,
    /// Whether the pods are known by now.
    pub can_judge: bool,
    /// Whether pods may be deleted that a StatefulSet would wait for for ever.
    pub may_delete_pods: bool,
    /// What the API server said about consumers that it would not let us write.
    pub refused: &'a BTreeMap<ConsumerId, String>,
}

/// What keeps a release from taking another's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    Until(Timestamp),
    /// When that is, in words that end a sentence.
    For(String),
}

/// What a release waits for before it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    /// Another release moves one of its consumers.
    Release(String),
    /// The release whose place it takes has not made room yet.
    Earlier(String),
    /// A consumer was rolled too often of late.
    Storm { consumer: ConsumerId, until: Timestamp },
    /// The whole cluster rolls too much at the moment.
    Budget { until: Timestamp },
    /// What it goes by cannot be read, and why. It holds for a release under way, too.
    Unreadable(String),
}

impl Block {
    /// When it ends by itself.
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Storm { until, .. } | Self::Budget { until } => Some(*until),
            Self::Release(_) | Self::Earlier(_) | Self::Unreadable(_) => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Its versions must not be tried again, and not be joined any more.
    Hold { reason: String },
    /// Its versions are the good ones from now on.
    Succeed,
    /// Give a consumer these pins.
    Pin { consumer: ConsumerId, pins: Pins, gate: Gate },
    /// Let the rest of a consumer's pods follow.
    OpenGate { consumer: ConsumerId },
    /// Delete a pod that the template has left behind and that does not work: its controller waits for it and makes no other.
    DeletePod { consumer: ConsumerId, pod: String, uid: String },
}

impl Action {
    /// Whom it writes to.
    pub fn consumer(&self) -> Option<&ConsumerId> {
        match self {
            Self::Pin { consumer, .. } | Self::OpenGate { consumer } | Self::DeletePod { consumer, .. } => {
                Some(consumer)
            }
            Self::Hold { .. } | Self::Succeed => None,
        }
    }
}

/// How far a consumer may roll on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    Open,
    FirstBatch {
        size: u32,
        /// How long its pods may be ready before the rest would follow by itself.
        hold: Duration,
    },
}

/// What to record, and what to do: `Hold` and `Succeed` before it is recorded, the rest after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub progress: Progress,
    pub actions: Vec<Action>,
    /// When to look again although nothing changed.
    pub wake: Option<Timestamp>,
}

impl Release {
    pub fn configs(&self) -> impl Iterator<Item = &ConfigRef> {
        self.moves.iter().map(|step| &step.config)
    }

    /// Whether it takes a change back: it moves everybody to what is current.
    pub fn takes_back(&self) -> bool {
        !self.moves.is_empty() && self.moves.iter().all(|step| step.from == step.to)
    }

    /// Whether it failed, was left to a person, and that person wants it taken back.
    pub fn is_to_be_taken_back(&self) -> bool {
        let Progress { phase, ends_as, .. } = &self.progress;
        *phase == Phase::Failed && self.wishes.abort && *ends_as != Some(Phase::Aborted)
    }

    /// The pins that a consumer has once it is moved.
    fn target(&self, pins: &Pins, record: &Record) -> Pins {
        let mut wanted = pins.clone();
        for step in self.moves.iter().filter(|step| record.configs.contains(&step.config)) {
            if step.from == step.to {
                wanted.put(&step.config, record.pins_before.get(&step.config));
            } else {
                wanted.put(&step.config, Some(&Pin::Version(step.to.clone())));
            }
        }
        wanted
    }

    /// The pins that a consumer has once it is put back. What was changed besides stays.
    fn restored(pins: &Pins, record: &Record) -> Pins {
        let mut wanted = pins.clone();
        for config in &record.configs {
            wanted.put(config, record.pins_before.get(config));
        }
        wanted
    }
}

/// Whether a pod is of a template's newest generation, as far as the release is concerned.
pub fn is_new_pod<'a>(pod: &Pins, template: &Pins, mut configs: impl Iterator<Item = &'a ConfigRef>) -> bool {
    configs.all(|config| pod.get(config) == template.get(config))
}
