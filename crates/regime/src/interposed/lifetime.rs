//! Creation and destruction of contexts and streams, captures, and synchronisation.

use core::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fercuda_cuda_sys::types::{
    CUcontext, CUctxCreateParams, CUdevResourceDesc, CUdevice, CUexecAffinityParam, CUgraph,
    CUgraphEdgeData, CUgraphNode, CUgreenCtx, CUresult, CUstream, CUstreamCaptureMode,
};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_governor::{CaptureKey, TeardownResult};

use crate::print_diagnostic;
use crate::process::{
    answer, call_driver, catch_panic, govern_call, invalidate_current_context, with_thread_context,
};

/// Creates a context with the driver and registers it.
///
/// # Safety
/// `make` succeeds only if it has written `into`, or if `into` is null.
unsafe fn create_context(
    into: *mut CUcontext,
    make: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    let result = govern_call(make, |governor, make| {
        governor.with_lifecycle_lock(|| {
            let result = make();
            if result == CUresult::CUDA_SUCCESS && !into.is_null() {
                // SAFETY: the driver has just written it.
                governor.record_context(unsafe { *into });
            }
            result
        })
    });
    // Also if the governed part failed.
    invalidate_current_context();
    result
}

pub(super) unsafe extern "C" fn ctx_create(
    into: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the program's own arguments, of which the driver writes `into`.
    unsafe { create_context(into, |driver| driver.cuCtxCreate(into, flags, device)) }
}

pub(super) unsafe extern "C" fn ctx_create_v2(
    into: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the program's own arguments, of which the driver writes `into`.
    unsafe { create_context(into, |driver| driver.cuCtxCreate_v2(into, flags, device)) }
}

pub(super) unsafe extern "C" fn ctx_create_v3(
    into: *mut CUcontext,
    affinities: *mut CUexecAffinityParam,
    count: c_int,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the program's own arguments, of which the driver writes `into`.
    unsafe {
        create_context(into, |driver| {
            driver.cuCtxCreate_v3(into, affinities, count, flags, device)
        })
    }
}

pub(super) unsafe extern "C" fn ctx_create_v4(
    into: *mut CUcontext,
    parameters: *mut CUctxCreateParams,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the program's own arguments, of which the driver writes `into`.
    unsafe {
        create_context(into, |driver| {
            driver.cuCtxCreate_v4(into, parameters, flags, device)
        })
    }
}

pub(super) unsafe extern "C" fn primary_retain(into: *mut CUcontext, device: CUdevice) -> CUresult {
    // SAFETY: the program's own arguments.
    let retain = |driver: &Driver| unsafe { driver.cuDevicePrimaryCtxRetain(into, device) };
    govern_call(retain, |governor, retain| {
        governor.with_lifecycle_lock(|| {
            let result = retain();
            if result == CUresult::CUDA_SUCCESS && !into.is_null() {
                // SAFETY: the driver has just written it.
                governor.record_primary(device, unsafe { *into });
            }
            result
        })
    })
}

/// Calls after which a thread may have no current context, or a destroyed one: a primary
/// context may be made current after its reset. After all other calls the thread still has
/// the only context, or there are several.
macro_rules! set_current {
    ($interposed:ident, $function:ident($($name:ident: $type:ty)?)) => {
        pub(super) unsafe extern "C" fn $interposed($($name: $type)?) -> CUresult {
            // SAFETY: the program's own argument.
            let result = call_driver(|driver| unsafe { driver.$function($($name)?) });
            invalidate_current_context();
            result
        }
    };
}

set_current!(ctx_set_current, cuCtxSetCurrent(context: CUcontext));
set_current!(ctx_push_current, cuCtxPushCurrent_v2(context: CUcontext));
set_current!(ctx_push_current_v1, cuCtxPushCurrent(context: CUcontext));
set_current!(ctx_pop_current, cuCtxPopCurrent_v2(into: *mut CUcontext));
set_current!(ctx_pop_current_v1, cuCtxPopCurrent(into: *mut CUcontext));

/// The driver's result of a destruction. Reports, once per process, that memory ended with a
/// context, which with the driver alone would have outlived it.
fn report_destruction(destroyed: TeardownResult) -> CUresult {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    let bytes = destroyed.ordered_bytes;
    if bytes > 0 && !REPORTED.swap(true, Relaxed) {
        print_diagnostic(&format!(
            "{bytes} bytes of stream-ordered memory were freed with the context that owned their slabs\n\
             try: FERCUDA_BACKING=vmm, with which such memory outlives its context, as with the driver alone"
        ));
    }
    destroyed.result
}

/// Destroys a context with the driver.
fn destroy_context(
    context: CUcontext,
    destroy: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    govern_call(destroy, |governor, destroy| {
        report_destruction(governor.while_destroying(|| {
            let result = destroy();
            let gone = if result == CUresult::CUDA_SUCCESS {
                vec![context]
            } else {
                Vec::new()
            };
            (gone, result)
        }))
    })
}

pub(super) unsafe extern "C" fn ctx_destroy(context: CUcontext) -> CUresult {
    // SAFETY: the program's own argument.
    destroy_context(context, |driver| unsafe { driver.cuCtxDestroy_v2(context) })
}

pub(super) unsafe extern "C" fn ctx_destroy_v1(context: CUcontext) -> CUresult {
    // SAFETY: the program's own argument.
    destroy_context(context, |driver| unsafe { driver.cuCtxDestroy(context) })
}

/// Decrements a context's use count with the driver, which destroys it at zero.
pub(super) unsafe extern "C" fn ctx_detach(context: CUcontext) -> CUresult {
    // SAFETY: the program's own argument.
    let detach = |driver: &Driver| unsafe { driver.cuCtxDetach(context) };
    govern_call(detach, |governor, detach| {
        report_destruction(governor.while_destroying(|| {
            let result = detach();
            let mut version = 0;
            let driver = governor.driver();
            // SAFETY: `version` outlives the call; the driver checks whether a handle is a
            // context, and no other thread creates one meanwhile.
            let queried = answer(unsafe { driver.cuCtxGetApiVersion(context, &mut version) });
            let is_gone = result == CUresult::CUDA_SUCCESS && queried != CUresult::CUDA_SUCCESS;
            (if is_gone { vec![context] } else { Vec::new() }, result)
        }))
    })
}

/// Releases or resets a device's primary context with the driver, which may destroy it.
fn end_primary(
    device: CUdevice,
    end: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    govern_call(end, |governor, end| {
        governor.with_lifecycle_lock(|| {
            let Some(context) = governor.primary(device) else {
                return end();
            };
            report_destruction(governor.while_destroying(|| {
                let result = end();
                let is_gone = !governor.is_primary_active(device);
                (if is_gone { vec![context] } else { Vec::new() }, result)
            }))
        })
    })
}

pub(super) unsafe extern "C" fn primary_release(device: CUdevice) -> CUresult {
    // SAFETY: the program's own argument.
    end_primary(device, |driver| unsafe {
        driver.cuDevicePrimaryCtxRelease_v2(device)
    })
}

pub(super) unsafe extern "C" fn primary_release_v1(device: CUdevice) -> CUresult {
    // SAFETY: the program's own argument.
    end_primary(device, |driver| unsafe {
        driver.cuDevicePrimaryCtxRelease(device)
    })
}

pub(super) unsafe extern "C" fn primary_reset(device: CUdevice) -> CUresult {
    // SAFETY: the program's own argument.
    end_primary(device, |driver| unsafe {
        driver.cuDevicePrimaryCtxReset_v2(device)
    })
}

pub(super) unsafe extern "C" fn primary_reset_v1(device: CUdevice) -> CUresult {
    // SAFETY: the program's own argument.
    end_primary(device, |driver| unsafe {
        driver.cuDevicePrimaryCtxReset(device)
    })
}

/// The context of a green context.
fn context_of_green(green: CUgreenCtx) -> Option<CUcontext> {
    let mut context = CUcontext::NULL;
    // SAFETY: `context` outlives the call; the driver refuses a handle that is no green context.
    let queried = call_driver(|driver| unsafe { driver.cuCtxFromGreenCtx(&mut context, green) });
    (queried == CUresult::CUDA_SUCCESS).then_some(context)
}

pub(super) unsafe extern "C" fn green_create(
    into: *mut CUgreenCtx,
    resources: CUdevResourceDesc,
    device: CUdevice,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the program's own arguments.
    let make = |driver: &Driver| unsafe { driver.cuGreenCtxCreate(into, resources, device, flags) };
    govern_call(make, |governor, make| {
        governor.with_lifecycle_lock(|| {
            let result = make();
            if result == CUresult::CUDA_SUCCESS
                && !into.is_null()
                // SAFETY: the driver has just written it.
                && let Some(context) = context_of_green(unsafe { *into })
            {
                governor.record_green(context);
            }
            result
        })
    })
}

/// Destroys a green context with the driver, after its work has completed: its events cannot
/// be queried afterwards.
pub(super) unsafe extern "C" fn green_destroy(green: CUgreenCtx) -> CUresult {
    // SAFETY: the program's own argument.
    let destroy = |driver: &Driver| unsafe { driver.cuGreenCtxDestroy(green) };
    govern_call(destroy, |governor, destroy| {
        let known = context_of_green(green).and_then(|it| Some((it, governor.context(it)?.1)));
        let Some((context, device)) = known else {
            return destroy();
        };
        governor.finish(context);
        let green = (context, device as CUdevice);
        report_destruction(governor.while_destroying_green(green, || {
            let result = destroy();
            (result == CUresult::CUDA_SUCCESS, result)
        }))
    })
}

/// Unregisters a stream, then destroys it with the driver.
fn destroy_stream(
    stream: CUstream,
    destroy: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    govern_call(destroy, |governor, destroy| {
        governor.remove_stream(stream);
        destroy()
    })
}

pub(super) unsafe extern "C" fn stream_destroy(stream: CUstream) -> CUresult {
    // SAFETY: the program's own argument.
    destroy_stream(stream, |driver| unsafe {
        driver.cuStreamDestroy_v2(stream)
    })
}

pub(super) unsafe extern "C" fn stream_destroy_v1(stream: CUstream) -> CUresult {
    // SAFETY: the program's own argument.
    destroy_stream(stream, |driver| unsafe { driver.cuStreamDestroy(stream) })
}

/// Begins a capture with the driver, while no call runs that a capture forbids.
fn begin_capture(
    stream: CUstream,
    per_thread: bool,
    mode: CUstreamCaptureMode,
    begin: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    govern_call(begin, |governor, begin| {
        let Some(known) = with_thread_context(|seat| seat.stream(stream, per_thread)) else {
            return begin();
        };
        let capturing = CaptureKey::new(stream, per_thread);
        governor.begin_capture(capturing, (known.context, mode), begin)
    })
}

/// The mode of captures begun by the first version of the function, which takes none.
const FIRST_MODE: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;

macro_rules! begin {
    ($interposed:ident, $per_thread:literal, $mode:expr, $real:ident ($($arg:ident: $ty:ty),*)) => {
        pub(super) unsafe extern "C" fn $interposed(stream: CUstream, $($arg: $ty),*) -> CUresult {
            // SAFETY: the program's own arguments.
            begin_capture(stream, $per_thread, $mode, |driver| unsafe {
                driver.$real(stream, $($arg),*)
            })
        }
    };
}

begin!(begin_capture_v1, false, FIRST_MODE, cuStreamBeginCapture());
begin!(
    begin_capture_v1_per_thread,
    true,
    FIRST_MODE,
    cuStreamBeginCapture_ptsz()
);
begin!(begin_capture_v2, false, mode, cuStreamBeginCapture_v2(mode: CUstreamCaptureMode));
begin!(
    begin_capture_v2_per_thread,
    true,
    mode,
    cuStreamBeginCapture_v2_ptsz(mode: CUstreamCaptureMode)
);
begin!(begin_capture_to_graph, false, mode, cuStreamBeginCaptureToGraph(
    graph: CUgraph, dependencies: *const CUgraphNode, edges: *const CUgraphEdgeData,
    count: usize, mode: CUstreamCaptureMode
));
begin!(begin_capture_to_graph_per_thread, true, mode, cuStreamBeginCaptureToGraph_ptsz(
    graph: CUgraph, dependencies: *const CUgraphNode, edges: *const CUgraphEdgeData,
    count: usize, mode: CUstreamCaptureMode
));

macro_rules! end {
    ($interposed:ident, $per_thread:literal, $real:ident) => {
        pub(super) unsafe extern "C" fn $interposed(
            stream: CUstream,
            graph: *mut CUgraph,
        ) -> CUresult {
            // SAFETY: the program's own arguments.
            let end = |driver: &Driver| unsafe { driver.$real(stream, graph) };
            govern_call(end, |governor, end| {
                governor.end_capture(CaptureKey::new(stream, $per_thread), end)
            })
        }
    };
}

end!(end_capture, false, cuStreamEndCapture);
end!(end_capture_per_thread, true, cuStreamEndCapture_ptsz);

/// Waits with the driver. On success the memory freed before becomes reusable; on failure the
/// context is marked as failed, and later calls return its error.
fn synchronize(
    place: Option<(CUstream, bool)>,
    wait: impl FnOnce(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    let waiting = with_thread_context(|seat| {
        let stream = match place {
            Some((stream, per_thread)) => Some(seat.stream(stream, per_thread)?.id),
            None => None,
        };
        Some((seat.governor(), seat.governor().begin_wait(stream)))
    });
    let result = call_driver(wait);
    catch_panic(|| {
        let (governor, waiting) = waiting?;
        if result == CUresult::CUDA_SUCCESS {
            governor.end_wait(&waiting);
        } else {
            governor.failed(result);
        }
        Some(())
    });
    result
}

macro_rules! wait {
    ($interposed:ident, $place:expr, $real:ident ($($arg:ident: $ty:ty),*)) => {
        pub(super) unsafe extern "C" fn $interposed($($arg: $ty),*) -> CUresult {
            // SAFETY: the program's own arguments.
            synchronize($place, |driver| unsafe { driver.$real($($arg),*) })
        }
    };
}

wait!(ctx_synchronize, None, cuCtxSynchronize());
wait!(ctx_synchronize_v2, None, cuCtxSynchronize_v2(context: CUcontext));
wait!(stream_synchronize, Some((stream, false)), cuStreamSynchronize(stream: CUstream));
wait!(
    stream_synchronize_per_thread,
    Some((stream, true)),
    cuStreamSynchronize_ptsz(stream: CUstream)
);
