//! The one place that makes a client of the API server.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// How we show up in the API server's audit log.
const OURS: HeaderValue = HeaderValue::from_static(concat!("lockstep/", env!("CARGO_PKG_VERSION")));

/// How long a person waits for an answer from a cluster that may be gone.
const PATIENCE: Duration = Duration::from_secs(10);

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

fn client(mut config: Config) -> Result<Client> {
    // Whoever comes first decides, and all decide the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    config.headers.push((USER_AGENT, OURS));
    Client::try_from(config).context("the kubeconfig or service account cannot be used")
}
