//! What the kubelet says of a pod.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::read::{condition, items, written};
use super::super::turn::Turn;
use super::{End, Life, Stage};
use crate::store::{Object, Refusal};

impl Life {
    pub(super) fn report(&self, turn: &mut Turn<'_>, pod: &Object) -> Result<(), Refusal> {
        let status = self.status(turn.now, pod);
        turn.set_status(pod, status)
    }

    fn status(&self, now: Timestamp, pod: &Object) -> Value {
        let old = &pod.value["status"];
        let phase = self.phase();
        let since = self.taken_over.unwrap_or(now);
        let reason = match phase {
            "Succeeded" => "PodCompleted",
            "Failed" => "PodFailed",
            _ => "ContainersNotReady",
        };
        let said = |of: &str, is: bool| {
            let is = if is { "True" } else { "False" };
            let known = condition(old, of);
            let turned = match known {
                Some(known) if known["status"] == is => known["lastTransitionTime"].clone(),
                // Nobody has spoken of it: it is not ready since its kubelet took it over.
                None if is == "False" => json!(written(since)),
                _ => json!(written(now)),
            };
            let mut said = json!({"type": of, "status": is, "lastTransitionTime": turned, "lastProbeTime": null});
            if is == "False" {
                said["reason"] = json!(reason);
            }
            said
        };
        let conditions = json!([
            said("PodScheduled", true),
            said("Initialized", true),
            said("ContainersReady", self.is_ready),
            said("Ready", self.is_ready),
        ]);
        let containers: Vec<Value> =
            items(&pod.value["spec"]["containers"]).map(|found| self.container(found)).collect();
        json!({
            "phase": phase, "qosClass": old.get("qosClass").unwrap_or(&json!("BestEffort")), "startTime": written(since),
            "conditions": conditions, "containerStatuses": containers,
        })
    }

    fn phase(&self) -> &'static str {
        let exit_code = self.last.as_ref().map(|end| end.exit_code);
        match (&self.stage, exit_code) {
            (Stage::Done, Some(0)) => "Succeeded",
            (Stage::Done, _) => "Failed",
            (Stage::Unscheduled, _) | (Stage::Starting(_), None) => "Pending",
            _ => "Running",
        }
    }

    /// All containers of a pod do the same here: there is one behavior for each pod.
    fn container(&self, container: &Value) -> Value {
        let last = self.last.as_ref().map(terminated);
        let state = match &self.stage {
            Stage::Unscheduled | Stage::Starting(None) => json!({"waiting": {"reason": "ContainerCreating"}}),
            Stage::Starting(Some(message)) => {
                json!({"waiting": {"reason": "CreateContainerConfigError", "message": message}})
            }
            Stage::Running(run) => json!({"running": {"startedAt": written(run.started)}}),
            Stage::BackingOff(wait) => {
                let message = format!("back-off {}s restarting failed container", wait.as_secs());
                json!({"waiting": {"reason": "CrashLoopBackOff", "message": message}})
            }
            Stage::Ended | Stage::Done => last.clone().unwrap_or_else(|| json!({})),
        };
        let is_shown = matches!(self.stage, Stage::Ended | Stage::Done);
        let last = last.filter(|_| !is_shown).unwrap_or_else(|| json!({}));
        json!({
            "name": container["name"], "image": container.get("image").unwrap_or(&json!("")), "imageID": "",
            "ready": self.is_ready, "started": matches!(self.stage, Stage::Running(_)),
            "restartCount": self.restarts, "state": state, "lastState": last,
        })
    }
}

fn terminated(end: &End) -> Value {
    json!({"terminated": {
        "exitCode": end.exit_code, "reason": if end.exit_code == 0 { "Completed" } else { "Error" },
        "startedAt": written(end.started), "finishedAt": written(end.at),
    }})
}

/// What the scheduler says of a pod that no node has room for.
pub(super) fn unschedulable(turn: &mut Turn<'_>, pod: &Object) -> Result<(), Refusal> {
    let old = &pod.value["status"];
    if condition(old, "PodScheduled").is_some() {
        return Ok(());
    }
    let mut status = old.clone();
    status["conditions"] = json!([{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available",
        "lastTransitionTime": written(turn.now), "lastProbeTime": null,
    }]);
    turn.set_status(pod, status)
}
