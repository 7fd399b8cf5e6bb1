//! A question of the API server, and our answer to it: `AdmissionReview` in, `AdmissionReview` out.
//!
//! Pure. What happens to pods and workloads is decided in `lockstep_core::admission`; the rules here about whom it concerns are those of
//! the chart's policies.

use k8s_openapi::ByteString;
use lockstep_core::admission::{Replacement, Template, TemplateWrite, pins_after, resolve_added, resolve_pod};
use lockstep_core::{ConfigKind, Table, names};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::kinds::{Part, WorkloadKind};

/// What the API server asks. It has no `Debug`: the object may be a Secret.
#[derive(Deserialize)]
struct Review {
    request: Option<Request>,
}

/// A write that waits for our answer.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    pub uid: String,
    pub resource: Resource,
    /// Empty if the object itself is written.
    #[serde(default)]
    pub sub_resource: String,
    /// Empty if the API server is still to make it up.
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub namespace: String,
    pub user_info: UserInfo,
    #[serde(default)]
    pub dry_run: Option<bool>,
    #[serde(default)]
    pub object: Value,
    /// Null for what is new.
    #[serde(default)]
    pub old_object: Value,
}

#[derive(Debug, Deserialize)]
pub struct Resource {
    pub group: String,
    pub version: String,
    #[serde(rename = "resource")]
    pub plural: String,
}

#[derive(Debug, Deserialize)]
pub struct UserInfo {
    #[serde(default)]
    pub username: String,
}

/// One step of a JSON patch.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Operation {
    Add { path: String, value: Value },
    Replace { path: String, value: Value },
    Remove { path: String },
}

/// Why a question cannot be answered. Values of the question are never repeated: they may be secret.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReviewError {
    #[error(
        "the AdmissionReview cannot be read (line {line}, column {column}): only the API server should call this, with admission.k8s.io/v1"
    )]
    Malformed { line: usize, column: usize },
    #[error("the AdmissionReview has no request: only the API server should call this, with admission.k8s.io/v1")]
    NoRequest,
}

/// Reads what the API server sent.
pub fn read(body: &[u8]) -> Result<Request, ReviewError> {
    let review: Review = serde_json::from_slice(body)
        .map_err(|error| ReviewError::Malformed { line: error.line(), column: error.column() })?;
    review.request.ok_or(ReviewError::NoRequest)
}

/// The same of one that was read already.
pub fn understand(review: &Value) -> Result<Request, ReviewError> {
    read(review.to_string().as_bytes())
}

/// Lets the write through, changed by `patch`.
pub fn allow(uid: &str, patch: &[Operation]) -> Value {
    let mut response = json!({"uid": uid, "allowed": true});
    if !patch.is_empty() {
        // The API server takes the patch as text within text: JSON, in base64.
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(ByteString(json!(patch).to_string().into_bytes()));
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

/// What the decisions need to know besides the write and the table.
pub struct Rules {
    pub kinds: Vec<WorkloadKind>,
    /// Who the operator is to the API server: what it writes is meant as it is.
    pub operator: String,
}

impl Rules {
    /// What a write of a pod or workload is changed by. Without a table only pins that are there already count, as with the policies. A
    /// config is told who changed it.
    pub fn changes(&self, request: &Request, table: Option<&Table>) -> Vec<Operation> {
        if request.config_kind().is_some() {
            return set_annotation(&request.object, "", names::CHANGED_BY, &request.user_info.username);
        }
        if request.is_pod() {
            return replace(match request.sub_resource.as_str() {
                "ephemeralcontainers" => resolve_added(&request.old_object, &request.object),
                _ => resolve_pod(&request.object, table.unwrap_or(&Table::default())),
            });
        }
        let kind = self.kinds.iter().find(|kind| request.is_of(kind));
        match (kind, table) {
            (Some(kind), Some(table)) if !self.is_exempt(request) => workload_changes(request, kind, table),
            _ => Vec::new(),
        }
    }

    fn is_exempt(&self, request: &Request) -> bool {
        request.user_info.username == self.operator || self.is_made(&request.object)
    }

    /// Whether it is made from the template of an object that is pinned itself: it has its pins already, or is older than the adoption.
    /// What somebody else's controller makes, such as a `JobSet` or a `ScaledJob`, is a workload like any other.
    fn is_made(&self, object: &Value) -> bool {
        let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let mut makers = owners.filter(|owner| owner["controller"] == true);
        let is_ours = |maker: &Value, kind: &WorkloadKind| {
            let (group, _) = maker["apiVersion"].as_str().unwrap_or_default().split_once('/').unwrap_or_default();
            kind.part != Part::Record && kind.resource.group == group && maker["kind"] == kind.resource.kind
        };
        makers.any(|maker| self.kinds.iter().any(|kind| is_ours(maker, kind)))
    }
}

impl Request {
    pub fn is_dry_run(&self) -> bool {
        self.dry_run == Some(true)
    }

    pub fn is_pod(&self) -> bool {
        self.resource.group.is_empty() && self.resource.plural == "pods"
    }

    /// Whether it is a config, and of which kind.
    pub fn config_kind(&self) -> Option<ConfigKind> {
        match (self.resource.group.as_str(), self.resource.plural.as_str()) {
            ("", "configmaps") => Some(ConfigKind::ConfigMap),
            ("", "secrets") => Some(ConfigKind::Secret),
            _ => None,
        }
    }

    fn is_of(&self, kind: &WorkloadKind) -> bool {
        let (asked, known) = (&self.resource, &kind.resource);
        kind.part != Part::Record
            && asked.group == known.group
            && asked.version == known.version
            && asked.plural == known.plural
    }
}

fn replace(names: Vec<Replacement>) -> Vec<Operation> {
    let change = |found: Replacement| Operation::Replace { path: found.pointer, value: json!(found.name) };
    names.into_iter().map(change).collect()
}

fn workload_changes(request: &Request, kind: &WorkloadKind, table: &Table) -> Vec<Operation> {
    let Some(new) = template_of(&request.object, kind) else { return Vec::new() };
    let old = template_of(&request.old_object, kind);
    // A patch is made on the object as it is stored, and so has its uid; a manifest has none.
    let knows_object = request.object["metadata"]["uid"].as_str().is_some_and(|uid| !uid.is_empty());
    let write = TemplateWrite { old: old.map(Template), new: Template(new), knows_object };
    set_annotation(new, &pointer(&kind.template), names::PINS, &pins_after(write, table).to_string())
}

/// None if the object has no template of its own: a Rollout may refer to a Deployment for it.
fn template_of<'a>(object: &'a Value, kind: &WorkloadKind) -> Option<&'a Value> {
    let template = kind.template.iter().try_fold(object, |value, step| value.get(step))?;
    template["spec"].is_object().then_some(template)
}

/// What gives an object at `place` the annotation, or takes it away if the text is empty.
fn set_annotation(object: &Value, place: &str, name: &str, text: &str) -> Vec<Operation> {
    let annotations = &object["metadata"]["annotations"];
    let path = format!("{place}/metadata/annotations/{}", escape(name));
    if annotations[name].as_str().unwrap_or_default() == text {
        return Vec::new();
    }
    if text.is_empty() {
        return vec![Operation::Remove { path }];
    }
    let missing = [("metadata", &object["metadata"]), ("metadata/annotations", annotations)].into_iter();
    let parents = missing
        .filter(|(_, value)| value.is_null())
        .map(|(name, _)| Operation::Add { path: format!("{place}/{name}"), value: json!({}) });
    parents.chain([Operation::Add { path, value: json!(text) }]).collect()
}

fn pointer(path: &[String]) -> String {
    path.iter().map(|step| format!("/{}", escape(step))).collect()
}

fn escape(step: &str) -> String {
    step.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{self, *};
    use super::*;
    use crate::kinds;

    const OPERATOR: &str = "system:serviceaccount:lockstep-system:lockstep";

    fn rules() -> Rules {
        let custom = WorkloadKind::custom("apps.kruise.io", "v1alpha1", "CloneSet", "clonesets", "spec.pod/template");
        Rules { kinds: kinds::built_in().into_iter().chain([custom]).collect(), operator: OPERATOR.to_owned() }
    }

    /// A review as it goes over the wire and back: the object as the API server will store it.
    fn admitted(review: &Value, table: Option<&Table>) -> Value {
        let request = read(review.to_string().as_bytes()).unwrap();
        let answer = allow(&request.uid, &rules().changes(&request, table));
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
        assert_eq!(answer["response"]["allowed"], true);
        let mut object = review["request"]["object"].clone();
        if let Some(patch) = answer["response"].get("patch") {
            assert_eq!(answer["response"]["patchType"], "JSONPatch");
            let bytes: ByteString = serde_json::from_value(patch.clone()).unwrap();
            let patch: json_patch::Patch = serde_json::from_slice(&bytes.0).unwrap();
            json_patch::patch(&mut object, &patch).unwrap();
        }
        object
    }

    fn is_unchanged(review: &Value, table: Option<&Table>) -> bool {
        admitted(review, table) == review["request"]["object"]
    }

    fn pinned(text: &str, template: &str, pins: &str) -> Value {
        let mut review = fixtures::json(text);
        let object = review.pointer_mut(&format!("/request/object{template}")).unwrap();
        object["metadata"]["annotations"][names::PINS] = json!(pins);
        review
    }

    fn pins<'a>(object: &'a Value, template: &str) -> &'a Value {
        &object.pointer(template).unwrap()["metadata"]["annotations"][names::PINS]
    }

    fn references(pod: &Value) -> [&Value; 3] {
        let container = &pod["spec"]["containers"][0];
        [
            &container["envFrom"][0]["configMapRef"]["name"],
            &container["env"][0]["valueFrom"]["secretKeyRef"]["name"],
            &pod["spec"]["volumes"][0]["configMap"]["name"],
        ]
    }

    #[test]
    fn a_pinned_pod_gets_its_versions_in_every_place() {
        let pod = pinned(POD_CREATE, "", "configmap/app=app-0,secret/db=db-0");
        for table in [Some(&table()), None] {
            assert_eq!(references(&admitted(&pod, table)), ["app-0", "db-0", "app-0"]);
        }
    }

    #[test]
    fn a_pod_of_an_unpinned_template_gets_what_the_table_says() {
        let pod = fixtures::json(POD_CREATE);
        assert_eq!(references(&admitted(&pod, Some(&table()))), ["app-1", "db-1", "app-1"]);
        assert!(is_unchanged(&pod, None), "without a table there is nothing to say");
    }

    #[test]
    fn a_pod_that_was_rewritten_is_not_rewritten_again() {
        let mut pod = pinned(POD_CREATE, "", "configmap/app=app-0,secret/db=db-0");
        pod["request"]["object"] = admitted(&pod, Some(&table()));
        assert!(is_unchanged(&pod, Some(&table())), "the API server asks again if another webhook changed the pod");
    }

    #[test]
    fn a_container_that_is_added_to_a_pod_gets_its_version_and_nothing_else_changes() {
        let mut pod = pinned(POD_CREATE, "", "configmap/app=app-0");
        pod["request"]["subResource"] = json!("ephemeralcontainers");
        pod["request"]["oldObject"] = pod["request"]["object"].clone();
        assert!(is_unchanged(&pod, Some(&table())), "a pod that runs keeps what it has");
        let added = json!([{"name": "debug", "envFrom": [{"configMapRef": {"name": "app"}}]}]);
        pod["request"]["object"]["spec"]["ephemeralContainers"] = added;
        let admitted = admitted(&pod, None);
        assert_eq!(admitted["spec"]["ephemeralContainers"][0]["envFrom"][0]["configMapRef"]["name"], "app-0");
    }

    #[test]
    fn a_mirror_pod_is_left_alone() {
        let mut pod = pinned(POD_CREATE, "", "configmap/app=app-0");
        pod["request"]["object"]["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("x");
        assert!(is_unchanged(&pod, Some(&table())));
    }

    #[test]
    fn a_new_workload_is_pinned_wherever_its_template_is() {
        let deployment = admitted(&fixtures::json(DEPLOYMENT_CREATE), Some(&table()));
        assert_eq!(pins(&deployment, "/spec/template"), "configmap/app=app-2,secret/db=db-2");
        let cron_job = admitted(&fixtures::json(CRON_JOB_CREATE), Some(&table()));
        assert_eq!(pins(&cron_job, "/spec/jobTemplate/spec/template"), "secret/db=db-2");
    }

    #[test]
    fn a_kind_of_the_users_own_is_pinned_at_its_own_path() {
        let mut review = fixtures::json(DEPLOYMENT_CREATE);
        review["request"]["resource"] =
            json!({"group": "apps.kruise.io", "version": "v1alpha1", "resource": "clonesets"});
        let template = review["request"]["object"]["spec"]["template"].take();
        review["request"]["object"]["spec"] = json!({"pod/template": template});
        let object = admitted(&review, Some(&table()));
        assert_eq!(pins(&object, "/spec/pod~1template"), "configmap/app=app-2,secret/db=db-2");
    }

    #[test]
    fn a_new_image_joins_and_the_same_manifest_does_not() {
        let mut review = fixtures::json(DEPLOYMENT_UPDATE);
        let old = "configmap/app=app-1,secret/db=db-1";
        for object in ["object", "oldObject"] {
            review["request"][object]["spec"]["template"]["metadata"]["annotations"] = json!({names::PINS: old});
        }
        let joined = admitted(&review, Some(&table()));
        assert_eq!(pins(&joined, "/spec/template"), "configmap/app=app-2,secret/db=db-2");
        let mut same = review.clone();
        same["request"]["object"] = same["request"]["oldObject"].clone();
        assert!(is_unchanged(&same, Some(&table())));
    }

    #[test]
    fn pins_that_a_patch_takes_away_stay_away_and_a_manifest_that_never_had_them_keeps_them() {
        let mut review = fixtures::json(DEPLOYMENT_UPDATE);
        review["request"]["object"]["spec"] = review["request"]["oldObject"]["spec"].clone();
        review["request"]["oldObject"]["spec"]["template"]["metadata"]["annotations"] =
            json!({names::PINS: "configmap/app=app-1"});
        assert!(is_unchanged(&review, Some(&table())), "an undo to a template from before the adoption");
        review["request"]["object"]["metadata"]["uid"].take();
        assert_eq!(pins(&admitted(&review, Some(&table())), "/spec/template"), "configmap/app=app-1");
    }

    #[test]
    fn pins_of_what_is_no_longer_referenced_are_removed() {
        let mut review = pinned(DEPLOYMENT_CREATE, "/spec/template", "configmap/app=elsewhere");
        review["request"]["object"]["spec"]["template"]["spec"] = json!({"containers": []});
        assert_eq!(pins(&admitted(&review, Some(&table())), "/spec/template"), &Value::Null);
    }

    #[test]
    fn what_another_template_made_is_left_alone() {
        let review = fixtures::json(REPLICA_SET_CREATE);
        assert!(is_unchanged(&review, Some(&table())));
        let mut by_hand = review.clone();
        by_hand["request"]["object"]["metadata"]["ownerReferences"].take();
        assert_eq!(pins(&admitted(&by_hand, Some(&table())), "/spec/template"), "configmap/app=app-2,secret/db=db-2");
    }

    #[test]
    fn what_somebody_elses_controller_makes_is_pinned_to_what_is_current() {
        let mut review = fixtures::json(REPLICA_SET_CREATE);
        review["request"]["object"]["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledJob", "controller": true}]);
        assert_eq!(pins(&admitted(&review, Some(&table())), "/spec/template"), "configmap/app=app-2,secret/db=db-2");
    }

    #[test]
    fn a_deployment_that_something_owns_is_a_workload_like_any_other() {
        let mut review = fixtures::json(DEPLOYMENT_CREATE);
        review["request"]["object"]["metadata"]["ownerReferences"] = json!([{"kind": "App", "controller": true}]);
        assert!(!is_unchanged(&review, Some(&table())));
    }

    #[test]
    fn the_operators_own_writes_are_meant_as_they_are() {
        let mut review = fixtures::json(DEPLOYMENT_CREATE);
        review["request"]["userInfo"]["username"] = json!(OPERATOR);
        assert!(is_unchanged(&review, Some(&table())));
    }

    #[test]
    fn a_config_is_told_who_changed_it() {
        let config = admitted(&fixtures::json(CONFIG_MAP_UPDATE), None);
        assert_eq!(config["metadata"]["annotations"][names::CHANGED_BY], "admin");
    }

    #[test]
    fn without_a_table_or_a_template_nothing_changes() {
        let review = fixtures::json(DEPLOYMENT_CREATE);
        assert!(is_unchanged(&review, None));
        let mut rollout = review.clone();
        rollout["request"]["resource"] = json!({"group": "argoproj.io", "version": "v1alpha1", "resource": "rollouts"});
        rollout["request"]["object"]["spec"] = json!({"workloadRef": {"kind": "Deployment", "name": "shop"}});
        assert!(is_unchanged(&rollout, Some(&table())));
    }

    #[test]
    fn other_kinds_and_versions_are_not_ours() {
        for (version, resource) in
            [("v1", "controllerrevisions"), ("v1", "deployments/scale"), ("v1beta1", "deployments")]
        {
            let mut review = fixtures::json(DEPLOYMENT_CREATE);
            review["request"]["resource"] = json!({"group": "apps", "version": version, "resource": resource});
            assert!(is_unchanged(&review, Some(&table())), "{version} {resource}");
        }
    }

    #[test]
    fn what_is_not_a_review_is_refused_without_its_values() {
        assert_eq!(read(b"{}").err(), Some(ReviewError::NoRequest));
        let error = read(br#"{"request": {"uid": "u", "resource": "hunter2"}}"#).err().unwrap().to_string();
        assert!(error.contains("line 1") && !error.contains("hunter2"), "{error}");
    }
}
