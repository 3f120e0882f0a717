//! Reader of a ledger file; its process may be alive, gone or hostile.
//!
//! The file is read, not mapped, so that a truncated file cannot kill the reader. A word that a
//! writer changes during a reading may come out torn; figures that do not agree are marked as
//! racing.
//!
//! Elsewhere: reading until two readings agree (`collect`), the meaning of the words (`snapshot`).

use std::fs::File;
use std::mem::size_of;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use crate::collect::{collect, read_words};
use crate::error::{Error, FormatError, Result};
use crate::format::{Header, LedgerRecord, VERSION};
use crate::owner::{OwnerProcess, PidScope};
use crate::private::open_private;
use crate::snapshot::{self, LedgerSnapshot, OwnerState};

/// Header words that every version has.
const COMMON_WORDS: usize = 8;
/// An open ledger. It stays readable after its owner ends and after its file is swept.
#[derive(Debug)]
pub struct LedgerReader {
    file: File,
    path: PathBuf,
}

impl LedgerReader {
    /// Opens a ledger by its path.
    ///
    /// # Errors
    /// [`Error::NotPrivate`] or [`Error::System`]; the content is checked by
    /// [`LedgerReader::snapshot`].
    pub fn open(path: &Path) -> Result<LedgerReader> {
        Ok(LedgerReader::new(
            open_private(CWD, path, path)?,
            path.to_owned(),
        ))
    }

    pub(crate) fn new(file: File, path: PathBuf) -> LedgerReader {
        LedgerReader { file, path }
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Whether the process that writes it lives.
    ///
    /// # Errors
    /// [`Error::System`] if the file cannot be read, [`Error::Format`] if it is not a ledger of any
    /// version.
    pub fn owner(&self) -> Result<OwnerState> {
        let process = self.process()?.map_err(self.refused())?;
        Ok(self.state_of(&process))
    }

    /// Whether the process id in the header is valid here: the owner runs under the same boot and
    /// in the same PID namespace. In another container the id may belong to any process.
    ///
    /// # Errors
    /// As for [`LedgerReader::owner`].
    pub fn is_here(&self) -> Result<bool> {
        Ok(self.process()?.map_err(self.refused())?.is_here())
    }

    /// Whether an owner has it, whatever its content.
    pub(crate) fn is_owned(&self) -> bool {
        // Without a header the lock alone decides.
        let process = self.process().ok().and_then(std::result::Result::ok);
        process.unwrap_or_default().owns(&self.file)
    }

    /// The run that the ledger belongs to; `None` if there is none or the version is another.
    pub(crate) fn run(&self) -> Option<NonZeroU64> {
        let mut words = [0; size_of::<Header<u64>>() / 8];
        read_words(&self.file, 0, &mut words, &mut Vec::new()).ok()?;
        let header = Header::read(&words);
        let ours = header.magic == crate::format::MAGIC && header.version == VERSION;
        NonZeroU64::new(header.run).filter(|_| ours)
    }

    /// The current content.
    ///
    /// # Errors
    /// [`Error::System`] if it cannot be read, [`Error::Format`] if it is not a ledger that this
    /// version reads.
    pub fn snapshot(&self) -> Result<LedgerSnapshot> {
        let process = self.process()?.map_err(self.refused())?;
        let len_bytes = self
            .file
            .metadata()
            .map_err(Error::system("examine", &self.path))?
            .len();
        let mut bytes = Vec::new();
        let collected = collect(|first, words| read_words(&self.file, first, words, &mut bytes))
            .map_err(Error::system("read", &self.path))?;
        // Checked last: an owner that lives at the end lived all along.
        let owner = self.state_of(&process);
        snapshot::assemble(&collected, len_bytes, owner).map_err(self.refused())
    }

    pub(crate) fn state_of(&self, process: &OwnerProcess) -> OwnerState {
        if process.owns(&self.file) {
            OwnerState::Alive
        } else {
            OwnerState::Gone
        }
    }

    /// The owner: the part of the header that all versions share.
    pub(crate) fn process(&self) -> Result<std::result::Result<OwnerProcess, FormatError>> {
        let mut words = [0; COMMON_WORDS];
        read_words(&self.file, 0, &mut words, &mut Vec::new())
            .map_err(Error::system("read", &self.path))?;
        let header = Header::read(&words);
        if header.magic != crate::format::MAGIC {
            return Ok(Err(FormatError::NotALedger));
        }
        Ok(Ok(OwnerProcess {
            pid: header.pid,
            start_ticks: header.start_ticks,
            sight: PidScope {
                pid_namespace: header.pid_namespace,
                boot_id: header.boot_id,
            },
        }))
    }

    pub(crate) fn refused(&self) -> impl Fn(FormatError) -> Error + '_ {
        |source| Error::Format {
            path: self.path.clone(),
            source,
        }
    }
}
