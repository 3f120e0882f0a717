//! A device and its pool.
//!
//! Elsewhere: where its memory comes from (`source`), what of it belongs to whom
//! (`governor`), what ends with a context (`ends`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use fercuda_cuda_sys::Symbol;
use fercuda_cuda_sys::types::{CUcontext, CUdevice};
use fercuda_ledger::{Gauge, LedgerDevice, Tenant};
use fercuda_pool::{Budget, Freed, Live, Place, Pool, Refused, StreamId, Thrift, Usage};

use crate::clock::{ContextId, DriverClock};
use crate::config::{Backing, Bytes};
use crate::governor::{Governor, Note, id, is_done};
use crate::memory_pools::Watermarks;
use crate::peers::Peers;
use crate::reconcile::Account;
use crate::slabs::{Owner, Slabs};
use crate::source::{Extent, Extents, Memory, Physical, Source};
use crate::vmm::Vmm;

/// A region of a device's pool.
pub type Region = Pool<Source, Arc<DriverClock>, Note>;

/// A device and its pool, which has two regions with one budget: small blocks
/// lie among small ones. A pool without that has some small block in every
/// other piece of memory, and none can be mapped elsewhere.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Device {
    // What each call reads comes first, together.
    extents: Arc<Extents>,
    /// Of slabs, whose they are.
    owner: Option<Arc<Owner>>,
    /// Tenants with a limit, a bit each: what they hold is counted in one
    /// region, whatever its size.
    limited: AtomicU64,
    pub(crate) total_bytes: u64,
    pub(crate) ordinal: u32,
    pub(crate) row: LedgerDevice,
    /// For blocks of less than [`SMALL_BYTES`], and for the others.
    small: Region,
    large: Region,
    pub(crate) watermarks: Watermarks,
    pub(crate) physical: Arc<Physical>,
    /// Of mapped memory, who may use it.
    pub(crate) peers: Option<Arc<Peers>>,
    pub(crate) account: Account,
}

/// Slabs are seldom empty, so there is more beside what is live before the
/// device is waited for.
const SLAB_THRIFT: Thrift = Thrift {
    slack_bytes: 32 << 20,
    slack_part: 16,
    ..Thrift::DEFAULT
};

/// Nobody allocates large blocks so often that streams get in each other's way;
/// what matters is how much memory there is.
const LARGE_THRIFT: Thrift = Thrift {
    others_bytes: 0,
    ..Thrift::DEFAULT
};

/// Blocks from this size on are large.
const SMALL_BYTES: u64 = 1 << 20;

impl Device {
    /// Its regions.
    pub fn regions(&self) -> [&Region; 2] {
        [&self.small, &self.large]
    }

    /// Where a tenant's blocks of a size lie, and the other region.
    #[inline]
    pub(crate) fn region(&self, tenant: Tenant, bytes: u64) -> (&Region, &Region) {
        let limited = self.limited.load(Relaxed) & (1 << (tenant.index() & 63)) != 0;
        match bytes < SMALL_BYTES && !limited {
            true => (&self.small, &self.large),
            false => (&self.large, &self.small),
        }
    }

    /// Whether there is memory for a context, which has this handle.
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

    /// Whose its slabs are, if it has such.
    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.owner.as_deref()
    }

    /// The slab that an address is in: where it begins, and its size. None
    /// where memory is not in slabs.
    pub(crate) fn slab(&self, address: u64) -> Option<(u64, u64)> {
        self.owner.as_ref()?;
        self.extents.around(address).into_iter().flatten().next()
    }

    /// The live block at an address, or around it.
    pub(crate) fn find(&self, address: u64) -> Option<Live<Note>> {
        let regions = self.regions();
        let exact = regions.iter().find_map(|region| region.live(address));
        exact.or_else(|| {
            let mut around = regions.iter().zip(self.extents.around(address));
            around.find_map(|(region, piece)| piece.and_then(|_| region.containing(address)))
        })
    }

    /// Has what is known of the block there fetched while the caller does other
    /// things; whether it may be one of the device's.
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

    /// Frees the block that begins there, if its note is such.
    #[inline]
    pub(crate) fn free_if(
        &self,
        address: u64,
        place: Place,
        may: impl Fn(&Note) -> bool + Copy,
    ) -> Option<Freed<Note>> {
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

    /// Whether an address is one that it has reserved.
    pub(crate) fn holds(&self, address: u64) -> bool {
        self.extents.hold(address)
    }

    /// A tenant may hold so much; that is counted in one region.
    pub(crate) fn limit(&self, tenant: Tenant, bytes: u64) {
        self.large.set_tenant_limit(id(tenant), bytes);
        self.limited.fetch_or(1 << (tenant.index() & 63), Relaxed);
    }

    /// What is live of a tenant in both: bytes and blocks.
    pub fn live_of(&self, tenant: Tenant) -> (u64, u64) {
        let [a, b] = self.regions().map(|region| region.account(id(tenant)));
        (a.live_bytes + b.live_bytes, a.blocks + b.blocks)
    }

    /// The budget of both.
    pub fn budget(&self) -> &Budget {
        self.large.budget()
    }

    /// Gives memory that is ready back to the driver; how many bytes.
    pub fn trim(&self) -> u64 {
        self.regions().map(|region| region.trim()).iter().sum()
    }

    /// The same, behind what the device has to do; see [`Pool::trim_within`].
    pub fn trim_within(&self, patience: Duration) -> u64 {
        let trimmed = self.regions().map(|region| region.trim_within(patience));
        trimmed.iter().sum()
    }

    /// What both hold.
    pub fn usage(&self) -> Usage {
        let [a, b] = self.regions().map(|region| region.usage());
        Usage {
            bytes: a.bytes + b.bytes,
            live_bytes: a.live_bytes + b.live_bytes,
            ready_bytes: a.ready_bytes + b.ready_bytes,
            waiting_bytes: a.waiting_bytes + b.waiting_bytes,
            cached_bytes: a.cached_bytes + b.cached_bytes,
            largest_ready_bytes: a.largest_ready_bytes.max(b.largest_ready_bytes),
            blocks: a.blocks + b.blocks,
        }
    }

    /// A stream gets no more work.
    pub(crate) fn retire(&self, stream: StreamId) {
        for region in self.regions() {
            region.retire(stream);
        }
    }

    /// A stream is gone, and its work is done.
    pub(crate) fn end(&self, stream: StreamId) {
        for region in self.regions() {
            region.end(stream);
        }
    }

    /// Keeps the memory of a live block where it is.
    pub fn pin(&self, address: u64) {
        for region in self.regions() {
            // In the one that it is not of it is unknown.
            let _it_was_live_a_moment_ago = region.pin(address);
        }
    }

    /// Its number.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }
}

impl Governor {
    /// A device, or why its memory cannot be pooled; none if there is none of
    /// this number.
    pub(crate) fn make(&self, ordinal: u32) -> Option<Result<Device, Refused>> {
        let raw = CUdevice::try_from(ordinal).ok()?;
        let mut total = 0;
        // SAFETY: `total` outlives the call.
        let is_there = is_done(unsafe { self.driver.cuDeviceTotalMem_v2(&mut total, raw) });
        is_there.then(|| self.make_of(ordinal, raw, total as u64))
    }

    fn make_of(&self, ordinal: u32, raw: CUdevice, total_bytes: u64) -> Result<Device, Refused> {
        let marks = self.driver.address(Symbol::cuCtxRecordEvent);
        marks.map_err(|missing| Refused(missing.to_string()))?;
        let row = LedgerDevice::new(ordinal);
        let physical = Arc::new(Physical::default());
        let ([small, large], extents) = Extent::new();
        let slabs = self.config().backing == Backing::Slabs;
        let owner = slabs.then(Arc::<Owner>::default);
        let peers = Arc::new(Peers::new(self.driver, raw));
        let source = |extent: Extent| {
            let memory = match &owner {
                Some(owner) => {
                    let told = (owner.clone(), extent.clone());
                    Memory::Slabs(Slabs::new(self.driver, told))
                }
                None => Memory::Mapped(Vmm::open_to(peers.clone(), self.driver, raw)?),
            };
            let told = (physical.clone(), extent);
            Ok(Source::new(memory, self.ledger.clone(), row, told))
        };
        let limit = self.config().limit.map(Bytes::get);
        self.ledger.set(row, Gauge::Limit, limit.unwrap_or(0));
        let budget = Budget::new(limit.unwrap_or(total_bytes));
        let region = |extent: Extent| {
            let pool = Pool::new(source(extent)?, self.clock.clone(), budget.clone());
            if slabs {
                pool.set_thrift(SLAB_THRIFT);
            }
            Ok(pool)
        };
        let large = region(large)?;
        if !slabs {
            large.set_thrift(LARGE_THRIFT);
        }
        let device = Device {
            ordinal,
            row,
            total_bytes,
            small: region(small)?,
            large,
            physical: physical.clone(),
            limited: AtomicU64::new(0),
            extents,
            owner: owner.clone(),
            peers: (!slabs).then(|| peers.clone()),
            account: Account::default(),
            watermarks: Watermarks::default(),
        };
        for (tenant, bytes) in &self.limited {
            device.limit(*tenant, *bytes);
            self.ledger.set_tenant_limit(row, *tenant, *bytes);
        }
        Ok(device)
    }
}
