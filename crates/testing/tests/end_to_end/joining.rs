//! Code and config changed together arrive together: the write of the workload joins the release that the write of the config began
//! a moment before. Without the config webhook this is a race; lost, it costs a ReplicaSet and nothing else.

use anyhow::{Result, ensure};
use lockstep_testing::joining::{TOOLS, count_joined};
use lockstep_testing::{SHORT, Scenario, eventually, scenario};

const CHANGES: usize = 25;
/// The webhook fails open when it is not answered in time, as on a machine that is busy with other things.
const SLACK: usize = 2;

/// One test, because the config webhook is there for the whole cluster or for nobody.
#[tokio::test]
async fn code_and_config_changed_together_make_one_replica_set() {
    scenario("joining", |stage| async move {
        let with = count_joined(&stage, "with", CHANGES).await?;
        set_config_webhook(&stage, false).await?;
        let without = count_joined(&stage, "without", CHANGES).await;
        // Whatever happened, the tests after this one run as all others do.
        set_config_webhook(&stage, true).await?;
        for (tool, (with, without)) in TOOLS.iter().zip(with.iter().zip(without?)) {
            eprintln!("joining: `{tool}` made exactly one ReplicaSet {with} of {CHANGES} times, and {without} of {CHANGES} without the config webhook");
        }
        let least = CHANGES - SLACK;
        ensure!(with.iter().all(|joined| *joined >= least), "with the config webhook, only {with:?} of {CHANGES} joined");
        Ok(())
    })
    .await;
}

async fn set_config_webhook(stage: &Scenario, enabled: bool) -> Result<()> {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/lockstep");
    let own = stage.elsewhere("lockstep-system");
    let value = format!("configWebhook.enabled={enabled}");
    own.helm(&["upgrade", "lockstep", chart, "--reuse-values", "--set", &value, "--wait"]).await?;
    own.kubectl(&["rollout", "status", "deployment/lockstep", "--timeout=300s"]).await?;
    if enabled {
        eventually("the webhook to be registered", SHORT, async || {
            let path = "jsonpath={.webhooks[*].clientConfig.caBundle}";
            let bundle = own.kubectl(&["get", "validatingwebhookconfiguration", "lockstep", "-o", path]).await?;
            ensure!(!bundle.trim().is_empty(), "it has no certificate yet");
            Ok(())
        })
        .await?;
    }
    Ok(())
}
