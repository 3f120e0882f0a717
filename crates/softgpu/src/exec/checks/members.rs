//! Checks of the member masks of a warp's instructions, and of the lanes that a shuffle reads.

use super::super::ctx::{Ctx, DecodedInst};
use super::super::registers::LANES;
use super::found::found;
use crate::report::{Finding, FindingActor, FindingKind};

/// Checks that each active lane is among its own mask's lanes, and that those that name each other
/// have one mask.
#[inline(always)]
pub(crate) fn members(ctx: &mut Ctx<'_>, i: &DecodedInst, members: &[u32; LANES]) {
    let active = ctx.mask;
    let one = members[active.trailing_zeros() as usize & 31];
    if active & !one == 0 && members.iter().fold(0, |x, m| x | (m ^ one)) == 0 {
        return;
    }
    let mut m = active;
    let mut first = None;
    while m != 0 {
        let l = m.trailing_zeros();
        m &= m - 1;
        let mask = members[l as usize];
        if mask >> l & 1 == 0 {
            wrong(
                ctx,
                i,
                l,
                format!("lane {l} is not in its mask {mask:#010x}"),
            );
            return;
        }
        // All have one mask, or are compared each with the lowest that they name.
        if *first.get_or_insert(mask) == mask {
            continue;
        }
        let other = (mask & active).trailing_zeros();
        let its = members[other as usize & 31];
        if its >> l & 1 != 0 && its != mask {
            let note = format!("lane {l} has the mask {mask:#010x}, lane {other} {its:#010x}");
            wrong(ctx, i, l, note);
            return;
        }
    }
}

/// Reports that `lane` uses what it reads from lane `source`, which is absent or not in the mask.
#[cold]
pub(crate) fn absent(ctx: &mut Ctx<'_>, i: &DecodedInst, lane: u32, source: u32, mask: u32) {
    let why = if mask >> source & 1 == 0 {
        format!("which is not in its mask {mask:#010x}")
    } else {
        "which has exited or was not launched".to_owned()
    };
    let note = format!("lane {lane} uses the value of lane {source}, {why}");
    wrong(ctx, i, lane, note);
}

/// Reports that `lane` executes an instruction with other lanes than it should.
#[cold]
pub(super) fn wrong(ctx: &mut Ctx<'_>, i: &DecodedInst, lane: u32, note: String) {
    let place = ctx.place(ctx.pc_of(i), lane);
    let finding = Finding {
        kind: FindingKind::WarpMask,
        access: None,
        actor: FindingActor::Thread(Box::new(place), None),
        note,
        allocation: None,
        other: None,
        count: 1,
    };
    found(ctx, finding);
}
