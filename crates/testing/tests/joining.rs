//! Code and config changed together arrive together: the write of the workload joins the release that the write of the config began
//! a moment before. Without the config webhook this is a race that is nearly always won; lost, it costs a ReplicaSet and nothing else.

use anyhow::{Context, Result, ensure};
use lockstep_testing::manifests::testapp_image;
use lockstep_testing::{SHORT, Scenario, eventually, scenario};

const CHANGES: usize = 50;

#[tokio::test]
async fn helm_upgrades_of_code_and_config_make_one_replica_set_each() {
    scenario("joining-helm", |stage| async move {
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/charts/versioned");
        let count = count_joined(&stage, async |change| {
            let values = format!("replicas=0,color=c{change},build=b{change}");
            stage.helm(&["upgrade", "--install", "shop", chart, "--set", &values]).await.map(drop)
        });
        report("helm upgrade", count.await?);
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn applies_of_code_and_config_make_one_replica_set_each() {
    scenario("joining-apply", |stage| async move {
        let count = count_joined(&stage, async |change| stage.apply(&shop(change)).await);
        report("kubectl apply", count.await?);
        Ok(())
    })
    .await;
}

fn report(what: &str, joined: usize) {
    eprintln!("joining: {joined} of {CHANGES} times `{what}` made exactly one ReplicaSet");
}

/// Makes the changes, checks that each ends with the right pair, and counts those that took one ReplicaSet.
async fn count_joined(stage: &Scenario, mut write: impl AsyncFnMut(usize) -> Result<()>) -> Result<usize> {
    write(0).await?;
    stage.released("configmap/shop", "1.0.0").await?;
    let mut joined = 0;
    for change in 1..=CHANGES {
        let before = revision(stage).await?;
        write(change).await?;
        stage.released("configmap/shop", &format!("r{}", change + 1)).await?;
        let made = eventually("the new pair of code and config", SHORT, async || {
            let template = newest_template(stage).await?;
            let version = current_object(stage).await?;
            ensure!(template == format!("b{change} configmap/shop={version}"), "the newest template has {template}");
            Ok(revision(stage).await? - before)
        })
        .await?;
        ensure!((1..=2).contains(&made), "one change made {made} ReplicaSets");
        joined += usize::from(made == 1);
    }
    Ok(joined)
}

/// Each new ReplicaSet gets the next number.
async fn revision(stage: &Scenario) -> Result<u64> {
    let path = r"jsonpath={.metadata.annotations.deployment\.kubernetes\.io/revision} {.metadata.generation} {.status.observedGeneration}";
    eventually("the Deployment's controller", SHORT, async || {
        let text = stage.kubectl(&["get", "deployment", "shop", "-o", path]).await?;
        let words: Vec<&str> = text.split(' ').collect();
        ensure!(words.len() == 3 && words[1] == words[2], "it has not seen the last write: {text}");
        words[0].parse().context("no revision yet")
    })
    .await
}

/// The code and the pins of the Deployment.
async fn newest_template(stage: &Scenario) -> Result<String> {
    let path = r"jsonpath={.spec.template.spec.containers[0].env[0].value} {.spec.template.metadata.annotations.lockstep\.dev/pins}";
    stage.kubectl(&["get", "deployment", "shop", "-o", path]).await
}

async fn current_object(stage: &Scenario) -> Result<String> {
    stage.kubectl(&["get", "versionedconfig", "configmap-shop", "-o", "jsonpath={.status.current.object}"]).await
}

fn shop(change: usize) -> String {
    format!(
        "
apiVersion: v1
kind: ConfigMap
metadata:
  name: shop
  labels: {{lockstep.dev/versioned: \"true\"}}
data: {{COLOR: c{change}}}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: shop
spec:
  replicas: 0
  selector:
    matchLabels: {{app: shop}}
  template:
    metadata:
      labels: {{app: shop}}
    spec:
      containers:
      - name: web
        image: {}
        env:
        - {{name: BUILD, value: b{change}}}
        envFrom:
        - configMapRef: {{name: shop}}
",
        testapp_image()
    )
}
