//! One turn of a controller: what it sees, what it can do, and when it wants to look again.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::read::{self, is_controlled_by, is_going, is_selected};
use crate::kinds::{Key, Kind};
use crate::store::{Object, Part, Patch, Propagation, Refusal, Store, Write, Writer};

pub(super) struct Turn<'a> {
    pub(super) store: &'a mut Store,
    pub(super) now: Timestamp,
    /// Pods, ReplicaSets and ControllerRevisions that nobody looks after.
    pub(super) orphans: &'a BTreeSet<Key>,
    pub(super) nodes: usize,
    pub(super) again: Option<Timestamp>,
}

impl Turn<'_> {
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.store.get(key).cloned()
    }

    /// Asks for another turn, unless there is an earlier one.
    pub(super) fn again_at(&mut self, at: Timestamp) {
        self.again = Some(self.again.map_or(at, |known| known.min(at)));
    }

    fn write(&mut self, write: Write) -> Result<Arc<Object>, Refusal> {
        self.store.write(&Writer::Controller, write, self.now)
    }

    pub(super) fn create(&mut self, object: Value) -> Result<Arc<Object>, Refusal> {
        self.write(Write::Create { object })
    }

    /// Changes anything but the status.
    pub(super) fn patch(&mut self, key: &Key, patch: Value) -> Result<Arc<Object>, Refusal> {
        self.write(Write::Patch { key: key.clone(), patch: Patch::Merge(patch), part: Part::Object })
    }

    /// Writes the whole status, if it is another one.
    pub(super) fn set_status(&mut self, object: &Object, mut status: Value) -> Result<(), Refusal> {
        let old = &object.value["status"];
        if old == &status {
            return Ok(());
        }
        // In a merge, what is not named stays.
        if let (Some(old), Some(status)) = (old.as_object(), status.as_object_mut()) {
            for name in old.keys() {
                status.entry(name).or_insert(Value::Null);
            }
        }
        let patch = Patch::Merge(json!({"status": status}));
        self.write(Write::Patch { key: object.key.clone(), patch, part: Part::Status })?;
        Ok(())
    }

    /// Asks an object to go. One that goes already is left alone: a second time would end a pod that its kubelet has not stopped yet.
    pub(super) fn delete(&mut self, object: &Object, propagation: Propagation) -> Result<(), Refusal> {
        if self.store.get(&object.key).is_none_or(|found| is_going(found)) {
            return Ok(());
        }
        self.end_with(object, propagation)
    }

    /// Ends what has been stopped or emptied.
    pub(super) fn end(&mut self, object: &Object) -> Result<(), Refusal> {
        self.end_with(object, Propagation::Background)
    }

    fn end_with(&mut self, object: &Object, propagation: Propagation) -> Result<(), Refusal> {
        let uid = Some(object.uid().to_owned());
        let deleted = self.write(Write::Delete { key: object.key.clone(), uid, revision: None, propagation });
        deleted.map(drop).or_else(ignore_missing)
    }

    /// Pods and the like that an object looks after, by name. Those that nobody looks after any more and that its selector asks for are taken in.
    pub(super) fn claim(&mut self, owner: &Object, kind: Kind) -> Result<Vec<Arc<Object>>, Refusal> {
        let uid = owner.uid();
        let is_ours = |object: &&Arc<Object>| object.key.kind == kind && is_controlled_by(object, uid);
        let mut claimed: Vec<Arc<Object>> = self.store.owned_by(uid).filter(is_ours).cloned().collect();
        let orphans = self.adoptable(owner, kind);
        if orphans.is_empty() {
            return Ok(claimed);
        }
        for orphan in orphans {
            let mut owners: Vec<Value> = orphan.owners().cloned().collect();
            owners.push(controller_reference(owner));
            claimed.push(self.patch(&orphan.key, json!({"metadata": {"ownerReferences": owners}}))?);
        }
        claimed.sort_by(|one, other| one.key.name.cmp(&other.key.name));
        Ok(claimed)
    }

    fn adoptable(&self, owner: &Object, kind: Kind) -> Vec<Arc<Object>> {
        if is_going(owner) || self.orphans.is_empty() {
            return Vec::new();
        }
        let is_near = |key: &&Key| key.kind == kind && key.namespace == owner.key.namespace;
        let found = self.orphans.iter().filter(is_near).filter_map(|key| self.store.get(key));
        let selector = &owner.value["spec"]["selector"];
        found.filter(|orphan| !is_going(orphan) && is_selected(orphan, selector)).cloned().collect()
    }
}

/// What is gone already needs no deleting.
pub(super) fn ignore_missing(refusal: Refusal) -> Result<(), Refusal> {
    if refusal.code == 404 { Ok(()) } else { Err(refusal) }
}

pub(super) fn controller_reference(owner: &Object) -> Value {
    json!({
        "apiVersion": owner.key.kind.api_version(), "kind": owner.key.kind.kind(), "name": owner.key.name,
        "uid": owner.uid(), "controller": true, "blockOwnerDeletion": true,
    })
}

/// A pod as a template asks for it, with a name of the API server's making.
pub(super) fn pod_from(template: &Value, owner: &Object) -> Value {
    let meta = &template["metadata"];
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "generateName": format!("{}-", owner.key.name), "namespace": owner.key.namespace,
            "labels": meta.get("labels").cloned().unwrap_or_else(|| json!({})),
            "ownerReferences": [controller_reference(owner)],
        },
        "spec": template["spec"],
        "status": {"phase": "Pending"},
    });
    for name in ["annotations", "finalizers"] {
        if let Some(found) = meta.get(name) {
            pod["metadata"][name] = found.clone();
        }
    }
    pod
}

/// The short name of a template, in letters that spell no words. Kubernetes' own differs in its digits, not in its manners.
pub(super) fn hash(template: &Value, collisions: u32) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let text = template.to_string();
    let mut hash = text.bytes().chain(collisions.to_le_bytes()).fold(0x811c_9dc5, step);
    let mut word = String::new();
    while hash > 0 {
        let letter = usize::try_from(hash % 27).unwrap_or_default();
        word.push(char::from(LETTERS[letter]));
        hash /= 27;
    }
    word
}

/// Sets a condition that says "it goes on": every sign of progress has its own time, also where the reason stays the same.
pub(super) fn touch_condition(status: &mut Value, of: &str, reason: &str, message: &str, now: Timestamp) {
    let turned = read::condition(status, of)
        .filter(|found| found["status"] == "True")
        .map(|found| found["lastTransitionTime"].clone());
    remove_condition(status, of);
    set_condition(status, of, "True", reason, message, now);
    let last = status["conditions"].as_array_mut().and_then(|conditions| conditions.last_mut());
    if let (Some(turned), Some(last)) = (turned, last) {
        last["lastTransitionTime"] = turned;
    }
}

/// Sets a condition of a workload. One that says the same stays as it was, times and all.
pub(super) fn set_condition(status: &mut Value, of: &str, is: &str, reason: &str, message: &str, now: Timestamp) {
    let old = read::condition(status, of);
    if old.is_some_and(|old| old["status"] == is && old["reason"] == reason) {
        return;
    }
    let now = Value::String(read::written(now));
    let turned = old.filter(|old| old["status"] == is).map_or(&now, |old| &old["lastTransitionTime"]).clone();
    let condition = json!({
        "type": of, "status": is, "reason": reason, "message": message,
        "lastUpdateTime": now, "lastTransitionTime": turned,
    });
    remove_condition(status, of);
    match status.get_mut("conditions").and_then(Value::as_array_mut) {
        Some(conditions) => conditions.push(condition),
        None => status["conditions"] = json!([condition]),
    }
}

pub(super) fn remove_condition(status: &mut Value, of: &str) {
    if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        conditions.retain(|condition| condition["type"] != of);
    }
}

/// The fields of a status: as in Kubernetes, a zero is not written.
pub(super) fn counts<const N: usize>(fields: [(&str, u32); N]) -> Value {
    let written = fields.into_iter().filter(|(_, count)| *count > 0);
    Value::Object(written.map(|(name, count)| (name.to_owned(), json!(count))).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_tells_templates_apart_and_collisions_too() {
        let template = |pins: &str| json!({"metadata": {"annotations": {"lockstep.dev/pins": pins}}});
        assert_eq!(hash(&template("a"), 0), hash(&template("a"), 0));
        assert_ne!(hash(&template("a"), 0), hash(&template("b"), 0));
        assert_ne!(hash(&template("a"), 0), hash(&template("a"), 1));
    }

    #[test]
    fn a_condition_keeps_its_time_while_its_status_stays() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut status = json!({});
        set_condition(&mut status, "Progressing", "True", "One", "", at(1));
        set_condition(&mut status, "Progressing", "True", "One", "", at(2));
        assert_eq!(read::condition(&status, "Progressing").unwrap()["lastUpdateTime"], "1970-01-01T00:00:01Z");
        set_condition(&mut status, "Progressing", "True", "Other", "", at(3));
        let found = read::condition(&status, "Progressing").unwrap();
        assert_eq!(found["lastUpdateTime"], "1970-01-01T00:00:03Z");
        assert_eq!(found["lastTransitionTime"], "1970-01-01T00:00:01Z");
    }
}
