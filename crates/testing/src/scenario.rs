//! One end-to-end test: a namespace, a client, and the tools that users have.

use std::env;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use futures::FutureExt;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use lockstep_api::{ReleasePolicy, ReleasePolicySpec, StormGuardSpec};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::diagnostics;
use crate::report::ConfigReport;

/// Where the API server has each kind that tests read.
const KINDS: [(&str, &str); 10] = [
    ("cronjob", "apis/batch/v1"),
    ("daemonset", "apis/apps/v1"),
    ("deployment", "apis/apps/v1"),
    ("job", "apis/batch/v1"),
    ("release", "apis/lockstep.dev/v1alpha1"),
    ("replicaset", "apis/apps/v1"),
    ("replicationcontroller", "api/v1"),
    ("rollout", "apis/argoproj.io/v1alpha1"),
    ("statefulset", "apis/apps/v1"),
    ("versionedconfig", "apis/lockstep.dev/v1alpha1"),
];
/// Set to keep the namespaces of failed tests for a closer look.
const KEEP_VARIABLE: &str = "LOCKSTEP_KEEP";

/// The stage of one test.
#[derive(Clone)]
pub struct Scenario {
    pub client: Client,
    pub namespace: String,
}

/// Runs a test in a namespace of its own. On failure, prints what happened there.
pub async fn scenario<F>(name: &str, story: impl FnOnce(Scenario) -> F)
where
    F: Future<Output = Result<()>>,
{
    let stage = Scenario::set(name).await.unwrap_or_else(|error| panic!("cannot set the stage for {name}: {error:#}"));
    let outcome = AssertUnwindSafe(story(stage.clone())).catch_unwind().await;
    let failed = !matches!(outcome, Ok(Ok(())));
    if failed {
        let found = diagnostics::describe(&stage.client, &stage.namespace).await;
        eprintln!("---- {name}: what was found in namespace {} ----\n{found}", stage.namespace);
    }
    if !(failed && env::var_os(KEEP_VARIABLE).is_some()) {
        stage.clear().await;
    }
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => panic!("{name}: {error:#}"),
        Err(panic) => resume_unwind(panic),
    }
}

impl Scenario {
    async fn set(name: &str) -> Result<Self> {
        // Several tests of one process come here at once; the first one decides, and all decide the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::try_default().await.context("no cluster: run `make test`, or set KUBECONFIG")?;
        let moment = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() % 0x0100_0000;
        let namespace = format!("e2e-{name}-{moment:06x}");
        let object: Namespace = serde_json::from_value(serde_json::json!({
            "metadata": {"name": namespace, "labels": {"lockstep.dev/e2e": name}},
        }))?;
        Api::all(client.clone()).create(&PostParams::default(), &object).await?;
        let stage = Self { client, namespace };
        stage.set_policy("default", &impatient()).await?;
        Ok(stage)
    }

    /// Writes a ReleasePolicy: that of the whole namespace if it is called `default`.
    pub async fn set_policy(&self, name: &str, spec: &ReleasePolicySpec) -> Result<()> {
        let policy = ReleasePolicy::new(name, spec.clone());
        let params = PatchParams::apply("e2e").force();
        self.api::<ReleasePolicy>().patch(name, &params, &Patch::Apply(&policy)).await?;
        Ok(())
    }

    async fn clear(&self) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        if let Err(error) = namespaces.delete(&self.namespace, &DeleteParams::background()).await {
            eprintln!("namespace {} could not be deleted: {error}", self.namespace);
        }
    }

    /// The same tools in another namespace.
    #[must_use]
    pub fn elsewhere(&self, namespace: &str) -> Self {
        Self { client: self.client.clone(), namespace: namespace.to_owned() }
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Applies manifests as a user would.
    pub async fn apply(&self, manifest: &str) -> Result<()> {
        self.run_with_input("kubectl", &["apply", "-f", "-"], manifest).await.map(drop)
    }

    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.run_with_input("kubectl", arguments, "").await
    }

    pub async fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> Result<String> {
        self.run_with_input("kubectl", arguments, input).await
    }

    /// Creates without a record of what was applied, which would not fit for a large object.
    pub async fn create(&self, manifest: &str) -> Result<()> {
        self.run_with_input("kubectl", &["create", "-f", "-"], manifest).await.map(drop)
    }

    pub async fn helm(&self, arguments: &[&str]) -> Result<String> {
        self.run_with_input("helm", arguments, "").await
    }

    /// Runs a tool in this namespace and returns what it printed.
    async fn run_with_input(&self, program: &str, arguments: &[&str], input: &str) -> Result<String> {
        let shown = format!("`{program} {}`", arguments.join(" "));
        let mut command = Command::new(program);
        // After the words that choose a plugin, where there is one: kubectl looks for it by its first words.
        command.args(arguments).args(["--namespace", &self.namespace]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("cannot run {shown}"))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes()).await.with_context(|| format!("cannot write to {shown}"))?;
        }
        let output = child.wait_with_output().await?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!("{shown} failed: {}{stdout}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(stdout)
    }

    /// An object as it is, by the name that kubectl has for it (`deployment/web`). For what is asked again and again: starting
    /// kubectl each time would keep the machine busier than the cluster does.
    pub async fn read(&self, name: &str) -> Result<Value> {
        let (kind, object) = name.split_once('/').with_context(|| format!("{name} is no KIND/NAME"))?;
        let (_, group) =
            KINDS.iter().find(|(known, _)| *known == kind).with_context(|| format!("{kind} is not known"))?;
        let uri = format!("/{group}/namespaces/{}/{kind}s/{object}", self.namespace);
        let text = self.client.request_text(http::Request::get(uri).body(Vec::new())?).await;
        serde_json::from_str(&text.with_context(|| format!("cannot read {name}"))?).context("an object is no JSON")
    }

    /// The pods that a label selector finds and that are not about to go.
    pub async fn pods(&self, selector: &str) -> Result<Vec<Pod>> {
        let found = self.api::<Pod>().list(&ListParams::default().labels(selector)).await?;
        Ok(found.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect())
    }

    /// The pods, if there are exactly so many and all are ready.
    pub async fn ready_pods(&self, selector: &str, count: usize) -> Result<Vec<Pod>> {
        let pods = self.pods(selector).await?;
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        ensure!(pods.len() == count && ready == count, "{ready} of {} pods with {selector} are ready", pods.len());
        Ok(pods)
    }

    /// What a pod of the test app says of its configuration.
    pub async fn config_seen_by(&self, pod: &str) -> Result<ConfigReport> {
        self.ask(pod, "config").await
    }

    /// Asks a pod of the test app through the API server.
    pub async fn ask<T: DeserializeOwned>(&self, pod: &str, path: &str) -> Result<T> {
        let text = self.ask_text(pod, path).await?;
        serde_json::from_str(&text).with_context(|| format!("pod {pod} answered {path} with: {text}"))
    }

    pub async fn ask_text(&self, pod: &str, path: &str) -> Result<String> {
        let uri = format!("/api/v1/namespaces/{}/pods/{pod}:8080/proxy/{path}", self.namespace);
        let request = http::Request::get(uri).body(Vec::new())?;
        self.client.request_text(request).await.with_context(|| format!("pod {pod} does not answer /{path}"))
    }
}

/// Most tests are not about patience: nothing bakes, and as many releases as they like go at once.
pub fn impatient() -> ReleasePolicySpec {
    let storm_guard = StormGuardSpec { free_releases: Some(1000), window_seconds: None };
    ReleasePolicySpec { bake_seconds: Some(0), storm_guard: Some(storm_guard), ..ReleasePolicySpec::default() }
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
