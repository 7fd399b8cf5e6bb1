//! The first process of the cluster's own namespaces.
//!
//! It is started by `unshare` with private process ids, mounts and network, and it starts everything else. When it ends,
//! however it ends, the kernel kills every process below it, and with the last one go all mounts, network interfaces and
//! firewall rules: no cleaning up that a crash could prevent.

use std::fs::{self, File};
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, anyhow, bail};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::process::{WaitOptions, wait};

use super::layout::{Layout, PRIVATE_DIRECTORIES};
use super::{components, network};
use crate::command;
use crate::home::Home;
use crate::tools::Tools;

const API_SERVER_LIMIT: Duration = Duration::from_secs(60);

/// Runs until a component ends; then says which.
pub(crate) fn run(home: &Home) -> Result<()> {
    let layout = Layout::new(home);
    let tools = Tools::locate(home)?;
    let lock = File::open(layout.pid())?;
    lock.try_lock().context("another supervisor is running")?;
    wait_for_network()?;
    network::configure_node()?;
    take_private_directories(&layout)?;

    let mut children = start(components::foundation(&layout, &tools), &layout)?;
    wait_for_api_server(&layout, &tools, &mut children)?;
    children.extend(start(components::clients(&layout, &tools), &layout)?);
    let ended = wait_for_the_end(&children)?;
    Err(last_words(&ended, &layout))
}

/// Whoever started us connects our network first, and then closes our standard input with a word. Without the word it
/// has died, and so do we.
fn wait_for_network() -> Result<()> {
    let mut word = String::new();
    io::stdin().read_to_string(&mut word)?;
    if word != super::NETWORK_READY {
        bail!("the start was interrupted");
    }
    Ok(())
}

fn take_private_directories(layout: &Layout) -> Result<()> {
    // Containers may ask for mounts that propagate between them: within the cluster they do, to the host never.
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::SHARED).context("cannot share mounts")?;
    for (name, path) in PRIVATE_DIRECTORIES {
        let own = layout.root().join(name);
        fs::create_dir_all(&own)?;
        fs::create_dir_all(path).with_context(|| format!("cannot create {path}"))?;
        mount_bind(&own, path).with_context(|| format!("cannot mount {path}"))?;
    }
    Ok(())
}

fn start(components: Vec<components::Component>, layout: &Layout) -> Result<Vec<(String, Child)>> {
    let start_one = |component: components::Component| {
        let log = File::create(layout.log(component.name))?;
        let mut command = Command::new(&component.program);
        command.args(&component.arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("cannot start {}", component.program.display()))?;
        Ok((component.name.to_owned(), child))
    };
    components.into_iter().map(start_one).collect()
}

fn wait_for_api_server(layout: &Layout, tools: &Tools, children: &mut [(String, Child)]) -> Result<()> {
    let deadline = Instant::now() + API_SERVER_LIMIT;
    loop {
        let mut ask = Command::new(tools.kubernetes("kubectl"));
        ask.arg("--kubeconfig").arg(layout.kubeconfig()).args(["get", "--raw", "/readyz"]);
        let Err(error) = command::output(&mut ask) else { return Ok(()) };
        for (name, child) in &mut *children {
            if child.try_wait()?.is_some() {
                return Err(last_words(name, layout));
            }
        }
        if Instant::now() > deadline {
            return Err(error.context(format!("the API server is not ready after {} s", API_SERVER_LIMIT.as_secs())));
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn last_words(component: &str, layout: &Layout) -> Error {
    let log = layout.log(component);
    let said = fs::read_to_string(&log).unwrap_or_default();
    anyhow!("{component} ended; the last words in {} are:\n{}", log.display(), command::last_lines(&said, 5))
}

/// Reaps every process that ends, also those that containers left to us, until one of the components is among them.
fn wait_for_the_end(children: &[(String, Child)]) -> Result<String> {
    loop {
        let Some((pid, _)) = wait(WaitOptions::empty()).context("cannot wait for processes")? else { continue };
        let ended = children.iter().find(|(_, child)| i64::from(child.id()) == i64::from(pid.as_raw_nonzero().get()));
        if let Some((name, _)) = ended {
            return Ok(name.clone());
        }
    }
}
