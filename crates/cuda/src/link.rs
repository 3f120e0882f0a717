//! Linking: PTX compiled by the driver to machine code that can be stored.
//!
//! Loading PTX compiles it too, but the result stays in the driver. The result of linking can be
//! stored, and another process loads it without compiling.
//!
//! Invariant: a [`Linked`] is a complete copy of the driver's result.

use std::ffi::{CStr, CString, c_void};

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{CUjit_option, CUjitInputType, CUlinkState, CUresult, c_uint};

use crate::capture_mode::RelaxedCaptureMode;
use crate::context::Context;
use crate::error::{Error, LoadFailure, Result, call};
use crate::image::Image;

/// Machine code for the device that it was compiled for.
#[derive(Clone, Debug)]
pub struct Linked {
    bytes: Vec<u8>,
}

const LOG_BYTES: usize = 16 << 10;

/// A linker of the driver, destroyed on drop.
struct DriverLinker {
    driver: &'static Driver,
    raw: CUlinkState,
}

impl Drop for DriverLinker {
    fn drop(&mut self) {
        // SAFETY: from cuLinkCreate, destroyed once; its result has been copied.
        drop(unsafe { self.driver.cuLinkDestroy(self.raw) });
    }
}

impl Linked {
    /// Compiles `ptx`, called `name` in messages, for the context's device.
    ///
    /// # Errors
    /// [`Error::Load`] with the compiler's log if the driver refuses it;
    /// [`Error::Image`] if there is a zero byte in it.
    pub fn of(context: &Context, name: &str, ptx: &str) -> Result<Self> {
        // Refuses embedded zero bytes.
        Image::ptx(ptx).checked()?;
        let zero_byte = |_| Error::Value {
            operation: "link PTX",
            reason: format!("{name:?} contains a zero byte"),
        };
        let name = CString::new(name).map_err(zero_byte)?;
        let mut text = ptx.trim_end_matches('\0').as_bytes().to_vec();
        text.push(0);
        let driver = context.bind()?;
        let _relaxed = RelaxedCaptureMode::enter(driver);
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // The linker writes to the log, and the length to its value, until it is destroyed.
        let mut values: [*mut c_void; 2] = [
            log.as_mut_ptr().cast(),
            std::ptr::without_provenance_mut(log.len() - 1),
        ];
        let mut raw = CUlinkState::NULL;
        // SAFETY: the arrays have the length given; they and the log, which is declared
        // before the state, outlive it.
        unsafe {
            call!(
                driver,
                cuLinkCreate_v2(
                    options.len() as c_uint,
                    options.as_mut_ptr(),
                    values.as_mut_ptr(),
                    &mut raw,
                ),
                "begin to link"
            )?;
        }
        let state = DriverLinker { driver, raw };
        let refused = |code: CUresult, log: &[u8]| {
            let log = CStr::from_bytes_until_nul(log).unwrap_or_default();
            Error::Load(Box::new(LoadFailure {
                code,
                what: Image::ptx(ptx).describe(),
                log: log.to_string_lossy().into_owned(),
            }))
        };
        // SAFETY: the text has the length given, its final zero included, and outlives the
        // call, as does the name; the driver copies both.
        let answer = unsafe {
            driver.cuLinkAddData_v2(
                state.raw,
                CUjitInputType::CU_JIT_INPUT_PTX,
                text.as_mut_ptr().cast(),
                text.len(),
                name.as_ptr(),
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )?
        };
        if answer != CUresult::CUDA_SUCCESS {
            return Err(refused(answer, &log));
        }
        let (mut code, mut len) = (std::ptr::null_mut::<c_void>(), 0usize);
        // SAFETY: the state is alive; both results outlive the call.
        let answer = unsafe { driver.cuLinkComplete(state.raw, &mut code, &mut len)? };
        if answer != CUresult::CUDA_SUCCESS || code.is_null() {
            return Err(refused(answer, &log));
        }
        // SAFETY: the driver reports `len` bytes at `code`; they are its own until the state is
        // destroyed, and are not written meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(code.cast::<u8>(), len) }.to_vec();
        drop(state);
        Ok(Self { bytes })
    }

    /// The machine code.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl<'a> Image<'a> {
    /// Machine code that the driver has just linked.
    pub fn linked(linked: &'a Linked) -> Self {
        Self::trusted(linked.bytes())
    }
}
