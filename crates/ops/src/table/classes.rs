//! Rows of losses by the class that an index in memory names, and of their gradients.
//!
//! A row has a loss and a gradient of 0 if its index is `ignore` or outside of the classes, and a
//! mean does not count it; a checked plan reports the second. The mean of no rows is NaN. With
//! weights of classes a row's loss has that of its class, each of the classes over which a part is
//! spread its own, and a mean is by the sum of the weights of the rows' classes.

use fercuda_jit::TypeClass;
use fercuda_kernels::NativeProgram;
use fercuda_kernels::ctc::{self, CtcViews};
use fercuda_kernels::loss::{self, ClassLoss, LossReduction};
use fercuda_tensor::{Dtype, Layout};

use super::along::first_axis;
use super::bounds::{stored, unit_roundoff};
use super::scalar::{total, whole_number};
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

pub(super) const REDUCE: &[(&str, &[&str])] = &[("reduce", &["mean", "sum", "none"])];

pub(super) fn class_loss(op: &OpParameters) -> ClassLoss {
    ClassLoss {
        is_logits: op.name().contains("cross_entropy"),
        smoothing: op.number_of("smoothing"),
        z_weight: op.number_of("z_weight"),
        ignored: op.number_of("ignore") as i64,
        reduction: match op.choice_of("reduce") {
            "mean" => LossReduction::Mean,
            "sum" => LossReduction::Sum,
            _ => LossReduction::Each,
        },
    }
}

/// Checks the numbers of a loss.
pub(super) fn check_numbers(op: &OpParameters) -> Result<(), Misfit> {
    whole_number(op, "ignore")?;
    let smoothing = op.number_of("smoothing");
    if !(0.0..=1.0).contains(&smoothing) {
        let what = format!("a smoothing of {smoothing}");
        return Err(Misfit::new(what, "a number from 0 to 1"));
    }
    let z_weight = op.number_of("z_weight");
    match (z_weight as f32).is_finite() {
        true => Ok(()),
        false => Err(Misfit::new(
            format!("a z_weight of {z_weight}"),
            "a number of f32",
        )),
    }
}

/// Checks the weights of classes along an axis, if they are there.
fn check_weights(weights: Option<&Layout>, x: &Layout, axis: usize) -> Result<(), Misfit> {
    let classes = x.shape()[axis];
    match weights {
        Some(weights) if weights.shape() != [classes] => {
            let what = format!("the weights are {:?}", weights.shape());
            Err(Misfit::new(
                what,
                format!("[{classes}], one for each class"),
            ))
        }
        _ => Ok(()),
    }
}

/// Shape of the losses of `x`.
fn losses_shape(
    op: &OpParameters,
    x: &Layout,
    index: &Layout,
) -> Result<(Vec<u64>, usize), Misfit> {
    check_numbers(op)?;
    let axis = op.axis_of(x.shape().len())?;
    let mut shape = x.shape().to_vec();
    shape.remove(axis);
    if index.shape() != shape {
        let what = format!("the index is {:?}, not {shape:?}", index.shape());
        return Err(Misfit::new(what, "x's shape without the axis"));
    }
    let shape = match class_loss(op).reduction {
        LossReduction::Each => shape,
        _ => Vec::new(),
    };
    Ok((shape, axis))
}

fn loss_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (shape, axis) = losses_shape(op, &operands[0], &operands[1])?;
    check_weights(operands.get(2), &operands[0], axis)?;
    Ok(vec![(operands[0].dtype(), shape)])
}

fn class_losses(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, index, to) = (program.input(0), program.input(1), program.output(0));
    let x = x.move_last(first_axis(op, x.shape().len()))?;
    let weights = (program.operands() > 2).then(|| program.input(2));
    loss::of_classes(
        program,
        &class_loss(op),
        [&x, &index, &to],
        weights.as_ref(),
    )
}

fn gradient_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (shape, axis) = losses_shape(op, &operands[1], &operands[2])?;
    check_weights(operands.get(3), &operands[1], axis)?;
    if operands[0].shape() != shape {
        let what = format!("the gradient is {:?}, not {shape:?}", operands[0].shape());
        return Err(Misfit::new(what, "the shape of the losses"));
    }
    Ok(vec![(operands[1].dtype(), operands[1].shape().to_vec())])
}

fn class_gradients(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [g, x, index] = [0, 1, 2].map(|at| program.input(at));
    let to = program.output(0);
    let axis = first_axis(op, x.shape().len());
    let (x, to) = (x.move_last(axis)?, to.move_last(axis)?);
    let weights = (program.operands() > 3).then(|| program.input(3));
    let views = [&g, &x, &index, &to];
    loss::of_classes_backward(program, &class_loss(op), views, weights.as_ref())
}

/// The elements of `x` along an axis, by the number of the row, with the places of the elements.
fn rows_along(x: &HostArray, axis: usize) -> Vec<(Vec<usize>, Vec<f64>)> {
    let product = |shape: &[u64]| shape.iter().product::<u64>() as usize;
    let (outer, inner) = (product(&x.shape[..axis]), product(&x.shape[axis + 1..]));
    let len = x.shape[axis] as usize;
    let pairs = (0..outer).flat_map(|a| (0..inner).map(move |b| (a, b)));
    let row = |(a, b)| {
        let places: Vec<usize> = (0..len).map(|n| (a * len + n) * inner + b).collect();
        let values = places.iter().map(|at| x.values[*at]).collect();
        (places, values)
    };
    pairs.map(row).collect()
}

/// ln of the sum of e^x, and its error.
pub(super) fn log_sum(row: &[f64], unit: f64) -> (f64, f64) {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY {
        return (most, 0.0);
    }
    let sum = most + total(row.iter().map(|x| (x - most).exp())).ln();
    let terms = row.len() as f64;
    (
        sum,
        unit * (2.0 * terms + 16.0 + 2.0 * sum.abs() + 2.0 * most.abs()),
    )
}

pub(super) fn class_at(index: f64, loss: &ClassLoss, classes: usize) -> Option<usize> {
    let is_class = index >= 0.0 && index < classes as f64 && index != loss.ignored as f64;
    is_class.then_some(index as usize)
}

/// The loss of a row, and its error; with weights of classes, or none.
pub(super) fn row_loss(
    loss: &ClassLoss,
    row: &[f64],
    class: usize,
    unit: f64,
    weights: Option<&[f64]>,
) -> (f64, f64) {
    let weight = |at: usize| weights.map_or(1.0, |weights| weights[at]);
    let own = weight(class);
    if !loss.is_logits {
        return (-row[class] * own, 2.0 * unit * (row[class] * own).abs());
    }
    let (sum, error) = log_sum(row, unit);
    let apart: Vec<f64> = row.iter().map(|x| sum - x).collect();
    let (terms, size) = (row.len() as f64, sum.abs() + row[class].abs());
    let spread = apart.iter().enumerate();
    let spread = spread.map(|(at, x)| weight(at).abs() * (x.abs() + sum.abs() + error / unit));
    let spread = spread.sum::<f64>() / terms;
    let even = apart.iter().enumerate().map(|(at, x)| weight(at) * x);
    let even = total(even) / terms;
    let s = loss.smoothing;
    let of_class = (1.0 - s) * apart[class] + loss.z_weight * sum * sum;
    let squared = loss.z_weight.abs() * sum.abs() * (2.0 * error + 4.0 * unit * sum.abs());
    let near = (1.0 - s) * (error + 4.0 * unit * size) + squared + 2.0 * unit * of_class.abs();
    let value = own * of_class + s * even;
    (value, own.abs() * near + s * (terms + 4.0) * unit * spread)
}

/// What a mean is divided by: the number of counted rows, or the sum of the weights of their
/// classes; with its error.
fn divisor(
    loss: &ClassLoss,
    classes: impl Iterator<Item = usize>,
    unit: f64,
    weights: Option<&[f64]>,
) -> (f64, f64) {
    if loss.reduction != LossReduction::Mean {
        return (1.0, 0.0);
    }
    let Some(weights) = weights else {
        return (classes.count() as f64, 0.0);
    };
    let all: Vec<f64> = classes.map(|class| weights[class]).collect();
    let size: f64 = all.iter().map(|weight| weight.abs()).sum();
    (total(all.iter().copied()), unit * all.len() as f64 * size)
}

fn losses_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (dtype, loss) = (results[0].dtype(), class_loss(op));
    let unit = unit_roundoff(dtype);
    let axis = first_axis(op, x[0].shape.len());
    let rows = rows_along(&x[0], axis);
    let weights = x.get(2).map(|weights| weights.values.as_slice());
    let class = |(at, index): (usize, &f64)| class_at(*index, &loss, rows[at].1.len());
    let classes: Vec<_> = x[1].values.iter().enumerate().map(class).collect();
    let one = |((_, row), class): (&(Vec<usize>, Vec<f64>), &Option<usize>)| {
        let loss = class.map(|class| row_loss(&loss, row, class, unit, weights));
        loss.unwrap_or_default()
    };
    let losses: Vec<(f64, f64)> = rows.iter().zip(&classes).map(one).collect();
    let by = divisor(&loss, classes.into_iter().flatten(), unit, weights);
    vec![reduced_losses(dtype, &loss, losses, by)]
}

/// Losses of rows with their errors, reduced, and divided by a number with its error for a mean.
pub(super) fn reduced_losses(
    dtype: Dtype,
    loss: &ClassLoss,
    losses: Vec<(f64, f64)>,
    (by, off): (f64, f64),
) -> Vec<ExpectedElement> {
    let unit = unit_roundoff(dtype);
    let near = |(value, error): (f64, f64)| stored(dtype, value, error + 2.0 * unit * value.abs());
    if loss.reduction == LossReduction::Each {
        return losses.into_iter().map(near).collect();
    }
    let sum = total(losses.iter().map(|(value, _)| *value));
    let steps = unit * losses.len() as f64;
    let errors = losses
        .iter()
        .map(|(value, error)| error + steps * value.abs());
    let least = by.abs() - off;
    if least <= 0.0 && off > 0.0 {
        return vec![(sum / by, f64::INFINITY)];
    }
    let error = (errors.sum::<f64>() + (sum / by).abs() * off) / least;
    vec![near((sum / by, error))]
}

fn gradients_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (dtype, loss) = (results[0].dtype(), class_loss(op));
    let unit = unit_roundoff(dtype);
    let axis = first_axis(op, x[1].shape.len());
    let rows = rows_along(&x[1], axis);
    let weights = x.get(3).map(|weights| weights.values.as_slice());
    let weight = |at: usize| weights.map_or(1.0, |weights| weights[at]);
    let class = |(at, index): (usize, &f64)| class_at(*index, &loss, rows[at].1.len());
    let classes: Vec<_> = x[2].values.iter().enumerate().map(class).collect();
    let (by, off) = divisor(&loss, classes.iter().flatten().copied(), unit, weights);
    let mut all = vec![(0.0, 0.0); x[1].values.len()];
    for (number, ((places, row), class)) in rows.iter().zip(&classes).enumerate() {
        let Some(class) = *class else { continue };
        let g = match loss.reduction {
            LossReduction::Each => x[0].values[number],
            _ => x[0].values[0] / by,
        };
        let (sum, error) = log_sum(row, unit);
        let (terms, own) = (row.len() as f64, weight(class));
        let spread = total((0..row.len()).map(weight)) / terms;
        let spread_size = (0..row.len()).map(|at| weight(at).abs()).sum::<f64>() / terms;
        for (at, (place, value)) in places.iter().zip(row).enumerate() {
            let hit = f64::from(u8::from(at == class));
            let (value, error) = if loss.is_logits {
                let share = (value - sum).exp();
                let z = 2.0 * loss.z_weight * sum;
                let s = loss.smoothing;
                let factor = own * (1.0 - s + z) + s * spread;
                let size = own.abs() * (1.0 + z.abs()) + s * spread_size;
                let steps = error + unit * (16.0 + 2.0 * (value.abs() + sum.abs()));
                let steps = steps + unit * s * terms;
                let of_sum = 2.0 * share * own.abs() * loss.z_weight.abs() * error;
                let others = own.abs() + weight(at).abs() + share * size;
                let error = share * size * steps + of_sum + 4.0 * unit * others;
                let even = s * weight(at) / terms;
                (share * factor - even - hit * own * (1.0 - s), error)
            } else {
                (-hit * own, 0.0)
            };
            let least = by.abs() - off;
            let error = match off > 0.0 {
                true if least <= 0.0 => f64::INFINITY,
                true => error + off / least * (value.abs() + error),
                false => error,
            };
            let error = g.abs() * (error + 4.0 * unit * value.abs());
            let error = if error.is_nan() { f64::INFINITY } else { error };
            all[*place] = stored(dtype, g * value, error);
        }
    }
    vec![all]
}

// Connectionist temporal classification.

fn ctc_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let [x, labels, lengths, label_lengths] = [0, 1, 2, 3].map(|at| operands[at].shape());
    let (&[_, samples, classes], &[rows, _]) = (x, labels) else {
        let what = format!("{x:?} by labels {labels:?}");
        return Err(Misfit::new(
            what,
            "[steps, samples, classes] by [samples, labels]",
        ));
    };
    let are_each = rows == samples && lengths == [samples] && label_lengths == [samples];
    if !are_each {
        let what = format!("{labels:?}, {lengths:?} and {label_lengths:?} of {samples} samples");
        return Err(Misfit::new(what, "one row and one length for each sample"));
    }
    let blank = whole_number(op, "blank")?;
    if !u64::try_from(blank).is_ok_and(|blank| blank < classes) {
        let what = format!("a blank of {blank} in {classes} classes");
        return Err(Misfit::new(what, "a class"));
    }
    Ok(vec![(operands[0].dtype(), vec![samples])])
}

fn ctc(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let views = CtcViews {
        x: program.input(0),
        labels: program.input(1),
        lengths: program.input(2),
        label_lengths: program.input(3),
        to: program.output(0),
    };
    ctc::losses(program, &views, op.number_of("blank") as u64)
}

fn ctc_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (dtype, blank) = (results[0].dtype(), op.number_of("blank") as u64);
    let [steps, samples, classes] = [0, 1, 2].map(|at| x[0].shape[at]);
    let most = x[1].shape[1];
    let one = |sample: u64| {
        let (length, count) = (x[2].values[sample as usize], x[3].values[sample as usize]);
        let is_within = |value: f64, most: u64| value >= 0.0 && value <= most as f64;
        if !is_within(length, steps) || !is_within(count, most) {
            return (0.0, 0.0);
        }
        let labels: Vec<f64> = (0..count as u64).map(|at| x[1].at(&[sample, at])).collect();
        if labels.iter().any(|it| *it < 0.0 || *it >= classes as f64) {
            return (0.0, 0.0);
        }
        // Labels with blanks before, between and behind.
        let mut states = vec![blank];
        labels
            .iter()
            .for_each(|label| states.extend([*label as u64, blank]));
        let start = |state: usize| if state == 0 { 0.0 } else { f64::NEG_INFINITY };
        let mut before: Vec<f64> = (0..states.len()).map(start).collect();
        let mut error = 0.0;
        for t in 0..length as u64 {
            let mut largest = 0.0f64;
            let after = states.iter().enumerate().map(|(state, class)| {
                let skips = state > 1 && state % 2 == 1 && states[state - 2] != *class;
                // A first step begins with the first label as well as with the blank.
                let from = state.saturating_sub(if skips || t == 0 && state == 1 { 2 } else { 1 });
                let value = log_sum(&before[from..=state], 0.0).0 + x[0].at(&[t, sample, *class]);
                if value.is_finite() {
                    largest = largest.max(value.abs());
                }
                value
            });
            before = after.collect();
            error += unit_roundoff(dtype) * (16.0 + 4.0 * largest);
        }
        let last = &before[before.len().saturating_sub(2)..];
        let loss = match length as u64 {
            0 if labels.is_empty() => 0.0,
            0 => f64::INFINITY,
            _ => -log_sum(last, 0.0).0,
        };
        stored(
            dtype,
            loss,
            2.0 * error + unit_roundoff(dtype) * (16.0 + 4.0 * loss.abs()),
        )
    };
    vec![(0..samples).map(one).collect()]
}

const LENGTHS: &[(&str, TypeClass)] = &[
    ("lengths", TypeClass::Integers),
    ("label_lengths", TypeClass::Integers),
];

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Loss "cross_entropy" ("x", "index", "weights") Floats
        { "smoothing": 0.0, "z_weight": 0.0, "ignore": -100.0 } ["axis"]
        { optional: 1, choices: REDUCE }
        "cuda.loss", loss_results, class_losses, losses_expected,
        "cross-entropy of logits with the class of an index, of which `smoothing` is spread over all classes, and z_weight ln(sum of e^x)^2"),
    native!(Loss "cross_entropy_backward" ("g", "x", "index", "weights") Floats
        { "smoothing": 0.0, "z_weight": 0.0, "ignore": -100.0 } ["axis"]
        { optional: 1, choices: REDUCE }
        "cuda.loss", gradient_results, class_gradients, gradients_expected,
        "gradient of cross_entropy at the logits x"),
    native!(Loss "nll_loss" ("x", "index", "weights") Floats { "ignore": -100.0 } ["axis"]
        { optional: 1, choices: REDUCE }
        "cuda.loss", loss_results, class_losses, losses_expected,
        "negative of the logarithm x of the probability of the class of an index"),
    native!(Loss "nll_loss_backward" ("g", "x", "index", "weights") Floats { "ignore": -100.0 } ["axis"]
        { optional: 1, choices: REDUCE }
        "cuda.loss", gradient_results, class_gradients, gradients_expected,
        "gradient of nll_loss at x"),
    native!(Loss "ctc_loss" ("x", "index", "lengths", "label_lengths") Floats { "blank": 0.0 } []
        { typed: LENGTHS }
        "cuda.ctc", ctc_results, ctc, ctc_expected,
        "connectionist temporal classification of x[steps, samples, classes], logarithms of probabilities, by index[samples, labels]; 0 where a length or a label is outside"),
];
