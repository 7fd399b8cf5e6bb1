//! Benchmarks: they report, and never judge.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cluster;
use crate::command;
use crate::deploy;
use crate::home::Home;
use crate::image;
use crate::interrupt::Guard;
use crate::progress::{note, seconds};
use crate::stage::Stage;

const STARTS: usize = 3;

pub(crate) fn run(home: &Home) -> Result<()> {
    operator(home)?;
    warm_start(home)
}

/// What a change of config costs.
fn operator(home: &Home) -> Result<()> {
    let stage = Stage::enter(home)?;
    deploy::install(&stage)?;
    let programs = image::build_static(&[("lockstep-testing", "bench")])?;
    let program = programs.first().context("the benchmark was not built")?;
    let outcome = command::run(&mut stage.command(&program.display().to_string()));
    outcome.and(stage.leave(home))
}

/// How long the local cluster takes from nothing to a ready node with DNS, with all tools built.
fn warm_start(home: &Home) -> Result<()> {
    if cluster::running(home).is_ok() {
        note("the warm start is not measured: the running cluster would have to be stopped (make cluster-down)");
        return Ok(());
    }
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
