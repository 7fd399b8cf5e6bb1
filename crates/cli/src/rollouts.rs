//! Following workloads that a file wrote until they run what it says, or do not.

use std::time::Duration;

use anyhow::Result;
use jiff::SignedDuration;
use kube::Api;
use kube::api::DynamicObject;
use lockstep_core::health::Rollout;
use lockstep_core::kinds::Kind;
use lockstep_core::rollout::rollout;
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::Outcome;
use crate::cluster::Cluster;
use crate::follow::{FAILURE_LIMIT, POLL, Patience};
use crate::output::{BAD, Format, GOOD, MOVING, paint};
use crate::progress::{Progress, how_far};

/// How long a controller's word that it gave up may still be about an earlier change: it needs a moment to begin with a new one.
const GAVE_UP_GRACE: Duration = Duration::from_secs(5);

/// A workload that was written.
pub(crate) struct Written {
    pub(crate) workload: Workload,
    /// None for a kind that cannot be followed.
    pub(crate) followed: Option<(Cluster, Api<DynamicObject>)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Workload {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) namespace: String,
}

/// How the rollout of a workload ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct End {
    #[serde(flatten)]
    workload: Workload,
    result: Ending,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
enum Ending {
    RolledOut,
    /// There is nothing to wait for.
    Idle,
    /// Nobody here knows how far such a workload is.
    NotFollowed,
    TimedOut,
    Gone,
    /// Its controller gave up.
    Failed,
}

impl Ending {
    fn outcome(self) -> Outcome {
        match self {
            Self::RolledOut | Self::Idle | Self::NotFollowed => Outcome::Done,
            Self::TimedOut => Outcome::TimedOut,
            Self::Gone | Self::Failed => Outcome::NotReleased,
        }
    }
}

/// The worst of them.
pub(crate) fn outcome(ends: &[End]) -> Outcome {
    ends.iter().map(|end| end.result).max().map_or(Outcome::Done, Ending::outcome)
}

/// Whether the controller of an object says how far it is.
pub(crate) fn can_follow(object: &Value) -> bool {
    let group =
        object["apiVersion"].as_str().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group);
    let kind = object["kind"].as_str().unwrap_or_default();
    matches!(
        (group, kind),
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet") | ("argoproj.io", "Rollout") | ("batch", "CronJob")
    )
}

/// Whether an object is a pod, or makes pods.
pub(crate) fn has_pods(object: &Value) -> bool {
    let is_pod = object["apiVersion"] == "v1" && object["kind"] == "Pod";
    let is_template = |pointer: &str| object.pointer(pointer).is_some_and(Value::is_array);
    // Other things have templates, too, and no containers.
    is_pod || can_follow(object) || is_template("/spec/template/spec/containers")
}

/// Follows workloads to the ends of their rollouts.
pub(crate) async fn follow(written: &[Written], patience: Patience, format: Format) -> Result<Vec<End>> {
    let started = Instant::now();
    let mut progress = Progress::new(format);
    let mut failures = 0;
    let mut ends: Vec<Option<End>> = written.iter().map(not_followed).collect();
    while ends.iter().any(Option::is_none) {
        let is_late = patience.is_over();
        for (written, end) in written.iter().zip(&mut ends).filter(|(_, end)| end.is_none()) {
            let found = match look(written).await {
                Err(_) if failures < FAILURE_LIMIT && !is_late => {
                    failures += 1;
                    continue;
                }
                looked => looked?,
            };
            failures = 0;
            if let Some(rollout) = found.as_ref().filter(|rollout| rollout.idle.is_none()) {
                progress.show_rollout(&written.workload.shown(), rollout)?;
            }
            let ended = ending(found.as_ref(), started.elapsed());
            let ended = ended.or_else(|| is_late.then(|| too_late(found.as_ref(), patience.timeout)));
            *end = ended.map(|(result, reason)| End { workload: written.workload.clone(), result, reason });
        }
        if ends.iter().any(Option::is_none) {
            sleep(POLL).await;
        }
    }
    progress.end();
    Ok(ends.into_iter().flatten().collect())
}

/// How far a workload is; None if it is gone.
async fn look(written: &Written) -> Result<Option<Rollout>> {
    let Workload { kind, name, .. } = &written.workload;
    let Some((cluster, api)) = &written.followed else { return Ok(None) };
    let found = cluster.optional(api.get(name).await, || format!("read {}", written.workload.shown()))?;
    Ok(found.map(|found| rollout(kind, name, found.metadata.generation.unwrap_or(0), &found.data)))
}

fn not_followed(written: &Written) -> Option<End> {
    let reason = "only Deployments, StatefulSets, DaemonSets and Argo Rollouts are".to_owned();
    let end = || End { workload: written.workload.clone(), result: Ending::NotFollowed, reason };
    written.followed.is_none().then(end)
}

/// How a rollout ended, and why, if it did. None for a workload that is gone; `waited` since somebody first looked.
fn ending(rollout: Option<&Rollout>, waited: Duration) -> Option<(Ending, String)> {
    let Some(rollout) = rollout else { return Some((Ending::Gone, "somebody deleted it".to_owned())) };
    if rollout.has_arrived() {
        let idle = rollout.idle.clone().map(|why| (Ending::Idle, why));
        return Some(idle.unwrap_or((Ending::RolledOut, String::new())));
    }
    let gave_up = rollout.failure.as_ref().filter(|_| rollout.is_observed && waited >= GAVE_UP_GRACE);
    gave_up.map(|failure| (Ending::Failed, failure.reason.clone()))
}

fn too_late(rollout: Option<&Rollout>, timeout: SignedDuration) -> (Ending, String) {
    let stands = rollout.map(|rollout| how_far(rollout) + ", ").unwrap_or_default();
    (Ending::TimedOut, format!("{stands}and not rolled out within {timeout:#}; it goes on without us"))
}

impl Workload {
    /// As kubectl takes it.
    fn shown(&self) -> String {
        format!("{}/{} in namespace {}", self.kind.to_ascii_lowercase(), self.name, self.namespace)
    }

    fn typed(&self) -> String {
        format!("{}/{} -n {}", self.kind.to_ascii_lowercase(), self.name, self.namespace)
    }

    /// The command that says how far it is.
    fn look_at_it(&self) -> String {
        let Self { kind, name, namespace } = self;
        match kind.as_str() {
            "Deployment" | "StatefulSet" | "DaemonSet" => format!("kubectl rollout status {}", self.typed()),
            "Rollout" => format!("kubectl argo rollouts get rollout {name} -n {namespace}"),
            _ => format!("kubectl get {}", self.typed()),
        }
    }

    /// The command that brings back what ran before.
    fn go_back(&self) -> String {
        let Self { kind, name, namespace } = self;
        let undo = Kind::named(kind).undo_command(&kind.to_ascii_lowercase(), name);
        format!("{undo} -n {namespace}")
    }
}

impl End {
    pub(crate) fn text(&self) -> String {
        let Self { workload, result, reason } = self;
        let (shown, look) = (workload.shown(), workload.look_at_it());
        match result {
            Ending::RolledOut => format!("{shown}: {}", paint("rolled out", GOOD)),
            Ending::Idle => format!("{shown}: {}: {reason}", paint("nothing to wait for", MOVING)),
            Ending::NotFollowed => {
                format!("{shown}: {}: {reason}. Look at it: {look}", paint("not followed", MOVING))
            }
            Ending::TimedOut => format!("{shown}: {}: {reason}. Look at it: {look}", paint("timed out", BAD)),
            Ending::Gone => format!("{shown}: {}: {reason}", paint("gone", BAD)),
            Ending::Failed => {
                let next = format!("Look at it: {look}. Go back: {}", workload.go_back());
                format!("{shown}: {}: {reason}. {next}", paint("was not rolled out", BAD))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_core::health::Failure;
    use serde_json::json;

    use super::*;
    use crate::output::plain;

    const LONG: Duration = Duration::from_secs(60);

    fn rolling(updated: u32, ready: u32) -> Rollout {
        Rollout { is_observed: true, desired: 2, updated, ready, is_complete: updated == 2, ..Rollout::default() }
    }

    fn how(rollout: &Rollout, waited: Duration) -> Option<Ending> {
        ending(Some(rollout), waited).map(|(result, _)| result)
    }

    fn text(kind: &str, (result, reason): (Ending, String)) -> String {
        let workload = Workload { kind: kind.into(), name: "web".into(), namespace: "shop".into() };
        plain(&End { workload, result, reason }.text())
    }

    #[test]
    fn a_rollout_is_over_when_every_pod_is_new_and_ready() {
        assert_eq!(how(&rolling(1, 2), LONG), None, "an old pod is left");
        assert_eq!(how(&rolling(2, 1), LONG), None, "a new one is not ready");
        assert_eq!(how(&rolling(2, 2), LONG), Some(Ending::RolledOut));
        let unseen = Rollout { is_observed: false, ..rolling(2, 2) };
        assert_eq!(how(&unseen, LONG), None, "its status speaks of what was before");
    }

    #[test]
    fn a_controller_that_gave_up_is_heard_unless_it_may_speak_of_an_earlier_change() {
        let failure = Some(Failure { reason: "it exceeded its own progress deadline".into(), at: None });
        let stuck = Rollout { failure, ..rolling(1, 2) };
        assert_eq!(how(&stuck, Duration::ZERO), None);
        let unseen = Rollout { is_observed: false, ..stuck.clone() };
        assert_eq!(how(&unseen, LONG), None);
        let told = text("Deployment", ending(Some(&stuck), LONG).unwrap());
        assert_eq!(
            told,
            "deployment/web in namespace shop: was not rolled out: it exceeded its own progress deadline. \
             Look at it: kubectl rollout status deployment/web -n shop. \
             Go back: kubectl rollout undo deployment/web -n shop"
        );
    }

    #[test]
    fn what_has_no_pods_to_wait_for_says_why() {
        let idle = Rollout { idle: Some("it is scaled to zero".into()), desired: 0, ..rolling(2, 0) };
        let told = text("Deployment", ending(Some(&idle), Duration::ZERO).unwrap());
        assert_eq!(told, "deployment/web in namespace shop: nothing to wait for: it is scaled to zero");
    }

    #[test]
    fn who_waits_for_a_person_is_waited_for_and_says_so() {
        let paused = Rollout { waits_for: Some("`kubectl rollout resume`: it is paused".into()), ..rolling(0, 2) };
        assert_eq!(how(&paused, LONG), None);
        let told = text("Deployment", too_late(Some(&paused), SignedDuration::from_mins(1)));
        assert!(
            told.contains("timed out: it waits for `kubectl rollout resume`") && told.contains("within 1m"),
            "{told}"
        );
    }

    #[test]
    fn the_worst_end_is_the_outcome() {
        let end = |result| {
            let workload = Workload { kind: "Deployment".into(), name: "web".into(), namespace: "shop".into() };
            End { workload, result, reason: String::new() }
        };
        let of = |all: &[Ending]| outcome(&all.iter().copied().map(end).collect::<Vec<_>>());
        assert_eq!(of(&[]), Outcome::Done);
        assert_eq!(of(&[Ending::RolledOut, Ending::Idle, Ending::NotFollowed]), Outcome::Done);
        assert_eq!(of(&[Ending::TimedOut, Ending::RolledOut]), Outcome::TimedOut);
        assert_eq!(of(&[Ending::TimedOut, Ending::Failed]), Outcome::NotReleased);
        assert_eq!(ending(None, LONG).map(|(result, _)| result.outcome()), Some(Outcome::NotReleased), "it is gone");
    }

    #[test]
    fn kinds_are_followed_or_named() {
        let object = |version: &str, kind: &str| {
            let template = json!({"spec": {"containers": []}});
            json!({"apiVersion": version, "kind": kind, "spec": {"template": template}})
        };
        for (version, kind) in [("apps/v1", "DaemonSet"), ("argoproj.io/v1alpha1", "Rollout"), ("batch/v1", "CronJob")]
        {
            assert!(can_follow(&object(version, kind)), "{kind}");
        }
        for (version, kind) in [("batch/v1", "Job"), ("apps/v1", "ReplicaSet"), ("example.com/v1", "Deployment")] {
            assert!(!can_follow(&object(version, kind)) && has_pods(&object(version, kind)), "{kind}");
        }
        assert!(has_pods(&json!({"apiVersion": "v1", "kind": "Pod"})));
        assert!(!has_pods(&json!({"apiVersion": "v1", "kind": "Service"})));
        let told = text("Job", (Ending::NotFollowed, "only some are".into()));
        assert_eq!(
            told,
            "job/web in namespace shop: not followed: only some are. Look at it: kubectl get job/web -n shop"
        );
    }
}
