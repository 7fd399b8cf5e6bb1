//! Writes of consumers that the API server refused. A quota, a policy or a strategy that somebody changed may stand in the way for long: each
//! try costs the API server as much as one that succeeds, so the next one comes later each time.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use lockstep_core::release::{Action, ConsumerId, Gate};
use lockstep_core::storm::later;

const FIRST_RETRY: Duration = Duration::from_secs(5);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// The writes of one release that were refused.
pub type Refusals = BTreeMap<ConsumerId, Refusal>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What the API server said first: what differs each time, as a port does, would make each time a new record.
    pub why: String,
    write: Action,
    times: u32,
    pub again_at: Timestamp,
}

impl Refusal {
    /// `earlier`: what was refused to the same consumer before.
    pub fn new(write: Action, why: String, earlier: Option<&Self>, now: Timestamp) -> Self {
        let same = earlier.filter(|earlier| earlier.is_of(&write));
        let times = same.map_or(0, |same| same.times);
        let wait = FIRST_RETRY * 2_u32.saturating_pow(times);
        let why = same.map_or(why, |same| same.why.clone());
        Self { why, write, times: times.saturating_add(1), again_at: later(now, wait.min(LAST_RETRY)) }
    }

    /// Whether to wait before this write is tried. Another one may well be taken.
    pub fn delays(&self, write: &Action, now: Timestamp) -> bool {
        self.is_of(write) && now < self.again_at
    }

    /// Whether a pod of the consumer may not be deleted. The consumer itself is written.
    pub fn is_of_pod(&self) -> bool {
        matches!(self.write, Action::DeletePod { .. })
    }

    fn is_of(&self, write: &Action) -> bool {
        match (&self.write, write) {
            // Who may not delete one pod may delete none.
            (Action::DeletePod { .. }, Action::DeletePod { .. }) => true,
            // For how long a gate is to hold differs each time.
            (Action::Pin { pins: one, gate: gate_one, .. }, Action::Pin { pins: other, gate: gate_other, .. }) => {
                one == other && (*gate_one == Gate::Open) == (*gate_other == Gate::Open)
            }
            (refused, write) => refused == write,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn pin(pins: &str) -> Action {
        let consumer = ConsumerId { kind: "Deployment".into(), name: "web".into() };
        Action::Pin { consumer, pins: pins.parse().unwrap(), gate: Gate::Open }
    }

    fn refused(pins: &str, why: &str, earlier: Option<&Refusal>) -> Refusal {
        Refusal::new(pin(pins), why.to_owned(), earlier, NOW)
    }

    #[test]
    fn a_write_that_is_refused_again_waits_longer_and_another_one_does_not_wait() {
        let first = refused("configmap/app=app-1", "port 1", None);
        assert!(first.delays(&pin("configmap/app=app-1"), NOW));
        assert!(!first.delays(&pin("configmap/app=app-0"), NOW), "the way back is another write");
        let again = |last: &Refusal| Some(refused("configmap/app=app-1", "port 2", Some(last)));
        let all: Vec<Refusal> = std::iter::successors(Some(first), again).take(6).collect();
        assert_eq!(all.iter().map(|refusal| refusal.again_at.as_second()).collect::<Vec<_>>(), [5, 10, 20, 40, 60, 60]);
        assert_eq!(all[5].why, "port 1");
        assert_eq!(refused("configmap/app=app-0", "port 3", Some(&all[5])).again_at.as_second(), 5);
    }
}
