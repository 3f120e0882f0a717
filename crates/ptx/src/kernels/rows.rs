//! What kernels over the rows of a matrix share: one block a row, its threads side by side.

use super::{Launch, MAX_X, ShapeError, at_most};
use crate::build::{Element, Global, Kernel, Pred, Ptr, Reg};

/// Rows and columns of a contiguous matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Number of rows.
    pub rows: u64,
    /// Length of a row, in elements.
    pub cols: u64,
}

/// Most threads a block.
pub(super) const MAX_THREADS: u32 = 512;

/// A block a row; as many threads as have four elements each to do, in whole warps.
pub(super) fn launch(kernel: &'static str, s: &Rows) -> Result<Launch, ShapeError> {
    let rows = at_most(kernel, "rows", s.rows, MAX_X)?;
    // Less a stride of the widest block, so that a running index cannot wrap.
    let cols = at_most(kernel, "cols", s.cols, MAX_X - 4 * u64::from(MAX_THREADS))?;
    let threads = cols.div_ceil(4).next_multiple_of(32).clamp(32, MAX_THREADS);
    let grid = if cols == 0 { 0 } else { rows };
    Ok(Launch {
        grid: [grid, 1, 1],
        block: [threads, 1, 1],
        dynamic_shared_bytes: 0,
    })
}

/// One row as its block sees it.
#[derive(Clone, Copy)]
pub(super) struct Row<'k> {
    kernel: &'k Kernel,
    cols: Reg<'k, u32>,
    /// Whether it can be read four elements at a time.
    vectors: Pred<'k>,
}

impl<'k> Row<'k> {
    /// The row of this block, and each named pointer at its beginning.
    pub(super) fn new<const N: usize>(
        kernel: &'k Kernel,
        cols: Reg<'k, u32>,
        pointers: [(&str, Ptr<'k, Global, f32>); N],
    ) -> (Self, [Ptr<'k, Global, f32>; N]) {
        let start = kernel.ctaid_x().mul_wide(cols).named("row_start");
        let pointers = pointers.map(|(name, p)| p.index(start).named(format!("{name}_row")));
        let all = pointers
            .iter()
            .map(|p| p.address())
            .reduce(|a, b| a | b)
            .unwrap_or(start);
        let vectors = ((all & 15).equals(0) & (cols & 3).equals(0)).named("vectors");
        (
            Row {
                kernel,
                cols,
                vectors,
            },
            pointers,
        )
    }

    /// Also reads `p` in vectors, which is no row: gamma, beta.
    pub(super) fn with(self, p: Ptr<'k, Global, f32>) -> Self {
        let aligned = (p.address() & 15).equals(0);
        Row {
            vectors: (self.vectors & aligned).named("vectors"),
            ..self
        }
    }

    /// Runs over the row once: `four` for each four elements, or `one` for each element, whose
    /// index it is given. Both must do the same.
    pub(super) fn each(self, four: impl FnOnce(Reg<'k, u32>), one: impl FnOnce(Reg<'k, u32>)) {
        let k = self.kernel;
        let (tid, ntid) = (k.tid_x(), k.ntid_x());
        k.if_else(
            self.vectors,
            || k.for_range("quad", tid << 2, self.cols, ntid << 2, four),
            || k.for_range("col", tid, self.cols, ntid, one),
        );
    }
}

/// The elements of a chunk of one or four.
pub(super) fn load<'k, T: Element>(
    p: Ptr<'k, Global, T>,
    i: Reg<'k, u32>,
    four: bool,
) -> Vec<Reg<'k, T::Value>> {
    if four {
        p.index(i).load_vec::<4>().to_vec()
    } else {
        vec![p.index(i).load()]
    }
}

/// Writes what [`load`] read.
pub(super) fn store<'k>(p: Ptr<'k, Global, f32>, i: Reg<'k, u32>, values: &[Reg<'k, f32>]) {
    match *values {
        [a, b, c, d] => p.index(i).store_vec([a, b, c, d]),
        _ => values.iter().for_each(|&v| p.index(i).store(v)),
    }
}
