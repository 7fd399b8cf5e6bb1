//! Code and config changed together arrive together: the write of the workload joins the release that the write of the config began
//! a moment before. Without the config webhook this is a race; lost, it costs a ReplicaSet and nothing else.

use anyhow::{Context, Result, ensure};
use lockstep_testing::manifests::{deployment, testapp_image, versioned};
use lockstep_testing::{SHORT, Scenario, eventually, scenario};

const CHANGES: usize = 25;
/// The webhook fails open when it is not answered in time, as on a machine that is busy with other things.
const SLACK: usize = 2;

/// One test, because the config webhook is there for the whole cluster or for nobody.
#[tokio::test]
async fn code_and_config_changed_together_make_one_replica_set() {
    scenario("joining", |stage| async move {
        let with = all_tools(&stage, "with").await?;
        set_config_webhook(&stage, false).await?;
        let without = all_tools(&stage, "without").await;
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

const TOOLS: [&str; 3] = ["helm upgrade", "kubectl apply", "kubectl apply --server-side"];

/// All tools side by side, each with a shop of its own.
async fn all_tools(stage: &Scenario, name: &str) -> Result<[usize; 3]> {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/charts/versioned");
    let [by_helm, by_apply, by_server] = ["helm", "apply", "server"].map(|tool| format!("{tool}-{name}"));
    let helm = count_joined(stage, &by_helm, async |change| {
        let values = format!("replicas=0,color=c{change},build=b{change}");
        stage.helm(&["upgrade", "--install", &by_helm, chart, "--set", &values]).await.map(drop)
    });
    let apply = count_joined(stage, &by_apply, async |change| stage.apply(&shop(&by_apply, change)).await);
    let server = count_joined(stage, &by_server, async |change| {
        stage.kubectl_with_input(&["apply", "--server-side", "-f", "-"], &shop(&by_server, change)).await.map(drop)
    });
    let (helm, apply, server) = futures::try_join!(helm, apply, server)?;
    Ok([helm, apply, server])
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
            let bundle = own.kubectl(&["get", "mutatingwebhookconfiguration", "lockstep", "-o", path]).await?;
            ensure!(!bundle.trim().is_empty(), "it has no certificate yet");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Makes the changes, checks that each ends with the right pair, and counts those that took one ReplicaSet.
async fn count_joined(stage: &Scenario, name: &str, mut write: impl AsyncFnMut(usize) -> Result<()>) -> Result<usize> {
    write(0).await?;
    stage.released(&format!("configmap/{name}"), "1.0.0").await?;
    let mut joined = 0;
    for change in 1..=CHANGES {
        let before = revision(stage, name).await?;
        write(change).await?;
        stage.released(&format!("configmap/{name}"), &format!("r{}", change + 1)).await?;
        let made = eventually("the new pair of code and config", SHORT, async || {
            let template = newest_template(stage, name).await?;
            let version = current_object(stage, name).await?;
            ensure!(template == format!("b{change} configmap/{name}={version}"), "the newest template has {template}");
            Ok(revision(stage, name).await? - before)
        })
        .await?;
        ensure!((1..=2).contains(&made), "one change made {made} ReplicaSets");
        joined += usize::from(made == 1);
    }
    Ok(joined)
}

/// Each new ReplicaSet gets the next number.
async fn revision(stage: &Scenario, name: &str) -> Result<u64> {
    eventually("the Deployment's controller", SHORT, async || {
        let found = stage.read(&format!("deployment/{name}")).await?;
        let (written, seen) = (&found["metadata"]["generation"], &found["status"]["observedGeneration"]);
        ensure!(written == seen, "it has seen {seen} of {written} writes");
        let revision = &found["metadata"]["annotations"]["deployment.kubernetes.io/revision"];
        revision.as_str().context("no revision yet")?.parse().context("the revision is no number")
    })
    .await
}

/// The code and the pins of the Deployment.
async fn newest_template(stage: &Scenario, name: &str) -> Result<String> {
    let template = &stage.read(&format!("deployment/{name}")).await?["spec"]["template"];
    let build = template["spec"]["containers"][0]["env"][0]["value"].as_str().unwrap_or_default();
    let pins = template["metadata"]["annotations"]["lockstep.dev/pins"].as_str().unwrap_or_default();
    Ok(format!("{build} {pins}"))
}

async fn current_object(stage: &Scenario, name: &str) -> Result<String> {
    let found = stage.read(&format!("versionedconfig/configmap-{name}")).await?;
    Ok(found["status"]["current"]["object"].as_str().unwrap_or_default().to_owned())
}

fn shop(name: &str, change: usize) -> String {
    let pod = format!(
        "containers:
- name: web
  image: {}
  env:
  - {{name: BUILD, value: b{change}}}
  envFrom:
  - configMapRef: {{name: {name}}}
",
        testapp_image()
    );
    versioned(name, &format!("data: {{COLOR: c{change}}}")) + &deployment(name, 0, &pod)
}
