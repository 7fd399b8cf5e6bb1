//! The kinds of objects that the simulated API server knows.

use std::fmt;

use lockstep_core::{ConfigKind, ConfigRef};

/// What the API server has to know of a kind.
struct About {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Namespace,
    ConfigMap,
    Secret,
    Pod,
    Event,
    Lease,
    ResourceQuota,
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    ControllerRevision,
    Job,
    CronJob,
    Rollout,
    ReplicationController,
    VersionedConfig,
    PinTable,
    Release,
    ReleasePolicy,
}

impl Kind {
    pub const ALL: [Self; 20] = [
        Self::Namespace,
        Self::ConfigMap,
        Self::Secret,
        Self::Pod,
        Self::Event,
        Self::Lease,
        Self::ResourceQuota,
        Self::Deployment,
        Self::ReplicaSet,
        Self::StatefulSet,
        Self::DaemonSet,
        Self::ControllerRevision,
        Self::Job,
        Self::CronJob,
        Self::Rollout,
        Self::ReplicationController,
        Self::VersionedConfig,
        Self::PinTable,
        Self::Release,
        Self::ReleasePolicy,
    ];

    const fn about(self) -> About {
        const fn of(group: &'static str, version: &'static str, kind: &'static str, plural: &'static str) -> About {
            About { group, version, kind, plural }
        }
        match self {
            Self::Namespace => of("", "v1", "Namespace", "namespaces"),
            Self::ConfigMap => of("", "v1", "ConfigMap", "configmaps"),
            Self::Secret => of("", "v1", "Secret", "secrets"),
            Self::Pod => of("", "v1", "Pod", "pods"),
            Self::Event => of("events.k8s.io", "v1", "Event", "events"),
            Self::Lease => of("coordination.k8s.io", "v1", "Lease", "leases"),
            Self::ResourceQuota => of("", "v1", "ResourceQuota", "resourcequotas"),
            Self::Deployment => of("apps", "v1", "Deployment", "deployments"),
            Self::ReplicaSet => of("apps", "v1", "ReplicaSet", "replicasets"),
            Self::StatefulSet => of("apps", "v1", "StatefulSet", "statefulsets"),
            Self::DaemonSet => of("apps", "v1", "DaemonSet", "daemonsets"),
            Self::ControllerRevision => of("apps", "v1", "ControllerRevision", "controllerrevisions"),
            Self::Job => of("batch", "v1", "Job", "jobs"),
            Self::CronJob => of("batch", "v1", "CronJob", "cronjobs"),
            Self::Rollout => of("argoproj.io", "v1alpha1", "Rollout", "rollouts"),
            Self::ReplicationController => of("", "v1", "ReplicationController", "replicationcontrollers"),
            Self::VersionedConfig => of("lockstep.dev", "v1alpha1", "VersionedConfig", "versionedconfigs"),
            Self::PinTable => of("lockstep.dev", "v1alpha1", "PinTable", "pintables"),
            Self::Release => of("lockstep.dev", "v1alpha1", "Release", "releases"),
            Self::ReleasePolicy => of("lockstep.dev", "v1alpha1", "ReleasePolicy", "releasepolicies"),
        }
    }

    pub const fn group(self) -> &'static str {
        self.about().group
    }

    pub const fn version(self) -> &'static str {
        self.about().version
    }

    pub const fn kind(self) -> &'static str {
        self.about().kind
    }

    pub const fn plural(self) -> &'static str {
        self.about().plural
    }

    pub fn api_version(self) -> String {
        let About { group, version, .. } = self.about();
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
    }

    /// Its place among all kinds.
    pub const fn index(self) -> usize {
        self as usize
    }

    pub const fn is_namespaced(self) -> bool {
        !matches!(self, Self::Namespace)
    }

    /// Whether its objects hold configuration, or versions of it.
    pub const fn is_config(self) -> bool {
        matches!(self, Self::ConfigMap | Self::Secret)
    }

    /// Whether its status is written apart from the rest.
    pub const fn has_status(self) -> bool {
        !matches!(
            self,
            Self::ConfigMap
                | Self::Secret
                | Self::Event
                | Self::Lease
                | Self::ControllerRevision
                | Self::PinTable
                | Self::ReleasePolicy
        )
    }

    /// Whether the API server counts the changes of what its objects want.
    pub const fn has_generation(self) -> bool {
        !matches!(
            self,
            Self::Namespace
                | Self::ConfigMap
                | Self::Secret
                | Self::Event
                | Self::Lease
                | Self::ResourceQuota
                | Self::ControllerRevision
        )
    }

    /// Whether it is defined by a `CustomResourceDefinition`.
    pub fn is_custom(self) -> bool {
        matches!(self.group(), "lockstep.dev" | "argoproj.io")
    }

    /// The path of the pod template.
    pub const fn template(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Deployment
            | Self::ReplicaSet
            | Self::StatefulSet
            | Self::DaemonSet
            | Self::Job
            | Self::Rollout
            | Self::ReplicationController => Some(&["spec", "template"]),
            Self::CronJob => Some(&["spec", "jobTemplate", "spec", "template"]),
            Self::ControllerRevision => Some(&["data", "spec", "template"]),
            _ => None,
        }
    }

    pub fn from_path(group: &str, version: &str, plural: &str) -> Option<Self> {
        let is_it = |kind: &Self| {
            let about = kind.about();
            about.plural == plural && about.group == group && about.version == version
        };
        Self::ALL.into_iter().find(is_it)
    }

    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let is_it = |found: &Self| {
            let about = found.about();
            about.kind == kind && about.group == group && about.version == version
        };
        Self::ALL.into_iter().find(is_it)
    }
}

/// Which object. Cluster-scoped objects have an empty namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// As a config, if it is one.
    pub fn config(&self) -> Option<ConfigRef> {
        let kind = match self.kind {
            Kind::ConfigMap => ConfigKind::ConfigMap,
            Kind::Secret => ConfigKind::Secret,
            _ => return None,
        };
        Some(ConfigRef::new(kind, &self.name))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, namespace, name } = self;
        let kind = kind.kind();
        if namespace.is_empty() {
            write!(formatter, "{kind} {name}")
        } else {
            write!(formatter, "{kind} {namespace}/{name}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_found_by_its_path_and_by_its_names() {
        for (place, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), place);
            assert_eq!(Kind::from_path(kind.group(), kind.version(), kind.plural()), Some(kind));
            assert_eq!(Kind::of(&kind.api_version(), kind.kind()), Some(kind));
        }
        assert_eq!(Kind::of("v1", "Deployment"), None);
    }

    #[test]
    fn templates_are_where_the_operator_looks_for_them() {
        for known in lockstep_operator::kinds::built_in() {
            let kind = Kind::of(&known.resource.api_version, &known.resource.kind).unwrap();
            assert_eq!(kind.plural(), known.resource.plural);
            assert_eq!(kind.template().unwrap().to_vec(), known.template, "{kind:?}");
        }
    }
}
