//! The one place that makes a client of the API server.

use anyhow::{Context, Result};
use http::HeaderValue;
use http::header::USER_AGENT;
use kube::{Client, Config};

/// How we show up in the API server's audit log.
const OURS: HeaderValue = HeaderValue::from_static(concat!("lockstep/", env!("CARGO_PKG_VERSION")));

/// Connects as kubectl would: by KUBECONFIG, the user's kubeconfig, or the pod's service account.
pub async fn connect() -> Result<Client> {
    // Whoever comes first decides, and all decide the same.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut config =
        Config::infer().await.context("no cluster: set KUBECONFIG, or run in a pod with a service account")?;
    config.headers.push((USER_AGENT, OURS));
    Client::try_from(config).context("the kubeconfig or service account cannot be used")
}
