//! The one place that makes a client of the API server.

use anyhow::{Context, Result};
use kube::Client;

/// Connects as kubectl would: by KUBECONFIG, the user's kubeconfig, or the pod's service account.
pub async fn connect() -> Result<Client> {
    // Whoever comes first decides, and all decide the same.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    Client::try_default().await.context("no cluster: set KUBECONFIG, or run in a pod with a service account")
}
