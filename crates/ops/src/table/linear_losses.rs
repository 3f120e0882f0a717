//! Rows of the cross-entropy of a linear layer's logits, which are never held all at once.

use fercuda_jit::TypeClass;
use fercuda_kernels::linear_loss::{self, LinearLoss, LinearLossGradients};
use fercuda_kernels::loss::LossReduction;
use fercuda_kernels::{MemoryView, NativeProgram, copy};
use fercuda_tensor::{Dtype, Layout};

use super::bounds::{last_place, stored, unit_roundoff};
use super::classes::{
    REDUCE, check_numbers, class_at, class_loss, log_sum, reduced_losses, row_loss,
};
use super::scalar::{total, whole_number};
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

fn is_backward(op: &OpParameters) -> bool {
    op.name().ends_with("_backward")
}

/// Number of the operand x.
fn first(op: &OpParameters) -> usize {
    2 * usize::from(is_backward(op))
}

fn real(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    }
}

/// Shape of the rows, and the number of classes.
fn check(op: &OpParameters, operands: &[Layout]) -> Result<(Vec<u64>, u64), Misfit> {
    check_numbers(op)?;
    let chunk = whole_number(op, "chunk")?;
    if chunk < 0 {
        let what = format!("a chunk of {chunk} classes");
        return Err(Misfit::new(what, "a number of classes, or 0"));
    }
    let [x, weight, index] = [0, 1, 2].map(|at| &operands[first(op) + at]);
    let (Some((inputs, rows)), &[classes, own]) = (x.shape().split_last(), weight.shape()) else {
        let what = format!("x is {:?}, weight {:?}", x.shape(), weight.shape());
        return Err(Misfit::new(
            what,
            "x[.., inputs] and weight[classes, inputs]",
        ));
    };
    if *inputs != own {
        let what = format!("x has {inputs} inputs, weight {own}");
        return Err(Misfit::new(what, "weight[classes, inputs]"));
    }
    if index.shape() != rows {
        let what = format!("the index is {:?}, not {rows:?}", index.shape());
        return Err(Misfit::new(what, "x's shape without the last dimension"));
    }
    if let Some(bias) = operands.get(first(op) + 3)
        && bias.shape() != [classes]
    {
        let what = format!("bias is {:?}", bias.shape());
        return Err(Misfit::new(
            what,
            format!("[{classes}], one for each class"),
        ));
    }
    Ok((rows.to_vec(), classes))
}

fn losses_shape(op: &OpParameters, rows: &[u64]) -> Vec<u64> {
    match class_loss(op).reduction {
        LossReduction::Each => rows.to_vec(),
        _ => Vec::new(),
    }
}

fn results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (rows, _) = check(op, operands)?;
    let dtype = operands[0].dtype();
    Ok(vec![(dtype, losses_shape(op, &rows)), (real(dtype), rows)])
}

fn gradient_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (rows, classes) = check(op, operands)?;
    let (g, logarithms, x) = (&operands[0], &operands[1], &operands[2]);
    let wanted = losses_shape(op, &rows);
    if g.shape() != wanted {
        let what = format!("the gradient is {:?}, not {wanted:?}", g.shape());
        return Err(Misfit::new(what, "the shape of the losses"));
    }
    if logarithms.shape() != rows || logarithms.dtype() != real(x.dtype()) {
        let what = format!("the logarithms are {logarithms}");
        return Err(Misfit::new(
            what,
            "the second result of linear_cross_entropy",
        ));
    }
    let like = |layout: &Layout| (layout.dtype(), layout.shape().to_vec());
    Ok(vec![
        like(x),
        like(&operands[3]),
        (x.dtype(), vec![classes]),
    ])
}

/// Rows as one dimension: as they lie, or of an operand as a copy.
fn matrix(
    program: &mut NativeProgram,
    view: &MemoryView,
) -> Result<MemoryView, fercuda_kernels::KernelError> {
    let inputs = view.shape().last().copied().unwrap_or_default();
    let rows = view.shape().iter().rev().skip(1).product();
    match view.reshape(&[rows, inputs]) {
        Ok(matrix) => Ok(matrix),
        Err(_) => copy::contiguous(program, view)?
            .reshape(&[rows, inputs])
            .map_err(Into::into),
    }
}

fn with_loss(
    op: &OpParameters,
    program: &mut NativeProgram,
    f: impl FnOnce(&mut NativeProgram, &LinearLoss<'_>) -> RowLowering,
) -> RowLowering {
    let [x, weight, index] = [0, 1, 2].map(|at| program.input(first(op) + at));
    let at = first(op) + 3;
    let bias = (program.operands() > at).then(|| program.input(at));
    let x = matrix(program, &x)?;
    let all = LinearLoss {
        x: &x,
        weight: &weight,
        bias: bias.as_ref(),
        index: &index,
        width: op.number_of("chunk") as u64,
        loss: class_loss(op),
    };
    f(program, &all)
}

fn lower(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [to, logarithms] = [0, 1].map(|at| program.output(at));
    with_loss(op, program, |program, all| {
        linear_loss::losses(program, all, &to, &logarithms)
    })
}

fn lower_backward(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [g, logarithms] = [0, 1].map(|at| program.input(at));
    let [x, weight, bias] = [0, 1, 2].map(|at| program.output(at));
    // The kernels write rows of one dimension, and number those of any view.
    with_loss(op, program, |program, all| {
        let to = LinearLossGradients {
            x: &x,
            weight: &weight,
            bias: &bias,
        };
        linear_loss::losses_backward(program, all, [&g, &logarithms], to)
    })
}

/// The logits of each row, with the largest error of them.
struct HostLogits {
    rows: Vec<Vec<f64>>,
    errors: Vec<f64>,
}

impl HostLogits {
    fn of(x: &[HostArray], unit: f64) -> Self {
        let (x, weight, bias) = (&x[0], &x[1], x.get(3));
        let inputs = weight.shape[1] as usize;
        let rows: usize = x.shape[..x.shape.len() - 1].iter().product::<u64>() as usize;
        let mut all = Self {
            rows: Vec::new(),
            errors: Vec::new(),
        };
        for row in 0..rows {
            let own = &x.values[row * inputs..][..inputs];
            let (mut logits, mut most) = (Vec::new(), 0.0f64);
            for class in 0..weight.shape[0] as usize {
                let by = &weight.values[class * inputs..][..inputs];
                let bias = bias.map_or(0.0, |bias| bias.values[class]);
                let terms = || own.iter().zip(by).map(|(a, b)| a * b);
                let size: f64 = terms().map(f64::abs).sum::<f64>() + bias.abs();
                logits.push(total(terms().chain([bias])));
                most = most.max(2.0 * (inputs as f64 + 4.0) * unit * size);
            }
            all.rows.push(logits);
            all.errors.push(most);
        }
        all
    }
}

fn expected(op: &OpParameters, x: &[HostArray], results: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let (dtype, loss) = (results[0].dtype(), class_loss(op));
    let unit = unit_roundoff(dtype);
    let all = HostLogits::of(x, unit);
    let mut counted = 0.0;
    let (mut losses, mut logarithms) = (Vec::new(), Vec::new());
    for ((row, off), index) in all.rows.iter().zip(&all.errors).zip(&x[2].values) {
        let (sum, error) = log_sum(row, unit);
        // Each part rounds the sum so far, with its factor.
        let error = 4.0 * error + 2.0 * off;
        logarithms.push(stored(real(dtype), sum, error));
        losses.push(match class_at(*index, &loss, row.len()) {
            Some(class) => {
                counted += 1.0;
                let (value, own) = row_loss(&loss, row, class, unit, None);
                let by_logits = (4.0 + 4.0 * (loss.z_weight * sum).abs()) * off;
                (value, 4.0 * own + by_logits)
            }
            None => (0.0, 0.0),
        });
    }
    let by = match loss.reduction {
        LossReduction::Mean => (counted, 0.0),
        _ => (1.0, 0.0),
    };
    vec![reduced_losses(dtype, &loss, losses, by), logarithms]
}

fn gradients_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (dtype, loss) = (results[0].dtype(), class_loss(op));
    let unit = unit_roundoff(dtype);
    let logits = HostLogits::of(&x[2..], unit);
    let (from, weight, index) = (&x[2], &x[3], &x[4]);
    let [classes, inputs] = [0, 1].map(|at| weight.shape[at] as usize);
    let class = |row: usize| class_at(index.values[row], &loss, classes);
    let counted = (0..logits.rows.len())
        .filter(|row| class(*row).is_some())
        .count() as f64;
    let is_each = loss.reduction == LossReduction::Each;
    let factor = match loss.reduction {
        LossReduction::Each => 1.0,
        LossReduction::Mean if counted == 0.0 => 0.0,
        LossReduction::Mean => x[0].values[0] / counted,
        LossReduction::Sum => x[0].values[0],
    };
    // Gradients of logits as they are stored, with their errors.
    let mut own = vec![(0.0, 0.0); logits.rows.len() * classes];
    for (row, all) in logits.rows.iter().enumerate() {
        let Some(chosen) = class(row) else { continue };
        let sum = x[1].values[row];
        let by = if is_each { x[0].values[row] } else { 1.0 };
        let even = loss.smoothing / classes as f64;
        let z = 2.0 * loss.z_weight * sum;
        for (at, logit) in all.iter().enumerate() {
            let share = (logit - sum).exp();
            let hit = if at == chosen {
                1.0 - loss.smoothing
            } else {
                0.0
            };
            let value = by * (share * (1.0 + z) - even - hit);
            let size = share * (1.0 + z.abs());
            let steps = 2.0 * logits.errors[row] + unit * (16.0 + 2.0 * (logit.abs() + sum.abs()));
            let error = by.abs() * (2.0 * size * steps + 8.0 * unit * (1.0 + size));
            let is_narrow = !matches!(dtype, Dtype::F32 | Dtype::F64);
            let rounded = if is_narrow {
                last_place(dtype) * (value.abs() + error)
            } else {
                0.0
            };
            let least = if is_narrow { f64::exp2(-24.0) } else { 0.0 };
            let error = error + rounded + least;
            // The neighbour of the largest one is infinite.
            let most = dtype.value(dtype.encode(f64::INFINITY) - 1);
            let is_known = value.abs() + error < most * (1.0 - 1e-3);
            let error = if is_known { error } else { f64::INFINITY };
            own[row * classes + at] = (value, error);
        }
    }
    let sum = |terms: &mut dyn Iterator<Item = ((f64, f64), f64)>| {
        let (mut sum, mut size, mut error, mut count) = (Vec::new(), 0.0, 0.0, 0.0);
        for ((value, off), by) in terms {
            sum.push(value * by);
            size += (value * by).abs();
            error += off * by.abs();
            count += 1.0;
        }
        let error = (error + 4.0 * (count + 8.0) * unit * size) * factor.abs();
        // An unknown one times 0.
        let error = if error.is_nan() { f64::INFINITY } else { error };
        stored(dtype, total(sum) * factor, error)
    };
    let rows = 0..logits.rows.len();
    let of_x = rows
        .clone()
        .flat_map(|row| (0..inputs).map(move |k| (row, k)));
    let of_x = of_x.map(|(row, k)| {
        let terms =
            (0..classes).map(|at| (own[row * classes + at], weight.values[at * inputs + k]));
        sum(&mut terms.into_iter())
    });
    let of_weight = (0..classes).flat_map(|at| (0..inputs).map(move |k| (at, k)));
    let of_weight = of_weight.map(|(at, k)| {
        let terms = rows
            .clone()
            .map(|row| (own[row * classes + at], from.values[row * inputs + k]));
        sum(&mut terms.into_iter())
    });
    let of_bias = (0..classes).map(|at| {
        let terms = rows.clone().map(|row| (own[row * classes + at], 1.0));
        sum(&mut terms.into_iter())
    });
    vec![of_x.collect(), of_weight.collect(), of_bias.collect()]
}

const LOGARITHMS: &[(&str, TypeClass)] = &[("logarithms", TypeClass::WideFloats)];

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Loss "linear_cross_entropy" ("x", "weight", "index", "bias") WideFloats
        { "smoothing": 0.0, "z_weight": 0.0, "ignore": -100.0, "chunk": 0.0 } []
        { optional: 1, choices: REDUCE, results: &["out", "logarithms"] }
        "cuda.linear_loss", results, lower, expected,
        "cross_entropy of the logits x weight^T + bias, by `chunk` classes at a time, which are never held all, and ln of the sum of e^x of each row, of f32 or f64"),
    native!(Loss "linear_cross_entropy_backward" ("g", "logarithms", "x", "weight", "index", "bias") WideFloats
        { "smoothing": 0.0, "z_weight": 0.0, "ignore": -100.0, "chunk": 0.0 } []
        { optional: 1, typed: LOGARITHMS, choices: REDUCE, results: &["x", "weight", "bias"] }
        "cuda.linear_loss", gradient_results, lower_backward, gradients_expected,
        "gradient of linear_cross_entropy by x, weight and bias, of the logarithms that it gave"),
];
