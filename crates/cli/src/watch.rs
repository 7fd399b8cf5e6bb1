//! `lockstep watch`: a release as it goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, ObjectList, PartialObjectMeta};
use lockstep_api::{ConditionType, Release, VersionSummary, VersionedConfig};
use lockstep_core::{ConfigKind, ConfigRef};
use tokio::time::{Instant, sleep};

use crate::Outcome;
use crate::cluster::Cluster;
use crate::follow::{
    End, GRACE, Wanted, What, at_rest, conclude, ended, follow, is_about_to_move, is_followed, may_answer, moves_to,
    outcome,
};
use crate::names::{ReleaseName, typed};
use crate::output::Format;
use crate::progress::headline;
use crate::status::under_way;

/// How long the operator may take to see a change: moments, unless the machine is very busy or another replica takes over.
const OPERATOR_GRACE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);
/// What ended so long ago may have been waited for: a person, or a script, takes a moment from the change to the command.
const RECENTLY: SignedDuration = SignedDuration::from_secs(60);

#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes:
  0  released, or nothing moves
  1  an error, or a person chose another version meanwhile
  2  rolled back, failed, aborted or replaced by another change
  3  rejected: the change breaks a rule
  4  not done within --timeout; the release goes on
  5  released, but not every consumer could be judged: some have no pods, were broken before, or were left alone")]
pub(crate) struct Flags {
    /// NAME, configmap/NAME, secret/NAME or release/NAME; if not given, all that moves in the namespace, or failed within the last minute
    #[arg(value_name = "CONFIG|RELEASE")]
    what: Option<ReleaseName>,
    /// How long to watch
    #[arg(long, default_value = "24h", value_name = "DURATION")]
    timeout: SignedDuration,
}

pub(crate) async fn run(cluster: &Cluster, flags: &Flags, format: Format) -> Result<Outcome> {
    let wanted = match &flags.what {
        None => all(cluster).await?,
        Some(ReleaseName::Named(name)) => {
            let found = cluster.release(name).await?;
            if found.phase().has_ended() {
                let ends = Vec::from_iter(ended(&found));
                let outcome = outcome(&ends);
                return conclude(format, &headline(&found), ends).map(|()| outcome);
            }
            target(&found).into_iter().collect()
        }
        Some(ReleaseName::Of(config)) => {
            let asked_for = BTreeSet::from([config.clone()]);
            let wanted = moving(cluster, asked_for.clone(), asked_for).await?;
            if wanted.is_empty() {
                let object = cluster.versioned_config(config).await?;
                let ends = Vec::from_iter(at_rest(&object, &cluster.releases_of(config).await?));
                let outcome = outcome(&ends);
                return conclude(format, &resting(&object, &ends), ends).map(|()| outcome);
            }
            wanted
        }
    };
    if wanted.is_empty() {
        let sentence = format!("nothing moves in namespace {}", cluster.namespace);
        return conclude(format, &sentence, Vec::new()).map(|()| Outcome::Done);
    }
    follow(cluster, wanted, flags.timeout, format).await
}

fn resting(object: &VersionedConfig, ends: &[End]) -> String {
    let config = ConfigRef::from(&object.spec.source);
    let current = object.status.as_ref().and_then(|status| status.current.as_ref());
    let current = current.map_or("no version yet", |current| current.version.as_str());
    let but = ends.iter().find_map(End::doubt).map(|doubt| format!(". {doubt}")).unwrap_or_default();
    format!("nothing moves: {config} is at {current}{but}. More: lockstep status {}", typed(&config))
}

/// All that moves in the namespace, and all that is about to.
async fn all(cluster: &Cluster) -> Result<Vec<Wanted>> {
    let releases = cluster.releases(false).await?;
    let objects = cluster.versioned_configs(false).await?;
    let mut sources = BTreeMap::new();
    for kind in ConfigKind::ALL {
        if objects.iter().any(|object| ConfigKind::from(object.spec.source.kind) == kind) {
            sources.extend(resource_versions(cluster, kind).await?);
        }
    }
    // What failed between the two looks is in neither: its release is younger than the first, and its config rests in the second.
    let mut asked_for = just_failed(&objects, &cluster.releases(false).await?, Timestamp::now());
    // What failed since the second is a change of a moment ago, too.
    asked_for.extend(unseen(&objects, &sources, &releases));
    let mut configs = open(&releases);
    configs.extend(asked_for.iter().cloned());
    configs.extend(chosen_by_somebody(&objects, &sources, &releases));
    Ok(distinct(moving(cluster, configs, asked_for).await?))
}

/// The configs whose change failed, or was refused, while somebody typed: that is what they want to hear of.
fn just_failed(objects: &[VersionedConfig], releases: &[Release], now: Timestamp) -> BTreeSet<ConfigRef> {
    let is_recent = |at: Timestamp| now.duration_since(at) <= RECENTLY;
    let has_failed = |object: &&VersionedConfig| {
        let Some(status) = &object.status else { return false };
        let held_by = |release: &Release| {
            let ended = release.status.as_ref().and_then(|status| status.ended_at.as_ref());
            status.held.as_ref().is_some_and(|held| release.metadata.name.as_ref() == Some(&held.release))
                && ended.is_some_and(|ended| is_recent(ended.0))
        };
        let refused = status.condition(ConditionType::Ready).filter(|ready| ready.reason == "Refused");
        releases.iter().any(held_by) || refused.is_some_and(|refused| is_recent(refused.last_transition_time.0))
    };
    objects.iter().filter(has_failed).map(|object| ConfigRef::from(&object.spec.source)).collect()
}

/// Which resource version each config of a kind has. Who may not list them does without.
async fn resource_versions(cluster: &Cluster, kind: ConfigKind) -> Result<Sources> {
    let params = ListParams::default();
    let listed: kube::Result<Vec<ObjectMeta>> = match kind {
        ConfigKind::ConfigMap => cluster.api::<ConfigMap>().list_metadata(&params).await.map(metadata),
        ConfigKind::Secret => cluster.api::<Secret>().list_metadata(&params).await.map(metadata),
    };
    let listed = match listed {
        Err(kube::Error::Api(status)) if status.code == 403 => Vec::new(),
        listed => listed.map_err(|error| cluster.explain(error, || format!("list {}s", kind.kind())))?,
    };
    let named = |meta: ObjectMeta| Some((ConfigRef::new(kind, meta.name?), meta.resource_version?));
    Ok(listed.into_iter().filter_map(named).collect())
}

fn metadata<K>(list: ObjectList<PartialObjectMeta<K>>) -> Vec<ObjectMeta>
where
    PartialObjectMeta<K>: Clone,
{
    list.items.into_iter().map(|object| object.metadata).collect()
}

/// Which resource version each config has.
type Sources = BTreeMap<ConfigRef, String>;

/// The configs whose source is not as it was when the operator last compared it, and that no release moves yet.
fn unseen(objects: &[VersionedConfig], sources: &Sources, releases: &[Release]) -> Vec<ConfigRef> {
    let is_unseen = |object: &VersionedConfig, source: &String| {
        object.status.as_ref().and_then(|status| status.observed_resource_version.as_ref()) != Some(source)
    };
    resting_sources(objects, sources, releases, is_unseen)
}

/// The configs that may be about to move because a person chose what they run.
fn chosen_by_somebody(objects: &[VersionedConfig], sources: &Sources, releases: &[Release]) -> Vec<ConfigRef> {
    resting_sources(objects, sources, releases, |object, _| object.spec.current.is_some())
}

/// Of the configs that are there and that no release moves, those that are meant.
fn resting_sources(
    objects: &[VersionedConfig],
    sources: &Sources,
    releases: &[Release],
    is_meant: impl Fn(&VersionedConfig, &String) -> bool,
) -> Vec<ConfigRef> {
    let found = objects.iter().filter_map(|object| {
        let config = ConfigRef::from(&object.spec.source);
        let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
        let rests = under_way(&config, namespace, releases).is_none();
        let source = sources.get(&config)?;
        (rests && is_meant(object, source)).then_some(config)
    });
    found.collect()
}

/// Configs that were changed together may be moved by one release.
fn distinct(wanted: Vec<Wanted>) -> Vec<Wanted> {
    let mut known = BTreeSet::new();
    wanted.into_iter().filter(|wanted| known.insert(wanted.config.clone())).collect()
}

/// What configs are on their way to; those that rest are left out. A change of a moment ago may still be waiting for the operator, or for
/// further changes. `asked_for`: those of which the user wants to hear also how it ended.
async fn moving(
    cluster: &Cluster,
    configs: BTreeSet<ConfigRef>,
    mut asked_for: BTreeSet<ConfigRef>,
) -> Result<Vec<Wanted>> {
    let start = Instant::now();
    let (mut unclear, mut found) = (configs, Vec::new());
    loop {
        for config in std::mem::take(&mut unclear) {
            let (course, wanted) = look(cluster, &config).await?;
            if course == Course::Unseen {
                // What becomes of a change that we saw before the operator did is of interest, whoever asked.
                asked_for.insert(config.clone());
            }
            match next(&course, asked_for.contains(&config), start.elapsed()) {
                Next::Follow => found.extend(wanted),
                Next::Leave => {}
                Next::LookAgain => {
                    unclear.insert(config);
                }
                Next::GiveUp => bail!(
                    "the operator has not taken up the last change of {config} within {} s: see what `lockstep doctor` says",
                    OPERATOR_GRACE.as_secs()
                ),
            }
        }
        if unclear.is_empty() {
            return Ok(found);
        }
        sleep(POLL).await;
    }
}

/// One look at one config. The releases come first, as in `follow`.
async fn look(cluster: &Cluster, config: &ConfigRef) -> Result<(Course, Option<Wanted>)> {
    let releases = cluster.releases_of(config).await?;
    let open = under_way(config, &cluster.namespace, &releases);
    let followed = || open.map_or((Course::Rests, None), |release| (Course::Moves, target(release)));
    let Some(object) = cluster.find(config).await? else { return Ok(followed()) };
    let Some(content) = cluster.content(config.kind, &config.name).await? else { return Ok(followed()) };
    let source = cluster.version_of(&object, &content).await?;
    let tried_again = object.spec.retry.clone();
    let wanted = |what| Some(Wanted { tried_again: tried_again.clone(), ..Wanted::new(config, what) });
    if let Some(release) = open.filter(|open| may_answer(open, tried_again.as_deref())) {
        // What a person chose since then takes the release's place in a moment.
        let chosen = chosen(&object, source.as_ref());
        let overruling = chosen.filter(|chosen| !moves_to(release, config, &chosen.object));
        if let Some(chosen) = overruling {
            return Ok((Course::To(chosen.object.clone()), wanted(What::Object(chosen.object.clone()))));
        }
        // So does what the config says by now.
        let is_its = |source: &VersionSummary| moves_to(release, config, &source.object);
        if chosen.is_none() && is_followed(&object) && !source.as_ref().is_some_and(is_its) {
            return Ok((Course::Moves, wanted(What::Content(Box::new(content), BTreeSet::new()))));
        }
        return Ok(followed());
    }
    let course = course(&object, source.as_ref());
    let what = match &course {
        Course::To(object) | Course::Held(object) => What::Object(object.clone()),
        _ => What::Content(Box::new(content), BTreeSet::new()),
    };
    Ok((course, wanted(what)))
}

/// Where a config is going.
#[derive(Debug, PartialEq, Eq)]
enum Course {
    /// It is where it should be.
    Rests,
    /// The operator has begun with a change: its end can be waited for.
    Moves,
    /// A person asked for the version in this object, and the operator has not begun with it.
    To(String),
    /// Its version failed or was rejected: the one in this object.
    Held(String),
    /// The operator refused a change: this one, or the one before it.
    Refused,
    /// The operator does not follow its changes, or does so only since a moment ago.
    Unfollowed,
    /// The operator has not seen the change yet.
    Unseen,
}

/// The course of a config that no release moves. `source`: the version that it has as it is now, if there is one already.
fn course(object: &VersionedConfig, source: Option<&VersionSummary>) -> Course {
    let Some(status) = &object.status else { return Course::Unseen };
    let is_current = |object: &str| status.current.as_ref().is_some_and(|current| current.object == object);
    if let Some(chosen) = chosen(object, source) {
        return if is_current(&chosen.object) { Course::Rests } else { Course::To(chosen.object.clone()) };
    }
    if let Some(source) = source {
        let held = status.held.as_ref().filter(|held| held.object == source.object);
        match held {
            _ if is_current(&source.object) && !is_about_to_move(object, &source.object) => return Course::Rests,
            Some(held) if object.spec.retry.as_ref() == Some(&held.release) => return Course::To(held.object.clone()),
            Some(held) => return Course::Held(held.object.clone()),
            None => {}
        }
    }
    let is_false = |of: ConditionType| status.condition(of).filter(|condition| condition.status == "False");
    if status.releasing.is_some() {
        Course::Moves
    } else if is_false(ConditionType::Ready).is_some_and(|ready| ready.reason == "Refused") {
        Course::Refused
    } else if is_false(ConditionType::Followed).is_some() {
        Course::Unfollowed
    } else {
        Course::Unseen
    }
}

/// The version that a person wants to run instead of the source's.
fn chosen<'a>(object: &'a VersionedConfig, source: Option<&VersionSummary>) -> Option<&'a VersionSummary> {
    let is_called = |version: &VersionSummary, name: &str| version.version == name || version.object == name;
    let choice = object.spec.current.as_ref()?;
    let instead_of = choice.instead_of.as_ref();
    let holds = instead_of.is_none_or(|name| source.is_some_and(|source| is_called(source, name)));
    let versions = &object.status.as_ref()?.versions;
    versions.iter().find(|version| holds && is_called(version, &choice.version))
}

/// What is to be done about a config.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Follow,
    Leave,
    LookAgain,
    GiveUp,
}

/// If nobody asks for this config, only what moves is of interest: what is held or refused, and stays as it is, does not.
fn next(course: &Course, is_asked_for: bool, waited: Duration) -> Next {
    match course {
        Course::Moves | Course::To(_) => Next::Follow,
        Course::Held(_) | Course::Refused if is_asked_for => Next::Follow,
        Course::Rests | Course::Held(_) => Next::Leave,
        Course::Refused | Course::Unfollowed if waited >= GRACE => Next::Leave,
        Course::Unseen if waited >= OPERATOR_GRACE => Next::GiveUp,
        Course::Refused | Course::Unfollowed | Course::Unseen => Next::LookAgain,
    }
}

/// The configs that releases under way move.
fn open(releases: &[Release]) -> BTreeSet<ConfigRef> {
    let open = releases.iter().filter(|release| !release.phase().has_ended());
    open.flat_map(|release| release.spec.moves.iter().map(|step| ConfigRef::from(&step.source))).collect()
}

/// All configs of a release end together, so one stands for all.
fn target(release: &Release) -> Option<Wanted> {
    let step = release.spec.moves.first()?;
    Some(Wanted::new(&ConfigRef::from(&step.source), What::Object(step.to.clone())))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use lockstep_api::Choice;
    use serde_json::json;

    use super::*;
    use crate::content::version;
    use crate::fixtures::{NOW, baking, held, moving, versioned};

    fn of(object: &VersionedConfig, source: &str) -> Course {
        course(object, Some(version(object, source).unwrap()))
    }

    #[test]
    fn what_was_left_with_a_failed_version_is_waited_for_when_the_change_is_taken_back() {
        let mut object = held();
        assert_eq!(of(&object, "1.1.0"), Course::Unseen, "the operator still holds what failed");
        let status = object.status.as_mut().unwrap();
        (status.held, status.releasing) = (None, Some("1.1.0".into()));
        assert_eq!(of(&object, "1.1.0"), Course::Moves);
        object.status.as_mut().unwrap().releasing = None;
        assert_eq!(of(&object, "1.1.0"), Course::Rests);
    }

    fn with_condition(mut object: VersionedConfig, of: &str, reason: &str) -> VersionedConfig {
        let condition = json!({
            "type": of, "status": "False", "reason": reason, "message": "", "lastTransitionTime": NOW.to_string(),
        });
        if let Some(status) = &mut object.status {
            status.conditions = vec![serde_json::from_value(condition).unwrap()];
        }
        object
    }

    #[test]
    fn what_is_current_rests_and_what_failed_is_held_until_it_is_tried_again() {
        let object = held();
        assert_eq!(of(&versioned("configmap", "app"), "current"), Course::Rests);
        assert_eq!(of(&object, "r3"), Course::Held("app-3".into()));
        let mut retried = held();
        retried.spec.retry = Some("configmap-app-2".into());
        assert_eq!(of(&retried, "r3"), Course::To("app-3".into()));
    }

    #[test]
    fn a_change_is_unseen_until_the_operator_says_something_of_it() {
        let object = held();
        assert_eq!(of(&object, "1.0.0"), Course::Unseen, "back to an earlier version");
        assert_eq!(course(&object, None), Course::Unseen, "its version is not there yet");
        assert_eq!(course(&moving(), None), Course::Moves);
        assert_eq!(course(&with_condition(held(), "Ready", "Refused"), None), Course::Refused);
        assert_eq!(course(&with_condition(held(), "Ready", "Held"), None), Course::Unseen);
        assert_eq!(course(&with_condition(held(), "Followed", "OptedOut"), None), Course::Unfollowed);
        let new = VersionedConfig { status: None, ..held() };
        assert_eq!(course(&new, None), Course::Unseen);
    }

    #[test]
    fn a_choice_counts_for_as_long_as_it_holds() {
        let chosen = |version: &str, instead_of: Option<&str>| {
            let mut object = held();
            let instead_of = instead_of.map(str::to_owned);
            object.spec.current = Some(Choice { version: version.to_owned(), instead_of });
            object
        };
        assert_eq!(of(&chosen("1.0.0", None), "r3"), Course::To("app-1".into()));
        assert_eq!(of(&chosen("1.0.0", Some("app-3")), "r3"), Course::To("app-1".into()));
        assert_eq!(of(&chosen("1.1.0", Some("r3")), "r3"), Course::Rests, "it has arrived");
        assert_eq!(course(&chosen("1.0.0", Some("app-3")), None), Course::Unseen, "the config was changed since");
        assert_eq!(of(&chosen("9.9.9", None), "r3"), Course::Held("app-3".into()), "there is no such version");
    }

    #[test]
    fn who_asks_for_a_config_hears_how_it_ended_and_who_asks_for_all_only_of_what_moves() {
        let held = Course::Held("app-3".into());
        for (course, named, unnamed) in [
            (Course::Rests, Next::Leave, Next::Leave),
            (Course::Moves, Next::Follow, Next::Follow),
            (Course::To("app-1".into()), Next::Follow, Next::Follow),
            (held, Next::Follow, Next::Leave),
            (Course::Refused, Next::Follow, Next::LookAgain),
            (Course::Unfollowed, Next::LookAgain, Next::LookAgain),
            (Course::Unseen, Next::LookAgain, Next::LookAgain),
        ] {
            assert_eq!(next(&course, true, Duration::ZERO), named, "{course:?}");
            assert_eq!(next(&course, false, Duration::ZERO), unnamed, "{course:?}");
        }
    }

    #[test]
    fn a_config_that_is_not_clear_is_not_looked_at_forever() {
        assert_eq!(next(&Course::Refused, false, GRACE), Next::Leave);
        assert_eq!(next(&Course::Unfollowed, true, GRACE), Next::Leave);
        assert_eq!(next(&Course::Unseen, false, GRACE), Next::LookAgain);
        assert_eq!(next(&Course::Unseen, false, OPERATOR_GRACE), Next::GiveUp);
    }

    #[test]
    fn configs_whose_source_is_another_than_the_one_that_was_compared_may_be_about_to_move() {
        let observed = |name: &str, at: Option<&str>| {
            let mut object = versioned("configmap", name);
            if let Some(status) = &mut object.status {
                status.observed_resource_version = at.map(str::to_owned);
            }
            object
        };
        let mut chosen = observed("chosen", Some("7"));
        chosen.spec.current = Some(Choice { version: "1.0.0".into(), instead_of: None });
        let objects = [
            observed("same", Some("7")),
            observed("app", Some("6")),
            observed("new", None),
            observed("gone", Some("7")),
            chosen,
        ];
        let names = ["same", "app", "new", "chosen", "not-ours"];
        let sources = names.map(|name| (ConfigRef::new(ConfigKind::ConfigMap, name), "7".to_owned())).into();
        let names = |found: Vec<ConfigRef>| found.into_iter().map(|config| config.name).collect::<Vec<_>>();
        assert_eq!(names(unseen(&objects, &sources, &[])), ["app", "new"]);
        assert_eq!(names(unseen(&objects, &sources, &[baking()])), ["new"], "a release moves it already");
        assert_eq!(names(chosen_by_somebody(&objects, &sources, &[])), ["chosen"]);
    }

    #[test]
    fn what_failed_a_moment_ago_is_told_and_what_failed_long_ago_is_not() {
        let ended = |seconds: i64| {
            let mut release = baking();
            release.metadata.name = Some("configmap-app-2".into());
            release.status.as_mut().unwrap().ended_at = Some(Time(NOW - SignedDuration::from_secs(seconds)));
            release
        };
        let found = |object: VersionedConfig, seconds| just_failed(&[object], &[ended(seconds)], NOW).len();
        assert_eq!((found(held(), 5), found(held(), 500)), (1, 0));
        assert_eq!(found(versioned("configmap", "app"), 5), 0, "nothing is held");
        let refused = with_condition(versioned("configmap", "app"), "Ready", "Refused");
        assert_eq!(found(refused, 500), 1);
    }

    #[test]
    fn configs_that_one_release_moves_are_followed_once() {
        let both = [target(&baking()), target(&baking())].into_iter().flatten().collect();
        assert_eq!(distinct(both).len(), 1);
    }
}
