//! How answers are printed: for people as text, for programs as JSON or YAML.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use anyhow::Result;
use clap::ValueEnum;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
pub(crate) const MOVING: Style = AnsiColor::Yellow.on_default();
pub(crate) const FAINT: Style = Style::new().dimmed();
pub(crate) const STRONG: Style = Style::new().bold();

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Default)]
pub(crate) enum Format {
    #[default]
    Table,
    Wide,
    Json,
    Yaml,
}

/// An answer: the same facts for people and for programs.
pub(crate) trait View: Serialize {
    fn text(&self, is_wide: bool) -> String;
}

/// The answer in the format that was asked for.
pub(crate) fn render(view: &impl View, format: Format) -> Result<String> {
    Ok(match format {
        Format::Table => view.text(false),
        Format::Wide => view.text(true),
        Format::Json => serde_json::to_string_pretty(view)? + "\n",
        Format::Yaml => {
            let text = serde_saphyr::to_string(view)?;
            if text.ends_with('\n') { text } else { text + "\n" }
        }
    })
}

/// Colours go only to a terminal, and not if `NO_COLOR` is set.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut stdout = anstream::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // Whoever reads us has enough: `lockstep history app | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// What a command that changes something has to say.
#[derive(Debug, Serialize)]
pub(crate) struct Answer {
    /// `configmap/app`, `release/configmap-app-7`.
    pub(crate) about: String,
    pub(crate) changed: bool,
    pub(crate) message: String,
}

impl View for Answer {
    fn text(&self, _: bool) -> String {
        format!("{}\n", self.message)
    }
}

/// The answer to a command that changes something.
pub(crate) fn answer(format: Format, about: &impl ToString, changed: bool, message: impl Into<String>) -> Result<()> {
    print(&render(&Answer { about: about.to_string(), changed, message: message.into() }, format)?)
}

/// For people alone: programs get the answer itself.
pub(crate) fn announce(format: Format, line: impl AsRef<str>) -> Result<()> {
    if matches!(format, Format::Table | Format::Wide) { say(line) } else { Ok(()) }
}

pub(crate) fn say(line: impl AsRef<str>) -> Result<()> {
    print(&format!("{}\n", line.as_ref()))
}

pub(crate) fn paint(text: &str, style: Style) -> String {
    format!("{style}{text}{style:#}")
}

/// Text of others as a terminal may have it: what would move the cursor, change colours or turn the direction of writing is escaped.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    if !text.contains(steers_terminal) {
        return Cow::Borrowed(text);
    }
    let escaped = |c: char| if steers_terminal(c) { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(escaped).collect())
}

fn steers_terminal(c: char) -> bool {
    (c.is_control() && c != '\t') || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// How wide a table may be; None for any width.
pub(crate) fn page_width() -> Option<usize> {
    let stdout = io::stdout();
    let terminal = if stdout.is_terminal() { rustix::termios::tcgetwinsize(&stdout).ok() } else { None };
    width(std::env::var("COLUMNS").ok().as_deref(), terminal.map(|size| size.ws_col))
}

/// What the user says counts for more than what the terminal says, and zero is nobody's width.
fn width(columns: Option<&str>, terminal: Option<u16>) -> Option<usize> {
    let told = columns.and_then(|columns| columns.trim().parse().ok());
    [told, terminal.map(usize::from)].into_iter().flatten().find(|width| *width > 0)
}

/// An error with its causes; those that it names itself are not repeated.
pub(crate) fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string).filter(|cause| !cause.is_empty()) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// How long ago, as kubectl says it: `45s`, `12m`, `3h`, `9d`.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> String {
    short(now.duration_since(since))
}

pub(crate) fn short(duration: SignedDuration) -> String {
    match duration.as_secs().max(0) {
        seconds @ 0..=119 => format!("{seconds}s"),
        seconds @ 120..=7199 => format!("{}m", seconds / 60),
        seconds @ 7200..=172_799 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
pub(crate) fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        let error = anyhow::anyhow!("no such file").context("/a: no such file").context("cannot read");
        assert_eq!(told(&error), "cannot read: /a: no such file");
    }

    #[test]
    fn nobody_elses_text_steers_the_terminal() {
        assert_eq!(harmless("plain\ttext: grün"), "plain\ttext: grün");
        assert_eq!(harmless("\u{1b}[2Jgone\r\u{9b}"), "\\u{1b}[2Jgone\\r\\u{9b}");
        assert_eq!(harmless("a\u{202e}b\u{2066}c\nd"), "a\\u{202e}b\\u{2066}c\\nd");
    }

    #[test]
    fn the_width_is_the_users_or_the_terminals() {
        assert_eq!(width(Some("80"), Some(120)), Some(80));
        assert_eq!(width(None, Some(120)), Some(120));
        assert_eq!(width(Some("wide"), Some(120)), Some(120));
        assert_eq!(width(Some("0"), Some(0)), None);
        assert_eq!(width(None, None), None);
    }

    #[test]
    fn programs_get_an_answer_that_they_can_read() {
        let answer = Answer { about: "configmap/app".into(), changed: true, message: "app goes to 1.0.0".into() };
        let read: serde_json::Value = serde_json::from_str(&render(&answer, Format::Json).unwrap()).unwrap();
        assert_eq!((&read["about"], &read["changed"]), (&"configmap/app".into(), &true.into()));
        assert_eq!(render(&answer, Format::Table).unwrap(), "app goes to 1.0.0\n");
    }

    #[test]
    fn ages_are_short() {
        let of = |seconds| short(SignedDuration::from_secs(seconds));
        assert_eq!([-5, 119, 120, 7200, 200_000].map(of), ["0s", "119s", "2m", "2h", "2d"]);
    }
}
