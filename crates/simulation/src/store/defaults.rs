//! What the API server fills in where a writer said nothing.

use k8s_openapi::ByteString;
use serde_json::{Map, Value, json};

use super::Fields;
use super::prepare::remove;
use crate::kinds::{Key, Kind};

/// What the API server does not keep if there is nothing in it.
const OMITTED: [&str; 4] = ["labels", "annotations", "finalizers", "ownerReferences"];

/// The same for what is new and what is changed: what is there already stays. What was there before has been filled in.
pub fn fill(key: &Key, object: &mut Fields, before: Option<&Fields>) {
    let is_as_before = |object: &Fields, name: &str| before.is_some_and(|before| object.shares(before, name));
    if !is_as_before(object, "metadata") {
        drop_empty(&mut object["metadata"], &OMITTED);
    }
    match key.kind {
        Kind::Namespace => namespace(key, object),
        Kind::ConfigMap => drop_empty_fields(object, &["data", "binaryData"]),
        Kind::Secret => secret(object),
        _ if is_as_before(object, "spec") => {}
        Kind::Pod => pod(&mut object["spec"]),
        Kind::ControllerRevision => {}
        kind => workload(kind, object),
    }
}

fn workload(kind: Kind, object: &mut Fields) {
    if let Some(defaults) = spec(kind) {
        merge(&mut object["spec"], defaults);
    }
    let Some(path) = kind.template() else { return };
    let Some(template) = object.pointer_mut(&format!("/{}", path.join("/"))) else { return };
    if let Some(metadata) = template.get_mut("metadata").filter(|_| !kind.is_custom()) {
        drop_empty(metadata, &OMITTED);
    }
    if let Some(spec) = template.get_mut("spec").filter(|_| !kind.is_custom()) {
        pod(spec);
    }
}

fn drop_empty(object: &mut Value, names: &[&str]) {
    for name in names {
        if is_empty(&object[name]) {
            remove(object, name);
        }
    }
}

fn drop_empty_fields(object: &mut Fields, names: &[&str]) {
    for name in names {
        if is_empty(&object[*name]) {
            object.set(name, None);
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        value => value.is_null(),
    }
}

/// What only a new object gets, when it has its uid.
pub fn fill_new(key: &Key, object: &mut Fields) {
    match key.kind {
        Kind::Namespace => object["status"] = json!({"phase": "Active"}),
        Kind::Pod => object["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"}),
        Kind::Job => job(key, object),
        _ => {}
    }
}

fn namespace(key: &Key, object: &mut Fields) {
    merge(&mut object["metadata"], json!({"labels": {"kubernetes.io/metadata.name": key.name}}));
    merge(&mut object["spec"], json!({"finalizers": ["kubernetes"]}));
}

fn secret(object: &mut Fields) {
    if object["type"].is_null() {
        object["type"] = json!("Opaque");
    }
    let texts = object.remove("stringData");
    for (name, text) in texts.as_ref().and_then(Value::as_object).into_iter().flatten() {
        object["data"][name] = json!(ByteString(text.as_str().unwrap_or_default().as_bytes().to_vec()));
    }
    drop_empty_fields(object, &["data"]);
}

fn pod(spec: &mut Value) {
    merge(spec, json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 30}));
}

fn spec(kind: Kind) -> Option<Value> {
    let defaults = match kind {
        Kind::Deployment => json!({
            "replicas": 1,
            "revisionHistoryLimit": 10,
            "progressDeadlineSeconds": 600,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
        }),
        Kind::StatefulSet => json!({
            "replicas": 1,
            "revisionHistoryLimit": 10,
            "podManagementPolicy": "OrderedReady",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        }),
        Kind::DaemonSet => json!({
            "revisionHistoryLimit": 10,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        }),
        Kind::ReplicaSet | Kind::ReplicationController => json!({"replicas": 1}),
        Kind::Job => json!({"parallelism": 1, "completions": 1, "backoffLimit": 6, "suspend": false}),
        Kind::CronJob => json!({
            "concurrencyPolicy": "Allow",
            "suspend": false,
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 1,
        }),
        _ => return None,
    };
    Some(defaults)
}

/// A Job's pods are told apart by labels that the API server makes up.
fn job(key: &Key, object: &mut Fields) {
    let uid = object["metadata"]["uid"].clone();
    if object["spec"]["manualSelector"] == true {
        return;
    }
    let labels = json!({
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": key.name,
        "controller-uid": uid,
        "job-name": key.name,
    });
    merge(&mut object["spec"]["template"], json!({"metadata": {"labels": labels}}));
    merge(&mut object["spec"], json!({"selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}}));
}

/// Adds what is not there. A strategy of another type gets none of the fields of this one.
fn merge(object: &mut Value, defaults: Value) {
    let Value::Object(defaults) = defaults else { return };
    if object.is_null() {
        *object = Value::Object(Map::new());
    }
    let Some(fields) = object.as_object_mut() else { return };
    let types = (fields.get("type"), defaults.get("type"));
    if let (Some(given), Some(default)) = types
        && given != default
    {
        return;
    }
    for (name, default) in defaults {
        match fields.get_mut(&name) {
            None | Some(Value::Null) => drop(fields.insert(name, default)),
            Some(given) if given.is_object() => merge(given, default),
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_writer_says_stays() {
        let key = Key::new(Kind::Deployment, "a", "b");
        let mut object = Fields::from(json!({"spec": {
            "replicas": 3,
            "strategy": {"rollingUpdate": {"maxSurge": 1}},
            "template": {"spec": {"terminationGracePeriodSeconds": 1}},
        }}));
        fill(&key, &mut object, None);
        let filled = object.clone();
        assert_eq!(filled["spec"]["replicas"], 3);
        assert_eq!(filled["spec"]["strategy"]["rollingUpdate"], json!({"maxSurge": 1, "maxUnavailable": "25%"}));
        assert_eq!(filled["spec"]["template"]["spec"]["terminationGracePeriodSeconds"], 1);
        fill(&key, &mut object, None);
        assert_eq!(object, filled, "once is enough");
        let mut object = Fields::from(json!({"spec": {"strategy": {"type": "Recreate"}}}));
        fill(&key, &mut object, None);
        assert_eq!(object["spec"]["strategy"], json!({"type": "Recreate"}));
    }

    #[test]
    fn text_of_a_secret_becomes_data() {
        let mut object = json!({"metadata": {"labels": {}}, "stringData": {"a": "hi"}, "data": {"b": "eA=="}}).into();
        fill(&Key::new(Kind::Secret, "a", "b"), &mut object, None);
        assert_eq!(object.to_value(), json!({"metadata": {}, "type": "Opaque", "data": {"a": "aGk=", "b": "eA=="}}));
    }
}
