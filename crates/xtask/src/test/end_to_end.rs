//! End-to-end tests: which files there are, what each needs of the cluster, and in which order they run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::hog::Hog;
use super::pool::{self, Test};
use super::{Choice, report, title};
use crate::cargo::{self, Profile, cargo};
use crate::command;
use crate::deploy::{self, Installer};
use crate::home::Home;
use crate::progress::{Step, note};
use crate::stage::Stage;
use crate::tools::Tool;

/// End-to-end tests wait far more than they compute; but with more of them two cores are so busy that a kubectl takes seconds to start.
const SIDE_BY_SIDE: usize = 5;

/// A file of end-to-end tests, as `crates/testing/Cargo.toml` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct File {
    name: String,
    /// Tools that its tests use, beside kubectl.
    needs: Vec<Tool>,
    /// Whether its tests change the installation that all others use: they run after the others, one at a time.
    is_alone: bool,
}

pub(super) fn run(home: &Home, choice: &Choice) -> Result<()> {
    title("end-to-end tests on a real cluster");
    let files = chosen(all_files()?, choice)?;
    let needed: Vec<Tool> =
        Tool::ALL.into_iter().filter(|tool| files.iter().any(|file| file.needs.contains(tool))).collect();
    let tests = build(&files, choice)?;
    ensure!(!tests.is_empty(), "no end-to-end test has such a name: `--filter` takes a part of one");
    let stage = Stage::enter(home, &needed, Profile::Local)?;
    let installer = if needed.contains(&Tool::Helm) { Installer::Helm } else { Installer::Manifests };
    deploy::install(&stage, installer)?;
    let command_line = command_line()?;
    let environment = || {
        let mut env = stage.command("env");
        env.env("LOCKSTEP_COMMAND", &command_line);
        env
    };
    let hog = Hog::start(choice.busy);
    let outcome = repeat(&tests, choice.repeat, environment);
    drop(hog);
    outcome.and(stage.leave(home))
}

/// The command `lockstep`, which the images were made of just now.
fn command_line() -> Result<PathBuf> {
    let step = Step::start("find the command");
    let built = cargo::programs(&["lockstep"], Profile::Local, &step.part())?;
    step.forget("");
    built.into_iter().next().context("the command was not built")
}

fn repeat(tests: &[Test], times: u32, environment: impl Fn() -> Command + Sync) -> Result<()> {
    let mut results = Vec::new();
    for turn in 1..=times {
        if times > 1 {
            note(&format!("\n-- turn {turn} of {times}"));
        }
        let (alone, together): (Vec<&Test>, Vec<&Test>) = tests.iter().partition(|test| test.is_alone);
        results.extend(pool::run(&together, SIDE_BY_SIDE, &environment));
        results.extend(pool::run(&alone, 1, &environment));
    }
    note(&report::tables(&results));
    let failed: Vec<&str> =
        results.iter().filter(|result| !result.has_passed).map(|result| result.name.as_str()).collect();
    note(&format!("{} passed, {} failed", results.len() - failed.len(), failed.len()));
    ensure!(failed.is_empty(), "these end-to-end tests failed: {}", failed.join(", "));
    Ok(())
}

/// Compiles the tests and asks for their names: `releases::a_bad_version_goes_back`.
fn build(files: &[File], choice: &Choice) -> Result<Vec<Test>> {
    let step = Step::start("build the end-to-end tests");
    let mut compile = cargo();
    compile.args(["test", "--locked", "--workspace", "--no-run", "--test", "end_to_end"]);
    let built = cargo::executables(&mut compile, &step.part())?;
    let program =
        built.iter().find(|program| program.name == "end_to_end").context("cargo built no end-to-end tests")?;
    let listed = command::output(Command::new(&program.path).args(["--list", "--format", "terse"]))?;
    let test = |line: &str| {
        let full_name = line.strip_suffix(": test")?;
        let (file, name) = full_name.split_once("::")?;
        let file = files.iter().find(|known| known.name == file)?;
        let is_wanted = choice.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()));
        is_wanted.then(|| Test {
            file: file.name.clone(),
            name: name.to_owned(),
            program: program.path.clone(),
            is_alone: file.is_alone,
        })
    };
    let tests: Vec<Test> = listed.lines().filter_map(test).collect();
    step.done(&format!("({} tests)", tests.len()));
    Ok(tests)
}

const PACKAGE: &str = "lockstep-testing";

fn all_files() -> Result<Vec<File>> {
    let metadata = command::output(cargo().args(["metadata", "--no-deps", "--format-version=1"]))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let package = packages.into_iter().find(|package| package["name"] == PACKAGE);
    let described = package.map(|package| package["metadata"]["end-to-end"].clone()).unwrap_or_default();
    let described: BTreeMap<String, Value> =
        serde_json::from_value(described).context("crates/testing/Cargo.toml describes no end-to-end tests")?;
    described.iter().map(|(name, about)| file(name, about)).collect()
}

fn file(name: &str, about: &Value) -> Result<File> {
    let needs = about["needs"].as_array().into_iter().flatten().filter_map(Value::as_str).map(Tool::by_name);
    Ok(File { name: name.to_owned(), needs: needs.collect::<Result<_>>()?, is_alone: about["alone"] == true })
}

fn chosen(files: Vec<File>, choice: &Choice) -> Result<Vec<File>> {
    let names = files.iter().map(|file| file.name.clone()).collect::<Vec<_>>().join(", ");
    if let Some(unknown) = choice.file.iter().find(|name| !files.iter().any(|file| file.name == **name)) {
        bail!("there is no file {unknown} of end-to-end tests: there are {names}");
    }
    Ok(files.into_iter().filter(|file| choice.file.is_empty() || choice.file.contains(&file.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(file: &str) -> Choice {
        Choice { file: vec![file.to_owned()], filter: None, repeat: 1, busy: 0 }
    }

    #[test]
    fn every_file_of_end_to_end_tests_is_described() {
        let folder = crate::home::repository().join("crates/testing/tests/end_to_end");
        let on_disk = std::fs::read_dir(folder).unwrap().filter_map(|entry| {
            let path = entry.unwrap().path();
            let is_test = path.extension().is_some_and(|kind| kind == "rs") || path.join("mod.rs").exists();
            is_test.then(|| path.file_stem().unwrap().to_string_lossy().into_owned())
        });
        let described: Vec<String> = all_files().unwrap().into_iter().map(|file| file.name).collect();
        let mut forgotten: Vec<String> = on_disk.filter(|name| !described.contains(name)).collect();
        forgotten.retain(|name| name != "main");
        assert!(forgotten.is_empty(), "Cargo.toml of crates/testing does not describe {forgotten:?}");
    }

    #[test]
    fn an_unknown_file_is_refused_with_the_known_ones() {
        let files = vec![File { name: "releases".into(), needs: vec![], is_alone: false }];
        let error = chosen(files.clone(), &choice("release")).unwrap_err().to_string();
        assert!(error.contains("release ") && error.contains("releases"), "{error}");
        assert_eq!(chosen(files.clone(), &choice("releases")).unwrap(), files);
    }
}
