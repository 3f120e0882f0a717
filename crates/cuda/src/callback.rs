//! When things may be destroyed.
//!
//! A host callback must not call CUDA, so what is dropped inside one is
//! destroyed later, by an ordinary thread. And waiting for a whole context
//! breaks every capture in it, so what needs that is destroyed after them.
//!
//! Invariant: between `enter` and its end no function of the driver is called
//! by this thread through this crate.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

type Destroy = Box<dyn FnOnce() + Send>;

static LATER: Mutex<Vec<Destroy>> = Mutex::new(Vec::new());
static ANY: AtomicBool = AtomicBool::new(false);

/// How many captures of this crate's run.
static CAPTURES: AtomicUsize = AtomicUsize::new(0);

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
        later(Box::new(destroy))
    } else {
        destroy()
    }
}

/// As [`outside`]; if `waits_for_all`, then when no capture runs either.
pub(crate) fn outside_captures(waits_for_all: bool, destroy: impl FnOnce() + Send + 'static) {
    if inside() || (waits_for_all && CAPTURES.load(Ordering::Acquire) > 0) {
        later(Box::new(destroy));
    } else {
        destroy();
    }
}

fn later(destroy: Destroy) {
    let mut later = LATER.lock().unwrap_or_else(PoisonError::into_inner);
    later.push(destroy);
    ANY.store(true, Ordering::Release);
}

/// Counts a capture that begins.
pub(crate) fn capture_begins() {
    CAPTURES.fetch_add(1, Ordering::AcqRel);
}

/// Counts a capture that has ended.
pub(crate) fn capture_ended() {
    CAPTURES.fetch_sub(1, Ordering::AcqRel);
}

/// Destroys what was left behind.
#[inline]
pub(crate) fn drain() {
    if ANY.load(Ordering::Acquire) && !inside() && CAPTURES.load(Ordering::Acquire) == 0 {
        drain_all();
    }
}

#[cold]
fn drain_all() {
    let later = {
        let mut later = LATER.lock().unwrap_or_else(PoisonError::into_inner);
        ANY.store(false, Ordering::Release);
        std::mem::take(&mut *later)
    };
    for destroy in later {
        destroy();
    }
}
