//! Governor of a process's device memory: one pool per device, over a driver's table.
#![deny(unsafe_op_in_unsafe_fn)]

mod account;
mod admission;
mod checking_device;
mod clock;
mod config;
mod descriptors;
mod device;
mod driver_call;
mod extent;
mod governed;
mod governor;
mod graph_charges;
mod graph_memory;
mod lifecycle;
mod mapped_import;
mod memory_pools;
mod note;
mod peers;
mod pool_number;
mod reconcile;
mod released_block;
mod shared_blocks;
mod sharing;
mod slabs;
mod source;
mod teardown;
mod thread_context;
mod variables;
mod vmm;
mod watermarks;

pub use admission::AdmissionRefused;
pub use clock::{ContextId, DestroyedContexts, DevicePoint, DriverClock, StreamOrigin};
pub use config::{
    ConfigError, GovernorConfig, MemorySize, MemorySizeError, PoolBacking, TenantLimit, ValueError,
    parse_byte_count,
};
pub use device::{GovernedDevice, PoolRegion, RegionRules};
pub use driver_call::answer;
pub use governed::{GovernedKey, GovernedMemory, GovernedPiece, PendingRelease, PhysicalHold};
pub use governor::{AllocationDenied, CaptureKey, Governor, HostWait, StreamInfo, UNNAMED};
pub use note::BlockNote;
pub use pool_number::{PoolNumber, PoolProvider};
pub use reconcile::MemoryFigures;
pub use released_block::ReleasedBlock;
pub use sharing::{ForeignBlock, ShareDenied};
pub use source::RegionSource;
pub use teardown::TeardownResult;
pub use thread_context::{ResolvedStream, ThreadContext};
pub use variables::{EnvVariable, VARIABLES, VariableReader, edit_distance};
pub use vmm::VmmBacking;
