//! Pods and tables of any size that occurs, and what happens beyond.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::{Patch, PatchParams};
use lockstep_api::PinTableSpec;
use lockstep_core::admission::{Template, TemplateWrite, pins_after, resolve_pod};
use lockstep_core::{ConfigKind, ConfigRef, Pin, Pins, Table, names};
use lockstep_testing::Scenario;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::pods::expect_resolved;
use super::shape::{Place, Use, env_from_reference, env_reference, pod, pod_spec, set_pins};
use super::stage::{create, dry_run, objects, refusal, with_table};

const CONTAINERS: usize = 20;
const REFERENCES_PER_CONTAINER: usize = 200;
const PINS: usize = 50;
/// The number of the versions to which releases move.
const MOVING: u32 = 3;
const MANY_CONFIGS: usize = 5_000;
const TOO_MANY_REFERENCES_PER_CONTAINER: usize = 1_500;
const MEASURED_CREATES: usize = 30;

#[tokio::test]
async fn a_large_pod_is_resolved_with_one_config_in_the_table() {
    with_table("cost-pod-1", table_of(1), |stage, table| async move { expect_large_pod(&stage, &table).await }).await;
}

#[tokio::test]
async fn a_large_pod_is_resolved_with_thousands_of_configs_in_the_table() {
    let story = |stage, table| async move { expect_large_pod(&stage, &table).await };
    with_table("cost-pod-5000", table_of(MANY_CONFIGS), story).await;
}

#[tokio::test]
async fn a_large_workload_gets_all_its_pins() {
    with_table("cost-workload", table_of(MANY_CONFIGS), |stage, table| async move {
        let written = dry_run(&stage, &large_deployment()).await?;
        let template = &written["spec"]["template"];
        let write = TemplateWrite { old: None, new: Template(template), knows_object: false };
        let expected = pins_after(write, &table);
        ensure!(expected.iter().count() == PINS, "the core gives {} pins", expected.iter().count());
        let found = &template["metadata"]["annotations"][names::PINS];
        ensure!(*found == expected.to_string(), "the pins are {found}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_large_workload_keeps_all_its_pins_that_a_release_has_moved() {
    with_table("cost-moved", table_of(MANY_CONFIGS), |stage, _| async move {
        let deployment = large_deployment();
        create(&stage, &deployment).await?;
        let moved = pins(PINS, MOVING);
        let by_release = json!({"metadata": {"annotations": {names::PINS: moved}}});
        let new_image = json!({"spec": {"containers": [{"name": "c0", "image": "other"}]}});
        let api = objects(&stage, &deployment)?;
        for template in [by_release, new_image] {
            let patch = Patch::Strategic(json!({"spec": {"template": template}}));
            let written = api.patch("large", &PatchParams::default(), &patch).await?;
            let found = &written.data["spec"]["template"]["metadata"]["annotations"][names::PINS];
            ensure!(*found == moved, "the pins are {found}");
        }
        Ok(())
    })
    .await;
}

/// Beyond what somebody writes by hand, and below what the API server charges too much for.
const PINS_TO_SORT: [usize; 3] = [2, 60, 399];

#[tokio::test]
async fn a_pin_that_is_written_twice_among_many_counts_once() {
    with_table("cost-twice", table_of(1), |stage, table| async move {
        let uses = [config(0), config(1)].map(|config| Use { place: Place::Volume, config });
        let mut pod = pod(&pod_spec("none", &uses));
        let deployment = deployment("twice", &pod["spec"]);
        let before = create(&stage, &deployment).await?["spec"]["template"].take();
        let api = objects(&stage, &deployment)?;
        for count in PINS_TO_SORT {
            for again in ["c0-0", "c0-7"] {
                let text = format!("{},configmap/c0={again}", pins(count, 0));
                set_pins(&mut pod, &text);
                expect_resolved(&stage, &pod, &table).await.with_context(|| format!("a pod with pins {text}"))?;
                let mut after = before.clone();
                set_pins(&mut after, &text);
                // Nothing is stored: the operator would see to versions that are not there.
                let params = PatchParams { dry_run: true, ..PatchParams::default() };
                let patch = Patch::Merge(json!({"spec": {"template": {"metadata": after["metadata"]}}}));
                let written = api.patch("twice", &params, &patch).await?;
                let write = TemplateWrite { old: Some(Template(&before)), new: Template(&after), knows_object: true };
                let expected = pins_after(write, &table).to_string();
                ensure!(expected == format!("configmap/c0={again},configmap/c1=c1-0"), "the core gives {expected}");
                let found = &written.data["spec"]["template"]["metadata"]["annotations"][names::PINS];
                ensure!(*found == expected, "of {text} the pins are {found}");
            }
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_pinned_pod_that_is_too_large_to_resolve_is_refused() {
    with_table("cost-refused", table_of(1), |stage, _| async move {
        let reference = env_from_reference(&config(0));
        let container = |index| {
            let all = vec![reference.clone(); TOO_MANY_REFERENCES_PER_CONTAINER];
            json!({"name": format!("c{index}"), "image": "none", "envFrom": all})
        };
        let mut pod = pod(&json!({"containers": (0..CONTAINERS).map(container).collect::<Vec<_>>()}));
        set_pins(&mut pod, &pins(1, 0));
        let reason = refusal("a pod with 30,000 references", dry_run(&stage, &pod).await)?;
        ensure!(reason.contains("lockstep-pins"), "the reason does not name the policy: {reason}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn creating_a_pod_is_measured_with_few_and_many_configs_in_the_table() {
    with_table("cost-one", table_of(1), |one, _| async move {
        with_table("cost-many", table_of(MANY_CONFIGS), |many, _| async move { measure(&one, &many).await }).await;
        Ok(())
    })
    .await;
}

/// One after the other in turn, so that whatever else the machine does falls on both.
async fn measure(one: &Scenario, many: &Scenario) -> Result<()> {
    let small = pod(&pod_spec("none", &[Use { place: Place::Volume, config: config(0) }]));
    let (mut times_of_one, mut times_of_many) = (Vec::new(), Vec::new());
    for _ in 0..MEASURED_CREATES {
        times_of_one.push(time_of_create(one, &small).await?);
        times_of_many.push(time_of_create(many, &small).await?);
    }
    let (one, many) = (median(times_of_one), median(times_of_many));
    eprintln!(
        "creating a pod takes {one:.1?} with 1 config in the table and {many:.1?} with {MANY_CONFIGS}: {:.2} times as long",
        many.div_duration_f64(one)
    );
    Ok(())
}

async fn time_of_create(stage: &Scenario, pod: &Value) -> Result<Duration> {
    let start = Instant::now();
    dry_run(stage, pod).await?;
    Ok(start.elapsed())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

async fn expect_large_pod(stage: &Scenario, table: &Table) -> Result<()> {
    let mut pod = large_pod();
    set_pins(&mut pod, &pins(PINS, 0));
    let replaced = resolve_pod(&pod, table).len();
    ensure!(replaced == CONTAINERS * REFERENCES_PER_CONTAINER, "the core replaces {replaced} references");
    expect_resolved(stage, &pod, table).await.context("a pod with 4,000 references")
}

fn large_deployment() -> Value {
    deployment("large", &large_pod()["spec"])
}

/// It makes no pods.
fn deployment(name: &str, pod_spec: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod_spec},
        },
    })
}

fn large_pod() -> Value {
    let container = |index| {
        let reference = |place: usize| env_reference(place, &config(place % PINS));
        let env: Vec<Value> = (0..REFERENCES_PER_CONTAINER).map(reference).collect();
        json!({"name": format!("c{index}"), "image": "none", "env": env})
    };
    let containers: Vec<Value> = (0..CONTAINERS).map(container).collect();
    pod(&json!({"automountServiceAccountToken": false, "containers": containers}))
}

fn config(number: usize) -> ConfigRef {
    ConfigRef::new(ConfigKind::ConfigMap, format!("c{number}"))
}

fn pins(count: usize, version: u32) -> String {
    let pin = |number| (config(number), Pin::Version(format!("c{number}-{version}")));
    (0..count).map(pin).collect::<Pins>().to_string()
}

fn table_of(count: usize) -> PinTableSpec {
    let versions = |count: usize, version: u32| -> BTreeMap<String, String> {
        (0..count).map(|number| (config(number).to_string(), format!("c{number}-{version}"))).collect()
    };
    let (baseline, current) = (versions(count, 1), versions(count, 2));
    PinTableSpec { baseline, current, next: BTreeMap::new(), moving: versions(count.min(PINS), MOVING) }
}
