//! Random places: permutations, and draws by weights.
//!
//! A permutation sorts random numbers of 64 bits, of which equal ones stay in order. `draw.cu`
//! finds a place below the number of weights by sums in the workspace, whatever they are.

use fercuda_tensor::Dtype;

use crate::error::KernelError;
use crate::maths::{self, ElementFunction};
use crate::program::{NativeProgram, NativeStep};
use crate::random::{self, Distribution, RandomSeed};
use crate::rows::sizes;
use crate::sort::{self, SortedPart};
use crate::text::KernelText;
use crate::view::{MemoryView, check};

/// Adds permutations of the places along the last dimension of `to`: those of its elements' random
/// numbers in ascending order.
///
/// # Errors
/// [`KernelError::Views`] of another type or no dimension; [`KernelError::TooMany`].
pub fn permutation(
    program: &mut NativeProgram,
    to: &MemoryView,
    seed: RandomSeed,
) -> Result<(), KernelError> {
    check(to.dtype() == Dtype::I64 && !to.shape().is_empty(), || {
        format!("a permutation of {}", to.layout)
    })?;
    if to.layout.is_empty() {
        return Ok(());
    }
    let keys = program.reserve(Dtype::U64, to.shape())?;
    // A range of 0 stands for all numbers.
    let all = Distribution::Integers { low: 0, range: 0 };
    random::elements(program, &keys, all, seed);
    let part = SortedPart {
        first: 0,
        count: sizes(to).1,
        is_descending: false,
        is_nan_if_any: false,
    };
    sort::along(program, to.shape().len() - 1, part, &keys, None, Some(to))
}

/// Adds draws of places along the last dimension of the weights `x`, with replacement; `to` has the
/// number of draws there.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn places(
    program: &mut NativeProgram,
    x: &MemoryView,
    to: &MemoryView,
    seed: RandomSeed,
) -> Result<(), KernelError> {
    let ([outer @ .., length], [to_outer @ .., samples]) = (x.shape(), to.shape()) else {
        return check(false, || "weights of no dimension".to_owned());
    };
    let fits = outer == to_outer && to.dtype() == Dtype::I64 && x.dtype().is_float();
    check(fits, || format!("{} to {}", x.layout, to.layout))?;
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    check(*length > 0, || "draws of no weights".to_owned())?;
    let (rows, _) = sizes(x);
    let sums = program.reserve(Dtype::F64, &[rows, *length])?;
    let text =
        KernelText::new("draw.cu", include_str!("../cuda/draw.cu")).with_type("ELEMENT", x.dtype());
    let step = NativeStep::new(text.clone(), "sum_weights")
        .address(&sums)
        .writes()
        .rows(x)
        .u64(*length)
        .u64(rows);
    program.push(step.over_blocks(rows));
    let step = NativeStep::new(text, "draw_places")
        .flat(to)
        .writes()
        .address(&sums)
        .u64(*length)
        .u64(*samples)
        .u64(seed.seed)
        .u64(seed.stream)
        .u64(count);
    program.push(step.over(count));
    Ok(())
}

/// Adds draws of different places along the last dimension of the weights `x`: those of the
/// smallest exponential numbers by the weights, in order; -1 where no weight above 0 is left.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn different_places(
    program: &mut NativeProgram,
    x: &MemoryView,
    to: &MemoryView,
    seed: RandomSeed,
) -> Result<(), KernelError> {
    let ([outer @ .., length], [to_outer @ .., samples]) = (x.shape(), to.shape()) else {
        return check(false, || "weights of no dimension".to_owned());
    };
    let fits = outer == to_outer && to.dtype() == Dtype::I64 && x.dtype().is_float();
    check(fits && samples <= length, || {
        format!("{} to {}", x.layout, to.layout)
    })?;
    if to.layout.is_empty() {
        return Ok(());
    }
    let keys = program.reserve(Dtype::F64, x.shape())?;
    random::elements(
        program,
        &keys,
        Distribution::Exponential { rate: 1.0 },
        seed,
    );
    let weighed = program.reserve(Dtype::F64, x.shape())?;
    maths::apply(program, ElementFunction::ByWeight, &[&keys, x], &weighed)?;
    let part = SortedPart {
        first: 0,
        count: *samples,
        is_descending: false,
        is_nan_if_any: false,
    };
    let least = program.reserve(Dtype::F64, to.shape())?;
    let places = program.reserve(Dtype::I64, to.shape())?;
    let axis = x.shape().len() - 1;
    sort::along(program, axis, part, &weighed, Some(&least), Some(&places))?;
    maths::apply(
        program,
        ElementFunction::PlaceOfFinite,
        &[&least, &places],
        to,
    )
}
