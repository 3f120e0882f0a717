//! Memory shared with other processes and devices: legacy IPC handles and descriptors of
//! address ranges.
//!
//! A block's IPC handle is one of ours; opening any other goes to the driver. IPC handles
//! of events are the driver's and not governed.

use core::ffi::{c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fercuda_cuda_sys::types::{CUdeviceptr, CUipcMemHandle, CUmemRangeHandleType, CUresult};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_governor::{GovernedKey, GovernedPiece, ShareDenied};
use fercuda_ledger::Governed;

use super::entry_stub;
use super::linear::{release_governed, tenant_of};
use super::queries::{UNMAPPED_ADDRESS, is_unallocated};
use crate::print_diagnostic;
use crate::process::{call_driver, catch_panic, governor, with_thread_context};

entry_stub!(open_entry => open);
entry_stub!(open_v1_entry => open_v1);

/// Returns a block's IPC handle. Pool memory outside any block has none, though the driver
/// would return its slab's.
pub(super) unsafe extern "C" fn get(handle: *mut CUipcMemHandle, address: CUdeviceptr) -> CUresult {
    // SAFETY: the program's own arguments.
    let pass = |address| call_driver(|driver| unsafe { driver.cuIpcGetMemHandle(handle, address) });
    if is_unallocated(address) || handle.is_null() {
        return pass(UNMAPPED_ADDRESS);
    }
    let exported = with_thread_context(|seat| Some(seat.governor().export(address)));
    match exported.flatten() {
        None => pass(address),
        Some(Ok(exported)) => {
            // SAFETY: not null; the program's own.
            unsafe { handle.write(exported) };
            CUresult::CUDA_SUCCESS
        }
        Some(Err(ShareDenied::Driver(code))) => code,
        Some(Err(ShareDenied::Mapped)) => {
            print_once(
                "cuIpcGetMemHandle: the driver cannot export mapped memory to other processes\n\
                 try: FERCUDA_BACKING=slabs",
            );
            CUresult::CUDA_ERROR_INVALID_VALUE
        }
        Some(Err(ShareDenied::Folder(why))) => {
            print_once(&format!("cuIpcGetMemHandle: {why}"));
            CUresult::CUDA_ERROR_NOT_SUPPORTED
        }
    }
}

/// Reports why nothing can be shared, once per process.
#[cold]
fn print_once(text: &str) {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    if !PRINTED.swap(true, Relaxed) {
        print_diagnostic(text);
    }
}

unsafe extern "C" fn open(
    into: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: c_uint,
    _: usize,
    _: usize,
    _: usize,
    frame: *const usize,
) -> CUresult {
    // SAFETY: the entry gave the frame of the call that is under way; the rest
    // is the program's.
    unsafe { open_handle(into, &handle, flags, frame, Driver::cuIpcOpenMemHandle_v2) }
}

unsafe extern "C" fn open_v1(
    into: *mut CUdeviceptr,
    handle: CUipcMemHandle,
    flags: c_uint,
    _: usize,
    _: usize,
    _: usize,
    frame: *const usize,
) -> CUresult {
    // SAFETY: as in `open`.
    unsafe { open_handle(into, &handle, flags, frame, Driver::cuIpcOpenMemHandle) }
}

/// One of the driver's two functions that open IPC handles.
type OpenIpcHandle =
    unsafe fn(&Driver, *mut CUdeviceptr, CUipcMemHandle, c_uint) -> Result<CUresult, Missing>;

/// Opens an IPC handle: one of ours, or else through the driver.
///
/// # Safety
/// `into` is the program's; `frame` as for [`crate::caller::tenant`].
unsafe fn open_handle(
    into: *mut CUdeviceptr,
    handle: &CUipcMemHandle,
    flags: c_uint,
    frame: *const usize,
    call: OpenIpcHandle,
) -> CUresult {
    // SAFETY: passed on.
    let tenant = || unsafe { tenant_of(frame) };
    let open = |handle| {
        let mut address = 0;
        // SAFETY: `address` outlives the call.
        match call_driver(|driver| unsafe { call(driver, &mut address, handle, flags) }) {
            CUresult::CUDA_SUCCESS => Ok(address),
            code => Err(code),
        }
    };
    let ours = with_thread_context(|seat| {
        let current = seat.current().filter(|_| !into.is_null())?;
        let governor = seat.governor();
        governor.import(handle, flags, current, tenant, open)
    });
    match ours {
        Some(Ok(address)) => {
            // SAFETY: not null; the program's own.
            unsafe { into.write(address) };
            return CUresult::CUDA_SUCCESS;
        }
        Some(Err(code)) => return code,
        None => {}
    }
    // SAFETY: the program's own arguments.
    let result = call_driver(|driver| unsafe { call(driver, into, *handle, flags) });
    if result == CUresult::CUDA_SUCCESS {
        // SAFETY: the driver has just written the address.
        let address = unsafe { *into };
        catch_panic(|| {
            let mut bytes = 0;
            // SAFETY: `bytes` outlives the call; the base is not requested.
            let _an_unknown_size_counts_as_zero = call_driver(|driver| unsafe {
                driver.cuMemGetAddressRange_v2(core::ptr::null_mut(), &mut bytes, address)
            });
            let current = with_thread_context(|seat| seat.current());
            let piece = GovernedPiece {
                device: current.map_or(0, |(_, device)| device),
                tenant: tenant(),
                kind: Governed::IpcImport,
                bytes: bytes as u64,
                context: current.map(|(context, _)| context),
            };
            governor()?.made(GovernedKey::Address(address), piece);
            Some(())
        });
    }
    result
}

pub(super) unsafe extern "C" fn close(address: CUdeviceptr) -> CUresult {
    if let Some(closed) = catch_panic(|| governor()?.close_import(address)) {
        return closed;
    }
    // Imported memory is closed with its blocks, not by its address.
    let is_ours = catch_panic(|| Some(governor()?.is_in_imported_memory(address)));
    let passed = if is_ours == Some(true) {
        UNMAPPED_ADDRESS
    } else {
        address
    };
    // SAFETY: the program's own argument, or an unmapped address.
    release_governed(GovernedKey::Address(passed), |driver| unsafe {
        driver.cuIpcCloseMemHandle(passed)
    })
}

/// Returns a descriptor of an address range, such as a dmabuf. Pool memory with a
/// descriptor is pinned for good: it may be reached as long as any process holds the
/// descriptor, and the last close is not reported.
pub(super) unsafe extern "C" fn range_handle(
    handle: *mut c_void,
    address: CUdeviceptr,
    bytes: usize,
    kind: CUmemRangeHandleType,
    flags: c_ulonglong,
) -> CUresult {
    let passed = if is_unallocated(address) {
        UNMAPPED_ADDRESS
    } else {
        address
    };
    // SAFETY: the program's own arguments.
    let result = call_driver(|driver| unsafe {
        driver.cuMemGetHandleForAddressRange(handle, passed, bytes, kind, flags)
    });
    if result == CUresult::CUDA_SUCCESS {
        catch_panic(|| {
            let governor = governor().filter(|governor| governor.is_pooled(passed))?;
            // The range was live until here, and live memory is not moved.
            governor.pin_range(passed, bytes as u64);
            Some(())
        });
    }
    result
}
