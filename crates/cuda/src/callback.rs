//! When things may be destroyed.
//!
//! A host callback must not call CUDA, so what is dropped inside one is
//! destroyed later, by an ordinary thread. And some waits break the captures
//! that run, or are refused because of them; what needs such a wait is
//! destroyed after them. And what the driver destroys only when the whole
//! device is idle would wait for a kernel that stays until the host tells it
//! to end: that is destroyed when none does.
//!
//! Invariant: between `enter` and its end no function of the driver is called
//! by this thread through this crate.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::uses::lock;

/// Destroys something and says whether it did; else it is to be asked again.
type Destroy = Box<dyn FnMut() -> bool + Send>;

static LATER: Mutex<Vec<Destroy>> = Mutex::new(Vec::new());
static ANY: AtomicBool = AtomicBool::new(false);

/// How many captures of this crate's run.
static CAPTURES: AtomicUsize = AtomicUsize::new(0);

/// Kernels that stay, and what is destroyed when none does.
static STAYS: Mutex<Stays> = Mutex::new(Stays {
    contexts: Vec::new(),
    waiting: Vec::new(),
});

struct Stays {
    /// The context of each.
    contexts: Vec<usize>,
    waiting: Vec<Destroy>,
}

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

/// Asks `destroy` whenever a thread allocates or waits through this crate, outside of host
/// callbacks, until it says that it has destroyed what it has. For what cannot be destroyed
/// now: it may be called in any thread, so it waits for nothing.
pub fn destroy_later(destroy: impl FnMut() -> bool + Send + 'static) {
    later([Box::new(destroy) as Destroy]);
}

/// As [`outside`] for what waits for the whole device when it is destroyed: also later
/// while a kernel stays there. Drivers differ in what they wait for, so a kernel on
/// any device of the process counts.
pub(crate) fn when_none_stays(destroy: impl FnMut() -> bool + Send + 'static) {
    let mut destroy: Option<Destroy> = Some(Box::new(destroy));
    outside(move || {
        let Some(mut it) = destroy.take() else {
            return true;
        };
        let mut stays = lock(&STAYS);
        if !stays.contexts.is_empty() {
            stays.waiting.push(it);
            return true;
        }
        drop(stays);
        let is_done = it();
        destroy = Some(it).filter(|_| !is_done);
        is_done
    });
}

/// A kernel stays in a context from now on.
pub(crate) fn stay_begins(context: usize) {
    lock(&STAYS).contexts.push(context);
}

/// It does no more. Calls no driver: what was waiting goes when a thread allocates or
/// waits.
pub(crate) fn stay_ended(context: usize) {
    let mut stays = lock(&STAYS);
    if let Some(at) = stays.contexts.iter().position(|it| *it == context) {
        stays.contexts.swap_remove(at);
    }
    if stays.contexts.is_empty() {
        let waiting = std::mem::take(&mut stays.waiting);
        drop(stays);
        later(waiting);
    }
}

/// Whether a kernel stays in a context.
pub(crate) fn stays_in(context: usize) -> bool {
    lock(&STAYS).contexts.contains(&context)
}

fn later(more: impl IntoIterator<Item = Destroy>) {
    let mut later = lock(&LATER);
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
        let mut later = lock(&LATER);
        ANY.store(false, Ordering::Release);
        std::mem::take(&mut *later)
    };
    let mut panicked = None;
    left.retain_mut(|destroy| {
        // What is dropped in there may be the user's and panic. The others
        // must not be lost for that: they hold what work may still use.
        let destroyed = catch_unwind(AssertUnwindSafe(destroy)).unwrap_or_else(|payload| {
            panicked.get_or_insert(payload);
            true
        });
        !destroyed
    });
    later(left);
    if let Some(payload) = panicked {
        resume_unwind(payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_in_one_destruction_does_not_lose_the_others() {
        static SECOND: AtomicUsize = AtomicUsize::new(0);
        static THIRD: AtomicUsize = AtomicUsize::new(0);
        enter(|| {
            outside(|| panic!("a user's drop"));
            outside(|| SECOND.fetch_add(1, Ordering::SeqCst) == 1);
            outside(|| THIRD.fetch_add(1, Ordering::SeqCst) == 0);
        });
        let told = catch_unwind(drain).expect_err("the panic is passed on");
        assert_eq!(told.downcast_ref::<&str>(), Some(&"a user's drop"));
        // The second was not done the first time.
        drain();
        drain();
        let ran = [&SECOND, &THIRD].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(ran, [2, 1]);
    }
}
