//! Cargo, with its progress told in our own line.
//!
//! Every build names the whole workspace, and chooses targets from it: what else is chosen decides the features of shared
//! dependencies, and with other features they would be compiled again.

use std::io::{self, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command;
use crate::home::repository;
use crate::progress::Part;

/// The profile of everything that runs on this machine, of what is published, or of the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Local,
    Published,
    Simulation,
}

pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(repository());
    cargo
}

/// Builds programs of this workspace; they need nothing of the machine that they run on.
pub(crate) fn programs(names: &[&str], profile: Profile, part: &Part) -> Result<Vec<PathBuf>> {
    let mut cargo = cargo();
    cargo.args(["build", "--locked", "--workspace"]);
    match profile {
        Profile::Local => {}
        Profile::Published => _ = cargo.arg("--release"),
        Profile::Simulation => _ = cargo.args(["--profile", "simulation"]),
    }
    let built = executables(cargo.args(names.iter().flat_map(|name| ["--bin", name])), part)?;
    let find = |name: &&str| {
        let found = built.iter().find(|program| program.name == *name);
        found.map(|program| program.path.clone()).with_context(|| format!("cargo built no program {name}"))
    };
    names.iter().map(find).collect()
}

/// A program that cargo built, or found built.
#[derive(Debug)]
pub(crate) struct Executable {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// Runs a build and returns what can be run.
pub(crate) fn executables(build: &mut Command, part: &Part) -> Result<Vec<Executable>> {
    let messages = run(build.arg("--message-format=json-render-diagnostics"), part)?;
    Ok(messages.lines().filter_map(|line| executable(&serde_json::from_str(line).ok()?)).collect())
}

fn executable(message: &Value) -> Option<Executable> {
    let path = message["executable"].as_str()?.into();
    Some(Executable { name: message["target"]["name"].as_str()?.to_owned(), path })
}

/// Runs cargo to its end. What it says of problems is shown, its progress becomes ours.
pub(crate) fn run(cargo: &mut Command, part: &Part) -> Result<String> {
    // Where nobody looks, cargo shows no progress unless told to.
    cargo.env("CARGO_TERM_PROGRESS_WHEN", "always").env("CARGO_TERM_PROGRESS_WIDTH", "100");
    let shown = command::show(cargo);
    let mut child =
        cargo.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("cannot run cargo")?;
    let stderr = child.stderr.take().context("cargo has no standard error")?;
    let stdout = child.stdout.take().context("cargo has no standard output")?;
    let printed = thread::spawn(move || io::read_to_string(stdout));
    let said = listen(stderr, part, || child.kill())?;
    let printed = printed.join().unwrap_or_else(|_| Ok(String::new()))?;
    if !child.wait()?.success() {
        bail!("{shown} failed:\n{}", said.join("\n"));
    }
    part.done();
    Ok(printed)
}

/// Reads what cargo says: progress, which ends with a carriage return, and lines. Returns those that are no routine.
fn listen(stderr: impl Read, part: &Part, mut stop: impl FnMut() -> io::Result<()>) -> Result<Vec<String>> {
    let (mut said, mut text) = (Vec::new(), Vec::new());
    for byte in BufReader::new(stderr).bytes() {
        let byte = byte?;
        if byte != b'\r' && byte != b'\n' {
            text.push(byte);
            continue;
        }
        let line = String::from_utf8_lossy(&text).into_owned();
        text.clear();
        if part.is_cancelled() {
            stop()?;
        }
        if let Some((done, total)) = counted(&line) {
            part.report("Lockstep", done, total, "crates");
        } else if !is_routine(&line) {
            said.push(line);
        }
    }
    Ok(said)
}

/// `    Building [====>    ] 123/387: syn, tokio`
fn counted(line: &str) -> Option<(usize, usize)> {
    let (_, rest) = line.split_once("] ")?;
    let (done, rest) = rest.split_once('/')?;
    let total = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((done.trim().parse().ok()?, total.parse().ok()?))
}

fn is_routine(line: &str) -> bool {
    let word = line.split_whitespace().next().unwrap_or_default();
    let words = ["Compiling", "Checking", "Finished", "Downloading", "Downloaded", "Updating", "Locking", "Fresh"];
    // With an escape sequence cargo clears the line of its progress.
    word.is_empty() || word.starts_with('\x1b') || words.contains(&word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Step;

    #[test]
    fn progress_is_told_apart_from_problems() {
        let output =
            b"   Compiling a v1\n    Building [=>   ] 12/340: syn, tokio\rerror: no such crate\n    Finished x\n";
        let step = Step::start("a test");
        assert_eq!(listen(&output[..], &step.part(), || Ok(())).unwrap(), ["error: no such crate"]);
        assert_eq!(counted("    Building [=>   ] 12/340: syn, tokio"), Some((12, 340)));
        assert_eq!(counted("error[E0425]: cannot find value `x`"), None);
    }
}
