//! Telling people of policies whose rules cannot be used: when they write them, and not when a change is rejected for it.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use lockstep_api::ReleasePolicy;
use lockstep_core::validation::Validation;

use super::{Doing, ExecuteError, Executor};
use crate::events::Reason;
use crate::index::PolicyId;
use crate::workshop::Effort;

impl Executor {
    pub async fn check_policy(&self, id: &PolicyId, rules: Validation) -> Result<(), ExecuteError> {
        let checked = self.environment.workshop.run(Effort::Heavy, move || rules.check()).await;
        let Err(fault) = checked.flatten() else { return Ok(()) };
        let about = ObjectReference {
            api_version: Some(ReleasePolicy::api_version(&()).into_owned()),
            kind: Some(ReleasePolicy::kind(&()).into_owned()),
            name: Some(id.name.clone()),
            namespace: Some(id.namespace.clone()),
            ..ObjectReference::default()
        };
        let note = format!("its validation cannot be used, so every change of its configs is rejected: {fault}");
        let published = self.events.publish(Reason::InvalidPolicy, note, &about).await;
        published.doing(|| format!("write an Event about ReleasePolicy {} in {}", id.name, id.namespace))
    }
}
