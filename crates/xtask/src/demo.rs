//! `make demo`: the story of a changed config, told in the terminal while it happens on a real cluster.

use std::io::{self, BufRead, IsTerminal, Write};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::cargo::Profile;
use crate::command;
use crate::deploy::{self, Installer};
use crate::home::{Home, repository};
use crate::progress::note;
use crate::stage::Stage;

const NAMESPACE: &str = "demo";
/// How long one thing may take before the story is given up.
const PATIENCE: Duration = Duration::from_secs(120);
const PINS: &str = r"jsonpath={.spec.template.metadata.annotations.lockstep\.dev/pins}";

pub(crate) fn run(home: &Home) -> Result<()> {
    let stage = Stage::enter(home, &[], Profile::Local)?;
    deploy::install(&stage, Installer::Manifests)?;
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
        self.open()?;
        self.good_change()?;
        self.bad_change()?;
        self.canary()?;
        self.undo()?;
        self.sum_up()
    }

    fn open(&self) -> Result<()> {
        act("A shop of two services. Their price comes from a ConfigMap that opted in with a label");
        let shop = repository().join("examples/shop.yaml");
        self.kubectl(&["apply", "-f", &shop.display().to_string()])?;
        self.capture(&["wait", "--for=create", "versionedconfig/configmap-shop", "--timeout=60s"])?;
        let adopted = "--for=jsonpath={.status.current.version}=1.0.0";
        self.kubectl(&["wait", adopted, "versionedconfig/configmap-shop", "--timeout=60s"])?;
        for service in ["shop", "checkout"] {
            self.kubectl(&["rollout", "status", &format!("deployment/{service}"), "--timeout=120s"])?;
        }
        self.show_prices()
    }

    fn good_change(&self) -> Result<()> {
        act("The price changes. The change becomes a version, and a release brings it to both services");
        self.change(r#"{"data": {"PRICE": "12"}}"#)?;
        self.follow(1, "Succeeded")?;
        self.show_prices()
    }

    fn bad_change(&self) -> Result<()> {
        act("A bad change: with it, pods crash. Nobody does anything; watch the release");
        self.change(r#"{"data": {"PRICE": "-1", "BEHAVIOR": "crash"}}"#)?;
        self.follow(2, "RolledBack")?;
        self.say_why(2)?;
        self.show_prices()?;
        note("    The version is held: applying it again, as GitOps tools do, changes nothing.");
        self.kubectl(&["get", "versionedconfigs"])
    }

    fn canary(&self) -> Result<()> {
        act(
            "A careful change: one pod of each service first. In the middle of it all old pods of the shop are lost, as a drained node loses them: they come back with their old price",
        );
        self.kubectl(&["annotate", "configmap", "shop", "lockstep.dev/policy=careful"])?;
        self.change(r#"{"data": {"PRICE": "14", "BEHAVIOR": "healthy"}}"#)?;
        self.wait_for_phase(3, "Baking")?;
        self.show_prices()?;
        let all = self.pods()?;
        let lost: Vec<&str> = all.iter().map(|pod| pod.name.as_str()).filter(|name| name.starts_with("shop")).collect();
        self.kubectl(&[&["delete", "pod", "--wait=false"], lost.as_slice()].concat())?;
        self.wait_for_pods(&lost, all.len())?;
        self.show_prices()?;
        self.follow(3, "Succeeded")?;
        self.show_prices()
    }

    fn undo(&self) -> Result<()> {
        act("Second thoughts: `rollout undo` brings the old config with the old template");
        self.kubectl(&["rollout", "undo", "deployment/shop"])?;
        self.kubectl(&["rollout", "status", "deployment/shop", "--timeout=120s"])?;
        self.show_prices()
    }

    fn sum_up(&self) -> Result<()> {
        act("What is left: the releases, the versions that are in use or kept, and manifests that were never changed");
        self.kubectl(&["get", "releases"])?;
        self.kubectl(&["get", "configmaps", "--selector", "lockstep.dev/version-of"])?;
        let pins = self.capture(&["get", "deployment", "shop", "--output", PINS])?;
        note(&format!("    the shop's template says `name: shop`, and is pinned: {pins}"));
        note("\nThings to try:");
        for line in [
            "ln -sf \"$PWD\"/target/*/debug/lockstep /usr/local/bin/lockstep    # the command, which was built just now",
            "lockstep -n demo status shop                         # what is current, what is held, who runs what",
            "lockstep -n demo history shop                        # what became of each change",
            "kubectl -n demo edit configmap shop                  # a change of your own; BEHAVIOR: never-ready is bad, too",
            "lockstep -n demo watch shop                          # how it goes",
            "lockstep -n demo rollback shop --to 1.0.0            # until the config changes again",
            "The quick start of README.md goes on from here.",
        ] {
            note(&format!("  {line}"));
        }
        Ok(())
    }

    fn change(&self, patch: &str) -> Result<()> {
        self.kubectl(&["patch", "configmap", "shop", "--patch", patch])
    }

    /// Shows each phase of a release when it comes, until it ends as it should.
    fn follow(&self, number: u32, end: &str) -> Result<()> {
        let name = format!("release/configmap-shop-{number}");
        self.capture(&["wait", "--for=create", &name, "--timeout=60s"])?;
        let (start, mut last) = (Instant::now(), String::new());
        loop {
            let shown = self.capture(&[
                "get",
                &name,
                "--output",
                r#"jsonpath={.status.phase}{"\t"}{.status.summary}{"\t"}{.status.reason}"#,
            ])?;
            let mut parts = shown.splitn(3, '\t');
            let (phase, moves, reason) =
                (parts.next().unwrap_or_default(), parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            if phase != last && !phase.is_empty() {
                note(&format!("    {:>4.1} s  {moves}  {phase}: {reason}", start.elapsed().as_secs_f64()));
                phase.clone_into(&mut last);
            }
            if phase == end {
                return Ok(());
            }
            ensure!(start.elapsed() < PATIENCE, "{name} is {phase} and not {end}: {reason}");
            sleep(Duration::from_millis(200));
        }
    }

    fn say_why(&self, number: u32) -> Result<()> {
        let name = format!("configmap-shop-{number}");
        let consumers = r#"jsonpath={range .status.consumers[*]}    {.kind} {.name}: {.state}{"\n"}{end}"#;
        let shown = self.capture(&["get", "release", &name, "--output", consumers])?;
        note(shown.trim_end());
        Ok(())
    }

    fn wait_for_phase(&self, number: u32, phase: &str) -> Result<()> {
        let name = format!("release/configmap-shop-{number}");
        self.capture(&["wait", "--for=create", &name, "--timeout=60s"])?;
        self.kubectl(&["wait", &format!("--for=jsonpath={{.status.phase}}={phase}"), &name, "--timeout=90s"])
    }

    /// Until other pods are there in the place of those that were lost.
    fn wait_for_pods(&self, lost: &[&str], count: usize) -> Result<()> {
        let start = Instant::now();
        loop {
            let is_back = |pod: &&ShopPod| pod.is_ready && !lost.contains(&pod.name.as_str());
            let back = self.pods()?.iter().filter(is_back).count();
            if back >= count {
                return Ok(());
            }
            ensure!(start.elapsed() < PATIENCE, "only {back} of {count} pods are back");
            sleep(Duration::from_millis(200));
        }
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
            serde_json::from_str(&self.capture(&["get", "pods", "--selector", "part-of=shop", "--output", "json"])?)?;
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
