//! What a person sees while something long runs: one line per step on standard error, so that standard output stays
//! clean for `eval`.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often a step that is not on a terminal reports how far it is.
const PLAIN_INTERVAL: Duration = Duration::from_secs(20);

/// One step under way. Dropped without `done`, it leaves its last line standing: the error that follows explains it.
#[derive(Debug)]
pub(crate) struct Step {
    title: String,
    started: Instant,
    last_report: Instant,
    terminal: bool,
}

impl Step {
    pub(crate) fn start(title: impl Into<String>) -> Self {
        let now = Instant::now();
        let step = Self { title: title.into(), started: now, last_report: now, terminal: io::stderr().is_terminal() };
        step.rewrite("");
        step
    }

    /// Says how far the step is: at once on a terminal, now and then elsewhere.
    pub(crate) fn report(&mut self, detail: &str) {
        if self.terminal {
            self.rewrite(detail);
        } else if self.last_report.elapsed() >= PLAIN_INTERVAL {
            self.last_report = Instant::now();
            note(&format!("  … {}: {detail} ({})", self.title, seconds(self.started.elapsed())));
        }
    }

    pub(crate) fn done(self, detail: &str) {
        let clear = if self.terminal { "\r\x1b[2K" } else { "" };
        let detail = if detail.is_empty() { String::new() } else { format!(" {detail}") };
        note(&format!("{clear}  ✓ {}{detail} ({})", self.title, seconds(self.started.elapsed())));
    }

    fn rewrite(&self, detail: &str) {
        if self.terminal {
            let mut stderr = io::stderr().lock();
            // A terminal that went away must not fail the work itself.
            let _ = write!(stderr, "\r\x1b[2K  … {} {detail}", self.title).and_then(|()| stderr.flush());
        }
    }
}

/// A line on standard error.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

pub(crate) fn seconds(duration: Duration) -> String {
    let total = duration.as_secs();
    if total >= 60 {
        format!("{} min {} s", total / 60, total % 60)
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}
