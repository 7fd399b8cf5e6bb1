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

/// All places, as paths within a pod spec; `*` stands for every element of a list.
const PLACES: [(&str, ConfigKind, Role); 26] = [
    ("containers/*/envFrom/*/configMapRef/name", ConfigMap, Role::Content),
    ("containers/*/envFrom/*/secretRef/name", Secret, Role::Content),
    ("containers/*/env/*/valueFrom/configMapKeyRef/name", ConfigMap, Role::Content),
    ("containers/*/env/*/valueFrom/secretKeyRef/name", Secret, Role::Content),
    ("initContainers/*/envFrom/*/configMapRef/name", ConfigMap, Role::Content),
    ("initContainers/*/envFrom/*/secretRef/name", Secret, Role::Content),
    ("initContainers/*/env/*/valueFrom/configMapKeyRef/name", ConfigMap, Role::Content),
    ("initContainers/*/env/*/valueFrom/secretKeyRef/name", Secret, Role::Content),
    ("ephemeralContainers/*/envFrom/*/configMapRef/name", ConfigMap, Role::Content),
    ("ephemeralContainers/*/envFrom/*/secretRef/name", Secret, Role::Content),
    ("ephemeralContainers/*/env/*/valueFrom/configMapKeyRef/name", ConfigMap, Role::Content),
    ("ephemeralContainers/*/env/*/valueFrom/secretKeyRef/name", Secret, Role::Content),
    ("volumes/*/configMap/name", ConfigMap, Role::Content),
    ("volumes/*/secret/secretName", Secret, Role::Content),
    ("volumes/*/projected/sources/*/configMap/name", ConfigMap, Role::Content),
    ("volumes/*/projected/sources/*/secret/name", Secret, Role::Content),
    ("imagePullSecrets/*/name", Secret, Role::Credential),
    ("volumes/*/azureFile/secretName", Secret, Role::Credential),
    ("volumes/*/cephfs/secretRef/name", Secret, Role::Credential),
    ("volumes/*/cinder/secretRef/name", Secret, Role::Credential),
    ("volumes/*/flexVolume/secretRef/name", Secret, Role::Credential),
    ("volumes/*/rbd/secretRef/name", Secret, Role::Credential),
    ("volumes/*/scaleIO/secretRef/name", Secret, Role::Credential),
    ("volumes/*/iscsi/secretRef/name", Secret, Role::Credential),
    ("volumes/*/storageos/secretRef/name", Secret, Role::Credential),
    ("volumes/*/csi/nodePublishSecretRef/name", Secret, Role::Credential),
];

/// Every reference of a pod spec, in the order of [`PLACES`].
pub fn references(pod_spec: &Value) -> Vec<Reference> {
    let (mut found, mut elements) = (Vec::new(), Vec::new());
    for (path, kind, role) in PLACES {
        visit(pod_spec, path, &mut elements, &mut |name, elements| {
            found.push(Reference { config: ConfigRef::new(kind, name), role, pointer: pointer(path, elements) });
        });
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
fn visit(value: &Value, path: &str, elements: &mut Vec<usize>, found: &mut impl FnMut(&str, &[usize])) {
    let (step, rest) = path.split_once('/').unwrap_or((path, ""));
    if step == "*" {
        for (index, element) in value.as_array().into_iter().flatten().enumerate() {
            elements.push(index);
            visit(element, rest, elements, found);
            elements.pop();
        }
    } else if let Some(next) = value.get(step) {
        match next.as_str() {
            // Kubernetes takes an empty name for no reference.
            Some(name) if rest.is_empty() && !name.is_empty() => found(name, elements),
            _ if !rest.is_empty() => visit(next, rest, elements, found),
            _ => {}
        }
    }
}

/// A path, with the places in lists in the place of its `*`.
fn pointer(path: &str, elements: &[usize]) -> String {
    let mut elements = elements.iter();
    let mut pointer = String::with_capacity(path.len() + 1 + elements.len());
    for step in path.split('/') {
        pointer.push('/');
        let index = if step == "*" { elements.next() } else { None };
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
