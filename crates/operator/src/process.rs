//! What tasks run in. In production that is the process itself; a simulation has several, each of which it can freeze, as a machine that
//! stalls would, and kill.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tokio::task::{AbortHandle, JoinHandle, JoinSet};

/// Clones are the same process.
#[derive(Clone)]
pub struct Process(Option<Arc<Mutex<Simulated>>>);

#[derive(Default)]
struct Simulated {
    is_frozen: bool,
    is_dead: bool,
    last_task: u64,
    tasks: BTreeMap<u64, AbortHandle>,
    /// The tasks that were to run while it was frozen, in the order of their start: that of their thawing must not depend on chance.
    waiting: BTreeMap<u64, Waker>,
}

impl Process {
    /// The one that this code runs in.
    pub fn system() -> Self {
        Self(None)
    }

    /// One of a simulation. It lives until it is killed.
    pub fn simulated() -> Self {
        Self(Some(Arc::default()))
    }

    /// Starts a task of this process. One that is dead starts nothing.
    pub fn spawn<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        let Some(simulated) = &self.0 else {
            #[expect(clippy::disallowed_methods, reason = "the one place that starts tasks")]
            return tokio::spawn(future);
        };
        let task = Simulated::next_task(simulated);
        #[expect(clippy::disallowed_methods, reason = "the one place that starts tasks")]
        let handle = tokio::spawn(of_process(Arc::clone(simulated), task, future));
        lock(simulated).note(task, handle.abort_handle());
        handle
    }

    /// Starts a task of this process that ends with the set, too.
    pub fn spawn_into<T: Send + 'static>(
        &self,
        set: &mut JoinSet<T>,
        future: impl Future<Output = T> + Send + 'static,
    ) {
        let Some(simulated) = &self.0 else {
            #[expect(clippy::disallowed_methods, reason = "the one place that starts tasks")]
            set.spawn(future);
            return;
        };
        let task = Simulated::next_task(simulated);
        #[expect(clippy::disallowed_methods, reason = "the one place that starts tasks")]
        let handle = set.spawn(of_process(Arc::clone(simulated), task, future));
        lock(simulated).note(task, handle);
    }

    /// From now on nothing of it runs. Time goes on, and so does what it asked others to do.
    pub fn freeze(&self) {
        if let Some(simulated) = &self.0 {
            lock(simulated).is_frozen = true;
        }
    }

    /// Everything goes on from where it stood.
    pub fn thaw(&self) {
        let Some(simulated) = &self.0 else { return };
        let waiting = {
            let mut simulated = lock(simulated);
            simulated.is_frozen = false;
            std::mem::take(&mut simulated.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
    }

    /// Ends it at once: every task is dropped where it waits.
    pub fn kill(&self) {
        let Some(simulated) = &self.0 else { return };
        let tasks = {
            let mut simulated = lock(simulated);
            simulated.is_dead = true;
            simulated.waiting.clear();
            std::mem::take(&mut simulated.tasks)
        };
        for task in tasks.into_values() {
            task.abort();
        }
    }

    pub fn is_frozen(&self) -> bool {
        self.0.as_ref().is_some_and(|simulated| lock(simulated).is_frozen)
    }

    pub fn is_dead(&self) -> bool {
        self.0.as_ref().is_some_and(|simulated| lock(simulated).is_dead)
    }
}

impl Simulated {
    fn next_task(this: &Mutex<Self>) -> u64 {
        let mut this = lock(this);
        this.last_task += 1;
        this.last_task
    }

    fn note(&mut self, task: u64, handle: AbortHandle) {
        if self.is_dead {
            handle.abort();
        } else {
            self.tasks.insert(task, handle);
        }
    }

    /// Whether the task must not run now; then it is woken when it may.
    fn holds_up(&mut self, task: u64, waker: &Waker) -> bool {
        if self.is_frozen {
            self.waiting.insert(task, waker.clone());
        }
        self.is_frozen
    }

    fn forget(&mut self, task: u64) {
        self.tasks.remove(&task);
        self.waiting.remove(&task);
    }
}

/// The future as a task of this process: it is asked only while the process runs.
fn of_process<T>(
    process: Arc<Mutex<Simulated>>,
    task: u64,
    future: impl Future<Output = T> + Send,
) -> impl Future<Output = T> + Send {
    // Here, and not when it is first asked: it may be dropped before.
    let forgets = Forgets { process, task };
    // Work carries all that it needs to know: it is put down once, and not moved again on its way into the runtime.
    let mut future = Box::pin(future);
    async move {
        poll_fn(|context| {
            let is_held_up = lock(&forgets.process).holds_up(task, context.waker());
            if is_held_up { Poll::Pending } else { future.as_mut().poll(context) }
        })
        .await
    }
}

/// However a task ends, its process does not keep it.
struct Forgets {
    process: Arc<Mutex<Simulated>>,
    task: u64,
}

impl Drop for Forgets {
    fn drop(&mut self) {
        lock(&self.process).forget(self.task);
    }
}

/// Nobody who holds the lock can panic, so a poisoned lock is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.0 {
            None => "system",
            Some(_) if self.is_dead() => "dead",
            Some(_) if self.is_frozen() => "frozen",
            Some(_) => "running",
        };
        f.debug_tuple("Process").field(&state).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use tokio::sync::mpsc;
    use tokio::time::{Instant, sleep};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Counts seconds for as long as it may.
    fn counting(process: &Process) -> (Arc<AtomicU32>, JoinHandle<()>) {
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        let task = process.spawn(async move {
            loop {
                sleep(SECOND).await;
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        (count, task)
    }

    #[tokio::test(start_paused = true)]
    async fn a_frozen_process_does_nothing_until_it_is_thawed() {
        let (process, other) = (Process::simulated(), Process::simulated());
        let ((count, _), (going, _)) = (counting(&process), counting(&other));
        sleep(SECOND * 3 / 2).await;
        process.freeze();
        assert!(process.is_frozen() && !other.is_frozen());
        sleep(SECOND * 10).await;
        assert_eq!(count.load(Ordering::SeqCst), 1, "although its timer rang");
        assert_eq!(going.load(Ordering::SeqCst), 11, "others go on");
        process.thaw();
        sleep(SECOND / 10).await;
        assert_eq!(count.load(Ordering::SeqCst), 2, "it goes on from where it stood");
        sleep(SECOND).await;
        assert_eq!(count.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_starts_while_it_is_frozen_waits_and_goes_on_in_its_order() {
        let process = Process::simulated();
        process.freeze();
        let (sender, mut receiver) = mpsc::unbounded_channel();
        for number in 0..5 {
            let sender = sender.clone();
            process.spawn(async move { sender.send(number) });
        }
        sleep(SECOND).await;
        assert!(receiver.try_recv().is_err());
        process.thaw();
        let order: Vec<i32> =
            [receiver.recv().await, receiver.recv().await, receiver.recv().await].into_iter().flatten().collect();
        assert_eq!(order, [0, 1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_killed_process_drops_everything_where_it_waits_and_starts_nothing() {
        struct Noted(Arc<AtomicU32>);
        impl Drop for Noted {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let (process, dropped) = (Process::simulated(), Arc::new(AtomicU32::new(0)));
        let mut set = JoinSet::new();
        for _ in 0..2 {
            let held = Noted(Arc::clone(&dropped));
            process.spawn_into(&mut set, async move {
                sleep(SECOND * 60).await;
                drop(held);
            });
        }
        let (count, task) = counting(&process);
        sleep(SECOND * 3 / 2).await;
        process.freeze();
        process.kill();
        let start = Instant::now();
        assert!(task.await.unwrap_err().is_cancelled());
        assert!(set.join_next().await.unwrap().unwrap_err().is_cancelled());
        sleep(SECOND / 100).await;
        assert_eq!(dropped.load(Ordering::SeqCst), 2);
        assert!(start.elapsed() < SECOND, "nothing waited for its end");
        process.thaw();
        assert!(process.spawn(async {}).await.unwrap_err().is_cancelled());
        sleep(SECOND * 5).await;
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_keeps_nothing_of_tasks_that_ended() {
        let process = Process::simulated();
        process.spawn(async {}).await.unwrap();
        let aborted = process.spawn(std::future::pending::<()>());
        aborted.abort();
        assert!(aborted.await.is_err());
        let inner = process.0.unwrap();
        assert!(lock(&inner).tasks.is_empty());
    }

    #[tokio::test]
    async fn the_process_that_we_run_in_is_neither_frozen_nor_killed() {
        let process = Process::system();
        process.freeze();
        process.kill();
        assert_eq!(process.spawn(async { 1 }).await.unwrap(), 1);
        assert!(!process.is_frozen() && !process.is_dead());
    }
}
