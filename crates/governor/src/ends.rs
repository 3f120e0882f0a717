//! What ends with a context: its streams, its blocks, what the driver gave it.
//!
//! Memory in a stream's order does not: it is its pool's, which is no context's.
//! What is mapped outlives every context, so ours stays, and so do marks behind
//! what waits there: a driver ends a context when its work is done, so those of
//! one that is gone have been passed. Slabs are a context's, and all in them
//! ends with it.
//!
//! A green context is a part of a device's processors under the primary
//! context. Its streams end with it; its memory is the primary one's.
//!
//! Invariant: nothing is asked of a context once the driver was asked to destroy
//! it, by any thread; and until what ended with it is noted, no other is made,
//! which may get its handle.

use std::sync::atomic::Ordering::Relaxed;

use fercuda_cuda_sys::types::{CUcontext, CUdevice, CUresult};
use fercuda_pool::{Place, StreamId};

use crate::clock::{ContextId, Gone, lock, write};
use crate::device::Device;
use crate::governor::{Governor, Note, is_done};
use crate::slabs::Owner;

/// What a call came to that may have destroyed contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destroyed {
    /// What the driver answered.
    pub result: CUresult,
    /// Bytes of blocks in streams' order that ended with it, which a driver's
    /// own would not have: they were in slabs of a context that is gone.
    pub ordered_bytes: u64,
}

impl Governor {
    /// Runs a call of the driver that may destroy contexts, which says which
    /// are gone. Their blocks are freed: their work is over.
    pub fn while_destroying(
        &self,
        destroy: impl FnOnce() -> (Vec<CUcontext>, CUresult),
    ) -> Destroyed {
        let _turn = self.turn();
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
        Destroyed {
            result: gone.result,
            ordered_bytes,
        }
    }

    /// Runs the call of the driver that destroys a green context, which says
    /// whether it did. That context's memory is the primary one's, and lives as
    /// long.
    pub fn while_destroying_green(
        &self,
        (green, device): (CUcontext, CUdevice),
        destroy: impl FnOnce() -> (bool, CUresult),
    ) -> Destroyed {
        let _turn = self.turn();
        let before = self.taken_by_contexts();
        let gone = self.take_out(|| {
            let (is_gone, result) = destroy();
            (if is_gone { vec![green] } else { Vec::new() }, result)
        });
        self.retire(&gone.streams);
        let mut destroyed = Destroyed {
            result: gone.result,
            ordered_bytes: 0,
        };
        if gone.contexts.is_empty() {
            return destroyed;
        }
        let orphans = gone.contexts.iter().map(|context| (device, *context));
        lock(&self.orphans).extend(orphans);
        // It may have been the last who held the primary one.
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

    /// Whether a device's primary context is there.
    pub fn is_primary_active(&self, device: CUdevice) -> bool {
        let (mut flags, mut active) = (0, 1);
        // SAFETY: both outlive the call.
        let asked = unsafe {
            self.driver
                .cuDevicePrimaryCtxGetState(device, &mut flags, &mut active)
        };
        !is_done(asked) || active != 0
    }

    /// Takes the green contexts that left memory to a device's primary one.
    fn orphans_of(&self, device: CUdevice) -> Vec<ContextId> {
        let mut orphans = lock(&self.orphans);
        let its = orphans.extract_if(.., |(of, _)| *of == device);
        its.map(|(_, context)| context).collect()
    }

    /// Runs a call that destroys contexts, and forgets them and their streams.
    fn take_out(&self, destroy: impl FnOnce() -> (Vec<CUcontext>, CUresult)) -> Gone<CUresult> {
        let mut raw = Vec::new();
        let owners = self.devices().filter_map(Device::owner);
        let owners: Vec<_> = owners.map(Owner::hold).collect();
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

    /// Streams are gone with a green context, whose end the driver lets their
    /// work outlive.
    fn retire(&self, streams: &[StreamId]) {
        for device in self.devices() {
            for stream in streams {
                device.retire(*stream);
            }
        }
    }

    /// Ends what belonged to contexts that are gone. How much of it should have
    /// stayed, and was in their slabs.
    fn end_memory_of(&self, gone: &[ContextId]) -> u64 {
        let mut lost = 0;
        for device in self.devices() {
            let outlive = device.owner().is_none();
            let of_it =
                |note: &Note| gone.contains(&note.context) && !(outlive && note.is_ordered());
            let freed = device
                .regions()
                .map(|region| region.free_all(Place::Anywhere, of_it));
            for freed in freed.iter().flatten() {
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
        for piece in self.governed.gone_with(gone) {
            self.ended(&piece);
        }
        lost
    }
}
