//! The software device: the documented CUDA driver API over a PTX interpreter.
//!
//! [`driver`] returns the driver's table filled by this device; [`control`] is the interface for
//! what the driver API lacks. A call goes from `abi` (the C functions) to `device` (contexts,
//! streams, memory, graphs), and its work, on a stream's thread, to [`exec`] and [`mem`].
//!
//! Invariant: nothing unwinds across the C border, and no handle is ever followed as a pointer.

use fercuda_cuda_sys::{Driver, DriverOrigin};

#[doc(hidden)]
#[allow(non_snake_case, reason = "the driver's own names")]
pub mod abi;
pub mod check;
pub mod control;
mod device;
pub mod exec;
mod lock;
pub mod mem;
pub mod order;
pub mod report;
mod tensor_map;

pub use device::attributes::NAME;

/// The driver's table, filled by the software device. Every table is the same device: its state is
/// the process's.
#[must_use]
pub fn driver() -> Driver {
    let resolver = |name: &std::ffi::CStr| name.to_str().ok().and_then(abi::address);
    // SAFETY: `abi` coerces each of its functions to the table's own signature for that name.
    unsafe {
        Driver::from_resolver(
            Box::new(resolver),
            DriverOrigin::Linked("the software device"),
        )
    }
}
