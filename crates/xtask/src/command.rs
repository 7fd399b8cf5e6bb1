//! Running other programs, with errors that name the program, what it was asked and what it answered.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// How much of a failed program's output an error repeats.
const REPEATED_LINES: usize = 30;

/// Runs a command to its end and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let result = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {shown}"))?;
    let stdout = String::from_utf8_lossy(&result.stdout).into_owned();
    if !result.status.success() {
        let said = format!("{stdout}{}", String::from_utf8_lossy(&result.stderr));
        bail!("{shown} failed ({}):\n{}", result.status, last_lines(&said, REPEATED_LINES));
    }
    Ok(stdout)
}

/// Runs a command whose output the user should see as it comes.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let status = command.status().with_context(|| format!("cannot run {shown}"))?;
    if !status.success() {
        bail!("{shown} failed ({status})");
    }
    Ok(())
}

/// Runs a command with text on its standard input.
pub(crate) fn feed(command: &mut Command, input: &str) -> Result<()> {
    let shown = show(command);
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.with_context(|| format!("cannot run {shown}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).with_context(|| format!("cannot write to {shown}"))?;
    }
    let result = child.wait_with_output()?;
    if !result.status.success() {
        let said = String::from_utf8_lossy(&result.stderr);
        bail!("{shown} failed ({}):\n{}", result.status, last_lines(&said, REPEATED_LINES));
    }
    Ok(())
}

pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// A command as one would type it, for messages.
pub(crate) fn show(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let text = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    format!("`{text}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_repeats_what_it_said() {
        let error = output(Command::new("sh").args(["-c", "echo no such pod >&2; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("`sh -c"), "{error}");
        assert!(error.contains("no such pod"), "{error}");
        assert!(error.contains('3'), "{error}");
    }

    #[test]
    fn long_output_is_cut_to_its_end() {
        let text = (1..=100).map(|n| n.to_string()).collect::<Vec<_>>().join("\n");
        assert_eq!(last_lines(&text, 2), "99\n100");
    }
}
