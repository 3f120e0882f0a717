//! The library and its handle in a context.

use std::path::Path;
use std::sync::Arc;

use fercuda_cuda::{Context, QueuedResource};

use super::ffi::{self, LtFunctions, LtHandle};
use crate::error::Result;
use crate::version::LibraryVersion;

/// cuBLASLt, opened. Clones are the same library, which is never unloaded.
#[derive(Clone, Debug)]
pub struct CublasLtLibrary {
    functions: Arc<LtFunctions>,
}

impl CublasLtLibrary {
    /// The first usable library: of `FERCUDA_CUBLASLT`, then where `fercuda_nvrtc::find` searches.
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
    /// The file is a library with cuBLASLt's interface, which works on the devices of the contexts
    /// that it is used with; or it does not exist.
    #[expect(unsafe_code, reason = "the caller vouches for the file")]
    pub unsafe fn open(path: &Path) -> Result<Self> {
        // SAFETY: the caller's contract.
        let functions = Arc::new(unsafe { ffi::open(path) }?);
        Ok(Self { functions })
    }

    /// Its version.
    pub fn version(&self) -> LibraryVersion {
        self.functions.library().version()
    }

    /// The file that the loader opened.
    pub fn file(&self) -> &Path {
        self.functions.library().file()
    }
}

/// A handle of cuBLASLt in a context; cheap to clone. It is destroyed after the last product that
/// was made with it.
#[derive(Clone, Debug)]
pub struct CublasLt {
    library: CublasLtLibrary,
    handle: QueuedResource<LtHandle>,
}

impl CublasLt {
    /// Makes a handle in `context`.
    ///
    /// # Errors
    /// [`Error::SoftwareDevice`](crate::Error::SoftwareDevice); [`Error::Call`](crate::Error::Call).
    pub fn new(library: &CublasLtLibrary, context: &Context) -> Result<Self> {
        library.functions.library().check_device(context)?;
        context.bind()?;
        let handle = LtHandle::create(&library.functions)?;
        Ok(Self {
            library: library.clone(),
            handle: QueuedResource::new(context, handle),
        })
    }

    /// The library that it is of.
    pub fn library(&self) -> &CublasLtLibrary {
        &self.library
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        self.handle.context()
    }

    pub(super) fn handle(&self) -> &QueuedResource<LtHandle> {
        &self.handle
    }

    /// Name and version, for messages.
    pub(super) fn described(&self) -> String {
        let library = self.library.functions.library();
        format!("{} {}", library.name(), library.version())
    }
}
