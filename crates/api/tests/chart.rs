//! The chart's custom resource definitions are made from the types: golden files, changed on purpose.
//!
//! `LOCKSTEP_UPDATE=1 cargo test -p lockstep-api` writes them.

use std::path::Path;

use kube::CustomResourceExt;
use lockstep_api::{PinTable, Release, ReleasePolicy, VersionedConfig};

fn check(name: &str, definition: &impl serde::Serialize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/lockstep/files/crds").join(name);
    let mut object = serde_json::to_value(definition).unwrap();
    // Removing the chart must not remove what people entrusted to it.
    object["metadata"]["annotations"] = serde_json::json!({"helm.sh/resource-policy": "keep"});
    let text = serde_saphyr::to_string(&object).unwrap();
    if std::env::var_os("LOCKSTEP_UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "{} is not what the types say: run with LOCKSTEP_UPDATE=1", path.display());
}

#[test]
fn the_charts_definitions_are_those_of_the_types() {
    check("versionedconfigs.yaml", &VersionedConfig::crd());
    check("pintables.yaml", &PinTable::crd());
    check("releases.yaml", &Release::crd());
    check("releasepolicies.yaml", &ReleasePolicy::crd());
}
