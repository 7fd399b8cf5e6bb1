//! A bad change: how long its consumers are in trouble.

use std::collections::BTreeMap;
use std::iter;
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::results::{Rows, sent_again};
use crate::stage::{Bench, Stage, until};

pub(crate) const NAME: &str = "rollback";
const DEPLOYMENTS: usize = 5;
const REPLICAS: usize = 2;
const ROUNDS: usize = 5;
/// How exact the times are.
const LOOK: Duration = Duration::from_millis(20);

/// Seconds since the change.
struct Times {
    crash_loop: f64,
    pins_back: f64,
    all_well: f64,
}

pub(crate) fn about() -> String {
    format!("a change that crashes {DEPLOYMENTS} Deployments of {REPLICAS} pods, until everything is as it was")
}

pub(crate) async fn measure(bench: &Bench, rows: &mut Rows) -> Result<()> {
    bench
        .on_stage(NAME, async |stage| {
            set_up(stage).await?;
            let (mut all_times, mut all_retries) = (Vec::new(), 0);
            for number in 1..=ROUNDS {
                eprintln!("… round {number} of {ROUNDS}");
                let (times, retries) = stage.retries().count(round(stage, number)).await?;
                add_round(rows, number, &times, retries);
                all_times.push(times);
                all_retries += retries;
                // The next change follows the rollback, and is not to supersede it.
                sleep(Duration::from_secs(5)).await;
            }
            add_middle(rows, &all_times);
            rows.add_retries(all_retries);
            Ok(())
        })
        .await
}

async fn set_up(stage: &Stage<'_>) -> Result<()> {
    stage.create_all::<ConfigMap>(iter::once(config())).await?;
    stage.wait_for_released(1, "1.0.0").await?;
    stage.create_all::<Deployment>((0..DEPLOYMENTS).map(|number| deployment(&format!("web-{number}")))).await?;
    until(LOOK, async || not_well(stage).await).await
}

async fn round(stage: &Stage<'_>, number: usize) -> Result<Times> {
    let before = pins(stage).await?;
    let start = Instant::now();
    let seconds = || start.elapsed().as_secs_f64();
    stage.change("app", json!({"BEHAVIOR": "crash", "ROUND": number.to_string()})).await?;
    until(LOOK, async || Ok((!has_crash_loop(stage).await?).then(|| "no pod crashes".to_owned()))).await?;
    let crash_loop = seconds();
    until(LOOK, async || Ok((pins(stage).await? != before).then(|| "not all pins are back".to_owned()))).await?;
    let pins_back = seconds();
    until(LOOK, async || not_well(stage).await).await?;
    Ok(Times { crash_loop, pins_back, all_well: seconds() })
}

fn add_round(rows: &mut Rows, number: usize, times: &Times, retries: usize) {
    let moments = [
        ("the first crash loop", times.crash_loop),
        ("all pins back", times.pins_back),
        ("all pods well", times.all_well),
    ];
    for (what, time) in moments {
        rows.add(format!("round {number}: from the change to {what}"), time, "s").note(sent_again(retries));
    }
}

/// From the kubelet's first word of a crash loop.
fn add_middle(rows: &mut Rows, rounds: &[Times]) {
    let pins_back = sorted(rounds.iter().map(|times| times.pins_back - times.crash_loop));
    let all_well = sorted(rounds.iter().map(|times| times.all_well - times.crash_loop));
    for (what, times) in [("all pins back", pins_back), ("all pods well", all_well)] {
        let what = format!("from the first crash loop to {what}");
        if let (Some(middle), Some(most)) = (times.get(times.len() / 2), times.last()) {
            rows.add(&what, *middle, "s").note(format!("the middle of {ROUNDS} rounds"));
            rows.add(format!("{what}, at most"), *most, "s").note(format!("in {ROUNDS} rounds"));
        }
    }
}

fn sorted(times: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    times
}

async fn pins(stage: &Stage<'_>) -> Result<BTreeMap<String, Option<String>>> {
    let pins = |object: Deployment| object.spec?.template.metadata?.annotations?.remove("lockstep.dev/pins");
    let found = stage.list::<Deployment>().await?;
    Ok(found.into_iter().map(|object| (object.name_any(), pins(object))).collect())
}

async fn has_crash_loop(stage: &Stage<'_>) -> Result<bool> {
    let found = stage.list::<Pod>().await?;
    let mut reasons = found.iter().flat_map(|pod| {
        let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        containers.filter_map(|container| container.state.as_ref()?.waiting.as_ref()?.reason.as_deref())
    });
    Ok(reasons.any(|reason| reason == "CrashLoopBackOff"))
}

/// What is missing to as many pods as there should be, each of them ready.
async fn not_well(stage: &Stage<'_>) -> Result<Option<String>> {
    let found = stage.list::<Pod>().await?;
    let alive: Vec<&Pod> = found.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
    let (pods, ready) = (alive.len(), alive.iter().filter(|pod| is_ready(pod)).count());
    let expected = DEPLOYMENTS * REPLICAS;
    let are_well = pods == expected && ready == expected;
    Ok((!are_well).then(|| format!("{ready} of {pods} pods are ready, where {expected} should be")))
}

fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn config() -> Value {
    json!({
        "metadata": {"name": "app", "labels": {"lockstep.dev/versioned": "true"}},
        "data": {"BEHAVIOR": "healthy", "ROUND": "0"},
    })
}

fn deployment(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "web",
                        "image": lockstep_testing::manifests::testapp_image(),
                        "envFrom": [{"configMapRef": {"name": "app"}}],
                        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8080}, "periodSeconds": 1},
                    }],
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_most_are_counted_from_the_crash_loop() {
        let rounds =
            [5.0, 1.0, 3.0].map(|time| Times { crash_loop: 10.0, pins_back: 10.0 + time, all_well: 20.0 + time });
        let mut rows = Rows::of(NAME);
        add_middle(&mut rows, &rounds);
        let table = rows.table();
        for (line, value) in table.lines().skip(1).zip([" 3.00 ", " 5.00 ", " 13.00 ", " 15.00 "]) {
            assert!(line.contains(value), "{table}");
        }
    }
}
