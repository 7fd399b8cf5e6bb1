//! Who holds a config's versions, and which can go.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, Patch, Preconditions};
use kube::{Api, Client, Resource};
use lockstep_api::Release;
use lockstep_core::ConfigKind;
use lockstep_core::retention::{Change, DEFAULT_RETAIN, retain};
use serde_json::json;

use super::{Doing, ExecuteError, Executor, Written, our_reference, patch_params};
use crate::facts::{ConfigFact, Key, ManagedFact, VersionFact};
use crate::index::{ConfigId, Fact, RetentionView, Watched};

impl Executor {
    /// Brings the owners of a config's versions up to date and lets go of what nobody needs.
    pub async fn retention(&self, id: &ConfigId, view: RetentionView) -> Result<Vec<Written>, ExecuteError> {
        let Some(managed) = &view.managed else { return Ok(Vec::new()) };
        let count = view.retain.unwrap_or(DEFAULT_RETAIN);
        let mut written = Vec::new();
        for change in retain(&view.holdings, &view.protected, count, managed.uid()) {
            let (Change::SetOwners { object, .. } | Change::Delete { object }) = &change;
            let Some(version) = view.versions.iter().find(|version| version.version.object == *object) else {
                continue;
            };
            written.extend(self.change_version(id, managed, &view, version, &change).await?);
        }
        for release in &view.old_releases {
            written.push(self.forget_release(id, &release.core.name).await?);
        }
        Ok(written)
    }

    async fn forget_release(&self, id: &ConfigId, name: &str) -> Result<Written, ExecuteError> {
        let api: Api<Release> = Api::namespaced(self.client.clone(), &id.namespace);
        match api.delete(name, &DeleteParams::background()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            deleted => drop(deleted.doing(|| format!("delete the old release {name} in {}", id.namespace))?),
        }
        let key = Key { namespace: id.namespace.clone(), name: name.to_owned() };
        Ok(Written { watched: Watched::Release, key, fact: None })
    }

    async fn change_version(
        &self,
        id: &ConfigId,
        managed: &ManagedFact,
        view: &RetentionView,
        version: &VersionFact,
        change: &Change,
    ) -> Result<Option<Written>, ExecuteError> {
        let object = &version.version.object;
        let key = Key { namespace: id.namespace.clone(), name: object.clone() };
        let watched = Watched::Config(id.config.kind);
        let api = VersionApi { client: &self.client, namespace: &id.namespace, kind: id.config.kind };
        match change {
            Change::Delete { .. } => {
                api.delete(version)
                    .await
                    .doing(|| format!("delete the unused version {object} in {}", id.namespace))?;
                Ok(Some(Written { watched, key, fact: None }))
            }
            Change::SetOwners { add, keep_ours, .. } => {
                let mut owners: Vec<OwnerReference> =
                    version.owners.iter().filter(|owner| owner.uid != managed.uid()).cloned().collect();
                owners.extend(keep_ours.then(|| our_reference(managed)));
                owners.extend(
                    view.users.iter().filter(|user| add.contains(&user.owner.uid)).map(|user| user.owner.clone()),
                );
                let fact = api.set_owners(version, &owners).await;
                let fact = fact.doing(|| format!("set the owners of version {object} in {}", id.namespace))?;
                Ok(fact.map(|fact| Written { watched, key, fact: Some(Fact::Config(fact)) }))
            }
        }
    }
}

/// Versions of either kind, by their metadata alone.
struct VersionApi<'a> {
    client: &'a Client,
    namespace: &'a str,
    kind: ConfigKind,
}

impl VersionApi<'_> {
    async fn set_owners(&self, version: &VersionFact, owners: &[OwnerReference]) -> kube::Result<Option<ConfigFact>> {
        let patch = Patch::Merge(json!({"metadata": {
            "resourceVersion": version.resource_version.0.to_string(),
            "ownerReferences": owners,
        }}));
        let name = &version.version.object;
        let meta = match self.kind {
            ConfigKind::ConfigMap => {
                self.api::<k8s_openapi::api::core::v1::ConfigMap>()
                    .patch_metadata(name, &patch_params(), &patch)
                    .await?
                    .metadata
            }
            ConfigKind::Secret => {
                self.api::<k8s_openapi::api::core::v1::Secret>()
                    .patch_metadata(name, &patch_params(), &patch)
                    .await?
                    .metadata
            }
        };
        Ok(ConfigFact::read(self.kind, &meta))
    }

    /// Only as we know it: if somebody took it into use meanwhile, it stays.
    async fn delete(&self, version: &VersionFact) -> kube::Result<()> {
        let preconditions = Preconditions {
            uid: Some(version.uid.clone()),
            resource_version: Some(version.resource_version.0.to_string()),
        };
        let params = DeleteParams::background().preconditions(preconditions);
        let name = &version.version.object;
        match self.kind {
            ConfigKind::ConfigMap => {
                self.api::<k8s_openapi::api::core::v1::ConfigMap>().delete(name, &params).await.map(drop)
            }
            ConfigKind::Secret => {
                self.api::<k8s_openapi::api::core::v1::Secret>().delete(name, &params).await.map(drop)
            }
        }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), self.namespace)
    }
}
