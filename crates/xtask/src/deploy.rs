//! `make deploy`: Lockstep from this checkout, installed with its chart.

use anyhow::Result;

use crate::command;
use crate::home::{Home, repository};
use crate::progress::{Step, note};
use crate::stage::Stage;

const NAMESPACE: &str = "lockstep-system";

pub(crate) fn run(home: &Home) -> Result<()> {
    let stage = Stage::enter(home)?;
    install(&stage)?;
    stage.tell_how_to_look_around(&format!("kubectl --namespace {NAMESPACE} get pods"));
    Ok(())
}

/// Installs or upgrades, and waits until the operator is ready with the image that was just loaded.
pub(crate) fn install(stage: &Stage) -> Result<()> {
    let step = Step::start("install Lockstep with its chart");
    let chart = repository().join("charts/lockstep");
    let mut helm = stage.command("helm");
    helm.args(["upgrade", "--install", "lockstep"]).arg(chart);
    // Without new values Helm would go on with those of the installation that it finds.
    helm.args(["--namespace", NAMESPACE, "--create-namespace", "--reset-values"]);
    // What somebody changed by hand, as `kubectl scale` does, is changed back.
    command::output(helm.arg("--force-conflicts"))?;
    restrict(stage)?;
    // The image's name is always the same: only a restart takes the new one.
    let rollout = |action: &[&str]| {
        let mut kubectl = stage.command("kubectl");
        command::output(kubectl.args(["--namespace", NAMESPACE, "rollout"]).args(action).arg("deployment/lockstep"))
    };
    rollout(&["restart"])?;
    rollout(&["status", "--timeout=120s"])?;
    step.done("");
    note(&format!("  ✓ Lockstep is ready in the namespace {NAMESPACE}"));
    Ok(())
}

/// Has the API server enforce what the chart promises of its pods. Those made from now on, that is: before the restart.
fn restrict(stage: &Stage) -> Result<()> {
    let level = "pod-security.kubernetes.io/enforce=restricted";
    command::output(stage.command("kubectl").args(["label", "namespace", NAMESPACE, "--overwrite", level])).map(drop)
}
