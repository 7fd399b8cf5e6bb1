//! Canaries, and what people and their clusters do in the middle of them.

use anyhow::{Result, ensure};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use lockstep_api::{Canary, ReleasePolicySpec};
use lockstep_testing::{LONG, SHORT, Scenario, eventually, impatient, scenario};

use super::releases::{
    FIRST, SECOND, appears, config, deployment, ended, expect, phase, promote, set_up, standing, steer, until_promoted,
};
use super::truth::stateful_set;

fn one_pod_first(policy: ReleasePolicySpec) -> ReleasePolicySpec {
    ReleasePolicySpec { canary: Some(Canary { size: IntOrString::Int(1) }), ..policy }
}

/// An undo brings back every annotation of the revision that it goes to, also the note of a gate that was there once.
#[tokio::test]
async fn after_an_undo_to_what_failed_the_next_canary_is_one() {
    scenario("undone-to-failed", |stage| async move {
        stage.set_policy("default", &one_pod_first(until_promoted())).await?;
        set_up(&stage, &deployment("web", 3, "")).await?;
        stage.apply(&config("red", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage
            .kubectl(&["patch", &format!("release/{FIRST}"), "--type=merge", "-p", r#"{"spec": {"abort": true}}"#])
            .await?;
        ended(&stage, FIRST, "Aborted").await?;
        stage.kubectl(&["rollout", "undo", "deployment/web"]).await?;
        expect(&stage, "app=web", &["red"; 3]).await?;
        eventually("the note of the gate to go", SHORT, async || {
            let notes = stage.read("deployment/web").await?["metadata"]["annotations"].clone();
            ensure!(notes.get("lockstep.dev/gate").is_none(), "{notes}");
            Ok(())
        })
        .await?;
        stage.apply(&config("green", "healthy")).await?;
        appears(&stage, SECOND).await?;
        phase(&stage, SECOND, "Baking").await?;
        expect(&stage, "app=web", &["green", "red", "red", "red"]).await?;
        promote(&stage, SECOND).await?;
        ended(&stage, SECOND, "Succeeded").await?;
        expect(&stage, "app=web", &["green"; 3]).await
    })
    .await;
}

/// Its controller waits for the broken pod before it touches another one, and a partition would keep that pod as it is.
#[tokio::test]
async fn a_stateful_set_with_a_broken_pod_is_repaired_although_the_policy_has_a_canary() {
    scenario("ordered-repair", |stage| async move {
        let policy = ReleasePolicySpec { progress_deadline_seconds: Some(60), ..impatient() };
        stage.set_policy("default", &one_pod_first(policy)).await?;
        stage.apply(&config("blue", "crash-as web-0")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        stage.apply(&stateful_set(&deployment("web", 2, ""))).await?;
        eventually("a pod that crashes again and again", LONG, async || {
            let path = "jsonpath={.status.containerStatuses[0].restartCount}";
            let restarts = stage.kubectl(&["get", "pod", "web-0", "-o", path]).await?;
            ensure!(restarts.parse::<u32>().is_ok_and(|restarts| restarts >= 2), "{restarts} restarts");
            Ok(())
        })
        .await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green", "green"]).await
    })
    .await;
}

/// As many pods as went first are all that are left for a moment. That is no reason to let the others follow.
#[tokio::test]
async fn whoever_scales_to_the_size_of_a_canary_and_back_does_not_end_it() {
    scenario("scaled-to-canary", |stage| async move {
        stage.set_policy("default", &one_pod_first(until_promoted())).await?;
        set_up(&stage, &stateful_set(&deployment("web", 3, ""))).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.kubectl(&["scale", "statefulset/web", "--replicas=1"]).await?;
        expect(&stage, "app=web", &["green"]).await?;
        stage.kubectl(&["scale", "statefulset/web", "--replicas=3"]).await?;
        expect_partition(&stage, 2).await?;
        let (phase, reason) = standing(&stage, FIRST).await?;
        ensure!(
            ["Baking", "Progressing"].contains(&phase.as_str()) && !reason.contains("wrote over"),
            "{phase}: {reason}"
        );
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green"; 3]).await?;
        expect_partition(&stage, 0).await
    })
    .await;
}

/// Kubernetes starts those that are added with the new version before anybody can move the partition: which of them run it is its own affair.
#[tokio::test]
async fn a_stateful_set_that_grows_in_a_canary_is_one_still_and_goes_back() {
    scenario("grows-ordered", |stage| async move {
        stage.set_policy("default", &one_pod_first(until_promoted())).await?;
        set_up(&stage, &stateful_set(&deployment("web", 2, ""))).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.kubectl(&["scale", "statefulset/web", "--replicas=4"]).await?;
        expect_partition(&stage, 3).await?;
        eventually("four pods, the first of which is as it was", SHORT, async || {
            stage.ready_pods("app=web", 4).await?;
            let seen = stage.seen("app=web", |report| report.loaded.env.get("COLOR").cloned()).await?;
            ensure!(seen.get("web-0").is_some_and(|color| color == "blue"), "{seen:?}");
            Ok(())
        })
        .await?;
        let (phase, reason) = standing(&stage, FIRST).await?;
        ensure!(
            ["Baking", "Progressing"].contains(&phase.as_str()) && !reason.contains("wrote over"),
            "{phase}: {reason}"
        );
        steer(&stage, &format!("release/{FIRST}"), r#"{"spec": {"abort": true}}"#).await?;
        ended(&stage, FIRST, "Aborted").await?;
        expect(&stage, "app=web", &["blue"; 4]).await?;
        expect_partition(&stage, 0).await
    })
    .await;
}

async fn expect_partition(stage: &Scenario, wanted: u64) -> Result<()> {
    eventually(&format!("a partition of {wanted}"), SHORT, async || {
        let strategy = stage.read("statefulset/web").await?["spec"]["updateStrategy"].clone();
        ensure!(strategy["rollingUpdate"]["partition"].as_u64().unwrap_or(0) == wanted, "{strategy}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn where_there_is_no_room_for_a_pod_more_a_canary_takes_the_place_of_one() {
    scenario("no-surge", |stage| async move {
        stage.set_policy("default", &one_pod_first(until_promoted())).await?;
        let no_surge = "  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}\n  selector:";
        set_up(&stage, &deployment("web", 2, "").replace("  selector:", no_surge)).await?;
        stage.kubectl(&["create", "quota", "small", "--hard=pods=2"]).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        expect(&stage, "app=web", &["blue", "green"]).await?;
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green", "green"]).await?;
        let strategy = stage.read("deployment/web").await?["spec"]["strategy"]["rollingUpdate"].clone();
        ensure!(strategy["maxSurge"] == 0 && strategy["maxUnavailable"] == 1, "{strategy}");
        Ok(())
    })
    .await;
}

/// Whoever has room for no pod more and asks for one is told what is in the way.
#[tokio::test]
async fn a_quota_that_leaves_no_room_is_named() {
    scenario("quota", |stage| async move {
        let policy = ReleasePolicySpec { progress_deadline_seconds: Some(20), ..impatient() };
        stage.set_policy("default", &policy).await?;
        let surge = "  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}\n  selector:";
        set_up(&stage, &deployment("web", 1, "").replace("  selector:", surge)).await?;
        stage.kubectl(&["create", "quota", "small", "--hard=pods=1"]).await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, FIRST, "RolledBack").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(reason.contains("exceeded quota: small"), "{reason}");
        expect(&stage, "app=web", &["blue"]).await
    })
    .await;
}
