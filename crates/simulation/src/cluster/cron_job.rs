//! CronJobs: a Job each so many minutes.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::job;
use super::read::{self, count_or, is_going, text};
use super::replica_set::is_namespace_gone;
use super::turn::{Turn, controller_reference};
use crate::kinds::{Key, Kind};
use crate::store::{Object, Propagation, Refusal};

const MINUTE: i64 = 60;

/// Of the five fields only the minutes count: `*` and `*/5`. Anything else is taken for each hour.
fn period(schedule: &str) -> i64 {
    let minutes = match schedule.split_whitespace().next() {
        Some("*") => 1,
        Some(field) => field.strip_prefix("*/").and_then(|every| every.parse().ok()).unwrap_or(60),
        None => 60,
    };
    minutes.max(1) * MINUTE
}

pub(super) fn sync(turn: &mut Turn<'_>, key: &Key) -> Result<(), Refusal> {
    let Some(cron) = turn.get(key).filter(|cron| !is_going(cron)) else { return Ok(()) };
    let jobs = turn.claim(&cron, Kind::Job)?;
    forget_old(turn, &cron, &jobs)?;
    let spec = &cron.value["spec"];
    let mut status = cron.value.get("status").cloned().unwrap_or_else(|| json!({}));
    let mut active: Vec<&Arc<Object>> = jobs.iter().filter(|job| !job::is_finished(job) && !is_going(job)).collect();
    if spec["suspend"] != true {
        let period = period(text(&spec["schedule"]));
        let due = turn.now.as_second() / period * period;
        let last = read::time(&status["lastScheduleTime"])
            .or_else(|| read::time(&cron.value["metadata"]["creationTimestamp"]));
        let is_due = last.is_some_and(|last| due > last.as_second());
        turn.again_at(Timestamp::from_second(due + period).unwrap_or(Timestamp::MAX));
        let policy = text(&spec["concurrencyPolicy"]);
        if is_due && (policy != "Forbid" || active.is_empty()) {
            if policy == "Replace" {
                for job in active.drain(..) {
                    turn.delete(job, Propagation::Background)?;
                }
            }
            start(turn, &cron, due)?;
            status["lastScheduleTime"] = json!(read::written(Timestamp::from_second(due).unwrap_or(turn.now)));
        }
    }
    note_active(&mut status, &active);
    turn.set_status(&cron, status)
}

fn start(turn: &mut Turn<'_>, cron: &Object, due: i64) -> Result<(), Refusal> {
    let template = &cron.value["spec"]["jobTemplate"];
    let object = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            // The minute is in its name: it cannot be started twice.
            "name": format!("{}-{}", cron.key.name, due / MINUTE), "namespace": cron.key.namespace,
            "labels": template["metadata"].get("labels").cloned().unwrap_or_else(|| json!({})),
            "annotations": template["metadata"].get("annotations").cloned().unwrap_or_else(|| json!({})),
            "ownerReferences": [controller_reference(cron)],
        },
        "spec": template["spec"],
    });
    match turn.create(object) {
        Err(refusal) if is_namespace_gone(&refusal) || refusal.reason == "AlreadyExists" => Ok(()),
        created => created.map(drop),
    }
}

fn note_active(status: &mut Value, active: &[&Arc<Object>]) {
    let reference = |job: &&Arc<Object>| json!({"apiVersion": "batch/v1", "kind": "Job", "name": job.key.name, "namespace": job.key.namespace, "uid": job.uid()});
    if active.is_empty() {
        status.as_object_mut().and_then(|status| status.remove("active"));
    } else {
        status["active"] = active.iter().map(reference).collect();
    }
}

/// Of those that have finished only the last few are kept.
fn forget_old(turn: &mut Turn<'_>, cron: &Object, jobs: &[Arc<Object>]) -> Result<(), Refusal> {
    let spec = &cron.value["spec"];
    for (has_failed, name, default) in [(false, "successfulJobsHistoryLimit", 3), (true, "failedJobsHistoryLimit", 1)] {
        let limit = usize::try_from(count_or(&spec[name], default)).unwrap_or(usize::MAX);
        let is_such =
            |job: &&Arc<Object>| job::is_finished(job) && job::has_failed(job) == has_failed && !is_going(job);
        // By name is by time.
        let finished: Vec<&Arc<Object>> = jobs.iter().filter(is_such).collect();
        for job in finished.iter().take(finished.len().saturating_sub(limit)) {
            turn.delete(job, Propagation::Background)?;
        }
    }
    Ok(())
}
