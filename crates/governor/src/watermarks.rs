//! Watermarks of the driver's own memory pools, as programs can query them.

use std::sync::RwLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use rustc_hash::FxHashMap;

use crate::clock::{read, write};
use crate::pool_number::PoolNumber;

/// Figures that programs can query for the driver pools of a device that ours serves: the peak
/// usage of each, and the peak of ours. Threads publish their usage of a pool in steps (256 KiB),
/// with the peak since the last; so the figures are exact for one thread, and may miss as much per
/// thread for several.
#[derive(Debug, Default)]
pub(crate) struct Watermarks {
    /// The default pool's, which is the only one most programs use.
    default: PoolUse,
    others: RwLock<FxHashMap<PoolNumber, PoolUse>>,
    pub(crate) reserved: AtomicU64,
}

/// The usage of one pool.
#[derive(Debug, Default)]
pub(crate) struct PoolUse {
    level: AtomicI64,
    pub(crate) most: AtomicU64,
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

    pub(crate) fn forget(&self) {
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
    pub(crate) fn of<R>(&self, pool: PoolNumber, work: impl Fn(&PoolUse) -> R) -> R {
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
