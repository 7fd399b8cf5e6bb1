//! What sets the kinds of consumers apart. How far a kind's controller is says `rollout`; the rest is here: what stops it after its first new
//! pods, and how its pods are put back. Nothing else in the domain asks for a kind's name.

use crate::gate::Means;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Deployment,
    StatefulSet,
    DaemonSet,
    /// Of Argo Rollouts.
    Rollout,
    CronJob,
    /// Its pods stay as they are when its template changes, as far as we know.
    Other,
}

/// What keeps a template while pods of it run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MadeFrom {
    /// It makes the pods.
    ReplicaSet,
    /// A ControllerRevision, which the pods name.
    Revision,
}

impl Kind {
    pub fn named(name: &str) -> Self {
        match name {
            "Deployment" => Self::Deployment,
            "StatefulSet" => Self::StatefulSet,
            "DaemonSet" => Self::DaemonSet,
            "Rollout" => Self::Rollout,
            "CronJob" => Self::CronJob,
            _ => Self::Other,
        }
    }

    /// What stops its objects after their first new pods. A Rollout has steps of its own.
    pub fn gate(self) -> Option<Means> {
        match self {
            Self::Deployment => Some(Means::Surge),
            Self::StatefulSet => Some(Means::Partition),
            Self::DaemonSet => Some(Means::Unavailable),
            Self::Rollout | Self::CronJob | Self::Other => None,
        }
    }

    /// Whether its controller replaces pods at once that are younger than its gate holds: to it they are not available either.
    pub fn gate_misses_young_pods(self) -> bool {
        self == Self::DaemonSet
    }

    /// Whether its controller waits for a broken pod before it replaces it, although the template is another one by now.
    pub fn waits_for_broken_pods(self) -> bool {
        self == Self::StatefulSet
    }

    /// Whether its controller is done only when no pod of another template is left. The Jobs of a CronJob are over.
    pub fn leaves_no_pod_behind(self) -> bool {
        matches!(self, Self::Deployment | Self::Rollout | Self::CronJob)
    }

    /// What keeps the template that a pod was made from, where that can be compared with its own. A Rollout's own lacks the defaults.
    pub fn made_from(self) -> Option<MadeFrom> {
        match self {
            Self::Deployment => Some(MadeFrom::ReplicaSet),
            Self::StatefulSet | Self::DaemonSet => Some(MadeFrom::Revision),
            Self::Rollout | Self::CronJob | Self::Other => None,
        }
    }

    /// The command that stops an object which goes on by itself, whatever a release does.
    pub fn stop_command(self, name: &str) -> Option<String> {
        (self == Self::Rollout).then(|| format!("kubectl argo rollouts pause {name}"))
    }

    /// The command that brings back what an object ran before. `typed` is its kind as kubectl takes it.
    pub fn undo_command(self, typed: &str, name: &str) -> String {
        match self {
            Self::Rollout => format!("kubectl argo rollouts undo {name}"),
            _ => format!("kubectl rollout undo {typed}/{name}"),
        }
    }

    /// The command that shows what it ran before.
    pub fn history_command(self, typed: &str, name: &str) -> String {
        match self {
            Self::Rollout => format!("kubectl argo rollouts get rollout {name}"),
            _ => format!("kubectl rollout history {typed}/{name}"),
        }
    }
}
