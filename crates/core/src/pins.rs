//! Pins: "this pod template runs version V of config C", as one annotation.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::config::ConfigRef;

/// What a template is pinned to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pin {
    /// The version object of this name.
    Version(String),
    /// The table's current version, which pods then follow without a restart.
    Live,
}

/// Reserved: no version object can have this name, because those end in a digest.
const LIVE: &str = "live";

/// The pins of one template, ordered, so that equal pins are equal text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pins(BTreeMap<ConfigRef, Pin>);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{entry}` is not a pin: write configmap/NAME=VERSION or secret/NAME=VERSION, separated by commas")]
pub struct PinsError {
    entry: String,
}

impl Pins {
    /// Reads what somebody may have written by hand: what is not a pin is passed over, as the API server does.
    pub fn read(text: &str) -> Self {
        Self(text.split(',').filter_map(|entry| parse_entry(entry).ok()).collect())
    }

    pub fn get(&self, config: &ConfigRef) -> Option<&Pin> {
        self.0.get(config)
    }

    pub fn set(&mut self, config: ConfigRef, pin: Pin) {
        self.0.insert(config, pin);
    }

    /// Sets a pin, or takes it away.
    pub fn put(&mut self, config: &ConfigRef, pin: Option<&Pin>) {
        match pin {
            Some(pin) => drop(self.0.insert(config.clone(), pin.clone())),
            None => drop(self.0.remove(config)),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ConfigRef, &Pin)> {
        self.0.iter()
    }
}

impl FromIterator<(ConfigRef, Pin)> for Pins {
    fn from_iter<I: IntoIterator<Item = (ConfigRef, Pin)>>(pins: I) -> Self {
        Self(pins.into_iter().collect())
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Version(name) => name,
            Self::Live => LIVE,
        })
    }
}

impl From<&str> for Pin {
    fn from(text: &str) -> Self {
        if text == LIVE { Self::Live } else { Self::Version(text.to_owned()) }
    }
}

impl fmt::Display for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<String> = self.0.iter().map(|(config, pin)| format!("{config}={pin}")).collect();
        f.write_str(&entries.join(","))
    }
}

impl FromStr for Pins {
    type Err = PinsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let entries = text.split(',').filter(|entry| !entry.is_empty());
        entries.map(parse_entry).collect::<Result<_, _>>().map(Self)
    }
}

fn parse_entry(entry: &str) -> Result<(ConfigRef, Pin), PinsError> {
    let error = || PinsError { entry: entry.to_owned() };
    let (config, version) = entry.split_once('=').ok_or_else(error)?;
    // As the API server's policy reads it, which puts it into pods: what cannot be a name is told as a version that nobody knows.
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    if version.is_empty() || !version.chars().all(is_allowed) {
        return Err(error());
    }
    Ok((config.parse().map_err(|_| error())?, Pin::from(version)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigKind;

    #[test]
    fn pins_are_written_in_order_and_read_again() {
        let text = "secret/db=db-91ab33c0e2,configmap/app=app-5f2c9a1b7d,configmap/flags=live";
        let pins: Pins = text.parse().unwrap();
        assert_eq!(pins.get(&ConfigRef::new(ConfigKind::ConfigMap, "flags")), Some(&Pin::Live));
        let written = pins.to_string();
        assert_eq!(written, "configmap/app=app-5f2c9a1b7d,configmap/flags=live,secret/db=db-91ab33c0e2");
        assert_eq!(written.parse::<Pins>().unwrap(), pins);
    }

    #[test]
    fn no_text_is_no_pins() {
        assert!("".parse::<Pins>().unwrap().is_empty());
        assert_eq!(Pins::default().to_string(), "");
    }

    #[test]
    fn what_is_readable_is_read_from_what_is_not() {
        assert_eq!(Pins::read("junk,configmap/app=app-1, secret/x=y,configmap/b=B").to_string(), "configmap/app=app-1");
    }

    #[test]
    fn of_a_pin_that_is_written_twice_the_last_one_counts() {
        let text = "configmap/app=app-1,secret/app=app-9,configmap/app=app-2";
        assert_eq!(Pins::read(text).to_string(), "configmap/app=app-2,secret/app=app-9");
        assert_eq!(text.parse::<Pins>().unwrap(), Pins::read(text));
        assert_eq!(
            Pins::read("configmap/app=app-1,configmap/app=B").to_string(),
            "configmap/app=app-1",
            "that is none"
        );
    }

    #[test]
    fn a_mistake_is_refused_with_the_entry_that_has_it() {
        for text in ["configmap/app", "app=app-1", "configmap/app=", "configmap/a=b,junk", "configmap/a=b c"] {
            let error = text.parse::<Pins>().unwrap_err().to_string();
            assert!(error.contains("is not a pin"), "{text}: {error}");
        }
    }
}
