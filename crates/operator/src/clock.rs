//! What time it is: from tokio's clock, so that a simulation can turn it.

use std::sync::OnceLock;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

static START: OnceLock<(Instant, Timestamp)> = OnceLock::new();

pub fn now() -> Timestamp {
    let (start, at) = START.get_or_init(|| (Instant::now(), Timestamp::now()));
    *at + SignedDuration::try_from(start.elapsed()).unwrap_or_default()
}
