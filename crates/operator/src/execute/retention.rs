//! Who holds a config's versions, and which can go.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{ApiResource, DynamicObject, ListParams, Patch};
use kube::{Api, Client, Resource, ResourceExt};
use lockstep_api::Release;
use lockstep_core::ConfigKind;
use lockstep_core::references::references;
use lockstep_core::retention::{Change, retain, retain_drafts};
use serde_json::json;

use super::{ConfigOutcome, Doing, ExecuteError, Executor, Written, keepers, patch_params};
use crate::facts::{
    ConfigFact, DraftFact, Key, ManagedFact, ReleaseFact, ResourceVersion, VersionFact, WorkloadFact, is_keeper,
};
use crate::guards::delete_as_it_was;
use crate::index::{ConfigId, ConfigView, Fact, RetentionView, Watched};

/// How many objects are read at a time.
const PER_PAGE: u32 = 500;

impl Executor {
    /// Brings the owners of a config's versions up to date and lets go of what nobody needs.
    pub async fn retention(&self, id: &ConfigId, view: RetentionView) -> Result<Vec<Written>, ExecuteError> {
        let Some(managed) = &view.managed else { return Ok(Vec::new()) };
        let mut changes = retain(&view.holdings, &view.protected, view.retain);
        changes.extend(retain_drafts(&view.drafts, &view.protected));
        // A pod that was made from an earlier template holds its version itself from then on.
        let lets_go = |change: &Change| match change {
            Change::SetOwners { is_kept, leave, .. } => !is_kept || !leave.is_empty(),
            Change::Delete { .. } => true,
        };
        let pods = if changes.iter().any(lets_go) { self.pods_by_version(id).await? } else { BTreeMap::new() };
        let mut written = Vec::new();
        let owned: Vec<Owned<'_>> =
            view.versions.iter().map(Owned::from).chain(view.draft_facts.iter().map(Owned::from)).collect();
        for change in changes {
            let (Change::SetOwners { object, .. } | Change::Delete { object }) = &change;
            let Some(version) = owned.iter().find(|owned| owned.object == object) else {
                continue;
            };
            let pods = pods.get(object).map_or(&[][..], Vec::as_slice);
            written.extend(self.change_owned(id, managed, &view, version, pods, &change).await?);
        }
        for release in &view.old_releases {
            written.push(self.forget_release(id, release).await?);
        }
        Ok(written)
    }

    /// Deletes the versions and drafts that nobody but their keepers holds: one of those may be a config that opted out, and stays. A pod that
    /// nobody of ours made holds its own from then on.
    pub(super) async fn forget_versions(
        &self,
        view: &ConfigView,
        outcome: &mut ConfigOutcome,
    ) -> Result<(), ExecuteError> {
        let id = &view.id;
        let api = VersionApi { client: &self.client, namespace: &id.namespace, kind: id.config.kind };
        let all = view.versions.iter().map(Owned::from).chain(view.drafts.iter().map(Owned::from));
        let kept: Vec<Owned<'_>> = all.filter(|owned| owned.owners.iter().all(is_keeper)).collect();
        let pods = if kept.is_empty() { BTreeMap::new() } else { self.pods_by_version(id).await? };
        for version in &kept {
            let object = version.object;
            let key = Key { namespace: id.namespace.clone(), name: object.to_owned() };
            let change = Change::Delete { object: object.to_owned() };
            let strays = strays(version, pods.get(object).map_or(&[][..], Vec::as_slice), &change);
            if !strays.is_empty() {
                outcome.written.extend(self.set_owners(&api, version, &strays, key).await?);
                continue;
            }
            match api.delete(version).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                deleted => {
                    deleted.doing(|| format!("delete version {object} in {}, which is forgotten", id.namespace))?;
                }
            }
            outcome.written.push(Written { watched: Watched::Config(id.config.kind), key, fact: None });
        }
        Ok(())
    }

    /// Whether any workload uses a config, asked of the API server and not of a watch.
    pub(super) async fn has_consumers(&self, id: &ConfigId) -> Result<bool, ExecuteError> {
        for kind in &self.kinds {
            let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &id.namespace, &kind.resource);
            let mut page = ListParams::default().limit(PER_PAGE);
            loop {
                let found = match api.list(&page).await {
                    // Its definition is gone, and all of its kind with it.
                    Err(kube::Error::Api(status)) if status.is_not_found() => break,
                    found => found.doing(|| format!("look who uses {} in {}", id.config, id.namespace))?,
                };
                let uses_it = |fact: WorkloadFact| fact.is_consumer && fact.references.contains(&id.config);
                if found.items.iter().filter_map(|object| WorkloadFact::read(kind, object)).any(uses_it) {
                    return Ok(true);
                }
                match found.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => page = page.continue_token(&token),
                    None => break,
                }
            }
        }
        Ok(false)
    }

    async fn forget_release(&self, id: &ConfigId, release: &ReleaseFact) -> Result<Written, ExecuteError> {
        let api: Api<Release> = Api::namespaced(self.client.clone(), &id.namespace);
        let name = release.core.name.as_str();
        let uid = release.object.metadata.uid.as_deref().unwrap_or_default();
        match api.delete(name, &delete_as_it_was(uid, release.resource_version)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            deleted => drop(deleted.doing(|| format!("delete the old release {name} in {}", id.namespace))?),
        }
        let key = Key { namespace: id.namespace.clone(), name: name.to_owned() };
        Ok(Written { watched: Watched::Release, key, fact: None })
    }

    /// Makes a version that is there only for as long as somebody runs it one that stays.
    pub(super) async fn keep(
        &self,
        view: &ConfigView,
        managed: &ManagedFact,
        version: &VersionFact,
    ) -> Result<Option<Written>, ExecuteError> {
        let id = &view.id;
        let source_uid = view.source.as_ref().map(|source| source.uid.as_str());
        let users = version.owners.iter().filter(|owner| !is_keeper(owner)).cloned();
        let owners: Vec<OwnerReference> = users.chain(keepers(&managed.object, &id.config, source_uid)).collect();
        let api = VersionApi { client: &self.client, namespace: &id.namespace, kind: id.config.kind };
        let key = Key { namespace: id.namespace.clone(), name: version.version.object.clone() };
        self.set_owners(&api, &Owned::from(version), &owners, key).await
    }

    async fn change_owned(
        &self,
        id: &ConfigId,
        managed: &ManagedFact,
        view: &RetentionView,
        version: &Owned<'_>,
        pods: &[PodHolder],
        change: &Change,
    ) -> Result<Option<Written>, ExecuteError> {
        let object = version.object;
        let key = Key { namespace: id.namespace.clone(), name: object.to_owned() };
        let watched = Watched::Config(id.config.kind);
        let api = VersionApi { client: &self.client, namespace: &id.namespace, kind: id.config.kind };
        let strays = strays(version, pods, change);
        match change {
            Change::Delete { .. } if strays.is_empty() => {
                api.delete(version)
                    .await
                    .doing(|| format!("delete the unused version {object} in {}", id.namespace))?;
                Ok(Some(Written { watched, key, fact: None }))
            }
            Change::Delete { .. } => self.set_owners(&api, version, &strays, key).await,
            Change::SetOwners { add, leave, is_kept, .. } => {
                let remains = |owner: &&OwnerReference| !is_keeper(owner) && !leave.contains(&owner.uid);
                let mut owners: Vec<OwnerReference> = version.owners.iter().filter(remains).cloned().collect();
                if *is_kept {
                    owners.extend(keepers(&managed.object, &id.config, view.source_uid.as_deref()));
                }
                owners.extend(
                    view.users.iter().filter(|user| add.contains(&user.owner.uid)).map(|user| user.owner.clone()),
                );
                owners.extend(strays);
                self.set_owners(&api, version, &owners, key).await
            }
        }
    }

    async fn set_owners(
        &self,
        api: &VersionApi<'_>,
        version: &Owned<'_>,
        owners: &[OwnerReference],
        key: Key,
    ) -> Result<Option<Written>, ExecuteError> {
        let object = version.object;
        let fact = api.set_owners(version, owners).await;
        let fact = fact.doing(|| format!("set the owners of version {object} in {}", key.namespace))?;
        Ok(fact.map(|fact| Written { watched: Watched::Config(api.kind), key, fact: Some(Fact::Config(fact)) }))
    }

    /// The pods that name each version. Those that no workload of ours made hold it themselves: nobody else does.
    async fn pods_by_version(&self, id: &ConfigId) -> Result<BTreeMap<String, Vec<PodHolder>>, ExecuteError> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &id.namespace, &ApiResource::erase::<Pod>(&()));
        let mut found: BTreeMap<String, Vec<PodHolder>> = BTreeMap::new();
        let mut page = ListParams::default().limit(PER_PAGE);
        loop {
            let pods = api.list(&page).await.doing(|| format!("look which pods use versions in {}", id.namespace))?;
            for pod in &pods {
                let named = references(&pod.data["spec"]).into_iter().map(|reference| reference.config);
                for config in named.filter(|config| config.kind == id.config.kind).collect::<BTreeSet<_>>() {
                    found.entry(config.name).or_default().push(PodHolder::read(pod));
                }
            }
            match pods.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(found),
            }
        }
    }
}

/// The pods that nobody holds a version for. What made a pod does not, if it is pinned to another version by now: a `ReplicationController` lets
/// its pods run on.
fn strays(version: &Owned<'_>, pods: &[PodHolder], change: &Change) -> Vec<OwnerReference> {
    let is_added = |uid: &String| matches!(change, Change::SetOwners { add, .. } if add.contains(uid));
    let leaves = |uid: &String| matches!(change, Change::SetOwners { leave, .. } if leave.contains(uid));
    let is_owner = |uid: &String| version.owners.iter().any(|owner| owner.uid == *uid) && !leaves(uid);
    let is_held = |uid: &String| is_owner(uid) || is_added(uid);
    let is_stray = |pod: &&PodHolder| !pod.made_by.as_ref().is_some_and(is_held) && !is_held(&pod.owner.uid);
    pods.iter().filter(is_stray).map(|pod| pod.owner.clone()).collect()
}

/// A pod as an owner.
struct PodHolder {
    owner: OwnerReference,
    /// The uid of what made it.
    made_by: Option<String>,
}

impl PodHolder {
    fn read(pod: &DynamicObject) -> Self {
        let makers = pod.metadata.owner_references.iter().flatten();
        Self {
            owner: OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name: pod.name_any(),
                uid: pod.uid().unwrap_or_default(),
                controller: Some(false),
                block_owner_deletion: Some(false),
            },
            made_by: makers.filter(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone()).next(),
        }
    }
}

/// A version, or the draft of one, as something that has owners.
pub(crate) struct Owned<'a> {
    object: &'a str,
    uid: &'a str,
    resource_version: ResourceVersion,
    owners: &'a [OwnerReference],
}

impl<'a> From<&'a VersionFact> for Owned<'a> {
    fn from(fact: &'a VersionFact) -> Self {
        let VersionFact { version, uid, resource_version, owners, .. } = fact;
        Self { object: &version.object, uid, resource_version: *resource_version, owners }
    }
}

impl<'a> From<&'a DraftFact> for Owned<'a> {
    fn from(fact: &'a DraftFact) -> Self {
        let DraftFact { object, uid, resource_version, owners, .. } = fact;
        Self { object, uid, resource_version: *resource_version, owners }
    }
}

/// Versions of either kind, by their metadata alone.
pub(crate) struct VersionApi<'a> {
    pub(crate) client: &'a Client,
    pub(crate) namespace: &'a str,
    pub(crate) kind: ConfigKind,
}

impl VersionApi<'_> {
    /// As long as it is as we know it.
    pub(crate) async fn set_owners(
        &self,
        version: &Owned<'_>,
        owners: &[OwnerReference],
    ) -> kube::Result<Option<ConfigFact>> {
        let patch = Patch::Merge(json!({"metadata": {
            "resourceVersion": version.resource_version.0.to_string(),
            "ownerReferences": owners,
        }}));
        let name = version.object;
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

    /// What there is of this name.
    pub(super) async fn find(&self, name: &str) -> kube::Result<Option<ObjectMeta>> {
        match self.kind {
            ConfigKind::ConfigMap => {
                let found = self.api::<k8s_openapi::api::core::v1::ConfigMap>().get_metadata_opt(name).await?;
                Ok(found.map(|found| found.metadata))
            }
            ConfigKind::Secret => {
                let found = self.api::<k8s_openapi::api::core::v1::Secret>().get_metadata_opt(name).await?;
                Ok(found.map(|found| found.metadata))
            }
        }
    }

    /// Only as we know it: if somebody took it into use meanwhile, it stays.
    async fn delete(&self, version: &Owned<'_>) -> kube::Result<()> {
        let (name, params) = (version.object, delete_as_it_was(version.uid, version.resource_version));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(uid: &str) -> OwnerReference {
        OwnerReference { uid: uid.to_owned(), ..OwnerReference::default() }
    }

    #[test]
    fn a_pod_holds_its_version_unless_what_made_it_does() {
        let owners = [owner("made-it")];
        let version = Owned { object: "app-1", uid: "v", resource_version: ResourceVersion(1), owners: &owners };
        let left = |maker: Option<&str>, change: Change| {
            let pod = PodHolder { owner: owner("pod"), made_by: maker.map(str::to_owned) };
            strays(&version, &[pod], &change).len()
        };
        let delete = || Change::Delete { object: "app-1".into() };
        let set = |add: &[&str], leave: &[&str]| {
            let [add, leave] = [add, leave].map(|uids| uids.iter().map(ToString::to_string).collect());
            Change::SetOwners { object: "app-1".into(), add, leave, is_kept: true }
        };
        assert_eq!(left(None, delete()), 1, "nothing made it");
        assert_eq!(left(Some("made-it"), delete()), 0);
        assert_eq!(left(Some("new"), set(&["new"], &[])), 0, "it is an owner in a moment");
        assert_eq!(left(Some("made-it"), set(&[], &["made-it"])), 1, "it has gone on to another version");
        assert_eq!(left(Some("new"), delete()), 1, "it has another version by now");
    }
}
