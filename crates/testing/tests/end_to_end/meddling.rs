//! What others do in the middle of a release: delete it, freeze a workload, repair a part of what failed.

use anyhow::{Context, Result, ensure};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use lockstep_api::{Canary, FailureLimits, ReleasePolicySpec};
use lockstep_testing::manifests::{config_map, testapp_image};
use lockstep_testing::{LONG, SHORT, Scenario, eventually, impatient, scenario};
use serde_json::{Value, json};

use super::releases::{
    FIRST, SECOND, appears, config, deployment, ended, expect, phase, promote, set_up, standing, steer, until_promoted,
};
use super::truth::{MOOD, careful};

/// No field of a gate is left in a Deployment.
async fn expect_no_gate(stage: &Scenario) -> Result<()> {
    eventually("no gate", SHORT, async || {
        let found = stage.read("deployment/web").await?;
        let (gate, spec) = (&found["metadata"]["annotations"]["lockstep.dev/gate"], &found["spec"]);
        ensure!(gate.is_null() && spec["minReadySeconds"].is_null(), "{gate}, {spec}");
        Ok(())
    })
    .await
}

async fn uid(stage: &Scenario, object: &str) -> Result<Value> {
    Ok(stage.read(object).await?["metadata"]["uid"].clone())
}

/// Deletes what is written again by itself.
pub(crate) async fn delete(stage: &Scenario, object: &str) -> Result<()> {
    let before = uid(stage, object).await?;
    stage.kubectl(&["delete", object]).await?;
    eventually(&format!("{object} to be there again"), SHORT, async || {
        ensure!(uid(stage, object).await? != before, "it is the old one");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_canary_goes_on_where_it_was_when_somebody_deletes_its_release_or_its_versioned_config() {
    scenario("deleted", |stage| async move {
        careful(&stage).await?;
        delete(&stage, &format!("release/{FIRST}")).await?;
        phase(&stage, FIRST, "Baking").await?;
        expect(&stage, "app=web", &["blue", "blue", "blue", "green"]).await?;
        delete(&stage, "versionedconfig/configmap-app").await?;
        appears(&stage, FIRST).await?;
        phase(&stage, FIRST, "Baking").await?;
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green"; 3]).await?;
        stage.released("configmap/app", "r2").await?;
        expect_no_gate(&stage).await?;

        // A gate that is nobody's: from a backup, or from a release that went while the operator was away.
        let gate = json!({"was": {"minReadySeconds": null}, "set": {"minReadySeconds": 70}}).to_string();
        let patch = json!({"metadata": {"annotations": {"lockstep.dev/gate": gate}}, "spec": {"minReadySeconds": 70}});
        steer(&stage, "deployment/web", &patch.to_string()).await?;
        expect_no_gate(&stage).await
    })
    .await;
}

#[tokio::test]
async fn a_canary_whose_release_was_deleted_and_that_crashes_then_is_put_back() {
    scenario("deleted-bad", |stage| async move {
        moody_canary(&stage).await?;
        delete(&stage, &format!("release/{FIRST}")).await?;
        phase(&stage, FIRST, "Baking").await?;
        turn_bad(&stage).await?;
        delete_green_pod(&stage).await?;
        is_put_back(&stage).await
    })
    .await;
}

#[tokio::test]
async fn a_canary_whose_versioned_config_was_deleted_and_that_crashes_then_is_put_back() {
    scenario("forgotten-bad", |stage| async move {
        moody_canary(&stage).await?;
        delete(&stage, "versionedconfig/configmap-app").await?;
        appears(&stage, FIRST).await?;
        phase(&stage, FIRST, "Baking").await?;
        turn_bad(&stage).await?;
        delete_green_pod(&stage).await?;
        is_put_back(&stage).await
    })
    .await;
}

/// The code is the same, so the config answers for what comes with a restart.
#[tokio::test]
async fn a_restart_that_goes_bad_in_a_canary_is_put_back() {
    scenario("restart-bad", |stage| async move {
        moody_canary(&stage).await?;
        turn_bad(&stage).await?;
        stage.kubectl(&["rollout", "restart", "deployment/web"]).await?;
        eventually("the way back", LONG, async || {
            let (phase, reason) = standing(&stage, FIRST).await?;
            ensure!(phase == "RollingBack", "it is {phase}: {reason}");
            Ok(())
        })
        .await?;
        // Pods of the restarted template are new ones also with the old config: until now they crash, too.
        stage.kubectl(&["delete", "configmap", "mood"]).await?;
        is_put_back(&stage).await
    })
    .await;
}

/// Three pods that do well, the first of which bakes with the new version until somebody ends it. One that starts from now on can be made
/// to crash, at whatever time suits: its mood is read at its start only.
async fn moody_canary(stage: &Scenario) -> Result<()> {
    let canary = Some(Canary { size: IntOrString::Int(1) });
    // A crash loop is bad, but pods that crashed a few times may get well.
    let failure = Some(FailureLimits { max_restarts: Some(100), ..FailureLimits::default() });
    stage.set_policy("default", &ReleasePolicySpec { canary, failure, ..until_promoted() }).await?;
    set_up(stage, &deployment("web", 3, MOOD)).await?;
    stage.apply(&config("green", "healthy")).await?;
    phase(stage, FIRST, "Baking").await?;
    expect(stage, "app=web", &["blue", "blue", "blue", "green"]).await
}

async fn turn_bad(stage: &Scenario) -> Result<()> {
    stage.apply(&config_map("mood", "BEHAVIOR", "crash")).await
}

async fn delete_green_pod(stage: &Scenario) -> Result<()> {
    let seen = stage.seen("app=web", |report| report.loaded.env.get("COLOR").cloned()).await?;
    let green = seen.iter().find(|(_, color)| *color == "green").context("no pod sees green")?;
    stage.kubectl(&["delete", "pod", green.0]).await.map(drop)
}

async fn is_put_back(stage: &Scenario) -> Result<()> {
    ended(stage, FIRST, "RolledBack").await?;
    let (_, reason) = standing(stage, FIRST).await?;
    ensure!(!reason.contains("changed its code"), "{reason}");
    expect(stage, "app=web", &["blue"; 3]).await?;
    expect_no_gate(stage).await
}

/// Also right after the adoption, when no ReplicaSet owns the version yet.
#[tokio::test]
async fn whoever_deletes_a_versioned_config_loses_nothing() {
    scenario("forgotten", |stage| async move {
        let asleep = deployment("web", 0, "");
        stage.set_policy("default", &impatient()).await?;
        stage.apply(&config("blue", "healthy")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        let versions = async || -> Result<Vec<String>> {
            let found = stage.versions("configmap/app").await?;
            Ok(found.iter().map(|version| format!("{version:?}")).collect())
        };
        let before = versions().await?;
        delete(&stage, "versionedconfig/configmap-app").await?;
        stage.released("configmap/app", "1.0.0").await?;
        ensure!(versions().await? == before, "{:?} instead of {before:?}", versions().await?);
        // What is held, and what a person chose, is remembered, too.
        stage.apply(&asleep).await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        let choose = r#"{"spec": {"current": {"version": "1.0.0"}}}"#;
        steer(&stage, "versionedconfig/configmap-app", choose).await?;
        stage.released("configmap/app", "1.0.0").await?;
        delete(&stage, "versionedconfig/configmap-app").await?;
        stage.released("configmap/app", "1.0.0").await?;
        let found = stage.read("versionedconfig/configmap-app").await?;
        ensure!(found["spec"]["current"]["version"] == "1.0.0", "{}", found["spec"]);
        ensure!(versions().await?.len() == 2, "{:?}", versions().await?);
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_manifest_that_opens_a_canarys_gate_is_told() {
    scenario("forced", |stage| async move {
        careful(&stage).await?;
        // Neither the gate nor the note of it is in the manifest.
        stage.kubectl_with_input(&["replace", "-f", "-"], &deployment("web", 3, "")).await?;
        eventually("the reason to tell", SHORT, async || {
            let (_, reason) = standing(&stage, FIRST).await?;
            ensure!(reason.contains("Deployment web does not stop after its first pods"), "{reason}");
            Ok(())
        })
        .await?;
        expect(&stage, "app=web", &["green"; 3]).await?;
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Succeeded").await
    })
    .await;
}

#[tokio::test]
async fn an_edit_of_what_is_paused_is_paused_too() {
    scenario("paused-edit", |stage| async move {
        careful(&stage).await?;
        steer(&stage, &format!("release/{FIRST}"), r#"{"spec": {"paused": true}}"#).await?;
        phase(&stage, FIRST, "Paused").await?;
        stage.apply(&config("red", "healthy")).await?;
        appears(&stage, SECOND).await?;
        phase(&stage, SECOND, "Paused").await?;
        steer(&stage, &format!("release/{SECOND}"), r#"{"spec": {"paused": false}}"#).await?;
        promote(&stage, SECOND).await?;
        ended(&stage, SECOND, "Succeeded").await?;
        expect(&stage, "app=web", &["red"; 3]).await?;
        expect_no_gate(&stage).await
    })
    .await;
}

/// By the clock, a gate is renewed after minutes only. This one is about to fall.
#[tokio::test]
async fn the_gate_of_a_paused_canary_is_renewed() {
    scenario("renewed", |stage| async move {
        careful(&stage).await?;
        steer(&stage, &format!("release/{FIRST}"), r#"{"spec": {"paused": true}}"#).await?;
        phase(&stage, FIRST, "Paused").await?;
        let found = stage.read("deployment/web").await?;
        let mut gate = gate_of(&found)?;
        let holds = seconds(&found["spec"]["minReadySeconds"]);
        ensure!(holds > 1000 && seconds(&gate["set"]["minReadySeconds"]) == holds, "{holds} s, {gate}");
        gate["set"]["minReadySeconds"] = json!(301);
        let patch = json!({
            "metadata": {"annotations": {"lockstep.dev/gate": gate.to_string()}}, "spec": {"minReadySeconds": 301},
        });
        steer(&stage, "deployment/web", &patch.to_string()).await?;
        eventually("the gate to be renewed", SHORT, async || {
            let found = stage.read("deployment/web").await?;
            let (gate, holds) = (gate_of(&found)?, seconds(&found["spec"]["minReadySeconds"]));
            ensure!(holds > 1000 && seconds(&gate["set"]["minReadySeconds"]) == holds, "{holds} s, {gate}");
            Ok(())
        })
        .await?;
        phase(&stage, FIRST, "Paused").await?;
        expect(&stage, "app=web", &["blue", "blue", "blue", "green"]).await
    })
    .await;
}

fn seconds(field: &Value) -> u64 {
    field.as_u64().unwrap_or_default()
}

fn gate_of(deployment: &Value) -> Result<Value> {
    let note = deployment["metadata"]["annotations"]["lockstep.dev/gate"].as_str().context("it has no gate")?;
    Ok(serde_json::from_str(note)?)
}

/// A rule that lets nobody change the Deployment `web`.
fn freeze(namespace: &str) -> String {
    format!(
        "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: frozen-{namespace}}}
spec:
  matchConstraints:
    namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}
    resourceRules:
    - {{apiGroups: [apps], apiVersions: [v1], operations: [UPDATE], resources: [deployments]}}
  validations:
  - {{expression: object.metadata.name != 'web', message: web is frozen until Monday}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: frozen-{namespace}}}
spec: {{policyName: frozen-{namespace}, validationActions: [Deny]}}
"
    )
}

/// From here on nobody changes the Deployment `web`.
async fn frozen(stage: &Scenario) -> Result<()> {
    stage.apply(&freeze(&stage.namespace)).await?;
    eventually("web to be frozen", SHORT, async || {
        let tried = stage.kubectl(&["annotate", "deployment", "web", "--dry-run=server", "--overwrite", "a=b"]).await;
        ensure!(tried.is_err(), "it can be changed");
        Ok(())
    })
    .await
}

async fn thawed(stage: &Scenario) -> Result<()> {
    let name = format!("frozen-{}", stage.namespace);
    let both = "validatingadmissionpolicybinding,validatingadmissionpolicy";
    stage.kubectl(&["delete", both, &name]).await.map(drop)
}

#[tokio::test]
async fn a_workload_that_may_not_be_changed_is_named_with_the_reason_and_follows_once_it_may() {
    scenario("frozen", |stage| async move {
        set_up(&stage, &(deployment("web", 1, "") + &deployment("api", 1, ""))).await?;
        frozen(&stage).await?;
        stage.apply(&config("green", "healthy")).await?;
        refusal_is_told(&stage).await?;
        expect(&stage, "app=api", &["green"]).await?;
        thawed(&stage).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

/// In the API server's own words, forward and on the way back.
async fn refusal_is_told(stage: &Scenario) -> Result<String> {
    eventually("the reason", SHORT, async || {
        let (phase, reason) = standing(stage, FIRST).await?;
        let is_told = reason.contains("Deployment web cannot be written") && reason.contains("frozen until Monday");
        ensure!(is_told, "{phase}: {reason}");
        Ok(phase)
    })
    .await
}

#[tokio::test]
async fn a_workload_that_may_not_go_back_is_named_and_the_others_go_back() {
    scenario("frozen-back", |stage| async move {
        let patient = ReleasePolicySpec { progress_deadline_seconds: Some(3600), ..until_promoted() };
        stage.set_policy("default", &patient).await?;
        set_up(&stage, &(deployment("web", 1, "") + &deployment("api", 1, ""))).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        frozen(&stage).await?;
        steer(&stage, &format!("release/{FIRST}"), r#"{"spec": {"abort": true}}"#).await?;
        let now = refusal_is_told(&stage).await?;
        ensure!(now == "RollingBack", "it is {now}");
        expect(&stage, "app=api", &["blue"]).await?;
        eventually("api to be back", SHORT, async || {
            let consumers = &stage.read(&format!("release/{FIRST}")).await?["status"]["consumers"];
            let mut all = consumers.as_array().into_iter().flatten();
            ensure!(all.any(|one| one["name"] == "api" && one["state"] == "Restored"), "{consumers}");
            Ok(())
        })
        .await?;
        let hasty = ReleasePolicySpec { progress_deadline_seconds: Some(10), ..until_promoted() };
        stage.set_policy("default", &hasty).await?;
        ended(&stage, FIRST, "Failed").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(reason.contains("Not all is back: Deployment web cannot be written"), "{reason}");
        expect(&stage, "app=web", &["green"]).await?;
        thawed(&stage).await
    })
    .await;
}

#[tokio::test]
async fn when_one_of_two_configs_that_failed_together_is_repaired_the_other_comes_along() {
    scenario("pair", |stage| async move {
        let token = |value: &str| {
            format!(
                "\n---\napiVersion: v1\nkind: Secret\nmetadata: {{name: token, labels: {{lockstep.dev/versioned: \"true\"}}}}\nstringData: {{TOKEN: {value}}}\n"
            )
        };
        let variable = "env:\n- name: TOKEN\n  valueFrom: {secretKeyRef: {name: token, key: TOKEN}}\n";
        // Long enough for both to be seen, also where everything is slow.
        stage.set_policy("default", &ReleasePolicySpec { settle_milliseconds: Some(8_000), ..impatient() }).await?;
        stage.apply(&token("old")).await?;
        set_up(&stage, &deployment("web", 1, variable)).await?;
        stage.released("secret/token", "1.0.0").await?;
        stage.apply(&(config("red", "crash") + &token("new"))).await?;
        ended(&stage, FIRST, "RolledBack").await?;
        let moves = stage.read(&format!("release/{FIRST}")).await?["spec"]["moves"].as_array().map_or(0, Vec::len);
        ensure!(moves == 2, "it moved {moves} configs");
        stage.apply(&config("green", "healthy")).await?;
        stage.released("configmap/app", "r3").await?;
        stage.released("secret/token", "r2").await?;
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

#[tokio::test]
async fn when_code_that_failed_with_a_config_is_repaired_the_config_comes_along() {
    scenario("repaired", |stage| async move {
        careful(&stage).await?;
        stage.kubectl(&["set", "image", "deployment/web", "app=lockstep.dev/nothing:never"]).await?;
        ended(&stage, FIRST, "Failed").await?;
        expect_no_gate(&stage).await?;
        let container = json!({"name": "app", "image": testapp_image(), "env": [{"name": "BUILD", "value": "3"}]});
        let patch = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
        stage.kubectl(&["patch", "deployment/web", "-p", &patch.to_string()]).await?;
        appears(&stage, SECOND).await?;
        promote(&stage, SECOND).await?;
        stage.released("configmap/app", "r2").await?;
        expect(&stage, "app=web", &["green"; 3]).await
    })
    .await;
}
