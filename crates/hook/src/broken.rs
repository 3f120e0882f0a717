//! Lets a test break a rule of reuse. In builds for tests alone (feature
//! `broken-rules`); no variable reaches it, only a program that calls it.

use core::ffi::{c_int, c_uint};

use fercuda_pool::Rule;

use crate::regime::governor;

/// Breaks a rule in a device's pool; 0 if it is broken now.
// SAFETY: nothing else has this name.
#[unsafe(no_mangle)]
extern "C" fn fercuda_break_rule(device: c_uint, rule: c_uint) -> c_int {
    let rules = [
        Rule::OthersWait,
        Rule::WaitsHaveAnEnd,
        Rule::MarksHaveAnEnd,
        Rule::AnywhereWaits,
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
