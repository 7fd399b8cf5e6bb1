use super::*;

fn stateful_set(config: &str, more: &Value) -> Value {
    let mut spec = json!({"replicas": 3, "serviceName": "web", "template": template(config)});
    json_patch::merge(&mut spec, more);
    workload(Kind::StatefulSet, spec)
}

async fn rolled_out(more: Value) -> Scene {
    let scene = Scene::new();
    for name in ["one", "two"] {
        scene.config(name, "healthy");
    }
    scene.config("bad", "crash");
    scene.create(stateful_set("one", &more));
    scene.until_rolled_out(Kind::StatefulSet, "web").await;
    scene
}

fn change(scene: &Scene, config: &str) {
    scene.patch(Kind::StatefulSet, "web", json!({"spec": {"template": template(config)}}));
}

fn configs(scene: &Scene) -> Vec<String> {
    scene.pods().iter().map(|pod| config_of(pod).to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn pods_come_in_order_and_are_replaced_from_the_last() {
    let scene = rolled_out(json!({})).await;
    assert_eq!(scene.names(Kind::Pod), ["web-0", "web-1", "web-2"]);
    let created: Vec<String> = scene.pods().iter().map(|pod| super::super::read::created(pod).to_owned()).collect();
    assert!(created.is_sorted());
    change(&scene, "two");
    scene.until("the last is new", |scene| configs(scene).iter().any(|config| config == "two")).await;
    assert_eq!(configs(&scene), ["one", "one", "two"]);
    scene.until_rolled_out(Kind::StatefulSet, "web").await;
    scene.wait(5).await;
    let web = scene.get(Kind::StatefulSet, "web");
    assert_eq!(web.value["status"]["currentRevision"], web.value["status"]["updateRevision"]);
    assert_eq!(scene.names(Kind::ControllerRevision).len(), 2);
    let template = &scene.list(Kind::ControllerRevision)[0].value["data"]["spec"]["template"];
    assert!(template["spec"]["containers"].is_array());
}

#[tokio::test(start_paused = true)]
async fn a_broken_pod_blocks_also_the_way_back() {
    let scene = rolled_out(json!({})).await;
    change(&scene, "bad");
    scene
        .until("the last crashes", |scene| {
            let pod = scene.find(Kind::Pod, "web-2");
            pod.is_some_and(|pod| pod.value["status"]["containerStatuses"][0]["restartCount"].as_u64() > Some(0))
        })
        .await;
    change(&scene, "one");
    scene.wait(300).await;
    assert_eq!(configs(&scene), ["one", "one", "bad"], "it waits for what will never be ready");
    let web = scene.get(Kind::StatefulSet, "web");
    assert_eq!(web.value["status"]["observedGeneration"], web.value["metadata"]["generation"]);
    assert_eq!(count(&web, "updatedReplicas"), 2);
    scene.delete(Kind::Pod, "web-2", Propagation::Background);
    scene.until_rolled_out(Kind::StatefulSet, "web").await;
    assert_eq!(configs(&scene), ["one", "one", "one"]);
    assert_eq!(scene.names(Kind::ControllerRevision).len(), 2, "the old revision is the new one again");
}

#[tokio::test(start_paused = true)]
async fn a_partition_keeps_those_below_it() {
    let partition = json!({"rollingUpdate": {"partition": 2}});
    let scene = rolled_out(json!({"updateStrategy": partition})).await;
    change(&scene, "two");
    scene.wait(60).await;
    assert_eq!(configs(&scene), ["one", "one", "two"]);
    scene.delete(Kind::Pod, "web-0", Propagation::Background);
    scene.wait(60).await;
    assert_eq!(configs(&scene), ["one", "one", "two"], "who is recreated gets what it had");
    let web = scene.get(Kind::StatefulSet, "web");
    assert_eq!((count(&web, "updatedReplicas"), count(&web, "currentReplicas")), (1, 2));
    scene.patch(Kind::StatefulSet, "web", json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}));
    scene.until_rolled_out(Kind::StatefulSet, "web").await;
    assert_eq!(configs(&scene), ["two", "two", "two"]);
}

#[tokio::test(start_paused = true)]
async fn on_delete_waits_for_somebody() {
    let scene = rolled_out(json!({"updateStrategy": {"type": "OnDelete"}})).await;
    change(&scene, "two");
    scene.wait(60).await;
    assert_eq!(configs(&scene), ["one", "one", "one"]);
    scene.delete(Kind::Pod, "web-1", Propagation::Background);
    scene.wait(60).await;
    assert_eq!(configs(&scene), ["one", "two", "one"]);
    assert_eq!(count(&scene.get(Kind::StatefulSet, "web"), "updatedReplicas"), 1);
}

#[tokio::test(start_paused = true)]
async fn in_parallel_nobody_is_waited_for() {
    let scene = Scene::new();
    scene.config("late", "ready-after 30s");
    scene.create(stateful_set("late", &json!({"podManagementPolicy": "Parallel"})));
    scene.wait(10).await;
    assert_eq!(scene.pods().len(), 3);
    let other = Scene::new();
    other.config("late", "ready-after 30s");
    other.create(stateful_set("late", &json!({})));
    other.wait(10).await;
    assert_eq!(other.pods().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn scaling_down_takes_the_last() {
    let scene = rolled_out(json!({})).await;
    scene.patch(Kind::StatefulSet, "web", json!({"spec": {"replicas": 1}}));
    scene.wait(60).await;
    assert_eq!(scene.names(Kind::Pod), ["web-0"]);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_replaced_at_once_waits_for_the_old_pods_names() {
    let scene = rolled_out(json!({})).await;
    let old: Vec<String> = scene.pods().iter().map(|pod| pod.uid().to_owned()).collect();
    scene.delete(Kind::StatefulSet, "web", Propagation::Background);
    scene.create(stateful_set("two", &json!({})));
    scene.until_rolled_out(Kind::StatefulSet, "web").await;
    assert_eq!(configs(&scene), ["two", "two", "two"]);
    assert!(scene.pods().iter().all(|pod| !old.contains(&pod.uid().to_owned())));
}
