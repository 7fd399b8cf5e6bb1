//! The scene of a schedule: what is in the cluster when the curtain rises. All of it is drawn from the seed.

mod manifests;
mod policies;

use crate::kinds::{Key, Kind};
use crate::random::Random;

pub use manifests::{Behavior, Content, base64};
pub use policies::{Policy, spec as policy_spec};

/// The people of a schedule: changes carry their names.
pub const PEOPLE: [&str; 3] = ["ada", "grace", "linus"];

const CONFIG_NAMES: [&str; 8] = ["app", "db", "flags", "limits", "mail", "cache", "theme", "keys"];
const CONSUMER_NAMES: [&str; 12] =
    ["web", "api", "cart", "search", "batch", "agent", "store", "front", "queue", "cron", "edge", "bot"];

#[derive(Debug, Clone)]
pub struct Scene {
    pub namespaces: Vec<Namespace>,
    pub policies: Vec<Policy>,
    pub configs: Vec<Config>,
    pub consumers: Vec<Consumer>,
    /// How many replicas of the operator there are.
    pub operators: usize,
    /// Whether the operators are there before all else; otherwise they adopt what runs already.
    pub operators_come_first: bool,
}

#[derive(Debug, Clone)]
pub struct Namespace {
    pub name: String,
    /// Whether all of its configs opt in by its label.
    pub is_versioned: bool,
}

/// A ConfigMap or Secret, as a person writes it.
#[derive(Debug, Clone)]
pub struct Config {
    pub key: Key,
    pub is_labelled: bool,
    pub policy: Option<String>,
    pub retain: Option<u32>,
    /// What it holds at first.
    pub content: Content,
}

/// A workload, or a pod without one.
#[derive(Debug, Clone)]
pub struct Consumer {
    pub key: Key,
    pub replicas: u32,
    pub wave: Option<i32>,
    /// Whether it opts in all that it references.
    pub is_auto: bool,
    pub uses: Vec<Use>,
    pub min_ready: u32,
    pub style: Style,
}

/// How a consumer reads one config, by its place in the scene.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    pub config: usize,
    pub way: Way,
    pub is_optional: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    EnvFrom,
    /// One key alone, and the behavior.
    Keys,
    Volume,
    Projected,
}

/// What is special about a workload's own strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Usual,
    /// All pods at once: a Deployment's Recreate, a StatefulSet's Parallel.
    AtOnce,
    /// Pods are replaced when somebody deletes them.
    ByHand,
    /// A Rollout whose canary waits for a person.
    Patient,
}

impl Scene {
    pub fn draw(random: &Random) -> Self {
        let mut draw = random.fork("scene");
        let namespaces = namespaces(&mut draw);
        let policies = policies::draw(&namespaces, &mut random.fork("policies"));
        let configs = configs(&namespaces, &policies, &mut random.fork("configs"));
        let consumers = consumers(&namespaces, &configs, &mut random.fork("consumers"));
        let operators = 2 + usize::from(draw.chance(40));
        Self { namespaces, policies, configs, consumers, operators, operators_come_first: draw.chance(50) }
    }

    /// What there is, line by line.
    pub fn tell(&self) -> String {
        let mut text = format!("{} operators\n", self.operators);
        for namespace in self.namespaces.iter().filter(|namespace| namespace.is_versioned) {
            text += &format!("Namespace {} opts its configs in\n", namespace.name);
        }
        for policy in &self.policies {
            text += &format!("ReleasePolicy {}/{}: {}\n", policy.namespace, policy.name, policy.spec);
        }
        for config in &self.configs {
            let Config { key, is_labelled, policy, retain, .. } = config;
            text += &format!("{key}: labelled {is_labelled}, policy {policy:?}, retain {retain:?}\n");
        }
        for consumer in &self.consumers {
            let Consumer { key, replicas, wave, is_auto, min_ready, style, .. } = consumer;
            let uses = self.used_by(consumer).map(|(used, config)| format!("{} by {:?}", config.key.name, used.way));
            let uses = uses.collect::<Vec<_>>().join(", ");
            text += &format!(
                "{key}: {replicas} replicas, wave {wave:?}, auto {is_auto}, minReady {min_ready}, {style:?}; reads {uses}\n"
            );
        }
        text
    }

    /// The configs that a consumer reads.
    pub fn used_by<'a>(&'a self, consumer: &'a Consumer) -> impl Iterator<Item = (&'a Use, &'a Config)> {
        consumer.uses.iter().map(|used| (used, &self.configs[used.config]))
    }
}

fn namespaces(draw: &mut Random) -> Vec<Namespace> {
    let names = if draw.chance(30) { &["shop", "depot"][..] } else { &["shop"] };
    names.iter().map(|name| Namespace { name: (*name).to_owned(), is_versioned: draw.chance(15) }).collect()
}

fn configs(namespaces: &[Namespace], policies: &[Policy], draw: &mut Random) -> Vec<Config> {
    let count = 5 + usize::try_from(draw.below(3)).unwrap_or(0);
    let make = |index: usize| {
        // The first namespace has the most: configs meet there.
        let namespace = if index < 4 || namespaces.len() == 1 { &namespaces[0] } else { &namespaces[1] };
        let kind = if draw.chance(30) { Kind::Secret } else { Kind::ConfigMap };
        let here: Vec<&Policy> = policies.iter().filter(|policy| policy.namespace == namespace.name).collect();
        let named = here.iter().filter(|policy| policy.name != lockstep_core::names::DEFAULT_POLICY);
        let named: Vec<&&Policy> = named.collect();
        let policy = if draw.chance(40) { draw.pick(&named).map(|policy| policy.name.clone()) } else { None };
        Config {
            key: Key::new(kind, &namespace.name, CONFIG_NAMES[index % CONFIG_NAMES.len()]),
            is_labelled: !namespace.is_versioned && draw.chance(90),
            policy,
            retain: draw.chance(30).then(|| u32::try_from(draw.below(3)).unwrap_or(0)),
            content: Content { value: 1, behavior: Behavior::Healthy, other: 0 },
        }
    };
    (0..count).map(make).collect()
}

fn consumers(namespaces: &[Namespace], configs: &[Config], draw: &mut Random) -> Vec<Consumer> {
    let count = 8 + usize::try_from(draw.below(4)).unwrap_or(0);
    let make = |index: usize| {
        let namespace = if index < 6 || namespaces.len() == 1 { &namespaces[0] } else { &namespaces[1] };
        let kind = kind(index, draw);
        let uses = uses(&namespace.name, configs, draw);
        Consumer {
            key: Key::new(kind, &namespace.name, CONSUMER_NAMES[index % CONSUMER_NAMES.len()]),
            replicas: 1 + u32::try_from(draw.below(4)).unwrap_or(0),
            wave: draw.chance(20).then(|| i32::try_from(draw.below(3)).unwrap_or(0)),
            is_auto: draw.chance(10),
            uses,
            min_ready: if draw.chance(15) { 1 + u32::try_from(draw.below(4)).unwrap_or(0) } else { 0 },
            style: style(kind, draw),
        }
    };
    (0..count).map(make).collect()
}

/// Most are Deployments, as everywhere; each schedule has others, too.
fn kind(index: usize, draw: &mut Random) -> Kind {
    match index {
        0 | 1 => Kind::Deployment,
        2 => Kind::StatefulSet,
        3 if draw.chance(60) => Kind::Rollout,
        4 if draw.chance(60) => Kind::DaemonSet,
        5 if draw.chance(50) => Kind::CronJob,
        _ => match draw.below(20) {
            0 => Kind::ReplicaSet,
            1 => Kind::ReplicationController,
            2 => Kind::Job,
            3 => Kind::Pod,
            4 | 5 => Kind::StatefulSet,
            6 | 7 => Kind::Rollout,
            8 => Kind::DaemonSet,
            9 => Kind::CronJob,
            _ => Kind::Deployment,
        },
    }
}

fn style(kind: Kind, draw: &mut Random) -> Style {
    match kind {
        Kind::Deployment if draw.chance(15) => Style::AtOnce,
        Kind::StatefulSet if draw.chance(30) => Style::AtOnce,
        Kind::StatefulSet | Kind::DaemonSet if draw.chance(12) => Style::ByHand,
        Kind::Rollout if draw.chance(35) => Style::Patient,
        _ => Style::Usual,
    }
}

fn uses(namespace: &str, configs: &[Config], draw: &mut Random) -> Vec<Use> {
    let mut here: Vec<usize> =
        configs.iter().enumerate().filter(|(_, config)| config.key.namespace == namespace).map(|(at, _)| at).collect();
    let count = 1 + usize::from(draw.chance(55)) + usize::from(draw.chance(20));
    let mut uses = Vec::new();
    for _ in 0..count.min(here.len()) {
        // The first configs are used the most, so that consumers meet in them.
        let place = draw.below(here.len() as u64).min(draw.below(here.len() as u64));
        let config = here.remove(usize::try_from(place).unwrap_or(0));
        let way = match draw.below(10) {
            0..5 => Way::EnvFrom,
            5..7 => Way::Keys,
            7..9 => Way::Volume,
            _ => Way::Projected,
        };
        uses.push(Use { config, way, is_optional: draw.chance(15) });
    }
    uses
}
