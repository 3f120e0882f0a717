//! A device with streams, and the allocators under comparison.
//!
//! Invariant: every address passed to the driver came from it and was not freed: an
//! [`AllocatedBlock`] is created only by an allocation and ends with a free by the same
//! allocator. Streams and context live as long as the process.

use std::ffi::c_void;

use anyhow::{Context as _, Result, anyhow, bail};
use fercuda_cuda::{Cuda, Select};
use fercuda_cuda_sys::types::{
    CUcontext, CUdevice, CUmemPool_attribute, CUmemoryPool, CUresult, CUstream,
};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_governor::{DriverClock, StreamOrigin, VmmBacking};
use fercuda_pool::{AllocationRequest, DevicePool, MemoryBudget, PoolPlace, StreamId, TenantId};

/// At least the alignment of CUDA's own allocations.
const ALIGN_BYTES: u64 = 512;
/// A stream that does not synchronise with the legacy default stream.
const NON_BLOCKING: u32 = 1;

/// One device with streams.
pub(crate) struct DeviceUnderTest {
    driver: &'static Driver,
    device: CUdevice,
    context: CUcontext,
    streams: Vec<CUstream>,
    pub(crate) name: String,
    /// The library that serves the calls.
    pub(crate) origin: String,
}

/// Memory from an allocator. Dropping it without a free leaks the memory.
#[derive(Debug)]
#[must_use]
pub(crate) struct AllocatedBlock {
    address: u64,
    by: AllocatorKind,
}

/// Which allocator a block came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AllocatorKind {
    Pool,
    Plain,
    Ordered,
}

impl AllocatedBlock {
    /// Its address, if this allocator allocated it.
    fn address(self, by: AllocatorKind) -> std::result::Result<u64, String> {
        if self.by == by {
            Ok(self.address)
        } else {
            Err(format!("{:?} cannot free a block of {:?}", by, self.by))
        }
    }
}

/// A device memory allocator. Stream numbers are taken modulo the number of streams.
pub(crate) trait Allocator: Sync {
    fn name(&self) -> &'static str;
    /// Allocates `bytes` for work in a stream.
    fn allocate(&self, bytes: u64, stream: usize) -> std::result::Result<AllocatedBlock, String>;
    /// Frees a block in stream order.
    fn free(&self, block: AllocatedBlock, stream: usize) -> std::result::Result<(), String>;
    /// Physical memory that the allocator has taken from the device.
    fn physical_bytes(&self) -> u64;
}

fn done(
    what: &str,
    answer: std::result::Result<CUresult, Missing>,
) -> std::result::Result<(), String> {
    match answer {
        Ok(CUresult::CUDA_SUCCESS) => Ok(()),
        Ok(code) => Err(format!("{what} returned {code:?}")),
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

impl DeviceUnderTest {
    /// Opens the first device that `select` finds and makes it current in this thread.
    pub(crate) fn open(select: Select, streams: usize) -> Result<DeviceUnderTest> {
        let cuda = Cuda::select(select)?;
        let found = cuda.device(0)?;
        let driver = cuda.driver();
        let failed = |error| anyhow!("{error}").context("cannot prepare device 0");
        let mut device: CUdevice = 0;
        call!(driver, cuDeviceGet(&mut device, 0)).map_err(failed)?;
        let mut context = CUcontext::NULL;
        call!(driver, cuDevicePrimaryCtxRetain(&mut context, device)).map_err(failed)?;
        let mut machine = DeviceUnderTest {
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

    /// Makes its context current in the calling thread.
    pub(crate) fn enter(&self) -> Result<()> {
        call!(self.driver, cuCtxSetCurrent(self.context))
            .map_err(|error| anyhow!("{error}"))
            .context("cannot make the device current")
    }

    /// Waits for all queued work.
    fn join(&self) {
        // A device error shows in the next call that matters.
        call!(self.driver, cuCtxSynchronize()).ok();
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        let (mut free, mut total) = (0, 0);
        match call!(self.driver, cuMemGetInfo_v2(&mut free, &mut total)) {
            Ok(()) => free as u64,
            Err(_) => 0,
        }
    }
}

/// Our pool over the driver's virtual memory mappings and events.
pub(crate) struct PoolAllocator<'m> {
    machine: &'m DeviceUnderTest,
    pool: DevicePool<VmmBacking, DriverClock>,
    places: Vec<PoolPlace>,
}

impl<'m> PoolAllocator<'m> {
    pub(crate) fn new(machine: &'m DeviceUnderTest) -> Result<PoolAllocator<'m>> {
        let vmm = VmmBacking::new(machine.driver, machine.device)
            .map_err(|refused| anyhow!("{refused}"))
            .context("this device has no virtual memory management, which the pool needs")?;
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
        Ok(PoolAllocator {
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

    /// An allocation and free without stream ordering, like `cuMemAlloc` and `cuMemFree`.
    pub(crate) fn plain_pair(&self, bytes: u64) -> std::result::Result<(), String> {
        let address = self.take(bytes, PoolPlace::Anywhere)?;
        self.give(address, PoolPlace::Anywhere)
    }

    /// Returns free memory to the driver.
    pub(crate) fn trim(&self) {
        self.machine.join();
        self.pool.trim();
    }
}

impl Allocator for PoolAllocator<'_> {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn allocate(&self, bytes: u64, stream: usize) -> std::result::Result<AllocatedBlock, String> {
        let address = self.take(bytes, self.place(stream))?;
        let by = AllocatorKind::Pool;
        Ok(AllocatedBlock { address, by })
    }

    fn free(&self, block: AllocatedBlock, stream: usize) -> std::result::Result<(), String> {
        self.give(block.address(AllocatorKind::Pool)?, self.place(stream))
    }

    fn physical_bytes(&self) -> u64 {
        self.pool.budget().used_bytes()
    }
}

/// `cuMemAlloc` and `cuMemFree`.
pub(crate) struct SyncAllocator<'m> {
    machine: &'m DeviceUnderTest,
    /// Free bytes before the first allocation.
    free_bytes: u64,
}

impl<'m> SyncAllocator<'m> {
    pub(crate) fn new(machine: &'m DeviceUnderTest) -> SyncAllocator<'m> {
        machine.join();
        SyncAllocator {
            machine,
            free_bytes: machine.free_bytes(),
        }
    }
}

impl Allocator for SyncAllocator<'_> {
    fn name(&self) -> &'static str {
        "cuMemAlloc"
    }

    fn allocate(&self, bytes: u64, _: usize) -> std::result::Result<AllocatedBlock, String> {
        let mut address = 0;
        call!(
            self.machine.driver,
            cuMemAlloc_v2(&mut address, bytes as usize)
        )?;
        let by = AllocatorKind::Plain;
        Ok(AllocatedBlock { address, by })
    }

    fn free(&self, block: AllocatedBlock, _: usize) -> std::result::Result<(), String> {
        let address = block.address(AllocatorKind::Plain)?;
        call!(self.machine.driver, cuMemFree_v2(address))
    }

    fn physical_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.machine.free_bytes())
    }
}

/// `cuMemAllocAsync` and `cuMemFreeAsync`, with the device's default pool and the driver's
/// default settings.
pub(crate) struct AsyncAllocator<'m> {
    machine: &'m DeviceUnderTest,
    pool: CUmemoryPool,
}

impl<'m> AsyncAllocator<'m> {
    pub(crate) fn new(machine: &'m DeviceUnderTest) -> Result<AsyncAllocator<'m>> {
        let mut pool = CUmemoryPool::NULL;
        let driver = machine.driver;
        if let Err(error) = call!(driver, cuDeviceGetDefaultMemPool(&mut pool, machine.device)) {
            bail!("this device has no default memory pool: {error}");
        }
        Ok(AsyncAllocator { machine, pool })
    }

    fn stream(&self, stream: usize) -> CUstream {
        self.machine.streams[stream % self.machine.streams.len()]
    }
}

impl Allocator for AsyncAllocator<'_> {
    fn name(&self) -> &'static str {
        "cuMemAllocAsync"
    }

    fn allocate(&self, bytes: u64, stream: usize) -> std::result::Result<AllocatedBlock, String> {
        let mut address = 0;
        let stream = self.stream(stream);
        let mut ask = || {
            let bytes = bytes as usize;
            call!(
                self.machine.driver,
                cuMemAllocAsync(&mut address, bytes, stream)
            )
        };
        // Memory of queued frees is in use until the stream reaches them; a program would
        // wait for them too.
        ask().or_else(|_| {
            self.machine.join();
            ask()
        })?;
        let by = AllocatorKind::Ordered;
        Ok(AllocatedBlock { address, by })
    }

    fn free(&self, block: AllocatedBlock, stream: usize) -> std::result::Result<(), String> {
        let address = block.address(AllocatorKind::Ordered)?;
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
