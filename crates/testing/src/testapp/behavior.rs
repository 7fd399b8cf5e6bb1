//! How the app's configuration tells it to behave.
//!
//! The word comes from the variable `BEHAVIOR` or a configuration file named `behavior`; several words, separated by
//! commas, add up: `ready-after 5s, error-rate 0.2`.

use std::time::Duration;

use anyhow::{Result, bail};

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Behavior {
    /// How long after its start the app reports ready; `None` is never.
    pub(crate) ready: Readiness,
    /// How long after its start the app exits with an error.
    pub(crate) crash_after: Option<Duration>,
    /// The pod that exits with an error at its start, if others do not.
    pub(crate) crash_as: Option<String>,
    /// The share of requests that are answered with an error, 0 to 1.
    pub(crate) error_rate: f64,
    /// How long each request waits for its answer.
    pub(crate) delay: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) enum Readiness {
    #[default]
    AtOnce,
    After(Duration),
    Never,
}

impl Behavior {
    /// An unknown word is an error: a typing mistake in a test must not pass for a healthy app.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut behavior = Self::default();
        for phrase in text.split(',').map(str::trim).filter(|phrase| !phrase.is_empty()) {
            match phrase.split_whitespace().collect::<Vec<_>>().as_slice() {
                ["healthy"] => {}
                ["never-ready"] => behavior.ready = Readiness::Never,
                ["ready-after", time] => behavior.ready = Readiness::After(duration(time)?),
                ["crash"] => behavior.crash_after = Some(Duration::ZERO),
                ["crash-as", pod] => behavior.crash_as = Some((*pod).to_owned()),
                ["crash-after", time] => behavior.crash_after = Some(duration(time)?),
                ["error-rate", rate] => behavior.error_rate = share(rate)?,
                ["slow", time] => behavior.delay = duration(time)?,
                _ => bail!(
                    "unknown behavior `{phrase}`: use healthy, never-ready, ready-after TIME, crash, crash-as POD, crash-after TIME, error-rate SHARE or slow TIME"
                ),
            }
        }
        Ok(behavior)
    }
}

impl Readiness {
    pub(crate) fn is_reached(self, age: Duration) -> bool {
        match self {
            Self::AtOnce => true,
            Self::After(time) => age >= time,
            Self::Never => false,
        }
    }
}

fn duration(text: &str) -> Result<Duration> {
    let parsed = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => number.parse().map(Duration::from_millis),
        (None, Some(number)) => number.parse().map(Duration::from_secs),
        (None, None) => bail!("`{text}` is not a time: write 500ms or 20s"),
    };
    parsed.map_err(|_| anyhow::anyhow!("`{text}` is not a time: write 500ms or 20s"))
}

fn share(text: &str) -> Result<f64> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => bail!("`{text}` is not a share: write a number from 0 to 1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_is_healthy() {
        assert_eq!(Behavior::parse("").unwrap(), Behavior::default());
        assert_eq!(Behavior::parse("healthy\n").unwrap(), Behavior::default());
    }

    #[test]
    fn words_add_up() {
        assert_eq!(Behavior::parse("crash-as web-1").unwrap().crash_as.as_deref(), Some("web-1"));
        let behavior = Behavior::parse("ready-after 5s, crash-after 20s, error-rate 0.25, slow 300ms").unwrap();
        assert_eq!(behavior.ready, Readiness::After(Duration::from_secs(5)));
        assert_eq!(behavior.crash_after, Some(Duration::from_secs(20)));
        assert!((behavior.error_rate - 0.25).abs() < f64::EPSILON);
        assert_eq!(behavior.delay, Duration::from_millis(300));
    }

    #[test]
    fn mistakes_are_refused() {
        for text in ["helthy", "crash-after", "crash-after 5", "error-rate 2", "error-rate many", "slow -1s"] {
            assert!(Behavior::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn readiness_comes_with_age() {
        let late = Readiness::After(Duration::from_secs(5));
        assert!(!late.is_reached(Duration::from_secs(4)) && late.is_reached(Duration::from_secs(5)));
        assert!(!Readiness::Never.is_reached(Duration::MAX) && Readiness::AtOnce.is_reached(Duration::ZERO));
    }
}
