//! The cluster that a command talks to, and what its errors mean to a person.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Error, Result, anyhow, bail};
use clap::Args;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ListParams, PartialObjectMeta};
use kube::{Api, Client, Resource, ResourceExt};
use lockstep_api::{PinTable, PinTableSpec, Release, VersionedConfig};
use lockstep_core::{ConfigKind, ConfigRef, names};
use lockstep_operator::client;
use serde::de::DeserializeOwned;

use crate::names::typed;

/// Which cluster and namespace, as kubectl asks for them.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Connection {
    /// The namespace; the context's own if not given
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub(crate) namespace: Option<String>,
    /// The context of the kubeconfig
    #[arg(long, global = true, help_heading = "Global options")]
    context: Option<String>,
    /// The kubeconfig to use
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    kubeconfig: Option<PathBuf>,
}

impl Connection {
    pub(crate) fn is_given(&self) -> bool {
        self.namespace.is_some() || self.context.is_some() || self.kubeconfig.is_some()
    }
}

#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) address: String,
}

impl Cluster {
    pub(crate) async fn connect(connection: &Connection) -> Result<Self> {
        let (kubeconfig, context) = (connection.kubeconfig.as_deref(), connection.context.as_deref());
        let (client, address) = client::connect_to(kubeconfig, context)
            .await
            .context("no cluster to talk to: set KUBECONFIG, or choose with --kubeconfig and --context")?;
        let namespace = connection.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        Ok(Self { client, namespace, address })
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The same cluster, another namespace.
    pub(crate) fn elsewhere(&self, namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), ..self.clone() }
    }

    pub(crate) async fn find(&self, config: &ConfigRef) -> Result<Option<VersionedConfig>> {
        let found = self.api::<VersionedConfig>().get(&config.versioned_config_name()).await;
        self.optional(found, || format!("read the VersionedConfig of {config}"))
    }

    /// None for an object that is not there. An API that is not there is an error.
    pub(crate) fn optional<K>(&self, found: kube::Result<K>, doing: impl FnOnce() -> String) -> Result<Option<K>> {
        match found {
            Err(kube::Error::Api(status)) if status.code == 404 && !is_unknown_api(&status) => Ok(None),
            found => found.map(Some).map_err(|error| self.explain(error, doing)),
        }
    }

    pub(crate) async fn versioned_config(&self, config: &ConfigRef) -> Result<VersionedConfig> {
        if let Some(found) = self.find(config).await? {
            return Ok(found);
        }
        let namespace = &self.namespace;
        if self.has_opted_in(config).await {
            bail!(
                "{config} in namespace {namespace} has only just opted in: try again in a moment, and if that does not help, `lockstep doctor` says what is wrong"
            );
        }
        bail!(
            "{config} is not versioned in namespace {namespace}: opt it in with `lockstep adopt {}`, or choose another namespace with -n",
            typed(config)
        )
    }

    /// Whether it says so itself. Who may not read it gets the usual answer.
    async fn has_opted_in(&self, config: &ConfigRef) -> bool {
        let found = match config.kind {
            ConfigKind::ConfigMap => self.labels::<ConfigMap>(&config.name).await,
            ConfigKind::Secret => self.labels::<Secret>(&config.name).await,
        };
        found.get(names::VERSIONED).is_some_and(|value| value == names::ON)
    }

    async fn labels<K>(&self, name: &str) -> BTreeMap<String, String>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let found: Option<PartialObjectMeta<K>> = self.api::<K>().get_metadata_opt(name).await.ok().flatten();
        found.map(|found| found.labels().clone()).unwrap_or_default()
    }

    pub(crate) async fn versioned_configs(&self, everywhere: bool) -> Result<Vec<VersionedConfig>> {
        self.list(everywhere, "VersionedConfigs").await
    }

    pub(crate) async fn releases(&self, everywhere: bool) -> Result<Vec<Release>> {
        self.list(everywhere, "Releases").await
    }

    /// One release, by its name.
    pub(crate) async fn release(&self, name: &str) -> Result<Release> {
        let found = self.api::<Release>().get(name).await;
        let found = self.optional(found, || format!("read release {name}"))?;
        found.with_context(|| {
            format!("there is no release {name} in namespace {}: see `lockstep history CONFIG`", self.namespace)
        })
    }

    /// The releases that move a config, newest first.
    pub(crate) async fn releases_of(&self, config: &ConfigRef) -> Result<Vec<Release>> {
        let mut releases = self.releases(false).await?;
        releases.retain(|release| release.spec.moves.iter().any(|step| ConfigRef::from(&step.source) == *config));
        releases.sort_by_key(|release| std::cmp::Reverse(created(release)));
        Ok(releases)
    }

    /// An empty table where there is none yet.
    pub(crate) async fn table(&self) -> Result<PinTableSpec> {
        let found = self.api::<PinTable>().get(names::PIN_TABLE).await;
        let found = self.optional(found, || "read the pin table".to_owned())?;
        Ok(found.map(|table| table.spec).unwrap_or_default())
    }

    async fn list<K>(&self, everywhere: bool, what: &str) -> Result<Vec<K>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api = if everywhere { Api::all(self.client.clone()) } else { self.api::<K>() };
        let found = api.list(&ListParams::default()).await;
        let doing = || format!("list {what} {}", place(&self.namespace, everywhere));
        Ok(found.map_err(|error| explained(error, &doing(), &self.address))?.items)
    }

    /// What a failed request in the namespace means, and what to do about it.
    pub(crate) fn explain(&self, error: kube::Error, doing: impl FnOnce() -> String) -> Error {
        explained(error, &format!("{} {}", doing(), place(&self.namespace, false)), &self.address)
    }
}

fn place(namespace: &str, everywhere: bool) -> String {
    if everywhere { "in all namespaces".to_owned() } else { format!("in namespace {namespace}") }
}

/// What a failed request means. `doing`: what was to be done, and where.
fn explained(error: kube::Error, doing: &str, address: &str) -> Error {
    match error {
        kube::Error::Api(status) if is_unknown_api(&status) => anyhow!(NOT_INSTALLED),
        kube::Error::Api(status) if status.code == 401 => anyhow!(
            "cannot {doing}: the cluster at {address} does not know who you are: log in again, or choose another --context"
        ),
        kube::Error::Api(status) => match refusal(&status.message) {
            Some(refusal) => anyhow!("{refusal}"),
            None if status.code == 403 => {
                anyhow!("cannot {doing}: {}: ask for the right, or use another --context", status.message)
            }
            None => anyhow!("cannot {doing}: {}", status.message),
        },
        other if is_unreachable(&other) => anyhow!(
            "the cluster at {address} cannot be reached: {}. Is it up, and is it the one you mean? Choose with --context or --kubeconfig",
            root_cause(&other)
        ),
        other => Error::new(other).context(format!("cannot {doing}")),
    }
}

pub(crate) const NOT_INSTALLED: &str = "Lockstep is not installed in this cluster: helm install lockstep charts/lockstep --namespace lockstep-system --create-namespace";

/// The API server answers in plain text for a path that it does not know at all.
fn is_unknown_api(status: &kube::core::Status) -> bool {
    status.code == 404 && status.reason != "NotFound"
}

/// The sentence of a policy of ours that refused a write, without what the API server puts around it.
pub(crate) fn refusal(message: &str) -> Option<&str> {
    let ours = message.contains("Policy 'lockstep-");
    message.split_once("denied request: ").filter(|_| ours).map(|(_, sentence)| sentence.trim())
}

fn is_unreachable(error: &kube::Error) -> bool {
    matches!(error, kube::Error::HyperError(_) | kube::Error::Service(_))
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

pub(crate) fn created(object: &impl Resource) -> Option<jiff::Timestamp> {
    object.meta().creation_timestamp.as_ref().map(|time| time.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_one_sentence() {
        let message = "configmaps \"app-1\" is forbidden: ValidatingAdmissionPolicy 'lockstep-versions-in-use' with binding \
                       'lockstep-versions-in-use' denied request: ConfigMap app-1 is in use";
        assert_eq!(refusal(message), Some("ConfigMap app-1 is in use"));
        assert_eq!(refusal("configmaps \"app-1\" is forbidden: User \"eve\" cannot delete"), None);
    }

    #[test]
    fn an_error_names_the_scope_that_was_asked_for() {
        let told = |everywhere: bool| {
            let forbidden =
                kube::core::Status::failure("eve cannot list at the cluster scope", "Forbidden").with_code(403);
            let doing = format!("list Releases {}", place("shop", everywhere));
            explained(kube::Error::Api(forbidden.boxed()), &doing, "https://here").to_string()
        };
        assert!(told(true).starts_with("cannot list Releases in all namespaces: eve cannot list"), "{}", told(true));
        assert!(told(false).starts_with("cannot list Releases in namespace shop: eve cannot list"), "{}", told(false));
    }

    #[test]
    fn an_api_that_is_not_there_is_told_from_an_object_that_is_not() {
        let status = |reason: &str| kube::core::Status::failure("", reason).with_code(404);
        assert!(is_unknown_api(&status("Failed to parse error data")));
        assert!(!is_unknown_api(&status("NotFound")));
    }
}
