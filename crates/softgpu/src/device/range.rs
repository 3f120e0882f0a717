//! Ranges of driver calls: whether a copy, fill or freeing stays in the allocation it names.
//!
//! With checks, what is refused is a finding besides, since programs ignore errors.

use std::sync::Arc;

use super::memory::host_op;
use super::{CuResult, Machine, err};
use crate::mem::AllocInfo;
use crate::report::{Access, AccessKind, Finding, FindingActor, FindingKind, MemSpace};

/// One access of a driver call, as the check of its range reports it.
#[derive(Clone, Copy)]
pub(crate) struct HostAccess {
    pub(crate) call: &'static str,
    pub(crate) kind: AccessKind,
}

impl HostAccess {
    pub(crate) fn read(call: &'static str) -> Self {
        let kind = AccessKind::Read;
        HostAccess { call, kind }
    }

    pub(crate) fn write(call: &'static str) -> Self {
        let kind = AccessKind::Write;
        HostAccess { call, kind }
    }
}

/// Runs of bytes at equal distances, in layers at equal distances.
#[derive(Clone, Copy)]
pub(crate) struct ByteRows {
    pub(crate) at: u64,
    /// Bytes of a row.
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) pitch: u64,
    pub(crate) depth: u64,
    pub(crate) slice: u64,
}

impl ByteRows {
    pub(crate) fn linear(at: u64, len: u64) -> Self {
        ByteRows {
            at,
            width: len,
            height: 1,
            pitch: len,
            depth: 1,
            slice: len,
        }
    }

    /// Bytes from the first to behind the last one.
    fn extent(&self) -> Option<u64> {
        let layers = (self.depth - 1).checked_mul(self.slice)?;
        let rows = (self.height - 1).checked_mul(self.pitch)?;
        let len = layers.checked_add(rows)?.checked_add(self.width)?;
        self.at.checked_add(len).map(|_| len)
    }

    /// The first piece of a row that lies at `end` or behind: its address and length.
    fn behind(&self, end: u64) -> Option<(u64, u64)> {
        let (height, depth) = (self.height, self.depth);
        let mut rows = (0..depth).flat_map(|z| (0..height).map(move |y| (z, y)));
        rows.find_map(|(z, y)| {
            let row = self.at + z * self.slice + y * self.pitch;
            let (from, to) = (row.max(end), row + self.width);
            (to > end).then(|| (from, to - from))
        })
    }
}

/// Checks the range of a copy or fill in device memory.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if not all of it lies in the allocation that it begins in.
pub(crate) fn check_range(m: &Machine, rows: ByteRows, access: HostAccess) -> CuResult {
    if rows.width == 0 || rows.height == 0 || rows.depth == 0 {
        return Ok(());
    }
    let extent = rows.extent();
    if extent.is_some_and(|len| m.memory.covers(rows.at, len)) {
        return Ok(());
    }
    if m.config.checks
        && let Some(len) = extent
        && m.space.contains(rows.at, 1)
    {
        report_range(m, &rows, len, access);
    }
    Err(err::INVALID_VALUE)
}

/// Adds a finding of a range that is refused.
fn report_range(m: &Machine, rows: &ByteRows, extent: u64, access: HostAccess) {
    let at = rows.at;
    let record = m.space.find(at);
    let (kind, place, allocation, note) = match record {
        // Its freeing may be enqueued, so that the record does not know of it yet.
        Some(old) if old.freed.is_some() || at + extent <= old.end() => {
            let note = "the call is refused".to_owned();
            (FindingKind::UseAfterFree, (at, rows.width), Some(old), note)
        }
        Some(live) => {
            let place = rows.behind(live.end()).unwrap_or((at, rows.width));
            let note = format!("the call begins in it at {at:#x} and is refused");
            (FindingKind::OutOfBounds, place, Some(live), note)
        }
        None => {
            let note = "the call begins in no allocation and is refused".to_owned();
            let place = (at, rows.width);
            (FindingKind::OutOfBounds, place, nearest(m, at), note)
        }
    };
    let op = host_op(m, access.call);
    m.sink.add(Finding {
        kind,
        access: Some(Access {
            kind: access.kind,
            space: MemSpace::Global,
            addr: place.0,
            len: place.1,
        }),
        actor: FindingActor::Operation(m.order.describe(op)),
        note,
        allocation,
        other: None,
        count: 1,
    });
    m.print_findings();
}

/// The live allocation nearest to an address that is in none.
fn nearest(m: &Machine, at: u64) -> Option<Arc<AllocInfo>> {
    let (before, after) = m.space.neighbours(at);
    match (before, after) {
        (Some(before), Some(after)) => Some(match at - before.end() < after.start - at {
            true => before,
            false => after,
        }),
        (before, after) => before.or(after),
    }
}

/// Reports that a call frees what it cannot free, if the address may once have been memory of ours;
/// gives the error back.
pub(crate) fn refuse_free(
    m: &Machine,
    start: u64,
    call: &'static str,
    error: fercuda_cuda_sys::types::CUresult,
) -> fercuda_cuda_sys::types::CUresult {
    if !m.config.checks || !m.space.contains(start, 1) {
        return error;
    }
    let record = m.space.find(start);
    let note = match &record {
        Some(old) if old.freed.is_some() => "it was freed before",
        Some(live) if live.start != start => "not the allocation's first address",
        Some(_) => "another call frees such memory, or one has",
        None => "no allocation is there",
    };
    let op = host_op(m, call);
    m.sink.add(Finding {
        kind: FindingKind::InvalidFree,
        access: None,
        actor: FindingActor::Operation(m.order.describe(op)),
        note: format!("{start:#x}, {note}"),
        allocation: record.or_else(|| nearest(m, start)),
        other: None,
        count: 1,
    });
    m.print_findings();
    error
}
