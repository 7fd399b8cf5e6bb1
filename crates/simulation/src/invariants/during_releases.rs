//! Rules about what Releases say.

use std::collections::BTreeSet;

use lockstep_api::ReleaseCondition;
use lockstep_core::ConfigRef;
use lockstep_core::release::{Move, Phase, Record, Release, State};

use super::reading::{config_kind, phase, pinned, pins, release, source_key, table, template};
use super::{ChangeRule, Seen};
use crate::cluster::cannot_be_ready;
use crate::kinds::{Key, Kind};
use crate::store::{Change, Object, Writer};

pub(super) const FINAL: ChangeRule = ChangeRule {
    name: "an_end_is_an_end",
    says: "a release that has ended stays as it ended, but for who runs it within the hour after, and what a person takes back",
    check: |_, change| {
        let (before, after) = both(change)?;
        let (was, is) = (phase(before), phase(after));
        let is_same = was == is && before.value["status"]["reason"] == after.value["status"]["reason"];
        // Whoever did not run it at the end is watched for an hour more: that changes what it says, and not how it ended.
        let is_judged_later =
            was == is && was == Phase::Succeeded && before.value["status"]["watchedUntil"].is_string();
        // What failed and was left to a person is opened again by them.
        let is_taken_back =
            is == Phase::RollingBack && release(before).is_some_and(|release| release.is_to_be_taken_back());
        let may_change = is_same || is_judged_later || is_taken_back;
        (was.has_ended() && before.uid() == after.uid() && !may_change)
            .then(|| format!("{} was {was} and is {is}: {}", change.key, after.value["status"]["reason"]))
    },
};

pub(super) const CONDITIONS: ChangeRule = ChangeRule {
    name: "conditions_say_what_the_phase_says",
    says: "the conditions of a Release agree with its phase and its records",
    check: |_, change| {
        let after = change.after.as_ref().filter(|_| change.key.kind == Kind::Release && is_operator(change))?;
        let conditions = after.value["status"]["conditions"].as_array()?;
        let progress = release(after)?.progress;
        let mut wrong = ReleaseCondition::ALL.into_iter().filter_map(|condition| {
            let told = conditions.iter().find(|told| told["type"] == condition.name())?;
            let wanted = match condition.holds(&progress) {
                Some(true) => "True",
                Some(false) => "False",
                None => "Unknown",
            };
            (told["status"] != wanted).then(|| format!("{} is {}, not {wanted}", condition.name(), told["status"]))
        });
        wrong.next().map(|wrong| format!("{}: {wrong}", change.key))
    },
};

pub(super) const EVENTS: ChangeRule = ChangeRule {
    name: "events_say_what_was",
    says: "an Event about a Release names a phase that the release has been in",
    check: |seen, change| {
        let event = change.after.as_ref().filter(|_| change.key.kind == Kind::Event && is_operator(change))?;
        let about = &event.value["regarding"];
        let reason = event.value["reason"].as_str()?;
        if about["kind"] != "Release" || !Phase::ALL.iter().any(|phase| phase.name() == reason) {
            return None;
        }
        let key = (about["namespace"].as_str()?.to_owned(), about["name"].as_str()?.to_owned());
        let was = seen.phases.get(&key).is_some_and(|phases| phases.contains(reason));
        (!was).then(|| format!("{} {} was never {reason}", key.0, key.1))
    },
};

pub(super) const SUCCESS: ChangeRule = ChangeRule {
    name: "success_is_no_claim",
    says: "a release that succeeded names nobody as well whose pods cannot be well with the versions that they have",
    check: |seen, change| {
        let release = ends_as(change, &[Phase::Succeeded])?;
        let is_well = |record: &&Record| record.state == State::Ready && record.unjudged.is_none();
        let mut well = release.progress.consumers.iter().filter(is_well);
        well.find_map(|record| {
            let kind = Kind::ALL.into_iter().find(|kind| kind.kind() == record.consumer.kind)?;
            let workload = seen.get(kind, &change.key.namespace, &record.consumer.name)?;
            // Somebody changed it a moment ago: the release cannot have seen that.
            if was_touched(seen, &workload.key) || record.health.desired == 0 {
                return None;
            }
            let bad = bad_content(seen, workload, &release).filter(|_| is_bad(seen, workload))?;
            Some(format!("{}: {} is said to be well, and reads {bad}", change.key, record.consumer))
        })
    },
};

/// Whether its pods cannot become ready with all that they read: of two configs that say how to behave, the one may hide the other.
fn is_bad(seen: &Seen, workload: &Object) -> bool {
    let (namespace, pins) = (&workload.key.namespace, pins(workload));
    let find = |key: &Key| {
        let config = ConfigRef::new(config_kind(key.kind)?, key.name.as_str());
        let baseline = || table(seen, namespace)?.get(&config)?.baseline.clone();
        let name = pinned(&pins, &config).or_else(baseline).unwrap_or_else(|| key.name.clone());
        seen.get(key.kind, namespace, &name).cloned()
    };
    cannot_be_ready(&template(workload)["spec"], namespace, &find)
}

/// What a consumer reads by which its pods cannot become ready.
fn bad_content(seen: &Seen, workload: &Object, release: &Release) -> Option<String> {
    let pins = pins(workload);
    let used = lockstep_core::keys::used_keys(&template(workload)["spec"]);
    let moved: BTreeSet<&ConfigRef> = release.configs().collect();
    used.keys().filter(|config| moved.contains(config)).find_map(|config| {
        let object = pinned(&pins, config)?;
        let version =
            seen.objects.get(&source_key(&workload.key.namespace, &ConfigRef::new(config.kind, object.as_str())))?;
        let behavior = behavior(version)?;
        ["crash", "never-ready"].contains(&behavior.as_str()).then(|| format!("{object}, with BEHAVIOR={behavior}"))
    })
}

/// What a config makes of pods.
fn behavior(config: &Object) -> Option<String> {
    let text = config.value["data"]["BEHAVIOR"].as_str()?;
    if config.key.kind == Kind::Secret {
        let known = ["crash", "never-ready", "healthy"];
        return known.into_iter().find(|word| crate::scene::base64(word.as_bytes()) == text).map(str::to_owned);
    }
    Some(text.to_owned())
}

pub(super) const BACK: ChangeRule = ChangeRule {
    name: "back_is_back",
    says: "a release that was rolled back or aborted leaves nobody with the versions that it moved to, but whom it names",
    check: |seen, change| {
        let release = ends_as(change, &[Phase::RolledBack, Phase::Aborted])?;
        let is_back = |record: &&Record| record.state == State::Restored;
        release.progress.consumers.iter().filter(is_back).find_map(|record| {
            let kind = Kind::ALL.into_iter().find(|kind| kind.kind() == record.consumer.kind)?;
            let key = Key::new(kind, &change.key.namespace, &record.consumer.name);
            let workload = seen.objects.get(&key).filter(|_| !was_touched(seen, &key))?;
            let now = pins(workload);
            // What is current all the time is no version that it moved to: whoever has it is back.
            let is_its = |step: &&Move| step.from != step.to && record.configs.contains(&step.config);
            let steps = release.moves.iter().filter(is_its);
            let mut left = steps.filter(|step| {
                let before = pinned(&record.pins_before, &step.config);
                pinned(&now, &step.config).as_ref() == Some(&step.to) && before.as_ref() != Some(&step.to)
            });
            let step = left.next()?;
            Some(format!("{}: {} is said to be restored, and is pinned to {}", change.key, record.consumer, step.to))
        })
    },
};

/// The release, if this write ends it in one of these phases.
fn ends_as(change: &Change, phases: &[Phase]) -> Option<Release> {
    let after = change.after.as_ref().filter(|_| change.key.kind == Kind::Release)?;
    let was = change.before.as_ref().map(|before| phase(before));
    let is = phase(after);
    (phases.contains(&is) && was != Some(is)).then(|| release(after)).flatten()
}

/// How long a change may take to be seen: watches may stall for as long.
pub(super) const LAG_SECONDS: i64 = 60;

fn was_touched(seen: &Seen, workload: &Key) -> bool {
    let touched = seen.touched.get(workload).and_then(|touched| touched.at_all);
    touched.is_some_and(|at| seen.now.duration_since(at).as_secs() < LAG_SECONDS)
}

fn both(change: &Change) -> Option<(&Object, &Object)> {
    let (before, after) = (change.before.as_ref()?, change.after.as_ref()?);
    (change.key.kind == Kind::Release).then_some((before, after))
}

fn is_operator(change: &Change) -> bool {
    matches!(change.by, Writer::Operator(_))
}
