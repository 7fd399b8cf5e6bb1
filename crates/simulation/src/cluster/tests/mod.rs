//! Each manner of Kubernetes that the operator has to live with, on a cluster with virtual time.

mod daemon_set;
mod deployment;
mod garbage;
mod jobs;
mod kubelet;
mod rollout;
mod stateful_set;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Machines, Manners, run};
use crate::Shared;
use crate::kinds::{Key, Kind};
use crate::random::Random;
use crate::store::{Object, Part, Patch, Propagation, Write, Writer};

/// The namespace of all that happens in these tests.
const SPACE: &str = "shop";

struct Scene {
    shared: Shared,
    machines: Machines,
}

impl Scene {
    fn new() -> Self {
        Self::with(1, Manners::default())
    }

    fn with(seed: u64, manners: Manners) -> Self {
        let (shared, machines) = (Shared::new(seed), manners.machines.clone());
        tokio::spawn(run(shared.clone(), Random::new(seed).fork("cluster"), manners));
        let scene = Self { shared, machines };
        scene.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}));
        scene
    }

    fn user() -> Writer {
        Writer::User("alice".to_owned())
    }

    fn write(&self, write: Write) -> Arc<Object> {
        self.shared.write(&Self::user(), write).unwrap()
    }

    fn create(&self, object: Value) -> Arc<Object> {
        self.write(Write::Create { object })
    }

    fn patch(&self, kind: Kind, name: &str, patch: Value) -> Arc<Object> {
        self.write(Write::Patch { key: key(kind, name), patch: Patch::Merge(patch), part: Part::Object })
    }

    fn patch_status(&self, kind: Kind, name: &str, status: &Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.write(Write::Patch { key: key(kind, name), patch, part: Part::Status });
    }

    fn delete(&self, kind: Kind, name: &str, propagation: Propagation) {
        self.write(Write::Delete { key: key(kind, name), uid: None, revision: None, propagation });
    }

    fn config(&self, name: &str, behavior: &str) {
        self.create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": SPACE},
            "data": {"BEHAVIOR": behavior}}));
    }

    fn find(&self, kind: Kind, name: &str) -> Option<Arc<Object>> {
        self.shared.lock().store.get(&key(kind, name)).cloned()
    }

    fn get(&self, kind: Kind, name: &str) -> Arc<Object> {
        self.find(kind, name).unwrap_or_else(|| panic!("there is no {kind:?} {name}"))
    }

    fn list(&self, kind: Kind) -> Vec<Arc<Object>> {
        self.shared.lock().store.list(kind, Some(SPACE)).cloned().collect()
    }

    fn names(&self, kind: Kind) -> Vec<String> {
        self.list(kind).iter().map(|object| object.key.name.clone()).collect()
    }

    /// Pods that are not about to go.
    fn pods(&self) -> Vec<Arc<Object>> {
        self.list(Kind::Pod).into_iter().filter(|pod| !pod.is_deleted()).collect()
    }

    fn now(&self) -> Timestamp {
        self.shared.now()
    }

    async fn wait(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    /// Waits until something is so, for ten minutes at most.
    async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let reached = async {
            while !is_so(self) {
                tokio::select! {
                    biased;
                    () = self.shared.changed.notified() => {}
                    () = tokio::time::sleep(Duration::from_millis(500)) => {}
                }
            }
        };
        let outcome = tokio::time::timeout(Duration::from_secs(600), reached).await;
        assert!(outcome.is_ok(), "not within ten minutes: {what}\n{}", self.picture());
    }

    /// As a Deployment's user sees it: all pods are new and ready.
    async fn until_rolled_out(&self, kind: Kind, name: &str) {
        self.until("it is rolled out", |scene| {
            let object = scene.get(kind, name);
            let status = lockstep_core::rollout::rollout(
                kind.kind(),
                name,
                object.value["metadata"]["generation"].as_i64().unwrap_or_default(),
                &object.to_value(),
            );
            status.has_arrived() && status.ready == status.desired
        })
        .await;
    }

    fn picture(&self) -> String {
        let kinds = [Kind::Deployment, Kind::Rollout, Kind::StatefulSet, Kind::DaemonSet, Kind::ReplicaSet, Kind::Pod];
        let lines = kinds.into_iter().flat_map(|kind| self.list(kind));
        lines.map(|object| format!("{} {}\n", object.key, object.value["status"])).collect()
    }

    fn history(&self) -> Vec<String> {
        let world = self.shared.lock();
        let line = |change: &crate::store::Change| {
            let after = change.after.as_ref().map(|object| object.text());
            format!("{} {} {} {after:?}", change.at, change.revision, change.key)
        };
        world.store.changes_after(0).iter().map(line).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn at_rest_nobody_writes_anything() {
    let scene = Scene::new();
    scene.config("one", "healthy");
    let canary = json!({"canary": {"steps": [{"setWeight": 50}]}});
    let kinds = [
        Kind::Deployment,
        Kind::StatefulSet,
        Kind::DaemonSet,
        Kind::ReplicaSet,
        Kind::ReplicationController,
        Kind::Rollout,
    ];
    for kind in kinds {
        let mut object = workload(kind, json!({"replicas": 2, "minReadySeconds": 5, "template": template("one")}));
        if kind == Kind::Rollout {
            object["spec"]["strategy"] = canary.clone();
        }
        // Each has pods of its own.
        let labels = json!({"app": kind.plural()});
        let is_plain = kind == Kind::ReplicationController;
        object["spec"]["selector"] = if is_plain { labels } else { json!({"matchLabels": labels}) };
        object["spec"]["template"]["metadata"]["labels"]["app"] = json!(kind.plural());
        scene.create(object);
    }
    scene.wait(120).await;
    assert_eq!(scene.pods().iter().filter(|pod| is_ready(pod)).count(), 12);
    let revision = scene.shared.lock().store.revision();
    scene.wait(7200).await;
    assert_eq!(scene.shared.lock().store.revision(), revision);
}

fn key(kind: Kind, name: &str) -> Key {
    Key::new(kind, if kind.is_namespaced() { SPACE } else { "" }, name)
}

/// A template whose pods behave as this config says.
fn template(config: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": "testapp", "envFrom": [{"configMapRef": {"name": config}}]}]},
    })
}

fn workload(kind: Kind, spec: Value) -> Value {
    let mut spec = spec;
    spec["selector"] = json!({"matchLabels": {"app": "web"}});
    json!({"apiVersion": kind.api_version(), "kind": kind.kind(), "metadata": {"name": "web", "namespace": SPACE}, "spec": spec})
}

fn count(object: &Object, field: &str) -> u64 {
    object.value["status"][field].as_u64().unwrap_or_default()
}

fn condition<'a>(object: &'a Object, of: &str) -> &'a Value {
    super::read::condition(&object.value["status"], of).unwrap_or(&Value::Null)
}

fn is_ready(pod: &Object) -> bool {
    super::read::is_ready(pod)
}

/// The ConfigMap that a pod reads.
fn config_of(pod: &Object) -> &str {
    pod.value["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"].as_str().unwrap_or_default()
}
