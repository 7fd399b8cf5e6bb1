//! The command `lockstep`, built from this very source, beside the tests.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;
use tokio::sync::OnceCell;

static BUILT: OnceCell<PathBuf> = OnceCell::const_new();
/// Set by whoever runs all tests, and has built the command once for all of them.
const BUILT_VARIABLE: &str = "LOCKSTEP_COMMAND";

/// Where the command is.
pub async fn command_line() -> Result<&'static PathBuf> {
    BUILT
        .get_or_try_init(async || match std::env::var_os(BUILT_VARIABLE) {
            Some(path) => Ok(path.into()),
            None => build().await,
        })
        .await
}

async fn build() -> Result<PathBuf> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let build = Command::new(cargo).args(["build", "--quiet", "--workspace", "--bin", "lockstep"]).status().await?;
    ensure!(build.success(), "lockstep-cli does not build");
    // target/…/debug/deps/cli-…
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(|deps| deps.parent()).context("the test is not in a target folder")?;
    Ok(folder.join("lockstep"))
}
