use std::sync::Mutex as StdMutex;

use futures::FutureExt;
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use lockstep_core::names;
use tokio::time::Instant;

use super::*;

/// A namespace in which `app` is versioned: current is `app-1`.
fn stage() -> Stage {
    let stage = Stage::new();
    table(&stage, &json!({"current": {"configmap/app": "app-1"}, "baseline": {"configmap/app": "app-0"}}));
    stage
}

fn table(stage: &Stage, spec: &Value) {
    let object = json!({
        "apiVersion": "lockstep.dev/v1alpha1",
        "kind": "PinTable",
        "metadata": {"name": "lockstep", "namespace": "shop"},
        "spec": spec,
    });
    let key = Key::new(Kind::PinTable, "shop", "lockstep");
    let write = match stage.get(Kind::PinTable, "lockstep") {
        None => Write::Create { object },
        Some(_) => Write::Patch { key, patch: StorePatch::Merge(object), part: Part::Object },
    };
    stage.shared.write(&Writer::Operator(0), write).unwrap();
}

fn deployment(image: &str) -> Deployment {
    let mut spec = pod_spec();
    spec["containers"][0]["image"] = json!(image);
    let object = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": spec},
        },
    });
    serde_json::from_value(object).unwrap()
}

fn pins(deployment: &Deployment) -> String {
    let template = &deployment.spec.as_ref().unwrap().template;
    template.metadata.as_ref().unwrap().annotations.as_ref().map(|found| found[names::PINS].clone()).unwrap_or_default()
}

fn read(pod: &Pod) -> String {
    let source = &pod.spec.as_ref().unwrap().containers[0].env_from.as_ref().unwrap()[0];
    source.config_map_ref.as_ref().unwrap().name.clone()
}

#[tokio::test(start_paused = true)]
async fn a_workload_is_pinned_in_the_write_that_makes_or_changes_it() {
    let stage = stage();
    let api: Api<Deployment> = stage.api();
    let made = api.create(&PostParams::default(), &deployment("i:1")).await.unwrap();
    assert_eq!(pins(&made), "configmap/app=app-1");
    table(&stage, &json!({"next": {"configmap/app": "app-2"}}));
    let replaced = api.replace("web", &PostParams::default(), &deployment("i:1")).await.unwrap();
    assert_eq!(pins(&replaced), "configmap/app=app-1", "the same manifest again knows nothing of pins");
    assert_eq!(replaced.metadata.generation, made.metadata.generation);
    let joined = api.replace("web", &PostParams::default(), &deployment("i:2")).await.unwrap();
    assert_eq!(pins(&joined), "configmap/app=app-2", "new code joins");
    let params = PatchParams::default();
    let chosen = json!({"spec": {"template": {"metadata": {"annotations": {names::PINS: "configmap/app=app-1"}}}}});
    assert_eq!(pins(&api.patch("web", &params, &Patch::Merge(chosen)).await.unwrap()), "configmap/app=app-1");
    let none = json!({"spec": {"template": {"metadata": {"annotations": {names::PINS: null}}}}});
    assert_eq!(
        pins(&api.patch("web", &params, &Patch::Merge(none)).await.unwrap()),
        "",
        "who knows the object, means it"
    );
    let operator: Api<Deployment> = Api::namespaced(stage.operator(), "shop");
    operator.delete("web", &DeleteParams::default()).await.unwrap();
    let made = operator.create(&PostParams::default(), &deployment("i:1")).await.unwrap();
    assert_eq!(pins(&made), "", "what the operator writes is meant as it is");
}

#[tokio::test(start_paused = true)]
async fn a_pod_gets_the_versions_that_it_is_pinned_to_or_what_is_current() {
    let stage = stage();
    let api: Api<Pod> = stage.api();
    let mut pinned = pod("pinned");
    pinned.metadata.annotations = Some(BTreeMap::from([(names::PINS.to_owned(), "configmap/app=app-7".to_owned())]));
    assert_eq!(read(&api.create(&PostParams::default(), &pinned).await.unwrap()), "app-7");
    assert_eq!(read(&api.create(&PostParams::default(), &pod("bare")).await.unwrap()), "app-1");
    let mut old = pod("old");
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": true}]);
    old.metadata.owner_references = serde_json::from_value(owner).unwrap();
    assert_eq!(read(&api.create(&PostParams::default(), &old).await.unwrap()), "app-0");
    let elsewhere: Api<Pod> = Api::namespaced(stage.client.clone(), "lockstep-system");
    assert_eq!(read(&elsewhere.create(&PostParams::default(), &pod("bare")).await.unwrap()), "app");
}

#[tokio::test(start_paused = true)]
async fn policies_may_be_behind_with_the_table() {
    let stage = stage();
    sleep(Duration::from_secs(10)).await;
    table(&stage, &json!({"current": {"configmap/app": "app-2"}}));
    stage.shared.lock().store.policy_lag = Duration::from_secs(1);
    let api: Api<Pod> = stage.api();
    assert_eq!(read(&api.create(&PostParams::default(), &pod("a")).await.unwrap()), "app-1");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(read(&api.create(&PostParams::default(), &pod("b")).await.unwrap()), "app-2");
}

#[tokio::test(start_paused = true)]
async fn who_changed_a_config_is_stamped() {
    let stage = stage();
    let by = |config: &ConfigMap| config.annotations().get(names::CHANGED_BY).cloned();
    assert_eq!(by(&stage.create_config("app", "1").await).as_deref(), Some("alice"));
    assert_eq!(by(&stage.create_config("plain", "1").await), None);
    let bob: Api<ConfigMap> =
        Api::namespaced(client(&stage.shared, Writer::User("bob".into()), Link::perfect()), "shop");
    let params = PatchParams::default();
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    assert_eq!(by(&bob.patch("app", &params, &label).await.unwrap()).as_deref(), Some("alice"));
    let change = Patch::Merge(json!({"data": {"k": "2"}}));
    assert_eq!(by(&bob.patch("app", &params, &change).await.unwrap()).as_deref(), Some("bob"));
}

fn version(name: &str) -> ConfigMap {
    let mut version = config(name, "1");
    version.metadata.labels = Some(BTreeMap::from([(names::VERSION_OF.into(), "configmap".into())]));
    version.metadata.annotations =
        Some(BTreeMap::from([(names::SOURCE.into(), "app".into()), (names::VERSION.into(), "r1".into())]));
    version
}

#[tokio::test(start_paused = true)]
async fn only_the_operator_makes_and_changes_versions() {
    let stage = stage();
    let (api, operator): (Api<ConfigMap>, Api<ConfigMap>) = (stage.api(), Api::namespaced(stage.operator(), "shop"));
    assert_eq!(refusal(api.create(&PostParams::default(), &version("app-1")).await).0, 403);
    operator.create(&PostParams::default(), &version("app-1")).await.unwrap();
    let params = PatchParams::default();
    for patch in [
        json!({"metadata": {"labels": {names::VERSION_OF: null}}}),
        json!({"metadata": {"annotations": {names::VERSION: "other"}}}),
        json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u"}]}}),
    ] {
        assert_eq!(refusal(api.patch("app-1", &params, &Patch::Merge(&patch)).await).0, 403, "{patch}");
        operator.patch("app-1", &params, &Patch::Merge(&patch)).await.unwrap();
        operator.delete("app-1", &DeleteParams::default()).await.unwrap();
        operator.create(&PostParams::default(), &version("app-1")).await.unwrap();
    }
    let restorer = client(&stage.shared, Writer::User(crate::admission::RESTORER.into()), Link::perfect());
    Api::namespaced(restorer, "shop").create(&PostParams::default(), &version("app-3")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn versions_that_are_current_or_in_use_are_not_deleted() {
    let stage = stage();
    let (api, operator): (Api<ConfigMap>, Api<ConfigMap>) = (stage.api(), Api::namespaced(stage.operator(), "shop"));
    let mut used = version("app-9");
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u"}]);
    used.metadata.owner_references = serde_json::from_value(owner).unwrap();
    for version in [version("app-1"), version("app-8"), used] {
        operator.create(&PostParams::default(), &version).await.unwrap();
    }
    for name in ["app-1", "app-9"] {
        let refused = api.delete(name, &DeleteParams::default()).await.unwrap_err();
        assert!(refused.to_string().contains("ValidatingAdmissionPolicy"), "{refused}");
    }
    api.delete("app-8", &DeleteParams::default()).await.unwrap();
    let key = Key::new(Kind::ConfigMap, "shop", "app-9");
    stage.write(Write::Delete { key, uid: None, revision: None, propagation: Propagation::Background });
}

#[tokio::test(start_paused = true)]
async fn a_version_name_stands_for_one_content() {
    let stage = stage();
    let api: Api<ConfigMap> = stage.api();
    let mut named = config("app", "1");
    named.metadata.annotations = Some(BTreeMap::from([(names::VERSION.into(), "current".into())]));
    assert_eq!(refusal(api.create(&PostParams::default(), &named).await).0, 403);
    named.metadata.annotations = Some(BTreeMap::from([(names::VERSION.into(), "1.4.0".into())]));
    api.create(&PostParams::default(), &named).await.unwrap();
    let params = PatchParams::default();
    assert_eq!(refusal(api.patch("app", &params, &Patch::Merge(json!({"data": {"k": "2"}}))).await).0, 403);
    let renamed = json!({"data": {"k": "2"}, "metadata": {"annotations": {names::VERSION: "1.5.0"}}});
    api.patch("app", &params, &Patch::Merge(renamed)).await.unwrap();
    let number = json!({"metadata": {"annotations": {names::RETAIN: "many"}}});
    assert_eq!(refusal(api.patch("app", &params, &Patch::Merge(number)).await).0, 403);
}

#[tokio::test(start_paused = true)]
async fn the_webhook_is_told_before_a_config_changes_and_is_never_in_the_way() {
    let stage = stage();
    let asked: Arc<StdMutex<Vec<Value>>> = Arc::default();
    let (log, shared) = (Arc::clone(&asked), stage.shared.clone());
    stage.shared.lock().webhook = Some(Arc::new(move |review| {
        let (log, shared) = (Arc::clone(&log), shared.clone());
        async move {
            let found = shared.lock().store.get(&Key::new(Kind::ConfigMap, "shop", "app")).map(|app| app.revision);
            log.lock().unwrap().push(json!([review["request"]["operation"], found.is_some()]));
            if review["request"]["object"]["data"]["k"] == "silence" {
                return std::future::pending().await;
            }
            sleep(Duration::from_millis(10)).await;
        }
        .boxed()
    }));
    stage.create_config("app", "1").await;
    let patch = |value: &str| Patch::Merge(json!({"data": {"k": value}}));
    let api: Api<ConfigMap> = stage.api();
    let start = Instant::now();
    api.patch("app", &PatchParams::default(), &patch("silence")).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 3);
    stage.create_config("plain", "1").await;
    let misnamed = json!({"data": {"k": "2"}, "metadata": {"annotations": {names::VERSION: "current"}}});
    assert_eq!(refusal(api.patch("app", &PatchParams::default(), &Patch::Merge(misnamed)).await).0, 403, "not told");
    let expected = [json!(["CREATE", false]), json!(["UPDATE", true])];
    assert_eq!(*asked.lock().unwrap(), expected);

    let (api, params) = (&api, PatchParams::default());
    let (two, three) = (patch("2"), Patch::Merge(json!({"data": {"l": "3"}})));
    let (one, other) = futures::join!(api.patch("app", &params, &two), api.patch("app", &params, &three));
    one.unwrap();
    let data = other.unwrap().data.unwrap();
    assert_eq!((data["k"].as_str(), data["l"].as_str()), ("2", "3"), "who was slower is made anew");
}
