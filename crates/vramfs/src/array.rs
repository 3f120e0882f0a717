//! Striping and mirroring of blocks across several devices, as one medium (RAID 0, RAID 1).
//!
//! A stripe has block `b` on device `b % n`, at index `b / n` there, so a file's chunks rotate over
//! all devices. A mirror has each block on every device, at the same index. A block's record holds
//! its index on its device and, in a stripe, that device's index in the highest byte of the
//! generation. So the memory of each device looks like that of a single-device store, and no block
//! of one device passes for a block of another.
//!
//! An [`ArrayAccess`] has an access to each device and one staging buffer, which passes to the
//! device that does its part. A call has the devices do their parts one after the other; calls of
//! other threads run concurrently.
//!
//! Invariants: after a call that changes blocks, all devices in use of a mirror have the same
//! blocks: what only some devices did is copied to the others, and a device that cannot take it is
//! failed. So the answer of any one device to a read can be trusted. A failed device gets no
//! further request. Memory that a failed device may still be using is never reused. Elsewhere: one
//! device (`medium`); keeping blocks of a failed device from being allocated (`space`).

mod access;
mod state;

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

pub use self::access::ArrayAccess;
pub use self::state::ArrayLayout;
use self::state::{ArrayDevice, ArrayState};
use crate::error::{Error, Result};
use crate::medium::{ArrayMember, Medium};

/// Maximum number of devices: as many as that byte can number.
pub const MAX_DEVICES: usize = 256;

/// Several devices used as one [`Medium`]; see the module.
#[derive(Debug)]
pub struct Array<M>(Arc<ArrayState<M>>);

impl<M: ArrayMember> Array<M> {
    /// The first half of taking a device out of use, as another thread may observe it.
    #[cfg(test)]
    pub(crate) fn begin_to_fail_device(&self, at: usize) {
        self.0.devices[at]
            .is_out
            .swap(true, std::sync::atomic::Ordering::AcqRel);
    }

    /// Devices, with their numbers in figures, each of which has its share ([`ArrayLayout::share`])
    /// of `blocks` blocks.
    ///
    /// # Panics
    /// For fewer than two devices, or more than [`MAX_DEVICES`].
    pub fn new(devices: Vec<(u32, M)>, spread: ArrayLayout, blocks: usize) -> Self {
        let count = devices.len();
        assert!(
            (2..=MAX_DEVICES).contains(&count),
            "an array of {count} devices: it takes 2 to {MAX_DEVICES}"
        );
        let one = |(number, medium)| ArrayDevice {
            medium,
            number,
            is_out: AtomicBool::new(false),
            corrected: AtomicU64::new(0),
            remade: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        };
        Self(Arc::new(ArrayState {
            devices: devices.into_iter().map(one).collect(),
            spread,
            blocks: AtomicUsize::new(blocks),
            losses: AtomicU32::new(0),
            next_start: AtomicUsize::new(0),
            exclusion: Mutex::new(()),
        }))
    }

    fn new_access(
        &self,
        staged: impl Fn(&M) -> Result<M::Access>,
        bare: impl Fn(&M) -> Result<M::Access>,
    ) -> Result<ArrayAccess<M>> {
        let all = &self.0;
        let losses = all.losses.load(Acquire);
        let (mut accesses, mut holder) = (Vec::new(), None);
        for (at, one) in all.devices.iter().enumerate() {
            let made = match holder {
                _ if one.is_out() => Ok(None),
                None => staged(&one.medium).map(Some),
                Some(_) => bare(&one.medium).map(Some),
            };
            let access = match made {
                Ok(access) => access,
                Err(error) if one.medium.has_failed(&error) => {
                    all.fail_device(at);
                    None
                }
                Err(error) => return Err(error),
            };
            holder = holder.or(access.as_ref().map(|_| at));
            accesses.push(access);
        }
        Ok(ArrayAccess {
            holder: holder.ok_or(Error::NoDevice)?,
            next_read: all.next_start.fetch_add(1, Relaxed),
            all: self.0.clone(),
            accesses,
            losses,
            outcomes: Vec::new(),
        })
    }
}

impl<M: ArrayMember> Medium for Array<M> {
    type Access = ArrayAccess<M>;

    fn access(&self) -> Result<ArrayAccess<M>> {
        self.new_access(M::access, M::access_unstaged)
    }

    fn background(&self) -> Result<ArrayAccess<M>> {
        self.new_access(M::background, M::background_unstaged)
    }

    fn has_code(&self) -> bool {
        self.0.devices.iter().all(|one| one.medium.has_code())
    }

    fn bytes(&self) -> u64 {
        self.0.live().map(|(_, one)| one.medium.bytes()).sum()
    }

    fn grow(&self, blocks: usize) -> Result<()> {
        let all = &self.0;
        let before = all.blocks.load(Relaxed);
        for (at, one) in all.live() {
            match one.medium.grow(all.share(blocks, at)) {
                Ok(()) => {}
                Err(error) if one.medium.has_failed(&error) => all.fail_device(at),
                Err(error) => {
                    let grown = all.live().take_while(|it| it.0 < at);
                    grown.for_each(|(at, one)| one.medium.shrink(all.share(before, at)));
                    return Err(error);
                }
            }
        }
        match all.live().next() {
            Some(_) => all.blocks.store(blocks.max(before), Relaxed),
            None => return Err(Error::NoDevice),
        }
        Ok(())
    }

    fn shrink(&self, blocks: usize) {
        let all = &self.0;
        all.blocks.fetch_min(blocks, Relaxed);
        for (at, one) in all.live() {
            one.medium.shrink(all.share(blocks, at));
        }
    }

    fn can_copy_rows(&self, from: usize, to: usize) -> bool {
        match self.0.spread {
            ArrayLayout::Stripe => from % self.0.count() == to % self.0.count(),
            ArrayLayout::Mirror => true,
        }
    }

    fn failed_devices(&self) -> u32 {
        self.0.losses.load(Acquire)
    }

    fn note_lost(&self, block: usize) {
        let all = &self.0;
        for (_, one) in all.live().filter(|(at, _)| match all.spread {
            ArrayLayout::Stripe => *at == block % all.count(),
            ArrayLayout::Mirror => true,
        }) {
            one.lost.fetch_add(1, Relaxed);
        }
    }

    fn is_lost(&self, block: usize) -> bool {
        match self.0.spread {
            ArrayLayout::Stripe => self.0.devices[block % self.0.count()].is_out(),
            ArrayLayout::Mirror => false,
        }
    }

    fn figures(&self) -> String {
        let left = self.0.live().count();
        let state = match left {
            0 => "failed",
            left if left < self.0.count() => "degraded",
            _ => "whole",
        };
        let mut text = format!("array_state {state}\n");
        for one in &self.0.devices {
            let of = one.number;
            let state = match one.is_out() {
                true => "failed",
                false => "used",
            };
            let (corrected, remade) = (one.corrected.load(Relaxed), one.remade.load(Relaxed));
            let lost = one.lost.load(Relaxed);
            // Writing to a string cannot fail.
            write!(
                text,
                "device_{of}_state {state}\ndevice_{of}_corrected_blocks {corrected}\n\
                 device_{of}_remade_blocks {remade}\ndevice_{of}_lost_blocks {lost}\n"
            )
            .unwrap_or_default();
        }
        text
    }
}
