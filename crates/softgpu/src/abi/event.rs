//! Events.

use std::ffi::c_uint;
use std::sync::Arc;

use fercuda_cuda_sys::types::*;

use super::{per_thread, put};
use crate::device::context::current;
use crate::device::event;
use crate::device::launch::enqueue;
use crate::device::objects::{SoftEvent, StreamAction};
use crate::device::stream::of_call;
use crate::device::{CuResult, Machine, capture, err, machine};

fn find(m: &Machine, handle: CUevent) -> CuResult<Arc<SoftEvent>> {
    m.events.get(handle.0 as usize).ok_or(err::INVALID_HANDLE)
}

/// The event, once its context is found sound and nothing captured forbids the question.
fn asked(handle: CUevent) -> CuResult<(&'static Machine, Arc<SoftEvent>)> {
    let m = machine()?;
    let event = find(m, handle)?;
    let ctx = m
        .contexts
        .get(event.ctx_handle)
        .ok_or(err::CONTEXT_IS_DESTROYED)?;
    ctx.health.check()?;
    capture::forbid_captured(&event)?;
    m.captures.forbid_unsafe_call()?;
    Ok((m, event))
}

fn record(event: CUevent, stream: CUstream, external: bool) -> CuResult {
    let (m, ctx, stream) = of_call(stream.0 as usize, per_thread())?;
    let event = find(m, event)?;
    if external {
        // Outside a capture an external record is an ordinary one.
        if capture::place(&stream)?.is_some() {
            return enqueue(
                m,
                &ctx,
                &stream,
                StreamAction::Record(event),
                "cuEventRecordWithFlags",
            );
        }
    } else if capture::record(m, &ctx, &stream, &event)? {
        return Ok(());
    }
    capture::gate(m, &ctx, &stream)?;
    event.record(m, &ctx, &stream)
}

driver_fns! {
    fn cuEventCreate[](event: *mut CUevent, flags: c_uint) {
        let (m, ctx) = current()?;
        if event.is_null() {
            return Err(err::INVALID_VALUE);
        }
        put(event, CUevent(event::create(m, &ctx, flags)?.handle as *mut _))
    }

    fn cuEventDestroy[](event: CUevent) {
        event::destroy(machine()?, event.0 as usize)
    }

    fn cuEventDestroy_v2[](event: CUevent) {
        event::destroy(machine()?, event.0 as usize)
    }

    fn cuEventRecord[cuEventRecord_ptsz](event: CUevent, stream: CUstream) {
        record(event, stream, false)
    }

    fn cuEventRecordWithFlags[cuEventRecordWithFlags_ptsz](event: CUevent, stream: CUstream, flags: c_uint) {
        if flags > 1 {
            return Err(err::INVALID_VALUE);
        }
        record(event, stream, flags == 1)
    }

    fn cuEventQuery[](event: CUevent) {
        let (m, event) = asked(event)?;
        event.query(m)
    }

    fn cuEventSynchronize[](event: CUevent) {
        let (m, found) = asked(event)?;
        found.synchronize(m);
        // The work may have failed while we waited.
        m.contexts.get(found.ctx_handle).ok_or(err::CONTEXT_IS_DESTROYED)?.health.check()
    }

    fn cuEventElapsedTime[](milliseconds: *mut f32, start: CUevent, end: CUevent) {
        let m = machine()?;
        put(milliseconds, find(m, start)?.elapsed_ms(&*find(m, end)?)?)
    }

    fn cuEventElapsedTime_v2[](milliseconds: *mut f32, start: CUevent, end: CUevent) {
        let m = machine()?;
        put(milliseconds, find(m, start)?.elapsed_ms(&*find(m, end)?)?)
    }
}
