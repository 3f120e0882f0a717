//! Table of allocations, and the calls that allocate and free.
//!
//! Invariant: an address belongs to at most one live entry. An entry is removed in the call that
//! frees it; its bytes are reused only when the work that may still access them is complete.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};

use super::allocation::{Allocation, AllocationSource, AllocationTable};
use super::objects::SoftContext;
use super::site::site;
use super::{CuResult, Machine, SoftDevice, err};
use crate::mem::{AllocInfo, AllocKind};
use crate::order::{ActorId, OpId, OpKind};

/// No location, as `cuMemRangeGetAttribute` encodes it.
pub(crate) const NOWHERE: i32 = -2;

impl AllocationTable {
    pub(crate) fn insert(
        &self,
        m: &Machine,
        ctx: &SoftContext,
        start: u64,
        len: u64,
        source: AllocationSource,
        device: u32,
    ) -> Arc<Allocation> {
        self.insert_for(m, (ctx.id, ctx.handle), start, len, source, device)
    }

    /// For memory that outlives contexts.
    pub(crate) fn insert_unowned(
        &self,
        m: &Machine,
        start: u64,
        len: u64,
        source: AllocationSource,
        device: u32,
    ) -> Arc<Allocation> {
        self.insert_for(m, (0, 0), start, len, source, device)
    }

    fn insert_for(
        &self,
        m: &Machine,
        (ctx_id, ctx_handle): (u64, usize),
        start: u64,
        len: u64,
        source: AllocationSource,
        device: u32,
    ) -> Arc<Allocation> {
        let made = Arc::new(Allocation {
            start,
            len,
            source,
            device,
            ctx_id,
            ctx_handle,
            buffer_id: m.fresh_id(),
            sync_memops: AtomicBool::new(false),
            read_mostly: AtomicBool::new(false),
            preferred: AtomicI32::new(NOWHERE),
            accessed_by: AtomicU32::new(0),
            prefetched: AtomicI32::new(NOWHERE),
        });
        self.live
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(start, made.clone());
        made
    }

    /// The allocation that holds `addr`.
    pub(crate) fn find(&self, addr: u64) -> Option<Arc<Allocation>> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.range(..=addr)
            .next_back()
            .map(|e| e.1)
            .filter(|a| addr < a.end())
            .cloned()
    }

    /// Every live allocation, by address.
    pub(crate) fn all(&self) -> Vec<Arc<Allocation>> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.values().cloned().collect()
    }

    /// Takes out the allocation that starts exactly at `addr`, if `wanted`.
    pub(crate) fn take(
        &self,
        addr: u64,
        wanted: impl Fn(&Allocation) -> bool,
    ) -> Option<Arc<Allocation>> {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        if !live.get(&addr).is_some_and(|a| wanted(a)) {
            return None;
        }
        live.remove(&addr)
    }

    /// Whether all of `addr..addr+len` is in the allocation that it starts in. Mappings of
    /// `cuMemMap` that lie one behind the other count as one.
    pub(crate) fn covers(&self, addr: u64, len: u64) -> bool {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        let Some(end) = addr.checked_add(len) else {
            return false;
        };
        let mut at = addr;
        loop {
            let Some(a) = live.range(..=at).next_back().map(|e| e.1) else {
                return false;
            };
            let is_mapping = matches!(a.source, AllocationSource::Mapped);
            if at >= a.end() || at != addr && !is_mapping {
                return false;
            }
            at = a.end();
            if at >= end {
                return true;
            }
            if !is_mapping {
                return false;
            }
        }
    }

    pub(crate) fn overlaps(&self, addr: u64, len: u64) -> bool {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.range(..addr + len)
            .next_back()
            .is_some_and(|e| e.1.end() > addr)
    }

    /// Frees what a context leaves behind. Its work is over.
    pub(crate) fn free_context(&self, m: &Machine, ctx_id: u64) {
        let left: Vec<Arc<Allocation>> = {
            let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
            let gone: Vec<u64> = live
                .iter()
                .filter(|e| {
                    e.1.ctx_id == ctx_id
                        && !matches!(
                            e.1.source,
                            AllocationSource::Mapped | AllocationSource::Graph
                        )
                })
                .map(|e| *e.0)
                .collect();
            gone.into_iter().filter_map(|at| live.remove(&at)).collect()
        };
        for allocation in left {
            retire(m, &allocation, "cuCtxDestroy", host_op(m, "cuCtxDestroy"));
            give_back(m, &allocation);
        }
    }
}

/// An operation that the host does itself.
pub(crate) fn host_op(m: &Machine, call: &'static str) -> OpId {
    if m.config.checks {
        m.order.begin(ActorId::HOST, OpKind::Call(call))
    } else {
        OpId::NONE
    }
}

/// Marks an allocation's bytes as dead, for reports and checks.
pub(crate) fn retire(m: &Machine, allocation: &Allocation, call: &'static str, op: OpId) {
    m.space
        .retire(allocation.start, site(call), m.check(op).as_ref());
    m.print_findings();
}

/// Returns the bytes to where they came from.
pub(crate) fn give_back(m: &Machine, allocation: &Allocation) {
    let device = &m.devices[allocation.device as usize];
    match &allocation.source {
        AllocationSource::Device | AllocationSource::Global | AllocationSource::Array => {
            device.blocks.free(&m.space, allocation.start, 0)
        }
        AllocationSource::Managed => device.managed_blocks.free(&m.space, allocation.start, 0),
        AllocationSource::Pool(pool) => pool.free_now(m, allocation.start, allocation.len),
        AllocationSource::Host(_) => m.host_blocks.free(&m.space, allocation.start, 0),
        AllocationSource::Registered(_) => {
            m.space.unregister_host(allocation.start);
        }
        AllocationSource::Ipc(mapping) => {
            // Mapped by `ipc::open_memory`; a refusal of the system loses addresses, nothing else.
            if m.space.unmap(mapping.base, mapping.backing.len()).is_ok() {
                m.space.release(mapping.base, mapping.backing.len());
            }
        }
        AllocationSource::Mapped | AllocationSource::Graph => {}
    }
    m.ipc.withdraw_memory(allocation.start);
}

impl SoftDevice {
    /// Allocates a block, after emptying pools and the quarantine if necessary.
    pub(crate) fn alloc_block(&self, m: &Machine, len: u64) -> CuResult<u64> {
        self.blocks.alloc(&m.space, len).or_else(|_| {
            self.reclaim(m);
            self.blocks.alloc(&m.space, len)
        })
    }

    /// Releases the memory that pools and the quarantine retain.
    pub(crate) fn reclaim(&self, m: &Machine) {
        self.blocks.trim(&m.space, 0);
        self.managed_blocks.trim(&m.space, 0);
        self.graph_blocks.trim(&m.space, 0);
        self.graph_pool.trim(&self.phys);
        if let Some(pool) = self.default_pool.get() {
            pool.trim(m, 0);
        }
        for pool in m.pools.all() {
            if pool.device == self.ordinal {
                pool.trim(m, 0);
            }
        }
    }
}

fn note(
    m: &Machine,
    a: &Allocation,
    kind: AllocKind,
    call: &'static str,
    initialised: bool,
) -> Arc<AllocInfo> {
    let op = host_op(m, call);
    m.space.add(
        a.start,
        a.len,
        kind,
        a.device,
        None,
        site(call),
        initialised,
        m.check(op).as_ref(),
    )
}

pub(crate) fn alloc_device(
    m: &Machine,
    ctx: &SoftContext,
    len: u64,
    call: &'static str,
) -> CuResult<u64> {
    if len == 0 {
        return Err(err::INVALID_VALUE);
    }
    let start = m.devices[ctx.device as usize].alloc_block(m, len)?;
    let made = m
        .memory
        .insert(m, ctx, start, len, AllocationSource::Device, ctx.device);
    note(m, &made, AllocKind::Device, call, false);
    Ok(start)
}

/// Memory of an array, of which kernels know no address.
pub(crate) fn alloc_array(
    m: &Machine,
    ctx: &SoftContext,
    len: u64,
    call: &'static str,
) -> CuResult<u64> {
    let start = m.devices[ctx.device as usize].alloc_block(m, len)?;
    let made = m
        .memory
        .insert(m, ctx, start, len, AllocationSource::Array, ctx.device);
    note(m, &made, AllocKind::Device, call, false);
    Ok(start)
}

pub(crate) fn alloc_managed(m: &Machine, ctx: &SoftContext, len: u64) -> CuResult<u64> {
    if len == 0 {
        return Err(err::INVALID_VALUE);
    }
    let device = &m.devices[ctx.device as usize];
    let start = device.managed_blocks.alloc(&m.space, len).or_else(|_| {
        device.reclaim(m);
        device.managed_blocks.alloc(&m.space, len)
    })?;
    let made = m
        .memory
        .insert(m, ctx, start, len, AllocationSource::Managed, ctx.device);
    // The host writes it unseen, so all its bytes count as initialised.
    note(m, &made, AllocKind::Managed, "cuMemAllocManaged", true);
    Ok(start)
}

pub(crate) fn alloc_host(
    m: &Machine,
    ctx: &SoftContext,
    len: u64,
    flags: u32,
    call: &'static str,
) -> CuResult<u64> {
    if len == 0 || flags & !7 != 0 {
        return Err(err::INVALID_VALUE);
    }
    let start = m.host_blocks.alloc(&m.space, len)?;
    let made = m.memory.insert(
        m,
        ctx,
        start,
        len,
        AllocationSource::Host(flags),
        ctx.device,
    );
    note(m, &made, AllocKind::Pinned, call, true);
    Ok(start)
}

/// `CU_MEMHOSTREGISTER_READ_ONLY`.
const READ_ONLY: u32 = 8;

/// The program's access to a whole range of its own memory: (read, write). `None` if part of it
/// is unmapped.
fn own_access(start: u64, len: u64) -> Option<(bool, bool)> {
    let Ok(maps) = std::fs::read("/proc/self/maps") else {
        // Unknown; then the program's claim counts.
        return Some((true, true));
    };
    let (mut at, mut read, mut write) = (start, true, true);
    for line in String::from_utf8_lossy(&maps).lines() {
        let mut fields = line.split_ascii_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let (from, to) = (
            u64::from_str_radix(from, 16).ok()?,
            u64::from_str_radix(to, 16).ok()?,
        );
        if to <= at {
            continue;
        }
        if from > at {
            return None;
        }
        let may = fields.next()?;
        read &= may.starts_with('r');
        write &= may[1..].starts_with('w');
        at = to;
        if at - start >= len {
            return Some((read, write));
        }
    }
    None
}

pub(crate) fn register_host(
    m: &Machine,
    ctx: &SoftContext,
    start: u64,
    len: u64,
    flags: u32,
) -> CuResult {
    if start == 0 || len == 0 || flags & !15 != 0 || start.checked_add(len).is_none() {
        return Err(err::INVALID_VALUE);
    }
    if m.space.contains(start, 1) || m.memory.overlaps(start, len) {
        return Err(err::HOST_ALREADY_REGISTERED);
    }
    // A driver would fail to pin unmapped memory; here a kernel's access would crash the process.
    let (readable, writable) = own_access(start, len).ok_or(err::INVALID_VALUE)?;
    let read_only = flags & READ_ONLY != 0;
    if !readable || !(writable || read_only) {
        return Err(err::INVALID_VALUE);
    }
    // SAFETY: accessible now, as just checked; the caller promises that it stays so until it is
    // unregistered, as the driver's reference requires.
    unsafe {
        m.space
            .register_host(start, len, m.all_devices(), !read_only)
    }
    .map_err(|_| err::HOST_ALREADY_REGISTERED)?;
    let made = m.memory.insert(
        m,
        ctx,
        start,
        len,
        AllocationSource::Registered(flags),
        ctx.device,
    );
    note(m, &made, AllocKind::Pinned, "cuMemHostRegister_v2", true);
    Ok(())
}

/// Waits for everything that may still use an allocation. Errors of that work are reported by
/// other calls.
pub(crate) fn settle(m: &Machine) {
    for ctx in m.contexts.all() {
        if !ctx.health.is_dead() {
            ctx.synchronize(m).ok();
        }
    }
}

/// The same without the host's learning of it: an order for this process, none for the program.
pub(crate) fn drain(m: &Machine) {
    for ctx in m.contexts.all() {
        if !ctx.health.is_dead() {
            ctx.drain();
        }
    }
}

/// Grants or revokes `device`'s access to all ordinary memory of `owner`.
pub(crate) fn set_peer_access(m: &Machine, owner: u32, device: u32, on: bool) {
    if owner != device {
        m.devices[owner as usize]
            .blocks
            .set_device(&m.space, device, on, on);
    }
}

/// Whether an address is memory of this driver (device, pinned, managed) rather than the program's
/// own.
pub(crate) fn is_ours(m: &Machine, addr: u64) -> bool {
    m.space.contains(addr, 1) || m.memory.find(addr).is_some()
}

/// Loads a value that the program set with the advice functions.
pub(crate) fn advice_of(a: &Allocation) -> (bool, i32, u32, i32) {
    (
        a.read_mostly.load(Ordering::Acquire),
        a.preferred.load(Ordering::Acquire),
        a.accessed_by.load(Ordering::Acquire),
        a.prefetched.load(Ordering::Acquire),
    )
}
