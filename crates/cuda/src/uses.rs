//! Streams that have used a resource, so that it is destroyed after their work.
//!
//! The host runs ahead of its streams. Memory, modules and instantiated graphs note each stream in
//! which work with them is queued, and are not destroyed before that work is done. A stream with a
//! dropped core has finished, so it is removed.
//!
//! Invariant: if work with the resource may be running in a stream, that stream is in the list, or
//! of other libraries' streams another one of its context.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::callback;
use crate::capture_mode::{RelaxedCaptureMode, is_capture_running};
use crate::deferred::{self, DestroyOutcome, NoResidentKernels};
use crate::event::Event;
use crate::lock::lock;
use crate::stream::{Stream, WeakStream};
use crate::wait::WaitOutcome;

/// How many streams may alternate with a resource before noting one takes a lock.
const RECENT: usize = 4;

// Hot fields first: launches read them.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct StreamUses {
    /// The streams noted last, so that repeated work in few streams costs a few comparisons. Zero
    /// is no stream.
    recent: [AtomicU64; RECENT],
    streams: Mutex<NotedStreams>,
}

#[derive(Debug, Default)]
struct NotedStreams {
    streams: Vec<(u64, WeakStream)>,
    /// The index in `recent` of the next one.
    next: usize,
}

impl StreamUses {
    /// Whether `stream` is the first of those noted last. For a resource that is used in one
    /// stream, one comparison decides it; for the others a positive result is just as valid.
    #[inline]
    pub(crate) fn is_first(&self, stream: &Stream) -> bool {
        self.recent[0].load(Ordering::Relaxed) == stream.id()
    }

    /// Whether `stream` was one of the last noted.
    #[inline]
    pub(crate) fn has_recent(&self, stream: &Stream) -> bool {
        // A stream is in the list while it is alive, as it is here, and identifiers are never
        // reused: a stale one matches no live stream.
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
            let own = stream.downgrade();
            // One of another library's streams stands for all of them, which are waited for
            // together: each call may name one anew.
            let is_kept = |noted: &WeakStream| {
                noted.is_alive() && !(own.is_foreign() && noted.is_foreign_of(stream.context()))
            };
            noted.streams.retain(|(_, stream)| is_kept(stream));
            noted.streams.push((stream.id(), own));
        }
        // Stored last: from here on another thread that finds it there skips this.
        if !self.has_recent(stream) {
            self.recent[noted.next].store(stream.id(), Ordering::Relaxed);
            noted.next = (noted.next + 1) % RECENT;
        }
    }

    /// The streams that may still run work.
    pub(crate) fn streams(&self) -> Vec<Stream> {
        lock(&self.streams)
            .streams
            .iter()
            .filter_map(|(_, stream)| stream.upgrade())
            .collect()
    }

    /// Events after all work that was queued with the resource: when they are done, it is not in
    /// use. `None` if an event cannot be recorded in one of the streams now.
    pub(crate) fn record_events(&self) -> Option<Vec<Event>> {
        if callback::is_in_callback() {
            return None;
        }
        let mut events = Vec::new();
        for stream in self.streams() {
            // Work in the legacy stream ends the captures of blocking streams, and a per-thread
            // stream has a handle in its own thread only.
            if stream.is_handle_of_the_moment() || (stream.is_legacy() && is_capture_running()) {
                return None;
            }
            let _relaxed = RelaxedCaptureMode::enter(stream.context().bind().ok()?);
            let event = Event::untimed(stream.context()).ok()?;
            // The work of a stream that is being captured was waited for when that began.
            if event.record_uncaptured(&stream).ok()? {
                events.push(event);
            }
        }
        Some(events)
    }

    /// Waits until none of them runs work with the resource, and returns the worst outcome of the
    /// waits.
    pub(crate) fn wait(&self) -> WaitOutcome {
        if callback::is_in_callback() {
            return WaitOutcome::Refused;
        }
        self.streams()
            .iter()
            .map(Stream::wait_to_destroy)
            .max()
            .unwrap_or(WaitOutcome::Done)
    }

    /// As [`StreamUses::wait`], before a call that waits for the whole device: while the returned
    /// guard lives, no kernel is resident. If one is, nothing is waited for.
    pub(crate) fn wait_for_all(&self) -> Result<NoResidentKernels, DestroyOutcome> {
        if deferred::has_resident_kernel() {
            return Err(DestroyOutcome::RetryWhenNoneResident);
        }
        // The wait may take long, and a kernel may become resident meanwhile.
        self.wait().and_none_resident()
    }
}
