//! `lockstep status`: what is current, what moves, what is held, who uses it.

use anyhow::Result;
use clap::Args;
use jiff::Timestamp;
use lockstep_api::{
    ConditionType, Consumer, Move, PinTableSpec, Release, ReleaseConsumer, VersionSummary, VersionedConfig,
    VersionedConfigStatus,
};
use lockstep_core::ConfigRef;
use lockstep_core::release::Phase;
use serde::Serialize;

use crate::cluster::Cluster;
use crate::names::{ConfigName, typed};
use crate::output::{BAD, FAINT, Format, GOOD, MOVING, STRONG, View, age, harmless, page_width, paint, print, render};
use crate::table::{Cell, Table};

#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// NAME, configmap/NAME or secret/NAME; all configs of the namespace if not given
    config: Option<ConfigName>,
    /// Show the configs of all namespaces
    #[arg(short = 'A', long, conflicts_with = "config")]
    all_namespaces: bool,
}

pub(crate) async fn run(cluster: &Cluster, flags: &Flags, format: Format) -> Result<()> {
    let now = Timestamp::now();
    let text = if let Some(ConfigName(config)) = &flags.config {
        let object = cluster.versioned_config(config).await?;
        let (releases, table) = (cluster.releases_of(config).await?, cluster.table().await?);
        render(&ConfigStatus::new(&object, &releases, Some(&table), now), format)?
    } else {
        let objects = cluster.versioned_configs(flags.all_namespaces).await?;
        let releases = cluster.releases(flags.all_namespaces).await?;
        let configs = objects.iter().map(|object| ConfigStatus::new(object, &releases, None, now)).collect();
        let namespace = (!flags.all_namespaces).then(|| cluster.namespace.clone());
        render(&AllStatus { configs, namespace, width: page_width() }, format)?
    };
    print(&text)
}

/// One config, as a person wants to know it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConfigStatus {
    namespace: String,
    config: String,
    /// The last version that was good.
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<VersionView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moving: Option<Moving>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<HeldView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chosen: Option<Chosen>,
    /// Why a change did not become a version.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// Which consumer is pinned to what is no version of the config.
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown_version: Option<String>,
    /// Why there is no version to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
    /// Why changes of the config do not become versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_followed: Option<String>,
    consumer_count: i64,
    consumers: Vec<ConsumerView>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VersionView {
    pub(crate) version: String,
    pub(crate) number: i64,
    pub(crate) object: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) changed_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) created_at: Option<Timestamp>,
    #[serde(skip)]
    pub(crate) age: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Moving {
    release: String,
    to: String,
    phase: String,
    done: String,
    reason: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HeldView {
    version: String,
    release: String,
    reason: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Chosen {
    version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    instead_of: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ConsumerView {
    kind: String,
    name: String,
    version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<String>,
    /// False for a template that has not changed since the config was adopted.
    pinned: bool,
    /// Set while only some of its pods are new.
    #[serde(skip_serializing_if = "Option::is_none")]
    rolling: Option<RollingView>,
    /// Why nobody can say how it does with the version that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_judged: Option<String>,
}

/// A consumer whose pods run two versions.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RollingView {
    from: String,
    to: String,
    updated: i32,
    desired: i32,
}

impl VersionView {
    pub(crate) fn new(summary: &VersionSummary, now: Timestamp) -> Self {
        let created_at = summary.created_at.as_ref().map(|time| time.0);
        Self {
            version: summary.version.clone(),
            number: summary.number,
            object: summary.object.clone(),
            changed_by: summary.changed_by.clone(),
            reason: summary.reason.clone(),
            created_at,
            age: created_at.map(|since| age(since, now)).unwrap_or_default(),
        }
    }
}

impl ConfigStatus {
    pub(crate) fn new(
        object: &VersionedConfig,
        releases: &[Release],
        table: Option<&PinTableSpec>,
        now: Timestamp,
    ) -> Self {
        let config = ConfigRef::from(&object.spec.source);
        let namespace = object.metadata.namespace.clone().unwrap_or_default();
        let status = object.status.clone().unwrap_or_default();
        let named = |object: &str| {
            let found = status.versions.iter().find(|version| version.object == object);
            found.map_or_else(|| object.to_owned(), |version| version.version.clone())
        };
        let baseline = table.and_then(|table| table.baseline.get(&config.to_string()).cloned());
        let open = under_way(&config, &namespace, releases);
        let consumers = status.consumers.iter().map(|consumer| {
            let way = open.and_then(|open| Way::of(consumer, open, &config));
            // Who uses what is not written anew while a release is under way: its own record is the newer one.
            let arrived = way.filter(Way::is_at_its_end);
            let pinned = arrived.map(|way| way.step.to.clone()).or_else(|| consumer.pinned.clone());
            let brought_by = match arrived {
                Some(way) => Some(way.record),
                None => pinned.as_ref().and_then(|runs| {
                    records_of(&config, &namespace, runs, releases).find(|record| is_about(record, consumer))
                }),
            };
            let runs = pinned.clone().or_else(|| baseline.clone());
            ConsumerView {
                kind: consumer.kind.clone(),
                name: consumer.name.clone(),
                version: runs.as_deref().map(named).unwrap_or_default(),
                pinned: pinned.is_some(),
                not_judged: brought_by.and_then(|record| record.unjudged.clone()),
                object: runs,
                rolling: way.and_then(RollingView::new),
            }
        });
        let not_ready = |because: &str| {
            let ready = status.condition(ConditionType::Ready).filter(|ready| ready.reason == because);
            ready.map(|ready| ready.message.clone())
        };
        let unfollowed = status.condition(ConditionType::Followed).filter(|followed| followed.status == "False");
        Self {
            current: status.current.as_ref().map(|current| {
                // The list is written as a whole, so it is never a mixture of two versions.
                let listed = status.versions.iter().find(|version| version.object == current.object);
                VersionView::new(listed.unwrap_or(current), now)
            }),
            moving: open.map(|release| Moving::new(release, &config)),
            held: status.held.as_ref().map(|held| HeldView {
                version: held.version.clone(),
                release: held.release.clone(),
                reason: held.reason.clone(),
            }),
            chosen: object.spec.current.as_ref().map(|choice| Chosen {
                version: choice.version.clone(),
                instead_of: choice.instead_of.as_ref().map(|named| version_name(&status, named)),
            }),
            refused: not_ready("Refused"),
            unknown_version: not_ready("UnknownVersion"),
            missing: not_ready("NoVersion"),
            not_followed: unfollowed.map(|unfollowed| unfollowed.message.clone()),
            consumer_count: status.consumer_count,
            consumers: consumers.collect(),
            config: config.to_string(),
            namespace,
        }
    }

    fn row(&self, table: &mut Table, with_namespace: bool) {
        let moving = self.moving.as_ref();
        let phase = moving.map(|moving| Cell::styled(&moving.phase, phase_style(&moving.phase)));
        table.row([
            Cell::from(if with_namespace { self.namespace.as_str() } else { "" }),
            self.config.as_str().into(),
            self.current.as_ref().map(|current| current.version.clone()).unwrap_or_default().into(),
            moving.map(|moving| moving.to.clone()).unwrap_or_default().into(),
            moving.map(|moving| moving.release.clone()).unwrap_or_default().into(),
            phase.unwrap_or_default(),
            moving.map(|moving| moving.done.clone()).unwrap_or_default().into(),
            Cell::styled(self.held.as_ref().map(|held| held.version.clone()).unwrap_or_default(), BAD),
            self.consumer_count.to_string().into(),
            self.current.as_ref().map(|current| current.age.clone()).unwrap_or_default().into(),
            self.why().unwrap_or_default().into(),
        ]);
    }

    /// What matters most of all that there is to say.
    fn why(&self) -> Option<&str> {
        let moving = self.moving.as_ref().map(|moving| &moving.reason);
        let held = self.held.as_ref().map(|held| &held.reason);
        let not_judged = self.not_judged().and_then(|consumer| consumer.not_judged.as_ref());
        let ours = [self.refused.as_ref(), self.unknown_version.as_ref(), self.missing.as_ref()];
        let all = ours.into_iter().chain([moving, held, self.not_followed.as_ref(), not_judged]);
        all.flatten().map(String::as_str).find(|why| !why.is_empty())
    }

    fn not_judged(&self) -> Option<&ConsumerView> {
        self.consumers.iter().find(|consumer| consumer.not_judged.is_some())
    }
}

impl Moving {
    fn new(release: &Release, config: &ConfigRef) -> Self {
        let status = release.status.clone().unwrap_or_default();
        let step = release.spec.moves.iter().find(|step| ConfigRef::from(&step.source) == *config);
        Self {
            release: release.metadata.name.clone().unwrap_or_default(),
            to: step.map(|step| step.to_version.clone()).unwrap_or_default(),
            phase: release.phase().to_string(),
            done: status.done,
            reason: status.reason,
        }
    }
}

impl ConsumerView {
    fn remark(&self) -> String {
        match &self.not_judged {
            _ if !self.pinned => "as adopted".to_owned(),
            Some(why) => format!("not judged: {}", harmless(why)),
            None => String::new(),
        }
    }
}

/// How far a release under way has brought a consumer to the new version of a config.
#[derive(Clone, Copy)]
struct Way<'a> {
    step: &'a Move,
    record: &'a ReleaseConsumer,
}

impl<'a> Way<'a> {
    /// None if the release does not move it to that, has not begun with it, or takes it back.
    fn of(consumer: &Consumer, release: &'a Release, config: &ConfigRef) -> Option<Self> {
        let step = release.spec.moves.iter().find(|step| ConfigRef::from(&step.source) == *config)?;
        let record = release.status.as_ref()?.consumers.iter().find(|record| is_about(record, consumer))?;
        let has_begun = matches!(record.state.as_str(), "Rolling" | "Ready" | "StillBroken");
        let moves_it = record.configs.contains(&config.to_string());
        (has_begun && moves_it).then_some(Self { step, record })
    }

    /// Whether all of its pods run the new version.
    fn is_at_its_end(&self) -> bool {
        self.record.desired > 0 && self.record.updated >= self.record.desired
    }
}

impl RollingView {
    /// None for a consumer whose pods all run the same.
    fn new(Way { step, record }: Way<'_>) -> Option<Self> {
        let is_mixed = record.updated > 0 && record.updated < record.desired;
        is_mixed.then(|| Self {
            from: step.from_version.clone(),
            to: step.to_version.clone(),
            updated: record.updated,
            desired: record.desired,
        })
    }

    fn text(&self) -> String {
        let Self { from, to, updated, desired } = self;
        format!("{from} → {to}, {updated} of {desired} pods")
    }
}

fn is_about(record: &ReleaseConsumer, consumer: &Consumer) -> bool {
    (&record.kind, &record.name) == (&consumer.kind, &consumer.name)
}

/// What the newest release that made a version current recorded of its consumers.
fn records_of<'a>(
    config: &ConfigRef,
    namespace: &str,
    version: &str,
    releases: &'a [Release],
) -> impl Iterator<Item = &'a ReleaseConsumer> {
    let made_it_current = |release: &&Release| {
        let mut moves = release.spec.moves.iter();
        release.metadata.namespace.as_deref() == Some(namespace)
            && release.phase() == Phase::Succeeded
            && moves.any(|step| ConfigRef::from(&step.source) == *config && step.to == version)
    };
    let newest = releases.iter().filter(made_it_current).max_by_key(|release| crate::cluster::created(*release));
    newest.into_iter().filter_map(|release| release.status.as_ref()).flat_map(|status| &status.consumers)
}

/// The newest release of a config that has not ended.
pub(crate) fn under_way<'a>(config: &ConfigRef, namespace: &str, releases: &'a [Release]) -> Option<&'a Release> {
    let moves = |release: &&Release| {
        release.metadata.namespace.as_deref() == Some(namespace)
            && release.spec.moves.iter().any(|step| ConfigRef::from(&step.source) == *config)
    };
    let open = releases.iter().filter(moves).filter(|release| !release.phase().has_ended());
    open.max_by_key(|release| crate::cluster::created(*release))
}

pub(crate) fn phase_style(phase: &str) -> anstyle::Style {
    match Phase::ALL.into_iter().find(|known| known.name() == phase) {
        Some(Phase::Succeeded) => GOOD,
        Some(Phase::RolledBack | Phase::Failed | Phase::Rejected | Phase::Aborted | Phase::RollingBack) => BAD,
        Some(Phase::Superseded) => FAINT,
        _ => MOVING,
    }
}

impl View for ConfigStatus {
    fn text(&self, is_wide: bool) -> String {
        let mut text = format!("{} in namespace {}\n", paint(&self.config, STRONG), self.namespace);
        let mut line = |title: &str, style, words: String| {
            text += &format!("  {}  {}\n", paint(&format!("{title:<8}"), style), harmless(&words));
        };
        match &self.current {
            Some(current) => line("current", GOOD, described(current)),
            None => line("current", FAINT, "none yet".to_owned()),
        }
        if let Some(moving) = &self.moving {
            let Moving { release, to, phase, done, reason } = moving;
            let done = if done.is_empty() { String::new() } else { format!(", {done} done") };
            line("moving", MOVING, format!("to {to} in release {release}: {phase}{done}"));
            if !reason.is_empty() {
                line("", FAINT, reason.clone());
            }
        }
        if let Some(held) = &self.held {
            line("held", BAD, format!("{}, which failed in release {}: {}", held.version, held.release, held.reason));
            let hint = format!("change the config, or try it again: lockstep retry {}", self.typed());
            line("", FAINT, hint);
        }
        if let Some(chosen) = &self.chosen {
            let until = match &chosen.instead_of {
                Some(instead_of) => format!("instead of {instead_of}, until the config changes"),
                None => "until it is taken back".to_owned(),
            };
            let back = format!("follow the config again: lockstep follow {}", self.typed());
            line("chosen", MOVING, format!("{} by a person, {until}; {back}", chosen.version));
        }
        if let Some(refused) = &self.refused {
            line("refused", BAD, refused.clone());
        }
        if let Some(unknown) = &self.unknown_version {
            line("unknown", BAD, unknown.clone());
        }
        if let Some(missing) = &self.missing {
            line("missing", BAD, missing.clone());
        }
        if let Some(why) = &self.not_followed {
            line("followed", MOVING, format!("no: {why}"));
        }
        if self.consumers.is_empty() {
            line("used by", FAINT, "nothing".to_owned());
            return text;
        }
        let mut table = Table::new(&["KIND", "NAME", "VERSION", "", "OBJECT"]);
        for consumer in &self.consumers {
            table.row([
                consumer.kind.as_str().into(),
                consumer.name.as_str().into(),
                consumer.rolling.as_ref().map_or_else(|| consumer.version.clone(), RollingView::text).into(),
                consumer.remark().into(),
                consumer.object.clone().filter(|_| is_wide).unwrap_or_default().into(),
            ]);
        }
        let unlisted = usize::try_from(self.consumer_count).unwrap_or(0).saturating_sub(self.consumers.len());
        let rest = if unlisted > 0 { format!("and {unlisted} more\n") } else { String::new() };
        text + "\n" + &table.render() + &rest
    }
}

impl ConfigStatus {
    /// What a person has to know, in a line.
    fn trouble(&self, with_namespace: bool) -> Option<String> {
        let place = if with_namespace { format!(" in {}", self.namespace) } else { String::new() };
        let says = if let Some(refused) = &self.refused {
            format!("{}: {}", paint("refused", BAD), harmless(refused))
        } else if let Some(unknown) = &self.unknown_version {
            format!("{}: {}", paint("unknown version", BAD), harmless(unknown))
        } else if let Some(missing) = &self.missing {
            format!("{}: {}", paint("no version", BAD), harmless(missing))
        } else if let Some(held) = &self.held {
            format!("{} is {}: {}", held.version, paint("held", BAD), harmless(&held.reason))
        } else if let Some(why) = &self.not_followed {
            format!("{}: {}", paint("not followed", MOVING), harmless(why))
        } else {
            let ConsumerView { kind, name, not_judged, .. } = self.not_judged()?;
            let why = not_judged.as_deref().unwrap_or_default();
            format!("{}: {kind} {name}: {}", paint("not judged", MOVING), harmless(why))
        };
        Some(format!("{}{place}: {says}\n", self.config))
    }

    fn typed(&self) -> String {
        self.config.parse().map_or_else(|_| self.config.clone(), |config| typed(&config))
    }
}

fn described(version: &VersionView) -> String {
    let mut text = version.version.clone();
    if let Some(by) = &version.changed_by {
        text += &format!(", by {by}");
    }
    if !version.age.is_empty() {
        text += &format!(", {} ago", version.age);
    }
    match &version.reason {
        Some(reason) => format!("{text}: {reason}"),
        None => text,
    }
}

/// All configs of a namespace, or of all of them.
#[derive(Debug, Serialize)]
pub(crate) struct AllStatus {
    configs: Vec<ConfigStatus>,
    #[serde(skip)]
    namespace: Option<String>,
    /// How wide the table may be.
    #[serde(skip)]
    width: Option<usize>,
}

const HEADER: [&str; 11] =
    ["NAMESPACE", "CONFIG", "CURRENT", "MOVING TO", "RELEASE", "PHASE", "DONE", "HELD", "CONSUMERS", "AGE", "WHY"];

impl View for AllStatus {
    fn text(&self, is_wide: bool) -> String {
        if self.configs.is_empty() {
            let place =
                self.namespace.as_ref().map_or_else(|| "any namespace".into(), |name| format!("namespace {name}"));
            return format!("No config is versioned in {place}. Opt one in: lockstep adopt NAME\n");
        }
        let everywhere = self.namespace.is_none();
        let first = usize::from(!everywhere);
        let mut table = Table::new(&HEADER);
        for config in &self.configs {
            config.row(&mut table, everywhere);
        }
        if is_wide {
            return table.columns(first..HEADER.len()).render();
        }
        let troubles: String = self.configs.iter().filter_map(|config| config.trouble(everywhere)).collect();
        let gap = if troubles.is_empty() { "" } else { "\n" };
        table.columns(first..HEADER.len() - 1).render_within(self.width) + gap + &troubles
    }
}

/// What people call a version that is named by its object, or by its name already.
fn version_name(status: &VersionedConfigStatus, named: &str) -> String {
    let given = status.names.iter().find(|given| given.object == named);
    given.map_or_else(|| named.to_owned(), |given| given.version.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::{NOW, baking, held, moving, releases, table, versioned};
    use crate::output::plain;

    fn one(object: &VersionedConfig, releases: &[Release]) -> String {
        let view = ConfigStatus::new(object, releases, Some(&table()), NOW);
        plain(&render(&view, Format::Table).unwrap())
    }

    #[test]
    fn a_config_that_moves() {
        insta::assert_snapshot!(one(&moving(), &[baking()]));
    }

    #[test]
    fn a_config_whose_change_failed() {
        insta::assert_snapshot!(one(&held(), &releases()));
    }

    #[test]
    fn all_configs() {
        let objects = [moving(), held(), versioned("secret", "db")];
        let all = [baking()];
        let configs = || objects.iter().map(|object| ConfigStatus::new(object, &all, None, NOW)).collect();
        let view = AllStatus { configs: configs(), namespace: None, width: None };
        insta::assert_snapshot!("all", plain(&view.text(false)));
        let view = AllStatus { configs: configs(), namespace: Some("shop".into()), width: None };
        insta::assert_snapshot!("all_wide", plain(&view.text(true)));
        insta::assert_snapshot!("all_json", render(&view, Format::Json).unwrap());
    }

    #[test]
    fn nothing_is_versioned() {
        let view = AllStatus { configs: Vec::new(), namespace: Some("shop".into()), width: None };
        assert!(view.text(false).contains("lockstep adopt"));
    }

    #[test]
    fn whose_pods_are_all_new_runs_the_new_version_while_its_release_goes_on() {
        // What was counted before the release began.
        let mut object = held();
        object.status.as_mut().unwrap().held = None;
        let web = |state: &str, updated: i32, unjudged: Option<&str>| {
            let mut release = baking();
            let record = &mut release.status.as_mut().unwrap().consumers[1];
            (record.state, record.updated) = (state.to_owned(), updated);
            record.unjudged = unjudged.map(str::to_owned);
            json!(ConfigStatus::new(&object, &[release], None, NOW))["consumers"][0].take()
        };
        for state in ["Rolling", "Ready", "StillBroken"] {
            let all_new = web(state, 3, None);
            assert_eq!((&all_new["version"], &all_new["object"]), (&json!("r3"), &json!("app-3")), "{state}");
            assert!(all_new.get("rolling").is_none(), "{state}");
        }
        assert_eq!(web("StillBroken", 3, Some("it was broken before"))["notJudged"], "it was broken before");
        for (state, updated) in [("Rolling", 2), ("Waiting", 3), ("Restored", 3), ("LeftAlone", 3)] {
            assert_eq!(web(state, updated, None)["version"], "1.1.0", "{state}");
        }
    }

    #[test]
    fn a_pin_to_an_unknown_version_is_not_called_a_refusal() {
        let why = "Deployment web is pinned to app-9, which is no version of this config";
        let object = with_condition(versioned("configmap", "app"), "Ready", "UnknownVersion", why);
        let text = one(&object, &[]);
        assert!(text.contains(&format!("  unknown   {why}\n")) && !text.contains("refused"), "{text}");
        let view = ConfigStatus::new(&object, &[], None, NOW);
        assert_eq!(view.why(), Some(why));
        assert_eq!(plain(&view.trouble(false).unwrap()), format!("configmap/app: unknown version: {why}\n"));
        let told = json!(view);
        assert!(told["unknownVersion"] == why && told.get("refused").is_none(), "{told}");
        let missing = with_condition(versioned("configmap", "app"), "Ready", "NoVersion", "there is no ConfigMap app");
        assert!(one(&missing, &[]).contains("  missing   there is no ConfigMap app\n"));
        let refused = with_condition(versioned("configmap", "app"), "Ready", "Refused", "its name is too long");
        assert!(one(&refused, &[]).contains("  refused   its name is too long\n"));
    }

    fn with_condition(mut object: VersionedConfig, of: &str, reason: &str, message: &str) -> VersionedConfig {
        let condition = json!({
            "type": of, "status": "False", "reason": reason, "lastTransitionTime": NOW.to_string(), "message": message,
        });
        if let Some(status) = &mut object.status {
            status.conditions = vec![serde_json::from_value(condition).unwrap()];
        }
        object
    }

    /// As the operator reports a config that opted out.
    fn opted_out(object: VersionedConfig) -> VersionedConfig {
        with_condition(object, "Followed", "OptedOut", "the ConfigMap does not opt in any more")
    }

    #[test]
    fn a_config_that_is_not_followed_says_so_wherever_nothing_matters_more() {
        let why = "the ConfigMap does not opt in any more";
        let object = opted_out(versioned("configmap", "app"));
        assert!(one(&object, &[]).contains(&format!("  followed  no: {why}\n")), "{}", one(&object, &[]));
        let view = ConfigStatus::new(&object, &[], None, NOW);
        assert_eq!(json!(view)["notFollowed"], why);
        assert_eq!(view.why(), Some(why));
        assert_eq!(plain(&view.trouble(false).unwrap()), format!("configmap/app: not followed: {why}\n"));

        let held = ConfigStatus::new(&opted_out(held()), &releases(), None, NOW);
        assert_eq!(held.why(), Some("Deployment web: pod web-x crashes"));
        assert!(held.trouble(false).unwrap().contains("crashes"));
        let followed = ConfigStatus::new(&versioned("configmap", "app"), &[], None, NOW);
        assert!(json!(followed).get("notFollowed").is_none() && followed.trouble(false).is_none());
    }

    #[test]
    fn who_could_not_be_judged_is_named() {
        let (mut object, mut releases) = (held(), releases());
        object.status.as_mut().unwrap().held = None;
        assert_eq!(ConfigStatus::new(&object, &releases, None, NOW).trouble(false), None);
        let consumers = &mut releases[1].status.as_mut().unwrap().consumers;
        let web = consumers.iter_mut().find(|consumer| consumer.name == "web").unwrap();
        web.unjudged = Some("it is scaled to zero".into());
        assert!(one(&object, &releases).contains("not judged: it is scaled to zero"), "{}", one(&object, &releases));
        let view = ConfigStatus::new(&object, &releases, None, NOW);
        let trouble = plain(&view.trouble(false).unwrap());
        assert_eq!(trouble, "configmap/app: not judged: Deployment web: it is scaled to zero\n");
        assert_eq!(view.why(), Some("it is scaled to zero"));
    }

    #[test]
    fn a_reason_does_not_steer_the_terminal() {
        let mut object = held();
        if let Some(status) = &mut object.status {
            let reason = Some("\u{1b}[2J\u{202e}".to_owned());
            status.versions.iter_mut().chain(&mut status.current).for_each(|version| version.reason = reason.clone());
        }
        let text = one(&object, &releases());
        assert!(text.contains(r"\u{1b}[2J\u{202e}"), "{text}");
    }

    #[test]
    fn a_long_name_does_not_push_the_table_off_the_screen() {
        let objects = [versioned("configmap", &"long-".repeat(40)), moving()];
        let configs = objects.iter().map(|object| ConfigStatus::new(object, &[baking()], None, NOW)).collect();
        let view = AllStatus { configs, namespace: Some("shop".into()), width: Some(100) };
        let text = plain(&view.text(false));
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(text.contains("configmap/app ") && text.contains('…'), "{text}");
        assert!(render(&view, Format::Json).unwrap().contains(&"long-".repeat(40)));
    }
}
