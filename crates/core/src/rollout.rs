//! How far a workload's own controller is, read from its status.

use serde_json::Value;

use crate::health::Rollout;

/// Reads the status of a workload, by its kind. Kinds whose pods are not replaced by a change of the template are done at once.
pub fn rollout(kind: &str, name: &str, generation: i64, object: &Value) -> Rollout {
    let (spec, status) = (&object["spec"], &object["status"]);
    match kind {
        "Deployment" => deployment(generation, spec, status),
        "StatefulSet" => stateful_set(generation, spec, status),
        "DaemonSet" => daemon_set(generation, spec, status),
        "Rollout" => argo_rollout(name, generation, spec, status),
        _ => Rollout { is_observed: true, is_complete: true, ..Rollout::default() },
    }
}

fn deployment(generation: i64, spec: &Value, status: &Value) -> Rollout {
    let desired = count(&spec["replicas"], 1);
    let updated = count(&status["updatedReplicas"], 0);
    let gave_up = condition(status, "Progressing").is_some_and(|found| found["reason"] == "ProgressDeadlineExceeded");
    Rollout {
        is_observed: observed(status) >= generation,
        desired,
        updated,
        ready: count(&status["readyReplicas"], 0),
        is_complete: updated >= desired && count(&status["replicas"], 0) == updated,
        waits_for: (spec["paused"] == true).then(|| "`kubectl rollout resume`: it is paused".to_owned()),
        failure: gave_up.then(|| "it exceeded its own progress deadline".to_owned()),
    }
}

fn stateful_set(generation: i64, spec: &Value, status: &Value) -> Rollout {
    let desired = count(&spec["replicas"], 1);
    let strategy = &spec["updateStrategy"];
    let kept_back = count(&strategy["rollingUpdate"]["partition"], 0);
    let updated = count(&status["updatedReplicas"], 0);
    let is_by_hand = strategy["type"] == "OnDelete";
    Rollout {
        is_observed: observed(status) >= generation,
        desired,
        updated,
        ready: count(&status["readyReplicas"], 0),
        is_complete: is_by_hand || updated >= desired.saturating_sub(kept_back),
        ..Rollout::default()
    }
}

fn daemon_set(generation: i64, spec: &Value, status: &Value) -> Rollout {
    let desired = count(&status["desiredNumberScheduled"], 0);
    let updated = count(&status["updatedNumberScheduled"], 0);
    Rollout {
        is_observed: observed(status) >= generation,
        desired,
        updated,
        ready: count(&status["numberReady"], 0),
        is_complete: spec["updateStrategy"]["type"] == "OnDelete" || updated >= desired,
        ..Rollout::default()
    }
}

/// An Argo Rollout has steps of its own, and people who promote or abort it.
fn argo_rollout(name: &str, generation: i64, spec: &Value, status: &Value) -> Rollout {
    let phase = status["phase"].as_str().unwrap_or_default();
    let failure = if status["abort"] == true {
        Some("its Rollout was aborted".to_owned())
    } else {
        (phase == "Degraded").then(|| "its Rollout is degraded".to_owned())
    };
    Rollout {
        is_observed: observed(status) >= generation,
        desired: count(&spec["replicas"], 1),
        updated: count(&status["updatedReplicas"], 0),
        ready: count(&status["readyReplicas"], 0),
        is_complete: phase == "Healthy",
        waits_for: (phase == "Paused")
            .then(|| format!("the Rollout's next step: `kubectl argo rollouts promote {name}`")),
        failure,
    }
}

/// Argo writes it as text.
fn observed(status: &Value) -> i64 {
    let value = &status["observedGeneration"];
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or(0)
}

fn condition<'a>(status: &'a Value, of: &str) -> Option<&'a Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == of)
}

fn count(value: &Value, default: u32) -> u32 {
    value.as_u64().and_then(|value| u32::try_from(value).ok()).unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_deployment_is_done_when_only_new_pods_are_left() {
        let object = |updated: u32, all: u32| {
            json!({"spec": {"replicas": 3}, "status": {"observedGeneration": 2, "replicas": all,
                "updatedReplicas": updated, "readyReplicas": 3}})
        };
        assert!(rollout("Deployment", "web", 2, &object(3, 3)).is_complete);
        assert!(!rollout("Deployment", "web", 2, &object(3, 4)).is_complete, "an old pod is still there");
        assert!(!rollout("Deployment", "web", 3, &object(3, 3)).is_observed);
    }

    #[test]
    fn a_deployment_that_gave_up_says_so() {
        let conditions = json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]);
        let found = rollout("Deployment", "web", 1, &json!({"spec": {}, "status": {"conditions": conditions}}));
        assert!(found.failure.is_some());
    }

    #[test]
    fn a_rollout_waits_for_people_and_hears_their_abort() {
        let object = |phase: &str, abort: bool| json!({"spec": {}, "status": {"observedGeneration": "7", "phase": phase, "abort": abort}});
        assert!(rollout("Rollout", "web", 7, &object("Healthy", false)).is_complete);
        assert!(rollout("Rollout", "web", 7, &object("Paused", false)).waits_for.unwrap().ends_with("promote web`"));
        assert!(rollout("Rollout", "web", 7, &object("Progressing", true)).failure.unwrap().contains("aborted"));
        assert!(!rollout("Rollout", "web", 8, &object("Healthy", false)).is_observed);
    }

    #[test]
    fn a_partition_of_its_user_is_no_reason_to_wait() {
        let object = json!({"spec": {"replicas": 3, "updateStrategy": {"rollingUpdate": {"partition": 2}}},
            "status": {"observedGeneration": 1, "updatedReplicas": 1, "readyReplicas": 3}});
        assert!(rollout("StatefulSet", "web", 1, &object).is_complete);
    }

    #[test]
    fn what_does_not_roll_is_done() {
        assert!(rollout("CronJob", "web", 5, &json!({})).is_complete);
    }
}
