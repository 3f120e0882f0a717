//! Granule: the unit of what can be mapped.

/// Size and alignment of everything that can be mapped, in bytes.
pub const GRANULE: u64 = 2 << 20;

/// `len` in whole granules, at least one.
#[must_use]
pub fn round_up(len: u64) -> u64 {
    len.max(1).next_multiple_of(GRANULE)
}
