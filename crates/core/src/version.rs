//! Versions: immutable snapshots of a config, and the names that people give them.

use std::fmt;
use std::str::FromStr;

/// The name of the first version, unless its user chose one.
const FIRST: &str = "1.0.0";
/// Stands for whatever version is in use, so no version can be called so.
const RESERVED: &str = "current";
const MAX_LENGTH: usize = 128;

/// A version's name as people use it: `1.4.0`, `r7`, `before-black-friday`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VersionName(String);

#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum VersionNameError {
    #[error(
        "`{RESERVED}` cannot be a version name, it stands for the version in use: choose another lockstep.dev/version"
    )]
    Reserved,
    #[error(
        "the version name `{0}` has blanks or control characters, or is empty or longer than {MAX_LENGTH} characters: choose another lockstep.dev/version"
    )]
    Malformed(String),
}

impl VersionName {
    /// The name of a version that nobody named.
    pub fn numbered(number: u64) -> Self {
        if number == 1 { Self(FIRST.to_owned()) } else { Self(format!("r{number}")) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for VersionName {
    type Err = VersionNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |c: char| c.is_whitespace() || c.is_control();
        if text == RESERVED {
            Err(VersionNameError::Reserved)
        } else if text.is_empty() || text.chars().count() > MAX_LENGTH || text.contains(bad) {
            Err(VersionNameError::Malformed(text.chars().take(MAX_LENGTH).collect()))
        } else {
            Ok(Self(text.to_owned()))
        }
    }
}

impl fmt::Display for VersionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A version that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// The name of the ConfigMap or Secret that holds it.
    pub object: String,
    pub name: VersionName,
    /// Only grows.
    pub number: u64,
    pub digest: String,
    pub changed_by: Option<String>,
    pub reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_free_but_for_a_few() {
        for good in ["1.4.0", "r7", "before-black-friday", "ü"] {
            assert_eq!(good.parse::<VersionName>().unwrap().as_str(), good);
        }
        assert_eq!("current".parse::<VersionName>(), Err(VersionNameError::Reserved));
        for bad in ["", "a b", "a\n", &"x".repeat(200)] {
            assert!(bad.parse::<VersionName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_first_version_is_a_baseline() {
        assert_eq!(VersionName::numbered(1).as_str(), "1.0.0");
        assert_eq!(VersionName::numbered(2).as_str(), "r2");
    }
}
