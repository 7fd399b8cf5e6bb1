use std::pin::Pin;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, PartialObjectMeta, Patch, PatchParams, WatchEvent, WatchParams};
use kube::runtime::watcher::{self, Config, Event, watcher};
use tokio::time::{Instant, timeout};

use super::*;

const SOON: Duration = Duration::from_millis(1);

type Watching<K> = Pin<Box<dyn Stream<Item = watcher::Result<Event<K>>> + Send>>;

fn watching(stage: &Stage, config: Config) -> Watching<ConfigMap> {
    watcher(stage.api::<ConfigMap>(), config).boxed()
}

/// In one word each: what has happened by now.
async fn seen<K: kube::Resource>(events: &mut Watching<K>) -> Vec<String> {
    let mut seen = Vec::new();
    while let Ok(Some(event)) = timeout(SOON, events.next()).await {
        let name = |object: K| object.meta().name.clone().unwrap_or_default();
        seen.push(match event {
            Ok(Event::Init) => "init".to_owned(),
            Ok(Event::InitApply(object)) => format!("has {}", name(object)),
            Ok(Event::InitDone) => "done".to_owned(),
            Ok(Event::Apply(object)) => format!("set {}", name(object)),
            Ok(Event::Delete(object)) => format!("gone {}", name(object)),
            Err(watcher::Error::WatchError(status)) => format!("error {}", status.code),
            Err(watcher::Error::WatchFailed(_)) => "torn".to_owned(),
            Err(error) => panic!("{error}"),
        });
    }
    seen
}

async fn change(stage: &Stage, name: &str, value: &str) -> ConfigMap {
    let patch = Patch::Merge(json!({"data": {"k": value}}));
    stage.api().patch(name, &PatchParams::default(), &patch).await.unwrap()
}

async fn delete(stage: &Stage, name: &str) {
    stage.api::<ConfigMap>().delete(name, &DeleteParams::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_from_its_list() {
    let stage = Stage::new();
    stage.create_config("a", "1").await;
    let mut events = watching(&stage, Config::default());
    assert_eq!(seen(&mut events).await, ["init", "has a", "done"]);
    change(&stage, "a", "2").await;
    stage.create_config("b", "1").await;
    delete(&stage, "a").await;
    assert_eq!(seen(&mut events).await, ["set a", "set b", "gone a"]);
    assert_eq!(seen(&mut events).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_watch_may_begin_with_all_that_there_is() {
    let stage = Stage::new();
    stage.create_config("a", "1").await;
    let mut events = watching(&stage, Config::default().streaming_lists());
    assert_eq!(seen(&mut events).await, ["init", "has a", "done"]);
    change(&stage, "a", "2").await;
    assert_eq!(seen(&mut events).await, ["set a"]);
}

#[tokio::test(start_paused = true)]
async fn watches_have_metadata_only_if_that_is_asked_for() {
    let stage = Stage::new();
    let mut events = watcher(stage.api::<PartialObjectMeta<ConfigMap>>(), Config::default()).boxed();
    assert_eq!(seen(&mut events).await, ["init", "done"]);
    stage.create_config("a", "secret").await;
    let lines = raw(&stage, "configmaps", "&resourceVersion=1", true).await;
    assert!(lines[0].contains("PartialObjectMetadata") && !lines[0].contains("secret"), "{lines:?}");
    assert_eq!(seen(&mut events).await, ["set a"]);
}

/// The lines of a watch so far.
async fn raw(stage: &Stage, plural: &str, query: &str, is_metadata: bool) -> Vec<String> {
    let path = format!("/api/v1/namespaces/shop/{plural}?watch=true{query}");
    let accept =
        if is_metadata { "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1" } else { "application/json" };
    let request = Request::get(path).header("accept", accept).body(Vec::new()).unwrap();
    let mut lines = futures::AsyncBufReadExt::lines(stage.client.request_stream(request).await.unwrap());
    let mut seen = Vec::new();
    while let Ok(Some(line)) = timeout(SOON, lines.next()).await {
        seen.push(line.unwrap());
    }
    seen
}

#[tokio::test(start_paused = true)]
async fn what_leaves_the_selector_is_gone() {
    let stage = Stage::new();
    let mut events = watching(&stage, Config::default().labels("on=yes"));
    assert_eq!(seen(&mut events).await, ["init", "done"]);
    stage.create_config("a", "1").await;
    let label = async |value: Option<&str>| {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"on": value}}}));
        stage.api::<ConfigMap>().patch("a", &PatchParams::default(), &patch).await.unwrap()
    };
    label(Some("yes")).await;
    assert_eq!(seen(&mut events).await, ["set a"]);
    label(None).await;
    change(&stage, "a", "2").await;
    assert_eq!(seen(&mut events).await, ["gone a"]);
}

#[tokio::test(start_paused = true)]
async fn secrets_are_selected_by_type() {
    let stage = Stage::new();
    let api: Api<Secret> = stage.api();
    let mut events = watcher(api.clone(), Config::default().fields("type!=helm.sh/release.v1")).boxed();
    for (name, kind) in [("a", "helm.sh/release.v1"), ("b", "Opaque")] {
        let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
        let secret = Secret { metadata, type_: Some(kind.into()), ..Secret::default() };
        api.create(&PostParams::default(), &secret).await.unwrap();
    }
    assert_eq!(seen(&mut events).await, ["init", "has b", "done"]);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_tell_how_far_a_watch_has_come() {
    let stage = Stage::new();
    let revision = stage.revision();
    let watch = stage.api::<ConfigMap>().watch(&WatchParams::default(), &revision.to_string()).await.unwrap();
    let mut watch = Box::pin(watch);
    stage.write(Write::Create {
        object: json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}}),
    });
    let start = Instant::now();
    match watch.next().await {
        Some(Ok(WatchEvent::Bookmark(bookmark))) => {
            assert_eq!(bookmark.metadata.resource_version, (revision + 1).to_string());
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(start.elapsed(), Duration::from_secs(60));
    while let Some(event) = watch.next().await {
        assert!(matches!(event, Ok(WatchEvent::Bookmark(_))));
    }
    assert_eq!(start.elapsed(), Duration::from_secs(290), "its time is over");
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_what_is_forgotten_lists_again() {
    let stage = Stage::new();
    stage.create_config("a", "1").await;
    let mut events = watching(&stage, Config::default());
    assert_eq!(seen(&mut events).await, ["init", "has a", "done"]);
    stage.link.stall_watches(true);
    delete(&stage, "a").await;
    stage.create_config("b", "1").await;
    let revision = stage.revision();
    stage.shared.lock().store.compact(revision);
    stage.link.break_watches(Break::Closed);
    assert_eq!(seen(&mut events).await, Vec::<String>::new(), "it is stalled");
    stage.link.stall_watches(false);
    assert_eq!(seen(&mut events).await, ["error 410", "init", "has b", "done"]);
    change(&stage, "b", "2").await;
    assert_eq!(seen(&mut events).await, ["set b"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_is_resumed_without_a_list() {
    let stage = Stage::new();
    stage.create_config("a", "1").await;
    let mut events = watching(&stage, Config::default());
    assert_eq!(seen(&mut events).await.len(), 3);
    for (how, said) in [(Break::Closed, None), (Break::Torn, Some("torn")), (Break::Failed, Some("error 500"))] {
        stage.link.break_watches(how);
        change(&stage, "a", &format!("{how:?}")).await;
        let told: Vec<&str> = said.into_iter().chain(["set a"]).collect();
        assert_eq!(seen(&mut events).await, told, "{how:?}");
    }
    stage.link.break_watches(Break::Expired);
    assert_eq!(seen(&mut events).await, ["error 410", "init", "has a", "done"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_stalled_is_given_up_by_its_client() {
    let stage = Stage::new();
    let mut events = watching(&stage, Config::default());
    assert_eq!(seen(&mut events).await, ["init", "done"]);
    stage.link.stall_watches_of(Kind::ConfigMap, true);
    let start = Instant::now() - SOON;
    stage.create_config("a", "1").await;
    assert!(matches!(events.next().await, Some(Ok(Event::Apply(_)))));
    assert_eq!(start.elapsed().as_secs(), 295);
    assert_eq!(stage.link.watches(), [Kind::ConfigMap], "the old one is closed");
}

#[tokio::test(start_paused = true)]
async fn lists_are_all_at_one_revision() {
    let stage = Stage::new();
    stage.create_config("a", "1").await;
    let list = stage.api::<ConfigMap>().list(&ListParams::default()).await.unwrap();
    assert_eq!(list.metadata.resource_version, Some(stage.revision().to_string()));
    assert_eq!(list.items[0].resource_version(), Some(stage.revision().to_string()));
}
