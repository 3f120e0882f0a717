//! Stream capture: work is added to a graph instead of running, and some calls invalidate it.
//!
//! The codes were observed on an H200: a call that a capture forbids returns 900 and invalidates
//! the capture, and its end returns 901; waiting for an event from outside returns 905; querying an
//! event recorded inside returns 907 to the host.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use fercuda_cuda_sys::types::{CUgraphEdgeData, CUgraphNode};

use super::objects::{
    CaptureSession, Captured, CapturedEvent, Captures, Deps, NodeId, SoftContext, SoftEvent,
    SoftGraph, SoftStream, StreamAction, StreamKind,
};
use super::{CuResult, Machine, err, lock};

pub(crate) const GLOBAL: u32 = 0;
pub(crate) const RELAXED: u32 = 2;

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// `cuThreadExchangeStreamCaptureMode`.
pub(crate) fn exchange_mode(mode: u32) -> u32 {
    MODE.try_with(|m| m.replace(mode)).unwrap_or(GLOBAL)
}

impl CaptureSession {
    fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

impl Captures {
    /// A call that may be unsafe to leave out of a graph: an allocation, a query of an event.
    pub(crate) fn forbid_unsafe_call(&self) -> CuResult {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mode = MODE.try_with(Cell::get).unwrap_or(GLOBAL);
        if mode == RELAXED {
            return Ok(());
        }
        let me = std::thread::current().id();
        let mut refused = false;
        for capture in lock(&self.active).iter() {
            let ours = capture.thread == me && capture.mode != RELAXED;
            let theirs = capture.thread != me && capture.mode == GLOBAL && mode == GLOBAL;
            if ours || theirs {
                capture.lose();
                refused = true;
            }
        }
        if refused {
            Err(err::CAPTURE_UNSUPPORTED)
        } else {
            Ok(())
        }
    }

    /// A call that concerns all of a context.
    pub(crate) fn forbid_context_call(&self, ctx: &SoftContext) -> CuResult {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut refused = false;
        for capture in lock(&self.active).iter().filter(|c| c.ctx_id == ctx.id) {
            capture.lose();
            refused = true;
        }
        if refused {
            Err(err::CAPTURE_UNSUPPORTED)
        } else {
            Ok(())
        }
    }

    pub(crate) fn forget_context(&self, ctx_id: u64) {
        let mut active = lock(&self.active);
        active.retain(|c| c.ctx_id != ctx_id);
        self.count.store(active.len(), Ordering::Release);
    }

    /// A stream is destroyed. A capture ends with its origin; what another stream added to it
    /// stays, and has to have been joined when the capture ends.
    pub(crate) fn forget_stream(&self, stream: &Arc<SoftStream>) {
        // Removed first: ending the capture accesses its streams again.
        let captured = lock(&stream.capture).take();
        let Some(captured) = captured else {
            return;
        };
        if captured.capture.origin.ptr_eq(&Arc::downgrade(stream)) {
            captured.capture.lose();
            self.end(&captured.capture);
        } else {
            lock(&captured.capture.ends).extend(captured.deps.iter().map(|dep| dep.0));
        }
    }

    fn end(&self, capture: &Arc<CaptureSession>) {
        let mut active = lock(&self.active);
        active.retain(|c| !Arc::ptr_eq(c, capture));
        self.count.store(active.len(), Ordering::Release);
        drop(active);
        let streams = std::mem::take(&mut *lock(&capture.streams));
        for stream in streams.iter().filter_map(Weak::upgrade) {
            let mut own = lock(&stream.capture);
            if own
                .as_ref()
                .is_some_and(|c| Arc::ptr_eq(&c.capture, capture))
            {
                *own = None;
            }
        }
    }
}

/// `cuStreamBeginCapture`, into a graph of its own or the client's.
pub(crate) fn begin(
    m: &Machine,
    stream: &Arc<SoftStream>,
    mode: u32,
    into: Option<(Arc<SoftGraph>, Deps)>,
) -> CuResult {
    if mode > RELAXED {
        return Err(err::INVALID_VALUE);
    }
    if stream.kind == StreamKind::Legacy {
        return Err(err::CAPTURE_UNSUPPORTED);
    }
    let mut own = lock(&stream.capture);
    if own.is_some() {
        return Err(err::ILLEGAL_STATE);
    }
    let borrowed = into.is_some();
    let (graph, deps) = into.unwrap_or_else(|| (super::graph::create(m, false), Vec::new()));
    let capture = Arc::new(CaptureSession {
        id: m.fresh_id(),
        mode,
        thread: std::thread::current().id(),
        ctx_id: stream.ctx_id,
        origin: Arc::downgrade(stream),
        graph,
        borrowed,
        lost: AtomicBool::new(false),
        streams: Mutex::new(vec![Arc::downgrade(stream)]),
        ends: Mutex::default(),
    });
    *own = Some(Captured {
        capture: capture.clone(),
        deps,
        shown: Default::default(),
    });
    let mut active = lock(&m.captures.active);
    active.push(capture);
    m.captures.count.store(active.len(), Ordering::Release);
    Ok(())
}

/// `cuStreamEndCapture`: the graph, or why there is none. Either way the capture is over.
pub(crate) fn end(m: &Machine, stream: &Arc<SoftStream>) -> CuResult<Arc<SoftGraph>> {
    let (capture, deps) = {
        let own = lock(&stream.capture);
        let captured = own.as_ref().ok_or(err::ILLEGAL_STATE)?;
        (captured.capture.clone(), captured.deps.clone())
    };
    if !capture.origin.ptr_eq(&Arc::downgrade(stream)) {
        return Err(err::CAPTURE_UNMATCHED);
    }
    if capture.mode != RELAXED && capture.thread != std::thread::current().id() {
        return Err(err::CAPTURE_WRONG_THREAD);
    }
    let joined = all_joined(&capture, stream, &deps);
    m.captures.end(&capture);
    let why = if capture.is_lost() {
        err::CAPTURE_INVALIDATED
    } else if !joined {
        err::CAPTURE_UNJOINED
    } else {
        return Ok(capture.graph.clone());
    };
    if !capture.borrowed {
        capture.graph.destroy(m);
    }
    Err(why)
}

/// Whether the work of every other stream is behind the origin's last.
fn all_joined(capture: &CaptureSession, origin: &Arc<SoftStream>, deps: &Deps) -> bool {
    let others: Vec<Arc<SoftStream>> = lock(&capture.streams)
        .iter()
        .filter_map(Weak::upgrade)
        .collect();
    let mut ends: BTreeSet<NodeId> = lock(&capture.ends).iter().copied().collect();
    for other in others.iter().filter(|s| !Arc::ptr_eq(s, origin)) {
        if let Some(captured) = lock(&other.capture).as_ref() {
            ends.extend(captured.deps.iter().map(|d| d.0));
        }
    }
    let state = lock(&capture.graph.state);
    ends.into_iter()
        .all(|end| deps.iter().any(|d| state.reaches(end, d.0)))
}

/// Adds an action to the stream's capture. False if it is not capturing.
pub(crate) fn add(
    m: &Machine,
    ctx: &SoftContext,
    stream: &Arc<SoftStream>,
    action: &StreamAction,
) -> CuResult<bool> {
    if m.captures.count.load(Ordering::Acquire) == 0 {
        return Ok(false);
    }
    let mut own = lock(&stream.capture);
    let Some(captured) = own.as_mut() else {
        drop(own);
        implicit(ctx, stream)?;
        return Ok(false);
    };
    if captured.capture.is_lost() {
        return Err(err::CAPTURE_INVALIDATED);
    }
    let (id, _) = captured
        .capture
        .graph
        .add(m, ctx.handle, action.clone(), &captured.deps)?;
    captured.deps = vec![(id, CUgraphEdgeData::default())];
    Ok(true)
}

/// Work that must be done now cannot be captured.
pub(crate) fn gate(m: &Machine, ctx: &SoftContext, stream: &Arc<SoftStream>) -> CuResult {
    if m.captures.count.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    if let Some(captured) = lock(&stream.capture).as_ref() {
        captured.capture.lose();
        return Err(err::CAPTURE_UNSUPPORTED);
    }
    implicit(ctx, stream)
}

/// The default stream would have to wait for a blocking stream that is being captured.
fn implicit(ctx: &SoftContext, stream: &Arc<SoftStream>) -> CuResult {
    if stream.kind != StreamKind::Legacy {
        return Ok(());
    }
    let blocking = captures_of_blocking(ctx);
    for capture in &blocking {
        capture.lose();
    }
    if blocking.is_empty() {
        Ok(())
    } else {
        Err(err::CAPTURE_IMPLICIT)
    }
}

/// `cuEventRecord` on a capturing stream. False if it is not.
pub(crate) fn record(
    m: &Machine,
    ctx: &SoftContext,
    stream: &Arc<SoftStream>,
    event: &SoftEvent,
) -> CuResult<bool> {
    if m.captures.count.load(Ordering::Acquire) == 0 {
        return Ok(false);
    }
    let own = lock(&stream.capture);
    let Some(captured) = own.as_ref() else {
        drop(own);
        implicit(ctx, stream)?;
        return Ok(false);
    };
    if captured.capture.is_lost() {
        return Err(err::CAPTURE_INVALIDATED);
    }
    event.set_captured(CapturedEvent {
        capture: captured.capture.clone(),
        deps: captured.deps.clone(),
    });
    Ok(true)
}

/// `cuStreamWaitEvent` where a capture is concerned. False if none is.
pub(crate) fn wait(m: &Machine, stream: &Arc<SoftStream>, event: &SoftEvent) -> CuResult<bool> {
    let inside = event.captured();
    let mut own = lock(&stream.capture);
    match (own.as_mut(), inside) {
        (None, None) => Ok(false),
        (Some(captured), None) => {
            if captured.capture.is_lost() {
                return Err(err::CAPTURE_INVALIDATED);
            }
            if event.current().is_none() {
                // Never recorded: nothing to wait for.
                return Ok(true);
            }
            captured.capture.lose();
            Err(err::CAPTURE_ISOLATION)
        }
        (Some(captured), Some(inside)) => {
            if !Arc::ptr_eq(&captured.capture, &inside.capture) {
                captured.capture.lose();
                inside.capture.lose();
                return Err(err::CAPTURE_MERGE);
            }
            if captured.capture.is_lost() {
                return Err(err::CAPTURE_INVALIDATED);
            }
            for dep in inside.deps {
                if !captured.deps.iter().any(|d| d.0 == dep.0) {
                    captured.deps.push(dep);
                }
            }
            // What is behind another dependency need not be named.
            let state = lock(&captured.capture.graph.state);
            let all = captured.deps.clone();
            captured
                .deps
                .retain(|d| !all.iter().any(|o| o.0 != d.0 && state.reaches(d.0, o.0)));
            Ok(true)
        }
        (None, Some(inside)) => {
            let active = lock(&m.captures.active)
                .iter()
                .any(|c| Arc::ptr_eq(c, &inside.capture));
            if !active {
                return Err(err::CAPTURED_EVENT);
            }
            if inside.capture.is_lost() {
                return Err(err::CAPTURE_INVALIDATED);
            }
            if stream.kind == StreamKind::Legacy {
                inside.capture.lose();
                return Err(err::CAPTURE_IMPLICIT);
            }
            lock(&inside.capture.streams).push(Arc::downgrade(stream));
            *own = Some(Captured {
                capture: inside.capture,
                deps: inside.deps,
                shown: Default::default(),
            });
            Ok(true)
        }
    }
}

/// The host asks for an event that was recorded in a capture.
pub(crate) fn forbid_captured(event: &SoftEvent) -> CuResult {
    match event.captured() {
        Some(inside) => {
            inside.capture.lose();
            Err(err::CAPTURED_EVENT)
        }
        None => Ok(()),
    }
}

/// The state of a stream's capture, as a client gets it.
pub(crate) struct CaptureInfo {
    /// `CU_STREAM_CAPTURE_STATUS_*`.
    pub(crate) status: u32,
    pub(crate) id: u64,
    pub(crate) graph: usize,
    pub(crate) deps: *const CUgraphNode,
    pub(crate) edges: *const CUgraphEdgeData,
    pub(crate) count: usize,
}

/// The captures that streams take part in which wait for the default stream.
fn captures_of_blocking(ctx: &SoftContext) -> Vec<Arc<CaptureSession>> {
    lock(&ctx.streams)
        .iter()
        .filter(|s| s.kind != StreamKind::NonBlocking)
        .filter_map(|s| Some(lock(&s.capture).as_ref()?.capture.clone()))
        .collect()
}

/// Querying whether a stream is captured invalidates no capture. The query fails for the default
/// stream while a blocking one is captured.
pub(crate) fn may_ask(ctx: &SoftContext, stream: &SoftStream) -> CuResult {
    if stream.kind == StreamKind::Legacy && !captures_of_blocking(ctx).is_empty() {
        return Err(err::CAPTURE_IMPLICIT);
    }
    Ok(())
}

pub(crate) fn info(stream: &Arc<SoftStream>) -> CaptureInfo {
    let mut own = lock(&stream.capture);
    let none = CaptureInfo {
        status: 0,
        id: 0,
        graph: 0,
        deps: std::ptr::null(),
        edges: std::ptr::null(),
        count: 0,
    };
    let Some(captured) = own.as_mut() else {
        return none;
    };
    if captured.capture.is_lost() {
        return CaptureInfo { status: 2, ..none };
    }
    let graph = captured.capture.graph.clone();
    captured.shown = (
        captured
            .deps
            .iter()
            .map(|d| CUgraphNode(graph.handle_of(d.0) as *mut _))
            .collect(),
        captured.deps.iter().map(|d| d.1).collect(),
    );
    CaptureInfo {
        status: 1,
        id: captured.capture.id,
        graph: graph.handle,
        deps: captured.shown.0.as_ptr(),
        edges: captured.shown.1.as_ptr(),
        count: captured.deps.len(),
    }
}

/// `cuStreamUpdateCaptureDependencies`.
pub(crate) fn update_deps(
    m: &Machine,
    stream: &Arc<SoftStream>,
    handles: &[usize],
    replace: bool,
) -> CuResult {
    let mut own = lock(&stream.capture);
    let captured = own.as_mut().ok_or(err::ILLEGAL_STATE)?;
    if captured.capture.is_lost() {
        return Err(err::CAPTURE_INVALIDATED);
    }
    let ids = captured.capture.graph.ids(m, handles)?;
    if replace {
        captured.deps.clear();
    }
    for id in ids {
        if !captured.deps.iter().any(|d| d.0 == id) {
            captured.deps.push((id, CUgraphEdgeData::default()));
        }
    }
    Ok(())
}

/// A capturing stream's graph and place in it.
pub(crate) fn place(stream: &Arc<SoftStream>) -> CuResult<Option<(Arc<SoftGraph>, Deps)>> {
    match lock(&stream.capture).as_ref() {
        None => Ok(None),
        Some(captured) if captured.capture.is_lost() => Err(err::CAPTURE_INVALIDATED),
        Some(captured) => Ok(Some((
            captured.capture.graph.clone(),
            captured.deps.clone(),
        ))),
    }
}
