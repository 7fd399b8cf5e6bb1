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
    /// The release of a config (NAME, configmap/NAME, secret/NAME), or release/NAME
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
        let see_it = format!("See it: lockstep watch release/{name}");
        let (is_paused, goes_back) = (release.spec.paused, release.phase() == Phase::RollingBack);
        match self {
            Self::Pause if is_paused => {
                Err(format!("release {name} is paused already: go on with `lockstep resume release/{name}`"))
            }
            Self::Resume if !is_paused => Err(format!("release {name} is not paused")),
            Self::Pause => Ok(format!(
                "release {name} goes no further; failures are still noticed.{} Go on: lockstep resume release/{name}",
                rolling(release)
            )),
            Self::Resume => Ok(format!("release {name} goes on. {see_it}")),
            Self::Promote if is_paused => Ok(format!(
                "release {name} is still paused; when it goes on, it does not bake any more. Go on: lockstep resume release/{name}"
            )),
            Self::Promote => Ok(format!(
                "release {name} does not bake any longer, nor does what it still has to move: the rest after a canary, later waves. {see_it}"
            )),
            Self::Abort if from == to => {
                Err(format!("release {name} puts {to} back already: there is nothing else to go back to"))
            }
            Self::Abort if goes_back && release.spec.abort => {
                Err(format!("release {name} is aborted and puts {from} back already. {see_it}"))
            }
            Self::Abort if release.phase() == Phase::Failed && release.spec.abort => {
                let reason = release.status.as_ref().map(|status| status.reason.clone()).unwrap_or_default();
                Err(format!("release {name} was aborted already, and not all is back: {reason}"))
            }
            Self::Abort => {
                // It is written all the same: who changed its code, too, is left to a person at the end, and this is what they want.
                let already = if goes_back { " already" } else { "" };
                Ok(format!(
                    "release {name} puts {from} back{already}; {to} is held and not tried again by itself. {see_it}"
                ))
            }
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
    check(wish, &release)?;
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

/// Whether the release can still do what is wished.
fn check(wish: Wish, release: &Release) -> Result<()> {
    let (name, phase) = (release.metadata.name.as_deref().unwrap_or_default(), release.phase());
    if phase.has_ended() && !is_left_to(wish, release) {
        bail!("release {name} has ended: it is {phase}");
    }
    if phase == Phase::RollingBack && wish != Wish::Abort {
        let from = release.spec.moves.first().map_or("the old version", |step| step.from_version.as_str());
        bail!(
            "release {name} puts {from} back: from there it cannot be paused, resumed or promoted. Follow it to its end: lockstep watch release/{name}"
        );
    }
    Ok(())
}

async fn find(cluster: &Cluster, what: &ReleaseName, wish: Wish) -> Result<Release> {
    match what {
        ReleaseName::Named(name) => cluster.release(name).await,
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

    fn in_phase(phase: Phase) -> Release {
        let mut release = baking();
        release.status.as_mut().unwrap().phase = phase.name().to_owned();
        release
    }

    #[test]
    fn on_the_way_back_nothing_can_be_paused_resumed_or_promoted() {
        let mut back = in_phase(Phase::RollingBack);
        for is_paused in [false, true] {
            back.spec.paused = is_paused;
            for wish in [Wish::Pause, Wish::Resume, Wish::Promote] {
                let error = check(wish, &back).unwrap_err().to_string();
                assert!(error.contains("release configmap-app-2 puts 1.1.0 back"), "{wish:?}: {error}");
                assert!(error.contains("lockstep watch release/configmap-app-2"), "{wish:?}: {error}");
            }
        }
        for wish in [Wish::Pause, Wish::Resume, Wish::Promote, Wish::Abort] {
            assert!(check(wish, &baking()).is_ok(), "{wish:?}");
        }
    }

    #[test]
    fn an_abort_on_the_way_back_says_that_it_goes_back_already() {
        let mut back = in_phase(Phase::RollingBack);
        assert!(check(Wish::Abort, &back).is_ok());
        assert!(Wish::Abort.answer(&back).unwrap().contains("puts 1.1.0 back already; r3 is held"));
        back.spec.abort = true;
        assert!(Wish::Abort.answer(&back).unwrap_err().contains("is aborted and puts 1.1.0 back already"));
    }

    #[test]
    fn of_what_has_ended_only_a_failure_can_be_taken_back() {
        assert!(check(Wish::Abort, &in_phase(Phase::Failed)).is_ok());
        for (wish, phase) in [(Wish::Abort, Phase::RolledBack), (Wish::Pause, Phase::Failed)] {
            let error = check(wish, &in_phase(phase)).unwrap_err().to_string();
            assert_eq!(error, format!("release configmap-app-2 has ended: it is {phase}"));
        }
    }

    #[test]
    fn a_promotion_says_that_it_is_for_the_whole_release() {
        let told = Wish::Promote.answer(&baking()).unwrap();
        assert!(told.contains("the rest after a canary, later waves"), "{told}");
        let mut paused = baking();
        paused.spec.paused = true;
        let told = Wish::Promote.answer(&paused).unwrap();
        assert!(told.contains("still paused") && told.contains("lockstep resume"), "{told}");
    }

    #[test]
    fn a_pause_names_whose_pods_are_replaced_all_the_same() {
        let mut release = baking();
        let rolling = |release: &mut Release, names: &[&str]| {
            for consumer in &mut release.status.as_mut().unwrap().consumers {
                let state = if names.contains(&consumer.name.as_str()) { State::Rolling } else { State::Ready };
                consumer.state = state.name().to_owned();
            }
            Wish::Pause.answer(release).unwrap()
        };
        let one = rolling(&mut release, &["web"]);
        assert!(
            one.contains("noticed. Deployment web is rolling already: its own controller finishes that. Go on:"),
            "{one}"
        );
        let two = rolling(&mut release, &["api", "web"]);
        assert!(
            two.contains("Deployment api and 1 more are rolling already: their own controllers finish that."),
            "{two}"
        );
        let none = rolling(&mut release, &[]);
        assert!(none.contains("failures are still noticed. Go on:"), "{none}");
    }
}
