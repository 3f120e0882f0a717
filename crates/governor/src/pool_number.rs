//! Numbers of the driver's own memory pools, and which pool serves each.
//!
//! Elsewhere: the pools as programs name them ([`crate::memory_pools`]).

use std::sync::RwLock;
use std::sync::atomic::AtomicU16;

use fercuda_cuda_sys::types::CUmemoryPool;

use crate::clock::write;

/// The most devices with pools; memory of further ones is the driver's.
pub(crate) const DEVICES: usize = 16;

/// The pool a block was requested from, by a number that fits into its note.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PoolNumber(pub(crate) u16);

impl PoolNumber {
    /// No pool: the block is not stream-ordered.
    pub const NONE: PoolNumber = PoolNumber(0);
    /// The device's default pool; also the number of pools beyond the largest number.
    pub(crate) const DEFAULT: PoolNumber = PoolNumber(1);
    /// The first number of pools that programs create.
    pub(crate) const FIRST: usize = 2;
}

/// The numbers of pools.
#[derive(Debug)]
pub(crate) struct PoolNumbers {
    /// Pools from [`PoolNumber::FIRST`] on.
    pub(crate) made: RwLock<Vec<CUmemoryPool>>,
    /// The number of each device's current pool.
    pub(crate) current: [AtomicU16; DEVICES],
}

impl Default for PoolNumbers {
    fn default() -> Self {
        Self {
            made: RwLock::default(),
            current: std::array::from_fn(|_| AtomicU16::new(PoolNumber::DEFAULT.0)),
        }
    }
}

impl PoolNumbers {
    /// The number of a pool that a program created. A handle reused by the driver keeps its number.
    pub(crate) fn of(&self, pool: CUmemoryPool) -> PoolNumber {
        let mut made = write(&self.made);
        let known = made.iter().position(|known| *known == pool);
        let at = known.unwrap_or(made.len());
        let Ok(number) = u16::try_from(at + PoolNumber::FIRST) else {
            return PoolNumber::DEFAULT;
        };
        if known.is_none() {
            made.push(pool);
        }
        PoolNumber(number)
    }
}

/// Which pool serves allocations from one of the driver's pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolProvider {
    /// Our pool of this device; the driver's pool has this number.
    Here(u32, PoolNumber),
    /// The driver.
    ByTheDriver,
}
