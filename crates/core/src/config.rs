//! A config: a ConfigMap or Secret as its user edits it.

use std::fmt;
use std::str::FromStr;

/// What kind of object a config is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConfigKind {
    ConfigMap,
    Secret,
}

impl ConfigKind {
    pub const ALL: [Self; 2] = [Self::ConfigMap, Self::Secret];

    /// As it stands in a pin: `configmap`.
    pub fn word(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }

    /// As Kubernetes calls it: `ConfigMap`.
    pub fn kind(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }
}

impl FromStr for ConfigKind {
    type Err = ConfigRefError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|kind| kind.word() == word);
        found.ok_or_else(|| ConfigRefError(word.to_owned()))
    }
}

/// A config within its namespace, written `configmap/app`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConfigRef {
    pub kind: ConfigKind,
    pub name: String,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` names no config: write configmap/NAME or secret/NAME")]
pub struct ConfigRefError(String);

impl ConfigRef {
    pub fn new(kind: ConfigKind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into() }
    }

    /// The name of the VersionedConfig of this config: kinds share a namespace there, so the kind is part of it.
    pub fn versioned_config_name(&self) -> String {
        format!("{}-{}", self.kind.word(), self.name)
    }
}

impl fmt::Display for ConfigRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.word(), self.name)
    }
}

impl FromStr for ConfigRef {
    type Err = ConfigRefError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((kind, name)) if is_object_name(name) => Ok(Self::new(kind.parse()?, name)),
            _ => Err(ConfigRefError(text.to_owned())),
        }
    }
}

/// What Kubernetes allows as the name of a ConfigMap or Secret.
pub fn is_object_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    name.len() <= MAX_NAME_LENGTH
        && name.chars().all(allowed)
        && edge(name.chars().next())
        && edge(name.chars().next_back())
}

/// Kubernetes' own limit on the names of objects.
pub const MAX_NAME_LENGTH: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_is_written_as_it_is_read() {
        for text in ["configmap/app", "secret/db.credentials-2"] {
            assert_eq!(text.parse::<ConfigRef>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_texts_are_refused_by_name() {
        for text in ["app", "configmap/", "pod/app", "configmap/App", "configmap/-a", "configmap/a,b", "configmap/a=b"]
        {
            let error = text.parse::<ConfigRef>().unwrap_err().to_string();
            assert!(error.contains("configmap/NAME"), "{error}");
        }
    }
}
