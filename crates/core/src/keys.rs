//! Which keys of a config a pod uses, and which of them a new version changes: a consumer whose keys did not change is left alone.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::config::{ConfigKind, ConfigRef};

/// A config with more keys than this is compared as a whole.
pub const MAX_KEYS: usize = 200;

/// What a pod uses of a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Used {
    All,
    Keys(BTreeSet<String>),
}

/// A short digest of each key's value.
pub type KeyDigests = BTreeMap<String, String>;

/// What a pod spec uses of each config that its containers see.
pub fn used_keys(pod_spec: &Value) -> BTreeMap<ConfigRef, Used> {
    let mut used = BTreeMap::new();
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in elements(&pod_spec[list]) {
            for source in elements(&container["envFrom"]) {
                note(&mut used, source, "configMapRef", "secretRef", "name", |_| Used::All);
            }
            for variable in elements(&container["env"]) {
                note(&mut used, &variable["valueFrom"], "configMapKeyRef", "secretKeyRef", "name", one_key);
            }
        }
    }
    for volume in elements(&pod_spec["volumes"]) {
        note(&mut used, volume, "configMap", "secret", "secretName", items);
        for source in elements(&volume["projected"]["sources"]) {
            note(&mut used, source, "configMap", "secret", "name", items);
        }
    }
    used
}

/// The keys that a pod cannot start without, because a volume names them: the kubelet waits for them in silence.
pub fn mounted_keys(pod_spec: &Value) -> BTreeMap<ConfigRef, BTreeSet<String>> {
    let mut needed: BTreeMap<ConfigRef, BTreeSet<String>> = BTreeMap::new();
    for volume in elements(&pod_spec["volumes"]) {
        let whole = [("configMap", "name", ConfigKind::ConfigMap), ("secret", "secretName", ConfigKind::Secret)];
        let part = [("configMap", "name", ConfigKind::ConfigMap), ("secret", "name", ConfigKind::Secret)];
        let sources = elements(&volume["projected"]["sources"]).map(|source| (source, part));
        for (holder, places) in std::iter::once((volume, whole)).chain(sources) {
            for (field, name, kind) in places {
                let reference = &holder[field];
                let Some(name) = reference[name].as_str().filter(|_| reference["optional"] != true) else { continue };
                if let Used::Keys(keys) = items(reference) {
                    needed.entry(ConfigRef::new(kind, name)).or_default().extend(keys);
                }
            }
        }
    }
    needed
}

/// A key that is needed and not there.
pub fn missing<'a>(needed: &'a BTreeSet<String>, there: &KeyDigests) -> Option<&'a String> {
    needed.iter().find(|key| !there.contains_key(*key))
}

fn elements(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn note(
    used: &mut BTreeMap<ConfigRef, Used>,
    holder: &Value,
    config_map: &str,
    secret: &str,
    secret_name: &str,
    keys: fn(&Value) -> Used,
) {
    let found = [(config_map, "name", ConfigKind::ConfigMap), (secret, secret_name, ConfigKind::Secret)];
    for (field, name, kind) in found {
        let reference = &holder[field];
        let Some(name) = reference[name].as_str() else { continue };
        let more = keys(reference);
        let entry = used.entry(ConfigRef::new(kind, name)).or_insert_with(|| Used::Keys(BTreeSet::new()));
        match (entry, more) {
            (Used::Keys(known), Used::Keys(more)) => known.extend(more),
            (entry, _) => *entry = Used::All,
        }
    }
}

fn one_key(reference: &Value) -> Used {
    reference["key"].as_str().map_or(Used::All, |key| Used::Keys([key.to_owned()].into()))
}

fn items(volume: &Value) -> Used {
    let keys: BTreeSet<String> =
        elements(&volume["items"]).filter_map(|item| item["key"].as_str().map(str::to_owned)).collect();
    if keys.is_empty() { Used::All } else { Used::Keys(keys) }
}

/// Whether a change concerns somebody who uses `used`. What is not known counts as changed.
pub fn is_concerned(used: Option<&Used>, old: Option<&KeyDigests>, new: Option<&KeyDigests>) -> bool {
    match (used, old, new) {
        (Some(Used::Keys(keys)), Some(old), Some(new)) => keys.iter().any(|key| old.get(key) != new.get(key)),
        _ => true,
    }
}

/// `key:digest,key:digest`, for an annotation; none if there are too many.
pub fn write(digests: &KeyDigests) -> Option<String> {
    let entries: Vec<String> = digests.iter().map(|(key, digest)| format!("{key}:{digest}")).collect();
    (digests.len() <= MAX_KEYS).then(|| entries.join(","))
}

pub fn read(text: &str) -> KeyDigests {
    let entries = text.split(',').filter_map(|entry| entry.split_once(':'));
    entries.map(|(key, digest)| (key.to_owned(), digest.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_needs_the_keys_that_its_volumes_name_unless_they_are_optional() {
        let item = |key: &str| json!([{"key": key, "path": "file"}]);
        let spec = json!({"volumes": [
            {"configMap": {"name": "app", "items": item("a")}},
            {"configMap": {"name": "app", "items": item("maybe"), "optional": true}},
            {"configMap": {"name": "whole"}},
            {"secret": {"secretName": "db", "items": item("password")}},
            {"projected": {"sources": [
                {"configMap": {"name": "app", "items": item("b")}}, {"secret": {"name": "db", "items": item("user")}},
            ]}},
        ]});
        let needed = mounted_keys(&spec);
        let keys = |kind, name: &str| needed.get(&ConfigRef::new(kind, name)).cloned().unwrap_or_default();
        assert_eq!(keys(ConfigKind::ConfigMap, "app"), ["a".to_owned(), "b".to_owned()].into());
        assert_eq!(keys(ConfigKind::Secret, "db"), ["password".to_owned(), "user".to_owned()].into());
        assert_eq!(needed.len(), 2);
        let there = read("a:1,c:2");
        assert_eq!(missing(&keys(ConfigKind::ConfigMap, "app"), &there).map(String::as_str), Some("b"));
        assert_eq!(missing(&["a".to_owned()].into(), &there), None);
    }

    fn spec() -> Value {
        json!({
            "containers": [{
                "envFrom": [{"secretRef": {"name": "whole"}}],
                "env": [
                    {"valueFrom": {"configMapKeyRef": {"name": "app", "key": "a"}}},
                    {"valueFrom": {"secretKeyRef": {"name": "whole", "key": "x"}}},
                ],
            }],
            "volumes": [
                {"projected": {"sources": [{"configMap": {"name": "app", "items": [{"key": "b"}]}}]}},
                {"configMap": {"name": "files"}},
            ],
        })
    }

    #[test]
    fn keys_add_up_and_everything_is_everything() {
        let used = used_keys(&spec());
        let config = |kind, name: &str| ConfigRef::new(kind, name);
        assert_eq!(used[&config(ConfigKind::ConfigMap, "app")], Used::Keys(["a".into(), "b".into()].into()));
        assert_eq!(used[&config(ConfigKind::ConfigMap, "files")], Used::All);
        assert_eq!(used[&config(ConfigKind::Secret, "whole")], Used::All);
    }

    #[test]
    fn every_config_of_a_pod_is_known() {
        let used: Vec<ConfigRef> = used_keys(&spec()).into_keys().collect();
        assert_eq!(used, crate::references::content_configs(&spec()));
    }

    #[test]
    fn only_a_change_of_what_is_used_concerns() {
        let used = Used::Keys(["a".into()].into());
        let (old, new) = (read("a:1,b:1"), read("a:1,b:2"));
        assert!(!is_concerned(Some(&used), Some(&old), Some(&new)));
        assert!(is_concerned(Some(&used), Some(&old), Some(&read("a:2,b:1"))));
        assert!(is_concerned(Some(&used), Some(&old), Some(&read("b:1"))), "a key that goes");
        assert!(is_concerned(Some(&Used::All), Some(&old), Some(&new)));
        assert!(is_concerned(Some(&used), None, Some(&new)), "an old version that says nothing");
    }

    #[test]
    fn digests_are_written_as_they_are_read() {
        let digests = read("a.yaml:12ab,b:34cd");
        assert_eq!(write(&digests).unwrap(), "a.yaml:12ab,b:34cd");
        let many = (0..=MAX_KEYS).map(|number| (number.to_string(), "0".to_owned())).collect();
        assert_eq!(write(&many), None);
    }
}
