//! Streams of other libraries, as integers.
//!
//! Invariant: a number is only passed to the driver, which validates it.

use std::ptr;

use fercuda_cuda::sys::types::CUpointer_attribute;
use fercuda_cuda::sys::types::{CUresult, CUstream, c_int};
use fercuda_cuda::{Context, Error as CudaError, Event};
use fercuda_runtime::{Error, Result, Session};

/// The legacy default stream's number in all interfaces.
pub(crate) const LEGACY: u64 = 1;

fn handle(number: u64) -> CUstream {
    CUstream(ptr::with_exposed_provenance_mut(number as usize))
}

fn answer(
    doing: &'static str,
    number: u64,
    given: std::result::Result<CUresult, fercuda_cuda::sys::Missing>,
) -> Result<()> {
    match given {
        Ok(CUresult::CUDA_SUCCESS) => Ok(()),
        Ok(code) => Err(CudaError::Value {
            operation: doing,
            reason: format!(
                "the driver returned {} for stream {number:#x}\n\
                 try: 1 or 2 for a default stream, or the handle of an existing one",
                code.name().unwrap_or("an error")
            ),
        }
        .into()),
        Err(missing) => Err(CudaError::from(missing).into()),
    }
}

/// Makes a stream wait for the session's work so far. The host does not wait, unless jobs wait
/// there.
///
/// # Errors
/// [`Error::Cuda`] if the driver knows no such stream; those of [`Session::record`].
pub(crate) fn follow(session: &Session, stream: u64) -> Result<()> {
    let event = session.record()?;
    let driver = session.stream().context().bind()?;
    // SAFETY: the event is alive; the driver validates the stream.
    let given = unsafe { driver.cuStreamWaitEvent(handle(stream), event.raw(), 0) };
    answer("make a stream wait for a session", stream, given)
}

/// Makes the session wait for the work in a stream.
///
/// # Errors
/// As for [`follow`].
pub(crate) fn lead(session: &Session, stream: u64) -> Result<()> {
    let context = session.stream().context();
    let event = Event::untimed(context)?;
    let driver = context.bind()?;
    // SAFETY: as for `follow`.
    let given = unsafe { driver.cuEventRecord(event.raw(), handle(stream)) };
    answer("make a session wait for a stream", stream, given)?;
    session.wait_for(event)
}

/// # Errors
/// [`Error::Cuda`] for an address in no memory known to the driver.
pub(crate) fn check_address(context: &Context, address: u64) -> Result<()> {
    let driver = context.bind()?;
    let mut ordinal: c_int = -1;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: `ordinal` outlives the call, and has the attribute's type.
    let given =
        unsafe { driver.cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address) };
    match given {
        Ok(CUresult::CUDA_SUCCESS) => Ok(()),
        _ => Err(Error::from(CudaError::Value {
            operation: "import memory",
            reason: format!(
                "{address:#x} is not in memory of {}\n\
                 try: memory from this process's driver, or upload() for host memory",
                context.device()
            ),
        })),
    }
}
