//! Governor of a process's device memory: one pool per device, over a driver's table.
#![deny(unsafe_op_in_unsafe_fn)]

mod clock;
mod config;
mod device;
mod governed;
mod governor;
mod lifecycle;
mod memory_pools;
mod peers;
mod reconcile;
mod sharing;
mod slabs;
mod source;
mod teardown;
mod thread_context;
mod variables;
mod vmm;

pub use clock::{ContextId, DestroyedContexts, DevicePoint, DriverClock, StreamOrigin};
pub use config::{
    ByteSize, ByteSizeError, ConfigError, GovernorConfig, PoolBacking, TenantLimit, ValueError,
    parse_byte_count,
};
pub use device::{GovernedDevice, PoolRegion, RegionRules};
pub use governed::{GovernedKey, GovernedMemory, GovernedPiece, PendingRelease};
pub use governor::{
    AllocationDenied, BlockNote, CaptureKey, Governor, HostWait, StreamInfo, UNNAMED, answer,
};
pub use memory_pools::{PoolNumber, PoolProvider};
pub use reconcile::MemoryFigures;
pub use sharing::{ForeignBlock, ShareDenied};
pub use source::RegionSource;
pub use teardown::TeardownResult;
pub use thread_context::{ResolvedStream, ThreadContext};
pub use variables::{EnvVariable, VARIABLES, VariableReader, edit_distance};
pub use vmm::VmmBacking;
