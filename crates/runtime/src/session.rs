//! Sessions: owners of buffers, each with a stream that orders their work.
//!
//! Invariants: a buffer's handle names one buffer for ever, or nothing. The memory that a session
//! holds is within its limit. Freeing a handle invalidates it at once, and frees the memory behind
//! the last work that was queued with it.
//!
//! Elsewhere: asynchronous jobs (`jobs`), handles (`handles`), the limit (`account`), graphs,
//! expressions and dispatchers (`resources`).

mod copies;
mod core;
mod entry;
mod owner;
mod teardown;
mod values;

pub use self::core::SessionConfig;
pub(crate) use self::core::SessionCore;
pub(crate) use entry::BufferEntry;
pub use entry::{BufferId, Exported, Regime};
pub use owner::Session;
pub(crate) use teardown::tear_down_all;
pub use values::{BufferElement, LaunchArgument};
