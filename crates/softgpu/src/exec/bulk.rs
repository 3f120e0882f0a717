//! Bulk copies between global memory and the shared memory of blocks, and their groups.
//!
//! A copy is done when it is issued: its bytes move, and its mbarrier counts them. Which thread may
//! touch them when, is the matter of checks ([`super::checks`]).
//!
//! Elsewhere: copies of tensors ([`super::bulk_tensor`]), reductions ([`super::bulk_reduce`]).

use fercuda_ptx::ast::{Imm, Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{ScalarType as Ty, Word};

use super::bulk_peers::{PeerCopy, deliver, other_rank};
use super::bulk_places::{
    DIRECTIONS, Direction, direction, further, global_address, global_window, in_each_block,
    mbarrier_place, shared_place,
};
use super::bulk_reduce::{BulkReduction, reduce_global, reduce_shared};
use super::bulk_tensor;
use super::checks;
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, handlers_plain};
use super::lower::{Ext, Lower, LowerError, Lowered, ModList, Opd, bad, operand};
use super::mbarrier::{complete_bytes, shared_address};
use super::registers::each;
use crate::report::{Access, AccessKind, FaultKind, MemSpace};

/// In `imm`: the direction, then the reduction, then flags.
const REDUCTION_SHIFT: u32 = 8;
const MULTICAST: u64 = 1 << 32;

/// What an instruction of the bulk copies says of a lane's copy.
struct BulkCopy {
    dst: u64,
    src: u64,
    len: u32,
    mbarrier: u64,
    blocks: Option<u32>,
    reduction: Option<BulkReduction>,
}

impl BulkCopy {
    fn to_peer(&self, dst: u64, mbarrier: u64) -> PeerCopy {
        PeerCopy {
            dst,
            mbarrier,
            reach: self.len,
            bytes: self.len,
            align: 16,
        }
    }
}

/// `a` the destination, `b` the source, `c` the bytes; further the mbarrier and the mask of blocks.
struct Bulk<const CHECK: bool>;
impl<const CHECK: bool> Exec for Bulk<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let direction = DIRECTIONS[(i.imm & 3) as usize];
        let mask = ctx.mask;
        each(mask, |l| {
            let copy = BulkCopy {
                dst: ctx.rows.lane(i.a, l),
                src: ctx.rows.lane(i.b, l),
                len: ctx.rows.lane(i.c, l),
                mbarrier: ctx.rows.lane(further(ctx, i, 0), l),
                blocks: (i.imm & MULTICAST != 0).then(|| ctx.rows.lane(further(ctx, i, 1), l)),
                reduction: BulkReduction::from_bits((i.imm >> REDUCTION_SHIFT) as u16),
            };
            if !copy.len.is_multiple_of(16) {
                let why = format!("a bulk copy of {} bytes, no multiple of 16", copy.len);
                ctx.fail(i, l as u32, FaultKind::IllegalInstruction(why));
            } else if ctx.trouble.is_none() && copy.len > 0 {
                let done = match direction {
                    Direction::Load => load::<CHECK>(ctx, i, l, &copy),
                    Direction::Store => store::<CHECK>(ctx, i, l, &copy),
                    Direction::Between => between::<CHECK>(ctx, i, l, &copy),
                };
                debug_assert!(done.is_some() || ctx.trouble.is_some());
            }
        });
    }
}

/// An address of global memory that a copy of 16 bytes and more accepts.
fn aligned(ctx: &mut Ctx<'_>, i: &DecodedInst, l: usize, addr: u64, len: u32) -> Option<u64> {
    if addr.is_multiple_of(16) {
        return Some(addr);
    }
    let access = Access {
        kind: AccessKind::AsyncCopy,
        space: MemSpace::Global,
        addr,
        len: len.into(),
    };
    checks::refused(ctx, i, l, access, 16);
    ctx.misaligned(i, l as u32, access);
    None
}

fn load<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    l: usize,
    c: &BulkCopy,
) -> Option<()> {
    let len = u64::from(c.len);
    let src = aligned(ctx, i, l, c.src, c.len)?;
    let targets: Vec<(u64, u64)> = in_each_block(c.dst, c.blocks)
        .zip(in_each_block(c.mbarrier, c.blocks))
        .collect();
    for (dst, mbarrier) in targets {
        if other_rank(ctx, dst).is_some() {
            let copy = c.to_peer(dst, mbarrier);
            deliver::<CHECK>(ctx, i, l, copy, |ctx, dst| {
                let window = global_window(ctx, i, l, (src, len), false)?;
                window.read_bytes(src, &mut ctx.block.shared[dst as usize..][..c.len as usize]);
                Some(())
            })?;
            continue;
        }
        let dst = shared_place(ctx, i, l, (dst, len), 16)?;
        let at = mbarrier_place(ctx, i, l, mbarrier)?;
        let mut number = 0;
        if CHECK {
            number = checks::begin_copy(ctx, i, l, Some(at));
            checks::copy_shared(ctx, i, l, number, (dst, c.len), true);
            let kind = AccessKind::Read;
            if !checks::copy_global(ctx, i, l, number, (src, len), kind) {
                checks::complete_copy(ctx, l, at, number);
                complete_bytes(ctx, i, l, at, c.len);
                continue;
            }
        }
        let window = global_window(ctx, i, l, (src, len), false)?;
        let bytes = &mut ctx.block.shared[dst as usize..][..c.len as usize];
        window.read_bytes(src, bytes);
        if CHECK {
            checks::complete_copy(ctx, l, at, number);
        }
        complete_bytes(ctx, i, l, at, c.len);
    }
    Some(())
}

fn store<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    l: usize,
    c: &BulkCopy,
) -> Option<()> {
    let len = u64::from(c.len);
    let dst = aligned(ctx, i, l, c.dst, c.len)?;
    let src = shared_place(ctx, i, l, (c.src, len), 16)?;
    if CHECK {
        let number = checks::begin_copy(ctx, i, l, None);
        checks::copy_shared(ctx, i, l, number, (src, c.len), false);
        let kind = match c.reduction {
            Some(_) => AccessKind::Atomic,
            None => AccessKind::Write,
        };
        if !checks::copy_global(ctx, i, l, number, (dst, len), kind) {
            return Some(());
        }
    }
    let window = global_window(ctx, i, l, (dst, len), true)?;
    let bytes = &ctx.block.shared[src as usize..][..c.len as usize];
    match c.reduction {
        None => window.write_bytes(dst, bytes),
        Some(reduction) => reduce_global(window, dst, bytes, reduction),
    }
    Some(())
}

fn between<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    l: usize,
    c: &BulkCopy,
) -> Option<()> {
    let len = u64::from(c.len);
    if other_rank(ctx, c.dst).is_some() {
        let src = shared_place(ctx, i, l, (c.src, len), 16)?;
        let bytes = ctx.block.shared[src as usize..][..c.len as usize].to_vec();
        let copy = c.to_peer(c.dst, c.mbarrier);
        return deliver::<CHECK>(ctx, i, l, copy, |ctx, dst| {
            let target = &mut ctx.block.shared[dst as usize..][..c.len as usize];
            match c.reduction {
                None => target.copy_from_slice(&bytes),
                Some(reduction) => reduce_shared(target, &bytes, reduction),
            }
            Some(())
        });
    }
    let dst = shared_place(ctx, i, l, (c.dst, len), 16)?;
    let src = shared_place(ctx, i, l, (c.src, len), 16)?;
    let at = mbarrier_place(ctx, i, l, c.mbarrier)?;
    let mut number = 0;
    if CHECK {
        number = checks::begin_copy(ctx, i, l, Some(at));
        checks::copy_shared(ctx, i, l, number, (src, c.len), false);
        checks::copy_shared(ctx, i, l, number, (dst, c.len), true);
    }
    let bytes = ctx.block.shared[src as usize..][..c.len as usize].to_vec();
    let target = &mut ctx.block.shared[dst as usize..][..c.len as usize];
    match c.reduction {
        None => target.copy_from_slice(&bytes),
        Some(reduction) => reduce_shared(target, &bytes, reduction),
    }
    if CHECK {
        checks::complete_copy(ctx, l, at, number);
    }
    complete_bytes(ctx, i, l, at, c.len);
    Some(())
}

/// Ends the bulk groups of the lanes, with checks.
struct CommitBulk;
impl Exec for CommitBulk {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, _: &DecodedInst) {
        checks::commit_bulk(ctx);
    }
}

/// Waits for bulk groups, with checks: `x` may stay, `imm` 1 if reading is enough.
struct WaitBulk;
impl Exec for WaitBulk {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        checks::wait_bulk(ctx, i.x, i.imm & 1 != 0);
    }
}

// ---- lowering -------------------------------------------------------------------------------

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let none = Opd::None;
    if m.has(Word::CommitGroup) {
        if l.k.checks {
            l.emit(handlers_plain::<CommitBulk>(), none, none, none, none);
        }
        return Ok(());
    }
    if m.has(Word::WaitGroup) {
        if l.k.checks {
            let keep = match i.operands.first() {
                Some(Ast::Imm(Imm::Int { value, .. })) => *value as u32,
                _ => return bad("the number of groups must be constant"),
            };
            let x = l.emit(handlers_plain::<WaitBulk>(), none, none, none, none);
            x.x = keep;
            x.imm = u64::from(m.has(Word::Read));
        }
        return Ok(());
    }
    if m.has(Word::CpMask) {
        return Err(LowerError::Unsupported);
    }
    l.k.communicates = true;
    if m.has(Word::Tensor) {
        return bulk_tensor::lower(l, i, m);
    }
    if m.has(Word::Prefetch) {
        return Ok(());
    }
    let reduction = match m.has(Word::Reduce) {
        true => Some(BulkReduction::named(m)?),
        false => None,
    };
    let direction = direction(m)?;
    let (dst, src) = (operand(i, 0)?, operand(i, 1)?);
    let (dst, src) = match direction {
        Direction::Load => (shared_address(l, dst)?, global_address(l, src)?),
        Direction::Store => (global_address(l, dst)?, shared_address(l, src)?),
        Direction::Between => (shared_address(l, dst)?, shared_address(l, src)?),
    };
    let len = l.src(operand(i, 2)?, Ty::U32)?;
    let mbarrier = match direction {
        Direction::Store => l.c64(0),
        _ => shared_address(l, operand(i, 3)?)?,
    };
    let multicast = m.has(Word::MulticastCluster);
    let blocks = match multicast {
        true => l.src(operand(i, 4)?, Ty::U16)?,
        false => l.c32(1),
    };
    let h = if l.k.checks {
        handlers_plain::<Bulk<true>>()
    } else {
        handlers_plain::<Bulk<false>>()
    };
    let x = l.emit(h, none, dst, src, len);
    x.ext = vec![Ext::Row(mbarrier), Ext::Row(blocks)];
    x.imm = direction as u64
        | u64::from(BulkReduction::bits(reduction)) << REDUCTION_SHIFT
        | if multicast { MULTICAST } else { 0 };
    Ok(())
}
