//! The few blocks that a thread has freed in a stream just now.
//!
//! Threads are spread over a fixed number of magazines, each with a lock that
//! others seldom want. A block in one is kept for its stream: work that the
//! stream gets later runs later, so it may have the block again at once. A
//! magazine is a small cache by stream and size, so a look costs the same
//! whether it finds or not.
//!
//! Invariants: a magazine holds so many blocks and bytes at most; whoever runs
//! out of memory empties all of them.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::blocks::{Span, Want};
use crate::order::StreamId;

const MAGAZINES: usize = 64;
/// Blocks of a magazine: so many sizes, and so many blocks of one.
const SETS: usize = 16;
const WAYS: usize = 4;
/// Bytes of a magazine, and of its largest block.
const BYTES: u64 = 4 << 20;
const LARGEST: u64 = 1 << 20;

/// A block that was freed in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cached {
    pub(crate) stream: StreamId,
    pub(crate) span: Span,
}

#[derive(Debug, Default)]
struct Magazine {
    /// In each set the newest first.
    sets: [[Option<Cached>; WAYS]; SETS],
    bytes: u64,
}

/// On a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot(Mutex<Magazine>);

#[derive(Debug)]
pub(crate) struct Magazines {
    slots: [Slot; MAGAZINES],
    bytes: AtomicU64,
}

impl Default for Magazines {
    fn default() -> Self {
        Self {
            slots: std::array::from_fn(|_| Slot::default()),
            bytes: AtomicU64::new(0),
        }
    }
}

/// The magazine of the calling thread.
#[inline]
fn mine() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    // A thread that is at its end has no such variable any more.
    let mine = MINE.try_with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(THREADS.fetch_add(1, Relaxed) % MAGAZINES);
        }
        mine.get()
    });
    mine.unwrap_or(0)
}

/// The set for blocks of a stream and a size.
#[inline]
fn set(stream: StreamId, bytes: u64) -> usize {
    let mixed = (stream.0 ^ bytes.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 60) as usize % SETS
}

impl Magazines {
    /// Whether blocks of that size are kept.
    #[inline]
    pub(crate) fn keeps(bytes: u64) -> bool {
        bytes <= LARGEST
    }

    /// Bytes in all of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// The newest block of a stream that has just the size.
    #[inline]
    pub(crate) fn take(&self, stream: StreamId, want: Want) -> Option<Span> {
        let mut magazine = self.lock(mine());
        let ways = &mut magazine.sets[set(stream, want.bytes())];
        let fits = |cached: &Option<Cached>| {
            cached.is_some_and(|cached| {
                cached.stream == stream
                    && cached.span.bytes == want.bytes()
                    && cached.span.address & (want.align_bytes() - 1) == 0
            })
        };
        let at = ways.iter().position(fits)?;
        let Cached { span, .. } = ways[at].take()?;
        for way in at + 1..WAYS {
            ways[way - 1] = ways[way].take();
        }
        magazine.bytes -= span.bytes;
        self.bytes.fetch_sub(span.bytes, Relaxed);
        Some(span)
    }

    /// Keeps a block; the one that there is no room for.
    #[inline]
    pub(crate) fn put(&self, cached: Cached) -> Option<Cached> {
        let mut magazine = self.lock(mine());
        let bytes = cached.span.bytes;
        if magazine.bytes + bytes > BYTES {
            return Some(cached);
        }
        let ways = &mut magazine.sets[set(cached.stream, bytes)];
        let gone = ways[WAYS - 1].take();
        for way in (1..WAYS).rev() {
            ways[way] = ways[way - 1];
        }
        ways[0] = Some(cached);
        let less = gone.map_or(0, |gone| gone.span.bytes);
        magazine.bytes += bytes;
        magazine.bytes -= less;
        self.bytes.fetch_add(bytes, Relaxed);
        self.bytes.fetch_sub(less, Relaxed);
        gone
    }

    /// Takes all blocks out, or those of a stream.
    pub(crate) fn drain(&self, stream: Option<StreamId>) -> Vec<Cached> {
        let mut gone = Vec::new();
        for index in 0..MAGAZINES {
            let mut magazine = self.lock(index);
            if magazine.bytes == 0 {
                continue;
            }
            for ways in &mut magazine.sets {
                for way in ways.iter_mut() {
                    let is_meant = |cached: &mut Cached| stream.is_none_or(|s| s == cached.stream);
                    gone.extend(way.take_if(is_meant));
                }
                ways.sort_by_key(Option::is_none);
            }
            let kept = magazine.sets.iter().flatten().flatten();
            let kept: u64 = kept.map(|cached| cached.span.bytes).sum();
            let less = std::mem::replace(&mut magazine.bytes, kept) - kept;
            self.bytes.fetch_sub(less, Relaxed);
        }
        gone
    }

    #[inline]
    fn lock(&self, index: usize) -> MutexGuard<'_, Magazine> {
        let magazine = &self.slots[index].0;
        magazine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
