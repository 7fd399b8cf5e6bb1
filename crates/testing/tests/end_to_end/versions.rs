//! A version is what its content says, and the table names only what there is.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use lockstep_api::{KeySchemaSpec, Release, ReleasePolicySpec, RuleSpec, ValidationSpec, VersionedConfig};
use lockstep_core::digest::{Content, Digest};
use lockstep_core::names;
use lockstep_testing::manifests::{testapp_image, versioned};
use lockstep_testing::{SHORT, Scenario, command_line, eventually, holds, impatient, scenario};
use serde_json::{Value, json};

use super::meddling::delete;
use super::releases::{
    FIRST, SECOND, config, deployment, ended, expect, phase, promote, set_up, steer, until_promoted,
};
use super::truth::{cron_job, stateful_set};

/// The name of the version that `config(color, "healthy")` becomes, and its digest.
fn version_of(color: &str) -> (String, String) {
    let text = [("COLOR", color), ("BEHAVIOR", "healthy"), ("OTHER", "healthy")];
    let content = Content {
        secret_type: "",
        text: text.iter().map(|(key, value)| (*key, value.as_bytes())).collect(),
        binary: std::collections::BTreeMap::new(),
    };
    let digest = Digest::of_config_map(&content);
    (digest.version_object_name("app"), digest.full().to_owned())
}

async fn status(stage: &Scenario) -> Result<Value> {
    Ok(stage.read("versionedconfig/configmap-app").await?["status"].clone())
}

/// The config says that its change is refused, and why.
async fn refused(stage: &Scenario, why: &str) -> Result<()> {
    eventually("the change to be refused", SHORT, async || {
        let ready = status(stage).await?["conditions"][0].clone();
        ensure!(ready["status"] == "False" && ready["reason"] == "Refused", "{ready}");
        ensure!(ready["message"].as_str().is_some_and(|message| message.contains(why)), "{ready}");
        Ok(())
    })
    .await?;
    told(stage, "Refused", why).await
}

async fn told(stage: &Scenario, reason: &str, note: &str) -> Result<()> {
    eventually("an Event about it", SHORT, async || {
        let found = stage.api::<Event>().list(&ListParams::default()).await?;
        let is_it = |event: &&Event| {
            event.reason.as_deref() == Some(reason) && event.note.as_deref().is_some_and(|told| told.contains(note))
        };
        found.iter().find(is_it).map(drop).context("there is none")
    })
    .await
}

/// No release, and a table that does not name the version.
async fn nothing_moves(stage: &Scenario, object: &str) -> Result<()> {
    holds("nothing is released or published", Duration::from_secs(5), async || {
        let table = stage.kubectl(&["get", "pintable", "lockstep", "-o", "json", "--ignore-not-found"]).await?;
        ensure!(!table.contains(object), "{table}");
        let releases = stage.kubectl(&["get", "releases", "-o", "name"]).await?;
        ensure!(!releases.contains(FIRST), "{releases}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_object_in_the_way_is_not_taken_for_the_version() {
    scenario("in-the-way", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        let (green, _) = version_of("green");
        stage.kubectl(&["create", "configmap", &green, "--from-literal=COLOR=evil"]).await?;
        stage.apply(&config("green", "healthy")).await?;
        refused(&stage, &format!("the object {green} is in the way")).await?;
        nothing_moves(&stage, &green).await?;
        expect(&stage, "app=web", &["blue"]).await?;
        stage.kubectl(&["delete", "configmap", &green]).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green"]).await?;
        ensure!(status(&stage).await?["lastNumber"] == 2, "{}", status(&stage).await?["lastNumber"]);
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn an_object_in_the_way_of_the_first_version_stops_the_adoption() {
    scenario("in-the-way-first", |stage| async move {
        let (blue, _) = version_of("blue");
        stage.kubectl(&["create", "configmap", &blue, "--from-literal=COLOR=evil"]).await?;
        stage.apply(&config("blue", "healthy")).await?;
        refused(&stage, &format!("the object {blue} is in the way")).await?;
        nothing_moves(&stage, &blue).await?;
        stage.kubectl(&["delete", "configmap", &blue]).await?;
        stage.released("configmap/app", "1.0.0").await
    })
    .await;
}

#[tokio::test]
async fn a_forged_version_is_passed_over() {
    scenario("forged", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        let (green, digest) = version_of("green");
        // The tests may do what a backup tool may.
        let forged = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "immutable": true,
            "metadata": {
                "name": green,
                "labels": {names::VERSION_OF: "configmap"},
                "annotations": {
                    names::SOURCE: "app", names::VERSION: "r90", names::NUMBER: "90", names::DIGEST: digest,
                },
            },
            // Whoever is pinned to it never gets so far that its pods run, however late that is noticed: those would be left in peace.
            "data": {"COLOR": "evil", "BEHAVIOR": "never-ready"},
        });
        stage.create(&forged.to_string()).await?;
        told(&stage, "ForgedVersion", &format!("the object {green} says that it is version r90")).await?;
        stage.apply(&config("green", "healthy")).await?;
        refused(&stage, &format!("the object {green} is in the way")).await?;
        nothing_moves(&stage, &green).await?;
        stage.apply(&config("red", "healthy")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["red"]).await?;
        let versions = status(&stage).await?["versions"].to_string();
        ensure!(versions.contains("\"r2\"") && !versions.contains("r90"), "{versions}");
        pin(&stage, "deployment/web", &green).await?;
        told(&stage, "UnknownVersion", &format!("{green} is no version of configmap/app")).await?;
        eventually("the pin to be what is current", SHORT, async || {
            let pins = stage.pins("deployment/web").await?;
            ensure!(pins == format!("configmap/app={}", version_of("red").0), "{pins}");
            Ok(())
        })
        .await?;
        expect(&stage, "app=web", &["red"]).await
    })
    .await;
}

#[tokio::test]
async fn a_rollback_holds_when_the_version_that_it_went_back_from_is_deleted() {
    scenario("rolled-back", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        lockstep(&stage, &["rollback", "app", "--wait"]).await?;
        ended(&stage, SECOND, "Succeeded").await?;
        let (green, _) = version_of("green");
        // Until nothing runs it any more, it cannot be deleted.
        stage.kubectl(&["delete", "replicasets", "--selector", "app=web"]).await?;
        eventually("the version to be deleted", SHORT, async || {
            lockstep(&stage, &["versions", "delete", "app", "r2"]).await.map(drop)
        })
        .await?;
        eventually("its version to be made again", SHORT, async || {
            let versions = stage.versions("configmap/app").await?;
            ensure!(versions.get(&green).is_some_and(|name| name == "r2"), "{versions:?}");
            Ok(())
        })
        .await?;
        holds("the rollback stays", Duration::from_secs(8), async || {
            let current = status(&stage).await?["current"]["version"].clone();
            ensure!(current == "1.0.0", "{current} is current");
            Ok(())
        })
        .await?;
        expect(&stage, "app=web", &["blue"]).await
    })
    .await;
}

#[tokio::test]
async fn what_failed_stays_held_when_its_version_is_deleted() {
    scenario("held-deleted", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.apply(&config("red", "crash")).await?;
        ended(&stage, FIRST, "RolledBack").await?;
        let held = status(&stage).await?["held"]["object"].as_str().context("nothing is held")?.to_owned();
        let uid = async || -> Result<Option<String>> { Ok(stage.api::<ConfigMap>().get(&held).await?.uid()) };
        let before = uid().await?;
        // Until nothing can run it any more, it cannot be deleted.
        stage.kubectl(&["delete", "replicasets", "--selector", "app=web"]).await?;
        eventually("the version to be deleted", SHORT, async || {
            lockstep(&stage, &["versions", "delete", "app", "r2"]).await.map(drop)
        })
        .await?;
        eventually("its version to be made again", SHORT, async || {
            let versions = stage.versions("configmap/app").await?;
            ensure!(versions.get(&held).is_some_and(|name| name == "r2"), "{versions:?}");
            ensure!(uid().await? != before, "it was not deleted");
            Ok(())
        })
        .await?;
        holds("it is held and not tried again", Duration::from_secs(5), async || {
            let found = stage.api::<Release>().list(&ListParams::default()).await?;
            let releases: Vec<String> = found.iter().map(ResourceExt::name_any).collect();
            ensure!(releases == [FIRST], "{releases:?}");
            let status = status(&stage).await?;
            ensure!(status["held"]["version"] == "r2" && status["lastNumber"] == 2, "{status}");
            Ok(())
        })
        .await?;
        expect(&stage, "app=web", &["blue"]).await
    })
    .await;
}

/// The config, with annotations, and nothing kept that nobody runs.
fn unkept(color: &str, besides: &str) -> String {
    let annotations = format!("  annotations: {{lockstep.dev/retain: \"0\"{besides}}}\n  labels:");
    config(color, "healthy").replace("  labels:", &annotations)
}

/// Makes a Job that never runs, and waits until it holds its version. That is written when it is settled which versions may go.
async fn make_job(stage: &Scenario, name: &str, version: &str) -> Result<()> {
    stage.kubectl(&["create", "job", name, "--from=cronjob/report"]).await?;
    eventually(&format!("Job {name} to hold its version"), SHORT, async || {
        let held = stage.api::<ConfigMap>().get(version).await?;
        let owners: Vec<&str> = held.owner_references().iter().map(|owner| owner.name.as_str()).collect();
        ensure!(owners.contains(&name), "{owners:?} do");
        Ok(())
    })
    .await
}

/// The names of those who run a version.
async fn users(stage: &Scenario, version: &str) -> Result<Vec<String>> {
    let held = stage.api::<ConfigMap>().get(version).await?;
    let keepers = ["VersionedConfig", "ConfigMap"];
    let users = held.owner_references().iter().filter(|owner| !keepers.contains(&owner.kind.as_str()));
    Ok(users.map(|owner| owner.name.clone()).collect())
}

/// A CronJob goes on to the next version, and its Jobs stay with theirs.
#[tokio::test]
async fn a_cron_job_lets_go_of_the_version_that_it_has_left() {
    scenario("left-behind", |stage| async move {
        let ((blue, _), (green, _)) = (version_of("blue"), version_of("green"));
        stage.apply(&unkept("blue", "")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        stage.apply(&cron_job().replace("backoffLimit: 0", "suspend: true\n      backoffLimit: 0")).await?;
        make_job(&stage, "first", &blue).await?;
        let held_by = async |version: &str, wanted: &[&str]| {
            eventually(&format!("{version} to be held by {wanted:?}"), SHORT, async || {
                let users = users(&stage, version).await?;
                let is_so = users.len() == wanted.len() && wanted.iter().all(|name| users.iter().any(|it| it == name));
                ensure!(is_so, "{users:?} hold it");
                Ok(())
            })
            .await
        };
        held_by(&blue, &["report", "first"]).await?;
        stage.apply(&unkept("green", "")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        held_by(&blue, &["first"]).await?;
        held_by(&green, &["report"]).await?;
        stage.kubectl(&["delete", "job", "first"]).await?;
        eventually("the first version to go with the last Job that ran it", SHORT, async || {
            let versions = stage.versions("configmap/app").await?;
            ensure!(versions.len() == 1 && versions.contains_key(&green), "{versions:?}");
            Ok(())
        })
        .await?;
        let pins = stage.pins("cronjob/report").await?;
        ensure!(pins == format!("configmap/app={green}"), "{pins}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_version_that_a_cron_job_has_left_can_be_deleted() {
    scenario("left-and-deleted", |stage| async move {
        let (blue, _) = version_of("blue");
        stage.apply(&config("blue", "healthy")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        stage.apply(&cron_job()).await?;
        eventually("the CronJob to hold its version", SHORT, async || {
            ensure!(users(&stage, &blue).await? == ["report"]);
            Ok(())
        })
        .await?;
        let refused = lockstep(&stage, &["versions", "delete", "app", "1.0.0"]).await;
        ensure!(refused.is_err(), "what is current was deleted");
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        eventually("the version to be deleted", SHORT, async || {
            lockstep(&stage, &["versions", "delete", "app", "1.0.0"]).await.map(drop)
        })
        .await
    })
    .await;
}

/// What the config says is run by nobody, and still it is not let go: it would come back as a change.
#[tokio::test]
async fn a_rollback_holds_where_nothing_is_kept_that_nobody_runs() {
    scenario("rolled-back-unkept", |stage| async move {
        let ((blue, _), (green, _)) = (version_of("blue"), version_of("green"));
        stage.apply(&unkept("blue", "")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        stage.apply(&cron_job().replace("backoffLimit: 0", "suspend: true\n      backoffLimit: 0")).await?;
        make_job(&stage, "first", &blue).await?;
        stage.apply(&unkept("green", "")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        let uid = async || -> Result<Option<String>> { Ok(stage.api::<ConfigMap>().get(&green).await?.uid()) };
        let before = uid().await?;
        lockstep(&stage, &["rollback", "app", "--to", "1.0.0"]).await?;
        ended(&stage, SECOND, "Succeeded").await?;
        // When the last one holds it, whatever was to go with the one before is gone, and what follows from that has begun.
        for name in ["second", "third", "fourth"] {
            make_job(&stage, name, &blue).await?;
        }
        ensure!(uid().await? == before, "the version of what the config says was let go");
        let versions = stage.versions("configmap/app").await?;
        ensure!(versions.len() == 2, "{versions:?}");
        let releases: Vec<String> =
            stage.api::<Release>().list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).collect();
        ensure!(releases == [FIRST, SECOND], "{releases:?}");
        ensure!(status(&stage).await?["current"]["version"] == "1.0.0", "{}", status(&stage).await?["current"]);
        let pins = stage.pins("cronjob/report").await?;
        ensure!(pins == format!("configmap/app={blue}"), "{pins}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_name_stands_for_one_content_also_when_its_version_or_its_versioned_config_is_gone() {
    scenario("one-content", |stage| async move {
        let named = |version: &str, color: &str| unkept(color, &format!(", lockstep.dev/version: {version:?}"));
        let ((blue, _), (green, _)) = (version_of("blue"), version_of("green"));
        stage.apply(&named("1.4.0", "blue")).await?;
        stage.released("configmap/app", "1.4.0").await?;
        stage.apply(&named("1.5.0", "green")).await?;
        stage.released("configmap/app", "1.5.0").await?;
        eventually("1.4.0 to be let go", SHORT, async || {
            let versions = stage.versions("configmap/app").await?;
            ensure!(versions.len() == 1 && versions.contains_key(&green), "{versions:?}");
            Ok(())
        })
        .await?;
        for is_forgotten in [false, true] {
            if is_forgotten {
                delete(&stage, "versionedconfig/configmap-app").await?;
            }
            stage.apply(&named("1.4.0", "red")).await?;
            refused(&stage, "version 1.4.0 has other content already").await?;
            stage.apply(&named("1.5.0", "green")).await?;
            eventually("all to be well again", SHORT, async || {
                let found = status(&stage).await?;
                ensure!(found["conditions"][0]["status"] == "True", "{}", found["conditions"]);
                ensure!(found["current"]["object"] == green, "{}", found["current"]);
                Ok(())
            })
            .await?;
        }
        stage.apply(&config("red", "healthy")).await?;
        stage.released("configmap/app", "r3").await?;
        stage.apply(&named("1.4.0", "blue")).await?;
        stage.released("configmap/app", "1.4.0").await?;
        let versions = stage.versions("configmap/app").await?;
        ensure!(versions.get(&blue).is_some_and(|name| name == "1.4.0"), "{versions:?}");
        Ok(())
    })
    .await;
}

/// The config, and what Lockstep knows of it.
async fn delete_all_of_it(stage: &Scenario) -> Result<()> {
    let (configs, managed, params) =
        (stage.api::<ConfigMap>(), stage.api::<VersionedConfig>(), DeleteParams::default());
    // At the same moment: what Lockstep knows is written again as long as the config is there.
    futures::try_join!(managed.delete("configmap-app", &params), configs.delete("app", &params))?;
    eventually("its versions to go with both", SHORT, async || {
        let versions = stage.versions("configmap/app").await?;
        ensure!(versions.is_empty(), "{versions:?} are left");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_version_that_is_gone_is_not_handed_out_when_its_config_comes_back_without_its_opt_in() {
    scenario("gone-and-plain", |stage| async move {
        stage.apply(&config("blue", "healthy")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        delete_all_of_it(&stage).await?;
        stage.apply(&deployment("web", 1, "")).await?;
        let pins = stage.pins("deployment/web").await?;
        // The table speaks of it until it is seen that all of it is gone: a slow garbage collector leaves time for that.
        let is_handed_out = pins == format!("configmap/app={}", version_of("blue").0);
        ensure!(is_handed_out || pins.is_empty(), "{pins:?}");
        stage.apply(&plain("green")).await?;
        if is_handed_out {
            told(&stage, "UnknownVersion", "configmap/app is not versioned here: it is not pinned any more").await?;
        }
        expect(&stage, "app=web", &["green"]).await?;
        stage.apply(&deployment("api", 1, "")).await?;
        let pins = stage.pins("deployment/api").await?;
        ensure!(pins.is_empty(), "{pins}");
        expect(&stage, "app=api", &["green"]).await
    })
    .await;
}

#[tokio::test]
async fn a_config_that_comes_back_after_all_of_it_was_deleted_is_adopted_anew() {
    scenario("gone-and-anew", |stage| async move {
        stage.apply(&config("blue", "healthy")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        delete_all_of_it(&stage).await?;
        stage.apply(&deployment("web", 1, "")).await?;
        stage.apply(&config("green", "healthy")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

#[tokio::test]
async fn a_config_that_is_deleted_right_after_its_versioned_config_loses_no_version() {
    scenario("one-by-one", |stage| async move {
        stage.apply(&config("blue", "healthy")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        stage.apply(&config("green", "healthy")).await?;
        stage.released("configmap/app", "r2").await?;
        delete(&stage, "versionedconfig/configmap-app").await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        stage.kubectl(&["delete", "configmap", "app"]).await?;
        holds("both versions are there", Duration::from_secs(10), async || {
            let versions = stage.versions("configmap/app").await?;
            ensure!(versions.len() == 2, "{versions:?}");
            Ok(())
        })
        .await?;
        stage.apply(&config("green", "healthy")).await?;
        followed(&stage, "True", "OptedIn").await?;
        ensure!(status(&stage).await?["current"]["version"] == "r2", "{}", status(&stage).await?["current"]);
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_versioned_config_of_a_config_that_does_not_exist_says_so() {
    scenario("of-nothing", |stage| async move {
        let object = json!({
            "apiVersion": "lockstep.dev/v1alpha1",
            "kind": "VersionedConfig",
            "metadata": {"name": "configmap-app"},
            "spec": {"source": {"kind": "ConfigMap", "name": "app"}},
        });
        stage.create(&object.to_string()).await?;
        eventually("the config to be missed", SHORT, async || {
            let ready = status(&stage).await?["conditions"][0].clone();
            ensure!(ready["status"] == "False" && ready["reason"] == "NoVersion", "{ready}");
            let told = ready["message"].as_str().unwrap_or_default();
            ensure!(told.contains("there is no ConfigMap app"), "{told}");
            Ok(())
        })
        .await
    })
    .await;
}

/// Nothing is versioned here, so that nobody but the Job itself could say it.
#[tokio::test]
async fn a_job_with_a_version_that_nobody_knows_is_told_once_what_helps() {
    scenario("stuck-job", |stage| async move {
        stage.kubectl(&["create", "configmap", "app", "--from-literal=COLOR=red"]).await?;
        let pins = json!({names::PINS: "configmap/app=app-0123456789"});
        let container = json!({"name": "app", "image": "none", "envFrom": [{"configMapRef": {"name": "app"}}]});
        let job = json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "report"},
            "spec": {"suspend": true, "template": {
                "metadata": {"annotations": pins},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            }},
        });
        stage.create(&job.to_string()).await?;
        let told = async || -> Result<Vec<Event>> {
            let found = stage.api::<Event>().list(&ListParams::default()).await?;
            let is_it = |event: &Event| {
                event.reason.as_deref() == Some("UnknownVersion")
                    && event.regarding.as_ref().is_some_and(|about| about.kind.as_deref() == Some("Job"))
            };
            Ok(found.into_iter().filter(is_it).collect())
        };
        eventually("an Event about the Job", SHORT, async || {
            let note = told().await?.pop().and_then(|event| event.note).context("there is none")?;
            ensure!(note.contains("app-0123456789, which is no version of configmap/app here"), "{note}");
            ensure!(note.contains("from its template, and create it again"), "{note}");
            Ok(())
        })
        .await?;
        for word in ["one", "two"] {
            stage.kubectl(&["annotate", "job", "report", &format!("example.org/{word}=yes")]).await?;
        }
        holds("it is told once", Duration::from_secs(5), async || {
            let told = told().await?;
            ensure!(told.len() == 1 && told[0].series.is_none(), "{told:?}");
            Ok(())
        })
        .await
    })
    .await;
}

async fn lockstep(stage: &Scenario, arguments: &[&str]) -> Result<String> {
    let mut command = tokio::process::Command::new(command_line().await?);
    let output = command.args(arguments).args(["--namespace", &stage.namespace]).output().await?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{arguments:?} ended with {}: {said}", output.status);
    Ok(said)
}

#[tokio::test]
async fn a_version_that_a_quota_does_not_allow_is_withdrawn_and_told() {
    scenario("quota", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        // The source, its first version, and kube-root-ca.crt are there already.
        stage.kubectl(&["create", "quota", "few", "--hard=configmaps=1"]).await?;
        eventually("the quota to count", SHORT, async || {
            let used = stage.kubectl(&["get", "quota", "few", "-o", "jsonpath={.status.used.configmaps}"]).await?;
            ensure!(used.parse::<u32>().is_ok_and(|used| used >= 2), "used: {used:?}");
            Ok(())
        })
        .await?;
        let (green, _) = version_of("green");
        stage.apply(&config("green", "healthy")).await?;
        refused(&stage, &format!("its new version {green} cannot be created: ")).await?;
        nothing_moves(&stage, &green).await?;
        stage.kubectl(&["rollout", "restart", "deployment/web"]).await?;
        expect(&stage, "app=web", &["blue"]).await?;
        stage.kubectl(&["delete", "quota", "few"]).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

/// The table names what there is, and there is nothing: whoever is written meanwhile runs the config itself.
#[tokio::test]
async fn a_first_version_that_a_quota_does_not_allow_is_handed_out_to_nobody() {
    scenario("quota-first", |stage| async move {
        eventually("what Kubernetes puts into every namespace", SHORT, async || {
            Ok(stage.api::<ConfigMap>().get("kube-root-ca.crt").await?)
        })
        .await?;
        stage.kubectl(&["create", "quota", "few", "--hard=configmaps=2"]).await?;
        eventually("the quota to count", SHORT, async || {
            let used = stage.kubectl(&["get", "quota", "few", "-o", "jsonpath={.status.used.configmaps}"]).await?;
            ensure!(used == "1", "used: {used:?}");
            Ok(())
        })
        .await?;
        let (blue, _) = version_of("blue");
        stage.apply(&config("blue", "healthy")).await?;
        refused(&stage, &format!("its new version {blue} cannot be created: ")).await?;
        nothing_moves(&stage, &blue).await?;
        stage.apply(&deployment("web", 1, "")).await?;
        let pins = stage.pins("deployment/web").await?;
        ensure!(pins.is_empty(), "it is pinned to what is not there: {pins}");
        expect(&stage, "app=web", &["blue"]).await?;
        stage.kubectl(&["delete", "quota", "few"]).await?;
        stage.released("configmap/app", "1.0.0").await?;
        expect(&stage, "app=web", &["blue"]).await
    })
    .await;
}

/// A manifest as `kubectl get -o yaml` gives it, without what only its own cluster and namespace know.
async fn exported(stage: &Scenario, workload: &str) -> Result<Value> {
    let mut object = stage.read(workload).await?;
    let metadata = &object["metadata"];
    object["metadata"] = json!({"name": metadata["name"], "labels": metadata["labels"]});
    object.as_object_mut().context("it is no object")?.remove("status");
    Ok(object)
}

#[tokio::test]
async fn a_manifest_from_another_namespace_runs_where_nothing_is_versioned() {
    scenario("copied", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        let copy = exported(&stage, "deployment/web").await?;
        let other = format!("{}-other", stage.namespace);
        stage.kubectl(&["create", "namespace", &other]).await?;
        let there = stage.elsewhere(&other);
        let runs = async {
            there
                .kubectl(&["create", "configmap", "app", "--from-literal=COLOR=red", "--from-literal=BEHAVIOR=healthy"])
                .await?;
            there.create(&copy.to_string()).await?;
            expect(&there, "app=web", &["red"]).await?;
            told(&there, "UnknownVersion", "configmap/app is not versioned here").await
        };
        let outcome = runs.await;
        stage.kubectl(&["delete", "namespace", &other, "--wait=false"]).await?;
        outcome
    })
    .await;
}

#[tokio::test]
async fn an_old_manifest_that_names_a_version_of_long_ago_gets_what_is_current() {
    scenario("long-ago", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        pin(&stage, "deployment/web", UNKNOWN).await?;
        told(&stage, "UnknownVersion", "app-0123456789 is no version of configmap/app").await?;
        eventually("the pin to be what is current", SHORT, async || {
            let found = stage.read("deployment/web").await?;
            let pins = &found["spec"]["template"]["metadata"]["annotations"][names::PINS];
            let (green, _) = version_of("green");
            ensure!(*pins == format!("configmap/app={green}"), "{pins}");
            Ok(())
        })
        .await?;
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

/// A config beside `app`, and the object of its only version.
async fn another(stage: &Scenario, behavior: &str) -> Result<String> {
    stage.apply(&versioned("other", &format!("data:\n  COLOR: red\n  BEHAVIOR: {behavior}\n---"))).await?;
    stage.released("configmap/other", "1.0.0").await?;
    let (object, _) = stage.versions("configmap/other").await?.pop_first().context("it has no version")?;
    Ok(object)
}

/// What nobody ever made.
const UNKNOWN: &str = "app-0123456789";

/// By hand.
async fn pin(stage: &Scenario, workload: &str, object: &str) -> Result<()> {
    let annotations = json!({names::PINS: format!("configmap/app={object}")});
    let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
    steer(stage, workload, &patch.to_string()).await
}

/// For want of the config that it is pinned to.
async fn cannot_start(stage: &Scenario, pod: &str) -> Result<()> {
    eventually(&format!("pod {pod} to wait for its config"), SHORT, async || {
        let status = stage.api::<Pod>().get(pod).await?.status.context("it has no status")?;
        let waits = status.container_statuses.into_iter().flatten().filter_map(|it| it.state?.waiting?.reason);
        let reasons: Vec<String> = waits.collect();
        ensure!(reasons == ["CreateContainerConfigError"], "{reasons:?}");
        Ok(())
    })
    .await
}

/// Nobody made it from a template that could be mended.
#[tokio::test]
async fn a_pod_of_nobody_that_waits_for_a_version_that_nobody_knows_is_named_by_doctor() {
    scenario("bare-pod", |stage| async move {
        stage.apply(&config("blue", "healthy")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        let container =
            json!({"name": "app", "image": testapp_image(), "envFrom": [{"configMapRef": {"name": "app"}}]});
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "bare", "annotations": {names::PINS: format!("configmap/app={UNKNOWN}")}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
        });
        stage.create(&pod.to_string()).await?;
        cannot_start(&stage, "bare").await?;
        // On a busy machine a replica of the operator may not be ready for a moment, which is told, too.
        let doctor_says = async |told: &str| {
            eventually("doctor to say so", SHORT, async || {
                let said = lockstep(&stage, &["doctor"]).await?;
                ensure!(said.contains(told), "{said}");
                Ok(())
            })
            .await
        };
        let told = format!("warn  configs    Pod bare is not ready: it is pinned to {UNKNOWN}, which does not exist");
        doctor_says(&told).await?;
        stage.kubectl(&["delete", "pod", "bare"]).await?;
        doctor_says("none is stuck").await
    })
    .await;
}

/// Its controller waits for a pod that never starts, whatever its template says by then.
#[tokio::test]
async fn a_stateful_set_that_waits_for_a_version_that_nobody_knows_goes_on() {
    scenario("stuck-set", |stage| async move {
        stage.set_policy("default", &until_promoted()).await?;
        set_up(&stage, &(stateful_set(&deployment("db", 2, "")) + &deployment("web", 1, ""))).await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        // In a release it is theirs who wrote it: so its pod has the time to get stuck.
        pin(&stage, "statefulset/db", UNKNOWN).await?;
        cannot_start(&stage, "db-1").await?;
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        told(&stage, "UnknownVersion", &format!("{UNKNOWN} is no version of configmap/app")).await?;
        expect(&stage, "app=db", &["green", "green"]).await?;
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

#[tokio::test]
async fn a_pin_to_a_version_of_another_config_becomes_what_is_current() {
    scenario("foreign-pin", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        // It never gets so far that its pods run, however late it is noticed: those would be left in peace.
        let foreign = another(&stage, "never-ready").await?;
        pin(&stage, "deployment/web", &foreign).await?;
        told(&stage, "UnknownVersion", &format!("{foreign} is no version of configmap/app")).await?;
        eventually("the pin to be what is current", SHORT, async || {
            let pins = stage.pins("deployment/web").await?;
            ensure!(pins == format!("configmap/app={}", version_of("blue").0), "{pins}");
            Ok(())
        })
        .await?;
        expect(&stage, "app=web", &["blue"]).await?;
        let events = stage.kubectl(&["events", "--for", "configmap/app"]).await?;
        ensure!(!events.contains("UnknownVersion"), "a person was asked to mend what mends itself: {events}");
        Ok(())
    })
    .await;
}

/// In a release it is theirs who wrote it, and pods that run are not restarted after it: but nobody says that all is well.
#[tokio::test]
async fn whoever_runs_a_version_of_another_config_is_named() {
    scenario("foreign-pods", |stage| async move {
        stage.set_policy("default", &until_promoted()).await?;
        set_up(&stage, &(deployment("web", 1, "") + &deployment("api", 1, ""))).await?;
        let foreign = another(&stage, "healthy").await?;
        stage.apply(&config("green", "healthy")).await?;
        phase(&stage, FIRST, "Baking").await?;
        pin(&stage, "deployment/web", &foreign).await?;
        stage.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await?;
        expect(&stage, "app=web", &["red"]).await?;
        promote(&stage, FIRST).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        eventually("the config to name it", SHORT, async || {
            let ready = status(&stage).await?["conditions"][0].clone();
            ensure!(ready["status"] == "False" && ready["reason"] == "UnknownVersion", "{ready}");
            let told = format!(
                "Deployment web is pinned to {foreign}, which is no version of this config: its pods run the content of configmap/other"
            );
            ensure!(ready["message"].as_str().is_some_and(|message| message.contains(&told)), "{ready}");
            Ok(())
        })
        .await?;
        eventually("doctor to name it, too", SHORT, async || {
            let said = lockstep(&stage, &["doctor"]).await?;
            let told = format!("warn  configs    configmap/app: Deployment web is pinned to {foreign}");
            ensure!(said.contains(&told), "{said}");
            Ok(())
        })
        .await?;
        expect(&stage, "app=api", &["green"]).await
    })
    .await;
}

#[tokio::test]
async fn a_config_that_is_not_followed_any_more_says_so() {
    scenario("followed", |stage| async move {
        set_up(&stage, &(deployment("web", 1, "") + &deployment("api", 1, ""))).await?;
        followed(&stage, "True", "OptedIn").await?;
        stage.kubectl(&["label", "configmap", "app", "lockstep.dev/versioned-"]).await?;
        followed(&stage, "False", "OptedOut").await?;
        stage.kubectl(&["delete", "configmap", "app"]).await?;
        followed(&stage, "False", "SourceGone").await?;
        stage.apply(&config("blue", "healthy")).await?;
        followed(&stage, "True", "OptedIn").await?;
        // Nor does it speak of consumers that are gone, while it is not followed.
        stage.kubectl(&["label", "configmap", "app", "lockstep.dev/versioned-"]).await?;
        followed(&stage, "False", "OptedOut").await?;
        stage.kubectl(&["delete", "deployment", "web"]).await?;
        eventually("one consumer to be left", SHORT, async || {
            let found = status(&stage).await?;
            let names: Vec<&Value> =
                found["consumers"].as_array().into_iter().flatten().map(|it| &it["name"]).collect();
            ensure!(found["consumerCount"] == 1 && names == ["api"], "{found}");
            Ok(())
        })
        .await
    })
    .await;
}

async fn followed(stage: &Scenario, wanted: &str, reason: &str) -> Result<()> {
    eventually(&format!("the condition Followed to be {wanted}"), SHORT, async || {
        let found = status(stage).await?;
        let conditions = found["conditions"].as_array().context("no conditions")?;
        let followed = conditions.iter().find(|condition| condition["type"] == "Followed").context("not said")?;
        ensure!(followed["status"] == wanted && followed["reason"] == reason, "{followed}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_breaks_a_rule_is_not_released_by_any_detour() {
    scenario("detour", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        let rule = RuleSpec { expression: "data['COLOR'] != 'red'".into(), message: None };
        let validation = Some(ValidationSpec { rules: vec![rule], ..ValidationSpec::default() });
        stage.set_policy("default", &ReleasePolicySpec { validation, ..impatient() }).await?;
        // Somebody keeps a version, changes the config meanwhile, and then follows it again.
        let choose = r#"{"spec": {"current": {"version": "1.0.0"}}}"#;
        stage.kubectl(&["patch", "versionedconfig", "configmap-app", "--type=merge", "--patch", choose]).await?;
        stage.apply(&config("red", "healthy")).await?;
        eventually("the change to become a version", SHORT, async || {
            let versions = stage.versions("configmap/app").await?;
            ensure!(versions.len() == 2, "{versions:?}");
            Ok(())
        })
        .await?;
        let follow = r#"{"spec": {"current": null}}"#;
        stage.kubectl(&["patch", "versionedconfig", "configmap-app", "--type=merge", "--patch", follow]).await?;
        ended(&stage, FIRST, "Rejected").await?;
        // Or chooses what was rejected.
        stage.apply(&config("green", "healthy")).await?;
        stage.released("configmap/app", "r3").await?;
        let choose = r#"{"spec": {"current": {"version": "r2"}}}"#;
        stage.kubectl(&["patch", "versionedconfig", "configmap-app", "--type=merge", "--patch", choose]).await?;
        eventually("the choice to be refused", SHORT, async || {
            let conditions = status(&stage).await?["conditions"].to_string();
            ensure!(
                conditions.contains("r2, which spec.current") && conditions.contains("was rejected"),
                "{conditions}"
            );
            Ok(())
        })
        .await?;
        stage.kubectl(&["patch", "versionedconfig", "configmap-app", "--type=merge", "--patch", follow]).await?;
        stage.apply(&config("blue", "healthy")).await?;
        stage.released("configmap/app", "1.0.0").await?;
        stage.apply(&config("red", "healthy")).await?;
        eventually("it to be held again", SHORT, async || {
            let held = status(&stage).await?["held"]["version"].to_string();
            ensure!(held.contains("r2"), "{held}");
            Ok(())
        })
        .await?;
        // Or loses what Lockstep remembers of it; what pods run is held by what makes them.
        let (blue, _) = version_of("blue");
        eventually("the first version to be held by the ReplicaSet", SHORT, async || {
            let path = "jsonpath={.metadata.ownerReferences[*].kind}";
            let owners = stage.kubectl(&["get", "configmap", &blue, "-o", path]).await?;
            ensure!(owners.contains("ReplicaSet"), "{owners}");
            Ok(())
        })
        .await?;
        stage.kubectl(&["delete", "versionedconfig", "configmap-app"]).await?;
        eventually("it to be rejected again", SHORT, async || {
            let held = status(&stage).await?["held"]["reason"].to_string();
            ensure!(held.contains("data['COLOR'] != 'red'"), "{held}");
            Ok(())
        })
        .await?;
        expect(&stage, "app=web", &["blue"]).await
    })
    .await;
}

#[tokio::test]
async fn a_policy_whose_rules_cannot_be_used_is_told_when_it_is_written() {
    scenario("bad-policy", |stage| async move {
        let rule = RuleSpec { expression: "data['COLOR'] !=".into(), message: None };
        let validation = Some(ValidationSpec { rules: vec![rule], ..ValidationSpec::default() });
        stage.set_policy("default", &ReleasePolicySpec { validation, ..impatient() }).await?;
        eventually("an Event about the policy", SHORT, async || {
            let events = stage.kubectl(&["events", "--for", "releasepolicy/default"]).await?;
            ensure!(events.contains("InvalidPolicy") && events.contains("data['COLOR'] !="), "{events}");
            Ok(())
        })
        .await?;
        let schema = KeySchemaSpec { key: "app.yaml".into(), schema: json!({"type": 7}) };
        let validation = Some(ValidationSpec { schemas: vec![schema], ..ValidationSpec::default() });
        stage.set_policy("unsound", &ReleasePolicySpec { validation, ..impatient() }).await?;
        eventually("an Event about its schema", SHORT, async || {
            let events = stage.kubectl(&["events", "--for", "releasepolicy/unsound"]).await?;
            ensure!(events.contains("InvalidPolicy") && events.contains("the schema for key app.yaml: "), "{events}");
            Ok(())
        })
        .await
    })
    .await;
}

/// A config that did not opt in itself.
fn plain(color: &str) -> String {
    config(color, "healthy").replace("  labels: {lockstep.dev/versioned: \"true\"}\n", "")
}

/// A workload that opts in all that it references.
fn auto(besides: &str) -> String {
    let opted_in = "metadata:\n  name: web\n  annotations: {lockstep.dev/auto: \"true\"}\n";
    deployment("web", 1, besides).replace("metadata:\n  name: web\n", opted_in)
}

const NEW_CODE: &str = "env: [{name: CODE, value: new}]\n";

#[tokio::test]
async fn what_the_api_server_refuses_is_not_run_by_the_code_that_came_with_it() {
    scenario("refused-write", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        let broken = config("green", "healthy").replace("versioned: \"true\"", "versioned: \"true\", tier: no/label");
        let applied = stage.apply(&(broken + &deployment("web", 1, NEW_CODE))).await;
        let refusal = applied.err().context("the config was not refused")?.to_string();
        ensure!(refusal.contains("no/label"), "{refusal}");
        stage.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]).await?;
        expect(&stage, "app=web", &["blue"]).await?;
        nothing_moves(&stage, &version_of("green").0).await
    })
    .await;
}

#[tokio::test]
async fn what_is_deleted_and_made_anew_with_its_workload_comes_with_the_new_config() {
    scenario("made-anew", |stage| async move {
        stage.apply(&(plain("blue") + &auto(""))).await?;
        stage.released("configmap/app", "1.0.0").await?;
        expect(&stage, "app=web", &["blue"]).await?;
        stage.kubectl(&["delete", "configmap/app", "deployment/web", "--cascade=foreground"]).await?;
        followed(&stage, "False", "SourceGone").await?;
        stage.apply(&(plain("green") + &auto(NEW_CODE))).await?;
        stage.released("configmap/app", "r2").await?;
        let sets = stage.replica_sets().await?;
        ensure!(sets.len() == 1, "new code ran with old config first: {sets:?}");
        expect(&stage, "app=web", &["green"]).await
    })
    .await;
}

#[tokio::test]
async fn a_workload_that_takes_its_opt_in_back_is_left_alone() {
    scenario("opt-out", |stage| async move {
        stage.apply(&(plain("blue") + &auto(""))).await?;
        stage.released("configmap/app", "1.0.0").await?;
        expect(&stage, "app=web", &["blue"]).await?;
        followed(&stage, "True", "OptedIn").await?;
        stage.kubectl(&["annotate", "deployment", "web", "lockstep.dev/auto-"]).await?;
        followed(&stage, "False", "OptedOut").await
    })
    .await;
}
