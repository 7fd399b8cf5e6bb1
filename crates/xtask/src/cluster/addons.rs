//! What runs in the cluster from the start: CoreDNS and the Argo Rollouts controller.

use std::fs;

use anyhow::{Context, Result};

use super::{Cluster, network};
use crate::command;
use crate::home::repository;

const ARGO_NAMESPACE: &str = "argo-rollouts";

pub(super) fn apply(cluster: &Cluster) -> Result<()> {
    let path = repository().join("cluster/manifests/coredns.yaml");
    let coredns = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let coredns = coredns.replace("DNS_SERVICE_ADDRESS", &network::DNS_SERVICE.to_string());
    command::feed(cluster.kubectl().args(["apply", "--server-side", "-f", "-"]), &coredns)?;
    command::output(cluster.kubectl().args(["create", "namespace", ARGO_NAMESPACE]))?;
    let argo = cluster.tools.argo_rollouts("install.yaml");
    let mut apply = cluster.kubectl();
    apply.args(["apply", "--server-side", "--namespace", ARGO_NAMESPACE, "-f"]).arg(argo);
    command::output(&mut apply).map(drop)
}

/// Available: CoreDNS answers queries and the Rollouts controller watches.
pub(super) fn are_ready(cluster: &Cluster) -> bool {
    let condition = r#"jsonpath={.status.conditions[?(@.type=="Available")].status}"#;
    [("kube-system", "coredns"), (ARGO_NAMESPACE, "argo-rollouts")].iter().all(|(namespace, deployment)| {
        let mut get = cluster.kubectl();
        get.args(["get", "deployment", deployment, "--namespace", namespace, "-o", condition]);
        command::output(&mut get).is_ok_and(|status| status.trim() == "True")
    })
}
