//! Blocks shared between processes by the driver's legacy IPC handles: exported and imported.
//!
//! To the driver a block is a part of a slab, and it has a handle only for the slab. So a block
//! gets a handle of ours: it names a file in the folder of ledgers ([`fercuda_ledger::Share`]),
//! which contains the slab's handle. A process with the hook opens the slab, once, and gets the
//! start of the block. A process without it passes the handle to the driver, to which it is
//! invalid.
//!
//! Invariants: a block's handle opens this block or nothing, also after it is freed. A block that
//! another process has open when it is freed stays unchanged and unusable until it is closed there.
//! The driver closes a slab when the last of its blocks is closed.

use fercuda_cuda_sys::types::{CUdeviceptr, CUipcMemHandle, CUresult};
use fercuda_ledger::{Folder, Governed, Share, Tenant};
use fercuda_pool::{FreedBlock, LiveBlock, PoolPlace};

use crate::clock::{ContextId, CurrentContext, lock};
use crate::device::GovernedDevice;
use crate::driver_call::answer;
use crate::governed::{GovernedKey, GovernedPiece};
use crate::governor::Governor;
use crate::note::BlockNote;
use crate::shared_blocks::{
    ExportedBlock, ImportedBlock, ImportedSlab, IpcTicket, LingeringBlock, SharingState,
};

/// Why a block cannot be shared.
#[derive(Debug)]
pub enum ShareDenied {
    /// It is in mapped memory, which has no handles of this kind.
    Mapped,
    /// The driver refuses, as for any allocation of its kind.
    Driver(CUresult),
    /// No file can be created in the folder of ledgers.
    Folder(String),
}

/// How to go on freeing a block.
pub(crate) enum UnshareOutcome<'g> {
    /// As usual.
    Free,
    /// It was freed before.
    Unknown,
    /// It counts as freed, and stays until no process has it open.
    Later(&'g GovernedDevice, FreedBlock<BlockNote>),
}

/// A block of another process.
#[derive(Clone, Copy, Debug)]
pub struct ForeignBlock {
    /// Its start.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// Its buffer id here.
    pub buffer: u64,
    /// The context that opened it.
    pub context: ContextId,
}

/// Withdraws a share; returns the block if it lingers.
fn withdraw(folder: Option<&Folder>, export: ExportedBlock) -> Option<LingeringBlock> {
    let buffer = export.buffer;
    // Every exported block has its share in the folder.
    let lingering = folder?.withdraw(export.offered)?;
    Some(LingeringBlock { lingering, buffer })
}

impl Governor {
    fn folder<'s>(&self, state: &'s mut SharingState) -> Result<&'s Folder, String> {
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

    /// A handle of the live block that begins at an address, or contains it; `None` if there is no
    /// such block.
    pub fn export(&self, address: u64) -> Option<Result<CUipcMemHandle, ShareDenied>> {
        let (device, live) = self.find(address)?;
        Some(match device.slab(live.span.address) {
            Some(slab) => self.export_of(&live, slab),
            None => Err(ShareDenied::Mapped),
        })
    }

    fn export_of(
        &self,
        live: &LiveBlock<BlockNote>,
        (slab, slab_bytes): (u64, u64),
    ) -> Result<CUipcMemHandle, ShareDenied> {
        let invalid = ShareDenied::Driver(CUresult::CUDA_ERROR_INVALID_VALUE);
        if live.note.is_ordered() {
            return Err(invalid);
        }
        self.end_lingering();
        let mut state = self.sharing.lock_used();
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
        // SAFETY: `handle` outlives the call; the slab exists while its block is live.
        let asked = answer(unsafe { self.driver.cuIpcGetMemHandle(&mut handle, slab) });
        if asked != CUresult::CUDA_SUCCESS {
            return Err(ShareDenied::Driver(asked));
        }
        let share = Share {
            handle: handle.reserved.map(|byte| byte as u8),
            offset_bytes: block - slab,
            bytes: live.requested_bytes,
            whole_bytes: slab_bytes,
        };
        let nowhere = || ShareDenied::Folder("there is no folder for ledgers".to_owned());
        let ledger = self.ledger().path().ok_or_else(nowhere)?;
        let folder = self.folder(&mut state).map_err(ShareDenied::Folder)?;
        let offered = folder.share(&share, ledger);
        let offered = offered.map_err(|error| ShareDenied::Folder(error.to_string()))?;
        let ticket = IpcTicket {
            name: offered.name,
            offset_bytes: share.offset_bytes,
            bytes: share.bytes,
        };
        let export = ExportedBlock {
            ticket,
            offered,
            buffer: live.note.buffer,
        };
        state.exports.insert(block, export);
        Ok(ticket.handle())
    }

    /// Withdraws a block that is about to be freed, if `may` permits it for its note: no process
    /// opens it any more.
    #[cold]
    pub(crate) fn unshare(
        &self,
        block: u64,
        may: impl Fn(&BlockNote) -> bool,
    ) -> UnshareOutcome<'_> {
        let unshared = self.unshare_now(block, may);
        if !matches!(unshared, UnshareOutcome::Free) {
            self.end_lingering();
        }
        unshared
    }

    /// The live block that begins at `block`.
    fn live_at(&self, block: u64) -> Option<(&GovernedDevice, LiveBlock<BlockNote>)> {
        self.devices().find_map(|device| {
            let mut regions = device.regions().into_iter();
            let live = regions.find_map(|region| region.live(block));
            live.map(|live| (device, live))
        })
    }

    fn unshare_now(&self, block: u64, may: impl Fn(&BlockNote) -> bool) -> UnshareOutcome<'_> {
        let mut state = lock(&self.sharing.state);
        if state.lingering.contains_key(&block) {
            return UnshareOutcome::Unknown;
        }
        if !state.exports.contains_key(&block) {
            return UnshareOutcome::Free;
        }
        let live = self.live_at(block);
        let Some((device, live)) = live.filter(|(_, live)| may(&live.note)) else {
            // Freeing it returns the reason.
            return UnshareOutcome::Free;
        };
        let export = state.exports.remove(&block);
        let folder = state.folder.as_ref();
        match export.and_then(|export| withdraw(folder, export)) {
            Some(left) => {
                state.lingering.insert(block, left);
                UnshareOutcome::Later(device, live)
            }
            None => UnshareOutcome::Free,
        }
    }

    /// Frees the freed blocks that are not open elsewhere any more; returns whether there were any.
    pub fn end_lingering(&self) -> bool {
        if !self.sharing.is_used() {
            return false;
        }
        let mut state = lock(&self.sharing.state);
        let over = state.lingering.extract_if(|_, it| it.lingering.is_over());
        let mut any = false;
        // Freed while the state is locked, or else a program could free again a block that neither
        // is live nor lingers. The buffer id distinguishes it from a block that was allocated there
        // since its context ended.
        for (block, left) in over {
            let mut devices = self.devices();
            let is_it = |note: &BlockNote| note.buffer == left.buffer;
            let freed =
                devices.find_map(|device| device.free_if(block, PoolPlace::Anywhere, is_it));
            if let Some(freed) = freed {
                self.ledger.discharge(freed.note.charge, freed.span.bytes);
            }
            any = true;
        }
        any
    }

    // ---- blocks of others ---------------------------------------------------

    /// Opens the block of a handle of ours, in a context of a device; `None` if it is not ours, or
    /// is stale. `open` calls the driver.
    pub fn import(
        &self,
        handle: &CUipcMemHandle,
        flags: u32,
        (context, device): (ContextId, u32),
        tenant: impl FnOnce() -> Tenant,
        open: impl Fn(CUipcMemHandle) -> Result<CUdeviceptr, CUresult>,
    ) -> Option<Result<u64, CUresult>> {
        let ticket = IpcTicket::read(handle)?;
        // Calls the loader; its lock comes before ours.
        let tenant = tenant();
        let mut state = self.sharing.lock_used();
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
                // The driver validates the flags.
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
                // Previous blocks there have ended, even if their users have not noticed.
                state.imports.retain(|_, import| import.slab != base);
                let piece = GovernedPiece {
                    device,
                    tenant,
                    kind: Governed::IpcImport,
                    bytes: share.whole_bytes,
                    context: Some(context),
                };
                self.made(GovernedKey::Address(base), piece);
                let slab = ImportedSlab {
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
        // Inside the whole, which exists.
        let address = base.checked_add(share.offset_bytes)?;
        if let Some(import) = state.imports.get_mut(&address) {
            import.opens += 1;
            return Some(Ok(address));
        }
        let import = ImportedBlock {
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

    /// Whether the driver has this much memory there.
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

    /// Waits for all work of a context that exists.
    fn wait_for(&self, context: ContextId) -> CUresult {
        let raw = self.raw(context);
        let current = raw.and_then(|raw| CurrentContext::push(self.driver, raw));
        let Some(_current) = current else {
            return CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED;
        };
        // SAFETY: takes no arguments.
        answer(unsafe { self.driver.cuCtxSynchronize() })
    }

    /// Closes an imported block; `None` if there is none. Returns when previously queued work is
    /// done, as the driver's own call does: after it the owner reuses the memory. If the block
    /// remains open, the driver is not called.
    pub fn close_import(&self, address: u64) -> Option<CUresult> {
        if !self.sharing.is_used() {
            return None;
        }
        // The import for which the context's work was waited for, and whether that was possible.
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
                // The driver's call waits.
                let closed = self.close_slab(base);
                if closed != CUresult::CUDA_SUCCESS {
                    return Some(closed);
                }
                state.slabs.remove(&base);
                if let Some(piece) = self.governed().remove(GovernedKey::Address(base)) {
                    self.ended(&piece);
                }
                // Its lock is released last: the owner may reuse the memory then.
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
                // Waiting would end a capture. The lock stays until the slab is closed.
                _ if self.anything_captures() => waited = Some((buffer, false)),
                _ => {
                    // Other threads may share meanwhile; so everything is checked again.
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

    /// The open block of another process that begins at an address, or contains it.
    pub fn imported(&self, address: u64) -> Option<ForeignBlock> {
        if !self.sharing.is_used() {
            return None;
        }
        let state = lock(&self.sharing.state);
        let (at, import) = state.imports.range(..=address).next_back()?;
        let context = state.slabs.get(&import.slab)?.context;
        (address - at < import.bytes).then_some(ForeignBlock {
            address: *at,
            bytes: import.bytes,
            buffer: import.buffer,
            context,
        })
    }

    /// Whether an address is in another process's slab with an open block.
    pub fn is_in_imported_slab(&self, address: u64) -> bool {
        if !self.sharing.is_used() {
            return false;
        }
        let state = lock(&self.sharing.state);
        let slab = state.slabs.range(..=address).next_back();
        slab.is_some_and(|(base, slab)| address - base < slab.bytes)
    }

    // ---- ends ---------------------------------------------------------------

    /// Ends the sharing of destroyed contexts; their blocks are already freed.
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
            live.is_some_and(|(_, live)| live.note.buffer == buffer)
        };
        let exports = &mut state.exports;
        let ended = exports.extract_if(|block, export| !is_live(*block, export.buffer));
        for (_, export) in ended {
            withdraw(state.folder.as_ref(), export);
        }
        let lingering = &mut state.lingering;
        lingering.retain(|block, left| is_live(*block, left.buffer));
    }

    /// Ends all sharing when the process ends: none of its blocks can be opened any more.
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
    use fercuda_ledger::ShareName;

    use super::*;

    #[test]
    fn our_handles_are_decoded_and_others_are_rejected() {
        let ticket = IpcTicket {
            name: ShareName(std::array::from_fn(|_| fastrand::u8(..))),
            offset_bytes: fastrand::u64(..),
            bytes: fastrand::u64(..),
        };
        let handle = ticket.handle();
        assert_eq!(IpcTicket::read(&handle), Some(ticket));
        // The magic and version, and the bytes that must be zero.
        for at in (0..16).chain(48..64) {
            let mut other = handle;
            other.reserved[at] ^= 1 << fastrand::u32(..7);
            assert_eq!(IpcTicket::read(&other), None, "{at}");
        }
        for at in 16..48 {
            let mut other = handle;
            other.reserved[at] ^= 1 << fastrand::u32(..7);
            assert!(IpcTicket::read(&other).is_some_and(|read| read != ticket));
        }
    }
}
