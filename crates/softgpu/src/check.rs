//! Access checking: shadow memory with each byte's state and each word's last accesses.
//!
//! [`Shadow`] belongs to an address space and outlives kernels; `shared` belongs to a block.
//!
//! Invariant: with checks off no shadow exists at run time, and no kernel tests whether it does.

pub(crate) mod clock;
mod context;
mod global;
pub(crate) mod mbarriers;
pub(crate) mod shared;
mod states;
pub use context::{CheckContext, CheckOptions};
pub use global::Shadow;
pub(crate) use global::{
    AccessRecord, BlockSegments, LaunchNaming, SEGMENT_TIMES, SegmentOwner, Strength, UNKNOWN_SITE,
};
pub(crate) use states::{FREED, INITIALISED};
