//! Rules about versions, their names, and the table that names them.

use std::collections::BTreeMap;

use lockstep_core::{ConfigRef, names};

use super::reading::{Version, controller, managed, pinned, pins, source_key, table};
use super::seen::Said;
use super::{ChangeRule, Seen};
use crate::kinds::Kind;
use crate::store::{Object, Writer};

pub(super) const NEVER_CHANGE: ChangeRule = ChangeRule {
    name: "a_version_never_changes",
    says: "the content of a version is the same for as long as it exists",
    check: |_, change| {
        let (before, after) = (change.before.as_ref()?, change.after.as_ref()?);
        Version::read(before)?;
        let is_same =
            ["data", "binaryData", "immutable"].iter().all(|field| before.value[*field] == after.value[*field]);
        (!is_same).then(|| format!("{} of {} is another now", change.key.name, change.key.namespace))
    },
};

pub(super) const ONE_CONTENT_PER_NAME: ChangeRule = ChangeRule {
    name: "a_name_stands_for_one_content",
    says: "the name of a version is never given to other content, for as long as its VersionedConfig lives",
    check: |seen, change| {
        let after = change.after.as_ref()?;
        let version = Version::read(after)?;
        let name = version.name?;
        let known = seen.given.get(&(change.key.namespace.clone(), version.config.clone()))?.get(name)?;
        (*known != change.key.name)
            .then(|| format!("{name} of {} was {known}, and now is {}", version.config, change.key.name))
    },
};

pub(super) const RIGHT_AUTHOR: ChangeRule = ChangeRule {
    name: "a_version_has_its_own_author",
    says: "a version names the person who wrote that content, and their reason",
    check: |seen, change| {
        let after = change.after.as_ref()?;
        let version = Version::read(after).filter(|version| version.name.is_some())?;
        let had_name = change.before.as_ref().and_then(|before| Version::read(before)?.name.map(drop)).is_some();
        let said = seen.said.get(&source_key(&change.key.namespace, &version.config))?;
        let told = Said {
            data: after.value["data"].clone(),
            changed_by: after.annotation(names::CHANGED_BY).map(str::to_owned),
            reason: after.annotation(names::REASON).map(str::to_owned),
        };
        if had_name || said.contains(&told) {
            return None;
        }
        let who = |said: &Said| (said.changed_by.clone(), said.reason.clone());
        let really: Vec<_> = said.iter().filter(|said| said.data == told.data).map(who).collect();
        Some(format!("{} says {:?}, and it was one of {really:?}", change.key, who(&told)))
    },
};

pub(super) const IN_USE: ChangeRule = ChangeRule {
    name: "nothing_in_use_is_deleted",
    says: "a version stays for as long as a pod, a template, an old template, or the table needs it",
    check: |seen, change| {
        let before = change.before.as_ref().filter(|_| change.after.is_none())?;
        let version = Version::read(before)?;
        if matches!(change.by, Writer::User(_)) || !seen.is_there(&change.key.namespace) {
            return None;
        }
        // Who deletes both, the config and its VersionedConfig, loses what only they keep: users are written down as owners a while later,
        // and so is a keeper that was made anew.
        let is_collected = matches!(change.by, Writer::Controller);
        if is_collected && !is_kept(seen, before, &version.config) && !has_old_user(seen, before, &version.config) {
            return None;
        }
        let user = user_of(seen, before, &version.config)?;
        Some(format!("{} is deleted, and {user} needs it", change.key))
    },
};

/// How long it may take until whoever runs or keeps a version is among its owners.
const OWNERS_SECONDS: i64 = 120;

fn is_old(seen: &Seen, since: Option<jiff::Timestamp>) -> bool {
    since.is_some_and(|since| seen.now.duration_since(since).as_secs() >= OWNERS_SECONDS)
}

/// Whether anybody keeps a version who is among its owners, or must be by now.
fn is_kept(seen: &Seen, version: &Object, config: &ConfigRef) -> bool {
    let namespace = &version.key.namespace;
    let source = seen.objects.get(&source_key(namespace, config));
    let mut keepers = managed(seen, namespace, config).into_iter().chain(source);
    keepers.any(|keeper| {
        let created = keeper.value["metadata"]["creationTimestamp"].as_str().and_then(|text| text.parse().ok());
        version.owners().any(|owner| owner["uid"] == keeper.uid()) || is_old(seen, created)
    })
}

/// Whether something has made pods from a version, or could, for so long that it must be among the owners.
fn has_old_user(seen: &Seen, version: &Object, config: &ConfigRef) -> bool {
    let namespace = &version.key.namespace;
    let holders = [Kind::ReplicaSet, Kind::ControllerRevision, Kind::Job, Kind::CronJob, Kind::ReplicationController];
    let mut all = holders.into_iter().flat_map(|kind| seen.list(kind, namespace));
    all.any(|holder| {
        let needs = pinned(&pins(holder), config).as_ref() == Some(&version.key.name);
        let is_old = is_old(seen, seen.pinned_since.get(&holder.key).copied());
        needs && is_old && !holder.is_deleted() && !is_left_over(seen, holder)
    })
}

/// Who needs a version.
pub(super) fn user_of(seen: &Seen, version: &Object, config: &ConfigRef) -> Option<String> {
    let (namespace, name) = (&version.key.namespace, &version.key.name);
    let is_named = |pod: &Object| {
        let references = lockstep_core::references::references(&pod.value["spec"]);
        references.iter().any(|reference| reference.config.kind == config.kind && reference.config.name == *name)
    };
    let runs = |pod: &&std::sync::Arc<Object>| {
        let phase = pod.value["status"]["phase"].as_str().unwrap_or_default();
        !pod.is_deleted() && !["Succeeded", "Failed"].contains(&phase) && is_named(pod) && !is_left_over(seen, pod)
    };
    if let Some(pod) = seen.list(Kind::Pod, namespace).find(runs) {
        return Some(pod.key.to_string());
    }
    let holders = Kind::ALL.into_iter().filter(|kind| kind.template().is_some());
    let mut holders = holders.flat_map(|kind| seen.list(kind, namespace));
    let holds = |holder: &&std::sync::Arc<Object>| {
        !holder.is_deleted() && !is_left_over(seen, holder) && pinned(&pins(holder), config).as_ref() == Some(name)
    };
    if let Some(holder) = holders.find(holds) {
        return Some(format!("the template of {}", holder.key));
    }
    let entry = table(seen, namespace)?.get(config)?;
    let wanted = [("current", &entry.current), ("next", &entry.next), ("moving", &entry.moving)];
    let column = wanted.into_iter().find(|(_, object)| object.as_ref() == Some(name))?.0;
    managed(seen, namespace, config)?;
    Some(format!("the table ({column} of {config})"))
}

/// Whether it will run or make no pods again: it has ended, or whoever made it is gone, and Kubernetes' garbage collector is about to come. That
/// takes a version and the pods that ran it in any order.
fn is_left_over(seen: &Seen, holder: &Object) -> bool {
    let has_ended = |condition: &serde_json::Value| {
        ["Complete", "Failed"].contains(&condition["type"].as_str().unwrap_or_default())
            && condition["status"] == "True"
    };
    if holder.key.kind == Kind::Job {
        return holder.value["status"]["conditions"].as_array().into_iter().flatten().any(has_ended);
    }
    let Some(owner) = controller(holder) else { return false };
    let kind = Kind::of(owner["apiVersion"].as_str().unwrap_or_default(), owner["kind"].as_str().unwrap_or_default());
    let found = kind.and_then(|kind| seen.get(kind, &holder.key.namespace, owner["name"].as_str().unwrap_or_default()));
    found.is_none_or(|found| found.is_deleted() || owner["uid"] != found.uid())
}

pub(super) const TABLE: ChangeRule = ChangeRule {
    name: "the_table_names_what_exists",
    says: "a version is there before the table names it",
    check: |seen, change| {
        let after = change.after.as_ref().filter(|_| change.key.kind == Kind::PinTable)?;
        if !matches!(change.by, Writer::Operator(_) | Writer::Webhook(_)) {
            return None;
        }
        let before = change.before.as_ref().map(|table| columns(table)).unwrap_or_default();
        let news = columns(after).into_iter().filter(|(place, object)| before.get(place) != Some(object));
        let is_missing = |(column, config, object): &(String, ConfigRef, String)| {
            let key = source_key(&change.key.namespace, &ConfigRef::new(config.kind, object.as_str()));
            let _ = column;
            !seen.objects.contains_key(&key)
        };
        let mut news = news.map(|((column, config), object)| (column, config, object));
        let (column, config, object) = news.find(is_missing)?;
        Some(format!("it names {object} as {column} of {config} in {}, and there is none", change.key.namespace))
    },
};

/// All that a table names, by column and config.
pub(super) fn columns(table: &Object) -> BTreeMap<(String, ConfigRef), String> {
    let mut found = BTreeMap::new();
    for column in ["baseline", "current", "next", "moving"] {
        for (config, object) in table.value["spec"][column].as_object().into_iter().flatten() {
            if let (Ok(config), Some(object)) = (config.parse(), object.as_str()) {
                found.insert((column.to_owned(), config), object.to_owned());
            }
        }
    }
    found
}
