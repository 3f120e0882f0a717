//! Contexts, which one is current on which thread, and what a fault does to them.
//!
//! A primary context keeps its handle for the life of the process: after a release or reset, its
//! calls return "destroyed" until it is retained again.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;

use fercuda_cuda_sys::types::CUlimit;

use super::objects::{SoftContext, SoftStream, StreamKind};
use super::{CuResult, Machine, err, lock, machine};
use crate::exec::KernelHeap;

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Context stacks of threads with a destroyed thread-local one, as the main thread's is
/// during process exit. An empty one counts as absent.
static LATE: Mutex<Vec<(ThreadId, Vec<usize>)>> = Mutex::new(Vec::new());

impl SoftContext {
    fn new(m: &Machine, handle: usize, device: u32, primary: bool, flags: u32) -> Arc<Self> {
        Arc::new(SoftContext {
            handle,
            id: m.fresh_id(),
            device,
            primary,
            attached: AtomicU32::new(1),
            flags: AtomicU32::new(flags),
            health: Arc::default(),
            streams: Mutex::default(),
            legacy: OnceLock::new(),
            per_thread: Mutex::default(),
            peers: Mutex::default(),
            limits: Mutex::default(),
            cache_config: AtomicU32::new(0),
            shared_config: AtomicU32::new(1),
            modules: Mutex::default(),
            events: Mutex::default(),
            heap: Mutex::default(),
        })
    }

    /// The stream behind the null handle.
    pub(crate) fn legacy(self: &Arc<Self>, m: &Machine) -> Arc<SoftStream> {
        self.legacy
            .get_or_init(|| {
                let stream = SoftStream::new(
                    m,
                    self,
                    1,
                    StreamKind::Legacy,
                    0,
                    "the default stream".to_owned(),
                );
                lock(&self.streams).push(stream.clone());
                stream
            })
            .clone()
    }

    /// The calling thread's default stream.
    pub(crate) fn per_thread(self: &Arc<Self>, m: &Machine) -> Arc<SoftStream> {
        let mut map = lock(&self.per_thread);
        let made = map.len();
        map.entry(std::thread::current().id())
            .or_insert_with(|| {
                let name = format!("per-thread default stream {}", made + 1);
                let stream = SoftStream::new(m, self, 2, StreamKind::PerThread, 0, name);
                lock(&self.streams).push(stream.clone());
                stream
            })
            .clone()
    }

    /// The stream a handle names for this thread.
    pub(crate) fn stream(
        self: &Arc<Self>,
        m: &Machine,
        handle: usize,
        per_thread: bool,
    ) -> CuResult<Arc<SoftStream>> {
        match handle {
            0 if per_thread => Ok(self.per_thread(m)),
            0 | 1 => Ok(self.legacy(m)),
            2 => Ok(self.per_thread(m)),
            _ => m.streams.get(handle).ok_or(err::INVALID_HANDLE),
        }
    }

    /// Waits for everything enqueued so far. Reports the context's error, if it has one.
    pub(crate) fn synchronize(&self, m: &Machine) -> CuResult {
        let tickets: Vec<_> = lock(&self.streams).iter().map(SoftStream::ticket).collect();
        let snapshots: Vec<_> = if m.config.checks {
            tickets
                .iter()
                .map(|t| m.order.snapshot(t.stream.actor))
                .collect()
        } else {
            Vec::new()
        };
        for ticket in &tickets {
            ticket.wait();
        }
        for snapshot in &snapshots {
            m.order.wait(crate::order::ActorId::HOST, snapshot);
        }
        self.health.check()
    }

    /// Waits for the same, of which the host then knows nothing.
    pub(crate) fn drain(&self) {
        let tickets: Vec<_> = lock(&self.streams).iter().map(SoftStream::ticket).collect();
        tickets.iter().for_each(|ticket| ticket.wait());
    }

    pub(crate) fn limit(&self, limit: CUlimit) -> CuResult<usize> {
        let default = limit_default(limit)?;
        Ok(lock(&self.limits).get(&limit.0).copied().unwrap_or(default))
    }

    pub(crate) fn set_limit(&self, limit: CUlimit, value: usize) -> CuResult {
        let value = match limit {
            CUlimit::CU_LIMIT_STACK_SIZE if value > 512 << 10 => return Err(err::INVALID_VALUE),
            CUlimit::CU_LIMIT_STACK_SIZE => value.max(1024).next_multiple_of(16),
            CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE => value.max(64 << 10),
            CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE => value.max(4 << 20),
            CUlimit::CU_LIMIT_MAX_L2_FETCH_GRANULARITY if value > 128 => {
                return Err(err::INVALID_VALUE);
            }
            _ => value,
        };
        limit_default(limit)?;
        if limit == CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE && lock(&self.heap).is_some() {
            return Err(err::INVALID_VALUE);
        }
        lock(&self.limits).insert(limit.0, value);
        Ok(())
    }

    /// What its kernels allocate from; the first call takes it from the device's memory.
    pub(crate) fn heap(&self, m: &Machine) -> CuResult<Arc<KernelHeap>> {
        let mut heap = lock(&self.heap);
        if let Some(heap) = &*heap {
            return Ok(heap.clone());
        }
        let len = self.limit(CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE)? as u64;
        let start = m.devices[self.device as usize].alloc_block(m, len)?;
        Ok(heap
            .insert(KernelHeap::new(m.space.clone(), self.device, start, len))
            .clone())
    }

    /// Ends the context: waits for its work, then frees all that belongs to it.
    fn tear_down(&self, m: &Machine) {
        // Errors of the work itself have been reported, or no caller is left to return them to.
        self.synchronize(m).ok();
        self.health.dead.store(true, Ordering::Release);
        m.captures.forget_context(self.id);
        for stream in lock(&self.streams).drain(..) {
            stream.close(m);
            m.streams.remove(stream.handle);
        }
        for handle in std::mem::take(&mut *lock(&self.events)) {
            if let Some(event) = m.events.remove(handle) {
                event.withdraw(m);
            }
        }
        for handle in std::mem::take(&mut *lock(&self.modules)) {
            if let Some(module) = m.modules.remove(handle) {
                module.unload(m);
            }
        }
        let heap = lock(&self.heap).as_ref().map_or((0, 0), |it| it.range());
        m.report_context_leaks(self.id, heap.0..heap.0 + heap.1);
        m.memory.free_context(m, self.id);
        super::texture::forget_context(m, self.id);
        super::array::forget_context(m, self.id);
        if let Some(heap) = lock(&self.heap).take() {
            heap.close();
            let blocks = &m.devices[self.device as usize].blocks;
            blocks.free(&m.space, heap.range().0, 0);
        }
        // Removed first: the lock would be held until the loop ends.
        let peers = std::mem::take(&mut *lock(&self.peers));
        for peer in peers {
            self.shut_peer(m, peer);
        }
    }

    /// Revokes this device's access to `peer`'s memory, unless another context of this device has
    /// enabled it too.
    pub(crate) fn shut_peer(&self, m: &Machine, peer: u32) {
        let wanted = m
            .contexts
            .all()
            .iter()
            .any(|c| c.device == self.device && lock(&c.peers).contains(&peer));
        if !wanted {
            super::memory::set_peer_access(m, peer, self.device, false);
        }
    }
}

fn limit_default(limit: CUlimit) -> CuResult<usize> {
    Ok(match limit {
        CUlimit::CU_LIMIT_STACK_SIZE => 1024,
        CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE => 1 << 20,
        CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE => 8 << 20,
        CUlimit::CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH => 2,
        CUlimit::CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT => 2048,
        CUlimit::CU_LIMIT_MAX_L2_FETCH_GRANULARITY => 64,
        CUlimit::CU_LIMIT_PERSISTING_L2_CACHE_SIZE => 0,
        CUlimit::CU_LIMIT_SHMEM_SIZE
        | CUlimit::CU_LIMIT_CIG_ENABLED
        | CUlimit::CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED => return Err(err::NOT_SUPPORTED),
        _ => return Err(err::INVALID_VALUE),
    })
}

/// Works on the calling thread's stack of contexts.
fn with_stack<R>(work: impl Fn(&mut Vec<usize>) -> R) -> R {
    let done = STACK.try_with(|stack| work(&mut stack.borrow_mut()));
    done.unwrap_or_else(|_| {
        let own = std::thread::current().id();
        let mut late = lock(&LATE);
        let at = late.iter().position(|(thread, _)| *thread == own);
        let (_, mut stack) = at.map_or((own, Vec::new()), |at| late.swap_remove(at));
        let result = work(&mut stack);
        if !stack.is_empty() {
            late.push((own, stack));
        }
        result
    })
}

/// Registers the destructors of the calling thread's state, so that no later call does (see
/// `site`). For calls that callers make before they take locks of their own.
pub(crate) fn prepare_thread() {
    with_stack(|_| ());
    super::site::prepare_thread();
}

/// The handle current on this thread, 0 if none.
pub(crate) fn current_handle() -> usize {
    with_stack(|stack| stack.last().copied().unwrap_or(0))
}

/// The current context, whatever its health but not destroyed.
pub(crate) fn current_any(m: &Machine) -> CuResult<Arc<SoftContext>> {
    match current_handle() {
        0 => Err(err::INVALID_CONTEXT),
        handle => {
            let ctx = m.contexts.get(handle).ok_or(err::CONTEXT_IS_DESTROYED)?;
            if ctx.health.is_dead() {
                Err(err::CONTEXT_IS_DESTROYED)
            } else {
                Ok(ctx)
            }
        }
    }
}

/// The machine and the current context, in order; a fault of earlier work is reported here.
pub(crate) fn current() -> CuResult<(&'static Machine, Arc<SoftContext>)> {
    let m = machine()?;
    let ctx = current_any(m)?;
    ctx.health.check()?;
    Ok((m, ctx))
}

/// The context a handle names; the current one for 0.
pub(crate) fn named(m: &Machine, handle: usize) -> CuResult<Arc<SoftContext>> {
    if handle == 0 {
        return current_any(m);
    }
    let ctx = m.contexts.get(handle).ok_or(err::INVALID_CONTEXT)?;
    if ctx.health.is_dead() {
        Err(err::CONTEXT_IS_DESTROYED)
    } else {
        Ok(ctx)
    }
}

pub(crate) fn push(handle: usize) {
    with_stack(|stack| stack.push(handle));
}

pub(crate) fn pop() -> CuResult<usize> {
    with_stack(Vec::pop).ok_or(err::INVALID_CONTEXT)
}

/// Replaces the top of the stack; 0 pops it.
pub(crate) fn set_current(handle: usize) {
    with_stack(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
}

pub(crate) fn create(m: &Machine, device: i32, flags: u32) -> CuResult<Arc<SoftContext>> {
    let device = m.device(device)?.ordinal;
    if flags & !0xff != 0 || !matches!(flags & 7, 0 | 1 | 2 | 4) {
        return Err(err::INVALID_VALUE);
    }
    Ok(m.contexts
        .insert_with(|handle| SoftContext::new(m, handle, device, false, flags))
        .1)
}

pub(crate) fn destroy(m: &Machine, handle: usize) -> CuResult {
    let ctx = m.contexts.get(handle).ok_or(err::INVALID_CONTEXT)?;
    if ctx.primary {
        return Err(err::INVALID_CONTEXT);
    }
    ctx.tear_down(m);
    m.contexts.remove(handle);
    if current_handle() == handle {
        pop().ok();
    }
    Ok(())
}

/// Counts one more use of the current context.
pub(crate) fn attach(ctx: &SoftContext) {
    ctx.attached.fetch_add(1, Ordering::AcqRel);
}

/// Counts one use less of a context that is current on this thread; the last one destroys it.
pub(crate) fn detach(m: &Machine, handle: usize) -> CuResult {
    let ctx = m.contexts.get(handle).ok_or(err::INVALID_CONTEXT)?;
    if current_handle() != handle {
        return Err(err::INVALID_CONTEXT);
    }
    let left = ctx
        .attached
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
            (n > 1).then(|| n - 1)
        });
    match left {
        Ok(_) => Ok(()),
        Err(_) => destroy(m, handle),
    }
}

pub(crate) fn primary_retain(m: &Machine, device: i32) -> CuResult<Arc<SoftContext>> {
    let device = m.device(device)?;
    let mut primary = lock(&device.primary);
    let ctx = match (&primary.active, primary.handle) {
        (Some(ctx), _) => ctx.clone(),
        (None, Some(handle)) => {
            let ctx = SoftContext::new(m, handle, device.ordinal, true, primary.flags);
            m.contexts.replace(handle, ctx.clone());
            ctx
        }
        (None, None) => {
            m.contexts
                .insert_with(|handle| {
                    SoftContext::new(m, handle, device.ordinal, true, primary.flags)
                })
                .1
        }
    };
    primary.handle = Some(ctx.handle);
    primary.active = Some(ctx.clone());
    primary.retained += 1;
    Ok(ctx)
}

pub(crate) fn primary_release(m: &Machine, device: i32) -> CuResult {
    let device = m.device(device)?;
    let mut primary = lock(&device.primary);
    if primary.retained == 0 {
        return Err(err::INVALID_CONTEXT);
    }
    primary.retained -= 1;
    let last = if primary.retained == 0 {
        primary.active.take()
    } else {
        None
    };
    drop(primary);
    if let Some(ctx) = last {
        ctx.tear_down(m);
    }
    Ok(())
}

/// Ends the context; each retain still has to be released.
pub(crate) fn primary_reset(m: &Machine, device: i32) -> CuResult {
    let old = lock(&m.device(device)?.primary).active.take();
    if let Some(ctx) = old {
        ctx.tear_down(m);
    }
    Ok(())
}
