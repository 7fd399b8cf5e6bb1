//! How a container behaves: as its configuration says, in the words of the test app.

use std::time::Duration;

/// What `slow` and `flap` mean without a time.
const USUAL: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Behavior {
    /// How long after its start it is ready; never, if none.
    pub(super) ready_after: Readiness,
    /// How long after its start it ends with an error.
    pub(super) crash_after: Option<Duration>,
    /// For how long it is ready, and then not, again and again.
    pub(super) flap: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Readiness {
    #[default]
    AtOnce,
    After(Duration),
    Never,
}

impl Behavior {
    /// Words add up. A word that nobody knows lets the app end at its start: so does the real one.
    pub(super) fn parse(text: &str) -> Self {
        let mut behavior = Self::default();
        for phrase in text.split(',').map(str::trim).filter(|phrase| !phrase.is_empty()) {
            let mut words = phrase.split_whitespace();
            match (words.next().unwrap_or_default(), words.next().map(duration)) {
                ("healthy", None) | ("error-rate" | "slow", Some(_)) => {}
                ("never-ready", None) => behavior.ready_after = Readiness::Never,
                ("ready-after", Some(Some(time))) => behavior.ready_after = Readiness::After(time),
                ("slow", None) => behavior.ready_after = Readiness::After(USUAL),
                ("crash-after", Some(Some(time))) => behavior.crash_after = Some(time),
                ("flap", None) => behavior.flap = Some(USUAL),
                ("flap", Some(Some(time))) => behavior.flap = Some(time),
                _ => behavior.crash_after = Some(Duration::ZERO),
            }
        }
        behavior
    }
}

fn duration(text: &str) -> Option<Duration> {
    match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => number.parse().map(Duration::from_millis).ok(),
        (None, Some(number)) => number.parse().map(Duration::from_secs).ok(),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_test_app() {
        assert_eq!(Behavior::parse("healthy\n"), Behavior::default());
        let found = Behavior::parse("ready-after 5s, crash-after 500ms, error-rate 0.2");
        assert_eq!(found.ready_after, Readiness::After(Duration::from_secs(5)));
        assert_eq!(found.crash_after, Some(Duration::from_millis(500)));
        for crash in ["crash", "helthy", "crash-after", "ready-after soon"] {
            assert_eq!(Behavior::parse(crash).crash_after, Some(Duration::ZERO), "{crash}");
        }
        assert_eq!(Behavior::parse("never-ready").ready_after, Readiness::Never);
        assert_eq!(Behavior::parse("flap 2s").flap, Some(Duration::from_secs(2)));
    }
}
