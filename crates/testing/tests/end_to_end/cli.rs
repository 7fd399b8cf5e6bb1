//! The command line as people and pipelines use it: what it says, and its exit codes.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use kube::api::ListParams;
use lockstep_api::{Release, ReleasePolicySpec, RuleSpec, StormGuardSpec, ValidationSpec};
use lockstep_core::digest::MAX_CONFIG_NAME_LENGTH;
use lockstep_core::names;
use lockstep_testing::manifests::{config_map, testapp_image, versioned, web_deployment};
use lockstep_testing::{LONG, SHORT, Scenario, command_line, eventually, impatient, scenario};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};

use super::releases::until_promoted;

pub(crate) struct Answer {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Answer {
    /// Fails unless it ended so, and said all this.
    pub(crate) fn expect(&self, code: i32, words: &[&str]) -> Result<()> {
        let Self { code: actual, stdout, stderr } = self;
        ensure!(*actual == code, "exit code {actual} instead of {code}:\n{stdout}{stderr}");
        for word in words {
            ensure!((stdout.clone() + stderr).contains(word), "it does not say {word:?}:\n{stdout}{stderr}");
        }
        Ok(())
    }

    fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.stdout).with_context(|| format!("not JSON:\n{}{}", self.stdout, self.stderr))
    }
}

async fn start(stage: &Scenario, arguments: &[&str], environment: &[(&str, &str)]) -> Result<Child> {
    let mut command = Command::new(command_line().await?);
    command.args(arguments).args(["--namespace", &stage.namespace]).envs(environment.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    Ok(command.spawn()?)
}

pub(crate) async fn lockstep(stage: &Scenario, arguments: &[&str], input: &str) -> Result<Answer> {
    answer(start(stage, arguments, &[]).await?, input).await
}

async fn answer(mut child: Child, input: &str) -> Result<Answer> {
    if let Some(mut stdin) = child.stdin.take() {
        // A command that reads nothing may have ended by now.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let output = child.wait_with_output().await?;
    Ok(Answer {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// `web-env`, versioned, with a color and a behavior.
fn web_env(color: &str, behavior: &str) -> String {
    format!(
        "apiVersion: v1
kind: ConfigMap
metadata:
  name: web-env
  labels: {{lockstep.dev/versioned: \"true\"}}
data:
  COLOR: {color:?}
  BEHAVIOR: {behavior:?}
"
    )
}

async fn release(stage: &Scenario, manifest: &str) -> Result<Answer> {
    lockstep(stage, &["release", "--filename", "-", "--wait", "--timeout", "300s"], manifest).await
}

/// The first version is current, and two pods run it.
async fn blue(stage: &Scenario) -> Result<()> {
    stage.apply(&web_deployment(2)).await?;
    release(stage, &web_env("blue", "healthy")).await?.expect(0, &["1.0.0 is current"])?;
    eventually("two pods", SHORT, async || stage.ready_pods("app=web", 2).await).await.map(drop)
}

#[tokio::test]
async fn from_a_good_change_over_a_bad_one_back_to_the_first() {
    scenario("cli", |stage| async move {
        blue(&stage).await?;
        let impact = lockstep(&stage, &["impact", "-f", "-"], &web_env("green", "healthy")).await?;
        impact.expect(0, &["changed: COLOR", "Deployment web"])?;
        release(&stage, &web_env("green", "healthy")).await?.expect(0, &["r2 is current"])?;
        lockstep(&stage, &["diff", "web-env", "1.0.0"], "").await?.expect(0, &["- blue", "+ green"])?;
        let again = release(&stage, &web_env("green", "healthy")).await?;
        again.expect(0, &["r2 is current"])?;

        release(&stage, &web_env("red", "crash")).await?.expect(2, &["RolledBack", "r3 was not released"])?;
        let status = lockstep(&stage, &["status", "web-env", "-o", "json"], "").await?.json()?;
        ensure!(status["current"]["version"] == "r2" && status["held"]["version"] == "r3", "{status}");
        ensure!(status["consumers"][0]["version"] == "r2", "{status}");
        lockstep(&stage, &["diff", "web-env"], "").await?.expect(0, &["r2 → r3 (source)", "+ crash"])?;
        let history = lockstep(&stage, &["history", "web-env", "-o", "json"], "").await?.json()?;
        ensure!(history["versions"][0]["state"] == "held", "{history}");
        ensure!(history["releases"][0]["phase"] == "RolledBack", "{history}");
        // What is held is not tried again by applying it again.
        let again = release(&stage, &web_env("red", "crash")).await?;
        again.expect(2, &["lockstep retry web-env"])?;

        lockstep(&stage, &["rollback", "web-env", "--wait"], "").await?.expect(0, &["1.0.0 is current"])?;
        let seen = stage.seen("app=web", |report| report.loaded.env.get("COLOR").cloned()).await?;
        ensure!(seen.values().all(|color| color == "blue"), "the pods see {seen:?}");
        lockstep(&stage, &["status", "web-env"], "").await?.expect(0, &["instead of r3"])?;
        let delete = lockstep(&stage, &["versions", "delete", "web-env", "1.0.0"], "").await?;
        delete.expect(1, &["is current", "release another version first"])?;
        // On a busy machine a replica may not be ready for a moment.
        eventually("doctor to find nothing", LONG, async || {
            lockstep(&stage, &["doctor"], "").await?.expect(0, &["ok    operator", "ok    leader"])
        })
        .await
    })
    .await;
}

#[tokio::test]
async fn what_does_not_come_to_an_end_or_breaks_a_rule_has_an_exit_code_of_its_own() {
    scenario("cli-codes", |stage| async move {
        blue(&stage).await?;
        let named =
            web_env("pink", "healthy").replace("  labels:", "  annotations: {lockstep.dev/version: 1.0.0}\n  labels:");
        release(&stage, &named).await?.expect(3, &["version 1.0.0 has other content"])?;
        let never = web_env("green", "never-ready");
        let late = lockstep(&stage, &["release", "-f", "-", "--wait", "--timeout", "2s"], &never).await?;
        late.expect(4, &["timed out"])?;
        lockstep(&stage, &["status", "nothing"], "").await?.expect(1, &["lockstep adopt nothing"])?;
        lockstep(&stage, &["no-such-command"], "").await?.expect(1, &["no-such-command"])
    })
    .await;
}

/// Whoever waits for something that is rejected, refused, or not followed any more hears of it, however fast that happened.
#[tokio::test]
async fn what_cannot_come_is_never_waited_for_and_never_a_success() {
    scenario("cli-never", |stage| async move {
        blue(&stage).await?;
        let rule = RuleSpec { expression: "data.COLOR != 'red'".into(), message: None };
        let validation = Some(ValidationSpec { rules: vec![rule], ..ValidationSpec::default() });
        stage.set_policy("default", &ReleasePolicySpec { validation, ..impatient() }).await?;
        stage.apply(&web_env("red", "healthy")).await?;
        lockstep(&stage, &["watch"], "").await?.expect(3, &["rejected"])?;
        lockstep(&stage, &["watch", "web-env"], "").await?.expect(3, &["rejected"])?;
        let retried = lockstep(&stage, &["retry", "web-env", "--wait", "--timeout", "120s"], "").await?;
        retried.expect(3, &["rejected", "data.COLOR"])?;

        stage.kubectl(&["annotate", "configmap", "web-env", "lockstep.dev/policy=nothing"]).await?;
        stage.apply(&web_env("green", "healthy")).await?;
        lockstep(&stage, &["watch", "web-env"], "").await?.expect(3, &["there is no ReleasePolicy nothing"])?;
        // Nothing else stands in the way of what comes now, and it would take long.
        stage.set_policy("default", &until_promoted()).await?;
        stage.kubectl(&["annotate", "configmap", "web-env", "lockstep.dev/policy-"]).await?;
        let pink = web_env("pink", "healthy");
        let waits =
            lockstep(&stage, &["release", "-f", "-", "--wait", "--force-conflicts", "--timeout", "300s"], &pink);
        let opts_out = async {
            eventually("the change that is waited for", SHORT, async || {
                let color = stage.kubectl(&["get", "configmap", "web-env", "-o", "jsonpath={.data.COLOR}"]).await?;
                ensure!(color == "pink", "it is {color}");
                Ok(())
            })
            .await?;
            stage.kubectl(&["label", "configmap", "web-env", "lockstep.dev/ignore=true"]).await?;
            Ok(())
        };
        let (waited, ()) = futures::try_join!(waits, opts_out)?;
        waited.expect(3, &["rejected", "does not opt in any more"])
    })
    .await;
}

#[tokio::test]
async fn half_a_file_is_never_applied_and_its_order_does_not_matter() {
    scenario("cli-whole-file", |stage| async move {
        stage.apply(&(web_env("blue", "healthy") + &web_deployment(1))).await?;
        stage.released("configmap/web-env", "1.0.0").await?;
        let variable = "        env: [{name: BUILD, value: \"2\"}]\n        envFrom:";
        let unknown = "\n---\napiVersion: lockstep.dev/v9\nkind: Nothing\nmetadata: {name: nothing}\n";
        let whole = web_deployment(1).replace("        envFrom:", variable) + &web_env("green", "healthy");
        let broken = lockstep(&stage, &["release", "-f", "-", "--force-conflicts"], &(whole.clone() + unknown)).await?;
        broken.expect(1, &["nothing: the cluster does not know Nothing"])?;
        let config = stage.kubectl(&["get", "configmap", "web-env", "-o", "jsonpath={.data.COLOR}"]).await?;
        ensure!(config == "blue", "half of the file was applied: {config}");
        let release = ["release", "-f", "-", "--force-conflicts", "--wait", "--timeout", "300s"];
        let done = lockstep(&stage, &release, &whole).await?;
        done.expect(0, &["configmap/web-env applied", "deployment/web applied", "is current"])?;
        let report = stage.ready_pods("app=web", 1).await?;
        let seen = stage.config_seen_by(&report[0].name_any()).await?.loaded.env;
        ensure!(seen.get("COLOR").is_some_and(|color| color == "green"), "{seen:?}");
        ensure!(seen.get("BUILD").is_some_and(|build| build == "2"), "{seen:?}");
        let place = |name: &str| done.stdout.find(&format!("{name} applied"));
        ensure!(place("configmap/web-env") < place("deployment/web"), "the workload came first: {}", done.stdout);
        Ok(())
    })
    .await;
}

/// A dry run of the whole file comes first, and leaves no draft of a version either.
#[tokio::test]
async fn a_field_that_others_manage_in_the_last_document_keeps_the_whole_file_from_being_applied() {
    scenario("cli-conflict", |stage| async move {
        blue(&stage).await?;
        let whole = web_env("green", "healthy") + &config_map("other", "COLOR", "green") + &web_deployment(3);
        let answer = release(&stage, &whole).await?;
        answer.expect(1, &["deployment/web", "others manage fields of it", ".spec.replicas", "--force-conflicts"])?;
        ensure!(!answer.stdout.contains("applied"), "something was applied: {}", answer.stdout);
        let color = stage.kubectl(&["get", "configmap", "web-env", "-o", "jsonpath={.data.COLOR}"]).await?;
        ensure!(color == "blue", "half of the file was applied: {color}");
        ensure!(stage.kubectl(&["get", "configmap", "other"]).await.is_err(), "half of the file was applied");
        let (releases, versions) =
            (stage.api::<Release>().list(&ListParams::default()).await?, stage.versions("configmap/web-env").await?);
        ensure!(releases.items.is_empty() && versions.len() == 1, "{} releases, {versions:?}", releases.items.len());
        Ok(())
    })
    .await;
}

/// What lives in a namespace of the same file cannot be tried before that is there.
#[tokio::test]
async fn what_broke_after_a_part_was_applied_names_what_is_under_way() {
    scenario("cli-part", |stage| async move {
        blue(&stage).await?;
        let other = format!("{}-x", stage.namespace);
        let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {other}}}\n---\n");
        let broken = format!(
            "---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, namespace: {other}}}
spec:
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: api}}}}
    spec: {{containers: [{{name: app, image: {}}}]}}
",
            testapp_image()
        );
        let file = namespace + &web_env("green", "healthy") + &broken;
        let said = release(&stage, &file).await;
        let deleted = stage.kubectl(&["delete", "namespace", &other, "--wait=false"]).await;
        said?.expect(1, &["configmap/web-env was applied before it, and is released", "`lockstep watch web-env"])?;
        deleted?;
        in_phase(&stage, "Succeeded").await
    })
    .await;
}

#[tokio::test]
async fn status_shows_the_new_version_where_all_pods_run_it_while_it_bakes() {
    scenario("cli-status-bake", |stage| async move {
        blue(&stage).await?;
        stage.set_policy("default", &ReleasePolicySpec { bake_seconds: Some(3600), ..impatient() }).await?;
        stage.apply(&web_env("green", "healthy")).await?;
        in_phase(&stage, "Baking").await?;
        let status = lockstep(&stage, &["status", "web-env", "-o", "json"], "").await?.json()?;
        ensure!(status["current"]["version"] == "1.0.0", "it only bakes: {status}");
        ensure!(status["consumers"][0]["version"] == "r2", "all its pods run r2: {}", status["consumers"]);
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn whoever_follows_a_version_that_is_replaced_is_told_so() {
    scenario("cli-replaced", |stage| async move {
        blue(&stage).await?;
        stage.set_policy("default", &ReleasePolicySpec { bake_seconds: Some(3600), ..impatient() }).await?;
        let (green, red) = (web_env("green", "healthy"), web_env("red", "healthy"));
        let watched = async {
            in_phase(&stage, "Baking").await?;
            let mut watch = start(&stage, &["watch", "web-env", "--timeout", "300s"], &[]).await?;
            let mut output = BufReader::new(watch.stdout.take().context("it has no output")?);
            let mut said = String::new();
            output.read_line(&mut said).await?;
            ensure!(said.contains("1.0.0 → r2"), "it follows {said:?}");
            stage.apply(&red).await?;
            output.read_to_string(&mut said).await?;
            let code = watch.wait().await?.code().unwrap_or(-1);
            Ok(Answer { code, stdout: said, stderr: String::new() })
        };
        let (waited, watched) = futures::try_join!(release(&stage, &green), watched)?;
        for answer in [waited, watched] {
            answer.expect(2, &["r2 was replaced", "lockstep watch web-env"])?;
            ensure!(!answer.stdout.contains("lockstep retry"), "nothing is held: {}", answer.stdout);
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn the_storm_guard_does_not_hold_up_what_a_person_asks_for() {
    scenario("cli-storm", |stage| async move {
        blue(&stage).await?;
        for color in ["green", "yellow", "orange", "red"] {
            release(&stage, &web_env(color, "healthy")).await?.expect(0, &["is current"])?;
        }
        // After four releases, the next one waits for 80 seconds, and the one after it for twice as long.
        let guard = StormGuardSpec { free_releases: Some(1), window_seconds: None };
        stage.set_policy("default", &ReleasePolicySpec { storm_guard: Some(guard), ..impatient() }).await?;
        stage.apply(&web_env("violet", "healthy")).await?;
        eventually("a release that waits", SHORT, async || {
            let status = &stage.read("release/configmap-web-env-5").await?["status"];
            let reason = status["reason"].as_str().unwrap_or_default();
            ensure!(status["phase"] == "Pending" && reason.contains("rolled too often"), "{status}");
            Ok(())
        })
        .await?;
        lockstep(&stage, &["promote", "web-env"], "").await?.expect(0, &[])?;
        let promoted = ["watch", "release/configmap-web-env-5", "--timeout", "60s"];
        lockstep(&stage, &promoted, "").await?.expect(0, &["r6"])?;
        let back = lockstep(&stage, &["rollback", "web-env", "--wait", "--timeout", "60s"], "").await?;
        back.expect(0, &["r5 is current"])
    })
    .await;
}

#[tokio::test]
async fn a_file_is_released_only_when_its_workloads_have_rolled_out() {
    scenario("cli-rollouts", |stage| async move {
        let first = release(&stage, &(web_env("blue", "healthy") + &web_deployment(1))).await?;
        first.expect(0, &["1.0.0 is current", "deployment/web", "rolled out"])?;
        // At once: whoever reads the exit code does not wait any more.
        stage.ready_pods("app=web", 1).await?;
        release(&stage, &web_deployment(0)).await?.expect(0, &["deployment/web", "it is scaled to zero"])?;

        let bad = web_deployment(1).replace(&testapp_image(), "lockstep.dev/nothing:dev");
        let late = lockstep(&stage, &["release", "-f", "-", "--wait", "--timeout", "5s"], &bad).await?;
        late.expect(4, &["timed out", "kubectl rollout status deployment/web"])?;
        let hasty = bad.replace("  replicas:", "  progressDeadlineSeconds: 5\n  replicas:");
        let failed = release(&stage, &hasty).await?;
        failed.expect(2, &["deployment/web", "was not rolled out", "progress deadline"])?;
        release(&stage, &web_deployment(1)).await?.expect(0, &["deployment/web", "rolled out"])
    })
    .await;
}

/// The config that failed together with bad code is tried again with good code, and that is what a pipeline waits for.
#[tokio::test]
async fn a_pipeline_that_repairs_the_code_gets_the_config_that_was_held_with_it() {
    scenario("cli-repair", |stage| async move {
        release(&stage, &(web_env("blue", "healthy") + &web_deployment(1))).await?.expect(0, &["1.0.0 is current"])?;
        let bad = web_deployment(1).replace(&testapp_image(), "lockstep.dev/nothing:dev");
        release(&stage, &(web_env("green", "healthy") + &bad)).await?.expect(2, &["r2 was not released"])?;
        let again = release(&stage, &(web_env("green", "healthy") + &bad)).await?;
        again.expect(2, &["r2 was not released"])?;
        let good = web_deployment(1).replace("containers:", "hostname: repaired\n      containers:");
        release(&stage, &(web_env("green", "healthy") + &good)).await?.expect(0, &["r2 is current", "rolled out"])
    })
    .await;
}

#[tokio::test]
async fn a_release_is_paused_promoted_and_aborted() {
    scenario("cli-steer", |stage| async move {
        blue(&stage).await?;
        stage.set_policy("default", &ReleasePolicySpec { bake_seconds: Some(3600), ..impatient() }).await?;
        stage.apply(&web_env("green", "healthy")).await?;
        in_phase(&stage, "Baking").await?;
        lockstep(&stage, &["pause", "web-env"], "").await?.expect(0, &["lockstep resume"])?;
        in_phase(&stage, "Paused").await?;
        let answer = lockstep(&stage, &["resume", "web-env", "-o", "json"], "").await?.json()?;
        ensure!(answer["changed"] == true && answer["about"] == "release/configmap-web-env-1", "{answer}");
        in_phase(&stage, "Baking").await?;
        lockstep(&stage, &["promote", "web-env"], "").await?.expect(0, &[])?;
        stage.released("configmap/web-env", "r2").await?;
        lockstep(&stage, &["promote", "web-env"], "")
            .await?
            .expect(1, &["no release of configmap/web-env is under way"])?;

        stage.apply(&web_env("red", "healthy")).await?;
        in_phase(&stage, "Baking").await?;
        lockstep(&stage, &["abort", "web-env"], "").await?.expect(0, &["puts r2 back"])?;
        eventually("r3 to be held", SHORT, async || {
            let answer = lockstep(&stage, &["status", "web-env"], "").await?;
            answer.expect(0, &["held      r3"])
        })
        .await?;
        lockstep(&stage, &["retry", "web-env"], "").await?.expect(0, &["r3 is tried again"])?;
        in_phase(&stage, "Baking").await
    })
    .await;
}

/// Waits until the one open release is in a phase.
async fn in_phase(stage: &Scenario, phase: &str) -> Result<()> {
    eventually(&format!("a release in phase {phase}"), SHORT, async || {
        let releases = stage.api::<Release>().list(&ListParams::default()).await?;
        let phases: Vec<String> = releases.iter().map(|release| release.phase().to_string()).collect();
        ensure!(phases.iter().any(|found| found == phase), "they are {phases:?}");
        Ok(())
    })
    .await
}

/// `app`, versioned, without a record of what was applied: that would not fit.
fn app(data: &Value, annotations: &Value) -> String {
    let metadata = json!({"name": "app", "labels": {names::VERSIONED: names::ON}, "annotations": annotations});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}).to_string()
}

#[tokio::test]
async fn what_is_long_odd_or_empty_is_shown_so_that_people_and_programs_can_read_it() {
    scenario("cli-odd", |stage| async move {
        let ask = async |arguments: &[&str]| lockstep(&stage, arguments, "").await;
        ask(&["version", "-o", "json"]).await?.json()?;
        let long = "a".repeat(MAX_CONFIG_NAME_LENGTH);
        stage.apply(&versioned(&long, "data: {COLOR: blue}")).await?;
        stage.create(&app(&json!({"a.yaml": "a: 1"}), &json!({}))).await?;
        stage.released(&format!("configmap/{long}"), "1.0.0").await?;
        stage.released("configmap/app", "1.0.0").await?;
        let status = answer(start(&stage, &["status"], &[("COLUMNS", "100")]).await?, "").await?;
        status.expect(0, &["configmap/app", "configmap/aaa"])?;
        let widest = status.stdout.lines().map(|line| line.chars().count()).max();
        ensure!(widest <= Some(100), "a line has {widest:?} characters:\n{}", status.stdout);
        // What has just been released may still be reported on.
        eventually("nothing to be moving", SHORT, async || {
            let said = ask(&["watch", "-o", "json"]).await?;
            said.expect(0, &[])?;
            ensure!(said.json()? == json!([]), "{}", said.stdout);
            Ok(())
        })
        .await?;

        let replace = async |data: Value, annotations: Value| {
            stage.kubectl_with_input(&["replace", "-f", "-"], &app(&data, &annotations)).await.map(drop)
        };
        replace(json!({"a.yaml": "a: 1\na: 2"}), json!({})).await?;
        stage.released("configmap/app", "r2").await?;
        let large = format!("\u{202e}{}", "x".repeat(900_000));
        replace(json!({"a.yaml": "a: 1\na: 2", "b.txt": large}), json!({})).await?;
        stage.released("configmap/app", "r3").await?;
        let diff = ask(&["diff", "app", "r2"]).await?;
        diff.expect(0, &["b.txt", "\\u{202e}"])?;
        ensure!(diff.stdout.len() < 10_000, "it says {} bytes", diff.stdout.len());
        ensure!(!diff.stdout.contains('\u{202e}'), "it turns the direction of writing");

        replace(json!({"a.yaml": "a: 3"}), json!({names::POLICY: "nothing"})).await?;
        let watch = ask(&["watch", "app", "-o", "json"]).await?;
        watch.expect(3, &["there is no ReleasePolicy nothing"])?;
        let said = watch.json()?;
        ensure!(said[0]["result"] == "rejected" && said[0]["config"] == "configmap/app", "{said}");
        Ok(())
    })
    .await;
}

/// Each says which object it looked for, and what to do.
#[tokio::test]
async fn what_is_not_there_is_told_by_every_command() {
    scenario("cli-nothing", |stage| async move {
        let not_versioned = "configmap/nothing is not versioned in namespace";
        for command in ["status", "history", "diff", "get", "watch", "rollback", "follow", "retry"] {
            lockstep(&stage, &[command, "nothing"], "").await?.expect(1, &[not_versioned, "lockstep adopt nothing"])?;
        }
        for command in ["pause", "resume", "promote", "abort"] {
            lockstep(&stage, &[command, "nothing"], "").await?.expect(1, &[not_versioned])?;
            lockstep(&stage, &[command, "release/nothing"], "").await?.expect(1, &["there is no release nothing"])?;
        }
        for (arguments, told) in [
            (&["versions", "delete", "nothing", "1.0.0"][..], not_versioned),
            (&["adopt", "nothing", "--yes"], "there is no configmap/nothing"),
            (&["adopt", "deployment/nothing", "--yes"], "there is no Deployment nothing"),
            (&["release", "-f", "nothing.yaml"], "nothing.yaml cannot be read"),
            (&["impact", "-f", "nothing.yaml"], "nothing.yaml cannot be read"),
            (&["status", "job/nothing"], "write configmap/NAME or secret/NAME"),
            (&["completion", "nothing"], "possible values: bash"),
            (&["status", "--context", "nothing"], "nothing"),
        ] {
            lockstep(&stage, arguments, "").await?.expect(1, &[told])?;
        }
        lockstep(&stage, &["impact", "nothing"], "").await?.expect(1, &["there is no configmap/nothing"])
    })
    .await;
}

/// A kubeconfig with which all is done as somebody else.
async fn kubeconfig_of(stage: &Scenario, user: &str) -> Result<String> {
    let mut own: Value = serde_json::from_str(&stage.kubectl(&["config", "view", "--flatten", "-o", "json"]).await?)?;
    for entry in own["users"].as_array_mut().context("nobody is in the kubeconfig")? {
        entry["user"]["as"] = user.into();
    }
    Ok(own.to_string())
}

/// What they may not look at has not failed; what they may not do at all has.
#[tokio::test]
async fn whoever_has_rights_in_one_namespace_only_is_told_of_no_failures() {
    scenario("cli-one-namespace", |stage| async move {
        stage.apply(&web_env("blue", "healthy")).await?;
        stage.released("configmap/web-env", "1.0.0").await?;
        let ask = async |command: &str, kubeconfig: &str| {
            lockstep(&stage, &[command, "--kubeconfig", "/dev/stdin"], kubeconfig).await
        };
        for (role, rights) in [("edit", "ok    rights"), ("view", "warn  rights")] {
            let user = format!("{role}-in-{}", stage.namespace);
            let (cluster_role, name) = (format!("--clusterrole={role}"), format!("--user={user}"));
            stage.kubectl(&["create", "rolebinding", role, &cluster_role, &name]).await?;
            let kubeconfig = kubeconfig_of(&stage, &user).await?;
            // The API server may take a moment to know of the new rights.
            let doctor = eventually("doctor to be content", SHORT, async || {
                let answer = ask("doctor", &kubeconfig).await?;
                let unseen = "not checked: you may not list deployments in all namespaces";
                let told = ["skip  operator", unseen, "skip  leader", rights, "1 versioned", "none is stuck"];
                answer.expect(0, &told)?;
                Ok(answer)
            })
            .await?;
            ensure!(!doctor.stdout.contains("FAIL"), "{}", doctor.stdout);
            ask("status", &kubeconfig).await?.expect(0, &["configmap/web-env", "1.0.0"])?;
        }
        let stranger = kubeconfig_of(&stage, "somebody-without-rights").await?;
        ask("doctor", &stranger).await?.expect(1, &["FAIL  rights", "you may not list versionedconfigs"])?;
        ask("status", &stranger).await?.expect(1, &["cannot list VersionedConfigs", "ask for the right"])
    })
    .await;
}

#[tokio::test]
async fn adopting_asks_first_and_restarts_nothing() {
    scenario("cli-adopt", |stage| async move {
        stage.apply(&(config_map("web-env", "COLOR", "blue") + &web_deployment(1))).await?;
        let before = eventually("a pod", SHORT, async || stage.ready_pods("app=web", 1).await).await?;
        let asked = lockstep(&stage, &["adopt", "deployment/web"], "").await?;
        asked.expect(1, &["configmap/web-env, used by Deployment web", "Nothing restarts", "--yes"])?;
        lockstep(&stage, &["adopt", "deployment/web", "--yes"], "").await?.expect(0, &[])?;
        stage.released("configmap/web-env", "1.0.0").await?;
        let after = stage.ready_pods("app=web", 1).await?;
        ensure!(before[0].uid() == after[0].uid(), "the pod was restarted");
        lockstep(&stage, &["adopt", "web-env"], "").await?.expect(0, &["versioned already", "nothing to do"])
    })
    .await;
}

#[tokio::test]
async fn no_value_of_a_secret_is_printed_unless_asked() {
    scenario("cli-secret", |stage| async move {
        let secret = |value: &str| {
            format!(
                "apiVersion: v1\nkind: Secret\nmetadata:\n  name: db\n  labels: {{lockstep.dev/versioned: \"true\"}}\nstringData:\n  password: {value}\n"
            )
        };
        let first = release(&stage, &secret("hunter2")).await?;
        first.expect(0, &["1.0.0 is current"])?;
        let second = release(&stage, &secret("correct-horse")).await?;
        second.expect(0, &["r2 is current"])?;
        let mut said = first.stdout + &first.stderr + &second.stdout + &second.stderr;
        let asked: [&[&str]; 5] = [
            &["diff", "secret/db", "1.0.0"],
            &["get", "secret/db", "-o", "yaml"],
            &["status", "secret/db"],
            &["history", "secret/db"],
            &["impact", "secret/db"],
        ];
        for arguments in asked {
            let answer = lockstep(&stage, arguments, "").await?;
            answer.expect(0, &["db"])?;
            said += &(answer.stdout + &answer.stderr);
        }
        ensure!(said.contains("password") && !said.contains("hunter2") && !said.contains("correct-horse"), "{said}");
        lockstep(&stage, &["get", "secret/db", "1.0.0", "--reveal"], "").await?.expect(0, &["hunter2"])
    })
    .await;
}
