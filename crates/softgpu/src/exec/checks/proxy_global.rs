//! Checks of what copies of the asynchronous proxy access in global memory.

use super::super::ctx::{Ctx, DecodedInst};
use super::begin::shadow;
use super::conflict::{LaneAccess, lane_records};
use super::found::report;
use super::global::{lane_states, nearest};
use super::proxy::met_copy;
use super::site::{GlobalAccessSite, OrderedSegments, ThreadFinding};
use crate::check::clock::SEEN_GLOBAL;
use crate::check::{AccessRecord, RecordOf, Strength};
use crate::report::{Access, AccessKind, FindingActor, FindingKind, MemSpace};

/// Checks an access of copy `number`, which a lane issues, to `len` bytes of global memory at
/// `addr`, and records it; whether it may be made. `kind` is a read, a write or an atomic.
pub(crate) fn copy_global(
    ctx: &mut Ctx<'_>,
    i: &DecodedInst,
    lane: usize,
    number: u32,
    (addr, len): (u64, u64),
    kind: AccessKind,
) -> bool {
    let run = ctx.run;
    let Some((shadow, _, _)) = shadow(run) else {
        return true;
    };
    let writes = kind != AccessKind::Read;
    let access = Access {
        kind: match kind {
            AccessKind::Write => AccessKind::AsyncCopy,
            kind => kind,
        },
        space: MemSpace::Global,
        addr,
        len,
    };
    let (warp, live) = (ctx.warp, ctx.w().live);
    let pc = run.prepared.global_pc(ctx.code, ctx.pc_of(i));
    if !run.spec.space.contains(addr, len) {
        return outside(ctx, i, lane, access);
    }
    let block = &mut *ctx.block;
    let (Some(copies), Some(own)) = (block.asyncs.as_mut(), block.shadow.as_mut()) else {
        return true;
    };
    own.clocks.set_live(warp, live);
    let issuer = (warp, lane as u32);
    let bytes = addr..addr + len;
    let met = copies.meets_global(&own.clocks, issuer, bytes.clone(), writes);
    copies.piece(number, bytes, writes);
    own.clocks.touch(warp);
    let time = own.clocks.time(warp);
    let strength = match kind {
        AccessKind::Atomic => Strength::Strong,
        _ => Strength::Weak,
    };
    let site = GlobalAccessSite {
        run,
        block: block.linear,
        segment: block.segments.of(run, block.linear, time.now),
        before: block.segments.before(time),
        time,
        row: own.clocks.row(warp),
        views: own.clocks.views(warp),
        pc,
        warp: warp as u32,
        strength,
    };
    if !lane_states(&site, lane as u32, shadow, access, kind) {
        return false;
    }
    let unseen = if writes {
        None
    } else {
        unseen(&site, lane as u32, access)
    };
    let mut cursor = shadow.records.cursor();
    let instruction = run.prepared.site(pc);
    let thread = warp as u32 * 32 + lane as u32;
    let record = AccessRecord::new(site.segment, time.now, instruction, thread, strength);
    let lane_access = LaneAccess {
        lane: lane as u32,
        access,
        record,
        hash: None,
    };
    lane_records(&site, shadow, &mut cursor, lane_access);
    drop(cursor);
    if let Some(met) = met {
        met_copy(ctx, i, lane, access, met);
    }
    if let Some(other) = unseen {
        let finding = ThreadFinding {
            kind: FindingKind::MissingProxyFence,
            access,
            note: "no fence.proxy.async between the write of the thread and the copy that reads it"
                .to_owned(),
            allocation: run.spec.space.find(addr),
            other: Some((AccessKind::Write, other)),
        };
        report(ctx, i, lane as u32, finding);
    }
    true
}

/// Memory that no allocation has: registered host memory, or a finding.
#[cold]
fn outside(ctx: &mut Ctx<'_>, i: &DecodedInst, lane: usize, access: Access) -> bool {
    let (space, device) = (&ctx.run.spec.space, ctx.run.spec.device.ordinal);
    let write = access.kind != AccessKind::Read;
    if space
        .translate(device, access.addr, access.len, write)
        .is_none()
    {
        let finding = ThreadFinding {
            kind: FindingKind::OutOfBounds,
            access,
            note: String::new(),
            allocation: nearest(space, access.addr),
            other: None,
        };
        report(ctx, i, lane as u32, finding);
    }
    // The finding is also the fault that it would be without checks.
    true
}

/// A thread of the launch that wrote some of the bytes, before the copy, with no fence of the
/// asynchronous proxy between.
fn unseen(site: &GlobalAccessSite<'_>, lane: u32, access: Access) -> Option<FindingActor> {
    let (shadow, _, checks) = shadow(site.run)?;
    let first = shadow.index(access.addr) / 4;
    let end = (shadow.index(access.addr) + access.len as usize).div_ceil(4);
    let mut cursor = shadow.records.cursor();
    let mut last = AccessRecord(0);
    for w in first..end {
        let (region, word) = cursor.word(w);
        let was = region.get(RecordOf::Write, word);
        if was.0 == 0 || was.0 == last.0 || OrderedSegments::has(checks.op.to_bits(), was.segment())
        {
            continue;
        }
        last = was;
        let Some((owner, block)) = shadow.owner(was.segment()) else {
            continue;
        };
        let Some(launch) = owner.launch.filter(|_| owner.op == checks.op) else {
            continue;
        };
        let ordered = u64::from(block) == site.block
            && site.follows(was, owner.from, Some(site.warp * 32 + lane))
            || site.lane_follows(was, (block, owner.from), lane);
        let time = owner.from + was.time();
        let mark = block & !(3 << 30) | SEEN_GLOBAL;
        let (place, _) = launch.place(block, was.thread(), was.site());
        // What copies write is not of the threads' proxy.
        if ordered
            && !place.opcode.starts_with("cp.")
            && !site.views.has(lane, mark, was.thread(), time)
        {
            return Some(FindingActor::Thread(Box::new(place), None));
        }
    }
    None
}
