//! Deployments: ReplicaSets by template, rolled with surge and unavailability, and a status that follows later.

use serde_json::{Value, json};

use super::read::{self, Round, condition, count, count_or, is_going, seconds, share, text};
use super::sets::{self, DEPLOYMENT, Made, Plan, Scale, Set, total};
use super::turn::{Turn, counts, remove_condition, set_condition, touch_condition};
use crate::kinds::{Key, Kind};
use crate::store::{Object, Refusal};

const PROGRESSING: &str = "Progressing";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const COMPLETE: &str = "NewReplicaSetAvailable";
const PAUSED: &str = "DeploymentPaused";

/// A Deployment with its ReplicaSets, as its controller sees them.
struct View<'a> {
    object: &'a Object,
    spec: &'a Value,
    /// The status as it is, and what this turn makes of its conditions.
    status: Value,
    new: Option<Set>,
    old: Vec<Set>,
}

pub(super) fn sync(turn: &mut Turn<'_>, key: &Key) -> Result<(), Refusal> {
    let Some(object) = turn.get(key) else { return Ok(()) };
    let sets = sets::all(turn, &object)?;
    let spec = &object.value["spec"];
    let (new, old) = sets::split(sets, &spec["template"]);
    let status = object.value.get("status").cloned().unwrap_or_else(|| json!({}));
    let mut view = View { object: &object, spec, status, new, old };
    if is_going(&object) {
        view.adopt_new(turn)?;
        return view.write_status(turn);
    }
    view.note_pause(turn);
    view.adopt_new(turn)?;
    if spec["paused"] == true || sets::is_scaling(view.all(), &DEPLOYMENT, view.desired()) {
        return view.scale_only(turn);
    }
    if text(&spec["strategy"]["type"]) == "Recreate" { view.recreate(turn) } else { view.roll(turn) }
}

impl View<'_> {
    fn desired(&self) -> u32 {
        count_or(&self.spec["replicas"], 1)
    }

    fn is_recreated(&self) -> bool {
        text(&self.spec["strategy"]["type"]) == "Recreate"
    }

    /// How many pods may be too many, and how many may be missing. Both together cannot be none: then nothing would ever move.
    fn fenceposts(&self) -> (u32, u32) {
        if self.is_recreated() {
            return (0, 0);
        }
        let (rolling, desired) = (&self.spec["strategy"]["rollingUpdate"], self.desired());
        let quarter = json!("25%");
        let or_quarter = |name: &str| rolling.get(name).unwrap_or(&quarter);
        let surge = share(or_quarter("maxSurge"), desired, Round::Up).unwrap_or(0);
        let unavailable = share(or_quarter("maxUnavailable"), desired, Round::Down).unwrap_or(0);
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        (surge, unavailable.min(desired))
    }

    fn scale_note(&self) -> Scale {
        Scale { desired: self.desired(), max: self.desired() + self.fenceposts().0 }
    }

    fn all(&self) -> impl Iterator<Item = &Set> {
        self.old.iter().chain(&self.new)
    }

    fn sum(&self, of: impl Fn(&Set) -> u32) -> u32 {
        self.all().map(of).sum()
    }

    fn deadline(&self) -> Option<u64> {
        // The API server fills in ten minutes; the largest number means none.
        let seconds = self.spec["progressDeadlineSeconds"].as_u64().unwrap_or(600);
        (seconds < u64::from(i32::MAX.unsigned_abs())).then_some(seconds)
    }

    fn set(&mut self, turn: &Turn<'_>, is: &str, reason: &str, message: &str) {
        if self.deadline().is_some() {
            set_condition(&mut self.status, PROGRESSING, is, reason, message, turn.now);
        }
    }

    fn progress_reason(&self) -> Option<&str> {
        condition(&self.status, PROGRESSING).map(|found| text(&found["reason"]))
    }

    /// So that the time of a pause does not count as a lack of progress.
    fn note_pause(&mut self, turn: &Turn<'_>) {
        let (is_paused, reason) = (self.spec["paused"] == true, self.progress_reason());
        if reason == Some(TIMED_OUT) || is_paused == (reason == Some(PAUSED)) {
            return;
        }
        if is_paused {
            self.set(turn, "Unknown", PAUSED, "Deployment is paused");
        } else {
            self.set(turn, "Unknown", "DeploymentResumed", "Deployment is resumed");
        }
    }

    fn plan(&self, replicas: u32) -> Plan<'_> {
        let newest = self.old.iter().map(|set| set.revision(&DEPLOYMENT)).max().unwrap_or(0);
        let template = &self.spec["template"];
        let scale = self.scale_note();
        Plan { owner: self.object, template, words: &DEPLOYMENT, replicas, revision: newest + 1, scale }
    }

    /// If there is a ReplicaSet with the template already, it is the new one: with the next revision's number.
    fn adopt_new(&mut self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let Some(new) = &self.new else { return Ok(()) };
        if let Some(refreshed) = sets::refresh(turn, new, &self.plan(0))? {
            self.new = Some(refreshed);
        }
        self.note_revision(turn)?;
        if self.progress_reason().is_none() {
            self.set(turn, "True", "FoundNewReplicaSet", "Found new replica set");
        }
        Ok(())
    }

    fn note_revision(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let Some(new) = &self.new else { return Ok(()) };
        let revision = read::annotation(&new.0, DEPLOYMENT.revision);
        if read::annotation(self.object, DEPLOYMENT.revision) != revision {
            let patch = json!({"metadata": {"annotations": {DEPLOYMENT.revision: revision}}});
            turn.patch(&self.object.key, patch)?;
        }
        Ok(())
    }

    /// Makes the new ReplicaSet if it is not there.
    fn make_new(&mut self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        if self.new.is_some() {
            return Ok(());
        }
        let replicas = self.room_for_new(0);
        match sets::make(turn, &self.plan(replicas))? {
            Made::New(set) => {
                let message = format!("Created new replica set \"{}\"", set.0.key.name);
                self.new = Some(set);
                self.set(turn, "True", "NewReplicaSetCreated", &message);
            }
            Made::Old(set) => self.new = Some(set),
            Made::Collision(refusal) => {
                let collisions = count(&self.status["collisionCount"]);
                self.status["collisionCount"] = json!(collisions + 1);
                turn.set_status(self.object, self.status.clone())?;
                return Err(refusal);
            }
        }
        self.note_revision(turn)
    }

    /// How many pods the new ReplicaSet may have now.
    fn room_for_new(&self, has: u32) -> u32 {
        if self.is_recreated() {
            return self.desired();
        }
        let most = self.desired() + self.fenceposts().0;
        let room = most.saturating_sub(self.sum(Set::wanted));
        has + room.min(self.desired().saturating_sub(has))
    }

    fn scale_new(&mut self, turn: &mut Turn<'_>, to: u32) -> Result<bool, Refusal> {
        let note = self.scale_note();
        match &mut self.new {
            Some(new) => sets::scale(turn, new, to, &DEPLOYMENT, note),
            None => Ok(false),
        }
    }

    fn scale_old(&mut self, turn: &mut Turn<'_>, place: usize, to: u32) -> Result<bool, Refusal> {
        let note = self.scale_note();
        sets::scale(turn, &mut self.old[place], to, &DEPLOYMENT, note)
    }

    fn roll(&mut self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        self.make_new(turn)?;
        let has = self.new.as_ref().map_or(0, Set::wanted);
        let to = if has > self.desired() { self.desired() } else { self.room_for_new(has) };
        if !self.scale_new(turn, to)? {
            self.shrink_old(turn)?;
        }
        self.write_progress(turn)
    }

    /// Takes pods from the old ReplicaSets: first what does not work anyway, then as many as new ones have become available.
    fn shrink_old(&mut self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        if total(&self.old, Set::wanted) == 0 {
            return Ok(());
        }
        let least = self.desired() - self.fenceposts().1;
        let unavailable = self.new.as_ref().map_or(0, |new| new.wanted().saturating_sub(new.available()));
        let Some(most) = self.sum(Set::wanted).checked_sub(least + unavailable).filter(|most| *most > 0) else {
            return Ok(());
        };
        self.take(turn, most, |set| set.wanted().saturating_sub(set.available()))?;
        let spare = self.sum(Set::available).saturating_sub(least);
        self.take(turn, spare, Set::wanted)
    }

    /// Takes so many pods from the old ReplicaSets, the oldest first, and from each no more than this.
    fn take(&mut self, turn: &mut Turn<'_>, most: u32, of: impl Fn(&Set) -> u32) -> Result<(), Refusal> {
        let mut taken = 0;
        for place in 0..self.old.len() {
            let set = &self.old[place];
            let less = of(set).min(set.wanted()).min(most - taken);
            let to = set.wanted() - less;
            self.scale_old(turn, place, to)?;
            taken += less;
        }
        Ok(())
    }

    fn recreate(&mut self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let mut has_shrunk = false;
        for place in 0..self.old.len() {
            has_shrunk |= self.scale_old(turn, place, 0)?;
        }
        if has_shrunk || self.is_old_running(turn) {
            return self.write_progress(turn);
        }
        self.make_new(turn)?;
        let desired = self.desired();
        self.scale_new(turn, desired)?;
        self.write_progress(turn)
    }

    fn is_old_running(&self, turn: &Turn<'_>) -> bool {
        let is_alive = |pod: &Object| pod.key.kind == Kind::Pod && !read::has_ended(pod);
        total(&self.old, Set::current) > 0
            || self.old.iter().any(|set| turn.store.owned_by(set.uid()).any(|pod| is_alive(pod)))
    }

    /// While it is paused or scaled, nothing is rolled.
    fn scale_only(&mut self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let (desired, note) = (self.desired(), self.scale_note());
        let mut active: Vec<&mut Set> =
            self.old.iter_mut().chain(&mut self.new).filter(|set| set.wanted() > 0).collect();
        match active.as_mut_slice() {
            [] => self.scale_idle(turn)?,
            [only] => {
                sets::scale(turn, only, desired, &DEPLOYMENT, note)?;
            }
            _ => self.scale_all(turn)?,
        }
        let status = self.new_status(turn);
        if self.spec["paused"] == true {
            self.clean_up(turn)?;
        }
        turn.set_status(self.object, status)
    }

    fn scale_idle(&mut self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let (desired, note) = (self.desired(), self.scale_note());
        let Some(set) = self.new.as_mut().or_else(|| self.old.last_mut()) else { return Ok(()) };
        sets::scale(turn, set, desired, &DEPLOYMENT, note)?;
        Ok(())
    }

    /// In the middle of a rollout the difference goes to the largest ReplicaSet, and not proportionally to all.
    fn scale_all(&mut self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let (desired, note) = (self.desired(), self.scale_note());
        let most = if desired > 0 { note.max } else { 0 };
        let has = self.sum(Set::wanted);
        let is_full = |new: &Set| new.wanted() == desired && new.available() == desired;
        if self.new.as_ref().is_some_and(is_full) {
            for place in 0..self.old.len() {
                self.scale_old(turn, place, 0)?;
            }
            return Ok(());
        }
        let mut active: Vec<&mut Set> =
            self.old.iter_mut().chain(&mut self.new).filter(|set| set.wanted() > 0).collect();
        active.sort_by_key(|set| std::cmp::Reverse(set.wanted()));
        let (mut add, mut take) = (most.saturating_sub(has), has.saturating_sub(most));
        for set in active {
            let less = take.min(set.wanted());
            let to = set.wanted() + add - less;
            (add, take) = (0, take - less);
            sets::write_scale(turn, set, to, &DEPLOYMENT, note)?;
        }
        Ok(())
    }

    fn clean_up(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let limit = count_or(&self.spec["revisionHistoryLimit"], 10);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        sets::clean_up(turn, &self.old, limit, |set| set.revision(&DEPLOYMENT))
    }

    fn is_complete(&self, status: &Value) -> bool {
        let is_all = |name: &str| count(&status[name]) == self.desired();
        is_all("updatedReplicas")
            && is_all("replicas")
            && is_all("availableReplicas")
            && status["observedGeneration"].as_u64().unwrap_or(0) >= read::generation(self.object)
    }

    fn new_status(&self, turn: &Turn<'_>) -> Value {
        let available = self.sum(Set::available);
        let mut status = counts([
            ("replicas", self.sum(Set::current)),
            ("updatedReplicas", self.new.as_ref().map_or(0, Set::current)),
            ("readyReplicas", self.sum(Set::ready)),
            ("availableReplicas", available),
            ("unavailableReplicas", self.sum(Set::wanted).saturating_sub(available)),
            ("collisionCount", count(&self.status["collisionCount"])),
        ]);
        status["observedGeneration"] = json!(read::generation(self.object));
        if let Some(conditions) = self.status.get("conditions") {
            status["conditions"] = conditions.clone();
        }
        let (is, reason, message) = if available >= self.desired() - self.fenceposts().1 {
            ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        } else {
            ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        };
        set_condition(&mut status, "Available", is, reason, message, turn.now);
        status
    }

    fn write_status(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let status = self.new_status(turn);
        turn.set_status(self.object, status)
    }

    /// As above, with what can be said about progress.
    fn write_progress(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let mut status = self.new_status(turn);
        match self.deadline() {
            None => remove_condition(&mut status, PROGRESSING),
            Some(deadline) => self.judge_progress(turn, &mut status, deadline),
        }
        self.note_failure(&mut status);
        if self.is_complete(&status) {
            self.clean_up(turn)?;
        } else if let Some((updated, deadline)) = last_update(&status).zip(self.deadline()) {
            // A second more, as Kubernetes does, so that it has surely passed.
            turn.again_at(read::after(updated, std::time::Duration::from_secs(deadline + 1)));
        }
        turn.set_status(self.object, status)
    }

    fn judge_progress(&self, turn: &Turn<'_>, status: &mut Value, deadline: u64) {
        let is_settled = status["replicas"] == status["updatedReplicas"] && self.progress_reason() == Some(COMPLETE);
        if is_settled {
            return;
        }
        let of = self.new.as_ref().map_or_else(
            || format!("Deployment \"{}\"", self.object.key.name),
            |new| format!("ReplicaSet \"{}\"", new.0.key.name),
        );
        if self.is_complete(status) {
            let message = format!("{of} has successfully progressed.");
            set_condition(status, PROGRESSING, "True", COMPLETE, &message, turn.now);
        } else if self.has_progressed(status) {
            // Which starts the deadline anew.
            touch_condition(status, PROGRESSING, "ReplicaSetUpdated", &format!("{of} is progressing."), turn.now);
        } else if Self::has_timed_out(turn, status, deadline) {
            let message = format!("{of} has timed out progressing.");
            set_condition(status, PROGRESSING, "False", TIMED_OUT, &message, turn.now);
        }
    }

    fn has_progressed(&self, status: &Value) -> bool {
        let (old, new) = (|name: &str| count(&self.object.value["status"][name]), |name: &str| count(&status[name]));
        let old_left = old("replicas").saturating_sub(old("updatedReplicas"));
        let new_left = new("replicas").saturating_sub(new("updatedReplicas"));
        new("updatedReplicas") > old("updatedReplicas")
            || new_left < old_left
            || new("readyReplicas") > old("readyReplicas")
            || new("availableReplicas") > old("availableReplicas")
    }

    fn has_timed_out(turn: &Turn<'_>, status: &Value, deadline: u64) -> bool {
        let reason = condition(status, PROGRESSING).map(|found| text(&found["reason"]));
        let has_passed = |since| read::after(since, seconds(&json!(deadline))) < turn.now;
        reason == Some(TIMED_OUT) || last_update(status).is_some_and(has_passed)
    }

    /// Pods that cannot be made at all.
    fn note_failure(&self, status: &mut Value) {
        let failure = |set: &Set| condition(&set.0.value["status"], "ReplicaFailure").cloned();
        remove_condition(status, "ReplicaFailure");
        let Some(mut found) = self.new.iter().chain(&self.old).find_map(failure) else { return };
        found["lastUpdateTime"] = found["lastTransitionTime"].clone();
        if let Some(conditions) = status["conditions"].as_array_mut() {
            conditions.push(found);
        }
    }
}

/// When something last moved, while it still may.
fn last_update(status: &Value) -> Option<jiff::Timestamp> {
    let found = condition(status, PROGRESSING)?;
    let is_over = [COMPLETE, TIMED_OUT].contains(&text(&found["reason"]));
    read::time(&found["lastUpdateTime"]).filter(|_| !is_over)
}
