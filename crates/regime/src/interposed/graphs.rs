//! Executable graphs, the allocation nodes of which take memory when they are launched.
//!
//! A graph is charged to the tenant that instantiates it. A launch that would pass a limit is
//! refused as by a device without memory.

use core::ffi::{c_char, c_ulonglong};

use fercuda_cuda_sys::types::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUdevice, CUgraph, CUgraphExec, CUgraphNode, CUresult, CUstream,
};
use fercuda_cuda_sys::{Driver, Missing};

use super::entry_stub;
use super::linear::tenant_of;
use crate::process::{call_driver, catch_panic, govern_call, governor};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`.
const UPLOAD: u64 = 2;

entry_stub!(instantiate_entry => instantiate);
entry_stub!(instantiate_v2_entry => instantiate_v2);
entry_stub!(instantiate_with_flags_entry => instantiate_with_flags);
entry_stub!(instantiate_with_params_entry => instantiate_with_params);
entry_stub!(instantiate_with_params_per_thread_entry => instantiate_with_params_per_thread);

/// Makes an executable graph with the driver and records it.
///
/// # Safety
/// As for [`crate::caller::tenant`]; `make` succeeds only if it has written `into`.
unsafe fn make_executable(
    into: *mut CUgraphExec,
    graph: CUgraph,
    frame: *const usize,
    make: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    let result = call_driver(make);
    if result == CUresult::CUDA_SUCCESS {
        catch_panic(|| {
            // SAFETY: passed on; the driver has just written the handle.
            let (tenant, exec) = unsafe { (tenant_of(frame), *into) };
            governor()?.record_graph(exec, graph, tenant);
            Some(())
        });
    }
    result
}

macro_rules! instantiate {
    ($interposed:ident, $real:ident) => {
        unsafe extern "C" fn $interposed(
            into: *mut CUgraphExec,
            graph: CUgraph,
            node: *mut CUgraphNode,
            log: *mut c_char,
            bytes: usize,
            frame: *const usize,
        ) -> CUresult {
            // SAFETY: the entry gave the frame of the call that is under way; the rest is the
            // program's.
            unsafe {
                make_executable(into, graph, frame, |driver| {
                    driver.$real(into, graph, node, log, bytes)
                })
            }
        }
    };
}

instantiate!(instantiate, cuGraphInstantiate);
instantiate!(instantiate_v2, cuGraphInstantiate_v2);

unsafe extern "C" fn instantiate_with_flags(
    into: *mut CUgraphExec,
    graph: CUgraph,
    flags: c_ulonglong,
    _: usize,
    _: usize,
    frame: *const usize,
) -> CUresult {
    // SAFETY: as above.
    unsafe {
        make_executable(into, graph, frame, |driver| {
            driver.cuGraphInstantiateWithFlags(into, graph, flags)
        })
    }
}

/// Instantiates with parameters, by which the graph may be uploaded at once.
///
/// # Safety
/// As for [`make_executable`]; `parameters` is null or may be read.
unsafe fn make_with_params(
    into: *mut CUgraphExec,
    graph: CUgraph,
    parameters: *const CUDA_GRAPH_INSTANTIATE_PARAMS,
    frame: *const usize,
    make: impl Fn(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    // SAFETY: passed on.
    let flags = unsafe { parameters.as_ref() }.map_or(0, |it| it.flags);
    if into.is_null() || flags & UPLOAD == 0 {
        // SAFETY: passed on.
        return unsafe { make_executable(into, graph, frame, make) };
    }
    // SAFETY: passed on.
    let tenant = unsafe { tenant_of(frame) };
    govern_call(make, |governor, make| {
        governor.make_uploaded_graph(graph, tenant, || {
            let result = make();
            let is_made = result == CUresult::CUDA_SUCCESS;
            let exec = if is_made {
                // SAFETY: not null; the driver has just written it.
                unsafe { *into }
            } else {
                CUgraphExec::NULL
            };
            (result, exec)
        })
    })
}

macro_rules! instantiate_with_params {
    ($interposed:ident, $real:ident) => {
        unsafe extern "C" fn $interposed(
            into: *mut CUgraphExec,
            graph: CUgraph,
            parameters: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
            _: usize,
            _: usize,
            frame: *const usize,
        ) -> CUresult {
            // SAFETY: as above.
            unsafe {
                make_with_params(into, graph, parameters, frame, |driver| {
                    driver.$real(into, graph, parameters)
                })
            }
        }
    };
}

instantiate_with_params!(instantiate_with_params, cuGraphInstantiateWithParams);
instantiate_with_params!(
    instantiate_with_params_per_thread,
    cuGraphInstantiateWithParams_ptsz
);

macro_rules! launch {
    ($interposed:ident, $per_thread:literal, $real:ident) => {
        pub(super) unsafe extern "C" fn $interposed(
            exec: CUgraphExec,
            stream: CUstream,
        ) -> CUresult {
            // SAFETY: the program's own arguments.
            let launch = |driver: &Driver| unsafe { driver.$real(exec, stream) };
            govern_call(launch, |governor, launch| {
                governor.launch_graph(exec, (stream, $per_thread), launch)
            })
        }
    };
}

launch!(launch, false, cuGraphLaunch);
launch!(launch_per_thread, true, cuGraphLaunch_ptsz);
launch!(upload, false, cuGraphUpload);
launch!(upload_per_thread, true, cuGraphUpload_ptsz);

pub(super) unsafe extern "C" fn destroy(exec: CUgraphExec) -> CUresult {
    // SAFETY: the program's own argument.
    let destroy = |driver: &Driver| unsafe { driver.cuGraphExecDestroy(exec) };
    govern_call(destroy, |governor, destroy| {
        governor.destroy_graph(exec, destroy)
    })
}

pub(super) unsafe extern "C" fn trim(device: CUdevice) -> CUresult {
    // SAFETY: the program's own argument.
    let trim = |driver: &Driver| unsafe { driver.cuDeviceGraphMemTrim(device) };
    govern_call(trim, |governor, trim| governor.trim_graphs_by(device, trim))
}
