//! A release says what is: situations in which it is easy to say something else.

use anyhow::{Context, Result, ensure};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use lockstep_api::{Canary, ReleasePolicySpec};
use lockstep_testing::{LONG, SHORT, Scenario, command_line, eventually, impatient, scenario};
use serde_json::Value;

use super::releases::{FIRST, SECOND, appears, config, deployment, ended, expect, phase, set_up, standing, steer};

/// The release has a condition of this type, with this status.
async fn expect_condition(stage: &Scenario, release: &str, of: &str, status: &str) -> Result<()> {
    let found = stage.read(&format!("release/{release}")).await?;
    let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let condition = conditions.iter().find(|condition| condition["type"] == of).context("no such condition")?;
    ensure!(condition["status"] == status, "{of} is {condition}");
    Ok(())
}

async fn current(stage: &Scenario) -> Result<Value> {
    Ok(stage.read("versionedconfig/configmap-app").await?["status"]["current"]["version"].clone())
}

#[tokio::test]
async fn pods_that_were_just_starting_are_no_licence_for_pods_that_never_get_ready() {
    scenario("starting", |stage| async move {
        let policy = ReleasePolicySpec { progress_deadline_seconds: Some(25), ..impatient() };
        stage.set_policy("default", &policy).await?;
        stage.apply(&config("blue", "ready-after 12s")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        stage.apply(&deployment("web", 1, "")).await?;
        eventually("a pod that starts", SHORT, async || {
            ensure!(stage.pods("app=web").await?.len() == 1, "there is none");
            Ok(())
        })
        .await?;
        stage.apply(&config("red", "never-ready")).await?;
        ended(&stage, FIRST, "RolledBack").await?;
        expect(&stage, "app=web", &["blue"]).await?;
        ensure!(current(&stage).await? == "1.0.0", "{} is current", current(&stage).await?);
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_stateful_set_really_goes_back_and_its_repair_goes_out() {
    scenario("ordered", |stage| async move {
        set_up(&stage, &stateful_set(&deployment("db", 2, ""))).await?;
        stage.apply(&config("red", "crash")).await?;
        ended(&stage, FIRST, "RolledBack").await?;
        stage.ready_pods("app=db", 2).await?;
        expect(&stage, "app=db", &["blue", "blue"]).await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, SECOND, "Succeeded").await?;
        expect(&stage, "app=db", &["green", "green"]).await
    })
    .await;
}

#[tokio::test]
async fn a_service_that_was_broken_can_be_repaired() {
    scenario("repair", |stage| async move {
        stage.apply(&config("blue", "crash")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        stage
            .apply(
                &deployment("web", 1, "")
                    .replace("spec:\n  replicas", "spec:\n  progressDeadlineSeconds: 10\n  replicas"),
            )
            .await?;
        eventually("the Deployment to give up", SHORT, async || {
            let conditions = stage.read("deployment/web").await?["status"]["conditions"].to_string();
            ensure!(conditions.contains("ProgressDeadlineExceeded"), "{conditions}");
            Ok(())
        })
        .await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

#[tokio::test]
async fn who_is_recreated_in_the_middle_is_judged_like_everybody() {
    scenario("recreated", |stage| async move {
        set_up(&stage, &(deployment("web", 1, "") + &deployment("api", 1, ""))).await?;
        stage.set_policy("default", &ReleasePolicySpec { bake_seconds: Some(20), ..impatient() }).await?;
        stage.apply(&config("red", "crash-after 12s")).await?;
        appears(&stage, FIRST).await?;
        eventually("it to be pinned", SHORT, async || {
            ensure!(!stage.pins("deployment/web").await?.is_empty(), "it is not");
            Ok(())
        })
        .await?;
        stage.kubectl(&["delete", "deployment", "web"]).await?;
        stage.apply(&deployment("web", 1, "")).await?;
        ended(&stage, FIRST, "RolledBack").await?;
        expect(&stage, "app=web", &["blue"]).await?;
        expect(&stage, "app=api", &["blue"]).await
    })
    .await;
}

#[tokio::test]
async fn when_somebody_undoes_the_only_consumer_it_has_not_succeeded() {
    scenario("undone", |stage| async move {
        stage.set_policy("default", &ReleasePolicySpec { bake_seconds: Some(15), ..impatient() }).await?;
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.apply(&config("green", "healthy")).await?;
        appears(&stage, FIRST).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.kubectl(&["rollout", "undo", "deployment/web"]).await?;
        ended(&stage, FIRST, "Failed").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(reason.contains("Deployment web: somebody gave it other versions"), "{reason}");
        ensure!(current(&stage).await? == "1.0.0", "{} is current", current(&stage).await?);
        expect(&stage, "app=web", &["blue"]).await
    })
    .await;
}

#[tokio::test]
async fn who_cannot_be_judged_is_named_also_by_the_exit_code() {
    scenario("unjudged", |stage| async move {
        set_up(&stage, &(deployment("web", 1, "") + &deployment("asleep", 0, ""))).await?;
        stage.apply(&config("green", "healthy")).await?;
        let watch = tokio::process::Command::new(command_line().await?)
            .args(["watch", "app", "--namespace", &stage.namespace])
            .output()
            .await?;
        let said = String::from_utf8_lossy(&watch.stdout).into_owned();
        ensure!(watch.status.code() == Some(5), "it ended with {}: {said}", watch.status);
        ensure!(said.contains("Deployment asleep: it is scaled to zero"), "{said}");
        expect_condition(&stage, FIRST, "Succeeded", "True").await?;
        expect_condition(&stage, FIRST, "Judged", "False").await
    })
    .await;
}

#[tokio::test]
async fn new_code_in_the_middle_of_a_canary_is_not_blamed_on_the_config() {
    scenario("code", |stage| async move {
        careful(&stage).await?;
        stage.kubectl(&["set", "image", "deployment/web", "app=lockstep.dev/nothing:never"]).await?;
        ended(&stage, FIRST, "Failed").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(reason.contains("kubectl rollout undo deployment/web"), "{reason}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn another_strategy_in_the_middle_of_a_canary_ends_it_in_an_orderly_way() {
    scenario("strategy", |stage| async move {
        careful(&stage).await?;
        steer(&stage, "deployment/web", r#"{"spec": {"strategy": {"type": "Recreate", "rollingUpdate": null}}}"#)
            .await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green", "green", "green"]).await?;
        let spec = &stage.read("deployment/web").await?["spec"];
        ensure!(spec["minReadySeconds"].is_null() && spec["strategy"]["type"] == "Recreate", "{spec}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn what_somebody_changes_behind_the_gate_stays_as_they_want_it() {
    scenario("borrowed", |stage| async move {
        careful(&stage).await?;
        steer(&stage, "deployment/web", r#"{"spec": {"minReadySeconds": 2}}"#).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        let spec = &stage.read("deployment/web").await?["spec"];
        ensure!(spec["minReadySeconds"] == 2, "minReadySeconds is {}", spec["minReadySeconds"]);
        ensure!(spec["strategy"]["rollingUpdate"]["maxSurge"] == "25%", "{}", spec["strategy"]);
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn scaling_in_the_middle_of_a_canary_changes_nothing_about_it() {
    scenario("scaled", |stage| async move {
        let size = IntOrString::String("20%".into());
        let policy = ReleasePolicySpec { bake_seconds: Some(15), canary: Some(Canary { size }), ..impatient() };
        stage.set_policy("default", &policy).await?;
        let set = stateful_set(&deployment("db", 3, ""));
        set_up(&stage, &(deployment("web", 5, "") + &set)).await?;
        stage.apply(&config("green", "healthy")).await?;
        appears(&stage, FIRST).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.kubectl(&["scale", "deployment/web", "--replicas=6"]).await?;
        stage.kubectl(&["scale", "statefulset/db", "--replicas=2"]).await?;
        expect(&stage, "app=db", &["blue", "green"]).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=db", &["green", "green"]).await?;
        expect(&stage, "app=web", &["green"; 6]).await
    })
    .await;
}

fn stateful_set(deployment: &str) -> String {
    deployment
        .replace("kind: Deployment", "kind: StatefulSet")
        .replace("  selector:", "  podManagementPolicy: OrderedReady\n  serviceName: db\n  selector:")
}

/// Three pods, the first of which bakes with the new version.
async fn careful(stage: &Scenario) -> Result<()> {
    let canary = Some(Canary { size: IntOrString::Int(1) });
    stage.set_policy("default", &ReleasePolicySpec { bake_seconds: Some(12), canary, ..impatient() }).await?;
    set_up(stage, &deployment("web", 3, "")).await?;
    stage.apply(&config("green", "healthy")).await?;
    appears(stage, FIRST).await?;
    eventually("the first batch to bake", LONG, async || {
        let (phase, reason) = standing(stage, FIRST).await?;
        ensure!(phase == "Baking", "it is {phase}: {reason}");
        Ok(())
    })
    .await
}
