//! Keeps the machine busy beside the end-to-end tests: what is right only on a quiet one is not right.

use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Threads that compute until this is dropped.
pub(super) struct Hog(Arc<AtomicBool>);

impl Hog {
    pub(super) fn start(threads: u32) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        for _ in 0..threads {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    hint::black_box((0_u64..100_000).fold(0, |sum, n| hint::black_box(sum ^ n)));
                }
            });
        }
        Self(is_over)
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
