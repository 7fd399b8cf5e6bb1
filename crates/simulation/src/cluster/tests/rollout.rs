use super::*;

fn rollout(config: &str, steps: &Value) -> Value {
    let strategy = json!({"canary": {"steps": steps, "maxSurge": 1, "maxUnavailable": 0}});
    workload(Kind::Rollout, json!({"replicas": 4, "template": template(config), "strategy": strategy}))
}

async fn rolled_out(steps: Value) -> Scene {
    let scene = Scene::new();
    for name in ["one", "two", "three"] {
        scene.config(name, "healthy");
    }
    scene.config("bad", "crash");
    scene.create(rollout("one", &steps));
    scene.until("it is healthy", |scene| phase(scene) == "Healthy").await;
    scene
}

fn change(scene: &Scene, config: &str) {
    scene.patch(Kind::Rollout, "web", json!({"spec": {"template": template(config)}}));
}

fn status(scene: &Scene) -> Value {
    scene.get(Kind::Rollout, "web").value["status"].clone()
}

fn phase(scene: &Scene) -> String {
    let web = scene.get(Kind::Rollout, "web");
    let is_observed =
        web.value["status"]["observedGeneration"].as_str() == Some(&web.value["metadata"]["generation"].to_string());
    if is_observed {
        web.value["status"]["phase"].as_str().unwrap_or_default().to_owned()
    } else {
        "unobserved".to_owned()
    }
}

fn number(scene: &Scene, config: &str) -> usize {
    scene.pods().iter().filter(|pod| config_of(pod) == config).count()
}

fn half_and_wait() -> Value {
    json!([{"setWeight": 50}, {"pause": {}}])
}

#[tokio::test(start_paused = true)]
async fn it_pauses_until_it_is_promoted() {
    let scene = rolled_out(half_and_wait()).await;
    change(&scene, "two");
    scene.until("it pauses", |scene| phase(scene) == "Paused").await;
    assert_eq!((number(&scene, "one"), number(&scene, "two")), (2, 2));
    let at_pause = status(&scene);
    assert_ne!(at_pause["stableRS"], at_pause["currentPodHash"]);
    assert_eq!(at_pause["currentStepIndex"], 1);
    scene.wait(1000).await;
    assert_eq!(phase(&scene), "Paused", "a person has to come");
    scene.patch_status(Kind::Rollout, "web", &json!({"pauseConditions": null}));
    scene.until("it is healthy", |scene| phase(scene) == "Healthy").await;
    assert_eq!(number(&scene, "two"), 4);
    let after = status(&scene);
    assert_eq!(after["stableRS"], after["currentPodHash"]);
}

#[tokio::test(start_paused = true)]
async fn a_timed_pause_ends_by_itself() {
    let scene = rolled_out(
        json!([{"setWeight": 25}, {"pause": {"duration": "60s"}}, {"setWeight": 75}, {"pause": {"duration": 30}}]),
    )
    .await;
    change(&scene, "two");
    scene.until("it pauses", |scene| phase(scene) == "Paused").await;
    assert_eq!(number(&scene, "two"), 1);
    scene.until("it pauses again", |scene| status(scene)["currentStepIndex"] == 3 && phase(scene) == "Paused").await;
    assert_eq!(number(&scene, "two"), 3);
    scene.until("it is healthy", |scene| phase(scene) == "Healthy").await;
}

#[tokio::test(start_paused = true)]
async fn an_abort_brings_the_stable_pods_back_and_stays() {
    let scene = rolled_out(half_and_wait()).await;
    change(&scene, "two");
    scene.until("it pauses", |scene| phase(scene) == "Paused").await;
    scene.patch_status(Kind::Rollout, "web", &json!({"abort": true}));
    scene.until("it is degraded", |scene| phase(scene) == "Degraded").await;
    scene.wait(60).await;
    assert_eq!((number(&scene, "one"), number(&scene, "two")), (4, 0));
    let aborted = status(&scene);
    assert!(aborted["abort"] == true && aborted["abortedAt"].is_string());
    assert!(aborted["message"].as_str().unwrap().starts_with("RolloutAborted"));
    assert_ne!(aborted["stableRS"], aborted["currentPodHash"]);
}

#[tokio::test(start_paused = true)]
async fn after_an_abort_the_stable_template_is_healthy_at_once() {
    let scene = rolled_out(half_and_wait()).await;
    let pods: Vec<String> = scene.names(Kind::Pod);
    change(&scene, "two");
    scene.until("it pauses", |scene| phase(scene) == "Paused").await;
    scene.patch_status(Kind::Rollout, "web", &json!({"abort": true}));
    scene.until("it is degraded", |scene| phase(scene) == "Degraded").await;
    scene.wait(60).await;
    change(&scene, "one");
    scene.until("it is healthy", |scene| phase(scene) == "Healthy").await;
    assert_eq!(status(&scene)["abort"], Value::Null);
    assert_eq!(scene.names(Kind::ReplicaSet).len(), 2);
    assert!(scene.names(Kind::Pod).iter().any(|name| pods.contains(name)), "who was never replaced is still there");
}

#[tokio::test(start_paused = true)]
async fn after_an_abort_another_template_starts_again() {
    let scene = rolled_out(half_and_wait()).await;
    change(&scene, "bad");
    scene.wait(60).await;
    scene.patch_status(Kind::Rollout, "web", &json!({"abort": true}));
    scene.until("it is degraded", |scene| phase(scene) == "Degraded").await;
    change(&scene, "three");
    scene.until("it pauses", |scene| phase(scene) == "Paused").await;
    assert_eq!((number(&scene, "one"), number(&scene, "three"), number(&scene, "bad")), (2, 2, 0));
    assert_eq!(status(&scene)["abort"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn retry_after_an_abort_begins_with_the_first_step() {
    let scene = rolled_out(half_and_wait()).await;
    change(&scene, "two");
    scene.until("it pauses", |scene| phase(scene) == "Paused").await;
    scene.patch_status(Kind::Rollout, "web", &json!({"abort": true}));
    scene.until("it is degraded", |scene| phase(scene) == "Degraded").await;
    scene.wait(30).await;
    scene.patch_status(Kind::Rollout, "web", &json!({"abort": null}));
    scene.until("it pauses again", |scene| phase(scene) == "Paused").await;
    assert_eq!(number(&scene, "two"), 2);
}

#[tokio::test(start_paused = true)]
async fn another_template_midway_begins_anew_from_the_stable_one() {
    let scene = rolled_out(half_and_wait()).await;
    let stable = status(&scene)["stableRS"].clone();
    change(&scene, "two");
    scene.until("it pauses", |scene| phase(scene) == "Paused").await;
    change(&scene, "three");
    scene.until("it pauses again", |scene| phase(scene) == "Paused" && number(scene, "three") == 2).await;
    scene.wait(10).await;
    assert_eq!((number(&scene, "one"), number(&scene, "two"), number(&scene, "three")), (2, 0, 2));
    assert_eq!(status(&scene)["stableRS"], stable);
    change(&scene, "one");
    scene.until("it is healthy", |scene| phase(scene) == "Healthy").await;
    assert_eq!(number(&scene, "one"), 4, "the stable one is gone back to without steps");
}

#[tokio::test(start_paused = true)]
async fn promote_full_skips_the_rest() {
    let scene = rolled_out(half_and_wait()).await;
    change(&scene, "two");
    scene.until("it pauses", |scene| phase(scene) == "Paused").await;
    scene.patch_status(Kind::Rollout, "web", &json!({"promoteFull": true}));
    scene.until("it is healthy", |scene| phase(scene) == "Healthy").await;
    assert_eq!((number(&scene, "two"), status(&scene)["promoteFull"].clone()), (4, Value::Null));
}

#[tokio::test(start_paused = true)]
async fn one_that_makes_no_progress_is_degraded() {
    let scene = rolled_out(json!([{"setWeight": 50}])).await;
    scene.patch(Kind::Rollout, "web", json!({"spec": {"progressDeadlineSeconds": 30}}));
    change(&scene, "bad");
    scene.until("it is degraded", |scene| phase(scene) == "Degraded").await;
    assert!(status(&scene)["message"].as_str().unwrap().starts_with("ProgressDeadlineExceeded"));
    change(&scene, "one");
    scene.until("it is healthy", |scene| phase(scene) == "Healthy").await;
}

#[tokio::test(start_paused = true)]
async fn a_rollout_can_take_the_template_of_a_deployment() {
    let scene = Scene::new();
    scene.config("one", "healthy");
    scene.config("two", "healthy");
    let mut deployment = workload(Kind::Deployment, json!({"replicas": 0, "template": template("one")}));
    deployment["metadata"]["name"] = json!("source");
    scene.create(deployment);
    let reference = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "source"});
    let mut object =
        workload(Kind::Rollout, json!({"replicas": 2, "workloadRef": reference, "strategy": {"canary": {}}}));
    object["spec"]["selector"] = json!({"matchLabels": {"app": "web"}});
    scene.create(object);
    scene.until("it is healthy", |scene| phase(scene) == "Healthy").await;
    let changed = scene.patch(Kind::Deployment, "source", json!({"spec": {"template": template("two")}}));
    let generation = changed.value["metadata"]["generation"].to_string();
    scene
        .until("it follows", |scene| {
            status(scene)["workloadObservedGeneration"] == generation && phase(scene) == "Healthy"
        })
        .await;
    assert_eq!(number(&scene, "two"), 2);
}
