//! Rules about how things are when nobody does anything any more, nothing goes wrong, and the operators had time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use lockstep_core::keys::{Used, used_keys};
use lockstep_core::release::{Phase, Release, State};
use lockstep_core::{ConfigRef, names};
use serde_json::Value;

use super::of_versions::{columns, user_of};
use super::reading::{
    Version, config_kind, config_of, consumer_id, consumers, managed, open_releases, pinned, pins, record, references,
    releases, source_key, table, template,
};
use super::{EndRule, Seen};
use crate::kinds::Kind;
use crate::store::Object;

pub(super) const EVERY_RELEASE_ENDS: EndRule = EndRule {
    name: "every_release_ends",
    says: "a release under way ends, unless it waits for a person",
    check: |seen| {
        let mut open = each_open(seen);
        let (namespace, release) =
            open.find(|(namespace, release)| !waits_for_a_person(seen, namespace, release, 0))?;
        let (phase, reason) = (release.progress.phase, &release.progress.reason);
        Some(format!("release {} of {namespace} is {phase}: {reason}", release.name))
    },
};

/// Whether all that is open waits for somebody.
pub(super) fn waits_only_for_people(seen: &Seen) -> bool {
    each_open(seen).all(|(namespace, release)| waits_for_a_person(seen, &namespace, &release, 0))
}

fn each_open(seen: &Seen) -> impl Iterator<Item = (String, Release)> + use<'_> {
    seen.namespaces()
        .flat_map(|namespace| open_releases(seen, namespace).map(|release| (namespace.to_owned(), release)))
}

/// So many releases may wait for one another.
const LONGEST_CHAIN: usize = 20;

fn waits_for_a_person(seen: &Seen, namespace: &str, release: &Release, depth: usize) -> bool {
    if release.wishes.paused || depth > LONGEST_CHAIN {
        return release.wishes.paused;
    }
    let reason = &release.progress.reason;
    // What an Argo Rollout waits for is for a person to do.
    let waits_for_rollout = seen.list(Kind::Rollout, namespace).any(|rollout| {
        let status = &rollout.value["status"];
        let is_stopped =
            status["abort"] == true || status["pauseConditions"].as_array().is_some_and(|all| !all.is_empty());
        is_stopped && reason.contains(&format!("Rollout {}", rollout.key.name))
    });
    let waited_for = |other: &Release| {
        let names_it = reason.contains(&format!("release {}", other.name));
        other.name != release.name && names_it && waits_for_a_person(seen, namespace, other, depth + 1)
    };
    waits_for_rollout || open_releases(seen, namespace).any(|other| waited_for(&other))
}

/// The configs that are followed: their source is there and opted in.
fn followed(seen: &Seen) -> Vec<(String, ConfigRef, Arc<Object>)> {
    let sources = [Kind::ConfigMap, Kind::Secret].into_iter().flat_map(|kind| seen.all(kind));
    let is_followed = |source: &Arc<Object>| {
        let kind = config_kind(source.key.kind)?;
        if source.label(names::VERSION_OF).is_some() || source.is_deleted() || !seen.is_there(&source.key.namespace) {
            return None;
        }
        let config = ConfigRef::new(kind, source.key.name.as_str());
        opted_in(seen, source, &config).then(|| (source.key.namespace.clone(), config, Arc::clone(source)))
    };
    sources.filter_map(is_followed).collect()
}

fn opted_in(seen: &Seen, source: &Object, config: &ConfigRef) -> bool {
    let is_on = |value: Option<&str>| value == Some(names::ON);
    if is_on(source.label(names::IGNORE)) || is_on(source.annotation(names::IGNORE)) {
        return false;
    }
    let namespace = &source.key.namespace;
    let is_used = || consumers(seen, namespace).any(|workload| references(workload).contains(config));
    let is_versioned = |namespace: &Arc<Object>| is_on(namespace.label(names::VERSIONED)) && is_used();
    let by_namespace = seen.get(Kind::Namespace, "", namespace).is_some_and(is_versioned);
    let is_auto =
        |workload: &Arc<Object>| is_on(workload.annotation(names::AUTO)) && references(workload).contains(config);
    is_on(source.label(names::VERSIONED)) || by_namespace || consumers(seen, namespace).any(is_auto)
}

pub(super) const NO_CHANGE_IS_LOST: EndRule = EndRule {
    name: "no_change_is_lost",
    says: "what a config holds at the end is current, held, rejected, refused, set aside by a person, or being released",
    check: |seen| {
        followed(seen).into_iter().find_map(|(namespace, config, source)| {
            let Some(managed) = managed(seen, &namespace, &config) else {
                return Some(format!("{config} in {namespace} opted in and has no VersionedConfig"));
            };
            let status = &managed.value["status"];
            if is_refused(managed) || managed.value["spec"]["current"].is_object() {
                return None;
            }
            let is_it = |object: &&Arc<Object>| {
                object.value["data"] == source.value["data"]
                    && Version::read(object).is_some_and(|version| version.config == config)
            };
            let version = seen.list(source.key.kind, &namespace).find(is_it).map(|object| object.key.name.as_str());
            let Some(version) = version else {
                return Some(format!("what {config} in {namespace} holds is no version"));
            };
            let is_moving = || open_releases(seen, &namespace).any(|release| moves_to(&release, &config, version));
            if status["current"]["object"] == version || status["held"]["object"] == version || is_moving() {
                return None;
            }
            let current = &status["current"]["object"];
            Some(format!("{config} in {namespace} holds {version}, and {current} is current: nobody says why"))
        })
    },
};

fn is_refused(managed: &Object) -> bool {
    condition(managed, "Ready").is_some_and(|ready| ready["reason"] == "Refused")
}

fn condition<'a>(object: &'a Object, of: &str) -> Option<&'a Value> {
    object.value["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == of)
}

fn moves_to(release: &Release, config: &ConfigRef, version: &str) -> bool {
    release.moves.iter().any(|step| step.config == *config && step.to == version)
}

pub(super) const GATES: EndRule = EndRule {
    name: "gates_are_open",
    says: "no workload is held up by a gate that no release needs; but the rest does not follow to what is held",
    check: |seen| {
        let all = seen.namespaces().flat_map(|namespace| consumers(seen, namespace));
        let mut gated = all.filter(|workload| workload.annotation(names::GATE).is_some());
        gated.find_map(|workload| {
            let namespace = &workload.key.namespace;
            let consumer = consumer_id(workload);
            // One that has not started, and waits for a person, takes over from what failed behind the gate.
            let is_next = |release: &Release| {
                let uses = || references(workload);
                release.progress.started_at.is_none() && release.configs().any(|config| uses().contains(config))
            };
            let is_needed = open_releases(seen, namespace)
                .any(|release| record(&release, &consumer).is_some() || is_next(&release));
            let pins = pins(workload);
            let is_held = pins.iter().any(|(config, pin)| {
                let held =
                    managed(seen, namespace, config).map(|managed| managed.value["status"]["held"]["object"].clone());
                held.is_some_and(|held| held == pin.to_string())
            });
            (!is_needed && !is_held).then(|| format!("{} is gated, and no release has it", workload.key))
        })
    },
};

pub(super) const CONSUMERS: EndRule = EndRule {
    name: "every_consumer_runs_what_is_current",
    says: "every consumer's template has what is current, in all that it uses, or there is a reason: a release, a failure, a person",
    check: |seen| {
        followed(seen).into_iter().find_map(|(namespace, config, source)| {
            // What is refused is not released, whoever has it by now.
            let managed = managed(seen, &namespace, &config).filter(|managed| !is_refused(managed))?;
            let failed = failed(seen, managed, &source);
            let current = managed.value["status"]["current"]["object"].as_str()?.to_owned();
            let users = consumers(seen, &namespace).filter(|workload| references(workload).contains(&config));
            let mut others = users.filter(|workload| !runs(seen, workload, &config, &current));
            let is_left = |workload: &Object| failed.is_some() && pinned(&pins(workload), &config) == failed;
            let workload = others.find(|workload| !is_left(workload) && !is_explained(seen, workload, &config))?;
            let has = pinned(&pins(workload), &config).unwrap_or("no pin".to_owned());
            Some(format!("{} has {has} of {config}, and {current} is current: nobody says why", workload.key))
        })
    },
};

/// The version that failed, and that the config holds all the same: whoever has it is left to a person, also if its release is gone.
fn failed(seen: &Seen, managed: &Object, source: &Object) -> Option<String> {
    let held = managed.value["status"]["held"]["object"].as_str()?;
    let version = seen.get(source.key.kind, &source.key.namespace, held)?;
    (version.value["data"] == source.value["data"]).then(|| held.to_owned())
}

/// Whether a workload's pods get what is current, in all that they use of it.
fn runs(seen: &Seen, workload: &Object, config: &ConfigRef, current: &str) -> bool {
    let namespace = &workload.key.namespace;
    let baseline = || table(seen, namespace)?.get(config)?.baseline.clone();
    let Some(has) = pinned(&pins(workload), config).or_else(baseline) else { return false };
    let content = |object: &str| {
        let key = source_key(namespace, &ConfigRef::new(config.kind, object));
        seen.objects.get(&key).map(|object| object.value["data"].clone())
    };
    if has == current {
        return true;
    }
    let (Some(old), Some(new)) = (content(&has), content(current)) else { return false };
    match used_keys(&template(workload)["spec"]).get(config) {
        Some(Used::Keys(keys)) => keys.iter().all(|key| old[key] == new[key]),
        _ => old == new,
    }
}

/// Whether somebody said why a consumer has another version than the current one.
fn is_explained(seen: &Seen, workload: &Object, config: &ConfigRef) -> bool {
    let namespace = &workload.key.namespace;
    // Nobody is left who could know where it should go back to.
    let is_forgotten = |has: String| seen.forgotten.contains(&(workload.key.clone(), config.clone(), has));
    if pinned(&pins(workload), config).is_some_and(is_forgotten) {
        return true;
    }
    let consumer = consumer_id(workload);
    let concerns = |release: &Release| release.configs().any(|own| own == config);
    let mut all: Vec<Release> = releases(seen, namespace).filter(concerns).collect();
    all.sort_by_key(|release| release.progress.ended_at.unwrap_or(Timestamp::MAX));
    let Some(last) = all.last() else {
        // A person gave it other pins when nothing was released yet.
        return seen.touched.get(&workload.key).is_some_and(|touched| touched.pins.is_some());
    };
    if !last.progress.phase.has_ended() || last.progress.phase == Phase::Failed {
        return true;
    }
    let record = record(last, &consumer);
    let is_told = record.is_some_and(|record| record.state == State::LeftAlone || record.has_joined);
    let Some(touched) = seen.touched.get(&workload.key) else { return is_told };
    // Going back means what it had before, and that may have been a person's wish.
    let has = pinned(&pins(workload), config);
    let is_put_back = record.is_some_and(|record| pinned(&record.pins_before, config) == has)
        && touched.given.contains(&(config.clone(), has));
    let is_back = matches!(last.progress.phase, Phase::RolledBack | Phase::Aborted) && is_put_back;
    is_told || is_back || touched.template.is_some_and(|at| Some(at + CLOCKS_DIFFER) >= last.progress.started_at)
}

/// A release has the times of its leader's clock, which may be ahead.
const CLOCKS_DIFFER: jiff::SignedDuration = jiff::SignedDuration::from_secs(120);

pub(super) const STATUS: EndRule = EndRule {
    name: "the_status_is_what_is",
    says: "a VersionedConfig lists the versions and consumers that there are, and says what is current, moving and held",
    check: |seen| {
        let all = seen.all(Kind::VersionedConfig).filter(|managed| seen.is_there(&managed.key.namespace));
        all.filter(|managed| !managed.is_deleted()).find_map(|managed| {
            let config = config_of(&managed.value["spec"]["source"])?;
            let wrong = wrong_status(seen, managed, &config)?;
            Some(format!("{}: {wrong}", managed.key))
        })
    },
};

fn wrong_status(seen: &Seen, managed: &Object, config: &ConfigRef) -> Option<String> {
    let (namespace, status) = (&managed.key.namespace, &managed.value["status"]);
    let is_version = |object: &&Arc<Object>| {
        Version::read(object).is_some_and(|version| version.config == *config && version.name.is_some())
    };
    let kind = super::reading::object_kind(config);
    let there: BTreeSet<&str> =
        seen.list(kind, namespace).filter(is_version).map(|object| object.key.name.as_str()).collect();
    let listed: BTreeSet<&str> = list(&status["versions"]).filter_map(|version| version["object"].as_str()).collect();
    if there != listed {
        return Some(format!("it lists the versions {listed:?}, and there are {there:?}"));
    }
    if let Some(current) = status["current"]["object"].as_str().filter(|current| !there.contains(current)) {
        return Some(format!("{current} is current and does not exist"));
    }
    let open: Vec<Release> = open_releases(seen, namespace)
        .filter(|release| release.progress.phase != Phase::RollingBack && release.configs().any(|own| own == config))
        .collect();
    if status["releasing"].is_string() && open.is_empty() {
        return Some(format!("it says that {} is being released, and no release is under way", status["releasing"]));
    }
    if open.is_empty() { wrong_consumers(seen, namespace, config, status) } else { None }
}

fn wrong_consumers(seen: &Seen, namespace: &str, config: &ConfigRef, status: &Value) -> Option<String> {
    let told: BTreeMap<(String, String), Option<String>> = list(&status["consumers"])
        .filter(|consumer| CONSUMERS_LISTED.contains(&consumer["kind"].as_str().unwrap_or_default()))
        .map(|consumer| {
            let text = |field: &str| consumer[field].as_str().unwrap_or_default().to_owned();
            ((text("kind"), text("name")), consumer["pinned"].as_str().map(str::to_owned))
        })
        .collect();
    let users = consumers(seen, namespace).filter(|workload| references(workload).contains(config));
    let really: BTreeMap<(String, String), Option<String>> = users
        .filter(|workload| CONSUMERS_LISTED.contains(&workload.key.kind.kind()))
        .map(|workload| {
            let key = &workload.key;
            ((key.kind.kind().to_owned(), key.name.clone()), pinned(&pins(workload), config))
        })
        .collect();
    (told != really).then(|| format!("it lists the consumers {told:?}, and there are {really:?}"))
}

/// Kinds whose consumers can be compared one by one.
const CONSUMERS_LISTED: [&str; 5] = ["Deployment", "StatefulSet", "DaemonSet", "CronJob", "Rollout"];

pub(super) const TABLE: EndRule = EndRule {
    name: "the_table_is_what_is",
    says: "the table hands out what is current, offers nothing that nobody releases, and names nothing that is not there",
    check: |seen| {
        seen.all(Kind::PinTable).filter(|table| seen.is_there(&table.key.namespace)).find_map(|table| {
            let namespace = &table.key.namespace;
            columns(table).into_iter().find_map(|((column, config), object)| {
                let key = source_key(namespace, &ConfigRef::new(config.kind, object.as_str()));
                // Who deletes both, the config and its VersionedConfig, deletes what only they keep. As long as somebody uses the config, its
                // entry stays: pods wait for it, with or without us, and it goes on with the next version when the config comes again.
                let is_gone = managed(seen, namespace, &config).is_none()
                    && !seen.objects.contains_key(&source_key(namespace, &config));
                if is_gone {
                    return None;
                }
                if !seen.objects.contains_key(&key) {
                    return Some(format!("{column} of {config} in {namespace} is {object}, which does not exist"));
                }
                let managed = managed(seen, namespace, &config)?;
                let current = &managed.value["status"]["current"]["object"];
                if column == "current" && *current != object.as_str() {
                    return Some(format!(
                        "{object} is handed out for {config} in {namespace}, and {current} is current"
                    ));
                }
                let is_moving =
                    || open_releases(seen, namespace).any(|release| release.configs().any(|own| *own == config));
                let is_offered = column == "next" || column == "moving";
                (is_offered && !is_moving())
                    .then(|| format!("{object} is {column} of {config} in {namespace}, and no release is under way"))
            })
        })
    },
};

pub(super) const DRAFTS: EndRule = EndRule {
    name: "no_draft_stays",
    says: "a draft becomes a version, or goes, unless somebody joined it and may still run it",
    check: |seen| {
        let configs = [Kind::ConfigMap, Kind::Secret].into_iter().flat_map(|kind| seen.all(kind));
        let is_draft = |object: &&Arc<Object>| Version::read(object).is_some_and(|version| version.name.is_none());
        let drafts = configs.filter(is_draft).filter(|draft| seen.is_there(&draft.key.namespace));
        let mut drafts = drafts.filter(|draft| {
            let Some(config) = Version::read(draft).map(|version| version.config) else { return false };
            let is_unused = user_of(seen, draft, &config).is_none();
            // A Job that has ended holds what it ran until somebody deletes it.
            let is_held = draft.owners().any(|owner| owner["kind"] == "Job");
            // Who joined it goes back to it, if the release fails that has moved them on and waits for a person.
            let namespace = &draft.key.namespace;
            let goes_back = |release: Release| {
                let mut records = release.progress.consumers.iter();
                records.any(|record| pinned(&record.pins_before, &config).as_ref() == Some(&draft.key.name))
            };
            let is_needed = open_releases(seen, namespace).any(goes_back);
            // It is what the config holds, and becomes a version once that is not refused any more.
            let is_refused = managed(seen, namespace, &config).is_some_and(|managed| is_refused(managed));
            let source = seen.objects.get(&source_key(namespace, &config));
            let is_wanted = is_refused && source.is_some_and(|source| source.value["data"] == draft.value["data"]);
            is_unused && !is_held && !is_needed && !is_wanted
        });
        drafts.next().map(|draft| format!("{} is a draft", draft.key))
    },
};

pub(super) const PODS: EndRule = EndRule {
    name: "pods_find_their_versions",
    says: "no pod waits for a version that is not there, unless its config is gone altogether",
    check: |seen| {
        let pods = seen.all(Kind::Pod).filter(|pod| seen.is_there(&pod.key.namespace) && !pod.is_deleted());
        let ends = ["Succeeded", "Failed"];
        let mut pods = pods.filter(|pod| !ends.contains(&pod.value["status"]["phase"].as_str().unwrap_or_default()));
        pods.find_map(|pod| {
            let pins = super::reading::pins_text(&pod.value);
            let pins = lockstep_core::Pins::read(pins);
            let mut missing = pins.iter().filter(|(config, pin)| {
                let is_there = |config: &ConfigRef| seen.objects.contains_key(&source_key(&pod.key.namespace, config));
                // Whoever deletes a config and all that keeps its versions has nothing to start pods with, with or without us.
                let version = ConfigRef::new(config.kind, pin.to_string());
                let is_unkept = seen.unkept.contains(&source_key(&pod.key.namespace, &version));
                is_there(config) && !is_there(&version) && !is_unkept
            });
            let (config, pin) = missing.next()?;
            Some(format!("{} is pinned to {pin} of {config}, which does not exist", pod.key))
        })
    },
};

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
