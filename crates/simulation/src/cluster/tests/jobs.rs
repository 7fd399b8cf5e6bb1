use super::*;

fn job(config: &str, more: &Value) -> Value {
    let mut template = template(config);
    template["spec"]["restartPolicy"] = json!("Never");
    let mut spec = json!({"template": template});
    json_patch::merge(&mut spec, more);
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work", "namespace": SPACE}, "spec": spec})
}

#[tokio::test(start_paused = true)]
async fn a_job_ends_when_its_pods_have() {
    let scene = Scene::new();
    scene.config("one", "healthy");
    scene.create(job("one", &json!({"completions": 3, "parallelism": 2})));
    scene
        .until("it is complete", |scene| condition(&scene.get(Kind::Job, "work"), "Complete")["status"] == "True")
        .await;
    assert_eq!(count(&scene.get(Kind::Job, "work"), "succeeded"), 3);
    assert!(scene.pods().iter().all(|pod| pod.value["status"]["phase"] == "Succeeded"));
}

#[tokio::test(start_paused = true)]
async fn a_job_gives_up_after_its_limit_and_waits_longer_each_time() {
    let scene = Scene::new();
    scene.config("bad", "crash");
    scene.create(job("bad", &json!({"backoffLimit": 2})));
    scene.until("it gives up", |scene| condition(&scene.get(Kind::Job, "work"), "Failed")["status"] == "True").await;
    let mut created: Vec<Timestamp> =
        scene.pods().iter().map(|pod| super::super::read::created(pod).parse().unwrap()).collect();
    created.sort();
    let waits: Vec<i64> = created.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs()).collect();
    assert!(waits.len() == 2 && waits[0] >= 10 && waits[1] >= 20, "{waits:?}");
    let ended = &scene.pods()[0].value["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(ended["exitCode"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_cron_job_makes_a_job_each_minute_unless_it_is_suspended() {
    let scene = Scene::new();
    scene.config("one", "healthy");
    let spec = job("one", &json!({}))["spec"].clone();
    let spec = json!({"schedule": "*/1 * * * *", "jobTemplate": {"spec": spec}});
    scene.create(json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "tick", "namespace": SPACE}, "spec": spec}));
    scene.wait(150).await;
    assert_eq!(scene.names(Kind::Job).len(), 2);
    scene.patch(Kind::CronJob, "tick", json!({"spec": {"suspend": true}}));
    scene.wait(300).await;
    assert_eq!(scene.names(Kind::Job).len(), 2);
    scene.patch(Kind::CronJob, "tick", json!({"spec": {"suspend": false}}));
    scene.wait(600).await;
    assert_eq!(scene.names(Kind::Job).len(), 3, "only the last three are kept");
}
