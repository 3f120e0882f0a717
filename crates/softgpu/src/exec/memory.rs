//! Loads and stores: their behaviour by space, and their lowering.
//!
//! Elsewhere: what all memory accesses share ([`super::access`]), atomics ([`super::atomics`]).

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Space, Word};

use super::access::{
    BASED, LaneElement, STRONG, WIDE, addresses, admit_shared, by_tag, by_window, inside,
    local_get, local_put, local_word, offsets, read, write,
};
use super::basics;
use super::checks::{self, CheckedAccess, StoredValues};
use super::cluster::{placed, with_peers};
use super::convert;
use super::ctx::{Ctx, DecodedInst, FunctionCode};
use super::fixed_rows::{load_fixed_at, store_fixed_at};
use super::lanes::{Exec, Handlers, handlers_any, handlers_plain};
use super::lower::{AddressOperand, Ext, InstRole, Lower, LowerError, Lowered, ModList, Opd, bad};
use super::ordering::{ACQUIRE, RELEASE, SYSTEM, order_flags, strength};
use super::program::{Const, LaunchValue};
use super::registers::{ALL, LANES, RowOperand, each};
use super::runs::{load_run, store_run};
use super::tags::{LOCAL_TAG, PARAM_TAG, SHARED_TAG};
use super::width::{bits, is_signed, rows};
use crate::report::{AccessKind, MemSpace};
const COUNT_SHIFT: u32 = 40;
/// The number of the variable that an address lies in.
const VARIABLE_SHIFT: u32 = 44;
/// Most bytes that a lane loads or stores at once.
const MAX_ACCESS_BYTES: u32 = 32;

/// Vector length of a memory instruction.
#[inline(always)]
fn count(i: &DecodedInst) -> usize {
    (i.imm >> COUNT_SHIFT) as usize & 15
}

/// Registers of a memory instruction's elements. `one` is where a single one's name is kept.
#[inline(always)]
fn parts<'a>(code: &'a FunctionCode, i: &DecodedInst, one: &'a mut [u32; 1]) -> &'a [u32] {
    match count(i) {
        1 => {
            *one = [i.d.bits()];
            one
        }
        n => &code.ext[i.x as usize..][..n],
    }
}

/// A load or store of `parts`, as the checks see it.
#[inline(always)]
fn access_of<'a, T: LaneElement>(
    ctx: &Ctx<'_>,
    i: &DecodedInst,
    parts: &'a [u32],
    kind: AccessKind,
) -> CheckedAccess<'a> {
    let element = T::SIZE;
    let values = (kind == AccessKind::Write).then_some(StoredValues { parts, element });
    CheckedAccess {
        size: (element * parts.len()) as u32,
        kind,
        strength: strength(i.imm, ctx.run.check_options),
        values,
        variable: (i.imm >> VARIABLE_SHIFT) as u32 & 0xfff,
    }
}

#[inline(always)]
fn load_global<T: LaneElement, const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    addr: &[u64; LANES],
    mask: u32,
) {
    let mut one = [0];
    let parts = parts(ctx.code, i, &mut one);
    let access = access_of::<T>(ctx, i, parts, AccessKind::Read);
    let checked = by_window::<CHECK>(ctx, i, addr, mask, access, |ctx, window, mask| {
        read::<T, _>(&mut ctx.rows, parts, &window, addr, mask);
    });
    each(mask & !checked, |l| {
        for &d in parts {
            let d = RowOperand::from_bits(d);
            ctx.rows.set_lane(d, l, T::Raw::default());
        }
    });
}

#[inline(always)]
fn store_global<T: LaneElement, const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    addr: &[u64; LANES],
    mask: u32,
) {
    let mut one = [0];
    let parts = parts(ctx.code, i, &mut one);
    let access = access_of::<T>(ctx, i, parts, AccessKind::Write);
    by_window::<CHECK>(ctx, i, addr, mask, access, |ctx, mut window, mask| {
        write::<T, _>(&ctx.rows, parts, &mut window, addr, mask);
    });
}

#[inline(always)]
fn load_shared<T: LaneElement, const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mask: u32,
) {
    let mut one = [0];
    let parts = parts(ctx.code, i, &mut one);
    let access = access_of::<T>(ctx, i, parts, AccessKind::Read);
    let mask = admit_shared::<CHECK>(ctx, i, off, mask, access);
    read::<T, [u8]>(&mut ctx.rows, parts, &ctx.block.shared, off, mask);
}

#[inline(always)]
fn store_shared<T: LaneElement, const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mask: u32,
) {
    let mut one = [0];
    let parts = parts(ctx.code, i, &mut one);
    let access = access_of::<T>(ctx, i, parts, AccessKind::Write);
    let mask = admit_shared::<CHECK>(ctx, i, off, mask, access);
    write::<T, [u8]>(&ctx.rows, parts, &mut ctx.block.shared, off, mask);
}

/// A load from shared memory of the cluster.
#[inline(always)]
fn load_cluster<T: LaneElement, const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    address: &[u32; LANES],
    mask: u32,
) {
    let to = placed(ctx, address, mask);
    if to.own != 0 {
        load_shared::<T, CHECK>(ctx, i, &to.at, to.own);
    }
    if to.away != 0 {
        let mut one = [0];
        let parts = parts(ctx.code, i, &mut one);
        let access = access_of::<T>(ctx, i, parts, AccessKind::Read);
        with_peers::<CHECK>(ctx, i, address, to.away, access, |ctx, at, mask| {
            read::<T, [u8]>(&mut ctx.rows, parts, &ctx.block.shared, at, mask);
        });
    }
}

/// A store to shared memory of the cluster.
#[inline(always)]
fn store_cluster<T: LaneElement, const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    address: &[u32; LANES],
    mask: u32,
) {
    let to = placed(ctx, address, mask);
    if to.own != 0 {
        store_shared::<T, CHECK>(ctx, i, &to.at, to.own);
    }
    if to.away != 0 {
        let mut one = [0];
        let parts = parts(ctx.code, i, &mut one);
        let access = access_of::<T>(ctx, i, parts, AccessKind::Write);
        with_peers::<CHECK>(ctx, i, address, to.away, access, |ctx, at, mask| {
            write::<T, [u8]>(&ctx.rows, parts, &mut ctx.block.shared, at, mask);
        });
    }
}

/// The lanes with an admitted access to local memory: it is in bounds, and what may be wrong with
/// it otherwise has been reported.
fn admit_local<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mut mask: u32,
    size: u32,
    kind: AccessKind,
) -> u32 {
    let mut elsewhere = 0;
    if CHECK {
        let variable = (i.imm >> VARIABLE_SHIFT) as u32 & 0xfff;
        let left = checks::beyond_local(ctx, i, off, mask, variable, (size, kind));
        mask &= !left.nowhere;
        elsewhere = left.elsewhere;
    }
    let len = ctx.w().local.len() / 8;
    mask = inside(ctx, i, off, mask, size, len, kind, MemSpace::Local);
    if CHECK {
        let is_write = kind == AccessKind::Write;
        elsewhere |= checks::above_stack(ctx, i, off, mask & !elsewhere, (size, is_write));
        checks::local(ctx, i, off, mask & !elsewhere, size, is_write);
    }
    mask
}

fn load_local<T: LaneElement, const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mut mask: u32,
) {
    let mut one = [0];
    let parts = parts(ctx.code, i, &mut one);
    let size = (T::SIZE * parts.len()) as u32;
    mask = admit_local::<CHECK>(ctx, i, off, mask, size, AccessKind::Read);
    let same = off.iter().fold(0, |x, o| x | o ^ off[0]) == 0;
    let words = &ctx.block.warps[ctx.warp].local;
    for (k, &d) in parts.iter().enumerate() {
        let (d, k) = (RowOperand::from_bits(d), (k * T::SIZE) as u32);
        if mask == ALL && same && T::SIZE == 4 {
            let mut row = [0u32; LANES];
            row.copy_from_slice(&words[local_word(off[0] + k, 0)..][..32]);
            ctx.rows.set_row(d, &row, ALL);
            continue;
        }
        each(mask, |l| {
            let v: T = local_get(words, off[l] + k, l);
            ctx.rows.set_lane(d, l, v.raw());
        });
    }
}

fn store_local<T: LaneElement, const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mut mask: u32,
) {
    let mut one = [0];
    let parts = parts(ctx.code, i, &mut one);
    let size = (T::SIZE * parts.len()) as u32;
    mask = admit_local::<CHECK>(ctx, i, off, mask, size, AccessKind::Write);
    let words = &mut ctx.block.warps[ctx.warp].local;
    for (k, &d) in parts.iter().enumerate() {
        let (d, k) = (RowOperand::from_bits(d), (k * T::SIZE) as u32);
        each(mask, |l| {
            local_put(words, off[l] + k, l, T::of(ctx.rows.lane(d, l)));
        });
    }
}

/// Loads from the kernel's parameters at computed offsets.
fn load_param<T: LaneElement>(ctx: &mut Ctx<'_>, i: &DecodedInst, off: &[u32; LANES], mask: u32) {
    let mut one = [0];
    let parts = parts(ctx.code, i, &mut one);
    let size = (T::SIZE * parts.len()) as u32;
    let params: &[u8] = &ctx.run.spec.params;
    let (kind, space) = (AccessKind::Read, MemSpace::Param);
    let mask = inside(ctx, i, off, mask, size, params.len(), kind, space);
    read::<T, [u8]>(&mut ctx.rows, parts, params, off, mask);
}

/// Spaces as const parameters.
const GLOBAL: u8 = 0;
const GENERIC: u8 = 1;
const SHARED: u8 = 2;
const LOCAL: u8 = 3;
const PARAM: u8 = 4;
/// Shared memory of the block's cluster.
const CLUSTER: u8 = 5;

/// Addresses in all lanes, with the base that all of them add.
#[inline(always)]
fn based(ctx: &Ctx<'_>, i: &DecodedInst) -> [u64; LANES] {
    let addresses = addresses(ctx, i);
    if i.imm & BASED == 0 {
        return addresses;
    }
    let base = ctx.rows.lane::<u64>(i.b, 0);
    addresses.map(|a| a.wrapping_add(base))
}

struct LoadOp<T, const SPACE: u8, const CHECK: bool>(std::marker::PhantomData<T>);
impl<T: LaneElement, const SPACE: u8, const CHECK: bool> Exec for LoadOp<T, SPACE, CHECK> {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let mask = ctx.mask;
        if CHECK && i.imm & ACQUIRE != 0 || i.imm & STRONG != 0 {
            ctx.waits += 1;
            ctx.spins = ctx.spins.wrapping_add(1);
        }
        if !CHECK && matches!(SPACE, SHARED | GLOBAL | GENERIC) {
            let mut one = [0];
            let parts = parts(ctx.code, i, &mut one);
            let found = match SPACE {
                SHARED => load_run::<T, true>(ctx, i, parts),
                _ => load_run::<T, false>(ctx, i, parts),
            };
            if found {
                return;
            }
        }
        match SPACE {
            SHARED => load_shared::<T, CHECK>(ctx, i, &offsets(ctx, i), mask),
            CLUSTER => load_cluster::<T, CHECK>(ctx, i, &offsets(ctx, i), mask),
            LOCAL => load_local::<T, CHECK>(ctx, i, &offsets(ctx, i), mask),
            PARAM => load_param::<T>(ctx, i, &offsets(ctx, i), mask),
            GLOBAL => load_global::<T, CHECK>(ctx, i, &based(ctx, i), mask),
            _ => {
                let addr = based(ctx, i);
                let low: [u32; LANES] = std::array::from_fn(|l| addr[l] as u32);
                for (mask, tag) in by_tag(&addr, mask) {
                    if mask == 0 {
                        continue;
                    }
                    match tag {
                        SHARED_TAG => load_cluster::<T, CHECK>(ctx, i, &low, mask),
                        LOCAL_TAG => load_local::<T, CHECK>(ctx, i, &low, mask),
                        PARAM_TAG => load_param::<T>(ctx, i, &low, mask),
                        _ => load_global::<T, CHECK>(ctx, i, &addr, mask),
                    }
                }
            }
        }
        if CHECK && i.imm & (ACQUIRE | SYSTEM) == ACQUIRE | SYSTEM {
            checks::acquire_from_host(ctx);
        }
    }
}

struct StoreOp<T, const SPACE: u8, const CHECK: bool>(std::marker::PhantomData<T>);
impl<T: LaneElement, const SPACE: u8, const CHECK: bool> Exec for StoreOp<T, SPACE, CHECK> {
    #[inline(always)]
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let mask = ctx.mask;
        if i.imm & RELEASE != 0 {
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            if CHECK && i.imm & SYSTEM != 0 {
                checks::tells_host(ctx);
            }
        }
        if !CHECK && matches!(SPACE, SHARED | GLOBAL | GENERIC) {
            let mut one = [0];
            let parts = parts(ctx.code, i, &mut one);
            let found = match SPACE {
                SHARED => store_run::<T, true>(ctx, i, parts),
                _ => store_run::<T, false>(ctx, i, parts),
            };
            if found {
                return;
            }
        }
        match SPACE {
            SHARED => store_shared::<T, CHECK>(ctx, i, &offsets(ctx, i), mask),
            CLUSTER => store_cluster::<T, CHECK>(ctx, i, &offsets(ctx, i), mask),
            LOCAL => store_local::<T, CHECK>(ctx, i, &offsets(ctx, i), mask),
            GLOBAL => store_global::<T, CHECK>(ctx, i, &based(ctx, i), mask),
            _ => {
                let addr = based(ctx, i);
                let low: [u32; LANES] = std::array::from_fn(|l| addr[l] as u32);
                for (mask, tag) in by_tag(&addr, mask) {
                    if mask == 0 {
                        continue;
                    }
                    match tag {
                        SHARED_TAG => store_cluster::<T, CHECK>(ctx, i, &low, mask),
                        LOCAL_TAG => store_local::<T, CHECK>(ctx, i, &low, mask),
                        // Parameters are not writable: an address outside every memory faults.
                        _ => store_global::<T, CHECK>(ctx, i, &addr, mask),
                    }
                }
            }
        }
    }
}

fn space_of(m: &ModList<'_>, var: Option<Space>) -> u8 {
    let words = [
        Word::Global,
        Word::Shared,
        Word::SharedCta,
        Word::SharedCluster,
        Word::Local,
        Word::Param,
        Word::ParamEntry,
        Word::ParamFunc,
        Word::Const,
    ];
    match (m.any(&words), var) {
        (Some(Word::Shared | Word::SharedCta), _) => SHARED,
        (Some(Word::SharedCluster), _) => CLUSTER,
        (Some(Word::Local), _) => LOCAL,
        (Some(Word::Param | Word::ParamEntry | Word::ParamFunc), _) => PARAM,
        (Some(_), _) => GLOBAL,
        // A variable's address in its own space, used without naming the space.
        (None, Some(Space::Shared)) => SHARED,
        (None, Some(Space::Local)) => LOCAL,
        (None, Some(Space::Param)) => PARAM,
        (None, Some(_)) => GLOBAL,
        (None, None) => GENERIC,
    }
}

fn load_handlers(ty_bytes: u32, space: u8, check: bool) -> Handlers {
    fn h<T: LaneElement, const C: bool>(space: u8) -> Handlers {
        match space {
            SHARED => handlers_any::<LoadOp<T, SHARED, C>>(),
            CLUSTER => handlers_plain::<LoadOp<T, CLUSTER, C>>(),
            LOCAL => handlers_any::<LoadOp<T, LOCAL, C>>(),
            PARAM => handlers_plain::<LoadOp<T, PARAM, C>>(),
            GLOBAL => handlers_any::<LoadOp<T, GLOBAL, C>>(),
            _ => handlers_any::<LoadOp<T, GENERIC, C>>(),
        }
    }
    match (ty_bytes, check) {
        (1, false) => h::<u8, false>(space),
        (1, true) => h::<u8, true>(space),
        (2, false) => h::<u16, false>(space),
        (2, true) => h::<u16, true>(space),
        (4, false) => h::<u32, false>(space),
        (4, true) => h::<u32, true>(space),
        (_, false) => h::<u64, false>(space),
        (_, true) => h::<u64, true>(space),
    }
}

fn store_handlers(ty_bytes: u32, space: u8, check: bool) -> Handlers {
    fn h<T: LaneElement, const C: bool>(space: u8) -> Handlers {
        match space {
            SHARED => handlers_any::<StoreOp<T, SHARED, C>>(),
            CLUSTER => handlers_plain::<StoreOp<T, CLUSTER, C>>(),
            LOCAL => handlers_any::<StoreOp<T, LOCAL, C>>(),
            GLOBAL => handlers_any::<StoreOp<T, GLOBAL, C>>(),
            _ => handlers_any::<StoreOp<T, GENERIC, C>>(),
        }
    }
    match (ty_bytes, check) {
        (1, false) => h::<u8, false>(space),
        (1, true) => h::<u8, true>(space),
        (2, false) => h::<u16, false>(space),
        (2, true) => h::<u16, true>(space),
        (4, false) => h::<u32, false>(space),
        (4, true) => h::<u32, true>(space),
        (_, false) => h::<u64, false>(space),
        (_, true) => h::<u64, true>(space),
    }
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Option<Lowered<()>> {
    Some(match i.op {
        Op::Ld | Op::Ldu => load(l, i, m),
        Op::St => store(l, i, m),
        Op::Alloca | Op::Stacksave | Op::Stackrestore => super::stack::lower(l, i, m),
        _ => return super::atomics::lower(l, i, m),
    })
}

fn vector_len(m: &ModList<'_>) -> usize {
    match m.any(&[Word::V2, Word::V4, Word::V8]) {
        Some(Word::V2) => 2,
        Some(Word::V4) => 4,
        Some(_) => 8,
        None => 1,
    }
}

/// Whether its addresses are those of shared memory.
fn is_shared(space: u8) -> bool {
    matches!(space, SHARED | CLUSTER)
}

/// Whether such an access may speak to another block.
fn communicates(flags: u64, space: u8) -> bool {
    flags & (ACQUIRE | RELEASE) != 0 || flags & STRONG != 0 && matches!(space, GLOBAL | GENERIC)
}

/// The `n` registers or values of type `ty` that an operand names.
fn elements(o: &Ast, n: usize, ty: Ty) -> Lowered<Vec<Ast>> {
    let parts = match o {
        Ast::Vector(v) => v.clone(),
        o => vec![o.clone()],
    };
    if parts.len() != n || bits(ty) / 8 * n as u32 > MAX_ACCESS_BYTES {
        return bad("a vector of the wrong length");
    }
    Ok(parts)
}

/// An address that is needed after a load, which may overwrite it.
fn kept(l: &mut Lower<'_, '_>, base: Opd, wide: bool, dests: &[Opd]) -> Opd {
    let overwrites = |d: &Opd| matches!((d, base), (Opd::Def(v), Opd::Use(b)) if *v == b);
    if !dests.iter().any(overwrites) {
        return base;
    }
    let n = if wide { 2 } else { 1 };
    let t = l.temp_rows(n);
    basics::copy(l, Opd::Def(t), base, n);
    Opd::Use(t)
}

fn load(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let ty = m
        .types()
        .last()
        .ok_or_else(|| LowerError::Bad("a type is missing".to_owned()))?;
    let n = vector_len(m);
    let parts = elements(&i.operands[0], n, ty)?;
    let mut flags = order_flags(m);
    if n == 1 && flags == 0 && l.is_verified_load(i.line) {
        // A guess that may be wrong: it counts as the relaxed load that it might have been.
        flags = STRONG;
    }
    let bytes = bits(ty) / 8;
    let address = l.address(&i.operands[1])?;
    let variable = l.variable_of(&i.operands[1]);
    // Each element: a destination of the loaded width, then what widens or sign-extends it.
    let mut dests = Vec::new();
    let mut after = Vec::new();
    for p in &parts {
        let (v, reg) = l.dst_reg(p, ty)?;
        if reg == Ty::Pred || rows(reg) < rows(ty) {
            return bad("a destination of the wrong width");
        }
        if ty == Ty::B128 {
            dests.push(Opd::Def(v));
            dests.push(Opd::DefHigh(v));
        } else if is_signed(ty) && bits(ty) < 32 && bits(reg) > bits(ty) || rows(reg) != rows(ty) {
            let t = l.temp_rows(rows(ty));
            dests.push(Opd::Def(t));
            after.push((t, v, reg));
        } else {
            dests.push(Opd::Def(v));
        }
    }
    let unit = bytes.min(8);
    match address {
        AddressOperand::Param(at) => {
            for (k, d) in dests.iter().enumerate() {
                let value = LaunchValue::Parameter {
                    at: at + k as u32 * unit,
                    bytes: unit,
                };
                let c = l.constant(Const::Launch(value));
                basics::copy(l, *d, c, value.rows() as u8);
            }
        }
        AddressOperand::Fixed {
            row,
            bytes: size,
            offset,
        } => {
            for (k, d) in dests.iter().enumerate() {
                let at = offset + k as i64 * i64::from(unit);
                if at < 0
                    || at + i64::from(unit) > i64::from(size)
                    || at % i64::from(unit.min(4)) != 0
                {
                    return bad("an offset outside the parameter");
                }
                load_fixed_at(l, *d, row, at as u32, unit);
            }
        }
        AddressOperand::Value {
            base,
            wide,
            offset,
            space,
        } => {
            let space = space_of(m, space);
            l.k.communicates |= communicates(flags, space);
            let h = load_handlers(unit, space, l.k.checks);
            let count = dests.len();
            let acquires =
                flags & (ACQUIRE | STRONG) != 0 && !matches!(space, LOCAL | PARAM) && l.k.checks;
            let place = if acquires {
                kept(l, base, wide, &dests)
            } else {
                base
            };
            let guarded = l.guard != super::lower::PredRef::True;
            let x = l.emit(
                h,
                if count == 1 { dests[0] } else { Opd::None },
                base,
                Opd::None,
                Opd::None,
            );
            x.imm = u64::from(offset as u32)
                | if wide { WIDE } else { 0 }
                | flags
                | (u64::from(variable) << VARIABLE_SHIFT)
                | ((count as u64) << COUNT_SHIFT);
            if wide && matches!(space, GLOBAL | GENERIC) {
                x.role = InstRole::Access;
            }
            if count > 1 {
                x.ext = dests
                    .iter()
                    .map(|&d| {
                        Ext::Row(match d {
                            // A destination behind a guard keeps its old value in other lanes.
                            Opd::Def(v) if guarded => Opd::Both(v),
                            d => d,
                        })
                    })
                    .collect();
            }
            if acquires {
                super::atomics::emit_acquire(l, place, wide, offset, is_shared(space));
            }
        }
    }
    for (t, v, reg) in after {
        if is_signed(ty) && bits(ty) < 32 {
            if rows(reg) == 2 {
                let u = l.temp_rows(1);
                convert::sign_extend(l, Opd::Def(u), Opd::Use(t), ty, Ty::S32);
                l.emit(
                    basics::widen_signed(),
                    Opd::Def(v),
                    Opd::Use(u),
                    Opd::None,
                    Opd::None,
                );
            } else {
                convert::sign_extend(l, Opd::Def(v), Opd::Use(t), ty, reg);
            }
        } else {
            let h = if is_signed(ty) {
                basics::widen_signed()
            } else {
                basics::widen()
            };
            l.emit(h, Opd::Def(v), Opd::Use(t), Opd::None, Opd::None);
        }
    }
    Ok(())
}

fn store(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    if m.has(Word::Async) {
        return super::cluster_async::lower(l, i, m);
    }
    let ty = m
        .types()
        .last()
        .ok_or_else(|| LowerError::Bad("a type is missing".to_owned()))?;
    let n = vector_len(m);
    let parts = elements(&i.operands[1], n, ty)?;
    let flags = order_flags(m);
    let unit = (bits(ty) / 8).min(8);
    let address = l.address(&i.operands[0])?;
    let variable = l.variable_of(&i.operands[0]);
    let mut sources = Vec::new();
    for p in &parts {
        let a = l.src(p, ty)?;
        sources.push(a);
        if ty == Ty::B128 {
            let Opd::Use(v) = a else {
                return bad("a 128-bit source must be a register");
            };
            sources.push(Opd::UseHigh(v));
        }
    }
    match address {
        AddressOperand::Param(_) => return bad("a kernel's parameters cannot be written"),
        AddressOperand::Fixed {
            row,
            bytes: size,
            offset,
        } => {
            for (k, a) in sources.iter().enumerate() {
                let at = offset + k as i64 * i64::from(unit);
                if at < 0
                    || at + i64::from(unit) > i64::from(size)
                    || at % i64::from(unit.min(4)) != 0
                {
                    return bad("an offset outside the parameter");
                }
                store_fixed_at(l, *a, row, at as u32, unit);
            }
        }
        AddressOperand::Value {
            base,
            wide,
            offset,
            space,
        } => {
            let space = space_of(m, space);
            if space == PARAM {
                return Err(LowerError::Unsupported);
            }
            l.k.communicates |= communicates(flags, space);
            let h = store_handlers(unit, space, l.k.checks);
            let count = sources.len();
            // The handler takes a single source in `d`, where constants never stand: destinations
            // are written.
            if let [source @ Opd::Const(_)] = sources.as_mut_slice() {
                let n = if unit == 8 { 2 } else { 1 };
                let t = l.temp_rows(n);
                basics::copy(l, Opd::Def(t), *source, n);
                *source = Opd::Use(t);
            }
            if flags & STRONG != 0 && l.k.checks && space != LOCAL {
                super::atomics::emit_release(l, base, wide, offset, is_shared(space), flags);
            }
            let x = l.emit(
                h,
                if count == 1 { sources[0] } else { Opd::None },
                base,
                Opd::None,
                Opd::None,
            );
            x.imm = u64::from(offset as u32)
                | if wide { WIDE } else { 0 }
                | flags
                | (u64::from(variable) << VARIABLE_SHIFT)
                | ((count as u64) << COUNT_SHIFT);
            if wide && matches!(space, GLOBAL | GENERIC) {
                x.role = InstRole::Access;
            }
            if count > 1 {
                x.ext = sources.iter().map(|&a| Ext::Row(a)).collect();
            }
        }
    }
    Ok(())
}
