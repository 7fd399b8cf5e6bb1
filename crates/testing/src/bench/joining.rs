//! Code and config changed in one step: how often that makes one ReplicaSet, on a quiet machine and on a busy one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Result;
use lockstep_testing::joining::{TOOLS, count_joined};

use crate::results::Rows;
use crate::stage::Bench;

pub(crate) const NAME: &str = "joining";
const CHANGES: usize = 100;

pub(crate) fn about() -> String {
    format!("{CHANGES} changes of code and config in one step by each of {} tools, quiet and busy", TOOLS.len())
}

pub(crate) async fn measure(bench: &Bench, rows: &mut Rows) -> Result<()> {
    bench
        .on_stage(NAME, async |stage| {
            let scenario = stage.scenario();
            for (name, is_busy) in [("quiet", false), ("busy", true)] {
                eprintln!("… {CHANGES} changes with each tool, on a {name} machine");
                let _load = is_busy.then(Load::start);
                let joined = count_joined(&scenario, name, CHANGES).await?;
                for (tool, joined) in TOOLS.iter().zip(joined) {
                    rows.add(format!("`{tool}`, {name}: one ReplicaSet"), joined, "changes")
                        .note(format!("of {CHANGES}"));
                }
            }
            Ok(())
        })
        .await
}

/// Work for all cores, until it is dropped.
struct Load(Arc<AtomicBool>);

impl Load {
    fn start() -> Self {
        let goes_on = Arc::new(AtomicBool::new(true));
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let goes_on = Arc::clone(&goes_on);
            thread::spawn(move || while goes_on.load(Ordering::Relaxed) {});
        }
        Self(goes_on)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
