//! Asynchronous copies of each thread: `cp.async`.
//!
//! A copy completes when it is issued or, with late copies configured, at the wait that requires
//! it.

use std::ops::Range;

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::access::{NOWHERE, WIDE, allow, inside, offsets};
use super::checks::{self, CheckedAccess};
use super::ctx::{Ctx, DecodedInst};
use super::landing::{land, land_groups};
use super::lanes::{Exec, handlers_plain};
use super::lower::{
    AddressOperand, Lower, LowerError, Lowered, ModList, Opd, PredRef, bad, operand,
};
use super::registers::{LANES, each};
use super::state::PendingCopy;
use super::{bulk, mbarrier, tensormap};
use crate::report::{AccessKind, MemSpace};

/// `cp.async`: `a` the shared address, `b` the global one, `c` the bytes to read, `imm` the bytes
/// to write.
struct CopyAsync<const CHECK: bool>;
impl<const CHECK: bool> Exec for CopyAsync<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let len = i.x & 0xff;
        let dst = offsets(ctx, i);
        let src = ctx.rows.row::<u64>(i.b);
        let mut read = ctx.rows.row::<u32>(i.c);
        let mut mask = ctx.mask;
        let offset = (i.imm as i64 >> 40) as u64;
        let src: [u64; LANES] = src.map(|a| a.wrapping_add(offset));
        let shared_len = ctx.block.shared.len();
        mask = inside(
            ctx,
            i,
            &dst,
            mask,
            len,
            shared_len,
            AccessKind::AsyncCopy,
            MemSpace::Shared,
        );
        if CHECK {
            for part in [4u32, 8, 16] {
                let these = (0..32)
                    .filter(|&l| read[l] == part)
                    .fold(0, |m, l| m | 1u32 << l)
                    & mask;
                if these != 0 {
                    let plain = CheckedAccess::plain(part, AccessKind::Read);
                    let refused = these & !checks::global(ctx, i, &src, these, plain);
                    // What may not be read has been reported; the copy goes on with zeros.
                    each(refused, |l| read[l] = 0);
                }
            }
            let mut copy = CheckedAccess::plain(len, AccessKind::AsyncCopy);
            copy.variable = i.x >> 8;
            mask = checks::shared(ctx, i, &dst, mask, copy);
        }
        let late = ctx.run.late_copies;
        let pc = if CHECK {
            ctx.run.prepared.global_pc(ctx.code, ctx.pc_of(i))
        } else {
            0
        };
        let warp = ctx.warp;
        for l in (0..32).filter(|&l| (mask >> l) & 1 != 0) {
            let n = read[l].min(len);
            if n != 0
                && !allow(
                    ctx,
                    i,
                    l,
                    src[l] & !u64::from(len - 1),
                    u64::from(len.min(n.next_power_of_two())),
                    AccessKind::Read,
                )
            {
                continue;
            }
            let w = &mut ctx.block.warps[warp];
            let copy = PendingCopy {
                lane: l as u8,
                group: w.groups.get(l).copied().unwrap_or(0),
                dst: dst[l],
                src: src[l],
                len,
                src_len: n,
                barrier: NOWHERE,
                pc,
            };
            if late {
                w.copies.push(copy);
                if CHECK && n != 0 {
                    read_later(&mut ctx.block.sources, src[l], n);
                }
            } else {
                land(ctx, copy);
            }
        }
    }
}

/// Extends the range of all sources by `len` bytes at `src`.
fn read_later(sources: &mut Range<u64>, src: u64, len: u32) {
    let end = src + u64::from(len);
    *sources = if sources.is_empty() {
        src..end
    } else {
        sources.start.min(src)..sources.end.max(end)
    };
}

struct CommitGroup;
impl Exec for CommitGroup {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, _: &DecodedInst) {
        let mask = ctx.mask;
        let w = ctx.w();
        w.groups.resize(LANES, 0);
        for l in (0..32).filter(|&l| (mask >> l) & 1 != 0) {
            w.groups[l] += 1;
        }
    }
}

/// `x` groups may stay under way; all must land when `imm` is 1.
struct WaitGroups;
impl Exec for WaitGroups {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let mask = ctx.mask;
        land_groups(ctx, mask, (i.imm == 0).then_some(i.x));
    }
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Option<Lowered<()>> {
    match i.op {
        Op::Cp => Some(cp(l, i, m)),
        Op::Mbarrier => Some(mbarrier::lower(l, i, m)),
        Op::Tensormap => Some(tensormap::lower(l, i, m)),
        _ => None,
    }
}

fn cp(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    if m.has(Word::Bulk) {
        return bulk::lower(l, i, m);
    }
    if !m.has(Word::Async) {
        return Err(LowerError::Unsupported);
    }
    let none = Opd::None;
    if m.has(Word::CommitGroup) {
        l.emit(handlers_plain::<CommitGroup>(), none, none, none, none);
        return Ok(());
    }
    if m.has(Word::WaitAll) || m.has(Word::WaitGroup) {
        let keep = match i.operands.first() {
            Some(Ast::Imm(fercuda_ptx::ast::Imm::Int { value, .. })) => *value as u32,
            _ => 0,
        };
        let x = l.emit(handlers_plain::<WaitGroups>(), none, none, none, none);
        x.x = keep;
        x.imm = u64::from(m.has(Word::WaitAll));
        return Ok(());
    }
    if m.has(Word::Mbarrier) {
        return mbarrier::lower_copy_arrive(l, operand(i, 0)?, m.has(Word::Noinc));
    }
    let [dst, src, size, rest @ ..] = i.operands.as_slice() else {
        return bad("too few operands");
    };
    let Ast::Imm(fercuda_ptx::ast::Imm::Int { value: len, .. }) = size else {
        return bad("the size must be constant");
    };
    if !matches!(len, 4 | 8 | 16) {
        return bad("a size other than 4, 8 or 16");
    }
    let AddressOperand::Value {
        base, wide, offset, ..
    } = l.address(dst)?
    else {
        return bad("a shared address is needed");
    };
    let AddressOperand::Value {
        base: from,
        wide: from_wide,
        offset: from_offset,
        ..
    } = l.address(src)?
    else {
        return bad("a global address is needed");
    };
    let from = l.resize(from, if from_wide { 2 } else { 1 }, 2, false);
    if !(-(1 << 23)..1 << 23).contains(&from_offset) {
        return Err(LowerError::Unsupported);
    }
    // A fourth operand is the bytes to read, or a predicate that says to read none, or a cache
    // policy.
    let read = match rest.first() {
        Some(o) if !m.has(Word::L2CacheHint) || rest.len() > 1 => match l.pred(o) {
            Ok(p) if !matches!(o, Ast::Imm(_)) => {
                let t = l.temp_rows(1);
                let flip = match p {
                    PredRef::Use(v, n) => PredRef::Use(v, !n),
                    p => p,
                };
                let x = l.prepare(super::basics::from_pred(), Opd::Def(t), none, none, none);
                x.x_pred = Some(flip);
                x.imm = *len as u64;
                Opd::Use(t)
            }
            _ => l.src(o, Ty::U32)?,
        },
        _ => l.c32(*len as u32),
    };
    let h = if l.k.checks {
        handlers_plain::<CopyAsync<true>>()
    } else {
        handlers_plain::<CopyAsync<false>>()
    };
    let variable = l.variable_of(dst);
    let x = l.emit(h, none, base, from, read);
    x.x = *len as u32 | variable << 8;
    x.imm = u64::from(offset as u32)
        | if wide { WIDE } else { 0 }
        | (((from_offset as i64 as u64) & 0xff_ffff) << 40);
    Ok(())
}
