//! Configs and their versions: who changed them, what their versions are called, and which cannot be deleted.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use lockstep_api::PinTableSpec;
use lockstep_core::config::MAX_NAME_LENGTH;
use lockstep_core::digest::MAX_CONFIG_NAME_LENGTH as LONGEST_NAME;
use lockstep_core::{ConfigKind, ConfigRef, names};
use lockstep_testing::{SHORT, Scenario, eventually, scenario};
use serde_json::{Value, json};

use super::shape::{Place, Use, pod_spec};
use super::stage::{create, dry_run, objects, refusal, with_table};

/// Who the tests are to the API server.
const USER: &str = "admin";
const KINDS: [&str; 2] = ["ConfigMap", "Secret"];

#[tokio::test]
async fn a_version_name_stands_for_one_content() {
    scenario("version-names", |stage| async move {
        for kind in KINDS {
            let first = source(kind, "app", "red", "0.9.0");
            adopt_by_workload(&stage, kind, &first).await?;
            objects(&stage, &first)?.delete("app", &DeleteParams::default()).await?;
            let written = create(&stage, &source(kind, "app", "blue", "1.0.0")).await?;
            ensure!(changed_by(&written) == USER, "changed by {:?}", changed_by(&written));

            let reused = refused_change(&stage, &source(kind, "app", "green", "1.0.0")).await?;
            ensure!(reused.contains("version 1.0.0 has other content already"), "{reused}");
            ensure!(reused.contains("give this change a new name in the annotation lockstep.dev/version"), "{reused}");
            for (version, why) in NO_NAMES {
                let told = refused_change(&stage, &source(kind, "app", "green", version)).await?;
                ensure!(told.contains(why) && told.contains("hoose another lockstep.dev/version"), "{told}");
            }

            forget_who_changed(&stage, kind).await?;
            let same = change(&stage, &source(kind, "app", "blue", "1.0.0"), &PatchParams::default()).await?;
            ensure!(changed_by(&same).is_empty(), "stamped without a change of content");
            let changed = change(&stage, &source(kind, "app", "green", "1.0.1"), &PatchParams::default()).await?;
            ensure!(changed_by(&changed) == USER, "changed by {:?}", changed_by(&changed));
        }
        Ok(())
    })
    .await;
}

/// What no version can be called, and why.
const NO_NAMES: [(&str, &str); 7] = [
    ("current", "`current` cannot be a version name"),
    ("source", "`source` cannot be a version name"),
    ("--to", "the version name is not one"),
    ("a b", "the version name is not one"),
    ("\u{200b}x", "the version name is not one"),
    ("x\u{200b}", "the version name is not one"),
    ("a\u{202e}b", "the version name is not one"),
];

/// There is no table yet: the label alone says that it is versioned.
#[tokio::test]
async fn a_version_name_is_checked_at_the_first_write() {
    scenario("first-names", |stage| async move {
        for kind in KINDS {
            let first = async |version: &str| {
                let mut first = source(kind, "first", "blue", version);
                first["metadata"]["labels"] = json!({names::VERSIONED: names::ON});
                dry_run(&stage, &first).await
            };
            for (version, why) in NO_NAMES {
                let refused = refusal(&format!("version {version:?}"), first(version).await)?;
                ensure!(refused.contains(why) && refused.contains("hoose another lockstep.dev/version"), "{refused}");
            }
            first("1.4.0+ü").await?;
        }
        Ok(())
    })
    .await;
}

/// A config that a workload opts in, and that the API server knows to be in the table.
async fn adopt_by_workload(stage: &Scenario, kind: &str, source: &Value) -> Result<()> {
    create(stage, source).await?;
    let mut user = replica_set(&format!("user-of-{}", word(kind)));
    user["metadata"]["annotations"] = json!({names::AUTO: names::ON});
    let config: ConfigRef = format!("{}/app", word(kind)).parse()?;
    user["spec"]["template"]["spec"] = pod_spec("none", &[Use { place: Place::Volume, config }]);
    create(stage, &user).await?;
    stage.released(&format!("{}/app", word(kind)), "0.9.0").await?;
    let mut changed = source.clone();
    changed[if kind == "Secret" { "stringData" } else { "data" }] = json!({"color": "none"});
    changed["metadata"]["annotations"] = json!({names::VERSION: "0.9.1"});
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    eventually("the API server to know the pin table", SHORT, async || {
        let changed = change(stage, &changed, &params).await?;
        ensure!(changed_by(&changed) == USER, "changed by {:?}", changed_by(&changed));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_config_that_is_not_versioned_is_left_alone() {
    with_table("version-names-of-others", table(), |stage, _| async move {
        for kind in KINDS {
            let written = create(&stage, &source(kind, "unrelated", "blue", "current")).await?;
            ensure!(changed_by(&written).is_empty(), "a new {kind} is stamped");
            let changed =
                change(&stage, &source(kind, "unrelated", "green", "current"), &PatchParams::default()).await?;
            ensure!(changed_by(&changed).is_empty(), "a changed {kind} is stamped");
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_config_whose_name_leaves_no_room_for_its_versions_cannot_opt_in() {
    scenario("long-names", |stage| async move {
        for kind in KINDS {
            let reason = refusal("a long name", create(&stage, &opted_in(kind, LONGEST_NAME + 1)).await)?;
            ensure!(reason.contains(&format!("its name has {} characters", LONGEST_NAME + 1)), "{reason}");
            ensure!(reason.contains("give it a shorter name"), "{reason}");
            create(&stage, &opted_in(kind, LONGEST_NAME)).await?;

            let mut plain = opted_in(kind, LONGEST_NAME + 1);
            plain["metadata"]["labels"] = json!({});
            create(&stage, &plain).await?;
            let label = change(&stage, &opted_in(kind, LONGEST_NAME + 1), &PatchParams::default()).await;
            let reason = refusal("a label on a long name", label)?;
            ensure!(reason.contains("give it a shorter name"), "{reason}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn an_annotation_that_should_be_a_number_is_one() {
    scenario("numbers", |stage| async move {
        for (mut object, annotation, good, bad) in [
            (replica_set("user"), names::WAVE, "-1", "first"),
            (opted_in("ConfigMap", 10), names::RETAIN, "3", "-3"),
            (opted_in("Secret", 10), names::RETAIN, "3", "all"),
        ] {
            object["metadata"]["annotations"] = json!({annotation: bad});
            let reason = refusal(bad, create(&stage, &object).await)?;
            ensure!(
                reason.contains(annotation) && reason.contains(&format!("is \"{bad}\", and should be")),
                "{reason}"
            );
            object["metadata"]["annotations"] = json!({annotation: good});
            create(&stage, &object).await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_config_that_others_opted_in_is_told_by_an_event_that_its_name_is_too_long() {
    scenario("long-names-told", |stage| async move {
        let name = "a".repeat(MAX_NAME_LENGTH);
        create(&stage, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})).await?;
        let mut user = replica_set("user");
        user["metadata"]["annotations"] = json!({names::AUTO: names::ON});
        let config = ConfigRef::new(ConfigKind::ConfigMap, name.as_str());
        user["spec"]["template"]["spec"] = pod_spec("none", &[Use { place: Place::Volume, config }]);
        create(&stage, &user).await?;
        let told = eventually("an Event about the ConfigMap", SHORT, async || {
            let found = stage.api::<Event>().list(&ListParams::default()).await?;
            let about =
                |event: &&Event| event.regarding.as_ref().is_some_and(|about| about.name.as_ref() == Some(&name));
            found.iter().find(about).and_then(|event| event.note.clone()).context("no Event")
        })
        .await?;
        ensure!(told.contains("its name has 253 characters"), "{told}");
        ensure!(told.contains("give it a shorter name"), "{told}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn only_lockstep_makes_versions_and_says_what_they_are() {
    scenario("versions-made", |stage| async move {
        for kind in KINDS {
            let made = as_editor(&stage, &["create", "-f", "-"], &version(kind, "app-1").to_string()).await;
            let reason = refusal("a version of somebody's", made)?;
            ensure!(reason.contains("only Lockstep makes versions: remove the label"), "{reason}");
            as_editor(&stage, &["create", "-f", "-"], &source(kind, "app-1", "blue", "1").to_string()).await?;
            let name = format!("{}/app-1", word(kind));
            let label = format!("{}={}", names::VERSION_OF, word(kind));
            let labelled = as_editor(&stage, &["label", &name, &label], "").await;
            let reason = refusal("a label on what is there", labelled)?;
            ensure!(reason.contains("only Lockstep sets the label"), "{reason}");

            // With the right to restore backups.
            create(&stage, &version(kind, "app-2")).await?;
            let name = format!("{}/app-2", word(kind));
            for change in [
                ["label", &name, &format!("{}-", names::VERSION_OF), "--overwrite"],
                ["label", &name, &format!("{}=other", names::VERSION_OF), "--overwrite"],
                ["annotate", &name, &format!("{}=7", names::NUMBER), "--overwrite"],
                ["annotate", &name, &format!("{}-", names::DIGEST), "--overwrite"],
                ["annotate", &name, &format!("{}=somebody", names::CHANGED_BY), "--overwrite"],
            ] {
                refusal(&format!("{change:?}"), stage.kubectl(&change).await)?;
                refusal(&format!("{change:?} of an editor"), as_editor(&stage, &change, "").await)?;
            }
            as_editor(&stage, &["annotate", &name, "example.org/mine=yes"], "").await?;
            as_editor(&stage, &["delete", &name], "").await?;
        }
        Ok(())
    })
    .await;
}

/// As somebody who may write ConfigMaps and Secrets, and no more.
async fn as_editor(stage: &Scenario, arguments: &[&str], input: &str) -> Result<String> {
    let editor = "--serviceaccount=NAMESPACE:editor".replace("NAMESPACE", &stage.namespace);
    let binding = ["create", "rolebinding", "editor", "--clusterrole=edit", &editor];
    if stage.kubectl(&["get", "rolebinding", "editor"]).await.is_err() {
        stage.kubectl(&binding).await?;
    }
    let user = format!("--as=system:serviceaccount:{}:editor", stage.namespace);
    let arguments: Vec<&str> = arguments.iter().copied().chain([user.as_str()]).collect();
    stage.kubectl_with_input(&arguments, input).await
}

#[tokio::test]
async fn a_version_that_the_table_names_cannot_be_deleted() {
    with_table("versions-in-table", table(), |stage, _| async move {
        for kind in KINDS {
            for name in ["app-1", "app-2", "app-3", "app-4"] {
                create(&stage, &version(kind, name)).await?;
                let reason = refused_deletion(&stage, kind, name).await?;
                let expected = format!("{kind} {name} (version {name} of {}/app) is current or on its way", word(kind));
                ensure!(reason.contains(&expected), "{reason}");
                ensure!(reason.contains("release another version first"), "{reason}");
            }
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_version_that_something_runs_cannot_be_deleted() {
    with_table("versions-in-use", table(), |stage, _| async move {
        let user = create(&stage, &replica_set("runner")).await?;
        for kind in KINDS {
            let mut in_use = version(kind, "app-9");
            in_use["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "runner", "uid": user["metadata"]["uid"],
            }]);
            create(&stage, &in_use).await?;
            let reason = refused_deletion(&stage, kind, "app-9").await?;
            ensure!(reason.contains("is in use by ReplicaSet runner: it goes by itself when they do"), "{reason}");
            let nobodys = Patch::Merge(json!({"metadata": {"ownerReferences": null}}));
            let objects = objects(&stage, &in_use)?;
            let refused = objects.patch("app-9", &PatchParams::default(), &nobodys).await;
            let reason = refused.err().context("anybody can take its owners away")?.to_string();
            ensure!(reason.contains("only Lockstep says who owns it"), "{reason}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_version_that_nothing_uses_can_be_deleted() {
    with_table("versions-unused", table(), |stage, _| async move {
        for kind in KINDS {
            let unused = version(kind, "app-0");
            create(&stage, &unused).await?;
            objects(&stage, &unused)?.delete("app-0", &DeleteParams::default()).await?;
        }
        Ok(())
    })
    .await;
}

fn opted_in(kind: &str, length: usize) -> Value {
    let labels = json!({names::VERSIONED: names::ON});
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "a".repeat(length), "labels": labels}})
}

fn word(kind: &str) -> String {
    kind.to_lowercase()
}

fn table() -> PinTableSpec {
    let names = |version: &str| KINDS.map(|kind| (format!("{}/app", word(kind)), version.to_owned())).into();
    PinTableSpec { baseline: names("app-1"), current: names("app-2"), next: names("app-3"), moving: names("app-4") }
}

fn source(kind: &str, name: &str, color: &str, version: &str) -> Value {
    // A Secret's own `data` would have to be in base64.
    let field = if kind == "Secret" { "stringData" } else { "data" };
    json!({
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": name, "annotations": {names::VERSION: version}},
        field: {"color": color},
    })
}

fn version(kind: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": kind,
        "immutable": true,
        "metadata": {
            "name": name,
            "labels": {names::VERSION_OF: word(kind)},
            "annotations": {names::SOURCE: "app", names::VERSION: name, names::NUMBER: "1", names::DIGEST: name},
        },
    })
}

fn replica_set(name: &str) -> Value {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec("none", &[])},
        },
    })
}

fn changed_by(config: &Value) -> &str {
    config["metadata"]["annotations"][names::CHANGED_BY].as_str().unwrap_or_default()
}

async fn change(stage: &Scenario, changed: &Value, params: &PatchParams) -> Result<Value> {
    let name = changed["metadata"]["name"].as_str().unwrap_or_default();
    Ok(serde_json::to_value(objects(stage, changed)?.patch(name, params, &Patch::Merge(changed)).await?)?)
}

/// Validating policies hear of the table in their own time.
async fn refused_change(stage: &Scenario, changed: &Value) -> Result<String> {
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    eventually("a refusal", SHORT, async || refusal("a change", change(stage, changed, &params).await)).await
}

async fn refused_deletion(stage: &Scenario, kind: &str, name: &str) -> Result<String> {
    let params = DeleteParams { dry_run: true, ..DeleteParams::default() };
    eventually("a refusal", SHORT, async || {
        let outcome = objects(stage, &version(kind, name))?.delete(name, &params).await;
        refusal(&format!("deleting {kind} {name}"), outcome.map_err(Into::into))
    })
    .await
}

async fn forget_who_changed(stage: &Scenario, kind: &str) -> Result<()> {
    let source = source(kind, "app", "", "");
    let patch = Patch::Merge(json!({"metadata": {"annotations": {names::CHANGED_BY: null}}}));
    objects(stage, &source)?.patch("app", &PatchParams::default(), &patch).await?;
    Ok(())
}
