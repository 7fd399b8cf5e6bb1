//! Pods get the versions that their pins and the table say, in every place that names a config.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use lockstep_core::admission::resolve_pod;
use lockstep_core::references::{Reference, Role, references};
use lockstep_core::{ConfigKind, Table};
use lockstep_testing::Scenario;
use proptest::collection::vec;
use proptest::option;
use proptest::sample::select;
use proptest::strategy::Strategy;
use serde_json::{Value, json};

use super::shape::{PLACES, Use, any_pins_or_none, any_use, config, owner, pod, pod_spec, samples, set_pins, table};
use super::stage::{all, create, dry_run, with_table};

const RANDOM_PODS: usize = 60;

#[tokio::test]
async fn a_pinned_pod_gets_its_pins_in_every_place() {
    with_table("pods-pinned", table(), |stage, table| async move {
        let mut pod = pod_with_every_reference();
        // Who writes a pin twice means the last one.
        for pins in [
            "configmap/app=app-0,secret/db=db-0",
            "secret/db=db-0,configmap/app=app-9,secret/db=db-0,configmap/app=app-0",
        ] {
            set_pins(&mut pod, pins);
            expect_all_replaced(&pod, &table)?;
            expect_resolved(&stage, &pod, &table).await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn an_unpinned_pod_of_a_template_gets_the_baseline_in_every_place() {
    with_table("pods-unpinned", table(), |stage, table| async move {
        let mut pod = pod_with_every_reference();
        pod["metadata"]["ownerReferences"] = owner("ReplicaSet", true);
        expect_all_replaced(&pod, &table)?;
        expect_resolved(&stage, &pod, &table).await
    })
    .await;
}

#[tokio::test]
async fn a_pod_without_a_template_gets_what_is_current_in_every_place() {
    with_table("pods-bare", table(), |stage, table| async move {
        let pod = pod_with_every_reference();
        expect_all_replaced(&pod, &table)?;
        expect_resolved(&stage, &pod, &table).await
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_follows_live_starts_with_what_is_current_in_every_place() {
    with_table("pods-live", table(), |stage, table| async move {
        let mut pod = pod_with_every_reference();
        pod["metadata"]["ownerReferences"] = owner("ReplicaSet", true);
        set_pins(&mut pod, "configmap/app=live,secret/db=live");
        expect_all_replaced(&pod, &table)?;
        expect_resolved(&stage, &pod, &table).await
    })
    .await;
}

#[tokio::test]
async fn a_mirror_pod_stays_as_it_is() {
    with_table("pods-mirror", table(), |stage, table| async move {
        let nodes: Api<Node> = Api::all(stage.client.clone());
        let node = nodes.list(&ListParams::default()).await?.items.pop().context("the cluster has no node")?;
        // The API server allows a mirror pod no Secrets.
        let uses: Vec<Use> = every_use().into_iter().filter(|used| used.config.kind == ConfigKind::ConfigMap).collect();
        for pins in ["", "configmap/app=app-0"] {
            let mut pod = pod(&pod_spec("none", &uses));
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
            pod["spec"]["nodeName"] = json!(node.name_any());
            set_pins(&mut pod, pins);
            ensure!(resolve_pod(&pod, &table).is_empty(), "the core changes a mirror pod");
            expect_resolved(&stage, &pod, &table).await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_container_that_is_added_to_a_running_pod_gets_what_the_pod_is_pinned_to() {
    with_table("pods-debugged", table(), |stage, _| async move {
        let mut pod = pod(&pod_spec("none", &[]));
        pod["metadata"]["name"] = json!("debugged");
        set_pins(&mut pod, "configmap/app=app-0,secret/db=live");
        create(&stage, &pod).await?;
        // The table knows `young`, but the pod has no pin for it. The API server puts new containers before the others.
        for (name, config, expected) in [
            ("one", "app", &["app-0"][..]),
            ("two", "young", &["young", "app-0"]),
            ("three", "app", &["app-0", "young", "app-0"]),
        ] {
            let found = added(&add_container(&stage, name, config).await?);
            ensure!(found == expected, "{found:?} should be {expected:?}");
        }
        Ok(())
    })
    .await;
}

/// As `kubectl debug` does it.
async fn add_container(stage: &Scenario, name: &str, config: &str) -> Result<Value> {
    let env_from = json!([{"configMapRef": {"name": config}}, {"secretRef": {"name": "db"}}]);
    let container = json!({"name": name, "image": "none", "envFrom": env_from});
    let patch = Patch::Strategic(json!({"spec": {"ephemeralContainers": [container]}}));
    let pods = stage.api::<Pod>();
    Ok(serde_json::to_value(pods.patch_ephemeral_containers("debugged", &PatchParams::default(), &patch).await?)?)
}

/// The ConfigMaps of the containers that were added.
fn added(pod: &Value) -> Vec<String> {
    let of_added = |found: &Reference| found.pointer.starts_with("/ephemeralContainers/");
    let names = references(&pod["spec"]).into_iter().filter(of_added).map(|found| found.config);
    names.filter(|config| config.kind == ConfigKind::ConfigMap).map(|config| config.name).collect()
}

#[tokio::test]
async fn any_pod_is_resolved_as_the_core_says() {
    with_table("pods-any", table(), |stage, table| async move {
        let (stage, table) = (&stage, &table);
        all(samples(&any_pod(), RANDOM_PODS)
            .into_iter()
            .map(|pod| async move { expect_resolved(stage, &pod, table).await.with_context(|| pod.to_string()) }))
        .await
    })
    .await;
}

/// Every place with a ConfigMap and a Secret; and all places that name a Secret to log in with.
fn pod_with_every_reference() -> Value {
    let mut spec = pod_spec("none", &every_use());
    spec["imagePullSecrets"] = json!([{"name": "db"}]);
    if let Some(volumes) = spec["volumes"].as_array_mut() {
        volumes.extend(credential_volumes());
    }
    pod(&spec)
}

fn every_use() -> Vec<Use> {
    let both = |place| ["configmap/app", "secret/db"].map(|text| Use { place, config: config(text) });
    PLACES.into_iter().flat_map(both).collect()
}

fn credential_volumes() -> Vec<Value> {
    let secret = json!({"name": "db"});
    let volumes = json!([
        {"name": "azure-file", "azureFile": {"secretName": "db", "shareName": "s"}},
        {"name": "cephfs", "cephfs": {"monitors": ["m"], "secretRef": secret}},
        {"name": "cinder", "cinder": {"volumeID": "v", "secretRef": secret}},
        {"name": "flex", "flexVolume": {"driver": "example.com/d", "secretRef": secret}},
        {"name": "rbd", "rbd": {"image": "i", "monitors": ["m"], "secretRef": secret}},
        {"name": "scale-io", "scaleIO": {"gateway": "g", "system": "s", "volumeName": "v", "secretRef": secret}},
        {"name": "iscsi", "iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.2001-04.com.example:s", "lun": 0, "secretRef": secret}},
        {"name": "storageos", "storageos": {"volumeName": "v", "secretRef": secret}},
        {"name": "csi", "csi": {"driver": "example.com", "nodePublishSecretRef": secret}},
    ]);
    volumes.as_array().cloned().unwrap_or_default()
}

/// Without this, a test would hold as well if nobody replaced anything.
fn expect_all_replaced(pod: &Value, table: &Table) -> Result<()> {
    let content = references(&pod["spec"]).into_iter().filter(|found| found.role == Role::Content).count();
    let replaced = resolve_pod(pod, table).len();
    ensure!(content == 2 * PLACES.len() && replaced == content, "{replaced} of {content} references are replaced");
    Ok(())
}

/// The API server must write the pod as if its author had written the versions' names.
pub async fn expect_resolved(stage: &Scenario, pod: &Value, table: &Table) -> Result<()> {
    let resolved = resolve(pod, table);
    let expected = dry_run(stage, &resolved).await.context("the resolved pod")?;
    ensure!(references(&expected["spec"]) == references(&resolved["spec"]), "names of versions were replaced again");
    let written = dry_run(stage, pod).await.context("the pod")?;
    let (written, expected) = (without_identity(written), without_identity(expected));
    ensure!(written == expected, "{}", differences(&written, &expected));
    Ok(())
}

fn resolve(pod: &Value, table: &Table) -> Value {
    let mut resolved = pod.clone();
    for replacement in resolve_pod(pod, table) {
        if let Some(name) = resolved.pointer_mut(&replacement.pointer) {
            *name = json!(replacement.name);
        }
    }
    resolved
}

fn without_identity(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in ["uid", "creationTimestamp", "managedFields"] {
            metadata.remove(field);
        }
    }
    object
}

fn differences(written: &Value, expected: &Value) -> String {
    let names = |pod: &Value| -> Vec<String> {
        let found = references(&pod["spec"]).into_iter();
        found.map(|found| format!("{} {}", found.pointer, found.config)).collect()
    };
    let (written_names, expected_names) = (names(written), names(expected));
    if written_names == expected_names {
        return format!("the references are equal, but\n{written:#}\nis not\n{expected:#}");
    }
    let pairs = written_names.iter().zip(&expected_names).filter(|(written, expected)| written != expected);
    pairs.map(|(written, expected)| format!("{written} should be {expected}\n")).collect()
}

fn any_pod() -> impl Strategy<Value = Value> {
    const KINDS: [&str; 6] =
        ["ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController", "SomethingElse"];
    let made_by = option::weighted(0.7, (select(&KINDS[..]), proptest::bool::weighted(0.8)));
    (vec(any_use(), 0..24), any_pins_or_none(), made_by).prop_map(|(uses, pins, made_by)| {
        let mut pod = pod(&pod_spec("none", &uses));
        set_pins(&mut pod, &pins);
        if let Some((kind, controller)) = made_by {
            pod["metadata"]["ownerReferences"] = owner(kind, controller);
        }
        pod
    })
}
