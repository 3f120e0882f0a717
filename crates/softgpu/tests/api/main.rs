//! The driver API of the software device, by group, through the table that clients use.
#![expect(
    clippy::macro_metavars_in_unsafe,
    reason = "the macros call the driver; their callers argue the pointers"
)]

#[allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "shared by several test programs, each of which uses a part"
)]
#[macro_use]
mod common;
mod clusters;
mod contexts;
mod heap;
mod kernels;
mod legacy;
mod memory;
mod pools;
mod streams;
mod surface;
mod tensor_maps;
mod vmm;
