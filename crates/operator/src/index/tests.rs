//! The index, fed with facts as watches bring them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DynamicObject;
use lockstep_api::{PinTable, PinTableSpec};
use lockstep_core::health::Rollout;
use lockstep_core::names;
use lockstep_core::template::Carrier;
use serde_json::json;

use super::*;
use crate::kinds::{WorkloadKind, built_in};

fn kind(name: &str) -> (usize, WorkloadKind) {
    let found = built_in().into_iter().enumerate().find(|(_, kind)| kind.resource.kind == name);
    found.unwrap()
}

fn key(name: &str) -> Key {
    Key { namespace: "shop".into(), name: name.into() }
}

fn config(name: &str) -> ConfigRef {
    ConfigRef::new(ConfigKind::ConfigMap, name)
}

fn id(name: &str) -> ConfigId {
    ConfigId { namespace: "shop".into(), config: config(name) }
}

/// A cluster that is written to, one resource version after the other.
#[derive(Default)]
struct Cluster {
    index: Index,
    version: u64,
    carrier: Carrier,
}

impl Cluster {
    fn meta(&mut self, name: &str, labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> ObjectMeta {
        self.version += 1;
        let map =
            |pairs: &[(&str, &str)]| Some(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
        ObjectMeta {
            name: Some(name.into()),
            namespace: Some("shop".into()),
            uid: Some(format!("uid-of-{name}")),
            resource_version: Some(self.version.to_string()),
            labels: map(labels),
            annotations: map(annotations),
            ..ObjectMeta::default()
        }
    }

    fn source(&mut self, name: &str, labels: &[(&str, &str)]) -> Vec<Work> {
        let meta = self.meta(name, labels, &[]);
        let fact = ConfigFact::read(ConfigKind::ConfigMap, &meta).unwrap();
        self.index.apply(Watched::Config(ConfigKind::ConfigMap), &key(name), Fact::Config(fact))
    }

    fn workload(&mut self, of: &str, name: &str, uses: &str, pins: &str, annotations: &[(&str, &str)]) -> Vec<Work> {
        let (place, kind) = kind(of);
        let kind = kind.carried_by(self.carrier);
        let template = json!({
            "metadata": {"annotations": {names::PINS: pins}},
            "spec": {"volumes": [{"configMap": {"name": uses}}]},
        });
        let object =
            DynamicObject { types: None, metadata: self.meta(name, &[], annotations), data: kind.wrap(template) };
        let fact = WorkloadFact::read(&kind, &object).unwrap();
        self.index.apply(Watched::Workload(place), &key(name), Fact::Workload(fact))
    }

    /// A version of a config, with a digest of one letter.
    fn version(&mut self, of: &str, letter: char, number: &str) -> Vec<Work> {
        let digest = Digest::from(letter.to_string().repeat(64));
        let name = digest.version_object_name(of);
        let annotations =
            [(names::SOURCE, of), (names::VERSION, number), (names::NUMBER, number), (names::DIGEST, digest.full())];
        let meta = self.meta(&name, &[(names::VERSION_OF, "configmap")], &annotations);
        let fact = ConfigFact::read(ConfigKind::ConfigMap, &meta).unwrap();
        self.index.apply(Watched::Config(ConfigKind::ConfigMap), &key(&name), Fact::Config(fact))
    }

    /// The same, with an owner.
    fn owned_version(&mut self, letter: char, owner: OwnerReference) {
        self.version("app", letter, "1");
        let namespace = self.index.namespaces.get_mut("shop").unwrap();
        let versions = namespace.versions.get_mut(&config("app")).unwrap();
        versions.values_mut().last().unwrap().owners = vec![owner];
    }

    fn table(&mut self, current: &[(&str, &str)]) -> Vec<Work> {
        let map =
            current.iter().map(|(config, version)| (format!("configmap/{config}"), (*version).to_owned())).collect();
        let mut table = PinTable::new(names::PIN_TABLE, PinTableSpec { current: map, ..PinTableSpec::default() });
        table.metadata = self.meta(names::PIN_TABLE, &[], &[]);
        self.index.apply(Watched::PinTable, &key(names::PIN_TABLE), Fact::Table(Arc::new(TableFact::read(&table))))
    }
}

impl Cluster {
    /// Somebody enters what a workload that is written now may join.
    fn offer(&mut self, version: &str) {
        let next = [("configmap/app".to_owned(), version.to_owned())].into();
        let mut table = PinTable::new(names::PIN_TABLE, PinTableSpec { next, ..PinTableSpec::default() });
        table.metadata = self.meta(names::PIN_TABLE, &[], &[]);
        self.index.apply(Watched::PinTable, &key(names::PIN_TABLE), Fact::Table(Arc::new(TableFact::read(&table))));
    }
}

const VERSIONED: [(&str, &str); 1] = [(names::VERSIONED, names::ON)];

#[test]
fn a_config_that_nobody_put_under_our_care_makes_no_work() {
    let mut cluster = Cluster::default();
    assert_eq!(cluster.workload("Deployment", "web", "app", "", &[]), []);
    assert_eq!(cluster.source("app", &[]), []);
    assert!(cluster.index.config(&id("app")).is_none());
}

#[test]
fn a_label_on_the_config_opts_in_and_another_opts_out() {
    let mut cluster = Cluster::default();
    assert_eq!(cluster.source("app", &VERSIONED), [Work::Config(id("app"))]);
    assert!(cluster.index.config(&id("app")).unwrap().source.is_some());
    let ignored = [VERSIONED[0], (names::IGNORE, names::ON)];
    assert_eq!(cluster.source("app", &ignored), [Work::Config(id("app"))], "it was ours");
    assert!(cluster.index.config(&id("app")).is_none());
}

#[test]
fn an_annotation_on_a_workload_opts_in_all_that_it_references() {
    let mut cluster = Cluster::default();
    cluster.source("app", &[]);
    let work = cluster.workload("Deployment", "web", "app", "", &[(names::AUTO, names::ON)]);
    assert_eq!(work, [Work::Config(id("app"))]);
    assert!(cluster.index.config(&id("app")).unwrap().source.is_some());
}

#[test]
fn a_label_on_the_namespace_opts_in_what_its_workloads_use() {
    let mut cluster = Cluster::default();
    cluster.source("app", &[]);
    cluster.source("unused", &[]);
    cluster.workload("Deployment", "web", "app", "", &[]);
    let fact = NamespaceFact { resource_version: ResourceVersion(100), is_versioned: true, is_going: false };
    let namespace = Key { namespace: String::new(), name: "shop".into() };
    let work = cluster.index.apply(Watched::Namespace, &namespace, Fact::Namespace(fact));
    assert_eq!(work, [Work::Config(id("app"))]);
    assert!(cluster.index.config(&id("unused")).is_none());
}

#[test]
fn in_a_namespace_that_goes_there_is_nothing_to_do() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    let fact = NamespaceFact { resource_version: ResourceVersion(100), is_versioned: false, is_going: true };
    let namespace = Key { namespace: String::new(), name: "shop".into() };
    cluster.index.apply(Watched::Namespace, &namespace, Fact::Namespace(fact));
    assert!(cluster.index.config(&id("app")).is_none());
}

#[test]
fn what_is_older_than_what_is_known_is_passed_over() {
    let mut cluster = Cluster::default();
    cluster.workload("Deployment", "web", "app", "configmap/app=app-2", &[]);
    cluster.version = 0;
    cluster.workload("Deployment", "web", "app", "configmap/app=app-1", &[]);
    let (place, _) = kind("Deployment");
    let web = WorkloadId { namespace: "shop".into(), workload: WorkloadKey { kind: place, name: "web".into() } };
    assert_eq!(cluster.index.workload(&web).unwrap().pins.to_string(), "configmap/app=app-2");
}

#[test]
fn an_answer_that_comes_after_the_news_that_its_object_went_brings_nothing_back() {
    let mut cluster = Cluster::default();
    cluster.workload("Deployment", "web", "app", "configmap/app=app-1", &[]);
    let (place, _) = kind("Deployment");
    cluster.index.remove_at(Watched::Workload(place), &key("web"), ResourceVersion(9));
    cluster.workload("Deployment", "web", "app", "configmap/app=app-2", &[]);
    assert!(cluster.index.workload(&web()).is_none());
    cluster.version = 20;
    cluster.workload("Deployment", "web", "app", "configmap/app=app-1", &[]);
    assert!(cluster.index.workload(&web()).is_some(), "it was made anew");
    cluster.index.remove_at(Watched::Workload(place), &key("web"), ResourceVersion(10));
    assert!(cluster.index.workload(&web()).is_some(), "which went before that");
}

const APP_A: &str = "app-aaaaaaaaaa";

fn web() -> WorkloadId {
    let (place, _) = kind("Deployment");
    WorkloadId { namespace: "shop".into(), workload: WorkloadKey { kind: place, name: "web".into() } }
}

fn settled(cluster: &Cluster) -> String {
    let fact = cluster.index.workload(&web()).unwrap();
    cluster.index.settled_pins("shop", fact).0.to_string()
}

#[test]
fn a_version_that_slipped_makes_work_and_is_put_back_or_becomes_current() {
    let mut cluster = Cluster { carrier: Carrier::References, ..Cluster::default() };
    cluster.version("app", 'a', "1");
    let pins = format!("configmap/app={APP_A}");
    assert!(!cluster.workload("Deployment", "web", APP_A, &pins, &[]).contains(&Work::Consumer(web())));
    let work = cluster.workload("Deployment", "web", "app", &pins, &[]);
    assert!(work.contains(&Work::Consumer(web())), "its reference does not name its version");
    let fact = cluster.index.workload(&web()).unwrap().clone();
    assert!(fact.pins.is_empty() && fact.needs(&config("app")).is_some());
    assert_eq!(settled(&cluster), "", "nobody put it under our care");
    assert!(cluster.table(&[("app", "app-2")]).contains(&Work::Consumer(web())));
    assert_eq!(settled(&cluster), pins);
    cluster.index.remove(Watched::Config(ConfigKind::ConfigMap), &key(APP_A));
    assert_eq!(settled(&cluster), "configmap/app=app-2", "it is gone");
}

#[test]
fn a_pin_to_a_version_that_nobody_knows_becomes_what_is_current_or_goes() {
    let mut cluster = Cluster::default();
    let work = cluster.workload("Deployment", "web", "app", "configmap/app=app-0,configmap/unused=x-0", &[]);
    assert!(work.contains(&Work::Consumer(web())), "a manifest from another namespace");
    assert_eq!(settled(&cluster), "configmap/unused=x-0", "nothing is versioned here");
    assert!(cluster.table(&[("app", APP_A)]).contains(&Work::Consumer(web())));
    assert_eq!(settled(&cluster), format!("configmap/app={APP_A},configmap/unused=x-0"));
    cluster.table(&[("app", "app-0")]);
    assert_eq!(settled(&cluster), "configmap/app=app-0,configmap/unused=x-0", "the table speaks of it: it may come");
}

fn job() -> WorkloadId {
    let (place, _) = kind("Job");
    WorkloadId { namespace: "shop".into(), workload: WorkloadKey { kind: place, name: "report".into() } }
}

#[test]
fn whose_template_cannot_be_changed_is_told_once_that_nobody_knows_its_version() {
    let mut cluster = Cluster::default();
    let mut write = |told: bool| {
        if told {
            let fact = cluster.index.workload(&job()).unwrap().clone();
            cluster.index.note_told("shop", fact.owner.uid);
        }
        cluster.workload("Job", "report", "app", "configmap/app=app-0", &[]).contains(&Work::Consumer(job()))
    };
    assert!(write(false), "in a namespace without a table, too");
    assert!(!write(true), "its status changes, and nothing else can be done");
    let (place, _) = kind("Job");
    cluster.index.remove(Watched::Workload(place), &key("report"));
    assert!(cluster.index.namespaces["shop"].told.is_empty());
}

#[test]
fn a_job_that_has_ended_is_nobodys_trouble() {
    let mut cluster = Cluster::default();
    let (place, kind) = kind("Job");
    let mut ended = |condition: &str| {
        let template = json!({
            "metadata": {"annotations": {names::PINS: "configmap/app=app-0"}},
            "spec": {"volumes": [{"configMap": {"name": "app"}}]},
        });
        let mut data = kind.wrap(template);
        data["status"] = json!({"conditions": [{"type": condition, "status": "True"}]});
        let object = DynamicObject { types: None, metadata: cluster.meta("report", &[], &[]), data };
        let fact = WorkloadFact::read(&kind, &object).unwrap();
        cluster.index.apply(Watched::Workload(place), &key("report"), Fact::Workload(fact))
    };
    assert!(ended("Suspended").contains(&Work::Consumer(job())));
    assert_eq!(ended("Complete"), []);
    assert_eq!(ended("Failed"), []);
}

#[test]
fn a_config_names_only_those_whose_unknown_version_nobody_replaces() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.version("other", 'b', "1");
    let foreign = "configmap/app=other-bbbbbbbbbb";
    cluster.workload("Deployment", "web", "app", foreign, &[]);
    let unknown = |cluster: &mut Cluster| cluster.index.config(&id("app")).unwrap().unknown;
    assert_eq!(unknown(&mut cluster), None, "its pods do not run: it is pinned to what is current");
    let (place, _) = kind("Deployment");
    let mut fact = cluster.index.workload(&web()).unwrap().clone();
    fact.rollout = Rollout { is_observed: true, is_complete: true, desired: 1, ready: 1, ..Rollout::default() };
    fact.resource_version = ResourceVersion(u64::MAX);
    cluster.index.apply(Watched::Workload(place), &key("web"), Fact::Workload(fact));
    let told = unknown(&mut cluster).unwrap();
    assert_eq!((told.consumer, told.is_of), (web().workload, Some(config("other"))));
    cluster.index.remove(Watched::Config(ConfigKind::ConfigMap), &key("other-bbbbbbbbbb"));
    assert_eq!(unknown(&mut cluster).unwrap().is_of, None, "there is no such object");
}

#[test]
fn a_job_that_has_ended_is_not_named_by_its_config() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.workload("Job", "report", "app", "configmap/app=app-0", &[]);
    let unknown = |cluster: &mut Cluster| cluster.index.config(&id("app")).unwrap().unknown;
    assert_eq!(unknown(&mut cluster).map(|pin| pin.consumer), Some(job().workload));
    let (place, _) = kind("Job");
    let mut fact = cluster.index.workload(&job()).unwrap().clone();
    (fact.is_fixed, fact.resource_version) = (false, ResourceVersion(u64::MAX));
    cluster.index.apply(Watched::Workload(place), &key("report"), Fact::Workload(fact));
    assert_eq!(unknown(&mut cluster), None);
}

fn db() -> WorkloadId {
    let (place, _) = kind("StatefulSet");
    WorkloadId { namespace: "shop".into(), workload: WorkloadKey { kind: place, name: "db".into() } }
}

impl Cluster {
    /// The StatefulSet db, pinned to what is current: its controller is this far.
    fn stateful_set(&mut self, rollout: Rollout) -> Vec<Work> {
        self.workload("StatefulSet", "db", "app", "configmap/app=app-2", &[]);
        let mut fact = self.index.workload(&db()).unwrap().clone();
        self.version += 1;
        (fact.rollout, fact.resource_version) = (rollout, ResourceVersion(self.version));
        self.index.apply(Watched::Workload(db().workload.kind), &key("db"), Fact::Workload(fact))
    }

    /// A record of a template of it.
    fn record(&mut self, pins: &str) -> Vec<Work> {
        self.workload("ControllerRevision", "db-1", "app", pins, &[]);
        let (place, _) = kind("ControllerRevision");
        let record =
            WorkloadId { namespace: "shop".into(), workload: WorkloadKey { kind: place, name: "db-1".into() } };
        let mut fact = self.index.workload(&record).unwrap().clone();
        self.version += 1;
        (fact.made_by, fact.resource_version) = (Some("uid-of-db".into()), ResourceVersion(self.version));
        self.index.apply(Watched::Workload(place), &key("db-1"), Fact::Workload(fact))
    }

    fn left_unknown(&self) -> Vec<Unknown> {
        self.index.left_unknown("shop", self.index.workload(&db()).unwrap())
    }
}

#[test]
fn a_stateful_set_is_looked_after_until_it_waits_for_no_pod_of_an_unknown_version() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.table(&[("app", "app-2")]);
    let rollout = || Rollout { is_observed: true, desired: 2, ready: 1, ..Rollout::default() };
    cluster.stateful_set(rollout());
    assert_eq!(cluster.left_unknown(), []);
    let unknown = [(config("app"), "app-0".to_owned())];
    assert!(cluster.record("configmap/app=app-0").contains(&Work::Consumer(db())), "also after a restart of ours");
    assert_eq!(cluster.left_unknown(), unknown);
    assert!(cluster.stateful_set(rollout()).contains(&Work::Consumer(db())), "whatever is heard of it");
    let leaves = [
        Rollout { is_observed: false, ..rollout() },
        Rollout { is_by_hand: true, ..rollout() },
        Rollout { is_complete: true, ready: 2, ..rollout() },
    ];
    for rollout in leaves {
        cluster.stateful_set(rollout);
        assert_eq!(
            cluster.left_unknown(),
            [],
            "a pod would come back as it was, is its user's, or is waited for by nobody"
        );
    }
    cluster.stateful_set(rollout());
    cluster.record("configmap/app=app-2");
    assert_eq!(cluster.left_unknown(), [], "the table speaks of it");
}

#[test]
fn what_is_current_is_handed_out_only_when_the_table_says_what_was_released() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.table(&[("app", "app-1")]);
    cluster.workload("Deployment", "web", "app", "configmap/app=app-0", &[]);
    assert_eq!(settled(&cluster), "configmap/app=app-1");
    cluster.managed("app");
    cluster.version += 1;
    let namespace = cluster.index.namespaces.get_mut("shop").unwrap();
    let managed = namespace.managed.get_mut(&config("app")).unwrap();
    let current = json!({"object": "app-2", "version": "r2", "number": 2, "digest": "d"});
    managed.object.status = serde_json::from_value(json!({"current": current})).unwrap();
    assert_eq!(managed.released(), Some("app-2"));
    assert_eq!(settled(&cluster), "configmap/app=app-0", "a release has just ended");
    assert!(cluster.table(&[("app", "app-2")]).contains(&Work::Consumer(web())));
    assert_eq!(settled(&cluster), "configmap/app=app-2");
}

#[test]
fn what_has_gone_on_to_another_version_is_a_former_owner() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    let pinned = format!("configmap/app={APP_A}");
    cluster.workload("CronJob", "report", "app", &pinned, &[]);
    let owner = cluster.index.namespaces["shop"].workloads.values().next().unwrap().owner.clone();
    cluster.owned_version('a', owner);
    let former = |cluster: &Cluster| {
        let view = cluster.index.retention(&id("app"), Timestamp::UNIX_EPOCH).unwrap();
        view.holdings[0].former.clone()
    };
    assert!(former(&cluster).is_empty());
    cluster.workload("CronJob", "report", "app", "configmap/app=app-2", &[]);
    assert_eq!(former(&cluster), BTreeSet::from(["uid-of-report".to_owned()]));
    cluster.workload("CronJob", "report", "app", "", &[]);
    assert!(former(&cluster).is_empty(), "what it runs is for the table to say, and that is silent");
    cluster.workload("CronJob", "report", "other", "", &[]);
    assert_eq!(former(&cluster), BTreeSet::from(["uid-of-report".to_owned()]), "it does not use the config any more");
    cluster.workload("CronJob", "report", APP_A, "", &[]);
    assert!(former(&cluster).is_empty(), "somebody wrote the version's own name into it");
    cluster.workload("CronJob", "report", "app", "configmap/app=app-2", &[]);
    cluster.unreadable(Watched::Workload(0), "CloneSet", "web");
    assert!(former(&cluster).is_empty(), "nobody can say what goes");
    let (place, _) = kind("CronJob");
    cluster.index.remove(Watched::Workload(0), &key("web"));
    cluster.index.remove(Watched::Workload(place), &key("report"));
    assert!(former(&cluster).is_empty(), "what is gone is the garbage collector's affair");
}

#[test]
fn a_keeper_that_was_made_anew_is_missing_until_owners_are_written() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    let keeper = |uid: &str| OwnerReference { kind: "VersionedConfig".into(), uid: uid.into(), ..Default::default() };
    cluster.owned_version('a', keeper("uid-of-configmap-app"));
    cluster.managed("app");
    assert!(!cluster.index.lacks_holder(&id("app")), "it is among the owners");
    cluster.owned_version('a', keeper("another"));
    cluster.managed("app");
    assert!(!cluster.index.lacks_holder(&id("app")), "that is for the next look at its owners");
    cluster.index.remove(Watched::VersionedConfig, &key("configmap-app"));
    cluster.managed("app");
    assert!(cluster.index.lacks_holder(&id("app")));
    cluster.managed("app");
    assert!(cluster.index.lacks_holder(&id("app")), "also when its status is written meanwhile");
    cluster.index.note_lacking_holder(&id("app"), false);
    assert!(!cluster.index.lacks_holder(&id("app")));
}

#[test]
fn pods_that_run_with_a_version_that_is_gone_are_not_restarted() {
    let mut cluster = Cluster::default();
    cluster.version("app", 'a', "1");
    cluster.table(&[("app", "app-2")]);
    let pins = format!("configmap/app={APP_A}");
    cluster.workload("Deployment", "web", "app", &pins, &[]);
    let (place, _) = kind("Deployment");
    let mut fact = cluster.index.workload(&web()).unwrap().clone();
    fact.rollout = Rollout { is_observed: true, is_complete: true, desired: 1, ready: 1, ..Rollout::default() };
    fact.resource_version = ResourceVersion(u64::MAX);
    cluster.index.apply(Watched::Workload(place), &key("web"), Fact::Workload(fact));
    cluster.index.remove(Watched::Config(ConfigKind::ConfigMap), &key(APP_A));
    assert_eq!(settled(&cluster), pins);
}

#[test]
fn a_draft_is_no_version_and_goes_when_its_change_does_not_come() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.version("app", 'a', "1");
    let mut draft = |name: &str, created: Timestamp| {
        let annotations = [(names::SOURCE, "app"), (names::DIGEST, "b")];
        let mut meta = cluster.meta(name, &[(names::VERSION_OF, "configmap")], &annotations);
        meta.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(created));
        let fact = ConfigFact::read(ConfigKind::ConfigMap, &meta).unwrap();
        cluster.index.apply(Watched::Config(ConfigKind::ConfigMap), &key(name), Fact::Config(fact))
    };
    let now = Timestamp::from_second(1_000_000).unwrap();
    assert_eq!(draft("app-1", now), [Work::Retention(id("app"))]);
    draft("app-2", Timestamp::UNIX_EPOCH);
    assert_eq!(cluster.index.config(&id("app")).unwrap().versions.len(), 1);
    let drafts = cluster.index.retention(&id("app"), now).unwrap().drafts;
    let told = |draft: &Draft| (draft.object.clone(), draft.is_abandoned, draft.is_wanted);
    let told: Vec<_> = drafts.iter().map(told).collect();
    assert_eq!(told, [("app-1".into(), false, false), ("app-2".into(), true, false)]);
    cluster.workload("ReplicaSet", "web-1", "app", "configmap/app=app-2", &[]);
    let drafts = cluster.index.retention(&id("app"), now).unwrap().drafts;
    assert!(drafts[0].users.is_empty());
    assert_eq!(drafts[1].users, BTreeSet::from(["uid-of-web-1".to_owned()]), "it was joined, and is held");
    for name in ["app-1", "app-2"] {
        assert!(cluster.index.has_drafts(&id("app")));
        assert!(cluster.index.keys(Watched::Config(ConfigKind::ConfigMap), None).contains(&key(name)));
        cluster.index.remove(Watched::Config(ConfigKind::ConfigMap), &key(name));
    }
    assert!(!cluster.index.has_drafts(&id("app")));
}

#[test]
fn a_change_of_the_table_concerns_only_the_entries_that_changed() {
    let mut cluster = Cluster::default();
    cluster.table(&[("a", "a-1"), ("b", "b-1")]);
    let work = cluster.table(&[("a", "a-1"), ("b", "b-2")]);
    assert_eq!(work, [Work::Config(id("b")), Work::Retention(id("b"))]);
}

#[test]
fn what_another_announced_stays_so_until_we_offer_it_ourselves() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.offer("app-2");
    let published = |cluster: &mut Cluster, next: &str, moving: &str| {
        let entry = Entry { next: Some(next.into()), moving: Some(moving.into()), ..Entry::default() };
        cluster.index.note_published(&id("app"), &entry);
        cluster.index.config(&id("app")).unwrap().announced.is_some()
    };
    assert!(published(&mut cluster, "app-2", "app-1"), "we only left it standing");
    assert!(published(&mut cluster, "app-1", "app-1"), "somebody has announced it since");
    assert!(!published(&mut cluster, "app-2", "app-2"), "it is our own word now");
}

#[test]
fn a_version_that_holds_something_else_is_passed_over() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.version("app", 'a', "1");
    cluster.version("app", 'b', "2");
    let view = cluster.index.config(&id("app")).unwrap();
    assert_eq!((view.versions.len(), view.unchecked.len()), (2, 2));
    let checked = |letter: char, digest: Option<char>| Checked {
        uid: format!("uid-of-app-{}", letter.to_string().repeat(10)),
        digest: digest.map(|letter| letter.to_string().repeat(64)),
    };
    cluster.table(&[("app", "app-aaaaaaaaaa")]);
    cluster.workload("Deployment", "web", "app", "configmap/app=app-bbbbbbbbbb", &[]);
    assert_eq!(settled(&cluster), "configmap/app=app-bbbbbbbbbb");
    let work = cluster.index.note_checked(&id("app"), vec![checked('a', Some('a')), checked('b', Some('c'))]);
    assert_eq!(work, [Work::Consumer(web())], "it is pinned to what is forged");
    assert_eq!(settled(&cluster), "configmap/app=app-aaaaaaaaaa");
    assert_eq!(cluster.index.forged(&web()), BTreeSet::from(["uid-of-app-bbbbbbbbbb".to_owned()]));
    let view = cluster.index.config(&id("app")).unwrap();
    assert_eq!((view.versions.len(), view.unchecked.len()), (1, 0));
    assert_eq!(view.versions[0].version.object, "app-aaaaaaaaaa");
    assert_eq!(cluster.index.retention(&id("app"), Timestamp::UNIX_EPOCH).unwrap().versions.len(), 1);
    cluster.index.note_checked(&id("app"), vec![checked('a', None)]);
    assert!(cluster.index.config(&id("app")).unwrap().versions.is_empty(), "it can still change");
    cluster.index.remove(Watched::Config(ConfigKind::ConfigMap), &key("app-aaaaaaaaaa"));
    cluster.version("app", 'a', "1");
    assert_eq!(cluster.index.config(&id("app")).unwrap().unchecked.len(), 1, "made again, it is looked at again");
}

#[test]
fn a_version_whose_label_is_taken_off_is_none_any_more() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.version("app", 'a', "1");
    assert!(cluster.source("app-aaaaaaaaaa", &[]).contains(&Work::Config(id("app"))));
    assert!(cluster.index.config(&id("app")).unwrap().versions.is_empty());
}

#[test]
fn the_sources_own_version_is_kept_whatever_runs() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.version("app", 'a', "1");
    cluster.index.remember_digest(&id("app"), ResourceVersion(1), Digest::from("a".repeat(64)));
    let view = cluster.index.retention(&id("app"), Timestamp::UNIX_EPOCH).unwrap();
    assert!(view.protected.contains("app-aaaaaaaaaa"));
}

#[test]
fn a_replica_set_that_a_deployment_made_is_a_holder_and_no_consumer() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.workload("Deployment", "web", "app", "configmap/app=app-1", &[]);
    cluster.workload("ReplicaSet", "alone", "app", "configmap/app=app-1", &[]);
    let consumers = cluster.index.config(&id("app")).unwrap().consumers;
    assert_eq!(consumers.len(), 2, "a ReplicaSet of its own is a workload like others");
}

#[test]
fn a_record_of_a_template_that_says_nothing_new_makes_no_work() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    let mut look = |pins: &str| cluster.workload("ControllerRevision", "web-1", "app", pins, &[]);
    assert_ne!(look("configmap/app=app-1"), []);
    assert_eq!(look("configmap/app=app-1"), []);
    assert_ne!(look("configmap/app=app-2"), []);
}

#[test]
fn a_release_may_grow_by_what_changed_beside_it_and_is_not_read_yet() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.source("other", &VERSIONED);
    cluster.workload("Deployment", "web", "app", "", &[]);
    assert!(!cluster.index.may_grow(&id("other")), "nobody uses it");
    let (place, kind) = kind("Deployment");
    let volumes = json!([{"configMap": {"name": "app"}}, {"configMap": {"name": "other"}}]);
    let data = kind.wrap(json!({"spec": {"volumes": volumes}}));
    let object = DynamicObject { types: None, metadata: cluster.meta("web", &[], &[]), data };
    let fact = WorkloadFact::read(&kind, &object).unwrap();
    cluster.index.apply(Watched::Workload(place), &key("web"), Fact::Workload(fact));
    assert!(cluster.index.may_grow(&id("app")));
    cluster.index.remember_digest(&id("other"), ResourceVersion(2), Digest::from("0".repeat(64)));
    assert!(!cluster.index.may_grow(&id("app")), "it is read");
}

#[test]
fn what_is_gone_is_no_consumer() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.workload("Deployment", "web", "app", "", &[]);
    let (place, _) = kind("Deployment");
    assert_eq!(cluster.index.keys(Watched::Workload(place), None), [key("web")]);
    let work = cluster.index.remove(Watched::Workload(place), &key("web"));
    assert_eq!(work, [Work::Config(id("app"))]);
    assert!(cluster.index.config(&id("app")).unwrap().consumers.is_empty());
}

impl Cluster {
    /// An object that cannot be read.
    fn unreadable(&mut self, watched: Watched, kind: &str, name: &str) -> Vec<Work> {
        let meta = self.meta(name, &[], &[]);
        let about = k8s_openapi::api::core::v1::ObjectReference {
            kind: Some(kind.into()),
            name: Some(name.into()),
            ..Default::default()
        };
        let resource_version = crate::facts::resource_version(&meta);
        let unreadable = Unreadable { resource_version, about, fault: "out of range".into() };
        self.index.apply_unreadable(watched, &key(name), unreadable)
    }

    fn object<K: serde::de::DeserializeOwned>(&mut self, kind: &str, name: &str, spec: &serde_json::Value) -> K {
        let metadata = self.meta(name, &[], &[]);
        let object = json!({"apiVersion": "lockstep.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec});
        serde_json::from_value(object).unwrap()
    }

    fn managed(&mut self, config: &str) -> Vec<Work> {
        let name = format!("configmap-{config}");
        let spec = json!({"source": {"kind": "ConfigMap", "name": config}});
        let fact = ManagedFact::read_named(self.object("VersionedConfig", &name, &spec)).unwrap();
        self.index.apply(Watched::VersionedConfig, &key(&name), Fact::Managed(Box::new(fact)))
    }

    fn policy(&mut self, name: &str) -> Vec<Work> {
        let fact = PolicyFact::read(self.object("ReleasePolicy", name, &json!({"bakeSeconds": 5})));
        self.index.apply(Watched::Policy, &key(name), Fact::Policy(Box::new(fact)))
    }

    fn release(&mut self, name: &str, config: &str) -> Vec<Work> {
        let moves = json!([{"source": {"kind": "ConfigMap", "name": config},
            "from": "a", "to": "b", "fromVersion": "1", "toVersion": "2"}]);
        let fact = ReleaseFact::read(self.object("Release", name, &json!({"moves": moves})));
        self.index.apply(Watched::Release, &key(name), Fact::Release(Box::new(fact)))
    }

    /// What stops a config.
    fn stops(&self, config: &str) -> Option<String> {
        self.index.stops(&id(config)).map(|unreadable| unreadable.name().to_owned())
    }
}

#[test]
fn a_policy_that_cannot_be_read_stops_the_configs_that_go_by_it_until_it_can() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    let work = cluster.unreadable(Watched::Policy, "ReleasePolicy", "default");
    assert!(work.contains(&Work::Config(id("app"))), "it has to be told");
    assert_eq!(cluster.stops("app").as_deref(), Some("default"));
    cluster.unreadable(Watched::Policy, "ReleasePolicy", "other");
    assert_eq!(cluster.index.counts.unreadable(), 2);
    let work = cluster.policy("default");
    assert!(work.contains(&Work::Config(id("app"))), "it goes on");
    assert_eq!(cluster.stops("app"), None, "the other one is nothing to it");
    cluster.index.remove(Watched::Policy, &key("other"));
    assert_eq!(cluster.index.counts.unreadable(), 0);
}

#[test]
fn what_cannot_be_read_is_told_once_per_version() {
    let mut cluster = Cluster::default();
    let told = Work::Unreadable(ObjectId { watched: Watched::Policy, key: key("default") });
    assert!(cluster.unreadable(Watched::Policy, "ReleasePolicy", "default").contains(&told));
    cluster.version -= 1;
    assert_eq!(cluster.unreadable(Watched::Policy, "ReleasePolicy", "default"), [], "it was listed again");
    assert!(cluster.unreadable(Watched::Policy, "ReleasePolicy", "default").contains(&told));
    assert_eq!(cluster.index.keys(Watched::Policy, None), [key("default")], "else a listing could not miss it");
}

#[test]
fn what_was_read_of_an_object_before_stays() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.managed("app");
    cluster.unreadable(Watched::VersionedConfig, "VersionedConfig", "configmap-app");
    assert!(cluster.index.config(&id("app")).unwrap().managed.is_some());
    assert_eq!(cluster.stops("app").as_deref(), Some("configmap-app"));
}

#[test]
fn a_table_that_cannot_be_read_stops_all_of_its_namespace() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.unreadable(Watched::PinTable, "PinTable", names::PIN_TABLE);
    assert_eq!(cluster.stops("app").as_deref(), Some(names::PIN_TABLE));
    cluster.table(&[]);
    assert_eq!(cluster.stops("app"), None);
}

#[test]
fn a_release_that_cannot_be_read_stops_its_config_and_keeps_its_name() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.source("app-1", &VERSIONED);
    cluster.unreadable(Watched::Release, "Release", "configmap-app-7");
    assert_eq!(cluster.stops("app").as_deref(), Some("configmap-app-7"));
    assert_eq!(cluster.stops("app-1"), None);
    assert_eq!(cluster.index.config(&id("app")).unwrap().next_release_name, "configmap-app-8");
}

#[test]
fn a_release_stands_still_that_could_not_be_recorded() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.managed("app");
    cluster.release("configmap-app-1", "app");
    let release = ReleaseId { namespace: "shop".into(), name: "configmap-app-1".into() };
    let view = |cluster: &Cluster| cluster.index.release(&release, Timestamp::UNIX_EPOCH);
    assert!(view(&cluster).unwrap().blocked.is_none());
    cluster.unreadable(Watched::Policy, "ReleasePolicy", "default");
    let blocked = view(&cluster).unwrap().blocked;
    assert!(matches!(blocked, Some(lockstep_core::release::Block::Unreadable(_))), "{blocked:?}");
    cluster.unreadable(Watched::VersionedConfig, "VersionedConfig", "configmap-app");
    assert!(view(&cluster).is_none());
}

#[test]
fn what_a_release_leaves_with_a_version_that_nobody_knows_is_looked_after_at_its_end() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.managed("app");
    cluster.table(&[("app", APP_A)]);
    cluster.release("configmap-app-1", "app");
    let work = cluster.workload("Deployment", "web", "app", "configmap/app=app-0", &[]);
    assert!(!work.contains(&Work::Consumer(web())), "the release knows what it moves");
    let moves = json!([{"source": {"kind": "ConfigMap", "name": "app"},
        "from": "a", "to": "b", "fromVersion": "1", "toVersion": "2"}]);
    let mut release: lockstep_api::Release = cluster.object("Release", "configmap-app-1", &json!({"moves": moves}));
    release.status = Some(serde_json::from_value(json!({"phase": "RolledBack"})).unwrap());
    let fact = Fact::Release(Box::new(ReleaseFact::read(release)));
    let work = cluster.index.apply(Watched::Release, &key("configmap-app-1"), fact);
    assert!(work.contains(&Work::Consumer(web())), "{work:?}");
}

#[test]
fn versions_stay_where_a_workload_cannot_be_read() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.version("app", 'a', "1");
    let retained = |cluster: &Cluster| cluster.index.retention(&id("app"), Timestamp::UNIX_EPOCH).unwrap().retain;
    cluster.index.remember_digest(&id("app"), ResourceVersion(1), Digest::from("a".repeat(64)));
    assert_eq!(retained(&cluster), Some(lockstep_core::retention::DEFAULT_RETAIN));
    cluster.unreadable(Watched::Workload(0), "CloneSet", "web");
    assert_eq!(retained(&cluster), Some(usize::MAX));
}

#[test]
fn nobody_says_which_versions_can_go_before_the_config_was_looked_at() {
    let mut cluster = Cluster::default();
    cluster.source("app", &VERSIONED);
    cluster.version("app", 'a', "1");
    let view = |cluster: &Cluster| cluster.index.retention(&id("app"), Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!(view(&cluster).retain, None);
    let digest = Digest::from("a".repeat(64));
    let work = cluster.index.remember_digest(&id("app"), ResourceVersion(1), digest.clone());
    assert_eq!(work, [Work::Retention(id("app"))], "now somebody can");
    assert!(view(&cluster).retain.is_some());
    assert_eq!(cluster.index.remember_digest(&id("app"), ResourceVersion(1), digest), []);
    cluster.source("app", &VERSIONED);
    let view = view(&cluster);
    assert_eq!(view.retain, None, "it has changed, and its new version may be there already");
    assert!(!view.protected.contains("app-aaaaaaaaaa"), "what it held before is a version as any other");
}

#[test]
fn a_versioned_config_that_is_not_named_after_its_source_is_nobodys() {
    let mut cluster = Cluster::default();
    let foreign = "ü".repeat(150);
    for (name, source) in [("configmap-app", "other"), ("app", "app"), ("configmap-app-2", "app"), ("x", &foreign)] {
        let spec = json!({"source": {"kind": "ConfigMap", "name": source}});
        let read = ManagedFact::read_named(cluster.object("VersionedConfig", name, &spec));
        assert!(read.is_err(), "{name} {source}");
    }
}
