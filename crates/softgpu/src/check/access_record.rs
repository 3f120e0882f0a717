//! The last access to a word of global memory as a number.

/// How an access is ordered with others to the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strength {
    /// Not at all.
    Weak,
    /// A read through the cache of data that no thread of the kernel writes.
    ReadOnly,
    /// A texture's read through such a cache, of data that a thread may write afterwards.
    Texture,
    /// Those of the same block.
    Block,
    /// Those of every thread that may touch the memory.
    Strong,
}

impl Strength {
    pub(crate) fn is_strong(self) -> bool {
        matches!(self, Strength::Block | Strength::Strong)
    }

    /// Whether a read may give what was there before an earlier write of the same kernel.
    pub(crate) fn is_cached(self) -> bool {
        matches!(self, Strength::ReadOnly | Strength::Texture)
    }
}

/// Times of a block that one segment holds.
pub(crate) const SEGMENT_TIMES: u32 = 8;
/// The place of an instruction that is one of too many.
pub(crate) const UNKNOWN_SITE: u32 = (1 << 13) - 1;

/// The last access to a word in 64 bits: segment (32), time in it (3), thread (10), instruction
/// (13), strong, marked, and the bytes (4). Marked: of a plain write, that the value is known; of a
/// plain read, that it was a read-only one; of a strong access, that its scope is the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AccessRecord(pub(crate) u64);

impl AccessRecord {
    const TIME_SHIFT: u32 = 29;
    const THREAD_SHIFT: u32 = 19;
    const SITE_SHIFT: u32 = 6;
    const STRONG: u64 = 1 << 5;
    pub(crate) const MARK: u64 = 1 << 4;

    /// The part that all words of one access by one thread share. `time` is that in the segment.
    #[inline(always)]
    pub(crate) fn new(segment: u32, time: u32, site: u32, thread: u32, strength: Strength) -> Self {
        let order = match strength {
            Strength::Weak | Strength::Texture => 0,
            Strength::ReadOnly => Self::MARK,
            Strength::Block => Self::STRONG | Self::MARK,
            Strength::Strong => Self::STRONG,
        };
        AccessRecord(
            (u64::from(segment) << 32)
                | (u64::from(time % SEGMENT_TIMES) << Self::TIME_SHIFT)
                | (u64::from(thread & 1023) << Self::THREAD_SHIFT)
                | (u64::from(site.min(UNKNOWN_SITE)) << Self::SITE_SHIFT)
                | order,
        )
    }
    /// That of all words that a driver operation accesses.
    pub(crate) fn of_operation(segment: u32) -> Self {
        AccessRecord(u64::from(segment) << 32 | 15)
    }
    /// That of a word of which a driver operation accesses some bytes.
    pub(crate) fn of_bytes(segment: u32, bytes: u8) -> Self {
        AccessRecord(u64::from(segment) << 32 | u64::from(bytes))
    }
    /// The same of the thread `n` further on.
    #[inline(always)]
    pub(crate) fn of(self, n: usize) -> Self {
        AccessRecord(self.0 + ((n as u64) << Self::THREAD_SHIFT))
    }
    /// The same of the thread `n` before.
    #[inline(always)]
    pub(crate) fn back(self, n: usize) -> Self {
        AccessRecord(self.0 - ((n as u64) << Self::THREAD_SHIFT))
    }
    /// The least records of a segment's times from `time` on.
    #[inline(always)]
    pub(crate) fn first(segment: u32, time: u32) -> u64 {
        (u64::from(segment) << 32) + (u64::from(time) << Self::TIME_SHIFT)
    }
    #[inline(always)]
    pub(crate) fn segment(self) -> u32 {
        (self.0 >> 32) as u32
    }
    /// In the segment.
    pub(crate) fn time(self) -> u32 {
        (self.0 >> Self::TIME_SHIFT) as u32 % SEGMENT_TIMES
    }
    pub(crate) fn site(self) -> u32 {
        (self.0 >> Self::SITE_SHIFT) as u32 & UNKNOWN_SITE
    }
    pub(crate) fn thread(self) -> u32 {
        (self.0 >> Self::THREAD_SHIFT) as u32 & 1023
    }
    #[inline(always)]
    pub(crate) fn strong(self) -> bool {
        self.0 & Self::STRONG != 0
    }
    #[inline(always)]
    pub(crate) fn marked(self) -> bool {
        self.0 & Self::MARK != 0
    }
    #[inline(always)]
    pub(crate) fn bytes(self) -> u8 {
        self.0 as u8 & 15
    }
    /// Whether the same thread left both at the same time.
    #[inline(always)]
    pub(crate) fn same_thread(self, other: AccessRecord) -> bool {
        (self.0 ^ other.0) >> Self::THREAD_SHIFT == 0
    }
    /// Whether warps of the same segment left both.
    #[inline(always)]
    pub(crate) fn same_warp(self, other: AccessRecord) -> bool {
        let differ = self.0 ^ other.0;
        differ >> 32 == 0 && (differ >> (Self::THREAD_SHIFT + 5)) & 31 == 0
    }
    /// Of a reader: whether it took the data for read-only.
    #[inline(always)]
    pub(crate) fn read_only(self) -> bool {
        self.0 & (Self::MARK | Self::STRONG) == Self::MARK
    }
    /// Whether a reader is to stay known besides a later one, before which it is or not: a writer
    /// that meets it may be ordered after the later one, or it took the data for read-only.
    #[inline(always)]
    pub(crate) fn stays(self, later: AccessRecord, ordered: bool) -> bool {
        !ordered && !self.same_warp(later) || self.read_only() && !later.read_only()
    }
    /// Whether one instruction of one warp left both at the same time.
    #[inline(always)]
    pub(crate) fn same_instruction(self, other: AccessRecord) -> bool {
        const LANE: u64 = 31 << AccessRecord::THREAD_SHIFT;
        ((self.0 ^ other.0) & !LANE) >> Self::SITE_SHIFT == 0
    }
}
