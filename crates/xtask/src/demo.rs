//! `make demo`: the problem that Lockstep solves, shown on a real cluster.

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::command;
use crate::home::{Home, repository};
use crate::progress::note;
use crate::stage::Stage;

const NAMESPACE: &str = "demo";

pub(crate) fn run(home: &Home) -> Result<()> {
    let stage = Stage::enter(home)?;
    let demo = Demo { stage: &stage };
    command::output(demo.plain_kubectl().args(["delete", "namespace", NAMESPACE, "--ignore-not-found"]))?;
    command::output(demo.plain_kubectl().args(["create", "namespace", NAMESPACE]))?;
    demo.tell()?;
    stage.tell_how_to_look_around(&format!("kubectl --namespace {NAMESPACE} get pods"));
    Ok(())
}

struct Demo<'a> {
    stage: &'a Stage,
}

impl Demo<'_> {
    fn tell(&self) -> Result<()> {
        act("A shop with three pods, configured by a ConfigMap");
        let shop = repository().join("examples/shop.yaml");
        self.kubectl(&["apply", "-f", &shop.display().to_string()])?;
        self.kubectl(&["rollout", "status", "deployment/shop", "--timeout=120s"])?;
        self.show_prices()?;

        act("Somebody edits the ConfigMap. Kubernetes does nothing: no pod takes the change");
        self.kubectl(&["patch", "configmap", "shop", "-p", r#"{"data": {"PRICE": "99"}}"#])?;
        self.show_prices()?;

        act(
            "One pod is lost and recreated, as happens every day. Now the shop has two prices, and nobody released anything",
        );
        let pods = self.capture(&["get", "pods", "--selector", "app=shop", "--output", "name"])?;
        let pod = pods.lines().next().context("the shop has no pods")?;
        self.kubectl(&["delete", pod, "--wait"])?;
        self.kubectl(&["rollout", "status", "deployment/shop", "--timeout=120s"])?;
        self.show_prices()
    }

    /// What the pods themselves say, asked over HTTP through the API server.
    fn show_prices(&self) -> Result<()> {
        let pods = self.capture(&[
            "get",
            "pods",
            "--selector",
            "app=shop",
            "--field-selector",
            "status.phase=Running",
            "--output",
            "name",
        ])?;
        for pod in pods.lines().filter_map(|line| line.strip_prefix("pod/")) {
            let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8080/proxy/config");
            let answer = command::output(self.plain_kubectl().args(["get", "--raw", &path]))?;
            let report: serde_json::Value = serde_json::from_str(&answer)?;
            note(&format!("    {pod} sells at {}", report["loaded"]["env"]["PRICE"]));
        }
        Ok(())
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
