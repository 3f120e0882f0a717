//! Which streams have used a thing, so that it is destroyed behind them.
//!
//! The host runs ahead of its streams. Memory, modules and instantiated
//! graphs note each stream that is given work with them and are not destroyed
//! before that work is done. A stream whose core is gone had finished, so it
//! is forgotten.
//!
//! Invariant: if work with the thing may be running in a stream, that stream
//! is in the list.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::callback::{self, Destroyed, NoneStays};
use crate::context::Relaxed;
use crate::event::Event;
use crate::stream::{Stream, Waited, WeakStream};

/// Locks what no panic can leave half done.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many streams may take turns with a thing before noting one takes a
/// lock.
const RECENT: usize = 4;

// What launches look at lies first.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Uses {
    /// The streams noted last, so that work after work in few streams costs a
    /// few comparisons. Zero is no stream.
    recent: [AtomicU64; RECENT],
    streams: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    streams: Vec<(u64, WeakStream)>,
    /// The place in `recent` for the next one.
    next: usize,
}

impl Uses {
    /// Whether `stream` is in the first place of those noted last. For what is
    /// used in one stream that says it all, by one comparison; for the rest it
    /// is no less true.
    #[inline]
    pub(crate) fn is_first(&self, stream: &Stream) -> bool {
        self.recent[0].load(Ordering::Relaxed) == stream.id()
    }

    /// Whether `stream` was one of the last noted.
    #[inline]
    pub(crate) fn has_recent(&self, stream: &Stream) -> bool {
        // A stream is in the list while it is alive, as it is here, and
        // identifiers are not used again: a stale one matches no live stream.
        self.recent
            .iter()
            .any(|id| id.load(Ordering::Relaxed) == stream.id())
    }

    /// Whether `stream` is in the list.
    pub(crate) fn has(&self, stream: &Stream) -> bool {
        let noted = lock(&self.streams);
        noted.streams.iter().any(|(id, _)| *id == stream.id())
    }

    /// Notes `stream`.
    pub(crate) fn note(&self, stream: &Stream) {
        let mut noted = lock(&self.streams);
        if !noted.streams.iter().any(|(id, _)| *id == stream.id()) {
            noted.streams.retain(|(_, stream)| stream.is_alive());
            noted.streams.push((stream.id(), stream.downgrade()));
        }
        // Only now may another thread that finds it there skip this.
        if !self.has_recent(stream) {
            self.recent[noted.next].store(stream.id(), Ordering::Relaxed);
            noted.next = (noted.next + 1) % RECENT;
        }
    }

    /// The streams that may still be at work.
    pub(crate) fn streams(&self) -> Vec<Stream> {
        lock(&self.streams)
            .streams
            .iter()
            .filter_map(|(_, stream)| stream.upgrade())
            .collect()
    }

    /// Marks behind all work that was queued with it: when they are done, it is
    /// not in use. None if one of the streams cannot be marked now.
    pub(crate) fn marks(&self) -> Option<Vec<Event>> {
        if callback::inside() {
            return None;
        }
        let mut marks = Vec::new();
        for stream in self.streams() {
            // Work in the legacy stream ends the captures of blocking streams,
            // and a per-thread stream has a name in its own thread only.
            if stream.is_per_thread() || (stream.is_legacy() && callback::captures_run()) {
                return None;
            }
            let _relaxed = Relaxed::enter(stream.context().bind().ok()?);
            let mark = Event::untimed(stream.context()).ok()?;
            // A stream that is being captured settled when that began.
            if mark.record_uncaptured(&stream).ok()? {
                marks.push(mark);
            }
        }
        Some(marks)
    }

    /// Waits until none of them is at work with it, and says the worst that
    /// the waits have shown.
    pub(crate) fn wait(&self) -> Waited {
        if callback::inside() {
            return Waited::Refused;
        }
        self.streams()
            .iter()
            .map(Stream::wait_to_destroy)
            .max()
            .unwrap_or(Waited::Done)
    }

    /// As [`Uses::wait`], before a call that waits for the whole device: while what is
    /// returned is there, no kernel stays. Where one does, nothing is waited for.
    pub(crate) fn wait_for_all(&self) -> Result<NoneStays, Destroyed> {
        if callback::any_stays() {
            return Err(Destroyed::WhileOneStays);
        }
        // That may take long, and a kernel begin meanwhile.
        self.wait().and_none_stays()
    }
}
