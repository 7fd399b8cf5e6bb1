//! The garbage collector: what nobody owns any more goes, and what goes takes along what it owns, or leaves it behind.

use serde_json::{Value, json};

use super::read::{has_finalizer, is_going, items};
use super::turn::Turn;
use crate::kinds::{Key, Kind};
use crate::store::{Object, Propagation, Refusal, Store};

pub(super) const FOREGROUND: &str = "foregroundDeletion";
pub(super) const ORPHAN: &str = "orphan";

/// What an owner is to an object.
#[derive(PartialEq, Eq)]
enum Hold {
    /// It is there.
    Solid,
    /// It is gone.
    Dangling,
    /// It waits for its dependents to go before it does.
    Waiting,
}

pub(super) fn sync(turn: &mut Turn<'_>, key: &Key) -> Result<(), Refusal> {
    let Some(object) = turn.get(key) else { return Ok(()) };
    if !is_going(&object) {
        return judge(turn, &object);
    }
    if has_finalizer(&object, ORPHAN) {
        leave_behind(turn, &object)?;
        return finish(turn, &object, ORPHAN);
    }
    if has_finalizer(&object, FOREGROUND) && !blocks(turn.store, &object) {
        return finish(turn, &object, FOREGROUND);
    }
    Ok(())
}

/// Whether it has an owner that is gone, or about to go: then there is something to do.
pub(super) fn is_loose(store: &Store, object: &Object) -> bool {
    object.owners().any(|owner| hold(store, object, owner) != Hold::Solid)
}

fn hold(store: &Store, object: &Object, owner: &Value) -> Hold {
    let text = |name: &str| owner[name].as_str().unwrap_or_default();
    // Who knows what a kind is that nobody knows: it holds.
    let Some(kind) = Kind::of(text("apiVersion"), text("kind")) else { return Hold::Solid };
    let namespace = if kind.is_namespaced() { object.key.namespace.as_str() } else { "" };
    match store.get(&Key::new(kind, namespace, text("name"))).filter(|found| found.uid() == text("uid")) {
        None => Hold::Dangling,
        Some(found) if is_going(found) && has_finalizer(found, FOREGROUND) => Hold::Waiting,
        Some(_) => Hold::Solid,
    }
}

/// Deletes what no owner holds any more. Where one does, references to those that are gone are taken away.
fn judge(turn: &mut Turn<'_>, object: &Object) -> Result<(), Refusal> {
    let (solid, loose): (Vec<&Value>, Vec<&Value>) =
        object.owners().partition(|owner| hold(turn.store, object, owner) == Hold::Solid);
    if loose.is_empty() {
        return Ok(());
    }
    if !solid.is_empty() {
        let patch = json!({"metadata": {"ownerReferences": solid}});
        turn.patch(&object.key, patch)?;
        return Ok(());
    }
    let is_waited_for = loose.iter().any(|owner| hold(turn.store, object, owner) == Hold::Waiting);
    let has_dependents = turn.store.owned_by(object.uid()).next().is_some();
    let propagation = if is_waited_for && has_dependents { Propagation::Foreground } else { Propagation::Background };
    turn.delete(object, propagation)
}

/// Whether something that it owns is still there, and says that it has to wait for it.
fn blocks(store: &Store, object: &Object) -> bool {
    let uid = object.uid();
    let is_blocking =
        |dependent: &Object| dependent.owners().any(|owner| owner["uid"] == uid && owner["blockOwnerDeletion"] == true);
    store.owned_by(uid).any(|dependent| is_blocking(dependent))
}

/// Takes itself out of the owners of what it owns.
fn leave_behind(turn: &mut Turn<'_>, object: &Object) -> Result<(), Refusal> {
    let dependents: Vec<_> = turn.store.owned_by(object.uid()).cloned().collect();
    for dependent in dependents {
        let others: Vec<&Value> = dependent.owners().filter(|owner| owner["uid"] != object.uid()).collect();
        turn.patch(&dependent.key, json!({"metadata": {"ownerReferences": others}}))?;
    }
    Ok(())
}

fn finish(turn: &mut Turn<'_>, object: &Object, finalizer: &str) -> Result<(), Refusal> {
    let others: Vec<&Value> =
        items(&object.value["metadata"]["finalizers"]).filter(|found| *found != finalizer).collect();
    turn.patch(&object.key, json!({"metadata": {"finalizers": others}}))?;
    Ok(())
}
