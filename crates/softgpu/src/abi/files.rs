//! Files that a client names, read and written with bounds.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use crate::device::{CuResult, err};

/// A larger file of a module is not read.
pub(super) const MAX_MODULE_BYTES: u64 = 1 << 30;

/// Reads a regular file of at most `most` bytes: a device may have no end, and a pipe no writer.
pub(super) fn contents(path: &str, most: u64) -> CuResult<Vec<u8>> {
    let read = || {
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes: Vec<u8> = read().map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::OutOfMemory => err::OUT_OF_MEMORY,
        _ => err::FILE_NOT_FOUND,
    })?;
    match bytes.len() as u64 <= most {
        true => Ok(bytes),
        false => Err(err::OUT_OF_MEMORY),
    }
}

/// Writes a file: a new one is its user's alone, whatever the umask, and one that exists keeps its
/// mode. What another user has put there, a link or a pipe for instance, is not written to.
pub(super) fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    let create = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let mut file = match create {
        Ok(file) => {
            file.set_permissions(Permissions::from_mode(0o600))?;
            file
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_existing(path)?,
        Err(error) => return Err(error),
    };
    file.write_all(text)
}

fn open_existing(path: &Path) -> io::Result<File> {
    // SAFETY: it has no preconditions.
    let trusted = [0, unsafe { libc::geteuid() }];
    let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
    let named = path.symlink_metadata()?;
    if named.is_symlink() && !trusted.contains(&named.uid()) {
        return Err(refused());
    }
    // No other user can exchange what is the user's, so a link is followed only where one was seen.
    let follow = if named.is_symlink() {
        0
    } else {
        libc::O_NOFOLLOW
    };
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(follow | libc::O_NOCTTY)
        .open(path)?;
    let kind = file.metadata()?;
    // Only root creates devices, whatever user owns them.
    let is_device = kind.mode() & libc::S_IFMT == libc::S_IFCHR;
    if !is_device && !trusted.contains(&kind.uid()) {
        return Err(refused());
    }
    if kind.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{chown, lchown, symlink};

    #[test]
    fn only_a_regular_file_within_the_bound_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("module");
        let name = path.to_str().unwrap();
        fs::write(&path, "12345").unwrap();
        assert_eq!(contents(name, 5).unwrap(), b"12345");
        assert_eq!(contents(name, 4).unwrap_err(), err::OUT_OF_MEMORY);
        let folder = folder.path().to_str().unwrap();
        // The test would not end if a device were read.
        for other in ["/dev/zero", "/dev/null", "/nowhere/it", folder] {
            let refused = contents(other, u64::MAX - 1).unwrap_err();
            assert_eq!(refused, err::FILE_NOT_FOUND, "{other}");
        }
    }

    #[test]
    fn a_new_file_is_its_users_alone_and_an_old_one_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it");
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        write(&path, b"longer").unwrap();
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        write(&path, b"text").unwrap();
        assert_eq!(
            (mode(), fs::read(&path).unwrap()),
            (0o644, b"text".to_vec())
        );
        let link = folder.path().join("link");
        symlink("it", &link).unwrap();
        write(&link, b"by a link").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"by a link");
        write(Path::new("/dev/null"), b"text").unwrap();
        // SAFETY: it has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            return;
        }
        lchown(&link, Some(65534), None).unwrap();
        assert!(write(&link, b"lost").is_err());
        chown(&path, Some(65534), None).unwrap();
        assert!(write(&path, b"lost").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"by a link");
    }
}
