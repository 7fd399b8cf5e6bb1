//! `lockstep history`: the versions of a config, and its releases.

use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use lockstep_api::{Release, VersionedConfig};
use lockstep_core::ConfigRef;
use serde::Serialize;

use crate::cluster::{Cluster, created};
use crate::names::ConfigName;
use crate::output::{BAD, FAINT, Format, GOOD, MOVING, View, age, print, render, short};
use crate::status::{VersionView, phase_style, under_way};
use crate::table::{Cell, Table};

#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// NAME, configmap/NAME or secret/NAME
    config: ConfigName,
}

pub(crate) async fn run(cluster: &Cluster, flags: &Flags, format: Format) -> Result<()> {
    let config = &flags.config.0;
    let object = cluster.versioned_config(config).await?;
    let releases = cluster.releases_of(config).await?;
    print(&render(&History::new(&object, &releases, Timestamp::now()), format)?)
}

#[derive(Debug, Serialize)]
pub(crate) struct History {
    config: String,
    /// Newest first.
    versions: Vec<Entry>,
    /// Newest first.
    releases: Vec<ReleaseView>,
}

#[derive(Debug, Serialize)]
struct Entry {
    #[serde(flatten)]
    version: VersionView,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum State {
    Current,
    /// Current until the release under way succeeds.
    LastGood,
    Releasing,
    Held,
    #[serde(rename = "")]
    Kept,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReleaseView {
    name: String,
    from: String,
    to: String,
    phase: String,
    done: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    changed_by: Option<String>,
    /// Why it ended, or what it waits for.
    why: String,
    #[serde(skip)]
    age: String,
    #[serde(skip)]
    took: String,
}

impl State {
    fn cell(self) -> Cell {
        match self {
            Self::Current => Cell::styled("current", GOOD),
            Self::LastGood => Cell::styled("last good", GOOD),
            Self::Releasing => Cell::styled("releasing", MOVING),
            Self::Held => Cell::styled("held", BAD),
            Self::Kept => Cell::default(),
        }
    }
}

impl History {
    /// `releases`: those of this config, newest first.
    pub(crate) fn new(object: &VersionedConfig, releases: &[Release], now: Timestamp) -> Self {
        let config = ConfigRef::from(&object.spec.source);
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let status = object.status.clone().unwrap_or_default();
        let step =
            |release: &Release| release.spec.moves.iter().find(|step| ConfigRef::from(&step.source) == config).cloned();
        let target = under_way(&config, &namespace, releases).and_then(step).map(|step| step.to);
        let current = status.current.as_ref().map(|current| current.object.as_str());
        let held = status.held.as_ref().map(|held| held.object.as_str());
        let state = |object: &str| {
            if current == Some(object) {
                if target.is_some() { State::LastGood } else { State::Current }
            } else if target.as_deref() == Some(object) {
                State::Releasing
            } else if held == Some(object) {
                State::Held
            } else {
                State::Kept
            }
        };
        let versions = status.versions.iter();
        let versions =
            versions.map(|version| Entry { version: VersionView::new(version, now), state: state(&version.object) });
        let shown = releases.iter().filter_map(|release| Some(ReleaseView::new(release, &step(release)?, now)));
        Self { config: config.to_string(), versions: versions.collect(), releases: shown.collect() }
    }
}

impl ReleaseView {
    fn new(release: &Release, step: &lockstep_api::Move, now: Timestamp) -> Self {
        let status = release.status.clone().unwrap_or_default();
        let created_at = created(release);
        let ended_at = status.ended_at.map(|time| time.0);
        let took = created_at.zip(ended_at).map(|(from, to)| short(to.duration_since(from)));
        Self {
            name: release.metadata.name.clone().unwrap_or_default(),
            from: step.from_version.clone(),
            to: step.to_version.clone(),
            phase: release.phase().to_string(),
            done: status.done,
            created_at,
            ended_at,
            changed_by: release.spec.changed_by.clone(),
            why: status.reason,
            age: created_at.map(|since| age(since, now)).unwrap_or_default(),
            took: took.unwrap_or_default(),
        }
    }
}

impl View for History {
    fn text(&self, is_wide: bool) -> String {
        let mut versions = Table::new(&["VERSION", "STATE", "BY", "AGE", "REASON", "NUMBER", "OBJECT"]);
        for Entry { version, state } in &self.versions {
            versions.row([
                version.version.as_str().into(),
                state.cell(),
                version.changed_by.clone().unwrap_or_default().into(),
                version.age.as_str().into(),
                version.reason.clone().unwrap_or_default().into(),
                if is_wide { version.number.to_string() } else { String::new() }.into(),
                if is_wide { version.object.as_str() } else { "" }.into(),
            ]);
        }
        if self.releases.is_empty() {
            return versions.render();
        }
        let mut releases = Table::new(&["RELEASE", "MOVES", "PHASE", "DONE", "AGE", "TOOK", "BY", "WHY"]);
        for release in &self.releases {
            releases.row([
                release.name.as_str().into(),
                format!("{} → {}", release.from, release.to).into(),
                Cell::styled(&release.phase, phase_style(&release.phase)),
                release.done.as_str().into(),
                release.age.as_str().into(),
                release.took.as_str().into(),
                if is_wide { release.changed_by.clone() } else { None }.unwrap_or_default().into(),
                Cell::styled(&release.why, FAINT),
            ]);
        }
        versions.render() + "\n" + &releases.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{NOW, baking, held, moving, releases};
    use crate::output::plain;

    #[test]
    fn of_a_config_that_moves() {
        let view = History::new(&moving(), &[baking()], NOW);
        insta::assert_snapshot!("moving", plain(&view.text(false)));
    }

    #[test]
    fn of_a_config_whose_change_failed() {
        let view = History::new(&held(), &releases(), NOW);
        insta::assert_snapshot!("held", plain(&view.text(true)));
        insta::assert_snapshot!("held_json", render(&view, Format::Json).unwrap());
    }
}
