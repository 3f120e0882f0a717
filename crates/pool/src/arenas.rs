//! Memory that threads cut blocks of their own from.
//!
//! Threads that allocate all the time meet at the lock of [`crate::order`]. To hand
//! it from processor to processor, and with it all that is written behind it, takes
//! ten times as long as what is done there. So a thread that meets others often
//! takes chunks out of the pool and cuts its small blocks from them, behind a lock
//! that is as good as its own.
//!
//! An arena is of one stream. Its chunks were taken in that stream's order, so what
//! is cut from them may be used by work that the stream gets later; what is freed
//! in the stream may be cut again at once. What is freed elsewhere is lost: nothing
//! is cut there until all blocks of the arena are freed. Then its chunks go back,
//! behind all work queued so far.
//!
//! Invariants: a chunk is a live block of the pool's, and in one arena. Arenas hold
//! a few chunks each, however many threads and streams there are, and no more of a
//! limit than a part; who runs out of memory takes those away of which nothing is
//! live. No other lock of the pool is taken while an arena's is held.
//!
//! Elsewhere: which blocks are live ([`crate::held`]); where chunks come from
//! ([`crate::pool`], [`crate::growth`]).

use crate::blocks::{BlockId, Blocks, SetId, Span, Want};
use crate::held::{Apart, Lock, Word};
use crate::order::{Place, StreamId};

/// Blocks that are cut from chunks are no larger.
pub(crate) const LARGEST_CUT: u64 = 1 << 20;
/// What a chunk has, and how many chunks an arena has at most.
pub(crate) const CHUNK_BYTES: u64 = 4 << 20;
const CHUNKS: usize = 2;
/// Of a limit all chunks together are about one part of so many at most, or as
/// much as one arena has: what is free in them is nobody else's.
const LIMIT_PART: u64 = 8;
/// Threads share arenas when there are more.
pub(crate) const ARENAS: usize = 64;

/// What meeting another thread counts, what is enough to have an arena, and the
/// most that is counted. Not to meet one counts one less: who meets another at
/// less than one of 16 requests has none.
const MEETING: u64 = 16;
const ENOUGH: u64 = 1024;
const MOST: u64 = 2048;

/// What a block was cut from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home(u8);

impl Home {
    /// The pool itself.
    pub(crate) const POOL: Home = Home(0);

    /// A number below [`ARENAS`] + 1.
    pub(crate) fn number(self) -> usize {
        usize::from(self.0)
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Here it is.
    Block(BlockId, Span, Home),
    /// There would be with another chunk.
    Hungry,
    /// Not from an arena.
    No,
}

/// Chunks that go back, each behind the work queued at a place.
pub(crate) type Chunks = Vec<(BlockId, Place)>;

pub(crate) struct Arena {
    stream: StreamId,
    blocks: Blocks,
    chunks: Vec<BlockId>,
    /// Blocks that are live, and those that were freed elsewhere.
    live: usize,
    lost: usize,
    /// The stream is gone.
    closed: bool,
}

impl Arena {
    fn new(stream: StreamId) -> Self {
        Self {
            stream,
            blocks: Blocks::new(),
            chunks: Vec::new(),
            live: 0,
            lost: 0,
            closed: false,
        }
    }

    fn into_chunks(self) -> Chunks {
        let place = match self.lost > 0 || self.closed {
            true => Place::Anywhere,
            false => Place::Stream(self.stream),
        };
        let chunks = self.chunks.into_iter();
        chunks.map(|chunk| (chunk, place)).collect()
    }
}

struct Own<L, W> {
    arena: L,
    /// How often the thread has met others lately.
    met: W,
    /// Whether there is an arena.
    open: W,
}

impl<L, W: Word> Own<L, W> {
    /// Takes the arena away; with its chunks, which `all` counts.
    fn leave(&self, arena: &mut Option<Arena>, all: &W) -> Chunks {
        self.open.set(0);
        let gone = arena.take().map_or_else(Chunks::new, Arena::into_chunks);
        all.add((gone.len() as u64).wrapping_neg());
        gone
    }
}

/// See the module.
pub(crate) struct Arenas<L, W> {
    all: Box<[Apart<Own<L, W>>]>,
    /// How many chunks there are.
    chunks: W,
    #[cfg(feature = "broken-rules")]
    broken: std::sync::atomic::AtomicBool,
}

impl<L: Lock<Option<Arena>>, W: Word> Arenas<L, W> {
    pub(crate) fn new() -> Self {
        Self::of(ARENAS)
    }

    /// A power of two.
    fn of(count: usize) -> Self {
        let own = |_| {
            Apart(Own {
                arena: L::new(None),
                met: W::default(),
                open: W::default(),
            })
        };
        Self {
            all: (0..count).map(own).collect(),
            chunks: W::default(),
            #[cfg(feature = "broken-rules")]
            broken: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// Cuts what was freed elsewhere again from now on.
    #[cfg(feature = "broken-rules")]
    pub(crate) fn break_rule(&self) {
        self.broken
            .store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// Without tests that break the rule, it is.
    fn is_lost_elsewhere(&self) -> bool {
        #[cfg(feature = "broken-rules")]
        let broken = self.broken.load(std::sync::atomic::Ordering::Relaxed);
        #[cfg(not(feature = "broken-rules"))]
        let broken = false;
        !broken
    }

    #[inline]
    fn own(&self, thread: usize) -> &Own<L, W> {
        &self.all[thread & (self.all.len() - 1)].0
    }

    fn home(&self, thread: usize) -> Home {
        Home((thread & (self.all.len() - 1)) as u8 + 1)
    }

    /// A thread found another one at the lock of all.
    pub(crate) fn meets(&self, thread: usize) {
        let met = &self.own(thread).met;
        met.set((met.get() + MEETING).min(MOST));
    }

    /// A thread found nobody there.
    #[inline]
    pub(crate) fn meets_nobody(&self, thread: usize) {
        let met = &self.own(thread).met;
        let often = met.get();
        if often > 0 {
            met.set(often - 1);
        }
    }

    /// Whether a thread's blocks are to be cut from chunks.
    #[inline]
    pub(crate) fn is_worth_it(&self, thread: usize) -> bool {
        let own = self.own(thread);
        own.open.get() != 0 || own.met.get() >= ENOUGH
    }

    /// As if a thread had met others all the time.
    pub(crate) fn meets_all_the_time(&self, thread: usize) {
        self.own(thread).met.set(MOST);
    }

    /// There was no chunk to be had: the thread goes on as it did.
    pub(crate) fn had_none(&self, thread: usize) {
        self.own(thread).met.set(0);
    }

    /// Cuts a block for work in `stream`.
    pub(crate) fn cut(&self, thread: usize, stream: StreamId, want: Want) -> Cut {
        let own = self.own(thread);
        own.arena.with(|arena| {
            let hungry = match own.met.get() >= ENOUGH {
                true => Cut::Hungry,
                false => Cut::No,
            };
            let Some(arena) = arena else {
                return hungry;
            };
            if arena.stream != stream || arena.closed {
                return Cut::No;
            }
            let id = arena.blocks.take(SetId::READY, want, 0);
            let found = id.and_then(|id| Some((id, arena.blocks.span(id)?)));
            match found {
                Some((id, span)) => {
                    arena.live += 1;
                    Cut::Block(id, span, self.home(thread))
                }
                None if arena.chunks.len() < CHUNKS => hungry,
                None => Cut::No,
            }
        })
    }

    /// Whether there may be another chunk where there is so much memory at most.
    pub(crate) fn has_room(&self, limit_bytes: u64) -> bool {
        let most = (limit_bytes / LIMIT_PART / CHUNK_BYTES).max(CHUNKS as u64);
        self.chunks.get() < most
    }

    /// Adds a chunk that was taken in the order of `stream`; whether it is wanted
    /// still.
    pub(crate) fn add(&self, thread: usize, stream: StreamId, id: BlockId, span: Span) -> bool {
        let own = self.own(thread);
        own.arena.with(|arena| {
            own.open.set(1);
            let arena = arena.get_or_insert_with(|| Arena::new(stream));
            let wanted = arena.stream == stream && !arena.closed && arena.chunks.len() < CHUNKS;
            let added = wanted && arena.blocks.add_apart(span).is_ok();
            if added {
                arena.chunks.push(id);
                self.chunks.add(1);
            }
            added
        })
    }

    /// Takes a block back that was cut here; with what goes back to the pool.
    pub(crate) fn give(&self, home: Home, id: BlockId, place: Place) -> Chunks {
        let own = home.number().checked_sub(1).and_then(|n| self.all.get(n));
        let Some(Apart(own)) = own else {
            return Chunks::new();
        };
        own.arena.with(|there| {
            let Some(arena) = there else {
                return Chunks::new();
            };
            let here = place == Place::Stream(arena.stream) || !self.is_lost_elsewhere();
            if arena.closed || !here {
                arena.lost += 1;
            } else if arena.blocks.give(id, SetId::READY, 0).is_none() {
                return Chunks::new();
            }
            arena.live -= 1;
            let over = arena.live == 0 && (arena.lost > 0 || arena.closed);
            match over {
                true => own.leave(there, &self.chunks),
                false => Chunks::new(),
            }
        })
    }

    /// Takes those away of which nothing is live; all, or those of a stream that
    /// gets no more work, which also get no new blocks.
    pub(crate) fn clear(&self, stream: Option<StreamId>) -> Chunks {
        let mut chunks = Chunks::new();
        // Most have none, and a look costs less than a lock.
        let open = self.all.iter().filter(|own| own.0.open.get() != 0);
        for Apart(own) in open {
            own.arena.with(|there| {
                let Some(arena) = there else {
                    return;
                };
                if stream.is_some_and(|stream| arena.stream != stream) {
                    return;
                }
                arena.closed |= stream.is_some() && arena.live > 0;
                if arena.live == 0 {
                    own.met.set(0);
                    chunks.extend(own.leave(there, &self.chunks));
                }
            });
        }
        chunks
    }

    /// A block that was cut here and is live.
    pub(crate) fn span(&self, home: Home, id: BlockId) -> Option<Span> {
        let Apart(own) = self.all.get(home.number().checked_sub(1)?)?;
        own.arena.with(|arena| arena.as_ref()?.blocks.span(id))
    }

    /// Walks everything; how many chunks there are. `held` says how many blocks of
    /// each home are live.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub(crate) fn audit(&self, held: &[usize]) -> Result<usize, String> {
        let mut chunks = 0;
        for (n, Apart(own)) in self.all.iter().enumerate() {
            let held = held.get(n + 1).copied().unwrap_or(0);
            own.arena.with(|arena| {
                let Some(arena) = arena else {
                    return match held {
                        0 => Ok(()),
                        _ => Err(format!("arena {n} is gone, and {held} blocks of it live")),
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

    type Modelled = Arenas<Mutex<Option<Arena>>, AtomicU64>;

    const STREAM: StreamId = StreamId(1);
    const PLACE: Place = Place::Stream(STREAM);

    /// Arenas of one thread, and chunks to be had.
    struct Shared {
        arenas: Modelled,
        pool: Mutex<Blocks>,
    }

    impl Shared {
        fn cut(&self, want: Want) -> Option<(BlockId, Span, Home)> {
            if !self.arenas.is_worth_it(0) {
                return None;
            }
            for _ in 0..2 {
                match self.arenas.cut(0, STREAM, want) {
                    Cut::Block(id, span, home) => return Some((id, span, home)),
                    Cut::No => return None,
                    Cut::Hungry => {}
                }
                let mut pool = self.pool.lock().expect("no test panics with it");
                let chunk = pool.take(SetId::READY, Want::new(CHUNK_BYTES, 512), 0);
                let chunk = chunk.and_then(|id| Some((id, pool.span(id)?)));
                drop(pool);
                let Some((id, span)) = chunk else {
                    self.arenas.had_none(0);
                    return None;
                };
                if !self.arenas.add(0, STREAM, id, span) {
                    self.back(vec![(id, PLACE)]);
                }
            }
            None
        }

        fn back(&self, chunks: Chunks) {
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

    /// Threads cut, and free in their stream or elsewhere, while the stream ends
    /// or memory is wanted.
    fn explore(elsewhere: bool, cleared: Option<StreamId>) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let mut pool = Blocks::new();
            let all = Span {
                address: 1 << 30,
                bytes: 2 * CHUNK_BYTES,
            };
            pool.add(all).expect("a range");
            let shared = Arc::new(Shared {
                arenas: Modelled::of(1),
                pool: Mutex::new(pool),
            });
            shared.arenas.meets_all_the_time(0);
            let place = if elsewhere { Place::Anywhere } else { PLACE };
            let other = {
                let shared = shared.clone();
                thread::spawn(move || shared.cut(Want::new(4096, 512)))
            };
            let clearing = {
                let shared = shared.clone();
                thread::spawn(move || shared.back(shared.arenas.clear(cleared)))
            };
            let mine = shared.cut(Want::new(4096, 512));
            let other = other.join().expect("it does not panic");
            if let (Some(mine), Some(other)) = (mine, other) {
                assert!(!overlap(mine.1, other.1), "{mine:?} and {other:?}");
            }
            clearing.join().expect("it does not panic");
            let held = usize::from(mine.is_some()) + usize::from(other.is_some());
            shared.arenas.audit(&[0, held]).expect("sound");
            for (id, _, home) in [mine, other].into_iter().flatten() {
                shared.back(shared.arenas.give(home, id, place));
            }
            shared.back(shared.arenas.clear(None));
            let pool = shared.pool.lock().expect("nobody panicked");
            assert_eq!(pool.free_bytes(SetId::READY), all.bytes, "a chunk is lost");
        });
    }

    #[test]
    fn chunks_go_back_once_while_threads_cut_and_memory_is_wanted() {
        explore(false, None);
    }

    #[test]
    fn chunks_go_back_once_when_their_stream_ends() {
        explore(false, Some(STREAM));
        explore(true, Some(STREAM));
    }

    #[test]
    fn what_was_freed_elsewhere_is_not_cut_again_and_goes_back_behind_all_work() {
        let span = Span {
            address: 1 << 30,
            bytes: CHUNK_BYTES,
        };
        let half = Want::new(CHUNK_BYTES / 2, 512);
        loom::model(move || {
            let arenas = Modelled::of(1);
            arenas.meets_all_the_time(0);
            let mut pool = Blocks::new();
            pool.add(span).expect("a range");
            let chunk = pool.take(SetId::READY, Want::new(CHUNK_BYTES, 512), 0);
            let chunk = chunk.expect("there is one");
            assert_eq!(arenas.cut(0, STREAM, half), Cut::Hungry);
            assert!(arenas.add(0, STREAM, chunk, span));
            let cut = || match arenas.cut(0, STREAM, half) {
                Cut::Block(id, span, home) => (id, span, home),
                other => panic!("{other:?}"),
            };
            let (first, second) = (cut(), cut());
            assert!(arenas.give(first.2, first.0, Place::Anywhere).is_empty());
            assert_eq!(arenas.cut(0, STREAM, half), Cut::Hungry, "it is lost");
            assert_eq!(arenas.cut(0, StreamId(2), half), Cut::No);
            let gone = arenas.give(second.2, second.0, PLACE);
            assert_eq!(gone, [(chunk, Place::Anywhere)]);
        });
    }
}
