//! Reader of a ledger file; its process may be alive, gone or hostile.
//!
//! The file is read, not mapped, so that a truncated file cannot kill the reader. Counters are read
//! until two readings agree. Cell counters only grow, so if two readings are equal, nothing changed
//! between them. A word that a writer changes during a reading may come out torn; figures that do
//! not agree are marked as racing.
//!
//! Elsewhere: the meaning of the words (`snapshot`), reading whole events (`ring`).

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::mem::{offset_of, size_of};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::CWD;

use crate::error::{Error, FormatError, Result};
use crate::folder::open_private;
use crate::format::{EVENT_WORDS, EVENTS, FILE_BYTES, Header, LedgerLayout, LedgerRecord, VERSION};
use crate::owner::{OwnerProcess, PidScope};
use crate::ring::{self, RingEvents};
use crate::snapshot::{self, LedgerSnapshot, OwnerState};

/// The index of the ring's first word; header and tables come before it.
pub(crate) const RING_WORD: usize = offset_of!(LedgerLayout<AtomicU64>, ring) / 8;
/// Header words that every version has.
const COMMON_WORDS: usize = 8;
/// Words that are read and compared at a time, while they are in the cache.
const CHUNK_WORDS: usize = 4096;
/// How often the tables are read until two readings agree.
const READINGS: usize = 8;

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

/// Everything read of a ledger.
#[derive(Debug)]
pub(crate) struct RawLedger {
    /// Header and tables.
    pub(crate) tables: Vec<u64>,
    /// Whether two readings of the tables agreed.
    pub(crate) settled: bool,
    pub(crate) events: RingEvents<EVENT_WORDS>,
}

/// Reads a ledger through `copy(first, words)`, which fills `words` with the words from index
/// `first` on.
fn collect<E>(
    mut copy: impl FnMut(usize, &mut [u64]) -> std::result::Result<(), E>,
) -> std::result::Result<RawLedger, E> {
    let mut tables = vec![0; RING_WORD];
    let mut chunk = vec![0; CHUNK_WORDS];
    let mut settled = false;
    for reading in 0..READINGS {
        let mut agrees = true;
        for (place, words) in tables.chunks_mut(CHUNK_WORDS).enumerate() {
            let chunk = &mut chunk[..words.len()];
            copy(place * CHUNK_WORDS, chunk)?;
            if words != chunk {
                agrees = false;
                words.copy_from_slice(chunk);
            }
        }
        // The first reading has nothing to agree with.
        settled = agrees && reading > 0;
        if settled {
            break;
        }
    }
    let events = ring::read::<EVENTS, EVENT_WORDS, E>(|words| copy(RING_WORD, words))?;
    Ok(RawLedger {
        tables,
        settled,
        events,
    })
}

/// Reads a ledger in this process's own memory.
pub(crate) fn collect_memory(memory: &[AtomicU64]) -> RawLedger {
    let Ok(collected) = collect(|first, words| {
        for (word, shared) in words.iter_mut().zip(&memory[first..]) {
            // The ring's argument needs acquire; the tables would do without.
            *word = shared.load(Ordering::Acquire);
        }
        Ok::<(), Infallible>(())
    });
    collected
}

/// Reads a ledger from bytes that do not change.
pub(crate) fn collect_bytes(bytes: &[u8]) -> RawLedger {
    let Ok(collected) = collect(|first, words| {
        fill(words, bytes.get(first * 8..).unwrap_or_default());
        Ok::<(), Infallible>(())
    });
    collected
}

/// Reads words from a file. System calls are ordered, and the kernel reads what a mapping of the
/// same file writes.
pub(crate) fn read_words(
    file: &File,
    first: usize,
    words: &mut [u64],
    bytes: &mut Vec<u8>,
) -> io::Result<()> {
    bytes.resize(words.len() * 8, 0);
    let mut len = 0;
    while len < bytes.len() {
        match file.read_at(&mut bytes[len..], (first * 8 + len) as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    fill(words, &bytes[..len]);
    Ok(())
}

/// Fills words from bytes; missing bytes are zero.
fn fill(words: &mut [u64], bytes: &[u8]) {
    let mut chunks = bytes.chunks_exact(size_of::<u64>());
    for word in words {
        let chunk = chunks.next().and_then(|chunk| chunk.try_into().ok());
        *word = chunk.map_or(0, u64::from_le_bytes);
    }
}

const _: () = assert!(RING_WORD * 8 < FILE_BYTES);
