//! The resident memory of the operator's replicas, if they run on this machine.

use std::fs;

use anyhow::Result;

use crate::results::Rows;

pub(crate) const NAME: &str = "memory";
const COMMAND: &[u8] = b"/lockstep\0operator\0";

/// In kB, as the kernel tells it.
#[derive(Debug, PartialEq, Eq)]
struct Memory {
    most: usize,
    now: usize,
}

pub(crate) fn about() -> String {
    "the operator's memory, of each replica on this machine: the largest works, the others stand by".to_owned()
}

pub(crate) fn measure(rows: &mut Rows) -> Result<()> {
    let replicas = replicas()?;
    if replicas.is_empty() {
        eprintln!("… the operator does not run on this machine: its memory is not known");
    }
    for (number, memory) in (1..).zip(replicas) {
        rows.add(format!("replica {number}: now"), memory.now, "kB").note("VmRSS");
        rows.add(format!("replica {number}: at most"), memory.most, "kB").note("VmHWM");
    }
    Ok(())
}

/// The largest comes first.
fn replicas() -> Result<Vec<Memory>> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc")?.flatten() {
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        if command.starts_with(COMMAND) {
            // Empty if it ended meanwhile.
            let status = fs::read_to_string(process.path().join("status")).unwrap_or_default();
            found.extend(memory(&status));
        }
    }
    found.sort_by_key(|memory| std::cmp::Reverse(memory.most));
    Ok(found)
}

fn memory(status: &str) -> Option<Memory> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    Some(Memory { most: field("VmHWM")?, now: field("VmRSS")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_tells_its_memory() {
        let status = "Name:\tlockstep\nVmHWM:\t   81234 kB\nVmRSS:\t   70123 kB\nThreads:\t3\n";
        assert_eq!(memory(status), Some(Memory { most: 81234, now: 70123 }));
    }

    #[test]
    fn a_process_that_ended_has_none() {
        assert_eq!(memory("Name:\tlockstep\nState:\tZ (zombie)\n"), None);
    }
}
