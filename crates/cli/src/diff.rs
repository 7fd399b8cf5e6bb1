//! `lockstep diff`: what differs between two versions, key by key. Values of Secrets are never shown.

use std::borrow::Cow;

use anyhow::{Context, Result};
use clap::Args;
use lockstep_api::VersionedConfig;
use lockstep_core::{ConfigKind, ConfigRef};
use serde::Serialize;
use similar::{ChangeTag, TextDiff};

use crate::cluster::Cluster;
use crate::content::{Content, version};
use crate::names::ConfigName;
use crate::output::{BAD, FAINT, Format, GOOD, MOVING, STRONG, View, harmless, paint, print, render};

/// How many unchanged lines are shown around a change.
const CONTEXT: usize = 2;
/// How many characters of a line are shown to people.
const MAX_LINE_LENGTH: usize = 2000;
/// The word for the config as it is right now.
const SOURCE: &str = "source";

#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// NAME, configmap/NAME or secret/NAME
    config: ConfigName,
    /// From this version; the last good one if not given
    from: Option<String>,
    /// To this version; the config as it is now (`source`) if not given
    to: Option<String>,
}

pub(crate) async fn run(cluster: &Cluster, flags: &Flags, format: Format) -> Result<()> {
    let config = &flags.config.0;
    let object = cluster.versioned_config(config).await?;
    let from = read(cluster, &object, flags.from.as_deref().unwrap_or("current")).await?;
    let to = match &flags.to {
        Some(to) => read(cluster, &object, to).await?,
        None => newest(cluster, &object).await?,
    };
    print(&render(&Diff::new(config, &from, &to), format)?)
}

/// A content, and what to call it.
struct Named {
    name: String,
    content: Content,
}

async fn read(cluster: &Cluster, object: &VersionedConfig, name: &str) -> Result<Named> {
    if name == SOURCE {
        return newest(cluster, object).await;
    }
    let kind = object.spec.source.kind.into();
    let version = version(object, name)?;
    let content = cluster.content(kind, &version.object).await?;
    let content = content.with_context(|| format!("the object {} of version {name} is gone", version.object))?;
    Ok(Named { name: version.version.clone(), content })
}

/// The config as it is now, or its newest version if it was deleted.
async fn newest(cluster: &Cluster, object: &VersionedConfig) -> Result<Named> {
    let config = ConfigRef::from(&object.spec.source);
    if let Some(content) = cluster.content(config.kind, &config.name).await? {
        let name = match cluster.version_of(object, &content).await? {
            Some(version) => format!("{} ({SOURCE})", version.version),
            None => SOURCE.to_owned(),
        };
        return Ok(Named { name, content });
    }
    let newest = object.status.as_ref().and_then(|status| status.versions.first());
    let newest = newest.with_context(|| format!("{config} is gone and has no versions"))?;
    let content = cluster.content(config.kind, &newest.object).await?;
    let content =
        content.with_context(|| format!("the object {} of version {} is gone", newest.object, newest.version))?;
    Ok(Named { name: newest.version.clone(), content })
}

#[derive(Debug, Serialize)]
pub(crate) struct Diff {
    config: String,
    from: String,
    to: String,
    keys: Vec<KeyDiff>,
}

#[derive(Debug, Serialize)]
struct KeyDiff {
    key: String,
    change: Change,
    /// None where the value may not or cannot be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    lines: Option<Vec<Line>>,
    #[serde(skip)]
    hidden: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Change {
    Added,
    Removed,
    Changed,
}

#[derive(Debug, Serialize)]
struct Line {
    /// `+`, `-`, a blank, or `…` for what is left out.
    sign: char,
    text: String,
}

impl Diff {
    fn new(config: &ConfigRef, from: &Named, to: &Named) -> Self {
        let mut all: Vec<&String> = from.content.values.keys().chain(to.content.values.keys()).collect();
        all.sort();
        all.dedup();
        Self {
            config: config.to_string(),
            from: from.name.clone(),
            to: to.name.clone(),
            keys: all.into_iter().filter_map(|key| KeyDiff::new(key, &from.content, &to.content)).collect(),
        }
    }
}

impl KeyDiff {
    fn new(key: &str, from: &Content, to: &Content) -> Option<Self> {
        let change = match (from.values.get(key), to.values.get(key)) {
            (None, Some(_)) => Change::Added,
            (Some(_), None) => Change::Removed,
            (old, new) if old == new => return None,
            _ => Change::Changed,
        };
        let text = |content: &Content| match content.values.get(key) {
            Some(_) => content.text(key).map(str::to_owned),
            None => Some(String::new()),
        };
        let (lines, hidden) = match (from.kind, text(from), text(to)) {
            (ConfigKind::Secret, ..) => (None, "values of Secrets are not shown"),
            (ConfigKind::ConfigMap, Some(old), Some(new)) => (Some(lines(&old, &new)), ""),
            _ => (None, "binary"),
        };
        Some(Self { key: key.to_owned(), change, lines, hidden })
    }
}

fn lines(old: &str, new: &str) -> Vec<Line> {
    let diff = TextDiff::from_lines(old, new);
    let mut lines = Vec::new();
    for (index, group) in diff.grouped_ops(CONTEXT).iter().enumerate() {
        if index > 0 {
            lines.push(Line { sign: '…', text: String::new() });
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let sign = match change.tag() {
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
                ChangeTag::Equal => ' ',
            };
            lines.push(Line { sign, text: change.value().trim_end_matches('\n').to_owned() });
        }
    }
    lines
}

/// A line as people see it.
fn shown(line: &str) -> Cow<'_, str> {
    let left_out = line.chars().count().saturating_sub(MAX_LINE_LENGTH);
    if left_out == 0 {
        return harmless(line);
    }
    let start: String = line.chars().take(MAX_LINE_LENGTH).collect();
    Cow::Owned(format!("{}… ({left_out} more characters)", harmless(&start)))
}

impl View for Diff {
    fn text(&self, _: bool) -> String {
        let title = format!("{} {} → {}", paint(&self.config, STRONG), harmless(&self.from), harmless(&self.to));
        if self.keys.is_empty() {
            return format!("{title}: no difference\n");
        }
        let mut text = format!("{title}\n");
        for KeyDiff { key, change, lines, hidden } in &self.keys {
            let (word, style) = match change {
                Change::Added => ("added", GOOD),
                Change::Removed => ("removed", BAD),
                Change::Changed => ("changed", MOVING),
            };
            let note = if hidden.is_empty() { String::new() } else { format!(" ({hidden})") };
            text += &format!("\n{key}: {}{}\n", paint(word, style), paint(&note, FAINT));
            for Line { sign, text: line } in lines.iter().flatten() {
                let style = match sign {
                    '+' => GOOD,
                    '-' => BAD,
                    _ => FAINT,
                };
                text += &format!("  {}\n", paint(format!("{sign} {}", shown(line)).trim_end(), style));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::content::config_map;
    use crate::output::plain;

    fn named(name: &str, content: Content) -> Named {
        Named { name: name.to_owned(), content }
    }

    #[test]
    fn keys_and_lines() {
        let old = "timeout: 5\nretries: 3\na\nb\nc\nd\ne\nlog: info\n";
        let new = "timeout: 5\nretries: 5\na\nb\nc\nd\ne\nlog: debug\n";
        let from = named("1.1.0", config_map(&[("app.yaml", old), ("GONE", "x"), ("SAME", "y")]));
        let to = named("r3 (source)", config_map(&[("app.yaml", new), ("NEW", "1"), ("SAME", "y")]));
        let view = Diff::new(&ConfigRef::new(ConfigKind::ConfigMap, "app"), &from, &to);
        insta::assert_snapshot!("text", plain(&view.text(false)));
        insta::assert_snapshot!("json", render(&view, Format::Json).unwrap());
    }

    #[test]
    fn no_value_of_a_secret_is_shown() {
        let secret = |value: &str| {
            Content::of_manifest(ConfigKind::Secret, &json!({"stringData": {"password": value}})).unwrap()
        };
        let (from, to) = (named("1", secret("hunter2")), named("2", secret("correct-horse")));
        let view = Diff::new(&ConfigRef::new(ConfigKind::Secret, "db"), &from, &to);
        let shown = view.text(true) + &render(&view, Format::Json).unwrap() + &render(&view, Format::Yaml).unwrap();
        assert!(!shown.contains("hunter2") && !shown.contains("correct-horse"), "{shown}");
        assert!(shown.contains("password"), "{shown}");
    }

    #[test]
    fn a_long_line_is_cut_for_people_and_whole_for_programs() {
        let long = "a".repeat(MAX_LINE_LENGTH) + "bcd";
        let (from, to) = (named("1", config_map(&[])), named("2", config_map(&[("k", &long)])));
        let view = Diff::new(&ConfigRef::new(ConfigKind::ConfigMap, "app"), &from, &to);
        let text = plain(&view.text(false));
        assert!(text.ends_with("a… (3 more characters)\n") && !text.contains("bcd"), "{text}");
        assert!(render(&view, Format::Json).unwrap().contains(&long));
        assert_eq!(shown(&long[..MAX_LINE_LENGTH]), long[..MAX_LINE_LENGTH]);
    }

    #[test]
    fn a_value_does_not_steer_the_terminal() {
        let (from, to) = (config_map(&[("k", "a\r\n")]), config_map(&[("k", "\u{1b}[31ma\u{202e}\n")]));
        let view = Diff::new(&ConfigRef::new(ConfigKind::ConfigMap, "app"), &named("1", from), &named("2", to));
        let text = plain(&view.text(false));
        assert!(text.contains(r"- a\r") && text.contains(r"+ \u{1b}[31ma\u{202e}"), "{text}");
    }

    #[test]
    fn equal_contents_have_no_difference() {
        let one = || named("1", config_map(&[("a", "b")]));
        let view = Diff::new(&ConfigRef::new(ConfigKind::ConfigMap, "app"), &one(), &one());
        assert_eq!(plain(&view.text(false)), "configmap/app 1 → 1: no difference\n");
    }
}
