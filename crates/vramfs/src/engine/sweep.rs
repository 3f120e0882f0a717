//! Kernels that look at many blocks, one after another, and name some of them.
//!
//! Invariant: no memory of the device is needed that a worker has not had from the start.

use fercuda_cuda::{Context, DeviceBuffer, Function, Launch};

use super::{AccessMode, THREADS, WARPS, Worker};
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::layout::{SHARED_TO_REFRESH_BYTES, SWEEP_WORDS};

/// Numbers of blocks that kernels look at many of, and of those that they name. Memory for some is had from the start: when the device has
/// none left is no time to stop looking.
#[derive(Debug)]
pub(super) struct SweepLists {
    asked: DeviceBuffer<u32>,
    named: DeviceBuffer<u32>,
}

impl SweepLists {
    /// As many as a filesystem asks about at once, 64 KiB of the device's memory.
    pub(super) const SOME: usize = 8192;
    /// As many as one launch takes: more has nothing to gain.
    const MOST: usize = 1 << 18;

    pub(super) fn new(context: &Context, room: usize) -> Result<Self> {
        Ok(Self {
            asked: DeviceBuffer::alloc(context, room)?,
            named: DeviceBuffer::alloc(context, SWEEP_WORDS + room)?,
        })
    }

    fn room(&self) -> usize {
        self.asked.len()
    }

    /// Makes room for so many, or for as many as one launch takes. Without memory there is as much as before.
    fn make_room(&mut self, count: usize) {
        let wanted = count.min(Self::MOST);
        if wanted > self.room()
            && let Ok(larger) = Self::new(self.asked.context(), wanted)
        {
            *self = larger;
        }
    }
}

impl Worker {
    /// Which of these blocks are not right, in no order: what [`Worker::verify`] looks at without an identity,
    /// and whether each says its own number. At the memory's speed, and without a lock: a block that is
    /// changed meanwhile may be among them, so who asks looks at those again.
    ///
    /// # Errors
    /// [`Error::NoBlock`]; [`Error::Uncoded`]; [`Error::OtherDevice`]; those of the driver.
    pub fn scan(&mut self, blocks: &Blocks, numbers: &[u32]) -> Result<Vec<u32>> {
        let kernel = self.kernels.scan.clone();
        self.sweep(&kernel, 0, blocks, numbers)
    }

    /// Makes parity, sums and record of what the rows of data hold now, which somebody else has changed in place: a
    /// kernel of ours, or another process. Data stay as they are, and so does whose a block is. What the
    /// record says of the rows is not looked at, so what was wrong in them is right from then on. A block whose record is not
    /// right, or says another number, is left as it is and named in the answer, in no order. At the memory's speed.
    ///
    /// # Errors
    /// As [`Worker::scan`], and [`Error::Twice`]: a record that one makes may look wrong to another.
    pub fn refresh(&mut self, blocks: &Blocks, numbers: &[u32]) -> Result<Vec<u32>> {
        if !numbers.is_sorted_by(|one, next| one < next) {
            let mut all = numbers.to_vec();
            all.sort_unstable();
            if let Some(pair) = all.windows(2).find(|pair| pair[0] == pair[1]) {
                let block = pair[0] as usize;
                return Err(Error::Twice { block });
            }
        }
        let kernel = self.kernels.refresh.clone();
        self.sweep(&kernel, SHARED_TO_REFRESH_BYTES, blocks, numbers)
    }

    /// Has a warp take one of these blocks after another, and returns those that the kernel names.
    fn sweep(
        &mut self,
        kernel: &Function,
        shared_bytes: usize,
        blocks: &Blocks,
        numbers: &[u32],
    ) -> Result<Vec<u32>> {
        let _held = blocks.hold();
        self.validate(blocks, &[], AccessMode::Reads)?;
        let Some(highest) = numbers.iter().max() else {
            return Ok(Vec::new());
        };
        blocks.address(*highest as usize)?;
        self.lists.make_room(numbers.len());
        let mut all = Vec::new();
        for part in numbers.chunks(self.lists.room()) {
            self.sweep_part(kernel, shared_bytes, blocks, part, &mut all)?;
        }
        Ok(all)
    }

    /// As [`Worker::sweep`], of no more than the lists have room for; adds to those that were named.
    fn sweep_part(
        &mut self,
        kernel: &Function,
        shared_bytes: usize,
        blocks: &Blocks,
        numbers: &[u32],
        all: &mut Vec<u32>,
    ) -> Result<()> {
        let stream = &self.copier.stream;
        let SweepLists { asked, named } = &mut *self.lists;
        asked
            .slice_mut(..numbers.len())?
            .copy_from_host(numbers, stream)?;
        named.slice_mut(..SWEEP_WORDS)?.fill_bytes(0, stream)?;
        let count = numbers.len() as u32;
        let warps = count.div_ceil(WARPS as u32);
        let launch =
            Launch::new(self.sweepers.min(warps), THREADS).shared_bytes(shared_bytes as u32);
        // SAFETY: the kernel touches blocks whose places were looked at and which stay until this has returned, and
        // names no more than it was asked about, for which there is room.
        let launched = unsafe {
            launch.run(
                kernel,
                stream,
                (blocks.address(0)?, &*asked, count, &mut *named),
            )
        };
        launched?;
        let mut found = [0];
        let read = named.slice(..1)?.copy_to_host(&mut found, stream);
        self.copier.wait()?;
        read?;
        let found = (found[0] as usize).min(numbers.len());
        if found != 0 {
            let names = named.slice(SWEEP_WORDS..SWEEP_WORDS + found)?;
            all.extend(names.to_vec(&self.copier.stream)?);
        }
        Ok(())
    }
}
