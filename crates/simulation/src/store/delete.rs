//! Deletions: at once, or in two steps where somebody has to do something first.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Draft, Fields, Object, Part, Propagation, Refusal, Store, Writer, stamp};
use crate::kinds::{Key, Kind};

/// What the garbage collector still has to do before an object goes.
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

pub fn draft(
    store: &Store,
    key: Key,
    uid: Option<&str>,
    revision: Option<u64>,
    propagation: Propagation,
) -> Result<Draft, Refusal> {
    let before = store.get(&key).cloned().ok_or_else(|| Refusal::not_found(&key))?;
    if let Some(uid) = uid.filter(|uid| *uid != before.uid()) {
        return Err(Refusal::other_uid(&key, uid, before.uid()));
    }
    if let Some(revision) = revision.filter(|revision| *revision != before.revision) {
        let why = format!(
            "Precondition failed: ResourceVersion in precondition: {revision}, ResourceVersion in object meta: {}",
            before.revision
        );
        return Err(Refusal::conflicting(&key, &why));
    }
    Ok(Draft {
        key,
        before: Some(before),
        object: Fields::default(),
        part: Part::Object,
        knows_object: true,
        deletion: Some(propagation),
    })
}

/// Whether nothing keeps an object any more that is to go.
pub fn is_finished(kind: Kind, value: &Fields) -> bool {
    let metadata = &value["metadata"];
    let has_finalizers = metadata["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
    let grace = metadata["deletionGracePeriodSeconds"].as_u64().unwrap_or_default();
    !metadata["deletionTimestamp"].is_null() && !has_finalizers && grace == 0 && kind != Kind::Namespace
}

impl Store {
    /// A pod that runs is stopped by its kubelet first, and a namespace is emptied by its controller. Both then delete it a second time,
    /// and it is only their second time that ends it.
    pub(super) fn delete(
        &mut self,
        by: &Writer,
        before: &Arc<Object>,
        propagation: Propagation,
        now: Timestamp,
    ) -> Result<Arc<Object>, Refusal> {
        let is_second = before.is_deleted() && *by == Writer::Controller;
        let key = &before.key;
        match key.kind {
            Kind::Namespace if is_second => {
                self.check_empty(key)?;
                Ok(self.end(by, before, now))
            }
            Kind::Namespace if before.is_deleted() => {
                Err(Refusal::conflicting(key, "The system is ensuring all content is removed from this namespace."))
            }
            Kind::Namespace => {
                let mut value = marked(&before.value, now, None);
                value["status"]["phase"] = json!("Terminating");
                Ok(self.change(by, before, value, now))
            }
            kind => {
                let grace = if kind == Kind::Pod && !is_second { grace_seconds(&before.value) } else { 0 };
                Ok(self.delete_graced(by, before, propagation, grace, now))
            }
        }
    }

    fn delete_graced(
        &mut self,
        by: &Writer,
        before: &Arc<Object>,
        propagation: Propagation,
        grace: u64,
        now: Timestamp,
    ) -> Arc<Object> {
        let known = before.value["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or_default();
        let mut value = if before.is_deleted() && known <= grace {
            before.value.clone()
        } else {
            marked(&before.value, now, (before.key.kind == Kind::Pod).then_some(grace))
        };
        set_finalizers(&mut value, propagation);
        if is_finished(before.key.kind, &value) {
            self.end(by, before, now)
        } else {
            self.change(by, before, value, now)
        }
    }

    fn check_empty(&self, namespace: &Key) -> Result<(), Refusal> {
        let inside = |kind: &Kind| kind.is_namespaced() && self.list(*kind, Some(&namespace.name)).next().is_some();
        match Kind::ALL.iter().find(|kind| inside(kind)) {
            Some(kind) => Err(Refusal::conflicting(namespace, &format!("there are still {}", kind.plural()))),
            None => Ok(()),
        }
    }

    /// Watches are told of it as it was, with the revision of its end.
    fn end(&mut self, by: &Writer, before: &Arc<Object>, now: Timestamp) -> Arc<Object> {
        let last = Object::new(before.key.clone(), self.revision() + 1, before.value.clone());
        self.remove(by, Arc::new(last), now)
    }

    fn change(&mut self, by: &Writer, before: &Arc<Object>, value: Fields, now: Timestamp) -> Arc<Object> {
        if before.value == value {
            return Arc::clone(before);
        }
        let object = Object::new(before.key.clone(), self.revision() + 1, value);
        self.put(by, Arc::new(object), now)
    }
}

/// To go is a wish, too: it counts as one.
fn marked(value: &Fields, now: Timestamp, grace: Option<u64>) -> Fields {
    let mut value = value.clone();
    let metadata = &mut value["metadata"];
    let later = SignedDuration::from_secs(i64::try_from(grace.unwrap_or_default()).unwrap_or_default());
    metadata["deletionTimestamp"] = json!(stamp(now.checked_add(later).unwrap_or(now)));
    metadata["deletionGracePeriodSeconds"] = json!(grace.unwrap_or_default());
    if let Some(generation) = metadata["generation"].as_u64() {
        metadata["generation"] = json!(generation + 1);
    }
    value
}

fn set_finalizers(value: &mut Fields, propagation: Propagation) {
    let finalizers = value["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let others = finalizers.into_iter().filter(|finalizer| finalizer != FOREGROUND && finalizer != ORPHAN);
    let ours = match propagation {
        Propagation::Background => None,
        Propagation::Foreground => Some(json!(FOREGROUND)),
        Propagation::Orphan => Some(json!(ORPHAN)),
    };
    let finalizers: Vec<Value> = others.chain(ours).collect();
    let finalizers = (!finalizers.is_empty()).then(|| json!(finalizers));
    if value["metadata"].get("finalizers") != finalizers.as_ref() {
        super::prepare::set(&mut value["metadata"], "finalizers", finalizers);
    }
}

/// What never ran, or has ended, needs nobody to stop it.
fn grace_seconds(pod: &Fields) -> u64 {
    let is_scheduled = pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    let has_ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if is_scheduled && !has_ended { pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(30) } else { 0 }
}
