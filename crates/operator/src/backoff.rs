//! How long a watch that failed waits before it is started again: longer each time, and not all at the same moment.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use tokio::time::Instant;

use crate::environment::Randomness;

/// As those of Kubernetes' own clients do it.
const FIRST: Duration = Duration::from_millis(800);
const LONGEST: Duration = Duration::from_secs(30);
/// What did not fail for so long begins anew.
const PEACE: Duration = Duration::from_secs(120);

pub struct WatchBackoff {
    random: Randomness,
    next: Duration,
    last: Option<Instant>,
}

impl WatchBackoff {
    pub fn new(random: Randomness) -> Self {
        Self { random, next: FIRST, last: None }
    }
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.last.is_some_and(|last| last.elapsed() > PEACE) {
            self.reset();
        }
        self.last = Some(Instant::now());
        let least = self.next;
        self.next = (least * 2).min(LONGEST);
        Some(least + least.mul_f64(self.random.fraction()))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.next = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(backoff: &mut WatchBackoff, count: usize) -> Vec<Duration> {
        backoff.take(count).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn each_wait_is_longer_up_to_a_limit_and_none_is_exact() {
        let waits = waits(&mut WatchBackoff::new(Randomness::seeded(1)), 12);
        for (place, wait) in waits.iter().enumerate() {
            let least = (FIRST * 2_u32.pow(u32::try_from(place).unwrap())).min(LONGEST);
            assert!((least..least * 2).contains(wait), "{place}: {wait:?}");
        }
        assert_ne!(waits[10], waits[11], "not all at the same moment");
    }

    #[tokio::test(start_paused = true)]
    async fn the_seed_decides_about_the_waits() {
        let of = |seed| waits(&mut WatchBackoff::new(Randomness::seeded(seed)), 5);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[tokio::test(start_paused = true)]
    async fn what_works_again_begins_anew() {
        let mut backoff = WatchBackoff::new(Randomness::seeded(1));
        let is_first = |wait: &Duration| (FIRST..FIRST * 2).contains(wait);
        assert!(!waits(&mut backoff, 3).iter().all(is_first));
        backoff.reset();
        assert!(waits(&mut backoff, 1).iter().all(is_first));
        waits(&mut backoff, 5);
        tokio::time::advance(PEACE + Duration::from_secs(1)).await;
        assert!(waits(&mut backoff, 1).iter().all(is_first));
    }
}
