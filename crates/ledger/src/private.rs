//! Private files: those of this user, which no other user may read or write.
//!
//! Invariant: that is checked on the open descriptor, never on a path.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};

use crate::error::{Error, Result};

/// Opens a file for reading that must be accessible to this user alone, without following a link or
/// waiting for the other end of a pipe.
pub(crate) fn open_private(
    folder: impl rustix::fd::AsFd,
    name: &Path,
    path: &Path,
) -> Result<File> {
    open_private_as(OFlags::RDONLY, folder, name, path)
}

/// As [`open_private`], for reading and writing.
pub(crate) fn open_private_to_write(path: &Path) -> Result<File> {
    open_private_as(OFlags::RDWR, CWD, path, path)
}

fn open_private_as(
    access: OFlags,
    folder: impl rustix::fd::AsFd,
    name: &Path,
    path: &Path,
) -> Result<File> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, Mode::empty())
        .map(File::from)
        .map_err(io::Error::from)
        .map_err(Error::system("open", path))?;
    let meta = private(&file, path)?;
    if !meta.is_file() {
        let why = io::Error::other("it is not a regular file");
        return Err(Error::system("read", path)(why));
    }
    Ok(file)
}

/// Creates a file that is accessible to this user alone, whatever the umask. `access` is to
/// read or to write.
pub(crate) fn create_private(
    access: OFlags,
    folder: impl rustix::fd::AsFd,
    name: impl rustix::path::Arg,
) -> rustix::io::Result<File> {
    let flags = access | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = rustix::fs::openat(folder, name, flags, mode)?;
    rustix::fs::fchmod(&file, mode)?;
    Ok(File::from(file))
}

/// Refuses a file that belongs to another user or is open to others.
pub(crate) fn private(file: &File, path: &Path) -> Result<fs::Metadata> {
    let meta = file.metadata().map_err(Error::system("examine", path))?;
    let uid = rustix::process::geteuid().as_raw();
    if meta.uid() != uid || meta.mode() & 0o77 != 0 {
        return Err(Error::NotPrivate {
            path: path.to_owned(),
            owner: meta.uid(),
            mode: meta.mode() & 0o7777,
            uid,
        });
    }
    Ok(meta)
}
