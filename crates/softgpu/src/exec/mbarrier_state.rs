//! The eight bytes of an mbarrier.
//!
//! Arrivals still pending (20 bits), arrivals of a phase (20), bytes of transactions still pending
//! (22, signed), and the parity of the phase (the highest bit).

use super::ctx::Ctx;

/// What the eight bytes of an mbarrier say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MbarrierState {
    pub(crate) pending: i64,
    pub(crate) expected: i64,
    pub(crate) bytes: i64,
    pub(crate) parity: u64,
}

impl MbarrierState {
    pub(crate) fn unpack(v: u64) -> Self {
        MbarrierState {
            pending: (v & 0xf_ffff) as i64,
            expected: (v >> 20 & 0xf_ffff) as i64,
            bytes: ((v << 2) as i64) >> 42,
            parity: v >> 63,
        }
    }
    pub(crate) fn pack(self) -> u64 {
        (self.pending as u64 & 0xf_ffff)
            | ((self.expected as u64 & 0xf_ffff) << 20)
            | ((self.bytes as u64 & 0x3f_ffff) << 40)
            | (self.parity << 63)
    }
    /// The state after a change, and whether that ends the phase: nothing more is pending.
    pub(crate) fn settled(mut self) -> (Self, bool) {
        let ends = self.pending <= 0 && self.bytes == 0;
        if ends {
            self.parity ^= 1;
            self.pending = self.expected;
        }
        (self, ends)
    }
    /// The mbarrier at an offset inside the block's shared memory.
    pub(crate) fn at(ctx: &Ctx<'_>, at: u32) -> Self {
        Self::unpack(raw(ctx, at))
    }
}

/// The eight bytes of the mbarrier at an offset inside the block's shared memory.
pub(crate) fn raw(ctx: &Ctx<'_>, at: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&ctx.block.shared[at as usize..at as usize + 8]);
    u64::from_le_bytes(bytes)
}
