//! What others do in the middle of a release: delete it, freeze a workload, repair a part of what failed.

use anyhow::{Result, ensure};
use lockstep_api::ReleasePolicySpec;
use lockstep_testing::manifests::testapp_image;
use lockstep_testing::{SHORT, Scenario, eventually, impatient, scenario};
use serde_json::{Value, json};

use super::releases::{
    FIRST, SECOND, appears, config, deployment, ended, expect, phase, promote, set_up, standing, steer,
};
use super::truth::{careful, careful_for};

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
async fn a_bad_canary_whose_release_was_deleted_is_put_back() {
    scenario("deleted-bad", |stage| async move {
        stage.set_policy("default", &ReleasePolicySpec { bake_seconds: Some(40), ..impatient() }).await?;
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.apply(&config("red", "crash-after 12s")).await?;
        appears(&stage, FIRST).await?;
        phase(&stage, FIRST, "Baking").await?;
        delete(&stage, "versionedconfig/configmap-app").await?;
        ended(&stage, FIRST, "RolledBack").await?;
        expect(&stage, "app=web", &["blue"]).await
    })
    .await;
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
        // It bakes for as long as we need to look at it.
        careful_for(&stage, 600).await?;
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
        ended(&stage, SECOND, "Succeeded").await?;
        expect(&stage, "app=web", &["red"; 3]).await?;
        expect_no_gate(&stage).await
    })
    .await;
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

#[tokio::test]
async fn a_workload_that_may_not_be_changed_is_named_with_the_reason_and_follows_once_it_may() {
    scenario("frozen", |stage| async move {
        set_up(&stage, &(deployment("web", 1, "") + &deployment("api", 1, ""))).await?;
        stage.apply(&freeze(&stage.namespace)).await?;
        eventually("web to be frozen", SHORT, async || {
            let tried =
                stage.kubectl(&["annotate", "deployment", "web", "--dry-run=server", "--overwrite", "a=b"]).await;
            ensure!(tried.is_err(), "it can be changed");
            Ok(())
        })
        .await?;
        stage.apply(&config("green", "healthy")).await?;
        eventually("the reason", SHORT, async || {
            let (_, reason) = standing(&stage, FIRST).await?;
            let is_told = reason.contains("Deployment web cannot be written") && reason.contains("frozen until Monday");
            ensure!(is_told, "{reason}");
            Ok(())
        })
        .await?;
        expect(&stage, "app=api", &["green"]).await?;
        let name = format!("frozen-{}", stage.namespace);
        stage.kubectl(&["delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", &name]).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green"]).await
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
        stage.released("configmap/app", "r2").await?;
        expect(&stage, "app=web", &["green"; 3]).await
    })
    .await;
}
