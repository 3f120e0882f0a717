//! State of each byte of global memory: two bits per byte, 32 bytes per word.
//!
//! Invariant: two threads that change neighbouring bytes do not overwrite each other's changes.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::mem::{MemError, ShadowTable};

/// In a freed allocation. 0: never allocated.
pub(crate) const FREED: u8 = 1;
/// Allocated, never written.
pub(crate) const ALLOCATED: u8 = 2;
/// Allocated and written.
pub(crate) const INITIALISED: u8 = 3;

/// Bytes a word.
const PER: usize = 32;
/// The low bit of every pair; the high one says that the byte is allocated, both that it was
/// written.
const LOW: u64 = u64::MAX / 3;
const HIGH: u64 = LOW << 1;

/// See the module.
#[derive(Debug)]
pub(crate) struct States(ShadowTable<AtomicU64>);

/// The words that hold `len` bytes from `first`, each with the bits that do.
#[inline(always)]
fn words(first: usize, len: usize) -> impl DoubleEndedIterator<Item = (usize, u64)> {
    let end = first + len;
    (first / PER..end.div_ceil(PER)).map(move |w| {
        let from = first.saturating_sub(w * PER);
        let to = (end - w * PER).min(PER);
        let below = u64::MAX.checked_shr(64 - 2 * to as u32).unwrap_or(0);
        (w, below & u64::MAX << (2 * from))
    })
}

impl States {
    pub(crate) fn new(bytes: usize) -> Result<Self, MemError> {
        Ok(States(ShadowTable::new(bytes.div_ceil(PER))?))
    }

    /// Bytes covered.
    pub(crate) fn len(&self) -> usize {
        self.0.len() * PER
    }

    #[inline(always)]
    fn word(&self, w: usize) -> u64 {
        self.0[w].load(Ordering::Relaxed)
    }

    pub(crate) fn get(&self, at: usize) -> u8 {
        (self.word(at / PER) >> (2 * (at % PER))) as u8 & 3
    }

    /// Whether all of a range is allocated.
    #[inline(always)]
    pub(crate) fn allocated(&self, first: usize, len: usize) -> bool {
        words(first, len).all(|(w, mask)| !self.word(w) & mask & HIGH == 0)
    }

    /// Whether all of it was written.
    #[inline(always)]
    pub(crate) fn initialised(&self, first: usize, len: usize) -> bool {
        words(first, len).all(|(w, mask)| !self.word(w) & mask == 0)
    }

    /// Whether all of it is allocated and nothing of it was written.
    pub(crate) fn unwritten(&self, first: usize, len: usize) -> bool {
        words(first, len).all(|(w, mask)| self.word(w) & mask == HIGH & mask)
    }

    /// The first byte of a range that is not allocated.
    pub(crate) fn first_unallocated(&self, first: usize, len: usize) -> Option<usize> {
        words(first, len).find_map(|(w, mask)| {
            let bad = !self.word(w) & mask & HIGH;
            (bad != 0).then(|| w * PER + bad.trailing_zeros() as usize / 2)
        })
    }

    fn change(&self, w: usize, mask: u64, new: impl Fn(u64) -> u64) {
        let word = &self.0[w];
        let change = |old| old & !mask | new(old) & mask;
        if mask == u64::MAX {
            word.store(change(word.load(Ordering::Relaxed)), Ordering::Relaxed);
        } else {
            let _always = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
                Some(change(old))
            });
        }
    }

    pub(crate) fn set(&self, first: usize, len: usize, state: u8) {
        for (w, mask) in words(first, len) {
            self.change(w, mask, |_| u64::from(state) * LOW);
        }
    }

    /// Sets a range to never allocated; reads what is so already, and does not write it.
    pub(crate) fn clear(&self, first: usize, len: usize) {
        for (w, mask) in words(first, len) {
            if self.word(w) & mask != 0 {
                self.change(w, mask, |_| 0);
            }
        }
    }

    /// Those of a range that are allocated have been written.
    #[inline(always)]
    pub(crate) fn initialise(&self, first: usize, len: usize) {
        for (w, mask) in words(first, len) {
            let old = self.word(w);
            let new = (old & HIGH) >> 1 & mask;
            if old & new != new {
                self.0[w].fetch_or(new, Ordering::Relaxed);
            }
        }
    }

    /// Those that are allocated become what the bytes from `source` on are: allocated at least. The
    /// ranges may overlap.
    pub(crate) fn copy(&self, first: usize, len: usize, source: usize) {
        let one = |(w, mask): (usize, u64)| {
            self.change(w, mask, |old| {
                let from = self.window(source as i64 + (w * PER) as i64 - first as i64);
                let written = (old & HIGH) >> 1;
                old & !written | written & from & from >> 1
            });
        };
        // What is still to be copied is not written over.
        if source < first {
            words(first, len).rev().for_each(one);
        } else {
            words(first, len).for_each(one);
        }
    }

    /// The 32 states from `at` on; those outside the table are 0.
    fn window(&self, at: i64) -> u64 {
        let (word, shift) = (
            at.div_euclid(PER as i64),
            2 * at.rem_euclid(PER as i64) as u32,
        );
        let get = |w: i64| {
            let word = usize::try_from(w).ok().and_then(|w| self.0.get(w));
            word.map_or(0, |w| w.load(Ordering::Relaxed))
        };
        let next = get(word + 1).checked_shl(64 - shift).unwrap_or(0);
        get(word) >> shift | next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Set(usize, usize, u8),
        Clear(usize, usize),
        Initialise(usize, usize),
        Copy(usize, usize, usize),
    }

    const BYTES: usize = 300;

    fn step() -> impl Strategy<Value = Step> {
        let range = (0..BYTES, 0usize..100).prop_map(|(at, len)| (at, len.min(BYTES - at)));
        prop_oneof![
            (range.clone(), 0..=INITIALISED).prop_map(|((a, n), s)| Step::Set(a, n, s)),
            range.clone().prop_map(|(a, n)| Step::Clear(a, n)),
            range.clone().prop_map(|(a, n)| Step::Initialise(a, n)),
            (range, 0..BYTES).prop_map(|((a, n), b)| Step::Copy(a, n.min(BYTES - b), b)),
        ]
    }

    proptest! {
        #[test]
        fn packed_states_are_those_of_an_array(steps in prop::collection::vec(step(), 1..40)) {
            let states = States::new(BYTES).unwrap();
            let mut model = [0; BYTES];
            for step in steps {
                match step {
                    Step::Set(at, len, s) => {
                        states.set(at, len, s);
                        model[at..at + len].fill(s);
                    }
                    Step::Clear(at, len) => {
                        states.clear(at, len);
                        model[at..at + len].fill(0);
                    }
                    Step::Initialise(at, len) => {
                        states.initialise(at, len);
                        for s in model[at..at + len].iter_mut().filter(|s| **s >= ALLOCATED) {
                            *s = INITIALISED;
                        }
                    }
                    Step::Copy(at, len, from) => {
                        states.copy(at, len, from);
                        let before = model;
                        for n in 0..len {
                            if model[at + n] >= ALLOCATED {
                                model[at + n] = before[from + n].max(ALLOCATED);
                            }
                        }
                    }
                }
                for (at, &state) in model.iter().enumerate() {
                    prop_assert_eq!(states.get(at), state, "byte {}", at);
                }
                for (at, len) in [(0, BYTES), (31, 2), (64, 32), (5, 90), (299, 1), (7, 0)] {
                    let these = &model[at..at + len];
                    prop_assert_eq!(states.allocated(at, len), these.iter().all(|&s| s >= ALLOCATED));
                    prop_assert_eq!(states.initialised(at, len), these.iter().all(|&s| s == INITIALISED));
                    prop_assert_eq!(states.unwritten(at, len), these.iter().all(|&s| s == ALLOCATED));
                    let bad = these.iter().position(|&s| s < ALLOCATED).map(|n| at + n);
                    prop_assert_eq!(states.first_unallocated(at, len), bad);
                }
            }
        }
    }
}
