//! The scheduler and the kubelets: what happens to a pod after it was made.

mod behavior;
mod content;
mod report;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::daemon_set::{node_name, node_of};
use super::manners::{Manners, Span, State};
use super::read::{after, controller, is_going, text};
use super::turn::Turn;
use crate::Ran;
use crate::kinds::Key;
use crate::random::Random;
use crate::store::{Object, Refusal};
use behavior::{Behavior, Readiness};
use content::{Missing, Seen};

/// How long a container that crashed waits before its third start; twice as long before each further one.
const BACK_OFF: Duration = Duration::from_secs(10);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(300);
/// Who has run for so long since its last wait begins anew.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);
/// How soon the kubelet notices that a container has ended.
const NOTICED: Span = (Duration::from_millis(100), Duration::from_millis(1_000));
const VARIABLE_RETRY: Span = (Duration::from_secs(10), Duration::from_secs(14));
const MOUNT_RETRY: Duration = Duration::from_millis(500);
const LONGEST_MOUNT_RETRY: Duration = Duration::from_secs(122);
const SCHEDULE_RETRY: Duration = Duration::from_secs(300);
/// A start that is quicker than this is not reported on its way.
const WORTH_A_WORD: Duration = Duration::from_secs(1);

/// What the kubelets know of their pods, by uid.
pub(super) struct Kubelet {
    lives: BTreeMap<String, Life>,
    random: Random,
    /// How many pods each owner has had: each pod draws from a stream of its own, so that one pod more elsewhere changes nothing here.
    counts: BTreeMap<String, u32>,
}

struct Life {
    random: Random,
    stage: Stage,
    /// When something happens by itself.
    due: Timestamp,
    /// Until when no node has room for it.
    crowded_until: Option<Timestamp>,
    /// When its kubelet took it over.
    taken_over: Option<Timestamp>,
    behavior: Behavior,
    seen: Option<Seen>,
    retries: u32,
    restarts: u32,
    back_off: Option<Duration>,
    /// When the wait before a start was last made longer.
    backed_off: Timestamp,
    last: Option<End>,
    is_ready: bool,
    /// How long it will miss its probe, once.
    blip: Option<Duration>,
    stops_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    Unscheduled,
    /// Why it does not start, if it tried.
    Starting(Option<String>),
    Running(Run),
    /// It ended, and is started again at once.
    Ended,
    BackingOff(Duration),
    Done,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    started: Timestamp,
    /// When it ends by itself, and how.
    ends: Option<(Timestamp, i32)>,
    /// When it is ready, or not, the next time.
    turns: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct End {
    started: Timestamp,
    at: Timestamp,
    exit_code: i32,
}

/// What a kubelet has at hand.
pub(super) struct Around<'a> {
    pub(super) manners: &'a Manners,
    pub(super) machines: &'a State,
    /// Nodes that have been lost for so long that everybody knows.
    pub(super) gone: &'a [usize],
    pub(super) ran: &'a mut BTreeMap<String, Ran>,
}

impl Kubelet {
    pub(super) fn new(random: Random) -> Self {
        Self { lives: BTreeMap::new(), random, counts: BTreeMap::new() }
    }

    pub(super) fn forget(&mut self, uid: &str) {
        self.lives.remove(uid);
    }

    /// There is room again: whoever waits for it need not wait longer.
    pub(super) fn make_room(&mut self, now: Timestamp) {
        for life in self.lives.values_mut().filter(|life| life.stage == Stage::Unscheduled) {
            life.due = life.due.min(now);
        }
    }

    fn born(&mut self, pod: &Object, now: Timestamp, manners: &Manners) -> Life {
        let owner = controller(pod).map_or(pod.key.name.as_str(), |owner| text(&owner["name"]));
        let stem = format!("{}/{owner}", pod.key.namespace);
        let count = self.counts.entry(stem.clone()).or_default();
        *count += 1;
        let mut random = self.random.fork(&format!("{stem}#{count}"));
        let crowded =
            random.chance(manners.crowded_percent).then(|| random.between(manners.crowded.0, manners.crowded.1));
        let blip = random.chance(manners.blip_percent).then(|| random.between(manners.blip.0, manners.blip.1));
        let waits = random.between(manners.scheduling.0, manners.scheduling.1);
        Life {
            random,
            stage: Stage::Unscheduled,
            due: after(now, waits),
            crowded_until: crowded.map(|time| after(now, time)),
            taken_over: None,
            behavior: Behavior::default(),
            seen: None,
            retries: 0,
            restarts: 0,
            back_off: None,
            backed_off: now,
            last: None,
            is_ready: false,
            blip,
            stops_at: None,
        }
    }

    /// One look at a pod.
    pub(super) fn look(&mut self, turn: &mut Turn<'_>, pod: &Object, around: &mut Around<'_>) -> Result<(), Refusal> {
        let uid = pod.uid();
        let mut life = match self.lives.remove(uid) {
            Some(life) => life,
            None => self.born(pod, turn.now, around.manners),
        };
        let looked = life.look(turn, pod, around);
        self.lives.insert(uid.to_owned(), life);
        looked
    }
}

impl Life {
    fn look(&mut self, turn: &mut Turn<'_>, pod: &Object, around: &mut Around<'_>) -> Result<(), Refusal> {
        let node = node_of(&pod.value).filter(|_| self.taken_over.is_some());
        if node.is_some_and(|node| around.machines.lost.contains(&node)) {
            return Ok(());
        }
        if is_going(pod) {
            return self.stop(turn, pod, around.manners);
        }
        if turn.now < self.due {
            // Somebody else may have spoken of it meanwhile.
            turn.again_at(self.due);
            return self.speak(turn, pod);
        }
        match self.stage.clone() {
            Stage::Unscheduled => self.schedule(turn, pod, around)?,
            Stage::Starting(_) | Stage::Ended => self.start(turn, pod, around),
            Stage::Running(run) => self.go_on(turn, pod, &run, around.manners),
            Stage::BackingOff(waited) => {
                self.back_off = Some((waited * 2).min(LONGEST_BACK_OFF));
                self.backed_off = turn.now;
                self.start(turn, pod, around);
            }
            Stage::Done => self.due = Timestamp::MAX,
        }
        if self.due < Timestamp::MAX {
            turn.again_at(self.due);
        }
        self.speak(turn, pod)
    }

    fn draw(&mut self, span: Span) -> Duration {
        self.random.between(span.0, span.1)
    }

    fn stop(&mut self, turn: &mut Turn<'_>, pod: &Object, manners: &Manners) -> Result<(), Refusal> {
        let has_ended = matches!(self.stage, Stage::Done | Stage::Unscheduled);
        let grace = Duration::from_secs(pod.value["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or(30));
        let at = match self.stops_at {
            Some(at) => at,
            None if has_ended => turn.now,
            None => {
                let is_stubborn = self.random.chance(manners.stubborn_percent);
                let time = self.draw(manners.stopping);
                after(turn.now, if is_stubborn { grace } else { time.min(grace) })
            }
        };
        self.stops_at = Some(at);
        if at > turn.now {
            turn.again_at(at);
            return Ok(());
        }
        turn.end(pod)
    }

    fn schedule(&mut self, turn: &mut Turn<'_>, pod: &Object, around: &Around<'_>) -> Result<(), Refusal> {
        let is_crowded = self.crowded_until.is_some_and(|until| until > turn.now) || around.machines.is_full;
        let wanted = node_of(&pod.value);
        let nodes: Vec<usize> = match wanted {
            Some(node) => vec![node],
            None => (0..around.manners.nodes).filter(|node| !around.gone.contains(node)).collect(),
        };
        let Some(node) = self.random.pick(&nodes).copied().filter(|_| !is_crowded) else {
            self.due = self.crowded_until.filter(|until| *until > turn.now).unwrap_or(after(turn.now, SCHEDULE_RETRY));
            return report::unschedulable(turn, pod);
        };
        turn.patch(&pod.key, json!({"spec": {"nodeName": node_name(node)}}))?;
        self.taken_over = Some(turn.now);
        self.stage = Stage::Starting(None);
        self.due = after(turn.now, self.random.between(around.manners.starting.0, around.manners.starting.1));
        Ok(())
    }

    /// A pod that is about to start is not spoken of on its way.
    fn speak(&self, turn: &mut Turn<'_>, pod: &Object) -> Result<(), Refusal> {
        let is_quick =
            self.stage == Stage::Starting(None) && self.retries == 0 && self.due <= after(turn.now, WORTH_A_WORD);
        if self.taken_over.is_none() || is_quick { Ok(()) } else { self.report(turn, pod) }
    }

    fn start(&mut self, turn: &mut Turn<'_>, pod: &Object, around: &mut Around<'_>) {
        let read = content::read(turn.store, pod);
        let seen = match (read, &self.seen) {
            (Ok(seen), _) => seen,
            // What was mounted once stays.
            (Err(Missing::Volume), Some(_)) => self.seen.take().unwrap_or_default(),
            (Err(Missing::Volume), None) => {
                self.stage = Stage::Starting(None);
                let wait = MOUNT_RETRY.saturating_mul(1 << self.retries.min(10)).min(LONGEST_MOUNT_RETRY);
                self.retries += 1;
                self.due = after(turn.now, wait);
                return;
            }
            (Err(Missing::Variable(message)), _) => {
                self.stage = Stage::Starting(Some(message));
                self.due = after(turn.now, self.random.between(VARIABLE_RETRY.0, VARIABLE_RETRY.1));
                return;
            }
        };
        let ran = Ran { pod: pod.key.clone(), references: seen.references.clone(), at: turn.now };
        around.ran.insert(pod.uid().to_owned(), ran);
        self.behavior = Behavior::parse(&seen.behavior);
        self.seen = Some(seen);
        self.retries = 0;
        self.restarts += u32::from(self.last.is_some());
        self.run(turn, pod, around.manners);
    }

    fn run(&mut self, turn: &mut Turn<'_>, pod: &Object, manners: &Manners) {
        let now = turn.now;
        let crash = self.behavior.crash_after.map(|time| (after(now, time), 1));
        let is_service = !matches!(text(&pod.value["spec"]["restartPolicy"]), "Never" | "OnFailure");
        let work = if is_service { None } else { Some((after(now, self.draw(manners.working)), 0)) };
        let ends = crash.into_iter().chain(work).min();
        let ready_after = match self.behavior.ready_after {
            Readiness::Never => None,
            Readiness::After(time) => Some(time),
            Readiness::AtOnce if self.random.chance(manners.probed_percent) => Some(self.draw(manners.probing)),
            Readiness::AtOnce => Some(Duration::ZERO),
        };
        let run = Run { started: now, ends, turns: ready_after.map(|time| after(now, time)) };
        self.is_ready = false;
        self.go_on(turn, pod, &run, manners);
    }

    /// What is due in a running container: it ends, or its readiness turns.
    fn go_on(&mut self, turn: &Turn<'_>, pod: &Object, run: &Run, manners: &Manners) {
        let now = turn.now;
        let mut run = run.clone();
        if let Some((_, exit_code)) = run.ends.filter(|(at, _)| *at <= now) {
            self.ended(turn, pod, End { started: run.started, at: now, exit_code });
            return;
        }
        if run.turns.is_some_and(|at| at <= now) {
            self.is_ready = !self.is_ready;
            run.turns = self.next_turn(manners).map(|time| after(now, time));
        }
        let next = [run.ends.map(|(at, _)| at), run.turns].into_iter().flatten().min();
        self.due = next.unwrap_or(Timestamp::MAX);
        self.stage = Stage::Running(run);
    }

    fn next_turn(&mut self, manners: &Manners) -> Option<Duration> {
        match (self.behavior.flap, self.is_ready) {
            (Some(time), _) => Some(time),
            (None, true) if self.blip.is_some() => Some(self.draw(manners.blip_after)),
            (None, true) => None,
            (None, false) => self.blip.take(),
        }
    }

    fn ended(&mut self, turn: &Turn<'_>, pod: &Object, end: End) {
        self.is_ready = false;
        let policy = text(&pod.value["spec"]["restartPolicy"]);
        let is_over = policy == "Never" || (policy == "OnFailure" && end.exit_code == 0);
        self.last = Some(end);
        if is_over {
            self.stage = Stage::Done;
            self.due = Timestamp::MAX;
            return;
        }
        let is_forgiven = after(self.backed_off, FORGIVEN_AFTER) < turn.now;
        let wait = if let Some(wait) = self.back_off.filter(|_| !is_forgiven) {
            self.stage = Stage::BackingOff(wait);
            wait
        } else {
            self.back_off = Some(BACK_OFF);
            self.backed_off = turn.now;
            self.stage = Stage::Ended;
            self.draw(NOTICED)
        };
        self.due = after(turn.now, wait);
    }
}

/// Whether pods of this spec cannot become ready, by what they read.
pub(crate) fn cannot_be_ready(spec: &Value, namespace: &str, find: &dyn Fn(&Key) -> Option<Arc<Object>>) -> bool {
    let Ok(seen) = content::read_spec(spec, namespace, find) else { return false };
    let Behavior { ready_after, crash_after, .. } = Behavior::parse(&seen.behavior);
    ready_after == Readiness::Never || crash_after == Some(Duration::ZERO)
}
