//! An object as it was at one revision.

use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use jiff::Timestamp;
use lockstep_api::PinTableSpec;
use lockstep_core::Table;
use serde::Deserialize;
use serde_json::Value;

use super::Writer;
use crate::kinds::{Key, Kind};

#[derive(Debug)]
pub struct Object {
    pub key: Key,
    pub revision: u64,
    pub value: Value,
    text: OnceLock<Bytes>,
    metadata_text: OnceLock<Bytes>,
    /// All but its type, metadata and status: most writes change none of this.
    rest_text: OnceLock<Bytes>,
    table: OnceLock<Option<Table>>,
}

impl Object {
    /// The value gets this revision.
    pub(crate) fn new(key: Key, revision: u64, mut value: Value) -> Self {
        value["metadata"]["resourceVersion"] = Value::String(revision.to_string());
        Self {
            key,
            revision,
            value,
            text: OnceLock::new(),
            metadata_text: OnceLock::new(),
            rest_text: OnceLock::new(),
            table: OnceLock::new(),
        }
    }

    /// The same with other metadata, or another status.
    pub(super) fn with(&self, revision: u64, value: Value) -> Self {
        let rest_text = self.rest_text.get().cloned().map(OnceLock::from).unwrap_or_default();
        Self { rest_text, ..Self::new(self.key.clone(), revision, value) }
    }

    pub fn uid(&self) -> &str {
        self.value["metadata"]["uid"].as_str().unwrap_or_default()
    }

    pub fn metadata(&self) -> &Value {
        &self.value["metadata"]
    }

    pub fn label(&self, name: &str) -> Option<&str> {
        self.value["metadata"]["labels"][name].as_str()
    }

    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.value["metadata"]["annotations"][name].as_str()
    }

    pub fn owners(&self) -> impl Iterator<Item = &Value> {
        self.value["metadata"]["ownerReferences"].as_array().into_iter().flatten()
    }

    /// Whether it is on its way out.
    pub fn is_deleted(&self) -> bool {
        !self.value["metadata"]["deletionTimestamp"].is_null()
    }

    pub(super) fn owner_uids(&self) -> Vec<String> {
        self.owners().filter_map(|owner| owner["uid"].as_str()).map(str::to_owned).collect()
    }

    /// What a pin table says; none for other kinds, and for a table that cannot be read.
    pub fn table(&self) -> Option<&Table> {
        let read = || {
            let spec = (self.key.kind == Kind::PinTable).then(|| PinTableSpec::deserialize(&self.value["spec"]));
            spec?.ok().map(|spec| Table::from(&spec))
        };
        self.table.get_or_init(read).as_ref()
    }

    /// As JSON, made once.
    pub fn text(&self) -> &str {
        // What serde_json writes is UTF-8.
        std::str::from_utf8(self.bytes()).unwrap_or_default()
    }

    /// Its type comes first, as from the API server.
    pub(crate) fn bytes(&self) -> &Bytes {
        self.text.get_or_init(|| {
            let rest = self.rest_text.get_or_init(|| {
                let others = ["kind", "apiVersion", "metadata", "status"];
                let fields = self.value.as_object().into_iter().flatten();
                let mut text = Vec::new();
                fields
                    .filter(|(name, _)| !others.contains(&name.as_str()))
                    .for_each(|(name, value)| write_field(&mut text, name, value));
                Bytes::from(text)
            });
            let mut text = self.beginning().into_bytes();
            write_field(&mut text, "metadata", &self.value["metadata"]);
            text.extend_from_slice(rest);
            if let Some(status) = self.value.get("status") {
                write_field(&mut text, "status", status);
            }
            text.push(b'}');
            Bytes::from(text)
        })
    }

    /// Writes it as an item of a list: there the API server leaves the type of its own kinds out.
    pub(crate) fn write_item(&self, list: &mut Vec<u8>) {
        if self.key.kind.is_custom() {
            list.extend_from_slice(self.bytes());
        } else {
            list.push(b'{');
            list.extend_from_slice(&self.bytes()[self.beginning().len() + 1..]);
        }
    }

    fn beginning(&self) -> String {
        let (kind, api_version) = (self.key.kind.kind(), self.key.kind.api_version());
        format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}""#)
    }

    /// Only its metadata, as the API server gives it to who asks for no more.
    pub(crate) fn metadata_bytes(&self) -> &Bytes {
        self.metadata_text.get_or_init(|| {
            let mut text = br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#.to_vec();
            write_json(&mut text, &self.value["metadata"]);
            text.push(b'}');
            Bytes::from(text)
        })
    }
}

/// Names of fields have nothing in them that would have to be escaped.
fn write_field(text: &mut Vec<u8>, name: &str, value: &Value) {
    text.extend_from_slice(b",\"");
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b"\":");
    write_json(text, value);
}

fn write_json(text: &mut Vec<u8>, value: &Value) {
    // A value with texts for its names can always be written, and memory does not refuse it.
    let _ = serde_json::to_writer(text, value);
}

/// What happened to an object.
#[derive(Debug, Clone)]
pub struct Change {
    pub revision: u64,
    pub key: Key,
    pub before: Option<Arc<Object>>,
    pub after: Option<Arc<Object>>,
    pub by: Writer,
    pub at: Timestamp,
    /// What watches are told of an object that went: as it was, with the revision of its end.
    pub(super) last: Option<Arc<Object>>,
}

impl Change {
    /// The object that an event about this change carries.
    pub fn object(&self) -> Option<&Arc<Object>> {
        self.after.as_ref().or(self.last.as_ref())
    }
}

/// A time as Kubernetes writes it in metadata: whole seconds.
pub(crate) fn stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_text_begins_with_the_type_and_items_of_lists_have_none() {
        let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "\"v\n"}});
        let object = Object::new(Key::new(Kind::ConfigMap, "ns", "a"), 7, value);
        assert!(object.text().starts_with(r#"{"kind":"ConfigMap","apiVersion":"v1","#), "{}", object.text());
        assert_eq!(serde_json::from_str::<Value>(object.text()).unwrap(), object.value);
        let mut item = Vec::new();
        object.write_item(&mut item);
        let item: Value = serde_json::from_slice(&item).unwrap();
        assert_eq!((&item["kind"], &item["data"]), (&Value::Null, &object.value["data"]));
        let metadata: Value = serde_json::from_slice(object.metadata_bytes()).unwrap();
        assert_eq!(metadata["metadata"], json!({"name": "a", "resourceVersion": "7"}));
    }

    #[test]
    fn times_have_whole_seconds() {
        assert_eq!(stamp("2026-01-05T08:00:01.999Z".parse().unwrap()), "2026-01-05T08:00:01Z");
    }
}
