//! The objects of stories, and where the API server has them.

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// Stands for the image of the test app, which has another name elsewhere.
const IMAGE: &str = "the test app";

const FOLDERS: [(&str, &str); 9] = [
    ("configmap", "api/v1"),
    ("deployment", "apis/apps/v1"),
    ("daemonset", "apis/apps/v1"),
    ("pod", "api/v1"),
    ("release", "apis/lockstep.dev/v1alpha1"),
    ("releasepolicy", "apis/lockstep.dev/v1alpha1"),
    ("replicaset", "apis/apps/v1"),
    ("statefulset", "apis/apps/v1"),
    ("versionedconfig", "apis/lockstep.dev/v1alpha1"),
];

pub(super) fn folder(namespace: &str, kind: &str) -> Result<String> {
    let (_, group) =
        FOLDERS.iter().find(|(known, _)| *known == kind).with_context(|| format!("{kind} is not known"))?;
    let plural = if kind == "releasepolicy" { "releasepolicies".to_owned() } else { format!("{kind}s") };
    Ok(format!("/{group}/namespaces/{namespace}/{plural}"))
}

pub(super) fn path(namespace: &str, name: &str) -> Result<String> {
    let (kind, name) = name.split_once('/').with_context(|| format!("{name} is no KIND/NAME"))?;
    Ok(format!("{}/{name}", folder(namespace, kind)?))
}

pub(super) fn with_image(object: &Value, image: &str) -> Value {
    let text = object.to_string().replace(&json!(IMAGE).to_string(), &json!(image).to_string());
    serde_json::from_str(&text).unwrap_or_default()
}

/// What a config says: a color, how pods behave that read it, and a key that only `keys` reads.
pub(super) fn config(name: &str, color: &str, behavior: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"lockstep.dev/versioned": "true"}},
        "data": {"COLOR": color, "BEHAVIOR": behavior, "OTHER": "1"},
    })
}

/// The namespace's own policy. Nothing bakes for long, and nobody waits because of many releases.
pub(super) fn policy(besides: &Value) -> Value {
    let mut spec = json!({
        "bakeSeconds": 3, "progressDeadlineSeconds": 40, "stormGuard": {"freeReleases": 1000},
    });
    for (field, value) in besides.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    json!({"apiVersion": "lockstep.dev/v1alpha1", "kind": "ReleasePolicy", "metadata": {"name": "default"}, "spec": spec})
}

/// A pod that reads these configs, each in a container of its own.
fn template(name: &str, configs: &[&str]) -> Value {
    let container = |(index, config): (usize, &&str)| {
        let port = 8080 + index;
        json!({
            "name": config,
            "image": IMAGE,
            "env": [{"name": "PORT", "value": port.to_string()}],
            "envFrom": [{"configMapRef": {"name": config}}],
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": port}, "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 30},
        })
    };
    let containers: Vec<Value> = configs.iter().enumerate().map(container).collect();
    json!({
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": containers, "terminationGracePeriodSeconds": 1},
    })
}

fn workload(kind: &str, name: &str, configs: &[&str]) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template(name, configs)},
    })
}

pub(super) fn deployment(name: &str, replicas: u32, configs: &[&str]) -> Value {
    let mut object = workload("Deployment", name, configs);
    object["spec"]["replicas"] = json!(replicas);
    object
}

pub(super) fn stateful_set(name: &str, replicas: u32, configs: &[&str]) -> Value {
    let mut object = workload("StatefulSet", name, configs);
    (object["spec"]["replicas"], object["spec"]["serviceName"]) = (json!(replicas), json!(name));
    object
}

pub(super) fn daemon_set(name: &str, configs: &[&str]) -> Value {
    workload("DaemonSet", name, configs)
}

/// Reads one key of a config, and nothing else.
pub(super) fn reads_one_key(mut workload: Value, config: &str, key: &str) -> Value {
    let container = &mut workload["spec"]["template"]["spec"]["containers"][0];
    let value = json!({"configMapKeyRef": {"name": config, "key": key}});
    container["env"] = json!([{"name": "PORT", "value": "8080"}, {"name": "ONE", "valueFrom": value}]);
    if let Some(fields) = container.as_object_mut() {
        fields.remove("envFrom");
    }
    workload
}

pub(super) fn in_wave(mut workload: Value, wave: i32) -> Value {
    workload["metadata"]["annotations"] = json!({"lockstep.dev/wave": wave.to_string()});
    workload
}

/// Whatever its config says.
pub(super) fn always_healthy(mut workload: Value) -> Value {
    let container = &mut workload["spec"]["template"]["spec"]["containers"][0];
    container["env"] = json!([{"name": "PORT", "value": "8080"}, {"name": "BEHAVIOR", "value": "healthy"}]);
    workload
}

/// The same workload with other code: what counts is that the pod spec is another one.
pub(super) fn with_new_code(mut workload: Value) -> Value {
    workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(2);
    workload
}
