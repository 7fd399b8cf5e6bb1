//! An operator that dies again and again, at any moment: no release is lost, and none is made twice.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::ListParams;
use lockstep_api::Release;
use lockstep_testing::manifests::{deployment, testapp_image, versioned};
use lockstep_testing::{LONG, SHORT, Scenario, eventually, scenario};
use serde_json::json;
use tokio::time::sleep;

use super::storms::{
    BAD, ended, expect_color, expect_held, expect_phase, managed, patch_config, releases, replica_sets,
};

/// What is random is the same in each run, unless `LOCKSTEP_SEED` says otherwise.
const SEED: u64 = 20_240_229;
const APPS: usize = 10;
const CHANGES: usize = 5;
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
        // It may have gone by itself since it took the lease.
        own.kubectl(&["delete", "pod", &leader, "--grace-period=0", "--force", "--ignore-not-found"]).await?;
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
    timeoutSeconds: 10
    failureThreshold: 30
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
