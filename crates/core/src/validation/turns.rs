//! Few contents are validated at the same time: each may take a good part of the memory that the operator has.

use std::sync::{Condvar, Mutex, PoisonError};

/// How many are validated at the same time; the others wait for their turn.
pub const AT_ONCE: usize = 2;

static TURNS: Turns = Turns { taken: Mutex::new(0), given_back: Condvar::new() };

struct Turns {
    taken: Mutex<usize>,
    given_back: Condvar,
}

/// Gives the turn back when it goes, also after a panic.
struct Turn<'a>(&'a Turns);

/// Does the work when it is its turn.
pub fn in_turn<T>(work: impl FnOnce() -> T) -> T {
    let _turn = TURNS.take();
    work()
}

impl Turns {
    /// Nobody who holds the lock can panic, so a poisoned lock is as good as any.
    fn take(&self) -> Turn<'_> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.given_back.wait_while(taken, |taken| *taken >= AT_ONCE);
        *free.unwrap_or_else(PoisonError::into_inner) += 1;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.given_back.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn no_more_than_a_few_are_at_work() {
        let (at_work, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    in_turn(|| {
                        most.fetch_max(at_work.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        at_work.fetch_sub(1, Ordering::SeqCst);
                    });
                });
            }
        });
        assert!((1..=AT_ONCE).contains(&most.load(Ordering::SeqCst)));
    }
}
