//! Many schedules, side by side: one thread per core, each schedule in a runtime of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::report::{Coverage, Line, per_second};
use crate::schedule::Schedule;
use crate::shrink::{Shrunk, shrink};
use crate::stage::{self, Playing};

/// How often the line is brought up to date.
const TICK: Duration = Duration::from_millis(100);

/// Which seeds, and for how long.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seeds: Seeds,
    pub most: u64,
    pub longest: Option<Duration>,
    pub threads: usize,
    pub playing: Playing,
    /// Whether the first failure of each rule is made small.
    pub shrinks: bool,
}

#[derive(Debug, Clone)]
pub enum Seeds {
    From(u64),
    These(Vec<u64>),
}

impl Seeds {
    fn nth(&self, index: u64) -> Option<u64> {
        match self {
            Self::From(first) => Some(first.wrapping_add(index)),
            Self::These(seeds) => seeds.get(usize::try_from(index).ok()?).copied(),
        }
    }
}

/// What came of all.
#[derive(Default)]
pub struct Result {
    pub coverage: Coverage,
    /// By rule: the seeds that broke it.
    pub failures: BTreeMap<&'static str, Vec<u64>>,
    /// The first of each rule, made small.
    pub stories: Vec<Shrunk>,
    pub took: Duration,
}

/// Plays all of them. `told` hears of each story as soon as it is there.
pub fn run(plan: &Plan, told: impl Fn(&Shrunk) + Sync) -> Result {
    let (started, next) = (Instant::now(), AtomicU64::new(0));
    let result = Mutex::new(Result::default());
    let lock = || result.lock().unwrap_or_else(PoisonError::into_inner);
    let is_late = || plan.longest.is_some_and(|longest| started.elapsed() >= longest);
    let work = || {
        while !is_late() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(seed) = plan.seeds.nth(index).filter(|_| index < plan.most) else { break };
            let schedule = Schedule::of(seed).skipping(&plan.playing.skipped);
            let outcome = stage::play(&schedule, &plan.playing);
            let is_first = {
                let mut result = lock();
                result.coverage.add(outcome.coverage);
                outcome.violation.as_ref().is_some_and(|violation| {
                    let seeds = result.failures.entry(violation.rule).or_default();
                    seeds.push(seed);
                    seeds.len() == 1
                })
            };
            if let Some(violation) = outcome.violation.filter(|_| is_first && plan.shrinks) {
                let story = shrink(&schedule, &violation, outcome.noticed, &plan.playing);
                told(&story);
                lock().stories.push(story);
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..plan.threads).map(|_| scope.spawn(work)).collect();
        let mut line = Line::start();
        while workers.iter().any(|worker| !worker.is_finished()) {
            thread::sleep(TICK);
            let (done, failed) = {
                let result = lock();
                (result.coverage.schedules, result.failures.values().map(Vec::len).sum::<usize>())
            };
            let fraction = fraction(plan, done, started.elapsed());
            let pace = per_second(done, started.elapsed());
            line.show(fraction, &format!("{done} schedules, {pace:.1} per second, {failed} violations"));
        }
        line.clear();
    });
    let mut result = result.into_inner().unwrap_or_else(PoisonError::into_inner);
    result.took = started.elapsed();
    result
}

#[expect(clippy::cast_precision_loss)]
fn fraction(plan: &Plan, done: u64, elapsed: Duration) -> f64 {
    let all = match &plan.seeds {
        Seeds::These(seeds) => plan.most.min(seeds.len() as u64),
        Seeds::From(_) => plan.most,
    };
    let by_time = plan.longest.map_or(0.0, |longest| elapsed.as_secs_f64() / longest.as_secs_f64().max(0.001));
    (done as f64 / all.max(1) as f64).max(by_time).min(1.0)
}
