//! Asynchronous copies, and the mbarriers that wait for them.
//!
//! A copy completes when it is issued or, with late copies configured, at the wait that requires
//! it. An mbarrier is eight bytes: arrivals still pending (20 bits), arrivals of a phase (20),
//! bytes of transactions still pending (23, signed), and the parity of the phase (1).

use std::ops::Range;

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{Op, ScalarType as Ty, Word};

use super::access::{NOWHERE, WIDE, allow, inside, offsets};
use super::checks::{self, CheckedAccess, MbarrierStep, Published};
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, handlers_plain};
use super::lower::{
    AddressOperand, LTerm, Lower, LowerError, Lowered, ModList, Opd, PredRef, bad, operand,
};
use super::registers::{LANES, PredOperand, each};
use super::state::PendingCopy;
use super::tags::{SHARED_TAG, TAG_MASK};
use crate::report::{AccessKind, MemSpace};

/// `cp.async`: `a` the shared address, `b` the global one, `c` the bytes to read, `imm` the bytes
/// to write.
struct CopyAsync<const CHECK: bool>;
impl<const CHECK: bool> Exec for CopyAsync<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let len = i.x & 0xff;
        let dst = offsets(ctx, i);
        let src = ctx.rows.row::<u64>(i.b);
        let mut read = ctx.rows.row::<u32>(i.c);
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
            for part in [4u32, 8, 16] {
                let these = (0..32)
                    .filter(|&l| read[l] == part)
                    .fold(0, |m, l| m | 1u32 << l)
                    & mask;
                if these != 0 {
                    let plain = CheckedAccess::plain(part, AccessKind::Read);
                    let refused = these & !checks::global(ctx, i, &src, these, plain);
                    // What may not be read has been reported; the copy goes on with zeros.
                    each(refused, |l| read[l] = 0);
                }
            }
            let mut copy = CheckedAccess::plain(len, AccessKind::AsyncCopy);
            copy.variable = i.x >> 8;
            mask = checks::shared(ctx, i, &dst, mask, copy);
        }
        let late = ctx.run.late_copies;
        let pc = if CHECK {
            ctx.run.prepared.global_pc(ctx.code, ctx.pc_of(i))
        } else {
            0
        };
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
                barrier: NOWHERE,
                pc,
            };
            if late {
                w.copies.push(copy);
                if CHECK && n != 0 {
                    read_later(&mut ctx.block.sources, src[l], n);
                }
            } else {
                land(ctx, copy);
            }
        }
    }
}

/// Extends the range of all sources by `len` bytes at `src`.
fn read_later(sources: &mut Range<u64>, src: u64, len: u32) {
    let end = src + u64::from(len);
    *sources = if sources.is_empty() {
        src..end
    } else {
        sources.start.min(src)..sources.end.max(end)
    };
}

/// Forgets the range of all sources if no copy is left.
fn forget_sources(ctx: &mut Ctx<'_>) {
    if !ctx.block.sources.is_empty() && ctx.block.warps.iter().all(|w| w.copies.is_empty()) {
        ctx.block.sources = 0..0;
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

/// Completes the copies of the active lanes in groups that are done: all but the last `keep`
/// committed groups.
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
    forget_sources(ctx);
}

/// Has the copies of the active lanes, as far as no other mbarrier does, complete with the one at
/// each lane's offset.
fn attach(ctx: &mut Ctx<'_>, mask: u32, off: &[u32; LANES]) {
    for copy in &mut ctx.w().copies {
        let lane = usize::from(copy.lane);
        if (mask >> lane) & 1 != 0 && copy.barrier == NOWHERE {
            copy.barrier = off[lane];
        }
    }
}

/// Completes the copies that the mbarrier at `at`, whose phase a thread has seen to be over, tells
/// of.
fn land_of_barrier(ctx: &mut Ctx<'_>, at: u32) {
    for warp in 0..ctx.block.warps.len() {
        let copies = &mut ctx.block.warps[warp].copies;
        if copies.iter().any(|c| c.barrier == at) {
            let (done, rest) = std::mem::take(copies)
                .into_iter()
                .partition::<Vec<_>, _>(|c| c.barrier == at);
            *copies = rest;
            done.into_iter().for_each(|c| land(ctx, c));
        }
    }
    forget_sources(ctx);
}

struct CommitGroup;
impl Exec for CommitGroup {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, _: &DecodedInst) {
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
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
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
struct MbarrierState {
    pending: i64,
    expected: i64,
    bytes: i64,
    phase: u64,
}

impl MbarrierState {
    fn unpack(v: u64) -> Self {
        MbarrierState {
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

/// `x` says which; `a` the address, `b` the count, bytes, state or parity, `d` the state, `imm`
/// bits 0..32 the predicate.
struct Mbarrier<const CHECK: bool>;
impl<const CHECK: bool> Exec for Mbarrier<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
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
            attach(ctx, mask_ok, &off);
        }
        let mut m = mask_ok;
        while m != 0 {
            let l = m.trailing_zeros() as usize;
            m &= m - 1;
            if what == Bar::PendingCount {
                let s = MbarrierState::unpack(ctx.rows.lane::<u64>(i.b, l));
                ctx.rows.set_lane::<u32>(i.d, l, s.pending as u32);
                continue;
            }
            let at = off[l] as usize;
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&ctx.block.shared[at..at + 8]);
            let raw = u64::from_le_bytes(bytes);
            let mut s = MbarrierState::unpack(raw);
            if CHECK {
                let one = [off[l] as u64 | SHARED_TAG; LANES];
                let step = match what {
                    Bar::Init => MbarrierStep::Init {
                        under_way: s.pending != s.expected || s.bytes != 0,
                    },
                    Bar::Inval => MbarrierStep::Inval,
                    _ => MbarrierStep::Use,
                };
                checks::mbarrier(ctx, i, off[l], l as u32, step);
                match what {
                    Bar::TestWait | Bar::TestParity => {}
                    Bar::Init => checks::initialised(ctx, off[l], 8),
                    _ => checks::release(ctx, &one, 1 << l, Published::All),
                }
            }
            match what {
                Bar::Init => {
                    let n = i64::from(ctx.rows.lane::<u32>(i.b, l));
                    s = MbarrierState {
                        pending: n,
                        expected: n,
                        bytes: 0,
                        phase: 0,
                    };
                }
                Bar::Inval => {
                    s = MbarrierState {
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
                // Without .noinc the arrival adds itself to the pending count first: no change in
                // sum.
                Bar::CopyArrive => s = s.settle(),
                Bar::CopyArriveNoinc => {
                    s.pending -= 1;
                    s = s.settle();
                }
                Bar::TestWait | Bar::TestParity => {
                    let done = if what == Bar::TestWait {
                        MbarrierState::unpack(ctx.rows.lane::<u64>(i.b, l)).phase != s.phase
                    } else {
                        u64::from(ctx.rows.lane::<u32>(i.b, l) & 1) != s.phase
                    };
                    if done {
                        out |= 1 << l;
                    }
                }
                Bar::PendingCount => {}
            }
            if out >> l & 1 != 0 {
                land_of_barrier(ctx, off[l]);
            }
            if CHECK && out >> l & 1 != 0 {
                let one = [off[l] as u64 | SHARED_TAG; LANES];
                checks::acquire(ctx, &one, 1 << l);
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
            ctx.spins = ctx.spins.wrapping_add(u32::from(out != mask));
            ctx.rows
                .set_pred(PredOperand::from_bits(i.imm as u32), out, mask);
        }
    }
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Option<Lowered<()>> {
    match i.op {
        Op::Cp => Some(cp(l, i, m)),
        Op::Mbarrier => Some(mbarrier(l, i, m)),
        _ => None,
    }
}

fn cp(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    if !m.has(Word::Async) || m.has(Word::Bulk) {
        return Err(LowerError::Unsupported);
    }
    let none = Opd::None;
    if m.has(Word::CommitGroup) {
        l.emit(handlers_plain::<CommitGroup>(), none, none, none, none);
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
        let (a, _) = shared_address(l, operand(i, 0)?)?;
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
    let AddressOperand::Value {
        base, wide, offset, ..
    } = l.address(dst)?
    else {
        return bad("a shared address is needed");
    };
    let AddressOperand::Value {
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
        return Err(LowerError::Unsupported);
    }
    // A fourth operand is the bytes to read, or a predicate that says to read none, or a cache
    // policy.
    let read = match rest.first() {
        Some(o) if !m.has(Word::L2CacheHint) || rest.len() > 1 => match l.pred(o) {
            Ok(p) if !matches!(o, Ast::Imm(_)) => {
                let t = l.temp_rows(1);
                let flip = match p {
                    PredRef::Use(v, n) => PredRef::Use(v, !n),
                    p => p,
                };
                let x = l.prepare(super::basics::from_pred(), Opd::Def(t), none, none, none);
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
    let variable = l.variable_of(dst);
    let x = l.emit(h, none, base, from, read);
    x.x = *len as u32 | variable << 8;
    x.imm = u64::from(offset as u32)
        | if wide { WIDE } else { 0 }
        | (((from_offset as i64 as u64) & 0xff_ffff) << 40);
    Ok(())
}

/// A shared or generic address as a 64-bit value.
fn shared_address(l: &mut Lower<'_, '_>, o: &Ast) -> Lowered<(Opd, u8)> {
    let AddressOperand::Value {
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
    l.prepare(super::basics::add64(), Opd::Def(t), base, c, Opd::None);
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

fn mbarrier(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let none = Opd::None;
    let count = |l: &mut Lower<'_, '_>, o: Option<&Ast>| match o {
        Some(o) => l.src(o, Ty::U32),
        None => Ok(l.c32(1)),
    };
    if m.has(Word::Init) {
        let (a, _) = shared_address(l, operand(i, 0)?)?;
        let n = l.src(operand(i, 1)?, Ty::U32)?;
        emit_mbarrier(l, Bar::Init, none, a, n);
    } else if m.has(Word::Inval) {
        let (a, _) = shared_address(l, operand(i, 0)?)?;
        emit_mbarrier(l, Bar::Inval, none, a, none);
    } else if m.has(Word::PendingCount) {
        let s = l.src(operand(i, 1)?, Ty::B64)?;
        let d = l.dst(operand(i, 0)?, Ty::U32)?;
        let zero = l.c64(0);
        emit_mbarrier(l, Bar::PendingCount, d, zero, s);
    } else if m.has(Word::TestWait) || m.has(Word::TryWait) {
        let (a, _) = shared_address(l, operand(i, 1)?)?;
        let (what, s) = if m.has(Word::Parity) {
            (Bar::TestParity, l.src(operand(i, 2)?, Ty::U32)?)
        } else {
            (Bar::TestWait, l.src(operand(i, 2)?, Ty::B64)?)
        };
        let p = l.pred_dst(operand(i, 0)?)?;
        emit_mbarrier(l, what, none, a, s);
        let cur = l.cur;
        if let Some(x) = l.blocks[cur].insts.last_mut() {
            x.imm_lo = Some(p);
        }
        // Other threads of the block must progress, since this one waits for them.
        if m.has(Word::TryWait) {
            let next = l.new_block();
            l.terminate_to(LTerm::Yield(next), next);
        }
    } else if m.has(Word::ExpectTx) && m.has(Word::Arrive)
        || m.any(&[Word::Arrive, Word::ArriveDrop]).is_some()
    {
        let (d, at) = match operand(i, 0)? {
            Ast::Name(s) if l.name(*s) == "_" => (none, 1),
            Ast::Name(_) => (l.dst(operand(i, 0)?, Ty::B64)?, 1),
            _ => (none, 0),
        };
        let (a, _) = shared_address(l, operand(i, at)?)?;
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
        let (a, _) = shared_address(l, operand(i, 0)?)?;
        let n = l.src(operand(i, 1)?, Ty::U32)?;
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
        return Err(LowerError::Unsupported);
    }
    Ok(())
}
