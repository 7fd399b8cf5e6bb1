//! A real single-node Kubernetes on this machine: started in seconds, gone without a trace.
//!
//! `up` prepares files, starts the supervisor in namespaces of its own and waits until the node is ready.
//! `down` kills the supervisor; the kernel does the rest.

mod addons;
mod cgroups;
mod components;
mod layout;
pub(crate) mod network;
mod pki;
pub(crate) mod supervisor;

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::command;
use crate::home::Home;
use crate::image;
use crate::progress::{Step, note};
use crate::requirements;
use crate::tools::{Tool, Tools};
use layout::Layout;

/// What the supervisor reads before it goes on.
const NETWORK_READY: &str = "network ready\n";

/// Free space that a running cluster needs for images, logs and etcd.
const RUN_SPACE_GIB: u64 = 3;
const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(100);

/// A cluster that answers.
#[derive(Debug)]
pub(crate) struct Cluster {
    layout: Layout,
    tools: Tools,
}

impl Cluster {
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.layout.kubeconfig()
    }

    /// Who did what, as the API server saw it.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.layout.log("audit")
    }

    /// kubectl, helm and the Argo Rollouts plugin first, then what was there.
    pub(crate) fn search_path(&self) -> String {
        self.tools.search_path()
    }

    fn kubectl(&self) -> Command {
        let mut kubectl = Command::new(self.tools.kubernetes("kubectl"));
        kubectl.arg("--kubeconfig").arg(self.kubeconfig());
        kubectl
    }

    /// Makes an image known to the node.
    pub(crate) fn load_image(&self, tar: &Path) -> Result<()> {
        let mut ctr = Command::new("ctr");
        ctr.arg("--address").arg(self.layout.containerd_socket()).args(["--namespace", "k8s.io", "images", "import"]);
        command::output(ctr.arg(tar)).map(drop)
    }
}

/// Starts the cluster, or finds it running, with what is needed in it beside Kubernetes. All tools are built.
pub(crate) fn up(home: &Home, tools: Tools, needed: &[Tool]) -> Result<Cluster> {
    requirements::root_user()?;
    requirements::free_space(home.root(), RUN_SPACE_GIB)?;
    let cluster = Cluster { layout: Layout::new(home), tools };
    let _turn = take_turn(home)?;
    if is_running(&cluster.layout)? && cluster.layout.ready_mark().exists() {
        note("  ✓ the cluster is running already and is used as it is");
    } else {
        stop(&cluster.layout)?;
        requirements::address_range()?;
        cluster.start(home)?;
    }
    addons::ensure(home, &cluster, needed)?;
    Ok(cluster)
}

/// The running cluster, or an error that says how to get one.
pub(crate) fn running(home: &Home) -> Result<Cluster> {
    let cluster = Cluster { layout: Layout::new(home), tools: Tools::locate(home)? };
    if !(is_running(&cluster.layout)? && cluster.layout.ready_mark().exists()) {
        bail!("no cluster is running: start one with `make cluster`");
    }
    Ok(cluster)
}

pub(crate) fn down(home: &Home) -> Result<()> {
    requirements::root_user()?;
    let _turn = take_turn(home)?;
    let layout = Layout::new(home);
    let was_running = is_running(&layout)?;
    stop(&layout)?;
    note(if was_running { "  ✓ the cluster is stopped" } else { "  ✓ no cluster was running" });
    Ok(())
}

/// Called on Ctrl-C in the middle of `up`, which holds the turn.
pub(crate) fn abandon(home: &Home) -> Result<()> {
    stop(&Layout::new(home))
}

/// Starts and stops exclude each other; the lock goes with the process that holds it.
fn take_turn(home: &Home) -> Result<File> {
    let path = home.root().join("cluster.lock");
    let file = File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        note("  … another start or stop of the cluster is under way: waiting for it");
        file.lock()?;
    }
    Ok(file)
}

/// The supervisor holds a lock on its pid file: no lock, no cluster, whatever the file says.
fn is_running(layout: &Layout) -> Result<bool> {
    let Ok(file) = File::open(layout.pid()) else { return Ok(false) };
    match file.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error).context("cannot tell whether the cluster is running"),
    }
}

/// Ends what runs and removes what a killed run left: its control groups and its files.
fn stop(layout: &Layout) -> Result<()> {
    if let Some(pid) = supervisor_process(layout) {
        kill_process(pid, Signal::KILL).context("cannot end the cluster's supervisor")?;
        let deadline = Instant::now() + STOP_LIMIT;
        // The kernel lets the first process of a namespace go only after all the others.
        while supervisor_process(layout).is_some() {
            if Instant::now() > deadline {
                bail!("the cluster's processes do not end: see `ps --ppid {}`", pid.as_raw_nonzero());
            }
            thread::sleep(POLL);
        }
    }
    cgroups::remove()?;
    match fs::remove_dir_all(layout.root()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", layout.root().display()))
        }
        _ => Ok(()),
    }
}

/// The process in the pid file, if it is still ours: numbers are used again.
fn supervisor_process(layout: &Layout) -> Option<Pid> {
    let pid = Pid::from_raw(fs::read_to_string(layout.pid()).ok()?.trim().parse().ok()?)?;
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok()?;
    let ours = String::from_utf8_lossy(&line).contains("supervise");
    ours.then_some(pid)
}

impl Cluster {
    fn start(&self, home: &Home) -> Result<()> {
        let step = Step::start("start the cluster");
        self.prepare()?;
        self.launch()?;
        self.wait_for("containerd", |cluster| cluster.layout.containerd_socket().exists())?;
        self.load_image(&image::ensure_of_tool(home, &self.tools, Tool::Kubernetes)?)?;
        step.part().say("etcd, API server, controllers, scheduler, kubelet, containerd");
        self.wait_for("the API server", Self::api_server_is_ready)?;
        step.part().say("waiting for the node");
        self.wait_for("the node", Self::node_is_ready)?;
        fs::write(self.layout.ready_mark(), "")?;
        step.done("");
        Ok(())
    }

    fn prepare(&self) -> Result<()> {
        let plugins = requirements::cni_directory().context("the network plugins are gone: start again")?;
        fs::create_dir_all(self.layout.root().join("log"))?;
        pki::create(&self.layout)?;
        components::write_configuration(&self.layout, plugins)?;
        cgroups::create()
    }

    fn launch(&self) -> Result<()> {
        let log = File::create(self.layout.log("supervisor"))?;
        // The file must exist before the supervisor locks it, and is filled once its number is known.
        fs::write(self.layout.pid(), "")?;
        // A session of its own: Ctrl-C and a closed terminal are for us, and the cluster goes on after us.
        let mut unshare = Command::new("setsid");
        unshare
            .args(["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"])
            .arg(std::env::current_exe()?)
            .args(["cluster", "supervise"])
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut child = unshare.spawn().context("cannot run unshare")?;
        let pid = first_child(&child)?;
        fs::write(self.layout.pid(), pid.to_string())?;
        network::connect(pid)?;
        let mut stdin = child.stdin.take().context("the supervisor has no standard input")?;
        stdin.write_all(NETWORK_READY.as_bytes()).context("the supervisor ended at once")
    }

    fn wait_for(&self, what: &str, is_there: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + START_LIMIT;
        while !is_there(self) {
            if supervisor_process(&self.layout).is_none() {
                let said = fs::read_to_string(self.layout.log("supervisor")).unwrap_or_default();
                bail!("the cluster ended while waiting for {what}:\n{}", command::last_lines(&said, 10));
            }
            if Instant::now() > deadline {
                let logs = self.layout.root().join("log");
                bail!("{what} did not get ready in {} s: see {}", START_LIMIT.as_secs(), logs.display());
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn api_server_is_ready(&self) -> bool {
        command::output(self.kubectl().args(["get", "--raw", "/readyz"])).is_ok()
    }

    fn node_is_ready(&self) -> bool {
        let condition = r#"jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}"#;
        command::output(self.kubectl().args(["get", "nodes", "-o", condition]))
            .is_ok_and(|status| status.trim() == "True")
    }
}

/// The process that `unshare` forked, by its number outside.
fn first_child(parent: &Child) -> Result<u32> {
    let path = format!("/proc/{0}/task/{0}/children", parent.id());
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let children = fs::read_to_string(&path).context("unshare ended at once: are namespaces allowed here?")?;
        if let Some(child) = children.split_whitespace().next() {
            return Ok(child.parse()?);
        }
        if Instant::now() > deadline {
            bail!("unshare started no process: are namespaces allowed here?");
        }
        thread::sleep(Duration::from_millis(5));
    }
}
