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
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use fercuda_cuda_sys::{Driver, DriverOrigin};
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

/// The loader's list of libraries.
const LOADER_CACHE: &str = "/etc/ld.so.cache";
/// A larger file is not read.
const MAX_CACHE_BYTES: u64 = 64 << 20;

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
    let searched = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let searched = std::env::split_paths(&searched).collect::<Vec<_>>();
    let folders = searched
        .into_iter()
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(NAME));
    let small = fs::metadata(LOADER_CACHE).is_ok_and(|data| data.len() <= MAX_CACHE_BYTES);
    let cache = small.then(|| fs::read(LOADER_CACHE).ok()).flatten();
    let cached = cache.map_or_else(Vec::new, |cache| in_loader_cache(&cache, NAME));
    let usual = DRIVER_FOLDERS
        .iter()
        .map(|folder| Path::new(folder).join(NAME));
    folders.chain(cached).chain(usual).collect()
}

/// The files for a name in the loader's cache (`glibc-ld.so.cache1.1`): a
/// header of 48 bytes, then entries of 24 with the offsets of a name and a path.
fn in_loader_cache(bytes: &[u8], name: &str) -> Vec<PathBuf> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    let mut found = Vec::new();
    if !bytes.starts_with(MAGIC) {
        return found;
    }
    let word = |at: usize| {
        let bytes = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let text = |at: usize| CStr::from_bytes_until_nul(bytes.get(at..)?).ok();
    let count = word(20).unwrap_or(0);
    for entry in 0..count {
        let at = 48 + 24 * entry;
        let (Some(key), Some(path)) = (word(at + 4), word(at + 8)) else {
            break;
        };
        if text(key).is_some_and(|key| key.to_bytes() == name.as_bytes())
            && let Some(path) = text(path)
        {
            found.push(Path::new(std::ffi::OsStr::from_bytes(path.to_bytes())).to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_cache_yields_the_files_of_a_library() {
        let mut cache = b"glibc-ld.so.cache1.1".to_vec();
        cache.extend(2u32.to_le_bytes());
        cache.resize(48, 0);
        let strings = 48 + 2 * 24;
        for (key, path) in [(0, 8), (8 + 12, 40)] {
            cache.extend(0u32.to_le_bytes());
            cache.extend((strings as u32 + key).to_le_bytes());
            cache.extend((strings as u32 + path).to_le_bytes());
            cache.extend([0; 12]);
        }
        let mut text = vec![0u8; 64];
        text[..7].copy_from_slice(b"libc.so");
        text[8..20].copy_from_slice(b"/lib/libc.so");
        text[20 + 1..33].copy_from_slice(b"ibcuda.so.1\0");
        text[20] = b'l';
        cache.extend(&text);
        // The second entry's path lies elsewhere; write it there.
        let at = strings + 40;
        cache[at..at + 16].copy_from_slice(b"/l/libcuda.so.1\0");
        assert_eq!(
            in_loader_cache(&cache, NAME),
            [PathBuf::from("/l/libcuda.so.1")]
        );
    }

    #[test]
    fn a_corrupt_cache_yields_no_files() {
        let mut cache = b"glibc-ld.so.cache1.1".to_vec();
        cache.extend(u32::MAX.to_le_bytes());
        assert!(in_loader_cache(&cache, NAME).is_empty());
        cache.extend([0xff; 400]);
        assert!(in_loader_cache(&cache, NAME).is_empty());
        assert!(in_loader_cache(b"ld.so-1.7.0", NAME).is_empty());
    }
}
