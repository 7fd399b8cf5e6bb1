//! Runs tests side by side, each in a process of its own, and shows each when it has ended.

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::progress::{note, shown};
use crate::usual_times;

/// No test takes so long: one that does is ended and has failed.
const LIMIT: Duration = Duration::from_secs(900);
const POLL: Duration = Duration::from_millis(50);
/// How often is said what still runs, where nothing ends.
const REMINDER: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) file: String,
    pub(super) name: String,
    pub(super) program: PathBuf,
    pub(super) is_alone: bool,
}

impl Test {
    fn title(&self) -> String {
        format!("{}: {}", self.file, self.name)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) file: String,
    pub(super) name: String,
    pub(super) took: Duration,
    pub(super) has_passed: bool,
}

/// Runs all tests, at most so many at once. `environment` makes the command `env` with what tests need around them.
pub(super) fn run(tests: &[&Test], side_by_side: usize, environment: impl Fn() -> Command + Sync) -> Vec<Outcome> {
    let waiting = Mutex::new(longest_last(tests));
    let (running, results) = (Mutex::new(Vec::<String>::new()), Mutex::new(Vec::new()));
    let started = Instant::now();
    thread::scope(|scope| {
        let work = || {
            let next = || lock(&waiting).pop();
            while let Some(test) = next() {
                lock(&running).push(test.title());
                let outcome = run_one(test, environment());
                lock(&running).retain(|title| *title != test.title());
                lock(&results).push(outcome);
            }
        };
        let workers: Vec<_> = (0..side_by_side.min(tests.len())).map(|_| scope.spawn(work)).collect();
        let mut told = (Instant::now(), 0);
        while workers.iter().any(|worker| !worker.is_finished()) {
            thread::sleep(POLL);
            let done = lock(&results).len();
            if done != told.1 {
                told = (Instant::now(), done);
            } else if told.0.elapsed() >= REMINDER {
                told = (Instant::now(), done);
                let names = lock(&running).join("; ");
                note(&format!(
                    "  … {done} of {} done after {}, running: {names}",
                    tests.len(),
                    shown(started.elapsed())
                ));
            }
        }
    });
    results.into_inner().unwrap_or_default()
}

/// Taken from the end: what took longest the last time comes first, so that nobody waits for it alone at the end.
fn longest_last<'a>(tests: &[&'a Test]) -> Vec<&'a Test> {
    let mut tests: Vec<_> = tests.iter().rev().map(|test| (usual_times::of(&test.title()), *test)).collect();
    tests.sort_by_key(|(usual, _)| *usual);
    tests.into_iter().map(|(_, test)| test).collect()
}

fn run_one(test: &Test, mut command: Command) -> Outcome {
    let started = Instant::now();
    command.arg(&test.program).args(["--exact", &format!("{}::{}", test.file, test.name), "--nocapture"]);
    // A failure says what it found in the cluster; a stack of the async runtime would only bury that.
    command.env("RUST_BACKTRACE", "0");
    let (has_passed, printed) = match to_its_end(&mut command) {
        Ok(ended) => ended,
        Err(error) => (false, format!("it cannot be run: {error}")),
    };
    let took = started.elapsed();
    if has_passed {
        usual_times::remember(&test.title(), took);
    }
    note(&format!("{}{}", headline(test, took, has_passed), said(&printed, has_passed)));
    Outcome { file: test.file.clone(), name: test.name.clone(), took, has_passed }
}

fn headline(test: &Test, took: Duration, has_passed: bool) -> String {
    let mark = if has_passed { "✓" } else { "✗ FAILED" };
    format!("  {mark} {} ({})", test.title(), shown(took))
}

/// Runs a program to its end, or for as long as it may take. Returns whether it succeeded, and what it printed.
fn to_its_end(command: &mut Command) -> io::Result<(bool, String)> {
    let (mut reader, writer) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn()?;
    // The command holds the other end of the pipe: without it, the pipe ends with the program.
    *command = Command::new("true");
    let printed = thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = reader.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill()?;
        }
        thread::sleep(POLL);
    };
    Ok((status.success(), printed.join().unwrap_or_default()))
}

/// What a test printed: all of it if it failed, and what it counted if not.
fn said(printed: &str, has_passed: bool) -> String {
    let is_frame = |line: &str| {
        line.is_empty()
            || line.starts_with("running 1 test")
            || line.starts_with("test ")
            || line.starts_with("failures:")
    };
    let lines = printed.lines().filter(|line| !has_passed || !is_frame(line));
    lines.map(|line| format!("\n      {line}")).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_judged_by_its_end_and_heard_in_full() {
        let mut shell = Command::new("sh");
        assert_eq!(to_its_end(shell.args(["-c", "echo out; echo err >&2"])).unwrap(), (true, "out\nerr\n".into()));
        let mut shell = Command::new("sh");
        assert_eq!(to_its_end(shell.args(["-c", "echo no; exit 3"])).unwrap(), (false, "no\n".into()));
    }

    #[test]
    fn what_a_passing_test_counted_is_shown_without_the_frame() {
        let printed = "\nrunning 1 test\n12 of 12 joined\ntest x ... ok\n\ntest result: ok. 1 passed\n";
        assert_eq!(said(printed, true), "\n      12 of 12 joined");
        assert!(said(printed, false).contains("test result"));
    }
}
