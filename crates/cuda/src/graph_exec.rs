//! Graphs that can be launched, and their end.
//!
//! A launch about which nothing is new makes one call of the driver's and takes
//! no lock: no host slots, a stream that is noted, no capture near. Everything
//! else goes the longer way, on which the same is asked again.
//!
//! Invariant: what a launch refers to lives until it is done, also when the
//! graph has been updated or retired since. Elsewhere: what a graph refers to
//! (`graph`).

use std::sync::Arc;

use fercuda_cuda_sys::types::{CUgraphExec, CUgraphExecUpdateResultInfo, CUresult};

use crate::callback::{self, Destroyed};
use crate::context::{Context, Relaxed};
use crate::error::{Error, Failure, Result, call};
use crate::event::Event;
use crate::graph::{Graph, Keep};
use crate::stream::{Stream, Waited};
use crate::uses::{Uses, lock};

/// A graph that can be launched. Dropping it waits for its launches; see also
/// [`GraphExec::retire`].
#[derive(Debug)]
#[repr(C)]
pub struct GraphExec {
    raw: CUgraphExec,
    /// The stream of the last launch, if there is nothing to look at in another there.
    /// Zero is no stream.
    usual: u64,
    /// What the short way of a launch does not look at, elsewhere: an array of these
    /// has that of each in one line of the core's cache.
    rest: Box<Rest>,
}

#[derive(Debug)]
struct Rest {
    context: Context,
    uses: Uses,
    /// What launches refer to from now on.
    keep: Arc<Keep>,
    /// What launches before an update may still refer to.
    earlier: Vec<Earlier>,
    /// Behind all launches, once there are to be no more.
    behind: Option<Vec<Event>>,
    /// The driver may have put a launch into somebody's capture, where nobody
    /// can tell when it goes.
    captured: bool,
}

#[derive(Debug)]
struct Earlier {
    keep: Arc<Keep>,
    /// Behind the last launch that may refer to it, where that could be marked.
    behind: Option<Vec<Event>>,
}

/// What launches before an update referred to, which are done: it goes when this is
/// dropped.
#[derive(Debug)]
#[must_use = "dropping it may run code of whoever's it was"]
pub struct Forgotten {
    _done: Vec<Earlier>,
}

/// So many updates whose launches cannot be marked are waited for.
const ENOUGH: usize = 8;

/// What came of the short way.
enum Quick {
    Done,
    /// Something is new or wrong, or the driver refused; nothing was launched.
    Unusual,
    /// It is launched, and a capture of the stream has begun meanwhile.
    Overtaken,
}

impl GraphExec {
    pub(crate) fn new(context: Context, raw: CUgraphExec, keep: Arc<Keep>) -> Self {
        Self {
            raw,
            usual: 0,
            rest: Box::new(Rest {
                context,
                uses: Uses::default(),
                keep,
                earlier: Vec::new(),
                behind: None,
                captured: false,
            }),
        }
    }

    /// The driver's own handle.
    pub fn raw(&self) -> CUgraphExec {
        self.raw
    }

    /// Sends it to the device, so that the first launch need not.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn upload(&mut self, stream: &Stream) -> Result<()> {
        let driver = self.bind_for(stream)?;
        self.rest.uses.note(stream);
        // What its nodes name must not go while it is being sent.
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
        match self.quick(stream) {
            Quick::Done => Ok(()),
            Quick::Unusual => self.launch_slowly(stream),
            Quick::Overtaken => {
                self.rest.captured = true;
                std::mem::forget(self.rest.keep.clone());
                Ok(())
            }
        }
    }

    /// Launches if there is nothing to refuse and nothing to note.
    #[inline]
    fn quick(&mut self, stream: &Stream) -> Quick {
        // A stream that is noted is of this context, whose driver is the
        // stream's. Which context is current matters to a default stream only,
        // and those are never free.
        let noted = self.usual == stream.id() || self.is_usual(stream);
        let epoch = stream.free_epoch().filter(|_| noted && !callback::inside());
        let Some((epoch, launch)) = epoch.zip(stream.graph_launch()) else {
            return Quick::Unusual;
        };
        // SAFETY: the stream's driver's function; both are alive; `self` is used
        // by this thread alone, and keeps what the work refers to until it is done.
        let answer = unsafe { launch(self.raw, stream.raw()) };
        if answer != CUresult::CUDA_SUCCESS {
            Quick::Unusual
        } else if stream.epoch() != epoch {
            Quick::Overtaken
        } else {
            Quick::Done
        }
    }

    /// Whether launches in `stream` need nothing to be noted, and from now on at one look.
    #[cold]
    fn is_usual(&mut self, stream: &Stream) -> bool {
        let usual = self.rest.keep.slots.is_empty() && self.rest.uses.has_recent(stream);
        if usual {
            self.usual = stream.id();
        }
        usual
    }

    #[cold]
    fn launch_slowly(&mut self, stream: &Stream) -> Result<()> {
        let driver = self.bind_for(stream)?;
        if !self.rest.uses.has_recent(stream) {
            self.rest.uses.note(stream);
        }
        let _entered = stream.enter_uncaptured(Error::Capturing {
            operation: "launch a graph",
            advice: "launch it before the capture begins or after it ends",
        })?;
        // Held until the launch is queued, so that the host cannot slip in
        // between a slot's noting the stream and the work being there.
        let mut held = Vec::new();
        for slot in &self.rest.keep.slots {
            held.push(slot.close().ok_or(Error::SlotHeld)?);
            slot.uses.note(stream);
        }
        // SAFETY: both are alive; `self` is used by this thread alone, and
        // keeps what the work refers to until it is done.
        unsafe {
            call!(
                driver,
                cuGraphLaunch(self.raw, stream.raw()),
                "launch a graph"
            )
        }
    }

    /// Makes it do what `graph` does, which must have the same shape as the
    /// graph it was made from. Cheaper than instantiating. What it referred to
    /// before goes with an update, or its end, after the launches until now.
    ///
    /// # Errors
    /// [`Error::Driver`] that says how they differ; `self` is unchanged then.
    pub fn update(&mut self, graph: &Graph) -> Result<()> {
        if *graph.context() != self.rest.context {
            return Err(Error::OtherContext {
                operation: "update a graph",
                left: self.rest.context.device().to_string(),
                right: graph.context().device().to_string(),
            });
        }
        self.forget_done();
        let driver = self.rest.context.bind()?;
        let _relaxed = Relaxed::enter(driver);
        let raw = graph.raw();
        let mut info = CUgraphExecUpdateResultInfo::default();
        // SAFETY: both are alive and used by this thread alone.
        let answer = unsafe { driver.cuGraphExecUpdate_v2(self.raw, *raw, &mut info)? };
        if answer != CUresult::CUDA_SUCCESS {
            return Err(Error::Driver(Box::new(Failure {
                call: "cuGraphExecUpdate_v2",
                code: answer,
                doing: format!("update a graph ({:?})", info.result),
            })));
        }
        let keep = std::mem::replace(&mut self.rest.keep, graph.kept().clone());
        self.usual = 0;
        self.rest.earlier.push(Earlier {
            keep,
            behind: self.rest.uses.marks(),
        });
        Ok(())
    }

    /// Lets go of what only launches before an update referred to, as far as
    /// they are done; says whether nothing is left of it. Waits if too many of
    /// them could not be marked.
    pub fn forget_done(&mut self) -> bool {
        drop(self.take_done());
        !self.holds_earlier()
    }

    /// Whether it holds what only launches before an update referred to.
    pub fn holds_earlier(&self) -> bool {
        !self.rest.earlier.is_empty()
    }

    /// As [`GraphExec::forget_done`], and what is let go is the caller's to drop: for who
    /// has the graph to himself, which what goes then may ask for.
    pub fn take_done(&mut self) -> Forgotten {
        let Rest { earlier, uses, .. } = &mut *self.rest;
        let is_done = |it: &mut Earlier| it.behind.as_deref().is_some_and(all_done);
        let mut done: Vec<Earlier> = earlier.extract_if(.., is_done).collect();
        if earlier.len() >= ENOUGH
            && earlier.iter().any(|earlier| earlier.behind.is_none())
            && uses.wait() == Waited::Done
        {
            done.append(earlier);
        }
        Forgotten { _done: done }
    }

    /// Ends its use: it is destroyed when what is returned is dropped, for
    /// which that waits until the launches so far are done, but not for later
    /// work of their streams.
    pub fn retire(mut self) -> RetiredGraph {
        self.rest.behind = self.rest.uses.marks();
        RetiredGraph(self)
    }

    /// What a host callback of the graph said when it panicked, once.
    pub fn callback_panic(&self) -> Option<String> {
        let earlier = self.rest.earlier.iter().map(|earlier| &earlier.keep);
        earlier
            .chain([&self.rest.keep])
            .find_map(|keep| lock(&keep.panicked).take())
    }

    fn bind_for(&self, stream: &Stream) -> Result<&'static fercuda_cuda_sys::Driver> {
        if *stream.context() != self.rest.context {
            return Err(Error::OtherContext {
                operation: "launch a graph",
                left: self.rest.context.device().to_string(),
                right: stream.context().device().to_string(),
            });
        }
        self.rest.context.bind()
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        let (context, raw) = (self.rest.context.clone(), self.raw);
        let uses = std::mem::take(&mut self.rest.uses);
        let behind = self.rest.behind.take();
        let mut keeps = vec![std::mem::take(&mut self.rest.keep)];
        keeps.extend(self.rest.earlier.drain(..).map(|earlier| earlier.keep));
        if self.rest.captured {
            std::mem::forget(keeps);
            return;
        }
        callback::outside(move || {
            let waited = match &behind {
                Some(_) if callback::inside() => Waited::Refused,
                Some(marks) => wait_for(marks),
                None => uses.wait(),
            };
            if waited.so_far() != Destroyed::Yes {
                return waited.so_far();
            }
            if waited == Waited::Lost {
                // A callback of a launch may be running, and nothing can tell
                // when it ends.
                std::mem::forget(std::mem::take(&mut keeps));
                return Destroyed::Yes;
            }
            // SAFETY: from cuGraphInstantiate, destroyed once (this is done
            // then), and no launch of it is under way.
            let answer = context.destroy(|driver| unsafe { driver.cuGraphExecDestroy(raw) });
            if answer == Destroyed::Yes {
                keeps.clear();
            }
            answer
        });
    }
}

/// Whether the work before all of them is done. An error of it is for who
/// waits for that work, and for who destroys what it used.
fn all_done(marks: &[Event]) -> bool {
    marks
        .iter()
        .all(|mark| mark.is_done().is_ok_and(|done| done))
}

fn wait_for(marks: &[Event]) -> Waited {
    marks
        .iter()
        .map(|mark| Waited::of(&mark.synchronize()))
        .max()
        .unwrap_or(Waited::Done)
}

/// A graph that is launched no more, while its last launches run. Dropping it
/// waits for them and destroys it.
#[derive(Debug)]
#[must_use = "dropping it waits for its launches"]
pub struct RetiredGraph(GraphExec);

impl RetiredGraph {
    /// Whether its launches are done, so that dropping it waits for nothing.
    /// False, too, where that cannot be told.
    pub fn is_done(&self) -> bool {
        self.0.rest.behind.as_deref().is_some_and(all_done)
    }
}
