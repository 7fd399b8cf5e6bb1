//! One move of configs from their last good versions to new ones.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use lockstep_core::health::Before;
use lockstep_core::release::{self, ConsumerId, Counts, Progress, Record, Stage, Wishes};
use lockstep_core::{ConfigRef, Pins};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Source;

/// A move of one or several configs to new versions, across all their consumers, as one unit. Made by the operator; a person steers it
/// with `paused`, `promote` and `abort`.
#[allow(clippy::duplicated_attributes, reason = "each column has a type of its own")]
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "lockstep.dev",
    version = "v1alpha1",
    kind = "Release",
    namespaced,
    status = "ReleaseStatus",
    shortname = "rel",
    category = "lockstep",
    printcolumn(name = "Moves", type_ = "string", json_path = ".status.summary"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Done", type_ = "string", json_path = ".status.done"),
    printcolumn(name = "By", type_ = "string", json_path = ".spec.changedBy", priority = 1),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseSpec {
    /// What moves.
    #[schemars(length(max = 5_000))]
    pub moves: Vec<Move>,
    /// The release that this one takes the place of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub supersedes: Option<String>,
    /// Who changed the config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_by: Option<String>,
    /// Why, in their own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Set to stop where it is. Failures still put the old version back.
    #[serde(default, skip_serializing_if = "is_false")]
    pub paused: bool,
    /// Set to skip the bake for the rest of the release: now, and in later waves.
    #[serde(default, skip_serializing_if = "is_false")]
    pub promote: bool,
    /// Set to put the old version back.
    #[serde(default, skip_serializing_if = "is_false")]
    pub abort: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Move {
    pub source: Source,
    /// The last good version: the object that holds it.
    #[schemars(length(max = 253))]
    pub from: String,
    /// The object that holds the new version.
    #[schemars(length(max = 253))]
    pub to: String,
    /// The names of the two, as people use them.
    #[schemars(length(max = 253))]
    pub from_version: String,
    #[schemars(length(max = 253))]
    pub to_version: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseStatus {
    pub phase: String,
    /// In one sentence: why it is in this phase, or what it waits for.
    #[serde(default)]
    pub reason: String,
    /// What moves, in short: `app 1.0.0 → r2`.
    #[serde(default)]
    pub summary: String,
    /// How many consumers run it and are healthy: `2/3`.
    #[serde(default)]
    pub done: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_since: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    /// The wave that is under way.
    #[serde(default)]
    #[schemars(range(min = -2_147_483_648, max = 2_147_483_647))]
    pub wave: i32,
    /// Whether the first batch of each consumer is under way, or all.
    #[serde(default)]
    pub stage: ReleaseStage,
    /// How it ends once all is put back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_as: Option<String>,
    /// Until when it is looked after although it has ended: it succeeded and some do not run it yet, or it failed and was left to a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watched_until: Option<Time>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consumers: Vec<ReleaseConsumer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReleaseStage {
    #[default]
    FirstBatch,
    All,
}

/// A consumer within a release: how far it is, and what it was before.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseConsumer {
    pub kind: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = -2_147_483_648, max = 2_147_483_647))]
    pub wave: i32,
    pub state: String,
    #[serde(default)]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub desired: i32,
    #[serde(default)]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub updated: i32,
    #[serde(default)]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub ready: i32,
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub failing: i32,
    /// Whether it changed its code in the same step.
    #[serde(default, skip_serializing_if = "is_false")]
    pub joined: bool,
    /// Whether it came with the new version, and never ran another.
    #[serde(default, skip_serializing_if = "is_false")]
    pub newcomer: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progressed_at: Option<Time>,
    /// The configs that it is moved to.
    pub configs: Vec<String>,
    /// Its pins before the release.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pins_before: String,
    /// A digest of its pod spec before the release.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub template_before: String,
    /// The uid of the object that was moved.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Pods that had been broken for long before the release.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub broken_before: i32,
    /// How many of its pods went first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub batch: Option<i32>,
    /// When it got the new version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved_at: Option<Time>,
    /// Since when it is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Time>,
    /// Why nobody can say how it does under the new version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unjudged: Option<String>,
}

/// The conditions of a Release, for `kubectl wait`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseCondition {
    /// All consumers run it and are healthy.
    Succeeded,
    /// The last good version is back.
    RolledBack,
    /// Every consumer could be judged: none is without pods, broken since before, or left alone by a person.
    Judged,
    /// It has ended, one way or the other.
    Ended,
}

impl ReleaseCondition {
    pub const ALL: [Self; 4] = [Self::Succeeded, Self::RolledBack, Self::Judged, Self::Ended];

    pub fn name(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::RolledBack => "RolledBack",
            Self::Judged => "Judged",
            Self::Ended => "Ended",
        }
    }

    /// Whether it holds; None as long as it is open.
    pub fn holds(self, progress: &Progress) -> Option<bool> {
        let phase = progress.phase;
        let wanted = match self {
            Self::Ended => return Some(phase.has_ended()),
            Self::Judged => {
                let has_succeeded = phase == release::Phase::Succeeded;
                return has_succeeded.then(|| progress.consumers.iter().all(|record| record.unjudged.is_none()));
            }
            Self::Succeeded => release::Phase::Succeeded,
            Self::RolledBack => release::Phase::RolledBack,
        };
        phase.has_ended().then_some(phase == wanted)
    }
}

impl From<&ReleaseSpec> for Wishes {
    fn from(spec: &ReleaseSpec) -> Self {
        Self { paused: spec.paused, promote: spec.promote, abort: spec.abort }
    }
}

impl From<&Move> for release::Move {
    fn from(step: &Move) -> Self {
        Self { config: (&step.source).into(), from: step.from.clone(), to: step.to.clone() }
    }
}

impl Release {
    /// The release as the core knows it.
    pub fn to_core(&self) -> release::Release {
        release::Release {
            name: self.metadata.name.clone().unwrap_or_default(),
            moves: self.spec.moves.iter().map(Into::into).collect(),
            wishes: (&self.spec).into(),
            progress: self.status.as_ref().map(Progress::from).unwrap_or_default(),
        }
    }

    /// Whether there are consumers of which nobody can say how they do under the new version.
    pub fn is_unjudged(&self) -> bool {
        self.status.iter().flat_map(|status| &status.consumers).any(|consumer| consumer.unjudged.is_some())
    }

    pub fn phase(&self) -> release::Phase {
        self.status.as_ref().map(|status| phase(&status.phase)).unwrap_or_default()
    }
}

fn phase(name: &str) -> release::Phase {
    release::Phase::ALL.into_iter().find(|phase| phase.name() == name).unwrap_or_default()
}

impl From<&ReleaseStatus> for Progress {
    fn from(status: &ReleaseStatus) -> Self {
        Self {
            phase: phase(&status.phase),
            reason: status.reason.clone(),
            started_at: moment(status.started_at.as_ref()),
            phase_since: moment(status.phase_since.as_ref()),
            ended_at: moment(status.ended_at.as_ref()),
            wave: status.wave,
            stage: match status.stage {
                ReleaseStage::FirstBatch => Stage::FirstBatch,
                ReleaseStage::All => Stage::All,
            },
            ends_as: status.ends_as.as_deref().map(phase),
            watched_until: moment(status.watched_until.as_ref()),
            consumers: status.consumers.iter().map(Record::from).collect(),
        }
    }
}

impl ReleaseStatus {
    /// Progress as it is reported; the conditions are the caller's, because they need the old ones.
    pub fn new(progress: &Progress, moves: &[Move], conditions: Vec<Condition>) -> Self {
        let is_well = |record: &&Record| record.state == release::State::Ready && record.unjudged.is_none();
        let done = progress.consumers.iter().filter(is_well).count();
        let shown = |step: &Move| format!("{} {} → {}", step.source.name, step.from_version, step.to_version);
        Self {
            phase: progress.phase.to_string(),
            reason: progress.reason.clone(),
            summary: moves.iter().map(shown).collect::<Vec<_>>().join(", "),
            done: format!("{done}/{}", progress.consumers.len()),
            started_at: progress.started_at.map(Time),
            phase_since: progress.phase_since.map(Time),
            ended_at: progress.ended_at.map(Time),
            wave: progress.wave,
            stage: match progress.stage {
                Stage::FirstBatch => ReleaseStage::FirstBatch,
                Stage::All => ReleaseStage::All,
            },
            ends_as: progress.ends_as.map(|phase| phase.to_string()),
            watched_until: progress.watched_until.map(Time),
            consumers: progress.consumers.iter().map(ReleaseConsumer::from).collect(),
            conditions,
        }
    }
}

impl From<&Record> for ReleaseConsumer {
    fn from(record: &Record) -> Self {
        let Counts { desired, updated, ready, failing } = record.health;
        Self {
            kind: record.consumer.kind.clone(),
            name: record.consumer.name.clone(),
            wave: record.wave,
            state: record.state.name().to_owned(),
            desired: number(desired),
            updated: number(updated),
            ready: number(ready),
            failing: number(failing),
            joined: record.has_joined,
            newcomer: record.is_newcomer,
            progressed_at: record.progressed_at.map(Time),
            configs: record.configs.iter().map(ToString::to_string).collect(),
            pins_before: record.pins_before.to_string(),
            template_before: record.template_before.clone(),
            uid: record.uid.clone(),
            broken_before: number(record.before.broken),
            batch: record.batch.map(number),
            moved_at: record.before.moved_at.map(Time),
            ready_at: record.ready_at.map(Time),
            unjudged: record.unjudged.clone(),
        }
    }
}

impl From<&ReleaseConsumer> for Record {
    fn from(consumer: &ReleaseConsumer) -> Self {
        let state = release::State::ALL.into_iter().find(|state| state.name() == consumer.state);
        Self {
            consumer: ConsumerId { kind: consumer.kind.clone(), name: consumer.name.clone() },
            wave: consumer.wave,
            configs: consumer.configs.iter().filter_map(|config| config.parse::<ConfigRef>().ok()).collect(),
            pins_before: Pins::read(&consumer.pins_before),
            template_before: consumer.template_before.clone(),
            uid: consumer.uid.clone(),
            before: Before { broken: count(consumer.broken_before), moved_at: moment(consumer.moved_at.as_ref()) },
            has_joined: consumer.joined,
            is_newcomer: consumer.newcomer,
            state: state.unwrap_or(release::State::Waiting),
            progressed_at: moment(consumer.progressed_at.as_ref()),
            batch: consumer.batch.map(count),
            ready_at: moment(consumer.ready_at.as_ref()),
            unjudged: consumer.unjudged.clone(),
            health: Counts {
                desired: count(consumer.desired),
                updated: count(consumer.updated),
                ready: count(consumer.ready),
                failing: count(consumer.failing),
            },
        }
    }
}

fn moment(time: Option<&Time>) -> Option<Timestamp> {
    time.map(|time| time.0)
}

fn number(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_could_not_be_judged_is_not_done() {
        let record = |name: &str, unjudged: Option<&str>| Record {
            state: release::State::Ready,
            unjudged: unjudged.map(Into::into),
            ..Record::from(&ReleaseConsumer { kind: "Deployment".into(), name: name.into(), ..Default::default() })
        };
        let consumers = vec![record("web", None), record("batch", Some("it is scaled to zero"))];
        let progress = Progress { consumers, ..Progress::default() };
        assert_eq!(ReleaseStatus::new(&progress, &[], Vec::new()).done, "1/2");
    }

    #[test]
    fn progress_survives_being_written_and_read() {
        let at = Timestamp::from_second(1_000_000).ok();
        let record = Record {
            consumer: ConsumerId { kind: "Deployment".into(), name: "web".into() },
            wave: 2,
            configs: vec!["configmap/app".parse().unwrap()],
            pins_before: "configmap/app=app-1".parse().unwrap(),
            template_before: "f00".into(),
            uid: "u-1".into(),
            before: Before { broken: 2, moved_at: at },
            has_joined: true,
            is_newcomer: true,
            state: release::State::Rolling,
            batch: Some(1),
            progressed_at: at,
            ready_at: at,
            unjudged: Some("so".into()),
            health: Counts { desired: 3, updated: 2, ready: 1, failing: 1 },
        };
        let progress = Progress {
            phase: release::Phase::RollingBack,
            reason: "so".into(),
            started_at: at,
            phase_since: at,
            ended_at: None,
            wave: 2,
            stage: Stage::All,
            ends_as: Some(release::Phase::Aborted),
            watched_until: at,
            consumers: vec![record],
        };
        let status = ReleaseStatus::new(&progress, &[], Vec::new());
        let text = serde_json::to_string(&status).unwrap();
        let read: ReleaseStatus = serde_json::from_str(&text).unwrap();
        assert_eq!(Progress::from(&read), progress);
    }
}
