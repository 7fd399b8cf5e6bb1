//! Stopping a workload after its first new pods, with fields of its own: nothing of ours has to be alive for it to hold.
//!
//! A Deployment or DaemonSet goes on only when its new pods are *available*, so a long `minReadySeconds` stops it; a StatefulSet has its
//! partition. The fields are borrowed: what they were and what they are set to is kept in an annotation, in the same write. A field that
//! somebody changed meanwhile is theirs, and stays as they want it.

use std::time::Duration;

use serde_json::{Value, json};

use crate::kinds::Kind;
use crate::names;

/// How long a gate holds by itself beyond the bake: for pods that come up slowly, and for an operator that is away.
const MARGIN: Duration = Duration::from_secs(600);
/// A gate that would fall sooner than this is renewed.
pub const RENEW_BEFORE: Duration = Duration::from_secs(300);

/// The fields that stop a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// A long `minReadySeconds`, and as many pods more as the batch has.
    Surge,
    /// A long `minReadySeconds`, and as many old pods less.
    Unavailable,
    /// All pods but the last ones stay.
    Partition,
}

impl Means {
    fn strategy(self) -> &'static str {
        match self {
            Self::Surge => "strategy",
            Self::Unavailable | Self::Partition => "updateStrategy",
        }
    }
}

/// Whether a workload can be stopped after its first pods.
pub fn can_close(kind: Kind, spec: &Value) -> bool {
    let is_rolling =
        |means: Means| spec[means.strategy()]["type"].as_str().unwrap_or("RollingUpdate") == "RollingUpdate";
    kind.gate().is_some_and(is_rolling)
}

pub fn is_closed(annotations: &Value) -> bool {
    annotations.get(names::GATE).is_some()
}

/// A merge patch that lets only `batch` new pods come, for as long as they are ready no longer than `hold`. `saved` is what an earlier
/// gate kept.
pub fn close(means: Means, spec: &Value, saved: Option<&str>, batch: u32, hold: Duration) -> Value {
    let hold = hold.as_secs();
    let saved = saved.map(Borrowed::read);
    let own = saved.as_ref().map_or_else(|| spec.clone(), |saved| saved.without(spec));
    let fields = match means {
        Means::Surge => {
            // Whoever allows no pod more than there are may have no room for one: the batch takes the place of old pods.
            let surge = &own["strategy"]["rollingUpdate"]["maxSurge"];
            let (more, less) = if *surge == 0 || *surge == "0%" { (0, batch) } else { (batch, 0) };
            json!({
                "minReadySeconds": hold,
                "progressDeadlineSeconds": hold + 600,
                "strategy": {"rollingUpdate": {"maxSurge": more, "maxUnavailable": less}},
            })
        }
        Means::Unavailable => json!({
            "minReadySeconds": hold,
            "updateStrategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": batch}},
        }),
        Means::Partition => {
            let replicas = spec["replicas"].as_u64().unwrap_or(1);
            // Whoever keeps pods back keeps them back.
            let own = partition(&own).unwrap_or(0);
            let partition = replicas.saturating_sub(u64::from(batch)).max(u64::from(own));
            json!({"updateStrategy": {"rollingUpdate": {"partition": partition}}})
        }
    };
    let (borrowed, fields) = match saved.filter(|saved| saved.holds(means, spec)) {
        // Nothing holds it, or not any more: it is stopped anew, and what an earlier gate set and nobody changed is none of its own.
        None => (Borrowed { was: pick(&own, &fields), set: fields.clone() }, fields),
        Some(Borrowed { was, mut set }) => {
            let fields = still_ours(spec, &set, &fields).unwrap_or_else(|| json!({}));
            put(&mut set, &fields);
            (Borrowed { was, set }, fields)
        }
    };
    json!({"metadata": {"annotations": {names::GATE: borrowed.to_string()}}, "spec": fields})
}

/// How long the gate of a workload holds, where that goes by time. None if somebody else decides that by now.
pub fn holds_for(spec: &Value, saved: Option<&str>) -> Option<Duration> {
    let set = Borrowed::read(saved?).set["minReadySeconds"].as_u64()?;
    (spec["minReadySeconds"].as_u64() == Some(set)).then(|| Duration::from_secs(set))
}

/// Where the gate of a StatefulSet is, and where its user's own would be. It counts from below, so it must follow the replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    pub now: u32,
    pub own: u32,
}

impl Partition {
    /// None for kinds that need no such thing, where no gate is closed, and where somebody set another meanwhile.
    pub fn of(kind: Kind, spec: &Value, saved: Option<&str>) -> Option<Self> {
        let Borrowed { was, set } = Borrowed::read(saved.filter(|_| kind.gate() == Some(Means::Partition))?);
        let now = partition(spec).unwrap_or(0);
        (partition(&set).unwrap_or(0) == now).then(|| Self { now, own: partition(&was).unwrap_or(0) })
    }

    /// Whether exactly a batch is let through.
    pub fn fits(self, replicas: u32, batch: u32) -> bool {
        self.now == replicas.saturating_sub(batch).max(self.own)
    }
}

fn partition(spec: &Value) -> Option<u32> {
    u32::try_from(spec["updateStrategy"]["rollingUpdate"]["partition"].as_u64()?).ok()
}

/// A merge patch that lets the rest follow, and gives back what still is as the gate set it.
pub fn open(spec: &Value, saved: &str) -> Value {
    let Borrowed { was, set } = Borrowed::read(saved);
    let fields = give_back(spec, &was, &set).unwrap_or_else(|| json!({}));
    json!({"metadata": {"annotations": {names::GATE: null}}, "spec": fields})
}

/// Fields of a workload that a gate has set.
struct Borrowed {
    was: Value,
    set: Value,
}

impl Borrowed {
    /// What cannot be read gives nothing back: better a field too long than one of somebody's invention.
    fn read(saved: &str) -> Self {
        let saved: Value = serde_json::from_str(saved).unwrap_or_default();
        let fields = |name: &str| Some(saved[name].clone()).filter(Value::is_object).unwrap_or_else(|| json!({}));
        Self { was: fields("was"), set: fields("set") }
    }

    /// Whether what stops the workload is as it was set.
    fn holds(&self, means: Means, spec: &Value) -> bool {
        match means {
            Means::Surge | Means::Unavailable => {
                let set = &self.set["minReadySeconds"];
                !set.is_null() && *set == spec["minReadySeconds"]
            }
            Means::Partition => partition(&self.set).unwrap_or(0) == partition(spec).unwrap_or(0),
        }
    }

    /// The workload as it would be without the gate: fields that somebody changed meanwhile are theirs.
    fn without(&self, spec: &Value) -> Value {
        let mut own = spec.clone();
        if let Some(given) = give_back(spec, &self.was, &self.set) {
            put(&mut own, &given);
        }
        own
    }
}

impl std::fmt::Display for Borrowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", json!({"was": self.was, "set": self.set}))
    }
}

fn give_back(now: &Value, was: &Value, set: &Value) -> Option<Value> {
    let Value::Object(fields) = set else { return (now == set).then(|| was.clone()) };
    let given = fields.iter().filter_map(|(name, set)| Some((name.clone(), give_back(&now[name], &was[name], set)?)));
    let given: serde_json::Map<_, _> = given.collect();
    (!given.is_empty()).then(|| given.into())
}

/// Those of the wanted fields that nobody changed since the gate set them.
fn still_ours(now: &Value, set: &Value, wanted: &Value) -> Option<Value> {
    let Value::Object(fields) = wanted else { return (now == set).then(|| wanted.clone()) };
    let ours =
        fields.iter().filter_map(|(name, wanted)| Some((name.clone(), still_ours(&now[name], &set[name], wanted)?)));
    let ours: serde_json::Map<_, _> = ours.collect();
    (!ours.is_empty()).then(|| ours.into())
}

fn put(into: &mut Value, fields: &Value) {
    let Value::Object(fields) = fields else { return *into = fields.clone() };
    if !into.is_object() {
        *into = json!({});
    }
    fields.iter().for_each(|(name, value)| put(&mut into[name], value));
}

/// How long new pods must be ready before the workload would go on by itself.
pub fn hold(bake: Duration) -> Duration {
    bake * 2 + MARGIN
}

/// The fields of `from` that `like` has: null where there was none, so that a merge patch removes them again.
fn pick(from: &Value, like: &Value) -> Value {
    match like {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, like)| (name.clone(), pick(&from[name], like)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        _ => from.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Duration = Duration::from_secs(660);

    fn patched(mut object: Value, patch: &Value) -> Value {
        merge(&mut object, patch);
        object
    }

    fn merge(object: &mut Value, patch: &Value) {
        let Value::Object(fields) = patch else { return *object = patch.clone() };
        for (name, value) in fields {
            if value.is_null() {
                object.as_object_mut().unwrap().remove(name);
            } else {
                merge(&mut object[name], value);
            }
        }
    }

    #[test]
    fn what_was_closed_is_opened_exactly_as_it_was() {
        let strategies = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}});
        let workloads = [
            (Kind::Deployment, json!({"replicas": 6, "progressDeadlineSeconds": 600, "strategy": strategies})),
            (Kind::DaemonSet, json!({"minReadySeconds": 3, "updateStrategy": strategies})),
            (Kind::StatefulSet, json!({"replicas": 6, "updateStrategy": {"rollingUpdate": {"partition": 1}}})),
        ];
        for (kind, spec) in workloads {
            assert!(can_close(kind, &spec));
            let means = kind.gate().unwrap();
            let object = json!({"metadata": {"annotations": {"a": "b"}}, "spec": spec});
            let closed = patched(object.clone(), &close(means, &spec, None, 2, HOLD));
            assert!(is_closed(&closed["metadata"]["annotations"]) && closed["spec"] != spec, "{kind:?}");
            let saved = closed["metadata"]["annotations"][names::GATE].as_str().unwrap();
            let again = patched(closed.clone(), &close(means, &closed["spec"], Some(saved), 1, HOLD));
            let saved_again = again["metadata"]["annotations"][names::GATE].as_str().unwrap();
            assert_eq!(patched(again.clone(), &open(&again["spec"], saved_again)), object, "{kind:?}");
        }
    }

    #[test]
    fn what_somebody_changed_behind_the_gate_is_theirs() {
        let spec = json!({"replicas": 6, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 3}}});
        let closed =
            patched(json!({"metadata": {"annotations": {}}, "spec": spec}), &close(Means::Surge, &spec, None, 1, HOLD));
        let saved = closed["metadata"]["annotations"][names::GATE].as_str().unwrap().to_owned();
        let mut theirs = closed.clone();
        theirs["spec"]["minReadySeconds"] = json!(7);
        let opened = patched(theirs.clone(), &open(&theirs["spec"], &saved));
        assert_eq!(opened["spec"]["minReadySeconds"], 7);
        assert_eq!(opened["spec"]["strategy"]["rollingUpdate"], json!({"maxSurge": 3}), "the rest is given back");
        // Kubernetes refuses fields of a rolling update where there is none.
        theirs["spec"]["strategy"] = json!({"type": "Recreate"});
        assert_eq!(open(&theirs["spec"], &saved)["spec"].get("strategy"), None);
    }

    #[test]
    fn a_gate_is_renewed_without_touching_what_somebody_changed() {
        let spec = json!({"replicas": 6, "strategy": {"rollingUpdate": {"maxSurge": 3, "maxUnavailable": 1}}});
        let closed =
            patched(json!({"metadata": {"annotations": {}}, "spec": spec}), &close(Means::Surge, &spec, None, 1, HOLD));
        let saved = |object: &Value| object["metadata"]["annotations"][names::GATE].as_str().unwrap().to_owned();
        assert_eq!(holds_for(&closed["spec"], Some(&saved(&closed))), Some(HOLD));
        let mut theirs = closed.clone();
        theirs["spec"]["strategy"]["rollingUpdate"]["maxSurge"] = json!(2);
        let renewed =
            patched(theirs.clone(), &close(Means::Surge, &theirs["spec"], Some(&saved(&closed)), 1, HOLD * 2));
        assert_eq!(renewed["spec"]["strategy"]["rollingUpdate"]["maxSurge"], 2);
        assert_eq!(holds_for(&renewed["spec"], Some(&saved(&renewed))), Some(HOLD * 2));
        let opened = patched(renewed.clone(), &open(&renewed["spec"], &saved(&renewed)));
        assert_eq!(opened["spec"]["strategy"]["rollingUpdate"], json!({"maxSurge": 2, "maxUnavailable": 1}));
        assert_eq!(opened["spec"].get("minReadySeconds"), None);
        theirs["spec"]["minReadySeconds"] = json!(5);
        assert_eq!(holds_for(&theirs["spec"], Some(&saved(&closed))), None, "somebody wants it shorter");
    }

    #[test]
    fn a_gate_that_somebody_broke_is_closed_anew_and_what_is_left_of_it_is_not_taken_for_theirs() {
        let spec = json!({"replicas": 6, "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}});
        let object = json!({"metadata": {"annotations": {}}, "spec": spec});
        let saved = |object: &Value| object["metadata"]["annotations"][names::GATE].as_str().unwrap().to_owned();
        let mut broken = patched(object, &close(Means::Surge, &spec, None, 1, HOLD));
        broken["spec"]["minReadySeconds"] = json!(10);
        let again = patched(broken.clone(), &close(Means::Surge, &broken["spec"], Some(&saved(&broken)), 1, HOLD));
        assert_eq!(holds_for(&again["spec"], Some(&saved(&again))), Some(HOLD));
        let opened = patched(again.clone(), &open(&again["spec"], &saved(&again)));
        let mut theirs = spec.clone();
        theirs["minReadySeconds"] = json!(10);
        assert_eq!(opened["spec"], theirs);
    }

    #[test]
    fn an_annotation_of_somebodys_invention_breaks_nothing() {
        let spec = json!({"replicas": 3, "minReadySeconds": 1, "strategy": {"type": "RollingUpdate"}});
        for saved in ["1", "true", "[]", "\"a\"", "{", "{\"set\": 5}", "{\"set\": {\"strategy\": 7}, \"was\": []}"] {
            assert_eq!(holds_for(&spec, Some(saved)), None, "{saved}");
            assert_eq!(open(&spec, saved)["spec"], json!({}), "{saved}");
            close(Means::Surge, &spec, Some(saved), 1, HOLD);
            Partition::of(Kind::StatefulSet, &spec, Some(saved));
        }
    }

    #[test]
    fn where_there_is_no_room_for_a_pod_more_there_is_one_less() {
        let spec = |surge: Value| json!({"strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": 1}}});
        let strategy = |surge: Value| close(Means::Surge, &spec(surge), None, 2, HOLD)["spec"]["strategy"].clone();
        let less = json!({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2}});
        assert_eq!((strategy(json!(0)), strategy(json!("0%"))), (less.clone(), less.clone()));
        assert_eq!(strategy(json!("25%")), json!({"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}}));
        let closed = close(Means::Surge, &spec(json!(0)), None, 2, HOLD);
        let saved = closed["metadata"]["annotations"][names::GATE].as_str().unwrap();
        assert_eq!(close(Means::Surge, &closed["spec"], Some(saved), 2, HOLD)["spec"]["strategy"], less);
    }

    #[test]
    fn a_users_own_partition_is_kept() {
        let spec = json!({"replicas": 6, "updateStrategy": {"rollingUpdate": {"partition": 5}}});
        let patch = close(Means::Partition, &spec, None, 2, HOLD);
        assert_eq!(patch["spec"]["updateStrategy"]["rollingUpdate"]["partition"], 5);
    }

    #[test]
    fn the_gate_of_a_stateful_set_follows_its_replicas() {
        let spec = json!({"replicas": 3, "updateStrategy": {"rollingUpdate": {"partition": 0}}});
        let closed = close(Means::Partition, &spec, None, 1, HOLD);
        let saved = closed["metadata"]["annotations"][names::GATE].as_str().unwrap();
        let partition = Partition::of(Kind::StatefulSet, &closed["spec"], Some(saved)).unwrap();
        assert_eq!(partition, Partition { now: 2, own: 0 });
        assert!(partition.fits(3, 1) && !partition.fits(2, 1) && !partition.fits(4, 1));
        let scaled = json!({"replicas": 4, "updateStrategy": {"rollingUpdate": {"partition": 2}}});
        assert_eq!(
            close(Means::Partition, &scaled, Some(saved), 1, HOLD)["spec"]["updateStrategy"]["rollingUpdate"]["partition"],
            3
        );
        assert!(Partition { now: 5, own: 5 }.fits(6, 2), "its user keeps more back");
    }

    #[test]
    fn a_stateful_set_keeps_all_but_the_last_pods() {
        let patch = close(Means::Partition, &json!({"replicas": 6}), None, 2, HOLD);
        assert_eq!(patch["spec"]["updateStrategy"]["rollingUpdate"]["partition"], 4);
    }

    #[test]
    fn what_replaces_all_at_once_cannot_be_stopped() {
        assert!(!can_close(Kind::Deployment, &json!({"strategy": {"type": "Recreate"}})));
        assert!(!can_close(Kind::StatefulSet, &json!({"updateStrategy": {"type": "OnDelete"}})));
        assert!(!can_close(Kind::CronJob, &json!({})));
    }

    #[test]
    fn whatever_somebody_writes_into_the_annotation_is_read() {
        let spec = json!({"minReadySeconds": 5});
        for saved in ["", "1", "[]", "\"x\"", "null", "{\"was\": 1}", "{\"set\": []}"] {
            assert_eq!(holds_for(&spec, Some(saved)), None, "{saved}");
            assert_eq!(open(&spec, saved)["spec"], json!({}), "{saved}");
            assert_eq!(
                Partition::of(Kind::StatefulSet, &spec, Some(saved)),
                Some(Partition { now: 0, own: 0 }),
                "{saved}"
            );
            let closed = close(Means::Surge, &spec, Some(saved), 1, HOLD);
            assert!(closed["metadata"]["annotations"][names::GATE].is_string(), "{saved}");
        }
    }
}
