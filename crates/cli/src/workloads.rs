//! The workloads of a namespace, as far as they use configs.

use std::collections::BTreeMap;

use anyhow::Result;
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use lockstep_core::keys::{Used, used_keys};
use lockstep_core::template::{Carrier, uses, with_pins};
use lockstep_core::{ConfigRef, Pins, names};
use lockstep_operator::kinds::{Part, WorkloadKind, built_in};

use crate::cluster::Cluster;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Workload {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) wave: i32,
    pub(crate) is_auto: bool,
    /// Whether its template can never be changed.
    pub(crate) is_fixed: bool,
    pub(crate) pins: Pins,
    /// What it uses of each config; a config that is only a credential is not among them.
    pub(crate) uses: BTreeMap<ConfigRef, Used>,
}

impl Workload {
    /// None for what another object makes from its own template, and for what has no template.
    pub(crate) fn read(kind: &WorkloadKind, object: &DynamicObject) -> Option<Self> {
        let template = kind.template_of(&object.data)?;
        let is_made = object.metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true));
        if kind.part == Part::Record || (kind.part != Part::Workload && is_made) {
            return None;
        }
        let annotation = |name: &str| object.metadata.annotations.as_ref()?.get(name);
        // Where a template names versions, it is read as if it named the configs.
        let plain = with_pins(template, &Pins::default(), Carrier::Annotation);
        Some(Self {
            kind: kind.resource.kind.clone(),
            name: object.metadata.name.clone().unwrap_or_default(),
            wave: annotation(names::WAVE).and_then(|wave| wave.parse().ok()).unwrap_or(0),
            is_auto: annotation(names::AUTO).is_some_and(|value| value == names::ON),
            is_fixed: kind.part == Part::Fixed,
            pins: uses(template, Carrier::Annotation).pins,
            uses: used_keys(&plain["spec"]),
        })
    }

    pub(crate) fn shown(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }
}

impl Cluster {
    /// All workloads of the namespace. Kinds that are not installed have none.
    pub(crate) async fn workloads(&self) -> Result<Vec<Workload>> {
        let mut found = Vec::new();
        for kind in built_in().iter().filter(|kind| kind.part != Part::Record) {
            let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &kind.resource);
            let listed = match api.list(&ListParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 && kind.optional => continue,
                listed => listed.map_err(|error| self.explain(error, || format!("list {}", kind.resource.plural)))?,
            };
            found.extend(listed.items.iter().filter_map(|object| Workload::read(kind, object)));
        }
        Ok(found)
    }
}

/// The kind of a workload by any name that kubectl takes, too.
pub(crate) fn kind(word: &str) -> Option<WorkloadKind> {
    let word = word.to_ascii_lowercase();
    let long = match word.as_str() {
        "deploy" => "deployments",
        "sts" => "statefulsets",
        "ds" => "daemonsets",
        "rs" => "replicasets",
        "rc" => "replicationcontrollers",
        "cj" => "cronjobs",
        "ro" => "rollouts",
        other => other,
    };
    let kinds = built_in().into_iter().filter(|kind| kind.part != Part::Record);
    let is_called = |kind: &WorkloadKind| kind.resource.plural == long || kind.resource.kind.eq_ignore_ascii_case(long);
    kinds.into_iter().find(is_called)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_template_that_names_versions_uses_the_configs() {
        let object = serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"template": {
                "metadata": {"annotations": {"lockstep.dev/pins": "configmap/app=app-1"}},
                "spec": {"volumes": [{"configMap": {"name": "app-1", "items": [{"key": "a"}]}}]},
            }},
        }))
        .unwrap();
        let workload = Workload::read(&kind("deploy").unwrap(), &object).unwrap();
        let app: ConfigRef = "configmap/app".parse().unwrap();
        assert_eq!(workload.uses.get(&app), Some(&Used::Keys(["a".to_owned()].into())));
        assert!(workload.pins.get(&app).is_some());
    }

    #[test]
    fn kinds_are_found_by_their_short_names() {
        for word in ["deploy", "Deployment", "deployments"] {
            assert_eq!(kind(word).unwrap().resource.kind, "Deployment");
        }
        assert!(kind("controllerrevision").is_none());
        assert!(kind("pod").is_none());
    }
}
