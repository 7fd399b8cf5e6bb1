//! `make clean-all`: removes what all of this left on the machine.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::cluster;
use crate::home::{Home, repository};
use crate::progress::{Step, note};

pub(crate) fn run(home: &Home) -> Result<()> {
    cluster::down(home)?;
    let mut freed = 0;
    for directory in [home.root().to_path_buf(), repository().join("target")] {
        freed += remove(&directory)?;
    }
    // Whoever asks for the usual times makes it again.
    let _ = fs::remove_dir(home.root());
    note(&format!("  ✓ freed {:.1} GB", gigabytes(freed)));
    note(
        "What is left is not ours alone: Debian packages (containerd, runc, iptables) and cargo's registry in ~/.cargo.",
    );
    Ok(())
}

fn remove(directory: &Path) -> Result<u64> {
    let step = Step::start(format!("remove {}", directory.display()));
    let size = size(directory);
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", directory.display()));
        }
        _ => step.forget(&format!("({:.1} GB)", gigabytes(size))),
    }
    Ok(size)
}

/// What it takes on the disk. What is linked twice counts twice; that is rare here.
fn size(path: &Path) -> u64 {
    let Ok(about) = path.symlink_metadata() else { return 0 };
    if !about.is_dir() {
        return std::os::unix::fs::MetadataExt::blocks(&about) * 512;
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| size(&entry.path())).sum()
}

#[expect(clippy::cast_precision_loss)]
fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}
