//! Mount points: empty directories, mounts by descriptor, and the mount table.
//!
//! Root's mounts are made by descriptors: the same one is validated and mounted over, so the
//! directory's owner cannot replace it in between. Other users mount through a setuid helper.
//!
//! Invariants: nothing is mounted over another mount; a mount is unmounted by its number, and what
//! another program has mounted there since stays.
//! Elsewhere: answering requests (`mount`).

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use fercuda_nvrtc::find::program_of_path;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};

use crate::error::{Error, Result};
use crate::fuse::FIGURES;

/// Source of the mounts, as the mount table shows it.
pub(crate) const SOURCE: &str = "vramfs";
/// The device from which requests are read.
pub(crate) const FUSE: &str = "/dev/fuse";
/// Setuid helpers that mount for unprivileged users.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// Identity of a mount: its number, which is unique from Linux 6.8 on, and its device's, which is
/// unique while it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MountId {
    mount: u64,
    device: (u32, u32),
}

/// Returns the identity of the topmost mount at a path. The mounted filesystem is not queried, as
/// its daemon may have ended.
pub(crate) fn id(at: &Path) -> Result<MountId> {
    let how = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    id_of(CWD, at, how).map_err(|error| refused(at, error))
}

fn id_of(from: impl AsFd, name: &Path, how: AtFlags) -> rustix::io::Result<MountId> {
    // STATX_MNT_ID_UNIQUE; an older kernel ignores it.
    let unique = StatxFlags::from_bits_retain(0x4000);
    let how = how | AtFlags::STATX_DONT_SYNC;
    let known = statx(from, name, how, StatxFlags::MNT_ID | unique)?;
    Ok(MountId {
        mount: known.stx_mnt_id,
        device: (known.stx_dev_major, known.stx_dev_minor),
    })
}

/// A mount's path and identity.
#[derive(Clone, Debug)]
pub struct MountLocation {
    pub(crate) at: PathBuf,
    pub(crate) id: MountId,
}

impl MountLocation {
    pub(crate) fn is_there(&self) -> Result<bool> {
        Ok(id(&self.at)? == self.id)
    }

    /// As [`unmount`], for this mount alone; returns whether it was there. It was not if another
    /// program has unmounted it, or mounted something over it.
    ///
    /// # Errors
    /// As [`unmount`].
    pub fn unmount(&self, lazily: bool) -> Result<bool> {
        match self.is_there()? {
            true => unmount(&self.at, lazily).map(|()| true),
            false => Ok(false),
        }
    }
}

pub(crate) const HINT_PERMISSION: &str =
    "\ntry: as root, or with fusermount3 (of the package fuse3) installed";

pub(crate) fn refused(at: &Path, why: impl Display) -> Error {
    Error::Mount {
        at: at.to_owned(),
        why: why.to_string(),
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Unmounts what is mounted there. If it is in use, only `lazily`: then it is detached at once, and
/// ends with its last use.
///
/// # Errors
/// [`Error::Mount`]: nothing is mounted there, it is in use, or the caller is not permitted to.
pub fn unmount(at: &Path, lazily: bool) -> Result<()> {
    let flags = match lazily {
        true => UnmountFlags::DETACH,
        false => UnmountFlags::empty(),
    };
    match rustix::mount::unmount(at, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(refused(
            at,
            "it is in use\ntry: again when no process has a file or a working directory there, or --lazy",
        )),
        Err(Errno::INVAL) => Err(refused(at, "nothing is mounted there")),
        Err(Errno::PERM) if !is_root() => helped(at, lazily),
        Err(error) => Err(refused(at, error)),
    }
}

fn helped(at: &Path, lazily: bool) -> Result<()> {
    for helper in HELPERS {
        let Some(program) = program_of_path(helper) else {
            continue;
        };
        let mut command = Command::new(program);
        command.arg("-u").args(lazily.then_some("-z"));
        match command.arg("--").arg(at).output() {
            Ok(done) if done.status.success() => return Ok(()),
            Ok(done) => {
                let message = String::from_utf8_lossy(&done.stderr).trim().to_owned();
                return Err(refused(at, format!("{helper} failed: {message}")));
            }
            Err(error) => return Err(refused(at, format!("{helper}: {error}"))),
        }
    }
    Err(refused(
        at,
        format!(
            "another user has mounted it, and only that user and root may unmount it{HINT_PERMISSION}"
        ),
    ))
}

/// An empty directory with nothing mounted over it.
#[derive(Debug)]
pub(crate) struct EmptyDirectory {
    /// The path without symbolic links.
    pub(crate) at: PathBuf,
    directory: OwnedFd,
}

impl EmptyDirectory {
    /// Opens and validates the directory at a path.
    ///
    /// # Errors
    /// [`Error::Mount`]: it is no empty directory, or something is mounted there.
    pub(crate) fn new(at: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| match error.raw_os_error() {
            Some(libc::ENOTCONN) => refused(
                at,
                "the daemon of the filesystem that is mounted there has ended\ntry: fercuda vram umount there first",
            ),
            Some(libc::ENOTDIR) => refused(at, "it is no directory"),
            Some(libc::ENOENT) => refused(at, format!("{error}\ntry: mkdir {}", at.display())),
            _ => refused(at, error),
        };
        let place = at.canonicalize().map_err(failed)?;
        // A part of the path that was replaced by a link since cannot redirect the mount.
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat2(CWD, &place, how, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        let directory = directory.map_err(|error| failed(error.into()))?;
        if let Some(it) = mounted(&place)? {
            let why = format!(
                "{} is mounted there already, of type {}\ntry: another directory, or fercuda vram umount there first",
                it.source, it.kind
            );
            return Err(refused(at, why));
        }
        for entry in Dir::read_from(&directory).map_err(|error| failed(error.into()))? {
            let entry = entry.map_err(|error| failed(error.into()))?;
            let name = entry.file_name().to_string_lossy();
            if name != "." && name != ".." {
                let why = format!(
                    "it has entries, as {name}, which would be hidden\ntry: an empty directory"
                );
                return Err(refused(at, why));
            }
        }
        if !Path::new(FUSE).exists() {
            let why = format!("the kernel has no FUSE: there is no {FUSE}\ntry: modprobe fuse");
            return Err(refused(at, why));
        }
        Ok(Self {
            at: place,
            directory,
        })
    }
}

/// Rights that are disabled on a mount, whatever modes say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountRestrictions {
    /// Setuid and setgid bits have no effect.
    pub suid: bool,
    /// Devices cannot be opened.
    pub dev: bool,
    /// Programs cannot be run.
    pub exec: bool,
}

/// A filesystem that is not attached to a directory yet, and sends requests already.
#[derive(Debug)]
pub(crate) struct DetachedMount {
    context: OwnedFd,
    flags: MountAttrFlags,
}

impl DetachedMount {
    /// Creates one, and returns it with the descriptor of its requests. For root alone.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn new(
        allow_other: bool,
        forbidden: MountRestrictions,
    ) -> rustix::io::Result<(Self, OwnedFd)> {
        let how = OFlags::RDWR | OFlags::CLOEXEC;
        let requests = rustix::fs::open(FUSE, how, Mode::empty())?;
        let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let user = rustix::process::geteuid().as_raw().to_string();
        let group = rustix::process::getegid().as_raw().to_string();
        for (key, value) in [
            ("source", SOURCE),
            ("subtype", SOURCE),
            ("fd", &requests.as_raw_fd().to_string()),
            // The root is a directory.
            ("rootmode", "40000"),
            ("user_id", &user),
            ("group_id", &group),
        ] {
            fsconfig_set_string(&context, key, value)?;
        }
        fsconfig_set_flag(&context, "default_permissions")?;
        if allow_other {
            fsconfig_set_flag(&context, "allow_other")?;
        }
        fsconfig_create(&context)?;
        let mut flags = MountAttrFlags::MOUNT_ATTR_RELATIME;
        for (is_forbidden, flag) in [
            (forbidden.suid, MountAttrFlags::MOUNT_ATTR_NOSUID),
            (forbidden.dev, MountAttrFlags::MOUNT_ATTR_NODEV),
            (forbidden.exec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        ] {
            flags.set(flag, is_forbidden);
        }
        Ok((Self { context, flags }, requests))
    }

    /// Attaches it to a directory.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn attach(&self, free: EmptyDirectory) -> rustix::io::Result<MountLocation> {
        let mount = fsmount(&self.context, FsMountFlags::FSMOUNT_CLOEXEC, self.flags)?;
        let id = id_of(&mount, Path::new(""), AtFlags::EMPTY_PATH)?;
        let both =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(&mount, "", &free.directory, "", both)?;
        Ok(MountLocation { at: free.at, id })
    }
}

/// An entry of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The mount point.
    pub at: PathBuf,
    /// The device's number, which all mounts of the same filesystem share.
    pub device: String,
    /// Whether the whole filesystem is mounted: a bind mount may show one of its directories, or a
    /// file.
    pub is_whole: bool,
    /// The filesystem's type.
    pub kind: String,
    /// The source: a device, or just a word.
    pub source: String,
    /// The user that mounted it, if it is a FUSE filesystem.
    pub user: Option<u32>,
}

impl Mounted {
    /// Returns whether type and source claim to be this filesystem, which any user that may mount
    /// can fake.
    pub fn is_ours(&self) -> bool {
        self.kind.starts_with("fuse") && self.source == SOURCE
    }
}

fn table() -> Result<Vec<Mounted>> {
    const TABLE: &str = "/proc/self/mountinfo";
    let text = std::fs::read(TABLE).map_err(|error| refused(Path::new(TABLE), error))?;
    Ok(parsed(&text))
}

fn parsed(text: &[u8]) -> Vec<Mounted> {
    let of_line = |line: &[u8]| {
        // Number, root and mount point are the third to fifth field; type and source follow a lone
        // dash.
        let mut fields = line.split(|byte| *byte == b' ').map(unescaped);
        let device = String::from_utf8(fields.nth(2)?).ok()?;
        let is_whole = fields.next()? == b"/";
        let at = PathBuf::from(OsString::from_vec(fields.next()?));
        let mut fields = fields.skip_while(|field| field != b"-").skip(1);
        let mut text = || Some(String::from_utf8_lossy(&fields.next()?).into_owned());
        Some(Mounted {
            at,
            device,
            is_whole,
            kind: text()?,
            source: text()?,
            // The kernel's own options, before any that the mounting user may choose.
            user: text().and_then(|it| {
                it.split(',')
                    .find_map(|it| it.strip_prefix("user_id=")?.parse().ok())
            }),
        })
    };
    let lines = text.split(|byte| *byte == b'\n');
    lines.filter_map(of_line).collect()
}

/// Returns what is mounted at a path, if anything is: the last entry, which is on top.
///
/// # Errors
/// [`Error::Mount`] if the mount table cannot be read.
pub fn mounted(at: &Path) -> Result<Option<Mounted>> {
    Ok(table()?.into_iter().rfind(|it| it.at == at))
}

/// Returns whether any part of a filesystem is mounted anywhere.
///
/// # Errors
/// [`Error::Mount`] if the mount table cannot be read.
pub fn is_anywhere(device: &str) -> Result<bool> {
    Ok(table()?.iter().any(|it| it.device == device))
}

/// Returns the mounts that claim to be this filesystem: each once, at the first path that has all
/// of it and nothing on top.
///
/// # Errors
/// [`Error::Mount`] if the mount table cannot be read.
pub fn all() -> Result<Vec<Mounted>> {
    Ok(each(table()?))
}

fn each(table: Vec<Mounted>) -> Vec<Mounted> {
    // The last entry at a path covers those before.
    let on_top: HashMap<PathBuf, String> = table
        .iter()
        .map(|it| (it.at.clone(), it.device.clone()))
        .collect();
    let is_seen = |it: &Mounted| on_top.get(&it.at) == Some(&it.device);
    let mut met = HashSet::new();
    let is_new =
        |it: &Mounted| it.is_ours() && it.is_whole && is_seen(it) && met.insert(it.device.clone());
    table.into_iter().filter(is_new).collect()
}

/// Decodes a field: spaces and the like are a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| byte == b'\\');
        let value = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(value.unwrap_or(byte));
        rest = match value {
            Some(_) => &behind[3..],
            None => behind,
        };
    }
    bytes
}

/// Returns the statistics of the filesystem that is mounted there: names and values, a line each.
///
/// # Errors
/// [`Error::Mount`] if it is not this filesystem.
pub fn figures(at: &Path) -> Result<String> {
    let mut value = vec![0; 1 << 16];
    let len = rustix::fs::getxattr(at, FIGURES, &mut value[..]);
    let len = len.map_err(|error| match error {
        Errno::NOTCONN => refused(
            at,
            "its daemon has ended, and what it held is gone\ntry: fercuda vram umount there",
        ),
        Errno::NOENT | Errno::ACCESS => refused(at, error),
        _ => refused(
            at,
            "it is not where such a filesystem is mounted\ntry: the directory that was given to fercuda vram mount",
        ),
    })?;
    value.truncate(len);
    String::from_utf8(value).map_err(|_| refused(at, "its figures are no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filesystem_that_is_bound_elsewhere_too_is_one() {
        let text = b"24 1 8:1 / / rw - ext4 /dev/sda1 rw
61 24 0:50 / /mnt/a rw - fuse.vramfs vramfs rw,user_id=7,group_id=7
62 24 0:50 /in /mnt/part rw shared:1 - fuse.vramfs vramfs rw,user_id=7,group_id=7
63 24 0:50 / /mnt/again rw - fuse.vramfs vramfs rw,user_id=7,group_id=7
64 24 0:51 / /mnt/b\\040c rw - fuse.vramfs vramfs rw,user_id=0,group_id=0
65 24 0:52 / /mnt/other rw - fuse.other other rw,user_id=0,group_id=0
66 24 0:53 / /mnt/c rw - fuse.vramfs vramfs rw,user_id=0,group_id=0
67 24 0:53 / /mnt/d rw - fuse.vramfs vramfs rw,user_id=0,group_id=0
68 66 0:54 / /mnt/c rw - tmpfs none rw
";
        let table = parsed(text);
        let part = &table[2];
        assert_eq!((&*part.device, part.is_whole), ("0:50", false));
        let all = each(table);
        let all: Vec<_> = all
            .iter()
            .map(|it| (it.at.to_str().unwrap(), it.user))
            .collect();
        let expected = [
            ("/mnt/a", Some(7)),
            ("/mnt/b c", Some(0)),
            ("/mnt/d", Some(0)),
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn paths_with_spaces_are_found_among_mounts() {
        assert_eq!(unescaped(br"/a\040b\134c\x"), br"/a b\c\x");
        assert_eq!(unescaped(b"\\04"), b"\\04");
        assert!(mounted(Path::new("/proc")).unwrap().is_some());
        assert_eq!(mounted(Path::new("/proc/self")).unwrap(), None);
    }
}
