//! Checks of `setmaxnreg`.

use super::super::ctx::Ctx;
use super::found::found;
use crate::report::{Finding, FindingActor, FindingKind};

/// What is wrong with a warp's number of registers; all are of a thread.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RegisterFault {
    /// The number at entry is not known, so the instruction is ignored.
    Unknown,
    /// More by `.dec`, or fewer by `.inc`.
    Direction { had: u32, wanted: u32 },
    /// Never to be had: the block's warps have `total` together, of which the others keep `others`.
    Exhausted {
        wanted: u32,
        total: u32,
        others: u32,
    },
}

/// Reports it of the instruction at `pc` of the bound function.
#[cold]
pub(crate) fn registers(ctx: &mut Ctx<'_>, pc: u32, fault: RegisterFault) {
    let note = match fault {
        RegisterFault::Unknown => "it is ignored: the kernel has neither .maxnreg \
             (__maxnreg__) nor both a block's size and .minnctapersm (two arguments of \
             __launch_bounds__)"
            .to_owned(),
        RegisterFault::Direction { had, wanted } if wanted > had => {
            format!("setmaxnreg.dec to {wanted} registers a thread of a warp that has {had}")
        }
        RegisterFault::Direction { had, wanted } => {
            format!("setmaxnreg.inc to {wanted} registers a thread of a warp that has {had}")
        }
        RegisterFault::Exhausted {
            wanted,
            total,
            others,
        } => format!(
            "the warp waits forever: it wants {} registers (32 times {wanted}), the block has {} \
             and its other warps keep {}",
            32 * wanted,
            32 * total,
            32 * others
        ),
    };
    let place = ctx.place(pc, ctx.mask.trailing_zeros() & 31);
    let finding = Finding {
        kind: FindingKind::RegisterFile,
        access: None,
        actor: FindingActor::Thread(Box::new(place), None),
        note,
        allocation: None,
        other: None,
        count: 1,
    };
    found(ctx, finding);
}
