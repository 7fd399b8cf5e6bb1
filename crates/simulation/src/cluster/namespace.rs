//! Namespaces that go: first their pods, then everything else, then they themselves.

use std::sync::Arc;

use super::read::is_going;
use super::turn::Turn;
use crate::kinds::{Key, Kind};
use crate::store::{Object, Propagation, Refusal};

pub(super) fn sync(turn: &mut Turn<'_>, key: &Key) -> Result<(), Refusal> {
    let Some(namespace) = turn.get(key).filter(|namespace| is_going(namespace)) else { return Ok(()) };
    let pods = inside(turn, &key.name, |kind| kind == Kind::Pod);
    let left = if pods.is_empty() { inside(turn, &key.name, |kind| kind != Kind::Pod) } else { pods };
    if left.is_empty() {
        return turn.end(&namespace);
    }
    // Whoever takes its time, or waits for a finalizer, wakes us when it is gone.
    for object in left {
        turn.delete(&object, Propagation::Background)?;
    }
    Ok(())
}

fn inside(turn: &Turn<'_>, namespace: &str, is_meant: impl Fn(Kind) -> bool) -> Vec<Arc<Object>> {
    let kinds = Kind::ALL.into_iter().filter(|kind| kind.is_namespaced() && is_meant(*kind));
    kinds.flat_map(|kind| turn.store.list(kind, Some(namespace)).cloned()).collect()
}
