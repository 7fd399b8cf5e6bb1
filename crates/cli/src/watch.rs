//! `lockstep watch`: a release as it goes on.

use anyhow::Result;
use clap::Args;
use jiff::SignedDuration;
use lockstep_api::Release;
use lockstep_core::ConfigRef;

use crate::Outcome;
use crate::cluster::Cluster;
use crate::follow::{Wanted, What, ended, follow};
use crate::names::{ReleaseName, typed};
use crate::output::{Format, say};
use crate::progress::headline;
use crate::status::under_way;

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  released, or nothing moves
  1  an error
  2  rolled back, failed or aborted
  3  rejected: the change breaks a rule
  4  not done within --timeout; the release goes on")]
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
            let object = cluster.versioned_config(config).await?;
            let releases = cluster.releases_of(config).await?;
            let Some(release) = under_way(config, &cluster.namespace, &releases) else {
                let current = object.status.as_ref().and_then(|status| status.current.as_ref());
                let current = current.map_or("no version yet", |current| current.version.as_str());
                let typed = typed(config);
                say(format!("nothing moves: {config} is at {current}. More: lockstep status {typed}"))?;
                return Ok(Outcome::Done);
            };
            target(release).into_iter().collect()
        }
    };
    if wanted.is_empty() {
        say(format!("nothing moves in namespace {}", cluster.namespace))?;
        return Ok(Outcome::Done);
    }
    follow(cluster, wanted, flags.timeout, format).await
}

fn open(releases: &[Release]) -> Vec<Wanted> {
    releases.iter().filter(|release| !release.phase().has_ended()).filter_map(target).collect()
}

/// All configs of a release end together, so one stands for all.
fn target(release: &Release) -> Option<Wanted> {
    let step = release.spec.moves.first()?;
    Some(Wanted { config: ConfigRef::from(&step.source), what: What::Object(step.to.clone()) })
}
