//! The operator is stopped and started: these tests run one after the other, because all others need it.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use lockstep_testing::manifests::{versioned_colors, web_deployment};
use lockstep_testing::{SHORT, Scenario, eventually, holds, scenario};
use serde_json::json;
use tokio::time::Instant;

/// The chart's `replicas`.
const REPLICAS: usize = 2;
/// Ten times what the API server waits for the webhook: no machine is so busy.
const HANGS: Duration = Duration::from_secs(30);
const OPERATORS: &str = "app.kubernetes.io/name=lockstep";

#[tokio::test]
async fn without_the_operator_pods_get_the_right_version_and_a_change_is_released_once_it_is_back() {
    scenario("outage", |stage| async move {
        let outcome = outage(&stage).await;
        // Whatever happened, the tests after this one need the operator.
        scale_operator(&stage, REPLICAS).await?;
        outcome
    })
    .await;
}

async fn outage(stage: &Scenario) -> Result<()> {
    stage.apply(&versioned_colors("blue")).await?;
    stage.released("configmap/web-env", "1.0.0").await?;
    stage.released("configmap/web-files", "1.0.0").await?;
    stage.apply(&web_deployment(1)).await?;
    stage.apply(&bystander()).await?;
    expect_env(stage, "blue").await?;

    scale_operator(stage, 0).await?;
    change_with_nobody_there(stage).await?;
    stage.apply(&versioned_colors("green")).await?;
    let pod = stage.pods("app=web").await?[0].name_any();
    stage.api::<Pod>().delete(&pod, &DeleteParams::default()).await?;
    expect_env(stage, "blue").await?;
    let late = web_deployment(1).replace("name: web\n", "name: late\n").replace("app: web", "app: late");
    stage.apply(&late).await?;
    eventually("a new workload to get what is current", SHORT, async || see_env(stage, "app=late", "blue").await)
        .await?;
    let before = generations(stage).await?;

    scale_operator(stage, REPLICAS).await?;
    stage.released("configmap/web-env", "r2").await?;
    stage.released("configmap/web-files", "r2").await?;
    expect_env(stage, "green").await?;
    let replica_sets = stage.replica_sets().await?;
    let of_web = replica_sets.iter().filter(|name| name.starts_with("web-")).count();
    ensure!(of_web == 2, "one change made {replica_sets:?}");
    let bystander = |all: &str| all.lines().find(|line| line.starts_with("bystander")).map(str::to_owned);
    let after = generations(stage).await?;
    ensure!(bystander(&before) == bystander(&after), "a workload that uses no config was written to: {before} {after}");

    // Started once more with nothing to do, it does nothing.
    scale_operator(stage, 0).await?;
    scale_operator(stage, REPLICAS).await?;
    holds("nothing is rolled by a start", Duration::from_secs(5), async || {
        let now = generations(stage).await?;
        ensure!(now == after, "before:\n{after}\nnow:\n{now}");
        Ok(())
    })
    .await
}

/// The API server gives up on a webhook that nobody answers at once: whoever writes does not wait.
async fn change_with_nobody_there(stage: &Scenario) -> Result<()> {
    let patch = Patch::Merge(json!({"data": {"COLOR": "green"}}));
    let start = Instant::now();
    stage.api::<ConfigMap>().patch("web-env", &PatchParams::default(), &patch).await?;
    let took = start.elapsed();
    eprintln!("without an operator, the write of a config took {took:.1?}");
    ensure!(took < HANGS, "the write of a config took {took:.1?}: somebody waits for the operator");
    Ok(())
}

/// The Deployments with their generations, which every change of their spec raises.
async fn generations(stage: &Scenario) -> Result<String> {
    let path = r#"jsonpath={range .items[*]}{.metadata.name} {.metadata.generation}{"\n"}{end}"#;
    stage.kubectl(&["get", "deployments", "-o", path]).await
}

fn bystander() -> String {
    let without_configs = |line: &&str| !line.contains("web-") && !line.contains("envFrom");
    let manifest = web_deployment(0).replace("name: web\n", "name: bystander\n").replace("app: web", "app: bystander");
    let manifest: String = manifest.lines().filter(without_configs).map(|line| format!("{line}\n")).collect();
    manifest.replace("- name: files\n", "- name: files\n        emptyDir: {}\n")
}

async fn scale_operator(stage: &Scenario, replicas: usize) -> Result<()> {
    let own = stage.elsewhere("lockstep-system");
    own.kubectl(&["scale", "deployment/lockstep", &format!("--replicas={replicas}")]).await?;
    eventually(&format!("{replicas} operators"), SHORT, async || {
        // Also those that are going: they work until they are gone.
        let all = own.api::<Pod>().list(&ListParams::default().labels(OPERATORS)).await?.items.len();
        ensure!(all == replicas, "there are {all} operators");
        own.ready_pods(OPERATORS, replicas).await.map(drop)
    })
    .await
}

async fn expect_env(stage: &Scenario, color: &str) -> Result<()> {
    eventually(&format!("all pods to see {color}"), SHORT, async || see_env(stage, "app=web", color).await).await
}

async fn see_env(stage: &Scenario, selector: &str, color: &str) -> Result<()> {
    let seen = stage.seen(selector, |report| report.loaded.env.get("COLOR").cloned()).await?;
    ensure!(!seen.is_empty() && seen.values().all(|value| value == color), "the pods see {seen:?}");
    Ok(())
}
