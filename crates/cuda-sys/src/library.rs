//! Shared libraries, opened once, and their symbols.
//!
//! Invariant: an opened library stays loaded until the process exits, so an address found in it
//! never dangles. NVIDIA's libraries start threads and register exit handlers, so unloading them
//! would crash the process.

use core::ffi::{CStr, c_void};
use core::ptr::NonNull;
use std::ffi::CString;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::library_search::{files_of_library, is_searched_relatively};

/// A shared library that is never unloaded.
#[derive(Clone, Copy, Debug)]
pub struct SharedLibrary {
    handle: NonNull<c_void>,
}

// SAFETY: the loader's handle may be used from any thread, and it is never
// closed.
unsafe impl Send for SharedLibrary {}
// SAFETY: as above.
unsafe impl Sync for SharedLibrary {}

/// A name passed to the loader, and the loader's error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// A file, or a bare name that the loader searches for.
    pub name: PathBuf,
    /// The loader's message.
    pub reason: String,
}

/// A library could not be opened under any of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenError {
    /// The library's usual name, for instance `libcuda.so.1`.
    pub library: &'static str,
    /// Everything that was tried, in order.
    pub attempts: Vec<Attempt>,
    /// What the user can do about it.
    pub advice: &'static str,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot open {}", self.library)?;
        for attempt in &self.attempts {
            write!(
                f,
                "\n  tried {}: {}",
                attempt.name.display(),
                attempt.reason
            )?;
        }
        write!(f, "\ntry: {}", self.advice)
    }
}

impl std::error::Error for OpenError {}

impl SharedLibrary {
    /// Loads the first of `names` that can be loaded.
    ///
    /// # Errors
    /// [`OpenError`] with the loader's reason for each name.
    ///
    /// # Safety
    /// Loading runs the library's initialisers, which must be safe to run in this process now.
    pub unsafe fn open_first(
        library: &'static str,
        names: impl IntoIterator<Item = PathBuf>,
        advice: &'static str,
    ) -> Result<(Self, PathBuf), OpenError> {
        let mut attempts = Vec::new();
        for name in names {
            // SAFETY: the caller vouches for the initialisers.
            match unsafe { Self::open(&name) } {
                Ok(opened) => return Ok((opened, name)),
                Err(reason) => attempts.push(Attempt { name, reason }),
            }
        }
        Err(OpenError {
            library,
            attempts,
            advice,
        })
    }

    /// Loads one file, or the library that the loader finds under a bare name. Entries of
    /// `LD_LIBRARY_PATH` that are not absolute are passed over.
    ///
    /// # Errors
    /// The loader's message.
    ///
    /// # Safety
    /// As for [`SharedLibrary::open_first`].
    pub unsafe fn open(name: &Path) -> Result<Self, String> {
        if !is_searched_relatively(name) {
            // SAFETY: the caller vouches for the initialisers.
            return unsafe { Self::open_by_loader(name, 0) };
        }
        // One that is loaded already, a preloaded one for instance, is the library of this name.
        // SAFETY: nothing is loaded.
        if let Ok(loaded) = unsafe { Self::open_by_loader(name, libc::RTLD_NOLOAD) } {
            return Ok(loaded);
        }
        let mut reason = "it is in no absolute folder of LD_LIBRARY_PATH or the loader".to_owned();
        for file in files_of_library(&name.to_string_lossy()) {
            // SAFETY: the caller vouches for the initialisers.
            match unsafe { Self::open_by_loader(&file, 0) } {
                Ok(library) => return Ok(library),
                Err(message) => reason = message,
            }
        }
        Err(reason)
    }

    /// Calls `dlopen` with these flags beside the usual ones.
    ///
    /// # Safety
    /// As for [`SharedLibrary::open_first`].
    unsafe fn open_by_loader(name: &Path, flags: libc::c_int) -> Result<Self, String> {
        let c_name = CString::new(name.as_os_str().as_encoded_bytes())
            .map_err(|_| "the name contains a zero byte".to_owned())?;
        let flags = flags | libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY: `c_name` is a C string that outlives the call; the caller
        // vouches for the initialisers.
        let handle = unsafe { libc::dlopen(c_name.as_ptr(), flags) };
        NonNull::new(handle)
            .map(|handle| Self { handle })
            .ok_or_else(loader_message)
    }

    /// The address of `symbol`, if the library or one it depends on has it.
    pub fn find(&self, symbol: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: `handle` came from dlopen and is never closed.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), symbol.as_ptr()) })
    }

    /// The file that contains `address`, as the loader names it.
    pub fn file_of(address: NonNull<c_void>) -> Option<PathBuf> {
        let mut info = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: dladdr accepts any address and fills `info` when it
        // returns non-zero.
        if unsafe { libc::dladdr(address.as_ptr(), info.as_mut_ptr()) } == 0 {
            return None;
        }
        // SAFETY: filled, as dladdr returned non-zero.
        let file = unsafe { info.assume_init() }.dli_fname;
        if file.is_null() {
            return None;
        }
        // SAFETY: the loader's own C string, alive while the object is loaded.
        let file = unsafe { CStr::from_ptr(file) };
        Some(PathBuf::from(file.to_string_lossy().into_owned()))
    }
}

fn loader_message() -> String {
    // SAFETY: dlerror returns null or a C string that lives until the next
    // call of a loader function by this thread; it is copied here.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the loader reported no reason".to_owned();
    }
    // SAFETY: not null, see above.
    unsafe { CStr::from_ptr(message) }
        .to_string_lossy()
        .into_owned()
}
