//! Collective operations of the lanes of a warp and of the warps of a block.
//!
//! Invariant: the shuffles and votes here name all 32 lanes, so every lane of the warp must
//! arrive; the block-wide ones contain barriers, so every thread of the block must.

use super::kernel::KernelBuilder;
use super::ptr::{Ptr, Shared};
use super::reg::{Arg, Pred, Reg, Src};
use super::state::w;
use super::types::{Bits32, Int, MemoryElement};
use crate::ast::{Imm, Operand};
use crate::words::{Mod, Op, ScalarType, Word};

/// Every lane.
pub const FULL_MASK: u32 = u32::MAX;

fn imm(value: u32) -> Operand {
    Operand::Imm(Imm::Int {
        value: i64::from(value),
        unsigned: false,
    })
}

impl<'k, T: Bits32> Reg<'k, T> {
    fn shfl(self, how: Word, lane: Operand, clamp: u32) -> Reg<'k, T> {
        let words = vec![w(Word::Sync), w(how), Mod::Type(ScalarType::B32)];
        let k = self.kernel();
        k.op(
            Op::Shfl,
            words,
            vec![self.operand(), lane, imm(clamp), imm(FULL_MASK)],
        )
    }

    /// The value of lane `lane`, modulo 32.
    #[must_use]
    pub fn shuffle(self, lane: impl Arg<'k, u32>) -> Reg<'k, T> {
        let lane = self.kernel().src(lane.src());
        self.shfl(Word::Idx, lane, 31)
    }

    /// The value of the lane with a number that differs in the bits of `mask`.
    #[must_use]
    pub fn shuffle_xor(self, mask: impl Arg<'k, u32>) -> Reg<'k, T> {
        let mask = self.kernel().src(mask.src());
        self.shfl(Word::Bfly, mask, 31)
    }

    /// The value of the lane `delta` above; its own where there is none.
    #[must_use]
    pub fn shuffle_down(self, delta: impl Arg<'k, u32>) -> Reg<'k, T> {
        let delta = self.kernel().src(delta.src());
        self.shfl(Word::Down, delta, 31)
    }

    /// The value of the lane `delta` below; its own where there is none.
    #[must_use]
    pub fn shuffle_up(self, delta: impl Arg<'k, u32>) -> Reg<'k, T> {
        let delta = self.kernel().src(delta.src());
        self.shfl(Word::Up, delta, 0)
    }
}

impl KernelBuilder {
    fn vote(&self, how: Word, pred: Pred<'_>) -> Pred<'_> {
        let pred = self.src(Src::of(pred));
        self.op(
            Op::Vote,
            vec![w(Word::Sync), w(how), Mod::Type(ScalarType::Pred)],
            vec![pred, imm(FULL_MASK)],
        )
    }

    /// Whether `pred` holds in every lane.
    pub fn warp_all(&self, pred: Pred<'_>) -> Pred<'_> {
        self.vote(Word::All, pred)
    }

    /// Whether `pred` holds in some lane.
    pub fn warp_any(&self, pred: Pred<'_>) -> Pred<'_> {
        self.vote(Word::Any, pred)
    }

    /// The mask of lanes where `pred` holds.
    pub fn ballot(&self, pred: Pred<'_>) -> Reg<'_, u32> {
        let pred = self.src(Src::of(pred));
        let words = vec![w(Word::Sync), w(Word::Ballot), Mod::Type(ScalarType::B32)];
        self.op(Op::Vote, words, vec![pred, imm(FULL_MASK)])
    }

    /// The mask of lanes that hold the same bits as this one.
    pub fn match_any<'k, T: Bits32>(&'k self, value: Reg<'k, T>) -> Reg<'k, u32> {
        let value = self.src(Src::of(value));
        let words = vec![w(Word::Any), w(Word::Sync), Mod::Type(ScalarType::B32)];
        self.op(Op::Match, words, vec![value, imm(FULL_MASK)])
    }

    /// The mask of lanes that are executing this now. It promises nothing about the next
    /// instruction.
    pub fn active_mask(&self) -> Reg<'_, u32> {
        self.op(Op::Activemask, vec![Mod::Type(ScalarType::B32)], Vec::new())
    }

    /// The sum of `value` over the warp, in every lane, in one instruction.
    pub fn warp_sum<'k, T: Bits32 + Int>(&'k self, value: Reg<'k, T>) -> Reg<'k, T> {
        self.needs(80, "redux.sync");
        let value = self.src(Src::of(value));
        self.op(
            Op::Redux,
            vec![w(Word::Sync), w(Word::Add), Mod::Type(T::TY)],
            vec![value, imm(FULL_MASK)],
        )
    }

    /// Combines `value` over groups of `lanes` (a power of two up to 32) neighbouring lanes;
    /// every lane of a group gets the result. `combine` should not mind the order.
    pub fn group_reduce<'k, T: Bits32>(
        &'k self,
        lanes: u32,
        value: Reg<'k, T>,
        combine: impl Fn(Reg<'k, T>, Reg<'k, T>) -> Reg<'k, T>,
    ) -> Reg<'k, T> {
        let mut value = value;
        let mut step = lanes.min(32) / 2;
        while step > 0 {
            value = combine(value, value.shuffle_xor(step));
            step /= 2;
        }
        value
    }

    /// Combines `value` over the warp; every lane gets the result.
    pub fn warp_reduce<'k, T: Bits32>(
        &'k self,
        value: Reg<'k, T>,
        combine: impl Fn(Reg<'k, T>, Reg<'k, T>) -> Reg<'k, T>,
    ) -> Reg<'k, T> {
        self.group_reduce(32, value, combine)
    }

    /// Combines `value` over a one-dimensional block; every thread gets the result.
    ///
    /// `scratch` has room for 32 elements and may be used again at once. `identity` changes
    /// nothing under `combine`. The block is a multiple of 32 threads.
    pub fn block_reduce<'k, T: Bits32 + MemoryElement<Value = T>>(
        &'k self,
        scratch: Ptr<'k, Shared, T>,
        value: Reg<'k, T>,
        identity: impl Arg<'k, T>,
        combine: impl Fn(Reg<'k, T>, Reg<'k, T>) -> Reg<'k, T>,
    ) -> Reg<'k, T> {
        let value = self.warp_reduce(value, &combine);
        self.block_combine(scratch, value, identity, combine)
    }

    /// As [`KernelBuilder::block_reduce`], of a value that each warp has in all its lanes.
    pub fn block_combine<'k, T: Bits32 + MemoryElement<Value = T>>(
        &'k self,
        scratch: Ptr<'k, Shared, T>,
        value: Reg<'k, T>,
        identity: impl Arg<'k, T>,
        combine: impl Fn(Reg<'k, T>, Reg<'k, T>) -> Reg<'k, T>,
    ) -> Reg<'k, T> {
        let lane = self.lane();
        let warps = self.ntid_x() >> 5;
        let warp = self.tid_x() >> 5;
        // A barrier first: another thread may still be reading the last result from `scratch`.
        self.barrier();
        self.if_(lane.equals(0), || scratch.index(warp).store(value));
        self.barrier();
        let total = self.var("total", identity);
        self.if_(lane.lt(warps), || total.set(scratch.index(lane).load()));
        self.warp_reduce(*total, combine)
    }
}
