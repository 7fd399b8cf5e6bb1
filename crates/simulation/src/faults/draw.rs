//! Which faults a schedule has, and when.

use std::time::Duration;

use super::{Fault, Trouble, Whose};
use crate::kinds::Kind;
use crate::random::Random;
use crate::scene::Scene;
use crate::schedule::{Entry, Weather, What};
use crate::server::{Break, Verb};

/// The times of the faults lie within those of the deeds.
const LONGEST: Duration = Duration::from_secs(170);

pub fn draw(scene: &Scene, weather: Weather, random: &Random) -> Vec<Entry> {
    let mut draw = random.fork("draw");
    let sort = draw.below(SORTS);
    let count = match weather {
        Weather::Fair => 0,
        Weather::Mixed => 4 + draw.below(12),
        Weather::Gusty => 8 + draw.below(16),
        Weather::Stormy => 20 + draw.below(25),
    };
    let mut entries: Vec<Entry> = (0..count)
        .map(|_| {
            let at = draw.between(Duration::ZERO, LONGEST);
            let sort = if weather == Weather::Gusty && draw.chance(80) { sort } else { draw.below(SORTS) };
            Entry { at, what: What::Fault(fault(sort, scene, &mut draw)) }
        })
        .collect();
    if weather == Weather::Stormy || (weather == Weather::Mixed && draw.chance(30)) {
        for operator in 0..scene.operators {
            entries.push(Entry { at: Duration::ZERO, what: What::Fault(offset(operator, &mut draw)) });
        }
    }
    entries
}

/// Clocks of machines differ from the start.
fn offset(operator: usize, draw: &mut Random) -> Fault {
    let milliseconds = i64::try_from(draw.below(10_000)).unwrap_or(0) - 5_000;
    Fault::Jump { whose: Whose::Operator(operator), milliseconds }
}

const SORTS: u64 = 12;

fn fault(sort: u64, scene: &Scene, draw: &mut Random) -> Fault {
    let whose = whose(scene, draw);
    match sort {
        0 => Fault::Rough {
            whose,
            trouble: trouble(draw),
            percent: 5 + u32::try_from(draw.below(40)).unwrap_or(0),
            lasts: seconds(draw, 2, 40),
        },
        1 | 2 => {
            let (verb, kind) = target(draw);
            Fault::Next { whose, verb, kind, trouble: trouble(draw) }
        }
        3 => Fault::Lag { whose, late: seconds(draw, 0, 6), repeated: 10, lasts: seconds(draw, 2, 40) },
        4 => {
            let how = [Break::Closed, Break::Torn, Break::Expired, Break::Failed];
            Fault::BreakWatches { whose, how: draw.pick(&how).copied().unwrap_or(Break::Closed) }
        }
        5 => Fault::StallWatches { whose, lasts: seconds(draw, 1, 40) },
        6 => Fault::Freeze { whose: Whose::Leader, lasts: seconds(draw, 1, 40) },
        7 => Fault::Kill { whose, back_after: seconds(draw, 1, 20) },
        8 | 9 => {
            let (verb, kind) = target(draw);
            Fault::KillAt {
                whose: Whose::Leader,
                verb,
                kind,
                is_done: draw.chance(60),
                back_after: seconds(draw, 1, 20),
            }
        }
        10 => Fault::Jump { whose, milliseconds: i64::try_from(draw.below(60_000)).unwrap_or(0) - 20_000 },
        _ => surroundings(draw),
    }
}

/// What happens to all.
fn surroundings(draw: &mut Random) -> Fault {
    match draw.below(10) {
        0..3 => Fault::Away { lasts: seconds(draw, 1, 90) },
        3..6 => Fault::Compact,
        6..8 => Fault::NodeLost { lasts: seconds(draw, 5, 60) },
        _ => Fault::NoRoom { lasts: seconds(draw, 5, 60) },
    }
}

fn whose(scene: &Scene, draw: &mut Random) -> Whose {
    match draw.below(10) {
        0..6 => Whose::Leader,
        6..9 => Whose::Operator(usize::try_from(draw.below(scene.operators as u64)).unwrap_or(0)),
        _ => Whose::All,
    }
}

fn trouble(draw: &mut Random) -> Trouble {
    let is_done = draw.chance(50);
    match draw.below(10) {
        0 | 1 => Trouble::Slow(draw.between(Duration::from_millis(50), Duration::from_secs(8))),
        2 => Trouble::Conflict,
        3 => Trouble::TooMany,
        4 | 5 => Trouble::Internal { is_done },
        6..9 => Trouble::Broken { is_done },
        _ => Trouble::TimeOut { is_done, after: seconds(draw, 5, 60) },
    }
}

/// The writes on which most depends.
fn target(draw: &mut Random) -> (Verb, Kind) {
    const TARGETS: [(Verb, Kind); 16] = [
        (Verb::Patch, Kind::Release),
        (Verb::Patch, Kind::Release),
        (Verb::Create, Kind::Release),
        (Verb::Patch, Kind::VersionedConfig),
        (Verb::Patch, Kind::VersionedConfig),
        (Verb::Create, Kind::VersionedConfig),
        (Verb::Patch, Kind::Deployment),
        (Verb::Patch, Kind::Deployment),
        (Verb::Patch, Kind::StatefulSet),
        (Verb::Patch, Kind::PinTable),
        (Verb::Create, Kind::PinTable),
        (Verb::Create, Kind::ConfigMap),
        (Verb::Patch, Kind::ConfigMap),
        (Verb::Delete, Kind::ConfigMap),
        (Verb::Get, Kind::ConfigMap),
        (Verb::Replace, Kind::Lease),
    ];
    draw.pick(&TARGETS).copied().unwrap_or((Verb::Patch, Kind::Release))
}

fn seconds(draw: &mut Random, low: u64, high: u64) -> Duration {
    draw.between(Duration::from_secs(low), Duration::from_secs(high))
}
