//! Memory and events shared with another process of the same user.
//!
//! An exporting process has a board: one shared file of slots. A handle names process, board, slot
//! and a random nonce; the importer finds the board through /proc, and the nonce there must match.
//! So a handle of freed memory, of a dead process with a reused PID, or a forged one fails to
//! open.
//!
//! Elsewhere: the board and its slots (`board`).

use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use super::allocation::{Allocation, AllocationSource, IpcMapping};
use super::board::{
    ALLOC_LEN, Board, DEVICE, FD, INNER, Ipc, KIND, LEN, NONCE, OFFSET, SLOTS, SharedEvent, WORDS,
};
use super::memory::host_op;
use super::objects::SoftContext;
use super::site::site;
use super::{CuResult, Machine, err, lock};
use crate::mem::{AllocKind, Backing};

const MAGIC: u64 = 0x6665_7263_7564_6131;
const MEMORY: u64 = 1;
const EVENT: u64 = 2;

/// The 64 bytes of a handle.
pub(crate) type HandleBytes = [u8; 64];

fn random() -> CuResult<[u64; 2]> {
    let mut bytes = [0u8; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut bytes))
        .map_err(|_| err::OPERATING_SYSTEM)?;
    let (a, b) = bytes.split_at(8);
    let word = |x: &[u8]| x.iter().fold(0u64, |n, &b| (n << 8) | u64::from(b));
    Ok([word(a) | 1, word(b)])
}

fn handle_bytes(board: &Board, slot: usize) -> HandleBytes {
    let words = [
        MAGIC,
        u64::from(std::process::id()),
        board.file.as_raw_fd() as u64,
        slot as u64,
        board.get(slot, NONCE),
        board.get(slot, NONCE + 1),
        0,
        0,
    ];
    let mut bytes = [0; 64];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The board and slot that a handle names, if they agree about the random number and the kind.
fn find(handle: &HandleBytes, kind: u64) -> CuResult<(u32, Arc<Board>, usize)> {
    let word = |i: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&handle[i * 8..i * 8 + 8]);
        u64::from_le_bytes(bytes)
    };
    let (pid, fd, slot) = (word(1) as u32, word(2) as i32, word(3) as usize);
    if word(0) != MAGIC || slot >= SLOTS || word(4) == 0 {
        return Err(err::INVALID_HANDLE);
    }
    if pid == std::process::id() {
        return Err(err::INVALID_CONTEXT);
    }
    let path = format!("/proc/{pid}/fd/{fd}");
    let is_board = std::fs::read_link(&path)
        .is_ok_and(|p| p.to_string_lossy().contains("memfd:fercuda-device-board"));
    if !is_board {
        return Err(err::INVALID_HANDLE);
    }
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|_| err::INVALID_HANDLE)?;
    if file.metadata().map_or(0, |d| d.len()) < (SLOTS * WORDS * 8) as u64 {
        return Err(err::INVALID_HANDLE);
    }
    let board = Arc::new(Board::map(file.into())?);
    let same = board.get(slot, NONCE) == word(4) && board.get(slot, NONCE + 1) == word(5);
    if same && board.get(slot, KIND) == kind {
        Ok((pid, board, slot))
    } else {
        Err(err::INVALID_HANDLE)
    }
}

impl Ipc {
    /// `cuIpcGetMemHandle`.
    pub(crate) fn export_memory(&self, m: &Machine, addr: u64) -> CuResult<HandleBytes> {
        let allocation = m.memory.find(addr).ok_or(err::INVALID_VALUE)?;
        if !matches!(allocation.source, AllocationSource::Device) {
            return Err(err::INVALID_VALUE);
        }
        self.export(&allocation, &m.devices[allocation.device as usize].blocks)
    }

    /// `cuMemPoolExportPointer`.
    pub(crate) fn export_pool_memory(&self, m: &Machine, addr: u64) -> CuResult<HandleBytes> {
        let allocation = m.memory.find(addr).ok_or(err::INVALID_VALUE)?;
        let AllocationSource::Pool(pool) = &allocation.source else {
            return Err(err::INVALID_VALUE);
        };
        if pool.props.handleTypes.0 & 1 == 0 {
            return Err(err::INVALID_VALUE);
        }
        self.export(&allocation, &pool.heap)
    }

    fn export(
        &self,
        allocation: &Allocation,
        heap: &super::heap::BlockHeap,
    ) -> CuResult<HandleBytes> {
        let (backing, base, len) = heap
            .backing_of(allocation.start)
            .ok_or(err::INVALID_VALUE)?;
        let mut state = lock(&self.state);
        if let (Some(&slot), Some(board)) = (state.memory.get(&allocation.start), &state.board) {
            return Ok(handle_bytes(board, slot));
        }
        let nonce = random()?;
        let (board, slot) = state.slot()?;
        board.set(slot, FD, backing.fd() as u64);
        board.set(slot, OFFSET, backing.offset());
        board.set(slot, LEN, len);
        board.set(slot, INNER, allocation.start - base);
        board.set(slot, ALLOC_LEN, allocation.len);
        board.set(slot, DEVICE, u64::from(allocation.device));
        board.set(slot, KIND, MEMORY);
        board.set(slot, NONCE + 1, nonce[1]);
        board.set(slot, NONCE, nonce[0]);
        state.memory.insert(allocation.start, slot);
        Ok(handle_bytes(&board, slot))
    }

    pub(crate) fn withdraw_memory(&self, addr: u64) {
        let mut state = lock(&self.state);
        if let Some(slot) = state.memory.remove(&addr) {
            state.withdraw(slot);
        }
    }

    /// `cuIpcGetEventHandle`: publishes the event, once.
    pub(crate) fn export_event(&self, event: &super::objects::SoftEvent) -> CuResult<HandleBytes> {
        if event.flags & super::event::INTERPROCESS == 0 || event.imported {
            return Err(err::INVALID_HANDLE);
        }
        let mut shared = lock(&event.shared);
        if let Some(shared) = &*shared {
            return Ok(handle_bytes(&shared.board, shared.slot));
        }
        let nonce = random()?;
        let (board, slot) = lock(&self.state).slot()?;
        board.set(slot, KIND, EVENT);
        board.set(slot, NONCE + 1, nonce[1]);
        board.set(slot, NONCE, nonce[0]);
        let bytes = handle_bytes(&board, slot);
        *shared = Some(Arc::new(SharedEvent {
            board,
            slot,
            nonce: nonce[0],
            owner: std::process::id(),
        }));
        Ok(bytes)
    }

    pub(crate) fn withdraw_event(&self, event: &SharedEvent) {
        lock(&self.state).withdraw(event.slot);
    }
}

pub(crate) fn open_event(handle: &HandleBytes) -> CuResult<Arc<SharedEvent>> {
    let (owner, board, slot) = find(handle, EVENT)?;
    let nonce = board.get(slot, NONCE);
    Ok(Arc::new(SharedEvent {
        board,
        slot,
        nonce,
        owner,
    }))
}

/// `cuIpcOpenMemHandle`.
pub(crate) fn open_memory(m: &Machine, ctx: &SoftContext, handle: &HandleBytes) -> CuResult<u64> {
    let (pid, board, slot) = find(handle, MEMORY)?;
    let [fd, offset, len, inner, alloc_len] =
        [FD, OFFSET, LEN, INNER, ALLOC_LEN].map(|word| board.get(slot, word));
    if inner.checked_add(alloc_len).is_none_or(|end| end > len) || alloc_len == 0 {
        return Err(err::INVALID_HANDLE);
    }
    if !is_file_of_memory(&format!("/proc/{pid}/fd/{}", fd as i32)) {
        return Err(err::INVALID_HANDLE);
    }
    let backing =
        Backing::open_foreign(pid, fd as i32, offset, len).map_err(|_| err::INVALID_HANDLE)?;
    let base = m
        .space
        .reserve(len, crate::mem::GRANULE, 0)
        .map_err(|_| err::OUT_OF_MEMORY)?;
    if m.space.map(base, len, &backing, 0).is_err() {
        m.space.release(base, len);
        return Err(err::OUT_OF_MEMORY);
    }
    m.space
        .set_access(base, len, ctx.device, true, true)
        .map_err(|_| err::INVALID_VALUE)?;
    let start = base + inner;
    m.memory.insert(
        m,
        ctx,
        start,
        alloc_len,
        AllocationSource::Ipc(IpcMapping { base, backing }),
        ctx.device,
    );
    let op = host_op(m, "cuIpcOpenMemHandle_v2");
    let made = site("cuIpcOpenMemHandle_v2");
    m.space.add(
        start,
        alloc_len,
        AllocKind::Ipc,
        ctx.device,
        None,
        made,
        true,
        m.check(op).as_ref(),
    );
    Ok(start)
}

pub(crate) fn close_memory(m: &Machine, start: u64) -> CuResult {
    let wanted = |a: &Allocation| matches!(a.source, AllocationSource::Ipc(_));
    let allocation = m.memory.take(start, wanted).ok_or(err::INVALID_VALUE)?;
    super::memory::settle(m);
    super::memory::retire(
        m,
        &allocation,
        "cuIpcCloseMemHandle",
        host_op(m, "cuIpcCloseMemHandle"),
    );
    super::memory::give_back(m, &allocation);
    Ok(())
}

/// Whether a descriptor is of a file of device memory.
pub(crate) fn is_device_memory(file: &OwnedFd) -> bool {
    is_file_of_memory(&format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn is_file_of_memory(path: &str) -> bool {
    let name = std::fs::read_link(path);
    name.is_ok_and(|name| name.as_os_str() == "/memfd:fercuda-device-memory (deleted)")
}
