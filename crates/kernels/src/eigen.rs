//! Eigenvalues of matrices that need not be symmetric.
//!
//! `eigen.cu` accesses elements of matrices at rows and columns below their extent, of matrices
//! whose numbers it compares with their count, and works in a block's part of the workspace or in
//! shared memory of the size that it gets. No index comes from memory; steps are limited.

use fercuda_tensor::Dtype;

use crate::algebra::{BlockMemory, MatrixBatch};
use crate::error::KernelError;
use crate::program::NativeProgram;
use crate::text::KernelText;
use crate::view::{MemoryView, check};

/// Adds the eigenvalues of square matrices, as rows of their real and imaginary parts, in ascending
/// order of the first, then of the second. Of a matrix that is not finite all are NaN, and of one
/// for which 60 steps do not find a next one.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn values(
    program: &mut NativeProgram,
    x: &MemoryView,
    to: &MemoryView,
) -> Result<(), KernelError> {
    let batch = MatrixBatch::of(x)?;
    let extent = batch.extent()?;
    batch.check_result(to, &[extent, 2])?;
    let dtype = x.dtype();
    check(matches!(dtype, Dtype::F32 | Dtype::F64), || {
        format!("matrices of {dtype}, not f32 or f64")
    })?;
    if to.layout.is_empty() {
        return Ok(());
    }
    let size = extent * extent + 3 * extent;
    let memory = BlockMemory::reserve(program, dtype, batch.count(), size)?;
    let epsilon = f64::exp2(if dtype == Dtype::F64 { -53.0 } else { -24.0 });
    let text = KernelText::new("eigen.cu", include_str!("../cuda/eigen.cu"))
        .with("EPSILON", format!("((REAL){epsilon:e})"));
    let step = memory.step(text, "eigenvalues", dtype);
    let step = step.matrices(to).writes().row_stride(to);
    let step = memory.parameters(step.matrices(x).row_stride(x))?;
    program.push(step.u32(extent as u32));
    Ok(())
}
