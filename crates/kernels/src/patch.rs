//! Pools of windows by a power and at random places, and windows as columns.
//!
//! `patch.cu` writes each element of its results once, and reads operands at places that it has
//! compared with their extents, or that it has moved inside them. All views but columns have five
//! dimensions.

use fercuda_tensor::Dtype;

use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep};
use crate::text::{KernelText, c_type};
use crate::view::{MemoryView, check};
use crate::window::{SlidingWindow, check_five};

type Result<T> = std::result::Result<T, KernelError>;

/// Largest number of elements of a window.
const MOST_PLACES: u64 = 1 << 40;

fn text(dtype: Dtype, part: &'static str) -> KernelText {
    KernelText::new("patch.cu", include_str!("../cuda/patch.cu"))
        .with("ELEMENT", c_type(dtype))
        .with(part, 1)
}

fn check_steps(window: &SlidingWindow) -> Result<u64> {
    let steps = window.stride.iter().all(|step| *step > 0) && !window.dilation.contains(&0);
    check(steps, || "a step of 0".to_owned())?;
    let all = window
        .kernel
        .iter()
        .try_fold(1u64, |all, extent| all.checked_mul(*extent));
    match all.filter(|all| *all <= MOST_PLACES) {
        Some(all) => Ok(all),
        None => Err(KernelError::TooMany {
            what: "elements of a window",
            count: all.unwrap_or(u64::MAX),
            most: MOST_PLACES,
        }),
    }
}

/// Adds the root of the sum of powers of magnitudes of each window.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn power_pool(
    program: &mut NativeProgram,
    from: &MemoryView,
    to: &MemoryView,
    window: &SlidingWindow,
    power: f64,
) -> Result<()> {
    check_five(&[from, to], to.dtype())?;
    check_steps(window)?;
    check(from.shape()[..2] == to.shape()[..2], || {
        format!("{:?} to {:?}", from.shape(), to.shape())
    })?;
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    let step = NativeStep::new(text(to.dtype(), "POWER"), "power_pool")
        .view(to)
        .writes()
        .view(from)
        .shape(window.parameter())
        .f64(power)
        .u64(count);
    program.push(step.over(count));
    Ok(())
}

/// Adds the largest elements of windows that `fractions`, of batch, channels and the dimensions of
/// space, spread over the operand; and their places, in row-major order of space.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn fractional_pool(
    program: &mut NativeProgram,
    from: &MemoryView,
    fractions: &MemoryView,
    [to, index]: [&MemoryView; 2],
    kernel: [u64; 3],
) -> Result<()> {
    check_five(&[from, to], to.dtype())?;
    let window = SlidingWindow {
        kernel,
        stride: [1; 3],
        padding: [0; 3],
        dilation: [1; 3],
    };
    check_steps(&window)?;
    let (x, y) = (from.shape(), to.shape());
    let fits = (0..3).all(|d| (1..=x[2 + d]).contains(&kernel[d]));
    check(x[..2] == y[..2] && (fits || to.layout.is_empty()), || {
        format!("windows of {kernel:?} over {x:?} to {y:?}")
    })?;
    index.check("the places", y, Dtype::I64)?;
    let space = fractions.shape().last().copied().unwrap_or_default();
    check((1..=3).contains(&space), || {
        format!("{space} dimensions of space")
    })?;
    fractions.check("the fractions", &[x[0], x[1], space], to.dtype())?;
    let is_flat = (0..3 - space as usize).all(|d| y[2 + d] == 1);
    check(is_flat, || format!("{space} fractions for {y:?}"))?;
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    let step = NativeStep::new(text(to.dtype(), "FRACTIONAL"), "fractional_pool")
        .view(to)
        .writes()
        .view(index)
        .writes()
        .view(from)
        .view(fractions)
        .shape(window.parameter())
        .u64(space)
        .u64(count);
    program.push(step.over(count));
    Ok(())
}

/// Checks columns of an operand of five dimensions, by the number of places of the window.
fn check_columns(
    columns: &MemoryView,
    whole: &MemoryView,
    window: &SlidingWindow,
    places: [u64; 3],
) -> Result<()> {
    check_five(&[whole], columns.dtype())?;
    let taps = check_steps(window)?;
    let rows = whole.shape()[1].checked_mul(taps);
    let all = places
        .iter()
        .try_fold(1u64, |all, extent| all.checked_mul(*extent));
    let wanted = [Some(whole.shape()[0]), rows, all];
    let own: Vec<Option<u64>> = columns.shape().iter().map(|it| Some(*it)).collect();
    check(own == wanted, || {
        format!("columns {:?} of {:?}", columns.shape(), whole.shape())
    })
}

/// Adds each window's elements as a column.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn to_columns(
    program: &mut NativeProgram,
    from: &MemoryView,
    to: &MemoryView,
    window: &SlidingWindow,
    places: [u64; 3],
) -> Result<()> {
    check_columns(to, from, window, places)?;
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    // A warp a line of places.
    let lines = count / places[2];
    let step = NativeStep::new(text(to.dtype(), "COLUMNS"), "to_columns")
        .view(to)
        .writes()
        .view(from)
        .shape(window.parameter())
        .u64(places[1])
        .u64(places[2])
        .u64(lines);
    program.push(step.over(lines.saturating_mul(32)));
    Ok(())
}

/// Adds the sums of the columns' elements that an element is in.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn from_columns(
    program: &mut NativeProgram,
    from: &MemoryView,
    to: &MemoryView,
    window: &SlidingWindow,
    places: [u64; 3],
) -> Result<()> {
    check_columns(from, to, window, places)?;
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    let [z, y, x] = places;
    let step = NativeStep::new(text(to.dtype(), "COLUMNS"), "from_columns")
        .view(to)
        .writes()
        .view(from)
        .shape(window.parameter())
        .u64(z)
        .u64(y)
        .u64(x)
        .u64(count);
    program.push(step.over(count));
    Ok(())
}
