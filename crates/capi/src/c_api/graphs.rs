//! A session's graphs, captured once under a key and replayed; and argument blocks of values that
//! change from replay to replay.
//!
//! Invariants: the work of a capture is resolved and retained at once, and captured all together
//! when it is finished; so captures belong to no thread, and other threads' work gets into none. A
//! capture keeps no graph if its key was invalidated since it began.
//!
//! Elsewhere: arguments of a launch (`launches`).

use core::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use fercuda_runtime::{
    BlockLayout, Evaluation, Field, GraphBudget, GraphError, Graphs, Key, PreparedLaunch,
    RecordOptions, SessionArguments,
};

use super::types::{
    FER_KEY_WORDS, fer_arguments, fer_buffer, fer_capture, fer_graph_key, fer_graph_record,
    fer_graph_times, fer_graphs, fer_graphs_details, fer_session,
};
use crate::handles::{Handles, SESSIONS};
use crate::pointers::{OutPointer, list, read_pointer};
use crate::status::{CallFailure, Result, catch_panics, fer_status};

/// Size of a word of an argument block.
const WORD_BYTES: u64 = 4;
/// Maximum size of a block: values that change from step to step are small.
const MOST_BLOCK_BYTES: u64 = 1 << 20;
/// Maximum number of pushes in flight.
const MOST_PUSHES: u64 = 1 << 16;

/// A key, as the cache uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct GraphKeyWords {
    generation: u64,
    words: [u64; FER_KEY_WORDS],
}

impl Key for GraphKeyWords {
    fn generation(&self) -> u64 {
        self.generation
    }
}

impl From<fer_graph_key> for GraphKeyWords {
    fn from(it: fer_graph_key) -> Self {
        Self {
            generation: it.generation,
            words: it.words,
        }
    }
}

/// A graph cache of the C interface.
pub(crate) struct CachedGraphs {
    pub(crate) session: u64,
    graphs: Graphs<GraphKeyWords>,
    /// Captures that have begun, some of which may have ended.
    begun: Mutex<Vec<Weak<OpenCapture>>>,
}

pub(crate) static GRAPHS: Handles<CachedGraphs> = Handles::new(9);

/// A capture of the C interface.
pub(crate) struct OpenCapture {
    pub(crate) session: u64,
    pub(crate) graphs: u64,
    cached: Arc<CachedGraphs>,
    key: GraphKeyWords,
    /// Work of the graph; `None` once the capture has ended.
    steps: Mutex<Option<Vec<CaptureStep>>>,
    is_invalidated: AtomicBool,
}

pub(crate) static CAPTURES: Handles<OpenCapture> = Handles::new(10);

/// A piece of work of a graph.
pub(crate) enum CaptureStep {
    Launch(PreparedLaunch),
    Evaluation(Evaluation),
}

impl From<PreparedLaunch> for CaptureStep {
    fn from(launch: PreparedLaunch) -> Self {
        Self::Launch(launch)
    }
}

impl From<Evaluation> for CaptureStep {
    fn from(evaluation: Evaluation) -> Self {
        Self::Evaluation(evaluation)
    }
}

/// An argument block of the C interface.
pub(crate) struct OpenArguments {
    pub(crate) session: u64,
    block: SessionArguments,
    words: Field<u32>,
}

pub(crate) static ARGUMENTS: Handles<OpenArguments> = Handles::new(11);

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Budget of a cache; the default for 0.
fn budget(bytes: u64) -> GraphBudget {
    match bytes {
        0 => GraphBudget::default(),
        bytes => GraphBudget {
            bytes,
            ..GraphBudget::default()
        },
    }
}

/// Opens a graph cache of the session. The graphs count for at most `budget_bytes` together, 8 KiB
/// for each node; 0 means 1 GiB. The least recently used are evicted first. Freed by
/// fer_graphs_free, or with the session.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_graphs_open(
    session: fer_session,
    budget_bytes: u64,
    graphs: *mut fer_graphs,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("graphs", graphs) }?;
        let open = SESSIONS.get("session", session)?;
        let cached = CachedGraphs {
            session,
            graphs: open.session.graphs(budget(budget_bytes))?,
            begun: Mutex::default(),
        };
        place.put(GRAPHS.insert_of(&SESSIONS, session, cached)?);
        Ok(())
    })
}

/// Frees a graph cache: its graphs, behind their last replay, its captures, and its handle.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_graphs_free(graphs: fer_graphs) -> fer_status {
    catch_panics(|| {
        let cached = GRAPHS.remove("graphs", graphs)?;
        for (_, capture) in CAPTURES.take(|capture| capture.graphs == graphs) {
            capture.end();
        }
        drop(cached);
        Ok(())
    })
}

impl CachedGraphs {
    fn begin(&self, capture: &Arc<OpenCapture>) {
        let mut begun = lock(&self.begun);
        begun.retain(|it| it.strong_count() > 0);
        begun.push(Arc::downgrade(capture));
    }

    /// Invalidates captures. Call this before the cache is invalidated: a capture that begins in
    /// between is found there.
    fn invalidate(&self, which: impl Fn(&GraphKeyWords) -> bool) {
        for capture in lock(&self.begun).iter().filter_map(Weak::upgrade) {
            if which(&capture.key) {
                capture.is_invalidated.store(true, Relaxed);
            }
        }
    }
}

fn just_ended() -> CallFailure {
    CallFailure::new(
        fer_status::FER_ERROR_STALE_HANDLE,
        "the capture has just ended\ntry: another one",
    )
}

impl OpenCapture {
    /// Adds work to the capture.
    pub(crate) fn add(&self, ready: impl Into<CaptureStep>) -> Result<()> {
        match &mut *lock(&self.steps) {
            Some(steps) => {
                steps.push(ready.into());
                Ok(())
            }
            None => Err(just_ended()),
        }
    }

    /// Ends the capture; returns its work.
    pub(crate) fn end(&self) -> Option<Vec<CaptureStep>> {
        lock(&self.steps).take()
    }
}

/// Begins to capture a graph under a key. fer_ptxlaunch_submit and fer_evaluate, given the capture
/// instead of the session, add launches to it; nothing is launched. It is ended by
/// fer_capture_finish or fer_capture_discard, or with its graphs. Other work goes on meanwhile, and
/// is not captured; the calls may come from any thread.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_capture_begin(
    graphs: fer_graphs,
    key: *const fer_graph_key,
    capture: *mut fer_capture,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (key, place) = unsafe {
            (
                read_pointer("key", key)?,
                OutPointer::new("capture", capture)?,
            )
        };
        let cached = GRAPHS.get("graphs", graphs)?;
        let capture = OpenCapture {
            session: cached.session,
            graphs,
            cached: cached.clone(),
            key: key.into(),
            steps: Mutex::new(Some(Vec::new())),
            is_invalidated: AtomicBool::new(false),
        };
        let number = CAPTURES.insert_of(&GRAPHS, graphs, capture)?;
        cached.begin(&CAPTURES.get("capture", number)?);
        place.put(number);
        Ok(())
    })
}

/// Ends a capture, uploads its graph to the device and keeps it under its key, replacing an earlier
/// one. The graph retains the buffers and kernels that it uses, even if their handles are freed.
/// `record` may be NULL.
///
/// If this fails the capture has ended all the same, and an earlier graph is kept: FER_ERROR_GRAPH
/// if the key was invalidated since it began, FER_ERROR_LIMIT if the graph exceeds the whole
/// budget.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_capture_finish(
    capture: fer_capture,
    record: *mut fer_graph_record,
) -> fer_status {
    catch_panics(|| {
        let place = match record.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { OutPointer::new("record", record) }?),
        };
        let capture = CAPTURES.remove("capture", capture)?;
        let steps = capture.end().ok_or_else(just_ended)?;
        let options = RecordOptions::default();
        let recorded = capture.cached.graphs.record(capture.key, options, |it| {
            // Later invalidations are seen by the cache.
            if capture.is_invalidated.load(Relaxed) {
                return Err(GraphError::Invalidated.into());
            }
            for step in &steps {
                match step {
                    // SAFETY: that the kernel accesses only what it may, whenever the graph is
                    // replayed, was promised when the launch was added.
                    CaptureStep::Launch(launch) => unsafe { launch.run(it.stream()) }?,
                    CaptureStep::Evaluation(evaluation) => evaluation.record(it)?,
                }
            }
            Ok(())
        });
        let ((), recorded) = recorded?;
        if let Some(place) = place {
            place.put(fer_graph_record {
                nodes: recorded.nodes as u64,
                bytes: recorded.bytes,
                is_updated: u64::from(recorded.updated),
                capture_ns: nanoseconds(recorded.capture),
                instantiate_ns: nanoseconds(recorded.instantiate),
                upload_ns: nanoseconds(recorded.upload),
            });
        }
        Ok(())
    })
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Ends a capture without keeping a graph.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_capture_discard(capture: fer_capture) -> fer_status {
    catch_panics(|| {
        drop(CAPTURES.remove("capture", capture)?.end());
        Ok(())
    })
}

/// Replays the graph under a key behind the session's work: `was_there` is set to 1 if there is
/// one, else 0, and nothing is queued.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_graph_replay(
    graphs: fer_graphs,
    key: *const fer_graph_key,
    was_there: *mut u32,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (key, place) = unsafe {
            (
                read_pointer("key", key)?,
                OutPointer::new("was_there", was_there)?,
            )
        };
        let cached = GRAPHS.get("graphs", graphs)?;
        place.put(u32::from(cached.graphs.replay(&key.into())?));
        Ok(())
    })
}

/// As fer_graph_replay, waits until it is done, and returns its durations.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_graph_replay_timed(
    graphs: fer_graphs,
    key: *const fer_graph_key,
    times: *mut fer_graph_times,
    was_there: *mut u32,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (key, place, found) = unsafe {
            (
                read_pointer("key", key)?,
                OutPointer::new("times", times)?,
                OutPointer::new("was_there", was_there)?,
            )
        };
        let cached = GRAPHS.get("graphs", graphs)?;
        let timing = cached.graphs.replay_timed(&key.into())?;
        let times = timing.map(|timing| timing.wait()).transpose();
        let times = times.map_err(fercuda_runtime::Error::from)?;
        found.put(u32::from(times.is_some()));
        if let Some(times) = times {
            place.put(fer_graph_times {
                upload_ns: nanoseconds(times.upload),
                launch_ns: nanoseconds(times.launch),
                device_ns: nanoseconds(times.device),
                completion_ns: nanoseconds(times.completion),
            });
        }
        Ok(())
    })
}

/// Drops the graph under a key, behind its last replay, and captures in progress for it. `count` is
/// set to the number of graphs dropped, and may be NULL.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_graph_invalidate(
    graphs: fer_graphs,
    key: *const fer_graph_key,
    count: *mut u64,
) -> fer_status {
    // SAFETY: the caller's promise.
    unsafe {
        invalidated(graphs, count, || {
            let key = GraphKeyWords::from(read_pointer("key", key)?);
            Ok(move |cached: &CachedGraphs| {
                cached.invalidate(|it| *it == key);
                u64::from(cached.graphs.invalidate(&key))
            })
        })
    }
}

/// The same for all graphs of a generation.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_graphs_invalidate_generation(
    graphs: fer_graphs,
    generation: u64,
    count: *mut u64,
) -> fer_status {
    // SAFETY: the caller's promise.
    unsafe {
        invalidated(graphs, count, || {
            Ok(move |cached: &CachedGraphs| {
                cached.invalidate(|it| it.generation == generation);
                cached.graphs.invalidate_generation(generation) as u64
            })
        })
    }
}

/// The same for all graphs.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_graphs_invalidate_all(
    graphs: fer_graphs,
    count: *mut u64,
) -> fer_status {
    // SAFETY: the caller's promise.
    unsafe {
        invalidated(graphs, count, || {
            Ok(|cached: &CachedGraphs| {
                cached.invalidate(|_| true);
                cached.graphs.invalidate_all() as u64
            })
        })
    }
}

/// # Safety
/// `count` is null or has room.
unsafe fn invalidated<W: FnOnce(&CachedGraphs) -> u64>(
    graphs: fer_graphs,
    count: *mut u64,
    work: impl FnOnce() -> Result<W>,
) -> fer_status {
    catch_panics(|| {
        let place = match count.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { OutPointer::new("count", count) }?),
        };
        let work = work()?;
        let count = work(&*GRAPHS.get("graphs", graphs)?);
        if let Some(place) = place {
            place.put(count);
        }
        Ok(())
    })
}

/// Returns counters of a graph cache. Never waits.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_graphs_info(
    graphs: fer_graphs,
    details: *mut fer_graphs_details,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutPointer::new("details", details) }?;
        let stats = GRAPHS.get("graphs", graphs)?.graphs.stats();
        place.put(fer_graphs_details {
            entries: stats.entries as u64,
            bytes: stats.bytes,
            retired: stats.retired as u64,
            replays: stats.replays,
            absent: stats.absent,
            instantiated: stats.instantiated,
            updated: stats.updated,
            evicted: stats.evicted,
        });
        Ok(())
    })
}

/// Allocates an argument block: `bytes` of device memory for values that change from replay to
/// replay, such as a token and its position; a multiple of 4, at most 1 MiB, initially all zeros.
/// `buffer` is set to a buffer of it, for kernels and views, which is freed with the block. Up to
/// `pushes` of it may be in flight, 1 to 65536. Freed by fer_arguments_free, or with the session.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_arguments_open(
    session: fer_session,
    bytes: u64,
    pushes: u64,
    arguments: *mut fer_arguments,
    buffer: *mut fer_buffer,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let (place, of_buffer) = unsafe {
            (
                OutPointer::new("arguments", arguments)?,
                OutPointer::new("buffer", buffer)?,
            )
        };
        let open = SESSIONS.get("session", session)?;
        if !bytes.is_multiple_of(WORD_BYTES) || !(WORD_BYTES..=MOST_BLOCK_BYTES).contains(&bytes) {
            let what = format!("{bytes}\ntry: a multiple of 4, 4 to {MOST_BLOCK_BYTES}");
            return Err(CallFailure::argument("bytes", what));
        }
        if !(1..=MOST_PUSHES).contains(&pushes) {
            let what = format!("{pushes}\ntry: 1 to {MOST_PUSHES}");
            return Err(CallFailure::argument("pushes", what));
        }
        let mut layout = BlockLayout::new();
        let words = layout.array("words", (bytes / WORD_BYTES) as usize);
        let block = open.session.arguments(layout, pushes as usize)?;
        let whole = block.whole();
        let block = OpenArguments {
            session,
            block,
            words,
        };
        place.put(ARGUMENTS.insert_of(&SESSIONS, session, block)?);
        of_buffer.put(whole.to_bits());
        Ok(())
    })
}

/// Sets a part of a block for the next push: `len_bytes` from `offset_bytes` on, both multiples of
/// 4. A concurrent push of another thread may copy a part of them.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_arguments_set(
    arguments: fer_arguments,
    offset_bytes: u64,
    bytes: *const c_void,
    len_bytes: u64,
) -> fer_status {
    catch_panics(|| {
        // SAFETY: the caller's promise.
        let bytes = unsafe { list("bytes", bytes.cast::<u8>(), len_bytes) }?;
        let block = ARGUMENTS.get("arguments", arguments)?;
        let end = offset_bytes.checked_add(len_bytes);
        let all = block.words.len() as u64 * WORD_BYTES;
        let are_words = (offset_bytes | len_bytes).is_multiple_of(WORD_BYTES);
        if !are_words || end.is_none_or(|end| end > all) {
            return Err(CallFailure::new(
                fer_status::FER_ERROR_LAYOUT,
                format!(
                    "{len_bytes} bytes from {offset_bytes} on are not words of a block of {all}\ntry: multiples of 4 inside it"
                ),
            ));
        }
        let first = (offset_bytes / WORD_BYTES) as usize;
        let (words, _) = bytes.as_chunks::<4>();
        for (at, word) in words.iter().enumerate() {
            let word = u32::from_ne_bytes(*word);
            block.block.set_at(block.words, first + at, word)?;
        }
        Ok(())
    })
}

/// Queues a copy of the block's values, behind the session's work: replays after it see them,
/// earlier ones do not. Waits only if more pushes are in flight than the block was made for, or if
/// jobs wait on the host.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_arguments_push(arguments: fer_arguments) -> fer_status {
    catch_panics(|| Ok(ARGUMENTS.get("arguments", arguments)?.block.push()?))
}

/// Frees a block and its buffer, behind the session's work. Graphs that use it retain its memory.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_arguments_free(arguments: fer_arguments) -> fer_status {
    catch_panics(|| {
        drop(ARGUMENTS.remove("arguments", arguments)?);
        Ok(())
    })
}
