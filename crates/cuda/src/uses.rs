//! Which streams have used a thing, so that it is destroyed behind them.
//!
//! The host runs ahead of its streams. Memory, modules and instantiated
//! graphs note each stream that is given work with them and are not destroyed
//! before that work is done. A stream that was dropped had finished, so it is
//! forgotten.
//!
//! Invariant: if work with the thing may be running in a stream, that stream
//! is in the list.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::stream::{Stream, WeakStream};

/// Locks what no panic can leave half done.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
pub(crate) struct Uses {
    /// The stream noted last, so that work after work in one stream costs one
    /// comparison. Zero is no stream.
    last: AtomicU64,
    streams: Mutex<Vec<(u64, WeakStream)>>,
}

impl Uses {
    /// Whether `stream` was the last one noted.
    #[inline]
    pub(crate) fn was_last(&self, stream: &Stream) -> bool {
        // An entry is removed only when its stream is gone, and identifiers
        // are not used again, so a stale value matches no live stream.
        self.last.load(Ordering::Relaxed) == stream.id()
    }

    /// Notes `stream` and says whether it is new to the list.
    pub(crate) fn note(&self, stream: &Stream) -> bool {
        let mut streams = lock(&self.streams);
        self.last.store(stream.id(), Ordering::Relaxed);
        if streams.iter().any(|(id, _)| *id == stream.id()) {
            return false;
        }
        streams.retain(|(_, stream)| stream.is_alive());
        streams.push((stream.id(), stream.downgrade()));
        true
    }

    /// The streams that may still be at work.
    pub(crate) fn streams(&self) -> Vec<Stream> {
        lock(&self.streams)
            .iter()
            .filter_map(|(_, stream)| stream.upgrade())
            .collect()
    }

    /// Whether waiting means waiting for a whole context.
    pub(crate) fn waits_for_all(&self) -> bool {
        self.streams().iter().any(Stream::is_of_another_thread)
    }

    /// Waits until none of them is at work with it.
    pub(crate) fn wait(&self) {
        for stream in self.streams() {
            stream.wait_to_destroy();
        }
    }
}
