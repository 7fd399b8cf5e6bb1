//! What a config or version holds. It has no `Debug`: it may be secret.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use lockstep_api::{VersionSummary, VersionedConfig};
use lockstep_core::digest::{Content as Digestible, key_digests};
use lockstep_core::keys::KeyDigests;
use lockstep_core::validation::Data;
use lockstep_core::{ConfigKind, ConfigRef, DigestKey};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::names::typed;

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) kind: ConfigKind,
    secret_type: String,
    pub(crate) values: BTreeMap<String, Vec<u8>>,
    /// The keys of a ConfigMap's `binaryData`.
    binary: BTreeSet<String>,
}

impl From<ConfigMap> for Content {
    fn from(object: ConfigMap) -> Self {
        let binary = object.binary_data.unwrap_or_default();
        let text = object.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.into_bytes()));
        Self {
            kind: ConfigKind::ConfigMap,
            secret_type: String::new(),
            binary: binary.keys().cloned().collect(),
            values: text.chain(binary.into_iter().map(|(key, value)| (key, value.0))).collect(),
        }
    }
}

impl From<Secret> for Content {
    fn from(object: Secret) -> Self {
        let text = object.string_data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.into_bytes()));
        let data = object.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0));
        Self {
            kind: ConfigKind::Secret,
            secret_type: object.type_.filter(|kind| !kind.is_empty()).unwrap_or_else(|| "Opaque".to_owned()),
            values: data.chain(text).collect(),
            binary: BTreeSet::new(),
        }
    }
}

impl Content {
    /// The content of a manifest. What is wrong with it is told without its values.
    pub(crate) fn of_manifest(kind: ConfigKind, manifest: &Value) -> Result<Self> {
        let wrong = "its data is not what Kubernetes expects: values are strings, binary ones in base64";
        match kind {
            ConfigKind::ConfigMap => serde_json::from_value::<ConfigMap>(manifest.clone()).map(Self::from),
            ConfigKind::Secret => serde_json::from_value::<Secret>(manifest.clone()).map(Self::from),
        }
        .ok()
        .context(wrong)
    }

    /// The value of a key, if it is text.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        std::str::from_utf8(self.values.get(key)?).ok().filter(|_| !self.binary.contains(key))
    }

    /// For the rules of a policy.
    pub(crate) fn data(&self) -> Data<'_> {
        Data(self.values.iter().map(|(key, value)| (key.as_str(), value.as_slice())).collect())
    }

    /// Digests to compare two contents by, key by key; they never leave this process.
    pub(crate) fn keys(&self) -> KeyDigests {
        let section = |is_binary: bool| {
            let chosen = self.values.iter().filter(move |(key, _)| self.binary.contains(*key) == is_binary);
            chosen.map(|(key, value)| (key.as_str(), value.as_slice())).collect()
        };
        let content = Digestible { secret_type: "", text: section(false), binary: section(true) };
        key_digests(&content, Some(&DigestKey(Vec::new())))
    }
}

impl Cluster {
    /// None if there is no such object.
    pub(crate) async fn content(&self, kind: ConfigKind, object: &str) -> Result<Option<Content>> {
        let doing = || format!("read {} {object}", kind.kind());
        Ok(match kind {
            ConfigKind::ConfigMap => {
                self.optional(self.api::<ConfigMap>().get(object).await, doing)?.map(Content::from)
            }
            ConfigKind::Secret => self.optional(self.api::<Secret>().get(object).await, doing)?.map(Content::from),
        })
    }

    /// The version that has this content, if there is one.
    pub(crate) async fn version_of(
        &self,
        object: &VersionedConfig,
        content: &Content,
    ) -> Result<Option<VersionSummary>> {
        for version in object.status.iter().flat_map(|status| &status.versions) {
            if self.content(content.kind, &version.object).await?.as_ref() == Some(content) {
                return Ok(Some(version.clone()));
            }
        }
        Ok(None)
    }
}

/// A version by its name or its object's name; `current` is the last good one.
pub(crate) fn version<'a>(object: &'a VersionedConfig, name: &str) -> Result<&'a VersionSummary> {
    let status = object.status.as_ref();
    let current = status.and_then(|status| status.current.as_ref());
    if name == "current" {
        return current.with_context(|| format!("{} has no current version yet", ConfigRef::from(&object.spec.source)));
    }
    let mut versions = status.into_iter().flat_map(|status| &status.versions);
    if let Some(version) = versions.find(|version| version.version == name || version.object == name) {
        return Ok(version);
    }
    let config = ConfigRef::from(&object.spec.source);
    let known: Vec<&str> =
        status.into_iter().flat_map(|status| &status.versions).map(|known| known.version.as_str()).collect();
    let (known, typed) = (known.join(", "), typed(&config));
    bail!("{config} has no version {name}; it has {known}. See `lockstep history {typed}`")
}

#[cfg(test)]
pub(crate) fn config_map(values: &[(&str, &str)]) -> Content {
    let values = values.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect();
    Content { kind: ConfigKind::ConfigMap, secret_type: String::new(), values, binary: BTreeSet::new() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::moving;

    #[test]
    fn a_secret_is_the_same_however_it_is_written() {
        let read = |manifest| Content::of_manifest(ConfigKind::Secret, &manifest).unwrap();
        assert!(read(json!({"stringData": {"a": "b"}})) == read(json!({"data": {"a": "Yg=="}, "type": "Opaque"})));
    }

    #[test]
    fn a_bad_manifest_is_told_without_its_values() {
        let Err(error) = Content::of_manifest(ConfigKind::Secret, &json!({"data": {"a": "hunter2!"}})) else {
            panic!("accepted")
        };
        assert!(!format!("{error:?}").contains("hunter2"));
    }

    #[test]
    fn versions_are_found_by_either_name() {
        let object = moving();
        assert_eq!(version(&object, "r3").unwrap().object, "app-3");
        assert_eq!(version(&object, "app-1").unwrap().version, "1.0.0");
        assert_eq!(version(&object, "current").unwrap().version, "1.1.0");
        let error = version(&object, "r9").unwrap_err().to_string();
        assert_eq!(error, "configmap/app has no version r9; it has r3, 1.1.0, 1.0.0. See `lockstep history app`");
    }
}
