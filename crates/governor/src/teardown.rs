//! Context teardown: the end of its streams, its blocks and its driver allocations.
//!
//! Stream-ordered memory is not affected: it belongs to its pool, and to no context. Mapped memory
//! outlives every context, so ours stays, and so do the fences behind pending blocks: a driver ends
//! a context when its work is done, so the fences of a destroyed context have been passed. Slabs
//! belong to a context, and all blocks in them end with it.
//!
//! A green context is a subset of a device's processors under the primary context. Its streams end
//! with it; its memory belongs to the primary one.
//!
//! Invariant: no thread uses a context once the driver was called to destroy it; and until its
//! teardown is recorded, no other context is made, which might get its handle.

use std::sync::atomic::Ordering::Relaxed;

use fercuda_cuda_sys::types::{CUcontext, CUdevice, CUresult};
use fercuda_pool::{PoolPlace, StreamId};

use crate::clock::{ContextId, DestroyedContexts, lock, write};
use crate::device::GovernedDevice;
use crate::driver_call::is_done;
use crate::governor::Governor;
use crate::note::BlockNote;
use crate::released_block::ReleasedBlock;
use crate::slabs::SlabOwner;

/// The result of a call that may have destroyed contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TeardownResult {
    /// The driver's result.
    pub result: CUresult,
    /// Bytes of stream-ordered blocks that ended with it, although a driver's own would not have:
    /// they were in slabs of a destroyed context.
    pub ordered_bytes: u64,
}

impl Governor {
    /// Runs a driver call that may destroy contexts, and returns the contexts destroyed. Their
    /// blocks are freed: their work is complete.
    pub fn while_destroying(
        &self,
        destroy: impl FnOnce() -> (Vec<CUcontext>, CUresult),
    ) -> TeardownResult {
        let _turn = self.lock_lifecycle();
        let before = self.taken_by_contexts();
        let primaries: Vec<CUdevice> = lock(&self.primaries).keys().copied().collect();
        let mut gone = self.take_out(destroy);
        for device in self.devices() {
            for stream in &gone.streams {
                device.end(*stream);
            }
        }
        let mut ordered_bytes = 0;
        if !gone.contexts.is_empty() {
            for device in primaries {
                if self.primary(device).is_none() {
                    gone.contexts.extend(self.orphans_of(device));
                }
            }
            ordered_bytes = self.end_memory_of(&gone.contexts);
            self.refund_contexts(&before);
        }
        TeardownResult {
            result: gone.result,
            ordered_bytes,
        }
    }

    /// Runs the driver call that destroys a green context; the closure returns whether it did. That
    /// context's memory belongs to the primary one, and lives as long.
    pub fn while_destroying_green(
        &self,
        (green, device): (CUcontext, CUdevice),
        destroy: impl FnOnce() -> (bool, CUresult),
    ) -> TeardownResult {
        let _turn = self.lock_lifecycle();
        let before = self.taken_by_contexts();
        let gone = self.take_out(|| {
            let (is_gone, result) = destroy();
            (if is_gone { vec![green] } else { Vec::new() }, result)
        });
        self.retire(&gone.streams);
        let mut destroyed = TeardownResult {
            result: gone.result,
            ordered_bytes: 0,
        };
        if gone.contexts.is_empty() {
            return destroyed;
        }
        let orphans = gone.contexts.iter().map(|context| (device, *context));
        lock(&self.orphans).extend(orphans);
        // It may have been the last holder of the primary context.
        if !self.is_primary_active(device) {
            let primary = self.primary(device).into_iter().collect();
            let primary = self.take_out(|| (primary, CUresult::CUDA_SUCCESS));
            self.retire(&primary.streams);
            let mut all = self.orphans_of(device);
            all.extend(primary.contexts);
            destroyed.ordered_bytes = self.end_memory_of(&all);
        }
        self.refund_contexts(&before);
        destroyed
    }

    /// Whether a device's primary context is active.
    pub fn is_primary_active(&self, device: CUdevice) -> bool {
        let (mut flags, mut active) = (0, 1);
        // SAFETY: both outlive the call.
        let asked = unsafe {
            self.driver
                .cuDevicePrimaryCtxGetState(device, &mut flags, &mut active)
        };
        !is_done(asked) || active != 0
    }

    /// Takes the destroyed green contexts that left memory to a device's primary one.
    fn orphans_of(&self, device: CUdevice) -> Vec<ContextId> {
        let mut orphans = lock(&self.orphans);
        let its = orphans.extract_if(.., |(of, _)| *of == device);
        its.map(|(_, context)| context).collect()
    }

    /// Runs a call that destroys contexts, and removes them and their streams.
    fn take_out(
        &self,
        destroy: impl FnOnce() -> (Vec<CUcontext>, CUresult),
    ) -> DestroyedContexts<CUresult> {
        let mut raw = Vec::new();
        let owners = self.devices().filter_map(GovernedDevice::owner);
        let owners: Vec<_> = owners.map(SlabOwner::hold).collect();
        let gone = self.clock.while_destroying(|| {
            let (gone, result) = destroy();
            raw.clone_from(&gone);
            (gone, result)
        });
        for owner in owners {
            owner.ended(&gone.contexts);
        }
        if raw.is_empty() {
            return gone;
        }
        self.anything_over.store(true, Relaxed);
        let mut contexts = write(&self.contexts);
        contexts.retain(|known, _| !raw.contains(known));
        self.note_only(&contexts);
        drop(contexts);
        lock(&self.primaries).retain(|_, known| !raw.contains(known));
        lock(&self.greens).retain(|known| !raw.contains(known));
        lock(&self.lost).retain(|known| !gone.contexts.contains(known));
        let mut streams = write(&self.streams);
        streams.retain(|_, stream| !gone.contexts.contains(&stream.context));
        drop(streams);
        self.clock.change_captures(|count| {
            let mut capturing = lock(&self.capturing);
            capturing.retain(|_, capture| !gone.contexts.contains(&capture.context));
            *count = capturing.len();
        });
        self.changed();
        gone
    }

    /// Retires the streams of a green context, which have ended with it although the driver lets
    /// their work finish.
    fn retire(&self, streams: &[StreamId]) {
        for device in self.devices() {
            for stream in streams {
                device.retire(*stream);
            }
        }
    }

    /// Ends the memory of destroyed contexts. Returns the bytes that should have outlived them, but
    /// were in their slabs.
    fn end_memory_of(&self, gone: &[ContextId]) -> u64 {
        let mut lost = 0;
        let kept = self.kept_elsewhere(gone);
        for device in self.devices() {
            let outlive = device.owner().is_none();
            let of_it = |note: &BlockNote| {
                let outlives = note.is_ordered() || kept.contains(&note.buffer);
                gone.contains(&note.context) && !(outlive && outlives)
            };
            let freed = device
                .regions()
                .map(|region| region.free_all(PoolPlace::Anywhere, of_it));
            for freed in freed.iter().flatten() {
                if let Some(record) = self.on_ended.get() {
                    record(
                        self,
                        &ReleasedBlock {
                            device,
                            block: *freed,
                            place: PoolPlace::Anywhere,
                        },
                    );
                }
                self.ledger.discharge(freed.note.charge, freed.span.bytes);
                if freed.note.is_ordered() {
                    let bytes = freed.span.bytes;
                    device
                        .watermarks
                        .change(freed.note.pool, -(bytes as i64), 0);
                    lost += bytes;
                }
            }
            device.trim();
            if let Some(owner) = device.owner().filter(|owner| owner.has_ended()) {
                for region in device.regions() {
                    region.abandon();
                }
                owner.forgotten();
            }
        }
        self.sharing_ends_with(gone);
        for piece in self.governed.remove_contexts(gone) {
            self.ended(&piece);
        }
        lost
    }
}
