//! Objects as a cluster has them, for golden tests.

use jiff::{SignedDuration, Timestamp};
use lockstep_api::{PinTableSpec, Release, VersionedConfig};
use serde_json::{Value, json};

/// 2026-01-01T12:00:00Z.
pub(crate) const NOW: Timestamp = Timestamp::constant(1_767_268_800, 0);

fn ago(seconds: i64) -> String {
    (NOW - SignedDuration::from_secs(seconds)).to_string()
}

fn version(name: &str, number: u32, by: &str, reason: Option<&str>) -> Value {
    let object = format!("app-{number}");
    let created_at = ago(3600 - i64::from(number) * 600);
    json!({"version": name, "number": number, "object": object, "changedBy": by, "reason": reason, "createdAt": created_at})
}

fn versions() -> Value {
    json!([
        version("r3", 3, "bob", Some("more retries")),
        version("1.1.0", 2, "alice", None),
        version("1.0.0", 1, "alice", None),
    ])
}

fn config(kind: &str, name: &str, status: &Value) -> VersionedConfig {
    let source = json!({"kind": if kind == "secret" { "Secret" } else { "ConfigMap" }, "name": name});
    serde_json::from_value(json!({
        "apiVersion": "lockstep.dev/v1alpha1",
        "kind": "VersionedConfig",
        "metadata": {"name": format!("{kind}-{name}"), "namespace": "shop", "creationTimestamp": ago(3600)},
        "spec": {"source": source},
        "status": status,
    }))
    .unwrap()
}

/// At its first version, used by nothing.
pub(crate) fn versioned(kind: &str, name: &str) -> VersionedConfig {
    let only = json!({"version": "1.0.0", "number": 1, "object": format!("{name}-1"), "createdAt": ago(300)});
    config(kind, name, &json!({"current": only.clone(), "versions": [only], "lastNumber": 1}))
}

fn consumers(web: &str) -> Value {
    json!([{"kind": "Deployment", "name": "web", "pinned": web}, {"kind": "StatefulSet", "name": "db"}])
}

/// On its way from 1.1.0 to r3.
pub(crate) fn moving() -> VersionedConfig {
    let status = json!({
        "current": version("1.1.0", 2, "alice", None), "releasing": "r3", "versions": versions(), "lastNumber": 3,
        "consumerCount": 2, "consumers": consumers("app-3"),
    });
    config("configmap", "app", &status)
}

/// Back at 1.1.0: r3 failed.
pub(crate) fn held() -> VersionedConfig {
    let held = json!({
        "object": "app-3", "version": "r3", "release": "configmap-app-2",
        "reason": "Deployment web: pod web-x crashes",
    });
    let status = json!({
        "current": version("1.1.0", 2, "alice", None), "held": held, "versions": versions(), "lastNumber": 3,
        "consumerCount": 2, "consumers": consumers("app-2"),
    });
    config("configmap", "app", &status)
}

fn release(number: u32, from: (&str, u32), to: (&str, u32), status: &Value) -> Release {
    serde_json::from_value(json!({
        "apiVersion": "lockstep.dev/v1alpha1",
        "kind": "Release",
        "metadata": {
            "name": format!("configmap-app-{number}"), "namespace": "shop",
            "creationTimestamp": ago(3600 - i64::from(to.1) * 600),
        },
        "spec": {
            "moves": [{
                "source": {"kind": "ConfigMap", "name": "app"}, "from": format!("app-{}", from.1), "to": format!("app-{}", to.1),
                "fromVersion": from.0, "toVersion": to.0,
            }],
            "changedBy": "bob",
        },
        "status": status,
    }))
    .unwrap()
}

pub(crate) fn consumer(name: &str, state: &str, updated: i32, ready: i32) -> Value {
    json!({
        "kind": "Deployment", "name": name, "state": state, "desired": 3, "updated": updated, "ready": ready,
        "configs": ["configmap/app"],
    })
}

/// 1.1.0 → r3, with one consumer ready and one rolling.
pub(crate) fn baking() -> Release {
    let status = json!({
        "phase": "Progressing", "reason": "Deployment web rolls", "summary": "app 1.1.0 → r3", "done": "1/2",
        "consumers": [consumer("api", "Ready", 3, 3), consumer("web", "Rolling", 2, 1)],
    });
    release(2, ("1.1.0", 2), ("r3", 3), &status)
}

/// r3 failed after 1.1.0 had succeeded; newest first.
pub(crate) fn releases() -> Vec<Release> {
    let failed = json!({
        "phase": "RolledBack", "reason": "Deployment web: pod web-x crashes", "summary": "app 1.1.0 → r3", "done": "0/2",
        "endedAt": ago(1778),
        "consumers": [consumer("api", "Restored", 3, 3), consumer("web", "Restored", 3, 3)],
    });
    let good = json!({
        "phase": "Succeeded", "reason": "all consumers run it and are healthy", "summary": "app 1.0.0 → 1.1.0", "done": "2/2",
        "endedAt": ago(2330),
        "consumers": [consumer("api", "Ready", 3, 3), consumer("web", "Ready", 3, 3)],
    });
    vec![release(2, ("1.1.0", 2), ("r3", 3), &failed), release(1, ("1.0.0", 1), ("1.1.0", 2), &good)]
}

/// Templates from before the adoption run 1.0.0.
pub(crate) fn table() -> PinTableSpec {
    serde_json::from_value(json!({
        "baseline": {"configmap/app": "app-1"}, "current": {"configmap/app": "app-2"}, "next": {"configmap/app": "app-3"},
    }))
    .unwrap()
}
