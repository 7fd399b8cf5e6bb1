//! The control groups of the cluster's containers: one directory per hierarchy, the only trace that dead processes leave.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The kubelet puts all its groups below this one, so that they cannot be confused with another kubelet's.
pub(crate) const ROOT: &str = "/lockstep";

/// How long processes that were just killed may take to leave their groups.
const EMPTYING_LIMIT: Duration = Duration::from_secs(10);

pub(crate) fn create() -> Result<()> {
    for directory in directories()? {
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    Ok(())
}

pub(crate) fn remove() -> Result<()> {
    let deadline = Instant::now() + EMPTYING_LIMIT;
    for directory in directories()? {
        while let Err(error) = remove_tree(&directory) {
            if Instant::now() > deadline {
                let path = directory.display();
                return Err(error).with_context(|| format!("processes are left in {path}: end them and start again"));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

/// Control groups have no files of their own to delete: only directories, innermost first.
fn remove_tree(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(directory)
}

fn directories() -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read the machine's mounts")?;
    Ok(hierarchies(&mounts).map(|mount| mount.join(ROOT.trim_start_matches('/'))).collect())
}

fn hierarchies(mounts: &str) -> impl Iterator<Item = PathBuf> {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.filter(|fields| fields.len() > 2 && matches!(fields[2], "cgroup" | "cgroup2")).map(|fields| fields[1].into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_generations_of_control_groups_are_found() {
        let mounts = "cgroup /sys/fs/cgroup/memory cgroup rw 0 0\ntmpfs /run tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let found: Vec<_> = hierarchies(mounts).collect();
        assert_eq!(found, [Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup/unified")]);
    }
}
