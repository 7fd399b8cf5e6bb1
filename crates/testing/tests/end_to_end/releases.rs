//! Releases: health-checked, and put back by themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use lockstep_api::{Canary, KeySchemaSpec, Release, ReleasePolicySpec, RuleSpec, ValidationSpec};
use lockstep_testing::manifests::{self, indent, testapp_image, versioned};
use lockstep_testing::{LONG, SHORT, Scenario, eventually, holds, impatient, scenario};

pub(crate) const FIRST: &str = "configmap-app-1";
pub(crate) const SECOND: &str = "configmap-app-2";

#[tokio::test]
async fn a_good_change_succeeds_and_kubectl_can_wait_for_it() {
    scenario("good", |stage| async move {
        set_up(&stage, &deployment("web", 2, "")).await?;
        stage.apply(&config("green", "healthy")).await?;
        appears(&stage, FIRST).await?;
        stage.kubectl(&["wait", "--for=condition=Succeeded", &format!("release/{FIRST}"), "--timeout=300s"]).await?;
        expect(&stage, "app=web", &["green", "green"]).await?;
        stage.released("configmap/app", "r2").await?;
        let shown = stage.kubectl(&["get", "releases"]).await?;
        ensure!(shown.contains("app 1.0.0 → r2") && shown.contains("Succeeded") && shown.contains("1/1"), "{shown}");
        let events = stage.kubectl(&["events", "--for", "configmap/app"]).await?;
        ensure!(events.contains("Succeeded"), "{events}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_crash_at_the_start_is_put_back() {
    scenario("crash", async |stage| is_put_back(&stage, "crash", &["CrashLoopBackOff", "restarted 2 times"]).await)
        .await;
}

#[tokio::test]
async fn pods_that_never_get_ready_are_put_back() {
    scenario("never-ready", |stage| async move {
        let policy = ReleasePolicySpec { progress_deadline_seconds: Some(30), ..impatient() };
        stage.set_policy("default", &policy).await?;
        is_put_back(&stage, "never-ready", &["no progress for 30 s"]).await
    })
    .await;
}

#[tokio::test]
async fn a_crash_within_the_bake_is_put_back() {
    scenario("bake", |stage| async move {
        stage.set_policy("default", &until_promoted()).await?;
        // A kubelet that is busy takes its time to start it again, or to say so.
        let why = ["restarted after it was ready", "is not ready any more", "CrashLoopBackOff", "restarted 2 times"];
        is_put_back(&stage, "crash-after 30s", &why).await
    })
    .await;
}

#[tokio::test]
async fn a_missing_key_is_put_back() {
    scenario("missing-key", |stage| async move {
        let variable = "env:\n- name: NEEDED\n  valueFrom: {configMapKeyRef: {name: app, key: COLOR}}\n";
        set_up(&stage, &deployment("web", 2, variable)).await?;
        let before = pods(&stage, "app=web").await?;
        stage.kubectl(&["patch", "configmap", "app", "--type=json", "-p", REMOVE_COLOR]).await?;
        ended(&stage, FIRST, "RolledBack").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(reason.contains("CreateContainerConfigError") && reason.contains("COLOR"), "{reason}");
        untouched(&stage, "app=web", &before).await
    })
    .await;
}

const REMOVE_COLOR: &str = r#"[{"op": "remove", "path": "/data/COLOR"}]"#;

/// The story of every bad change: it hurts the first pods only, goes back by itself, stays away, and its repair goes out.
async fn is_put_back(stage: &Scenario, behavior: &str, why: &[&str]) -> Result<()> {
    set_up(stage, &deployment("web", 2, "")).await?;
    let before = pods(stage, "app=web").await?;
    stage.apply(&config("red", behavior)).await?;
    ended(stage, FIRST, "RolledBack").await?;
    let (_, reason) = standing(stage, FIRST).await?;
    ensure!(why.iter().any(|why| reason.contains(why)), "{reason}");
    if !behavior.contains("after") {
        untouched(stage, "app=web", &before).await?;
    }
    expect(stage, "app=web", &["blue", "blue"]).await?;
    let held = stage.kubectl(&["get", "vc", "configmap-app", "-o", "jsonpath={.status.held.version}"]).await?;
    ensure!(held == "r2", "held: {held:?}");
    stage.apply(&config("red", behavior)).await?;
    stage.kubectl(&["annotate", "configmap", "app", "touched=yes"]).await?;
    holds("what failed is not tried again", Duration::from_secs(4), async || {
        ensure!(releases(stage).await?.len() == 1, "{:?}", releases(stage).await?);
        ensure!(!stage.pins("deployment/web").await?.contains("app="), "{}", stage.pins("deployment/web").await?);
        Ok(())
    })
    .await?;
    // The repair is not about time.
    stage.set_policy("default", &impatient()).await?;
    stage.apply(&config("green", "healthy")).await?;
    ended(stage, SECOND, "Succeeded").await?;
    expect(stage, "app=web", &["green", "green"]).await
}

/// A bake that lasts until somebody ends it: whatever is to happen within it has the time that it needs.
pub(crate) fn until_promoted() -> ReleasePolicySpec {
    ReleasePolicySpec { bake_seconds: Some(600), ..impatient() }
}

pub(crate) async fn promote(stage: &Scenario, release: &str) -> Result<()> {
    steer(stage, &format!("release/{release}"), r#"{"spec": {"promote": true}}"#).await
}

#[tokio::test]
async fn when_one_consumer_breaks_both_go_back() {
    scenario("unit", |stage| async move {
        let breaks = "env:\n- name: BEHAVIOR\n  valueFrom: {configMapKeyRef: {name: app, key: OTHER}}\n";
        set_up(&stage, &(deployment("web", 1, "") + &deployment("api", 1, breaks))).await?;
        stage.apply(&config("red", "healthy").replace("OTHER: healthy", "OTHER: crash")).await?;
        ended(&stage, FIRST, "RolledBack").await?;
        expect(&stage, "app=web", &["blue"]).await?;
        expect(&stage, "app=api", &["blue"]).await
    })
    .await;
}

#[tokio::test]
async fn a_later_wave_never_sees_a_bad_version() {
    scenario("waves", |stage| async move {
        let later = deployment("api", 1, "")
            .replace("  name: api\n", "  name: api\n  annotations: {lockstep.dev/wave: \"1\"}\n");
        set_up(&stage, &(deployment("web", 1, "") + &later)).await?;
        let generation =
            async || stage.kubectl(&["get", "deployment", "api", "-o", "jsonpath={.metadata.generation}"]).await;
        let before = generation().await?;
        stage.apply(&config("red", "crash")).await?;
        ended(&stage, FIRST, "RolledBack").await?;
        ensure!(generation().await? == before, "the second wave was written to");
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, SECOND, "Succeeded").await?;
        expect(&stage, "app=web", &["green"]).await?;
        expect(&stage, "app=api", &["green"]).await
    })
    .await;
}

#[tokio::test]
async fn during_a_canary_exactly_the_first_batch_runs_the_new_version() {
    scenario("canary", |stage| async move {
        let canary = Canary { size: k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(2) };
        stage.set_policy("default", &ReleasePolicySpec { canary: Some(canary), ..until_promoted() }).await?;
        set_up(&stage, &deployment("web", 6, "")).await?;
        let strategy = async || {
            stage
                .kubectl(&[
                    "get",
                    "deployment",
                    "web",
                    "-o",
                    "jsonpath={.spec.strategy}{.spec.minReadySeconds}{.spec.progressDeadlineSeconds}",
                ])
                .await
        };
        let before = strategy().await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        let batch = [["blue"; 6].as_slice(), &["green"; 2]].concat();
        expect(&stage, "app=web", &batch).await?;
        // Old and new ones that are lost come back each with its own.
        for pod in stage.pods("app=web").await?.iter().take(3) {
            stage.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default()).await?;
        }
        expect(&stage, "app=web", &batch).await?;
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green"; 6]).await?;
        ensure!(strategy().await? == before, "what the user had set is not back: {} was {before}", strategy().await?);
        // A bad one hurts the first batch alone.
        let old = pods(&stage, "app=web").await?;
        stage.apply(&config("red", "crash")).await?;
        ended(&stage, SECOND, "RolledBack").await?;
        untouched(&stage, "app=web", &old).await?;
        ensure!(strategy().await? == before);
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_stateful_set_has_its_canary_too() {
    scenario("canary-sts", |stage| async move {
        let canary = Canary { size: k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::String("34%".into()) };
        let policy = ReleasePolicySpec { bake_seconds: Some(8), canary: Some(canary), ..impatient() };
        stage.set_policy("default", &policy).await?;
        let manifest = deployment("web", 3, "")
            .replace("kind: Deployment", "kind: StatefulSet")
            .replace("spec:\n  replicas", "spec:\n  serviceName: web\n  replicas");
        set_up(&stage, &manifest).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        expect(&stage, "app=web", &["blue", "green", "green"]).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green"; 3]).await
    })
    .await;
}

#[tokio::test]
async fn a_change_during_a_release_takes_its_place_and_one_during_a_rollback_follows_it() {
    scenario("supersede", |stage| async move {
        stage.set_policy("default", &ReleasePolicySpec { bake_seconds: Some(20), ..impatient() }).await?;
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.apply(&config("red", "crash")).await?;
        ended(&stage, FIRST, "Superseded").await?;
        phase(&stage, SECOND, "RollingBack").await?;
        stage.apply(&config("violet", "healthy")).await?;
        ended(&stage, SECOND, "RolledBack").await?;
        ended(&stage, "configmap-app-3", "Succeeded").await?;
        expect(&stage, "app=web", &["violet"]).await?;
        let from = stage
            .kubectl(&["get", "release", "configmap-app-3", "-o", "jsonpath={.spec.moves[0].fromVersion}"])
            .await?;
        ensure!(from == "1.0.0", "the last good version stayed the way back: {from}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_change_that_is_taken_back_leaves_no_trace() {
    scenario("take-back", |stage| async move {
        stage.set_policy("default", &ReleasePolicySpec { bake_seconds: Some(20), ..impatient() }).await?;
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.apply(&config("blue", "healthy")).await?;
        ended(&stage, FIRST, "Superseded").await?;
        ended(&stage, SECOND, "Succeeded").await?;
        expect(&stage, "app=web", &["blue"]).await?;
        ensure!(stage.replica_sets().await?.len() == 2, "{:?}", stage.replica_sets().await?);
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_person_steers_with_kubectl_alone() {
    scenario("steering", |stage| async move {
        stage.set_policy("default", &ReleasePolicySpec { bake_seconds: Some(600), ..impatient() }).await?;
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        steer(&stage, &format!("release/{FIRST}"), r#"{"spec":{"paused":true}}"#).await?;
        phase(&stage, FIRST, "Paused").await?;
        steer(&stage, &format!("release/{FIRST}"), r#"{"spec":{"paused":false}}"#).await?;
        phase(&stage, FIRST, "Baking").await?;
        steer(&stage, &format!("release/{FIRST}"), r#"{"spec":{"promote":true}}"#).await?;
        ended(&stage, FIRST, "Succeeded").await?;

        stage.apply(&config("red", "healthy")).await?;
        phase(&stage, SECOND, "Baking").await?;
        steer(&stage, &format!("release/{SECOND}"), r#"{"spec":{"abort":true}}"#).await?;
        ended(&stage, SECOND, "Aborted").await?;
        expect(&stage, "app=web", &["green"]).await?;

        stage.set_policy("default", &impatient()).await?;
        steer(&stage, "vc/configmap-app", &format!(r#"{{"spec":{{"retry":"{SECOND}"}}}}"#)).await?;
        ended(&stage, "configmap-app-3", "Succeeded").await?;
        expect(&stage, "app=web", &["red"]).await?;

        steer(&stage, "vc/configmap-app", r#"{"spec":{"current":{"version":"1.0.0","insteadOf":"r3"}}}"#).await?;
        ended(&stage, "configmap-app-4", "Succeeded").await?;
        expect(&stage, "app=web", &["blue"]).await?;
        stage.apply(&config("violet", "healthy")).await?;
        ended(&stage, "configmap-app-5", "Succeeded").await?;
        expect(&stage, "app=web", &["violet"]).await
    })
    .await;
}

#[tokio::test]
async fn invalid_content_is_rejected_before_anything_moves() {
    scenario("validation", |stage| async move {
        let rule =
            |expression: &str| RuleSpec { expression: expression.into(), message: Some("COLOR stays a color".into()) };
        let schema =
            serde_json::json!({"type": "object", "properties": {"workers": {"type": "integer", "maximum": 16}}});
        let validation = ValidationSpec {
            parse: None,
            schemas: vec![KeySchemaSpec { key: "app.yaml".into(), schema }],
            rules: vec![rule("data.COLOR.size() > 2 && oldData.COLOR.size() > 2")],
        };
        set_up(&stage, &deployment("web", 1, "")).await?;
        let file =
            |yaml: &str| config("green", "healthy").replace("\ndata:\n", &format!("\ndata:\n  app.yaml: {yaml:?}\n"));
        stage.apply(&file("workers: 4\n")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        let policy = ReleasePolicySpec { validation: Some(validation), ..impatient() };
        stage.set_policy("strict", &policy).await?;
        stage.kubectl(&["annotate", "configmap", "app", "lockstep.dev/policy=strict"]).await?;
        let before = pods(&stage, "app=web").await?;
        for (number, content, why) in [
            (2, file("workers: [4\n"), "app.yaml is not valid YAML"),
            (3, file("workers: 40\n"), "app.yaml does not match its schema"),
            (4, file("workers: 8\n").replace("COLOR: green", "COLOR: x"), "COLOR stays a color"),
        ] {
            stage.apply(&content).await?;
            let name = format!("configmap-app-{number}");
            ended(&stage, &name, "Rejected").await?;
            let (_, reason) = standing(&stage, &name).await?;
            ensure!(reason.contains(why), "{reason}");
        }
        // A new template joins what is current, and nothing invalid.
        stage.kubectl(&["rollout", "restart", "deployment/web"]).await?;
        eventually("another pod", LONG, async || {
            let now = pods(&stage, "app=web").await?;
            ensure!(now.keys().all(|uid| !before.contains_key(uid)), "the pod of before is still there");
            Ok(())
        })
        .await?;
        expect(&stage, "app=web", &["green"]).await?;
        stage.apply(&file("workers: 16\n")).await?;
        ended(&stage, "configmap-app-5", "Succeeded").await
    })
    .await;
}

#[tokio::test]
async fn a_release_outlives_its_source_and_so_does_going_back() {
    scenario("source-gone", |stage| async move {
        stage.set_policy("default", &ReleasePolicySpec { bake_seconds: Some(6), ..impatient() }).await?;
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.kubectl(&["delete", "configmap", "app"]).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        eventually("a new workload to get what is current", SHORT, async || {
            stage.apply(&deployment("late", 1, "")).await?;
            let (late, web) = (stage.pins("deployment/late").await?, stage.pins("deployment/web").await?);
            if late != web {
                stage.kubectl(&["delete", "deployment", "late"]).await?;
            }
            ensure!(late == web, "it is pinned to {late}, and the other to {web}");
            Ok(())
        })
        .await?;
        steer(&stage, "vc/configmap-app", r#"{"spec":{"current":{"version":"1.0.0","insteadOf":"r2"}}}"#).await?;
        ended(&stage, SECOND, "Succeeded").await?;
        expect(&stage, "app=web", &["blue"]).await?;
        expect(&stage, "app=late", &["blue"]).await
    })
    .await;
}

#[tokio::test]
async fn a_bad_version_stays_held_although_its_source_is_deleted_and_comes_back() {
    scenario("bad-source-gone", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        let before = pods(&stage, "app=web").await?;
        let bad = config("red", "crash");
        stage.apply(&bad).await?;
        appears(&stage, FIRST).await?;
        stage.kubectl(&["delete", "configmap", "app"]).await?;
        ended(&stage, FIRST, "RolledBack").await?;
        untouched(&stage, "app=web", &before).await?;
        stage.apply(&bad).await?;
        let known = releases(&stage).await?;
        holds("the bad version is held", Duration::from_secs(4), async || {
            let now = releases(&stage).await?;
            ensure!(now == known, "{now:?} instead of {known:?}");
            Ok(())
        })
        .await?;
        untouched(&stage, "app=web", &before).await?;

        // Everything is deleted and made again, as `kubectl replace --force` does it: what is known of it stays.
        stage.kubectl(&["delete", "configmap/app", "deployment/web"]).await?;
        stage.apply(&(config("green", "healthy") + &deployment("web", 1, ""))).await?;
        expect(&stage, "app=web", &["green"]).await?;
        stage.released("configmap/app", "r3").await
    })
    .await;
}

#[tokio::test]
async fn somebodys_undo_during_a_release_is_respected() {
    scenario("undo", |stage| async move {
        stage.set_policy("default", &ReleasePolicySpec { bake_seconds: Some(12), ..impatient() }).await?;
        set_up(&stage, &(deployment("web", 1, "") + &deployment("api", 1, ""))).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        stage.kubectl(&["rollout", "undo", "deployment/web"]).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["blue"]).await?;
        expect(&stage, "app=api", &["green"]).await?;
        stage.apply(&config("red", "healthy")).await?;
        ended(&stage, SECOND, "Succeeded").await?;
        expect(&stage, "app=web", &["red"]).await
    })
    .await;
}

#[tokio::test]
async fn who_uses_no_changed_key_is_not_restarted() {
    scenario("keys", |stage| async move {
        let one_key =
            deployment("api", 1, "env:\n- name: BEHAVIOR\n  valueFrom: {configMapKeyRef: {name: app, key: OTHER}}\n")
                .replace(&indent(ENV_FROM, 6), "");
        set_up_one(&stage, &(deployment("web", 1, "") + &one_key)).await?;
        let before = pods(&stage, "app=api").await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green"]).await?;
        untouched(&stage, "app=api", &before).await?;
        stage.apply(&config("green", "healthy").replace("OTHER: healthy", "OTHER: slow 1ms")).await?;
        ended(&stage, SECOND, "Succeeded").await?;
        ensure!(pods(&stage, "app=api").await? != before, "its key changed");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn what_was_broken_before_is_not_the_releases_fault() {
    scenario("broken", |stage| async move {
        stage.apply(&config("blue", "healthy").replace("OTHER: healthy", "OTHER: crash")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        let breaks = "env:\n- name: BEHAVIOR\n  valueFrom: {configMapKeyRef: {name: app, key: OTHER}}\n";
        stage.apply(&(deployment("web", 1, "") + &deployment("broken", 1, breaks))).await?;
        eventually("a crash loop", SHORT, async || {
            let shown = stage.kubectl(&["get", "pods", "-l", "app=broken"]).await?;
            ensure!(shown.contains("CrashLoopBackOff") || shown.contains("Error"), "{shown}");
            Ok(())
        })
        .await?;
        expect(&stage, "app=web", &["blue"]).await?;
        // Broken is what has lasted.
        tokio::time::sleep(Duration::from_secs(35)).await;
        // So long that its new pod restarts meanwhile.
        stage.set_policy("default", &ReleasePolicySpec { bake_seconds: Some(45), ..impatient() }).await?;
        stage.apply(&config("green", "healthy").replace("OTHER: healthy", "OTHER: crash")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        let (_, reason) = standing(&stage, FIRST).await?;
        ensure!(
            reason.contains("1 of 2 consumers") && reason.contains("Deployment broken: it was broken before"),
            "{reason}"
        );
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

pub(crate) async fn steer(stage: &Scenario, object: &str, patch: &str) -> Result<()> {
    stage.kubectl(&["patch", object, "--type=merge", "-p", patch]).await.map(drop)
}

/// The config, then the workloads, all of which see blue.
pub(crate) async fn set_up(stage: &Scenario, workloads: &str) -> Result<()> {
    set_up_one(stage, workloads).await?;
    eventually("all pods to see blue", SHORT, async || {
        let seen = colors(stage, "app").await?;
        ensure!(!seen.is_empty() && seen.values().all(|color| color == "blue"), "{seen:?}");
        Ok(())
    })
    .await
}

pub(crate) async fn set_up_one(stage: &Scenario, workloads: &str) -> Result<()> {
    stage.apply(workloads).await?;
    stage.apply(&config("blue", "healthy")).await?;
    stage.released("configmap/app", "1.0.0").await?;
    eventually("all pods to be ready", SHORT, async || {
        let found = stage.pods("app").await?;
        let ready = stage.ready_pods("app", found.len()).await?;
        ensure!(!ready.is_empty());
        Ok(())
    })
    .await
}

pub(crate) fn config(color: &str, behavior: &str) -> String {
    versioned("app", &format!("data:\n  COLOR: {color}\n  BEHAVIOR: {behavior}\n  OTHER: healthy\n---"))
}

pub(crate) const ENV_FROM: &str = "  envFrom:\n  - configMapRef: {name: app}\n";

/// A Deployment of the test app, with what its container has besides.
pub(crate) fn deployment(name: &str, replicas: u32, besides: &str) -> String {
    let pod = format!(
        "terminationGracePeriodSeconds: 1
containers:
- name: app
  image: {}
  ports:
  - containerPort: 8080
  readinessProbe:
    httpGet: {{path: /readyz, port: 8080}}
    periodSeconds: 1
    timeoutSeconds: 10
    failureThreshold: 30
{ENV_FROM}{}",
        testapp_image(),
        indent(besides, 2)
    );
    manifests::deployment(name, replicas, &pod)
}

/// The uid of every pod, with its restarts.
pub(crate) async fn pods(stage: &Scenario, selector: &str) -> Result<BTreeMap<String, i32>> {
    let restarts = |pod: &Pod| {
        pod.status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten())
            .map(|container| container.restart_count)
            .sum()
    };
    Ok(stage.pods(selector).await?.iter().map(|pod| (pod.uid().unwrap_or_default(), restarts(pod))).collect())
}

async fn untouched(stage: &Scenario, selector: &str, before: &BTreeMap<String, i32>) -> Result<()> {
    eventually("only the old pods to be left, never restarted", SHORT, async || {
        let now = pods(stage, selector).await?;
        ensure!(now == *before, "{now:?} instead of {before:?}");
        Ok(())
    })
    .await
}

async fn colors(stage: &Scenario, selector: &str) -> Result<BTreeMap<String, String>> {
    stage.seen(selector, |report| report.loaded.env.get("COLOR").cloned()).await
}

pub(crate) async fn expect(stage: &Scenario, selector: &str, wanted: &[&str]) -> Result<()> {
    eventually(&format!("pods with {selector} to see {wanted:?}"), SHORT, async || {
        let mut seen: Vec<String> = colors(stage, selector).await?.into_values().collect();
        seen.sort();
        ensure!(seen == wanted, "they see {seen:?}");
        Ok(())
    })
    .await
}

/// The phase that a release says it is in, and why.
pub(crate) async fn standing(stage: &Scenario, release: &str) -> Result<(String, String)> {
    let status = &stage.read(&format!("release/{release}")).await?["status"];
    let text = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
    Ok((text("phase"), text("reason")))
}

async fn releases(stage: &Scenario) -> Result<Vec<String>> {
    let found = stage.api::<Release>().list(&kube::api::ListParams::default()).await?;
    Ok(found.iter().map(|release| format!("{} {}", release.name_any(), release.phase())).collect())
}

pub(crate) async fn appears(stage: &Scenario, release: &str) -> Result<()> {
    eventually(&format!("release {release}"), SHORT, async || stage.read(&format!("release/{release}")).await.map(drop))
        .await
}

pub(crate) async fn phase(stage: &Scenario, release: &str, wanted: &str) -> Result<()> {
    eventually(&format!("release {release} to be {wanted}"), LONG, async || {
        let (found, reason) = standing(stage, release).await?;
        ensure!(found == wanted, "it is {found}: {reason}");
        Ok(())
    })
    .await
}

pub(crate) async fn ended(stage: &Scenario, release: &str, wanted: &str) -> Result<()> {
    phase(stage, release, wanted).await
}
