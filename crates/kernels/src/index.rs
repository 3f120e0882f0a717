//! Elements chosen by indices in memory: gather, scatter, one-hot.
//!
//! `index.cu` goes over a loop whose strides are those of views of one shape; along one dimension
//! the chosen view's stride is 0 there, and the kernel adds its index times that stride after it
//! has compared the index with the extent. So no index reaches outside of the view.

use fercuda_tensor::Dtype;

use crate::copy;
use crate::error::KernelError;
use crate::loops::Loops;
use crate::program::{NativeProgram, NativeStep};
use crate::text::{KernelText, c_type, unit_type};
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// How a scattered value and the element that is there become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScatterCombine {
    /// One of the values.
    Store,
    /// Their sum.
    Add,
    /// Their product.
    Multiply,
    /// The smallest, or NaN.
    Least,
    /// The largest, or NaN.
    Most,
}

fn text(loops: &Loops, index: Dtype) -> KernelText {
    KernelText::new("index.cu", include_str!("../cuda/index.cu"))
        .with_type("INDEX", index)
        .with("DIMS", loops.dims())
        .with("COUNTED", loops.index())
}

/// Has the program record the first index outside of its axis, in the workspace's first 16 bytes:
/// 0 for none, else its place in the kernel's loop plus one; and the index.
///
/// # Errors
/// [`KernelError::Views`] if the workspace is used already.
pub fn record_faults(program: &mut NativeProgram) -> Result<()> {
    check(program.workspace_bytes() == 0, || {
        "the workspace is used already".to_owned()
    })?;
    let fault = program.reserve(Dtype::U64, &[2])?;
    copy::fill(program, &fault, 0);
    program.fault = Some(fault);
    Ok(())
}

/// The word that the first index outside is recorded in, if a program is checked.
pub(crate) fn with_fault(step: NativeStep, program: &NativeProgram) -> NativeStep {
    match &program.fault {
        Some(fault) => step.address(fault).writes(),
        None => step.u64(0),
    }
}

/// Adds `to[i] = from[i with index[i] at the axis]`. `to` and `index` have one shape, which is
/// that of `from` but along the axis, or less. An index outside gives 0.
///
/// # Errors
/// [`KernelError::Layout`] of shapes that do not go together.
pub fn gather(
    program: &mut NativeProgram,
    from: &MemoryView,
    index: &MemoryView,
    axis: usize,
    to: &MemoryView,
) -> Result<()> {
    check_loop(index, to, from, axis)?;
    check(from.dtype().bytes() == to.dtype().bytes(), || {
        format!("{} to {}", from.dtype(), to.dtype())
    })?;
    if to.layout.is_empty() {
        return Ok(());
    }
    let extent = from.shape()[axis];
    // The kernel sees the operand as one that has the result's extents.
    let shaped = beginning(from, to.shape(), axis)?;
    let mut loops = Loops::over(&[to, &shaped, index]);
    let along = loops.fix(1, axis);
    let mut loops = loops.merge();
    let moved = [to, from];
    let width = match program.is_aligned {
        true => loops.width(&moved, &[along]),
        false => 1,
    };
    loops.widen(moved.len(), width);
    let text = text(&loops, index.dtype()).with("UNIT", unit_type(to.dtype().bytes() * width));
    let step = NativeStep::new(text, "gather_elements")
        .looped(to, &loops, 0)
        .writes()
        .looped(from, &loops, 1)
        .looped(index, &loops, 2)
        .u64((along / width as i64).cast_unsigned())
        .u64(extent)
        .u64(loops.count())
        .over(loops.count());
    program.push(with_fault(step, program));
    Ok(())
}

/// Adds `to[i with index[i] at the axis] = combine(that, from[i])`. `from` and `index` have one
/// shape, which is that of `to` but along the axis, or less. An index outside is skipped. Sums and
/// products of floats are combined in no fixed order.
///
/// # Errors
/// [`KernelError::Layout`] of shapes that do not go together.
pub fn scatter(
    program: &mut NativeProgram,
    from: &MemoryView,
    index: &MemoryView,
    axis: usize,
    to: &MemoryView,
    combine: ScatterCombine,
) -> Result<()> {
    check_loop(index, from, to, axis)?;
    check(from.dtype() == to.dtype(), || {
        format!("{} to {}", from.dtype(), to.dtype())
    })?;
    if from.layout.is_empty() {
        return Ok(());
    }
    let dtype = to.dtype();
    let element = combined_type(dtype);
    if combine == ScatterCombine::Store {
        return scatter_into(program, from, index, axis, to, combine);
    }
    if element == dtype {
        return scatter_into(program, from, index, axis, to, combine);
    }
    // Narrow types are combined in wider ones, and rounded once.
    let wide = program.reserve(element, to.shape())?;
    convert(program, to, &wide, dtype, "convert_to");
    scatter_into(program, from, index, axis, &wide, combine)?;
    convert(program, &wide, to, dtype, "convert_from");
    Ok(())
}

/// The type in which values are combined: one that a word of 32 or 64 bits holds.
fn combined_type(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F64 | Dtype::I64 | Dtype::U64 => dtype,
        dtype if dtype.is_float() => Dtype::F32,
        dtype if dtype.is_signed() => Dtype::I32,
        _ => Dtype::U32,
    }
}

fn convert(
    program: &mut NativeProgram,
    from: &MemoryView,
    to: &MemoryView,
    narrow: Dtype,
    function: &'static str,
) {
    if to.layout.is_empty() {
        return;
    }
    let loops = Loops::over(&[to, from]).merge();
    // There is no index here, but the text names its type.
    let text = text(&loops, Dtype::I64)
        .with("ELEMENT", c_type(combined_type(narrow)))
        .with("FROM", c_type(narrow))
        .with("COMBINE", ScatterCombine::Add as u32);
    let step = NativeStep::new(text, function)
        .looped(to, &loops, 0)
        .writes()
        .looped(from, &loops, 1)
        .u64(loops.count())
        .over(loops.count());
    program.push(step);
}

fn scatter_into(
    program: &mut NativeProgram,
    from: &MemoryView,
    index: &MemoryView,
    axis: usize,
    to: &MemoryView,
    combine: ScatterCombine,
) -> Result<()> {
    let extent = to.shape()[axis];
    let shaped = beginning(to, from.shape(), axis)?;
    let mut loops = Loops::over(&[from, &shaped, index]);
    let along = loops.fix(1, axis);
    let loops = loops.merge();
    let text = text(&loops, index.dtype());
    let (text, function) = match combine {
        ScatterCombine::Store => (
            text.with("STORED", unit_type(to.dtype().bytes())),
            "put_elements",
        ),
        _ => (
            text.with("ELEMENT", c_type(combined_type(to.dtype())))
                .with("FROM", c_type(from.dtype()))
                .with("COMBINE", combine as u32),
            "scatter_elements",
        ),
    };
    let step = NativeStep::new(text, function)
        .looped(to, &loops, 1)
        .writes()
        .looped(from, &loops, 0)
        .looped(index, &loops, 2)
        .u64(along.cast_unsigned())
        .u64(extent)
        .u64(loops.count())
        .over(loops.count());
    program.push(with_fault(step, program));
    Ok(())
}

/// Adds `to[i, c] = (index[i] == c)`, with `one` as the bits of 1. `to` has one more dimension, of
/// the classes.
///
/// # Errors
/// [`KernelError::Layout`] of shapes that do not go together.
pub fn one_hot(
    program: &mut NativeProgram,
    index: &MemoryView,
    to: &MemoryView,
    one: u64,
) -> Result<()> {
    let Some(classes) = to.shape().last().copied().filter(|_| !to.layout.is_empty()) else {
        return Ok(());
    };
    let shape: Vec<u64> = index.shape().iter().copied().chain([1]).collect();
    let index = index.reshape(&shape)?.broadcast(to.shape())?;
    let loops = Loops::over(&[to, &index]);
    let text = text(&loops, index.dtype()).with("STORED", unit_type(to.dtype().bytes()));
    let step = NativeStep::new(text, "one_hot")
        .looped(to, &loops, 0)
        .writes()
        .looped(&index, &loops, 1)
        .u64(classes)
        .u64(loops.count())
        .u64(one)
        .over(loops.count());
    program.push(with_fault(step, program));
    Ok(())
}

/// The first elements of a view along each dimension but the axis, as many as a shape has.
fn beginning(view: &MemoryView, shape: &[u64], axis: usize) -> Result<MemoryView> {
    let mut shaped = *view;
    for (dimension, len) in shape.iter().enumerate() {
        if dimension != axis {
            shaped = shaped.slice(dimension, 0..*len, 1)?;
        }
    }
    Ok(shaped)
}

/// Checks that an index has the loop's shape, and that the view it chooses from has the axis.
fn check_loop(
    index: &MemoryView,
    gone_over: &MemoryView,
    chosen: &MemoryView,
    axis: usize,
) -> Result<()> {
    let shape = gone_over.shape();
    check(index.shape() == shape, || {
        format!("the index is {:?}, not {shape:?}", index.shape())
    })?;
    let rank = chosen.shape().len();
    check(rank == shape.len() && axis < rank, || {
        format!("axis {axis} of {:?} for {shape:?}", chosen.shape())
    })
}

/// Adds `to[i] = from[index[i]]`, over all elements of `from` in row-major order.
///
/// # Errors
/// As for [`gather`].
pub fn take(
    program: &mut NativeProgram,
    from: &MemoryView,
    index: &MemoryView,
    to: &MemoryView,
) -> Result<()> {
    let all = [from.layout.len()];
    let flat = match from.reshape(&all) {
        Ok(flat) => flat,
        Err(_) => {
            let copied = program.reserve(from.dtype(), from.shape())?;
            copy::elements(program, from, &copied)?;
            copied.reshape(&all)?
        }
    };
    // As many dimensions as the result's, all but the first of one element.
    let rank = to.shape().len().max(1);
    let mut shape = vec![1; rank];
    shape[0] = all[0];
    let mut wanted = to.shape().to_vec();
    if wanted.is_empty() {
        wanted.push(1);
    }
    let flat = flat.reshape(&shape)?;
    let spread: Vec<u64> = [all[0]]
        .into_iter()
        .chain(wanted[1..].iter().copied())
        .collect();
    let (to, index) = (to.reshape(&wanted)?, index.reshape(&wanted)?);
    gather(program, &flat.broadcast(&spread)?, &index, 0, &to)
}
