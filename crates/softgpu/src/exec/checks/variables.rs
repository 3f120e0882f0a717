//! Bounds of variables in shared and local memory.

use super::super::ctx::{Ctx, DecodedInst};
use super::super::registers::{ALL, LANES, each};
use super::found::report;
use super::site::ThreadFinding;
use crate::mem::At;
use crate::report::{Access, AccessKind, FindingKind, MemSpace};

/// Beyond every memory of a block or thread, and less than half of all offsets.
const FAR: u32 = 1 << 30;

/// The lanes whose access, of (bytes, kind, where the frame begins), leaves variable `n` without
/// leaving its memory. They are reported.
#[inline(always)]
pub(super) fn beyond(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mask: u32,
    n: u32,
    access: (u32, AccessKind, u32),
) -> u32 {
    let run = ctx.run;
    let Some(v) = run.code().variables.get(n as usize - 1) else {
        return 0;
    };
    let (start, size) = (v.start + access.2, access.0);
    if mask == ALL
        && let Some(last) = v.len.checked_sub(size)
        && u32::within(off, start, last.min(FAR), 0)
    {
        return 0;
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
) -> u32 {
    let run = ctx.run;
    let v = &run.code().variables[n as usize - 1];
    let (start, end) = (
        u64::from(v.start + base),
        u64::from(v.start + base) + u64::from(v.len),
    );
    let memory = match v.space {
        MemSpace::Shared => ctx.block.shared.len() as u64,
        _ => ctx.w().local.len() as u64 / 8,
    };
    let mut out = 0;
    each(mask, |l| {
        let (at, to) = (u64::from(off[l]), u64::from(off[l]) + u64::from(size));
        if at >= start && to <= end || to > memory {
            return;
        }
        out |= 1 << l;
        let place = if at < start {
            format!("{} bytes before the start of", start - at)
        } else if at < end {
            "across the end of".to_owned()
        } else {
            format!("{} bytes past the end of", at - end)
        };
        let note = format!(
            "{place} the {} variable `{}` of {} bytes",
            v.space, v.name, v.len
        );
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
