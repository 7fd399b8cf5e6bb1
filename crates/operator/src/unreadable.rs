//! Objects that cannot be read. The API server may hold objects that our types do not take: written before a definition had its bounds, or
//! nested deeper than our parser goes. One of them must not keep all others of its kind, in all namespaces, from being seen.
//!
//! What such an object means is in `index/unreadable.rs`: what it concerns stands still, and everything else goes on.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::facts::ResourceVersion;

/// How much of what the parser says goes into a sentence for people.
const TOLD_CHARS: usize = 300;

/// An object, or what can be said of one that is not what its kind should be.
#[derive(Debug, Clone)]
pub struct Guarded<K>(pub Result<K, Invalid>);

#[derive(Debug, Clone)]
pub struct Invalid {
    metadata: ObjectMeta,
    fault: String,
}

/// An object that cannot be read.
#[derive(Debug, Clone)]
pub struct Unreadable {
    pub resource_version: ResourceVersion,
    pub about: ObjectReference,
    pub fault: String,
}

/// All that is read of an object that cannot be read as a whole.
#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    metadata: Identity,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Identity {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl Unreadable {
    pub fn kind(&self) -> &str {
        self.about.kind.as_deref().unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.about.name.as_deref().unwrap_or_default()
    }

    /// In one sentence, with what to do.
    pub fn told(&self) -> String {
        let fault: String = self.fault.chars().take(TOLD_CHARS).collect();
        format!("{} {} cannot be read: {fault}. Correct it or delete it", self.kind(), self.name())
    }
}

impl<K> Guarded<K> {
    /// The object, or what is wrong with it.
    pub fn object(self) -> Result<K, String> {
        self.0.map_err(|invalid| invalid.fault)
    }
}

/// The text is kept until the object is read: of one that is nested too deep, nothing else can be read twice.
impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let error = match serde_json::from_str(text.get()) {
            Ok(object) => return Ok(Self(Ok(object))),
            Err(error) => error,
        };
        let Named { metadata: Identity { name, namespace, uid, resource_version } } =
            serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        let metadata = ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() };
        Ok(Self(Err(Invalid { metadata, fault: error.to_string() })))
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    /// Secrets are watched without their values.
    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|invalid| &invalid.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|invalid| &mut invalid.metadata, K::meta_mut)
    }
}

#[cfg(test)]
mod tests {
    use kube::api::{DynamicObject, ObjectList, WatchEvent};
    use lockstep_api::ReleasePolicy;
    use serde_json::{Value, json};

    use super::*;

    fn policy(name: &str, spec: &str) -> String {
        format!(
            r#"{{"apiVersion": "lockstep.dev/v1alpha1", "kind": "ReleasePolicy",
                "metadata": {{"name": "{name}", "namespace": "shop", "uid": "u", "resourceVersion": "7"}}, "spec": {spec}}}"#
        )
    }

    /// A schema that is nested deeper than the parser goes.
    fn too_deep() -> String {
        let schema = r#"{"not": "#.repeat(200) + "{}" + &"}".repeat(200);
        format!(r#"{{"validation": {{"schemas": [{{"key": "a.json", "schema": {schema}}}]}}}}"#)
    }

    #[test]
    fn one_object_that_cannot_be_read_does_not_hide_the_others() {
        let too_large = r#"{"canary": {"size": 99999999999}}"#;
        for bad in [too_large, &too_deep()] {
            let items = [policy("a", "{}"), policy("bad", bad), policy("b", "{}")].join(",");
            let list = format!(
                r#"{{"apiVersion": "lockstep.dev/v1alpha1", "kind": "ReleasePolicyList", "metadata": {{}}, "items": [{items}]}}"#
            );
            let list: ObjectList<Guarded<ReleasePolicy>> = serde_json::from_str(&list).unwrap();
            let is_read: Vec<bool> = list.items.iter().map(|item| item.0.is_ok()).collect();
            assert_eq!(is_read, [true, false, true]);
            let meta = list.items[1].meta();
            let found = [&meta.name, &meta.namespace, &meta.uid, &meta.resource_version];
            assert_eq!(found.map(|text| text.as_deref().unwrap()), ["bad", "shop", "u", "7"]);
        }
    }

    #[test]
    fn so_it_is_in_a_watch_and_for_kinds_that_we_have_no_types_for() {
        let event = format!(r#"{{"type": "MODIFIED", "object": {}}}"#, policy("bad", &too_deep()));
        let event: WatchEvent<Guarded<DynamicObject>> = serde_json::from_str(&event).unwrap();
        let WatchEvent::Modified(object) = event else { panic!("it is another event") };
        assert!(object.object().unwrap_err().contains("recursion limit"));
    }

    #[test]
    fn secrets_are_still_watched_without_their_values() {
        use k8s_openapi::api::core::v1::Secret;
        use kube::core::PartialObjectMeta;
        assert!(Guarded::<PartialObjectMeta<Secret>>::metadata_api());
        assert!(!Guarded::<ReleasePolicy>::metadata_api());
    }

    #[test]
    fn what_can_be_read_is_read_as_without_a_guard() {
        let text = policy("a", r#"{"bakeSeconds": 5}"#);
        let guarded: Guarded<ReleasePolicy> = serde_json::from_str(&text).unwrap();
        let expected: ReleasePolicy = serde_json::from_str(&text).unwrap();
        assert_eq!(guarded.object().unwrap().spec, expected.spec);
    }

    #[test]
    fn what_is_wrong_is_told_with_the_object_and_what_to_do() {
        let about: ObjectReference =
            serde_json::from_value::<Value>(json!({"kind": "ReleasePolicy", "name": "default"}))
                .and_then(serde_json::from_value)
                .unwrap();
        let fault = "x".repeat(1000);
        let told = Unreadable { resource_version: ResourceVersion(1), about, fault }.told();
        assert!(told.starts_with("ReleasePolicy default cannot be read: xx") && told.len() < 400, "{told}");
    }
}
