//! Jobs: pods that run until enough of them have succeeded, or too many have failed.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::read::{self, condition, count, count_or, is_going, is_ready, phase};
use super::replica_set::is_namespace_gone;
use super::turn::{Turn, counts, pod_from};
use crate::kinds::{Key, Kind};
use crate::store::{Object, Propagation, Refusal};

/// How long a Job waits after its first failure; twice as long after each further one.
const BACK_OFF: Duration = Duration::from_secs(10);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(600);

pub(super) fn is_finished(job: &Object) -> bool {
    ["Complete", "Failed"].into_iter().any(|of| is_true(&job.value["status"], of))
}

pub(super) fn has_failed(job: &Object) -> bool {
    is_true(&job.value["status"], "Failed")
}

fn is_true(status: &Value, of: &str) -> bool {
    condition(status, of).is_some_and(|found| found["status"] == "True")
}

pub(super) fn sync(turn: &mut Turn<'_>, key: &Key) -> Result<(), Refusal> {
    let Some(job) = turn.get(key) else { return Ok(()) };
    if is_finished(&job) {
        return expire(turn, &job);
    }
    let pods = turn.claim(&job, Kind::Pod)?;
    let number =
        |of: &dyn Fn(&Object) -> bool| u32::try_from(pods.iter().filter(|pod| of(pod)).count()).unwrap_or(u32::MAX);
    let active: Vec<&Arc<Object>> = pods.iter().filter(|pod| !read::has_ended(pod) && !is_going(pod)).collect();
    let (succeeded, failed) = (number(&|pod| phase(pod) == "Succeeded"), number(&|pod| phase(pod) == "Failed"));
    let spec = &job.value["spec"];
    let wanted = count_or(&spec["completions"], 1);
    let old = &job.value["status"];
    let mut status = counts([
        ("active", u32::try_from(active.len()).unwrap_or(u32::MAX)),
        // What was counted once counts although its pod is gone.
        ("succeeded", succeeded.max(count(&old["succeeded"]))),
        ("failed", failed.max(count(&old["failed"]))),
        ("ready", number(&|pod| is_ready(pod) && !is_going(pod))),
    ]);
    for name in ["startTime", "conditions"] {
        if let Some(known) = old.get(name) {
            status[name] = known.clone();
        }
    }
    let (succeeded, failed) = (count(&status["succeeded"]), count(&status["failed"]));
    if spec["suspend"] == true {
        for pod in active {
            turn.delete(pod, Propagation::Background)?;
        }
        status["startTime"] = Value::Null;
    } else if succeeded >= wanted {
        let now = read::written(turn.now);
        status["completionTime"] = json!(now);
        finish(turn, &mut status, "Complete", "CompletionsReached", "Reached expected number of succeeded pods");
    } else if failed > count_or(&spec["backoffLimit"], 6) {
        for pod in active {
            turn.delete(pod, Propagation::Background)?;
        }
        finish(turn, &mut status, "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit");
    } else {
        status
            .as_object_mut()
            .map(|status| status.entry("startTime").or_insert_with(|| json!(read::written(turn.now))));
        if !is_going(&job) && may_start(turn, &pods, failed) {
            let room = count_or(&spec["parallelism"], 1).min(wanted - succeeded);
            for _ in active.len()..usize::try_from(room).unwrap_or(0) {
                create(turn, &job)?;
            }
        }
    }
    turn.set_status(&job, status)
}

fn finish(turn: &Turn<'_>, status: &mut Value, of: &str, reason: &str, message: &str) {
    let now = read::written(turn.now);
    let condition = |of: &str| {
        json!({"type": of, "status": "True", "reason": reason, "message": message,
            "lastProbeTime": now, "lastTransitionTime": now})
    };
    let before = if of == "Complete" { "SuccessCriteriaMet" } else { "FailureTarget" };
    status["conditions"] = json!([condition(before), condition(of)]);
    if let Some(status) = status.as_object_mut() {
        status.remove("active");
        status.remove("ready");
    }
}

/// Whether it has waited long enough since the last failure; if not, it looks again then.
fn may_start(turn: &mut Turn<'_>, pods: &[Arc<Object>], failed: u32) -> bool {
    let Some(more) = failed.checked_sub(1) else { return true };
    let ends = pods.iter().filter(|pod| phase(pod) == "Failed").filter_map(|pod| {
        let ended = &pod.value["status"]["containerStatuses"][0]["state"]["terminated"];
        read::time(&ended["finishedAt"])
    });
    let wait = BACK_OFF.saturating_mul(1 << more.min(10)).min(LONGEST_BACK_OFF);
    let Some(due) = ends.max().map(|end| read::after(end, wait)).filter(|due| *due > turn.now) else { return true };
    turn.again_at(due);
    false
}

fn create(turn: &mut Turn<'_>, job: &Object) -> Result<(), Refusal> {
    let mut pod = pod_from(&job.value["spec"]["template"], job);
    let labels = &mut pod["metadata"]["labels"];
    labels["batch.kubernetes.io/job-name"] = json!(job.key.name);
    labels["batch.kubernetes.io/controller-uid"] = json!(job.uid());
    match turn.create(pod) {
        Err(refusal) if is_namespace_gone(&refusal) => Ok(()),
        created => created.map(drop),
    }
}

/// A Job that has finished goes after a while, if it says so.
fn expire(turn: &mut Turn<'_>, job: &Object) -> Result<(), Refusal> {
    let Some(seconds) = job.value["spec"]["ttlSecondsAfterFinished"].as_u64() else { return Ok(()) };
    let status = &job.value["status"];
    let ended = ["Complete", "Failed"].into_iter().find_map(|of| condition(status, of));
    let Some(ended) = ended.and_then(|ended| read::time(&ended["lastTransitionTime"])) else { return Ok(()) };
    let due = read::after(ended, Duration::from_secs(seconds));
    if due <= turn.now {
        return turn.delete(job, Propagation::Background);
    }
    turn.again_at(due);
    Ok(())
}
