//! One line that always moves, on standard error.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often the line is drawn anew on a terminal, and printed elsewhere.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(150);
const PLAIN_INTERVAL: Duration = Duration::from_secs(20);
const BAR_WIDTH: usize = 24;

/// The line of a run that has an end by number or by time.
pub struct Line {
    started: Instant,
    drawn: Option<Instant>,
    is_terminal: bool,
}

impl Line {
    pub fn start() -> Self {
        Self { started: Instant::now(), drawn: None, is_terminal: io::stderr().is_terminal() }
    }

    /// Draws it if it is time: how much is done, of all as one.
    pub fn show(&mut self, fraction: f64, status: &str) {
        let interval = if self.is_terminal { TERMINAL_INTERVAL } else { PLAIN_INTERVAL };
        if self.drawn.unwrap_or(self.started).elapsed() < interval {
            return;
        }
        self.drawn = Some(Instant::now());
        let mut stderr = io::stderr().lock();
        // A terminal that went away must not fail the work itself.
        let _ = if self.is_terminal {
            write!(stderr, "\r\x1b[2K  {} {status}", bar(fraction)).and_then(|()| stderr.flush())
        } else {
            writeln!(stderr, "  … {:.0} %, {status}", fraction * 100.0)
        };
    }

    /// Takes it away.
    pub fn clear(&self) {
        if self.is_terminal {
            let _ = write!(io::stderr(), "\r\x1b[2K");
        }
    }
}

fn bar(fraction: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let full = (fraction.clamp(0.0, 1.0) * BAR_WIDTH as f64) as usize;
    format!("{}{} {:>3.0} %", "━".repeat(full), "┄".repeat(BAR_WIDTH - full), fraction * 100.0)
}
