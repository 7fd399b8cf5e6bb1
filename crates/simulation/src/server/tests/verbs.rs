use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use lockstep_api::{PinTable, VersionedConfig};

use super::*;

fn deployment() -> Deployment {
    let object = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": pod_spec()},
        },
    });
    serde_json::from_value(object).unwrap()
}

fn merge(patch: Value) -> Patch<Value> {
    Patch::Merge(patch)
}

#[tokio::test(start_paused = true)]
async fn an_object_is_made_read_changed_and_deleted() {
    let stage = Stage::new();
    let api: Api<ConfigMap> = stage.api();
    assert_eq!(api.get_opt("app").await.unwrap(), None);
    let made = stage.create_config("app", "1").await;
    assert!(made.uid().is_some() && made.creation_timestamp().is_some() && made.metadata.generation.is_none());
    assert_eq!(refusal(api.create(&PostParams::default(), &config("app", "1")).await), (409, "AlreadyExists".into()));
    assert_eq!(api.get("app").await.unwrap(), made);

    let changed = ConfigMap { data: config("app", "2").data, ..made.clone() };
    let replaced = api.replace("app", &PostParams::default(), &changed).await.unwrap();
    assert_ne!(replaced.resource_version(), made.resource_version());
    assert_eq!(refusal(api.replace("app", &PostParams::default(), &changed).await), (409, "Conflict".into()));
    let blind = api.replace("app", &PostParams::default(), &config("app", "3")).await.unwrap();
    assert_eq!((blind.uid(), &blind.data), (made.uid(), &config("app", "3").data));

    let deleted = api.delete("app", &DeleteParams::default()).await.unwrap();
    assert!(deleted.right().unwrap().is_success());
    assert_eq!(refusal(api.delete("app", &DeleteParams::default()).await), (404, "NotFound".into()));
    assert_eq!(refusal(api.replace("app", &PostParams::default(), &changed).await).0, 404);
    assert_eq!(refusal(api.patch("app", &PatchParams::default(), &merge(json!({}))).await).0, 404);
}

#[tokio::test(start_paused = true)]
async fn patches_merge_or_go_step_by_step_and_what_changes_nothing_is_no_write() {
    let stage = Stage::new();
    let api: Api<ConfigMap> = stage.api();
    stage.create_config("app", "1").await;
    let params = PatchParams::default();
    let patched = api.patch("app", &params, &merge(json!({"data": {"k": null, "l": "2"}}))).await.unwrap();
    assert_eq!(patched.data, Some(BTreeMap::from([("l".into(), "2".into())])));
    let revision = stage.revision();
    let same = api.patch("app", &params, &merge(json!({"data": {"l": "2"}}))).await.unwrap();
    assert_eq!((same, stage.revision()), (patched.clone(), revision));

    let steps: json_patch::Patch =
        serde_json::from_value(json!([{"op": "add", "path": "/data/m", "value": "3"}])).unwrap();
    let patched = api.patch("app", &params, &Patch::Json::<()>(steps)).await.unwrap();
    assert_eq!(patched.data.unwrap()["m"], "3");
    let steps: json_patch::Patch =
        serde_json::from_value(json!([{"op": "test", "path": "/data/m", "value": "4"}])).unwrap();
    assert_eq!(refusal(api.patch("app", &params, &Patch::Json::<()>(steps)).await).0, 422);

    let applied = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "a"}}));
    let params = PatchParams::apply("alice");
    assert_eq!(api.patch("new", &params, &applied).await.unwrap().name_any(), "new");
    assert_eq!(api.patch("app", &params, &applied).await.unwrap().data.unwrap().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_patch_can_say_what_it_is_based_on() {
    let stage = Stage::new();
    let api: Api<ConfigMap> = stage.api();
    let made = stage.create_config("app", "1").await;
    let based = |version: Option<String>, uid: Option<String>, value: &str| {
        merge(json!({"metadata": {"resourceVersion": version, "uid": uid}, "data": {"k": value}}))
    };
    let params = PatchParams::default();
    let done = api.patch_metadata("app", &params, &based(made.resource_version(), made.uid(), "2")).await.unwrap();
    assert_eq!(done.metadata.uid, made.uid());
    let late = api.patch("app", &params, &based(made.resource_version(), made.uid(), "3")).await;
    assert_eq!(refusal(late), (409, "Conflict".into()));
    let other = api.patch("app", &params, &based(done.metadata.resource_version, Some("other".into()), "3")).await;
    assert_eq!(refusal(other), (422, "Invalid".into()));
}

#[tokio::test(start_paused = true)]
async fn deletions_have_preconditions() {
    let stage = Stage::new();
    let api: Api<ConfigMap> = stage.api();
    let made = stage.create_config("app", "1").await;
    let only = |uid: Option<String>, version: Option<String>| {
        DeleteParams::background().preconditions(Preconditions { uid, resource_version: version })
    };
    assert_eq!(refusal(api.delete("app", &only(Some("other".into()), None)).await), (409, "Conflict".into()));
    assert_eq!(refusal(api.delete("app", &only(None, Some("1".into()))).await), (409, "Conflict".into()));
    api.delete("app", &only(made.uid(), made.resource_version())).await.unwrap();
    assert!(stage.get(Kind::ConfigMap, "app").is_none());
}

#[tokio::test(start_paused = true)]
async fn status_and_the_rest_are_written_apart_and_only_wishes_are_counted() {
    let stage = Stage::new();
    let api: Api<Deployment> = stage.api();
    let made = api.create(&PostParams::default(), &deployment()).await.unwrap();
    assert_eq!((made.metadata.generation, made.status.clone()), (Some(1), None));
    assert_eq!(made.spec.as_ref().unwrap().replicas, Some(1), "a default");
    let params = PatchParams::default();
    let both = merge(json!({"spec": {"replicas": 3}, "status": {"replicas": 3}}));
    let patched = api.patch("web", &params, &both).await.unwrap();
    assert_eq!((patched.metadata.generation, patched.status.clone()), (Some(2), None));
    let both = merge(json!({"spec": {"replicas": 4}, "status": {"replicas": 4}}));
    let patched = api.patch_status("web", &params, &both).await.unwrap();
    assert_eq!(patched.metadata.generation, Some(2));
    assert_eq!((patched.spec.unwrap().replicas, patched.status.unwrap().replicas), (Some(3), Some(4)));
    let labelled = api.patch("web", &params, &merge(json!({"metadata": {"labels": {"a": "b"}}}))).await.unwrap();
    assert_eq!((labelled.metadata.generation, labelled.status.unwrap().replicas), (Some(2), Some(4)));
    let moved = merge(json!({"spec": {"selector": {"matchLabels": {"app": "other"}}}}));
    assert_eq!(refusal(api.patch("web", &params, &moved).await).0, 422);
}

#[tokio::test(start_paused = true)]
async fn some_kinds_are_replaced_only_by_who_knows_them() {
    let stage = Stage::new();
    let api: Api<Lease> = stage.api();
    let lease = Lease { metadata: ObjectMeta { name: Some("l".into()), ..ObjectMeta::default() }, spec: None };
    api.create(&PostParams::default(), &lease).await.unwrap();
    assert_eq!(refusal(api.replace("l", &PostParams::default(), &lease).await).0, 422);
}

#[tokio::test(start_paused = true)]
async fn what_is_immutable_stays() {
    let stage = Stage::new();
    let api: Api<ConfigMap> = stage.api();
    let fixed = ConfigMap { immutable: Some(true), ..config("app", "1") };
    api.create(&PostParams::default(), &fixed).await.unwrap();
    let params = PatchParams::default();
    assert_eq!(refusal(api.patch("app", &params, &merge(json!({"data": {"k": "2"}}))).await), (422, "Invalid".into()));
    assert_eq!(refusal(api.patch("app", &params, &merge(json!({"immutable": null}))).await).0, 422);
    api.patch("app", &params, &merge(json!({"metadata": {"labels": {"a": "b"}}}))).await.unwrap();
    let secrets: Api<Secret> = stage.api();
    let secret = Secret { string_data: Some(BTreeMap::from([("k".into(), "v".into())])), ..Secret::default() };
    let secret = Secret { metadata: ObjectMeta { name: Some("s".into()), ..ObjectMeta::default() }, ..secret };
    let made = secrets.create(&PostParams::default(), &secret).await.unwrap();
    assert_eq!((made.type_.as_deref(), made.data.unwrap()["k"].0.as_slice()), (Some("Opaque"), &b"v"[..]));
}

#[tokio::test(start_paused = true)]
async fn lists_come_in_pages_of_one_moment() {
    let stage = Stage::new();
    for name in ["a", "b", "c", "d"] {
        stage.create_config(name, "1").await;
    }
    let api: Api<ConfigMap> = stage.api();
    let first = api.list(&ListParams::default().limit(2)).await.unwrap();
    let token = first.metadata.continue_.clone().unwrap();
    api.delete("c", &DeleteParams::default()).await.unwrap();
    stage.create_config("e", "1").await;
    let params = PatchParams::default();
    api.patch("d", &params, &merge(json!({"data": {"k": "2"}}))).await.unwrap();
    let second = api.list(&ListParams::default().limit(2).continue_token(&token)).await.unwrap();
    let names: Vec<String> = second.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["c", "d"]);
    assert_eq!(second.items[1].data, config("d", "1").data);
    assert_eq!(second.metadata.resource_version, first.metadata.resource_version);
    assert_eq!(second.metadata.continue_.as_deref(), Some(""));
    let revision = stage.revision();
    stage.shared.lock().store.compact(revision);
    let late = api.list(&ListParams::default().limit(2).continue_token(&token)).await;
    assert_eq!(refusal(late), (410, "Expired".into()));
}

#[tokio::test(start_paused = true)]
async fn lists_are_selected_and_may_have_metadata_only() {
    let stage = Stage::new();
    let api: Api<ConfigMap> = stage.api();
    for (name, tier) in [("a", "web"), ("b", "db")] {
        let mut config = config(name, "1");
        config.metadata.labels = Some(BTreeMap::from([("tier".into(), tier.into())]));
        api.create(&PostParams::default(), &config).await.unwrap();
    }
    let names = |list: Vec<String>| list.join(" ");
    let found = api.list(&ListParams::default().labels("tier in (web)")).await.unwrap();
    assert_eq!(names(found.iter().map(ResourceExt::name_any).collect()), "a");
    let found = api.list(&ListParams::default().fields("metadata.name=b")).await.unwrap();
    assert_eq!(names(found.iter().map(ResourceExt::name_any).collect()), "b");
    let found = api.list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(names(found.iter().map(ResourceExt::name_any).collect()), "a b");
    assert_eq!(found.types.kind, "PartialObjectMetadataList");
    let found = Api::<ConfigMap>::all(stage.client.clone()).list(&ListParams::default()).await.unwrap();
    assert_eq!(found.items.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn kinds_can_be_discovered_and_may_be_missing() {
    let stage = Stage::new();
    let list = stage.client.list_api_group_resources("argoproj.io/v1alpha1").await.unwrap();
    let names: Vec<&str> = list.resources.iter().map(|found| found.name.as_str()).collect();
    assert_eq!(names, ["rollouts", "rollouts/status"]);
    stage.shared.lock().missing.insert(Kind::Rollout);
    let gone = stage.client.list_api_group_resources("argoproj.io/v1alpha1").await;
    assert_eq!(refusal(gone).0, 404);
}

#[tokio::test(start_paused = true)]
async fn definitions_of_our_kinds_are_kept() {
    let stage = Stage::new();
    let post = async |plural: &str, object: Value| {
        let path = format!("/apis/lockstep.dev/v1alpha1/namespaces/shop/{plural}");
        let request = Request::post(path).body(object.to_string().into_bytes()).unwrap();
        stage.client.request::<Value>(request).await
    };
    let wrong = json!({"metadata": {"name": "lockstep"}, "spec": {"current": 1}});
    assert_eq!(refusal(post("pintables", wrong).await).0, 422);
    let source = json!({"source": {"kind": "ConfigMap", "name": "app"}});
    let misnamed = json!({"metadata": {"name": "app"}, "spec": source});
    assert_eq!(refusal(post("versionedconfigs", misnamed).await).0, 422);
    post("versionedconfigs", json!({"metadata": {"name": "configmap-app"}, "spec": source})).await.unwrap();
    let api: Api<VersionedConfig> = stage.api();
    assert_eq!(api.get("configmap-app").await.unwrap().metadata.generation, Some(1));
    let api: Api<PinTable> = stage.api();
    assert!(api.get_opt("lockstep").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_changes_nothing() {
    let stage = Stage::new();
    let api: Api<ConfigMap> = stage.api();
    let revision = stage.revision();
    let params = PostParams { dry_run: true, ..PostParams::default() };
    assert_eq!(api.create(&params, &config("app", "1")).await.unwrap().name_any(), "app");
    assert_eq!(stage.revision(), revision);
}

#[tokio::test(start_paused = true)]
async fn names_are_made_up_and_checked() {
    let stage = Stage::new();
    let api: Api<ConfigMap> = stage.api();
    let mut generated = config("x", "1");
    generated.metadata.name = None;
    generated.metadata.generate_name = Some("job-".into());
    let (one, two) =
        (api.create(&PostParams::default(), &generated).await, api.create(&PostParams::default(), &generated).await);
    let (one, two) = (one.unwrap().name_any(), two.unwrap().name_any());
    assert!(one != two && one.starts_with("job-") && one.len() == 9, "{one} {two}");
    assert_eq!(refusal(api.create(&PostParams::default(), &config("App", "1")).await).0, 422);
}

#[tokio::test(start_paused = true)]
async fn a_quota_limits_how_many_there_are() {
    let stage = Stage::new();
    stage.write(Write::Create {
        object: json!({
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "few", "namespace": "shop"},
            "spec": {"hard": {"count/configmaps": "1"}},
        }),
    });
    stage.create_config("a", "1").await;
    let refused = stage.api().create(&PostParams::default(), &config("b", "1")).await.unwrap_err();
    assert!(refused.to_string().contains("exceeded quota"), "{refused}");
    assert_eq!(refusal::<ConfigMap>(Err(refused)), (403, "Forbidden".into()));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_runs_is_stopped_before_it_goes() {
    let stage = Stage::new();
    let api: Api<Pod> = stage.api();
    api.create(&PostParams::default(), &pod("idle")).await.unwrap();
    assert!(api.delete("idle", &DeleteParams::default()).await.unwrap().is_right(), "it never ran");
    api.create(&PostParams::default(), &pod("busy")).await.unwrap();
    let key = Key::new(Kind::Pod, "shop", "busy");
    let bind = StorePatch::Merge(json!({"spec": {"nodeName": "n"}}));
    stage.write(Write::Patch { key: key.clone(), patch: bind, part: Part::Object });
    let pod = api.delete("busy", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(pod.metadata.deletion_grace_period_seconds, Some(30));
    let revision = stage.revision();
    api.delete("busy", &DeleteParams::default()).await.unwrap();
    assert_eq!(stage.revision(), revision, "it goes already");
    let propagation = Propagation::Background;
    stage.write(Write::Delete { key: key.clone(), uid: pod.uid(), revision: None, propagation });
    assert!(api.get_opt("busy").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn finalizers_keep_an_object_until_they_are_gone() {
    let stage = Stage::new();
    let api: Api<Deployment> = stage.api();
    api.create(&PostParams::default(), &deployment()).await.unwrap();
    let left = api.delete("web", &DeleteParams::foreground()).await.unwrap().left().unwrap();
    assert_eq!(left.metadata.finalizers, Some(vec!["foregroundDeletion".into()]));
    assert_eq!(left.metadata.generation, Some(2));
    let params = PatchParams::default();
    let more = merge(json!({"metadata": {"finalizers": ["foregroundDeletion", "mine"]}}));
    assert_eq!(refusal(api.patch("web", &params, &more).await).0, 422);
    api.patch("web", &params, &merge(json!({"metadata": {"finalizers": null}}))).await.unwrap();
    assert!(api.get_opt("web").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_is_emptied_before_it_goes() {
    let stage = Stage::new();
    assert_eq!(
        refusal(
            Api::namespaced(stage.client.clone(), "nowhere").create(&PostParams::default(), &config("a", "1")).await
        )
        .0,
        404
    );
    stage.create_config("a", "1").await;
    let namespaces = stage.namespaces();
    let left = namespaces.delete("shop", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(left.status.unwrap().phase.as_deref(), Some("Terminating"));
    let late = stage.api().create(&PostParams::default(), &config("b", "1")).await;
    assert_eq!(refusal::<ConfigMap>(late), (403, "Forbidden".into()));
    let key = Key::new(Kind::Namespace, "", "shop");
    let end = || Write::Delete { key: key.clone(), uid: None, revision: None, propagation: Propagation::Background };
    assert_eq!(stage.shared.write(&Writer::Controller, end()).unwrap_err().code, 409, "there is still something");
    stage.api::<ConfigMap>().delete("a", &DeleteParams::default()).await.unwrap();
    stage.write(end());
    assert!(namespaces.get_opt("shop").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn owners_are_found_by_their_uid() {
    let stage = Stage::new();
    let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": uid});
    let mut thing = config("a", "1");
    thing.metadata.owner_references = serde_json::from_value(json!([owner("u1"), owner("u2")])).unwrap();
    stage.api().create(&PostParams::default(), &thing).await.unwrap();
    let count = |uid: &str| stage.shared.lock().store.owned_by(uid).count();
    assert_eq!((count("u1"), count("u2"), count("u3")), (1, 1, 0));
    let patch = merge(json!({"metadata": {"ownerReferences": [owner("u2"), owner("u3")]}}));
    stage.api::<ConfigMap>().patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!((count("u1"), count("u2"), count("u3")), (0, 1, 1));
    stage.api::<ConfigMap>().delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!((count("u2"), count("u3")), (0, 0));
}
