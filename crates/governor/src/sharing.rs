//! Blocks shared between processes by the driver's legacy IPC handles: exported and imported.
//!
//! To the driver a block is a part of a slab, and it has a handle only for the slab; or of mapped
//! memory, which has no such handle at all. So a block gets a handle of ours: it names a file in
//! the folder of ledgers ([`fercuda_ledger::Share`]), which contains the slab's handle, or says
//! that the owner gives descriptors. A process with the hook opens the slab, once, or maps the
//! memory of the descriptors, and gets the start of the block. A process without it passes the
//! handle to the driver, to which it is invalid.
//!
//! Invariants: a block's handle opens this block or nothing, also after it is freed. A block that
//! another process has open when it is freed stays unchanged and unusable until it is closed there.
//! The driver closes a slab when the last of its blocks is closed. No lock is held while another
//! process is waited for.
//!
//! Elsewhere: giving descriptors (`descriptors`), mapping them (`mapped_import`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fercuda_cuda_sys::types::{CUdeviceptr, CUipcMemHandle, CUresult};
use fercuda_ledger::{Folder, Governed, OpenedShare, Share, ShareListener, ShareSource, Tenant};
use fercuda_pool::{FreedBlock, LiveBlock, PoolPlace, Span};

use crate::clock::{ContextId, CurrentContext, lock};
use crate::descriptors::{export_descriptor, serve};
use crate::device::GovernedDevice;
use crate::driver_call::answer;
use crate::governed::{GovernedKey, GovernedPiece};
use crate::governor::Governor;
use crate::mapped_import::{ImportRefused, MappedImport};
use crate::note::BlockNote;
use crate::peers::Peers;
use crate::released_block::ReleasedBlock;
use crate::shared_blocks::{
    ExportedBlock, ImportedBlock, ImportedMemory, ImportedSlab, IpcTicket, LingeringBlock,
    SharingState,
};

/// Why a block cannot be shared.
#[derive(Debug)]
pub enum ShareDenied {
    /// It is in mapped memory, which this driver cannot export.
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

/// The open block of a share in a context, which was opened before.
fn opened_before<'s>(
    state: &'s mut SharingState,
    opened: &OpenedShare,
    context: ContextId,
) -> Option<(u64, &'s mut ImportedBlock)> {
    let mut imports = state.imports.iter_mut();
    imports.find_map(|(address, import)| match &import.memory {
        ImportedMemory::Mapped(mapped)
            if mapped.context == context && import.share.id == opened.id =>
        {
            Some((*address, import))
        }
        _ => None,
    })
}

impl Governor {
    fn folder<'s>(&self, state: &'s mut SharingState) -> Result<&'s Arc<Folder>, String> {
        let there = match state.folder.take() {
            Some(folder) => folder,
            None => {
                let ledger = self.ledger().path();
                let folder = ledger.and_then(|path| path.parent());
                let folder = folder.ok_or("there is no folder for ledgers")?;
                Arc::new(Folder::at(folder).map_err(|error| error.to_string())?)
            }
        };
        Ok(state.folder.insert(there))
    }

    // ---- blocks of this process ---------------------------------------------

    /// A handle of the live block that begins at an address, or contains it; `None` if there is no
    /// such block.
    pub fn export(&self, address: u64) -> Option<Result<CUipcMemHandle, ShareDenied>> {
        let (device, live) = self.find(address)?;
        Some(self.export_of(device, &live))
    }

    fn export_of(
        &self,
        device: &GovernedDevice,
        live: &LiveBlock<BlockNote>,
    ) -> Result<CUipcMemHandle, ShareDenied> {
        if live.note.is_ordered() {
            return Err(ShareDenied::Driver(CUresult::CUDA_ERROR_INVALID_VALUE));
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
            withdraw(state.folder.as_deref(), export);
        }
        let (share, pieces) = match device.slab(block) {
            Some(slab) => (self.share_of_slab(live, slab)?, Vec::new()),
            None => self.share_of_mappings(device, live)?,
        };
        let nowhere = || ShareDenied::Folder("there is no folder for ledgers".to_owned());
        let ledger = self.ledger().path().ok_or_else(nowhere)?;
        let folder = self
            .folder(&mut state)
            .map_err(ShareDenied::Folder)?
            .clone();
        if share.source == ShareSource::Descriptors && state.listener.is_none() {
            let refused = |error: &dyn std::fmt::Display| ShareDenied::Folder(error.to_string());
            let listener = ShareListener::create(&folder, ledger).map_err(|it| refused(&it))?;
            let listener = Arc::new(listener);
            let shared = (self.sharing.state.clone(), listener.clone());
            serve(self.driver, shared.0, shared.1).map_err(|it| refused(&it))?;
            state.listener = Some(listener);
        }
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
            pieces,
        };
        state.exports.insert(block, export);
        Ok(ticket.handle())
    }

    /// The share of a block in a slab.
    fn share_of_slab(
        &self,
        live: &LiveBlock<BlockNote>,
        (slab, slab_bytes): (u64, u64),
    ) -> Result<Share, ShareDenied> {
        let mut handle = CUipcMemHandle::default();
        // SAFETY: `handle` outlives the call; the slab exists while its block is live.
        let asked = answer(unsafe { self.driver.cuIpcGetMemHandle(&mut handle, slab) });
        if asked != CUresult::CUDA_SUCCESS {
            return Err(ShareDenied::Driver(asked));
        }
        Ok(Share {
            source: ShareSource::Handle(handle.reserved.map(|byte| byte as u8)),
            offset_bytes: live.span.address - slab,
            bytes: live.requested_bytes,
            whole_bytes: slab_bytes,
        })
    }

    /// The share of a block in mapped memory, and the mappings that contain the block.
    fn share_of_mappings(
        &self,
        device: &GovernedDevice,
        live: &LiveBlock<BlockNote>,
    ) -> Result<(Share, Vec<Span>), ShareDenied> {
        let peers = device.peers.as_ref().ok_or(ShareDenied::Mapped)?;
        let pieces = peers.pieces(live.span);
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
            return Err(ShareDenied::Mapped);
        };
        let (begin, end) = (first.address, last.end());
        let whole_bytes: u64 = pieces.iter().map(|piece| piece.bytes).sum();
        // The others of the block are as the first.
        if end - begin != whole_bytes || export_descriptor(self.driver, begin).is_err() {
            return Err(ShareDenied::Mapped);
        }
        let share = Share {
            source: ShareSource::Descriptors,
            offset_bytes: live.span.address - begin,
            bytes: live.requested_bytes,
            whole_bytes,
        };
        Ok((share, pieces))
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
        let folder = state.folder.as_deref();
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
        self.end_unwaited();
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
        self.end_unwaited();
        // Calls the loader; its lock comes before ours.
        let tenant = tenant();
        let mut state = self.sharing.lock_used();
        let folder = self.folder(&mut state).ok()?.clone();
        let opened = folder.open_share(ticket.name).ok()?;
        let share = opened.share;
        if (share.offset_bytes, share.bytes) != (ticket.offset_bytes, ticket.bytes) {
            return None;
        }
        let place = (context, device, tenant);
        match share.source {
            ShareSource::Handle(whole) => {
                self.import_of_slab(&mut state, opened, whole, flags, place, open)
            }
            ShareSource::Descriptors => {
                drop(state);
                self.import_of_mappings(&folder, opened, flags, place)
            }
        }
    }

    /// Opens a block in a slab of another process.
    fn import_of_slab(
        &self,
        state: &mut SharingState,
        opened: OpenedShare,
        whole: [u8; 64],
        flags: u32,
        (context, device, tenant): (ContextId, u32, Tenant),
        open: impl Fn(CUipcMemHandle) -> Result<CUdeviceptr, CUresult>,
    ) -> Option<Result<u64, CUresult>> {
        let share = opened.share;
        let handle = whole;
        let whole = CUipcMemHandle {
            reserved: handle.map(|byte| byte as _),
        };
        let known = state.slabs.iter().find_map(|(base, slab)| {
            let same = slab.handle == handle && slab.context == context;
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
                state.imports.retain(|_, import| !import.is_in(base));
                let piece = GovernedPiece {
                    device,
                    tenant,
                    kind: Governed::IpcImport,
                    bytes: share.whole_bytes,
                    context: Some(context),
                };
                self.made(GovernedKey::Address(base), piece);
                let slab = ImportedSlab {
                    handle,
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
            buffer: self.next_buffer(),
            opens: 1,
            memory: ImportedMemory::InSlab(base),
            share: opened,
        };
        state.imports.insert(address, import);
        if let Some(slab) = state.slabs.get_mut(&base) {
            slab.blocks += 1;
        }
        Some(Ok(address))
    }

    /// Opens a block in mapped memory of another process, for whose answer it waits.
    fn import_of_mappings(
        &self,
        folder: &Folder,
        opened: OpenedShare,
        flags: u32,
        (context, device, tenant): (ContextId, u32, Tenant),
    ) -> Option<Result<u64, CUresult>> {
        const LAZY_PEER_ACCESS: u32 = 1;
        if flags & !LAZY_PEER_ACCESS != 0 {
            return Some(Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        }
        // The driver refuses it then.
        if self.may_not_wait() {
            return None;
        }
        {
            let mut state = lock(&self.sharing.state);
            let mut exports = state.exports.values();
            if exports.any(|export| export.offered.id == opened.id) {
                return Some(Err(CUresult::CUDA_ERROR_INVALID_CONTEXT));
            }
            if let Some((address, import)) = opened_before(&mut state, &opened, context) {
                import.opens += 1;
                return Some(Ok(address));
            }
        }
        let own = self.device(device).and_then(|device| device.peers.clone());
        let raw = i32::try_from(device).ok()?;
        let peers = own.unwrap_or_else(|| Arc::new(Peers::new(self.driver, raw)));
        let mapped = MappedImport::fetch(self.driver, folder, &opened, (context, peers));
        let mapped = match mapped {
            Ok(mapped) => mapped,
            Err(ImportRefused::Stale) => return None,
            Err(refused) => return Some(Err(self.refused(&refused))),
        };
        let share = opened.share;
        let base = mapped.base;
        let address = base.checked_add(share.offset_bytes)?;
        let mut state = lock(&self.sharing.state);
        // Another thread may have opened it meanwhile, or destroyed the context.
        if let Some((address, import)) = opened_before(&mut state, &opened, context) {
            import.opens += 1;
            drop(state);
            return Some(Ok(address));
        }
        if self.raw(context).is_none() {
            drop(state);
            return Some(Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED));
        }
        let piece = GovernedPiece {
            device,
            tenant,
            kind: Governed::IpcImport,
            bytes: share.bytes,
            context: Some(context),
        };
        self.made(GovernedKey::Address(base), piece);
        let import = ImportedBlock {
            bytes: share.bytes,
            buffer: self.next_buffer(),
            opens: 1,
            memory: ImportedMemory::Mapped(mapped),
            share: opened,
        };
        state.imports.insert(address, import);
        Some(Ok(address))
    }

    /// The result for a block that could not be mapped. The first one is reported.
    fn refused(&self, refused: &ImportRefused) -> CUresult {
        static REPORTED: AtomicBool = AtomicBool::new(false);
        let (why, code) = match refused {
            ImportRefused::Stale => return CUresult::CUDA_ERROR_INVALID_VALUE,
            ImportRefused::System(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                let why = "its owner does not answer".to_owned();
                (why, CUresult::CUDA_ERROR_MAP_FAILED)
            }
            ImportRefused::System(error) => {
                let advice = "try: a higher limit of open files (ulimit -n)";
                let why = format!("its memory was not received: {error}\n{advice}");
                (why, CUresult::CUDA_ERROR_MAP_FAILED)
            }
            ImportRefused::Driver(call, code) => (format!("{call} answered {code:?}"), *code),
        };
        if !REPORTED.swap(true, Relaxed) {
            self.tell(&format!("cuIpcOpenMemHandle: a block is not mapped: {why}"));
        }
        code
    }

    /// Unmaps blocks whose last use could not be waited for when they were closed.
    fn end_unwaited(&self) {
        if !self.sharing.is_used() || self.anything_captures() {
            return;
        }
        let unwaited = std::mem::take(&mut lock(&self.sharing.state).unwaited);
        for import in unwaited {
            if let ImportedMemory::Mapped(mapped) = &import.memory {
                // A context that is gone, or has failed, has no work left.
                let _idle = self.wait_for(mapped.context);
            }
        }
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
            let buffer = import.buffer;
            let (base, context) = match &import.memory {
                ImportedMemory::InSlab(base) => (*base, state.slabs.get(base)?.context),
                ImportedMemory::Mapped(mapped) => (mapped.base, mapped.context),
            };
            let is_last = match state.slabs.get(&base) {
                Some(slab) if import.is_in(base) => slab.blocks <= 1,
                _ => false,
            };
            if is_last {
                // The driver's call waits.
                let closed = self.close_slab(base);
                if closed != CUresult::CUDA_SUCCESS {
                    return Some(closed);
                }
                state.slabs.remove(&base);
                self.import_ended(base);
                // Its lock is released last: the owner may reuse the memory then.
                state.imports.remove(&address);
                return Some(CUresult::CUDA_SUCCESS);
            }
            match waited {
                Some((of, is_idle)) if of == buffer => {
                    let import = state.imports.remove(&address)?;
                    match &import.memory {
                        ImportedMemory::InSlab(_) => {
                            let slab = state.slabs.get_mut(&base)?;
                            slab.blocks -= 1;
                            if !is_idle {
                                slab.unwaited.push(import.share);
                            }
                        }
                        ImportedMemory::Mapped(_) => {
                            self.import_ended(base);
                            if is_idle {
                                // Unmapped without our lock.
                                drop(held);
                                drop(import);
                            } else {
                                state.unwaited.push(import);
                            }
                        }
                    }
                    return Some(CUresult::CUDA_SUCCESS);
                }
                // Waiting would end a capture. The lock stays until the slab is closed, or the
                // memory is unmapped.
                _ if self.anything_captures() => waited = Some((buffer, false)),
                _ => {
                    // Other threads may share meanwhile; so everything is checked again.
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

    /// Refunds the charge of an import.
    fn import_ended(&self, base: u64) {
        if let Some(piece) = self.governed().remove(GovernedKey::Address(base)) {
            self.ended(&piece);
        }
    }

    /// The open block of another process that begins at an address, or contains it.
    pub fn imported(&self, address: u64) -> Option<ForeignBlock> {
        if !self.sharing.is_used() {
            return None;
        }
        let state = lock(&self.sharing.state);
        let (at, import) = state.imports.range(..=address).next_back()?;
        let context = match &import.memory {
            ImportedMemory::InSlab(slab) => state.slabs.get(slab)?.context,
            ImportedMemory::Mapped(mapped) => mapped.context,
        };
        (address - at < import.bytes).then_some(ForeignBlock {
            address: *at,
            bytes: import.bytes,
            buffer: import.buffer,
            context,
        })
    }

    /// Whether an address is in memory of another process with an open block.
    pub fn is_in_imported_memory(&self, address: u64) -> bool {
        if !self.sharing.is_used() {
            return false;
        }
        let state = lock(&self.sharing.state);
        let slab = state.slabs.range(..=address).next_back();
        let mut imports = state.imports.values();
        slab.is_some_and(|(base, slab)| address - base < slab.bytes)
            || imports.any(|import| match &import.memory {
                ImportedMemory::InSlab(_) => false,
                ImportedMemory::Mapped(mapped) => mapped.contains(address),
            })
    }

    // ---- ends ---------------------------------------------------------------

    /// Withdraws the exported blocks of destroyed contexts that are in mapped memory: those that
    /// other processes have open count as freed, and linger. Returns the buffer ids of all blocks
    /// that do.
    pub(crate) fn kept_elsewhere(&self, contexts: &[ContextId]) -> Vec<u64> {
        if !self.sharing.is_used() {
            return Vec::new();
        }
        let mut state = lock(&self.sharing.state);
        let SharingState {
            exports,
            lingering,
            folder,
            ..
        } = &mut *state;
        let mut ended = Vec::new();
        for (block, export) in exports.iter().filter(|(_, it)| !it.pieces.is_empty()) {
            let live = self.live_at(*block);
            ended.extend(live.filter(|(_, live)| {
                live.note.buffer == export.buffer && contexts.contains(&live.note.context)
            }));
        }
        ended.retain(|(_, block)| {
            let at = block.span.address;
            let export = exports.remove(&at);
            let left = export.and_then(|export| withdraw(folder.as_deref(), export));
            left.is_some_and(|left| lingering.insert(at, left).is_none())
        });
        let kept = lingering.values().map(|left| left.buffer).collect();
        drop(state);
        if let Some(record) = self.on_ended.get() {
            for (device, block) in ended {
                let place = PoolPlace::Anywhere;
                record(
                    self,
                    &ReleasedBlock {
                        device,
                        block,
                        place,
                    },
                );
            }
        }
        kept
    }

    /// Ends the sharing of destroyed contexts; their blocks are already freed.
    pub(crate) fn sharing_ends_with(&self, contexts: &[ContextId]) {
        if !self.sharing.is_used() {
            return;
        }
        let mut state = lock(&self.sharing.state);
        let state = &mut *state;
        let slabs = &mut state.slabs;
        slabs.retain(|_, slab| !contexts.contains(&slab.context));
        // Mapped memory outlives its context, whose work is done.
        let ends = |import: &ImportedBlock| match &import.memory {
            ImportedMemory::InSlab(slab) => !slabs.contains_key(slab),
            ImportedMemory::Mapped(mapped) => contexts.contains(&mapped.context),
        };
        state.imports.retain(|_, import| !ends(import));
        state.unwaited.retain(|import| !ends(import));
        let is_live = |block: u64, buffer: u64| {
            let live = self.live_at(block);
            live.is_some_and(|(_, live)| live.note.buffer == buffer)
        };
        let exports = &mut state.exports;
        let ended = exports.extract_if(|block, export| !is_live(*block, export.buffer));
        for (_, export) in ended {
            withdraw(state.folder.as_deref(), export);
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
                withdraw(state.folder.as_deref(), export);
            }
            if let Some(listener) = state.listener.take() {
                listener.stop();
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
