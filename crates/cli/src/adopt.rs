//! `lockstep adopt`: puts configs under Lockstep's care, after saying what that means.

use std::io::{self, BufRead, IsTerminal};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use lockstep_core::digest::MAX_CONFIG_NAME_LENGTH;
use lockstep_core::{ConfigKind, ConfigRef, names};
use lockstep_operator::kinds::WorkloadKind;
use serde::Serialize;
use serde_json::json;

use crate::cluster::Cluster;
use crate::names::{ConfigName, typed};
use crate::output::{FAINT, Format, STRONG, View, announce, paint, print, render};
use crate::release::FIELD_MANAGER;
use crate::workloads::{self, Workload};

#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// A config (NAME, configmap/NAME, secret/NAME), or a workload (deployment/NAME) with all configs that it uses
    #[arg(required = true, value_name = "WORKLOAD|CONFIG")]
    targets: Vec<Target>,
    /// Write without asking
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, Clone)]
enum Target {
    Config(ConfigRef),
    Workload { kind: Box<WorkloadKind>, name: String },
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some((word, name)) = text.split_once('/')
            && let Some(kind) = workloads::kind(word)
        {
            return Ok(Self::Workload { kind: Box::new(kind), name: name.to_owned() });
        }
        let config = text.parse::<ConfigName>();
        let config = config.map_err(|error| format!("{error}, or deployment/NAME and the like for a workload"))?;
        Ok(Self::Config(config.0))
    }
}

pub(crate) async fn run(cluster: &Cluster, flags: &Flags, format: Format) -> Result<()> {
    let workloads = cluster.workloads().await?;
    let mut adoption = Adoption { namespace: cluster.namespace.clone(), configs: Vec::new(), writes: Vec::new() };
    for target in &flags.targets {
        match target {
            Target::Config(config) => {
                let step = config_step(cluster, config, &workloads).await?;
                let is_missing = step.does == missing();
                ensure!(!is_missing, "there is no {config} in namespace {}: create it first", cluster.namespace);
                adoption.add(step, true);
            }
            Target::Workload { kind, name } => {
                let kind = &kind.resource.kind;
                let found = workloads.iter().find(|found| found.kind == *kind && found.name == *name);
                let found = found.with_context(|| {
                    format!("there is no {kind} {name} with a pod template in namespace {}", cluster.namespace)
                })?;
                for config in found.uses.keys() {
                    adoption.add(config_step(cluster, config, &workloads).await?, false);
                }
                adoption.annotate(found);
            }
        }
    }
    print(&render(&adoption, format)?)?;
    if adoption.writes.is_empty() {
        return Ok(());
    }
    confirm(flags.yes)?;
    for write in &adoption.writes {
        perform(cluster, write, &flags.targets).await?;
    }
    announce(format, "done. See it: lockstep status")
}

fn confirm(is_sure: bool) -> Result<()> {
    if is_sure {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        bail!("nothing was written: say --yes to go ahead");
    }
    anstream::eprint!("Go ahead? [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if !matches!(answer.trim(), "y" | "Y" | "yes") {
        bail!("nothing was written");
    }
    Ok(())
}

async fn config_step(cluster: &Cluster, config: &ConfigRef, workloads: &[Workload]) -> Result<Step> {
    let (doing, name) = (|| format!("read {config}"), &config.name);
    let (meta, kind) = match config.kind {
        ConfigKind::ConfigMap => {
            let found = cluster.optional(cluster.api::<ConfigMap>().get_metadata(name).await, doing)?;
            (found.map(|found| found.metadata), None)
        }
        ConfigKind::Secret => match cluster.optional(cluster.api::<Secret>().get(name).await, doing)? {
            Some(found) => (Some(found.metadata), found.type_),
            None => (None, None),
        },
    };
    let is_versioned = cluster.find(config).await?.is_some();
    let users = workloads.iter().filter(|workload| workload.uses.contains_key(config)).map(Workload::shown);
    Ok(Step {
        config: config.to_string(),
        does: does(config, meta.as_ref(), kind.as_deref(), is_versioned),
        users: users.collect(),
    })
}

/// A workload may name a config that is optional.
fn missing() -> Does {
    Does::Nothing("does not exist".to_owned())
}

/// What becomes of a config that is to be adopted.
fn does(config: &ConfigRef, meta: Option<&ObjectMeta>, secret_type: Option<&str>, is_versioned: bool) -> Does {
    let Some(meta) = meta else { return missing() };
    let says = |map: Option<&std::collections::BTreeMap<String, String>>, name: &str| {
        map.and_then(|map| map.get(name)).map(String::as_str) == Some(names::ON)
    };
    let is_version = meta.labels.as_ref().is_some_and(|labels| labels.contains_key(names::VERSION_OF));
    let belongs = ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"];
    if is_version {
        Does::Nothing("is a version itself".to_owned())
    } else if [meta.labels.as_ref(), meta.annotations.as_ref()].into_iter().any(|map| says(map, names::IGNORE)) {
        Does::Nothing(format!("is opted out by {}=true", names::IGNORE))
    } else if let Some(kind) = secret_type.filter(|kind| belongs.contains(kind)) {
        Does::Nothing(format!("a Secret of type {kind} belongs to Kubernetes"))
    } else if config.name.len() > MAX_CONFIG_NAME_LENGTH {
        Does::Nothing(format!("its name has more than {MAX_CONFIG_NAME_LENGTH} characters"))
    } else if is_versioned {
        Does::Nothing("is versioned already".to_owned())
    } else {
        Does::Adopt
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Does {
    Adopt,
    /// And why.
    Nothing(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Step {
    config: String,
    does: Does,
    users: Vec<String>,
}

/// What is written: a label or an annotation, on an object of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Write {
    Label { config: String },
    Annotate { kind: String, name: String },
}

#[derive(Debug, Serialize)]
struct Adoption {
    namespace: String,
    configs: Vec<Step>,
    writes: Vec<Write>,
}

impl Adoption {
    fn add(&mut self, step: Step, by_label: bool) {
        if self.configs.iter().any(|known| known.config == step.config) {
            return;
        }
        if by_label && step.does == Does::Adopt {
            self.writes.push(Write::Label { config: step.config.clone() });
        }
        self.configs.push(step);
    }

    fn annotate(&mut self, workload: &Workload) {
        if !workload.is_auto {
            self.writes.push(Write::Annotate { kind: workload.kind.clone(), name: workload.name.clone() });
        }
    }
}

impl View for Adoption {
    fn text(&self, _: bool) -> String {
        let mut text = String::new();
        let adopted: Vec<&Step> = self.configs.iter().filter(|step| step.does == Does::Adopt).collect();
        if !adopted.is_empty() {
            text += &format!("{} in namespace {}\n", paint("To be versioned", STRONG), self.namespace);
        }
        for step in &adopted {
            let users = if step.users.is_empty() { "nothing".to_owned() } else { step.users.join(", ") };
            text += &format!("  {}, used by {users}\n", step.config);
        }
        let others = self.configs.iter().filter_map(|step| match &step.does {
            Does::Nothing(why) => Some(format!("  {}: {why}\n", step.config)),
            Does::Adopt => None,
        });
        let others: String = others.collect();
        if !others.is_empty() {
            text += &format!("{}\n{others}", paint("Left as it is", STRONG));
        }
        if self.writes.is_empty() {
            return text + "There is nothing to do.\n";
        }
        text += &format!("{}\n", paint("What is written", STRONG));
        for write in &self.writes {
            text += &match write {
                Write::Label { config } => format!("  the label {}={} on {config}\n", names::VERSIONED, names::ON),
                Write::Annotate { kind, name } => {
                    format!(
                        "  the annotation {}={} on {kind} {name}: also what it uses later\n",
                        names::AUTO,
                        names::ON
                    )
                }
            };
        }
        let promise = "Nothing restarts: what a config holds now becomes its first version. From then on its changes are released.";
        text + &format!("{}\n", paint(promise, FAINT))
    }
}

async fn perform(cluster: &Cluster, write: &Write, targets: &[Target]) -> Result<()> {
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let (done, what) = match write {
        Write::Label { config } => {
            let config: ConfigRef = config.parse()?;
            let patch = Patch::Merge(json!({"metadata": {"labels": {names::VERSIONED: names::ON}}}));
            let name = &config.name;
            let done = match config.kind {
                ConfigKind::ConfigMap => cluster.api::<ConfigMap>().patch(name, &params, &patch).await.map(drop),
                ConfigKind::Secret => cluster.api::<Secret>().patch(name, &params, &patch).await.map(drop),
            };
            (done, format!("label {}", typed(&config)))
        }
        Write::Annotate { kind, name } => {
            let known = targets.iter().find_map(|target| match target {
                Target::Workload { kind: known, .. } if known.resource.kind == *kind => Some(&known.resource),
                _ => None,
            });
            let Some(resource) = known else { return Ok(()) };
            let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), &cluster.namespace, resource);
            let patch = Patch::Merge(json!({"metadata": {"annotations": {names::AUTO: names::ON}}}));
            (api.patch(name, &params, &patch).await.map(drop), format!("annotate {kind} {name}"))
        }
    };
    done.map_err(|error| cluster.explain(error, || what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::plain;

    fn meta(labels: &[(&str, &str)]) -> ObjectMeta {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }
    }

    #[test]
    fn what_cannot_be_adopted_is_told() {
        let config = ConfigRef::new(ConfigKind::Secret, "db");
        assert_eq!(does(&config, Some(&meta(&[])), Some("Opaque"), false), Does::Adopt);
        let cases = [
            (None, None, false, "does not exist"),
            (Some(meta(&[("lockstep.dev/ignore", "true")])), None, false, "opted out"),
            (Some(meta(&[("lockstep.dev/version-of", "secret")])), None, false, "is a version itself"),
            (Some(meta(&[])), Some("kubernetes.io/service-account-token"), false, "belongs to Kubernetes"),
            (Some(meta(&[])), None, true, "already"),
        ];
        for (meta, kind, is_versioned, expected) in cases {
            match does(&config, meta.as_ref(), kind, is_versioned) {
                Does::Nothing(why) => assert!(why.contains(expected), "{why}"),
                Does::Adopt => panic!("adopted instead of: {expected}"),
            }
        }
    }

    #[test]
    fn what_will_and_will_not_happen() {
        let step = |config: &str, does, users: &[&str]| Step {
            config: config.into(),
            does,
            users: users.iter().map(|user| (*user).to_owned()).collect(),
        };
        let mut adoption = Adoption { namespace: "shop".into(), configs: Vec::new(), writes: Vec::new() };
        adoption.add(step("configmap/app", Does::Adopt, &["Deployment web", "Deployment api"]), true);
        adoption.add(step("secret/db", Does::Adopt, &[]), false);
        adoption.add(step("secret/token", Does::Nothing("is versioned already".into()), &[]), false);
        adoption.writes.push(Write::Annotate { kind: "Deployment".into(), name: "web".into() });
        insta::assert_snapshot!("plan", plain(&adoption.text(false)));
        insta::assert_snapshot!("plan_json", render(&adoption, Format::Json).unwrap());
    }
}
