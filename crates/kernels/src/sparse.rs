//! Products of matrices in compressed rows.
//!
//! `sparse.cu` compares offsets with the number of elements, and columns with that of the other
//! operand, each time that it reads one, before it reads or writes what they name.

use fercuda_tensor::{Dtype, Layout};

use crate::copy;
use crate::error::KernelError;
use crate::index::with_fault;
use crate::program::{NativeProgram, NativeStep};
use crate::text::KernelText;
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// From so many elements of a row on, on average, a block goes over them.
const LEAST_ROW: u64 = 16;
/// Products of this width on have enough elements for a thread each.
const LEAST_WIDTH: u64 = 32;

/// A matrix in compressed rows.
#[derive(Clone, Copy, Debug)]
pub struct CompressedRows {
    /// The elements, row by row.
    pub values: MemoryView,
    /// Their columns.
    pub index: MemoryView,
    /// Where each row begins among them, and where the last one ends.
    pub offsets: MemoryView,
}

impl CompressedRows {
    /// Checks a matrix of so many rows.
    fn check(&self, rows: u64) -> Result<()> {
        let Self {
            values,
            index,
            offsets,
        } = self;
        let is_index = |layout: &Layout| {
            let dtype = layout.dtype();
            layout.shape().len() == 1 && !dtype.is_float() && dtype != Dtype::Bool
        };
        let fits = values.shape().len() == 1
            && values.shape() == index.shape()
            && rows.checked_add(1) == Some(offsets.layout.len());
        let are_indices = is_index(&index.layout) && is_index(&offsets.layout);
        check(fits && are_indices && values.dtype().is_float(), || {
            format!(
                "{}, {} and {} of {rows} rows",
                values.layout, index.layout, offsets.layout
            )
        })
    }

    fn elements(&self) -> u64 {
        self.values.layout.len()
    }

    fn text(&self) -> KernelText {
        KernelText::new("sparse.cu", include_str!("../cuda/sparse.cu"))
            .with_type("ELEMENT", self.values.dtype())
            .with_type("INDEX", self.index.dtype())
            .with_type("OFFSET", self.offsets.dtype())
    }

    fn added(&self, step: NativeStep) -> NativeStep {
        step.view(&self.values)
            .view(&self.index)
            .view(&self.offsets)
    }

    /// Threads of a block that goes over a row.
    fn threads(&self, rows: u64) -> u32 {
        let each = self.elements() / rows.max(1);
        each.next_power_of_two().clamp(32, 256) as u32
    }
}

/// Adds the product of a matrix by `x[columns, width]`.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn multiply(
    program: &mut NativeProgram,
    matrix: &CompressedRows,
    x: &MemoryView,
    to: &MemoryView,
) -> Result<()> {
    let (&[_, width], &[rows, own]) = (x.shape(), to.shape()) else {
        return check(false, || format!("{} to {}", x.layout, to.layout));
    };
    let dtype = matrix.values.dtype();
    check(
        width == own && x.dtype() == dtype && to.dtype() == dtype,
        || format!("{dtype} by {} to {}", x.layout, to.layout),
    )?;
    matrix.check(rows)?;
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    let by_block = matrix.elements() / rows.max(1) >= LEAST_ROW && width < LEAST_WIDTH;
    let text = matrix.text().with("BY_BLOCK", u8::from(by_block));
    let step = NativeStep::new(text, "multiply_rows").view(to).writes();
    let step = matrix
        .added(step)
        .view(x)
        .u64(matrix.elements())
        .u64(width)
        .u64(count);
    let step = match by_block {
        true => step.threads(matrix.threads(rows)).over_blocks(count),
        false => step.over(count),
    };
    program.push(with_fault(step, program));
    Ok(())
}

/// Adds the elements of the product of `x[rows, depth]` by `y[depth, columns]` where the matrix has
/// elements, times those. An element that is in no row is 0.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn sampled_product(
    program: &mut NativeProgram,
    matrix: &CompressedRows,
    [x, y, to]: [&MemoryView; 3],
) -> Result<()> {
    let (&[rows, depth], &[own, _]) = (x.shape(), y.shape()) else {
        return check(false, || format!("{} by {}", x.layout, y.layout));
    };
    let dtype = matrix.values.dtype();
    check(
        depth == own && x.dtype() == dtype && y.dtype() == dtype,
        || format!("{} by {} for {dtype}", x.layout, y.layout),
    )?;
    matrix.check(rows)?;
    to.check("the result", matrix.values.shape(), dtype)?;
    copy::fill(program, to, 0);
    if to.layout.is_empty() || rows == 0 {
        return Ok(());
    }
    let step = NativeStep::new(matrix.text().with("BY_BLOCK", 0), "sample_product")
        .threads(matrix.threads(rows))
        .view(to)
        .writes();
    let step = matrix.added(step).view(x).view(y);
    let step = step
        .u64(matrix.elements())
        .u64(depth)
        .u64(rows)
        .over_blocks(rows);
    program.push(with_fault(step, program));
    Ok(())
}
