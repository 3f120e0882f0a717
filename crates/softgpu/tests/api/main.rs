//! The driver API of the software device, by group, through the table that clients use.

#[macro_use]
mod common;
mod contexts;
mod kernels;
mod memory;
mod streams;
mod surface;
mod vmm;
