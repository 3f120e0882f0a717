//! A capture that records its graph into a cache.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytemuck::Pod;
use fercuda_cuda::{Capture, CaptureMode, Stream};

use super::arena::{self, GraphArena, Scratch};
use super::{GraphCache, GraphError, Key, lock};

/// Options of a capture.
#[derive(Clone, Copy, Debug)]
pub struct RecordOptions {
    /// What the capture forbids on other threads and streams. Default: nothing, since libraries
    /// load code and allocate memory when they are first called.
    pub mode: CaptureMode,
    /// Size of the arena's first chunk. 0 lets it grow from small; best is the
    /// [`Recorded::arena_peak_bytes`] of an earlier capture of the same work.
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

/// Result of a capture.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Recorded {
    /// Number of graph nodes.
    pub nodes: usize,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// Peak of the bytes allocated from it.
    pub arena_peak_bytes: u64,
    /// Size that the entry counts as: the arena, and the graph itself by its nodes.
    pub bytes: u64,
    /// Whether an existing graph was updated, rather than instantiated anew.
    pub updated: bool,
    /// Host time of the capture.
    pub capture: Duration,
    /// Host time of the update or instantiation.
    pub instantiate: Duration,
    /// Host time of the upload to the device.
    pub upload: Duration,
}

/// A capture that records its graph into a cache. [`Recording::finish`] keeps it, dropping discards
/// it; either way its stream is usable again.
#[must_use = "dropping a recording discards it"]
pub struct Recording<'c, K: Key> {
    cache: &'c GraphCache<K>,
    /// Key by which the cache knows the recording while it runs.
    pub(super) number: u64,
    /// `None` only after it has ended.
    capture: Option<Capture>,
    stream: Stream,
    arena: Arc<Mutex<GraphArena>>,
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

    /// The captured stream: work submitted to it becomes part of the graph. Another stream joins
    /// when it waits for an event recorded in this one, and must be joined back before the capture
    /// ends.
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

    /// Allocates `len` values in the graph's arena, at the same address in every replay and
    /// initially uninitialised. To use them in another stream than the captured one, order that
    /// behind an event recorded after this call, and join the captured stream before the memory is
    /// dropped.
    ///
    /// # Errors
    /// Those of the driver, for instance if there is no memory; [`GraphError::Size`].
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<Scratch<T>, GraphError> {
        arena::allocate(&self.arena, self.capture(), len)
    }

    /// Retains a value until the last replay is done: what the work refers to beyond this API, such
    /// as the workspace of a library. Buffers, modules and host slots that were passed are retained
    /// anyway.
    pub fn keep(&self, thing: impl Send + Sync + 'static) {
        self.capture().keep(thing);
    }

    /// Ends the capture, uploads the graph to the device and keeps it under its key, replacing an
    /// earlier one. Entries over the budget are evicted.
    ///
    /// # Errors
    /// [`GraphError::TooLarge`]; [`GraphError::Invalidated`]; those of the driver, for instance if
    /// the capture was lost. An earlier graph under the key is kept then.
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
