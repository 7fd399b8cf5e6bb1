//! A bad change: how long its consumers are in trouble.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::stream;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{Bench, LIMIT};

const DEPLOYMENTS: usize = 5;
const REPLICAS: usize = 2;
const ROUNDS: usize = 5;
/// How exact the times are.
const LOOK: Duration = Duration::from_millis(20);

/// Seconds since the change.
struct Times {
    crash_loop: f64,
    pins_back: f64,
    all_well: f64,
}

impl Bench {
    /// From the kubelet's first word of a crash loop until everything is as it was.
    pub async fn rollback(&mut self) -> Result<()> {
        let namespace = self.namespace("bench-rollback").await?;
        self.create_all::<ConfigMap>(&namespace, stream::iter([config()])).await?;
        self.wait_for_released(&namespace, 1, "1.0.0").await?;
        let all = (0..DEPLOYMENTS).map(|number| deployment(&format!("web-{number}")));
        self.create_all::<Deployment>(&namespace, stream::iter(all.collect::<Vec<_>>())).await?;
        let look = Look::new(self, &namespace);
        look.until(async || look.all_well().await).await?;
        println!("a change that crashes {DEPLOYMENTS} Deployments of {REPLICAS} pods");
        let mut rounds = Vec::new();
        for number in 1..=ROUNDS {
            rounds.push(look.round(number).await?);
        }
        let middle = |of: &dyn Fn(&Times) -> f64| {
            let mut all: Vec<f64> = rounds.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            (all[ROUNDS / 2], all[ROUNDS - 1])
        };
        let (pins, most_pins) = middle(&|times| times.pins_back - times.crash_loop);
        let (well, most_well) = middle(&|times| times.all_well - times.crash_loop);
        println!(
            "  from the first crash loop to all pins back {pins:.2} s (at most {most_pins:.2}), to all pods well {well:.2} s (at most {most_well:.2}), in {ROUNDS} rounds"
        );
        self.remove(&namespace).await
    }
}

struct Look {
    configs: Api<ConfigMap>,
    deployments: Api<Deployment>,
    pods: Api<Pod>,
}

impl Look {
    fn new(bench: &Bench, namespace: &str) -> Self {
        let client = || bench.client.clone();
        Self {
            configs: Api::namespaced(client(), namespace),
            deployments: Api::namespaced(client(), namespace),
            pods: Api::namespaced(client(), namespace),
        }
    }

    async fn round(&self, number: usize) -> Result<Times> {
        let before = self.pins().await?;
        let bad = json!({"data": {"BEHAVIOR": "crash", "ROUND": number.to_string()}});
        let start = Instant::now();
        self.configs.patch("app", &PatchParams::default(), &Patch::Merge(bad)).await?;
        let seconds = || start.elapsed().as_secs_f64();
        self.until(async || self.has_crash_loop().await).await?;
        let crash_loop = seconds();
        self.until(async || Ok(self.pins().await? == before)).await?;
        let pins_back = seconds();
        self.until(async || self.all_well().await).await?;
        let all_well = seconds();
        println!(
            "  round {number}: crash loop seen at {crash_loop:.2} s, all pins back at {pins_back:.2} s, all pods well at {all_well:.2} s"
        );
        // The next change follows the rollback, and is not to supersede it.
        sleep(Duration::from_secs(5)).await;
        Ok(Times { crash_loop, pins_back, all_well })
    }

    async fn until(&self, is_so: impl AsyncFn() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        while !is_so().await? {
            ensure!(Instant::now() < deadline, "it does not come");
            sleep(LOOK).await;
        }
        Ok(())
    }

    async fn pins(&self) -> Result<BTreeMap<String, Option<String>>> {
        let found = self.deployments.list(&ListParams::default()).await?;
        let pins = |object: Deployment| {
            let template = object.spec?.template.metadata?;
            template.annotations?.get("lockstep.dev/pins").cloned()
        };
        Ok(found.into_iter().map(|object| (object.metadata.name.clone().unwrap_or_default(), pins(object))).collect())
    }

    async fn has_crash_loop(&self) -> Result<bool> {
        let found = self.pods.list(&ListParams::default()).await?;
        let mut reasons = found.iter().flat_map(|pod| {
            let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
            containers.filter_map(|container| container.state.as_ref()?.waiting.as_ref()?.reason.as_deref())
        });
        Ok(reasons.any(|reason| reason == "CrashLoopBackOff"))
    }

    /// As many pods as there should be, each of them ready.
    async fn all_well(&self) -> Result<bool> {
        let found = self.pods.list(&ListParams::default()).await?;
        let is_ready = |pod: &Pod| {
            let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        let alive: Vec<&Pod> = found.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
        Ok(alive.len() == DEPLOYMENTS * REPLICAS && alive.iter().all(|pod| is_ready(pod)))
    }
}

fn config() -> Value {
    json!({
        "metadata": {"name": "app", "labels": {"lockstep.dev/versioned": "true"}},
        "data": {"BEHAVIOR": "healthy", "ROUND": "0"},
    })
}

fn deployment(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "web",
                        "image": lockstep_testing::manifests::testapp_image(),
                        "envFrom": [{"configMapRef": {"name": "app"}}],
                        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8080}, "periodSeconds": 1},
                    }],
                },
            },
        },
    })
}
