//! What the cluster offers for admission, and whether it fits the mode: said once, at the start.

use anyhow::Result;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};

use super::Mode;
use crate::watch;

/// The policy of the chart without which pinned pods would run the live config.
const POLICY: &str = "lockstep-pins";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policies {
    /// The API server does not know mutating policies.
    Unknown,
    /// It knows them, and those of the chart are missing.
    Missing,
    Installed,
    /// It knows them; which there are we may not see. So it is where Lockstep works in some namespaces only.
    Hidden,
}

/// Tells the log. The mode is a choice: nothing depends on the answer.
pub(super) async fn report(client: &Client, mode: Mode) {
    match policies(client).await {
        Ok(offered) => say(mode, offered),
        Err(error) => tracing::warn!(
            mode = mode.name(),
            error = format!("{error:#}"),
            "cannot tell which admission policies the API server knows"
        ),
    }
}

fn say(mode: Mode, offered: Policies) {
    let policies = format!("{offered:?}").to_lowercase();
    tracing::info!(mode = mode.name(), by = mode.by(), policies, "who rewrites pods and pins workloads");
    if let Some(warning) = warning(mode, offered) {
        tracing::warn!(mode = mode.name(), policies, "{warning}");
    }
}

fn warning(mode: Mode, offered: Policies) -> Option<&'static str> {
    match (mode, offered) {
        (Mode::Policy, Policies::Unknown) => Some(
            "this API server does not know MutatingAdmissionPolicy (Kubernetes 1.36): pods run the live config; install the chart with admission.mode=webhook or template",
        ),
        (Mode::Policy, Policies::Missing) => Some(
            "the policy lockstep-pins is not installed: pods run the live config; install the chart again with admission.mode=policy",
        ),
        (Mode::Template, Policies::Installed) => Some(
            "policies of an earlier installation are still there: they pin workloads, too; remove them, or install the chart with admission.mode=policy",
        ),
        _ => None,
    }
}

async fn policies(client: &Client) -> Result<Policies> {
    let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", "MutatingAdmissionPolicy");
    let resource = ApiResource::from_gvk_with_plural(&kind, "mutatingadmissionpolicies");
    if !watch::is_served(client, &resource).await? {
        return Ok(Policies::Unknown);
    }
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    match api.get_opt(POLICY).await {
        Ok(Some(_)) => Ok(Policies::Installed),
        Ok(None) => Ok(Policies::Missing),
        Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(Policies::Hidden),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_that_the_cluster_does_not_serve_is_a_warning_with_a_way_out() {
        for offered in [Policies::Unknown, Policies::Missing] {
            assert!(warning(Mode::Policy, offered).unwrap().contains("admission.mode="), "{offered:?}");
        }
        for offered in [Policies::Installed, Policies::Hidden] {
            assert_eq!(warning(Mode::Policy, offered), None, "{offered:?}");
        }
    }

    #[test]
    fn modes_that_need_no_policies_do_without() {
        for offered in [Policies::Unknown, Policies::Missing, Policies::Hidden] {
            assert_eq!((warning(Mode::Webhook, offered), warning(Mode::Template, offered)), (None, None));
        }
        assert!(warning(Mode::Template, Policies::Installed).is_some());
    }
}
