//! Windows over operands: pools and interpolation.
//!
//! `window.cu` writes each element of its results once, and reads operands at places that it has
//! compared with their extents, or that it has moved inside them. All views have five dimensions:
//! batch, channels, and three of space.

use fercuda_tensor::{Dtype, LayoutError};

use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep, ShapeParameter};
use crate::text::{KernelText, c_type};
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Largest number of products for one element.
const MOST_TAPS: u64 = 1 << 40;

/// Extents and steps of a window along each of three dimensions of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Extents.
    pub kernel: [u64; 3],
    /// Steps of the window, above 0.
    pub stride: [i64; 3],
    /// Places before and after the operand.
    pub padding: [i64; 3],
    /// Steps inside the window, above 0.
    pub dilation: [u64; 3],
}

const ONE_PLACE: SlidingWindow = SlidingWindow {
    kernel: [1; 3],
    stride: [1; 3],
    padding: [0; 3],
    dilation: [1; 3],
};

impl SlidingWindow {
    /// As `SlidingWindow` of window.cu, which has the layout of a shape.
    pub(crate) fn parameter(&self) -> ShapeParameter {
        let extents = self.kernel.iter().chain(&self.dilation).copied();
        let strides = self.stride.iter().chain(&self.padding).copied();
        ShapeParameter::new(extents.zip(strides))
    }
}

/// What is computed of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolKind {
    /// The largest, or NaN.
    Most,
    /// The mean, with places outside as zeros.
    MeanOfAll,
    /// The mean of the places inside.
    MeanOfInside,
}

/// Which elements an interpolated one is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interpolation {
    /// The one before it.
    Nearest,
    /// Two along each dimension.
    Linear,
    /// Four along each dimension: Keys' cubic convolution with -0.75.
    Cubic,
}

pub(crate) fn text(dtype: Dtype) -> KernelText {
    KernelText::new("window.cu", include_str!("../cuda/window.cu"))
        .with("ELEMENT", c_type(dtype))
        .with(
            "ACC",
            if dtype == Dtype::F64 {
                "double"
            } else {
                "float"
            },
        )
}

/// A view of batch, channels and one to three dimensions of space as one of five.
///
/// # Errors
/// [`KernelError::Layout`] of another number of dimensions.
pub fn five(view: &MemoryView) -> Result<MemoryView> {
    let shape = view.shape();
    let (3..=5, [batch, channels, space @ ..]) = (shape.len(), shape) else {
        let (dimension, rank) = (2, shape.len());
        return Err(LayoutError::NoDimension { dimension, rank }.into());
    };
    let mut all = vec![*batch, *channels];
    all.extend(std::iter::repeat_n(1, 3 - space.len()));
    all.extend(space);
    Ok(view.reshape(&all)?)
}

/// Checks that views have five dimensions and one type.
pub(crate) fn check_five(views: &[&MemoryView], dtype: Dtype) -> Result<()> {
    for view in views {
        check(view.shape().len() == 5 && view.dtype() == dtype, || {
            format!("{} is not of five dimensions of {dtype}", view.layout)
        })?;
    }
    Ok(())
}

/// Checks the window of a convolution of a weight, and its bias.
pub(crate) fn check_window(
    window: &SlidingWindow,
    weight: &MemoryView,
    bias: Option<(&MemoryView, u64)>,
    groups: u64,
) -> Result<()> {
    check(weight.shape()[2..] == window.kernel, || {
        format!("a window of {:?} for {:?}", window.kernel, weight.shape())
    })?;
    let steps = window.stride.iter().all(|step| *step > 0) && !window.dilation.contains(&0);
    check(steps && groups > 0, || {
        "a step of 0, or no group".to_owned()
    })?;
    let taps = window
        .kernel
        .iter()
        .try_fold(weight.shape()[1], |taps, extent| taps.checked_mul(*extent));
    if taps.is_none_or(|taps| taps > MOST_TAPS) {
        let (what, count) = ("taps of a window", taps.unwrap_or(u64::MAX));
        return Err(KernelError::TooMany {
            what,
            count,
            most: MOST_TAPS,
        });
    }
    match bias {
        Some((bias, channels)) => bias.check("the bias", &[channels], weight.dtype()),
        None => Ok(()),
    }
}

/// Adds a pool of five-dimensional views. `index` gets the places of the largest elements, in
/// row-major order of space. Without a window, the operand is parted into as many as the result
/// has places.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn pool(
    program: &mut NativeProgram,
    kind: PoolKind,
    from: &MemoryView,
    to: &MemoryView,
    index: Option<&MemoryView>,
    window: Option<SlidingWindow>,
) -> Result<()> {
    check_five(&[from, to], to.dtype())?;
    check_places(from, to)?;
    if let Some(index) = index {
        index.check("the places", to.shape(), Dtype::I64)?;
    }
    check(index.is_some() == (kind == PoolKind::Most), || {
        "places of means".to_owned()
    })?;
    if let Some(window) = &window {
        let steps = window.stride.iter().all(|step| *step > 0) && !window.dilation.contains(&0);
        check(steps, || "a step of 0".to_owned())?;
    }
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    let text = text(to.dtype())
        .with("POOL", kind as u32)
        .with("IS_ADAPTIVE", u8::from(window.is_none()));
    let step = NativeStep::new(text, "pool").view(to).writes();
    let step = match index {
        Some(index) => step.view(index).writes(),
        None => step.u64(0).shape(ShapeParameter::of(&to.layout)),
    };
    let step = step
        .view(from)
        .shape(window.unwrap_or(ONE_PLACE).parameter())
        .u64(count);
    program.push(step.over(count));
    Ok(())
}

/// Checks that batch and channels are equal, that there is something in each dimension of space,
/// and that the product of both extents of one fits in 64 bits.
fn check_places(from: &MemoryView, to: &MemoryView) -> Result<()> {
    let (x, y) = (from.shape(), to.shape());
    let has_places = to.layout.is_empty() || !x[2..].contains(&0);
    check(x[..2] == y[..2] && has_places, || format!("{x:?} to {y:?}"))?;
    for (from, to) in x[2..].iter().zip(&y[2..]) {
        let last = to.checked_add(1).and_then(|to| from.checked_mul(to));
        if last.and_then(|last| last.checked_add(*to)).is_none() {
            let (what, most) = ("places of one dimension", u64::MAX / from);
            return Err(KernelError::TooMany {
                what,
                count: *to,
                most,
            });
        }
    }
    Ok(())
}

/// Adds an interpolation of five-dimensional views to another number of places. With `corners` the
/// first and last places are those of the operand, else places are the middles of pixels.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn interpolate(
    program: &mut NativeProgram,
    kind: Interpolation,
    from: &MemoryView,
    to: &MemoryView,
    corners: bool,
) -> Result<()> {
    check_five(&[from, to], to.dtype())?;
    check_places(from, to)?;
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    let text = text(to.dtype()).with("INTERPOLATE", kind as u32);
    let step = NativeStep::new(text, "interpolate")
        .view(to)
        .writes()
        .view(from)
        .u64(u64::from(corners))
        .u64(count);
    program.push(step.over(count));
    Ok(())
}

/// Adds the gradient of a pool's operand `to`, of the result's gradient, and of the places of the
/// largest elements: a place that is not in its window is skipped.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn pool_backward(
    program: &mut NativeProgram,
    kind: PoolKind,
    [gradient, to]: [&MemoryView; 2],
    index: Option<&MemoryView>,
    window: Option<SlidingWindow>,
) -> Result<()> {
    check_five(&[gradient, to], to.dtype())?;
    check_places(to, gradient)?;
    check(index.is_some() == (kind == PoolKind::Most), || {
        "places of means".to_owned()
    })?;
    if let Some(index) = index {
        index.check("the places", gradient.shape(), index.dtype())?;
        check(index.is_index(), || format!("places of {}", index.dtype()))?;
    }
    if let Some(window) = &window {
        let steps = window.stride.iter().all(|step| *step > 0) && !window.dilation.contains(&0);
        check(steps && !window.kernel.contains(&0), || {
            "a window of no places, or a step of 0".to_owned()
        })?;
    }
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    let text = text(to.dtype())
        .with("POOL_BACKWARD", kind as u32)
        .with_type("INDEX", index.map_or(Dtype::I64, MemoryView::dtype))
        .with("IS_ADAPTIVE", u8::from(window.is_none()));
    let step = NativeStep::new(text, "pool_backward")
        .view(to)
        .writes()
        .view(gradient);
    let step = match index {
        Some(index) => step.view(index),
        None => step.u64(0).shape(ShapeParameter::of(&gradient.layout)),
    };
    let step = step.shape(window.unwrap_or(ONE_PLACE).parameter());
    program.push(step.u64(count).over(count));
    Ok(())
}

/// Adds the gradient of an interpolation's operand `to`, of the result's gradient.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn interpolate_backward(
    program: &mut NativeProgram,
    kind: Interpolation,
    [gradient, to]: [&MemoryView; 2],
    corners: bool,
) -> Result<()> {
    check_five(&[gradient, to], to.dtype())?;
    check_places(to, gradient)?;
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    let text = text(to.dtype()).with("INTERPOLATE", kind as u32);
    let step = NativeStep::new(text, "interpolate_backward")
        .view(to)
        .writes()
        .view(gradient)
        .u64(u64::from(corners))
        .u64(count);
    program.push(step.over(count));
    Ok(())
}
