//! How quick and how reliable the cluster is: drawn for each schedule, or set by a test.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::random::Random;

/// A time between two others.
pub type Span = (Duration, Duration);

const fn millis(low: u64, high: u64) -> Span {
    (Duration::from_millis(low), Duration::from_millis(high))
}

#[derive(Debug, Clone)]
pub struct Manners {
    pub nodes: usize,
    /// How long a controller takes to see a change and to act.
    pub reaction: Span,
    /// How often, in percent, it takes much longer, and how long then.
    pub lag_percent: u32,
    pub lag: Span,
    /// How long a pod waits for its node.
    pub scheduling: Span,
    /// How many pods, in percent, find no room at first, and for how long.
    pub crowded_percent: u32,
    pub crowded: Span,
    /// How long images and volumes take.
    pub starting: Span,
    /// How many pods, in percent, are seen running before they are seen ready, and how long that takes.
    pub probed_percent: u32,
    pub probing: Span,
    /// How many pods, in percent, miss a probe once, how long after their start, and for how long.
    pub blip_percent: u32,
    pub blip_after: Span,
    pub blip: Span,
    /// How long a container takes to stop.
    pub stopping: Span,
    /// How many, in percent, do not stop by themselves: they are killed at the end of their grace period.
    pub stubborn_percent: u32,
    /// How long the container of a Job runs.
    pub working: Span,
    /// When a node that is not heard of any more is given up, and when its pods are evicted after that.
    pub node_grace: Duration,
    pub eviction: Duration,
    /// What the schedule does to the nodes.
    pub machines: Machines,
}

impl Default for Manners {
    /// A cluster on a good day.
    fn default() -> Self {
        Self {
            nodes: 2,
            reaction: millis(1, 30),
            lag_percent: 0,
            lag: millis(200, 3_000),
            scheduling: millis(1, 50),
            crowded_percent: 0,
            crowded: millis(2_000, 40_000),
            starting: millis(100, 900),
            probed_percent: 30,
            probing: millis(100, 1_500),
            blip_percent: 0,
            blip_after: millis(3_000, 60_000),
            blip: millis(500, 3_000),
            stopping: millis(20, 500),
            stubborn_percent: 0,
            working: millis(500, 5_000),
            node_grace: Duration::from_secs(40),
            eviction: Duration::from_secs(300),
            machines: Machines::default(),
        }
    }
}

impl Manners {
    /// A cluster on any day.
    pub fn random(random: &mut Random) -> Self {
        let one_in = |random: &mut Random, n: u64| random.below(n) == 0;
        let mut manners = Self { nodes: if one_in(random, 4) { 3 } else { 2 }, ..Self::default() };
        if one_in(random, 2) {
            manners.lag_percent = 1 + u32::try_from(random.below(15)).unwrap_or(0);
        }
        if one_in(random, 4) {
            manners.crowded_percent = 1 + u32::try_from(random.below(10)).unwrap_or(0);
        }
        if one_in(random, 3) {
            manners.starting.1 = Duration::from_secs(1 + random.below(8));
        }
        if one_in(random, 3) {
            manners.blip_percent = 1 + u32::try_from(random.below(10)).unwrap_or(0);
        }
        if one_in(random, 3) {
            manners.stubborn_percent = 1 + u32::try_from(random.below(20)).unwrap_or(0);
        }
        manners.probed_percent = u32::try_from(random.below(100)).unwrap_or(0);
        manners
    }
}

/// What a schedule can do to the nodes while the cluster runs. All clones are the same machines.
#[derive(Debug, Clone, Default)]
pub struct Machines {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) lost: BTreeSet<usize>,
    pub(super) is_full: bool,
    pub(super) is_stalled: bool,
}

impl Machines {
    /// Nobody hears of this node any more: its pods run on, and nothing is known of them.
    pub fn lose(&self, node: usize) {
        self.change(|state| {
            state.lost.insert(node);
        });
    }

    /// It is back, with all that it had.
    pub fn find(&self, node: usize) {
        self.change(|state| {
            state.lost.remove(&node);
        });
    }

    pub fn is_lost(&self, node: usize) -> bool {
        self.lock().lost.contains(&node)
    }

    /// No node has room for another pod, until there is room again.
    pub fn fill(&self, is_full: bool) {
        self.change(|state| state.is_full = is_full);
    }

    /// No controller acts, as when the controller manager is being replaced; kubelets and the scheduler go on.
    pub fn stall(&self, is_stalled: bool) {
        self.change(|state| state.is_stalled = is_stalled);
    }

    pub(super) fn state(&self) -> State {
        self.lock().clone()
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_one();
    }
}
