//! Device memory for the numbers of blocks that a kernel over many blocks is given, and names.

use fercuda_cuda::{Context, DeviceBuffer};

use crate::error::Result;
use crate::layout::SWEEP_WORDS;

/// Numbers of blocks to process, and of those that the kernel names. Memory for some is allocated
/// at the start: a device that has none left must still be scanned.
#[derive(Debug)]
pub(super) struct SweepLists {
    pub(super) asked: DeviceBuffer<u32>,
    pub(super) named: DeviceBuffer<u32>,
}

impl SweepLists {
    /// As many as a filesystem scans at once, 64 KiB of device memory.
    pub(super) const SOME: usize = 8192;
    /// Blocks of one launch at most: more has nothing to gain.
    const MOST: usize = 1 << 18;

    pub(super) fn new(context: &Context, room: usize) -> Result<Self> {
        Ok(Self {
            asked: DeviceBuffer::alloc(context, room)?,
            named: DeviceBuffer::alloc(context, SWEEP_WORDS + room)?,
        })
    }

    pub(super) fn room(&self) -> usize {
        self.asked.len()
    }

    /// Grows to `count` blocks, or to one launch's. Without memory for it the lists are unchanged.
    pub(super) fn make_room(&mut self, count: usize) {
        let wanted = count.min(Self::MOST);
        if wanted > self.room()
            && let Ok(larger) = Self::new(self.asked.context(), wanted)
        {
            *self = larger;
        }
    }
}
