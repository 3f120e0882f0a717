//! The driver's own memory pools, as programs name them.
//!
//! A program may allocate from any pool that it made. Where a pool promises
//! nothing that ours cannot keep (its memory is a device's, and goes to no
//! other process) our pool serves it; others are the driver's.

use std::sync::RwLock;
use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU64, Ordering::Relaxed};

use fercuda_cuda_sys::types::{CUdevice, CUmemoryPool, CUresult};
use rustc_hash::FxHashMap;

use crate::clock::{read, write};
use crate::device::Device;
use crate::governor::{DEVICES, Governor, is_done};

/// Which pool a block was asked of, by a number that fits into its note.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PoolNumber(u16);

impl PoolNumber {
    /// Of none: it was allocated in no stream's order.
    pub const NONE: PoolNumber = PoolNumber(0);
    /// The device's default one; so are some of more pools than there are
    /// numbers.
    const DEFAULT: PoolNumber = PoolNumber(1);
    /// The first of pools that programs make.
    const FIRST: usize = 2;
}

/// The numbers of pools.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// From [`PoolNumber::FIRST`] on.
    made: RwLock<Vec<CUmemoryPool>>,
    /// Of each device's current one.
    current: [AtomicU16; DEVICES],
}

impl Default for Numbers {
    fn default() -> Self {
        Self {
            made: RwLock::default(),
            current: std::array::from_fn(|_| AtomicU16::new(PoolNumber::DEFAULT.0)),
        }
    }
}

impl Numbers {
    /// The number of a pool that a program made. Handles that drivers use again
    /// keep theirs.
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

/// Who serves a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Our pool of this device; the other has this number.
    Here(u32, PoolNumber),
    /// The driver.
    ByTheDriver,
}

/// What programs may ask of the pools of a device that ours serves: the most
/// that was in use of each, and the most that ours held. Threads tell in steps
/// (256 KiB) what they use of a pool, and the most since the last; so what is
/// known is exact for one thread, and of several may miss as much of each.
#[derive(Debug, Default)]
pub(crate) struct Watermarks {
    /// The default pool's, which most programs use alone.
    default: Used,
    others: RwLock<FxHashMap<PoolNumber, Used>>,
    reserved: AtomicU64,
}

/// What is in use of one pool.
#[derive(Debug, Default)]
struct Used {
    level: AtomicI64,
    most: AtomicU64,
}

impl Used {
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
    /// So much more, or less, is in use of a pool, and `peak` more was in
    /// between.
    #[inline]
    pub(crate) fn change(&self, pool: PoolNumber, bytes: i64, peak: i64) {
        self.of(pool, |used| used.change(bytes, peak));
    }

    #[inline]
    fn of<R>(&self, pool: PoolNumber, work: impl Fn(&Used) -> R) -> R {
        match pool {
            PoolNumber::DEFAULT => work(&self.default),
            pool => self.of_another(pool, work),
        }
    }

    #[cold]
    fn of_another<R>(&self, pool: PoolNumber, work: impl Fn(&Used) -> R) -> R {
        if let Some(used) = read(&self.others).get(&pool) {
            return work(used);
        }
        work(write(&self.others).entry(pool).or_default())
    }
}

impl Governor {
    /// A pool was made, of memory of a device if ours may serve it.
    pub fn pool_made(&self, pool: CUmemoryPool, device: Option<u32>) {
        let served = match device {
            Some(device) => Served::Here(device, self.pool_numbers.of(pool)),
            None => Served::ByTheDriver,
        };
        write(&self.pools).insert(pool, served);
        if let Served::Here(ordinal, number) = served
            && let Some(device) = self.devices().find(|it| it.ordinal == ordinal)
        {
            // A pool before it may have had its handle, and so its number.
            device.watermarks.of(number, Used::forget);
        }
    }

    /// Runs the call of the driver that destroys a pool. Devices whose current
    /// one it was have another one then, which the driver is asked for.
    pub fn destroy_pool(&self, pool: CUmemoryPool, destroy: impl FnOnce() -> CUresult) -> CUresult {
        // Taken out first: once it is gone another may be given its handle.
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

    /// Who serves a pool. One that is unknown is some device's default pool, or
    /// the driver's own affair.
    pub fn served(&self, pool: CUmemoryPool) -> Served {
        let pools = read(&self.pools);
        if let Some(served) = pools.get(&pool) {
            return *served;
        }
        drop(pools);
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        let counted = unsafe { is_done(self.driver.cuDeviceGetCount(&mut count)) };
        let mut served = Served::ByTheDriver;
        for device in 0..if counted { count } else { 0 } {
            let mut default = CUmemoryPool::NULL;
            // SAFETY: `default` outlives the call.
            let found = unsafe { self.driver.cuDeviceGetDefaultMemPool(&mut default, device) };
            if is_done(found) && default == pool {
                served = Served::Here(device as u32, PoolNumber::DEFAULT);
            }
        }
        write(&self.pools).insert(pool, served);
        served
    }

    /// A device's allocations in a stream's order come from this pool now.
    pub fn set_current_pool(&self, device: CUdevice, pool: CUmemoryPool) {
        let bit = 1u64 << (device as u32 & 63);
        match self.served(pool) {
            Served::ByTheDriver => self.passing_devices.fetch_or(bit, Relaxed),
            Served::Here(_, PoolNumber(number)) => {
                if let Some(current) = self.pool_numbers.current.get(device as usize) {
                    current.store(number, Relaxed);
                }
                self.passing_devices.fetch_and(!bit, Relaxed)
            }
        };
        self.changed();
    }

    /// The pool that a device's allocations in a stream's order come from now.
    #[inline]
    pub fn current_pool(&self, device: u32) -> PoolNumber {
        let current = self.pool_numbers.current.get(device as usize);
        current.map_or(PoolNumber::DEFAULT, |it| PoolNumber(it.load(Relaxed)))
    }

    /// The handle of a pool by its number, of blocks of a device.
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

    /// Whether a device's allocations in a stream's order are the driver's.
    #[inline]
    pub fn passes_ordered(&self, device: u32) -> bool {
        self.passing_devices.load(Relaxed) & (1u64 << (device & 63)) != 0
    }

    /// What a program is told of a pool, if ours serves it: bytes in use of it,
    /// and bytes that ours holds for all of the device's, each now and at most.
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

    /// Forgets how much was at most in use of a pool, or held for all.
    pub fn reset_pool_marks(&self, pool: CUmemoryPool, used: bool) {
        if let Some((device, number)) = self.served_here(pool) {
            let marks = &device.watermarks;
            if used {
                marks.of(number, Used::forget);
            } else {
                marks.reserved.store(device.physical.bytes(), Relaxed);
            }
        }
    }

    /// The device whose pool of ours serves a pool, and that one's number.
    fn served_here(&self, pool: CUmemoryPool) -> Option<(&Device, PoolNumber)> {
        match self.served(pool) {
            Served::Here(device, number) => Some((self.device(device)?, number)),
            Served::ByTheDriver => None,
        }
    }
}
