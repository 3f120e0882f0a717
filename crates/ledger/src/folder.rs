//! The folder of this user's ledgers: creating, finding and sweeping files in it.
//!
//! Invariant: a file opened here belongs to this user and no other user may read or write it; that
//! is checked on the open descriptor, never on a path. A file gets its name once it is locked and
//! its header written, so a named file without a lock is a ledger of an owner that is gone.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::process::Resource;

use crate::error::{Error, Result};
use crate::format::FILE_BYTES;
use crate::owner::{OwnerProcess, is_locked};
use crate::private::{create_private, open_private, private};
use crate::reader::LedgerReader;

/// The suffix of a ledger's name.
pub(crate) const LEDGER: &str = ".ledger";
/// The suffix before the ledger is ready.
const DRAFT: &str = ".draft";
/// The suffix of the file by which a launcher holds a run.
const HELD: &str = ".held";
/// The suffix of a share's name.
pub(crate) const SHARE: &str = ".share";
/// The suffix of the name of a socket, which is that of its owner's ledger but for the suffix.
pub(crate) const SOCKET: &str = ".socket";
/// How many ledgers of held runs a sweep leaves: a bound on the disk space they take.
const LEFT_OF_RUNS: usize = 256;
/// An older draft was left behind by a process that ended.
const DRAFT_LIFE: Duration = Duration::from_secs(60);
/// The most ledgers that one process may have.
const NUMBERS: u32 = 1000;

/// A private folder of ledgers.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    file: File,
}

impl Folder {
    /// The folder of this user, created if missing: `$XDG_RUNTIME_DIR/fercuda` if that variable
    /// names a private folder of this user, else `/run/user/UID/fercuda` on the same condition,
    /// else `$HOME/.cache/fercuda/ledgers`.
    ///
    /// # Errors
    /// [`Error::NoFolder`]; else as [`Folder::at`].
    pub fn from_env() -> Result<Folder> {
        let uid = rustix::process::geteuid().as_raw();
        let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let usual = Path::new("/run/user").join(uid.to_string());
        for base in runtime.into_iter().chain([usual]) {
            let private = fs::metadata(&base)
                .is_ok_and(|meta| meta.is_dir() && meta.uid() == uid && meta.mode() & 0o77 == 0);
            if private && base.is_absolute() {
                return Folder::at(&base.join("fercuda"));
            }
        }
        let home = env::var_os("HOME")
            .map(PathBuf::from)
            .filter(|home| home.is_absolute())
            .ok_or(Error::NoFolder { uid })?;
        Folder::at(&home.join(".cache/fercuda/ledgers"))
    }

    /// The folder `path`, created with mode 0700 if missing.
    ///
    /// # Errors
    /// [`Error::NotPrivate`] if it belongs to another user or is open to others; [`Error::System`]
    /// if it cannot be created or is a symbolic link.
    pub fn at(path: &Path) -> Result<Folder> {
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(path)
            .map_err(Error::system("make the folder", path))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .map(File::from)
            .map_err(io::Error::from)
            .map_err(Error::system("open the folder", path))?;
        private(&file, path)?;
        Ok(Folder {
            path: path.to_owned(),
            file,
        })
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens every ledger in the folder, in the order of their names. A ledger that cannot be
    /// opened is returned as an error beside the others.
    ///
    /// # Errors
    /// [`Error::System`] if the folder cannot be read.
    pub fn ledgers(&self) -> Result<Vec<Result<LedgerReader>>> {
        let mut names = self.names(LEDGER)?;
        names.sort();
        let found = names.iter().map(|name| self.open(OsStr::from_bytes(name)));
        // A ledger swept since the listing is left out.
        Ok(found.filter(|found| !is_absent(found)).collect())
    }

    /// Keeps the ledgers of a run after their owners are gone, until the hold is dropped or its
    /// process ends: for a launcher that reports on the run.
    ///
    /// # Errors
    /// [`Error::System`] if the file cannot be created, or if the run is already held.
    pub fn hold(&self, run: NonZeroU64) -> Result<RunHold<'_>> {
        let name = held_name(run);
        let make = || -> io::Result<File> {
            let file = create_private(OFlags::RDONLY, &self.file, &name)?;
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            Ok(file)
        };
        let file = make().map_err(Error::system("make", self.path.join(&name)))?;
        Ok(RunHold {
            folder: self,
            name,
            _file: file,
        })
    }

    fn is_held(&self, run: NonZeroU64) -> bool {
        let name = held_name(run);
        self.open(OsStr::new(&name))
            .is_ok_and(|held| is_locked(held.file()))
    }

    /// Removes the ledgers of owners that are gone and of runs that are not held, and returns how
    /// many. A reader that has one open can still read it.
    ///
    /// # Errors
    /// [`Error::System`] if the folder cannot be read or a file cannot be removed.
    pub fn sweep(&self) -> Result<usize> {
        let mut swept = 0;
        let mut left = 0;
        for name in self.names(LEDGER)? {
            let name = OsStr::from_bytes(&name);
            // Files that are not ours are left alone.
            if let Ok(reader) = self.open(name)
                && !reader.is_owned()
            {
                let held = reader.run().is_some_and(|run| self.is_held(run));
                if held && left < LEFT_OF_RUNS {
                    left += 1;
                } else {
                    swept += usize::from(self.remove(name)?);
                }
            }
        }
        for name in self.names(HELD)? {
            let name = OsStr::from_bytes(&name);
            // A recent file may be about to be locked.
            if let Ok(held) = self.open(name)
                && is_old(held.file())
                && !is_locked(held.file())
            {
                self.remove(name)?;
            }
        }
        for name in self.names(SHARE)? {
            let name = OsStr::from_bytes(&name);
            // An unreadable file may be about to be written.
            if let Ok(file) = self.open_file(name)
                && self.is_stray(&file).unwrap_or_else(|| is_old(&file))
            {
                self.remove(name)?;
            }
        }
        for name in self.names(SOCKET)? {
            let stem = name.strip_suffix(SOCKET.as_bytes()).unwrap_or(&name);
            let ledger = [stem, LEDGER.as_bytes()].concat();
            if !self.is_owned(OsStr::from_bytes(&ledger)) {
                self.remove(OsStr::from_bytes(&name))?;
            }
        }
        for name in self.names(DRAFT)? {
            let name = OsStr::from_bytes(&name);
            if let Ok(reader) = self.open(name)
                && is_old(reader.file())
                && !reader.is_owned()
            {
                swept += usize::from(self.remove(name)?);
            }
        }
        Ok(swept)
    }

    /// Names in the folder with the suffix `end`.
    fn names(&self, end: &str) -> Result<Vec<Vec<u8>>> {
        let read = || -> io::Result<Vec<Vec<u8>>> {
            let mut names = Vec::new();
            for entry in rustix::fs::Dir::read_from(&self.file)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if name.ends_with(end.as_bytes()) {
                    names.push(name.to_owned());
                }
            }
            Ok(names)
        };
        read().map_err(Error::system("read the folder", &self.path))
    }

    fn open(&self, name: &OsStr) -> Result<LedgerReader> {
        let file = self.open_file(name)?;
        Ok(LedgerReader::new(file, self.path.join(name)))
    }

    /// Opens a file in the folder that is accessible to this user alone.
    pub(crate) fn open_file(&self, name: &OsStr) -> Result<File> {
        open_private(&self.file, Path::new(name), &self.path.join(name))
    }

    /// Whether a ledger of this name and its owner exist; true unless the contrary was observed.
    pub(crate) fn is_owned(&self, ledger: &OsStr) -> bool {
        match self.open(ledger) {
            Ok(reader) => reader.is_owned(),
            unopened => !is_absent(&unopened),
        }
    }

    /// The folder itself.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Removes a file; returns whether it existed.
    pub(crate) fn remove(&self, name: &OsStr) -> Result<bool> {
        match rustix::fs::unlinkat(&self.file, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(Error::system("remove", self.path.join(name))(errno.into())),
        }
    }

    /// Creates a locked file of [`FILE_BYTES`] zeros for `process`, with disk space reserved, that
    /// no reader finds yet.
    pub(crate) fn draft(&self, process: &OwnerProcess) -> Result<LedgerDraft<'_>> {
        let stem = format!("{}-{}", process.pid, process.start_ticks);
        for number in 0..NUMBERS {
            let name = format!("{stem}-{number}{DRAFT}");
            let doing = |doing| Error::system(doing, self.path.join(&name));
            match create_private(OFlags::RDWR, &self.file, &name) {
                Ok(file) => {
                    let draft = LedgerDraft {
                        folder: self,
                        file: Some(file),
                        stem,
                        name: name.clone(),
                    };
                    draft.prepare().map_err(doing("lock and reserve"))?;
                    return Ok(draft);
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(doing("make")(errno.into())),
            }
        }
        Err(self.too_many())
    }

    fn too_many(&self) -> Error {
        Error::system("make another ledger in", &self.path)(Errno::EXIST.into())
    }
}

/// Keeps the ledgers of a run: see [`Folder::hold`].
#[derive(Debug)]
pub struct RunHold<'a> {
    folder: &'a Folder,
    name: String,
    /// Its lock marks the run as held.
    _file: File,
}

impl Drop for RunHold<'_> {
    fn drop(&mut self) {
        // A file that cannot be removed here is swept later.
        self.folder.remove(OsStr::new(&self.name)).ok();
    }
}

fn held_name(run: NonZeroU64) -> String {
    format!("{run:016x}{HELD}")
}

/// An unnamed ledger; removed on drop unless published.
pub(crate) struct LedgerDraft<'a> {
    folder: &'a Folder,
    /// `None` once published.
    file: Option<File>,
    stem: String,
    name: String,
}

impl LedgerDraft<'_> {
    fn prepare(&self) -> io::Result<()> {
        let file = self.file()?;
        let len_bytes = FILE_BYTES as u64;
        // Beyond this limit the system would kill the process with SIGXFSZ instead of returning an
        // error.
        let limit = rustix::process::getrlimit(Resource::Fsize).current;
        if limit.is_some_and(|limit_bytes| limit_bytes < len_bytes) {
            return Err(Errno::FBIG.into());
        }
        rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)?;
        // Setting the length alone would do until the disk is full: the write that finds no space
        // then kills the process. If space cannot be reserved there is no ledger.
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len_bytes)?;
        Ok(())
    }

    /// The file, empty and locked.
    pub(crate) fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| Errno::BADF.into())
    }

    /// Publishes the draft under its name: readers can find it. The lock belongs to the file.
    pub(crate) fn publish(mut self) -> Result<(File, PathBuf)> {
        let folder = self.folder;
        for number in 0..NUMBERS {
            let name = format!("{}-{number}{LEDGER}", self.stem);
            let renamed = rustix::fs::renameat_with(
                &folder.file,
                &self.name,
                &folder.file,
                &name,
                RenameFlags::NOREPLACE,
            );
            let path = folder.path.join(&name);
            match (renamed, self.file.take()) {
                (Ok(()), Some(file)) => return Ok((file, path)),
                (Err(Errno::EXIST), file) => self.file = file,
                (Err(errno), file) => {
                    self.file = file;
                    return Err(Error::system("name", path)(errno.into()));
                }
                (Ok(()), None) => break,
            }
        }
        Err(folder.too_many())
    }
}

impl Drop for LedgerDraft<'_> {
    fn drop(&mut self) {
        if self.file.is_some() {
            // A file that cannot be removed here is swept later.
            self.folder.remove(OsStr::new(&self.name)).ok();
        }
    }
}

fn is_absent(found: &Result<LedgerReader>) -> bool {
    matches!(found, Err(Error::System { source, .. }) if source.kind() == io::ErrorKind::NotFound)
}

fn is_old(file: &File) -> bool {
    let modified = file.metadata().and_then(|meta| meta.modified());
    modified.is_ok_and(|modified| {
        SystemTime::now()
            .duration_since(modified)
            .is_ok_and(|age| age > DRAFT_LIFE)
    })
}
