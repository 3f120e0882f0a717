//! Size classes of free blocks.
//!
//! A first level for each power of two is divided into second levels of equal width. All are
//! numbered from the smallest on, so the lists of larger blocks have higher numbers.
//!
//! Elsewhere: the free lists ([`crate::blocks`]).

use std::num::NonZeroU64;

/// Second levels per first level, as a power of two.
const SECOND_BITS: u32 = 5;
pub(crate) const SECOND: usize = 1 << SECOND_BITS;
/// First levels: blocks below 32 units, and one for each power of two up to
/// 2^40 units, which is 256 TiB.
pub(crate) const FIRST: usize = 40 - SECOND_BITS as usize + 2;
/// A free list: the number of its second level, over all first levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SizeClass(pub(crate) usize);

/// How far a size in units is shifted to obtain its second-level bits.
#[inline]
fn shift_of(len: NonZeroU64) -> u32 {
    (len.get() | SECOND as u64).ilog2() - SECOND_BITS
}

impl SizeClass {
    /// The class of blocks of `len` units. Branch-free: sizes come in no order that a branch
    /// predictor could learn.
    #[inline]
    pub(crate) fn of(len: NonZeroU64) -> Self {
        let shift = shift_of(len);
        // The highest of these bits, always set from the second shift on, advances to the next
        // first level.
        Self(((shift as usize) << SECOND_BITS) + (len.get() >> shift) as usize)
    }

    /// The class of an existing block.
    #[inline]
    pub(crate) fn of_some(len: u64) -> Self {
        let Some(len) = NonZeroU64::new(len) else {
            unreachable!("a block has a unit at least");
        };
        Self::of(len)
    }

    /// The first class in which every block has at least `len` units.
    #[inline]
    pub(crate) fn holding(len: NonZeroU64) -> Self {
        Self::of(len.saturating_add((1 << shift_of(len)) - 1))
    }

    #[inline]
    pub(crate) fn first(self) -> usize {
        self.0 >> SECOND_BITS
    }

    #[inline]
    pub(crate) fn second(self) -> usize {
        self.0 & (SECOND - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(n: u64) -> NonZeroU64 {
        NonZeroU64::new(n).expect("not zero")
    }

    /// The smallest size of any block of a class.
    fn least_of(class: SizeClass) -> u64 {
        match class.first() {
            0 => class.second() as u64,
            first => ((SECOND + class.second()) as u64) << (first - 1),
        }
    }

    #[test]
    fn classes_are_in_order_and_hold_the_sizes_they_promise() {
        let mut last = SizeClass(0);
        // Miri takes some hundred times as long.
        let stride = if cfg!(miri) { 97 } else { 1 };
        for len in (1..100_000)
            .step_by(stride)
            .chain((17..40).map(|log| 1 << log))
        {
            let class = SizeClass::of(units(len));
            assert!(class >= last, "{len}");
            assert!(least_of(class) <= len);
            assert!(least_of(SizeClass(class.0 + 1)) > len);
            let holding = SizeClass::holding(units(len));
            assert!(least_of(holding) >= len);
            // No more than a second level's width is lost.
            assert!(least_of(holding) - len <= len / 32, "{len}");
            last = class;
        }
    }
}
