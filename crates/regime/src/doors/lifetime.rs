//! What comes and goes with memory and streams: contexts, streams, captures.

use core::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fercuda_cuda_sys::types::{
    CUcontext, CUctxCreateParams, CUdevResourceDesc, CUdevice, CUexecAffinityParam, CUgraph,
    CUgraphEdgeData, CUgraphNode, CUgreenCtx, CUresult, CUstream, CUstreamCaptureMode,
};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_governor::{CaptureKey, TeardownResult};

use crate::process::{answer, around, ask, guarded, seated, turned};
use crate::say;

/// Lets the driver make a context and notes it.
///
/// # Safety
/// `make` succeeds only if it has written `into`, or that is null.
unsafe fn made(
    into: *mut CUcontext,
    make: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    let result = around(make, |governor, make| {
        governor.with_lifecycle_lock(|| {
            let result = make();
            if result == CUresult::CUDA_SUCCESS && !into.is_null() {
                // SAFETY: the driver has just written it.
                governor.record_context(unsafe { *into });
            }
            result
        })
    });
    // Whatever has become of our part.
    turned();
    result
}

pub(super) unsafe extern "C" fn ctx_create(
    into: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the program's own arguments, of which the driver writes `into`.
    unsafe { made(into, |driver| driver.cuCtxCreate(into, flags, device)) }
}

pub(super) unsafe extern "C" fn ctx_create_v2(
    into: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the program's own arguments, of which the driver writes `into`.
    unsafe { made(into, |driver| driver.cuCtxCreate_v2(into, flags, device)) }
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
        made(into, |driver| {
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
        made(into, |driver| {
            driver.cuCtxCreate_v4(into, parameters, flags, device)
        })
    }
}

pub(super) unsafe extern "C" fn primary_retain(into: *mut CUcontext, device: CUdevice) -> CUresult {
    // SAFETY: the program's own arguments.
    let retain = |driver: &Driver| unsafe { driver.cuDevicePrimaryCtxRetain(into, device) };
    around(retain, |governor, retain| {
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

/// Calls after which a thread may have no current context any more, or one that has
/// ended: a primary context may be made current after its reset. By others it has the
/// only one still, or there are several.
macro_rules! turns {
    ($door:ident, $function:ident($($name:ident: $type:ty)?)) => {
        pub(super) unsafe extern "C" fn $door($($name: $type)?) -> CUresult {
            // SAFETY: the program's own argument.
            let result = ask(|driver| unsafe { driver.$function($($name)?) });
            turned();
            result
        }
    };
}

turns!(ctx_set_current, cuCtxSetCurrent(context: CUcontext));
turns!(ctx_push_current, cuCtxPushCurrent_v2(context: CUcontext));
turns!(ctx_push_current_v1, cuCtxPushCurrent(context: CUcontext));
turns!(ctx_pop_current, cuCtxPopCurrent_v2(into: *mut CUcontext));
turns!(ctx_pop_current_v1, cuCtxPopCurrent(into: *mut CUcontext));

/// What the program hears of a destruction; and, the first time, that it took
/// along what a driver's would have left.
fn told(destroyed: TeardownResult) -> CUresult {
    static SAID: AtomicBool = AtomicBool::new(false);
    let bytes = destroyed.ordered_bytes;
    if bytes > 0 && !SAID.swap(true, Relaxed) {
        say(&format!(
            "{bytes} bytes of memory in streams' order ended with a context that owned their slabs\n\
             try: FERCUDA_BACKING=vmm, where such memory outlives its context as with the driver alone"
        ));
    }
    destroyed.result
}

/// Lets the driver destroy a context.
fn destroyed(
    context: CUcontext,
    destroy: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    around(destroy, |governor, destroy| {
        told(governor.while_destroying(|| {
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
    destroyed(context, |driver| unsafe { driver.cuCtxDestroy_v2(context) })
}

pub(super) unsafe extern "C" fn ctx_destroy_v1(context: CUcontext) -> CUresult {
    // SAFETY: the program's own argument.
    destroyed(context, |driver| unsafe { driver.cuCtxDestroy(context) })
}

/// Lets the driver count one user of a context less, and destroy it after the
/// last.
pub(super) unsafe extern "C" fn ctx_detach(context: CUcontext) -> CUresult {
    // SAFETY: the program's own argument.
    let detach = |driver: &Driver| unsafe { driver.cuCtxDetach(context) };
    around(detach, |governor, detach| {
        told(governor.while_destroying(|| {
            let result = detach();
            let mut version = 0;
            let driver = governor.driver();
            // SAFETY: `version` outlives the call; the driver says which handles
            // are contexts, and no other thread makes one now.
            let asked = answer(unsafe { driver.cuCtxGetApiVersion(context, &mut version) });
            let is_gone = result == CUresult::CUDA_SUCCESS && asked != CUresult::CUDA_SUCCESS;
            (if is_gone { vec![context] } else { Vec::new() }, result)
        }))
    })
}

/// Lets the driver give up a device's primary context, which may end it.
fn primary(
    device: CUdevice,
    end: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    around(end, |governor, end| {
        governor.with_lifecycle_lock(|| {
            let Some(context) = governor.primary(device) else {
                return end();
            };
            told(governor.while_destroying(|| {
                let result = end();
                let is_gone = !governor.is_primary_active(device);
                (if is_gone { vec![context] } else { Vec::new() }, result)
            }))
        })
    })
}

pub(super) unsafe extern "C" fn primary_release(device: CUdevice) -> CUresult {
    // SAFETY: the program's own argument.
    primary(device, |driver| unsafe {
        driver.cuDevicePrimaryCtxRelease_v2(device)
    })
}

pub(super) unsafe extern "C" fn primary_release_v1(device: CUdevice) -> CUresult {
    // SAFETY: the program's own argument.
    primary(device, |driver| unsafe {
        driver.cuDevicePrimaryCtxRelease(device)
    })
}

pub(super) unsafe extern "C" fn primary_reset(device: CUdevice) -> CUresult {
    // SAFETY: the program's own argument.
    primary(device, |driver| unsafe {
        driver.cuDevicePrimaryCtxReset_v2(device)
    })
}

pub(super) unsafe extern "C" fn primary_reset_v1(device: CUdevice) -> CUresult {
    // SAFETY: the program's own argument.
    primary(device, |driver| unsafe {
        driver.cuDevicePrimaryCtxReset(device)
    })
}

/// The context that a green one is converted to.
fn converted(green: CUgreenCtx) -> Option<CUcontext> {
    let mut context = CUcontext::NULL;
    // SAFETY: `context` outlives the call; the driver refuses what is no green context.
    let asked = ask(|driver| unsafe { driver.cuCtxFromGreenCtx(&mut context, green) });
    (asked == CUresult::CUDA_SUCCESS).then_some(context)
}

pub(super) unsafe extern "C" fn green_create(
    into: *mut CUgreenCtx,
    resources: CUdevResourceDesc,
    device: CUdevice,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the program's own arguments.
    let make = |driver: &Driver| unsafe { driver.cuGreenCtxCreate(into, resources, device, flags) };
    around(make, |governor, make| {
        governor.with_lifecycle_lock(|| {
            let result = make();
            if result == CUresult::CUDA_SUCCESS
                && !into.is_null()
                // SAFETY: the driver has just written it.
                && let Some(context) = converted(unsafe { *into })
            {
                governor.record_green(context);
            }
            result
        })
    })
}

/// Lets the driver destroy a green context, when its work is over: nothing can
/// be asked of it afterwards.
pub(super) unsafe extern "C" fn green_destroy(green: CUgreenCtx) -> CUresult {
    // SAFETY: the program's own argument.
    let destroy = |driver: &Driver| unsafe { driver.cuGreenCtxDestroy(green) };
    around(destroy, |governor, destroy| {
        let known = converted(green).and_then(|it| Some((it, governor.context(it)?.1)));
        let Some((context, device)) = known else {
            return destroy();
        };
        governor.finish(context);
        let green = (context, device as CUdevice);
        told(governor.while_destroying_green(green, || {
            let result = destroy();
            (result == CUresult::CUDA_SUCCESS, result)
        }))
    })
}

/// Takes a stream out before the driver destroys it.
fn stream_ends(
    stream: CUstream,
    destroy: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    around(destroy, |governor, destroy| {
        governor.remove_stream(stream);
        destroy()
    })
}

pub(super) unsafe extern "C" fn stream_destroy(stream: CUstream) -> CUresult {
    // SAFETY: the program's own argument.
    stream_ends(stream, |driver| unsafe {
        driver.cuStreamDestroy_v2(stream)
    })
}

pub(super) unsafe extern "C" fn stream_destroy_v1(stream: CUstream) -> CUresult {
    // SAFETY: the program's own argument.
    stream_ends(stream, |driver| unsafe { driver.cuStreamDestroy(stream) })
}

/// Lets the driver begin a capture, with all that a capture forbids at rest.
fn begun(
    stream: CUstream,
    per_thread: bool,
    mode: CUstreamCaptureMode,
    begin: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    around(begin, |governor, begin| {
        let Some(known) = seated(|seat| seat.stream(stream, per_thread)) else {
            return begin();
        };
        let capturing = CaptureKey::new(stream, per_thread);
        governor.begin_capture(capturing, (known.context, mode), begin)
    })
}

/// The mode of captures begun by the function that takes none.
const FIRST_MODE: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;

macro_rules! begin {
    ($door:ident, $per_thread:literal, $mode:expr, $real:ident ($($arg:ident: $ty:ty),*)) => {
        pub(super) unsafe extern "C" fn $door(stream: CUstream, $($arg: $ty),*) -> CUresult {
            // SAFETY: the program's own arguments.
            begun(stream, $per_thread, $mode, |driver| unsafe {
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
    ($door:ident, $per_thread:literal, $real:ident) => {
        pub(super) unsafe extern "C" fn $door(stream: CUstream, graph: *mut CUgraph) -> CUresult {
            // SAFETY: the program's own arguments.
            let end = |driver: &Driver| unsafe { driver.$real(stream, graph) };
            around(end, |governor, end| {
                governor.end_capture(CaptureKey::new(stream, $per_thread), end)
            })
        }
    };
}

end!(end_capture, false, cuStreamEndCapture);
end!(end_capture_per_thread, true, cuStreamEndCapture_ptsz);

/// Lets the driver wait. What was freed before is ready then; or the context
/// has failed, and says so from now on.
fn waited(
    place: Option<(CUstream, bool)>,
    wait: impl FnOnce(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    let begun = seated(|seat| {
        let stream = match place {
            Some((stream, per_thread)) => Some(seat.stream(stream, per_thread)?.id),
            None => None,
        };
        Some((seat.governor(), seat.governor().begin_wait(stream)))
    });
    let result = ask(wait);
    guarded(|| {
        let (governor, begun) = begun?;
        if result == CUresult::CUDA_SUCCESS {
            governor.end_wait(&begun);
        } else {
            governor.failed(result);
        }
        Some(())
    });
    result
}

macro_rules! wait {
    ($door:ident, $place:expr, $real:ident ($($arg:ident: $ty:ty),*)) => {
        pub(super) unsafe extern "C" fn $door($($arg: $ty),*) -> CUresult {
            // SAFETY: the program's own arguments.
            waited($place, |driver| unsafe { driver.$real($($arg),*) })
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
