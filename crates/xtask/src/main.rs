//! Everything that is done with this repository besides writing code. The Makefile's targets are thin wrappers on it.

mod bench;
mod cluster;
mod command;
mod demo;
mod deploy;
mod home;
mod image;
mod interrupt;
mod manifests;
mod progress;
mod requirements;
mod stage;
mod tools;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::cluster::Cluster;
use crate::home::Home;
use crate::interrupt::Guard;
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
    /// Install Lockstep with its chart into the cluster, from this checkout
    Deploy,
    /// Make the plain manifests in deploy/ from the chart
    Manifests,
    /// Run every test: lints, unit tests, and end-to-end tests on a cluster that is started and stopped for them
    Test,
    /// Run what needs no cluster
    TestUnit,
    /// Check formatting and lints
    Lint,
    /// Tell the story in the terminal while it happens on a real cluster
    Demo,
    /// Measure
    Bench,
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
    /// Only make the image files
    Build,
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
            let guard = Guard::set(&home)?;
            let cluster = cluster::up(&home)?;
            drop(guard);
            print_environment(&cluster);
            Ok(())
        }
        Task::Image { action: None } => image::load(&cluster::running(&home)?, &image::build_own()?),
        Task::Image { action: Some(ImageAction::Build) } => image::build_own().map(|tars| tell_files(&tars)),
        Task::Image { action: Some(ImageAction::Load { file }) } => image::load(&cluster::running(&home)?, &[file]),
        Task::Deploy => deploy::run(&home),
        Task::Manifests => manifests::run(&home),
        Task::Test => verify::everything(&home),
        Task::TestUnit => verify::unit(),
        Task::Lint => verify::lint(),
        Task::Demo => demo::run(&home),
        Task::Bench => bench::run(&home),
    }
}

fn tell_files(files: &[PathBuf]) {
    for file in files {
        note(&format!("  ✓ {}", file.display()));
    }
}

/// The only thing on standard output, so that `eval "$(make -s cluster)"` works.
#[expect(clippy::print_stdout)]
fn print_environment(cluster: &Cluster) {
    println!("export KUBECONFIG={} PATH={}:$PATH", cluster.kubeconfig().display(), cluster.search_path());
}
