//! Share files, through which another process opens memory of this one.
//!
//! A process that exports a piece of memory leaves a file of a random name; the name is passed to
//! other processes. A process that has the name reads in the file what the driver needs to open the
//! memory, and holds a lock on the file while it has the memory open. So the owner learns, when it
//! frees the memory, whether another process still uses it; such a process may end in any way,
//! since the kernel then releases its locks.
//!
//! Invariants: the name is removed, or the file emptied, before the owner checks for locks, and a
//! process that has just taken a lock checks both: so no lock that counts is missed. A share is
//! stale, and swept, if its owner has no ledger any more.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::{Pid, getpid};

use crate::error::{Error, Result};
use crate::folder::{Folder, SHARE};
use crate::private::create_private;

const MAGIC: u64 = u64::from_le_bytes(*b"feRshare");
const FORMAT: u64 = 2;
/// Bytes of the driver's IPC handle.
const HANDLE_BYTES: usize = 64;
/// The most bytes of a ledger's name.
const OWNER_BYTES: usize = 64;
const WORDS: usize = 6;
const FILE_BYTES: usize = WORDS * 8 + OWNER_BYTES + HANDLE_BYTES;

/// How another process opens the memory of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareSource {
    /// By the driver's IPC handle of the allocation it is a part of.
    Handle([u8; HANDLE_BYTES]),
    /// By the descriptors of its pieces, for which the owner is asked ([`Folder::connect`]).
    Descriptors,
}

/// The words that denote the two.
const BY_HANDLE: u64 = 0;
const BY_DESCRIPTORS: u64 = 1;

/// The data needed to open a piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// How it is opened.
    pub source: ShareSource,
    /// Its offset in the whole that is opened.
    pub offset_bytes: u64,
    /// Its size.
    pub bytes: u64,
    /// The size of the whole.
    pub whole_bytes: u64,
}

/// The random name of a share.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShareName(pub [u8; 16]);

impl ShareName {
    fn fresh() -> io::Result<ShareName> {
        let mut bytes = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(ShareName(bytes))
    }

    fn file(self) -> String {
        format!("{self:?}{SHARE}")
    }
}

impl fmt::Debug for ShareName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Identifies the file of a share, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareFileId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl ShareFileId {
    fn of(file: &File) -> io::Result<ShareFileId> {
        let meta = file.metadata()?;
        Ok(ShareFileId {
            device: meta.dev(),
            inode: meta.ino(),
        })
    }
}

/// A share that this process offers to others.
#[derive(Debug)]
pub struct OfferedShare {
    /// The name that others open it by.
    pub name: ShareName,
    /// Its file, on which others hold locks.
    pub id: ShareFileId,
    /// Open since it was created: withdrawing opens nothing, which could fail or find another file.
    file: File,
}

/// A share that this process has open.
#[derive(Debug)]
pub struct OpenedShare {
    /// Its content.
    pub share: Share,
    /// The name that it was opened by.
    pub name: ShareName,
    /// The file that is locked.
    pub id: ShareFileId,
    /// The name of its owner's ledger.
    pub(crate) owner: Vec<u8>,
    /// Its lock marks the memory as in use.
    file: File,
    /// The process that opened it.
    process: Pid,
}

impl Drop for OpenedShare {
    fn drop(&mut self) {
        // A child forked in between holds the same lock, and would keep it when this descriptor is
        // closed. In that child the lock is the parent's.
        if self.process == getpid() {
            let _else_it_goes_with_the_last_descriptor = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// A share that was withdrawn while another process had it open, or may have had.
#[derive(Debug)]
pub struct LingeringShare(File);

impl LingeringShare {
    /// Whether no process has it open any more, and none will. An undetermined state counts as
    /// open.
    pub fn is_over(&self) -> bool {
        // A file that could not be removed still has a name, so it is emptied.
        let is_nameless = self.0.metadata().is_ok_and(|meta| meta.nlink() == 0);
        (is_nameless || self.0.set_len(0).is_ok())
            && flock(&self.0, FlockOperation::NonBlockingLockExclusive).is_ok()
    }
}

fn encoded(share: &Share, owner: &[u8]) -> Option<Vec<u8>> {
    let (source, handle) = match share.source {
        ShareSource::Handle(handle) => (BY_HANDLE, handle),
        ShareSource::Descriptors => (BY_DESCRIPTORS, [0; HANDLE_BYTES]),
    };
    let words = [
        MAGIC,
        FORMAT,
        share.offset_bytes,
        share.bytes,
        share.whole_bytes,
        source,
    ];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(owner);
    let begun = WORDS * 8 + OWNER_BYTES;
    (bytes.len() <= begun).then(|| {
        bytes.resize(begun, 0);
        bytes.extend(handle);
        bytes
    })
}

/// A share and the name of its owner's ledger; `None` if the file is not a whole share of ours.
fn decoded(file: &File) -> Option<(Share, Vec<u8>)> {
    if file.metadata().ok()?.len() != FILE_BYTES as u64 {
        return None;
    }
    let mut bytes = [0; FILE_BYTES];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let (words, _) = bytes.as_chunks::<8>();
    let word = |at: usize| words.get(at).map(|word| u64::from_le_bytes(*word));
    if word(0)? != MAGIC || word(1)? != FORMAT {
        return None;
    }
    let (owner, handle) = bytes[WORDS * 8..].split_at(OWNER_BYTES);
    let owner = owner.split(|byte| *byte == 0).next()?;
    // A name in the folder, not a path out of it.
    if owner.contains(&b'/') {
        return None;
    }
    let share = Share {
        source: match word(5)? {
            BY_HANDLE => ShareSource::Handle(handle.try_into().ok()?),
            BY_DESCRIPTORS => ShareSource::Descriptors,
            _ => return None,
        },
        offset_bytes: word(2)?,
        bytes: word(3)?,
        whole_bytes: word(4)?,
    };
    let end = share.offset_bytes.checked_add(share.bytes)?;
    (end <= share.whole_bytes).then(|| (share, owner.to_owned()))
}

impl Folder {
    /// Creates a share in the folder, for as long as the process lives that owns `ledger`.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn share(&self, share: &Share, ledger: &Path) -> Result<OfferedShare> {
        let make = || {
            let name = ShareName::fresh()?;
            let owner = ledger.file_name().map_or(&b""[..], OsStr::as_bytes);
            let bytes = encoded(share, owner)
                .ok_or_else(|| io::Error::other("the ledger's name is too long"))?;
            let mut file = create_private(OFlags::WRONLY, self.file(), name.file())?;
            let written = file.write_all(&bytes);
            match written.and_then(|()| ShareFileId::of(&file)) {
                Ok(id) => Ok(OfferedShare { name, id, file }),
                Err(error) => {
                    // A partial file has no owner, and is swept later if it stays.
                    self.remove(OsStr::new(&name.file())).ok();
                    Err(error)
                }
            }
        };
        make().map_err(Error::system("share memory in", self.path()))
    }

    /// Opens a share by its name, if it exists and can be read as a whole.
    ///
    /// # Errors
    /// [`Error::System`], [`Error::NotPrivate`].
    pub fn open_share(&self, name: ShareName) -> Result<OpenedShare> {
        let file = self.open_file(OsStr::new(&name.file()))?;
        let look = || {
            flock(&file, FlockOperation::NonBlockingLockShared)?;
            // If it was withdrawn before the lock was taken, only the owner has it.
            match (file.metadata()?.nlink(), decoded(&file)) {
                (0, _) => Err(io::Error::other("it has just been withdrawn")),
                (_, None) => Err(io::Error::other("it is damaged")),
                (_, Some((share, owner))) => Ok((share, owner, ShareFileId::of(&file)?)),
            }
        };
        let path = self.path().join(name.file());
        let (share, owner, id) = look().map_err(Error::system("open", path))?;
        Ok(OpenedShare {
            share,
            name,
            id,
            owner,
            file,
            process: getpid(),
        })
    }

    /// Withdraws a share: no process opens it any more. Returns `Some` if a process still has it
    /// open, or if that could not be determined.
    pub fn withdraw(&self, offered: OfferedShare) -> Option<LingeringShare> {
        // If the file is not there, it was swept; if it is still there, it is emptied below.
        self.remove(OsStr::new(&offered.name.file())).ok();
        let lingering = LingeringShare(offered.file);
        (!lingering.is_over()).then_some(lingering)
    }

    /// Whether a share has no living owner; `None` if the share cannot be decoded.
    pub(crate) fn is_stray(&self, file: &File) -> Option<bool> {
        let (_, ledger) = decoded(file)?;
        Some(!self.is_owned(OsStr::from_bytes(&ledger)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no locks of files and no fork")]
    fn a_closed_shares_lock_does_not_stay_with_a_forked_child() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::at(&root.path().join("ledgers")).unwrap();
        let share = Share {
            source: ShareSource::Descriptors,
            offset_bytes: 0,
            bytes: 1,
            whole_bytes: 1,
        };
        let offered = folder.share(&share, Path::new("1-1-0.ledger")).unwrap();
        let opened = folder.open_share(offered.name).unwrap();
        // The child's view: another descriptor of the same open file.
        let childs = opened.file.try_clone().unwrap();
        let lingering = folder.withdraw(offered).unwrap();
        assert!(!lingering.is_over());
        drop(opened);
        assert!(lingering.is_over());
        drop(childs);
    }
}
