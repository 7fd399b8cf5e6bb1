use super::*;

async fn rolled_out(more: Value) -> Scene {
    let scene = Scene::new();
    for name in ["one", "two"] {
        scene.config(name, "healthy");
    }
    scene.config("bad", "never-ready");
    let mut spec = json!({"template": template("one")});
    json_patch::merge(&mut spec, &more);
    scene.create(workload(Kind::DaemonSet, spec));
    scene.until_rolled_out(Kind::DaemonSet, "web").await;
    scene
}

fn change(scene: &Scene, config: &str) {
    scene.patch(Kind::DaemonSet, "web", json!({"spec": {"template": template(config)}}));
}

fn number(scene: &Scene, config: &str) -> usize {
    scene.pods().iter().filter(|pod| config_of(pod) == config).count()
}

#[tokio::test(start_paused = true)]
async fn each_node_has_one_pod_and_they_are_replaced_one_by_one() {
    let scene = rolled_out(json!({})).await;
    let mut nodes: Vec<_> = scene.pods().iter().map(|pod| pod.value["spec"]["nodeName"].to_string()).collect();
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes.len(), 2);
    change(&scene, "bad");
    scene.wait(60).await;
    assert_eq!((number(&scene, "one"), number(&scene, "bad")), (1, 1), "one may be missing, and is");
    let web = scene.get(Kind::DaemonSet, "web");
    assert_eq!((count(&web, "updatedNumberScheduled"), count(&web, "numberReady")), (1, 1));
    change(&scene, "two");
    scene.until_rolled_out(Kind::DaemonSet, "web").await;
    assert_eq!(number(&scene, "two"), 2);
    assert_eq!(scene.names(Kind::ControllerRevision).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn with_a_surge_the_new_pod_stands_beside_the_old_one() {
    let rolling = json!({"maxSurge": 1, "maxUnavailable": 0});
    let scene = rolled_out(json!({"updateStrategy": {"rollingUpdate": rolling}})).await;
    change(&scene, "bad");
    scene.wait(60).await;
    assert_eq!((number(&scene, "one"), number(&scene, "bad")), (2, 1));
    change(&scene, "two");
    scene.until_rolled_out(Kind::DaemonSet, "web").await;
    scene.wait(10).await;
    assert_eq!((number(&scene, "two"), scene.pods().len()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn min_ready_seconds_hold_it_up() {
    let scene = rolled_out(json!({"minReadySeconds": 100})).await;
    scene.wait(150).await;
    change(&scene, "two");
    scene.wait(60).await;
    assert_eq!(number(&scene, "two"), 1);
    scene.until_rolled_out(Kind::DaemonSet, "web").await;
}

#[tokio::test(start_paused = true)]
async fn on_delete_waits_for_somebody() {
    let scene = rolled_out(json!({"updateStrategy": {"type": "OnDelete"}})).await;
    change(&scene, "two");
    scene.wait(60).await;
    assert_eq!(number(&scene, "two"), 0);
    let first = scene.names(Kind::Pod)[0].clone();
    scene.delete(Kind::Pod, &first, Propagation::Background);
    scene.wait(60).await;
    assert_eq!(number(&scene, "two"), 1);
}
