//! One replica does the work: whoever holds the lease.
//!
//! Clocks of machines differ, so nobody's timestamps are trusted: a lease has expired when it did not change for its duration by our
//! own clock. Every write names the resource version that it is based on, so that of two only one succeeds.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::{Instant, sleep, timeout};

use crate::environment::Clock;

const LEASE: &str = "lockstep";
const DURATION: Duration = Duration::from_secs(15);
/// How long the leader may fail to renew before it must stop: shorter than others wait.
const RENEW_LIMIT: Duration = Duration::from_secs(10);
const RENEW_LIMIT_BY_WALL: SignedDuration = SignedDuration::from_secs(10);
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

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

/// Whether we may write ourselves into the lease.
fn decide(lease: &Lease, me: &str, sighting: &Sighting, now: Instant) -> Decision {
    let holder = holder(lease);
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).and_then(|s| u64::try_from(s).ok());
    let expired = now >= sighting.at + seconds.map_or(DURATION, Duration::from_secs);
    if holder.is_empty() || holder == me || expired { Decision::Take } else { Decision::Wait }
}

pub struct Leadership {
    api: Api<Lease>,
    me: String,
    lease: Lease,
    term: Term,
    clock: Clock,
}

/// For how long we may act. A process that gets no time from its machine does not notice that another one has taken over: whoever is about
/// to act asks here first.
#[derive(Debug, Clone)]
pub struct Term {
    renewed: Arc<Mutex<Moment>>,
    clock: Clock,
    api: Api<Lease>,
    me: String,
}

/// By the clock that only goes forward, and by the wall clock: the first stands still while the machine sleeps, the other may be set.
#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Instant,
    wall: Timestamp,
}

impl Moment {
    fn now(clock: &Clock) -> Self {
        Self { at: Instant::now(), wall: clock.now() }
    }
}

impl Term {
    /// From a renewal that was asked for at this time.
    fn since(renewed: Moment, clock: Clock, api: Api<Lease>, me: String) -> Self {
        Self { renewed: Arc::new(Mutex::new(renewed)), clock, api, me }
    }

    /// Whether the lease is still ours, by the API server's word. If it is, nobody else has led since we took it.
    pub async fn is_confirmed(&self) -> kube::Result<bool> {
        let lease = self.api.get_opt(LEASE).await?;
        Ok(lease.is_some_and(|lease| holder(&lease) == self.me))
    }

    pub fn is_running(&self) -> bool {
        let Moment { at, wall } = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        at.elapsed() <= RENEW_LIMIT && self.clock.now().duration_since(wall) <= RENEW_LIMIT_BY_WALL
    }

    fn renew(&self, at: Moment) {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }
}

impl Leadership {
    /// Waits for its turn, for as long as it takes.
    pub async fn acquire(client: Client, namespace: &str, me: String, clock: Clock) -> Self {
        let api: Api<Lease> = Api::namespaced(client, namespace);
        let mut sighting = Sighting { resource_version: None, at: Instant::now() };
        loop {
            let asked = Moment::now(&clock);
            // A request that nobody answers must not keep us from taking over.
            let tried = timeout(REQUEST_LIMIT, try_acquire(&api, &me, &mut sighting, &clock)).await;
            match tried {
                Ok(Ok(Some(lease))) => {
                    let term = Term::since(asked, clock.clone(), api.clone(), me.clone());
                    return Self { api, me, lease, term, clock };
                }
                Ok(Ok(None)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the lease {LEASE} cannot be taken and is tried again"),
                Err(_) => tracing::warn!("the API server does not answer about the lease {LEASE}, and is asked again"),
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
            match timeout(REQUEST_LIMIT, self.renew()).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => bail!("another replica took the lease {LEASE}"),
                Ok(Err(error)) => tracing::warn!(%error, "the lease {LEASE} was not renewed"),
                Err(_) => tracing::warn!("the lease {LEASE} was not renewed: the API server does not answer"),
            }
            if !self.term.is_running() {
                bail!("the lease {LEASE} could not be renewed for {} s", RENEW_LIMIT.as_secs());
            }
        }
    }

    /// False if it is another's. An earlier renewal may have succeeded although its answer was lost: then the lease is ours, and not as we
    /// knew it.
    async fn renew(&mut self) -> kube::Result<bool> {
        for _ in 0..2 {
            let asked = Moment::now(&self.clock);
            match write(&self.api, spec(&self.me, self.clock.now()), &self.lease).await {
                Ok(lease) => {
                    self.lease = lease;
                    self.term.renew(asked);
                    return Ok(true);
                }
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                Err(error) => return Err(error),
            }
            let found = self.api.get(LEASE).await?;
            if holder(&found) != self.me {
                return Ok(false);
            }
            self.lease = found;
        }
        Ok(true)
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

async fn try_acquire(
    api: &Api<Lease>,
    me: &str,
    sighting: &mut Sighting,
    clock: &Clock,
) -> kube::Result<Option<Lease>> {
    let now = Instant::now();
    let Some(lease) = api.get_opt(LEASE).await? else {
        let fresh = Lease {
            metadata: ObjectMeta { name: Some(LEASE.to_owned()), ..ObjectMeta::default() },
            spec: Some(spec(me, clock.now())),
        };
        return api.create(&PostParams::default(), &fresh).await.map(Some);
    };
    if lease.metadata.resource_version != sighting.resource_version {
        *sighting = Sighting { resource_version: lease.metadata.resource_version.clone(), at: now };
    }
    match decide(&lease, me, sighting, now) {
        Decision::Take => write(api, spec(me, clock.now()), &lease).await.map(Some),
        Decision::Wait => Ok(None),
    }
}

async fn write(api: &Api<Lease>, spec: LeaseSpec, old: &Lease) -> kube::Result<Lease> {
    let lease = Lease { metadata: old.metadata.clone(), spec: Some(another(spec, old)) };
    api.replace(LEASE, &PostParams::default(), &lease).await
}

/// The others go by whether the lease changes, and the API server does not count a write that changes nothing. But our clock stands still
/// while the machine's is put back.
fn another(mut spec: LeaseSpec, old: &Lease) -> LeaseSpec {
    let micros = |time: &MicroTime| time.0.as_microsecond();
    let last = old.spec.as_ref().and_then(|old| old.renew_time.as_ref()).map(micros);
    if let Some(renewed) = spec.renew_time.as_mut().filter(|renewed| Some(micros(renewed)) == last) {
        renewed.0 = renewed.0.saturating_add(SignedDuration::from_micros(1)).unwrap_or(renewed.0);
    }
    spec
}

fn spec(me: &str, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
        renew_time: Some(MicroTime(now)),
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
impl Term {
    /// That of a replica called `me`, from now on.
    pub fn for_test(fake: &crate::fake::Fake, clock: &Clock) -> Self {
        let api = Api::namespaced(fake.client(), "lockstep-system");
        Self::since(Moment::now(clock), clock.clone(), api, "me".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::client::fenced;
    use crate::fake::Fake;

    fn held_by(holder: &str) -> Lease {
        Lease {
            metadata: ObjectMeta::default(),
            spec: Some(LeaseSpec { holder_identity: Some(holder.into()), ..spec(holder, Timestamp::UNIX_EPOCH) }),
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
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
        let term = Term::for_test(&Fake::default(), &clock);
        assert!(term.is_running());
        tokio::time::advance(RENEW_LIMIT + Duration::from_millis(1)).await;
        assert!(!term.is_running(), "also for a process that was asleep");
        term.renew(Moment::now(&clock));
        assert!(term.is_running());
        clock.jump(RENEW_LIMIT_BY_WALL + SignedDuration::from_millis(1));
        assert!(!term.is_running(), "also while the whole machine slept, and its other clock stood still");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_to_be_written_after_the_end_of_a_term_is_not() {
        let fake = Fake::default();
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
        let api: Api<Lease> = Api::namespaced(fenced(&fake.client(), Term::for_test(&fake, &clock)), "shop");
        let lease = |name: &str| Lease {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            spec: None,
        };
        api.create(&PostParams::default(), &lease("one")).await.unwrap();
        tokio::time::advance(RENEW_LIMIT + Duration::from_millis(1)).await;
        let refused = api.create(&PostParams::default(), &lease("two")).await.unwrap_err();
        assert!(matches!(refused, kube::Error::Api(status) if status.is_conflict()));
        assert!(api.get("one").await.is_ok(), "who may not write may look");
    }

    const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/lockstep-system/leases/lockstep";

    async fn leader(fake: &Fake) -> Leadership {
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
        Leadership::acquire(fake.client(), "lockstep-system", "me".to_owned(), clock).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_whose_answer_was_lost_is_no_reason_to_stop() {
        let fake = Fake::default();
        let mut leadership = leader(&fake).await;
        fake.put(PATH, fake.get(PATH).unwrap());
        tokio::time::advance(RETRY).await;
        assert!(leadership.renew().await.unwrap());
        assert!(leadership.term.is_confirmed().await.unwrap());
        tokio::time::advance(RENEW_LIMIT).await;
        assert!(leadership.term.is_running(), "it was renewed");
    }

    #[tokio::test(start_paused = true)]
    async fn each_renewal_changes_the_lease_also_while_the_clock_is_put_back() {
        let fake = Fake::default();
        let mut leadership = leader(&fake).await;
        let mut last = fake.get(PATH).unwrap()["spec"].clone();
        leadership.clock.jump(SignedDuration::from_secs(-16));
        for _ in 0..3 {
            assert!(leadership.renew().await.unwrap());
            let renewed = fake.get(PATH).unwrap()["spec"].clone();
            assert_ne!(renewed, last, "the others would take it for dead");
            last = renewed;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_lost_the_lease_stops() {
        let fake = Fake::default();
        let leadership = leader(&fake).await;
        let term = leadership.term();
        assert!(term.is_confirmed().await.unwrap());
        fake.put(PATH, json!({"metadata": {"name": "lockstep"}, "spec": {"holderIdentity": "other"}}));
        assert!(!term.is_confirmed().await.unwrap());
        let error = leadership.hold().await.unwrap_err().to_string();
        assert!(error.contains("another replica"), "{error}");
        fake.delete(PATH);
        assert!(!term.is_confirmed().await.unwrap());
    }

    #[test]
    fn the_leader_stops_before_another_may_start() {
        assert!(RENEW_LIMIT + REQUEST_LIMIT <= DURATION);
        assert_eq!(RENEW_LIMIT_BY_WALL.unsigned_abs(), RENEW_LIMIT);
    }
}
