//! The pin table of a namespace: which version a template gets that does not say so itself.

use std::collections::BTreeMap;

use crate::config::ConfigRef;

/// What the table says of one config. The values are names of version objects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entry {
    /// What unpinned templates were written against: the version that was current when the config was adopted. Every later
    /// write of a template pins it, so a template without a pin is older than that and keeps running this version.
    pub baseline: Option<String>,
    /// What consumers should run.
    pub current: Option<String>,
    /// What a new or changed workload may already join, while a release is under way.
    pub next: Option<String>,
    /// Where a release moves consumers. Whoever has it already keeps it when its code changes, also where nobody may join.
    pub moving: Option<String>,
}

impl Entry {
    /// What a new or changed workload gets.
    pub fn to_join(&self) -> Option<&str> {
        self.next.as_deref().or(self.current.as_deref())
    }

    /// Whether a changed workload stays with this version: a release under way has given it that, and there is nothing newer to join.
    pub fn keeps(&self, version: &str) -> bool {
        self.next.is_none() && self.moving.as_deref() == Some(version)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table(BTreeMap<ConfigRef, Entry>);

impl Table {
    pub fn get(&self, config: &ConfigRef) -> Option<&Entry> {
        self.0.get(config)
    }

    pub fn entry(&mut self, config: ConfigRef) -> &mut Entry {
        self.0.entry(config).or_default()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ConfigRef, &Entry)> {
        self.0.iter()
    }
}
