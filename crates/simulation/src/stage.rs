//! Plays a schedule: the cluster, the operators, people and faults, in one runtime with virtual time.

mod webhook;

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use crate::Shared;
use crate::cluster;
use crate::faults::{Fault, WINDOW, Whose};
use crate::invariants::{Checker, Violation};
use crate::kinds::{Key, Kind};
use crate::random::Random;
use crate::replica::{OWN_NAMESPACE, Replica, identity};
use crate::report::Coverage;
use crate::schedule::{OVERTURE, Schedule, Seconds, What};
use crate::server::{Break, Link, client};
use crate::store::{Part, Patch, Write, Writer};
use crate::trace;
use crate::users::Users;

/// A write whose answer is lost is sent again, and whoever leads next may do what was done: so many are no reason to worry.
const MOST_IN_VAIN: u32 = 10;
/// How long nothing must happen before all is quiet.
const QUIET: Duration = Duration::from_secs(120);
/// How long that is waited for.
const PATIENCE: Duration = Duration::from_secs(60 * 60);
/// How many requests an operator may make within [`WINDOW`]: some ten times what the busiest good ones make.
const MOST_REQUESTS: u64 = 1_500;
/// How often is looked in the meantime.
const LOOK: Duration = Duration::from_secs(5);
/// How long a new operator has for finding that there is nothing to do.
const ENCORE: Duration = Duration::from_secs(60);

/// How schedules are played.
#[derive(Debug, Clone, Default)]
pub struct Playing {
    /// Rules that are left out.
    pub without: Vec<String>,
    /// Deeds and faults that are left out, by their names.
    pub skipped: Vec<String>,
    /// Whether every change is told on standard error.
    pub is_told: bool,
    /// Whether the whole history is digested.
    pub is_traced: bool,
}

/// The node that is lost, if one is.
const LOST_NODE: usize = 1;

/// What came of a schedule.
#[derive(Debug)]
pub struct Outcome {
    pub violation: Option<Violation>,
    /// When it was noticed, counted as the entries of the schedule are.
    pub noticed: Duration,
    /// A digest of the whole history, if it was asked for.
    pub trace: Option<u64>,
    pub coverage: Coverage,
    /// How much virtual time it took.
    pub lasted: Duration,
}

/// Plays it to its end, or to the first violation.
pub fn play(schedule: &Schedule, playing: &Playing) -> Outcome {
    let _ = crate::panics::take();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without threads and sockets needs nothing");
    runtime.block_on(async {
        let mut stage = Stage::new(schedule, playing);
        let violation = stage.play(schedule).await.err();
        if playing.is_told {
            trace::tell(&stage.shared, stage.curtain);
        }
        stage.outcome(violation, playing)
    })
}

/// A quiet cluster with one operator, and a person's client of it, in a namespace that is empty: for what is not drawn from a seed.
pub fn with_quiet_cluster<T>(namespace: &str, act: impl AsyncFnOnce(kube::Client) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without threads and sockets needs nothing");
    runtime.block_on(async {
        let (shared, random) = (Shared::new(0), Random::new(0));
        let manners = cluster::Manners { nodes: 1, ..cluster::Manners::default() };
        tokio::spawn(cluster::run(shared.clone(), random.fork("cluster"), manners));
        let replica = Replica::new(&shared, 0, &random);
        webhook::install(&shared, std::slice::from_ref(&replica), random.fork("webhook"));
        for name in [OWN_NAMESPACE, namespace] {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            shared.write(&setup(), Write::Create { object }).expect("an empty cluster takes a namespace");
        }
        tokio::spawn(replica.run());
        act(client(&shared, Writer::User("ada".to_owned()), Link::perfect())).await
    })
}

struct Stage {
    shared: Shared,
    users: Users,
    replicas: Vec<Replica>,
    manners: cluster::Manners,
    checker: Checker,
    coverage: Coverage,
    started: Instant,
    /// When the entries of the schedule begin.
    curtain: jiff::Timestamp,
}

impl Stage {
    fn new(schedule: &Schedule, playing: &Playing) -> Self {
        let shared = Shared::new(schedule.seed);
        let random = Random::new(schedule.seed);
        let scene = Arc::new(schedule.scene.clone());
        let replicas: Vec<Replica> = (0..scene.operators).map(|index| Replica::new(&shared, index, &random)).collect();
        webhook::install(&shared, &replicas, random.fork("webhook"));
        Self {
            users: Users::new(shared.clone(), Arc::clone(&scene)),
            replicas,
            manners: cluster::Manners::random(&mut random.fork("manners")),
            checker: Checker::new(&playing.without),
            coverage: Coverage::default(),
            started: Instant::now(),
            curtain: shared.now(),
            shared,
        }
    }

    async fn play(&mut self, schedule: &Schedule) -> Result<(), Violation> {
        let random = Random::new(schedule.seed).fork("cluster");
        tokio::spawn(cluster::run(self.shared.clone(), random, self.manners.clone()));
        self.begin(schedule).await?;
        let curtain = Instant::now();
        self.curtain = self.shared.now();
        for entry in &schedule.entries {
            sleep_until(curtain + entry.at).await;
            match &entry.what {
                What::Deed(deed) => {
                    self.coverage.note_deed(deed.name());
                    let (users, deed) = (self.users.clone(), deed.clone());
                    tokio::spawn(async move { users.perform(&deed).await });
                }
                What::Fault(fault) => {
                    self.coverage.note_fault(fault.name());
                    self.strike(fault);
                }
            }
            self.look()?;
        }
        sleep(Duration::from_secs(1)).await;
        self.calm();
        self.wait_for_quiet().await?;
        self.checker.check_end(self.shared.now())?;
        self.encore().await
    }

    /// The scene is set, and the operators have time to adopt it.
    async fn begin(&mut self, schedule: &Schedule) -> Result<(), Violation> {
        let own = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OWN_NAMESPACE}});
        let made = self.shared.write(&setup(), Write::Create { object: own });
        debug_assert!(made.is_ok());
        if schedule.scene.operators_come_first {
            self.start_operators();
            sleep(Duration::from_secs(3)).await;
        }
        for namespace in 0..schedule.scene.namespaces.len() {
            if let Err(refusal) = self.users.furnish(namespace).await {
                return Err(Violation::new("the_scene_is_set", refusal.message, self.shared.now()));
            }
        }
        if !schedule.scene.operators_come_first {
            sleep(Duration::from_secs(5)).await;
            self.start_operators();
        }
        sleep(OVERTURE).await;
        self.look()
    }

    fn start_operators(&self) {
        for replica in &self.replicas {
            tokio::spawn(replica.clone().run());
        }
    }

    /// Checks what happened since the last look.
    fn look(&mut self) -> Result<(), Violation> {
        if let Some(message) = crate::panics::take() {
            return Err(Violation::new("nobody_panics", message, self.shared.now()));
        }
        let busiest = self.replicas.iter().max_by_key(|replica| replica.way.busiest());
        if let Some(busiest) = busiest.filter(|replica| replica.way.busiest() > MOST_REQUESTS) {
            let what = format!(
                "operator {} made {} requests within {}",
                busiest.index,
                busiest.way.busiest(),
                Seconds(WINDOW)
            );
            return Err(Violation::new("requests_are_bounded", what, self.shared.now()));
        }
        let vain = self.shared.lock().store.most_in_vain().map(|(key, times)| (key.to_string(), times));
        if let Some((key, times)) = vain.filter(|(_, times)| *times > MOST_IN_VAIN) {
            let what = format!("operators wrote {key} {times} times without changing it");
            return Err(Violation::new("no_write_is_in_vain", what, self.shared.now()));
        }
        self.checker.check(&self.shared)
    }

    fn strike(&self, fault: &Fault) {
        match fault {
            Fault::Rough { whose, trouble, percent, lasts } => {
                self.each(*whose, |replica| replica.way.roughen(*trouble, *percent, *lasts));
            }
            Fault::Next { whose, verb, kind, trouble } => {
                self.each(*whose, |replica| replica.way.trip(*verb, *kind, *trouble));
            }
            Fault::Lag { whose, late, repeated, lasts } => {
                self.each(*whose, |replica| replica.way.lag(*late, *repeated, *lasts));
            }
            Fault::BreakWatches { whose, how } => self.each(*whose, |replica| replica.way.link.break_watches(*how)),
            Fault::StallWatches { whose, lasts } => self.each(*whose, |replica| stall(replica, *lasts)),
            Fault::Freeze { whose, lasts } => self.each(*whose, |replica| replica.freeze(*lasts)),
            Fault::Kill { whose, back_after } => self.each(*whose, |replica| replica.kill(Some(*back_after))),
            Fault::KillAt { whose, verb, kind, is_done, back_after } => self.each(*whose, |replica| {
                let sprung = replica.way.set_trap(*verb, *kind, *is_done);
                let (replica, back_after) = (replica.clone(), *back_after);
                tokio::spawn(async move {
                    sprung.notified().await;
                    replica.kill(Some(back_after));
                });
            }),
            Fault::Jump { whose, milliseconds } => {
                self.each(*whose, |replica| replica.set_clock(SignedDuration::from_millis(*milliseconds)));
            }
            Fault::Away { lasts } => self.each(Whose::All, |replica| {
                replica.way.cut_off(*lasts);
                replica.way.link.break_watches(Break::Torn);
            }),
            Fault::Compact => {
                let mut world = self.shared.lock();
                let revision = world.store.revision();
                world.store.compact(revision);
            }
            Fault::NodeLost { lasts } => self.lose_node(*lasts),
            Fault::NoRoom { lasts } => self.fill_up(*lasts),
        }
    }

    fn each(&self, whose: Whose, act: impl Fn(&Replica)) {
        let leader = self.leader();
        let is_meant = |replica: &&Replica| match whose {
            Whose::All => true,
            Whose::Operator(index) => replica.index == index,
            Whose::Leader => Some(replica.index) == leader,
        };
        self.replicas.iter().filter(is_meant).for_each(act);
    }

    fn leader(&self) -> Option<usize> {
        let world = self.shared.lock();
        let lease = world.store.get(&Key::new(Kind::Lease, OWN_NAMESPACE, "lockstep"))?;
        let holder = lease.value["spec"]["holderIdentity"].as_str()?;
        (0..self.replicas.len()).find(|index| identity(*index) == holder)
    }

    /// From here on nothing goes wrong, and nobody does anything.
    fn calm(&self) {
        for replica in &self.replicas {
            replica.way.mend();
            replica.way.link.stall_watches(false);
            replica.thaw();
        }
        // What goes on by itself for ever is stopped.
        let jobs: Vec<Key> = self.shared.lock().store.list(Kind::CronJob, None).map(|job| job.key.clone()).collect();
        for key in jobs {
            let patch = Patch::Merge(json!({"spec": {"suspend": true}}));
            // It may be on its way out.
            let _ = self.shared.write(&setup(), Write::Patch { key, patch, part: Part::Object });
        }
        self.manners.machines.fill(false);
        self.manners.machines.find(LOST_NODE);
    }

    fn lose_node(&self, lasts: Duration) {
        let machines = self.manners.machines.clone();
        machines.lose(LOST_NODE);
        tokio::spawn(async move {
            sleep(lasts).await;
            machines.find(LOST_NODE);
        });
    }

    fn fill_up(&self, lasts: Duration) {
        let machines = self.manners.machines.clone();
        machines.fill(true);
        tokio::spawn(async move {
            sleep(lasts).await;
            machines.fill(false);
        });
    }

    async fn wait_for_quiet(&mut self) -> Result<(), Violation> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            sleep(LOOK).await;
            self.look()?;
            if self.checker.is_quiet(self.shared.now(), QUIET) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// A new operator, which knows nothing but what the objects say, must find nothing to do.
    async fn encore(&mut self) -> Result<(), Violation> {
        for replica in &self.replicas {
            replica.kill(None);
        }
        self.checker.expect_silence();
        let last = Replica::new(
            &self.shared,
            self.replicas.len(),
            &Random::new(self.shared.lock().random.fork("encore").next()),
        );
        tokio::spawn(last.run());
        let begun = Instant::now();
        while begun.elapsed() < ENCORE {
            sleep(LOOK).await;
            self.look()?;
        }
        Ok(())
    }

    fn outcome(mut self, violation: Option<Violation>, playing: &Playing) -> Outcome {
        self.coverage.note_releases(&self.shared);
        // It knows the replicas, which know the world: otherwise neither would ever go.
        self.shared.lock().webhook = None;
        let lasted = self.started.elapsed();
        let at = violation.as_ref().map_or(self.curtain, |violation| violation.at);
        let noticed = Duration::try_from(at.duration_since(self.curtain)).unwrap_or_default();
        let trace = playing.is_traced.then(|| trace::digest(&self.shared));
        Outcome { violation, noticed, trace, coverage: self.coverage, lasted }
    }
}

/// Who prepares the stage, and clears it.
fn setup() -> Writer {
    Writer::User("setup".to_owned())
}

fn stall(replica: &Replica, lasts: Duration) {
    let link = replica.way.link.clone();
    link.stall_watches(true);
    tokio::spawn(async move {
        sleep(lasts).await;
        link.stall_watches(false);
    });
}
