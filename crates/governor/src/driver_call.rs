//! Results of driver calls, and the capture mode in which a thread makes them.

use fercuda_cuda_sys::types::{CUresult, CUstreamCaptureMode};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_pool::GrowthRefused;

/// The driver's result; a missing function counts as a result too.
#[inline]
pub fn answer(result: Result<CUresult, Missing>) -> CUresult {
    result.unwrap_or(CUresult::CUDA_ERROR_NOT_FOUND)
}

#[inline]
pub(crate) fn is_done(result: Result<CUresult, Missing>) -> bool {
    answer(result) == CUresult::CUDA_SUCCESS
}

/// Checks the result of a driver call; the error names the call and its result.
pub(crate) fn done(what: &str, answer: Result<CUresult, Missing>) -> Result<(), GrowthRefused> {
    match answer {
        Ok(CUresult::CUDA_SUCCESS) => Ok(()),
        Ok(code) => Err(GrowthRefused(format!("{what} answered {code:?}"))),
        Err(missing) => Err(GrowthRefused(missing.to_string())),
    }
}

/// Guard that lets this thread make calls that a capture elsewhere would forbid.
pub(crate) struct RelaxedCapture(&'static Driver, CUstreamCaptureMode);

impl RelaxedCapture {
    pub(crate) fn enter(driver: &'static Driver) -> Option<Self> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: `mode` outlives the call.
        let answer = unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode) };
        // A driver too old for captures has nothing to relax.
        matches!(answer, Ok(CUresult::CUDA_SUCCESS)).then_some(Self(driver, mode))
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: the mode outlives the call. The driver returned it earlier.
        let _it_took_it_before = unsafe { self.0.cuThreadExchangeStreamCaptureMode(&mut self.1) };
    }
}

/// The calling thread's capture mode.
pub(crate) fn thread_capture_mode(driver: &'static Driver) -> Option<CUstreamCaptureMode> {
    // Entering returns the previous mode, leaving restores it.
    RelaxedCapture::enter(driver).map(|relaxed| relaxed.1)
}
