//! The `lockstep` command, also found by kubectl as `kubectl lockstep`.
//!
//! Each command is a file: it fetches, makes a view of what it fetched by a pure function, and prints that.

mod adopt;
mod choose;
mod cluster;
mod content;
mod diff;
mod doctor;
#[cfg(test)]
mod fixtures;
mod follow;
mod get;
mod history;
mod impact;
mod manifest;
mod names;
mod operator;
mod output;
mod progress;
mod release;
mod rollouts;
mod status;
mod steer;
mod table;
mod versions;
mod watch;
mod workloads;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use serde::Serialize;

use crate::cluster::{Cluster, Connection};
use crate::output::{Format, View, print, render};
use crate::steer::Wish;

/// Releases configuration on Kubernetes the way teams release code
#[derive(Parser)]
#[command(
    name = "lockstep",
    version,
    arg_required_else_help = true,
    after_help = "\
A config is a ConfigMap (NAME or configmap/NAME) or a Secret (secret/NAME).
A version that failed is held: it is not released again until the config changes, or `lockstep retry` asks for it.
As a plugin of kubectl: ln -s \"$(command -v lockstep)\" /usr/local/bin/kubectl-lockstep, then `kubectl lockstep status`."
)]
struct Arguments {
    #[command(flatten)]
    connection: Connection,
    /// How to print answers
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        help_heading = "Global options"
    )]
    output: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show which version is current, which one is being released, which one failed and is held, and who uses the config
    Status(status::Flags),
    /// Show the versions of a config, and its releases
    History(history::Flags),
    /// Show what differs between two versions: the last good one and the config as it is, if not told otherwise
    Diff(diff::Flags),
    /// Show the content of a version
    Get(get::Flags),
    /// Put configs under Lockstep's care, so that every change becomes a version; says what that writes, and asks
    Adopt(adopt::Flags),
    /// Show what a change would do, without doing it
    Impact(impact::Flags),
    /// Apply a file; with --wait, follow the releases and rollouts that it makes to their ends
    Release(release::Flags),
    /// Follow what is being released, until it has ended
    Watch(watch::Flags),
    /// Go back to an earlier version, until the config changes again
    Rollback(choose::RollbackFlags),
    /// End a rollback: run what the config itself says again
    Follow(choose::Flags),
    /// Try a version again that failed and is held
    Retry(choose::Flags),
    /// Stop a release where it is; failures are still acted on
    Pause(steer::Flags),
    /// Let a paused release go on
    Resume(steer::Flags),
    /// Skip the bake for the rest of the release: now, after a canary, and in later waves
    Promote(steer::Flags),
    /// Put the last good version back: stops a release under way, or takes back one that failed and was left to you
    Abort(steer::Flags),
    /// Delete single versions
    Versions(versions::Flags),
    /// Check that all of Lockstep is there and well; exits with 1 if not
    Doctor(doctor::Flags),
    /// Run the operator: what the chart's Deployment starts
    Operator(operator::Flags),
    /// Print the version
    Version,
    /// Print a completion script: source it in your shell's start-up file
    Completion {
        /// The shell to complete for
        shell: Shell,
    },
}

/// The answer of `lockstep version`.
#[derive(Debug, Serialize)]
struct Version {
    version: &'static str,
}

impl View for Version {
    fn text(&self, _: bool) -> String {
        format!("lockstep {}\n", self.version)
    }
}

/// How a command ended, if it did not fail: a pipeline reads it from the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// Something is not as it should be, and was told.
    Unwell,
    /// The release was rolled back, failed or was aborted; or the rollout of a workload failed.
    NotReleased,
    /// The change breaks a rule.
    Rejected,
    TimedOut,
    /// Released, but not every consumer could be judged.
    Unjudged,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Done => 0,
            Outcome::Unwell => 1,
            Outcome::NotReleased => 2,
            Outcome::Rejected => 3,
            Outcome::TimedOut => 4,
            Outcome::Unjudged => 5,
        })
    }
}

fn main() -> ExitCode {
    let program = std::env::args_os().next().unwrap_or_default();
    let matches = match command(Path::new(&program)).try_get_matches() {
        Ok(matches) => matches,
        // Not clap's own code for mistakes: 2 means that a release was rolled back.
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    match Arguments::from_arg_matches(&matches).map_err(anyhow::Error::new).and_then(run) {
        Ok(outcome) => outcome.into(),
        Err(error) => {
            anstream::eprintln!("{}: {}", output::paint("error", output::BAD), output::told(&error));
            ExitCode::FAILURE
        }
    }
}

/// The command line, under the name that it was called by.
fn command(program: &Path) -> clap::Command {
    let is_plugin = program.file_stem().is_some_and(|name| name == "kubectl-lockstep");
    let command = Arguments::command();
    if is_plugin { command.bin_name("kubectl lockstep") } else { command.bin_name("lockstep") }
}

fn run(arguments: Arguments) -> Result<Outcome> {
    match arguments.command {
        Command::Operator(flags) => {
            let is_told = arguments.connection.is_given();
            ensure!(
                !is_told,
                "the operator connects by KUBECONFIG or as its service account: leave out -n, --context and --kubeconfig"
            );
            operator::run(flags)?;
        }
        Command::Version => print(&render(&Version { version: env!("CARGO_PKG_VERSION") }, arguments.output)?)?,
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "lockstep", &mut io::stdout());
        }
        asked => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            return runtime.block_on(ask(asked, &arguments.connection, arguments.output));
        }
    }
    Ok(Outcome::Done)
}

/// The commands that ask a cluster.
async fn ask(command: Command, connection: &Connection, format: Format) -> Result<Outcome> {
    let cluster = Cluster::connect(connection).await?;
    match command {
        Command::Status(flags) => status::run(&cluster, &flags, format).await?,
        Command::History(flags) => history::run(&cluster, &flags, format).await?,
        Command::Diff(flags) => diff::run(&cluster, &flags, format).await?,
        Command::Get(flags) => get::run(&cluster, &flags, format).await?,
        Command::Adopt(flags) => adopt::run(&cluster, &flags, format).await?,
        Command::Doctor(flags) => return doctor::run(&cluster, &flags, format).await,
        Command::Impact(flags) => impact::run(&cluster, &flags, format).await?,
        Command::Release(flags) => return release::run(&cluster, &flags, format).await,
        Command::Watch(flags) => return watch::run(&cluster, &flags, format).await,
        Command::Rollback(flags) => return choose::rollback(&cluster, &flags, format).await,
        Command::Follow(flags) => return choose::follow(&cluster, &flags, format).await,
        Command::Retry(flags) => return choose::retry(&cluster, &flags, format).await,
        Command::Pause(flags) => steer::run(&cluster, &flags, Wish::Pause, format).await?,
        Command::Resume(flags) => steer::run(&cluster, &flags, Wish::Resume, format).await?,
        Command::Promote(flags) => steer::run(&cluster, &flags, Wish::Promote, format).await?,
        Command::Abort(flags) => steer::run(&cluster, &flags, Wish::Abort, format).await?,
        Command::Versions(flags) => versions::run(&cluster, &flags, format).await?,
        Command::Operator(_) | Command::Version | Command::Completion { .. } => {}
    }
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn help_teaches() {
        insta::assert_snapshot!(Arguments::command().render_help());
    }

    #[test]
    fn the_help_of_every_command_teaches() {
        let mut command = command(Path::new("lockstep"));
        command.build();
        let user = |name: &str| !matches!(name, "help" | "operator" | "completion" | "version");
        let help = command.get_subcommands_mut().filter(|sub| user(sub.get_name())).map(|sub| {
            let global = sub.render_help().to_string();
            // The same for all: once is enough.
            let own = global.split("\nGlobal options:").next().unwrap_or_default().trim_end().to_owned();
            let codes =
                global.split("\nExit codes:").nth(1).map(|codes| format!("\n\nExit codes:{}", codes.trim_end()));
            own + &codes.unwrap_or_default()
        });
        insta::assert_snapshot!(help.collect::<Vec<_>>().join("\n\n----\n\n"));
    }

    /// Without the options that all commands have.
    fn own_help(command: &mut clap::Command) -> String {
        let all = command.render_help().to_string();
        let (own, rest) = all.split_once("\nGlobal options:").unwrap_or((&all, ""));
        let codes = rest.split_once("\nExit codes:").map(|(_, codes)| format!("\n\nExit codes:{codes}"));
        own.trim_end().to_owned() + &codes.unwrap_or_default()
    }

    fn reference(command: &mut clap::Command, path: &str, text: &mut String) {
        for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
            let path = format!("{path} {}", sub.get_name());
            if sub.has_subcommands() {
                reference(sub, &path, text);
            } else {
                *text += &format!("### {path}\n\n```text\n{}\n```\n\n", own_help(sub).trim_end());
            }
        }
    }

    #[test]
    fn the_document_has_the_help_of_every_command() {
        let mut command = command(Path::new("lockstep"));
        command.build();
        let mut text = String::new();
        reference(&mut command, "lockstep", &mut text);
        lockstep_testing::documents::check_section("docs/cli.md", "commands", &text).unwrap();
    }

    /// What stands in a sentence is not run by the test of the documents.
    #[test]
    fn the_documents_name_no_command_that_there_is_not() {
        let command = command(Path::new("lockstep"));
        let known: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        for document in lockstep_testing::documents::names().unwrap() {
            let text = lockstep_testing::documents::read(&document).unwrap();
            for rest in text.split("`lockstep ").skip(1) {
                let word = rest.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
                assert!(known.contains(&word), "{document}: there is no `lockstep {word}`");
            }
        }
    }

    #[test]
    fn programs_can_read_the_version() {
        let version = Version { version: "1.2.3" };
        assert_eq!(render(&version, Format::Table).unwrap(), "lockstep 1.2.3\n");
        assert_eq!(render(&version, Format::Json).unwrap(), "{\n  \"version\": \"1.2.3\"\n}\n");
    }

    #[test]
    fn kubectl_finds_it_as_a_plugin() {
        let help = command(Path::new("/usr/local/bin/kubectl-lockstep")).render_help().to_string();
        assert!(help.contains("Usage: kubectl lockstep"), "{help}");
    }
}
