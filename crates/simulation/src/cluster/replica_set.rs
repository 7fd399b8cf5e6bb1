//! ReplicaSets and ReplicationControllers: so many pods of a template, no more and no less.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::read::{self, condition, count_or, has_ended, is_available, is_going, is_ready, items, seconds, text};
use super::turn::{Turn, counts, pod_from, remove_condition};
use crate::kinds::{Key, Kind};
use crate::store::{Object, Propagation, Refusal};

pub(super) fn sync(turn: &mut Turn<'_>, key: &Key) -> Result<(), Refusal> {
    let Some(set) = turn.get(key) else { return Ok(()) };
    let mut pods = turn.claim(&set, Kind::Pod)?;
    pods.retain(|pod| !is_going(pod) && !has_ended(pod));
    let failure = if is_going(&set) { None } else { manage(turn, &set, &pods).err() };
    write_status(turn, &set, &pods, failure.as_ref())?;
    let min_ready = seconds(&set.value["spec"]["minReadySeconds"]);
    if let Some(at) = read::next_available(pods.iter().map(AsRef::as_ref), min_ready, turn.now) {
        turn.again_at(at);
    }
    failure.map_or(Ok(()), Err)
}

/// Makes what is missing, and deletes what is too many. What is made or deleted now counts with the next turn, as in Kubernetes.
fn manage(turn: &mut Turn<'_>, set: &Object, pods: &[Arc<Object>]) -> Result<(), Refusal> {
    let wanted = usize::try_from(count_or(&set.value["spec"]["replicas"], 1)).unwrap_or(usize::MAX);
    for _ in pods.len()..wanted {
        match turn.create(pod_from(&set.value["spec"]["template"], set)) {
            // In a namespace that goes, nothing can be made, and nothing needs to be.
            Err(refusal) if is_namespace_gone(&refusal) => return Ok(()),
            created => created.map(drop)?,
        }
    }
    let surplus = pods.len().saturating_sub(wanted);
    if surplus > 0 {
        for pod in first_to_go(pods).into_iter().take(surplus) {
            turn.delete(pod, Propagation::Background)?;
        }
    }
    Ok(())
}

pub(super) fn is_namespace_gone(refusal: &Refusal) -> bool {
    let is_terminating = refusal.code == 403 && refusal.message.contains("being terminated");
    is_terminating || (refusal.code == 404 && refusal.message.starts_with("namespaces "))
}

/// The order in which pods are deleted when there are too many: unscheduled ones, those that have not started, those that are not ready; among
/// equals those that share their node with others, those that are ready for the shortest time, those that restarted most, the youngest.
fn first_to_go(pods: &[Arc<Object>]) -> Vec<&Object> {
    let node = |pod: &Object| text(&pod.value["spec"]["nodeName"]).to_owned();
    let mut together: BTreeMap<String, usize> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| is_ready(pod)) {
        *together.entry(node(pod)).or_default() += 1;
    }
    let mut order: Vec<&Object> = pods.iter().map(AsRef::as_ref).collect();
    order.sort_by_cached_key(|pod| {
        let place = node(pod);
        let neighbours = Reverse(together.get(&place).copied().unwrap_or(0));
        let readiness = (is_ready(pod), neighbours, Reverse(read::ready_since(pod)));
        let restarts =
            items(&pod.value["status"]["containerStatuses"]).map(|found| read::count(&found["restartCount"]));
        let age = (Reverse(restarts.max().unwrap_or(0)), Reverse(read::created(pod).to_owned()));
        (!place.is_empty(), read::phase(pod) == "Running", readiness, age, pod.uid().to_owned())
    });
    order
}

fn write_status(
    turn: &mut Turn<'_>,
    set: &Object,
    pods: &[Arc<Object>],
    failure: Option<&Refusal>,
) -> Result<(), Refusal> {
    let min_ready = seconds(&set.value["spec"]["minReadySeconds"]);
    let number =
        |of: &dyn Fn(&Object) -> bool| u32::try_from(pods.iter().filter(|pod| of(pod)).count()).unwrap_or(u32::MAX);
    let now = turn.now;
    let mut status = counts([
        ("fullyLabeledReplicas", number(&|_| true)),
        ("readyReplicas", number(&is_ready)),
        ("availableReplicas", number(&|pod| is_available(pod, min_ready, now))),
    ]);
    status["replicas"] = json!(number(&|_| true));
    status["observedGeneration"] = json!(read::generation(set));
    if let Some(conditions) = set.value["status"].get("conditions") {
        status["conditions"] = conditions.clone();
    }
    note_failure(turn, &mut status, failure);
    turn.set_status(set, status)
}

fn note_failure(turn: &Turn<'_>, status: &mut Value, failure: Option<&Refusal>) {
    const FAILURE: &str = "ReplicaFailure";
    match failure {
        None => {
            remove_condition(status, FAILURE);
            if status["conditions"].as_array().is_some_and(Vec::is_empty) {
                status.as_object_mut().and_then(|status| status.remove("conditions"));
            }
        }
        Some(_) if condition(status, FAILURE).is_some() => {}
        Some(failure) => {
            status["conditions"] = json!([{
                "type": FAILURE, "status": "True", "reason": "FailedCreate", "message": failure.message,
                "lastTransitionTime": read::written(turn.now),
            }]);
        }
    }
}
