//! One config with many consumers: how soon the last one has a change, beside a client that just sends the same patches.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use tokio::time::Instant;

use crate::audit::{Request, add_requests};
use crate::results::{Rows, sent_again};
use crate::stage::{Bench, PARALLEL, Stage, config_map, deployment};

pub(crate) const NAME: &str = "fan-out";
/// Consumers of one ConfigMap.
const CONSUMERS: usize = 1000;
/// How often the operator and the bare client take turns: the machine has other things to do, too.
const ROUNDS: u32 = 3;

/// One change, and the bare client's patches just before.
struct Round {
    requests: Vec<Request>,
    /// From the first patch of a consumer to the last.
    pinning: f64,
    /// From the change to the last patch.
    latency: f64,
    /// How long the bare client took for as many patches.
    bare: f64,
    retries: usize,
    bare_retries: usize,
}

pub(crate) fn about() -> String {
    format!("one change with {CONSUMERS} consumers, beside a bare client that sends as many patches")
}

pub(crate) async fn measure(bench: &Bench, rows: &mut Rows) -> Result<()> {
    bench
        .on_stage(NAME, async |stage| {
            set_up(stage).await?;
            let mut rounds = Vec::new();
            for number in 1..=ROUNDS {
                eprintln!("… round {number} of {ROUNDS}");
                let round = round(stage, number).await?;
                add_round(rows, number, &round);
                rounds.push(round);
            }
            add_middle(rows, rounds)
        })
        .await
}

async fn set_up(stage: &Stage<'_>) -> Result<()> {
    eprintln!("… {CONSUMERS} consumers of one ConfigMap");
    let configs = ["config", "other"].map(|name| config_map(name, "one"));
    stage.create_all::<ConfigMap>(configs.into_iter()).await?;
    stage.wait_for_released(2, "1.0.0").await?;
    for (name, config) in [("web", "config"), ("bare", "other")] {
        let consumers = (0..CONSUMERS).map(|n| deployment(&format!("{name}-{n}"), config));
        stage.create_all::<Deployment>(consumers).await?;
    }
    Ok(())
}

async fn round(stage: &Stage<'_>, number: u32) -> Result<Round> {
    stage.wait_for_quiet().await?;
    let (bare, bare_retries) = stage.retries().count(bare_patches(stage, number)).await?;
    stage.wait_for_quiet().await?;
    let start = Timestamp::now();
    let (requests, retries) = stage.retries().count(change(stage, number, start)).await?;
    let patches = || requests.iter().filter(|request| request.resource == "deployments");
    let first = patches().map(|request| request.started).min().context("no consumer was patched")?;
    let last = patches().map(|request| request.ended).max().context("no consumer was patched")?;
    let (pinning, latency) = (seconds(first, last), seconds(start, last));
    Ok(Round { requests, pinning, latency, bare, retries, bare_retries })
}

/// What the operator asked for because of it.
async fn change(stage: &Stage<'_>, number: u32, start: Timestamp) -> Result<Vec<Request>> {
    stage.change("config", json!({"key": format!("value {number}")})).await?;
    stage.wait_for_version("config", &format!("r{}", number + 1)).await?;
    stage.wait_for_quiet().await?;
    stage.requests_since(start)
}

/// The patches that the operator sends, sent by a client that does nothing else.
async fn bare_patches(stage: &Stage<'_>, round: u32) -> Result<f64> {
    let api = stage.bare_api::<Deployment>();
    let start = Instant::now();
    let patch = async |n: usize| {
        let pins = format!("configmap/other=other-{round:010}");
        let patch = json!({"spec": {"template": {"metadata": {"annotations": {"lockstep.dev/pins": pins}}}}});
        stage.merge(&api, &format!("bare-{n}"), patch).await
    };
    stream::iter((0..CONSUMERS).map(patch)).buffer_unordered(PARALLEL).try_collect::<()>().await?;
    Ok(start.elapsed().as_secs_f64())
}

fn add_round(rows: &mut Rows, number: u32, round: &Round) {
    let again = sent_again(round.retries);
    rows.add(format!("round {number}: from the change to the last patch"), round.latency, "s").note(again.clone());
    rows.add(format!("round {number}: from the first patch to the last"), round.pinning, "s").note(again);
    let mut note = vec![format!("{PARALLEL} at a time")];
    note.extend((round.bare_retries > 0).then(|| sent_again(round.bare_retries)));
    rows.add(format!("round {number}: a bare client"), round.bare, "s").note(note.join(", "));
}

/// The middle of the rounds by the ratio that counts.
fn add_middle(rows: &mut Rows, mut rounds: Vec<Round>) -> Result<()> {
    rounds.sort_by(|a, b| (a.latency / a.bare).total_cmp(&(b.latency / b.bare)));
    let middle = rounds.get(rounds.len() / 2).context("there was no round")?;
    let note = format!("the middle of {ROUNDS} rounds; no settle window");
    add_requests(rows, &middle.requests, &note);
    let ratios =
        [("from the change to the last patch", middle.latency), ("from the first patch to the last", middle.pinning)];
    for (what, time) in ratios {
        rows.add(format!("{what} / a bare client"), time / middle.bare, "ratio").note(note.clone());
    }
    rows.add_retries(rounds.iter().map(|round| round.retries + round.bare_retries).sum::<usize>());
    Ok(())
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(latency: f64, bare: f64) -> Round {
        Round { requests: Vec::new(), pinning: bare, latency, bare, retries: 1, bare_retries: 2 }
    }

    #[test]
    fn the_middle_is_that_of_the_ratios() {
        let mut rows = Rows::of(NAME);
        add_middle(&mut rows, vec![round(9.0, 3.0), round(1.0, 1.0), round(8.0, 4.0)]).unwrap();
        let table = rows.table();
        let ratio = table.lines().find(|line| line.contains("from the change")).unwrap();
        assert!(ratio.contains(" 2.00 "), "{table}");
    }

    #[test]
    fn the_retries_of_all_rounds_are_told() {
        let mut rows = Rows::of(NAME);
        add_round(&mut rows, 1, &round(9.0, 3.0));
        add_middle(&mut rows, vec![round(9.0, 3.0), round(1.0, 1.0)]).unwrap();
        let table = rows.table();
        let has = |what: &str, value: &str| table.lines().any(|line| line.contains(what) && line.contains(value));
        assert!(has("round 1: from the change", "1 request sent again"), "{table}");
        assert!(has("round 1: a bare client", "32 at a time, 2 requests sent again"), "{table}");
        assert!(has("requests of the benchmark sent again", " 6 "), "{table}");
    }
}
