//! `lockstep rollback`, `follow`, `retry`: which version a config is to run.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use jiff::SignedDuration;
use kube::api::{Patch, PatchParams};
use lockstep_api::{ConditionType, Held, Release, VersionSummary, VersionedConfig};
use lockstep_core::release::Phase;
use lockstep_core::{ConfigRef, names};
use serde_json::{Value, json};

use crate::Outcome;
use crate::cluster::Cluster;
use crate::content::version;
use crate::follow::{Wanted, What, follow as follow_change, moves_to};
use crate::names::{ConfigName, typed};
use crate::output::{Format, announce, answer};
use crate::release::{FIELD_MANAGER, TIMEOUT};
use crate::status::under_way;

#[derive(Debug, Args)]
pub(crate) struct RollbackFlags {
    #[command(flatten)]
    config: Flags,
    /// The version to go back to; if not given, the good one before the current one, or during a release the current one
    #[arg(long, value_name = "VERSION")]
    to: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// NAME, configmap/NAME or secret/NAME
    config: ConfigName,
    /// Follow the release to its end; exit codes as of `lockstep release`
    #[arg(short, long)]
    wait: bool,
    /// How long to wait, with --wait
    #[arg(long, default_value = TIMEOUT, value_name = "DURATION")]
    timeout: SignedDuration,
}

pub(crate) async fn rollback(cluster: &Cluster, flags: &RollbackFlags, format: Format) -> Result<Outcome> {
    let config = &flags.config.config.0;
    let object = cluster.versioned_config(config).await?;
    ensure_opted_in(config, &object)?;
    let releases = cluster.releases_of(config).await?;
    let target = target(&object, &releases, flags.to.as_deref())?;
    let source = match cluster.content(config.kind, &config.name).await? {
        Some(content) => cluster.version_of(&object, &content).await?,
        // Without its source a config is what was last released of it.
        None => object.status.as_ref().and_then(|status| status.current.clone()),
    };
    write(cluster, config, json!({"spec": {"current": choice(&target, source.as_ref())}})).await?;
    let typed = typed(config);
    let until = match &source {
        Some(source) if source.object == target.object => "as the config has it".to_owned(),
        Some(source) => format!("instead of {}, until the config changes or `lockstep follow {typed}`", source.version),
        None => format!("until `lockstep follow {typed}`"),
    };
    let message = format!("{config} goes to {}, {until}", target.version);
    finish(cluster, &flags.config, Wanted::new(config, What::Object(target.object)), format, &message).await
}

pub(crate) async fn follow(cluster: &Cluster, flags: &Flags, format: Format) -> Result<Outcome> {
    let config = &flags.config.0;
    let object = cluster.versioned_config(config).await?;
    if object.spec.current.is_none() {
        answer(format, config, false, format!("{config} follows its source already"))?;
        return Ok(Outcome::Done);
    }
    let content = cluster.content(config.kind, &config.name).await?;
    let content = content.with_context(|| {
        format!("{config} itself is gone from namespace {}: create it again first", cluster.namespace)
    })?;
    let source = cluster.version_of(&object, &content).await?;
    write(cluster, config, json!({"spec": {"current": null}})).await?;
    let version = source.as_ref().map_or("a new version", |source| source.version.as_str());
    let held = object.status.and_then(|status| status.held);
    let is_held = held.is_some_and(|held| source.as_ref().is_some_and(|source| source.object == held.object));
    let typed = typed(config);
    let but = if is_held { format!(", which is held: `lockstep retry {typed}` tries it again") } else { String::new() };
    let message = format!("{config} follows its source again: {version}{but}");
    match source {
        Some(source) if !is_held || flags.wait => {
            finish(cluster, flags, Wanted::new(config, What::Object(source.object)), format, &message).await
        }
        _ => answer(format, config, true, message).map(|()| Outcome::Done),
    }
}

pub(crate) async fn retry(cluster: &Cluster, flags: &Flags, format: Format) -> Result<Outcome> {
    let config = &flags.config.0;
    let object = cluster.versioned_config(config).await?;
    ensure_opted_in(config, &object)?;
    let held = object.status.as_ref().and_then(|status| status.held.clone());
    let held = held.with_context(|| format!("no version of {config} is held: there is nothing to try again"))?;
    write(cluster, config, json!({"spec": {"retry": held.release}})).await?;
    // It is asked for already: who may not read the release gets the usual answer.
    let failed = cluster.api::<Release>().get_opt(&held.release).await.ok().flatten();
    let wanted =
        Wanted { tried_again: Some(held.release.clone()), ..Wanted::new(config, What::Object(held.object.clone())) };
    finish(cluster, flags, wanted, format, &tried_again(config, &held, failed.as_ref())).await
}

/// What a retry says. `failed`: the release in which the version failed, if it is still there.
fn tried_again(config: &ConfigRef, held: &Held, failed: Option<&Release>) -> String {
    let Held { version, release, .. } = held;
    if failed.is_some_and(|failed| failed.phase() == Phase::RollingBack) {
        return format!("{config}: {version} is tried again as soon as {release}, in which it failed, has gone back");
    }
    format!("{config}: {version} is tried again, after it failed in {release}")
}

/// What has opted out is not released; a choice would come to life when it opts in again.
fn ensure_opted_in(config: &ConfigRef, object: &VersionedConfig) -> Result<()> {
    let followed = object.status.as_ref().and_then(|status| status.condition(ConditionType::Followed));
    let has_opted_out = followed.is_some_and(|followed| followed.reason == "OptedOut");
    ensure!(
        !has_opted_out,
        "{config} has opted out: nothing of it is released. Opt it in again first: `kubectl label {config} {}={}`",
        names::VERSIONED,
        names::ON
    );
    Ok(())
}

async fn write(cluster: &Cluster, config: &ConfigRef, patch: Value) -> Result<()> {
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let name = config.versioned_config_name();
    let written = cluster.api::<VersionedConfig>().patch(&name, &params, &Patch::Merge(patch)).await;
    written.map(drop).map_err(|error| cluster.explain(error, || format!("change VersionedConfig {name}")))
}

async fn finish(cluster: &Cluster, flags: &Flags, wanted: Wanted, format: Format, message: &str) -> Result<Outcome> {
    let config = &flags.config.0;
    if !flags.wait {
        answer(format, config, true, format!("{message}. See it: lockstep watch {}", typed(config)))?;
        return Ok(Outcome::Done);
    }
    announce(format, message)?;
    follow_change(cluster, vec![wanted], flags.timeout, format).await
}

/// The choice as a merge patch has it; null if the config itself has that version, and there is nothing to choose.
fn choice(target: &VersionSummary, source: Option<&VersionSummary>) -> Value {
    let is_source = source.is_some_and(|source| source.object == target.object);
    // By its object: a name may be given anew when its version is deleted.
    let instead_of = source.map(|source| source.object.as_str());
    // What an earlier choice said goes only if it is told to.
    if is_source { Value::Null } else { json!({"version": target.version, "insteadOf": instead_of}) }
}

/// The version to go back to. `releases`: those of this config, newest first.
fn target(object: &VersionedConfig, releases: &[Release], to: Option<&str>) -> Result<VersionSummary> {
    let config = ConfigRef::from(&object.spec.source);
    let status = object.status.clone().unwrap_or_default();
    let current = status.current.as_ref().with_context(|| format!("{config} has no current version yet"))?;
    let namespace = object.metadata.namespace.clone().unwrap_or_default();
    // So is a consumer that was left with what failed.
    let failed = status.held.as_ref().map(|held| &held.object);
    let is_left = status.consumers.iter().any(|consumer| failed.is_some() && consumer.pinned.as_ref() == failed);
    let is_moving = under_way(&config, &namespace, releases).is_some() || is_left;
    let target = match to {
        Some(to) => version(object, to)?.clone(),
        None if is_moving => current.clone(),
        None => before(object, releases, current).cloned().with_context(|| {
            format!("there is no good version of {config} before {}: choose one with --to", current.version)
        })?,
    };
    if target.object == current.object && !is_moving {
        bail!("{config} is at {} already", target.version);
    }
    let last = releases.iter().find(|release| moves_to(release, &config, &target.object));
    if let Some(rejected) = last.filter(|release| release.phase() == Phase::Rejected) {
        let why = rejected.status.as_ref().map_or("", |status| status.reason.as_str());
        bail!(
            "{} was rejected ({why}): choose another, or write its content into the config to have it checked again",
            target.version
        );
    }
    if status.held.as_ref().is_some_and(|held| held.object == target.object) {
        let typed = typed(&config);
        bail!("{} failed and is held: try it again with `lockstep retry {typed}`, or choose another", target.version);
    }
    Ok(target)
}

/// What ran before the current version; after a rollback, the next older one that was good.
fn before<'a>(
    object: &'a VersionedConfig,
    releases: &[Release],
    current: &VersionSummary,
) -> Option<&'a VersionSummary> {
    let config = ConfigRef::from(&object.spec.source);
    let versions = &object.status.as_ref()?.versions;
    let steps = |release: &Release| {
        let step = release.spec.moves.iter().find(|step| ConfigRef::from(&step.source) == config).cloned();
        step.map(|step| (step, release.phase()))
    };
    if object.spec.current.is_none() {
        let came = releases
            .iter()
            .filter_map(steps)
            .find(|(step, phase)| *phase == Phase::Succeeded && step.to == current.object && step.from != step.to);
        let from = came.and_then(|(step, _)| versions.iter().find(|version| version.object == step.from));
        if from.is_some() {
            return from;
        }
    }
    // The newest word on each version counts; versions come newest first.
    let mut verdicts: BTreeMap<String, Phase> = BTreeMap::new();
    for (step, phase) in releases.iter().filter_map(steps) {
        verdicts.entry(step.to).or_insert(phase);
    }
    let was_bad = |version: &VersionSummary| {
        let verdict = verdicts.get(&version.object);
        matches!(verdict, Some(Phase::RolledBack | Phase::Failed | Phase::Aborted | Phase::Rejected))
    };
    versions.iter().find(|version| version.number < current.number && !was_bad(version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{baking, held, moving, releases, versioned};

    fn named(object: &VersionedConfig, releases: &[Release], to: Option<&str>) -> Result<String, String> {
        target(object, releases, to).map(|target| target.version).map_err(|error| error.to_string())
    }

    #[test]
    fn back_means_to_what_ran_before() {
        assert_eq!(named(&held(), &releases(), None).unwrap(), "1.0.0");
        assert_eq!(named(&held(), &[], None).unwrap(), "1.0.0");
    }

    #[test]
    fn during_a_release_back_means_to_the_last_good_version() {
        assert_eq!(named(&moving(), &[baking()], None).unwrap(), "1.1.0");
    }

    #[test]
    fn what_cannot_be_gone_back_to_is_told() {
        assert!(named(&held(), &releases(), Some("1.1.0")).unwrap_err().contains("is at 1.1.0 already"));
        assert!(named(&held(), &releases(), Some("r3")).unwrap_err().contains("lockstep retry app"));
        assert!(named(&held(), &releases(), Some("r9")).unwrap_err().contains("it has r3, 1.1.0, 1.0.0"));
        let mut rejected = releases();
        rejected[0].status.as_mut().unwrap().phase = "Rejected".into();
        assert!(named(&held(), &rejected, Some("r3")).unwrap_err().contains("r3 was rejected (Deployment web"));
        let first = versioned("secret", "db");
        assert!(named(&first, &[], None).unwrap_err().contains("choose one with --to"));
    }

    #[test]
    fn a_retry_says_what_it_waits_for() {
        let config: ConfigRef = "configmap/app".parse().unwrap();
        let held = held().status.unwrap().held.unwrap();
        let after = "configmap/app: r3 is tried again, after it failed in configmap-app-2";
        assert_eq!(tried_again(&config, &held, None), after);
        assert_eq!(tried_again(&config, &held, Some(&releases()[0])), after);
        let mut back = baking();
        back.status.as_mut().unwrap().phase = "RollingBack".into();
        let told = tried_again(&config, &held, Some(&back));
        assert!(
            told.contains("r3 is tried again as soon as configmap-app-2") && told.contains("has gone back"),
            "{told}"
        );
    }

    #[test]
    fn a_choice_ends_with_the_next_change() {
        let object = held();
        let (source, target) = (version(&object, "r3").unwrap(), version(&object, "1.0.0").unwrap());
        assert_eq!(choice(target, Some(source)), json!({"version": "1.0.0", "insteadOf": source.object}));
        assert_eq!(choice(target, None), json!({"version": "1.0.0", "insteadOf": null}));
        assert_eq!(choice(source, Some(source)), Value::Null);
    }
}
