//! Devices of an array, and which of them are in use.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::atomic::{Ordering::AcqRel, Ordering::Acquire};
use std::sync::{Mutex, PoisonError};

/// How blocks are placed on devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayLayout {
    /// Each block on one device, round robin (RAID 0).
    Stripe,
    /// Each block on all devices (RAID 1).
    Mirror,
}

impl ArrayLayout {
    /// How many of the first `blocks` blocks the device at index `at` of `devices` has.
    pub fn share(self, blocks: usize, devices: usize, at: usize) -> usize {
        match self {
            Self::Stripe => (blocks + devices - 1 - at) / devices,
            Self::Mirror => blocks,
        }
    }
}

/// One device of an array, with its counters.
#[derive(Debug)]
pub(super) struct ArrayDevice<M> {
    pub(super) medium: M,
    /// The device's number in figures.
    pub(super) number: u32,
    pub(super) is_out: AtomicBool,
    /// Blocks that had errors and were corrected, by the code or from another device.
    pub(super) corrected: AtomicU64,
    /// Those of them that were rebuilt from another device.
    pub(super) remade: AtomicU64,
    pub(super) lost: AtomicU64,
}

impl<M> ArrayDevice<M> {
    pub(super) fn is_out(&self) -> bool {
        self.is_out.load(Acquire)
    }
}

#[derive(Debug)]
pub(super) struct ArrayState<M> {
    pub(super) devices: Box<[ArrayDevice<M>]>,
    pub(super) spread: ArrayLayout,
    /// Blocks of the whole array.
    pub(super) blocks: AtomicUsize,
    /// Devices that have failed.
    pub(super) losses: AtomicU32,
    /// Index of the device that the next new access reads from first.
    pub(super) next_start: AtomicUsize,
    /// Serialises failing a device because its blocks differ from another's: two threads that did
    /// so to each other's device at once would leave none.
    pub(super) exclusion: Mutex<()>,
}

impl<M> ArrayState<M> {
    pub(super) fn count(&self) -> usize {
        self.devices.len()
    }

    /// Devices in use, with their indices.
    pub(super) fn live(&self) -> impl Iterator<Item = (usize, &ArrayDevice<M>)> {
        let all = self.devices.iter().enumerate();
        all.filter(|(_, one)| !one.is_out())
    }

    /// Takes a device out of use, because it has failed or its blocks differ from the others'. It
    /// gets no further request.
    pub(super) fn fail_device(&self, at: usize) {
        if !self.devices[at].is_out.swap(true, AcqRel) {
            self.losses.fetch_add(1, AcqRel);
        }
    }

    /// Takes a device out of use because its blocks differ from those of `other`. Does nothing if
    /// `other` is out of use itself, as the device may then be the last one.
    pub(super) fn fail_as_different_from(&self, at: usize, other: usize) {
        let _one = self
            .exclusion
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !self.devices[other].is_out() {
            self.fail_device(at);
        }
    }

    pub(super) fn share(&self, blocks: usize, at: usize) -> usize {
        self.spread.share(blocks, self.count(), at)
    }
}
