//! Deferred destruction, and the resident kernels that it waits for.
//!
//! A host callback must not call CUDA, so an object dropped inside one is destroyed later, by an
//! ordinary thread. Some waits would break captures in progress, or are refused because of them;
//! an object that needs such a wait is destroyed after the captures. And an object that the driver
//! destroys only when the whole device is idle would wait for a resident kernel, which runs until
//! the host asks it to stop: it is destroyed when no kernel is resident.
//!
//! This is all that resident kernels ask of the rest of the crate: a destructor passes its driver
//! call to [`destroy_or_defer`], and holds a [`NoResidentKernels`] over a call that waits for the
//! whole device. Contexts are numbers here (`Context::key`).
//!
//! Invariants: no kernel becomes resident between the check of a [`NoResidentKernels`] and its
//! drop, but after a timeout. No lock is held while something is destroyed, because that may run
//! the user's code. Released bytes are counted from the drop of their last owner until the driver's
//! free function was called. Elsewhere: registering a resident kernel (`resident`).

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::callback::is_in_callback;
use crate::ids::next_id;
use crate::lock::lock;

/// Outcome of an attempt to destroy something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum DestroyOutcome {
    Done,
    /// Retry whenever a thread allocates or waits.
    Retry,
    /// The same, once no kernel is resident.
    RetryWhenNoneResident,
}

type DestroyFn = Box<dyn FnMut() -> DestroyOutcome + Send>;

/// The most attempts in one pass: each may defer more.
const MAX_ATTEMPTS: usize = 1 << 16;

static DEFERRED: Mutex<VecDeque<DestroyFn>> = Mutex::new(VecDeque::new());
/// How many are in `DEFERRED` or being attempted at the moment.
static PENDING: AtomicUsize = AtomicUsize::new(0);

/// Resident kernels, and what is destroyed when there are none.
static RESIDENT: Mutex<ResidentKernels> = Mutex::new(ResidentKernels {
    kernels: Vec::new(),
    device_waits: 0,
    waiting: Vec::new(),
});
static NO_DEVICE_WAITS: Condvar = Condvar::new();

/// The longest that a kernel about to become resident waits for calls that wait for the device. It
/// must not wait for ever: they may be waiting for work that depends on what that kernel does.
const DEVICE_WAIT_TIMEOUT: Duration = Duration::from_secs(1);

struct ResidentKernels {
    kernels: Vec<ResidentKernel>,
    /// Destroy calls in progress that wait for the whole device.
    device_waits: usize,
    waiting: Vec<DestroyFn>,
}

/// A kernel that runs until the host asks it to stop.
struct ResidentKernel {
    id: u64,
    context: usize,
    /// Set once it was asked to stop: the time by which it will have.
    stops_by: Option<Instant>,
}

/// Runs `destroy` now or, inside a callback, later; and again, whenever a thread allocates or
/// waits, until it returns [`DestroyOutcome::Done`].
pub(crate) fn destroy_or_defer(mut destroy: impl FnMut() -> DestroyOutcome + Send + 'static) {
    let outcome = match is_in_callback() {
        true => DestroyOutcome::Retry,
        false => destroy(),
    };
    if outcome != DestroyOutcome::Done {
        PENDING.fetch_add(1, Ordering::AcqRel);
        defer(Box::new(destroy), outcome);
    }
}

/// Calls `destroy` whenever a thread allocates or waits through this crate, outside of host
/// callbacks, until it returns that it has destroyed what it has. For an object that cannot be
/// destroyed now. `destroy` may be called in any thread, so it must not wait for anything.
pub fn destroy_later(mut destroy: impl FnMut() -> bool + Send + 'static) {
    let attempt = move || match destroy() {
        true => DestroyOutcome::Done,
        false => DestroyOutcome::Retry,
    };
    PENDING.fetch_add(1, Ordering::AcqRel);
    defer(Box::new(attempt), DestroyOutcome::Retry);
}

/// Runs the deferred destructions that are possible by now, as every thread that allocates or
/// waits does. Returns whether none is left, except those that wait for a resident kernel
/// ([`Context::guard_resident_kernel`](crate::Context::guard_resident_kernel)).
pub fn destroy_deferred() -> bool {
    drain();
    PENDING.load(Ordering::Acquire) == 0
}

/// Queues one of the [`PENDING`], by its outcome.
fn defer(destroy: DestroyFn, outcome: DestroyOutcome) {
    if outcome == DestroyOutcome::RetryWhenNoneResident {
        let mut resident = lock(&RESIDENT);
        if !resident.kernels.is_empty() {
            resident.waiting.push(destroy);
            PENDING.fetch_sub(1, Ordering::AcqRel);
            return;
        }
    }
    lock(&DEFERRED).push_back(destroy);
}

/// Whether a kernel is resident, on any device: drivers differ in what they wait for.
pub(crate) fn has_resident_kernel() -> bool {
    !lock(&RESIDENT).kernels.is_empty()
}

/// Guard under which no kernel is resident. To be held over a driver call that waits for the whole
/// device, and no longer.
pub(crate) struct NoResidentKernels(());

impl NoResidentKernels {
    pub(crate) fn acquire() -> Result<Self, DestroyOutcome> {
        let mut resident = lock(&RESIDENT);
        match resident.kernels.is_empty() {
            true => resident.device_waits += 1,
            false => return Err(DestroyOutcome::RetryWhenNoneResident),
        }
        Ok(Self(()))
    }
}

impl Drop for NoResidentKernels {
    fn drop(&mut self) {
        lock(&RESIDENT).device_waits -= 1;
        NO_DEVICE_WAITS.notify_all();
    }
}

/// Registers a kernel as resident in a context and returns its identifier.
pub(crate) fn begin_resident_kernel(context: usize) -> u64 {
    let id = next_id();
    let mut resident = lock(&RESIDENT);
    // Before the wait, so that no more calls begin.
    resident.kernels.push(ResidentKernel {
        id,
        context,
        stops_by: None,
    });
    drop(
        NO_DEVICE_WAITS.wait_timeout_while(resident, DEVICE_WAIT_TIMEOUT, |resident| {
            resident.device_waits > 0
        }),
    );
    id
}

/// Notes that the kernel was asked to stop, and may take as long as `timeout`.
pub(crate) fn note_stop_requested(id: u64, timeout: Duration) {
    let mut resident = lock(&RESIDENT);
    let mut kernels = resident.kernels.iter_mut();
    if let Some(it) = kernels.find(|it| it.id == id) {
        it.stops_by = Instant::now().checked_add(timeout);
    }
}

/// The time by which the kernels of a context that were asked to stop will have stopped.
pub(crate) fn resident_kernels_stop_by(context: usize) -> Option<Instant> {
    let resident = lock(&RESIDENT);
    let kernels = resident.kernels.iter().filter(|it| it.context == context);
    kernels.filter_map(|it| it.stops_by).max()
}

/// Removes a kernel that has ended, if it is still registered.
pub(crate) fn end_resident_kernel(id: u64) {
    remove_resident_kernels(|it| it.id == id);
}

/// Removes all kernels of a context that is gone.
pub(crate) fn end_resident_kernels_in(context: usize) {
    remove_resident_kernels(|it| it.context == context);
}

/// Calls no driver: what was waiting is destroyed when a thread allocates or waits.
fn remove_resident_kernels(has_ended: impl Fn(&ResidentKernel) -> bool) {
    let mut resident = lock(&RESIDENT);
    resident.kernels.retain(|it| !has_ended(it));
    if resident.kernels.is_empty() {
        let waiting = std::mem::take(&mut resident.waiting);
        drop(resident);
        PENDING.fetch_add(waiting.len(), Ordering::AcqRel);
        lock(&DEFERRED).extend(waiting);
    }
}

/// Whether a kernel is resident in a context.
pub(crate) fn has_resident_kernel_in(context: usize) -> bool {
    let resident = lock(&RESIDENT);
    resident.kernels.iter().any(|it| it.context == context)
}

/// Runs the deferred destructions, as far as they are possible now.
#[inline]
pub(crate) fn drain() {
    if PENDING.load(Ordering::Acquire) > 0 && !is_in_callback() {
        drain_all();
    }
}

#[cold]
fn drain_all() {
    let mut panicked = None;
    // Once each, one by one: a slow one does not block another thread's pass. And those that are
    // deferred because something is destroyed now, such as what waited for a resident kernel.
    let mut count = lock(&DEFERRED).len();
    let (mut attempts, mut again) = (0, 0);
    while attempts < count.min(MAX_ATTEMPTS) {
        let Some(mut destroy) = lock(&DEFERRED).pop_front() else {
            break;
        };
        attempts += 1;
        let before = PENDING.load(Ordering::Acquire);
        // It may drop a value of the user's, which may panic. The others must not be lost because
        // of that: they hold resources that work may still use.
        let outcome = catch_unwind(AssertUnwindSafe(&mut destroy)).unwrap_or_else(|payload| {
            panicked.get_or_insert(payload);
            DestroyOutcome::Done
        });
        let more = PENDING.load(Ordering::Acquire).saturating_sub(before);
        match outcome {
            DestroyOutcome::Done => drop(PENDING.fetch_sub(1, Ordering::AcqRel)),
            outcome => {
                defer(destroy, outcome);
                again += 1;
            }
        }
        if more > 0 {
            // They are queued behind those that were attempted in vain.
            count += more + again;
            again = 0;
        }
    }
    if let Some(payload) = panicked {
        resume_unwind(payload);
    }
}

/// Released bytes that are not free yet, by context.
static DEFERRED_BYTES: Mutex<BTreeMap<usize, u64>> = Mutex::new(BTreeMap::new());

/// Bytes that are counted as a deferred free until this is dropped
/// ([`Context::count_deferred_free`](crate::Context::count_deferred_free)).
#[derive(Debug)]
#[must_use]
pub struct DeferredFrees {
    context: usize,
    bytes: u64,
}

impl DeferredFrees {
    pub(crate) fn count(context: usize, bytes: u64) -> Self {
        *lock(&DEFERRED_BYTES).entry(context).or_default() += bytes;
        Self { context, bytes }
    }
}

impl Drop for DeferredFrees {
    fn drop(&mut self) {
        if let Some(bytes) = lock(&DEFERRED_BYTES).get_mut(&self.context) {
            *bytes -= self.bytes;
        }
    }
}

/// The deferred bytes of a context.
pub(crate) fn deferred_bytes_in(context: usize) -> u64 {
    lock(&DEFERRED_BYTES).get(&context).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callback::run_as_callback;

    /// The queue is the process's, so the tests run one at a time.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn one_pass_reaches_what_it_defers_itself() {
        let _alone = lock(&ALONE);
        static DONE: AtomicUsize = AtomicUsize::new(0);
        fn defers(more: usize) {
            let mut is_deferred = false;
            destroy_or_defer(move || {
                if !std::mem::replace(&mut is_deferred, true) {
                    return DestroyOutcome::Retry;
                }
                if more > 0 {
                    defers(more - 1);
                }
                DONE.fetch_add(1, Ordering::SeqCst);
                DestroyOutcome::Done
            });
        }
        // Some cannot be destroyed meanwhile.
        let (hold, held) = (std::sync::Arc::new(()), [(); 3]);
        for () in held {
            let holds = std::sync::Arc::downgrade(&hold);
            destroy_or_defer(move || match holds.upgrade() {
                Some(_) => DestroyOutcome::Retry,
                None => DestroyOutcome::Done,
            });
        }
        defers(4);
        drain();
        assert_eq!(DONE.load(Ordering::SeqCst), 5);
        drop(hold);
        drain();
    }

    #[test]
    fn a_panic_in_one_destruction_does_not_lose_the_others() {
        let _alone = lock(&ALONE);
        static SECOND: AtomicUsize = AtomicUsize::new(0);
        static THIRD: AtomicUsize = AtomicUsize::new(0);
        run_as_callback(|| {
            destroy_or_defer(|| panic!("a user's drop"));
            destroy_or_defer(|| match SECOND.fetch_add(1, Ordering::SeqCst) {
                0 => DestroyOutcome::Retry,
                _ => DestroyOutcome::Done,
            });
            destroy_or_defer(|| {
                THIRD.fetch_add(1, Ordering::SeqCst);
                DestroyOutcome::Done
            });
        });
        let payload = catch_unwind(drain).expect_err("the panic is passed on");
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"a user's drop"));
        // The second was not done the first time.
        drain();
        drain();
        let ran = [&SECOND, &THIRD].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(ran, [2, 1]);
    }
}
