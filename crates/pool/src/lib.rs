//! Stream-ordered allocator of device memory: pure bookkeeping over opaque addresses.
#![forbid(unsafe_code)]

mod arenas;
mod backing;
mod blocks;
mod budget;
mod classes;
mod clock;
mod error;
mod growth;
mod held;
mod order;
mod origin;
mod place;
mod pool;
mod queues;
mod request;
mod retention;
mod rules;
mod threads;
mod usage;

pub use backing::{GrowthRefused, MemoryBacking};
pub use blocks::{AllocLayout, BadRange, BlockAllocator, BlockId, SetId, Span, UNIT_BYTES};
pub use budget::{ChargeRefused, MemoryAccount, MemoryBudget};
pub use clock::DeviceClock;
pub use error::Error;
pub use order::{Epoch, FenceDue, ReuseFence, ReuseOrder};
pub use place::{PoolPlace, StreamId};
pub use pool::{DevicePool, OnExhausted};
pub use request::{AllocationRequest, FreedBlock, LiveBlock, TenantId};
pub use retention::RetentionPolicy;
pub use rules::{AllRules, BreakableRules, ReuseRule, ReuseRules};
pub use usage::{PoolUsage, TenantUsage};
