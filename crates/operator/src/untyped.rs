//! Objects of kinds that we have no types for. They are most of what is watched, so they are read in one pass: what kube reads goes through a
//! copy of all fields first.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::DynamicObject;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// An object without its type, which whoever asks for it knows.
#[derive(Debug, Clone)]
pub struct Untyped(pub DynamicObject);

impl<'de> Deserialize<'de> for Untyped {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Untyped;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Untyped, A::Error> {
        let (mut metadata, mut data) = (ObjectMeta::default(), Map::new());
        while let Some(name) = fields.next_key::<String>()? {
            match name.as_str() {
                "metadata" => metadata = fields.next_value()?,
                "apiVersion" | "kind" => drop(fields.next_value::<IgnoredAny>()?),
                _ => drop(data.insert(name, fields.next_value()?)),
            }
        }
        Ok(Untyped(DynamicObject { types: None, metadata, data: Value::Object(data) }))
    }
}

impl Resource for Untyped {
    type DynamicType = <DynamicObject as Resource>::DynamicType;
    type Scope = <DynamicObject as Resource>::Scope;

    fn kind(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        DynamicObject::kind(dynamic)
    }

    fn group(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        DynamicObject::group(dynamic)
    }

    fn version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        DynamicObject::version(dynamic)
    }

    fn plural(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        DynamicObject::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_as_kube_reads_it() {
        for text in [
            r#"{"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "a", "labels": {"b": "c"}}, "spec": {"d": [1, null]}, "status": {}}"#,
            r#"{"metadata": {"name": "a"}, "data": "text"}"#,
            r#"{"spec": {}}"#,
        ] {
            let Untyped(ours) = serde_json::from_str(text).unwrap();
            let theirs: DynamicObject = serde_json::from_str(text).unwrap();
            assert_eq!((ours.metadata, ours.data), (theirs.metadata, theirs.data), "{text}");
        }
        assert!(serde_json::from_str::<Untyped>(r#"{"metadata": 5}"#).is_err());
    }
}
