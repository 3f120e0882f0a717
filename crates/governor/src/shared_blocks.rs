//! Blocks that processes share: exported, freed but open elsewhere, and imported.
//!
//! Elsewhere: the calls that change this state ([`crate::sharing`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use fercuda_cuda_sys::types::CUipcMemHandle;
use fercuda_ledger::{Folder, LingeringShare, OfferedShare, OpenedShare, ShareListener, ShareName};
use fercuda_pool::Span;
use rustc_hash::FxHashMap;

use crate::clock::{ContextId, lock};
use crate::mapped_import::MappedImport;

const MAGIC: u64 = u64::from_le_bytes(*b"feRcuIPC");
const VERSION: u64 = 1;

/// The content of a handle of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IpcTicket {
    pub(crate) name: ShareName,
    /// As in the share, to which it must be equal.
    pub(crate) offset_bytes: u64,
    pub(crate) bytes: u64,
}

impl IpcTicket {
    pub(crate) fn handle(self) -> CUipcMemHandle {
        let mut bytes = [0u8; 64];
        let words = [MAGIC, VERSION];
        let sizes = [self.offset_bytes, self.bytes];
        let parts = words.iter().map(|word| word.to_le_bytes().to_vec());
        let parts = parts.chain([self.name.0.to_vec()]);
        let parts = parts.chain(sizes.iter().map(|size| size.to_le_bytes().to_vec()));
        for (to, from) in bytes.iter_mut().zip(parts.flatten()) {
            *to = from;
        }
        CUipcMemHandle {
            reserved: bytes.map(|byte| byte as _),
        }
    }

    /// `None` if it is not a handle of ours.
    pub(crate) fn read(handle: &CUipcMemHandle) -> Option<IpcTicket> {
        let bytes = handle.reserved.map(|byte| byte as u8);
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| words.get(at).map(|word| u64::from_le_bytes(*word));
        let ours = [word(0)?, word(1)?, word(6)?, word(7)?] == [MAGIC, VERSION, 0, 0];
        ours.then_some(IpcTicket {
            name: ShareName(bytes[16..32].try_into().ok()?),
            offset_bytes: word(4)?,
            bytes: word(5)?,
        })
    }
}

/// A block exported to other processes.
#[derive(Debug)]
pub(crate) struct ExportedBlock {
    pub(crate) ticket: IpcTicket,
    pub(crate) offered: OfferedShare,
    /// The block's buffer id.
    pub(crate) buffer: u64,
    /// The mappings that contain it, each of one handle; none if it is in a slab.
    pub(crate) pieces: Vec<Span>,
}

/// A freed block that another process has open.
#[derive(Debug)]
pub(crate) struct LingeringBlock {
    pub(crate) lingering: LingeringShare,
    /// The block's buffer id.
    pub(crate) buffer: u64,
}

/// The memory of an imported block.
#[derive(Debug)]
pub(crate) enum ImportedMemory {
    /// A part of the slab that begins at this address.
    InSlab(u64),
    /// Mapped for this block alone.
    Mapped(MappedImport),
}

/// A block of another process.
#[derive(Debug)]
pub(crate) struct ImportedBlock {
    pub(crate) bytes: u64,
    pub(crate) buffer: u64,
    /// How often it was opened and not closed.
    pub(crate) opens: u64,
    /// Dropped before the share: once its lock is gone, the owner reuses the memory.
    pub(crate) memory: ImportedMemory,
    pub(crate) share: OpenedShare,
}

impl ImportedBlock {
    /// Whether it is in the slab that begins at this address.
    pub(crate) fn is_in(&self, base: u64) -> bool {
        matches!(self.memory, ImportedMemory::InSlab(slab) if slab == base)
    }
}

/// A slab of another process, open in a context.
#[derive(Debug)]
pub(crate) struct ImportedSlab {
    pub(crate) handle: [u8; 64],
    pub(crate) flags: u32,
    pub(crate) context: ContextId,
    pub(crate) bytes: u64,
    /// How many of its blocks are open.
    pub(crate) blocks: u64,
    /// Blocks closed when no thread could wait for their last use.
    pub(crate) unwaited: Vec<OpenedShare>,
}

#[derive(Debug, Default)]
pub(crate) struct SharingState {
    /// By the block's address.
    pub(crate) exports: FxHashMap<u64, ExportedBlock>,
    /// Freed blocks that other processes have open.
    pub(crate) lingering: FxHashMap<u64, LingeringBlock>,
    /// By their addresses in this process.
    pub(crate) imports: BTreeMap<u64, ImportedBlock>,
    pub(crate) slabs: BTreeMap<u64, ImportedSlab>,
    /// Mapped blocks closed when no thread could wait for their last use.
    pub(crate) unwaited: Vec<ImportedBlock>,
    /// The folder of shares; `None` until it is needed.
    pub(crate) folder: Option<Arc<Folder>>,
    /// The socket at which descriptors are given; `None` until mapped memory is exported.
    pub(crate) listener: Option<Arc<ShareListener>>,
}

/// The state of sharing; see the module.
#[derive(Debug, Default)]
pub(crate) struct BlockSharing {
    /// Set once anything was shared: frees check the state only then.
    pub(crate) used: AtomicBool,
    /// Shared with the thread that gives descriptors.
    pub(crate) state: Arc<Mutex<SharingState>>,
}

impl Drop for BlockSharing {
    fn drop(&mut self) {
        // Ends that thread.
        let listener = lock(&self.state).listener.take();
        if let Some(listener) = listener {
            listener.stop();
        }
    }
}

impl BlockSharing {
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Relaxed)
    }

    pub(crate) fn lock_used(&self) -> MutexGuard<'_, SharingState> {
        self.used.store(true, Relaxed);
        lock(&self.state)
    }

    /// Whether a block is freed but open elsewhere.
    pub(crate) fn is_lingering(&self, block: u64) -> bool {
        self.is_used() && lock(&self.state).lingering.contains_key(&block)
    }
}
