//! The test layers: formatting and lints, unit and golden tests, end-to-end tests on a real cluster.

mod end_to_end;
mod hog;
mod pool;
mod report;

use anyhow::{Context, Result};
use clap::Args;

use crate::cargo::{self, cargo};
use crate::command;
use crate::home::Home;
use crate::progress::{Step, note};

/// Which tests to run.
#[derive(Debug, Args)]
pub(crate) struct Choice {
    /// Run only this file of `crates/testing/tests/end_to_end`, such as `releases`; also several, separated by commas
    #[arg(long, value_delimiter = ',')]
    file: Vec<String>,
    /// Run only end-to-end tests whose name contains this
    #[arg(long)]
    filter: Option<String>,
    /// Run the end-to-end tests so often, to find what is flaky
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Keep so many cores busy beside the end-to-end tests
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    busy: u32,
}

impl Choice {
    /// A part of the end-to-end tests is for whoever works on it: lints and unit tests have commands of their own.
    fn is_part(&self) -> bool {
        !self.file.is_empty() || self.filter.is_some()
    }
}

pub(crate) fn run(home: &Home, choice: &Choice) -> Result<()> {
    if !choice.is_part() {
        lint()?;
        unit()?;
    }
    end_to_end::run(home, choice)
}

pub(crate) fn lint() -> Result<()> {
    title("formatting and lints");
    command::run(cargo().args(["fmt", "--all", "--check"])).context("run `cargo fmt` to format the code")?;
    let step = Step::start("check with clippy");
    // The end-to-end tests are not among all targets: what needs a cluster is left out unless it is named.
    for targets in [&["--all-targets"][..], &["--test", "end_to_end"]] {
        let clippy = ["clippy", "--locked", "--workspace"];
        cargo::run(cargo().args(clippy).args(targets).args(["--", "-D", "warnings"]), &step.part())?;
    }
    step.done("");
    Ok(())
}

/// Everything that needs no cluster.
pub(crate) fn unit() -> Result<()> {
    title("unit and golden tests");
    let step = Step::start("build the unit tests");
    cargo::run(cargo().args(["test", "--locked", "--workspace", "--no-run"]), &step.part())?;
    step.done("");
    // A golden file that is missing or different fails; it is never written behind the developer's back.
    command::run(cargo().args(["test", "--quiet", "--locked", "--workspace"]).env("INSTA_UPDATE", "no"))
}

fn title(text: &str) {
    note(&format!("\n== {text}"));
}
