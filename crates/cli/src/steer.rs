//! `lockstep pause`, `resume`, `promote`, `abort`: what a person wants of a release under way.

use anyhow::{Context, Result, bail};
use clap::Args;
use kube::api::{Patch, PatchParams};
use lockstep_api::Release;
use lockstep_core::release::{Phase, State};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::names::ReleaseName;
use crate::output::{Format, answer};
use crate::release::FIELD_MANAGER;
use crate::status::under_way;

#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// NAME, configmap/NAME, secret/NAME or release/NAME
    #[arg(value_name = "CONFIG|RELEASE")]
    what: ReleaseName,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Pause,
    Resume,
    Promote,
    Abort,
}

impl Wish {
    fn patch(self) -> Value {
        json!({"spec": match self {
            Self::Pause => json!({"paused": true}),
            Self::Resume => json!({"paused": false}),
            Self::Promote => json!({"promote": true}),
            Self::Abort => json!({"abort": true}),
        }})
    }

    /// What the release makes of it, or why there is nothing to do.
    fn answer(self, release: &Release) -> Result<String, String> {
        let name = release.metadata.name.clone().unwrap_or_default();
        let moves = release.spec.moves.first();
        let (from, to) = moves.map(|step| (step.from_version.clone(), step.to_version.clone())).unwrap_or_default();
        let is_paused = release.spec.paused;
        match self {
            Self::Pause if is_paused => {
                Err(format!("release {name} is paused already: go on with `lockstep resume release/{name}`"))
            }
            Self::Resume if !is_paused => Err(format!("release {name} is not paused")),
            Self::Pause => Ok(format!(
                "release {name} goes no further; failures are still noticed.{} Go on: lockstep resume release/{name}",
                rolling(release)
            )),
            Self::Resume => Ok(format!("release {name} goes on. See it: lockstep watch release/{name}")),
            Self::Promote => {
                Ok(format!("release {name} does not bake any longer. See it: lockstep watch release/{name}"))
            }
            Self::Abort if from == to => {
                Err(format!("release {name} puts {to} back already: there is nothing else to go back to"))
            }
            Self::Abort => Ok(format!(
                "release {name} puts {from} back; {to} is held and not tried again by itself. See it: lockstep watch release/{name}"
            )),
        }
    }
}

/// Whose pods are replaced at this moment: their own controllers go on with that.
fn rolling(release: &Release) -> String {
    let consumers = release.status.iter().flat_map(|status| &status.consumers);
    let rolling: Vec<String> = consumers
        .filter(|consumer| consumer.state == State::Rolling.name())
        .map(|consumer| format!("{} {}", consumer.kind, consumer.name))
        .collect();
    match rolling.as_slice() {
        [] => String::new(),
        [one] => format!(" {one} is rolling already: its own controller finishes that."),
        [first, more @ ..] => {
            format!(" {first} and {} more are rolling already: their own controllers finish that.", more.len())
        }
    }
}

pub(crate) async fn run(cluster: &Cluster, flags: &Flags, wish: Wish, format: Format) -> Result<()> {
    let release = find(cluster, &flags.what, wish).await?;
    let name = release.metadata.name.clone().unwrap_or_default();
    let about = format!("release/{name}");
    let message = match wish.answer(&release) {
        Ok(message) => message,
        Err(nothing) => return answer(format, &about, false, nothing),
    };
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let written = cluster.api::<Release>().patch(&name, &params, &Patch::Merge(wish.patch())).await;
    written.map_err(|error| cluster.explain(error, || format!("change release {name}")))?;
    answer(format, &about, true, message)
}

/// A release that failed and was left to a person can still be taken back.
fn is_left_to(wish: Wish, release: &Release) -> bool {
    wish == Wish::Abort && release.phase() == Phase::Failed
}

async fn find(cluster: &Cluster, what: &ReleaseName, wish: Wish) -> Result<Release> {
    match what {
        ReleaseName::Named(name) => {
            let found = cluster.release(name).await?;
            if found.phase().has_ended() && !is_left_to(wish, &found) {
                bail!("release {name} has ended: it is {}", found.phase());
            }
            Ok(found)
        }
        ReleaseName::Of(config) => {
            let object = cluster.versioned_config(config).await?;
            let releases = cluster.releases_of(config).await?;
            let open = under_way(config, &cluster.namespace, &releases);
            // What was rejected or replaced since has moved nobody.
            let has_moved = |release: &&Release| !matches!(release.phase(), Phase::Rejected | Phase::Superseded);
            let last = releases.iter().find(has_moved);
            let open = open.or_else(|| last.filter(|newest| is_left_to(wish, newest))).cloned();
            let current = object.status.and_then(|status| status.current);
            open.with_context(|| {
                let current = current.map_or("no version yet".to_owned(), |current| current.version);
                format!("no release of {config} is under way in namespace {}: it is at {current}", cluster.namespace)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::baking;

    #[test]
    fn a_wish_is_one_field() {
        assert_eq!(Wish::Pause.patch(), json!({"spec": {"paused": true}}));
        assert_eq!(Wish::Abort.patch(), json!({"spec": {"abort": true}}));
    }

    #[test]
    fn what_is_so_already_is_told() {
        let mut release = baking();
        assert!(Wish::Resume.answer(&release).is_err());
        release.spec.paused = true;
        assert!(Wish::Pause.answer(&release).is_err());
        assert!(Wish::Abort.answer(&release).unwrap().contains("puts 1.1.0 back; r3 is held"));
    }
}
