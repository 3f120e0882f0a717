//! Bulk copies between global memory and the shared memory of blocks, and their groups.
//!
//! A copy is done when it is issued: its bytes move, and its mbarrier counts them. Which thread may
//! touch them when, is the matter of checks ([`super::checks`]).
//!
//! Elsewhere: copies of tensors ([`super::bulk_tensor`]), reductions ([`super::bulk_reduce`]).

use fercuda_ptx::ast::{Imm, Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{ScalarType as Ty, Word};

use super::bulk_reduce::{Reduction, reduce_global, reduce_shared};
use super::bulk_tensor;
use super::checks;
use super::cluster::{RANK_SHIFT, own_offset, shared_number};
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, handlers_plain};
use super::lower::{AddressOperand, Ext, Lower, LowerError, Lowered, ModList, Opd, bad, operand};
use super::mbarrier::{complete_bytes, shared_address};
use super::registers::{RowOperand, each};
use crate::mem::Window;
use crate::report::{Access, AccessKind, FaultKind, MemSpace};

/// From where to where a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Direction {
    /// From global to shared memory; an mbarrier tells.
    Load,
    /// From shared to global memory; the thread's bulk group tells.
    Store,
    /// From shared memory to that of a block of the cluster; an mbarrier tells.
    Between,
}

const DIRECTIONS: [Direction; 3] = [Direction::Load, Direction::Store, Direction::Between];

/// In `imm`: the direction, then the reduction, then flags.
const REDUCTION_SHIFT: u32 = 8;
const MULTICAST: u64 = 1 << 32;

/// Row `n` of the further operands.
pub(crate) fn further(ctx: &Ctx<'_>, i: &DecodedInst, n: usize) -> RowOperand {
    RowOperand::from_bits(ctx.code.ext[i.x as usize + n])
}

/// The window of an access of a copy to global memory; faults if there is none.
pub(crate) fn global_window(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: usize,
    (addr, len): (u64, u64),
    write: bool,
) -> Option<Window> {
    let (spec, device) = (&ctx.run.spec, ctx.run.spec.device.ordinal);
    let window = if write {
        &mut ctx.write_window
    } else {
        &mut ctx.read_window
    };
    if !window.holds(addr, len)
        && let Some(found) = spec.space.window(device, addr, write)
    {
        *window = found;
    }
    if window.holds(addr, len) {
        return Some(*window);
    }
    let kind = if write {
        AccessKind::AsyncCopy
    } else {
        AccessKind::Read
    };
    let access = Access {
        kind,
        space: MemSpace::Global,
        addr,
        len,
    };
    ctx.illegal(i, lane as u32, access);
    None
}

/// The offset of `len` bytes of the own block's shared memory, a multiple of `align`.
pub(crate) fn shared_place(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: usize,
    (address, len): (u64, u64),
    align: u32,
) -> Option<u32> {
    let access = Access {
        kind: AccessKind::AsyncCopy,
        space: MemSpace::Shared,
        addr: address,
        len,
    };
    own_offset(ctx, i, lane, address, (access, align))
}

/// The offset of the mbarrier that a copy names.
pub(crate) fn mbarrier_place(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: usize,
    address: u64,
) -> Option<u32> {
    let access = Access {
        kind: AccessKind::Atomic,
        space: MemSpace::Shared,
        addr: address,
        len: 8,
    };
    own_offset(ctx, i, lane, address, (access, 8))
}

/// The addresses that a copy with a mask of blocks goes to: the same offset in each of them.
pub(crate) fn in_each_block(address: u64, blocks: Option<u32>) -> impl Iterator<Item = u64> {
    let mask = blocks.map_or(1, |m| m & 0xffff);
    let number = shared_number(address);
    (0..16u32)
        .filter(move |r| mask >> r & 1 != 0)
        .map(move |rank| match (blocks, number) {
            (Some(_), Some(at)) => {
                u64::from((rank + 1) << RANK_SHIFT | at & ((1 << RANK_SHIFT) - 1))
            }
            _ => address,
        })
}

/// What an instruction of the bulk copies says of a lane's copy.
struct BulkCopy {
    dst: u64,
    src: u64,
    len: u32,
    mbarrier: u64,
    blocks: Option<u32>,
    reduction: Option<Reduction>,
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
                reduction: Reduction::from_bits((i.imm >> REDUCTION_SHIFT) as u16),
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

/// A global address as a 64-bit value.
pub(crate) fn global_address(l: &mut Lower<'_, '_>, o: &Ast) -> Lowered<Opd> {
    let AddressOperand::Value {
        base, wide, offset, ..
    } = l.address(o)?
    else {
        return bad("a global address is needed");
    };
    let base = l.resize(base, if wide { 2 } else { 1 }, 2, false);
    if offset == 0 {
        return Ok(base);
    }
    let (t, c) = (l.temp_rows(2), l.c64(i64::from(offset) as u64));
    l.prepare(super::basics::add64(), Opd::Def(t), base, c, Opd::None);
    Ok(Opd::Use(t))
}

/// The direction by the state spaces of destination and source.
pub(crate) fn direction(m: &ModList<'_>) -> Lowered<Direction> {
    let spaces = [
        Word::Global,
        Word::Shared,
        Word::SharedCta,
        Word::SharedCluster,
    ];
    let found: Vec<Word> = m.words().filter(|w| spaces.contains(w)).collect();
    match found.as_slice() {
        [Word::Global, _] => Ok(Direction::Store),
        [_, Word::Global] => Ok(Direction::Load),
        [_, _] => Ok(Direction::Between),
        _ => bad("two state spaces are needed"),
    }
}

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
        true => Some(Reduction::of(m)?),
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
        | u64::from(Reduction::bits(reduction)) << REDUCTION_SHIFT
        | if multicast { MULTICAST } else { 0 };
    Ok(())
}
