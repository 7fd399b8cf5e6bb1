//! The pin table: read by the API server itself, as the parameter of the admission policies.

use std::collections::BTreeMap;

use kube::CustomResource;
use lockstep_core::{ConfigRef, Table};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which version pods and workloads of a namespace get that do not say so themselves. There is one per namespace, named
/// `lockstep`, written by the operator alone. Keys are configs (`configmap/app`), values are names of versions.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "lockstep.dev",
    version = "v1alpha1",
    kind = "PinTable",
    namespaced,
    category = "lockstep",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct PinTableSpec {
    /// What was current when the config was adopted: what pods of unpinned, older templates get.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub baseline: BTreeMap<String, String>,
    /// What pods without any template get, and new or changed workloads.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub current: BTreeMap<String, String>,
    /// What new or changed workloads get instead while a release is under way.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub next: BTreeMap<String, String>,
    /// Where a release moves consumers: workloads that have it already keep it when they change, also where others may not join.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub moving: BTreeMap<String, String>,
}

impl From<&PinTableSpec> for Table {
    /// Keys that are no configs are left out: the API server ignores them, too.
    fn from(spec: &PinTableSpec) -> Self {
        let mut table = Self::default();
        let parsed = |map: &BTreeMap<String, String>| -> Vec<(ConfigRef, String)> {
            map.iter().filter_map(|(key, version)| Some((key.parse().ok()?, version.clone()))).collect()
        };
        for (config, version) in parsed(&spec.baseline) {
            table.entry(config).baseline = Some(version);
        }
        for (config, version) in parsed(&spec.current) {
            table.entry(config).current = Some(version);
        }
        for (config, version) in parsed(&spec.next) {
            table.entry(config).next = Some(version);
        }
        for (config, version) in parsed(&spec.moving) {
            table.entry(config).moving = Some(version);
        }
        table
    }
}
