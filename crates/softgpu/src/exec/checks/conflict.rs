//! Races and hazards between an access to global memory and those recorded of the same words.

use std::sync::atomic::Ordering;

use super::site::{GlobalAccessSite, ORDERED, OrderedRecords, ThreadFinding};
use crate::check::{AccessRecord, CheckOptions, RecordOf, RegionCursor, Shadow};
use crate::report::{Access, AccessKind, FindingActor, FindingKind};

/// One lane's access, to be judged by the records of the words that it touches.
pub(super) struct LaneAccess {
    pub(super) lane: u32,
    pub(super) access: Access,
    pub(super) record: AccessRecord,
    /// Of what a store writes.
    pub(super) hash: Option<u8>,
}

/// Checks one lane's access for races and hazards with recorded accesses, then records it.
pub(super) fn lane_records(
    site: &GlobalAccessSite<'_>,
    shadow: &Shadow,
    cursor: &mut RegionCursor<'_>,
    lane: LaneAccess,
) {
    let (access, record) = (lane.access, lane.record);
    let write = access.kind != AccessKind::Read;
    let mut at = access.addr;
    let end = access.addr + access.len;
    while at < end {
        let next = ((at & !3) + 4).min(end);
        let bytes = (((1u64 << (next - at)) - 1) << (at & 3)) as u8;
        let w = shadow.index(at) / 4;
        let (region, word) = cursor.word(w);
        let writer = region.get(RecordOf::Write, word);
        let reader = region.get(RecordOf::Read, word);
        let meets = |was, kind| conflict(site, shadow, &lane, was, (w, bytes), kind);
        let mut met = meets(writer, AccessKind::Write);
        if write {
            met |= meets(reader, AccessKind::Read);
            // A further one only if it adds information.
            if !met {
                meets(region.get(RecordOf::Earlier, word), AccessKind::Read);
            }
        }
        let (of, old) = if write {
            (RecordOf::Write, writer)
        } else {
            (RecordOf::Read, reader)
        };
        // Bytes of the same word that this thread touched just before stay recorded.
        let keep = if old.same_access(record) {
            u64::from(old.bytes())
        } else {
            0
        };
        let mut now = AccessRecord(record.0 | u64::from(bytes) | keep);
        if let Some(hash) = lane.hash
            && !record.strong()
        {
            now.0 |= AccessRecord::MARK;
            shadow.values[w].store(hash, Ordering::Relaxed);
        }
        if !write && old.0 != 0 && old.stays(now, OrderedRecords::of(site).has(old.0, now, true)) {
            region.set(RecordOf::Earlier, word, old);
        }
        if write && record.strong() && old.0 != 0 && !old.strong() {
            // Another block's atomic meets the plain write still, whatever this one follows.
            let unmarked = AccessRecord(old.0 & !AccessRecord::MARK);
            region.set(RecordOf::Earlier, word, unmarked);
        }
        region.set(of, word, now);
        at = next;
    }
}

/// Whether an access conflicts with a recorded one that is not ordered before it; then the conflict
/// has been reported. `word` is the word with the bytes of it that are accessed.
#[inline(always)]
fn conflict(
    site: &GlobalAccessSite<'_>,
    shadow: &Shadow,
    lane: &LaneAccess,
    was: AccessRecord,
    word: (usize, u8),
    was_kind: AccessKind,
) -> bool {
    let now = lane.record;
    if was.0 == 0
        || was.bytes() & word.1 == 0
        || was.strong() && now.strong() && !was.marked() && !now.marked()
        || was.same_thread(now) && !is_read_only(site, was, was_kind)
    {
        return false;
    }
    conflict_slow(site, shadow, lane, was, word, was_kind)
}

/// Whether of two accesses, of which one may write, one is a read-only load.
fn is_read_only(site: &GlobalAccessSite<'_>, was: AccessRecord, was_kind: AccessKind) -> bool {
    site.strength.is_cached() || was_kind == AccessKind::Read && was.read_only()
}

/// The cold half of `conflict`.
fn conflict_slow(
    site: &GlobalAccessSite<'_>,
    shadow: &Shadow,
    lane: &LaneAccess,
    was: AccessRecord,
    word: (usize, u8),
    was_kind: AccessKind,
) -> bool {
    let Some(checks) = &site.run.spec.checks else {
        return false;
    };
    let op = checks.op.to_bits();
    let (for_op, lo, hi) = ORDERED.get();
    if for_op == op && lo <= was.segment() && was.segment() < hi {
        return false;
    }
    let Some((owner, block)) = shadow.owner(was.segment()) else {
        return false;
    };
    let found = if owner.op == checks.op && owner.launch.is_some() {
        let met = MetAccess {
            was,
            was_kind,
            own_block: u64::from(block) == site.block,
            ordered: if u64::from(block) == site.block {
                site.follows(was, owner.from, Some(lane.record.thread()))
            } else {
                let times = site.known.get(&block);
                let upto = times.and_then(|t| t.get(was.thread() as usize / 32));
                upto.is_some_and(|&t| owner.from + was.time() <= t)
            },
            same_value: was_kind == AccessKind::Write
                && lane.access.kind == AccessKind::Write
                && !was.strong()
                && was.marked()
                && was.bytes() == word.1
                && lane.hash == Some(shadow.values[word.0].load(Ordering::Relaxed)),
        };
        met.finding(site, lane, checks.options)
    } else {
        if checks.order.happens_before(owner.op, checks.op) {
            if let Some((_, lo, hi)) = shadow.range(was.segment()) {
                ORDERED.set((op, lo, hi));
            }
            return false;
        }
        Some((
            FindingKind::StreamHazard,
            "not ordered after the access below",
        ))
    };
    let Some((kind, note)) = found else {
        return false;
    };
    let other = shadow.actor_of(was, checks, kind == FindingKind::StreamHazard);
    let other = other.map(|(k, a)| match (k, &a) {
        // A kernel's write may stand among the earlier readers.
        (AccessKind::Atomic | AccessKind::AsyncCopy, _) => (k, a),
        (AccessKind::Write, FindingActor::Thread(..)) => (k, a),
        _ => (was_kind, a),
    });
    site.report(
        lane.lane,
        ThreadFinding {
            kind,
            access: lane.access,
            note: note.to_owned(),
            allocation: site.run.spec.space.find(lane.access.addr),
            other,
        },
    );
    true
}

/// An access to the same bytes by a thread of the same launch.
struct MetAccess {
    was: AccessRecord,
    was_kind: AccessKind,
    own_block: bool,
    /// Whether it is before.
    ordered: bool,
    /// Whether both are plain writes of the same value.
    same_value: bool,
}

impl MetAccess {
    /// What is wrong with the two, if anything is.
    fn finding(
        &self,
        site: &GlobalAccessSite<'_>,
        lane: &LaneAccess,
        options: CheckOptions,
    ) -> Option<(FindingKind, &'static str)> {
        let (was, now) = (self.was, lane.record);
        if is_read_only(site, was, self.was_kind) {
            let note = "the kernel both writes it and reads it as read-only data";
            return Some((FindingKind::ReadOnlyData, note));
        }
        if self.ordered {
            return None;
        }
        if was.strong() && now.strong() {
            let note = "threads of two blocks, one with the scope of its block only";
            return (!self.own_block).then_some((FindingKind::NarrowScope, note));
        }
        let same_warp = self.own_block && was.thread() / 32 == site.warp;
        let at_once = same_warp
            && lane.access.kind == AccessKind::Write
            && was.site() == now.site()
            && was.time() == now.time();
        let note = match self {
            MetAccess {
                same_value: true, ..
            } if options.same_values => "nothing orders the two threads; both write the same value",
            MetAccess {
                same_value: true, ..
            } => return None,
            _ if at_once => "lanes of a warp write different values at once",
            _ if same_warp => "nothing orders the two lanes of the warp",
            _ if self.own_block => "no barrier between the two threads",
            _ => "nothing orders the two blocks",
        };
        Some((FindingKind::GlobalRace, note))
    }
}
