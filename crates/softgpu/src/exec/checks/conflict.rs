//! Races and hazards between an access to global memory and those recorded of the same words.

use std::sync::atomic::Ordering;

use super::site::{GlobalAccessSite, OrderedRecords, OrderedSegments, ThreadFinding};
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
        let earlier = region.get(RecordOf::Earlier, word);
        let meets = |was, kind| conflict(site, shadow, &lane, was, (w, bytes), kind);
        let mut met = meets(writer, AccessKind::Write);
        if write {
            met |= meets(reader, AccessKind::Read);
            // A further one only if it adds information.
            if !met {
                meets(earlier, AccessKind::Read);
            }
        } else if !met && writer.bytes() & bytes != bytes && wrote(shadow, earlier) {
            // The last writer wrote other bytes of the word.
            meets(earlier, AccessKind::Write);
        }
        let (of, old) = if write {
            (RecordOf::Write, writer)
        } else {
            (RecordOf::Read, reader)
        };
        // Bytes of the same word that this thread touched at the same time stay recorded, and those
        // that other lanes of the warp write at once.
        let joins = old.strong() == record.strong()
            && (old.same_thread(record) || write && old.same_instruction(record));
        let keep = if joins { u64::from(old.bytes()) } else { 0 };
        let mut now = AccessRecord(record.0 | u64::from(bytes) | keep);
        let value = shadow.values[w].load(Ordering::Relaxed);
        let same_value = write && old.marked() && lane.hash == Some(value);
        if let Some(hash) = lane.hash
            && !record.strong()
        {
            // Of several bytes the value is known if all have the same.
            let alone = keep & !u64::from(bytes) == 0;
            if alone || same_value {
                now.0 |= AccessRecord::MARK;
            }
            shadow.values[w].store(hash, Ordering::Relaxed);
        }
        let ordered = OrderedRecords::of(site);
        let past = |was: AccessRecord| is_past(site, shadow, was);
        if !write {
            if is_retired(&ordered, old, earlier, now, true) {
                region.set(RecordOf::Earlier, word, old);
            }
        } else if old.0 != 0
            && !joins
            && (record.strong() && !old.strong()
                || !same_value
                    && u64::from(old.bytes()) & !(now.0 & 15) != 0
                    && (ordered.has(earlier.0, now, false) || past(earlier)))
            && !past(old)
        {
            // Another thread's atomic meets the plain write still, whatever this one follows; and
            // what accesses the bytes of another writer meets that one.
            let unmarked = AccessRecord(old.0 & !AccessRecord::MARK);
            region.set(RecordOf::Earlier, word, unmarked);
        }
        region.set(of, word, now);
        at = next;
    }
}

/// Whether reader `was` becomes the earlier one, `earlier` being that, when `now` reads; `own`:
/// both may be the same thread's.
#[inline(always)]
pub(super) fn is_retired(
    ordered: &OrderedRecords,
    was: AccessRecord,
    earlier: AccessRecord,
    now: AccessRecord,
    own: bool,
) -> bool {
    if was.0 == 0 {
        return false;
    }
    let is_before = ordered.has(was.0, now, own);
    // Lanes of one warp stand for each other, but for a lane that then writes what all have read.
    was.stays(now, is_before)
        || !is_before
            && !was.same_thread(now)
            && was.segment() == now.segment()
            && ordered.has(earlier.0, now, false)
}

/// Whether a record is of an operation before the one at hand.
fn is_past(site: &GlobalAccessSite<'_>, shadow: &Shadow, was: AccessRecord) -> bool {
    let Some(checks) = site.run.spec.checks.as_ref().filter(|_| was.0 != 0) else {
        return false;
    };
    OrderedSegments::has(checks.op.to_bits(), was.segment())
        || shadow
            .range(was.segment())
            .is_some_and(|range| OrderedSegments::learn(checks, range))
}

/// Whether an earlier access is a kernel's write.
fn wrote(shadow: &Shadow, earlier: AccessRecord) -> bool {
    if earlier.0 == 0 || earlier.bytes() == 15 {
        return false;
    }
    let Some((owner, block)) = shadow.owner(earlier.segment()) else {
        return false;
    };
    owner.launch.is_some_and(|launch| {
        let (_, kind) = launch.place(block, earlier.thread(), earlier.site());
        kind != AccessKind::Read
    })
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
        || is_divided(was, lane, word.1)
    {
        return false;
    }
    conflict_slow(site, shadow, lane, was, word, was_kind)
}

/// Whether lanes of one instruction may have left `was`, each some bytes of the word, and the
/// access is of their warp: which byte is whose is not known.
fn is_divided(was: AccessRecord, lane: &LaneAccess, bytes: u8) -> bool {
    bytes != 15 && was.bytes().count_ones() > bytes.count_ones() && was.same_warp(lane.record)
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
    if OrderedSegments::has(checks.op.to_bits(), was.segment()) {
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
            ordered: u64::from(block) == site.block
                && site.follows(was, owner.from, Some(lane.record.thread()))
                || site.lane_follows(was, (block, owner.from), lane.lane),
            same_value: was_kind == AccessKind::Write
                && lane.access.kind == AccessKind::Write
                && !was.strong()
                && was.marked()
                && was.bytes() & word.1 == word.1
                && (word.1 == 15) == (lane.access.len >= 4)
                && lane.hash == Some(shadow.values[word.0].load(Ordering::Relaxed)),
        };
        met.finding(site, lane, checks.options)
    } else {
        let range = shadow.range(was.segment());
        if range.is_some_and(|range| OrderedSegments::learn(checks, range)) {
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
