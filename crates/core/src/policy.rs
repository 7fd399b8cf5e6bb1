//! How releases of a config go. The defaults are meant to be good without any policy.

use std::time::Duration;

/// How releases of a config go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// How long a consumer may stand still, not ready, before its release fails.
    pub progress_deadline: Duration,
    /// How long new pods are watched after they are ready, before the release goes on.
    pub bake: Duration,
    /// How long further changes are waited for, so that changes close together make one release.
    pub settle: Duration,
    /// How many consumers roll at the same time; none means all of a wave.
    pub max_parallel: Option<usize>,
    /// The first batch of each consumer, which bakes before the rest follows.
    pub canary: Option<BatchSize>,
    /// How many new pods may fail before the release does.
    pub max_failing_pods: u32,
    /// How often a new pod may restart before it counts as failing.
    pub max_restarts: u32,
    pub automatic_rollback: bool,
    pub joining: Joining,
    /// How many versions are kept besides those in use.
    pub retain: usize,
    /// How many ended releases are kept.
    pub history: usize,
    /// Whether a consumer is left alone if nothing changed of what it uses.
    pub only_used_keys: bool,
    pub storm: StormGuard,
}

/// Whether a workload that is written during a release joins it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Joining {
    pub enabled: bool,
    pub on_failure: JoinedFailure,
}

/// What happens when a consumer fails that changed its code and its config in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinedFailure {
    /// Nobody can say which of the two is to blame: stop, and leave it to a person.
    Hold,
    /// Put the old config back under the new code.
    RollBackConfig,
}

/// So many pods, or so many of a hundred; of two policies, whichever is less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchSize {
    Pods(u32),
    Percent(u32),
    Least { pods: u32, percent: u32 },
}

/// How often a consumer may be rolled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StormGuard {
    /// So many releases in a window go without a wait; each further one waits twice as long as the one before.
    pub free_releases: usize,
    pub window: Duration,
}

impl BatchSize {
    /// At least one pod, at most all.
    pub fn of(self, replicas: u32) -> u32 {
        let share = |percent: u32| {
            let share = (u64::from(replicas) * u64::from(percent)).div_ceil(100);
            u32::try_from(share).unwrap_or(u32::MAX)
        };
        let wanted = match self {
            Self::Pods(pods) => pods,
            Self::Percent(percent) => share(percent),
            Self::Least { pods, percent } => pods.min(share(percent)),
        };
        wanted.max(1).min(replicas)
    }

    /// The more careful one. Which of a number and a share that is depends on the workload.
    fn and(self, other: Self) -> Self {
        let parts = |size: Self| match size {
            Self::Pods(pods) => (Some(pods), None),
            Self::Percent(percent) => (None, Some(percent)),
            Self::Least { pods, percent } => (Some(pods), Some(percent)),
        };
        let ((pods, percent), (other_pods, other_percent)) = (parts(self), parts(other));
        match (smaller(pods, other_pods), smaller(percent, other_percent)) {
            (Some(pods), Some(percent)) => Self::Least { pods, percent },
            (Some(pods), None) => Self::Pods(pods),
            (None, Some(percent)) => Self::Percent(percent),
            (None, None) => self,
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            progress_deadline: Duration::from_secs(300),
            bake: Duration::from_secs(30),
            settle: Duration::from_secs(1),
            max_parallel: None,
            canary: None,
            max_failing_pods: 0,
            max_restarts: 1,
            automatic_rollback: true,
            joining: Joining { enabled: true, on_failure: JoinedFailure::Hold },
            retain: 10,
            history: 10,
            only_used_keys: true,
            storm: StormGuard::default(),
        }
    }
}

impl Default for StormGuard {
    fn default() -> Self {
        Self { free_releases: 5, window: Duration::from_secs(600) }
    }
}

impl Policy {
    /// One policy for a release of several configs: the more careful choice of each.
    #[must_use]
    pub fn and(self, other: &Self) -> Self {
        Self {
            progress_deadline: self.progress_deadline.max(other.progress_deadline),
            bake: self.bake.max(other.bake),
            settle: self.settle.max(other.settle),
            max_parallel: smaller(self.max_parallel, other.max_parallel),
            canary: self.canary.into_iter().chain(other.canary).reduce(BatchSize::and),
            max_failing_pods: self.max_failing_pods.min(other.max_failing_pods),
            max_restarts: self.max_restarts.min(other.max_restarts),
            automatic_rollback: self.automatic_rollback && other.automatic_rollback,
            joining: Joining {
                enabled: self.joining.enabled && other.joining.enabled,
                on_failure: match (self.joining.on_failure, other.joining.on_failure) {
                    (JoinedFailure::RollBackConfig, JoinedFailure::RollBackConfig) => JoinedFailure::RollBackConfig,
                    _ => JoinedFailure::Hold,
                },
            },
            retain: self.retain.max(other.retain),
            history: self.history.max(other.history),
            only_used_keys: self.only_used_keys && other.only_used_keys,
            storm: StormGuard {
                free_releases: self.storm.free_releases.min(other.storm.free_releases),
                window: self.storm.window.max(other.storm.window),
            },
        }
    }
}

fn smaller<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    a.into_iter().chain(b).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_at_least_one_pod_and_at_most_all() {
        assert_eq!(BatchSize::Percent(20).of(6), 2);
        assert_eq!(BatchSize::Percent(1).of(6), 1);
        assert_eq!(BatchSize::Pods(0).of(6), 1);
        assert_eq!(BatchSize::Pods(9).of(6), 6);
        assert_eq!(BatchSize::Pods(1).of(0), 0);
        assert_eq!(BatchSize::Percent(100).of(u32::MAX), u32::MAX);
    }

    #[test]
    fn of_two_policies_the_more_careful_choice_counts() {
        let quick = Policy { bake: Duration::ZERO, max_parallel: Some(5), max_restarts: 3, ..Policy::default() };
        let both = quick.and(&Policy { max_parallel: Some(2), automatic_rollback: false, ..Policy::default() });
        assert_eq!(both.bake, Policy::default().bake);
        assert_eq!(both.max_parallel, Some(2));
        assert_eq!(both.max_restarts, 1);
        assert!(!both.automatic_rollback);
        let canary = |size| Policy { canary: size, ..Policy::default() };
        let both = canary(Some(BatchSize::Percent(50))).and(&canary(Some(BatchSize::Percent(10)))).canary;
        assert_eq!(both, Some(BatchSize::Percent(10)));
        let both = canary(both).and(&canary(Some(BatchSize::Pods(2)))).and(&canary(None)).canary.unwrap();
        assert_eq!((both.of(10), both.of(100)), (1, 2), "whichever is less");
    }
}
