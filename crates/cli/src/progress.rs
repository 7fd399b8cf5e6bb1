//! Releases and rollouts as they go on: bars on a terminal, lines anywhere else.

use std::collections::HashMap;
use std::io::IsTerminal;

use anyhow::Result;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use lockstep_api::{Release, ReleaseConsumer};
use lockstep_core::health::Rollout;

use crate::output::{Format, harmless, paint, say};
use crate::status::phase_style;

/// Shows releases and rollouts; each look at one is compared with the one before.
pub(crate) struct Progress {
    seen: HashMap<String, Release>,
    /// What was last said of each workload.
    said: HashMap<String, String>,
    show: Show,
}

enum Show {
    Lines,
    /// What is printed in the end is for a program: the way there goes elsewhere.
    Aside,
    Bars {
        all: MultiProgress,
        bars: HashMap<String, ProgressBar>,
    },
}

impl Progress {
    pub(crate) fn new(format: Format) -> Self {
        let is_for_people = matches!(format, Format::Table | Format::Wide);
        let show = if !is_for_people {
            Show::Aside
        } else if std::io::stdout().is_terminal() && std::io::stderr().is_terminal() {
            Show::Bars { all: MultiProgress::new(), bars: HashMap::new() }
        } else {
            Show::Lines
        };
        Self { seen: HashMap::new(), said: HashMap::new(), show }
    }

    pub(crate) fn has_seen(&self, release: &str) -> bool {
        self.seen.contains_key(release)
    }

    pub(crate) fn show(&mut self, release: &Release) -> Result<()> {
        let name = name(release);
        match &mut self.show {
            Show::Lines => news(self.seen.get(&name), release).iter().try_for_each(say)?,
            Show::Aside => news(self.seen.get(&name), release).iter().for_each(|line| anstream::eprintln!("{line}")),
            Show::Bars { all, bars } => draw(all, bars, release),
        }
        self.seen.insert(name, release.clone());
        Ok(())
    }

    /// A workload that rolls out by itself, under the name that people know it by.
    pub(crate) fn show_rollout(&mut self, workload: &str, rollout: &Rollout) -> Result<()> {
        let line = format!("{workload}: {}", how_far(rollout));
        let is_news = self.said.insert(workload.to_owned(), line.clone()).as_ref() != Some(&line);
        match &mut self.show {
            Show::Lines if is_news => say(line)?,
            Show::Aside if is_news => anstream::eprintln!("{line}"),
            Show::Lines | Show::Aside => {}
            Show::Bars { all, bars } => draw_rollout(all, bars, workload, rollout),
        }
        Ok(())
    }

    /// What is drawn stays as it is; lines may follow.
    pub(crate) fn end(&mut self) {
        if let Show::Bars { bars, .. } = &self.show {
            bars.values().for_each(ProgressBar::abandon);
        }
    }
}

fn name(release: &Release) -> String {
    release.metadata.name.clone().unwrap_or_default()
}

/// What changed since the last look, a line each.
fn news(old: Option<&Release>, new: &Release) -> Vec<String> {
    let status = |release: Option<&Release>| release.and_then(|release| release.status.clone()).unwrap_or_default();
    let (before, now) = (status(old), status(Some(new)));
    let mut lines = Vec::new();
    let known = |consumer: &ReleaseConsumer| {
        before.consumers.iter().find(|old| (&old.kind, &old.name) == (&consumer.kind, &consumer.name))
    };
    for consumer in &now.consumers {
        let shown = described(consumer);
        if known(consumer).map(described).as_ref() != Some(&shown) {
            lines.push(format!("{}: {} {}: {shown}", name(new), consumer.kind, consumer.name));
        }
    }
    if old.is_none() || (&before.phase, &before.reason) != (&now.phase, &now.reason) {
        let head = headline(new);
        // The last word is the release's own, the first one, too.
        if old.is_none() { lines.insert(0, head) } else { lines.push(head) }
    }
    lines
}

pub(crate) fn headline(release: &Release) -> String {
    let status = release.status.clone().unwrap_or_default();
    let phase = release.phase().to_string();
    let moves = release.spec.moves.iter();
    let moves: Vec<String> =
        moves.map(|step| format!("{} {} → {}", step.source.name, step.from_version, step.to_version)).collect();
    let reason = if status.reason.is_empty() { String::new() } else { format!(": {}", harmless(&status.reason)) };
    format!("{}: {}: {}{reason}", name(release), moves.join(", "), paint(&phase, phase_style(&phase)))
}

fn described(consumer: &ReleaseConsumer) -> String {
    let ReleaseConsumer { state, desired, updated, ready, failing, unjudged, .. } = consumer;
    let failing = if *failing > 0 { format!(", {failing} failing") } else { String::new() };
    match state.as_str() {
        "Ready" | "StillBroken" if unjudged.is_some() => stands(consumer),
        "Waiting" | "Pinning" | "LeftAlone" | "Gone" | "Restoring" | "Restored" => stands(consumer),
        _ => format!("{}, {updated} of {desired} pods are new, {ready} ready{failing}", stands(consumer)),
    }
}

/// Where a consumer stands, without its pods. Those of one that was not judged say nothing about the new version.
fn stands(consumer: &ReleaseConsumer) -> String {
    match (consumer.state.as_str(), &consumer.unjudged) {
        ("Ready" | "StillBroken", Some(why)) => format!("not judged: {why}"),
        (state, _) => words(state).to_owned(),
    }
}

fn words(state: &str) -> &str {
    match state {
        "Waiting" => "waiting",
        "Pinning" => "about to roll",
        "Rolling" => "rolling",
        "Ready" => "ready",
        "StillBroken" => "as broken as before",
        "LeftAlone" => "left alone: somebody changed its pins meanwhile",
        "Gone" => "gone",
        "Restoring" => "being put back",
        "Restored" => "put back",
        other => other,
    }
}

/// How far a rollout is, in one sentence.
pub(crate) fn how_far(rollout: &Rollout) -> String {
    let Rollout { is_observed, desired, updated, ready, waits_for, .. } = rollout;
    match waits_for {
        _ if !is_observed => "its controller has not seen the change yet".to_owned(),
        Some(what) if !rollout.has_arrived() => format!("it waits for {what}"),
        _ => format!("{updated} of {desired} pods are new, {ready} ready"),
    }
}

const BAR: &str = "  {prefix} {bar:24.green} {pos}/{len} {msg}";
/// Cut where the line ends: what is said in the end is said in full.
const HEAD: &str = "{wide_msg}";

fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style.progress_chars("━╸─"))
}

fn draw_rollout(all: &MultiProgress, bars: &mut HashMap<String, ProgressBar>, workload: &str, rollout: &Rollout) {
    let length = u64::from(rollout.desired.max(1));
    let bar = bars.entry(workload.to_owned()).or_insert_with(|| all.add(styled(ProgressBar::new(length), BAR)));
    bar.set_prefix(workload.to_owned());
    bar.set_length(length);
    // Pods that are ready may be old ones: only those that are new bring it closer.
    bar.set_position(u64::from(rollout.ready.min(rollout.updated)));
    bar.set_message(how_far(rollout));
    bar.tick();
}

fn draw(all: &MultiProgress, bars: &mut HashMap<String, ProgressBar>, release: &Release) {
    let release_name = name(release);
    let head = bars.entry(release_name.clone()).or_insert_with(|| all.add(styled(ProgressBar::new(0), HEAD)));
    // The bars are drawn past the stream that takes colours out.
    let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let headline = headline(release);
    head.set_message(if has_colours { headline } else { anstream::adapter::strip_str(&headline).to_string() });
    head.tick();
    let consumers = release.status.iter().flat_map(|status| &status.consumers);
    let width = consumers.clone().map(|consumer| consumer.kind.len() + consumer.name.len() + 1).max().unwrap_or(0);
    for consumer in consumers {
        let shown = format!("{} {}", consumer.kind, consumer.name);
        let key = format!("{release_name}/{shown}");
        let length = u64::try_from(consumer.desired.max(1)).unwrap_or(1);
        let bar = bars.entry(key).or_insert_with(|| all.add(styled(ProgressBar::new(length), BAR)));
        bar.set_prefix(format!("{shown:<width$}"));
        bar.set_length(length);
        bar.set_position(u64::try_from(consumer.ready).unwrap_or(0));
        let failing = if consumer.failing > 0 { format!(", {} failing", consumer.failing) } else { String::new() };
        bar.set_message(format!("{}{failing}", stands(consumer)));
        bar.tick();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::{baking, consumer, releases};
    use crate::output::plain;

    #[test]
    fn only_what_is_new_is_told() {
        let first = baking();
        let mut second = baking();
        if let Some(status) = &mut second.status {
            status.consumers[1] = serde_json::from_value(consumer("web", "Rolling", 3, 2)).unwrap();
        }
        let mut third = second.clone();
        if let Some(status) = &mut third.status {
            status.phase = "Succeeded".into();
            status.reason = "all consumers run it and are healthy".into();
            status.consumers[1] = serde_json::from_value(consumer("web", "Ready", 3, 3)).unwrap();
        }
        let told = [
            news(None, &first),
            news(Some(&first), &second),
            news(Some(&second), &second),
            news(Some(&second), &third),
        ];
        insta::assert_snapshot!(plain(&told.map(|lines| lines.join("\n")).join("\n--\n")));
    }

    #[test]
    fn who_was_not_judged_says_why() {
        let mut batch: ReleaseConsumer = serde_json::from_value(consumer("batch", "Ready", 0, 0)).unwrap();
        batch.unjudged = Some("it is scaled to zero".into());
        assert_eq!(described(&batch), "not judged: it is scaled to zero");
        let gone = ReleaseConsumer { state: "Gone".into(), ..batch };
        assert_eq!(described(&gone), "gone");
    }

    #[test]
    fn failing_pods_are_counted() {
        let mut release = releases().remove(0);
        if let Some(status) = &mut release.status {
            let mut failing = consumer("web", "Rolling", 1, 0);
            failing["failing"] = json!(1);
            status.consumers = vec![serde_json::from_value(failing).unwrap()];
        }
        assert!(news(None, &release).join("\n").contains("1 failing"));
    }
}
