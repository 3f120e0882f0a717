//! Atomics, fences, asynchronous copies and mbarriers.
//!
//! Atomics on global memory are the host's, sequentially consistent, which every order of the ISA allows.
//! A block runs on one host thread at a time, so those on shared memory are plain.
//!
//! An mbarrier is eight bytes: arrivals still pending (20 bits), arrivals of a phase (20), bytes of
//! transactions still pending (23, signed), and the parity of the phase (1).

use std::sync::atomic::Ordering;

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::access::{
    NOWHERE, STRONG, WIDE, addresses, admit_shared, allow, by_tag, inside, offsets,
};
use super::checks;
use super::ctx::{Ctx, PendingCopy, SHARED_TAG, TAG_MASK};
use super::lanes::{Exec, LANES, Operand, PredOperand, handlers_plain};
use super::lower::{self, Address, Lower, Lowered, Mods, Opd, P, Reason, bad, bits};
use super::memory::{ACQUIRE, RELEASE, order_flags};
use super::program::Inst;
use super::scalar::Round;
use super::scalar::float::{self, Extremum};
use super::scalar::half::{self, BF16, F16, Format};
use crate::report::{AccessKind, MemSpace};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Rmw {
    Add,
    Exch,
    Cas,
    Inc,
    Dec,
    Min,
    Max,
    And,
    Or,
    Xor,
}

const RMW: [Rmw; 10] = [
    Rmw::Add,
    Rmw::Exch,
    Rmw::Cas,
    Rmw::Inc,
    Rmw::Dec,
    Rmw::Min,
    Rmw::Max,
    Rmw::And,
    Rmw::Or,
    Rmw::Xor,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    B16,
    B32,
    B64,
    B128,
    S32,
    S64,
    F32,
    F64,
    F16,
    Bf16,
    F16x2,
    Bf16x2,
}

const KINDS: [Kind; 12] = [
    Kind::B16,
    Kind::B32,
    Kind::B64,
    Kind::B128,
    Kind::S32,
    Kind::S64,
    Kind::F32,
    Kind::F64,
    Kind::F16,
    Kind::Bf16,
    Kind::F16x2,
    Kind::Bf16x2,
];

impl Kind {
    fn size(self) -> u32 {
        match self {
            Kind::B16 | Kind::F16 | Kind::Bf16 => 2,
            Kind::B64 | Kind::S64 | Kind::F64 => 8,
            Kind::B128 => 16,
            _ => 4,
        }
    }
}

const RMW_SHIFT: u32 = 44;
const KIND_SHIFT: u32 = 48;
const SPACE_SHIFT: u32 = 52;
const RED: u64 = 1 << 56;
/// Elements of a vector `red`/`atom` of sm_90, in `ext`.
const COUNT_SHIFT: u32 = 57;

fn add_half(format: Format, a: u64, b: u64) -> u64 {
    let finish = half::Finish {
        ftz: false,
        sat: false,
        relu: false,
    };
    u64::from(half::add(format, a as u16, b as u16, finish))
}

/// The new value of a location of global memory, where the card adds in other units than in shared memory: f32 sums
/// flush subnormals on the way in and out, and f64 sums pass a NaN on as it is, the operand's before the location's.
fn apply_global(op: Rmw, kind: Kind, old: u64, b: u64, c: u64) -> u64 {
    match (op, kind) {
        (Rmw::Add, Kind::F32) => {
            let flush = float::Finish {
                ftz: true,
                sat: false,
            };
            let (x, y) = (f32::from_bits(old as u32), f32::from_bits(b as u32));
            u64::from(float::add(x, y, Round::Nearest, flush).to_bits())
        }
        (Rmw::Add, Kind::F64) if f64::from_bits(b).is_nan() => b,
        (Rmw::Add, Kind::F64) if f64::from_bits(old).is_nan() => old,
        _ => apply(op, kind, old, b, c),
    }
}

/// The new value of one location.
fn apply(op: Rmw, kind: Kind, old: u64, b: u64, c: u64) -> u64 {
    let half2 = |f: fn(u64, u64) -> u64| {
        f(old & 0xffff, b & 0xffff) | (f(old >> 16 & 0xffff, b >> 16 & 0xffff) << 16)
    };
    match (op, kind) {
        (Rmw::Exch, _) => b,
        (Rmw::Cas, _) => {
            if old == b {
                c
            } else {
                old
            }
        }
        (Rmw::And, _) => old & b,
        (Rmw::Or, _) => old | b,
        (Rmw::Xor, _) => old ^ b,
        (Rmw::Inc, _) => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        (Rmw::Dec, _) => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
        (Rmw::Add, Kind::F32) => {
            let r = f32::from_bits(old as u32) + f32::from_bits(b as u32);
            u64::from(if r.is_nan() { 0x7fff_ffff } else { r.to_bits() })
        }
        (Rmw::Add, Kind::F64) => {
            float::add_f64(f64::from_bits(b), f64::from_bits(old), Round::Nearest).to_bits()
        }
        (Rmw::Add, Kind::F16) => add_half(F16, old, b),
        (Rmw::Add, Kind::Bf16) => add_half(BF16, old, b),
        (Rmw::Add, Kind::F16x2) => half2(|x, y| add_half(F16, x, y)),
        (Rmw::Add, Kind::Bf16x2) => half2(|x, y| add_half(BF16, x, y)),
        (Rmw::Add, Kind::B64 | Kind::S64) => old.wrapping_add(b),
        (Rmw::Add, _) => u64::from((old as u32).wrapping_add(b as u32)),
        (Rmw::Min, Kind::S32) => u64::from((old as i32).min(b as i32) as u32),
        (Rmw::Max, Kind::S32) => u64::from((old as i32).max(b as i32) as u32),
        (Rmw::Min, Kind::S64) => (old as i64).min(b as i64) as u64,
        (Rmw::Max, Kind::S64) => (old as i64).max(b as i64) as u64,
        (Rmw::Min | Rmw::Max, Kind::F16 | Kind::Bf16 | Kind::F16x2 | Kind::Bf16x2) => {
            let brain = matches!(kind, Kind::Bf16 | Kind::Bf16x2);
            let format = if brain { BF16 } else { F16 };
            let rule = Extremum {
                max: op == Rmw::Max,
                nan: false,
                xorsign: false,
                ftz: false,
            };
            let one = |x: u64, y: u64| u64::from(half::extremum(format, x as u16, y as u16, rule));
            let low = one(old & 0xffff, b & 0xffff);
            if kind.size() == 2 {
                low
            } else {
                low | (one(old >> 16 & 0xffff, b >> 16 & 0xffff) << 16)
            }
        }
        (Rmw::Min, _) => old.min(b),
        (Rmw::Max, _) => old.max(b),
    }
}

struct Atom<const CHECK: bool>;
impl<const CHECK: bool> Exec for Atom<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
        let op = RMW[(i.imm >> RMW_SHIFT) as usize & 15];
        let kind = KINDS[(i.imm >> KIND_SHIFT) as usize & 15];
        let red = i.imm & RED != 0;
        let n = (i.imm >> COUNT_SHIFT) as u32 & 15;
        let size = kind.size() * n;
        ctx.waits += 1;
        let mask = ctx.mask;
        if CHECK && i.imm & RELEASE != 0 {
            checks::fence(ctx);
        }
        let space = (i.imm >> SPACE_SHIFT) & 3;
        let addr = if space == 1 {
            offsets(ctx, i).map(|o| u64::from(o) | SHARED_TAG)
        } else {
            addresses(ctx, i)
        };
        for (mut mask, tag) in by_tag(&addr, mask) {
            if mask == 0 {
                continue;
            }
            if tag == SHARED_TAG {
                let off: [u32; LANES] = std::array::from_fn(|l| addr[l] as u32);
                mask = admit_shared::<CHECK>(ctx, i, &off, mask, size, AccessKind::Atomic, true);
                if CHECK {
                    checks::synchronise(ctx, &addr, mask, true);
                }
                shared(ctx, i, &off, mask, op, kind, red, n);
            } else {
                if CHECK {
                    mask = checks::global(
                        ctx,
                        i,
                        &addr,
                        mask,
                        u64::from(size),
                        AccessKind::Atomic,
                        true,
                    );
                    checks::synchronise(ctx, &addr, mask, false);
                }
                global(ctx, i, &addr, mask, op, kind, red, n);
            }
        }
    }
}

fn operand(ctx: &Ctx<'_>, o: Operand, kind: Kind, lane: usize) -> u64 {
    if kind.size() == 8 {
        ctx.rows.lane::<u64>(o, lane)
    } else {
        u64::from(ctx.rows.lane::<u32>(o, lane))
    }
}

fn put(ctx: &mut Ctx<'_>, o: Operand, kind: Kind, lane: usize, v: u64) {
    if kind.size() == 8 {
        ctx.rows.set_lane::<u64>(o, lane, v)
    } else {
        ctx.rows.set_lane::<u32>(o, lane, v as u32)
    }
}

fn wide_operand(ctx: &Ctx<'_>, o: Operand, lane: usize) -> u128 {
    u128::from(ctx.rows.lane::<u64>(o, lane))
        | (u128::from(ctx.rows.lane::<u64>(o.plus(2), lane)) << 64)
}

/// (destination, source) of element `k` of a vector instruction.
fn vector(ctx: &Ctx<'_>, i: &Inst, n: u32, k: u32) -> (Operand, Operand) {
    if n == 1 {
        return (i.d, i.b);
    }
    let at = |x: u32| Operand::from_bits(ctx.code.ext[(i.x + x) as usize]);
    (at(k), at(n + k))
}

#[expect(clippy::too_many_arguments, reason = "an instruction taken apart")]
fn shared(
    ctx: &mut Ctx<'_>,
    i: &Inst,
    off: &[u32; LANES],
    mask: u32,
    op: Rmw,
    kind: Kind,
    red: bool,
    n: u32,
) {
    let mut m = mask;
    while m != 0 {
        let l = m.trailing_zeros() as usize;
        m &= m - 1;
        if kind == Kind::B128 {
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
            ctx.block.shared[at..at + size].copy_from_slice(&new.to_le_bytes()[..size]);
            if !red {
                put(ctx, d, kind, l, old);
            }
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "an instruction taken apart")]
fn global(
    ctx: &mut Ctx<'_>,
    i: &Inst,
    addr: &[u64; LANES],
    mask: u32,
    op: Rmw,
    kind: Kind,
    red: bool,
    n: u32,
) {
    let mut m = mask;
    while m != 0 {
        let l = m.trailing_zeros() as usize;
        m &= m - 1;
        let size = u64::from(kind.size());
        if !allow(ctx, i, l, addr[l], size * u64::from(n), AccessKind::Atomic) {
            continue;
        }
        let w = ctx.write_window;
        if kind == Kind::B128 {
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
                            Ok(old) => break u64::from(old),
                            Err(now) => seen = now,
                        }
                    }
                }};
            }
            let old = match (op, kind) {
                (Rmw::Add, Kind::B32 | Kind::S32) => {
                    u64::from(w.atomic32(at).fetch_add(b as u32, Ordering::SeqCst))
                }
                (Rmw::Add, Kind::B64 | Kind::S64) => w.atomic64(at).fetch_add(b, Ordering::SeqCst),
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
}

/// Tells the checks that the lanes took part in the synchronisation at an address: `x` 1 acquires, 2 releases.
struct CheckSync;
impl Exec for CheckSync {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
        let shared = i.imm >> SPACE_SHIFT & 3 == 1;
        let addr = if shared {
            offsets(ctx, i).map(|o| u64::from(o) | SHARED_TAG)
        } else {
            addresses(ctx, i)
        };
        let mask = ctx.mask;
        for (mask, tag) in by_tag(&addr, mask) {
            if mask != 0 {
                checks::one_way(ctx, &addr, mask, tag == SHARED_TAG, i.x == 1);
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

/// Before a strong store, with checks.
pub(crate) fn emit_release(
    l: &mut Lower<'_, '_>,
    base: Opd,
    wide: bool,
    offset: i32,
    shared: bool,
) {
    emit_sync(l, base, wide, offset, shared, 2);
}

struct Fence<const CHECK: bool>;
impl<const CHECK: bool> Exec for Fence<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, _: &Inst) {
        std::sync::atomic::fence(Ordering::SeqCst);
        if CHECK {
            checks::fence(ctx);
        }
    }
}

/// `cp.async`: `a` the shared address, `b` the global one, `c` the bytes to read, `imm` the bytes to write.
struct CopyAsync<const CHECK: bool>;
impl<const CHECK: bool> Exec for CopyAsync<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
        let len = i.x;
        let dst = offsets(ctx, i);
        let src = ctx.rows.row::<u64>(i.b);
        let read = ctx.rows.row::<u32>(i.c);
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
            mask = checks::shared(ctx, i, &dst, mask, len, AccessKind::AsyncCopy, false);
            for part in [4u32, 8, 16] {
                let these = (0..32)
                    .filter(|&l| read[l] == part)
                    .fold(0, |m, l| m | 1u32 << l)
                    & mask;
                if these != 0 {
                    mask &= checks::global(
                        ctx,
                        i,
                        &src,
                        these,
                        u64::from(part),
                        AccessKind::Read,
                        false,
                    ) | !these;
                }
            }
        }
        let late = ctx.run.late_copies;
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
            };
            if late {
                w.copies.push(copy);
            } else {
                land(ctx, copy);
            }
        }
    }
}

/// Does a copy that was put off.
fn land(ctx: &mut Ctx<'_>, c: PendingCopy) {
    let mut bytes = [0u8; 16];
    let window = ctx
        .run
        .spec
        .space
        .window(ctx.run.spec.device.ordinal, c.src, false);
    if c.src_len > 0
        && let Some(w) = window
        && w.holds(c.src, u64::from(c.src_len))
    {
        w.read_bytes(c.src, &mut bytes[..c.src_len as usize]);
    }
    let at = c.dst as usize;
    ctx.block.shared[at..at + c.len as usize].copy_from_slice(&bytes[..c.len as usize]);
    if ctx.run.spec.checks.is_some() {
        checks::landed(ctx, c);
    }
}

/// Lands the copies of the active lanes whose group is done: all but the last `keep` committed groups.
fn land_groups(ctx: &mut Ctx<'_>, mask: u32, keep: Option<u32>) {
    let warp = ctx.warp;
    let w = &mut ctx.block.warps[warp];
    if w.copies.is_empty() {
        return;
    }
    let (done, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut w.copies).into_iter().partition(|c| {
        let lane = usize::from(c.lane);
        (mask >> lane) & 1 != 0
            && keep.is_none_or(|n| c.group + n < w.groups.get(lane).copied().unwrap_or(0))
    });
    w.copies = rest;
    for c in done {
        land(ctx, c);
    }
}

struct Commit;
impl Exec for Commit {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, _: &Inst) {
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
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
        let mask = ctx.mask;
        land_groups(ctx, mask, (i.imm == 0).then_some(i.x));
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Bar {
    Init,
    Inval,
    Arrive,
    ArriveDrop,
    ExpectTx,
    CompleteTx,
    TestWait,
    TestParity,
    PendingCount,
    CopyArrive,
    CopyArriveNoinc,
    ArriveExpectTx,
}

const BARS: [Bar; 12] = [
    Bar::Init,
    Bar::Inval,
    Bar::Arrive,
    Bar::ArriveDrop,
    Bar::ExpectTx,
    Bar::CompleteTx,
    Bar::TestWait,
    Bar::TestParity,
    Bar::PendingCount,
    Bar::CopyArrive,
    Bar::CopyArriveNoinc,
    Bar::ArriveExpectTx,
];

#[derive(Debug, Clone, Copy)]
struct State {
    pending: i64,
    expected: i64,
    bytes: i64,
    phase: u64,
}

impl State {
    fn unpack(v: u64) -> Self {
        State {
            pending: (v & 0xf_ffff) as i64,
            expected: (v >> 20 & 0xf_ffff) as i64,
            bytes: ((v << 1) as i64) >> 41,
            phase: v >> 63,
        }
    }
    fn pack(self) -> u64 {
        (self.pending as u64 & 0xf_ffff)
            | ((self.expected as u64 & 0xf_ffff) << 20)
            | ((self.bytes as u64 & 0x7f_ffff) << 40)
            | (self.phase << 63)
    }
    fn settle(mut self) -> Self {
        if self.pending <= 0 && self.bytes == 0 {
            self.phase ^= 1;
            self.pending = self.expected;
        }
        self
    }
}

/// `x` says which; `a` the address, `b` the count, bytes, state or parity, `d` the state, `imm` bits 0..32 the predicate.
struct Mbarrier<const CHECK: bool>;
impl<const CHECK: bool> Exec for Mbarrier<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &Inst) {
        let what = BARS[i.x as usize];
        let mask = ctx.mask;
        let mut out = 0;
        let a = ctx.rows.row::<u64>(i.a);
        let off: [u32; LANES] = std::array::from_fn(|l| {
            if a[l] & TAG_MASK == SHARED_TAG || a[l] >> 32 == 0 {
                a[l] as u32
            } else {
                NOWHERE
            }
        });
        let mask_ok = if what == Bar::PendingCount {
            mask
        } else {
            let len = ctx.block.shared.len();
            inside(
                ctx,
                i,
                &off,
                mask,
                8,
                len,
                AccessKind::Atomic,
                MemSpace::Shared,
            )
        };
        if matches!(what, Bar::CopyArrive | Bar::CopyArriveNoinc) {
            land_groups(ctx, mask_ok, None);
        }
        let mut m = mask_ok;
        while m != 0 {
            let l = m.trailing_zeros() as usize;
            m &= m - 1;
            if what == Bar::PendingCount {
                let s = State::unpack(ctx.rows.lane::<u64>(i.b, l));
                ctx.rows.set_lane::<u32>(i.d, l, s.pending as u32);
                continue;
            }
            let at = off[l] as usize;
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&ctx.block.shared[at..at + 8]);
            let raw = u64::from_le_bytes(bytes);
            let mut s = State::unpack(raw);
            if CHECK {
                let one = [off[l] as u64 | SHARED_TAG; LANES];
                match what {
                    Bar::TestWait | Bar::TestParity => {}
                    Bar::Init => checks::initialised(ctx, off[l], 8),
                    _ => checks::synchronise_release(ctx, &one, 1 << l),
                }
            }
            match what {
                Bar::Init => {
                    let n = i64::from(ctx.rows.lane::<u32>(i.b, l));
                    s = State {
                        pending: n,
                        expected: n,
                        bytes: 0,
                        phase: 0,
                    };
                }
                Bar::Inval => {
                    s = State {
                        pending: 0,
                        expected: 0,
                        bytes: 0,
                        phase: 0,
                    }
                }
                Bar::Arrive | Bar::ArriveDrop => {
                    let n = i64::from(ctx.rows.lane::<u32>(i.b, l));
                    s.pending -= n;
                    if what == Bar::ArriveDrop {
                        s.expected -= n;
                    }
                    s = s.settle();
                }
                Bar::ArriveExpectTx => {
                    s.bytes += i64::from(ctx.rows.lane::<u32>(i.b, l));
                    s.pending -= 1;
                    s = s.settle();
                }
                Bar::ExpectTx => s.bytes += i64::from(ctx.rows.lane::<u32>(i.b, l)),
                Bar::CompleteTx => {
                    s.bytes -= i64::from(ctx.rows.lane::<u32>(i.b, l));
                    s = s.settle();
                }
                // Without .noinc the arrival adds itself to the pending count first: no change in sum.
                Bar::CopyArrive => s = s.settle(),
                Bar::CopyArriveNoinc => {
                    s.pending -= 1;
                    s = s.settle();
                }
                Bar::TestWait | Bar::TestParity => {
                    let done = if what == Bar::TestWait {
                        State::unpack(ctx.rows.lane::<u64>(i.b, l)).phase != s.phase
                    } else {
                        u64::from(ctx.rows.lane::<u32>(i.b, l) & 1) != s.phase
                    };
                    if done {
                        out |= 1 << l;
                    }
                }
                Bar::PendingCount => {}
            }
            if CHECK && out >> l & 1 != 0 {
                let one = [off[l] as u64 | SHARED_TAG; LANES];
                checks::synchronise_acquire(ctx, &one, 1 << l);
            }
            if !matches!(what, Bar::TestWait | Bar::TestParity) {
                ctx.block.shared[at..at + 8].copy_from_slice(&s.pack().to_le_bytes());
            }
            if matches!(what, Bar::Arrive | Bar::ArriveDrop | Bar::ArriveExpectTx)
                && i.imm & WIDE == 0
            {
                ctx.rows.set_lane::<u64>(i.d, l, raw);
            }
        }
        if matches!(what, Bar::TestWait | Bar::TestParity) {
            ctx.waits += 1;
            ctx.rows
                .set_pred(PredOperand::from_bits(i.imm as u32), out, mask);
        }
    }
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Option<Lowered<()>> {
    Some(match i.op {
        Op::Atom | Op::Red => atom(l, i, m),
        Op::Membar | Op::Fence => {
            if l.k.checks {
                l.emit(
                    handlers_plain::<Fence<true>>(),
                    Opd::None,
                    Opd::None,
                    Opd::None,
                    Opd::None,
                );
            } else {
                l.emit(
                    handlers_plain::<Fence<false>>(),
                    Opd::None,
                    Opd::None,
                    Opd::None,
                    Opd::None,
                );
            }
            Ok(())
        }
        Op::Cp => cp(l, i, m),
        Op::Mbarrier => mbarrier(l, i, m),
        _ => return None,
    })
}

fn atom(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
    if m.has(Word::Async) {
        return Err(Reason::Unsupported);
    }
    let ty = m
        .types()
        .last()
        .ok_or_else(|| Reason::Bad("a type is missing".to_owned()))?;
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
        .ok_or(Reason::Unsupported)?;
    let kind = match ty {
        Ty::B16 | Ty::U16 => Kind::B16,
        Ty::B128 => Kind::B128,
        Ty::S32 => Kind::S32,
        Ty::S64 => Kind::S64,
        Ty::F32 => Kind::F32,
        Ty::F64 => Kind::F64,
        Ty::F16 => Kind::F16,
        Ty::Bf16 => Kind::Bf16,
        Ty::F16x2 => Kind::F16x2,
        Ty::Bf16x2 => Kind::Bf16x2,
        _ if bits(ty) == 64 => Kind::B64,
        _ if bits(ty) == 32 => Kind::B32,
        _ => return Err(Reason::Unsupported),
    };
    if kind == Kind::B128 && !matches!(op, Rmw::Cas | Rmw::Exch) {
        return Err(Reason::Unsupported);
    }
    let red = i.op == Op::Red;
    let skip = usize::from(!red);
    let Some(address) = i.operands.get(skip) else {
        return bad("too few operands");
    };
    let Address::Value {
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
        .ok_or_else(|| Reason::Bad("too few operands".to_owned()))?;
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
    if kind == Kind::B128 && quiet {
        return Err(Reason::Unsupported);
    }
    let h = if l.k.checks {
        handlers_plain::<Atom<true>>()
    } else {
        handlers_plain::<Atom<false>>()
    };
    let x = l.emit(h, d, base, b, c);
    x.ext = ext;
    x.imm = u64::from(offset as u32)
        | if wide { WIDE } else { 0 }
        | (order_flags(m) & (ACQUIRE | RELEASE | STRONG))
        | ((op as u64) << RMW_SHIFT)
        | ((kind as u64) << KIND_SHIFT)
        | (u64::from(shared) << SPACE_SHIFT)
        | if quiet { RED } else { 0 }
        | ((n as u64) << COUNT_SHIFT);
    Ok(())
}

fn cp(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
    if !m.has(Word::Async) || m.has(Word::Bulk) {
        return Err(Reason::Unsupported);
    }
    let none = Opd::None;
    if m.has(Word::CommitGroup) {
        l.emit(handlers_plain::<Commit>(), none, none, none, none);
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
        let (a, _) = shared_address(l, lower::operand(i, 0)?)?;
        let what = if m.has(Word::Noinc) {
            Bar::CopyArriveNoinc
        } else {
            Bar::CopyArrive
        };
        emit_mbarrier(l, what, none, a, none);
        return Ok(());
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
    let Address::Value {
        base, wide, offset, ..
    } = l.address(dst)?
    else {
        return bad("a shared address is needed");
    };
    let Address::Value {
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
        return Err(Reason::Unsupported);
    }
    // A fourth operand is the bytes to read, or a predicate that says to read none, or a cache policy.
    let read = match rest.first() {
        Some(o) if !m.has(Word::L2CacheHint) || rest.len() > 1 => match l.pred(o) {
            Ok(p) if !matches!(o, Ast::Imm(_)) => {
                let t = l.temp_rows(1);
                let flip = match p {
                    P::Use(v, n) => P::Use(v, !n),
                    p => p,
                };
                let x = l.prepare(super::data::from_pred(), Opd::Def(t), none, none, none);
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
    let x = l.emit(h, none, base, from, read);
    x.x = *len as u32;
    x.imm = u64::from(offset as u32)
        | if wide { WIDE } else { 0 }
        | (((from_offset as i64 as u64) & 0xff_ffff) << 40);
    Ok(())
}

/// A shared or generic address as a 64-bit value.
fn shared_address(l: &mut Lower<'_, '_>, o: &Ast) -> Lowered<(Opd, u8)> {
    let Address::Value {
        base, wide, offset, ..
    } = l.address(o)?
    else {
        return bad("a shared address is needed");
    };
    let base = l.resize(base, if wide { 2 } else { 1 }, 2, false);
    if offset == 0 {
        return Ok((base, 2));
    }
    let (t, c) = (l.temp_rows(2), l.c64(i64::from(offset) as u64));
    l.prepare(super::alu_int::add64(), Opd::Def(t), base, c, Opd::None);
    Ok((Opd::Use(t), 2))
}

fn emit_mbarrier(l: &mut Lower<'_, '_>, what: Bar, d: Opd, a: Opd, b: Opd) {
    let h = if l.k.checks {
        handlers_plain::<Mbarrier<true>>()
    } else {
        handlers_plain::<Mbarrier<false>>()
    };
    let x = l.emit(h, d, a, b, Opd::None);
    x.x = what as u32;
    x.imm = if d == Opd::None { WIDE } else { 0 };
}

fn mbarrier(l: &mut Lower<'_, '_>, i: &Tree, m: &Mods<'_>) -> Lowered<()> {
    let none = Opd::None;
    let count = |l: &mut Lower<'_, '_>, o: Option<&Ast>| match o {
        Some(o) => l.src(o, Ty::U32),
        None => Ok(l.c32(1)),
    };
    if m.has(Word::Init) {
        let (a, _) = shared_address(l, lower::operand(i, 0)?)?;
        let n = l.src(lower::operand(i, 1)?, Ty::U32)?;
        emit_mbarrier(l, Bar::Init, none, a, n);
    } else if m.has(Word::Inval) {
        let (a, _) = shared_address(l, lower::operand(i, 0)?)?;
        emit_mbarrier(l, Bar::Inval, none, a, none);
    } else if m.has(Word::PendingCount) {
        let s = l.src(lower::operand(i, 1)?, Ty::B64)?;
        let d = l.dst(lower::operand(i, 0)?, Ty::U32)?;
        let zero = l.c64(0);
        emit_mbarrier(l, Bar::PendingCount, d, zero, s);
    } else if m.has(Word::TestWait) || m.has(Word::TryWait) {
        let (a, _) = shared_address(l, lower::operand(i, 1)?)?;
        let (what, s) = if m.has(Word::Parity) {
            (Bar::TestParity, l.src(lower::operand(i, 2)?, Ty::U32)?)
        } else {
            (Bar::TestWait, l.src(lower::operand(i, 2)?, Ty::B64)?)
        };
        let p = l.pred_dst(lower::operand(i, 0)?)?;
        emit_mbarrier(l, what, none, a, s);
        let cur = l.cur;
        if let Some(x) = l.blocks[cur].insts.last_mut() {
            x.imm_lo = Some(p);
        }
        // Others of the block must get on with what this one waits for.
        if m.has(Word::TryWait) {
            let next = l.new_block();
            l.terminate_to(super::lower::LTerm::Yield(next), next);
        }
    } else if m.has(Word::ExpectTx) && m.has(Word::Arrive)
        || m.any(&[Word::Arrive, Word::ArriveDrop]).is_some()
    {
        let (d, at) = match lower::operand(i, 0)? {
            Ast::Name(s) if l.name(*s) == "_" => (none, 1),
            Ast::Name(_) => (l.dst(lower::operand(i, 0)?, Ty::B64)?, 1),
            _ => (none, 0),
        };
        let (a, _) = shared_address(l, lower::operand(i, at)?)?;
        let n = count(l, i.operands.get(at + 1))?;
        let what = if m.has(Word::ExpectTx) {
            Bar::ArriveExpectTx
        } else if m.has(Word::ArriveDrop) {
            Bar::ArriveDrop
        } else {
            Bar::Arrive
        };
        emit_mbarrier(l, what, d, a, n);
    } else if m.has(Word::ExpectTx) || m.has(Word::CompleteTx) {
        let (a, _) = shared_address(l, lower::operand(i, 0)?)?;
        let n = l.src(lower::operand(i, 1)?, Ty::U32)?;
        emit_mbarrier(
            l,
            if m.has(Word::ExpectTx) {
                Bar::ExpectTx
            } else {
                Bar::CompleteTx
            },
            none,
            a,
            n,
        );
    } else {
        return Err(Reason::Unsupported);
    }
    Ok(())
}
