//! How long things usually take: as remembered from this machine, or else as measured on two cores.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::home::Home;

/// In seconds, on two cores with nothing built.
const SHIPPED: [(&str, u64); 12] = [
    ("Kubernetes", 340),
    ("Helm", 110),
    ("CoreDNS", 60),
    ("Argo Rollouts", 210),
    ("Lockstep", 100),
    ("Debian packages", 20),
    ("start the cluster", 12),
    ("install Lockstep", 12),
    ("clippy", 60),
    ("unit tests", 60),
    ("end-to-end tests", 40),
    ("release build", 330),
];
/// A single quick run, because most was built already, must not spoil the memory of a slow one.
const FADES_BY: f64 = 0.7;

/// The usual time of something, by its title or by the things that its title names.
pub(crate) fn of(title: &str) -> Option<Duration> {
    let remembered = remembered().get(title).copied();
    remembered.or_else(|| shipped(title)).map(Duration::from_secs_f64)
}

/// What is known of it without this machine, in seconds.
pub(crate) fn shipped(title: &str) -> Option<f64> {
    let named = SHIPPED.iter().filter(|(name, _)| title.contains(name));
    #[expect(clippy::cast_precision_loss)]
    let total = named.map(|(_, seconds)| *seconds as f64).sum::<f64>();
    (total > 0.0).then_some(total)
}

pub(crate) fn remember(title: &str, took: Duration) {
    let mut times = remembered();
    let before = times.get(title).copied().unwrap_or_default();
    times.insert(title.to_owned(), took.as_secs_f64().max(before * FADES_BY));
    // Only estimates are lost if this fails.
    let _ = file().zip(serde_json::to_string_pretty(&times).ok()).map(|(file, text)| fs::write(file, text));
}

fn remembered() -> BTreeMap<String, f64> {
    let text = file().and_then(|file| fs::read_to_string(file).ok());
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

fn file() -> Option<PathBuf> {
    if cfg!(test) { None } else { Home::locate().ok().map(|home| home.usual_times()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_of_known_things_has_a_usual_time_from_the_start() {
        assert_eq!(of("build Kubernetes v1.36.4 and Lockstep"), Some(Duration::from_secs(440)));
        assert_eq!(of("something else"), None);
    }
}
