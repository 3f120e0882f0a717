//! Graph caches of a session.
//!
//! Invariants: captures use separate streams of the session, never the one that orders its work,
//! so no work of another thread gets into a graph. Graphs are destroyed with the session, even if
//! handles to them remain. Elsewhere: the cache itself (`graphs`).

use std::sync::{Arc, Mutex};

use fercuda_cuda::Stream;

#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::graphs::{
    GraphBudget, GraphCache, GraphStats, Key, RecordOptions, RecordedGraph, Recording, Timing,
};
use crate::lock::lock;
use crate::session::Session;

/// Graph cache of a session; its graphs are replayed in the session's order. The graphs are
/// destroyed with the session, or before, when this is dropped, behind their last replay.
///
/// All calls may be made from any thread.
#[derive(Debug)]
pub struct Graphs<K: Key> {
    session: Session,
    cache: Arc<GraphCache<K>>,
    /// Idle streams for captures.
    spare: Mutex<Vec<Stream>>,
}

impl<K: Key + Send + Sync + 'static> Graphs<K> {
    /// Captures the work that `body` submits to the recording's stream, and keeps the graph under
    /// `key`. In `body` the session is the tenant; its memory, by [`Session::memory`], and kernels,
    /// by [`fercuda_cuda::Launch`], are used as in any stream. If `body` fails or panics, the
    /// capture is discarded, and an earlier graph under the key is kept.
    ///
    /// # Errors
    /// Those of `body`; [`Error::Graph`]; [`Error::Ended`]; [`Error::Forked`].
    pub fn record<R>(
        &self,
        key: K,
        options: RecordOptions,
        body: impl FnOnce(&Recording<'_, K>) -> Result<R>,
    ) -> Result<(R, RecordedGraph)> {
        let core = &self.session.core;
        core.with(|_| Ok(()))?;
        core.as_tenant(|| {
            let spare = lock(&self.spare).pop();
            let stream = match spare {
                Some(stream) => stream,
                None => Stream::new(core.context())?,
            };
            let recorded = self.cache.record(key, &stream, options, body)?;
            lock(&self.spare).push(stream);
            Ok(recorded)
        })
    }

    /// Replays the graph under `key` behind the session's work; returns whether there is one.
    ///
    /// # Errors
    /// [`Error::Graph`]; [`Error::Ended`]; [`Error::Forked`].
    pub fn replay(&self, key: &K) -> Result<bool> {
        let core = &self.session.core;
        core.with(|_| Ok(()))?;
        if core.is_idle() {
            return core.as_tenant(|| Ok(self.cache.replay(key, core.stream())?));
        }
        let (cache, key) = (self.cache.clone(), key.clone());
        core.in_order(move |stream| Ok(cache.replay(&key, stream)?))
    }

    /// As [`Graphs::replay`], with its duration; `None` if there is no graph.
    ///
    /// # Errors
    /// As there.
    pub fn replay_timed(&self, key: &K) -> Result<Option<Timing>> {
        let core = &self.session.core;
        core.with(|_| Ok(()))?;
        let (cache, key) = (self.cache.clone(), key.clone());
        core.in_order(move |stream| Ok(cache.replay_timed(&key, stream)?))
    }

    /// Drops the graph under `key`, and a capture in progress for it; returns whether there was a
    /// graph.
    pub fn invalidate(&self, key: &K) -> bool {
        self.cache.invalidate(key)
    }

    /// Drops all graphs; returns their number.
    pub fn invalidate_all(&self) -> usize {
        self.cache.invalidate_all()
    }

    /// Drops all graphs of a generation; returns their number.
    pub fn invalidate_generation(&self, generation: u64) -> usize {
        self.cache.invalidate_generation(generation)
    }

    /// Whether there is a graph under `key`.
    pub fn contains(&self, key: &K) -> bool {
        self.cache.contains(key)
    }

    /// Counters of the cache.
    pub fn stats(&self) -> GraphStats {
        self.cache.stats()
    }
}

impl Session {
    /// Creates a graph cache of the session: captured allocations count within the session's limit,
    /// besides the budget.
    ///
    /// # Errors
    /// [`Error::Cuda`]; [`Error::Ended`]; [`Error::Forked`].
    pub fn graphs<K: Key + Send + Sync + 'static>(&self, budget: GraphBudget) -> Result<Graphs<K>> {
        let core = &self.core;
        let cache =
            core.as_tenant(|| GraphCache::of_account(core.context(), budget, core.account()));
        let cache = Arc::new(cache?);
        // Under the table's lock, so that the session cannot end in between.
        core.with(|_| {
            core.owned().keep_until_end(Arc::downgrade(&cache) as _);
            Ok(())
        })?;
        Ok(Graphs {
            session: self.clone(),
            cache,
            spare: Mutex::default(),
        })
    }
}
