use super::*;

fn deployment(config: &str, more: &Value) -> Value {
    let mut spec = json!({"replicas": 4, "template": template(config)});
    json_patch::merge(&mut spec, more);
    workload(Kind::Deployment, spec)
}

async fn rolled_out(more: Value) -> Scene {
    let scene = Scene::new();
    for name in ["one", "two"] {
        scene.config(name, "healthy");
    }
    scene.config("bad", "crash");
    scene.create(deployment("one", &more));
    scene.until_rolled_out(Kind::Deployment, "web").await;
    scene
}

fn change(scene: &Scene, config: &str) -> Arc<Object> {
    scene.patch(Kind::Deployment, "web", json!({"spec": {"template": template(config)}}))
}

#[tokio::test(start_paused = true)]
async fn a_rollout_keeps_to_surge_and_unavailability() {
    let rolling = json!({"maxSurge": "25%", "maxUnavailable": 1});
    let scene = rolled_out(json!({"strategy": {"rollingUpdate": rolling}})).await;
    change(&scene, "two");
    scene.until_rolled_out(Kind::Deployment, "web").await;
    assert!(scene.pods().iter().all(|pod| config_of(pod) == "two"));
    let world = scene.shared.lock();
    let mut pods: std::collections::BTreeMap<Key, bool> = std::collections::BTreeMap::new();
    let mut was_complete = false;
    for change in world.store.changes_after(0).iter().filter(|change| change.key.kind == Kind::Pod) {
        match change.after.as_ref().filter(|pod| !pod.is_deleted()) {
            Some(pod) => drop(pods.insert(change.key.clone(), is_ready(pod))),
            None => drop(pods.remove(&change.key)),
        }
        let ready = pods.values().filter(|ready| **ready).count();
        was_complete |= ready == 4;
        assert!(pods.len() <= 5, "a surge of one");
        assert!(!was_complete || ready >= 3, "one may be missing");
    }
}

#[tokio::test(start_paused = true)]
async fn a_template_that_goes_back_gets_its_old_replica_set() {
    let scene = rolled_out(json!({})).await;
    let first = scene.names(Kind::ReplicaSet);
    change(&scene, "two");
    scene.until_rolled_out(Kind::Deployment, "web").await;
    let second = scene.names(Kind::ReplicaSet);
    assert_eq!(second.len(), 2);
    change(&scene, "one");
    scene.until_rolled_out(Kind::Deployment, "web").await;
    assert_eq!(scene.names(Kind::ReplicaSet), second);
    let revision = |name: &str| {
        scene.get(Kind::ReplicaSet, name).annotation("deployment.kubernetes.io/revision").map(str::to_owned)
    };
    assert_eq!(revision(&first[0]).as_deref(), Some("3"));
    let web = scene.get(Kind::Deployment, "web");
    assert_eq!(web.annotation("deployment.kubernetes.io/revision"), Some("3"));
}

#[tokio::test(start_paused = true)]
async fn annotations_are_copied_to_the_replica_set_in_use() {
    let scene = rolled_out(json!({})).await;
    scene.patch(Kind::Deployment, "web", json!({"metadata": {"annotations": {"lockstep.dev/gate": "shut"}}}));
    scene.wait(5).await;
    assert_eq!(scene.list(Kind::ReplicaSet)[0].annotation("lockstep.dev/gate"), Some("shut"));
}

#[tokio::test(start_paused = true)]
async fn the_status_speaks_of_an_older_template_for_a_while() {
    let scene = rolled_out(json!({})).await;
    let before = scene.get(Kind::Deployment, "web");
    let after = change(&scene, "two");
    assert!(after.value["metadata"]["generation"].as_u64() > before.value["metadata"]["generation"].as_u64());
    assert_eq!(after.value["status"]["observedGeneration"], before.value["metadata"]["generation"]);
    scene
        .until("it is observed", |scene| {
            let web = scene.get(Kind::Deployment, "web");
            web.value["status"]["observedGeneration"] == web.value["metadata"]["generation"]
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn while_controllers_are_stalled_nothing_is_observed() {
    let scene = rolled_out(json!({})).await;
    scene.machines.stall(true);
    scene.wait(1).await;
    change(&scene, "two");
    scene.wait(60).await;
    let web = scene.get(Kind::Deployment, "web");
    assert_ne!(web.value["status"]["observedGeneration"], web.value["metadata"]["generation"]);
    scene.machines.stall(false);
    scene.until_rolled_out(Kind::Deployment, "web").await;
}

#[tokio::test(start_paused = true)]
async fn what_exceeded_the_deadline_stays_until_the_next_template_is_observed() {
    let scene = rolled_out(json!({"progressDeadlineSeconds": 30})).await;
    change(&scene, "bad");
    let gave_up = |scene: &Scene| {
        condition(&scene.get(Kind::Deployment, "web"), "Progressing")["reason"] == "ProgressDeadlineExceeded"
    };
    scene.until("it gives up", gave_up).await;
    assert_eq!(scene.pods().iter().filter(|pod| is_ready(pod)).count(), 3, "a quarter may be missing");
    let next = change(&scene, "two");
    assert_eq!(condition(&next, "Progressing")["reason"], "ProgressDeadlineExceeded");
    assert_ne!(next.value["status"]["observedGeneration"], next.value["metadata"]["generation"]);
    scene.until_rolled_out(Kind::Deployment, "web").await;
    scene.wait(5).await;
    let web = scene.get(Kind::Deployment, "web");
    assert_eq!(condition(&web, "Progressing")["reason"], "NewReplicaSetAvailable");
    assert_eq!(condition(&web, "Available")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn pods_count_as_available_only_after_min_ready_seconds() {
    let rolling = json!({"maxSurge": 1, "maxUnavailable": 0});
    let scene = rolled_out(json!({"replicas": 2, "minReadySeconds": 60, "strategy": {"rollingUpdate": rolling}})).await;
    scene.wait(90).await;
    change(&scene, "two");
    scene.wait(50).await;
    let web = scene.get(Kind::Deployment, "web");
    assert_eq!(
        (count(&web, "updatedReplicas"), count(&web, "readyReplicas"), count(&web, "availableReplicas")),
        (1, 3, 2)
    );
    scene.until_rolled_out(Kind::Deployment, "web").await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_deployment_does_not_roll_and_can_be_scaled() {
    let scene = rolled_out(json!({})).await;
    scene.patch(Kind::Deployment, "web", json!({"spec": {"paused": true}}));
    change(&scene, "two");
    scene.patch(Kind::Deployment, "web", json!({"spec": {"replicas": 2}}));
    scene.wait(20).await;
    assert_eq!(scene.names(Kind::ReplicaSet).len(), 1);
    assert_eq!(scene.pods().len(), 2);
    assert_eq!(condition(&scene.get(Kind::Deployment, "web"), "Progressing")["reason"], "DeploymentPaused");
    scene.patch(Kind::Deployment, "web", json!({"spec": {"paused": false}}));
    scene.until_rolled_out(Kind::Deployment, "web").await;
    assert!(scene.pods().iter().all(|pod| config_of(pod) == "two"));
}

#[tokio::test(start_paused = true)]
async fn recreate_never_has_two_templates_at_once() {
    let scene = rolled_out(json!({"strategy": {"type": "Recreate"}})).await;
    change(&scene, "two");
    scene.until("a new pod", |scene| scene.pods().iter().any(|pod| config_of(pod) == "two")).await;
    assert!(scene.list(Kind::Pod).iter().all(|pod| config_of(pod) == "two"), "the old ones are gone for good");
    scene.until_rolled_out(Kind::Deployment, "web").await;
}

#[tokio::test(start_paused = true)]
async fn old_replica_sets_go_when_there_are_too_many() {
    let scene = rolled_out(json!({"replicas": 1, "revisionHistoryLimit": 1})).await;
    for config in ["two", "bad", "one", "two"] {
        scene.patch(
            Kind::Deployment,
            "web",
            json!({"spec": {"template": {"metadata": {"annotations": {"to": format!("{config}{}", scene.now())}}}}}),
        );
        scene.until_rolled_out(Kind::Deployment, "web").await;
    }
    scene.wait(10).await;
    assert_eq!(scene.names(Kind::ReplicaSet).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_is_recreated_takes_its_replica_sets_in_again() {
    let scene = rolled_out(json!({})).await;
    let (sets, pods) = (scene.names(Kind::ReplicaSet), scene.pods());
    scene.delete(Kind::Deployment, "web", Propagation::Orphan);
    scene.until("it is gone", |scene| scene.find(Kind::Deployment, "web").is_none()).await;
    scene.create(deployment("one", &json!({})));
    scene.until_rolled_out(Kind::Deployment, "web").await;
    assert_eq!(scene.names(Kind::ReplicaSet), sets);
    let uids = |pods: &[Arc<Object>]| pods.iter().map(|pod| pod.uid().to_owned()).collect::<Vec<_>>();
    assert_eq!(uids(&scene.pods()), uids(&pods));
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_is_replaced_at_once_finds_its_name_taken() {
    let scene = rolled_out(json!({})).await;
    scene.delete(Kind::Deployment, "web", Propagation::Background);
    scene.create(deployment("one", &json!({})));
    scene.until_rolled_out(Kind::Deployment, "web").await;
    scene.wait(60).await;
    assert_eq!((scene.names(Kind::ReplicaSet).len(), scene.pods().len()), (1, 4));
}

#[tokio::test(start_paused = true)]
async fn those_that_are_not_ready_go_first_and_then_the_youngest() {
    let scene = rolled_out(json!({"replicas": 2})).await;
    scene.wait(30).await;
    let old: Vec<String> = scene.names(Kind::Pod);
    scene.patch(Kind::Deployment, "web", json!({"spec": {"replicas": 3}}));
    scene.until_rolled_out(Kind::Deployment, "web").await;
    scene.wait(30).await;
    scene.patch(Kind::Deployment, "web", json!({"spec": {"replicas": 2}}));
    scene.wait(30).await;
    // With two nodes, the youngest may have a node for itself, where it is worth more.
    assert_eq!(scene.pods().len(), 2);
    assert!(scene.names(Kind::Pod).iter().any(|name| old.contains(name)));
}

#[tokio::test(start_paused = true)]
async fn a_seed_makes_the_same_history_again() {
    async fn history(seed: u64) -> Vec<String> {
        let mut random = Random::new(seed);
        let scene = Scene::with(seed, Manners::random(&mut random));
        scene.config("one", "healthy");
        scene.config("bad", "crash-after 3s");
        scene.create(deployment("one", &json!({})));
        scene.wait(20).await;
        change(&scene, "bad");
        scene.wait(60).await;
        change(&scene, "one");
        scene.wait(60).await;
        scene.history()
    }
    assert_eq!(history(7).await, history(7).await);
    assert_ne!(history(7).await, history(8).await);
}
