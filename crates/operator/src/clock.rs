//! What time it is. Kubelets and people go by the wall clock, and what they write is compared with ours: so it is read anew each time, and
//! also counts the time in which the machine slept.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// How far back a wall clock is corrected without our time going back with it: it stands still until then. What is set back by more was
/// wrong before, and nobody should wait for hours because of that.
const STANDSTILL: SignedDuration = SignedDuration::from_secs(60);

/// Clones show the same time.
#[derive(Clone)]
pub struct Clock(Arc<Inner>);

struct Inner {
    source: Source,
    last: Mutex<Timestamp>,
}

enum Source {
    System,
    /// What it was at the start; and by how much it was set since.
    Simulated {
        start: Instant,
        at: Timestamp,
        set_by: Mutex<SignedDuration>,
    },
}

impl Clock {
    /// The machine's wall clock.
    pub fn system() -> Self {
        Self::of(Source::System)
    }

    /// From this time on with tokio's clock, which a simulation turns.
    pub fn starting_at(at: Timestamp) -> Self {
        Self::of(Source::Simulated { start: Instant::now(), at, set_by: Mutex::new(SignedDuration::ZERO) })
    }

    fn of(source: Source) -> Self {
        let last = Mutex::new(source.read());
        Self(Arc::new(Inner { source, last }))
    }

    pub fn now(&self) -> Timestamp {
        let mut last = lock(&self.0.last);
        *last = steady(*last, self.0.source.read());
        *last
    }

    /// Sets a simulated clock forward, or back. The machine's is not ours to set.
    pub fn jump(&self, by: SignedDuration) {
        if let Source::Simulated { set_by, .. } = &self.0.source {
            let mut set_by = lock(set_by);
            *set_by = set_by.saturating_add(by);
        }
    }
}

impl Source {
    fn read(&self) -> Timestamp {
        match self {
            #[expect(clippy::disallowed_methods, reason = "the one place that looks at the machine's clock")]
            Self::System => Timestamp::now(),
            Self::Simulated { start, at, set_by } => {
                let passed = SignedDuration::try_from(start.elapsed()).unwrap_or(SignedDuration::MAX);
                at.saturating_add(passed.saturating_add(*lock(set_by))).unwrap_or(*at)
            }
        }
    }
}

/// What to show when the last time was that, and the wall clock says this.
fn steady(last: Timestamp, wall: Timestamp) -> Timestamp {
    if wall < last && last.duration_since(wall) <= STANDSTILL { last } else { wall }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn start() -> Timestamp {
        "2026-11-15T12:00:00Z".parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_simulated_clock_goes_with_the_simulations_time() {
        let clock = Clock::starting_at(start());
        assert_eq!(clock.now(), start());
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(clock.clone().now(), start() + SignedDuration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_jumps_ahead_is_followed_at_once_for_all_who_have_it() {
        let clock = Clock::starting_at(start());
        clock.clone().jump(SignedDuration::from_hours(1));
        assert_eq!(clock.now(), start() + SignedDuration::from_hours(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_corrected_stands_still_and_never_goes_back() {
        let clock = Clock::starting_at(start());
        clock.now();
        clock.jump(SignedDuration::from_secs(-3));
        assert_eq!(clock.now(), start());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(clock.now(), start());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(clock.now(), start() + SignedDuration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_was_wrong_by_far_is_set_right() {
        let clock = Clock::starting_at(start());
        clock.jump(SignedDuration::from_hours(24));
        clock.now();
        clock.jump(SignedDuration::from_hours(-24));
        assert_eq!(clock.now(), start(), "nobody waits for a day");
    }

    #[test]
    fn the_systems_clock_is_the_wall_clock_and_nobody_sets_it() {
        let clock = Clock::system();
        clock.jump(SignedDuration::from_hours(1));
        #[expect(clippy::disallowed_methods, reason = "that is what it is compared with")]
        let wall = Timestamp::now();
        assert!(wall.duration_since(clock.now()).abs() < SignedDuration::from_secs(5));
    }
}
