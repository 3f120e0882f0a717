//! Stream-ordered memory pools.
//!
//! A block freed on a stream is reusable by all once the stream reaches the free. Before that, only
//! allocations on the same stream may reuse it, since they are ordered behind the free; or, where
//! there is no other memory, one on another stream, which then waits for the free. With checks on
//! neither happens, since a block's accesses are judged by its owner as the work runs.
//!
//! If none of that gives a block, the calling thread waits for queued frees to run (`frees`).
//!
//! Invariant: a block belongs to its pool and to no context. It outlives the context in the stream
//! of which it was allocated.

use std::ffi::CStr;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use fercuda_cuda_sys::types::{CUmemPool_attribute as A, CUmemPoolProps};

use super::allocation::{Allocation, AllocationSource};
use super::frees::PATIENCE;
use super::heap::BlockHeap;
use super::memory::retire;
use super::objects::{MemPool, PendingFree, PendingState, SoftContext, SoftStream};
use super::range::refuse_free;
use super::site::site;
use super::stream::Submission;
use super::{CuResult, Machine, SoftDevice, err, lock};
use crate::mem::{AllocKind, shared_file};
use crate::order::{OpId, OpKind};

/// The file that stands for a pool in another process.
const POOL_NAME: &CStr = c"fercuda-device-pool";

impl MemPool {
    pub(crate) fn new(
        m: &Machine,
        handle: usize,
        device: &SoftDevice,
        props: CUmemPoolProps,
        is_default: bool,
    ) -> Self {
        MemPool {
            handle,
            device: device.ordinal,
            heap: BlockHeap::new(
                1 << device.ordinal,
                Some(device.phys.clone()),
                m.config.checks,
            )
            .in_strides(),
            props,
            is_default,
            imported: false,
            pending: Mutex::default(),
            threshold: AtomicU64::new(0),
            used: AtomicU64::new(0),
            used_high: AtomicU64::new(0),
            reserved_high: AtomicU64::new(0),
            reuse: [const { AtomicBool::new(true) }; 3],
        }
    }

    pub(crate) fn trim(&self, m: &Machine, keep: u64) {
        self.heap.trim(&m.space, keep);
    }

    /// Accounts for a block that was freed by call rather than on a stream.
    pub(crate) fn note_freed(&self, len: u64) {
        self.used.fetch_sub(len, Ordering::AcqRel);
    }

    /// Puts a block back into the heap; the work on it is over.
    pub(crate) fn free_now(&self, m: &Machine, start: u64, _len: u64) {
        self.heap
            .free(&m.space, start, self.threshold.load(Ordering::Acquire));
    }

    /// A block for an allocation in `stream`: one of the same length that the stream frees, or one
    /// of the heap, or else a larger one whose free is pending.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`: no queued free can help, or none did within [`PATIENCE`].
    fn take(
        &self,
        m: &'static Machine,
        ctx: &SoftContext,
        stream: &Arc<SoftStream>,
        len: u64,
    ) -> CuResult<u64> {
        let exact = |p: &PendingFree| p.stream == stream.id && p.room == round(len);
        if let Some(block) = self.take_pending(exact) {
            return Ok(block.start);
        }
        let device = &m.devices[self.device as usize];
        let mut deadline = None;
        loop {
            let seen = device.frees.count();
            let placed = self.heap.alloc(&m.space, len).or_else(|_| {
                device.reclaim(m);
                self.heap.alloc(&m.space, len)
            });
            if let Ok(start) = placed {
                self.reserved_high
                    .fetch_max(self.heap.reserved(), Ordering::AcqRel);
                return Ok(start);
            }
            if let Some(start) = self.take_larger(m, ctx, stream, len) {
                return Ok(start);
            }
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + PATIENCE);
            let patient = Instant::now() < deadline && self.may_hold(device, len);
            if !patient || !device.frees.wait(seen, deadline) {
                return Err(err::OUT_OF_MEMORY);
            }
        }
    }

    /// Takes the smallest block for which `fits` out of those whose free is pending.
    fn take_pending(&self, fits: impl Fn(&PendingFree) -> bool) -> Option<PendingFree> {
        let mut pending = lock(&self.pending);
        loop {
            let fitting = pending.iter().enumerate().filter(|(_, p)| fits(p));
            let (at, _) = fitting.min_by_key(|(_, p)| p.room)?;
            let block = pending.swap_remove(at);
            // Otherwise its stream has got there, and puts it into the heap.
            if !block.state.taken.swap(true, Ordering::AcqRel) {
                return Some(block);
            }
        }
    }

    /// A block that is large enough and whose free is pending: in this stream, or in another one,
    /// whose free this stream then waits for.
    fn take_larger(
        &self,
        m: &'static Machine,
        ctx: &SoftContext,
        stream: &Arc<SoftStream>,
        len: u64,
    ) -> Option<u64> {
        let own = |p: &PendingFree| p.stream == stream.id && p.room >= len;
        if let Some(block) = self.take_pending(own) {
            return Some(block.start);
        }
        let may_depend = self.reuse[2].load(Ordering::Acquire);
        let queued = |p: &PendingFree| p.room >= len && p.state.ticket.get().is_some();
        let block = may_depend.then(|| self.take_pending(queued)).flatten()?;
        let ticket = block.state.ticket.get().cloned();
        let behind = Submission::call("cuMemAllocAsync")
            .always()
            .after(ticket.into_iter().collect());
        stream.submit(m, ctx, behind, |_| {});
        Some(block.start)
    }

    /// Whether there might be `len` bytes if all queued frees had run: never no if there would.
    fn may_hold(&self, device: &SoftDevice, len: u64) -> bool {
        let used = self.used.load(Ordering::Acquire);
        let own = self.heap.reserved().saturating_sub(used);
        let bytes = own + device.phys.free() + device.frees.bytes();
        bytes >= len
    }

    /// `cuMemAllocFromPoolAsync` outside a capture.
    pub(crate) fn alloc(
        self: &Arc<Self>,
        m: &'static Machine,
        ctx: &SoftContext,
        stream: &Arc<SoftStream>,
        len: u64,
        call: &'static str,
    ) -> CuResult<u64> {
        if len == 0 {
            return Err(err::INVALID_VALUE);
        }
        if self.imported {
            return Err(err::INVALID_VALUE);
        }
        let limit = self.props.maxSize as u64;
        if limit != 0 && self.used.load(Ordering::Acquire).saturating_add(len) > limit {
            return Err(err::OUT_OF_MEMORY);
        }
        let start = self.take(m, ctx, stream, len)?;
        let used = self.used.fetch_add(len, Ordering::AcqRel) + len;
        self.used_high.fetch_max(used, Ordering::AcqRel);
        m.memory.insert_unowned(
            m,
            start,
            len,
            AllocationSource::Pool(self.clone()),
            self.device,
        );
        let op = if m.config.checks {
            m.order.begin(stream.actor, OpKind::Call(call))
        } else {
            OpId::NONE
        };
        m.space.add(
            start,
            len,
            AllocKind::Pool,
            self.device,
            None,
            site(call),
            false,
            m.check(op).as_ref(),
        );
        Ok(start)
    }

    /// A descriptor that stands for the pool in another process.
    pub(crate) fn export(&self) -> CuResult<i32> {
        let file = shared_file::create(POOL_NAME, 0).map_err(|_| err::OPERATING_SYSTEM)?;
        Ok(file.into_raw_fd())
    }

    pub(crate) fn attribute(&self, attribute: A) -> CuResult<u64> {
        Ok(match attribute {
            A::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => {
                u64::from(self.reuse[0].load(Ordering::Acquire))
            }
            A::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => {
                u64::from(self.reuse[1].load(Ordering::Acquire))
            }
            A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                u64::from(self.reuse[2].load(Ordering::Acquire))
            }
            A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => self.threshold.load(Ordering::Acquire),
            A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => self.heap.reserved(),
            A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => self.reserved_high.load(Ordering::Acquire),
            A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => self.used.load(Ordering::Acquire),
            A::CU_MEMPOOL_ATTR_USED_MEM_HIGH => self.used_high.load(Ordering::Acquire),
            _ => return Err(err::INVALID_VALUE),
        })
    }

    pub(crate) fn set_attribute(&self, attribute: A, value: u64) -> CuResult {
        match attribute {
            A::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => {
                self.reuse[0].store(value != 0, Ordering::Release)
            }
            A::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => {
                self.reuse[1].store(value != 0, Ordering::Release)
            }
            A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                self.reuse[2].store(value != 0, Ordering::Release);
            }
            A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => self.threshold.store(value, Ordering::Release),
            // High-water marks can only be reset to the current value.
            A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH if value == 0 => {
                self.reserved_high
                    .store(self.heap.reserved(), Ordering::Release);
            }
            A::CU_MEMPOOL_ATTR_USED_MEM_HIGH if value == 0 => {
                self.used_high
                    .store(self.used.load(Ordering::Acquire), Ordering::Release);
            }
            _ => return Err(err::INVALID_VALUE),
        }
        Ok(())
    }
}

/// `len` rounded up to a block's alignment, at most the largest multiple of it.
fn round(len: u64) -> u64 {
    let most = u64::MAX / super::heap::ALIGN * super::heap::ALIGN;
    len.min(most).next_multiple_of(super::heap::ALIGN)
}

/// `cuMemFreeAsync` outside a capture.
pub(crate) fn free_async(
    m: &'static Machine,
    ctx: &SoftContext,
    stream: &Arc<SoftStream>,
    start: u64,
) -> CuResult {
    if start == 0 {
        return Ok(());
    }
    let wanted = |a: &Allocation| {
        matches!(
            a.source,
            AllocationSource::Pool(_) | AllocationSource::Device | AllocationSource::Ipc(..)
        )
    };
    let Some(allocation) = m.memory.take(start, wanted) else {
        let refuse = |error| refuse_free(m, start, "cuMemFreeAsync", error);
        let memory = super::graph_memory::take_graph_memory(start).map_err(refuse)?;
        stream.submit(
            m,
            ctx,
            Submission::call("cuMemFreeAsync").always(),
            move |running| memory.end(m, "cuMemFreeAsync", running.op),
        );
        return Ok(());
    };
    let frees = &m.devices[allocation.device as usize].frees;
    let AllocationSource::Pool(pool) = &allocation.source else {
        // Memory of `cuMemAlloc` may be freed in stream order too; it goes back when the stream
        // gets there.
        let made = site("cuMemFreeAsync");
        frees.queue(allocation.len);
        stream.submit(
            m,
            ctx,
            Submission::call("cuMemFreeAsync").always(),
            move |running| {
                m.space
                    .retire(allocation.start, made, m.check(running.op).as_ref());
                super::memory::give_back(m, &allocation);
                frees.ran(allocation.len);
            },
        );
        return Ok(());
    };
    let pool = pool.clone();
    pool.note_freed(allocation.len);
    let made = site("cuMemFreeAsync");
    frees.queue(allocation.len);
    if m.config.checks {
        stream.submit(
            m,
            ctx,
            Submission::call("cuMemFreeAsync").always(),
            move |running| {
                m.space.retire(start, made, m.check(running.op).as_ref());
                pool.free_now(m, start, allocation.len);
                frees.ran(allocation.len);
            },
        );
        return Ok(());
    }
    // Without checks the record goes now, since the block may have a new owner before the stream
    // gets here.
    retire(m, &allocation, "cuMemFreeAsync", OpId::NONE);
    let state = Arc::new(PendingState::default());
    lock(&pool.pending).push(PendingFree {
        stream: stream.id,
        start,
        room: pool.heap.room(start),
        state: state.clone(),
    });
    let shared = state.clone();
    let ticket = stream.submit(
        m,
        ctx,
        Submission::call("cuMemFreeAsync").always(),
        move |_| {
            if !shared.taken.swap(true, Ordering::AcqRel) {
                lock(&pool.pending).retain(|p| !Arc::ptr_eq(&p.state, &shared));
                pool.free_now(m, start, allocation.len);
            }
            frees.ran(allocation.len);
        },
    );
    // Until here no other stream could be made to wait for it, and so takes it.
    state.ticket.set(ticket).ok();
    Ok(())
}

/// A device's default pool, made on first use.
pub(crate) fn default_pool(m: &Machine, device: &SoftDevice) -> Arc<MemPool> {
    device
        .default_pool
        .get_or_init(|| {
            let mut props = CUmemPoolProps::default();
            props.allocType.0 = 1;
            props.location.r#type.0 = 1;
            props.location.id = device.ordinal as i32;
            m.pools
                .insert_with(|handle| Arc::new(MemPool::new(m, handle, device, props, true)))
                .1
        })
        .clone()
}

/// The pool that `cuMemAllocAsync` uses on a device.
pub(crate) fn current_pool(m: &Machine, device: &SoftDevice) -> Arc<MemPool> {
    lock(&device.current_pool)
        .clone()
        .unwrap_or_else(|| default_pool(m, device))
}

pub(crate) fn create(m: &Machine, props: &CUmemPoolProps) -> CuResult<Arc<MemPool>> {
    let device = match props.location.r#type.0 {
        1 => m.device(props.location.id)?,
        2..=4 => m.device(0)?,
        _ => return Err(err::INVALID_VALUE),
    };
    if props.allocType.0 != 1 || props.handleTypes.0 & !9 != 0 {
        return Err(err::INVALID_VALUE);
    }
    Ok(m.pools
        .insert_with(|handle| Arc::new(MemPool::new(m, handle, device, *props, false)))
        .1)
}

pub(crate) fn destroy(m: &Machine, handle: usize) -> CuResult {
    let pool = m.pools.get(handle).ok_or(err::INVALID_VALUE)?;
    if pool.is_default {
        return Err(err::INVALID_VALUE);
    }
    m.pools.remove(handle);
    let device = &m.devices[pool.device as usize];
    let mut current = lock(&device.current_pool);
    if current.as_ref().is_some_and(|p| Arc::ptr_eq(p, &pool)) {
        *current = None;
    }
    drop(current);
    // Live blocks keep the pool; free memory is released now.
    pool.trim(m, 0);
    Ok(())
}

/// A pool that another process exported.
pub(crate) fn import(m: &Machine, ctx: &SoftContext, fd: i32) -> CuResult<Arc<MemPool>> {
    // SAFETY: `fcntl` on a number that is no descriptor fails and does nothing else.
    let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if own < 0 {
        return Err(err::INVALID_VALUE);
    }
    // SAFETY: `own` was just created and is not shared.
    let own = unsafe { OwnedFd::from_raw_fd(own) };
    if !shared_file::is_ours(&own, POOL_NAME) {
        return Err(err::INVALID_VALUE);
    }
    let device = &m.devices[ctx.device as usize];
    let mut props = CUmemPoolProps::default();
    props.allocType.0 = 1;
    props.handleTypes.0 = 1;
    props.location.r#type.0 = 1;
    props.location.id = device.ordinal as i32;
    let make = |handle| {
        Arc::new(MemPool {
            imported: true,
            ..MemPool::new(m, handle, device, props, false)
        })
    };
    Ok(m.pools.insert_with(make).1)
}

#[cfg(test)]
mod tests {
    use super::super::heap::ALIGN;
    use super::round;

    #[test]
    fn a_length_is_rounded_up_without_overflow() {
        let most = u64::MAX / ALIGN * ALIGN;
        for (len, rounded) in [(1, ALIGN), (ALIGN, ALIGN), (most, most), (u64::MAX, most)] {
            assert_eq!(round(len), rounded, "{len}");
        }
    }
}
