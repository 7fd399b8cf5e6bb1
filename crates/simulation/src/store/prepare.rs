//! What an object would be after a write: names, metadata, which part is written, and what the write is based on.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{Draft, Fields, Object, Part, Patch, Refusal, Store, Write, defaults, delete, stamp};
use crate::kinds::{Key, Kind};

/// What the API server alone says of an object, whatever is written.
const OWN_METADATA: [&str; 7] = [
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "resourceVersion",
    "generateName",
];
/// Without vowels, so that no words come out.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

pub fn draft(store: &mut Store, write: Write, now: Timestamp) -> Result<Draft, Refusal> {
    match write {
        Write::Create { object } => create(store, object, now),
        Write::Replace { key, object, part } => replace(store, key, object, part),
        Write::Patch { key, patch, part } => patched(store, key, patch, part, now),
        Write::Delete { key, uid, revision, propagation } => {
            delete::draft(store, key, uid.as_deref(), revision, propagation)
        }
    }
}

fn create(store: &mut Store, object: Value, now: Timestamp) -> Result<Draft, Refusal> {
    let mut object = Fields::from(object);
    let key = key_of(store, &mut object)?;
    if store.get(&key).is_some() {
        return Err(Refusal::exists(&key));
    }
    check_namespace(store, &key)?;
    let number = store.count();
    let metadata = &mut object["metadata"];
    for own in OWN_METADATA.iter().filter(|own| **own != "generateName") {
        remove(metadata, own);
    }
    metadata["uid"] = json!(format!("00000000-0000-4000-8000-{number:012x}"));
    metadata["creationTimestamp"] = json!(stamp(now));
    if key.kind.has_generation() {
        metadata["generation"] = json!(1);
    }
    if key.kind.has_status() {
        object.set("status", None);
    }
    defaults::fill(&key, &mut object, None);
    defaults::fill_new(&key, &mut object);
    Ok(Draft { key, before: None, object, part: Part::Object, knows_object: true, deletion: None })
}

/// The key of a new object, which may be given a name.
fn key_of(store: &mut Store, object: &mut Fields) -> Result<Key, Refusal> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let known = Kind::of(&api_version, &kind);
    let kind = known.ok_or_else(|| Refusal::new(404, "NotFound", format!("no kind {api_version} {kind}")))?;
    let metadata = &object["metadata"];
    let (mut name, prefix) = (text(&metadata["name"]), text(&metadata["generateName"]));
    let namespace = if kind.is_namespaced() { text(&metadata["namespace"]) } else { String::new() };
    if name.is_empty() && !prefix.is_empty() {
        name = format!("{prefix}{}", suffix(store.count()));
        object["metadata"]["name"] = json!(name);
    }
    let key = Key { kind, namespace, name };
    if !is_name(&key.name) {
        return Err(Refusal::invalid(&key, "metadata.name: a lowercase RFC 1123 subdomain is required"));
    }
    if kind.is_namespaced() && key.namespace.is_empty() {
        return Err(Refusal::bad_request("an empty namespace may not be set during creation"));
    }
    Ok(key)
}

fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let inner = |byte: u8| is_allowed(byte) || byte == b'-' || byte == b'.';
    let ends = [name.bytes().next(), name.bytes().next_back()];
    name.len() <= 253 && name.bytes().all(inner) && ends.into_iter().all(|end| end.is_some_and(is_allowed))
}

/// Five letters that no other name of this store has.
fn suffix(number: u64) -> String {
    // A walk through all combinations, in steps that have no factor in common with their number.
    let space = 27u64.pow(5);
    let mut rest = number.wrapping_mul(8_654_321) % space;
    let mut letter = || {
        let place = usize::try_from(rest % 27).unwrap_or_default();
        rest /= 27;
        char::from(LETTERS[place])
    };
    (0..5).map(|_| letter()).collect()
}

fn check_namespace(store: &Store, key: &Key) -> Result<(), Refusal> {
    if !key.kind.is_namespaced() {
        return Ok(());
    }
    let namespace = Key::new(Kind::Namespace, "", &key.namespace);
    match store.get(&namespace) {
        None => Err(Refusal::not_found(&namespace)),
        Some(found) if found.is_deleted() => {
            let why =
                format!("unable to create new content in namespace {} because it is being terminated", key.namespace);
            Err(Refusal::forbidden(key, &why))
        }
        Some(_) => Ok(()),
    }
}

fn replace(store: &Store, key: Key, object: Value, part: Part) -> Result<Draft, Refusal> {
    let before = existing(store, &key)?;
    let named = |field: &str| object["metadata"][field].as_str().filter(|text| !text.is_empty());
    if let Some(uid) = named("uid").filter(|uid| *uid != before.uid()) {
        return Err(Refusal::other_uid(&key, uid, before.uid()));
    }
    if let Some(name) = named("name").filter(|name| *name != key.name) {
        return Err(Refusal::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL"
        )));
    }
    if named("resourceVersion").is_none() && (key.kind.is_custom() || key.kind == Kind::Lease) {
        return Err(Refusal::invalid(&key, "metadata.resourceVersion: must be specified for an update"));
    }
    update(key, before, object.into(), part)
}

fn patched(store: &mut Store, key: Key, patch: Patch, part: Part, now: Timestamp) -> Result<Draft, Refusal> {
    if let Patch::Apply { object, .. } = &patch
        && part == Part::Object
        && store.get(&key).is_none()
    {
        let mut object = object.clone();
        object["metadata"]["name"] = json!(key.name);
        object["metadata"]["namespace"] = json!(key.namespace);
        return create(store, object, now);
    }
    let before = existing(store, &key)?;
    let mut object = before.value.clone();
    match patch {
        Patch::Merge(mut patch) if part == Part::Status => {
            // Nothing else of it counts, but what it is based on.
            check_base(&key, &before, &patch["metadata"])?;
            let status = patch.as_object_mut().and_then(|patch| patch.remove("status"));
            merge(&mut object, status.map(|status| ("status".to_owned(), status)));
            return Ok(Draft { key, before: Some(before), object, part, knows_object: true, deletion: None });
        }
        Patch::Merge(Value::Object(patch)) | Patch::Apply { object: Value::Object(patch), .. } => {
            merge(&mut object, patch);
        }
        Patch::Merge(_) | Patch::Apply { .. } => return Err(no_object()),
        Patch::Json(patch) => {
            let mut whole = before.to_value();
            json_patch::patch(&mut whole, &patch)
                .map_err(|error| Refusal::new(422, "Invalid", format!("the patch cannot be applied: {error}")))?;
            object = whole.into();
        }
    }
    update(key, before, object, part)
}

/// As RFC 7386 says.
fn merge(object: &mut Fields, patch: impl IntoIterator<Item = (String, Value)>) {
    for (name, value) in patch {
        let merged = (!value.is_null()).then(|| merged(object.get(&name), value));
        object.set(&name, merged);
    }
}

/// Copies only what a patch does not name: most writes are patches, and most of them name all of a field.
fn merged(old: Option<&Value>, patch: Value) -> Value {
    let Value::Object(patch) = patch else { return patch };
    let old = old.and_then(Value::as_object);
    let kept = old.into_iter().flatten().filter(|(name, _)| !patch.contains_key(*name));
    let mut fields: Map<String, Value> = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    for (name, value) in patch.into_iter().filter(|(_, value)| !value.is_null()) {
        let value = merged(old.and_then(|old| old.get(&name)), value);
        fields.insert(name, value);
    }
    Value::Object(fields)
}

fn no_object() -> Refusal {
    Refusal::bad_request("an object has metadata")
}

fn existing(store: &Store, key: &Key) -> Result<Arc<Object>, Refusal> {
    store.get(key).cloned().ok_or_else(|| Refusal::not_found(key))
}

fn update(key: Key, before: Arc<Object>, mut object: Fields, part: Part) -> Result<Draft, Refusal> {
    if !object["metadata"].is_object() {
        return Err(no_object());
    }
    check_base(&key, &before, &object["metadata"])?;
    let knows_object = object["metadata"]["uid"].is_string();
    match part {
        Part::Status => {
            let status = object.remove("status");
            object = before.value.clone();
            object.set("status", status);
        }
        Part::Object => {
            if key.kind.has_status() {
                object.take_from(&before.value, "status");
            }
            keep_metadata(&before.value, &mut object);
            object.take_from(&before.value, "apiVersion");
            object.take_from(&before.value, "kind");
            defaults::fill(&key, &mut object, Some(&before.value));
        }
    }
    object.share(&before.value);
    Ok(Draft { key, before: Some(before), object, part, knows_object, deletion: None })
}

/// Whether the object is the one that a write is based on, if it says so.
fn check_base(key: &Key, before: &Object, metadata: &Value) -> Result<(), Refusal> {
    let version = metadata["resourceVersion"].as_str().filter(|version| !version.is_empty());
    if version.is_some_and(|version| version.parse() != Ok(before.revision)) {
        return Err(Refusal::conflict(key));
    }
    match metadata["uid"].as_str().filter(|uid| !uid.is_empty() && *uid != before.uid()) {
        Some(uid) => Err(Refusal::invalid(key, &format!("metadata.uid: Invalid value: \"{uid}\": field is immutable"))),
        None => Ok(()),
    }
}

fn keep_metadata(old: &Fields, new: &mut Fields) {
    if new.shares(old, "metadata") {
        return;
    }
    let (old, new) = (&old["metadata"], &mut new["metadata"]);
    for own in OWN_METADATA.into_iter().chain(["name", "namespace"]) {
        set(new, own, old.get(own).cloned());
    }
}

/// Counts a change of what is wanted.
pub fn bump_generation(kind: Kind, after: &mut Fields) {
    if kind.has_generation() {
        let generation = after["metadata"]["generation"].as_u64().unwrap_or_default();
        after["metadata"]["generation"] = json!(generation + 1);
    }
}

/// Whether anything but metadata and status differs.
pub fn is_changed(before: &Fields, after: &Fields) -> bool {
    after.differ_beyond(before, &["metadata", "status"])
}

pub fn remove(object: &mut Value, name: &str) {
    if let Some(object) = object.as_object_mut() {
        object.remove(name);
    }
}

/// Sets a field, or takes it away.
pub fn set(object: &mut Value, name: &str, value: Option<Value>) {
    match value {
        Some(value) => object[name] = value,
        None => remove(object, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_merged_as_others_do() {
        let target = json!({"a": {"b": 1, "c": 2}, "d": [1], "e": "x"});
        for patch in [
            json!({"a": {"b": null, "f": {"g": null, "h": 1}}, "d": [2], "e": {"i": null}}),
            json!({"new": {"deep": {"x": null}}, "a": "text"}),
            json!({}),
            json!(["whole"]),
        ] {
            let (ours, mut theirs) = (merged(Some(&target), patch.clone()), target.clone());
            json_patch::merge(&mut theirs, &patch);
            assert_eq!(ours, theirs, "{patch}");
        }
    }
}
