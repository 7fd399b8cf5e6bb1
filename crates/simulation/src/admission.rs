//! What the API server changes and refuses by the chart's policies.
//!
//! Pods and workloads go through the very functions that the webhook uses, which a test on a real cluster compares with the policies. The
//! other policies are few, and told again here.

mod versions;

use jiff::Timestamp;
use lockstep_core::{Table, names};
use lockstep_operator::admission::review::{Operation, Request, Resource, Rules, UserInfo};
use lockstep_operator::kinds::built_in;
use serde_json::{Value, json};

use crate::kinds::{Key, Kind};
use crate::store::{Draft, Fields, Refusal, Store, Writer};

/// The namespace that the operator runs in.
pub const OWN_NAMESPACE: &str = "lockstep-system";
/// Who the operator is to the API server.
pub const OPERATOR: &str = "system:serviceaccount:lockstep-system:lockstep";
/// A user with the right to restore `versionedconfigs.lockstep.dev`, as whoever restores a backup has it.
pub const RESTORER: &str = "restorer";

/// The policies of an installation.
pub struct Policies {
    rules: Rules,
}

impl Default for Policies {
    fn default() -> Self {
        Self { rules: Rules { kinds: built_in(), operator: OPERATOR.to_owned() } }
    }
}

impl std::fmt::Debug for Policies {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Policies")
    }
}

/// What the mutating policies make of a write.
pub fn mutate(store: &Store, by: &Writer, draft: &mut Draft, now: Timestamp) {
    match draft.key.kind {
        Kind::ConfigMap | Kind::Secret => stamp(store, by, draft, now),
        Kind::Pod if draft.before.is_none() => pin(store, by, draft, now),
        Kind::Pod | Kind::ControllerRevision => {}
        kind if kind.template().is_some() => pin(store, by, draft, now),
        _ => {}
    }
}

/// What the validating policies say of a write.
pub fn validate(store: &Store, by: &Writer, draft: &Draft, now: Timestamp) -> Result<(), Refusal> {
    let Key { kind, .. } = draft.key;
    let is_config = matches!(kind, Kind::ConfigMap | Kind::Secret);
    if let (Some(_), Some(before)) = (draft.deletion, &draft.before) {
        return if is_config { versions::check_deletion(store, by, before, now) } else { Ok(()) };
    }
    if !draft.is_object() {
        return Ok(());
    }
    if is_config {
        check_number(draft, names::RETAIN, false)?;
        return versions::check_write(store, by, draft, now);
    }
    if kind.template().is_some() && kind != Kind::ControllerRevision {
        check_number(draft, names::WAVE, true)
    } else {
        Ok(())
    }
}

/// A number that is none would count as if it were not there: better said at the write than never.
fn check_number(draft: &Draft, name: &str, may_be_negative: bool) -> Result<(), Refusal> {
    let Some(text) = annotation(&draft.object, name) else { return Ok(()) };
    let is_changed = draft.before.as_ref().is_none_or(|before| before.annotation(name).unwrap_or_default() != text);
    let digits = text.strip_prefix('-').filter(|_| may_be_negative).unwrap_or(text);
    let is_number = (1..=9).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_changed && !is_number {
        return Err(refuse(&draft.key, &format!("the annotation {name} is \"{text}\", and should be a number")));
    }
    Ok(())
}

/// Pins a workload, or gives a pod the versions that it is pinned to.
fn pin(store: &Store, by: &Writer, draft: &mut Draft, now: Timestamp) {
    if draft.key.kind != Kind::Pod && by.username() == OPERATOR {
        return;
    }
    let table = store.table(&draft.key.namespace, now);
    let old = draft.before.as_ref().map(|before| template_of(draft.key.kind, &before.value)).unwrap_or_default();
    let mut object = template_of(draft.key.kind, &draft.object);
    object["metadata"] = draft.object["metadata"].clone();
    if !draft.knows_object {
        object["metadata"]["uid"] = Value::Null;
    }
    let request = request(by, &draft.key, object, old);
    let changes = store.policies.rules.changes(&request, table.as_ref().and_then(|table| table.table()));
    apply(&mut draft.object, changes);
}

/// Besides the metadata, the rules look at the template only, which is all that a pod is: the rest need not be copied.
fn template_of(kind: Kind, object: &Fields) -> Value {
    let path = kind.template().unwrap_or(&["spec"]);
    let wrap = |value: Value, step: &&str| Value::Object([((*step).to_owned(), value)].into_iter().collect());
    path.iter().rev().fold(object.at(path).clone(), wrap)
}

fn request(by: &Writer, key: &Key, object: Value, old_object: Value) -> Request {
    Request {
        uid: String::new(),
        resource: Resource {
            group: key.kind.group().to_owned(),
            version: key.kind.version().to_owned(),
            plural: key.kind.plural().to_owned(),
        },
        sub_resource: String::new(),
        name: key.name.clone(),
        namespace: key.namespace.clone(),
        user_info: UserInfo { username: by.username().to_owned() },
        dry_run: None,
        object,
        old_object,
    }
}

/// A patch that does not fit changes nothing: it was made for this very object.
fn apply(object: &mut Fields, changes: Vec<Operation>) {
    for change in changes {
        let (path, value) = match change {
            Operation::Add { path, value } | Operation::Replace { path, value } => (path, Some(value)),
            Operation::Remove { path } => (path, None),
        };
        let Some((parent, last)) = path.rsplit_once('/') else { continue };
        let last = last.replace("~1", "/").replace("~0", "~");
        match (object.pointer_mut(parent), value) {
            (Some(Value::Object(fields)), Some(value)) => drop(fields.insert(last, value)),
            (Some(Value::Object(fields)), None) => drop(fields.remove(&last)),
            _ => {}
        }
    }
}

/// Who changed a config: the API server knows best, and stamps it on every change of content.
fn stamp(store: &Store, by: &Writer, draft: &mut Draft, now: Timestamp) {
    let is_version = label(&draft.object, names::VERSION_OF).is_some();
    if is_version || !is_content_changed(draft) || !is_versioned(store, draft, now) {
        return;
    }
    draft.object["metadata"]["annotations"][names::CHANGED_BY] = json!(by.username());
}

/// Whether a config opted in itself, or is in the table because others did that for it.
fn is_versioned(store: &Store, draft: &Draft, now: Timestamp) -> bool {
    let is_in = |table: &Table| {
        let config = draft.key.config()?;
        table.get(&config)?.current.as_ref().map(drop)
    };
    label(&draft.object, names::VERSIONED) == Some(names::ON)
        || store.table(&draft.key.namespace, now).and_then(|table| table.table().and_then(is_in)).is_some()
}

/// Whether the config webhook is asked about this write.
pub fn is_for_config_webhook(by: &Writer, draft: &Draft) -> bool {
    let is_config = matches!(draft.key.kind, Kind::ConfigMap | Kind::Secret);
    let is_elsewhere = ![OWN_NAMESPACE, "kube-system"].contains(&draft.key.namespace.as_str());
    if !is_config || !is_elsewhere || draft.deletion.is_some() || !draft.is_object() {
        return false;
    }
    // A selector of objects holds if it does for the old or the new one.
    let was_version = draft.before.as_ref().map(|before| before.label(names::VERSION_OF).is_some());
    let is_version = label(&draft.object, names::VERSION_OF).is_some() && was_version != Some(false);
    let is_versioned = label(&draft.object, names::VERSIONED) == Some(names::ON)
        || annotation(&draft.object, names::CHANGED_BY) == Some(by.username());
    !is_version && is_versioned && is_content_changed(draft)
}

/// What the API server asks a webhook.
pub fn review(by: &Writer, draft: &Draft, is_dry_run: bool) -> Value {
    let Key { kind, namespace, name } = &draft.key;
    let resource = json!({"group": kind.group(), "version": kind.version(), "resource": kind.plural()});
    let mut object = draft.object.to_value();
    if let Some(before) = &draft.before {
        object["metadata"]["resourceVersion"] = json!(before.revision.to_string());
    }
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            // Whoever answers says which question it answers; ours is the only one.
            "uid": "00000000-0000-4000-8000-000000000000",
            "kind": {"group": kind.group(), "version": kind.version(), "kind": kind.kind()},
            "resource": resource,
            "requestKind": {"group": kind.group(), "version": kind.version(), "kind": kind.kind()},
            "requestResource": resource,
            "name": name,
            "namespace": namespace,
            "operation": if draft.before.is_some() { "UPDATE" } else { "CREATE" },
            "userInfo": {"username": by.username()},
            "object": object,
            "oldObject": draft.before.as_ref().map(|before| before.to_value()),
            "dryRun": is_dry_run,
        },
    })
}

fn is_content_changed(draft: &Draft) -> bool {
    let is_changed =
        |before: &Fields| ["data", "binaryData"].iter().any(|field| before.get(field) != draft.object.get(field));
    draft.before.as_ref().is_none_or(|before| is_changed(&before.value))
}

fn label<'a>(object: &'a Fields, name: &str) -> Option<&'a str> {
    object["metadata"]["labels"][name].as_str()
}

fn annotation<'a>(object: &'a Fields, name: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][name].as_str()
}

/// As a validating policy refuses.
fn refuse(key: &Key, why: &str) -> Refusal {
    Refusal::forbidden(
        key,
        &format!("ValidatingAdmissionPolicy denied request: {} {}: {why}", key.kind.kind(), key.name),
    )
}
