//! Losses of rows by the class that an index in memory names, and their gradients.
//!
//! `loss.cu` reads and writes rows by numbers below the number of rows and of classes, and the
//! element of an index after it has compared the index with the number of classes. Sums have a
//! fixed order: by the threads of one block.

use fercuda_tensor::Dtype;

use crate::copy;
use crate::error::KernelError;
use crate::index::with_fault;
use crate::program::{NativeProgram, NativeStep};
use crate::rows::sizes;
use crate::scan;
use crate::text::{KernelText, c_type};
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// What is made of the losses of all rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LossReduction {
    /// One loss a row.
    Each,
    /// Their sum.
    Sum,
    /// Their sum by the number of rows that are counted.
    Mean,
}

/// A loss by a class's number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassLoss {
    /// Whether operands are logits, else logarithms of probabilities.
    pub is_logits: bool,
    /// Part of the target that is spread over all classes; of logits.
    pub smoothing: f64,
    /// Factor of the square of the logarithm of the sum of e^x; of logits.
    pub z_weight: f64,
    /// Index of rows that are not counted.
    pub ignored: i64,
    /// What is made of the losses.
    pub reduction: LossReduction,
}

/// Rows of `x` along its last dimension, and how many there are.
struct ClassRows<'a> {
    x: &'a MemoryView,
    index: &'a MemoryView,
    weights: Option<&'a MemoryView>,
    classes: u64,
    rows: u64,
}

impl<'a> ClassRows<'a> {
    fn new(
        x: &'a MemoryView,
        index: &'a MemoryView,
        weights: Option<&'a MemoryView>,
    ) -> Result<Self> {
        let outer = x.shape().len().saturating_sub(1);
        check(
            !x.shape().is_empty() && index.shape() == &x.shape()[..outer],
            || format!("the index is {:?} for {:?}", index.shape(), x.shape()),
        )?;
        let (rows, classes) = sizes(x);
        if let Some(weights) = weights {
            weights.check("the weights", &[classes], x.dtype())?;
        }
        Ok(Self {
            x,
            index,
            weights,
            classes,
            rows,
        })
    }

    fn text(&self, loss: &ClassLoss, losses: Dtype, is_aligned: bool) -> KernelText {
        let near = 16 / self.x.dtype().bytes();
        let is_vector = is_aligned && scan::are_vectors(self.x, near);
        text_of(loss, self.indexed(), losses).with("VECTOR", u8::from(is_vector))
    }

    /// Threads of a block: enough for a row of the classes.
    fn threads(&self) -> u32 {
        self.classes.next_power_of_two().clamp(32, 256) as u32
    }

    fn indexed(&self) -> IndexedRows<'a> {
        IndexedRows {
            index: self.index,
            classes: self.classes,
            dtype: self.x.dtype(),
            weights: self.weights,
        }
    }
}

/// The index of rows, the number of classes, the type of the operand, and weights of classes.
#[derive(Clone, Copy)]
pub(crate) struct IndexedRows<'a> {
    pub(crate) index: &'a MemoryView,
    pub(crate) classes: u64,
    pub(crate) dtype: Dtype,
    pub(crate) weights: Option<&'a MemoryView>,
}

/// Weights of classes as parameters: the address and the stride.
fn with_weights(step: NativeStep, weights: Option<&MemoryView>) -> NativeStep {
    let stride = weights.and_then(|it| it.layout.strides().first().copied());
    optional(step, weights).u64(stride.unwrap_or_default().cast_unsigned())
}

fn text_of(loss: &ClassLoss, rows: IndexedRows<'_>, losses: Dtype) -> KernelText {
    KernelText::new("loss.cu", include_str!("../cuda/loss.cu"))
        .with_type("ELEMENT", rows.dtype)
        .with_type("INDEX", rows.index.dtype())
        .with("LOSS", c_type(losses))
        .with("IS_LOGITS", u8::from(loss.is_logits))
}

/// The number of counted rows, in the workspace, for a mean.
pub(crate) fn count_rows(
    program: &mut NativeProgram,
    loss: &ClassLoss,
    rows: IndexedRows<'_>,
) -> Result<Option<MemoryView>> {
    if loss.reduction != LossReduction::Mean {
        return Ok(None);
    }
    let count = program.reserve(real(rows.dtype), &[1])?;
    let step = NativeStep::new(text_of(loss, rows, rows.dtype), "count_rows")
        .address(&count)
        .writes()
        .flat(rows.index);
    let step = with_weights(step, rows.weights)
        .u64(loss.ignored.cast_unsigned())
        .u64(rows.classes)
        .u64(rows.index.layout.len());
    program.push(step);
    Ok(Some(count))
}

/// Adds the sum of the losses of rows, or their mean, to a single element.
pub(crate) fn reduce_losses(
    program: &mut NativeProgram,
    loss: &ClassLoss,
    rows: IndexedRows<'_>,
    losses: &MemoryView,
    to: &MemoryView,
) -> Result<()> {
    let count = count_rows(program, loss, rows)?;
    let step = NativeStep::new(text_of(loss, rows, rows.dtype), "sum_losses")
        .address(to)
        .writes()
        .address(losses);
    program.push(optional(step, count.as_ref()).u64(rows.index.layout.len()));
    Ok(())
}

fn optional(step: NativeStep, view: Option<&MemoryView>) -> NativeStep {
    match view {
        Some(view) => step.address(view),
        None => step.u64(0),
    }
}

/// The type in which losses are computed.
fn real(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    }
}

/// Adds losses of the rows of `x` along its last dimension. `index` has its other dimensions, and
/// `to` too, or a single element for a reduction. There may be a weight for each class.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn of_classes(
    program: &mut NativeProgram,
    loss: &ClassLoss,
    [x, index, to]: [&MemoryView; 3],
    weights: Option<&MemoryView>,
) -> Result<()> {
    let all = ClassRows::new(x, index, weights)?;
    let is_each = loss.reduction == LossReduction::Each;
    let shape = if is_each { index.shape() } else { &[] };
    to.check("the losses", shape, x.dtype())?;
    let losses = match is_each {
        true => *to,
        false => program.reserve(real(x.dtype()), &[all.rows])?,
    };
    if all.rows > 0 && all.classes == 0 {
        copy::fill(program, &losses, 0);
    } else if all.rows > 0 {
        let step = NativeStep::new(
            all.text(loss, losses.dtype(), program.is_aligned),
            "class_losses",
        )
        .threads(all.threads())
        .flat(&losses)
        .writes()
        .rows(x)
        .flat(index);
        let step = with_weights(step, weights)
            .f64(loss.smoothing)
            .f64(loss.z_weight)
            .u64(loss.ignored.cast_unsigned())
            .u64(all.classes)
            .u64(all.rows)
            .over_blocks(all.rows);
        program.push(with_fault(step, program));
    }
    if is_each {
        return Ok(());
    }
    reduce_losses(program, loss, all.indexed(), &losses, to)
}

/// Adds the gradient of these losses by `x`, of theirs: `gradient` has the losses' shape.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn of_classes_backward(
    program: &mut NativeProgram,
    loss: &ClassLoss,
    [gradient, x, index, to]: [&MemoryView; 4],
    weights: Option<&MemoryView>,
) -> Result<()> {
    let all = ClassRows::new(x, index, weights)?;
    let shape = match loss.reduction {
        LossReduction::Each => index.shape(),
        _ => &[],
    };
    gradient.check("the gradient", shape, x.dtype())?;
    to.check("the result", x.shape(), x.dtype())?;
    if to.layout.is_empty() {
        return Ok(());
    }
    let count = count_rows(program, loss, all.indexed())?;
    let step = NativeStep::new(
        all.text(loss, x.dtype(), program.is_aligned),
        "class_gradients",
    )
    .threads(all.threads())
    .rows(to)
    .writes()
    .flat(gradient)
    .rows(x)
    .flat(index);
    let step = with_weights(optional(step, count.as_ref()), weights)
        .f64(loss.smoothing)
        .f64(loss.z_weight)
        .u64(loss.ignored.cast_unsigned())
        .u64(all.classes)
        .u64(all.rows)
        .over_blocks(all.rows);
    program.push(with_fault(step, program));
    Ok(())
}
