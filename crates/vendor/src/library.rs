//! Opened libraries, and the search for them.
//!
//! A library is searched for as NVRTC is (`fercuda_nvrtc::find`): the file that its variable names,
//! the wheels of `FERCUDA_WHEELS`, toolkits and Python environments that the user named, places
//! that only the user and root can have changed, the loader's own paths. A candidate that is too
//! old is passed over.
//!
//! Invariant: an opened library is never unloaded, and is of its kind's oldest version at least.

use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use fercuda_cuda::Context;
use fercuda_cuda_sys::{Attempt, OpenError, SharedLibrary};
use fercuda_nvrtc::find::{LibrarySearch, libraries};

use crate::error::{Error, MissingFunction, Result};
use crate::version::LibraryVersion;

/// A library as it is known before it is opened.
#[derive(Debug)]
pub(crate) struct LibraryKind {
    /// Its name in messages.
    pub(crate) name: &'static str,
    /// Its files and the version wanted, for messages.
    pub(crate) wanted: &'static str,
    /// What the user can install.
    pub(crate) advice: &'static str,
    /// How to find it.
    pub(crate) search: LibrarySearch,
    /// The oldest version that has the interface bound here.
    pub(crate) oldest: LibraryVersion,
    /// The symbol that `version` calls.
    pub(crate) version_symbol: &'static str,
    /// Calls the function at this address, which is that of `version_symbol`.
    pub(crate) version: unsafe fn(NonNull<c_void>) -> LibraryVersion,
}

/// A library in this process.
#[derive(Debug)]
pub(crate) struct OpenedLibrary {
    kind: &'static LibraryKind,
    shared: SharedLibrary,
    file: PathBuf,
    version: LibraryVersion,
    /// Whether it was searched for, and so is NVIDIA's, which works on a GPU alone.
    needs_gpu: bool,
}

fn c_name(symbol: &str) -> CString {
    CString::new(symbol).unwrap_or_default()
}

impl OpenedLibrary {
    /// The first library that can be opened and is not too old.
    pub(crate) fn find(kind: &'static LibraryKind) -> Result<Self> {
        let found = libraries(&kind.search);
        let refused = found.refused.into_iter().map(|refused| Attempt {
            reason: format!("not opened, as {refused}"),
            name: refused.path,
        });
        let mut attempts: Vec<Attempt> = refused.collect();
        for file in found.files {
            // SAFETY: libraries of this name, in places that the user named or that only the user
            // and root can write to, where NVIDIA's is installed.
            match unsafe { Self::open_file(kind, &file, true) } {
                Ok(library) => return Ok(library),
                Err(reason) => attempts.push(Attempt { name: file, reason }),
            }
        }
        Err(not_found(kind, attempts))
    }

    /// The library in the file `path`.
    ///
    /// # Safety
    /// The file is a library of this kind, and its work runs on the devices of the contexts that
    /// it is used with; or it does not exist.
    pub(crate) unsafe fn open(kind: &'static LibraryKind, path: &Path) -> Result<Self> {
        // SAFETY: the caller's contract.
        unsafe { Self::open_file(kind, path, false) }.map_err(|reason| {
            let name = path.to_owned();
            not_found(kind, vec![Attempt { name, reason }])
        })
    }

    /// # Safety
    /// As for `open`, on a GPU at least.
    unsafe fn open_file(
        kind: &'static LibraryKind,
        path: &Path,
        needs_gpu: bool,
    ) -> std::result::Result<Self, String> {
        // SAFETY: the caller vouches for the file.
        let shared = unsafe { SharedLibrary::open(path) }?;
        let symbol = kind.version_symbol;
        let address = shared
            .find(&c_name(symbol))
            .ok_or_else(|| format!("it has no `{symbol}`, so it is no {}", kind.name))?;
        // SAFETY: the address of that symbol, in a library that has its interface.
        let version = unsafe { (kind.version)(address) };
        if version < kind.oldest {
            return Err(format!(
                "it is {} {version}, and {} or later is wanted",
                kind.name, kind.oldest
            ));
        }
        let file = SharedLibrary::file_of(address).unwrap_or_else(|| path.to_owned());
        Ok(Self {
            kind,
            shared,
            file,
            version,
            needs_gpu,
        })
    }

    /// Its name in messages.
    pub(crate) fn name(&self) -> &'static str {
        self.kind.name
    }

    /// The file that the loader opened.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    pub(crate) fn version(&self) -> LibraryVersion {
        self.version
    }

    /// Refuses a context of a device on which it does not work.
    pub(crate) fn check_device(&self, context: &Context) -> Result<()> {
        match self.needs_gpu && context.device().cuda().is_software() {
            false => Ok(()),
            true => Err(Error::SoftwareDevice {
                library: self.kind.name,
                device: context.device().to_string(),
            }),
        }
    }

    /// The address of `symbol`, from `slot` if it was resolved before. The error says that
    /// `wanted` is the first version with it.
    pub(crate) fn resolve(
        &self,
        slot: &AtomicPtr<c_void>,
        symbol: &'static str,
        wanted: LibraryVersion,
    ) -> Result<NonNull<c_void>> {
        if let Some(address) = NonNull::new(slot.load(Ordering::Relaxed)) {
            return Ok(address);
        }
        let address = self.shared.find(&c_name(symbol)).ok_or_else(|| {
            Error::MissingFunction(Box::new(MissingFunction {
                library: self.kind.name,
                file: self.file.clone(),
                symbol,
                found: self.version,
                wanted,
            }))
        })?;
        slot.store(address.as_ptr(), Ordering::Relaxed);
        Ok(address)
    }
}

fn not_found(kind: &LibraryKind, attempts: Vec<Attempt>) -> Error {
    Error::NotFound(OpenError {
        library: kind.wanted,
        attempts,
        advice: kind.advice,
    })
}
