//! `setmaxnreg`: the registers of a block, which its warps give back and take.
//!
//! A block begins with as many registers for each warp as its kernel has at entry. That number is
//! known if the kernel says it (`.maxnreg`) or says how many blocks of which size are to run at
//! once (`.minnctapersm` with `.maxntid` or `.reqntid`); in other kernels NVIDIA's assembler
//! ignores the instruction, and so does this device. Registers here are those of a thread: a warp
//! takes 32 times as many. A warp that asks for more waits until others have given back enough.

use fercuda_ptx::ast::{Directive, Imm, Inst as Tree, Operand as Ast, PtxFunction};
use fercuda_ptx::words::Word;

use super::checks::{self, RegisterFault};
use super::ctx::{Ctx, DecodedInst};
use super::lanes::{Exec, handlers_plain};
use super::lower::{LTerm, Lower, Lowered, ModList, Opd, bad};
use super::pressure::BLOCK_REGISTERS;
use super::rendezvous::whole_warp;
use super::state::{Split, SplitOutcome, SplitState, WarpState};

/// The least that a warp may keep.
const LEAST: u32 = 24;
/// In steps of so many registers are given out.
const STEP: u32 = 8;

/// Registers of a thread when the kernel begins, if its header says it.
pub(crate) fn at_entry(kernel: &PtxFunction) -> Option<u32> {
    let numbers = |name: &str| {
        kernel.directives.iter().find_map(|d| match d {
            Directive::Numbers(n, values) if n == name => Some(values.as_slice()),
            _ => None,
        })
    };
    if let Some(&most) = numbers("maxnreg").and_then(<[u32]>::first) {
        return Some(most.next_multiple_of(STEP));
    }
    let blocks = numbers("minnctapersm")?.first().copied()?.max(1);
    let size = numbers("maxntid").or_else(|| numbers("reqntid"))?;
    let threads = size.iter().fold(1u32, |n, &t| n.saturating_mul(t.max(1)));
    let warps = threads.div_ceil(32).saturating_mul(blocks).max(1);
    Some((BLOCK_REGISTERS / 32 / warps / STEP * STEP).clamp(LEAST, 256))
}

/// Registers that a warp has now.
fn of_warp(ctx: &Ctx<'_>, warp: usize, at_entry: u32) -> u32 {
    ctx.block.warps[warp].registers.unwrap_or(at_entry)
}

/// What the block has for all its warps, and what they have now.
fn pool(ctx: &Ctx<'_>, at_entry: u32) -> (u32, u32) {
    let warps = ctx.block.warps.len();
    let used = (0..warps).map(|w| of_warp(ctx, w, at_entry)).sum();
    (at_entry * warps as u32, used)
}

/// `setmaxnreg.dec`: `x` the registers that the warp keeps.
struct GiveRegisters<const CHECK: bool>;
impl<const CHECK: bool> Exec for GiveRegisters<CHECK> {
    fn run<const FULL: bool>(ctx: &mut Ctx<'_>, i: &DecodedInst) {
        let pc = ctx.pc_of(i);
        let Some(at_entry) = ctx.run.code().registers_at_entry else {
            if CHECK {
                checks::registers(ctx, pc, RegisterFault::Unknown);
            }
            return;
        };
        let warp = ctx.warp;
        let had = of_warp(ctx, warp, at_entry);
        if CHECK && i.x > had {
            checks::registers(ctx, pc, RegisterFault::Direction { had, wanted: i.x });
        }
        ctx.w().registers = Some(i.x.min(had));
    }
}

/// Split `s` asks at the end of block `pc` for so many registers, and goes on at `next`.
pub(crate) fn take(
    ctx: &mut Ctx<'_>,
    s: usize,
    pc: u32,
    (wanted, next): (u32, u32),
) -> SplitOutcome {
    let term = ctx.code.blocks[pc as usize].term_pc;
    let is_checked = ctx.run.spec.checks.is_some();
    let Some(at_entry) = ctx.run.code().registers_at_entry else {
        if is_checked {
            checks::registers(ctx, term, RegisterFault::Unknown);
        }
        return SplitOutcome::Go(next);
    };
    let had = of_warp(ctx, ctx.warp, at_entry);
    if is_checked && wanted < had {
        checks::registers(ctx, term, RegisterFault::Direction { had, wanted });
    }
    if try_take(ctx, pc, wanted, at_entry) {
        return SplitOutcome::Go(next);
    }
    let split = &mut ctx.w().splits[s];
    split.pc = pc;
    split.state = SplitState::Registers { wanted, next };
    SplitOutcome::Choose
}

/// Whether the current warp has got them. With checks, a warp that can never get them is reported
/// and goes on.
fn try_take(ctx: &mut Ctx<'_>, pc: u32, wanted: u32, at_entry: u32) -> bool {
    let warp = ctx.warp;
    let (total, used) = pool(ctx, at_entry);
    let had = of_warp(ctx, warp, at_entry);
    if used - had + wanted > total {
        // A warp that has said what it keeps, or asks for more, is taken at its word; another may
        // give back all but the least.
        let asks = |w: &WarpState| {
            let states = w.splits.iter().map(|s| s.state);
            w.registers.is_some()
                || w.live == 0
                || states
                    .into_iter()
                    .any(|s| matches!(s, SplitState::Registers { .. }))
        };
        let others = (0..ctx.block.warps.len()).filter(|&w| w != warp);
        let least = others.map(|w| match asks(&ctx.block.warps[w]) {
            true => of_warp(ctx, w, at_entry),
            false => LEAST,
        });
        let least: u32 = least.sum();
        if least + wanted <= total || ctx.run.spec.checks.is_none() {
            return false;
        }
        let term = ctx.code.blocks[pc as usize].term_pc;
        let fault = RegisterFault::Exhausted {
            wanted,
            total,
            others: least,
        };
        checks::registers(ctx, term, fault);
        return true;
    }
    ctx.w().registers = Some(wanted);
    true
}

/// Has splits of the current warp go on that get the registers they wait for. Returns whether there
/// are such.
pub(crate) fn wake(ctx: &mut Ctx<'_>, select: impl Fn(&mut Ctx<'_>, &Split)) -> bool {
    let mut woken = false;
    for s in 0..ctx.w().splits.len() {
        let split = ctx.w().splits[s];
        let (SplitState::Registers { wanted, next }, Some(at_entry)) =
            (split.state, ctx.run.code().registers_at_entry)
        else {
            continue;
        };
        select(ctx, &split);
        if try_take(ctx, split.pc, wanted, at_entry) {
            let split = &mut ctx.w().splits[s];
            split.state = SplitState::Ready;
            split.pc = next;
            woken = true;
        }
    }
    woken
}

pub(crate) fn lower(l: &mut Lower<'_, '_>, i: &Tree, m: &ModList<'_>) -> Lowered<()> {
    let Some(&Ast::Imm(Imm::Int { value, .. })) = i.operands.first() else {
        return bad("a number of registers is needed");
    };
    let count = u32::try_from(value).unwrap_or(0);
    if !(LEAST..=256).contains(&count) || !count.is_multiple_of(STEP) {
        return bad(format!(
            "{value} registers, expected a multiple of 8 in 24 to 256"
        ));
    }
    whole_warp(l);
    if m.has(Word::Inc) {
        let next = l.new_block();
        l.terminate_to(LTerm::TakeRegisters(count, next), next);
        return Ok(());
    }
    let none = Opd::None;
    let h = match l.k.checks {
        true => handlers_plain::<GiveRegisters<true>>(),
        false => handlers_plain::<GiveRegisters<false>>(),
    };
    l.emit(h, none, none, none, none).x = count;
    Ok(())
}
