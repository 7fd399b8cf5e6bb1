//! Versions: immutable snapshots of a config, and the names that people give them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::digest::Digest;

/// The name of the first version, unless its user chose one.
const FIRST: &str = "1.0.0";
/// Commands mean the version in use by it, or the config as it is: no version can be called so.
const RESERVED: [&str; 2] = ["current", "source"];
const MAX_LENGTH: usize = 128;
/// No config gets this far by its own changes.
const MAX_NUMBER: u64 = 1_000_000_000;
/// How many names are remembered after their versions are gone.
const REMEMBERED: usize = 100;

/// What nobody sees, or what turns the direction of writing: Unicode's formats and private characters, as the API server's policy knows them.
const UNSEEN: [std::ops::RangeInclusive<char>; 24] = [
    '\u{ad}'..='\u{ad}',
    '\u{600}'..='\u{605}',
    '\u{61c}'..='\u{61c}',
    '\u{6dd}'..='\u{6dd}',
    '\u{70f}'..='\u{70f}',
    '\u{890}'..='\u{891}',
    '\u{8e2}'..='\u{8e2}',
    '\u{180e}'..='\u{180e}',
    '\u{200b}'..='\u{200f}',
    '\u{202a}'..='\u{202e}',
    '\u{2060}'..='\u{2064}',
    '\u{2066}'..='\u{206f}',
    '\u{e000}'..='\u{f8ff}',
    '\u{feff}'..='\u{feff}',
    '\u{fff9}'..='\u{fffb}',
    '\u{110bd}'..='\u{110bd}',
    '\u{110cd}'..='\u{110cd}',
    '\u{13430}'..='\u{1343f}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0001}'..='\u{e0001}',
    '\u{e0020}'..='\u{e007f}',
    '\u{f0000}'..='\u{ffffd}',
    '\u{100000}'..='\u{10fffd}',
];

/// A version's name as people use it: `1.4.0`, `r7`, `before-black-friday`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct VersionName(String);

#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum VersionNameError {
    #[error("`{0}` cannot be a version name, commands mean something else by it: choose another lockstep.dev/version")]
    Reserved(String),
    #[error(
        "the version name `{0}` is not one: it has at most {MAX_LENGTH} characters, begins with a letter or digit, and has no blanks, control characters or characters that nobody sees. Choose another lockstep.dev/version"
    )]
    Malformed(String),
}

impl VersionName {
    /// The name of a version that nobody named.
    pub fn numbered(number: u64) -> Self {
        if number == 1 { Self(FIRST.to_owned()) } else { Self(format!("r{number}")) }
    }

    /// A name that somebody gives now. Versions of before may have others.
    pub fn chosen(text: &str) -> Result<Self, VersionNameError> {
        if RESERVED.contains(&text) {
            return Err(VersionNameError::Reserved(text.to_owned()));
        }
        let name: Self = text.parse()?;
        if text.starts_with(char::is_alphanumeric) && !text.contains(is_unseen) {
            Ok(name)
        } else {
            Err(malformed(text))
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_unseen(c: char) -> bool {
    UNSEEN.iter().any(|range| range.contains(&c))
}

/// What cannot be seen in it is told by its number.
fn malformed(text: &str) -> VersionNameError {
    let shown = |c: char| {
        if c.is_control() || is_unseen(c) { c.escape_unicode().to_string() } else { c.to_string() }
    };
    VersionNameError::Malformed(text.chars().take(MAX_LENGTH).map(shown).collect())
}

impl FromStr for VersionName {
    type Err = VersionNameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |c: char| c.is_whitespace() || c.is_control();
        if text.is_empty() || text.chars().count() > MAX_LENGTH || text.contains(bad) {
            return Err(malformed(text));
        }
        Ok(Self(text.to_owned()))
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

impl Version {
    /// Whether what it says of itself can be true: its object has the name that its digest gives it. Whether it has that content is
    /// known only to who reads it.
    pub fn is_plausible(&self, config: &str) -> bool {
        let digest = Digest::from(self.digest.clone());
        (1..=MAX_NUMBER).contains(&self.number) && self.object == digest.version_object_name(config)
    }
}

/// A name that was given to a version. It stands for this content also when the version is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    pub name: String,
    pub number: u64,
    /// The object that holds its content, or did.
    pub object: String,
    /// Whether it was current at some time: it was good then, and can be gone back to.
    pub was_current: bool,
}

/// The names that are known afterwards, newest first, while this object is current. A version that there is has the last word on its name.
pub fn remember(given: &[Given], versions: &[Given], current: Option<&str>) -> Vec<Given> {
    let known: BTreeMap<&str, &Given> =
        given.iter().chain(versions).map(|given| (given.name.as_str(), given)).collect();
    let mut all: Vec<Given> = known.into_values().cloned().collect();
    let good: BTreeSet<&str> =
        given.iter().filter(|given| given.was_current).map(|given| given.object.as_str()).chain(current).collect();
    for given in &mut all {
        given.was_current = good.contains(given.object.as_str());
    }
    all.sort_by(|a, b| b.number.cmp(&a.number).then_with(|| a.name.cmp(&b.name)));
    let kept: BTreeSet<&str> = versions.iter().map(|given| given.name.as_str()).collect();
    let mut room = REMEMBERED;
    all.retain(|given| {
        let stays = room > 0 || kept.contains(given.name.as_str());
        room = room.saturating_sub(1);
        stays
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(number: u64, object: &str) -> Given {
        Given { name: VersionName::numbered(number).to_string(), number, object: object.to_owned(), was_current: false }
    }

    #[test]
    fn a_version_is_plausible_only_if_its_name_and_number_can_be() {
        let digest = "0123456789abcdef".repeat(4);
        let version = |object: &str, number: u64| Version {
            object: object.to_owned(),
            name: VersionName::numbered(2),
            number,
            digest: digest.clone(),
            changed_by: None,
            reason: None,
        };
        assert!(version("app-0123456789", 2).is_plausible("app"));
        assert!(!version("app-0000000000", 2).is_plausible("app"), "the digest of another one");
        assert!(!version("app-0123456789", 2).is_plausible("other"));
        assert!(!version("app-0123456789", u64::MAX).is_plausible("app"));
        assert!(!version("app-0123456789", 0).is_plausible("app"));
        assert!(!Version { digest: "012".into(), ..version("app-0123456789", 2) }.is_plausible("app"));
    }

    #[test]
    fn what_was_current_once_stays_one_to_go_back_to() {
        let both = [given(1, "app-a"), given(2, "app-b")];
        let good = |names: &[Given]| -> Vec<u64> {
            names.iter().filter(|given| given.was_current).map(|given| given.number).collect()
        };
        let first = remember(&[], &both, Some("app-a"));
        assert_eq!(good(&first), [1]);
        assert_eq!(good(&remember(&first, &both, Some("app-b"))), [2, 1]);
        assert_eq!(good(&remember(&first, &[], None)), [1], "also when its version is gone");
    }

    #[test]
    fn names_are_remembered_when_their_versions_are_gone() {
        let first = remember(&[], &[given(1, "app-a"), given(2, "app-b")], None);
        assert_eq!(first, [given(2, "app-b"), given(1, "app-a")]);
        assert_eq!(
            remember(&first, &[given(3, "app-c")], None),
            [given(3, "app-c"), given(2, "app-b"), given(1, "app-a")]
        );
        assert_eq!(remember(&first, &[given(2, "app-b")], None), first);
    }

    #[test]
    fn the_newest_names_are_remembered_and_those_that_are_in_use() {
        let all: Vec<Given> = (1..=150).map(|number| given(number, "app-a")).collect();
        let kept = remember(&all, &[given(3, "app-a")], None);
        assert_eq!(kept.len(), REMEMBERED + 1);
        assert_eq!((kept[0].number, kept[REMEMBERED - 1].number, kept[REMEMBERED].number), (150, 51, 3));
        assert_eq!(remember(&kept, &[given(3, "app-a")], None), kept);
    }

    #[test]
    fn names_are_free_but_for_a_few() {
        for good in ["1.4.0", "r7", "before-black-friday", "ü"] {
            assert_eq!(good.parse::<VersionName>().unwrap().as_str(), good);
        }
        for reserved in RESERVED {
            assert_eq!(VersionName::chosen(reserved), Err(VersionNameError::Reserved(reserved.to_owned())));
        }
        for odd in
            ["--to", "-1", ".hidden", "a b", "", "x\u{200b}", "\u{200b}x", "a\u{202e}b", "a\u{feff}", "a\u{e000}"]
        {
            assert!(matches!(VersionName::chosen(odd), Err(VersionNameError::Malformed(_))), "{odd:?}");
        }
        let told = VersionName::chosen("a\u{202e}b").unwrap_err().to_string();
        assert!(told.contains("`a\\u{202e}b`"), "{told}");
        assert!("a\u{202e}b".parse::<VersionName>().is_ok(), "nor is it nobody's version any more");
        assert!("--to".parse::<VersionName>().is_ok(), "one of before stays what it is");
        assert!(VersionName::chosen("1.4.0+ü").is_ok());
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
