//! The simulation: the whole operator against a simulated cluster, schedule by schedule. It needs no cluster, and uses all cores.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::cargo::{self, Profile};
use crate::command;
use crate::home::repository;
use crate::progress::{Step, note};

/// Which schedules to play.
#[derive(Debug, Args)]
pub(crate) struct Choice {
    /// So many; a thousand if nothing is said
    #[arg(long)]
    schedules: Option<u64>,
    /// Only the one of this seed
    #[arg(long)]
    seed: Option<u64>,
    /// For so many minutes
    #[arg(long)]
    minutes: Option<f64>,
}

pub(crate) fn run(choice: &Choice) -> Result<()> {
    let mut simulate = Command::new(program()?);
    let Choice { schedules, seed, minutes } = choice;
    for (flag, value) in [
        ("--schedules", schedules.map(|value| value.to_string())),
        ("--seed", seed.map(|value| value.to_string())),
        ("--minutes", minutes.map(|value| value.to_string())),
    ] {
        if let Some(value) = value {
            simulate.args([flag, &value]);
        }
    }
    if seed.is_some() {
        return command::run(&mut simulate);
    }
    let results = repository().join("target/simulation.json");
    let outcome = command::run(simulate.arg("--json").arg(&results));
    note(&format!("The same as JSON: {}", results.display()));
    outcome
}

fn program() -> Result<PathBuf> {
    let step = Step::start("build the simulation (release build)");
    let built = cargo::programs(&["simulate"], Profile::Simulation, &step.part())?;
    step.done("");
    built.into_iter().next().context("the simulation was not built")
}
