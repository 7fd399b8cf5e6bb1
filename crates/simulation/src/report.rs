//! What is told of many schedules: how far, how fast, and what they reached.

mod progress;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::Shared;
use crate::kinds::Kind;
use crate::store::Object;

pub use progress::Line;

/// What schedules reached, and how often.
#[derive(Debug, Clone, Default)]
pub struct Coverage {
    pub schedules: u64,
    pub deeds: BTreeMap<&'static str, u64>,
    pub faults: BTreeMap<&'static str, u64>,
    /// From phase to phase of a release.
    pub phases: BTreeMap<(String, String), u64>,
    /// From state to state of a release's consumer.
    pub states: BTreeMap<(String, String), u64>,
    pub changes: u64,
}

impl Coverage {
    pub fn note_deed(&mut self, name: &'static str) {
        *self.deeds.entry(name).or_default() += 1;
    }

    pub fn note_fault(&mut self, name: &'static str) {
        *self.faults.entry(name).or_default() += 1;
    }

    /// What the releases of a schedule went through.
    pub fn note_releases(&mut self, shared: &Shared) {
        let world = shared.lock();
        self.schedules += 1;
        self.changes += world.store.revision();
        for change in world.store.changes_of(Kind::Release, 0) {
            let Some(after) = &change.after else { continue };
            let before = change.before.as_deref();
            let (was, is) = (before.map_or("", phase), phase(after));
            if was != is {
                *self.phases.entry((was.to_owned(), is.to_owned())).or_default() += 1;
            }
            let old: BTreeMap<(String, String), String> = before.map(states).unwrap_or_default();
            for (consumer, state) in states(after) {
                let was = old.get(&consumer).cloned().unwrap_or_default();
                if was != state {
                    *self.states.entry((was, state)).or_default() += 1;
                }
            }
        }
    }

    pub fn add(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.changes += other.changes;
        merge(&mut self.deeds, other.deeds);
        merge(&mut self.faults, other.faults);
        merge(&mut self.phases, other.phases);
        merge(&mut self.states, other.states);
    }

    pub fn table(&self, took: Duration, threads: usize) -> String {
        let per_second = per_second(self.schedules, took);
        let mut text = format!(
            "{} schedules in {:.0} s, {per_second:.1} per second on {threads} threads; {} changes of objects\n",
            self.schedules,
            took.as_secs_f64(),
            self.changes
        );
        text += &section("What people did", self.deeds.iter().map(|(name, count)| ((*name).to_owned(), *count)));
        text += &section("What went wrong", self.faults.iter().map(|(name, count)| ((*name).to_owned(), *count)));
        text += &section("Phases of releases", self.phases.iter().map(arrow));
        text += &section("States of their consumers", self.states.iter().map(arrow));
        text
    }

    pub fn json(&self, took: Duration, threads: usize) -> Value {
        let arrows = |map: &BTreeMap<(String, String), u64>| map.iter().map(arrow).collect::<BTreeMap<_, _>>();
        json!({
            "schedules": self.schedules,
            "seconds": took.as_secs_f64(),
            "threads": threads,
            "perSecond": per_second(self.schedules, took),
            "changes": self.changes,
            "deeds": self.deeds,
            "faults": self.faults,
            "phases": arrows(&self.phases),
            "states": arrows(&self.states),
            "phasesReached": reached(&self.phases),
            "statesReached": reached(&self.states),
        })
    }
}

fn reached(map: &BTreeMap<(String, String), u64>) -> BTreeSet<&str> {
    map.keys().map(|(_, to)| to.as_str()).collect()
}

#[expect(clippy::cast_precision_loss)]
pub fn per_second(count: u64, took: Duration) -> f64 {
    count as f64 / took.as_secs_f64().max(0.001)
}

fn arrow(((from, to), count): (&(String, String), &u64)) -> (String, u64) {
    let from = if from.is_empty() { "·" } else { from };
    (format!("{from} → {to}"), *count)
}

const COLUMN: usize = 34;
const COLUMNS: usize = 3;

fn section(title: &str, rows: impl Iterator<Item = (String, u64)>) -> String {
    let cells: Vec<String> = rows.map(|(name, count)| format!("{count:>8} {name:<COLUMN$}")).collect();
    let lines = cells.chunks(COLUMNS).map(|row| format!("{}\n", row.concat().trim_end()));
    format!("\n{title}\n{}", lines.collect::<String>())
}

fn merge<K: Ord>(into: &mut BTreeMap<K, u64>, from: BTreeMap<K, u64>) {
    for (key, count) in from {
        *into.entry(key).or_default() += count;
    }
}

fn phase(release: &Object) -> &str {
    release.value["status"]["phase"].as_str().unwrap_or("Pending")
}

fn states(release: &Object) -> BTreeMap<(String, String), String> {
    let consumers = release.value["status"]["consumers"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    consumers.map(|consumer| ((text(&consumer["kind"]), text(&consumer["name"])), text(&consumer["state"]))).collect()
}
