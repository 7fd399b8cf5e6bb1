//! What the operator tells Prometheus.

use std::time::Duration;

use lockstep_core::release::Phase;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Up to the API server's patience with a webhook.
const ADMISSION_BUCKETS_SECONDS: [f64; 9] = [0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0];

pub struct Metrics {
    registry: Registry,
    versions_created: Counter,
    releases_ended: Family<[(&'static str, &'static str); 1], Counter>,
    consumers_pinned: Counter,
    work_failures: Counter,
    watch_failures: Counter,
    queued_work: Gauge,
    open_releases: Gauge,
    held_configs: Gauge,
    unreadable_objects: Gauge,
    is_leader: Gauge,
    is_synced: Gauge,
    admission_mode: Family<[(&'static str, &'static str); 1], Gauge>,
    admission_requests: Counter,
    admission_refusals: Counter,
    admission_seconds: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("lockstep"),
            versions_created: Counter::default(),
            releases_ended: Family::default(),
            consumers_pinned: Counter::default(),
            work_failures: Counter::default(),
            watch_failures: Counter::default(),
            queued_work: Gauge::default(),
            open_releases: Gauge::default(),
            held_configs: Gauge::default(),
            unreadable_objects: Gauge::default(),
            is_leader: Gauge::default(),
            is_synced: Gauge::default(),
            admission_mode: Family::default(),
            admission_requests: Counter::default(),
            admission_refusals: Counter::default(),
            admission_seconds: Histogram::new(ADMISSION_BUCKETS_SECONDS),
        };
        metrics.register();
        metrics.register_admission();
        // From zero on: an increase from nothing to one would not be seen.
        for phase in Phase::ALL.into_iter().filter(|phase| phase.has_ended()) {
            drop(metrics.releases_ended.get_or_create(&[("phase", phase.name())]));
        }
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("versions_created", "Versions made of changed configs", self.versions_created.clone());
        registry.register("releases_ended", "Releases that ended, and how", self.releases_ended.clone());
        registry.register("consumers_pinned", "Pins written to workloads", self.consumers_pinned.clone());
        registry.register("work_failures", "Work that failed and was tried again", self.work_failures.clone());
        registry.register("watch_failures", "Watches that broke and were started again", self.watch_failures.clone());
        registry.register("queued_work", "Work that waits or is being done", self.queued_work.clone());
        registry.register("open_releases", "Releases that have not ended", self.open_releases.clone());
        let held = "Configs of which a version failed: it is held until the config changes or a person retries";
        registry.register("held_configs", held, self.held_configs.clone());
        let unreadable =
            "Objects that cannot be read: what they concern stands still until they are corrected or deleted";
        registry.register("unreadable_objects", unreadable, self.unreadable_objects.clone());
        registry.register("leader", "Whether this replica does the work", self.is_leader.clone());
        registry.register("synced", "Whether all objects were seen since the start", self.is_synced.clone());
        registry.register("admission_mode", "What brings versions into pods", self.admission_mode.clone());
    }

    /// What a webhook tells. Without one, they stay at zero.
    fn register_admission(&mut self) {
        let registry = &mut self.registry;
        let (requests, refusals) = (self.admission_requests.clone(), self.admission_refusals.clone());
        registry.register("admission_requests", "Requests of the API server", requests);
        registry.register(
            "admission_refusals",
            "Requests of the API server that got no answer; the webhook's failurePolicy decides about those",
            refusals,
        );
        let seconds = self.admission_seconds.clone();
        registry.register("admission_duration_seconds", "How long the API server waited for an answer", seconds);
    }

    pub fn version_created(&self) {
        self.versions_created.inc();
    }

    pub fn release_ended(&self, phase: Phase) {
        self.releases_ended.get_or_create(&[("phase", phase.name())]).inc();
    }

    pub fn pinned(&self, count: usize) {
        self.consumers_pinned.inc_by(count as u64);
    }

    pub fn failed(&self) {
        self.work_failures.inc();
    }

    pub fn watch_failed(&self) {
        self.watch_failures.inc();
    }

    pub fn queued(&self, count: usize) {
        set(&self.queued_work, count);
    }

    pub fn open(&self, releases: usize, held_configs: usize) {
        set(&self.open_releases, releases);
        set(&self.held_configs, held_configs);
    }

    pub fn unreadable(&self, objects: usize) {
        set(&self.unreadable_objects, objects);
    }

    pub fn leads(&self) {
        self.is_leader.set(1);
    }

    pub fn synced(&self) {
        self.is_synced.set(1);
    }

    pub fn admission(&self, mode: &'static str) {
        self.admission_mode.get_or_create(&[("mode", mode)]).set(1);
    }

    pub fn asked(&self, is_answered: bool, duration: Duration) {
        self.admission_requests.inc();
        if !is_answered {
            self.admission_refusals.inc();
        }
        self.admission_seconds.observe(duration.as_secs_f64());
    }

    /// Ready: doing the work with everything seen, or standing by to take it over.
    pub fn is_ready(&self) -> bool {
        self.is_leader.get() == 0 || self.is_synced.get() == 1
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

fn set(gauge: &Gauge, count: usize) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row per metric, from what a scrape shows.
    fn table(text: &str) -> String {
        let mut rows = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) else {
                continue;
            };
            let kind = lines.next().and_then(|line| line.rsplit(' ').next()).unwrap_or_default();
            let sample = lines.peek().copied().unwrap_or_default();
            let labels =
                sample.split_once('{').and_then(|(_, rest)| rest.split_once('=')).map_or("", |(label, _)| label);
            let (suffix, labels) = match kind {
                "counter" => ("_total", labels),
                "histogram" => ("_bucket", "le"),
                _ => ("", labels),
            };
            let labels = if labels.is_empty() { String::new() } else { format!("`{labels}`") };
            rows += &format!("| `{name}{suffix}` | {kind} | {labels} | {} |\n", help.trim_end_matches('.'));
        }
        rows
    }

    #[test]
    fn every_metric_is_in_the_documents() {
        let metrics = Metrics::default();
        metrics.admission("policy");
        metrics.release_ended(lockstep_core::release::Phase::Succeeded);
        lockstep_testing::documents::check_section("docs/operations.md", "metrics", &table(&metrics.text())).unwrap();
    }

    #[test]
    fn the_mode_is_a_label() {
        let metrics = Metrics::default();
        metrics.admission("template");
        let text = metrics.text();
        assert!(text.contains(r#"lockstep_admission_mode{mode="template"} 1"#), "{text}");
    }
    #[test]
    fn the_ends_of_releases_are_counted_from_zero_on() {
        let text = Metrics::default().text();
        for phase in ["Succeeded", "RolledBack", "Failed"] {
            let line = format!("lockstep_releases_ended_total{{phase={phase:?}}} 0");
            assert!(text.contains(&line), "there is no {line} in\n{text}");
        }
        assert!(!text.contains("Progressing"), "{text}");
    }
}
