//! One governed pool for each device of a process, over a driver's table.
#![deny(unsafe_op_in_unsafe_fn)]

mod clock;
mod vmm;

pub use clock::{DriverClock, Kind, Point};
pub use vmm::Vmm;
