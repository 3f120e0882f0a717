//! Bulk copies of boxes of tensors, which tensor maps describe.

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{ScalarType as Ty, Word};

use super::bulk_peers::{PeerCopy, deliver, other_rank};
use super::bulk_places::{
    Direction, direction, further, global_window, in_each_block, mbarrier_place, shared_place,
};
use super::bulk_reduce::{BulkReduction, reduce_global};
use super::checks;
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, handlers_plain};
use super::lower::{Entity, Ext, Lower, LowerError, Lowered, ModList, Opd, bad, operand};
use super::mbarrier::{complete_bytes, shared_address};
use super::registers::each;
use super::rmw::{RMW, Rmw};
use super::tags::{PARAM_TAG, TAG_MASK};
use super::tensor_box::{TensorBox, convert, fill, gather, scatter};
use crate::report::{Access, AccessKind, FaultKind, MemSpace};
use crate::tensor_map::{Interleave, MAX_RANK, MapMode, TENSOR_MAP_BYTES, TensorMap};

/// Elements behind a tensor's end within which a box may begin when blocks round a tensor up to
/// whole tiles, of which they store parts.
const ROUNDED: i64 = 256;

const LOAD: u64 = 0;
const STORE: u64 = 1;
const PREFETCH: u64 = 2;
/// In `imm`: what is done, then the rank, the mode, the reduction, and flags.
const RANK_SHIFT: u32 = 4;
const IM2COL: u64 = 1 << 8;
const MULTICAST: u64 = 1 << 9;
const REDUCES: u64 = 1 << 10;
const OP_SHIFT: u32 = 12;

/// Further operands: the mbarrier, the mask of blocks, three offsets, and the coordinates.
const OFFSETS: usize = 2;
const COORDINATES: usize = 5;

/// `a` the address in shared memory, `b` that of the tensor map.
struct TensorCopy<const CHECK: bool>;
impl<const CHECK: bool> Exec for TensorCopy<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let mask = ctx.mask;
        each(mask, |l| {
            if ctx.trouble.is_none() {
                let done = copy::<CHECK>(ctx, i, l);
                debug_assert!(done.is_some() || ctx.trouble.is_some());
            }
        });
    }
}

fn copy<const CHECK: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst, l: usize) -> Option<()> {
    let map = read_map(ctx, i, l)?;
    let rank = (i.imm >> RANK_SHIFT & 7) as usize;
    let mut start = [0; MAX_RANK];
    for (n, at) in start.iter_mut().take(rank).enumerate() {
        *at = ctx.rows.lane::<u32>(further(ctx, i, COORDINATES + n), l) as i32;
    }
    let mut offsets = [0; 3];
    for (n, at) in offsets.iter_mut().enumerate() {
        *at = ctx.rows.lane::<u32>(further(ctx, i, OFFSETS + n), l) as u16;
    }
    let found = TensorBox::new(&map, start, offsets);
    let first = i64::from(start[0]) * i64::from(map.element.bytes());
    if i.imm & 3 != PREFETCH && first % 16 != 0 {
        let why = format!(
            "a box whose rows begin at byte {first} of those of the tensor, no multiple of 16: \
             coordinate {} of elements of {} bytes",
            start[0],
            map.element.bytes()
        );
        let at = ctx.rows.lane::<u64>(i.b, l);
        wrong(ctx, i, l, at, why);
        return None;
    }
    if CHECK {
        refuse_outside(ctx, i, l, &map, &found, start);
    }
    match i.imm & 3 {
        LOAD => load::<CHECK>(ctx, i, l, &map, &found),
        STORE => store::<CHECK>(ctx, i, l, &map, &found),
        _ => Some(()),
    }
}

fn wrong(ctx: &mut Ctx<'_>, i: &DecodedInst, l: usize, at: u64, why: String) {
    let access = Access {
        kind: AccessKind::Read,
        space: match at & TAG_MASK {
            PARAM_TAG => MemSpace::Param,
            _ => MemSpace::Global,
        },
        addr: at & !TAG_MASK,
        len: TENSOR_MAP_BYTES as u64,
    };
    checks::tensor_misuse(ctx, i, l, access, why.clone());
    ctx.fail(i, l as u32, FaultKind::IllegalInstruction(why));
}

/// The tensor map that the lane names, if the instruction can use it.
fn read_map(ctx: &mut Ctx<'_>, i: &DecodedInst, l: usize) -> Option<TensorMap> {
    let at = ctx.rows.lane::<u64>(i.b, l);
    let mut bytes = [0; TENSOR_MAP_BYTES];
    if !at.is_multiple_of(64) {
        let why = format!("a tensor map at {:#x}, no multiple of 64", at & !TAG_MASK);
        wrong(ctx, i, l, at, why);
        return None;
    }
    match at & TAG_MASK {
        PARAM_TAG => {
            let from = (at & !TAG_MASK) as usize;
            let found = ctx.run.spec.params.get(from..);
            if let Some(found) = found.and_then(|p| p.get(..TENSOR_MAP_BYTES)) {
                bytes.copy_from_slice(found);
            }
        }
        0 => {
            let len = TENSOR_MAP_BYTES as u64;
            let window = global_window(ctx, i, l, (at, len), false)?;
            window.read_bytes(at, &mut bytes);
        }
        _ => {
            let why = "a tensor map that is not in global, constant or parameter memory";
            wrong(ctx, i, l, at, why.to_owned());
            return None;
        }
    }
    let Some(map) = TensorMap::unpack(&bytes) else {
        let why = format!(
            "no tensor map at {:#x}: cuTensorMapEncodeTiled and its kin make one",
            at & !TAG_MASK
        );
        wrong(ctx, i, l, at, why);
        return None;
    };
    let rank = i.imm >> RANK_SHIFT & 7;
    let mode = match i.imm & IM2COL != 0 {
        true => MapMode::Im2col,
        false => MapMode::Tiled,
    };
    let name = |mode| match mode {
        MapMode::Im2col => "im2col",
        MapMode::Tiled => "tiled",
    };
    let why = if let Some(fault) = map.fault() {
        format!("a tensor map that is not valid: {fault}")
    } else if u64::from(map.rank) != rank {
        let of = map.rank;
        format!("a copy of {rank} dimensions by a tensor map of {of}")
    } else if map.interleave != Interleave::None {
        "an interleaved tensor, which is not implemented on the software device".to_owned()
    } else if map.mode != mode {
        let (copy, of) = (name(mode), name(map.mode));
        format!("a copy in {copy} mode by a tensor map in {of} mode")
    } else {
        return Some(map);
    };
    wrong(ctx, i, l, at, why);
    None
}

/// Reports a box of which nothing is inside the tensor.
fn refuse_outside(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    l: usize,
    map: &TensorMap,
    found: &TensorBox<'_>,
    start: [i32; MAX_RANK],
) {
    let mut any = false;
    let _end = found.each(|row| {
        any = row.len > 0;
        (!any).then_some(())
    });
    if any {
        return;
    }
    let rank = map.rank as usize;
    let beyond = |n: usize| start[n] < 0 || i64::from(start[n]) >= map.dims[n] as i64;
    // All pixels of a column may lie in the border of an image.
    if map.mode == MapMode::Im2col && !beyond(0) && !beyond(rank - 1) {
        return;
    }
    // Parts of a tile that was rounded up are stored, and drop out, by design.
    let far = (0..rank).any(|n| {
        let at = i64::from(start[n]);
        at >= map.dims[n] as i64 + ROUNDED || at < -ROUNDED
    });
    if i.imm & 3 == STORE && !far {
        return;
    }
    let list = |values: Vec<String>| values.join(", ");
    let at = list(start[..rank].iter().map(i32::to_string).collect());
    let dims = list(map.dims[..rank].iter().map(u64::to_string).collect());
    let access = Access {
        kind: match i.imm & 3 {
            STORE => AccessKind::AsyncCopy,
            _ => AccessKind::Read,
        },
        space: MemSpace::Global,
        addr: map.address,
        len: found.bytes().into(),
    };
    let note = format!("the box at ({at}) is outside of the tensor of ({dims}) elements");
    checks::tensor_misuse(ctx, i, l, access, note);
}

fn load<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    l: usize,
    map: &TensorMap,
    found: &TensorBox<'_>,
) -> Option<()> {
    let (dst, mbarrier) = (
        ctx.rows.lane::<u64>(i.a, l),
        ctx.rows.lane::<u64>(further(ctx, i, 0), l),
    );
    let blocks = (i.imm & MULTICAST != 0).then(|| ctx.rows.lane(further(ctx, i, 1), l));
    let targets: Vec<(u64, u64)> = in_each_block(dst, blocks)
        .zip(in_each_block(mbarrier, blocks))
        .collect();
    for (dst, mbarrier) in targets {
        if other_rank(ctx, dst).is_some() {
            let copy = PeerCopy {
                dst,
                mbarrier,
                reach: found.reach(),
                bytes: found.bytes(),
                align: 128,
            };
            deliver::<CHECK>(ctx, i, l, copy, |ctx, dst| {
                bring::<false>(ctx, i, l, (map, found), (dst, 0))
            })?;
            continue;
        }
        let dst = shared_place(ctx, i, l, (dst, found.reach().into()), 128)?;
        let at = mbarrier_place(ctx, i, l, mbarrier)?;
        let mut number = 0;
        if CHECK {
            number = checks::begin_copy(ctx, i, l, Some(at));
            checks::copy_shared(ctx, i, l, number, (dst, found.reach()), true);
        }
        bring::<CHECK>(ctx, i, l, (map, found), (dst, number))?;
        if CHECK {
            checks::complete_copy(ctx, l, at, number);
        }
        complete_bytes(ctx, i, l, at, found.bytes());
    }
    Some(())
}

/// Puts the box into shared memory at `dst`; `number` is that of the copy, with checks.
fn bring<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    l: usize,
    (map, found): (&TensorMap, &TensorBox<'_>),
    (dst, number): (u32, u32),
) -> Option<()> {
    let mut row = vec![0; found.row_bytes() as usize];
    let mut to = dst;
    found.each(|part| {
        if (part.len as usize) < row.len() {
            fill(map, &mut row);
        }
        if part.len > 0 {
            let (addr, len) = (part.addr, u64::from(part.len));
            let may =
                !CHECK || checks::copy_global(ctx, i, l, number, (addr, len), AccessKind::Read);
            if may {
                let window = global_window(ctx, i, l, (addr, len), false)?;
                let inside = &mut row[part.from as usize..][..part.len as usize];
                window.read_bytes(addr, inside);
                convert(map.element, inside);
            }
        }
        scatter(map, &mut ctx.block.shared, to, &row);
        to += found.pitch();
        Some(())
    })
}

fn store<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    l: usize,
    map: &TensorMap,
    found: &TensorBox<'_>,
) -> Option<()> {
    let src = ctx.rows.lane::<u64>(i.a, l);
    let src = shared_place(ctx, i, l, (src, found.reach().into()), 128)?;
    let reduction = match i.imm & REDUCES != 0 {
        false => None,
        true => {
            let op: Rmw = RMW[(i.imm >> OP_SHIFT & 15) as usize % RMW.len()];
            let Some(reduction) = BulkReduction::on(op, map.element) else {
                let (at, element) = (ctx.rows.lane::<u64>(i.b, l), map.element);
                let why = format!("no reduction {op:?} of elements of type {element:?}");
                wrong(ctx, i, l, at, why);
                return None;
            };
            Some(reduction)
        }
    };
    let number = if CHECK {
        checks::begin_copy(ctx, i, l, None)
    } else {
        0
    };
    let mut row = vec![0; found.row_bytes() as usize];
    let mut from = src;
    found.each(|part| {
        let at = from;
        from += found.pitch();
        if part.len == 0 {
            return Some(());
        }
        let (addr, len) = (part.addr, u64::from(part.len));
        if CHECK {
            read_row(ctx, i, l, map, number, (at + part.from, part.len));
            let kind = match reduction {
                Some(_) => AccessKind::Atomic,
                None => AccessKind::Write,
            };
            if !checks::copy_global(ctx, i, l, number, (addr, len), kind) {
                return Some(());
            }
        }
        let window = global_window(ctx, i, l, (addr, len), true)?;
        gather(map, &ctx.block.shared, at, &mut row);
        let inside = &row[part.from as usize..][..part.len as usize];
        match reduction {
            None => window.write_bytes(addr, inside),
            Some(reduction) => reduce_global(window, addr, inside, reduction),
        }
        Some(())
    })
}

/// Checks what a store reads of a row of shared memory.
fn read_row(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    l: usize,
    map: &TensorMap,
    number: u32,
    (at, len): (u32, u32),
) {
    if map.swizzle.span() == 0 {
        checks::copy_shared(ctx, i, l, number, (at, len), false);
        return;
    }
    let atom = map.swizzle.atom().min(16);
    let (first, end) = (at / atom * atom, at + len);
    for chunk in (first..end).step_by(atom as usize) {
        let from = chunk.max(at);
        let to = (chunk + atom).min(end);
        let place = map.swizzle.apply(chunk) + (from - chunk);
        checks::copy_shared(ctx, i, l, number, (place, to - from), false);
    }
}

// ---- lowering -------------------------------------------------------------------------------

/// The generic address of a tensor map.
pub(crate) fn map_address(l: &mut Lower<'_, '_>, o: &Ast) -> Lowered<Opd> {
    if let Ast::Name(s) = o
        && let Some(Entity::KernelParam(at)) = l.lookup(*s)
    {
        return Ok(l.c64(PARAM_TAG | u64::from(at)));
    }
    l.src(o, Ty::B64)
}

/// Rank and load mode of an instruction.
fn shape(m: &ModList<'_>) -> Lowered<(usize, bool)> {
    let ranks = [Word::N1d, Word::N2d, Word::N3d, Word::N4d, Word::N5d];
    let rank = ranks.iter().position(|w| m.has(*w));
    let Some(rank) = rank.map(|n| n + 1) else {
        return bad("a number of dimensions is needed");
    };
    let later = [
        Word::TileGather4,
        Word::TileScatter4,
        Word::Im2colW,
        Word::Im2colW128,
        Word::CtaGroup1,
        Word::CtaGroup2,
    ];
    if m.any(&later).is_some() {
        return Err(LowerError::Unsupported);
    }
    let pixels = m.has(Word::Im2col) || m.has(Word::Im2colNoOffs);
    if pixels && rank < 3 {
        return bad("im2col needs three dimensions");
    }
    Ok((rank, pixels))
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let (rank, pixels) = shape(m)?;
    let prefetches = m.has(Word::Prefetch);
    let what = match prefetches {
        true => PREFETCH,
        false => match direction(m)? {
            Direction::Load => LOAD,
            Direction::Store => STORE,
            Direction::Between => return Err(LowerError::Unsupported),
        },
    };
    let at = usize::from(what == LOAD);
    let Ast::Bracket(parts) = operand(i, at)? else {
        return bad("a tensor map and coordinates are needed");
    };
    let [map, Ast::Vector(coordinates)] = parts.as_slice() else {
        return bad("a tensor map and coordinates are needed");
    };
    if coordinates.len() != rank {
        return bad("as many coordinates as dimensions are needed");
    }
    let map = map_address(l, map)?;
    let zero = l.c64(0);
    let (shared, mbarrier, mut next) = match what {
        LOAD => (
            shared_address(l, operand(i, 0)?)?,
            shared_address(l, operand(i, 2)?)?,
            3,
        ),
        STORE => (shared_address(l, operand(i, 1)?)?, zero, 2),
        _ => (zero, zero, 1),
    };
    let none = l.c32(0);
    let mut ext = vec![none; COORDINATES];
    ext[0] = mbarrier;
    if m.has(Word::Im2col) {
        let Some(Ast::Vector(offsets)) = i.operands.get(next) else {
            return bad("im2col offsets are needed");
        };
        if offsets.len() != rank - 2 {
            return bad("two im2col offsets fewer than dimensions are needed");
        }
        for (n, o) in offsets.iter().enumerate() {
            ext[OFFSETS + n] = l.src(o, Ty::U16)?;
        }
        next += 1;
    }
    let multicast = m.has(Word::MulticastCluster);
    if multicast {
        ext[1] = l.src(operand(i, next)?, Ty::U16)?;
    }
    for o in coordinates {
        let c = l.src(o, Ty::S32)?;
        ext.push(c);
    }
    let h = if l.k.checks {
        handlers_plain::<TensorCopy<true>>()
    } else {
        handlers_plain::<TensorCopy<false>>()
    };
    let reduction = match m.has(Word::Reduce) {
        true => REDUCES | (BulkReduction::operation(m)? as u64) << OP_SHIFT,
        false => 0,
    };
    let x = l.emit(h, Opd::None, shared, map, Opd::None);
    x.ext = ext.into_iter().map(Ext::Row).collect();
    x.imm = what
        | (rank as u64) << RANK_SHIFT
        | if pixels { IM2COL } else { 0 }
        | if multicast { MULTICAST } else { 0 }
        | reduction;
    Ok(())
}
