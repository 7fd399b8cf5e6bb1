//! A failing schedule made small, by leaving out what is not needed for it to fail, and told in plain sentences.

use std::time::{Duration, Instant};

use crate::invariants::Violation;
use crate::schedule::{Schedule, Seconds};
use crate::stage::{self, Playing};

/// How long is tried.
const LIMIT: Duration = Duration::from_secs(60);

/// The smallest schedule that was found to break the same rule.
pub struct Shrunk {
    pub schedule: Schedule,
    pub violation: Violation,
    pub noticed: Duration,
    pub tries: usize,
}

/// Leaves out larger parts first, then smaller ones (ddmin), then one by one.
pub fn shrink(schedule: &Schedule, violation: &Violation, noticed: Duration, playing: &Playing) -> Shrunk {
    let mut search = Search { schedule, playing, rule: violation.rule, tries: 0, started: Instant::now() };
    let mut kept: Vec<usize> = (0..schedule.entries.len()).collect();
    let mut last = (violation.clone(), noticed);
    let mut parts = 2;
    while kept.len() > 1 && !search.is_over() {
        let size = kept.len().div_ceil(parts);
        let mut smaller = None;
        for start in (0..kept.len()).step_by(size) {
            let rest: Vec<usize> = kept
                .iter()
                .enumerate()
                .filter(|(place, _)| !(start..start + size).contains(place))
                .map(|(_, index)| *index)
                .collect();
            if let Some(violation) = search.fails(&rest) {
                smaller = Some((rest, violation));
                break;
            }
        }
        match smaller {
            Some((rest, violation)) => {
                (kept, last) = (rest, violation);
                parts = parts.saturating_sub(1).max(2);
            }
            None if size <= 1 => break,
            None => parts = (parts * 2).min(kept.len()),
        }
    }
    let (violation, noticed) = last;
    Shrunk { schedule: schedule.with(&kept), violation, noticed, tries: search.tries }
}

struct Search<'a> {
    schedule: &'a Schedule,
    playing: &'a Playing,
    rule: &'static str,
    tries: usize,
    started: Instant,
}

impl Search<'_> {
    fn is_over(&self) -> bool {
        self.started.elapsed() > LIMIT
    }

    fn fails(&mut self, entries: &[usize]) -> Option<(Violation, Duration)> {
        if self.is_over() {
            return None;
        }
        self.tries += 1;
        let outcome = stage::play(&self.schedule.with(entries), self.playing);
        let violation = outcome.violation.filter(|violation| violation.rule == self.rule);
        violation.map(|violation| (violation, outcome.noticed))
    }
}

impl Shrunk {
    /// The story, the rule, and how to see it again.
    pub fn tell(&self) -> String {
        let schedule = &self.schedule;
        let mut text = format!("Seed {}: {}\n", schedule.seed, self.violation.rule);
        text += &format!("  the rule: {}\n", self.violation.sentence());
        text += &format!("  what was: {}\n", self.violation.what);
        text += &format!("  the story ({} entries, after {} tries):\n", schedule.entries.len(), self.tries);
        for entry in &schedule.entries {
            text += &format!("    {}: {}\n", Seconds(entry.at), entry.tell(&schedule.scene));
        }
        text += &format!("    {}: it is noticed\n", Seconds(self.noticed));
        text += &format!("  again: make simulate SEED={}\n", schedule.seed);
        text
    }
}
