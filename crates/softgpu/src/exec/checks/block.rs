//! Checks of accesses to a block's own memory, shared and local.

use super::super::ctx::{Ctx, DecodedInst};
use super::super::program::access_kind;
use super::super::registers::{ALL, LANES, each, eights};
use super::cluster;
use super::found::report;
use super::global::CheckedAccess;
use super::proxy;
use super::site::ThreadFinding;
use super::stores::distinct;
use super::variables::{self, BeyondVariable};
use crate::check::Strength;
use crate::check::shared::{SharedFinding, SharedRecord};
use crate::mem::At;
use crate::report::{Access, AccessKind, FindingActor, FindingKind, MemSpace};

fn pc16(ctx: &Ctx<'_>, i: &DecodedInst) -> u32 {
    ctx.run.prepared.global_pc(ctx.code, ctx.pc_of(i))
}

/// Checks an access to shared memory; returns the lanes that may make it.
#[inline(always)]
pub(crate) fn shared(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    all: u32,
    checked: CheckedAccess<'_>,
) -> u32 {
    let (size, kind) = (checked.size, checked.kind);
    let reserved = reserved_lanes(ctx, off, all, size);
    let (wanted, all) = (all, all & !reserved);
    let left = variables::beyond(ctx, i, off, all, checked.variable, (size, kind, 0));
    let all = all & !(left.elsewhere | left.nowhere);
    let stores = checked
        .values
        .and_then(|v| distinct(ctx, v, off, all, size as usize));
    let mask = stores.as_ref().map_or(all, |s| s.mask);
    let warp = ctx.warp;
    let pc = pc16(ctx, i);
    let Some(shadow) = ctx.block.shadow.as_mut() else {
        return wanted & !left.nowhere;
    };
    let mark = shadow.mark(warp, pc, warp as u32 * 32, checked.strength.is_strong());
    let mark = mark.narrow_if(checked.strength == Strength::Block);
    if shadow.remote.may_meet(off, mask, size) {
        cluster::own_memory(ctx, i, off, mask, checked);
    }
    let mut allowed = 0;
    for (n, eight) in eights(off).iter().enumerate() {
        let Some(shadow) = ctx.block.shadow.as_mut() else {
            return wanted & !left.nowhere;
        };
        let lanes = mask & 255 << (8 * n);
        if lanes == 255 << (8 * n) && shadow.quick(mark.of(8 * n), warp, eight, size, kind) {
            allowed |= lanes;
        } else {
            allowed |= shared_lanes(ctx, i, off, lanes, checked, mark);
        }
    }
    // What is in another variable has been reported, and is executed as hardware does.
    let allowed = match &stores {
        Some(stores) => stores.spread(allowed, all),
        None => allowed,
    };
    if ctx.block.asyncs.is_some() {
        proxy::beside_copies(ctx, i, off, allowed, (size, kind));
    }
    allowed | left.elsewhere | reserved
}

/// The lanes with an access to the part of shared memory that system software uses, which is not
/// the program's to answer for.
#[inline(always)]
fn reserved_lanes(ctx: &Ctx<'_>, off: &[u32; LANES], mask: u32, size: u32) -> u32 {
    let mut out = 0;
    if ctx.run.has_reserved {
        let (first, end) = (ctx.run.reserved_at, ctx.run.all_shared_bytes());
        each(mask, |l| {
            let inside = off[l] >= first && off[l].checked_add(size).is_some_and(|e| e <= end);
            out |= u32::from(inside) << l;
        });
    }
    out
}

/// The same lane by lane.
fn shared_lanes(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mask: u32,
    checked: CheckedAccess<'_>,
    mark: SharedRecord,
) -> u32 {
    let (size, kind) = (checked.size, checked.kind);
    let (warp, len) = (ctx.warp, u64::from(ctx.run.shared_bytes));
    let mut allowed = 0;
    each(mask, |l| {
        let at = off[l];
        let access = Access {
            kind,
            space: MemSpace::Shared,
            addr: u64::from(at),
            len: u64::from(size),
        };
        if u64::from(at) + u64::from(size) > len || at & (size.next_power_of_two() - 1) != 0 {
            let misaligned = u64::from(at) + u64::from(size) <= len;
            let note = if misaligned {
                format!("must be a multiple of {}", size.next_power_of_two())
            } else {
                format!("the block has {len} bytes of shared memory")
            };
            let r = ThreadFinding {
                kind: if misaligned {
                    FindingKind::Misaligned
                } else {
                    FindingKind::OutOfBounds
                },
                access,
                note,
                allocation: None,
                other: None,
            };
            report(ctx, i, l as u32, r);
            return;
        }
        allowed |= 1 << l;
        let block = &mut *ctx.block;
        let Some(shadow) = block.shadow.as_mut() else {
            return;
        };
        let mark = mark.of(l);
        let (rows, memory) = (&ctx.rows, &block.shared[at as usize..][..size as usize]);
        let same = || checked.values.is_some_and(|v| v.is(rows, l, memory));
        let found = match kind {
            AccessKind::Read => shadow.read(mark, warp, at, size),
            AccessKind::AsyncCopy => shadow.write(mark, warp, at, size, true, || false),
            AccessKind::Write => shadow.write(mark, warp, at, size, false, same),
            AccessKind::Atomic => shadow.update(mark, warp, at, size),
        };
        let same_values = ctx
            .run
            .spec
            .checks
            .as_ref()
            .is_some_and(|c| c.options.same_values);
        if let Some(found) = found
            && (same_values || !matches!(found, SharedFinding::SameValue(_)))
        {
            shared_found(ctx, i, l as u32, access, found);
        }
    });
    allowed
}

#[cold]
fn shared_found(ctx: &mut Ctx<'_>, i: &DecodedInst, l: u32, access: Access, found: SharedFinding) {
    let originator = |m: SharedRecord| {
        let (function, pc) = ctx.run.prepared.locate(m.pc());
        let p = ctx.run.place(
            function,
            pc,
            ctx.block.index,
            ctx.run.thread_index(m.thread()),
        );
        FindingActor::Thread(Box::new(p), None)
    };
    let warp = ctx.warp as u32;
    let unordered = |m: SharedRecord| match m.thread() / 32 == warp {
        true => "nothing orders the two lanes of the warp",
        false => "no barrier between the two threads",
    };
    let (kind, note, other) = match found {
        SharedFinding::Uninitialised => (
            FindingKind::Uninitialised,
            "no thread of the block wrote it".to_owned(),
            None,
        ),
        SharedFinding::Race(m, kind) => {
            let other = originator(m);
            let kind = match &other {
                // A plain write may stand among the readers.
                FindingActor::Thread(p, _) if kind == AccessKind::Read => access_kind(&p.opcode),
                _ => kind,
            };
            (
                FindingKind::SharedRace,
                unordered(m).to_owned(),
                Some((kind, other)),
            )
        }
        SharedFinding::SameValue(m) => (
            FindingKind::SharedRace,
            format!("{}; both write the same value", unordered(m)),
            Some((AccessKind::Write, originator(m))),
        ),
        SharedFinding::Pending(m) => (
            FindingKind::MissingAsyncWait,
            "the copy has not been waited for".to_owned(),
            Some((AccessKind::AsyncCopy, originator(m))),
        ),
    };
    report(
        ctx,
        i,
        l,
        ThreadFinding {
            kind,
            access,
            note,
            allocation: None,
            other,
        },
    );
}

/// The lanes whose access lies behind the variables of the function that makes it and of its
/// callers: those of a function that has returned lay there. They are reported.
#[inline(always)]
pub(crate) fn above_stack(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mask: u32,
    (size, write): (u32, bool),
) -> u32 {
    let end = ctx.local_base + ctx.code.local_bytes;
    let tops = ctx.block.warps[ctx.warp].frames.get(ctx.frame as usize);
    let tops = tops.and_then(|f| f.as_ref()?.tops.as_deref());
    if mask == ALL
        && tops.is_none()
        && let Some(last) = end.checked_sub(size)
        && u32::within(off, 0, last, 0)
    {
        return 0;
    }
    let mut beyond = 0;
    each(mask, |l| {
        let end = tops.map_or(end, |tops| tops[l]);
        beyond |= u32::from(off[l].saturating_add(size) > end) << l;
    });
    each(beyond, |l| {
        left_frame(ctx, i, l as u32, (off[l], size, write))
    });
    beyond
}

#[cold]
fn left_frame(ctx: &mut Ctx<'_>, i: &DecodedInst, lane: u32, (at, size, write): (u32, u32, bool)) {
    let kind = if write {
        AccessKind::Write
    } else {
        AccessKind::Read
    };
    let finding = ThreadFinding {
        kind: FindingKind::UseAfterFree,
        access: Access {
            kind,
            space: MemSpace::Local,
            addr: u64::from(at),
            len: u64::from(size),
        },
        note: "above the stack, where functions that have returned had their variables".to_owned(),
        allocation: None,
        other: None,
    };
    report(ctx, i, lane, finding);
}

/// The lanes whose access, of (bytes, kind), leaves its variable in local memory; reported.
pub(crate) fn beyond_local(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mask: u32,
    variable: u32,
    (size, kind): (u32, AccessKind),
) -> BeyondVariable {
    let base = ctx.local_base;
    variables::beyond(ctx, i, off, mask, variable, (size, kind, base))
}

/// Checks whether what an access inside local memory reads was written, and records what it
/// writes.
pub(crate) fn local(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mask: u32,
    size: u32,
    write: bool,
) {
    let warp = ctx.warp;
    let mut m = mask;
    while m != 0 {
        let l = m.trailing_zeros();
        m &= m - 1;
        let mut unread = 0u32;
        let mut a = off[l as usize];
        let end = a + size;
        while a < end {
            let next = ((a & !3) + 4).min(end);
            let bytes = ((1u8 << (next - a)) - 1) << (a & 3);
            let Some(init) = ctx.block.warps[warp]
                .local_init
                .get_mut((a / 4) as usize * 32 + l as usize)
            else {
                break;
            };
            if write {
                *init |= bytes;
            } else {
                // A word of which some bytes were written is a structure copied with its padding.
                if bytes & *init == 0 {
                    unread += bytes.count_ones();
                }
            }
            a = next;
        }
        if unread != 0 {
            let access = Access {
                kind: AccessKind::Read,
                space: MemSpace::Local,
                addr: u64::from(off[l as usize]),
                len: u64::from(size),
            };
            let note = format!("{unread} of its bytes were never written");
            report(
                ctx,
                i,
                l,
                ThreadFinding {
                    kind: FindingKind::Uninitialised,
                    access,
                    note,
                    allocation: None,
                    other: None,
                },
            );
        }
    }
}
