use super::*;

async fn rolled_out() -> Scene {
    let scene = Scene::new();
    scene.config("one", "healthy");
    scene.create(workload(Kind::Deployment, json!({"replicas": 2, "template": template("one")})));
    scene.until_rolled_out(Kind::Deployment, "web").await;
    scene
}

#[tokio::test(start_paused = true)]
async fn what_is_owned_goes_with_its_owner() {
    let scene = rolled_out().await;
    scene.delete(Kind::Deployment, "web", Propagation::Background);
    assert!(scene.find(Kind::Deployment, "web").is_none());
    scene
        .until("all is gone", |scene| scene.list(Kind::Pod).is_empty() && scene.list(Kind::ReplicaSet).is_empty())
        .await;
}

#[tokio::test(start_paused = true)]
async fn in_the_foreground_the_owner_goes_last() {
    let scene = rolled_out().await;
    scene.delete(Kind::Deployment, "web", Propagation::Foreground);
    scene.until("it is gone", |scene| scene.find(Kind::Deployment, "web").is_none()).await;
    assert!(scene.list(Kind::Pod).is_empty() && scene.list(Kind::ReplicaSet).is_empty());
}

#[tokio::test(start_paused = true)]
async fn orphans_stay() {
    let scene = rolled_out().await;
    scene.delete(Kind::Deployment, "web", Propagation::Orphan);
    scene.until("it is gone", |scene| scene.find(Kind::Deployment, "web").is_none()).await;
    scene.wait(60).await;
    assert_eq!((scene.list(Kind::ReplicaSet).len(), scene.pods().len()), (1, 2));
    assert!(scene.list(Kind::ReplicaSet)[0].owners().next().is_none());
}

fn owner(of: &Object) -> Value {
    json!({"apiVersion": "apps/v1", "kind": of.key.kind.kind(), "name": of.key.name, "uid": of.uid(), "controller": false})
}

#[tokio::test(start_paused = true)]
async fn what_has_several_owners_stays_until_the_last_is_gone_and_forgets_the_others() {
    let scene = rolled_out().await;
    let set = scene.list(Kind::ReplicaSet)[0].clone();
    let other =
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "former", "uid": "gone", "controller": false});
    scene.create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "name": "one-abc", "namespace": SPACE, "ownerReferences": [owner(&set), other]}}));
    scene.wait(5).await;
    let version = scene.get(Kind::ConfigMap, "one-abc");
    assert_eq!(version.owners().collect::<Vec<_>>(), [&owner(&set)]);
    scene.delete(Kind::Deployment, "web", Propagation::Background);
    scene.until("it is collected", |scene| scene.find(Kind::ConfigMap, "one-abc").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_goes_with_all_that_is_in_it() {
    let scene = rolled_out().await;
    scene.delete(Kind::Namespace, SPACE, Propagation::Background);
    assert_eq!(scene.get(Kind::Namespace, SPACE).value["status"]["phase"], "Terminating");
    scene.until("it is gone", |scene| scene.find(Kind::Namespace, SPACE).is_none()).await;
    assert!(Kind::ALL.into_iter().filter(|kind| kind.is_namespaced()).all(|kind| scene.list(kind).is_empty()));
    let again = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}});
    scene.create(again);
    scene.config("one", "healthy");
}
