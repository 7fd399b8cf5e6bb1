//! What people do with workloads.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Act, Person};
use crate::kinds::{Key, Kind};
use crate::scene::Consumer;
use crate::store::{Object, Part, Patch, Refusal, Write};

impl Person<'_> {
    pub(super) async fn change_workload(&self, act: &Act) -> Result<(), Refusal> {
        match act {
            Act::Code { consumer, image } => self.set_image(*consumer, *image).await,
            Act::Apply { consumer } => self.apply(*consumer).await,
            Act::Replace { consumer, knows_object, image } => self.replace(*consumer, *knows_object, *image).await,
            Act::Force { consumer } => {
                let _ = self.delete(&self.consumer(*consumer).key).await;
                self.create_consumer(*consumer).await
            }
            Act::Undo { consumer, back } => self.undo(*consumer, *back).await,
            Act::Scale { consumer, replicas } => {
                self.merge(&self.consumer(*consumer).key, json!({"spec": {"replicas": replicas}})).await
            }
            Act::Restart { consumer } => self.restart(*consumer).await,
            Act::Strategy { consumer } => self.change_strategy(*consumer).await,
            Act::MinReady { consumer, seconds } => {
                self.merge(&self.consumer(*consumer).key, json!({"spec": {"minReadySeconds": seconds}})).await
            }
            Act::DeleteConsumer { consumer } => self.delete(&self.consumer(*consumer).key).await,
            Act::CreateConsumer { consumer } => self.create_consumer(*consumer).await,
            Act::Reference { consumer, image } => {
                {
                    let mut memory = self.users.memory();
                    let shortened = memory.shortened.entry(*consumer).or_default();
                    *shortened = !*shortened;
                    memory.images.insert(*consumer, *image);
                }
                self.apply(*consumer).await
            }
            Act::DeletePods { consumer } => self.delete_pods(*consumer).await,
            Act::ArgoAbort { consumer } => {
                self.merge_status(&self.consumer(*consumer).key, json!({"status": {"abort": true}})).await
            }
            Act::ArgoRetry { consumer } => {
                self.merge_status(&self.consumer(*consumer).key, json!({"status": {"abort": false}})).await
            }
            Act::ArgoPromote { consumer } => self.promote_rollout(*consumer).await,
            _ => Ok(()),
        }
    }

    fn consumer(&self, index: usize) -> &Consumer {
        &self.scene().consumers[index]
    }

    /// As it stands in the team's repository.
    fn manifest(&self, index: usize) -> Value {
        let (image, is_shortened) = {
            let memory = self.users.memory();
            let is_shortened = memory.shortened.get(&index).copied().unwrap_or(false);
            (memory.images.get(&index).copied().unwrap_or(1), is_shortened)
        };
        let mut consumer = self.consumer(index).clone();
        if is_shortened && consumer.uses.len() > 1 {
            consumer.uses.pop();
        }
        consumer.manifest(self.scene(), image)
    }

    pub(super) async fn create_consumer(&self, index: usize) -> Result<(), Refusal> {
        self.create(self.manifest(index)).await
    }

    async fn set_image(&self, index: usize, image: u32) -> Result<(), Refusal> {
        self.users.memory().images.insert(index, image);
        let consumer = self.consumer(index);
        let Some(path) = consumer.key.kind.template() else { return Ok(()) };
        let pointer = format!("/{}/spec/containers/0/image", path.join("/"));
        self.json(
            &consumer.key,
            json!([{"op": "replace", "path": pointer, "value": format!("lockstep.dev/testapp:{image}")}]),
        )
        .await
    }

    /// Lists are replaced as a whole, as a three-way merge by names would do it here; what is not in the manifest stays.
    async fn apply(&self, index: usize) -> Result<(), Refusal> {
        let key = self.consumer(index).key.clone();
        let mut manifest = self.manifest(index);
        if key.kind == Kind::Pod || self.get(&key).is_none() {
            return self.create(manifest).await;
        }
        if let Value::Object(fields) = &mut manifest {
            fields.remove("apiVersion");
            fields.remove("kind");
        }
        self.merge(&key, manifest).await
    }

    async fn replace(&self, index: usize, knows_object: bool, image: Option<u32>) -> Result<(), Refusal> {
        let key = self.consumer(index).key.clone();
        let Some(now) = self.get(&key) else { return Ok(()) };
        if let Some(image) = image {
            self.users.memory().images.insert(index, image);
        }
        let mut object = self.manifest(index);
        if knows_object {
            let mut known = now.to_value();
            let image = self.users.memory().images.get(&index).copied().unwrap_or(1);
            if let Some(path) = key.kind.template() {
                let template = path.iter().fold(&mut known, |value, field| &mut value[*field]);
                template["spec"]["containers"][0]["image"] = json!(format!("lockstep.dev/testapp:{image}"));
            }
            object = known;
        }
        self.write(Write::Replace { key, object, part: Part::Object }).await
    }

    /// `kubectl rollout undo`, and that of Argo Rollouts: the template of an earlier revision, with its annotations, in a patch.
    async fn undo(&self, index: usize, back: usize) -> Result<(), Refusal> {
        let key = self.consumer(index).key.clone();
        let Some(now) = self.get(&key) else { return Ok(()) };
        let mut revisions = self.revisions(&now);
        revisions.sort_by_key(|(revision, _)| std::cmp::Reverse(*revision));
        let Some((_, old)) = revisions.get(back) else { return Ok(()) };
        let path = old.key.kind.template().unwrap_or(&["spec", "template"]);
        let mut template = old.value.at(path).clone();
        if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
            labels.remove("pod-template-hash");
            labels.remove("rollouts-pod-template-hash");
        }
        if template["spec"].is_null() {
            return Ok(());
        }
        self.json(&key, json!([{"op": "replace", "path": "/spec/template", "value": template}])).await
    }

    /// What holds earlier templates of a workload.
    fn revisions(&self, workload: &Object) -> Vec<(u64, Arc<Object>)> {
        const ANNOTATIONS: [&str; 2] = ["deployment.kubernetes.io/revision", "rollout.argoproj.io/revision"];
        let world = self.users.shared.lock();
        let owned = world.store.owned_by(workload.uid());
        let holders = owned.filter(|object| matches!(object.key.kind, Kind::ReplicaSet | Kind::ControllerRevision));
        let number = |object: &Arc<Object>| {
            let annotations = &object.value["metadata"]["annotations"];
            let noted = ANNOTATIONS.iter().find_map(|name| annotations[*name].as_str()?.parse().ok());
            noted.or_else(|| object.value["revision"].as_u64()).unwrap_or(0)
        };
        holders.map(|object| (number(object), Arc::clone(object))).collect()
    }

    async fn restart(&self, index: usize) -> Result<(), Refusal> {
        let key = &self.consumer(index).key;
        let now = self.users.shared.now().to_string();
        if key.kind == Kind::Rollout {
            return self.merge(key, json!({"spec": {"restartAt": now}})).await;
        }
        let annotations = json!({"kubectl.kubernetes.io/restartedAt": now});
        self.merge(key, json!({"spec": {"template": {"metadata": {"annotations": annotations}}}})).await
    }

    async fn change_strategy(&self, index: usize) -> Result<(), Refusal> {
        let key = self.consumer(index).key.clone();
        let Some(now) = self.get(&key) else { return Ok(()) };
        let (field, other) = match key.kind {
            Kind::Deployment => ("strategy", "Recreate"),
            Kind::StatefulSet | Kind::DaemonSet => ("updateStrategy", "OnDelete"),
            _ => return Ok(()),
        };
        let is_other = now.value["spec"][field]["type"] == other;
        let strategy =
            if is_other { json!({"type": "RollingUpdate"}) } else { json!({"type": other, "rollingUpdate": null}) };
        self.merge(&key, json!({"spec": {field: strategy}})).await
    }

    async fn delete_pods(&self, index: usize) -> Result<(), Refusal> {
        let Key { namespace, name, .. } = self.consumer(index).key.clone();
        for pod in self.list(Kind::Pod, &namespace) {
            if pod.value["metadata"]["labels"]["app"] == name.as_str() {
                let _ = self.delete(&pod.key).await;
            }
        }
        Ok(())
    }

    /// `kubectl argo rollouts promote`: the step that waits is over.
    async fn promote_rollout(&self, index: usize) -> Result<(), Refusal> {
        let key = self.consumer(index).key.clone();
        let Some(now) = self.get(&key) else { return Ok(()) };
        if now.value["status"]["pauseConditions"].as_array().is_none_or(Vec::is_empty) {
            return Ok(());
        }
        let step = now.value["status"]["currentStepIndex"].as_u64().unwrap_or(0) + 1;
        let status = json!({"pauseConditions": null, "controllerPause": false, "currentStepIndex": step});
        self.merge_status(&key, json!({"status": status})).await
    }

    async fn json(&self, key: &Key, patch: Value) -> Result<(), Refusal> {
        let Ok(patch) = serde_json::from_value(patch) else { return Ok(()) };
        self.write(Write::Patch { key: key.clone(), patch: Patch::Json(patch), part: Part::Object }).await
    }
}
