//! Everything that is done with this repository besides writing code. The Makefile's targets are thin wrappers on it.

mod bench;
mod build;
mod cargo;
mod clean;
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
mod simulate;
mod stage;
mod test;
mod tools;
mod usual_times;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::cargo::Profile;
use crate::cluster::Cluster;
use crate::home::Home;
use crate::interrupt::Guard;
use crate::progress::note;
use crate::tools::Tool;

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
    /// Run every test: lints, unit tests, the simulation, and end-to-end tests on a cluster that is started and stopped for them
    Test(test::Choice),
    /// Run what needs no cluster
    TestUnit,
    /// Check formatting and lints
    Lint,
    /// Tell the story in the terminal while it happens on a real cluster
    Demo,
    /// Measure, with the published profile: all parts, or those named; `list` shows them
    Bench { parts: Vec<String> },
    /// Play schedules of the whole operator against a simulated cluster, with faults, and check what must always hold
    Simulate(simulate::Choice),
    /// Remove what all of this left on the machine: the cluster, tools, caches, builds
    CleanAll,
}

#[derive(Subcommand)]
enum ClusterAction {
    /// Start the cluster, or find it running; prints a line for the shell to eval
    Up {
        /// What to build and start beside Kubernetes and CoreDNS: `helm`, `argo-rollouts`
        #[arg(long, value_delimiter = ' ')]
        with: Vec<String>,
    },
    /// Stop the cluster and remove all that it left
    Down,
    #[command(hide = true)]
    Supervise,
}

#[derive(Subcommand)]
enum ImageAction {
    /// Only make the image files
    Build {
        /// As they are published: smaller and faster, and built far longer
        #[arg(long)]
        release: bool,
    },
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
        Task::Cluster { action: ClusterAction::Up { with } } => start(&home, &with),
        Task::Image { action: None } => {
            let cluster = cluster::running(&home)?;
            image::load(&cluster, &build::ensure(&home, &[], Some(Profile::Local))?.1)
        }
        Task::Image { action: Some(ImageAction::Build { release }) } => {
            let profile = if release { Profile::Published } else { Profile::Local };
            build::ensure(&home, &[], Some(profile)).map(|(_, images)| tell_files(&images))
        }
        Task::Image { action: Some(ImageAction::Load { file }) } => image::load(&cluster::running(&home)?, &[file]),
        Task::Deploy => deploy::run(&home),
        Task::Manifests => manifests::run(&home),
        Task::Test(choice) => test::run(&home, &choice),
        Task::TestUnit => test::unit(),
        Task::Lint => test::lint(),
        Task::Demo => demo::run(&home),
        Task::Bench { parts } => bench::run(&home, &parts),
        Task::Simulate(choice) => simulate::run(&choice),
        Task::CleanAll => clean::run(&home),
    }
}

fn start(home: &Home, with: &[String]) -> Result<()> {
    let others: Vec<Tool> = with.iter().map(|name| Tool::by_name(name)).collect::<Result<_>>()?;
    let needed = [&[Tool::Kubernetes, Tool::CoreDns], others.as_slice()].concat();
    requirements::root_user()?;
    let (tools, _) = build::ensure(home, &needed, None)?;
    let guard = Guard::set(home)?;
    let cluster = cluster::up(home, tools, &needed)?;
    drop(guard);
    print_environment(&cluster);
    Ok(())
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
