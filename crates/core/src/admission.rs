//! What happens to a workload or pod when it is written: the same rules as the admission policies of the chart, for
//! clusters whose API server cannot evaluate those. A test on a real cluster compares the two.

use serde_json::Value;

use crate::config::ConfigRef;
use crate::names;
use crate::pins::{Pin, Pins};
use crate::references::{Role, content_configs, references};
use crate::table::Table;

/// A pod template, as it stands in a workload.
#[derive(Debug, Clone, Copy)]
pub struct Template<'a>(pub &'a Value);

/// A write of a workload, as the API server is about to store it.
#[derive(Debug, Clone, Copy)]
pub struct TemplateWrite<'a> {
    /// The template before; none when the workload is new.
    pub old: Option<Template<'a>>,
    pub new: Template<'a>,
    /// Whether the writer knew the object that it changed: a patch, or an object with its uid. Such a writer leaves pins out only on
    /// purpose, as `rollout undo` does; a manifest that replaces the object blindly never knew of them.
    pub knows_object: bool,
}

/// A name to put in the place of another, as a JSON pointer within the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    pub pointer: String,
    pub name: String,
}

impl<'a> Template<'a> {
    fn spec(self) -> &'a Value {
        &self.0["spec"]
    }

    fn pins_text(self) -> &'a str {
        self.0["metadata"]["annotations"][names::PINS].as_str().unwrap_or_default()
    }

    fn pins(self) -> Pins {
        Pins::read(self.pins_text())
    }
}

/// The pins that a template has after a write.
pub fn pins_after(write: TemplateWrite<'_>, table: &Table) -> Pins {
    let Some(old) = write.old else { return join(write.new, &Pins::default(), table) };
    if is_explicit(old, write) {
        return keep(write.new, &write.new.pins());
    }
    if old.spec() == write.new.spec() { keep(write.new, &old.pins()) } else { join(write.new, &old.pins(), table) }
}

/// Whether the writer chose the pins: other ones, or none on purpose.
fn is_explicit(old: Template<'_>, write: TemplateWrite<'_>) -> bool {
    let (before, after) = (old.pins_text(), write.new.pins_text());
    before != after && (!after.is_empty() || write.knows_object)
}

/// The pins of what is still referenced.
fn keep(template: Template<'_>, pins: &Pins) -> Pins {
    let pinned = |config: ConfigRef| pins.get(&config).cloned().map(|pin| (config, pin));
    content_configs(template.spec()).into_iter().filter_map(pinned).collect()
}

/// What the table offers for every reference. A consumer that takes changes live goes on doing so, and one that a release has moved
/// already stays there; a config that is no longer in the table is a plain reference again.
fn join(template: Template<'_>, old: &Pins, table: &Table) -> Pins {
    let pinned = |config: ConfigRef| {
        let entry = table.get(&config);
        let stays = |pin: &&Pin| match pin {
            Pin::Live => true,
            Pin::Version(version) => entry.is_some_and(|entry| entry.keeps(version)),
        };
        let pin = match old.get(&config).filter(stays) {
            Some(pin) => pin.clone(),
            None => Pin::Version(entry?.to_join()?.to_owned()),
        };
        Some((config, pin))
    };
    content_configs(template.spec()).into_iter().filter_map(pinned).collect()
}

/// The names that change when a pod is created.
///
/// A mirror pod stands for one that already runs: it is never changed.
pub fn resolve_pod(pod: &Value, table: &Table) -> Vec<Replacement> {
    if pod["metadata"]["annotations"].get("kubernetes.io/config.mirror").is_some() {
        return Vec::new();
    }
    let pins = Template(pod).pins();
    let has_template = is_from_template(pod);
    let replacement = |pointer: String, config: &ConfigRef| {
        let from_table = |is_old_template: bool| {
            let entry = table.get(config)?;
            let baseline = entry.baseline.clone().filter(|_| is_old_template);
            baseline.or_else(|| entry.current.clone())
        };
        let name = match pins.get(config) {
            Some(Pin::Version(name)) => Some(name.clone()),
            Some(Pin::Live) => from_table(false),
            None => from_table(has_template),
        };
        name.map(|name| Replacement { pointer: format!("/spec{pointer}"), name })
    };
    let content = references(&pod["spec"]).into_iter().filter(|found| found.role == Role::Content);
    content.filter_map(|found| replacement(found.pointer, &found.config)).collect()
}

/// The names that change when somebody adds containers to a pod that runs, to debug it.
///
/// The pod's own pins decide, for they are what its other containers run. What it has already cannot be changed any more.
pub fn resolve_added(old: &Value, pod: &Value) -> Vec<Replacement> {
    // By name: whoever adds one may put it before the others.
    let known: Vec<&Value> =
        old["spec"]["ephemeralContainers"].as_array().into_iter().flatten().map(|known| &known["name"]).collect();
    let added = |found: &Replacement| {
        let rest = found.pointer.strip_prefix("/spec/ephemeralContainers/")?;
        let index: usize = rest.split('/').next()?.parse().ok()?;
        Some(!known.contains(&&pod["spec"]["ephemeralContainers"][index]["name"]))
    };
    resolve_pod(pod, &Table::default()).into_iter().filter(|found| added(found) == Some(true)).collect()
}

/// Whether the pod was made from a template that Lockstep pins: only then is a missing pin an old template.
fn is_from_template(pod: &Value) -> bool {
    let owners = pod["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().any(|owner| {
        let kind = owner["kind"].as_str().unwrap_or_default();
        owner["controller"] == true && PINNING_CONTROLLERS.contains(&kind)
    })
}

/// What makes pods from templates that are pinned when they are written.
pub const PINNING_CONTROLLERS: [&str; 5] = ["ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController"];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::ConfigKind::{ConfigMap, Secret};

    fn table() -> Table {
        let mut table = Table::default();
        let app = table.entry(ConfigRef::new(ConfigMap, "app"));
        (app.baseline, app.current) = (Some("app-1".into()), Some("app-2".into()));
        let db = table.entry(ConfigRef::new(Secret, "db"));
        (db.baseline, db.current, db.next) = (Some("db-1".into()), Some("db-1".into()), Some("db-2".into()));
        table
    }

    fn template(image: &str, configs: &[&str], pins: &str) -> Value {
        let volumes: Vec<Value> = configs
            .iter()
            .map(|config| match config.split_once('/') {
                Some(("secret", name)) => json!({"secret": {"secretName": name}}),
                Some((_, name)) => json!({"configMap": {"name": name}}),
                None => json!({}),
            })
            .collect();
        let annotations = if pins.is_empty() { json!({}) } else { json!({names::PINS: pins}) };
        json!({"metadata": {"annotations": annotations}, "spec": {"containers": [{"image": image}], "volumes": volumes}})
    }

    const BOTH: [&str; 2] = ["configmap/app", "secret/db"];

    fn update(old: &Value, new: &Value, knows_object: bool) -> String {
        pins_after(TemplateWrite { old: Some(Template(old)), new: Template(new), knows_object }, &table()).to_string()
    }

    #[test]
    fn a_new_workload_joins_the_release_under_way() {
        let new = template("v1", &BOTH, "");
        let write = TemplateWrite { old: None, new: Template(&new), knows_object: false };
        assert_eq!(pins_after(write, &table()).to_string(), "configmap/app=app-2,secret/db=db-2");
    }

    #[test]
    fn a_new_workload_does_not_bring_pins_from_elsewhere() {
        let new = template("v1", &["configmap/app"], "configmap/app=app-of-another-cluster");
        let write = TemplateWrite { old: None, new: Template(&new), knows_object: false };
        assert_eq!(pins_after(write, &table()).to_string(), "configmap/app=app-2");
    }

    #[test]
    fn a_new_image_joins_too() {
        let (old, new) = (template("v1", &BOTH, "secret/db=db-1"), template("v2", &BOTH, "secret/db=db-1"));
        assert_eq!(update(&old, &new, true), "configmap/app=app-2,secret/db=db-2");
    }

    #[test]
    fn the_same_manifest_again_changes_nothing() {
        let old = template("v1", &BOTH, "configmap/app=app-1");
        assert_eq!(update(&old, &old, true), "configmap/app=app-1");
        assert_eq!(update(&old, &template("v1", &BOTH, ""), false), "configmap/app=app-1", "replaced without pins");
    }

    #[test]
    fn adopting_a_workload_pins_nothing_until_it_changes() {
        let old = template("v1", &BOTH, "");
        assert_eq!(update(&old, &old, true), "");
    }

    #[test]
    fn undo_is_an_explicit_wish() {
        let old = template("v2", &BOTH, "configmap/app=app-2,secret/db=db-2");
        let undone = template("v1", &BOTH, "configmap/app=app-1,secret/db=db-1");
        assert_eq!(update(&old, &undone, true), "configmap/app=app-1,secret/db=db-1");
        assert_eq!(update(&old, &template("v1", &BOTH, ""), true), "", "back to a template from before the adoption");
    }

    #[test]
    fn a_reference_that_goes_takes_its_pin_along() {
        let old = template("v1", &BOTH, "configmap/app=app-2,secret/db=db-1");
        assert_eq!(
            update(&old, &template("v1", &["secret/db"], "configmap/app=app-2,secret/db=db-1"), true),
            "secret/db=db-2"
        );
    }

    #[test]
    fn a_config_that_opted_out_is_a_plain_reference_after_the_next_change() {
        let configs = ["configmap/former"];
        let (old, new) = (
            template("v1", &configs, "configmap/former=former-1"),
            template("v2", &configs, "configmap/former=former-1"),
        );
        assert_eq!(update(&old, &old, true), "configmap/former=former-1");
        assert_eq!(update(&old, &new, true), "");
    }

    #[test]
    fn a_consumer_that_follows_live_goes_on_doing_so() {
        let (old, new) = (template("v1", &BOTH, "configmap/app=live"), template("v2", &BOTH, "configmap/app=live"));
        assert_eq!(update(&old, &new, true), "configmap/app=live,secret/db=db-2");
    }

    /// Consumers go in waves: `app` is on its way from `app-2` to `app-3`, and nobody may join.
    fn table_of_waves() -> Table {
        let mut table = table();
        table.entry(ConfigRef::new(ConfigMap, "app")).moving = Some("app-3".into());
        table
    }

    fn new_image(pins: &str, table: &Table) -> String {
        let (old, new) = (template("v1", &BOTH, pins), template("v2", &BOTH, pins));
        let write = TemplateWrite { old: Some(Template(&old)), new: Template(&new), knows_object: true };
        pins_after(write, table).to_string()
    }

    #[test]
    fn a_new_image_keeps_the_version_that_a_release_under_way_has_given_it() {
        let pins = new_image("configmap/app=app-3,secret/db=db-1", &table_of_waves());
        assert_eq!(pins, "configmap/app=app-3,secret/db=db-2");
        let (old, new) = (template("v1", &BOTH, "configmap/app=app-3"), template("v2", &BOTH, ""));
        let write = TemplateWrite { old: Some(Template(&old)), new: Template(&new), knows_object: false };
        assert_eq!(
            pins_after(write, &table_of_waves()).to_string(),
            "configmap/app=app-3,secret/db=db-2",
            "replaced without pins"
        );
    }

    #[test]
    fn who_has_not_been_moved_yet_waits_for_its_turn() {
        for pins in ["configmap/app=app-2", "configmap/app=app-1", ""] {
            assert_eq!(new_image(pins, &table_of_waves()), "configmap/app=app-2,secret/db=db-2", "{pins}");
        }
        let new = template("v1", &["configmap/app"], "configmap/app=app-3");
        let write = TemplateWrite { old: None, new: Template(&new), knows_object: false };
        assert_eq!(pins_after(write, &table_of_waves()).to_string(), "configmap/app=app-2", "a new workload");
    }

    #[test]
    fn who_may_join_something_newer_does_not_stay() {
        let mut table = table_of_waves();
        table.entry(ConfigRef::new(ConfigMap, "app")).next = Some("app-4".into());
        assert_eq!(new_image("configmap/app=app-3", &table), "configmap/app=app-4,secret/db=db-2");
    }

    fn resolved(owner: Option<&str>, pins: &str) -> Vec<String> {
        let mut pod = template("v1", &BOTH, pins);
        if let Some(kind) = owner {
            pod["metadata"]["ownerReferences"] = json!([{"kind": kind, "controller": true}]);
        }
        resolve_pod(&pod, &table()).into_iter().map(|replacement| replacement.name).collect()
    }

    #[test]
    fn a_pinned_pod_runs_what_its_template_says() {
        assert_eq!(resolved(Some("ReplicaSet"), "configmap/app=app-0,secret/db=db-0"), ["app-0", "db-0"]);
    }

    #[test]
    fn an_unpinned_pod_of_an_old_template_runs_what_was_current_when_it_was_adopted() {
        assert_eq!(resolved(Some("ReplicaSet"), ""), ["app-1", "db-1"]);
    }

    #[test]
    fn a_pod_without_a_template_runs_what_is_current() {
        assert_eq!(resolved(None, ""), ["app-2", "db-1"]);
        assert_eq!(resolved(Some("SomethingElse"), "configmap/app=live"), ["app-2", "db-1"]);
    }

    #[test]
    fn a_container_that_is_added_runs_what_the_pod_is_pinned_to() {
        let container = |name: &str| json!({"name": name, "envFrom": [{"configMapRef": {"name": "app"}}, {"secretRef": {"name": "db"}}]});
        let mut old = template("v1", &BOTH, "configmap/app=app-0,secret/db=live");
        old["spec"]["ephemeralContainers"] = json!([container("old")]);
        let mut new = old.clone();
        new["spec"]["ephemeralContainers"] = json!([container("new"), container("old")]);
        let pointer = "/spec/ephemeralContainers/0/envFrom/0/configMapRef/name".into();
        let expected = Replacement { pointer, name: "app-0".into() };
        assert_eq!(resolve_added(&old, &new), [expected]);
    }

    #[test]
    fn a_mirror_pod_is_left_alone() {
        let mut pod = template("v1", &BOTH, "");
        pod["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("x");
        assert_eq!(resolve_pod(&pod, &table()), []);
    }
}
