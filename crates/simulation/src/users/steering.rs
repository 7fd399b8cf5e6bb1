//! What people do with our own objects: as the command line writes them, or by kubectl.

use std::sync::Arc;

use lockstep_core::{ConfigKind, ConfigRef};
use serde_json::{Value, json};

use super::{Act, Person};
use crate::kinds::{Key, Kind};
use crate::scene::Config;
use crate::store::{Object, Refusal};

impl Person<'_> {
    pub(super) async fn steer(&self, act: &Act) -> Result<(), Refusal> {
        match act {
            Act::Pause { config } => self.wish(*config, json!({"paused": true})).await,
            Act::Resume { config } => self.wish(*config, json!({"paused": false})).await,
            Act::Promote { config } => self.wish(*config, json!({"promote": true})).await,
            Act::Abort { config } => self.wish(*config, json!({"abort": true})).await,
            Act::Retry { config } => self.retry(*config).await,
            Act::Rollback { config, back } => self.roll_back(*config, *back).await,
            Act::Follow { config } => self.merge(&self.versioned(*config), json!({"spec": {"current": null}})).await,
            Act::DeleteVersionedConfig { config } => self.delete(&self.versioned(*config)).await,
            Act::DeleteRelease { config } => match self.newest_release(*config, |_| true) {
                Some(release) => self.delete(&release.key).await,
                None => Ok(()),
            },
            Act::DeletePolicy { policy } => self.delete(&self.policy(*policy)).await,
            Act::WritePolicy { policy, spec } => self.write_policy(*policy, spec).await,
            Act::DeleteNamespace { namespace } => {
                self.delete(&Key::new(Kind::Namespace, "", &self.scene().namespaces[*namespace].name)).await
            }
            Act::CreateNamespace { namespace } => self.furnish(*namespace).await,
            _ => Ok(()),
        }
    }

    pub(super) async fn furnish(&self, namespace: usize) -> Result<(), Refusal> {
        let scene = Arc::clone(&self.users.scene);
        let namespace = &scene.namespaces[namespace];
        // Still there, or still going: then there is nothing to do for now.
        self.create(namespace.manifest()).await?;
        for policy in scene.policies.iter().filter(|policy| policy.namespace == namespace.name) {
            self.create(policy.manifest()).await?;
        }
        for config in scene.configs.iter().filter(|config| config.key.namespace == namespace.name) {
            self.create(config.manifest(config.content)).await?;
        }
        for (index, consumer) in scene.consumers.iter().enumerate() {
            if consumer.key.namespace == namespace.name {
                self.create_consumer(index).await?;
            }
        }
        Ok(())
    }

    fn versioned(&self, config: usize) -> Key {
        let config = &self.scene().configs[config];
        Key::new(Kind::VersionedConfig, &config.key.namespace, &reference(config).versioned_config_name())
    }

    fn policy(&self, index: usize) -> Key {
        let policy = &self.scene().policies[index];
        Key::new(Kind::ReleasePolicy, &policy.namespace, &policy.name)
    }

    async fn write_policy(&self, index: usize, spec: &Value) -> Result<(), Refusal> {
        let key = self.policy(index);
        let policy = crate::scene::Policy { spec: spec.clone(), ..self.scene().policies[index].clone() };
        // As a whole: a merge would leave what the new one does not say.
        let _ = self.delete(&key).await;
        self.create(policy.manifest()).await
    }

    async fn wish(&self, config: usize, wish: Value) -> Result<(), Refusal> {
        match self.newest_release(config, |release| !has_ended(release)) {
            Some(release) => self.merge(&release.key, json!({"spec": wish})).await,
            None => Ok(()),
        }
    }

    fn newest_release(&self, config: usize, is_it: impl Fn(&Object) -> bool) -> Option<Arc<Object>> {
        let config = &self.scene().configs[config];
        let moves = |release: &Object| {
            let moves = release.value["spec"]["moves"].as_array();
            moves.into_iter().flatten().any(|step| {
                step["source"]["kind"] == config.key.kind.kind() && step["source"]["name"] == config.key.name.as_str()
            })
        };
        let releases = self.list(Kind::Release, &config.key.namespace);
        let created = |release: &Arc<Object>| {
            (release.value["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned(), release.revision)
        };
        releases.into_iter().filter(|release| moves(release) && is_it(release)).max_by_key(created)
    }

    async fn retry(&self, config: usize) -> Result<(), Refusal> {
        let key = self.versioned(config);
        let Some(object) = self.get(&key) else { return Ok(()) };
        match object.value["status"]["held"]["release"].as_str() {
            Some(release) => self.merge(&key, json!({"spec": {"retry": release}})).await,
            None => Ok(()),
        }
    }

    /// As `lockstep rollback` does it: during a release to what is current, otherwise to an earlier version, in place of the source's.
    async fn roll_back(&self, config: usize, back: usize) -> Result<(), Refusal> {
        let key = self.versioned(config);
        let Some(object) = self.get(&key) else { return Ok(()) };
        let status = &object.value["status"];
        let current = &status["current"];
        let is_moving = self.newest_release(config, |release| !has_ended(release)).is_some();
        let versions = status["versions"].as_array().cloned().unwrap_or_default();
        let is_earlier = |version: &&Value| version["number"].as_i64() < current["number"].as_i64();
        let target = if is_moving { Some(current) } else { versions.iter().filter(is_earlier).nth(back) };
        let Some(target) = target.filter(|target| target["object"].is_string()) else { return Ok(()) };
        if target["object"] == status["held"]["object"] {
            return Ok(());
        }
        let source = self.source_version(config, &versions);
        let instead_of = source.as_ref().map(|source| source["object"].clone());
        let choice = if instead_of.as_ref() == Some(&target["object"]) {
            Value::Null
        } else {
            json!({"version": target["version"], "insteadOf": instead_of})
        };
        self.merge(&key, json!({"spec": {"current": choice}})).await
    }

    /// The version that the source's own content is.
    fn source_version(&self, config: usize, versions: &[Value]) -> Option<Value> {
        let config = &self.scene().configs[config];
        let source = self.get(&config.key)?;
        let is_it = |version: &&Value| {
            let name = version["object"].as_str().unwrap_or_default();
            let object = self.get(&Key::new(config.key.kind, &config.key.namespace, name));
            object.is_some_and(|object| object.value["data"] == source.value["data"])
        };
        versions.iter().find(is_it).cloned()
    }
}

fn has_ended(release: &Object) -> bool {
    let phase = release.value["status"]["phase"].as_str().unwrap_or_default();
    lockstep_core::release::Phase::ALL.into_iter().any(|known| known.has_ended() && known.name() == phase)
}

/// The config as the core calls it.
pub fn reference(config: &Config) -> ConfigRef {
    let kind = if config.key.kind == Kind::Secret { ConfigKind::Secret } else { ConfigKind::ConfigMap };
    ConfigRef::new(kind, config.key.name.as_str())
}
