//! Capture mode of a thread, and the captures in progress.
//!
//! A capture can make the driver refuse calls of any thread, and some calls end a capture. Code
//! that must do neither relaxes the thread's mode, and asks first whether a capture is in progress.

use std::sync::atomic::{AtomicUsize, Ordering};

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{
    CU_STREAM_LEGACY, CUresult, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use crate::error::{Result, check};

/// Captures of this crate's in progress.
static CAPTURES: AtomicUsize = AtomicUsize::new(0);

/// Whether captures of this crate's are in progress.
pub(crate) fn is_capture_running() -> bool {
    CAPTURES.load(Ordering::Acquire) > 0
}

/// Counts a capture that begins.
pub(crate) fn count_capture_begin() {
    CAPTURES.fetch_add(1, Ordering::AcqRel);
}

/// Counts a capture that has ended.
pub(crate) fn count_capture_end() {
    CAPTURES.fetch_sub(1, Ordering::AcqRel);
}

/// Waiting for the legacy stream, or for all streams, ends the capture of a blocking stream. This
/// query does not, and fails if there is one. It applies to the current context.
///
/// # Errors
/// The driver's, if a blocking stream is being captured.
pub(crate) fn check_blocking_captures(driver: &Driver) -> Result<()> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: `status` outlives the call.
    match unsafe { driver.cuStreamIsCapturing(CU_STREAM_LEGACY, &mut status) } {
        Ok(answer) => check(Ok(answer), "cuStreamIsCapturing", || {
            "wait for the legacy stream".into()
        }),
        // A driver that lacks it captures nothing.
        Err(_) => Ok(()),
    }
}

/// While it lives, calls of this thread that a global capture anywhere in the
/// process forbids are allowed, and do not end that capture.
pub(crate) struct RelaxedCaptureMode {
    driver: &'static Driver,
    before: Option<CUstreamCaptureMode>,
}

impl RelaxedCaptureMode {
    pub(crate) fn enter(driver: &'static Driver) -> Self {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: `mode` outlives the call.
        let answer = unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode) };
        // A driver too old to capture has nothing to relax.
        let before = matches!(answer, Ok(CUresult::CUDA_SUCCESS)).then_some(mode);
        Self { driver, before }
    }
}

impl Drop for RelaxedCaptureMode {
    fn drop(&mut self) {
        if let Some(mut mode) = self.before {
            // SAFETY: `mode` outlives the call.
            let answer = unsafe { self.driver.cuThreadExchangeStreamCaptureMode(&mut mode) };
            // The call succeeded in `enter` and accepts any mode that it returned, unless the
            // process is exiting.
            drop(answer);
        }
    }
}
