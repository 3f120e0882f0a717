//! Convolutions, pools and interpolation.
//!
//! `window.cu` writes each element of its results once, and reads operands at places that it has
//! compared with their extents, or that it has moved inside them. All views have five dimensions:
//! batch, channels, and three of space.

use fercuda_tensor::{Dtype, LayoutError};

use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep, ShapeParameter};
use crate::text::{KernelText, c_type};
use crate::view::MemoryView;

type Result<T> = std::result::Result<T, KernelError>;

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

impl SlidingWindow {
    /// As `SlidingWindow` of window.cu, which has the layout of a shape.
    fn parameter(&self) -> ShapeParameter {
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

fn text(dtype: Dtype) -> KernelText {
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

/// Which convolution of the same window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvolutionKind {
    /// Of weight[outputs, inputs by groups, ..].
    Forward,
    /// Of weight[inputs, outputs by groups, ..]: the operand's gradient of the other one.
    Transposed,
}

/// Adds a convolution of five-dimensional views.
pub fn convolve(
    program: &mut NativeProgram,
    kind: ConvolutionKind,
    [from, weight, to]: [&MemoryView; 3],
    bias: Option<&MemoryView>,
    window: SlidingWindow,
    groups: u64,
) {
    if to.layout.is_empty() {
        return;
    }
    let name = match kind {
        ConvolutionKind::Forward => "convolve",
        ConvolutionKind::Transposed => "convolve_transposed",
    };
    let step = NativeStep::new(text(to.dtype()).with("CONVOLVE", 1), name)
        .view(to)
        .view(from)
        .view(weight);
    let step = match bias {
        Some(bias) => {
            let stride = bias.layout.strides().first().copied().unwrap_or_default();
            step.address(bias).u64(stride.cast_unsigned())
        }
        None => step.u64(0).u64(0),
    };
    let count = to.layout.len();
    let step = step.shape(window.parameter()).u64(groups).u64(count);
    program.push(step.over(count));
}

/// Adds the gradient of a convolution's weight, of the result's gradient and the operand.
pub fn convolve_weight(
    program: &mut NativeProgram,
    [gradient, from, to]: [&MemoryView; 3],
    window: SlidingWindow,
    groups: u64,
) {
    let count = to.layout.len();
    if count == 0 {
        return;
    }
    let step = NativeStep::new(text(to.dtype()).with("CONVOLVE", 1), "convolve_weight")
        .view(to)
        .view(gradient)
        .view(from)
        .shape(window.parameter())
        .u64(groups)
        .u64(count);
    program.push(step.over(count));
}

/// Adds a pool of five-dimensional views. `index` gets the places of the largest elements, in
/// row-major order of space. Without a window, the operand is parted into as many as the result
/// has places.
pub fn pool(
    program: &mut NativeProgram,
    kind: PoolKind,
    from: &MemoryView,
    to: &MemoryView,
    index: Option<&MemoryView>,
    window: Option<SlidingWindow>,
) {
    let count = to.layout.len();
    if count == 0 {
        return;
    }
    let text = text(to.dtype())
        .with("POOL", kind as u32)
        .with("IS_ADAPTIVE", u8::from(window.is_none()));
    let step = NativeStep::new(text, "pool").view(to);
    let step = match index {
        Some(index) => step.view(index),
        None => step.u64(0).shape(ShapeParameter::of(&to.layout)),
    };
    let none = SlidingWindow {
        kernel: [1; 3],
        stride: [1; 3],
        padding: [0; 3],
        dilation: [1; 3],
    };
    let step = step
        .view(from)
        .shape(window.unwrap_or(none).parameter())
        .u64(count);
    program.push(step.over(count));
}

/// Adds an interpolation of five-dimensional views to another number of places. With `corners` the
/// first and last places are those of the operand, else places are the middles of pixels.
pub fn interpolate(
    program: &mut NativeProgram,
    kind: Interpolation,
    from: &MemoryView,
    to: &MemoryView,
    corners: bool,
) {
    let count = to.layout.len();
    if count == 0 {
        return;
    }
    let text = text(to.dtype()).with("INTERPOLATE", kind as u32);
    let step = NativeStep::new(text, "interpolate")
        .view(to)
        .view(from)
        .u64(u64::from(corners))
        .u64(count);
    program.push(step.over(count));
}
