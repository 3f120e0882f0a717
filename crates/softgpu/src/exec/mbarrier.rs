//! Mbarriers: phases that end when all arrivals and all bytes of transactions are there.
//!
//! An mbarrier is eight bytes ([`MbarrierState`]).
//!
//! Elsewhere: the initialising thread of each, and what is waited for
//! ([`super::state::MbarrierBook`]); checks ([`super::checks`]); blocks that wait in
//! vain ([`super::hang`]).

use fercuda_ptx::ast::{Inst as Tree, Operand as Ast};
use fercuda_ptx::words::{ScalarType as Ty, Word};

use super::access::{NOWHERE, WIDE, inside};
use super::checks::{self, CheckedAccess, MbarrierStep};
use super::cluster::{ClusterPlace, cluster_place, reachable};
use super::cluster_mbarrier::{RemoteArrival, arrive};
use super::ctx::{Ctx, DecodedInst};
use super::landing::{attach, land_of_barrier};
use super::lanes::{Exec, handlers_plain};
use super::lower::{AddressOperand, LTerm, Lower, LowerError, Lowered, ModList, Opd, bad, operand};
use super::mbarrier_state::{MbarrierState, raw};
use super::registers::{LANES, PredOperand, each};
use super::state::FailedWait;
use super::tags::{offset_of, shared_number};
use crate::report::{Access, AccessKind, FaultKind, MemSpace};

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
    ArriveDropExpectTx,
}

const BARS: [Bar; 13] = [
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
    Bar::ArriveDropExpectTx,
];

impl Bar {
    fn waits(self) -> bool {
        matches!(self, Bar::TestWait | Bar::TestParity)
    }
    /// Arrivals that it makes, where that is not an operand.
    fn arrivals(self, operand: i64) -> i64 {
        match self {
            Bar::Arrive | Bar::ArriveDrop => operand,
            Bar::ArriveExpectTx | Bar::ArriveDropExpectTx | Bar::CopyArriveNoinc => 1,
            _ => 0,
        }
    }
}

/// In `imm`: neither releases nor acquires.
const RELAXED: u64 = 1 << 33;
/// Must not end the phase.
const NO_COMPLETE: u64 = 1 << 34;
/// Bytes of transactions that an mbarrier counts, in either direction.
const MOST_BYTES: i64 = (1 << 20) - 1;

/// Writes the mbarrier at `at`, whose phase ends if nothing more is pending.
fn put(ctx: &mut Ctx<'_>, at: u32, s: MbarrierState) {
    let (s, ends) = s.settled();
    ctx.block.shared[at as usize..at as usize + 8].copy_from_slice(&s.pack().to_le_bytes());
    ctx.block.book.changed(at, ends);
    if ends && ctx.run.spec.checks.is_some() {
        checks::phase_over(ctx, at);
    }
}

/// Ends transactions of `bytes` at the mbarrier at `at`, which is inside and aligned.
pub(crate) fn complete_bytes(ctx: &mut Ctx<'_>, i: &DecodedInst, lane: usize, at: u32, bytes: u32) {
    let mut s = MbarrierState::at(ctx, at);
    s.bytes -= i64::from(bytes);
    if s.bytes < -MOST_BYTES {
        too_many(ctx, i, lane, at, s.bytes);
        return;
    }
    put(ctx, at, s);
}

#[cold]
fn too_many(ctx: &mut Ctx<'_>, i: &DecodedInst, lane: usize, at: u32, bytes: i64) {
    let why = format!(
        "{bytes} bytes of transactions at the mbarrier at shared {at:#x}, which counts up to \
         {MOST_BYTES} in either direction"
    );
    ctx.fail(i, lane as u32, FaultKind::IllegalInstruction(why));
}

/// `x` says which; `a` the address, `b` the count, bytes, state or parity, `c` the bytes of an
/// arrival that drops, `d` the state, `imm` bits 0..32 the predicate.
struct Mbarrier<const CHECK: bool>;
impl<const CHECK: bool> Exec for Mbarrier<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let what = BARS[i.x as usize];
        let mask = ctx.mask;
        if what == Bar::PendingCount {
            each(mask, |l| {
                let s = MbarrierState::unpack(ctx.rows.lane::<u64>(i.b, l));
                ctx.rows.set_lane::<u32>(i.d, l, s.pending as u32);
            });
            return;
        }
        let (off, mask) = places(ctx, i, what, mask);
        if matches!(what, Bar::CopyArrive | Bar::CopyArriveNoinc) {
            attach(ctx, mask, &off);
        }
        if what.waits() {
            wait::<CHECK>(ctx, i, what, &off, mask);
            return;
        }
        each(mask, |l| {
            let at = off[l];
            let before = raw(ctx, at);
            let s = MbarrierState::unpack(before);
            if CHECK {
                let step = match what {
                    Bar::Init => MbarrierStep::Init {
                        under_way: s.pending != s.expected || s.bytes != 0,
                    },
                    Bar::Inval => MbarrierStep::Inval,
                    _ => MbarrierStep::Use,
                };
                checks::mbarrier(ctx, i, at, l as u32, step);
                match what {
                    Bar::Init => checks::initialised(ctx, at, 8),
                    Bar::ExpectTx | Bar::CompleteTx => {}
                    _ if i.imm & RELAXED != 0 => {}
                    _ => checks::phase_release(ctx, at, 1 << l),
                }
            }
            change(ctx, i, what, l, (at, s));
            if i.imm & WIDE == 0 {
                ctx.rows.set_lane::<u64>(i.d, l, before);
            }
        });
    }
}

/// The offset of each lane's mbarrier, and the lanes that have one inside. Lanes that name one of
/// another block have arrived there.
fn places(ctx: &mut Ctx<'_>, i: &DecodedInst, what: Bar, mut mask: u32) -> ([u32; LANES], u32) {
    let a = ctx.rows.row::<u64>(i.a);
    let mut off = [NOWHERE; LANES];
    each(mask, |l| {
        let Some(number) = shared_number(a[l]) else {
            return;
        };
        match cluster_place(ctx, number) {
            ClusterPlace::Own(at) => off[l] = at,
            ClusterPlace::Other { .. } => {
                from_afar(ctx, i, what, l, number);
                mask &= !(1 << l);
            }
        }
    });
    let len = ctx.block.shared.len();
    let (kind, space) = (AccessKind::Atomic, MemSpace::Shared);
    let mask = inside(ctx, i, &off, mask, 8, len, kind, space);
    (off, mask)
}

/// Lane `l` arrives at the mbarrier of another block.
#[cold]
fn from_afar(ctx: &mut Ctx<'_>, i: &DecodedInst, what: Bar, l: usize, number: u32) {
    let access = Access {
        kind: AccessKind::Atomic,
        space: MemSpace::Shared,
        addr: number.into(),
        len: 8,
    };
    let operand = match what {
        Bar::Init | Bar::Inval | Bar::TestWait | Bar::TestParity => {
            return ctx.illegal(i, l as u32, access);
        }
        Bar::CopyArrive | Bar::CopyArriveNoinc | Bar::PendingCount => {
            return ctx.illegal(i, l as u32, access);
        }
        _ => i64::from(ctx.rows.lane::<u32>(i.b, l)),
    };
    let bytes = match what {
        Bar::ExpectTx | Bar::ArriveExpectTx | Bar::ArriveDropExpectTx => operand,
        Bar::CompleteTx => -operand,
        _ => 0,
    };
    let arrivals = what.arrivals(operand);
    let it = RemoteArrival {
        arrivals,
        drops: matches!(what, Bar::ArriveDrop | Bar::ArriveDropExpectTx),
        bytes,
        releases: arrivals > 0 && i.imm & RELAXED == 0,
    };
    let access = CheckedAccess::plain(8, AccessKind::Atomic);
    if let Some(rank) = reachable(ctx, i, l, number, access) {
        arrive(ctx, i, l, (rank, offset_of(number)), it);
    }
}

/// Changes the mbarrier `s` at `at` as lane `l` says.
fn change(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    what: Bar,
    l: usize,
    (at, mut s): (u32, MbarrierState),
) {
    let operand = match what {
        Bar::Inval | Bar::CopyArrive | Bar::CopyArriveNoinc => 0,
        _ => i64::from(ctx.rows.lane::<u32>(i.b, l)),
    };
    if matches!(what, Bar::Init | Bar::Inval) {
        if what == Bar::Init && !(1..=0xf_ffff).contains(&operand) {
            let why = format!("an mbarrier of {operand} arrivals, not 1 to {}", 0xf_ffff);
            ctx.fail(i, l as u32, FaultKind::IllegalInstruction(why));
            return;
        }
        s = MbarrierState {
            pending: operand,
            expected: operand,
            bytes: 0,
            parity: 0,
        };
        ctx.block.shared[at as usize..at as usize + 8].copy_from_slice(&s.pack().to_le_bytes());
        let pc = ctx.run.prepared.global_pc(ctx.code, ctx.pc_of(i));
        let thread = ctx.linear_thread(l as u32);
        let live = (what == Bar::Init).then_some((pc, thread, operand as u32));
        ctx.block.book.begun(at, live);
        return;
    }
    if matches!(
        what,
        Bar::ExpectTx | Bar::ArriveExpectTx | Bar::ArriveDropExpectTx
    ) {
        s.bytes += operand;
        ctx.block.book.expects(at, operand);
    }
    if what == Bar::CompleteTx {
        s.bytes -= operand;
    }
    if s.bytes.abs() > MOST_BYTES {
        too_many(ctx, i, l, at, s.bytes);
        return;
    }
    let arrivals = what.arrivals(operand);
    if arrivals > s.pending {
        checks::surplus_arrival(ctx, i, (at, l as u32), arrivals, s.pending);
    }
    s.pending = (s.pending - arrivals).max(0);
    if matches!(what, Bar::ArriveDrop | Bar::ArriveDropExpectTx) {
        s.expected = (s.expected - arrivals).max(0);
    }
    if i.imm & NO_COMPLETE != 0 && s.pending <= 0 && s.bytes == 0 {
        let why = format!("{arrivals} arrivals with .noComplete complete the phase");
        ctx.fail(i, l as u32, FaultKind::IllegalInstruction(why));
        return;
    }
    // An expectation alone ends no phase, nor does an arrival that adds itself first.
    if what == Bar::ExpectTx {
        ctx.block.shared[at as usize..at as usize + 8].copy_from_slice(&s.pack().to_le_bytes());
        ctx.block.book.changed(at, false);
    } else {
        put(ctx, at, s);
    }
}

/// Asks whether the phases that the lanes name are over.
fn wait<const CHECK: bool>(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    what: Bar,
    off: &[u32; LANES],
    mask: u32,
) {
    let mut out = 0;
    each(mask, |l| {
        let at = off[l];
        let s = MbarrierState::at(ctx, at);
        if CHECK {
            checks::mbarrier(ctx, i, at, l as u32, MbarrierStep::Use);
        }
        let parity = match what {
            Bar::TestWait => MbarrierState::unpack(ctx.rows.lane::<u64>(i.b, l)).parity,
            _ => u64::from(ctx.rows.lane::<u32>(i.b, l) & 1),
        };
        let thread = ctx.linear_thread(l as u32);
        if parity != s.parity {
            out |= 1 << l;
            land_of_barrier(ctx, at);
            ctx.block.book.waits.remove(&thread);
        } else {
            let pc = ctx.run.prepared.global_pc(ctx.code, ctx.pc_of(i));
            let wait = FailedWait { at, pc, parity };
            ctx.block.book.waits.insert(thread, wait);
        }
    });
    if CHECK && out != 0 {
        checks::phase_seen(ctx, i, off, out, i.imm & RELAXED == 0);
    }
    ctx.waits += 1;
    ctx.spins = ctx.spins.wrapping_add(u32::from(out != mask));
    ctx.rows
        .set_pred(PredOperand::from_bits(i.imm as u32), out, mask);
}

// ---- lowering -------------------------------------------------------------------------------

/// A shared or generic address as a 64-bit value.
pub(crate) fn shared_address(l: &mut Lower<'_, '_>, o: &Ast) -> Lowered<Opd> {
    let AddressOperand::Value {
        base, wide, offset, ..
    } = l.address(o)?
    else {
        return bad("a shared address is needed");
    };
    if !wide {
        // Offsets wrap in 32 bits.
        let base = match offset {
            0 => base,
            _ => {
                let (t, c) = (l.temp_rows(1), l.c32(offset as u32));
                l.prepare(super::basics::add32(), Opd::Def(t), base, c, Opd::None);
                Opd::Use(t)
            }
        };
        return Ok(l.resize(base, 1, 2, false));
    }
    if offset == 0 {
        return Ok(base);
    }
    let (t, c) = (l.temp_rows(2), l.c64(i64::from(offset) as u64));
    l.prepare(super::basics::add64(), Opd::Def(t), base, c, Opd::None);
    Ok(Opd::Use(t))
}

fn emit(l: &mut Lower<'_, '_>, what: Bar, d: Opd, a: Opd, b: Opd, flags: u64) {
    let h = if l.k.checks {
        handlers_plain::<Mbarrier<true>>()
    } else {
        handlers_plain::<Mbarrier<false>>()
    };
    let x = l.emit(h, d, a, b, Opd::None);
    x.x = what as u32;
    x.imm = flags | if d == Opd::None { WIDE } else { 0 };
}

/// `cp.async.mbarrier.arrive` at the address `o`.
pub(crate) fn lower_copy_arrive(l: &mut Lower<'_, '_>, o: &Ast, noinc: bool) -> Lowered<()> {
    let a = shared_address(l, o)?;
    let what = if noinc {
        Bar::CopyArriveNoinc
    } else {
        Bar::CopyArrive
    };
    emit(l, what, Opd::None, a, Opd::None, 0);
    Ok(())
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let none = Opd::None;
    let relaxed = if m.has(Word::Relaxed) { RELAXED } else { 0 };
    if m.has(Word::Init) {
        let a = shared_address(l, operand(i, 0)?)?;
        let n = l.src(operand(i, 1)?, Ty::U32)?;
        emit(l, Bar::Init, none, a, n, 0);
    } else if m.has(Word::Inval) {
        let a = shared_address(l, operand(i, 0)?)?;
        emit(l, Bar::Inval, none, a, none, 0);
    } else if m.has(Word::PendingCount) {
        let s = l.src(operand(i, 1)?, Ty::B64)?;
        let d = l.dst(operand(i, 0)?, Ty::U32)?;
        let zero = l.c64(0);
        emit(l, Bar::PendingCount, d, zero, s, 0);
    } else if m.has(Word::TestWait) || m.has(Word::TryWait) {
        let a = shared_address(l, operand(i, 1)?)?;
        // A fourth operand limits the time that the wait may take: it takes none here.
        let (what, s) = if m.has(Word::Parity) {
            (Bar::TestParity, l.src(operand(i, 2)?, Ty::U32)?)
        } else {
            (Bar::TestWait, l.src(operand(i, 2)?, Ty::B64)?)
        };
        let p = l.pred_dst(operand(i, 0)?)?;
        emit(l, what, none, a, s, relaxed);
        let cur = l.cur;
        if let Some(x) = l.blocks[cur].insts.last_mut() {
            x.imm_lo = Some(p);
        }
        // Other threads of the block must progress, since this one waits for them.
        if m.has(Word::TryWait) {
            let next = l.new_block();
            l.terminate_to(LTerm::Yield(next), next);
        }
    } else if m.any(&[Word::Arrive, Word::ArriveDrop]).is_some() {
        let (d, at) = match operand(i, 0)? {
            Ast::Name(s) if l.name(*s) == "_" => (none, 1),
            Ast::Name(_) => (l.dst(operand(i, 0)?, Ty::B64)?, 1),
            _ => (none, 0),
        };
        let a = shared_address(l, operand(i, at)?)?;
        let n = match i.operands.get(at + 1) {
            Some(o) => l.src(o, Ty::U32)?,
            None => l.c32(1),
        };
        let what = match (m.has(Word::ArriveDrop), m.has(Word::ExpectTx)) {
            (false, false) => Bar::Arrive,
            (true, false) => Bar::ArriveDrop,
            (false, true) => Bar::ArriveExpectTx,
            (true, true) => Bar::ArriveDropExpectTx,
        };
        let keeps = if m.has(Word::NoComplete) {
            NO_COMPLETE
        } else {
            0
        };
        emit(l, what, d, a, n, relaxed | keeps);
    } else if m.has(Word::ExpectTx) || m.has(Word::CompleteTx) {
        let a = shared_address(l, operand(i, 0)?)?;
        let n = l.src(operand(i, 1)?, Ty::U32)?;
        let what = if m.has(Word::ExpectTx) {
            Bar::ExpectTx
        } else {
            Bar::CompleteTx
        };
        emit(l, what, none, a, n, 0);
    } else {
        return Err(LowerError::Unsupported);
    }
    Ok(())
}
