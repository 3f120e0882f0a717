//! The driver's functions that are governed.
//!
//! A door does its part where it can and else lets the driver answer, with the
//! arguments as they came: so wrong arguments get the driver's own errors.
//! Doors that charge somebody are entered with the stack's address, which has
//! the caller's return address (see [`asked!`]).

use core::ffi::c_void;

use fercuda_cuda_sys::Symbol;
use fercuda_cuda_sys::signatures;

mod code;
mod identity;
mod lifetime;
mod linear;
mod ordered;
mod other;
mod peers;
mod physical;
mod sharing;
mod vendors;

/// The entry of a door that wants to know its caller: the sixth argument in
/// registers becomes the address of the return address. For functions with at
/// most five arguments there.
macro_rules! asked {
    ($entry:ident => $door:ident) => {
        #[unsafe(naked)]
        pub(super) unsafe extern "C" fn $entry() {
            core::arch::naked_asm!("mov r9, rsp", "jmp {door}", door = sym $door)
        }
    };
}
use asked;

/// A door, with the type that the driver's function has.
macro_rules! door {
    ($name:ident, $door:path) => {{
        let door: signatures::$name = $door;
        (Symbol::$name, door as *const c_void)
    }};
}

/// A door by its entry. Types were checked where the door is defined.
macro_rules! entry {
    ($name:ident, $entry:path) => {
        (Symbol::$name, $entry as *const c_void)
    };
}

/// All doors. Of two that share an address in some driver, and a name without
/// version, the first is taken.
pub(crate) fn all() -> Vec<(Symbol, *const c_void)> {
    vec![
        entry!(cuMemAlloc_v2, linear::alloc_entry),
        entry!(cuMemAllocPitch_v2, linear::alloc_pitch_entry),
        entry!(cuMemAllocManaged, linear::alloc_managed_entry),
        entry!(cuMemAlloc, linear::alloc_v1_entry),
        entry!(cuMemAllocPitch, linear::alloc_pitch_v1_entry),
        door!(cuMemFree_v2, linear::free),
        door!(cuMemFree, linear::free_v1),
        entry!(cuMemAllocAsync, ordered::alloc_entry),
        entry!(cuMemAllocAsync_ptsz, ordered::alloc_per_thread_entry),
        entry!(cuMemAllocFromPoolAsync, ordered::alloc_from_pool_entry),
        entry!(
            cuMemAllocFromPoolAsync_ptsz,
            ordered::alloc_from_pool_per_thread_entry
        ),
        door!(cuMemFreeAsync, ordered::free),
        door!(cuMemFreeAsync_ptsz, ordered::free_per_thread),
        door!(cuMemPoolCreate, ordered::pool_create),
        door!(cuMemPoolDestroy, ordered::pool_destroy),
        door!(cuMemPoolTrimTo, ordered::pool_trim_to),
        door!(cuMemPoolGetAttribute, ordered::pool_get_attribute),
        door!(cuMemPoolSetAttribute, ordered::pool_set_attribute),
        door!(cuDeviceSetMemPool, ordered::device_set_pool),
        door!(cuMemPoolSetAccess, peers::pool_set_access),
        door!(cuCtxEnablePeerAccess, peers::enable),
        entry!(cuMemCreate, physical::create_entry),
        door!(cuMemRelease, physical::release),
        door!(cuMemMap, physical::map),
        door!(cuMemUnmap, physical::unmap),
        door!(cuMemRetainAllocationHandle, physical::retain),
        entry!(cuMulticastCreate, physical::multicast_entry),
        entry!(cuArrayCreate_v2, other::array_entry),
        entry!(cuArray3DCreate_v2, other::array_3d_entry),
        door!(cuArrayDestroy, other::array_destroy),
        entry!(cuMipmappedArrayCreate, other::mipmapped_entry),
        door!(cuMipmappedArrayDestroy, other::mipmapped_destroy),
        entry!(cuMemAllocHost_v2, other::alloc_host_entry),
        entry!(cuMemHostAlloc, other::host_alloc_entry),
        door!(cuMemFreeHost, other::free_host),
        entry!(cuMemHostRegister_v2, other::host_register_entry),
        door!(cuMemHostUnregister, other::host_unregister),
        entry!(cuImportExternalMemory, other::import_external_entry),
        door!(cuDestroyExternalMemory, other::destroy_external),
        door!(cuIpcGetMemHandle, sharing::get),
        entry!(cuIpcOpenMemHandle_v2, sharing::open_entry),
        entry!(cuIpcOpenMemHandle, sharing::open_v1_entry),
        door!(cuIpcCloseMemHandle, sharing::close),
        door!(cuMemGetHandleForAddressRange, sharing::range_handle),
        door!(cuMemGetInfo_v2, identity::info),
        door!(cuMemGetAddressRange_v2, identity::range),
        door!(cuPointerGetAttribute, identity::attribute),
        door!(cuPointerGetAttributes, identity::attributes),
        door!(cuCtxCreate_v2, lifetime::ctx_create_v2),
        door!(cuCtxCreate, lifetime::ctx_create),
        door!(cuCtxCreate_v3, lifetime::ctx_create_v3),
        door!(cuCtxCreate_v4, lifetime::ctx_create_v4),
        door!(cuCtxDestroy_v2, lifetime::ctx_destroy),
        door!(cuCtxDestroy, lifetime::ctx_destroy_v1),
        door!(cuCtxDetach, lifetime::ctx_detach),
        door!(cuCtxSetCurrent, lifetime::ctx_set_current),
        door!(cuCtxPushCurrent_v2, lifetime::ctx_push_current),
        door!(cuCtxPushCurrent, lifetime::ctx_push_current_v1),
        door!(cuCtxPopCurrent_v2, lifetime::ctx_pop_current),
        door!(cuCtxPopCurrent, lifetime::ctx_pop_current_v1),
        door!(cuDevicePrimaryCtxRetain, lifetime::primary_retain),
        door!(cuDevicePrimaryCtxRelease_v2, lifetime::primary_release),
        door!(cuDevicePrimaryCtxRelease, lifetime::primary_release_v1),
        door!(cuDevicePrimaryCtxReset_v2, lifetime::primary_reset),
        door!(cuDevicePrimaryCtxReset, lifetime::primary_reset_v1),
        door!(cuGreenCtxCreate, lifetime::green_create),
        door!(cuGreenCtxDestroy, lifetime::green_destroy),
        door!(cuStreamDestroy_v2, lifetime::stream_destroy),
        door!(cuStreamDestroy, lifetime::stream_destroy_v1),
        door!(cuStreamBeginCapture_v2, lifetime::begin_capture_v2),
        door!(
            cuStreamBeginCapture_v2_ptsz,
            lifetime::begin_capture_v2_per_thread
        ),
        door!(cuStreamBeginCapture, lifetime::begin_capture_v1),
        door!(
            cuStreamBeginCapture_ptsz,
            lifetime::begin_capture_v1_per_thread
        ),
        door!(
            cuStreamBeginCaptureToGraph,
            lifetime::begin_capture_to_graph
        ),
        door!(
            cuStreamBeginCaptureToGraph_ptsz,
            lifetime::begin_capture_to_graph_per_thread
        ),
        door!(cuStreamEndCapture, lifetime::end_capture),
        door!(cuStreamEndCapture_ptsz, lifetime::end_capture_per_thread),
        door!(cuCtxSynchronize, lifetime::ctx_synchronize),
        door!(cuCtxSynchronize_v2, lifetime::ctx_synchronize_v2),
        door!(cuStreamSynchronize, lifetime::stream_synchronize),
        door!(
            cuStreamSynchronize_ptsz,
            lifetime::stream_synchronize_per_thread
        ),
        door!(cuModuleLoadData, code::module_load_data),
        door!(cuModuleLoadDataEx, code::module_load_data_ex),
        door!(cuModuleLoadFatBinary, code::module_load_fat_binary),
        door!(cuModuleLoad, code::module_load),
        door!(cuModuleUnload, code::module_unload),
        door!(cuLibraryLoadData, code::library_load_data),
        door!(cuLibraryLoadFromFile, code::library_load_from_file),
        door!(cuLibraryUnload, code::library_unload),
        door!(cuGetProcAddress_v2, vendors::get_proc_address_v2),
        door!(cuGetProcAddress, vendors::get_proc_address_v1),
    ]
}
