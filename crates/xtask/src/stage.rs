//! The cluster that tests and the demo run on: the local one, or the user's own.

use std::env;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::build;
use crate::cargo::Profile;
use crate::cluster::{self, Cluster};
use crate::command;
use crate::home::Home;
use crate::image;
use crate::interrupt::Guard;
use crate::progress::note;
use crate::requirements;
use crate::tools::Tool;

const CHOICE_VARIABLE: &str = "LOCKSTEP_CLUSTER";

/// A cluster with our images in it.
pub(crate) enum Stage {
    Local { cluster: Cluster, started_here: Option<Guard> },
    Existing,
}

impl Stage {
    /// Starts the local cluster if need be, with these tools built and in it. Until `leave`, an interrupt takes down what was
    /// started.
    pub(crate) fn enter(home: &Home, needed: &[Tool], profile: Profile) -> Result<Self> {
        match env::var(CHOICE_VARIABLE).as_deref() {
            Err(_) | Ok("" | "local") => Self::enter_local(home, needed, profile),
            Ok("existing") => Self::enter_existing(),
            Ok(other) => bail!("{CHOICE_VARIABLE}={other} is not known: use `local` or `existing`"),
        }
    }

    fn enter_local(home: &Home, needed: &[Tool], profile: Profile) -> Result<Self> {
        requirements::root_user()?;
        let needed = [&[Tool::Kubernetes], needed].concat();
        let (tools, images) = build::ensure(home, &needed, Some(profile))?;
        let started_here = if cluster::running(home).is_ok() { None } else { Some(Guard::set(home)?) };
        let cluster = cluster::up(home, tools, &needed)?;
        image::load(&cluster, &images)?;
        Ok(Self::Local { cluster, started_here })
    }

    fn enter_existing() -> Result<Self> {
        if env::var_os("KUBECONFIG").is_none() {
            bail!("{CHOICE_VARIABLE}=existing needs KUBECONFIG set to your cluster's kubeconfig");
        }
        command::output(Command::new("kubectl").args(["version"])).context("your cluster does not answer kubectl")?;
        note(
            "  ✓ using the cluster in KUBECONFIG; it must be able to pull or have the images of `cargo xtask image build`",
        );
        Ok(Self::Existing)
    }

    /// A command that finds the cluster and its tools.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        if let Self::Local { cluster, .. } = self {
            let path = env::var("PATH").unwrap_or_default();
            let tools = cluster.search_path();
            command.env("KUBECONFIG", cluster.kubeconfig()).env("PATH", format!("{tools}:{path}"));
            command.env("LOCKSTEP_AUDIT_LOG", cluster.audit_log());
        }
        command
    }

    /// For whoever goes on by hand; the cluster stays up.
    pub(crate) fn tell_how_to_look_around(&self, command: &str) {
        if let Self::Local { cluster, .. } = self {
            let (kubeconfig, path) = (cluster.kubeconfig(), cluster.search_path());
            note(&format!(
                "\nThe cluster stays up. To look around:\n  export KUBECONFIG={} PATH={path}:$PATH",
                kubeconfig.display()
            ));
            note(&format!("  {command}\nTo stop it: make cluster-down"));
        }
    }

    /// Stops the cluster if we started it.
    pub(crate) fn leave(self, home: &Home) -> Result<()> {
        match self {
            Self::Local { started_here: Some(guard), .. } => {
                drop(guard);
                cluster::down(home)
            }
            Self::Local { .. } => {
                note("  ✓ the cluster that was running before goes on running");
                Ok(())
            }
            Self::Existing => Ok(()),
        }
    }
}
