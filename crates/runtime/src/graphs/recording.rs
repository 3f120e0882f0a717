//! A graph while it is captured for a cache.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytemuck::Pod;
use fercuda_cuda::{Capture, CaptureMode, Stream};

use super::arena::{self, Arena, Scratch};
use super::{GraphCache, GraphError, Key, lock};

/// How a graph is captured.
#[derive(Clone, Copy, Debug)]
pub struct RecordOptions {
    /// What the capture forbids elsewhere; nothing, unless asked for, since libraries
    /// load code and memory of their own when they are first called.
    pub mode: CaptureMode,
    /// What the arena's first chunk is to have. 0 lets it grow from small; best is what
    /// [`Recorded::arena_peak_bytes`] said of an earlier capture of the same.
    pub arena_bytes: u64,
}

impl Default for RecordOptions {
    fn default() -> Self {
        Self {
            mode: CaptureMode::Relaxed,
            arena_bytes: 0,
        }
    }
}

/// What has become of a capture.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Recorded {
    /// Pieces of work.
    pub nodes: usize,
    /// What the arena takes.
    pub arena_bytes: u64,
    /// The most that was allocated from it at one time.
    pub arena_peak_bytes: u64,
    /// What the entry counts for: the arena, and the graph itself by its nodes.
    pub bytes: u64,
    /// Whether a graph that was there has been updated, rather than one made anew.
    pub updated: bool,
    /// How long the host took to capture.
    pub capture: Duration,
    /// How long the host took to update or instantiate it.
    pub instantiate: Duration,
    /// How long the host took to send it to the device.
    pub upload: Duration,
}

/// A capture whose graph is for a cache. [`Recording::finish`] keeps it; dropped, it is
/// discarded, and its stream is usable again either way.
#[must_use = "dropping a recording discards it"]
pub struct Recording<'c, K: Key> {
    cache: &'c GraphCache<K>,
    /// By which the cache knows it while it runs.
    pub(super) number: u64,
    /// `None` only once it has ended.
    capture: Option<Capture>,
    stream: Stream,
    arena: Arc<Mutex<Arena>>,
    began: Instant,
}

impl<K: Key> fmt::Debug for Recording<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recording").finish_non_exhaustive()
    }
}

impl<'c, K: Key> Recording<'c, K> {
    pub(super) fn begin(
        cache: &'c GraphCache<K>,
        number: u64,
        stream: &Stream,
        options: RecordOptions,
    ) -> Result<Self, fercuda_cuda::Error> {
        let began = Instant::now();
        let capture = stream.begin_capture(options.mode)?;
        Ok(Self {
            cache,
            number,
            capture: Some(capture),
            stream: stream.clone(),
            arena: Arc::new(Mutex::new(cache.arena(options.arena_bytes))),
            began,
        })
    }

    /// The stream that is captured: work given to it becomes the graph's. Others take
    /// part from when they wait for an event recorded in it, and must be waited for
    /// before the capture ends.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The capture itself: host slots and host callbacks of the graph.
    pub fn capture(&self) -> &Capture {
        match &self.capture {
            Some(capture) => capture,
            None => unreachable!("only its end takes it"),
        }
    }

    /// Memory for `len` values in the graph's arena, at the same place in every replay.
    /// What is in it at first is unspecified. Whoever uses it in another stream than
    /// the captured one does so behind an event that was recorded after this, and joins
    /// the captured one before it is dropped.
    ///
    /// # Errors
    /// Those of the driver, for instance if there is no memory; [`GraphError::Size`].
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<Scratch<T>, GraphError> {
        arena::allocate(&self.arena, self.capture(), len)
    }

    /// Lets the entry hold something until the last replay is done: what the work
    /// refers to that is not seen here, such as the workspace of a library. Buffers,
    /// modules and host slots that were passed are held anyway.
    pub fn keep(&self, thing: impl Send + Sync + 'static) {
        self.capture().keep(thing);
    }

    /// Ends the capture and keeps the graph under its key, in place of what was there,
    /// sent to the device. What no longer fits the budget goes.
    ///
    /// # Errors
    /// [`GraphError::TooLarge`]; [`GraphError::Invalidated`]; those of the driver, for
    /// instance if the capture was lost. What was under the key stays then.
    pub fn finish(mut self) -> Result<Recorded, GraphError> {
        let Some(capture) = self.capture.take() else {
            unreachable!("only its end takes it")
        };
        let graph = capture.end();
        let (arena_bytes, arena_peak_bytes) = {
            let mut arena = lock(&self.arena);
            arena.close();
            (arena.bytes(), arena.peak_bytes())
        };
        let graph = graph?;
        let nodes = graph.node_count()?;
        let recorded = Recorded {
            nodes,
            arena_bytes,
            arena_peak_bytes,
            bytes: arena_bytes.saturating_add(self.cache.graph_bytes(nodes)),
            updated: false,
            capture: self.began.elapsed(),
            instantiate: Duration::ZERO,
            upload: Duration::ZERO,
        };
        self.cache.keep(&self, &graph, recorded)
    }
}

impl<K: Key> Drop for Recording<'_, K> {
    fn drop(&mut self) {
        self.cache.forget(self.number);
        drop(self.capture.take());
    }
}
