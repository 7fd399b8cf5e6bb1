use super::*;

fn pod(container: Value, volumes: &Value) -> Value {
    let mut container = container;
    container["name"] = json!("app");
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "alone", "namespace": SPACE, "labels": {"app": "alone"}},
        "spec": {"containers": [container], "volumes": volumes}})
}

fn env_from(config: &str) -> Value {
    json!({"envFrom": [{"configMapRef": {"name": config}}]})
}

fn container(scene: &Scene) -> Value {
    scene.get(Kind::Pod, "alone").value["status"]["containerStatuses"][0].clone()
}

fn waits_for(scene: &Scene) -> String {
    container(scene)["state"]["waiting"]["reason"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_healthy_pod_gets_ready_and_stays_so() {
    let scene = Scene::new();
    scene.config("one", "healthy");
    scene.create(pod(env_from("one"), &json!([])));
    scene.until("it is ready", |scene| is_ready(&scene.get(Kind::Pod, "alone"))).await;
    let revision = scene.get(Kind::Pod, "alone").revision;
    scene.wait(3600).await;
    assert_eq!(scene.get(Kind::Pod, "alone").revision, revision);
    let world = scene.shared.lock();
    let ran = world.ran.values().next().unwrap();
    assert_eq!(ran.references["configmap/one"], ("one".to_owned(), r#"{"BEHAVIOR":"healthy"}"#.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn back_off_grows_up_to_five_minutes() {
    let scene = Scene::new();
    scene.config("bad", "crash");
    scene.create(pod(env_from("bad"), &json!([])));
    scene.wait(3600).await;
    let mut ends: Vec<Timestamp> = Vec::new();
    {
        let world = scene.shared.lock();
        for change in world.store.changes_after(0).iter().filter(|change| change.key.kind == Kind::Pod) {
            let Some(pod) = &change.after else { continue };
            let status = &pod.value["status"]["containerStatuses"][0];
            let ended = [&status["state"], &status["lastState"]]
                .into_iter()
                .find_map(|state| state["terminated"]["finishedAt"].as_str());
            ends.extend(ended.map(|at| at.parse::<Timestamp>().unwrap()));
        }
    }
    ends.dedup();
    let waits: Vec<i64> = ends.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs()).collect();
    let expected = [0, 10, 20, 40, 80, 160, 300, 300];
    let near = waits.iter().zip(expected).all(|(wait, expected)| (expected..=expected + 1).contains(wait));
    assert!(near && waits.len() > expected.len(), "{waits:?}");
    assert_eq!(waits_for(&scene), "CrashLoopBackOff");
    assert!(container(&scene)["restartCount"].as_u64() > Some(8));
}

#[tokio::test(start_paused = true)]
async fn a_late_crash_is_a_restart() {
    let scene = Scene::new();
    scene.config("bad", "crash-after 20s");
    scene.create(pod(env_from("bad"), &json!([])));
    scene.wait(10).await;
    assert!(is_ready(&scene.get(Kind::Pod, "alone")));
    scene.until("it restarts", |scene| container(scene)["restartCount"] == 1).await;
    scene.until("it is ready again", |scene| is_ready(&scene.get(Kind::Pod, "alone"))).await;
    assert_eq!(container(&scene)["lastState"]["terminated"]["exitCode"], 1);
}

#[tokio::test(start_paused = true)]
async fn readiness_comes_late_never_or_goes_again() {
    for (behavior, after_10, after_60) in [
        ("ready-after 30s", false, true),
        ("never-ready", false, false),
        ("flap 40s", true, false),
        ("slow", false, true),
    ] {
        let scene = Scene::new();
        scene.config("one", behavior);
        scene.create(pod(env_from("one"), &json!([])));
        scene.wait(10).await;
        assert_eq!(is_ready(&scene.get(Kind::Pod, "alone")), after_10, "{behavior}");
        scene.wait(50).await;
        assert_eq!(is_ready(&scene.get(Kind::Pod, "alone")), after_60, "{behavior}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_variable_that_cannot_be_made_is_a_config_error() {
    let scene = Scene::new();
    scene.create(pod(env_from("missing"), &json!([])));
    scene.until("an error", |scene| waits_for(scene) == "CreateContainerConfigError").await;
    assert_eq!(container(&scene)["state"]["waiting"]["message"], "configmap \"missing\" not found");
    scene.config("missing", "healthy");
    scene.until("it is ready", |scene| is_ready(&scene.get(Kind::Pod, "alone"))).await;

    let scene = Scene::new();
    scene.config("one", "healthy");
    let reference = |is_optional: bool| json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "one", "key": "A", "optional": is_optional}}}]});
    scene.create(pod(reference(false), &json!([])));
    scene.until("an error", |scene| waits_for(scene) == "CreateContainerConfigError").await;
    assert_eq!(container(&scene)["state"]["waiting"]["message"], "couldn't find key A in ConfigMap shop/one");
    scene.delete(Kind::Pod, "alone", Propagation::Background);
    scene.until("it is gone", |scene| scene.find(Kind::Pod, "alone").is_none()).await;
    scene.create(pod(reference(true), &json!([])));
    scene.until("it is ready", |scene| is_ready(&scene.get(Kind::Pod, "alone"))).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_not_there_is_waited_for_in_silence() {
    let scene = Scene::new();
    let volumes = json!([{"name": "v", "secret": {"secretName": "one"}}, {"name": "w", "configMap": {"name": "none", "optional": true}}]);
    scene.create(pod(json!({}), &volumes));
    scene.wait(60).await;
    assert_eq!(waits_for(&scene), "ContainerCreating");
    scene.create(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "one", "namespace": SPACE}, "stringData": {"behavior": "never-ready"}}));
    scene.until("it runs", |scene| container(scene)["state"]["running"].is_object()).await;
    scene.wait(60).await;
    assert!(!is_ready(&scene.get(Kind::Pod, "alone")), "its file says so");
}

#[tokio::test(start_paused = true)]
async fn a_pod_may_find_no_room_for_a_while() {
    let scene = Scene::new();
    scene.machines.fill(true);
    scene.config("one", "healthy");
    scene.create(pod(env_from("one"), &json!([])));
    scene.wait(30).await;
    assert_eq!(condition(&scene.get(Kind::Pod, "alone"), "PodScheduled")["status"], "False");
    scene.machines.fill(false);
    scene.until("it is ready", |scene| is_ready(&scene.get(Kind::Pod, "alone"))).await;

    let span = (Duration::from_secs(50), Duration::from_secs(60));
    let scene = Scene::with(1, Manners { crowded_percent: 100, crowded: span, ..Manners::default() });
    scene.config("one", "healthy");
    scene.create(pod(env_from("one"), &json!([])));
    scene.wait(40).await;
    assert_eq!(condition(&scene.get(Kind::Pod, "alone"), "PodScheduled")["reason"], "Unschedulable");
    scene.until("it is ready", |scene| is_ready(&scene.get(Kind::Pod, "alone"))).await;
    assert_eq!(condition(&scene.get(Kind::Pod, "alone"), "PodScheduled")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn a_pod_stops_within_its_grace_period() {
    let scene = Scene::with(1, Manners { stubborn_percent: 100, ..Manners::default() });
    scene.config("one", "healthy");
    scene.create(pod(env_from("one"), &json!([])));
    scene.wait(10).await;
    scene.delete(Kind::Pod, "alone", Propagation::Background);
    scene.wait(29).await;
    assert!(scene.get(Kind::Pod, "alone").is_deleted());
    scene.wait(2).await;
    assert!(scene.find(Kind::Pod, "alone").is_none());
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_lost_node_are_not_ready_and_then_evicted() {
    let scene = Scene::new();
    scene.config("one", "healthy");
    scene.create(workload(Kind::Deployment, json!({"replicas": 4, "template": template("one")})));
    scene.until_rolled_out(Kind::Deployment, "web").await;
    let on_node = |scene: &Scene| scene.pods().iter().filter(|pod| pod.value["spec"]["nodeName"] == "node-0").count();
    let many = on_node(&scene);
    assert!(many > 0);
    scene.machines.lose(0);
    scene.wait(30).await;
    assert_eq!(scene.pods().iter().filter(|pod| is_ready(pod)).count(), 4, "nobody knows yet");
    scene.wait(20).await;
    assert_eq!(scene.pods().iter().filter(|pod| is_ready(pod)).count(), 4 - many);
    let lost = scene.pods().into_iter().find(|pod| !is_ready(pod)).unwrap();
    assert_eq!(condition(&lost, "ContainersReady")["status"], "True", "nothing else is said of it");
    scene.wait(310).await;
    assert_eq!((on_node(&scene), scene.pods().len()), (0, 4));
    assert_eq!(scene.list(Kind::Pod).len(), 4 + many, "they cannot be stopped");
    scene.machines.find(0);
    scene.wait(10).await;
    assert_eq!(scene.list(Kind::Pod).len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_in_time_has_lost_nothing() {
    let scene = Scene::new();
    scene.config("one", "healthy");
    scene.create(pod(env_from("one"), &json!([])));
    scene.wait(10).await;
    for node in 0..2 {
        scene.machines.lose(node);
    }
    scene.wait(100).await;
    assert!(!is_ready(&scene.get(Kind::Pod, "alone")));
    for node in 0..2 {
        scene.machines.find(node);
    }
    scene.wait(1).await;
    assert!(is_ready(&scene.get(Kind::Pod, "alone")));
    assert_eq!(container(&scene)["restartCount"], 0);
}
