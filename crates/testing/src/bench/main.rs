//! What a change costs, measured on a real cluster: requests, time, memory. Reports, and judges nothing.
//!
//! `cargo xtask bench` runs it with Lockstep installed.

#![expect(clippy::print_stdout, reason = "what was measured is what this program prints")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// Independent pairs of a Deployment and a ConfigMap.
const PAIRS: usize = 2000;
/// Consumers of one ConfigMap.
const CONSUMERS: usize = 1000;
/// How many requests are under way at a time: as many as the operator's own.
const PARALLEL: usize = 32;
const LIMIT: Duration = Duration::from_secs(600);
const OPERATOR: &str = "system:serviceaccount:lockstep-system:lockstep";

#[tokio::main]
async fn main() -> Result<()> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let bench = Bench { client: Client::try_default().await.context("no cluster: run `make bench`")? };
    bench.one_of_many().await?;
    bench.many_of_one().await?;
    bench.memory()
}

struct Bench {
    client: Client,
}

impl Bench {
    /// Many configs with one consumer each: what one change costs.
    async fn one_of_many(&self) -> Result<()> {
        let namespace = self.namespace("bench-pairs").await?;
        eprintln!("… {PAIRS} ConfigMaps and {PAIRS} Deployments");
        let numbers = || stream::iter(0..PAIRS);
        self.create_all::<ConfigMap>(&namespace, numbers().map(|n| config_map(&format!("config-{n}"), "one"))).await?;
        self.wait_for_released(&namespace, PAIRS, "1.0.0").await?;
        self.create_all::<Deployment>(
            &namespace,
            numbers().map(|n| deployment(&format!("web-{n}"), &format!("config-{n}"))),
        )
        .await?;
        self.wait_for_quiet(&namespace).await?;
        let start = Timestamp::now();
        self.change(&namespace, "config-7").await?;
        self.wait_for_version(&namespace, "config-7", "r2").await?;
        self.wait_for_quiet(&namespace).await?;
        let requests = operator_requests(start)?;
        let lists = requests.iter().filter(|request| request.verb == "list").count();
        println!(
            "one change among {PAIRS} configs and {PAIRS} workloads, 1 consumer: {} requests of the operator, {lists} LISTs",
            requests.len()
        );
        print_requests(&requests);
        self.remove(&namespace).await
    }

    /// One config with many consumers: how soon the last one has it, beside a client that just sends the same patches.
    async fn many_of_one(&self) -> Result<()> {
        let namespace = self.namespace("bench-consumers").await?;
        eprintln!("… {CONSUMERS} consumers of one ConfigMap");
        self.create_all::<ConfigMap>(
            &namespace,
            stream::iter([config_map("config", "one"), config_map("other", "one")]),
        )
        .await?;
        self.wait_for_released(&namespace, 2, "1.0.0").await?;
        for (name, config) in [("web", "config"), ("bare", "other")] {
            let all = stream::iter(0..CONSUMERS).map(|n| deployment(&format!("{name}-{n}"), config));
            self.create_all::<Deployment>(&namespace, all).await?;
        }
        self.wait_for_quiet(&namespace).await?;
        let bare = self.bare_patches(&namespace).await?;
        self.wait_for_quiet(&namespace).await?;
        let start = Timestamp::now();
        self.change(&namespace, "config").await?;
        self.wait_for_version(&namespace, "config", "r2").await?;
        self.wait_for_quiet(&namespace).await?;
        let requests = operator_requests(start)?;
        let patches: Vec<&Request> = requests.iter().filter(|request| request.resource == "deployments").collect();
        let first = patches.iter().map(|request| request.started).min().context("no consumer was patched")?;
        let last = patches.iter().map(|request| request.ended).max().context("no consumer was patched")?;
        let pinning = seconds(first, last);
        println!(
            "one change with {CONSUMERS} consumers: {} requests of the operator ({} patches)",
            requests.len(),
            patches.len()
        );
        print_requests(&requests);
        println!(
            "  first to last patch {pinning:.2} s; a bare client, {PARALLEL} at a time: {bare:.2} s; ratio {:.2}; from the change to the last patch {:.2} s",
            pinning / bare,
            seconds(start, last)
        );
        self.remove(&namespace).await
    }

    /// The patches that the operator sends, sent by a client that does nothing else.
    async fn bare_patches(&self, namespace: &str) -> Result<f64> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
        let start = Instant::now();
        let patch = async |n: usize| -> Result<()> {
            let name = format!("bare-{n}");
            let pins = "configmap/other=other-0123456789";
            let patch = json!({"spec": {"template": {"metadata": {"annotations": {"lockstep.dev/pins": pins}}}}});
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            Ok(())
        };
        stream::iter((0..CONSUMERS).map(patch)).buffer_unordered(PARALLEL).try_collect::<()>().await?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// The operator's resident memory, if it runs on this machine.
    #[expect(clippy::unused_self, reason = "one of the measurements")]
    fn memory(&self) -> Result<()> {
        for entry in fs::read_dir("/proc")?.flatten() {
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if command.starts_with(b"/lockstep\0operator\0") {
                let status = fs::read_to_string(entry.path().join("status"))?;
                let lines = status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"));
                println!(
                    "the operator's memory now and at most: {}",
                    lines.map(str::trim).collect::<Vec<_>>().join(", ")
                );
                return Ok(());
            }
        }
        println!("the operator does not run on this machine: its memory is not known");
        Ok(())
    }

    async fn namespace(&self, name: &str) -> Result<String> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let object: Namespace = serde_json::from_value(json!({"metadata": {"generateName": format!("{name}-")}}))?;
        let created = api.create(&PostParams::default(), &object).await?;
        created.metadata.name.context("the namespace has no name")
    }

    async fn remove(&self, namespace: &str) -> Result<()> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        api.delete(namespace, &DeleteParams::background()).await?;
        let deadline = Instant::now() + LIMIT;
        while api.get_opt(namespace).await?.is_some() {
            ensure!(Instant::now() < deadline, "namespace {namespace} does not go");
            sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    async fn create_all<K>(&self, namespace: &str, objects: impl stream::Stream<Item = Value>) -> Result<()>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned
            + serde::Serialize,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let create = async |object: Value| -> Result<()> {
            api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
            Ok(())
        };
        objects.map(create).buffer_unordered(PARALLEL).try_collect::<()>().await
    }

    async fn change(&self, namespace: &str, config: &str) -> Result<()> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        api.patch(config, &PatchParams::default(), &Patch::Merge(json!({"data": {"key": "two"}}))).await?;
        Ok(())
    }

    async fn released(&self, namespace: &str) -> Result<BTreeMap<String, String>> {
        let resource = kube::api::ApiResource::erase::<lockstep_api::VersionedConfig>(&());
        let api: Api<kube::api::DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let found = api.list(&ListParams::default()).await?;
        let version = |object: &kube::api::DynamicObject| {
            object.data["status"]["current"]["version"].as_str().unwrap_or("").to_owned()
        };
        Ok(found.iter().map(|object| (object.metadata.name.clone().unwrap_or_default(), version(object))).collect())
    }

    async fn wait_for_released(&self, namespace: &str, count: usize, version: &str) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while self.released(namespace).await?.values().filter(|current| *current == version).count() < count {
            ensure!(Instant::now() < deadline, "{count} configs are not released");
            sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    async fn wait_for_version(&self, namespace: &str, config: &str, version: &str) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while self
            .released(namespace)
            .await?
            .get(&format!("configmap-{config}"))
            .is_none_or(|current| current != version)
        {
            ensure!(Instant::now() < deadline, "{config} is not released");
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// Until the controllers have seen every Deployment and the operator has not written for a while.
    async fn wait_for_quiet(&self, namespace: &str) -> Result<()> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
        let deadline = Instant::now() + LIMIT;
        loop {
            let behind = api.list(&ListParams::default()).await?.iter().filter(|object| !is_observed(object)).count();
            let recent = operator_requests(Timestamp::now() - Duration::from_secs(8))?.len();
            if behind == 0 && recent == 0 {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{behind} Deployments are behind, {recent} requests in the last seconds"
            );
            sleep(Duration::from_secs(2)).await;
        }
    }
}

fn is_observed(deployment: &Deployment) -> bool {
    let observed = deployment.status.as_ref().and_then(|status| status.observed_generation);
    observed >= deployment.metadata.generation
}

/// A request of the operator, as the API server's audit log has it.
struct Request {
    verb: String,
    resource: String,
    started: Timestamp,
    ended: Timestamp,
}

/// All requests since then, but for watches and the lease, which cost the same whether anything changes or not.
fn operator_requests(since: Timestamp) -> Result<Vec<Request>> {
    let path = std::env::var("LOCKSTEP_AUDIT_LOG").context("LOCKSTEP_AUDIT_LOG does not say where the audit log is")?;
    let mut requests = Vec::new();
    for line in BufReader::new(File::open(path)?).lines() {
        let line = line?;
        if !line.contains(OPERATOR) {
            continue;
        }
        let entry: Value = serde_json::from_str(&line)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (verb, resource) = (text(&entry["verb"]), text(&entry["objectRef"]["resource"]));
        let started: Timestamp = text(&entry["requestReceivedTimestamp"]).parse()?;
        if entry["user"]["username"] == OPERATOR && started >= since && verb != "watch" && resource != "leases" {
            requests.push(Request { verb, resource, started, ended: text(&entry["stageTimestamp"]).parse()? });
        }
    }
    Ok(requests)
}

fn print_requests(requests: &[Request]) {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for request in requests {
        *counts.entry(format!("{} {}", request.verb, request.resource)).or_default() += 1;
    }
    let shown: Vec<String> = counts.iter().map(|(what, count)| format!("{count} × {what}")).collect();
    println!("  {}", shown.join(", "));
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

fn config_map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"lockstep.dev/versioned": "true"}}, "data": {"key": value}})
}

fn deployment(name: &str, config: &str) -> Value {
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
