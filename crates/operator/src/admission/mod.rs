//! Admission by webhook: for clusters whose API server does not know mutating policies (below Kubernetes 1.36), or by choice.
//!
//! The same rules as the chart's policies, from `lockstep_core::admission`. Every replica answers, also those that do not lead. Watched:
//! the pin tables. Written: one Secret with the certificate, the webhook configurations' trust in it, and, only if we are asked about
//! configs' writes, too, drafts of versions and entries of the pin tables.

mod certificates;
mod configs;
#[cfg(test)]
mod fixtures;
mod offer;
mod registration;
pub mod review;
mod server;
mod serving;
mod tables;
mod webhook;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use kube::Client;
use lockstep_core::template::Carrier;
use tokio::time::sleep;

use crate::environment::Environment;
use crate::kinds::WorkloadKind;
use crate::metrics::Metrics;
use crate::watch::Scope;
use certificates::Endpoint;
use registration::Registration;
use review::Rules;
use server::Handlers;
use serving::Serving;
use tables::Tables;

pub use webhook::ConfigWebhook;

/// The names that the chart gives the operator's service account and the webhook's Service.
const SERVICE_ACCOUNT: &str = "lockstep";
const SERVICE: &str = "lockstep-webhook";

/// How long we go on answering after we were told to stop: until every API server knows that we are gone.
const DRAIN: Duration = Duration::from_secs(5);
/// How long stopping takes at most: what is still being answered then is given up.
pub const STOP_LIMIT: Duration = Duration::from_secs(15);

/// What rewrites pods and pins workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The API server itself, by the chart's policies.
    Policy,
    /// This process.
    Webhook,
    /// Nobody: the operator writes the names of versions into the templates themselves.
    Template,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Webhook => "webhook",
            Self::Template => "template",
        }
    }

    fn by(self) -> &'static str {
        match self {
            Self::Policy => "the API server, by the chart's policies",
            Self::Webhook => "this process, asked by the API server",
            Self::Template => "nobody: templates name their versions themselves",
        }
    }

    /// What brings a version into a pod.
    pub fn carrier(self) -> Carrier {
        match self {
            Self::Policy | Self::Webhook => Carrier::Annotation,
            Self::Template => Carrier::References,
        }
    }
}

/// How admission is run.
#[derive(Debug, Clone)]
pub struct Options {
    pub mode: Mode,
    /// Whether changes of configs are entered into the pin table before their write returns.
    pub configs: bool,
    pub listen: SocketAddr,
}

/// What admission shares with the rest of the operator.
pub struct Surroundings {
    pub client: Client,
    pub environment: Environment,
    pub own_namespace: String,
    pub scopes: Vec<Scope>,
    pub kinds: Vec<WorkloadKind>,
    pub metrics: Arc<Metrics>,
}

impl Options {
    /// What the API server asks us.
    fn endpoints(&self) -> Vec<Endpoint> {
        let admits = (self.mode == Mode::Webhook).then_some(Endpoint::Admit);
        admits.into_iter().chain(self.configs.then_some(Endpoint::Configs)).collect()
    }
}

/// Runs until `stop`, and a little longer: whoever still asks gets an answer.
pub async fn run(options: Options, surroundings: Surroundings, stop: impl Future<Output = ()>) -> Result<()> {
    offer::report(&surroundings.client, options.mode).await;
    if options.endpoints().is_empty() {
        stop.await;
        Ok(())
    } else {
        serve(&options, surroundings, stop).await
    }
}

async fn serve(options: &Options, surroundings: Surroundings, stop: impl Future<Output = ()>) -> Result<()> {
    let Surroundings { client, environment, own_namespace, scopes, kinds, metrics } = surroundings;
    let operator = format!("system:serviceaccount:{own_namespace}:{SERVICE_ACCOUNT}");
    let handlers = Arc::new(Handlers {
        serving: Arc::new(Serving::default()),
        tables: Arc::new(Tables::new(&scopes)),
        rules: Rules { kinds, operator },
        configs: config_webhook(options, &client, &environment, &own_namespace).await?,
        metrics,
    });
    let host = format!("{SERVICE}.{own_namespace}.svc");
    let registration = Registration {
        client: client.clone(),
        environment: environment.clone(),
        namespace: own_namespace,
        host,
        endpoints: options.endpoints(),
    };
    let listener = server::listen(options.listen).await?;
    let drained = async {
        stop.await;
        sleep(DRAIN).await;
    };
    let router = server::router(Arc::clone(&handlers));
    let Environment { process, random, .. } = environment;
    tokio::select! {
        biased;
        outcome = server::serve(listener, router, Arc::clone(&handlers.serving), process, drained) => outcome,
        () = handlers.tables.follow(&client, &scopes, &random) => bail!("the watch of the pin tables ended"),
        () = registration.keep(&handlers.serving) => bail!("nobody looks after the webhook's certificate any more"),
    }
}

async fn config_webhook(
    options: &Options,
    client: &Client,
    environment: &Environment,
    own_namespace: &str,
) -> Result<Option<ConfigWebhook>> {
    if !options.configs {
        return Ok(None);
    }
    let webhook = ConfigWebhook::in_namespace(client.clone(), environment.clone(), own_namespace.to_owned());
    webhook.prepare().await?;
    tracing::info!("changes of configs are entered into the pin tables before their write returns");
    Ok(Some(webhook))
}
