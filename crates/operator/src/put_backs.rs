//! How often versions were put back into a workload's template after somebody wrote plain names over them.
//!
//! Each time is a rollout. A tool that enforces its manifest would write again at once, and we too, for ever: so we wait longer
//! each time, and say so.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::index::WorkloadId;

/// The longest wait.
const LONGEST: Duration = Duration::from_secs(600);
/// After so much time in peace, a workload's put-backs are forgotten.
const PEACE: Duration = Duration::from_secs(3600);
/// From the third on it is not somebody who applied a manifest twice.
const SUSPICIOUS: u32 = 3;

#[derive(Debug, Default)]
pub struct PutBacks(BTreeMap<WorkloadId, (u32, Instant)>);

impl PutBacks {
    /// How long to wait before the next one.
    pub fn wait(&self, id: &WorkloadId, first: Duration) -> Duration {
        let count = self.0.get(id).map_or(0, |(count, _)| *count);
        (first * 2_u32.saturating_pow(count)).min(LONGEST)
    }

    /// Counts one. True if somebody seems to enforce plain names.
    pub fn note(&mut self, id: &WorkloadId, now: Instant) -> bool {
        self.0.retain(|_, (_, last)| now.duration_since(*last) < PEACE);
        let (count, last) = self.0.entry(id.clone()).or_insert((0, now));
        (*count, *last) = ((*count + 1).min(16), now);
        *count >= SUSPICIOUS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::WorkloadKey;

    const FIRST: Duration = Duration::from_secs(1);

    fn web() -> WorkloadId {
        WorkloadId { namespace: "shop".into(), workload: WorkloadKey { kind: 0, name: "web".into() } }
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_grows_to_a_limit_and_the_third_is_suspicious() {
        let mut put_backs = PutBacks::default();
        assert_eq!(put_backs.wait(&web(), FIRST), FIRST);
        let suspicious: Vec<bool> = (0..3).map(|_| put_backs.note(&web(), Instant::now())).collect();
        assert_eq!(suspicious, [false, false, true]);
        assert_eq!(put_backs.wait(&web(), FIRST), FIRST * 8);
        for _ in 0..100 {
            put_backs.note(&web(), Instant::now());
        }
        assert_eq!(put_backs.wait(&web(), FIRST), LONGEST);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_long_ago_is_forgotten() {
        let mut put_backs = PutBacks::default();
        put_backs.note(&web(), Instant::now());
        put_backs.note(&web(), Instant::now());
        tokio::time::advance(PEACE).await;
        assert!(!put_backs.note(&web(), Instant::now()));
        assert_eq!(put_backs.wait(&web(), FIRST), FIRST * 2);
    }
}
