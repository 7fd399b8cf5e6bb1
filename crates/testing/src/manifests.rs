//! Manifests of the test app, as users write them.

use std::env;

/// The image that tests deploy: on a cluster of one's own, `LOCKSTEP_TESTAPP_IMAGE` names it.
pub fn testapp_image() -> String {
    env::var("LOCKSTEP_TESTAPP_IMAGE").unwrap_or_else(|_| "lockstep.dev/testapp:dev".to_owned())
}

/// A ConfigMap that opted in, with what comes below its labels.
pub fn versioned(name: &str, rest: &str) -> String {
    format!(
        "
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
  labels: {{lockstep.dev/versioned: \"true\"}}
{rest}
"
    )
}

/// A Deployment of such pods.
pub fn deployment(name: &str, replicas: u32, pod_spec: &str) -> String {
    format!(
        "
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
spec:
  replicas: {replicas}
  selector:
    matchLabels: {{app: {name}}}
  template:
    metadata:
      labels: {{app: {name}}}
    spec:
{}
---
",
        indent(pod_spec, 6)
    )
}

/// A Deployment `web` of the test app. Its environment comes from the ConfigMap `web-env`, its files from `web-files`.
pub fn web_deployment(replicas: u32) -> String {
    deployment("web", replicas, &web_pod_spec())
}

/// The same pod as a canary of Argo Rollouts: a third of the pods first, and then a person decides.
pub fn web_rollout(replicas: usize) -> String {
    format!(
        "
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata:
  name: web
spec:
  replicas: {replicas}
  selector:
    matchLabels: {{app: web}}
  strategy:
    canary:
      steps:
      - setWeight: 34
      - pause: {{}}
  template:
    metadata:
      labels: {{app: web}}
    spec:
{}",
        indent(&web_pod_spec(), 6)
    )
}

/// A canary of Argo Rollouts that takes its template from the Deployment `web`.
pub fn web_rollout_of_deployment(replicas: usize) -> String {
    format!(
        "
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata:
  name: web
spec:
  replicas: {replicas}
  selector:
    matchLabels: {{app: web}}
  strategy:
    canary:
      steps:
      - setWeight: 34
      - pause: {{}}
  workloadRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}
"
    )
}

/// The pod of `web`: for any kind that makes pods from a template.
pub fn web_pod_spec() -> String {
    format!(
        "terminationGracePeriodSeconds: 1
containers:
- name: web
  image: {}
  ports:
  - containerPort: 8080
  envFrom:
  - configMapRef: {{name: web-env, optional: true}}
  readinessProbe:
    httpGet: {{path: /readyz, port: 8080}}
    periodSeconds: 1
    timeoutSeconds: 10
    failureThreshold: 30
  livenessProbe:
    httpGet: {{path: /healthz, port: 8080}}
  volumeMounts:
  - {{name: files, mountPath: /etc/config}}
volumes:
- name: files
  configMap: {{name: web-files, optional: true}}
",
        testapp_image()
    )
}

/// A ConfigMap with one key.
pub fn config_map(name: &str, key: &str, value: &str) -> String {
    format!("\n---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  {key}: {value:?}\n---\n")
}

pub fn indent(text: &str, spaces: usize) -> String {
    let prefix = " ".repeat(spaces);
    text.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("{prefix}{line}\n") }).collect()
}

/// The ConfigMaps `web-env` and `web-files`, versioned, with one color in both and nothing kept that is not in use.
pub fn versioned_colors(color: &str) -> String {
    let one = |name: &str, key: &str| {
        let rest = format!("  annotations: {{lockstep.dev/retain: \"0\"}}\ndata:\n  {key}: {color:?}\n---");
        versioned(name, &rest)
    };
    one("web-env", "COLOR") + &one("web-files", "color")
}
