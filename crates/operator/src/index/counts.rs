//! What the metrics tell of the whole cluster, counted as facts come in.

use std::collections::BTreeSet;

use super::{Fact, Watched};
use crate::facts::Key;

#[derive(Debug, Default)]
pub struct Counts {
    /// The releases that have not ended.
    open_releases: BTreeSet<Key>,
    /// The VersionedConfigs of which a version failed and is held.
    held: BTreeSet<Key>,
    /// The objects that cannot be read.
    unreadable: BTreeSet<(Watched, Key)>,
}

impl Counts {
    pub fn open_releases(&self) -> usize {
        self.open_releases.len()
    }

    pub fn held_configs(&self) -> usize {
        self.held.len()
    }

    pub fn unreadable(&self) -> usize {
        self.unreadable.len()
    }

    pub(super) fn note_unreadable(&mut self, watched: Watched, key: &Key) {
        self.unreadable.insert((watched, key.clone()));
    }

    pub(super) fn forget_unreadable(&mut self, watched: Watched, key: &Key) {
        self.unreadable.remove(&(watched, key.clone()));
    }

    pub(super) fn forget_unreadable_pods(&mut self, namespace: &str) {
        self.unreadable.retain(|(watched, key)| *watched != Watched::Pod || key.namespace != namespace);
    }

    pub(super) fn note(&mut self, key: &Key, fact: &Fact) {
        let (counted, is_in) = match fact {
            Fact::Managed(fact) => (&mut self.held, fact.is_held()),
            Fact::Release(fact) => (&mut self.open_releases, !fact.has_ended()),
            _ => return,
        };
        if is_in {
            counted.insert(key.clone());
        } else {
            counted.remove(key);
        }
    }

    pub(super) fn forget(&mut self, watched: Watched, key: &Key) {
        self.forget_unreadable(watched, key);
        match watched {
            Watched::VersionedConfig => drop(self.held.remove(key)),
            Watched::Release => drop(self.open_releases.remove(key)),
            _ => {}
        }
    }

    pub(super) fn forget_namespace(&mut self, namespace: &str) {
        self.held.retain(|key| key.namespace != namespace);
        self.open_releases.retain(|key| key.namespace != namespace);
        let is_in = |watched: Watched, key: &Key| match watched {
            Watched::Namespace => key.name == namespace,
            _ => key.namespace == namespace,
        };
        self.unreadable.retain(|(watched, key)| !is_in(*watched, key));
    }
}

#[cfg(test)]
mod tests {
    use lockstep_api::VersionedConfig;
    use serde_json::json;

    use super::*;
    use crate::facts::ManagedFact;

    fn held(namespace: &str, version: Option<&str>) -> (Key, Fact) {
        let held = version
            .map(|version| json!({"object": "app-1", "version": version, "release": "app-2", "reason": "it crashed"}));
        let object: VersionedConfig = serde_json::from_value(json!({
            "apiVersion": "lockstep.dev/v1alpha1",
            "kind": "VersionedConfig",
            "metadata": {"name": "app", "namespace": namespace, "resourceVersion": "1"},
            "spec": {"source": {"kind": "ConfigMap", "name": "app"}},
            "status": {"held": held},
        }))
        .unwrap();
        let key = Key { namespace: namespace.into(), name: "app".into() };
        (key, Fact::Managed(Box::new(ManagedFact::read(object))))
    }

    #[test]
    fn a_held_config_counts_until_it_is_let_go_or_gone() {
        let mut counts = Counts::default();
        for namespace in ["shop", "bank", "mill"] {
            let (key, fact) = held(namespace, Some("r2"));
            counts.note(&key, &fact);
            counts.note(&key, &fact);
        }
        assert_eq!(counts.held_configs(), 3);
        let (key, fact) = held("shop", None);
        counts.note(&key, &fact);
        assert_eq!(counts.held_configs(), 2);
        counts.forget(Watched::VersionedConfig, &held("bank", None).0);
        assert_eq!(counts.held_configs(), 1);
        counts.forget_namespace("mill");
        assert_eq!(counts.held_configs(), 0);
    }
}
