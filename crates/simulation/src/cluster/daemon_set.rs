//! DaemonSets: one pod on each node.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::history::{self, REVISION};
use super::read::{self, Round, has_ended, is_available, is_going, is_ready, seconds, share, text};
use super::replica_set::is_namespace_gone;
use super::turn::{Turn, counts, pod_from};
use crate::kinds::{Key, Kind};
use crate::store::{Fields, Object, Propagation, Refusal};

struct View<'a> {
    object: &'a Object,
    spec: &'a Value,
    hash: String,
    /// By node, the oldest first.
    nodes: Vec<Vec<Arc<Object>>>,
    min_ready: Duration,
    surge: u32,
    unavailable: u32,
}

/// What runs on a node: of the template as it is, and of an earlier one.
struct Place<'a> {
    new: Option<&'a Arc<Object>>,
    old: Option<&'a Arc<Object>>,
}

/// The name of a node.
pub(super) fn node_name(node: usize) -> String {
    format!("node-{node}")
}

/// The node that a pod runs on, or may run on only.
pub(super) fn node_of(pod: &Fields) -> Option<usize> {
    let spec = &pod["spec"];
    let affinity = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let wanted = &affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"][0];
    let name = spec["nodeName"].as_str().or_else(|| wanted.as_str())?;
    name.strip_prefix("node-")?.parse().ok()
}

pub(super) fn sync(turn: &mut Turn<'_>, key: &Key) -> Result<(), Refusal> {
    let Some(object) = turn.get(key) else { return Ok(()) };
    // While it goes, its revisions may be going as well.
    let revisions = if is_going(&object) { Vec::new() } else { history::revisions(turn, &object)? };
    let hash = revisions.last().map(|current| read::label(current, REVISION).to_owned()).unwrap_or_default();
    let mut view = View::new(turn, &object, hash)?;
    let done = if is_going(&object) { Ok(()) } else { view.act(turn) };
    if !revisions.is_empty() {
        let live: Vec<&str> = view.pods().map(|pod| history::of_pod(pod)).collect();
        let is_live = |revision: &Object| {
            let hash = read::label(revision, REVISION);
            hash == view.hash || live.contains(&hash)
        };
        history::clean_up(turn, &object, &revisions, is_live)?;
    }
    view.write_status(turn)?;
    if let Some(at) = read::next_available(view.pods().map(AsRef::as_ref), view.min_ready, turn.now) {
        turn.again_at(at);
    }
    done
}

impl<'a> View<'a> {
    fn new(turn: &mut Turn<'_>, object: &'a Object, hash: String) -> Result<Self, Refusal> {
        let mut nodes = vec![Vec::new(); turn.nodes];
        for pod in turn.claim(object, Kind::Pod)? {
            if let Some(on_node) = node_of(&pod.value).and_then(|node| nodes.get_mut(node)) {
                on_node.push(pod);
            }
        }
        for on_node in &mut nodes {
            on_node.sort_by(|one, other| read::created(one).cmp(read::created(other)));
        }
        let spec = &object.value["spec"];
        let (rolling, desired) = (&spec["updateStrategy"]["rollingUpdate"], u32::try_from(turn.nodes).unwrap_or(0));
        let surge = share(&rolling["maxSurge"], desired, Round::Up).unwrap_or(0);
        let unavailable = share(rolling.get("maxUnavailable").unwrap_or(&json!(1)), desired, Round::Up).unwrap_or(0);
        let unavailable = if surge == 0 { unavailable.max(1) } else { unavailable };
        let min_ready = seconds(&spec["minReadySeconds"]);
        Ok(Self { object, spec, hash, nodes, min_ready, surge, unavailable })
    }

    fn pods(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.nodes.iter().flatten()
    }

    fn is_new(&self, pod: &Object) -> bool {
        history::of_pod(pod) == self.hash
    }

    fn is_available(&self, turn: &Turn<'_>, pod: &Object) -> bool {
        is_available(pod, self.min_ready, turn.now)
    }

    fn act(&mut self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let mut has_changed = false;
        for node in 0..self.nodes.len() {
            has_changed |= self.manage(turn, node)?;
        }
        // It waits to see what it asked for before it goes on.
        if has_changed || text(&self.spec["updateStrategy"]["type"]) == "OnDelete" {
            return Ok(());
        }
        if self.surge > 0 { self.roll_with_surge(turn) } else { self.roll(turn) }
    }

    /// Sees to it that a node has its pod. With a surge it may have an old and a new one, as long as the old one works and the new one does not yet.
    fn manage(&self, turn: &mut Turn<'_>, node: usize) -> Result<bool, Refusal> {
        let on_node = &self.nodes[node];
        if let Some(failed) = on_node.iter().find(|pod| has_ended(pod) && !is_going(pod)) {
            turn.delete(failed, Propagation::Background)?;
            return Ok(true);
        }
        let running: Vec<&Arc<Object>> = on_node.iter().filter(|pod| !is_going(pod)).collect();
        if running.is_empty() {
            // Without a surge, the pod that goes must be gone.
            if self.surge > 0 || on_node.is_empty() {
                self.create(turn, node)?;
                return Ok(true);
            }
            return Ok(false);
        }
        let mut excess: Vec<&Arc<Object>> = if self.surge == 0 {
            running.iter().skip(1).copied().collect()
        } else {
            let (new, old): (Vec<_>, Vec<_>) = running.iter().copied().partition(|pod| self.is_new(pod));
            new.iter().skip(1).chain(old.iter().skip(1)).copied().collect()
        };
        let place = self.place(node);
        if let (1.., Some(new), Some(old)) = (self.surge, place.new, place.old)
            && (!is_ready(old) || self.is_available(turn, new))
        {
            excess.push(old);
        }
        for pod in &excess {
            turn.delete(pod, Propagation::Background)?;
        }
        Ok(!excess.is_empty())
    }

    fn place(&self, node: usize) -> Place<'_> {
        let mut here = self.nodes[node].iter().filter(|pod| !is_going(pod));
        let new = here.clone().find(|pod| self.is_new(pod));
        Place { new, old: here.find(|pod| !self.is_new(pod)) }
    }

    /// Deletes old pods, as many as may be missing. Those that do not work are missing already.
    fn roll(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let (mut missing, mut candidates) = (0, Vec::new());
        for node in 0..self.nodes.len() {
            match self.place(node) {
                Place { old: Some(old), new: None } if !self.is_available(turn, old) => {
                    turn.delete(old, Propagation::Background)?;
                    missing += 1;
                }
                Place { old: Some(old), new: None } => candidates.push(old),
                Place { new: Some(new), old: None } if self.is_available(turn, new) => {}
                _ => missing += 1,
            }
        }
        let room = usize::try_from(self.unavailable.saturating_sub(missing)).unwrap_or(0);
        for pod in candidates.into_iter().take(room) {
            turn.delete(pod, Propagation::Background)?;
        }
        Ok(())
    }

    /// Makes new pods beside old ones, as many as may be too many.
    fn roll_with_surge(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let (mut surging, mut candidates) = (0, Vec::new());
        for node in 0..self.nodes.len() {
            match self.place(node) {
                Place { old: Some(old), new: None } if !self.is_available(turn, old) => self.create(turn, node)?,
                Place { old: Some(_), new: None } => candidates.push(node),
                Place { old: Some(old), new: Some(new) } => {
                    if self.is_available(turn, new) {
                        turn.delete(old, Propagation::Background)?;
                    } else {
                        surging += 1;
                    }
                }
                Place { old: None, .. } => {}
            }
        }
        let room = usize::try_from(self.surge.saturating_sub(surging)).unwrap_or(0);
        for node in candidates.into_iter().take(room) {
            self.create(turn, node)?;
        }
        Ok(())
    }

    fn create(&self, turn: &mut Turn<'_>, node: usize) -> Result<(), Refusal> {
        let mut pod = pod_from(&self.spec["template"], self.object);
        pod["metadata"]["labels"][REVISION] = json!(self.hash);
        pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name(node)]}]}],
        }}});
        match turn.create(pod) {
            Err(refusal) if is_namespace_gone(&refusal) => Ok(()),
            created => created.map(drop),
        }
    }

    fn write_status(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let number = |many: usize| u32::try_from(many).unwrap_or(u32::MAX);
        // Of several pods on a node, the oldest counts.
        let first: Vec<&Arc<Object>> = self.nodes.iter().filter_map(|on_node| on_node.first()).collect();
        let count = |of: &dyn Fn(&Object) -> bool| number(first.iter().filter(|pod| of(pod)).count());
        let (desired, available) =
            (number(self.nodes.len()), count(&|pod| is_ready(pod) && self.is_available(turn, pod)));
        let updated = if self.hash.is_empty() {
            read::count(&self.object.value["status"]["updatedNumberScheduled"])
        } else {
            count(&|pod| self.is_new(pod))
        };
        let mut status = counts([
            ("updatedNumberScheduled", updated),
            ("numberAvailable", available),
            ("numberUnavailable", desired.saturating_sub(available)),
        ]);
        status["desiredNumberScheduled"] = json!(desired);
        status["currentNumberScheduled"] = json!(number(first.len()));
        status["numberMisscheduled"] = json!(0);
        status["numberReady"] = json!(count(&is_ready));
        status["observedGeneration"] = json!(read::generation(self.object));
        turn.set_status(self.object, status)
    }
}
