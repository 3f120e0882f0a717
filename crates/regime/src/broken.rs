//! Lets a test break a rule of reuse, or make what is ours fail. In builds for
//! tests alone (feature `broken-rules`); no variable reaches it, only a program
//! that calls it.

use core::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use fercuda_pool::ReuseRule;

use crate::process::governor;

/// Breaks a rule in a device's pool; 0 if it is broken now.
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

/// Of so many times that a door asks for the governor the last fails; 0: none.
static EVERY: AtomicU32 = AtomicU32::new(0);

/// From now on every so many a door fails.
// SAFETY: nothing else has this name.
#[unsafe(no_mangle)]
extern "C" fn fercuda_fail(every: c_uint) {
    EVERY.store(every, Relaxed);
}

/// Fails, if a test wants it.
pub(crate) fn fail() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let every = EVERY.load(Relaxed);
    if every > 0 && ASKED.fetch_add(1, Relaxed) % every == every - 1 {
        panic!("a test wants this door to fail");
    }
}
