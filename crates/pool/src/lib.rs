//! The allocator of device memory: pure bookkeeping over opaque addresses.
#![forbid(unsafe_code)]

mod arenas;
mod blocks;
mod classes;
mod growth;
mod held;
mod order;
mod pool;
mod queues;

pub use blocks::{BadRange, BlockId, Blocks, SetId, Span, UNIT_BYTES, Want};
pub use growth::{Backing, Budget, Refused, Thrift};
#[cfg(feature = "broken-rules")]
pub use order::Rule;
pub use order::{Due, Epoch, Mark, Order, Place, StreamId};
pub use pool::{Account, Clock, Error, Freed, Live, OnExhausted, Pool, Request, TenantId, Usage};
