//! Pins to versions that do not exist: in a manifest from another namespace, or from long ago.

use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference, Pod, Secret};
use kube::Api;
use kube::api::ListParams;
use lockstep_api::PinTable;
use lockstep_core::template::Unknown;
use lockstep_core::{ConfigKind, Pins, Table, names};

use super::{Doing, ExecuteError, Executor, Written};
use crate::events::Reason;
use crate::facts::{ConfigFact, PodFact, WorkloadFact};
use crate::index::WorkloadId;

impl Executor {
    /// Pins a workload to what is current, if the API server does not know those versions either: our watches may be behind.
    pub async fn replace_unknown(
        &self,
        id: &WorkloadId,
        fact: &WorkloadFact,
        pins: &Pins,
        unknown: &[Unknown],
    ) -> Result<Option<Written>, ExecuteError> {
        for version in unknown {
            if self.is_known(&id.namespace, version).await? {
                return Ok(None);
            }
        }
        let written = self.pin(id, fact, pins, None).await?;
        self.tell_unknown(id, fact, pins, unknown).await;
        if fact.id().kind().waits_for_broken_pods() && self.may_delete_pods {
            self.delete_waiting(id, fact, unknown).await?;
        }
        Ok(written)
    }

    /// The controller would wait for a pod that cannot start.
    async fn delete_waiting(
        &self,
        id: &WorkloadId,
        fact: &WorkloadFact,
        unknown: &[Unknown],
    ) -> Result<(), ExecuteError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &id.namespace);
        let doing = || format!("list the pods of {} in {}", fact.id(), id.namespace);
        let found = pods.list(&ListParams::default()).await.doing(doing)?;
        for pod in found.iter().filter_map(PodFact::read) {
            let waits = unknown
                .iter()
                .any(|(config, version)| pod.pins.get(config).is_some_and(|pin| pin.to_string() == *version));
            if pod.made_by.as_ref() == Some(&fact.owner.uid) && waits && !pod.unit.is_ready {
                self.delete_pod(&id.namespace, &pod.unit.name, &pod.unit.uid, pod.resource_version).await?;
            }
        }
        Ok(())
    }

    /// Whether the version is there, or is announced.
    async fn is_known(&self, namespace: &str, (config, version): &Unknown) -> Result<bool, ExecuteError> {
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
        let is_it = |meta| matches!(ConfigFact::read(config.kind, &meta), Some(ConfigFact::Version(fact)) if fact.config == *config);
        if found.is_some_and(is_it) {
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
    ) -> Result<(), ExecuteError> {
        let mut told = Vec::new();
        for named in unknown {
            if !self.is_known(&id.namespace, named).await? {
                let (config, version) = named;
                told.push(format!("{version}, which is no version of {config} here"));
            }
        }
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
            Some(pin) => format!("{version} of {config} does not exist: it has {pin} now, which is current"),
            None => format!(
                "{version} of {config} does not exist, and {config} is not versioned here: it is not pinned any more"
            ),
        };
        let told: Vec<String> = unknown.iter().map(told).collect();
        let note = format!("its template was pinned to a version that is not there. {}", told.join("; "));
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
