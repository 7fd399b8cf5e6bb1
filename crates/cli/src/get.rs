//! `lockstep get`: what a version holds.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use clap::Args;
use lockstep_api::VersionSummary;
use lockstep_core::{ConfigKind, ConfigRef};
use serde::Serialize;

use crate::cluster::Cluster;
use crate::content::{Content, version};
use crate::names::ConfigName;
use crate::output::{FAINT, Format, STRONG, View, harmless, paint, print, render};

/// Stands for a value that is not shown.
const MASK: &str = "********";

#[derive(Debug, Args)]
pub(crate) struct Flags {
    /// NAME, configmap/NAME or secret/NAME
    config: ConfigName,
    /// The version's name; the last good one if not given
    #[arg(default_value = "current", hide_default_value = true)]
    version: String,
    /// Show the values of a Secret
    #[arg(long)]
    reveal: bool,
}

pub(crate) async fn run(cluster: &Cluster, flags: &Flags, format: Format) -> Result<()> {
    let config = &flags.config.0;
    let object = cluster.versioned_config(config).await?;
    let version = version(&object, &flags.version)?;
    let content = cluster.content(config.kind, &version.object).await?;
    let content = content
        .with_context(|| format!("{config} version {}: its object {} is gone", version.version, version.object))?;
    print(&render(&Shown::new(config, version, &content, flags.reveal), format)?)
}

#[derive(Serialize)]
pub(crate) struct Shown {
    config: String,
    version: String,
    object: String,
    data: BTreeMap<String, String>,
    #[serde(skip)]
    is_masked: bool,
}

impl Shown {
    fn new(config: &ConfigRef, version: &VersionSummary, content: &Content, reveal: bool) -> Self {
        let is_masked = config.kind == ConfigKind::Secret && !reveal;
        let value = |key: &String| match content.text(key) {
            _ if is_masked => MASK.to_owned(),
            Some(text) => text.to_owned(),
            None => format!("({} bytes, binary)", content.values[key].len()),
        };
        Self {
            config: config.to_string(),
            version: version.version.clone(),
            object: version.object.clone(),
            data: content.values.keys().map(|key| (key.clone(), value(key))).collect(),
            is_masked,
        }
    }
}

impl View for Shown {
    fn text(&self, _: bool) -> String {
        let Self { config, version, object, .. } = self;
        let mut text = format!("{} {version} {}\n", paint(config, STRONG), paint(&format!("({object})"), FAINT));
        for (key, value) in &self.data {
            if value.contains('\n') {
                let lines: String = value.lines().map(|line| format!("  {}\n", harmless(line))).collect();
                text += &format!("{key}: |\n{lines}");
            } else {
                text += &format!("{key}: {}\n", harmless(value));
            }
        }
        if self.is_masked {
            text += &format!("{}\n", paint("values are hidden: show them with --reveal", FAINT));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::content::config_map;
    use crate::fixtures::moving;
    use crate::output::plain;

    #[test]
    fn a_version() {
        let content = config_map(&[("app.yaml", "a: 1\nb: 2\n"), ("COLOR", "blue")]);
        let object = moving();
        let version = version(&object, "r3").unwrap();
        let view = Shown::new(&ConfigRef::new(ConfigKind::ConfigMap, "app"), version, &content, false);
        insta::assert_snapshot!(plain(&view.text(false)));
    }

    #[test]
    fn a_value_does_not_steer_the_terminal() {
        let content = config_map(&[("a", "\u{1b}[2J"), ("b", "1\n\u{202e}2\n")]);
        let object = moving();
        let config = ConfigRef::new(ConfigKind::ConfigMap, "app");
        let view = Shown::new(&config, version(&object, "r3").unwrap(), &content, false);
        let text = plain(&view.text(false));
        assert!(text.contains(r"a: \u{1b}[2J") && text.contains("  1\n  \\u{202e}2\n"), "{text}");
    }

    #[test]
    fn a_secret_is_masked_unless_asked() {
        let content = Content::of_manifest(ConfigKind::Secret, &json!({"stringData": {"p": "hunter2"}})).unwrap();
        let object = moving();
        let (config, version) = (ConfigRef::new(ConfigKind::Secret, "db"), version(&object, "r3").unwrap());
        let shown = |reveal| {
            let view = Shown::new(&config, version, &content, reveal);
            view.text(false) + &render(&view, Format::Json).unwrap()
        };
        assert!(!shown(false).contains("hunter2"));
        assert!(shown(true).contains("hunter2"));
    }
}
