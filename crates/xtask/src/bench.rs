//! Benchmarks: they report, and never judge.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::build;
use crate::cargo::{self, Profile};
use crate::cluster;
use crate::command;
use crate::deploy::{self, Installer};
use crate::home::{Home, repository};
use crate::interrupt::Guard;
use crate::progress::{Step, note, shown};
use crate::stage::Stage;
use crate::tools::Tool;

const STARTS: usize = 3;
/// The part that is measured here; the program `bench` has the others.
const START: &str = "start";

/// Runs the parts with these names, or all.
pub(crate) fn run(home: &Home, parts: &[String]) -> Result<()> {
    if parts.iter().any(|part| part == "list") {
        return list();
    }
    let (ours, others): (Vec<&String>, Vec<&String>) = parts.iter().partition(|part| *part == START);
    if parts.is_empty() || !others.is_empty() {
        operator(home, &others)?;
    }
    if parts.is_empty() || !ours.is_empty() {
        warm_start(home)?;
    }
    Ok(())
}

/// What a change of config costs, with what is published.
fn operator(home: &Home, parts: &[&String]) -> Result<()> {
    let program = program(Profile::Published)?;
    let known = command::output(std::process::Command::new(&program).arg("--list"))?;
    let is_known = |part: &&&String| known.lines().any(|line| line.split_whitespace().next() == Some(part));
    if let Some(unknown) = parts.iter().find(|part| !is_known(part)) {
        bail!("there is no part {unknown}: `make bench PART=list` shows all");
    }
    let stage = Stage::enter(home, &[Tool::Helm], Profile::Published)?;
    deploy::install(&stage, Installer::Manifests)?;
    let results = repository().join("target/bench.json");
    let mut bench = stage.command(&program.display().to_string());
    let outcome = command::run(bench.args(parts).env("LOCKSTEP_BENCH_JSON", &results));
    note(&format!("The same as JSON: {}", results.display()));
    outcome.and(stage.leave(home))
}

fn list() -> Result<()> {
    note(&command::output(std::process::Command::new(program(Profile::Local)?).arg("--list"))?);
    note(&format!("{START}: how long the local cluster takes to start, with all tools built"));
    Ok(())
}

fn program(profile: Profile) -> Result<std::path::PathBuf> {
    let step = Step::start(if profile == Profile::Published {
        "build the benchmark (release build)"
    } else {
        "build the benchmark"
    });
    let built = cargo::programs(&["bench"], profile, &step.part())?;
    step.done("");
    built.into_iter().next().context("the benchmark was not built")
}

/// How long the local cluster takes from nothing to a ready node with DNS, with all tools built.
fn warm_start(home: &Home) -> Result<()> {
    if cluster::running(home).is_ok() {
        note("the warm start is not measured: the running cluster would have to be stopped (make cluster-down)");
        return Ok(());
    }
    // Builds what is missing, so that it is not measured.
    let needed = [Tool::Kubernetes, Tool::CoreDns];
    let (tools, _) = build::ensure(home, &needed, None)?;
    let _guard = Guard::set(home)?;
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let start = Instant::now();
        cluster::up(home, tools.clone(), &needed)?;
        times.push(start.elapsed());
        cluster::down(home)?;
    }
    times.sort();
    let all: Vec<String> = times.iter().copied().map(shown).collect();
    let median: Duration = times[times.len() / 2];
    note(&format!("\nwarm start of the cluster, {STARTS} times: {} (median {})", all.join(", "), shown(median)));
    Ok(())
}
