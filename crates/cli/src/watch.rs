//! `lockstep watch`: a release as it goes on.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use jiff::SignedDuration;
use lockstep_api::{Release, VersionSummary, VersionedConfig};
use lockstep_core::ConfigRef;
use tokio::time::{Instant, sleep};

use crate::Outcome;
use crate::cluster::Cluster;
use crate::follow::{Wanted, What, ended, follow};
use crate::names::{ReleaseName, typed};
use crate::output::{Format, say};
use crate::progress::headline;
use crate::status::under_way;

/// How long the operator may take to see a change: moments, unless the machine is very busy or another replica takes over.
const OPERATOR_GRACE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  released, or nothing moves
  1  an error
  2  rolled back, failed or aborted
  3  rejected: the change breaks a rule
  4  not done within --timeout; the release goes on
  5  released, but not every consumer could be judged: some have no pods, were broken before, or were left alone")]
pub(crate) struct Flags {
    /// NAME, configmap/NAME, secret/NAME or release/NAME; all that moves in the namespace if not given
    #[arg(value_name = "CONFIG|RELEASE")]
    what: Option<ReleaseName>,
    /// How long to watch
    #[arg(long, default_value = "24h", value_name = "DURATION")]
    timeout: SignedDuration,
}

pub(crate) async fn run(cluster: &Cluster, flags: &Flags, format: Format) -> Result<Outcome> {
    let wanted = match &flags.what {
        None => open(&cluster.releases(false).await?),
        Some(ReleaseName::Named(name)) => {
            let found = cluster.release(name).await?;
            if found.phase().has_ended() {
                say(headline(&found))?;
                return Ok(ended(&found));
            }
            target(&found).into_iter().collect()
        }
        Some(ReleaseName::Of(config)) => {
            let Some(wanted) = moving(cluster, config).await? else {
                let object = cluster.versioned_config(config).await?;
                let current = object.status.as_ref().and_then(|status| status.current.as_ref());
                let current = current.map_or("no version yet", |current| current.version.as_str());
                let typed = typed(config);
                say(format!("nothing moves: {config} is at {current}. More: lockstep status {typed}"))?;
                return Ok(Outcome::Done);
            };
            vec![wanted]
        }
    };
    if wanted.is_empty() {
        say(format!("nothing moves in namespace {}", cluster.namespace))?;
        return Ok(Outcome::Done);
    }
    follow(cluster, wanted, flags.timeout, format).await
}

/// What a config is on its way to. A change of a moment ago may still be waiting for the operator, or for further changes.
async fn moving(cluster: &Cluster, config: &ConfigRef) -> Result<Option<Wanted>> {
    let deadline = Instant::now() + OPERATOR_GRACE;
    loop {
        let object = cluster.versioned_config(config).await?;
        let releases = cluster.releases_of(config).await?;
        if let Some(release) = under_way(config, &cluster.namespace, &releases) {
            return Ok(target(release));
        }
        let Some(content) = cluster.content(config.kind, &config.name).await? else { return Ok(None) };
        if object.spec.current.is_some() || is_settled(&object, cluster.version_of(&object, &content).await?.as_ref()) {
            return Ok(None);
        }
        if is_seen(&object) {
            let what = What::Content(Box::new(content), BTreeSet::new());
            return Ok(Some(Wanted { config: config.clone(), what }));
        }
        if Instant::now() >= deadline {
            bail!(
                "the operator has not taken up the last change of {config} within {} s: see what `lockstep doctor` says",
                OPERATOR_GRACE.as_secs()
            );
        }
        sleep(POLL).await;
    }
}

/// Whether the config as it is has been judged: it is current, or held.
fn is_settled(object: &VersionedConfig, source: Option<&VersionSummary>) -> bool {
    let (Some(status), Some(source)) = (&object.status, source) else { return false };
    let is_current = status.current.as_ref().is_some_and(|current| current.object == source.object);
    is_current || status.held.as_ref().is_some_and(|held| held.object == source.object)
}

/// Whether the operator has begun with a change, or refused it: its end can be waited for.
fn is_seen(object: &VersionedConfig) -> bool {
    let Some(status) = &object.status else { return false };
    status.releasing.is_some() || status.conditions.iter().any(|condition| condition.reason == "Refused")
}

fn open(releases: &[Release]) -> Vec<Wanted> {
    releases.iter().filter(|release| !release.phase().has_ended()).filter_map(target).collect()
}

/// All configs of a release end together, so one stands for all.
fn target(release: &Release) -> Option<Wanted> {
    let step = release.spec.moves.first()?;
    Some(Wanted { config: ConfigRef::from(&step.source), what: What::Object(step.to.clone()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::version;
    use crate::fixtures::held;

    #[test]
    fn what_is_current_or_held_does_not_move() {
        let object = held();
        assert!(is_settled(&object, Some(version(&object, "current").unwrap())));
        assert!(is_settled(&object, Some(version(&object, "r3").unwrap())), "it failed");
        assert!(!is_settled(&object, Some(version(&object, "1.0.0").unwrap())));
        assert!(!is_settled(&object, None), "its version is not there yet");
    }
}
