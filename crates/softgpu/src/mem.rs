//! Address space: one range of host addresses for all device, pinned and managed memory.
//!
//! A device pointer is the host address. Physical memory is a [`Backing`]: a piece of a memfd,
//! lazily backed, which may be mapped at several addresses and in several processes. Addresses are
//! handed out and mapped in granules of 2 MiB; smaller blocks are cut by the caller.
//!
//! Invariants: a granule with an access bit set is mapped. A granule that was ever mapped stays
//! mapped to *something* (after `unmap`, to unused anonymous memory), so that a kernel that runs
//! behind an unmap reads garbage and is reported, but never crashes the process.
//!
//! Elsewhere: the state of each byte ([`crate::check`]), cutting blocks (`device`),
//! the accesses of kernels ([`crate::exec`], through `Window`).

mod allocation;
mod backing;
mod error;
mod granule;
mod ranges;
mod shape;
pub(crate) mod shared_file;
mod space;
mod table;
mod window;
pub(crate) use allocation::AllocationRecords;
pub use allocation::{AllocInfo, AllocKind, DriverCallSite};
pub use backing::Backing;
pub use error::MemError;
pub use granule::{GRANULE, round_up};
pub(crate) use ranges::FreeRanges;
pub(crate) use shape::{AddressShape, At};
pub use space::{AddressSpace, MAX_DEVICES};
pub(crate) use table::ShadowTable;
pub(crate) use window::{MemoryInt, Window};
