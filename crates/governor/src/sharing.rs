//! Blocks of slabs that other processes open, and those of others that this
//! one opens, by the driver's legacy handles.
//!
//! To the driver a block is some part of a slab, and the slab's handle is all
//! that it gives. So a block gets a handle of ours: it names a file in the
//! folder of ledgers ([`fercuda_ledger::Share`]), where the slab's handle
//! stands. Who has the hook opens the slab, once, and is answered the block's
//! beginning. Who has not asks the driver, to whom the handle is none.
//!
//! Invariants: a block's handle opens this block or nothing, also after it is
//! freed. A block that somebody has open when it is freed stays as it is, and is
//! nobody's, until they have closed it. The driver closes a slab when the last
//! of its blocks is closed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

use fercuda_cuda_sys::types::{CUdeviceptr, CUipcMemHandle, CUresult};
use fercuda_ledger::{
    Folder, Governed, LingeringShare, OfferedShare, OpenedShare, Share, ShareName, Tenant,
};
use fercuda_pool::{Freed, Live, Place};
use rustc_hash::FxHashMap;

use crate::clock::{ContextId, Current, lock};
use crate::governed::{Key, Piece};
use crate::governor::{Governor, Note, answer};

const MAGIC: u64 = u64::from_le_bytes(*b"feRcuIPC");
const VERSION: u64 = 1;

/// What a handle of ours says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticket {
    name: ShareName,
    /// As in the share, to which it must be equal.
    offset_bytes: u64,
    bytes: u64,
}

impl Ticket {
    fn handle(self) -> CUipcMemHandle {
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

    /// None if it is no handle of ours.
    fn read(handle: &CUipcMemHandle) -> Option<Ticket> {
        let bytes = handle.reserved.map(|byte| byte as u8);
        let (words, _) = bytes.as_chunks::<8>();
        let word = |at: usize| words.get(at).map(|word| u64::from_le_bytes(*word));
        let ours = [word(0)?, word(1)?, word(6)?, word(7)?] == [MAGIC, VERSION, 0, 0];
        ours.then_some(Ticket {
            name: ShareName(bytes[16..32].try_into().ok()?),
            offset_bytes: word(4)?,
            bytes: word(5)?,
        })
    }
}

/// A block that others may open.
#[derive(Debug)]
struct Export {
    ticket: Ticket,
    offered: OfferedShare,
    /// The block's own number.
    buffer: u64,
}

/// A freed block that somebody has open.
#[derive(Debug)]
struct Left {
    lingering: LingeringShare,
    /// The block's own number.
    buffer: u64,
}

/// Somebody else's block.
#[derive(Debug)]
struct Import {
    bytes: u64,
    /// The slab that it lies in, by its address.
    slab: u64,
    buffer: u64,
    /// How often it was opened and not closed.
    opens: u64,
    share: OpenedShare,
}

/// Somebody else's slab, open in a context.
#[derive(Debug)]
struct Slab {
    handle: [u8; 64],
    flags: u32,
    context: ContextId,
    bytes: u64,
    /// Of its blocks, how many are open.
    blocks: u64,
    /// Blocks that were closed when nobody could wait for their last use.
    unwaited: Vec<OpenedShare>,
}

#[derive(Debug, Default)]
struct State {
    /// By the block's address.
    exports: FxHashMap<u64, Export>,
    /// Freed blocks that somebody has open.
    lingering: FxHashMap<u64, Left>,
    /// By their addresses here.
    imports: BTreeMap<u64, Import>,
    slabs: BTreeMap<u64, Slab>,
    /// Where shares are; none before it is needed.
    folder: Option<Folder>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Sharing {
    /// Something was shared: who frees a block looks here only then.
    used: AtomicBool,
    state: Mutex<State>,
}

impl Sharing {
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Relaxed)
    }

    fn use_it(&self) -> MutexGuard<'_, State> {
        self.used.store(true, Relaxed);
        lock(&self.state)
    }

    /// Whether a block is freed, and open elsewhere.
    pub(crate) fn lingers(&self, block: u64) -> bool {
        self.is_used() && lock(&self.state).lingering.contains_key(&block)
    }
}

/// Why a block cannot be shared.
#[derive(Debug)]
pub enum NotShared {
    /// It lies in mapped memory, which has no handles of this kind.
    Mapped,
    /// The driver refuses, as to any allocation of its kind.
    Driver(CUresult),
    /// Nothing can be left in the folder of ledgers.
    Folder(String),
}

/// What is to be done to free a block.
pub(crate) enum Unshared {
    /// Nothing else.
    Free,
    /// It was freed before.
    Unknown,
    /// It is as good as freed, and stays until nobody has it open.
    Later(Freed<Note>),
}

/// A block of another process.
#[derive(Clone, Copy, Debug)]
pub struct Imported {
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Its own number here.
    pub buffer: u64,
    /// The context that opened it.
    pub context: ContextId,
}

/// Takes a share back; what lingers of it.
fn withdraw(folder: Option<&Folder>, export: Export) -> Option<Left> {
    let buffer = export.buffer;
    // Whatever is exported was left in the folder.
    let lingering = folder?.withdraw(export.offered)?;
    Some(Left { lingering, buffer })
}

impl Governor {
    fn folder<'s>(&self, state: &'s mut State) -> Result<&'s Folder, String> {
        let there = match state.folder.take() {
            Some(folder) => folder,
            None => {
                let ledger = self.ledger().path();
                let folder = ledger.and_then(|path| path.parent());
                let folder = folder.ok_or("there is no folder for ledgers")?;
                Folder::at(folder).map_err(|error| error.to_string())?
            }
        };
        Ok(state.folder.insert(there))
    }

    // ---- blocks of this process ---------------------------------------------

    /// A handle of the live block at an address, or around it; none if there is
    /// no such block.
    pub fn export(&self, address: u64) -> Option<Result<CUipcMemHandle, NotShared>> {
        let (device, live) = self.find(address)?;
        Some(match device.slab(live.span.address) {
            Some(slab) => self.export_of(&live, slab),
            None => Err(NotShared::Mapped),
        })
    }

    fn export_of(
        &self,
        live: &Live<Note>,
        (slab, slab_bytes): (u64, u64),
    ) -> Result<CUipcMemHandle, NotShared> {
        let invalid = NotShared::Driver(CUresult::CUDA_ERROR_INVALID_VALUE);
        if live.note.is_ordered() {
            return Err(invalid);
        }
        self.end_lingering();
        let mut state = self.sharing.use_it();
        let block = live.span.address;
        if let Some(export) = state.exports.remove(&block) {
            if export.buffer == live.note.buffer {
                let handle = export.ticket.handle();
                state.exports.insert(block, export);
                return Ok(handle);
            }
            withdraw(state.folder.as_ref(), export);
        }
        let mut handle = CUipcMemHandle::default();
        // SAFETY: `handle` outlives the call; the slab is one while its block is live.
        let asked = answer(unsafe { self.driver.cuIpcGetMemHandle(&mut handle, slab) });
        if asked != CUresult::CUDA_SUCCESS {
            return Err(NotShared::Driver(asked));
        }
        let share = Share {
            handle: handle.reserved.map(|byte| byte as u8),
            offset_bytes: block - slab,
            bytes: live.requested_bytes,
            whole_bytes: slab_bytes,
        };
        let nowhere = || NotShared::Folder("there is no folder for ledgers".to_owned());
        let ledger = self.ledger().path().ok_or_else(nowhere)?;
        let folder = self.folder(&mut state).map_err(NotShared::Folder)?;
        let offered = folder.share(&share, ledger);
        let offered = offered.map_err(|error| NotShared::Folder(error.to_string()))?;
        let ticket = Ticket {
            name: offered.name,
            offset_bytes: share.offset_bytes,
            bytes: share.bytes,
        };
        let export = Export {
            ticket,
            offered,
            buffer: live.note.buffer,
        };
        state.exports.insert(block, export);
        Ok(ticket.handle())
    }

    /// A block is to be freed by who likes its note: nobody opens it any more.
    #[cold]
    pub(crate) fn unshare(&self, block: u64, may: impl Fn(&Note) -> bool) -> Unshared {
        let unshared = self.unshare_now(block, may);
        if !matches!(unshared, Unshared::Free) {
            self.end_lingering();
        }
        unshared
    }

    /// The live block that begins there.
    fn live_at(&self, block: u64) -> Option<Live<Note>> {
        let mut regions = self.devices().flat_map(|device| device.regions());
        regions.find_map(|region| region.live(block))
    }

    fn unshare_now(&self, block: u64, may: impl Fn(&Note) -> bool) -> Unshared {
        let mut state = lock(&self.sharing.state);
        if state.lingering.contains_key(&block) {
            return Unshared::Unknown;
        }
        if !state.exports.contains_key(&block) {
            return Unshared::Free;
        }
        let Some(live) = self.live_at(block).filter(|live| may(&live.note)) else {
            // Freeing it says why not.
            return Unshared::Free;
        };
        let export = state.exports.remove(&block);
        let folder = state.folder.as_ref();
        match export.and_then(|export| withdraw(folder, export)) {
            Some(left) => {
                state.lingering.insert(block, left);
                Unshared::Later(live)
            }
            None => Unshared::Free,
        }
    }

    /// Frees what was freed before and is open nowhere any more; whether there
    /// was something.
    pub fn end_lingering(&self) -> bool {
        if !self.sharing.is_used() {
            return false;
        }
        let mut state = lock(&self.sharing.state);
        let over = state.lingering.extract_if(|_, it| it.lingering.is_over());
        let mut any = false;
        // Freed while the state is held, or else a program could free again what
        // is neither live nor lingers. The number tells it from a block that
        // came there since its context ended.
        for (block, left) in over {
            let mut devices = self.devices();
            let is_it = |note: &Note| note.buffer == left.buffer;
            let freed = devices.find_map(|device| device.free_if(block, Place::Anywhere, is_it));
            if let Some(freed) = freed {
                self.ledger.discharge(freed.note.charge, freed.span.bytes);
            }
            any = true;
        }
        any
    }

    // ---- blocks of others ---------------------------------------------------

    /// Opens what a handle of ours stands for, in a context of a device; none if
    /// it is none, or stands for nothing. `open` is how the driver is asked.
    pub fn import(
        &self,
        handle: &CUipcMemHandle,
        flags: u32,
        (context, device): (ContextId, u32),
        tenant: impl FnOnce() -> Tenant,
        open: impl Fn(CUipcMemHandle) -> Result<CUdeviceptr, CUresult>,
    ) -> Option<Result<u64, CUresult>> {
        let ticket = Ticket::read(handle)?;
        // Asks the loader, whose lock comes before ours.
        let tenant = tenant();
        let mut state = self.sharing.use_it();
        let opened = self.folder(&mut state).ok()?.open_share(ticket.name).ok()?;
        let share = opened.share;
        if (share.offset_bytes, share.bytes) != (ticket.offset_bytes, ticket.bytes) {
            return None;
        }
        let whole = CUipcMemHandle {
            reserved: share.handle.map(|byte| byte as _),
        };
        let known = state.slabs.iter().find_map(|(base, slab)| {
            let same = slab.handle == share.handle && slab.context == context;
            same.then_some((*base, slab.flags, slab.bytes))
        });
        let base = match known {
            Some((_, _, bytes)) if bytes != share.whole_bytes => return None,
            Some((base, same, _)) if same == flags => base,
            Some((base, _, _)) => {
                // The driver says what it thinks of these flags.
                match open(whole) {
                    Ok(again) => self.close_slab(again),
                    Err(code) => return Some(Err(code)),
                };
                base
            }
            None => {
                let base = match open(whole) {
                    Ok(base) => base,
                    Err(code) => return Some(Err(code)),
                };
                if !self.holds_at(base, share.whole_bytes) {
                    self.close_slab(base);
                    return None;
                }
                // What was there before has ended, whoever is still to be told.
                state.imports.retain(|_, import| import.slab != base);
                let piece = Piece {
                    device,
                    tenant,
                    kind: Governed::IpcImport,
                    bytes: share.whole_bytes,
                    context: Some(context),
                };
                self.made(Key::Address(base), piece);
                let slab = Slab {
                    handle: share.handle,
                    flags,
                    context,
                    bytes: share.whole_bytes,
                    blocks: 0,
                    unwaited: Vec::new(),
                };
                state.slabs.insert(base, slab);
                base
            }
        };
        // Inside of the whole, which is there.
        let address = base.checked_add(share.offset_bytes)?;
        if let Some(import) = state.imports.get_mut(&address) {
            import.opens += 1;
            return Some(Ok(address));
        }
        let import = Import {
            bytes: share.bytes,
            slab: base,
            buffer: self.next_buffer(),
            opens: 1,
            share: opened,
        };
        state.imports.insert(address, import);
        if let Some(slab) = state.slabs.get_mut(&base) {
            slab.blocks += 1;
        }
        Some(Ok(address))
    }

    /// Whether the driver has so much memory there.
    fn holds_at(&self, address: u64, bytes: u64) -> bool {
        let (mut base, mut size) = (0, 0);
        // SAFETY: both outlive the call.
        let asked = answer(unsafe {
            self.driver
                .cuMemGetAddressRange_v2(&mut base, &mut size, address)
        });
        let before = address.checked_sub(base);
        let left = before.and_then(|before| (size as u64).checked_sub(before));
        asked == CUresult::CUDA_SUCCESS && left.is_some_and(|left| bytes <= left)
    }

    fn close_slab(&self, base: u64) -> CUresult {
        // SAFETY: from cuIpcOpenMemHandle, and closed as often as it was opened.
        answer(unsafe { self.driver.cuIpcCloseMemHandle(base) })
    }

    /// Waits for all work of a context that is there.
    fn wait_for(&self, context: ContextId) -> CUresult {
        let raw = self.raw(context);
        let current = raw.and_then(|raw| Current::push(self.driver, raw));
        let Some(_current) = current else {
            return CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED;
        };
        // SAFETY: it takes nothing.
        answer(unsafe { self.driver.cuCtxSynchronize() })
    }

    /// Closes a block that was opened; none if none was there. Returns when work
    /// that was queued before is done, as the driver's own call does: behind it
    /// the owner uses the memory again. While the block is open otherwise, the
    /// driver is asked nothing.
    pub fn close_import(&self, address: u64) -> Option<CUresult> {
        if !self.sharing.is_used() {
            return None;
        }
        // The import whose context was waited for, and whether that was possible.
        let mut waited: Option<(u64, bool)> = None;
        let mut held = lock(&self.sharing.state);
        loop {
            let state = &mut *held;
            let import = state.imports.get_mut(&address)?;
            if import.opens > 1 {
                import.opens -= 1;
                return Some(CUresult::CUDA_SUCCESS);
            }
            let (base, buffer) = (import.slab, import.buffer);
            let slab = state.slabs.get_mut(&base)?;
            if slab.blocks <= 1 {
                // The driver waits.
                let closed = self.close_slab(base);
                if closed != CUresult::CUDA_SUCCESS {
                    return Some(closed);
                }
                state.slabs.remove(&base);
                if let Some(piece) = self.governed().remove(Key::Address(base)) {
                    self.ended(&piece);
                }
                // Its lock goes last: the owner may use the memory again then.
                state.imports.remove(&address);
                return Some(CUresult::CUDA_SUCCESS);
            }
            match waited {
                Some((of, is_idle)) if of == buffer => {
                    slab.blocks -= 1;
                    let import = state.imports.remove(&address)?;
                    if !is_idle {
                        slab.unwaited.push(import.share);
                    }
                    return Some(CUresult::CUDA_SUCCESS);
                }
                // Waiting would end a capture. The lock stays until the slab is
                // closed.
                _ if self.anything_captures() => waited = Some((buffer, false)),
                _ => {
                    // Others may share meanwhile; so all is looked at again.
                    let context = slab.context;
                    drop(held);
                    let done = self.wait_for(context);
                    if done != CUresult::CUDA_SUCCESS {
                        return Some(done);
                    }
                    waited = Some((buffer, true));
                    held = lock(&self.sharing.state);
                }
            }
        }
    }

    /// The open block of another process at an address, or around it.
    pub fn imported(&self, address: u64) -> Option<Imported> {
        if !self.sharing.is_used() {
            return None;
        }
        let state = lock(&self.sharing.state);
        let (at, import) = state.imports.range(..=address).next_back()?;
        let context = state.slabs.get(&import.slab)?.context;
        (address - at < import.bytes).then_some(Imported {
            address: *at,
            bytes: import.bytes,
            buffer: import.buffer,
            context,
        })
    }

    /// Whether an address is in another process's slab of which some block is
    /// open.
    pub fn is_in_imported_slab(&self, address: u64) -> bool {
        if !self.sharing.is_used() {
            return false;
        }
        let state = lock(&self.sharing.state);
        let slab = state.slabs.range(..=address).next_back();
        slab.is_some_and(|(base, slab)| address - base < slab.bytes)
    }

    // ---- ends ---------------------------------------------------------------

    /// These contexts are gone, and their blocks freed.
    pub(crate) fn sharing_ends_with(&self, contexts: &[ContextId]) {
        if !self.sharing.is_used() {
            return;
        }
        let mut state = lock(&self.sharing.state);
        let state = &mut *state;
        let slabs = &mut state.slabs;
        slabs.retain(|_, slab| !contexts.contains(&slab.context));
        let imports = &mut state.imports;
        imports.retain(|_, import| slabs.contains_key(&import.slab));
        let is_live = |block: u64, buffer: u64| {
            let live = self.live_at(block);
            live.is_some_and(|live| live.note.buffer == buffer)
        };
        let exports = &mut state.exports;
        let ended = exports.extract_if(|block, export| !is_live(*block, export.buffer));
        for (_, export) in ended {
            withdraw(state.folder.as_ref(), export);
        }
        let lingering = &mut state.lingering;
        lingering.retain(|block, left| is_live(*block, left.buffer));
    }

    /// The process ends: nothing of it can be opened any more.
    pub fn sharing_ends(&self) {
        if self.sharing.is_used() {
            let mut state = lock(&self.sharing.state);
            let state = &mut *state;
            for (_, export) in state.exports.drain() {
                withdraw(state.folder.as_ref(), export);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_handle_says_is_read_and_others_are_not_ours() {
        let ticket = Ticket {
            name: ShareName(std::array::from_fn(|_| fastrand::u8(..))),
            offset_bytes: fastrand::u64(..),
            bytes: fastrand::u64(..),
        };
        let handle = ticket.handle();
        assert_eq!(Ticket::read(&handle), Some(ticket));
        // What names it, and what must be zero.
        for at in (0..16).chain(48..64) {
            let mut other = handle;
            other.reserved[at] ^= 1 << fastrand::u32(..7);
            assert_eq!(Ticket::read(&other), None, "{at}");
        }
        for at in 16..48 {
            let mut other = handle;
            other.reserved[at] ^= 1 << fastrand::u32(..7);
            assert!(Ticket::read(&other).is_some_and(|read| read != ticket));
        }
    }
}
