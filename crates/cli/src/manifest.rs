//! The file that a person applies.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use lockstep_core::{ConfigKind, ConfigRef};
use serde_json::Value;

/// The objects of a file, or of the standard input for `-`.
pub(crate) fn read(path: &Path) -> Result<Vec<Value>> {
    let name = path.display();
    let mut text = String::new();
    if path.as_os_str() == "-" {
        std::io::stdin().read_to_string(&mut text).context("the standard input cannot be read")?;
    } else {
        text = std::fs::read_to_string(path).with_context(|| format!("{name} cannot be read"))?;
    }
    parse(&text).with_context(|| format!("{name} is not a manifest of Kubernetes"))
}

fn parse(text: &str) -> Result<Vec<Value>> {
    // As kubectl reads it; an error shows no part of the text, which may be secret.
    let options = serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options)?;
    let mut objects = Vec::new();
    for document in documents {
        match document {
            Value::Null => {}
            Value::Object(mut list) if list.get("kind").is_some_and(|kind| kind == "List") => {
                match list.remove("items") {
                    Some(Value::Array(items)) => objects.extend(items),
                    _ => bail!("a List without items"),
                }
            }
            object => objects.push(object),
        }
    }
    for object in &objects {
        let has = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).is_some();
        let is_whole = has("/apiVersion") && has("/kind") && has("/metadata/name");
        ensure!(is_whole, "an object without apiVersion, kind or metadata.name");
    }
    ensure!(!objects.is_empty(), "it has no objects");
    Ok(objects)
}

/// Puts objects into the order in which they are written: what others live in, then configs, and workloads last, so that a workload and
/// its config make one rollout, whatever the file says first.
pub(crate) fn order(objects: &mut [Value]) {
    objects.sort_by_key(|object| {
        if is_kind(object, &["Namespace", "CustomResourceDefinition"]) {
            0
        } else if has_template(object) {
            3
        } else if config(object).is_some() {
            2
        } else {
            1
        }
    });
}

/// Whether an object needs another one of the same file to be there first: its namespace, or the definition of its kind. Such a one
/// cannot be checked before that is written.
pub(crate) fn depends_on(object: &Value, all: &[Value]) -> bool {
    let group = object["apiVersion"].as_str().and_then(|version| Some(version.split_once('/')?.0));
    let namespace = object["metadata"]["namespace"].as_str();
    all.iter().any(|other| {
        let is_its_namespace = is_kind(other, &["Namespace"]) && other["metadata"]["name"].as_str() == namespace;
        let is_its_definition = is_kind(other, &["CustomResourceDefinition"])
            && other["spec"]["group"].as_str() == group
            && other["spec"]["names"]["kind"] == object["kind"];
        (namespace.is_some() && is_its_namespace) || is_its_definition
    })
}

fn is_kind(object: &Value, kinds: &[&str]) -> bool {
    kinds.iter().any(|kind| object["kind"] == *kind)
}

fn has_template(object: &Value) -> bool {
    !object["spec"]["template"]["spec"].is_null() || !object["spec"]["jobTemplate"].is_null()
}

/// The config that an object is, if it is one.
pub(crate) fn config(object: &Value) -> Option<ConfigRef> {
    let kind = ConfigKind::ALL.into_iter().find(|kind| object["kind"] == kind.kind())?;
    let name = object["metadata"]["name"].as_str()?;
    (object["apiVersion"] == "v1").then(|| ConfigRef::new(kind, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_read_as_kubectl_reads_them() {
        let text = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: app}\ndata: {a: \"yes\"}\n---\n---\n\
                    apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: db}, mode: 0644}\n";
        let objects = parse(text).unwrap();
        let configs: Vec<String> = objects.iter().filter_map(config).map(|config| config.to_string()).collect();
        assert_eq!(configs, ["configmap/app", "secret/db"]);
        assert_eq!(objects[1]["mode"], 420);
    }

    #[test]
    fn configs_come_before_workloads_and_namespaces_before_all() {
        let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {template: {spec: {}}}\n---\n\
                    apiVersion: v1\nkind: ConfigMap\nmetadata: {name: app, namespace: shop}\n---\n\
                    apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n\
                    apiVersion: v1\nkind: Service\nmetadata: {name: web}\n";
        let mut objects = parse(text).unwrap();
        order(&mut objects);
        let kinds: Vec<&str> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["Namespace", "Service", "ConfigMap", "Deployment"]);
        let dependent: Vec<bool> = objects.iter().map(|object| depends_on(object, &objects)).collect();
        assert_eq!(dependent, [false, false, true, false]);
    }

    #[test]
    fn mistakes_are_told_without_the_text() {
        for text in ["", "just text", "kind: ConfigMap", "stringData: {password: hunter2", "a: *hunter2"] {
            let error = format!("{:?}", parse(text).unwrap_err());
            assert!(!error.contains("password: hunter2"), "{error}");
        }
    }
}
