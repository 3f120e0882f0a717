//! Reductions of segments of rows, and bags of a table's rows, by offsets and indices in memory.
//!
//! `segment.cu` compares offsets with the number of rows, and indices with that of the table's
//! rows, before it reads or adds to one. A segment is reduced by one thread or one block, in a
//! fixed order; the gradient of a table is added to by atomics, in none.

use fercuda_tensor::Dtype;

use crate::copy;
use crate::error::KernelError;
use crate::index::with_fault;
use crate::program::{NativeProgram, NativeStep, ShapeParameter};
use crate::text::KernelText;
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Rows of fewer elements are reduced by a block for each.
const LEAST_ROW: u64 = 64;

/// What is made of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentReduction {
    /// The sum.
    Sum,
    /// The mean.
    Mean,
    /// The largest; NaN if one is.
    Most,
    /// The smallest; NaN if one is.
    Least,
}

/// A table's rows in bags.
#[derive(Clone, Copy, Debug)]
pub struct RowBags {
    /// Indices of rows.
    pub index: MemoryView,
    /// Where each bag begins among them, and where the last one ends.
    pub offsets: MemoryView,
    /// Factors of the rows, for sums.
    pub weights: Option<MemoryView>,
    /// What is made of a bag.
    pub reduction: SegmentReduction,
}

fn text(dtype: Dtype, offset: Dtype, reduction: SegmentReduction) -> KernelText {
    KernelText::new("segment.cu", include_str!("../cuda/segment.cu"))
        .with_type("ELEMENT", dtype)
        .with_type("OFFSET", offset)
        .with("REDUCE", reduction as u32)
}

fn is_index_list(view: &MemoryView) -> bool {
    view.shape().len() == 1 && view.is_index()
}

/// Checks that offsets are those of so many segments.
fn check_offsets(offsets: &MemoryView, segments: u64) -> Result<()> {
    let fits = segments.checked_add(1) == Some(offsets.layout.len());
    check(is_index_list(offsets) && fits, || {
        format!("offsets {} of {segments} segments", offsets.layout)
    })
}

/// Adds reductions of rows of `x`, which are along its first dimension, as those of `to` are.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn reduce(
    program: &mut NativeProgram,
    [x, offsets, to]: [&MemoryView; 3],
    reduction: SegmentReduction,
) -> Result<()> {
    let ([rows, inner @ ..], [segments, to_inner @ ..]) = (x.shape(), to.shape()) else {
        return check(false, || "rows of no dimension".to_owned());
    };
    check(
        inner == to_inner && x.dtype() == to.dtype() && x.dtype().is_float(),
        || format!("{} to {}", x.layout, to.layout),
    )?;
    check_offsets(offsets, *segments)?;
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    let width: u64 = inner.iter().product();
    let by_block = width < LEAST_ROW;
    let text = text(x.dtype(), offsets.dtype(), reduction)
        .with("SEGMENTS", 1)
        .with("BY_BLOCK", u8::from(by_block));
    let step = NativeStep::new(text, "reduce_segments")
        .rows(&to.move_last(0)?)
        .writes()
        .rows(&x.move_last(0)?)
        .flat(offsets)
        .u64(*rows)
        .u64(width)
        .u64(count);
    let step = match by_block {
        true => step.over_blocks(count),
        false => step.over(count),
    };
    program.push(with_fault(step, program));
    Ok(())
}

impl RowBags {
    /// Checks a table and what is made of its bags.
    fn check(&self, table: &MemoryView, of_bags: &MemoryView) -> Result<()> {
        let (&[_, width], &[bags, own]) = (table.shape(), of_bags.shape()) else {
            return check(false, || {
                format!("{} by bags {}", table.layout, of_bags.layout)
            });
        };
        let dtype = table.dtype();
        check(
            width == own && dtype == of_bags.dtype() && dtype.is_float(),
            || format!("{} by bags {}", table.layout, of_bags.layout),
        )?;
        check(is_index_list(&self.index), || {
            format!("an index of {}", self.index.layout)
        })?;
        check_offsets(&self.offsets, bags)?;
        match &self.weights {
            Some(weights) => {
                let is_sum = self.reduction == SegmentReduction::Sum;
                check(is_sum, || "weights of what is no sum".to_owned())?;
                weights.check("the weights", self.index.shape(), dtype)
            }
            None => Ok(()),
        }
    }

    fn text(&self, dtype: Dtype) -> KernelText {
        text(dtype, self.offsets.dtype(), self.reduction).with_type("INDEX", self.index.dtype())
    }

    /// Index, offsets and weights as parameters.
    fn added(&self, step: NativeStep) -> NativeStep {
        let step = step.view(&self.index).flat(&self.offsets);
        let step = match &self.weights {
            Some(weights) => step.view(weights),
            None => step.u64(0).shape(ShapeParameter::new([].into_iter())),
        };
        step.u64(self.index.layout.len())
    }
}

/// Adds what is made of bags of a table's rows: `to` has a row for each bag.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn bags(
    program: &mut NativeProgram,
    bags: &RowBags,
    table: &MemoryView,
    to: &MemoryView,
) -> Result<()> {
    bags.check(table, to)?;
    let count = to.layout.len();
    if count == 0 {
        return Ok(());
    }
    let step = NativeStep::new(bags.text(to.dtype()), "reduce_bags")
        .view(to)
        .writes()
        .view(table);
    let step = bags.added(step).u64(to.shape()[1]).u64(count).over(count);
    program.push(with_fault(step, program));
    Ok(())
}

/// The sums of a table's gradient: itself, or in the workspace if its type is narrower than sums.
struct TableSums<'a> {
    to: &'a MemoryView,
    sums: MemoryView,
}

impl<'a> TableSums<'a> {
    /// Begins with zeros.
    fn begin(program: &mut NativeProgram, to: &'a MemoryView) -> Result<Self> {
        let sums = match to.dtype() {
            Dtype::F32 | Dtype::F64 => *to,
            _ => program.reserve(Dtype::F32, to.shape())?,
        };
        copy::fill(program, &sums, 0);
        Ok(Self { to, sums })
    }

    /// Rounds sums to the table's type.
    fn end(self, program: &mut NativeProgram, text: KernelText) {
        let count = self.to.layout.len();
        if self.sums != *self.to {
            let step = NativeStep::new(text, "narrow").flat(self.to).writes();
            program.push(step.address(&self.sums).u64(count).over(count));
        }
    }
}

/// Adds the gradient of a table by that of its bags, of sums or means.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn bags_backward(
    program: &mut NativeProgram,
    bags: &RowBags,
    gradient: &MemoryView,
    to: &MemoryView,
) -> Result<()> {
    bags.check(to, gradient)?;
    let is_linear = matches!(
        bags.reduction,
        SegmentReduction::Sum | SegmentReduction::Mean
    );
    check(is_linear, || "the gradient of extremes".to_owned())?;
    if to.layout.is_empty() {
        return Ok(());
    }
    let table = TableSums::begin(program, to)?;
    let [number, width] = [gradient.shape()[0], gradient.shape()[1]];
    if number > 0 {
        let threads = width.next_power_of_two().clamp(32, 256) as u32;
        let step = NativeStep::new(bags.text(to.dtype()), "spread_bags")
            .threads(threads)
            .view(&table.sums)
            .writes()
            .view(gradient);
        let step = bags.added(step).u64(width).u64(number).over_blocks(number);
        program.push(with_fault(step, program));
    }
    table.end(program, bags.text(to.dtype()));
    Ok(())
}

/// Adds the gradient of a table by that of the rows that indices took.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn rows_backward(
    program: &mut NativeProgram,
    index: &MemoryView,
    gradient: &MemoryView,
    to: &MemoryView,
) -> Result<()> {
    let ([outer @ .., own], &[_, width]) = (gradient.shape(), to.shape()) else {
        return check(false, || format!("{} to {}", gradient.layout, to.layout));
    };
    let dtype = to.dtype();
    let fits = *own == width && outer == index.shape() && gradient.dtype() == dtype;
    check(fits && dtype.is_float(), || {
        format!("{} to {}", gradient.layout, to.layout)
    })?;
    check(index.is_index(), || {
        format!("an index of {}", index.dtype())
    })?;
    if to.layout.is_empty() {
        return Ok(());
    }
    let text = text(dtype, index.dtype(), SegmentReduction::Sum).with_type("INDEX", index.dtype());
    let table = TableSums::begin(program, to)?;
    let count = gradient.layout.len();
    if count > 0 {
        let step = NativeStep::new(text.clone(), "spread_rows")
            .view(&table.sums)
            .writes()
            .flat(gradient)
            .flat(index)
            .u64(width)
            .u64(count);
        program.push(with_fault(step.over(count), program));
    }
    table.end(program, text);
    Ok(())
}
