//! What Lockstep made of a config, as a test sees it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use kube::api::ListParams;

use crate::scenario::Scenario;
use crate::wait::{SHORT, eventually};

const VERSIONS: &str = "lockstep.dev/version-of";

impl Scenario {
    /// The names of all versions of a ConfigMap or Secret (`configmap/app`), by their objects.
    pub async fn versions(&self, config: &str) -> Result<BTreeMap<String, String>> {
        let (kind, name) = config.split_once('/').context("write configmap/NAME or secret/NAME")?;
        let list = ListParams::default().labels(VERSIONS);
        let mut versions = BTreeMap::new();
        let mut note = |object: String, annotations: &BTreeMap<String, String>| {
            if annotations.get("lockstep.dev/source").is_some_and(|source| source == name) {
                versions.insert(object, annotations.get("lockstep.dev/version").cloned().unwrap_or_default());
            }
        };
        if kind == "secret" {
            self.api::<Secret>()
                .list(&list)
                .await?
                .iter()
                .for_each(|found| note(found.name_any(), found.annotations()));
        } else {
            self.api::<ConfigMap>()
                .list(&list)
                .await?
                .iter()
                .for_each(|found| note(found.name_any(), found.annotations()));
        }
        Ok(versions)
    }

    /// Waits until a config's current version has this name and was released to every consumer.
    pub async fn released(&self, config: &str, version: &str) -> Result<()> {
        let object = config.replace('/', "-");
        eventually(&format!("{config} to be released as {version}"), SHORT, async || {
            let found = self.read(&format!("versionedconfig/{object}")).await?;
            let current = &found["status"]["current"]["version"];
            ensure!(*current == version, "{config} is at {current}");
            Ok(())
        })
        .await
    }

    /// The pins of a workload's template.
    pub async fn pins(&self, workload: &str) -> Result<String> {
        let spec = &self.read(workload).await?["spec"];
        let template =
            if workload.starts_with("cronjob") { &spec["jobTemplate"]["spec"]["template"] } else { &spec["template"] };
        Ok(template["metadata"]["annotations"]["lockstep.dev/pins"].as_str().unwrap_or_default().to_owned())
    }

    pub async fn replica_sets(&self) -> Result<BTreeSet<String>> {
        let found = self.api::<ReplicaSet>().list(&ListParams::default()).await?;
        Ok(found.iter().map(ResourceExt::name_any).collect())
    }

    /// What each pod with these labels sees: the pod's name and one value.
    pub async fn seen(
        &self,
        selector: &str,
        what: impl Fn(&crate::report::ConfigReport) -> Option<String>,
    ) -> Result<BTreeMap<String, String>> {
        let mut seen = BTreeMap::new();
        for pod in self.pods(selector).await? {
            let name = pod.name_any();
            let report = self.config_seen_by(&name).await?;
            seen.insert(name.clone(), what(&report).with_context(|| format!("pod {name} does not see it"))?);
        }
        Ok(seen)
    }
}
