//! An object as it was at one revision.

use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use lockstep_api::PinTableSpec;
use lockstep_core::Table;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Fields, Writer};
use crate::kinds::{Key, Kind};

#[derive(Debug)]
pub struct Object {
    pub key: Key,
    pub revision: u64,
    /// Without its resource version, which is the revision: so most writes leave even the metadata as they are.
    pub value: Fields,
    table: OnceLock<Option<Table>>,
}

impl Object {
    pub(crate) fn new(key: Key, revision: u64, value: Fields) -> Self {
        Self { key, revision, value, table: OnceLock::new() }
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

    pub(super) fn owner_uids(&self) -> impl Iterator<Item = &str> {
        self.owners().filter_map(|owner| owner["uid"].as_str())
    }

    /// What a pin table says; none for other kinds, and for a table that cannot be read.
    pub fn table(&self) -> Option<&Table> {
        let read = || {
            let spec = (self.key.kind == Kind::PinTable).then(|| PinTableSpec::deserialize(&self.value["spec"]));
            spec?.ok().map(|spec| Table::from(&spec))
        };
        self.table.get_or_init(read).as_ref()
    }

    /// All of it, as whoever reads it gets it.
    pub fn to_value(&self) -> Value {
        let mut value = self.value.to_value();
        value["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        value
    }

    /// As JSON.
    pub fn text(&self) -> String {
        let mut text = Vec::new();
        self.write(&mut text);
        // What serde_json writes is UTF-8.
        String::from_utf8(text).unwrap_or_default()
    }

    /// Writes it as JSON. Its type comes first, as from the API server.
    pub(crate) fn write(&self, text: &mut Vec<u8>) {
        let (kind, api_version) = (self.key.kind.kind(), self.key.kind.api_version());
        text.extend_from_slice(format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":"#).as_bytes());
        self.write_rest(text);
    }

    /// Writes it as an item of a list: there the API server leaves the type of its own kinds out.
    pub(crate) fn write_item(&self, list: &mut Vec<u8>) {
        if self.key.kind.is_custom() {
            self.write(list);
        } else {
            list.extend_from_slice(br#"{"metadata":"#);
            self.write_rest(list);
        }
    }

    /// Writes only its metadata, as the API server gives it to who asks for no more.
    pub(crate) fn write_metadata(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#);
        self.write_metadata_field(text);
        text.push(b'}');
    }

    fn write_rest(&self, text: &mut Vec<u8>) {
        self.write_metadata_field(text);
        let others = self.value.texts().filter(|(name, _)| !["kind", "apiVersion", "metadata"].contains(name));
        for (name, field) in others {
            text.extend_from_slice(b",\"");
            // Names of fields have nothing in them that would have to be escaped.
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(b"\":");
            text.extend_from_slice(field);
        }
        text.push(b'}');
    }

    fn write_metadata_field(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(format!(r#"{{"resourceVersion":"{}""#, self.revision).as_bytes());
        let metadata = self.value.texts().find(|(name, _)| *name == "metadata");
        match metadata.and_then(|(_, metadata)| metadata.strip_prefix(b"{")) {
            Some(rest) if rest.len() > 1 => {
                text.push(b',');
                text.extend_from_slice(rest);
            }
            _ => text.push(b'}'),
        }
    }
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
        let object = Object::new(Key::new(Kind::ConfigMap, "ns", "a"), 7, value.into());
        assert!(object.text().starts_with(r#"{"kind":"ConfigMap","apiVersion":"v1","#), "{}", object.text());
        assert_eq!(serde_json::from_str::<Value>(&object.text()).unwrap(), object.to_value());
        let mut item = Vec::new();
        object.write_item(&mut item);
        let item: Value = serde_json::from_slice(&item).unwrap();
        assert_eq!((&item["kind"], &item["data"]), (&Value::Null, &object.value["data"]));
        let mut metadata = Vec::new();
        object.write_metadata(&mut metadata);
        let metadata: Value = serde_json::from_slice(&metadata).unwrap();
        assert_eq!(metadata["metadata"], json!({"name": "a", "resourceVersion": "7"}));
    }

    #[test]
    fn times_have_whole_seconds() {
        assert_eq!(stamp("2026-01-05T08:00:01.999Z".parse().unwrap()), "2026-01-05T08:00:01Z");
    }
}
