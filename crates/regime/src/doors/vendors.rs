//! Who hands out pointers to the driver's functions.

use core::ffi::{CStr, c_char, c_int, c_void};

use fercuda_cuda_sys::types::{CUdriverProcAddressQueryResult, CUresult};
use fercuda_cuda_sys::{Driver, Missing};

use crate::exchange::exchange;
use crate::process::{ask, guarded};

/// Exchanges what the driver answers for the door before it.
///
/// # Safety
/// `symbol` is a C string, and `pointer` was written, if the driver says so.
unsafe fn exchanged(
    symbol: *const c_char,
    pointer: *mut *mut c_void,
    call: impl FnOnce(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    let result = ask(call);
    if result == CUresult::CUDA_SUCCESS && !symbol.is_null() && !pointer.is_null() {
        // SAFETY: see above.
        unsafe {
            let asked = CStr::from_ptr(symbol).to_bytes();
            if let Some(door) = guarded(|| Some(exchange(*pointer, asked))) {
                *pointer = door;
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
        exchanged(symbol, pointer, |driver| {
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
        exchanged(symbol, pointer, |driver| {
            driver.cuGetProcAddress(symbol, pointer, version, flags)
        })
    }
}
