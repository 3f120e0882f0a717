//! Binding of each exported symbol's slot to an interposed function or to the driver's own.

use core::ffi::c_void;
use core::ptr::NonNull;

use fercuda_cuda_sys::Symbol;
use fercuda_cuda_sys::types::CUresult;
use fercuda_regime::{CONTEXT_CREATORS, interposed_function, is_disabled, mark_unseen_contexts};

use crate::exports::{self, TYPED};
use crate::real_driver::real_driver;

/// Stands in for any function on a machine without a driver; returns a stub library's error.
extern "C" fn no_driver() -> CUresult {
    CUresult::CUDA_ERROR_STUB_LIBRARY
}

/// Stands in for a function that the driver does not have.
pub(crate) extern "C" fn no_function() -> CUresult {
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

/// The target of the slot with this index.
pub(crate) fn target(index: usize) -> *mut c_void {
    let Some(real) = real_driver() else {
        return no_driver as *mut c_void;
    };
    let name = exports::name(index);
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

/// What to hand out for a function that creates contexts and is not interposed: the
/// exported symbol of the same address. Binding its slot, at the first call, notes that.
pub(crate) fn noting_stub(requested: &[u8], address: NonNull<c_void>) -> Option<NonNull<c_void>> {
    let real = real_driver()?;
    let is_it = |name: &&&str| {
        name.as_bytes().starts_with(requested) && real.find(name).is_some_and(|own| own == address)
    };
    let name = exports::UNTYPED.iter().find(is_it)?;
    NonNull::new(exports::untyped(name)?)
}

const _: () = assert!(TYPED == Symbol::ALL.len());
