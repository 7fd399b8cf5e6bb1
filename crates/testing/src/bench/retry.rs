//! Sends a request again when the connection or the API server failed, for a run takes long and most such failures are short.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::{sleep, timeout};

/// How often a request is sent at most: with the waits in between, an outage may take some 20 seconds.
const ATTEMPTS: u32 = 10;
/// Before a request is sent for the second time. Each further wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// How long the API server has for one answer. The longest is a list of thousands of objects.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends requests, and counts how many it sent again.
#[derive(Default)]
pub(crate) struct Retries(Cell<usize>);

impl Retries {
    /// For requests that may be carried out twice.
    pub(crate) async fn send<T>(&self, what: &str, mut request: impl AsyncFnMut() -> kube::Result<T>) -> Result<T> {
        let mut wait = FIRST_WAIT;
        for _ in 1..ATTEMPTS {
            match attempt(&mut request).await {
                Err(error) if is_transient(&error) => eprintln!("… {what}: {error}; again in {wait:?}"),
                done => return done.with_context(|| format!("cannot {what}")),
            }
            sleep(wait).await;
            self.0.update(|count| count + 1);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        attempt(&mut request).await.with_context(|| format!("cannot {what}, tried {ATTEMPTS} times"))
    }

    /// What exists already was created by an attempt whose answer was lost; but for the first attempt it is somebody else's.
    pub(crate) async fn create<T>(&self, what: &str, mut request: impl AsyncFnMut() -> kube::Result<T>) -> Result<()> {
        let mut is_first = true;
        self.send(what, async || {
            let answer = request().await;
            match answer {
                Err(kube::Error::Api(status)) if status.is_already_exists() && !is_first => Ok(()),
                other => {
                    is_first = false;
                    other.map(drop)
                }
            }
        })
        .await
    }

    /// What is not found is gone, whoever deleted it.
    pub(crate) async fn delete<T>(&self, what: &str, mut request: impl AsyncFnMut() -> kube::Result<T>) -> Result<()> {
        self.send(what, async || match request().await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            other => other.map(drop),
        })
        .await
    }

    /// What was measured, and how many requests had to be sent again for it.
    pub(crate) async fn count<T>(&self, measure: impl Future<Output = Result<T>>) -> Result<(T, usize)> {
        let before = self.0.get();
        let measured = measure.await?;
        Ok((measured, self.0.get() - before))
    }
}

async fn attempt<T>(request: &mut impl AsyncFnMut() -> kube::Result<T>) -> kube::Result<T> {
    timeout(PATIENCE, request()).await.unwrap_or_else(|late| Err(kube::Error::Service(late.into())))
}

/// Whether the same request may succeed a little later.
fn is_transient(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 408 | 429 | 500..),
        // A connection that was refused, reset or closed, and an answer that broke off or came too late.
        kube::Error::HyperError(_) | kube::Error::Service(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use anyhow::bail;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::Status;
    use kube::{Api, Client, Config};
    use tokio::time::Instant;

    use super::*;

    fn closed() -> kube::Error {
        kube::Error::Service("connection closed before message completed".into())
    }

    fn answer(code: u16, reason: &str) -> kube::Error {
        kube::Error::Api(Status::failure("no", reason).with_code(code).boxed())
    }

    fn already_exists() -> kube::Error {
        answer(409, "AlreadyExists")
    }

    /// A request that fails in these ways, one after the other, and then succeeds.
    fn failing(errors: impl IntoIterator<Item = kube::Error>) -> impl AsyncFnMut() -> kube::Result<&'static str> {
        let mut errors = errors.into_iter().collect::<Vec<_>>().into_iter();
        async move || errors.next().map_or(Ok("done"), Err)
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_connection_costs_a_wait_and_is_counted() {
        let retries = Retries::default();
        let start = Instant::now();
        assert_eq!(retries.send("ask", failing([closed(), closed()])).await.unwrap(), "done");
        assert_eq!(start.elapsed(), FIRST_WAIT * 3);
        assert_eq!(retries.0.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_ends_with_what_was_asked_and_why_it_failed() {
        let retries = Retries::default();
        let start = Instant::now();
        let mut sent = 0;
        let outcome = retries.send::<()>("list pods", async || {
            sent += 1;
            Err(closed())
        });
        let error = format!("{:#}", outcome.await.unwrap_err());
        assert!(error.contains("cannot list pods, tried 10 times") && error.contains("connection closed"), "{error}");
        assert_eq!(sent, ATTEMPTS);
        // 0.1, 0.2, 0.4, 0.8, 1.6 and 3.2 seconds, then the longest wait.
        assert_eq!(start.elapsed(), Duration::from_millis(6300) + LONGEST_WAIT * 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_final() {
        let retries = Retries::default();
        let error = retries.send("ask", failing([answer(403, "Forbidden")])).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot ask");
        assert_eq!(retries.0.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_come_is_asked_for_again() {
        let retries = Retries::default();
        let start = Instant::now();
        let mut sent = 0;
        let outcome = retries.send("ask", async || {
            sent += 1;
            if sent == 1 { pending().await } else { Ok(()) }
        });
        outcome.await.unwrap();
        assert_eq!(start.elapsed(), PATIENCE + FIRST_WAIT);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_lost_attempt_created_is_created() {
        let retries = Retries::default();
        retries.create("create it", failing([closed(), already_exists()])).await.unwrap();
        assert_eq!(retries.0.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_somebody_else_created_is_in_the_way() {
        assert!(Retries::default().create("create it", failing([already_exists()])).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_there_is_deleted() {
        Retries::default().delete("delete it", failing([answer(404, "NotFound")])).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_retries_of_a_measurement_are_counted_for_it() {
        let retries = Retries::default();
        retries.send("prepare", failing([closed()])).await.unwrap();
        let measure = retries.send("measure", failing([closed(), closed()]));
        assert_eq!(retries.count(measure).await.unwrap(), ("done", 2));
        assert!(retries.count::<()>(async { bail!("failed") }).await.is_err());
    }

    #[test]
    fn only_what_may_pass_is_transient() {
        for code in [408, 429, 500, 502, 503, 504] {
            assert!(is_transient(&answer(code, "")), "{code}");
        }
        for code in [400, 403, 404, 409, 410, 422] {
            assert!(!is_transient(&answer(code, "")), "{code}");
        }
    }

    /// With real time: a paused clock would not wait for the network.
    #[tokio::test]
    async fn a_server_that_closes_the_connection_is_asked_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let body = r#"{"metadata": {"name": "app"}}"#;
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            for answer in ["", &answer] {
                let (mut connection, _) = listener.accept().unwrap();
                let _ = connection.read(&mut [0; 4096]).unwrap();
                connection.write_all(answer.as_bytes()).unwrap();
            }
        });
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::try_from(Config::new(format!("http://{address}").parse().unwrap())).unwrap();
        let configs: Api<ConfigMap> = Api::namespaced(client, "default");
        let retries = Retries::default();
        let found = retries.send("get app", async || configs.get("app").await).await.unwrap();
        assert_eq!(found.metadata.name.as_deref(), Some("app"));
        assert_eq!(retries.0.get(), 1);
        server.join().unwrap();
    }
}
