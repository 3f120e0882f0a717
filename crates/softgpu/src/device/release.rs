//! Releases of memory by call: the device's, the host's and the program's own.

use super::allocation::{Allocation, AllocationSource};
use super::graph_memory::take_graph_memory;
use super::memory::{drain, give_back, host_op, retire, settle};
use super::range::refuse_free;
use super::{CuResult, Machine, err};

/// `cuMemFree`: waits for the work of the context that made it, as the driver does.
pub(crate) fn free_device(m: &'static Machine, start: u64) -> CuResult {
    if start == 0 {
        return Ok(());
    }
    let wanted = |a: &Allocation| {
        matches!(
            a.source,
            AllocationSource::Device | AllocationSource::Managed | AllocationSource::Pool(_)
        )
    };
    let allocation = match m.memory.take(start, wanted) {
        Some(allocation) => allocation,
        None => {
            let refuse = |error| refuse_free(m, start, "cuMemFree_v2", error);
            let memory = take_graph_memory(start).map_err(refuse)?;
            settle(m);
            memory.end(m, "cuMemFree_v2", host_op(m, "cuMemFree_v2"));
            return Ok(());
        }
    };
    let op = if let AllocationSource::Pool(pool) = &allocation.source {
        // Of stream-ordered memory a driver takes the work for complete, and waits for none: what
        // the host has not waited for is not before this.
        let op = host_op(m, "cuMemFree_v2");
        drain(m);
        pool.note_freed(allocation.len);
        op
    } else {
        settle(m);
        host_op(m, "cuMemFree_v2")
    };
    retire(m, &allocation, "cuMemFree_v2", op);
    give_back(m, &allocation);
    Ok(())
}

/// Frees an array's memory, when no work can access it any more.
pub(crate) fn free_array(m: &Machine, start: u64, call: &'static str) -> CuResult {
    let wanted = |a: &Allocation| matches!(a.source, AllocationSource::Array);
    let allocation = m.memory.take(start, wanted).ok_or(err::INVALID_HANDLE)?;
    settle(m);
    retire(m, &allocation, call, host_op(m, call));
    give_back(m, &allocation);
    Ok(())
}

pub(crate) fn free_host(m: &Machine, start: u64) -> CuResult {
    if start == 0 {
        return Ok(());
    }
    let allocation = m
        .memory
        .take(start, |a| matches!(a.source, AllocationSource::Host(_)))
        .ok_or_else(|| refuse_free(m, start, "cuMemFreeHost", err::INVALID_VALUE))?;
    settle(m);
    retire(m, &allocation, "cuMemFreeHost", host_op(m, "cuMemFreeHost"));
    give_back(m, &allocation);
    Ok(())
}

pub(crate) fn unregister_host(m: &Machine, start: u64) -> CuResult {
    if m.memory
        .find(start)
        .is_some_and(|a| a.start != start || !matches!(a.source, AllocationSource::Registered(_)))
    {
        return Err(err::INVALID_VALUE);
    }
    let allocation = m
        .memory
        .take(start, |a| {
            matches!(a.source, AllocationSource::Registered(_))
        })
        .ok_or(err::HOST_NOT_REGISTERED)?;
    settle(m);
    retire(
        m,
        &allocation,
        "cuMemHostUnregister",
        host_op(m, "cuMemHostUnregister"),
    );
    give_back(m, &allocation);
    Ok(())
}
