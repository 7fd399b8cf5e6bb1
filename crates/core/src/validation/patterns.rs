//! Patterns that match in time linear in the text.
//!
//! An automaton matches fast, but that of a hostile pattern is too large to build. Engines fall back to one that takes minutes for
//! 1 MiB of text. Here nothing falls back: a match is given up, or the pattern is refused.

use std::sync::Mutex;

use regex_automata::Input;
use regex_automata::dfa::dense;
use regex_automata::dfa::regex::Regex as Automaton;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;

use super::shown;

/// The size of a pattern before its automaton is built: the cost of each state of that.
const MAX_BYTES: usize = 128 << 10;
/// What is kept of an automaton that is built while matching.
const KEPT_BYTES: usize = 2 << 20;
/// How often an automaton may outgrow that, before each of its states must have been good for so many bytes of text.
const FREE_REBUILDS: usize = 3;
const MIN_BYTES_PER_STATE: usize = 1_000;
/// The size of an automaton that is built completely.
const MAX_COMPLETE_BYTES: usize = 512 << 10;

/// A pattern whose automaton is built while matching. It keeps it, so that the limits are on all texts together.
pub struct Pattern {
    automaton: DFA,
    built: Mutex<Cache>,
}

impl Pattern {
    pub fn new(pattern: &str) -> Result<Self, String> {
        let limits = DFA::config()
            .cache_capacity(KEPT_BYTES)
            .minimum_cache_clear_count(Some(FREE_REBUILDS))
            .minimum_bytes_per_state(Some(MIN_BYTES_PER_STATE))
            // `\b` works with ASCII text, and is given up otherwise.
            .unicode_word_boundary(true);
        let automaton = DFA::builder().configure(limits).thompson(size()).build(pattern);
        let automaton = automaton.map_err(|_| refused(pattern))?;
        Ok(Self { built: Mutex::new(automaton.create_cache()), automaton })
    }

    /// None if it was given up.
    pub fn is_match(&self, text: &str) -> Option<bool> {
        let mut built = self.built.lock().ok()?;
        let found = self.automaton.try_search_fwd(&mut built, &Input::new(text).earliest(true));
        found.ok().map(|end| end.is_some())
    }
}

/// Whether a complete automaton is small enough to never be given up, by an engine that we do not choose. It may search from both ends.
pub fn check_complete(pattern: &str) -> Result<(), String> {
    let limits =
        dense::Config::new().dfa_size_limit(Some(MAX_COMPLETE_BYTES)).determinize_size_limit(Some(MAX_COMPLETE_BYTES));
    let built = Automaton::builder().dense(limits).thompson(size()).build(pattern);
    built.map(drop).map_err(|_| refused(pattern))
}

fn size() -> thompson::Config {
    thompson::Config::new().nfa_size_limit(Some(MAX_BYTES))
}

fn refused(pattern: &str) -> String {
    format!("the pattern {} is malformed, too large, or looks around", shown(pattern))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_patterns_work() {
        for (pattern, matching, other) in [
            (r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", "web-1", "-web"),
            (r"^.{1,255}$", "ä", ""),
            (r"[\w.-]+@[\w.-]+\.\w+", "to x@example.org.", "x@example"),
            (r"^\d{1,3}(\.\d{1,3}){3}$", "10.0.0.1", "10.0.0"),
            (r"\bTODO\b", "a TODO here", "TODOS"),
            (r"(?i)straße", "STRAßE", "strasse"),
            (r"(x+x+)+y$", "xxxy", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
            ("", "x", "\u{0}"),
        ] {
            let compiled = Pattern::new(pattern).unwrap();
            assert_eq!(compiled.is_match(matching), Some(true), "{pattern}");
            assert_eq!(compiled.is_match(other), Some(pattern.is_empty()), "{pattern}");
        }
    }

    #[test]
    fn a_pattern_that_is_too_large_is_refused() {
        for pattern in ["(", "(?=a)b", r"(a)\1", "(x{1,300}){1,20}y", "((a{100}){100}){100}"] {
            assert!(Pattern::new(pattern).is_err() && check_complete(pattern).is_err(), "{pattern}");
        }
        assert_eq!(check_complete("^[a-z-]{1,63}$"), Ok(()));
        for pattern in ["(x{1,100}){1,15}y", "[ab]*a[ab]{30}"] {
            assert!(Pattern::new(pattern).is_ok() && check_complete(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn a_match_that_would_take_too_long_is_given_up() {
        let mut random = 88_172_645_463_325_252_u64;
        let mut letter = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            if random.is_multiple_of(2) { 'a' } else { 'b' }
        };
        let text: String = (0..200_000).map(|_| letter()).collect();
        assert_eq!(Pattern::new("a[ab]{100}y").unwrap().is_match(&text), None);
    }
}
