//! A session's graphs: what is said once under a key, and replayed; and blocks of arguments,
//! which change from replay to replay.
//!
//! Invariants: what a capture is given is looked up and held at once, and captured all
//! together when it is finished; so captures belong to no thread, and work of others gets
//! into none. A capture whose key was invalidated since it began keeps no graph.
//!
//! Elsewhere: what a launch takes (`launches`).

use core::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use fercuda_runtime::{
    Arguments, BlockLayout, Budget, Evaluation, Field, GraphError, Graphs, Key, PreparedLaunch,
    RecordOptions,
};

use super::types::{
    FER_KEY_WORDS, fer_arguments, fer_buffer, fer_capture, fer_graph_key, fer_graph_record,
    fer_graph_times, fer_graphs, fer_graphs_details, fer_session,
};
use crate::handles::{ARGUMENTS, CAPTURES, GRAPHS, SESSIONS};
use crate::pointers::{Place, given, list};
use crate::status::{Failure, Result, fer_status, guarded};

/// Bytes of an argument's word.
const WORD_BYTES: u64 = 4;
/// A block has at most so many bytes: what changes from step to step is small.
const MOST_BLOCK_BYTES: u64 = 1 << 20;
/// At most so many pushes of it are under way.
const MOST_PUSHES: u64 = 1 << 16;

/// A key as the cache has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Words {
    generation: u64,
    words: [u64; FER_KEY_WORDS],
}

impl Key for Words {
    fn generation(&self) -> u64 {
        self.generation
    }
}

impl From<fer_graph_key> for Words {
    fn from(it: fer_graph_key) -> Self {
        Self {
            generation: it.generation,
            words: it.words,
        }
    }
}

/// Graphs as C holds them.
pub(crate) struct Cached {
    pub(crate) session: u64,
    graphs: Graphs<Words>,
    /// Captures that have begun, and perhaps ended.
    begun: Mutex<Vec<Weak<Capture>>>,
}

/// A capture as C holds it.
pub(crate) struct Capture {
    pub(crate) session: u64,
    pub(crate) graphs: u64,
    cached: Arc<Cached>,
    key: Words,
    /// What the graph is to do; none once it has ended.
    steps: Mutex<Option<Vec<Step>>>,
    is_invalidated: AtomicBool,
}

/// A part of what a graph is to do.
pub(crate) enum Step {
    Launch(PreparedLaunch),
    Evaluation(Evaluation),
}

impl From<PreparedLaunch> for Step {
    fn from(launch: PreparedLaunch) -> Self {
        Self::Launch(launch)
    }
}

impl From<Evaluation> for Step {
    fn from(evaluation: Evaluation) -> Self {
        Self::Evaluation(evaluation)
    }
}

/// A block of arguments as C holds it.
pub(crate) struct Block {
    pub(crate) session: u64,
    block: Arguments,
    words: Field<u32>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a session's graphs may count for, if the program does not say.
fn budget(bytes: u64) -> Budget {
    match bytes {
        0 => Budget::default(),
        bytes => Budget {
            bytes,
            ..Budget::default()
        },
    }
}

/// A cache of graphs of the session. Together they count for at most `budget_bytes`, 8 KiB for
/// each node; 0 is 1 GiB. The least recently used go first. Freed by fer_graphs_free, or with
/// the session.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_graphs_open(
    session: fer_session,
    budget_bytes: u64,
    graphs: *mut fer_graphs,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new("graphs", graphs) }?;
        let open = SESSIONS.get("session", session)?;
        let cached = Cached {
            session,
            graphs: open.session.graphs(budget(budget_bytes))?,
            begun: Mutex::default(),
        };
        place.put(GRAPHS.insert_of(&SESSIONS, session, cached)?);
        Ok(())
    })
}

/// Ends graphs, behind their last replay, their captures, and their handle.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_graphs_free(graphs: fer_graphs) -> fer_status {
    guarded(|| {
        let cached = GRAPHS.remove("graphs", graphs)?;
        for (_, capture) in CAPTURES.take(|capture| capture.graphs == graphs) {
            capture.end();
        }
        drop(cached);
        Ok(())
    })
}

impl Cached {
    fn begin(&self, capture: &Arc<Capture>) {
        let mut begun = lock(&self.begun);
        begun.retain(|it| it.strong_count() > 0);
        begun.push(Arc::downgrade(capture));
    }

    /// To be done before the cache is told: what begins to be captured in between is found
    /// there.
    fn invalidate(&self, which: impl Fn(&Words) -> bool) {
        for capture in lock(&self.begun).iter().filter_map(Weak::upgrade) {
            if which(&capture.key) {
                capture.is_invalidated.store(true, Relaxed);
            }
        }
    }
}

fn just_ended() -> Failure {
    Failure::new(
        fer_status::FER_ERROR_STALE_HANDLE,
        "the capture has just ended\ntry: another one",
    )
}

impl Capture {
    /// Adds work.
    pub(crate) fn add(&self, ready: impl Into<Step>) -> Result<()> {
        match &mut *lock(&self.steps) {
            Some(steps) => {
                steps.push(ready.into());
                Ok(())
            }
            None => Err(just_ended()),
        }
    }

    /// From now on it takes no work; what it was given.
    pub(crate) fn end(&self) -> Option<Vec<Step>> {
        lock(&self.steps).take()
    }
}

/// Begins to capture what is to be kept under a key. fer_ptxlaunch_submit and fer_evaluate, given
/// the capture in the session's place, make launches part of it; nothing is launched. It ends by
/// fer_capture_finish or fer_capture_discard, or with its graphs. Other work goes on
/// meanwhile, and is no part of it; nor does it matter which threads call.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_capture_begin(
    graphs: fer_graphs,
    key: *const fer_graph_key,
    capture: *mut fer_capture,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (key, place) = unsafe { (given("key", key)?, Place::new("capture", capture)?) };
        let cached = GRAPHS.get("graphs", graphs)?;
        let capture = Capture {
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

/// Ends a capture and keeps its graph under its key, in place of what was there, sent to the
/// device. The graph holds the buffers and kernels that it uses, also if their handles end.
/// `record` may be NULL.
///
/// If this fails the capture has ended all the same, and what was under the key stays:
/// FER_ERROR_GRAPH if the key was invalidated since it began, FER_ERROR_LIMIT if no budget but a
/// larger one has room.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_capture_finish(
    capture: fer_capture,
    record: *mut fer_graph_record,
) -> fer_status {
    guarded(|| {
        let place = match record.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { Place::new("record", record) }?),
        };
        let capture = CAPTURES.remove("capture", capture)?;
        let steps = capture.end().ok_or_else(just_ended)?;
        let options = RecordOptions::default();
        let recorded = capture.cached.graphs.record(capture.key, options, |it| {
            // What is invalidated from here on the cache sees.
            if capture.is_invalidated.load(Relaxed) {
                return Err(GraphError::Invalidated.into());
            }
            for step in &steps {
                match step {
                    // SAFETY: that the kernel touches what it may, whenever the graph is
                    // replayed, is the promise of who has added it.
                    Step::Launch(launch) => unsafe { launch.run(it.stream()) }?,
                    Step::Evaluation(evaluation) => evaluation.record(it)?,
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

/// Ends a capture without a graph.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_capture_discard(capture: fer_capture) -> fer_status {
    guarded(|| {
        drop(CAPTURES.remove("capture", capture)?.end());
        Ok(())
    })
}

/// Queues all work of the graph under a key behind the session's: `was_there` gets 1 if
/// there is one, else 0, and nothing is queued.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_graph_replay(
    graphs: fer_graphs,
    key: *const fer_graph_key,
    was_there: *mut u32,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (key, place) = unsafe { (given("key", key)?, Place::new("was_there", was_there)?) };
        let cached = GRAPHS.get("graphs", graphs)?;
        place.put(u32::from(cached.graphs.replay(&key.into())?));
        Ok(())
    })
}

/// The same, waits until it is done, and says how long it took.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_graph_replay_timed(
    graphs: fer_graphs,
    key: *const fer_graph_key,
    times: *mut fer_graph_times,
    was_there: *mut u32,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (key, place, found) = unsafe {
            (
                given("key", key)?,
                Place::new("times", times)?,
                Place::new("was_there", was_there)?,
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

/// Lets go of the graph under a key, behind its last replay, and of those that are being
/// captured for it. `count` gets how many there were to replay, and may be NULL.
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
            let key = Words::from(given("key", key)?);
            Ok(move |cached: &Cached| {
                cached.invalidate(|it| *it == key);
                u64::from(cached.graphs.invalidate(&key))
            })
        })
    }
}

/// The same of all graphs whose keys are of a generation.
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
            Ok(move |cached: &Cached| {
                cached.invalidate(|it| it.generation == generation);
                cached.graphs.invalidate_generation(generation) as u64
            })
        })
    }
}

/// The same of all graphs.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_graphs_invalidate_all(
    graphs: fer_graphs,
    count: *mut u64,
) -> fer_status {
    // SAFETY: the caller's promise.
    unsafe {
        invalidated(graphs, count, || {
            Ok(|cached: &Cached| {
                cached.invalidate(|_| true);
                cached.graphs.invalidate_all() as u64
            })
        })
    }
}

/// # Safety
/// `count` is null or has room.
unsafe fn invalidated<W: FnOnce(&Cached) -> u64>(
    graphs: fer_graphs,
    count: *mut u64,
    work: impl FnOnce() -> Result<W>,
) -> fer_status {
    guarded(|| {
        let place = match count.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { Place::new("count", count) }?),
        };
        let work = work()?;
        let count = work(&*GRAPHS.get("graphs", graphs)?);
        if let Some(place) = place {
            place.put(count);
        }
        Ok(())
    })
}

/// What graphs there are, and what has been done. Never waits.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_graphs_info(
    graphs: fer_graphs,
    details: *mut fer_graphs_details,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Place::new("details", details) }?;
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

/// Device memory of `bytes` for what changes from replay to replay, such as a token and its
/// position: a multiple of 4, at most 1 MiB, at first all 0. `buffer` gets a buffer of it, for
/// kernels and views, which ends with the block. `pushes` of it may be under way, 1 to 65536.
/// Freed by fer_arguments_free, or with the session.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_arguments_open(
    session: fer_session,
    bytes: u64,
    pushes: u64,
    arguments: *mut fer_arguments,
    buffer: *mut fer_buffer,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (place, of_buffer) = unsafe {
            (
                Place::new("arguments", arguments)?,
                Place::new("buffer", buffer)?,
            )
        };
        let open = SESSIONS.get("session", session)?;
        if !bytes.is_multiple_of(WORD_BYTES) || !(WORD_BYTES..=MOST_BLOCK_BYTES).contains(&bytes) {
            let what = format!("{bytes}\ntry: a multiple of 4, 4 to {MOST_BLOCK_BYTES}");
            return Err(Failure::argument("bytes", what));
        }
        if !(1..=MOST_PUSHES).contains(&pushes) {
            let what = format!("{pushes}\ntry: 1 to {MOST_PUSHES}");
            return Err(Failure::argument("pushes", what));
        }
        let mut layout = BlockLayout::new();
        let words = layout.array("words", (bytes / WORD_BYTES) as usize);
        let block = open.session.arguments(layout, pushes as usize)?;
        let whole = block.whole();
        let block = Block {
            session,
            block,
            words,
        };
        place.put(ARGUMENTS.insert_of(&SESSIONS, session, block)?);
        of_buffer.put(whole.to_bits());
        Ok(())
    })
}

/// Sets a part of a block for the next push: `len_bytes` from `offset_bytes` on, both
/// multiples of 4. A push that another thread makes meanwhile may have a part of them.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fer_arguments_set(
    arguments: fer_arguments,
    offset_bytes: u64,
    bytes: *const c_void,
    len_bytes: u64,
) -> fer_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let bytes = unsafe { list("bytes", bytes.cast::<u8>(), len_bytes) }?;
        let block = ARGUMENTS.get("arguments", arguments)?;
        let end = offset_bytes.checked_add(len_bytes);
        let all = block.words.len() as u64 * WORD_BYTES;
        let are_words = (offset_bytes | len_bytes).is_multiple_of(WORD_BYTES);
        if !are_words || end.is_none_or(|end| end > all) {
            return Err(Failure::new(
                fer_status::FER_ERROR_LAYOUT,
                format!(
                    "{len_bytes} bytes from {offset_bytes} on are no words of a block of {all}\ntry: multiples of 4 within it"
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

/// Queues a copy of all that was set, behind the session's work: replays after it see it, and
/// those before it do not. Waits only if the device is more pushes behind than the block was
/// made for, or if jobs wait on the host.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_arguments_push(arguments: fer_arguments) -> fer_status {
    guarded(|| Ok(ARGUMENTS.get("arguments", arguments)?.block.push()?))
}

/// Ends a block and its buffer, behind the session's work. Graphs that use it keep its memory.
// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn fer_arguments_free(arguments: fer_arguments) -> fer_status {
    guarded(|| {
        drop(ARGUMENTS.remove("arguments", arguments)?);
        Ok(())
    })
}
