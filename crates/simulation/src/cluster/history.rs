//! ControllerRevisions: what the templates of StatefulSets and DaemonSets were.

use std::sync::Arc;

use serde_json::{Value, json};

use super::read::{self, count, count_or, text};
use super::turn::{Turn, controller_reference, hash};
use crate::kinds::{Key, Kind};
use crate::store::{Object, Propagation, Refusal};

/// How many names are tried for a revision before its controller gives up for this turn.
const TRIES: u32 = 5;

/// The label of a DaemonSet's revision and of its pods; on a StatefulSet's pods it holds the revision's name.
pub(super) const REVISION: &str = "controller-revision-hash";
/// The label of a StatefulSet's revision.
const HASH: &str = "controller.kubernetes.io/hash";

/// The revisions of a set, the oldest first; the one of its template is the last.
pub(super) fn revisions(turn: &mut Turn<'_>, owner: &Object) -> Result<Vec<Arc<Object>>, Refusal> {
    let mut revisions = turn.claim(owner, Kind::ControllerRevision)?;
    revisions.sort_by(|one, other| age(one).cmp(&age(other)));
    let template = &owner.value["spec"]["template"];
    let newest = revisions.last().map_or(0, |last| number(last));
    let current = match revisions.iter().rposition(|revision| is_of(revision, template)) {
        Some(place) if place + 1 == revisions.len() => return Ok(revisions),
        Some(place) => {
            // Its template went back to an earlier one, which counts as the newest from now on.
            let old = revisions.remove(place);
            turn.patch(&old.key, json!({"revision": newest + 1}))?
        }
        None => make(turn, owner, newest + 1)?,
    };
    revisions.push(current);
    Ok(revisions)
}

fn number(revision: &Object) -> u64 {
    revision.value["revision"].as_u64().unwrap_or(0)
}

fn age(revision: &Object) -> (u64, &str, &str) {
    (number(revision), read::created(revision), &revision.key.name)
}

/// What kubectl would patch a set with to go back.
fn data(template: &Value) -> Value {
    let mut template = template.clone();
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

/// Whether a revision keeps this template.
fn is_of(revision: &Object, template: &Value) -> bool {
    fn fields(template: &Value) -> impl Iterator<Item = (&String, &Value)> {
        template.as_object().into_iter().flatten().filter(|(name, _)| *name != "$patch")
    }
    fields(&revision.value["data"]["spec"]["template"]).eq(fields(template))
}

/// The template that a revision keeps.
pub(super) fn template(revision: &Object) -> Value {
    let mut template = revision.value["data"]["spec"]["template"].clone();
    if let Some(template) = template.as_object_mut() {
        template.remove("$patch");
    }
    template
}

fn make(turn: &mut Turn<'_>, owner: &Object, number: u64) -> Result<Arc<Object>, Refusal> {
    let template = &owner.value["spec"]["template"];
    let collisions = count(&owner.value["status"]["collisionCount"]);
    for collision in collisions..collisions + TRIES {
        let hash = hash(template, collision);
        let name = format!("{}-{hash}", owner.key.name);
        match turn.get(&Key::new(Kind::ControllerRevision, &owner.key.namespace, &name)) {
            // Perhaps of a set that had this name before, and whose revisions have not gone yet.
            Some(existing) if is_of(&existing, template) => return Ok(existing),
            Some(_) => {}
            None => return turn.create(revision(owner, &name, &hash, number)),
        }
    }
    Err(Refusal::exists(&owner.key))
}

fn revision(owner: &Object, name: &str, hash: &str, number: u64) -> Value {
    let template = &owner.value["spec"]["template"];
    let mut labels = template["metadata"]["labels"].clone();
    labels[if owner.key.kind == Kind::DaemonSet { REVISION } else { HASH }] = json!(hash);
    json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision",
        "metadata": {
            "name": name, "namespace": owner.key.namespace, "labels": labels,
            "annotations": owner.value["metadata"].get("annotations").cloned().unwrap_or_else(|| json!({})),
            "ownerReferences": [controller_reference(owner)],
        },
        "data": data(template), "revision": number,
    })
}

/// Deletes the oldest revisions that no pod runs, as far as there are too many.
pub(super) fn clean_up(
    turn: &mut Turn<'_>,
    owner: &Object,
    revisions: &[Arc<Object>],
    is_live: impl Fn(&Object) -> bool,
) -> Result<(), Refusal> {
    let limit = usize::try_from(count_or(&owner.value["spec"]["revisionHistoryLimit"], 10)).unwrap_or(usize::MAX);
    if revisions.len() <= limit {
        return Ok(());
    }
    let dead: Vec<&Arc<Object>> = revisions.iter().filter(|revision| !is_live(revision)).collect();
    for revision in dead.iter().take(dead.len().saturating_sub(limit)) {
        turn.delete(revision, Propagation::Background)?;
    }
    Ok(())
}

/// Which revision a pod runs: its name for a StatefulSet, its hash for a DaemonSet.
pub(super) fn of_pod(pod: &Object) -> &str {
    text(&pod.value["metadata"]["labels"][REVISION])
}
