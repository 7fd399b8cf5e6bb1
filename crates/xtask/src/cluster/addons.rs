//! What runs in the cluster beside Kubernetes itself, where somebody needs it: CoreDNS and the Argo Rollouts controller.

use std::fs;

use anyhow::{Context, Result};

use super::{Cluster, network};
use crate::command;
use crate::home::{Home, repository};
use crate::image;
use crate::progress::Step;
use crate::tools::Tool;

/// A controller that is installed from a tool's image and a manifest.
struct Addon {
    tool: Tool,
    namespace: &'static str,
    deployment: &'static str,
    apply: fn(&Cluster) -> Result<()>,
}

const ADDONS: [Addon; 2] = [
    Addon { tool: Tool::CoreDns, namespace: "kube-system", deployment: "coredns", apply: apply_coredns },
    Addon {
        tool: Tool::ArgoRollouts,
        namespace: "argo-rollouts",
        deployment: "argo-rollouts",
        apply: apply_argo_rollouts,
    },
];

/// Installs those of the needed ones that are not there, and waits for them.
pub(super) fn ensure(home: &Home, cluster: &Cluster, needed: &[Tool]) -> Result<()> {
    for addon in ADDONS.iter().filter(|addon| needed.contains(&addon.tool) && !addon.is_ready(cluster)) {
        let step = Step::start(format!("start {} in the cluster", addon.tool.title()));
        cluster.load_image(&image::ensure_of_tool(home, &cluster.tools, addon.tool)?)?;
        (addon.apply)(cluster)?;
        cluster.wait_for(addon.tool.title(), |cluster| addon.is_ready(cluster))?;
        step.done("");
    }
    Ok(())
}

impl Addon {
    /// Available: CoreDNS answers queries, the Rollouts controller watches.
    fn is_ready(&self, cluster: &Cluster) -> bool {
        let condition = r#"jsonpath={.status.conditions[?(@.type=="Available")].status}"#;
        let mut get = cluster.kubectl();
        get.args(["get", "deployment", self.deployment, "--namespace", self.namespace, "-o", condition]);
        command::output(&mut get).is_ok_and(|status| status.trim() == "True")
    }
}

fn apply_coredns(cluster: &Cluster) -> Result<()> {
    let path = repository().join("cluster/manifests/coredns.yaml");
    let coredns = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let coredns = coredns.replace("DNS_SERVICE_ADDRESS", &network::DNS_SERVICE.to_string());
    command::feed(cluster.kubectl().args(["apply", "--server-side", "-f", "-"]), &coredns)
}

fn apply_argo_rollouts(cluster: &Cluster) -> Result<()> {
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: argo-rollouts}\n";
    command::feed(cluster.kubectl().args(["apply", "--server-side", "-f", "-"]), namespace)?;
    let mut apply = cluster.kubectl();
    apply.args(["apply", "--server-side", "--namespace", "argo-rollouts", "-f"]);
    command::output(apply.arg(cluster.tools.argo_rollouts("install.yaml"))).map(drop)
}
