//! One replica of the operator: its process, its machine's clock, its way to the API server; and the kubelet that starts it again.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::SignedDuration;
use lockstep_operator::admission::{self, ConfigWebhook, Mode};
use lockstep_operator::environment::{Clock, Environment};
use lockstep_operator::{Options, kinds, lead};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::Shared;
use crate::faults::Way;
use crate::random::Random;
use crate::server::client;
use crate::store::Writer;

/// Where the operators themselves live.
pub const OWN_NAMESPACE: &str = "lockstep-system";
/// How soon the kubelet starts a process again that ended by itself, and how long it waits at most.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(20);

/// Clones are the same replica.
#[derive(Clone)]
pub struct Replica {
    pub index: usize,
    pub way: Way,
    shared: Shared,
    state: Arc<Mutex<State>>,
    killed: Arc<Notify>,
}

struct State {
    random: Random,
    /// By how much the machine's clock is off.
    offset: SignedDuration,
    /// The process that lives, if one does.
    alive: Option<Alive>,
    /// How long nobody starts it again after it is killed; none means never.
    back_after: Option<Duration>,
    /// Why it ended by itself, newest last.
    ends: Vec<String>,
}

#[derive(Clone)]
struct Alive {
    environment: Environment,
    webhook: Arc<ConfigWebhook>,
}

impl Replica {
    pub fn new(shared: &Shared, index: usize, random: &Random) -> Self {
        let random = random.fork(&format!("operator {index}"));
        let state = State {
            random: random.fork("process"),
            offset: SignedDuration::ZERO,
            alive: None,
            back_after: Some(Duration::ZERO),
            ends: Vec::new(),
        };
        Self {
            index,
            way: Way::new(random.fork("way")),
            shared: shared.clone(),
            state: Arc::new(Mutex::new(state)),
            killed: Arc::new(Notify::new()),
        }
    }

    /// Runs it, again and again, until it is killed for good.
    pub async fn run(self) {
        let mut backoff = FIRST_BACKOFF;
        loop {
            let environment = self.environment();
            let options = self.options();
            let webhook = client(&self.shared, Writer::Webhook(self.index), self.way.link.clone());
            let webhook = Arc::new(ConfigWebhook::new(webhook, environment.clone(), &options));
            self.lock().alive = Some(Alive { environment: environment.clone(), webhook });
            let client = client(&self.shared, Writer::Operator(self.index), self.way.link.clone());
            let mut work = environment.process.spawn(lead(client, options, environment.clone()));
            let pause = tokio::select! {
                biased;
                () = self.killed.notified() => {
                    backoff = FIRST_BACKOFF;
                    self.lock().back_after
                }
                ended = &mut work => {
                    self.note_end(&ended);
                    backoff = (backoff * 2).min(LONGEST_BACKOFF);
                    Some(backoff)
                }
            };
            self.lock().alive = None;
            environment.process.kill();
            match pause {
                Some(pause) => sleep(pause).await,
                None => return,
            }
        }
    }

    /// Ends its process at once. It is started again after a while, or never.
    pub fn kill(&self, back_after: Option<Duration>) {
        let alive = {
            let mut state = self.lock();
            state.back_after = back_after;
            state.alive.take()
        };
        // Whether or not somebody hears it: nothing of it runs any more.
        if let Some(alive) = alive {
            alive.environment.process.kill();
            self.killed.notify_one();
        } else if back_after.is_none() {
            self.killed.notify_one();
        }
    }

    /// Stops the process that lives now, for a while.
    pub fn freeze(&self, lasts: Duration) {
        let Some(alive) = self.alive() else { return };
        alive.environment.process.freeze();
        tokio::spawn(async move {
            sleep(lasts).await;
            alive.environment.process.thaw();
        });
    }

    pub fn thaw(&self) {
        if let Some(alive) = self.alive() {
            alive.environment.process.thaw();
        }
    }

    pub fn set_clock(&self, by: SignedDuration) {
        let mut state = self.lock();
        state.offset = state.offset.saturating_add(by);
        if let Some(alive) = &state.alive {
            alive.environment.clock.jump(by);
        }
    }

    /// Asks the process that lives about a write of a config. None if there is none.
    pub async fn review(&self, review: Value) -> Option<Value> {
        let alive = self.alive()?;
        let answer = async move { alive.webhook.answer(&review).await };
        self.alive()?.environment.process.spawn(answer).await.ok()
    }

    pub fn is_alive(&self) -> bool {
        self.lock().alive.is_some()
    }

    fn alive(&self) -> Option<Alive> {
        self.lock().alive.clone()
    }

    fn environment(&self) -> Environment {
        let mut state = self.lock();
        let now = self.shared.now();
        let clock = Clock::starting_at(now.checked_add(state.offset).unwrap_or(now));
        Environment::simulated(clock, state.random.next())
    }

    fn note_end(&self, ended: &Result<anyhow::Result<()>, tokio::task::JoinError>) {
        let why = match ended {
            Ok(Ok(())) => "it ended".to_owned(),
            Ok(Err(error)) => format!("{error:#}"),
            Err(error) => error.to_string(),
        };
        self.lock().ends.push(why);
    }

    fn options(&self) -> Options {
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Options {
            own_namespace: OWN_NAMESPACE.to_owned(),
            identity: identity(self.index),
            namespaces: Vec::new(),
            settle: Duration::from_secs(1),
            listen: nowhere,
            kinds: kinds::built_in(),
            admission: admission::Options { mode: Mode::Policy, configs: true, listen: nowhere },
            delete_stuck_pods: true,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who a replica is to the others.
pub fn identity(index: usize) -> String {
    format!("operator-{index}")
}
