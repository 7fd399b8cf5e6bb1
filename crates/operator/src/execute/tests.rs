use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::{ReleaseSpec, VersionedConfig};
use lockstep_core::policy::Policy;
use lockstep_core::{ConfigKind, ConfigRef, VersionName};

use super::*;
use crate::environment::{Clock, Process, Randomness, Workshop};
use crate::events::Reporter;
use crate::facts::ConfigFact;
use crate::fake::Fake;
use crate::index::{ConfigId, ConfigView, Index};
use crate::leader::Term;

const SOURCE: &str = "/api/v1/namespaces/shop/configmaps/app";
const MANAGED: &str = "/apis/lockstep.dev/v1alpha1/namespaces/shop/versionedconfigs/configmap-app";
const TABLE: &str = "/apis/lockstep.dev/v1alpha1/namespaces/shop/pintables/lockstep";
const RELEASES: &str = "/apis/lockstep.dev/v1alpha1/namespaces/shop/releases";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/lockstep-system/leases/lockstep";

/// A cluster with one config, and a replica that leads.
struct Stage {
    fake: Fake,
    executor: Executor,
    index: Index,
}

impl Stage {
    fn new() -> Self {
        let fake = Fake::default();
        fake.put(LEASE, json!({"metadata": {"name": "lockstep"}, "spec": {"holderIdentity": "me"}}));
        let executor = executor(&fake);
        let mut stage = Self { fake, executor, index: Index::new(Policy::default()) };
        stage.change("green");
        stage
    }

    /// Somebody changes the config.
    fn change(&mut self, color: &str) {
        let labels = json!({names::VERSIONED: names::ON});
        let metadata = json!({"name": "app", "namespace": "shop", "uid": "app", "labels": labels});
        self.fake.put(SOURCE, json!({"metadata": metadata, "data": {"color": color}}));
        let source: ConfigMap = serde_json::from_value(self.fake.get(SOURCE).unwrap()).unwrap();
        let fact = ConfigFact::read(ConfigKind::ConfigMap, &source.metadata).map(Fact::Config);
        let key = facts::key(&source.metadata);
        self.take_in([Written { watched: Watched::Config(ConfigKind::ConfigMap), key, fact }]);
    }

    fn take_in(&mut self, written: impl IntoIterator<Item = Written>) {
        for Written { watched, key, fact } in written {
            match fact {
                Some(fact) => drop(self.index.apply(watched, &key, fact)),
                None => drop(self.index.remove(watched, &key)),
            }
        }
    }

    fn view(&mut self) -> ConfigView {
        self.index.config(&id()).unwrap()
    }

    async fn look(&mut self) -> ConfigOutcome {
        let view = self.view();
        let mut outcome = self.executor.config(view).await.unwrap();
        self.take_in(std::mem::take(&mut outcome.written));
        outcome
    }

    fn managed(&self) -> ManagedFact {
        ManagedFact::read(serde_json::from_value::<VersionedConfig>(self.fake.get(MANAGED).unwrap()).unwrap())
    }

    fn names(&self) -> Vec<(String, String)> {
        let status = self.managed().object.status.unwrap_or_default();
        status.names.into_iter().map(|given| (given.version, given.object)).collect()
    }
}

impl Stage {
    /// The VersionedConfig as somebody leaves it.
    fn edit_managed(&mut self, edit: impl FnOnce(&mut Value)) {
        let mut object = self.fake.get(MANAGED).unwrap();
        edit(&mut object);
        self.fake.put(MANAGED, object);
        let fact = self.managed();
        self.take_in([written_managed(&fact)]);
    }

    /// A release of this version, in one step.
    fn make_current(&mut self, object: &str) {
        self.edit_managed(|managed| {
            let versions = managed["status"]["versions"].as_array().unwrap().clone();
            managed["status"]["current"] = versions.into_iter().find(|version| version["object"] == object).unwrap();
            managed["status"]["observedResourceVersion"].take();
        });
    }
}

fn executor(fake: &Fake) -> Executor {
    let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
    let reporter = Reporter { controller: "lockstep".into(), instance: "me".into() };
    Executor {
        client: fake.client(),
        events: Events::new(fake.client(), clock.clone(), reporter),
        tables: Tables::new(fake.client(), Some(Term::for_test(fake, &clock))),
        environment: Environment {
            clock,
            random: Randomness::seeded(1),
            process: Process::system(),
            workshop: Workshop::inline(),
        },
        digest_key: DigestKey(vec![7; 32]),
        kinds: crate::kinds::built_in(),
        may_delete_pods: true,
    }
}

fn id() -> ConfigId {
    ConfigId { namespace: "shop".into(), config: ConfigRef::new(ConfigKind::ConfigMap, "app") }
}

fn is_conflict<T>(result: &Result<T, ExecuteError>) -> bool {
    result.as_ref().is_err_and(ExecuteError::is_conflict)
}

#[tokio::test(start_paused = true)]
async fn a_version_has_its_name_in_our_account_before_it_exists_and_is_there_before_the_table_names_it() {
    let mut stage = Stage::new();
    let outcome = stage.look().await;
    let version = format!("/api/v1/namespaces/shop/configmaps/{}", outcome.created.unwrap().object);
    assert_eq!(stage.fake.writes(), [MANAGED, MANAGED, &version, TABLE, MANAGED]);
    assert_eq!(stage.look().await.created, None);
    assert!(stage.fake.writes().is_empty(), "on its own outcome it does nothing");
    stage.change("blue");
    let created = stage.look().await.created.unwrap();
    let names: Vec<String> = stage.names().into_iter().map(|(name, _)| name).collect();
    assert_eq!((created.name.to_string().as_str(), names), ("r2", vec!["r2".to_owned(), "1.0.0".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn who_led_before_and_is_late_gets_no_name_for_its_version() {
    let mut stage = Stage::new();
    stage.look().await;
    let (mut late, mut outcome) = (stage.managed(), ConfigOutcome::default());
    stage.change("blue");
    let taken = stage.look().await.created.unwrap();
    let version = Version { object: "app-late".into(), ..taken.clone() };
    let reserved = stage.executor.reserve(&mut late, &version, &mut outcome).await;
    assert!(is_conflict(&reserved));
    assert!(stage.names().contains(&(taken.name.to_string(), taken.object)));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_was_put_down_is_found_again_by_who_takes_over() {
    let mut stage = Stage::new();
    stage.look().await;
    let (mut managed, mut outcome) = (stage.managed(), ConfigOutcome::default());
    let late = Version {
        object: "app-late".into(),
        name: VersionName::numbered(2),
        number: 2,
        digest: "d".repeat(64),
        changed_by: None,
        reason: None,
    };
    stage.executor.reserve(&mut managed, &late, &mut outcome).await.unwrap();
    // The one that put it down sleeps; the other one sees it in the account.
    stage.take_in(outcome.written);
    stage.change("blue");
    assert_eq!(stage.look().await.created.unwrap().name, VersionName::numbered(3));
}

#[tokio::test(start_paused = true)]
async fn the_name_of_what_could_not_be_made_is_free_again() {
    let mut stage = Stage::new();
    stage.look().await;
    let before = stage.names();
    stage.change("blue");
    stage.fake.refuse(Some("/api/v1/namespaces/shop/configmaps"));
    assert!(stage.look().await.is_refused);
    assert_eq!(stage.names(), before);
    stage.fake.refuse(None);
    assert_eq!(stage.look().await.created.unwrap().name, VersionName::numbered(2));
}

#[tokio::test(start_paused = true)]
async fn who_takes_over_does_not_take_what_a_person_set_aside_for_what_is_current() {
    let mut stage = Stage::new();
    let first = stage.look().await.created.unwrap();
    stage.change("blue");
    let second = stage.look().await.created.unwrap();
    stage.make_current(&second.object);
    stage.look().await;
    let observed = |stage: &Stage| stage.managed().object.status.unwrap().observed_resource_version;
    assert!(observed(&stage).is_some(), "the config holds what is current");
    stage.edit_managed(|managed| {
        managed["spec"]["current"] = json!({"version": first.name.as_str(), "insteadOf": second.object});
    });
    stage.make_current(&first.object);
    stage.look().await;
    assert_eq!(observed(&stage), None, "it holds something else, and is read again");
}

#[tokio::test(start_paused = true)]
async fn a_version_that_went_with_its_table_is_not_handed_out_again() {
    let mut stage = Stage::new();
    let created = stage.look().await.created.unwrap();
    stage.fake.delete(TABLE);
    stage.fake.delete(&format!("/api/v1/namespaces/shop/configmaps/{}", created.object));
    let key = Key { namespace: "shop".into(), name: names::PIN_TABLE.into() };
    stage.take_in([Written { watched: Watched::PinTable, key, fact: None }]);
    let outcome = stage.look().await;
    assert!(outcome.published.is_none() && outcome.wake.is_some(), "the watch has yet to say that it went");
    assert_eq!(stage.fake.get(TABLE), None);
}

impl Stage {
    /// Somebody deletes an object, and the watch says so.
    fn delete(&mut self, path: &str, watched: Watched) {
        self.fake.delete(path);
        let name = path.rsplit('/').next().unwrap().to_owned();
        let key = Key { namespace: "shop".into(), name };
        self.take_in([Written { watched, key, fact: None }]);
    }

    fn ready(&self) -> (String, String) {
        let status = self.managed().object.status.unwrap();
        let ready = status.condition(lockstep_api::ConditionType::Ready).unwrap();
        (format!("{} {}", ready.status, ready.reason), ready.message.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn a_versioned_config_that_is_written_again_keeps_its_versions_at_once() {
    let mut stage = Stage::new();
    let version = format!("/api/v1/namespaces/shop/configmaps/{}", stage.look().await.created.unwrap().object);
    let lost = stage.managed().uid().to_owned();
    stage.delete(MANAGED, Watched::VersionedConfig);
    stage.look().await;
    let owners = stage.fake.get(&version).unwrap()["metadata"]["ownerReferences"].to_string();
    assert!(owners.contains(stage.managed().uid()) && !owners.contains(&lost), "{owners}");
    assert!(owners.contains("\"uid\":\"app\""), "and so does the config: {owners}");
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_is_not_called_current() {
    let mut stage = Stage::new();
    let created = stage.look().await.created.unwrap();
    assert_eq!(stage.ready(), ("True Released".into(), "version 1.0.0 is current".into()));
    let version = format!("/api/v1/namespaces/shop/configmaps/{}", created.object);
    stage.delete(SOURCE, Watched::Config(ConfigKind::ConfigMap));
    stage.delete(&version, Watched::Config(ConfigKind::ConfigMap));
    stage.look().await;
    let (ready, told) = stage.ready();
    assert_eq!(ready, "False NoVersion");
    assert!(told.contains("version 1.0.0 was current") && told.contains("is gone"), "{told}");
    stage.change("green");
    stage.look().await;
    assert_eq!(stage.ready().0, "True Released", "the same content is the same version");
}

#[tokio::test(start_paused = true)]
async fn a_versioned_config_of_nothing_says_so() {
    let mut stage = Stage::new();
    stage.delete(SOURCE, Watched::Config(ConfigKind::ConfigMap));
    let spec = json!({"source": {"kind": "ConfigMap", "name": "app"}});
    let metadata = json!({"name": "configmap-app", "namespace": "shop", "uid": "by-hand"});
    stage.fake.put(
        MANAGED,
        json!({"apiVersion": "lockstep.dev/v1alpha1", "kind": "VersionedConfig", "metadata": metadata, "spec": spec}),
    );
    let fact = stage.managed();
    stage.take_in([written_managed(&fact)]);
    stage.look().await;
    let (ready, told) = stage.ready();
    assert_eq!(ready, "False NoVersion");
    assert!(told.contains("there is no ConfigMap app"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_version_nobody_knows_is_told_what_helps() {
    let mut stage = Stage::new();
    let known = stage.look().await.created.unwrap().object;
    stage.fake.writes();
    let place = stage.executor.kinds.iter().position(|kind| kind.resource.kind == "Job").unwrap();
    let job = WorkloadId {
        namespace: "shop".into(),
        workload: crate::index::WorkloadKey { kind: place, name: "report".into() },
    };
    let tell = async |version: &str| {
        let unknown = [(id().config, version.to_owned())];
        let forged = std::collections::BTreeSet::new();
        stage.executor.tell_fixed(&job, &WorkloadFact::default(), &unknown, &forged).await.unwrap();
        stage.fake.writes().pop().map(|path| stage.fake.get(&path).unwrap())
    };
    let event = tell("app-0123456789").await.unwrap();
    assert_eq!((&event["regarding"]["kind"], &event["reason"]), (&json!("Job"), &json!("UnknownVersion")));
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("app-0123456789, which is no version of configmap/app here"), "{note}");
    assert!(note.contains("remove the annotation lockstep.dev/pins from its template, and create it again"), "{note}");
    assert!(tell(&known).await.is_none(), "our watch was behind");
}

#[tokio::test(start_paused = true)]
async fn a_note_on_what_is_another_by_now_is_refused() {
    let mut stage = Stage::new();
    stage.look().await;
    let late = stage.managed();
    stage.executor.note(&late, json!({"releasing": "r2"})).await.unwrap();
    let noted = stage.executor.note(&late, json!({"releasing": "r3"})).await;
    assert!(is_conflict(&noted));
    assert_eq!(stage.managed().object.status.unwrap().releasing.as_deref(), Some("r2"));
}

#[tokio::test(start_paused = true)]
async fn a_config_that_somebody_else_has_adopted_is_not_adopted_again() {
    let mut stage = Stage::new();
    let late = stage.view();
    stage.look().await;
    let account = stage.fake.get(MANAGED);
    assert!(is_conflict(&stage.executor.config(late).await));
    assert_eq!(stage.fake.get(MANAGED), account);
}

#[tokio::test(start_paused = true)]
async fn a_config_is_forgotten_only_as_it_was() {
    let mut stage = Stage::new();
    stage.look().await;
    let late = stage.managed();
    stage.executor.note(&late, json!({"releasing": "r2"})).await.unwrap();
    let api: Api<VersionedConfig> = Api::namespaced(stage.fake.client(), "shop");
    let params = crate::guards::delete_as_it_was(late.uid(), late.resource_version);
    assert!(is_conflict(&api.delete("configmap-app", &params).await.doing(String::new)));
    let now = stage.managed();
    let params = crate::guards::delete_as_it_was(now.uid(), now.resource_version);
    api.delete("configmap-app", &params).await.unwrap();
    assert_eq!(stage.fake.get(MANAGED), None);
}

/// What there is of a kind, as a list.
fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items})
}

#[tokio::test(start_paused = true)]
async fn what_a_versioned_config_knew_is_written_again_also_where_a_first_try_was_cut_off() {
    let mut stage = Stage::new();
    let first = stage.look().await.created.unwrap();
    let mut blank = stage.fake.get(MANAGED).unwrap();
    blank.as_object_mut().unwrap().remove("status");
    blank["metadata"]["uid"] = json!("another");
    let key = facts::key(&stage.managed().object.metadata);
    stage.take_in([Written { watched: Watched::VersionedConfig, key, fact: None }]);
    // It was made, and nobody heard the answer.
    stage.fake.put(MANAGED, blank);
    let fact = stage.managed();
    stage.take_in([written_managed(&fact)]);
    stage.look().await;
    assert_eq!(stage.managed().released(), Some(first.object.as_str()));
    assert_eq!(stage.names(), [("1.0.0".to_owned(), first.object)]);
}

#[tokio::test(start_paused = true)]
async fn a_config_is_forgotten_with_its_drafts_once_really_nobody_uses_it() {
    let mut stage = Stage::new();
    let version = stage.look().await.created.unwrap();
    let draft = "/api/v1/namespaces/shop/configmaps/app-draft";
    let annotations = json!({names::SOURCE: "app", names::DIGEST: "d"});
    let labels = json!({names::VERSION_OF: "configmap"});
    let meta =
        json!({"name": "app-draft", "namespace": "shop", "uid": "d", "labels": labels, "annotations": annotations});
    stage.fake.put(draft, json!({"metadata": meta, "data": {}}));
    let found: ConfigMap = serde_json::from_value(stage.fake.get(draft).unwrap()).unwrap();
    let fact = ConfigFact::read(ConfigKind::ConfigMap, &found.metadata).map(Fact::Config);
    let watched = Watched::Config(ConfigKind::ConfigMap);
    let source = Key { namespace: "shop".into(), name: "app".into() };
    stage.take_in([
        Written { watched, key: facts::key(&found.metadata), fact },
        Written { watched, key: source, fact: None },
    ]);
    let deployments = "/apis/apps/v1/namespaces/shop/deployments";
    let pod = json!({"spec": {"volumes": [{"name": "v", "configMap": {"name": "app"}}]}});
    let web = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {"template": pod}});
    stage.fake.put(deployments, list(&[web]));
    let by_hand = json!({"metadata": {"name": "by-hand", "uid": "p"}, "spec": {"volumes": [
        {"name": "v", "configMap": {"name": version.object}}]}});
    stage.fake.put("/api/v1/namespaces/shop/pods", list(&[by_hand]));
    stage.look().await;
    tokio::time::advance(UNUSED).await;
    assert!(stage.look().await.wake.is_some());
    assert!(stage.fake.get(MANAGED).is_some(), "our watch does not say yet that somebody uses it");
    stage.fake.put(deployments, list(&[]));
    stage.look().await;
    assert_eq!((stage.fake.get(MANAGED), stage.fake.get(draft)), (None, None));
    let version = stage.fake.get(&format!("/api/v1/namespaces/shop/configmaps/{}", version.object)).unwrap();
    assert_eq!(version["metadata"]["ownerReferences"][0]["kind"], "Pod", "whoever runs it holds it");
}

#[tokio::test(start_paused = true)]
async fn a_release_is_not_written_again_into_a_namespace_that_was_made_anew() {
    let mut stage = Stage::new();
    stage.look().await;
    let source = stage.managed().object.spec.source.clone();
    let step = json!({"source": source, "from": "app-1", "to": "app-2", "fromVersion": "1", "toVersion": "2"});
    let release: lockstep_api::Release = serde_json::from_value(json!({
        "apiVersion": "lockstep.dev/v1alpha1", "kind": "Release",
        "metadata": {"name": "configmap-app-1", "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:10Z"},
        "spec": {"moves": [step]},
    }))
    .unwrap();
    let release_id = crate::index::ReleaseId { namespace: "shop".into(), name: "configmap-app-1".into() };
    let restore = async |stage: &Stage| {
        let fact = facts::ReleaseFact::read(release.clone());
        let lost = crate::index::Lost { fact, managed: stage.managed(), source_uid: None };
        stage.executor.restore(&release_id, lost).await
    };
    assert!(restore(&stage).await.is_err_and(|error| error.is_not_found()), "its version is gone");
    let put = |created: &str| {
        let metadata = json!({"name": "app-2", "namespace": "shop", "creationTimestamp": created});
        stage.fake.put("/api/v1/namespaces/shop/configmaps/app-2", json!({"metadata": metadata}));
    };
    put("2026-01-01T00:00:20Z");
    assert!(restore(&stage).await.is_err_and(|error| error.is_not_found()), "it is another one of this name");
    put("2026-01-01T00:00:10Z");
    assert!(restore(&stage).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_release_of_the_same_name_counts_only_if_it_is_the_same() {
    let mut stage = Stage::new();
    stage.look().await;
    let (managed, api) = (stage.managed(), Api::namespaced(stage.fake.client(), "shop"));
    let spec = |to: &str| {
        let source = managed.object.spec.source.clone();
        let (from_version, to_version) = ("1.0.0".into(), "r2".into());
        let step = lockstep_api::Move { source, from: "app-1".into(), to: to.into(), from_version, to_version };
        ReleaseSpec { moves: vec![step], ..ReleaseSpec::default() }
    };
    let create = async |to: &str| {
        stage.executor.create_release(&api, "app-1", spec(to), &managed, None).await.doing(String::new)
    };
    let made = create("app-2").await.unwrap();
    assert_eq!(create("app-2").await.unwrap().metadata.uid, made.metadata.uid, "we may have died right after");
    assert!(is_conflict(&create("app-3").await));
    assert_eq!(stage.fake.get(&format!("{RELEASES}/app-1")).unwrap()["spec"]["moves"][0]["to"], "app-2");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_something_became_of_is_not_deleted() {
    let stage = Stage::new();
    let path = "/api/v1/namespaces/shop/pods/db-0";
    stage.fake.put(path, json!({"metadata": {"name": "db-0", "namespace": "shop", "uid": "u1"}}));
    let at = |fake: &Fake| {
        let meta: ObjectMeta = serde_json::from_value(fake.get(path).unwrap()["metadata"].take()).unwrap();
        facts::resource_version(&meta)
    };
    let seen = at(&stage.fake);
    stage.fake.put(path, stage.fake.get(path).unwrap());
    stage.executor.delete_pod("shop", "db-0", "u1", seen).await.unwrap();
    assert!(stage.fake.get(path).is_some());
    stage.executor.delete_pod("shop", "db-0", "u1", at(&stage.fake)).await.unwrap();
    assert_eq!(stage.fake.get(path), None);
}

/// A pod of the StatefulSet db, pinned to this version.
fn put_pod(stage: &Stage, name: &str, version: &str, ready: &str) -> String {
    let path = format!("/api/v1/namespaces/shop/pods/{name}");
    let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "db", "controller": true});
    let pins = json!({names::PINS: format!("configmap/app={version}")});
    let metadata = json!({
        "name": name, "namespace": "shop", "uid": name, "annotations": pins, "ownerReferences": [owner],
    });
    let status = json!({"conditions": [{"type": "Ready", "status": ready}]});
    stage.fake.put(&path, json!({"metadata": metadata, "status": status}));
    path
}

/// The StatefulSet db, whose first pod its user keeps back, and what nobody knows.
fn waiting() -> (WorkloadId, WorkloadFact, [lockstep_core::template::Unknown; 1]) {
    let kinds = crate::kinds::built_in();
    let place = kinds.iter().position(|kind| kind.resource.kind == "StatefulSet").unwrap();
    let workload = crate::index::WorkloadKey { kind: place, name: "db".into() };
    let mut fact = WorkloadFact::default();
    (fact.owner.kind, fact.owner.name, fact.owner.uid) = ("StatefulSet".into(), "db".into(), "db".into());
    fact.rollout.kept_back = 1;
    (WorkloadId { namespace: "shop".into(), workload }, fact, [(id().config, "app-0123456789".to_owned())])
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_for_what_nobody_knows_goes_also_if_it_changes_meanwhile() {
    let mut stage = Stage::new();
    let known = stage.look().await.created.unwrap().object;
    let (db, fact, unknown) = waiting();
    let stuck = put_pod(&stage, "db-2", "app-0123456789", "False");
    let left = [
        put_pod(&stage, "db-0", "app-0123456789", "False"),
        put_pod(&stage, "db-1", "app-0123456789", "True"),
        put_pod(&stage, "db-3", &known, "False"),
    ];
    let forged = std::collections::BTreeSet::new();
    let look = async || stage.executor.delete_waiting(&db, &fact, &unknown, &forged).await.unwrap();
    stage.fake.touch_after_list(&stuck);
    look().await;
    assert!(stage.fake.get(&stuck).is_some(), "it may work by now");
    look().await;
    assert_eq!(stage.fake.get(&stuck), None);
    assert!(left.iter().all(|pod| stage.fake.get(pod).is_some()), "kept back, ready, or of a version that is there");
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_forged_is_not_known_although_it_is_there() {
    let mut stage = Stage::new();
    let known = stage.look().await.created.unwrap().object;
    let (db, fact, _) = waiting();
    let unknown = [(id().config, known.clone())];
    let stuck = put_pod(&stage, "db-2", &known, "False");
    let uid = stage.fake.get(&format!("/api/v1/namespaces/shop/configmaps/{known}")).unwrap()["metadata"]["uid"].take();
    stage.executor.delete_waiting(&db, &fact, &unknown, &[].into()).await.unwrap();
    assert!(stage.fake.get(&stuck).is_some());
    // The table does not speak of what is forged.
    stage.fake.delete(TABLE);
    let forged = [uid.as_str().unwrap().to_owned()].into();
    stage.executor.delete_waiting(&db, &fact, &unknown, &forged).await.unwrap();
    assert_eq!(stage.fake.get(&stuck), None);
}

#[test]
fn what_is_not_said_again_does_not_stay() {
    let (old, new) =
        (json!({"phase": "Succeeded", "watchedUntil": "2026-01-01T00:00:00Z"}), json!({"phase": "Failed"}));
    assert_eq!(in_place_of(&old, new.clone()), json!({"phase": "Failed", "watchedUntil": null}));
    assert_eq!(in_place_of(&Value::Null, new.clone()), new);
}
