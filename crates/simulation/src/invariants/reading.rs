//! What rules read from objects.

use std::collections::BTreeSet;
use std::ops::Index;
use std::sync::Arc;

use jiff::Timestamp;
use lockstep_core::references::content_configs;
use lockstep_core::release::{ConsumerId, Phase, Record, Release};
use lockstep_core::{ConfigKind, ConfigRef, Pin, Pins, names};
use serde_json::Value;

use super::Seen;
use super::during_releases::LAG_SECONDS;
use crate::kinds::{Key, Kind};
use crate::store::{Change, Object};

/// A version, or the draft of one.
pub(super) struct Version<'a> {
    pub(super) config: ConfigRef,
    /// None for a draft.
    pub(super) name: Option<&'a str>,
}

impl<'a> Version<'a> {
    pub(super) fn read(object: &'a Object) -> Option<Self> {
        let kind = config_kind(object.key.kind)?;
        object.label(names::VERSION_OF)?;
        let source = object.annotation(names::SOURCE)?;
        let name = object.annotation(names::VERSION).filter(|_| object.annotation(names::NUMBER).is_some());
        Some(Self { config: ConfigRef::new(kind, source), name })
    }
}

pub(super) fn config_kind(kind: Kind) -> Option<ConfigKind> {
    match kind {
        Kind::ConfigMap => Some(ConfigKind::ConfigMap),
        Kind::Secret => Some(ConfigKind::Secret),
        _ => None,
    }
}

pub(super) fn object_kind(config: &ConfigRef) -> Kind {
    match config.kind {
        ConfigKind::ConfigMap => Kind::ConfigMap,
        ConfigKind::Secret => Kind::Secret,
    }
}

/// The config that the source of a VersionedConfig, or of a move, names.
pub(super) fn config_of(source: &Value) -> Option<ConfigRef> {
    let kind = if source["kind"] == "Secret" { ConfigKind::Secret } else { ConfigKind::ConfigMap };
    Some(ConfigRef::new(kind, source["name"].as_str()?))
}

pub(super) fn source_key(namespace: &str, config: &ConfigRef) -> Key {
    Key::new(object_kind(config), namespace, &config.name)
}

pub(super) fn managed<'a>(seen: &'a Seen, namespace: &str, config: &ConfigRef) -> Option<&'a Arc<Object>> {
    seen.get(Kind::VersionedConfig, namespace, &config.versioned_config_name())
}

pub(super) fn table<'a>(seen: &'a Seen, namespace: &str) -> Option<&'a lockstep_core::Table> {
    seen.get(Kind::PinTable, namespace, names::PIN_TABLE)?.table()
}

/// What a kind of object makes pods from, or could.
pub(super) fn holder(kind: Kind) -> Option<&'static [&'static str]> {
    kind.template()
}

pub(super) fn template(object: &Object) -> &Value {
    let path = holder(object.key.kind).unwrap_or(&[]);
    object.value.at(path)
}

pub(super) fn pins(object: &Object) -> Pins {
    Pins::read(pins_text(template(object)))
}

/// Of a template, or of a pod.
pub(super) fn pins_text(template: &impl Index<&'static str, Output = Value>) -> &str {
    template["metadata"]["annotations"][names::PINS].as_str().unwrap_or_default()
}

pub(super) fn pinned(pins: &Pins, config: &ConfigRef) -> Option<String> {
    match pins.get(config)? {
        Pin::Version(object) => Some(object.clone()),
        Pin::Live => None,
    }
}

/// The kinds that people write, and whose pins a release may change.
pub(super) const CONSUMERS: [Kind; 7] = [
    Kind::Deployment,
    Kind::StatefulSet,
    Kind::DaemonSet,
    Kind::CronJob,
    Kind::Rollout,
    Kind::ReplicaSet,
    Kind::ReplicationController,
];

/// Workloads of a namespace that nobody else makes.
pub(super) fn consumers<'a>(seen: &'a Seen, namespace: &'a str) -> impl Iterator<Item = &'a Arc<Object>> {
    let all = CONSUMERS.into_iter().flat_map(move |kind| seen.list(kind, namespace));
    all.filter(|object| !object.is_deleted() && controller(object).is_none() && !is_orphan(object))
}

fn is_orphan(object: &Object) -> bool {
    object.key.kind == Kind::ReplicaSet && object.label("pod-template-hash").is_some()
}

pub(super) fn controller(object: &Object) -> Option<&Value> {
    object.owners().find(|owner| owner["controller"] == true)
}

pub(super) fn references(object: &Object) -> BTreeSet<ConfigRef> {
    content_configs(&template(object)["spec"]).into_iter().collect()
}

pub(super) fn consumer_id(object: &Object) -> ConsumerId {
    ConsumerId { kind: object.key.kind.kind().to_owned(), name: object.key.name.clone() }
}

/// A Release as the core knows it.
pub(super) fn release(object: &Object) -> Option<Release> {
    object.value.read::<lockstep_api::Release>().ok().map(|release| release.to_core())
}

pub(super) fn releases<'a>(seen: &'a Seen, namespace: &'a str) -> impl Iterator<Item = Release> + use<'a> {
    seen.list(Kind::Release, namespace).filter_map(|object| release(object))
}

pub(super) fn record<'a>(release: &'a Release, consumer: &ConsumerId) -> Option<&'a Record> {
    release.progress.consumers.iter().find(|record| record.consumer == *consumer)
}

/// The releases of a namespace that have not ended.
pub(super) fn open_releases<'a>(seen: &'a Seen, namespace: &'a str) -> impl Iterator<Item = Release> + use<'a> {
    let is_open = |object: &&Arc<Object>| !phase(object).has_ended();
    seen.list(Kind::Release, namespace).filter(is_open).filter_map(|object| release(object))
}

/// The open releases that an operator may know: also those that somebody deleted a moment ago.
pub(super) fn known_releases<'a>(seen: &'a Seen, namespace: &'a str) -> impl Iterator<Item = Release> + use<'a> {
    let is_fresh = |at: Timestamp| seen.now.duration_since(at).as_secs() < LAG_SECONDS;
    let deleted = seen.deleted.iter().filter(move |(at, object)| is_fresh(*at) && object.key.namespace == namespace);
    let deleted = deleted.filter(|(_, object)| !phase(object).has_ended()).filter_map(|(_, object)| release(object));
    open_releases(seen, namespace).chain(deleted)
}

pub(super) fn phase(release: &Object) -> Phase {
    let name = release.value["status"]["phase"].as_str().unwrap_or_default();
    Phase::ALL.into_iter().find(|phase| phase.name() == name).unwrap_or_default()
}

/// What became another, in short, for whoever reads a violation.
pub fn difference(change: &Change) -> String {
    let (Some(before), Some(after)) = (&change.before, &change.after) else {
        return if change.after.is_some() { "it is new".to_owned() } else { "it is gone".to_owned() };
    };
    let mut found = Vec::new();
    compare(&before.value.to_value(), &after.value.to_value(), "", &mut found);
    found.truncate(6);
    found.join("; ")
}

fn compare(before: &Value, after: &Value, path: &str, found: &mut Vec<String>) {
    if before == after {
        return;
    }
    if let (Value::Object(old), Value::Object(new)) = (before, after) {
        let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
        for name in names {
            compare(&before[name], &after[name], &format!("{path}.{name}"), found);
        }
        return;
    }
    if let (Value::Array(old), Value::Array(new)) = (before, after)
        && old.len() == new.len()
    {
        for (index, (old, new)) in old.iter().zip(new).enumerate() {
            compare(old, new, &format!("{path}[{index}]"), found);
        }
        return;
    }
    found.push(format!("{path}: {} → {}", short(before), short(after)));
}

fn short(value: &Value) -> String {
    const LONGEST: usize = 120;
    let text = value.to_string();
    if text.chars().count() > LONGEST { format!("{}…", text.chars().take(LONGEST).collect::<String>()) } else { text }
}
