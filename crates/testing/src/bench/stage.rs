//! The cluster that is measured, and the namespace of one part. All requests of the benchmark are sent from here.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Config, Resource, ResourceExt};
use lockstep_api::{ReleasePolicy, ReleasePolicySpec, VersionedConfig};
use lockstep_testing::{Scenario, impatient};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::audit::{self, AuditLog, Request};
use crate::retry::Retries;

/// How many requests are under way at a time: as many as the operator's own.
pub(crate) const PARALLEL: usize = 32;
/// The operator is quiet when it has not asked for anything for so long: longer than it waits to write owners.
const QUIET: Duration = Duration::from_secs(8);
/// How long anything is waited for.
const LIMIT: Duration = Duration::from_secs(600);

/// What the benchmark reads and writes.
pub(crate) trait Object: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize {}
impl<K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize> Object for K {}

pub(crate) struct Bench {
    client: Client,
    /// Writes in the operator's name, and does nothing else.
    bare: Client,
    log: RefCell<AuditLog>,
    retries: Retries,
}

impl Bench {
    pub(crate) async fn connect() -> Result<Self> {
        let mut config = Config::infer().await.context("no cluster: run `make bench`")?;
        // The client's own retries would be in the times, and in no count.
        config.default_retry = false;
        Ok(Self {
            client: Client::try_from(config.clone())?,
            bare: Client::try_from(as_operator(config))?,
            log: RefCell::new(AuditLog::from_now_on()?),
            retries: Retries::default(),
        })
    }

    /// Measures in a namespace of its own. It goes in any case: the next part is not to pay for what this one left.
    pub(crate) async fn on_stage(&self, part: &str, measure: impl AsyncFnOnce(&Stage<'_>) -> Result<()>) -> Result<()> {
        let stage = Stage::new(self, part);
        stage.create_namespace().await?;
        let measured = match stage.create_policy().await {
            Ok(()) => measure(&stage).await,
            failed => failed,
        };
        let cleared = stage.clear().await;
        measured.and(cleared)
    }

    async fn create<K: Object>(&self, api: &Api<K>, object: &K) -> Result<()> {
        let what = format!("create {} {}", K::kind(&()), object.name_any());
        self.retries.create(&what, async || api.create(&PostParams::default(), object).await).await
    }
}

/// The admission policies pass over what the operator writes: a bare client with another name would pay for them.
fn as_operator(mut config: Config) -> Config {
    config.auth_info.impersonate = Some(audit::OPERATOR.to_owned());
    config
}

/// The namespace of one part, and who acts in it.
pub(crate) struct Stage<'a> {
    bench: &'a Bench,
    namespace: String,
}

impl<'a> Stage<'a> {
    /// The name is ours and not the API server's choice: a creation that is sent again makes no second namespace.
    fn new(bench: &'a Bench, part: &str) -> Self {
        let moment = Timestamp::now().as_microsecond() % 0x0100_0000;
        Self { bench, namespace: format!("bench-{part}-{moment:06x}") }
    }

    async fn create_namespace(&self) -> Result<()> {
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": self.namespace}}))?;
        self.bench.create(&Api::all(self.bench.client.clone()), &namespace).await
    }

    /// Nothing is to wait but for what is measured.
    async fn create_policy(&self) -> Result<()> {
        let policy = ReleasePolicySpec { settle_milliseconds: Some(0), ..impatient() };
        self.bench.create(&self.api(), &ReleasePolicy::new("default", policy)).await
    }

    async fn clear(&self) -> Result<()> {
        let (api, name) = (Api::<Namespace>::all(self.bench.client.clone()), &self.namespace);
        let delete = async || api.delete(name, &DeleteParams::background()).await;
        self.retries().delete(&format!("delete namespace {name}"), delete).await?;
        until(Duration::from_secs(1), async || {
            let get = async || api.get_opt(name).await;
            let found = self.retries().send(&format!("get namespace {name}"), get).await?;
            Ok(found.map(|_| format!("namespace {name} is there")))
        })
        .await
    }

    /// The same place, for what end-to-end tests do, too.
    pub(crate) fn scenario(&self) -> Scenario {
        Scenario { client: self.bench.client.clone(), namespace: self.namespace.clone() }
    }

    pub(crate) fn retries(&self) -> &Retries {
        &self.bench.retries
    }

    fn api<K: Object + Resource<Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.bench.client.clone(), &self.namespace)
    }

    /// Writes what the operator would write, and nothing else happens in this client.
    pub(crate) fn bare_api<K: Object + Resource<Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.bench.bare.clone(), &self.namespace)
    }

    pub(crate) async fn create_all<K>(&self, objects: impl Iterator<Item = Value>) -> Result<()>
    where
        K: Object + Resource<Scope = NamespaceResourceScope>,
    {
        let api: Api<K> = self.api();
        let create = async |object: Value| self.bench.create(&api, &serde_json::from_value(object)?).await;
        stream::iter(objects).map(create).buffer_unordered(PARALLEL).try_collect().await
    }

    pub(crate) async fn list<K: Object + Resource<Scope = NamespaceResourceScope>>(&self) -> Result<Vec<K>> {
        let api: Api<K> = self.api();
        let what = format!("list {}", K::plural(&()));
        let found = self.retries().send(&what, async || api.list(&ListParams::default()).await).await?;
        Ok(found.items)
    }

    /// Sent twice, it changes nothing more than sent once.
    pub(crate) async fn merge<K: Object>(&self, api: &Api<K>, name: &str, patch: Value) -> Result<()> {
        let what = format!("patch {} {name}", K::kind(&()));
        let patch = Patch::Merge(patch);
        self.retries().send(&what, async || api.patch(name, &PatchParams::default(), &patch).await).await.map(drop)
    }

    pub(crate) async fn change(&self, config: &str, data: Value) -> Result<()> {
        self.merge(&self.api::<ConfigMap>(), config, json!({"data": data})).await
    }

    /// What the operator asked for since then.
    pub(crate) fn requests_since(&self, start: Timestamp) -> Result<Vec<Request>> {
        self.bench.log.borrow_mut().since(start)
    }

    /// The current versions by the names of their VersionedConfigs.
    async fn released(&self) -> Result<BTreeMap<String, String>> {
        let current = |object: &VersionedConfig| Some(object.status.as_ref()?.current.as_ref()?.version.clone());
        let found = self.list::<VersionedConfig>().await?;
        Ok(found.iter().map(|object| (object.name_any(), current(object).unwrap_or_default())).collect())
    }

    pub(crate) async fn wait_for_released(&self, count: usize, version: &str) -> Result<()> {
        until(Duration::from_secs(1), async || {
            let released = self.released().await?.values().filter(|current| *current == version).count();
            Ok((released < count).then(|| format!("{version} is current in {released} of {count} configs")))
        })
        .await
    }

    pub(crate) async fn wait_for_version(&self, config: &str, version: &str) -> Result<()> {
        until(Duration::from_millis(200), async || {
            let released = self.released().await?;
            let is_current = released.get(&format!("configmap-{config}")).is_some_and(|current| current == version);
            Ok((!is_current).then(|| format!("{version} of {config} is not current")))
        })
        .await
    }

    /// Until the controllers have seen every Deployment and the operator has not written for a while.
    pub(crate) async fn wait_for_quiet(&self) -> Result<()> {
        until(Duration::from_secs(2), async || {
            let behind = self.list::<Deployment>().await?.iter().filter(|object| !is_observed(object)).count();
            let recent = self.requests_since(Timestamp::now() - QUIET)?.len();
            let missing = || format!("{behind} Deployments are behind, {recent} requests in the last seconds");
            Ok((behind > 0 || recent > 0).then(missing))
        })
        .await
    }
}

/// Looks again and again until nothing is missing any more.
pub(crate) async fn until(pause: Duration, missing: impl AsyncFn() -> Result<Option<String>>) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while let Some(missing) = missing().await? {
        if Instant::now() > deadline {
            bail!("waited {} s, and still {missing}", LIMIT.as_secs());
        }
        sleep(pause).await;
    }
    Ok(())
}

fn is_observed(deployment: &Deployment) -> bool {
    let observed = deployment.status.as_ref().and_then(|status| status.observed_generation);
    observed >= deployment.metadata.generation
}

/// A ConfigMap that opted in.
pub(crate) fn config_map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"lockstep.dev/versioned": "true"}}, "data": {"key": value}})
}

/// A consumer without pods.
pub(crate) fn deployment(name: &str, config: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{
                    "name": "web",
                    "image": "lockstep.dev/testapp:dev",
                    "envFrom": [{"configMapRef": {"name": config}}],
                }]},
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_when_nothing_is_missing() {
        let looks = Cell::new(0);
        let missing = async || {
            looks.update(|count| count + 1);
            Ok((looks.get() < 3).then(|| "more".to_owned()))
        };
        until(Duration::from_secs(1), missing).await.unwrap();
        assert_eq!(looks.get(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_in_vain_ends_with_what_is_missing() {
        let outcome = until(Duration::from_secs(1), async || Ok(Some("2 Deployments are behind".to_owned())));
        assert_eq!(outcome.await.unwrap_err().to_string(), "waited 600 s, and still 2 Deployments are behind");
    }
}
