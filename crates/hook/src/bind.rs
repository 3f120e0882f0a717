//! Binding of each exported symbol's slot to an interposed function or to the driver's own.

use core::ffi::c_void;

use fercuda_cuda_sys::Symbol;
use fercuda_cuda_sys::types::CUresult;
use fercuda_regime::{CONTEXT_CREATORS, interposed_function, is_disabled, mark_unseen_contexts};

use crate::real_driver::{NotingStub, real_driver};

/// Stands in for any function on a machine without a driver; returns a stub library's error.
extern "C" fn no_driver() -> CUresult {
    CUresult::CUDA_ERROR_STUB_LIBRARY
}

/// Stands in for a function that the driver does not have.
pub(crate) extern "C" fn no_function() -> CUresult {
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

/// The target of the slot with this index and exported name. `stub`: what the driver is opened
/// with, if this call opens it.
pub(crate) fn target(index: usize, name: &str, stub: NotingStub) -> *mut c_void {
    let Some(real) = real_driver(stub) else {
        return no_driver as *mut c_void;
    };
    if !is_disabled() && CONTEXT_CREATORS.iter().any(|it| name.starts_with(it)) {
        mark_unseen_contexts();
    }
    match real.find(name) {
        None => no_function as *mut c_void,
        // A function is interposed only where the driver has it.
        Some(own) if is_disabled() => own.as_ptr(),
        Some(own) => {
            let symbol = Symbol::ALL.get(index).copied();
            symbol.and_then(interposed_function).unwrap_or(own).as_ptr()
        }
    }
}
