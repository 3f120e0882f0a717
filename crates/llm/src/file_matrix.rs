//! Matrices of a file as they go to the device.

use std::borrow::Cow;

use fercuda_tensor::{BlockFormat, Dtype};

/// Groups of rows from which on they stay where the file has them, rather than being copied to one
/// piece with others.
const LEAST_PIECE: usize = 256 << 10;

/// How a matrix lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixFormat {
    /// Elements of a type.
    Plain(Dtype),
    /// Bytes of blocks.
    Blocks(BlockFormat),
}

/// A matrix, or one of each expert, as it goes to the device: bytes of the file, or what was
/// unpacked of several tensors.
#[derive(Clone, Debug)]
pub(crate) struct FileMatrix<'a> {
    /// Whole rows, one piece behind another.
    pub(crate) pieces: Vec<Cow<'a, [u8]>>,
    pub(crate) format: MatrixFormat,
    /// Of what lies in memory.
    pub(crate) dtype: Dtype,
    /// Number of experts; 1 for a matrix.
    pub(crate) experts: u64,
    pub(crate) outputs: u64,
    /// Elements of that type in a row.
    pub(crate) row: u64,
}

/// Every second group of so many bytes, from the first or the second on.
fn every_second<'a>(piece: &Cow<'a, [u8]>, group: usize, first: usize) -> Vec<Cow<'a, [u8]>> {
    match piece {
        Cow::Borrowed(bytes) if group >= LEAST_PIECE => {
            let groups = bytes.chunks(group).skip(first).step_by(2);
            groups.map(Cow::Borrowed).collect()
        }
        bytes => {
            let groups = bytes.chunks(group).skip(first).step_by(2);
            vec![Cow::Owned(groups.flatten().copied().collect())]
        }
    }
}

impl<'a> FileMatrix<'a> {
    /// Groups of so many rows in turns: the first of each pair, and the second. Pieces are
    /// multiples of such pairs.
    pub(crate) fn alternating(self, rows: u64) -> [FileMatrix<'a>; 2] {
        let group = ((rows * self.row * self.dtype.bytes()) as usize).max(1);
        let part = |first: usize| {
            let pieces = self.pieces.iter();
            Self {
                pieces: pieces
                    .flat_map(|it| every_second(it, group, first))
                    .collect(),
                outputs: self.outputs / 2,
                format: self.format,
                dtype: self.dtype,
                experts: self.experts,
                row: self.row,
            }
        };
        [part(0), part(1)]
    }
}
