//! All words of a ledger, read until two readings agree.
//!
//! Cell counters only grow, so if two readings are equal, nothing changed between them.
//!
//! Elsewhere: the meaning of the words (`snapshot`), reading whole events (`ring`).

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::{EVENT_WORDS, EVENTS, FILE_BYTES, LedgerLayout};
use crate::ring::{self, RingEvents};

/// The index of the ring's first word; header and tables come before it.
pub(crate) const RING_WORD: usize = offset_of!(LedgerLayout<AtomicU64>, ring) / 8;

/// Words that are read and compared at a time, while they are in the cache.
const CHUNK_WORDS: usize = 4096;

/// How often the tables are read until two readings agree.
const READINGS: usize = 8;

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
pub(crate) fn collect<E>(
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
