//! A capture that records its graph into a cache.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytemuck::Pod;
use fercuda_cuda::{Capture, Stream};

use super::arena::{self, GraphArena, Scratch};
use super::cache::GraphCache;
use super::error::GraphError;
use super::key::Key;
use super::recorded::{RecordOptions, RecordedGraph};
use crate::lock::lock;

/// A capture that records its graph into a cache. [`Recording::finish`] keeps it, dropping discards
/// it; either way its stream is usable again.
#[must_use = "dropping a recording discards it"]
pub struct Recording<'c, K: Key> {
    cache: &'c GraphCache<K>,
    /// Key by which the cache knows the recording while it runs.
    number: u64,
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

impl<K: Key> GraphCache<K> {
    /// Begins to capture `stream`, after waiting for its earlier work; [`Recording::finish`] keeps
    /// the graph under `key`.
    ///
    /// # Errors
    /// Those of [`Stream::begin_capture`].
    pub fn begin(
        &self,
        key: K,
        stream: &Stream,
        options: RecordOptions,
    ) -> Result<Recording<'_, K>, GraphError> {
        let number = self.register(key)?;
        Recording::begin(self, number, stream, options).map_err(|error| {
            self.forget(number);
            error.into()
        })
    }

    /// Captures the work that `body` submits to the stream, and keeps the graph under `key`. If
    /// `body` fails or panics, the capture is discarded, and the stream is usable.
    ///
    /// # Errors
    /// Those of `body`, [`GraphCache::begin`] and [`Recording::finish`].
    pub fn record<R, E: From<GraphError>>(
        &self,
        key: K,
        stream: &Stream,
        options: RecordOptions,
        body: impl FnOnce(&Recording<'_, K>) -> Result<R, E>,
    ) -> Result<(R, RecordedGraph), E> {
        let recording = self.begin(key, stream, options)?;
        let value = body(&recording)?;
        let recorded = recording.finish()?;
        Ok((value, recorded))
    }
}

impl<'c, K: Key> Recording<'c, K> {
    fn begin(
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
    pub fn finish(mut self) -> Result<RecordedGraph, GraphError> {
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
        let recorded = RecordedGraph {
            nodes,
            arena_bytes,
            arena_peak_bytes,
            bytes: arena_bytes.saturating_add(self.cache.graph_bytes(nodes)),
            updated: false,
            capture: self.began.elapsed(),
            instantiate: Duration::ZERO,
            upload: Duration::ZERO,
        };
        self.cache.keep(self.number, &self.stream, &graph, recorded)
    }
}

impl<K: Key> Drop for Recording<'_, K> {
    fn drop(&mut self) {
        self.cache.forget(self.number);
        drop(self.capture.take());
    }
}
