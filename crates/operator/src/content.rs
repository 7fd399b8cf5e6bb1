//! A config's content: read at the moment of its use, copied into a version, and dropped. It has no `Debug`.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use lockstep_core::digest::{Content as Digestible, key_digests};
use lockstep_core::validation::Data;
use lockstep_core::{ConfigKind, ConfigRef, Digest, DigestKey, Version, names};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::facts::{ConfigFact, VersionFact};
use crate::index::ConfigId;

/// Secrets of these types belong to Kubernetes: a copy of one would not work, or would be a second credential.
const UNCOPIABLE_TYPES: [&str; 2] = ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"];

/// What a config holds right now.
pub struct Content {
    pub resource_version: String,
    object: Object,
}

enum Object {
    ConfigMap(ConfigMap),
    Secret(Secret),
}

impl Content {
    /// None if the config is gone.
    pub async fn read(client: &Client, id: &ConfigId) -> kube::Result<Option<Self>> {
        let name = &id.config.name;
        let object = match id.config.kind {
            ConfigKind::ConfigMap => {
                Api::namespaced(client.clone(), &id.namespace).get_opt(name).await?.map(Object::ConfigMap)
            }
            ConfigKind::Secret => {
                Api::namespaced(client.clone(), &id.namespace).get_opt(name).await?.map(Object::Secret)
            }
        };
        Ok(object.map(Self::from))
    }

    /// The content of an object that the API server showed us. None if it cannot be read; why is not told, it may be secret.
    pub fn parse(kind: ConfigKind, object: &Value) -> Option<Self> {
        let object = match kind {
            ConfigKind::ConfigMap => Object::ConfigMap(ConfigMap::deserialize(object).ok()?),
            ConfigKind::Secret => Object::Secret(Secret::deserialize(object).ok()?),
        };
        Some(Self::from(object))
    }

    pub fn digest(&self, key: &DigestKey) -> Digest {
        match &self.object {
            Object::ConfigMap(_) => Digest::of_config_map(&self.digestible()),
            Object::Secret(_) => Digest::of_secret(&self.digestible(), &self.own_key(key)),
        }
    }

    /// The key of the config whose content it is: its own, or that of which it is a version.
    fn own_key(&self, key: &DigestKey) -> DigestKey {
        let meta = self.object.meta();
        let source = meta.labels.iter().flatten().find(|(name, _)| *name == names::VERSION_OF);
        let source = source.and_then(|_| meta.annotations.as_ref()?.get(names::SOURCE));
        let name = source.or(meta.name.as_ref()).map(String::as_str).unwrap_or_default();
        key.of(meta.namespace.as_deref().unwrap_or_default(), name)
    }

    /// The digest of a content that cannot change any more. None if it can: then it is no version of ours.
    pub fn fixed_digest(&self, key: &DigestKey) -> Option<Digest> {
        let immutable = match &self.object {
            Object::ConfigMap(object) => object.immutable,
            Object::Secret(object) => object.immutable,
        };
        (immutable == Some(true)).then(|| self.digest(key))
    }

    pub fn uid(&self) -> &str {
        self.object.meta().uid.as_deref().unwrap_or_default()
    }

    /// What it is as a version of this config with this digest. None if it is not: it says so itself, and has that content for good.
    pub fn as_version(&self, config: &ConfigRef, digest: &str, key: &DigestKey) -> Option<VersionFact> {
        let Some(ConfigFact::Version(fact)) = ConfigFact::read(config.kind, self.object.meta()) else { return None };
        let is_it = fact.config == *config && fact.version.digest == digest;
        (is_it && self.fixed_digest(key).is_some_and(|found| found.full() == digest)).then_some(fact)
    }

    /// Whether it is a draft of this config's version with this digest.
    pub fn is_draft(&self, config: &ConfigRef, digest: &str, key: &DigestKey) -> bool {
        let Some(ConfigFact::Draft(fact)) = ConfigFact::read(config.kind, self.object.meta()) else { return false };
        fact.config == *config && self.fixed_digest(key).is_some_and(|found| found.full() == digest)
    }

    /// A short digest of each key's value, for an annotation.
    fn keys(&self, key: &DigestKey) -> Option<String> {
        let key = match &self.object {
            Object::ConfigMap(_) => None,
            Object::Secret(_) => Some(self.own_key(key)),
        };
        lockstep_core::keys::write(&key_digests(&self.digestible(), key.as_ref()))
    }

    /// All values by key, for validation.
    pub fn data(&self) -> Data<'_> {
        let Digestible { secret_type: _, text, binary } = self.digestible();
        Data(text.into_iter().chain(binary).collect())
    }

    fn digestible(&self) -> Digestible<'_> {
        match &self.object {
            Object::ConfigMap(object) => Digestible {
                secret_type: "",
                text: object.data.iter().flatten().map(|(name, value)| (name.as_str(), value.as_bytes())).collect(),
                binary: bytes(object.binary_data.as_ref()),
            },
            Object::Secret(object) => Digestible {
                secret_type: object.type_.as_deref().unwrap_or_default(),
                text: bytes(object.data.as_ref()),
                binary: BTreeMap::new(),
            },
        }
    }

    /// Why this content cannot become a version, if it cannot.
    pub fn obstacle(&self) -> Option<String> {
        let Object::Secret(secret) = &self.object else { return None };
        let kind = secret.type_.as_deref().unwrap_or_default();
        let belongs = UNCOPIABLE_TYPES.contains(&kind);
        belongs.then(|| {
            format!(
                "a Secret of type {kind} belongs to Kubernetes and cannot be copied: opt it out with the label {}=true",
                names::IGNORE
            )
        })
    }

    /// Writes the version. None if there is an object of this name already: whether it is the version is for the caller to see.
    pub async fn write_version(
        &self,
        client: &Client,
        id: &ConfigId,
        version: &Version,
        owners: Vec<OwnerReference>,
        key: &DigestKey,
    ) -> kube::Result<Option<ConfigFact>> {
        let mut metadata = metadata(&id.config, &version.object, &version.digest, owners);
        metadata.annotations.get_or_insert_default().extend(self.given(version, key));
        self.write(client, id, metadata).await
    }

    /// Writes what is to become a version, ahead of its config. None if there is an object of this name already.
    pub async fn write_draft(
        &self,
        client: &Client,
        id: &ConfigId,
        digest: &Digest,
        owners: Vec<OwnerReference>,
    ) -> kube::Result<Option<ConfigFact>> {
        let object = digest.version_object_name(&id.config.name);
        self.write(client, id, metadata(&id.config, &object, digest.full(), owners)).await
    }

    /// Makes this object, which is a draft, the version that it was written for.
    pub async fn complete(
        &self,
        client: &Client,
        id: &ConfigId,
        version: &Version,
        key: &DigestKey,
    ) -> kube::Result<Option<ConfigFact>> {
        let annotations = self.given(version, key);
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": self.resource_version, "uid": self.uid(), "annotations": annotations},
        }));
        let params = PatchParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let (client, namespace, name) = (client.clone(), &id.namespace, &version.object);
        let meta = match &self.object {
            Object::ConfigMap(_) => {
                Api::<ConfigMap>::namespaced(client, namespace).patch_metadata(name, &params, &patch).await?.metadata
            }
            Object::Secret(_) => {
                Api::<Secret>::namespaced(client, namespace).patch_metadata(name, &params, &patch).await?.metadata
            }
        };
        Ok(ConfigFact::read(id.config.kind, &meta))
    }

    /// What only the operator knows of a version: its name, its number, who made it.
    fn given(&self, version: &Version, key: &DigestKey) -> BTreeMap<String, String> {
        let mut annotations = BTreeMap::from([
            (names::VERSION.to_owned(), version.name.to_string()),
            (names::NUMBER.to_owned(), version.number.to_string()),
        ]);
        for (name, value) in [(names::CHANGED_BY, &version.changed_by), (names::REASON, &version.reason)] {
            annotations.extend(value.clone().map(|value| (name.to_owned(), value)));
        }
        annotations.extend(self.keys(key).map(|keys| (names::KEYS.to_owned(), keys)));
        annotations
    }

    async fn write(&self, client: &Client, id: &ConfigId, metadata: ObjectMeta) -> kube::Result<Option<ConfigFact>> {
        let meta = match &self.object {
            Object::ConfigMap(source) => {
                let object = ConfigMap {
                    metadata,
                    immutable: Some(true),
                    data: source.data.clone(),
                    binary_data: source.binary_data.clone(),
                };
                create(&Api::namespaced(client.clone(), &id.namespace), &object).await?.map(|written| written.metadata)
            }
            Object::Secret(source) => {
                let object = Secret {
                    metadata,
                    immutable: Some(true),
                    data: source.data.clone(),
                    type_: source.type_.clone(),
                    string_data: None,
                };
                create(&Api::namespaced(client.clone(), &id.namespace), &object).await?.map(|written| written.metadata)
            }
        };
        Ok(meta.and_then(|meta| ConfigFact::read(id.config.kind, &meta)))
    }
}

impl From<Object> for Content {
    fn from(object: Object) -> Self {
        Self { resource_version: object.meta().resource_version.clone().unwrap_or_default(), object }
    }
}

impl Object {
    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::ConfigMap(object) => &object.metadata,
            Self::Secret(object) => &object.metadata,
        }
    }
}

fn bytes(data: Option<&BTreeMap<String, ByteString>>) -> BTreeMap<&str, &[u8]> {
    data.into_iter().flatten().map(|(name, value)| (name.as_str(), value.0.as_slice())).collect()
}

async fn create<K>(api: &Api<K>, object: &K) -> kube::Result<Option<K>>
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let params = PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() };
    match api.create(&params, object).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
        created => created.map(Some),
    }
}

/// Labels of the source are not copied: a GitOps tool would take the version for one of its own and prune it.
fn metadata(config: &ConfigRef, object: &str, digest: &str, owners: Vec<OwnerReference>) -> ObjectMeta {
    let annotations = BTreeMap::from([
        (names::SOURCE.to_owned(), config.name.clone()),
        (names::DIGEST.to_owned(), digest.to_owned()),
    ]);
    ObjectMeta {
        name: Some(object.to_owned()),
        labels: Some(BTreeMap::from([(names::VERSION_OF.to_owned(), config.kind.word().to_owned())])),
        annotations: Some(annotations),
        owner_references: Some(owners),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> DigestKey {
        DigestKey(vec![7; 32])
    }

    fn parse(kind: ConfigKind, object: &Value) -> Content {
        Content::parse(kind, object).unwrap()
    }

    /// A version as we write it.
    fn version(kind: ConfigKind, value: &str) -> Value {
        let data = if kind == ConfigKind::Secret { json!({"k": "aGk="}) } else { json!({"k": value}) };
        let digest = parse(kind, &json!({"metadata": {"name": "app"}, "data": data})).digest(&key());
        json!({
            "immutable": true,
            "data": data,
            "metadata": {
                "name": digest.version_object_name("app"),
                "uid": "1",
                "labels": {names::VERSION_OF: kind.word()},
                "annotations": {
                    names::SOURCE: "app", names::VERSION: "r2", names::NUMBER: "2", names::DIGEST: digest.full(),
                },
            },
        })
    }

    fn is_version(kind: ConfigKind, object: &Value, digest: &str) -> bool {
        parse(kind, object).as_version(&ConfigRef::new(kind, "app"), digest, &key()).is_some()
    }

    #[test]
    fn a_draft_has_the_content_of_a_version_and_no_name() {
        for kind in [ConfigKind::ConfigMap, ConfigKind::Secret] {
            let version = version(kind, "a");
            let mut draft = version.clone();
            let digest = draft["metadata"]["annotations"][names::DIGEST].as_str().unwrap().to_owned();
            let is_draft = |object: &Value| parse(kind, object).is_draft(&ConfigRef::new(kind, "app"), &digest, &key());
            assert!(!is_draft(&version));
            for name in [names::VERSION, names::NUMBER] {
                draft["metadata"]["annotations"].as_object_mut().unwrap().remove(name);
            }
            assert!(is_draft(&draft) && !is_version(kind, &draft, &digest));
            draft["data"] = json!({"k": "ZXZpbA=="});
            assert!(!is_draft(&draft), "other content");
        }
    }

    #[test]
    fn a_version_is_what_its_content_and_its_metadata_say() {
        for kind in [ConfigKind::ConfigMap, ConfigKind::Secret] {
            let good = version(kind, "a");
            let digest = good["metadata"]["annotations"][names::DIGEST].as_str().unwrap().to_owned();
            assert!(is_version(kind, &good, &digest));
            let changed = |change: fn(&mut Value)| {
                let mut object = good.clone();
                change(&mut object);
                is_version(kind, &object, &digest)
            };
            assert!(!changed(|object| object["data"] = json!({"k": "ZXZpbA=="})), "other content");
            assert!(!changed(|object| object["immutable"] = json!(false)), "it can still change");
            assert!(!changed(|object| object["metadata"]["labels"] = json!({})), "nobody says that it is one");
            assert!(!changed(|object| object["metadata"]["labels"] = json!({names::VERSION_OF: "other"})));
            assert!(!changed(|object| object["metadata"]["annotations"] = json!({})));
            assert!(!changed(|object| object["metadata"]["annotations"][names::SOURCE] = json!("other")));
            assert!(!changed(|object| object["metadata"]["annotations"][names::NUMBER] = json!(u64::MAX.to_string())));
            assert!(!is_version(kind, &good, &"0".repeat(64)), "another version");
        }
    }
}
