//! A config under Lockstep's care: made for it when it opts in.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use lockstep_core::{ConfigKind, ConfigRef, Given};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A config has one VersionedConfig: its name leaves room for no other.
const IS_NAMED_AFTER_SOURCE: &str =
    "self.metadata.name == (self.spec.source.kind == 'ConfigMap' ? 'configmap-' : 'secret-') + self.spec.source.name";

/// A ConfigMap or Secret whose changes become versions.
#[allow(clippy::duplicated_attributes, reason = "each column has a type of its own")]
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "lockstep.dev",
    version = "v1alpha1",
    kind = "VersionedConfig",
    namespaced,
    status = "VersionedConfigStatus",
    shortname = "vc",
    category = "lockstep",
    validation = Rule::new(IS_NAMED_AFTER_SOURCE).message("it must be named after its source: configmap-NAME or secret-NAME"),
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.source.kind"),
    printcolumn(name = "Source", type_ = "string", json_path = ".spec.source.name"),
    printcolumn(name = "Current", type_ = "string", json_path = ".status.current.version"),
    printcolumn(name = "Releasing", type_ = "string", json_path = ".status.releasing"),
    printcolumn(name = "Held", type_ = "string", json_path = ".status.held.version"),
    printcolumn(name = "Consumers", type_ = "integer", json_path = ".status.consumerCount"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].message",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct VersionedConfigSpec {
    /// The config whose changes become versions.
    pub source: Source,
    /// A version to run instead of the source's own. Remove it to follow the source again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<Choice>,
    /// The name of a release that failed and is to be tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub retry: Option<String>,
}

/// A version that somebody chose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Choice {
    /// The name of the version to run.
    #[schemars(length(min = 1, max = 253))]
    pub version: String,
    /// Only for as long as the source has this version, by its name or, to be bound to the content itself, by its object: the next change
    /// of the source is released again. Without it, the choice holds until it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub instead_of: Option<String>,
}

/// A version that is not tried again by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// The object that holds it.
    pub object: String,
    /// Its name.
    pub version: String,
    /// The release that failed with it.
    pub release: String,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Source {
    pub kind: SourceKind,
    /// As Kubernetes takes it for a ConfigMap or Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SourceKind {
    ConfigMap,
    Secret,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionedConfigStatus {
    /// The version that consumers should run and that was released to all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<VersionSummary>,
    /// The version that is on its way to becoming current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub releasing: Option<String>,
    /// The source's version, if it failed: it is not tried again until the source changes or somebody asks for it in `spec.retry`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
    /// Whether a workload that is written together with a change waits for its release: there are waves, or joining is disabled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits_for_release: bool,
    /// All versions that are kept, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<VersionSummary>,
    /// The names that were given so far, newest first: a name never stands for other content, also when its version is gone. A hundred are
    /// remembered, and those of the versions that are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<GivenName>,
    /// The highest number that a version ever had.
    #[serde(default)]
    pub last_number: i64,
    /// The source as it was last compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_resource_version: Option<String>,
    #[serde(default)]
    pub consumer_count: i64,
    /// The workloads that use this config; at most 100 are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consumers: Vec<Consumer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// A name that a version has, or had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GivenName {
    pub version: String,
    pub number: i64,
    /// The name of the ConfigMap or Secret that holds its content, or did: it has the content's digest in it.
    pub object: String,
    /// Whether it was current at some time: only then consumers go back to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_current: bool,
}

/// A version, in short.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionSummary {
    /// The version's name, as people use it.
    pub version: String,
    pub number: i64,
    /// The name of the ConfigMap or Secret that holds it.
    pub object: String,
    /// That object's uid: another one of this name is not this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
}

/// A workload whose pods use the config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Consumer {
    pub kind: String,
    pub name: String,
    /// The version object that its template is pinned to; none means that it has not changed since the config was adopted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
}

/// The conditions of a VersionedConfig.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionType {
    /// Every change so far became a version and was released.
    Ready,
    /// Its source is there and opted in: changes become versions.
    Followed,
}

impl ConditionType {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Followed => "Followed",
        }
    }
}

impl VersionedConfigStatus {
    pub fn condition(&self, of: ConditionType) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == of.name())
    }
}

impl From<&Given> for GivenName {
    fn from(given: &Given) -> Self {
        let number = i64::try_from(given.number).unwrap_or(i64::MAX);
        Self { version: given.name.clone(), number, object: given.object.clone(), was_current: given.was_current }
    }
}

impl From<&GivenName> for Given {
    fn from(given: &GivenName) -> Self {
        let number = u64::try_from(given.number).unwrap_or(0);
        Self { name: given.version.clone(), number, object: given.object.clone(), was_current: given.was_current }
    }
}

impl From<&VersionSummary> for Given {
    fn from(version: &VersionSummary) -> Self {
        let number = u64::try_from(version.number).unwrap_or(0);
        Self { name: version.version.clone(), number, object: version.object.clone(), was_current: false }
    }
}

impl From<ConfigKind> for SourceKind {
    fn from(kind: ConfigKind) -> Self {
        match kind {
            ConfigKind::ConfigMap => Self::ConfigMap,
            ConfigKind::Secret => Self::Secret,
        }
    }
}

impl From<SourceKind> for ConfigKind {
    fn from(kind: SourceKind) -> Self {
        match kind {
            SourceKind::ConfigMap => Self::ConfigMap,
            SourceKind::Secret => Self::Secret,
        }
    }
}

impl From<&Source> for ConfigRef {
    fn from(source: &Source) -> Self {
        Self::new(source.kind.into(), source.name.clone())
    }
}
