//! When things may be destroyed.
//!
//! A host callback must not call CUDA, so what is dropped inside one is
//! destroyed later, by an ordinary thread. And some waits break the captures
//! that run, or are refused because of them; what needs such a wait is
//! destroyed after them.
//!
//! Invariant: between `enter` and its end no function of the driver is called
//! by this thread through this crate.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Destroys something and says whether it did; else it is to be asked again.
type Destroy = Box<dyn FnMut() -> bool + Send>;

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

/// Runs `destroy` now or, inside a callback, later; and again, whenever a
/// thread allocates or waits, until it answers `true`.
pub(crate) fn outside(mut destroy: impl FnMut() -> bool + Send + 'static) {
    if inside() || !destroy() {
        later([Box::new(destroy) as Destroy]);
    }
}

fn later(more: impl IntoIterator<Item = Destroy>) {
    let mut later = LATER.lock().unwrap_or_else(PoisonError::into_inner);
    later.extend(more);
    ANY.store(!later.is_empty(), Ordering::Release);
}

/// Whether captures of this crate's run.
pub(crate) fn captures_run() -> bool {
    CAPTURES.load(Ordering::Acquire) > 0
}

/// Counts a capture that begins.
pub(crate) fn capture_begins() {
    CAPTURES.fetch_add(1, Ordering::AcqRel);
}

/// Counts a capture that has ended.
pub(crate) fn capture_ended() {
    CAPTURES.fetch_sub(1, Ordering::AcqRel);
}

/// Destroys what was left behind, as far as that is possible now.
#[inline]
pub(crate) fn drain() {
    if ANY.load(Ordering::Acquire) && !inside() {
        drain_all();
    }
}

#[cold]
fn drain_all() {
    let mut left = {
        let mut later = LATER.lock().unwrap_or_else(PoisonError::into_inner);
        ANY.store(false, Ordering::Release);
        std::mem::take(&mut *later)
    };
    left.retain_mut(|destroy| !destroy());
    later(left);
}
