//! The world of one schedule, shared by all that acts in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::admission;
use crate::kinds::{Key, Kind};
use crate::random::Random;
use crate::store::{Draft, Object, Refusal, Store, Write, Writer};

/// When every schedule begins: 2026-01-05, a Monday, 08:00 UTC.
const START_SECOND: i64 = 1_767_600_000;

/// How long the API server waits for the webhook (`timeoutSeconds` in the chart).
const WEBHOOK_LIMIT: Duration = Duration::from_secs(3);
/// How often the API server makes a write anew that others were faster than.
const ATTEMPTS: usize = 5;

/// Tells one replica that is alive of a write of a config, by an `AdmissionReview`, and waits for its answer.
pub type ConfigWebhook = Arc<dyn Fn(Value) -> BoxFuture<'static, ()> + Send + Sync>;

/// What the kubelet really gave to a container when it started.
#[derive(Debug, Clone, PartialEq)]
pub struct Ran {
    pub pod: Key,
    /// By config as the template names it: the object that was read, and its content.
    pub references: BTreeMap<String, (String, String)>,
    pub at: Timestamp,
}

pub struct World {
    pub store: Store,
    /// Fork it: what one part draws then does not change what another gets.
    pub random: Random,
    /// By pod uid.
    pub ran: BTreeMap<String, Ran>,
    /// Kinds from elsewhere that are not installed.
    pub missing: BTreeSet<Kind>,
    /// Who is told of writes of configs; nobody, if the webhook is not installed.
    pub webhook: Option<ConfigWebhook>,
    /// Watches that wait for a change of their kind.
    waiting: BTreeMap<Kind, Vec<Waker>>,
    /// What has been told to the watches.
    told: u64,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Shared {
    pub world: Arc<Mutex<World>>,
    /// Wakes whoever waits for any change at all.
    pub changed: Arc<Notify>,
    start: Instant,
}

impl Shared {
    /// Within a runtime whose time is paused.
    pub fn new(seed: u64) -> Self {
        let world = World {
            store: Store::new(),
            random: Random::new(seed),
            ran: BTreeMap::new(),
            missing: BTreeSet::new(),
            webhook: None,
            waiting: BTreeMap::new(),
            told: 0,
        };
        Self { world: Arc::new(Mutex::new(world)), changed: Arc::default(), start: Instant::now() }
    }

    /// The true time.
    pub fn now(&self) -> Timestamp {
        let start = Timestamp::from_second(START_SECOND).unwrap_or_default();
        let elapsed = SignedDuration::try_from(self.start.elapsed()).unwrap_or_default();
        start.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }

    /// When something happened.
    pub(crate) fn instant(&self, at: Timestamp) -> Instant {
        let since = at.duration_since(Timestamp::from_second(START_SECOND).unwrap_or_default());
        self.start + Duration::try_from(since).unwrap_or_default()
    }

    /// Never to be held across an await.
    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes without asking the webhook, and wakes whom it concerns.
    pub fn write(&self, by: &Writer, write: Write) -> Result<Arc<Object>, Refusal> {
        let now = self.now();
        self.with(|world| world.store.write(by, write, now))
    }

    /// Writes as a request to the API server does: before the write of a config takes effect, the webhook is told of it.
    pub async fn submit(&self, by: &Writer, write: Write) -> Result<Arc<Object>, Refusal> {
        let webhook = self.lock().webhook.clone();
        let Some(webhook) = webhook else { return self.write(by, write) };
        // Whoever was faster meanwhile is taken into account; who says what its write is based on is then refused.
        for _ in 0..ATTEMPTS {
            let draft = self.lock().store.prepare(by, write.clone(), self.now())?;
            // What the API server's own checks and policies refuse, the webhook does not hear of.
            self.lock().store.check(by, &draft, self.now())?;
            tell(&webhook, by, &draft).await;
            let now = self.now();
            let written = self.with(|world| {
                if world.store.is_outdated(&draft) { None } else { Some(world.store.commit(by, draft, now)) }
            });
            if let Some(written) = written {
                return written;
            }
        }
        Err(Refusal::new(409, "Conflict", "somebody else was faster, time and again"))
    }

    /// Does something to the world, and wakes whom it concerns.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut World) -> T) -> T {
        let (done, wakers) = {
            let mut world = self.lock();
            let done = act(&mut world);
            (done, world.concerned())
        };
        if let Some(wakers) = wakers {
            wakers.into_iter().for_each(Waker::wake);
            self.changed.notify_waiters();
        }
        done
    }
}

/// Tells the webhook of a write. It is never in the way: without an answer, the write goes on all the same.
async fn tell(webhook: &ConfigWebhook, by: &Writer, draft: &Draft) {
    if admission::is_for_config_webhook(by, draft) {
        // It has its own time to answer, and no more.
        let _ = timeout(WEBHOOK_LIMIT, webhook(admission::review(by, draft, false))).await;
    }
}

impl World {
    /// Wakes a watch at the next change of this kind.
    pub(crate) fn wake_at_change(&mut self, kind: Kind, waker: &Waker) {
        let waiting = self.waiting.entry(kind).or_default();
        if !waiting.iter().any(|known| known.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }

    /// The watches whose kinds changed since the last call; none if nothing changed at all.
    fn concerned(&mut self) -> Option<Vec<Waker>> {
        let changes = self.store.changes_after(self.told);
        self.told = changes.last()?.revision;
        let mut wakers = Vec::new();
        for change in changes {
            wakers.append(&mut self.waiting.remove(&change.key.kind).unwrap_or_default());
        }
        Some(wakers)
    }
}
