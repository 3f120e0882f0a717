//! Views as rows along their last dimension, as `rows.cuh` goes over them.
//!
//! A row's shape has the axis first, then the dimensions that number the rows, so that `row_offset`
//! of a number below their product, and a place below the axis's extent, give an element.

use fercuda_tensor::Layout;

use crate::copy;
use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep, ShapeParameter};
use crate::view::MemoryView;

type Result<T> = std::result::Result<T, KernelError>;

/// Smallest number of elements for which rows are made contiguous first.
const LEAST_STAGED: u64 = 4096;

/// Extents and strides with as few dimensions as possible, in the same order.
pub(crate) fn merged(layout: &Layout, dimensions: std::ops::Range<usize>) -> Vec<(u64, i64)> {
    let mut all: Vec<(u64, i64)> = Vec::new();
    for at in dimensions {
        let (extent, stride) = (layout.shape()[at], layout.strides()[at]);
        if extent == 1 {
            continue;
        }
        match all.last_mut() {
            Some(outer) if (extent as i64).checked_mul(stride) == Some(outer.1) => {
                *outer = (outer.0 * extent, stride);
            }
            _ => all.push((extent, stride)),
        }
    }
    all
}

/// Number of rows and their length, of a view of at least one dimension.
pub(crate) fn sizes(view: &MemoryView) -> (u64, u64) {
    match view.shape() {
        [outer @ .., len] => (outer.iter().product(), *len),
        [] => (1, 1),
    }
}

/// The shape of rows along the last dimension.
pub(crate) fn shape(view: &MemoryView) -> ShapeParameter {
    let last = view.shape().len().saturating_sub(1);
    let axis = match view.shape() {
        [] => (1, 0),
        shape => (shape[last], view.layout.strides()[last]),
    };
    let outer = merged(&view.layout, 0..last);
    ShapeParameter::new([axis].into_iter().chain(outer))
}

/// The shape of a view that `element_offset` goes over, of at least one dimension.
pub(crate) fn flat_shape(view: &MemoryView) -> ShapeParameter {
    let all = merged(&view.layout, 0..view.shape().len());
    ShapeParameter::new(all.into_iter())
}

impl NativeStep {
    /// A view whose elements are numbered in row-major order: its address and its shape.
    pub(crate) fn flat(self, view: &MemoryView) -> Self {
        self.address(view).shape(flat_shape(view))
    }

    /// A view as rows along its last dimension: its address and its shape.
    pub(crate) fn rows(self, view: &MemoryView) -> Self {
        self.address(view).shape(shape(view))
    }
}

/// Whether neighbours in a row are far from each other, while others are near.
fn is_scattered(view: &MemoryView) -> bool {
    let [outer @ .., last] = view.layout.strides() else {
        return false;
    };
    view.layout.len() >= LEAST_STAGED
        && last.unsigned_abs() > 1
        && outer.iter().any(|stride| stride.unsigned_abs() == 1)
}

/// The rows of an operand: itself, or a contiguous copy if its rows are scattered.
pub(crate) fn staged_operand(program: &mut NativeProgram, x: &MemoryView) -> Result<MemoryView> {
    if !is_scattered(x) {
        return Ok(*x);
    }
    let staged = program.reserve(x.dtype(), x.shape())?;
    copy::elements(program, x, &staged)?;
    Ok(staged)
}

/// Where the rows of an output are written: there, or in contiguous workspace.
pub(crate) fn staged_output(program: &mut NativeProgram, out: &MemoryView) -> Result<MemoryView> {
    match is_scattered(out) {
        true => program.reserve(out.dtype(), out.shape()),
        false => Ok(*out),
    }
}

/// Copies what was written elsewhere to the output.
pub(crate) fn unstage(
    program: &mut NativeProgram,
    staged: &MemoryView,
    out: &MemoryView,
) -> Result<()> {
    match staged == out {
        true => Ok(()),
        false => copy::elements(program, staged, out),
    }
}

/// A view as a matrix, or a copy of it where its rows have no one distance.
pub(crate) fn matrix(
    program: &mut NativeProgram,
    view: &MemoryView,
    shape: [u64; 2],
) -> Result<MemoryView> {
    if let Ok(matrix) = view.reshape(&shape) {
        return Ok(matrix);
    }
    let staged = program.reserve(view.dtype(), view.shape())?;
    copy::elements(program, view, &staged)?;
    Ok(staged.reshape(&shape)?)
}

impl NativeStep {
    /// A matrix: its address and the strides of rows and columns.
    pub(crate) fn strided(self, matrix: &MemoryView) -> Self {
        let strides = matrix.layout.strides().iter();
        let step = self.address(matrix);
        strides.fold(step, |step, stride| step.u64(stride.cast_unsigned()))
    }
}
