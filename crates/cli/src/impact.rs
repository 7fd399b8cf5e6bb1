//! `lockstep impact`: what a change would do, without doing it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::{PinTableSpec, ReleasePolicy, VersionedConfig};
use lockstep_core::keys::{KeyDigests, Used, is_concerned};
use lockstep_core::policy::{BatchSize, Policy};
use lockstep_core::validation::{Invalid, Validation, validate};
use lockstep_core::{ConfigKind, ConfigRef, Pin, names};
use lockstep_operator::workshop::on_deep_stack;
use serde::Serialize;

use crate::cluster::Cluster;
use crate::content::Content;
use crate::manifest;
use crate::names::{ConfigName, typed};
use crate::output::{BAD, Format, MOVING, STRONG, View, paint, print, render};
use crate::table::Table;
use crate::workloads::Workload;

#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// NAME, configmap/NAME or secret/NAME: what any change of it would do
    #[arg(required_unless_present = "filename")]
    config: Option<ConfigName>,
    /// A manifest: what applying it would do; - for the standard input
    #[arg(short, long, value_name = "FILE", conflicts_with = "config")]
    filename: Option<PathBuf>,
}

pub(crate) async fn run(cluster: &Cluster, flags: &Flags, format: Format) -> Result<()> {
    let mut impacts = Vec::new();
    if let Some(path) = &flags.filename {
        let objects = manifest::read(path)?;
        let configs: Vec<_> = objects.iter().filter_map(|object| Some((manifest::config(object)?, object))).collect();
        ensure!(!configs.is_empty(), "{} has no ConfigMap and no Secret: nothing of it is released", path.display());
        for (config, object) in configs {
            let elsewhere = object["metadata"]["namespace"].as_str().map(|namespace| cluster.elsewhere(namespace));
            let cluster = elsewhere.as_ref().unwrap_or(cluster);
            let content = Content::of_manifest(config.kind, object)?;
            let policy = object["metadata"]["annotations"][names::POLICY].as_str().map(str::to_owned);
            impacts.push(look(cluster, config, Some(content), policy).await?);
        }
    } else if let Some(ConfigName(config)) = &flags.config {
        impacts.push(look(cluster, config.clone(), None, None).await?);
    }
    print(&render(&Impacts { impacts }, format)?)
}

/// Reads all that bears on a change of one config.
async fn look(cluster: &Cluster, config: ConfigRef, new: Option<Content>, policy: Option<String>) -> Result<Impact> {
    let object = cluster.find(&config).await?;
    let source = if policy.is_none() { source(cluster, &config).await? } else { None };
    // A file may bring a config that is not there yet.
    if new.is_none() {
        ensure_known(&config, &cluster.namespace, object.as_ref(), source.as_ref())?;
    }
    let table = cluster.table().await?;
    let workloads = cluster.workloads().await?;
    let policy = policy.or_else(|| source?.annotations?.remove(names::POLICY));
    let policy_name = policy.unwrap_or_else(|| names::DEFAULT_POLICY.to_owned());
    let found = cluster.api::<ReleasePolicy>().get(&policy_name).await;
    let found = cluster.optional(found, || format!("read ReleasePolicy {policy_name}"))?;
    let mut contents = BTreeMap::new();
    if new.is_some() {
        for version in running(&config, object.as_ref(), &table, &workloads) {
            if let Some(content) = cluster.content(config.kind, &version).await? {
                contents.insert(version, content);
            }
        }
    }
    let validation = found.as_ref().and_then(|found| found.spec.validation.as_ref());
    let facts = Facts {
        config: &config,
        validation: validation.map(Validation::from).unwrap_or_default(),
        object: object.as_ref(),
        table: &table,
        workloads: &workloads,
        policy: found.as_ref().map_or_else(Policy::default, |found| found.spec.over(&Policy::default())),
        policy_name: found.map(|_| policy_name),
        contents: &contents,
        new: new.as_ref(),
    };
    Ok(facts.impact())
}

/// What is known of the config itself without reading its content; None if it is not there.
async fn source(cluster: &Cluster, config: &ConfigRef) -> Result<Option<ObjectMeta>> {
    let doing = || format!("read {config}");
    let name = &config.name;
    Ok(match config.kind {
        ConfigKind::ConfigMap => {
            cluster.optional(cluster.api::<ConfigMap>().get_metadata(name).await, doing)?.map(|found| found.metadata)
        }
        ConfigKind::Secret => {
            cluster.optional(cluster.api::<Secret>().get_metadata(name).await, doing)?.map(|found| found.metadata)
        }
    })
}

/// A config whose source was deleted is known for as long as somebody uses it.
fn ensure_known(
    config: &ConfigRef,
    namespace: &str,
    object: Option<&VersionedConfig>,
    source: Option<&ObjectMeta>,
) -> Result<()> {
    ensure!(
        object.is_some() || source.is_some(),
        "there is no {config} in namespace {namespace}: check the name, or choose another namespace with -n"
    );
    Ok(())
}

/// The versions whose content is compared with the new one: those that run, the current one and the held one.
fn running(
    config: &ConfigRef,
    object: Option<&VersionedConfig>,
    table: &PinTableSpec,
    workloads: &[Workload],
) -> BTreeSet<String> {
    let pinned = workloads.iter().filter_map(|workload| match workload.pins.get(config)? {
        Pin::Version(version) => Some(version.clone()),
        Pin::Live => None,
    });
    let status = object.and_then(|object| object.status.as_ref());
    let current = status.and_then(|status| status.current.as_ref()).map(|current| current.object.clone());
    let held = status.and_then(|status| status.held.as_ref()).map(|held| held.object.clone());
    let baseline = table.baseline.get(&config.to_string()).cloned();
    pinned.chain(current).chain(held).chain(baseline).collect()
}

/// All that bears on a change of one config.
struct Facts<'a> {
    config: &'a ConfigRef,
    object: Option<&'a VersionedConfig>,
    table: &'a PinTableSpec,
    workloads: &'a [Workload],
    policy: Policy,
    validation: Validation,
    /// None where nobody wrote one.
    policy_name: Option<String>,
    /// By the names of version objects.
    contents: &'a BTreeMap<String, Content>,
    new: Option<&'a Content>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Impact {
    config: String,
    is_versioned: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    /// What the change is, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<Keys>,
    /// Why nothing would move at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    nothing: Option<String>,
    policy: String,
    rolls: Vec<Roll>,
    left_alone: Vec<LeftAlone>,
}

#[derive(Debug, Serialize)]
struct Keys {
    changed: Vec<String>,
    added: Vec<String>,
    removed: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Roll {
    wave: i32,
    kind: String,
    name: String,
    runs: String,
    uses: String,
}

#[derive(Debug, Serialize)]
struct LeftAlone {
    kind: String,
    name: String,
    why: String,
}

impl Facts<'_> {
    fn impact(&self) -> Impact {
        let status = self.object.and_then(|object| object.status.as_ref());
        let current = status.and_then(|status| status.current.as_ref());
        let new_keys = self.new.map(Content::keys);
        let nothing = self.nothing();
        let (mut rolls, mut left_alone) = (Vec::new(), Vec::new());
        let users = self.workloads.iter().filter(|workload| workload.uses.contains_key(self.config));
        for workload in users {
            let (kind, name) = (workload.kind.clone(), workload.name.clone());
            let runs = self.runs(workload);
            let why = nothing.clone().or_else(|| self.why_not(workload, runs.as_deref(), new_keys.as_ref()));
            match why {
                Some(why) => left_alone.push(LeftAlone { kind, name, why }),
                None => rolls.push(Roll {
                    wave: workload.wave,
                    kind,
                    name,
                    runs: runs.map(|runs| self.named(&runs)).unwrap_or_default(),
                    uses: described(&workload.uses[self.config]),
                }),
            }
        }
        rolls.extend(self.unknown_consumers().filter(|_| nothing.is_none()));
        rolls.sort_by(|a, b| (a.wave, &a.kind, &a.name).cmp(&(b.wave, &b.kind, &b.name)));
        let old = current.and_then(|current| self.contents.get(&current.object)).map(Content::keys);
        Impact {
            config: self.config.to_string(),
            is_versioned: self.object.is_some(),
            current: current.map(|current| current.version.clone()),
            keys: old.zip(new_keys).map(|(old, new)| Keys::new(&old, &new)),
            nothing,
            policy: described_policy(self.policy_name.as_deref(), &self.policy),
            rolls,
            left_alone,
        }
    }

    /// Consumers of kinds that only the operator is told of: what they use is not known here.
    fn unknown_consumers(&self) -> impl Iterator<Item = Roll> {
        let listed = self.object.and_then(|object| object.status.as_ref()).map(|status| &status.consumers);
        let is_known = |kind: &str, name: &str| {
            self.workloads.iter().any(|workload| workload.kind == kind && workload.name == name)
        };
        let unknown = listed.into_iter().flatten().filter(move |found| !is_known(&found.kind, &found.name));
        unknown.map(|found| Roll {
            wave: 0,
            kind: found.kind.clone(),
            name: found.name.clone(),
            runs: found.pinned.as_ref().map(|pinned| self.named(pinned)).unwrap_or_default(),
            uses: "unknown".to_owned(),
        })
    }

    /// Why the change as a whole would move nothing.
    fn nothing(&self) -> Option<String> {
        let typed = typed(self.config);
        let Some(object) = self.object else {
            return Some(format!("{} is not versioned: opt it in with `lockstep adopt {typed}`", self.config));
        };
        let status = object.status.as_ref();
        let is_new = |object: &String| self.new.is_some() && self.contents.get(object) == self.new;
        if let Some(held) = status.and_then(|status| status.held.as_ref()).filter(|held| is_new(&held.object)) {
            return Some(format!(
                "this is {}, which is held: try it again with `lockstep retry {typed}`",
                held.version
            ));
        }
        let current = status.and_then(|status| status.current.as_ref());
        if let Some(current) = current.filter(|current| is_new(&current.object)) {
            return Some(format!("this is {}, which is current", current.version));
        }
        self.invalid().map(|why| format!("it would be rejected: {why}"))
    }

    /// What is wrong with the new content by the rules of the policy.
    fn invalid(&self) -> Option<String> {
        let current = self.object?.status.as_ref()?.current.as_ref()?;
        let old = self.contents.get(&current.object).map(Content::data);
        let new = self.new?.data();
        let verdict = on_deep_stack(|| validate(&self.validation, &new, old.as_ref()));
        verdict.unwrap_or_else(|fault| Err(Invalid::Policy(fault))).err().map(|invalid| invalid.to_string())
    }

    fn runs(&self, workload: &Workload) -> Option<String> {
        match workload.pins.get(self.config) {
            Some(Pin::Version(version)) => Some(version.clone()),
            Some(Pin::Live) => None,
            None => self.table.baseline.get(&self.config.to_string()).cloned(),
        }
    }

    fn why_not(&self, workload: &Workload, runs: Option<&str>, new: Option<&KeyDigests>) -> Option<String> {
        if workload.is_fixed {
            let kind = &workload.kind;
            return Some(format!("a {kind} keeps what it was started with"));
        }
        if workload.pins.get(self.config) == Some(&Pin::Live) {
            return Some("takes changes without a restart".to_owned());
        }
        let used = workload.uses.get(self.config);
        let new = new?;
        let old = runs.and_then(|runs| self.contents.get(runs)).map(Content::keys);
        let is_concerned = !self.policy.only_used_keys || is_concerned(used, old.as_ref(), Some(new));
        match used {
            Some(Used::Keys(_)) if !is_concerned => {
                let used = used.map(described).unwrap_or_default();
                Some(format!("uses only {used}, and nothing of that changes"))
            }
            _ => None,
        }
    }

    fn named(&self, object: &str) -> String {
        let versions = self.object.and_then(|object| object.status.as_ref()).map(|status| &status.versions);
        let found = versions.into_iter().flatten().find(|version| version.object == object);
        found.map_or_else(|| object.to_owned(), |version| version.version.clone())
    }
}

impl Keys {
    fn new(old: &KeyDigests, new: &KeyDigests) -> Self {
        let only = |one: &KeyDigests, other: &KeyDigests| {
            one.keys().filter(|key| !other.contains_key(*key)).cloned().collect()
        };
        let changed = new.iter().filter(|(key, digest)| old.get(*key).is_some_and(|old| old != *digest));
        Self { changed: changed.map(|(key, _)| key.clone()).collect(), added: only(new, old), removed: only(old, new) }
    }
}

fn described(used: &Used) -> String {
    match used {
        Used::All => "everything".to_owned(),
        Used::Keys(keys) => keys.iter().cloned().collect::<Vec<_>>().join(", "),
    }
}

fn described_policy(name: Option<&str>, policy: &Policy) -> String {
    let mut parts = vec![match name {
        Some(name) => format!("policy {name}"),
        None => "no policy of its own".to_owned(),
    }];
    match policy.canary {
        Some(BatchSize::Pods(pods)) => parts.push(format!("{pods} pods of each first")),
        Some(BatchSize::Percent(percent)) => parts.push(format!("{percent}% of each one's pods first")),
        Some(BatchSize::Least { pods, percent }) => {
            parts.push(format!("{pods} pods or {percent}% of each one's pods first, whichever is less"));
        }
        None => {}
    }
    parts.extend(policy.max_parallel.map(|count| format!("{count} at a time")));
    parts.push(format!("watched for {} s", policy.bake.as_secs()));
    parts.push(if policy.automatic_rollback { "rolled back if bad" } else { "stopped if bad" }.to_owned());
    parts.join(", ")
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Impacts {
    impacts: Vec<Impact>,
}

impl View for Impacts {
    fn text(&self, is_wide: bool) -> String {
        self.impacts.iter().map(|impact| impact.text(is_wide)).collect::<Vec<_>>().join("\n")
    }
}

impl View for Impact {
    fn text(&self, _: bool) -> String {
        let at = self.current.as_ref().map(|current| format!(" (now at {current})")).unwrap_or_default();
        let mut text = format!("{}{at}\n", paint(&self.config, STRONG));
        for (word, keys) in self.keys.iter().flat_map(Keys::parts) {
            text += &format!("  {word}: {}\n", keys.join(", "));
        }
        if let Some(nothing) = &self.nothing {
            return text + &format!("  {}: {nothing}\n", paint("nothing would move", MOVING));
        }
        if self.rolls.is_empty() {
            text += "  no workload would roll\n";
        } else {
            text += &format!("  {}\n\n", self.policy);
            let mut table = Table::new(&["WAVE", "WOULD ROLL", "RUNS", "USES"]);
            for Roll { wave, kind, name, runs, uses } in &self.rolls {
                table.row([
                    wave.to_string().into(),
                    format!("{kind} {name}").into(),
                    runs.as_str().into(),
                    uses.as_str().into(),
                ]);
            }
            text += &table.render();
        }
        if !self.left_alone.is_empty() {
            text += "\nleft alone\n";
        }
        for LeftAlone { kind, name, why } in &self.left_alone {
            text += &format!("  {kind} {name}: {why}\n");
        }
        text
    }
}

impl Keys {
    fn parts(&self) -> impl Iterator<Item = (String, &Vec<String>)> {
        let all = [("changed", MOVING, &self.changed), ("added", MOVING, &self.added), ("removed", BAD, &self.removed)];
        all.into_iter().filter(|(_, _, keys)| !keys.is_empty()).map(|(word, style, keys)| (paint(word, style), keys))
    }
}

#[cfg(test)]
mod tests {
    use lockstep_core::Pins;
    use lockstep_core::validation::Rule;

    use super::*;
    use crate::content::config_map;
    use crate::fixtures::{held, table};
    use crate::output::plain;

    fn app() -> ConfigRef {
        ConfigRef::new(ConfigKind::ConfigMap, "app")
    }

    fn workload(kind: &str, name: &str, wave: i32, keys: &[&str], pins: &str) -> Workload {
        let keys: BTreeSet<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        let used = if keys.is_empty() { Used::All } else { Used::Keys(keys) };
        Workload {
            kind: kind.into(),
            name: name.into(),
            wave,
            is_auto: false,
            is_fixed: kind == "Job",
            pins: Pins::read(pins),
            uses: [(app(), used)].into(),
        }
    }

    fn impact(object: Option<&VersionedConfig>, new: Option<&Content>) -> Impact {
        let workloads = [
            workload("Deployment", "web", 1, &[], "configmap/app=app-2"),
            workload("Deployment", "api", 0, &["COLOR"], "configmap/app=app-2"),
            workload("Deployment", "log", 0, &["LEVEL"], "configmap/app=app-2"),
            workload("StatefulSet", "db", 0, &["LEVEL"], ""),
            workload("Job", "once", 0, &[], "configmap/app=app-2"),
        ];
        let contents = [
            ("app-1".to_owned(), config_map(&[("COLOR", "blue"), ("LEVEL", "debug")])),
            ("app-2".to_owned(), config_map(&[("COLOR", "blue"), ("LEVEL", "info")])),
            ("app-3".to_owned(), config_map(&[("COLOR", "red")])),
        ];
        let facts = Facts {
            config: &app(),
            object,
            table: &table(),
            workloads: &workloads,
            policy: Policy { canary: Some(BatchSize::Percent(20)), ..Policy::default() },
            policy_name: Some("careful".into()),
            validation: Validation {
                rules: vec![Rule { expression: "data.LEVEL != 'trace'".into(), message: Some("no trace".into()) }],
                ..Validation::default()
            },
            contents: &contents.into(),
            new,
        };
        facts.impact()
    }

    #[test]
    fn of_a_file() {
        let new = config_map(&[("COLOR", "green"), ("LEVEL", "info"), ("NEW", "1")]);
        let view = impact(Some(&held()), Some(&new));
        insta::assert_snapshot!("file", plain(&view.text(false)));
        insta::assert_snapshot!("file_json", render(&view, Format::Json).unwrap());
    }

    #[test]
    fn of_any_change() {
        insta::assert_snapshot!("any", plain(&impact(Some(&held()), None).text(false)));
    }

    #[test]
    fn a_config_that_nobody_knows_is_an_error() {
        let known = |object: Option<&VersionedConfig>, source: Option<&ObjectMeta>| {
            ensure_known(&app(), "shop", object, source).map_err(|error| error.to_string())
        };
        assert_eq!(known(Some(&held()), None), Ok(()), "its source is gone");
        assert_eq!(known(None, Some(&ObjectMeta::default())), Ok(()), "it is not versioned");
        assert!(known(None, None).unwrap_err().starts_with("there is no configmap/app in namespace shop"));
    }

    #[test]
    fn what_is_current_held_or_not_versioned_moves_nothing() {
        let nothing = |object: Option<&VersionedConfig>, new: &Content| impact(object, Some(new)).nothing.unwrap();
        let object = held();
        let current = config_map(&[("COLOR", "blue"), ("LEVEL", "info")]);
        assert!(nothing(Some(&object), &current).contains("1.1.0, which is current"));
        assert!(nothing(Some(&object), &config_map(&[("COLOR", "red")])).contains("lockstep retry app"));
        assert!(nothing(None, &current).contains("lockstep adopt app"));
        let invalid = config_map(&[("COLOR", "blue"), ("LEVEL", "trace")]);
        assert!(nothing(Some(&object), &invalid).contains("is not met: no trace"));
    }
}
