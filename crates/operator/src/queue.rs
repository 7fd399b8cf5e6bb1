//! Work that waits for its time: each piece at most once, and never while it is being done.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// How long a piece of work may be put off by later reasons for it, as a multiple of its delay.
const PATIENCE: u32 = 5;

#[derive(Debug)]
pub struct Queue<W> {
    due: BTreeSet<(Instant, W)>,
    waiting: BTreeMap<W, Waiting>,
    running: BTreeSet<W>,
    /// What became due while it was running.
    again: BTreeMap<W, Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    due: Instant,
    since: Instant,
}

impl<W> Default for Queue<W> {
    fn default() -> Self {
        Self { due: BTreeSet::new(), waiting: BTreeMap::new(), running: BTreeSet::new(), again: BTreeMap::new() }
    }
}

impl<W: Clone + Ord> Queue<W> {
    /// As soon as possible, but no sooner than `now + delay`. What waits already keeps the earlier time.
    pub fn push(&mut self, work: W, now: Instant, delay: Duration) {
        let wanted = now + delay;
        let due = self.waiting.get(&work).map_or(wanted, |waiting| waiting.due.min(wanted));
        self.schedule(work, now, due);
    }

    /// Once nothing asked for it any more for `delay`, so that several reasons make one piece of work; but not for ever.
    pub fn settle(&mut self, work: W, now: Instant, delay: Duration) {
        let since = self.waiting.get(&work).map_or(now, |waiting| waiting.since);
        self.schedule(work, now, (now + delay).min(since + delay * PATIENCE));
    }

    fn schedule(&mut self, work: W, now: Instant, due: Instant) {
        if self.running.contains(&work) {
            let again = self.again.entry(work).or_insert(due);
            *again = due.min(*again);
            return;
        }
        // Most reasons for a piece of work come while it waits for this very time.
        if self.waiting.get(&work).is_some_and(|waiting| waiting.due == due) {
            return;
        }
        let since = match self.waiting.remove(&work) {
            Some(old) => {
                self.due.remove(&(old.due, work.clone()));
                old.since
            }
            None => now,
        };
        self.due.insert((due, work.clone()));
        self.waiting.insert(work, Waiting { due, since });
    }

    /// The next piece of work whose time has come; it runs until `done`.
    pub fn pop(&mut self, now: Instant) -> Option<W> {
        let (due, _) = self.due.first()?;
        if *due > now {
            return None;
        }
        let (_, work) = self.due.pop_first()?;
        self.waiting.remove(&work);
        self.running.insert(work.clone());
        Some(work)
    }

    pub fn is_waiting(&self, work: &W) -> bool {
        self.waiting.contains_key(work)
    }

    /// What is being done right now.
    pub fn running(&self) -> impl Iterator<Item = &W> {
        self.running.iter()
    }

    pub fn done(&mut self, work: &W, now: Instant) {
        self.running.remove(work);
        if let Some(due) = self.again.remove(work) {
            self.schedule(work.clone(), now, due.max(now));
        }
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    pub fn len(&self) -> usize {
        self.waiting.len() + self.running.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn work_is_done_once_and_in_its_time() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.push("a", now, SECOND);
        queue.push("a", now, SECOND * 3);
        assert_eq!(queue.pop(now), None);
        assert_eq!(queue.next_due(), Some(now + SECOND));
        assert_eq!(queue.pop(now + SECOND), Some("a"));
        assert_eq!(queue.pop(now + SECOND * 5), None);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_comes_up_while_it_runs_is_done_again_afterwards() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.push("a", now, Duration::ZERO);
        assert_eq!(queue.pop(now), Some("a"));
        queue.push("a", now, Duration::ZERO);
        assert_eq!(queue.pop(now), None);
        queue.done(&"a", now);
        assert_eq!(queue.pop(now), Some("a"));
        queue.done(&"a", now);
        assert_eq!(queue.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn settling_waits_for_the_last_reason_but_not_for_ever() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        for tenth in 0..100 {
            queue.settle("a", start + SECOND * tenth / 10, SECOND);
        }
        assert_eq!(queue.next_due(), Some(start + SECOND * PATIENCE));
        queue.settle("b", start, SECOND);
        queue.settle("b", start + SECOND / 2, SECOND);
        assert!(queue.due.contains(&(start + SECOND * 3 / 2, "b")));
    }
}
