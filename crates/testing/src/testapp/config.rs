//! The configuration that the app really sees: its environment and the files below its configuration directories.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use jiff::Timestamp;
use lockstep_testing::report::Snapshot;

use crate::behavior::Behavior;

/// Directories to read, separated by colons.
const DIRECTORIES_VARIABLE: &str = "CONFIG_DIRS";
const DEFAULT_DIRECTORIES: &str = "/etc/config";

pub(crate) fn load() -> Snapshot {
    Snapshot { at: Timestamp::now(), env: env::vars().collect(), files: read_files() }
}

pub(crate) fn read_files() -> BTreeMap<String, String> {
    let directories = env::var(DIRECTORIES_VARIABLE).unwrap_or_else(|_| DEFAULT_DIRECTORIES.to_owned());
    let mut files = BTreeMap::new();
    for directory in directories.split(':') {
        collect(Path::new(directory), &mut files);
    }
    files
}

/// A directory that is not there has no files: which mounts a pod has is the test's business.
fn collect(directory: &Path, files: &mut BTreeMap<String, String>) {
    for path in fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
        // The kubelet's own `..data` links lead to the same files once more.
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("..")) {
            continue;
        }
        if path.is_dir() {
            collect(&path, files);
        } else if let Ok(content) = fs::read(&path) {
            files.insert(path.display().to_string(), text(content));
        }
    }
}

fn text(content: Vec<u8>) -> String {
    String::from_utf8(content).unwrap_or_else(|error| {
        error.as_bytes().iter().fold("base16:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
    })
}

pub(crate) fn behavior(snapshot: &Snapshot) -> Result<Behavior> {
    let named = |path: &str| PathBuf::from(path).file_name().is_some_and(|name| name == "behavior");
    let files = snapshot.files.iter().filter(|(path, _)| named(path)).map(|(_, content)| content.as_str());
    let words: Vec<&str> = snapshot.env.get("BEHAVIOR").map(String::as_str).into_iter().chain(files).collect();
    Behavior::parse(&words.join(","))
}
