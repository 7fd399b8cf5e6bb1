//! StatefulSets: pods with names of their own, one after the other, each waiting for those before it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::history::{self, REVISION};
use super::read::{self, count, count_or, has_ended, is_available, is_going, is_ready, phase, seconds, text};
use super::replica_set::is_namespace_gone;
use super::turn::{Turn, counts, pod_from};
use crate::kinds::{Key, Kind};
use crate::store::{Object, Propagation, Refusal};

struct View<'a> {
    object: &'a Object,
    spec: &'a Value,
    /// What pods below the partition run, and what the others are to run.
    current: Arc<Object>,
    update: Arc<Object>,
    /// By ordinal.
    replicas: Vec<Option<Arc<Object>>>,
    /// With an ordinal that is too high, the highest first.
    condemned: Vec<Arc<Object>>,
    min_ready: Duration,
}

/// Whether the controller may go on to the next thing in this turn.
#[derive(PartialEq, Eq)]
enum Step {
    GoOn,
    Wait,
}

pub(super) fn sync(turn: &mut Turn<'_>, key: &Key) -> Result<(), Refusal> {
    let Some(object) = turn.get(key) else { return Ok(()) };
    let revisions = history::revisions(turn, &object)?;
    let Some(update) = revisions.last().cloned() else { return Ok(()) };
    let known = text(&object.value["status"]["currentRevision"]);
    let current = revisions.iter().find(|revision| revision.key.name == known).unwrap_or(&update).clone();
    let mut view = View {
        object: &object,
        spec: &object.value["spec"],
        current,
        update,
        replicas: Vec::new(),
        condemned: Vec::new(),
        min_ready: seconds(&object.value["spec"]["minReadySeconds"]),
    };
    view.take_in(turn)?;
    let done = if is_going(&object) { Ok(()) } else { view.act(turn) };
    view.write_status(turn)?;
    if let Some(at) = read::next_available(view.pods().map(AsRef::as_ref), view.min_ready, turn.now) {
        turn.again_at(at);
    }
    let live: Vec<&str> = view.pods().map(|pod| history::of_pod(pod)).collect();
    let is_live = |revision: &Object| {
        let name = revision.key.name.as_str();
        name == view.current.key.name || name == view.update.key.name || live.contains(&name)
    };
    history::clean_up(turn, &object, &revisions, is_live)?;
    done
}

impl View<'_> {
    fn desired(&self) -> usize {
        usize::try_from(count_or(&self.spec["replicas"], 1)).unwrap_or(usize::MAX)
    }

    fn partition(&self) -> usize {
        let partition = count(&self.spec["updateStrategy"]["rollingUpdate"]["partition"]);
        usize::try_from(partition).unwrap_or(usize::MAX)
    }

    fn is_ordered(&self) -> bool {
        text(&self.spec["podManagementPolicy"]) != "Parallel"
    }

    fn is_on_delete(&self) -> bool {
        text(&self.spec["updateStrategy"]["type"]) == "OnDelete"
    }

    fn pods(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.replicas.iter().flatten().chain(&self.condemned)
    }

    fn ordinal(&self, pod: &Object) -> Option<usize> {
        pod.key.name.strip_prefix(&self.object.key.name)?.strip_prefix('-')?.parse().ok()
    }

    fn take_in(&mut self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        self.replicas = vec![None; self.desired()];
        let pods = turn.claim(self.object, Kind::Pod)?;
        let mut pods: Vec<_> = pods.into_iter().filter_map(|pod| Some((self.ordinal(&pod)?, pod))).collect();
        pods.sort_by_key(|(ordinal, _)| std::cmp::Reverse(*ordinal));
        for (ordinal, pod) in pods {
            match self.replicas.get_mut(ordinal) {
                Some(place) => *place = Some(pod),
                None => self.condemned.push(pod),
            }
        }
        Ok(())
    }

    fn is_available(&self, turn: &Turn<'_>, pod: &Object) -> bool {
        is_available(pod, self.min_ready, turn.now)
    }

    fn is_unavailable(&self, turn: &Turn<'_>, pod: Option<&Arc<Object>>) -> bool {
        pod.is_none_or(|pod| !self.is_available(turn, pod) || is_going(pod))
    }

    fn act(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        // The one that may be deleted although it does not work, when there are too many.
        let broken = self.first_broken(turn);
        for ordinal in 0..self.replicas.len() {
            if self.tend(turn, ordinal)? == Step::Wait && self.is_ordered() {
                return Ok(());
            }
        }
        for place in 0..self.condemned.len() {
            let pod = Arc::clone(&self.condemned[place]);
            if self.dismiss(turn, &pod, broken.as_deref())? == Step::Wait && self.is_ordered() {
                return Ok(());
            }
        }
        if self.is_on_delete() { Ok(()) } else { self.replace(turn) }
    }

    fn first_broken(&self, turn: &Turn<'_>) -> Option<Arc<Object>> {
        if let Some(place) = self.replicas.iter().position(|pod| self.is_unavailable(turn, pod.as_ref())) {
            return self.replicas[place].clone();
        }
        self.condemned.iter().rev().find(|pod| self.is_unavailable(turn, Some(pod))).cloned()
    }

    /// Looks after one pod. In order, nothing else happens until it is available: also if its template is outdated, and it never will be.
    fn tend(&self, turn: &mut Turn<'_>, ordinal: usize) -> Result<Step, Refusal> {
        let Some(pod) = self.replicas[ordinal].clone() else {
            // It counts from the next turn on.
            self.create(turn, ordinal)?;
            return Ok(Step::Wait);
        };
        if has_ended(&pod) {
            if !is_going(&pod) {
                turn.delete(&pod, Propagation::Background)?;
            }
            return Ok(Step::Wait);
        }
        let is_well = !is_going(&pod) && phase(&pod) == "Running" && self.is_available(turn, &pod);
        Ok(if is_well { Step::GoOn } else { Step::Wait })
    }

    fn create(&self, turn: &mut Turn<'_>, ordinal: usize) -> Result<(), Refusal> {
        let is_kept_back = !self.is_on_delete() && ordinal < self.partition();
        let revision = if is_kept_back { &self.current } else { &self.update };
        let name = format!("{}-{ordinal}", self.object.key.name);
        let mut pod = pod_from(&history::template(revision), self.object);
        let meta = &mut pod["metadata"];
        meta["labels"][REVISION] = json!(revision.key.name);
        meta["labels"]["statefulset.kubernetes.io/pod-name"] = json!(name);
        meta["labels"]["apps.kubernetes.io/pod-index"] = json!(ordinal.to_string());
        meta["name"] = json!(name);
        meta.as_object_mut().and_then(|meta| meta.remove("generateName"));
        match turn.create(pod) {
            Err(refusal) if is_namespace_gone(&refusal) => Ok(()),
            created => created.map(drop),
        }
    }

    /// Deletes a pod that is too many, once those above it are gone.
    fn dismiss(&self, turn: &mut Turn<'_>, pod: &Object, broken: Option<&Object>) -> Result<Step, Refusal> {
        if is_going(pod) {
            return Ok(Step::Wait);
        }
        let is_well = phase(pod) == "Running" && self.is_available(turn, pod);
        let is_first_broken = broken.is_some_and(|broken| broken.uid() == pod.uid());
        if self.is_ordered() && !is_well && !is_first_broken {
            return Ok(Step::Wait);
        }
        turn.delete(pod, Propagation::Background)?;
        Ok(Step::Wait)
    }

    /// Deletes the highest pod that runs an outdated template, if all above it are available.
    fn replace(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        for ordinal in (self.partition()..self.replicas.len()).rev() {
            let Some(pod) = &self.replicas[ordinal] else { return Ok(()) };
            if history::of_pod(pod) != self.update.key.name && !is_going(pod) {
                return turn.delete(pod, Propagation::Background);
            }
            if self.is_unavailable(turn, Some(pod)) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn write_status(&self, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let runs = |pod: &Object, revision: &Object| !is_going(pod) && history::of_pod(pod) == revision.key.name;
        let is_up = |pod: &Object| phase(pod) == "Running" && is_ready(pod);
        let number =
            |of: &dyn Fn(&Object) -> bool| u32::try_from(self.pods().filter(|pod| of(pod)).count()).unwrap_or(u32::MAX);
        let (all, updated) = (number(&|_| true), number(&|pod| runs(pod, &self.update)));
        let ready = number(&is_up);
        let desired = u32::try_from(self.desired()).unwrap_or(u32::MAX);
        let is_complete = !self.is_on_delete() && [all, updated, ready] == [desired; 3];
        let (current, currents) = if is_complete {
            (&self.update, updated)
        } else {
            (&self.current, number(&|pod| runs(pod, &self.current)))
        };
        let mut status =
            counts([("currentReplicas", currents), ("updatedReplicas", updated), ("readyReplicas", ready)]);
        status["replicas"] = json!(all);
        status["availableReplicas"] = json!(number(&|pod| is_up(pod) && self.is_available(turn, pod)));
        status["observedGeneration"] = json!(read::generation(self.object));
        status["currentRevision"] = json!(current.key.name);
        status["updateRevision"] = json!(self.update.key.name);
        status["collisionCount"] = json!(count(&self.object.value["status"]["collisionCount"]));
        turn.set_status(self.object, status)
    }
}
