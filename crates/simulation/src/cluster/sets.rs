//! The ReplicaSets of a Deployment or of a Rollout, which are much alike.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::read::{self, count, count_or};
use super::turn::{Turn, controller_reference, hash};
use crate::kinds::{Key, Kind};
use crate::store::{Object, Propagation, Refusal};

/// What ReplicaSets and their pods are told apart by.
pub(super) const HASH: &str = "pod-template-hash";

/// The annotations in which a controller keeps its accounts.
pub(super) struct Words {
    pub(super) revision: &'static str,
    pub(super) history: &'static str,
    pub(super) desired: &'static str,
    pub(super) max: Option<&'static str>,
}

pub(super) const DEPLOYMENT: Words = Words {
    revision: "deployment.kubernetes.io/revision",
    history: "deployment.kubernetes.io/revision-history",
    desired: "deployment.kubernetes.io/desired-replicas",
    max: Some("deployment.kubernetes.io/max-replicas"),
};

pub(super) const ROLLOUT: Words = Words {
    revision: "rollout.argoproj.io/revision",
    history: "rollout.argoproj.io/revision-history",
    desired: "rollout.argoproj.io/desired-replicas",
    max: None,
};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

impl Words {
    fn is_own(&self, name: &str) -> bool {
        let own = [LAST_APPLIED, self.revision, self.history, self.desired];
        own.contains(&name) || self.max == Some(name) || name == "rollout.argoproj.io/workload-generation"
    }
}

#[derive(Clone)]
pub(super) struct Set(pub(super) Arc<Object>);

impl Set {
    /// How many pods it is asked for.
    pub(super) fn wanted(&self) -> u32 {
        count_or(&self.0.value["spec"]["replicas"], 1)
    }

    /// How many it has, by its own account.
    pub(super) fn current(&self) -> u32 {
        count(&self.0.value["status"]["replicas"])
    }

    pub(super) fn ready(&self) -> u32 {
        count(&self.0.value["status"]["readyReplicas"])
    }

    pub(super) fn available(&self) -> u32 {
        count(&self.0.value["status"]["availableReplicas"])
    }

    pub(super) fn hash(&self) -> &str {
        read::label(&self.0, HASH)
    }

    pub(super) fn uid(&self) -> &str {
        self.0.uid()
    }

    pub(super) fn revision(&self, words: &Words) -> u64 {
        read::annotation(&self.0, words.revision).parse().unwrap_or(0)
    }

    pub(super) fn age(&self) -> (&str, &str) {
        (read::created(&self.0), &self.0.key.name)
    }

    fn is_idle(&self) -> bool {
        let observed = self.0.value["status"]["observedGeneration"].as_u64().unwrap_or(0);
        self.wanted() == 0 && self.current() == 0 && observed >= read::generation(&self.0) && !read::is_going(&self.0)
    }
}

pub(super) fn total(sets: &[Set], of: impl Fn(&Set) -> u32) -> u32 {
    sets.iter().map(of).sum()
}

/// All ReplicaSets of an owner, the oldest first.
pub(super) fn all(turn: &mut Turn<'_>, owner: &Object) -> Result<Vec<Set>, Refusal> {
    let mut sets: Vec<Set> = turn.claim(owner, Kind::ReplicaSet)?.into_iter().map(Set).collect();
    sets.sort_by(|one, other| one.age().cmp(&other.age()));
    Ok(sets)
}

/// Takes out the one whose template is this one: the oldest, if there are several.
pub(super) fn split(mut sets: Vec<Set>, template: &Value) -> (Option<Set>, Vec<Set>) {
    let place = sets.iter().position(|set| is_same(&set.0.value["spec"]["template"], template));
    (place.map(|place| sets.remove(place)), sets)
}

/// Whether two templates are equal but for the hash that one of them carries, and for what the API server fills in: it does so for a ReplicaSet,
/// and not for a Rollout.
fn is_same(one: &Value, other: &Value) -> bool {
    let (one_meta, other_meta) = (&one["metadata"], &other["metadata"]);
    is_same_map(&one["spec"], &other["spec"])
        && is_same_map(&one_meta["annotations"], &other_meta["annotations"])
        && is_same_map(&one_meta["labels"], &other_meta["labels"])
}

fn is_same_map(one: &Value, other: &Value) -> bool {
    fn entries(map: &Value) -> impl Iterator<Item = (&String, &Value)> {
        map.as_object().into_iter().flatten().filter(|(name, value)| !is_made_up(name, value))
    }
    entries(one).eq(entries(other))
}

fn is_made_up(name: &str, value: &Value) -> bool {
    match name {
        HASH => true,
        "restartPolicy" => value == "Always",
        "terminationGracePeriodSeconds" => value == 30,
        _ => false,
    }
}

/// How a ReplicaSet is to be made.
pub(super) struct Plan<'a> {
    pub(super) owner: &'a Object,
    pub(super) template: &'a Value,
    pub(super) words: &'static Words,
    pub(super) replicas: u32,
    pub(super) revision: u64,
    pub(super) scale: Scale,
}

/// What its owner wants, which is noted on each of its ReplicaSets: so that it can tell a change of scale from a rollout.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    pub(super) desired: u32,
    pub(super) max: u32,
}

pub(super) enum Made {
    New(Set),
    /// It was there already.
    Old(Set),
    /// Another one has its name: another name is to be tried.
    Collision(Refusal),
}

pub(super) fn make(turn: &mut Turn<'_>, plan: &Plan<'_>) -> Result<Made, Refusal> {
    let owner = plan.owner;
    let collisions = count(&owner.value["status"]["collisionCount"]);
    let hash = hash(plan.template, collisions);
    let name = format!("{}-{hash}", owner.key.name);
    let key = Key::new(Kind::ReplicaSet, &owner.key.namespace, &name);
    if let Some(existing) = turn.get(&key) {
        let is_ours = read::is_controlled_by(&existing, owner.uid())
            && is_same(&existing.value["spec"]["template"], plan.template);
        return Ok(if is_ours { Made::Old(Set(existing)) } else { Made::Collision(Refusal::exists(&key)) });
    }
    let mut template = plan.template.clone();
    template["metadata"]["labels"][HASH] = Value::String(hash.clone());
    let mut selector = owner.value["spec"]["selector"].clone();
    selector["matchLabels"][HASH] = Value::String(hash);
    let mut annotations = Map::new();
    annotate(&mut annotations, plan);
    note_scale(&mut annotations, plan.words, plan.scale);
    let object = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {
            "name": name, "namespace": owner.key.namespace, "labels": template["metadata"]["labels"],
            "annotations": annotations, "ownerReferences": [controller_reference(owner)],
        },
        "spec": {
            "replicas": plan.replicas, "minReadySeconds": count(&owner.value["spec"]["minReadySeconds"]),
            "selector": selector, "template": template,
        },
    });
    Ok(Made::New(Set(turn.create(object)?)))
}

/// Brings the annotations and `minReadySeconds` of the ReplicaSet in use up to date. Some if it changed.
pub(super) fn refresh(turn: &mut Turn<'_>, set: &Set, plan: &Plan<'_>) -> Result<Option<Set>, Refusal> {
    let old = set.0.value["metadata"]["annotations"].as_object();
    let mut annotations = old.cloned().unwrap_or_default();
    annotate(&mut annotations, plan);
    let min_ready = count(&plan.owner.value["spec"]["minReadySeconds"]);
    if old.is_some_and(|old| old == &annotations) && count(&set.0.value["spec"]["minReadySeconds"]) == min_ready {
        return Ok(None);
    }
    let patch = json!({"metadata": {"annotations": annotations}, "spec": {"minReadySeconds": min_ready}});
    Ok(Some(Set(turn.patch(&set.0.key, patch)?)))
}

/// Copies the owner's annotations, and counts revisions. A ReplicaSet that is gone back to gets the number of a new one.
fn annotate(annotations: &mut Map<String, Value>, plan: &Plan<'_>) {
    let of_owner = plan.owner.value["metadata"]["annotations"].as_object().into_iter().flatten();
    for (name, value) in of_owner.filter(|(name, _)| !plan.words.is_own(name)) {
        annotations.insert(name.clone(), value.clone());
    }
    let known = annotations.get(plan.words.revision).and_then(Value::as_str).map(str::to_owned);
    let number: u64 = known.as_deref().and_then(|known| known.parse().ok()).unwrap_or(0);
    if number >= plan.revision {
        return;
    }
    annotations.insert(plan.words.revision.to_owned(), json!(plan.revision.to_string()));
    if let Some(known) = known {
        let before = annotations.get(plan.words.history).and_then(Value::as_str);
        let history = before.map_or_else(|| known.clone(), |before| format!("{before},{known}"));
        annotations.insert(plan.words.history.to_owned(), json!(history));
    }
}

fn note_scale(annotations: &mut Map<String, Value>, words: &Words, scale: Scale) {
    annotations.insert(words.desired.to_owned(), json!(scale.desired.to_string()));
    if let Some(max) = words.max {
        annotations.insert(max.to_owned(), json!(scale.max.to_string()));
    }
}

/// Asks a ReplicaSet for another number of pods, and says whether that was another one.
pub(super) fn scale(turn: &mut Turn<'_>, set: &mut Set, to: u32, words: &Words, scale: Scale) -> Result<bool, Refusal> {
    if set.wanted() == to {
        return Ok(false);
    }
    write_scale(turn, set, to, words, scale)?;
    Ok(true)
}

/// As above, and notes what the owner wants also where the number stays.
pub(super) fn write_scale(
    turn: &mut Turn<'_>,
    set: &mut Set,
    to: u32,
    words: &Words,
    scale: Scale,
) -> Result<(), Refusal> {
    let mut annotations = Map::new();
    note_scale(&mut annotations, words, scale);
    let patch = json!({"metadata": {"annotations": annotations}, "spec": {"replicas": to}});
    set.0 = turn.patch(&set.0.key, patch)?;
    Ok(())
}

/// Whether the owner wants another number of pods than when one of its ReplicaSets was last scaled.
pub(super) fn is_scaling<'a>(sets: impl IntoIterator<Item = &'a Set>, words: &Words, desired: u32) -> bool {
    let noted = |set: &Set| read::annotation(&set.0, words.desired).parse::<u32>().ok();
    sets.into_iter().filter(|set| set.wanted() > 0).any(|set| noted(set).is_some_and(|noted| noted != desired))
}

/// Deletes the oldest ReplicaSets that nobody needs but for going back, as far as there are too many.
pub(super) fn clean_up(
    turn: &mut Turn<'_>,
    old: &[Set],
    limit: usize,
    by: impl Fn(&Set) -> u64,
) -> Result<(), Refusal> {
    let mut old: Vec<&Set> = old.iter().filter(|set| !read::is_going(&set.0)).collect();
    let Some(too_many) = old.len().checked_sub(limit) else { return Ok(()) };
    old.sort_by_key(|set| by(set));
    for set in old.into_iter().take(too_many).filter(|set| set.is_idle()) {
        turn.delete(&set.0, Propagation::Background)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_compared_without_their_hash_and_with_their_annotations() {
        let template = |labels: Value, pins: &str| json!({"metadata": {"labels": labels, "annotations": {"pins": pins}}, "spec": {"a": 1}});
        let plain = template(json!({"app": "web"}), "1");
        assert!(is_same(&plain, &template(json!({"app": "web", HASH: "abc"}), "1")));
        assert!(!is_same(&plain, &template(json!({"app": "web"}), "2")));
        let bare = json!({"metadata": {"labels": {"app": "web"}}, "spec": {}});
        let empty = json!({"metadata": {"labels": {"app": "web"}, "annotations": {}}, "spec": {}});
        assert!(is_same(&bare, &empty));
    }
}
