//! Graphs that are kept and replayed: a cache that its owner, a session, holds.
//!
//! A step is captured once under a key and replayed by it. The cache owns what was
//! instantiated; a graph owns what its work refers to, its arena too. Replays take an
//! entry out, launch it and give it back, so that nobody waits for a launch but who
//! wants the same graph; what is let go while it runs is retired behind an event.
//!
//! Invariants: no state is the process's; a graph that was captured before its key was
//! invalidated is not kept; whatever is let go is destroyed behind its last launch, and
//! no call but dropping the cache waits for that. Elsewhere: which entry goes (`shelf`),
//! memory allocated by a capture (`arena`), what changes from replay to replay
//! (`block`), captures and executable graphs (`fercuda_cuda`).

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fercuda_cuda::sys::types::CUresult;
use fercuda_cuda::{Context, Event, Graph, GraphExec, RetiredGraph, Stream};

use crate::account::Account;

mod arena;
mod block;
mod key;
mod recording;
mod shelf;

use arena::Arena;
use shelf::{Out, Shelf};

pub use arena::Scratch;
pub use block::{ArgumentBlock, BlockLayout, DecodeFields, Field, FieldType};
pub use key::{GraphKey, GraphKind, Key, Quantization};
pub use recording::{RecordOptions, Recorded, Recording};

/// Locks what no panic can leave half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a graph was not captured or not kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The driver's, or what is wrong with a call of it.
    #[error(transparent)]
    Cuda(#[from] fercuda_cuda::Error),
    /// A graph that no budget but a larger one has room for.
    #[error(
        "a graph of {nodes} nodes with an arena of {arena_bytes} bytes counts for {bytes} bytes, and the budget is {budget_bytes}\n\
         try: a larger budget, or memory of the session's in place of the arena's"
    )]
    TooLarge {
        /// What it counts for.
        bytes: u64,
        /// What of that is memory allocated by the capture.
        arena_bytes: u64,
        /// Its pieces of work.
        nodes: usize,
        /// What the cache may have.
        budget_bytes: u64,
    },
    /// The key was invalidated while the graph was captured, which may refer to what
    /// is no longer meant.
    #[error(
        "the key was invalidated while its graph was captured\ntry: to capture it again, with the memory that is meant now"
    )]
    Invalidated,
    /// An allocation that no address could reach.
    #[error("{len} values of {each} bytes are more than an address can reach")]
    Size {
        /// How many.
        len: usize,
        /// The size of each.
        each: usize,
    },
    /// The session that owns the cache may not hold so much.
    #[error(transparent)]
    Limit(Box<crate::Error>),
    /// The session that owned the cache has ended.
    #[error("the session of these graphs has ended\ntry: another session's")]
    Ended,
    /// A field of another layout, or outside of it.
    #[error("an argument block has no such value: {why}\ntry: a field of the block's own layout")]
    Field {
        /// What is wrong.
        why: String,
    },
}

/// What a cache may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The most that the entries may count for together.
    pub bytes: u64,
    /// What a graph itself counts for, for each of its nodes; drivers do not say it.
    pub node_bytes: u64,
}

impl Default for Budget {
    /// 1 GiB, and 8 KiB a node.
    fn default() -> Self {
        Self {
            bytes: 1 << 30,
            node_bytes: 8 << 10,
        }
    }
}

/// What a cache has and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphStats {
    /// Graphs that can be replayed.
    pub entries: usize,
    /// What they count for.
    pub bytes: u64,
    /// Graphs let go whose last launches run, or have not been asked after.
    pub retired: usize,
    /// Replays.
    pub replays: u64,
    /// Replays that found nothing.
    pub absent: u64,
    /// Graphs instantiated.
    pub instantiated: u64,
    /// Graphs updated in place.
    pub updated: u64,
    /// Entries let go for want of room.
    pub evicted: u64,
}

/// A graph that is kept.
// What a replay looks at lies first.
#[derive(Debug)]
#[repr(C)]
struct Entry {
    exec: GraphExec,
    upload: Duration,
}

struct State<K> {
    /// What is being captured, by number; and whether its key has been invalidated.
    recordings: Vec<(u64, K, bool)>,
    next_recording: u64,
    retired: Vec<RetiredGraph>,
    /// Where entries lie that hold what an update has replaced.
    updated: Vec<u32>,
    /// Replays until what is let go is asked after.
    until_reap: u32,
    /// Its session has ended: nothing is kept any more.
    ended: bool,
    stats: GraphStats,
}

/// Replays between two looks at what has been let go, as long as there is any.
const REAP_EVERY: u32 = 64;

/// Graphs by keys, within a budget; the least recently used go first.
///
/// All calls may be made from any thread; each graph is launched by one at a time.
/// A capture is one thread's, from beginning to end.
// What each replay looks at lies together.
#[repr(C, align(64))]
pub struct GraphCache<K: Key> {
    /// Something has been let go, or replaced by an update, and is to be asked after.
    is_reaping: AtomicBool,
    shelf: Shelf<K, Entry>,
    context: Context,
    /// What its arenas are charged to.
    account: Option<Arc<Account>>,
    /// Arenas' memory is taken and given back in its order. It is never captured.
    home: Stream,
    node_bytes: u64,
    /// Held whenever a key comes to the shelf or leaves it.
    state: Mutex<State<K>>,
}

impl<K: Key> fmt::Debug for GraphCache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphCache")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl<K: Key> GraphCache<K> {
    /// A cache with nothing in it, for streams of `context`.
    ///
    /// # Errors
    /// Those of making a stream.
    pub fn new(context: &Context, budget: Budget) -> Result<Self, GraphError> {
        Ok(Self {
            is_reaping: AtomicBool::new(false),
            shelf: Shelf::new(budget.bytes),
            context: context.clone(),
            account: None,
            home: Stream::new(context)?,
            node_bytes: budget.node_bytes,
            state: Mutex::new(State {
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

    /// The same of a session, whose limit is its arenas' too.
    pub(crate) fn of_account(
        context: &Context,
        budget: Budget,
        account: &Arc<Account>,
    ) -> Result<Self, GraphError> {
        let mut cache = Self::new(context, budget)?;
        cache.account = Some(account.clone());
        Ok(cache)
    }

    /// Its session ends: nothing is kept from now on, and what there is goes, behind its
    /// last replay.
    pub(crate) fn end(&self) {
        lock(&self.state).ended = true;
        self.invalidate_all();
        let retired = std::mem::take(&mut lock(&self.state).retired);
        drop(retired);
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// An arena for a capture.
    fn arena(&self, first_bytes: u64) -> Arena {
        Arena::new(&self.home, self.account.clone(), first_bytes)
    }

    /// What a graph of so many nodes counts for, without its arena.
    fn graph_bytes(&self, nodes: usize) -> u64 {
        self.node_bytes.saturating_mul(nodes as u64)
    }

    /// Begins to capture `stream`, which settles first; [`Recording::finish`] keeps the
    /// graph under `key`.
    ///
    /// # Errors
    /// Those of [`Stream::begin_capture`].
    pub fn begin(
        &self,
        key: K,
        stream: &Stream,
        options: RecordOptions,
    ) -> Result<Recording<'_, K>, GraphError> {
        self.reap();
        let number = {
            let mut state = lock(&self.state);
            if state.ended {
                return Err(GraphError::Ended);
            }
            state.next_recording += 1;
            let number = state.next_recording;
            state.recordings.push((number, key, false));
            number
        };
        Recording::begin(self, number, stream, options).map_err(|error| {
            self.forget(number);
            error.into()
        })
    }

    /// Captures what `body` gives to the stream and keeps it under `key`. If `body`
    /// fails or panics, what was captured is discarded, and the stream is usable.
    ///
    /// # Errors
    /// Those of `body`, [`GraphCache::begin`] and [`Recording::finish`].
    pub fn record<R, E: From<GraphError>>(
        &self,
        key: K,
        stream: &Stream,
        options: RecordOptions,
        body: impl FnOnce(&Recording<'_, K>) -> Result<R, E>,
    ) -> Result<(R, Recorded), E> {
        let recording = self.begin(key, stream, options)?;
        let value = body(&recording)?;
        let recorded = recording.finish()?;
        Ok((value, recorded))
    }

    /// Queues all work of the graph under `key` in `stream`; says whether there is one.
    ///
    /// # Errors
    /// Those of [`GraphExec::launch`].
    #[inline]
    pub fn replay(&self, key: &K, stream: &Stream) -> Result<bool, GraphError> {
        let Some(mut out) = self.take(key) else {
            return Ok(false);
        };
        let launched = out.value().exec.launch(stream);
        self.give_back(out);
        launched?;
        Ok(true)
    }

    /// As [`GraphCache::replay`], and says how long it took. Two events more are queued.
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
        self.give_back(out);
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
        self.shelf.contains(key)
    }

    /// Lets go of the graph under `key`, and of the one that is being captured for it;
    /// says whether there was one to replay.
    pub fn invalidate(&self, key: &K) -> bool {
        self.let_go(|other| other == key) > 0
    }

    /// Lets go of all graphs; says how many there were.
    pub fn invalidate_all(&self) -> usize {
        self.let_go(|_| true)
    }

    /// Lets go of all graphs of a generation; says how many there were.
    pub fn invalidate_generation(&self, generation: u64) -> usize {
        self.let_go(|key| key.generation() == generation)
    }

    /// Changes what the entries may count for; what no longer fits goes.
    pub fn set_budget_bytes(&self, bytes: u64) {
        let gone = {
            let mut state = lock(&self.state);
            let before = self.shelf.len();
            let gone = self.shelf.set_budget(bytes);
            state.stats.evicted += (before - self.shelf.len()) as u64;
            gone
        };
        self.retire(gone);
        self.reap();
    }

    /// What it has and has done.
    pub fn stats(&self) -> GraphStats {
        let state = lock(&self.state);
        GraphStats {
            entries: self.shelf.len(),
            bytes: self.shelf.bytes(),
            retired: state.retired.len(),
            replays: self.shelf.uses(),
            ..state.stats
        }
    }

    /// Destroys what has been let go and is done. Other calls do so too: captures,
    /// invalidations, and each 64th replay as long as there is anything.
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
            // One that is out just now is for later. One that has been let go took with
            // it what it held, and what lies there instead holds nothing or is asked twice.
            let forgotten = self.shelf.take_at(number).map(|mut out| {
                let forgotten = out.value().exec.take_finished();
                let all_gone = !out.value().exec.has_superseded();
                out.give_back();
                // What goes now may be the user's, and ask for the same graph.
                drop(forgotten);
                all_gone
            });
            let all_gone = forgotten.unwrap_or(false);
            if !all_gone && self.shelf.has(number) {
                self.note_updated(&mut lock(&self.state), number);
            }
        }
        self.retire(self.shelf.gone());
    }

    /// Takes the entry under `key` out for a replay, waiting while another thread has it.
    #[inline]
    fn take(&self, key: &K) -> Option<Out<'_, K, Entry>> {
        let mut out = match self.shelf.take_at_home(key) {
            Some(out) => out,
            None => self.take_slowly(key)?,
        };
        out.note_use();
        Some(out)
    }

    #[cold]
    fn take_slowly(&self, key: &K) -> Option<Out<'_, K, Entry>> {
        if let Some(out) = self.shelf.take_near(key) {
            return Some(out);
        }
        // It may have been looked for in the place of another that was let go meanwhile.
        self.retire(self.shelf.gone());
        let out = self.shelf.take(key);
        if out.is_none() {
            lock(&self.state).stats.absent += 1;
        }
        out
    }

    #[inline]
    fn give_back(&self, out: Out<'_, K, Entry>) {
        let was_called = out.give_back();
        if was_called || self.is_reaping.load(Ordering::Relaxed) {
            self.after_return();
        }
    }

    #[cold]
    fn after_return(&self) {
        self.retire(self.shelf.gone());
        let mut state = lock(&self.state);
        state.until_reap = state.until_reap.saturating_sub(1);
        let reap = state.until_reap == 0;
        drop(state);
        if reap {
            self.reap();
        }
    }

    fn let_go(&self, which: impl Fn(&K) -> bool) -> usize {
        let (count, gone) = {
            let mut state = lock(&self.state);
            for (_, key, invalidated) in &mut state.recordings {
                *invalidated |= which(key);
            }
            self.shelf.let_go(which)
        };
        self.retire(gone);
        self.reap();
        count
    }

    /// Ends the use of entries that are on no shelf.
    fn retire(&self, entries: Vec<Entry>) {
        let retired: Vec<_> = entries
            .into_iter()
            .map(|entry| entry.exec.retire())
            .collect();
        self.put_back(retired);
    }

    /// Lets those wait that may not be done.
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
        // Nobody comes later to see whether they are done.
        drop(retired);
    }

    /// A recording that ends, whatever becomes of it.
    fn forget(&self, number: u64) {
        let mut state = lock(&self.state);
        state.recordings.retain(|(other, ..)| *other != number);
    }

    /// Keeps what was recorded.
    fn keep(
        &self,
        recording: &Recording<'_, K>,
        graph: &Graph,
        mut recorded: Recorded,
    ) -> Result<Recorded, GraphError> {
        let mut out = self.take_for(recording.number, &recorded)?;
        let there = out.as_mut().map(Out::value);
        let made = make(there, graph, recording.stream(), &mut recorded);
        let (kept, gone) = match made {
            Ok(new) => self.put(recording.number, out, new, &recorded),
            // What was there is no longer what it was, and not on the device.
            Err(error) if recorded.updated => {
                let _state = lock(&self.state);
                (Err(error.into()), out.map(Out::end).into_iter().collect())
            }
            Err(error) => {
                drop(out);
                (Err(error.into()), Vec::new())
            }
        };
        self.retire(gone);
        self.reap();
        kept.map(|()| recorded)
    }

    /// What a recording takes the place of, if it may be kept, waiting while another
    /// thread has that.
    fn take_for(
        &self,
        number: u64,
        recorded: &Recorded,
    ) -> Result<Option<Out<'_, K, Entry>>, GraphError> {
        let key = lock(&self.state).key_of(number)?;
        self.has_room(recorded)?;
        let out = self.shelf.take(&key);
        // It may have been invalidated while another had what was there, which is then
        // somebody else's, and newer.
        lock(&self.state).key_of(number)?;
        Ok(out)
    }

    fn has_room(&self, recorded: &Recorded) -> Result<(), GraphError> {
        let budget_bytes = self.shelf.budget_bytes();
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

    /// Puts an entry on the shelf under the recording's key: a new one, or that which is
    /// out and was updated. What is let go comes back.
    fn put(
        &self,
        number: u64,
        out: Option<Out<'_, K, Entry>>,
        new: Option<Entry>,
        recorded: &Recorded,
    ) -> (Result<(), GraphError>, Vec<Entry>) {
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
                let updated = out.filter(|_| recorded.updated).map(Out::end);
                return (Err(error), new.into_iter().chain(updated).collect());
            }
        };
        let before = self.shelf.len();
        let mut gone = Vec::new();
        let (kept, place) = match (out, new) {
            (Some(mut out), new) => {
                gone.extend(new.map(|new| std::mem::replace(out.value(), new)));
                let place = out.number();
                (out.keep_as(recorded.bytes), place)
            }
            (None, Some(new)) => (Err(new), 0),
            (None, None) => unreachable!("only what is there is updated"),
        };
        let (place, added) = match kept {
            Ok(more) => {
                gone.extend(more);
                (place, 0)
            }
            // Nothing was there, or it has been evicted.
            Err(entry) => {
                // Another thread may have captured the same and been faster.
                let (count, more) = self.shelf.let_go(|other| *other == key);
                gone.extend(more);
                let (place, more) = self.shelf.insert(key, entry, recorded.bytes);
                gone.extend(more);
                (place, 1 - count)
            }
        };
        state.stats.evicted += (before + added - self.shelf.len()) as u64;
        if recorded.updated {
            self.note_updated(&mut state, place);
        }
        (Ok(()), gone)
    }

    /// What lies there holds what an update has replaced.
    fn note_updated(&self, state: &mut State<K>, place: u32) {
        if !state.updated.contains(&place) {
            state.updated.push(place);
        }
        self.is_reaping.store(true, Ordering::Relaxed);
    }
}

impl<K: Key> Drop for GraphCache<K> {
    fn drop(&mut self) {
        // All are marked before the first is waited for.
        let (_, entries) = self.shelf.let_go(|_| true);
        self.retire(entries);
        self.retire(self.shelf.gone());
        let retired = std::mem::take(&mut lock(&self.state).retired);
        drop(retired);
    }
}

/// Makes an entry of a graph, or updates the one that is there if that can be.
///
/// # Errors
/// The driver's. What is there stays as it is, but for one that `recorded` says is
/// updated and could not be sent to the device.
fn make(
    there: Option<&mut Entry>,
    graph: &Graph,
    stream: &Stream,
    recorded: &mut Recorded,
) -> Result<Option<Entry>, fercuda_cuda::Error> {
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
        None => new.insert(Entry {
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

impl<K: Key> State<K> {
    /// The key of what is being recorded.
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

/// Whether an update was refused for what the graph is, so that it can be instantiated.
fn is_of_another_shape(error: &fercuda_cuda::Error) -> bool {
    error.code() == Some(CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
}

/// A replay that is timed, and may still run.
#[derive(Debug)]
pub struct Timing {
    events: [Event; 2],
    upload: Duration,
    began: Instant,
    launch: Duration,
}

/// How long a replay took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The host, to send the graph to the device; once, when it was captured.
    pub upload: Duration,
    /// The host, to launch it.
    pub launch: Duration,
    /// The device, from the launch's turn in its stream to its end.
    pub device: Duration,
    /// The host, from before the launch until it was seen to be done.
    pub completion: Duration,
}

impl Timing {
    /// Waits until the replay is done.
    ///
    /// # Errors
    /// The first error of the stream's work.
    pub fn wait(self) -> Result<Times, GraphError> {
        self.events[1].synchronize()?;
        Ok(Times {
            upload: self.upload,
            launch: self.launch,
            device: self.events[1].since(&self.events[0])?,
            completion: self.began.elapsed(),
        })
    }
}

#[cfg(test)]
mod tests {
    use fercuda_cuda::{Cuda, DeviceBuffer};

    use super::*;

    impl Key for u32 {
        fn generation(&self) -> u64 {
            0
        }
    }

    /// Who waits to replace what was invalidated meanwhile leaves alone what came after.
    #[test]
    fn a_recording_that_is_out_of_date_replaces_nothing() {
        let device = Cuda::from_env().unwrap().device(0).unwrap();
        let context = Context::primary(device).unwrap();
        let streams = [(); 2].map(|()| Stream::new(&context).unwrap());
        let [mut old, mut new] = [(); 2].map(|()| DeviceBuffer::zeroed(&streams[0], 4).unwrap());
        streams[0].synchronize().unwrap();
        let cache = GraphCache::<u32>::new(&context, Budget::default()).unwrap();
        let record = |buffer: &mut DeviceBuffer<u32>, stream: &Stream, value| {
            let recording = cache.begin(7, stream, RecordOptions::default()).unwrap();
            buffer.fill(value, stream).unwrap();
            recording
        };
        record(&mut old, &streams[0], 1).finish().unwrap();
        let out = cache.shelf.take(&7).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let finished = scope.spawn(|| {
                let recording = record(&mut old, &streams[0], 2);
                tell.send(()).unwrap();
                recording.finish()
            });
            told.recv().unwrap();
            // It waits for what is out, or has yet to look.
            std::thread::sleep(Duration::from_millis(50));
            assert!(cache.invalidate(&7));
            record(&mut new, &streams[1], 3).finish().unwrap();
            cache.give_back(out);
            let refused = finished.join().unwrap().unwrap_err();
            assert!(matches!(refused, GraphError::Invalidated), "{refused}");
        });
        assert!(cache.replay(&7, &streams[1]).unwrap());
        assert_eq!(new.to_vec(&streams[1]).unwrap(), [3; 4]);
    }
}
