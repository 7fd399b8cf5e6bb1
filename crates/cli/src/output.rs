//! How answers are printed: for people as text, for programs as JSON or YAML.

use std::io::{self, Write};

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
