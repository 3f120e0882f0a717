//! Stream-ordered allocator of device memory: pure bookkeeping over opaque addresses.
#![forbid(unsafe_code)]

mod arenas;
mod blocks;
mod classes;
mod growth;
mod held;
mod order;
mod pool;
mod queues;
mod rules;

pub use blocks::{AllocLayout, BadRange, BlockAllocator, BlockId, SetId, Span, UNIT_BYTES};
pub use growth::{GrowthRefused, MemoryBacking, MemoryBudget, RetentionPolicy};
pub use order::{Epoch, FenceDue, PoolPlace, ReuseFence, ReuseOrder, StreamId};
pub use pool::{
    AllocationRequest, DeviceClock, DevicePool, Error, FreedBlock, LiveBlock, OnExhausted,
    PoolUsage, TenantId, TenantUsage,
};
pub use rules::{AllRules, BreakableRules, ReuseRule, ReuseRules};
