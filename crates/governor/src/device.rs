//! Device and its memory pool.
//!
//! Elsewhere: the source of its memory (`source`), which blocks belong to which tenant and context
//! (`governor`), context teardown (`teardown`).

use std::sync::Arc;
use std::time::Duration;

use fercuda_cuda_sys::types::{CUcontext, CUdevice};
use fercuda_cuda_sys::{Driver, Symbol};
use fercuda_ledger::{Gauge, Ledger, LedgerDevice, Tenant};
use fercuda_pool::{
    DevicePool, FreedBlock, GrowthRefused, LiveBlock, MemoryBudget, PoolPlace, PoolUsage,
    RetentionPolicy, StreamId,
};

use crate::account::DeviceAccount;
use crate::clock::{ContextId, DriverClock};
use crate::config::{GovernorConfig, MemorySize, PoolBacking};
use crate::driver_call::is_done;
use crate::extent::{RegionExtent, RegionExtents};
use crate::note::{BlockNote, id};
use crate::peers::Peers;
use crate::slabs::{SlabOwner, Slabs};
use crate::source::{PhysicalBytes, RegionMemory, RegionSource};
use crate::vmm::VmmBacking;
use crate::watermarks::Watermarks;

/// A region of a device's pool.
pub type PoolRegion = DevicePool<RegionSource, Arc<DriverClock>, BlockNote, RegionRules>;

/// The rules of reuse of a region's pool. Tests of the hook break one in builds with debug
/// assertions, which no build for use has.
#[cfg(debug_assertions)]
pub type RegionRules = fercuda_pool::BreakableRules;
/// The rules of reuse of a region's pool: all hold.
#[cfg(not(debug_assertions))]
pub type RegionRules = fercuda_pool::AllRules;

/// A device and its pool, which has two regions with one budget: small blocks are placed among
/// small ones. Without the regions, every other piece of memory would contain a small block, and
/// none could be remapped elsewhere.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct GovernedDevice {
    // The fields that each call reads come first, together.
    extents: Arc<RegionExtents>,
    /// The owner of its slabs, if memory is in slabs.
    owner: Option<Arc<SlabOwner>>,
    pub(crate) total_bytes: u64,
    pub(crate) ordinal: u32,
    pub(crate) row: LedgerDevice,
    /// The region for blocks smaller than [`SMALL_BYTES`], and the region for the others.
    small: PoolRegion,
    large: PoolRegion,
    pub(crate) watermarks: Watermarks,
    pub(crate) physical: Arc<PhysicalBytes>,
    /// The devices with access to its memory, if that is mapped.
    pub(crate) peers: Option<Arc<Peers>>,
    pub(crate) account: DeviceAccount,
}

/// Slabs are seldom empty, so more memory is retained before the device is waited for.
const SLAB_THRIFT: RetentionPolicy = RetentionPolicy {
    slack_bytes: 32 << 20,
    slack_divisor: 16,
    ..RetentionPolicy::DEFAULT
};

/// Large blocks are not allocated so often that streams compete for them; the amount of memory
/// matters.
const LARGE_THRIFT: RetentionPolicy = RetentionPolicy {
    others_bytes: 0,
    slack_divisor: 32,
    ..RetentionPolicy::DEFAULT
};

/// Blocks from this size on are large.
const SMALL_BYTES: u64 = 1 << 20;

impl GovernedDevice {
    /// Its regions.
    pub fn regions(&self) -> [&PoolRegion; 2] {
        [&self.small, &self.large]
    }

    /// The region for blocks of a size, and the other region.
    #[inline]
    pub(crate) fn region(&self, bytes: u64) -> (&PoolRegion, &PoolRegion) {
        match bytes < SMALL_BYTES {
            true => (&self.small, &self.large),
            false => (&self.large, &self.small),
        }
    }

    /// Whether the pool can serve the context with this handle.
    #[inline]
    pub(crate) fn serves(
        &self,
        context: ContextId,
        raw: impl FnOnce() -> Option<CUcontext>,
    ) -> bool {
        self.owner
            .as_ref()
            .is_none_or(|owner| owner.is(context, raw))
    }

    /// The owner of its slabs, if it has slabs.
    pub(crate) fn owner(&self) -> Option<&SlabOwner> {
        self.owner.as_deref()
    }

    /// The start and size of the slab that contains an address. `None` if memory is not in slabs.
    pub(crate) fn slab(&self, address: u64) -> Option<(u64, u64)> {
        self.owner.as_ref()?;
        self.extents.around(address).into_iter().flatten().next()
    }

    /// The live block that begins at an address, or contains it.
    pub(crate) fn find(&self, address: u64) -> Option<LiveBlock<BlockNote>> {
        let regions = self.regions();
        let exact = regions.iter().find_map(|region| region.live(address));
        exact.or_else(|| {
            let mut around = regions.iter().zip(self.extents.around(address));
            around.find_map(|(region, piece)| piece.and_then(|_| region.containing(address)))
        })
    }

    /// Prefetches the table entry of the block there while the caller does other work; returns
    /// whether it may be one of the device's blocks.
    #[inline]
    pub(crate) fn touch(&self, address: u64) -> bool {
        let there = self.extents.may_hold(address);
        for (region, there) in self.regions().into_iter().zip(there) {
            if there {
                region.touch(address);
            }
        }
        there.contains(&true)
    }

    /// Frees the block that begins there, if `may` permits it for its note.
    #[inline]
    pub(crate) fn free_if(
        &self,
        address: u64,
        place: PoolPlace,
        may: impl Fn(&BlockNote) -> bool + Copy,
    ) -> Option<FreedBlock<BlockNote>> {
        let there = self.extents.may_hold(address);
        let [small, large] = self.regions();
        let (first, other) = match there {
            [false, false] => return None,
            [true, false] => (small, None),
            [false, true] => (large, None),
            [true, true] => (small, Some(large)),
        };
        let freed = first.free_if(address, place, may).ok();
        freed.or_else(|| other?.free_if(address, place, may).ok())
    }

    /// Whether the pool has reserved an address.
    pub(crate) fn holds(&self, address: u64) -> bool {
        self.extents.hold(address)
    }

    /// Sets a tenant's limit of memory here, whether pooled or allocated by the driver.
    pub(crate) fn limit(&self, tenant: Tenant, bytes: u64) {
        for region in self.regions() {
            region.set_tenant_limit(id(tenant), bytes);
        }
    }

    /// A tenant's live bytes and blocks in both regions.
    pub fn live_of(&self, tenant: Tenant) -> (u64, u64) {
        let [a, b] = self.regions().map(|region| region.account(id(tenant)));
        (a.live_bytes + b.live_bytes, a.blocks + b.blocks)
    }

    /// The budget of both regions and of what the driver allocates here.
    pub fn budget(&self) -> &MemoryBudget {
        self.large.budget()
    }

    /// Returns ready memory to the driver; returns the bytes released.
    pub fn trim(&self) -> u64 {
        self.regions().map(|region| region.trim()).iter().sum()
    }

    /// As [`GovernedDevice::trim`], after waiting for the device's work; see
    /// [`DevicePool::trim_within`].
    pub fn trim_within(&self, patience: Duration) -> u64 {
        let trimmed = self.regions().map(|region| region.trim_within(patience));
        trimmed.iter().sum()
    }

    /// The usage of both regions.
    pub fn usage(&self) -> PoolUsage {
        let [a, b] = self.regions().map(|region| region.usage());
        PoolUsage {
            bytes: a.bytes + b.bytes,
            live_bytes: a.live_bytes + b.live_bytes,
            ready_bytes: a.ready_bytes + b.ready_bytes,
            waiting_bytes: a.waiting_bytes + b.waiting_bytes,
            cached_bytes: a.cached_bytes + b.cached_bytes,
            largest_ready_bytes: a.largest_ready_bytes.max(b.largest_ready_bytes),
            blocks: a.blocks + b.blocks,
        }
    }

    /// Reports that a stream ends.
    pub(crate) fn retire(&self, stream: StreamId) {
        for region in self.regions() {
            region.retire(stream);
        }
    }

    /// Reports that a stream is destroyed, and its work is done.
    pub(crate) fn end(&self, stream: StreamId) {
        for region in self.regions() {
            region.end(stream);
        }
    }

    /// Pins the memory of a live block where it is.
    pub fn pin(&self, address: u64) {
        for region in self.regions() {
            // In the region that it is not part of, the address is unknown.
            let _it_was_live_a_moment_ago = region.pin(address);
        }
    }

    /// The device's ordinal.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }
}

/// What a governor gives to the devices that it creates.
pub(crate) struct DeviceSetup<'a> {
    pub(crate) driver: &'static Driver,
    pub(crate) ledger: &'a Arc<Ledger>,
    pub(crate) clock: &'a Arc<DriverClock>,
    pub(crate) config: &'a GovernorConfig,
    /// Tenants with a limit on each device.
    pub(crate) limited: &'a [(Tenant, u64)],
}

impl DeviceSetup<'_> {
    /// Creates the device of this number, or returns why its memory cannot be pooled; `None` if
    /// there is no such device.
    pub(crate) fn make(&self, ordinal: u32) -> Option<Result<GovernedDevice, GrowthRefused>> {
        let raw = CUdevice::try_from(ordinal).ok()?;
        let mut total = 0;
        // SAFETY: `total` outlives the call.
        let is_there = is_done(unsafe { self.driver.cuDeviceTotalMem_v2(&mut total, raw) });
        is_there.then(|| self.make_of(ordinal, raw, total as u64))
    }

    fn make_of(
        &self,
        ordinal: u32,
        raw: CUdevice,
        total_bytes: u64,
    ) -> Result<GovernedDevice, GrowthRefused> {
        let marks = self.driver.address(Symbol::cuCtxRecordEvent);
        marks.map_err(|missing| GrowthRefused(missing.to_string()))?;
        let row = LedgerDevice::new(ordinal);
        let physical = Arc::new(PhysicalBytes::default());
        let ([small, large], extents) = RegionExtent::new();
        let slabs = self.config.backing == PoolBacking::Slabs;
        let owner = slabs.then(Arc::<SlabOwner>::default);
        let peers = Arc::new(Peers::new(self.driver, raw));
        let source = |extent: RegionExtent| {
            let memory = match &owner {
                Some(owner) => {
                    let shared = (owner.clone(), extent.clone());
                    RegionMemory::Slabs(Slabs::new(self.driver, shared))
                }
                None => RegionMemory::Mapped(VmmBacking::open_to(peers.clone(), self.driver, raw)?),
            };
            let shared = (physical.clone(), extent);
            Ok(RegionSource::new(memory, self.ledger.clone(), row, shared))
        };
        let limit = self.config.limit.map(MemorySize::get);
        self.ledger.set(row, Gauge::Limit, limit.unwrap_or(0));
        let budget = MemoryBudget::new(limit.unwrap_or(total_bytes));
        let region = |extent: RegionExtent| {
            let pool = DevicePool::with_rules(source(extent)?, self.clock.clone(), budget.clone());
            if slabs {
                pool.set_retention(SLAB_THRIFT);
            }
            Ok(pool)
        };
        let large = region(large)?;
        if !slabs {
            large.set_retention(LARGE_THRIFT);
        }
        let device = GovernedDevice {
            ordinal,
            row,
            total_bytes,
            small: region(small)?,
            large,
            physical: physical.clone(),
            extents,
            owner: owner.clone(),
            peers: (!slabs).then(|| peers.clone()),
            account: DeviceAccount::default(),
            watermarks: Watermarks::default(),
        };
        for (tenant, bytes) in self.limited {
            device.limit(*tenant, *bytes);
            self.ledger.set_tenant_limit(row, *tenant, *bytes);
        }
        Ok(device)
    }
}
