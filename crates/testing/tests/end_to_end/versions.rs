//! A version is what its content says, and the table names only what there is.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use lockstep_api::{ReleasePolicySpec, RuleSpec, ValidationSpec};
use lockstep_core::digest::{Content, Digest};
use lockstep_core::names;
use lockstep_testing::{SHORT, Scenario, command_line, eventually, holds, impatient, scenario};
use serde_json::{Value, json};

use super::releases::{FIRST, SECOND, config, deployment, ended, expect, set_up};

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
            "data": {"COLOR": "evil"},
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
        Ok(())
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
        let pins = "/spec/template/metadata/annotations/lockstep.dev~1pins";
        let patch = json!([{"op": "replace", "path": pins, "value": "configmap/app=app-0123456789"}]).to_string();
        stage.kubectl(&["patch", "deployment", "web", "--type=json", "--patch", &patch]).await?;
        told(&stage, "UnknownVersion", "app-0123456789 of configmap/app does not exist").await?;
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

#[tokio::test]
async fn a_config_that_is_not_followed_any_more_says_so() {
    scenario("followed", |stage| async move {
        set_up(&stage, &deployment("web", 1, "")).await?;
        followed(&stage, "True", "OptedIn").await?;
        stage.kubectl(&["label", "configmap", "app", "lockstep.dev/versioned-"]).await?;
        followed(&stage, "False", "OptedOut").await?;
        stage.kubectl(&["delete", "configmap", "app"]).await?;
        followed(&stage, "False", "SourceGone").await?;
        stage.apply(&config("blue", "healthy")).await?;
        followed(&stage, "True", "OptedIn").await
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
