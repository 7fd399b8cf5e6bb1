//! The app that the end-to-end tests and the demo deploy: it shows over HTTP the configuration that it really sees, and
//! behaves as that configuration tells it.
//!
//! `testapp` serves on port 8080, or the one in `PORT`; `testapp get URL` asks another one and prints the answer.

mod behavior;
mod config;

use std::env;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use jiff::Timestamp;
use lockstep_testing::report::{ConfigReport, SignalReport, Snapshot};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal as UnixSignal, SignalKind, signal};

use crate::behavior::Behavior;

const DEFAULT_PORT: u16 = 8080;
/// How many signals are remembered.
const SIGNAL_LIMIT: usize = 1000;
const GET_TIMEOUT: Duration = Duration::from_secs(5);

struct App {
    started: Instant,
    loaded: Mutex<Loaded>,
    signals: Mutex<Vec<SignalReport>>,
    requests: AtomicU64,
}

#[derive(Clone)]
struct Loaded {
    snapshot: Snapshot,
    behavior: Behavior,
}

type Shared = State<Arc<App>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => serve(),
        ["get", url] => fetch(url),
        _ => Err(anyhow::anyhow!("usage: testapp [get URL]")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("testapp: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn serve() -> Result<()> {
    let loaded = load()?;
    eprintln!("testapp: loaded {} files, behavior {:?}", loaded.snapshot.files.len(), loaded.behavior);
    let crash_after = loaded.behavior.crash_after;
    // What crashes at its start never listens: a probe must not find it ready for a moment.
    let is_to_crash = loaded.behavior.crash_as.is_some() && loaded.behavior.crash_as == env::var("HOSTNAME").ok();
    ensure!(crash_after != Some(Duration::ZERO) && !is_to_crash, "crashing, as configured");
    let app = Arc::new(App {
        started: Instant::now(),
        loaded: Mutex::new(loaded),
        signals: Mutex::default(),
        requests: AtomicU64::new(0),
    });
    let signals = SignalStreams::open().context("cannot receive signals")?;
    let port = port()?;
    let listener = TcpListener::bind(("0.0.0.0", port)).await.with_context(|| format!("cannot listen on {port}"))?;
    eprintln!("testapp: listening on port {}", listener.local_addr()?.port());
    tokio::select! {
        served = axum::serve(listener, router(Arc::clone(&app))) => served.context("the server ended"),
        () = signals.follow(&app) => Ok(()),
        () = sleep_if_any(crash_after) => bail!("crashing, as configured"),
    }
}

fn port() -> Result<u16> {
    let Ok(port) = env::var("PORT") else { return Ok(DEFAULT_PORT) };
    port.parse().with_context(|| format!("PORT is `{port}`, which is no port"))
}

fn load() -> Result<Loaded> {
    let snapshot = config::load();
    let behavior = config::behavior(&snapshot)?;
    Ok(Loaded { snapshot, behavior })
}

async fn sleep_if_any(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// HUP, USR1 and USR2 load the configuration again; TERM ends the app.
struct SignalStreams {
    hup: UnixSignal,
    usr1: UnixSignal,
    usr2: UnixSignal,
    term: UnixSignal,
}

impl SignalStreams {
    fn open() -> io::Result<Self> {
        Ok(Self {
            hup: signal(SignalKind::hangup())?,
            usr1: signal(SignalKind::user_defined1())?,
            usr2: signal(SignalKind::user_defined2())?,
            term: signal(SignalKind::terminate())?,
        })
    }

    async fn follow(mut self, app: &App) {
        loop {
            let name = tokio::select! {
                _ = self.hup.recv() => "HUP",
                _ = self.usr1.recv() => "USR1",
                _ = self.usr2.recv() => "USR2",
                _ = self.term.recv() => return,
            };
            app.remember_signal(name);
            match load() {
                Ok(loaded) => *lock(&app.loaded) = loaded,
                Err(error) => eprintln!("testapp: kept the old configuration: {error:#}"),
            }
        }
    }
}

impl App {
    fn behavior(&self) -> Behavior {
        lock(&self.loaded).behavior.clone()
    }

    fn remember_signal(&self, name: &str) {
        let mut signals = lock(&self.signals);
        if signals.len() < SIGNAL_LIMIT {
            signals.push(SignalReport { signal: name.to_owned(), at: Timestamp::now() });
        }
    }

    /// Whether the next request fails: evenly spread, so that a rate of 0.5 is every second one and tests can count on it.
    fn next_request_fails(&self, error_rate: f64) -> bool {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        #[expect(clippy::cast_precision_loss, reason = "a test sends far fewer than 2^52 requests")]
        let failures_until = |count: u64| (count as f64 * error_rate).floor();
        failures_until(number + 1) > failures_until(number)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(work))
        .route("/config", get(show_config))
        .route("/signals", get(show_signals))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .with_state(app)
}

/// What the app is there for: a request that may be slow or fail.
async fn work(State(app): Shared) -> (StatusCode, &'static str) {
    let behavior = app.behavior();
    tokio::time::sleep(behavior.delay).await;
    if app.next_request_fails(behavior.error_rate) {
        (StatusCode::INTERNAL_SERVER_ERROR, "failing, as configured")
    } else {
        (StatusCode::OK, "ok")
    }
}

async fn ready(State(app): Shared) -> (StatusCode, &'static str) {
    if app.behavior().ready.is_reached(app.started.elapsed()) {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready, as configured")
    }
}

async fn show_config(State(app): Shared) -> Json<ConfigReport> {
    let loaded = lock(&app.loaded).snapshot.clone();
    let host = loaded.env.get("HOSTNAME").cloned().unwrap_or_default();
    Json(ConfigReport { host, loaded, files_now: config::read_files() })
}

async fn show_signals(State(app): Shared) -> Json<Vec<SignalReport>> {
    Json(lock(&app.signals).clone())
}

/// Asks a server by name, as a pod would, and prints its answer.
fn fetch(url: &str) -> Result<()> {
    let rest = url.strip_prefix("http://").with_context(|| format!("{url} does not start with http://"))?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let address = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
    let mut stream = TcpStream::connect(&address).with_context(|| format!("cannot connect to {address}"))?;
    stream.set_read_timeout(Some(GET_TIMEOUT))?;
    write!(stream, "GET /{path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).with_context(|| format!("no answer from {address}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or_default();
    if !status.contains(" 200 ") {
        bail!("{url} answered {status}");
    }
    io::stdout().write_all(body.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app() -> App {
        let loaded = Loaded { snapshot: config::load(), behavior: Behavior::default() };
        App {
            started: Instant::now(),
            loaded: Mutex::new(loaded),
            signals: Mutex::default(),
            requests: AtomicU64::new(0),
        }
    }

    #[test]
    fn the_configured_share_of_requests_fails() {
        for (rate, expected) in [(0.0, 0), (0.25, 25), (0.5, 50), (1.0, 100)] {
            let app = app();
            let failures = (0..100).filter(|_| app.next_request_fails(rate)).count();
            assert_eq!(failures, expected, "at a rate of {rate}");
        }
    }

    #[test]
    fn signals_are_remembered_up_to_a_limit() {
        let app = app();
        for _ in 0..SIGNAL_LIMIT + 5 {
            app.remember_signal("HUP");
        }
        assert_eq!(lock(&app.signals).len(), SIGNAL_LIMIT);
    }
}
