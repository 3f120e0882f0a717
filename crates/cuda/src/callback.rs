//! The rule that a host callback must not call CUDA, and how destructors keep
//! it: what is dropped inside a callback is destroyed later, by an ordinary
//! thread.
//!
//! Invariant: between `enter` and its end no function of the driver is called
//! by this thread through this crate.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

type Destroy = Box<dyn FnOnce() + Send>;

static LATER: Mutex<Vec<Destroy>> = Mutex::new(Vec::new());
static ANY: AtomicBool = AtomicBool::new(false);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread runs a host callback.
#[inline]
pub(crate) fn inside() -> bool {
    INSIDE.get()
}

/// Runs `body` as a host callback.
pub(crate) fn enter<R>(body: impl FnOnce() -> R) -> R {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            INSIDE.set(self.0);
        }
    }
    let _leave = Leave(INSIDE.replace(true));
    body()
}

/// Runs `destroy` now, or when a thread outside callbacks next allocates or
/// waits.
pub(crate) fn outside(destroy: impl FnOnce() + Send + 'static) {
    if inside() {
        let mut later = LATER
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        later.push(Box::new(destroy));
        ANY.store(true, Ordering::Release);
    } else {
        destroy();
    }
}

/// Destroys what callbacks left behind.
#[inline]
pub(crate) fn drain() {
    if ANY.load(Ordering::Acquire) && !inside() {
        drain_all();
    }
}

#[cold]
fn drain_all() {
    let later = {
        let mut later = LATER
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        ANY.store(false, Ordering::Release);
        std::mem::take(&mut *later)
    };
    for destroy in later {
        destroy();
    }
}
