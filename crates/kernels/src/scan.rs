//! Scans along one axis: each element combined with those before it, in a fixed order.
//!
//! `scan.cu` accesses the elements `row_offset(row) + at * stride` of the operand and the outputs
//! for rows and places that it compares with their number and length; all views have one shape.
//! The totals are one a chunk, which is also a loop's end. No index comes from memory.
//!
//! Many short rows are scanned by a thread each, many others by a block each, chunk after chunk. Of
//! few long ones three launches combine the elements of each chunk, scan these totals, and scan the
//! chunks behind them, so that neither the number of blocks nor their order changes a result.

use fercuda_tensor::Dtype;

use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep};
use crate::rows;
use crate::text::{KernelText, c_type, computed_type};
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Threads of a block of `scan.cu` at most.
const MOST_THREADS: u64 = 256;
/// Number of rows from which each is scanned by one block: enough to fill a device.
const MANY_ROWS: u64 = 256;
/// Most chunks of such a row: each adds a rounding, of which the references' bounds have room for
/// so many.
const MOST_CARRIES: u64 = 32;

/// Elements of one thread of `scan.cu`: those of 16 bytes, or eight.
fn each(dtype: Dtype) -> u64 {
    (16 / dtype.bytes()).clamp(2, 8)
}

/// Longest row of which many are scanned a thread each, and how many these are. The references'
/// bounds have no more operations in a row of that length.
const SHORT: u64 = 64;
const MANY: u64 = 4096;

/// How a scan combines elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanOp {
    /// Adds; integers and bool in 64 bits.
    Sum,
    /// Multiplies; integers in 64 bits.
    Product,
    /// The last of the largest, with its place; NaN is above all.
    Largest,
    /// The last of the smallest, with its place; NaN is below all.
    Smallest,
    /// ln of the sum of e^x.
    LogSum,
}

impl ScanOp {
    /// Type of the values that it gives.
    pub fn result(self, dtype: Dtype) -> Dtype {
        match self {
            Self::Sum | Self::Product if !dtype.is_float() => {
                match dtype.is_signed() || dtype == Dtype::Bool {
                    true => Dtype::I64,
                    false => Dtype::U64,
                }
            }
            _ => dtype,
        }
    }

    /// Whether it gives places too.
    pub fn has_places(self) -> bool {
        matches!(self, Self::Largest | Self::Smallest)
    }

    /// The type of combined values, and the bytes of a state in `scan.cu` with such places.
    fn state(self, dtype: Dtype, place: &str) -> (&'static str, u64) {
        let own = match (dtype.is_float(), self.has_places()) {
            (false, false) => "unsigned long long",
            _ => computed_type(dtype),
        };
        let bytes = if own == "float" { 4 } else { 8 };
        match self {
            Self::Sum | Self::Product => (own, bytes),
            Self::LogSum => (own, 2 * bytes),
            Self::Largest | Self::Smallest if place == "int" && dtype.bytes() <= 4 => (own, 8),
            Self::Largest | Self::Smallest => (own, 16),
        }
    }

    fn text(self, dtype: Dtype, place: &str, is_vector: bool) -> KernelText {
        let name = match self {
            Self::Sum => "Sum",
            Self::Product => "Product",
            Self::Largest => "Largest",
            Self::Smallest => "Smallest",
            Self::LogSum => "LogSum",
        };
        // A result of 64 bits wraps in any type of that size.
        let result = match self.result(dtype) {
            Dtype::I64 if !self.has_places() => "unsigned long long",
            result => c_type(result),
        };
        let text = KernelText::new("scan.cu", include_str!("../cuda/scan.cu"))
            .with_type("ELEMENT", dtype)
            .with("RESULT", result)
            .with("VALUE", self.state(dtype, place).0)
            .with("PLACE", place)
            .with("EACH", each(dtype))
            .with("VECTOR", u8::from(is_vector))
            .with("SCAN", name);
        match self {
            Self::Sum | Self::Product => text,
            Self::LogSum => text.with("LOGSUM", 1),
            Self::Largest | Self::Smallest => text.with("INDICES", 1),
        }
    }
}

/// Whether so many neighbours along the last dimension lie at multiples of 16 bytes, or of all of
/// them if they are fewer.
pub(crate) fn are_vectors(view: &MemoryView, each: u64) -> bool {
    let ([_, .., _] | [_], [outer @ .., last]) = (view.shape(), view.layout.strides()) else {
        return false;
    };
    let at_once = (each * view.dtype().bytes()).min(16);
    let near = (at_once / view.dtype().bytes()).cast_signed();
    let mut others = view.shape().iter().zip(outer);
    *last == 1
        && view.offset_bytes % at_once.cast_signed() == 0
        && others.all(|(extent, stride)| *extent == 1 || stride % near == 0)
}

/// Adds a scan along an axis. `places` is there for the ops that give them; all have one shape.
///
/// # Errors
/// [`KernelError::Layout`] without that axis; [`KernelError::TooMany`].
pub fn along(
    program: &mut NativeProgram,
    op: ScanOp,
    axis: usize,
    x: &MemoryView,
    values: &MemoryView,
    places: Option<&MemoryView>,
) -> Result<()> {
    check(values.dtype() == op.result(x.dtype()), || {
        format!("results of {} for {}", values.dtype(), x.dtype())
    })?;
    let of_places = places.map_or(Dtype::I64, MemoryView::dtype);
    check(of_places == Dtype::I64, || format!("places of {of_places}"))?;
    check(op.has_places() == places.is_some(), || {
        "places or none".to_owned()
    })?;
    let places = match (op.has_places(), places) {
        (true, Some(places)) => Some(places.broadcast(x.shape())?.move_last(axis)?),
        _ => None,
    };
    let values = values.broadcast(x.shape())?.move_last(axis)?;
    let x = x.move_last(axis)?;
    if x.layout.is_empty() {
        return Ok(());
    }
    let (rows, len) = rows::sizes(&x);
    // With room for a step beyond the end.
    let place = if len < 1 << 30 { "int" } else { "i64" };
    let text = op.text(x.dtype(), place, false);
    if len <= SHORT && rows >= MANY {
        let scan = NativeStep::new(text, "scan_short").rows(&values).writes();
        let scan = match &places {
            Some(places) => scan.rows(places).writes(),
            None => scan,
        };
        program.push(scan.rows(&x).u64(rows).over(rows));
        return Ok(());
    }
    let from = rows::staged_operand(program, &x)?;
    let to = rows::staged_output(program, &values)?;
    let places_to = places.map(|it| rows::staged_output(program, &it));
    let places_to = places_to.transpose()?;

    let each = each(x.dtype());
    let views = [Some(&from), Some(&to), places_to.as_ref()];
    let mut views = views.into_iter().flatten();
    let is_vector = program.is_aligned && views.all(|view| are_vectors(view, each));
    let text = op.text(x.dtype(), place, is_vector);
    let threads = len
        .div_ceil(each)
        .next_multiple_of(32)
        .clamp(32, MOST_THREADS);
    let chunks = len.div_ceil(each * threads);
    let step = |name| NativeStep::new(text.clone(), name).threads(threads as u32);
    let results = |step: NativeStep| {
        let step = step.rows(&to).writes();
        match &places_to {
            Some(places) => step.rows(places).writes(),
            None => step,
        }
    };
    if rows >= MANY_ROWS && (2..=MOST_CARRIES).contains(&chunks) {
        let scan = results(step("scan_rows"));
        program.push(scan.rows(&from).u64(rows).over_blocks(rows));
    } else {
        let count = rows.saturating_mul(chunks);
        // Of rows of one chunk there are no totals.
        let states = if chunks > 1 { count } else { 0 };
        let bytes = states.saturating_mul(op.state(x.dtype(), place).1);
        let totals = program.reserve(Dtype::U8, &[bytes])?;
        if chunks > 1 {
            let total = step("total_chunks").address(&totals).writes().rows(&from);
            program.push(total.u64(chunks).u64(count).over_blocks(count));
            let scan = step("scan_totals").address(&totals).writes();
            program.push(scan.u64(chunks).u64(rows).over_blocks(rows));
        }
        let scan = results(step("scan_chunks")).address(&totals).rows(&from);
        program.push(scan.u64(chunks).u64(count).over_blocks(count));
    }

    rows::unstage(program, &to, &values)?;
    match (&places_to, &places) {
        (Some(staged), Some(places)) => rows::unstage(program, staged, places),
        _ => Ok(()),
    }
}
