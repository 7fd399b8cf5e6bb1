//! Where the cluster keeps its files.

use std::path::{Path, PathBuf};

use crate::home::Home;

pub(crate) const NODE_NAME: &str = "lockstep";

/// The cluster's directory in the home directory. Nothing in it survives a new start.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    root: PathBuf,
}

/// Directories of the machine that the cluster sees as its own: what it keeps there lies in its own directory.
pub(crate) const PRIVATE_DIRECTORIES: [(&str, &str); 5] = [
    ("run", "/run"),
    ("log", "/var/log"),
    ("kubelet", "/var/lib/kubelet"),
    ("containerd", "/var/lib/containerd"),
    ("cni", "/var/lib/cni"),
];

impl Layout {
    pub(crate) fn new(home: &Home) -> Self {
        Self { root: home.cluster() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    pub(crate) fn config(&self, file: &str) -> PathBuf {
        self.root.join("config").join(file)
    }

    /// What the components write, and the API server's audit log.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.root.join("log").join(format!("{name}.log"))
    }

    pub(crate) fn etcd_data(&self) -> PathBuf {
        self.root.join("etcd")
    }

    /// The containers' runtime, as the host reaches it.
    pub(crate) fn containerd_socket(&self) -> PathBuf {
        self.root.join("run/containerd/containerd.sock")
    }

    /// The administrator's.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    pub(crate) fn kubeconfig_of(&self, identity: &str) -> PathBuf {
        if identity == "admin" { self.kubeconfig() } else { self.root.join(format!("{identity}.kubeconfig")) }
    }

    /// Holds the process id of the supervisor; the supervisor holds a lock on it for as long as it lives.
    pub(crate) fn pid(&self) -> PathBuf {
        self.root.join("supervisor.pid")
    }

    /// Exists once the cluster is ready for use.
    pub(crate) fn ready_mark(&self) -> PathBuf {
        self.root.join("ready")
    }
}
