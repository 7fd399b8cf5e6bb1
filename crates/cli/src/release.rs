//! `lockstep release`: applies a file and follows the releases and rollouts that it makes.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::{GroupVersionKind, TypeMeta};
use kube::discovery::{Scope, oneshot};
use kube::{Api, ResourceExt};
use lockstep_core::{ConfigRef, names};
use serde::Serialize;
use serde_json::Value;

use crate::cluster::{Cluster, refusal};
use crate::content::Content;
use crate::follow::{self, Patience, Wanted, What};
use crate::names::typed;
use crate::output::{BAD, Format, View, paint, print, render, say, told};
use crate::rollouts::{self, Workload, Written};
use crate::{Outcome, manifest};

/// Who we are in `managedFields`.
pub(crate) const FIELD_MANAGER: &str = "lockstep-cli";
/// How long a release is waited for.
pub(crate) const TIMEOUT: &str = "15m";

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  released and rolled out, or nothing to do; without --wait: applied
  1  an error, or a person chose another version meanwhile
  2  rolled back, failed, aborted or replaced by another change, or the rollout of a workload failed
  3  rejected: the change breaks a rule
  4  not done within --timeout; it goes on
  5  released, but not every consumer could be judged: some have no pods, were broken before, or were left alone")]
pub(crate) struct Flags {
    /// The manifest to apply; - for the standard input
    #[arg(short, long, value_name = "FILE")]
    filename: PathBuf,
    /// Follow the releases that it makes to their ends, then the rollouts of its workloads
    #[arg(short, long)]
    wait: bool,
    /// How long to wait, with --wait
    #[arg(long, default_value = TIMEOUT, value_name = "DURATION")]
    timeout: SignedDuration,
    /// Why you change it: noted in the version and the release
    #[arg(long)]
    reason: Option<String>,
    /// Take over fields that others manage, instead of stopping there
    #[arg(long)]
    force_conflicts: bool,
}

pub(crate) async fn run(cluster: &Cluster, flags: &Flags, format: Format) -> Result<Outcome> {
    let mut objects = manifest::read(&flags.filename)?;
    if let Some(reason) = &flags.reason {
        objects.iter_mut().filter(|object| manifest::config(object).is_some()).for_each(|object| note(object, reason));
    }
    for object in &objects {
        check(object).with_context(|| shown(object))?;
    }
    if let Some(twice) = twice(&objects, &cluster.namespace) {
        bail!("the file contains {twice} twice: keep one of them. Nothing was applied");
    }
    manifest::order(&mut objects);
    // All or nothing: half a file would be released alone.
    for object in objects.iter().filter(|object| !manifest::depends_on(object, &objects)) {
        let tried = apply(&place(cluster, object), object, flags.force_conflicts, true).await;
        if let Applied::Refused(why) = tried.map_err(|error| with_nothing_applied(&error))? {
            anstream::eprintln!("{}: {}: {why}. Nothing was applied", shown(object), paint("rejected", BAD));
            return Ok(Outcome::Rejected);
        }
    }
    let comes_with_code = objects.iter().any(rollouts::has_pods);
    let (mut wanted, mut written) = (Vec::new(), Vec::new());
    for object in &objects {
        let cluster = place(cluster, object);
        let config = manifest::config(object);
        let applied = match apply(&cluster, object, flags.force_conflicts, false).await {
            Ok(Applied::Yes(applied)) => applied,
            Ok(Applied::Refused(why)) => {
                anstream::eprintln!("{}: {}: {why}{}", shown(object), paint("rejected", BAD), under_way(&wanted));
                return Ok(Outcome::Rejected);
            }
            Err(error) => return Err(anyhow!("{error:#}{}", under_way(&wanted))),
        };
        let is_versioned = match &config {
            Some(config) => is_versioned(&cluster, config, &applied).await?,
            None => false,
        };
        tell(object, config.as_ref(), is_versioned, flags.wait, format)?;
        if flags.wait && rollouts::has_pods(object) {
            written.push(workload(&cluster, object).await?);
        }
        if let Some(config) = config.filter(|_| is_versioned) {
            let content = content_of(&config, &applied).with_context(|| shown(object))?;
            let what = What::Content(Box::new(content), BTreeSet::new());
            wanted.push((cluster, Wanted { comes_with_code, ..Wanted::new(&config, what) }));
        }
    }
    if !flags.wait {
        return Ok(Outcome::Done);
    }
    let patience = Patience::new(flags.timeout);
    let configs = follow_all(wanted, patience, format).await?;
    let released = follow::outcome(&configs);
    // What was not released may be about to be put back: no rollout says anything then.
    let is_released = matches!(released, Outcome::Done | Outcome::Unjudged);
    let workloads = if is_released { rollouts::follow(&written, patience, format).await? } else { Vec::new() };
    let rolled_out = rollouts::outcome(&workloads);
    print(&render(&Ends::new(configs, workloads), format)?)?;
    Ok(if rolled_out == Outcome::Done { released } else { rolled_out })
}

/// Why a file was not begun with.
fn with_nothing_applied(error: &anyhow::Error) -> anyhow::Error {
    anyhow!("{}. Nothing was applied", told(error).trim_end_matches('.'))
}

/// What was written before something else could not be: it is released without that.
fn under_way(wanted: &[(Cluster, Wanted)]) -> String {
    told_under_way(wanted.iter().map(|(cluster, wanted)| (&wanted.config, cluster.namespace.as_str())))
}

/// Goes on after an error, as that does: without a full stop at the end.
fn told_under_way<'a>(applied: impl Iterator<Item = (&'a ConfigRef, &'a str)>) -> String {
    let each = |(config, namespace): (&ConfigRef, &str)| {
        let typed = typed(config);
        format!(
            ". {config} was applied before it, and is released: follow it with `lockstep watch {typed} -n {namespace}`"
        )
    };
    applied.map(each).collect()
}

/// How all of it ended.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Ends {
    ends: Vec<End>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum End {
    Config(follow::End),
    Workload(rollouts::End),
}

impl Ends {
    fn new(configs: Vec<follow::End>, workloads: Vec<rollouts::End>) -> Self {
        let workloads = workloads.into_iter().map(End::Workload);
        Self { ends: configs.into_iter().map(End::Config).chain(workloads).collect() }
    }
}

impl View for Ends {
    fn text(&self, _: bool) -> String {
        let line = |end: &End| match end {
            End::Config(end) => end.text() + "\n",
            End::Workload(end) => end.text() + "\n",
        };
        self.ends.iter().map(line).collect()
    }
}

/// A workload that was just written, as far as it can be followed.
async fn workload(cluster: &Cluster, object: &Value) -> Result<Written> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let workload = Workload { kind: text("/kind"), name: text("/metadata/name"), namespace: cluster.namespace.clone() };
    let followed =
        if rollouts::can_follow(object) { Some((cluster.clone(), api(cluster, object).await?)) } else { None };
    Ok(Written { workload, followed })
}

/// An object of which the file says two things.
fn twice(objects: &[Value], namespace: &str) -> Option<String> {
    let mut seen = BTreeSet::new();
    let place = |object: &Value| {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or(namespace).to_owned();
        (object["apiVersion"].to_string(), namespace)
    };
    objects.iter().find(|object| !seen.insert((place(object), shown(object)))).map(shown)
}

/// Whether a config can be what the file says. The API server would tell as well, with the value.
fn check(object: &Value) -> Result<()> {
    manifest::config(object).map_or(Ok(()), |config| Content::of_manifest(config.kind, object).map(drop))
}

/// The content that a config has now: keys that others manage are part of it, whatever the file says.
fn content_of(config: &ConfigRef, applied: &DynamicObject) -> Result<Content> {
    Content::of_manifest(config.kind, &applied.data)
}

/// Where an object goes.
fn place(cluster: &Cluster, object: &Value) -> Cluster {
    let namespace = object["metadata"]["namespace"].as_str();
    namespace.map_or_else(|| cluster.clone(), |namespace| cluster.elsewhere(namespace))
}

/// Configs of one namespace are followed together; a file of several namespaces is rare, and followed one after the other.
async fn follow_all(wanted: Vec<(Cluster, Wanted)>, patience: Patience, format: Format) -> Result<Vec<follow::End>> {
    let mut groups: Vec<(Cluster, Vec<Wanted>)> = Vec::new();
    for (cluster, wanted) in wanted {
        match groups.iter_mut().find(|(known, _)| known.namespace == cluster.namespace) {
            Some((_, group)) => group.push(wanted),
            None => groups.push((cluster, vec![wanted])),
        }
    }
    let mut ends = Vec::new();
    for (cluster, group) in groups {
        ends.extend(follow::ends(&cluster, group, patience, format).await?);
    }
    Ok(ends)
}

fn note(object: &mut Value, reason: &str) {
    object["metadata"]["annotations"][names::REASON] = reason.into();
}

/// Whether a config opted in, in any of the ways that there are. A change of one that did not is never released.
async fn is_versioned(cluster: &Cluster, config: &ConfigRef, applied: &DynamicObject) -> Result<bool> {
    let is_on = |value: Option<&String>| value.is_some_and(|value| value == names::ON);
    if is_on(applied.labels().get(names::IGNORE)) || is_on(applied.annotations().get(names::IGNORE)) {
        return Ok(false);
    }
    if is_on(applied.labels().get(names::VERSIONED)) {
        return Ok(true);
    }
    let users = cluster.workloads().await?;
    let users: Vec<_> = users.iter().filter(|workload| workload.uses.contains_key(config)).collect();
    if users.iter().any(|workload| workload.is_auto) {
        return Ok(true);
    }
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let namespace = namespaces.get_metadata(&cluster.namespace).await;
    // Who may not read it cannot tell: then it is better to look for a release than to overlook one.
    let is_on_for_all = namespace.map_or(true, |namespace| is_on(namespace.labels().get(names::VERSIONED)));
    Ok(is_on_for_all && !users.is_empty())
}

fn shown(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or_default().to_ascii_lowercase();
    format!("{kind}/{}", object["metadata"]["name"].as_str().unwrap_or_default())
}

fn tell(object: &Value, config: Option<&ConfigRef>, is_versioned: bool, waits: bool, format: Format) -> Result<()> {
    if !matches!(format, Format::Table | Format::Wide) {
        return Ok(());
    }
    let hint = match config {
        Some(config) if !is_versioned => {
            format!(": not versioned, so nothing follows; opt it in with `lockstep adopt {}`", typed(config))
        }
        Some(config) if !waits => format!("; follow it with `lockstep watch {}`", typed(config)),
        _ => String::new(),
    };
    say(format!("{} applied{hint}", shown(object)))
}

enum Applied {
    Yes(Box<DynamicObject>),
    /// By a rule of ours.
    Refused(String),
}

async fn apply(cluster: &Cluster, object: &Value, force: bool, dry_run: bool) -> Result<Applied> {
    let api = api(cluster, object).await?;
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let params = PatchParams { force, dry_run, ..PatchParams::apply(FIELD_MANAGER) };
    match api.patch(name, &params, &Patch::Apply(object)).await {
        Ok(applied) => Ok(Applied::Yes(Box::new(applied))),
        Err(kube::Error::Api(status)) => match refusal(&status.message) {
            Some(refusal) => Ok(Applied::Refused(refusal.to_owned())),
            None if status.code == 409 => Err(anyhow!(
                "{} in namespace {}: others manage fields of it: {}. Take them over with --force-conflicts",
                shown(object),
                cluster.namespace,
                status.message
            )),
            None => Err(cluster.explain(kube::Error::Api(status), || format!("apply {}", shown(object)))),
        },
        Err(error) => Err(cluster.explain(error, || format!("apply {}", shown(object)))),
    }
}

async fn api(cluster: &Cluster, object: &Value) -> Result<Api<DynamicObject>> {
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let kind = TypeMeta { api_version: text("apiVersion"), kind: text("kind") };
    let kind = GroupVersionKind::try_from(&kind).with_context(|| format!("{}: its apiVersion", shown(object)))?;
    let found = oneshot::pinned_kind(&cluster.client, &kind).await;
    let is_unknown = |error: &kube::Error| match error {
        kube::Error::Discovery(_) => true,
        kube::Error::Api(status) => status.code == 404,
        _ => false,
    };
    let (resource, capabilities) = found.map_err(|error| {
        if is_unknown(&error) {
            let (shown, api) = (shown(object), kind.api_version());
            return anyhow!("{shown}: the cluster does not know {} of {api}: is its definition installed?", kind.kind);
        }
        cluster.explain(error, || format!("look up {}", kind.kind))
    })?;
    Ok(match capabilities.scope {
        Scope::Cluster => Api::all_with(cluster.client.clone(), &resource),
        Scope::Namespaced => Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &resource),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_followed_is_the_config_as_it_was_written() {
        let config: ConfigRef = "configmap/app".parse().unwrap();
        let applied = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"},
            "data": {"COLOR": "blue", "LEVEL": "of another manager"},
        });
        let applied: DynamicObject = serde_json::from_value(applied).unwrap();
        let content = content_of(&config, &applied).unwrap();
        assert_eq!(content.values.keys().collect::<Vec<_>>(), ["COLOR", "LEVEL"]);
    }

    #[test]
    fn an_error_of_the_dry_run_says_that_nothing_was_applied() {
        let conflict = anyhow!("configmap/app: others manage fields of it. Take them over with --force-conflicts");
        assert_eq!(
            with_nothing_applied(&conflict).to_string(),
            "configmap/app: others manage fields of it. Take them over with --force-conflicts. Nothing was applied"
        );
        let lost = anyhow!("the connection was closed.").context("cannot apply configmap/app");
        assert_eq!(
            with_nothing_applied(&lost).to_string(),
            "cannot apply configmap/app: the connection was closed. Nothing was applied"
        );
    }

    #[test]
    fn what_was_applied_before_an_error_is_told_with_it() {
        let (app, db): (ConfigRef, ConfigRef) = ("configmap/app".parse().unwrap(), "secret/db".parse().unwrap());
        assert_eq!(told_under_way([].into_iter()), "");
        assert_eq!(
            told_under_way([(&app, "shop"), (&db, "data")].into_iter()),
            ". configmap/app was applied before it, and is released: follow it with `lockstep watch app -n shop`\
             . secret/db was applied before it, and is released: follow it with `lockstep watch secret/db -n data`"
        );
    }

    #[test]
    fn what_is_in_a_file_twice_is_told() {
        let of = |namespace: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app", "namespace": namespace}});
        let unplaced = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "app"}});
        assert_eq!(twice(&[of("a"), of("b"), unplaced.clone()], "c"), None);
        assert_eq!(twice(&[of("a"), of("b"), of("a")], "c").as_deref(), Some("configmap/app"));
        assert_eq!(twice(&[of("a"), unplaced], "a").as_deref(), Some("configmap/app"));
    }

    #[test]
    fn a_file_is_checked_before_any_of_it_is_sent() {
        let of = |data: Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db"}, "data": data});
        assert!(check(&of(json!({"password": "aHVudGVyMg=="}))).is_ok());
        let error = check(&of(json!({"password": 1234}))).unwrap_err().to_string();
        assert!(!error.contains("1234"), "{error}");
        assert!(check(&json!({"apiVersion": "v1", "kind": "Service", "data": 1})).is_ok(), "it is no config");
    }
}
