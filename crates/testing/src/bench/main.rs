//! What a change costs, measured on a real cluster: requests, time, memory. Reports, and judges nothing.
//!
//! `cargo xtask bench` runs it with Lockstep installed. `bench PART…` runs some parts alone, and `bench --list` names them.

#![expect(clippy::print_stdout, reason = "what was measured is what this program prints")]

mod audit;
mod change;
mod fan_out;
mod joining;
mod memory;
mod parts;
mod report;
mod results;
mod retry;
mod rollback;
mod stage;

use std::env;
use std::process::ExitCode;

use anyhow::Result;
use parts::{Command, Part};
use report::Report;
use results::Rows;
use stage::Bench;

/// What the command line asks for does not exist.
const MISUSED: u8 = 2;

#[tokio::main]
async fn main() -> ExitCode {
    let parts = match parts::understand(env::args().skip(1)) {
        Ok(Command::Measure(parts)) => parts,
        Ok(Command::List) => {
            print!("{}", parts::list());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(MISUSED);
        }
    };
    match measure_all(&parts).await {
        Ok(failed) if failed.is_empty() => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("failed: {}", failed.join(", "));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures one part after the other, whatever becomes of each, and names what failed.
async fn measure_all(parts: &[Part]) -> Result<Vec<&'static str>> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut report = Report::begin()?;
    let bench = Bench::connect().await?;
    for part in parts {
        let mut rows = Rows::of(part.name());
        let outcome = measure(*part, &bench, &mut rows).await;
        report.add(*part, rows, outcome);
    }
    Ok(report.failed())
}

/// What a part measured until it failed stays in `rows`.
async fn measure(part: Part, bench: &Bench, rows: &mut Rows) -> Result<()> {
    match part {
        Part::Change => change::measure(bench, rows).await,
        Part::FanOut => fan_out::measure(bench, rows).await,
        Part::Rollback => rollback::measure(bench, rows).await,
        Part::Joining => joining::measure(bench, rows).await,
        Part::Memory => memory::measure(rows),
    }
}
