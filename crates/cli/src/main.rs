//! The `lockstep` command, also found by kubectl as `kubectl lockstep`.

mod operator;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

/// Releases configuration on Kubernetes the way teams release code
#[derive(Parser)]
#[command(name = "lockstep", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
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

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let mut stdout = io::stdout();
    match command {
        Command::Operator(flags) => operator::run(flags)?,
        Command::Version => writeln!(stdout, "lockstep {}", env!("CARGO_PKG_VERSION"))?,
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "lockstep", &mut stdout);
        }
    }
    Ok(())
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
}
