//! The cache itself: entries by key, replays, and dropped graphs.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fercuda_cuda::sys::types::CUresult;
use fercuda_cuda::{Context, Event, Graph, GraphExec, RetiredGraph, Stream};

use super::arena::GraphArena;
use super::error::GraphError;
use super::key::Key;
use super::lru::{CheckedOut, LruCache};
use super::recorded::RecordedGraph;
use super::timing::Timing;
use crate::account::SessionAccount;
use crate::lock::lock;

/// Budget of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphBudget {
    /// Maximum sum of the entries' sizes.
    pub bytes: u64,
    /// Size that a graph itself counts as, per node; drivers do not report it.
    pub node_bytes: u64,
}

impl Default for GraphBudget {
    /// 1 GiB, and 8 KiB a node.
    fn default() -> Self {
        Self {
            bytes: 1 << 30,
            node_bytes: 8 << 10,
        }
    }
}

/// Counters of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphStats {
    /// Cached graphs.
    pub entries: usize,
    /// Sum of their sizes.
    pub bytes: u64,
    /// Dropped graphs with last launches that are running, or not yet polled.
    pub retired: usize,
    /// Replays.
    pub replays: u64,
    /// Replays that found no graph.
    pub absent: u64,
    /// Graphs instantiated.
    pub instantiated: u64,
    /// Graphs updated in place.
    pub updated: u64,
    /// Entries evicted.
    pub evicted: u64,
}

/// A cached graph.
// The field that a replay reads comes first.
#[derive(Debug)]
#[repr(C)]
pub(super) struct CachedGraph {
    exec: GraphExec,
    upload: Duration,
}

struct CacheState<K> {
    /// Captures in progress: number, key, and whether the key was invalidated.
    recordings: Vec<(u64, K, bool)>,
    next_recording: u64,
    retired: Vec<RetiredGraph>,
    /// Slots of entries that retain resources which an update has replaced.
    updated: Vec<u32>,
    /// Replays until dropped graphs are polled.
    until_reap: u32,
    /// The session has ended: nothing is cached any more.
    ended: bool,
    stats: GraphStats,
}

/// Number of replays between two polls of dropped graphs, as long as there are any.
const REAP_EVERY: u32 = 64;

/// LRU cache of graphs, within a budget.
///
/// All calls may be made from any thread; each graph is launched by one thread at a time. A
/// capture belongs to one thread, from beginning to end.
// Fields that each replay reads are together.
#[repr(C, align(64))]
pub struct GraphCache<K: Key> {
    /// Whether dropped graphs, or resources replaced by an update, have to be polled.
    is_reaping: AtomicBool,
    pub(super) lru: LruCache<K, CachedGraph>,
    context: Context,
    /// Account that its arenas are charged to.
    account: Option<Arc<SessionAccount>>,
    /// Stream that orders the allocation and freeing of arenas' memory. It is never captured.
    home: Stream,
    node_bytes: u64,
    /// Held whenever a key is inserted or removed.
    state: Mutex<CacheState<K>>,
}

impl<K: Key> fmt::Debug for GraphCache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphCache")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl<K: Key> GraphCache<K> {
    /// Creates an empty cache, for streams of `context`.
    ///
    /// # Errors
    /// Those of creating a stream.
    pub fn new(context: &Context, budget: GraphBudget) -> Result<Self, GraphError> {
        Ok(Self {
            is_reaping: AtomicBool::new(false),
            lru: LruCache::new(budget.bytes),
            context: context.clone(),
            account: None,
            home: Stream::new(context)?,
            node_bytes: budget.node_bytes,
            state: Mutex::new(CacheState {
                recordings: Vec::new(),
                next_recording: 0,
                retired: Vec::new(),
                updated: Vec::new(),
                until_reap: REAP_EVERY,
                ended: false,
                stats: GraphStats::default(),
            }),
        })
    }

    /// The same for a session; its limit includes the arenas.
    pub(crate) fn of_account(
        context: &Context,
        budget: GraphBudget,
        account: &Arc<SessionAccount>,
    ) -> Result<Self, GraphError> {
        let mut cache = Self::new(context, budget)?;
        cache.account = Some(account.clone());
        Ok(cache)
    }

    /// Teardown with the session: nothing is cached from now on, and all graphs are destroyed,
    /// behind their last replay.
    pub(crate) fn end(&self) {
        lock(&self.state).ended = true;
        self.invalidate_all();
        let retired = std::mem::take(&mut lock(&self.state).retired);
        drop(retired);
    }

    /// The cache's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Creates an arena for a capture.
    pub(super) fn arena(&self, first_bytes: u64) -> GraphArena {
        GraphArena::new(&self.home, self.account.clone(), first_bytes)
    }

    /// Size that a graph counts as, without its arena.
    pub(super) fn graph_bytes(&self, nodes: usize) -> u64 {
        self.node_bytes.saturating_mul(nodes as u64)
    }

    /// Replays the graph under `key` in `stream`; returns whether there is one.
    ///
    /// # Errors
    /// Those of [`GraphExec::launch`].
    #[inline]
    pub fn replay(&self, key: &K, stream: &Stream) -> Result<bool, GraphError> {
        let Some(mut out) = self.take(key) else {
            return Ok(false);
        };
        let launched = out.value().exec.launch(stream);
        self.check_in(out);
        launched?;
        Ok(true)
    }

    /// As [`GraphCache::replay`], with its duration. Queues two additional events.
    ///
    /// # Errors
    /// As [`GraphCache::replay`].
    pub fn replay_timed(&self, key: &K, stream: &Stream) -> Result<Option<Timing>, GraphError> {
        let events = [Event::timed(&self.context)?, Event::timed(&self.context)?];
        let Some(mut out) = self.take(key) else {
            return Ok(None);
        };
        let entry = out.value();
        let upload = entry.upload;
        let times = (|| {
            events[0].record(stream)?;
            let began = Instant::now();
            entry.exec.launch(stream)?;
            let launch = began.elapsed();
            events[1].record(stream)?;
            Ok::<_, fercuda_cuda::Error>((began, launch))
        })();
        self.check_in(out);
        let (began, launch) = times?;
        Ok(Some(Timing {
            events,
            upload,
            began,
            launch,
        }))
    }

    /// Whether there is a graph under `key`.
    pub fn contains(&self, key: &K) -> bool {
        self.lru.contains(key)
    }

    /// Drops the graph under `key`, and a capture in progress for it; returns whether there was a
    /// graph.
    pub fn invalidate(&self, key: &K) -> bool {
        self.remove_if(|other| other == key) > 0
    }

    /// Drops all graphs; returns their number.
    pub fn invalidate_all(&self) -> usize {
        self.remove_if(|_| true)
    }

    /// Drops all graphs of a generation; returns their number.
    pub fn invalidate_generation(&self, generation: u64) -> usize {
        self.remove_if(|key| key.generation() == generation)
    }

    /// Changes the budget, and evicts what does not fit any more.
    pub fn set_budget_bytes(&self, bytes: u64) {
        let removed = {
            let mut state = lock(&self.state);
            let before = self.lru.len();
            let removed = self.lru.set_budget(bytes);
            state.stats.evicted += (before - self.lru.len()) as u64;
            removed
        };
        self.retire(removed);
        self.reap();
    }

    /// Counters of the cache.
    pub fn stats(&self) -> GraphStats {
        let state = lock(&self.state);
        GraphStats {
            entries: self.lru.len(),
            bytes: self.lru.bytes(),
            retired: state.retired.len(),
            replays: self.lru.uses(),
            ..state.stats
        }
    }

    /// Destroys dropped graphs with completed launches. Captures, invalidations, and each 64th
    /// replay do so too, as long as there are any.
    pub fn reap(&self) {
        let (retired, updated) = {
            let mut state = lock(&self.state);
            state.until_reap = REAP_EVERY;
            self.is_reaping.store(false, Ordering::Relaxed);
            (
                std::mem::take(&mut state.retired),
                std::mem::take(&mut state.updated),
            )
        };
        let (done, rest) = retired
            .into_iter()
            .partition::<Vec<_>, _>(RetiredGraph::is_done);
        self.put_back(rest);
        drop(done);
        for number in updated {
            // An entry that is checked out is polled later. A dropped one took its resources with
            // it; another entry in its slot retains none, or is polled once too often.
            let forgotten = self.lru.check_out_at(number).map(|mut out| {
                let forgotten = out.value().exec.take_finished();
                let all_gone = !out.value().exec.has_superseded();
                out.check_in();
                // This may drop user values, and their destructors may use the same graph.
                drop(forgotten);
                all_gone
            });
            let all_gone = forgotten.unwrap_or(false);
            if !all_gone && self.lru.has(number) {
                self.note_updated(&mut lock(&self.state), number);
            }
        }
        self.retire(self.lru.take_removed());
    }

    /// Checks the entry under `key` out for a replay, and waits while another thread has it.
    #[inline]
    fn take(&self, key: &K) -> Option<CheckedOut<'_, K, CachedGraph>> {
        let mut out = match self.lru.check_out_at_home(key) {
            Some(out) => out,
            None => self.take_slow_path(key)?,
        };
        out.note_use();
        Some(out)
    }

    #[cold]
    fn take_slow_path(&self, key: &K) -> Option<CheckedOut<'_, K, CachedGraph>> {
        if let Some(out) = self.lru.check_out_near(key) {
            return Some(out);
        }
        // Another thread may have tried this key's slot while looking for its own.
        self.retire(self.lru.take_removed());
        let out = self.lru.check_out(key);
        if out.is_none() {
            lock(&self.state).stats.absent += 1;
        }
        out
    }

    #[inline]
    pub(super) fn check_in(&self, out: CheckedOut<'_, K, CachedGraph>) {
        let was_called = out.check_in();
        if was_called || self.is_reaping.load(Ordering::Relaxed) {
            self.after_return();
        }
    }

    #[cold]
    fn after_return(&self) {
        self.retire(self.lru.take_removed());
        let mut state = lock(&self.state);
        state.until_reap = state.until_reap.saturating_sub(1);
        let reap = state.until_reap == 0;
        drop(state);
        if reap {
            self.reap();
        }
    }

    fn remove_if(&self, which: impl Fn(&K) -> bool) -> usize {
        let (count, removed) = {
            let mut state = lock(&self.state);
            for (_, key, invalidated) in &mut state.recordings {
                *invalidated |= which(key);
            }
            self.lru.remove_if(which)
        };
        self.retire(removed);
        self.reap();
        count
    }

    /// Retires entries that were removed from the cache.
    fn retire(&self, entries: Vec<CachedGraph>) {
        let retired: Vec<_> = entries
            .into_iter()
            .map(|entry| entry.exec.retire())
            .collect();
        self.put_back(retired);
    }

    /// Keeps retired graphs that may still be running.
    fn put_back(&self, retired: Vec<RetiredGraph>) {
        if retired.is_empty() {
            return;
        }
        let mut state = lock(&self.state);
        if !state.ended {
            state.retired.extend(retired);
            self.is_reaping.store(true, Ordering::Relaxed);
            return;
        }
        drop(state);
        // After teardown no later call polls them: wait here.
        drop(retired);
    }

    /// Registers a recording for `key`, which may be invalidated from now on; returns its number.
    ///
    /// # Errors
    /// [`GraphError::Ended`].
    pub(super) fn register(&self, key: K) -> Result<u64, GraphError> {
        self.reap();
        let mut state = lock(&self.state);
        if state.ended {
            return Err(GraphError::Ended);
        }
        state.next_recording += 1;
        let number = state.next_recording;
        state.recordings.push((number, key, false));
        Ok(number)
    }

    /// Forgets a recording that ends, with or without success.
    pub(super) fn forget(&self, number: u64) {
        let mut state = lock(&self.state);
        state.recordings.retain(|(other, ..)| *other != number);
    }

    /// Caches the graph of recording `number`, which was captured in `stream`.
    pub(super) fn keep(
        &self,
        number: u64,
        stream: &Stream,
        graph: &Graph,
        mut recorded: RecordedGraph,
    ) -> Result<RecordedGraph, GraphError> {
        let mut out = self.take_for(number, &recorded)?;
        let there = out.as_mut().map(CheckedOut::value);
        let made = instantiate_or_update(there, graph, stream, &mut recorded);
        let (kept, removed) = match made {
            Ok(new) => self.put(number, out, new, &recorded),
            // The failed update has changed the entry, and it is not on the device.
            Err(error) if recorded.updated => {
                let _state = lock(&self.state);
                (
                    Err(error.into()),
                    out.map(CheckedOut::end).into_iter().collect(),
                )
            }
            Err(error) => {
                drop(out);
                (Err(error.into()), Vec::new())
            }
        };
        self.retire(removed);
        self.reap();
        kept.map(|()| recorded)
    }

    /// Checks out the entry that a recording replaces, if it may be kept; waits while another
    /// thread has it.
    fn take_for(
        &self,
        number: u64,
        recorded: &RecordedGraph,
    ) -> Result<Option<CheckedOut<'_, K, CachedGraph>>, GraphError> {
        let key = lock(&self.state).key_of(number)?;
        self.has_room(recorded)?;
        let out = self.lru.check_out(&key);
        // The key may have been invalidated during that wait; the entry then belongs to a newer
        // recording.
        lock(&self.state).key_of(number)?;
        Ok(out)
    }

    fn has_room(&self, recorded: &RecordedGraph) -> Result<(), GraphError> {
        let budget_bytes = self.lru.budget_bytes();
        if recorded.bytes <= budget_bytes {
            return Ok(());
        }
        Err(GraphError::TooLarge {
            bytes: recorded.bytes,
            arena_bytes: recorded.arena_bytes,
            nodes: recorded.nodes,
            budget_bytes,
        })
    }

    /// Puts an entry into the cache under the recording's key: a new one, or the updated one that
    /// is checked out. Returns the evicted entries.
    fn put(
        &self,
        number: u64,
        out: Option<CheckedOut<'_, K, CachedGraph>>,
        new: Option<CachedGraph>,
        recorded: &RecordedGraph,
    ) -> (Result<(), GraphError>, Vec<CachedGraph>) {
        let mut state = lock(&self.state);
        match recorded.updated {
            true => state.stats.updated += 1,
            false => state.stats.instantiated += 1,
        }
        // Both may have changed meanwhile.
        let allowed = state.key_of(number);
        let key = match allowed.and_then(|key| self.has_room(recorded).map(|()| key)) {
            Ok(key) => key,
            Err(error) => {
                let updated = out.filter(|_| recorded.updated).map(CheckedOut::end);
                return (Err(error), new.into_iter().chain(updated).collect());
            }
        };
        let before = self.lru.len();
        let mut removed = Vec::new();
        let (kept, place) = match (out, new) {
            (Some(mut out), new) => {
                removed.extend(new.map(|new| std::mem::replace(out.value(), new)));
                let place = out.number();
                (out.keep_as(recorded.bytes), place)
            }
            (None, Some(new)) => (Err(new), 0),
            (None, None) => unreachable!("only what is there is updated"),
        };
        let (place, added) = match kept {
            Ok(more) => {
                removed.extend(more);
                (place, 0)
            }
            // There was no entry, or it has been evicted.
            Err(entry) => {
                // Another thread may have captured the same key first.
                let (count, more) = self.lru.remove_if(|other| *other == key);
                removed.extend(more);
                let (place, more) = self.lru.insert(key, entry, recorded.bytes);
                removed.extend(more);
                (place, 1 - count)
            }
        };
        state.stats.evicted += (before + added - self.lru.len()) as u64;
        if recorded.updated {
            self.note_updated(&mut state, place);
        }
        (Ok(()), removed)
    }

    /// Records that the entry in a slot retains resources which an update has replaced.
    fn note_updated(&self, state: &mut CacheState<K>, place: u32) {
        if !state.updated.contains(&place) {
            state.updated.push(place);
        }
        self.is_reaping.store(true, Ordering::Relaxed);
    }
}

impl<K: Key> Drop for GraphCache<K> {
    fn drop(&mut self) {
        // Record all events before waiting for the first.
        let (_, entries) = self.lru.remove_if(|_| true);
        self.retire(entries);
        self.retire(self.lru.take_removed());
        let retired = std::mem::take(&mut lock(&self.state).retired);
        drop(retired);
    }
}

/// Instantiates a graph, or updates the existing entry if possible.
///
/// # Errors
/// The driver's. The existing entry is unchanged, except one that `recorded` marks as updated and
/// that could not be uploaded to the device.
fn instantiate_or_update(
    there: Option<&mut CachedGraph>,
    graph: &Graph,
    stream: &Stream,
    recorded: &mut RecordedGraph,
) -> Result<Option<CachedGraph>, fercuda_cuda::Error> {
    let mut new = None;
    let began = Instant::now();
    let updated = there.and_then(|there| match there.exec.update(graph) {
        Ok(()) => Some(Ok(there)),
        Err(error) if is_of_another_shape(&error) => None,
        Err(error) => Some(Err(error)),
    });
    let entry = match updated.transpose()? {
        Some(there) => {
            recorded.updated = true;
            there
        }
        None => new.insert(CachedGraph {
            exec: graph.instantiate()?,
            upload: Duration::ZERO,
        }),
    };
    recorded.instantiate = began.elapsed();
    let began = Instant::now();
    entry.exec.upload(stream)?;
    recorded.upload = began.elapsed();
    entry.upload = recorded.upload;
    Ok(new)
}

impl<K: Key> CacheState<K> {
    /// The key of a recording.
    ///
    /// # Errors
    /// [`GraphError::Invalidated`].
    fn key_of(&self, number: u64) -> Result<K, GraphError> {
        let mut recordings = self.recordings.iter();
        match recordings.find(|(other, ..)| *other == number) {
            Some((_, key, false)) => Ok(key.clone()),
            Some((_, _, true)) | None => Err(GraphError::Invalidated),
        }
    }
}

/// Whether an update was refused because of the graph's topology, so that it can be instantiated.
fn is_of_another_shape(error: &fercuda_cuda::Error) -> bool {
    error.code() == Some(CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
}
