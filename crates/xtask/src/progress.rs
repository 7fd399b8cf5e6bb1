//! What a person sees while something long runs: one line that always moves, on standard error, so that standard output
//! stays clean for `eval`.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::usual_times;

/// How often the line is drawn anew on a terminal, and printed elsewhere.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(150);
const PLAIN_INTERVAL: Duration = Duration::from_secs(20);
const BAR_WIDTH: usize = 24;
const SPINNER: [char; 4] = ['◐', '◓', '◑', '◒'];
/// For terminals that do not tell their width.
const USUAL_WIDTH: usize = 80;

/// One step under way, of one part or of several side by side. Dropped without `done`, it leaves its last line standing:
/// the error that follows explains it.
#[derive(Debug)]
pub(crate) struct Step {
    title: String,
    started: Instant,
    parts: Arc<Mutex<Vec<State>>>,
    is_cancelled: Arc<AtomicBool>,
    has_ended: Arc<AtomicBool>,
    shown_by: Option<JoinHandle<()>>,
}

/// How far one part of a step is.
#[derive(Debug, Clone, Default)]
struct State {
    /// Its share of the step's usual time.
    weight: f64,
    /// From 0 to 1, if that is known.
    fraction: Option<f64>,
    detail: String,
}

/// The handle with which whoever does a part says how far it is.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    parts: Arc<Mutex<Vec<State>>>,
    is_cancelled: Arc<AtomicBool>,
    index: usize,
}

impl Step {
    pub(crate) fn start(title: impl Into<String>) -> Self {
        Self::start_parts(title, &[1.0]).0
    }

    /// A step of several parts, each with its share of the usual time.
    pub(crate) fn start_parts(title: impl Into<String>, weights: &[f64]) -> (Self, Vec<Part>) {
        let title = title.into();
        let states = weights.iter().map(|weight| State { weight: *weight, ..State::default() }).collect();
        let parts = Arc::new(Mutex::new(states));
        let has_ended = Arc::new(AtomicBool::new(false));
        let view = View {
            title: title.clone(),
            started: Instant::now(),
            usual: usual_times::of(&title),
            parts: Arc::clone(&parts),
        };
        let started = view.started;
        let shown_by = Some(thread::spawn({
            let has_ended = Arc::clone(&has_ended);
            move || view.show_until(&has_ended)
        }));
        let step = Self { title, started, parts, is_cancelled: Arc::default(), has_ended, shown_by };
        let handles = (0..weights.len()).map(|index| step.nth_part(index)).collect();
        (step, handles)
    }

    /// The handle of a step that has one part.
    pub(crate) fn part(&self) -> Part {
        self.nth_part(0)
    }

    fn nth_part(&self, index: usize) -> Part {
        Part { parts: Arc::clone(&self.parts), is_cancelled: Arc::clone(&self.is_cancelled), index }
    }

    pub(crate) fn done(self, detail: &str) {
        usual_times::remember(&self.title, self.started.elapsed());
        self.forget(detail);
    }

    /// Done, and its time says nothing about the next one.
    pub(crate) fn forget(mut self, detail: &str) {
        self.stop_showing();
        let took = self.started.elapsed();
        let detail = if detail.is_empty() { String::new() } else { format!(" {detail}") };
        note(&format!("{}  ✓ {}{detail} ({})", clear(), self.title, shown(took)));
    }

    fn stop_showing(&mut self) {
        self.has_ended.store(true, Ordering::Release);
        if let Some(thread) = self.shown_by.take() {
            thread.thread().unpark();
            // It only draws: if it broke, the work did not.
            let _ = thread.join();
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if self.shown_by.is_some() {
            self.stop_showing();
            note("");
        }
    }
}

impl Part {
    /// So many of so many, and what these are: `Kubernetes 12 of 300 packages`.
    pub(crate) fn report(&self, name: &str, done: usize, total: usize, unit: &str) {
        self.set(Some(ratio(done, total)), format!("{name} {} of {} {unit}", thousands(done), thousands(total)));
    }

    pub(crate) fn say(&self, detail: impl Into<String>) {
        self.set(None, detail.into());
    }

    /// Asks all parts of the step to end: one of them failed.
    pub(crate) fn cancel_all(&self) {
        self.is_cancelled.store(true, Ordering::Release);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    pub(crate) fn done(&self) {
        self.set(Some(1.0), String::new());
    }

    fn set(&self, fraction: Option<f64>, detail: String) {
        let mut parts = lock(&self.parts);
        if let Some(state) = parts.get_mut(self.index) {
            state.fraction = fraction.or(state.fraction);
            state.detail = detail;
        }
    }
}

/// What is drawn of a step.
struct View {
    title: String,
    started: Instant,
    usual: Option<Duration>,
    parts: Arc<Mutex<Vec<State>>>,
}

impl View {
    fn show_until(&self, has_ended: &AtomicBool) {
        let is_terminal = io::stderr().is_terminal();
        let interval = if is_terminal { TERMINAL_INTERVAL } else { PLAIN_INTERVAL };
        for turn in 0.. {
            if is_terminal {
                self.draw(turn);
            } else if turn > 0 {
                note(&format!("  … {}: {}", self.title, self.status()));
            }
            thread::park_timeout(interval);
            if has_ended.load(Ordering::Acquire) {
                return;
            }
        }
    }

    fn draw(&self, turn: usize) {
        let spinner = SPINNER[turn % SPINNER.len()];
        let line = format!("  {spinner} {} {} {}", self.title, bar(self.fraction()), self.status());
        let line: String = line.chars().take(terminal_width().saturating_sub(1)).collect();
        let mut stderr = io::stderr().lock();
        // A terminal that went away must not fail the work itself.
        let _ = write!(stderr, "\r\x1b[2K{line}").and_then(|()| stderr.flush());
    }

    /// By what the parts say; where they say nothing, by the time that this usually takes.
    fn fraction(&self) -> f64 {
        let parts = lock(&self.parts);
        let weight: f64 = parts.iter().map(|part| part.weight).sum();
        let known: f64 = parts.iter().map(|part| part.weight * part.fraction.unwrap_or(0.0)).sum();
        let says_nothing = parts.iter().all(|part| part.fraction.is_none());
        match self.usual {
            Some(usual) if says_nothing => (self.started.elapsed().as_secs_f64() / usual.as_secs_f64()).min(0.99),
            _ => known / weight.max(f64::MIN_POSITIVE),
        }
    }

    fn status(&self) -> String {
        let details: Vec<String> =
            lock(&self.parts).iter().map(|part| part.detail.clone()).filter(|detail| !detail.is_empty()).collect();
        let elapsed = self.started.elapsed();
        let to_go = self.usual.map(|usual| to_go(self.fraction(), elapsed, usual));
        let time = match to_go {
            Some(rest) if rest >= Duration::from_secs(1) => format!("{}, about {} to go", shown(elapsed), shown(rest)),
            Some(_) => format!("{}, any moment now", shown(elapsed)),
            None => shown(elapsed),
        };
        details.into_iter().chain([time]).collect::<Vec<_>>().join(", ")
    }
}

/// How long the rest takes: by the usual time at first, and more and more by the pace so far.
fn to_go(fraction: f64, elapsed: Duration, usual: Duration) -> Duration {
    let rest = 1.0 - fraction.clamp(0.0, 1.0);
    Duration::from_secs_f64(rest * (elapsed.as_secs_f64() + rest * usual.as_secs_f64()))
}

fn bar(fraction: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let full = (fraction.clamp(0.0, 1.0) * BAR_WIDTH as f64) as usize;
    format!("{}{} {:>3.0} %", "━".repeat(full), "┄".repeat(BAR_WIDTH - full), fraction * 100.0)
}

#[expect(clippy::cast_precision_loss)]
fn ratio(done: usize, total: usize) -> f64 {
    (done as f64 / total.max(1) as f64).min(1.0)
}

fn thousands(number: usize) -> String {
    if number < 1000 { number.to_string() } else { format!("{},{:03}", number / 1000, number % 1000) }
}

fn terminal_width() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    size.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(USUAL_WIDTH)
}

fn clear() -> &'static str {
    if io::stderr().is_terminal() { "\r\x1b[2K" } else { "" }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A line on standard error.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

pub(crate) fn shown(duration: Duration) -> String {
    let total = duration.as_secs();
    match total {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..60 => format!("{total} s"),
        _ => format!("{} min {} s", total / 60, total % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Duration = Duration::from_secs(100);

    #[test]
    fn the_rest_is_estimated_by_the_usual_time_first_and_by_the_pace_later() {
        assert_eq!(to_go(0.0, Duration::ZERO, USUAL), USUAL);
        assert_eq!(to_go(0.5, Duration::from_secs(50), USUAL), Duration::from_secs(50), "as usual");
        let slow = to_go(0.5, Duration::from_secs(150), USUAL);
        assert!(slow > Duration::from_secs(90), "three times slower so far: {slow:?}");
        assert_eq!(to_go(1.0, Duration::from_secs(150), USUAL), Duration::ZERO);
    }

    #[test]
    fn parts_count_by_their_weight() {
        let view = |fractions: [Option<f64>; 2]| View {
            title: String::new(),
            started: Instant::now(),
            usual: None,
            parts: Arc::new(Mutex::new(vec![
                State { weight: 3.0, fraction: fractions[0], detail: String::new() },
                State { weight: 1.0, fraction: fractions[1], detail: String::new() },
            ])),
        };
        assert!((view([Some(1.0), None]).fraction() - 0.75).abs() < 0.001);
        assert!((view([Some(0.5), Some(1.0)]).fraction() - 0.625).abs() < 0.001);
    }

    #[test]
    fn a_part_says_how_far_it_is() {
        let (step, parts) = Step::start_parts("a test", &[1.0, 1.0]);
        parts[1].report("Kubernetes", 1234, 2840, "packages");
        assert_eq!(lock(&step.parts)[1].detail, "Kubernetes 1,234 of 2,840 packages");
        step.part().say("downloading");
        assert_eq!(lock(&step.parts)[0].detail, "downloading");
    }

    #[test]
    fn a_bar_is_never_longer_than_itself() {
        assert_eq!(bar(2.0).chars().filter(|c| *c == '━').count(), BAR_WIDTH);
        assert_eq!(bar(0.0).chars().filter(|c| *c == '┄').count(), BAR_WIDTH);
    }
}
