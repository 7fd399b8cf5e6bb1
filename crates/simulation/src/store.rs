//! What the API server keeps: the objects, and all that ever happened to them.

mod defaults;
mod delete;
mod fields;
mod object;
mod prepare;
mod rules;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use lockstep_core::names;

use crate::admission;
use crate::kinds::{Key, Kind};

pub use fields::Fields;
pub(crate) use object::stamp;
pub use object::{Change, Object};
pub use write::{Part, Patch, Propagation, Refusal, Write, Writer};

/// A write that was looked at and not yet done: the API server still asks its webhooks about it.
#[derive(Debug, Clone)]
pub struct Draft {
    pub key: Key,
    /// None for what is new.
    pub before: Option<Arc<Object>>,
    /// What is to be stored, without what the API server adds at the very end.
    pub object: Fields,
    part: Part,
    /// Whether whoever writes has seen the object that it changes: a patch, or an object with its uid. A manifest has none.
    pub(crate) knows_object: bool,
    /// Whether it goes instead of being changed, and what becomes of those that it owns.
    pub(crate) deletion: Option<Propagation>,
}

impl Draft {
    /// Whether the object itself is written, and not its status.
    pub(crate) fn is_object(&self) -> bool {
        self.part == Part::Object
    }
}

/// No schedule comes near it.
const MOST_CHANGES: usize = 60_000;

#[derive(Debug, Default)]
pub struct Store {
    objects: BTreeMap<Key, Arc<Object>>,
    /// Which objects name this uid among their owners.
    owned: BTreeMap<String, BTreeSet<Key>>,
    /// One change per revision, beginning with revision 1.
    history: Vec<Change>,
    /// The revisions of each kind's changes.
    by_kind: [Vec<u64>; Kind::ALL.len()],
    compacted: u64,
    /// How many uids and generated names were given out.
    counted: u64,
    /// How often operators wrote what was there already, by object.
    vain: BTreeMap<Key, u32>,
    pub(crate) policies: admission::Policies,
    /// How far the pin tables that policies read are behind: the API server follows them by a watch of its own.
    pub policy_lag: Duration,
}

impl Store {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn get(&self, key: &Key) -> Option<&Arc<Object>> {
        self.objects.get(key)
    }

    /// By namespace and name.
    pub fn list(&self, kind: Kind, namespace: Option<&str>) -> impl Iterator<Item = &Arc<Object>> {
        let first = Key::new(kind, namespace.unwrap_or_default(), "");
        let is_of = move |key: &Key| key.kind == kind && namespace.is_none_or(|namespace| key.namespace == namespace);
        self.objects.range(first..).take_while(move |(key, _)| is_of(key)).map(|(_, object)| object)
    }

    /// As it was at a revision, and only what comes after this object.
    pub(crate) fn list_at(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        revision: u64,
        after: Option<&Key>,
    ) -> Vec<Arc<Object>> {
        let mut found: BTreeMap<&Key, &Arc<Object>> =
            self.list(kind, namespace).map(|object| (&object.key, object)).collect();
        // Backwards, so that what an object was before the first of its changes is what stays.
        for change in self.changes_of(kind, revision).collect::<Vec<_>>().into_iter().rev() {
            match &change.before {
                Some(before) => found.insert(&change.key, before),
                None => found.remove(&change.key),
            };
        }
        let is_of = |key: &Key| namespace.is_none_or(|namespace| key.namespace == namespace);
        let is_wanted = |key: &Key| is_of(key) && after.is_none_or(|after| key > after);
        found.into_iter().filter(|(key, _)| is_wanted(key)).map(|(_, object)| Arc::clone(object)).collect()
    }

    /// Whoever names this uid among its owners.
    pub fn owned_by(&self, uid: &str) -> impl Iterator<Item = &Arc<Object>> {
        self.owned.get(uid).into_iter().flatten().filter_map(|key| self.objects.get(key))
    }

    /// Does what the API server does with a write, but for webhooks: those are asked by whoever calls this.
    pub fn write(&mut self, by: &Writer, write: Write, now: Timestamp) -> Result<Arc<Object>, Refusal> {
        let draft = self.prepare(by, write, now)?;
        self.commit(by, draft, now)
    }

    /// What is to be stored, after the mutating policies.
    pub fn prepare(&mut self, by: &Writer, write: Write, now: Timestamp) -> Result<Draft, Refusal> {
        let mut draft = prepare::draft(self, write, now)?;
        if draft.deletion.is_none() && draft.part == Part::Object {
            admission::mutate(self, by, &mut draft, now);
        }
        Ok(draft)
    }

    /// Whether somebody was faster since the draft was made.
    pub fn is_outdated(&self, draft: &Draft) -> bool {
        self.objects.get(&draft.key).map(|object| object.revision)
            != draft.before.as_ref().map(|object| object.revision)
    }

    /// Does what was prepared, if the validating policies let it.
    pub fn commit(&mut self, by: &Writer, draft: Draft, now: Timestamp) -> Result<Arc<Object>, Refusal> {
        if self.is_outdated(&draft) {
            return Err(Refusal::conflict(&draft.key));
        }
        self.check(by, &draft, now)?;
        if let (Some(propagation), Some(before)) = (draft.deletion, &draft.before) {
            return self.delete(by, before, propagation, now);
        }
        Ok(self.store(by, draft, now))
    }

    /// Whether a write would be let through.
    pub fn check(&self, by: &Writer, draft: &Draft, now: Timestamp) -> Result<(), Refusal> {
        admission::validate(self, by, draft, now)?;
        if draft.deletion.is_none() && draft.is_object() { rules::check(self, by, draft) } else { Ok(()) }
    }

    pub fn revision(&self) -> u64 {
        self.history.last().map_or(0, |change| change.revision)
    }

    /// The whole history is kept: a schedule is short.
    pub fn changes_after(&self, revision: u64) -> &[Change] {
        let place = usize::try_from(revision).unwrap_or(usize::MAX).min(self.history.len());
        &self.history[place..]
    }

    /// The same of one kind only.
    pub fn changes_of(&self, kind: Kind, after: u64) -> impl Iterator<Item = &Change> {
        let revisions = &self.by_kind[kind.index()];
        let place = revisions.partition_point(|revision| *revision <= after);
        let at = |revision: &u64| usize::try_from(*revision).ok()?.checked_sub(1).and_then(|at| self.history.get(at));
        revisions[place..].iter().filter_map(at)
    }

    /// Whether what happened right after this revision is forgotten.
    pub fn is_compacted(&self, revision: u64) -> bool {
        revision < self.compacted
    }

    /// Forgets what happened before this revision: watches from before get 410.
    pub fn compact(&mut self, revision: u64) {
        self.compacted = self.compacted.max(revision.min(self.revision()));
    }

    /// The pin table of a namespace, as policies see it.
    pub(crate) fn table(&self, namespace: &str, now: Timestamp) -> Option<Arc<Object>> {
        let key = Key::new(Kind::PinTable, namespace, names::PIN_TABLE);
        if self.policy_lag.is_zero() {
            return self.objects.get(&key).cloned();
        }
        let seen = now.checked_sub(self.policy_lag).unwrap_or(Timestamp::MIN);
        let mut newer = self.changes_of(Kind::PinTable, 0).filter(|change| change.key == key && change.at > seen);
        newer.next().map_or_else(|| self.objects.get(&key).cloned(), |change| change.before.clone())
    }

    /// The object that operators wrote most often without changing it, and how often that was.
    pub fn most_in_vain(&self) -> Option<(&Key, u32)> {
        self.vain.iter().max_by_key(|(_, times)| **times).map(|(key, times)| (key, *times))
    }

    fn count(&mut self) -> u64 {
        self.counted += 1;
        self.counted
    }

    /// Stores a new or changed object, unless it is what there is already.
    fn store(&mut self, by: &Writer, draft: Draft, now: Timestamp) -> Arc<Object> {
        let revision = self.revision() + 1;
        let is_object = draft.is_object();
        let Draft { key, before, object: mut value, .. } = draft;
        let Some(before) = before else {
            return self.put(by, Arc::new(Object::new(key, revision, value)), now);
        };
        let is_same = if is_object { before.value == value } else { before.value.get("status") == value.get("status") };
        if is_same {
            if matches!(by, Writer::Operator(_)) {
                *self.vain.entry(key).or_default() += 1;
            }
            return before;
        }
        let is_changed = is_object && prepare::is_changed(&before.value, &value);
        if is_changed {
            prepare::bump_generation(key.kind, &mut value);
        }
        let is_finished = is_object && delete::is_finished(key.kind, &value);
        let object = Arc::new(Object::new(key, revision, value));
        if is_finished { self.remove(by, object, now) } else { self.put(by, object, now) }
    }

    fn put(&mut self, by: &Writer, object: Arc<Object>, now: Timestamp) -> Arc<Object> {
        let before = self.objects.insert(object.key.clone(), Arc::clone(&object));
        self.reindex(&object.key, before.as_deref(), Some(&object));
        self.note(Change {
            revision: object.revision,
            key: object.key.clone(),
            before,
            after: Some(Arc::clone(&object)),
            by: by.clone(),
            at: now,
            last: None,
        });
        object
    }

    /// Takes an object away. `last` is what watches are told of it.
    fn remove(&mut self, by: &Writer, last: Arc<Object>, now: Timestamp) -> Arc<Object> {
        let before = self.objects.remove(&last.key);
        self.reindex(&last.key, before.as_deref(), None);
        self.note(Change {
            revision: last.revision,
            key: last.key.clone(),
            before,
            after: None,
            by: by.clone(),
            at: now,
            last: Some(Arc::clone(&last)),
        });
        last
    }

    fn note(&mut self, change: Change) {
        // Whoever writes without end is told apart from a schedule that is merely long.
        assert!(
            self.history.len() < MOST_CHANGES,
            "there were {MOST_CHANGES} changes, the last of {} by {:?}",
            change.key,
            change.by
        );
        self.by_kind[change.key.kind.index()].push(change.revision);
        self.history.push(change);
    }

    fn reindex(&mut self, key: &Key, before: Option<&Object>, after: Option<&Object>) {
        let owners = |object: Option<&Object>| -> Vec<String> {
            object.into_iter().flat_map(Object::owner_uids).map(str::to_owned).collect()
        };
        let is_same = |before: &Object, after: &Object| before.value.shares(&after.value, "metadata");
        if before.zip(after).is_some_and(|(before, after)| is_same(before, after)) {
            return;
        }
        let (old, new) = (owners(before), owners(after));
        if old == new {
            return;
        }
        for uid in old.iter().filter(|uid| !new.contains(uid)) {
            if let Some(keys) = self.owned.get_mut(uid) {
                keys.remove(key);
                if keys.is_empty() {
                    self.owned.remove(uid);
                }
            }
        }
        for uid in new.into_iter().filter(|uid| !old.contains(uid)) {
            self.owned.entry(uid).or_default().insert(key.clone());
        }
    }
}
