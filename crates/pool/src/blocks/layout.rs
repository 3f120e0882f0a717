//! Units, spans of memory, and layouts of requested blocks.

use std::num::NonZeroU64;

/// The granularity of addresses and sizes.
pub const UNIT_BYTES: u64 = 256;

/// Up to this alignment, a block's size is a multiple of its alignment, so that aligned blocks also
/// end aligned, and no slivers lie between them.
const WHOLE_BYTES: u64 = 512;

/// From this size on, the best fit among the examined blocks is taken: a large block that is split
/// needlessly is seldom whole again.
const LARGE_UNITS: u64 = 4096;

/// A contiguous range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// Its start, a multiple of [`UNIT_BYTES`].
    pub address: u64,
    /// Its size, a multiple of [`UNIT_BYTES`].
    pub bytes: u64,
}

impl Span {
    /// The first address behind it.
    pub fn end(self) -> u64 {
        self.address + self.bytes
    }
}

/// A range that cannot be added: it is empty, not made of whole units, too long, or overlaps memory
/// that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} bytes at {:#x} cannot be added: empty, uneven, too many or there already", .0.bytes, .0.address)]
pub struct BadRange(pub Span);

/// The size and alignment of a requested block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocLayout {
    pub(super) units: NonZeroU64,
    /// In units.
    pub(super) align: u64,
}

impl AllocLayout {
    /// A layout for `bytes` at a multiple of `align_bytes`, a power of two (other values are
    /// rounded up to one). The block's size is a multiple of the unit, and of its alignment up to
    /// 512 bytes.
    #[inline]
    pub fn new(bytes: u64, align_bytes: u64) -> Self {
        let align = align_bytes.max(UNIT_BYTES);
        let align = align.checked_next_power_of_two().unwrap_or(1 << 63);
        let whole = align.min(WHOLE_BYTES) / UNIT_BYTES;
        let units = (bytes.div_ceil(UNIT_BYTES).max(1) + (whole - 1)) & !(whole - 1);
        Self {
            units: NonZeroU64::new(units).unwrap_or(NonZeroU64::MIN),
            align: align / UNIT_BYTES,
        }
    }

    /// The size of a block that satisfies it, in bytes.
    #[inline]
    pub fn bytes(self) -> u64 {
        self.units.get().saturating_mul(UNIT_BYTES)
    }

    /// Whether it is large enough to search for the best fit.
    #[inline]
    pub(crate) fn is_large(self) -> bool {
        self.units.get() >= LARGE_UNITS
    }

    /// Its alignment in bytes.
    #[inline]
    pub fn align_bytes(self) -> u64 {
        self.align.saturating_mul(UNIT_BYTES)
    }

    /// The size of memory that holds such a block at any address.
    pub fn padded_bytes(self) -> u64 {
        let units = self.units.get().saturating_add(self.align - 1);
        units.saturating_mul(UNIT_BYTES)
    }
}
