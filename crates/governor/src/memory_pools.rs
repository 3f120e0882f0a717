//! The driver's own memory pools, as programs name them.
//!
//! A program may allocate from any pool that it created. If a pool promises nothing that ours
//! cannot keep (its memory belongs to a device, and is not shared with other processes) our pool
//! serves it; other pools are served by the driver.
//!
//! Elsewhere: their numbers ([`crate::pool_number`]) and figures ([`crate::watermarks`]).

use std::sync::atomic::Ordering::Relaxed;

use fercuda_cuda_sys::types::{CUdevice, CUmemoryPool, CUresult};

use crate::clock::{read, write};
use crate::device::GovernedDevice;
use crate::driver_call::is_done;
use crate::governor::Governor;
use crate::pool_number::{PoolNumber, PoolProvider};
use crate::watermarks::PoolUse;

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
                    used += live.requested_bytes;
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
