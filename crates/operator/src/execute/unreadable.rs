//! Telling people of objects that cannot be read.

use kube::Resource;
use lockstep_api::VersionedConfig;

use super::status::Report;
use super::{ConfigOutcome, Doing, ExecuteError, Executor};
use crate::events::Reason;
use crate::index::ConfigView;
use crate::unreadable::Unreadable;

impl Executor {
    /// Once per version of the object, in the log and in an Event about it.
    pub async fn tell_unreadable(&self, unreadable: &Unreadable) -> Result<(), ExecuteError> {
        let (kind, name) = (unreadable.kind(), unreadable.name());
        let namespace = unreadable.about.namespace.as_deref().unwrap_or_default();
        tracing::warn!(namespace, kind, name, fault = unreadable.fault, "an object cannot be read and is passed over");
        let published = self.events.publish(Reason::Unreadable, unreadable.told(), &unreadable.about).await;
        published.doing(|| format!("write an Event about {kind} {name} in {namespace}"))
    }

    /// Tells a config that nothing of it is released for as long as this object cannot be read.
    pub async fn refuse_for(&self, view: ConfigView, unreadable: &Unreadable) -> Result<ConfigOutcome, ExecuteError> {
        let mut outcome = ConfigOutcome::default();
        // The report would go there.
        if unreadable.kind() != VersionedConfig::kind(&()) {
            let report = Report { refusal: Some(unreadable.told()), ..Report::default() };
            self.report(&view, view.managed.as_ref(), report, &mut outcome).await?;
        }
        Ok(outcome)
    }
}
