//! Streams of other libraries, which are numbers here.
//!
//! Invariant: a number is given to the driver only, which knows which are streams.

use std::ptr;

use fercuda_cuda::sys::types::CUpointer_attribute;
use fercuda_cuda::sys::types::{CUresult, CUstream, c_int};
use fercuda_cuda::{Context, Error as CudaError, Event};
use fercuda_runtime::{Error, Result, Session};

/// The legacy default stream, as all interfaces number it.
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
                "the driver answered {} of the stream {number:#x}\n\
                 try: 1 or 2 for its default streams, or the handle of one that is there",
                code.name().unwrap_or("an error")
            ),
        }
        .into()),
        Err(missing) => Err(CudaError::from(missing).into()),
    }
}

/// Lets a stream wait for what the session was given so far. The host does not wait,
/// unless jobs wait there.
///
/// # Errors
/// [`Error::Cuda`] if the driver knows no such stream; those of [`Session::record`].
pub(crate) fn follow(session: &Session, stream: u64) -> Result<()> {
    let event = session.record()?;
    let driver = session.stream().context().bind()?;
    // SAFETY: the event is alive; the driver knows which streams there are.
    let given = unsafe { driver.cuStreamWaitEvent(handle(stream), event.raw(), 0) };
    answer("let a stream wait for a session", stream, given)
}

/// Lets the session wait for what is in a stream.
///
/// # Errors
/// As for [`follow`].
pub(crate) fn lead(session: &Session, stream: u64) -> Result<()> {
    let context = session.stream().context();
    let event = Event::untimed(context)?;
    let driver = context.bind()?;
    // SAFETY: as for `follow`.
    let given = unsafe { driver.cuEventRecord(event.raw(), handle(stream)) };
    answer("let a session wait for a stream", stream, given)?;
    session.wait_for(event)
}

/// # Errors
/// [`Error::Cuda`] for an address that is in no memory which the driver knows.
pub(crate) fn check_address(context: &Context, address: u64) -> Result<()> {
    let driver = context.bind()?;
    let mut ordinal: c_int = -1;
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
    // SAFETY: `ordinal` outlives the call, and is what the attribute is.
    let given =
        unsafe { driver.cuPointerGetAttribute((&raw mut ordinal).cast(), attribute, address) };
    match given {
        Ok(CUresult::CUDA_SUCCESS) => Ok(()),
        _ => Err(Error::from(CudaError::Value {
            operation: "import memory",
            reason: format!(
                "{address:#x} is in no memory of {}\n\
                 try: memory that this process's driver gave; what is the host's is uploaded",
                context.device()
            ),
        })),
    }
}
