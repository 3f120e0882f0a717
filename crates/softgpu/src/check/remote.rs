//! Accesses of other blocks of a cluster to a block's shared memory.
//!
//! For each word: the last that wrote, and two that read since. The block's own accesses are in
//! [`super::shared`]; each side looks at the records of the other.
//!
//! An asynchronous access (`st.async`) is an actor of its own: only what follows its mbarrier is
//! behind it. Actors are numbered from [`ACTORS`] on, so that no thread has such a number.

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::report::AccessKind;

/// The first number of an actor that is no thread.
const ACTORS: u32 = 1 << 20;

/// One access from afar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RemoteAccess {
    /// The block that made it.
    pub(crate) block: u32,
    /// Its thread.
    pub(crate) thread: u32,
    /// Whose time it is: the thread, or an actor of its own.
    pub(crate) actor: u32,
    pub(crate) time: u32,
    /// Instruction, counted through all functions.
    pub(crate) pc: u32,
    pub(crate) kind: AccessKind,
    /// With a scope that holds the whole cluster.
    pub(crate) strong: bool,
    /// Strong, with the scope of its block.
    pub(crate) narrow: bool,
    /// Bytes of the word.
    pub(crate) bytes: u8,
}

impl RemoteAccess {
    fn writes(&self) -> bool {
        self.kind != AccessKind::Read
    }

    /// Whether only an mbarrier tells of its end.
    pub(crate) fn is_asynchronous(&self) -> bool {
        self.actor >= ACTORS
    }
}

/// How an access meets another that nothing orders before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MeetingAccess {
    pub(crate) bytes: u8,
    pub(crate) writes: bool,
    /// With a scope that holds the whole cluster.
    pub(crate) strong: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct RemoteWord {
    writer: Option<RemoteAccess>,
    readers: [Option<RemoteAccess>; 2],
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct RemoteRecords {
    words: FxHashMap<u32, RemoteWord>,
    /// All of them lie there.
    span: Range<u32>,
    /// Asynchronous accesses so far, by block and mbarrier.
    counts: FxHashMap<(u32, u32), u32>,
}

impl RemoteRecords {
    pub(crate) fn clear(&mut self) {
        self.words.clear();
        self.span = 0..0;
        self.counts.clear();
    }

    /// Whether an access of `size` bytes to any of the places may meet one of these.
    #[inline(always)]
    pub(crate) fn may_meet(&self, off: &[u32; 32], mask: u32, size: u32) -> bool {
        if self.span.is_empty() {
            return false;
        }
        (0..32).any(|l| {
            let (first, end) = (off[l] / 4, (off[l].saturating_add(size)).div_ceil(4));
            mask >> l & 1 != 0 && first < self.span.end && end > self.span.start
        })
    }

    /// An access on record that `now` meets, unless `is_before` says that it is ordered.
    pub(crate) fn meets(
        &self,
        word: u32,
        now: MeetingAccess,
        is_before: impl Fn(&RemoteAccess) -> bool,
    ) -> Option<RemoteAccess> {
        let it = self.words.get(&word)?;
        let readers = it.readers.iter().flatten().filter(|_| now.writes);
        let mut all = it.writer.iter().chain(readers);
        let conflicts = |was: &&RemoteAccess| {
            was.bytes & now.bytes != 0 && !(was.strong && now.strong) && !is_before(was)
        };
        all.find(conflicts).copied()
    }

    /// Leaves a record of an access. `is_before` says which are ordered before it.
    pub(crate) fn leave(
        &mut self,
        word: u32,
        now: RemoteAccess,
        is_before: impl Fn(&RemoteAccess) -> bool,
    ) {
        self.span = match self.span.is_empty() {
            true => word..word + 1,
            false => self.span.start.min(word)..self.span.end.max(word + 1),
        };
        let it = self.words.entry(word).or_default();
        if now.writes() {
            let joins = it
                .writer
                .filter(|was| was.actor == now.actor && was.block == now.block && was.pc == now.pc);
            let mut now = now;
            if let Some(was) = joins.filter(|was| was.time == now.time) {
                now.bytes |= was.bytes;
            }
            it.writer = Some(now);
            it.readers
                .iter_mut()
                .for_each(|r| *r = r.filter(|r| !is_before(r)));
            return;
        }
        let same = |r: &Option<RemoteAccess>| {
            r.is_none_or(|r| r.block == now.block && r.actor == now.actor || is_before(&r))
        };
        let at = it.readers.iter().position(same).unwrap_or(0);
        it.readers[at] = Some(now);
    }

    /// All accesses on record.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, RemoteAccess)> {
        self.words.iter().flat_map(|(&word, it)| {
            let all = it
                .writer
                .into_iter()
                .chain(it.readers.into_iter().flatten());
            all.map(move |access| (word, access))
        })
    }

    /// The actor, and its time, of one more asynchronous access by `block` that the mbarrier at
    /// `at` in the block of `rank` tells of. No 32 such numbers stand in a row: times are kept by
    /// warps.
    pub(crate) fn actor(&mut self, block: u32, (rank, at): (u32, u32)) -> (u32, u32) {
        let time = self.counts.entry((block, at)).or_default();
        *time += 1;
        (ACTORS + 2 * ((rank << 15) | ((at / 8) & 0x7fff)), *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(block: u32, time: u32, kind: AccessKind, bytes: u8) -> RemoteAccess {
        RemoteAccess {
            block,
            thread: 3,
            actor: 3,
            time,
            pc: 7,
            kind,
            strong: false,
            narrow: false,
            bytes,
        }
    }

    #[test]
    fn an_access_meets_those_of_its_bytes_that_are_not_before() {
        let mut records = RemoteRecords::default();
        let none = |_: &RemoteAccess| false;
        records.leave(5, access(1, 1, AccessKind::Read, 15), none);
        records.leave(5, access(2, 1, AccessKind::Write, 3), none);
        let now = |bytes, writes, strong| MeetingAccess {
            bytes,
            writes,
            strong,
        };
        let met = records.meets(5, now(1, false, false), none);
        assert_eq!(met.map(|m| m.block), Some(2));
        assert!(records.meets(5, now(4, false, false), none).is_none());
        let met = records.meets(5, now(4, true, false), none);
        assert_eq!(met.map(|m| m.block), Some(1));
        assert!(records.meets(5, now(15, true, false), |_| true).is_none());
        assert!(records.meets(6, now(15, true, false), none).is_none());
        assert_eq!(records.all().count(), 2);
    }

    #[test]
    fn a_writer_replaces_the_readers_that_are_before_it() {
        let mut records = RemoteRecords::default();
        records.leave(5, access(1, 1, AccessKind::Read, 15), |_| false);
        records.leave(5, access(2, 1, AccessKind::Read, 15), |_| false);
        records.leave(5, access(3, 1, AccessKind::Write, 15), |was| was.block == 1);
        let blocks: Vec<u32> = records.all().map(|(_, a)| a.block).collect();
        assert_eq!(blocks, [3, 2]);
    }
}
