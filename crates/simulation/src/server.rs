//! The API server, behind a real `kube::Client`.

mod answer;
mod call;
mod link;
mod read;
mod selector;
mod watch;

pub use link::{Asked, Break, Delivery, Effect, Fate, Faults, Link, Outcome, Verb};

use std::io::{Error, ErrorKind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Request, StatusCode, header};
use kube::client::Body;
use tokio::time::sleep;

use crate::Shared;
use crate::random::Random;
use crate::store::{Object, Refusal, Write, Writer};
use answer::Answer;
use call::{Call, Path};

/// How often the real client tries again by itself, and how long it waits, at first and at most.
const RETRIES: u32 = 15;
const FIRST_WAIT: Duration = Duration::from_millis(5);
const LONGEST_WAIT: Duration = Duration::from_secs(1000);
/// When the kernel gives a silent connection up.
const SILENCE_LIMIT: Duration = Duration::from_secs(924);

/// One client, as the API server sees it.
struct Peer {
    shared: Shared,
    who: Writer,
    link: Link,
    /// For the client's own retries.
    random: Mutex<Random>,
}

/// A client of the simulated API server, for this writer and over this link. Only within a runtime.
///
/// It tries again by itself what the real one does: whatever is answered with 429, 503 or 504.
pub fn client(world: &Shared, who: Writer, link: Link) -> kube::Client {
    let random = Mutex::new(world.lock().random.fork(&format!("retries of {who:?}")));
    let peer = Arc::new(Peer { shared: world.clone(), who, link, random });
    let service = tower::service_fn(move |request| exchange(Arc::clone(&peer), request));
    kube::Client::new(service, "default")
}

async fn exchange(peer: Arc<Peer>, request: Request<Body>) -> Result<Answer, Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect_bytes().await.map_err(Error::other)?;
    let call = Arc::new(Call::new(&parts, body));
    for retries in 0..RETRIES {
        let answer = attempt(&peer, &call).await?;
        let Some(wait) = peer.wait_after(&answer, retries) else { return Ok(answer) };
        sleep(wait).await;
    }
    attempt(&peer, &call).await
}

impl Peer {
    /// How long to wait before another try, if there is to be one.
    fn wait_after(&self, answer: &Answer, retries: u32) -> Option<Duration> {
        let again = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT];
        if !again.contains(&answer.status()) {
            return None;
        }
        let base = FIRST_WAIT.saturating_mul(2u32.saturating_pow(retries)).min(LONGEST_WAIT);
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = random.between(base, base * 3).min(LONGEST_WAIT);
        let asked = answer.headers().contains_key(header::RETRY_AFTER).then_some(Duration::from_secs(1));
        Some(wait.max(asked.unwrap_or_default()))
    }
}

/// Sends a request once. What the API server does about it happens in a task of its own, so that a client that goes away does not undo
/// what it has asked for.
async fn attempt(peer: &Arc<Peer>, call: &Arc<Call>) -> Result<Answer, Error> {
    let Fate { before, after, outcome } = peer.link.request(&call.asked(&peer.who));
    let is_undone = match &outcome {
        Outcome::Answered => false,
        Outcome::Refused(_, effect) | Outcome::Broken(effect) | Outcome::Silent(effect) => *effect == Effect::Undone,
    };
    let answer = if is_undone {
        rest(before).await;
        None
    } else {
        Some(effect(peer, call, before).await?)
    };
    rest(after).await;
    match outcome {
        Outcome::Answered => answer.ok_or_else(|| Error::other("there is no answer")),
        Outcome::Refused(refusal, _) => Ok(answer::refused(&refusal)),
        Outcome::Broken(_) => Err(Error::new(ErrorKind::ConnectionReset, "connection reset by peer")),
        Outcome::Silent(_) => {
            sleep(SILENCE_LIMIT).await;
            Err(Error::new(ErrorKind::TimedOut, "connection timed out"))
        }
    }
}

/// Nothing but time goes by.
async fn rest(duration: Duration) {
    if !duration.is_zero() {
        sleep(duration).await;
    }
}

async fn effect(peer: &Arc<Peer>, call: &Arc<Call>, before: Duration) -> Result<Answer, Error> {
    if before.is_zero() && !asks_webhook(peer, call) {
        return Ok(answer_now(peer, call));
    }
    let (peer, call) = (Arc::clone(peer), Arc::clone(call));
    let task = tokio::spawn(async move {
        rest(before).await;
        if asks_webhook(&peer, &call) { written(&peer, &call).await } else { answer_now(&peer, &call) }
    });
    task.await.map_err(Error::other)
}

/// Whether somebody else may have to be asked before there is an answer.
fn asks_webhook(peer: &Peer, call: &Call) -> bool {
    let is_config = match &call.path {
        Path::Collection { kind, .. } => kind.is_config(),
        Path::Object { key, .. } => key.kind.is_config(),
        Path::Discovery { .. } | Path::Unknown => false,
    };
    is_config && call.verb().is_write() && peer.shared.lock().webhook.is_some()
}

fn answer_now(peer: &Peer, call: &Call) -> Answer {
    if !is_served(peer, call) {
        return answer::no_such_path();
    }
    if !call.verb().is_write() {
        return read::answer(peer, call).unwrap_or_else(|refusal| answer::refused(&refusal));
    }
    let write = |write| {
        if call.is_dry_run() { try_out(peer, write) } else { peer.shared.write(&peer.who, write) }
    };
    told(peer, call, call.write().and_then(write))
}

/// A write about which the webhook is asked.
async fn written(peer: &Peer, call: &Call) -> Answer {
    match call.write() {
        Ok(write) if !call.is_dry_run() => told(peer, call, peer.shared.submit(&peer.who, write).await),
        _ => answer_now(peer, call),
    }
}

fn told(peer: &Peer, call: &Call, written: Result<Arc<Object>, Refusal>) -> Answer {
    let object = match written {
        Ok(object) => object,
        Err(refusal) => return answer::refused(&refusal),
    };
    match call.verb() {
        Verb::Delete if peer.shared.lock().store.get(&object.key).is_none() => answer::deleted(&object),
        Verb::Create => answer::created(&object, call.is_metadata),
        _ => answer::object(&object, call.is_metadata),
    }
}

/// What would come of a write.
fn try_out(peer: &Peer, write: Write) -> Result<Arc<Object>, Refusal> {
    let now = peer.shared.now();
    let mut world = peer.shared.lock();
    let draft = world.store.prepare(&peer.who, write, now)?;
    world.store.check(&peer.who, &draft, now)?;
    let revision = draft.before.as_ref().map_or(0, |before| before.revision);
    Ok(match draft.before {
        Some(before) if draft.deletion.is_some() => before,
        _ => Arc::new(Object::new(draft.key, revision, draft.object)),
    })
}

/// Kinds from elsewhere may not be installed.
fn is_served(peer: &Peer, call: &Call) -> bool {
    let kind = match &call.path {
        Path::Collection { kind, .. } => *kind,
        Path::Object { key, .. } => key.kind,
        Path::Discovery { .. } => return true,
        Path::Unknown => return false,
    };
    !peer.shared.lock().missing.contains(&kind)
}

#[cfg(test)]
mod tests;
