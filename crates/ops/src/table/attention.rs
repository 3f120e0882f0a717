//! Rows of attention over cached keys, of rotary positions, and of what is stored in a cache.

use fercuda_jit::TypeClass;
use fercuda_kernels::NativeProgram;
use fercuda_kernels::attention::{
    self, AttentionNumbers, AttentionViews, MOST_HEAD_LENGTH, RotaryPairs,
};
use fercuda_kernels::head_inputs::{HeadNumbers, HeadViews, head_inputs};
use fercuda_tensor::{Dtype, Layout};

use super::along::by_index;
use super::approx::{Approx, ApproxType};
use super::bounds::stored;
use super::scalar::whole_number;
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// Keys that a block goes over at once; each time it may scale what it has.
const TILE: f64 = 128.0;

fn three<'a>(layout: &'a Layout, name: &str) -> Result<&'a [u64; 3], Misfit> {
    let wanted = format!("{name}[tokens, heads, length]");
    let own = <&[u64; 3]>::try_from(layout.shape());
    own.map_err(|_| Misfit::new(format!("{name} is {:?}", layout.shape()), wanted))
}

fn four<'a>(layout: &'a Layout, name: &str) -> Result<&'a [u64; 4], Misfit> {
    let wanted = format!("{name}[blocks, places, heads, length]");
    let own = <&[u64; 4]>::try_from(layout.shape());
    own.map_err(|_| Misfit::new(format!("{name} is {:?}", layout.shape()), wanted))
}

/// Checks that an operand has one element for each token.
pub(super) fn of_tokens(layout: &Layout, name: &str, tokens: u64) -> Result<(), Misfit> {
    match layout.shape() == [tokens] {
        true => Ok(()),
        false => {
            let what = format!("{name} is {:?} for {tokens} tokens", layout.shape());
            Err(Misfit::new(what, format!("{name}[{tokens}]")))
        }
    }
}

fn check_f32(layout: &Layout, name: &str) -> Result<(), Misfit> {
    match layout.dtype() {
        Dtype::F32 => Ok(()),
        dtype => Err(Misfit::new(format!("{name} of {dtype}"), "f32")),
    }
}

// Rotary positions.

fn rope_results(_: &OpParameters, operands: &[Layout]) -> RowResults {
    let [tokens, _, length] = three(&operands[0], "x")?;
    of_tokens(&operands[1], "position", *tokens)?;
    check_f32(&operands[2], "frequency")?;
    let frequencies = operands[2].shape();
    let fits = matches!(frequencies, [pairs] if pairs.saturating_mul(2) <= *length);
    match fits {
        true => Ok(vec![(operands[0].dtype(), operands[0].shape().to_vec())]),
        false => {
            let what = format!("frequency is {frequencies:?} for heads of {length}");
            Err(Misfit::new(what, "one for each pair of elements at most"))
        }
    }
}

pub(super) fn pairs_of(op: &OpParameters) -> RotaryPairs {
    match op.choice_of("pairs") {
        "adjacent" => RotaryPairs::Adjacent,
        _ => RotaryPairs::Halves,
    }
}

fn rope(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [x, position, frequency] = [0, 1, 2].map(|at| program.input(at));
    let to = program.output(0);
    let magnitude = op.number_of("magnitude");
    attention::rotate(
        program,
        [&x, &position, &frequency, &to],
        pairs_of(op),
        magnitude,
    )
}

/// A function of an angle whose slope is at most 1.
pub(super) fn turned(t: ApproxType, angle: Approx, by: fn(f64) -> f64) -> Approx {
    let mut turned = t.exact(by(angle.value));
    turned.error = angle.error.min(2.0);
    turned.rounded(4.0)
}

/// An element of a head that is turned, by its elements, its position and the frequencies.
fn rotated(
    op: &OpParameters,
    t: ApproxType,
    (position, frequencies): (f64, &HostArray),
    element: u64,
    own: impl Fn(u64) -> Approx,
) -> Approx {
    let pairs = frequencies.shape[0];
    if element >= 2 * pairs {
        return own(element);
    }
    let (pair, is_second) = match pairs_of(op) {
        RotaryPairs::Halves => (element % pairs, element >= pairs),
        RotaryPairs::Adjacent => (element / 2, element % 2 == 1),
    };
    let other = match (pairs_of(op), is_second) {
        (RotaryPairs::Halves, false) => element + pairs,
        (RotaryPairs::Halves, true) => element - pairs,
        (RotaryPairs::Adjacent, false) => element + 1,
        (RotaryPairs::Adjacent, true) => element - 1,
    };
    let magnitude = t.number(op.number_of("magnitude"));
    let angle = t.number(position) * t.exact(frequencies.at(&[pair]));
    let sine = turned(t, angle, f64::sin) * magnitude;
    let cosine = turned(t, angle, f64::cos) * magnitude;
    match is_second {
        true => own(other) * sine + own(element) * cosine,
        false => own(element) * cosine - own(other) * sine,
    }
}

fn rope_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (dtype, pairs) = (results[0].dtype(), x[2].shape[0]);
    let t = ApproxType::of(dtype);
    by_index(&results[0], |index| {
        let (token, head, element) = (index[0], index[1], index[2]);
        if element >= 2 * pairs {
            return (x[0].at(index), 0.0);
        }
        let own = |element| t.exact(x[0].at(&[token, head, element]));
        rotated(op, t, (x[1].at(&[token]), &x[2]), element, own).stored(dtype)
    })
}

// Heads on their way to attention.

/// Heads of queries, by the layouts of what is projected and of the cache.
fn query_heads(x: &Layout, k: &Layout, v: &Layout) -> Result<u64, Misfit> {
    let [.., shared, length] = four(k, "k")?;
    let [.., value_length] = four(v, "v")?;
    let &[_, columns] = x.shape() else {
        let what = format!("x is {:?}", x.shape());
        return Err(Misfit::new(what, "x[tokens, elements of all heads]"));
    };
    let each = length.checked_add(*value_length);
    let of_cache = each.and_then(|each| each.checked_mul(*shared));
    let rest = of_cache.and_then(|own| columns.checked_sub(own));
    match rest {
        Some(rest) if *length > 0 && rest.is_multiple_of(*length) => Ok(rest / length),
        _ => {
            let what =
                format!("x of {columns} columns for {shared} heads of {length} and {value_length}");
            Err(Misfit::new(what, "heads of queries, of keys and of values"))
        }
    }
}

pub(super) fn inputs_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let [x, position, frequency, index, k, v] = [0, 1, 2, 3, 4, 5].map(|at| &operands[at]);
    let heads = query_heads(x, k, v)?;
    let (tokens, length) = (x.shape()[0], k.shape()[3]);
    if k.shape()[..3] != v.shape()[..3] || k.dtype() != v.dtype() {
        let what = format!("k {k} and v {v}");
        return Err(Misfit::new(what, "one type, and blocks, places and heads"));
    }
    for length in [length, v.shape()[3]] {
        if !(1..=MOST_HEAD_LENGTH).contains(&length) {
            let wanted = format!("1 to {MOST_HEAD_LENGTH} elements");
            return Err(Misfit::new(format!("heads of {length}"), wanted));
        }
    }
    of_tokens(position, "position", tokens)?;
    of_tokens(index, "index", tokens)?;
    check_f32(frequency, "frequency")?;
    let frequencies = frequency.shape();
    if !matches!(frequencies, [pairs] if pairs.saturating_mul(2) <= length) {
        let what = format!("frequency is {frequencies:?} for heads of {length}");
        return Err(Misfit::new(what, "one for each pair of elements at most"));
    }
    match &operands[6..] {
        [] => {}
        [q_norm, k_norm] if [q_norm, k_norm].iter().all(|it| it.shape() == [length]) => {}
        norms => {
            let shapes: Vec<&[u64]> = norms.iter().map(Layout::shape).collect();
            let what = format!("norms of {shapes:?}");
            return Err(Misfit::new(what, format!("two of [{length}], or none")));
        }
    }
    let eps = op.number_of("eps");
    if !(eps.is_finite() && eps >= 0.0) {
        return Err(Misfit::new(format!("eps is {eps}"), "0 or more"));
    }
    Ok(vec![
        (x.dtype(), vec![tokens, heads, length]),
        (k.dtype(), k.shape().to_vec()),
        (v.dtype(), v.shape().to_vec()),
    ])
}

fn inputs(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [x, position, frequency, slot, k, v] = [0, 1, 2, 3, 4, 5].map(|at| program.input(at));
    let has_norms = program.operands() > 6;
    let views = HeadViews {
        x,
        position,
        frequency,
        slot,
        cache: [k, v],
        norms: has_norms.then(|| [program.input(6), program.input(7)]),
        q: program.output(0),
        to: [program.output(1), program.output(2)],
    };
    let numbers = HeadNumbers {
        pairs: pairs_of(op),
        epsilon: op.number_of("eps"),
        magnitude: op.number_of("magnitude"),
    };
    head_inputs(program, &views, numbers)
}

pub(super) fn inputs_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (dtype, cached) = (results[0].dtype(), results[1].dtype());
    let t = ApproxType::of(dtype);
    let &[tokens, heads, length] = results[0].shape() else {
        return Vec::new();
    };
    let [slots, shared] = [x[4].shape[0] * x[4].shape[1], x[4].shape[2]];
    let value_length = x[5].shape[3];
    // Elements of a head that starts at a column, by the norm's weights.
    let head_of = |token: u64, first: u64, norm: Option<&HostArray>| -> Vec<Approx> {
        let own: Vec<Approx> = (0..length)
            .map(|d| t.exact(x[0].at(&[token, first + d])))
            .collect();
        let Some(norm) = norm else {
            return own;
        };
        let squares = t.sum(own.iter().map(|it| *it * *it)) / t.number(length as f64);
        let by = t.exact(1.0) / (squares + t.number(op.number_of("eps"))).sqrt();
        let weighted = own.iter().zip(&norm.values);
        weighted
            .map(|(own, weight)| *own * by * t.exact(*weight))
            .collect()
    };
    let turned = |token: u64, head: &[Approx], element: u64| {
        let position = x[1].at(&[token]);
        rotated(op, t, (position, &x[2]), element, |d| head[d as usize])
    };
    let mut queries = Vec::new();
    for (token, head) in (0..tokens).flat_map(|it| (0..heads).map(move |head| (it, head))) {
        let own = head_of(token, head * length, x.get(6));
        queries.extend((0..length).map(|d| turned(token, &own, d).stored(dtype)));
    }
    let kept = |array: &HostArray| -> Vec<ExpectedElement> {
        array.values.iter().map(|it| (*it, 0.0)).collect()
    };
    let (mut keys, mut values) = (kept(&x[4]), kept(&x[5]));
    for token in 0..tokens {
        let slot = x[3].at(&[token]);
        if !(0.0..slots as f64).contains(&slot) {
            continue;
        }
        for head in 0..shared {
            let place = slot as u64 * shared + head;
            let own = head_of(token, (heads + head) * length, x.get(7));
            for d in 0..length {
                keys[(place * length + d) as usize] = turned(token, &own, d).stored(cached);
            }
            let first = (heads + shared) * length + head * value_length;
            for d in 0..value_length {
                let value = t.exact(x[0].at(&[token, first + d])).rounded(2.0);
                values[(place * value_length + d) as usize] = value.stored(cached);
            }
        }
    }
    vec![queries, keys, values]
}

// A cache.

fn append_results(_: &OpParameters, operands: &[Layout]) -> RowResults {
    let [_, _, heads, length] = four(&operands[0], "cache")?;
    let [tokens, own_heads, own_length] = three(&operands[1], "rows")?;
    of_tokens(&operands[2], "index", *tokens)?;
    match [heads, length] == [own_heads, own_length] {
        true => Ok(vec![(operands[0].dtype(), operands[0].shape().to_vec())]),
        false => {
            let what = format!("rows of {own_heads} heads of {own_length}");
            Err(Misfit::new(what, format!("{heads} heads of {length}")))
        }
    }
}

fn append(_: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [cache, rows, slot] = [0, 1, 2].map(|at| program.input(at));
    let to = program.output(0);
    attention::append(program, [&cache, &rows, &slot, &to])
}

fn append_expected(
    _: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (cache, rows, dtype) = (&x[0], &x[1], results[0].dtype());
    let mut all: Vec<ExpectedElement> = cache.values.iter().map(|it| (*it, 0.0)).collect();
    let (slots, row) = (
        cache.shape[0] * cache.shape[1],
        rows.shape[1] * rows.shape[2],
    );
    let t = ApproxType::of(dtype);
    for (token, slot) in x[2].values.iter().enumerate() {
        if !(0.0..slots as f64).contains(slot) {
            continue;
        }
        for element in 0..row {
            let value = rows.values[token * row as usize + element as usize];
            let stored = t.exact(value).rounded(2.0).stored(dtype);
            all[(*slot as u64 * row + element) as usize] = stored;
        }
    }
    vec![all]
}

// Attention.

pub(super) fn scale_of(op: &OpParameters, length: u64) -> f64 {
    match op.number_of("scale") {
        0.0 => 1.0 / (length as f64).sqrt(),
        scale => scale,
    }
}

pub(super) fn window_of(op: &OpParameters) -> Result<u64, Misfit> {
    let window = whole_number(op, "window")?;
    u64::try_from(window).map_err(|_| {
        let what = format!("a window of {window}");
        Misfit::new(what, "a number of positions, or 0 for all")
    })
}

/// Whether queries and weights may be rounded to the cache's type, or to f16 if it has 8 bits.
fn is_rounded(op: &OpParameters) -> bool {
    op.choice_of("products") == "cached"
}

fn run_of(op: &OpParameters) -> Result<u64, Misfit> {
    let run = whole_number(op, "run")?;
    match u64::try_from(run) {
        Ok(run) if run > 0 => Ok(run),
        _ => Err(Misfit::new(format!("a run of {run}"), "1 token or more")),
    }
}

fn attend_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let [q, k, v, table, sequence, position] = [0, 1, 2, 3, 4, 5].map(|at| &operands[at]);
    let [tokens, heads, length] = three(q, "q")?;
    let [blocks, places, shared, key_length] = four(k, "k")?;
    let [value_blocks, value_places, value_heads, value_length] = four(v, "v")?;
    if [blocks, places, shared] != [value_blocks, value_places, value_heads]
        || k.dtype() != v.dtype()
    {
        let what = format!("k {k} and v {v}");
        return Err(Misfit::new(what, "one type, and blocks, places and heads"));
    }
    if length != key_length || *shared == 0 || heads % shared != 0 {
        let what = format!("{heads} heads of {length} over {shared} of {key_length}");
        return Err(Misfit::new(
            what,
            "one length, and a multiple of the cache's heads",
        ));
    }
    for length in [length, value_length] {
        if !(1..=MOST_HEAD_LENGTH).contains(length) {
            let wanted = format!("1 to {MOST_HEAD_LENGTH} elements");
            return Err(Misfit::new(format!("heads of {length}"), wanted));
        }
    }
    if *places == 0 {
        return Err(Misfit::new("blocks without places", "one place or more"));
    }
    if (q.dtype() == Dtype::F64) != (k.dtype() == Dtype::F64) {
        let what = format!("q of {} over a cache of {}", q.dtype(), k.dtype());
        return Err(Misfit::new(what, "f64 for both or for none"));
    }
    if table.shape().len() != 2 {
        let what = format!("table is {:?}", table.shape());
        return Err(Misfit::new(what, "table[sequences, blocks of one]"));
    }
    of_tokens(sequence, "sequence", *tokens)?;
    of_tokens(position, "position", *tokens)?;
    if let Some(sinks) = operands.get(6) {
        check_f32(sinks, "sinks")?;
        if sinks.shape() != [*heads] {
            let what = format!("sinks is {:?}", sinks.shape());
            return Err(Misfit::new(what, format!("one of each of {heads} heads")));
        }
    }
    window_of(op)?;
    run_of(op)?;
    for name in ["scale", "limit", "max_bias"] {
        let number = op.number_of(name);
        if !number.is_finite() || name != "scale" && number < 0.0 {
            return Err(Misfit::new(format!("{name} is {number}"), "0 or more"));
        }
    }
    Ok(vec![(q.dtype(), vec![*tokens, *heads, *value_length])])
}

fn attend(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [q, k, v, table, sequence, position] = [0, 1, 2, 3, 4, 5].map(|at| program.input(at));
    let sinks = (program.operands() > 6).then(|| program.input(6));
    let numbers = AttentionNumbers {
        scale: scale_of(op, q.shape()[2]),
        limit: op.number_of("limit"),
        bias: op.number_of("max_bias"),
        // The results' rule has accepted both.
        window: window_of(op).unwrap_or_default(),
        is_rounded: is_rounded(op),
        run: run_of(op).unwrap_or(1),
    };
    let views = AttentionViews {
        q,
        k,
        v,
        table,
        sequence,
        position,
        sinks,
        to: program.output(0),
    };
    attention::attend(program, &views, numbers)
}

/// Places of the keys that a token attends to: block, place, and distance, which is not above 0.
fn keys_of(op: &OpParameters, x: &[HostArray], token: u64) -> Vec<(u64, u64, f64)> {
    let (k, table) = (&x[1], &x[3]);
    let (sequence, last) = (x[4].at(&[token]), x[5].at(&[token]));
    let window = window_of(op).unwrap_or_default() as f64;
    let (blocks, places) = (k.shape[0], k.shape[1]);
    if !(0.0..table.shape[0] as f64).contains(&sequence) {
        return Vec::new();
    }
    let room = table.shape[1] * places;
    let all = (0..room).map(|key| (key, key as f64 - last));
    let near = all.filter(|(_, from)| *from <= 0.0 && (window == 0.0 || *from > -window));
    let mut keys = Vec::new();
    for (key, from) in near {
        let block = table.at(&[sequence as u64, key / places]);
        if (0.0..blocks as f64).contains(&block) {
            keys.push((block as u64, key % places, from));
        }
    }
    keys
}

/// How steeply a head's scores fall with the distance.
fn slope(bias: f64, heads: u64, head: u64) -> f64 {
    let own = 1u64 << heads.ilog2();
    let exponent = match head < own {
        true => (head + 1) as f64,
        false => (2 * (head - own) + 1) as f64 / 2.0,
    };
    f64::exp2(-bias * exponent / own as f64)
}

/// A factor of a product of a cache of 16 or 8 bits, which may be rounded to its type or to f16.
fn factor_of(cached: Dtype, mut value: Approx) -> Approx {
    let cached = match cached.bytes() {
        1 => Dtype::F16,
        _ => cached,
    };
    if cached.bytes() == 2 {
        let (rounded, error) = stored(cached, value.value, 0.0);
        value.error += error;
        if !rounded.is_finite() {
            value.error = f64::INFINITY;
        }
    }
    value
}

fn attend_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let bias = op.number_of("max_bias");
    let exact = [0, 1, 2].map(|at: usize| vec![0.0; x[at].values.len()]);
    vec![attended(
        op,
        x,
        &exact,
        bias,
        is_rounded(op),
        results[0].dtype(),
    )]
}

/// The result of attention over queries, keys, values, table, sequence, position and perhaps sinks,
/// the first three of which have errors.
pub(super) fn attended(
    op: &OpParameters,
    x: &[HostArray],
    errors: &[Vec<f64>; 3],
    bias: f64,
    is_rounded: bool,
    dtype: Dtype,
) -> Vec<ExpectedElement> {
    let (q, k, v) = (&x[0], &x[1], &x[2]);
    let (heads, length) = (q.shape[1], q.shape[2]);
    let shared = k.shape[2];
    let t = ApproxType::of(dtype);
    let unit = t.number(1.0).error;
    let (scale, limit) = (scale_of(op, length), op.number_of("limit"));
    let element = |of: usize, index: [u64; 4]| {
        let array = &x[of];
        let index = &index[4 - array.shape.len()..];
        let place = array.shape.iter().zip(index);
        let place = place.fold(0, |place, (extent, at)| place * extent + at) as usize;
        let mut own = t.exact(array.values[place]);
        own.error = errors[of][place];
        own
    };
    let factor = |cached, value| match is_rounded {
        true => factor_of(cached, value),
        false => value,
    };
    let mut all = Vec::new();
    for token in 0..q.shape[0] {
        let keys = keys_of(op, x, token);
        for head in 0..heads {
            let of_keys = head / (heads / shared);
            let score = |(block, place, from): &(u64, u64, f64)| {
                let products = (0..length).map(|d| {
                    let query = factor(k.dtype, element(0, [0, token, head, d]));
                    query * t.number(scale) * element(1, [*block, *place, of_keys, d])
                });
                let mut score = t.sum(products);
                if limit > 0.0 {
                    let limit = t.number(limit);
                    score = turned(t, score / limit, f64::tanh) * limit;
                }
                match bias > 0.0 {
                    true => score + t.number(slope(bias, heads, head)) * t.number(*from),
                    false => score,
                }
            };
            let mut scores: Vec<Approx> = keys.iter().map(score).collect();
            if let Some(sinks) = x.get(6) {
                scores.push(t.exact(sinks.at(&[head])));
            }
            let most = scores
                .iter()
                .fold(f64::NEG_INFINITY, |most, it| most.max(it.value));
            let far = scores
                .iter()
                .fold(0.0, |far: f64, it| far.max(most - it.value));
            // Each tile and each split may scale what is there by a power of e.
            let times = 4.0 + 2.0 * keys.len() as f64 / TILE;
            let weight = |score: &Approx| {
                let value = f64::exp(score.value - most);
                let off = score.error + times * unit * (far + 4.0);
                let mut weight = t.exact(value);
                weight.error = value * off.exp_m1();
                weight.rounded(times)
            };
            let weights: Vec<Approx> = scores.iter().map(weight).collect();
            let total = t.sum(weights.iter().copied());
            for d in 0..v.shape[3] {
                let values = keys
                    .iter()
                    .zip(&weights)
                    .map(|((block, place, _), weight)| {
                        factor(v.dtype, *weight) * element(2, [*block, *place, of_keys, d])
                    });
                let value = t.sum(values);
                all.push(match keys.is_empty() {
                    true => (0.0, 0.0),
                    false => (value / total).stored(dtype),
                });
            }
        }
    }
    all
}

pub(super) const INPUT_TYPES: &[(&str, TypeClass)] = &[
    ("position", TypeClass::Integers),
    ("frequency", TypeClass::Floats),
    ("index", TypeClass::Integers),
    ("k", TypeClass::Floats),
    ("v", TypeClass::Floats),
];

const ATTEND_TYPES: &[(&str, TypeClass)] = &[
    ("k", TypeClass::Floats),
    ("v", TypeClass::Floats),
    ("table", TypeClass::Integers),
    ("sequence", TypeClass::Integers),
    ("position", TypeClass::Integers),
    ("sinks", TypeClass::Floats),
];

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Attention "rope" ("x", "position", "frequency") Floats { "magnitude": 1.0 } []
        { typed: &[("position", TypeClass::Integers), ("frequency", TypeClass::Floats)],
          choices: &[("pairs", &["halves", "adjacent"])] }
        "cuda.attention", rope_results, rope, rope_expected,
        "x[tokens, heads, length] with pairs of elements turned by position * frequency, which is f32, times the magnitude; a pair is from both halves of what is turned, or neighbours"),
    native!(Attention "cache_append" ("cache", "rows", "index") Floats {} []
        { typed: &[("rows", TypeClass::Floats)] }
        "cuda.attention", append_results, append, append_expected,
        "cache[blocks, places, heads, length] with the rows of tokens in the places that the index numbers through all blocks; in place, nothing else is copied"),
    native!(Attention "attention_inputs" ("x", "position", "frequency", "index", "k", "v", "q_norm", "k_norm") Floats
        { "eps": 1e-6, "magnitude": 1.0 } []
        { optional: 2, typed: INPUT_TYPES, choices: &[("pairs", &["halves", "adjacent"])],
          results: &["q", "k", "v"] }
        "cuda.attention", inputs_results, inputs, inputs_expected,
        "heads of x[tokens, those of queries, of keys and of values]: rms_norm of each of the first two by q_norm and k_norm, rope of them, and cache_append of the last two; the heads of queries, and the cache, in place or not"),
    native!(Attention "paged_attention" ("q", "k", "v", "table", "sequence", "position", "sinks") Floats
        { "scale": 0.0, "limit": 0.0, "max_bias": 0.0, "window": 0.0, "run": 1.0 } []
        { optional: 1, typed: ATTEND_TYPES, choices: &[("products", &["exact", "cached"])] }
        "cuda.attention", attend_results, attend, attend_expected,
        "values of a cache by the softmax of q . k * scale (0 for 1 / root of the length), of each token up to its position in its sequence, whose blocks are a row of the table; limit is that of tanh, max_bias of ALiBi, window of the last positions; a sink is a score without value; products of a cache of 16 or 8 bits may round queries and weights to its type or, of 8 bits, to f16, on tensor cores; run is about how many tokens of a sequence follow one another, a hint"),
];
