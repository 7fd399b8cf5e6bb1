//! How a consumer does under a new version: judged on its new pods, and measured by how it did before.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::policy::Policy;

/// A pod may be not ready for so long during the bake before that counts: one missed probe is no verdict.
const READINESS_GRACE: Duration = Duration::from_secs(5);

/// A pod of a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodHealth {
    pub name: String,
    /// Whether it runs the versions that are being released.
    pub is_new: bool,
    pub is_ready: bool,
    /// Whether it was ready before, or is: one that was recreated is on its way, and has lost nothing.
    pub was_ready: bool,
    /// Since when it is ready, or not.
    pub since: Option<Timestamp>,
    /// The most that one of its containers was restarted.
    pub restarts: u32,
    /// What the kubelet says is wrong with it, in one sentence.
    pub trouble: Option<String>,
}

/// How far a consumer's own controller is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rollout {
    /// Whether its status speaks of the template that we see.
    pub is_observed: bool,
    pub desired: u32,
    pub updated: u32,
    /// Pods that are ready, old and new.
    pub ready: u32,
    /// Whether the controller is done: every pod is new.
    pub is_complete: bool,
    /// What it waits for, if it waits for a person.
    pub waits_for: Option<String>,
    /// Why it gave up, if it did.
    pub failure: Option<String>,
}

/// How a consumer did before its release: what was broken already is not the release's fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Before {
    pub failing: u32,
    pub unready: u32,
}

/// How the new pods of a consumer do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    pub desired: u32,
    pub updated: u32,
    pub ready: u32,
    pub failing: u32,
    /// The most restarts of one new pod.
    pub restarts: u32,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Verdict {
    #[default]
    Rolling,
    /// It waits for a person, who is told what for.
    Waiting(String),
    /// As many new pods as wanted are ready.
    Healthy,
    Failed(String),
}

/// What a consumer has to reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// So many new pods, and no more.
    Batch(u32),
    /// All of them.
    All,
}

pub fn before(rollout: &Rollout, pods: &[PodHealth], policy: &Policy) -> Before {
    let failing = pods.iter().filter(|pod| trouble(pod, policy).is_some()).count();
    Before { failing: count(failing), unready: rollout.desired.saturating_sub(rollout.ready) }
}

/// Judges while the new pods come up.
pub fn judge(rollout: &Rollout, pods: &[PodHealth], before: Before, goal: Goal, policy: &Policy) -> Health {
    let new = || pods.iter().filter(|pod| pod.is_new);
    let troubles: Vec<String> = new().filter_map(|pod| trouble(pod, policy)).collect();
    let ready = count(new().filter(|pod| pod.is_ready).count());
    let failing = count(troubles.len());
    let verdict = if failing > policy.max_failing_pods + before.failing {
        Verdict::Failed(troubles.into_iter().next().unwrap_or_default())
    } else if let Some(failure) = &rollout.failure {
        Verdict::Failed(failure.clone())
    } else if let Some(waits_for) = &rollout.waits_for {
        Verdict::Waiting(waits_for.clone())
    } else if is_reached(rollout, ready, before, goal) {
        Verdict::Healthy
    } else {
        Verdict::Rolling
    };
    let restarts = new().map(|pod| pod.restarts).max().unwrap_or(0);
    Health { desired: rollout.desired, updated: rollout.updated, ready, failing, restarts, verdict }
}

fn is_reached(rollout: &Rollout, ready: u32, before: Before, goal: Goal) -> bool {
    match goal {
        Goal::Batch(size) => rollout.is_observed && ready >= size.min(rollout.desired),
        Goal::All => {
            let is_complete = rollout.is_complete && rollout.ready + before.unready >= rollout.desired;
            // Where pods were broken before, the workload's own controller never gets rid of the last old ones.
            let is_as_good_as_before =
                before.unready > 0 && rollout.updated >= rollout.desired && ready + before.unready >= rollout.desired;
            rollout.is_observed && (is_complete || is_as_good_as_before)
        }
    }
}

/// What went wrong while the new pods were baking, if anything did.
pub fn relapse(pods: &[PodHealth], restarts_before: u32, bake_started: Timestamp, now: Timestamp) -> Option<String> {
    pods.iter().filter(|pod| pod.is_new).find_map(|pod| {
        if pod.restarts > restarts_before {
            return Some(format!("pod {} restarted after it was ready", pod.name));
        }
        let has_lost_it = pod.was_ready && !pod.is_ready;
        let since = pod.since.filter(|since| has_lost_it && *since > bake_started)?;
        let grace = SignedDuration::try_from(READINESS_GRACE).unwrap_or_default();
        (now.duration_since(since) >= grace).then(|| format!("pod {} is not ready any more", pod.name))
    })
}

fn trouble(pod: &PodHealth, policy: &Policy) -> Option<String> {
    let restarted = || {
        let often = pod.restarts > policy.max_restarts;
        often.then(|| format!("restarted {} times", pod.restarts))
    };
    let what = pod.trouble.clone().or_else(restarted)?;
    Some(format!("pod {}: {what}", pod.name))
}

fn count(many: usize) -> u32 {
    u32::try_from(many).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, is_new: bool) -> PodHealth {
        PodHealth {
            name: name.into(),
            is_new,
            is_ready: true,
            was_ready: true,
            since: None,
            restarts: 0,
            trouble: None,
        }
    }

    fn crashing(name: &str, is_new: bool) -> PodHealth {
        PodHealth { is_ready: false, trouble: Some("CrashLoopBackOff".into()), ..pod(name, is_new) }
    }

    fn rollout(updated: u32) -> Rollout {
        let is_complete = updated == 2;
        Rollout { is_observed: true, desired: 2, updated, ready: 2, is_complete, ..Rollout::default() }
    }

    fn verdict(rollout: &Rollout, pods: &[PodHealth], before: Before, goal: Goal) -> Verdict {
        judge(rollout, pods, before, goal, &Policy::default()).verdict
    }

    #[test]
    fn one_crash_loop_among_the_new_pods_is_enough() {
        let pods = [pod("old", false), crashing("new", true)];
        let found = verdict(&rollout(1), &pods, Before::default(), Goal::All);
        assert_eq!(found, Verdict::Failed("pod new: CrashLoopBackOff".into()));
    }

    #[test]
    fn old_pods_do_not_count() {
        let pods = [crashing("old", false), pod("new", true)];
        assert_eq!(verdict(&rollout(1), &pods, Before::default(), Goal::All), Verdict::Rolling);
    }

    #[test]
    fn what_was_broken_before_may_stay_broken() {
        let before = Before { failing: 1, unready: 1 };
        let pods = [crashing("a", true), pod("b", true)];
        let done = Rollout { ready: 1, ..rollout(2) };
        assert_eq!(verdict(&done, &pods, before, Goal::All), Verdict::Healthy);
        let stuck = Rollout { is_complete: false, ..done.clone() };
        assert_eq!(verdict(&stuck, &pods, before, Goal::All), Verdict::Healthy, "its old pods stay for ever");
        let worse = [crashing("a", true), crashing("b", true)];
        assert!(matches!(verdict(&done, &worse, before, Goal::All), Verdict::Failed(_)));
    }

    #[test]
    fn a_first_batch_is_reached_when_it_is_ready() {
        let pods = [pod("old", false), pod("new", true)];
        assert_eq!(verdict(&rollout(1), &pods, Before::default(), Goal::Batch(1)), Verdict::Healthy);
        assert_eq!(verdict(&rollout(1), &pods, Before::default(), Goal::All), Verdict::Rolling);
        assert_eq!(verdict(&rollout(2), &pods, Before::default(), Goal::All), Verdict::Healthy);
    }

    #[test]
    fn a_status_that_speaks_of_an_older_template_says_nothing() {
        let stale = Rollout { is_observed: false, ..rollout(2) };
        assert_eq!(verdict(&stale, &[], Before::default(), Goal::All), Verdict::Rolling);
    }

    #[test]
    fn a_restart_or_a_lost_readiness_during_the_bake_is_a_relapse() {
        let (start, now) = (Timestamp::from_second(100).unwrap(), Timestamp::from_second(120).unwrap());
        assert_eq!(relapse(&[pod("new", true)], 0, start, now), None);
        let restarted = PodHealth { restarts: 1, ..pod("new", true) };
        assert!(relapse(std::slice::from_ref(&restarted), 0, start, now).unwrap().contains("restarted"));
        assert_eq!(relapse(&[restarted], 1, start, now), None, "it had restarted before");
        let lost = |second| PodHealth {
            is_ready: false,
            since: Some(Timestamp::from_second(second).unwrap()),
            ..pod("new", true)
        };
        assert!(relapse(&[lost(110)], 0, start, now).unwrap().contains("not ready"));
        assert_eq!(relapse(&[lost(118)], 0, start, now), None, "it may come back");
        let recreated = PodHealth { was_ready: false, ..lost(110) };
        assert_eq!(relapse(&[recreated], 0, start, now), None, "it is on its way");
        assert_eq!(relapse(&[lost(90)], 0, start, now), None, "it comes up only now");
    }
}
