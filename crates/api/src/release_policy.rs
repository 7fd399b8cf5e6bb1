//! How releases go: shared by many configs.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use lockstep_core::policy::{BatchSize, JoinedFailure, Joining, Policy, StormGuard};
use lockstep_core::validation::{KeySchema, Parsing, Rule, Validation};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How releases of a config go. A config names its policy in the annotation `lockstep.dev/policy`; otherwise the policy named
/// `default` of its namespace counts, if there is one. What a policy leaves out is as if there were none.
#[allow(clippy::duplicated_attributes, reason = "each column has a type of its own")]
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "lockstep.dev",
    version = "v1alpha1",
    kind = "ReleasePolicy",
    namespaced,
    category = "lockstep",
    printcolumn(name = "Bake", type_ = "integer", json_path = ".spec.bakeSeconds"),
    printcolumn(name = "Canary", type_ = "string", json_path = ".spec.canary.size"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ReleasePolicySpec {
    /// How long a consumer may stand still, not ready, before its release fails. Default 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub progress_deadline_seconds: Option<i32>,
    /// How long new pods are watched after they are ready, before the release goes on. Default 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub bake_seconds: Option<i32>,
    /// How long further changes are waited for, so that changes close together make one release. Default 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 600_000))]
    pub settle_milliseconds: Option<i32>,
    /// How many consumers of a wave roll at the same time. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_parallel: Option<i32>,
    /// A first batch of each consumer's pods, which bakes before the rest follows. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureLimits>,
    /// Whether a failed release puts the last good version back by itself. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automatic_rollback: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joining: Option<JoiningSpec>,
    /// How many versions are kept besides those in use. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub retain_versions: Option<i32>,
    /// How many ended releases of a config are kept. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub retain_releases: Option<i32>,
    /// Whether a consumer is left alone if no key that it uses changed. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_used_keys: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storm_guard: Option<StormGuardSpec>,
    /// What a config's content must fulfil before anything moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<ValidationSpec>,
}

/// Rules for a config's content. A change that breaks one is Rejected, and the current version stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ValidationSpec {
    /// Whether files must be readable, by their extension: .json, .yaml, .yml, .toml, .properties. Default `KeepParsing`: what could be
    /// read in the last good version must be readable in the new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parse: Option<ParseRule>,
    /// JSON Schemas for the values of keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub schemas: Vec<KeySchemaSpec>,
    /// CEL expressions over `data` and `oldData` (key to text) that must be true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub rules: Vec<RuleSpec>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ParseRule {
    Off,
    KeepParsing,
    Always,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KeySchemaSpec {
    /// The key that it is for, which must be there.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// A JSON Schema. References must stay within it.
    #[schemars(schema_with = "any_object")]
    pub schema: serde_json::Value,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RuleSpec {
    /// Such as `int(data.WORKERS) <= 2 * int(oldData.WORKERS)`.
    #[schemars(length(min = 1, max = 10_000))]
    pub expression: String,
    /// What to tell whoever breaks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 500))]
    pub message: Option<String>,
}

/// Anything else would silently mean no canary at all.
fn pods_or_share(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "description": "So many pods (`1`), or a share of them (`20%`), rounded up.",
        "x-kubernetes-int-or-string": true,
        "pattern": "^([1-9][0-9]{0,5}|100%|[1-9][0-9]?%)$",
        "minimum": 1,
        "maximum": 999_999,
    })
}

fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

impl From<&ValidationSpec> for Validation {
    fn from(spec: &ValidationSpec) -> Self {
        let parse = match spec.parse {
            Some(ParseRule::Off) => Parsing::Off,
            Some(ParseRule::Always) => Parsing::Always,
            Some(ParseRule::KeepParsing) | None => Parsing::KeepParsing,
        };
        let schema = |spec: &KeySchemaSpec| KeySchema { key: spec.key.clone(), schema: spec.schema.clone() };
        let rule = |spec: &RuleSpec| Rule { expression: spec.expression.clone(), message: spec.message.clone() };
        Self { parse, schemas: spec.schemas.iter().map(schema).collect(), rules: spec.rules.iter().map(rule).collect() }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Canary {
    /// So many pods (`1`), or a share of them (`20%`), rounded up.
    #[schemars(schema_with = "pods_or_share")]
    pub size: IntOrString,
}

/// How much may go wrong.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureLimits {
    /// How many new pods may fail before the release does. Default 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub max_failing_pods: Option<i32>,
    /// How often a new pod may restart before it counts as failing. After it was ready, every restart counts. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub max_restarts: Option<i32>,
}

/// What becomes of a workload that is written while a release is under way.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JoiningSpec {
    /// Whether it gets the new version in the same write, so that new code and new config arrive together. Default true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// What happens if it then fails. Default `Hold`: nobody can say whether code or config is to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnJoinedFailure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnJoinedFailure {
    Hold,
    RollBackConfig,
}

/// How often a consumer may be rolled. The first releases of a window go at once, each further one waits twice as long.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StormGuardSpec {
    /// How many releases of a window go at once. Default 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub free_releases: Option<i32>,
    /// How long the window is. Default 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 604_800))]
    pub window_seconds: Option<i32>,
}

impl ReleasePolicySpec {
    /// What this policy says, and the default where it says nothing.
    pub fn over(&self, default: &Policy) -> Policy {
        let spec = self;
        let seconds = |value: Option<i32>, default| value.map_or(default, |value| Duration::from_secs(natural(value)));
        let failure = spec.failure.clone().unwrap_or_default();
        let joining = spec.joining.clone().unwrap_or_default();
        let storm = spec.storm_guard.clone().unwrap_or_default();
        Policy {
            progress_deadline: seconds(spec.progress_deadline_seconds, default.progress_deadline),
            bake: seconds(spec.bake_seconds, default.bake),
            settle: spec.settle_milliseconds.map_or(default.settle, |value| Duration::from_millis(natural(value))),
            max_parallel: spec.max_parallel.map(natural),
            canary: spec.canary.as_ref().and_then(|canary| batch_size(&canary.size)),
            max_failing_pods: failure.max_failing_pods.map_or(default.max_failing_pods, natural),
            max_restarts: failure.max_restarts.map_or(default.max_restarts, natural),
            automatic_rollback: spec.automatic_rollback.unwrap_or(default.automatic_rollback),
            joining: Joining {
                enabled: joining.enabled.unwrap_or(default.joining.enabled),
                on_failure: joining.on_failure.map_or(default.joining.on_failure, Into::into),
            },
            retain: spec.retain_versions.map_or(default.retain, natural),
            history: spec.retain_releases.map_or(default.history, natural),
            only_used_keys: spec.only_used_keys.unwrap_or(default.only_used_keys),
            storm: StormGuard {
                free_releases: storm.free_releases.map_or(default.storm.free_releases, natural),
                window: seconds(storm.window_seconds, default.storm.window),
            },
        }
    }
}

impl From<OnJoinedFailure> for JoinedFailure {
    fn from(value: OnJoinedFailure) -> Self {
        match value {
            OnJoinedFailure::Hold => Self::Hold,
            OnJoinedFailure::RollBackConfig => Self::RollBackConfig,
        }
    }
}

/// The schema allows no negative numbers.
fn natural<N: TryFrom<i32> + Default>(value: i32) -> N {
    N::try_from(value).unwrap_or_default()
}

fn batch_size(size: &IntOrString) -> Option<BatchSize> {
    match size {
        IntOrString::Int(pods) => Some(BatchSize::Pods(natural(*pods))),
        IntOrString::String(text) => match text.strip_suffix('%') {
            Some(percent) => percent.parse().ok().map(BatchSize::Percent),
            None => text.parse().ok().map(BatchSize::Pods),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_policy_is_the_default() {
        assert_eq!(ReleasePolicySpec::default().over(&Policy::default()), Policy::default());
    }

    #[test]
    fn a_policy_is_read() {
        let spec: ReleasePolicySpec = serde_json::from_value(serde_json::json!({
            "bakeSeconds": 5, "canary": {"size": "20%"}, "joining": {"onFailure": "RollBackConfig"}, "maxParallel": 2,
        }))
        .unwrap();
        let policy = spec.over(&Policy::default());
        assert_eq!(policy.bake, Duration::from_secs(5));
        assert_eq!(policy.canary, Some(BatchSize::Percent(20)));
        assert_eq!(policy.joining.on_failure, JoinedFailure::RollBackConfig);
        assert_eq!(policy.max_parallel, Some(2));
    }
}
