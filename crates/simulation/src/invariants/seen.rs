//! What was seen of a schedule so far: the objects as they are, and what must be remembered of how they came to be so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use lockstep_core::{ConfigRef, names};
use serde_json::Value;

use super::reading::{
    Version, config_kind, config_of, consumers, holder, managed, object_kind, pinned, pins, pins_text, references,
    source_key, template,
};
use crate::kinds::{Key, Kind};
use crate::store::{Change, Object, Writer};

/// What a source said at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    pub data: Value,
    pub changed_by: Option<String>,
    pub reason: Option<String>,
}

/// What people did last to a workload.
#[derive(Debug, Clone, Default)]
pub struct Touched {
    /// When its template became another by a person's write.
    pub template: Option<Timestamp>,
    /// When a person's write gave it pins that no release was to give it.
    pub pins: Option<Timestamp>,
    /// When anything of it was written.
    pub at_all: Option<Timestamp>,
    /// The pins that it ever had by a person's write: their own, or what the API server gave them.
    pub given: BTreeSet<(ConfigRef, Option<String>)>,
}

#[derive(Default)]
pub struct Seen {
    pub objects: BTreeMap<Key, Arc<Object>>,
    pub now: Timestamp,
    /// When an operator or a person last wrote something.
    pub last_work: Timestamp,
    /// What each source said, each once, oldest first.
    pub said: BTreeMap<Key, Vec<Said>>,
    /// The names of each config's versions, and what object each stands for.
    pub given: BTreeMap<(String, ConfigRef), BTreeMap<String, String>>,
    pub touched: BTreeMap<Key, Touched>,
    /// Since when whatever makes pods has the pins that it has.
    pub pinned_since: BTreeMap<Key, Timestamp>,
    /// The phases that each release was seen in, by namespace and name.
    pub phases: BTreeMap<(String, String), BTreeSet<String>>,
    /// The releases that people deleted, as they were, and when.
    pub deleted: Vec<(Timestamp, Arc<Object>)>,
    /// Who holds the lease.
    pub leader: Option<String>,
    /// Up to when the starts of containers were looked at.
    pub ran_until: Option<Timestamp>,
    /// Namespaces that were deleted at some time.
    pub gone: BTreeSet<String>,
    /// Which pins consumers had when people had deleted a config and its VersionedConfig: nobody knows any more where those came from.
    pub forgotten: BTreeSet<(Key, ConfigRef, String)>,
    /// The versions that went while neither of them was there.
    pub unkept: BTreeSet<Key>,
}

impl Seen {
    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<&Arc<Object>> {
        self.objects.get(&Key::new(kind, namespace, name))
    }

    /// By name.
    pub fn list(&self, kind: Kind, namespace: &str) -> impl Iterator<Item = &Arc<Object>> {
        let first = Key::new(kind, namespace, "");
        let is_of = move |key: &Key| key.kind == first.kind && key.namespace == first.namespace;
        let first = Key::new(kind, namespace, "");
        self.objects.range(first..).take_while(move |(key, _)| is_of(key)).map(|(_, object)| object)
    }

    pub fn all(&self, kind: Kind) -> impl Iterator<Item = &Arc<Object>> {
        self.objects
            .range(Key::new(kind, "", "")..)
            .take_while(move |(key, _)| key.kind == kind)
            .map(|(_, object)| object)
    }

    pub fn namespaces(&self) -> impl Iterator<Item = &str> {
        let alive = self.all(Kind::Namespace).filter(|namespace| !namespace.is_deleted());
        alive.map(|namespace| namespace.key.name.as_str())
    }

    /// Whether a namespace is there to stay.
    pub fn is_there(&self, namespace: &str) -> bool {
        self.get(Kind::Namespace, "", namespace).is_some_and(|namespace| !namespace.is_deleted())
    }

    pub fn note(&mut self, change: &Change) {
        self.now = change.at;
        if is_work(change) {
            self.last_work = change.at;
        }
        match change.key.kind {
            Kind::ConfigMap | Kind::Secret => self.note_config(change),
            Kind::Release => self.note_release(change),
            Kind::Lease => {
                let holder = change.after.as_ref().and_then(|lease| lease.value["spec"]["holderIdentity"].as_str());
                self.leader = holder.map(str::to_owned);
            }
            Kind::VersionedConfig if change.after.is_none() => {
                // Weaker than "for ever": the names that were given are in the status of the VersionedConfig, and go with it. What is
                // there still says itself what it is called.
                let config = change.before.as_ref().and_then(|object| config_of(&object.value["spec"]["source"]));
                let namespace = &change.key.namespace;
                if let Some(given) =
                    config.as_ref().and_then(|config| self.given.get_mut(&(namespace.clone(), config.clone())))
                {
                    let kind = config.as_ref().map(object_kind);
                    given.retain(|_, object| {
                        kind.is_some_and(|kind| self.objects.contains_key(&Key::new(kind, namespace, object)))
                    });
                }
            }
            Kind::Namespace if change.after.is_none() => {
                self.given.retain(|(namespace, _), _| *namespace != change.key.name);
                self.phases.retain(|(namespace, _), _| *namespace != change.key.name);
                self.gone.insert(change.key.name.clone());
            }
            _ => {
                self.note_pins(change);
                self.note_touch(change);
            }
        }
        if let Some(after) = &change.after {
            self.objects.insert(change.key.clone(), Arc::clone(after));
        } else {
            self.objects.remove(&change.key);
            self.note_forgotten(change);
        }
    }

    /// Whoever deletes a config and its VersionedConfig takes all that keeps its versions, and its releases.
    fn note_forgotten(&mut self, change: &Change) {
        let (namespace, before) = (&change.key.namespace, change.before.as_ref());
        let version = before.and_then(|before| Version::read(before)).map(|version| version.config);
        let is_version = version.is_some();
        let config = version.or_else(|| match change.key.kind {
            Kind::VersionedConfig => config_of(&before?.value["spec"]["source"]),
            kind => Some(ConfigRef::new(config_kind(kind)?, change.key.name.as_str())),
        });
        let Some(config) = config else { return };
        let is_kept =
            self.objects.contains_key(&source_key(namespace, &config)) || managed(self, namespace, &config).is_some();
        if is_kept {
            return;
        }
        if is_version {
            self.unkept.insert(change.key.clone());
        } else {
            let pins = consumers(self, namespace)
                .filter_map(|workload| Some((workload.key.clone(), config.clone(), pinned(&pins(workload), &config)?)));
            let forgotten: Vec<_> = pins.collect();
            self.forgotten.extend(forgotten);
        }
    }

    fn note_config(&mut self, change: &Change) {
        let Some(object) = &change.after else {
            self.note_gone(change);
            return;
        };
        if let Some(version) = Version::read(object) {
            if let (Some(name), config) = (version.name, version.config) {
                let given = self.given.entry((change.key.namespace.clone(), config)).or_default();
                given.insert(name.to_owned(), change.key.name.clone());
            }
            return;
        }
        let said = Said {
            data: object.value["data"].clone(),
            changed_by: object.annotation(names::CHANGED_BY).map(str::to_owned),
            reason: object.annotation(names::REASON).map(str::to_owned),
        };
        let all = self.said.entry(change.key.clone()).or_default();
        if !all.contains(&said) {
            all.push(said);
        }
    }

    /// Where nobody keeps the names that were given, that of a version goes with it: there is no VersionedConfig, or one that was made again a
    /// moment ago and was told nothing yet. An operator puts a name down there before there is such a version.
    fn note_gone(&mut self, change: &Change) {
        let Some(version) = change.before.as_ref().and_then(|before| Version::read(before)) else { return };
        let namespace = &change.key.namespace;
        let knows = |managed: &Arc<Object>| {
            let mut names = managed.value["status"]["names"].as_array().into_iter().flatten();
            names.any(|given| given["object"] == change.key.name.as_str())
        };
        if !managed(self, namespace, &version.config).is_some_and(knows)
            && let Some(given) = self.given.get_mut(&(namespace.clone(), version.config))
        {
            given.retain(|_, object| *object != change.key.name);
        }
    }

    fn note_release(&mut self, change: &Change) {
        let key = (change.key.namespace.clone(), change.key.name.clone());
        if let Some(release) = &change.after {
            let phase = release.value["status"]["phase"].as_str().unwrap_or("Pending").to_owned();
            self.phases.entry(key).or_default().insert(phase);
        } else if let Some(release) = change.before.as_ref().filter(|_| matches!(change.by, Writer::User(_))) {
            self.deleted.push((change.at, Arc::clone(release)));
        }
    }

    fn note_pins(&mut self, change: &Change) {
        if holder(change.key.kind).is_none() {
            return;
        }
        let pins = |object: &Arc<Object>| pins_text(template(object)).to_owned();
        match &change.after {
            None => drop(self.pinned_since.remove(&change.key)),
            Some(after) if change.before.as_ref().map(pins) != Some(pins(after)) => {
                self.pinned_since.insert(change.key.clone(), change.at);
            }
            Some(_) => {}
        }
    }

    fn note_touch(&mut self, change: &Change) {
        if !matches!(change.by, Writer::User(_)) || holder(change.key.kind).is_none() {
            return;
        }
        let Some(after) = &change.after else {
            self.touched.remove(&change.key);
            return;
        };
        let touched = self.touched.entry(change.key.clone()).or_default();
        touched.at_all = Some(change.at);
        let before = change.before.as_ref();
        if before.map(|before| template(before)) != Some(template(after)) {
            touched.template = Some(change.at);
            let pins = pins(after);
            touched.given.extend(references(after).into_iter().map(|config| {
                let pin = pinned(&pins, &config);
                (config, pin)
            }));
        }
        if before.is_some_and(|before| pins(before) != pins(after)) {
            touched.pins = Some(change.at);
        }
    }
}

/// Whether somebody did something: what renews itself for ever does not count.
pub(super) fn is_work(change: &Change) -> bool {
    !matches!(change.by, Writer::Controller) && !matches!(change.key.kind, Kind::Lease | Kind::Event)
}
