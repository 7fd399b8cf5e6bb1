//! Pods with references in every place, pins and a pin table of every form: chosen by hand or by a fixed seed.

use lockstep_api::PinTableSpec;
use lockstep_core::{ConfigKind, ConfigRef, Pin, Pins, names};
use proptest::collection::vec;
use proptest::sample::select;
use proptest::strategy::{Just, Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

/// Where a pod names a config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    EnvFrom(Container),
    Env(Container),
    Volume,
    Projected,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    Init,
    First,
    Second,
}

/// Every place but ephemeral containers: no pod is created with those.
pub const PLACES: [Place; 8] = [
    Place::EnvFrom(Container::Init),
    Place::Env(Container::Init),
    Place::EnvFrom(Container::First),
    Place::Env(Container::First),
    Place::EnvFrom(Container::Second),
    Place::Env(Container::Second),
    Place::Volume,
    Place::Projected,
];

/// A config in a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    pub place: Place,
    pub config: ConfigRef,
}

/// What the table says of each config, by the letters of its maps: baseline, current, next, moving. One name is both a ConfigMap's and
/// a Secret's, and one begins with another, so that mix-ups of either show.
const CONFIGS: [(&str, &str); 12] = [
    ("configmap/app", "bcnm"),
    ("configmap/app-x", "bcm"),
    ("configmap/young", "c"),
    ("configmap/coming", "n"),
    ("configmap/leaving", "m"),
    ("configmap/both", "bcn"),
    ("configmap/unknown", ""),
    ("secret/both", "bcm"),
    ("secret/settled", "bc"),
    ("secret/db", "bcn"),
    ("secret/old", "b"),
    ("secret/unknown", ""),
];

/// The number of the versions to which releases move.
const MOVING: u32 = 4;

pub fn table() -> PinTableSpec {
    let map = |letter: char, number: u32| {
        let known = CONFIGS.into_iter().filter(move |(_, maps)| maps.contains(letter));
        known.map(move |(config, _)| (config.to_owned(), version(config, number))).collect()
    };
    PinTableSpec { baseline: map('b', 1), current: map('c', 2), next: map('n', 3), moving: map('m', MOVING) }
}

/// Every config in one place.
pub fn all_uses(place: Place) -> Vec<Use> {
    CONFIGS.iter().map(|(text, _)| Use { place, config: config(text) }).collect()
}

/// What a release under way has made of the pins of every config.
pub fn moved_pins() -> String {
    let moved = |(text, _)| (config(text), Pin::Version(version(text, MOVING)));
    CONFIGS.into_iter().map(moved).collect::<Pins>().to_string()
}

/// The name of a version object. Kinds differ in it, so that one cannot pass for the other.
fn version(config: &str, number: u32) -> String {
    format!("{}-{number}", config.replace('/', "-"))
}

pub fn config(text: &str) -> ConfigRef {
    text.parse().expect("a config")
}

/// A pod spec with these references, each after something that is none, so that a reference's index is never 0 by accident.
pub fn pod_spec(image: &str, uses: &[Use]) -> Value {
    let at = |place| uses.iter().filter(move |used| used.place == place).map(|used| &used.config);
    let container = |name: &str, which| {
        let plain = json!({"name": "PLAIN", "value": "configmap/app"});
        let env = at(Place::Env(which)).enumerate().map(|(index, config)| env_reference(index, config));
        let env_from: Vec<Value> = at(Place::EnvFrom(which)).map(env_from_reference).collect();
        json!({"name": name, "image": image, "env": std::iter::once(plain).chain(env).collect::<Vec<_>>(), "envFrom": env_from})
    };
    let empty = json!({"name": "empty", "emptyDir": {}});
    let volumes = at(Place::Volume).enumerate().map(|(index, config)| volume(index, config));
    let sources: Vec<Value> = at(Place::Projected).map(projected_source).collect();
    let projected = (!sources.is_empty()).then(|| json!({"name": "projected", "projected": {"sources": sources}}));
    json!({
        // A token's volume would have a random name.
        "automountServiceAccountToken": false,
        "initContainers": [container("init", Container::Init)],
        "containers": [container("first", Container::First), container("second", Container::Second)],
        "volumes": std::iter::once(empty).chain(volumes).chain(projected).collect::<Vec<_>>(),
    })
}

pub fn env_reference(index: usize, config: &ConfigRef) -> Value {
    let source = match config.kind {
        ConfigKind::ConfigMap => "configMapKeyRef",
        ConfigKind::Secret => "secretKeyRef",
    };
    json!({"name": format!("E{index}"), "valueFrom": {source: {"name": config.name, "key": "k"}}})
}

pub fn env_from_reference(config: &ConfigRef) -> Value {
    match config.kind {
        ConfigKind::ConfigMap => json!({"configMapRef": {"name": config.name}}),
        ConfigKind::Secret => json!({"secretRef": {"name": config.name}}),
    }
}

fn volume(index: usize, config: &ConfigRef) -> Value {
    let name = format!("v{index}");
    match config.kind {
        ConfigKind::ConfigMap => json!({"name": name, "configMap": {"name": config.name}}),
        ConfigKind::Secret => json!({"name": name, "secret": {"secretName": config.name}}),
    }
}

fn projected_source(config: &ConfigRef) -> Value {
    match config.kind {
        ConfigKind::ConfigMap => json!({"configMap": {"name": config.name}}),
        ConfigKind::Secret => json!({"secret": {"name": config.name}}),
    }
}

pub fn pod(spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec})
}

/// Writes pins into a pod or a template. No text is no annotation.
pub fn set_pins(template: &mut Value, pins: &str) {
    if pins.is_empty() {
        if let Some(annotations) = template["metadata"]["annotations"].as_object_mut() {
            annotations.remove(names::PINS);
        }
    } else {
        template["metadata"]["annotations"][names::PINS] = json!(pins);
    }
}

/// An owner that nobody has to have made: what is only tried has no garbage collector.
pub fn owner(kind: &str, controller: bool) -> Value {
    let uid = "00000000-0000-4000-8000-000000000000";
    json!([{"apiVersion": "apps/v1", "kind": kind, "name": "owner", "uid": uid, "controller": controller}])
}

/// A controller of a kind that Lockstep does not know.
pub fn foreign_owner(kind: &str) -> Value {
    let mut owners = owner(kind, true);
    owners[0]["apiVersion"] = json!("example.com/v1");
    owners
}

pub fn any_config() -> impl Strategy<Value = ConfigRef> {
    select(&CONFIGS[..]).prop_map(|(text, _)| config(text))
}

pub fn any_use() -> impl Strategy<Value = Use> {
    (select(&PLACES[..]), any_config()).prop_map(|(place, config)| Use { place, config })
}

/// Pins of some configs: old versions, those to which releases move, or live.
pub fn any_pins() -> impl Strategy<Value = String> {
    let pin = select(&[None, Some(Some(0)), Some(Some(MOVING)), Some(None)][..]);
    vec(pin, CONFIGS.len()).prop_map(|pins| {
        let pinned = CONFIGS.into_iter().zip(pins).filter_map(|((text, _), number)| {
            let pin = number?.map_or(Pin::Live, |number| Pin::Version(version(text, number)));
            Some((config(text), pin))
        });
        pinned.collect::<Pins>().to_string()
    })
}

pub fn any_pins_or_none() -> impl Strategy<Value = String> {
    proptest::prop_oneof![1 => Just(String::new()), 3 => any_pins()]
}

/// The same values in every run.
pub fn samples<S: Strategy>(strategy: &S, count: usize) -> Vec<S::Value> {
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| strategy.new_tree(&mut runner).expect("a value").current()).collect()
}
