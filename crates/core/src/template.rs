//! Version names in the references of a template itself: for clusters where nobody rewrites pods.
//!
//! The annotation stays the record of which config each version name stands for. A template whose annotation and references
//! disagree was written by somebody who knows only the config's name.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::admission::Replacement;
use crate::config::ConfigRef;
use crate::names;
use crate::pins::{Pin, Pins};
use crate::references::{Reference, Role, references};

/// What brings a version into a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Carrier {
    /// The annotation: references keep the config's name, and whoever admits the pod puts the version's name there.
    #[default]
    Annotation,
    /// The references: they name the version.
    References,
}

/// What a template says of the configs that its pods use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Uses {
    /// The configs, each once, in order: also those that a reference names by a version.
    pub configs: Vec<ConfigRef>,
    /// The versions that its pods run.
    pub pins: Pins,
    /// Versions that the annotation names and the references no longer do: to be put back.
    pub slipped: Pins,
    /// Whether any reference names a version.
    pub names_versions: bool,
}

/// Reads a template whose versions are brought into pods by `carrier`.
pub fn uses(template: &Value, carrier: Carrier) -> Uses {
    let said = annotated_pins(template);
    let (mut configs, mut plain, mut names_versions) = (BTreeSet::new(), BTreeSet::new(), false);
    for found in content(template) {
        if let Some(config) = config_of_version(&found.config, &said) {
            names_versions = true;
            configs.insert(config.clone());
        } else {
            plain.insert(found.config.clone());
            configs.insert(found.config);
        }
    }
    let has_slipped = |config: &ConfigRef, pin: &Pin| {
        carrier == Carrier::References && matches!(pin, Pin::Version(_)) && plain.contains(config)
    };
    let owned = |(config, pin): (&ConfigRef, &Pin)| (config.clone(), pin.clone());
    Uses {
        configs: configs.into_iter().collect(),
        pins: said.iter().filter(|(config, pin)| !has_slipped(config, pin)).map(owned).collect(),
        slipped: said.iter().filter(|(config, pin)| has_slipped(config, pin)).map(owned).collect(),
        names_versions,
    }
}

/// The template with these pins: in its annotation, and in its references if they carry versions. Otherwise they name the
/// configs again.
#[must_use]
pub fn with_pins(template: &Value, pins: &Pins, carrier: Carrier) -> Value {
    let mut written = template.clone();
    for Replacement { pointer, name } in replacements(template, pins, carrier) {
        if let Some(place) = written.pointer_mut(&pointer) {
            *place = Value::String(name);
        }
    }
    if let Some(annotations) = annotations_of(&mut written) {
        annotations.insert(names::PINS.to_owned(), annotation(pins));
    }
    written
}

/// The template's annotations, made where there are none. None where something else stands in their place, as it can in a kind that is
/// not Kubernetes' own: then it is no template that anybody could pin.
fn annotations_of(template: &mut Value) -> Option<&mut Map<String, Value>> {
    let mut place = template;
    for name in ["metadata", "annotations"] {
        let fields = place.as_object_mut()?;
        place = fields.entry(name).or_insert(Value::Null);
        if place.is_null() {
            *place = json!({});
        }
    }
    place.as_object_mut()
}

/// The annotation's value in a merge patch: a template without pins is as it was before it ever had any.
pub fn annotation(pins: &Pins) -> Value {
    if pins.is_empty() { Value::Null } else { json!(pins.to_string()) }
}

/// A digest of the pod spec, whatever versions it runs: another one means other code.
pub fn digest(template: &Value, uses: &Uses) -> String {
    // Most templates name no versions: they need not be copied.
    let text = if uses.names_versions {
        with_pins(template, &Pins::default(), Carrier::Annotation)["spec"].to_string()
    } else {
        template["spec"].to_string()
    };
    let content = crate::digest::Content {
        secret_type: "",
        text: [("spec", text.as_bytes())].into(),
        binary: std::collections::BTreeMap::new(),
    };
    crate::digest::Digest::of_config_map(&content).full()[..DIGEST_LENGTH].to_owned()
}

const DIGEST_LENGTH: usize = 12;

/// The names that change in the references, as JSON pointers within the template.
fn replacements(template: &Value, pins: &Pins, carrier: Carrier) -> Vec<Replacement> {
    let said = annotated_pins(template);
    let replacement = |found: Reference| {
        let config = config_of_version(&found.config, &said).unwrap_or(&found.config);
        let name = match pins.get(config) {
            Some(Pin::Version(version)) if carrier == Carrier::References => version,
            _ => &config.name,
        };
        let pointer = format!("/spec{}", found.pointer);
        (*name != found.config.name).then(|| Replacement { pointer, name: name.clone() })
    };
    content(template).filter_map(replacement).collect()
}

/// The versions to put back: those that slipped, or what is current where such a version is no more. Nothing for a config that
/// is no longer under our care: `current` does not know it.
pub fn put_back<'a>(
    slipped: &Pins,
    exists: impl Fn(&ConfigRef, &str) -> bool,
    current: impl Fn(&ConfigRef) -> Option<&'a str>,
) -> Pins {
    let version = |(config, pin): (&ConfigRef, &Pin)| {
        let current = current(config)?;
        let is_there = matches!(pin, Pin::Version(version) if exists(config, version));
        Some((config.clone(), if is_there { pin.clone() } else { Pin::Version(current.to_owned()) }))
    };
    slipped.iter().filter_map(version).collect()
}

/// A version that a template is pinned to, and that does not exist.
pub type Unknown = (ConfigRef, String);

/// The pins without those to versions that nobody knows: what is current takes their place, or nothing for a config that is not under our
/// care. No pod could start with them.
pub fn replace_unknown<'a>(
    pins: &Pins,
    is_known: impl Fn(&ConfigRef, &str) -> bool,
    current: impl Fn(&ConfigRef) -> Option<&'a str>,
) -> (Pins, Vec<Unknown>) {
    let (mut replaced, mut unknown) = (pins.clone(), Vec::new());
    for (config, pin) in pins.iter() {
        let Pin::Version(version) = pin else { continue };
        if is_known(config, version) {
            continue;
        }
        unknown.push((config.clone(), version.clone()));
        let current = current(config).map(|current| Pin::Version(current.to_owned()));
        replaced.put(config, current.as_ref());
    }
    (replaced, unknown)
}

/// The config that a reference means if it names a version. A name that is pinned itself is a config's.
fn config_of_version<'a>(named: &ConfigRef, pins: &'a Pins) -> Option<&'a ConfigRef> {
    let is_it = |(config, pin): &(&ConfigRef, &Pin)| {
        config.kind == named.kind && matches!(pin, Pin::Version(version) if *version == named.name)
    };
    if pins.get(named).is_some() { None } else { pins.iter().find(is_it).map(|(config, _)| config) }
}

fn content(template: &Value) -> impl Iterator<Item = Reference> {
    references(&template["spec"]).into_iter().filter(|found| found.role == Role::Content)
}

fn annotated_pins(template: &Value) -> Pins {
    Pins::read(template["metadata"]["annotations"][names::PINS].as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigKind::{ConfigMap, Secret};

    /// References to a ConfigMap, as a volume and in the environment, and to a Secret.
    fn template(config_map: &str, secret: &str, pins: &str) -> Value {
        json!({
            "metadata": {"labels": {"app": "web"}, "annotations": {names::PINS: pins}},
            "spec": {
                "containers": [{"name": "web", "image": "web:1", "envFrom": [{"configMapRef": {"name": config_map}}]}],
                "volumes": [{"configMap": {"name": config_map}}, {"secret": {"secretName": secret}}],
                "imagePullSecrets": [{"name": secret}],
            },
        })
    }

    fn pins(text: &str) -> Pins {
        text.parse().unwrap()
    }

    fn both() -> Vec<ConfigRef> {
        vec![ConfigRef::new(ConfigMap, "app"), ConfigRef::new(Secret, "db")]
    }

    const PINNED: &str = "configmap/app=app-1,secret/db=db-1";

    #[test]
    fn a_version_counts_as_its_config_whoever_carries_it() {
        for carrier in [Carrier::Annotation, Carrier::References] {
            let found = uses(&template("app-1", "db-1", PINNED), carrier);
            assert_eq!(found, Uses { configs: both(), pins: pins(PINNED), slipped: pins(""), names_versions: true });
        }
    }

    #[test]
    fn a_version_of_the_other_kind_is_another_object() {
        let found = uses(&template("db-1", "app-1", PINNED), Carrier::References);
        assert_eq!(found.configs, [ConfigRef::new(ConfigMap, "db-1"), ConfigRef::new(Secret, "app-1")]);
        assert!(!found.names_versions);
    }

    #[test]
    fn a_name_that_is_pinned_itself_is_a_config() {
        let found = uses(&template("app-1", "db", "configmap/app=app-1,configmap/app-1=app-1-2"), Carrier::Annotation);
        assert_eq!(found.configs, [ConfigRef::new(ConfigMap, "app-1"), ConfigRef::new(Secret, "db")]);
    }

    #[test]
    fn a_plain_manifest_applied_again_lets_its_versions_slip() {
        let found = uses(&template("app", "db-1", PINNED), Carrier::References);
        assert_eq!(found.pins, pins("secret/db=db-1"));
        assert_eq!(found.slipped, pins("configmap/app=app-1"));
        let found = uses(&template("app", "db", PINNED), Carrier::Annotation);
        assert_eq!((found.pins, found.slipped), (pins(PINNED), pins("")), "the annotation is enough");
    }

    #[test]
    fn one_plain_reference_among_several_is_enough_to_slip() {
        let mut mixed = template("app-1", "db-1", PINNED);
        mixed["spec"]["volumes"][0]["configMap"]["name"] = json!("app");
        assert_eq!(uses(&mixed, Carrier::References).slipped, pins("configmap/app=app-1"));
    }

    #[test]
    fn what_is_followed_live_keeps_its_name() {
        let live = template("app", "db-1", "configmap/app=live,secret/db=db-1");
        let found = uses(&live, Carrier::References);
        assert_eq!((&found.pins, &found.slipped), (&pins("configmap/app=live,secret/db=db-1"), &pins("")));
        assert_eq!(with_pins(&live, &found.pins, Carrier::References), live);
    }

    #[test]
    fn versions_are_written_into_plain_references_and_into_those_of_older_versions() {
        let wanted = template("app-2", "db-2", "configmap/app=app-2,secret/db=db-2");
        for (app, db, said) in [("app", "db", ""), ("app-1", "db-1", PINNED), ("app", "db-1", PINNED)] {
            let mut written =
                with_pins(&template(app, db, said), &pins("configmap/app=app-2,secret/db=db-2"), Carrier::References);
            assert_eq!(written["spec"]["imagePullSecrets"][0]["name"], json!(db), "credentials are never pinned");
            written["spec"]["imagePullSecrets"] = wanted["spec"]["imagePullSecrets"].clone();
            assert_eq!(written, wanted, "{app} {db} {said}");
        }
    }

    #[test]
    fn what_was_written_is_read_again() {
        let written = with_pins(&template("app", "db", ""), &pins(PINNED), Carrier::References);
        let found = uses(&written, Carrier::References);
        assert_eq!((found.configs, found.pins, found.slipped), (both(), pins(PINNED), pins("")));
    }

    #[test]
    fn a_template_without_metadata_gets_its_annotation() {
        let bare = json!({"spec": {"volumes": [{"configMap": {"name": "app"}}]}});
        let written = with_pins(&bare, &pins("configmap/app=app-1"), Carrier::References);
        assert_eq!(uses(&written, Carrier::References).pins, pins("configmap/app=app-1"));
    }

    fn code(template: &Value) -> String {
        digest(template, &uses(template, Carrier::References))
    }

    #[test]
    fn what_is_no_template_is_left_as_it_is() {
        let odd = [
            json!("web"),
            json!([1]),
            json!({"metadata": "web"}),
            json!({"metadata": {"annotations": ["a"]}}),
            json!({"metadata": null, "spec": "web"}),
        ];
        for odd in &odd[..4] {
            assert_eq!(with_pins(odd, &pins(PINNED), Carrier::References), *odd);
        }
        for odd in &odd {
            assert_eq!(uses(odd, Carrier::References).configs, []);
            assert_eq!(code(odd).len(), DIGEST_LENGTH);
        }
    }

    #[test]
    fn references_are_plain_again_where_the_annotation_carries_versions() {
        let wanted = pins("configmap/app=app-2,secret/db=db-1");
        let written = with_pins(&template("app-1", "db-1", PINNED), &wanted, Carrier::Annotation);
        let mut expected = template("app", "db", "configmap/app=app-2,secret/db=db-1");
        expected["spec"]["imagePullSecrets"][0]["name"] = json!("db-1");
        assert_eq!(written, expected);
    }

    #[test]
    fn a_pin_that_goes_leaves_a_plain_reference() {
        let written = with_pins(&template("app-1", "db-1", PINNED), &pins("secret/db=db-1"), Carrier::References);
        assert_eq!(written["spec"]["volumes"][0]["configMap"]["name"], json!("app"));
        assert_eq!(written["spec"]["volumes"][1]["secret"]["secretName"], json!("db-1"));
    }

    #[test]
    fn the_digest_tells_code_and_not_versions() {
        let plain = code(&template("app", "db", ""));
        assert_eq!(code(&template("app", "db", PINNED)), plain);
        let mut other = template("app", "db", PINNED);
        other["spec"]["containers"][0]["image"] = json!("web:2");
        assert_ne!(code(&other), plain);
        let mut versions = template("app-1", "db-1", PINNED);
        versions["spec"]["imagePullSecrets"][0]["name"] = json!("db");
        assert_eq!(code(&versions), plain, "the references carry the versions");
    }

    #[test]
    fn a_pin_to_a_version_that_nobody_knows_becomes_current_or_goes() {
        let found = pins("configmap/app=app-1,configmap/gone=gone-1,configmap/live=live,secret/foreign=foreign-1");
        let is_known = |config: &ConfigRef, _: &str| config.name == "app";
        let current = |config: &ConfigRef| (config.name == "gone").then_some("gone-2");
        let (replaced, unknown) = replace_unknown(&found, is_known, current);
        assert_eq!(replaced, pins("configmap/app=app-1,configmap/gone=gone-2,configmap/live=live"));
        let unknown: Vec<&str> = unknown.iter().map(|(_, version)| version.as_str()).collect();
        assert_eq!(unknown, ["gone-1", "foreign-1"]);
    }

    #[test]
    fn what_slipped_is_put_back_or_becomes_current() {
        let slipped = pins("configmap/app=app-1,configmap/gone=gone-1,secret/former=former-1");
        let exists = |config: &ConfigRef, _: &str| config.name == "app" || config.name == "former";
        let current = |config: &ConfigRef| match config.name.as_str() {
            "app" => Some("app-2"),
            "gone" => Some("gone-2"),
            _ => None,
        };
        assert_eq!(put_back(&slipped, exists, current), pins("configmap/app=app-1,configmap/gone=gone-2"));
    }
}
