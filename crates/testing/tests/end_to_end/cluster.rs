//! The cluster itself: what every other end-to-end test takes for granted.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::{ListParams, LogParams};
use lockstep_testing::manifests::{config_map, testapp_image, web_deployment, web_rollout};
use lockstep_testing::{LONG, SHORT, Scenario, eventually, holds, scenario};

#[tokio::test]
async fn a_deployment_rolls_to_a_new_template() {
    scenario("deployment-rolls", |stage| async move {
        stage.apply(&(config_map("web-env", "COLOR", "blue") + &web_deployment(2))).await?;
        stage.kubectl(&["rollout", "status", "deployment/web", "--timeout=300s"]).await?;
        stage.kubectl(&["set", "env", "deployment/web", "SIZE=large"]).await?;
        stage.kubectl(&["rollout", "status", "deployment/web", "--timeout=300s"]).await?;

        let pods =
            eventually("two pods of the new template", SHORT, async || stage.ready_pods("app=web", 2).await).await?;
        for pod in pods {
            let seen = stage.config_seen_by(&pod.name_any()).await?.loaded.env;
            ensure!(seen.get("COLOR").is_some_and(|color| color == "blue"), "COLOR is {:?}", seen.get("COLOR"));
            ensure!(seen.get("SIZE").is_some_and(|size| size == "large"), "SIZE is {:?}", seen.get("SIZE"));
        }
        let replica_sets = stage.api::<ReplicaSet>().list(&ListParams::default()).await?;
        ensure!(replica_sets.items.len() == 2, "{} ReplicaSets instead of 2", replica_sets.items.len());
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_readiness_probe_holds_back_a_bad_template() {
    scenario("probe-holds-back", |stage| async move {
        stage.apply(&web_deployment(2)).await?;
        stage.kubectl(&["rollout", "status", "deployment/web", "--timeout=300s"]).await?;
        stage.kubectl(&["set", "env", "deployment/web", "BEHAVIOR=never-ready"]).await?;

        eventually("a pod of the bad template that runs unready", SHORT, async || {
            let pods = stage.pods("app=web").await?;
            ensure!(pods.iter().any(|pod| !is_ready(pod) && is_running(pod)), "{} pods, none unready", pods.len());
            Ok(())
        })
        .await?;
        holds("two old pods are ready", Duration::from_secs(5), async || {
            let ready = stage.pods("app=web").await?.iter().filter(|pod| is_ready(pod)).count();
            ensure!(ready == 2, "{ready} pods are ready");
            Ok(())
        })
        .await
    })
    .await;
}

#[tokio::test]
async fn the_test_app_behaves_as_its_configuration_says() {
    scenario("behaviors", |stage| async move {
        for (name, behavior) in [("crash", "crash"), ("late", "ready-after 3s"), ("failing", "error-rate 0.5")] {
            stage.apply(&bare_pod(name, behavior)).await?;
        }
        eventually("a pod that crashes again and again", SHORT, async || {
            let pod = stage.api::<Pod>().get("crash").await?;
            ensure!(restarts(&pod) > 0, "no restart yet");
            Ok(())
        })
        .await?;
        eventually("a pod that gets ready late", SHORT, async || {
            let pod = stage.api::<Pod>().get("late").await?;
            ensure!(is_ready(&pod) && restarts(&pod) == 0, "not ready");
            Ok(())
        })
        .await?;
        eventually("the failing pod", SHORT, async || stage.ready_pods("name=failing", 1).await).await?;
        let mut failures = 0;
        for _ in 0..10 {
            failures += i32::from(stage.ask_text("failing", "").await.is_err());
        }
        ensure!(failures == 5, "{failures} of 10 requests failed instead of 5");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_service_answers_by_name_from_another_pod() {
    scenario("service-by-name", |stage| async move {
        stage.apply(&web_deployment(2)).await?;
        stage.kubectl(&["expose", "deployment", "web", "--port=80", "--target-port=8080"]).await?;
        stage.kubectl(&["rollout", "status", "deployment/web", "--timeout=300s"]).await?;
        stage.apply(&asking_job("http://web/config")).await?;
        stage.kubectl(&["wait", "--for=condition=Complete", "job/ask", "--timeout=300s"]).await?;

        let pods = stage.pods("job-name=ask").await?;
        let mut answers = String::new();
        for pod in &pods {
            answers += &stage.api::<Pod>().logs(&pod.name_any(), &LogParams::default()).await?;
        }
        ensure!(answers.contains("\"host\":\"web-"), "the answers are: {answers}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn an_argo_rollout_takes_a_canary_step_and_is_promoted() {
    scenario("argo-canary", |stage| async move {
        stage.apply(&(config_map("web-env", "COLOR", "blue") + &web_rollout(3))).await?;
        eventually("three stable pods", SHORT, async || stage.ready_pods("app=web", 3).await).await?;
        stage.kubectl(&["patch", "rollout", "web", "--type=merge", "-p", CHANGE_OF_TEMPLATE]).await?;
        eventually("the canary to pause with one new pod", SHORT, async || {
            stage.ready_pods("app=web", 3).await?;
            ensure!(new_pods(&stage).await? == 1, "{} new pods", new_pods(&stage).await?);
            rollout_phase(&stage, "Paused").await
        })
        .await?;
        stage.kubectl(&["argo", "rollouts", "promote", "web"]).await?;
        eventually("three new pods", SHORT, async || {
            stage.ready_pods("app=web", 3).await?;
            ensure!(new_pods(&stage).await? == 3, "{} new pods", new_pods(&stage).await?);
            rollout_phase(&stage, "Healthy").await
        })
        .await
    })
    .await;
}

#[tokio::test]
async fn an_admission_policy_changes_what_is_written() {
    scenario("admission-policy", |stage| async move {
        stage.apply(&stamping_policy(&stage.namespace)).await?;
        let stamped = eventually("the policy to act", SHORT, async || {
            stage.kubectl(&["delete", "configmap", "probe", "--ignore-not-found"]).await?;
            stage.apply(&config_map("probe", "key", "value")).await?;
            let written = stage.api::<ConfigMap>().get("probe").await?;
            ensure!(written.annotations().contains_key("stamped"), "not stamped yet");
            Ok(written)
        })
        .await;
        // The policy is cluster-wide: it must not outlive the test, whatever its outcome.
        for kind in ["mutatingadmissionpolicybinding", "mutatingadmissionpolicy"] {
            stage.kubectl(&["delete", kind, &stage.namespace]).await?;
        }
        ensure!(stamped?.annotations()["stamped"] == "admin", "stamped by somebody else");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_helm_release_is_upgraded_and_rolled_back() {
    scenario("helm-release", |stage| async move {
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/charts/color");
        stage.helm(&["install", "color", chart, "--set", "color=blue", "--wait"]).await?;
        expect_color(&stage, "blue").await?;
        stage.helm(&["upgrade", "color", chart, "--set", "color=green", "--wait"]).await?;
        expect_color(&stage, "green").await?;
        stage.helm(&["rollback", "color", "1", "--wait"]).await?;
        expect_color(&stage, "blue").await
    })
    .await;
}

#[tokio::test]
async fn a_mounted_config_map_changes_but_the_environment_does_not() {
    scenario("mounted-config-map", |stage| async move {
        let both = |value| config_map("web-env", "COLOR", value) + &config_map("web-files", "color", value);
        stage.apply(&(both("blue") + &web_deployment(1))).await?;
        let pods = eventually("a ready pod", SHORT, async || stage.ready_pods("app=web", 1).await).await?;
        let pod = pods[0].name_any();
        stage.apply(&both("green")).await?;
        eventually("the kubelet to bring the new file", LONG, async || {
            let seen = stage.config_seen_by(&pod).await?.files_now;
            ensure!(seen["/etc/config/color"] == "green", "the file still says {}", seen["/etc/config/color"]);
            Ok(())
        })
        .await?;
        let loaded = stage.config_seen_by(&pod).await?.loaded;
        ensure!(loaded.env["COLOR"] == "blue", "the environment of a running container changed");
        ensure!(loaded.files["/etc/config/color"] == "blue", "the app loaded the file without being asked");
        Ok(())
    })
    .await;
}

const CHANGE_OF_TEMPLATE: &str = r#"{"spec": {"template": {"metadata": {"labels": {"track": "new"}}}}}"#;

async fn new_pods(stage: &Scenario) -> Result<usize> {
    Ok(stage.pods("app=web,track=new").await?.len())
}

async fn rollout_phase(stage: &Scenario, expected: &str) -> Result<()> {
    let phase = &stage.read("rollout/web").await?["status"]["phase"];
    ensure!(*phase == expected, "the Rollout is {phase}, not {expected}");
    Ok(())
}

fn bare_pod(name: &str, behavior: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  labels: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: {}
    env:
    - {{name: BEHAVIOR, value: {behavior}}}
    readinessProbe:
      httpGet: {{path: /readyz, port: 8080}}
      periodSeconds: 1
      timeoutSeconds: 10
      failureThreshold: 30
",
        testapp_image()
    )
}

fn asking_job(url: &str) -> String {
    format!(
        "
apiVersion: batch/v1
kind: Job
metadata:
  name: ask
spec:
  template:
    spec:
      restartPolicy: OnFailure
      containers:
      - name: ask
        image: {}
        args: [get, {url}]
",
        testapp_image()
    )
}

/// Stamps the user's name on every new ConfigMap of one namespace.
fn stamping_policy(namespace: &str) -> String {
    format!(
        "
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata:
  name: {namespace}
spec:
  reinvocationPolicy: Never
  failurePolicy: Fail
  matchConstraints:
    namespaceSelector:
      matchLabels: {{kubernetes.io/metadata.name: {namespace}}}
    resourceRules:
    - apiGroups: ['']
      apiVersions: [v1]
      operations: [CREATE]
      resources: [configmaps]
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: 'Object{{metadata: Object.metadata{{annotations: {{\"stamped\": request.userInfo.username}}}}}}'
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata:
  name: {namespace}
spec:
  policyName: {namespace}
"
    )
}

async fn expect_color(stage: &Scenario, expected: &str) -> Result<()> {
    eventually("the release's color in its pod", SHORT, async || {
        let pods = stage.ready_pods("app=color", 1).await?;
        let seen = stage.config_seen_by(&pods[0].name_any()).await?.loaded.env;
        ensure!(seen["COLOR"] == expected, "the pod's color is {}", seen["COLOR"]);
        Ok(())
    })
    .await
}

fn is_ready(pod: &Pod) -> bool {
    container_status(pod, |status| status.ready)
}

fn is_running(pod: &Pod) -> bool {
    container_status(pod, |status| status.state.as_ref().is_some_and(|state| state.running.is_some()))
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.map(|status| status.restart_count).sum()
}

fn container_status(pod: &Pod, check: fn(&k8s_openapi::api::core::v1::ContainerStatus) -> bool) -> bool {
    let mut statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.any(check)
}
