//! Interposed driver functions.
//!
//! An interposed function handles a call where it can, and else passes it to the driver
//! with its arguments unchanged, so wrong arguments get the driver's own errors. A
//! function that charges a tenant is entered through a stub that passes the address of
//! the caller's return address (see [`entry_stub!`]).

use core::ffi::c_void;

use fercuda_cuda_sys::Symbol;
use fercuda_cuda_sys::signatures;

mod code;
mod graphs;
mod lifetime;
mod linear;
mod nonlinear;
mod ordered;
mod peers;
mod physical;
mod proc_address;
mod queries;
mod sharing;

/// Defines the entry stub of an interposed function that needs to know its caller: the
/// stub passes the address of the return address in the sixth argument register. Only
/// for functions with at most five arguments in registers.
macro_rules! entry_stub {
    ($entry:ident => $function:ident) => {
        #[unsafe(naked)]
        pub(super) unsafe extern "C" fn $entry() {
            core::arch::naked_asm!("mov r9, rsp", "jmp {function}", function = sym $function)
        }
    };
}
use entry_stub;

/// An interposed function; its type is checked against the driver's.
macro_rules! typed {
    ($name:ident, $function:path) => {{
        let function: signatures::$name = $function;
        (Symbol::$name, function as *const c_void)
    }};
}

/// An interposed function by its entry stub; the stub's type is not checked.
macro_rules! entry {
    ($name:ident, $entry:path) => {
        (Symbol::$name, $entry as *const c_void)
    };
}

/// All interposed functions. Of two with one address in some driver and one unversioned
/// name, the first is used.
pub(crate) fn all() -> Vec<(Symbol, *const c_void)> {
    vec![
        entry!(cuMemAlloc_v2, linear::alloc_entry),
        entry!(cuMemAllocPitch_v2, linear::alloc_pitch_entry),
        entry!(cuMemAllocManaged, linear::alloc_managed_entry),
        entry!(cuMemAlloc, linear::alloc_v1_entry),
        entry!(cuMemAllocPitch, linear::alloc_pitch_v1_entry),
        typed!(cuMemFree_v2, linear::free),
        typed!(cuMemFree, linear::free_v1),
        entry!(cuMemAllocAsync, ordered::alloc_entry),
        entry!(cuMemAllocAsync_ptsz, ordered::alloc_per_thread_entry),
        entry!(cuMemAllocFromPoolAsync, ordered::alloc_from_pool_entry),
        entry!(
            cuMemAllocFromPoolAsync_ptsz,
            ordered::alloc_from_pool_per_thread_entry
        ),
        typed!(cuMemFreeAsync, ordered::free),
        typed!(cuMemFreeAsync_ptsz, ordered::free_per_thread),
        typed!(cuMemPoolCreate, ordered::pool_create),
        typed!(cuMemPoolDestroy, ordered::pool_destroy),
        typed!(cuMemPoolTrimTo, ordered::pool_trim_to),
        typed!(cuMemPoolGetAttribute, ordered::pool_get_attribute),
        typed!(cuMemPoolSetAttribute, ordered::pool_set_attribute),
        typed!(cuDeviceSetMemPool, ordered::device_set_pool),
        typed!(cuMemPoolSetAccess, peers::pool_set_access),
        typed!(cuCtxEnablePeerAccess, peers::enable),
        entry!(cuMemCreate, physical::create_entry),
        typed!(cuMemRelease, physical::release),
        typed!(cuMemMap, physical::map),
        typed!(cuMemUnmap, physical::unmap),
        typed!(cuMemRetainAllocationHandle, physical::retain),
        entry!(cuMulticastCreate, physical::multicast_entry),
        entry!(cuArrayCreate_v2, nonlinear::array_entry),
        entry!(cuArray3DCreate_v2, nonlinear::array_3d_entry),
        typed!(cuArrayDestroy, nonlinear::array_destroy),
        entry!(cuMipmappedArrayCreate, nonlinear::mipmapped_entry),
        typed!(cuMipmappedArrayDestroy, nonlinear::mipmapped_destroy),
        entry!(cuMemAllocHost_v2, nonlinear::alloc_host_entry),
        entry!(cuMemHostAlloc, nonlinear::host_alloc_entry),
        typed!(cuMemFreeHost, nonlinear::free_host),
        entry!(cuMemHostRegister_v2, nonlinear::host_register_entry),
        typed!(cuMemHostUnregister, nonlinear::host_unregister),
        entry!(cuImportExternalMemory, nonlinear::import_external_entry),
        typed!(cuDestroyExternalMemory, nonlinear::destroy_external),
        typed!(cuIpcGetMemHandle, sharing::get),
        entry!(cuIpcOpenMemHandle_v2, sharing::open_entry),
        entry!(cuIpcOpenMemHandle, sharing::open_v1_entry),
        typed!(cuIpcCloseMemHandle, sharing::close),
        typed!(cuMemGetHandleForAddressRange, sharing::range_handle),
        typed!(cuMemGetInfo_v2, queries::info),
        typed!(cuMemGetAddressRange_v2, queries::range),
        typed!(cuPointerGetAttribute, queries::attribute),
        typed!(cuPointerGetAttributes, queries::attributes),
        typed!(cuCtxCreate_v2, lifetime::ctx_create_v2),
        typed!(cuCtxCreate, lifetime::ctx_create),
        typed!(cuCtxCreate_v3, lifetime::ctx_create_v3),
        typed!(cuCtxCreate_v4, lifetime::ctx_create_v4),
        typed!(cuCtxDestroy_v2, lifetime::ctx_destroy),
        typed!(cuCtxDestroy, lifetime::ctx_destroy_v1),
        typed!(cuCtxDetach, lifetime::ctx_detach),
        typed!(cuCtxSetCurrent, lifetime::ctx_set_current),
        typed!(cuCtxPushCurrent_v2, lifetime::ctx_push_current),
        typed!(cuCtxPushCurrent, lifetime::ctx_push_current_v1),
        typed!(cuCtxPopCurrent_v2, lifetime::ctx_pop_current),
        typed!(cuCtxPopCurrent, lifetime::ctx_pop_current_v1),
        typed!(cuDevicePrimaryCtxRetain, lifetime::primary_retain),
        typed!(cuDevicePrimaryCtxRelease_v2, lifetime::primary_release),
        typed!(cuDevicePrimaryCtxRelease, lifetime::primary_release_v1),
        typed!(cuDevicePrimaryCtxReset_v2, lifetime::primary_reset),
        typed!(cuDevicePrimaryCtxReset, lifetime::primary_reset_v1),
        typed!(cuGreenCtxCreate, lifetime::green_create),
        typed!(cuGreenCtxDestroy, lifetime::green_destroy),
        typed!(cuStreamDestroy_v2, lifetime::stream_destroy),
        typed!(cuStreamDestroy, lifetime::stream_destroy_v1),
        typed!(cuStreamBeginCapture_v2, lifetime::begin_capture_v2),
        typed!(
            cuStreamBeginCapture_v2_ptsz,
            lifetime::begin_capture_v2_per_thread
        ),
        typed!(cuStreamBeginCapture, lifetime::begin_capture_v1),
        typed!(
            cuStreamBeginCapture_ptsz,
            lifetime::begin_capture_v1_per_thread
        ),
        typed!(
            cuStreamBeginCaptureToGraph,
            lifetime::begin_capture_to_graph
        ),
        typed!(
            cuStreamBeginCaptureToGraph_ptsz,
            lifetime::begin_capture_to_graph_per_thread
        ),
        typed!(cuStreamEndCapture, lifetime::end_capture),
        typed!(cuStreamEndCapture_ptsz, lifetime::end_capture_per_thread),
        typed!(cuCtxSynchronize, lifetime::ctx_synchronize),
        typed!(cuCtxSynchronize_v2, lifetime::ctx_synchronize_v2),
        typed!(cuStreamSynchronize, lifetime::stream_synchronize),
        typed!(
            cuStreamSynchronize_ptsz,
            lifetime::stream_synchronize_per_thread
        ),
        entry!(
            cuGraphInstantiateWithFlags,
            graphs::instantiate_with_flags_entry
        ),
        entry!(
            cuGraphInstantiateWithParams,
            graphs::instantiate_with_params_entry
        ),
        entry!(
            cuGraphInstantiateWithParams_ptsz,
            graphs::instantiate_with_params_per_thread_entry
        ),
        entry!(cuGraphInstantiate_v2, graphs::instantiate_v2_entry),
        entry!(cuGraphInstantiate, graphs::instantiate_entry),
        typed!(cuGraphUpload, graphs::upload),
        typed!(cuGraphUpload_ptsz, graphs::upload_per_thread),
        typed!(cuGraphLaunch, graphs::launch),
        typed!(cuGraphLaunch_ptsz, graphs::launch_per_thread),
        typed!(cuGraphExecDestroy, graphs::destroy),
        typed!(cuDeviceGraphMemTrim, graphs::trim),
        typed!(cuModuleLoadData, code::module_load_data),
        typed!(cuModuleLoadDataEx, code::module_load_data_ex),
        typed!(cuModuleLoadFatBinary, code::module_load_fat_binary),
        typed!(cuModuleLoad, code::module_load),
        typed!(cuModuleUnload, code::module_unload),
        typed!(cuLibraryLoadData, code::library_load_data),
        typed!(cuLibraryLoadFromFile, code::library_load_from_file),
        typed!(cuLibraryUnload, code::library_unload),
        typed!(cuGetProcAddress_v2, proc_address::get_proc_address_v2),
        typed!(cuGetProcAddress, proc_address::get_proc_address_v1),
    ]
}
