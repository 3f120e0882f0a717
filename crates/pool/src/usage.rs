//! Usage of a pool and of its tenants.
//!
//! Elsewhere: where usage is counted ([`crate::held`], [`crate::pool`]).

use std::fmt;

use crate::blocks::UNIT_BYTES;

/// A tenant's usage and limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantUsage {
    /// Bytes of its live blocks.
    pub live_bytes: u64,
    /// The limit of its account, which other memory may be charged to as well.
    pub limit_bytes: u64,
    /// The number of live blocks.
    pub blocks: u64,
}

impl Default for TenantUsage {
    fn default() -> Self {
        Self {
            live_bytes: 0,
            limit_bytes: u64::MAX,
            blocks: 0,
        }
    }
}

/// A pool's usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// All memory.
    pub bytes: u64,
    /// In live blocks.
    pub live_bytes: u64,
    /// Free for all streams.
    pub ready_bytes: u64,
    /// Freed, and pending on the device.
    pub waiting_bytes: u64,
    /// Reserved for the streams of threads: cached freed blocks, and free memory in arenas.
    pub cached_bytes: u64,
    /// A lower bound of the largest block that is free for all streams.
    pub largest_ready_bytes: u64,
    /// The number of live blocks.
    pub blocks: u64,
}

/// Live blocks and bytes of a tenant, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LiveCount {
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

/// A count as it is summed: blocks in the upper bits, units in the lower ones. The sum of some
/// threads may be negative, that of all is not.
const BLOCK: u64 = 1 << 36;

impl LiveCount {
    pub(crate) fn unpack(sum: u64) -> Self {
        Self {
            bytes: sum % BLOCK * UNIT_BYTES,
            blocks: sum / BLOCK,
        }
    }

    /// One block of this many bytes.
    #[inline]
    pub(crate) fn packed(bytes: u64) -> u64 {
        BLOCK + bytes / UNIT_BYTES
    }

    pub(crate) fn add(&mut self, other: LiveCount) {
        self.bytes += other.bytes;
        self.blocks += other.blocks;
    }
}

/// Displays a size with its unit: `1.5 GiB`.
pub(crate) struct DisplaySize(pub(crate) u64);

impl fmt::Display for DisplaySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(shift, _)| self.0 >> shift > 0) {
            Some((shift, unit)) => {
                let size = self.0 as f64 / (1u64 << shift) as f64;
                write!(f, "{size:.1} {unit}")
            }
            None => write!(f, "{} B", self.0),
        }
    }
}
