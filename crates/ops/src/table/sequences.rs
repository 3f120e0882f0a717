//! Rows of attention of whole sequences, whose queries, keys and values lie beside each other.

use fercuda_jit::TypeClass;
use fercuda_kernels::NativeProgram;
use fercuda_kernels::sequence_attention::{
    MOST_SEQUENCE_HEAD, SequenceKernel, SequenceNumbers, SequenceViews, attend_sequences,
};
use fercuda_tensor::{Dtype, Layout};

use super::approx::{Approx, ApproxType};
use super::attention::{scale_of, turned, window_of};
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// Keys that are weighed at once, at least; each time what is there may be scaled.
const LEAST_TILE: f64 = 32.0;

fn four<'a>(layout: &'a Layout, name: &str) -> Result<&'a [u64; 4], Misfit> {
    let wanted = format!("{name}[batches, tokens, heads, length]");
    let own = <&[u64; 4]>::try_from(layout.shape());
    own.map_err(|_| Misfit::new(format!("{name} is {:?}", layout.shape()), wanted))
}

fn is_causal(op: &OpParameters) -> bool {
    op.choice_of("mask") == "causal"
}

fn results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let [q, k, v] = [0, 1, 2].map(|at| &operands[at]);
    let [batches, tokens, heads, length] = *four(q, "q")?;
    let [key_batches, keys, shared, key_length] = *four(k, "k")?;
    let [value_batches, values, value_heads, value_length] = *four(v, "v")?;
    let has_one = [k.dtype(), v.dtype()] == [q.dtype(); 2];
    if [key_batches, value_batches] != [batches; 2]
        || [values, value_heads] != [keys, shared]
        || !has_one
    {
        let what = format!("q {q}, k {k} and v {v}");
        return Err(Misfit::new(
            what,
            "one type, as many batches, and as many keys as values of as many heads",
        ));
    }
    if length != key_length || shared == 0 || !heads.is_multiple_of(shared) {
        let what = format!("{heads} heads of {length} over {shared} of {key_length}");
        let wanted = "one length, and a multiple of the keys' heads";
        return Err(Misfit::new(what, wanted));
    }
    for length in [length, value_length] {
        if !(1..=MOST_SEQUENCE_HEAD).contains(&length) {
            let wanted = format!("1 to {MOST_SEQUENCE_HEAD} elements");
            return Err(Misfit::new(format!("heads of {length}"), wanted));
        }
    }
    if let Some(sinks) = operands.get(3)
        && (sinks.shape() != [heads] || sinks.dtype() != Dtype::F32)
    {
        let what = format!("sinks is {sinks}");
        return Err(Misfit::new(
            what,
            format!("f32, one of each of {heads} heads"),
        ));
    }
    if window_of(op)? > 0 && !is_causal(op) {
        let what = "a window of last keys without mask=causal";
        return Err(Misfit::new(what, "a causal mask, or no window"));
    }
    for name in ["scale", "limit"] {
        let number = op.number_of(name);
        if !number.is_finite() || name != "scale" && number < 0.0 {
            return Err(Misfit::new(format!("{name} is {number}"), "0 or more"));
        }
    }
    Ok(vec![(
        q.dtype(),
        vec![batches, tokens, heads, value_length],
    )])
}

fn lower(op: &OpParameters, program: &mut NativeProgram, kernel: SequenceKernel) -> RowLowering {
    let [q, k, v] = [0, 1, 2].map(|at| program.input(at));
    let views = SequenceViews {
        q,
        k,
        v,
        sinks: (program.operands() > 3).then(|| program.input(3)),
        to: program.output(0),
    };
    let numbers = SequenceNumbers {
        scale: scale_of(op, q.shape().last().copied().unwrap_or(1)),
        limit: op.number_of("limit"),
        // It was looked at with the operands.
        window: window_of(op).unwrap_or(0),
        is_causal: is_causal(op),
    };
    attend_sequences(program, kernel, &views, numbers)
}

fn by_threads(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    lower(op, program, SequenceKernel::Threads)
}

/// Attention by warpgroups.
pub(crate) fn warpgroups(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    lower(op, program, SequenceKernel::Warpgroups)
}

/// The keys that a query attends to.
fn keys_of(op: &OpParameters, token: u64, tokens: u64, keys: u64) -> std::ops::Range<u64> {
    if !is_causal(op) {
        return 0..keys;
    }
    let end = (token + 1 + keys).saturating_sub(tokens).min(keys);
    let begin = match window_of(op) {
        Ok(window) if window > 0 => end.saturating_sub(window),
        _ => 0,
    };
    begin..end
}

fn expected(op: &OpParameters, x: &[HostArray], results: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let (q, k, v, dtype) = (&x[0], &x[1], &x[2], results[0].dtype());
    let &[batches, tokens, heads, length] = &q.shape[..] else {
        return Vec::new();
    };
    let (keys, shared, value_length) = (k.shape[1], k.shape[2], v.shape[3]);
    let t = ApproxType::of(dtype);
    let unit = t.number(1.0).error;
    // Of 16 bits weights may be rounded to the type, and exponentials approximate.
    let rounding = last_place(dtype);
    let (scale, limit) = (scale_of(op, length), op.number_of("limit"));
    let mut all = Vec::new();
    for (batch, token, head) in (0..batches)
        .flat_map(|batch| (0..tokens).map(move |token| (batch, token)))
        .flat_map(|(batch, token)| (0..heads).map(move |head| (batch, token, head)))
    {
        let of_keys = head / (heads / shared);
        let range = keys_of(op, token, tokens, keys);
        let score = |key: u64| {
            let products = (0..length).map(|d| {
                let query = t.exact(q.at(&[batch, token, head, d]));
                query * t.number(scale) * t.exact(k.at(&[batch, key, of_keys, d]))
            });
            let score = t.sum(products);
            match limit > 0.0 {
                true => {
                    let limit = t.number(limit);
                    turned(t, score / limit, f64::tanh) * limit
                }
                false => score,
            }
        };
        let mut scores: Vec<Approx> = range.clone().map(score).collect();
        if let Some(sinks) = x.get(3) {
            scores.push(t.exact(sinks.at(&[head])));
        }
        let most = scores
            .iter()
            .fold(f64::NEG_INFINITY, |most, it| most.max(it.value));
        let far = scores
            .iter()
            .fold(0.0, |far: f64, it| far.max(most - it.value));
        let count = range.end.saturating_sub(range.start);
        let times = 4.0 + 2.0 * count as f64 / LEAST_TILE;
        let weight = |score: &Approx| {
            let value = f64::exp(score.value - most);
            let off = score.error + times * unit * (far + 4.0);
            let mut weight = t.exact(value);
            weight.error = value * off.exp_m1();
            weight.rounded(times)
        };
        let weights: Vec<Approx> = scores.iter().map(weight).collect();
        let total = t.sum(weights.iter().copied());
        for d in 0..value_length {
            if range.is_empty() {
                all.push((0.0, 0.0));
                continue;
            }
            let rounded = |mut weight: Approx| {
                // Below the least normal number a weight may lose all its bits.
                weight.error += rounding * weight.value + least_weight(dtype);
                weight
            };
            let products = range
                .clone()
                .zip(&weights)
                .map(|(key, weight)| rounded(*weight) * t.exact(v.at(&[batch, key, of_keys, d])));
            all.push((t.sum(products) / total).stored(dtype));
        }
    }
    vec![all]
}

/// Half the distance of two neighbours of 1, of floats of 16 bits.
fn last_place(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 => 2f64.powi(-11),
        Dtype::Bf16 => 2f64.powi(-8),
        _ => 0.0,
    }
}

/// The error of a weight below the least normal number of its type.
fn least_weight(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 => 2f64.powi(-25),
        _ => 0.0,
    }
}

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Attention "attention" ("q", "k", "v", "sinks") Floats
        { "scale": 0.0, "limit": 0.0, "window": 0.0 } []
        { optional: 1, typed: &[("sinks", TypeClass::Floats)],
          choices: &[("mask", &["none", "causal"])] }
        "cuda.attention", results, by_threads, expected,
        "values v[batches, keys, shared heads, value length] by the softmax of q[batches, tokens, heads, length] . k[batches, keys, shared heads, length] * scale (0 for 1 / root of the length); each shared head is that of neighbouring heads of queries; with mask=causal the last query attends to all keys, the one before to all but the last, and with a window to the last keys of those; limit is that of tanh; a sink is a score without value, f32; without keys 0; of f16 and bf16 weights may be rounded to the type"),
];
