//! What a container gets to see of ConfigMaps and Secrets when it starts.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use lockstep_core::names;
use serde::Deserialize;
use serde_json::Value;

use super::super::read::{items, text};
use crate::kinds::{Key, Kind};
use crate::store::{Object, Store};

/// Why a container does not start.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// A volume cannot be mounted: the kubelet tries again, and the pod's status does not say why.
    Volume,
    /// A variable cannot be made: `CreateContainerConfigError`, with this message.
    Variable(String),
}

/// What was read, and how the container is to behave.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// By config as the template names it: the object that was read, and its content.
    pub(super) references: BTreeMap<String, (String, String)>,
    /// The words that the app finds, in the order in which it looks for them.
    pub(super) behavior: String,
}

/// One reference to an object, or to a key of it.
struct Reference<'a> {
    kind: Kind,
    name: &'a str,
    is_optional: bool,
}

/// How an object is found.
pub(super) type Find<'a> = &'a dyn Fn(&Key) -> Option<Arc<Object>>;

struct Reader<'a> {
    find: Find<'a>,
    namespace: &'a str,
    seen: Seen,
}

/// Reads all that a pod's containers need at their start: volumes first, as the kubelet does.
pub(super) fn read(store: &Store, pod: &Object) -> Result<Seen, Missing> {
    read_spec(&pod.value["spec"], &pod.key.namespace, &|key| store.get(key).cloned())
}

/// The same for a pod spec.
pub(super) fn read_spec(spec: &Value, namespace: &str, find: Find<'_>) -> Result<Seen, Missing> {
    let mut reader = Reader { find, namespace, seen: Seen::default() };
    let mut files = String::new();
    for volume in items(&spec["volumes"]) {
        reader.mount(Kind::ConfigMap, &volume["configMap"], "name", &mut files)?;
        reader.mount(Kind::Secret, &volume["secret"], "secretName", &mut files)?;
        for source in items(&volume["projected"]["sources"]) {
            reader.mount(Kind::ConfigMap, &source["configMap"], "name", &mut files)?;
            reader.mount(Kind::Secret, &source["secret"], "name", &mut files)?;
        }
    }
    for container in items(&spec["initContainers"]).chain(items(&spec["containers"])) {
        reader.variables(container)?;
    }
    let mut seen = reader.seen;
    seen.behavior = [std::mem::take(&mut seen.behavior), files].join(",");
    Ok(seen)
}

impl<'a> Reader<'a> {
    fn get(&mut self, reference: &Reference<'_>) -> Option<Arc<Object>> {
        let key = Key::new(reference.kind, self.namespace, reference.name);
        let object = (self.find)(&key)?;
        self.seen.references.insert(config(&object), (object.key.name.clone(), content(&object)));
        Some(object)
    }

    fn mount(&mut self, kind: Kind, source: &'a Value, named: &str, files: &mut String) -> Result<(), Missing> {
        let Some(name) = source[named].as_str().filter(|name| !name.is_empty()) else { return Ok(()) };
        let is_optional = source["optional"] == true;
        let Some(object) = self.get(&Reference { kind, name, is_optional }) else {
            return if is_optional { Ok(()) } else { Err(Missing::Volume) };
        };
        let picked = source["items"].as_array().filter(|picked| !picked.is_empty());
        for item in picked.into_iter().flatten() {
            match value(&object, text(&item["key"])) {
                Some(content) => note_file(files, text(&item["path"]), &content),
                None if is_optional => {}
                None => return Err(Missing::Volume),
            }
        }
        if picked.is_none() {
            for name in ["BEHAVIOR", "behavior"] {
                if let Some(content) = value(&object, name) {
                    note_file(files, name, &content);
                }
            }
        }
        Ok(())
    }

    fn variables(&mut self, container: &'a Value) -> Result<(), Missing> {
        let mut behavior = None;
        for source in items(&container["envFrom"]) {
            for (kind, field) in [(Kind::ConfigMap, "configMapRef"), (Kind::Secret, "secretRef")] {
                let Some(object) = self.needed(kind, &source[field])? else { continue };
                let prefix = text(&source["prefix"]);
                behavior = "BEHAVIOR".strip_prefix(prefix).and_then(|key| value(&object, key)).or(behavior);
            }
        }
        for variable in items(&container["env"]) {
            let mut found = variable["value"].as_str().map(str::to_owned);
            for (kind, field) in [(Kind::ConfigMap, "configMapKeyRef"), (Kind::Secret, "secretKeyRef")] {
                let reference = &variable["valueFrom"][field];
                let Some(object) = self.needed(kind, reference)? else { continue };
                found = self.keyed(&object, reference)?.or(found);
            }
            if variable["name"] == "BEHAVIOR" {
                behavior = found.or(behavior);
            }
        }
        if let Some(behavior) = behavior {
            self.seen.behavior = [std::mem::take(&mut self.seen.behavior), behavior].join(",");
        }
        Ok(())
    }

    /// None if there is no such reference, or if it need not be there.
    fn needed(&mut self, kind: Kind, reference: &'a Value) -> Result<Option<Arc<Object>>, Missing> {
        let Some(name) = reference["name"].as_str().filter(|name| !name.is_empty()) else { return Ok(None) };
        let reference = Reference { kind, name, is_optional: reference["optional"] == true };
        match self.get(&reference) {
            None if !reference.is_optional => {
                Err(Missing::Variable(format!("{} \"{name}\" not found", kind.kind().to_lowercase())))
            }
            found => Ok(found),
        }
    }

    fn keyed(&self, object: &Object, reference: &Value) -> Result<Option<String>, Missing> {
        let key = text(&reference["key"]);
        match value(object, key) {
            None if reference["optional"] != true => {
                let (kind, namespace, name) = (object.key.kind.kind(), self.namespace, &object.key.name);
                Err(Missing::Variable(format!("couldn't find key {key} in {kind} {namespace}/{name}")))
            }
            found => Ok(found),
        }
    }
}

/// The app looks for files of this name, wherever they are.
fn note_file(files: &mut String, path: &str, content: &str) {
    if path.rsplit('/').next().is_some_and(|name| name.eq_ignore_ascii_case("behavior")) {
        *files = [std::mem::take(files), content.to_owned()].join(",");
    }
}

fn value(object: &Object, key: &str) -> Option<String> {
    let value = &object.value["data"][key];
    if object.key.kind == Kind::ConfigMap {
        return value.as_str().map(str::to_owned);
    }
    let ByteString(bytes) = ByteString::deserialize(value).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// A version stands for its config; anything else is a config itself.
fn config(object: &Object) -> String {
    let word = if object.key.kind == Kind::Secret { "secret" } else { "configmap" };
    let of = object.label(names::VERSION_OF).filter(|of| *of == word);
    let source = of.and_then(|_| object.annotation(names::SOURCE)).unwrap_or(&object.key.name);
    format!("{word}/{source}")
}

/// All that it holds, as one text: equal contents have equal texts.
fn content(object: &Object) -> String {
    let binary = object.value.get("binaryData").map(Value::to_string).unwrap_or_default();
    object.value["data"].to_string() + &binary
}
