//! Sorting along one axis, parts of what is sorted, and searches in sorted rows.
//!
//! `sort.cu` accesses elements of rows at places that it compares with the rows' length. Places and
//! counts that it has put in the workspace are read from memory again: an element is moved, and an
//! element of the operand read, only after a comparison with the length of the row. A search reads
//! between 0 and the length, whatever it reads.
//!
//! Elements are compared as unsigned keys: NaN is last in ascending order, zeros are equal. A short
//! row is sorted by one block in shared memory, by keys and then places, which is stable. Long rows
//! are moved by 8 bits of the keys at a time, from the lowest on: each chunk counts its digits, the
//! counts are summed, each chunk moves its elements. What is in the workspace in the end are keys
//! and places; an element's bits follow from its key, or are read where several bits have one.

use fercuda_tensor::Dtype;

use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep};
use crate::rows;
use crate::text::KernelText;
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Longest row that one block sorts, as in `sort.cu`.
const SHORT: u64 = 2048;
/// Digits, and threads of a block, of the sort of long rows.
const DIGITS: u64 = 256;
/// From this length on, places have 64 bits.
const WIDE: u64 = 1 << 31;
/// Largest number of chunks for which one thread sums the counts of a digit.
const FEW_CHUNKS: u64 = 16;
/// Flags of results, as in `sort.cu`.
const VALUES: u32 = 1;
const INDICES: u32 = 2;
const NAN_IF_ANY: u32 = 4;

/// The part of each sorted row that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortedPart {
    /// Place of the first element in order.
    pub first: u64,
    /// Number of elements.
    pub count: u64,
    /// Whether the order is descending; equal elements are in order of their places either way.
    pub is_descending: bool,
    /// Whether the part of a row with NaN is the first NaN.
    pub is_nan_if_any: bool,
}

/// Keys and places of sorted rows, in the workspace.
pub(crate) struct SortedRows {
    pub(crate) keys: MemoryView,
    pub(crate) places: MemoryView,
}

/// A text with the macros of `keys.cuh` for elements of a type.
pub(crate) fn with_keys(text: KernelText, dtype: Dtype) -> KernelText {
    let key = match dtype.bytes() {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        _ => "u64",
    };
    let kind = match dtype {
        Dtype::Bool => 3,
        dtype if dtype.is_float() => 2,
        dtype => u8::from(dtype.is_signed()),
    };
    let largest = match dtype {
        // It has no infinity.
        Dtype::F8E4m3 => 0x7e,
        dtype => dtype.float_format().map_or(0, |(exponent, fraction)| {
            ((1u64 << exponent) - 1) << fraction
        }),
    };
    text.with("KEY", key)
        .with("KIND", kind)
        .with("LARGEST", format!("{largest}ull"))
}

fn text(dtype: Dtype) -> KernelText {
    let text = KernelText::new("sort.cu", include_str!("../cuda/sort.cu"));
    with_keys(text, dtype)
}

/// The type of places of rows of that length.
pub(crate) fn place_type(len: u64) -> Dtype {
    if len < WIDE { Dtype::U32 } else { Dtype::U64 }
}

/// Adds a sort along an axis. The results have the operand's shape, but for the axis, of which they
/// have the part.
///
/// # Errors
/// [`KernelError::Layout`] of shapes that do not go together; [`KernelError::TooMany`].
pub fn along(
    program: &mut NativeProgram,
    axis: usize,
    part: SortedPart,
    x: &MemoryView,
    values: Option<&MemoryView>,
    indices: Option<&MemoryView>,
) -> Result<()> {
    let x = x.move_last(axis)?;
    let (rows, len) = rows::sizes(&x);
    let end = part.first.checked_add(part.count);
    check(end.is_some_and(|end| end <= len), || {
        format!("{} elements from {} of {len}", part.count, part.first)
    })?;
    for (view, dtype) in [(values, x.dtype()), (indices, Dtype::I64)] {
        let Some(view) = view else {
            continue;
        };
        let mut wanted = x.shape().to_vec();
        if let Some(last) = wanted.last_mut() {
            *last = part.count;
        }
        view.move_last(axis)?.check("a result", &wanted, dtype)?;
    }
    if rows == 0 || part.count == 0 || len == 0 {
        return Ok(());
    }
    let mut parts = if part.is_nan_if_any { NAN_IF_ANY } else { 0 };
    let nothing = program.reserve(Dtype::U8, &[0])?;
    let mut staged = Vec::new();
    for (view, flag) in [(values, VALUES), (indices, INDICES)] {
        staged.push(match view {
            None => (nothing, nothing),
            Some(view) => {
                parts |= flag;
                let view = view.move_last(axis)?;
                (rows::staged_output(program, &view)?, view)
            }
        });
    }
    let from = rows::staged_operand(program, &x)?;
    let flip = if part.is_descending { u64::MAX } else { 0 };
    let of_results = |step: NativeStep| {
        let results = staged
            .iter()
            .fold(step, |step, (to, _)| step.rows(to).writes());
        results.rows(&from)
    };
    if len <= SHORT {
        let padded = len.next_power_of_two();
        let threads = (padded / 2).clamp(32, 512);
        let step = NativeStep::new(text(x.dtype()), "sort_rows").threads(threads as u32);
        let step = of_results(step).u64(rows).u64(part.first).u64(part.count);
        let step = step.u64(flip).u32(padded as u32).u32(parts);
        program.push(step.over_blocks(rows));
    } else {
        let sorted = long_rows(program, &from, flip)?;
        let step = of_results(NativeStep::new(long_text(&from), "take_sorted"));
        let step = step.address(&sorted.keys).address(&sorted.places);
        let step = step.u64(rows).u64(part.first).u64(part.count).u64(flip);
        let count = rows.saturating_mul(part.count);
        program.push(step.u32(parts).over(count));
    }
    for (from, to) in &staged {
        rows::unstage(program, from, to)?;
    }
    Ok(())
}

/// Elements of a thread: as many as fit in shared memory, with their places.
fn each(x: &MemoryView) -> u64 {
    let (_, len) = rows::sizes(x);
    let bytes = x.dtype().bytes() + place_type(len).bytes();
    if bytes <= 8 { 16 } else { 8 }
}

fn long_text(x: &MemoryView) -> KernelText {
    let (_, len) = rows::sizes(x);
    let place = if place_type(len) == Dtype::U32 {
        "u32"
    } else {
        "u64"
    };
    text(x.dtype()).with("PLACE", place).with("EACH", each(x))
}

/// Adds a sort of rows of any length along the last dimension, which leaves keys and places in the
/// workspace, row after row.
pub(crate) fn long_rows(
    program: &mut NativeProgram,
    x: &MemoryView,
    flip: u64,
) -> Result<SortedRows> {
    let (rows, len) = rows::sizes(x);
    let place = place_type(len);
    let chunks = len.div_ceil(each(x) * DIGITS);
    let count = rows.saturating_mul(chunks);
    let key = match x.dtype().bytes() {
        1 => Dtype::U8,
        2 => Dtype::U16,
        4 => Dtype::U32,
        _ => Dtype::U64,
    };
    let passes = x.dtype().bytes();
    let mut reserve = |dtype, shape: &[u64]| program.reserve(dtype, shape);
    let one = SortedRows {
        keys: reserve(key, &[rows, len])?,
        places: reserve(place, &[rows, len])?,
    };
    // One pass needs no other place.
    let rows_of_other = if passes > 1 { rows } else { 0 };
    let other = SortedRows {
        keys: reserve(key, &[rows_of_other, len])?,
        places: reserve(place, &[rows_of_other, len])?,
    };
    let counts = reserve(place, &[rows, DIGITS, chunks])?;
    let totals = reserve(place, &[rows, DIGITS])?;
    let text = long_text(x);
    let step = |name| NativeStep::new(text.clone(), name);
    let (mut to, mut from) = (one, other);
    for pass in 0..passes {
        let shift = 8 * pass as u32;
        let counting = match pass {
            0 => step("count_first").address(&counts).writes().rows(x),
            _ => step("count_next")
                .address(&counts)
                .writes()
                .address(&from.keys)
                .shape(rows::shape(x)),
        };
        let counting = counting.u64(chunks).u64(count);
        let counting = match pass {
            0 => counting.u64(flip),
            _ => counting.u32(shift),
        };
        program.push(counting.over_blocks(count));
        let digits = rows.saturating_mul(DIGITS);
        let is_few = chunks <= FEW_CHUNKS;
        let scan = step(if is_few { "scan_few" } else { "scan_digits" });
        let scan = scan.address(&counts).writes().address(&totals).writes();
        let scan = scan.u64(chunks).u64(digits);
        program.push(match is_few {
            true => scan.over(digits),
            false => scan.over_blocks(digits),
        });
        let name = if pass == 0 { "move_first" } else { "move_next" };
        let moving = step(name)
            .address(&to.keys)
            .writes()
            .address(&to.places)
            .writes();
        let moving = match pass {
            0 => moving.rows(x),
            _ => moving.address(&from.keys).shape(rows::shape(x)),
        };
        let moving = moving.address(&counts).address(&totals);
        let moving = moving.u64(chunks).u64(count);
        let moving = match pass {
            0 => moving.u64(flip),
            _ => moving.address(&from.places).u32(shift),
        };
        program.push(moving.over_blocks(count));
        std::mem::swap(&mut to, &mut from);
    }
    Ok(from)
}

/// Adds searches of values in sorted rows along the last dimensions, whose other dimensions are
/// equal. With `is_right` a place is behind equal elements.
///
/// # Errors
/// [`KernelError::Layout`] of shapes that do not go together.
pub fn search(
    program: &mut NativeProgram,
    sorted: &MemoryView,
    values: &MemoryView,
    out: &MemoryView,
    is_right: bool,
) -> Result<()> {
    out.check("the places", values.shape(), Dtype::I64)?;
    check(sorted.dtype() == values.dtype(), || {
        format!("{} in {}", values.dtype(), sorted.dtype())
    })?;
    let out = *out;
    if values.layout.is_empty() {
        return Ok(());
    }
    let outer = values.shape().len().saturating_sub(1);
    let len = sorted.shape().last().copied().unwrap_or(1);
    let shape = [&values.shape()[..outer], &[len]].concat();
    let sorted = sorted.broadcast(&shape)?;
    let count = values.layout.len();
    let step = NativeStep::new(text(values.dtype()), "search_rows")
        .rows(&out)
        .writes();
    let step = step.rows(&sorted).rows(values).u64(count);
    program.push(step.u32(u32::from(is_right)).over(count));
    Ok(())
}
