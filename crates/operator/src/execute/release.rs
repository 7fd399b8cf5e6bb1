//! Releases: made, moved on, ended.

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube::api::{DynamicObject, Patch};
use kube::{Api, Resource, ResourceExt};
use lockstep_api::{
    Held, Move as ApiMove, Release, ReleaseCondition, ReleaseSpec, ReleaseStatus, Source as ApiSource, VersionSummary,
    VersionedConfig, VersionedConfigStatus,
};
use lockstep_core::release::{Action, ConsumerId, Gate, Observed, Phase, Progress, step};
use lockstep_core::{ConfigRef, Pins, gate};
use serde_json::{Value, json};

use super::status::{config_reference, summary, whole};
use super::{
    Doing, ExecuteError, Executor, VersionApi, Written, in_place_of, keepers, patch_params, post_params, status_patch,
    written_managed,
};
use crate::events::Reason;
use crate::facts::{Key, ManagedFact, ReleaseFact, ResourceVersion, WorkloadFact};
use crate::guards::{conflict, delete_as_it_was, not_found};
use crate::index::{ConfigId, ConfigView, Fact, How, Lost, ReleaseId, ReleaseView, Start, Watched, WorkloadId};
use crate::refusals::{Refusal, Refusals};

/// How many consumers of a release are written at the same time.
const PARALLEL_PINS: usize = 32;
/// A release of more consumers than this tells each of them nothing: their number would drown everything else.
const TOLD_CONSUMERS: usize = 20;

/// What came of a step.
#[derive(Debug, Default)]
pub struct ReleaseOutcome {
    pub written: Vec<Written>,
    /// When to look again although nothing changed.
    pub wake: Option<Timestamp>,
    pub pinned: usize,
    pub ended: Option<Phase>,
    /// A consumer was written by somebody else meanwhile: look again.
    pub conflicts: usize,
    /// Writes of consumers that the API server would not have.
    pub refused: Refusals,
}

impl Executor {
    /// Makes the release of a change, or has one take it in.
    pub async fn start(&self, start: Start) -> Result<Vec<Written>, ExecuteError> {
        let Some(managed) = &start.managed else { return Ok(Vec::new()) };
        let moves: Vec<ApiMove> = start.moves.iter().map(|step| api_move(&start, step)).collect();
        let api: Api<Release> = Api::namespaced(self.client.clone(), &start.namespace);
        let doing = || format!("make release {} in {}", start.name, start.namespace);
        let object = match &start.how {
            How::Amend { release, supersedes: None } if release.object.spec.moves == moves => return Ok(Vec::new()),
            How::Amend { release, supersedes } => {
                // Only while it waits: what has started keeps its goal, and is replaced instead.
                let mut spec = json!({"moves": moves});
                if let Some(replaced) = supersedes {
                    spec["supersedes"] = json!(replaced);
                }
                let version = release.resource_version.0.to_string();
                let patch = Patch::Merge(json!({"metadata": {"resourceVersion": version}, "spec": spec}));
                api.patch(&start.name, &patch_params(), &patch).await.doing(doing)?
            }
            How::New | How::Supersede(_) => {
                let target = start.moves.first().map(|step| step.to.as_str()).unwrap_or_default();
                let version = start.versions.iter().find(|fact| fact.version.object == target);
                let spec = ReleaseSpec {
                    moves,
                    supersedes: match &start.how {
                        How::Supersede(name) => Some(name.clone()),
                        _ => None,
                    },
                    changed_by: version.and_then(|fact| fact.version.changed_by.clone()),
                    reason: version.and_then(|fact| fact.version.reason.clone()),
                    paused: start.is_paused,
                    ..ReleaseSpec::default()
                };
                self.create_release(&api, &start.name, spec, managed, start.source_uid.as_deref()).await.doing(doing)?
            }
        };
        Ok(vec![written_release(object)])
    }

    pub(super) async fn create_release(
        &self,
        api: &Api<Release>,
        name: &str,
        spec: ReleaseSpec,
        managed: &ManagedFact,
        source_uid: Option<&str>,
    ) -> kube::Result<Release> {
        let mut object = Release::new(name, spec);
        object.metadata.owner_references = Some(keepers(&managed.object, &managed.config, source_uid));
        match api.create(&post_params(), &object).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let found = api.get(name).await?;
                let is_it = found.spec.moves == object.spec.moves && found.spec.supersedes == object.spec.supersedes;
                if is_it { Ok(found) } else { Err(conflict("there is another release of this name")) }
            }
            created => created,
        }
    }

    /// Writes a release again that somebody deleted while it was under way. It goes on from its record.
    pub async fn restore(&self, id: &ReleaseId, lost: Lost) -> Result<Vec<Written>, ExecuteError> {
        let api: Api<Release> = Api::namespaced(self.client.clone(), &id.namespace);
        let doing = || format!("write release {} in {} again, which was deleted under way", id.name, id.namespace);
        if !self.has_its_versions(id, &lost.fact).await? {
            return Err(not_found("nothing of what it moves to is there any more")).doing(doing);
        }
        let source_uid = lost.source_uid.as_deref();
        let made =
            self.create_release(&api, &id.name, lost.fact.object.spec, &lost.managed, source_uid).await.doing(doing)?;
        let object = match made.status {
            Some(_) => made,
            None => self.record(&id.namespace, &ReleaseFact::read(made), &lost.fact.core.progress).await?,
        };
        tracing::warn!(namespace = id.namespace, release = id.name, "somebody deleted a release under way: it goes on");
        Ok(vec![written_release(object)])
    }

    /// Whether anything that a release moves to is there as it was when the release was made. If not, it went with all that was in its namespace: one
    /// of the same name may be there by now, with other versions, before our watches say so.
    async fn has_its_versions(&self, id: &ReleaseId, fact: &ReleaseFact) -> Result<bool, ExecuteError> {
        let made = fact.object.metadata.creation_timestamp.as_ref();
        for step in &fact.core.moves {
            let api = VersionApi { client: &self.client, namespace: &id.namespace, kind: step.config.kind };
            let found =
                api.find(&step.to).await.doing(|| format!("look for version {} in {}", step.to, id.namespace))?;
            let is_younger = |found: &ObjectMeta| {
                made.zip(found.creation_timestamp.as_ref()).is_some_and(|(made, at)| at.0 > made.0)
            };
            if found.is_some_and(|found| !is_younger(&found)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A release that has ended when it is made.
    pub(super) async fn new_release(
        &self,
        view: &ConfigView,
        managed: &ManagedFact,
        step: &ApiMove,
        progress: &Progress,
    ) -> Result<Written, ExecuteError> {
        let (namespace, name) = (&view.id.namespace, &view.next_release_name);
        let api: Api<Release> = Api::namespaced(self.client.clone(), namespace);
        let source = view.source.as_ref();
        let spec = ReleaseSpec {
            moves: vec![step.clone()],
            changed_by: source.and_then(|source| source.changed_by.clone()),
            reason: source.and_then(|source| source.reason.clone()),
            ..ReleaseSpec::default()
        };
        let doing = || format!("make release {name} in {namespace}");
        let source_uid = source.map(|source| source.uid.as_str());
        let made = self.create_release(&api, name, spec, managed, source_uid).await.doing(doing)?;
        let fact = ReleaseFact::read(made);
        if fact.object.status.is_some() {
            return Err(conflict("the release is somebody else's")).doing(doing);
        }
        let object = self.record(namespace, &fact, progress).await?;
        self.tell(namespace, &object, progress, source.map(|source| (&view.id, source.uid.as_str()))).await;
        Ok(written_release(object))
    }

    /// One step of a release: what must be known before it is recorded, the record, and then what it says.
    pub async fn release(&self, mut view: ReleaseView) -> Result<ReleaseOutcome, ExecuteError> {
        if let Some(amended) = view.amended.take() {
            return Ok(ReleaseOutcome { written: self.start(*amended).await?, ..ReleaseOutcome::default() });
        }
        let unwritten = view.refused.iter().filter(|(_, refusal)| !refusal.is_of_pod());
        let refused = unwritten.map(|(consumer, refusal)| (consumer.clone(), refusal.why.clone())).collect();
        let observed = Observed {
            release: &view.fact.core,
            policy: &view.policy,
            members: &view.members,
            blocked: view.blocked.clone(),
            superseded_by: view.superseded_by.as_deref(),
            successor_waits: view.successor_waits.clone(),
            is_overtaken: view.is_overtaken,
            is_offered: view.is_offered,
            has_succeeded: view.has_succeeded,
            held: view.held.as_deref(),
            inherited: &view.inherited,
            taken_over: &view.taken_over,
            can_judge: view.can_judge,
            may_delete_pods: self.may_delete_pods,
            refused: &refused,
        };
        let step = step(&observed, self.environment.clock.now());
        let mut outcome = ReleaseOutcome { wake: step.wake, ..ReleaseOutcome::default() };
        for action in &step.actions {
            match action {
                Action::Hold { reason } => self.hold(&view, reason, &mut outcome).await?,
                Action::Succeed => self.succeed(&view, &mut outcome).await?,
                Action::Pin { .. } | Action::OpenGate { .. } | Action::DeletePod { .. } => {}
            }
        }
        let old = &view.fact.core.progress;
        if step.progress != *old {
            let object = self.record(&view.id.namespace, &view.fact, &step.progress).await?;
            if step.progress.phase != old.phase {
                tracing::info!(
                    namespace = view.id.namespace,
                    release = view.id.name,
                    phase = %step.progress.phase,
                    reason = step.progress.reason,
                    "a release"
                );
                self.tell(&view.id.namespace, &object, &step.progress, None).await;
                outcome.ended = step.progress.phase.has_ended().then_some(step.progress.phase);
            } else if step.progress.phase.has_ended() && has_judged(old, &step.progress) {
                self.tell_judged_later(&view.id.namespace, &object, &step.progress).await;
            }
            outcome.written.push(written_release(object));
        }
        self.act(&view, &step.actions, &mut outcome).await;
        Ok(outcome)
    }

    /// Writes to consumers, many at a time. One that somebody else wrote meanwhile is looked at again; one that was refused, after a while.
    async fn act(&self, view: &ReleaseView, actions: &[Action], outcome: &mut ReleaseOutcome) {
        let now = self.environment.clock.now();
        let refusal = |action: &Action| view.refused.get_key_value(action.consumer()?);
        let waits = |action: &&Action| refusal(action).is_some_and(|(_, refusal)| refusal.delays(action, now));
        let (waiting, actions): (Vec<&Action>, Vec<&Action>) = actions.iter().partition(waits);
        let waiting = waiting.into_iter().filter_map(refusal);
        outcome.refused.extend(waiting.map(|(consumer, refusal)| (consumer.clone(), refusal.clone())));
        let write = async |action: &Action| (action.clone(), self.carry_out(view, action).await);
        let results: Vec<_> = stream::iter(actions).map(write).buffer_unordered(PARALLEL_PINS).collect().await;
        // What was written goes into the index also if another could not be.
        for (action, result) in results {
            match result {
                Ok(written) => {
                    outcome.pinned += written.iter().count();
                    outcome.written.extend(written);
                }
                Err(error) if error.is_conflict() => outcome.conflicts += 1,
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "a consumer could not be written and is tried again");
                    let Some(consumer) = action.consumer().cloned() else { continue };
                    if error.is_undecided() {
                        outcome.written.extend(self.look_again(view, &consumer).await);
                    }
                    let earlier = view.refused.get(&consumer);
                    outcome.refused.insert(consumer, Refusal::new(action, error.told(), earlier, now));
                }
            }
        }
    }

    /// A write of it may have taken effect, and the watch may be late: whoever goes back must not be taken for one that was never moved.
    async fn look_again(&self, view: &ReleaseView, consumer: &ConsumerId) -> Option<Written> {
        let (key, _) = view.workloads.get(consumer)?;
        let id = WorkloadId { namespace: view.id.namespace.clone(), workload: key.clone() };
        self.read_workload(&id).await.ok().flatten()
    }

    async fn carry_out(&self, view: &ReleaseView, action: &Action) -> Result<Option<Written>, ExecuteError> {
        match action {
            Action::Pin { consumer, pins, gate } => self.pin_consumer(view, consumer, pins, *gate).await,
            Action::OpenGate { consumer } => self.open_gate(view, consumer).await,
            Action::DeletePod { pod, uid, .. } => self.delete_broken(view, pod, uid).await,
            Action::Hold { .. } | Action::Succeed => Ok(None),
        }
    }

    async fn pin_consumer(
        &self,
        view: &ReleaseView,
        consumer: &ConsumerId,
        pins: &Pins,
        gate: Gate,
    ) -> Result<Option<Written>, ExecuteError> {
        let Some((key, fact)) = view.workloads.get(consumer) else { return Ok(None) };
        let id = WorkloadId { namespace: view.id.namespace.clone(), workload: key.clone() };
        let besides = match (gate, &fact.gate.saved) {
            (Gate::FirstBatch { size, hold }, saved) => {
                // What the fields are must be read first: the index does not keep them.
                let spec = self.spec(&id).await?;
                consumer.kind().gate().map(|means| gate::close(means, &spec, saved.as_deref(), size, hold))
            }
            (Gate::Open, Some(saved)) => Some(gate::open(&self.spec(&id).await?, saved)),
            (Gate::Open, None) => None,
        };
        let written = self.pin(&id, fact, pins, besides).await?;
        if view.workloads.len() <= TOLD_CONSUMERS {
            self.tell_consumer(view, fact, pins).await;
        }
        Ok(written)
    }

    async fn spec(&self, id: &WorkloadId) -> Result<Value, ExecuteError> {
        let kind = &self.kinds[id.workload.kind];
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &id.namespace, &kind.resource);
        let doing = || format!("read {} {} in {}", kind.resource.kind, id.workload.name, id.namespace);
        let mut object = api.get(&id.workload.name).await.doing(doing)?;
        Ok(object.data["spec"].take())
    }

    async fn open_gate(&self, view: &ReleaseView, consumer: &ConsumerId) -> Result<Option<Written>, ExecuteError> {
        let Some((key, fact)) = view.workloads.get(consumer) else { return Ok(None) };
        let id = WorkloadId { namespace: view.id.namespace.clone(), workload: key.clone() };
        self.open_gate_of(&id, fact).await
    }

    /// Gives a workload back the fields that a gate has borrowed.
    pub async fn open_gate_of(&self, id: &WorkloadId, fact: &WorkloadFact) -> Result<Option<Written>, ExecuteError> {
        let Some(saved) = &fact.gate.saved else { return Ok(None) };
        let spec = self.spec(id).await?;
        self.patch_workload(id, fact, gate::open(&spec, saved)).await
    }

    async fn delete_broken(&self, view: &ReleaseView, pod: &str, uid: &str) -> Result<Option<Written>, ExecuteError> {
        match view.broken_pods.get(uid) {
            Some(at) => self.delete_pod(&view.id.namespace, pod, uid, *at).await,
            None => Ok(None),
        }
    }

    /// That very pod, and only if nothing became of it since: it may work by now.
    pub(super) async fn delete_pod(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        at: ResourceVersion,
    ) -> Result<Option<Written>, ExecuteError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        match api.delete(name, &delete_as_it_was(uid, at)).await {
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(None),
            deleted => deleted
                .map(|_| None)
                .doing(|| format!("delete pod {name} in {namespace}, which its StatefulSet waits for")),
        }
    }

    /// The versions must not be tried again, nor joined: noted before anything is put back.
    async fn hold(&self, view: &ReleaseView, reason: &str, outcome: &mut ReleaseOutcome) -> Result<(), ExecuteError> {
        for (managed, step) in moved(view) {
            if step.from == step.to {
                continue;
            }
            let held = Held {
                object: step.to.clone(),
                version: step.to_version.clone(),
                release: view.id.name.clone(),
                reason: reason.to_owned(),
            };
            let noted = self.note(managed, json!({"held": held, "releasing": null})).await?;
            outcome.written.push(written_managed(&noted));
        }
        Ok(())
    }

    async fn succeed(&self, view: &ReleaseView, outcome: &mut ReleaseOutcome) -> Result<(), ExecuteError> {
        for (managed, step) in moved(view) {
            let status = managed.object.status.clone().unwrap_or_default();
            let current = status.versions.iter().find(|version| version.object == step.to).cloned();
            let current =
                current.or_else(|| view.versions.iter().find(|fact| fact.version.object == step.to).map(summary));
            let Some(current) = current else { continue };
            let note = success(&status, step, &current);
            outcome.written.push(written_managed(&self.note(managed, note).await?));
        }
        Ok(())
    }

    /// Whoever wrote it since we looked wins, and we look again.
    pub(super) async fn note(&self, managed: &ManagedFact, status: Value) -> Result<ManagedFact, ExecuteError> {
        let (name, namespace) = (managed.object.name_any(), managed.object.namespace().unwrap_or_default());
        let api: Api<VersionedConfig> = Api::namespaced(self.client.clone(), &namespace);
        let patch = status_patch(managed.resource_version, status);
        let written = match api.patch_status(&name, &patch_params(), &patch).await {
            // The watch tells when it is there again. The release itself is not gone.
            Err(kube::Error::Api(status)) if status.is_not_found() => Err(conflict("the VersionedConfig is gone")),
            written => written,
        };
        let object = written.doing(|| format!("report on VersionedConfig {name} in {namespace}"))?;
        Ok(ManagedFact::read(object))
    }

    async fn record(&self, namespace: &str, fact: &ReleaseFact, progress: &Progress) -> Result<Release, ExecuteError> {
        let conditions = conditions(&fact.object, progress, self.environment.clock.now());
        let status = ReleaseStatus::new(progress, &fact.object.spec.moves, conditions);
        let api: Api<Release> = Api::namespaced(self.client.clone(), namespace);
        let known = json!(fact.object.status);
        let body = in_place_of(&known, json!(status));
        // Times are recorded in whole seconds: what differs by less is the same.
        if body == known {
            return Ok(fact.object.clone());
        }
        // Nobody else writes it; the version makes sure of that.
        let patch = status_patch(fact.resource_version, body);
        let name = &fact.core.name;
        let written = api.patch_status(name, &patch_params(), &patch).await;
        written.doing(|| format!("record release {name} in {namespace}"))
    }

    /// Events for people, about the release and its configs. That one is lost is no reason to stop.
    async fn tell(&self, namespace: &str, release: &Release, progress: &Progress, source: Option<(&ConfigId, &str)>) {
        let summary = release.status.as_ref().map(|status| status.summary.clone()).unwrap_or_default();
        let (reason, note) = (Reason::Phase(progress.phase), format!("{summary}: {}", progress.reason));
        self.publish_event(reason, &note, &release.object_ref(&())).await;
        let is_worth_telling = progress.phase.has_ended() || progress.phase == Phase::RollingBack;
        if let Some((id, uid)) = source {
            self.publish_event(reason, &note, &config_reference(id, uid)).await;
        } else if is_worth_telling {
            for step in &release.spec.moves {
                let id = ConfigId { namespace: namespace.to_owned(), config: (&step.source).into() };
                self.publish_event(reason, &note, &config_reference(&id, "")).await;
            }
        }
    }

    /// Somebody ran it only after its end.
    async fn tell_judged_later(&self, namespace: &str, release: &Release, progress: &Progress) {
        let reason =
            Reason::JudgedLater { is_well: progress.consumers.iter().all(|record| record.health.failing == 0) };
        self.publish_event(reason, &progress.reason, &release.object_ref(&())).await;
        for step in &release.spec.moves {
            let id = ConfigId { namespace: namespace.to_owned(), config: (&step.source).into() };
            self.publish_event(reason, &progress.reason, &config_reference(&id, "")).await;
        }
    }

    async fn tell_consumer(&self, view: &ReleaseView, fact: &WorkloadFact, pins: &Pins) {
        let is_back = view.fact.core.progress.phase == Phase::RollingBack;
        let reason = if is_back { Reason::ConfigRolledBack } else { Reason::ConfigReleased };
        let note = if pins.is_empty() {
            format!("release {} takes its pins off again", view.id.name)
        } else {
            format!("release {} pins it to {pins}", view.id.name)
        };
        let about = ObjectReference {
            api_version: Some(fact.owner.api_version.clone()),
            kind: Some(fact.owner.kind.clone()),
            name: Some(fact.owner.name.clone()),
            namespace: Some(view.id.namespace.clone()),
            uid: Some(fact.owner.uid.clone()),
            ..ObjectReference::default()
        };
        self.publish_event(reason, &note, &about).await;
    }

    async fn publish_event(&self, reason: Reason, note: &str, about: &ObjectReference) {
        if let Err(error) = self.events.publish(reason, note.to_owned(), about).await {
            tracing::warn!(%error, object = about.name, "an Event could not be written");
        }
    }
}

/// The configs of a release with their VersionedConfigs.
/// Whether more is known of somebody who could not be judged when it ended.
fn has_judged(old: &Progress, new: &Progress) -> bool {
    let unjudged = |progress: &Progress| -> Vec<Option<String>> {
        progress.consumers.iter().map(|record| record.unjudged.clone()).collect()
    };
    unjudged(old) != unjudged(new)
}

fn moved(view: &ReleaseView) -> Vec<(&ManagedFact, &ApiMove)> {
    let of = |step: &ApiMove| ConfigRef::from(&step.source);
    let managed = |step: &ApiMove| view.managed.iter().find(|managed| managed.config == of(step));
    view.fact.object.spec.moves.iter().filter_map(|step| Some((managed(step)?, step))).collect()
}

/// What is noted of a config whose version is current now.
fn success(status: &VersionedConfigStatus, step: &ApiMove, current: &VersionSummary) -> Value {
    let mut note = json!({"current": whole(current), "releasing": null});
    let mut names = status.names.clone();
    for name in names.iter_mut().filter(|name| name.object == step.to) {
        name.was_current = true;
    }
    note["names"] = json!(names);
    // The source was compared with what was current before.
    if step.from != step.to {
        note["observedResourceVersion"] = Value::Null;
    }
    // What is held stays so while people run something else in its place.
    if status.held.as_ref().is_some_and(|held| held.object == step.to) {
        note["held"] = Value::Null;
    }
    note
}

fn api_move(start: &Start, step: &lockstep_core::release::Move) -> ApiMove {
    let name_of = |object: &str| {
        let found = start.versions.iter().find(|fact| fact.version.object == object && fact.config == step.config);
        found.map_or_else(|| object.to_owned(), |fact| fact.version.name.to_string())
    };
    ApiMove {
        source: ApiSource { kind: step.config.kind.into(), name: step.config.name.clone() },
        from: step.from.clone(),
        to: step.to.clone(),
        from_version: name_of(&step.from),
        to_version: name_of(&step.to),
    }
}

fn conditions(old: &Release, progress: &Progress, now: Timestamp) -> Vec<Condition> {
    let known = old.status.iter().flat_map(|status| &status.conditions);
    let condition = |of: ReleaseCondition| {
        let status = match of.holds(progress) {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        let same = known.clone().find(|known| known.type_ == of.name() && known.status == status);
        Condition {
            type_: of.name().to_owned(),
            status: status.to_owned(),
            reason: progress.phase.to_string(),
            message: progress.reason.clone(),
            last_transition_time: same.map_or_else(|| Time(now), |same| same.last_transition_time.clone()),
            observed_generation: old.metadata.generation,
        }
    };
    ReleaseCondition::ALL.into_iter().map(condition).collect()
}

fn written_release(object: Release) -> Written {
    let key = Key { namespace: object.namespace().unwrap_or_default(), name: object.name_any() };
    Written { watched: Watched::Release, key, fact: Some(Fact::Release(Box::new(ReleaseFact::read(object)))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(from: &str) -> ApiMove {
        let source = json!({"kind": "ConfigMap", "name": "app"});
        let step = json!({"source": source, "from": from, "to": "app-2", "fromVersion": "1", "toVersion": "2"});
        serde_json::from_value(step).unwrap()
    }

    fn current() -> VersionSummary {
        serde_json::from_value(json!({"version": "r2", "number": 2, "object": "app-2"})).unwrap()
    }

    #[test]
    fn what_the_source_was_compared_with_is_forgotten_when_something_else_is_current() {
        let status = VersionedConfigStatus::default();
        let forgets = |from: &str| success(&status, &step(from), &current()).get("observedResourceVersion").is_some();
        assert!(forgets("app-1"));
        assert!(!forgets("app-2"), "it is current all the time");
    }

    #[test]
    fn what_is_current_is_held_no_longer_and_anything_else_stays_so() {
        let lets_go = |object: &str| {
            let held = json!({"object": object, "version": "r2", "release": "configmap-app-1", "reason": "bad"});
            let status = VersionedConfigStatus {
                held: serde_json::from_value(held).unwrap(),
                ..VersionedConfigStatus::default()
            };
            success(&status, &step("app-1"), &current()).get("held").map(Value::is_null)
        };
        assert_eq!(lets_go("app-2"), Some(true));
        assert_eq!(lets_go("app-3"), None);
    }
}
