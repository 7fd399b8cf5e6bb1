//! Storms: a config that never comes to rest, edits that change nothing, code and config that are bad together.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use lockstep_api::{
    PinTable, Release, ReleasePolicySpec, ReleaseStatus, StormGuardSpec, VersionedConfig, VersionedConfigStatus,
};
use lockstep_testing::joining::{expect_joined, unlabelled};
use lockstep_testing::manifests::{testapp_image, versioned_colors, web_deployment};
use lockstep_testing::{LONG, SHORT, Scenario, eventually, holds, impatient, scenario};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// An app that just crashes may be asked, and found ready, in the moment before.
pub(crate) const BAD: &str = "never-ready, crash";

// --- flapping ---

const FLAPS: usize = 200;
const FLAP_EVERY: Duration = Duration::from_millis(100);
const FREE_RELEASES: i32 = 2;
/// What the guard makes a release wait first; each further one waits twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(10);

/// The first one, those that are free, those that waited meanwhile, and the last one. Without the guard there would be twice as many.
fn most_rollouts(took: Duration) -> usize {
    let ends = (1..).map(|waits| FIRST_WAIT * (2_u32.pow(waits) - 1));
    let free = usize::try_from(FREE_RELEASES).unwrap_or(0);
    1 + free + ends.take_while(|end| *end <= took).count() + 1
}

#[tokio::test]
async fn a_config_that_flaps_rolls_its_consumer_a_few_times_and_the_last_value_wins() {
    scenario("flapping", |stage| async move {
        // Little is waited for, so that nothing but the storm guard is in the way of rollouts.
        let hurried = ReleasePolicySpec {
            bake_seconds: Some(0),
            settle_milliseconds: Some(300),
            storm_guard: Some(StormGuardSpec { free_releases: Some(FREE_RELEASES), window_seconds: None }),
            ..ReleasePolicySpec::default()
        };
        stage.set_policy("default", &hurried).await?;
        stage.apply(&(versioned_colors("c0") + &web_deployment(2))).await?;
        expect_color(&stage, "app=web", 2, "c0").await?;
        let started = Instant::now();
        let mut ticks = interval(FLAP_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for flap in 1..=FLAPS {
            ticks.tick().await;
            patch_config(&stage, "web-env", &json!({"data": {"COLOR": format!("c{flap}")}})).await?;
        }
        expect_color(&stage, "app=web", 2, &format!("c{FLAPS}")).await?;
        let (made, rollouts) = (replica_sets(&stage, "web").await?, rollouts(&stage, "web").await?);
        let (took, most) = (started.elapsed(), most_rollouts(started.elapsed()));
        eprintln!("storms: {FLAPS} changes of a config made {rollouts} rollouts and {made} ReplicaSets in {took:.0?}");
        ensure!(rollouts <= most, "{FLAPS} changes made {rollouts} rollouts in {took:.0?}, and {most} are the most");
        holds("all has come to rest", Duration::from_secs(5), async || {
            let now = self::rollouts(&stage, "web").await?;
            ensure!(now == rollouts, "there were {rollouts} rollouts, and now {now}");
            see_color(&stage, "app=web", 2, &format!("c{FLAPS}")).await
        })
        .await
    })
    .await;
}

/// Also where the whole namespace opted in, and not the config itself. A join costs no rollout of its own.
#[tokio::test]
async fn neither_a_release_under_way_nor_the_storm_guard_parts_code_from_its_config() {
    scenario("joins-anyway", |stage| async move {
        stage.set_policy("default", &impatient()).await?;
        stage.kubectl(&["label", "namespace", &stage.namespace, "lockstep.dev/versioned=true"]).await?;
        stage.apply(&unlabelled("web", 0)).await?;
        stage.released("configmap/web", "1.0.0").await?;
        let color = async |color: &str| patch_config(&stage, "web", &json!({"data": {"COLOR": color}})).await;
        for (color_of, version) in [("one", "r2"), ("two", "r3"), ("three", "r4"), ("four", "r5")] {
            color(color_of).await?;
            stage.released("configmap/web", version).await?;
        }
        // After four releases the next one waits for 80 seconds. On a busy machine kubectl takes seconds between its two writes.
        let guard = StormGuardSpec { free_releases: Some(1), window_seconds: None };
        let storm_guard = Some(guard);
        let settle_milliseconds = Some(10_000);
        let patient = ReleasePolicySpec { bake_seconds: Some(600), settle_milliseconds, storm_guard, ..impatient() };
        stage.set_policy("default", &patient).await?;
        let expect = async |phase: &str, reason: &str| {
            eventually(&format!("a release that is {phase}"), LONG, async || {
                let releases = stage.api::<Release>().list(&ListParams::default()).await?;
                let is_so = |status: &ReleaseStatus| status.phase == phase && status.reason.contains(reason);
                let is_there = releases.iter().any(|release| release.status.as_ref().is_some_and(is_so));
                ensure!(is_there, "{:?}", releases.iter().map(Release::phase).collect::<Vec<_>>());
                Ok(())
            })
            .await
        };
        color("five").await?;
        expect("Pending", "rolled too often").await?;
        expect_joined(&stage, "web", 1).await?;
        expect("Baking", "").await?;
        expect_joined(&stage, "web", 2).await
    })
    .await;
}

#[tokio::test]
async fn a_bad_version_is_put_back_also_while_its_successor_waits_for_the_storm_to_pass() {
    scenario("waiting-successor", |stage| async move {
        let guard = StormGuardSpec { free_releases: Some(1), window_seconds: None };
        let policy =
            ReleasePolicySpec { bake_seconds: Some(0), storm_guard: Some(guard), ..ReleasePolicySpec::default() };
        stage.set_policy("default", &policy).await?;
        stage.apply(&(versioned_colors("blue") + &web_deployment(1))).await?;
        stage.released("configmap/web-env", "1.0.0").await?;
        expect_color(&stage, "app=web", 1, "blue").await?;
        let change = async |color: &str, behavior: &str| {
            patch_config(&stage, "web-env", &json!({"data": {"COLOR": color, "BEHAVIOR": behavior}})).await
        };
        // Each waits twice as long as the one before: after the second there are 20 s, and 40 s after the third, in which also a busy machine
        // finds out that it is bad.
        for (color, release) in [("green", "configmap-web-env-1"), ("white", "configmap-web-env-2")] {
            change(color, "healthy").await?;
            expect_phase(&ended(&stage, release).await?, "Succeeded")?;
        }
        change("red", BAD).await?;
        eventually("the bad version to be pinned", SHORT, async || {
            ensure!(rollouts(&stage, "web").await? == 4, "it is not rolled yet");
            Ok(())
        })
        .await?;
        change("yellow", "healthy").await?;
        expect_phase(&ended(&stage, "configmap-web-env-3").await?, "RolledBack")?;
        expect_color(&stage, "app=web", 1, "white").await?;
        expect_phase(&ended(&stage, "configmap-web-env-4").await?, "Succeeded")?;
        expect_color(&stage, "app=web", 1, "yellow").await
    })
    .await;
}

// --- edits that change nothing ---

const EDITS: usize = 1000;
const PARALLEL_EDITS: usize = 16;

#[tokio::test]
async fn a_thousand_edits_that_change_no_content_release_nothing() {
    scenario("no-ops", |stage| async move {
        stage.apply(&(versioned_colors("blue") + &web_deployment(1))).await?;
        stage.released("configmap/web-env", "1.0.0").await?;
        expect_color(&stage, "app=web", 1, "blue").await?;
        let before = state(&stage).await?;
        stream::iter(0..EDITS)
            .map(|edit| {
                let stage = &stage;
                let field = if edit % 2 == 0 { "labels" } else { "annotations" };
                let patch = json!({"metadata": {field: {format!("example.com/edit-{}", edit % 10): edit.to_string()}}});
                async move { patch_config(stage, "web-env", &patch).await }
            })
            .buffer_unordered(PARALLEL_EDITS)
            .try_collect::<Vec<()>>()
            .await?;
        holds("nothing moves", Duration::from_secs(5), async || {
            let now = state(&stage).await?;
            ensure!(now == before, "before: {before:?}\nnow: {now:?}");
            Ok(())
        })
        .await?;
        // The operator is not just late: a change that comes after all of these is through.
        patch_config(&stage, "web-env", &json!({"data": {"COLOR": "green"}})).await?;
        stage.released("configmap/web-env", "r2").await?;
        expect_color(&stage, "app=web", 1, "green").await?;
        let names: Vec<String> = releases(&stage, "web-env").await?.iter().map(ResourceExt::name_any).collect();
        ensure!(names == ["configmap-web-env-1"], "one change made {names:?}");
        let versions = stage.versions("configmap/web-env").await?;
        let known: BTreeSet<&str> = versions.values().map(String::as_str).collect();
        ensure!(known == BTreeSet::from(["1.0.0", "r2"]), "the versions are {versions:?}");
        ensure!(rollouts(&stage, "web").await? == 2, "one change made more than one rollout");
        Ok(())
    })
    .await;
}

/// What must not move: versions, releases, and the Deployment's generation.
async fn state(stage: &Scenario) -> Result<(Vec<String>, usize, Option<i64>)> {
    let versions = stage.versions("configmap/web-env").await?.into_keys().collect();
    let releases = stage.api::<Release>().list(&ListParams::default()).await?.items.len();
    let generation = stage.api::<Deployment>().get("web").await?.metadata.generation;
    Ok((versions, releases, generation))
}

// --- code and config that are bad together ---

const REPLICAS: usize = 3;

#[tokio::test]
async fn code_and_config_that_fail_together_are_left_to_a_person_while_the_old_pods_serve() {
    scenario("bad-pair", |stage| async move {
        let policy = ReleasePolicySpec { settle_milliseconds: Some(20_000), ..impatient() };
        stage.set_policy("default", &policy).await?;
        upgrade(&stage, "color=blue,build=1").await?;
        stage.released("configmap/shop", "1.0.0").await?;
        expect_color(&stage, "app=shop", REPLICAS, "blue").await?;
        let customer = Customer::come(&stage, "shop").await?;

        // The config is there first, so that it is certain that the code joins it: `joining` counts how often it does so by itself.
        patch_config(&stage, "shop", &json!({"data": {"COLOR": "red", "BEHAVIOR": "never-ready,crash"}})).await?;
        offered(&stage, "configmap/shop").await?;
        upgrade(&stage, "color=red,build=2,behavior=never-ready\\,crash").await?;
        let failed = ended(&stage, "configmap-shop-1").await?;
        expect_phase(&failed, "Failed")?;
        let undo = "kubectl rollout undo deployment/shop";
        let reason = failed.status.as_ref().map(|status| status.reason.clone()).unwrap_or_default();
        ensure!(reason.contains(undo), "the reason does not say what to do: {reason}");
        let status = managed(&stage, "configmap-shop").await?;
        expect_held(&status, &failed)?;
        ensure!(current(&status) == "1.0.0", "{} is current", current(&status));
        holds("nothing is tried again", Duration::from_secs(5), async || {
            ensure!(rollouts(&stage, "shop").await? == 2, "the Deployment was rolled");
            ensure!(releases(&stage, "shop").await?.len() == 1, "there is another release");
            Ok(())
        })
        .await?;

        stage.kubectl(&["rollout", "undo", "deployment/shop"]).await?;
        stage.kubectl(&["rollout", "status", "deployment/shop", "--timeout=300s"]).await?;
        expect_color(&stage, "app=shop", REPLICAS, "blue").await?;
        expect_build(&stage, "1").await?;

        upgrade(&stage, "color=green,build=3").await?;
        let good = ended(&stage, "configmap-shop-2").await?;
        expect_phase(&good, "Succeeded")?;
        expect_color(&stage, "app=shop", REPLICAS, "green").await?;
        expect_build(&stage, "3").await?;
        let status = managed(&stage, "configmap-shop").await?;
        ensure!(status.held.is_none() && current(&status) == "r3", "{:?}", (status.held, status.current));
        let served = customer.leave().await?;
        eprintln!(
            "storms: {served} requests in the course of a bad upgrade, its undo and a good one, and not one failed"
        );
        Ok(())
    })
    .await;
}

async fn upgrade(stage: &Scenario, values: &str) -> Result<()> {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/charts/served");
    let values = format!("image={},replicas={REPLICAS},{values}", testapp_image());
    // Without a force, Helm 4 refuses to write over what `kubectl rollout undo` wrote, with or without Lockstep.
    stage.helm(&["upgrade", "--install", "shop", chart, "--set", &values, "--force-conflicts"]).await.map(drop)
}

async fn expect_build(stage: &Scenario, build: &str) -> Result<()> {
    let seen = stage.seen("app=shop", |report| report.loaded.env.get("BUILD").cloned()).await?;
    ensure!(seen.values().all(|value| value == build), "the pods are of builds {seen:?}");
    Ok(())
}

/// Asks a Service again and again.
struct Customer {
    has_enough: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Result<usize>>,
}

impl Customer {
    async fn come(stage: &Scenario, service: &str) -> Result<Self> {
        let (stage, service) = (stage.clone(), service.to_owned());
        // Endpoints come a moment after ready pods.
        eventually("the Service to serve", SHORT, async || request(&stage, &service).await).await?;
        let has_enough = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&has_enough);
        let task = tokio::spawn(async move {
            let mut served = 0;
            while !told.load(Ordering::Relaxed) {
                request(&stage, &service).await.with_context(|| format!("request {}", served + 1))?;
                served += 1;
                sleep(Duration::from_millis(20)).await;
            }
            Ok(served)
        });
        Ok(Self { has_enough, task })
    }

    /// How many requests were answered: all.
    async fn leave(self) -> Result<usize> {
        self.has_enough.store(true, Ordering::Relaxed);
        self.task.await?
    }
}

async fn request(stage: &Scenario, service: &str) -> Result<()> {
    let uri = format!("/api/v1/namespaces/{}/services/{service}:80/proxy/", stage.namespace);
    let answer = stage.client.request_text(http::Request::get(uri).body(Vec::new())?).await?;
    ensure!(answer == "ok", "Service {service} answered {answer}");
    Ok(())
}

// --- what all of them ask ---

pub(crate) async fn patch_config(stage: &Scenario, name: &str, patch: &serde_json::Value) -> Result<()> {
    stage.api::<ConfigMap>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// From here on, a workload that is written joins the release of this config.
pub(crate) async fn offered(stage: &Scenario, config: &str) -> Result<()> {
    eventually("the new version to be offered", SHORT, async || {
        let table = stage.api::<PinTable>().get("lockstep").await?.spec;
        ensure!(table.next.contains_key(config), "{:?} is offered", table.next);
        Ok(())
    })
    .await
}

pub(crate) async fn expect_color(stage: &Scenario, selector: &str, pods: usize, color: &str) -> Result<()> {
    let what = format!("{pods} pods with {selector} that see {color}");
    eventually(&what, LONG, async || see_color(stage, selector, pods, color).await).await
}

async fn see_color(stage: &Scenario, selector: &str, pods: usize, color: &str) -> Result<()> {
    stage.ready_pods(selector, pods).await?;
    let seen = stage.seen(selector, |report| report.loaded.env.get("COLOR").cloned()).await?;
    ensure!(seen.len() == pods && seen.values().all(|value| value == color), "the pods see {seen:?}");
    Ok(())
}

/// The releases of a config, oldest first.
pub(crate) async fn releases(stage: &Scenario, config: &str) -> Result<Vec<Release>> {
    let mut found = stage.api::<Release>().list(&ListParams::default()).await?.items;
    found.retain(|release| release.spec.moves.iter().any(|step| step.source.name == config));
    found.sort_by_key(|release| release.metadata.creation_timestamp.clone().map(|time| time.0));
    Ok(found)
}

/// Waits for a release to end, one way or the other.
pub(crate) async fn ended(stage: &Scenario, name: &str) -> Result<Release> {
    eventually(&format!("release {name} to end"), LONG, async || {
        let release = stage.api::<Release>().get(name).await?;
        let status = release.status.clone().unwrap_or_default();
        ensure!(status.ended_at.is_some(), "it is {}: {}", status.phase, status.reason);
        Ok(release)
    })
    .await
}

pub(crate) fn expect_phase(release: &Release, phase: &str) -> Result<()> {
    let status = release.status.clone().unwrap_or_default();
    if status.phase != phase {
        bail!("release {} ended as {}: {}", release.name_any(), status.phase, status.reason);
    }
    Ok(())
}

pub(crate) async fn managed(stage: &Scenario, name: &str) -> Result<VersionedConfigStatus> {
    stage.api::<VersionedConfig>().get(name).await?.status.with_context(|| format!("{name} has no status"))
}

pub(crate) fn current(status: &VersionedConfigStatus) -> &str {
    status.current.as_ref().map(|version| version.version.as_str()).unwrap_or_default()
}

pub(crate) fn expect_held(status: &VersionedConfigStatus, release: &Release) -> Result<()> {
    let held = status.held.as_ref().map(|held| (held.object.as_str(), held.release.as_str()));
    let wanted = (release.spec.moves[0].to.as_str(), release.metadata.name.as_deref().unwrap_or_default());
    ensure!(held == Some(wanted), "{held:?} is held, not {wanted:?}");
    Ok(())
}

pub(crate) async fn replica_sets(stage: &Scenario, app: &str) -> Result<usize> {
    let list = ListParams::default().labels(&format!("app={app}"));
    Ok(stage.api::<ReplicaSet>().list(&list).await?.items.len())
}

/// How often a Deployment was rolled: each rollout, back to an old ReplicaSet too, gets the next number.
pub(crate) async fn rollouts(stage: &Scenario, deployment: &str) -> Result<usize> {
    let found = stage.api::<Deployment>().get(deployment).await?;
    let revision = found.annotations().get("deployment.kubernetes.io/revision").context("no revision yet")?;
    Ok(revision.parse()?)
}
