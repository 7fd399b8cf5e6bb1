//! A schedule: a scene, and what people do and what goes wrong, each at its time. All of it is drawn from the seed before anything runs,
//! so that a failing one can be made small by leaving entries out.

use std::fmt;
use std::time::Duration;

use crate::faults::{self, Fault};
use crate::random::Random;
use crate::scene::Scene;
use crate::users::{self, Deed};

/// How long the operators have for adopting the scene, before anything happens.
pub const OVERTURE: Duration = Duration::from_secs(20);
/// How many deeds and faults there are at least.
const LEAST_ENTRIES: usize = 100;

#[derive(Debug, Clone)]
pub struct Schedule {
    pub seed: u64,
    pub scene: Scene,
    /// Ordered by time.
    pub entries: Vec<Entry>,
}

#[derive(Debug, Clone)]
pub struct Entry {
    /// When, counted from the end of the overture.
    pub at: Duration,
    pub what: What,
}

#[derive(Debug, Clone)]
pub enum What {
    Deed(Deed),
    Fault(Fault),
}

/// How rough a schedule is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// No faults at all: only what people do.
    Fair,
    /// A few of all sorts.
    Mixed,
    /// One sort, often.
    Gusty,
    /// All sorts, often.
    Stormy,
}

impl Schedule {
    pub fn of(seed: u64) -> Self {
        let random = Random::new(seed);
        let scene = Scene::draw(&random);
        let mut draw = random.fork("schedule");
        let weather = match draw.below(100) {
            0..25 => Weather::Fair,
            25..55 => Weather::Mixed,
            55..75 => Weather::Gusty,
            _ => Weather::Stormy,
        };
        let faults = faults::draw(&scene, weather, &random.fork("faults"));
        let deeds = LEAST_ENTRIES + usize::try_from(draw.below(30)).unwrap_or(0);
        let deeds = users::draw(&scene, deeds.saturating_sub(faults.len()), &random.fork("deeds"));
        let mut entries: Vec<Entry> = deeds.into_iter().chain(faults).collect();
        entries.sort_by_key(|entry| entry.at);
        Self { seed, scene, entries }
    }

    /// When the last entry is.
    pub fn length(&self) -> Duration {
        self.entries.iter().map(|entry| entry.at).max().unwrap_or_default()
    }

    /// The same without the deeds and faults of these names.
    #[must_use]
    pub fn skipping(mut self, names: &[String]) -> Self {
        self.entries.retain(|entry| !names.iter().any(|name| name == entry.name()));
        self
    }

    /// Only some of its entries.
    #[must_use]
    pub fn with(&self, entries: &[usize]) -> Self {
        let entries = entries.iter().filter_map(|index| self.entries.get(*index).cloned()).collect();
        Self { entries, ..self.clone() }
    }
}

impl Entry {
    pub fn name(&self) -> &'static str {
        match &self.what {
            What::Deed(deed) => deed.name(),
            What::Fault(fault) => fault.name(),
        }
    }

    /// What happens, as a sentence without its end.
    pub fn tell(&self, scene: &Scene) -> String {
        match &self.what {
            What::Deed(deed) => deed.tell(scene),
            What::Fault(fault) => fault.tell(),
        }
    }
}

/// `14.2 s`.
pub struct Seconds(pub Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", self.0.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_one_schedule_and_another_seed_another() {
        let told = |seed| {
            let schedule = Schedule::of(seed);
            schedule
                .entries
                .iter()
                .map(|entry| format!("{} {}", Seconds(entry.at), entry.tell(&schedule.scene)))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(7), told(7));
        assert_ne!(told(7), told(8));
    }

    #[test]
    fn each_is_large_enough() {
        for seed in 0..50 {
            let Schedule { scene, entries, .. } = Schedule::of(seed);
            assert!(scene.configs.len() >= 5 && scene.consumers.len() >= 8 && entries.len() >= LEAST_ENTRIES);
            assert!(entries.iter().map(|entry| entry.at).is_sorted());
        }
    }
}
