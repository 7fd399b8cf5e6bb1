//! What an object that cannot be read means: what it concerns stands still, so that nothing is decided on half of what there is.
//!
//! - What was read of it before stays: it counts as not changed.
//! - A config whose ReleasePolicy, VersionedConfig, Release or PinTable cannot be read is told so, and nothing of it is released,
//!   forgotten or deleted. Without its VersionedConfig, content that failed would look like content that was never released; without its
//!   Release, like content that still has to be; without the table, the baseline of old pods would be written anew.
//! - A release under way whose policy cannot be read goes no further, but failures still put the old version back: in the meantime it is
//!   judged by what the policy said before, or by the default. One whose record or VersionedConfig cannot be read stands still: what
//!   comes next could not be recorded.
//! - Gates are not opened where a Release cannot be read: it may be the one that closed them. Versions are not deleted where a workload
//!   cannot be read: it may use them.

use std::collections::BTreeSet;

use lockstep_core::{ConfigRef, names};

use super::releases::release_prefix;
use super::{ConfigId, Index, Namespace, Todo, Watched, Work};
use crate::facts::{Key, ReleaseFact};
use crate::unreadable::Unreadable;

/// One object of one watch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    pub watched: Watched,
    pub key: Key,
}

impl Index {
    /// Takes in that an object cannot be read. What is known already, or older, is passed over.
    pub fn apply_unreadable(&mut self, watched: Watched, key: &Key, unreadable: Unreadable) -> Vec<Work> {
        let name = if watched == Watched::Namespace { &key.name } else { &key.namespace };
        let namespace = self.namespaces.entry(name.clone()).or_default();
        if namespace.last_seen(watched, key) >= Some(unreadable.resource_version) {
            return Vec::new();
        }
        namespace.unreadable.insert((watched, key.name.clone()), unreadable);
        self.counts.note_unreadable(watched, key);
        let mut work = namespace.all_that_is_ours().within(name);
        work.push(Work::Unreadable(ObjectId { watched, key: key.clone() }));
        work
    }

    pub fn unreadable(&self, id: &ObjectId) -> Option<Unreadable> {
        let namespace = if id.watched == Watched::Namespace { &id.key.name } else { &id.key.namespace };
        self.namespaces.get(namespace)?.unreadable.get(&(id.watched, id.key.name.clone())).cloned()
    }

    /// What keeps a config from being looked into.
    pub fn stops(&self, id: &ConfigId) -> Option<Unreadable> {
        self.namespaces.get(&id.namespace)?.unreadable_for(&id.config).cloned()
    }
}

impl Namespace {
    /// It can be read now, or is gone: what it concerned goes on.
    pub(super) fn forget_unreadable(&mut self, watched: Watched, name: &str) -> Todo {
        match self.unreadable.remove(&(watched, name.to_owned())) {
            Some(_) => self.all_that_is_ours(),
            None => Todo::default(),
        }
    }

    fn all_that_is_ours(&self) -> Todo {
        let known = self.sources.keys().chain(self.managed.keys());
        let configs: BTreeSet<ConfigRef> = known.filter(|config| self.is_ours(config)).cloned().collect();
        Todo { retention: configs.clone(), configs, releases: self.watched_releases(), ..Todo::default() }
    }

    /// What cannot be read and concerns this config.
    pub(super) fn unreadable_for(&self, config: &ConfigRef) -> Option<&Unreadable> {
        self.unreadable_policy(config).or_else(|| self.unreadable_record(config)).or_else(|| {
            let is_its = |name: &String| self.is_release_of(config, name);
            let mut found = self.unreadable.iter();
            found.find(|((watched, name), _)| *watched == Watched::Release && is_its(name)).map(|(_, found)| found)
        })
    }

    pub(super) fn unreadable_policy(&self, config: &ConfigRef) -> Option<&Unreadable> {
        self.unreadable.get(&(Watched::Policy, self.policy_name(config).to_owned()))
    }

    /// What is remembered of a config, in its VersionedConfig and in the table.
    fn unreadable_record(&self, config: &ConfigRef) -> Option<&Unreadable> {
        let managed = (Watched::VersionedConfig, config.versioned_config_name());
        let table = (Watched::PinTable, names::PIN_TABLE.to_owned());
        [managed, table].iter().find_map(|object| self.unreadable.get(object))
    }

    /// Whether a Release moves the config, as far as that is known: by what was read of it before, or by its name.
    fn is_release_of(&self, config: &ConfigRef, release: &str) -> bool {
        let moves = |fact: &ReleaseFact| fact.core.configs().any(|own| own == config);
        let is_named_after =
            || release.strip_prefix(&release_prefix(config)).is_some_and(|rest| rest.parse::<u64>().is_ok());
        self.releases.get(release).map_or_else(is_named_after, moves)
    }

    /// Whether nothing that a release does could be recorded.
    pub(super) fn cannot_record(&self, fact: &ReleaseFact) -> bool {
        let is_unreadable = self.unreadable.contains_key(&(Watched::Release, fact.core.name.clone()));
        is_unreadable || fact.core.configs().any(|config| self.unreadable_record(config).is_some())
    }

    pub(super) fn has_unreadable_releases(&self) -> bool {
        self.unreadable.keys().any(|(watched, _)| *watched == Watched::Release)
    }

    pub(super) fn has_unreadable_workloads(&self) -> bool {
        self.unreadable.keys().any(|(watched, _)| matches!(watched, Watched::Workload(_)))
    }

    pub(super) fn unreadable_releases(&self) -> impl Iterator<Item = &String> {
        self.unreadable.keys().filter(|(watched, _)| *watched == Watched::Release).map(|(_, name)| name)
    }
}
