//! Pods are watched only where a release is under way: there are many, and nobody else needs them.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use kube::Client;
use lockstep_core::health::Unit;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::environment::Environment;
use crate::watch::{self, WatchEvent};

/// How many events of pods may wait to be taken in. A watch that finds no room waits.
const ROOM: usize = 1024;

/// A pod is not ready from its start on; the kubelet notes both in whole seconds, one after the other. Later than that, it was ready in between.
const AT_ITS_START: SignedDuration = SignedDuration::from_secs(1);

/// What the kubelet says of a container that will not run by itself.
const TROUBLES: [&str; 8] = [
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "StartError",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
];

/// The watches of pods, one for each namespace with a release.
pub struct PodWatches {
    client: Client,
    environment: Environment,
    watches: BTreeMap<String, AbortHandle>,
    sender: mpsc::Sender<WatchEvent>,
}

impl PodWatches {
    pub fn new(client: Client, environment: Environment) -> (Self, mpsc::Receiver<WatchEvent>) {
        let (sender, receiver) = mpsc::channel(ROOM);
        (Self { client, environment, watches: BTreeMap::new(), sender }, receiver)
    }

    /// Starts and stops watches, and returns the namespaces where it stopped one.
    pub fn adjust(&mut self, wanted: &BTreeSet<String>) -> Vec<String> {
        let ended: Vec<String> =
            self.watches.keys().filter(|namespace| !wanted.contains(*namespace)).cloned().collect();
        for namespace in &ended {
            if let Some(watch) = self.watches.remove(namespace) {
                watch.abort();
            }
        }
        for namespace in
            wanted.iter().filter(|namespace| !self.watches.contains_key(*namespace)).cloned().collect::<Vec<_>>()
        {
            let mut events = watch::pods(&self.client, &namespace, &self.environment.random);
            let sender = self.sender.clone();
            let task = self.environment.process.spawn(async move {
                while let Some(event) = events.next().await {
                    if sender.send(event).await.is_err() {
                        return;
                    }
                }
            });
            self.watches.insert(namespace, task.abort_handle());
        }
        ended
    }
}

impl Drop for PodWatches {
    fn drop(&mut self) {
        for watch in self.watches.values() {
            watch.abort();
        }
    }
}

/// How a pod does, as its kubelet reports it.
pub fn unit(pod: &Pod) -> Unit {
    let status = pod.status.clone().unwrap_or_default();
    let condition = |of: &str| status.conditions.iter().flatten().find(|condition| condition.type_ == of);
    let ready = condition("Ready");
    let is_done = status.phase.as_deref() == Some("Succeeded");
    let is_ready = is_done || ready.is_some_and(|ready| ready.status == "True");
    let since = ready.and_then(|ready| ready.last_transition_time.as_ref()).map(|time| time.0);
    let started = status.start_time.as_ref().map(|time| time.0);
    let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let containers = || status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    Unit {
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        is_new: false,
        is_ready,
        was_ready: is_ready || started.zip(since).is_some_and(|(started, since)| since > started + AT_ITS_START),
        // Before the kubelet has spoken of it, it is not ready since it was made.
        since: since.or(created),
        created,
        restarts: containers().map(|container| u32::try_from(container.restart_count).unwrap_or(0)).max().unwrap_or(0),
        last_end: containers().filter_map(last_end).max(),
        trouble: containers().find_map(trouble).or_else(|| failed_job(pod)),
        homeless: homeless(pod, condition("PodScheduled"), condition("ContainersReady"), ready),
    }
}

/// A pod of a Job is not started again by its kubelet. Those of others may fail for reasons of the node, and are replaced.
fn failed_job(pod: &Pod) -> Option<String> {
    let owners = pod.metadata.owner_references.iter().flatten();
    let is_of_job = owners.into_iter().any(|owner| owner.controller == Some(true) && owner.kind == "Job");
    let status = pod.status.as_ref().filter(|status| is_of_job && status.phase.as_deref() == Some("Failed"))?;
    // With a reason it is the node's: evicted, preempted, shut down.
    let containers = status.container_statuses.iter().flatten().filter(|_| status.reason.is_none());
    containers.into_iter().find_map(|container| {
        let ended = container.state.as_ref()?.terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
        Some(format!("container {}: it ended with exit code {}", container.name, ended.exit_code))
    })
}

/// When a container last ended, in the state that it is in or was in before.
fn last_end(container: &ContainerStatus) -> Option<Timestamp> {
    let states = [container.state.as_ref(), container.last_state.as_ref()];
    let ended = states.into_iter().flatten().filter_map(|state| state.terminated.as_ref());
    ended.filter_map(|ended| ended.finished_at.as_ref()).map(|time| time.0).max()
}

fn homeless(
    pod: &Pod,
    scheduled: Option<&PodCondition>,
    containers: Option<&PodCondition>,
    ready: Option<&PodCondition>,
) -> Option<String> {
    let is = |condition: Option<&PodCondition>, status: &str| condition.is_some_and(|found| found.status == status);
    if is(scheduled, "False") {
        return Some("no node has room for it".to_owned());
    }
    // A kubelet never says that a pod is not ready whose containers are. Nobody hears of it any more, and the node controller says so.
    let has_gates = pod.spec.as_ref().is_some_and(|spec| spec.readiness_gates.iter().flatten().next().is_some());
    let is_lost = is(ready, "False") && is(containers, "True") && !has_gates;
    is_lost.then(|| "its node is lost".to_owned())
}

/// In one sentence. What the app itself said when it ended is left out: it may be secret.
fn trouble(container: &ContainerStatus) -> Option<String> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref().filter(|reason| TROUBLES.contains(reason))?;
    let name = &container.name;
    // This message names the object and the key that is missing.
    let message = waiting.message.as_deref().filter(|_| reason == "CreateContainerConfigError");
    let ended = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    let detail = match (message, ended) {
        (Some(message), _) => format!(" ({message})"),
        (None, Some(ended)) => format!(" (it ended with exit code {})", ended.exit_code),
        (None, None) => String::new(),
    };
    Some(format!("container {name}: {reason}{detail}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "web-1"}, "status": status})).unwrap()
    }

    #[test]
    fn a_crash_loop_is_told_without_the_apps_own_words() {
        let found = unit(&pod(&json!({"containerStatuses": [{
            "name": "app", "image": "", "imageID": "", "ready": false, "restartCount": 2,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
            "lastState": {"terminated": {"exitCode": 3, "message": "password=hunter2"}},
        }]})));
        assert_eq!(found.trouble.as_deref(), Some("container app: CrashLoopBackOff (it ended with exit code 3)"));
        assert_eq!((found.restarts, found.is_ready), (2, false));
    }

    #[test]
    fn a_pod_that_is_not_ready_yet_has_lost_nothing() {
        let health_since = |since: &str| {
            let condition = json!({"type": "Ready", "status": "False", "lastTransitionTime": since});
            unit(&pod(&json!({"startTime": "2026-01-01T00:00:00Z", "conditions": [condition]})))
        };
        assert!(!health_since("2026-01-01T00:00:01Z").was_ready);
        assert!(health_since("2026-01-01T00:00:09Z").was_ready);
    }

    #[test]
    fn a_missing_key_is_named() {
        let found = unit(&pod(&json!({"containerStatuses": [{
            "name": "app", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "CreateContainerConfigError", "message": "couldn't find key COLOR"}},
        }]})));
        assert!(found.trouble.unwrap().contains("couldn't find key COLOR"));
    }

    #[test]
    fn a_job_that_failed_is_trouble_and_one_that_is_done_is_well() {
        let of_job = |phase: &str, exit_code: i32| {
            let ended = json!({"terminated": {"exitCode": exit_code, "finishedAt": "2026-01-01T00:00:09Z"}});
            let mut pod = pod(&json!({"phase": phase, "containerStatuses": [{
                "name": "app", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": ended,
            }]}));
            let job = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": true});
            pod.metadata.owner_references = Some(vec![serde_json::from_value(job).unwrap()]);
            unit(&pod)
        };
        assert_eq!(of_job("Failed", 3).trouble.as_deref(), Some("container app: it ended with exit code 3"));
        assert!(of_job("Succeeded", 0).is_ready);
    }

    #[test]
    fn a_pod_without_a_place_says_so() {
        let with = |said: &[(&str, &str)]| {
            let said: Vec<_> = said.iter().map(|(of, status)| json!({"type": of, "status": status})).collect();
            pod(&json!({"conditions": said}))
        };
        assert!(unit(&with(&[("PodScheduled", "False")])).homeless.unwrap().contains("room"));
        assert_eq!(unit(&with(&[("Ready", "False"), ("ContainersReady", "False")])).homeless, None);
        let mut lost = with(&[("Ready", "False"), ("ContainersReady", "True")]);
        assert!(
            unit(&lost).homeless.unwrap().contains("lost"),
            "what the node controller says of a node that is silent"
        );
        let gate = json!({"containers": [], "readinessGates": [{"conditionType": "example.com/feature"}]});
        lost.spec = serde_json::from_value(gate).unwrap();
        assert_eq!(unit(&lost).homeless, None, "a gate of its own is closed");
    }

    #[test]
    fn a_pod_that_is_being_made_is_no_trouble() {
        let found = unit(&pod(&json!({"containerStatuses": [{
            "name": "app", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ContainerCreating"}},
        }]})));
        assert_eq!(found.trouble, None);
    }
}
