//! Which deeds a schedule has, and when.

use std::time::Duration;

use super::{Act, Deed, Editing};
use crate::kinds::Kind;
use crate::random::Random;
use crate::scene::{Behavior, Content, PEOPLE, Scene};
use crate::schedule::{Entry, What};

/// So many deeds, with the time between them that people take: sometimes none at all.
pub fn draw(scene: &Scene, count: usize, random: &Random) -> Vec<Entry> {
    let (mut times, mut acts) = (random.fork("times"), random.fork("acts"));
    // Some people are busier than others: each schedule has its favourites.
    let style = Style::draw(&mut random.fork("style"));
    let mut at = Duration::ZERO;
    let mut entries = Vec::new();
    while entries.len() < count {
        at += gap(&mut times);
        let by = usize::try_from(acts.below(PEOPLE.len() as u64)).unwrap_or(0);
        let act = act(scene, &style, u32::try_from(entries.len()).unwrap_or(0), &mut acts);
        push(&mut entries, at, Deed { by, act }, scene, &mut times);
    }
    entries
}

/// What is deleted is mostly created again: a schedule in which nothing is left proves nothing.
fn push(entries: &mut Vec<Entry>, at: Duration, deed: Deed, scene: &Scene, times: &mut Random) {
    let again = match &deed.act {
        Act::DeleteConfig { config } => {
            Some(Act::CreateConfig { config: *config, content: scene.configs[*config].content })
        }
        Act::OptOut { config, .. } => Some(Act::OptIn { config: *config }),
        Act::DeleteConsumer { consumer } => Some(Act::CreateConsumer { consumer: *consumer }),
        Act::DeletePolicy { policy } => {
            Some(Act::WritePolicy { policy: *policy, spec: scene.policies[*policy].spec.clone() })
        }
        Act::Pause { config } => Some(Act::Resume { config: *config }),
        Act::DeleteNamespace { namespace } => Some(Act::CreateNamespace { namespace: *namespace }),
        _ => None,
    };
    let by = deed.by;
    entries.push(Entry { at, what: What::Deed(deed) });
    if let Some(act) = again.filter(|_| times.chance(85)) {
        let later = at + times.between(Duration::from_millis(200), Duration::from_secs(45));
        entries.push(Entry { at: later, what: What::Deed(Deed { by, act }) });
    }
}

fn gap(times: &mut Random) -> Duration {
    match times.below(100) {
        0..25 => times.between(Duration::from_millis(1), Duration::from_millis(60)),
        25..60 => times.between(Duration::from_millis(100), Duration::from_millis(1500)),
        60..92 => times.between(Duration::from_millis(1500), Duration::from_secs(4)),
        _ => times.between(Duration::from_secs(4), Duration::from_secs(15)),
    }
}

/// What a schedule has more of than others.
struct Style {
    /// Of a hundred edits, how many make pods fail.
    bad: u32,
    /// Whether the rarer and rougher deeds come often.
    is_rough: bool,
    /// Whether all edits go to few configs.
    is_focused: bool,
}

impl Style {
    fn draw(random: &mut Random) -> Self {
        let bad = [0, 10, 25, 50][usize::try_from(random.below(4)).unwrap_or(0)];
        Self { bad, is_rough: random.chance(40), is_focused: random.chance(40) }
    }
}

fn act(scene: &Scene, style: &Style, number: u32, draw: &mut Random) -> Act {
    let config = |draw: &mut Random| {
        let count = if style.is_focused { 2 } else { scene.configs.len() as u64 };
        usize::try_from(draw.below(count)).unwrap_or(0)
    };
    let consumer = |draw: &mut Random| usize::try_from(draw.below(scene.consumers.len() as u64)).unwrap_or(0);
    let image = number + 2;
    let rough = if style.is_rough { 12 } else { 3 };
    match draw.below(100 + rough) {
        0..30 => {
            let config = config(draw);
            Act::Edit { config, content: content(style, draw), how: editing(draw) }
        }
        30..34 => Act::TakeBack { config: config(draw) },
        34..40 => Act::Code { consumer: consumer(draw), image },
        40..47 => {
            let consumer = consumer(draw);
            let used = scene.consumers[consumer].uses.first().map_or(0, |used| used.config);
            let content = content(style, draw);
            Act::Together { config: used, content, consumer, image, gap_ms: draw.below(60) }
        }
        47..49 => Act::Apply { consumer: consumer(draw) },
        49..52 => {
            let image = draw.chance(50).then_some(image);
            Act::Replace { consumer: consumer(draw), knows_object: draw.chance(40), image }
        }
        52..54 => Act::Force { consumer: consumer(draw) },
        54..58 => Act::Undo { consumer: consumer(draw), back: 1 + usize::try_from(draw.below(2)).unwrap_or(0) },
        58..63 => Act::Scale { consumer: consumer(draw), replicas: u32::try_from(draw.below(6)).unwrap_or(0) },
        63..66 => Act::Restart { consumer: consumer(draw) },
        66..68 => Act::Strategy { consumer: consumer(draw) },
        68..69 => Act::MinReady { consumer: consumer(draw), seconds: u32::try_from(draw.below(5)).unwrap_or(0) },
        69..71 => Act::DeletePods { consumer: consumer(draw) },
        71..73 => Act::DeleteConsumer { consumer: consumer(draw) },
        73..75 => Act::Reference { consumer: consumer(draw), image },
        75..77 => Act::Pause { config: config(draw) },
        77..80 => Act::Promote { config: config(draw) },
        80..83 => Act::Abort { config: config(draw) },
        83..86 => Act::Retry { config: config(draw) },
        86..89 => Act::Rollback { config: config(draw), back: usize::try_from(draw.below(2)).unwrap_or(0) },
        89..91 => Act::Follow { config: config(draw) },
        91..94 => rollout(scene, draw).unwrap_or(Act::Promote { config: config(draw) }),
        94..96 => Act::DeleteConfig { config: config(draw) },
        96..97 => {
            let config = config(draw);
            Act::ForceConfig { config, content: content(style, draw) }
        }
        97..98 => Act::OptOut { config: config(draw), by_ignoring: draw.chance(30) },
        98..99 => {
            let config = config(draw);
            let policy = draw.pick(&[None, Some("careful"), Some("loose"), Some("missing")]).copied().flatten();
            Act::Choose { config, policy: policy.map(str::to_owned) }
        }
        99..100 => write_policy(scene, draw),
        _ => rarely(scene, config(draw), draw),
    }
}

/// What people do once in a while, and should not.
fn rarely(scene: &Scene, config: usize, draw: &mut Random) -> Act {
    match draw.below(10) {
        0..3 => Act::DeleteVersionedConfig { config },
        3..6 => Act::DeleteRelease { config },
        6..8 => Act::DeletePolicy { policy: usize::try_from(draw.below(scene.policies.len() as u64)).unwrap_or(0) },
        8 => write_policy(scene, draw),
        _ => {
            Act::DeleteNamespace { namespace: usize::try_from(draw.below(scene.namespaces.len() as u64)).unwrap_or(0) }
        }
    }
}

fn write_policy(scene: &Scene, draw: &mut Random) -> Act {
    let policy = usize::try_from(draw.below(scene.policies.len() as u64)).unwrap_or(0);
    let spec = crate::scene::policy_spec(&scene.policies[policy].name, draw);
    Act::WritePolicy { policy, spec }
}

fn rollout(scene: &Scene, draw: &mut Random) -> Option<Act> {
    let rollouts: Vec<usize> = scene
        .consumers
        .iter()
        .enumerate()
        .filter(|(_, consumer)| consumer.key.kind == Kind::Rollout)
        .map(|(index, _)| index)
        .collect();
    let consumer = *draw.pick(&rollouts)?;
    Some(match draw.below(6) {
        0 => Act::ArgoAbort { consumer },
        1 => Act::ArgoRetry { consumer },
        _ => Act::ArgoPromote { consumer },
    })
}

/// From few values, so that contents come again.
fn content(style: &Style, draw: &mut Random) -> Content {
    let behavior = if draw.chance(style.bad) {
        match draw.below(10) {
            0..4 => Behavior::Crash,
            4..6 => Behavior::NeverReady,
            6..8 => Behavior::CrashAfter(2 + u32::try_from(draw.below(10)).unwrap_or(0)),
            _ => Behavior::Late(3 + u32::try_from(draw.below(12)).unwrap_or(0)),
        }
    } else if draw.chance(8) {
        Behavior::Late(1 + u32::try_from(draw.below(5)).unwrap_or(0))
    } else {
        Behavior::Healthy
    };
    let other = if draw.chance(15) { 1 + u32::try_from(draw.below(3)).unwrap_or(0) } else { 0 };
    Content { value: 1 + u32::try_from(draw.below(12)).unwrap_or(0), behavior, other }
}

fn editing(draw: &mut Random) -> Editing {
    match draw.below(100) {
        0..75 => Editing::Patch,
        75..90 => Editing::Named {
            version: draw.chance(60).then(|| format!("1.{}.0", 1 + draw.below(20))),
            reason: draw.chance(50).then(|| format!("ticket {}", 1 + draw.below(20))),
        },
        _ => Editing::Replace,
    }
}
