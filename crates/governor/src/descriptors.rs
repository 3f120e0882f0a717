//! Descriptors of exported blocks, which a thread of the owner gives to other processes.
//!
//! Invariants: descriptors are made while the state of sharing is locked, of blocks that are
//! exported then, and given without that lock: the asking process holds a lock on the share, which
//! keeps the block from being reused. The thread makes its first driver call before it takes any
//! lock, since a driver may wait for the loader's then.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{CUcontext, CUmemAllocationHandleType, CUresult};
use fercuda_ledger::{BATCH, DescriptorBatch, DescriptorRequest, ShareListener};

use crate::clock::lock;
use crate::driver_call::answer;
use crate::shared_blocks::SharingState;

/// How long one process is served.
const SERVING: Duration = Duration::from_secs(5);

/// A descriptor of the physical memory that is mapped at an address.
///
/// # Errors
/// The driver's.
pub(crate) fn export_descriptor(driver: &Driver, address: u64) -> Result<OwnedFd, CUresult> {
    let mut handle = 0;
    // SAFETY: `handle` outlives the call; the driver checks that memory is mapped there.
    let retained = answer(unsafe {
        driver.cuMemRetainAllocationHandle(&mut handle, address as usize as *mut c_void)
    });
    if retained != CUresult::CUDA_SUCCESS {
        return Err(retained);
    }
    let mut raw: RawFd = -1;
    let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: a descriptor is written for a handle of this kind; `raw` outlives the call, and the
    // handle was just retained.
    let exported = unsafe {
        let into = (&raw mut raw).cast();
        let exported = answer(driver.cuMemExportToShareableHandle(into, handle, kind, 0));
        let _it_was_retained = driver.cuMemRelease(handle);
        exported
    };
    if exported != CUresult::CUDA_SUCCESS {
        return Err(exported);
    }
    if raw < 0 {
        return Err(CUresult::CUDA_ERROR_UNKNOWN);
    }
    // SAFETY: the driver has just made it for this caller.
    let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: plain system call on that descriptor.
    let _programs_started_meanwhile_keep_it =
        unsafe { libc::fcntl(raw, libc::F_SETFD, libc::FD_CLOEXEC) };
    Ok(descriptor)
}

/// Guard that blocks all signals of the calling thread; a thread that is created meanwhile starts
/// with them blocked.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn block() -> Option<BlockedSignals> {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: both outlive the calls; `before` is filled by a call that succeeds.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            let set = libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            (set == 0).then(|| BlockedSignals(before.assume_init()))
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the mask that the thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// Starts the thread that answers at a socket until that is stopped.
///
/// # Errors
/// The system's, if there can be no more threads.
pub(crate) fn serve(
    driver: &'static Driver,
    state: Arc<Mutex<SharingState>>,
    listener: Arc<ShareListener>,
) -> io::Result<()> {
    let _blocked = BlockedSignals::block();
    let thread = std::thread::Builder::new().name("fercuda-share".to_owned());
    thread.spawn(move || {
        let mut current = CUcontext::NULL;
        // SAFETY: `current` outlives the call.
        let _registered = unsafe { driver.cuCtxGetCurrent(&mut current) };
        while let Some(accepted) = listener.accept() {
            accepted.serve(SERVING, |request| batch(driver, &state, request));
        }
    })?;
    Ok(())
}

/// The pieces that a request asks for; `None` if that block is not exported, or not by the file
/// that the asking process has locked.
fn batch(
    driver: &Driver,
    state: &Mutex<SharingState>,
    request: &DescriptorRequest,
) -> Option<DescriptorBatch> {
    let state = lock(state);
    let mut exports = state.exports.values();
    let export = exports.find(|it| it.ticket.name == request.name)?;
    let first = usize::try_from(request.first).ok()?;
    let pieces = export.pieces.get(first..).unwrap_or_default();
    if export.offered.id != request.id || pieces.is_empty() {
        return None;
    }
    let left = pieces.len().saturating_sub(BATCH) as u64;
    let pieces = pieces.iter().take(BATCH).map(|piece| {
        let descriptor = export_descriptor(driver, piece.address);
        descriptor.ok().map(|descriptor| (piece.bytes, descriptor))
    });
    let pieces = pieces.collect::<Option<Vec<_>>>()?;
    Some(DescriptorBatch { pieces, left })
}
