//! A panic of a simulated process ends that process only, and is a violation: so it is noted, by thread, as each schedule has its own.

use std::cell::RefCell;
use std::panic;

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// From now on panics are noted instead of printed.
pub fn note() {
    panic::set_hook(Box::new(|panic| {
        let text = panic.to_string();
        LAST.with_borrow_mut(|last| *last = Some(last.take().unwrap_or(text)));
    }));
}

/// What panicked on this thread since the last time, if anything.
pub fn take() -> Option<String> {
    LAST.with_borrow_mut(Option::take)
}
