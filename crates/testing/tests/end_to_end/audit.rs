//! What the API server's audit log says about us.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_testing::manifests::{config_map, versioned_colors, web_deployment};
use lockstep_testing::{Scenario, scenario};
use serde_json::Value;

pub(crate) const OPERATOR: &str = "system:serviceaccount:lockstep-system:lockstep";
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

#[tokio::test]
async fn nothing_that_did_not_opt_in_is_ever_written_to() {
    scenario("audit", |stage| async move {
        stage.apply(&versioned_colors("blue")).await?;
        stage.apply(&(config_map("bystander", "key", "one") + &bystander() + &web_deployment(0))).await?;
        stage.released("configmap/web-env", "1.0.0").await?;
        for (color, version) in [("green", "r2"), ("red", "r3")] {
            stage.apply(&versioned_colors(color)).await?;
            stage.apply(&config_map("bystander", "key", color)).await?;
            stage.released("configmap/web-env", version).await?;
        }
        // Owners are written with a delay; they are writes, too.
        tokio::time::sleep(Duration::from_secs(10)).await;

        let written = objects_written(&stage)?;
        ensure!(written.contains("deployments/web"), "the log is not complete: {written:?}");
        let is_ours = |object: &&String| {
            let (resource, name) = object.split_once('/').unwrap_or_default();
            let is_version = name.len() > 11 && name.as_bytes()[name.len() - 11] == b'-';
            match resource {
                "versionedconfigs" | "pintables" => true,
                "releases" => name.starts_with("configmap-web-"),
                // Named after what they are about.
                "events" => name.starts_with("configmap-web-") || name.starts_with("web"),
                "configmaps" => name.starts_with("web-") && is_version,
                "deployments" => name == "web",
                _ => false,
            }
        };
        let others: Vec<&String> = written.iter().filter(|object| !is_ours(object)).collect();
        ensure!(others.is_empty(), "the operator wrote to {others:?}");
        Ok(())
    })
    .await;
}

/// `resource/name` of all that the operator wrote in the test's namespace.
fn objects_written(stage: &Scenario) -> Result<BTreeSet<String>> {
    let path = std::env::var("LOCKSTEP_AUDIT_LOG")
        .context("LOCKSTEP_AUDIT_LOG does not say where the API server's audit log is")?;
    let log = BufReader::new(File::open(&path).with_context(|| format!("cannot read {path}"))?);
    let mut written = BTreeSet::new();
    for line in log.lines() {
        let entry: Value = serde_json::from_str(&line?)?;
        let object = &entry["objectRef"];
        let is_write = entry["verb"].as_str().is_some_and(|verb| WRITES.contains(&verb));
        let succeeded = entry["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300);
        if is_write
            && succeeded
            && entry["user"]["username"] == OPERATOR
            && object["namespace"] == stage.namespace.as_str()
        {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            written.insert(format!("{}/{}", text(&object["resource"]), text(&object["name"])));
        }
    }
    Ok(written)
}

/// A Deployment that uses an unversioned ConfigMap.
fn bystander() -> String {
    web_deployment(0)
        .replace("name: web\n", "name: bystander\n")
        .replace("web-env", "bystander")
        .replace("web-files", "bystander")
}
