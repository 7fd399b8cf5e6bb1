//! Where everything that outlives a checkout is kept: built tools, images, and the state of the local cluster.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// `$LOCKSTEP_HOME`, or `lockstep` in the user's cache directory.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    root: PathBuf,
}

impl Home {
    pub(crate) fn locate() -> Result<Self> {
        let root = choose_root(|name| env::var_os(name).map(PathBuf::from))?;
        fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
        Ok(Self { root })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn tools(&self) -> PathBuf {
        self.root.join("tools")
    }

    pub(crate) fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    /// Go's module and build caches. The user's own are left alone, so that all of ours can be removed.
    pub(crate) fn go(&self) -> PathBuf {
        self.root.join("go")
    }

    pub(crate) fn usual_times(&self) -> PathBuf {
        self.root.join("usual-times.json")
    }

    pub(crate) fn cluster(&self) -> PathBuf {
        self.root.join("cluster")
    }
}

fn choose_root(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    let named = variable("LOCKSTEP_HOME");
    let cached = || variable("XDG_CACHE_HOME").map(|cache| cache.join("lockstep"));
    let default = || variable("HOME").map(|home| home.join(".cache/lockstep"));
    let Some(root) = named.or_else(cached).or_else(default) else {
        bail!("cannot tell where to keep built tools: set LOCKSTEP_HOME or HOME");
    };
    if !root.is_absolute() {
        bail!("{} is not an absolute path: set LOCKSTEP_HOME to one", root.display());
    }
    Ok(root)
}

/// The root of this checkout.
pub(crate) fn repository() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root_with(set: &[(&str, &str)]) -> Result<PathBuf> {
        choose_root(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value)))
    }

    #[test]
    fn the_named_home_wins_over_the_cache_and_the_home_directory() {
        let all = [("LOCKSTEP_HOME", "/a"), ("XDG_CACHE_HOME", "/b"), ("HOME", "/c")];
        assert_eq!(root_with(&all).unwrap(), Path::new("/a"));
        assert_eq!(root_with(&all[1..]).unwrap(), Path::new("/b/lockstep"));
        assert_eq!(root_with(&all[2..]).unwrap(), Path::new("/c/.cache/lockstep"));
    }

    #[test]
    fn a_relative_or_missing_home_is_refused_with_the_remedy() {
        assert!(root_with(&[("LOCKSTEP_HOME", "here")]).unwrap_err().to_string().contains("LOCKSTEP_HOME"));
        assert!(root_with(&[]).unwrap_err().to_string().contains("LOCKSTEP_HOME"));
    }
}
