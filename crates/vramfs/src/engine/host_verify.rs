//! A few rows of one block, looked at by the processor that waits for them.
//!
//! One copy brings them and the block's record, and the processor compares sums of what lies in its caches: together less than
//! a kernel takes that looks at them, whose launch alone costs twice what a copy's does. It is so for a few callers at a time: copies
//! contend for the driver's locks until their end, where a kernel's end is looked for in our own memory.
//!
//! Invariants: what comes to the staging was looked at where it came from, host memory that nobody writes in between. Whatever is not right here, a copy
//! that the driver refuses too, is said by the kernel, so there is one who decides what is wrong.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use fercuda_cuda::sys::types::{CUDA_MEMCPY2D, CUarray, CUmemorytype, CUresult};

use super::{AccessMode, BlockOutcome, BlockWork, RowLocation, Worker};
use crate::blocks::Blocks;
use crate::crc::{crc32c, crc32c_append};
use crate::error::Result;
use crate::layout::{
    DATA_ROWS, MAGIC, MAGIC_OFFSET, RECORD_SUM_OFFSET, ROW_BYTES, ROWS, SUMS_OFFSET,
};

/// So many rows at most are brought so.
const HOST_VERIFY_ROWS: usize = 8;
/// What comes then: the rows, and as many that the record is the last of.
pub(super) const HOST_VERIFY_BYTES: usize = 2 * HOST_VERIFY_ROWS * ROW_BYTES;
/// So many callers of one device at a time. Of sixteen that read pages without a break 103 % of what plain copies give is left so, and 96 if all of
/// them did it; of four 94 and 92 or less if none or one did (docs/gpu-figures.md).
const HOST_VERIFIERS_MAX: u32 = 6;

/// Who brings rows so, of all workers of the same kernels.
#[derive(Debug, Default)]
pub(super) struct HostVerifiers(AtomicU32);

impl HostVerifiers {
    /// One more, until that is dropped, if there are not too many.
    fn enter(&self) -> Option<HostVerifySlot<'_>> {
        let caller = HostVerifySlot(&self.0);
        (self.0.fetch_add(1, Relaxed) < HOST_VERIFIERS_MAX).then_some(caller)
    }
}

/// See [`HostVerifiers::enter`].
struct HostVerifySlot<'a>(&'a AtomicU32);

impl Drop for HostVerifySlot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Worker {
    /// As [`Worker::check`], in the quickest way that there is: up to 8 rows of one block that come to the staging are looked at by this thread,
    /// if not too many do that already.
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

    /// Whether the rows are right, and have come to the staging at this byte. Nothing came, and they may be right, if too many are at it or the driver refuses
    /// the copy.
    fn try_host_verify(
        &mut self,
        blocks: &Blocks,
        work: &BlockWork<'_>,
        at: usize,
    ) -> Result<bool> {
        let _held = blocks.hold();
        self.validate(blocks, std::slice::from_ref(work), AccessMode::Reads)?;
        let Some(_caller) = self.kernels.host_verifiers.enter() else {
            return Ok(false);
        };
        let bytes = work.rows.len() * ROW_BYTES;
        let from = blocks.address(work.block)? + (work.rows.start * ROW_BYTES) as u64;
        // Two lines of so many bytes, the second of which ends with the block.
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
        // SAFETY: `address` knows the block, which is there as long as blocks are held; `validate` has seen that it is one of the code, and the rows are of its
        // data, so both lines lie within it. They go to page-locked memory that has room for both, which nobody looks at before the stream is done with it, and
        // which stays if it never is.
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

/// Whether rows of a block are what its record says, and that is right, and this block's.
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
            .all(|(said, it)| *said == it.to_le_bytes())
        && rows
            .chunks_exact(ROW_BYTES)
            .zip(work.rows.clone())
            .all(|(row, number)| word(SUMS_OFFSET + 4 * number) == Some(crc32c(row)))
}

// No row of data is among those that come with the record: the two lines do not lie over each other, as no pitch could be then.
const _: () = assert!(DATA_ROWS + HOST_VERIFY_ROWS <= ROWS);

#[cfg(test)]
mod tests {
    use fercuda_cuda::{Context, Cuda, Stream};

    use super::*;
    use crate::engine::{Identity, Kernels};
    use crate::layout::IDENTITY_WORDS;

    #[test]
    fn rows_come_without_a_kernel_as_long_as_few_ask() {
        let context = Context::primary(Cuda::from_env().unwrap().device(0).unwrap()).unwrap();
        let kernels = Kernels::load(&context).unwrap();
        let mut worker = Worker::new(&kernels, 1, Stream::new(&context).unwrap()).unwrap();
        // Memory is mapped piece by piece, of 2 MiB or more of them: block 14 lies in two, and behind the last there is nothing.
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
        let has_come = |worker: &Worker| worker.data()[..bytes.len()] == *bytes;
        let is_by_copy = |worker: &Worker| worker.mailbox.host_rows[..bytes.len()] == *bytes;
        let forget = |worker: &mut Worker| {
            worker.data_mut().fill(0);
            worker.mailbox.host_rows.fill(0);
        };

        forget(&mut worker);
        let callers = kernels.host_verifiers.clone();
        let all: Vec<_> = (0..HOST_VERIFIERS_MAX)
            .map(|_| callers.enter().unwrap())
            .collect();
        assert!(worker.read(&blocks, std::slice::from_ref(&few)).unwrap()[0].is_clean());
        assert!(has_come(&worker) && !is_by_copy(&worker));
        drop(all);

        // Nobody is counted who was refused, or has ended, whichever way.
        for block in [last, last + 1] {
            for _ in 0..=HOST_VERIFIERS_MAX {
                let work = BlockWork {
                    block,
                    ..few.clone()
                };
                forget(&mut worker);
                let is_read = worker.read(&blocks, &[work]).is_ok();
                assert_eq!(is_read, block == last);
                assert_eq!([has_come(&worker), is_by_copy(&worker)], [is_read; 2]);
                assert_eq!(callers.0.load(Relaxed), 0);
            }
        }

        let mut another = identity;
        another[IDENTITY_WORDS - 1] ^= 1;
        let few = BlockWork {
            identity: Some(&another),
            ..few
        };
        forget(&mut worker);
        assert!(!worker.try_host_verify(&blocks, &few, 0).unwrap());
        assert!(!has_come(&worker));
    }
}
