use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::*;
use crate::config::ConfigKind;
use crate::policy::{BatchSize, JoinedFailure};

/// A cluster in which pods come up at once, and crash if they run a bad version.
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a wish or a fact of its own, set by a test")]
struct Cluster {
    now: Timestamp,
    policy: Policy,
    release: Release,
    members: Vec<Member>,
    bad: BTreeSet<String>,
    held: Option<String>,
    succeeded: bool,
    /// Every pin that was written: consumer and pins.
    written: Vec<(String, String)>,
    can_judge: bool,
    blocked: Option<Block>,
    superseded_by: Option<String>,
    successor_waits: Option<Wait>,
    is_overtaken: bool,
    is_offered: bool,
    inherited: Vec<Record>,
    taken_over: BTreeSet<ConsumerId>,
    may_delete_pods: bool,
    refused: BTreeMap<ConsumerId, String>,
}

fn app() -> ConfigRef {
    ConfigRef::new(ConfigKind::ConfigMap, "app")
}

fn deployment(name: &str, wave: i32, pins: &str) -> Member {
    Member {
        consumer: ConsumerId { kind: "Deployment".into(), name: name.into() },
        wave,
        pins: pins.parse().unwrap(),
        template: "code-1".into(),
        is_newcomer: false,
        uid: "uid-1".into(),
        unproven: BTreeSet::new(),
        references: [app()].into(),
        concerned: [app()].into(),
        stranded: BTreeSet::new(),
        rollout: Rollout {
            is_observed: true,
            desired: 3,
            updated: 3,
            ready: 3,
            is_complete: true,
            ..Rollout::default()
        },
        units: Vec::new(),
        can_gate: true,
        is_unfit_for_gate: false,
        is_gated: false,
        is_forced: false,
        holds_for: None,
        partition: None,
    }
}

impl Cluster {
    fn new(members: Vec<Member>) -> Self {
        Self {
            now: Timestamp::from_second(1_000_000).unwrap(),
            policy: Policy::default(),
            release: Release {
                name: "configmap-app-2".into(),
                moves: vec![Move { config: app(), from: "app-1".into(), to: "app-2".into() }],
                wishes: Wishes::default(),
                progress: Progress::default(),
            },
            members,
            bad: BTreeSet::new(),
            held: None,
            succeeded: false,
            written: Vec::new(),
            can_judge: true,
            blocked: None,
            superseded_by: None,
            successor_waits: None,
            is_overtaken: false,
            is_offered: false,
            inherited: Vec::new(),
            taken_over: BTreeSet::new(),
            may_delete_pods: true,
            refused: BTreeMap::new(),
        }
    }

    fn with_bad(mut self, version: &str) -> Self {
        self.bad.insert(version.into());
        self
    }

    fn observe(&self) -> Step {
        let observed = Observed {
            release: &self.release,
            policy: &self.policy,
            members: &self.members,
            blocked: self.blocked.clone(),
            superseded_by: self.superseded_by.as_deref(),
            successor_waits: self.successor_waits.clone(),
            is_overtaken: self.is_overtaken,
            is_offered: self.is_offered,
            has_succeeded: self.succeeded,
            held: self.held.as_deref(),
            inherited: &self.inherited,
            taken_over: &self.taken_over,
            can_judge: self.can_judge,
            may_delete_pods: self.may_delete_pods,
            refused: &self.refused,
        };
        step(&observed, self.now)
    }

    /// One step of the machine, performed; then the cluster does its part.
    fn turn(&mut self) {
        let step = self.observe();
        self.release.progress = step.progress;
        for action in step.actions {
            self.perform(action);
        }
        self.roll();
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Hold { reason } => self.held = Some(reason),
            Action::Succeed => self.succeeded = true,
            Action::Pin { consumer, pins, gate } => {
                self.written.push((consumer.name.clone(), pins.to_string()));
                let member = self.members.iter_mut().find(|member| member.consumer == consumer).unwrap();
                member.pins = pins;
                member.is_gated = gate != Gate::Open;
                member.rollout.updated = match gate {
                    Gate::Open => 3,
                    Gate::FirstBatch { size, .. } => size,
                };
            }
            Action::OpenGate { consumer } => {
                let member = self.members.iter_mut().find(|member| member.consumer == consumer).unwrap();
                member.is_gated = false;
                member.rollout.updated = 3;
            }
            Action::DeletePod { consumer, pod, .. } => {
                let member = self.members.iter_mut().find(|member| member.consumer == consumer).unwrap();
                member.units.retain(|unit| unit.name != pod);
            }
        }
    }

    fn roll(&mut self) {
        for member in &mut self.members {
            let version = member.pins.get(&app()).map(ToString::to_string).unwrap_or_default();
            let crashes = self.bad.contains(&version);
            let updated = member.rollout.updated;
            member.rollout.is_complete = updated == 3;
            member.rollout.ready = if crashes { 3 - updated } else { 3 };
            let old = std::mem::take(&mut member.units);
            let unit = |index| {
                let new = unit(&format!("{}-{index}", member.consumer.name), crashes, self.now);
                let new = Unit { uid: format!("{}-{version}", new.name), ..new };
                let same = old.iter().find(|old| old.uid == new.uid && old.is_ready == new.is_ready);
                Unit { since: same.map_or(new.since, |same| same.since), ..new }
            };
            member.units = (0..updated).map(unit).collect();
        }
    }

    fn wait(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    fn run_for(&mut self, turns: u32) {
        for _ in 0..turns {
            self.turn();
            self.wait(1);
        }
    }

    /// Turns with time passing, until it ends.
    fn run(&mut self) -> Phase {
        for _ in 0..200 {
            self.turn();
            if self.phase().has_ended() && !self.release.is_to_be_taken_back() {
                assert_eq!(self.observe().actions, [], "what has ended does nothing more");
                return self.phase();
            }
            self.wait(5);
        }
        panic!("it never ended: {:?}", self.release.progress);
    }

    fn phase(&self) -> Phase {
        self.release.progress.phase
    }

    fn pins(&self, name: &str) -> String {
        self.members.iter().find(|member| member.consumer.name == name).unwrap().pins.to_string()
    }
}

fn unit(name: &str, crashes: bool, now: Timestamp) -> Unit {
    Unit {
        name: name.into(),
        is_new: true,
        is_ready: !crashes,
        was_ready: true,
        since: Some(now),
        created: Some(now),
        trouble: crashes.then(|| "CrashLoopBackOff".to_owned()),
        ..Unit::default()
    }
}

const OLD: &str = "configmap/app=app-1";
const NEW: &str = "configmap/app=app-2";

#[test]
fn a_good_version_is_pinned_baked_and_succeeds() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD), deployment("api", 0, "")]);
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Progressing);
    let is_recorded = |record: &Record| record.state == State::Pinning;
    assert!(cluster.release.progress.consumers.iter().all(is_recorded), "what is done is in the record");
    assert_eq!((cluster.pins("web").as_str(), cluster.pins("api").as_str()), (NEW, NEW));
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Baking);
    cluster.wait(29);
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Baking);
    cluster.wait(1);
    cluster.turn();
    assert!(cluster.succeeded && cluster.phase() == Phase::Succeeded);
    assert_eq!(cluster.held, None);
}

#[test]
fn a_bad_version_is_put_back_exactly_as_it_was_and_held() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD), deployment("api", 0, "")]).with_bad("app-2");
    assert_eq!(cluster.run(), Phase::RolledBack);
    assert_eq!((cluster.pins("web").as_str(), cluster.pins("api").as_str()), (OLD, ""));
    assert!(cluster.held.unwrap().contains("CrashLoopBackOff"));
    assert!(!cluster.succeeded);
}

#[test]
fn a_later_wave_never_sees_a_bad_version() {
    let mut cluster = Cluster::new(vec![deployment("first", 0, OLD), deployment("second", 1, OLD)]).with_bad("app-2");
    assert_eq!(cluster.run(), Phase::RolledBack);
    assert!(cluster.written.iter().all(|(name, _)| name == "first"), "{:?}", cluster.written);
}

#[test]
fn waves_follow_one_another_after_their_bake() {
    let mut cluster = Cluster::new(vec![deployment("second", 7, OLD), deployment("first", -1, OLD)]);
    for _ in 0..3 {
        cluster.turn();
    }
    assert_eq!((cluster.phase(), cluster.pins("second").as_str()), (Phase::Baking, OLD));
    assert_eq!(cluster.run(), Phase::Succeeded);
    assert_eq!(cluster.written.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["first", "second"]);
}

#[test]
fn whoever_changes_its_code_ahead_of_its_wave_is_not_waited_for_before_it() {
    let mut second = deployment("second", 1, OLD);
    second.rollout.is_midway = true;
    let mut cluster = Cluster::new(vec![deployment("first", 0, OLD), second]);
    assert_eq!(cluster.run(), Phase::Succeeded);
    assert_eq!(cluster.written.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["first", "second"]);
}

#[test]
fn a_canary_stops_after_the_first_batch_until_it_has_baked() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.policy.canary = Some(BatchSize::Pods(1));
    for _ in 0..3 {
        cluster.turn();
    }
    assert_eq!(cluster.phase(), Phase::Baking);
    assert!(cluster.members[0].is_gated && cluster.members[0].rollout.updated == 1);
    cluster.wait(30);
    cluster.turn();
    cluster.turn();
    assert!(!cluster.members[0].is_gated && cluster.members[0].rollout.updated == 3);
    assert_eq!(cluster.run(), Phase::Succeeded);
}

#[test]
fn whoever_scales_in_a_canary_changes_nothing_about_it() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.policy.canary = Some(BatchSize::Percent(30));
    for _ in 0..3 {
        cluster.turn();
    }
    assert_eq!(cluster.phase(), Phase::Baking);
    cluster.members[0].rollout.desired = 10;
    let step = cluster.observe();
    assert_eq!((step.progress.phase, step.actions.len()), (Phase::Baking, 0), "one pod is still what goes first");
    cluster.members[0].partition = Some(crate::gate::Partition { now: 2, own: 0 });
    let step = cluster.observe();
    assert!(
        matches!(step.actions[..], [Action::Pin { gate: Gate::FirstBatch { size: 1, .. }, .. }]),
        "{:?}",
        step.actions
    );
    cluster.members[0].partition = Some(crate::gate::Partition { now: 9, own: 0 });
    assert_eq!(cluster.observe().actions, []);
}

#[test]
fn a_canary_that_is_paused_stays_so_for_as_long_as_it_is() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.policy.canary = Some(BatchSize::Pods(1));
    for _ in 0..3 {
        cluster.turn();
    }
    cluster.release.wishes.paused = true;
    let member = &mut cluster.members[0];
    member.units[0].since = Some(cluster.now);
    member.holds_for = Some(crate::gate::hold(cluster.policy.bake));
    cluster.wait(300);
    assert_eq!(cluster.observe().actions, [], "there is time");
    assert!(cluster.observe().wake.is_some(), "but it runs out");
    cluster.wait(100);
    let step = cluster.observe();
    assert_eq!(step.progress.phase, Phase::Paused);
    let longer = crate::gate::hold(cluster.policy.bake) + Duration::from_secs(400);
    let renewed = |action: &Action| matches!(action, Action::Pin { gate: Gate::FirstBatch { size: 1, hold }, .. } if *hold == longer);
    assert!(step.actions.len() == 1 && renewed(&step.actions[0]), "{:?}", step.actions);
    cluster.members[0].holds_for = None;
    assert_eq!(cluster.observe().actions, [], "somebody else decides how long it holds");
}

#[test]
fn the_pods_of_a_canary_are_young_and_its_gate_stays_closed() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.policy.canary = Some(BatchSize::Pods(1));
    cluster.turn();
    cluster.members[0].is_unfit_for_gate = true;
    cluster.turn();
    assert_eq!(cluster.observe().actions, []);
    assert!(cluster.members[0].is_gated);
}

#[test]
fn a_consumer_behind_a_gate_was_moved_by_a_release_that_is_lost_and_is_still_a_canary() {
    let mut cluster = Cluster::new(vec![Member { is_gated: true, ..deployment("web", 0, NEW) }]).with_bad("app-2");
    cluster.policy.canary = Some(BatchSize::Pods(1));
    cluster.members[0].rollout.updated = 1;
    assert_eq!(cluster.run(), Phase::RolledBack);
    assert_eq!(cluster.pins("web"), OLD);
}

#[test]
fn a_consumer_that_cannot_be_written_is_told_and_fails_in_the_end_while_others_go_back() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD), deployment("api", 0, OLD)]);
    cluster.turn();
    cluster.members[0].pins = OLD.parse().unwrap();
    cluster.refused.insert(cluster.members[0].consumer.clone(), "a quota is in the way".into());
    let step = cluster.observe();
    assert!(step.progress.reason.contains("Deployment web cannot be written"), "{}", step.progress.reason);
    cluster.now += SignedDuration::try_from(cluster.policy.progress_deadline).unwrap();
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::RollingBack);
    assert!(cluster.held.as_ref().unwrap().contains("a quota is in the way"));
    assert_eq!(cluster.run(), Phase::RolledBack);
    assert_eq!(cluster.pins("api"), OLD);
}

#[test]
fn whoever_waits_for_a_person_with_the_old_version_is_back() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]).with_bad("app-2");
    cluster.turn();
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::RollingBack);
    cluster.members[0].rollout.waits_for = Some("`promote`".into());
    assert_eq!(cluster.run(), Phase::RolledBack);
}

#[test]
fn a_pause_says_what_goes_on_by_itself() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.members[0].consumer.kind = "Rollout".into();
    cluster.turn();
    cluster.members[0].rollout.is_complete = false;
    cluster.release.wishes.paused = true;
    let step = cluster.observe();
    assert!(!step.progress.reason.contains("goes on"), "it waits for somebody: {}", step.progress.reason);
    cluster.members[0].rollout.goes_on_by_itself = true;
    let step = cluster.observe();
    assert!(step.progress.reason.contains("`kubectl argo rollouts pause web`"), "{}", step.progress.reason);
}

#[test]
fn what_succeeded_in_its_first_step_and_was_not_recorded_is_not_aborted_any_more() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, NEW)]);
    cluster.release.wishes.promote = true;
    cluster.roll();
    for action in cluster.observe().actions {
        cluster.perform(action);
    }
    assert!(cluster.succeeded, "the operator died before the record");
    cluster.release.wishes.abort = true;
    assert_eq!(cluster.run(), Phase::Succeeded);
    assert_eq!(cluster.held, None);
}

#[test]
fn a_pod_that_is_lost_long_after_it_was_ready_has_time_to_come_back() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.turn();
    cluster.turn();
    cluster.release.wishes.paused = true;
    cluster.now += SignedDuration::try_from(cluster.policy.progress_deadline * 2).unwrap();
    cluster.members[0].rollout.is_complete = false;
    let step = cluster.observe();
    assert_eq!(step.progress.phase, Phase::Paused, "{}", step.progress.reason);
    cluster.release.progress = step.progress;
    let step = cluster.observe();
    assert_eq!(step.progress.phase, Phase::Paused, "{}", step.progress.reason);
}

#[test]
fn a_canary_that_baked_for_longer_than_the_deadline_goes_on() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.policy.canary = Some(BatchSize::Pods(1));
    cluster.policy.bake = cluster.policy.progress_deadline + Duration::from_secs(60);
    assert_eq!(cluster.run(), Phase::Succeeded);
}

#[test]
fn a_release_whose_successor_is_paused_looks_after_what_it_moved() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.turn();
    let resumed = Wait::For("once that is resumed".into());
    (cluster.superseded_by, cluster.successor_waits) = (Some("configmap-app-3".into()), Some(resumed));
    cluster.turn();
    assert!(cluster.release.progress.reason.contains("once that is resumed"), "{}", cluster.release.progress.reason);
    cluster.bad.insert("app-2".into());
    cluster.roll();
    assert_eq!(cluster.run(), Phase::RolledBack);
}

#[test]
fn who_was_never_moved_is_not_judged_on_the_way_back() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD), deployment("later", 1, OLD)]).with_bad("app-2");
    cluster.turn();
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::RollingBack);
    cluster.bad.insert("app-1".into());
    cluster.turn();
    let later = cluster.release.progress.consumers.iter().find(|record| record.consumer.name == "later").unwrap();
    assert_eq!(later.state, State::Restored, "its own trouble is its own");
}

#[test]
fn a_freeze_in_the_middle_of_a_canary_is_told_and_not_blamed_on_the_version() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.policy.canary = Some(BatchSize::Pods(1));
    for _ in 0..3 {
        cluster.turn();
    }
    cluster.wait(30);
    cluster.release.progress = cluster.observe().progress;
    cluster.refused.insert(cluster.members[0].consumer.clone(), "frozen".into());
    let step = cluster.observe();
    assert!(step.progress.reason.contains("cannot be written, and is tried again: frozen"), "{}", step.progress.reason);
    cluster.release.progress = step.progress;
    cluster.wait(301);
    let step = cluster.observe();
    assert!(step.progress.reason.contains("it cannot be written: frozen"), "{}", step.progress.reason);
}

#[test]
fn a_workload_behind_its_gate_is_not_done() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.policy.canary = Some(BatchSize::Pods(1));
    for _ in 0..3 {
        cluster.turn();
    }
    cluster.wait(30);
    cluster.turn();
    // A partition makes a StatefulSet think so.
    cluster.members[0].rollout.is_complete = true;
    let step = cluster.observe();
    assert_eq!(step.progress.phase, Phase::Progressing);
    assert!(matches!(&step.actions[..], [Action::OpenGate { .. }]), "{:?}", step.actions);
}

#[test]
fn a_gate_that_somebody_forces_is_told() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.policy.canary = Some(BatchSize::Pods(1));
    cluster.turn();
    cluster.turn();
    cluster.wait(5);
    assert!(!cluster.observe().progress.reason.contains("wrote over"));
    let is_told = |cluster: &Cluster| {
        cluster.observe().progress.reason.contains("Deployment web does not stop after its first pods")
    };
    let mut replaced = cluster.clone();
    replaced.members[0].is_gated = false;
    assert!(is_told(&replaced), "a manifest that knows of no gate takes it along");
    cluster.members[0].is_forced = true;
    assert!(is_told(&cluster));
}

#[test]
fn a_bad_canary_is_put_back_and_its_gate_opened() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]).with_bad("app-2");
    cluster.policy.canary = Some(BatchSize::Percent(30));
    assert_eq!(cluster.run(), Phase::RolledBack);
    assert!(!cluster.members[0].is_gated);
    assert_eq!(cluster.pins("web"), OLD);
}

#[test]
fn a_consumer_that_changed_its_code_in_the_same_step_is_left_to_a_person() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, NEW), deployment("api", 0, OLD)]).with_bad("app-2");
    cluster.roll();
    assert_eq!(cluster.run(), Phase::Failed);
    assert_eq!((cluster.pins("web").as_str(), cluster.pins("api").as_str()), (NEW, OLD));
    assert!(cluster.held.as_ref().unwrap().contains("kubectl rollout undo deployment/web"), "{:?}", cluster.held);
}

#[test]
fn rolling_back_only_the_config_of_a_joined_consumer_is_a_choice() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, NEW)]).with_bad("app-2");
    cluster.policy.joining.on_failure = JoinedFailure::RollBackConfig;
    cluster.roll();
    assert_eq!(cluster.run(), Phase::RolledBack);
    assert_eq!(cluster.pins("web"), OLD);
}

#[test]
fn a_workload_that_comes_during_the_release_is_part_of_it() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.turn();
    cluster.turn();
    cluster.members.push(deployment("late", 0, OLD));
    assert_eq!(cluster.run(), Phase::Succeeded);
    assert_eq!(cluster.pins("late"), NEW);
}

#[test]
fn somebody_who_undoes_a_consumer_is_respected() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD), deployment("api", 0, OLD)]);
    for _ in 0..3 {
        cluster.turn();
    }
    cluster.members[0].pins = OLD.parse().unwrap();
    assert_eq!(cluster.run(), Phase::Succeeded);
    assert_eq!((cluster.pins("web").as_str(), cluster.pins("api").as_str()), (OLD, NEW));
    let reason = &cluster.release.progress.reason;
    assert!(reason.contains("1 of 2 consumers run it") && reason.contains("Deployment web: somebody"), "{reason}");
}

#[test]
fn when_nobody_runs_it_any_more_it_has_not_succeeded() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    for _ in 0..3 {
        cluster.turn();
    }
    cluster.members[0].pins = OLD.parse().unwrap();
    assert_eq!(cluster.run(), Phase::Failed);
    assert!(!cluster.succeeded && cluster.held.unwrap().contains("Deployment web: somebody gave it other versions"));
}

#[test]
fn who_could_not_be_judged_is_named() {
    let idle = Rollout {
        is_observed: true,
        is_complete: true,
        idle: Some("it is scaled to zero".into()),
        ..Rollout::default()
    };
    let asleep = Member { rollout: idle, ..deployment("asleep", 0, OLD) };
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD), asleep]);
    cluster.members[1].can_gate = false;
    let mut end = None;
    for _ in 0..50 {
        let step = cluster.observe();
        cluster.release.progress = step.progress;
        step.actions.into_iter().for_each(|action| cluster.perform(action));
        cluster.roll();
        cluster.members[1].units.clear();
        cluster.members[1].rollout.is_complete = true;
        cluster.wait(5);
        end = cluster.phase().has_ended().then(|| cluster.release.progress.clone());
        if end.is_some() {
            break;
        }
    }
    let end = end.unwrap();
    assert_eq!(end.phase, Phase::Succeeded);
    assert!(
        end.reason.contains("1 of 2 consumers") && end.reason.contains("Deployment asleep: it is scaled"),
        "{}",
        end.reason
    );
    assert_eq!(end.consumers.iter().filter(|record| record.unjudged.is_some()).count(), 1);
}

#[test]
fn pods_that_only_a_person_replaces_are_named_for_as_long_as_one_is_left() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, NEW)]);
    cluster.roll();
    let member = &mut cluster.members[0];
    (member.rollout.is_by_hand, member.rollout.idle) = (true, Some("OnDelete".into()));
    member.units[0].is_new = false;
    let told = |cluster: &Cluster| {
        let mut cluster = cluster.clone();
        for _ in 0..20 {
            let step = cluster.observe();
            cluster.release.progress = step.progress;
            cluster.wait(5);
        }
        assert_eq!(cluster.phase(), Phase::Succeeded);
        cluster.release.progress.reason
    };
    assert!(told(&cluster).contains("Deployment web: OnDelete"));
    cluster.members[0].units[0].is_new = true;
    assert_eq!(told(&cluster), "all consumers run it and are healthy");
    cluster.members[0].rollout.kept_back = 2;
    assert!(told(&cluster).contains("its partition keeps 2 of its pods at their old version"));
}

#[test]
fn what_the_policy_leaves_to_a_person_goes_back_when_they_say_so() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]).with_bad("app-2");
    cluster.policy.automatic_rollback = false;
    assert_eq!(cluster.run(), Phase::Failed);
    assert_eq!(cluster.pins("web"), NEW);
    assert!(cluster.release.progress.reason.contains("`lockstep abort configmap/app`"));
    cluster.release.wishes.abort = true;
    let mut late = cluster.clone();
    late.blocked = Some(Block::Release("configmap-app-3".into()));
    assert_eq!(late.observe().progress.phase, Phase::Failed, "another release moves it by now");
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::RollingBack);
    assert_eq!((cluster.run(), cluster.pins("web").as_str()), (Phase::Aborted, OLD));
}

/// A release that ended while a consumer was scaled to zero.
fn ended_with_somebody_asleep() -> Cluster {
    let idle = Rollout {
        is_observed: true,
        is_complete: true,
        idle: Some("it is scaled to zero".into()),
        ..Rollout::default()
    };
    let asleep = Member { rollout: idle, can_gate: false, ..deployment("asleep", 0, OLD) };
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD), asleep]);
    for _ in 0..50 {
        cluster.turn();
        cluster.members[1].units.clear();
        cluster.members[1].rollout.is_complete = true;
        if cluster.phase().has_ended() {
            break;
        }
        cluster.wait(5);
    }
    assert_eq!(cluster.phase(), Phase::Succeeded);
    assert!(cluster.release.progress.watched_until.is_some());
    cluster
}

#[test]
fn whoever_runs_it_only_after_the_end_is_judged_then() {
    let mut cluster = ended_with_somebody_asleep();
    let look = |cluster: &mut Cluster, seconds: i64| {
        cluster.wait(seconds);
        let step = cluster.observe();
        assert_eq!((step.progress.phase, step.actions), (Phase::Succeeded, vec![]), "the end stays the end");
        cluster.release.progress = step.progress;
    };
    look(&mut cluster, 60);
    assert!(cluster.release.progress.reason.contains("asleep: it is scaled to zero"));
    let rollout = Rollout { idle: None, desired: 1, updated: 1, ready: 1, ..cluster.members[1].rollout.clone() };
    cluster.members[1].rollout = rollout;
    cluster.members[1].units = vec![unit("asleep-0", false, cluster.now)];
    look(&mut cluster, 5);
    assert!(cluster.release.progress.reason.contains("1 of 2"), "it has not baked");
    let mut bad = cluster.clone();
    bad.members[1].units = vec![unit("asleep-0", true, bad.now)];
    look(&mut bad, 60);
    let reason = &bad.release.progress.reason;
    assert!(reason.contains("is bad: pod asleep-0: CrashLoop") && reason.contains("lockstep rollback configmap/app"));
    assert!(bad.release.progress.watched_until.is_some(), "it may get well");
    look(&mut cluster, 60);
    assert_eq!(cluster.release.progress.reason, "all consumers run it and are healthy");
    assert_eq!(cluster.release.progress.watched_until, None);
}

#[test]
fn whom_a_later_release_does_not_move_is_still_watched_by_this_one_but_not_for_ever() {
    let mut cluster = ended_with_somebody_asleep();
    cluster.succeeded = false;
    let step = cluster.observe();
    assert!(step.progress.watched_until.is_some(), "it uses nothing that the later one changed");
    assert!(step.progress.reason.starts_with("it was current; 1 of 2"), "{}", step.progress.reason);
    let mut taken_over = cluster.clone();
    taken_over.taken_over = [cluster.members[1].consumer.clone()].into();
    assert_eq!(taken_over.observe().progress.watched_until, None);
    cluster.wait(3600);
    assert_eq!(cluster.observe().progress.watched_until, None);
}

#[test]
fn a_newcomer_that_does_not_run_takes_nobody_back_who_does() {
    let newcomer = |name: &str| Member { is_newcomer: true, template: "bad image".into(), ..deployment(name, 0, NEW) };
    let broken = |cluster: &mut Cluster| {
        let member = cluster.members.iter_mut().find(|member| member.is_newcomer).unwrap();
        member.units = vec![unit("new-0", true, cluster.now)];
        (member.rollout.ready, member.rollout.is_complete) = (0, false);
    };
    let run = |members: Vec<Member>| {
        let mut cluster = Cluster::new(members);
        for _ in 0..50 {
            broken(&mut cluster);
            cluster.turn();
            if cluster.phase().has_ended() {
                break;
            }
            cluster.wait(5);
        }
        cluster
    };
    let cluster = run(vec![deployment("web", 0, OLD), newcomer("new")]);
    assert_eq!((cluster.phase(), cluster.pins("web").as_str()), (Phase::Succeeded, NEW));
    let reason = &cluster.release.progress.reason;
    assert!(reason.contains("1 of 2") && reason.contains("Deployment new: it is new, and not well"), "{reason}");
    let alone = run(vec![newcomer("new")]);
    assert_eq!(alone.phase(), Phase::Failed, "nobody else can show that it is good");
    let reason = &alone.release.progress.reason;
    assert!(reason.contains("It is new, so it is left to you") && !reason.contains("undo"), "{reason}");
}

#[test]
fn a_config_that_nobody_uses_says_so() {
    let mut cluster = Cluster::new(Vec::new());
    assert_eq!(cluster.run(), Phase::Succeeded);
    assert!(cluster.release.progress.reason.contains("nobody uses it"), "{}", cluster.release.progress.reason);
}

/// A pod that the template left behind and that crashes.
fn stuck(now: Timestamp) -> Unit {
    Unit { is_new: false, uid: "u1".into(), ..unit("db-1", true, now) }
}

#[test]
fn what_a_stateful_set_would_wait_for_for_ever_is_deleted() {
    let set =
        |member: Member| Member { consumer: ConsumerId { kind: "StatefulSet".into(), ..member.consumer }, ..member };
    let mut cluster = Cluster::new(vec![set(deployment("db", 0, OLD))]).with_bad("app-2");
    while cluster.phase() != Phase::RollingBack {
        cluster.turn();
    }
    cluster.turn();
    cluster.members[0].units = vec![stuck(cluster.now)];
    (cluster.members[0].rollout.is_complete, cluster.members[0].rollout.ready) = (false, 2);
    let step = cluster.observe();
    let delete =
        Action::DeletePod { consumer: cluster.members[0].consumer.clone(), pod: "db-1".into(), uid: "u1".into() };
    assert_eq!(step.actions, [delete]);
    assert_eq!(step.progress.phase, Phase::RollingBack, "it is not back yet");
    cluster.may_delete_pods = false;
    assert_eq!(cluster.observe().actions, []);
    cluster.wait(301);
    let Progress { phase, reason, .. } = cluster.observe().progress;
    assert_eq!(phase, Phase::Failed);
    assert!(reason.contains("`kubectl delete pod db-1`"), "{reason}");
}

#[test]
fn what_is_not_back_at_the_deadline_has_failed_and_is_named() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]).with_bad("app-2");
    while cluster.phase() != Phase::RollingBack {
        cluster.turn();
    }
    cluster.turn();
    for _ in 0..2 {
        cluster.members[0].units = vec![Unit { name: "web-7".into(), ..stuck(cluster.now) }];
        (cluster.members[0].rollout.is_complete, cluster.members[0].rollout.ready) = (false, 2);
        let step = cluster.observe();
        cluster.release.progress = step.progress;
        cluster.wait(301);
    }
    assert_eq!(cluster.phase(), Phase::Failed);
    assert!(
        cluster.release.progress.reason.contains("kubectl delete pod web-7"),
        "{}",
        cluster.release.progress.reason
    );
}

/// A turn of the machine where no controller replaces pods: a ReplicaSet that no Deployment made.
fn turn_alone(cluster: &mut Cluster) {
    let step = cluster.observe();
    cluster.release.progress = step.progress;
    for action in step.actions {
        match action {
            Action::Pin { pins, .. } => cluster.members[0].pins = pins,
            Action::Hold { reason } => cluster.held = Some(reason),
            other => panic!("{other:?}"),
        }
    }
    cluster.wait(5);
}

#[test]
fn a_pod_that_nobody_replaces_is_named_when_it_is_left_with_what_failed() {
    let mut set = deployment("web", 0, OLD);
    set.consumer.kind = "ReplicaSet".into();
    let idle = Some("its pods stay as they are when its template changes".to_owned());
    set.rollout = Rollout { is_observed: true, is_complete: true, is_by_hand: true, idle, ..Rollout::default() };
    let mut cluster = Cluster::new(vec![set]);
    while cluster.phase() != Phase::Baking {
        turn_alone(&mut cluster);
    }
    // Somebody deletes a pod: what comes in its place runs the new version.
    cluster.members[0].units = vec![unit("web-7", true, cluster.now)];
    while cluster.pins("web") != OLD {
        turn_alone(&mut cluster);
    }
    assert_eq!(cluster.phase(), Phase::RollingBack);
    cluster.members[0].units[0].is_new = false;
    let end = |mut cluster: Cluster| {
        while !cluster.phase().has_ended() {
            turn_alone(&mut cluster);
        }
        (cluster.phase(), cluster.release.progress.reason)
    };
    let (phase, reason) = end(cluster.clone());
    assert_eq!(phase, Phase::Failed);
    let told = "pod web-7 of ReplicaSet web still runs the failed version: `kubectl delete pod web-7`";
    assert!(reason.contains(told), "{reason}");
    cluster.members[0].units.clear();
    assert_eq!(end(cluster).0, Phase::RolledBack, "somebody deleted it in time");
}

#[test]
fn who_is_recreated_is_judged_like_everybody() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    for _ in 0..2 {
        cluster.turn();
    }
    let gone = cluster.members.remove(0);
    cluster.turn();
    assert_eq!(cluster.release.progress.consumers[0].state, State::Gone);
    cluster.members.insert(0, gone);
    let mut bad = cluster.clone().with_bad("app-2");
    bad.roll();
    assert_eq!((bad.run(), bad.pins("web").as_str()), (Phase::RolledBack, OLD));
    assert_eq!(cluster.run(), Phase::Succeeded);
}

#[test]
fn who_is_recreated_at_once_was_not_left_alone_by_anybody() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    for _ in 0..2 {
        cluster.turn();
    }
    assert_eq!(cluster.pins("web"), NEW);
    // Where nobody may join, a new workload gets what is current.
    cluster.members[0] = Member { uid: "uid-2".into(), ..deployment("web", 0, OLD) };
    assert_eq!((cluster.run(), cluster.pins("web").as_str()), (Phase::Succeeded, NEW));
}

#[test]
fn a_change_whose_consumers_are_all_gone_is_released_anew_and_not_held() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    for _ in 0..2 {
        cluster.turn();
    }
    assert_eq!(cluster.phase(), Phase::Baking);
    cluster.members.clear();
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Baking, "it may come again");
    cluster.release.wishes.promote = true;
    assert_eq!(cluster.run(), Phase::Failed);
    let reason = &cluster.release.progress.reason;
    assert_eq!(reason, "nobody runs it (Deployment web: it is gone). It is released anew");
    assert!(cluster.held.is_none() && !cluster.succeeded);
}

#[test]
fn where_pods_come_and_go_a_bake_lasts_three_times_as_long_at_most() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    for _ in 0..2 {
        cluster.turn();
    }
    for _ in 0..4 {
        assert_eq!(cluster.phase(), Phase::Baking, "each pod is watched as long as the others");
        cluster.wait(20);
        cluster.members[0].units.clear();
        cluster.roll();
        cluster.turn();
    }
    cluster.wait(9);
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Baking);
    cluster.wait(1);
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Succeeded, "{}", cluster.release.progress.reason);
}

#[test]
fn a_pod_that_finds_no_room_in_the_bake_is_waited_for_and_then_named() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    for _ in 0..2 {
        cluster.turn();
    }
    let homeless = Some("no node has room for it".to_owned());
    let added = Unit { is_ready: false, was_ready: false, homeless, ..unit("web-9", false, cluster.now) };
    cluster.members[0].units.push(added);
    cluster.members[0].rollout.desired = 4;
    let mut after = |seconds: i64| {
        cluster.wait(seconds);
        cluster.release.progress = cluster.observe().progress;
        (cluster.phase(), cluster.release.progress.reason.clone())
    };
    assert_eq!(after(29).0, Phase::Baking);
    assert_eq!(after(300).0, Phase::Baking, "it has a progress deadline after the bake to find some");
    let (phase, reason) = after(1);
    assert_eq!(phase, Phase::Succeeded, "{reason}");
    assert!(reason.contains("Deployment web: a pod is not ready: no node has room for it"), "{reason}");
}

#[test]
fn a_pod_that_comes_in_the_bake_and_never_gets_ready_is_named() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    for _ in 0..2 {
        cluster.turn();
    }
    assert_eq!(cluster.phase(), Phase::Baking);
    for _ in 0..100 {
        // Somebody scaled it.
        let added = Unit { is_ready: false, was_ready: false, ..unit("web-9", false, cluster.now) };
        let is_scaled = cluster.phase() == Phase::Baking;
        cluster.members[0].units.extend(is_scaled.then_some(added));
        cluster.members[0].rollout.desired = if is_scaled { 4 } else { 3 };
        cluster.turn();
        if cluster.phase().has_ended() {
            break;
        }
        cluster.wait(5);
    }
    let reason = &cluster.release.progress.reason;
    assert_eq!(cluster.phase(), Phase::RolledBack, "{reason}");
    assert!(reason.contains("Deployment web: pod web-9 did not become ready"), "{reason}");
}

fn rollout(member: Member) -> Member {
    Member { consumer: ConsumerId { kind: "Rollout".into(), ..member.consumer }, can_gate: false, ..member }
}

#[test]
fn what_a_person_aborted_is_not_started_again() {
    let mut cluster = Cluster::new(vec![rollout(deployment("web", 0, OLD))]);
    cluster.members[0].rollout.stopped = Some("it was aborted".into());
    cluster.turn();
    assert_eq!((cluster.phase(), cluster.written.len()), (Phase::Pending, 0));
    assert!(cluster.release.progress.reason.contains("Rollout web: it was aborted"));
    cluster.members[0].rollout.stopped = None;
    assert_eq!(cluster.run(), Phase::Succeeded);
}

#[test]
fn code_that_was_on_its_way_out_is_not_touched_when_it_fails() {
    let mut cluster = Cluster::new(vec![rollout(deployment("web", 0, OLD))]);
    cluster.members[0].rollout.is_midway = true;
    cluster.turn();
    cluster.members[0].rollout.failure =
        Some(crate::health::Failure { reason: "its Rollout was aborted".into(), at: None });
    assert_eq!(cluster.run(), Phase::Failed);
    assert_eq!(cluster.pins("web"), NEW, "its template is its owner's");
    assert!(cluster.held.unwrap().contains("kubectl argo rollouts undo web"));
}

/// A Rollout with new code of its own, on its way with the config, that a person aborted.
fn aborted_code() -> Cluster {
    let mut cluster = Cluster::new(vec![rollout(deployment("web", 0, OLD)), deployment("api", 0, OLD)]);
    cluster.members[0].rollout.is_midway = true;
    cluster.turn();
    let rollout = &mut cluster.members[0].rollout;
    rollout.stopped = Some("it was aborted: `kubectl argo rollouts undo web` comes first".into());
    rollout.failure = Some(crate::health::Failure { reason: "its Rollout was aborted".into(), at: None });
    cluster
}

#[test]
fn code_that_a_person_stopped_is_not_started_again_by_an_abort_of_the_config() {
    let mut cluster = aborted_code();
    assert_eq!(cluster.run(), Phase::Failed);
    assert!(!cluster.release.progress.reason.contains("lockstep abort"), "{}", cluster.release.progress.reason);
    cluster.release.wishes.abort = true;
    assert_eq!(cluster.run(), Phase::Failed, "it still has it");
    assert_eq!((cluster.pins("web").as_str(), cluster.pins("api").as_str()), (NEW, OLD));
    assert!(
        cluster.release.progress.reason.contains("Rollout web still has it"),
        "{}",
        cluster.release.progress.reason
    );
    cluster.wait(600);
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Failed, "it is stopped still");
    (cluster.members[0].rollout.stopped, cluster.members[0].rollout.failure) = (None, None);
    cluster.turn();
    assert_eq!(cluster.run(), Phase::Aborted, "what the person had asked for");
    assert_eq!(cluster.pins("web"), OLD);
}

#[test]
fn code_that_a_person_stopped_is_not_started_again_with_the_old_config_either() {
    let mut cluster = aborted_code();
    cluster.policy.joining.on_failure = JoinedFailure::RollBackConfig;
    assert_eq!(cluster.run(), Phase::Failed);
    assert_eq!(cluster.pins("web"), NEW);
}

#[test]
fn whoever_takes_again_what_was_taken_back_does_not_open_the_release_again() {
    let mut cluster = aborted_code();
    cluster.members[1].template = "new code".into();
    assert_eq!(cluster.run(), Phase::Failed);
    cluster.release.wishes.abort = true;
    assert_eq!((cluster.run(), cluster.pins("api").as_str()), (Phase::Failed, OLD));
    cluster.members[1].pins = NEW.parse().unwrap();
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Failed, "that was a person's wish");
    assert!(cluster.release.progress.watched_until.is_some(), "the Rollout is awaited all the same");
}

#[test]
fn what_a_person_stopped_before_its_wave_came_is_waited_for() {
    let mut cluster = Cluster::new(vec![deployment("first", 0, OLD), rollout(deployment("web", 1, OLD))]);
    cluster.turn();
    cluster.members[1].rollout.stopped = Some("it was aborted".into());
    for _ in 0..50 {
        cluster.turn();
        cluster.wait(5);
    }
    assert_eq!((cluster.phase(), cluster.pins("web").as_str()), (Phase::Progressing, OLD));
    assert!(cluster.release.progress.reason.contains("waits for Rollout web: it was aborted"));
    cluster.members[1].rollout.stopped = None;
    assert_eq!(cluster.run(), Phase::Succeeded);
}

#[test]
fn a_crash_while_somebody_is_waited_for_is_a_relapse() {
    let mut cluster = Cluster::new(vec![rollout(deployment("web", 0, OLD))]);
    cluster.turn();
    cluster.members[0].rollout.waits_for = Some("its promotion".into());
    cluster.turn();
    cluster.wait(20);
    let unit = &mut cluster.members[0].units[0];
    (unit.restarts, unit.last_end) = (1, Some(cluster.now));
    let step = cluster.observe();
    assert_eq!(step.progress.phase, Phase::RollingBack);
}

#[test]
fn new_code_in_the_middle_of_a_release_is_not_blamed_on_the_config_and_bakes_anew() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    for _ in 0..3 {
        cluster.turn();
    }
    cluster.wait(25);
    cluster.members[0].template = "code-2".into();
    cluster.members[0].rollout.is_observed = false;
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Progressing, "its new pods have not baked");
    cluster.members[0].rollout.is_observed = true;
    let mut bad = cluster.clone().with_bad("app-2");
    bad.roll();
    assert_eq!(bad.run(), Phase::Failed);
    assert!(bad.held.unwrap().contains("kubectl rollout undo deployment/web"));
    assert_eq!(cluster.run(), Phase::Succeeded);
}

#[test]
fn a_controller_that_waits_for_its_own_min_ready_seconds_does_not_stand_still() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.members[0].rollout.min_ready = Duration::from_secs(400);
    cluster.turn();
    for _ in 0..2 {
        cluster.members[0].rollout.is_complete = false;
        cluster.release.progress = cluster.observe().progress;
        cluster.wait(250);
    }
    assert_eq!(cluster.phase(), Phase::Progressing);
    assert_eq!(cluster.run(), Phase::Succeeded);
}

#[test]
fn what_stands_still_fails_at_its_deadline() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.policy.progress_deadline = Duration::from_secs(60);
    cluster.turn();
    cluster.members[0].rollout.ready = 1;
    for _ in 0..2 {
        let step = cluster.observe();
        cluster.release.progress = step.progress;
        cluster.wait(61);
    }
    assert_eq!(cluster.phase(), Phase::RollingBack);
    assert!(cluster.release.progress.reason.contains("no progress for 60 s"), "{}", cluster.release.progress.reason);
}

#[test]
fn a_crash_during_the_bake_fails_it() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    for _ in 0..3 {
        cluster.turn();
    }
    assert_eq!(cluster.phase(), Phase::Baking);
    cluster.wait(20);
    let unit = &mut cluster.members[0].units[0];
    (unit.restarts, unit.last_end) = (1, Some(cluster.now));
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::RollingBack);
    assert_eq!(cluster.run(), Phase::RolledBack);
}

#[test]
fn steering() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.release.wishes.paused = true;
    cluster.turn();
    assert_eq!((cluster.phase(), cluster.written.len()), (Phase::Paused, 0));
    cluster.release.wishes.paused = false;
    cluster.turn();
    cluster.turn();
    cluster.release.wishes.paused = true;
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Paused);
    (cluster.release.wishes.paused, cluster.release.wishes.promote) = (false, true);
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Succeeded, "promoted: nothing bakes");

    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.turn();
    cluster.turn();
    cluster.release.wishes.abort = true;
    assert_eq!(cluster.run(), Phase::Aborted);
    assert_eq!(cluster.pins("web"), OLD);
    assert!(cluster.held.is_some());
}

#[test]
fn what_it_waits_for_has_a_name() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.blocked = Some(Block::Release("configmap-other-1".into()));
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Pending);
    assert!(cluster.release.progress.reason.contains("configmap-other-1"));
    cluster.blocked = None;
    assert_eq!(cluster.run(), Phase::Succeeded);
}

#[test]
fn a_release_whose_policy_cannot_be_read_goes_no_further_and_still_goes_back() {
    let block = || Some(Block::Unreadable("ReleasePolicy default cannot be read".into()));
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.blocked = block();
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Pending);
    cluster.blocked = None;
    cluster.turn();
    cluster.turn();
    cluster.blocked = block();
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Paused);
    assert!(cluster.release.progress.reason.contains("ReleasePolicy default cannot be read"));
    cluster.blocked = None;
    assert_eq!(cluster.run(), Phase::Succeeded);

    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]).with_bad("app-2");
    cluster.turn();
    cluster.blocked = block();
    assert_eq!(cluster.run(), Phase::RolledBack);
}

#[test]
fn a_newer_release_takes_over_and_still_knows_the_way_back() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, "")]);
    for _ in 0..3 {
        cluster.turn();
    }
    cluster.superseded_by = Some("configmap-app-3".into());
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Superseded);
    assert_eq!(cluster.pins("web"), NEW, "the newer release moves it on");

    let mut newer = Cluster::new(cluster.members.clone()).with_bad("app-3");
    newer.release.moves[0].to = "app-3".into();
    newer.inherited.clone_from(&cluster.release.progress.consumers);
    assert_eq!(newer.run(), Phase::RolledBack);
    assert_eq!(newer.pins("web"), "", "as it was before the first of the two");
}

#[test]
fn whoever_an_earlier_release_moved_goes_back_although_its_turn_had_not_come_again() {
    let mut cluster = Cluster::new(vec![deployment("first", 0, OLD), deployment("later", 0, OLD)]);
    cluster.turn();
    cluster.turn();
    let mut newer = Cluster::new(cluster.members.clone());
    newer.release.moves[0].to = "app-3".into();
    newer.members[1].wave = 1;
    newer.inherited.clone_from(&cluster.release.progress.consumers);
    newer.turn();
    assert_eq!(newer.pins("later"), NEW, "its wave has not come");
    newer.release.wishes.abort = true;
    assert_eq!(newer.run(), Phase::Aborted);
    assert_eq!((newer.pins("first").as_str(), newer.pins("later").as_str()), (OLD, OLD));
}

#[test]
fn what_an_earlier_release_did_not_move_goes_back_to_what_it_is_now() {
    let mut earlier = Cluster::new(vec![deployment("web", 0, "configmap/app=app-1,configmap/other=other-0")]);
    earlier.turn();
    let mut newer = with_other("configmap/app=app-2,configmap/other=other-1").with_bad("app-2");
    newer.inherited.clone_from(&earlier.release.progress.consumers);
    assert_eq!(newer.run(), Phase::RolledBack);
    assert_eq!(newer.pins("web"), "configmap/app=app-1,configmap/other=other-1", "another release gave it that since");
}

#[test]
fn what_gave_up_and_could_not_record_that_goes_back_although_a_newer_one_waits() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.turn();
    (cluster.held, cluster.superseded_by) = (Some("it was bad".into()), Some("configmap-app-3".into()));
    let mut left = cluster.clone();
    assert_eq!(cluster.run(), Phase::RolledBack);
    assert_eq!(cluster.pins("web"), OLD);
    left.policy.automatic_rollback = false;
    assert_eq!(left.run(), Phase::Failed);
    assert_eq!(left.pins("web"), NEW, "the policy leaves it to a person");
}

#[test]
fn what_is_to_be_superseded_later_is_looked_after_but_goes_no_further() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, "configmap/app=app-1")]);
    cluster.turn();
    cluster.superseded_by = Some("configmap-app-3".into());
    cluster.successor_waits = Some(Wait::Until(cluster.now + SignedDuration::from_secs(300)));
    for _ in 0..20 {
        cluster.turn();
        cluster.wait(5);
    }
    assert_eq!(cluster.phase(), Phase::Progressing, "it would have succeeded long ago");
    let mut good = cluster.clone();
    good.successor_waits = None;
    assert_eq!(good.run(), Phase::Superseded);
    let mut bad = cluster.with_bad("app-2");
    bad.roll();
    assert_eq!(bad.run(), Phase::RolledBack);
    assert_eq!(bad.pins("web"), "configmap/app=app-1");
}

/// A release of two configs, and a consumer of both that has these pins.
fn with_other(pins: &str) -> Cluster {
    let other = ConfigRef::new(ConfigKind::ConfigMap, "other");
    let mut member = deployment("web", 0, pins);
    member.references.insert(other.clone());
    member.concerned = [other.clone()].into();
    let mut cluster = Cluster::new(vec![member]);
    cluster.release.moves.push(Move { config: other, from: "other-1".into(), to: "other-2".into() });
    cluster
}

#[test]
fn whoever_joined_with_a_part_of_a_release_goes_back_with_all_of_it() {
    let mut cluster = with_other("configmap/app=app-2,configmap/other=other-1");
    cluster.turn();
    assert_eq!(cluster.pins("web"), "configmap/app=app-2,configmap/other=other-2");
    cluster.turn();
    cluster.release.wishes.abort = true;
    assert_eq!(cluster.run(), Phase::Aborted);
    assert_eq!(cluster.pins("web"), "configmap/app=app-1,configmap/other=other-1");
}

#[test]
fn whoever_joined_with_a_part_and_waits_goes_back_with_that_part() {
    let mut cluster = with_other("configmap/app=app-2,configmap/other=other-1");
    cluster.members[0].wave = 1;
    cluster.members.push(deployment("first", 0, OLD));
    cluster.turn();
    cluster.turn();
    assert_eq!(cluster.pins("web"), "configmap/app=app-2,configmap/other=other-1", "its wave has not come");
    cluster.release.wishes.abort = true;
    assert_eq!(cluster.run(), Phase::Aborted);
    assert_eq!(cluster.pins("web"), "configmap/app=app-1,configmap/other=other-1");
}

#[test]
fn what_a_consumer_uses_only_since_the_release_goes_back_with_it() {
    let mut cluster = with_other("configmap/other=other-1");
    cluster.members[0].references.remove(&app());
    cluster.turn();
    cluster.turn();
    cluster.members[0].references.insert(app());
    cluster.members[0].template = "code-2".into();
    cluster.members[0].pins = "configmap/app=app-2,configmap/other=other-2".parse().unwrap();
    cluster.turn();
    cluster.release.wishes.abort = true;
    assert_eq!(cluster.run(), Phase::Aborted);
    assert_eq!(cluster.pins("web"), "configmap/app=app-1,configmap/other=other-1");
}

#[test]
fn whoever_joined_before_it_started_goes_back_when_it_is_aborted() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, NEW), deployment("api", 0, OLD)]);
    cluster.members[0].concerned.clear();
    cluster.blocked = Some(Block::Release("configmap-other-1".into()));
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Pending);
    cluster.release.wishes.abort = true;
    assert_eq!(cluster.run(), Phase::Aborted);
    assert!(cluster.held.is_some());
    assert_eq!((cluster.pins("web").as_str(), cluster.pins("api").as_str()), (OLD, OLD));
}

/// One that has failed, and is about to go back.
fn failing(members: Vec<Member>) -> Cluster {
    let mut cluster = Cluster::new(members).with_bad("app-2");
    while cluster.phase() != Phase::RollingBack {
        cluster.turn();
        cluster.wait(5);
    }
    cluster
}

#[test]
fn who_comes_while_it_goes_back_and_got_what_was_offered_goes_back_too() {
    let mut cluster = failing(vec![deployment("web", 0, OLD)]);
    cluster.is_offered = true;
    cluster.run_for(5);
    assert_eq!(cluster.phase(), Phase::RollingBack, "somebody may come");
    cluster.members.push(Member { is_newcomer: true, ..deployment("new", 0, NEW) });
    cluster.is_offered = false;
    assert_eq!((cluster.run(), cluster.pins("new").as_str()), (Phase::RolledBack, OLD));
}

#[test]
fn what_is_offered_again_for_good_keeps_nobody_from_being_back() {
    let mut cluster = failing(vec![deployment("web", 0, OLD)]);
    cluster.is_offered = true;
    cluster.run_for(15);
    assert_eq!(cluster.phase(), Phase::RolledBack, "somebody wants it tried again");
}

#[test]
fn who_is_recreated_while_it_goes_back_goes_back_too() {
    let mut cluster = failing(vec![deployment("web", 0, OLD)]);
    let gone = cluster.members.remove(0);
    cluster.is_offered = true;
    cluster.turn();
    cluster.members.push(Member { uid: "uid-2".into(), pins: NEW.parse().unwrap(), ..gone });
    cluster.is_offered = false;
    assert_eq!((cluster.run(), cluster.pins("web").as_str()), (Phase::RolledBack, OLD));
}

#[test]
fn who_is_undone_to_what_failed_while_others_go_back_goes_back_again() {
    let slow = deployment("slow", 0, OLD);
    let mut cluster = failing(vec![deployment("fast", 0, OLD), slow]);
    cluster.turn();
    cluster.is_offered = true;
    cluster.turn();
    assert!(cluster.release.progress.consumers.iter().any(|record| record.state == State::Restored));
    cluster.members[0].pins = NEW.parse().unwrap();
    cluster.is_offered = false;
    assert_eq!((cluster.run(), cluster.pins("fast").as_str()), (Phase::RolledBack, OLD));
}

#[test]
fn whoever_waits_with_what_was_never_good_goes_back_with_the_others() {
    let lost = Member { unproven: [app()].into(), ..deployment("api", 1, "configmap/app=app-0") };
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD), lost]).with_bad("app-2");
    assert_eq!((cluster.run(), cluster.pins("api").as_str()), (Phase::RolledBack, OLD));
}

#[test]
fn whom_an_earlier_release_moved_goes_back_once_that_one_has_made_room() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, NEW)]);
    cluster.blocked = Some(Block::Earlier("configmap-app-1".into()));
    cluster.release.wishes.abort = true;
    cluster.turn();
    assert_eq!((cluster.phase(), cluster.release.progress.consumers.len()), (Phase::Pending, 0));
    cluster.blocked = None;
    assert_eq!((cluster.run(), cluster.pins("web").as_str()), (Phase::Aborted, OLD));
}

#[test]
fn whoever_joined_before_it_started_goes_back_when_the_change_is_taken_back() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, NEW), deployment("api", 0, OLD)]);
    cluster.members[1].concerned.clear();
    cluster.release.moves[0].to = "app-1".into();
    assert_eq!(cluster.run(), Phase::Succeeded);
    assert_eq!((cluster.pins("web").as_str(), cluster.pins("api").as_str()), (OLD, OLD));
    let mut nobody = Cluster::new(vec![deployment("api", 0, OLD)]);
    nobody.members[0].concerned.clear();
    nobody.release.moves[0].to = "app-1".into();
    nobody.blocked = Some(Block::Earlier("configmap-app-1".into()));
    nobody.turn();
    assert_eq!(nobody.phase(), Phase::Pending, "whom that one moved is not known yet");
    nobody.blocked = Some(Block::Release("configmap-other-1".into()));
    assert_eq!(nobody.run(), Phase::Superseded, "nobody had it");
}

#[test]
fn a_change_that_is_taken_back_puts_consumers_back_as_they_were() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, "")]);
    for _ in 0..3 {
        cluster.turn();
    }
    let mut back = Cluster::new(cluster.members.clone());
    back.release.moves[0].to = "app-1".into();
    back.inherited.clone_from(&cluster.release.progress.consumers);
    assert_eq!(back.run(), Phase::Succeeded);
    assert_eq!(back.pins("web"), "");
    let mut never = Cluster::new(vec![deployment("web", 0, "")]);
    never.release.moves[0].to = "app-1".into();
    assert_eq!(never.run(), Phase::Superseded);
}

/// Everybody is left with what failed, and the change is taken back. Nothing is known of the release that failed.
fn taken_back(members: Vec<Member>) -> Cluster {
    let stranded = |member: Member| Member { stranded: [app()].into(), ..member };
    let mut cluster = Cluster::new(members.into_iter().map(stranded).collect()).with_bad("app-2");
    cluster.release.moves[0].to = "app-1".into();
    cluster
}

#[test]
fn who_was_left_with_what_failed_goes_back_in_one_step() {
    let mut cluster = taken_back(vec![deployment("first", 0, NEW), deployment("second", 1, NEW)]);
    cluster.policy.canary = Some(BatchSize::Pods(1));
    cluster.policy.max_parallel = Some(1);
    cluster.turn();
    assert_eq!((cluster.pins("first").as_str(), cluster.pins("second").as_str()), (OLD, OLD), "nobody waits");
    assert!(cluster.members.iter().all(|member| !member.is_gated));
    cluster.release.wishes.abort = true;
    assert_eq!(cluster.run(), Phase::Succeeded, "there is nothing else to go back to");
    assert_eq!(cluster.held, None);
}

#[test]
fn who_is_not_well_with_the_old_version_keeps_nobody_from_going_back() {
    let mut cluster = taken_back(vec![deployment("first", 0, NEW), deployment("second", 0, NEW)]).with_bad("app-1");
    cluster.refused = [(cluster.members[1].consumer.clone(), "frozen".to_owned())].into();
    for _ in 0..3 {
        cluster.turn();
        cluster.members[1].pins = NEW.parse().unwrap();
        cluster.wait(1);
    }
    assert_eq!(cluster.phase(), Phase::Progressing, "one is bad, the other one is still tried");
    cluster.refused.clear();
    assert_eq!(cluster.run(), Phase::Failed);
    assert_eq!(cluster.pins("second"), OLD);
    assert!(cluster.release.progress.reason.contains("mend it, or change the config"));
    assert_eq!(cluster.held, None, "what is current is not held");
}

#[test]
fn who_is_broken_by_another_config_that_failed_is_not_blamed_on_this_one() {
    let other = ConfigRef::new(ConfigKind::Secret, "db");
    let broken = Member { stranded: [other].into(), ..deployment("web", 0, OLD) };
    let mut cluster = Cluster::new(vec![broken, deployment("api", 0, OLD)]);
    for _ in 0..100 {
        cluster.turn();
        let since = Some(cluster.now - SignedDuration::from_secs(60));
        for unit in &mut cluster.members[0].units {
            (unit.is_ready, unit.since, unit.trouble) = (false, since, Some("CrashLoopBackOff".into()));
        }
        cluster.members[0].rollout.ready = 0;
        if cluster.phase().has_ended() {
            break;
        }
        cluster.wait(5);
    }
    assert_eq!(cluster.phase(), Phase::Succeeded);
    assert!(
        cluster.release.progress.reason.contains("web: it was broken before"),
        "{}",
        cluster.release.progress.reason
    );
}

#[test]
fn who_changed_its_code_and_still_has_what_failed_with_others_is_named() {
    let joined = Member { template: "code-2".into(), ..deployment("web", 0, NEW) };
    let mut cluster = Cluster::new(vec![joined, deployment("api", 0, OLD)]).with_bad("app-2");
    let healthy = |cluster: &mut Cluster| {
        let web = &mut cluster.members[0];
        web.units = (0..3).map(|index| unit(&format!("web-{index}"), false, cluster.now)).collect();
        web.rollout.ready = 3;
    };
    healthy(&mut cluster);
    for _ in 0..50 {
        cluster.turn();
        healthy(&mut cluster);
        if cluster.phase().has_ended() {
            break;
        }
        cluster.wait(5);
    }
    assert_eq!(
        (cluster.phase(), cluster.pins("web").as_str(), cluster.pins("api").as_str()),
        (Phase::Failed, NEW, OLD)
    );
    let reason = &cluster.release.progress.reason;
    assert!(
        reason.contains("Deployment web still has it") && reason.contains("lockstep abort configmap/app"),
        "{reason}"
    );
    cluster.release.wishes.abort = true;
    assert_eq!((cluster.run(), cluster.pins("web").as_str()), (Phase::Aborted, OLD));
}

#[test]
fn the_gate_of_what_failed_does_not_fall_by_itself() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]).with_bad("app-2");
    (cluster.policy.canary, cluster.policy.automatic_rollback) = (Some(BatchSize::Pods(1)), false);
    let hold = Some(crate::gate::hold(cluster.policy.bake));
    for _ in 0..4 {
        cluster.turn();
        cluster.members[0].holds_for = hold;
    }
    assert_eq!(cluster.phase(), Phase::Failed);
    assert!(cluster.members[0].is_gated && cluster.release.progress.watched_until.is_some());
    cluster.members[0].units = vec![unit("web-0", false, cluster.now)];
    assert_eq!(cluster.observe().actions, [], "there is time");
    cluster.wait(600);
    let actions = cluster.observe().actions;
    assert!(matches!(actions[..], [Action::Pin { gate: Gate::FirstBatch { size: 1, .. }, .. }]), "{actions:?}");
    cluster.members[0].is_gated = false;
    assert_eq!(cluster.observe().progress.watched_until, None, "somebody opened it");
}

#[test]
fn whom_a_newer_change_has_taken_along_already_nobody_undid() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    for _ in 0..3 {
        cluster.turn();
    }
    cluster.members[0].pins = "configmap/app=app-3".parse().unwrap();
    cluster.is_overtaken = true;
    cluster.wait(60);
    cluster.turn();
    assert_eq!((cluster.phase(), cluster.held.as_ref()), (Phase::Baking, None));
    cluster.is_overtaken = false;
    assert_eq!(cluster.run(), Phase::Failed);
}

#[test]
fn at_most_so_many_consumers_roll_at_once() {
    let mut cluster = Cluster::new(vec![deployment("a", 0, OLD), deployment("b", 0, OLD), deployment("c", 0, OLD)]);
    cluster.policy.max_parallel = Some(1);
    cluster.turn();
    assert_eq!(cluster.written.len(), 1);
    assert_eq!(cluster.run(), Phase::Succeeded);
    assert_eq!(cluster.written.len(), 3);
}

#[test]
fn more_consumers_than_a_record_can_hold_are_refused_before_anything_moves() {
    let all = (0..2501).map(|number| deployment(&format!("web-{number}"), 0, OLD)).collect();
    let mut cluster = Cluster::new(all);
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Rejected);
    assert!(cluster.release.progress.reason.contains("2501 workloads"), "{}", cluster.release.progress.reason);
    assert_eq!(cluster.written, []);
    assert!(cluster.held.is_some());
}

/// What may happen between two steps.
#[derive(Debug, Clone)]
enum Happening {
    Nothing,
    Seconds(i64),
    /// The operator dies after it recorded a step, before it performed it.
    DiesBeforeActions,
    /// It dies after it acted, before it recorded.
    DiesBeforeRecord,
    Undo(usize),
    Join(usize),
    Delete(usize),
    Abort,
    Pause(bool),
    Promote,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => Just(Happening::Nothing),
        4 => (1..40_i64).prop_map(Happening::Seconds),
        2 => Just(Happening::DiesBeforeActions),
        2 => Just(Happening::DiesBeforeRecord),
        1 => (0..4_usize).prop_map(Happening::Undo),
        1 => (0..4_usize).prop_map(Happening::Join),
        1 => (0..4_usize).prop_map(Happening::Delete),
        1 => Just(Happening::Abort),
        1 => any::<bool>().prop_map(Happening::Pause),
        1 => Just(Happening::Promote),
    ]
}

fn happen(cluster: &mut Cluster, happening: &Happening, touched: &mut BTreeMap<String, bool>) {
    let name = |cluster: &Cluster, index: usize| cluster.members.get(index).map(|member| member.consumer.name.clone());
    match happening {
        Happening::Nothing => cluster.turn(),
        Happening::Seconds(seconds) => cluster.wait(*seconds),
        Happening::DiesBeforeActions => {
            let step = cluster.observe();
            for action in
                step.actions.into_iter().filter(|action| matches!(action, Action::Hold { .. } | Action::Succeed))
            {
                cluster.perform(action);
            }
            cluster.release.progress = step.progress;
        }
        Happening::DiesBeforeRecord => {
            for action in cluster.observe().actions {
                if matches!(action, Action::Hold { .. } | Action::Succeed) {
                    cluster.perform(action);
                }
            }
        }
        Happening::Undo(index) => {
            if let Some(name) = name(cluster, *index) {
                cluster.members[*index].pins = OLD.parse().unwrap();
                cluster.roll();
                touched.insert(name, true);
            }
        }
        Happening::Join(index) => {
            if let Some(name) = name(cluster, *index).filter(|_| cluster.held.is_none()) {
                cluster.members[*index].pins = NEW.parse().unwrap();
                cluster.members[*index].template = "code-2".into();
                cluster.roll();
                touched.insert(name, true);
            }
        }
        Happening::Delete(index) => {
            if *index < cluster.members.len() && cluster.members.len() > 1 {
                cluster.members.remove(*index);
            }
        }
        Happening::Abort => cluster.release.wishes.abort = true,
        Happening::Pause(paused) => cluster.release.wishes.paused = *paused,
        Happening::Promote => cluster.release.wishes.promote = true,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_it_ends_and_the_end_is_right(
        waves in proptest::collection::vec(0..3_i32, 1..4),
        is_bad in any::<bool>(),
        canary in any::<bool>(),
        happenings in proptest::collection::vec(happening(), 0..40),
    ) {
        let members = waves.iter().enumerate().map(|(index, wave)| deployment(&format!("d{index}"), *wave, OLD)).collect();
        let mut cluster = Cluster::new(members);
        if is_bad {
            cluster.bad.insert("app-2".into());
        }
        cluster.policy.canary = canary.then_some(BatchSize::Pods(1));
        let mut touched = BTreeMap::new();
        let mut written_when_held = None;
        for happening in &happenings {
            happen(&mut cluster, happening, &mut touched);
            if cluster.held.is_some() && written_when_held.is_none() {
                written_when_held = Some(cluster.written.len());
            }
        }
        cluster.release.wishes.paused = false;
        let end = cluster.run();
        prop_assert!(end.has_ended());
        prop_assert_eq!(cluster.succeeded, end == Phase::Succeeded);
        prop_assert_eq!(cluster.held.is_some(), end != Phase::Succeeded);
        if let Some(count) = written_when_held {
            let after = &cluster.written[count..];
            prop_assert!(after.iter().all(|(_, pins)| pins != NEW), "pinned although held: {after:?}");
        }
        for member in &cluster.members {
            let is_touched = touched.contains_key(&member.consumer.name);
            let expected = if end == Phase::Succeeded { NEW } else { OLD };
            prop_assert!(is_touched || member.pins.to_string() == expected, "{}: {} after {end}", member.consumer, member.pins);
            prop_assert!(!member.is_gated || is_touched, "{} is still gated after {end}", member.consumer);
        }
        let again = cluster.observe();
        prop_assert_eq!(again.actions, vec![]);
        prop_assert_eq!(again.progress, cluster.release.progress.clone());
    }
}

#[test]
fn for_whoever_waits_for_a_person_nothing_is_written_and_no_time_passes() {
    let mut cluster = Cluster::new(vec![rollout(deployment("web", 0, OLD))]);
    for _ in 0..2 {
        cluster.turn();
    }
    let wait = |cluster: &mut Cluster| {
        cluster.members[0].rollout.waits_for = Some("its promotion".into());
        cluster.members[0].rollout.is_complete = false;
        cluster.release.progress = cluster.observe().progress;
    };
    wait(&mut cluster);
    let before = cluster.release.progress.clone();
    for _ in 0..10 {
        cluster.wait(301);
        wait(&mut cluster);
    }
    assert_eq!(cluster.release.progress, before);
    cluster.members[0].rollout.waits_for = None;
    cluster.release.progress = cluster.observe().progress;
    assert_eq!(cluster.release.progress.consumers[0].progressed_at, Some(cluster.now), "its time begins anew");
    assert_eq!(cluster.phase(), Phase::Progressing);
}

#[test]
fn who_was_not_written_yet_has_its_time_for_going_back_although_we_were_away() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]).with_bad("app-2");
    while cluster.phase() != Phase::RollingBack {
        cluster.turn();
    }
    cluster.wait(10_000);
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::RollingBack);
    assert_eq!(cluster.members[0].pins, OLD.parse().unwrap());
    assert_eq!(cluster.run(), Phase::RolledBack);
}

#[test]
fn what_is_left_to_a_person_on_the_way_back_is_not_written_any_more() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]).with_bad("app-2");
    while cluster.phase() != Phase::RollingBack {
        cluster.turn();
    }
    cluster.refused.insert(cluster.members[0].consumer.clone(), "a policy says no".into());
    cluster.release.progress = cluster.observe().progress;
    cluster.wait(10_000);
    let step = cluster.observe();
    assert_eq!(step.progress.phase, Phase::Failed);
    assert_eq!(step.actions, []);
}

#[test]
fn what_is_in_the_way_of_going_back_is_told_while_it_is_there() {
    let mut cluster =
        Cluster::new(vec![deployment("web", 0, OLD), rollout(deployment("api", 0, OLD))]).with_bad("app-2");
    while cluster.phase() != Phase::RollingBack {
        cluster.turn();
    }
    let cause = cluster.release.progress.reason.clone();
    let told = |cluster: &mut Cluster| {
        cluster.release.progress = cluster.observe().progress;
        assert_eq!(cluster.phase(), Phase::RollingBack);
        cluster.release.progress.reason.clone()
    };
    cluster.refused.insert(cluster.members[0].consumer.clone(), "a policy says no".into());
    let refused =
        format!("{cause}. On the way back, Deployment web cannot be written, and is tried again: a policy says no");
    for _ in 0..2 {
        assert_eq!(told(&mut cluster), refused, "it is told once");
    }
    cluster.refused.clear();
    cluster.members[1].rollout.waits_for = Some("its promotion".into());
    assert_eq!(told(&mut cluster), format!("{cause}. On the way back, Rollout api waits for its promotion"));
    cluster.members[1].rollout.waits_for = None;
    assert_eq!(told(&mut cluster), cause, "nothing is in the way any more");
    cluster.members[1].rollout.waits_for = Some("its promotion".into());
    told(&mut cluster);
    cluster.members[1].rollout.waits_for = None;
    assert_eq!(cluster.run(), Phase::RolledBack);
    assert_eq!(cluster.release.progress.reason, cause);
}

#[test]
fn nobody_goes_back_to_a_version_that_is_not_there() {
    let lost = Member { unproven: [app()].into(), ..deployment("web", 0, "configmap/app=app-0") };
    let mut cluster = Cluster::new(vec![lost, deployment("api", 0, "configmap/app=app-0")]).with_bad("app-2");
    assert_eq!(cluster.run(), Phase::RolledBack);
    assert_eq!(cluster.members[0].pins, "configmap/app=app-1".parse().unwrap(), "the last good one");
    assert_eq!(cluster.members[1].pins, "configmap/app=app-0".parse().unwrap(), "an old one, but it is there");
}

#[test]
fn whoever_scales_to_the_size_of_the_canary_does_not_end_it() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.policy.canary = Some(BatchSize::Pods(1));
    for _ in 0..3 {
        cluster.turn();
    }
    assert_eq!(cluster.phase(), Phase::Baking);
    cluster.members[0].rollout.desired = 1;
    assert_eq!(cluster.observe().actions, [], "it stays behind its gate");
    cluster.members[0].rollout.desired = 3;
    assert_eq!(cluster.observe().actions, []);
}

#[test]
fn a_stateful_set_with_a_broken_pod_is_repaired_without_a_gate() {
    let mut web = deployment("web", 0, OLD);
    (web.consumer.kind, web.is_unfit_for_gate) = ("StatefulSet".into(), true);
    let mut cluster = Cluster::new(vec![web]);
    cluster.policy.canary = Some(BatchSize::Pods(1));
    cluster.turn();
    assert!(!cluster.members[0].is_gated, "its controller would wait for the pod that the gate keeps");
    cluster.members[0].is_unfit_for_gate = false;
    cluster.members[0].rollout.is_complete = false;
    let step = cluster.observe();
    assert_eq!(
        step.progress.phase,
        Phase::Progressing,
        "all of it is waited for, and not a batch: {:?}",
        step.progress
    );
    assert_eq!(cluster.run(), Phase::Succeeded);
}

#[test]
fn pods_that_never_ran_what_failed_are_not_to_be_deleted() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]).with_bad("app-2");
    while cluster.phase() != Phase::RollingBack {
        cluster.turn();
        cluster.wait(1);
    }
    cluster.turn();
    cluster.members[0].rollout.is_complete = false;
    let long_ago = cluster.now - SignedDuration::from_hours(1);
    let older = Unit { is_new: false, created: Some(long_ago), ..unit("web-old", false, cluster.now) };
    let broken = Unit { trouble: None, ..unit("web-new", true, cluster.now) };
    cluster.members[0].units = vec![older, broken];
    cluster.wait(1000);
    let step = cluster.observe();
    assert_eq!(step.progress.phase, Phase::Failed);
    assert!(
        step.progress.reason.contains("pod web-new") && !step.progress.reason.contains("delete pod"),
        "{}",
        step.progress.reason
    );
}

#[test]
fn the_others_of_a_consumer_some_of_whose_pods_may_fail_are_watched() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, OLD)]);
    cluster.policy.max_failing_pods = 1;
    cluster.turn();
    let bad = |name: &str, now: Timestamp| Unit {
        since: Some(now - SignedDuration::from_secs(60)),
        was_ready: false,
        ..unit(name, true, now)
    };
    let now = cluster.now;
    cluster.members[0].rollout.ready = 2;
    cluster.members[0].units = vec![bad("web-0", now), unit("web-1", false, now), unit("web-2", false, now)];
    cluster.release.progress = cluster.observe().progress;
    assert_eq!(cluster.phase(), Phase::Baking, "{:?}", cluster.release.progress);
    cluster.wait(10);
    let restarted = |unit: &mut Unit| (unit.restarts, unit.last_end) = (1, Some(cluster.now));
    restarted(&mut cluster.members[0].units[1]);
    assert_eq!(cluster.observe().progress.phase, Phase::Baking, "so many may fail");
    restarted(&mut cluster.members[0].units[0]);
    assert_eq!(cluster.observe().progress.phase, Phase::RollingBack);
}

#[test]
fn what_nobody_uses_is_current_at_once() {
    let mut cluster = Cluster::new(Vec::new());
    cluster.turn();
    cluster.turn();
    assert_eq!(
        (cluster.phase(), cluster.release.progress.reason.as_str()),
        (Phase::Succeeded, "it is current; nobody uses it yet")
    );
}

#[test]
fn what_takes_a_change_back_bakes_once() {
    let mut cluster = Cluster::new(vec![deployment("web", 0, NEW)]);
    cluster.release.moves[0].to = "app-1".into();
    cluster.policy.canary = Some(BatchSize::Pods(1));
    cluster.turn();
    assert!(!cluster.release.progress.reason.contains("first batch"), "{}", cluster.release.progress.reason);
    while cluster.phase() != Phase::Baking {
        cluster.turn();
    }
    cluster.wait(60);
    cluster.turn();
    assert_eq!(cluster.phase(), Phase::Succeeded);
}
