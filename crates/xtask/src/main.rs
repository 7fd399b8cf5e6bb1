//! Everything that is done with this repository besides writing code. The Makefile's targets are thin wrappers on it.

mod cluster;
mod command;
mod home;
mod image;
mod progress;
mod requirements;
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use anyhow::Result;
use clap::{Parser, Subcommand};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cluster::Cluster;
use crate::home::Home;
use crate::progress::note;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, runs and tests Lockstep")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Start or stop a real single-node Kubernetes on this machine
    Cluster {
        #[command(subcommand)]
        action: ClusterAction,
    },
    /// Make the images of lockstep and of the test app, and load them into the running cluster
    Image {
        #[command(subcommand)]
        action: Option<ImageAction>,
    },
}

#[derive(Subcommand)]
enum ClusterAction {
    /// Start the cluster, or find it running; prints a line for the shell to eval
    Up,
    /// Stop the cluster and remove all that it left
    Down,
    #[command(hide = true)]
    Supervise,
}

#[derive(Subcommand)]
enum ImageAction {
    /// Load any image, OCI or Docker, from a tar file into the running cluster
    Load { file: PathBuf },
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("\nerror: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    let home = Home::locate()?;
    match task {
        Task::Cluster { action: ClusterAction::Supervise } => cluster::supervisor::run(&home),
        Task::Cluster { action: ClusterAction::Down } => cluster::down(&home),
        Task::Cluster { action: ClusterAction::Up } => {
            let cluster = start_cluster(&home)?;
            print_environment(&cluster);
            Ok(())
        }
        Task::Image { action: None } => image::load(&cluster::running(&home)?, &image::build_own()?),
        Task::Image { action: Some(ImageAction::Load { file }) } => image::load(&cluster::running(&home)?, &[file]),
    }
}

/// Starts the cluster; Ctrl-C until it is up takes it down again.
fn start_cluster(home: &Home) -> Result<Cluster> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let handle = signals.handle();
    let home_for_interrupt = home.clone();
    let watcher = thread::spawn(move || {
        if signals.forever().next().is_some() {
            note("\ninterrupted: removing what was started");
            if let Err(error) = cluster::abandon(&home_for_interrupt) {
                note(&format!("error: {error:#}"));
            }
            std::process::exit(130);
        }
    });
    let cluster = cluster::up(home);
    handle.close();
    // The thread ends with its handle; if it is removing the cluster right now, it ends the process itself.
    let _ = watcher.join();
    cluster
}

/// The only thing on standard output, so that `eval "$(make -s cluster)"` works.
#[expect(clippy::print_stdout)]
fn print_environment(cluster: &Cluster) {
    println!("export KUBECONFIG={} PATH={}:$PATH", cluster.kubeconfig().display(), cluster.search_path());
}
