//! `make demo`: the story of a changed config, told in the terminal while it happens on a real cluster.

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command;
use crate::deploy;
use crate::home::{Home, repository};
use crate::progress::note;
use crate::stage::Stage;

const NAMESPACE: &str = "demo";
const PINS: &str = r"jsonpath={.spec.template.metadata.annotations.lockstep\.dev/pins}";

pub(crate) fn run(home: &Home) -> Result<()> {
    let stage = Stage::enter(home)?;
    deploy::install(&stage)?;
    let demo = Demo { stage: &stage };
    command::output(demo.plain_kubectl().args(["delete", "namespace", NAMESPACE, "--ignore-not-found"]))?;
    command::output(demo.plain_kubectl().args(["create", "namespace", NAMESPACE]))?;
    demo.tell()?;
    stage.tell_how_to_look_around(&format!("kubectl --namespace {NAMESPACE} get pods"));
    Ok(())
}

struct ShopPod {
    name: String,
    is_ready: bool,
}

struct Demo<'a> {
    stage: &'a Stage,
}

impl Demo<'_> {
    fn tell(&self) -> Result<()> {
        act("A shop with three pods. Its price comes from a ConfigMap that opted in with a label");
        let shop = repository().join("examples/shop.yaml");
        self.kubectl(&["apply", "-f", &shop.display().to_string()])?;
        self.wait_for_version("1.0.0")?;
        self.kubectl(&["rollout", "status", "deployment/shop", "--timeout=120s"])?;
        self.show_prices()?;

        act("The price changes. The change becomes a version, and the shop rolls to it");
        self.kubectl(&["patch", "configmap", "shop", "-p", r#"{"data": {"PRICE": "12"}}"#])?;
        self.wait_for_version("r2")?;
        self.kubectl(&["rollout", "status", "deployment/shop", "--timeout=120s"])?;
        self.show_prices()?;

        act(
            "A bad change: new pods never get ready. In the middle of it an old pod is lost, as happens every day: it comes back with its old price",
        );
        self.kubectl(&["patch", "configmap", "shop", "-p", r#"{"data": {"PRICE": "99", "BEHAVIOR": "never-ready"}}"#])?;
        self.wait_for_version("r3")?;
        let pods = self.pods()?;
        let old = pods.iter().find(|pod| pod.is_ready).context("the shop has no ready pod")?;
        self.kubectl(&["delete", "pod", &old.name, "--wait"])?;
        self.wait_for_three_ready_pods()?;
        self.show_prices()?;

        act("Back: `rollout undo` brings the old config with the old template");
        self.kubectl(&["rollout", "undo", "deployment/shop"])?;
        self.kubectl(&["rollout", "status", "deployment/shop", "--timeout=120s"])?;
        self.show_prices()?;

        act("What Lockstep knows: the config, its versions, and the pins of the shop. Its manifest was never changed");
        self.kubectl(&["get", "versionedconfigs"])?;
        self.kubectl(&["get", "configmaps", "--selector", "lockstep.dev/version-of"])?;
        let pins = self.capture(&["get", "deployment", "shop", "--output", PINS])?;
        note(&format!("    the shop's template is pinned: {pins}"));
        Ok(())
    }

    fn wait_for_version(&self, version: &str) -> Result<()> {
        let condition = format!("--for=jsonpath={{.status.current.version}}={version}");
        // The object itself comes a moment after its config.
        self.capture(&["wait", "--for=create", "versionedconfig/configmap-shop", "--timeout=60s"])?;
        self.kubectl(&["wait", &condition, "versionedconfig/configmap-shop", "--timeout=60s"])
    }

    fn wait_for_three_ready_pods(&self) -> Result<()> {
        self.capture(&["wait", "--for=jsonpath={.status.readyReplicas}=3", "deployment/shop", "--timeout=60s"])
            .map(drop)
    }

    /// What the pods themselves say, asked over HTTP through the API server.
    fn show_prices(&self) -> Result<()> {
        for pod in self.pods()? {
            let readiness = if pod.is_ready { "" } else { ", not ready: it gets no customers" };
            note(&format!("    {} sells at {}{readiness}", pod.name, self.price(&pod)?));
        }
        Ok(())
    }

    fn price(&self, pod: &ShopPod) -> Result<String> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}:8080/proxy/config", pod.name);
        let answer = command::output(self.plain_kubectl().args(["get", "--raw", &path]))?;
        let report: Value = serde_json::from_str(&answer)?;
        Ok(report["loaded"]["env"]["PRICE"].as_str().unwrap_or("no price").to_owned())
    }

    /// The shop's pods that run and are not about to go.
    fn pods(&self) -> Result<Vec<ShopPod>> {
        let list: Value =
            serde_json::from_str(&self.capture(&["get", "pods", "--selector", "app=shop", "--output", "json"])?)?;
        let pod = |pod: &Value| {
            let container = &pod["status"]["containerStatuses"][0];
            let runs = container["state"]["running"].is_object() && pod["metadata"]["deletionTimestamp"].is_null();
            let name = pod["metadata"]["name"].as_str().filter(|_| runs)?.to_owned();
            Some(ShopPod { name, is_ready: container["ready"] == true })
        };
        Ok(list["items"].as_array().into_iter().flatten().filter_map(pod).collect())
    }

    fn plain_kubectl(&self) -> Command {
        self.stage.command("kubectl")
    }

    fn capture(&self, arguments: &[&str]) -> Result<String> {
        command::output(self.plain_kubectl().args(arguments).args(["--namespace", NAMESPACE]))
    }

    /// Shows the command, runs it and shows its answer.
    fn kubectl(&self, arguments: &[&str]) -> Result<()> {
        note(&format!("  $ kubectl {}", arguments.join(" ")));
        let mut command = self.plain_kubectl();
        command::run(command.args(arguments).args(["--namespace", NAMESPACE]).stdout(Stdio::from(io::stderr())))
    }
}

/// Announces an act; on a terminal, waits for the viewer.
fn act(title: &str) {
    note(&format!("\n── {title}"));
    if io::stdin().is_terminal() && io::stderr().is_terminal() {
        let _ = write!(io::stderr(), "   (Enter to go on) ").and_then(|()| io::stderr().flush());
        let _ = io::stdin().lock().read_line(&mut String::new());
    }
}
