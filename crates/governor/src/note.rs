//! Notes of the pool's blocks, and the pool's ids of tenants.

use fercuda_ledger::{CellId, Tenant};
use fercuda_pool::TenantId;

use crate::clock::ContextId;
use crate::pool_number::PoolNumber;

/// The note stored with each block.
#[derive(Clone, Copy, Debug)]
pub struct BlockNote {
    /// The ledger cell that holds its charge.
    pub charge: CellId,
    /// The context in which it was allocated, which owns it; a stream-ordered block belongs to its
    /// pool instead, and outlives the context.
    pub context: ContextId,
    /// The pool it was requested from, if it is stream-ordered.
    pub pool: PoolNumber,
    /// Its buffer id, which is never reused.
    pub buffer: u64,
}

impl BlockNote {
    /// Whether it is stream-ordered.
    #[inline]
    pub fn is_ordered(&self) -> bool {
        self.pool != PoolNumber::NONE
    }
}

/// The pool's id of a tenant.
pub(crate) fn id(tenant: Tenant) -> TenantId {
    TenantId(tenant.index() as u16)
}
