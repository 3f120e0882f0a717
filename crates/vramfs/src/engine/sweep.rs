//! Kernels over many blocks: `scan`, which verifies, and `refresh`, which encodes in place.
//!
//! Invariant: no device memory is needed that a worker has not allocated at the start.

use fercuda_cuda::{Function, Launch};

use super::kernels::{THREADS, WARPS};
use super::lists::SweepLists;
use super::work::AccessMode;
use super::worker::Worker;
use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::layout::{SHARED_TO_REFRESH_BYTES, SWEEP_WORDS};

impl Worker {
    /// Returns which of these blocks have errors, in no order: verified as by [`Worker::verify`]
    /// without an identity, and that each record has its own block's number. Runs at memory
    /// bandwidth, and without a lock: a block that is changed meanwhile may be among them, so the
    /// caller verifies those again.
    ///
    /// # Errors
    /// [`Error::NoBlock`]; [`Error::Uncoded`]; [`Error::OtherDevice`]; those of the driver.
    pub fn scan(&mut self, blocks: &Blocks, numbers: &[u32]) -> Result<Vec<u32>> {
        let kernel = self.kernels.scan.clone();
        self.sweep(&kernel, 0, blocks, numbers)
    }

    /// Recomputes parity, checksums and record from the current rows of data, which a kernel or
    /// another process has changed in place. Data and identity are unchanged. Rows are not compared
    /// with the old checksums, so errors in them are accepted. A block with a wrong record, or with
    /// another block's number, is left unchanged and returned, in no order. Runs at memory
    /// bandwidth.
    ///
    /// # Errors
    /// As [`Worker::scan`], and [`Error::Twice`]: a record that one warp writes may look wrong to
    /// another.
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

    /// Has each warp process one of these blocks after another, and returns those that the kernel
    /// names.
    fn sweep(
        &mut self,
        kernel: &Function,
        shared_bytes: usize,
        blocks: &Blocks,
        numbers: &[u32],
    ) -> Result<Vec<u32>> {
        self.settle();
        let _held = blocks.pin();
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

    /// As [`Worker::sweep`], of no more blocks than the lists hold; appends the named ones.
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
        // SAFETY: the kernel touches blocks that were validated and stay allocated until this has
        // returned, and names no more than `count`, for which there is room.
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
