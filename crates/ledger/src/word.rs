//! The operations on a shared word that the lock-free parts are written in.
//!
//! Two implementations: the machine's, and in tests loom's, which tries the
//! orders that the machine could. So what loom has checked is what runs.

use std::sync::atomic::{AtomicU64, Ordering};

/// A shared 64-bit word.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    /// Whether `old` was there and is now `new`; orders as an acquire-release
    /// if so, and not at all if not.
    fn replace(&self, old: u64, new: u64) -> bool;
    /// A sequentially consistent fence.
    fn fence();
}

macro_rules! word {
    ($word:ty, $fence:path) => {
        impl Word for $word {
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

/// Runs `model` in every order that its threads and atomics allow in which a
/// thread is interrupted at most so often.
#[cfg(test)]
pub(crate) fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}
