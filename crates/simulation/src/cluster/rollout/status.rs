//! What a Rollout's status says, and when it changes.

use serde_json::{Value, json};

use super::super::read::{self, condition, count, items, text};
use super::super::sets::Set;
use super::super::turn::{Turn, counts, set_condition, touch_condition};
use super::{PAUSE_STEP, View};
use crate::store::Refusal;

const PROGRESSING: &str = "Progressing";
const ABORTED: &str = "RolloutAborted";
const PAUSED: &str = "RolloutPaused";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const AVAILABLE: &str = "NewReplicaSetAvailable";

impl View<'_> {
    fn progress_reason(&self) -> &str {
        condition(self.status, PROGRESSING).map_or("", |found| text(&found["reason"]))
    }

    /// Says in the conditions that it was paused, resumed or started again after an abort. That is a write of its own: the rest comes later.
    pub(super) fn note_pause(&self, turn: &mut Turn<'_>) -> Result<bool, Refusal> {
        let (reason, is_paused) = (self.progress_reason(), self.is_paused());
        let mut status = self.status.clone();
        let is_noted = condition(self.status, "Paused").is_some_and(|found| found["status"] == "True");
        if reason == ABORTED {
            if self.status["abort"] != true {
                let message = "Retrying Rollout after abort";
                set_condition(&mut status, PROGRESSING, "Unknown", "RolloutRetry", message, turn.now);
            }
        } else {
            if is_paused != (reason == PAUSED) {
                let (reason, message) =
                    if is_paused { (PAUSED, "Rollout is paused") } else { ("RolloutResumed", "Rollout is resumed") };
                set_condition(&mut status, PROGRESSING, "Unknown", reason, message, turn.now);
            }
            if is_paused != is_noted {
                let is = if is_paused { "True" } else { "False" };
                set_condition(&mut status, "Paused", is, PAUSED, "Rollout is paused", turn.now);
            }
        }
        if status == *self.status || status.is_null() {
            return Ok(false);
        }
        self.finish(&mut status);
        turn.set_status(self.object, status)?;
        Ok(true)
    }

    /// As if it were at the beginning; or at the end, if the template is the stable one again.
    pub(super) fn write_reset(&mut self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        self.pauses.clears = true;
        self.pauses.removes_abort = true;
        let mut status = self.base();
        let is_back = self.new_set().is_some_and(|new| self.status["stableRS"] == new.hash());
        let steps = self.steps().len();
        if steps > 0 {
            status["currentStepIndex"] = json!(if is_back { steps } else { 0 });
        }
        status.as_object_mut().and_then(|status| status.remove("promoteFull"));
        self.write(turn, status)
    }

    pub(super) fn write_status(&mut self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let mut status = self.base();
        let steps = self.steps().len();
        let mut index = self.step_index();
        if self.status["promoteFull"] == true {
            self.pauses.clears = true;
            self.pauses.removes_abort = true;
            index = steps;
        }
        if self.is_to_be_stable(index) {
            self.pauses.clears = true;
            self.pauses.removes_abort = true;
            status["stableRS"] = status["currentPodHash"].clone();
            status.as_object_mut().and_then(|status| status.remove("promoteFull"));
            index = steps;
        } else if self.is_aborted() {
            index = if status["stableRS"] == status["currentPodHash"] { steps } else { 0 };
        } else if self.is_step_complete(turn) {
            index += 1;
            self.pauses.removes = true;
        }
        if steps > 0 {
            status["currentStepIndex"] = json!(index);
        }
        self.write(turn, status)
    }

    /// Whether what is new is to be what is stable from now on.
    fn is_to_be_stable(&self, index: usize) -> bool {
        if self.stable.is_none() {
            return true;
        }
        let has_all = self.new_set().is_some_and(|new| new.available() == self.replicas());
        !self.is_aborted() && has_all && (self.status["promoteFull"] == true || index == self.steps().len())
    }

    fn base(&self) -> Value {
        let mut status = counts([
            ("replicas", self.sum(Set::current)),
            ("HPAReplicas", self.sum(Set::current)),
            ("updatedReplicas", self.new_set().map_or(0, Set::current)),
            ("readyReplicas", self.sum(Set::ready)),
            ("availableReplicas", self.sum(Set::available)),
            ("collisionCount", count(&self.status["collisionCount"])),
        ]);
        status["currentPodHash"] = json!(self.pod_hash());
        status["currentStepHash"] = json!(self.step_hash());
        if let Some(stable) = self.status.get("stableRS") {
            status["stableRS"] = stable.clone();
        }
        if self.status["promoteFull"] == true && status["currentPodHash"] != status["stableRS"] {
            status["promoteFull"] = json!(true);
        }
        if let Some(conditions) = self.status.get("conditions") {
            status["conditions"] = conditions.clone();
        }
        status
    }

    fn write(&mut self, turn: &mut Turn<'_>, mut status: Value) -> Result<(), Refusal> {
        self.judge(turn, &mut status);
        self.note_pauses(turn, &mut status);
        self.finish(&mut status);
        turn.set_status(self.object, status)
    }

    /// What is always said last: which generation it speaks of, and the one word for it all.
    fn finish(&self, status: &mut Value) {
        status["observedGeneration"] = json!(read::generation(self.object).to_string());
        if let Some(workload) = self.workload {
            status["workloadObservedGeneration"] = json!(workload.to_string());
        }
        let (phase, message) = self.phase(status);
        status["phase"] = json!(phase);
        match message {
            Some(message) => status["message"] = json!(message),
            None => drop(status.as_object_mut().and_then(|status| status.remove("message"))),
        }
    }

    fn note_pauses(&self, turn: &Turn<'_>, status: &mut Value) {
        let now = json!(read::written(turn.now));
        if self.is_aborted() {
            status["abort"] = json!(true);
            status["abortedAt"] = self.status.get("abortedAt").unwrap_or(&now).clone();
            return;
        }
        if self.pauses.clears {
            return;
        }
        let is_kept = |found: &&Value| !(self.pauses.removes && found["reason"] == PAUSE_STEP);
        let mut conditions: Vec<Value> = items(&self.status["pauseConditions"]).filter(is_kept).cloned().collect();
        let mut is_ours = self.status["controllerPause"] == true;
        if self.pauses.adds {
            conditions.push(json!({"reason": PAUSE_STEP, "startTime": now}));
            is_ours = true;
        }
        if !conditions.is_empty() {
            status["pauseConditions"] = json!(conditions);
            if is_ours {
                status["controllerPause"] = json!(true);
            }
        }
    }

    fn is_healthy(&self, status: &Value) -> bool {
        let is_all = |name: &str| count(&status[name]) == self.replicas();
        let steps = self.steps().len();
        let is_through = steps == 0 || status["currentStepIndex"] == json!(steps);
        is_through
            && is_stable(status)
            && is_all("replicas")
            && is_all("updatedReplicas")
            && is_all("availableReplicas")
            && read::text(&self.status["observedGeneration"]).parse() == Ok(read::generation(self.object))
    }

    fn has_progressed(&self, status: &Value) -> bool {
        let (old, new) = (|name: &str| count(&self.status[name]), |name: &str| count(&status[name]));
        let left = |all: u32, updated: u32| all.saturating_sub(updated);
        let is_other = |name: &str| self.status.get(name) != status.get(name);
        let is_other_step = self.status.get("currentStepIndex").is_some() && is_other("currentStepIndex");
        new("updatedReplicas") != old("updatedReplicas")
            || left(new("replicas"), new("updatedReplicas")) < left(old("replicas"), old("updatedReplicas"))
            || new("readyReplicas") > old("readyReplicas")
            || new("availableReplicas") > old("availableReplicas")
            || is_other("stableRS")
            || is_other("currentStepHash")
            || is_other_step
    }

    fn judge(&mut self, turn: &mut Turn<'_>, status: &mut Value) {
        let is_healthy = self.is_healthy(status);
        let was_healthy = condition(self.status, "Healthy").is_some_and(|found| found["status"] == "True");
        if is_healthy && !self.is_paused() {
            set_condition(status, "Healthy", "True", "RolloutHealthy", "Rollout is healthy", turn.now);
        } else if condition(self.status, "Healthy").is_some() {
            set_condition(status, "Healthy", "False", "RolloutHealthy", "Rollout is not healthy", turn.now);
        }
        if self.is_aborted() {
            let message = format!("Rollout aborted update to revision {}", self.revision());
            set_condition(status, PROGRESSING, "False", ABORTED, &message, turn.now);
        } else {
            self.judge_progress(turn, status, is_healthy, was_healthy && !is_healthy);
        }
        let has_enough = self.sum(Set::available) >= self.replicas();
        let (is, message) = if has_enough { ("True", "has") } else { ("False", "does not have") };
        let message = format!("Rollout {message} minimum availability");
        set_condition(status, "Available", is, "AvailableReason", &message, turn.now);
        let is = if is_stable(status) { "True" } else { "False" };
        set_condition(status, "Completed", is, "RolloutCompleted", "RolloutCompleted", turn.now);
    }

    fn revision(&self) -> &str {
        read::annotation(self.object, super::ROLLOUT.revision)
    }

    fn judge_progress(&mut self, turn: &mut Turn<'_>, status: &mut Value, is_healthy: bool, fell_ill: bool) {
        let name = self.new_set().map_or_else(String::new, |set| set.0.key.name.clone());
        if is_healthy {
            let message = format!("ReplicaSet \"{name}\" has successfully progressed.");
            set_condition(status, PROGRESSING, "True", AVAILABLE, &message, turn.now);
        } else if self.has_progressed(status) || fell_ill {
            let reason = if is_stable(status) && fell_ill { "ReplicaSetNotAvailable" } else { "ReplicaSetUpdated" };
            touch_condition(status, PROGRESSING, reason, &format!("ReplicaSet \"{name}\" is progressing."), turn.now);
        } else if !self.is_at_pause() && self.has_timed_out(turn, status) {
            let message = format!("ReplicaSet \"{name}\" has timed out progressing.");
            set_condition(status, PROGRESSING, "False", TIMED_OUT, &message, turn.now);
            self.pauses.aborts = self.spec["progressDeadlineAbort"] == true;
        }
    }

    fn is_at_pause(&self) -> bool {
        self.step().is_some_and(|step| step.get("pause").is_some())
    }

    fn has_timed_out(&self, turn: &mut Turn<'_>, status: &Value) -> bool {
        let Some(found) = condition(status, PROGRESSING) else { return false };
        match text(&found["reason"]) {
            TIMED_OUT => return true,
            ABORTED | AVAILABLE | PAUSED => return false,
            _ => {}
        }
        let deadline = self.spec["progressDeadlineSeconds"].as_u64().unwrap_or(600);
        let Some(updated) = read::time(&found["lastUpdateTime"]) else { return false };
        let due = read::after(updated, std::time::Duration::from_secs(deadline));
        if due >= turn.now && !self.is_paused() {
            turn.again_at(read::after(due, std::time::Duration::from_secs(1)));
        }
        due < turn.now
    }

    fn phase(&self, status: &Value) -> (&'static str, Option<String>) {
        let gave_up = items(&status["conditions"]).find(|found| [ABORTED, TIMED_OUT].contains(&text(&found["reason"])));
        if let Some(found) = gave_up {
            return ("Degraded", Some(format!("{}: {}", text(&found["reason"]), text(&found["message"]))));
        }
        if self.spec["paused"] == true {
            return ("Paused", Some("manually paused".to_owned()));
        }
        if let Some(pause) = items(&status["pauseConditions"]).next() {
            return ("Paused", Some(text(&pause["reason"]).to_owned()));
        }
        let updated = count(&status["updatedReplicas"]);
        let waits_for = if updated < self.replicas() {
            "more replicas need to be updated"
        } else if count(&status["availableReplicas"]) < updated {
            "updated replicas are still becoming available"
        } else if count(&status["replicas"]) > updated {
            "old replicas are pending termination"
        } else if !is_stable(status) {
            "waiting for all steps to complete"
        } else {
            return ("Healthy", None);
        };
        ("Progressing", Some(waits_for.to_owned()))
    }
}

fn is_stable(status: &Value) -> bool {
    status["stableRS"].is_string() && status["stableRS"] == status["currentPodHash"]
}
