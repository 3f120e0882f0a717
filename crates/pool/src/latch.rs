//! A lock for sections of some ten nanoseconds.
//!
//! One of the standard library's is given back by an exchange, which waits until
//! all that was written in the section has come to the cache: in a program that does
//! other things between two calls that is longer than the section. This one is given
//! back by a store.
//!
//! Invariant: who waits lets others run in the end, also one whose priority is
//! lower and whose processor this thread has.

use std::time::Duration;

use spin::mutex::{SpinMutex, SpinMutexGuard};

/// Looks while the section may end any moment: it is shorter than falling asleep.
const LOOKS: u32 = 10;
/// Looks with others let run before, if they may.
const YIELDS: u32 = 500;
/// How long a thread sleeps then: whoever has the latch was interrupted.
const SLEEP: Duration = Duration::from_micros(50);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Latch<T>(SpinMutex<T>);

/// While this is there, nobody else has what it leads to.
pub(crate) type Held<'l, T> = SpinMutexGuard<'l, T>;

impl<T> Latch<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(SpinMutex::new(value))
    }

    /// Waits until nobody has it.
    #[inline]
    pub(crate) fn lock(&self) -> Held<'_, T> {
        self.0.try_lock().unwrap_or_else(|| self.wait())
    }

    /// None if somebody has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Held<'_, T>> {
        self.0.try_lock()
    }

    #[cold]
    fn wait(&self) -> Held<'_, T> {
        for looks in 0.. {
            match looks {
                0..LOOKS => (0..1 << looks.min(5)).for_each(|_| std::hint::spin_loop()),
                LOOKS..YIELDS => std::thread::yield_now(),
                _ => std::thread::sleep(SLEEP),
            }
            // Not tried while it is had: that would take its line from who has it.
            if !self.0.is_locked()
                && let Some(held) = self.0.try_lock()
            {
                return held;
            }
        }
        unreachable!("it has looked for ever")
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    use super::*;

    #[test]
    fn one_thread_at_a_time_has_it() {
        const THREADS: u64 = 8;
        const TIMES: u64 = 50_000;
        let latch = Latch::new((0_u64, 0_u64));
        thread::scope(|threads| {
            for _ in 0..THREADS {
                threads.spawn(|| {
                    for _ in 0..TIMES {
                        let mut held = latch.lock();
                        let (first, second) = *held;
                        assert_eq!(first, second);
                        held.0 = first + 1;
                        std::hint::black_box(&mut held);
                        held.1 = second + 1;
                    }
                });
            }
        });
        assert_eq!(*latch.lock(), (THREADS * TIMES, THREADS * TIMES));
    }

    #[test]
    fn who_waits_long_has_it_in_the_end() {
        let latch = Latch::new(0);
        let mut held = latch.lock();
        assert!(latch.try_lock().is_none());
        thread::scope(|threads| {
            let waits = threads.spawn(|| *latch.lock());
            // Longer than all looks together: it sleeps by then.
            thread::sleep(SLEEP * 400);
            *held = 7;
            drop(held);
            assert_eq!(waits.join().unwrap(), 7);
        });
    }

    #[test]
    fn a_panic_leaves_it_to_others() {
        let latch = Latch::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _held = latch.lock();
            panic!("as a test wants it");
        }));
        assert!(panicked.is_err());
        assert_eq!(latch.try_lock().as_deref(), Some(&1));
    }
}
