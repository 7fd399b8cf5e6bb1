//! The kinds that make pods from a template, and where each has it.

use kube::core::{ApiResource, GroupVersionKind};
use lockstep_core::template::Carrier;

/// What a kind's objects are to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Workloads that people write. What makes the pods is another object of a kind below.
    Workload,
    /// Both a workload and what makes pods: it holds the versions that its template is pinned to.
    SelfMaking,
    /// As above, but its template can never be changed.
    Fixed,
    /// A record of an earlier template, which a workload can go back to.
    Record,
}

#[derive(Debug, Clone)]
pub struct WorkloadKind {
    pub resource: ApiResource,
    /// The path of the pod template within an object.
    pub template: Vec<String>,
    pub part: Part,
    /// Kinds from elsewhere are watched only where they are installed.
    pub optional: bool,
    /// What brings versions into the pods of its objects.
    pub carrier: Carrier,
}

impl WorkloadKind {
    fn new(group: &str, version: &str, kind: &str, plural: &str, template: &str, part: Part) -> Self {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        let template = template.split('.').map(str::to_owned).collect();
        Self { resource, template, part, optional: false, carrier: Carrier::default() }
    }

    /// A kind that the user configures.
    pub fn custom(group: &str, version: &str, kind: &str, plural: &str, template: &str) -> Self {
        Self { optional: true, ..Self::new(group, version, kind, plural, template, Part::SelfMaking) }
    }

    #[must_use]
    pub fn carried_by(self, carrier: Carrier) -> Self {
        Self { carrier, ..self }
    }

    /// The pod template of an object; a Rollout that takes a Deployment's has none.
    pub fn template_of<'a>(&self, object: &'a serde_json::Value) -> Option<&'a serde_json::Value> {
        self.template.iter().try_fold(object, |value, step| value.get(step))
    }

    /// `{"spec": {"template": inner}}`, for a patch.
    pub fn wrap(&self, inner: serde_json::Value) -> serde_json::Value {
        self.template.iter().rev().fold(inner, |value, step| serde_json::json!({ step: value }))
    }
}

pub fn built_in() -> Vec<WorkloadKind> {
    let new = WorkloadKind::new;
    vec![
        new("apps", "v1", "Deployment", "deployments", "spec.template", Part::Workload),
        new("apps", "v1", "StatefulSet", "statefulsets", "spec.template", Part::Workload),
        new("apps", "v1", "DaemonSet", "daemonsets", "spec.template", Part::Workload),
        new("apps", "v1", "ReplicaSet", "replicasets", "spec.template", Part::SelfMaking),
        new("apps", "v1", "ControllerRevision", "controllerrevisions", "data.spec.template", Part::Record),
        new("", "v1", "ReplicationController", "replicationcontrollers", "spec.template", Part::SelfMaking),
        new("batch", "v1", "Job", "jobs", "spec.template", Part::Fixed),
        new("batch", "v1", "CronJob", "cronjobs", "spec.jobTemplate.spec.template", Part::SelfMaking),
        WorkloadKind {
            optional: true,
            ..new("argoproj.io", "v1alpha1", "Rollout", "rollouts", "spec.template", Part::Workload)
        },
    ]
}
