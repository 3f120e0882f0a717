//! Reads of a file's bytes into the staging buffer.

use std::ops::Range;

use rustix::io::Errno;

use super::File;
use super::range::{chunk_ranges, intersection};
use super::steps::push_wanted;
use crate::layout::{DATA_BYTES, ROW_BYTES};
use crate::medium::{BlockAccess as _, Medium};
use crate::store::Store;

impl<M: Medium> Store<M> {
    /// Reads at most `len` bytes from `offset` on, limited by the staging buffer, and passes them
    /// to `take` in place.
    ///
    /// # Errors
    /// `IO` if the data is lost or the device fails.
    pub fn read_file<R>(
        &self,
        file: &File,
        offset: u64,
        len: usize,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Errno> {
        self.stage_file(file, offset, len, false, take)
    }

    /// As [`Store::read_file`]. With `must_verify` the rows are verified in any case: parity is
    /// going to be computed from them.
    pub(super) fn stage_file<R>(
        &self,
        file: &File,
        offset: u64,
        len: usize,
        must_verify: bool,
        take: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Errno> {
        let mut way = self.acquire_access().map_err(|error| error.to_errno())?;
        let access = way.access();
        let layout = file.lock_for_read()?;
        let table = &layout.table;
        let size = file.size();
        if offset >= size || len == 0 {
            return Ok(take(&[]));
        }
        let head = (offset % ROW_BYTES as u64) as usize;
        let room = access.data().len() - head;
        let len = (size - offset).min(len as u64).min(room as u64) as usize;
        // From here on the staging buffer maps to whole rows of the file.
        let begin = offset - head as u64;
        let mut wanted = Vec::new();
        for piece in chunk_ranges(offset..offset + len as u64) {
            let of_chunk = u64::from(piece.chunk) * DATA_BYTES as u64;
            let place = |byte: usize| (of_chunk + byte as u64 - begin) as usize;
            let rows = piece.bytes.start / ROW_BYTES * ROW_BYTES
                ..piece.bytes.end.next_multiple_of(ROW_BYTES);
            let mut zeros = |hole: Range<usize>| {
                let end = place(hole.end).min(access.data().len());
                access.data_mut()[place(hole.start)..end].fill(0);
            };
            let mut done = rows.start;
            for extent in table.of(piece.chunk) {
                let there = intersection(&rows, &extent.part().bytes());
                if there.start < there.end {
                    zeros(done..there.start);
                    done = there.end;
                    push_wanted(&mut wanted, extent, &there, place(there.start));
                }
            }
            zeros(done..rows.end);
        }
        for part in wanted.chunks(access.slots()) {
            let staged = match must_verify {
                true => self.read(access, part),
                false => self.read_by_policy(access, part),
            };
            staged.map_err(|error| error.to_errno())?;
        }
        Ok(take(&access.data()[head..head + len]))
    }
}
