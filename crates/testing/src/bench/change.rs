//! One change of many configs with one consumer each: what it costs is to depend on nothing else.

use anyhow::Result;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;

use crate::audit::{Request, add_requests};
use crate::results::Rows;
use crate::stage::{Bench, Stage, config_map, deployment};

pub(crate) const NAME: &str = "change";
/// Independent pairs of a Deployment and a ConfigMap.
const PAIRS: usize = 2000;

pub(crate) fn about() -> String {
    format!("one change among {PAIRS} configs and {PAIRS} workloads, 1 consumer")
}

pub(crate) async fn measure(bench: &Bench, rows: &mut Rows) -> Result<()> {
    bench
        .on_stage(NAME, async |stage| {
            set_up(stage).await?;
            let (requests, retries) = stage.retries().count(change_one(stage)).await?;
            let lists = requests.iter().filter(|request| request.verb == "list").count();
            add_requests(rows, &requests, "");
            rows.add("LISTs of the operator", lists, "requests");
            rows.add_retries(retries);
            Ok(())
        })
        .await
}

async fn set_up(stage: &Stage<'_>) -> Result<()> {
    eprintln!("… {PAIRS} ConfigMaps and {PAIRS} Deployments");
    stage.create_all::<ConfigMap>((0..PAIRS).map(|n| config_map(&format!("config-{n}"), "one"))).await?;
    stage.wait_for_released(PAIRS, "1.0.0").await?;
    let deployments = (0..PAIRS).map(|n| deployment(&format!("web-{n}"), &format!("config-{n}")));
    stage.create_all::<Deployment>(deployments).await?;
    stage.wait_for_quiet().await
}

/// What the operator asked for because of it.
async fn change_one(stage: &Stage<'_>) -> Result<Vec<Request>> {
    let start = Timestamp::now();
    stage.change("config-7", json!({"key": "two"})).await?;
    stage.wait_for_version("config-7", "r2").await?;
    stage.wait_for_quiet().await?;
    stage.requests_since(start)
}
