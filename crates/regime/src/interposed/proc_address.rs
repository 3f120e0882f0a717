//! `cuGetProcAddress`, which returns pointers to the driver's functions.

use core::ffi::{CStr, c_char, c_int, c_void};

use fercuda_cuda_sys::types::{CUdriverProcAddressQueryResult, CUresult};
use fercuda_cuda_sys::{Driver, Missing};

use crate::process::{call_driver, catch_panic};
use crate::substitute::substitute;

/// Replaces the pointer that the driver returns by the interposed function.
///
/// # Safety
/// If the driver returns success, `symbol` is null or a C string, and `pointer` is null or
/// was written.
unsafe fn substitute_result(
    symbol: *const c_char,
    pointer: *mut *mut c_void,
    call: impl FnOnce(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    let result = call_driver(call);
    if result == CUresult::CUDA_SUCCESS && !symbol.is_null() && !pointer.is_null() {
        // SAFETY: see above.
        unsafe {
            let requested = CStr::from_ptr(symbol).to_bytes();
            if let Some(function) = catch_panic(|| Some(substitute(*pointer, requested))) {
                *pointer = function;
            }
        }
    }
    result
}

pub(super) unsafe extern "C" fn get_proc_address_v2(
    symbol: *const c_char,
    pointer: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    // SAFETY: the program's own arguments.
    unsafe {
        substitute_result(symbol, pointer, |driver| {
            driver.cuGetProcAddress_v2(symbol, pointer, version, flags, status)
        })
    }
}

pub(super) unsafe extern "C" fn get_proc_address_v1(
    symbol: *const c_char,
    pointer: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CUresult {
    // SAFETY: the program's own arguments.
    unsafe {
        substitute_result(symbol, pointer, |driver| {
            driver.cuGetProcAddress(symbol, pointer, version, flags)
        })
    }
}
