//! The driver's own memory pools, as programs name them.
//!
//! A program may allocate from any pool that it created. If a pool promises nothing that ours
//! cannot keep (its memory belongs to a device, and is not shared with other processes) our pool
//! serves it; other pools are served by the driver.

use std::sync::RwLock;
use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU64, Ordering::Relaxed};

use fercuda_cuda_sys::types::{CUdevice, CUmemoryPool, CUresult};
use rustc_hash::FxHashMap;

use crate::clock::{read, write};
use crate::device::GovernedDevice;
use crate::governor::{DEVICES, Governor, is_done};

/// The pool a block was requested from, by a number that fits into its note.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PoolNumber(u16);

impl PoolNumber {
    /// No pool: the block is not stream-ordered.
    pub const NONE: PoolNumber = PoolNumber(0);
    /// The device's default pool; also the number of pools beyond the largest number.
    const DEFAULT: PoolNumber = PoolNumber(1);
    /// The first number of pools that programs create.
    const FIRST: usize = 2;
}

/// The numbers of pools.
#[derive(Debug)]
pub(crate) struct PoolNumbers {
    /// Pools from [`PoolNumber::FIRST`] on.
    made: RwLock<Vec<CUmemoryPool>>,
    /// The number of each device's current pool.
    current: [AtomicU16; DEVICES],
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
    fn of(&self, pool: CUmemoryPool) -> PoolNumber {
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

/// Figures that programs can query for the driver pools of a device that ours serves: the peak
/// usage of each, and the peak of ours. Threads publish their usage of a pool in steps (256 KiB),
/// with the peak since the last; so the figures are exact for one thread, and may miss as much per
/// thread for several.
#[derive(Debug, Default)]
pub(crate) struct Watermarks {
    /// The default pool's, which is the only one most programs use.
    default: PoolUse,
    others: RwLock<FxHashMap<PoolNumber, PoolUse>>,
    reserved: AtomicU64,
}

/// The usage of one pool.
#[derive(Debug, Default)]
struct PoolUse {
    level: AtomicI64,
    most: AtomicU64,
}

impl PoolUse {
    #[inline]
    fn change(&self, bytes: i64, peak: i64) {
        let most = self.level.fetch_add(bytes, Relaxed) + peak.max(bytes);
        let most = u64::try_from(most).unwrap_or(0);
        if most > self.most.load(Relaxed) {
            self.most.fetch_max(most, Relaxed);
        }
    }

    fn forget(&self) {
        let now = u64::try_from(self.level.load(Relaxed)).unwrap_or(0);
        self.most.store(now, Relaxed);
    }
}

impl Watermarks {
    /// Adds to the usage of a pool; `peak` is the maximum in between, relative to the previous
    /// usage.
    #[inline]
    pub(crate) fn change(&self, pool: PoolNumber, bytes: i64, peak: i64) {
        self.of(pool, |used| used.change(bytes, peak));
    }

    #[inline]
    fn of<R>(&self, pool: PoolNumber, work: impl Fn(&PoolUse) -> R) -> R {
        match pool {
            PoolNumber::DEFAULT => work(&self.default),
            pool => self.of_another(pool, work),
        }
    }

    #[cold]
    fn of_another<R>(&self, pool: PoolNumber, work: impl Fn(&PoolUse) -> R) -> R {
        if let Some(used) = read(&self.others).get(&pool) {
            return work(used);
        }
        work(write(&self.others).entry(pool).or_default())
    }
}

impl Governor {
    /// Records a pool that was created; `device` is set if ours may serve it.
    pub fn record_pool(&self, pool: CUmemoryPool, device: Option<u32>) {
        let served = match device {
            Some(device) => PoolProvider::Here(device, self.pool_numbers.of(pool)),
            None => PoolProvider::ByTheDriver,
        };
        write(&self.pools).insert(pool, served);
        if let PoolProvider::Here(ordinal, number) = served
            && let Some(device) = self.devices().find(|it| it.ordinal == ordinal)
        {
            // A previous pool may have had its handle, and so its number.
            device.watermarks.of(number, PoolUse::forget);
        }
    }

    /// Runs the driver call that destroys a pool. Devices that had it as their current pool get
    /// another one, which is queried from the driver.
    pub fn destroy_pool(&self, pool: CUmemoryPool, destroy: impl FnOnce() -> CUresult) -> CUresult {
        // Removed first: once it is destroyed another may get its handle.
        let served = write(&self.pools).remove(&pool);
        let result = destroy();
        if result != CUresult::CUDA_SUCCESS {
            if let Some(served) = served {
                write(&self.pools).insert(pool, served);
            }
            return result;
        }
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        let counted = unsafe { is_done(self.driver.cuDeviceGetCount(&mut count)) };
        for device in 0..if counted { count } else { 0 } {
            let mut current = CUmemoryPool::NULL;
            // SAFETY: `current` outlives the call.
            let asked = unsafe { self.driver.cuDeviceGetMemPool(&mut current, device) };
            if is_done(asked) {
                self.set_current_pool(device, current);
            }
        }
        result
    }

    /// Which pool serves this one. An unknown one is some device's default pool, or one the driver
    /// serves.
    pub fn served(&self, pool: CUmemoryPool) -> PoolProvider {
        let pools = read(&self.pools);
        if let Some(served) = pools.get(&pool) {
            return *served;
        }
        drop(pools);
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        let counted = unsafe { is_done(self.driver.cuDeviceGetCount(&mut count)) };
        let mut served = PoolProvider::ByTheDriver;
        for device in 0..if counted { count } else { 0 } {
            let mut default = CUmemoryPool::NULL;
            // SAFETY: `default` outlives the call.
            let found = unsafe { self.driver.cuDeviceGetDefaultMemPool(&mut default, device) };
            if is_done(found) && default == pool {
                served = PoolProvider::Here(device as u32, PoolNumber::DEFAULT);
            }
        }
        write(&self.pools).insert(pool, served);
        served
    }

    /// Sets the current pool of a device's stream-ordered allocations.
    pub fn set_current_pool(&self, device: CUdevice, pool: CUmemoryPool) {
        let bit = 1u64 << (device as u32 & 63);
        match self.served(pool) {
            PoolProvider::ByTheDriver => self.passing_devices.fetch_or(bit, Relaxed),
            PoolProvider::Here(_, PoolNumber(number)) => {
                if let Some(current) = self.pool_numbers.current.get(device as usize) {
                    current.store(number, Relaxed);
                }
                self.passing_devices.fetch_and(!bit, Relaxed)
            }
        };
        self.changed();
    }

    /// The current pool of a device's stream-ordered allocations.
    #[inline]
    pub fn current_pool(&self, device: u32) -> PoolNumber {
        let current = self.pool_numbers.current.get(device as usize);
        current.map_or(PoolNumber::DEFAULT, |it| PoolNumber(it.load(Relaxed)))
    }

    /// The handle of a pool by its number, for blocks of a device.
    pub fn pool_handle(&self, device: u32, pool: PoolNumber) -> CUmemoryPool {
        let mut handle = CUmemoryPool::NULL;
        if let Some(at) = usize::from(pool.0).checked_sub(PoolNumber::FIRST) {
            handle = read(&self.pool_numbers.made)
                .get(at)
                .copied()
                .unwrap_or(handle);
        } else if pool == PoolNumber::DEFAULT {
            let device = device as CUdevice;
            // SAFETY: `handle` outlives the call.
            let asked = unsafe { self.driver.cuDeviceGetDefaultMemPool(&mut handle, device) };
            debug_assert!(is_done(asked));
        }
        handle
    }

    /// Whether a device's stream-ordered allocations are served by the driver.
    #[inline]
    pub fn passes_ordered(&self, device: u32) -> bool {
        self.passing_devices.load(Relaxed) & (1u64 << (device & 63)) != 0
    }

    /// Figures reported to a program for a pool, if ours serves it: bytes in use of it, and bytes
    /// that ours holds for all of the device's, each current and peak.
    pub fn pool_figures(&self, pool: CUmemoryPool) -> Option<[u64; 4]> {
        let (device, number) = self.served_here(pool)?;
        let mut used = 0;
        for region in device.regions() {
            region.for_each_live(|live| {
                if live.note.pool == number {
                    used += live.span.bytes;
                }
            });
        }
        let reserved = device.physical.bytes();
        let marks = &device.watermarks;
        let most_used = marks.of(number, |it| it.most.fetch_max(used, Relaxed).max(used));
        let most_reserved = marks.reserved.fetch_max(reserved, Relaxed).max(reserved);
        Some([used, most_used, reserved, most_reserved])
    }

    /// Resets the peak of a pool's usage, or of the bytes that ours holds.
    pub fn reset_pool_marks(&self, pool: CUmemoryPool, used: bool) {
        if let Some((device, number)) = self.served_here(pool) {
            let marks = &device.watermarks;
            if used {
                marks.of(number, PoolUse::forget);
            } else {
                marks.reserved.store(device.physical.bytes(), Relaxed);
            }
        }
    }

    /// The device that serves a pool with ours, and the pool's number.
    fn served_here(&self, pool: CUmemoryPool) -> Option<(&GovernedDevice, PoolNumber)> {
        match self.served(pool) {
            PoolProvider::Here(device, number) => Some((self.device(device)?, number)),
            PoolProvider::ByTheDriver => None,
        }
    }
}
