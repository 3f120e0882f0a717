//! Board of a process: a shared file of slots, by which others find its memory and events.
//!
//! A slot is 128 bytes: nonce (16), kind, descriptor, offset, length, offset in the mapping,
//! allocation length, events' recorded and completed counts, device.
//!
//! Elsewhere: what a handle holds, and how it leads to a slot (`ipc`).

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{CuResult, err};
use crate::mem::shared_file;

const BOARD_NAME: &CStr = c"fercuda-device-board";
const BOARD_BYTES: u64 = (SLOTS * WORDS * 8) as u64;

/// Slots of a board.
pub(super) const SLOTS: usize = 4096;
/// Words of a slot.
pub(super) const WORDS: usize = 16;

pub(super) const NONCE: usize = 0;
pub(super) const KIND: usize = 2;
pub(super) const FD: usize = 3;
pub(super) const OFFSET: usize = 4;
pub(super) const LEN: usize = 5;
pub(super) const INNER: usize = 6;
pub(super) const ALLOC_LEN: usize = 7;
const RECORDED: usize = 8;
const COMPLETED: usize = 9;
pub(super) const DEVICE: usize = 10;

pub(super) struct Board {
    pub(super) file: OwnedFd,
    pub(super) at: *mut AtomicU64,
}

// SAFETY: the mapping is shared memory of atomics, mapped for the life of the board.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// Another process's board; `None` if the descriptor is of no board.
    pub(super) fn of_process(pid: u32, fd: i32) -> Option<Self> {
        let file = shared_file::open_of(pid, fd, BOARD_NAME)?;
        let is_whole = shared_file::len_bytes(&file).is_ok_and(|len| len >= BOARD_BYTES);
        is_whole.then(|| Self::map(file).ok()).flatten()
    }

    fn map(file: OwnedFd) -> CuResult<Self> {
        // SAFETY: a fresh shared mapping of a file of at least this size, which both callers see
        // to, and which cannot become shorter: it is sealed.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SLOTS * WORDS * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            Err(err::OPERATING_SYSTEM)
        } else {
            Ok(Board {
                file,
                at: at.cast(),
            })
        }
    }

    pub(super) fn word(&self, slot: usize, word: usize) -> &AtomicU64 {
        assert!(slot < SLOTS && word < WORDS);
        // SAFETY: in bounds of the mapping, which lives as long as `self`; any bits are an
        // `AtomicU64`.
        unsafe { &*self.at.add(slot * WORDS + word) }
    }

    pub(super) fn get(&self, slot: usize, word: usize) -> u64 {
        self.word(slot, word).load(Ordering::Acquire)
    }

    pub(super) fn set(&self, slot: usize, word: usize, value: u64) {
        self.word(slot, word).store(value, Ordering::Release);
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of this length; nothing borrows from it any more.
        unsafe { libc::munmap(self.at.cast(), SLOTS * WORDS * 8) };
    }
}

/// An event's two counters on its owner's board.
pub(crate) struct SharedEvent {
    pub(super) board: Arc<Board>,
    pub(super) slot: usize,
    pub(super) nonce: u64,
    pub(super) owner: u32,
}

impl std::fmt::Debug for SharedEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "event {} of process {}", self.slot, self.owner)
    }
}

impl SharedEvent {
    /// Takes the next number; the recording is complete when `complete` is called with it.
    pub(crate) fn begin_record(&self) -> u64 {
        self.board
            .word(self.slot, RECORDED)
            .fetch_add(1, Ordering::AcqRel)
            + 1
    }

    pub(crate) fn complete(&self, number: u64) {
        // The event may have been destroyed meanwhile, and its slot reused.
        if self.board.get(self.slot, NONCE) == self.nonce {
            self.board
                .word(self.slot, COMPLETED)
                .fetch_max(number, Ordering::AcqRel);
        }
    }

    pub(crate) fn recorded(&self) -> u64 {
        self.board.get(self.slot, RECORDED)
    }

    pub(crate) fn completed(&self) -> u64 {
        if self.board.get(self.slot, NONCE) == self.nonce {
            self.board.get(self.slot, COMPLETED)
        } else {
            // The owner destroyed it: nothing is left to wait for.
            u64::MAX
        }
    }

    pub(crate) fn owner_is_gone(&self) -> bool {
        // SAFETY: signal 0 asks only whether the process is there.
        unsafe { libc::kill(self.owner as i32, 0) != 0 }
    }
}

#[derive(Default)]
pub(super) struct ExportState {
    pub(super) board: Option<Arc<Board>>,
    /// Slot of each exported allocation, by address.
    pub(super) memory: std::collections::BTreeMap<u64, usize>,
    pub(super) used: Vec<bool>,
}

#[derive(Default)]
pub(crate) struct Ipc {
    pub(super) state: Mutex<ExportState>,
}

impl ExportState {
    pub(super) fn slot(&mut self) -> CuResult<(Arc<Board>, usize)> {
        let board = match &self.board {
            Some(board) => board.clone(),
            None => {
                let file = shared_file::create(BOARD_NAME, BOARD_BYTES);
                let file = file.map_err(|_| err::OPERATING_SYSTEM)?;
                let board = Arc::new(Board::map(file)?);
                self.used = vec![false; SLOTS];
                self.board = Some(board.clone());
                board
            }
        };
        let slot = self
            .used
            .iter()
            .position(|u| !u)
            .ok_or(err::OUT_OF_MEMORY)?;
        self.used[slot] = true;
        Ok((board, slot))
    }

    pub(super) fn withdraw(&mut self, slot: usize) {
        if let Some(board) = &self.board {
            for word in 0..WORDS {
                board.set(slot, word, 0);
            }
            self.used[slot] = false;
        }
    }
}
