//! Injected panics of interposed functions, for tests.
//!
//! Only in builds with debug assertions; no environment variable reaches it, only a program
//! that calls it.

use core::ffi::c_uint;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The period of injected panics, in governor accesses; 0 for none.
static PANIC_PERIOD: AtomicU32 = AtomicU32::new(0);

/// Makes one governor access in `every` panic from now on; 0 for none.
// SAFETY: nothing else has this name.
#[unsafe(no_mangle)]
extern "C" fn fercuda_fail(every: c_uint) {
    PANIC_PERIOD.store(every, Relaxed);
}

/// Panics if this access is one that a test has requested to fail.
pub(crate) fn panic_if_requested() {
    static ACCESSES: AtomicU32 = AtomicU32::new(0);
    let period = PANIC_PERIOD.load(Relaxed);
    if period > 0 && ACCESSES.fetch_add(1, Relaxed) % period == period - 1 {
        panic!("a test wants this interposed function to fail");
    }
}
