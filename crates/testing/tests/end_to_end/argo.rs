//! A config changes in the middle of a canary of a real Argo Rollout.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use lockstep_api::ReleasePolicySpec;
use lockstep_testing::manifests::{
    testapp_image, versioned_colors, web_deployment, web_rollout, web_rollout_of_deployment,
};
use lockstep_testing::report::ConfigReport;
use lockstep_testing::{SHORT, Scenario, eventually, holds, impatient, scenario};
use serde_json::json;

use super::cli::lockstep;
use super::releases::{promote as promote_release, until_promoted};
use super::storms::{BAD, expect_color, offered, patch_config};

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

#[tokio::test]
async fn aborting_new_code_stays_so_although_the_config_changed_meanwhile() {
    scenario("argo-abort", |stage| async move {
        set_up(&stage).await?;
        stage.apply(&web_rollout(REPLICAS)).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await?;

        stage.apply(&new_code()).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Paused").await?;
        change_to(&stage, "green").await?;
        expect_colors(&stage, &["blue", "blue", "green"], "Paused").await?;
        stage.kubectl(&["argo", "rollouts", "abort", "web"]).await?;
        expect_release(&stage, "1", "Failed", "aborted").await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Degraded").await?;
        holds("nobody runs the new code", Duration::from_secs(5), async || old_code(&stage).await).await?;
        // Who takes the config back does not start the code again.
        let abort = json!({"spec": {"abort": true}}).to_string();
        stage.kubectl(&["patch", "release", "configmap-web-env-1", "--type=merge", "-p", &abort]).await?;
        expect_release(&stage, "1", "Failed", "Rollout web still has it").await?;
        holds("nobody runs the new code", Duration::from_secs(5), async || old_code(&stage).await).await?;
        // Once a person lets the code go on, it gets the old config, as somebody had wished.
        stage.kubectl(&["argo", "rollouts", "retry", "rollout", "web"]).await?;
        expect_release(&stage, "1", "Aborted", "").await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Paused").await
    })
    .await;
}

#[tokio::test]
async fn a_config_does_not_revive_code_that_was_aborted_before_it() {
    scenario("argo-aborted", |stage| async move {
        set_up(&stage).await?;
        stage.apply(&web_rollout(REPLICAS)).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await?;
        stage.apply(&new_code()).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Paused").await?;
        stage.kubectl(&["argo", "rollouts", "abort", "web"]).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Degraded").await?;

        change_to(&stage, "green").await?;
        expect_release(&stage, "1", "Pending", "`kubectl argo rollouts undo web --to-revision=N`").await?;
        holds("nobody runs the new code", Duration::from_secs(5), async || old_code(&stage).await).await?;
        stage.kubectl(&["argo", "rollouts", "undo", "web"]).await?;
        expect_colors(&stage, &["blue", "blue", "green"], "Paused").await?;
        promote(&stage).await?;
        expect_colors(&stage, &["green", "green", "green"], "Healthy").await?;
        expect_release(&stage, "1", "Succeeded", "").await?;
        old_code(&stage).await
    })
    .await;
}

#[tokio::test]
async fn a_canary_that_crashes_while_it_waits_for_a_person_is_put_back() {
    scenario("argo-crash", |stage| async move {
        set_up(&stage).await?;
        stage.apply(&web_rollout(REPLICAS)).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await?;
        // Late enough to be found well, and to wait, before: also where everything is slow.
        let crash = json!({"data": {"COLOR": "red", "BEHAVIOR": "crash-after 45s"}});
        patch_config(&stage, "web-env", &crash).await?;
        expect_release(&stage, "1", "Progressing", "kubectl argo rollouts promote web").await?;
        expect_release(&stage, "1", "RolledBack", "restarted after it was ready").await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await
    })
    .await;
}

#[tokio::test]
async fn what_a_bad_pair_of_code_and_config_advises_restores_the_old_one() {
    scenario("argo-pair", |stage| async move {
        set_up(&stage).await?;
        stage.apply(&web_rollout(REPLICAS)).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await?;
        // Long enough for the code to come while the config still waits for it.
        let policy = ReleasePolicySpec { settle_milliseconds: Some(10_000), ..impatient() };
        stage.set_policy("default", &policy).await?;
        patch_config(&stage, "web-env", &json!({"data": {"COLOR": "red", "BEHAVIOR": BAD}})).await?;
        offered(&stage, "configmap/web-env").await?;
        stage.apply(&new_code()).await?;
        expect_release(&stage, "1", "Failed", "`kubectl argo rollouts undo web` goes back one step").await?;
        stage.kubectl(&["argo", "rollouts", "undo", "web"]).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await?;
        old_code(&stage).await
    })
    .await;
}

/// What its code failed with is tried again with it.
#[tokio::test]
async fn code_of_a_rollout_that_failed_with_a_config_is_repaired() {
    scenario("argo-repaired", |stage| async move {
        set_up(&stage).await?;
        stage.apply(&web_rollout(REPLICAS)).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await?;
        change_to(&stage, "green").await?;
        offered(&stage, "configmap/web-env").await?;
        offered(&stage, "configmap/web-files").await?;
        stage.apply(&new_code().replace(testapp_image().as_str(), "lockstep.dev/nothing:never")).await?;
        expect_release(&stage, "1", "Failed", "`kubectl argo rollouts undo web` goes back one step").await?;
        stage.apply(&new_code()).await?;
        expect_release(&stage, "2", "Progressing", "kubectl argo rollouts promote web").await?;
        promote(&stage).await?;
        expect_colors(&stage, &["green", "green", "green"], "Healthy").await?;
        expect_release(&stage, "2", "Succeeded", "").await?;
        ensure!(old_code(&stage).await.is_err(), "the new code is gone");
        Ok(())
    })
    .await;
}

/// By the word of its own controller, long before the deadline of the policy.
#[tokio::test]
async fn a_rollout_that_gives_up_by_its_own_deadline_is_put_back() {
    scenario("argo-gives-up", |stage| async move {
        set_up(&stage).await?;
        let hasty = web_rollout(REPLICAS).replace("  replicas:", "  progressDeadlineSeconds: 20\n  replicas:");
        stage.apply(&hasty).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await?;
        patch_config(&stage, "web-env", &json!({"data": {"BEHAVIOR": "never-ready"}})).await?;
        expect_release(&stage, "1", "RolledBack", "its Rollout is degraded: ProgressDeadlineExceeded").await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await
    })
    .await;
}

/// What a person decides about the code does not hold up the way back of the config, nor its next change.
#[tokio::test]
async fn a_config_goes_back_while_new_code_waits_for_a_person() {
    scenario("argo-back-midway", |stage| async move {
        set_up(&stage).await?;
        stage.apply(&web_rollout(REPLICAS)).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await?;
        stage.apply(&new_code()).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Paused").await?;
        change_to(&stage, "green").await?;
        expect_colors(&stage, &["blue", "blue", "green"], "Paused").await?;
        expect_release(&stage, "1", "Progressing", "waits for the Rollout's next step").await?;

        lockstep(&stage, &["abort", "web-env"], "").await?.expect(0, &["puts 1.0.0 back"])?;
        expect_release(&stage, "1", "Aborted", "aborted by a person").await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Paused").await?;
        ensure!(old_code(&stage).await.is_err(), "the code was nobody's to take back");

        change_to(&stage, "red").await?;
        expect_colors(&stage, &["blue", "blue", "red"], "Paused").await?;
        expect_release(&stage, "2", "Progressing", "kubectl argo rollouts promote web").await?;
        promote(&stage).await?;
        expect_colors(&stage, &["red", "red", "red"], "Healthy").await?;
        expect_release(&stage, "2", "Succeeded", "").await
    })
    .await;
}

#[tokio::test]
async fn a_repair_does_not_wait_behind_new_code_that_a_config_broke() {
    scenario("argo-repair-midway", |stage| async move {
        set_up(&stage).await?;
        stage.apply(&web_rollout(REPLICAS)).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await?;
        stage.apply(&new_code()).await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Paused").await?;
        patch_config(&stage, "web-env", &json!({"data": {"BEHAVIOR": BAD}})).await?;
        expect_release(&stage, "1", "Failed", "`lockstep abort configmap/web-env` puts back the config alone").await?;
        patch_config(&stage, "web-env", &json!({"data": {"BEHAVIOR": "healthy"}})).await?;
        expect_release(&stage, "2", "Progressing", "kubectl argo rollouts promote web").await?;
        promote(&stage).await?;
        expect_release(&stage, "2", "Succeeded", "").await?;
        expect_colors(&stage, &["blue", "blue", "blue"], "Healthy").await?;
        stage.released("configmap/web-env", "r3").await
    })
    .await;
}

fn timed(pause: &str) -> String {
    web_rollout(REPLICAS).replace("- pause: {}", &format!("- pause: {{duration: {pause}}}"))
}

/// A config that is on its way with a Rollout, which waits for so long.
async fn change_in_a_pause(stage: &Scenario, pause: &str, shown: &str) -> Result<()> {
    set_up(stage).await?;
    stage.apply(&timed(pause)).await?;
    expect_colors(stage, &["blue", "blue", "blue"], "Healthy").await?;
    change_to(stage, "green").await?;
    let told = format!("waits for the end of the Rollout's pause of {shown}, after which it goes on by itself");
    expect_release(stage, "1", "Progressing", &told).await
}

#[tokio::test]
async fn a_rollout_that_only_waits_for_its_own_time_asks_nobody_for_anything() {
    scenario("argo-timed", |stage| async move {
        change_in_a_pause(&stage, "3600", "3600s").await?;
        eventually("the status to say how far it is", SHORT, async || {
            lockstep(&stage, &["status", "web-env"], "").await?.expect(0, &["1.0.0 → r2, 1 of 3 pods"])
        })
        .await?;
        // Who stops it has to start it again.
        stage.kubectl(&["argo", "rollouts", "pause", "web"]).await?;
        let told = "Rollout web waits for `kubectl argo rollouts promote web`: somebody paused it";
        expect_release(&stage, "1", "Progressing", told).await
    })
    .await;
}

#[tokio::test]
async fn whoever_pauses_a_release_is_told_that_a_rollout_goes_on_with_its_steps() {
    scenario("argo-pause", |stage| async move {
        change_in_a_pause(&stage, "60s", "60s").await?;
        let said = lockstep(&stage, &["pause", "web-env"], "").await?;
        said.expect(0, &["Rollout web is rolling already: its own controller finishes that"])?;
        expect_release(&stage, "1", "Paused", "`kubectl argo rollouts pause web` stops it").await?;
        expect_colors(&stage, &["green", "green", "green"], "Healthy").await?;
        // It is not done before somebody says so.
        expect_release(&stage, "1", "Paused", "").await?;
        stage.released("configmap/web-env", "1.0.0").await?;
        lockstep(&stage, &["resume", "web-env"], "").await?.expect(0, &["goes on"])?;
        expect_release(&stage, "1", "Succeeded", "").await
    })
    .await;
}

#[tokio::test]
async fn whoever_has_stopped_a_rollout_of_a_paused_release_is_not_told_that_it_goes_on() {
    scenario("argo-pause-both", |stage| async move {
        change_in_a_pause(&stage, "3600", "3600s").await?;
        lockstep(&stage, &["pause", "web-env"], "").await?.expect(0, &[])?;
        expect_release(&stage, "1", "Paused", "`kubectl argo rollouts pause web` stops it").await?;
        stage.kubectl(&["argo", "rollouts", "pause", "web"]).await?;
        eventually("the advice to be gone", SHORT, async || {
            let reason = &stage.read("release/configmap-web-env-1").await?["status"]["reason"];
            let reason = reason.as_str().unwrap_or_default();
            ensure!(
                reason.contains("paused by a person") && !reason.contains("goes on with its own steps"),
                "{reason}"
            );
            Ok(())
        })
        .await
    })
    .await;
}

#[tokio::test]
async fn a_rollout_that_somebody_undoes_is_named_as_left_alone() {
    scenario("argo-undo-one", |stage| async move {
        set_up(&stage).await?;
        stage
            .set_policy("default", &ReleasePolicySpec { settle_milliseconds: Some(10_000), ..until_promoted() })
            .await?;
        let web = web_rollout(1).replace("      - setWeight: 34\n      - pause: {}\n", "      - setWeight: 100\n");
        let api = web.replace("name: web\n", "name: api\n").replace("app: web}", "app: api}");
        stage.apply(&(web + "---\n" + &api)).await?;
        expect_color(&stage, "app=web", 1, "blue").await?;
        expect_color(&stage, "app=api", 1, "blue").await?;
        change_to(&stage, "green").await?;
        expect_release(&stage, "1", "Baking", "").await?;
        stage.kubectl(&["argo", "rollouts", "undo", "web"]).await?;
        expect_color(&stage, "app=web", 1, "blue").await?;
        eventually("the operator to see it", SHORT, async || {
            let consumers = &stage.read("release/configmap-web-env-1").await?["status"]["consumers"];
            let mut all = consumers.as_array().into_iter().flatten();
            ensure!(all.any(|one| one["name"] == "web" && one["state"] == "LeftAlone"), "{consumers}");
            Ok(())
        })
        .await?;
        promote_release(&stage, "configmap-web-env-1").await?;
        let told = "1 of 2 consumers run it and are healthy. Not judged: Rollout web: somebody gave it other versions";
        expect_release(&stage, "1", "Succeeded", told).await?;
        lockstep(&stage, &["watch", "web-env"], "").await?.expect(5, &["Rollout web"])?;
        expect_color(&stage, "app=web", 1, "blue").await?;
        expect_color(&stage, "app=api", 1, "green").await
    })
    .await;
}

fn new_code() -> String {
    web_rollout(REPLICAS).replace("        envFrom:", "        env: [{name: BUILD, value: \"2\"}]\n        envFrom:")
}

/// By what the pods are made of: one that only just starts answers nobody.
async fn old_code(stage: &Scenario) -> Result<()> {
    let is_new = |pod: &&Pod| {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let mut variables = containers.flat_map(|container| container.env.iter().flatten());
        pod.metadata.deletion_timestamp.is_none() && variables.any(|variable| variable.name == "BUILD")
    };
    let pods = stage.pods("app=web").await?;
    let new: Vec<String> = pods.iter().filter(is_new).map(ResourceExt::name_any).collect();
    ensure!(new.is_empty(), "pods of the new code: {new:?}");
    Ok(())
}

/// Two configs of one color. kubectl takes its time between them, so a release waits a little longer for the second.
async fn set_up(stage: &Scenario) -> Result<()> {
    let policy = ReleasePolicySpec { settle_milliseconds: Some(10_000), ..impatient() };
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
