//! The objects of a scene, as people write them.

use std::fmt;

use lockstep_core::names;
use serde_json::{Map, Value, json};

use super::{Config, Consumer, Namespace, Scene, Style, Way};
use crate::kinds::Kind;

/// What a config says: what its pods do about it, and two values, of which single keys are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Content {
    pub value: u32,
    pub behavior: Behavior,
    /// A key that hardly anybody uses.
    pub other: u32,
}

/// How pods behave that read it, as the test app does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Behavior {
    Healthy,
    Crash,
    CrashAfter(u32),
    NeverReady,
    /// Ready only after so many seconds.
    Late(u32),
}

impl fmt::Display for Behavior {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Healthy => f.write_str("healthy"),
            Self::Crash => f.write_str("crash"),
            Self::CrashAfter(seconds) => write!(f, "crash-after {seconds}s"),
            Self::NeverReady => f.write_str("never-ready"),
            Self::Late(seconds) => write!(f, "ready-after {seconds}s"),
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VALUE={}", self.value)?;
        if self.other > 0 {
            write!(f, ", OTHER={}", self.other)?;
        }
        if self.behavior == Behavior::Healthy { Ok(()) } else { write!(f, ", BEHAVIOR={}", self.behavior) }
    }
}

impl Content {
    /// As it stands in the object.
    pub fn data(self, kind: Kind) -> Value {
        let entries = [
            ("VALUE", self.value.to_string()),
            ("OTHER", self.other.to_string()),
            ("BEHAVIOR", self.behavior.to_string()),
        ];
        let stored = |text: String| if kind == Kind::Secret { base64(text.as_bytes()) } else { text };
        entries
            .into_iter()
            .map(|(name, text)| (name.to_owned(), Value::from(stored(text))))
            .collect::<Map<_, _>>()
            .into()
    }
}

impl Namespace {
    pub fn manifest(&self) -> Value {
        let labels = if self.is_versioned { json!({names::VERSIONED: names::ON}) } else { json!({}) };
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name, "labels": labels}})
    }
}

impl Config {
    pub fn manifest(&self, content: Content) -> Value {
        let mut labels = Map::new();
        if self.is_labelled {
            labels.insert(names::VERSIONED.to_owned(), json!(names::ON));
        }
        let mut annotations = Map::new();
        if let Some(policy) = &self.policy {
            annotations.insert(names::POLICY.to_owned(), json!(policy));
        }
        if let Some(retain) = self.retain {
            annotations.insert(names::RETAIN.to_owned(), json!(retain.to_string()));
        }
        let kind = self.key.kind;
        json!({
            "apiVersion": kind.api_version(),
            "kind": kind.kind(),
            "metadata": {"namespace": self.key.namespace, "name": self.key.name, "labels": labels, "annotations": annotations},
            "data": content.data(kind),
        })
    }
}

impl Consumer {
    pub fn manifest(&self, scene: &Scene, image: u32) -> Value {
        let kind = self.key.kind;
        let template = self.template(scene, image);
        let mut annotations = Map::new();
        if let Some(wave) = self.wave {
            annotations.insert(names::WAVE.to_owned(), json!(wave.to_string()));
        }
        if self.is_auto {
            annotations.insert(names::AUTO.to_owned(), json!(names::ON));
        }
        let mut object = json!({
            "apiVersion": kind.api_version(),
            "kind": kind.kind(),
            "metadata": {"namespace": self.key.namespace, "name": self.key.name, "annotations": annotations},
        });
        if kind == Kind::Pod {
            object["metadata"]["labels"] = template["metadata"]["labels"].clone();
            object["spec"] = template["spec"].clone();
            return object;
        }
        object["spec"] = self.spec(&template);
        object
    }

    fn spec(&self, template: &Value) -> Value {
        let labels = template["metadata"]["labels"].clone();
        let mut spec = match self.key.kind {
            Kind::CronJob => {
                return json!({
                    "schedule": "* * * * *",
                    "concurrencyPolicy": "Forbid",
                    "jobTemplate": {"spec": {"backoffLimit": 1, "template": template}},
                });
            }
            Kind::Job => return json!({"backoffLimit": 1, "template": template}),
            Kind::ReplicationController => json!({"selector": labels, "template": template}),
            _ => json!({"selector": {"matchLabels": labels}, "template": template}),
        };
        if self.key.kind != Kind::DaemonSet {
            spec["replicas"] = json!(self.replicas);
        }
        if self.min_ready > 0 {
            spec["minReadySeconds"] = json!(self.min_ready);
        }
        match self.key.kind {
            Kind::Deployment => {
                spec["progressDeadlineSeconds"] = json!(60);
                spec["revisionHistoryLimit"] = json!(4);
                let kind = if self.style == Style::AtOnce { "Recreate" } else { "RollingUpdate" };
                spec["strategy"] = json!({"type": kind});
            }
            Kind::StatefulSet => {
                spec["serviceName"] = json!(self.key.name);
                spec["podManagementPolicy"] =
                    json!(if self.style == Style::AtOnce { "Parallel" } else { "OrderedReady" });
                spec["updateStrategy"] = json!({"type": self.update_strategy()});
            }
            Kind::DaemonSet => spec["updateStrategy"] = json!({"type": self.update_strategy()}),
            Kind::Rollout => {
                let pause = if self.style == Style::Patient { json!({}) } else { json!({"duration": 5}) };
                spec["strategy"] = json!({"canary": {"steps": [{"setWeight": 34}, {"pause": pause}]}});
                spec["revisionHistoryLimit"] = json!(4);
                spec["progressDeadlineSeconds"] = json!(60);
            }
            _ => {}
        }
        spec
    }

    fn update_strategy(&self) -> &'static str {
        if self.style == Style::ByHand { "OnDelete" } else { "RollingUpdate" }
    }

    /// Each config is read by a container of its own, so that none hides what another one says.
    pub fn template(&self, scene: &Scene, image: u32) -> Value {
        let (mut containers, mut volumes) = (Vec::new(), Vec::new());
        for (used, config) in scene.used_by(self) {
            let name = &config.key.name;
            let is_secret = config.key.kind == Kind::Secret;
            let (whole, key) =
                if is_secret { ("secretRef", "secretKeyRef") } else { ("configMapRef", "configMapKeyRef") };
            let mut container = json!({"name": name, "image": format!("lockstep.dev/testapp:{image}")});
            match used.way {
                Way::EnvFrom => container["envFrom"] = json!([{whole: {"name": name, "optional": used.is_optional}}]),
                Way::Keys => {
                    let from = |entry: &str| json!({key: {"name": name, "key": entry, "optional": used.is_optional}});
                    let variables = ["VALUE", "BEHAVIOR"].map(|entry| json!({"name": entry, "valueFrom": from(entry)}));
                    container["env"] = json!(variables);
                }
                Way::Volume | Way::Projected => {
                    container["volumeMounts"] = json!([{"name": name, "mountPath": format!("/etc/{name}")}]);
                    volumes.push(volume(name, is_secret, used.way, used.is_optional));
                }
            }
            containers.push(container);
        }
        let restart = if matches!(self.key.kind, Kind::Job | Kind::CronJob) { "Never" } else { "Always" };
        json!({
            "metadata": {"labels": {"app": self.key.name}},
            "spec": {"containers": containers, "volumes": volumes, "restartPolicy": restart, "terminationGracePeriodSeconds": 1},
        })
    }
}

fn volume(name: &str, is_secret: bool, way: Way, is_optional: bool) -> Value {
    match (way, is_secret) {
        (Way::Projected, false) => {
            json!({"name": name, "projected": {"sources": [{"configMap": {"name": name, "optional": is_optional}}]}})
        }
        (Way::Projected, true) => {
            json!({"name": name, "projected": {"sources": [{"secret": {"name": name, "optional": is_optional}}]}})
        }
        (_, false) => json!({"name": name, "configMap": {"name": name, "optional": is_optional}}),
        (_, true) => json!({"name": name, "secret": {"secretName": name, "optional": is_optional}}),
    }
}

/// As Secrets have it.
pub fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize] as char;
            text.push(if place <= chunk.len() { letter } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secrets_are_encoded() {
        assert_eq!((base64(b"a").as_str(), base64(b"ab").as_str(), base64(b"abc").as_str()), ("YQ==", "YWI=", "YWJj"));
        assert_eq!(base64(b"healthy"), "aGVhbHRoeQ==");
    }
}
