//! cuFFT, opened.

use std::path::Path;
use std::sync::Arc;

use super::ffi::{self, FftFunctions};
use crate::error::Result;
use crate::version::LibraryVersion;

/// cuFFT, opened. Clones are the same library, which is never unloaded.
#[derive(Clone, Debug)]
pub struct CufftLibrary {
    functions: Arc<FftFunctions>,
}

impl CufftLibrary {
    /// The first usable library: of `FERCUDA_CUFFT`, then where `fercuda_nvrtc::find` searches.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound) with every path that was tried.
    pub fn find() -> Result<Self> {
        let functions = Arc::new(ffi::find()?);
        Ok(Self { functions })
    }

    /// The library in the file `path`.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound).
    ///
    /// # Safety
    /// The file is a library with cuFFT's interface, which works on the devices of the contexts
    /// that it is used with; or it does not exist.
    #[expect(unsafe_code, reason = "the caller vouches for the file")]
    pub unsafe fn open(path: &Path) -> Result<Self> {
        // SAFETY: the caller's contract.
        let functions = Arc::new(unsafe { ffi::open(path) }?);
        Ok(Self { functions })
    }

    /// Its version, which is not CUDA's: cuFFT 11 is of CUDA 12, cuFFT 12 of CUDA 13.
    pub fn version(&self) -> LibraryVersion {
        self.functions.library().version()
    }

    /// The file that the loader opened.
    pub fn file(&self) -> &Path {
        self.functions.library().file()
    }

    pub(super) fn functions(&self) -> &Arc<FftFunctions> {
        &self.functions
    }
}
