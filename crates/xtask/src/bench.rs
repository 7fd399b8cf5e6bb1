//! Benchmarks: they report, and never judge.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cluster;
use crate::home::Home;
use crate::interrupt::Guard;
use crate::progress::{note, seconds};

const STARTS: usize = 3;

/// How long the local cluster takes from nothing to a ready node with DNS, with all tools built.
pub(crate) fn run(home: &Home) -> Result<()> {
    let _guard = Guard::set(home)?;
    // Builds what is missing, so that it is not measured.
    cluster::up(home)?;
    let mut times = Vec::new();
    for _ in 0..STARTS {
        cluster::down(home)?;
        let start = Instant::now();
        cluster::up(home)?;
        times.push(start.elapsed());
    }
    cluster::down(home)?;
    times.sort();
    let shown: Vec<String> = times.iter().copied().map(seconds).collect();
    let median: Duration = times[times.len() / 2];
    note(&format!("\nwarm start of the cluster, {STARTS} times: {} (median {})", shown.join(", "), seconds(median)));
    Ok(())
}
