//! The pin table of a namespace: which version a template gets that does not say so itself.

use std::collections::{BTreeMap, BTreeSet};

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

    /// Whether it speaks of this version at all: one that is announced may not exist yet.
    pub fn names(&self, version: &str) -> bool {
        [&self.baseline, &self.current, &self.next, &self.moving]
            .into_iter()
            .any(|named| named.as_deref() == Some(version))
    }

    /// Whether pods get this version without anybody's writing their template.
    pub fn hands_out(&self, version: &str) -> bool {
        [&self.baseline, &self.current].into_iter().any(|named| named.as_deref() == Some(version))
    }

    /// The versions that it names where it did not name them before.
    pub fn newly_named(&self, before: &Self) -> BTreeSet<String> {
        let columns = [
            (&self.baseline, &before.baseline),
            (&self.current, &before.current),
            (&self.next, &before.next),
            (&self.moving, &before.moving),
        ];
        columns.into_iter().filter(|(now, was)| now != was).filter_map(|(now, _)| now.clone()).collect()
    }

    /// The same without a version that is not to be had after all: nobody may join it, or stay with it.
    #[must_use]
    pub fn without(&self, version: &str) -> Self {
        let other = |named: &Option<String>| named.clone().filter(|named| named != version);
        Self { next: other(&self.next), moving: other(&self.moving), ..self.clone() }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_to_be_had_is_not_named_and_the_rest_stays() {
        let named = |name: &str| Some(name.to_owned());
        let entry = Entry { baseline: named("a"), current: named("b"), next: named("c"), moving: named("c") };
        assert_eq!(entry.without("c"), Entry { next: None, moving: None, ..entry.clone() });
        assert_eq!(entry.without("d"), entry);
        assert!(entry.hands_out("a") && entry.hands_out("b") && !entry.hands_out("c"));
    }

    #[test]
    fn what_was_named_before_is_not_new() {
        let named = |name: &str| Some(name.to_owned());
        let entry = Entry { baseline: named("a"), current: named("b"), next: named("c"), moving: named("c") };
        assert_eq!(entry.newly_named(&Entry::default()), ["a", "b", "c"].map(str::to_owned).into());
        let released = Entry { current: named("c"), next: None, moving: None, ..entry.clone() };
        assert_eq!(released.newly_named(&entry), ["c".to_owned()].into(), "pods get it from now on");
        assert_eq!(entry.newly_named(&entry), BTreeSet::new());
    }
}
