//! The operator: watches, executes what the core decides, reports.
//!
//! It holds no state: what it needs to know is in the cluster's objects, so it can die at any instruction and be started anew.

pub mod admission;
mod backoff;
pub mod client;
mod clock;
mod content;
mod controller;
mod digest_key;
pub mod environment;
mod events;
mod execute;
mod facts;
#[cfg(test)]
mod fake;
mod guards;
mod index;
mod inputs;
pub mod kinds;
mod leader;
mod metrics;
mod pods;
mod process;
mod put_backs;
mod queue;
mod refusals;
mod server;
mod tables;
mod unreadable;
mod untyped;
mod verdict;
mod watch;
pub mod workshop;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::FutureExt;
use kube::Client;
use lockstep_core::{ConfigKind, names};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::controller::Controller;
use crate::environment::Environment;
use crate::events::{Events, Reporter};
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
    let environment = Environment::system();
    let metrics = Arc::new(Metrics::default());
    metrics.admission(options.admission.mode.name());
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (stop, stopped) = oneshot::channel();
    let admission = admit(client.clone(), options.clone(), environment.clone(), Arc::clone(&metrics), stopped);
    let mut admission = environment.process.spawn(admission);
    let outcome = tokio::select! {
        biased;
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        outcome = server::serve(options.listen, Arc::clone(&metrics)) => outcome,
        outcome = &mut admission => outcome.context("admission ended unexpectedly").flatten(),
        outcome = lead_measured(client.clone(), options.clone(), environment, metrics) => outcome,
    };
    resign(client, &options).await;
    drop(stop);
    // Another replica leads by now, but API servers may still ask this one.
    if !admission.is_finished() && timeout(admission::STOP_LIMIT, admission).await.is_err() {
        tracing::warn!("admission did not end in time");
    }
    outcome
}

/// All that a replica does besides listening to others: it waits for its turn to lead, works, and ends when it may not go on. Whoever calls it
/// then ends the process, or starts from nothing.
pub async fn lead(client: Client, options: Options, environment: Environment) -> Result<()> {
    lead_measured(client, options, environment, Arc::new(Metrics::default())).await
}

/// Lets another replica lead at once: what a replica does last.
pub async fn resign(client: Client, options: &Options) {
    Leadership::release(client, &options.own_namespace, &options.identity).await;
}

async fn admit(
    client: Client,
    options: Options,
    environment: Environment,
    metrics: Arc<Metrics>,
    stopped: oneshot::Receiver<()>,
) -> Result<()> {
    let scopes = options.scopes();
    let Options { own_namespace, kinds, admission, .. } = options;
    let client = client::impatient(&client);
    let surroundings = admission::Surroundings { client, environment, own_namespace, scopes, kinds, metrics };
    admission::run(admission, surroundings, stopped.map(drop)).await
}

async fn lead_measured(
    client: Client,
    options: Options,
    environment: Environment,
    metrics: Arc<Metrics>,
) -> Result<()> {
    tracing::info!(identity = options.identity, "waiting to lead");
    let client = client::impatient(&client);
    let (me, clock) = (options.identity.clone(), environment.clock.clone());
    let leadership = Leadership::acquire(client.clone(), &options.own_namespace, me, clock).await;
    metrics.leads();
    tracing::info!("leading");
    let term = leadership.term();
    let client = client::fenced(&client, term.clone());
    // Its own task: however busy the controller is, the lease is renewed in time.
    let mut holding = AbortOnDrop(environment.process.spawn(leadership.hold()));
    tokio::select! {
        biased;
        held = &mut holding.0 => held?,
        outcome = work(client, options, environment, metrics, term) => outcome,
    }
}

/// A task that ends with whoever started it.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn work(
    client: Client,
    options: Options,
    environment: Environment,
    metrics: Arc<Metrics>,
    term: Term,
) -> Result<()> {
    let digest_key = digest_key::ensure(client.clone(), &options.own_namespace, &environment.random).await?;
    let scopes = options.scopes();
    let carrier = options.admission.mode.carrier();
    let kinds = options.kinds.into_iter().map(|kind| kind.carried_by(carrier)).collect();
    let kinds = served_kinds(&client, kinds).await?;
    let events = watch::everything(&client, &scopes, &kinds, &environment.random);
    let watches = watches(&scopes, kinds.len());
    let reporter = Reporter { controller: names::FIELD_MANAGER.to_owned(), instance: options.identity };
    let tables = Tables::new(client.clone(), Some(term.clone()));
    let executor = Executor {
        events: Events::new(client.clone(), environment.clock.clone(), reporter),
        client,
        environment,
        digest_key,
        kinds,
        tables,
        may_delete_pods: options.delete_stuck_pods,
    };
    Controller::new(executor, metrics, options.settle, watches, term).run(events).await
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

fn watches(scopes: &[Scope], kinds: usize) -> BTreeSet<(Watched, Scope)> {
    let mut watches = BTreeSet::new();
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
