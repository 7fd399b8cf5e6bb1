use futures::future::join_all;
use jiff::Timestamp;
use lockstep_core::ConfigKind;

use super::*;
use crate::environment::Clock;
use crate::fake::Fake;

const TABLE: &str = "/apis/lockstep.dev/v1alpha1/namespaces/shop/pintables/lockstep";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/lockstep-system/leases/lockstep";

fn config(name: &str) -> ConfigRef {
    ConfigRef::new(ConfigKind::ConfigMap, name)
}

fn running(current: &str) -> Entry {
    Entry { current: Some(current.into()), ..Entry::default() }
}

fn table(spec: &Value) -> Value {
    json!({"apiVersion": "lockstep.dev/v1alpha1", "kind": "PinTable", "metadata": {"name": "lockstep", "namespace": "shop"}, "spec": spec})
}

fn lease(fake: &Fake, holder: &str) {
    fake.put(LEASE, json!({"metadata": {"name": "lockstep"}, "spec": {"holderIdentity": holder}}));
}

/// The tables of a leader, of which it has seen this one.
struct Replica {
    fake: Fake,
    tables: Tables,
}

impl Replica {
    fn new() -> Self {
        let (fake, clock) = (Fake::default(), Clock::starting_at(Timestamp::UNIX_EPOCH));
        lease(&fake, "me");
        let tables = Tables::new(fake.client(), Some(Term::for_test(&fake, &clock)));
        Self { fake, tables }
    }

    fn with(spec: &Value) -> Self {
        let replica = Self::new();
        replica.fake.put(TABLE, table(spec));
        replica
    }

    fn seen(&self) -> Option<Arc<TableFact>> {
        let table: PinTable = serde_json::from_value(self.fake.get(TABLE)?).unwrap();
        Some(Arc::new(TableFact::read(&table)))
    }

    fn decide(&self, name: &str, entry: Entry) -> Publication {
        let (config, seen) = (config(name), self.seen());
        let before = seen.as_ref().map(|seen| seen.entry(&config)).unwrap_or_default();
        Publication { config, before, entry, seen }
    }

    async fn publish(&self, publication: Publication) -> Answer {
        self.tables.publish("shop", publication).await
    }

    fn spec(&self) -> Value {
        self.fake.get(TABLE).unwrap()["spec"].take()
    }

    /// Somebody else writes the table.
    fn meanwhile(&self, spec: &Value) {
        let mut table = self.fake.get(TABLE).unwrap();
        json_patch::merge(&mut table["spec"], spec);
        self.fake.put(TABLE, table);
    }
}

fn is_conflict<T>(answer: &kube::Result<T>) -> bool {
    matches!(answer, Err(kube::Error::Api(status)) if status.is_conflict())
}

#[test]
fn one_patch_sets_and_removes_the_entries_of_many() {
    let entry = Entry { current: Some("a-2".into()), moving: Some("a-3".into()), ..Entry::default() };
    let waiting = |name, entry| {
        let publication = Publication { config: config(name), before: Entry::default(), entry, seen: None };
        Waiting { publication, answer: oneshot::channel().0 }
    };
    let batch = [waiting("a", entry), waiting("gone", Entry::default())];
    let expected = json!({"metadata": {"resourceVersion": "7"}, "spec": {
        "baseline": {"configmap/a": null, "configmap/gone": null},
        "current": {"configmap/a": "a-2", "configmap/gone": null},
        "next": {"configmap/a": null, "configmap/gone": null},
        "moving": {"configmap/a": "a-3", "configmap/gone": null},
    }});
    assert_eq!(patch(ResourceVersion(7), &batch), expected);
    assert_eq!(json!(spec(&batch)), json!({"current": {"configmap/a": "a-2"}, "moving": {"configmap/a": "a-3"}}));
}

#[tokio::test]
async fn what_waits_is_written_together_also_into_a_table_that_is_not_there_yet() {
    let replica = Replica::new();
    let names: Vec<String> = (0..20).map(|number| format!("app{number}")).collect();
    let decisions: Vec<Publication> = names.iter().map(|name| replica.decide(name, running(name))).collect();
    let answers = join_all(decisions.into_iter().map(|decision| replica.publish(decision))).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(replica.fake.writes(), [TABLE, TABLE], "the first, and then all others in one");
    assert_eq!(answers.into_iter().filter_map(Result::unwrap).count(), 2, "one of each takes it in");
    assert_eq!(replica.spec()["current"].as_object().unwrap().len(), 20);
    replica.publish(replica.decide("app1", running("other"))).await.unwrap();
    assert_eq!(replica.spec()["current"]["configmap/app1"], "other");
}

#[tokio::test]
async fn decisions_from_before_our_own_writes_hold() {
    let replica = Replica::with(&json!({"current": {"configmap/a": "a-1", "configmap/b": "b-1"}}));
    let (first, second) = (replica.decide("a", running("a-2")), replica.decide("b", running("b-2")));
    replica.fake.delete(LEASE);
    replica.publish(first).await.unwrap();
    replica.publish(second).await.unwrap();
    assert_eq!(replica.spec()["current"], json!({"configmap/a": "a-2", "configmap/b": "b-2"}));
    assert_eq!(replica.fake.writes().len(), 2);
}

#[tokio::test]
async fn what_others_wrote_stays_and_an_entry_that_is_another_by_now_is_looked_at_again() {
    let replica = Replica::with(&json!({"current": {"configmap/a": "a-1", "configmap/b": "b-1"}}));
    let (mine, theirs) = (replica.decide("a", running("a-2")), replica.decide("b", running("b-2")));
    replica.meanwhile(&json!({"next": {"configmap/b": "b-3"}}));
    replica.publish(mine).await.unwrap();
    assert!(is_conflict(&replica.publish(theirs).await));
    assert_eq!(replica.spec()["current"], json!({"configmap/a": "a-2", "configmap/b": "b-1"}));
    assert_eq!(replica.spec()["next"], json!({"configmap/b": "b-3"}));
}

#[tokio::test]
async fn what_the_webhook_entered_already_is_no_conflict() {
    let replica = Replica::with(&json!({"current": {"configmap/a": "a-1"}}));
    let next = Entry { next: Some("a-2".into()), moving: Some("a-2".into()), ..running("a-1") };
    let decision = replica.decide("a", next);
    replica.meanwhile(&json!({"next": {"configmap/a": "a-2"}}));
    replica.publish(decision.clone()).await.unwrap();
    assert_eq!(replica.spec()["moving"], json!({"configmap/a": "a-2"}));
    replica.fake.writes();
    assert!(replica.publish(decision).await.unwrap().is_some(), "the index should know");
    assert!(replica.fake.writes().is_empty(), "it stands there already");
}

#[tokio::test]
async fn a_leader_that_slept_writes_nothing_even_if_all_looks_as_before() {
    let replica = Replica::with(&json!({"current": {"configmap/a": "a-1"}}));
    let decision = replica.decide("a", running("a-2"));
    replica.meanwhile(&json!({"current": {"configmap/a": "a-2"}}));
    replica.meanwhile(&json!({"current": {"configmap/a": "a-1"}}));
    lease(&replica.fake, "other");
    assert!(is_conflict(&replica.publish(decision.clone()).await));
    assert_eq!(replica.spec()["current"], json!({"configmap/a": "a-1"}));
    lease(&replica.fake, "me");
    replica.publish(decision).await.unwrap();
    assert_eq!(replica.spec()["current"], json!({"configmap/a": "a-2"}), "it was not another leader");
}

#[tokio::test]
async fn a_leader_that_slept_makes_no_table() {
    let replica = Replica::new();
    lease(&replica.fake, "other");
    assert!(is_conflict(&replica.publish(replica.decide("a", running("a-1"))).await));
    assert_eq!(replica.fake.get(TABLE), None);
}

#[tokio::test]
async fn nothing_is_left_of_what_failed() {
    let replica = Replica::with(&json!({"current": {"configmap/a": "a-1", "configmap/b": "b-1"}}));
    let (first, second) = (replica.decide("a", running("a-2")), replica.decide("b", running("b-2")));
    replica.fake.refuse(Some(TABLE));
    let both = futures::future::join(replica.publish(first), replica.publish(second)).await;
    assert!(both.0.is_err() && both.1.is_err(), "everybody hears of it");
    replica.fake.refuse(None);
    replica.publish(replica.decide("c", running("c-1"))).await.unwrap();
    let expected = json!({"configmap/a": "a-1", "configmap/b": "b-1", "configmap/c": "c-1"});
    assert_eq!(replica.spec()["current"], expected);
}

#[tokio::test]
async fn who_does_not_wait_any_more_wants_nothing_any_more() {
    let replica = Replica::with(&json!({"current": {"configmap/a": "a-1"}}));
    let turn = replica.tables.table("shop");
    let held = turn.turn.lock().await;
    let mut waits = Box::pin(replica.publish(replica.decide("a", running("a-2"))));
    assert!(futures::poll!(&mut waits).is_pending());
    drop(waits);
    drop(held);
    replica.publish(replica.decide("c", running("c-1"))).await.unwrap();
    assert_eq!(replica.spec()["current"], json!({"configmap/a": "a-1", "configmap/c": "c-1"}));
}

#[tokio::test]
async fn entries_of_a_namespace_that_is_gone_do_not_come_into_the_one_that_took_its_place() {
    let replica = Replica::with(&json!({"current": {"configmap/a": "a-1"}}));
    let decision = replica.decide("a", running("a-2"));
    replica.fake.delete(TABLE);
    assert!(is_conflict(&replica.publish(decision.clone()).await));
    assert_eq!(replica.fake.get(TABLE), None);
    replica.fake.put(TABLE, table(&json!({"current": {"configmap/b": "b-1"}})));
    assert!(is_conflict(&replica.publish(decision).await));
    assert_eq!(replica.spec()["current"], json!({"configmap/b": "b-1"}));
}

#[tokio::test]
async fn a_table_that_is_gone_is_made_anew_for_who_knows_that_it_is() {
    let replica = Replica::with(&json!({"current": {"configmap/a": "a-1"}}));
    replica.publish(replica.decide("a", running("a-2"))).await.unwrap();
    replica.fake.delete(TABLE);
    replica.publish(replica.decide("a", running("a-1"))).await.unwrap();
    assert_eq!(replica.spec()["current"], json!({"configmap/a": "a-1"}));
}

#[tokio::test]
async fn of_very_many_namespaces_those_that_are_at_rest_are_forgotten() {
    let replica = Replica::new();
    for number in 0..REMEMBERED * 2 {
        replica.tables.table(&number.to_string());
    }
    assert!(lock(&replica.tables.namespaces).len() <= REMEMBERED);
}

#[tokio::test]
async fn a_table_that_went_with_its_namespace_does_not_stand_for_the_new_one() {
    let replica = Replica::new();
    replica.publish(replica.decide("a", running("a-1"))).await.unwrap();
    replica.fake.delete(TABLE);
    replica.publish(replica.decide("a", running("a-1"))).await.unwrap();
    assert_eq!(replica.spec()["current"], json!({"configmap/a": "a-1"}), "the same content, in a new namespace");
    replica.fake.delete(TABLE);
    replica.publish(replica.decide("a", running("a-2"))).await.unwrap();
    assert_eq!(replica.spec()["current"], json!({"configmap/a": "a-2"}));
}
