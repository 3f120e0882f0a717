//! Fault injection for tests: breaks a reuse rule of a pool.
//!
//! Only in builds with debug assertions; no environment variable reaches it, only a program
//! that calls it.

use core::ffi::{c_int, c_uint};

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
