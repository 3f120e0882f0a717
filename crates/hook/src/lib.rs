//! `libfercuda_hook.so`, a preloaded library in the CUDA driver's place, which gives all
//! libraries of a program one governed pool per device.
//!
//! It is loaded before all others, under the driver's own name. No code here runs before
//! the program first calls the driver.
//!
//! Invariant: a call that is not governed reaches the driver unchanged. With
//! `FERCUDA_DISABLE=1`, without a driver and in the child of a fork no call is governed.

#![deny(unsafe_op_in_unsafe_fn)]

mod bind;
mod exports;
mod linked;
mod loader;
mod next_definition;
mod nvml;
mod own_library;
mod real_driver;
mod runtime;
