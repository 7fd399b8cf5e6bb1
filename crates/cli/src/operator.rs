//! `lockstep operator`: from flags to a running operator.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use lockstep_operator::kinds::{self, WorkloadKind};
use lockstep_operator::{Options, admission, client};
use tracing_subscriber::EnvFilter;

/// Flags of `lockstep operator`.
#[derive(Args)]
pub(crate) struct Flags {
    /// The namespace that the operator itself lives in
    #[arg(long, env = "POD_NAMESPACE", default_value = "lockstep-system")]
    own_namespace: String,
    /// The name of this replica
    #[arg(long, env = "HOSTNAME", default_value = "lockstep")]
    identity: String,
    /// Work in these namespaces only (comma-separated); everywhere if not given
    #[arg(long, env = "LOCKSTEP_NAMESPACES", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// Milliseconds that a workload waits for further changes before it is rolled: changes close together make one rollout
    #[arg(long, env = "LOCKSTEP_SETTLE_MS", default_value_t = 1000)]
    settle_ms: u64,
    /// Where to serve /healthz, /readyz and /metrics
    #[arg(long, env = "LOCKSTEP_LISTEN", default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// What brings versions into pods: the API server by the chart's policies, this process as a webhook, or their names in the
    /// template itself
    #[arg(long, env = "LOCKSTEP_ADMISSION", value_enum, default_value_t = Admission::Policy)]
    admission: Admission,
    /// Enter changes of configs into the pin table before their write returns: the chart's `configWebhook.enabled`
    #[arg(long, env = "LOCKSTEP_CONFIG_WEBHOOK")]
    config_webhook: bool,
    /// Where the API server calls the webhooks
    #[arg(long, env = "LOCKSTEP_WEBHOOK_LISTEN", default_value = "0.0.0.0:9443")]
    webhook_listen: SocketAddr,
    /// Delete pods of a StatefulSet under release that do not work and that its template has left behind: its controller waits for them
    #[arg(long, env = "LOCKSTEP_DELETE_STUCK_PODS", default_value_t = true, action = clap::ArgAction::Set)]
    delete_stuck_pods: bool,
    /// A kind of your own that makes pods from a template: GROUP/VERSION/KIND/PLURAL=PATH, such as
    /// `apps.kruise.io/v1alpha1/CloneSet/clonesets=spec.template`
    #[arg(long = "kind", env = "LOCKSTEP_KINDS", value_delimiter = ',')]
    kinds: Vec<CustomKind>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Admission {
    Policy,
    Webhook,
    Template,
}

impl From<Admission> for admission::Mode {
    fn from(admission: Admission) -> Self {
        match admission {
            Admission::Policy => Self::Policy,
            Admission::Webhook => Self::Webhook,
            Admission::Template => Self::Template,
        }
    }
}

#[derive(Debug, Clone)]
struct CustomKind(WorkloadKind);

impl FromStr for CustomKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text.split_once('=').map(|(name, path)| (name.split('/').collect::<Vec<_>>(), path));
        match parts {
            Some((name, path)) if !path.is_empty() => match name.as_slice() {
                [group, version, kind, plural] => Ok(Self(WorkloadKind::custom(group, version, kind, plural, path))),
                _ => Err("the part before `=` is not GROUP/VERSION/KIND/PLURAL".to_owned()),
            },
            _ => Err("write GROUP/VERSION/KIND/PLURAL=PATH".to_owned()),
        }
    }
}

pub(crate) fn run(flags: Flags) -> Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().json().flatten_event(true).with_env_filter(filter).with_writer(std::io::stderr).init();
    let options = Options {
        own_namespace: flags.own_namespace,
        identity: flags.identity,
        namespaces: flags.namespaces.into_iter().filter(|name| !name.is_empty()).collect(),
        settle: Duration::from_millis(flags.settle_ms),
        listen: flags.listen,
        kinds: kinds::built_in().into_iter().chain(flags.kinds.into_iter().map(|kind| kind.0)).collect(),
        admission: admission::Options {
            mode: flags.admission.into(),
            configs: flags.config_webhook,
            listen: flags.webhook_listen,
        },
        delete_stuck_pods: flags.delete_stuck_pods,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async { lockstep_operator::run(client::connect().await?, options).await })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read() {
        let kind: CustomKind = "apps.kruise.io/v1alpha1/CloneSet/clonesets=spec.template".parse().unwrap();
        assert_eq!(kind.0.resource.api_version, "apps.kruise.io/v1alpha1");
        assert_eq!(kind.0.template, ["spec", "template"]);
        for mistake in ["", "CloneSet", "a/b/c=spec.template", "a/b/c/d="] {
            assert!(mistake.parse::<CustomKind>().is_err(), "{mistake}");
        }
    }
}
