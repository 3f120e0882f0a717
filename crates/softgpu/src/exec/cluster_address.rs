//! Addresses of shared memory of a cluster: `mapa`, `getctarank`.

use fercuda_ptx::ast::Inst as Tree;
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::checks;
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, Handlers, handlers_plain};
use super::lower::{Lower, Lowered, ModList, Opd, operand};
use super::registers::each;
use super::tags::SHARED_TAG;
use super::tags::{cluster_address, offset_of, rank_of};
use super::width::rows;

/// `d = the address of a in the block of rank b`; of 64 bits if `WIDE`. `imm`: what generic
/// addresses have besides.
struct Mapa<const WIDE: bool>;
impl<const WIDE: bool> Exec for Mapa<WIDE> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let rank = ctx.rows.row::<u32>(i.b);
        let (mask, size) = (ctx.mask, ctx.run.cluster_size);
        let address: [u32; 32] = match WIDE {
            true => ctx.rows.row::<u64>(i.a).map(|a| a as u32),
            false => ctx.rows.row::<u32>(i.a),
        };
        let row: [u32; 32] =
            std::array::from_fn(|l| cluster_address(rank[l], offset_of(address[l])));
        if WIDE {
            let row = row.map(|a| u64::from(a) | i.imm);
            ctx.rows.set_row::<u64>(i.d, &row, mask);
        } else {
            ctx.rows.set_row::<u32>(i.d, &row, mask);
        }
        let mut wrong = 0;
        each(mask, |l| wrong |= u32::from(rank[l] >= size) << l);
        if wrong != 0 {
            let lane = wrong.trailing_zeros();
            checks::no_such_rank(ctx, i, lane, rank[lane as usize & 31]);
        }
    }
}

/// `d = the rank of the block in whose memory a is`.
struct RankOf<const WIDE: bool>;
impl<const WIDE: bool> Exec for RankOf<WIDE> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let (mask, own) = (ctx.mask, ctx.rank());
        let address: [u32; 32] = match WIDE {
            true => ctx.rows.row::<u64>(i.a).map(|a| a as u32),
            false => ctx.rows.row::<u32>(i.a),
        };
        let row = address.map(|a| rank_of(a).unwrap_or(own));
        ctx.rows.set_row::<u32>(i.d, &row, mask);
    }
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let ty = m.ty(0)?;
    let is_wide = rows(ty) == 2;
    let pick = |narrow: fn() -> Handlers, wide: fn() -> Handlers| match is_wide {
        true => wide(),
        false => narrow(),
    };
    let a = l.src(operand(i, 1)?, ty)?;
    if i.op == Op::Getctarank {
        let d = l.dst(operand(i, 0)?, Ty::U32)?;
        let h = pick(
            handlers_plain::<RankOf<false>>,
            handlers_plain::<RankOf<true>>,
        );
        l.emit(h, d, a, Opd::None, Opd::None);
        return Ok(());
    }
    let rank = l.src(operand(i, 2)?, Ty::U32)?;
    let d = l.dst(operand(i, 0)?, ty)?;
    let h = pick(handlers_plain::<Mapa<false>>, handlers_plain::<Mapa<true>>);
    let is_generic = !m.has(Word::SharedCluster);
    let x = l.emit(h, d, a, rank, Opd::None);
    x.imm = if is_generic { SHARED_TAG } else { 0 };
    Ok(())
}
