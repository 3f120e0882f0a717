//! Who hands out pointers to the driver's functions.

use core::ffi::{CStr, c_char, c_int, c_void};

use fercuda_cuda_sys::types::{CUdriverProcAddressQueryResult, CUresult};

use crate::bind;
use crate::real::real;
use crate::regime::{answer, guarded};

/// Exchanges what the driver answered for the door before it.
///
/// # Safety
/// `symbol` is a C string, and `pointer` was written, if the driver says so.
unsafe fn exchanged(result: CUresult, symbol: *const c_char, pointer: *mut *mut c_void) {
    if result != CUresult::CUDA_SUCCESS || symbol.is_null() || pointer.is_null() {
        return;
    }
    // SAFETY: see above.
    unsafe {
        let asked = CStr::from_ptr(symbol).to_bytes();
        if let Some(door) = guarded(|| Some(bind::exchange(*pointer, asked))) {
            *pointer = door;
        }
    }
}

pub(super) unsafe extern "C" fn get_proc_address_v2(
    symbol: *const c_char,
    pointer: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    let Some(real) = real() else {
        return CUresult::CUDA_ERROR_STUB_LIBRARY;
    };
    // SAFETY: the program's own arguments.
    unsafe {
        let asked = real
            .driver
            .cuGetProcAddress_v2(symbol, pointer, version, flags, status);
        let result = answer(asked);
        exchanged(result, symbol, pointer);
        result
    }
}

pub(super) unsafe extern "C" fn get_proc_address_v1(
    symbol: *const c_char,
    pointer: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CUresult {
    let Some(real) = real() else {
        return CUresult::CUDA_ERROR_STUB_LIBRARY;
    };
    // SAFETY: the program's own arguments.
    unsafe {
        let asked = real
            .driver
            .cuGetProcAddress(symbol, pointer, version, flags);
        let result = answer(asked);
        exchanged(result, symbol, pointer);
        result
    }
}
