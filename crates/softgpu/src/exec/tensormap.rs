//! Changes of tensor maps in memory, and fences of proxies.

use fercuda_ptx::ast::{Imm, Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{ScalarType as Ty, Word};

use super::bulk_places::{global_address, global_window, shared_place};
use super::checks::{self, CheckedAccess};
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, handlers_plain};
use super::lower::{Lower, LowerError, Lowered, ModList, Opd, bad, operand};
use super::mbarrier::shared_address;
use super::ordering::{BLOCK_SCOPE, order_flags};
use super::registers::{LANES, each};
use super::rendezvous::whole_warp;
use super::tags::{SHARED_TAG, TAG_MASK};
use crate::mem::Window;
use crate::report::{AccessKind, FaultKind};
use crate::tensor_map::{MapField, TENSOR_MAP_BYTES, TensorMap};

const BYTES: u64 = TENSOR_MAP_BYTES as u64;

/// Bytes of a tensor map at a generic address.
enum MapPlace {
    Global(u64, Window),
    Shared(u32),
}

fn place(ctx: &mut Ctx<'_>, i: &DecodedInst, l: usize, at: u64, write: bool) -> Option<MapPlace> {
    match at & TAG_MASK {
        SHARED_TAG => {
            let offset = shared_place(ctx, i, l, (at, BYTES), 128)?;
            Some(MapPlace::Shared(offset))
        }
        _ => {
            let window = global_window(ctx, i, l, (at, BYTES), write)?;
            Some(MapPlace::Global(at, window))
        }
    }
}

fn read(ctx: &Ctx<'_>, place: &MapPlace) -> [u8; TENSOR_MAP_BYTES] {
    let mut bytes = [0; TENSOR_MAP_BYTES];
    match place {
        MapPlace::Global(at, window) => window.read_bytes(*at, &mut bytes),
        MapPlace::Shared(at) => {
            bytes.copy_from_slice(&ctx.block.shared[*at as usize..][..TENSOR_MAP_BYTES]);
        }
    }
    bytes
}

fn write(ctx: &mut Ctx<'_>, place: &MapPlace, bytes: &[u8; TENSOR_MAP_BYTES]) {
    match place {
        MapPlace::Global(at, window) => window.write_bytes(*at, bytes),
        MapPlace::Shared(at) => {
            ctx.block.shared[*at as usize..][..TENSOR_MAP_BYTES].copy_from_slice(bytes);
        }
    }
}

/// With checks: lane `l` reads or writes a whole map, in pieces of 16 bytes.
fn check(ctx: &mut Ctx<'_>, i: &DecodedInst, l: usize, at: u64, kind: AccessKind) {
    for piece in (0..BYTES).step_by(16) {
        let access = CheckedAccess::plain(16, kind);
        if at & TAG_MASK == SHARED_TAG {
            let off = [(at + piece) as u32; LANES];
            checks::shared(ctx, i, &off, 1 << l, access);
        } else {
            checks::global(ctx, i, &[at + piece; LANES], 1 << l, access);
        }
    }
}

const FIELD_SHIFT: u32 = 8;

/// `a` the map's generic address, `b` the value; `imm` the ordinal and the field.
struct Replace<const CHECK: bool>;
impl<const CHECK: bool> Exec for Replace<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let ordinal = (i.imm & 0xff) as usize;
        let field = match i.imm >> FIELD_SHIFT {
            0 => MapField::Address,
            1 => MapField::Rank,
            2 => MapField::BoxDim(ordinal),
            3 => MapField::GlobalDim(ordinal),
            4 => MapField::GlobalStride(ordinal),
            5 => MapField::ElementStride(ordinal),
            6 => MapField::Element,
            7 => MapField::Interleave,
            8 => MapField::Swizzle,
            _ => MapField::Fill,
        };
        let mask = ctx.mask;
        each(mask, |l| {
            let (at, value) = (ctx.rows.lane(i.a, l), ctx.rows.lane::<u64>(i.b, l));
            let Some(place) = place(ctx, i, l, at, true) else {
                return;
            };
            if CHECK {
                check(ctx, i, l, at, AccessKind::Read);
                check(ctx, i, l, at, AccessKind::Write);
            }
            let map = TensorMap::unpack(&read(ctx, &place));
            let changed = map.and_then(|mut map| map.replace(field, value).map(|()| map));
            match changed {
                Some(map) => write(ctx, &place, &map.pack()),
                None => {
                    let why = format!(
                        "no tensor map at {:#x} that takes {value} for {field:?}",
                        at & !TAG_MASK
                    );
                    ctx.fail(i, l as u32, FaultKind::IllegalInstruction(why));
                }
            }
        });
    }
}

/// Copies a map from shared memory at `b` to global memory at `a`, once for the warp.
struct CopyMap<const CHECK: bool>;
impl<const CHECK: bool> Exec for CopyMap<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let l = ctx.mask.trailing_zeros() as usize & 31;
        let (to, from) = (
            ctx.rows.lane(i.a, l),
            ctx.rows.lane::<u64>(i.b, l) | SHARED_TAG,
        );
        let (Some(target), Some(source)) =
            (place(ctx, i, l, to, true), place(ctx, i, l, from, false))
        else {
            return;
        };
        if CHECK {
            check(ctx, i, l, from, AccessKind::Read);
            check(ctx, i, l, to, AccessKind::Write);
            checks::fence(ctx, false);
        }
        let bytes = read(ctx, &source);
        write(ctx, &target, &bytes);
    }
}

/// A fence of the asynchronous proxy, with checks: `x` bit 0 for shared memory, bit 1 for global.
struct ProxyFence;
impl Exec for ProxyFence {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        checks::proxy_fence(ctx, i.x & 1 != 0, i.x & 2 != 0);
    }
}

/// A fence of the tensor map proxy, which orders accesses too.
struct MapFence;
impl Exec for MapFence {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        checks::fence(ctx, i.x & 1 != 0);
    }
}

// ---- lowering -------------------------------------------------------------------------------

pub(crate) fn lower_proxy_fence(l: &mut Lower<'_, '_>, m: &ModList<'_>) -> Lowered<()> {
    let none = Opd::None;
    if m.has(Word::TensormapGeneric) {
        l.k.communicates = true;
        if l.k.checks {
            let near = order_flags(m) & BLOCK_SCOPE != 0;
            let x = l.emit(handlers_plain::<MapFence>(), none, none, none, none);
            x.x = u32::from(near);
        }
        return Ok(());
    }
    // An address by which two names reach one location is one address here.
    if !l.k.checks || m.has(Word::Alias) {
        return Ok(());
    }
    let shared = m.any(&[Word::SharedCta, Word::SharedCluster, Word::Shared]);
    let x = l.emit(handlers_plain::<ProxyFence>(), none, none, none, none);
    x.x = match (shared.is_some(), m.has(Word::Global)) {
        (true, false) => 1,
        (false, true) => 2,
        _ => 3,
    };
    Ok(())
}

fn generic_address(l: &mut Lower<'_, '_>, o: &Ast, m: &ModList<'_>) -> Lowered<Opd> {
    if m.any(&[Word::Shared, Word::SharedCta]).is_none() {
        return global_address(l, o);
    }
    let offset = shared_address(l, o)?;
    let (t, tag) = (l.temp_rows(2), l.c64(SHARED_TAG));
    l.prepare(super::basics::add64(), Opd::Def(t), offset, tag, Opd::None);
    Ok(Opd::Use(t))
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    l.k.communicates = true;
    if m.has(Word::CpFenceproxy) {
        whole_warp(l);
        let to = global_address(l, operand(i, 0)?)?;
        let from = shared_address(l, operand(i, 1)?)?;
        let h = if l.k.checks {
            handlers_plain::<CopyMap<true>>()
        } else {
            handlers_plain::<CopyMap<false>>()
        };
        l.emit(h, Opd::None, to, from, Opd::None);
        return Ok(());
    }
    if !m.has(Word::Replace) {
        return Err(LowerError::Unsupported);
    }
    let fields = [
        Word::GlobalAddress,
        Word::Rank,
        Word::BoxDim,
        Word::GlobalDim,
        Word::GlobalStride,
        Word::ElementStride,
        Word::Elemtype,
        Word::InterleaveLayout,
        Word::SwizzleMode,
        Word::FillMode,
    ];
    let Some(field) = fields.iter().position(|w| m.has(*w)) else {
        return Err(LowerError::Unsupported);
    };
    let at = generic_address(l, operand(i, 0)?, m)?;
    let has_ordinal = (2..=5).contains(&field);
    let ordinal = match (has_ordinal, i.operands.get(1)) {
        (false, _) => 0,
        (true, Some(Ast::Imm(Imm::Int { value, .. }))) => *value as u64 & 0xff,
        _ => return bad("the ordinal must be constant"),
    };
    let value = operand(i, if has_ordinal { 2 } else { 1 })?;
    let value = if matches!(field, 0 | 4) {
        l.src(value, Ty::B64)?
    } else {
        let narrow = l.src(value, Ty::B32)?;
        l.resize(narrow, 1, 2, false)
    };
    let h = if l.k.checks {
        handlers_plain::<Replace<true>>()
    } else {
        handlers_plain::<Replace<false>>()
    };
    let x = l.emit(h, Opd::None, at, value, Opd::None);
    x.imm = ordinal | (field as u64) << FIELD_SHIFT;
    Ok(())
}
