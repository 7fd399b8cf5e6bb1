//! Pins to versions that do not exist: in a manifest from another namespace, or from long ago.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference, Pod, Secret};
use kube::Api;
use kube::api::ListParams;
use lockstep_api::PinTable;
use lockstep_core::health::{self, Unit};
use lockstep_core::template::Unknown;
use lockstep_core::{ConfigKind, Pin, Pins, Table, names};

use super::{Doing, ExecuteError, Executor, Written};
use crate::events::Reason;
use crate::facts::{ConfigFact, PodFact, ResourceVersion, VersionFact, WorkloadFact};
use crate::index::WorkloadId;

impl Executor {
    /// Pins a workload to what is current, if the API server does not know those versions either: our watches may be behind.
    pub async fn replace_unknown(
        &self,
        id: &WorkloadId,
        fact: &WorkloadFact,
        pins: &Pins,
        unknown: &[Unknown],
        forged: &BTreeSet<String>,
    ) -> Result<Option<Written>, ExecuteError> {
        if self.still_unknown(&id.namespace, unknown, forged).await?.len() < unknown.len() {
            return Ok(None);
        }
        let written = self.pin(id, fact, pins, None).await?;
        self.tell_unknown(id, fact, pins, unknown).await;
        Ok(written)
    }

    /// Deletes the pods that cannot start with these versions, and that their controller waits for. Whoever asks looks again: a pod that has
    /// changed since is left, and the controller may make one from what it knew before.
    pub async fn delete_waiting(
        &self,
        id: &WorkloadId,
        fact: &WorkloadFact,
        unknown: &[Unknown],
        forged: &BTreeSet<String>,
    ) -> Result<(), ExecuteError> {
        let unknown = self.still_unknown(&id.namespace, unknown, forged).await?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &id.namespace);
        let doing = || format!("list the pods of {} in {}", fact.id(), id.namespace);
        let found = pods.list(&ListParams::default()).await.doing(doing)?;
        let is_pinned = |pod: &PodFact, (config, version): &Unknown| match pod.pins.get(config) {
            Some(Pin::Version(pinned)) => pinned == version,
            _ => false,
        };
        let is_its = |pod: &PodFact| pod.made_by.as_ref() == Some(&fact.owner.uid);
        let concerned = |pod: &PodFact| is_its(pod) && unknown.iter().any(|named| is_pinned(pod, named));
        let (units, at): (Vec<Unit>, Vec<ResourceVersion>) = found
            .iter()
            .filter_map(PodFact::read)
            .filter(concerned)
            .map(|pod| (pod.unit, pod.resource_version))
            .unzip();
        let at: BTreeMap<&str, ResourceVersion> = units.iter().map(|unit| unit.uid.as_str()).zip(at).collect();
        for unit in health::stuck(&units, &fact.rollout, true, self.environment.clock.now()) {
            if let Some(at) = at.get(unit.uid.as_str()) {
                self.delete_pod(&id.namespace, &unit.name, &unit.uid, *at).await?;
            }
        }
        Ok(())
    }

    /// Those that the API server does not know either. Ours is the word on what is forged: by their uids.
    async fn still_unknown(
        &self,
        namespace: &str,
        unknown: &[Unknown],
        forged: &BTreeSet<String>,
    ) -> Result<Vec<Unknown>, ExecuteError> {
        let mut still = Vec::new();
        for version in unknown {
            if !self.is_known(namespace, version, forged).await? {
                still.push(version.clone());
            }
        }
        Ok(still)
    }

    /// Whether the version is there, or is announced.
    async fn is_known(
        &self,
        namespace: &str,
        (config, version): &Unknown,
        forged: &BTreeSet<String>,
    ) -> Result<bool, ExecuteError> {
        let found = match config.kind {
            ConfigKind::ConfigMap => {
                let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
                api.get_metadata_opt(version).await.map(|found| found.map(|found| found.metadata))
            }
            ConfigKind::Secret => {
                let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
                api.get_metadata_opt(version).await.map(|found| found.map(|found| found.metadata))
            }
        };
        let found = found.doing(|| format!("look for version {version} of {config} in {namespace}"))?;
        // A draft whose config never came is none.
        let is_it = |fact: &VersionFact| fact.config == *config && !forged.contains(&fact.uid);
        let is_genuine =
            |meta| matches!(ConfigFact::read(config.kind, &meta), Some(ConfigFact::Version(fact)) if is_it(&fact));
        if found.is_some_and(is_genuine) {
            return Ok(true);
        }
        let tables: Api<PinTable> = Api::namespaced(self.client.clone(), namespace);
        let table = tables.get_opt(names::PIN_TABLE).await.doing(|| format!("read the pin table of {namespace}"))?;
        let entry = table.and_then(|table| Table::from(&table.spec).get(config).cloned());
        Ok(entry.is_some_and(|entry| entry.names(version)))
    }

    /// Tells whose template cannot be changed that they have to be made anew, if the API server does not know those versions either.
    pub async fn tell_fixed(
        &self,
        id: &WorkloadId,
        fact: &WorkloadFact,
        unknown: &[Unknown],
        forged: &BTreeSet<String>,
    ) -> Result<(), ExecuteError> {
        let unknown = self.still_unknown(&id.namespace, unknown, forged).await?;
        let tell = |(config, version): &Unknown| format!("{version}, which is no version of {config} here");
        let told: Vec<String> = unknown.iter().map(tell).collect();
        if told.is_empty() {
            return Ok(());
        }
        let (kind, told) = (&self.kinds[id.workload.kind].resource.kind, told.join(", and to "));
        let pins = names::PINS;
        let note = format!(
            "its template is pinned to {told}, so its pods do not start, or run something else. The template of a {kind} cannot be changed: delete it, remove the annotation {pins} from its template, and create it again"
        );
        self.warn_of(id, fact, note).await;
        Ok(())
    }

    async fn tell_unknown(&self, id: &WorkloadId, fact: &WorkloadFact, pins: &Pins, unknown: &[Unknown]) {
        let told = |(config, version): &Unknown| match pins.get(config) {
            Some(pin) => format!("{version} is no version of {config}: it has {pin} now, which is current"),
            None => format!(
                "{version} is no version of {config}, and {config} is not versioned here: it is not pinned any more"
            ),
        };
        let told: Vec<String> = unknown.iter().map(told).collect();
        // A pod of it that does not start is in the way, and we may not delete it.
        let is_left = fact.id().kind().waits_for_broken_pods() && !self.may_delete_pods;
        let help = if is_left { ". Delete its pods that do not start: it waits for them" } else { "" };
        let note = format!("its template was pinned to what is no version here. {}{help}", told.join("; "));
        self.warn_of(id, fact, note).await;
    }

    async fn warn_of(&self, id: &WorkloadId, fact: &WorkloadFact, note: String) {
        let kind = &self.kinds[id.workload.kind].resource;
        let (namespace, name) = (&id.namespace, &id.workload.name);
        tracing::warn!(namespace, kind = kind.kind, name, note, "a workload is or was pinned to an unknown version");
        let about = ObjectReference {
            api_version: Some(kind.api_version.clone()),
            kind: Some(kind.kind.clone()),
            name: Some(name.clone()),
            namespace: Some(namespace.clone()),
            uid: Some(fact.owner.uid.clone()),
            ..ObjectReference::default()
        };
        // Nobody waits for the Event: there is nothing else to do.
        if let Err(error) = self.events.publish(Reason::UnknownVersion, note, &about).await {
            tracing::warn!(namespace, name, %error, "the Event about an unknown version was not written");
        }
    }
}
