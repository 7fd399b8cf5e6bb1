//! docs/policies.md has a reference that is made from the types and from the names: changed on purpose.
//!
//! `LOCKSTEP_UPDATE=1 cargo test -p lockstep-api` writes it.

use std::fmt::Write as _;

use kube::CustomResourceExt;
use lockstep_api::ReleasePolicy;
use lockstep_core::names;
use lockstep_testing::documents::{check_section, read};
use serde_json::Value;

#[test]
fn the_fields_of_a_policy_are_those_of_the_type() {
    let definition = serde_json::to_value(ReleasePolicy::crd()).unwrap();
    let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut rows = String::from("| field | value | meaning |\n|---|---|---|\n");
    describe(spec, "", &mut rows);
    check_section("docs/policies.md", "fields", &rows).unwrap();
}

/// One row for each field, with those within it after it.
fn describe(schema: &Value, path: &str, rows: &mut String) {
    let fields = schema["properties"].as_object().into_iter().flatten();
    for (name, field) in fields {
        let is_list = field["type"] == "array";
        let inner = if is_list { &field["items"] } else { field };
        let path = format!("{path}{name}{}", if is_list { "[]" } else { "" });
        let is_required = schema["required"].as_array().is_some_and(|names| names.iter().any(|other| other == name));
        let required = if is_required { ", required" } else { "" };
        let meaning = field["description"].as_str().unwrap_or_default().replace('\n', " ").replace('|', "\\|");
        writeln!(rows, "| `{path}` | {}{required} | {meaning} |", value(field)).unwrap();
        describe(inner, &format!("{path}."), rows);
    }
}

/// What a field takes, in words.
fn value(field: &Value) -> String {
    let number = |key: &str| field[key].as_f64().map(|number| format!("{number:.0}"));
    if let Some(words) = field["enum"].as_array() {
        let words = words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`"));
        return words.collect::<Vec<_>>().join(", ");
    }
    if field["x-kubernetes-int-or-string"] == true {
        return "number or percentage".to_owned();
    }
    match field["type"].as_str() {
        Some("integer") => match (number("minimum"), number("maximum")) {
            (Some(from), Some(to)) => format!("number, {from} to {to}"),
            (Some(from), None) => format!("number, {from} or more"),
            _ => "number".to_owned(),
        },
        Some("boolean") => "`true` or `false`".to_owned(),
        Some("string") => {
            number("maxLength").map_or("text".to_owned(), |most| format!("text, at most {most} characters"))
        }
        Some("array") => number("maxItems").map_or("list".to_owned(), |most| format!("list, at most {most}")),
        _ => "object".to_owned(),
    }
}

/// Who sets it, on what, its kind, its name, and what it does.
const NAMES: [(&str, &str, &str, &str, &str); 20] = [
    (
        "you",
        "a ConfigMap or Secret",
        "label",
        names::VERSIONED,
        "`\"true\"`: its changes become versions and are released",
    ),
    ("you", "a namespace", "label", names::VERSIONED, "`\"true\"`: so do those of all that its workloads reference"),
    ("you", "a workload", "annotation", names::AUTO, "`\"true\"`: so do those of all that it references, also later"),
    ("you", "a config", "label or annotation", names::IGNORE, "`\"true\"`: never, whatever else says otherwise"),
    (
        "you",
        "a config",
        "annotation",
        names::VERSION,
        "the name of the version that the change becomes (`1.4.0`); `current` is taken. Without it, versions are numbered: `r2`",
    ),
    ("you", "a config", "annotation", names::REASON, "why it is changed; shown by `lockstep history`"),
    (
        "you",
        "a config",
        "annotation",
        names::POLICY,
        "the name of its ReleasePolicy; without it, the one named `default` of its namespace counts",
    ),
    (
        "you",
        "a config",
        "annotation",
        names::RETAIN,
        "how many versions are kept besides those in use; counts more than the policy's `retainVersions`",
    ),
    (
        "you",
        "a workload",
        "annotation",
        names::WAVE,
        "its place in the order of consumers, a whole number (0 if not given): the lowest go first",
    ),
    ("the API server", "a config", "annotation", names::CHANGED_BY, "who changed its content last"),
    ("Lockstep", "a pod template", "annotation", names::PINS, "the versions that its pods run"),
    (
        "Lockstep",
        "a workload",
        "annotation",
        names::GATE,
        "while a canary is under way: what the workload's own fields were before",
    ),
    ("Lockstep", "a version", "label", names::VERSION_OF, "the kind of its source: `configmap` or `secret`"),
    ("Lockstep", "a version", "annotation", names::SOURCE, "the name of its source"),
    ("Lockstep", "a version", "annotation", names::VERSION, "its name"),
    ("Lockstep", "a version", "annotation", names::NUMBER, "its number, which only grows"),
    ("Lockstep", "a version", "annotation", names::DIGEST, "the whole digest of its content; keyed for a Secret"),
    ("Lockstep", "a version", "annotation", names::KEYS, "a short digest of each key's value; keyed for a Secret"),
    ("Lockstep", "a version", "annotation", names::CHANGED_BY, "who made the change"),
    ("Lockstep", "a version", "annotation", names::REASON, "why"),
];

#[test]
fn the_labels_and_annotations_are_those_of_the_code() {
    let mut rows = String::from("| set by | on | what | does |\n|---|---|---|---|\n");
    for (who, on, what, name, does) in NAMES {
        writeln!(rows, "| {who} | {on} | {what} `{name}` | {does} |").unwrap();
    }
    check_section("docs/policies.md", "names", &rows).unwrap();
}

#[test]
fn no_label_or_annotation_is_forgotten() {
    let source = read("crates/core/src/names.rs").unwrap();
    let known = source.split("\"lockstep.dev/").skip(1).filter_map(|rest| rest.split('"').next());
    for name in known.map(|rest| format!("lockstep.dev/{rest}")) {
        assert!(NAMES.iter().any(|(.., listed, _)| *listed == name), "{name} is not described");
    }
}
