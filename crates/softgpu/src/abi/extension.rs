//! Functions of the software device that no driver has, found by `cuGetProcAddress`.
//!
//! An allocator on top of a driver asks for them by name. A driver answers that there is no such
//! function, so they cost nothing there.
//!
//! | name | type | meaning |
//! |---|---|---|
//! | `fercudaChecksAllocations` | `int (void)` | 1 if accesses are checked, else 0 |
//!
//! Where accesses are checked, an allocator should pass requests on instead of cutting blocks from
//! memory of its own. Only then does the device know a block's bounds, that it was freed in a
//! stream's order, and which of its bytes were written. Guards and quarantine stay uncharged.

use std::ffi::c_int;
use std::ptr::NonNull;

use crate::device::machine;

/// The address of an extension.
pub(super) fn find(name: &str) -> Option<NonNull<std::ffi::c_void>> {
    match name {
        "fercudaChecksAllocations" => {
            let function: extern "C" fn() -> c_int = checks_allocations;
            NonNull::new(function as *mut std::ffi::c_void)
        }
        _ => None,
    }
}

extern "C" fn checks_allocations() -> c_int {
    machine().map_or(0, |m| c_int::from(m.config.checks))
}
