//! Per-thread arenas, from which threads under lock contention cut small blocks.
//!
//! Threads that allocate all the time contend for the lock of [`crate::order`]. Handing the lock
//! from processor to processor, with all the cache lines written under it, takes ten times as long
//! as the work done there. So a thread that finds contention often takes chunks out of the pool and
//! cuts its small blocks from them, behind a lock that is nearly always uncontended.
//!
//! An arena belongs to one stream. Its chunks were taken in that stream's order, so blocks cut from
//! them may be used by later work of the stream, and blocks freed in the stream may be cut again at
//! once. A block freed elsewhere is lost: its memory is not cut again until all blocks of the arena
//! are freed. Then the arena's chunks are returned, behind all work queued so far.
//!
//! Invariants: a chunk is a live block of the pool's, and in one arena. Arenas hold a few chunks
//! each, however many threads and streams there are, and together no more than a fraction of a
//! limit; a thread that runs out of memory takes back those without live blocks. No other lock of
//! the pool is taken while an arena's is held.
//!
//! Elsewhere: the table of live blocks ([`crate::held`]); the source of chunks ([`crate::pool`],
//! [`crate::growth`]).

use crate::blocks::{AllocLayout, BlockAllocator, BlockId, SetId, Span};
use crate::origin::{ARENAS, BlockOrigin};
use crate::place::{PoolPlace, StreamId};
use crate::rules::{AllRules, ReuseRule, ReuseRules};
use crate::threads::{CachePadded, Lock, SharedWord};

/// The largest block that is cut from a chunk.
pub(crate) const LARGEST_CUT: u64 = 1 << 20;
/// The size of a chunk, and how many chunks an arena has at most.
pub(crate) const CHUNK_BYTES: u64 = 4 << 20;
const CHUNKS: usize = 2;
/// All chunks together take at most about the limit divided by this, or as much as one arena has:
/// memory free in them is not available to other threads.
const LIMIT_DIVISOR: u64 = 8;
/// The weight of one contended request, the score that justifies an arena, and the highest score.
/// An uncontended request subtracts one: a thread that finds contention in less than one of 256
/// requests has no arena. Where threads settle just below that, the contended requests are well
/// under one in a hundred, and so is what a wait for the lock adds to the latency.
const MEETING: u64 = 256;
const ENOUGH: u64 = 64 * MEETING;
const MOST: u64 = 2 * ENOUGH;

/// The outcome of a request to an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutOutcome {
    /// The block.
    Block(BlockId, Span, BlockOrigin),
    /// The arena needs another chunk.
    NeedsChunk,
    /// The request is not for an arena.
    No,
}

/// Chunks to be returned, each behind the work queued at a place.
pub(crate) type ReturnedChunks = Vec<(BlockId, PoolPlace)>;

pub(crate) struct StreamArena {
    stream: StreamId,
    blocks: BlockAllocator,
    chunks: Vec<BlockId>,
    /// The number of live blocks, and the blocks that were freed elsewhere.
    live: usize,
    lost: usize,
    /// The stream has ended.
    closed: bool,
}

impl StreamArena {
    fn new(stream: StreamId) -> Self {
        Self {
            stream,
            blocks: BlockAllocator::new(),
            chunks: Vec::new(),
            live: 0,
            lost: 0,
            closed: false,
        }
    }

    fn into_chunks(self) -> ReturnedChunks {
        let place = match self.lost > 0 || self.closed {
            true => PoolPlace::Anywhere,
            false => PoolPlace::Stream(self.stream),
        };
        let chunks = self.chunks.into_iter();
        chunks.map(|chunk| (chunk, place)).collect()
    }
}

struct ThreadArena<L, W> {
    arena: L,
    /// The thread's contention score.
    contention: W,
    /// Nonzero if there is an arena.
    open: W,
}

impl<L, W: SharedWord> ThreadArena<L, W> {
    /// Removes the arena; returns its chunks and subtracts them from `all`.
    fn leave(&self, arena: &mut Option<StreamArena>, all: &W) -> ReturnedChunks {
        self.open.set(0);
        let gone = arena
            .take()
            .map_or_else(ReturnedChunks::new, StreamArena::into_chunks);
        all.add((gone.len() as u64).wrapping_neg());
        gone
    }
}

/// The arenas of all threads; see the module.
pub(crate) struct Arenas<L, W, R = AllRules> {
    all: Box<[CachePadded<ThreadArena<L, W>>]>,
    /// The number of chunks.
    chunks: W,
    rules: R,
}

impl<L: Lock<Option<StreamArena>>, W: SharedWord, R: ReuseRules> Arenas<L, W, R> {
    pub(crate) fn new() -> Self {
        Self::of(ARENAS)
    }

    /// `count` is a power of two.
    fn of(count: usize) -> Self {
        let own = |_| {
            CachePadded(ThreadArena {
                arena: L::new(None),
                contention: W::default(),
                open: W::default(),
            })
        };
        Self {
            all: (0..count).map(own).collect(),
            chunks: W::default(),
            rules: R::default(),
        }
    }

    /// The rules that hold.
    pub(crate) fn rules(&self) -> &R {
        &self.rules
    }

    #[inline]
    fn own(&self, thread: usize) -> &ThreadArena<L, W> {
        &self.all[thread & (self.all.len() - 1)].0
    }

    fn origin(&self, thread: usize) -> BlockOrigin {
        BlockOrigin::of_arena(thread & (self.all.len() - 1))
    }

    /// Counts a request that found the pool's lock held.
    pub(crate) fn note_contention(&self, thread: usize) {
        let contention = &self.own(thread).contention;
        contention.set((contention.get() + MEETING).min(MOST));
    }

    /// Counts a request that found the pool's lock free.
    #[inline]
    pub(crate) fn note_no_contention(&self, thread: usize) {
        let contention = &self.own(thread).contention;
        let often = contention.get();
        if often > 0 {
            contention.set(often - 1);
        }
    }

    /// Whether the thread's contention justifies an arena.
    #[inline]
    pub(crate) fn is_contended(&self, thread: usize) -> bool {
        let own = self.own(thread);
        own.open.get() != 0 || own.contention.get() >= ENOUGH
    }

    /// Sets the thread's contention score to the maximum.
    pub(crate) fn assume_contention(&self, thread: usize) {
        self.own(thread).contention.set(MOST);
    }

    /// Resets the score after no chunk was available: the thread continues without an arena.
    pub(crate) fn reset_contention(&self, thread: usize) {
        self.own(thread).contention.set(0);
    }

    /// Cuts a block for work in `stream`.
    pub(crate) fn cut(&self, thread: usize, stream: StreamId, layout: AllocLayout) -> CutOutcome {
        let own = self.own(thread);
        own.arena.with(|arena| {
            let hungry = match own.contention.get() >= ENOUGH {
                true => CutOutcome::NeedsChunk,
                false => CutOutcome::No,
            };
            let Some(arena) = arena else {
                return hungry;
            };
            if arena.stream != stream || arena.closed {
                return CutOutcome::No;
            }
            let id = arena.blocks.take(SetId::READY, layout, 0);
            let found = id.and_then(|id| Some((id, arena.blocks.span(id)?)));
            match found {
                Some((id, span)) => {
                    arena.live += 1;
                    CutOutcome::Block(id, span, self.origin(thread))
                }
                None if arena.chunks.len() < CHUNKS => hungry,
                None => CutOutcome::No,
            }
        })
    }

    /// Whether another chunk is permitted under this memory limit.
    pub(crate) fn has_room(&self, limit_bytes: u64) -> bool {
        let most = (limit_bytes / LIMIT_DIVISOR / CHUNK_BYTES).max(CHUNKS as u64);
        self.chunks.get() < most
    }

    /// Adds a chunk that was taken in the order of `stream`; returns whether it is still wanted.
    pub(crate) fn add(&self, thread: usize, stream: StreamId, id: BlockId, span: Span) -> bool {
        let own = self.own(thread);
        own.arena.with(|arena| {
            own.open.set(1);
            let arena = arena.get_or_insert_with(|| StreamArena::new(stream));
            let wanted = arena.stream == stream && !arena.closed && arena.chunks.len() < CHUNKS;
            let added = wanted && arena.blocks.add_apart(span).is_ok();
            if added {
                arena.chunks.push(id);
                self.chunks.add(1);
            }
            added
        })
    }

    /// Frees a block that was cut here; returns the chunks to return to the pool.
    pub(crate) fn give(
        &self,
        origin: BlockOrigin,
        id: BlockId,
        place: PoolPlace,
    ) -> ReturnedChunks {
        let own = origin.number().checked_sub(1).and_then(|n| self.all.get(n));
        let Some(CachePadded(own)) = own else {
            return ReturnedChunks::new();
        };
        own.arena.with(|there| {
            let Some(arena) = there else {
                return ReturnedChunks::new();
            };
            let here = place == PoolPlace::Stream(arena.stream)
                || !self.rules.is_kept(ReuseRule::ElsewhereIsLost);
            if arena.closed || !here {
                arena.lost += 1;
            } else if arena.blocks.give(id, SetId::READY, 0).is_none() {
                return ReturnedChunks::new();
            }
            arena.live -= 1;
            let over = arena.live == 0 && (arena.lost > 0 || arena.closed);
            match over {
                true => own.leave(there, &self.chunks),
                false => ReturnedChunks::new(),
            }
        })
    }

    /// Removes the arenas without live blocks: all of them, or those of a stream that has ended,
    /// which also get no new blocks.
    pub(crate) fn clear(&self, stream: Option<StreamId>) -> ReturnedChunks {
        let mut chunks = ReturnedChunks::new();
        // Most threads have no arena, and a load costs less than a lock.
        let open = self.all.iter().filter(|own| own.0.open.get() != 0);
        for CachePadded(own) in open {
            own.arena.with(|there| {
                let Some(arena) = there else {
                    return;
                };
                if stream.is_some_and(|stream| arena.stream != stream) {
                    return;
                }
                arena.closed |= stream.is_some() && arena.live > 0;
                if arena.live == 0 {
                    own.contention.set(0);
                    chunks.extend(own.leave(there, &self.chunks));
                }
            });
        }
        chunks
    }

    /// The span of a live block that was cut here.
    pub(crate) fn span(&self, origin: BlockOrigin, id: BlockId) -> Option<Span> {
        let CachePadded(own) = self.all.get(origin.number().checked_sub(1)?)?;
        own.arena.with(|arena| arena.as_ref()?.blocks.span(id))
    }

    /// Checks all invariants; returns the number of chunks. `held` gives the number of live blocks
    /// per origin.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn audit(&self, held: &[usize]) -> Result<usize, String> {
        let mut chunks = 0;
        for (n, CachePadded(own)) in self.all.iter().enumerate() {
            let held = held.get(n + 1).copied().unwrap_or(0);
            own.arena.with(|arena| {
                let Some(arena) = arena else {
                    return match held {
                        0 => Ok(()),
                        _ => Err(format!(
                            "arena {n} is gone, but {held} of its blocks are live"
                        )),
                    };
                };
                arena.blocks.audit()?;
                chunks += arena.chunks.len();
                let there = arena.blocks.live_blocks();
                match arena.live == held && there == held + arena.lost {
                    true => Ok(()),
                    false => Err(format!(
                        "arena {n}: {held} held, {} live, {there}",
                        arena.live
                    )),
                }
            })?;
        }
        match self.chunks.get() == chunks as u64 {
            true => Ok(chunks),
            false => Err(format!("{chunks} chunks, {} counted", self.chunks.get())),
        }
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::atomic::AtomicU64;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;

    type Modelled = Arenas<Mutex<Option<StreamArena>>, AtomicU64>;

    const STREAM: StreamId = StreamId(1);
    const PLACE: PoolPlace = PoolPlace::Stream(STREAM);

    /// The arenas of one thread, and a pool with chunks.
    struct Shared {
        arenas: Modelled,
        pool: Mutex<BlockAllocator>,
    }

    impl Shared {
        fn cut(&self, layout: AllocLayout) -> Option<(BlockId, Span, BlockOrigin)> {
            if !self.arenas.is_contended(0) {
                return None;
            }
            for _ in 0..2 {
                match self.arenas.cut(0, STREAM, layout) {
                    CutOutcome::Block(id, span, origin) => return Some((id, span, origin)),
                    CutOutcome::No => return None,
                    CutOutcome::NeedsChunk => {}
                }
                let mut pool = self.pool.lock().expect("no test panics with it");
                let chunk = pool.take(SetId::READY, AllocLayout::new(CHUNK_BYTES, 512), 0);
                let chunk = chunk.and_then(|id| Some((id, pool.span(id)?)));
                drop(pool);
                let Some((id, span)) = chunk else {
                    self.arenas.reset_contention(0);
                    return None;
                };
                if !self.arenas.add(0, STREAM, id, span) {
                    self.back(vec![(id, PLACE)]);
                }
            }
            None
        }

        fn back(&self, chunks: ReturnedChunks) {
            let mut pool = self.pool.lock().expect("no test panics with it");
            for (chunk, _) in chunks {
                let given = pool.give(chunk, SetId::READY, 0);
                assert!(given.is_some(), "a chunk went back twice");
            }
        }
    }

    fn overlap(one: Span, other: Span) -> bool {
        one.address < other.end() && other.address < one.end()
    }

    /// Threads cut, and free in their stream or elsewhere, while the stream ends or memory is
    /// reclaimed.
    fn explore(elsewhere: bool, cleared: Option<StreamId>) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let mut pool = BlockAllocator::new();
            let all = Span {
                address: 1 << 30,
                bytes: 2 * CHUNK_BYTES,
            };
            pool.add(all).expect("a range");
            let shared = Arc::new(Shared {
                arenas: Modelled::of(1),
                pool: Mutex::new(pool),
            });
            shared.arenas.assume_contention(0);
            let place = if elsewhere {
                PoolPlace::Anywhere
            } else {
                PLACE
            };
            let other = {
                let shared = shared.clone();
                thread::spawn(move || shared.cut(AllocLayout::new(4096, 512)))
            };
            let clearing = {
                let shared = shared.clone();
                thread::spawn(move || shared.back(shared.arenas.clear(cleared)))
            };
            let thread_number = shared.cut(AllocLayout::new(4096, 512));
            let other = other.join().expect("it does not panic");
            if let (Some(thread_number), Some(other)) = (thread_number, other) {
                assert!(
                    !overlap(thread_number.1, other.1),
                    "{thread_number:?} and {other:?}"
                );
            }
            clearing.join().expect("it does not panic");
            let held = usize::from(thread_number.is_some()) + usize::from(other.is_some());
            shared.arenas.audit(&[0, held]).expect("sound");
            for (id, _, origin) in [thread_number, other].into_iter().flatten() {
                shared.back(shared.arenas.give(origin, id, place));
            }
            shared.back(shared.arenas.clear(None));
            let pool = shared.pool.lock().expect("no thread panicked");
            assert_eq!(pool.free_bytes(SetId::READY), all.bytes, "a chunk is lost");
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn chunks_are_returned_once_while_threads_cut_and_memory_is_reclaimed() {
        explore(false, None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn chunks_are_returned_once_when_their_stream_ends() {
        explore(false, Some(STREAM));
        explore(true, Some(STREAM));
    }

    #[test]
    #[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot")]
    fn a_block_freed_elsewhere_is_not_cut_again_and_is_returned_behind_all_work() {
        let span = Span {
            address: 1 << 30,
            bytes: CHUNK_BYTES,
        };
        let half = AllocLayout::new(CHUNK_BYTES / 2, 512);
        loom::model(move || {
            let arenas = Modelled::of(1);
            arenas.assume_contention(0);
            let mut pool = BlockAllocator::new();
            pool.add(span).expect("a range");
            let chunk = pool.take(SetId::READY, AllocLayout::new(CHUNK_BYTES, 512), 0);
            let chunk = chunk.expect("there is one");
            assert_eq!(arenas.cut(0, STREAM, half), CutOutcome::NeedsChunk);
            assert!(arenas.add(0, STREAM, chunk, span));
            let cut = || match arenas.cut(0, STREAM, half) {
                CutOutcome::Block(id, span, origin) => (id, span, origin),
                other => panic!("{other:?}"),
            };
            let (first, second) = (cut(), cut());
            assert!(
                arenas
                    .give(first.2, first.0, PoolPlace::Anywhere)
                    .is_empty()
            );
            assert_eq!(
                arenas.cut(0, STREAM, half),
                CutOutcome::NeedsChunk,
                "it is lost"
            );
            assert_eq!(arenas.cut(0, StreamId(2), half), CutOutcome::No);
            let gone = arenas.give(second.2, second.0, PLACE);
            assert_eq!(gone, [(chunk, PoolPlace::Anywhere)]);
        });
    }
}
