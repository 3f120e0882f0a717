//! Arrays, textures and surfaces, against references on the host with random data; accesses are
//! checked.
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
#[path = "../api/common.rs"]
mod common;
mod arrays;
mod bench;
mod layers;
mod reference;
mod references;
mod sampling;
mod surfaces;
