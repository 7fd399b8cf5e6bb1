//! Storms: a config that never comes to rest, edits that change nothing, code and config that are bad together, and an operator that
//! dies again and again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use lockstep_api::{Release, ReleasePolicySpec, StormGuardSpec, VersionedConfig, VersionedConfigStatus};
use lockstep_testing::manifests::{deployment, testapp_image, versioned, versioned_colors, web_deployment};
use lockstep_testing::{LONG, SHORT, Scenario, eventually, holds, scenario};
use serde_json::json;
use tokio::sync::RwLock;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// Held alone by the test that kills the operator, and together by those that need it.
static OPERATOR: RwLock<()> = RwLock::const_new(());

// --- flapping ---

const FLAPS: usize = 200;
const FLAP_EVERY: Duration = Duration::from_millis(100);
const FREE_RELEASES: i32 = 2;
/// The first one, two that are free, and those after waits of 10 s, 20 s and 40 s. Without the guard there are twice as many.
const MOST_ROLLOUTS: usize = 6;

#[tokio::test]
async fn a_config_that_flaps_rolls_its_consumer_a_few_times_and_the_last_value_wins() {
    let _operator = OPERATOR.read().await;
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
        let mut ticks = interval(FLAP_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for flap in 1..=FLAPS {
            ticks.tick().await;
            patch_config(&stage, "web-env", &json!({"data": {"COLOR": format!("c{flap}")}})).await?;
        }
        expect_color(&stage, "app=web", 2, &format!("c{FLAPS}")).await?;
        let (made, rollouts) = (replica_sets(&stage, "web").await?, rollouts(&stage, "web").await?);
        eprintln!("storms: {FLAPS} changes of a config made {rollouts} rollouts and {made} ReplicaSets");
        ensure!(rollouts <= MOST_ROLLOUTS, "{FLAPS} changes made {rollouts} rollouts");
        holds("all has come to rest", Duration::from_secs(5), async || {
            let now = self::rollouts(&stage, "web").await?;
            ensure!(now == rollouts, "there were {rollouts} rollouts, and now {now}");
            see_color(&stage, "app=web", 2, &format!("c{FLAPS}")).await
        })
        .await
    })
    .await;
}

#[tokio::test]
async fn a_bad_version_is_put_back_also_while_its_successor_waits_for_the_storm_to_pass() {
    let _operator = OPERATOR.read().await;
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
        change("green", "healthy").await?;
        expect_phase(&ended(&stage, "configmap-web-env-1").await?, "Succeeded")?;
        // This one waits for 10 s, and the next one for 20 s after that.
        change("red", BAD).await?;
        eventually("the bad version to be pinned", SHORT, async || {
            ensure!(rollouts(&stage, "web").await? == 3, "it is not rolled yet");
            Ok(())
        })
        .await?;
        change("yellow", "healthy").await?;
        expect_phase(&ended(&stage, "configmap-web-env-2").await?, "RolledBack")?;
        expect_color(&stage, "app=web", 1, "green").await?;
        expect_phase(&ended(&stage, "configmap-web-env-3").await?, "Succeeded")?;
        expect_color(&stage, "app=web", 1, "yellow").await
    })
    .await;
}

// --- edits that change nothing ---

const EDITS: usize = 1000;
const PARALLEL_EDITS: usize = 16;

#[tokio::test]
async fn a_thousand_edits_that_change_no_content_release_nothing() {
    let _operator = OPERATOR.read().await;
    scenario("no-ops", |stage| async move {
        stage.apply(&(versioned_colors("blue") + &web_deployment(1))).await?;
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
    let _operator = OPERATOR.read().await;
    scenario("bad-pair", |stage| async move {
        upgrade(&stage, "color=blue,build=1").await?;
        stage.released("configmap/shop", "1.0.0").await?;
        expect_color(&stage, "app=shop", REPLICAS, "blue").await?;
        let customer = Customer::come(&stage, "shop").await?;

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
        stage.kubectl(&["rollout", "status", "deployment/shop", "--timeout=120s"]).await?;
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

// --- an operator that dies ---

/// What is random is the same in each run, unless `LOCKSTEP_SEED` says otherwise.
const SEED: u64 = 20_240_229;
const APPS: usize = 10;
const CHANGES: usize = 5;
/// An app that just crashes may be asked, and found ready, in the moment before.
const BAD: &str = "never-ready, crash";
/// Of a hundred changes, so many are bad.
const BAD_SHARE: u64 = 40;
/// Of a hundred changes, so many follow upon another one that may not have ended.
const HASTY_SHARE: u64 = 30;
const LONGEST_HASTE_MS: u64 = 5000;
/// The longest that an operator leads.
const LONGEST_REIGN_MS: u64 = 4000;
/// Of so many kills, one is by SIGKILL.
const SIGKILL_EVERY: usize = 4;
/// With fewer than this, the test would prove little.
const LEAST_KILLS: usize = 5;

#[tokio::test]
async fn an_operator_killed_at_random_moments_loses_no_release_and_makes_none_twice() {
    let _operator = OPERATOR.write().await;
    let seed = std::env::var("LOCKSTEP_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED);
    eprintln!("storms: the seed is {seed}");
    scenario("kills", |stage| async move {
        let all_are_done = AtomicBool::new(false);
        let apps = async {
            let outcome = stream::iter(0..APPS)
                .map(|number| App::new(&stage, number, seed).live())
                .buffer_unordered(APPS)
                .try_collect::<Vec<()>>()
                .await;
            all_are_done.store(true, Ordering::Relaxed);
            outcome
        };
        let (apps, kills) = futures::join!(apps, kill_operators(&stage, seed, &all_are_done));
        let kills = kills?;
        apps?;
        let made = stage.api::<Release>().list(&ListParams::default()).await?.items.len();
        eprintln!("storms: {made} releases, and the operator was killed {kills} times meanwhile");
        ensure!(kills >= LEAST_KILLS, "the operator was killed only {kills} times");
        Ok(())
    })
    .await;
}

/// Kills the operator at some moment, waits for the next one to lead, and so on. Every now and then with SIGKILL: its lease must then expire
/// before another one leads. Otherwise with its pod: without a grace period it has a second to stop in the middle of any request and to
/// give up its lease, so that this does not take a quarter of a minute each time.
async fn kill_operators(stage: &Scenario, seed: u64, all_are_done: &AtomicBool) -> Result<usize> {
    let own = stage.elsewhere("lockstep-system");
    let mut random = Random(seed);
    let mut kills = 0;
    let mut leader = leader(&own, None).await?;
    while !all_are_done.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(random.below(LONGEST_REIGN_MS))).await;
        if kills % SIGKILL_EVERY == 0 {
            kill_processes().await?;
        }
        own.kubectl(&["delete", "pod", &leader, "--grace-period=0", "--force"]).await?;
        kills += 1;
        leader = self::leader(&own, Some(&leader)).await?;
    }
    Ok(kills)
}

/// SIGKILL for the operator's processes, which are seen from here if the cluster is on this machine.
async fn kill_processes() -> Result<()> {
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        let is_it = words.next().is_some_and(|word| word.ends_with(b"/lockstep")) && words.next() == Some(b"operator");
        if is_it {
            tokio::process::Command::new("kill").args(["-9", &pid]).status().await?;
        }
    }
    Ok(())
}

/// The pod that leads, once it is another one than before. It may not have seen yet what there is.
async fn leader(own: &Scenario, before: Option<&str>) -> Result<String> {
    eventually("an operator that leads", SHORT, async || {
        let lease = own.api::<Lease>().get("lockstep").await?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        ensure!(!holder.is_empty() && Some(holder.as_str()) != before, "the lease is held by {holder:?}");
        Ok(holder)
    })
    .await
}

/// A Deployment with a config of its own, which changes for the better or the worse.
struct App<'a> {
    stage: &'a Scenario,
    name: String,
    random: Random,
}

impl<'a> App<'a> {
    fn new(stage: &'a Scenario, number: usize, seed: u64) -> Self {
        let random = Random(seed.wrapping_add(1 + number as u64));
        Self { stage, name: format!("app-{number}"), random }
    }

    async fn live(mut self) -> Result<()> {
        let name = self.name.clone();
        self.live_through_all_changes().await.context(name)
    }

    async fn live_through_all_changes(&mut self) -> Result<()> {
        self.stage.apply(&small_app(&self.name)).await?;
        self.stage.released(&format!("configmap/{}", self.name), "1.0.0").await?;
        expect_color(self.stage, &self.selector(), 1, "good-0").await?;
        for change in 1..=CHANGES {
            if self.random.below(100) < HASTY_SHARE {
                let color = self.random_color(&format!("{change}-hasty"));
                self.write(&color).await?;
                sleep(Duration::from_millis(self.random.below(LONGEST_HASTE_MS))).await;
            }
            let color = self.random_color(&change.to_string());
            self.write(&color).await?;
            self.expect_end(&color).await?;
        }
        self.expect_each_change_once().await
    }

    fn random_color(&mut self, change: &str) -> String {
        let quality = if self.random.below(100) < BAD_SHARE { "bad" } else { "good" };
        format!("{quality}-{change}")
    }

    fn selector(&self) -> String {
        format!("app={}", self.name)
    }

    async fn write(&self, color: &str) -> Result<()> {
        let behavior = if color.starts_with("bad") { BAD } else { "healthy" };
        let data = json!({"data": {"COLOR": color, "BEHAVIOR": behavior}});
        patch_config(self.stage, &self.name, &data).await
    }

    /// Waits for the release of a change to end, as it must.
    async fn expect_end(&self, color: &str) -> Result<()> {
        let release = eventually(&format!("a release of {color}"), LONG, async || {
            let version = self.version(color).await?;
            let found = releases(self.stage, &self.name).await?.into_iter();
            let mut of_this = found.filter(|release| release.spec.moves[0].to == version);
            of_this.next().with_context(|| format!("version {version} is not released"))
        })
        .await?;
        let release = ended(self.stage, &release.name_any()).await?;
        let status = managed(self.stage, &format!("configmap-{}", self.name)).await?;
        let current = status.current.as_ref().map(|version| version.object.clone()).unwrap_or_default();
        let color_now = self.color(&current).await?;
        if color.starts_with("good") {
            expect_phase(&release, "Succeeded")?;
            ensure!(color_now == color, "{color} is released, but {color_now} is current");
            ensure!(status.held.is_none(), "{:?} is held after a good change", status.held);
        } else {
            expect_phase(&release, "RolledBack")?;
            expect_held(&status, &release)?;
            ensure!(color_now.starts_with("good"), "{color_now} is current");
        }
        expect_color(self.stage, &self.selector(), 1, &color_now).await
    }

    async fn version(&self, color: &str) -> Result<String> {
        for object in self.stage.versions(&format!("configmap/{}", self.name)).await?.into_keys() {
            if self.color(&object).await? == color {
                return Ok(object);
            }
        }
        bail!("there is no version with {color}")
    }

    async fn color(&self, object: &str) -> Result<String> {
        let data = self.stage.api::<ConfigMap>().get(object).await?.data.unwrap_or_default();
        data.get("COLOR").cloned().with_context(|| format!("{object} has no color"))
    }

    /// A hasty change may have been replaced before it was released.
    async fn expect_each_change_once(&self) -> Result<()> {
        let releases = releases(self.stage, &self.name).await?;
        let targets: BTreeSet<&str> = releases.iter().map(|release| release.spec.moves[0].to.as_str()).collect();
        let made: Vec<_> = releases.iter().map(|release| (release.name_any(), &release.spec.moves[0].to)).collect();
        ensure!(targets.len() == releases.len(), "a version was released twice: {made:?}");
        let changes = self.stage.versions(&format!("configmap/{}", self.name)).await?.len();
        ensure!((CHANGES..changes).contains(&releases.len()), "{changes} versions made {made:?}");
        let replica_sets = replica_sets(self.stage, &self.name).await?;
        ensure!(replica_sets <= changes, "{changes} versions made {replica_sets} ReplicaSets");
        Ok(())
    }
}

fn small_app(name: &str) -> String {
    versioned(name, "data: {COLOR: good-0, BEHAVIOR: healthy}") + &deployment(name, 1, &small_pod(name))
}

fn small_pod(config: &str) -> String {
    format!(
        "terminationGracePeriodSeconds: 1
containers:
- name: web
  image: {}
  envFrom:
  - configMapRef: {{name: {config}}}
  readinessProbe:
    httpGet: {{path: /readyz, port: 8080}}
    periodSeconds: 1
",
        testapp_image()
    )
}

/// Numbers that look random and are the same in each run: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

// --- what all of them ask ---

async fn patch_config(stage: &Scenario, name: &str, patch: &serde_json::Value) -> Result<()> {
    stage.api::<ConfigMap>().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

async fn expect_color(stage: &Scenario, selector: &str, pods: usize, color: &str) -> Result<()> {
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
async fn releases(stage: &Scenario, config: &str) -> Result<Vec<Release>> {
    let mut found = stage.api::<Release>().list(&ListParams::default()).await?.items;
    found.retain(|release| release.spec.moves.iter().any(|step| step.source.name == config));
    found.sort_by_key(|release| release.metadata.creation_timestamp.clone().map(|time| time.0));
    Ok(found)
}

/// Waits for a release to end, one way or the other.
async fn ended(stage: &Scenario, name: &str) -> Result<Release> {
    eventually(&format!("release {name} to end"), LONG, async || {
        let release = stage.api::<Release>().get(name).await?;
        let status = release.status.clone().unwrap_or_default();
        ensure!(status.ended_at.is_some(), "it is {}: {}", status.phase, status.reason);
        Ok(release)
    })
    .await
}

fn expect_phase(release: &Release, phase: &str) -> Result<()> {
    let status = release.status.clone().unwrap_or_default();
    if status.phase != phase {
        bail!("release {} ended as {}: {}", release.name_any(), status.phase, status.reason);
    }
    Ok(())
}

async fn managed(stage: &Scenario, name: &str) -> Result<VersionedConfigStatus> {
    stage.api::<VersionedConfig>().get(name).await?.status.with_context(|| format!("{name} has no status"))
}

fn current(status: &VersionedConfigStatus) -> &str {
    status.current.as_ref().map(|version| version.version.as_str()).unwrap_or_default()
}

fn expect_held(status: &VersionedConfigStatus, release: &Release) -> Result<()> {
    let held = status.held.as_ref().map(|held| (held.object.as_str(), held.release.as_str()));
    let wanted = (release.spec.moves[0].to.as_str(), release.metadata.name.as_deref().unwrap_or_default());
    ensure!(held == Some(wanted), "{held:?} is held, not {wanted:?}");
    Ok(())
}

async fn replica_sets(stage: &Scenario, app: &str) -> Result<usize> {
    let list = ListParams::default().labels(&format!("app={app}"));
    Ok(stage.api::<ReplicaSet>().list(&list).await?.items.len())
}

/// How often a Deployment was rolled: each rollout, back to an old ReplicaSet too, gets the next number.
async fn rollouts(stage: &Scenario, deployment: &str) -> Result<usize> {
    let found = stage.api::<Deployment>().get(deployment).await?;
    let revision = found.annotations().get("deployment.kubernetes.io/revision").context("no revision yet")?;
    Ok(revision.parse()?)
}
