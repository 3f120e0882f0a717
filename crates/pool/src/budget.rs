//! The physical memory that a process may use on a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The physical memory that a process may use and uses on a device.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: AtomicU64,
    used: AtomicU64,
}

impl MemoryBudget {
    /// A budget of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            limit: AtomicU64::new(limit_bytes),
            used: AtomicU64::new(0),
        })
    }

    /// The limit.
    pub fn limit_bytes(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// The bytes charged.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Changes the limit. Memory charged already stays.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    /// Whether `bytes` more are within the limit.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let sum = self.used_bytes().checked_add(bytes);
        sum.is_some_and(|sum| sum <= self.limit_bytes())
    }

    /// Charges `bytes` if they are within the limit.
    pub fn charge(&self, bytes: u64) -> bool {
        let limit = self.limit_bytes();
        let room = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        self.used.fetch_update(Relaxed, Relaxed, room).is_ok()
    }

    /// Reverts a charge.
    pub fn refund(&self, bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(bytes));
        let _always = self.used.fetch_update(Relaxed, Relaxed, less);
    }
}
