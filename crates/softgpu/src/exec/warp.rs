//! Scheduling of a warp's splits: divergence and reconvergence.
//!
//! A split is a set of lanes at one program position. The split in the deepest call runs first,
//! among equals the one at the lowest block; blocks are numbered so that the other lanes reach the
//! position of those that are ahead ([`super::cfg`]). Splits that reach the same position merge.
//!
//! Invariants: the masks of a warp's splits are disjoint and together are its live lanes. A split
//! that has run long yields to another ready one, so lanes may wait for each other; one that seems
//! to wait for a word in memory does soon, to other warps too, so that waiting costs little.

use super::barrier;
use super::builtins;
use super::checks;
use super::ctx::{Ctx, FunctionCode};
use super::hang;
use super::lanes;
use super::program::{CallTerminator, Callee, Terminator};
use super::register_pool;
use super::registers::{FrameRows, LANES, RowOperand, each};
use super::state::{Frame, ProductGroups, Split, SplitOutcome, SplitState};
use super::tags::FUNCTION_TAG;
use super::wgmma;
use crate::report::{Fault, FaultKind};

/// Basic blocks that one split runs while another is ready.
const SPLIT_TURN: u32 = 4096;
/// Strong loads and idle atomics after which a split lets others run, as it may wait for them.
const SPLIT_SPINS: u32 = 8;
/// Bytes of stack that a call takes besides its local variables.
const CALL_BYTES: u64 = 64;

/// Why a warp stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WarpStop {
    /// No live lanes.
    Done,
    /// All splits wait at barriers.
    Blocked,
    /// Used its time slice up, or yielded.
    Yielded,
    /// `ctx.trouble` has the reason.
    Trouble,
}

/// Starts a warp of the kernel.
pub(crate) fn start(ctx: &mut Ctx<'_>, warp: usize, launched: u32) {
    let run = ctx.run;
    let code = &run.code().functions[0];
    // A block's last one has left the frame of the kernel.
    let old = ctx.block.warps[warp]
        .frames
        .first_mut()
        .and_then(Option::take);
    let rows = match old {
        Some(mut frame) if frame.rows.fits(code.rows, code.preds) => {
            if code.zeroed {
                frame.rows.clear();
            }
            frame.rows
        }
        _ => take_rows(ctx, code),
    };
    let w = &mut ctx.block.warps[warp];
    w.index = warp as u32;
    w.launched = launched;
    w.live = launched;
    w.splits.clear();
    w.frames.clear();
    w.copies.clear();
    w.groups.clear();
    w.products = ProductGroups::default();
    w.registers = None;
    w.cluster_arrived = 0;
    w.cluster_passed = 0;
    w.splits.push(Split {
        mask: launched,
        pc: 0,
        frame: 0,
        state: SplitState::Ready,
        tired: false,
    });
    w.frames.push(Some(Frame {
        function: 0,
        rows,
        parent: 0,
        call_block: 0,
        depth: 0,
        lanes: launched,
        local_base: 0,
        tops: None,
    }));
    w.local.clear();
    w.local.resize(code.local_bytes as usize * 8, 0);
    w.local_init.clear();
    if run.spec.checks.is_some() {
        w.local_init.resize(code.local_bytes as usize * 8, 0);
    }
}

/// Releases a finished warp's storage but for the kernel's frame, which the next block's has.
pub(crate) fn finish(ctx: &mut Ctx<'_>, warp: usize) {
    while ctx.block.warps[warp].frames.len() > 1 {
        if let Some(Some(f)) = ctx.block.warps[warp].frames.pop() {
            give_rows(ctx, f.rows);
        }
    }
}

fn take_rows(ctx: &mut Ctx<'_>, code: &FunctionCode) -> FrameRows {
    if let Some(at) = ctx
        .spare_frames
        .iter()
        .rposition(|f| f.fits(code.rows, code.preds))
    {
        let mut rows = ctx.spare_frames.swap_remove(at);
        if code.zeroed {
            rows.clear();
        }
        return rows;
    }
    FrameRows::new(code.rows, code.preds)
}

fn give_rows(ctx: &mut Ctx<'_>, rows: FrameRows) {
    if ctx.spare_frames.len() < 256 {
        ctx.spare_frames.push(rows);
    }
}

/// Binds the frame `frame` of the current warp.
fn bind(ctx: &mut Ctx<'_>, frame: u32) {
    let run = ctx.run;
    let Some(f) = ctx.block.warps[ctx.warp].frames[frame as usize].as_mut() else {
        unreachable!("a split's frame lives as long as the split");
    };
    let code = &run.code().functions[f.function as usize];
    let consts = run.consts(f.function as usize);
    // SAFETY: the frame's rows are boxed, and stay where they are until the frame ends, before
    // which another frame is bound; the constants live as long as the launch; `code` is set to the
    // function of both just below.
    unsafe { ctx.rows.bind(&mut f.rows, consts) };
    ctx.local_base = f.local_base;
    ctx.frame = frame;
    ctx.code = code;
}

/// Runs the current warp for at most `budget` basic blocks.
pub(crate) fn run(ctx: &mut Ctx<'_>, warp: usize, budget: &mut u32) -> WarpStop {
    ctx.warp = warp;
    loop {
        let Some(s) = choose(ctx) else {
            let w = &ctx.block.warps[warp];
            return if w.live == 0 {
                WarpStop::Done
            } else {
                WarpStop::Blocked
            };
        };
        match run_split(ctx, s, budget) {
            WarpStop::Done => {}
            other => return other,
        }
    }
}

/// The split to run next.
fn choose(ctx: &mut Ctx<'_>) -> Option<usize> {
    loop {
        let found = {
            let w = &ctx.block.warps[ctx.warp];
            if let [s] = w.splits.as_slice()
                && s.state == SplitState::Ready
            {
                return Some(0);
            }
            let depth = |s: &Split| w.frames[s.frame as usize].as_ref().map_or(0, |f| f.depth);
            w.splits
                .iter()
                .enumerate()
                .filter(|(_, s)| s.is_ready())
                .min_by_key(|(_, s)| (s.tired, std::cmp::Reverse(depth(s)), s.pc))
                .map(|(n, s)| (n, s.tired))
        };
        match found {
            Some((n, false)) => return Some(n),
            Some((_, true)) => ctx.w().splits.iter_mut().for_each(|s| s.tired = false),
            None if wake(ctx) => {}
            None => return None,
        }
    }
}

/// Whether each of its lanes has had its time slice or waits.
pub(crate) fn has_nothing_else(ctx: &mut Ctx<'_>) -> bool {
    ctx.w().splits.iter().all(|s| s.tired || !s.is_ready())
}

/// Checks waiting splits again when none of the warp is ready. Returns whether one became ready.
fn wake(ctx: &mut Ctx<'_>) -> bool {
    let n = ctx.w().splits.len();
    let mut woken = false;
    for s in 0..n {
        let split = ctx.w().splits[s];
        if split.state == SplitState::Parked && may_enter(ctx, s) {
            ctx.w().splits[s].state = SplitState::Ready;
            woken = true;
        }
    }
    woken |= wgmma::wake(ctx, select) | register_pool::wake(ctx, select);
    if woken || wake_scattered(ctx) {
        return true;
    }
    // Lanes at a barrier may still come; where there are none, no lane of the warp goes on.
    let may_come =
        |s: &Split| matches!(s.state, SplitState::Barrier(_) | SplitState::ClusterBarrier);
    if !ctx.w().splits.iter().any(may_come) && enter_alone(ctx) {
        return true;
    }
    // The rest of the warp waits elsewhere, possibly forever: these lanes arrive without it.
    while let Some(s) = ctx
        .w()
        .splits
        .iter()
        .position(|s| s.state == SplitState::AtBarrier)
    {
        let split = ctx.w().splits[s];
        select(ctx, &split);
        // Lanes that have exited meanwhile are not waited for.
        if split.mask != ctx.w().live {
            barrier::diverged(ctx, split.pc, split.mask);
        }
        barrier::arrive(ctx, s);
    }
    ctx.w().splits.iter().any(Split::is_ready)
}

/// With checks, has the lanes that wait for the rest of their warp, to execute an instruction of
/// the whole warp, go on without it: it never comes. Returns whether there are such.
pub(crate) fn enter_alone(ctx: &mut Ctx<'_>) -> bool {
    if ctx.run.spec.checks.is_none() {
        return false;
    }
    let run = ctx.run;
    let functions = &run.code().functions;
    let w = &mut ctx.block.warps[ctx.warp];
    let alone = w.splits.iter_mut().find(|s| {
        let frame = w.frames[s.frame as usize].as_ref();
        s.state == SplitState::Parked
            && frame.is_some_and(|f| functions[f.function as usize].blocks[s.pc as usize].whole)
    });
    match alone {
        Some(split) => {
            split.state = SplitState::Alone;
            true
        }
        None => false,
    }
}

/// Merges lanes of one mask at `bar.warp.sync`, also from different instances of it.
fn wake_scattered(ctx: &mut Ctx<'_>) -> bool {
    let n = ctx.w().splits.len();
    let mut union = 0;
    let mut wanted = 0;
    let mut members = Vec::new();
    let mut masks = [0; LANES];
    for s in 0..n {
        let split = ctx.w().splits[s];
        if split.state != SplitState::Parked {
            continue;
        }
        select(ctx, &split);
        let b = &ctx.code.blocks[split.pc as usize];
        if !matches!(b.term, Terminator::WarpSync(_))
            || b.start != b.end && ctx.run.spec.checks.is_none()
        {
            continue;
        }
        if let Some(mask) = b.sync {
            union |= split.mask;
            wanted |= needed(ctx, mask, split.mask);
            members.push(s);
            each(split.mask, |l| masks[l] = ctx.rows.lane::<u32>(mask, l));
        }
    }
    if members.is_empty() || wanted & !union != 0 {
        return false;
    }
    if ctx.run.spec.checks.is_some() {
        checks::lanes_met(ctx, union, &masks);
    }
    for s in members {
        ctx.w().splits[s].state = SplitState::Ready;
        // Passed the meeting point: the block has nothing but its end.
        let split = ctx.w().splits[s];
        select(ctx, &split);
        if let Terminator::WarpSync(next) = ctx.code.blocks[split.pc as usize].term {
            ctx.w().splits[s].pc = next;
        }
    }
    true
}

/// Live lanes that the lanes of `mask` name in their member masks.
fn needed(ctx: &Ctx<'_>, operand: RowOperand, mask: u32) -> u32 {
    let live = ctx.block.warps[ctx.warp].live;
    let mut want = 0;
    let mut m = mask;
    while m != 0 {
        want |= ctx.rows.lane::<u32>(operand, m.trailing_zeros() as usize);
        m &= m - 1;
    }
    want & live
}

fn may_enter(ctx: &mut Ctx<'_>, s: usize) -> bool {
    let split = ctx.w().splits[s];
    select(ctx, &split);
    match ctx.code.blocks[split.pc as usize].sync {
        Some(mask) => needed(ctx, mask, split.mask) & !split.mask == 0,
        None => true,
    }
}

fn select(ctx: &mut Ctx<'_>, split: &Split) {
    bind(ctx, split.frame);
    ctx.set_mask(split.mask);
}

/// Runs split `s` until it waits, ends, or another should run: then `Done`.
fn run_split(ctx: &mut Ctx<'_>, s: usize, budget: &mut u32) -> WarpStop {
    let split = ctx.w().splits[s];
    select(ctx, &split);
    if let SplitState::Passed(block, value) = split.state {
        ctx.w().splits[s].state = SplitState::Ready;
        barrier::give_result(ctx, block, value);
    }
    let mut alone = split.state == SplitState::Alone;
    if alone {
        ctx.w().splits[s].state = SplitState::Ready;
    }
    let mut pc = split.pc;
    let mut turn = SPLIT_TURN;
    let spins = ctx.spins;
    loop {
        let code = ctx.code;
        let b = &code.blocks[pc as usize];
        if !std::mem::take(&mut alone)
            && let Some(mask) = b.sync
            && ctx.mask != ctx.block.warps[ctx.warp].live
            && needed(ctx, mask, ctx.mask) & !ctx.mask != 0
        {
            let here = &mut ctx.w().splits[s];
            here.pc = pc;
            here.state = SplitState::Parked;
            merge(ctx, s);
            return WarpStop::Done;
        }
        ctx.instructions += u64::from(b.end - b.start) + 1;
        if ctx.block.book.watch.looking {
            hang::visit(ctx, b);
        }
        // SAFETY: `code` is the function of the frame that `bind` bound; both change together.
        unsafe { lanes::run(ctx, &code.insts[b.start as usize..b.end as usize]) };
        if ctx.trouble.is_some() {
            ctx.w().splits[s].pc = pc;
            return WarpStop::Trouble;
        }
        // Counted before the end of the block, which may be a barrier: that too was progress.
        *budget = budget.saturating_sub(1);
        match end(ctx, s, pc, &b.term) {
            SplitOutcome::Go(next) => pc = next,
            SplitOutcome::Choose => return WarpStop::Done,
            SplitOutcome::Yield(next) => {
                ctx.w().splits[s].pc = next;
                ctx.w().splits[s].tired = true;
                *budget = budget.saturating_sub(64);
                return WarpStop::Yielded;
            }
            SplitOutcome::Trouble => return WarpStop::Trouble,
        }
        if *budget == 0 {
            ctx.w().splits[s].pc = pc;
            ctx.w().splits[s].tired = true;
            return WarpStop::Yielded;
        }
        if ctx.spins.wrapping_sub(spins) >= SPLIT_SPINS {
            ctx.w().splits[s].pc = pc;
            ctx.w().splits[s].tired = true;
            // Lanes that it may wait for come first.
            return if has_nothing_else(ctx) {
                WarpStop::Yielded
            } else {
                WarpStop::Done
            };
        }
        if ctx.block.warps[ctx.warp].splits.len() > 1 {
            turn -= 1;
            ctx.w().splits[s].pc = pc;
            if turn == 0 {
                ctx.w().splits[s].tired = true;
                return WarpStop::Done;
            }
            if meet(ctx, s) {
                return WarpStop::Done;
            }
        }
    }
}

/// Joins split `s` with one at the same place, if there is one; whether another split should run
/// now.
fn meet(ctx: &mut Ctx<'_>, s: usize) -> bool {
    let w = &ctx.block.warps[ctx.warp];
    let me = w.splits[s];
    let mut other_first = false;
    let depth = |s: &Split| w.frames[s.frame as usize].as_ref().map_or(0, |f| f.depth);
    for (n, o) in w.splits.iter().enumerate() {
        if n == s {
            continue;
        }
        if o.frame == me.frame
            && o.pc == me.pc
            && matches!(o.state, SplitState::Ready | SplitState::Parked)
        {
            merge(ctx, s);
            return true;
        }
        if o.state == SplitState::Ready
            && !o.tired
            && (std::cmp::Reverse(depth(o)), o.pc) < (std::cmp::Reverse(depth(&me)), me.pc)
        {
            other_first = true;
        }
    }
    other_first
}

/// Joins every split that stands where split `s` does.
fn merge(ctx: &mut Ctx<'_>, s: usize) {
    let w = ctx.w();
    let me = w.splits[s];
    let mut mask = me.mask;
    let mut others = false;
    for (n, o) in w.splits.iter().enumerate() {
        if n != s
            && o.frame == me.frame
            && o.pc == me.pc
            && matches!(o.state, SplitState::Ready | SplitState::Parked)
        {
            mask |= o.mask;
            others = true;
        }
    }
    if !others {
        return;
    }
    w.splits[s].mask = mask;
    // Whether it may continue is checked when it is chosen.
    w.splits[s].state = SplitState::Ready;
    let keep = w.splits[s];
    let mut n = 0;
    w.splits.retain(|o| {
        n += 1;
        n - 1 == s || o.mask & keep.mask == 0
    });
}

/// Executes the terminator of block `pc` for split `s`.
fn end(ctx: &mut Ctx<'_>, s: usize, pc: u32, term: &Terminator) -> SplitOutcome {
    match term {
        Terminator::Jump(next) => SplitOutcome::Go(*next),
        Terminator::Branch { pred, taken, fall } => {
            let p = ctx.rows.pred(*pred) & ctx.mask;
            if p == ctx.mask {
                SplitOutcome::Go(*taken)
            } else if p == 0 {
                SplitOutcome::Go(*fall)
            } else {
                let rest = ctx.mask & !p;
                split_off(ctx, s, &[(p, *taken), (rest, *fall)])
            }
        }
        Terminator::Switch { index, targets } => {
            let row = ctx.rows.row::<u32>(*index);
            let mut parts: Vec<(u32, u32)> = Vec::new();
            let mut m = ctx.mask;
            while m != 0 {
                let l = m.trailing_zeros();
                m &= m - 1;
                let Some(&t) = targets.get(row[l as usize] as usize) else {
                    let why = format!(
                        "brx.idx with index {} of {}",
                        row[l as usize],
                        targets.len()
                    );
                    return fault(ctx, pc, l, FaultKind::IllegalInstruction(why));
                };
                match parts.iter_mut().find(|p| p.1 == t) {
                    Some(p) => p.0 |= 1 << l,
                    None => parts.push((1 << l, t)),
                }
            }
            if let [(_, t)] = parts.as_slice() {
                SplitOutcome::Go(*t)
            } else {
                split_off(ctx, s, &parts)
            }
        }
        Terminator::Call(site) => call(ctx, s, pc, site),
        Terminator::Ret => ret(ctx, s),
        Terminator::Exit => {
            exit(ctx, s);
            SplitOutcome::Choose
        }
        Terminator::Barrier(site) => barrier::barrier(ctx, s, pc, site),
        Terminator::WarpSync(next) => SplitOutcome::Go(*next),
        Terminator::Yield(next) => {
            ctx.waits += 1;
            SplitOutcome::Yield(*next)
        }
        Terminator::Nap(next) => {
            ctx.waits += 1;
            ctx.napped = true;
            SplitOutcome::Yield(*next)
        }
        Terminator::TakeRegisters { wanted, next } => {
            register_pool::take(ctx, s, pc, (*wanted, *next))
        }
        Terminator::AwaitProducts { keep, next } => wgmma::wait(ctx, s, pc, (*keep, *next)),
        Terminator::Trap => fault(ctx, pc, ctx.mask.trailing_zeros(), FaultKind::Trap),
        Terminator::NotImplemented(opcode) => {
            let line = ctx.code.origins[ctx.code.blocks[pc as usize].term_pc as usize].line;
            let kind = FaultKind::NotImplemented {
                opcode: opcode.to_string(),
                line,
            };
            fault(ctx, pc, ctx.mask.trailing_zeros(), kind)
        }
        Terminator::Bad(why) => {
            let kind = FaultKind::IllegalInstruction(why.to_string());
            fault(ctx, pc, ctx.mask.trailing_zeros(), kind)
        }
    }
}

/// The instruction by which reports name the end of block `pc`.
fn code_of_end(ctx: &Ctx<'_>, pc: u32) -> u32 {
    ctx.code.blocks[pc as usize].term_pc
}

fn fault(ctx: &mut Ctx<'_>, pc: u32, lane: u32, kind: FaultKind) -> SplitOutcome {
    let term_pc = code_of_end(ctx, pc);
    let place = Some(ctx.place(term_pc, lane & 31));
    ctx.trouble.get_or_insert_with(|| {
        Box::new(Fault {
            kind,
            place,
            allocation: None,
        })
    });
    SplitOutcome::Trouble
}

fn split_off(ctx: &mut Ctx<'_>, s: usize, parts: &[(u32, u32)]) -> SplitOutcome {
    let w = ctx.w();
    let me = w.splits.swap_remove(s);
    for &(mask, pc) in parts {
        if let Some(o) = w.splits.iter_mut().find(|o| {
            o.frame == me.frame
                && o.pc == pc
                && matches!(o.state, SplitState::Ready | SplitState::Parked)
        }) {
            o.mask |= mask;
            o.state = SplitState::Ready;
        } else {
            w.splits.push(Split { mask, pc, ..me });
        }
    }
    SplitOutcome::Choose
}

fn call(ctx: &mut Ctx<'_>, s: usize, pc: u32, site: &CallTerminator) -> SplitOutcome {
    let run = ctx.run;
    let function = match &site.callee {
        Callee::Direct(f) => *f,
        Callee::Indirect(o) => {
            let row = ctx.rows.row::<u64>(*o);
            let first = row[ctx.mask.trailing_zeros() as usize & 31];
            let same = (0..32)
                .filter(|&l| ctx.mask >> l & 1 != 0 && row[l] == first)
                .fold(0, |m, l| m | 1u32 << l);
            if same != ctx.mask {
                // One target at a time: the others stand before the same call.
                let rest = ctx.mask & !same;
                ctx.w().splits[s].mask = same;
                ctx.w().splits[s].pc = pc;
                let me = ctx.w().splits[s];
                ctx.w().splits.push(Split { mask: rest, ..me });
                ctx.set_mask(same);
            }
            let index = first & !FUNCTION_TAG;
            let found = (first & FUNCTION_TAG != 0)
                .then(|| run.code().by_index.get(index as usize).copied())
                .flatten()
                .filter(|&f| f != u32::MAX);
            match found {
                Some(f) => f,
                None => {
                    let why = format!("a call of {first:#x}, which is no function of this module");
                    return fault(
                        ctx,
                        pc,
                        ctx.mask.trailing_zeros(),
                        FaultKind::IllegalInstruction(why),
                    );
                }
            }
        }
        builtin => {
            return match builtins::call(ctx, builtin, site, code_of_end(ctx, pc)) {
                Ok(()) => SplitOutcome::Go(site.next),
                Err(kind) => fault(ctx, pc, ctx.mask.trailing_zeros(), kind),
            };
        }
    };
    let code = &run.code().functions[function as usize];
    let mut rows = take_rows(ctx, code);
    let mask = ctx.mask;
    let me = ctx.w().splits[s];
    let caller_index = me.frame;
    let w = &mut ctx.block.warps[ctx.warp];
    let Some(caller) = w.frames[caller_index as usize].as_mut() else {
        return SplitOutcome::Choose;
    };
    let caller_code = &run.code().functions[caller.function as usize];
    let base = match &caller.tops {
        None => caller.local_base + caller_code.local_bytes,
        Some(tops) => {
            let mut top = 0;
            each(mask, |l| top = top.max(tops[l]));
            top.next_multiple_of(16)
        }
    };
    let depth = caller.depth + 1;
    for (&(from, n), &(to, k)) in site.args.iter().zip(&code.params) {
        for r in 0..n.min(k) {
            *rows.row(to + r) = *caller.rows.row(from + r);
        }
    }
    let need = u64::from(base) + u64::from(code.local_bytes);
    if need + u64::from(depth) * CALL_BYTES > run.spec.device.stack_limit_bytes {
        give_rows(ctx, rows);
        let limit = run.spec.device.stack_limit_bytes;
        return fault(
            ctx,
            pc,
            mask.trailing_zeros(),
            FaultKind::StackOverflow { limit },
        );
    }
    if w.local.len() < need as usize * 8 {
        w.local.resize(need as usize * 8, 0);
    }
    if run.spec.checks.is_some() {
        // What lies behind a frame holds nothing: returning lanes leave it so.
        w.local_init.resize(w.local.len(), 0);
    }
    let frame = Frame {
        function,
        rows,
        parent: caller_index,
        call_block: pc,
        depth,
        lanes: mask,
        local_base: base,
        tops: None,
    };
    let at = match w.frames.iter().position(Option::is_none) {
        Some(at) => {
            w.frames[at] = Some(frame);
            at
        }
        None => {
            w.frames.push(Some(frame));
            w.frames.len() - 1
        }
    };
    let split = &mut w.splits[s];
    split.frame = at as u32;
    split.pc = 0;
    bind(ctx, at as u32);
    SplitOutcome::Go(0)
}

fn ret(ctx: &mut Ctx<'_>, s: usize) -> SplitOutcome {
    let run = ctx.run;
    let mask = ctx.mask;
    let frame = ctx.w().splits[s].frame;
    if frame == 0 {
        exit(ctx, s);
        return SplitOutcome::Choose;
    }
    let w = &mut ctx.block.warps[ctx.warp];
    let Some(mut f) = w.frames[frame as usize].take() else {
        return SplitOutcome::Choose;
    };
    let code = &run.code().functions[f.function as usize];
    let parent = f.parent;
    let Some(caller) = w.frames[parent as usize].as_mut() else {
        return SplitOutcome::Choose;
    };
    let site =
        match &run.code().functions[caller.function as usize].blocks[f.call_block as usize].term {
            Terminator::Call(site) => site,
            _ => unreachable!("a frame's call block ends with a call"),
        };
    for (&(to, n), &(from, k)) in site.rets.iter().zip(&code.rets) {
        for r in 0..n.min(k) {
            let source = *f.rows.row(from + r);
            let target = caller.rows.row(to + r);
            for l in (0..32).filter(|&l| mask >> l & 1 != 0) {
                target[l * 4..l * 4 + 4].copy_from_slice(&source[l * 4..l * 4 + 4]);
            }
        }
    }
    if run.spec.checks.is_some() {
        let (from, to) = (f.local_base, f.local_base + code.local_bytes);
        match &f.tops {
            None if to == from => {}
            None => w.forget_local(mask, |_| from..to),
            Some(tops) => w.forget_local(mask, |l| from..tops[l]),
        }
    }
    f.lanes &= !mask;
    let split = &mut w.splits[s];
    split.frame = parent;
    split.pc = site.next;
    let next = site.next;
    if f.lanes == 0 {
        give_rows(ctx, f.rows);
    } else {
        w.frames[frame as usize] = Some(f);
    }
    bind(ctx, parent);
    SplitOutcome::Go(next)
}

/// Ends the lanes of split `s`.
pub(crate) fn exit(ctx: &mut Ctx<'_>, s: usize) {
    let warp = ctx.warp;
    let w = &mut ctx.block.warps[warp];
    let me = w.splits.swap_remove(s);
    w.live &= !me.mask;
    let mut frame = me.frame;
    let mut gone = Vec::new();
    while let Some(f) = w.frames[frame as usize].as_mut() {
        f.lanes &= !me.mask;
        let parent = f.parent;
        if f.lanes == 0
            && frame != 0
            && let Some(f) = w.frames[frame as usize].take()
        {
            gone.push(f.rows);
        }
        if frame == 0 {
            break;
        }
        frame = parent;
    }
    for rows in gone {
        give_rows(ctx, rows);
    }
    barrier::exited(ctx);
}
