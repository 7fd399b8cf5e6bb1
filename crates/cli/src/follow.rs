//! Following a change until it is released, or is not.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use jiff::SignedDuration;
use lockstep_api::{ConditionType, Release, VersionedConfig};
use lockstep_core::ConfigRef;
use lockstep_core::release::Phase;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::Outcome;
use crate::cluster::Cluster;
use crate::content::Content;
use crate::names::typed;
use crate::output::{BAD, Format, GOOD, MOVING, View, harmless, paint, print, render, say};
use crate::progress::Progress;
use crate::status::under_way;

/// How often the cluster is asked.
pub(crate) const POLL: Duration = Duration::from_millis(500);
/// How long a refusal or a hold may still be about an earlier change: the operator needs a moment to look at a new one.
pub(crate) const GRACE: Duration = Duration::from_secs(3);

/// How often in a row the cluster may not answer: a release outlasts a lost connection.
pub(crate) const FAILURE_LIMIT: u32 = 10;

/// How long somebody waits, for all that there is to wait for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) timeout: SignedDuration,
    deadline: Instant,
}

impl Patience {
    /// From now on.
    pub(crate) fn new(timeout: SignedDuration) -> Self {
        Self { timeout, deadline: Instant::now() + Duration::try_from(timeout).unwrap_or(Duration::ZERO) }
    }

    pub(crate) fn is_over(self) -> bool {
        Instant::now() >= self.deadline
    }
}

/// A config, and what it is to come to.
pub(crate) struct Wanted {
    pub(crate) config: ConfigRef,
    pub(crate) what: What,
    /// The release that failed before somebody asked to try again: whatever becomes of it is not the answer.
    pub(crate) tried_again: Option<String>,
    /// Whether workloads were written with it: what is held is tried again with their new code.
    pub(crate) comes_with_code: bool,
}

impl Wanted {
    pub(crate) fn new(config: &ConfigRef, what: What) -> Self {
        Self { config: config.clone(), what, tried_again: None, comes_with_code: false }
    }
}

pub(crate) enum What {
    /// The version in this object.
    Object(String),
    /// The version that has this content, which may not exist yet. With it, the versions that are known to be others.
    Content(Box<Content>, BTreeSet<String>),
}

/// Where a config stands, seen from a version that it is to come to.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    Waiting,
    Moving(String),
    Ended(End),
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct End {
    config: String,
    version: String,
    result: Ending,
    #[serde(skip_serializing_if = "String::is_empty")]
    release: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
}

impl End {
    /// Why not every consumer has shown that it works, if so.
    pub(crate) fn doubt(&self) -> Option<&str> {
        (self.result == Ending::Unjudged).then_some(self.reason.trim_end_matches('.'))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
enum Ending {
    Released,
    /// Released, but not every consumer could be judged.
    Unjudged,
    /// A person chose another version.
    Overruled,
    TimedOut,
    Rejected,
    /// The config was changed again before this was released.
    Superseded,
    /// It was to take a change back, and somebody is not well with what is current again.
    NotWell,
    NotReleased,
}

impl Ending {
    fn outcome(self) -> Outcome {
        match self {
            Self::Released => Outcome::Done,
            Self::Unjudged => Outcome::Unjudged,
            Self::Overruled => Outcome::Unwell,
            Self::TimedOut => Outcome::TimedOut,
            Self::Rejected => Outcome::Rejected,
            Self::Superseded | Self::NotWell | Self::NotReleased => Outcome::NotReleased,
        }
    }
}

/// Follows changes to their ends, and says how they ended. The worst of them is the outcome.
pub(crate) async fn follow(
    cluster: &Cluster,
    wanted: Vec<Wanted>,
    timeout: SignedDuration,
    format: Format,
) -> Result<Outcome> {
    let ends = Ends { ends: ends(cluster, wanted, Patience::new(timeout), format).await? };
    print(&render(&ends, format)?)?;
    Ok(outcome(&ends.ends))
}

/// What there is to say where nothing has to be followed: a sentence for people, and for programs what they get at any other end.
pub(crate) fn conclude(format: Format, sentence: &str, ends: Vec<End>) -> Result<()> {
    match format {
        Format::Table | Format::Wide => say(sentence),
        Format::Json | Format::Yaml => print(&render(&Ends { ends }, format)?),
    }
}

/// The worst of them.
pub(crate) fn outcome(ends: &[End]) -> Outcome {
    ends.iter().map(|end| end.result).max().map_or(Outcome::Done, Ending::outcome)
}

/// Follows changes to their ends.
pub(crate) async fn ends(
    cluster: &Cluster,
    mut wanted: Vec<Wanted>,
    patience: Patience,
    format: Format,
) -> Result<Vec<End>> {
    let started = Instant::now();
    let mut progress = Progress::new(format);
    let mut failures = 0;
    let mut ends: Vec<Option<End>> = wanted.iter().map(|_| None).collect();
    while ends.iter().any(Option::is_none) {
        let is_late = patience.is_over();
        for (wanted, end) in wanted.iter_mut().zip(&mut ends).filter(|(_, end)| end.is_none()) {
            let ended = match look(cluster, wanted, &mut progress).await {
                Err(_) if failures < FAILURE_LIMIT && !is_late => {
                    failures += 1;
                    continue;
                }
                looked => looked?,
            };
            failures = 0;
            let may_be_old = |end: &End| end.may_be_old(wanted.comes_with_code, progress.has_seen(&end.release));
            let ended = ended.filter(|end| !may_be_old(end) || started.elapsed() >= GRACE);
            *end = ended.or_else(|| is_late.then(|| too_late(wanted, patience.timeout)));
        }
        if ends.iter().any(Option::is_none) {
            sleep(POLL).await;
        }
    }
    progress.end();
    Ok(ends.into_iter().flatten().collect())
}

/// One look at one config. The releases come first: what a VersionedConfig calls current must not be older than the end of a release that
/// is not seen any more.
async fn look(cluster: &Cluster, wanted: &mut Wanted, progress: &mut Progress) -> Result<Option<End>> {
    let mut releases = cluster.releases_of(&wanted.config).await?;
    let Some(object) = cluster.find(&wanted.config).await? else {
        let source = cluster.content(wanted.config.kind, &wanted.config.name).await?;
        return Ok(source.is_none().then(|| not_followed(&wanted.config, "it does not exist any more")));
    };
    if let Some(missed) = missed(&object, &releases) {
        let found = cluster.api::<Release>().get_opt(missed).await;
        let found = found.map_err(|error| cluster.explain(error, || format!("read release {missed}")))?;
        releases.splice(..0, found);
    }
    let may_answer = |release: &Release| may_answer(release, wanted.tried_again.as_deref());
    let answers: Vec<Release> = releases.iter().filter(|release| may_answer(release)).cloned().collect();
    let target = target(cluster, &object, &mut wanted.what).await?;
    let standing = standing(&object, &answers, target.as_deref(), |release| progress.has_seen(release));
    let is_shown = |release: &&Release| {
        // What is tried again begins when this is back.
        let is_waited_for = !may_answer(release) && !release.phase().has_ended();
        progress.has_seen(name(release)) || is_waited_for || standing == Standing::Moving(name(release).to_owned())
    };
    let shown: Vec<&Release> = releases.iter().rev().filter(is_shown).collect();
    for release in shown {
        progress.show(release)?;
    }
    Ok(match standing {
        Standing::Ended(end) => Some(end),
        Standing::Waiting => {
            let source = cluster.content(wanted.config.kind, &wanted.config.name).await?;
            let awaited = awaited(cluster, wanted).await?;
            let is_replaced = has_moved_on(&object, target.as_deref(), awaited.as_ref(), source.as_ref());
            let replaced = is_replaced.then(|| replaced(&object, target.as_deref()));
            replaced.or_else(|| Some(not_followed(&wanted.config, unfollowed(&object)?)))
        }
        Standing::Moving(_) => None,
    })
}

/// A release may still be on its way back when somebody asks to try again.
pub(crate) fn may_answer(release: &Release, tried_again: Option<&str>) -> bool {
    tried_again != Some(name(release))
}

/// The release that failed with what is held, if it is younger than these: it says how.
fn missed<'a>(object: &'a VersionedConfig, releases: &[Release]) -> Option<&'a str> {
    let held = object.status.as_ref()?.held.as_ref()?;
    releases.iter().all(|release| name(release) != held.release).then_some(held.release.as_str())
}

/// The content that is waited for; None if the version that had it is gone.
async fn awaited(cluster: &Cluster, wanted: &Wanted) -> Result<Option<Content>> {
    match &wanted.what {
        What::Content(content, _) => Ok(Some((**content).clone())),
        What::Object(object) => cluster.content(wanted.config.kind, object).await,
    }
}

/// Whether what is waited for cannot come any more: the config (`source`) has other content by now, and nobody chose this version.
fn has_moved_on(
    object: &VersionedConfig,
    target: Option<&str>,
    awaited: Option<&Content>,
    source: Option<&Content>,
) -> bool {
    let version = object.status.iter().flat_map(|status| &status.versions).find(|v| Some(v.object.as_str()) == target);
    let is_chosen = object.spec.current.as_ref().is_some_and(|choice| {
        version.is_some_and(|version| version.version == choice.version) || Some(choice.version.as_str()) == target
    });
    // Of what is gone nobody can say what it was.
    !is_chosen && awaited.zip(source).is_some_and(|(awaited, source)| awaited != source)
}

fn replaced(object: &VersionedConfig, target: Option<&str>) -> End {
    let versions = object.status.iter().flat_map(|status| &status.versions);
    let version = versions.into_iter().find(|version| Some(version.object.as_str()) == target);
    End {
        config: ConfigRef::from(&object.spec.source).to_string(),
        version: version.map_or_else(|| "the change".to_owned(), |version| version.version.clone()),
        result: Ending::Superseded,
        release: String::new(),
        reason: "the config was changed again before it was released".to_owned(),
    }
}

async fn target(cluster: &Cluster, object: &VersionedConfig, what: &mut What) -> Result<Option<String>> {
    let found = match what {
        What::Object(object) => return Ok(Some(object.clone())),
        What::Content(content, others) => {
            let mut found = None;
            for version in object.status.iter().flat_map(|status| &status.versions) {
                if others.contains(&version.object) {
                    continue;
                }
                if cluster.content(content.kind, &version.object).await?.as_ref() == Some(content.as_ref()) {
                    found = Some(version.object.clone());
                    break;
                }
                others.insert(version.object.clone());
            }
            found
        }
    };
    if let Some(found) = &found {
        *what = What::Object(found.clone());
    }
    Ok(found)
}

fn name(release: &Release) -> &str {
    release.metadata.name.as_deref().unwrap_or_default()
}

/// `target` is the object of the version that it is to come to, if it exists already.
fn standing(
    object: &VersionedConfig,
    releases: &[Release],
    target: Option<&str>,
    has_seen: impl Fn(&str) -> bool,
) -> Standing {
    let config = ConfigRef::from(&object.spec.source);
    let status = object.status.clone().unwrap_or_default();
    let version = status.versions.iter().find(|version| Some(version.object.as_str()) == target);
    let version = version.map(|version| version.version.clone()).unwrap_or_default();
    let end = |result, release: &str, reason: &str| {
        let (release, reason) = (release.to_owned(), reason.to_owned());
        Standing::Ended(End { config: config.to_string(), version: version.clone(), result, release, reason })
    };
    let Some(target) = target else {
        let refused = status.condition(ConditionType::Ready);
        let refused = refused.filter(|condition| condition.reason == "Refused");
        return refused.map_or(Standing::Waiting, |condition| end(Ending::Rejected, "", &condition.message));
    };
    let moves_there = |release: &Release| moves_to(release, &config, target);
    let namespace = object.metadata.namespace.clone().unwrap_or_default();
    let current = status.current.as_ref().map(|current| current.object.as_str());
    let open = under_way(&config, &namespace, releases);
    if let Some(open) = open.filter(|open| moves_there(open)) {
        return Standing::Moving(name(open).to_owned());
    }
    // What we followed has ended, whatever came after it.
    if let Some(ended) = releases.iter().find(|release| has_seen(name(release)) && moves_there(release)) {
        let newer = releases.iter().find(|release| release.spec.supersedes.as_deref() == Some(name(ended)));
        let newer = newer.filter(|newer| !moves_there(newer));
        let reason = ended.status.as_ref().map_or("", |status| status.reason.as_str());
        match (ending(ended), newer) {
            (Some(result), _) => return end(result, name(ended), reason),
            (None, Some(_)) => return end(Ending::Superseded, name(ended), reason),
            (None, None) => {}
        }
    }
    if open.is_some() {
        return Standing::Waiting;
    }
    if let Some(held) = status.held.as_ref().filter(|held| held.object == target) {
        let is_retried = object.spec.retry.as_ref() == Some(&held.release);
        let failed = releases.iter().find(|release| name(release) == held.release);
        let result = failed.and_then(ending).unwrap_or(Ending::NotReleased);
        // A retry that was not taken up yet; one that failed again is held under a name of its own.
        return if is_retried { Standing::Waiting } else { end(result, &held.release, &held.reason) };
    }
    let is_chosen =
        object.spec.current.as_ref().is_some_and(|choice| choice.version == version || choice.version == target);
    let refused = status.condition(ConditionType::Ready).filter(|ready| is_chosen && ready.reason == "Refused");
    if let Some(refused) = refused {
        return end(Ending::Rejected, "", &refused.message);
    }
    let newest = releases.iter().find(|release| moves_there(release));
    if current == Some(target) {
        if is_about_to_move(object, target) {
            return Standing::Waiting;
        }
        let reason = newest.and_then(|release| release.status.as_ref()).map_or("", |status| status.reason.as_str());
        let result = newest.and_then(ending).filter(|result| *result == Ending::Unjudged).unwrap_or(Ending::Released);
        return end(result, newest.map(name).unwrap_or_default(), reason);
    }
    let overruled = object.spec.current.as_ref().filter(|choice| {
        let holds = choice.instead_of.as_ref().is_none_or(|instead_of| *instead_of == version || *instead_of == target);
        holds && choice.version != version && choice.version != target
    });
    match overruled {
        Some(choice) => end(Ending::Overruled, "", &format!("a person chose version {} instead", choice.version)),
        None => Standing::Waiting,
    }
}

/// Whether the operator moves something to what is current, or has still to look: whoever was left with what failed follows when the change
/// is taken back.
pub(crate) fn is_about_to_move(object: &VersionedConfig, current: &str) -> bool {
    let Some(status) = &object.status else { return true };
    let failed = status.held.as_ref().filter(|held| held.object != current);
    status.releasing.is_some() || (is_followed(object) && failed.is_some() && object.spec.current.is_none())
}

/// Whether changes of the config become versions.
pub(crate) fn is_followed(object: &VersionedConfig) -> bool {
    unfollowed(object).is_none()
}

/// Why changes of the config do not become versions any more.
fn unfollowed(object: &VersionedConfig) -> Option<&str> {
    let followed = object.status.as_ref()?.condition(ConditionType::Followed);
    followed.filter(|followed| followed.status == "False").map(|followed| followed.message.as_str())
}

/// What is waited for cannot come.
fn not_followed(config: &ConfigRef, why: &str) -> End {
    End {
        config: config.to_string(),
        version: String::new(),
        result: Ending::Rejected,
        release: String::new(),
        reason: why.to_owned(),
    }
}

/// How a release ended, if it did so by itself: one that was superseded did not.
fn ending(release: &Release) -> Option<Ending> {
    match release.phase() {
        Phase::Succeeded if release.is_unjudged() => Some(Ending::Unjudged),
        Phase::Succeeded => Some(Ending::Released),
        Phase::Failed if release.spec.moves.iter().all(|step| step.from == step.to) => Some(Ending::NotWell),
        Phase::RolledBack | Phase::Failed | Phase::Aborted => Some(Ending::NotReleased),
        Phase::Rejected => Some(Ending::Rejected),
        _ => None,
    }
}

/// A release that has ended: what is left to say of it. All configs of a release end together, so one stands for all.
pub(crate) fn ended(release: &Release) -> Option<End> {
    let step = release.spec.moves.first()?;
    Some(End {
        config: ConfigRef::from(&step.source).to_string(),
        version: step.to_version.clone(),
        result: ending(release).unwrap_or(Ending::Superseded),
        release: name(release).to_owned(),
        reason: release.status.as_ref().map(|status| status.reason.clone()).unwrap_or_default(),
    })
}

/// A config that nothing moves: its current version has arrived already, with or without everybody's proof. `releases`: newest first.
pub(crate) fn at_rest(object: &VersionedConfig, releases: &[Release]) -> Option<End> {
    let current = object.status.as_ref()?.current.as_ref()?;
    let config = ConfigRef::from(&object.spec.source);
    // Whoever uses nothing that later releases changed has still the version of an earlier one.
    let versions =
        object.status.iter().flat_map(|status| &status.consumers).filter_map(|consumer| consumer.pinned.as_ref());
    let came_by = |object: &String| releases.iter().find(|release| moves_to(release, &config, object));
    let is_unjudged = |release: &&Release| ending(release) == Some(Ending::Unjudged);
    let unjudged = std::iter::once(&current.object).chain(versions).filter_map(came_by).find(is_unjudged);
    Some(End {
        config: config.to_string(),
        version: current.version.clone(),
        result: if unjudged.is_some() { Ending::Unjudged } else { Ending::Released },
        release: unjudged.map(name).unwrap_or_default().to_owned(),
        reason: unjudged.and_then(|release| Some(release.status.as_ref()?.reason.clone())).unwrap_or_default(),
    })
}

pub(crate) fn moves_to(release: &Release, config: &ConfigRef, object: &str) -> bool {
    release.spec.moves.iter().any(|step| ConfigRef::from(&step.source) == *config && step.to == object)
}

fn too_late(wanted: &Wanted, timeout: SignedDuration) -> End {
    End {
        config: wanted.config.to_string(),
        version: String::new(),
        result: Ending::TimedOut,
        release: String::new(),
        reason: format!("not released within {timeout:#}; it goes on without us"),
    }
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Ends {
    ends: Vec<End>,
}

impl View for Ends {
    fn text(&self, _: bool) -> String {
        self.ends.iter().map(|end| end.text() + "\n").collect()
    }
}

impl End {
    /// A refusal says nothing of the change that it is about. What is held may be tried again at any moment, because of new code.
    fn may_be_old(&self, comes_with_code: bool, was_followed: bool) -> bool {
        match self.result {
            Ending::Rejected => self.release.is_empty(),
            Ending::NotReleased => comes_with_code && !was_followed,
            _ => false,
        }
    }

    pub(crate) fn text(&self) -> String {
        let Self { config, version, release, reason, .. } = self;
        let typed = config.parse().map_or_else(|_| config.clone(), |config| typed(&config));
        let because = if reason.is_empty() { String::new() } else { format!(": {}", harmless(reason)) };
        let version = harmless(version);
        match self.result {
            Ending::Released => format!("{config}: {}", paint(&format!("{version} is current"), GOOD)),
            Ending::Unjudged => format!("{config}: {}{because}", paint(&format!("{version} is released"), MOVING)),
            Ending::Overruled => format!(
                "{config}: {}{because}. Follow the config again: lockstep follow {typed}",
                paint(&format!("{version} is not released"), MOVING)
            ),
            Ending::TimedOut => {
                format!("{config}: {}{because}. Look at it: lockstep status {typed}", paint("timed out", BAD))
            }
            Ending::Superseded => format!(
                "{config}: {}{because}. Follow what came after it: lockstep watch {typed}",
                paint(&format!("{version} was replaced"), MOVING)
            ),
            Ending::Rejected => {
                let place = if release.is_empty() { String::new() } else { format!(" in {release}") };
                format!("{config}: {}{place}{because}", paint("rejected", BAD))
            }
            Ending::NotWell => {
                format!("{config}: {} in {release}{because}", paint(&format!("{version} is not well"), BAD))
            }
            Ending::NotReleased => {
                let next = format!("Change the config, or try it again: lockstep retry {typed}");
                format!(
                    "{config}: {} in {release}{because}. {next}",
                    paint(&format!("{version} was not released"), BAD)
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_core::ConfigKind;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{baking, held, moving, releases};
    use crate::output::plain;

    fn how(standing: Standing) -> (Ending, String) {
        match standing {
            Standing::Ended(end) => (end.result, plain(&end.text())),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_release_under_way_is_followed() {
        let standing = standing(&moving(), &[baking()], Some("app-3"), |_| false);
        assert_eq!(standing, Standing::Moving("configmap-app-2".into()));
    }

    #[test]
    fn what_is_current_is_released() {
        let mut object = held();
        let what_failed = object.status.as_mut().unwrap().held.take();
        let (result, text) = how(standing(&object, &releases(), Some("app-2"), |_| false));
        assert_eq!(result, Ending::Released);
        assert_eq!(text, "configmap/app: 1.1.0 is current");
        object.status.as_mut().unwrap().held = what_failed;
        let standing = standing(&object, &releases(), Some("app-2"), |_| false);
        assert_eq!(standing, Standing::Waiting, "the operator has still to look who is left with what failed");
    }

    #[test]
    fn what_is_held_was_not_released_until_it_is_retried() {
        let (result, text) = how(standing(&held(), &releases(), Some("app-3"), |_| false));
        assert_eq!(result, Ending::NotReleased);
        assert!(
            text.contains("configmap-app-2") && text.contains("crashes") && text.contains("lockstep retry"),
            "{text}"
        );
        let mut retried = held();
        retried.spec.retry = Some("configmap-app-2".into());
        assert_eq!(standing(&retried, &releases(), Some("app-3"), |_| false), Standing::Waiting);
    }

    #[test]
    fn the_release_that_is_on_its_way_back_is_not_the_one_that_tries_again() {
        let (mut object, mut old) = (held(), baking());
        object.spec.retry = Some("configmap-app-2".into());
        let stands = |releases: &[Release]| {
            let releases: Vec<Release> =
                releases.iter().filter(|release| may_answer(release, Some("configmap-app-2"))).cloned().collect();
            standing(&object, &releases, Some("app-3"), |_| false)
        };
        let open = standing(&object, std::slice::from_ref(&old), Some("app-3"), |_| false);
        assert_eq!(open, Standing::Moving("configmap-app-2".into()), "whoever follows the old one still does");
        for phase in ["RollingBack", "RolledBack"] {
            phase.clone_into(&mut old.status.as_mut().unwrap().phase);
            assert_eq!(stands(std::slice::from_ref(&old)), Standing::Waiting, "{phase}");
        }
        let mut new = baking();
        new.metadata.name = Some("configmap-app-3".into());
        assert_eq!(stands(&[new, old]), Standing::Moving("configmap-app-3".into()));
    }

    #[test]
    fn an_invalid_version_is_rejected() {
        let mut rejected = releases();
        if let Some(status) = &mut rejected[0].status {
            status.phase = "Rejected".into();
        }
        let (result, text) = how(standing(&held(), &rejected, Some("app-3"), |_| false));
        assert_eq!(result, Ending::Rejected);
        assert_eq!(text, "configmap/app: rejected in configmap-app-2: Deployment web: pod web-x crashes");
    }

    #[test]
    fn the_release_of_what_is_held_is_looked_for_when_it_came_after_the_others() {
        let failed = releases();
        assert_eq!(missed(&held(), &failed[1..]), Some("configmap-app-2"));
        assert_eq!(missed(&held(), &failed), None);
        assert_eq!(missed(&moving(), &[]), None, "nothing is held");
    }

    #[test]
    fn a_release_that_has_ended_says_how() {
        let all = releases();
        let told = json!(ended(&all[0]));
        assert_eq!(told["result"], "notReleased");
        assert_eq!((&told["config"], &told["version"]), (&json!("configmap/app"), &json!("r3")));
        assert_eq!(
            (&told["release"], &told["reason"]),
            (&json!("configmap-app-2"), &json!("Deployment web: pod web-x crashes"))
        );
        assert_eq!(outcome(&Vec::from_iter(ended(&all[1]))), Outcome::Done);
        let mut superseded = baking();
        if let Some(status) = &mut superseded.status {
            status.phase = "Superseded".into();
        }
        assert_eq!(outcome(&Vec::from_iter(ended(&superseded))), Outcome::NotReleased);
    }

    #[test]
    fn what_is_held_may_be_tried_again_with_new_code() {
        let held = ended(&releases()[0]).unwrap();
        assert!(held.may_be_old(true, false) && !held.may_be_old(false, false));
        assert!(!held.may_be_old(true, true), "we saw it fail");
    }

    #[test]
    fn nobody_is_advised_to_try_again_what_is_not_held() {
        let mut failed = baking();
        failed.spec.moves[0].to = failed.spec.moves[0].from.clone();
        if let Some(status) = &mut failed.status {
            (status.phase, status.reason) = ("Failed".into(), "Deployment web: it crashes".into());
        }
        let end = ended(&failed).unwrap();
        assert_eq!(plain(&end.text()), "configmap/app: r3 is not well in configmap-app-2: Deployment web: it crashes");
        assert_eq!(outcome(&[end]), Outcome::NotReleased);
    }

    #[test]
    fn what_rests_is_told_to_programs_as_any_other_end() {
        assert_eq!(
            json!(at_rest(&held(), &releases())),
            json!({"config": "configmap/app", "version": "1.1.0", "result": "released"})
        );
        assert_eq!(render(&Ends { ends: Vec::new() }, Format::Json).unwrap(), "[]\n");
        let mut doubtful = releases();
        if let Some(status) = &mut doubtful[1].status {
            status.consumers[0].unjudged = Some("it is scaled to zero".into());
        }
        let end = at_rest(&held(), &doubtful).unwrap();
        assert_eq!(
            (end.doubt(), outcome(std::slice::from_ref(&end))),
            (Some("all consumers run it and are healthy"), Outcome::Unjudged)
        );
    }

    #[test]
    fn a_version_that_does_not_exist_yet_is_waited_for() {
        assert_eq!(standing(&held(), &releases(), None, |_| false), Standing::Waiting);
    }

    #[test]
    fn a_choice_overrules_the_config() {
        let mut chosen = moving();
        chosen.spec.current = Some(lockstep_api::Choice { version: "1.0.0".into(), instead_of: None });
        assert_eq!(how(standing(&chosen, &[], Some("app-3"), |_| false)).0, Ending::Overruled);
    }

    #[test]
    fn what_was_followed_has_ended_whatever_came_after_it() {
        let mut done = baking();
        if let Some(status) = &mut done.status {
            status.phase = "Succeeded".into();
        }
        let mut newer = baking();
        newer.metadata.name = Some("configmap-app-3".into());
        newer.spec.moves[0].to = "app-4".into();
        let all = [newer, done];
        assert_eq!(how(standing(&moving(), &all, Some("app-3"), |name| name == "configmap-app-2")).0, Ending::Released);
    }

    #[test]
    fn a_config_has_moved_on_when_it_has_other_content_and_nobody_chose_the_version() {
        let content = |color: &str| {
            let manifest = json!({"data": {"COLOR": color}});
            Content::of_manifest(ConfigKind::ConfigMap, &manifest).ok()
        };
        let (blue, green) = (content("blue"), content("green"));
        let moved_on = |object: &VersionedConfig, awaited: &Option<Content>, source: &Option<Content>| {
            has_moved_on(object, Some("app-3"), awaited.as_ref(), source.as_ref())
        };
        assert!(moved_on(&moving(), &blue, &green));
        assert!(!moved_on(&moving(), &blue, &blue), "it is still to come");
        assert!(!moved_on(&moving(), &blue, &None), "its source is deleted: the release goes to its end");
        assert!(!moved_on(&moving(), &None, &green));
        for version in ["r3", "app-3"] {
            let mut chosen = moving();
            chosen.spec.current = Some(lockstep_api::Choice { version: version.into(), instead_of: None });
            assert!(!moved_on(&chosen, &blue, &green), "a person wants {version}");
        }
    }

    #[test]
    fn what_nobody_follows_any_more_is_not_waited_for() {
        let mut object = held();
        assert_eq!(unfollowed(&object), None);
        let followed = json!({"type": "Followed", "status": "False", "reason": "OptedOut", "message": "it opted out",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        object.status.as_mut().unwrap().conditions.push(serde_json::from_value(followed).unwrap());
        assert!(!is_followed(&object));
        let end = not_followed(&"configmap/app".parse().unwrap(), unfollowed(&object).unwrap());
        assert_eq!(plain(&end.text()), "configmap/app: rejected: it opted out");
    }

    #[test]
    fn a_release_that_was_superseded_while_we_looked_is_over() {
        let mut old = baking();
        if let Some(status) = &mut old.status {
            status.phase = "Superseded".into();
        }
        let mut newer = baking();
        newer.metadata.name = Some("configmap-app-3".into());
        newer.spec.supersedes = old.metadata.name.clone();
        newer.spec.moves[0].to = "app-4".into();
        let all = [newer, old];
        assert_eq!(standing(&moving(), &all, Some("app-3"), |_| false), Standing::Waiting);
        assert_eq!(how(standing(&moving(), &all, Some("app-3"), |_| true)).0, Ending::Superseded);
    }
}
