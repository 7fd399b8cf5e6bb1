//! What a person sees who looks at a namespace: a line for each release, config and workload.
//!
//! ```text
//! release configmap-app-1 RolledBack
//! config app 1.0.0, held r2
//! workload web 1.0.0 1.0.0
//! ```
//!
//! After a workload stand the versions that its ready pods run, pod by pod: of each config that a pod reads, in the order of its containers.

use std::collections::BTreeMap;

use anyhow::Result;
use lockstep_core::names;
use lockstep_core::references::references;
use serde_json::Value;

use super::Player;

const WORKLOADS: [&str; 3] = ["daemonset", "deployment", "statefulset"];

pub(super) async fn draw(player: &Player<'_>) -> Result<String> {
    let mut lines: Vec<String> = player.list("release").await?.iter().map(release).collect();
    lines.extend(player.list("versionedconfig").await?.iter().map(config));
    let configs = player.list("configmap").await?;
    let versions = versions(&configs);
    let pods = player.list("pod").await?;
    for kind in WORKLOADS {
        lines.extend(player.list(kind).await?.iter().map(|object| workload(object, &pods, &versions)));
    }
    Ok(lines.join("\n"))
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn release(object: &Value) -> String {
    let status = &object["status"];
    let phase = status["phase"].as_str().unwrap_or("Pending");
    let unjudged: Vec<&str> = list(&status["consumers"])
        .filter(|consumer| consumer["unjudged"].is_string() && phase == "Succeeded")
        .filter_map(|consumer| consumer["name"].as_str())
        .collect();
    let but = if unjudged.is_empty() { String::new() } else { format!(", not judged: {}", unjudged.join(" ")) };
    format!("release {} {phase}{but}", name(object))
}

fn config(object: &Value) -> String {
    let status = &object["status"];
    let source = object["spec"]["source"]["name"].as_str().unwrap_or_default();
    let current = status["current"]["version"].as_str().unwrap_or("without a version");
    let held = status["held"]["version"].as_str().map(|held| format!(", held {held}"));
    let is_unfollowed = |condition: &Value| condition["type"] == "Followed" && condition["status"] == "False";
    let followed = if list(&status["conditions"]).any(is_unfollowed) { ", not followed" } else { "" };
    format!("config {source} {current}{}{followed}", held.unwrap_or_default())
}

/// The names of all versions, by their objects.
fn versions(configs: &[Value]) -> BTreeMap<&str, &str> {
    let is_version = |object: &&Value| object["metadata"]["labels"].get(names::VERSION_OF).is_some();
    let named = |object| Some((name(object), object["metadata"]["annotations"][names::VERSION].as_str()?));
    configs.iter().filter(is_version).filter_map(named).collect()
}

fn workload(object: &Value, pods: &[Value], versions: &BTreeMap<&str, &str>) -> String {
    let own = pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == name(object) && is_ready(pod));
    let mut runs: Vec<String> = own.map(|pod| run_by(pod, versions)).collect();
    runs.sort();
    let runs = if runs.is_empty() { "nobody".to_owned() } else { runs.join(" ") };
    let gate = if object["metadata"]["annotations"].get(names::GATE).is_some() { ", gated" } else { "" };
    format!("workload {} {runs}{gate}", name(object))
}

fn is_ready(pod: &Value) -> bool {
    let is_going = pod["metadata"].get("deletionTimestamp").is_some();
    let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    !is_going && list(&pod["status"]["conditions"]).any(is_ready)
}

fn run_by(pod: &Value, versions: &BTreeMap<&str, &str>) -> String {
    let named = references(&pod["spec"]).into_iter().filter(|reference| reference.config.name != "kube-root-ca.crt");
    let version = |object: &str| versions.get(object).copied().unwrap_or("?").to_owned();
    named.map(|reference| version(&reference.config.name)).collect::<Vec<_>>().join("+")
}
