//! The operator: watches, executes what the core decides, reports.
//!
//! It holds no state: what it needs to know is in the cluster's objects, so it can die at any instruction and be started anew.

pub mod admission;
pub mod client;
mod clock;
mod content;
mod controller;
mod digest_key;
mod events;
mod execute;
mod facts;
mod index;
pub mod kinds;
mod leader;
mod metrics;
mod pods;
mod put_backs;
mod queue;
mod server;
mod tables;
mod unreadable;
mod verdict;
mod watch;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::FutureExt;
use kube::Client;
use kube::runtime::events::Reporter;
use lockstep_core::{ConfigKind, names};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::controller::Controller;
use crate::events::Events;
use crate::execute::Executor;
use crate::index::Watched;
use crate::kinds::WorkloadKind;
use crate::leader::{Leadership, Term};
use crate::metrics::Metrics;
use crate::tables::Tables;
use crate::watch::Scope;

/// How an operator is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The namespace of the lease and of the digest key.
    pub own_namespace: String,
    /// Who this replica is to the others.
    pub identity: String,
    /// Where to work; empty means everywhere.
    pub namespaces: Vec<String>,
    /// How long a consumer waits for further changes before it is pinned.
    pub settle: Duration,
    pub listen: SocketAddr,
    pub kinds: Vec<WorkloadKind>,
    pub admission: admission::Options,
    /// Whether pods may be deleted that a StatefulSet would wait for for ever.
    pub delete_stuck_pods: bool,
}

impl Options {
    fn scopes(&self) -> Vec<Scope> {
        if self.namespaces.is_empty() { vec![None] } else { self.namespaces.iter().cloned().map(Some).collect() }
    }
}

/// Runs until it is told to stop, or may not go on.
pub async fn run(client: Client, options: Options) -> Result<()> {
    let metrics = Arc::new(Metrics::default());
    metrics.admission(options.admission.mode.name());
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (namespace, me) = (options.own_namespace.clone(), options.identity.clone());
    let (stop, stopped) = oneshot::channel();
    let mut admission = tokio::spawn(admit(client.clone(), options.clone(), Arc::clone(&metrics), stopped));
    let outcome = tokio::select! {
        outcome = server::serve(options.listen, Arc::clone(&metrics)) => outcome,
        outcome = lead(client.clone(), options, metrics) => outcome,
        outcome = &mut admission => outcome.context("admission ended unexpectedly").flatten(),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    Leadership::release(client, &namespace, &me).await;
    drop(stop);
    // Another replica leads by now, but API servers may still ask this one.
    if !admission.is_finished() && timeout(admission::STOP_LIMIT, admission).await.is_err() {
        tracing::warn!("admission did not end in time");
    }
    outcome
}

async fn admit(client: Client, options: Options, metrics: Arc<Metrics>, stopped: oneshot::Receiver<()>) -> Result<()> {
    let scopes = options.scopes();
    let Options { own_namespace, kinds, admission, .. } = options;
    let surroundings = admission::Surroundings { client, own_namespace, scopes, kinds, metrics };
    admission::run(admission, surroundings, stopped.map(drop)).await
}

async fn lead(client: Client, options: Options, metrics: Arc<Metrics>) -> Result<()> {
    tracing::info!(identity = options.identity, "waiting to lead");
    let leadership = Leadership::acquire(client.clone(), &options.own_namespace, options.identity.clone()).await;
    metrics.leads();
    tracing::info!("leading");
    let term = leadership.term();
    // Its own task: however busy the controller is, the lease is renewed in time.
    let mut holding = tokio::spawn(leadership.hold());
    let outcome = tokio::select! {
        held = &mut holding => held?,
        outcome = work(client, options, metrics, term) => outcome,
    };
    holding.abort();
    outcome
}

async fn work(client: Client, options: Options, metrics: Arc<Metrics>, term: Term) -> Result<()> {
    let digest_key = digest_key::ensure(client.clone(), &options.own_namespace).await?;
    let scopes = options.scopes();
    let carrier = options.admission.mode.carrier();
    let kinds = options.kinds.into_iter().map(|kind| kind.carried_by(carrier)).collect();
    let kinds = served_kinds(&client, kinds).await?;
    let events = watch::everything(&client, &scopes, &kinds);
    let watches = watches(&scopes, kinds.len());
    let reporter = Reporter { controller: names::FIELD_MANAGER.to_owned(), instance: Some(options.identity) };
    let executor = Executor {
        events: Events::new(client.clone(), reporter),
        client,
        digest_key,
        kinds,
        tables: Tables::default(),
        may_delete_pods: options.delete_stuck_pods,
    };
    Controller::new(executor, metrics, options.settle, watches, term).run(events).await;
    Ok(())
}

/// Kinds that are not installed are not watched.
async fn served_kinds(client: &Client, kinds: Vec<WorkloadKind>) -> Result<Vec<WorkloadKind>> {
    let mut served = Vec::new();
    for kind in kinds {
        let name = format!("{}.{}", kind.resource.plural, kind.resource.group);
        let is_served = !kind.optional
            || watch::is_served(client, &kind.resource)
                .await
                .with_context(|| format!("cannot tell whether {name} is installed"))?;
        tracing::info!(kind = name, watched = is_served, "workloads");
        if is_served {
            served.push(kind);
        }
    }
    Ok(served)
}

fn watches(scopes: &[Scope], kinds: usize) -> HashSet<(Watched, Scope)> {
    let mut watches = HashSet::new();
    for scope in scopes {
        let configs = ConfigKind::ALL.into_iter().map(Watched::Config);
        let all = configs.chain((0..kinds).map(Watched::Workload)).chain([
            Watched::VersionedConfig,
            Watched::PinTable,
            Watched::Release,
            Watched::Policy,
        ]);
        watches.extend(all.map(|watched| (watched, scope.clone())));
        if scope.is_none() {
            watches.insert((Watched::Namespace, None));
        }
    }
    watches
}
