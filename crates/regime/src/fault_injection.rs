//! Fault injection for tests: breaks a reuse rule of a pool, or makes interposed
//! functions panic.
//!
//! Only in builds with debug assertions; no environment variable reaches it, only a program
//! that calls it.

use core::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use fercuda_pool::ReuseRule;

use crate::process::governor;

/// Breaks a rule in a device's pool; returns 0 if the rule is now broken.
// SAFETY: nothing else has this name.
#[unsafe(no_mangle)]
extern "C" fn fercuda_break_rule(device: c_uint, rule: c_uint) -> c_int {
    let rules = [
        ReuseRule::OthersWait,
        ReuseRule::WaitsHaveAnEnd,
        ReuseRule::FencesHaveAnEnd,
        ReuseRule::AnywhereWaits,
    ];
    let device = governor().and_then(|governor| governor.device(device));
    match (device, rules.get(rule as usize)) {
        (Some(device), Some(rule)) => {
            for region in device.regions() {
                region.break_rule(*rule);
            }
            0
        }
        _ => 1,
    }
}

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
