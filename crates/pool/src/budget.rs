//! The memory that a process, and each of its tenants, may use on a device.
//!
//! This is the one place that decides whether a charge is within a limit: pools of a device charge
//! it, and so does code that has the driver allocate.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::request::{TENANTS, TenantId};
use crate::threads::CachePadded;

/// A number of bytes, and the limit that charges to it must stay within.
///
/// A charge is one atomic operation: of two concurrent ones that do not fit together, one is
/// refused.
#[derive(Debug)]
pub struct MemoryAccount {
    limit: AtomicU64,
    used: AtomicU64,
}

/// A charge that an account's limit does not permit. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeRefused {
    /// The bytes charged before.
    pub used_bytes: u64,
    /// The limit.
    pub limit_bytes: u64,
}

impl MemoryAccount {
    /// An empty account with a limit; `u64::MAX` for none.
    pub const fn new(limit_bytes: u64) -> Self {
        Self {
            limit: AtomicU64::new(limit_bytes),
            used: AtomicU64::new(0),
        }
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
    pub fn has_room(&self, bytes: u64) -> bool {
        let sum = self.used_bytes().checked_add(bytes);
        sum.is_some_and(|sum| sum <= self.limit_bytes())
    }

    /// Charges `bytes` if they are within the limit; returns the sum.
    ///
    /// # Errors
    /// [`ChargeRefused`].
    pub fn charge(&self, bytes: u64) -> Result<u64, ChargeRefused> {
        let limit_bytes = self.limit_bytes();
        let room = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit_bytes);
        match self.used.fetch_update(Relaxed, Relaxed, room) {
            Ok(before) => Ok(before + bytes),
            Err(used_bytes) => Err(ChargeRefused {
                used_bytes,
                limit_bytes,
            }),
        }
    }

    /// Charges memory that exists already, whatever the limit.
    pub fn add(&self, bytes: u64) {
        let sum = |used: u64| Some(used.saturating_add(bytes));
        let _always = self.used.fetch_update(Relaxed, Relaxed, sum);
    }

    /// Reverts a charge.
    pub fn refund(&self, bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(bytes));
        let _always = self.used.fetch_update(Relaxed, Relaxed, less);
    }
}

/// The accounts of a device: of the process's physical memory, which this dereferences to, and of
/// each tenant's memory.
///
/// A tenant's account has all memory that the driver allocates for it. The live blocks of pools are
/// part of it from the moment that the tenant has a limit
/// ([`crate::DevicePool::set_tenant_limit`]).
#[derive(Debug)]
pub struct MemoryBudget {
    physical: MemoryAccount,
    tenants: Box<[CachePadded<MemoryAccount>]>,
}

impl MemoryBudget {
    /// A budget of `limit_bytes`; its tenants have no limits.
    pub fn new(limit_bytes: u64) -> Arc<Self> {
        let tenant = |_| CachePadded(MemoryAccount::new(u64::MAX));
        Arc::new(Self {
            physical: MemoryAccount::new(limit_bytes),
            tenants: (0..TENANTS).map(tenant).collect(),
        })
    }

    /// The account of a tenant.
    #[inline]
    pub fn tenant(&self, tenant: TenantId) -> &MemoryAccount {
        &self.tenants[tenant.index()].0
    }
}

impl Deref for MemoryBudget {
    type Target = MemoryAccount;

    fn deref(&self) -> &MemoryAccount {
        &self.physical
    }
}
