//! Rollouts as Argo Rollouts 1.10 treats them: a canary with steps, which people promote and abort.

mod canary;
mod status;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::read::{self, count, count_or, is_going, items, text};
use super::sets::{self, Made, Plan, ROLLOUT, Scale, Set};
use super::turn::{Turn, hash};
use crate::kinds::{Key, Kind};
use crate::store::{Object, Refusal};
use canary::{Account, Side};

const PAUSE_STEP: &str = "CanaryPauseStep";

struct View<'a> {
    object: &'a Object,
    spec: &'a Value,
    /// As it was when the turn began.
    status: &'a Value,
    template: &'a Value,
    /// The generation of the workload that the template was taken from.
    workload: Option<u64>,
    sets: Vec<Set>,
    /// Places in `sets`.
    new: Option<usize>,
    stable: Option<usize>,
    pauses: Pauses,
}

/// What this turn does about pauses and aborts.
#[expect(clippy::struct_excessive_bools, reason = "independent decisions, each with its own name")]
#[derive(Default)]
struct Pauses {
    adds: bool,
    removes: bool,
    clears: bool,
    aborts: bool,
    removes_abort: bool,
}

pub(super) fn sync(turn: &mut Turn<'_>, key: &Key) -> Result<(), Refusal> {
    let Some(object) = turn.get(key).filter(|object| !is_going(object)) else { return Ok(()) };
    let spec = &object.value["spec"];
    let reference = &spec["workloadRef"];
    let workload = reference["name"].as_str().map(|name| Key::new(Kind::Deployment, &key.namespace, name));
    // One whose workload is not there yet has nothing to roll.
    let workload = match workload.map(|key| turn.get(&key)) {
        Some(None) => return Ok(()),
        Some(found) => found,
        None => None,
    };
    let template = workload.as_ref().map_or(&spec["template"], |workload| &workload.value["spec"]["template"]);
    let sets = sets::all(turn, &object)?;
    let null = Value::Null;
    let mut view = View {
        object: &object,
        spec,
        status: object.value.get("status").unwrap_or(&null),
        template,
        workload: workload.as_ref().map(|workload| read::generation(workload)),
        sets: Vec::new(),
        new: None,
        stable: None,
        pauses: Pauses::default(),
    };
    view.take_in(sets);
    view.act(turn)
}

impl<'a> View<'a> {
    fn take_in(&mut self, sets: Vec<Set>) {
        let (new, others) = sets::split(sets, self.template);
        self.sets = others;
        if let Some(new) = new {
            self.new = Some(self.sets.len());
            self.sets.push(new);
        }
        let stable = text(&self.status["stableRS"]);
        self.stable = self.sets.iter().position(|set| !stable.is_empty() && set.hash() == stable);
    }

    fn replicas(&self) -> u32 {
        count_or(&self.spec["replicas"], 1)
    }

    fn steps(&self) -> &'a [Value] {
        self.spec["strategy"]["canary"]["steps"].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    fn step_index(&self) -> usize {
        usize::try_from(count(&self.status["currentStepIndex"])).unwrap_or(usize::MAX)
    }

    fn step(&self) -> Option<&'a Value> {
        self.steps().get(self.step_index())
    }

    fn step_hash(&self) -> String {
        hash(&self.spec["strategy"]["canary"]["steps"], 0)
    }

    fn new_set(&self) -> Option<&Set> {
        self.new.map(|place| &self.sets[place])
    }

    fn stable_set(&self) -> Option<&Set> {
        self.stable.map(|place| &self.sets[place])
    }

    fn pod_hash(&self) -> String {
        let collisions = count(&self.status["collisionCount"]);
        self.new_set().map_or_else(|| hash(self.template, collisions), |set| set.hash().to_owned())
    }

    fn sum(&self, of: impl Fn(&Set) -> u32) -> u32 {
        sets::total(&self.sets, of)
    }

    fn scale_note(&self) -> Scale {
        Scale { desired: self.replicas(), max: self.replicas() }
    }

    fn is_aborted(&self) -> bool {
        !self.pauses.removes_abort && (self.pauses.aborts || self.status["abort"] == true)
    }

    /// Whether it is stopped at a step, or by its user.
    fn is_paused(&self) -> bool {
        items(&self.status["pauseConditions"]).next().is_some() || self.spec["paused"] == true
    }

    fn pause_start(&self) -> Option<Timestamp> {
        let mut conditions = items(&self.status["pauseConditions"]);
        conditions.find(|found| found["reason"] == PAUSE_STEP).and_then(|found| read::time(&found["startTime"]))
    }

    fn act(&mut self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        if self.note_pause(turn)? {
            return Ok(());
        }
        if self.is_other_template() {
            // What it was doing is forgotten, also an abort; the new ReplicaSet comes with the next turn.
            self.refresh_new(turn)?;
            return self.write_reset(turn);
        }
        let is_scaling = sets::is_scaling(&self.sets, &ROLLOUT, self.replicas());
        if !is_scaling {
            self.make_new(turn)?;
        }
        self.refresh_new(turn)?;
        if self.spec["paused"] != true {
            self.clean_up(turn)?;
            if self.scale(turn)? {
                return self.write_status(turn);
            }
        }
        self.pause(turn);
        self.write_status(turn)
    }

    /// Whether the template or the steps are others than those of the last turn.
    fn is_other_template(&self) -> bool {
        let is_other = |name: &str, now: String| {
            let known = text(&self.status[name]);
            !known.is_empty() && known != now
        };
        is_other("currentStepHash", self.step_hash()) || is_other("currentPodHash", self.pod_hash())
    }

    fn plan(&self, replicas: u32) -> Plan<'_> {
        let others = self.sets.iter().enumerate().filter(|(place, _)| Some(*place) != self.new);
        let newest = others.map(|(_, set)| set.revision(&ROLLOUT)).max().unwrap_or(0);
        let scale = self.scale_note();
        Plan { owner: self.object, template: self.template, words: &ROLLOUT, replicas, revision: newest + 1, scale }
    }

    fn refresh_new(&mut self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let Some(place) = self.new else { return Ok(()) };
        if let Some(refreshed) = sets::refresh(turn, &self.sets[place], &self.plan(0))? {
            self.sets[place] = refreshed;
        }
        let revision = read::annotation(&self.sets[place].0, ROLLOUT.revision);
        if read::annotation(self.object, ROLLOUT.revision) != revision {
            let patch = json!({"metadata": {"annotations": {ROLLOUT.revision: revision}}});
            turn.patch(&self.object.key, patch)?;
        }
        Ok(())
    }

    fn make_new(&mut self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        if self.new.is_some() {
            return Ok(());
        }
        let replicas = self.account().next().0;
        match sets::make(turn, &self.plan(replicas))? {
            Made::New(set) | Made::Old(set) => {
                self.new = Some(self.sets.len());
                self.sets.push(set);
                Ok(())
            }
            Made::Collision(refusal) => {
                let mut status = self.status.clone();
                status["collisionCount"] = json!(count(&status["collisionCount"]) + 1);
                turn.set_status(self.object, status)?;
                Err(refusal)
            }
        }
    }

    /// How much of it is to be new at this step.
    fn weight(&self) -> u32 {
        let status = self.status;
        if status["promoteFull"] == true || status["currentPodHash"] == status["stableRS"] {
            return 100;
        }
        if status["abort"] == true {
            return 0;
        }
        let index = self.step_index();
        if index >= self.steps().len() {
            return 100;
        }
        let weights = self.steps()[..=index].iter().rev().filter_map(|step| step.get("setWeight"));
        weights.map(count).next().unwrap_or(0)
    }

    fn account(&self) -> Account {
        let (surge, unavailable) = canary::fenceposts(self.spec);
        let side = |set: &Set| Side { wanted: set.wanted(), available: set.available() };
        let stable = self.stable.filter(|place| Some(*place) != self.new);
        let others = self.others().map(|place| self.sets[place].wanted()).sum();
        Account {
            replicas: self.replicas(),
            weight: self.weight(),
            surge,
            unavailable,
            new: self.new_set().map(side).unwrap_or_default(),
            stable: stable.map(|place| side(&self.sets[place])),
            others,
        }
    }

    /// The places of those that are neither new nor stable.
    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (new, stable) = (self.new, self.stable);
        (0..self.sets.len()).filter(move |place| Some(*place) != new && Some(*place) != stable)
    }

    fn scale_one(&mut self, turn: &mut Turn<'_>, place: usize, to: u32) -> Result<bool, Refusal> {
        let (note, set) = (self.scale_note(), &mut self.sets[place]);
        let noted = read::annotation(&set.0, ROLLOUT.desired).parse::<u32>().ok();
        let is_other = set.wanted() != to;
        if is_other || noted != Some(note.desired) {
            sets::write_scale(turn, set, to, &ROLLOUT, note)?;
        }
        Ok(is_other)
    }

    /// One step towards what is asked for; true if something changed: then the rest comes with the next turn.
    fn scale(&mut self, turn: &mut Turn<'_>) -> Result<bool, Refusal> {
        let (_, stable_size) = self.account().next();
        if let Some(stable) = self.stable.filter(|place| Some(*place) != self.new)
            && self.scale_one(turn, stable, stable_size)?
        {
            return Ok(true);
        }
        let (new_size, _) = self.account().next();
        if let Some(new) = self.new
            && self.scale_one(turn, new, new_size)?
        {
            return Ok(true);
        }
        self.shrink_others(turn)
    }

    /// Takes pods from ReplicaSets that nobody needs: first what does not work anyway.
    fn shrink_others(&mut self, turn: &mut Turn<'_>) -> Result<bool, Refusal> {
        let mut has_scaled = false;
        for place in self.others() {
            let set = &self.sets[place];
            let working = set.wanted().min(set.available());
            has_scaled |= self.scale_one(turn, place, working)?;
        }
        let (_, unavailable) = canary::fenceposts(self.spec);
        let least = self.replicas().saturating_sub(unavailable);
        let mut spare = self.sum(Set::available).saturating_sub(least);
        for place in self.others().collect::<Vec<_>>().into_iter().rev() {
            let wanted = self.sets[place].wanted();
            let less = wanted.min(spare);
            has_scaled |= self.scale_one(turn, place, wanted - less)?;
            spare -= less;
        }
        Ok(has_scaled)
    }

    fn clean_up(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let others: Vec<Set> = self.others().map(|place| self.sets[place].clone()).collect();
        let limit = usize::try_from(count_or(&self.spec["revisionHistoryLimit"], 10)).unwrap_or(usize::MAX);
        sets::clean_up(turn, &others, limit, |set| set.revision(&ROLLOUT))
    }

    /// Stops at a pause, and looks again when its time is over.
    fn pause(&mut self, turn: &mut Turn<'_>) {
        let Some(step) = self.step().filter(|_| self.spec["paused"] != true && self.status["promoteFull"] != true)
        else {
            return;
        };
        let Some(pause) = step.get("pause") else { return };
        match (self.pause_start(), duration(pause)) {
            (None, _) => self.pauses.adds = self.status["controllerPause"] != true,
            (Some(start), Some(seconds)) => {
                let end = read::after(start, std::time::Duration::from_secs(seconds));
                // It must have passed: at that very moment it has not.
                turn.again_at(read::after(end, std::time::Duration::from_millis(1)));
            }
            (Some(_), None) => {}
        }
    }

    fn is_step_complete(&self, turn: &Turn<'_>) -> bool {
        let Some(step) = self.step().filter(|_| self.spec["paused"] != true) else { return false };
        if let Some(pause) = step.get("pause") {
            let start = self.pause_start();
            let is_resumed = self.status["controllerPause"] == true && start.is_none();
            let is_over = start
                .zip(duration(pause))
                .is_some_and(|(start, seconds)| read::after(start, std::time::Duration::from_secs(seconds)) < turn.now);
            return is_resumed || is_over;
        }
        step.get("setWeight").is_some() && self.is_at_goal()
    }

    /// Whether as many new pods as the step asks for are available, and as many stable ones there.
    fn is_at_goal(&self) -> bool {
        let (new_size, stable_size) = self.account().next();
        let is_new = |set: &Set| set.wanted() == new_size && set.available() == new_size;
        let is_stable = |set: &Set| set.wanted() == stable_size && set.current() == stable_size;
        let others: u32 = self.others().map(|place| self.sets[place].available()).sum();
        self.new_set().is_some_and(is_new) && self.stable_set().is_some_and(is_stable) && others == 0
    }
}

/// How long a pause lasts: `30`, `"30s"`, `"5m"`; none if it waits for a person.
fn duration(pause: &Value) -> Option<u64> {
    let value = pause.get("duration").filter(|value| !value.is_null())?;
    if let Some(seconds) = value.as_u64() {
        return Some(seconds);
    }
    let text = value.as_str()?;
    let unit = |suffix: char, seconds: u64| Some(text.strip_suffix(suffix)?.parse::<u64>().ok()? * seconds);
    text.parse().ok().or_else(|| unit('s', 1)).or_else(|| unit('m', 60)).or_else(|| unit('h', 3600))
}
