//! Slab backing: memory of the driver's `cuMemAlloc`, from which the pool cuts blocks. Unlike
//! mapped memory, slabs have a handle that another process can open; but a slab is returned as a
//! whole or not at all, and cannot be moved.
//!
//! A slab belongs to the context in which it was allocated and ends with it. So all slabs of a
//! device belong to one context, its owner: the first that requested memory there. Memory of other
//! contexts is not pooled, since their blocks would end with another context. The owner's
//! stream-ordered allocations end with it too, though a driver's would not.
//!
//! Invariants: no slab is requested of a context, or returned to it, while it is being destroyed or
//! afterwards; the driver may have reused its addresses then. The next context becomes the owner of
//! the device's memory only when nothing of the previous one is left.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, RwLock, RwLockWriteGuard};

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{CUcontext, CUdeviceptr};
use fercuda_pool::{GrowthRefused, MemoryBacking, Span};

use crate::clock::{ContextId, CurrentContext, read, write};
use crate::driver_call::{RelaxedCapture, done};
use crate::extent::RegionExtent;

/// The granularity of slabs, in which drivers reserve addresses for allocations of this size:
/// nothing is lost between two.
const PIECE_BYTES: u64 = 2 << 20;
/// The alignment of slabs. Drivers promise 256, and give more.
const ALIGN_BYTES: u64 = 512;
/// The smallest slab is the pool's memory divided by this. With larger slabs, fewer are ever empty;
/// with smaller ones, there are more to open and to track.
const LEAST_PART: u64 = 1024;
const LARGEST_LEAST: u64 = 32 << 20;

/// The owner of a device's slabs.
#[derive(Debug, Default)]
pub(crate) struct SlabOwner {
    /// The context's number plus one, [`UNOWNED`], or [`ENDED`].
    number: AtomicU64,
    /// `None` if there is no owner, or it has ended. Locked for reading during its allocations, for
    /// writing while it may be destroyed.
    context: RwLock<Option<(CUcontext, ContextId)>>,
}

const UNOWNED: u64 = 0;
/// It has ended, and the pool's memory of it is not forgotten yet.
const ENDED: u64 = u64::MAX;

fn number(context: ContextId) -> u64 {
    u64::from(context.0) + 1
}

impl SlabOwner {
    /// Whether memory may be allocated for this context. An unowned device becomes its own; `raw`
    /// returns its handle.
    #[inline]
    pub(crate) fn is(&self, context: ContextId, raw: impl FnOnce() -> Option<CUcontext>) -> bool {
        match self.number.load(Acquire) {
            UNOWNED => self.claim(context, raw),
            known => known == number(context),
        }
    }

    #[cold]
    fn claim(&self, context: ContextId, raw: impl FnOnce() -> Option<CUcontext>) -> bool {
        let Some(raw) = raw() else { return false };
        let mut owner = write(&self.context);
        if self.number.load(Acquire) == UNOWNED {
            *owner = Some((raw, context));
            self.number.store(number(context), Release);
        }
        self.number.load(Acquire) == number(context)
    }

    /// Keeps all threads from allocating or freeing memory of the owner until the guard is dropped:
    /// for a caller that may destroy it.
    pub(crate) fn hold(&self) -> SlabHold<'_> {
        SlabHold {
            owner: self,
            context: write(&self.context),
        }
    }

    /// Whether it has ended, and the pool still has memory of it.
    pub(crate) fn has_ended(&self) -> bool {
        self.number.load(Acquire) == ENDED
    }

    /// The pool has forgotten the memory of an ended owner.
    pub(crate) fn forgotten(&self) {
        self.number.store(UNOWNED, Release);
    }
}

/// Guard of [`SlabOwner::hold`].
pub(crate) struct SlabHold<'a> {
    owner: &'a SlabOwner,
    context: RwLockWriteGuard<'a, Option<(CUcontext, ContextId)>>,
}

impl SlabHold<'_> {
    /// Reports destroyed contexts. If the owner is one of them, [`SlabOwner::forgotten`] must
    /// follow.
    pub(crate) fn ended(mut self, gone: &[ContextId]) {
        if self.context.take_if(|(_, id)| gone.contains(id)).is_some() {
            self.owner.number.store(ENDED, Release);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct OwnedSlab {
    address: u64,
    bytes: u64,
    context: ContextId,
}

/// The slab backing; see the module.
#[derive(Debug)]
pub(crate) struct Slabs {
    driver: &'static Driver,
    owner: Arc<SlabOwner>,
    /// Updated before slabs are freed.
    extent: RegionExtent,
    /// By address.
    slabs: BTreeMap<u64, OwnedSlab>,
    bytes: u64,
    /// Removed from the pool, and about to be freed.
    spare: Vec<OwnedSlab>,
    /// Slabs that the driver refused to free, as those of a faulted context.
    kept: Vec<OwnedSlab>,
}

impl Slabs {
    pub(crate) fn new(
        driver: &'static Driver,
        (owner, extent): (Arc<SlabOwner>, RegionExtent),
    ) -> Self {
        Self {
            driver,
            owner,
            extent,
            slabs: BTreeMap::new(),
            bytes: 0,
            spare: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// The addresses and sizes of all slabs, including those yet to be freed.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let left = self.spare.iter().chain(&self.kept);
        let all = self.slabs.values().chain(left);
        all.map(|slab| (slab.address, slab.bytes))
    }

    fn free(&self, address: CUdeviceptr) -> Result<(), GrowthRefused> {
        // SAFETY: from cuMemAlloc; the caller forgets it.
        done("cuMemFree", unsafe { self.driver.cuMemFree_v2(address) })
    }
}

impl MemoryBacking for Slabs {
    fn piece_bytes(&self) -> u64 {
        PIECE_BYTES
    }

    fn align_bytes(&self) -> u64 {
        ALIGN_BYTES
    }

    fn is_apart(&self) -> bool {
        true
    }

    fn rounded(&self, bytes: u64) -> u64 {
        let least = (self.bytes / LEAST_PART).min(LARGEST_LEAST);
        bytes
            .max(least)
            .checked_next_multiple_of(PIECE_BYTES)
            .unwrap_or(u64::MAX)
    }

    /// Spare slabs are freed before memory is added.
    fn new_bytes(&self, bytes: u64) -> u64 {
        let spare: u64 = self.spare.iter().map(|slab| slab.bytes).sum();
        bytes.saturating_sub(spare)
    }

    /// Known only once the driver has allocated it.
    fn site(&self, _: u64) -> Option<u64> {
        None
    }

    fn grow(&mut self, bytes: u64) -> Result<Span, GrowthRefused> {
        let owner = read(&self.owner.context);
        let (raw, context) =
            owner.ok_or_else(|| GrowthRefused("its context has ended".to_owned()))?;
        let _relaxed = RelaxedCapture::enter(self.driver);
        let mut address: CUdeviceptr = 0;
        let current = CurrentContext::push(self.driver, raw);
        let _current = current.ok_or_else(|| GrowthRefused("its context has failed".to_owned()))?;
        // SAFETY: `address` outlives the call.
        let answer = unsafe { self.driver.cuMemAlloc_v2(&mut address, bytes as usize) };
        done("cuMemAlloc", answer)?;
        if !address.is_multiple_of(ALIGN_BYTES) {
            self.free(address)?;
            return Err(GrowthRefused(format!(
                "memory at {address:#x} is not aligned"
            )));
        }
        let slab = OwnedSlab {
            address,
            bytes,
            context,
        };
        self.slabs.insert(address, slab);
        self.bytes += bytes;
        Ok(Span { address, bytes })
    }

    fn separable(&self, span: Span) -> Option<Span> {
        let mut inside = self.slabs.range(span.address..span.end());
        let (address, slab) = inside.find(|(at, slab)| **at + slab.bytes <= span.end())?;
        Some(Span {
            address: *address,
            bytes: slab.bytes,
        })
    }

    fn shrink(&mut self, span: Span) {
        if let Some(slab) = self.slabs.remove(&span.address) {
            self.bytes -= slab.bytes;
            self.spare.push(slab);
        }
    }

    /// No part of the spare memory could be part of a growth.
    fn release(&mut self, _: u64) -> u64 {
        let mut spare = std::mem::take(&mut self.spare);
        spare.append(&mut self.kept);
        if spare.is_empty() {
            return 0;
        }
        let all: u64 = spare.iter().map(|slab| slab.bytes).sum();
        let owner = read(&self.owner.context);
        // Slabs of an ended context are the driver's already.
        spare.retain(|slab| {
            let is_ours = owner.is_some_and(|(_, id)| id == slab.context);
            if !is_ours {
                self.extent.leave(slab.address);
            }
            is_ours
        });
        if let Some((raw, _)) = *owner
            && let Some(_current) = CurrentContext::push(self.driver, raw)
        {
            let _relaxed = RelaxedCapture::enter(self.driver);
            spare.retain(|slab| {
                self.extent.leave(slab.address);
                let is_kept = self.free(slab.address).is_err();
                if is_kept {
                    self.extent.stay((slab.address, slab.bytes));
                }
                is_kept
            });
        }
        drop(owner);
        self.kept = spare;
        all - self.kept.iter().map(|slab| slab.bytes).sum::<u64>()
    }
}

/// The dropping code has ensured that nothing uses the memory any more.
impl Drop for Slabs {
    fn drop(&mut self) {
        let slabs = std::mem::take(&mut self.slabs);
        self.spare.extend(slabs.into_values());
        let _those_it_keeps_end_with_their_context = self.release(0);
    }
}
