//! How far a workload's own controller is, read from its status.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::health::{Failure, Rollout};
use crate::kinds::Kind;

/// Reads the status of a workload, by its kind. Kinds whose pods are not replaced by a change of the template are done at once.
pub fn rollout(kind: &str, name: &str, generation: i64, object: &Value) -> Rollout {
    let (spec, status) = (&object["spec"], &object["status"]);
    let min_ready = Duration::from_secs(spec["minReadySeconds"].as_u64().unwrap_or(0));
    let rollout = match Kind::named(kind) {
        Kind::Deployment => deployment(generation, spec, status),
        Kind::StatefulSet => stateful_set(generation, spec, status),
        Kind::DaemonSet => daemon_set(generation, spec, status),
        Kind::Rollout => argo_rollout(name, generation, spec, status),
        Kind::CronJob => at_rest("it runs it with its next Job"),
        Kind::Other => Rollout { is_by_hand: true, ..at_rest("its pods stay as they are when its template changes") },
    };
    Rollout { min_ready, ..rollout }
}

/// Done as soon as it is written: nobody is replaced.
fn at_rest(why: &str) -> Rollout {
    Rollout { is_observed: true, is_complete: true, idle: Some(why.to_owned()), ..Rollout::default() }
}

/// How much of what a controller says is told: it may quote a policy's page.
const HINDRANCE_TOLD: usize = 300;
const KEPT_BACK: &str = "its partition keeps every pod at its old version";
const NO_PODS: &str = "it is scaled to zero";
const ON_DELETE: &str = "its pods are replaced only when somebody deletes them (OnDelete)";

fn deployment(generation: i64, spec: &Value, status: &Value) -> Rollout {
    let desired = count(&spec["replicas"], 1);
    let updated = count(&status["updatedReplicas"], 0);
    let gave_up = condition(status, "Progressing").filter(|found| found["reason"] == "ProgressDeadlineExceeded");
    Rollout {
        is_observed: observed(status) >= generation,
        desired,
        updated,
        ready: count(&status["readyReplicas"], 0),
        is_complete: updated >= desired && count(&status["replicas"], 0) == updated,
        idle: (desired == 0).then(|| NO_PODS.to_owned()),
        hindrance: hindrance(status),
        waits_for: (spec["paused"] == true).then(|| "`kubectl rollout resume`: it is paused".to_owned()),
        failure: gave_up.map(|found| failure("it exceeded its own progress deadline", &found["lastUpdateTime"])),
        ..Rollout::default()
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
        kept_back,
        is_by_hand,
        is_complete: is_by_hand || updated >= desired.saturating_sub(kept_back),
        idle: if desired == 0 {
            Some(NO_PODS.to_owned())
        } else if kept_back >= desired {
            Some(KEPT_BACK.to_owned())
        } else {
            (is_by_hand && updated < desired).then(|| ON_DELETE.to_owned())
        },
        ..Rollout::default()
    }
}

fn daemon_set(generation: i64, spec: &Value, status: &Value) -> Rollout {
    let desired = count(&status["desiredNumberScheduled"], 0);
    let updated = count(&status["updatedNumberScheduled"], 0);
    let is_by_hand = spec["updateStrategy"]["type"] == "OnDelete";
    Rollout {
        is_observed: observed(status) >= generation,
        desired,
        updated,
        ready: count(&status["numberReady"], 0),
        is_by_hand,
        is_complete: is_by_hand || updated >= desired,
        idle: if desired == 0 {
            Some("no node runs it".to_owned())
        } else {
            (is_by_hand && updated < desired).then(|| ON_DELETE.to_owned())
        },
        ..Rollout::default()
    }
}

/// An Argo Rollout has steps of its own, and people who promote or abort it.
fn argo_rollout(name: &str, generation: i64, spec: &Value, status: &Value) -> Rollout {
    let phase = status["phase"].as_str().unwrap_or_default();
    let failure = if status["abort"] == true {
        Some(failure("its Rollout was aborted", &status["abortedAt"]))
    } else {
        let said = status["message"].as_str().map(|message| format!(": {message}")).unwrap_or_default();
        // Argo says when it gave up only in its condition.
        let at = &condition(status, "Progressing").unwrap_or(&Value::Null)["lastUpdateTime"];
        (phase == "Degraded").then(|| failure(&format!("its Rollout is degraded{said}"), at))
    };
    let desired = count(&spec["replicas"], 1);
    let (stable, current) = (status["stableRS"].as_str(), status["currentPodHash"].as_str());
    let between = stable.zip(current).filter(|(stable, current)| stable != current);
    Rollout {
        is_observed: observed(status) >= generation,
        desired,
        updated: count(&status["updatedReplicas"], 0),
        ready: count(&status["readyReplicas"], 0),
        is_complete: phase == "Healthy",
        hindrance: hindrance(status),
        goes_on_by_itself: phase == "Progressing" || (phase == "Paused" && timed_pause(spec, status).is_some()),
        waits_for: (phase == "Paused").then(|| argo_pause(name, spec, status)),
        idle: (desired == 0).then(|| NO_PODS.to_owned()),
        is_midway: between.is_some(),
        between: between.map(|(stable, current)| (stable.to_owned(), current.to_owned())),
        stopped: (status["abort"] == true).then(|| {
            // Without a number, undo goes to the revision before, and a config's move made one with the code that was aborted.
            format!(
                "it was aborted: `kubectl argo rollouts retry rollout {name}`, or `kubectl argo rollouts undo {name} --to-revision=N` \
                 with the stable revision of `kubectl argo rollouts get rollout {name}`, comes first"
            )
        }),
        failure,
        ..Rollout::default()
    }
}

/// What a Rollout that pauses waits for: a person, or only for its own time to pass.
fn argo_pause(name: &str, spec: &Value, status: &Value) -> String {
    let promote = format!("`kubectl argo rollouts promote {name}`");
    match timed_pause(spec, status) {
        _ if spec["paused"] == true => format!("{promote}: somebody paused it"),
        Some(duration) => format!("the end of the Rollout's pause of {duration}, after which it goes on by itself"),
        None => format!("the Rollout's next step: {promote}"),
    }
}

/// How long the step of a Rollout is that only waits.
fn timed_pause(spec: &Value, status: &Value) -> Option<String> {
    let step = usize::try_from(status["currentStepIndex"].as_u64()?).ok()?;
    let duration =
        &spec["strategy"]["canary"]["steps"].get(step).filter(|_| spec["paused"] != true)?["pause"]["duration"];
    // A number of seconds, or text such as 5m.
    let timed = || duration.as_str().map_or_else(|| format!("{duration}s"), str::to_owned);
    (!duration.is_null()).then(timed)
}

/// Why no pods are made: a quota, or a policy that refuses them.
fn hindrance(status: &Value) -> Option<String> {
    let refused = condition(status, "ReplicaFailure").filter(|found| found["status"] == "True")?;
    refused["message"].as_str().map(|message| message.chars().take(HINDRANCE_TOLD).collect())
}

fn failure(reason: &str, at: &Value) -> Failure {
    Failure { reason: reason.to_owned(), at: at.as_str().and_then(|at| at.parse::<Timestamp>().ok()) }
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
        let conditions = json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
            "lastUpdateTime": "2026-01-01T00:00:09Z"}]);
        let found = rollout("Deployment", "web", 1, &json!({"spec": {}, "status": {"conditions": conditions}}));
        assert_eq!(found.failure.unwrap().at, Some("2026-01-01T00:00:09Z".parse().unwrap()));
    }

    #[test]
    fn a_rollout_waits_for_people_and_hears_their_abort() {
        let object = |phase: &str, abort: bool| json!({"spec": {}, "status": {"observedGeneration": "7", "phase": phase, "abort": abort}});
        assert!(rollout("Rollout", "web", 7, &object("Healthy", false)).is_complete);
        assert!(rollout("Rollout", "web", 7, &object("Paused", false)).waits_for.unwrap().ends_with("promote web`"));
        let aborted = rollout("Rollout", "web", 7, &object("Progressing", true)).failure.unwrap();
        assert!(aborted.reason.contains("aborted"));
        let degraded = json!({"spec": {}, "status": {"phase": "Degraded", "message": "too many errors"}});
        assert!(rollout("Rollout", "web", 7, &degraded).failure.unwrap().reason.ends_with("degraded: too many errors"));
        assert!(!rollout("Rollout", "web", 8, &object("Healthy", false)).is_observed);
    }

    #[test]
    fn a_rollout_that_pauses_says_whether_it_goes_on_by_itself() {
        let paused = |paused: bool, pause: Value| {
            let steps = json!([{"setWeight": 50}, {"pause": pause}]);
            let spec = json!({"paused": paused, "strategy": {"canary": {"steps": steps}}});
            let object = json!({"spec": spec, "status": {"phase": "Paused", "currentStepIndex": 1}});
            rollout("Rollout", "web", 1, &object).waits_for.unwrap()
        };
        assert!(paused(false, json!({})).ends_with("next step: `kubectl argo rollouts promote web`"));
        assert!(paused(false, json!({"duration": "12s"})).contains("pause of 12s, after which it goes on by itself"));
        assert!(paused(false, json!({"duration": 90})).contains("pause of 90s"));
        assert!(paused(true, json!({"duration": "12s"})).ends_with("somebody paused it"));
    }

    #[test]
    fn a_rollout_goes_on_by_itself_unless_somebody_has_to_act() {
        let goes_on = |phase: &str, paused: bool, pause: Value| {
            let spec = json!({"paused": paused, "strategy": {"canary": {"steps": [{"pause": pause}]}}});
            let object = json!({"spec": spec, "status": {"phase": phase, "currentStepIndex": 0}});
            rollout("Rollout", "web", 1, &object).goes_on_by_itself
        };
        assert!(goes_on("Progressing", false, json!({})) && goes_on("Paused", false, json!({"duration": "12s"})));
        assert!(!goes_on("Paused", false, json!({})) && !goes_on("Paused", true, json!({"duration": "12s"})));
    }

    #[test]
    fn what_keeps_pods_from_being_made_is_told() {
        let condition = json!({"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: small"});
        let found = rollout("Deployment", "web", 1, &json!({"spec": {}, "status": {"conditions": [condition]}}));
        assert_eq!(found.hindrance.as_deref(), Some("exceeded quota: small"));
    }

    #[test]
    fn a_rollout_in_the_middle_of_other_code_or_aborted_says_so() {
        let status = |current: &str, abort: bool| {
            let status = json!({"stableRS": "a", "currentPodHash": current, "abort": abort});
            rollout("Rollout", "web", 1, &json!({"spec": {}, "status": status}))
        };
        assert!(!status("a", false).is_midway && status("b", false).is_midway);
        assert!(
            status("b", true).stopped.unwrap().contains("undo web --to-revision")
                && status("a", false).stopped.is_none()
        );
    }

    #[test]
    fn a_partition_of_its_user_is_no_reason_to_wait() {
        let object = json!({"spec": {"replicas": 3, "updateStrategy": {"rollingUpdate": {"partition": 2}}},
            "status": {"observedGeneration": 1, "updatedReplicas": 1, "readyReplicas": 3}});
        let found = rollout("StatefulSet", "web", 1, &object);
        assert!(found.is_complete && found.kept_back == 2);
    }

    #[test]
    fn what_does_not_roll_is_done_and_says_why_nobody_runs_it() {
        let found = rollout("CronJob", "web", 5, &json!({}));
        assert!(found.is_complete && found.idle.unwrap().contains("next Job"));
        let none = json!({"spec": {"replicas": 0}, "status": {"observedGeneration": 1}});
        assert!(rollout("Deployment", "web", 1, &none).idle.unwrap().contains("zero"));
        let by_hand = json!({"spec": {"updateStrategy": {"type": "OnDelete"}}, "status": {"observedGeneration": 1}});
        assert!(rollout("StatefulSet", "web", 1, &by_hand).idle.unwrap().contains("OnDelete"));
    }
}
