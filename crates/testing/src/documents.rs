//! The project's documents as tests read them: commands, manifests and what they are said to answer.
//!
//! What a reader sees is run. Comments in the Markdown, which a reader does not see, say with what:
//!
//! ```text
//! <!-- test: fresh demo -->           a new namespace for what follows: `empty`, `shop` or `demo`
//! <!-- test: not run: REASON -->      the next block is only read; without a reason the test fails
//! <!-- test: exit 2 -->               the next block ends with this code, and not with 0
//! <!-- test: first COMMAND -->        runs before the next block
//! <!-- test: file app.yaml -->        the next block is also written to this file
//! <!-- test: with --dry-run=server --> appended to the next block, a single command
//! ```
//!
//! A block of `sh` is run; a block of `text` right after it is its answer, with `…` for whatever differs each time; a block of `yaml`
//! must be accepted by the API server.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};

const HINT: &str = "<!-- test:";
/// Rewrites what is generated instead of comparing it.
const UPDATE_VARIABLE: &str = "LOCKSTEP_UPDATE";

static WRITING: Mutex<()> = Mutex::new(());

/// Where the reader gets to know it all, and everything that is told there.
pub fn names() -> Result<Vec<String>> {
    let mut names = vec!["README.md".to_owned()];
    for entry in fs::read_dir(path("docs"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if PathBuf::from(&name).extension().is_some_and(|extension| extension == "md") {
            names.push(format!("docs/{name}"));
        }
    }
    names.sort();
    Ok(names)
}

/// A file of the repository.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(name)
}

pub fn read(name: &str) -> Result<String> {
    fs::read_to_string(path(name)).with_context(|| format!("cannot read {name}"))
}

/// A part of a document that has a namespace of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chapter {
    pub starts_with: Start,
    pub blocks: Vec<Block>,
}

/// What a chapter's namespace has in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Empty,
    /// `examples/shop.yaml`.
    Shop,
    /// What `make demo` leaves behind.
    Demo,
}

/// A fenced block.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Block {
    pub line: usize,
    pub language: String,
    pub text: String,
    pub not_run: Option<String>,
    pub exit: i32,
    pub first: Vec<String>,
    pub file: Option<String>,
    /// What is appended to the command.
    pub with: Option<String>,
    /// What it is said to answer.
    pub answer: Option<String>,
}

/// Reads a document. Blocks before the first hint about a namespace have an empty one.
pub fn chapters(text: &str) -> Result<Vec<Chapter>> {
    let mut chapters = vec![Chapter { starts_with: Start::Empty, blocks: Vec::new() }];
    let (mut hinted, mut lines) = (Block::default(), text.lines().enumerate());
    let mut was_answerable = false;
    while let Some((index, line)) = lines.next() {
        let at = || format!("line {}", index + 1);
        if let Some(hint) = line.trim().strip_prefix(HINT) {
            let hint = hint.strip_suffix("-->").with_context(|| format!("{}: a hint is one line", at()))?.trim();
            if let Some(start) = hint.strip_prefix("fresh ") {
                chapters.push(Chapter { starts_with: start_named(start).with_context(at)?, blocks: Vec::new() });
            } else {
                hinted.take(hint).with_context(at)?;
            }
        } else if let Some(language) = line.strip_prefix("```") {
            let (language, own) = (language.trim().to_owned(), std::mem::take(&mut hinted));
            let inner: Vec<&str> = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            let text = inner.join("\n") + "\n";
            let blocks = &mut chapters.last_mut().context("no chapter")?.blocks;
            match blocks.last_mut() {
                Some(command) if language == "text" && was_answerable => command.answer = Some(text),
                _ => blocks.push(Block { line: index + 1, language: language.clone(), text, ..own }),
            }
            was_answerable = language == "sh";
        } else if !line.trim().is_empty() {
            was_answerable = false;
            ensure!(hinted == Block::default(), "{}: the hint above it is about no block", at());
            ensure!(!line.starts_with("    "), "{}: commands belong into a fenced block, where they are tested", at());
        }
    }
    Ok(chapters)
}

fn start_named(name: &str) -> Result<Start> {
    match name {
        "empty" => Ok(Start::Empty),
        "shop" => Ok(Start::Shop),
        "demo" => Ok(Start::Demo),
        other => bail!("there is no fresh {other}: write empty, shop or demo"),
    }
}

impl Block {
    fn take(&mut self, hint: &str) -> Result<()> {
        if let Some(reason) = hint.strip_prefix("not run:") {
            ensure!(!reason.trim().is_empty(), "say why it is not run");
            self.not_run = Some(reason.trim().to_owned());
        } else if let Some(code) = hint.strip_prefix("exit ") {
            self.exit = code.parse().with_context(|| format!("{code} is no exit code"))?;
        } else if let Some(command) = hint.strip_prefix("first ") {
            self.first.push(command.to_owned());
        } else if let Some(file) = hint.strip_prefix("file ") {
            self.file = Some(file.to_owned());
        } else if let Some(more) = hint.strip_prefix("with ") {
            self.with = Some(more.to_owned());
        } else {
            bail!("the hint {hint:?} is not known");
        }
        Ok(())
    }
}

/// Whether an answer is the one that is shown: the shown lines, in their order, with any others between them.
pub fn answers(shown: &str, actual: &str) -> Result<()> {
    let mut rest = actual.lines();
    for line in shown.lines().filter(|line| !line.trim().is_empty()) {
        ensure!(rest.any(|actual| line_matches(line, actual)), "it does not answer {line:?} there, but:\n{actual}");
    }
    Ok(())
}

/// Word by word, because columns are as wide as what is in them. `…` stands for anything.
fn line_matches(shown: &str, actual: &str) -> bool {
    let one_space = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let (shown, actual) = (one_space(shown), one_space(actual));
    let mut parts = shown.split('…');
    let Some(mut rest) = actual.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Compares a generated section with what stands in a document between `<!-- NAME: generated -->` and `<!-- NAME: end -->`.
/// With `LOCKSTEP_UPDATE` set, writes it.
pub fn check_section(document: &str, name: &str, generated: &str) -> Result<()> {
    // Tests of one file may write two of its sections at once.
    let _turn = WRITING.lock();
    let written = read(document)?;
    let (begin, end) = (format!("<!-- {name}: generated -->\n"), format!("<!-- {name}: end -->"));
    let missing = || format!("{document} has no section {name}");
    let (head, rest) = written.split_once(&begin).with_context(missing)?;
    let (_, tail) = rest.split_once(&end).with_context(missing)?;
    let wanted = format!("{head}{begin}\n{}\n\n{end}{tail}", generated.trim());
    if std::env::var_os(UPDATE_VARIABLE).is_some() {
        fs::write(path(document), &wanted)?;
    } else {
        ensure!(
            written == wanted,
            "{document}: its section {name} is not what the code says: run with {UPDATE_VARIABLE}=1"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_with_their_hints_and_answers() {
        let text =
            "Words.\n\n<!-- test: fresh shop -->\n<!-- test: exit 2 -->\n```sh\nfalse\n```\n\n```text\nno …\n```\n";
        let found = chapters(text).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].starts_with, Start::Shop);
        let block = &found[1].blocks[0];
        assert_eq!((block.line, block.exit, block.text.as_str()), (5, 2, "false\n"));
        assert_eq!(block.answer.as_deref(), Some("no …\n"));
    }

    #[test]
    fn what_would_hide_a_command_from_the_test_is_refused() {
        for text in [
            "<!-- test: not run: -->\n```sh\nls\n```\n",
            "<!-- test: nut run: x -->\n```sh\nls\n```\n",
            "<!-- test: exit 1 -->\nWords.\n",
            "<!-- test: fresh air -->\n",
            "Words:\n\n    kubectl delete everything\n",
        ] {
            assert!(chapters(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_answer_has_the_shown_lines_in_their_order() {
        let actual = "NAME   AGE\nweb-1  3s\nweb-2  4s\n";
        answers("NAME AGE\nweb-1 …\nweb-2 …s\n", actual).unwrap();
        assert!(answers("web-2 …\nweb-1 …\n", actual).is_err());
        assert!(answers("web-1\n", actual).is_err());
        assert!(answers("web-… 5s\n", actual).is_err());
    }
}
