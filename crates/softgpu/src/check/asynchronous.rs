//! Shared memory that copies of the asynchronous proxy access in a block, and until when.
//!
//! A copy is done when it is issued; here it lasts until a thread that accesses the same bytes is
//! known to be behind its completion ([`Completion`]): a phase of an mbarrier, or a group that its
//! issuer has waited for.
//!
//! Each word of shared memory names the last copy that wrote it, the last that read it, and the
//! last before that whose completion is reported in another way.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::clock::{Completion, WarpClocks};

/// Actors are mbarriers, by an eighth of their offset, and from here on threads, two for each: for
/// what has been read, and for what is complete.
const THREADS: u32 = 1 << 15;
/// From here on actors are groups of four warps, for the products that they form together: `time`
/// is the number of a group of products.
const PRODUCTS: u32 = 1 << 20;
/// Accesses to global memory that are remembered.
const MOST_ACCESSES: usize = 4096;

/// A copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AsyncCopy {
    /// Its instruction, counted through all functions.
    pub(crate) pc: u32,
    /// Thread of the block that issued it.
    pub(crate) thread: u32,
    /// Behind it all bytes are written.
    pub(crate) done: Completion,
    /// Behind it all bytes are read.
    pub(crate) read: Completion,
}

impl AsyncCopy {
    /// Whether it is a product of four warps, which reads its operands.
    pub(crate) fn is_product(&self) -> bool {
        self.done.actor >= PRODUCTS
    }
}

/// A piece of global memory that a copy reads or writes.
#[derive(Debug, Clone)]
struct GlobalPiece {
    bytes: Range<u64>,
    copy: u32,
    writes: bool,
}

/// The bulk groups of a thread.
#[derive(Debug, Clone, Default)]
struct BulkGroups {
    issued: u32,
    /// Copies issued before the end of each group.
    ends: Vec<u32>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct AsyncShadow {
    copies: Vec<AsyncCopy>,
    /// By word: number from 1 of the last copy that wrote, and that read it.
    writers: Vec<u32>,
    readers: Vec<u32>,
    /// By word: the last copy of another actor that read it before.
    earlier_readers: Vec<u32>,
    /// Operations of each actor so far.
    counts: FxHashMap<u32, u32>,
    /// How many of them some thread has seen complete.
    observed: FxHashMap<u32, u32>,
    groups: FxHashMap<u32, BulkGroups>,
    pieces: Vec<GlobalPiece>,
    /// By thread and mbarrier: the instruction of the last wait that ended.
    waits: FxHashMap<(u32, u32), u32>,
    /// The last product of each instruction and four warps: its group of products and number.
    products: FxHashMap<(u32, u32), (u32, u32)>,
}

/// How a thread's access to shared memory meets a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MetCopy {
    /// The copy may still write there.
    Writer(AsyncCopy),
    /// The copy may still read there.
    Reader(AsyncCopy),
}

/// That so many groups of products of the four warps with number `warps` of a block are complete.
pub(crate) fn products_complete(block: u32, warps: u32, groups: u32) -> Completion {
    Completion {
        block,
        actor: PRODUCTS + warps,
        time: groups,
    }
}

impl AsyncShadow {
    pub(crate) fn new(bytes: usize) -> Self {
        AsyncShadow {
            writers: vec![0; bytes.div_ceil(4)],
            readers: vec![0; bytes.div_ceil(4)],
            earlier_readers: vec![0; bytes.div_ceil(4)],
            ..AsyncShadow::default()
        }
    }

    fn next(&mut self, block: u32, actor: u32) -> Completion {
        let time = self.counts.entry(actor).or_default();
        *time += 1;
        Completion {
            block,
            actor,
            time: *time,
        }
    }

    /// A copy that the mbarrier at `at` tells of; its number.
    pub(crate) fn by_mbarrier(&mut self, pc: u32, thread: u32, (block, at): (u32, u32)) -> u32 {
        let done = self.next(block, at / 8);
        self.copies.push(AsyncCopy {
            pc,
            thread,
            done,
            read: done,
        });
        self.copies.len() as u32
    }

    /// A copy of the thread's bulk group; its number.
    pub(crate) fn by_group(&mut self, pc: u32, block: u32, thread: u32) -> u32 {
        let actor = THREADS + 2 * thread;
        let (read, done) = (self.next(block, actor), self.next(block, actor + 1));
        self.groups.entry(thread).or_default().issued = done.time;
        self.copies.push(AsyncCopy {
            pc,
            thread,
            done,
            read,
        });
        self.copies.len() as u32
    }

    /// A product that four warps form, in the group of products that `done` names; its number.
    pub(crate) fn by_product(&mut self, pc: u32, thread: u32, done: Completion) -> u32 {
        let key = (pc, done.actor);
        if let Some(&(time, number)) = self.products.get(&key)
            && time == done.time
        {
            return number;
        }
        self.copies.push(AsyncCopy {
            pc,
            thread,
            done,
            read: done,
        });
        let number = self.copies.len() as u32;
        self.products.insert(key, (done.time, number));
        number
    }

    pub(crate) fn copy(&self, number: u32) -> AsyncCopy {
        self.copies[number as usize - 1]
    }

    /// The thread ends its bulk group.
    pub(crate) fn commit(&mut self, thread: u32) {
        let groups = self.groups.entry(thread).or_default();
        groups.ends.push(groups.issued);
    }

    /// The thread has waited until all but its last `keep` groups are complete, or have `read`.
    pub(crate) fn waited(
        &mut self,
        block: u32,
        thread: u32,
        keep: u32,
        read: bool,
    ) -> [Option<Completion>; 2] {
        let Some(groups) = self.groups.get(&thread) else {
            return [None; 2];
        };
        let known = groups.ends.len().saturating_sub(keep as usize);
        let Some(&time) = groups.ends[..known].last() else {
            return [None; 2];
        };
        let of = |actor| Completion { block, actor, time };
        let first = of(THREADS + 2 * thread);
        let second = (!read).then(|| of(THREADS + 2 * thread + 1));
        for done in [Some(first), second].into_iter().flatten() {
            self.observe(done);
        }
        [Some(first), second]
    }

    fn observe(&mut self, done: Completion) {
        let seen = self.observed.entry(done.actor).or_default();
        *seen = done.time.max(*seen);
    }

    /// A thread has seen a phase of the mbarrier at `at` end, and knows by it what `clocks` say.
    pub(crate) fn phase_seen(&mut self, at: u32, clocks: &WarpClocks, (w, lane): (usize, u32)) {
        let actor = at / 8;
        let Some(&count) = self.counts.get(&actor) else {
            return;
        };
        let first = self.observed.get(&actor).copied().unwrap_or(0);
        let block = clocks.block();
        for time in (first + 1..=count).rev() {
            let done = Completion { block, actor, time };
            if done.is_known(clocks, w, lane) {
                self.observe(done);
                break;
            }
        }
        if self.pieces.len() > 64 {
            self.prune();
        }
    }

    /// A thread has waited for the mbarrier at `at`, by instruction `pc`.
    pub(crate) fn waited_at(&mut self, at: u32, thread: u32, pc: u32) {
        self.waits.insert((thread, at), pc);
    }

    /// The instruction by which a thread has waited for the mbarrier that tells of a copy.
    pub(crate) fn wait_for(&self, copy: AsyncCopy, thread: u32) -> Option<u32> {
        let at = (copy.done.actor < THREADS).then_some(copy.done.actor * 8)?;
        self.waits.get(&(thread, at)).copied()
    }

    /// Forgets pieces of copies that a thread has seen complete.
    fn prune(&mut self) {
        let (copies, observed) = (&self.copies, &self.observed);
        let is_over = |c: Completion| observed.get(&c.actor).is_some_and(|&t| t >= c.time);
        self.pieces.retain(|p| {
            let copy = copies[p.copy as usize - 1];
            !is_over(if p.writes { copy.done } else { copy.read })
        });
        let surplus = self.pieces.len().saturating_sub(MOST_ACCESSES);
        self.pieces.drain(..surplus);
    }

    /// What an access of a thread, or of a copy that it issues, to `len` bytes at `at` meets.
    pub(crate) fn meets(
        &self,
        clocks: &WarpClocks,
        (w, lane): (usize, u32),
        (at, len): (u32, u32),
        writes: bool,
    ) -> Option<MetCopy> {
        let words = (at / 4) as usize..(at + len).div_ceil(4) as usize;
        let mut last = 0;
        for &number in self.writers.get(words.clone()).unwrap_or_default() {
            if number != 0 && number != last {
                last = number;
                let copy = self.copy(number);
                if !copy.done.is_known(clocks, w, lane) {
                    return Some(MetCopy::Writer(copy));
                }
            }
        }
        if !writes {
            return None;
        }
        let readers = self.readers.get(words.clone()).unwrap_or_default();
        let earlier = self.earlier_readers.get(words).unwrap_or_default();
        for &number in readers.iter().chain(earlier) {
            if number != 0 && number != last {
                last = number;
                let copy = self.copy(number);
                if !copy.read.is_known(clocks, w, lane) {
                    return Some(MetCopy::Reader(copy));
                }
            }
        }
        None
    }

    /// Whether an access to those words can meet any copy.
    #[inline]
    pub(crate) fn is_touched(&self, at: u32, len: u32) -> bool {
        let words = (at / 4) as usize..(at + len).div_ceil(4) as usize;
        let any = |table: &[u32]| {
            table
                .get(words.clone())
                .is_some_and(|w| w.iter().any(|&n| n != 0))
        };
        any(&self.writers) || any(&self.readers)
    }

    /// A thread has written whole words, ordered behind all copies: those are of no concern to
    /// what is ordered behind the thread.
    pub(crate) fn overwritten(&mut self, at: u32, len: u32) {
        let words = at.div_ceil(4) as usize..((at + len) / 4) as usize;
        for table in [
            &mut self.writers,
            &mut self.readers,
            &mut self.earlier_readers,
        ] {
            if let Some(words) = table.get_mut(words.clone()) {
                words.fill(0);
            }
        }
    }

    /// Copy `number` writes or reads `len` bytes of shared memory at `at`.
    pub(crate) fn touch(&mut self, number: u32, at: u32, len: u32, writes: bool) {
        let words = (at / 4) as usize..(at + len).div_ceil(4) as usize;
        if writes {
            if let Some(words) = self.writers.get_mut(words) {
                words.fill(number);
            }
            return;
        }
        let actor = |number: u32| self.copies[number as usize - 1].read.actor;
        let (Some(last), Some(earlier)) = (
            self.readers.get_mut(words.clone()),
            self.earlier_readers.get_mut(words),
        ) else {
            return;
        };
        for (last, earlier) in last.iter_mut().zip(earlier) {
            if *last != 0 && *last != number && actor(*last) != actor(number) {
                *earlier = *last;
            }
            *last = number;
        }
    }

    /// Copy `number` writes or reads a piece of global memory.
    pub(crate) fn piece(&mut self, number: u32, bytes: Range<u64>, writes: bool) {
        if let Some(last) = self.pieces.last_mut()
            && last.copy == number
            && last.writes == writes
            && last.bytes.end == bytes.start
        {
            last.bytes.end = bytes.end;
            return;
        }
        if self.pieces.len() >= 2 * MOST_ACCESSES {
            self.prune();
        }
        self.pieces.push(GlobalPiece {
            bytes,
            copy: number,
            writes,
        });
    }

    /// A copy that a thread's access to global memory meets: one that may still write there, or
    /// read where the access writes.
    pub(crate) fn meets_global(
        &self,
        clocks: &WarpClocks,
        (w, lane): (usize, u32),
        bytes: Range<u64>,
        writes: bool,
    ) -> Option<MetCopy> {
        let near = |p: &&GlobalPiece| p.bytes.start < bytes.end && p.bytes.end > bytes.start;
        for piece in self.pieces.iter().filter(near) {
            let copy = self.copy(piece.copy);
            if piece.writes && !copy.done.is_known(clocks, w, lane) {
                return Some(MetCopy::Writer(copy));
            }
            if writes && !piece.writes && !copy.read.is_known(clocks, w, lane) {
                return Some(MetCopy::Reader(copy));
            }
        }
        None
    }

    /// Whether some copy accesses global memory, as far as that is remembered.
    pub(crate) fn has_pieces(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Copies that no thread has seen complete, or that may still read shared memory: the last of
    /// each actor.
    pub(crate) fn unobserved(&self) -> Vec<AsyncCopy> {
        let mut last: FxHashMap<u32, AsyncCopy> = FxHashMap::default();
        for copy in self.copies.iter().filter(|c| !c.is_product()) {
            let seen = self.observed.get(&copy.read.actor).copied().unwrap_or(0);
            if copy.read.time > seen {
                last.insert(copy.read.actor, *copy);
            }
        }
        let mut last: Vec<AsyncCopy> = last.into_values().collect();
        last.sort_by_key(|c| (c.thread, c.pc));
        last
    }
}
