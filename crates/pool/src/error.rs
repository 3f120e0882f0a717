//! Errors of requests.

use crate::backing::GrowthRefused;
use crate::budget::ChargeRefused;
use crate::usage::{DisplaySize, PoolUsage};

/// Why a request failed. The pool is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such block, and memory cannot be added.
    #[error(
        "no memory for {}: {} in use, {} ready (largest block {}), {} cached by threads, {} pending on the device, {} of {} granted; {refused}",
        DisplaySize(*.bytes), DisplaySize(.usage.live_bytes), DisplaySize(.usage.ready_bytes), DisplaySize(.usage.largest_ready_bytes),
        DisplaySize(.usage.cached_bytes), DisplaySize(.usage.waiting_bytes), DisplaySize(*.used_bytes), DisplaySize(*.limit_bytes)
    )]
    Exhausted {
        /// The requested size.
        bytes: u64,
        /// The pool's usage.
        usage: PoolUsage,
        /// The bytes charged to the budget.
        used_bytes: u64,
        /// The budget's limit.
        limit_bytes: u64,
        /// Why memory could not be added.
        refused: GrowthRefused,
    },
    /// The tenant's own limit does not permit it.
    #[error(
        "no memory for {}: the tenant uses {} of its limit of {}",
        DisplaySize(*.bytes), DisplaySize(.account.used_bytes), DisplaySize(.account.limit_bytes)
    )]
    Tenant {
        /// The requested size.
        bytes: u64,
        /// What its account says.
        account: ChargeRefused,
    },
    /// No live block begins there.
    #[error("no live block begins at {address:#x}")]
    Unknown {
        /// The given address.
        address: u64,
    },
    /// The condition of [`crate::DevicePool::free_if`] does not hold.
    #[error("the block at {address:#x} may not be freed this way; it stays allocated")]
    NotPermitted {
        /// The given address.
        address: u64,
    },
}
