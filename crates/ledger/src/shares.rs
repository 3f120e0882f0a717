//! Files that say how another process opens memory of this one.
//!
//! Who exports a piece of memory leaves a file of a random name; the name is
//! what travels. Who has the name reads there what the driver needs to open the
//! memory, and holds a lock on the file as long as it has it open. So the owner
//! learns, when it frees the memory, whether somebody still uses it; and that
//! somebody may end in any way, for then its locks are gone.
//!
//! Invariants: the name is removed, or the file emptied, before the owner asks
//! for locks, and both are looked at by who has just taken one: so no lock that
//! counts is missed. A file whose owner has no ledger any more is nobody's, and
//! swept.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::process::{Pid, getpid};

use crate::error::{Error, Result};
use crate::folder::Folder;

/// How the names of these files end.
pub(crate) const SHARE: &str = ".share";

const MAGIC: u64 = u64::from_le_bytes(*b"feRshare");
const FORMAT: u64 = 1;
/// Bytes of the driver's own handle.
const HANDLE_BYTES: usize = 64;
/// The most bytes of a ledger's name.
const OWNER_BYTES: usize = 64;
const WORDS: usize = 5;
const FILE_BYTES: usize = WORDS * 8 + OWNER_BYTES + HANDLE_BYTES;

/// What is needed to open a piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The driver's handle of what it is a part of.
    pub handle: [u8; HANDLE_BYTES],
    /// How far in it begins.
    pub offset_bytes: u64,
    /// Its size.
    pub bytes: u64,
    /// The size of what the handle stands for.
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

/// A share that this process has left for others.
#[derive(Debug)]
pub struct Offered {
    /// What others open it by.
    pub name: ShareName,
    /// Open since it was made: to withdraw it nothing has to be opened, which
    /// could fail, or find another file.
    file: File,
}

/// A share that this process has open.
#[derive(Debug)]
pub struct Opened {
    /// What it says.
    pub share: Share,
    /// Its lock says that somebody uses the memory.
    file: File,
    /// Who opened it.
    process: Pid,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // A child that was forked meanwhile has the same lock, and would keep it
        // when this descriptor is closed. In that child it is the parent's.
        if self.process == getpid() {
            let _else_it_goes_with_the_last_descriptor = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// A share that was withdrawn while somebody had it open, as far as could be
/// found out.
#[derive(Debug)]
pub struct Lingering(File);

impl Lingering {
    /// Whether nobody has it open any more, and nobody will. What cannot be
    /// found out counts as open.
    pub fn is_over(&self) -> bool {
        // What has a name still, as it could not be removed, is emptied.
        let is_nameless = self.0.metadata().is_ok_and(|meta| meta.nlink() == 0);
        (is_nameless || self.0.set_len(0).is_ok())
            && flock(&self.0, FlockOperation::NonBlockingLockExclusive).is_ok()
    }
}

fn encoded(share: &Share, owner: &[u8]) -> Option<Vec<u8>> {
    let words = [
        MAGIC,
        FORMAT,
        share.offset_bytes,
        share.bytes,
        share.whole_bytes,
    ];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(owner);
    let begun = WORDS * 8 + OWNER_BYTES;
    (bytes.len() <= begun).then(|| {
        bytes.resize(begun, 0);
        bytes.extend(share.handle);
        bytes
    })
}

/// A share and the ledger of its owner; none if it is no whole file of ours.
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
    // A name in the folder, not a way to somewhere else.
    if owner.contains(&b'/') {
        return None;
    }
    let share = Share {
        handle: handle.try_into().ok()?,
        offset_bytes: word(2)?,
        bytes: word(3)?,
        whole_bytes: word(4)?,
    };
    let end = share.offset_bytes.checked_add(share.bytes)?;
    (end <= share.whole_bytes).then(|| (share, owner.to_owned()))
}

impl Folder {
    /// Leaves a share in the folder, for as long as the process lives whose
    /// ledger this is.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn share(&self, share: &Share, ledger: &Path) -> Result<Offered> {
        let make = || {
            let name = ShareName::fresh()?;
            let owner = ledger.file_name().map_or(&b""[..], OsStr::as_bytes);
            let bytes = encoded(share, owner)
                .ok_or_else(|| io::Error::other("the ledger's name is too long"))?;
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR;
            let made = rustix::fs::openat(self.file(), name.file(), flags, mode)?;
            let mut file = File::from(made);
            match file.write_all(&bytes) {
                Ok(()) => Ok(Offered { name, file }),
                Err(error) => {
                    // A part of it is nobody's, and swept later if it stays.
                    self.remove(OsStr::new(&name.file())).ok();
                    Err(error)
                }
            }
        };
        make().map_err(Error::system("share memory in", self.path()))
    }

    /// Opens a share by its name, if it is there and all of it can be read.
    ///
    /// # Errors
    /// [`Error::System`], [`Error::NotPrivate`].
    pub fn open_share(&self, name: ShareName) -> Result<Opened> {
        let file = self.open_file(OsStr::new(&name.file()))?;
        let look = || {
            flock(&file, FlockOperation::NonBlockingLockShared)?;
            // Withdrawn before it was locked, it is the owner's alone.
            match (file.metadata()?.nlink(), decoded(&file)) {
                (0, _) => Err(io::Error::other("it has just been withdrawn")),
                (_, None) => Err(io::Error::other("it is damaged")),
                (_, Some((share, _))) => Ok(share),
            }
        };
        let path = self.path().join(name.file());
        let share = look().map_err(Error::system("open", path))?;
        Ok(Opened {
            share,
            file,
            process: getpid(),
        })
    }

    /// Takes a share back: nobody opens it any more. What is returned says
    /// whether somebody still has it open; what cannot be found out counts so.
    pub fn withdraw(&self, offered: Offered) -> Option<Lingering> {
        // Not there, it was swept; still there, it is emptied below.
        self.remove(OsStr::new(&offered.name.file())).ok();
        let lingering = Lingering(offered.file);
        (!lingering.is_over()).then_some(lingering)
    }

    /// Whether a share is one that nobody owns, as far as can be found out.
    pub(crate) fn is_stray(&self, file: &File) -> Option<bool> {
        let (_, ledger) = decoded(file)?;
        Some(!self.is_owned(OsStr::from_bytes(&ledger)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_one_that_is_closed_does_not_stay_with_a_forked_child() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::at(&root.path().join("ledgers")).unwrap();
        let share = Share {
            handle: [0; HANDLE_BYTES],
            offset_bytes: 0,
            bytes: 1,
            whole_bytes: 1,
        };
        let offered = folder.share(&share, Path::new("1-1-0.ledger")).unwrap();
        let opened = folder.open_share(offered.name).unwrap();
        // What a child has: another descriptor of the same open file.
        let childs = opened.file.try_clone().unwrap();
        let lingering = folder.withdraw(offered).unwrap();
        assert!(!lingering.is_over());
        drop(opened);
        assert!(lingering.is_over());
        drop(childs);
    }
}
