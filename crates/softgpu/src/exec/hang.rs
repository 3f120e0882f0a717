//! Blocks whose threads all wait for mbarriers that nothing can complete.
//!
//! A wait for an mbarrier is a loop, so such a block never stops by itself. When no mbarrier has
//! changed for many turns of all warps, everything that they execute is looked at: if for a while
//! they do nothing that could change memory or end a loop by what others do, and each live thread
//! has asked in vain for a phase, nothing will ever change.
//!
//! Invariants: a block in which some thread stores, arrives, reads global memory or ends is not
//! stuck. Threads that count their polls or read a clock are given much longer. Blocks of clusters
//! are not judged: others may complete their mbarriers.

use super::checks;
use super::ctx::{Ctx, LaunchRun};
use super::mbarrier_state::MbarrierState;
use super::program::{Callee, CodeBlock, Terminator};
use super::state::{FailedWait, HangWatch, SplitState};
use crate::report::{ExecutionPoint, Fault, FaultKind};

/// Rounds without a change of an mbarrier before the first look.
const FIRST_LOOK: u32 = 64;
/// Rounds that a look takes: each split of each warp has had a turn by then.
const LOOK: u32 = 64;
/// Looks that have to find all threads waiting.
const LOOKS: u32 = 4;
/// The longest time between two looks, in rounds.
const LAST_PATIENCE: u32 = 1 << 14;
/// How long threads that read a clock are watched, in nanoseconds.
const TIMED: u64 = 2_000_000_000;

/// Whether the block is stuck; then `ctx.trouble` says how. Called when all warps have had a turn.
#[inline]
pub(crate) fn is_stuck(ctx: &mut Ctx<'_>) -> bool {
    // Blocks of a cluster complete mbarriers of each other.
    if ctx.block.book.waits.is_empty() || ctx.run.cluster_size > 1 {
        return false;
    }
    let book = &mut ctx.block.book;
    let watch = &mut book.watch;
    if book.changes != watch.seen {
        *watch = HangWatch {
            seen: book.changes,
            patience: FIRST_LOOK,
            ..HangWatch::default()
        };
        book.waits.clear();
        return false;
    }
    watch.rounds += 1;
    look(ctx)
}

fn look(ctx: &mut Ctx<'_>) -> bool {
    let now = ctx.run.nanoseconds();
    let book = &mut ctx.block.book;
    let watch = &mut book.watch;
    if !watch.looking {
        if watch.rounds >= watch.patience {
            watch.looking = true;
            watch.is_alive = false;
            watch.rounds = 0;
            book.waits.clear();
        }
        return false;
    }
    if watch.rounds < LOOK && !watch.is_alive {
        return false;
    }
    let alive = watch.is_alive || !all_wait(ctx);
    let watch = &mut ctx.block.book.watch;
    watch.looking = false;
    watch.rounds = 0;
    watch.patience = (watch.patience * 2).min(LAST_PATIENCE);
    watch.found = if alive { 0 } else { watch.found + 1 };
    if watch.found < LOOKS {
        return false;
    }
    if let Some(since) = watch.timed
        && now.saturating_sub(since) < TIMED
    {
        return false;
    }
    stuck(ctx);
    true
}

/// Looks at what a split is about to execute.
#[cold]
pub(crate) fn visit(ctx: &mut Ctx<'_>, b: &CodeBlock) {
    let code = ctx.code;
    let opcodes = &ctx.run.code().opcodes;
    let mut alive = match &b.term {
        Terminator::Jump(_)
        | Terminator::Branch { .. }
        | Terminator::Switch { .. }
        | Terminator::Yield(_)
        | Terminator::Nap(_)
        | Terminator::WarpSync(_)
        | Terminator::Ret => false,
        Terminator::Call(site) => !matches!(site.callee, Callee::Direct(_) | Callee::Indirect(_)),
        _ => true,
    };
    let mut timed = false;
    for origin in &code.origins[b.start as usize..b.end as usize] {
        let Some(opcode) = opcodes.get(origin.opcode as usize) else {
            continue;
        };
        alive |= changes_something(opcode);
        // Special registers are read by moves; a clock differs from others by its cost alone, so
        // every loop with such a move is given the time.
        timed |= opcode.starts_with("mov") && opcode.ends_with("64");
    }
    let now = ctx.run.nanoseconds();
    let watch = &mut ctx.block.book.watch;
    watch.is_alive |= alive;
    if timed {
        watch.timed.get_or_insert(now);
    }
}

/// Whether an instruction may change memory, or may read what another block changes.
fn changes_something(opcode: &str) -> bool {
    let (op, rest) = opcode.split_once('.').unwrap_or((opcode, ""));
    let has = |space: &str| rest.split('.').any(|w| w.split(':').next() == Some(space));
    match op {
        "mbarrier" => !(has("try_wait") || has("test_wait") || has("pending_count")),
        "ld" => !["shared", "local", "param", "const"].iter().any(|s| has(s)),
        "st" => !has("local"),
        "atom" | "red" | "cp" | "multimem" | "tex" | "tld4" | "suld" | "sust" | "sured"
        | "stmatrix" | "wmma" | "wgmma" | "griddepcontrol" | "bar" | "barrier" | "tensormap" => {
            true
        }
        _ => false,
    }
}

/// Whether each live thread has asked for a phase in vain since the look began, or waits for such
/// threads.
fn all_wait(ctx: &Ctx<'_>) -> bool {
    let block = &ctx.block;
    let splits = block
        .warps
        .iter()
        .flat_map(|w| w.splits.iter().map(move |s| (w.index, s)));
    let mut any = false;
    for (warp, split) in splits {
        match split.state {
            SplitState::Parked
            | SplitState::AtBarrier
            | SplitState::Barrier(_)
            | SplitState::Products { .. }
            | SplitState::Registers { .. } => continue,
            _ => {}
        }
        for lane in (0..32).filter(|l| split.mask >> l & 1 != 0) {
            if !block.book.waits.contains_key(&(warp * 32 + lane)) {
                return false;
            }
        }
        any = true;
    }
    any
}

/// `file.cu:7 (PTX line 12)`, as far as it is known.
fn line_of(run: &LaunchRun, pc: u32) -> String {
    let place = point_of(run, pc, [0; 3], 0);
    match place.source_name() {
        Some(source) => format!("{source} (PTX line {})", place.ptx_line),
        None => format!("PTX line {}", place.ptx_line),
    }
}

fn point_of(run: &LaunchRun, pc: u32, block: [u32; 3], thread: u32) -> ExecutionPoint {
    let (function, pc) = run.prepared.locate(pc);
    run.place(function, pc, block, run.thread_index(thread))
}

/// What an mbarrier that threads wait for still needs.
pub(crate) fn missing(ctx: &Ctx<'_>, wait: FailedWait) -> String {
    let s = MbarrierState::at(ctx, wait.at);
    let Some(origin) = ctx.block.book.origin(wait.at) else {
        return format!(
            "the mbarrier at shared {:#x}, which nothing has initialised",
            wait.at
        );
    };
    let mut text = format!(
        "phase {} (parity {}) of the mbarrier at shared {:#x}, initialised with {} arrivals at {}",
        origin.phases,
        s.parity,
        wait.at,
        origin.arrivals,
        line_of(ctx.run, origin.pc)
    );
    let mut missing = Vec::new();
    if s.pending > 0 {
        missing.push(format!("{} of {} arrivals", s.pending, s.expected));
    }
    if s.bytes > 0 {
        missing.push(format!("{} of {} bytes", s.bytes, origin.expected_bytes));
    }
    match missing.as_slice() {
        [] => {}
        all => {
            text += ": missing are ";
            text += &all.join(" and ");
        }
    }
    if s.bytes < 0 {
        let (more, all) = (-s.bytes, origin.expected_bytes);
        text += &format!("; {more} bytes more have arrived than the {all} that were expected");
    }
    let untouched = s.pending == s.expected && s.bytes == 0;
    if origin.phases > 0 && untouched {
        let (last, parity) = (origin.phases - 1, s.parity ^ 1);
        text += &format!(
            "; nothing has arrived in this phase, and phase {last}, for which one waits with \
             parity {parity}, is over"
        );
    } else if origin.phases == 0 && untouched && s.parity == 0 {
        text += "; nothing has arrived yet";
    }
    text
}

/// Ends the kernel, and says what is waited for.
#[cold]
fn stuck(ctx: &mut Ctx<'_>) {
    let mut waits: Vec<(u32, FailedWait)> =
        ctx.block.book.waits.iter().map(|(t, w)| (*t, *w)).collect();
    waits.sort_unstable_by_key(|(thread, _)| *thread);
    // One of each place and mbarrier, with the number of its threads.
    let mut groups: Vec<(u32, FailedWait, u32)> = Vec::new();
    for (thread, wait) in waits {
        match groups
            .iter_mut()
            .find(|g| (g.1.at, g.1.pc, g.1.parity) == (wait.at, wait.pc, wait.parity))
        {
            Some(group) => group.2 += 1,
            None => groups.push((thread, wait, 1)),
        }
    }
    let (run, block) = (ctx.run, ctx.block.index);
    let mut text = "all threads of the block wait, and nothing can end a wait".to_owned();
    for &(thread, wait, count) in groups.iter().take(8) {
        let t = run.thread_index(thread);
        let waiting = match count {
            1 => format!("thread ({},{},{}) waits", t[0], t[1], t[2]),
            _ => format!("{count} threads, ({},{},{}) first, wait", t[0], t[1], t[2]),
        };
        text += &format!(
            "\n   {waiting} at {} for {}",
            line_of(run, wait.pc),
            missing(ctx, wait)
        );
    }
    if run.spec.checks.is_some() {
        for &(thread, wait, _) in &groups {
            checks::never_completes(ctx, thread, wait, missing(ctx, wait));
        }
    }
    let place = groups
        .first()
        .map(|(thread, wait, _)| point_of(run, wait.pc, block, *thread));
    ctx.trouble = Some(Box::new(Fault {
        kind: FaultKind::Deadlock(text),
        place,
        allocation: None,
    }));
}

#[cfg(test)]
mod tests {
    use super::changes_something;

    #[test]
    fn waiting_changes_nothing_and_a_poll_of_global_memory_may_end() {
        for idle in [
            "mbarrier.try_wait.parity.shared::cta.b64",
            "mbarrier.test_wait.shared.b64",
            "ld.shared.u32",
            "ld.volatile.shared.u32",
            "ld.param.u64",
            "st.local.u32",
            "add.s32",
            "setp.eq.s32",
            "fence.acq_rel.gpu",
        ] {
            assert!(!changes_something(idle), "{idle}");
        }
        for busy in [
            "mbarrier.arrive.shared.b64",
            "mbarrier.init.shared.b64",
            "ld.global.u32",
            "ld.volatile.global.u32",
            "ld.acquire.gpu.global.u32",
            "ld.u32",
            "st.shared.u32",
            "atom.global.add.u32",
            "cp.async.bulk.commit_group",
        ] {
            assert!(changes_something(busy), "{busy}");
        }
    }
}
