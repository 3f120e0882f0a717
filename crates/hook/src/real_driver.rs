//! The real driver's library, opened by its path.
//!
//! The loader takes the hook for `libcuda.so.1`, so the driver is opened by the path that
//! the launcher sets, or the first one found where the loader would search.
//!
//! Invariants: the hook never opens itself. No lock of ours is held while the loader runs:
//! the loader has a lock, and a library's constructor, which runs under it, may be the
//! next caller of the driver.

use core::ffi::{CStr, c_void};
use core::ptr::NonNull;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use fercuda_cuda_sys::{Driver, DriverOrigin, files_of_library};
use fercuda_regime::{RealDriver, config, set_real_driver};

use crate::next_definition;
use crate::own_library::{identity, own_file};

const NAME: &str = "libcuda.so.1";

/// Where drivers are installed, besides the loader's configured folders.
const DRIVER_FOLDERS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/cuda/compat",
];

/// Returns what to hand out for a function, by the requested name and the driver's address
/// of it; see [`RealDriver::new`].
pub(crate) type NotingStub = fn(&[u8], NonNull<c_void>) -> Option<NonNull<c_void>>;

/// The real driver, opened by the first call, with these stubs; `None` on a machine without
/// one.
pub(crate) fn real_driver(stub: NotingStub) -> Option<&'static RealDriver> {
    fercuda_regime::real_driver().unwrap_or_else(|| open_once(stub))
}

/// Opens the driver. Concurrent threads each open it, which is one library to the loader,
/// and all use what the first one found.
#[cold]
fn open_once(stub: NotingStub) -> Option<&'static RealDriver> {
    set_real_driver(open(stub))
}

fn open(stub: NotingStub) -> Option<RealDriver> {
    let own = own_file();
    let named = config().driver.clone();
    let candidates = match named {
        Some(path) => vec![path],
        None => candidate_paths(),
    };
    for path in candidates {
        if !path.is_absolute() || own.is_some() && identity(&path) == own {
            continue;
        }
        let Ok(name) = CString::new(path.as_os_str().as_bytes()) else {
            continue;
        };
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
        // SAFETY: `name` outlives the call. A library of this name is the
        // driver; its initialisers are meant to run in any process.
        let Some(handle) = NonNull::new(unsafe { next_definition::open(name.as_ptr(), flags) })
        else {
            continue;
        };
        let raw = handle.as_ptr() as usize;
        let find = move |symbol: &CStr| {
            // SAFETY: the handle is never closed.
            NonNull::new(unsafe { libc::dlsym(raw as *mut c_void, symbol.as_ptr()) })
        };
        // SAFETY: the driver's exports have the types of the functions they name.
        let driver = unsafe { Driver::from_resolver(Box::new(find), DriverOrigin::Library(path)) };
        // Lives as long as the process, like the library.
        let driver = Box::leak(Box::new(driver));
        // No export has a name with a zero in it.
        let by_name = move |name: &str| find(&CString::new(name).ok()?);
        return Some(RealDriver::new(driver, Box::new(by_name), stub));
    }
    None
}

/// Paths where a driver may be, the likeliest first.
fn candidate_paths() -> Vec<PathBuf> {
    let usual = DRIVER_FOLDERS
        .iter()
        .map(|folder| Path::new(folder).join(NAME));
    files_of_library(NAME).into_iter().chain(usual).collect()
}
