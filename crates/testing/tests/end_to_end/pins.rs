//! Every pod runs the version it was released with: all kinds of workloads, all ways to use a config, all ways to write.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, ServiceAccount};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use lockstep_api::{JoiningSpec, Release, ReleasePolicySpec};
use lockstep_testing::manifests::{
    config_map, deployment, indent, testapp_image, versioned, versioned_colors, web_deployment, web_pod_spec,
};
use lockstep_testing::report::ConfigReport;
use lockstep_testing::{SHORT, Scenario, eventually, holds, impatient, scenario};
use serde_json::json;

use super::releases::{self, FIRST, ended, phase, steer, until_promoted};

/// A change of config whose new pods never get ready keeps the old ones: a lost one comes back with its old config.
#[tokio::test]
async fn an_old_pod_of_a_deployment_comes_back_with_its_old_config() {
    scenario("deployment-old-pod", |stage| async move {
        stage.apply(&(everything("blue", "healthy") + &deployment_of_everything(2))).await?;
        expect(&stage, &["blue", "blue"]).await?;
        change_everything(&stage, "green", "never-ready").await?;
        expect(&stage, &["blue", "blue", "green"]).await?;
        for pod in stage.pods("app=all").await? {
            stage.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default()).await?;
        }
        expect(&stage, &["blue", "blue", "green"]).await?;
        change_everything(&stage, "red", "healthy").await?;
        expect(&stage, &["red", "red"]).await
    })
    .await;
}

#[tokio::test]
async fn an_old_pod_of_a_stateful_set_comes_back_with_its_old_config() {
    scenario("statefulset-old-pod", |stage| async move {
        stage.apply(&(everything("blue", "healthy") + &stateful_set_of_everything())).await?;
        expect(&stage, &["blue", "blue"]).await?;
        change_everything(&stage, "green", "healthy").await?;
        // Only the pod above the partition is updated.
        expect(&stage, &["blue", "green"]).await?;
        for pod in ["all-0", "all-1"] {
            stage.api::<Pod>().delete(pod, &DeleteParams::default()).await?;
        }
        expect(&stage, &["blue", "green"]).await?;
        stage.kubectl(&["patch", "statefulset", "all", "--type=merge", "-p", NO_PARTITION]).await?;
        expect(&stage, &["green", "green"]).await?;
        stage.kubectl(&["rollout", "undo", "statefulset/all"]).await?;
        expect(&stage, &["blue", "blue"]).await
    })
    .await;
}

#[tokio::test]
async fn a_daemon_set_rolls_and_is_undone_with_its_config() {
    scenario("daemonset", |stage| async move {
        stage.apply(&(everything("blue", "healthy") + &daemon_set_of_everything())).await?;
        expect(&stage, &["blue"]).await?;
        change_everything(&stage, "green", "healthy").await?;
        expect(&stage, &["green"]).await?;
        stage.kubectl(&["rollout", "undo", "daemonset/all"]).await?;
        expect(&stage, &["blue"]).await
    })
    .await;
}

#[tokio::test]
async fn a_job_of_a_cron_job_keeps_the_config_that_it_was_started_with() {
    scenario("cronjob", |stage| async move {
        stage.apply(&(everything("blue", "healthy") + &cron_job_of_everything())).await?;
        stage.kubectl(&["create", "job", "first", "--from=cronjob/all"]).await?;
        expect(&stage, &["blue"]).await?;
        change_everything(&stage, "green", "healthy").await?;
        stage.released("configmap/all", "r2").await?;
        stage.released("secret/all", "r2").await?;
        let first = stage.pods("job-name=first").await?;
        // At once: a pod that has time to end well completes its Job, and no other comes.
        stage.api::<Pod>().delete(&first[0].name_any(), &DeleteParams::default().grace_period(0)).await?;
        expect(&stage, &["blue"]).await?;
        stage.kubectl(&["create", "job", "second", "--from=cronjob/all"]).await?;
        expect(&stage, &["blue", "green"]).await
    })
    .await;
}

#[tokio::test]
async fn rollout_undo_brings_the_old_config_with_the_old_template() {
    scenario("undo", |stage| async move {
        // The workload is older than its adoption: its first template has no pins at all.
        stage.apply(&(config_map("web-env", "COLOR", "blue") + &web_deployment(1))).await?;
        expect_env(&stage, "blue").await?;
        stage.kubectl(&["label", "configmap", "web-env", "lockstep.dev/versioned=true"]).await?;
        stage.released("configmap/web-env", "1.0.0").await?;
        for (color, version) in [("green", "r2"), ("red", "r3")] {
            change_env(&stage, color).await?;
            stage.released("configmap/web-env", version).await?;
            expect_env(&stage, color).await?;
        }
        stage.kubectl(&["rollout", "undo", "deployment/web"]).await?;
        expect_env(&stage, "green").await?;
        stage.kubectl(&["rollout", "undo", "deployment/web", "--to-revision=1"]).await?;
        expect_env(&stage, "blue").await?;
        // The wish is respected: nothing moves until the next release.
        holds("the undone config", Duration::from_secs(5), async || see_env(&stage, "blue").await).await?;
        change_env(&stage, "yellow").await?;
        expect_env(&stage, "yellow").await
    })
    .await;
}

#[tokio::test]
async fn new_code_of_an_earlier_wave_keeps_the_config_and_that_of_a_later_one_waits_for_it() {
    scenario("code-in-waves", |stage| async move {
        stage.set_policy("default", &until_promoted()).await?;
        let later = releases::deployment("api", 1, "")
            .replace("  name: api\n", "  name: api\n  annotations: {lockstep.dev/wave: \"1\"}\n");
        releases::set_up(&stage, &(releases::deployment("web", 1, "") + &later)).await?;
        new_code_in_the_bake(&stage, &["web", "api"]).await?;
        ensure!(stage.pins("deployment/web").await? != stage.pins("deployment/api").await?, "a later wave has joined");
        expect_code_and_config(&stage, &["web", "api"]).await
    })
    .await;
}

#[tokio::test]
async fn where_nobody_joins_new_code_keeps_the_config_all_the_same() {
    scenario("code-without-joining", |stage| async move {
        let joining = Some(JoiningSpec { enabled: Some(false), ..JoiningSpec::default() });
        stage.set_policy("default", &ReleasePolicySpec { joining, ..until_promoted() }).await?;
        releases::set_up(&stage, &releases::deployment("web", 1, "")).await?;
        new_code_in_the_bake(&stage, &["web"]).await?;
        expect_code_and_config(&stage, &["web"]).await
    })
    .await;
}

#[tokio::test]
async fn adopting_a_running_app_restarts_nothing_and_protects_it() {
    scenario("adopt", |stage| async move {
        stage.apply(&(config_map("web-env", "COLOR", "blue") + &web_deployment(2))).await?;
        let before = eventually("two pods", SHORT, async || stage.ready_pods("app=web", 2).await).await?;
        stage.kubectl(&["annotate", "deployment", "web", "lockstep.dev/auto=true"]).await?;
        stage.released("configmap/web-env", "1.0.0").await?;
        holds("the same two pods", Duration::from_secs(5), async || {
            let now = stage.ready_pods("app=web", 2).await?;
            let same = now.iter().all(|pod| before.iter().any(|old| old.uid() == pod.uid()));
            ensure!(same && stage.replica_sets().await?.len() == 1, "pods or ReplicaSets changed");
            Ok(())
        })
        .await?;
        // From now on a recreated pod gets what it was adopted with, also while a bad change is on its way.
        stage.apply(&with_behavior("never-ready")).await?;
        eventually("a new template", SHORT, async || {
            ensure!(stage.replica_sets().await?.len() == 2, "still one ReplicaSet");
            Ok(())
        })
        .await?;
        stage.api::<Pod>().delete(&before[0].name_any(), &DeleteParams::default()).await?;
        eventually("two old pods that are ready", SHORT, async || {
            let seen = stage.seen("app=web", |report| report.loaded.env.get("COLOR").cloned()).await?;
            let old = seen.values().filter(|color| *color == "blue").count();
            ensure!(old == 2 && seen.len() == 3, "the pods see {seen:?}");
            Ok(())
        })
        .await
    })
    .await;
}

#[tokio::test]
async fn three_configs_changed_together_make_one_rollout() {
    scenario("three-configs", |stage| async move {
        let three = |color| versioned_colors(color) + &secret("web-secret", color);
        stage.apply(&(three("blue") + &deployment_with_secret())).await?;
        for config in ["configmap/web-env", "configmap/web-files", "secret/web-secret"] {
            stage.released(config, "1.0.0").await?;
        }
        eventually("a ready pod", SHORT, async || stage.ready_pods("app=web", 1).await).await?;
        ensure!(stage.replica_sets().await?.len() == 1, "the first deployment made more than one ReplicaSet");
        // Time enough for all three to be written and read.
        stage.set_policy("default", &ReleasePolicySpec { settle_milliseconds: Some(5_000), ..impatient() }).await?;
        let patch = |value: serde_json::Value| Patch::Merge(value);
        let (env, files) = (json!({"data": {"COLOR": "green"}}), json!({"data": {"color": "green"}}));
        let secret = json!({"stringData": {"COLOR": "green"}});
        let (configs, secrets, params) = (stage.api::<ConfigMap>(), stage.api::<Secret>(), PatchParams::default());
        let (env, files, secret) = (patch(env), patch(files), patch(secret));
        futures::try_join!(
            configs.patch("web-env", &params, &env),
            configs.patch("web-files", &params, &files),
            secrets.patch("web-secret", &params, &secret),
        )?;
        for config in ["configmap/web-env", "configmap/web-files", "secret/web-secret"] {
            stage.released(config, "r2").await?;
        }
        expect_env(&stage, "green").await?;
        let replica_sets = stage.replica_sets().await?;
        ensure!(replica_sets.len() == 2, "one change made {replica_sets:?}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn writing_the_same_again_changes_nothing() {
    scenario("same-again", |stage| async move {
        let manifests = versioned_colors("blue") + &web_deployment(1);
        stage.apply(&versioned_colors("blue")).await?;
        stage.released("configmap/web-env", "1.0.0").await?;
        stage.released("configmap/web-files", "1.0.0").await?;
        stage.apply(&manifests).await?;
        let pins = stage.pins("deployment/web").await?;
        ensure!(
            pins.contains("configmap/web-env=web-env-") && pins.contains("configmap/web-files=web-files-"),
            "{pins}"
        );

        stage.apply(&manifests).await?;
        stage.kubectl_with_input(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &manifests).await?;
        stage.kubectl_with_input(&["replace", "-f", "-"], &web_deployment(1)).await?;
        stage.kubectl(&["scale", "deployment/web", "--replicas=2"]).await?;
        stage.kubectl(&["label", "deployment/web", "team=shop"]).await?;
        stage.kubectl_with_input(&["diff", "-f", "-"], &(versioned_colors("blue") + &web_deployment(2))).await?;
        ensure!(
            stage.pins("deployment/web").await? == pins,
            "the pins are now {}",
            stage.pins("deployment/web").await?
        );
        ensure!(stage.replica_sets().await?.len() == 1, "an extra rollout");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_helm_release_makes_one_replica_set_for_each_change() {
    scenario("helm-versions", |stage| async move {
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/charts/versioned");
        stage.helm(&["install", "shop", chart, "--set", "color=blue", "--wait"]).await?;
        ensure!(stage.replica_sets().await?.len() == 1, "the first deployment made more than one ReplicaSet");
        stage.released("configmap/shop", "1.0.0").await?;
        stage.helm(&["upgrade", "shop", chart, "--set", "color=blue", "--wait"]).await?;
        ensure!(stage.replica_sets().await?.len() == 1, "the same release again made another ReplicaSet");
        stage.helm(&["upgrade", "shop", chart, "--set", "color=green", "--wait"]).await?;
        stage.released("configmap/shop", "r2").await?;
        eventually("the new color", SHORT, async || {
            let seen = stage.seen("app=shop", |report| report.loaded.env.get("COLOR").cloned()).await?;
            ensure!(seen.len() == 1 && seen.values().all(|color| color == "green"), "{seen:?}");
            Ok(())
        })
        .await?;
        ensure!(stage.replica_sets().await?.len() == 2, "one change made {:?}", stage.replica_sets().await?);
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_deleted_source_takes_nothing_along_that_is_in_use() {
    scenario("deleted-source", |stage| async move {
        stage.apply(&versioned_colors("blue")).await?;
        stage.released("configmap/web-env", "1.0.0").await?;
        stage.released("configmap/web-files", "1.0.0").await?;
        stage.apply(&web_deployment(1)).await?;
        expect_env(&stage, "blue").await?;
        stage.kubectl(&["delete", "configmap", "web-env"]).await?;
        let pod = stage.pods("app=web").await?[0].name_any();
        stage.api::<Pod>().delete(&pod, &DeleteParams::default()).await?;
        expect_env(&stage, "blue").await?;
        stage.kubectl(&["delete", "deployment", "web"]).await?;
        eventually("the versions to go with their last user", SHORT, async || {
            let left = stage.versions("configmap/web-env").await?;
            ensure!(left.is_empty(), "{left:?} are left");
            Ok(())
        })
        .await
    })
    .await;
}

/// No ReplicaSet and no Job holds it in its place.
#[tokio::test]
async fn a_pod_of_its_own_holds_its_version() {
    scenario("bare-pod", |stage| async move {
        release_unkept(&stage, "blue", "1.0.0").await?;
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {app: web}}\nspec:\n";
        stage.apply(&format!("{pod}{}", indent(&web_pod_spec(), 2))).await?;
        expect_env(&stage, "blue").await?;
        release_unkept(&stage, "green", "r2").await?;
        release_unkept(&stage, "red", "r3").await?;
        left(&stage, &["1.0.0", "r3"]).await?;
        stage.kubectl(&["delete", "pod", "web"]).await?;
        left(&stage, &["r3"]).await
    })
    .await;
}

/// Its template goes on to the next version, and its pods run on as they are.
#[tokio::test]
async fn a_pod_of_a_replication_controller_holds_the_version_that_its_maker_has_left() {
    scenario("left-pod", |stage| async move {
        release_unkept(&stage, "blue", "1.0.0").await?;
        let controller = "apiVersion: v1
kind: ReplicationController
metadata: {name: web}
spec:
  replicas: 1
  template:
    metadata: {labels: {app: web}}
    spec:
";
        stage.apply(&format!("{controller}{}", indent(&web_pod_spec(), 6))).await?;
        expect_env(&stage, "blue").await?;
        release_unkept(&stage, "green", "r2").await?;
        release_unkept(&stage, "red", "r3").await?;
        left(&stage, &["1.0.0", "r3"]).await?;
        // Which is used, and so is told apart from what is only late in going.
        holds("the version that the pod runs", Duration::from_secs(10), async || {
            let versions = stage.versions("configmap/web-env").await?;
            ensure!(versions.len() == 2, "{versions:?}");
            see_env(&stage, "blue").await
        })
        .await?;
        let pod = stage.pods("app=web").await?[0].name_any();
        stage.api::<Pod>().delete(&pod, &DeleteParams::default()).await?;
        expect_env(&stage, "red").await?;
        left(&stage, &["r3"]).await
    })
    .await;
}

#[tokio::test]
async fn as_many_versions_are_kept_as_wanted_besides_the_one_in_use() {
    scenario("retained", |stage| async move {
        for (color, version) in [("blue", "1.0.0"), ("green", "r2"), ("red", "r3"), ("pink", "r4")] {
            release_keeping(&stage, 1, color, version).await?;
        }
        left(&stage, &["r3", "r4"]).await?;
        holds("what is kept", Duration::from_secs(10), async || {
            let versions = stage.versions("configmap/web-env").await?;
            ensure!(versions.len() == 2, "{versions:?}");
            Ok(())
        })
        .await
    })
    .await;
}

/// Changes the config of `web`, of which nothing is kept that nobody runs.
async fn release_unkept(stage: &Scenario, color: &str, version: &str) -> Result<()> {
    release_keeping(stage, 0, color, version).await
}

async fn release_keeping(stage: &Scenario, count: u32, color: &str, version: &str) -> Result<()> {
    let data = format!("  annotations: {{lockstep.dev/retain: \"{count}\"}}\ndata: {{COLOR: {color}}}");
    stage.apply(&versioned("web-env", &data)).await?;
    stage.released("configmap/web-env", version).await
}

/// The versions that are left in the end.
async fn left(stage: &Scenario, expected: &[&str]) -> Result<()> {
    eventually(&format!("versions {expected:?}"), SHORT, async || {
        let mut names: Vec<String> = stage.versions("configmap/web-env").await?.into_values().collect();
        names.sort();
        ensure!(names == expected, "there are {names:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn empty_binary_large_and_long_named_configs_work() {
    scenario("odd-configs", |stage| async move {
        let large = "x".repeat(1_000_000);
        let long_name = "n".repeat(242);
        let odd = [
            ("empty", String::new()),
            ("binary", "binaryData: {blob: /wD+}".to_owned()),
            ("large", format!("data: {{blob: {large}}}")),
            (long_name.as_str(), "data: {key: value}".to_owned()),
        ];
        for (name, data) in &odd {
            stage.create(&versioned(name, data)).await?;
        }
        for (name, _) in &odd {
            stage.released(&format!("configmap/{name}"), "1.0.0").await?;
            let (object, _) = stage.versions(&format!("configmap/{name}")).await?.pop_first().unwrap_or_default();
            let (source, version) =
                (stage.api::<ConfigMap>().get(name).await?, stage.api::<ConfigMap>().get(&object).await?);
            ensure!(version.immutable == Some(true), "{name}: its version can be changed");
            ensure!(
                source.data == version.data && source.binary_data == version.binary_data,
                "{name}: content was lost"
            );
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_secrets_version_does_not_help_to_guess_it() {
    scenario("secret-digests", |stage| async move {
        stage.apply(&(secret("one", "blue") + &secret("two", "blue"))).await?;
        stage.apply(&versioned("plain", "data: {COLOR: blue}")).await?;
        for config in ["secret/one", "secret/two", "configmap/plain"] {
            stage.released(config, "1.0.0").await?;
        }
        let ending = async |config: &str| -> Result<String> {
            let (object, _) = stage.versions(config).await?.pop_first().unwrap_or_default();
            Ok(object.rsplit('-').next().unwrap_or_default().to_owned())
        };
        ensure!(ending("secret/one").await? != ending("configmap/plain").await?, "the digest of a Secret is not keyed");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_version_says_who_made_it_and_why() {
    scenario("who-and-why", |stage| async move {
        let named = |version: &str, reason: &str, value: &str| {
            let annotations = format!("{{lockstep.dev/version: {version:?}, lockstep.dev/reason: {reason:?}}}");
            versioned("app", &format!("  annotations: {annotations}\ndata: {{key: {value:?}}}"))
        };
        stage.apply(&named("1.4.0", "first", "one")).await?;
        stage.released("configmap/app", "1.4.0").await?;
        let refused = stage.apply(&named("1.4.0", "again", "two")).await.unwrap_err().to_string();
        ensure!(refused.contains("has other content already") && refused.contains("new name"), "{refused}");
        stage.apply(&named("1.5.0", "a better value", "two")).await?;
        stage.released("configmap/app", "1.5.0").await?;

        let me = stage.kubectl(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]).await?;
        let versions = stage.versions("configmap/app").await?;
        let (object, _) = versions.iter().find(|(_, name)| *name == "1.5.0").context("1.5.0 is gone")?;
        let version = stage.api::<ConfigMap>().get(object).await?;
        let said = |name: &str| version.annotations().get(name).cloned().unwrap_or_default();
        ensure!(said("lockstep.dev/changed-by") == me, "made by {:?}", said("lockstep.dev/changed-by"));
        ensure!(said("lockstep.dev/reason") == "a better value", "because {:?}", said("lockstep.dev/reason"));
        ensure!(said("lockstep.dev/number") == "2", "number {:?}", said("lockstep.dev/number"));
        Ok(())
    })
    .await;
}

/// Changes the config, and in the bake of its release the code of these Deployments. Their pins stay as the release has them.
async fn new_code_in_the_bake(stage: &Scenario, names: &[&str]) -> Result<()> {
    stage.apply(&releases::config("green", "healthy")).await?;
    phase(stage, FIRST, "Baking").await?;
    for name in names {
        let workload = format!("deployment/{name}");
        // A workload that was adopted and never written since has no pins yet, and gets those of what is current.
        let before = stage.pins(&workload).await?;
        stage.kubectl(&["set", "env", &workload, "BUILD=2"]).await?;
        let after = stage.pins(&workload).await?;
        ensure!(before.is_empty() || after == before, "{name} had {before} and has {after}");
    }
    Ok(())
}

/// Lets the release go to its end, at which all run the new code with the new config.
async fn expect_code_and_config(stage: &Scenario, names: &[&str]) -> Result<()> {
    steer(stage, &format!("release/{FIRST}"), r#"{"spec":{"promote":true}}"#).await?;
    ended(stage, FIRST, "Succeeded").await?;
    let status = stage.api::<Release>().get(FIRST).await?.status.context("the release says nothing")?;
    for name in names {
        eventually(&format!("{name} to run the new code with the new config"), SHORT, async || {
            let pair = |report: &ConfigReport| {
                Some(format!("{} {}", report.loaded.env.get("BUILD")?, report.loaded.env.get("COLOR")?))
            };
            let seen = stage.seen(&format!("app={name}"), pair).await?;
            ensure!(!seen.is_empty() && seen.values().all(|pair| pair == "2 green"), "the pods see {seen:?}");
            Ok(())
        })
        .await?;
        let record = status.consumers.iter().find(|consumer| consumer.name == *name).context("it is not recorded")?;
        ensure!(record.state == "Ready", "{name} is {}", record.state);
    }
    Ok(())
}

const NO_PARTITION: &str = r#"{"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}"#;

/// One ConfigMap and one Secret, both called `all`.
fn everything(color: &str, behavior: &str) -> String {
    let data = format!("{{color: {color:?}, behavior: {behavior:?}}}");
    format!(
        "
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: all
  labels: {{lockstep.dev/versioned: \"true\"}}
data: {data}
---
apiVersion: v1
kind: Secret
metadata:
  name: all
  labels: {{lockstep.dev/versioned: \"true\"}}
stringData: {{color: {color:?}}}
---
"
    )
}

/// At the same moment: on a busy machine kubectl may take longer between two objects than changes are waited for.
async fn change_everything(stage: &Scenario, color: &str, behavior: &str) -> Result<()> {
    let config_map = Patch::Merge(json!({"data": {"color": color, "behavior": behavior}}));
    let secret = Patch::Merge(json!({"stringData": {"color": color}}));
    let (configs, secrets, params) = (stage.api::<ConfigMap>(), stage.api::<Secret>(), PatchParams::default());
    futures::try_join!(configs.patch("all", &params, &config_map), secrets.patch("all", &params, &secret))?;
    Ok(())
}

/// A pod that uses both in every way: volume, projected, subPath, envFrom, env; in a container and an init container.
fn pod_spec_of_everything() -> String {
    let image = testapp_image();
    format!(
        "terminationGracePeriodSeconds: 1
initContainers:
- name: first
  image: {image}
  restartPolicy: Always
  env:
  - {{name: PORT, value: \"8081\"}}
  - {{name: CONFIG_DIRS, value: /none}}
  envFrom:
  - {{prefix: INIT_, secretRef: {{name: all}}}}
containers:
- name: app
  image: {image}
  env:
  - {{name: CONFIG_DIRS, value: /etc/config}}
  - {{name: ENV_CONFIG_MAP, valueFrom: {{configMapKeyRef: {{name: all, key: color}}}}}}
  - {{name: ENV_SECRET, valueFrom: {{secretKeyRef: {{name: all, key: color}}}}}}
  envFrom:
  - {{prefix: FROM_CONFIG_MAP_, configMapRef: {{name: all}}}}
  - {{prefix: FROM_SECRET_, secretRef: {{name: all}}}}
  readinessProbe:
    httpGet: {{path: /readyz, port: 8080}}
    periodSeconds: 1
    timeoutSeconds: 10
    failureThreshold: 30
  volumeMounts:
  - {{name: config-map, mountPath: /etc/config/config-map}}
  - {{name: secret, mountPath: /etc/config/secret}}
  - {{name: projected, mountPath: /etc/config/projected}}
  - {{name: config-map, mountPath: /etc/config/sub/color, subPath: color}}
volumes:
- name: config-map
  configMap: {{name: all}}
- name: secret
  secret: {{secretName: all}}
- name: projected
  projected:
    sources:
    - configMap: {{name: all, items: [{{key: color, path: from-config-map}}]}}
    - secret: {{name: all, items: [{{key: color, path: from-secret}}]}}
"
    )
}

/// Nobody has pinned the template that it comes from: it is a workload like any other.
#[tokio::test]
async fn a_job_that_a_foreign_controller_makes_gets_what_is_current() {
    scenario("scaled-job", |stage| async move {
        // What was current at the adoption, and pods without a pin get, is another version by then.
        releases::set_up(&stage, &releases::deployment("web", 1, "")).await?;
        stage.apply(&releases::config("green", "healthy")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        let account =
            eventually("a service account", SHORT, async || Ok(stage.api::<ServiceAccount>().get("default").await?))
                .await?;
        // One that is there: without it, the garbage collector would take the Job.
        let owner = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "name": "default", "uid": account.uid(), "controller": true,
        });
        let container =
            json!({"name": "app", "image": testapp_image(), "envFrom": [{"configMapRef": {"name": "app"}}]});
        let spec = json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]});
        let job = json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "scaled", "ownerReferences": [owner]},
            "spec": {"template": {"metadata": {"labels": {"app": "scaled"}}, "spec": spec}},
        });
        stage.create(&job.to_string()).await?;
        releases::expect(&stage, "app=scaled", &["green"]).await
    })
    .await;
}

/// The color, if the pod sees the same one everywhere.
fn color_of_everything(report: &ConfigReport) -> Option<String> {
    let env = ["ENV_CONFIG_MAP", "ENV_SECRET", "FROM_CONFIG_MAP_color", "FROM_SECRET_color"];
    let files = ["config-map/color", "secret/color", "projected/from-config-map", "projected/from-secret", "sub/color"];
    let mut seen: Vec<&String> = Vec::new();
    for name in env {
        seen.push(report.loaded.env.get(name)?);
    }
    for path in files {
        seen.push(report.loaded.files.get(&format!("/etc/config/{path}"))?);
    }
    seen.dedup();
    Some(seen.into_iter().cloned().collect::<Vec<_>>().join("+"))
}

async fn expect(stage: &Scenario, expected: &[&str]) -> Result<()> {
    eventually(&format!("pods that see {expected:?}"), SHORT, async || {
        let seen = stage.seen("app=all", color_of_everything).await?;
        let mut colors: Vec<&str> = seen.values().map(String::as_str).collect();
        colors.sort_unstable();
        ensure!(colors == expected, "the pods see {seen:?}");
        Ok(())
    })
    .await
}

fn workload_of_everything(head: &str, spec: &str) -> String {
    format!(
        "
{head}
metadata:
  name: all
spec:
{}
  selector:
    matchLabels: {{app: all}}
  template:
    metadata:
      labels: {{app: all}}
    spec:
{}",
        indent(spec, 2),
        indent(&pod_spec_of_everything(), 6)
    )
}

fn deployment_of_everything(replicas: u32) -> String {
    let strategy = "strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}";
    workload_of_everything("apiVersion: apps/v1\nkind: Deployment", &format!("replicas: {replicas}\n{strategy}"))
}

fn stateful_set_of_everything() -> String {
    let spec =
        "replicas: 2\nserviceName: all\npodManagementPolicy: Parallel\nupdateStrategy: {rollingUpdate: {partition: 1}}";
    workload_of_everything("apiVersion: apps/v1\nkind: StatefulSet", spec)
}

fn daemon_set_of_everything() -> String {
    workload_of_everything("apiVersion: apps/v1\nkind: DaemonSet", "minReadySeconds: 0")
}

fn cron_job_of_everything() -> String {
    format!(
        "
apiVersion: batch/v1
kind: CronJob
metadata:
  name: all
spec:
  schedule: 0 0 1 1 *
  suspend: true
  jobTemplate:
    spec:
      template:
        metadata:
          labels: {{app: all}}
        spec:
          restartPolicy: Never
{}",
        indent(&pod_spec_of_everything(), 10)
    )
}

fn secret(name: &str, color: &str) -> String {
    format!(
        "
---
apiVersion: v1
kind: Secret
metadata:
  name: {name}
  labels: {{lockstep.dev/versioned: \"true\"}}
stringData: {{COLOR: {color:?}}}
---
"
    )
}

fn with_behavior(behavior: &str) -> String {
    format!(
        "\n---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: web-env\ndata: {{COLOR: green, BEHAVIOR: {behavior}}}\n"
    )
}

fn deployment_with_secret() -> String {
    let spec = web_pod_spec().replace("volumes:", "volumes:\n- name: secret\n  secret: {secretName: web-secret}");
    deployment("web", 1, &spec)
}

async fn change_env(stage: &Scenario, color: &str) -> Result<()> {
    let patch = format!(r#"{{"data": {{"COLOR": {color:?}}}}}"#);
    stage.kubectl(&["patch", "configmap", "web-env", "-p", &patch]).await.map(drop)
}

async fn expect_env(stage: &Scenario, color: &str) -> Result<()> {
    eventually(&format!("all pods to see {color}"), SHORT, async || see_env(stage, color).await).await
}

async fn see_env(stage: &Scenario, color: &str) -> Result<()> {
    let seen = stage.seen("app=web", |report| report.loaded.env.get("COLOR").cloned()).await?;
    ensure!(!seen.is_empty() && seen.values().all(|value| value == color), "the pods see {seen:?}");
    Ok(())
}
