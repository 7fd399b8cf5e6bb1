//! The node controller: what becomes of the pods of a node that nobody hears of.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::daemon_set::node_name;
use super::manners::Manners;
use super::read::{self, after, controller, is_going};
use super::turn::Turn;
use crate::kinds::Kind;
use crate::store::{Object, Propagation, Refusal, Store};

/// Since when each node is lost, and which of them everybody knows to be lost.
#[derive(Default)]
pub(super) struct Nodes {
    pub(super) lost: BTreeMap<usize, Timestamp>,
    pub(super) gone: Vec<usize>,
}

impl Nodes {
    pub(super) fn sync(&mut self, turn: &mut Turn<'_>, node: usize, manners: &Manners) -> Result<(), Refusal> {
        let Some(lost) = self.lost.get(&node) else { return Ok(()) };
        let known = after(*lost, manners.node_grace);
        let evicted = after(known, manners.eviction);
        if turn.now < known {
            turn.again_at(known);
            return Ok(());
        }
        if !self.gone.contains(&node) {
            self.gone.push(node);
        }
        let pods = pods_on(turn.store, node);
        if turn.now < evicted {
            turn.again_at(evicted);
            return pods.iter().try_for_each(|pod| mark(turn, pod));
        }
        // Those of a DaemonSet have no other place to go.
        let is_evicted = |pod: &&Arc<Object>| controller(pod).is_none_or(|owner| owner["kind"] != "DaemonSet");
        pods.iter().filter(is_evicted).try_for_each(|pod| turn.delete(pod, Propagation::Background))
    }

    pub(super) fn found(&mut self, node: usize) {
        self.lost.remove(&node);
        self.gone.retain(|gone| *gone != node);
    }
}

pub(super) fn pods_on(store: &Store, node: usize) -> Vec<Arc<Object>> {
    let name = node_name(node);
    store.list(Kind::Pod, None).filter(|pod| pod.value["spec"]["nodeName"] == name).cloned().collect()
}

/// Says of a pod that it is not ready. Kubernetes changes nothing else: its containers count as ready, for nobody knows better.
fn mark(turn: &mut Turn<'_>, pod: &Object) -> Result<(), Refusal> {
    if is_going(pod) || !read::is_ready(pod) {
        return Ok(());
    }
    let mut status = pod.value["status"].clone();
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten();
    for ready in conditions.filter(|condition| condition["type"] == "Ready") {
        ready["status"] = json!("False");
        ready["lastTransitionTime"] = json!(read::written(turn.now));
    }
    turn.set_status(pod, status)
}
