//! Quantisation by scales of groups of elements, packing of 4 bits, and delayed scales.
//!
//! `quantise.cu` goes over views of one shape, to which scales are broadcast, by their elements'
//! numbers. The range of a group is kept in the workspace as bits that have the order of values,
//! and is the same in any order of the blocks that combine them.

use fercuda_tensor::Dtype;

use crate::copy;
use crate::error::KernelError;
use crate::loops::Loops;
use crate::program::{NativeProgram, NativeStep, ShapeParameter};
use crate::rows::{flat_shape, shape as rows_shape};
use crate::text::{KernelText, c_type};
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Elements of one part of a group.
const PART: u64 = 4096;

/// Numbers that elements become.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantisedRange {
    /// The least.
    pub low: f64,
    /// The largest.
    pub high: f64,
}

/// The type of scales of elements of a type.
pub fn scale_type(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    }
}

fn text(name: &'static str, value: &'static str) -> KernelText {
    KernelText::new("quantise.cu", include_str!("../cuda/quantise.cu")).with(name, value)
}

/// Adds scales of groups of `x`: a group is the dimensions from `outer` on. With `zeros` numbers
/// are asymmetric.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn scales(
    program: &mut NativeProgram,
    x: &MemoryView,
    outer: usize,
    to: &MemoryView,
    zeros: Option<&MemoryView>,
    range: QuantisedRange,
) -> Result<()> {
    let state = scale_type(x.dtype());
    check(outer <= x.shape().len(), || {
        format!("{outer} dimensions of {:?}", x.shape())
    })?;
    let (shape, inner) = x.shape().split_at(outer);
    to.check("the scales", shape, state)?;
    if let Some(zeros) = zeros {
        zeros.check("the zeros", shape, Dtype::I32)?;
    }
    let (groups, inner): (u64, u64) = (shape.iter().product(), inner.iter().product());
    if groups == 0 {
        return Ok(());
    }
    let (bits, c_bits, sign, least) = match state {
        Dtype::F64 => (
            Dtype::U64,
            "u64",
            "0x8000000000000000ull",
            f64::MIN_POSITIVE,
        ),
        _ => (Dtype::U32, "u32", "0x80000000u", f32::MIN_POSITIVE.into()),
    };
    let ranges = program.reserve(bits, &[groups, 2])?;
    copy::fill(program, &ranges, 0);
    let text = text("RANGES", "1")
        .with_type("ELEMENT", x.dtype())
        .with("BITS", c_bits)
        .with("SIGN_BIT", sign);
    if inner > 0 {
        let parts = inner.div_ceil(PART);
        let threads = inner.next_power_of_two().clamp(32, 256) as u32;
        let step = NativeStep::new(text.clone(), "group_ranges")
            .threads(threads)
            .address(&ranges)
            .writes()
            .flat(x)
            .u64(groups)
            .u64(inner)
            .u64(parts);
        program.push(step.over_blocks(groups.saturating_mul(parts)));
    }
    let step = NativeStep::new(text, "group_scales").flat(to).writes();
    let step = match zeros {
        Some(zeros) => step.flat(zeros).writes(),
        None => step.u64(0).shape(ShapeParameter::new([].into_iter())),
    };
    let step = step.address(&ranges).f64(range.low).f64(range.high);
    program.push(step.f64(least).u64(groups).over(groups));
    Ok(())
}

/// Scales and zeros of one shape as parameters.
fn scaled(
    step: NativeStep,
    loops: &Loops,
    scales: &MemoryView,
    zeros: Option<&MemoryView>,
) -> NativeStep {
    let step = step.looped(scales, loops, 2);
    match zeros {
        Some(zeros) => step.looped(zeros, loops, 3),
        None => step.u64(0).shape(loops.shape(2)),
    }
}

fn check_zeros(zeros: Option<&MemoryView>, shape: &[u64]) -> Result<()> {
    match zeros {
        Some(zeros) => {
            check(zeros.is_index(), || format!("zeros of {}", zeros.dtype()))?;
            zeros.check("the zeros", shape, zeros.dtype())
        }
        None => Ok(()),
    }
}

/// Adds `to = x / scale + zero`, all of one shape; floats have no range and no zero.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn quantise(
    program: &mut NativeProgram,
    [x, scales, to]: [&MemoryView; 3],
    zeros: Option<&MemoryView>,
    range: QuantisedRange,
) -> Result<()> {
    to.check("the result", x.shape(), to.dtype())?;
    scales.check("the scales", x.shape(), scale_type(x.dtype()))?;
    check_zeros(zeros, x.shape())?;
    check(to.dtype().bytes() == 1 && x.dtype().is_float(), || {
        format!("{} to {}", x.dtype(), to.dtype())
    })?;
    if to.layout.is_empty() {
        return Ok(());
    }
    let loops = Loops::over(&[to, x, scales, zeros.unwrap_or(scales)]).merge();
    let text = text("TO", c_type(to.dtype()))
        .with_type("FROM", x.dtype())
        .with_type("ZERO", zeros.map_or(Dtype::I32, MemoryView::dtype))
        .with("IS_FLOAT", u8::from(to.dtype().is_float()))
        .with("DIMS", loops.dims());
    let step = NativeStep::new(text, "quantise")
        .looped(to, &loops, 0)
        .writes()
        .looped(x, &loops, 1);
    let step = scaled(step, &loops, scales, zeros)
        .f64(range.low)
        .f64(range.high);
    program.push(step.u64(loops.count()).over(loops.count()));
    Ok(())
}

/// Adds `to = (x - zero) scale`, all of one shape.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn dequantise(
    program: &mut NativeProgram,
    [x, scales, to]: [&MemoryView; 3],
    zeros: Option<&MemoryView>,
) -> Result<()> {
    to.check("the result", x.shape(), to.dtype())?;
    let state = scales.dtype();
    scales.check("the scales", x.shape(), scale_type(state))?;
    check_zeros(zeros, x.shape())?;
    if to.layout.is_empty() {
        return Ok(());
    }
    let loops = Loops::over(&[to, x, scales, zeros.unwrap_or(scales)]).merge();
    let text = text("DEQUANTISED", c_type(to.dtype()))
        .with_type("FROM", x.dtype())
        .with_type("ZERO", zeros.map_or(Dtype::I32, MemoryView::dtype))
        .with_type("SCALE", state)
        .with("DIMS", loops.dims());
    let step = NativeStep::new(text, "dequantise");
    let step = step.looped(to, &loops, 0).writes().looped(x, &loops, 1);
    let step = scaled(step, &loops, scales, zeros);
    program.push(step.u64(loops.count()).over(loops.count()));
    Ok(())
}

/// The length of the last dimension, and the others.
fn last(view: &MemoryView) -> (u64, &[u64]) {
    match view.shape() {
        [outer @ .., len] => (*len, outer),
        [] => (1, &[]),
    }
}

/// Adds bytes of two numbers of 4 bits each, along the last dimension.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn pack(program: &mut NativeProgram, x: &MemoryView, to: &MemoryView) -> Result<()> {
    let ((length, outer), (packed, to_outer)) = (last(x), last(to));
    let fits = packed == length.div_ceil(2) && outer == to_outer && !x.shape().is_empty();
    check(
        fits && to.dtype() == Dtype::U8 && !x.dtype().is_float(),
        || format!("{} packed to {}", x.layout, to.layout),
    )?;
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    let step = NativeStep::new(text("NIBBLES", c_type(x.dtype())), "pack")
        .flat(to)
        .writes()
        .flat(x)
        .u64(length)
        .u64(packed)
        .u64(count);
    program.push(step.over(count));
    Ok(())
}

/// Adds the two numbers of 4 bits of each byte, along the last dimension.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn unpack(
    program: &mut NativeProgram,
    x: &MemoryView,
    to: &MemoryView,
    is_signed: bool,
) -> Result<()> {
    let ((length, outer), (unpacked, to_outer)) = (last(x), last(to));
    let fits = length.checked_mul(2) == Some(unpacked) && outer == to_outer;
    let are_whole = !x.dtype().is_float() && !to.dtype().is_float();
    check(fits && are_whole && !x.shape().is_empty(), || {
        format!("{} unpacked to {}", x.layout, to.layout)
    })?;
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    let text = text("UNPACKED", c_type(to.dtype()))
        .with_type("PACKED", x.dtype())
        .with("IS_SIGNED", u8::from(is_signed));
    let step = NativeStep::new(text, "unpack")
        .flat(to)
        .writes()
        .flat(x)
        .u64(count);
    program.push(step.over(count));
    Ok(())
}

/// Views of delayed scales: histories along the first dimension, and one number for each.
#[derive(Clone, Copy, Debug)]
pub struct DelayedScales {
    /// Largest magnitudes of earlier steps, the latest first.
    pub history: MemoryView,
    /// The largest magnitude of this step.
    pub latest: MemoryView,
    /// Scales.
    pub scales: MemoryView,
    /// The history after.
    pub history_to: MemoryView,
    /// Scales after.
    pub scales_to: MemoryView,
}

/// Adds `factor` times the largest magnitude of the history, or of this step, as the next scale.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn delayed_scales(
    program: &mut NativeProgram,
    views: &DelayedScales,
    factor: f64,
    uses_latest: bool,
) -> Result<()> {
    let DelayedScales {
        history,
        latest,
        scales,
        history_to,
        scales_to,
    } = views;
    let dtype = history.dtype();
    check(!history.shape().is_empty() && dtype.is_float(), || {
        format!("a history of {}", history.layout)
    })?;
    let (length, shape) = (history.shape()[0], &history.shape()[1..]);
    history_to.check("the history", history.shape(), dtype)?;
    for (view, what) in [
        (latest, "the latest"),
        (scales, "the scales"),
        (scales_to, "the scales"),
    ] {
        view.check(what, shape, dtype)?;
    }
    program.allow_same(history_to, history);
    program.allow_same(scales_to, scales);
    let count = shape.iter().product();
    if count == 0 {
        return Ok(());
    }
    // A row's axis is the last dimension.
    let rows = |view: &MemoryView| -> Result<ShapeParameter> {
        let rank = view.shape().len();
        let order: Vec<usize> = (1..rank).chain([0]).collect();
        Ok(rows_shape(&view.permute(&order)?))
    };
    let step = NativeStep::new(text("HISTORY", c_type(dtype)), "next_scales")
        .address(history_to)
        .writes()
        .shape(rows(history_to)?)
        .address(scales_to)
        .writes()
        .shape(flat_shape(scales_to))
        .address(history)
        .shape(rows(history)?)
        .flat(latest)
        .flat(scales)
        .f64(factor)
        .u64(u64::from(uses_latest))
        .u64(length)
        .u64(count);
    program.push(step.over(count));
    Ok(())
}
