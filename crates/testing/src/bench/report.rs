//! Tells what was measured as soon as it is known: a later failure loses nothing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result};
use jiff::Timestamp;

use crate::parts::Part;
use crate::results::{Results, Rows};

/// Names the file that gets the results as JSON.
const FILE_VARIABLE: &str = "LOCKSTEP_BENCH_JSON";

pub(crate) struct Report {
    results: Results,
    file: Option<PathBuf>,
    /// Whether the file has everything. It is written as a whole, so only the last time counts.
    is_saved: bool,
}

impl Report {
    pub(crate) fn begin() -> Result<Self> {
        let file = env::var_os(FILE_VARIABLE).map(PathBuf::from);
        let report = Self { results: Results::since(Timestamp::now()), file, is_saved: true };
        // That a file cannot be written is to be known before everything is measured.
        report.save()?;
        Ok(report)
    }

    pub(crate) fn add(&mut self, part: Part, rows: Rows, outcome: Result<()>) {
        print!("\n{}: {}\n{}", part.name(), part.about(), rows.table());
        self.results.add(rows);
        if let Err(error) = outcome {
            eprintln!("{} failed: {error:#}", part.name());
            self.results.add_failure(part.name(), format!("{error:#}"));
        }
        self.is_saved = self.save().inspect_err(|error| eprintln!("{error:#}")).is_ok();
    }

    /// What failed, by name.
    pub(crate) fn failed(&self) -> Vec<&'static str> {
        let mut failed = self.results.failed_parts();
        failed.extend((!self.is_saved).then_some(FILE_VARIABLE));
        failed
    }

    fn save(&self) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        replace(file, &self.results.json()?)
            .with_context(|| format!("cannot write {}, which {FILE_VARIABLE} names", file.display()))
    }
}

/// Whoever reads the file meanwhile, and whatever fails, the old content is there until the new one is whole.
fn replace(file: &Path, content: &str) -> Result<()> {
    let mut unfinished = OsString::from(file);
    unfinished.push(".unfinished");
    fs::write(&unfinished, content)?;
    Ok(fs::rename(&unfinished, file)?)
}
