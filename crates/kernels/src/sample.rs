//! Elements at places between elements: by grids in memory, and of boxes.
//!
//! `sample.cu` writes each element of its results once. A place is compared with the operand's
//! extents, or moved inside, before an element is read, and an index with the number of batches.

use fercuda_tensor::Dtype;

use crate::copy;
use crate::error::KernelError;
use crate::index::with_fault;
use crate::program::{NativeProgram, NativeStep};
use crate::text::{KernelText, c_type};
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Largest number of samples of a part of a box along a dimension.
pub const MOST_SAMPLES: u64 = 1 << 10;

/// What a place outside of the operand is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutsidePlaces {
    /// 0.
    Zeros,
    /// The nearest place inside.
    Border,
    /// The place reflected at the ends.
    Reflection,
}

/// How a grid's places are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GridSampling {
    /// Whether a place is between four elements, else the nearest one.
    pub is_linear: bool,
    /// Whether -1 and 1 are the first and last element, else their outer edges.
    pub are_corners: bool,
    /// What is outside.
    pub outside: OutsidePlaces,
}

fn text(dtype: Dtype) -> KernelText {
    KernelText::new("sample.cu", include_str!("../cuda/sample.cu")).with("ELEMENT", c_type(dtype))
}

fn check_ranks(views: &[(&MemoryView, usize)]) -> Result<()> {
    let dtype = views.first().map_or(Dtype::F32, |(view, _)| view.dtype());
    for (view, rank) in views {
        check(
            view.shape().len() == *rank && view.dtype() == dtype && dtype.is_float(),
            || format!("{} is not of {rank} dimensions of {dtype}", view.layout),
        )?;
    }
    Ok(())
}

/// Adds the elements of `x[batch, channels, height, width]` at the places of
/// `grid[batch, rows, columns, 2]`, across and down.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn grid(
    program: &mut NativeProgram,
    sampling: GridSampling,
    [x, grid, to]: [&MemoryView; 3],
) -> Result<()> {
    check_ranks(&[(x, 4), (grid, 4), (to, 4)])?;
    let (own, places, result) = (x.shape(), grid.shape(), to.shape());
    let wanted = [own[0], own[1], places[1], places[2]];
    let fits = result == wanted && places[0] == own[0] && places[3] == 2;
    check(fits, || format!("{own:?} at {places:?} to {result:?}"))?;
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    check(!own[2..].contains(&0), || format!("no element in {own:?}"))?;
    let text = text(to.dtype())
        .with("GRID", 1)
        .with("KIND", u8::from(sampling.is_linear))
        .with("OUTSIDE", sampling.outside as u32)
        .with("ARE_CORNERS", u8::from(sampling.are_corners));
    let step = NativeStep::new(text, "sample_grid")
        .view(to)
        .writes()
        .view(x)
        .view(grid);
    program.push(step.u64(count).over(count));
    Ok(())
}

/// Adds the gradients of [`grid`] by the operand and by the grid, of the result's. Elements of the
/// first are summed in no fixed order.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn grid_backward(
    program: &mut NativeProgram,
    sampling: GridSampling,
    [gradient, x, grid]: [&MemoryView; 3],
    [to_x, to_grid]: [&MemoryView; 2],
) -> Result<()> {
    check_ranks(&[(x, 4), (grid, 4), (gradient, 4)])?;
    let (own, places, result) = (x.shape(), grid.shape(), gradient.shape());
    let wanted = [own[0], own[1], places[1], places[2]];
    let fits = result == wanted && places[0] == own[0] && places[3] == 2;
    check(fits, || format!("{own:?} at {places:?} to {result:?}"))?;
    to_x.check("the operand's gradient", own, x.dtype())?;
    to_grid.check("the grid's gradient", places, x.dtype())?;
    let is_read = !gradient.layout.is_empty();
    check(!is_read || !own[2..].contains(&0), || {
        format!("no element in {own:?}")
    })?;
    let text = text(x.dtype())
        .with("GRID", 1)
        .with("KIND", u8::from(sampling.is_linear))
        .with("OUTSIDE", sampling.outside as u32)
        .with("ARE_CORNERS", u8::from(sampling.are_corners));
    let real = match x.dtype() {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    };
    if !to_x.layout.is_empty() {
        let sums = program.reserve(real, own)?;
        copy::fill(program, &sums, 0);
        if is_read {
            let count = gradient.layout.len();
            let step = NativeStep::new(text.clone(), "spread_grid")
                .view(&sums)
                .writes()
                .view(gradient)
                .view(grid);
            program.push(step.u64(count).over(count));
        }
        let count = to_x.layout.len();
        let step = NativeStep::new(text.clone(), "store_sums")
            .view(to_x)
            .writes()
            .address(&sums);
        program.push(step.u64(count).over(count));
    }
    let count = to_grid.layout.len() / 2;
    if count > 0 && own[2..].contains(&0) {
        copy::fill(program, to_grid, 0);
    } else if count > 0 {
        let step = NativeStep::new(text, "move_grid")
            .view(to_grid)
            .writes()
            .view(gradient)
            .view(x)
            .view(grid);
        program.push(step.u64(count).over(count));
    }
    Ok(())
}

/// Adds `to[batch, rows, columns, 2]`: coordinates by `matrix[batch, 2, 3]`.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn affine(
    program: &mut NativeProgram,
    matrix: &MemoryView,
    to: &MemoryView,
    are_corners: bool,
) -> Result<()> {
    check_ranks(&[(matrix, 3), (to, 4)])?;
    let (own, result) = (matrix.shape(), to.shape());
    let fits = own[1..] == [2, 3] && own[0] == result[0] && result[3] == 2;
    check(fits, || format!("{own:?} to {result:?}"))?;
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    let text = text(to.dtype())
        .with("AFFINE", 1)
        .with("ARE_CORNERS", u8::from(are_corners));
    let step = NativeStep::new(text, "affine_grid")
        .view(to)
        .writes()
        .view(matrix);
    program.push(step.u64(count).over(count));
    Ok(())
}

/// Adds means of samples of boxes: `boxes[boxes, 4]` by left, top, right and bottom, times the
/// scale, of the batch of `x` that `index[boxes]` names. An index outside gives 0.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn boxes(
    program: &mut NativeProgram,
    [x, boxes, index, to]: [&MemoryView; 4],
    scale: f64,
    samples: u64,
) -> Result<()> {
    check_ranks(&[(x, 4), (boxes, 2), (to, 4)])?;
    let (own, result) = (x.shape(), to.shape());
    check(
        boxes.shape() == [result[0], 4] && own[1] == result[1],
        || format!("{own:?} by boxes {:?} to {result:?}", boxes.shape()),
    )?;
    check(index.shape() == [result[0]] && index.is_index(), || {
        format!("an index of {}", index.layout)
    })?;
    if samples > MOST_SAMPLES {
        let what = "samples of a part of a box";
        return Err(KernelError::TooMany {
            what,
            count: samples,
            most: MOST_SAMPLES,
        });
    }
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    if own[2..].contains(&0) {
        copy::fill(program, to, 0);
        return Ok(());
    }
    let text = text(to.dtype()).with_type("INDEX", index.dtype());
    let step = NativeStep::new(text, "align_boxes")
        .view(to)
        .writes()
        .view(x)
        .view(boxes)
        .view(index)
        .f64(scale)
        .u64(samples.max(1))
        .u64(count);
    program.push(with_fault(step.over(count), program));
    Ok(())
}
