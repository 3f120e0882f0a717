//! Peer access to a device's mapped memory.
//!
//! Memory that a driver allocates becomes accessible to a peer once the program enables access,
//! whenever it was allocated. Mapped memory is accessible to the devices set for each mapping; so
//! the devices with access are recorded here, and are granted existing and future mappings.
//!
//! Invariant: every mapping is accessible to every device recorded here; the lock is held while
//! either changes.

use std::collections::BTreeMap;
use std::sync::Mutex;

use fercuda_cuda_sys::Driver;
use fercuda_cuda_sys::types::{
    CUdevice, CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUmemLocationType, CUresult,
};
use fercuda_pool::{GrowthRefused, Span};

use crate::clock::lock;
use crate::driver_call::{answer, done};

#[derive(Debug)]
pub(crate) struct Peers {
    driver: &'static Driver,
    open: Mutex<PeerAccess>,
}

#[derive(Debug)]
struct PeerAccess {
    /// The devices with access; the device itself first.
    to: Vec<CUmemAccessDesc>,
    /// Mappings: their length by start.
    mapped: BTreeMap<u64, u64>,
}

fn access(device: CUdevice, flags: CUmemAccess_flags) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: CUmemLocation {
            r#type: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device,
        },
        flags,
    }
}

impl Peers {
    /// Memory of a device, accessible to itself only.
    pub(crate) fn new(driver: &'static Driver, device: CUdevice) -> Self {
        let own = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let open = PeerAccess {
            to: vec![access(device, own)],
            mapped: BTreeMap::new(),
        };
        Self {
            driver,
            open: Mutex::new(open),
        }
    }

    /// Grants access to contiguous pieces that have just been mapped, given by their lengths.
    pub(crate) fn open(
        &self,
        address: u64,
        pieces: impl Iterator<Item = u64>,
    ) -> Result<(), GrowthRefused> {
        let mut open = lock(&self.open);
        let mut end = address;
        let mut mapped = Vec::new();
        for bytes in pieces {
            mapped.push((end, bytes));
            end += bytes;
        }
        let (to, bytes) = (&open.to, (end - address) as usize);
        // SAFETY: the range has just been mapped; the descriptions outlive the call.
        let opened = unsafe {
            self.driver
                .cuMemSetAccess(address, bytes, to.as_ptr(), to.len())
        };
        done("cuMemSetAccess", opened)?;
        open.mapped.extend(mapped);
        Ok(())
    }

    /// The pieces that overlap a range.
    pub(crate) fn pieces(&self, range: Span) -> Vec<Span> {
        let open = lock(&self.open);
        let below = open.mapped.range(..range.end()).rev();
        let spans = below.map(|(at, bytes)| Span {
            address: *at,
            bytes: *bytes,
        });
        let mut pieces: Vec<Span> = spans
            .take_while(|piece| piece.end() > range.address)
            .collect();
        pieces.reverse();
        pieces
    }

    /// Removes a piece that is about to be unmapped.
    pub(crate) fn remove_mapping(&self, address: u64) {
        lock(&self.open).mapped.remove(&address);
    }

    /// Grants one more device access to all existing and future mappings.
    pub(crate) fn grant(&self, to: CUdevice, flags: CUmemAccess_flags) -> CUresult {
        let to = access(to, flags);
        let mut open = lock(&self.open);
        let known = open
            .to
            .iter()
            .position(|it| it.location.id == to.location.id);
        // Read access is the lesser of the two.
        if known.is_some_and(|n| open.to[n].flags.0 >= to.flags.0) {
            return CUresult::CUDA_SUCCESS;
        }
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (at, bytes) in &open.mapped {
            match ranges.last_mut() {
                Some((begin, len)) if *begin + *len == *at => *len += bytes,
                _ => ranges.push((*at, *bytes)),
            }
        }
        for (at, bytes) in ranges {
            // SAFETY: mapped, and stays so while the lock is held.
            let opened = answer(unsafe { self.driver.cuMemSetAccess(at, bytes as usize, &to, 1) });
            if opened != CUresult::CUDA_SUCCESS {
                return opened;
            }
        }
        match known {
            Some(n) => open.to[n] = to,
            None => open.to.push(to),
        }
        CUresult::CUDA_SUCCESS
    }
}
