//! `libfercuda_hook.so`: stands where a program looks for the CUDA driver, and
//! lets every library in it share one governed pool for each device.
//!
//! Loaded before all others, under the driver's own name. Until the program
//! calls the driver nothing here runs.
//!
//! Invariant: what is not governed reaches the driver unchanged; with
//! `FERCUDA_DISABLE=1`, without a driver and in the child of a fork nothing is.

#![deny(unsafe_op_in_unsafe_fn)]

mod bind;
mod exports;
mod linked;
mod loader;
mod nvml;
mod real;
mod runtime;
