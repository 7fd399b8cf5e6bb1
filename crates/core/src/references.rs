//! Where a pod spec names ConfigMaps and Secrets: every place that Kubernetes itself walks.

use serde_json::Value;

use crate::config::{ConfigKind, ConfigRef};
use ConfigKind::{ConfigMap, Secret};

/// What a reference is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The containers see its content: pinned.
    Content,
    /// Kubernetes or a volume's driver uses it to log in: known as a use, but never pinned.
    Credential,
}

/// One place in a pod spec that names a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    pub config: ConfigRef,
    pub role: Role,
    /// The place of the name, as a JSON pointer within the pod spec.
    pub pointer: String,
}

/// A place within a list of the pod spec; `*` stands for every element.
type Place = (&'static [&'static str], ConfigKind, Role);

const IN_CONTAINERS: &[Place] = &[
    (&["*", "envFrom", "*", "configMapRef", "name"], ConfigMap, Role::Content),
    (&["*", "envFrom", "*", "secretRef", "name"], Secret, Role::Content),
    (&["*", "env", "*", "valueFrom", "configMapKeyRef", "name"], ConfigMap, Role::Content),
    (&["*", "env", "*", "valueFrom", "secretKeyRef", "name"], Secret, Role::Content),
];

const IN_VOLUMES: &[Place] = &[
    (&["*", "configMap", "name"], ConfigMap, Role::Content),
    (&["*", "secret", "secretName"], Secret, Role::Content),
    (&["*", "projected", "sources", "*", "configMap", "name"], ConfigMap, Role::Content),
    (&["*", "projected", "sources", "*", "secret", "name"], Secret, Role::Content),
    (&["*", "azureFile", "secretName"], Secret, Role::Credential),
    (&["*", "cephfs", "secretRef", "name"], Secret, Role::Credential),
    (&["*", "cinder", "secretRef", "name"], Secret, Role::Credential),
    (&["*", "flexVolume", "secretRef", "name"], Secret, Role::Credential),
    (&["*", "rbd", "secretRef", "name"], Secret, Role::Credential),
    (&["*", "scaleIO", "secretRef", "name"], Secret, Role::Credential),
    (&["*", "iscsi", "secretRef", "name"], Secret, Role::Credential),
    (&["*", "storageos", "secretRef", "name"], Secret, Role::Credential),
    (&["*", "csi", "nodePublishSecretRef", "name"], Secret, Role::Credential),
];

/// All places, by the list that they are in.
const PLACES: [(&str, &[Place]); 5] = [
    ("containers", IN_CONTAINERS),
    ("initContainers", IN_CONTAINERS),
    ("ephemeralContainers", IN_CONTAINERS),
    ("volumes", IN_VOLUMES),
    ("imagePullSecrets", &[(&["*", "name"], Secret, Role::Credential)]),
];

/// Every reference of a pod spec, in the order of [`PLACES`].
pub fn references(pod_spec: &Value) -> Vec<Reference> {
    let (mut found, mut elements) = (Vec::new(), Vec::new());
    for (list, places) in PLACES {
        // Every template of a cluster is walked at its every change, and most have few of these lists.
        let Some(within) = pod_spec.get(list) else { continue };
        for (path, kind, role) in places {
            visit(within, path, &mut elements, &mut |name, elements| {
                let pointer = pointer(list, path, elements);
                found.push(Reference { config: ConfigRef::new(*kind, name), role: *role, pointer });
            });
        }
    }
    found
}

/// The configs whose content the containers see, each once, in order.
pub fn content_configs(pod_spec: &Value) -> Vec<ConfigRef> {
    let mut configs: Vec<ConfigRef> = references(pod_spec)
        .into_iter()
        .filter(|found| found.role == Role::Content)
        .map(|found| found.config)
        .collect();
    configs.sort();
    configs.dedup();
    configs
}

/// `elements` are the places in lists on the way: most ways lead nowhere, so nothing is written down before a name is found.
fn visit(value: &Value, path: &[&str], elements: &mut Vec<usize>, found: &mut impl FnMut(&str, &[usize])) {
    let Some((step, rest)) = path.split_first() else { return };
    if *step == "*" {
        for (index, element) in value.as_array().into_iter().flatten().enumerate() {
            elements.push(index);
            visit(element, rest, elements, found);
            elements.pop();
        }
    } else if let Some(next) = value.get(step) {
        match next.as_str() {
            // Kubernetes takes an empty name for no reference.
            Some(name) if rest.is_empty() && !name.is_empty() => found(name, elements),
            _ => visit(next, rest, elements, found),
        }
    }
}

/// A path within a list, with the places in lists in the place of its `*`.
fn pointer(list: &str, path: &[&str], elements: &[usize]) -> String {
    let mut elements = elements.iter();
    let mut pointer = format!("/{list}");
    for step in path {
        pointer.push('/');
        let index = if *step == "*" { elements.next() } else { None };
        match index {
            Some(index) => pointer.push_str(&index.to_string()),
            None => pointer.push_str(step),
        }
    }
    pointer
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_found_with_their_place() {
        let spec = json!({
            "initContainers": [{"name": "init", "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "a"}}}]}],
            "containers": [{"name": "app", "envFrom": [{"prefix": "X_"}, {"configMapRef": {"name": "app"}}]}],
            "volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "files"}}]}}],
            "imagePullSecrets": [{"name": "pull"}, {}],
        });
        let found: Vec<_> =
            references(&spec).into_iter().map(|found| (found.config.to_string(), found.pointer)).collect();
        let expected = [
            ("configmap/app", "/containers/0/envFrom/1/configMapRef/name"),
            ("secret/db", "/initContainers/0/env/0/valueFrom/secretKeyRef/name"),
            ("configmap/files", "/volumes/0/projected/sources/0/configMap/name"),
            ("secret/pull", "/imagePullSecrets/0/name"),
        ];
        assert_eq!(found, expected.map(|(config, pointer)| (config.to_owned(), pointer.to_owned())));
    }

    #[test]
    fn every_pointer_leads_to_its_name() {
        let spec = json!({"volumes": [{"configMap": {"name": "a"}}, {"secret": {"secretName": "b"}}, {"csi": {"nodePublishSecretRef": {"name": "c"}}}]});
        let found = references(&spec);
        assert_eq!(found.len(), 3);
        for reference in found {
            assert_eq!(spec.pointer(&reference.pointer).and_then(Value::as_str), Some(reference.config.name.as_str()));
        }
    }

    #[test]
    fn a_credential_is_a_reference_but_not_content() {
        let spec = json!({"imagePullSecrets": [{"name": "pull"}], "volumes": [{"secret": {"secretName": "db"}}, {"secret": {"secretName": "db"}}]});
        assert_eq!(content_configs(&spec), [ConfigRef::new(Secret, "db")]);
    }

    #[test]
    fn empty_and_odd_specs_have_no_references() {
        for spec in
            [json!({}), json!(null), json!({"volumes": "none"}), json!({"volumes": [{"configMap": {"name": ""}}]})]
        {
            assert_eq!(references(&spec), []);
        }
    }
}
