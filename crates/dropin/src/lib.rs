//! Drop-in `libcuda.so.1` over the software device.
//!
//! Exports every public symbol of a CUDA 13.0 driver. Each forwards to the software device's
//! table; those with types of graphics and video libraries return
//! `CUDA_ERROR_NOT_SUPPORTED`.
//!
//! Invariant: only the driver's public names are exported, and NVIDIA's undocumented tables are
//! not imitated.

#![allow(non_snake_case, reason = "the driver's own names")]

use fercuda_cuda_sys::types::*;
use fercuda_softgpu::abi::{TABLE, unsupported};

macro_rules! export {
    ($name:ident ($($arg:ident: $ty:ty),* $(,)?)) => {
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// The arguments meet the requirements of NVIDIA's reference.
        #[allow(clippy::too_many_arguments, reason = "the driver's own signatures")]
        // SAFETY: in a process that loads this library instead of the driver's, nothing else
        // has this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
            // SAFETY: the same signature, and the caller's promises are passed on.
            unsafe { (TABLE.$name)($($arg),*) }
        }
    };
}

macro_rules! exports {
    ($($name:ident $base:literal $since:literal [$($twin:ident $t:literal)?] $args:tt;)*) => {
        $(export! { $name $args } $(export! { $twin $args })?)*
    };
}

fercuda_cuda_sys::for_each_driver_fn!(exports);

/// Defines functions with arguments of other libraries' types; arguments are ignored.
macro_rules! untyped {
    ($($name:ident)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`: not supported.")]
            // SAFETY: as for the functions of the table.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> CUresult {
                unsupported(stringify!($name))
            }
        )*
    };
}

fercuda_cuda_sys::for_each_untyped_fn!(untyped);
