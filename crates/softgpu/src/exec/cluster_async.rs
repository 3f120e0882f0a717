//! `st.async` and `red.async`: accesses to shared memory of the cluster, whose completion an
//! mbarrier there reports.
//!
//! One is executed when it is issued. For the checks it is unordered with whatever else touches its
//! bytes but for what is before its issue, and behind the mbarrier's phase.

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::checks::{self, CheckedAccess};
use super::cluster::{ClusterPlace, cluster_place, in_memory_of, reachable};
use super::cluster_mbarrier::complete_tx;
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, handlers_plain};
use super::lower::{AddressOperand, Ext, Lower, LowerError, Lowered, ModList, Opd, bad, operand};
use super::registers::{RowOperand, each};
use super::tags::{offset_of, shared_number};
use super::width::bits;
use crate::check::Strength;
use crate::report::{Access, AccessKind, MemSpace};

/// What it does with a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum AsyncOp {
    Store,
    Add,
    Inc,
    Dec,
    Min,
    Max,
    MinSigned,
    MaxSigned,
    And,
    Or,
    Xor,
}

const OPS: [AsyncOp; 11] = [
    AsyncOp::Store,
    AsyncOp::Add,
    AsyncOp::Inc,
    AsyncOp::Dec,
    AsyncOp::Min,
    AsyncOp::Max,
    AsyncOp::MinSigned,
    AsyncOp::MaxSigned,
    AsyncOp::And,
    AsyncOp::Or,
    AsyncOp::Xor,
];

impl AsyncOp {
    /// The new value of a word of 32 bits, or of 64 for `add`.
    fn of(self, old: u64, v: u64) -> u64 {
        match self {
            AsyncOp::Store => v,
            AsyncOp::Add => old.wrapping_add(v),
            AsyncOp::Inc if old >= v => 0,
            AsyncOp::Inc => old + 1,
            AsyncOp::Dec if old == 0 || old > v => v,
            AsyncOp::Dec => old - 1,
            AsyncOp::Min => old.min(v),
            AsyncOp::Max => old.max(v),
            AsyncOp::MinSigned => (old as i32).min(v as i32) as u32 as u64,
            AsyncOp::MaxSigned => (old as i32).max(v as i32) as u32 as u64,
            AsyncOp::And => old & v,
            AsyncOp::Or => old | v,
            AsyncOp::Xor => old ^ v,
        }
    }
}

/// In `imm`: elements are 64 bits wide.
const LONG: u64 = 1 << 40;
const OP_SHIFT: u32 = 41;

/// `a` the address, `b` that of the mbarrier, both generic or shared; `ext` from `x` on the number
/// of elements and the elements.
struct AsyncAccess<const CHECK: bool>;
impl<const CHECK: bool> Exec for AsyncAccess<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let op = OPS[(i.imm >> OP_SHIFT) as usize & 15];
        let count = ctx.code.ext[i.x as usize];
        let size = if i.imm & LONG != 0 { 8 } else { 4 };
        let kind = match op {
            AsyncOp::Store => AccessKind::AsyncCopy,
            _ => AccessKind::Atomic,
        };
        let mut access = CheckedAccess::plain(size * count, kind);
        if kind == AccessKind::Atomic {
            access.strength = Strength::Strong;
        }
        let (to, bar) = (ctx.rows.row::<u64>(i.a), ctx.rows.row::<u64>(i.b));
        each(ctx.mask, |l| {
            let whole = |addr: u64, len: u32| Access {
                kind,
                space: MemSpace::Shared,
                addr,
                len: len.into(),
            };
            let (Some(at), Some(bar)) = (shared_number(to[l]), shared_number(bar[l])) else {
                ctx.illegal(i, l as u32, whole(to[l], access.size));
                return;
            };
            let rank = match cluster_place(ctx, at) {
                ClusterPlace::Own(_) => ctx.rank(),
                ClusterPlace::Other { .. } => match reachable(ctx, i, l, at, access) {
                    Some(rank) => rank,
                    None => return,
                },
            };
            let of_bar = match cluster_place(ctx, bar) {
                ClusterPlace::Own(_) => ctx.rank(),
                ClusterPlace::Other { rank, .. } => rank,
            };
            let (at, bar) = (offset_of(at), offset_of(bar));
            if of_bar != rank {
                checks::other_mbarrier(ctx, i, l as u32, (rank, at), of_bar, access);
            }
            // The mbarrier is taken for one of the block that the data go to.
            if CHECK && !checks::asynchronous(ctx, i, l as u32, (rank, at, bar), access) {
                return;
            }
            let done = in_memory_of(ctx, rank, |ctx| {
                let len = ctx.block.shared.len() as u64;
                if u64::from(at) + u64::from(access.size) > len || u64::from(bar) + 8 > len {
                    ctx.illegal(i, l as u32, whole(at.into(), access.size));
                    return false;
                }
                if !at.is_multiple_of(access.size) || !bar.is_multiple_of(8) {
                    ctx.misaligned(i, l as u32, whole(at.into(), access.size));
                    return false;
                }
                for k in 0..count {
                    let o = RowOperand::from_bits(ctx.code.ext[(i.x + 1 + k) as usize]);
                    let place = (at + k * size) as usize;
                    let value = match size {
                        8 => ctx.rows.lane::<u64>(o, l),
                        _ => u64::from(ctx.rows.lane::<u32>(o, l)),
                    };
                    let cell = &mut ctx.block.shared[place..place + size as usize];
                    let mut old = [0; 8];
                    old[..size as usize].copy_from_slice(cell);
                    let new = op.of(u64::from_le_bytes(old), value);
                    cell.copy_from_slice(&new.to_le_bytes()[..size as usize]);
                }
                true
            });
            if done == Some(true) {
                complete_tx(ctx, i, l, (rank, bar), access.size);
            }
        });
    }
}

/// A shared or generic address as a 64-bit value.
fn address(l: &mut Lower<'_, '_>, o: &Ast) -> Lowered<Opd> {
    let AddressOperand::Value {
        base, wide, offset, ..
    } = l.address(o)?
    else {
        return bad("an address in shared memory is needed");
    };
    let base = l.resize(base, if wide { 2 } else { 1 }, 2, false);
    if offset == 0 {
        return Ok(base);
    }
    let (t, c) = (l.temp_rows(2), l.c64(i64::from(offset) as u64));
    l.prepare(super::basics::add64(), Opd::Def(t), base, c, Opd::None);
    Ok(Opd::Use(t))
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let by_bytes = m.has(Word::MbarrierCompleteTxBytes);
    if !matches!(i.op, Op::St | Op::Red) || !by_bytes {
        return Err(LowerError::Unsupported);
    }
    let ty = m
        .types()
        .last()
        .ok_or_else(|| LowerError::Bad("a type is missing".to_owned()))?;
    let n = match m.any(&[Word::V2, Word::V4]) {
        Some(Word::V2) => 2,
        Some(_) => 4,
        None => 1,
    };
    let signed = ty == Ty::S32;
    let op = match m.any(&[
        Word::Add,
        Word::Inc,
        Word::Dec,
        Word::Min,
        Word::Max,
        Word::And,
        Word::Or,
        Word::Xor,
    ]) {
        None if i.op == Op::St => AsyncOp::Store,
        Some(Word::Add) => AsyncOp::Add,
        Some(Word::Inc) => AsyncOp::Inc,
        Some(Word::Dec) => AsyncOp::Dec,
        Some(Word::Min) if signed => AsyncOp::MinSigned,
        Some(Word::Max) if signed => AsyncOp::MaxSigned,
        Some(Word::Min) => AsyncOp::Min,
        Some(Word::Max) => AsyncOp::Max,
        Some(Word::And) => AsyncOp::And,
        Some(Word::Or) => AsyncOp::Or,
        Some(Word::Xor) => AsyncOp::Xor,
        _ => return Err(LowerError::Unsupported),
    };
    let parts = match operand(i, 1)? {
        Ast::Vector(parts) => parts.clone(),
        one => vec![one.clone()],
    };
    if parts.len() != n {
        return bad("a vector of the wrong length");
    }
    let a = address(l, operand(i, 0)?)?;
    let bar = address(l, operand(i, 2)?)?;
    let mut ext = vec![Ext::Raw(n as u32)];
    for part in &parts {
        ext.push(Ext::Row(l.src(part, ty)?));
    }
    let h = if l.k.checks {
        handlers_plain::<AsyncAccess<true>>()
    } else {
        handlers_plain::<AsyncAccess<false>>()
    };
    let x = l.emit(h, Opd::None, a, bar, Opd::None);
    x.ext = ext;
    x.imm = ((op as u64) << OP_SHIFT) | if bits(ty) == 64 { LONG } else { 0 };
    Ok(())
}
