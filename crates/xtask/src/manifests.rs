//! `make manifests`: what the chart renders, for those who install without Helm.

use std::env;

use anyhow::Result;

use crate::build;
use crate::cargo::cargo;
use crate::command;
use crate::home::Home;
use crate::tools::Tool;

/// The test that compares the files with the chart also writes them.
pub(crate) fn run(home: &Home) -> Result<()> {
    let (tools, _) = build::ensure(home, &[Tool::Helm], None)?;
    let path = env::var("PATH").unwrap_or_default();
    let mut test = cargo();
    test.env("PATH", format!("{}:{path}", tools.search_path())).env("LOCKSTEP_UPDATE", "1");
    test.args(["test", "--quiet", "--workspace", "--test", "end_to_end"]);
    command::run(test.args(["--", "chart::the_plain_manifests_are_what_the_chart_renders"]))
}
