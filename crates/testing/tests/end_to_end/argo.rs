//! A config changes in the middle of a canary of a real Argo Rollout.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use lockstep_api::ReleasePolicySpec;
use lockstep_testing::manifests::{versioned_colors, web_deployment, web_rollout, web_rollout_of_deployment};
use lockstep_testing::report::ConfigReport;
use lockstep_testing::{SHORT, Scenario, eventually, impatient, scenario};

const REPLICAS: usize = 3;

#[tokio::test]
async fn a_pod_recreated_in_the_middle_of_a_canary_keeps_its_config() {
    scenario("argo-story", |stage| async move {
        set_up(&stage).await?;
        stage.apply(&web_rollout(REPLICAS)).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await?;

        change_to(&stage, "green").await?;
        expect_colors(&stage, &["blue", "blue", "green"], "Paused").await?;
        recreate_all_pods(&stage).await?;
        expect_colors(&stage, &["blue", "blue", "green"], "Paused").await?;

        promote(&stage).await?;
        expect_colors(&stage, &["green", "green", "green"], "Healthy").await?;
        change_to(&stage, "red").await?;
        expect_colors(&stage, &["green", "green", "red"], "Paused").await?;
        promote(&stage).await?;
        expect_colors(&stage, &["red", "red", "red"], "Healthy").await?;

        expect_versions(&stage, &["1.0.0", "r2", "r3"]).await?;
        delete_old_replica_sets(&stage).await?;
        expect_versions(&stage, &["r3"]).await
    })
    .await;
}

#[tokio::test]
async fn abort_and_undo_bring_the_old_config_back() {
    scenario("argo-undo", |stage| async move {
        set_up(&stage).await?;
        stage.apply(&web_rollout(REPLICAS)).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await?;

        change_to(&stage, "green").await?;
        expect_colors(&stage, &["blue", "blue", "green"], "Paused").await?;
        expect_release(&stage, "1", "Progressing", "kubectl argo rollouts promote web").await?;
        stage.kubectl(&["argo", "rollouts", "abort", "web"]).await?;
        expect_release(&stage, "1", "RolledBack", "aborted").await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await?;

        change_to(&stage, "red").await?;
        expect_colors(&stage, &["blue", "blue", "red"], "Paused").await?;
        promote(&stage).await?;
        expect_colors(&stage, &["red", "red", "red"], "Healthy").await?;
        expect_release(&stage, "2", "Succeeded", "").await?;
        stage.kubectl(&["argo", "rollouts", "undo", "web"]).await?;
        // Promoted before Argo has begun with it, nothing would be promoted.
        expect_colors(&stage, &["blue", "red", "red"], "Paused").await?;
        promote(&stage).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await
    })
    .await;
}

/// The pins are in the Deployment's template; the Rollout has none and makes pods of it all the same.
#[tokio::test]
async fn a_rollout_of_a_deployments_template_runs_its_pins() {
    scenario("argo-workload-ref", |stage| async move {
        set_up(&stage).await?;
        stage.apply(&(web_deployment(0) + "---\n" + &web_rollout_of_deployment(REPLICAS))).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await?;

        change_to(&stage, "green").await?;
        expect_colors(&stage, &["blue", "blue", "green"], "Paused").await?;
        recreate_all_pods(&stage).await?;
        expect_colors(&stage, &["blue", "blue", "green"], "Paused").await?;
        expect_release(&stage, "1", "Progressing", "kubectl argo rollouts promote web").await?;
        promote(&stage).await?;
        expect_colors(&stage, &["green", "green", "green"], "Healthy").await?;
        expect_release(&stage, "1", "Succeeded", "").await?;

        let template = stage.kubectl(&["get", "rollout", "web", "-o", "jsonpath={.spec.template}"]).await?;
        ensure!(template.is_empty(), "the Rollout got a template of its own: {template}");
        Ok(())
    })
    .await;
}

/// Two configs of one color. kubectl takes its time between them, so a release waits a little longer for the second.
async fn set_up(stage: &Scenario) -> Result<()> {
    let policy = ReleasePolicySpec { settle_milliseconds: Some(4000), ..impatient() };
    stage.set_policy("default", &policy).await?;
    stage.apply(&versioned_colors("blue")).await?;
    stage.released("configmap/web-env", "1.0.0").await?;
    stage.released("configmap/web-files", "1.0.0").await
}

/// The release of both configs, which goes by the name of the first.
async fn expect_release(stage: &Scenario, number: &str, phase: &str, reason: &str) -> Result<()> {
    let name = format!("configmap-web-env-{number}");
    eventually(&format!("release {name} to be {phase}"), SHORT, async || {
        let status = &stage.read(&format!("release/{name}")).await?["status"];
        let told = status["reason"].as_str().unwrap_or_default();
        ensure!(status["phase"] == phase && told.contains(reason), "it is {}: {told}", status["phase"]);
        Ok(())
    })
    .await
}

async fn change_to(stage: &Scenario, color: &str) -> Result<()> {
    stage.apply(&versioned_colors(color)).await
}

async fn promote(stage: &Scenario) -> Result<()> {
    stage.kubectl(&["argo", "rollouts", "promote", "web", "--full"]).await.map(drop)
}

/// Every pod sees one color in its environment and its files; together they see these.
async fn expect_colors(stage: &Scenario, expected: &[&str], phase: &str) -> Result<()> {
    eventually(&format!("a {phase} Rollout with {expected:?}"), SHORT, async || {
        stage.ready_pods("app=web", REPLICAS).await?;
        let seen = stage.seen("app=web", color).await?;
        let mut colors: Vec<&str> = seen.values().map(String::as_str).collect();
        colors.sort_unstable();
        ensure!(colors == expected, "the pods see {seen:?}");
        let now = &stage.read("rollout/web").await?["status"]["phase"];
        ensure!(*now == phase, "the Rollout is {now}");
        Ok(())
    })
    .await
}

/// The color, if environment and files agree.
fn color(report: &ConfigReport) -> Option<String> {
    let env = report.loaded.env.get("COLOR")?;
    let file = report.files_now.get("/etc/config/color")?;
    Some(if env == file { env.clone() } else { format!("{env} in env, {file} in file") })
}

/// As a drained node or lost spot instances would: all at once, of both templates.
async fn recreate_all_pods(stage: &Scenario) -> Result<()> {
    let before = pod_names(stage).await?;
    for name in &before {
        stage.api::<Pod>().delete(name, &DeleteParams::default()).await?;
    }
    eventually("all pods to be others", SHORT, async || {
        stage.ready_pods("app=web", REPLICAS).await?;
        let left: Vec<_> = pod_names(stage).await?.intersection(&before).cloned().collect();
        ensure!(left.is_empty(), "{left:?} are still there");
        Ok(())
    })
    .await
}

async fn pod_names(stage: &Scenario) -> Result<BTreeSet<String>> {
    Ok(stage.seen("app=web", |report| Some(report.host.clone())).await?.into_keys().collect())
}

async fn expect_versions(stage: &Scenario, expected: &[&str]) -> Result<()> {
    for config in ["configmap/web-env", "configmap/web-files"] {
        eventually(&format!("{config} to have the versions {expected:?}"), SHORT, async || {
            let mut names: Vec<String> = stage.versions(config).await?.into_values().collect();
            names.sort();
            ensure!(names == expected, "{config} has {names:?}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// All but the newest: what Kubernetes does itself when the history gets long.
async fn delete_old_replica_sets(stage: &Scenario) -> Result<()> {
    let path = "jsonpath={.status.stableRS}";
    let stable = stage.kubectl(&["get", "rollout", "web", "-o", path]).await?;
    for name in stage.replica_sets().await? {
        if !name.ends_with(&stable) {
            stage.kubectl(&["delete", "replicaset", &name]).await?;
        }
    }
    Ok(())
}
