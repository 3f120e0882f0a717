//! Atomics and fences.
//!
//! Atomics on global memory are the host's, sequentially consistent, which every order of the ISA
//! allows. A block runs on one host thread at a time, so those on shared memory are plain.

use std::sync::atomic::Ordering;

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::access::{STRONG, WIDE, addresses, admit_shared, allow, by_tag, offsets};
use super::checks::{self, CheckedAccess, Published};
use super::cluster::{PlacedLanes, placed, with_peers};
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, handlers_plain};
use super::lower::{AddressOperand, Lower, LowerError, Lowered, ModList, Opd, bad};
use super::ordering::{ACQUIRE, BLOCK_SCOPE, RELEASE, order_flags, strength};
use super::registers::{LANES, RowOperand, each};
use super::rmw::{AtomicKind, KINDS, RMW, Rmw, apply, apply_global};
use super::tags::SHARED_TAG;
use super::width::bits;
use crate::report::AccessKind;

const RMW_SHIFT: u32 = 44;
const KIND_SHIFT: u32 = 48;
const SPACE_SHIFT: u32 = 52;
/// Shared memory of the block itself, not of its cluster.
const OWN_BLOCK: u64 = 1 << 54;
const RED: u64 = 1 << 56;
/// The result is read.
const READ: u64 = 1 << 61;
/// Elements of a vector `red`/`atom` of sm_90, in `ext`.
const COUNT_SHIFT: u32 = 57;

/// What an instruction with these flags tells others.
fn published(flags: u64) -> Published {
    match (flags & RELEASE != 0, flags & BLOCK_SCOPE != 0) {
        (false, _) => Published::Fenced,
        (true, false) => Published::All,
        (true, true) => Published::AllNear,
    }
}

struct Atom<const CHECK: bool>;
impl<const CHECK: bool> Exec for Atom<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let op = RMW[(i.imm >> RMW_SHIFT) as usize & 15];
        let kind = KINDS[(i.imm >> KIND_SHIFT) as usize & 15];
        let red = i.imm & RED != 0;
        let is_read = i.imm & READ != 0;
        let n = (i.imm >> COUNT_SHIFT) as u32 & 15;
        let size = kind.size() * n;
        let access = CheckedAccess {
            size,
            kind: AccessKind::Atomic,
            strength: strength(i.imm | STRONG, ctx.run.check_options),
            values: None,
            variable: if n == 1 { i.x } else { 0 },
        };
        ctx.waits += 1;
        let mask = ctx.mask;
        let published = published(i.imm);
        let space = (i.imm >> SPACE_SHIFT) & 3;
        let addr = if space == 1 {
            offsets(ctx, i).map(|o| u64::from(o) | SHARED_TAG)
        } else {
            addresses(ctx, i)
        };
        let groups = match space {
            1 => [(mask, SHARED_TAG), (0, 0), (0, 0), (0, 0)],
            _ => by_tag(&addr, mask),
        };
        for (mut mask, tag) in groups {
            if mask == 0 {
                continue;
            }
            if tag == SHARED_TAG {
                let address: [u32; LANES] = std::array::from_fn(|l| addr[l] as u32);
                // Without `::cluster` an address is an offset in the block's own memory.
                let to = match space == 1 && i.imm & OWN_BLOCK != 0 {
                    true => PlacedLanes {
                        own: mask,
                        at: address,
                        away: 0,
                    },
                    false => placed(ctx, &address, mask),
                };
                if to.away != 0 {
                    let mut changed = false;
                    with_peers::<CHECK>(ctx, i, &address, to.away, access, |ctx, at, mask| {
                        changed |= shared(ctx, i, at, mask, op, kind, red, n);
                    });
                    if CHECK {
                        checks::synchronise(ctx, &addr, to.away, published, is_read);
                    }
                    ctx.spins = ctx.spins.wrapping_add(u32::from(!changed));
                }
                if to.own == 0 {
                    continue;
                }
                let off = to.at;
                mask = admit_shared::<CHECK>(ctx, i, &off, to.own, access);
                if CHECK {
                    checks::synchronise(ctx, &addr, mask, published, is_read);
                }
                let changed = shared(ctx, i, &off, mask, op, kind, red, n);
                ctx.spins = ctx.spins.wrapping_add(u32::from(!changed));
            } else {
                if CHECK {
                    mask = checks::global(ctx, i, &addr, mask, access);
                    checks::synchronise(ctx, &addr, mask, published, is_read);
                }
                let changed = global(ctx, i, &addr, mask, op, kind, red, n);
                ctx.spins = ctx.spins.wrapping_add(u32::from(!changed));
            }
        }
    }
}

fn operand(ctx: &Ctx<'_>, o: RowOperand, kind: AtomicKind, lane: usize) -> u64 {
    if kind.size() == 8 {
        ctx.rows.lane::<u64>(o, lane)
    } else {
        u64::from(ctx.rows.lane::<u32>(o, lane))
    }
}

fn put(ctx: &mut Ctx<'_>, o: RowOperand, kind: AtomicKind, lane: usize, v: u64) {
    if kind.size() == 8 {
        ctx.rows.set_lane::<u64>(o, lane, v)
    } else {
        ctx.rows.set_lane::<u32>(o, lane, v as u32)
    }
}

fn wide_operand(ctx: &Ctx<'_>, o: RowOperand, lane: usize) -> u128 {
    u128::from(ctx.rows.lane::<u64>(o, lane))
        | (u128::from(ctx.rows.lane::<u64>(o.plus(2), lane)) << 64)
}

/// (destination, source) of element `k` of a vector instruction.
fn vector(ctx: &Ctx<'_>, i: &DecodedInst, n: u32, k: u32) -> (RowOperand, RowOperand) {
    if n == 1 {
        return (i.d, i.b);
    }
    let at = |x: u32| RowOperand::from_bits(ctx.code.ext[(i.x + x) as usize]);
    (at(k), at(n + k))
}

/// Whether many of them leave the same, in whichever order they are made: then threads that do not
/// look at the results tell each other nothing by them.
fn any_order(op: Rmw, kind: AtomicKind) -> bool {
    matches!(
        kind,
        AtomicKind::B32 | AtomicKind::B64 | AtomicKind::S32 | AtomicKind::S64
    ) && matches!(
        op,
        Rmw::Add | Rmw::Min | Rmw::Max | Rmw::And | Rmw::Or | Rmw::Xor
    )
}

/// Whether memory has changed.
#[expect(clippy::too_many_arguments, reason = "an instruction taken apart")]
fn shared(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mask: u32,
    op: Rmw,
    kind: AtomicKind,
    red: bool,
    n: u32,
) -> bool {
    if n == 1 && op == Rmw::Add && matches!(kind, AtomicKind::B32 | AtomicKind::S32) {
        return shared_add(ctx, i, off, mask, red);
    }
    let mut changed = false;
    let mut m = mask;
    while m != 0 {
        let l = m.trailing_zeros() as usize;
        m &= m - 1;
        if kind == AtomicKind::B128 {
            let at = off[l] as usize;
            let mut b = [0; 16];
            b.copy_from_slice(&ctx.block.shared[at..at + 16]);
            let old = u128::from_le_bytes(b);
            let (x, y) = (wide_operand(ctx, i.b, l), wide_operand(ctx, i.c, l));
            let new = if op == Rmw::Exch {
                x
            } else if old == x {
                y
            } else {
                old
            };
            changed |= new != old;
            ctx.block.shared[at..at + 16].copy_from_slice(&new.to_le_bytes());
            ctx.rows.set_lane::<u64>(i.d, l, old as u64);
            ctx.rows.set_lane::<u64>(i.d.plus(2), l, (old >> 64) as u64);
            continue;
        }
        for k in 0..n {
            let (d, b) = vector(ctx, i, n, k);
            let size = kind.size() as usize;
            let at = off[l] as usize + k as usize * size;
            let mut bytes = [0u8; 8];
            bytes[..size].copy_from_slice(&ctx.block.shared[at..at + size]);
            let old = u64::from_le_bytes(bytes);
            let new = apply(
                op,
                kind,
                old,
                operand(ctx, b, kind, l),
                operand(ctx, i.c, kind, l),
            );
            changed |= new != old;
            ctx.block.shared[at..at + size].copy_from_slice(&new.to_le_bytes()[..size]);
            if !red {
                put(ctx, d, kind, l, old);
            }
        }
    }
    changed
}

/// What counters are made of: [`shared`] of one sum in 32 bits.
fn shared_add(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    off: &[u32; LANES],
    mask: u32,
    red: bool,
) -> bool {
    let more = ctx.rows.row::<u32>(i.b);
    let mut before = [0; LANES];
    let mut changed = 0;
    let memory = &mut ctx.block.shared[..];
    each(mask, |l| {
        let Some(cell) = memory[off[l] as usize..].first_chunk_mut::<4>() else {
            unreachable!("an admitted access is inside");
        };
        before[l] = u32::from_le_bytes(*cell);
        *cell = before[l].wrapping_add(more[l]).to_le_bytes();
        changed |= more[l];
    });
    if !red {
        ctx.rows.set_row(i.d, &before, mask);
    }
    changed != 0
}

/// Whether memory has changed.
#[expect(clippy::too_many_arguments, reason = "an instruction taken apart")]
fn global(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    addr: &[u64; LANES],
    mask: u32,
    op: Rmw,
    kind: AtomicKind,
    red: bool,
    n: u32,
) -> bool {
    if n == 1 && op == Rmw::Add && matches!(kind, AtomicKind::B32 | AtomicKind::S32) {
        return global_add(ctx, i, addr, mask, red);
    }
    let mut changed = false;
    let mut m = mask;
    while m != 0 {
        let l = m.trailing_zeros() as usize;
        m &= m - 1;
        let size = u64::from(kind.size());
        if !allow(ctx, i, l, addr[l], size * u64::from(n), AccessKind::Atomic) {
            continue;
        }
        let w = ctx.write_window;
        if kind == AtomicKind::B128 {
            let (x, y) = (wide_operand(ctx, i.b, l), wide_operand(ctx, i.c, l));
            let old = if op == Rmw::Cas {
                w.compare_exchange_128(addr[l], x, y)
            } else {
                let mut seen = 0;
                loop {
                    let now = w.compare_exchange_128(addr[l], seen, x);
                    if now == seen {
                        break now;
                    }
                    seen = now;
                }
            };
            changed |= op != Rmw::Cas || old == x && x != y;
            ctx.rows.set_lane::<u64>(i.d, l, old as u64);
            ctx.rows.set_lane::<u64>(i.d.plus(2), l, (old >> 64) as u64);
            continue;
        }
        for k in 0..n {
            let (d, bo) = vector(ctx, i, n, k);
            let at = addr[l] + u64::from(k) * size;
            let (b, c) = (operand(ctx, bo, kind, l), operand(ctx, i.c, kind, l));
            macro_rules! exchange {
                ($cell:expr, $t:ty) => {{
                    let cell = $cell;
                    let mut seen = cell.load(Ordering::SeqCst);
                    loop {
                        let new = apply_global(op, kind, u64::from(seen), b, c) as $t;
                        match cell.compare_exchange_weak(
                            seen,
                            new,
                            Ordering::SeqCst,
                            Ordering::SeqCst,
                        ) {
                            Ok(old) => {
                                changed |= old != new;
                                break u64::from(old);
                            }
                            Err(now) => seen = now,
                        }
                    }
                }};
            }
            let old = match (op, kind) {
                (Rmw::Add, AtomicKind::B32 | AtomicKind::S32) => {
                    changed |= b as u32 != 0;
                    u64::from(w.atomic32(at).fetch_add(b as u32, Ordering::SeqCst))
                }
                (Rmw::Add, AtomicKind::B64 | AtomicKind::S64) => {
                    changed |= b != 0;
                    w.atomic64(at).fetch_add(b, Ordering::SeqCst)
                }
                _ => match size {
                    2 => exchange!(w.atomic16(at), u16),
                    4 => exchange!(w.atomic32(at), u32),
                    _ => exchange!(w.atomic64(at), u64),
                },
            };
            if !red {
                put(ctx, d, kind, l, old);
            }
        }
    }
    changed
}

/// What counters are made of: [`global`] of one sum in 32 bits.
fn global_add(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    addr: &[u64; LANES],
    mask: u32,
    red: bool,
) -> bool {
    let more = ctx.rows.row::<u32>(i.b);
    let mut before = [0; LANES];
    let (mut done, mut changed) = (0, 0);
    let mut window = ctx.write_window;
    each(mask, |l| {
        if !window.holds(addr[l], 4) || !addr[l].is_multiple_of(4) {
            if !allow(ctx, i, l, addr[l], 4, AccessKind::Atomic) {
                return;
            }
            window = ctx.write_window;
        }
        let cell = window.atomic32(addr[l]);
        before[l] = cell.fetch_add(more[l], Ordering::SeqCst);
        changed |= more[l];
        done |= 1 << l;
    });
    if !red {
        ctx.rows.set_row(i.d, &before, done);
    }
    changed != 0
}

/// Tells the checks that the lanes took part in the synchronisation at an address: `x` 1 acquires,
/// 2 releases, with `RELEASE` all that is before instead of what is before the last fence.
struct CheckSync;
impl Exec for CheckSync {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let shared = i.imm >> SPACE_SHIFT & 3 == 1;
        let addr = if shared {
            offsets(ctx, i).map(|o| u64::from(o) | SHARED_TAG)
        } else {
            addresses(ctx, i)
        };
        let mask = ctx.mask;
        for (mask, tag) in by_tag(&addr, mask) {
            // A thread's local memory is private.
            if mask != 0 && matches!(tag, 0 | SHARED_TAG) {
                if i.x == 1 {
                    checks::acquire(ctx, &addr, mask);
                } else {
                    checks::release(ctx, &addr, mask, published(i.imm));
                }
            }
        }
    }
}

fn emit_sync(l: &mut Lower<'_, '_>, base: Opd, wide: bool, offset: i32, shared: bool, x: u32) {
    let i = l.emit(
        handlers_plain::<CheckSync>(),
        Opd::None,
        base,
        Opd::None,
        Opd::None,
    );
    i.x = x;
    i.imm =
        u64::from(offset as u32) | if wide { WIDE } else { 0 } | (u64::from(shared) << SPACE_SHIFT);
}

/// Behind a strong load, with checks.
pub(crate) fn emit_acquire(
    l: &mut Lower<'_, '_>,
    base: Opd,
    wide: bool,
    offset: i32,
    shared: bool,
) {
    if l.k.checks {
        emit_sync(l, base, wide, offset, shared, 1);
    }
}

/// Before a strong store with such flags, with checks.
pub(crate) fn emit_release(
    l: &mut Lower<'_, '_>,
    base: Opd,
    wide: bool,
    offset: i32,
    shared: bool,
    flags: u64,
) {
    emit_sync(l, base, wide, offset, shared, 2);
    let cur = l.cur;
    if let Some(x) = l.blocks[cur].insts.last_mut() {
        x.imm |= flags & (RELEASE | BLOCK_SCOPE);
    }
}

/// `imm` with `BLOCK_SCOPE`: for the threads of the block only.
struct Fence<const CHECK: bool>;
impl<const CHECK: bool> Exec for Fence<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if CHECK {
            checks::fence(ctx, i.imm & BLOCK_SCOPE != 0);
        }
    }
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Option<Lowered<()>> {
    Some(match i.op {
        Op::Atom | Op::Red => atom(l, i, m),
        Op::Fence if m.has(Word::Proxy) => super::tensormap::lower_proxy_fence(l, m),
        Op::Membar | Op::Fence => {
            l.k.communicates = true;
            let h = if l.k.checks {
                handlers_plain::<Fence<true>>()
            } else {
                handlers_plain::<Fence<false>>()
            };
            let x = l.emit(h, Opd::None, Opd::None, Opd::None, Opd::None);
            x.imm = order_flags(m) & BLOCK_SCOPE;
            Ok(())
        }
        _ => return super::copies::lower(l, i, m),
    })
}

fn atom(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    if m.has(Word::Async) {
        return super::cluster_async::lower(l, i, m);
    }
    let ty = m
        .types()
        .last()
        .ok_or_else(|| LowerError::Bad("a type is missing".to_owned()))?;
    // The operation is the last word that is one: `.min` and `.and` are never anything else here.
    let op = m
        .words()
        .filter_map(|w| {
            Some(match w {
                Word::Add => Rmw::Add,
                Word::Exch => Rmw::Exch,
                Word::Cas => Rmw::Cas,
                Word::Inc => Rmw::Inc,
                Word::Dec => Rmw::Dec,
                Word::Min => Rmw::Min,
                Word::Max => Rmw::Max,
                Word::And => Rmw::And,
                Word::Or => Rmw::Or,
                Word::Xor => Rmw::Xor,
                _ => return None,
            })
        })
        .last()
        .ok_or(LowerError::Unsupported)?;
    let kind = match ty {
        Ty::B16 | Ty::U16 => AtomicKind::B16,
        Ty::B128 => AtomicKind::B128,
        Ty::S32 => AtomicKind::S32,
        Ty::S64 => AtomicKind::S64,
        Ty::F32 => AtomicKind::F32,
        Ty::F64 => AtomicKind::F64,
        Ty::F16 => AtomicKind::F16,
        Ty::Bf16 => AtomicKind::Bf16,
        Ty::F16x2 => AtomicKind::F16x2,
        Ty::Bf16x2 => AtomicKind::Bf16x2,
        _ if bits(ty) == 64 => AtomicKind::B64,
        _ if bits(ty) == 32 => AtomicKind::B32,
        _ => return Err(LowerError::Unsupported),
    };
    if kind == AtomicKind::B128 && !matches!(op, Rmw::Cas | Rmw::Exch) {
        return Err(LowerError::Unsupported);
    }
    let red = i.op == Op::Red;
    let skip = usize::from(!red);
    let Some(address) = i.operands.get(skip) else {
        return bad("too few operands");
    };
    let AddressOperand::Value {
        base,
        wide,
        offset,
        space: var,
    } = l.address(address)?
    else {
        return bad("an atomic on a parameter");
    };
    let shared = m
        .any(&[Word::Shared, Word::SharedCta, Word::SharedCluster])
        .is_some()
        || var == Some(fercuda_ptx::words::Space::Shared);
    let n = match m.any(&[Word::V2, Word::V4, Word::V8]) {
        Some(Word::V2) => 2,
        Some(Word::V4) => 4,
        Some(_) => 8,
        None => 1,
    };
    let mut ext = Vec::new();
    let mut b = Opd::None;
    let source = i
        .operands
        .get(skip + 1)
        .ok_or_else(|| LowerError::Bad("too few operands".to_owned()))?;
    if n == 1 {
        b = l.src(source, ty)?;
    } else {
        let Ast::Vector(sources) = source else {
            return bad("a vector is needed");
        };
        if sources.len() != n {
            return bad("a vector of the wrong length");
        }
        let dests = match i.operands.first() {
            Some(Ast::Vector(v)) if !red && v.len() == n => Some(v.clone()),
            _ => None,
        };
        for k in 0..n {
            let d = match &dests {
                Some(v) => l.dst(&v[k], ty)?,
                None => Opd::None,
            };
            ext.push(super::lower::Ext::Row(d));
        }
        for s in sources {
            let a = l.src(s, ty)?;
            ext.push(super::lower::Ext::Row(a));
        }
    }
    let c = match (op, i.operands.get(skip + 2)) {
        (Rmw::Cas, Some(c)) => l.src(c, ty)?,
        (Rmw::Cas, None) => return bad("cas needs a value"),
        _ => Opd::None,
    };
    let mut quiet = red;
    let d = if red || n > 1 {
        Opd::None
    } else {
        match &i.operands[0] {
            Ast::Name(s) if l.name(*s) == "_" => {
                quiet = true;
                Opd::None
            }
            o => l.dst(o, ty)?,
        }
    };
    if kind == AtomicKind::B128 && quiet {
        return Err(LowerError::Unsupported);
    }
    let is_read = l.result_is_used(i.line);
    let tallies = n == 1 && (quiet || i.line != 0 && !is_read) && any_order(op, kind);
    l.k.communicates |= !shared && !tallies || order_flags(m) & (ACQUIRE | RELEASE) != 0;
    let h = if l.k.checks {
        handlers_plain::<Atom<true>>()
    } else {
        handlers_plain::<Atom<false>>()
    };
    let variable = l.variable_of(address);
    let x = l.emit(h, d, base, b, c);
    x.x = variable;
    x.ext = ext;
    x.imm = u64::from(offset as u32)
        | if wide { WIDE } else { 0 }
        | (order_flags(m) & (ACQUIRE | RELEASE | STRONG | BLOCK_SCOPE))
        | ((op as u64) << RMW_SHIFT)
        | ((kind as u64) << KIND_SHIFT)
        | (u64::from(shared) << SPACE_SHIFT)
        | if m.has(Word::SharedCluster) {
            0
        } else {
            OWN_BLOCK
        }
        | if quiet { RED } else { 0 }
        | if is_read { READ } else { 0 }
        | ((n as u64) << COUNT_SHIFT);
    Ok(())
}
