//! Virtual memory management: address reservation, physical memory, mappings.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use fercuda_cuda_sys::types::{CUmemAccessDesc, CUmemAllocationProp};

use super::allocation::AllocationSource;
use super::memory::host_op;
use super::objects::{Mapping, Physical, SoftContext};
use super::site::site;
use super::{CuResult, Machine, err, lock};
use crate::mem::{AllocKind, Backing, GRANULE};

const FD: i32 = 1;

/// The device that a property's location means: (device, whether the memory is the host's).
fn place(m: &Machine, kind: u32, id: i32) -> CuResult<(u32, bool)> {
    match kind {
        1 => Ok((m.device(id)?.ordinal, false)),
        2..=4 => Ok((0, true)),
        _ => Err(err::INVALID_VALUE),
    }
}

pub(crate) fn granularity(m: &Machine, prop: &CUmemAllocationProp) -> CuResult<u64> {
    if prop.r#type.0 != 1 {
        return Err(err::INVALID_VALUE);
    }
    place(m, prop.location.r#type.0, prop.location.id)?;
    Ok(GRANULE)
}

pub(crate) fn create(
    m: &Machine,
    size: u64,
    prop: &CUmemAllocationProp,
    flags: u64,
) -> CuResult<usize> {
    let granule = granularity(m, prop)?;
    if size == 0 || !size.is_multiple_of(granule) || flags != 0 {
        return Err(err::INVALID_VALUE);
    }
    let handle_types = prop.requestedHandleTypes.0;
    if handle_types & !(FD as u32) != 0 {
        return Err(err::NOT_SUPPORTED);
    }
    let (device, on_host) = place(m, prop.location.r#type.0, prop.location.id)?;
    let phys = (!on_host).then(|| m.devices[device as usize].phys.clone());
    if let Some(phys) = &phys
        && !phys.take(size)
    {
        m.devices[device as usize].reclaim(m);
        if !phys.take(size) {
            return Err(err::OUT_OF_MEMORY);
        }
    }
    let backing = m.space.backing(size).map_err(|_| {
        if let Some(phys) = &phys {
            phys.give(size);
        }
        err::OUT_OF_MEMORY
    })?;
    let physical = Physical {
        backing,
        size,
        device,
        handle_types,
        location: (prop.location.r#type.0, prop.location.id),
        compression: prop.allocFlags.compressionType,
        made: site("cuMemCreate"),
        references: Mutex::new(1),
        charged: phys,
    };
    Ok(m.allocations.insert_with(|_| Arc::new(physical)).0)
}

/// Releases one handle; the memory stays while it is mapped.
pub(crate) fn release(m: &Machine, handle: usize) -> CuResult {
    let physical = m.allocations.get(handle).ok_or(err::INVALID_VALUE)?;
    let mut references = lock(&physical.references);
    // Another thread may have released the last one just now.
    *references = references.checked_sub(1).ok_or(err::INVALID_VALUE)?;
    if *references == 0 {
        m.allocations.remove(handle);
    }
    Ok(())
}

pub(crate) fn retain(m: &Machine, addr: u64) -> CuResult<usize> {
    let mut mapped = lock(&m.vmm.mapped);
    let (&start, mapping) = mapped
        .range(..=addr)
        .next_back()
        .ok_or(err::INVALID_VALUE)?;
    if addr >= start + mapping.len {
        return Err(err::INVALID_VALUE);
    }
    let physical = mapping.physical.clone();
    if m.allocations
        .get(mapping.handle)
        .is_some_and(|p| Arc::ptr_eq(&p, &physical))
    {
        *lock(&physical.references) += 1;
        return Ok(mapping.handle);
    }
    // Every handle was released while it was mapped: a new one for the same memory, which the next
    // call returns too.
    *lock(&physical.references) = 1;
    let (handle, _) = m.allocations.insert_with(|_| physical.clone());
    for mapping in mapped.values_mut() {
        if Arc::ptr_eq(&mapping.physical, &physical) {
            mapping.handle = handle;
        }
    }
    Ok(handle)
}

/// The handle types as which the memory mapped at an address may be exported.
pub(crate) fn handle_types(m: &Machine, addr: u64) -> u32 {
    let mapped = lock(&m.vmm.mapped);
    let around = mapped.range(..=addr).next_back();
    around.map_or(0, |(_, mapping)| mapping.physical.handle_types)
}

pub(crate) fn reserve(m: &Machine, size: u64, align: u64, hint: u64) -> CuResult<u64> {
    if size == 0 || !size.is_multiple_of(GRANULE) || (align != 0 && !align.is_power_of_two()) {
        return Err(err::INVALID_VALUE);
    }
    let start = if m.config.checks {
        m.space.reserve_apart(size, align.max(GRANULE), hint)
    } else {
        m.space.reserve(size, align.max(GRANULE), hint)
    };
    let start = start.map_err(|_| err::OUT_OF_MEMORY)?;
    lock(&m.vmm.reserved).insert(start, size);
    Ok(start)
}

pub(crate) fn free_addresses(m: &Machine, start: u64, size: u64) -> CuResult {
    let mut reserved = lock(&m.vmm.reserved);
    if reserved.get(&start) != Some(&size) {
        return Err(err::INVALID_VALUE);
    }
    let mapped = lock(&m.vmm.mapped);
    if mapped
        .range(..start + size)
        .next_back()
        .is_some_and(|(&s, x)| s + x.len > start)
    {
        return Err(err::INVALID_VALUE);
    }
    drop(mapped);
    reserved.remove(&start);
    m.space.release(start, size);
    Ok(())
}

pub(crate) fn map(
    m: &Machine,
    start: u64,
    size: u64,
    offset: u64,
    handle: usize,
    flags: u64,
) -> CuResult {
    let physical = m.allocations.get(handle).ok_or(err::INVALID_VALUE)?;
    let whole = start.is_multiple_of(GRANULE)
        && size.is_multiple_of(GRANULE)
        && offset.is_multiple_of(GRANULE);
    let inside = offset
        .checked_add(size)
        .is_some_and(|end| end <= physical.size);
    if !whole || !inside || size == 0 || flags != 0 {
        return Err(err::INVALID_VALUE);
    }
    {
        let reserved = lock(&m.vmm.reserved);
        let (&base, &len) = reserved
            .range(..=start)
            .next_back()
            .ok_or(err::INVALID_VALUE)?;
        if start.checked_add(size).is_none_or(|end| end > base + len) {
            return Err(err::INVALID_VALUE);
        }
    }
    let mut mapped = lock(&m.vmm.mapped);
    if mapped
        .range(..start + size)
        .next_back()
        .is_some_and(|(&s, x)| s + x.len > start)
    {
        return Err(err::INVALID_VALUE);
    }
    m.space
        .map(start, size, &physical.backing, offset)
        .map_err(|_| err::OUT_OF_MEMORY)?;
    let device = physical.device;
    mapped.insert(
        start,
        Mapping {
            len: size,
            physical,
            handle,
        },
    );
    drop(mapped);
    let op = host_op(m, "cuMemMap");
    // The memory may hold what an earlier mapping, or another process, wrote.
    m.space.add(
        start,
        size,
        AllocKind::Vmm,
        device,
        None,
        site("cuMemMap"),
        true,
        m.check(op).as_ref(),
    );
    m.memory
        .insert_unowned(m, start, size, AllocationSource::Mapped, device);
    Ok(())
}

/// Unmaps whole mappings; waits for work that may still use them.
pub(crate) fn unmap(m: &Machine, start: u64, size: u64) -> CuResult {
    let runs = whole_mappings(m, start, size)?;
    super::memory::settle(m);
    let mut mapped = lock(&m.vmm.mapped);
    for (at, len) in runs {
        m.memory
            .take(at, |a| matches!(a.source, AllocationSource::Mapped));
        let op = host_op(m, "cuMemUnmap");
        m.space.retire(at, site("cuMemUnmap"), m.check(op).as_ref());
        m.space.unmap(at, len).map_err(|_| err::INVALID_VALUE)?;
        mapped.remove(&at);
    }
    Ok(())
}

fn whole_mappings(m: &Machine, start: u64, size: u64) -> CuResult<Vec<(u64, u64)>> {
    let mapped = lock(&m.vmm.mapped);
    let end = start
        .checked_add(size)
        .filter(|_| size > 0)
        .ok_or(err::INVALID_VALUE)?;
    let runs: Vec<(u64, u64)> = mapped.range(start..end).map(|(&s, x)| (s, x.len)).collect();
    let mut at = start;
    for &(s, len) in &runs {
        if s != at {
            return Err(err::INVALID_VALUE);
        }
        at = s + len;
    }
    if at == end {
        Ok(runs)
    } else {
        Err(err::INVALID_VALUE)
    }
}

pub(crate) fn set_access(
    m: &Machine,
    start: u64,
    size: u64,
    descs: &[CUmemAccessDesc],
) -> CuResult {
    if descs.is_empty() {
        return Err(err::INVALID_VALUE);
    }
    // A part of a mapping has no access of its own.
    whole_mappings(m, start, size)?;
    for desc in descs {
        let (read, write) = match desc.flags.0 {
            0 => (false, false),
            1 => (true, false),
            3 => (true, true),
            _ => return Err(err::INVALID_VALUE),
        };
        let (device, on_host) = place(m, desc.location.r#type.0, desc.location.id)?;
        if !on_host {
            m.space
                .set_access(start, size, device, read, write)
                .map_err(|_| err::INVALID_VALUE)?;
        }
    }
    Ok(())
}

/// `CU_MEM_ACCESS_FLAGS_*` of a device at an address.
pub(crate) fn access(m: &Machine, kind: u32, id: i32, addr: u64) -> CuResult<u64> {
    let (device, on_host) = place(m, kind, id)?;
    if m.memory.find(addr).is_none() {
        return Err(err::INVALID_VALUE);
    }
    Ok(match m.space.access_of(addr, device) {
        _ if on_host => 3,
        (_, true) => 3,
        (true, false) => 1,
        _ => 0,
    })
}

pub(crate) fn export(m: &Machine, handle: usize, kind: u32) -> CuResult<i32> {
    let physical = m.allocations.get(handle).ok_or(err::INVALID_VALUE)?;
    if kind != FD as u32 || physical.handle_types & FD as u32 == 0 {
        return Err(err::INVALID_VALUE);
    }
    physical
        .backing
        .export()
        .map(IntoRawFd::into_raw_fd)
        .map_err(|_| err::OPERATING_SYSTEM)
}

/// Imports the memory of a descriptor; the descriptor stays the caller's.
pub(crate) fn import(m: &Machine, ctx: &SoftContext, fd: i32) -> CuResult<usize> {
    // SAFETY: `fcntl` on a number that is no descriptor fails and does nothing else.
    let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if own < 0 {
        return Err(err::INVALID_VALUE);
    }
    // SAFETY: `own` was just created and is not shared.
    let own = unsafe { OwnedFd::from_raw_fd(own) };
    let backing = Backing::import(own).map_err(|_| err::INVALID_VALUE)?;
    let physical = Physical {
        size: backing.len(),
        backing,
        device: ctx.device,
        handle_types: FD as u32,
        location: (1, ctx.device as i32),
        compression: 0,
        made: site("cuMemImportFromShareableHandle"),
        references: Mutex::new(1),
        // The exporter's device is charged for it.
        charged: None,
    };
    Ok(m.allocations.insert_with(|_| Arc::new(physical)).0)
}
