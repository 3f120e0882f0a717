//! Instantiated graphs: launch, update and teardown.
//!
//! The fast path of a launch makes one driver call and takes no lock: no host slots, a stream that
//! was noted before, no capture in progress. Every other launch takes the slow path, which makes
//! the same checks again.
//!
//! Invariant: the resources of a launch live until it is done, also when the graph has been updated
//! or retired since. Elsewhere: what the resources are (`graph`).

use std::sync::Arc;

use fercuda_cuda_sys::types::{CUgraphExec, CUgraphExecUpdateResultInfo, CUresult};

use crate::callback;
use crate::capture_mode::RelaxedCaptureMode;
use crate::context::Context;
use crate::deferred::{self, DestroyOutcome};
use crate::error::{DriverFailure, Error, Result, call};
use crate::event::Event;
use crate::graph::{Graph, GraphResources};
use crate::stream::Stream;
use crate::uses::StreamUses;
use crate::wait::WaitOutcome;

/// An instantiated graph. Dropping it waits for its launches; see also [`GraphExec::retire`].
#[derive(Debug)]
#[repr(C)]
pub struct GraphExec {
    raw: CUgraphExec,
    /// The stream in which launches can take the fast path, as there is nothing to note. Zero is no
    /// stream.
    fast_stream: u64,
    /// The fields that the fast path does not read: with them elsewhere, an array of graphs has the
    /// fields that it reads in one cache line each.
    cold: Box<ColdState>,
}

#[derive(Debug)]
struct ColdState {
    context: Context,
    uses: StreamUses,
    /// The resources of launches from now on.
    keep: Arc<GraphResources>,
    /// Resources that launches before an update may still use.
    superseded: Vec<SupersededResources>,
    /// Events after all launches, once it is retired.
    behind: Option<Vec<Event>>,
    /// The driver may have put a launch into another thread's capture, and nothing tells when the
    /// graph of that is destroyed.
    captured: bool,
}

#[derive(Debug)]
struct SupersededResources {
    keep: Arc<GraphResources>,
    /// Events after the last launch that may use it, where they could be recorded.
    behind: Option<Vec<Event>>,
}

/// Resources of finished launches before an update; dropped when this is.
#[derive(Debug)]
#[must_use = "dropping it may run the destructors of user code"]
pub struct ReleasedResources {
    _done: Vec<SupersededResources>,
}

/// With this many updates of which the launches have no event, the streams are waited for.
const MAX_UNMARKED: usize = 8;

/// Outcome of the fast path.
enum GraphFastPath {
    Done,
    /// A check failed, or the driver refused; nothing was launched.
    NotTaken,
    /// Launched, and a capture of the stream has begun meanwhile.
    RacedByCapture,
}

impl Graph {
    /// Instantiates it, so that it can be launched.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn instantiate(&self) -> Result<GraphExec> {
        let driver = self.context().bind()?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        let graph = self.raw();
        let mut raw = CUgraphExec::NULL;
        // SAFETY: the graph is alive and used by this thread alone.
        unsafe {
            call!(
                driver,
                cuGraphInstantiateWithFlags(&mut raw, *graph, 0),
                "instantiate a graph"
            )?
        };
        Ok(GraphExec::new(
            self.context().clone(),
            raw,
            self.resources().clone(),
        ))
    }
}

impl GraphExec {
    fn new(context: Context, raw: CUgraphExec, keep: Arc<GraphResources>) -> Self {
        Self {
            raw,
            fast_stream: 0,
            cold: Box::new(ColdState {
                context,
                uses: StreamUses::default(),
                keep,
                superseded: Vec::new(),
                behind: None,
                captured: false,
            }),
        }
    }

    /// The driver's own handle.
    pub fn raw(&self) -> CUgraphExec {
        self.raw
    }

    /// Uploads it to the device, so that the first launch need not.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn upload(&mut self, stream: &Stream) -> Result<()> {
        let driver = self.bind_for(stream)?;
        self.cold.uses.note(stream);
        // Its nodes must not be destroyed while it is being uploaded.
        let _entered = stream.enter_uncaptured(Error::Capturing {
            operation: "upload a graph",
            advice: "upload it in another stream",
        })?;
        // SAFETY: both are alive; `self` is used by this thread alone.
        unsafe {
            call!(
                driver,
                cuGraphUpload(self.raw, stream.raw()),
                "upload a graph"
            )
        }
    }

    /// Queues all its work in `stream`.
    ///
    /// # Errors
    /// [`Error::SlotHeld`] while the host uses one of its host slots;
    /// [`Error::Capturing`]: CUDA does not capture launches of graphs;
    /// [`Error::Driver`].
    #[inline]
    pub fn launch(&mut self, stream: &Stream) -> Result<()> {
        match self.try_fast_path(stream) {
            GraphFastPath::Done => Ok(()),
            GraphFastPath::NotTaken => self.launch_slow(stream),
            GraphFastPath::RacedByCapture => {
                self.cold.captured = true;
                std::mem::forget(self.cold.keep.clone());
                Ok(())
            }
        }
    }

    /// Launches if there is nothing to refuse and nothing to note.
    #[inline]
    fn try_fast_path(&mut self, stream: &Stream) -> GraphFastPath {
        // A noted stream is of this context, and its driver is the context's. Which context is
        // current matters to default streams only, and `uncaptured_epoch` returns none for those.
        let noted = self.fast_stream == stream.id() || self.select_fast_stream(stream);
        let epoch = stream
            .uncaptured_epoch()
            .filter(|_| noted && !callback::is_in_callback());
        let Some((epoch, launch)) = epoch.zip(stream.graph_launch()) else {
            return GraphFastPath::NotTaken;
        };
        // SAFETY: a function of the stream's driver; both are alive; `self` is used by this thread
        // alone, and keeps the resources of the work until it is done.
        let answer = unsafe { launch(self.raw, stream.raw()) };
        if answer != CUresult::CUDA_SUCCESS {
            GraphFastPath::NotTaken
        } else if stream.epoch() != epoch {
            GraphFastPath::RacedByCapture
        } else {
            GraphFastPath::Done
        }
    }

    /// Whether launches in `stream` need nothing to be noted; if so, later ones find that by one
    /// comparison.
    #[cold]
    fn select_fast_stream(&mut self, stream: &Stream) -> bool {
        let is_fast = self.cold.keep.slots.is_empty() && self.cold.uses.has_recent(stream);
        if is_fast {
            self.fast_stream = stream.id();
        }
        is_fast
    }

    #[cold]
    fn launch_slow(&mut self, stream: &Stream) -> Result<()> {
        let driver = self.bind_for(stream)?;
        if !self.cold.uses.has_recent(stream) {
            self.cold.uses.note(stream);
        }
        let _entered = stream.enter_uncaptured(Error::Capturing {
            operation: "launch a graph",
            advice: "launch it before the capture begins or after it ends",
        })?;
        // Held until the launch is queued, so that the host cannot lock a slot after it noted the
        // stream and before the work is queued.
        let mut held = Vec::new();
        for slot in &self.cold.keep.slots {
            held.push(slot.try_lock().ok_or(Error::SlotHeld)?);
            slot.uses.note(stream);
        }
        // SAFETY: both are alive; `self` is used by this thread alone, and keeps the resources of
        // the work until it is done.
        unsafe {
            call!(
                driver,
                cuGraphLaunch(self.raw, stream.raw()),
                "launch a graph"
            )
        }
    }

    /// Replaces its work by that of `graph`, which must have the same topology as the graph it was
    /// instantiated from. Cheaper than instantiating. The resources of the former work are released
    /// by an update, or the drop, after the launches until now.
    ///
    /// # Errors
    /// [`Error::Driver`] with the difference; `self` is unchanged then.
    pub fn update(&mut self, graph: &Graph) -> Result<()> {
        if *graph.context() != self.cold.context {
            return Err(Error::OtherContext {
                operation: "update a graph",
                left: self.cold.context.device().to_string(),
                right: graph.context().device().to_string(),
            });
        }
        self.release_finished();
        let driver = self.cold.context.bind()?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        let raw = graph.raw();
        let mut info = CUgraphExecUpdateResultInfo::default();
        // SAFETY: both are alive and used by this thread alone.
        let answer = unsafe { driver.cuGraphExecUpdate_v2(self.raw, *raw, &mut info)? };
        if answer != CUresult::CUDA_SUCCESS {
            return Err(Error::Driver(Box::new(DriverFailure {
                call: "cuGraphExecUpdate_v2",
                code: answer,
                doing: format!("update a graph ({:?})", info.result),
            })));
        }
        let keep = std::mem::replace(&mut self.cold.keep, graph.resources().clone());
        self.fast_stream = 0;
        self.cold.superseded.push(SupersededResources {
            keep,
            behind: self.cold.uses.record_events(),
        });
        Ok(())
    }

    /// Releases the resources that only launches before an update used, as far as those are done.
    /// Returns whether none are left. Waits if too many updates have launches without an event.
    pub fn release_finished(&mut self) -> bool {
        drop(self.take_finished());
        !self.has_superseded()
    }

    /// Whether it holds resources that only launches before an update used.
    pub fn has_superseded(&self) -> bool {
        !self.cold.superseded.is_empty()
    }

    /// As [`GraphExec::release_finished`], but the caller drops the resources: for a caller with
    /// exclusive access to the graph, which the destructors may try to access.
    pub fn take_finished(&mut self) -> ReleasedResources {
        let ColdState {
            superseded, uses, ..
        } = &mut *self.cold;
        let is_done = |it: &mut SupersededResources| it.behind.as_deref().is_some_and(all_done);
        let mut done: Vec<SupersededResources> = superseded.extract_if(.., is_done).collect();
        if superseded.len() >= MAX_UNMARKED
            && superseded
                .iter()
                .any(|superseded| superseded.behind.is_none())
            && uses.wait() == WaitOutcome::Done
        {
            done.append(superseded);
        }
        ReleasedResources { _done: done }
    }

    /// Retires it: it is destroyed when the returned value is dropped, which waits until the
    /// launches so far are done, but not for later work of their streams.
    pub fn retire(mut self) -> RetiredGraph {
        self.cold.behind = self.cold.uses.record_events();
        RetiredGraph(self)
    }

    /// The message of a host callback of the graph that panicked; each is returned once.
    pub fn take_callback_panic(&self) -> Option<String> {
        let superseded = self
            .cold
            .superseded
            .iter()
            .map(|superseded| &superseded.keep);
        superseded
            .chain([&self.cold.keep])
            .find_map(|keep| keep.take_callback_panic())
    }

    fn bind_for(&self, stream: &Stream) -> Result<&'static fercuda_cuda_sys::Driver> {
        if *stream.context() != self.cold.context {
            return Err(Error::OtherContext {
                operation: "launch a graph",
                left: self.cold.context.device().to_string(),
                right: stream.context().device().to_string(),
            });
        }
        self.cold.context.bind()
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        let (context, raw) = (self.cold.context.clone(), self.raw);
        let uses = std::mem::take(&mut self.cold.uses);
        let behind = self.cold.behind.take();
        let mut keeps = vec![std::mem::take(&mut self.cold.keep)];
        keeps.extend(
            self.cold
                .superseded
                .drain(..)
                .map(|superseded| superseded.keep),
        );
        if self.cold.captured {
            std::mem::forget(keeps);
            return;
        }
        deferred::destroy_or_defer(move || {
            let waited = match &behind {
                Some(_) if callback::is_in_callback() => WaitOutcome::Refused,
                Some(events) => wait_for(events),
                None => uses.wait(),
            };
            if waited.destroy_outcome() != DestroyOutcome::Done {
                return waited.destroy_outcome();
            }
            if waited == WaitOutcome::Lost {
                // A callback of a launch may be running, and nothing tells when it ends.
                std::mem::forget(std::mem::take(&mut keeps));
                return DestroyOutcome::Done;
            }
            // SAFETY: from cuGraphInstantiate, destroyed once (this closure is not called again
            // then), and no launch of it is in flight.
            let answer = context.destroy(|driver| unsafe { driver.cuGraphExecDestroy(raw) });
            if answer == DestroyOutcome::Done {
                keeps.clear();
            }
            answer
        });
    }
}

/// Whether the work before all of them is done. Its errors are reported to the threads that wait
/// for that work, and when what it used is destroyed.
fn all_done(events: &[Event]) -> bool {
    events
        .iter()
        .all(|event| event.is_done().is_ok_and(|done| done))
}

fn wait_for(events: &[Event]) -> WaitOutcome {
    events
        .iter()
        .map(|event| WaitOutcome::of(&event.synchronize()))
        .max()
        .unwrap_or(WaitOutcome::Done)
}

/// A graph without further launches, while its last launches run. Dropping it waits for them and
/// destroys it.
#[derive(Debug)]
#[must_use = "dropping it waits for its launches"]
pub struct RetiredGraph(GraphExec);

impl RetiredGraph {
    /// Whether its launches are done, so that dropping it waits for nothing. `false` also where
    /// that is not known.
    pub fn is_done(&self) -> bool {
        self.0.cold.behind.as_deref().is_some_and(all_done)
    }
}
