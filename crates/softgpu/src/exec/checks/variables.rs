//! Bounds of variables in shared and local memory.

use super::super::ctx::{Ctx, DecodedInst};
use super::super::program::VariableBounds;
use super::super::registers::{ALL, LANES, each};
use super::found::report;
use super::site::ThreadFinding;
use crate::mem::At;
use crate::report::{Access, AccessKind, FindingKind, MemSpace};

/// Beyond every memory of a block or thread, and less than half of all offsets.
const FAR: u32 = 1 << 30;

/// The lanes whose access leaves a variable, all of them reported.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BeyondVariable {
    /// In other memory of the block or thread, where hardware executes it.
    pub(crate) elsewhere: u32,
    /// Outside of that too, so that it is not executed.
    pub(crate) nowhere: u32,
}

/// The lanes whose access, of (bytes, kind, where the frame begins), leaves variable `n`.
#[inline(always)]
pub(super) fn beyond(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mask: u32,
    n: u32,
    access: (u32, AccessKind, u32),
) -> BeyondVariable {
    let run = ctx.run;
    let found = n
        .checked_sub(1)
        .and_then(|n| run.code().variables.get(n as usize));
    let Some(v) = found else {
        return BeyondVariable::default();
    };
    let (start, size) = (v.start + access.2, access.0);
    if mask == ALL
        && let Some(last) = v.len.checked_sub(size)
        && u32::within(off, start, last.min(FAR), 0)
    {
        return BeyondVariable::default();
    }
    outside(ctx, i, off, mask, n, access)
}

fn outside(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mask: u32,
    n: u32,
    (size, kind, base): (u32, AccessKind, u32),
) -> BeyondVariable {
    let run = ctx.run;
    let v = &run.code().variables[n as usize - 1];
    let start = u64::from(v.start + base);
    let end = start + u64::from(v.len);
    let memory = match v.space {
        MemSpace::Shared => ctx.block.shared.len() as u64,
        _ => ctx.w().local.len() as u64 / 8,
    };
    let mut out = BeyondVariable::default();
    each(mask, |l| {
        let (at, to) = (u64::from(off[l]), u64::from(off[l]) + u64::from(size));
        if at >= start && to <= end {
            return;
        }
        match to <= memory {
            true => out.elsewhere |= 1 << l,
            false => out.nowhere |= 1 << l,
        }
        let note = note(v, base, at);
        let found = ThreadFinding {
            kind: FindingKind::OutOfBounds,
            access: Access {
                kind,
                space: v.space,
                addr: at,
                len: u64::from(size),
            },
            note,
            allocation: None,
            other: None,
        };
        report(ctx, i, l as u32, found);
    });
    out
}

/// How far an access at `at` lies outside variable `v` of a frame that begins at `base`.
fn note(v: &VariableBounds, base: u32, at: u64) -> String {
    let start = u64::from(v.start + base);
    let end = start + u64::from(v.len);
    let place = if at < start {
        format!("{} bytes before the start of", start - at)
    } else if at < end {
        "across the end of".to_owned()
    } else {
        format!("{} bytes past the end of", at - end)
    };
    format!(
        "{place} the {} variable `{}` of {} bytes",
        v.space, v.name, v.len
    )
}

/// Reports an access outside of shared or local memory or of parameters that no other check has
/// seen. Returns
/// whether it may be left out: without checks it may not.
#[cold]
pub(crate) fn beyond_memory(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: u32,
    access: Access,
    len: usize,
) -> bool {
    let run = ctx.run;
    if run.spec.checks.is_none() {
        return false;
    }
    let memory = match access.space {
        MemSpace::Shared => format!("the block has {len} bytes of shared memory"),
        MemSpace::Local => format!("the thread has {len} bytes of local memory"),
        _ => format!("the kernel has {len} bytes of parameters"),
    };
    // Asynchronous copies have the variable's number behind their size.
    let variable = match access.kind {
        AccessKind::AsyncCopy => (i.x >> 8).checked_sub(1),
        _ => None,
    };
    let note = match variable.and_then(|n| run.code().variables.get(n as usize)) {
        Some(v) => note(v, 0, access.addr),
        None => memory,
    };
    let found = ThreadFinding {
        kind: FindingKind::OutOfBounds,
        access,
        note,
        allocation: None,
        other: None,
    };
    report(ctx, i, lane, found);
    // The threads that wait for an mbarrier without this would wait forever.
    access.kind != AccessKind::Atomic
}
