//! Atomic operations on a shared word, abstracted for model checking.
//!
//! Two implementations: the machine's, and in tests loom's, which explores the orders that the
//! machine could produce. So the code that loom checks is the code that runs.

use std::sync::atomic::{AtomicU64, Ordering};

/// A shared 64-bit word.
pub(crate) trait AtomicWord {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    /// Compare-and-swap: whether `old` was there and has been replaced by `new`. Acquire-release on
    /// success, relaxed on failure.
    fn replace(&self, old: u64, new: u64) -> bool;
    /// A sequentially consistent fence.
    fn fence();
}

macro_rules! word {
    ($word:ty, $fence:path) => {
        impl AtomicWord for $word {
            #[inline]
            fn load(&self, order: Ordering) -> u64 {
                self.load(order)
            }
            #[inline]
            fn store(&self, value: u64, order: Ordering) {
                self.store(value, order);
            }
            #[inline]
            fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
                self.fetch_add(value, order)
            }
            #[inline]
            fn replace(&self, old: u64, new: u64) -> bool {
                self.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            }
            #[inline]
            fn fence() {
                $fence(Ordering::SeqCst);
            }
        }
    };
}

word!(AtomicU64, std::sync::atomic::fence);
#[cfg(test)]
word!(loom::sync::atomic::AtomicU64, loom::sync::atomic::fence);

/// Runs `model` in every order that its threads and atomics allow, with at most `preemptions`
/// preemptions.
#[cfg(test)]
pub(crate) fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}
