//! Cross-entropy of a linear layer's logits, and its gradients, which never hold all logits.
//!
//! Classes are gone over in parts. The logits of a part are a product in the workspace; the losses
//! join them to what is known of each row, the gradients make their own of them, and multiply
//! these with the weight and with the operand. `linear_loss.cu` reads and writes rows and classes
//! below their numbers, and compares an index with the number of classes. Sums have a fixed order.
//!
//! Workspace: of `rows` and parts of `width` classes, `rows * width` numbers of f32 (f64 for f64),
//! and a few for each row. Gradients add as many elements if those are narrower, `rows * inputs`
//! and `width * inputs` numbers.

use fercuda_tensor::Dtype;

use crate::copy;
use crate::error::KernelError;
use crate::index::with_fault;
use crate::loss::{ClassLoss, IndexedRows, LossReduction, count_rows, reduce_losses};
use crate::multiply::{ProductEpilogue, ProductKernel, matrices};
use crate::program::{NativeProgram, NativeStep, ShapeParameter};
use crate::text::{KernelText, c_type};
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Largest number of parts that are chosen by themselves.
const MOST_PARTS: u64 = 128;
/// Smallest part that is.
const LEAST_PART: u64 = 1024;

/// Operands of the loss of a linear layer.
#[derive(Clone, Copy, Debug)]
pub struct LinearLoss<'a> {
    /// `[rows, inputs]`.
    pub x: &'a MemoryView,
    /// `[classes, inputs]`.
    pub weight: &'a MemoryView,
    /// One number for each class.
    pub bias: Option<&'a MemoryView>,
    /// The class of each row.
    pub index: &'a MemoryView,
    /// Classes of a part, or 0: as many as make at most 128 parts, and at least 1024.
    pub width: u64,
    /// What the loss is.
    pub loss: ClassLoss,
}

impl LinearLoss<'_> {
    fn rows(&self) -> u64 {
        self.x.shape()[0]
    }

    fn classes(&self) -> u64 {
        self.weight.shape()[0]
    }

    fn width(&self) -> u64 {
        let classes = self.classes();
        let chosen = classes
            .div_ceil(MOST_PARTS)
            .next_multiple_of(64)
            .max(LEAST_PART);
        let width = if self.width == 0 { chosen } else { self.width };
        width.min(classes).max(1)
    }

    fn real(&self) -> Dtype {
        match self.x.dtype() {
            Dtype::F64 => Dtype::F64,
            _ => Dtype::F32,
        }
    }

    fn text(&self, losses: Dtype) -> KernelText {
        KernelText::new("linear_loss.cu", include_str!("../cuda/linear_loss.cu"))
            .with_type("ELEMENT", self.x.dtype())
            .with_type("INDEX", self.index.dtype())
            .with("LOSS", c_type(losses))
    }

    fn indexed(&self) -> IndexedRows<'_> {
        IndexedRows {
            index: self.index,
            classes: self.classes(),
            dtype: self.x.dtype(),
            weights: None,
        }
    }

    fn kernel(&self) -> ProductKernel {
        match self.x.dtype() {
            Dtype::F16 | Dtype::Bf16 => ProductKernel::Tensor,
            _ => ProductKernel::Threads,
        }
    }

    fn check(&self) -> Result<()> {
        let (x, weight) = (self.x, self.weight);
        let dtype = x.dtype();
        let is_wide = dtype.is_float() && dtype.bytes() > 1;
        let fits = x.shape().len() == 2 && weight.shape().len() == 2 && is_wide;
        check(fits && x.shape()[1] == weight.shape()[1], || {
            format!("{} by {}", x.layout, weight.layout)
        })?;
        check(weight.dtype() == dtype && self.loss.is_logits, || {
            format!("a weight {} for {dtype}", weight.layout)
        })?;
        check(
            self.index.is_index() && self.index.layout.len() == self.rows(),
            || format!("an index {} for {} rows", self.index.layout, self.rows()),
        )?;
        match self.bias {
            Some(bias) => bias.check("the bias", &[self.classes()], dtype),
            None => Ok(()),
        }
    }

    /// The parts: the first class, and how many there are.
    fn parts(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (classes, width) = (self.classes(), self.width());
        let firsts = (0..classes.div_ceil(width)).map(move |part| part * width);
        firsts.map(move |first| (first, width.min(classes - first)))
    }

    /// Adds the logits of a part; `buffer` has room for the largest one.
    fn logits(
        &self,
        program: &mut NativeProgram,
        buffer: &MemoryView,
        (first, width): (u64, u64),
    ) -> Result<MemoryView> {
        let part = first..first + width;
        let weight = self.weight.slice(0, part.clone(), 1)?.permute(&[1, 0])?;
        let logits = matrix_in(buffer, [self.rows(), width])?;
        let bias = self.bias.map(|bias| bias.slice(0, part, 1)).transpose()?;
        let epilogue = ProductEpilogue {
            bias: bias.as_ref(),
            ..ProductEpilogue::default()
        };
        matrices(program, self.kernel(), [self.x, &weight, &logits], epilogue)?;
        Ok(logits)
    }
}

/// The first elements of a buffer of one dimension as a matrix.
fn matrix_in(buffer: &MemoryView, shape: [u64; 2]) -> Result<MemoryView> {
    let count = shape[0] * shape[1];
    Ok(buffer.slice(0, 0..count, 1)?.reshape(&shape)?)
}

fn optional(step: NativeStep, view: Option<&MemoryView>) -> NativeStep {
    match view {
        Some(view) => step.address(view),
        None => step.u64(0),
    }
}

fn optional_flat(step: NativeStep, view: Option<&MemoryView>) -> NativeStep {
    match view {
        Some(view) => step.flat(view),
        None => step.u64(0).shape(ShapeParameter::new(std::iter::empty())),
    }
}

/// Adds the losses of rows, reduced or one for each, and ln of the sum of e^x of each row, which
/// the gradients need: of f32, or of f64 for f64.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn losses(
    program: &mut NativeProgram,
    all: &LinearLoss<'_>,
    to: &MemoryView,
    logarithms: &MemoryView,
) -> Result<()> {
    all.check()?;
    let (rows, classes, real) = (all.rows(), all.classes(), all.real());
    let is_each = all.loss.reduction == LossReduction::Each;
    let count = if is_each { rows } else { 1 };
    check(
        to.layout.len() == count && to.dtype() == all.x.dtype(),
        || format!("losses of {}", to.layout),
    )?;
    check(
        logarithms.layout.len() == rows && logarithms.dtype() == real,
        || format!("logarithms of {}", logarithms.layout),
    )?;
    let losses = match is_each {
        true => *to,
        false => program.reserve(real, &[rows])?,
    };
    if rows > 0 && classes == 0 {
        copy::fill(program, &losses, 0);
        copy::fill(program, logarithms, real.encode(f64::NEG_INFINITY));
    } else if rows > 0 {
        let mut state = || program.reserve(real, &[rows]);
        let states = [state()?, state()?, state()?, state()?];
        let buffer = program.reserve(real, &[rows * all.width()])?;
        for part in all.parts() {
            let logits = all.logits(program, &buffer, part)?;
            let mut step = NativeStep::new(all.text(losses.dtype()), "join_logits");
            for state in &states {
                step = step.address(state).writes();
            }
            let step = step
                .address(&logits)
                .flat(all.index)
                .u64(all.loss.ignored.cast_unsigned())
                .u64(part.0)
                .u64(part.1)
                .u64(classes)
                .u64(rows)
                .over_blocks(rows);
            program.push(with_fault(step, program));
        }
        let step = NativeStep::new(all.text(losses.dtype()), "losses_of_rows")
            .flat(&losses)
            .writes()
            .flat(logarithms)
            .writes();
        let step = states.iter().fold(step, |step, state| step.address(state));
        let step = step
            .flat(all.index)
            .f64(all.loss.smoothing)
            .f64(all.loss.z_weight)
            .u64(all.loss.ignored.cast_unsigned())
            .u64(classes)
            .u64(rows);
        program.push(step.over(rows));
    }
    match is_each {
        true => Ok(()),
        false => reduce_losses(program, &all.loss, all.indexed(), &losses, to),
    }
}

/// Results of the gradients.
#[derive(Clone, Copy, Debug)]
pub struct LinearLossGradients<'a> {
    /// By the operand.
    pub x: &'a MemoryView,
    /// By the weight.
    pub weight: &'a MemoryView,
    /// By the bias.
    pub bias: &'a MemoryView,
}

/// Adds the gradients of [`losses`], of theirs and of the logarithms that they gave.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn losses_backward(
    program: &mut NativeProgram,
    all: &LinearLoss<'_>,
    [gradient, logarithms]: [&MemoryView; 2],
    to: LinearLossGradients<'_>,
) -> Result<()> {
    all.check()?;
    let (rows, classes, real) = (all.rows(), all.classes(), all.real());
    let (dtype, inputs) = (all.x.dtype(), all.x.shape()[1]);
    let is_each = all.loss.reduction == LossReduction::Each;
    let count = if is_each { rows } else { 1 };
    check(
        gradient.layout.len() == count && gradient.dtype() == dtype,
        || format!("a gradient {} of {count} losses", gradient.layout),
    )?;
    check(
        logarithms.layout.len() == rows && logarithms.dtype() == real,
        || format!("logarithms of {}", logarithms.layout),
    )?;
    let is_like = to.x.layout.len() == all.x.layout.len() && to.x.dtype() == dtype;
    check(is_like, || {
        format!("the operand's gradient is {}", to.x.layout)
    })?;
    to.weight
        .check("the weight's gradient", all.weight.shape(), dtype)?;
    to.bias.check("the bias's gradient", &[classes], dtype)?;
    if rows == 0 || classes == 0 {
        for result in [to.x, to.weight, to.bias] {
            copy::fill(program, result, 0);
        }
        return Ok(());
    }
    let counted = count_rows(program, &all.loss, all.indexed())?;
    let common = (!is_each).then_some(gradient);
    let width = all.width();
    let buffer = program.reserve(real, &[rows * width])?;
    let narrow = match real == dtype {
        true => buffer,
        false => program.reserve(dtype, &[rows * width])?,
    };
    let of_x = program.reserve(real, &[rows, inputs])?;
    let of_part = program.reserve(real, &[width * inputs])?;
    let text = all.text(dtype);
    let scaled = |program: &mut NativeProgram, from: &MemoryView, to: &MemoryView| {
        let count = to.layout.len();
        if count == 0 {
            return;
        }
        let step = NativeStep::new(text.clone(), "scale_sums")
            .flat(to)
            .writes()
            .address(from);
        let step = optional(optional(step, common), counted.as_ref());
        program.push(step.u64(count).over(count));
    };
    for (first, width) in all.parts() {
        let logits = all.logits(program, &buffer, (first, width))?;
        let own = matrix_in(&narrow, [rows, width])?;
        let step = NativeStep::new(text.clone(), "gradients_of_logits")
            .address(&own)
            .writes()
            .address(&logits)
            .flat(logarithms)
            .flat(all.index);
        let step = optional_flat(step, is_each.then_some(gradient))
            .f64(all.loss.smoothing)
            .f64(all.loss.z_weight)
            .u64(all.loss.ignored.cast_unsigned())
            .u64(first)
            .u64(width)
            .u64(classes)
            .u64(rows)
            .over_blocks(rows);
        program.push(with_fault(step, program));
        let part = first..first + width;
        // Each element of the sum is read before the same thread writes it.
        let epilogue = ProductEpilogue {
            residual: (first > 0).then_some(&of_x),
            ..ProductEpilogue::default()
        };
        let weight = all.weight.slice(0, part.clone(), 1)?;
        matrices(program, all.kernel(), [&own, &weight, &of_x], epilogue)?;
        let of_weight = matrix_in(&of_part, [width, inputs])?;
        let turned = own.permute(&[1, 0])?;
        let plain = ProductEpilogue::default();
        matrices(program, all.kernel(), [&turned, all.x, &of_weight], plain)?;
        scaled(program, &of_weight, &to.weight.slice(0, part.clone(), 1)?);
        let of_bias = to.bias.slice(0, part, 1)?;
        let step = NativeStep::new(text.clone(), "sum_columns")
            .flat(&of_bias)
            .writes()
            .address(&own);
        let step = optional(optional(step, common), counted.as_ref());
        let step = step.u64(width).u64(rows).over_blocks(width.div_ceil(32));
        program.push(step);
    }
    scaled(program, &of_x, to.x);
    Ok(())
}
