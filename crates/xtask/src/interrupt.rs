//! Ctrl-C while we own a cluster: remove it before leaving.

use std::process::exit;
use std::thread::{self, JoinHandle};

use anyhow::Result;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::cluster;
use crate::home::Home;
use crate::progress::note;

/// What a shell reports for a program that SIGINT ended.
const INTERRUPTED: i32 = 130;

/// As long as it lives, an interrupt takes the cluster down and ends the program.
#[derive(Debug)]
pub(crate) struct Guard {
    handle: Handle,
    watcher: Option<JoinHandle<()>>,
}

impl Guard {
    pub(crate) fn set(home: &Home) -> Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let handle = signals.handle();
        let home = home.clone();
        let watcher = thread::spawn(move || {
            if signals.forever().next().is_some() {
                note("\ninterrupted: removing what was started");
                if let Err(error) = cluster::abandon(&home) {
                    note(&format!("error: {error:#}"));
                }
                exit(INTERRUPTED);
            }
        });
        Ok(Self { handle, watcher: Some(watcher) })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.handle.close();
        // If the watcher is removing the cluster right now, it ends the program itself.
        let _ = self.watcher.take().map(JoinHandle::join);
    }
}
