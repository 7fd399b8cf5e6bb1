//! `make manifests`: what the chart renders, for those who install without Helm.

use std::env;
use std::process::Command;

use anyhow::Result;

use crate::command;
use crate::home::{Home, repository};
use crate::tools::Tools;

/// The test that compares the files with the chart also writes them.
pub(crate) fn run(home: &Home) -> Result<()> {
    let tools = Tools::ensure(home)?.search_path();
    let path = env::var("PATH").unwrap_or_default();
    let mut test = Command::new(env!("CARGO"));
    test.current_dir(repository()).env("PATH", format!("{tools}:{path}")).env("LOCKSTEP_UPDATE", "1");
    test.args(["test", "--quiet", "--package", "lockstep-testing", "--features", "e2e", "--test", "chart"]);
    command::run(test.args(["--", "the_plain_manifests_are_what_the_chart_renders"]))
}
