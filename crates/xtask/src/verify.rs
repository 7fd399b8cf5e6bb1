//! The test layers: formatting and lints, unit and golden tests, end-to-end tests on a real cluster.

use std::process::Command;

use anyhow::{Context, Result};

use crate::command;
use crate::deploy;
use crate::home::{Home, repository};
use crate::progress::note;
use crate::stage::Stage;

/// End-to-end tests wait far more than they compute.
const PARALLEL_SCENARIOS: &str = "--test-threads=8";

pub(crate) fn everything(home: &Home) -> Result<()> {
    lint()?;
    unit()?;
    end_to_end(home)
}

pub(crate) fn lint() -> Result<()> {
    title("formatting and lints");
    command::run(cargo().args(["fmt", "--all", "--check"])).context("run `cargo fmt` to format the code")?;
    command::run(cargo().args([
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ]))
}

/// Everything that needs no cluster.
pub(crate) fn unit() -> Result<()> {
    title("unit and golden tests");
    // A golden file that is missing or different fails; it is never written behind the developer's back.
    command::run(cargo().args(["test", "--quiet", "--workspace"]).env("INSTA_UPDATE", "no"))
}

fn end_to_end(home: &Home) -> Result<()> {
    title("end-to-end tests on a real cluster");
    let stage = Stage::enter(home)?;
    deploy::install(&stage)?;
    let mut tests = stage.command(env!("CARGO"));
    tests.current_dir(repository()).args([
        "test",
        "--package",
        "lockstep-testing",
        "--features",
        "e2e",
        "--tests",
        "--no-fail-fast",
    ]);
    // A failure says what it found in the cluster; a stack of the async runtime would only bury that.
    tests.env("RUST_BACKTRACE", "0");
    // What tests counted is worth reading, also when they pass.
    let outcome = command::run(tests.args(["--", PARALLEL_SCENARIOS, "--show-output"]));
    let left = stage.leave(home);
    outcome.and(left)
}

fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(repository());
    cargo
}

fn title(text: &str) {
    note(&format!("\n== {text}"));
}
