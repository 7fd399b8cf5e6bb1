//! One replica does the work: whoever holds the lease.
//!
//! Clocks of machines differ, so nobody's timestamps are trusted: a lease has expired when it did not change for its duration by our
//! own clock. Every write names the resource version that it is based on, so that of two only one succeeds.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::{Instant, sleep, timeout};

const LEASE: &str = "lockstep";
const DURATION: Duration = Duration::from_secs(15);
/// How long the leader may fail to renew before it must stop: shorter than others wait.
const RENEW_LIMIT: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(2);
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// The lease as we last saw it change.
#[derive(Debug, Clone, PartialEq)]
struct Sighting {
    resource_version: Option<String>,
    at: Instant,
}

#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Take,
    Wait,
}

/// Whether we may write ourselves into the lease.
fn decide(lease: &Lease, me: &str, sighting: &Sighting, now: Instant) -> Decision {
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).and_then(|s| u64::try_from(s).ok());
    let expired = now >= sighting.at + seconds.map_or(DURATION, Duration::from_secs);
    if holder.is_empty() || holder == me || expired { Decision::Take } else { Decision::Wait }
}

pub struct Leadership {
    api: Api<Lease>,
    me: String,
    lease: Lease,
    term: Term,
}

/// For how long we may act. A process that gets no time from its machine does not notice that another one has taken over: whoever is about
/// to act asks here first.
#[derive(Debug, Clone)]
pub struct Term(Arc<Mutex<Instant>>);

impl Term {
    /// From a renewal that was asked for at this time.
    fn since(renewed: Instant) -> Self {
        Self(Arc::new(Mutex::new(renewed)))
    }

    pub fn is_running(&self) -> bool {
        self.renewed().elapsed() <= RENEW_LIMIT
    }

    fn renewed(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew(&self, at: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }
}

impl Leadership {
    /// Waits for its turn, for as long as it takes.
    pub async fn acquire(client: Client, namespace: &str, me: String) -> Self {
        let api: Api<Lease> = Api::namespaced(client, namespace);
        let mut sighting = Sighting { resource_version: None, at: Instant::now() };
        loop {
            let asked = Instant::now();
            match try_acquire(&api, &me, &mut sighting).await {
                Ok(Some(lease)) => return Self { api, me, lease, term: Term::since(asked) },
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "the lease {LEASE} cannot be taken and is tried again"),
            }
            sleep(RETRY).await;
        }
    }

    pub fn term(&self) -> Term {
        self.term.clone()
    }

    /// Renews until that fails for too long: then another replica may take over, and this one must stop.
    pub async fn hold(mut self) -> Result<()> {
        loop {
            sleep(RETRY).await;
            let asked = Instant::now();
            match timeout(REQUEST_LIMIT, write(&self.api, &self.me, &self.lease)).await {
                Ok(Ok(lease)) => {
                    self.lease = lease;
                    self.term.renew(asked);
                }
                Ok(Err(kube::Error::Api(status))) if status.is_conflict() => {
                    bail!("another replica took the lease {LEASE}")
                }
                failed => tracing::warn!(?failed, "the lease {LEASE} was not renewed"),
            }
            if !self.term.is_running() {
                bail!("the lease {LEASE} could not be renewed for {} s", RENEW_LIMIT.as_secs());
            }
        }
    }

    /// Lets another replica take over at once.
    pub async fn release(client: Client, namespace: &str, me: &str) {
        let api: Api<Lease> = Api::namespaced(client, namespace);
        let release = async {
            let mut lease = api.get(LEASE).await?;
            if let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_deref() == Some(me)) {
                spec.holder_identity = None;
                api.replace(LEASE, &PostParams::default(), &lease).await?;
            }
            Ok::<(), kube::Error>(())
        };
        if !matches!(timeout(REQUEST_LIMIT, release).await, Ok(Ok(()))) {
            tracing::warn!("the lease {LEASE} was not released: it expires in {} s", DURATION.as_secs());
        }
    }
}

async fn try_acquire(api: &Api<Lease>, me: &str, sighting: &mut Sighting) -> kube::Result<Option<Lease>> {
    let now = Instant::now();
    let Some(lease) = api.get_opt(LEASE).await? else {
        let fresh = Lease {
            metadata: ObjectMeta { name: Some(LEASE.to_owned()), ..ObjectMeta::default() },
            spec: Some(spec(me)),
        };
        return api.create(&PostParams::default(), &fresh).await.map(Some);
    };
    if lease.metadata.resource_version != sighting.resource_version {
        *sighting = Sighting { resource_version: lease.metadata.resource_version.clone(), at: now };
    }
    match decide(&lease, me, sighting, now) {
        Decision::Take => write(api, me, &lease).await.map(Some),
        Decision::Wait => Ok(None),
    }
}

async fn write(api: &Api<Lease>, me: &str, old: &Lease) -> kube::Result<Lease> {
    let lease = Lease { metadata: old.metadata.clone(), spec: Some(spec(me)) };
    api.replace(LEASE, &PostParams::default(), &lease).await
}

fn spec(me: &str) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
        renew_time: Some(MicroTime(Timestamp::now())),
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_by(holder: &str) -> Lease {
        Lease {
            metadata: ObjectMeta::default(),
            spec: Some(LeaseSpec { holder_identity: Some(holder.into()), ..spec(holder) }),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_taken_when_it_is_free_ours_or_has_not_changed_for_its_duration() {
        let seen = Sighting { resource_version: None, at: Instant::now() };
        let later = seen.at + DURATION;
        assert_eq!(decide(&held_by("other"), "me", &seen, seen.at), Decision::Wait);
        assert_eq!(decide(&held_by("other"), "me", &seen, later - Duration::from_millis(1)), Decision::Wait);
        assert_eq!(decide(&held_by("other"), "me", &seen, later), Decision::Take);
        assert_eq!(decide(&held_by("me"), "me", &seen, seen.at), Decision::Take);
        assert_eq!(decide(&held_by(""), "me", &seen, seen.at), Decision::Take);
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_ends_by_itself_when_nobody_renews_it() {
        let term = Term::since(Instant::now());
        assert!(term.is_running());
        tokio::time::advance(RENEW_LIMIT + Duration::from_millis(1)).await;
        assert!(!term.is_running(), "also for a process that was asleep");
        term.renew(Instant::now());
        assert!(term.is_running());
    }

    #[test]
    fn the_leader_stops_before_another_may_start() {
        assert!(RENEW_LIMIT + REQUEST_LIMIT <= DURATION);
    }
}
