//! Launch of a kernel: what it is run with, and what it cost.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::binding::LaunchBindings;
use super::kernel_heap::KernelHeap;
use crate::check::CheckContext;
use crate::mem::AddressSpace;

/// Receives the output of `printf`, one whole call at a time.
pub type PrintSink = Arc<dyn Fn(&str) + Send + Sync>;

/// The device's properties in special registers.
#[derive(Debug, Clone, Copy)]
pub struct DeviceInfo {
    /// Ordinal; selects access bits of the address space.
    pub ordinal: u32,
    /// Multiprocessors (`%nsmid`).
    pub multiprocessors: u32,
    /// Largest shared memory of a block, opt-in, bytes.
    pub max_shared_bytes: u32,
    /// Local memory a thread may have, stack included, bytes.
    pub stack_limit_bytes: u64,
}

impl Default for DeviceInfo {
    fn default() -> Self {
        DeviceInfo {
            ordinal: 0,
            multiprocessors: 132,
            max_shared_bytes: 232_448,
            stack_limit_bytes: 512 << 10,
        }
    }
}

/// How a kernel is launched.
#[derive(Clone)]
pub struct LaunchSpec {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Blocks of a cluster along each axis, of which the grid's are multiples.
    pub cluster: [u32; 3],
    /// Whether that was asked for, by the kernel or by its launch.
    pub explicit_cluster: bool,
    /// Bytes of dynamic shared memory.
    pub dynamic_shared_bytes: u32,
    /// The parameter block.
    pub params: Vec<u8>,
    /// Device.
    pub device: DeviceInfo,
    /// All blocks resident at once, so that they may wait for each other.
    pub cooperative: bool,
    /// Memory.
    pub space: Arc<AddressSpace>,
    /// Checks, if on; the address space then has a shadow.
    pub checks: Option<CheckContext>,
    /// Longest run, if limited.
    pub watchdog: Option<Duration>,
    /// Run `cp.async` as late as its waits allow even without checks.
    pub late_copies: bool,
    /// Where `printf` goes.
    pub print: PrintSink,
    /// Where `malloc` takes from; a kernel that calls it without one faults.
    pub heap: Option<Arc<KernelHeap>>,
    /// What texture and surface handles stand for.
    pub bindings: LaunchBindings,
    /// Set from outside to end the launch early (it then ends without fault).
    pub cancel: Option<Arc<AtomicBool>>,
}

impl LaunchSpec {
    /// `bytes` (1, 2, 4 or 8) of the parameter block from `at` on; zero outside.
    pub(crate) fn parameter(&self, at: u32, bytes: u32) -> u64 {
        let found = self.params.get(at as usize..at as usize + bytes as usize);
        let mut value = [0; 8];
        for (v, b) in value.iter_mut().zip(found.unwrap_or_default()) {
            *v = *b;
        }
        u64::from_le_bytes(value)
    }
}

impl fmt::Debug for LaunchSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchSpec")
            .field("grid", &self.grid)
            .field("block", &self.block)
            .finish_non_exhaustive()
    }
}

/// What a launch cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaunchStats {
    /// Instructions, one for each warp that executed one.
    pub warp_instructions: u64,
    /// Blocks.
    pub blocks: u64,
    /// Wall clock.
    pub elapsed: Duration,
}
