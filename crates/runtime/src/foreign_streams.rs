//! Order of a session and of streams that other code owns.
//!
//! Elsewhere: sessions' own events (`session`).

use fercuda_cuda::sys::Missing;
use fercuda_cuda::sys::types::{CUresult, CUstream};
use fercuda_cuda::{Error as CudaError, Event};

use crate::error::Result;
use crate::session::Session;

/// The driver's answer, of which a stream is the likely cause.
fn answer(
    operation: &'static str,
    stream: CUstream,
    given: std::result::Result<CUresult, Missing>,
) -> Result<()> {
    match given {
        Ok(CUresult::CUDA_SUCCESS) => Ok(()),
        Ok(code) => Err(CudaError::Value {
            operation,
            reason: format!(
                "the driver returned {} for stream {:#x}\n\
                 try: 1 or 2 for a default stream, or the handle of an existing one",
                code.name().unwrap_or("an error"),
                stream.0.addr()
            ),
        }
        .into()),
        Err(missing) => Err(CudaError::from(missing).into()),
    }
}

#[expect(unsafe_code, reason = "only the caller knows that the stream exists")]
impl Session {
    /// Makes a stream wait for the session's work so far. The host does not wait, unless jobs wait
    /// there.
    ///
    /// # Errors
    /// [`Error::Cuda`](crate::Error::Cuda) if the driver knows no such stream; those of
    /// [`Session::record`].
    ///
    /// # Safety
    /// A default stream's handle, or that of a stream that exists, or one that the driver
    /// validates.
    pub unsafe fn order_stream_behind(&self, stream: CUstream) -> Result<()> {
        let event = self.record()?;
        let driver = self.stream().context().bind()?;
        // SAFETY: the event is alive; the stream is the caller's promise.
        let given = unsafe { driver.cuStreamWaitEvent(stream, event.raw(), 0) };
        answer("make a stream wait for a session", stream, given)
    }

    /// Makes the session wait for the work in a stream so far.
    ///
    /// # Errors
    /// As for [`Session::order_stream_behind`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn order_behind_stream(&self, stream: CUstream) -> Result<()> {
        let context = self.stream().context();
        let event = Event::untimed(context)?;
        let driver = context.bind()?;
        // SAFETY: as above.
        let given = unsafe { driver.cuEventRecord(event.raw(), stream) };
        answer("make a session wait for a stream", stream, given)?;
        self.wait_for(event)
    }
}
