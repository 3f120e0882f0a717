//! Memory that other processes open, and other devices reach: legacy handles,
//! and descriptors of address ranges.
//!
//! A handle of a block is ours; who opens one that is not asks the driver.
//! Handles of events are the driver's, and not governed.

use core::ffi::{c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fercuda_cuda_sys::types::{CUdeviceptr, CUipcMemHandle, CUmemRangeHandleType, CUresult};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_governor::{GovernedKey, GovernedPiece, ShareDenied};
use fercuda_ledger::Governed;

use super::asked;
use super::identity::{NOWHERE, is_nobodys};
use super::linear::{released, tenant_of};
use crate::process::{ask, governor, guarded, seated};
use crate::say;

asked!(open_entry => open);
asked!(open_v1_entry => open_v1);

/// A block's handle. Memory that is the pool's and in no block has none, though
/// the driver would give that of its slab.
pub(super) unsafe extern "C" fn get(handle: *mut CUipcMemHandle, address: CUdeviceptr) -> CUresult {
    // SAFETY: the program's own arguments.
    let pass = |address| ask(|driver| unsafe { driver.cuIpcGetMemHandle(handle, address) });
    if is_nobodys(address) || handle.is_null() {
        return pass(NOWHERE);
    }
    let exported = seated(|seat| Some(seat.governor().export(address)));
    match exported.flatten() {
        None => pass(address),
        Some(Ok(exported)) => {
            // SAFETY: not null; the program's own.
            unsafe { handle.write(exported) };
            CUresult::CUDA_SUCCESS
        }
        Some(Err(ShareDenied::Driver(code))) => code,
        Some(Err(ShareDenied::Mapped)) => {
            say_once(
                "cuIpcGetMemHandle: mapped memory cannot be opened by other processes\n\
                 try: fercuda run --ipc, or FERCUDA_BACKING=slabs",
            );
            CUresult::CUDA_ERROR_INVALID_VALUE
        }
        Some(Err(ShareDenied::Folder(why))) => {
            say_once(&format!("cuIpcGetMemHandle: {why}"));
            CUresult::CUDA_ERROR_NOT_SUPPORTED
        }
    }
}

/// Says why nothing can be shared, the first time.
#[cold]
fn say_once(text: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Relaxed) {
        say(text);
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
    unsafe { opened(into, &handle, flags, frame, Driver::cuIpcOpenMemHandle_v2) }
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
    unsafe { opened(into, &handle, flags, frame, Driver::cuIpcOpenMemHandle) }
}

/// One of the driver's two functions that open handles.
type Open =
    unsafe fn(&Driver, *mut CUdeviceptr, CUipcMemHandle, c_uint) -> Result<CUresult, Missing>;

/// Opens a handle: ours, or as the driver does it.
///
/// # Safety
/// `into` is the program's; `frame` as for [`crate::caller::tenant`].
unsafe fn opened(
    into: *mut CUdeviceptr,
    handle: &CUipcMemHandle,
    flags: c_uint,
    frame: *const usize,
    call: Open,
) -> CUresult {
    // SAFETY: passed on.
    let tenant = || unsafe { tenant_of(frame) };
    let open = |handle| {
        let mut address = 0;
        // SAFETY: `address` outlives the call.
        match ask(|driver| unsafe { call(driver, &mut address, handle, flags) }) {
            CUresult::CUDA_SUCCESS => Ok(address),
            code => Err(code),
        }
    };
    let ours = seated(|seat| {
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
    let result = ask(|driver| unsafe { call(driver, into, *handle, flags) });
    if result == CUresult::CUDA_SUCCESS {
        // SAFETY: the driver has just written the address.
        let address = unsafe { *into };
        guarded(|| {
            let mut bytes = 0;
            // SAFETY: `bytes` outlives the call, and a base is not asked for.
            let _unsized_counts_as_nothing = ask(|driver| unsafe {
                driver.cuMemGetAddressRange_v2(core::ptr::null_mut(), &mut bytes, address)
            });
            let current = seated(|seat| seat.current());
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
    if let Some(closed) = guarded(|| governor()?.close_import(address)) {
        return closed;
    }
    // A slab is closed when its last block is, and not by its address.
    let is_slab = guarded(|| Some(governor()?.is_in_imported_slab(address)));
    let asked = if is_slab == Some(true) {
        NOWHERE
    } else {
        address
    };
    // SAFETY: the program's own argument, or no address at all.
    released(GovernedKey::Address(asked), |driver| unsafe {
        driver.cuIpcCloseMemHandle(asked)
    })
}

/// A descriptor of an address range, such as a dmabuf. The pool's addresses are
/// a range like others; but what has a descriptor may be reached by it as long
/// as somebody has it, and nobody says how long: so it stays where it is.
pub(super) unsafe extern "C" fn range_handle(
    handle: *mut c_void,
    address: CUdeviceptr,
    bytes: usize,
    kind: CUmemRangeHandleType,
    flags: c_ulonglong,
) -> CUresult {
    let asked = if is_nobodys(address) {
        NOWHERE
    } else {
        address
    };
    // SAFETY: the program's own arguments.
    let result = ask(|driver| unsafe {
        driver.cuMemGetHandleForAddressRange(handle, asked, bytes, kind, flags)
    });
    if result == CUresult::CUDA_SUCCESS {
        guarded(|| {
            let governor = governor().filter(|governor| governor.is_pooled(asked))?;
            // It was live until now, and what is live is not moved.
            governor.pin_range(asked, bytes as u64);
            Some(())
        });
    }
    result
}
