//! Code and config changed together, by the tools that people use: how many of such changes make one ReplicaSet.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use lockstep_api::{ReleasePolicySpec, RuleSpec, ValidationSpec};

use crate::manifests::{deployment, testapp_image, versioned};
use crate::{SHORT, Scenario, eventually, impatient};

pub const TOOLS: [&str; 3] = ["helm upgrade", "kubectl apply", "kubectl apply --server-side"];

/// All tools side by side, each with a shop of its own: how many of their changes made exactly one ReplicaSet.
pub async fn count_joined(stage: &Scenario, name: &str, changes: usize) -> Result<[usize; 3]> {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/charts/versioned");
    let [by_helm, by_apply, by_server] = ["helm", "apply", "server"].map(|tool| format!("{tool}-{name}"));
    let helm = joined(stage, changes, &by_helm, async |change| {
        let values = format!("replicas=0,color=c{change},build=b{change}");
        stage.helm(&["upgrade", "--install", &by_helm, chart, "--set", &values]).await.map(drop)
    });
    // Rules are checked before anybody may join.
    stage.set_policy("default", &with_rule()).await?;
    let apply = joined(stage, changes, &by_apply, async |change| stage.apply(&shop(&by_apply, change)).await);
    let server = joined(stage, changes, &by_server, async |change| {
        let shop = opted_in_by_workload(&unlabelled(&by_server, change));
        stage.kubectl_with_input(&["apply", "--server-side", "-f", "-"], &shop).await.map(drop)
    });
    let (helm, apply, server) = futures::try_join!(helm, apply, server)?;
    Ok([helm, apply, server])
}

fn with_rule() -> ReleasePolicySpec {
    let rule = RuleSpec { expression: "data['COLOR'] != oldData['COLOR']".into(), message: None };
    ReleasePolicySpec {
        validation: Some(ValidationSpec { rules: vec![rule], ..ValidationSpec::default() }),
        // The default: kubectl takes longer than nothing between its two writes.
        settle_milliseconds: Some(1000),
        ..impatient()
    }
}

/// A workload can opt in for its configs.
fn opted_in_by_workload(shop: &str) -> String {
    let deployment = "kind: Deployment\nmetadata:\n";
    shop.replace(deployment, &format!("{deployment}  annotations: {{lockstep.dev/auto: \"true\"}}\n"))
}

/// Changes code and config in one step, and fails unless that makes one ReplicaSet with the new pair.
pub async fn expect_joined(stage: &Scenario, name: &str, change: usize) -> Result<()> {
    let before = revision(stage, name).await?;
    stage.apply(&unlabelled(name, change)).await?;
    let made = revision(stage, name).await? - before;
    let template = newest_template(stage, name).await?;
    let pin = template.strip_prefix(&format!("b{change} configmap/{name}=")).context(template.clone())?;
    let version = stage.api::<ConfigMap>().get(pin).await?;
    let color = version.data.unwrap_or_default().remove("COLOR");
    ensure!(color == Some(format!("c{change}")), "the new code runs with {color:?}: {template}");
    ensure!(made == 1, "one change made {made} ReplicaSets");
    Ok(())
}

/// Makes the changes, checks that each ends with the right pair, and counts those that took one ReplicaSet.
async fn joined(
    stage: &Scenario,
    changes: usize,
    name: &str,
    mut write: impl AsyncFnMut(usize) -> Result<()>,
) -> Result<usize> {
    write(0).await?;
    stage.released(&format!("configmap/{name}"), "1.0.0").await?;
    let mut joined = 0;
    for change in 1..=changes {
        let before = revision(stage, name).await?;
        write(change).await?;
        stage.released(&format!("configmap/{name}"), &format!("r{}", change + 1)).await?;
        let made = eventually("the new pair of code and config", SHORT, async || {
            let template = newest_template(stage, name).await?;
            let version = current_object(stage, name).await?;
            ensure!(template == format!("b{change} configmap/{name}={version}"), "the newest template has {template}");
            Ok(revision(stage, name).await? - before)
        })
        .await?;
        ensure!((1..=2).contains(&made), "one change made {made} ReplicaSets");
        joined += usize::from(made == 1);
    }
    Ok(joined)
}

/// Each new ReplicaSet gets the next number.
async fn revision(stage: &Scenario, name: &str) -> Result<u64> {
    eventually("the Deployment's controller", SHORT, async || {
        let found = stage.read(&format!("deployment/{name}")).await?;
        let (written, seen) = (&found["metadata"]["generation"], &found["status"]["observedGeneration"]);
        ensure!(written == seen, "it has seen {seen} of {written} writes");
        let revision = &found["metadata"]["annotations"]["deployment.kubernetes.io/revision"];
        revision.as_str().context("no revision yet")?.parse().context("the revision is no number")
    })
    .await
}

/// The code and the pins of the Deployment.
async fn newest_template(stage: &Scenario, name: &str) -> Result<String> {
    let template = &stage.read(&format!("deployment/{name}")).await?["spec"]["template"];
    let build = template["spec"]["containers"][0]["env"][0]["value"].as_str().unwrap_or_default();
    let pins = template["metadata"]["annotations"]["lockstep.dev/pins"].as_str().unwrap_or_default();
    Ok(format!("{build} {pins}"))
}

async fn current_object(stage: &Scenario, name: &str) -> Result<String> {
    let found = stage.read(&format!("versionedconfig/configmap-{name}")).await?;
    Ok(found["status"]["current"]["object"].as_str().unwrap_or_default().to_owned())
}

/// A shop that somebody else opted in.
pub fn unlabelled(name: &str, change: usize) -> String {
    shop(name, change).replace("  labels: {lockstep.dev/versioned: \"true\"}\n", "")
}

/// A config and its workload, without pods.
fn shop(name: &str, change: usize) -> String {
    let pod = format!(
        "containers:
- name: web
  image: {}
  env:
  - {{name: BUILD, value: b{change}}}
  envFrom:
  - configMapRef: {{name: {name}}}
",
        testapp_image()
    );
    versioned(name, &format!("data: {{COLOR: c{change}}}")) + &deployment(name, 0, &pod)
}
