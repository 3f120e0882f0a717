//! Selection of elements in order, unique values, and counts of elements by their values.
//!
//! `select.cu` accesses an operand's elements by their numbers below its length. Ranks are sums of
//! counts that it has put in the workspace, and are compared with the results' length before a
//! write; places of sorted elements are compared with the operand's length; a bin is compared with
//! the number of bins. Results have room for all elements, so nothing can be too long.
//!
//! Each chunk counts the elements that are chosen, one block sums the counts, and each chunk
//! writes its elements behind those before. A block counts bins in shared memory in 32 bits: it
//! would need 2^44 elements for one of 4224 blocks to have more. Sums of integers have one result
//! in any order.

use fercuda_tensor::Dtype;

use crate::copy;
use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep, ShapeParameter};
use crate::sort;
use crate::text::KernelText;
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Elements of a chunk, as in `select.cu`.
const CHUNK: u64 = 2048;
/// Threads of the block that sums counts.
const SUMMING: u32 = 1024;

/// The values of `SELECT` in `select.cu`.
#[derive(Clone, Copy)]
enum SelectText {
    Masked = 0,
    Nonzero = 1,
    Unique = 2,
    Bins = 3,
}

fn text(select: SelectText) -> KernelText {
    let text = KernelText::new("select.cu", include_str!("../cuda/select.cu"));
    text.with("SELECT", select as u8)
}

/// Counts of the chunks of a number of elements, and their total, in the workspace.
struct ChosenCounts {
    text: KernelText,
    len: u64,
    chunks: u64,
    counts: MemoryView,
    total: MemoryView,
}

impl ChosenCounts {
    /// Adds the launches that count and sum; the total is also written to `number`.
    fn of(
        program: &mut NativeProgram,
        text: KernelText,
        source: &MemoryView,
        number: &MemoryView,
    ) -> Result<Self> {
        let len = source.layout.len();
        check(
            number.layout.len() == 1 && number.dtype() == Dtype::I64,
            || format!("a number of {}", number.layout),
        )?;
        let chunks = len.div_ceil(CHUNK);
        let counts = program.reserve(Dtype::U64, &[chunks])?;
        let total = program.reserve(Dtype::U64, &[1])?;
        let count = NativeStep::new(text.clone(), "count_chosen")
            .address(&counts)
            .writes();
        let count = count.flat(source).u64(len).u64(chunks);
        program.push(count.over_blocks(chunks));
        let sum = NativeStep::new(text.clone(), "scan_counts").threads(SUMMING);
        let sum = sum
            .address(&counts)
            .writes()
            .address(&total)
            .writes()
            .address(number)
            .writes();
        program.push(sum.u64(chunks));
        Ok(Self {
            text,
            len,
            chunks,
            counts,
            total,
        })
    }

    fn step(&self, name: &'static str) -> NativeStep {
        NativeStep::new(self.text.clone(), name)
    }
}

/// Adds the selection of the elements of `x` for which the mask, of the same shape, holds. `out`
/// has one dimension, as long as `x`; its elements behind those chosen are 0.
///
/// # Errors
/// [`KernelError::Layout`] of shapes that differ.
pub fn masked(
    program: &mut NativeProgram,
    x: &MemoryView,
    mask: &MemoryView,
    out: &MemoryView,
    number: &MemoryView,
) -> Result<()> {
    mask.check("the mask", x.shape(), Dtype::Bool)?;
    out.check("the result", &[x.layout.len()], x.dtype())?;
    let (mask, out) = (*mask, *out);
    if x.layout.is_empty() {
        copy::fill(program, number, 0);
        return Ok(());
    }
    // An element's bits are moved.
    let bits = match x.dtype().bytes() {
        1 => Dtype::U8,
        2 => Dtype::U16,
        4 => Dtype::U32,
        _ => Dtype::U64,
    };
    let text = sort::with_keys(text(SelectText::Masked), bits);
    let chosen = ChosenCounts::of(program, text, &mask, number)?;
    let (len, chunks) = (chosen.len, chosen.chunks);
    let take = chosen.step("take_masked").flat(&out).writes();
    let take = take.address(&chosen.counts).flat(&mask).flat(x);
    program.push(take.u64(len).u64(chunks).over_blocks(chunks));
    let clear = chosen
        .step("clear_rest")
        .flat(&out)
        .writes()
        .address(&chosen.total);
    program.push(clear.u64(len).over(len));
    Ok(())
}

/// Adds the search of elements that are not 0. `out` has a row for each element and a column for
/// each dimension of `x`; its rows behind those found are 0.
///
/// # Errors
/// [`KernelError::Layout`] of shapes that do not go together.
pub fn nonzero(
    program: &mut NativeProgram,
    x: &MemoryView,
    out: &MemoryView,
    number: &MemoryView,
) -> Result<()> {
    let rank = x.shape().len();
    out.check("the result", &[x.layout.len(), rank as u64], Dtype::I64)?;
    let out = *out;
    if x.layout.is_empty() {
        copy::fill(program, number, 0);
        return Ok(());
    }
    let text = sort::with_keys(text(SelectText::Nonzero), x.dtype());
    let chosen = ChosenCounts::of(program, text, x, number)?;
    let (len, chunks) = (chosen.len, chosen.chunks);
    if rank == 0 {
        return Ok(());
    }
    let take = chosen.step("take_nonzero").view(&out).writes();
    let take = take.address(&chosen.counts).flat(x);
    let take = take
        .shape(ShapeParameter::of(&x.layout))
        .u64(len)
        .u64(chunks)
        .u32(rank as u32);
    program.push(take.over_blocks(chunks));
    let clear = chosen
        .step("clear_rest")
        .view(&out)
        .writes()
        .address(&chosen.total);
    program.push(clear.u64(len).over(len));
    Ok(())
}

/// Adds the search of the values of `x`, in order, with the numbers of elements that have them.
/// `values` and `numbers` have one dimension, as long as `x`; behind the last value they are 0.
///
/// # Errors
/// [`KernelError::Layout`] of shapes that do not go together; [`KernelError::TooMany`].
pub fn unique(
    program: &mut NativeProgram,
    x: &MemoryView,
    values: &MemoryView,
    numbers: &MemoryView,
    number: &MemoryView,
) -> Result<()> {
    let len = x.layout.len();
    values.check("the values", &[len], x.dtype())?;
    numbers.check("their numbers", &[len], Dtype::I64)?;
    let (values, numbers) = (*values, *numbers);
    if len == 0 {
        copy::fill(program, number, 0);
        return Ok(());
    }
    let flat = match x.reshape(&[len]) {
        Ok(flat) => flat,
        // Only a copy has its elements evenly spaced.
        Err(_) => {
            let copied = program.reserve(x.dtype(), x.shape())?;
            copy::elements(program, x, &copied)?;
            copied.reshape(&[len])?
        }
    };
    let sorted = sort::long_rows(program, &flat, 0)?;
    let place = match sort::place_type(len) {
        Dtype::U32 => "u32",
        _ => "u64",
    };
    let text = sort::with_keys(text(SelectText::Unique), x.dtype()).with("PLACE", place);
    let keys = sorted.keys.reshape(&[len])?;
    let chosen = ChosenCounts::of(program, text, &keys, number)?;
    let starts = program.reserve(Dtype::U64, &[len])?;
    let take = chosen
        .step("take_unique")
        .flat(&values)
        .writes()
        .address(&starts)
        .writes();
    let take = take.address(&chosen.counts).flat(&keys);
    let take = take.address(&sorted.places).flat(&flat);
    let take = take.u64(len).u64(chosen.chunks);
    program.push(take.over_blocks(chosen.chunks));
    let count = chosen
        .step("count_unique")
        .flat(&values)
        .writes()
        .flat(&numbers)
        .writes();
    let count = count.address(&starts).address(&chosen.total);
    program.push(count.u64(len).over(len));
    Ok(())
}

/// Adds counts of the elements of `x`. `out` has one dimension, of the bins: of the parts of a
/// range, both ends of which are in it, or of the values of whole numbers.
///
/// # Errors
/// [`KernelError::Views`] of other counts.
pub fn bins(
    program: &mut NativeProgram,
    x: &MemoryView,
    range: Option<(f64, f64)>,
    out: &MemoryView,
) -> Result<()> {
    let (len, bins) = (x.layout.len(), out.layout.len());
    out.check("the counts", &[bins], Dtype::I64)?;
    copy::fill(program, out, 0);
    if len == 0 || bins == 0 {
        return Ok(());
    }
    let text = text(SelectText::Bins).with_type("ELEMENT", x.dtype());
    let text = match range {
        Some(_) => text.with("IS_HISTOGRAM", 1),
        None => text,
    };
    let (low, high) = range.unwrap_or_default();
    let count = NativeStep::new(text, "count_bins")
        .flat(out)
        .writes()
        .flat(x);
    let count = count.u64(len).u64(bins).f64(low).f64(high);
    program.push(count.over(len));
    Ok(())
}
