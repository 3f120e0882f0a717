//! A device, some streams, and the allocators over it.
//!
//! Invariant: an address that goes to the driver came from it and was not
//! given back: a [`Block`] is made by an allocation alone and ends with a free
//! by the same kind. Streams and context live as long as the process.

use std::ffi::c_void;

use anyhow::{Context as _, Result, anyhow, bail};
use fercuda_cuda::{Cuda, Select};
use fercuda_cuda_sys::types::{
    CUcontext, CUdevice, CUmemPool_attribute, CUmemoryPool, CUresult, CUstream,
};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_governor::{DriverClock, StreamOrigin, VmmBacking};
use fercuda_pool::{AllocationRequest, DevicePool, MemoryBudget, PoolPlace, StreamId, TenantId};

/// As CUDA's own allocations are, and more.
const ALIGN_BYTES: u64 = 512;
/// A stream that does not wait for the legacy one.
const NON_BLOCKING: u32 = 1;

/// One device with streams.
pub(crate) struct Machine {
    driver: &'static Driver,
    device: CUdevice,
    context: CUcontext,
    streams: Vec<CUstream>,
    pub(crate) name: String,
    /// The library that the calls go to.
    pub(crate) origin: String,
}

/// Memory that an allocator gave. Dropped without a free, it stays allocated.
#[derive(Debug)]
#[must_use]
pub(crate) struct Block {
    address: u64,
    by: By,
}

/// Who gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Pool,
    Plain,
    Ordered,
}

impl Block {
    /// Its address, for who gave it.
    fn address(self, by: By) -> std::result::Result<u64, String> {
        if self.by == by {
            Ok(self.address)
        } else {
            Err(format!("{:?} cannot free what {:?} gave", by, self.by))
        }
    }
}

/// A way to get memory. Streams are numbers, taken modulo how many there are.
pub(crate) trait Allocator: Sync {
    fn name(&self) -> &'static str;
    /// So many bytes for work in a stream, or why not.
    fn allocate(&self, bytes: u64, stream: usize) -> std::result::Result<Block, String>;
    /// Takes a block back, behind what is queued in a stream.
    fn free(&self, block: Block, stream: usize) -> std::result::Result<(), String>;
    /// Physical memory that it has taken from the device.
    fn physical_bytes(&self) -> u64;
}

fn done(
    what: &str,
    answer: std::result::Result<CUresult, Missing>,
) -> std::result::Result<(), String> {
    match answer {
        Ok(CUresult::CUDA_SUCCESS) => Ok(()),
        Ok(code) => Err(format!("{what} answered {code:?}")),
        Err(missing) => Err(missing.to_string()),
    }
}

macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: pointers are to variables that outlive the call; handles and
        // addresses are the driver's own and not given back, as the module's
        // invariant says.
        done(stringify!($name), unsafe { $driver.$name($($argument),*) })
    };
}

impl Machine {
    /// The first device that `select` finds, current in this thread.
    pub(crate) fn open(select: Select, streams: usize) -> Result<Machine> {
        let cuda = Cuda::select(select)?;
        let found = cuda.device(0)?;
        let driver = cuda.driver();
        let failed = |error| anyhow!("{error}").context("cannot prepare device 0");
        let mut device: CUdevice = 0;
        call!(driver, cuDeviceGet(&mut device, 0)).map_err(failed)?;
        let mut context = CUcontext::NULL;
        call!(driver, cuDevicePrimaryCtxRetain(&mut context, device)).map_err(failed)?;
        let mut machine = Machine {
            driver,
            device,
            context,
            streams: Vec::new(),
            name: found.name()?,
            origin: driver.origin().to_string(),
        };
        machine.enter()?;
        for _ in 0..streams.max(1) {
            let mut stream = CUstream::NULL;
            call!(driver, cuStreamCreate(&mut stream, NON_BLOCKING)).map_err(failed)?;
            machine.streams.push(stream);
        }
        Ok(machine)
    }

    /// Makes its context the calling thread's.
    pub(crate) fn enter(&self) -> Result<()> {
        call!(self.driver, cuCtxSetCurrent(self.context))
            .map_err(|error| anyhow!("{error}"))
            .context("cannot make the device current")
    }

    /// Waits until everything that was queued is done.
    fn join(&self) {
        // What is wrong with the device shows in the next call that matters.
        call!(self.driver, cuCtxSynchronize()).ok();
    }

    fn free_bytes(&self) -> u64 {
        let (mut free, mut total) = (0, 0);
        match call!(self.driver, cuMemGetInfo_v2(&mut free, &mut total)) {
            Ok(()) => free as u64,
            Err(_) => 0,
        }
    }
}

/// Our pool over the driver's mappings and events.
pub(crate) struct Pooled<'m> {
    machine: &'m Machine,
    pool: DevicePool<VmmBacking, DriverClock>,
    places: Vec<PoolPlace>,
}

impl<'m> Pooled<'m> {
    pub(crate) fn new(machine: &'m Machine) -> Result<Pooled<'m>> {
        let vmm = VmmBacking::new(machine.driver, machine.device)
            .map_err(|refused| anyhow!("{refused}"))
            .context("this device cannot map memory, which the pool needs")?;
        let clock = DriverClock::new(machine.driver);
        clock.add_context(machine.context);
        let mut places = Vec::new();
        for (number, stream) in machine.streams.iter().enumerate() {
            let id = StreamId(number as u64 + 1);
            // SAFETY: a stream of this context that is never destroyed.
            unsafe { clock.add_stream(id, machine.context, StreamOrigin::Created(*stream)) };
            places.push(PoolPlace::Stream(id));
        }
        let budget = MemoryBudget::new(u64::MAX);
        Ok(Pooled {
            machine,
            pool: DevicePool::new(vmm, clock, budget),
            places,
        })
    }

    fn place(&self, stream: usize) -> PoolPlace {
        self.places[stream % self.places.len()]
    }

    fn take(&self, bytes: u64, place: PoolPlace) -> std::result::Result<u64, String> {
        let request = AllocationRequest {
            bytes,
            align_bytes: ALIGN_BYTES,
            place,
            tenant: TenantId(0),
            note: (),
        };
        let span = self
            .pool
            .allocate(&request)
            .map_err(|error| error.to_string())?;
        Ok(span.address)
    }

    fn give(&self, address: u64, place: PoolPlace) -> std::result::Result<(), String> {
        let freed = self.pool.free(address, place);
        freed.map(|_| ()).map_err(|error| error.to_string())
    }

    /// A pair in no stream's order, as `cuMemAlloc` and `cuMemFree` are.
    pub(crate) fn plain_pair(&self, bytes: u64) -> std::result::Result<(), String> {
        let address = self.take(bytes, PoolPlace::Anywhere)?;
        self.give(address, PoolPlace::Anywhere)
    }

    /// Gives what is free back to the driver.
    pub(crate) fn trim(&self) {
        self.machine.join();
        self.pool.trim();
    }
}

impl Allocator for Pooled<'_> {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn allocate(&self, bytes: u64, stream: usize) -> std::result::Result<Block, String> {
        let address = self.take(bytes, self.place(stream))?;
        let by = By::Pool;
        Ok(Block { address, by })
    }

    fn free(&self, block: Block, stream: usize) -> std::result::Result<(), String> {
        self.give(block.address(By::Pool)?, self.place(stream))
    }

    fn physical_bytes(&self) -> u64 {
        self.pool.budget().used_bytes()
    }
}

/// `cuMemAlloc` and `cuMemFree`.
pub(crate) struct Plain<'m> {
    machine: &'m Machine,
    /// What was free before.
    free_bytes: u64,
}

impl<'m> Plain<'m> {
    pub(crate) fn new(machine: &'m Machine) -> Plain<'m> {
        machine.join();
        Plain {
            machine,
            free_bytes: machine.free_bytes(),
        }
    }
}

impl Allocator for Plain<'_> {
    fn name(&self) -> &'static str {
        "cuMemAlloc"
    }

    fn allocate(&self, bytes: u64, _: usize) -> std::result::Result<Block, String> {
        let mut address = 0;
        call!(
            self.machine.driver,
            cuMemAlloc_v2(&mut address, bytes as usize)
        )?;
        let by = By::Plain;
        Ok(Block { address, by })
    }

    fn free(&self, block: Block, _: usize) -> std::result::Result<(), String> {
        let address = block.address(By::Plain)?;
        call!(self.machine.driver, cuMemFree_v2(address))
    }

    fn physical_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.machine.free_bytes())
    }
}

/// `cuMemAllocAsync` and `cuMemFreeAsync`, on the device's default pool with
/// the driver's defaults.
pub(crate) struct Ordered<'m> {
    machine: &'m Machine,
    pool: CUmemoryPool,
}

impl<'m> Ordered<'m> {
    pub(crate) fn new(machine: &'m Machine) -> Result<Ordered<'m>> {
        let mut pool = CUmemoryPool::NULL;
        let driver = machine.driver;
        if let Err(error) = call!(driver, cuDeviceGetDefaultMemPool(&mut pool, machine.device)) {
            bail!("this device has no pool of its own: {error}");
        }
        Ok(Ordered { machine, pool })
    }

    fn stream(&self, stream: usize) -> CUstream {
        self.machine.streams[stream % self.machine.streams.len()]
    }
}

impl Allocator for Ordered<'_> {
    fn name(&self) -> &'static str {
        "cuMemAllocAsync"
    }

    fn allocate(&self, bytes: u64, stream: usize) -> std::result::Result<Block, String> {
        let mut address = 0;
        let stream = self.stream(stream);
        let mut ask = || {
            let bytes = bytes as usize;
            call!(
                self.machine.driver,
                cuMemAllocAsync(&mut address, bytes, stream)
            )
        };
        // Frees that are queued hold their memory until they are reached; a
        // program would wait for them too.
        ask().or_else(|_| {
            self.machine.join();
            ask()
        })?;
        let by = By::Ordered;
        Ok(Block { address, by })
    }

    fn free(&self, block: Block, stream: usize) -> std::result::Result<(), String> {
        let address = block.address(By::Ordered)?;
        call!(
            self.machine.driver,
            cuMemFreeAsync(address, self.stream(stream))
        )
    }

    fn physical_bytes(&self) -> u64 {
        let mut bytes = 0_u64;
        let reserved = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        let value: *mut c_void = (&raw mut bytes).cast();
        match call!(
            self.machine.driver,
            cuMemPoolGetAttribute(self.pool, reserved, value)
        ) {
            Ok(()) => bytes,
            Err(_) => 0,
        }
    }
}
