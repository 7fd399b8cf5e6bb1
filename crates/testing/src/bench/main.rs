//! What a change costs, measured on a real cluster: requests, time, memory. Reports, and judges nothing.
//!
//! `cargo xtask bench` runs it with Lockstep installed. `bench pairs`, `bench consumers` and `bench rollback` run one part alone.

#![expect(clippy::print_stdout, reason = "what was measured is what this program prints")]

mod audit;
mod rollback;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use audit::{AuditLog, Request};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Config};
use lockstep_api::{ReleasePolicy, ReleasePolicySpec};
use lockstep_testing::impatient;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// Independent pairs of a Deployment and a ConfigMap.
const PAIRS: usize = 2000;
/// Consumers of one ConfigMap.
const CONSUMERS: usize = 1000;
/// How many requests are under way at a time: as many as the operator's own.
const PARALLEL: usize = 32;
/// How often the operator and the bare client take turns: the machine has other things to do, too.
const ROUNDS: u32 = 3;
/// The operator is quiet when it has not asked for anything for so long: longer than it waits to write owners.
const QUIET: Duration = Duration::from_secs(8);
const LIMIT: Duration = Duration::from_secs(600);

#[tokio::main]
async fn main() -> Result<()> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let config = Config::infer().await.context("no cluster: run `make bench`")?;
    let mut bench = Bench {
        client: Client::try_from(config.clone())?,
        bare: Client::try_from(as_operator(config))?,
        log: AuditLog::from_now_on()?,
    };
    match std::env::args().nth(1).as_deref() {
        None => {
            bench.one_of_many().await?;
            bench.many_of_one().await?;
            bench.rollback().await?;
        }
        Some("pairs") => bench.one_of_many().await?,
        Some("consumers") => bench.many_of_one().await?,
        Some("rollback") => bench.rollback().await?,
        Some(other) => bail!("there is no part `{other}`: run `bench`, or one of `pairs`, `consumers`, `rollback`"),
    }
    bench.memory()
}

/// The admission policies pass over what the operator writes: a bare client with another name would pay for them.
fn as_operator(mut config: Config) -> Config {
    config.auth_info.impersonate = Some(audit::OPERATOR.to_owned());
    config
}

struct Bench {
    client: Client,
    /// Writes in the operator's name, and does nothing else.
    bare: Client,
    log: AuditLog,
}

/// One change of a config with many consumers.
struct Round {
    requests: Vec<Request>,
    /// How long the bare client took for as many patches, just before.
    bare: f64,
    /// From the first patch of a consumer to the last.
    pinning: f64,
    /// From the change to the last patch.
    latency: f64,
}

impl Bench {
    /// Many configs with one consumer each: what one change costs.
    async fn one_of_many(&mut self) -> Result<()> {
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
        self.change(&namespace, "config-7", "two").await?;
        self.wait_for_version(&namespace, "config-7", "r2").await?;
        self.wait_for_quiet(&namespace).await?;
        let requests = self.log.since(start)?;
        let lists = requests.iter().filter(|request| request.verb == "list").count();
        println!(
            "one change among {PAIRS} configs and {PAIRS} workloads, 1 consumer: {} requests of the operator, {lists} LISTs",
            requests.len()
        );
        print_requests(&requests);
        self.remove(&namespace).await
    }

    /// One config with many consumers: how soon the last one has it, beside a client that just sends the same patches.
    async fn many_of_one(&mut self) -> Result<()> {
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
        println!("one change with {CONSUMERS} consumers");
        let mut rounds = Vec::new();
        for number in 1..=ROUNDS {
            rounds.push(self.round(&namespace, number).await?);
        }
        rounds.sort_by(|a, b| (a.latency / a.bare).total_cmp(&(b.latency / b.bare)));
        let middle = rounds.get(rounds.len() / 2).context("there was no round")?;
        println!("  {} requests of the operator", middle.requests.len());
        print_requests(&middle.requests);
        println!(
            "  ratio from the change to the last patch {:.2}, from the first patch to the last {:.2} (the middle of {ROUNDS} rounds; no settle window)",
            middle.latency / middle.bare,
            middle.pinning / middle.bare,
        );
        self.remove(&namespace).await
    }

    async fn round(&mut self, namespace: &str, number: u32) -> Result<Round> {
        self.wait_for_quiet(namespace).await?;
        let bare = self.bare_patches(namespace, number).await?;
        self.wait_for_quiet(namespace).await?;
        let start = Timestamp::now();
        self.change(namespace, "config", &format!("value {number}")).await?;
        self.wait_for_version(namespace, "config", &format!("r{}", number + 1)).await?;
        self.wait_for_quiet(namespace).await?;
        let requests = self.log.since(start)?;
        let patches = || requests.iter().filter(|request| request.resource == "deployments");
        let first = patches().map(|request| request.started).min().context("no consumer was patched")?;
        let last = patches().map(|request| request.ended).max().context("no consumer was patched")?;
        let (pinning, latency) = (seconds(first, last), seconds(start, last));
        println!(
            "  round {number}: to the last patch {latency:.2} s, first to last {pinning:.2} s; a bare client, {PARALLEL} at a time: {bare:.2} s",
        );
        Ok(Round { requests, bare, pinning, latency })
    }

    /// The patches that the operator sends, sent by a client that does nothing else.
    async fn bare_patches(&self, namespace: &str, round: u32) -> Result<f64> {
        let api: Api<Deployment> = Api::namespaced(self.bare.clone(), namespace);
        let start = Instant::now();
        let patch = async |n: usize| -> Result<()> {
            let name = format!("bare-{n}");
            let pins = format!("configmap/other=other-{round:010}");
            let patch = json!({"spec": {"template": {"metadata": {"annotations": {"lockstep.dev/pins": pins}}}}});
            api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
            Ok(())
        };
        stream::iter((0..CONSUMERS).map(patch)).buffer_unordered(PARALLEL).try_collect::<()>().await?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// The resident memory of the operator's replicas, if they run on this machine. The largest works, the others stand by.
    #[expect(clippy::unused_self, reason = "one of the measurements")]
    fn memory(&self) -> Result<()> {
        let mut is_here = false;
        for entry in fs::read_dir("/proc")?.flatten() {
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if command.starts_with(b"/lockstep\0operator\0") {
                let status = fs::read_to_string(entry.path().join("status"))?;
                let lines = status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"));
                println!(
                    "the operator's memory now and at most: {}",
                    lines.map(str::trim).collect::<Vec<_>>().join(", ")
                );
                is_here = true;
            }
        }
        if !is_here {
            println!("the operator does not run on this machine: its memory is not known");
        }
        Ok(())
    }

    async fn namespace(&self, name: &str) -> Result<String> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let object: Namespace = serde_json::from_value(json!({"metadata": {"generateName": format!("{name}-")}}))?;
        let created = api.create(&PostParams::default(), &object).await?;
        let namespace = created.metadata.name.context("the namespace has no name")?;
        // Nothing is to wait but for what is measured.
        let policy = ReleasePolicySpec { settle_milliseconds: Some(0), ..impatient() };
        let policy = ReleasePolicy::new("default", policy);
        Api::namespaced(self.client.clone(), &namespace).create(&PostParams::default(), &policy).await?;
        Ok(namespace)
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

    async fn change(&self, namespace: &str, config: &str, value: &str) -> Result<()> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        api.patch(config, &PatchParams::default(), &Patch::Merge(json!({"data": {"key": value}}))).await?;
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
    async fn wait_for_quiet(&mut self, namespace: &str) -> Result<()> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
        let deadline = Instant::now() + LIMIT;
        loop {
            let behind = api.list(&ListParams::default()).await?.iter().filter(|object| !is_observed(object)).count();
            let recent = self.log.since(Timestamp::now() - QUIET)?.len();
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
