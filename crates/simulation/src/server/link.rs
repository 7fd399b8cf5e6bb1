//! What lies between a client and the API server, and what may go wrong there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::kinds::Kind;
use crate::store::{Refusal, Writer};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Replace,
    Patch,
    Delete,
    Discover,
}

impl Verb {
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Create | Self::Replace | Self::Patch | Self::Delete)
    }
}

/// A request, as far as faults can depend on it.
#[derive(Debug, Clone)]
pub struct Asked {
    pub who: Writer,
    pub verb: Verb,
    /// None for discovery, and for what is not known.
    pub kind: Option<Kind>,
    pub namespace: String,
    /// Empty for lists and watches.
    pub name: String,
    /// Whether it is about the status subresource.
    pub is_status: bool,
}

/// Whether what was asked for is done before the answer goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Undone,
    Done,
}

/// How a request ends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Outcome {
    #[default]
    Answered,
    /// The API server says this, such as 429, 500, 503, 504 or 409.
    Refused(Refusal, Effect),
    /// The connection breaks.
    Broken(Effect),
    /// No answer ever comes.
    Silent(Effect),
}

/// What happens to a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fate {
    /// On the way to the API server.
    pub before: Duration,
    /// On the way back.
    pub after: Duration,
    pub outcome: Outcome,
}

/// How a watch ends before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Break {
    /// As if its time were over.
    Closed,
    /// In the middle of an event, as a connection does.
    Torn,
    /// With 410: what it would go on from is forgotten.
    Expired,
    /// With an internal error.
    Failed,
}

/// What happens to an event of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivery {
    /// How much later than the change it comes. Events never overtake each other.
    pub after: Duration,
    /// Whether it comes a second time.
    pub repeated: bool,
    /// Whether the watch ends instead of delivering it.
    pub instead: Option<Break>,
}

/// Decides what happens on a link. Asked in the order in which things happen, so that a seed decides the same again.
pub trait Faults: Send {
    fn request(&mut self, _asked: &Asked) -> Fate {
        Fate::default()
    }

    /// For each event of each watch.
    fn event(&mut self, _watch: &Asked) -> Delivery {
        Delivery::default()
    }
}

/// Nothing ever goes wrong, and nothing takes time.
struct Perfect;

impl Faults for Perfect {}

/// One client's way to the API server. Clones are the same link: what is set on one holds for all.
#[derive(Clone)]
pub struct Link {
    state: Arc<Mutex<State>>,
}

struct State {
    faults: Box<dyn Faults>,
    /// The watches that are open, by their numbers.
    watches: BTreeMap<u64, Open>,
    opened: u64,
}

struct Open {
    kind: Kind,
    is_stalled: bool,
    broken: Option<Break>,
    waker: Option<Waker>,
}

/// How a watch finds its link.
pub(super) enum Look {
    Open,
    Stalled,
    Broken(Break),
}

impl Link {
    pub fn new(faults: impl Faults + 'static) -> Self {
        let state = State { faults: Box::new(faults), watches: BTreeMap::new(), opened: 0 };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    pub fn perfect() -> Self {
        Self::new(Perfect)
    }

    /// From now on, these decide.
    pub fn set(&self, faults: impl Faults + 'static) {
        self.lock().faults = Box::new(faults);
    }

    /// The kinds of the watches that are open now.
    pub fn watches(&self) -> Vec<Kind> {
        self.lock().watches.values().map(|open| open.kind).collect()
    }

    /// Ends all watches that are open now.
    pub fn break_watches(&self, how: Break) {
        self.change(|_| true, |open| open.broken = Some(how));
    }

    /// Ends the watches of one kind that are open now.
    pub fn break_watches_of(&self, kind: Kind, how: Break) {
        self.change(|of| of == kind, |open| open.broken = Some(how));
    }

    /// While they are stalled, watches that are open now stay so and deliver nothing, not even bookmarks or their end. Others that are
    /// opened meanwhile are not concerned.
    pub fn stall_watches(&self, stalled: bool) {
        self.change(|_| true, |open| open.is_stalled = stalled);
    }

    pub fn stall_watches_of(&self, kind: Kind, stalled: bool) {
        self.change(|of| of == kind, |open| open.is_stalled = stalled);
    }

    fn change(&self, concerns: impl Fn(Kind) -> bool, change: impl Fn(&mut Open)) {
        let mut wakers = Vec::new();
        for open in self.lock().watches.values_mut().filter(|open| concerns(open.kind)) {
            change(open);
            wakers.extend(open.waker.take());
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn request(&self, asked: &Asked) -> Fate {
        self.lock().faults.request(asked)
    }

    pub(super) fn event(&self, watch: &Asked) -> Delivery {
        self.lock().faults.event(watch)
    }

    pub(super) fn open_watch(&self, kind: Kind) -> u64 {
        let mut state = self.lock();
        state.opened += 1;
        let number = state.opened;
        state.watches.insert(number, Open { kind, is_stalled: false, broken: None, waker: None });
        number
    }

    pub(super) fn close_watch(&self, number: u64) {
        self.lock().watches.remove(&number);
    }

    /// A watch is woken when this changes.
    pub(super) fn look(&self, number: u64, waker: &Waker) -> Look {
        let mut state = self.lock();
        let Some(open) = state.watches.get_mut(&number) else { return Look::Broken(Break::Closed) };
        match &mut open.waker {
            Some(known) => known.clone_from(waker),
            None => open.waker = Some(waker.clone()),
        }
        match open.broken {
            Some(how) if !open.is_stalled => Look::Broken(how),
            _ if open.is_stalled => Look::Stalled,
            _ => Look::Open,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
