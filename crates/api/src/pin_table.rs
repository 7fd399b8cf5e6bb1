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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn table(spec: Value) -> Table {
        Table::from(&serde_json::from_value::<PinTableSpec>(spec).unwrap())
    }

    #[test]
    fn an_entry_has_all_that_the_table_says_of_its_config() {
        let column = |version: &str| json!({"configmap/app": version, "no config": "x"});
        let table = table(json!({
            "baseline": column("app-1"), "current": column("app-2"), "next": column("app-3"), "moving": column("app-4"),
        }));
        let entry = lockstep_core::Entry {
            baseline: Some("app-1".into()),
            current: Some("app-2".into()),
            next: Some("app-3".into()),
            moving: Some("app-4".into()),
        };
        assert_eq!(table.iter().map(|(_, entry)| entry).collect::<Vec<_>>(), [&entry]);
    }

    #[test]
    fn a_table_that_says_little_can_be_read() {
        let table = table(json!({"current": {"configmap/app": "app-2"}}));
        let entry = lockstep_core::Entry { current: Some("app-2".into()), ..lockstep_core::Entry::default() };
        assert_eq!(table.iter().map(|(_, entry)| entry).collect::<Vec<_>>(), [&entry]);
    }
}
