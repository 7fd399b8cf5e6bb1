//! What Helm makes of the chart. These need Helm, and no cluster.

use std::path::{Path, PathBuf};
use std::process::Command;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const VALIDATING: &str = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy";

/// What `helm template` prints, or its complaint.
fn render(arguments: &[&str]) -> Result<String, String> {
    let chart = Path::new(REPOSITORY).join("charts/lockstep");
    let mut helm = Command::new("helm");
    helm.args(["template", "lockstep"]).arg(chart).args(["--namespace", "lockstep-system", "--skip-tests"]);
    let output = helm.args(arguments).output().expect("helm cannot be run: `make test` has one");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

// --- values ---

#[track_caller]
fn expect_refusal(values: &str, complaint: &str) {
    match render(&["--set", values]) {
        Ok(_) => panic!("{values} was taken"),
        Err(error) => assert!(error.contains(complaint), "{values} is refused with: {error}"),
    }
}

#[test]
fn values_with_a_mistake_are_refused_and_the_complaint_names_it() {
    expect_refusal("admission.mode=polcy", "at '/admission/mode': value must be one of 'auto', 'policy'");
    expect_refusal("admision.mode=policy", "additional properties 'admision' not allowed");
    expect_refusal("admission.mod=policy", "at '/admission': additional properties 'mod' not allowed");
    expect_refusal("replicas=two", "at '/replicas'");
    expect_refusal("image.digest=latest", "at '/image/digest'");
    expect_refusal("namespaces={Shop}", "at '/namespaces/0'");
    expect_refusal("kinds[0].group=e2e.lockstep.dev", "at '/kinds/0': missing properties 'version', 'kind'");
}

#[test]
fn changes_of_configs_are_entered_ahead_wherever_a_workload_can_join() {
    let asks = |mode: &str| {
        render(&["--set", &format!("admission.mode={mode}")]).unwrap().contains("- name: configs.lockstep.dev\n")
    };
    assert!(asks("policy") && asks("webhook") && !asks("template"));
    assert!(!asks("policy,namespaces={shop}") && asks("policy,namespaces={shop},configWebhook.enabled=true"));
    assert!(!asks("policy,configWebhook.enabled=false"));
}

#[test]
fn every_value_that_there_is_can_be_set() {
    for mode in ["auto", "policy", "webhook", "template"] {
        render(&["--set", &format!("admission.mode={mode}")]).unwrap();
    }
    let values = "
namespaces: [shop, bank]
kinds:
- {group: apps.kruise.io, version: v1alpha1, kind: CloneSet, resource: clonesets, template: spec.template}
settleMilliseconds: 0
configWebhook: {enabled: true}
image: {repository: example.org/lockstep, tag: '1', digest: 'sha256:DIGEST', pullPolicy: Always}
imagePullSecrets: [{name: registry}]
replicas: 3
resources: {requests: {cpu: 1}, limits: {memory: 1Gi}}
logLevel: lockstep_operator=debug,info
priorityClassName: system-cluster-critical
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: infra, operator: Exists}]
affinity: {nodeAffinity: {}}
podLabels: {team: platform}
podAnnotations: {example.org/a: b}
serviceAccount: {annotations: {example.org/role: lockstep}}
userRoles: {enabled: false}
serviceMonitor: {enabled: true, interval: 1m, labels: {release: prometheus}}
alerts: {enabled: true, labels: {release: prometheus}}
dashboard: {enabled: true, labels: {dashboards: 'yes'}}
";
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("values.yaml");
    std::fs::write(&file, values.replace("DIGEST", &"0".repeat(64))).unwrap();
    let rendered = render(&["--values", &file.display().to_string()]).unwrap();
    for expected in [
        "namespace: \"bank\"",
        "resources: [\"clonesets\"]",
        "image: example.org/lockstep@sha256:0000",
        "- name: registry",
        "replicas: 3",
        "value: \"lockstep_operator=debug,info\"",
        "priorityClassName: system-cluster-critical",
        "kubernetes.io/os: linux",
        "key: infra",
        "nodeAffinity: {}",
        "team: platform",
        "example.org/a: b",
        "example.org/role: lockstep",
        "interval: 1m",
        "kind: PrometheusRule",
        "dashboards: \"yes\"",
    ] {
        assert!(rendered.contains(expected), "there is no `{expected}` in what is rendered");
    }
    assert!(!rendered.contains("lockstep-edit"), "roles for users were turned off");
}

// --- manifests ---

const DEFINITIONS: &str = "\
# The namespace of Lockstep, and the definitions of its kinds. They stay when Lockstep goes: with them would go the records of all versions.
# Made from charts/lockstep by `make manifests`.
---
apiVersion: v1
kind: Namespace
metadata:
  name: lockstep-system
  labels:
    pod-security.kubernetes.io/enforce: restricted
";

const BY_POLICIES: &str = "\
# Lockstep where the API server evaluates mutating policies: Kubernetes 1.36 or newer. Made from charts/lockstep by `make manifests`.
#   kubectl apply --server-side -f deploy/crds.yaml -f deploy/lockstep.yaml
";

const BY_WEBHOOK: &str = "\
# Lockstep with a webhook: Kubernetes 1.30 or newer. Made from charts/lockstep by `make manifests`.
#   kubectl apply --server-side -f deploy/crds.yaml -f deploy/lockstep-webhook.yaml
";

/// The objects, without what only Helm needs.
fn objects(mode: &str) -> Vec<String> {
    let rendered = render(&["--set", &format!("admission.mode={mode}"), "--api-versions", VALIDATING]).unwrap();
    let is_ours = |line: &&str| {
        let helms = ["# Source: ", "app.kubernetes.io/managed-by: "];
        !helms.iter().any(|start| line.trim_start().starts_with(start))
    };
    let installed = rendered.split("---\n").filter(|object| !object.contains("# Source: lockstep/templates/tests/"));
    let objects = installed.map(|object| {
        let text: String = object.lines().filter(is_ours).map(|line| format!("{}\n", line.trim_end())).collect();
        text.trim().to_owned() + "\n"
    });
    objects.filter(|object| object.contains("kind: ")).collect()
}

fn check(name: &str, header: &str, objects: &[String]) {
    let text = objects.iter().fold(header.to_owned(), |text, object| text + "---\n" + object);
    let path: PathBuf = Path::new(REPOSITORY).join("deploy").join(name);
    if std::env::var_os("LOCKSTEP_UPDATE").is_some() {
        std::fs::create_dir_all(Path::new(REPOSITORY).join("deploy")).unwrap();
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "deploy/{name} is not what the chart renders: run `make manifests`");
}

#[test]
fn the_plain_manifests_are_what_the_chart_renders() {
    let is_definition = |object: &String| object.contains("\nkind: CustomResourceDefinition\n");
    for (mode, name, header) in
        [("policy", "lockstep.yaml", BY_POLICIES), ("webhook", "lockstep-webhook.yaml", BY_WEBHOOK)]
    {
        let (definitions, others): (Vec<String>, Vec<String>) = objects(mode).into_iter().partition(is_definition);
        assert_eq!(definitions.len(), 4, "there are four kinds");
        check("crds.yaml", DEFINITIONS, &definitions);
        check(name, header, &others);
    }
}
