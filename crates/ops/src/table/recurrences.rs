//! Rows of ops whose state goes from token to token.
//!
//! A row of `runs` has the first token of a run and how many follow one another, the slots in which
//! its state is read and written, a number of tokens and the slot in which the state behind these
//! is kept. Slots outside of the state are none.

use fercuda_jit::TypeClass;
use fercuda_kernels::NativeProgram;
use fercuda_kernels::recurrence::{
    self, MOST_STATE_LENGTH, MOST_TAPS, RUN_NUMBERS, RecurrentHeads, RecurrentRule, RecurrentViews,
    kept_type,
};
use fercuda_tensor::Layout;

use super::approx::{Approx, ApproxType};
use super::scalar::{sigmoid, softplus};
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// Checks that an operand has a shape.
fn of_shape(layout: &Layout, name: &str, shape: &[u64]) -> Result<(), Misfit> {
    match layout.shape() == shape {
        true => Ok(()),
        false => {
            let what = format!("{name} is {:?}", layout.shape());
            Err(Misfit::new(what, format!("{name}{shape:?}")))
        }
    }
}

fn of_rank<'a, const N: usize>(
    layout: &'a Layout,
    name: &str,
    wanted: &str,
) -> Result<&'a [u64; N], Misfit> {
    <&[u64; N]>::try_from(layout.shape()).map_err(|_| {
        let what = format!("{name} is {:?}", layout.shape());
        Misfit::new(what, format!("{name}[{wanted}]"))
    })
}

/// Checks the runs, and the type of a state beside x.
fn check_common(x: &Layout, state: &Layout, runs: &Layout) -> Result<(), Misfit> {
    let kept = kept_type(x.dtype());
    if state.dtype() != kept {
        let what = format!("a state of {} for x of {}", state.dtype(), x.dtype());
        return Err(Misfit::new(what, format!("a state of {kept}")));
    }
    match runs.shape() {
        [_, RUN_NUMBERS] => Ok(()),
        shape => {
            let what = format!("runs is {shape:?}");
            Err(Misfit::new(what, format!("runs[count, {RUN_NUMBERS}]")))
        }
    }
}

// What runs say.

/// A run of the reference: its tokens, the slots in which the state is read and written, and the
/// number of tokens behind which it is kept, with the slot.
struct HostRun {
    tokens: std::ops::Range<u64>,
    from: Option<usize>,
    to: Option<usize>,
    kept: Option<(u64, usize)>,
}

fn runs_of(runs: &HostArray, tokens: u64, slots: u64) -> Vec<HostRun> {
    let slot = |value: f64| {
        (0.0..slots as f64)
            .contains(&value)
            .then_some(value as usize)
    };
    let rows = runs.values.chunks(RUN_NUMBERS as usize);
    let run = |row: &[f64]| {
        let begin = row[0].clamp(0.0, tokens as f64) as u64;
        let count = row[1].clamp(0.0, (tokens - begin) as f64) as u64;
        let is_mark = row[4] >= 1.0 && row[4] <= count as f64;
        HostRun {
            tokens: begin..begin + count,
            from: slot(row[2]),
            to: slot(row[3]),
            kept: slot(row[5])
                .filter(|_| is_mark)
                .map(|at| (row[4] as u64, at)),
        }
    };
    rows.map(run).collect()
}

/// A function of a value whose slope is at most 1, with its roundings.
fn slowly(t: ApproxType, x: Approx, by: fn(f64) -> f64) -> Approx {
    let mut result = t.exact(by(x.value));
    result.error = x.error;
    result.rounded(8.0)
}

/// e to the power of a value.
fn exponential(t: ApproxType, x: Approx) -> Approx {
    let mut result = t.exact(x.value.exp());
    result.error = result.value * x.error.exp_m1();
    result.rounded(4.0)
}

/// Goes over all runs: the elements of a state, which are changed token by token.
fn over_runs(
    (runs, state): (&HostArray, &HostArray),
    (t, kept, tokens): (ApproxType, &Layout, u64),
    mut token: impl FnMut(&mut [Approx], u64),
) -> Vec<ExpectedElement> {
    let slots = state.shape[0] as usize;
    let each = state.shape[1..].iter().product::<u64>() as usize;
    let mut all: Vec<ExpectedElement> = state.values.iter().map(|it| (*it, 0.0)).collect();
    for run in runs_of(runs, tokens, slots as u64) {
        if run.tokens.is_empty() {
            continue;
        }
        let mut own: Vec<Approx> = match run.from {
            Some(slot) => {
                let values = &state.values[slot * each..][..each];
                values.iter().map(|it| t.exact(*it)).collect()
            }
            None => vec![t.exact(0.0); each],
        };
        let mut store = |slot: usize, own: &[Approx]| {
            for (to, value) in all[slot * each..].iter_mut().zip(own) {
                *to = value.stored(kept.dtype());
            }
        };
        let begin = run.tokens.start;
        for at in run.tokens {
            token(&mut own, at);
            if let Some((mark, slot)) = run.kept
                && at + 1 == begin + mark
            {
                store(slot, &own);
            }
        }
        if let Some(slot) = run.to {
            store(slot, &own);
        }
    }
    all
}

// Convolutions.

fn convolution_results(_: &OpParameters, operands: &[Layout]) -> RowResults {
    let [x, weight, state, runs] = [0, 1, 2, 3].map(|at| &operands[at]);
    let &[_, channels] = of_rank(x, "x", "tokens, channels")?;
    let &[_, taps] = of_rank(weight, "weight", "channels, taps")?;
    if !(1..=MOST_TAPS).contains(&taps) {
        let what = format!("{taps} taps");
        return Err(Misfit::new(what, format!("1 to {MOST_TAPS} taps")));
    }
    of_shape(weight, "weight", &[channels, taps])?;
    let &[slots, _, _] = of_rank(state, "state", "slots, taps - 1, channels")?;
    of_shape(state, "state", &[slots, taps - 1, channels])?;
    check_common(x, state, runs)?;
    if let Some(bias) = operands.get(4) {
        of_shape(bias, "bias", &[channels])?;
    }
    Ok(vec![
        (x.dtype(), x.shape().to_vec()),
        (state.dtype(), state.shape().to_vec()),
    ])
}

fn is_silu(op: &OpParameters) -> bool {
    op.choice_of("activation") == "silu"
}

fn views_of(program: &NativeProgram, state: usize, runs: usize) -> RecurrentViews {
    RecurrentViews {
        x: program.input(0),
        y: program.output(0),
        state: program.input(state),
        to: program.output(1),
        runs: program.input(runs),
    }
}

fn convolution(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let views = views_of(program, 2, 3);
    let weight = program.input(1);
    let bias = (program.operands() > 4).then(|| program.input(4));
    recurrence::causal_convolution(program, &views, &weight, bias.as_ref(), is_silu(op))
}

fn convolution_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (dtype, t) = (results[0].dtype(), ApproxType::of(results[0].dtype()));
    let (tokens, channels) = (x[0].shape[0], x[0].shape[1] as usize);
    let taps = x[1].shape[1] as usize;
    let mut y = vec![(0.0, 0.0); x[0].values.len()];
    let state = over_runs((&x[3], &x[2]), (t, &results[1], tokens), |state, token| {
        for channel in 0..channels {
            let own = t.exact(x[0].at(&[token, channel as u64]));
            let window: Vec<Approx> = (0..taps - 1)
                .map(|tap| state[tap * channels + channel])
                .chain([own])
                .collect();
            let factor = |tap: usize| t.exact(x[1].at(&[channel as u64, tap as u64]));
            let bias = x.get(4).map_or(0.0, |it| it.values[channel]);
            let products = window.iter().enumerate().map(|(at, it)| factor(at) * *it);
            let mut sum = t.sum(products.chain([t.exact(bias)]));
            if is_silu(op) {
                sum = sum * slowly(t, sum, sigmoid);
            }
            y[token as usize * channels + channel] = sum.stored(dtype);
            for tap in 0..taps - 1 {
                state[tap * channels + channel] = window[tap + 1];
            }
        }
    });
    vec![y, state]
}

// Recurrences of heads.

/// Extents of a recurrence of heads.
struct HeadExtents {
    tokens: u64,
    heads: u64,
    keys: u64,
    value_length: u64,
    key_length: u64,
}

fn extents_of(x: &Layout, state: &Layout) -> Result<HeadExtents, Misfit> {
    let &[tokens, columns] = of_rank(x, "x", "tokens, elements of all heads")?;
    let wanted = "slots, heads, value length, key length";
    let &[_, heads, value_length, key_length] = of_rank(state, "state", wanted)?;
    for length in [value_length, key_length] {
        if !(1..=MOST_STATE_LENGTH).contains(&length) {
            let wanted = format!("1 to {MOST_STATE_LENGTH} elements");
            return Err(Misfit::new(format!("heads of {length}"), wanted));
        }
    }
    let of_values = heads.checked_mul(value_length);
    let rest = of_values.and_then(|it| columns.checked_sub(it));
    let keys = rest.filter(|it| it.is_multiple_of(2 * key_length));
    let keys = keys.map(|it| it / (2 * key_length));
    match keys.filter(|it| *it > 0 && heads.is_multiple_of(*it)) {
        Some(keys) => Ok(HeadExtents {
            tokens,
            heads,
            keys,
            value_length,
            key_length,
        }),
        None => {
            let what = format!("x of {columns} columns for {heads} heads of {value_length}");
            let wanted = format!("{heads} values, and two of each head of keys of {key_length}");
            Err(Misfit::new(what, wanted))
        }
    }
}

/// Checks what all recurrences of heads have behind x and the operands of tokens.
fn heads_results(
    operands: &[Layout],
    of_tokens: &[(usize, &str)],
    of_heads: &[(usize, &str)],
    [state, runs]: [usize; 2],
) -> RowResults {
    let (x, state, runs) = (&operands[0], &operands[state], &operands[runs]);
    let extents = extents_of(x, state)?;
    let HeadExtents { tokens, heads, .. } = extents;
    for (at, name) in of_tokens {
        of_shape(&operands[*at], name, &[tokens, heads])?;
    }
    for (at, name) in of_heads {
        if let Some(own) = operands.get(*at) {
            of_shape(own, name, &[heads])?;
        }
    }
    check_common(x, state, runs)?;
    Ok(vec![
        (x.dtype(), vec![tokens, heads, extents.value_length]),
        (state.dtype(), state.shape().to_vec()),
    ])
}

fn is_tiled(op: &OpParameters) -> bool {
    op.choice_of("keys") == "tiled"
}

impl HeadExtents {
    /// The head of keys of a head.
    fn key_of(&self, op: &OpParameters, head: u64) -> u64 {
        match is_tiled(op) {
            true => head % self.keys,
            false => head / (self.heads / self.keys),
        }
    }
}

fn positive(op: &OpParameters, name: &str) -> Result<(), Misfit> {
    let number = op.number_of(name);
    match number.is_finite() && number > 0.0 {
        true => Ok(()),
        false => Err(Misfit::new(format!("{name} is {number}"), "above 0")),
    }
}

fn delta_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    positive(op, "eps")?;
    let of_heads = [(3, "rate"), (4, "bias")];
    heads_results(operands, &[(1, "step"), (2, "beta")], &of_heads, [5, 6])
}

fn delta(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let views = views_of(program, 5, 6);
    let numbers = RecurrentHeads {
        step: program.input(1),
        rate: program.input(3),
        bias: program.input(4),
        keys: keys_of(&views),
        is_tiled: is_tiled(op),
        rule: RecurrentRule::Delta {
            beta: program.input(2),
            epsilon: op.number_of("eps"),
        },
    };
    recurrence::heads(program, &views, &numbers)
}

/// Heads of keys, of layouts that are checked.
fn keys_of(views: &RecurrentViews) -> u64 {
    extents_of(views.x.layout(), views.state.layout()).map_or(0, |it| it.keys)
}

fn delta_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (dtype, t) = (results[0].dtype(), ApproxType::of(results[0].dtype()));
    let (rows, step, beta) = (&x[0], &x[1], &x[2]);
    let contiguous = |it: &HostArray| Layout::contiguous(it.dtype, &it.shape).ok();
    let layouts = contiguous(rows).zip(contiguous(&x[5]));
    let Some(Ok(of)) = layouts.map(|(x, state)| extents_of(&x, &state)) else {
        return Vec::new();
    };
    let (length, values) = (of.key_length, of.value_length);
    let epsilon = t.number(op.number_of("eps"));
    let mut y = vec![(0.0, 0.0); (of.tokens * of.heads * values) as usize];
    let state = over_runs(
        (&x[6], &x[5]),
        (t, &results[1], of.tokens),
        |state, token| {
            // A vector by its length.
            let unit = |first: u64, times: f64| -> Vec<Approx> {
                let own = (0..length).map(|d| t.exact(rows.at(&[token, first + d])));
                let own: Vec<Approx> = own.collect();
                let squares = t.sum(own.iter().map(|it| *it * *it)) + epsilon;
                let by = t.exact(1.0) / (squares * t.exact(times)).sqrt();
                own.iter().map(|it| *it * by).collect()
            };
            for head in 0..of.heads {
                let of_keys = of.key_of(op, head);
                let query = unit(of_keys * length, length as f64);
                let key = unit((of.keys + of_keys) * length, 1.0);
                let size = t.exact(step.at(&[token, head])) + t.exact(x[4].at(&[head]));
                let size = slowly(t, size, softplus);
                let decay = exponential(t, t.exact(x[3].at(&[head])) * size);
                let own_beta = slowly(t, t.exact(beta.at(&[token, head])), sigmoid);
                for column in 0..values {
                    let place = (head * values + column) * length;
                    let own = &mut state[place as usize..][..length as usize];
                    own.iter_mut().for_each(|it| *it = *it * decay);
                    let first = 2 * of.keys * length + head * values + column;
                    let value = t.exact(rows.at(&[token, first]));
                    let held = t.sum(own.iter().zip(&key).map(|(a, b)| *a * *b));
                    let change = (value - held) * own_beta;
                    for (to, key) in own.iter_mut().zip(&key) {
                        *to = *to + *key * change;
                    }
                    let result = t.sum(own.iter().zip(&query).map(|(a, b)| *a * *b));
                    let at = (token * of.heads + head) * values + column;
                    y[at as usize] = result.stored(dtype);
                }
            }
        },
    );
    vec![y, state]
}

/// The least and the largest step.
fn limits_of(op: &OpParameters) -> [f64; 2] {
    let most = match op.number_of("most") {
        0.0 => f64::INFINITY,
        most => most,
    };
    [op.number_of("least"), most]
}

fn scan_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let [least, most] = limits_of(op);
    if least.is_nan() || most.is_nan() || least > most {
        let what = format!("steps from {least} to {most}");
        return Err(Misfit::new(what, "a least step that is not above the most"));
    }
    let of_heads = [(2, "rate"), (3, "bias"), (6, "skip")];
    heads_results(operands, &[(1, "step")], &of_heads, [4, 5])
}

fn scan(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let views = views_of(program, 4, 5);
    let numbers = RecurrentHeads {
        step: program.input(1),
        rate: program.input(2),
        bias: program.input(3),
        keys: keys_of(&views),
        is_tiled: is_tiled(op),
        rule: RecurrentRule::Scan {
            skip: (program.operands() > 6).then(|| program.input(6)),
            limits: limits_of(op),
        },
    };
    recurrence::heads(program, &views, &numbers)
}

fn scan_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (dtype, t) = (results[0].dtype(), ApproxType::of(results[0].dtype()));
    let (rows, step) = (&x[0], &x[1]);
    let contiguous = |it: &HostArray| Layout::contiguous(it.dtype, &it.shape).ok();
    let layouts = contiguous(rows).zip(contiguous(&x[4]));
    let Some(Ok(of)) = layouts.map(|(x, state)| extents_of(&x, &state)) else {
        return Vec::new();
    };
    let (length, values) = (of.key_length, of.value_length);
    let [least, most] = limits_of(op).map(|it| match it.is_finite() {
        true => t.number(it),
        false => t.exact(it),
    });
    let mut y = vec![(0.0, 0.0); (of.tokens * of.heads * values) as usize];
    let state = over_runs(
        (&x[5], &x[4]),
        (t, &results[1], of.tokens),
        |state, token| {
            let element = |first: u64, at: u64| t.exact(rows.at(&[token, first + at]));
            for head in 0..of.heads {
                let of_keys = of.heads * values + of.key_of(op, head) * length;
                let read = of_keys + of.keys * length;
                let size = t.exact(step.at(&[token, head])) + t.exact(x[3].at(&[head]));
                let size = slowly(t, size, softplus).most(least).least(most);
                let decay = exponential(t, t.exact(x[2].at(&[head])) * size);
                for column in 0..values {
                    let place = (head * values + column) * length;
                    let own = &mut state[place as usize..][..length as usize];
                    let value = element(head * values, column);
                    for (at, to) in (0..).zip(own.iter_mut()) {
                        *to = *to * decay + element(of_keys, at) * (value * size);
                    }
                    let products = (0..).zip(own.iter());
                    let mut result = t.sum(products.map(|(at, it)| *it * element(read, at)));
                    if let Some(skip) = x.get(6) {
                        result = result + t.exact(skip.at(&[head])) * value;
                    }
                    let at = (token * of.heads + head) * values + column;
                    y[at as usize] = result.stored(dtype);
                }
            }
        },
    );
    vec![y, state]
}

const STATE_TYPES: &[(&str, TypeClass)] =
    &[("state", TypeClass::Floats), ("runs", TypeClass::Integers)];

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Recurrence "causal_convolution" ("x", "weight", "state", "runs", "bias") Floats {} []
        { optional: 1, typed: STATE_TYPES, choices: &[("activation", &["silu", "none"])],
          results: &["y", "state"] }
        "cuda.recurrence", convolution_results, convolution, convolution_expected,
        "each channel of x[tokens, channels] by its row of weight[channels, taps], which ends with the token itself, + bias, through SiLU; before a run stands state[slots, taps - 1, channels], f32 for floats narrower than f64. A row of runs[count, 6] has the first token and how many follow it, the slots in which the state is read and written, and a number of tokens and the slot in which the state behind them is kept; slots outside are none, and a state that is not read is 0. Runs are in the order of tokens, tokens of none give 0, and no slot that is written is another one of the launch"),
    native!(Recurrence "gated_delta_rule" ("x", "step", "beta", "rate", "bias", "state", "runs") Floats
        { "eps": 1e-6 } []
        { typed: STATE_TYPES, choices: &[("keys", &["grouped", "tiled"])], results: &["y", "state"] }
        "cuda.recurrence", delta_results, delta, delta_expected,
        "q . S of heads of x[tokens, those of queries, of keys and of values], where q and k are by their lengths, q by 1 / root of its elements too, and each token makes S = e^(rate softplus(step + bias)) S, then S = S + k (v - k . S) sigmoid(beta); S is state[slots, heads, value length, key length], in runs as of causal_convolution. Heads have the keys of their group, or of their number modulo that of keys"),
    native!(Recurrence "selective_scan" ("x", "step", "rate", "bias", "state", "runs", "skip") Floats
        { "least": 0.0, "most": 0.0 } []
        { optional: 1, typed: STATE_TYPES, choices: &[("keys", &["grouped", "tiled"])],
          results: &["y", "state"] }
        "cuda.recurrence", scan_results, scan, scan_expected,
        "c . S + skip v of heads of x[tokens, those of values, of b and of c], where each token makes S = e^(rate d) S + b v d, and d is softplus(step + bias) within least and most, 0 for no limit; S is state[slots, heads, value length, key length], in runs as of causal_convolution"),
];
