//! Eigenvalues of symmetric matrices and singular values, by Jacobi's rotations.
//!
//! `jacobi.cu` accesses elements of matrices at rows and columns below their extents, and of the
//! values' rows at ranks, which are numbers of other values and so below their number; matrices
//! are numbered as in `algebra`. Pairs of columns follow from the number of a round, and are
//! compared with the number of columns. No index comes from memory.
//!
//! A block has a matrix, and rotates disjoint pairs of columns at once, until all are orthogonal to
//! roundings or after 24 sweeps. It is the form for small matrices.

use fercuda_tensor::Dtype;

use crate::algebra::{BlockMemory, MatrixBatch, MatrixTriangle};
use crate::error::KernelError;
use crate::program::NativeProgram;
use crate::text::KernelText;
use crate::view::MemoryView;

type Result<T> = std::result::Result<T, KernelError>;

fn text(dtype: Dtype) -> KernelText {
    let epsilon = f64::exp2(if dtype == Dtype::F64 { -53.0 } else { -24.0 });
    KernelText::new("jacobi.cu", include_str!("../cuda/jacobi.cu"))
        .with("EPSILON", format!("{epsilon:e}"))
}

/// Adds the eigenvalues of symmetric matrices, of which one triangle is read, in ascending order,
/// and unit vectors as columns, whose element of the largest magnitude is not negative. Of a matrix
/// that is not finite, or whose squares overflow, all results are NaN.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn symmetric(
    program: &mut NativeProgram,
    triangle: MatrixTriangle,
    x: &MemoryView,
    values: &MemoryView,
    vectors: &MemoryView,
) -> Result<()> {
    let batch = MatrixBatch::of(x)?;
    let extent = batch.extent()?;
    batch.check_result(values, &[extent])?;
    batch.check_result(vectors, &[extent, extent])?;
    if x.layout.is_empty() {
        return Ok(());
    }
    let size = 2 * extent * extent + extent.next_multiple_of(2);
    let memory = BlockMemory::reserve(program, x.dtype(), batch.count(), size)?;
    let step = memory.step(text(x.dtype()), "symmetric", x.dtype());
    let step = step.rows(values).writes();
    let step = step.matrices(vectors).writes().row_stride(vectors);
    let step = memory.parameters(step.matrices(x).row_stride(x))?;
    let is_upper = triangle == MatrixTriangle::Upper;
    program.push(step.u32(extent as u32).u32(u32::from(is_upper)));
    Ok(())
}

/// Adds the singular values of matrices in descending order, as many as the smaller extent, with
/// the left vectors as columns and the right ones as rows, whose element of the largest magnitude
/// is not negative. The vector of a value of 0 is 0, on the side of the larger extent. Of a matrix
/// that is not finite, or whose squares overflow, all results are NaN.
///
/// # Errors
/// As for [`symmetric`].
pub fn singular(
    program: &mut NativeProgram,
    x: &MemoryView,
    [u, values, vh]: [&MemoryView; 3],
) -> Result<()> {
    let batch = MatrixBatch::of(x)?;
    let count = batch.rows.min(batch.columns);
    batch.check_result(u, &[batch.rows, count])?;
    batch.check_result(values, &[count])?;
    batch.check_result(vh, &[count, batch.columns])?;
    if x.layout.is_empty() {
        return Ok(());
    }
    let long = batch.rows.max(batch.columns);
    let size = long * count + count * count + count;
    let memory = BlockMemory::reserve(program, x.dtype(), batch.count(), size)?;
    let step = memory.step(text(x.dtype()), "singular", x.dtype());
    let step = step.matrices(u).writes().row_stride(u);
    let step = step.rows(values).writes();
    let step = step.matrices(vh).writes().row_stride(vh);
    let step = memory.parameters(step.matrices(x).row_stride(x))?;
    let step = step.u32(long as u32).u32(count as u32);
    program.push(step.u32(u32::from(batch.rows < batch.columns)));
    Ok(())
}
