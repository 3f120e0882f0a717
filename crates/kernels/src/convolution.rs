//! Convolutions and their gradients: window by window, or as products of matrices.
//!
//! `window.cu` reads operands at places that it has compared with their extents. All views have
//! five dimensions: batch, channels, and three of space.

use fercuda_tensor::Dtype;

use crate::error::KernelError;
use crate::multiply::{self, ProductEpilogue, ProductKernel};
use crate::patch;
use crate::program::{NativeProgram, NativeStep};
use crate::view::{MemoryView, check};
use crate::window::{SlidingWindow, check_five, check_window, text};

type Result<T> = std::result::Result<T, KernelError>;

/// Which convolution of the same window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvolutionKind {
    /// Of weight[outputs, inputs by groups, ..].
    Forward,
    /// Of weight[inputs, outputs by groups, ..]: the operand's gradient of the other one.
    Transposed,
}

/// Adds a convolution of five-dimensional views.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn convolve(
    program: &mut NativeProgram,
    kind: ConvolutionKind,
    [from, weight, to]: [&MemoryView; 3],
    bias: Option<&MemoryView>,
    window: SlidingWindow,
    groups: u64,
) -> Result<()> {
    check_five(&[from, weight, to], to.dtype())?;
    let [x, w, y] = [from, weight, to].map(|view| [view.shape()[0], view.shape()[1]]);
    check_window(&window, weight, bias.map(|bias| (bias, y[1])), groups)?;
    // Inputs and outputs of the weight, and how many of one group there are.
    let (inputs, outputs) = match kind {
        ConvolutionKind::Forward => (w[1].checked_mul(groups), Some(w[0])),
        ConvolutionKind::Transposed => (Some(w[0]), w[1].checked_mul(groups)),
    };
    let fits = x[0] == y[0] && inputs == Some(x[1]) && outputs == Some(y[1]);
    check(fits && w[0].is_multiple_of(groups), || {
        format!("{x:?} by {w:?} to {y:?} in {groups} groups")
    })?;
    if to.layout.is_empty() {
        return Ok(());
    }
    if kind == ConvolutionKind::Forward
        && let Some(products) = ColumnProducts::new([from, weight, to], bias, window, groups)
    {
        return products.add(program);
    }
    let name = match kind {
        ConvolutionKind::Forward => "convolve",
        ConvolutionKind::Transposed => "convolve_transposed",
    };
    let step = NativeStep::new(text(to.dtype()).with("CONVOLVE", 1), name)
        .view(to)
        .writes()
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
    Ok(())
}

/// Number of products of elements from which a convolution is a product of matrices.
const MANY_PRODUCTS: u64 = 1 << 20;
/// Size of the columns of the images that are multiplied at once: what stays in a cache.
const COLUMN_BYTES: u64 = 64 << 20;
/// Largest size of the columns of one image.
const MOST_COLUMN_BYTES: u64 = 1 << 30;

/// A convolution as products of matrices: the windows of some images are written as columns, which
/// the weights of each group multiply. Chellapilla, Puri and Simard, "High Performance
/// Convolutional Neural Networks for Document Processing", 2006.
struct ColumnProducts {
    from: MemoryView,
    window: SlidingWindow,
    places: [u64; 3],
    /// Groups, outputs of a group, products of one element.
    weight: MemoryView,
    /// Images, groups, outputs of a group, places.
    to: MemoryView,
    /// One number for each output, of the dimensions of `to`.
    bias: Option<MemoryView>,
    images_at_once: u64,
}

impl ColumnProducts {
    /// Nothing where there are too few products to be worth it, or views that are no matrices.
    fn new(
        [from, weight, to]: [&MemoryView; 3],
        bias: Option<&MemoryView>,
        window: SlidingWindow,
        groups: u64,
    ) -> Option<Self> {
        let (dtype, outputs) = (to.dtype(), weight.shape()[0]);
        let depth = weight.shape()[1..].iter().product::<u64>();
        let places = [to.shape()[2], to.shape()[3], to.shape()[4]];
        let count = places.iter().product::<u64>();
        let products = to.layout.len().checked_mul(depth)?;
        let own = outputs / groups;
        if !dtype.is_float() || products < MANY_PRODUCTS || depth < 16 || own < 8 || count < 16 {
            return None;
        }
        let image = groups.checked_mul(depth)?.checked_mul(count)?;
        let image = image.checked_mul(dtype.bytes())?;
        if image > MOST_COLUMN_BYTES {
            return None;
        }
        let images = to.shape()[0];
        let bias = bias.map(|bias| bias.reshape(&[1, groups, own, 1]));
        Some(Self {
            from: *from,
            window,
            places,
            weight: weight.reshape(&[groups, own, depth]).ok()?,
            to: to.reshape(&[images, groups, own, count]).ok()?,
            bias: bias.transpose().ok()?,
            images_at_once: (COLUMN_BYTES / image).clamp(1, images),
        })
    }

    fn add(&self, program: &mut NativeProgram) -> Result<()> {
        let (dtype, images) = (self.to.dtype(), self.to.shape()[0]);
        let [groups, _, depth] = *self.weight.shape() else {
            return Ok(());
        };
        let count = self.places.iter().product::<u64>();
        let shape = [self.images_at_once, groups * depth, count];
        let all = program.reserve(dtype, &shape)?;
        let kernel = match dtype {
            Dtype::F16 | Dtype::Bf16 => ProductKernel::Tensor,
            _ => ProductKernel::Threads,
        };
        let mut first = 0;
        while first < images {
            let until = images.min(first + self.images_at_once);
            let columns = all.slice(0, 0..until - first, 1)?;
            let from = self.from.slice(0, first..until, 1)?;
            patch::to_columns(program, &from, &columns, &self.window, self.places)?;
            let columns = columns.reshape(&[until - first, groups, depth, count])?;
            let to = self.to.slice(0, first..until, 1)?;
            let epilogue = ProductEpilogue {
                residual: self.bias.as_ref(),
                ..ProductEpilogue::default()
            };
            multiply::matrices(program, kernel, [&self.weight, &columns, &to], epilogue)?;
            first = until;
        }
        Ok(())
    }
}

/// Adds the gradient of a convolution's weight, of the result's gradient and the operand.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together; [`KernelError::TooMany`].
pub fn convolve_weight(
    program: &mut NativeProgram,
    [gradient, from, to]: [&MemoryView; 3],
    window: SlidingWindow,
    groups: u64,
) -> Result<()> {
    check_five(&[gradient, from, to], to.dtype())?;
    check_window(&window, to, None, groups)?;
    let [g, x, w] = [gradient, from, to].map(|view| [view.shape()[0], view.shape()[1]]);
    let fits = g == [x[0], w[0]] && w[1].checked_mul(groups) == Some(x[1]);
    check(fits && w[0].is_multiple_of(groups), || {
        format!("{g:?} and {x:?} to {w:?} in {groups} groups")
    })?;
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    let step = NativeStep::new(text(to.dtype()).with("CONVOLVE", 1), "convolve_weight")
        .view(to)
        .writes()
        .view(gradient)
        .view(from)
        .shape(window.parameter())
        .u64(groups)
        .u64(count);
    program.push(step.over(count));
    Ok(())
}
