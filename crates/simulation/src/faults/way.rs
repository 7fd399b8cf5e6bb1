//! An operator's way to the API server: what the faults of a schedule mean for each request and each event.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Trouble;
use crate::kinds::Kind;
use crate::random::Random;
use crate::server::{Asked, Delivery, Effect, Fate, Faults, Link, Outcome, Verb};
use crate::store::Refusal;

/// The time in which requests are counted.
pub const WINDOW: Duration = Duration::from_secs(10);

/// What is wrong with one operator's way; clones are the same way.
#[derive(Clone)]
pub struct Way {
    pub link: Link,
    state: Arc<Mutex<State>>,
}

struct State {
    random: Random,
    rough: Vec<(Instant, Trouble, u32)>,
    next: Vec<(Verb, Kind, Trouble)>,
    lags: Vec<(Instant, Duration, u32)>,
    away_until: Option<Instant>,
    /// What is to be done about the process when it asks for this.
    trap: Option<Trap>,
    requests: u64,
    /// When the window began in which requests are counted, and how many there were.
    window: (Option<Instant>, u64),
    /// The most of a window so far.
    busiest: u64,
}

/// A request at which a process dies.
struct Trap {
    verb: Verb,
    kind: Kind,
    is_done: bool,
    sprung: Arc<tokio::sync::Notify>,
}

impl Way {
    pub fn new(random: Random) -> Self {
        let state = Arc::new(Mutex::new(State {
            random,
            rough: Vec::new(),
            next: Vec::new(),
            lags: Vec::new(),
            away_until: None,
            trap: None,
            requests: 0,
            window: (None, 0),
            busiest: 0,
        }));
        Self { link: Link::new(Chance(Arc::clone(&state))), state }
    }

    pub fn roughen(&self, trouble: Trouble, percent: u32, lasts: Duration) {
        self.lock().rough.push((Instant::now() + lasts, trouble, percent));
    }

    pub fn trip(&self, verb: Verb, kind: Kind, trouble: Trouble) {
        self.lock().next.push((verb, kind, trouble));
    }

    pub fn lag(&self, late: Duration, repeated: u32, lasts: Duration) {
        self.lock().lags.push((Instant::now() + lasts, late, repeated));
    }

    pub fn cut_off(&self, lasts: Duration) {
        let until = Instant::now() + lasts;
        let mut state = self.lock();
        state.away_until = state.away_until.max(Some(until));
    }

    /// Tells when the process makes such a request; the request itself is done or not, and never answered.
    pub fn set_trap(&self, verb: Verb, kind: Kind, is_done: bool) -> Arc<tokio::sync::Notify> {
        let sprung = Arc::new(tokio::sync::Notify::new());
        self.lock().trap = Some(Trap { verb, kind, is_done, sprung: Arc::clone(&sprung) });
        sprung
    }

    /// From here on nothing goes wrong any more.
    pub fn mend(&self) {
        let mut state = self.lock();
        state.rough.clear();
        state.next.clear();
        state.lags.clear();
        (state.away_until, state.trap) = (None, None);
    }

    /// How many requests there were so far.
    pub fn requests(&self) -> u64 {
        self.lock().requests
    }

    /// How many requests there were at most within [`WINDOW`].
    pub fn busiest(&self) -> u64 {
        self.lock().busiest
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Chance(Arc<Mutex<State>>);

impl Faults for Chance {
    fn request(&mut self, asked: &Asked) -> Fate {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).request(asked)
    }

    fn event(&mut self, watch: &Asked) -> Delivery {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).event(watch)
    }
}

impl State {
    fn count(&mut self, now: Instant) {
        self.requests += 1;
        let (begun, count) = self.window;
        let is_over = begun.is_none_or(|begun| now.duration_since(begun) > WINDOW);
        self.window = if is_over { (Some(now), 1) } else { (begun, count + 1) };
        self.busiest = self.busiest.max(self.window.1);
    }

    fn request(&mut self, asked: &Asked) -> Fate {
        let now = Instant::now();
        self.count(now);
        // A network is never the same twice: what is asked first is not always answered first.
        let usual = (Duration::from_micros(200), Duration::from_millis(4));
        let mut fate = Fate {
            before: self.random.between(usual.0, usual.1),
            after: self.random.between(usual.0, usual.1),
            outcome: Outcome::Answered,
        };
        self.rough.retain(|(until, ..)| *until > now);
        if self.away_until.is_some_and(|until| until > now) {
            fate.outcome = Outcome::Broken(Effect::Undone);
            return fate;
        }
        if let Some(trap) = self.trap.take_if(|trap| trap.verb == asked.verb && Some(trap.kind) == asked.kind) {
            trap.sprung.notify_one();
            fate.outcome = Outcome::Silent(effect(trap.is_done));
            return fate;
        }
        let fits = |(verb, kind, _): &(Verb, Kind, Trouble)| *verb == asked.verb && Some(*kind) == asked.kind;
        if let Some(place) = self.next.iter().position(fits) {
            let (_, _, trouble) = self.next.remove(place);
            apply(trouble, asked, &mut fate);
            return fate;
        }
        for (_, trouble, percent) in &self.rough {
            if self.random.chance(*percent) {
                apply(*trouble, asked, &mut fate);
                break;
            }
        }
        fate
    }

    fn event(&mut self, _watch: &Asked) -> Delivery {
        let now = Instant::now();
        self.lags.retain(|(until, ..)| *until > now);
        let mut delivery = Delivery {
            after: self.random.between(Duration::from_micros(300), Duration::from_millis(15)),
            ..Delivery::default()
        };
        for (_, late, repeated) in &self.lags {
            delivery.after += self.random.between(Duration::ZERO, *late);
            delivery.repeated |= self.random.chance(*repeated);
        }
        delivery
    }
}

fn apply(trouble: Trouble, asked: &Asked, fate: &mut Fate) {
    match trouble {
        Trouble::Slow(by) => fate.before += by,
        // Nobody else gets one.
        Trouble::Conflict if !asked.verb.is_write() => {}
        Trouble::Conflict => fate.outcome = refused(409, "Conflict", "the object has been modified", false),
        Trouble::TooMany => fate.outcome = refused(429, "TooManyRequests", "too many requests, try again", false),
        Trouble::Internal { is_done } => {
            fate.outcome = refused(500, "InternalError", "etcdserver: request timed out", is_done);
        }
        Trouble::Broken { is_done } => fate.outcome = Outcome::Broken(effect(is_done)),
        Trouble::TimeOut { is_done, after } => {
            fate.after += after;
            fate.outcome = Outcome::Broken(effect(is_done));
        }
    }
}

fn refused(code: u16, reason: &'static str, message: &str, is_done: bool) -> Outcome {
    Outcome::Refused(Refusal { code, reason, message: message.to_owned() }, effect(is_done))
}

fn effect(is_done: bool) -> Effect {
    if is_done { Effect::Done } else { Effect::Undone }
}
