//! Anonymous files that other processes map: sealed against a change of their size.
//!
//! A process with a file's descriptor could otherwise cut it, and a mapping behind its end ends the
//! process that reads there. So our files carry seals, which no process can take off, and a file
//! of another process is accepted only with them. Its name is compared whole: any path may contain
//! the name of a file of ours.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Neither shorter nor longer.
const SIZE_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// A file of `len` bytes, whose size is final.
///
/// # Errors
/// The operating system's.
pub(crate) fn create(name: &CStr, len: u64) -> io::Result<OwnedFd> {
    let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    let done = |rc: i32| match rc {
        0.. => Ok(rc),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: the name is a C string; the descriptor is fresh and not shared.
    let file = unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        OwnedFd::from_raw_fd(done(libc::memfd_create(name.as_ptr(), flags))?)
    };
    // SAFETY: plain system calls on our descriptor.
    unsafe {
        done(libc::ftruncate(file.as_raw_fd(), len))?;
        // Nor may another process seal it against writing.
        let seals = SIZE_SEALS | libc::F_SEAL_SEAL;
        done(libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals))?;
    }
    Ok(file)
}

/// Whether this is a file that [`create`] made under that name, in whatever process.
pub(crate) fn is_ours(file: &OwnedFd, name: &CStr) -> bool {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: plain system call on a descriptor that is open. Other kinds of files have no seals.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    has_name(Path::new(&path), name) && seals >= 0 && seals & SIZE_SEALS == SIZE_SEALS
}

/// Opens another process's file of that name for reading and writing; `None` if it is not
/// one that [`create`] made, or is not to be had.
pub(crate) fn open_of(pid: u32, fd: i32, name: &CStr) -> Option<OwnedFd> {
    let path = format!("/proc/{pid}/fd/{fd}");
    // To open a device or a pipe may have effects, so its name is read before; what was opened
    // counts.
    if !has_name(Path::new(&path), name) {
        return None;
    }
    let opened = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path);
    opened
        .ok()
        .map(OwnedFd::from)
        .filter(|file| is_ours(file, name))
}

/// Whether a descriptor's link in /proc is that of a memfd of exactly this name.
fn has_name(link: &Path, name: &CStr) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    let expected = [b"/memfd:", name.to_bytes(), b" (deleted)"].concat();
    std::fs::read_link(link).is_ok_and(|it| it.as_os_str().as_bytes() == expected)
}

/// The length of a file.
pub(crate) fn len_bytes(file: &OwnedFd) -> io::Result<u64> {
    // SAFETY: an all-zero `stat` is a valid value, and `fstat` writes only into it.
    unsafe {
        let mut st: libc::stat = std::mem::zeroed();
        match libc::fstat(file.as_raw_fd(), &raw mut st) {
            0 => Ok(st.st_size as u64),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &CStr = c"fercuda-test-file";

    /// A memfd as any program can make one.
    fn memfd(name: &CStr, seals: i32) -> OwnedFd {
        // SAFETY: the name is a C string; plain system calls on the fresh descriptor.
        unsafe {
            let fd = libc::memfd_create(name.as_ptr(), libc::MFD_ALLOW_SEALING);
            assert!(fd >= 0);
            assert_eq!(libc::ftruncate(fd, 4096), 0);
            assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
            OwnedFd::from_raw_fd(fd)
        }
    }

    #[test]
    fn the_size_of_a_file_is_final() {
        let file = create(NAME, 8192).unwrap();
        assert!(is_ours(&file, NAME));
        assert_eq!(len_bytes(&file).unwrap(), 8192);
        for len in [0, 4096, 16384] {
            // SAFETY: plain system call on a descriptor that is open.
            assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), len) }, -1);
        }
        // SAFETY: as above.
        let sealed =
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
        assert_eq!(sealed, -1);
        assert_eq!(len_bytes(&file).unwrap(), 8192);
        assert!(create(NAME, u64::MAX).is_err());
    }

    #[test]
    fn a_file_without_both_seals_or_with_another_name_is_not_ours() {
        assert!(is_ours(&memfd(NAME, SIZE_SEALS), NAME));
        for seals in [
            0,
            libc::F_SEAL_SHRINK,
            libc::F_SEAL_GROW,
            libc::F_SEAL_WRITE,
        ] {
            assert!(!is_ours(&memfd(NAME, seals), NAME), "{seals}");
        }
        for name in [
            c"fercuda-test-file-2",
            c"x/memfd:fercuda-test-file",
            c"fercuda-test-file (deleted)",
            c"fercuda-test-fil",
        ] {
            assert!(!is_ours(&memfd(name, SIZE_SEALS), NAME), "{name:?}");
        }
        // A file on disk whose path has the name in it.
        let folder = std::env::temp_dir().join(format!("fercuda-named-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("memfd:fercuda-test-file (deleted)");
        let file = std::fs::File::create_new(&path).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(!is_ours(&file.into(), NAME));
    }
}
