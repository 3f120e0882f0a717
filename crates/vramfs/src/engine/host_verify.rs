//! Host-side verification of a few rows of one block.
//!
//! One copy brings the rows and the block's record, and the waiting thread compares checksums of
//! bytes in its caches: together that takes less than a kernel, the launch of which alone costs
//! twice what a copy's does. It holds for a few callers at a time: copies contend for the driver's
//! locks until they complete, where a kernel's result is polled in our own memory.
//!
//! Invariants: rows in staging were verified where they came from, host memory that is not written
//! in between. Any mismatch, or a copy that the driver refuses, is decided by the kernel, so there
//! is one authority on errors.

use fercuda_cuda::sys::types::{CUDA_MEMCPY2D, CUarray, CUmemorytype, CUresult};

use super::outcome::BlockOutcome;
use super::verifiers::HOST_VERIFY_ROWS;
use super::work::{AccessMode, BlockWork, RowLocation};
use super::worker::Worker;
use crate::blocks::Blocks;
use crate::crc::{crc32c, crc32c_append};
use crate::error::Result;
use crate::layout::{
    DATA_ROWS, MAGIC, MAGIC_OFFSET, RECORD_SUM_OFFSET, ROW_BYTES, ROWS, SUMS_OFFSET,
};

impl Worker {
    /// As [`Worker::check`], by the fastest path: up to 8 rows of one block that go to staging are
    /// verified by this thread, unless too many threads do that already.
    ///
    /// # Errors
    /// As [`Worker::check`].
    pub fn read(&mut self, blocks: &Blocks, work: &[BlockWork<'_>]) -> Result<&[BlockOutcome]> {
        if let [one] = work
            && let RowLocation::Staging(at) = one.place
            && (1..=HOST_VERIFY_ROWS).contains(&one.rows.len())
            && self.try_host_verify(blocks, one, at)?
        {
            self.outcomes[0] = BlockOutcome::CLEAN;
            return Ok(&self.outcomes[..1]);
        }
        self.check(blocks, work)
    }

    /// Copies the rows to staging at this byte if the host verifies them; returns whether it did.
    /// On `false` nothing was copied, and the rows may be right: the limit was reached, or the
    /// driver refused the copy.
    fn try_host_verify(
        &mut self,
        blocks: &Blocks,
        work: &BlockWork<'_>,
        at: usize,
    ) -> Result<bool> {
        self.settle();
        let _held = blocks.pin();
        self.validate(blocks, std::slice::from_ref(work), AccessMode::Reads)?;
        let Some(_slot) = self.kernels.host_verifiers.enter() else {
            return Ok(false);
        };
        let bytes = work.rows.len() * ROW_BYTES;
        let from = blocks.address(work.block)? + (work.rows.start * ROW_BYTES) as u64;
        // A 2D copy of two lines, the second of which ends with the block.
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: from,
            srcArray: CUarray::NULL,
            srcPitch: (ROWS - work.rows.end) * ROW_BYTES,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: self.mailbox.host_rows.as_mut_ptr().cast(),
            dstDevice: 0,
            dstArray: CUarray::NULL,
            dstPitch: bytes,
            WidthInBytes: bytes,
            Height: 2,
        };
        let driver = blocks.context().bind()?;
        // SAFETY: `address` has found the block, which stays allocated while blocks are pinned;
        // `validate` has checked that it has a code, and the rows are of its data, so both lines
        // lie within it. They go to page-locked memory that has room for both, which is not read
        // before the stream is done with it, and which is leaked if it never is.
        let answer = unsafe { driver.cuMemcpy2DAsync_v2(&copy, self.copier.stream.raw()) };
        self.copier.wait()?;
        if !matches!(answer, Ok(CUresult::CUDA_SUCCESS)) {
            return Ok(false);
        }
        let (rows, end) = self.mailbox.host_rows[..2 * bytes].split_at(bytes);
        let is_right = end
            .last_chunk()
            .is_some_and(|record| are_right(rows, record, work));
        if is_right {
            self.copier.data[at..at + bytes].copy_from_slice(rows);
        }
        Ok(is_right)
    }
}

/// Returns whether rows of a block match its record, the record its own checksum and the block's
/// identity.
fn are_right(rows: &[u8], record: &[u8; ROW_BYTES], work: &BlockWork<'_>) -> bool {
    let word = |at: usize| record[at..].first_chunk().map(|it| u32::from_le_bytes(*it));
    let before = crc32c(&record[..RECORD_SUM_OFFSET]);
    let sum = crc32c_append(before, &[0; ROW_BYTES - RECORD_SUM_OFFSET]);
    let named = [u64::from(MAGIC)];
    let named = named.iter().chain(work.identity.into_iter().flatten());
    word(RECORD_SUM_OFFSET) == Some(sum)
        && record[MAGIC_OFFSET..]
            .chunks_exact(8)
            .zip(named)
            .all(|(stored, it)| *stored == it.to_le_bytes())
        && rows
            .chunks_exact(ROW_BYTES)
            .zip(work.rows.clone())
            .all(|(row, number)| word(SUMS_OFFSET + 4 * number) == Some(crc32c(row)))
}

// No row of data comes with the record: the two lines do not overlap, as a pitch cannot be less
// than the width.
const _: () = assert!(DATA_ROWS + HOST_VERIFY_ROWS <= ROWS);

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use fercuda_cuda::{Context, Cuda, Stream};

    use super::*;
    use crate::engine::verifiers::HOST_VERIFIERS_MAX;
    use crate::engine::{Identity, Kernels};
    use crate::layout::IDENTITY_WORDS;

    #[test]
    fn rows_are_verified_on_the_host_while_few_slots_read() {
        let context = Context::primary(Cuda::from_env().unwrap().device(0).unwrap()).unwrap();
        let kernels = Kernels::load(&context).unwrap();
        let mut worker = Worker::new(&kernels, 1, Stream::new(&context).unwrap()).unwrap();
        // Memory is mapped in pieces of 2 MiB or more: block 14 spans two, and after the last
        // nothing is mapped.
        let blocks = Blocks::new(&context, 1, 2048, true).unwrap();
        blocks.grow(20).unwrap();
        blocks.grow(2048).unwrap();
        let last = blocks.len() - 1;
        let identity: Identity = std::array::from_fn(|_| fastrand::u64(..));
        let mut data = vec![0; DATA_ROWS * ROW_BYTES];
        for block in [0, 14, last] {
            data.fill_with(|| fastrand::u8(..));
            worker.data_mut().copy_from_slice(&data);
            let whole = [BlockWork {
                block,
                rows: 0..DATA_ROWS,
                place: RowLocation::Staging(0),
                identity: Some(&identity),
            }];
            assert!(worker.encode(&blocks, &whole).unwrap()[0].is_clean());
            for rows in (1..=HOST_VERIFY_ROWS)
                .flat_map(|len| (0..=DATA_ROWS - len).map(move |at| at..at + len))
            {
                let at = 16 * fastrand::usize(..=(DATA_ROWS - rows.len()) * ROW_BYTES / 16);
                let work = BlockWork {
                    block,
                    rows: rows.clone(),
                    place: RowLocation::Staging(at),
                    identity: fastrand::bool().then_some(&identity),
                };
                worker.data_mut()[at..at + rows.len() * ROW_BYTES].fill(0);
                assert!(
                    worker.try_host_verify(&blocks, &work, at).unwrap(),
                    "{block}: {rows:?}"
                );
                let expected = &data[rows.start * ROW_BYTES..rows.end * ROW_BYTES];
                let came = &worker.data()[at..at + expected.len()];
                assert!(came == expected, "{block}: {rows:?}");
            }
        }

        let few = BlockWork {
            block: last,
            rows: 120..128,
            place: RowLocation::Staging(0),
            identity: Some(&identity),
        };
        let bytes = &data[120 * ROW_BYTES..];
        let is_staged = |worker: &Worker| worker.data()[..bytes.len()] == *bytes;
        let is_by_copy = |worker: &Worker| worker.mailbox.host_rows[..bytes.len()] == *bytes;
        let clear = |worker: &mut Worker| {
            worker.data_mut().fill(0);
            worker.mailbox.host_rows.fill(0);
        };

        clear(&mut worker);
        let verifiers = kernels.host_verifiers.clone();
        let all: Vec<_> = (0..HOST_VERIFIERS_MAX)
            .map(|_| verifiers.enter().unwrap())
            .collect();
        assert!(worker.read(&blocks, std::slice::from_ref(&few)).unwrap()[0].is_clean());
        assert!(is_staged(&worker) && !is_by_copy(&worker));
        drop(all);

        // A caller that was refused, or has finished either way, is not counted.
        for block in [last, last + 1] {
            for _ in 0..=HOST_VERIFIERS_MAX {
                let work = BlockWork {
                    block,
                    ..few.clone()
                };
                clear(&mut worker);
                let is_read = worker.read(&blocks, &[work]).is_ok();
                assert_eq!(is_read, block == last);
                assert_eq!([is_staged(&worker), is_by_copy(&worker)], [is_read; 2]);
                assert_eq!(verifiers.0.load(Relaxed), 0);
            }
        }

        let mut another = identity;
        another[IDENTITY_WORDS - 1] ^= 1;
        let few = BlockWork {
            identity: Some(&another),
            ..few
        };
        clear(&mut worker);
        assert!(!worker.try_host_verify(&blocks, &few, 0).unwrap());
        assert!(!is_staged(&worker));
    }
}
