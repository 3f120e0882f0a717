//! Options of a dispatcher, and the shape of its kernel.

use std::time::Duration;

use crate::error::DispatchError;

/// Options of a dispatcher.
#[derive(Clone, Copy, Debug)]
pub struct DispatchOptions {
    /// Slots of each priority's ring, a power of two.
    pub capacity: u32,
    /// Number of priorities, 1 to 8. The first has the highest.
    pub priorities: u32,
    /// Blocks that take tasks. Each occupies the device for as long as the kernel lives.
    pub blocks: u32,
    /// Threads of a block, a multiple of 32, at most 1024.
    pub threads: u32,
    /// How long an idle block sleeps between polls, in nanoseconds.
    pub idle_ns: u32,
    /// Default limit of the steps of a task's thread.
    pub steps: u32,
    /// A task that runs longer is cancelled by the thread that waits for it; if it does not end
    /// within as long again, the dispatcher is lost.
    pub watchdog: Duration,
}

impl Default for DispatchOptions {
    fn default() -> Self {
        Self {
            capacity: 64,
            priorities: 2,
            blocks: 1,
            threads: 128,
            idle_ns: 100,
            steps: 1 << 20,
            watchdog: Duration::from_secs(2),
        }
    }
}

/// Rings, slots of a ring, threads of a block, and idle time in nanoseconds.
pub(crate) type KernelShape = (u32, u32, u32, u32);

impl DispatchOptions {
    /// The parameters that a kernel is built for.
    pub(crate) fn shape(&self) -> KernelShape {
        (self.priorities, self.capacity, self.threads, self.idle_ns)
    }

    pub(crate) fn check(&self) -> Result<(), DispatchError> {
        let value = |why: &str| Err(DispatchError::Value { why: why.into() });
        if !self.capacity.is_power_of_two() || self.capacity > 1 << 20 {
            return value("the capacity must be a power of two, at most 2^20");
        }
        if !(1..=8).contains(&self.priorities) || self.blocks == 0 {
            return value("the priorities must be 1 to 8, the blocks at least 1");
        }
        let threads = self.threads;
        if threads == 0 || threads > 1024 || !threads.is_multiple_of(32) {
            return value("the threads of a block must be 32 to 1024, a multiple of 32");
        }
        Ok(())
    }
}
