//! A watch: a stream of what happens to the objects of one kind, from a given revision on.
//!
//! It reads the store's history when its client reads it, so that a client that sleeps costs nothing and misses nothing.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use futures::Stream;
use serde_json::json;
use tokio::time::{Instant, Sleep, sleep_until};

use super::answer;
use super::call::Query;
use super::link::{Asked, Break, Delivery, Link, Look};
use super::selector::Selector;
use crate::Shared;
use crate::kinds::Kind;
use crate::store::{Change, Object, Refusal};

/// How often a watch is told how far it has come, although nothing happened.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// How long the API server keeps a watch open that does not say how long.
const LONGEST: Duration = Duration::from_secs(1800);

/// What a watch is about.
pub struct Scope {
    pub kind: Kind,
    pub namespace: Option<String>,
    pub selector: Selector,
    pub is_metadata: bool,
}

pub struct Watch {
    shared: Shared,
    link: Link,
    /// Its number on the link.
    number: u64,
    asked: Asked,
    scope: Scope,
    has_bookmarks: bool,
    /// All changes up to this revision were read.
    cursor: u64,
    waiting: VecDeque<Waiting>,
    bookmark_at: Instant,
    ends_at: Instant,
    timer: Pin<Box<Sleep>>,
    /// How it ends when all that waits is delivered, or has ended.
    end: Option<End>,
}

/// What is to be delivered, and when.
struct Waiting {
    due: Instant,
    line: Line,
}

enum Line {
    Event {
        word: &'static str,
        object: Arc<Object>,
    },
    /// That all that was there at first has been told.
    Complete(u64),
    Break(Break),
}

#[derive(Clone, Copy)]
enum End {
    Torn,
    Over,
}

impl Watch {
    pub fn open(shared: &Shared, link: &Link, asked: Asked, scope: Scope, query: &Query) -> Result<Self, Refusal> {
        let now = Instant::now();
        let time = query.timeout_seconds.map_or(LONGEST, Duration::from_secs);
        let mut watch = Self {
            shared: shared.clone(),
            link: link.clone(),
            number: link.open_watch(scope.kind),
            asked,
            scope,
            has_bookmarks: query.bookmarks,
            cursor: 0,
            waiting: VecDeque::new(),
            bookmark_at: now + BOOKMARK_EVERY,
            ends_at: now + time,
            timer: Box::pin(sleep_until(now + BOOKMARK_EVERY.min(time))),
            end: None,
        };
        watch.begin(query)?;
        Ok(watch)
    }

    /// From a revision, or with all that there is.
    fn begin(&mut self, query: &Query) -> Result<(), Refusal> {
        let version = query.resource_version.as_deref().unwrap_or("0");
        let revision = version.parse::<u64>().map_err(|_| Refusal::bad_request("invalid resource version"))?;
        let now = Instant::now();
        let shared = self.shared.clone();
        let world = shared.lock();
        if revision > 0 && !query.send_initial_events {
            self.cursor = revision;
            if world.store.is_compacted(revision) {
                self.waiting.push_back(Waiting { due: now, line: Line::Break(Break::Expired) });
            }
            return Ok(());
        }
        self.cursor = world.store.revision();
        let found = world.store.list(self.scope.kind, self.scope.namespace.as_deref());
        for object in found.filter(|object| self.scope.selector.holds(object)) {
            let line = Line::Event { word: "ADDED", object: Arc::clone(object) };
            self.waiting.push_back(Waiting { due: now, line });
        }
        drop(world);
        if query.send_initial_events {
            self.deliver(now, Line::Complete(self.cursor));
        }
        Ok(())
    }

    /// Reads what happened since the last time.
    fn read(&mut self, context: &Context<'_>) {
        let mut world = self.shared.lock();
        world.wake_at_change(self.scope.kind, context.waker());
        if world.store.revision() <= self.cursor {
            return;
        }
        let news: Vec<(Instant, Line)> = {
            let line = |change| self.scope.line(change).map(|line| (self.shared.instant(change.at), line));
            world.store.changes_of(self.scope.kind, self.cursor).filter_map(line).collect()
        };
        self.cursor = world.store.revision();
        drop(world);
        for (at, line) in news {
            self.deliver(at, line);
        }
    }

    /// Lets the link decide how something that happened at this time gets through.
    fn deliver(&mut self, at: Instant, line: Line) {
        let Delivery { after, repeated, instead } = self.link.event(&self.asked);
        let last = self.waiting.back().map_or(at, |waiting| waiting.due);
        let due = (at + after).max(last);
        if let Some(how) = instead {
            self.waiting.push_back(Waiting { due, line: Line::Break(how) });
            return;
        }
        if repeated && let Line::Event { word, object } = &line {
            let line = Line::Event { word, object: Arc::clone(object) };
            self.waiting.push_back(Waiting { due, line });
        }
        self.waiting.push_back(Waiting { due, line });
    }

    /// The text of all that is due.
    fn take_due(&mut self, now: Instant) -> Vec<u8> {
        let mut text = Vec::new();
        while self.end.is_none()
            && let Some(waiting) = self.waiting.pop_front_if(|waiting| waiting.due <= now)
        {
            match waiting.line {
                Line::Event { word, object } => self.scope.write_event(&mut text, word, &object),
                Line::Complete(revision) => self.scope.write_bookmark(&mut text, revision, true),
                Line::Break(how) => self.stop(&mut text, how),
            }
        }
        text
    }

    fn stop(&mut self, text: &mut Vec<u8>, how: Break) {
        let gone = || Refusal::new(410, "Expired", "too old resource version");
        let failed =
            || Refusal::new(500, "InternalError", "an error on the server has prevented the request from succeeding");
        match how {
            Break::Closed => {}
            Break::Torn => text.extend_from_slice(br#"{"type":"MODIFIED","object":{"kind""#),
            Break::Expired => write_error(text, &gone()),
            Break::Failed => write_error(text, &failed()),
        }
        self.end = Some(if how == Break::Torn { End::Torn } else { End::Over });
    }

    /// Says how far it has come, if that is further than what it was told.
    fn bookmark(&mut self, now: Instant) -> Vec<u8> {
        let mut text = Vec::new();
        if now < self.bookmark_at {
            return text;
        }
        self.bookmark_at = now + BOOKMARK_EVERY;
        if self.has_bookmarks && self.waiting.is_empty() {
            self.scope.write_bookmark(&mut text, self.cursor, false);
        }
        text
    }
}

impl Stream for Watch {
    type Item = Result<Bytes, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let watch = &mut *self;
        loop {
            match watch.end {
                None => {}
                Some(End::Over) => return Poll::Ready(None),
                Some(End::Torn) => {
                    watch.end = Some(End::Over);
                    return Poll::Ready(Some(Err(Error::new(ErrorKind::ConnectionReset, "connection reset by peer"))));
                }
            }
            let now = Instant::now();
            let mut text = Vec::new();
            match watch.link.look(watch.number, context.waker()) {
                Look::Stalled => return Poll::Pending,
                Look::Broken(how) => watch.stop(&mut text, how),
                Look::Open => {
                    watch.read(context);
                    text = watch.take_due(now);
                    if text.is_empty() && watch.end.is_none() {
                        text = watch.bookmark(now);
                    }
                }
            }
            if !text.is_empty() {
                return Poll::Ready(Some(Ok(Bytes::from(text))));
            }
            if watch.end.is_some() {
                continue;
            }
            if now >= watch.ends_at {
                return Poll::Ready(None);
            }
            let next = watch.waiting.front().map_or(watch.ends_at, |waiting| waiting.due);
            let next = next.min(watch.ends_at).min(watch.bookmark_at);
            if watch.timer.deadline() != next {
                watch.timer.as_mut().reset(next);
            }
            ready!(watch.timer.as_mut().poll(context));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.link.close_watch(self.number);
    }
}

impl Scope {
    /// What a change is to this watch: an object that no longer fits the selector is gone for it.
    fn line(&self, change: &Change) -> Option<Line> {
        if self.namespace.as_ref().is_some_and(|namespace| *namespace != change.key.namespace) {
            return None;
        }
        let fits = |object: &Option<Arc<Object>>| object.as_ref().is_some_and(|object| self.selector.holds(object));
        let (word, object) = match (fits(&change.before), fits(&change.after)) {
            (false, false) => return None,
            (false, true) => ("ADDED", change.after.clone()?),
            (true, true) => ("MODIFIED", change.after.clone()?),
            (true, false) if change.after.is_none() => ("DELETED", Arc::clone(change.object()?)),
            (true, false) => {
                let before = change.before.as_ref()?;
                ("DELETED", Arc::new(Object::new(before.key.clone(), change.revision, before.value.clone())))
            }
        };
        Some(Line::Event { word, object })
    }

    fn write_event(&self, text: &mut Vec<u8>, word: &str, object: &Object) {
        text.extend_from_slice(br#"{"type":""#);
        text.extend_from_slice(word.as_bytes());
        text.extend_from_slice(br#"","object":"#);
        if self.is_metadata {
            object.write_metadata(text);
        } else {
            object.write(text);
        }
        text.extend_from_slice(b"}\n");
    }

    fn write_bookmark(&self, text: &mut Vec<u8>, revision: u64, is_complete: bool) {
        let (kind, api_version) = if self.is_metadata {
            ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned())
        } else {
            (self.kind.kind(), self.kind.api_version())
        };
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if is_complete {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let line = format!(
            r#"{{"type":"BOOKMARK","object":{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{metadata}}}}}"#
        );
        text.extend_from_slice(line.as_bytes());
        text.push(b'\n');
    }
}

fn write_error(text: &mut Vec<u8>, refusal: &Refusal) {
    text.extend_from_slice(format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", answer::status(refusal)).as_bytes());
}
