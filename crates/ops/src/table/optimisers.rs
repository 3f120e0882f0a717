//! Rows of updates of parameters by their gradients, norms of gradients, and scales of losses.
//!
//! State, the learning rate and a norm are f32, for parameters of f64 f64. The rate and the number
//! of the step, from 1 on, are operands: one plan, or one captured graph, serves all steps.

use fercuda_jit::TypeClass;
use fercuda_kernels::NativeProgram;
use fercuda_kernels::optimise::{
    self, FactoredNumbers, UpdateNumbers, UpdateRule, UpdateViews, state_type,
};
use fercuda_tensor::{Dtype, Layout};

use super::approx::{Approx, ApproxType};
use super::scalar::whole_number;
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

const TYPED: &[(&str, TypeClass)] = &[
    ("velocity", TypeClass::Floats),
    ("mean", TypeClass::Floats),
    ("square", TypeClass::Floats),
    ("rows", TypeClass::Floats),
    ("columns", TypeClass::Floats),
    ("rate", TypeClass::Floats),
    ("norm", TypeClass::Floats),
    ("scale", TypeClass::Floats),
    ("step", TypeClass::Integers),
    ("streak", TypeClass::Integers),
    ("found", TypeClass::Bool),
];

/// The op by which each tensor of many is updated.
fn one_of_many(op: &OpParameters) -> &'static str {
    op.name().trim_start_matches("multi_")
}

fn rule(op: &OpParameters) -> UpdateRule {
    match one_of_many(op) {
        "sgd" => UpdateRule::Sgd,
        "sgd_momentum" => UpdateRule::Momentum,
        "adam" => UpdateRule::Adam,
        "adamw" => UpdateRule::AdamDecoupled,
        "lion" => UpdateRule::Lion,
        _ => UpdateRule::Lamb,
    }
}

fn numbers(op: &OpParameters) -> UpdateNumbers {
    let beta1 = match one_of_many(op) {
        "sgd_momentum" => "momentum",
        _ => "beta1",
    };
    UpdateNumbers {
        beta1: op.number_of(beta1),
        beta2: op.number_of("beta2"),
        eps: op.number_of("eps"),
        decay: op.number_of("decay"),
        dampening: op.number_of("dampening"),
        is_nesterov: op.choice_of("nesterov") == "on",
    }
}

fn check_numbers(op: &OpParameters) -> Result<(), Misfit> {
    let wrong = op
        .numbers()
        .into_iter()
        .find(|it| !(*it as f32).is_finite());
    match wrong {
        Some(value) => Err(Misfit::new(
            format!("a number of {value}"),
            "numbers of f32",
        )),
        None => Ok(()),
    }
}

fn check_layout(layout: &Layout, what: &str, dtype: Dtype, shape: &[u64]) -> Result<(), Misfit> {
    match layout.dtype() == dtype && layout.shape() == shape {
        true => Ok(()),
        false => {
            let what = format!("{what} is {layout}, not {dtype}{shape:?}");
            Err(Misfit::new(
                what,
                "state, rate and norm of f32, of f64 for f64",
            ))
        }
    }
}

fn check_number(layout: &Layout, what: &str) -> Result<(), Misfit> {
    check_layout(layout, what, layout.dtype(), &[])
}

fn update_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    check_numbers(op)?;
    let (x, states) = (&operands[0], rule(op).states());
    let state = state_type(x.dtype());
    check_layout(&operands[1], "the gradient", x.dtype(), x.shape())?;
    let mut results = vec![(x.dtype(), x.shape().to_vec())];
    for layout in &operands[2..2 + states] {
        check_layout(layout, "a state", state, x.shape())?;
        results.push((state, x.shape().to_vec()));
    }
    check_layout(&operands[2 + states], "the rate", state, &[])?;
    operands
        .get(3 + states)
        .map_or(Ok(()), |step| check_number(step, "the step"))?;
    Ok(results)
}

/// Parameters, gradient, states, rate and step, in this order.
fn views(program: &NativeProgram, states: usize) -> UpdateViews {
    let after = 3 + states;
    UpdateViews {
        x: program.input(0),
        gradient: program.input(1),
        states: (0..states).map(|at| program.input(2 + at)).collect(),
        rate: program.input(2 + states),
        step: (program.operands() > after).then(|| program.input(after)),
        to: program.output(0),
        states_to: (0..states).map(|at| program.output(1 + at)).collect(),
    }
}

fn update(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let views = views(program, rule(op).states());
    optimise::update(program, rule(op), &views, numbers(op))
}

/// The mean of gradients by its bias, and the root of that of squares: the change of Adam.
fn adaptive(t: ApproxType, [mean, square]: [Approx; 2], n: &UpdateNumbers, step: f64) -> Approx {
    let unbiased = |beta: f64| {
        let power = beta.powf(step);
        // The power may be some units in the last place of f64 off.
        let mut by = t.number(1.0 - power);
        by.error += 8.0 * f64::exp2(-53.0) * (1.0 + power.abs());
        by
    };
    mean / unbiased(n.beta1) / ((square / unbiased(n.beta2)).sqrt() + t.number(n.eps))
}

/// Parameters and state after a step, of one element; for LAMB the change, without the rate.
fn stepped(
    rule: UpdateRule,
    t: ApproxType,
    n: &UpdateNumbers,
    [x, g]: [f64; 2],
    states: &[f64],
    [rate, step]: [f64; 2],
) -> (Approx, Vec<Approx>) {
    let (x, mut g, rate) = (t.exact(x), t.exact(g), t.exact(rate));
    let decay = t.number(n.decay);
    if matches!(
        rule,
        UpdateRule::Sgd | UpdateRule::Momentum | UpdateRule::Adam
    ) {
        g = g + decay * x;
    }
    let mixed = |beta: f64, other: f64, before: f64, new: Approx| {
        t.number(beta) * t.exact(before) + t.number(other) * new
    };
    let kept = x * (t.exact(1.0) - rate * decay);
    match rule {
        UpdateRule::Sgd => (x - rate * g, Vec::new()),
        UpdateRule::Momentum => {
            let velocity = mixed(n.beta1, 1.0 - n.dampening, states[0], g);
            let by = match n.is_nesterov {
                true => g + t.number(n.beta1) * velocity,
                false => velocity,
            };
            (x - rate * by, vec![velocity])
        }
        UpdateRule::Lion => {
            let by = mixed(n.beta1, 1.0 - n.beta1, states[0], g);
            let mut sign = t.exact(if by.value == 0.0 {
                0.0
            } else {
                by.value.signum()
            });
            if by.value.abs() <= 2.0 * by.error {
                sign.error = 2.0;
            }
            let mean = mixed(n.beta2, 1.0 - n.beta2, states[0], g);
            (kept - rate * sign, vec![mean])
        }
        _ => {
            let mean = mixed(n.beta1, 1.0 - n.beta1, states[0], g);
            let square = mixed(n.beta2, 1.0 - n.beta2, states[1], g * g);
            let by = adaptive(t, [mean, square], n, step);
            let after = match rule {
                UpdateRule::Adam => x - rate * by,
                UpdateRule::Lamb => by + decay * x,
                _ => kept - rate * by,
            };
            (after, vec![mean, square])
        }
    }
}

fn update_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (rule, n, dtype) = (rule(op), numbers(op), results[0].dtype());
    let (t, states) = (ApproxType::of(dtype), rule.states());
    let rate = x[2 + states].values[0];
    let step = x.get(3 + states).map_or(0.0, |step| step.values[0]);
    let one = |at: usize| {
        let own: Vec<f64> = x[2..2 + states].iter().map(|it| it.values[at]).collect();
        let pair = [x[0].values[at], x[1].values[at]];
        stepped(rule, t, &n, pair, &own, [rate, step])
    };
    let (mut to, states): (Vec<Approx>, Vec<Vec<Approx>>) = (0..x[0].values.len()).map(one).unzip();
    if rule == UpdateRule::Lamb {
        let own = || x[0].values.iter().map(|x| t.exact(*x));
        let ratio = norm_of(t, own()) / norm_of(t, to.iter().copied());
        let is_still = to.iter().all(|it| it.value == 0.0);
        let none = is_still || x[0].values.iter().all(|it| *it == 0.0);
        let ratio = if none { t.exact(1.0) } else { ratio };
        let scaled = own()
            .zip(&to)
            .map(|(x, by)| x - t.exact(rate) * ratio * *by);
        to = scaled.collect();
    }
    let mut all = vec![to.iter().map(|it| it.stored(dtype)).collect()];
    for (at, result) in results[1..].iter().enumerate() {
        all.push(
            states
                .iter()
                .map(|it| it[at].stored(result.dtype()))
                .collect(),
        );
    }
    all
}

fn norm_of(t: ApproxType, values: impl Iterator<Item = Approx>) -> Approx {
    t.sum(values.map(|it| it * it)).sqrt()
}

// Many tensors.

/// Number of operands that all tensors share, and of each one's.
fn shared(op: &OpParameters) -> (usize, usize) {
    let rule = rule(op);
    (1 + usize::from(rule.has_step()), 2 + rule.states())
}

fn many_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (singles, each) = shared(op);
    let mut results = Vec::new();
    for tensor in operands[singles..].chunks(each) {
        let own: Vec<Layout> = tensor.iter().chain(&operands[..singles]).copied().collect();
        results.extend(update_results(op, &own)?);
    }
    Ok(results)
}

fn update_many(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let ((singles, each), rule) = (shared(op), rule(op));
    let tensor = |number: usize| {
        let (from, to) = (singles + number * each, number * (each - 1));
        UpdateViews {
            x: program.input(from),
            gradient: program.input(from + 1),
            states: (0..each - 2)
                .map(|at| program.input(from + 2 + at))
                .collect(),
            rate: program.input(0),
            step: rule.has_step().then(|| program.input(1)),
            to: program.output(to),
            states_to: (0..each - 2)
                .map(|at| program.output(to + 1 + at))
                .collect(),
        }
    };
    let count = (program.operands() - singles) / each;
    let tensors: Vec<UpdateViews> = (0..count).map(tensor).collect();
    optimise::update_many(program, rule, &tensors, numbers(op))
}

fn many_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (singles, each) = shared(op);
    let tensors = x[singles..].chunks(each).zip(results.chunks(each - 1));
    let one = |(tensor, results): (&[HostArray], &[Layout])| {
        let own: Vec<HostArray> = tensor.iter().chain(&x[..singles]).cloned().collect();
        update_expected(op, &own, results)
    };
    tensors.flat_map(one).collect()
}

// Adafactor.

fn factored_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    check_numbers(op)?;
    let (x, state) = (&operands[0], state_type(operands[0].dtype()));
    let [height, width] = x.shape() else {
        return Err(Misfit::new(
            "the parameters are no matrix",
            "two dimensions",
        ));
    };
    check_layout(&operands[1], "the gradient", x.dtype(), x.shape())?;
    check_layout(&operands[2], "rows", state, &[*height])?;
    check_layout(&operands[3], "columns", state, &[*width])?;
    check_layout(&operands[4], "the rate", state, &[])?;
    check_number(&operands[5], "the step")?;
    Ok(vec![
        (x.dtype(), x.shape().to_vec()),
        (state, vec![*height]),
        (state, vec![*width]),
    ])
}

fn factored_numbers(op: &OpParameters) -> FactoredNumbers {
    FactoredNumbers {
        power: op.number_of("power"),
        least_square: op.number_of("eps"),
        least_scale: op.number_of("least_scale"),
        threshold: op.number_of("threshold"),
        decay: op.number_of("decay"),
    }
}

fn factored(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let views = views(program, 2);
    optimise::update_factored(program, &views, factored_numbers(op))
}

fn factored_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (n, dtype) = (factored_numbers(op), results[0].dtype());
    let t = ApproxType::of(dtype);
    let (height, width) = (x[0].shape[0] as usize, x[0].shape[1] as usize);
    let share = 1.0 - x[5].values[0].powf(-n.power);
    let gradient = |row: usize, column: usize| t.exact(x[1].values[row * width + column]);
    let square = |g: Approx| g * g + t.number(n.least_square);
    let mixed = |before: f64, sum: Approx, count: usize| {
        let (mut kept, mut new) = (t.number(share), t.number(1.0 - share));
        kept.error += 8.0 * f64::exp2(-53.0);
        new.error += 8.0 * f64::exp2(-53.0);
        kept * t.exact(before) + new * (sum / t.number(count as f64))
    };
    let (mut rows, mut columns): (Vec<Approx>, Vec<Approx>) = (
        x[2].values.iter().map(|it| t.exact(*it)).collect(),
        x[3].values.iter().map(|it| t.exact(*it)).collect(),
    );
    if height * width > 0 {
        for (row, own) in rows.iter_mut().enumerate() {
            let sum = t.sum((0..width).map(|column| square(gradient(row, column))));
            *own = mixed(own.value, sum, width);
        }
        for (column, own) in columns.iter_mut().enumerate() {
            let sum = t.sum((0..height).map(|row| square(gradient(row, column))));
            *own = mixed(own.value, sum, height);
        }
    }
    let mean = t.sum(rows.iter().copied()) / t.number(height as f64);
    let change = |at: usize| {
        let (row, column) = (at / width, at % width);
        gradient(row, column) / (rows[row] / mean * columns[column]).sqrt()
    };
    let all = 0..height * width;
    let changes: Vec<Approx> = all.clone().map(change).collect();
    let count = t.number((height * width) as f64);
    let spread =
        |values: &mut dyn Iterator<Item = Approx>| (t.sum(values.map(|it| it * it)) / count).sqrt();
    let scale = spread(&mut x[0].values.iter().map(|it| t.exact(*it)));
    let over = spread(&mut changes.iter().copied()) / t.number(n.threshold);
    let rate = t.exact(x[4].values[0]);
    let size = rate * scale.most(t.number(n.least_scale)) / over.most(t.exact(1.0));
    let kept = t.exact(1.0) - rate * t.number(n.decay);
    let to = all.map(|at| (kept * t.exact(x[0].values[at]) - size * changes[at]).stored(dtype));
    let stored = |values: &[Approx]| {
        values
            .iter()
            .map(|it| it.stored(results[1].dtype()))
            .collect()
    };
    vec![to.collect(), stored(&rows), stored(&columns)]
}

// Norms and scales.

fn norm_results(_: &OpParameters, operands: &[Layout]) -> RowResults {
    Ok(vec![(state_type(operands[0].dtype()), Vec::new())])
}

fn norm(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let all: Vec<_> = (0..program.operands())
        .map(|at| program.input(at))
        .collect();
    let to = program.output(0);
    optimise::norm(program, &all, &to)
}

fn norm_expected(
    _: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let t = ApproxType::of(results[0].dtype());
    let all = x.iter().flat_map(|it| &it.values);
    let norm = norm_of(t, all.map(|it| t.exact(*it)));
    vec![vec![norm.stored(results[0].dtype())]]
}

fn clip_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    check_numbers(op)?;
    let x = &operands[0];
    check_layout(&operands[1], "the norm", state_type(x.dtype()), &[])?;
    Ok(vec![(x.dtype(), x.shape().to_vec())])
}

fn clip(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, norm, to) = (program.input(0), program.input(1), program.output(0));
    let [most, eps] = ["most", "eps"].map(|name| op.number_of(name));
    optimise::clip_norm(program, [&x, &norm, &to], most, eps)
}

fn clip_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = results[0].dtype();
    let t = ApproxType::of(dtype);
    let [most, eps] = ["most", "eps"].map(|name| t.number(op.number_of(name)));
    let by = (most / (t.exact(x[1].values[0]) + eps)).least(t.exact(1.0));
    let all = x[0]
        .values
        .iter()
        .map(|it| (t.exact(*it) * by).stored(dtype));
    vec![all.collect()]
}

fn unscale_results(_: &OpParameters, operands: &[Layout]) -> RowResults {
    let x = &operands[0];
    check_layout(&operands[1], "the scale", state_type(x.dtype()), &[])?;
    Ok(vec![
        (x.dtype(), x.shape().to_vec()),
        (Dtype::Bool, Vec::new()),
    ])
}

fn unscale(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, scale) = (program.input(0), program.input(1));
    let (to, found) = (program.output(0), program.output(1));
    optimise::unscale(program, [&x, &scale, &to, &found])
}

fn unscale_expected(
    _: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = results[0].dtype();
    let t = ApproxType::of(dtype);
    let by = t.exact(1.0) / t.exact(x[1].values[0]);
    let all = x[0]
        .values
        .iter()
        .map(|it| (t.exact(*it) * by).stored(dtype));
    let found = x[0].values.iter().any(|it| !it.is_finite());
    vec![all.collect(), vec![(f64::from(u8::from(found)), 0.0)]]
}

fn scale_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    check_numbers(op)?;
    if whole_number(op, "interval")? < 1 {
        return Err(Misfit::new("an interval below 1", "1 or more"));
    }
    let (scale, streak) = (&operands[0], &operands[1]);
    check_layout(scale, "the scale", state_type(scale.dtype()), &[])?;
    check_number(streak, "the number of steps")?;
    check_number(&operands[2], "the flag")?;
    Ok(vec![
        (scale.dtype(), Vec::new()),
        (streak.dtype(), Vec::new()),
    ])
}

fn next_scale(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [scale, streak, found] = [0, 1, 2].map(|at| program.input(at));
    let to = [0, 1].map(|at| program.output(at));
    let factors = ["growth", "backoff"].map(|name| op.number_of(name));
    let interval = op.number_of("interval") as u64;
    optimise::next_scale(
        program,
        [&scale, &streak, &found],
        [&to[0], &to[1]],
        factors,
        interval,
    )
}

fn scale_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let dtype = results[0].dtype();
    let t = ApproxType::of(dtype);
    let (scale, streak) = (t.exact(x[0].values[0]), x[1].values[0]);
    let is_found = x[2].values[0] != 0.0;
    let grows = streak + 1.0 >= op.number_of("interval");
    let (scale, streak) = match (is_found, grows) {
        (true, _) => (scale * t.number(op.number_of("backoff")), 0.0),
        (_, true) => (scale * t.number(op.number_of("growth")), 0.0),
        _ => (scale, streak + 1.0),
    };
    vec![vec![scale.stored(dtype)], vec![(streak, 0.0)]]
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Optimiser "sgd" ("x", "gradient", "rate") Floats { "decay": 0.0 } [] { typed: TYPED }
        "cuda.optimise", update_results, update, update_expected,
        "x - rate (gradient + decay x)"),
    native!(Optimiser "sgd_momentum" ("x", "gradient", "velocity", "rate") Floats
        { "momentum": 0.9, "dampening": 0.0, "decay": 0.0 } []
        { typed: TYPED, results: &["out", "velocity"], choices: &[("nesterov", &["off", "on"])] }
        "cuda.optimise", update_results, update, update_expected,
        "sgd by a velocity: momentum times itself + (1 - dampening) (gradient + decay x)"),
    native!(Optimiser "adam" ("x", "gradient", "mean", "square", "rate", "step") Floats
        { "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.0 } []
        { typed: TYPED, results: &["out", "mean", "square"] }
        "cuda.optimise", update_results, update, update_expected,
        "Adam; decay x is added to the gradient"),
    native!(Optimiser "adamw" ("x", "gradient", "mean", "square", "rate", "step") Floats
        { "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.01 } []
        { typed: TYPED, results: &["out", "mean", "square"] }
        "cuda.optimise", update_results, update, update_expected,
        "Adam with decoupled decay: x is made smaller by rate decay x"),
    native!(Optimiser "lion" ("x", "gradient", "mean", "rate") Floats
        { "beta1": 0.9, "beta2": 0.99, "decay": 0.0 } [] { typed: TYPED, results: &["out", "mean"] }
        "cuda.optimise", update_results, update, update_expected,
        "Lion: by the sign of beta1 mean + (1 - beta1) gradient, with decoupled decay"),
    native!(Optimiser "lamb" ("x", "gradient", "mean", "square", "rate", "step") Floats
        { "beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "decay": 0.01 } []
        { typed: TYPED, results: &["out", "mean", "square"] }
        "cuda.optimise", update_results, update, update_expected,
        "LAMB: the change of Adam + decay x, by the ratio of the norms of x and of that change, 1 if one is 0"),
    native!(Optimiser "adafactor" ("x", "gradient", "rows", "columns", "rate", "step") Floats
        { "power": 0.8, "eps": 1e-30, "least_scale": 1e-3, "threshold": 1.0, "decay": 0.0 } []
        { typed: TYPED, results: &["out", "rows", "columns"] }
        "cuda.optimise", factored_results, factored, factored_expected,
        "Adafactor of a matrix: squares of gradients as means of rows and columns, the rate by x's root mean square"),
    native!(Optimiser "multi_sgd" ("rate", "x", "gradient") Floats { "decay": 0.0 } []
        { typed: TYPED, repeated: 2 }
        "cuda.optimise", many_results, update_many, many_expected, "sgd of many tensors"),
    native!(Optimiser "multi_sgd_momentum" ("rate", "x", "gradient", "velocity") Floats
        { "momentum": 0.9, "dampening": 0.0, "decay": 0.0 } []
        { typed: TYPED, repeated: 3, results: &["out", "velocity"], choices: &[("nesterov", &["off", "on"])] }
        "cuda.optimise", many_results, update_many, many_expected, "sgd_momentum of many tensors"),
    native!(Optimiser "multi_adam" ("rate", "step", "x", "gradient", "mean", "square") Floats
        { "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.0 } []
        { typed: TYPED, repeated: 4, results: &["out", "mean", "square"] }
        "cuda.optimise", many_results, update_many, many_expected, "adam of many tensors"),
    native!(Optimiser "multi_adamw" ("rate", "step", "x", "gradient", "mean", "square") Floats
        { "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.01 } []
        { typed: TYPED, repeated: 4, results: &["out", "mean", "square"] }
        "cuda.optimise", many_results, update_many, many_expected, "adamw of many tensors"),
    native!(Optimiser "multi_lion" ("rate", "x", "gradient", "mean") Floats
        { "beta1": 0.9, "beta2": 0.99, "decay": 0.0 } []
        { typed: TYPED, repeated: 3, results: &["out", "mean"] }
        "cuda.optimise", many_results, update_many, many_expected, "lion of many tensors"),
    native!(Optimiser "gradient_norm" ("x") Floats {} [] { typed: TYPED, repeated: 1 }
        "cuda.optimise", norm_results, norm, norm_expected,
        "root of the sum of squares of all elements of many tensors, f32 or f64; squares may overflow"),
    native!(Optimiser "clip_norm" ("x", "norm") Floats { "most": 1.0, "eps": 1e-6 } [] { typed: TYPED }
        "cuda.optimise", clip_results, clip, clip_expected, "x min(1, most / (norm + eps))"),
    native!(Optimiser "unscale" ("x", "scale") Floats {} []
        { typed: TYPED, results: &["out", "found"] }
        "cuda.optimise", unscale_results, unscale, unscale_expected,
        "x / scale, and whether an element is infinite or NaN"),
    native!(Optimiser "next_scale" ("scale", "streak", "found") Floats
        { "growth": 2.0, "backoff": 0.5, "interval": 2000.0 } []
        { typed: TYPED, results: &["scale", "streak"] }
        "cuda.optimise", scale_results, next_scale, scale_expected,
        "scale of a loss for the next step: smaller after a gradient that was not finite, larger after `interval` finite ones"),
];
