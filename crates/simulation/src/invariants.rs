//! What must always hold: looked at after each change of the store, and again when all is quiet.
//!
//! A rule is a small function with a name and a sentence. It sees all that was before a change, and the change; people may break things
//! on purpose, so a rule asks who wrote.

mod at_the_end;
mod during_releases;
mod of_pods;
mod of_versions;
mod of_writes;
mod reading;
mod seen;

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::Shared;
use crate::kinds::Kind;
use crate::store::{Change, Writer};

pub use reading::difference;
pub use seen::Seen;

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The name of the rule that it breaks.
    pub rule: &'static str,
    pub what: String,
    pub at: Timestamp,
}

impl Violation {
    pub fn new(rule: &'static str, what: impl Into<String>, at: Timestamp) -> Self {
        Self { rule, what: what.into(), at }
    }

    /// What the rule says.
    pub fn sentence(&self) -> &'static str {
        let changes = AT_EACH_CHANGE.iter().map(|rule| (rule.name, rule.says));
        let ends = AT_THE_END.iter().map(|rule| (rule.name, rule.says));
        changes.chain(ends).chain(OTHERS).find(|(name, _)| *name == self.rule).map_or("", |(_, says)| says)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}

/// A rule about a change; it sees what was before it.
pub struct ChangeRule {
    pub name: &'static str,
    pub says: &'static str,
    check: fn(&Seen, &Change) -> Option<String>,
}

/// A rule about how things are when all is quiet.
pub struct EndRule {
    pub name: &'static str,
    pub says: &'static str,
    check: fn(&Seen) -> Option<String>,
}

pub const AT_EACH_CHANGE: &[ChangeRule] = &[
    of_versions::NEVER_CHANGE,
    of_versions::ONE_CONTENT_PER_NAME,
    of_versions::RIGHT_AUTHOR,
    of_versions::IN_USE,
    of_versions::TABLE,
    of_pods::TEMPLATE,
    of_writes::OPTED_IN,
    of_writes::RECORDED,
    of_writes::HELD,
    of_writes::LEADER,
    during_releases::FINAL,
    during_releases::CONDITIONS,
    during_releases::EVENTS,
    during_releases::SUCCESS,
    during_releases::BACK,
];

pub const AT_THE_END: &[EndRule] = &[
    at_the_end::EVERY_RELEASE_ENDS,
    at_the_end::NO_CHANGE_IS_LOST,
    at_the_end::GATES,
    at_the_end::CONSUMERS,
    at_the_end::STATUS,
    at_the_end::TABLE,
    at_the_end::DRAFTS,
    at_the_end::PODS,
];

/// Rules that are checked elsewhere.
const OTHERS: [(&str, &str); 6] = [
    ("no_write_is_in_vain", "operators do not write again and again what is there already"),
    ("requests_are_bounded", "an operator does not ask the API server again and again without a pause"),
    ("the_scene_is_set", "the simulated API server takes the objects of the scene"),
    ("nobody_panics", "no process panics"),
    ("pods_run_their_pins", "a container reads exactly the versions that its pod's pins say"),
    (
        "a_new_operator_finds_nothing_to_do",
        "what an operator knows is in the objects: when all is quiet, a new one writes nothing",
    ),
];

/// Follows a schedule.
pub struct Checker {
    seen: Seen,
    /// Up to where the history was looked at.
    cursor: u64,
    /// From which revision on no operator may write.
    silent_after: Option<u64>,
    /// Rules that are left out.
    without: Vec<String>,
}

impl Checker {
    pub fn new(without: &[String]) -> Self {
        Self { seen: Seen::default(), cursor: 0, silent_after: None, without: without.to_vec() }
    }

    /// Looks at what happened since the last time.
    pub fn check(&mut self, shared: &Shared) -> Result<(), Violation> {
        let world = shared.lock();
        for change in world.store.changes_after(self.cursor) {
            self.cursor = change.revision;
            self.check_silence(change)?;
            for rule in AT_EACH_CHANGE {
                if let Some(what) = (rule.check)(&self.seen, change).filter(|_| !self.is_left_out(rule.name)) {
                    return Err(Violation::new(rule.name, what, change.at));
                }
            }
            self.seen.note(change);
        }
        match of_pods::ran(&mut self.seen, &world) {
            Some(what) if !self.is_left_out("pods_run_their_pins") => {
                Err(Violation::new("pods_run_their_pins", what, self.seen.now))
            }
            _ => Ok(()),
        }
    }

    pub fn check_end(&self, now: Timestamp) -> Result<(), Violation> {
        for rule in AT_THE_END {
            if let Some(what) = (rule.check)(&self.seen).filter(|_| !self.is_left_out(rule.name)) {
                return Err(Violation::new(rule.name, what, now));
            }
        }
        Ok(())
    }

    /// Whether operators and people wrote nothing for so long, and nothing is under way that goes on by itself.
    pub fn is_quiet(&self, now: Timestamp, since: Duration) -> bool {
        let since = SignedDuration::try_from(since).unwrap_or(SignedDuration::MAX);
        now.duration_since(self.seen.last_work) >= since && at_the_end::waits_only_for_people(&self.seen)
    }

    /// From now on no operator may write anything but its lease.
    pub fn expect_silence(&mut self) {
        self.silent_after = Some(self.cursor);
    }

    fn check_silence(&self, change: &Change) -> Result<(), Violation> {
        let is_late = self.silent_after.is_some_and(|after| change.revision > after);
        // Weaker than "nothing at all": when an ended release has become old, only the next event lets it go.
        let is_old_release = change.key.kind == Kind::Release && change.after.is_none();
        if self.is_left_out("a_new_operator_finds_nothing_to_do") {
            return Ok(());
        }
        if is_late && seen::is_work(change) && !is_old_release && matches!(change.by, Writer::Operator(_)) {
            let what = format!("it writes {}: {}", change.key, reading::difference(change));
            return Err(Violation::new("a_new_operator_finds_nothing_to_do", what, change.at));
        }
        Ok(())
    }

    fn is_left_out(&self, rule: &str) -> bool {
        self.without.iter().any(|without| without == rule)
    }
}
