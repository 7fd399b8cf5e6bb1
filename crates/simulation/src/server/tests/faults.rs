use std::collections::VecDeque;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, WatchEvent, WatchParams};
use tokio::time::{Instant, timeout};

use super::*;

/// Does what it is told, one after the other; then nothing goes wrong any more.
#[derive(Default)]
struct Planned {
    fates: VecDeque<Fate>,
    deliveries: VecDeque<Delivery>,
}

impl Faults for Planned {
    fn request(&mut self, _: &Asked) -> Fate {
        self.fates.pop_front().unwrap_or_default()
    }

    fn event(&mut self, _: &Asked) -> Delivery {
        self.deliveries.pop_front().unwrap_or_default()
    }
}

fn plan(stage: &Stage, fates: impl IntoIterator<Item = Outcome>) {
    let fate = |outcome| Fate { outcome, ..Fate::default() };
    stage.link.set(Planned { fates: fates.into_iter().map(fate).collect(), ..Planned::default() });
}

fn error(code: u16) -> Refusal {
    Refusal::new(code, "InternalError", "no")
}

async fn create(stage: &Stage) -> kube::Result<ConfigMap> {
    stage.api().create(&PostParams::default(), &config("app", "1")).await
}

#[tokio::test(start_paused = true)]
async fn a_request_fails_before_or_after_its_effect() {
    for (effect, is_there) in [(Effect::Undone, false), (Effect::Done, true)] {
        for outcome in [Outcome::Refused(error(500), effect), Outcome::Broken(effect), Outcome::Silent(effect)] {
            let stage = Stage::new();
            plan(&stage, [outcome.clone()]);
            assert!(create(&stage).await.is_err(), "{outcome:?}");
            assert_eq!(stage.get(Kind::ConfigMap, "app").is_some(), is_there, "{outcome:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_client_tries_again_by_itself_and_may_meet_its_own_write() {
    let stage = Stage::new();
    plan(&stage, [429, 503, 504].map(|code| Outcome::Refused(error(code), Effect::Undone)));
    let start = Instant::now();
    create(&stage).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(1), "429 says when to come again");
    plan(&stage, [Outcome::Refused(error(504), Effect::Done)]);
    let again = stage.api().create(&PostParams::default(), &config("other", "1")).await;
    assert_eq!(refusal::<ConfigMap>(again), (409, "AlreadyExists".into()));
    plan(&stage, std::iter::repeat_n(Outcome::Refused(error(503), Effect::Undone), 16));
    assert_eq!(refusal(stage.api::<ConfigMap>().get("app").await).0, 503, "not for ever");
}

#[tokio::test(start_paused = true)]
async fn requests_take_time_and_what_was_asked_is_done_without_who_asked() {
    let stage = Stage::new();
    let second = Duration::from_secs(1);
    let slow = || Fate { before: second, after: second, ..Fate::default() };
    stage.link.set(Planned { fates: [slow(), slow()].into(), ..Planned::default() });
    let start = Instant::now();
    create(&stage).await.unwrap();
    assert_eq!(start.elapsed(), 2 * second);
    let patch = Patch::Merge(json!({"data": {"k": "2"}}));
    let api: Api<ConfigMap> = stage.api();
    let given_up = timeout(second / 2, api.patch("app", &PatchParams::default(), &patch)).await;
    assert!(given_up.is_err());
    assert_eq!(stage.get(Kind::ConfigMap, "app").unwrap().value["data"]["k"], "1");
    sleep(second).await;
    assert_eq!(stage.get(Kind::ConfigMap, "app").unwrap().value["data"]["k"], "2");
}

#[tokio::test(start_paused = true)]
async fn events_come_late_twice_or_not_at_all() {
    let stage = Stage::new();
    create(&stage).await.unwrap();
    let second = Duration::from_secs(1);
    let deliveries = [
        Delivery { after: 3 * second, ..Delivery::default() },
        Delivery { after: second, repeated: true, ..Delivery::default() },
        Delivery { instead: Some(Break::Closed), ..Delivery::default() },
    ];
    stage.link.set(Planned { deliveries: deliveries.into(), ..Planned::default() });
    let api: Api<ConfigMap> = stage.api();
    let watch = api.watch(&WatchParams::default(), &stage.revision().to_string()).await.unwrap();
    let start = Instant::now();
    for value in ["2", "3", "4"] {
        let patch = Patch::Merge(json!({"data": {"k": value}}));
        api.patch("app", &PatchParams::default(), &patch).await.unwrap();
    }
    let value = |event| match event {
        Ok(WatchEvent::Modified(config)) => ConfigMap::data(&config),
        other => panic!("{other:?}"),
    };
    let seen: Vec<(String, u64)> = watch.map(|event| (value(event), start.elapsed().as_secs())).collect().await;
    assert_eq!(seen, [("2".into(), 3), ("3".into(), 3), ("3".into(), 3)], "nothing overtakes");
}

trait Data {
    fn data(config: &ConfigMap) -> String;
}

impl Data for ConfigMap {
    fn data(config: &ConfigMap) -> String {
        config.data.as_ref().unwrap()["k"].clone()
    }
}

/// A world in which much happens, most of it by chance.
async fn history(seed: u64) -> Vec<String> {
    struct Chance(Random);
    impl Faults for Chance {
        fn request(&mut self, _: &Asked) -> Fate {
            let mut time = || self.0.between(Duration::ZERO, Duration::from_millis(20));
            let (before, after) = (time(), time());
            let outcome = match self.0.below(5) {
                0 => Outcome::Refused(error(503), Effect::Done),
                1 => Outcome::Broken(Effect::Undone),
                _ => Outcome::Answered,
            };
            Fate { before, after, outcome }
        }
    }
    let stage = Stage::new();
    let random = Random::new(seed);
    let mut tasks = Vec::new();
    for number in 0..5 {
        let link = Link::new(Chance(random.fork(&number.to_string())));
        let api: Api<ConfigMap> = Api::namespaced(client(&stage.shared, Writer::Operator(number), link), "shop");
        tasks.push(tokio::spawn(async move {
            for round in 0..20 {
                let name = format!("c{}", round % 7);
                let patch = Patch::Merge(json!({"data": {"k": format!("{number} {round}")}}));
                if api.patch(&name, &PatchParams::default(), &patch).await.is_err() {
                    let _ = api.create(&PostParams::default(), &config(&name, "new")).await;
                }
            }
        }));
    }
    futures::future::join_all(tasks).await;
    let told = |change: &crate::store::Change| {
        let object = change.after.as_ref().map(|object| object.text());
        format!("{} {} {:?} {} {object:?}", change.revision, change.key, change.by, change.at)
    };
    stage.shared.lock().store.changes_after(0).iter().map(told).collect()
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let run = |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(history(seed))
    };
    let first = run(7);
    assert!(first.len() > 50);
    assert_eq!(first, run(7));
    assert_ne!(first, run(8));
}
