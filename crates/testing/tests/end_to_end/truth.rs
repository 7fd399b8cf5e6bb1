//! A release says what is: situations in which it is easy to say something else.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use lockstep_api::{Canary, FailureLimits, ReleasePolicySpec};
use lockstep_testing::manifests::{config_map, indent, testapp_image, versioned};
use lockstep_testing::{LONG, SHORT, Scenario, command_line, eventually, holds, impatient, scenario};
use serde_json::Value;

use super::audit::OPERATOR;
use super::cli::lockstep;
use super::releases::{
    ENV_FROM, FIRST, SECOND, appears, config, deployment, ended, expect, phase, pods, promote, set_up, standing, steer,
    until_promoted,
};
use super::storms::offered;

/// Whoever starts behaves as the ConfigMap `mood` says, which has no versions, and well if there is none.
pub(crate) const MOOD: &str =
    "env:\n- name: BEHAVIOR\n  valueFrom: {configMapKeyRef: {name: mood, key: BEHAVIOR, optional: true}}\n";

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
        let policy = ReleasePolicySpec { progress_deadline_seconds: Some(45), ..impatient() };
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
        // What it said before stays in its status until it has a new ReplicaSet, which may take its time.
        steer(&stage, "deployment/web", r#"{"spec": {"progressDeadlineSeconds": 600}}"#).await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

#[tokio::test]
async fn who_is_recreated_in_the_middle_is_judged_like_everybody() {
    scenario("recreated", |stage| async move {
        let stays_well = "env: [{name: BEHAVIOR, value: healthy}]\n";
        set_up(&stage, &(deployment("web", 1, "") + &deployment("api", 1, stays_well))).await?;
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
        watch(&stage, 5, "Deployment asleep: it is scaled to zero").await?;
        expect_condition(&stage, FIRST, "Succeeded", "True").await?;
        expect_condition(&stage, FIRST, "Judged", "False").await?;
        // Whoever asks later hears the same.
        watch(&stage, 5, "Deployment asleep: it is scaled to zero").await
    })
    .await;
}

/// `lockstep watch app` ends with this code, and says this.
async fn watch(stage: &Scenario, code: i32, words: &str) -> Result<()> {
    let watch = tokio::process::Command::new(command_line().await?)
        .args(["watch", "app", "--namespace", &stage.namespace])
        .output()
        .await?;
    let said = String::from_utf8_lossy(&watch.stdout).into_owned();
    ensure!(watch.status.code() == Some(code), "it ended with {}: {said}", watch.status);
    ensure!(said.contains(words), "{said}");
    Ok(())
}

#[tokio::test]
async fn whoever_runs_it_only_after_the_release_is_judged_then() {
    scenario("later", |stage| async move {
        let broken = deployment("broken", 0, "").replace(testapp_image().as_str(), "lockstep.dev/nothing:never");
        set_up(&stage, &(deployment("web", 1, "") + &deployment("asleep", 0, "") + &broken)).await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        let says = async |words: &str| {
            eventually(words, LONG, async || {
                let (_, reason) = standing(&stage, FIRST).await?;
                ensure!(reason.contains(words), "{reason}");
                Ok(())
            })
            .await
        };
        says("1 of 3 consumers run it and are healthy").await?;
        stage.kubectl(&["scale", "deployment/asleep", "--replicas=1"]).await?;
        says("2 of 3 consumers run it and are healthy").await?;
        expect(&stage, "app=asleep", &["green"]).await?;
        stage.kubectl(&["scale", "deployment/broken", "--replicas=1"]).await?;
        says("Deployment broken: it ran it only after the release, and is bad").await?;
        let events = stage.kubectl(&["events", "--for", "configmap/app"]).await?;
        ensure!(events.contains("JudgedLater"), "{events}");
        watch(&stage, 5, "Deployment broken: it ran it only after the release").await
    })
    .await;
}

#[tokio::test]
async fn a_new_workload_that_does_not_run_takes_nobody_back() {
    scenario("newcomer", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.set_policy("default", &until_promoted()).await?;
        let new = deployment("new", 1, "").replace(testapp_image().as_str(), "lockstep.dev/nothing:never");
        stage.apply(&(config("green", "healthy") + &new)).await?;
        appears(&stage, FIRST).await?;
        phase(&stage, FIRST, "Baking").await?;
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(reason.contains("Deployment new: it is new, and not well"), "{reason}");
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

#[tokio::test]
async fn a_new_workload_that_is_alone_and_bad_is_left_to_its_owner() {
    scenario("newcomer-alone", |stage| async move {
        // Nobody else uses it: without a wait the release would be over before its first consumer comes.
        let policy = ReleasePolicySpec { settle_milliseconds: Some(20_000), ..impatient() };
        stage.set_policy("default", &policy).await?;
        stage.apply(&config("blue", "healthy")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        stage.apply(&config("green", "healthy")).await?;
        offered(&stage, "configmap/app").await?;
        let bad = deployment("web", 1, "").replace(testapp_image().as_str(), "lockstep.dev/nothing:never");
        stage.apply(&bad).await?;
        ended(&stage, FIRST, "Failed").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        let is_told = reason.contains("It is new, so it is left to you") && !reason.contains("rollout undo");
        ensure!(is_told, "{reason}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn who_comes_right_after_an_abort_goes_back_with_the_others() {
    scenario("latecomer", |stage| async move {
        stage.set_policy("default", &until_promoted()).await?;
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        steer(&stage, &format!("release/{FIRST}"), r#"{"spec": {"abort": true}}"#).await?;
        stage.apply(&deployment("late", 1, "")).await?;
        ended(&stage, FIRST, "Aborted").await?;
        expect(&stage, "app=late", &["blue"]).await?;
        expect(&stage, "app=web", &["blue"]).await
    })
    .await;
}

#[tokio::test]
async fn who_is_made_anew_or_undone_while_all_go_back_goes_back_too() {
    scenario("undone-on-the-way", |stage| async move {
        stage.set_policy("default", &ReleasePolicySpec { bake_seconds: Some(600), ..impatient() }).await?;
        let (fast, anew) = (deployment("fast", 1, ""), deployment("anew", 1, ""));
        // Its old pod comes only when the new one is gone, which takes its time: until then, the others are long back.
        let waits = "terminationGracePeriodSeconds: 20";
        let slow = deployment("slow", 1, "lifecycle: {preStop: {sleep: {seconds: 12}}}\n")
            .replace("terminationGracePeriodSeconds: 1\n", &format!("{waits}\n"))
            .replace("  replicas:", "  strategy: {type: Recreate}\n  replicas:");
        ensure!(slow.contains(waits) && slow.contains("Recreate"), "{slow}");
        set_up(&stage, &(fast + &anew + &slow)).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        steer(&stage, &format!("release/{FIRST}"), r#"{"spec": {"abort": true}}"#).await?;
        eventually("two of them to be back", SHORT, async || {
            let consumers = stage.read(&format!("release/{FIRST}")).await?["status"]["consumers"].clone();
            let states: Vec<_> = consumers.as_array().into_iter().flatten().map(|one| one["state"].clone()).collect();
            ensure!(states.iter().filter(|state| *state == "Restored").count() >= 2, "{states:?}");
            Ok(())
        })
        .await?;
        stage.kubectl(&["rollout", "undo", "deployment/fast"]).await?;
        stage.kubectl_with_input(&["replace", "--force", "-f", "-"], &deployment("anew", 1, "")).await?;
        ended(&stage, FIRST, "Aborted").await?;
        for name in ["fast", "anew", "slow"] {
            expect(&stage, &format!("app={name}"), &["blue"]).await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_change_that_waits_goes_nowhere_once_its_config_opts_out() {
    scenario("waits-and-opts-out", |stage| async move {
        let mood = |behavior: &str| versioned("mood", &format!("data:\n  BEHAVIOR: {behavior}\n---"));
        stage.set_policy("default", &until_promoted()).await?;
        stage.apply(&mood("healthy")).await?;
        stage.released("configmap/mood", "1.0.0").await?;
        set_up(&stage, &deployment("web", 1, MOOD)).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.apply(&mood("crash")).await?;
        phase(&stage, "configmap-mood-1", "Pending").await?;
        stage.kubectl(&["label", "configmap", "mood", "lockstep.dev/versioned-"]).await?;
        ended(&stage, "configmap-mood-1", "Superseded").await?;
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

#[tokio::test]
async fn what_changed_while_its_config_had_opted_out_is_released_when_it_opts_in() {
    scenario("out-and-in", |stage| async move {
        stage.set_policy("default", &impatient()).await?;
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        stage.kubectl(&["label", "configmap", "app", "lockstep.dev/versioned-"]).await?;
        eventually("the table to forget it", SHORT, async || {
            let current = stage.kubectl(&["get", "pintable", "lockstep", "-o", "jsonpath={.spec.current}"]).await?;
            ensure!(!current.contains("configmap/app"), "{current}");
            Ok(())
        })
        .await?;
        lockstep(&stage, &["rollback", "app", "--to", "1.0.0"], "").await?.expect(1, &["has opted out"])?;
        stage.kubectl(&["patch", "configmap", "app", "-p", r#"{"data": {"BEHAVIOR": "crash"}}"#]).await?;
        stage.kubectl(&["label", "configmap", "app", "lockstep.dev/versioned=true"]).await?;
        ended(&stage, SECOND, "RolledBack").await?;
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

#[tokio::test]
async fn a_change_whose_consumers_are_all_gone_is_released_anew() {
    scenario("all-gone", |stage| async move {
        stage.set_policy("default", &until_promoted()).await?;
        let web = deployment("web", 1, "");
        set_up(&stage, &web).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.kubectl(&["delete", "deployment", "web"]).await?;
        eventually("the operator to see it", SHORT, async || {
            let consumers = &stage.read(&format!("release/{FIRST}")).await?["status"]["consumers"];
            ensure!(consumers[0]["state"] == "Gone", "{consumers}");
            Ok(())
        })
        .await?;
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Failed").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(reason.contains("Deployment web: it is gone") && reason.contains("It is released anew"), "{reason}");
        ended(&stage, SECOND, "Succeeded").await?;
        let (_, reason) = standing(&stage, SECOND).await?;
        ensure!(reason == "it is current; nobody uses it yet", "{reason}");
        stage.apply(&web).await?;
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

#[tokio::test]
async fn what_a_policy_leaves_to_a_person_goes_back_when_they_say_so() {
    scenario("by-hand", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.set_policy("default", &ReleasePolicySpec { automatic_rollback: Some(false), ..impatient() }).await?;
        stage.apply(&config("red", "crash")).await?;
        ended(&stage, FIRST, "Failed").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(reason.contains("`lockstep abort configmap/app` puts the old version back"), "{reason}");
        let said = tokio::process::Command::new(command_line().await?)
            .args(["abort", "app", "--namespace", &stage.namespace])
            .output()
            .await?;
        ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        ended(&stage, FIRST, "Aborted").await?;
        expect(&stage, "app=web", &["blue"]).await
    })
    .await;
}

#[tokio::test]
async fn taking_a_change_back_that_was_left_to_a_person_takes_everybody_back() {
    scenario("left", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.set_policy("default", &ReleasePolicySpec { automatic_rollback: Some(false), ..impatient() }).await?;
        stage.apply(&config("red", "crash")).await?;
        ended(&stage, FIRST, "Failed").await?;
        stage.apply(&config("blue", "healthy")).await?;
        watch(&stage, 0, "1.0.0 is current").await?;
        ended(&stage, SECOND, "Succeeded").await?;
        expect(&stage, "app=web", &["blue"]).await
    })
    .await;
}

/// A later release moves only those whose keys it changes. Whoever the one before could not judge is still that one's to judge.
#[tokio::test]
async fn a_later_release_of_other_keys_does_not_make_us_forget_who_was_not_judged() {
    scenario("debt", |stage| async move {
        let breaks = deployment("asleep", 0, "env:\n- name: BEHAVIOR\n  valueFrom: {configMapKeyRef: {name: app, key: OTHER}}\n")
            .replace(&indent(ENV_FROM, 6), "");
        set_up(&stage, &(deployment("web", 1, "") + &breaks)).await?;
        stage.apply(&config("blue", "healthy").replace("OTHER: healthy", "OTHER: crash")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        stage.apply(&config("green", "healthy").replace("OTHER: healthy", "OTHER: crash")).await?;
        ended(&stage, SECOND, "Succeeded").await?;
        stage.kubectl(&["scale", "deployment/asleep", "--replicas=1"]).await?;
        eventually("the verdict on who woke up", LONG, async || {
            let (_, reason) = standing(&stage, FIRST).await?;
            let words = "it was current; 1 of 2 consumers run it and are healthy. Not judged: Deployment asleep: it ran it only after the release, and is bad";
            ensure!(reason.contains(words), "{reason}");
            Ok(())
        })
        .await
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
        expect(&stage, "app=web", &["green", "green", "green"]).await?;
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        let spec = &stage.read("deployment/web").await?["spec"];
        ensure!(spec["minReadySeconds"].is_null() && spec["strategy"]["type"] == "Recreate", "{spec}");
        Ok(())
    })
    .await;
}

/// Nobody replaces its pods any more but a person: what they run is what they ran.
#[tokio::test]
async fn a_stateful_set_that_turns_to_pods_by_hand_in_its_canary_ends_it_in_an_orderly_way() {
    scenario("by-hand-midway", |stage| async move {
        let canary = Some(Canary { size: IntOrString::Int(1) });
        stage.set_policy("default", &ReleasePolicySpec { canary, ..until_promoted() }).await?;
        set_up(&stage, &stateful_set(&deployment("db", 3, ""))).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        let by_hand = r#"{"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}}}"#;
        steer(&stage, "statefulset/db", by_hand).await?;
        eventually("its gate to be open", SHORT, async || {
            let gate = stage.read("statefulset/db").await?["metadata"]["annotations"]["lockstep.dev/gate"].clone();
            ensure!(gate.is_null(), "{gate}");
            Ok(())
        })
        .await?;
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect_condition(&stage, FIRST, "Judged", "False").await?;
        let found = stage.read("statefulset/db").await?;
        let (annotations, strategy) = (&found["metadata"]["annotations"], &found["spec"]["updateStrategy"]);
        ensure!(
            annotations["lockstep.dev/gate"].is_null() && strategy["type"] == "OnDelete",
            "{annotations} {strategy}"
        );
        expect(&stage, "app=db", &["blue", "blue", "green"]).await
    })
    .await;
}

#[tokio::test]
async fn what_somebody_changes_behind_the_gate_stays_as_they_want_it() {
    scenario("borrowed", |stage| async move {
        careful(&stage).await?;
        steer(&stage, "deployment/web", r#"{"spec": {"minReadySeconds": 2}}"#).await?;
        expect(&stage, "app=web", &["green", "green", "green"]).await?;
        promote(&stage, FIRST).await?;
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
        stage.set_policy("default", &ReleasePolicySpec { canary: Some(Canary { size }), ..until_promoted() }).await?;
        let set = stateful_set(&deployment("db", 3, ""));
        set_up(&stage, &(deployment("web", 5, "") + &set)).await?;
        stage.apply(&config("green", "healthy")).await?;
        appears(&stage, FIRST).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.kubectl(&["scale", "deployment/web", "--replicas=6"]).await?;
        stage.kubectl(&["scale", "statefulset/db", "--replicas=2"]).await?;
        expect(&stage, "app=db", &["blue", "green"]).await?;
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=db", &["green", "green"]).await?;
        expect(&stage, "app=web", &["green"; 6]).await
    })
    .await;
}

/// As an autoscaler does: Kubernetes divides the pods as they were, the canary waits for the same ones, and nothing else follows.
#[tokio::test]
async fn a_canary_stays_a_canary_when_its_workload_grows_threefold_and_shrinks_again() {
    scenario("grows", |stage| async move {
        let size = IntOrString::String("50%".into());
        stage.set_policy("default", &ReleasePolicySpec { canary: Some(Canary { size }), ..until_promoted() }).await?;
        set_up(&stage, &deployment("web", 2, "")).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        let batch = ["blue", "blue", "green"];
        expect(&stage, "app=web", &batch).await?;
        stage.kubectl(&["scale", "deployment/web", "--replicas=6"]).await?;
        expect(&stage, "app=web", &["blue", "blue", "blue", "blue", "blue", "green", "green"]).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.kubectl(&["scale", "deployment/web", "--replicas=2"]).await?;
        expect(&stage, "app=web", &batch).await?;
        holds("it is a canary, and bakes", Duration::from_secs(5), async || {
            let (phase, reason) = standing(&stage, FIRST).await?;
            ensure!(phase == "Baking", "it is {phase}: {reason}");
            ensure!(stage.pods("app=web").await?.len() == batch.len(), "{:?}", pods(&stage, "app=web").await?);
            Ok(())
        })
        .await?;
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green", "green"]).await?;
        let found = stage.read("deployment/web").await?;
        ensure!(found["spec"]["minReadySeconds"].is_null(), "the gate is left: {}", found["spec"]);
        Ok(())
    })
    .await;
}

/// Until when a release that bakes says that it watches the pods.
async fn watched_until(stage: &Scenario) -> Result<Timestamp> {
    let (_, reason) = standing(stage, FIRST).await?;
    let time = reason.strip_prefix("all new pods are ready and are watched until ").context(reason.clone())?;
    time.parse::<Timestamp>().context(reason)
}

#[tokio::test]
async fn pods_that_come_during_the_bake_are_watched_as_long_as_those_before() {
    scenario("bakes-anew", |stage| async move {
        stage.set_policy("default", &until_promoted()).await?;
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        let new: [&[&str]; 2] =
            [&["rollout", "restart", "deployment/web"], &["set", "env", "deployment/web", "BUILD=2"]];
        for comes in new {
            let before = eventually("the bake", SHORT, async || watched_until(&stage).await).await?;
            // A kubelet tells times in whole seconds.
            tokio::time::sleep(Duration::from_secs(2)).await;
            stage.kubectl(comes).await?;
            eventually(&format!("the bake of the pods of {comes:?}"), SHORT, async || {
                let now = watched_until(&stage).await?;
                ensure!(now > before, "they are watched until {now}, as those before");
                Ok(())
            })
            .await?;
        }
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

#[tokio::test]
async fn of_a_config_that_nobody_uses_nobody_is_called_healthy() {
    scenario("unused", |stage| async move {
        stage.apply(&config("blue", "healthy")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        let release = ["release", "-f", "-", "--force-conflicts", "--wait", "--timeout", "300s"];
        let released = lockstep(&stage, &release, &config("green", "healthy")).await?;
        released.expect(0, &["r2 is current"])?;
        ended(&stage, FIRST, "Succeeded").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(reason == "it is current; nobody uses it yet", "{reason}");
        expect_condition(&stage, FIRST, "Succeeded", "True").await?;
        // Nobody is left who was not judged, so neither code nor condition say so.
        expect_condition(&stage, FIRST, "Judged", "True").await?;
        let watched = lockstep(&stage, &["watch", &format!("release/{FIRST}")], "").await?;
        watched.expect(0, &["nobody uses it yet"])?;
        watch(&stage, 0, "configmap/app is at r2").await
    })
    .await;
}

/// It failed for a reason outside of it, which is gone: what runs everywhere is not held.
#[tokio::test]
async fn after_a_retry_that_succeeds_nothing_is_held() {
    scenario("retried", |stage| async move {
        set_up(&stage, &deployment("web", 1, MOOD)).await?;
        let held = async || -> Result<Value> {
            Ok(stage.read("versionedconfig/configmap-app").await?["status"]["held"].clone())
        };
        stage.apply(&config_map("mood", "BEHAVIOR", "crash")).await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, FIRST, "RolledBack").await?;
        ensure!(held().await?["version"] == "r2", "held: {}", held().await?);
        stage.kubectl(&["delete", "configmap", "mood"]).await?;
        let retried = lockstep(&stage, &["retry", "app", "--wait", "--timeout", "300s"], "").await?;
        retried.expect(0, &["r2 is current"])?;
        ended(&stage, SECOND, "Succeeded").await?;
        expect(&stage, "app=web", &["green"]).await?;
        ensure!(held().await?.is_null(), "{} is held", held().await?);
        ensure!(current(&stage).await? == "r2", "{} is current", current(&stage).await?);
        lockstep(&stage, &["retry", "app"], "").await?.expect(1, &["no version of configmap/app is held"])
    })
    .await;
}

#[tokio::test]
async fn who_keeps_pods_back_keeps_them_back_in_a_canary_too() {
    scenario("partition", |stage| async move {
        let canary = Some(Canary { size: IntOrString::Int(2) });
        let policy =
            ReleasePolicySpec { bake_seconds: Some(8), progress_deadline_seconds: Some(30), canary, ..impatient() };
        stage.set_policy("default", &policy).await?;
        let set = stateful_set(&deployment("db", 3, ""))
            .replace("  serviceName: db", "  serviceName: db\n  updateStrategy: {rollingUpdate: {partition: 2}}");
        set_up(&stage, &set).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        expect(&stage, "app=db", &["blue", "blue", "green"]).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=db", &["blue", "blue", "green"]).await?;
        let strategy = &stage.read("statefulset/db").await?["spec"]["updateStrategy"];
        ensure!(strategy["rollingUpdate"]["partition"] == 2, "{strategy}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn old_pods_that_restarted_once_upon_a_time_hide_no_crash_loop() {
    scenario("restarted", |stage| async move {
        stage.apply(&config("blue", "healthy")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        // The pod crashes for as long as this config is there, which is read again at each start.
        stage.apply(&(config_map("mood", "BEHAVIOR", "crash") + &deployment("web", 1, MOOD))).await?;
        let restarted = async |times: i32| {
            let restarts = pods(&stage, "app=web").await?;
            ensure!(restarts.values().any(|restarts| *restarts >= times), "it restarted {restarts:?} times");
            Ok(())
        };
        eventually("a first restart", SHORT, async || restarted(1).await).await?;
        stage.kubectl(&["delete", "configmap", "mood"]).await?;
        eventually("a pod that restarted twice and is well", SHORT, async || {
            restarted(2).await?;
            stage.ready_pods("app=web", 1).await
        })
        .await?;
        stage.apply(&config("red", "crash")).await?;
        ended(&stage, FIRST, "RolledBack").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(reason.contains("CrashLoopBackOff") || reason.contains("restarted 2 times"), "{reason}");
        expect(&stage, "app=web", &["blue"]).await
    })
    .await;
}

#[tokio::test]
async fn who_takes_longer_than_the_deadline_by_its_own_wish_makes_progress() {
    scenario("min-ready", |stage| async move {
        let policy = ReleasePolicySpec { progress_deadline_seconds: Some(10), ..impatient() };
        stage.set_policy("default", &policy).await?;
        let slow = deployment("web", 1, "").replace("spec:\n  replicas", "spec:\n  minReadySeconds: 15\n  replicas");
        set_up(&stage, &slow).await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_finds_no_node_during_the_bake_is_not_the_configs_fault() {
    scenario("no-room", |stage| async move {
        let policy =
            ReleasePolicySpec { bake_seconds: Some(8), progress_deadline_seconds: Some(15), ..impatient() };
        stage.set_policy("default", &policy).await?;
        // One in the whole cluster, so that the old pod goes before the new one comes.
        let alone = "affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/os, labelSelector: {matchLabels: {app: web}}}]}}";
        let lonely = deployment("web", 1, "")
            .replace("spec:\n  replicas", "spec:\n  strategy: {type: Recreate}\n  replicas")
            .replace("      containers:", &format!("      {alone}\n      containers:"));
        set_up(&stage, &lonely).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.kubectl(&["scale", "deployment/web", "--replicas=2"]).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(reason.contains("Deployment web: a pod is not ready: no node has room for it"), "{reason}");
        expect_condition(&stage, FIRST, "Judged", "False").await?;
        stage.kubectl(&["scale", "deployment/web", "--replicas=1"]).await?;
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

#[tokio::test]
async fn a_job_that_fails_during_the_bake_puts_its_cron_job_back() {
    scenario("job", |stage| async move {
        stage.set_policy("default", &until_promoted()).await?;
        stage.apply(&config("blue", "healthy")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        stage.apply(&cron_job()).await?;
        let before = stage.pins("cronjob/report").await?;
        stage.apply(&config("red", "crash")).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.kubectl(&["create", "job", "now", "--from=cronjob/report"]).await?;
        ended(&stage, FIRST, "RolledBack").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(reason.contains("CronJob report: pod now-") && reason.contains("exit code 1"), "{reason}");
        let after = stage.pins("cronjob/report").await?;
        ensure!(after == before, "it is pinned to {after}, and was to {before}");
        Ok(())
    })
    .await;
}

pub(crate) fn cron_job() -> String {
    format!(
        "
apiVersion: batch/v1
kind: CronJob
metadata:
  name: report
spec:
  schedule: 0 0 1 1 *
  suspend: true
  jobTemplate:
    spec:
      backoffLimit: 0
      template:
        spec:
          restartPolicy: Never
          containers:
          - name: app
            image: {}
            envFrom:
            - configMapRef: {{name: app}}
",
        testapp_image()
    )
}

pub(crate) fn stateful_set(deployment: &str) -> String {
    deployment
        .replace("kind: Deployment", "kind: StatefulSet")
        .replace("  selector:", "  podManagementPolicy: OrderedReady\n  serviceName: db\n  selector:")
}

/// Three pods, the first of which bakes with the new version until somebody ends it.
pub(crate) async fn careful(stage: &Scenario) -> Result<()> {
    let canary = Some(Canary { size: IntOrString::Int(1) });
    stage.set_policy("default", &ReleasePolicySpec { canary, ..until_promoted() }).await?;
    set_up(stage, &deployment("web", 3, "")).await?;
    stage.apply(&config("green", "healthy")).await?;
    phase(stage, FIRST, "Baking").await
}

/// One that may fail does not fail the release, and is named. The last pod that a StatefulSet replaces holds up no other.
#[tokio::test]
async fn so_many_pods_may_stay_broken_as_the_policy_says() {
    scenario("may-fail", |stage| async move {
        let failure = FailureLimits { max_failing_pods: Some(1), ..FailureLimits::default() };
        stage.set_policy("default", &ReleasePolicySpec { failure: Some(failure), ..impatient() }).await?;
        set_up(&stage, &stateful_set(&deployment("web", 2, "")).replace("OrderedReady", "Parallel")).await?;
        stage.apply(&config("green", "crash-as web-0")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(reason.contains("StatefulSet web: pod web-0") && reason.contains("maxFailingPods"), "{reason}");
        Ok(())
    })
    .await;
}

/// That one may fail says nothing about the others: they are watched to the end of the bake.
#[tokio::test]
async fn beside_a_pod_that_may_fail_the_others_are_watched() {
    scenario("may-fail-no-more", |stage| async move {
        let failure = FailureLimits { max_failing_pods: Some(1), ..FailureLimits::default() };
        let policy =
            ReleasePolicySpec { failure: Some(failure), progress_deadline_seconds: Some(30), ..until_promoted() };
        stage.set_policy("default", &policy).await?;
        set_up(&stage, &stateful_set(&deployment("web", 3, "")).replace("OrderedReady", "Parallel")).await?;
        stage.apply(&config("green", "crash-as web-0, crash-after 60s")).await?;
        ended(&stage, FIRST, "RolledBack").await?;
        expect(&stage, "app=web", &["blue"; 3]).await
    })
    .await;
}

/// What was wrong before the release is not its fault, in any kind.
#[tokio::test]
async fn new_code_that_does_not_start_is_not_blamed_on_a_config_that_comes_after_it() {
    scenario("bad-code-before", |stage| async move {
        set_up(&stage, &stateful_set(&deployment("web", 2, ""))).await?;
        stage.kubectl(&["set", "image", "statefulset/web", "app=lockstep.dev/nowhere:1"]).await?;
        eventually("a pod that finds no image", LONG, async || {
            let path = "jsonpath={.status.containerStatuses[0].state.waiting.reason}";
            let waiting = stage.kubectl(&["get", "pod", "web-1", "-o", path]).await?;
            ensure!(waiting.contains("Image"), "{waiting:?}");
            Ok(())
        })
        .await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, FIRST, "Failed").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(reason.contains("It changed its code, too") && !reason.contains("delete pod"), "{reason}");
        Ok(())
    })
    .await;
}

/// Pods that only a person replaces are named for as long as one is left.
#[tokio::test]
async fn who_replaces_pods_by_hand_is_told_that_some_are_left() {
    scenario("by-hand", |stage| async move {
        let by_hand = stateful_set(&deployment("web", 2, ""))
            .replace("  selector:", "  updateStrategy: {type: OnDelete}\n  selector:");
        stage.set_policy("default", &until_promoted()).await?;
        set_up(&stage, &by_hand).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.kubectl(&["delete", "pod", "web-1"]).await?;
        expect(&stage, "app=web", &["blue", "green"]).await?;
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(reason.contains("Not judged: StatefulSet web") && reason.contains("OnDelete"), "{reason}");
        expect_condition(&stage, FIRST, "Judged", "False").await
    })
    .await;
}

#[tokio::test]
async fn a_replica_set_of_its_own_keeps_its_pods_as_they_are() {
    scenario("bare-set", |stage| async move {
        stage.set_policy("default", &until_promoted()).await?;
        set_up(&stage, &deployment("web", 2, "").replace("kind: Deployment", "kind: ReplicaSet")).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        let pods = stage.pods("app=web").await?;
        stage.kubectl(&["delete", "pod", &pods.first().context("it has no pods")?.name_any()]).await?;
        expect(&stage, "app=web", &["blue", "green"]).await?;
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        let told = "Not judged: ReplicaSet web: its pods stay as they are when its template changes";
        ensure!(reason.contains(told), "{reason}");
        expect_condition(&stage, FIRST, "Judged", "False").await
    })
    .await;
}

/// It failed, and says which pod still runs what failed, and the command that ends that.
async fn expect_left_behind(stage: &Scenario, set: &str, pod: &str) -> Result<()> {
    ended(stage, FIRST, "Failed").await?;
    let (_, reason) = standing(stage, FIRST).await?;
    let told = format!("pod {pod} of StatefulSet {set} still runs the failed version: `kubectl delete pod {pod}`");
    ensure!(reason.contains(&told), "{reason}");
    stage.kubectl(&["delete", "pod", pod]).await?;
    expect(stage, &format!("app={set}"), &["blue", "blue"]).await
}

#[tokio::test]
async fn a_pod_that_nobody_replaces_is_named_and_the_command_helps() {
    scenario("left-by-hand", |stage| async move {
        let by_hand = stateful_set(&deployment("web", 2, ""))
            .replace("  selector:", "  updateStrategy: {type: OnDelete}\n  selector:");
        let policy = ReleasePolicySpec { progress_deadline_seconds: Some(20), ..until_promoted() };
        stage.set_policy("default", &policy).await?;
        set_up(&stage, &by_hand).await?;
        stage.apply(&config("red", "crash")).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.kubectl(&["delete", "pod", "web-1"]).await?;
        expect_left_behind(&stage, "web", "web-1").await
    })
    .await;
}

/// Whoever lets the operator delete no pods, be it by `deleteStuckPods: false` or by a rule of their own, does that themselves.
#[tokio::test]
async fn a_pod_that_the_operator_may_not_delete_is_named_and_the_command_helps() {
    scenario("left-stuck", |stage| async move {
        let policy = ReleasePolicySpec { progress_deadline_seconds: Some(20), ..impatient() };
        set_up(&stage, &stateful_set(&deployment("db", 2, ""))).await?;
        stage.set_policy("default", &policy).await?;
        stage.apply(&keep_pods(&stage.namespace)).await?;
        eventually("the rule to count", SHORT, async || {
            let delete = ["delete", "pod", "db-1", "--dry-run=server", "--as", OPERATOR];
            let refused = stage.kubectl(&delete).await.err().map(|error| format!("{error:#}")).unwrap_or_default();
            ensure!(refused.contains(KEPT), "the operator may delete pods: {refused}");
            Ok(())
        })
        .await?;
        stage.apply(&config("red", "crash")).await?;
        expect_left_behind(&stage, "db", "db-1").await?;
        let name = format!("kept-{}", stage.namespace);
        let both = "validatingadmissionpolicybinding,validatingadmissionpolicy";
        stage.kubectl(&["delete", both, &name]).await.map(drop)
    })
    .await;
}

const KEPT: &str = "pods are deleted by people only";

/// A rule that lets the operator delete no pod.
fn keep_pods(namespace: &str) -> String {
    format!(
        "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: kept-{namespace}}}
spec:
  matchConstraints:
    namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}
    resourceRules:
    - {{apiGroups: [\"\"], apiVersions: [v1], operations: [DELETE], resources: [pods]}}
  validations:
  - {{expression: request.userInfo.username != '{OPERATOR}', message: {KEPT}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: kept-{namespace}}}
spec: {{policyName: kept-{namespace}, validationActions: [Deny]}}
"
    )
}

/// The kubelet says nothing of it in the pod's status: the pod would be waited for until the deadline.
#[tokio::test]
async fn a_key_that_a_volume_needs_and_a_version_lacks_counts_like_a_crash() {
    scenario("lacks-key", |stage| async move {
        let web = deployment("web", 1, "volumeMounts:\n- {name: files, mountPath: /files}\n").replace(
            "terminationGracePeriodSeconds: 1\n",
            "terminationGracePeriodSeconds: 1\n      volumes: [{name: files, configMap: {name: app, items: [{key: OTHER, path: other}]}}]\n",
        );
        set_up(&stage, &web).await?;
        let patient = ReleasePolicySpec { progress_deadline_seconds: Some(3600), ..impatient() };
        stage.set_policy("default", &patient).await?;
        stage.apply(&versioned("app", "data:\n  COLOR: green\n  BEHAVIOR: healthy\n---")).await?;
        ended(&stage, FIRST, "RolledBack").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(reason.contains("a volume needs the key OTHER of configmap/app"), "{reason}");
        expect(&stage, "app=web", &["blue"]).await
    })
    .await;
}

#[tokio::test]
async fn a_stateful_set_that_never_gets_ready_goes_back_and_its_repair_goes_out() {
    scenario("never-ready", |stage| async move {
        set_up(&stage, &stateful_set(&deployment("db", 2, ""))).await?;
        let hasty = ReleasePolicySpec { progress_deadline_seconds: Some(20), ..impatient() };
        stage.set_policy("default", &hasty).await?;
        stage.apply(&config("red", "never-ready")).await?;
        phase(&stage, FIRST, "RollingBack").await?;
        stage.set_policy("default", &impatient()).await?;
        ended(&stage, FIRST, "RolledBack").await?;
        expect(&stage, "app=db", &["blue", "blue"]).await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, SECOND, "Succeeded").await?;
        expect(&stage, "app=db", &["green", "green"]).await
    })
    .await;
}

#[tokio::test]
async fn an_abort_takes_the_config_back_also_where_the_code_changed() {
    scenario("abort-joined", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.set_policy("default", &ReleasePolicySpec { bake_seconds: Some(3600), ..impatient() }).await?;
        let code = "env:\n- {name: BUILD, value: \"2\"}\n";
        stage.apply(&(config("green", "healthy") + &deployment("web", 1, code))).await?;
        phase(&stage, FIRST, "Baking").await?;
        steer(&stage, &format!("release/{FIRST}"), r#"{"spec": {"abort": true}}"#).await?;
        ended(&stage, FIRST, "Aborted").await?;
        expect(&stage, "app=web", &["blue"]).await
    })
    .await;
}

#[tokio::test]
async fn code_and_config_taken_back_in_one_step_make_one_replica_set() {
    scenario("taken-back", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        // On a busy machine kubectl takes seconds from the config to its code.
        let policy = ReleasePolicySpec { bake_seconds: Some(3600), settle_milliseconds: Some(8_000), ..impatient() };
        stage.set_policy("default", &policy).await?;
        let code = |build: u32| deployment("web", 1, &format!("env:\n- {{name: BUILD, value: \"{build}\"}}\n"));
        stage.apply(&(config("green", "healthy") + &code(2))).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.apply(&(config("blue", "healthy") + &code(3))).await?;
        expect(&stage, "app=web", &["blue"]).await?;
        let sets = stage.kubectl(&["get", "replicasets", "--selector=app=web", "-o", "name"]).await?;
        ensure!(sets.lines().count() == 3, "one for each pair of code and config: {sets}");
        Ok(())
    })
    .await;
}
