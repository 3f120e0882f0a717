//! Mapping of another process's block, whose memory comes as descriptors.
//!
//! Invariant: dropping it returns all that it took; the dropping code has ensured that nothing uses
//! the memory any more.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{CUdeviceptr, CUmemAllocationHandleType, CUresult};
use fercuda_ledger::{Folder, OpenedShare};

use crate::clock::ContextId;
use crate::driver_call::{RelaxedCapture, answer};
use crate::peers::Peers;

/// How long an owner may take to give all descriptors.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a block was not mapped.
#[derive(Debug)]
pub(crate) enum ImportRefused {
    /// Its owner is gone, or has nothing to give by this share.
    Stale,
    /// The system, or the owner's answer.
    System(io::Error),
    /// A driver call.
    Driver(&'static str, CUresult),
}

/// The mapping; see the module.
#[derive(Debug)]
pub(crate) struct MappedImport {
    driver: &'static Driver,
    /// The devices with access; they are granted all mappings recorded there.
    peers: Arc<Peers>,
    /// The context that opened it.
    pub(crate) context: ContextId,
    pub(crate) base: u64,
    reserved: u64,
    /// The lengths of the mappings, one behind the other.
    mapped: Vec<u64>,
    is_accessible: bool,
}

fn checked(name: &'static str, result: CUresult) -> Result<(), ImportRefused> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(ImportRefused::Driver(name, code)),
    }
}

impl MappedImport {
    /// Gets the descriptors of an open share from its owner, and maps them with access for the
    /// devices that `peers` names. Waits for the owner, so the caller holds no lock.
    pub(crate) fn fetch(
        driver: &'static Driver,
        folder: &Folder,
        opened: &OpenedShare,
        (context, peers): (ContextId, Arc<Peers>),
    ) -> Result<MappedImport, ImportRefused> {
        let owner = folder.connect(opened, PATIENCE).map_err(unanswered)?;
        let _relaxed = RelaxedCapture::enter(driver);
        let whole = opened.share.whole_bytes;
        let mut base: CUdeviceptr = 0;
        // SAFETY: `base` outlives the call.
        let reserved = answer(unsafe {
            driver.cuMemAddressReserve(&mut base, whole as usize, 0, Default::default(), 0)
        });
        checked("cuMemAddressReserve", reserved)?;
        let mut import = MappedImport {
            driver,
            peers,
            context,
            base,
            reserved: whole,
            mapped: Vec::new(),
            is_accessible: false,
        };
        let (mut end, mut left) = (0, 1);
        while left > 0 {
            let batch = owner.ask(import.mapped.len() as u64).map_err(unanswered)?;
            left = batch.left;
            for (bytes, descriptor) in batch.pieces {
                let fits = bytes > 0 && bytes <= whole - end;
                if !fits {
                    return Err(ImportRefused::Stale);
                }
                import.map(base + end, bytes, descriptor)?;
                import.mapped.push(bytes);
                end += bytes;
            }
        }
        if end != whole {
            return Err(ImportRefused::Stale);
        }
        let opened = import.peers.open(base, import.mapped.iter().copied());
        let failed = CUresult::CUDA_ERROR_MAP_FAILED;
        opened.map_err(|_| ImportRefused::Driver("cuMemSetAccess", failed))?;
        import.is_accessible = true;
        Ok(import)
    }

    /// Whether an address is in it.
    pub(crate) fn contains(&self, address: u64) -> bool {
        address >= self.base && address - self.base < self.reserved
    }

    /// Maps the memory of a descriptor at an address. The mapping keeps the memory.
    fn map(&self, at: u64, bytes: u64, descriptor: OwnedFd) -> Result<(), ImportRefused> {
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let mut handle = 0;
        let raw = descriptor.as_raw_fd() as usize;
        // SAFETY: a descriptor is passed by value in the pointer's place; `handle` outlives the
        // call.
        let imported = answer(unsafe {
            self.driver
                .cuMemImportFromShareableHandle(&mut handle, raw as *mut _, kind)
        });
        checked("cuMemImportFromShareableHandle", imported)?;
        // SAFETY: reserved, and unmapped so far; the handle is released once, and stays while it is
        // mapped. The driver checks the size.
        let mapped = unsafe {
            let mapped = answer(self.driver.cuMemMap(at, bytes as usize, 0, handle, 0));
            let _it_was_imported = self.driver.cuMemRelease(handle);
            mapped
        };
        checked("cuMemMap", mapped)
    }
}

/// A failure to get an answer of an owner.
fn unanswered(error: io::Error) -> ImportRefused {
    use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
    match error.kind() {
        ConnectionRefused | NotFound | PermissionDenied => ImportRefused::Stale,
        _ => ImportRefused::System(error),
    }
}

impl Drop for MappedImport {
    fn drop(&mut self) {
        let _relaxed = RelaxedCapture::enter(self.driver);
        let mut at = self.base;
        for bytes in &self.mapped {
            if self.is_accessible {
                self.peers.remove_mapping(at);
            }
            // SAFETY: mapped by `fetch`; nothing uses it: see the module.
            let unmapped = answer(unsafe { self.driver.cuMemUnmap(at, *bytes as usize) });
            debug_assert_eq!(unmapped, CUresult::CUDA_SUCCESS);
            at += bytes;
        }
        // SAFETY: reserved by `fetch`, and nothing is mapped there any more.
        let freed = answer(unsafe {
            self.driver
                .cuMemAddressFree(self.base, self.reserved as usize)
        });
        debug_assert_eq!(freed, CUresult::CUDA_SUCCESS);
    }
}
