//! One governed pool for each device of a process, over a driver's table.
#![deny(unsafe_op_in_unsafe_fn)]

mod clock;
mod config;
mod device;
mod ends;
mod governed;
mod governor;
mod lifetimes;
mod memory_pools;
mod peers;
mod reconcile;
mod seat;
mod sharing;
mod slabs;
mod source;
mod variables;
mod vmm;

pub use clock::{ContextId, DriverClock, Gone, Kind, Point};
pub use config::{Backing, Bytes, BytesError, Config, ConfigError, TenantLimit, ValueError};
pub use device::{Device, Region};
pub use ends::Destroyed;
pub use governed::{GovernedMemory, Key, Piece, Taken};
pub use governor::{Capturing, Denied, Governor, Note, Stream, UNNAMED, Waiting, answer};
pub use memory_pools::{PoolNumber, Served};
pub use reconcile::Figures;
pub use seat::{Ordered, Seat};
pub use sharing::{Imported, NotShared};
pub use source::Source;
pub use variables::{Reader, VARIABLES, Variable};
pub use vmm::Vmm;
