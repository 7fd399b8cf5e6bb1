//! Release policies with times that suit a schedule of a few minutes.

use lockstep_core::names;
use serde_json::{Value, json};

use super::Namespace;
use crate::random::Random;

#[derive(Debug, Clone)]
pub struct Policy {
    pub namespace: String,
    pub name: String,
    pub spec: Value,
}

impl Policy {
    pub fn manifest(&self) -> Value {
        json!({
            "apiVersion": "lockstep.dev/v1alpha1",
            "kind": "ReleasePolicy",
            "metadata": {"namespace": self.namespace, "name": self.name},
            "spec": self.spec,
        })
    }
}

pub(super) fn draw(namespaces: &[Namespace], draw: &mut Random) -> Vec<Policy> {
    let mut policies = Vec::new();
    for namespace in namespaces {
        for name in [names::DEFAULT_POLICY, "careful", "loose"] {
            policies.push(Policy { namespace: namespace.name.clone(), name: name.to_owned(), spec: spec(name, draw) });
        }
    }
    policies
}

/// What a policy of this name says; a person may change it to another of these later.
pub fn spec(name: &str, draw: &mut Random) -> Value {
    let mut spec = json!({
        "bakeSeconds": 1 + draw.below(6),
        "progressDeadlineSeconds": 10 + draw.below(25),
    });
    let has_canary = if name == "careful" { 80 } else { 25 };
    if draw.chance(has_canary) {
        spec["canary"] = if draw.chance(50) { json!({"size": 1}) } else { json!({"size": "30%"}) };
    }
    if draw.chance(15) {
        spec["automaticRollback"] = json!(false);
    }
    if draw.chance(30) {
        spec["joining"] = joining(draw);
    }
    if draw.chance(25) {
        spec["maxParallel"] = json!(1 + draw.below(2));
    }
    if draw.chance(25) {
        spec["retainVersions"] = json!(draw.below(3));
    }
    if draw.chance(20) {
        spec["retainReleases"] = json!(1 + draw.below(3));
    }
    if draw.chance(15) {
        spec["onlyUsedKeys"] = json!(false);
    }
    // Most schedules change more often than a person would: the guard has room, so that it does not decide all of them.
    let free = if draw.chance(25) { 3 } else { 100 };
    spec["stormGuard"] = json!({"freeReleases": free, "windowSeconds": 120});
    if draw.chance(8) {
        spec["validation"] =
            json!({"rules": [{"expression": "int(data.VALUE) % 7 != 0", "message": "seven is nobody's number"}]});
    }
    spec
}

fn joining(draw: &mut Random) -> Value {
    if draw.chance(50) { json!({"enabled": false}) } else { json!({"onFailure": "RollBackConfig"}) }
}
