//! Rows of norms over groups of elements, and of the gradients of all norms.
//!
//! Each is one rule: the elements of a group are normalised together, those of a channel have a
//! weight together. A gradient computes the statistics again, so a forward pass keeps nothing.

use fercuda_kernels::norm::{self, NormGradients, NormSpec, NormStatistics};
use fercuda_kernels::{MemoryView, NativeProgram};
use fercuda_tensor::Layout;

use super::along::{by_rows, first_axis};
use super::approx::{Approx, ApproxType};
use super::bounds::{stored, unit_roundoff};
use super::scalar::{total, whole_number};
use crate::arrays::{HostArray, indices};
use crate::parameters::{Misfit, OpParameters};
use crate::row::OpOracle::Rows;
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native, op};

/// The shape in which groups and channels are dimensions, and the rule over it.
struct GroupRule {
    shape: Vec<u64>,
    spec: NormSpec,
    channels: u64,
}

/// The rule of an op for an operand of that shape.
fn group_rule(op: &OpParameters, shape: &[u64]) -> Result<GroupRule, Misfit> {
    let eps = op.number_of("eps");
    if !(eps as f32).is_finite() {
        let what = format!("an eps of {eps}");
        return Err(Misfit::new(what, "a number of f32"));
    }
    let name = op.name().trim_end_matches("_backward");
    let rank = shape.len();
    let rule = |shape: &[u64], groups: Vec<usize>, channels: Vec<usize>| GroupRule {
        channels: channels.iter().map(|at| shape[*at]).product(),
        shape: shape.to_vec(),
        spec: NormSpec {
            groups,
            channels,
            is_centred: name != "rms_norm",
            is_scaled: true,
            eps,
        },
    };
    if matches!(name, "layer_norm" | "rms_norm") {
        let axis = op.axis_of(rank)?;
        let others = (0..rank).filter(|at| *at != axis).collect();
        return Ok(rule(shape, others, vec![axis]));
    }
    let [batch, channels, space @ ..] = shape else {
        let what = format!("x is {shape:?}");
        return Err(Misfit::new(what, "batch, channels and dimensions of space"));
    };
    match name {
        "instance_norm" => Ok(rule(shape, vec![0, 1], vec![1])),
        "group_norm" => {
            let groups = whole_number(op, "groups")?;
            let parted = u64::try_from(groups).ok();
            let parted = parted.filter(|groups| *groups > 0 && channels.is_multiple_of(*groups));
            let Some(groups) = parted.filter(|_| rank < fercuda_tensor::MAX_RANK) else {
                let what = format!("{groups} groups of {channels} channels in {shape:?}");
                let hint = "a number that divides the channels, in up to 7 dimensions";
                return Err(Misfit::new(what, hint));
            };
            let parted = [&[*batch, groups, channels / groups], space].concat();
            Ok(rule(&parted, vec![0, 1], vec![1, 2]))
        }
        _ => Ok(rule(shape, vec![1], vec![1])),
    }
}

fn is_given(op: &OpParameters) -> bool {
    op.name().starts_with("batch_norm_inference")
}

fn is_backward(op: &OpParameters) -> bool {
    op.name().ends_with("_backward")
}

/// The number of the operand that is normalised, and of the first weight.
fn places(op: &OpParameters) -> (usize, usize) {
    let x = usize::from(is_backward(op));
    (x, x + if is_given(op) { 3 } else { 1 })
}

fn results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (at, _) = places(op);
    let x = &operands[at];
    let rule = group_rule(op, x.shape())?;
    if is_backward(op) && operands[0].shape() != x.shape() {
        let what = format!("g is {:?}, x {:?}", operands[0].shape(), x.shape());
        return Err(Misfit::new(what, "the gradient in the shape of x"));
    }
    for vector in &operands[at + 1..] {
        if vector.shape() != [rule.channels] {
            let what = format!("a vector is {:?}", vector.shape());
            let hint = format!("one number for each of {} channels", rule.channels);
            return Err(Misfit::new(what, hint));
        }
    }
    let (dtype, vector) = (x.dtype(), vec![rule.channels]);
    let mut all = vec![(dtype, x.shape().to_vec())];
    let statistics = op.name() == "batch_norm";
    let vectors = match is_backward(op) {
        true if rule.spec.is_centred => 2,
        true => 1,
        false if statistics => 2,
        false => 0,
    };
    all.extend((0..vectors).map(|_| (dtype, vector.clone())));
    Ok(all)
}

fn lower(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (at, first) = places(op);
    let given = program.operands();
    let x = program.input(at);
    // The results' rule has accepted it.
    let Ok(GroupRule { shape, spec, .. }) = group_rule(op, x.shape()) else {
        return Ok(());
    };
    let (x, to) = (x.reshape(&shape)?, program.output(0).reshape(&shape)?);
    let weight = |program: &NativeProgram, number: usize| {
        (first + number < given).then(|| program.input(first + number))
    };
    let [gamma, beta]: [Option<MemoryView>; 2] = [0, 1].map(|number| weight(program, number));
    let statistics = is_given(op).then(|| [program.input(at + 1), program.input(at + 2)]);
    let statistics = statistics.as_ref();
    let computed = NormStatistics::Computed;
    let statistics = statistics.map_or(computed, |[mean, by]| NormStatistics::Given([mean, by]));
    if is_backward(op) {
        let gradient = program.input(0).reshape(&shape)?;
        let of_gamma = program.output(1);
        let of_beta = spec.is_centred.then(|| program.output(2));
        let results = NormGradients {
            x: &to,
            gamma: &of_gamma,
            beta: of_beta.as_ref(),
        };
        let both = [&gradient, &x];
        return norm::normalise_backward(program, &spec, both, gamma.as_ref(), statistics, results);
    }
    let written = (op.name() == "batch_norm").then(|| [program.output(1), program.output(2)]);
    let statistics = match &written {
        Some([mean, variance]) => NormStatistics::Written([mean, variance]),
        None => statistics,
    };
    let weights = [gamma.as_ref(), beta.as_ref()];
    norm::normalise(program, &spec, [&x, &to], weights, statistics)
}

/// Numbers of each element's group and channel, and how many there are.
struct Numbers {
    group: Vec<usize>,
    channel: Vec<usize>,
    groups: usize,
    channels: usize,
}

impl Numbers {
    fn of(rule: &GroupRule) -> Self {
        let number = |index: &[u64], dimensions: &[usize]| {
            let join = |number: u64, at: &usize| number * rule.shape[*at] + index[*at];
            dimensions.iter().fold(0, join) as usize
        };
        let count = |dimensions: &[usize]| {
            let extents = dimensions.iter().map(|at| rule.shape[*at]);
            extents.product::<u64>() as usize
        };
        let all = indices(&rule.shape);
        let spec = &rule.spec;
        Self {
            group: all.iter().map(|it| number(it, &spec.groups)).collect(),
            channel: all.iter().map(|it| number(it, &spec.channels)).collect(),
            groups: count(&spec.groups),
            channels: count(&spec.channels),
        }
    }
}

/// Values by their numbers.
fn parted(values: &[Approx], numbers: &[usize], count: usize) -> Vec<Vec<Approx>> {
    let mut all = vec![Vec::new(); count];
    for (value, number) in values.iter().zip(numbers) {
        all[*number].push(*value);
    }
    all
}

/// The means of groups.
fn means(real: ApproxType, values: &[Approx], numbers: &[usize], count: usize) -> Vec<Approx> {
    let groups = parted(values, numbers, count).into_iter();
    let mean = |group: Vec<Approx>| {
        let count = group.len() as f64;
        real.sum(group) / real.number(count)
    };
    groups.map(mean).collect()
}

fn expected(op: &OpParameters, x: &[HostArray], layouts: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let (at, first) = places(op);
    let dtype = layouts[0].dtype();
    let real = ApproxType::of(dtype);
    let Ok(rule) = group_rule(op, &x[at].shape) else {
        return Vec::new();
    };
    let numbers = Numbers::of(&rule);
    let exact = |array: &HostArray| -> Vec<Approx> {
        array
            .values
            .iter()
            .map(|value| real.exact(*value))
            .collect()
    };
    let own = exact(&x[at]);
    let (means_of_groups, variances) = match (is_given(op), rule.spec.is_centred) {
        (true, _) => (exact(&x[at + 1]), exact(&x[at + 2])),
        (false, is_centred) => {
            let means_of_groups = match is_centred {
                true => means(real, &own, &numbers.group, numbers.groups),
                false => vec![real.exact(0.0); numbers.groups],
            };
            let squares = own.iter().zip(&numbers.group).map(|(x, group)| {
                let centred = match is_centred {
                    true => *x - means_of_groups[*group],
                    false => *x,
                };
                centred * centred
            });
            let squares: Vec<Approx> = squares.collect();
            let variances = means(real, &squares, &numbers.group, numbers.groups);
            (means_of_groups, variances)
        }
    };
    let eps = real.number(rule.spec.eps);
    let factors = variances.iter();
    let factors: Vec<Approx> = factors
        .map(|variance| real.exact(1.0) / (*variance + eps).sqrt())
        .collect();
    let normed = own.iter().zip(&numbers.group);
    let normed: Vec<Approx> = normed
        .map(|(x, group)| (*x - means_of_groups[*group]) * factors[*group])
        .collect();
    let weight = |number: usize| x.get(first + number).map(exact);
    let stored = |values: Vec<Approx>| values.into_iter().map(|it| it.stored(dtype)).collect();
    let gamma = weight(0);
    let by_gamma = |values: &[Approx]| -> Vec<Approx> {
        let values = values.iter().zip(&numbers.channel);
        let by = |(value, channel): (&Approx, &usize)| match &gamma {
            Some(gamma) => *value * gamma[*channel],
            None => *value,
        };
        values.map(by).collect()
    };
    if is_backward(op) {
        let g = exact(&x[0]);
        let all = NormParts {
            real,
            rule: &rule,
            numbers: &numbers,
            normed,
            factors,
        };
        return all
            .gradients(&g, &by_gamma(&g), is_given(op))
            .into_iter()
            .map(stored)
            .collect();
    }
    let mut values = by_gamma(&normed);
    if let Some(beta) = weight(1) {
        for (value, channel) in values.iter_mut().zip(&numbers.channel) {
            *value = *value + beta[*channel];
        }
    }
    match op.name() {
        "batch_norm" => vec![stored(values), stored(means_of_groups), stored(variances)],
        _ => vec![stored(values)],
    }
}

/// What gradients of norms are made of.
struct NormParts<'a> {
    real: ApproxType,
    rule: &'a GroupRule,
    numbers: &'a Numbers,
    normed: Vec<Approx>,
    factors: Vec<Approx>,
}

impl NormParts<'_> {
    /// By the operand, gamma and beta, of the gradient and of its product with gamma.
    fn gradients(&self, g: &[Approx], by_gamma: &[Approx], is_given: bool) -> Vec<Vec<Approx>> {
        let (real, numbers) = (self.real, self.numbers);
        let times = |a: &[Approx]| -> Vec<Approx> {
            a.iter().zip(&self.normed).map(|(a, b)| *a * *b).collect()
        };
        let zeros = || vec![real.exact(0.0); numbers.groups];
        let mean = |values: &[Approx]| means(real, values, &numbers.group, numbers.groups);
        let along = if is_given {
            zeros()
        } else {
            mean(&times(by_gamma))
        };
        let sums = match is_given || !self.rule.spec.is_centred {
            true => zeros(),
            false => mean(by_gamma),
        };
        let of_x = by_gamma.iter().zip(&self.normed).zip(&numbers.group);
        let of_x = of_x.map(|((g, normed), group)| {
            self.factors[*group] * (*g - sums[*group] - *normed * along[*group])
        });
        let by_channel = |values: &[Approx]| -> Vec<Approx> {
            let parts = parted(values, &numbers.channel, numbers.channels);
            parts.into_iter().map(|part| real.sum(part)).collect()
        };
        let mut all = vec![of_x.collect(), by_channel(&times(g))];
        if self.rule.spec.is_centred {
            all.push(by_channel(g));
        }
        all
    }
}

// Sparsemax.

fn sparse_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    op.axis_of(operands[0].shape().len())?;
    Ok(vec![(operands[0].dtype(), operands[0].shape().to_vec())])
}

fn sparse(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    let axis = first_axis(op, x.shape().len());
    norm::sparsemax(program, &x.move_last(axis)?, &to.move_last(axis)?)
}

fn sparse_expected(
    op: &OpParameters,
    x: &[HostArray],
    layouts: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = layouts[0].dtype();
    let axis = first_axis(op, x[0].shape.len());
    let all = by_rows(&x[0], axis, x[0].shape[axis] as usize, |row| {
        let mut order = row.to_vec();
        order.sort_by(|a, b| b.total_cmp(a));
        // The longest beginning of them that is above its own threshold.
        let (mut sum, mut threshold) = (0.0, f64::NAN);
        for (at, value) in order.iter().enumerate() {
            sum += value;
            let own = (sum - 1.0) / (at + 1) as f64;
            if *value > own {
                threshold = own;
            }
        }
        let size = row.iter().fold(1.0, |most: f64, x| most.max(x.abs()));
        let error = 8.0 * (row.len() as f64 + 8.0) * unit_roundoff(dtype) * size;
        let stored = |x: &f64| stored(dtype, (x - threshold).max(0.0), error);
        row.iter().map(stored).collect()
    });
    vec![all]
}

const OF_ALL: &[&str] = &["x", "gamma", "beta"];

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Normalisation "layer_norm_backward" ("g", "x", "gamma") Floats { "eps": 1e-5 } ["axis"]
        { optional: 1, results: OF_ALL }
        "cuda.norm", results, lower, expected, "gradient of layer_norm by x, gamma and beta"),
    native!(Normalisation "rms_norm_backward" ("g", "x", "gamma") Floats { "eps": 1e-5 } ["axis"]
        { optional: 1, results: &["x", "gamma"] }
        "cuda.norm", results, lower, expected, "gradient of rms_norm by x and gamma"),
    native!(Normalisation "group_norm" ("x", "gamma", "beta") Floats { "groups": 1.0, "eps": 1e-5 } []
        { optional: 2 }
        "cuda.norm", results, lower, expected,
        "(x - mean) / √(variance + eps) gamma + beta of x[batch, channels, ..], of groups of channels"),
    native!(Normalisation "group_norm_backward" ("g", "x", "gamma") Floats { "groups": 1.0, "eps": 1e-5 } []
        { optional: 1, results: OF_ALL }
        "cuda.norm", results, lower, expected, "gradient of group_norm by x, gamma and beta"),
    native!(Normalisation "instance_norm" ("x", "gamma", "beta") Floats { "eps": 1e-5 } []
        { optional: 2 }
        "cuda.norm", results, lower, expected, "group_norm of each channel by itself"),
    native!(Normalisation "instance_norm_backward" ("g", "x", "gamma") Floats { "eps": 1e-5 } []
        { optional: 1, results: OF_ALL }
        "cuda.norm", results, lower, expected, "gradient of instance_norm by x, gamma and beta"),
    native!(Normalisation "batch_norm" ("x", "gamma", "beta") Floats { "eps": 1e-5 } []
        { optional: 2, results: &["out", "mean", "variance"] }
        "cuda.norm", results, lower, expected,
        "(x - mean) / √(variance + eps) gamma + beta of x[batch, channels, ..], of each channel, and its statistics: the variance of all elements, without correction"),
    native!(Normalisation "batch_norm_backward" ("g", "x", "gamma") Floats { "eps": 1e-5 } []
        { optional: 1, results: OF_ALL }
        "cuda.norm", results, lower, expected, "gradient of batch_norm by x, gamma and beta"),
    native!(Normalisation "batch_norm_inference" ("x", "mean", "variance", "gamma", "beta") Floats { "eps": 1e-5 } []
        { optional: 2 }
        "cuda.norm", results, lower, expected, "batch_norm by given statistics of the channels"),
    native!(Normalisation "batch_norm_inference_backward" ("g", "x", "mean", "variance", "gamma") Floats { "eps": 1e-5 } []
        { optional: 1, results: OF_ALL }
        "cuda.norm", results, lower, expected,
        "gradient of batch_norm_inference by x, gamma and beta"),
    native!(Normalisation "sparsemax" ("x") Floats {} ["axis"] {}
        "cuda.norm", sparse_results, sparse, sparse_expected,
        "the nearest point to x along an axis whose elements are not negative and have the sum 1"),
    op!(Normalisation "sparsemax_backward" ("g", "y") Floats {}
        "k = sum(select(y > 0, y * 0 + 1, y * 0), axis=[{axis}], keep=true); \
         select(y > 0, g - sum(select(y > 0, g, g * 0), axis=[{axis}], keep=true) / max(k, 1), g * 0)",
        Rows(|x, _| {
            let kept = x[0].iter().zip(&x[1]).filter(|(_, y)| **y > 0.0);
            let kept: Vec<f64> = kept.map(|(g, _)| *g).collect();
            let even = total(kept.iter().copied()) / kept.len().max(1) as f64;
            let pairs = x[0].iter().zip(&x[1]);
            pairs.map(|(g, y)| if *y > 0.0 { g - even } else { g * 0.0 }).collect()
        }), "gradient of sparsemax by its result y"),
];
