//! A namespace with a pin table that the test wrote itself and that the operator leaves alone.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, PostParams, TypeMeta};
use kube::core::GroupVersionKind;
use lockstep_api::{PinTable, PinTableSpec};
use lockstep_core::{ConfigRef, Table, names};
use lockstep_testing::{SHORT, Scenario, eventually, scenario};
use serde_json::{Value, json};

use super::shape::{Place, Use, pod, pod_spec};

const IN_FLIGHT: usize = 8;

/// Runs a test in a namespace of its own whose pin table the API server knows.
pub async fn with_table<F>(name: &str, spec: PinTableSpec, story: impl FnOnce(Scenario, Table) -> F)
where
    F: Future<Output = Result<()>>,
{
    scenario(name, |stage| async move {
        set_table(&stage, &spec).await?;
        let outcome = story(stage.clone(), Table::from(&spec)).await;
        let found = stage.api::<PinTable>().get(names::PIN_TABLE).await?;
        ensure!(found.spec == spec, "somebody else changed the pin table; the test's own outcome: {outcome:?}");
        outcome
    })
    .await;
}

async fn set_table(stage: &Scenario, spec: &PinTableSpec) -> Result<()> {
    keep_entries(stage, spec).await?;
    stage.api::<PinTable>().create(&PostParams::default(), &PinTable::new(names::PIN_TABLE, spec.clone())).await?;
    let Some((config, version)) = spec.current.last_key_value() else { return Ok(()) };
    let asking = pod(&pod_spec("none", &[Use { place: Place::Volume, config: config.parse()? }]));
    eventually("the API server to know the pin table", SHORT, async || {
        let given = dry_run(stage, &asking).await?.to_string();
        ensure!(given.contains(version.as_str()), "a pod that asks for {version} is written as {given}");
        Ok(())
    })
    .await
}

/// The operator forgets a config that has neither a source nor a consumer for a while: a Deployment without pods consumes them all.
async fn keep_entries(stage: &Scenario, spec: &PinTableSpec) -> Result<()> {
    let configs: BTreeSet<ConfigRef> = Table::from(spec).iter().map(|(config, _)| config.clone()).collect();
    let uses: Vec<Use> = configs.into_iter().map(|config| Use { place: Place::Projected, config }).collect();
    let keeper = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "keeper"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "keeper"}},
            "template": {"metadata": {"labels": {"app": "keeper"}}, "spec": pod_spec("none", &uses)},
        },
    });
    create(stage, &keeper).await.map(drop)
}

/// The objects of the kind that a manifest has.
pub fn objects(stage: &Scenario, manifest: &Value) -> Result<Api<DynamicObject>> {
    let types: TypeMeta = serde_json::from_value(manifest.clone()).context("the manifest has no kind")?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
    Ok(Api::namespaced_with(stage.client.clone(), &stage.namespace, &resource))
}

/// What the API server would store.
pub async fn dry_run(stage: &Scenario, manifest: &Value) -> Result<Value> {
    create_with(stage, manifest, &PostParams { dry_run: true, ..PostParams::default() }).await
}

pub async fn create(stage: &Scenario, manifest: &Value) -> Result<Value> {
    create_with(stage, manifest, &PostParams::default()).await
}

async fn create_with(stage: &Scenario, manifest: &Value, params: &PostParams) -> Result<Value> {
    let object = serde_json::from_value(manifest.clone())?;
    let created = objects(stage, manifest)?.create(params, &object).await?;
    Ok(serde_json::to_value(created)?)
}

/// The reason of a refusal; an error if there was none.
pub fn refusal<T>(what: &str, outcome: Result<T>) -> Result<String> {
    match outcome {
        Err(error) => Ok(format!("{error:#}")),
        Ok(_) => anyhow::bail!("not refused: {what}"),
    }
}

/// Runs a few checks at a time. The first that fails is the outcome.
pub async fn all<F: Future<Output = Result<()>>>(checks: impl Iterator<Item = F>) -> Result<()> {
    stream::iter(checks).buffer_unordered(IN_FLIGHT).try_collect().await
}
