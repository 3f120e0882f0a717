//! One governed pool for each device of a process, over a driver's table.
#![deny(unsafe_op_in_unsafe_fn)]

mod clock;
mod config;
mod variables;
mod vmm;

pub use clock::{DriverClock, Kind, Point};
pub use config::{BackingKind, Bytes, BytesError, Config, ConfigError, TenantLimit, ValueError};
pub use variables::{Reader, VARIABLES, Variable};
pub use vmm::Vmm;
