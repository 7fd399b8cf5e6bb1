//! The one place that makes a client of the API server.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use http::header::USER_AGENT;
use http::{HeaderValue, Request};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::time::timeout;
use tower::service_fn;

use crate::guards::conflict;
use crate::leader::Term;

/// How we show up in the API server's audit log.
const OURS: HeaderValue = HeaderValue::from_static(concat!("lockstep/", env!("CARGO_PKG_VERSION")));

/// How long a person waits for an answer from a cluster that may be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// The API server itself gives a request up after a minute, and says so: whoever has heard nothing by then never will.
const ANSWER_LIMIT: Duration = Duration::from_secs(65);

/// Connects as kubectl would: by KUBECONFIG, the user's kubeconfig, or the pod's service account.
pub async fn connect() -> Result<Client> {
    let config = Config::infer().await.context("no cluster: set KUBECONFIG, or run in a pod with a service account")?;
    client(config)
}

/// A client for a person, and the address of its cluster.
pub async fn connect_to(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<(Client, String)> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let mut config = match (kubeconfig, context) {
        (Some(path), _) => {
            let read = Kubeconfig::read_from(path)
                .with_context(|| format!("the kubeconfig {} cannot be read", path.display()))?;
            Config::from_custom_kubeconfig(read, &options).await?
        }
        (None, Some(_)) => Config::from_kubeconfig(&options).await?,
        (None, None) => Config::infer().await?,
    };
    config.connect_timeout = Some(PATIENCE);
    let address = config.cluster_url.to_string();
    Ok((client(config)?, address))
}

/// The same client, but no request of it waits for an answer for ever: where a connection is lost without a word, a kernel needs a quarter of
/// an hour to say so, and everything that goes by one pin table would wait for that. A watch is answered when it begins, not when it ends.
pub(crate) fn impatient(client: &Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let client = client.clone();
    let send = move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let answered = timeout(ANSWER_LIMIT, client.send(request)).await;
            answered.unwrap_or_else(|_| Err(kube::Error::Service("the API server does not answer".into())))
        }
    };
    Client::new(service_fn(send), namespace)
}

/// The same client, for as long as we lead: what was begun before the process got no time for a while must not be written after it, when another
/// replica may lead by now. Reading is always allowed.
pub(crate) fn fenced(client: &Client, term: Term) -> Client {
    let namespace = client.default_namespace().to_owned();
    let client = client.clone();
    let send = move |request: Request<Body>| {
        let (client, term) = (client.clone(), term.clone());
        async move {
            if request.method().is_safe() || term.is_running() {
                client.send(request).await
            } else {
                Err(conflict("our term is over, and another replica may lead by now"))
            }
        }
    };
    Client::new(service_fn(send), namespace)
}

fn client(mut config: Config) -> Result<Client> {
    // Whoever comes first decides, and all decide the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    config.headers.push((USER_AGENT, OURS));
    Client::try_from(config).context("the kubeconfig or service account cannot be used")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use http::Response;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_ever_for_an_answer() {
        let silent = service_fn(|_: Request<Body>| pending::<Result<Response<Body>, Infallible>>());
        let client = impatient(&Client::new(silent, "shop"));
        assert_eq!(client.default_namespace(), "shop");
        let asked = Instant::now();
        let answer = Api::<ConfigMap>::default_namespaced(client).get("app").await;
        assert!(answer.unwrap_err().to_string().contains("does not answer"));
        assert!(asked.elapsed() >= ANSWER_LIMIT && asked.elapsed() < ANSWER_LIMIT * 2);
    }
}
