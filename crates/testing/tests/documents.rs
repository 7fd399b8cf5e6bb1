//! What the documents say, as far as it can be checked without a cluster.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use lockstep_testing::documents::{self, Block, chapters};
use mlua::{Lua, LuaSerdeExt};
use serde_json::{Value, json};

/// What may stand in a fenced block. Anything else might be a command that nobody runs.
const LANGUAGES: [&str; 5] = ["sh", "text", "yaml", "lua", "promql"];

fn blocks(document: &str) -> Result<Vec<Block>> {
    let chapters = chapters(&documents::read(document)?).context(document.to_owned())?;
    Ok(chapters.into_iter().flat_map(|chapter| chapter.blocks).collect())
}

fn for_all(check: impl Fn(&str, &Block) -> Result<()>) {
    for document in documents::names().unwrap() {
        for block in blocks(&document).unwrap() {
            let at = || format!("{document}, line {}", block.line);
            check(&document, &block).with_context(at).unwrap();
        }
    }
}

#[test]
fn every_block_says_what_it_is() {
    for_all(|_, block| {
        ensure!(LANGUAGES.contains(&block.language.as_str()), "{:?} is none of {LANGUAGES:?}", block.language);
        Ok(())
    });
}

#[test]
fn manifests_can_be_read() {
    for_all(|_, block| {
        if block.language == "yaml" {
            let documents: Vec<Value> = serde_saphyr::from_multiple(&block.text)?;
            ensure!(documents.iter().all(Value::is_object), "it holds something that is no object");
        }
        Ok(())
    });
}

#[test]
fn every_make_target_exists() {
    let makefile = documents::read("Makefile").unwrap();
    for_all(|_, block| {
        let mut words =
            block.text.split(|c: char| c.is_whitespace() || "\"()$".contains(c)).filter(|_| block.language == "sh");
        while words.any(|word| word == "make") {
            let target = words.find(|word| !word.starts_with('-')).context("make what?")?;
            ensure!(makefile.contains(&format!("\n{target}: ")), "there is no target {target}");
        }
        Ok(())
    });
}

#[test]
fn every_link_leads_somewhere() {
    let mut documents = documents::names().unwrap();
    documents.extend(["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(str::to_owned));
    for document in documents {
        let text = documents::read(&document).unwrap();
        let folder = document.rsplit_once('/').map_or("", |(folder, _)| folder);
        for target in links(&text) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() {
                document.clone()
            } else {
                format!("{folder}/{file}").trim_start_matches('/').to_owned()
            };
            assert!(documents::path(&file).exists(), "{document}: {target} leads nowhere");
            if !anchor.is_empty() {
                let linked = documents::read(&file).unwrap();
                assert!(anchors(&linked).contains(anchor), "{document}: {target}: there is no such heading");
            }
        }
    }
}

/// The links of a document that stay within the repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let markdown = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let pictures = text.split("src=\"").skip(1).filter_map(|rest| rest.split('"').next());
    markdown.chain(pictures).filter(|target| !target.starts_with("http"))
}

/// Headings as GitHub links to them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: &char| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_';
    headings.map(|heading| heading.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
}

/// Whoever is woken by an alert looks for its name.
#[test]
fn every_alert_is_explained() {
    let text = documents::read("docs/operations.md").unwrap();
    let alerts = documents::read("charts/lockstep/files/alerts.yaml").unwrap_or_default();
    for name in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(text.contains(&format!("| `{name}` |")), "docs/operations.md does not explain {name}");
    }
}

/// Argo CD's health checks, run with objects as the operator writes them.
#[test]
fn argo_cd_sees_the_health_of_releases_and_configs() {
    let blocks = blocks("docs/gitops.md").unwrap();
    let script = |kind: &str| {
        let found = blocks.iter().find(|block| block.language == "yaml" && block.text.contains("health.lua"));
        let manifest: Value = serde_saphyr::from_str(&found.expect("no health checks").text).unwrap();
        let key = format!("resource.customizations.health.lockstep.dev_{kind}");
        manifest["data"][&key].as_str().unwrap_or_else(|| panic!("no {key}")).to_owned()
    };
    let release = |phase: &str| json!({"status": {"phase": phase, "reason": "because"}});
    let config = |status: &str, reason: &str| {
        let condition = json!({"type": "Ready", "status": status, "reason": reason, "message": "because"});
        json!({"status": {"conditions": [condition]}})
    };
    for (kind, object, expected) in [
        ("Release", json!({}), "Progressing"),
        ("Release", release("Pending"), "Progressing"),
        ("Release", release("RollingBack"), "Progressing"),
        ("Release", release("Paused"), "Suspended"),
        ("Release", release("Succeeded"), "Healthy"),
        ("Release", release("Superseded"), "Healthy"),
        ("Release", release("RolledBack"), "Degraded"),
        ("Release", release("Rejected"), "Degraded"),
        ("Release", release("Aborted"), "Degraded"),
        ("Release", release("Failed"), "Degraded"),
        ("VersionedConfig", json!({}), "Progressing"),
        ("VersionedConfig", config("True", "Released"), "Healthy"),
        ("VersionedConfig", config("False", "Releasing"), "Progressing"),
        ("VersionedConfig", config("False", "Held"), "Degraded"),
        ("VersionedConfig", config("False", "Refused"), "Degraded"),
        ("VersionedConfig", config("False", "NoVersion"), "Degraded"),
        ("VersionedConfig", config("False", "UnknownVersion"), "Degraded"),
    ] {
        let health = judge(&script(kind), &object).unwrap_or_else(|error| panic!("{kind} {object}: {error}"));
        assert_eq!(health["status"], expected, "{kind} {object}");
        assert!(health["message"].is_string(), "{kind} {object}: it says nothing");
    }
}

fn judge(script: &str, object: &Value) -> mlua::Result<Value> {
    let lua = Lua::new();
    lua.globals().set("obj", lua.to_value(object)?)?;
    let health: mlua::Value = lua.load(script).eval()?;
    lua.from_value(health)
}
