//! Where work is done that takes long or a deep stack: not on the threads that serve others.

use std::sync::Arc;
use std::thread;

use lockstep_core::validation::{AT_ONCE, STACK_BYTES};
use tokio::sync::{Semaphore, oneshot};

/// Clones share their turns.
#[derive(Debug, Clone)]
pub struct Workshop(Option<Arc<Semaphore>>);

/// How much a piece of work takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// A moment on another thread.
    Light,
    /// A good part of our memory, and a deep stack: few such are done at the same time, the others wait for their turn.
    Heavy,
}

impl Workshop {
    /// With threads of its own.
    pub fn threads() -> Self {
        Self(Some(Arc::new(Semaphore::new(AT_ONCE))))
    }

    /// For a simulation: everything is done at once by whoever asks.
    pub fn inline() -> Self {
        Self(None)
    }

    /// What came of it; or why nobody knows.
    pub async fn run<T: Send + 'static>(
        &self,
        effort: Effort,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        match (&self.0, effort) {
            (None, _) => Ok(work()),
            (Some(turns), Effort::Heavy) => {
                // Nobody closes it.
                let turn = Arc::clone(turns).acquire_owned().await.ok();
                let done = start(move || {
                    // It is over when the work is, also if nobody waits for that any more.
                    let _turn = turn;
                    work()
                });
                done?.await.map_err(|_| FAILED.to_owned())
            }
            #[expect(clippy::disallowed_methods, reason = "the one place that starts threads")]
            (Some(_), Effort::Light) => tokio::task::spawn_blocking(work).await.map_err(|_| FAILED.to_owned()),
        }
    }
}

const FAILED: &str = "evaluating it failed unexpectedly";

/// Begins the work on a thread with a deep stack.
fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<oneshot::Receiver<T>, String> {
    let (sender, receiver) = oneshot::channel();
    let thread = thread::Builder::new().stack_size(STACK_BYTES);
    let started = thread.spawn(move || drop(sender.send(work())));
    started.map(|_| receiver).map_err(|error| format!("no thread could be started for it: {error}"))
}

/// Does the work on a thread with a deep stack, and waits for it.
pub fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let started = thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = started.map_err(|error| format!("no thread could be started for it: {error}"))?;
        thread.join().map_err(|_| FAILED.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn no_more_than_a_few_are_at_work() {
        let (workshop, counts) = (Workshop::threads(), Arc::new((AtomicUsize::new(0), AtomicUsize::new(0))));
        let together = Arc::new(Barrier::new(AT_ONCE));
        let work = |_| {
            let (counts, together) = (Arc::clone(&counts), Arc::clone(&together));
            workshop.run(Effort::Heavy, move || {
                let (at_work, most) = &*counts;
                most.fetch_max(at_work.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // As many as there are turns are at work together; more would be seen now.
                together.wait();
                thread::sleep(Duration::from_millis(10));
                at_work.fetch_sub(1, Ordering::SeqCst);
            })
        };
        let done = futures::future::join_all((0..8 * AT_ONCE).map(work)).await;
        assert!(done.iter().all(Result::is_ok));
        assert_eq!(counts.1.load(Ordering::SeqCst), AT_ONCE);
    }

    #[tokio::test]
    async fn work_that_fails_takes_nothing_else_along() {
        let workshop = Workshop::threads();
        for effort in [Effort::Light, Effort::Heavy, Effort::Heavy, Effort::Heavy] {
            assert_eq!(workshop.run(effort, || -> u8 { panic!("on purpose") }).await, Err(FAILED.to_owned()));
        }
        assert_eq!(workshop.run(Effort::Heavy, || 1).await, Ok(1), "turns are given back");
        assert_eq!(on_deep_stack(|| -> u8 { panic!("on purpose") }), Err(FAILED.to_owned()));
    }

    #[tokio::test]
    async fn inline_is_on_the_thread_of_who_asks() {
        let here = thread::current().id();
        let inline = Workshop::inline();
        for effort in [Effort::Light, Effort::Heavy] {
            assert_eq!(inline.run(effort, || thread::current().id()).await, Ok(here));
        }
        assert_ne!(Workshop::threads().run(Effort::Heavy, || thread::current().id()).await, Ok(here));
    }
}
