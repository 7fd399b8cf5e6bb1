//! The storm guard: a config that never comes to rest must not roll its consumers without end.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::policy::StormGuard;

const FIRST_WAIT: Duration = Duration::from_secs(10);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// So many consumers may be rolled within [`BUDGET_WINDOW`] in the whole cluster.
pub const BUDGET: usize = 3000;
pub const BUDGET_WINDOW: Duration = Duration::from_secs(60);

/// Until when a consumer is left in peace, given when it was rolled before.
pub fn wait_until(rolled_at: &[Timestamp], guard: StormGuard, now: Timestamp) -> Option<Timestamp> {
    let recent = || rolled_at.iter().filter(|at| is_within(**at, guard.window, now));
    let excess = (recent().count() + 1).checked_sub(guard.free_releases.max(1) + 1)?;
    let wait = (FIRST_WAIT * 2_u32.saturating_pow(u32::try_from(excess).unwrap_or(u32::MAX))).min(LONGEST_WAIT);
    let until = later(*recent().max()?, wait);
    (until > now).then_some(until)
}

/// Times stand in objects that people may write, too: the last that there is has none after it.
pub fn later(at: Timestamp, wait: Duration) -> Timestamp {
    SignedDuration::try_from(wait).ok().and_then(|wait| at.checked_add(wait).ok()).unwrap_or(Timestamp::MAX)
}

pub fn is_within(at: Timestamp, window: Duration, now: Timestamp) -> bool {
    now.duration_since(at) < SignedDuration::try_from(window).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    const GUARD: StormGuard = StormGuard { free_releases: 2, window: Duration::from_secs(600) };

    #[test]
    fn the_first_releases_go_without_a_wait() {
        assert_eq!(wait_until(&[], GUARD, at(0)), None);
        assert_eq!(wait_until(&[at(0)], GUARD, at(1)), None);
    }

    #[test]
    fn each_further_one_waits_twice_as_long() {
        assert_eq!(wait_until(&[at(0), at(1)], GUARD, at(2)), Some(at(11)));
        assert_eq!(wait_until(&[at(0), at(1), at(11)], GUARD, at(12)), Some(at(31)));
        assert_eq!(wait_until(&[at(0); 40], GUARD, at(12)), Some(at(300)));
    }

    #[test]
    fn what_is_long_ago_does_not_count() {
        assert_eq!(wait_until(&[at(0), at(1)], GUARD, at(700)), None);
        assert_eq!(wait_until(&[at(0), at(1)], GUARD, at(20)), None, "it waited long enough");
    }

    #[test]
    fn a_config_that_flaps_for_an_hour_rolls_a_bounded_number_of_times() {
        let mut rolled = Vec::new();
        for second in 0..3600 {
            if wait_until(&rolled, GUARD, at(second)).is_none() {
                rolled.push(at(second));
            }
        }
        assert!(rolled.len() < 40, "{}", rolled.len());
    }

    #[test]
    fn a_time_that_has_none_after_it_is_no_reason_to_panic() {
        let guard = StormGuard { free_releases: 1, ..StormGuard::default() };
        assert_eq!(wait_until(&[Timestamp::MAX; 3], guard, at(0)), Some(Timestamp::MAX));
    }
}
