//! Own file and addresses of this library, as the loader knows them.

use core::ffi::{CStr, c_char, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Whether an address is in this library.
pub(crate) fn is_own(address: *const c_void) -> bool {
    let base = |of| object(of).map(|object| object.dli_fbase);
    base(address) == base(own_path as *const c_void)
}

/// The file that this code was loaded from.
pub(crate) fn own_path() -> Option<&'static CStr> {
    let name: *const c_char = object(own_path as *const c_void)?.dli_fname;
    // SAFETY: the loader's own string for an object that is never unloaded.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
}

/// Device and inode of that file.
pub(crate) fn own_file() -> Option<(u64, u64)> {
    let name = own_path()?.to_bytes();
    identity(Path::new(std::ffi::OsStr::from_bytes(name)))
}

/// Device and inode of a file.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    let data = fs::metadata(path).ok()?;
    Some((data.dev(), data.ino()))
}

/// The loaded object that contains an address.
fn object(address: *const c_void) -> Option<libc::Dl_info> {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: dladdr accepts any address; `info` is filled if it answers so.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    // SAFETY: filled, see above.
    (found != 0).then(|| unsafe { info.assume_init() })
}
