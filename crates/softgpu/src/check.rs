//! Access checking: shadow memory with each byte's state and each word's last accesses.
//!
//! [`Shadow`] belongs to an address space and outlives kernels; `shared` belongs to a block.
//!
//! Invariant: with checks off no shadow exists at run time, and no kernel tests whether it does.

mod access_record;
pub(crate) mod asynchronous;
pub(crate) mod clock;
mod context;
mod global;
pub(crate) mod known;
pub(crate) mod mbarriers;
mod records;
pub(crate) mod remote;
pub(crate) mod shared;
mod states;
pub(crate) mod views;
pub(crate) use access_record::{AccessRecord, SEGMENT_TIMES, Strength, UNKNOWN_SITE};
pub use context::{CheckContext, CheckOptions};
pub use global::Shadow;
pub(crate) use global::{BlockSegments, LaunchNaming, SegmentOwner};
pub(crate) use records::{
    LINE_WORDS, LineRecord, LineView, REGION_WORDS, RecordOf, RecordRegion, RegionCursor, parts,
};
pub(crate) use states::{FREED, INITIALISED};
