//! Places of bulk copies: directions, windows of global memory, offsets in shared memory.

use fercuda_ptx::ast::Operand as Ast;
use fercuda_ptx::words::Word;

use super::cluster::own_offset;
use super::ctx::{Ctx, DecodedInst};
use super::lower::{AddressOperand, Lower, Lowered, ModList, Opd, bad};
use super::registers::RowOperand;
use super::tags::{RANK_SHIFT, shared_number};
use crate::mem::Window;
use crate::report::{Access, AccessKind, MemSpace};

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

pub(crate) const DIRECTIONS: [Direction; 3] =
    [Direction::Load, Direction::Store, Direction::Between];

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
