//! Memory by allocation: slabs that the driver's `cuMemAlloc` gives, cut into
//! blocks by the pool. They have what mapped memory has not, a handle that
//! another process can open; and what it has, they have not: a slab goes back
//! whole or not at all, and cannot be moved.
//!
//! A slab belongs to the context in which it was allocated and ends with it.
//! So all slabs of a device belong to one context, its owner: the first that
//! asked for memory there. Memory of other contexts is not pooled, since their
//! blocks would end with a context that is not theirs. What the owner allocates
//! in streams' order ends with it too, though a driver's would not.
//!
//! Invariants: no slab is asked of a context, or given back to it, while it is
//! destroyed or after that; then the driver may have given its addresses to
//! somebody else. The next context owns the device's memory only when nothing
//! of the one before is left.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, RwLock, RwLockWriteGuard};

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{CUcontext, CUdeviceptr};
use fercuda_pool::{Backing, Refused, Span};

use crate::clock::{ContextId, Current, read, write};
use crate::source::Extent;
use crate::vmm::{Relaxed, done};

/// Slabs are multiples of so much, which is what drivers reserve at a time for
/// allocations of this size: nothing is lost between two.
const PIECE_BYTES: u64 = 2 << 20;
/// What slabs begin at multiples of. Drivers promise 256, and give more.
const ALIGN_BYTES: u64 = 512;
/// The least slab is this part of what there is. The larger slabs are, the
/// fewer are ever empty; the smaller, the more there are to open and to keep
/// apart.
const LEAST_PART: u64 = 1024;
const LARGEST_LEAST: u64 = 32 << 20;

/// Who owns a device's slabs.
#[derive(Debug, Default)]
pub(crate) struct Owner {
    /// The context's number and one, [`NOBODY`], or [`ENDED`].
    number: AtomicU64,
    /// None where there is none, or if it has ended. Read while it is asked
    /// for memory, written while it may be destroyed.
    context: RwLock<Option<(CUcontext, ContextId)>>,
}

const NOBODY: u64 = 0;
/// It is gone, and what the pool had of it is not forgotten yet.
const ENDED: u64 = u64::MAX;

fn number(context: ContextId) -> u64 {
    u64::from(context.0) + 1
}

impl Owner {
    /// Whether memory is for this context. Where nobody owns any, it owns it
    /// from now on; `raw` says its handle.
    #[inline]
    pub(crate) fn is(&self, context: ContextId, raw: impl FnOnce() -> Option<CUcontext>) -> bool {
        match self.number.load(Acquire) {
            NOBODY => self.claim(context, raw),
            known => known == number(context),
        }
    }

    #[cold]
    fn claim(&self, context: ContextId, raw: impl FnOnce() -> Option<CUcontext>) -> bool {
        let Some(raw) = raw() else { return false };
        let mut owner = write(&self.context);
        if self.number.load(Acquire) == NOBODY {
            *owner = Some((raw, context));
            self.number.store(number(context), Release);
        }
        self.number.load(Acquire) == number(context)
    }

    /// Keeps everybody from asking the owner for memory, or giving it back,
    /// until this is dropped: for who may destroy it.
    pub(crate) fn hold(&self) -> Held<'_> {
        Held {
            owner: self,
            context: write(&self.context),
        }
    }

    /// Whether it has, and the pool still has memory of it.
    pub(crate) fn has_ended(&self) -> bool {
        self.number.load(Acquire) == ENDED
    }

    /// What the pool had of an owner that has ended is forgotten.
    pub(crate) fn forgotten(&self) {
        self.number.store(NOBODY, Release);
    }
}

/// See [`Owner::hold`].
pub(crate) struct Held<'a> {
    owner: &'a Owner,
    context: RwLockWriteGuard<'a, Option<(CUcontext, ContextId)>>,
}

impl Held<'_> {
    /// These contexts are gone. If the owner was one of them,
    /// [`Owner::forgotten`] is to follow.
    pub(crate) fn ended(mut self, gone: &[ContextId]) {
        if self.context.take_if(|(_, id)| gone.contains(id)).is_some() {
            self.owner.number.store(ENDED, Release);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Slab {
    address: u64,
    bytes: u64,
    context: ContextId,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Slabs {
    driver: &'static Driver,
    owner: Arc<Owner>,
    /// Told what is given back.
    extent: Extent,
    /// By address.
    slabs: BTreeMap<u64, Slab>,
    bytes: u64,
    /// Taken from the pool, and about to be given back.
    spare: Vec<Slab>,
    /// The driver did not take them back, as of a context that has failed.
    kept: Vec<Slab>,
}

impl Slabs {
    pub(crate) fn new(driver: &'static Driver, (owner, extent): (Arc<Owner>, Extent)) -> Self {
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

    /// Where slabs are, and how large: also those that the driver has not yet.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        let left = self.spare.iter().chain(&self.kept);
        let all = self.slabs.values().chain(left);
        all.map(|slab| (slab.address, slab.bytes))
    }

    fn free(&self, address: CUdeviceptr) -> Result<(), Refused> {
        // SAFETY: from cuMemAlloc; the caller forgets it.
        done("cuMemFree", unsafe { self.driver.cuMemFree_v2(address) })
    }
}

impl Backing for Slabs {
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

    /// What is spare is given back before there is more.
    fn new_bytes(&self, bytes: u64) -> u64 {
        let spare: u64 = self.spare.iter().map(|slab| slab.bytes).sum();
        bytes.saturating_sub(spare)
    }

    /// The driver says when it has it.
    fn site(&self, _: u64) -> Option<u64> {
        None
    }

    fn grow(&mut self, bytes: u64) -> Result<Span, Refused> {
        let owner = read(&self.owner.context);
        let (raw, context) = owner.ok_or_else(|| Refused("its context has ended".to_owned()))?;
        let _relaxed = Relaxed::enter(self.driver);
        let mut address: CUdeviceptr = 0;
        let current = Current::push(self.driver, raw);
        let _current = current.ok_or_else(|| Refused("its context has failed".to_owned()))?;
        // SAFETY: `address` outlives the call.
        let answer = unsafe { self.driver.cuMemAlloc_v2(&mut address, bytes as usize) };
        done("cuMemAlloc", answer)?;
        if !address.is_multiple_of(ALIGN_BYTES) {
            self.free(address)?;
            return Err(Refused(format!("memory at {address:#x} is not aligned")));
        }
        let slab = Slab {
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

    /// Nothing of it could be part of a growth.
    fn release(&mut self, _: u64) -> u64 {
        let mut spare = std::mem::take(&mut self.spare);
        spare.append(&mut self.kept);
        if spare.is_empty() {
            return 0;
        }
        let all: u64 = spare.iter().map(|slab| slab.bytes).sum();
        let owner = read(&self.owner.context);
        // Those of a context that has ended are the driver's already.
        spare.retain(|slab| {
            let is_ours = owner.is_some_and(|(_, id)| id == slab.context);
            if !is_ours {
                self.extent.leave(slab.address);
            }
            is_ours
        });
        if let Some((raw, _)) = *owner
            && let Some(_current) = Current::push(self.driver, raw)
        {
            let _relaxed = Relaxed::enter(self.driver);
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

/// Whoever drops it has seen to it that nothing uses the memory any more.
impl Drop for Slabs {
    fn drop(&mut self) {
        let slabs = std::mem::take(&mut self.slabs);
        self.spare.extend(slabs.into_values());
        let _those_it_keeps_end_with_their_context = self.release(0);
    }
}
