//! Where each slot leads: to the door that governs the function, or on to the driver.

use core::ffi::c_void;
use core::ptr::NonNull;

use fercuda_cuda_sys::Symbol;
use fercuda_cuda_sys::types::CUresult;
use fercuda_regime::{UNTOLD, door, is_disabled, may_have_other_contexts};

use crate::exports::{self, TYPED};
use crate::real::real;

/// Answers in place of a function on a machine without a driver, as a library
/// that only stands in for one.
extern "C" fn no_driver() -> CUresult {
    CUresult::CUDA_ERROR_STUB_LIBRARY
}

/// Answers in place of a function that the driver has not.
pub(crate) extern "C" fn no_function() -> CUresult {
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

/// Where the function with this slot leads.
pub(crate) fn target(index: usize) -> *mut c_void {
    let Some(real) = real() else {
        return no_driver as *mut c_void;
    };
    let name = exports::name(index);
    if !is_disabled() && UNTOLD.iter().any(|it| name.starts_with(it)) {
        may_have_other_contexts();
    }
    match real.find(name) {
        None => no_function as *mut c_void,
        // A door stands only where the driver has a function behind it.
        Some(own) if is_disabled() => own.as_ptr(),
        Some(own) => {
            let symbol = Symbol::ALL.get(index).copied();
            symbol.and_then(door).unwrap_or(own).as_ptr()
        }
    }
}

/// What is given out for a function that makes contexts and has no door: the jump of
/// the exported symbol that has its address. Binding that notes the call.
pub(crate) fn noted(asked: &[u8], address: NonNull<c_void>) -> Option<NonNull<c_void>> {
    let real = real()?;
    let is_it = |name: &&&str| {
        name.as_bytes().starts_with(asked) && real.find(name).is_some_and(|own| own == address)
    };
    let name = exports::UNTYPED.iter().find(is_it)?;
    NonNull::new(exports::untyped(name)?)
}

const _: () = assert!(TYPED == Symbol::ALL.len());
