//! Linear algebra of matrices in the last two dimensions: factorisations, systems, determinants.
//!
//! `algebra.cu` accesses elements of matrices at rows and columns that it compares with their
//! extents, of matrices whose numbers it compares with their count; `MatrixBatch` has those of a
//! view. A block works in its part of the workspace, of the size that it gets, or in shared memory
//! of that size. Rows that are exchanged are found by comparing magnitudes, and are below the
//! number of rows whatever these are. No index comes from memory.
//!
//! A block factorises a matrix, step by step, in shared memory where it fits, else in the
//! workspace: the form for many small matrices, which every device runs.

use fercuda_tensor::Dtype;

use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep, ShapeParameter};
use crate::rows;
use crate::text::{KernelText, computed_type};
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Shared memory in which a block works at most, in bytes.
const SHARED: u64 = 40 << 10;
/// Largest extent of a matrix: numbers of elements have 32 bits.
const MOST_EXTENT: u64 = 1 << 15;
/// Largest number of blocks in shared memory, and of those with a part of the workspace each.
const MOST_BLOCKS: u64 = 4096;
const MOST_PARTS: u64 = 1024;
/// Threads of a block at most, as in `algebra.cu`.
const MOST_THREADS: u64 = 256;

/// Triangle of a square matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixTriangle {
    /// The diagonal and below.
    Lower,
    /// The diagonal and above.
    Upper,
}

/// A system of equations with a triangular matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TriangularSpec {
    /// The triangle that is read.
    pub triangle: MatrixTriangle,
    /// Whether the matrix is transposed.
    pub is_transposed: bool,
    /// Whether the diagonal is 1, and not read.
    pub is_unit: bool,
}

/// Matrices of a view, numbered by its outer dimensions.
pub(crate) struct MatrixBatch<'a> {
    view: &'a MemoryView,
    outer: &'a [u64],
    pub(crate) rows: u64,
    pub(crate) columns: u64,
}

impl<'a> MatrixBatch<'a> {
    pub(crate) fn of(view: &'a MemoryView) -> Result<Self> {
        let [outer @ .., rows, columns] = view.shape() else {
            let what = format!("{:?} has no matrices", view.shape());
            return Err(KernelError::Views { what });
        };
        for count in [*rows, *columns] {
            if count > MOST_EXTENT {
                return Err(KernelError::TooMany {
                    what: "rows or columns of a matrix",
                    count,
                    most: MOST_EXTENT,
                });
            }
        }
        Ok(Self {
            view,
            outer,
            rows: *rows,
            columns: *columns,
        })
    }

    pub(crate) fn count(&self) -> u64 {
        self.outer.iter().product()
    }

    /// The common extent of a square matrix.
    pub(crate) fn extent(&self) -> Result<u64> {
        let (rows, columns) = (self.rows, self.columns);
        check(rows == columns, || {
            format!("{rows} rows of {columns} columns, not as many")
        })?;
        Ok(rows)
    }

    /// Checks that a view has results of this type, one matrix of these extents for each of these.
    pub(crate) fn check_result(&self, to: &MemoryView, matrix: &[u64]) -> Result<()> {
        let wanted = [self.outer, matrix].concat();
        to.check("a result", &wanted, self.view.dtype())
    }
}

impl NativeStep {
    /// Matrices of a view: its address, its shape with columns first, and the distance of rows.
    pub(crate) fn matrices(self, view: &MemoryView) -> Self {
        let last = view.shape().len() - 1;
        let strides = view.layout.strides();
        let columns = (view.shape()[last], strides[last]);
        let outer = rows::merged(&view.layout, 0..last - 1);
        let shape = ShapeParameter::new([columns].into_iter().chain(outer));
        self.address(view).shape(shape)
    }

    /// The distance of rows of the matrices before.
    pub(crate) fn row_stride(self, view: &MemoryView) -> Self {
        let strides = view.layout.strides();
        self.u64(strides[strides.len() - 2].cast_unsigned())
    }
}

/// Type in which elements of a type are computed.
fn real_type(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    }
}

/// Where the blocks of a launch work, and how many there are.
pub(crate) struct BlockMemory {
    work: MemoryView,
    shared_bytes: u64,
    blocks: u64,
    threads: u64,
    count: u64,
    size: u64,
}

impl BlockMemory {
    /// For `count` matrices, of `size` elements a block.
    pub(crate) fn reserve(
        program: &mut NativeProgram,
        dtype: Dtype,
        count: u64,
        size: u64,
    ) -> Result<Self> {
        check(dtype.is_float(), || format!("matrices of {dtype}"))?;
        let real = real_type(dtype);
        let bytes = size * real.bytes();
        let (shared_bytes, blocks, shape) = match bytes <= SHARED {
            true => (bytes, count.clamp(1, MOST_BLOCKS), [0, 0]),
            false => {
                let blocks = count.clamp(1, MOST_PARTS);
                (0, blocks, [blocks, size])
            }
        };
        Ok(Self {
            work: program.reserve(real, &shape)?,
            shared_bytes,
            blocks,
            threads: (size / 2).next_power_of_two().clamp(32, MOST_THREADS),
            count,
            size,
        })
    }

    pub(crate) fn step(&self, text: KernelText, name: &'static str, dtype: Dtype) -> NativeStep {
        let text = text
            .with("REAL", computed_type(dtype))
            .with_type("ELEMENT", dtype)
            .with("IN_SHARED", u8::from(self.work.layout.is_empty()));
        let mut step = NativeStep::new(text, name).threads(self.threads as u32);
        step.shared_bytes = self.shared_bytes as u32;
        step
    }

    /// The parameters that every kernel has behind its views.
    pub(crate) fn parameters(&self, step: NativeStep) -> Result<NativeStep> {
        let step = step.address(&self.work).writes();
        step.u64(self.count)
            .u64(self.size)
            .blocks([self.blocks, 1, 1])
    }
}

fn text() -> KernelText {
    KernelText::new("algebra.cu", include_str!("../cuda/algebra.cu"))
}

/// Adds the factorisation of symmetric positive definite matrices into a triangular one and its
/// transpose. That triangle is read, and the result is that one. From the column on where the
/// matrix is found not to be positive definite, the triangle is NaN.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn cholesky(
    program: &mut NativeProgram,
    triangle: MatrixTriangle,
    x: &MemoryView,
    to: &MemoryView,
) -> Result<()> {
    let batch = MatrixBatch::of(x)?;
    let extent = batch.extent()?;
    batch.check_result(to, &[extent, extent])?;
    if to.layout.is_empty() {
        return Ok(());
    }
    let memory = BlockMemory::reserve(program, x.dtype(), batch.count(), extent * extent)?;
    let step = memory.step(text(), "cholesky", x.dtype());
    let step = step.matrices(to).writes().row_stride(to);
    let step = memory.parameters(step.matrices(x).row_stride(x))?;
    let is_upper = triangle == MatrixTriangle::Upper;
    program.push(step.u32(extent as u32).u32(u32::from(is_upper)));
    Ok(())
}

/// Adds the factorisation of matrices with interchanged rows into a lower triangle with a diagonal
/// of 1, and an upper one, which share one result. `pivots` are the rows with which the first,
/// second and later rows were exchanged in turn, from 0 on.
///
/// # Errors
/// As for [`cholesky`].
pub fn factors(
    program: &mut NativeProgram,
    x: &MemoryView,
    to: &MemoryView,
    pivots: &MemoryView,
) -> Result<()> {
    let batch = MatrixBatch::of(x)?;
    let (rows, columns) = (batch.rows, batch.columns);
    batch.check_result(to, &[rows, columns])?;
    let of_pivots = [batch.outer, &[rows.min(columns)]].concat();
    pivots.check("the pivots", &of_pivots, Dtype::I64)?;
    if to.layout.is_empty() {
        return Ok(());
    }
    let memory = BlockMemory::reserve(program, x.dtype(), batch.count(), rows * columns)?;
    let step = memory.step(text(), "factors", x.dtype());
    let step = step.matrices(to).writes().row_stride(to);
    let step = step.rows(pivots).writes();
    let step = memory.parameters(step.matrices(x).row_stride(x))?;
    program.push(step.u32(rows as u32).u32(columns as u32));
    Ok(())
}

/// Adds the solution of square systems of equations; without a right side the inverse. The outer
/// dimensions of both sides are broadcast to those of the result.
///
/// # Errors
/// As for [`cholesky`].
pub fn solve(
    program: &mut NativeProgram,
    x: &MemoryView,
    right: Option<&MemoryView>,
    to: &MemoryView,
) -> Result<()> {
    let (x, right, side) = system(x, right, to)?;
    let batch = MatrixBatch::of(&x)?;
    let extent = batch.extent()?;
    let wide = side[1];
    if to.layout.is_empty() {
        return Ok(());
    }
    let size = extent * (extent + wide);
    let memory = BlockMemory::reserve(program, x.dtype(), batch.count(), size)?;
    let step = memory.step(text(), "solve", x.dtype());
    let step = step.matrices(to).writes().row_stride(to);
    let step = step.matrices(&x).row_stride(&x);
    // The identity needs no memory.
    let of_side = right.as_ref().unwrap_or(&x);
    let step = memory.parameters(step.matrices(of_side).row_stride(of_side))?;
    let step = step.u32(extent as u32).u32(wide as u32);
    program.push(step.u32(u32::from(right.is_none())));
    Ok(())
}

/// Both sides of systems, broadcast to the result's matrices, and the extents of one of these.
fn system(
    x: &MemoryView,
    right: Option<&MemoryView>,
    to: &MemoryView,
) -> Result<(MemoryView, Option<MemoryView>, [u64; 2])> {
    let result = MatrixBatch::of(to)?;
    let (extent, wide) = (result.rows, result.columns);
    let spread = |view: &MemoryView, matrix: [u64; 2]| -> Result<MemoryView> {
        let own = MatrixBatch::of(view)?;
        check([own.rows, own.columns] == matrix, || {
            format!("{:?} in a system of {matrix:?}", view.shape())
        })?;
        let (own, of) = (view.dtype(), to.dtype());
        check(own == of, || format!("{own} in a system of {of}"))?;
        Ok(view.broadcast(&[result.outer, &matrix].concat())?)
    };
    let right = right
        .map(|right| spread(right, [extent, wide]))
        .transpose()?;
    check(right.is_some() || extent == wide, || {
        format!("an inverse of {extent} rows and {wide} columns")
    })?;
    Ok((spread(x, [extent, extent])?, right, [extent, wide]))
}

/// Adds the solution of systems of equations with triangular matrices, as [`solve`].
///
/// # Errors
/// As for [`cholesky`].
pub fn solve_triangular(
    program: &mut NativeProgram,
    spec: TriangularSpec,
    x: &MemoryView,
    right: &MemoryView,
    to: &MemoryView,
) -> Result<()> {
    let (x, right, [extent, wide]) = system(x, Some(right), to)?;
    let Some(right) = right.filter(|_| !to.layout.is_empty()) else {
        return Ok(());
    };
    let count = MatrixBatch::of(&x)?.count();
    let memory = BlockMemory::reserve(program, x.dtype(), count, extent * wide)?;
    let step = memory.step(text(), "solve_triangular", x.dtype());
    let step = step.matrices(to).writes().row_stride(to);
    let step = step.matrices(&x).row_stride(&x);
    let step = memory.parameters(step.matrices(&right).row_stride(&right))?;
    let step = step.u32(extent as u32).u32(wide as u32);
    let step = step.u32(u32::from(spec.triangle == MatrixTriangle::Upper));
    let step = step.u32(u32::from(spec.is_transposed));
    program.push(step.u32(u32::from(spec.is_unit)));
    Ok(())
}

/// Adds determinants of square matrices; with `logarithms` their signs go to `to`, and there the
/// logarithms of their magnitudes.
///
/// # Errors
/// As for [`cholesky`].
pub fn determinant(
    program: &mut NativeProgram,
    x: &MemoryView,
    to: &MemoryView,
    logarithms: Option<&MemoryView>,
) -> Result<()> {
    let batch = MatrixBatch::of(x)?;
    let extent = batch.extent()?;
    for view in [Some(to), logarithms].into_iter().flatten() {
        batch.check_result(view, &[])?;
    }
    if to.layout.is_empty() {
        return Ok(());
    }
    let memory = BlockMemory::reserve(program, x.dtype(), batch.count(), extent * extent)?;
    let nothing = program.reserve(x.dtype(), &[0])?;
    let logs = logarithms.unwrap_or(&nothing);
    let step = memory.step(text(), "determinant", x.dtype());
    let step = step.flat(to).writes().flat(logs).writes();
    let step = memory.parameters(step.matrices(x).row_stride(x))?;
    let step = step.u32(extent as u32);
    program.push(step.u32(u32::from(logarithms.is_some())));
    Ok(())
}

/// Adds the factorisation of matrices into orthogonal columns and an upper triangle whose diagonal
/// has no negative numbers, as many columns and rows of these as the smaller extent.
///
/// # Errors
/// As for [`cholesky`].
pub fn orthogonal(
    program: &mut NativeProgram,
    x: &MemoryView,
    q: &MemoryView,
    r: &MemoryView,
) -> Result<()> {
    let batch = MatrixBatch::of(x)?;
    let (rows, columns) = (batch.rows, batch.columns);
    let steps = rows.min(columns);
    batch.check_result(q, &[rows, steps])?;
    batch.check_result(r, &[steps, columns])?;
    if x.layout.is_empty() {
        return Ok(());
    }
    let size = rows * columns + rows * steps + steps;
    let memory = BlockMemory::reserve(program, x.dtype(), batch.count(), size)?;
    let step = memory.step(text(), "orthogonal", x.dtype());
    let step = step.matrices(q).writes().row_stride(q);
    let step = step.matrices(r).writes().row_stride(r);
    let step = memory.parameters(step.matrices(x).row_stride(x))?;
    program.push(step.u32(rows as u32).u32(columns as u32));
    Ok(())
}
