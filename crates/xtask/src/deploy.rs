//! `make deploy`: Lockstep from this checkout, installed with its chart, or with the plain manifests that are made from it.

use anyhow::Result;

use crate::cargo::Profile;
use crate::command;
use crate::home::{Home, repository};
use crate::progress::Step;
use crate::stage::Stage;
use crate::tools::Tool;

const NAMESPACE: &str = "lockstep-system";

/// How to install.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Installer {
    Helm,
    /// Needs nothing but kubectl.
    Manifests,
}

pub(crate) fn run(home: &Home) -> Result<()> {
    let stage = Stage::enter(home, &[Tool::CoreDns, Tool::Helm], Profile::Local)?;
    install(&stage, Installer::Helm)?;
    stage.tell_how_to_look_around(&format!("kubectl --namespace {NAMESPACE} get pods"));
    Ok(())
}

/// Installs or upgrades, and waits until the operator is ready with the image that was just loaded.
pub(crate) fn install(stage: &Stage, installer: Installer) -> Result<()> {
    let step = Step::start("install Lockstep");
    match installer {
        Installer::Helm => with_helm(stage)?,
        Installer::Manifests => with_manifests(stage)?,
    }
    // The image's name is always the same: only a restart takes the new one.
    let rollout = |action: &[&str]| {
        let mut kubectl = stage.command("kubectl");
        command::output(kubectl.args(["--namespace", NAMESPACE, "rollout"]).args(action).arg("deployment/lockstep"))
    };
    rollout(&["restart"])?;
    rollout(&["status", "--timeout=120s"])?;
    step.done(&format!("in the namespace {NAMESPACE}"));
    Ok(())
}

fn with_helm(stage: &Stage) -> Result<()> {
    let mut helm = stage.command("helm");
    helm.args(["upgrade", "--install", "lockstep"]).arg(repository().join("charts/lockstep"));
    // Without new values Helm would go on with those of the installation that it finds.
    helm.args(["--namespace", NAMESPACE, "--create-namespace", "--reset-values"]);
    // What somebody changed by hand, as `kubectl scale` does, is changed back; what the manifests installed becomes Helm's.
    command::output(helm.args(["--force-conflicts", "--take-ownership"]))?;
    restrict(stage)
}

fn with_manifests(stage: &Stage) -> Result<()> {
    let file = |name: &str| repository().join("deploy").join(name);
    let mut kubectl = stage.command("kubectl");
    kubectl.args(["apply", "--server-side", "--force-conflicts"]);
    command::output(kubectl.arg("-f").arg(file("crds.yaml")).arg("-f").arg(file("lockstep.yaml"))).map(drop)
}

/// Has the API server enforce what the chart promises of its pods. Those made from now on, that is: before the restart.
fn restrict(stage: &Stage) -> Result<()> {
    let level = "pod-security.kubernetes.io/enforce=restricted";
    command::output(stage.command("kubectl").args(["label", "namespace", NAMESPACE, "--overwrite", level])).map(drop)
}
