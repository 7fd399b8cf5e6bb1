//! The HTTPS server that the API server calls.
//!
//! Everything that a caller can make us spend is limited: connections, the size of a request, and the time for each step.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Request as HttpRequest, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::crypto::ring;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::certificates::Endpoint;
use super::review::{self, Request, ReviewError, Rules};
use super::serving::Serving;
use super::tables::{NotListed, Tables};
use super::webhook::ConfigWebhook;
use crate::environment::Process;
use crate::metrics::Metrics;

/// An API server has a few dozen connections to us at most; the rest of them has to wait.
const MAX_CONNECTIONS: usize = 512;
/// The API server takes objects of up to 3 MiB, and a review has the old and the new one.
const MAX_BODY_BYTES: usize = 8 << 20;
/// As long as the API server waits at most (`timeoutSeconds` in the chart).
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection may be idle: longer than the API server keeps it (90 s), so that we never close one that it is about to use.
const IDLE_LIMIT: Duration = Duration::from_secs(120);
/// How long requests may take to end when we stop.
const CLOSE_LIMIT: Duration = REQUEST_LIMIT;
/// When no connection can be accepted, for want of file descriptors as a rule, others have to end first.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Everything that an answer needs.
pub struct Handlers {
    pub serving: Arc<Serving>,
    pub tables: Arc<Tables>,
    pub rules: Rules,
    /// None if configs' writes are not ours to see.
    pub configs: Option<ConfigWebhook>,
    pub metrics: Arc<Metrics>,
}

/// The path of an endpoint, as the API server is told.
pub fn path(token: &str, endpoint: Endpoint) -> String {
    match endpoint {
        Endpoint::Admit => format!("/{token}/admit"),
        Endpoint::Configs => format!("/{token}/configs"),
    }
}

pub fn router(handlers: Arc<Handlers>) -> Router {
    let questions = Router::new()
        .route(&path("{token}", Endpoint::Admit), post(admit))
        .route(&path("{token}", Endpoint::Configs), post(admit_config))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(from_fn(limit_time))
        .layer(from_fn_with_state(Arc::clone(&handlers), measure));
    Router::new().route("/readyz", get(ready)).layer(from_fn(limit_time)).merge(questions).with_state(handlers)
}

/// Only what the API server asks is counted: who guesses a path is nobody.
async fn measure(State(handlers): State<Arc<Handlers>>, request: HttpRequest, next: Next) -> Response {
    let start = Instant::now();
    let response = next.run(request).await;
    if response.status() != StatusCode::NOT_FOUND {
        handlers.metrics.asked(response.status().is_success(), start.elapsed());
    }
    response
}

async fn limit_time(request: HttpRequest, next: Next) -> Response {
    let answer = timeout(REQUEST_LIMIT, next.run(request)).await;
    answer.unwrap_or_else(|_| (StatusCode::GATEWAY_TIMEOUT, "the answer took too long: ask again").into_response())
}

/// A replica that cannot answer yet is not asked.
async fn ready(State(handlers): State<Arc<Handlers>>) -> (StatusCode, &'static str) {
    if handlers.tables.is_complete() {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the pin tables were not all read yet")
    }
}

/// Why a question is not answered.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    /// Whoever calls a path that was not given out learns nothing.
    #[error("there is nothing here")]
    UnknownPath,
    #[error(transparent)]
    Unreadable(#[from] ReviewError),
    #[error(transparent)]
    NotListed(#[from] NotListed),
}

impl IntoResponse for Refusal {
    /// An error leaves the decision to the webhook's failurePolicy: a pinned pod waits, everything else goes through.
    fn into_response(self) -> Response {
        let status = match &self {
            Self::UnknownPath => StatusCode::NOT_FOUND,
            Self::Unreadable(_) => StatusCode::BAD_REQUEST,
            Self::NotListed(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        if !matches!(self, Self::UnknownPath) {
            tracing::warn!(error = %self, "a request is refused");
        }
        (status, self.to_string()).into_response()
    }
}

type Answer = Result<Json<Value>, Refusal>;

async fn admit(State(handlers): State<Arc<Handlers>>, Path(token): Path<String>, body: Bytes) -> Answer {
    let request = handlers.read(Endpoint::Admit, &token, &body)?;
    let table = handlers.tables.of(&request.namespace)?;
    let patch = handlers.rules.changes(&request, table.as_deref());
    let Request { uid, namespace, name, resource, .. } = &request;
    tracing::debug!(uid, namespace, name, resource = resource.plural, changes = patch.len(), "admitted");
    Ok(Json(review::allow(uid, &patch)))
}

async fn admit_config(State(handlers): State<Arc<Handlers>>, Path(token): Path<String>, body: Bytes) -> Answer {
    let request = handlers.read(Endpoint::Configs, &token, &body)?;
    if let Some(webhook) = &handlers.configs {
        webhook.admit(&request).await;
    }
    Ok(Json(review::allow(&request.uid, &[])))
}

impl Handlers {
    fn read(&self, endpoint: Endpoint, token: &str, body: &[u8]) -> Result<Request, Refusal> {
        if self.serving.is_token(endpoint, token) { Ok(review::read(body)?) } else { Err(Refusal::UnknownPath) }
    }
}

pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("cannot listen for the API server on {address}"))
}

/// Serves until `stop`, and then until what was asked is answered.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    serving: Arc<Serving>,
    process: Process,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let acceptor = TlsAcceptor::from(Arc::new(tls(serving)?));
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let connections = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let (stream, place) = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = accept(&listener, &places) => accepted?,
        };
        process.spawn(connection(acceptor.clone(), stream, router.clone(), connections.watcher(), place));
    }
    drop(listener);
    if timeout(CLOSE_LIMIT, connections.shutdown()).await.is_err() {
        tracing::warn!("some requests were not answered before the end");
    }
    Ok(())
}

fn tls(serving: Arc<Serving>) -> Result<ServerConfig> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .context("TLS 1.3 is not available")?
        .with_no_client_auth()
        .with_cert_resolver(serving);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.context("no connection can be accepted any more")?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Ok((stream, place)),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Errors of a connection are the caller's to notice; here they are of interest only when something is looked for.
async fn connection(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    router: Router,
    watcher: Watcher,
    _place: OwnedSemaphorePermit,
) {
    let stream = match timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => return tracing::debug!("a TLS handshake took too long"),
    };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_LIMIT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = watcher.watch(served).await {
        tracing::debug!(%error, "a connection ended");
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request as HttpRequest;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;
    use tower::ServiceExt;

    use super::super::certificates::Identity;
    use super::super::fixtures::{self, DEPLOYMENT_CREATE, NAMESPACE, POD_CREATE};
    use super::*;
    use crate::environment::Clock;
    use crate::kinds;

    const HOST: &str = "lockstep-webhook.lockstep-system.svc";

    fn identity() -> Identity {
        Identity::issued(HOST, None, Clock::system().now()).unwrap()
    }

    fn handlers(identity: &Identity, tables: Tables) -> Arc<Handlers> {
        let serving = Arc::new(Serving::default());
        serving.set(identity).unwrap();
        let rules = Rules { kinds: kinds::built_in(), operator: String::new() };
        let metrics = Arc::new(Metrics::default());
        Arc::new(Handlers { serving, tables: Arc::new(tables), rules, configs: None, metrics })
    }

    fn listed() -> Tables {
        Tables::listed([(NAMESPACE, fixtures::table())])
    }

    async fn answer(router: Router, request: HttpRequest<Body>) -> (StatusCode, String) {
        let response = router.oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), MAX_BODY_BYTES).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn posted(tables: Tables, endpoint: Endpoint, body: impl Into<Body>) -> (StatusCode, String) {
        let identity = identity();
        let request = HttpRequest::post(path(identity.token(endpoint), endpoint)).body(body.into()).unwrap();
        answer(router(handlers(&identity, tables)), request).await
    }

    fn patch(body: &str) -> Value {
        let review: Value = serde_json::from_str(body).unwrap();
        let bytes: k8s_openapi::ByteString = serde_json::from_value(review["response"]["patch"].clone()).unwrap();
        serde_json::from_slice(&bytes.0).unwrap()
    }

    #[tokio::test]
    async fn pods_and_workloads_are_answered_with_a_patch() {
        let (status, body) = posted(listed(), Endpoint::Admit, POD_CREATE).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(patch(&body)[0]["value"], "app-1");
        let (status, body) = posted(listed(), Endpoint::Admit, DEPLOYMENT_CREATE).await;
        assert_eq!(status, StatusCode::OK);
        let expected = json!({
            "op": "add",
            "path": "/spec/template/metadata/annotations/lockstep.dev~1pins",
            "value": "configmap/app=app-2,secret/db=db-2",
        });
        assert_eq!(patch(&body).as_array().unwrap().last(), Some(&expected));
    }

    #[tokio::test]
    async fn a_namespace_without_a_table_is_let_through() {
        let (status, body) = posted(Tables::listed([]), Endpoint::Admit, DEPLOYMENT_CREATE).await;
        assert_eq!(status, StatusCode::OK);
        assert!(body.contains(r#""allowed":true"#) && !body.contains("patch"), "{body}");
    }

    #[tokio::test]
    async fn before_the_tables_are_known_the_failure_policy_decides() {
        let (status, body) = posted(Tables::new(&[None]), Endpoint::Admit, POD_CREATE).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(body.contains("pin tables"), "{body}");
    }

    #[tokio::test]
    async fn configs_that_are_not_ours_to_see_go_through() {
        let (status, body) = posted(listed(), Endpoint::Configs, fixtures::CONFIG_MAP_UPDATE).await;
        assert_eq!(status, StatusCode::OK);
        assert!(body.contains(r#""allowed":true"#), "{body}");
    }

    #[tokio::test]
    async fn who_does_not_know_the_path_learns_nothing() {
        let router = router(handlers(&identity(), listed()));
        let guess =
            HttpRequest::post(path("0".repeat(32).as_str(), Endpoint::Admit)).body(Body::from(POD_CREATE)).unwrap();
        assert_eq!(answer(router, guess).await, (StatusCode::NOT_FOUND, "there is nothing here".to_owned()));
    }

    #[tokio::test]
    async fn a_body_that_is_too_large_or_no_review_is_refused() {
        let (status, _) = posted(listed(), Endpoint::Admit, vec![b' '; MAX_BODY_BYTES + 1]).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
        let (status, body) = posted(listed(), Endpoint::Admit, "hello").await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(body.contains("AdmissionReview"), "{body}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_comes_is_not_waited_for() {
        let never = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        let (status, _) = posted(listed(), Endpoint::Admit, never).await;
        assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    }

    #[tokio::test]
    async fn answers_and_refusals_are_counted_and_guesses_are_not() {
        let identity = identity();
        let handlers = handlers(&identity, listed());
        let token = identity.token(Endpoint::Admit);
        for (token, body) in [(token, POD_CREATE), (token, "hello"), ("guess", POD_CREATE)] {
            let request = HttpRequest::post(path(token, Endpoint::Admit)).body(Body::from(body)).unwrap();
            answer(router(Arc::clone(&handlers)), request).await;
        }
        let text = handlers.metrics.text();
        for line in [
            "lockstep_admission_requests_total 2",
            "lockstep_admission_refusals_total 1",
            "lockstep_admission_duration_seconds_count 2",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }

    #[tokio::test]
    async fn ready_is_who_can_answer() {
        let get = || HttpRequest::get("/readyz").body(Body::empty()).unwrap();
        let (waiting, ready) = (handlers(&identity(), Tables::new(&[None])), handlers(&identity(), listed()));
        assert_eq!(answer(router(waiting), get()).await.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answer(router(ready), get()).await.0, StatusCode::OK);
    }

    /// A server on a port of its own, and how to stop it.
    async fn started(
        handlers: &Arc<Handlers>,
    ) -> (SocketAddr, oneshot::Sender<()>, tokio::task::JoinHandle<Result<()>>) {
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let serving = Arc::clone(&handlers.serving);
        let stopped = async { drop(stopped.await) };
        (
            address,
            stop,
            Process::system().spawn(serve(listener, router(Arc::clone(handlers)), serving, Process::system(), stopped)),
        )
    }

    /// Asks over TLS, trusting only these authorities.
    async fn ask(address: SocketAddr, identity: &Identity) -> Result<String> {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, ServerName};
        let mut roots = rustls::RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(identity.authorities.as_bytes()) {
            roots.add(authority?)?;
        }
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(address).await?;
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let mut stream = connector.connect(ServerName::try_from(HOST)?, stream).await?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn a_new_certificate_is_served_without_a_restart() {
        let (first, second) = (identity(), identity());
        let handlers = handlers(&first, listed());
        let (address, stop, server) = started(&handlers).await;
        assert!(ask(address, &first).await.unwrap().starts_with("HTTP/1.1 200"));
        assert!(ask(address, &second).await.is_err());
        handlers.serving.set(&second).unwrap();
        assert!(ask(address, &second).await.unwrap().starts_with("HTTP/1.1 200"));
        drop(stop);
        server.await.unwrap().unwrap();
        assert!(ask(address, &second).await.is_err(), "it has stopped");
    }
}
