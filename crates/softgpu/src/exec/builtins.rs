//! Built-in device functions: `vprintf`, `__assertfail`, `malloc`, `free`.

use std::sync::Arc;

use super::access::local_get;
use super::checks;
use super::ctx::Ctx;
use super::kernel_heap::KernelHeap;
use super::program::{CallTerminator, Callee};
use super::registers::RowOperand;
use super::tags::{LOCAL_TAG, PARAM_TAG, SHARED_TAG, TAG_MASK};
use crate::report::{Access, AccessKind, FaultKind, Finding, FindingActor, FindingKind, MemSpace};

/// Longest string taken from memory, in bytes.
const MAX_STRING: usize = 1 << 16;

/// Calls a built-in function for the active lanes, at instruction `pc`.
pub(crate) fn call(
    ctx: &mut Ctx<'_>,
    callee: &Callee,
    site: &CallTerminator,
    pc: u32,
) -> Result<(), FaultKind> {
    let mask = ctx.mask;
    let lanes = (0..32usize).filter(move |&l| mask >> l & 1 != 0);
    match callee {
        Callee::Printf => {
            for l in lanes {
                let (format, values) = (argument(ctx, site, 0, l), argument(ctx, site, 1, l));
                let Some(format) = string(ctx, format, l) else {
                    return Err(FaultKind::IllegalInstruction(
                        "printf with an invalid format address".to_owned(),
                    ));
                };
                let read = |offset: usize, len: usize| {
                    (0..len).try_fold(0u64, |v, k| {
                        Some(
                            v | (u64::from(byte(ctx, values + (offset + k) as u64, l)?) << (8 * k)),
                        )
                    })
                };
                let (text, count) = super::printf::render(&format, read, |at| string(ctx, at, l));
                (ctx.run.spec.print)(&String::from_utf8_lossy(&text));
                if let Some(&(row, _)) = site.rets.first() {
                    ctx.rows.set_lane::<u32>(RowOperand::reg(row), l, count);
                }
            }
            Ok(())
        }
        Callee::AssertFail => {
            let l = mask.trailing_zeros() as usize & 31;
            let text = |n: usize| string(ctx, argument(ctx, site, n, l), l).unwrap_or_default();
            let text = |n: usize| String::from_utf8_lossy(&text(n)).into_owned();
            Err(FaultKind::Assert {
                message: text(0),
                file: text(1),
                line: argument(ctx, site, 2, l) as u32,
                function: text(3),
            })
        }
        Callee::Malloc => {
            for l in lanes {
                let size = argument(ctx, site, 0, l);
                let at = heap(ctx)?.malloc(size, &|| caller(ctx, pc, l)).unwrap_or(0);
                if let Some(&(row, rows)) = site.rets.first() {
                    ctx.rows.set_lane::<u32>(RowOperand::reg(row), l, at as u32);
                    if rows > 1 {
                        let high = (at >> 32) as u32;
                        ctx.rows.set_lane::<u32>(RowOperand::reg(row + 1), l, high);
                    }
                }
            }
            Ok(())
        }
        Callee::Free => {
            for l in lanes {
                let at = argument(ctx, site, 0, l);
                if at != 0 && !heap(ctx)?.free(at, &|| caller(ctx, pc, l)) {
                    not_a_block(ctx, pc, l, at)?;
                }
            }
            Ok(())
        }
        Callee::Direct(_) | Callee::Indirect(_) => Ok(()),
    }
}

fn heap(ctx: &Ctx<'_>) -> Result<Arc<KernelHeap>, FaultKind> {
    let none =
        || FaultKind::IllegalInstruction("the launch has no heap to allocate from".to_owned());
    ctx.run.spec.heap.clone().ok_or_else(none)
}

/// A thread as reports name the allocations it makes and frees.
fn caller(ctx: &Ctx<'_>, pc: u32, lane: usize) -> Arc<str> {
    let place = ctx.place(pc, lane as u32);
    format!(
        "{}, block {:?}, thread {:?}",
        place.kernel, place.block, place.thread
    )
    .into()
}

/// `free` of an address that no block starts at: a finding with checks, else a fault.
fn not_a_block(ctx: &mut Ctx<'_>, pc: u32, lane: usize, addr: u64) -> Result<(), FaultKind> {
    if ctx.run.spec.checks.is_none() {
        return Err(FaultKind::IllegalAddress(Access {
            kind: AccessKind::Write,
            space: MemSpace::Global,
            addr,
            len: 1,
        }));
    }
    let allocation = ctx.run.spec.space.find(addr);
    let note = match &allocation {
        Some(a) if a.start == addr && a.freed.is_some() => "freed a second time",
        Some(a) if a.start != addr => "freed, but not the first address of its allocation",
        _ => "freed, but no block of the device heap starts there",
    };
    let finding = Finding {
        kind: FindingKind::InvalidFree,
        access: None,
        actor: FindingActor::Thread(Box::new(ctx.place(pc, lane as u32)), None),
        note: format!("{addr:#x}, {note}"),
        allocation,
        other: None,
        count: 1,
    };
    checks::found(ctx, finding);
    Ok(())
}

/// Argument `n`, of 4 or 8 bytes by its size.
fn argument(ctx: &Ctx<'_>, site: &CallTerminator, n: usize, lane: usize) -> u64 {
    let Some(&(row, rows)) = site.args.get(n) else {
        return 0;
    };
    let word = |r| u64::from(ctx.rows.lane::<u32>(RowOperand::reg(r), lane));
    word(row) | if rows > 1 { word(row + 1) << 32 } else { 0 }
}

/// A byte at a generic address, or `None` where there is no memory.
fn byte(ctx: &Ctx<'_>, addr: u64, lane: usize) -> Option<u8> {
    let at = addr as u32;
    match addr & TAG_MASK {
        SHARED_TAG => ctx.block.shared.get(at as usize).copied(),
        LOCAL_TAG => {
            let words = &ctx.block.warps[ctx.warp].local;
            ((at as usize) < words.len() / 8).then(|| local_get::<u8>(words, at, lane))
        }
        PARAM_TAG => ctx.run.spec.params.get(at as usize).copied(),
        _ => {
            let w = ctx
                .run
                .spec
                .space
                .window(ctx.run.spec.device.ordinal, addr, false)?;
            Some(w.load::<u8>(addr))
        }
    }
}

fn string(ctx: &Ctx<'_>, addr: u64, lane: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        match byte(ctx, addr + out.len() as u64, lane)? {
            0 => return Some(out),
            b if out.len() < MAX_STRING => out.push(b),
            _ => return Some(out),
        }
    }
}
