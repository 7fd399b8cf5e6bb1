//! What one person may write must not blind Lockstep for everybody: objects that it cannot read, and values without bounds.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lockstep_testing::{SHORT, Scenario, eventually, impatient, scenario};
use serde_json::{Value, json};

use super::releases::{FIRST, config, deployment, ended, expect, set_up};

/// Deeper than the operator's parser goes, and not deeper than the API server's.
const TOO_DEEP: usize = 300;
const OPERATOR: &str = "deployment/lockstep";
const OPERATORS: &str = "app.kubernetes.io/name=lockstep";

/// Somebody who may edit one namespace, and nothing else.
struct Editor<'a> {
    stage: &'a Scenario,
    name: String,
}

impl<'a> Editor<'a> {
    async fn of(stage: &'a Scenario) -> Result<Self> {
        let name = format!("editor-of-{}", stage.namespace);
        let user = format!("--user={name}");
        stage.kubectl(&["create", "rolebinding", "editor", "--clusterrole=edit", &user]).await?;
        Ok(Self { stage, name })
    }

    async fn create(&self, object: &Value) -> Result<()> {
        let arguments = ["create", "-f", "-", "--as", self.name.as_str()];
        self.stage.kubectl_with_input(&arguments, &object.to_string()).await.map(drop)
    }

    /// What the API server says to an object that it refuses.
    async fn refused(&self, object: &Value) -> Result<String> {
        match self.create(object).await {
            Ok(()) => anyhow::bail!("it was taken: {object}"),
            Err(error) => Ok(format!("{error:#}")),
        }
    }
}

fn policy(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "lockstep.dev/v1alpha1", "kind": "ReleasePolicy", "metadata": {"name": name}, "spec": spec})
}

fn versioned_config(name: &str, source: &str) -> Value {
    let spec = json!({"source": {"kind": "ConfigMap", "name": source}});
    json!({"apiVersion": "lockstep.dev/v1alpha1", "kind": "VersionedConfig", "metadata": {"name": name}, "spec": spec})
}

/// The API server takes it, whatever our bounds are: a schema is any object.
fn unreadable_policy(name: &str) -> Value {
    let schema = (0..TOO_DEEP).fold(json!({}), |inner, _| json!({"not": inner}));
    policy(name, &json!({"validation": {"schemas": [{"key": "a.json", "schema": schema}]}}))
}

#[tokio::test]
async fn values_without_bounds_are_refused_with_the_bound() {
    scenario("bounds", |stage| async move {
        let editor = Editor::of(&stage).await?;
        let cases = [
            (policy("canary", &json!({"canary": {"size": 99_999_999_999_u64}})), "spec.canary.size"),
            (policy("parallel", &json!({"maxParallel": 99_999_999_999_u64})), "spec.maxParallel"),
            (policy("storm", &json!({"stormGuard": {"freeReleases": 99_999_999_999_u64}})), "freeReleases"),
            (versioned_config("foreign", &"ü".repeat(150)), "spec.source.name"),
            (versioned_config("second", "app"), "it must be named after its source"),
        ];
        for (object, expected) in cases {
            let said = editor.refused(&object).await?;
            ensure!(said.contains(expected), "{said}");
        }
        editor.create(&versioned_config("configmap-app", "app")).await
    })
    .await;
}

#[tokio::test]
async fn a_policy_that_cannot_be_read_stops_its_own_configs_and_nobody_else() {
    scenario("unreadable", |stage| async move {
        let neighbour = format!("{}-neighbour", stage.namespace);
        stage.kubectl(&["create", "namespace", &neighbour]).await?;
        let outcome = unreadable(&stage, &stage.elsewhere(&neighbour)).await;
        stage.kubectl(&["delete", "namespace", &neighbour, "--wait=false"]).await?;
        outcome
    })
    .await;
}

async fn unreadable(stage: &Scenario, neighbour: &Scenario) -> Result<()> {
    neighbour.set_policy("default", &impatient()).await?;
    set_up(stage, &deployment("web", 1, "")).await?;
    set_up(neighbour, &deployment("web", 1, "")).await?;
    let own = stage.elsewhere("lockstep-system");
    expect_counted(&own, 0).await?;
    stage.kubectl(&["delete", "releasepolicy", "default", "--ignore-not-found"]).await?;
    Editor::of(stage).await?.create(&unreadable_policy("default")).await?;
    expect_told(stage).await?;
    expect_counted(&own, 1).await?;

    // What was seen before the object came must be seen again.
    own.kubectl(&["rollout", "restart", OPERATOR]).await?;
    own.kubectl(&["rollout", "status", OPERATOR, "--timeout=120s"]).await?;
    stage.apply(&config("green", "healthy")).await?;
    neighbour.apply(&config("green", "healthy")).await?;
    ended(neighbour, FIRST, "Succeeded").await?;
    expect(neighbour, "app=web", &["green"]).await?;
    expect_refused(stage).await?;
    expect(stage, "app=web", &["blue"]).await?;
    expect_counted(&own, 1).await?;

    stage.kubectl(&["delete", "releasepolicy", "default"]).await?;
    expect_counted(&own, 0).await?;
    stage.set_policy("default", &impatient()).await?;
    ended(stage, FIRST, "Succeeded").await?;
    expect(stage, "app=web", &["green"]).await
}

/// As a file it has a megabyte; as values in memory it would have a hundred times as much.
#[tokio::test]
async fn a_config_that_is_small_as_a_file_and_huge_in_memory_ends_nobody() {
    scenario("bomb", |stage| async move {
        stage.set_policy("default", &impatient()).await?;
        set_up(&stage, &deployment("web", 1, "")).await?;
        let own = stage.elsewhere("lockstep-system");
        // Another test may have changed the installation just now: its pods are on their way out.
        let restarts = async || -> Result<Vec<(String, i32)>> {
            Ok(own.pods(OPERATORS).await?.iter().map(|pod| (pod.name_any(), restarts_of(pod))).collect())
        };
        own.kubectl(&["rollout", "status", OPERATOR, "--timeout=120s"]).await?;
        let before = restarts().await?;
        let bomb = format!("[{}{{}}]", r#"{"":0},"#.repeat(120_000));
        let editor = Editor::of(&stage).await?;
        let object = |(name, key): (&str, &str), text: &str| {
            let metadata = json!({"name": name, "labels": {"lockstep.dev/versioned": "true"}});
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {key: text}})
        };
        let bombs = [("one", "a.json"), ("two", "b.json"), ("three", "c.yaml")];
        for bomb in bombs {
            editor.create(&object(bomb, "{}")).await?;
            stage.released(&format!("configmap/{}", bomb.0), "1.0.0").await?;
        }
        // All at once: one alone might fit.
        let changed = bombs.map(|at| object(at, &bomb).to_string());
        futures::future::try_join_all(
            changed.iter().map(|object| stage.kubectl_with_input(&["replace", "-f", "-"], object)),
        )
        .await?;
        stage.apply(&config("green", "healthy")).await?;
        ended(&stage, FIRST, "Succeeded").await?;
        for name in ["one", "two", "three"] {
            eventually(&format!("the end of {name}'s change"), SHORT, async || {
                let status = &stage.read(&format!("versionedconfig/configmap-{name}")).await?["status"];
                let is_over = status["current"]["version"] == "r2" || status["held"].is_object();
                ensure!(is_over && status["releasing"].is_null(), "{status}");
                Ok(())
            })
            .await?;
        }
        let after = restarts().await?;
        ensure!(before == after, "the operator restarted: {before:?}, then {after:?}");
        Ok(())
    })
    .await;
}

fn restarts_of(pod: &Pod) -> i32 {
    let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    containers.map(|container| container.restart_count).sum()
}

/// A Warning on the object says that it cannot be read.
async fn expect_told(stage: &Scenario) -> Result<()> {
    eventually("an Event about the policy", SHORT, async || {
        let told = stage.kubectl(&["events", "--for", "releasepolicy/default", "--types=Warning"]).await?;
        ensure!(told.contains("Unreadable") && told.contains("ReleasePolicy default cannot be read"), "{told}");
        Ok(())
    })
    .await
}

/// So many objects cannot be read, by the operators' metrics: only who leads looks at any.
async fn expect_counted(own: &Scenario, wanted: u32) -> Result<()> {
    eventually(&format!("{wanted} unreadable objects to be counted"), SHORT, async || {
        let mut counted = 0;
        for pod in own.pods(OPERATORS).await? {
            let metrics = own.ask_text(&pod.name_any(), "metrics").await?;
            let value = metrics.lines().find_map(|line| line.strip_prefix("lockstep_unreadable_objects "));
            counted += value.context("there is no such metric")?.trim().parse::<u32>()?;
        }
        ensure!(counted == wanted, "there are {counted}");
        Ok(())
    })
    .await
}

/// The config says why nothing of it is released.
async fn expect_refused(stage: &Scenario) -> Result<()> {
    eventually("the config to be told", SHORT, async || {
        let found = stage.read("versionedconfig/configmap-app").await?;
        let conditions = found["status"]["conditions"].as_array().context("no conditions")?;
        let is_refused = |condition: &Value| {
            let message = condition["message"].as_str().unwrap_or_default();
            condition["reason"] == "Refused" && message.contains("ReleasePolicy default cannot be read")
        };
        ensure!(conditions.iter().any(is_refused), "{conditions:?}");
        Ok(())
    })
    .await
}
