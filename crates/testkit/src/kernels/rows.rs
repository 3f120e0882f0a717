//! Common code of kernels over the rows of a matrix.
//!
//! A long row has a block to itself. Short rows have a warp each, eight to a block: the block
//! is then 32 by 8 threads, and nothing waits for another row.
//!
//! Invariant: the threads of a row are those of one `tid.y`, and a warp belongs to one row.

use super::{LaunchGeometry, MAX_X, ShapeError, at_most};
use fercuda_ptx::build::{Global, KernelBuilder, MemoryElement, Pred, Ptr, Reg, Shared};

/// RowExtents and columns of a contiguous matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowExtents {
    /// Number of rows.
    pub rows: u64,
    /// Length of a row, in elements.
    pub cols: u64,
}

/// Most threads a block.
pub(super) const MAX_THREADS: u32 = 512;
/// Longest row that a warp does alone: four vectors a lane.
const SHORT: u32 = 512;
/// Short rows of a block.
const SHORT_ROWS: u32 = 8;

/// As many threads a row as have four elements each to do, in whole warps.
pub(super) fn launch(kernel: &'static str, s: &RowExtents) -> Result<LaunchGeometry, ShapeError> {
    let rows = at_most(kernel, "rows", s.rows, MAX_X)?;
    // Less a stride of the widest block, so that a running index cannot wrap.
    let cols = at_most(kernel, "cols", s.cols, MAX_X - 4 * u64::from(MAX_THREADS))?;
    let (blocks, block) = if cols <= SHORT {
        (rows.div_ceil(SHORT_ROWS), [32, SHORT_ROWS, 1])
    } else {
        (
            rows,
            [cols.div_ceil(4).next_multiple_of(32).min(MAX_THREADS), 1, 1],
        )
    };
    let grid = if cols == 0 { 0 } else { blocks };
    Ok(LaunchGeometry {
        grid: [grid, 1, 1],
        block,
        dynamic_shared_bytes: 0,
    })
}

/// One row as its threads see it.
#[derive(Clone, Copy)]
pub(super) struct MatrixRow<'k> {
    kernel: &'k KernelBuilder,
    cols: Reg<'k, u32>,
    /// Whether it can be read four elements at a time.
    vectors: Pred<'k>,
    /// Whether it has one warp only.
    short: Pred<'k>,
    scratch: Ptr<'k, Shared, f32>,
}

impl<'k> MatrixRow<'k> {
    /// The row of this thread, and each named pointer at its beginning. Threads that have none
    /// return.
    pub(super) fn new<const N: usize>(
        kernel: &'k KernelBuilder,
        [rows, cols]: [Reg<'k, u32>; 2],
        pointers: [(&str, Ptr<'k, Global, f32>); N],
    ) -> (Self, [Ptr<'k, Global, f32>; N]) {
        let scratch = kernel.shared::<f32>("scratch", 32);
        let row = kernel
            .ctaid_x()
            .mul_add(kernel.ntid_y(), kernel.tid_y())
            .named("row");
        kernel.ret_if(row.ge(rows));
        let start = row.mul_wide(cols).named("row_start");
        let pointers = pointers.map(|(name, p)| p.index(start).named(format!("{name}_row")));
        let all = pointers
            .iter()
            .map(|p| p.address())
            .reduce(|a, b| a | b)
            .unwrap_or(start);
        let vectors = ((all & 15).equals(0) & (cols & 3).equals(0)).named("vectors");
        let short = kernel.ntid_x().equals(32).named("short");
        (
            MatrixRow {
                kernel,
                cols,
                vectors,
                short,
                scratch,
            },
            pointers,
        )
    }

    /// Also reads `p` in vectors, which is no row: gamma, beta.
    pub(super) fn with(self, p: Ptr<'k, Global, f32>) -> Self {
        let aligned = (p.address() & 15).equals(0);
        MatrixRow {
            vectors: (self.vectors & aligned).named("vectors"),
            ..self
        }
    }

    /// Runs over the row once: `four` for each four elements, or `one` for each element, with
    /// its index. Both must do the same.
    pub(super) fn each(self, four: impl FnOnce(Reg<'k, u32>), one: impl FnOnce(Reg<'k, u32>)) {
        let k = self.kernel;
        let (tid, ntid) = (k.tid_x(), k.ntid_x());
        k.if_else(
            self.vectors,
            || k.for_range("quad", tid << 2, self.cols, ntid << 2, four),
            || k.for_range("col", tid, self.cols, ntid, one),
        );
    }

    /// Combines a value of each thread of the row; every thread gets the result.
    pub(super) fn reduce(
        self,
        name: &str,
        value: Reg<'k, f32>,
        identity: f32,
        combine: impl Fn(Reg<'k, f32>, Reg<'k, f32>) -> Reg<'k, f32>,
    ) -> Reg<'k, f32> {
        let k = self.kernel;
        let result = k.var(name, k.warp_reduce(value, &combine));
        let warps = (!self.short).named("several_warps");
        k.if_(warps, || {
            result.set(k.block_combine(self.scratch, *result, identity, &combine))
        });
        *result
    }
}

/// The elements of a chunk of one or four.
pub(super) fn load<'k, T: MemoryElement>(
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
