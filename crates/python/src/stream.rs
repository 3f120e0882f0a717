//! Streams of other libraries, as integers.
//!
//! Invariant: a number is only passed to the driver, which validates it.

use std::ptr;

use fercuda_cuda::sys::types::CUpointer_attribute;
use fercuda_cuda::sys::types::{CUresult, CUstream, c_int};
use fercuda_cuda::{Context, Error as CudaError};
use fercuda_runtime::{Error, Result, Session};

/// The legacy default stream's number in all interfaces.
pub(crate) const LEGACY: u64 = 1;

fn handle(number: u64) -> CUstream {
    CUstream(ptr::with_exposed_provenance_mut(number as usize))
}

/// The number of a session's own stream, as DLPack passes it.
pub(crate) fn number(session: &Session) -> i64 {
    session.stream().raw().0.expose_provenance() as i64
}

/// Makes a stream wait for the session's work so far. The host does not wait, unless jobs wait
/// there.
///
/// # Errors
/// [`Error::Cuda`] if the driver knows no such stream; those of [`Session::record`].
pub(crate) fn follow(session: &Session, stream: u64) -> Result<()> {
    // SAFETY: the driver validates the stream.
    unsafe { session.order_stream_behind(handle(stream)) }
}

/// Makes the session wait for the work in a stream.
///
/// # Errors
/// As for [`follow`].
pub(crate) fn lead(session: &Session, stream: u64) -> Result<()> {
    // SAFETY: as for `follow`.
    unsafe { session.order_behind_stream(handle(stream)) }
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
