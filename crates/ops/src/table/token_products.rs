//! Rows of products of the vectors of few tokens, for decoding: one launch with the norm before,
//! the gate or the residual.
//!
//! With weights in blocks vectors are quantised to 8 bits, in blocks of 32 elements whose scales
//! are f32: nearer to x than the blocks of llama.cpp. A vector that is not finite gives NaN then.

use fercuda_jit::TypeClass;
use fercuda_kernels::NativeProgram;
use fercuda_kernels::token_product::{MOST_TOKENS, TokenProduct, TokenWeights, token_product};
use fercuda_tensor::{BlockFormat, Dtype, Layout};

use super::blocks::{self, FORMATS, WeightRow, matrix, near};
use super::bounds::{magnitudes, unit_roundoff};
use super::scalar::sigmoid;
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

const CHOICES: &[(&str, &[&str])] = &[
    (
        "format",
        &[
            "plain", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1", "q2_k", "q3_k", "q4_k",
            "q5_k", "q6_k", "q8_k", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs",
            "iq3_s", "iq4_nl", "iq4_xs", "tq1_0", "tq2_0", "mxfp4", "nvfp4", "q1_0", "q2_0",
        ],
    ),
    ("weights", &["any", "constant"]),
];

/// Whether `token_linear`, `normed_linear` and `normed_swiglu` multiply so many vectors of so many
/// elements, by weights of floats or of blocks.
pub fn has_token_products(format: Option<BlockFormat>, tokens: u64, inputs: u64) -> bool {
    let format = format.map_or(TokenWeights::Plain, TokenWeights::Blocks);
    tokens <= MOST_TOKENS && tokens.saturating_mul(inputs) <= format.most_elements()
}

/// What a row of the table has.
#[derive(Clone, Copy, PartialEq)]
enum TokenForm {
    /// x, w, residual.
    Plain,
    /// x, norm, up to three matrices.
    Normed,
    /// x, norm, gate, up.
    Gated,
}

impl TokenForm {
    fn first_weight(self) -> usize {
        match self {
            Self::Plain => 1,
            Self::Normed | Self::Gated => 2,
        }
    }

    /// Numbers of the operands that are matrices.
    fn weights(self, given: usize) -> std::ops::Range<usize> {
        match self {
            Self::Plain => 1..2,
            Self::Normed | Self::Gated => 2..given,
        }
    }
}

fn weights_of(op: &OpParameters) -> Result<TokenWeights, Misfit> {
    let name = op.choice_of("format");
    if name == "plain" {
        return Ok(TokenWeights::Plain);
    }
    name.parse().map(TokenWeights::Blocks).map_err(|_| {
        let what = format!("there is no block format {name:?}");
        Misfit::new(what, format!("plain, {}", FORMATS.join(", ")))
    })
}

/// Rows of a matrix and their elements.
fn sizes_of(format: TokenWeights, weight: &Layout) -> Result<(u64, u64), Misfit> {
    if let TokenWeights::Blocks(format) = format {
        return matrix(format, weight, "w");
    }
    let dtype = weight.dtype();
    match weight.shape() {
        [rows, inputs] if dtype.is_float() && dtype != Dtype::F64 => Ok((*rows, *inputs)),
        shape => Err(Misfit::new(
            format!("w is {dtype}{shape:?}"),
            "w[outputs, inputs] of floats other than f64",
        )),
    }
}

fn results(form: TokenForm, op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (format, x) = (weights_of(op)?, &operands[0]);
    let Some((inputs, outer)) = x.shape().split_last() else {
        return Err(Misfit::new("x has no dimensions", "x[.., inputs]"));
    };
    let tokens: u64 = outer.iter().product();
    let own = form.weights(operands.len());
    let mut columns: Vec<u64> = Vec::new();
    for weight in &operands[own.clone()] {
        let (rows, depth) = sizes_of(format, weight)?;
        if depth != *inputs || weight.dtype() != operands[own.start].dtype() {
            let what = format!("x has {inputs} inputs, w is {weight}");
            return Err(Misfit::new(what, "as many, and one type of all matrices"));
        }
        columns.push(rows);
    }
    let most = format.most_elements();
    if tokens > MOST_TOKENS || tokens.saturating_mul(*inputs) > most {
        let what = format!("{tokens} tokens of {inputs} elements");
        let wanted = format!("{MOST_TOKENS} tokens, and {most} elements of all, at most");
        return Err(Misfit::new(what, wanted));
    }
    let all = columns
        .iter()
        .try_fold(0_u64, |sum, own| sum.checked_add(*own));
    let columns = match (form, columns.as_slice()) {
        (TokenForm::Gated, [gate, up]) if gate == up => Some(*up),
        (TokenForm::Gated, _) => None,
        _ => all,
    };
    let Some(columns) = columns else {
        return Err(Misfit::new("gate and up differ", "as many rows of both"));
    };
    if form != TokenForm::Plain && operands[1].shape() != [*inputs] {
        let what = format!("norm is {:?}", operands[1].shape());
        return Err(Misfit::new(what, format!("[{inputs}], one for each input")));
    }
    let eps = op.number_of("eps");
    if form != TokenForm::Plain && !(eps.is_finite() && eps >= 0.0) {
        return Err(Misfit::new(format!("eps is {eps}"), "0 or more"));
    }
    let shape: Vec<u64> = outer.iter().copied().chain([columns]).collect();
    if form == TokenForm::Plain
        && let Some(residual) = operands.get(2)
        && residual.shape() != shape
    {
        let what = format!("residual is {:?}", residual.shape());
        return Err(Misfit::new(what, format!("{shape:?}, as the result")));
    }
    Ok(vec![(x.dtype(), shape)])
}

fn lower(form: TokenForm, op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    // The rule of results has accepted the format.
    let Ok(format) = weights_of(op) else {
        return Ok(());
    };
    let given = program.operands();
    let (x, to) = (program.input(0), program.output(0));
    let norm = program.input(form.first_weight() - 1);
    let weights: Vec<_> = form.weights(given).map(|at| program.input(at)).collect();
    let residual = (form == TokenForm::Plain && given > 2).then(|| program.input(2));
    let product = TokenProduct {
        x: &x,
        norm: (form != TokenForm::Plain).then(|| (&norm, op.number_of("eps"))),
        weights: &weights,
        format,
        is_gated: form == TokenForm::Gated,
        residual: residual.as_ref(),
        has_constant_weights: op.choice_of("weights") == "constant",
        to: &to,
    };
    token_product(program, &product)
}

// References.

/// A vector as a product has it, with bounds of its elements' errors.
struct TokenVector {
    values: Vec<ExpectedElement>,
    /// Of all values, in proportion to them.
    relative: f64,
    /// Whether the result is NaN, and whether it is anything.
    is_nan: bool,
    is_known: bool,
}

/// Codes of 8 bits of 32 elements as what they stand for. A code may be another where its element
/// is half way between two.
fn quantised(values: &mut [ExpectedElement]) {
    for block in values.chunks_mut(32) {
        let most = block.iter().fold(0.0_f64, |most, it| most.max(it.0.abs()));
        let scale = most / 127.0;
        // Below that the inverse of the scale may be infinite, and all are 0.
        if scale < f64::exp2(-126.0) {
            block.iter_mut().for_each(|it| *it = (0.0, most));
            continue;
        }
        for (value, error) in block {
            let whole = *value / scale;
            let near_half = ((whole.abs().fract()) - 0.5).abs() < 2e-4;
            *error = if near_half { scale } else { 0.0 };
            *value = whole.round_ties_even() * scale;
        }
    }
}

fn vector(op: &OpParameters, row: &[f64], norm: Option<&HostArray>, is_plain: bool) -> TokenVector {
    let unit = unit_roundoff(Dtype::F32);
    let is_finite = row.iter().all(|value| value.is_finite());
    let mut values: Vec<ExpectedElement> = row.iter().map(|value| (*value, 0.0)).collect();
    let (mut relative, mut is_known) = (8.0 * unit, true);
    if let Some(norm) = norm {
        let squares: f64 = row.iter().map(|value| value * value).sum();
        let mean = squares / row.len().max(1) as f64 + op.number_of("eps");
        // Squares and their sum are f32.
        is_known = is_finite && squares < magnitudes(Dtype::F32).0 && mean > f64::exp2(-120.0);
        let by = 1.0 / mean.sqrt();
        for ((value, _), weight) in values.iter_mut().zip(&norm.values) {
            *value *= by * weight;
        }
        relative += (row.len() as f64 / 128.0 + 32.0) * unit;
        is_known &= values
            .iter()
            .all(|(value, _)| value.abs() < magnitudes(Dtype::F32).0);
    }
    if !is_plain && is_finite {
        quantised(&mut values);
    }
    TokenVector {
        values,
        relative,
        is_nan: !is_finite && !is_plain && norm.is_none(),
        is_known: is_known && is_finite,
    }
}

/// The sum of products, and the bound of its error.
fn dot(x: &TokenVector, weight: &WeightRow) -> ExpectedElement {
    if x.is_nan {
        return (f64::NAN, 0.0);
    }
    let (mut sum, mut size, mut error) = (0.0, 0.0, 0.0);
    let weights = weight.values.iter().zip(&weight.offsets);
    for ((x, off), (w, offset)) in x.values.iter().zip(weights) {
        sum = x.mul_add(*w, sum);
        size += x.abs() * (w.abs() + 2.0 * offset);
        error += off * (w.abs() + 2.0 * offset);
    }
    if !x.is_known || !size.is_finite() || size >= magnitudes(Dtype::F32).0 {
        return (sum, f64::INFINITY);
    }
    let count = x.values.len() as f64;
    let rounding = (2.0 * (count + 32.0) * unit_roundoff(Dtype::F32) + 2.0 * x.relative) * size;
    (sum, error + rounding + f64::exp2(-140.0) * (count + 1.0))
}

fn plain_rows(weight: &HostArray) -> Vec<WeightRow> {
    let width = weight.shape[1] as usize;
    let row = |at: usize| WeightRow {
        values: weight.values[at * width..][..width].to_vec(),
        offsets: vec![0.0; width],
        minimums: Vec::new(),
    };
    (0..weight.shape[0] as usize).map(row).collect()
}

fn expected(
    form: TokenForm,
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (Ok(format), dtype) = (weights_of(op), results[0].dtype()) else {
        return Vec::new();
    };
    let is_plain = format == TokenWeights::Plain;
    let depth = x[0].shape.last().copied().unwrap_or_default() as usize;
    let tokens = x[0].shape.iter().rev().skip(1).product::<u64>() as usize;
    let norm = (form != TokenForm::Plain).then(|| &x[1]);
    let rows_of = |weight: &HostArray| match format {
        TokenWeights::Plain => plain_rows(weight),
        TokenWeights::Blocks(format) => blocks::rows_of(format, weight),
    };
    let matrices: Vec<Vec<WeightRow>> = x[form.weights(x.len())].iter().map(rows_of).collect();
    let residual = (form == TokenForm::Plain).then(|| x.get(2)).flatten();
    let unit = unit_roundoff(Dtype::F32);
    let mut all = Vec::new();
    for token in 0..tokens {
        let own = vector(op, &x[0].values[token * depth..][..depth], norm, is_plain);
        if form == TokenForm::Gated {
            let both = matrices[0].iter().zip(&matrices[1]);
            all.extend(both.map(|(gate, up)| gated(dtype, dot(&own, gate), dot(&own, up))));
            continue;
        }
        for weight in matrices.iter().flatten() {
            let (sum, error) = dot(&own, weight);
            let added = residual.map_or(0.0, |it| it.values[all.len()]);
            let size = sum.abs() + added.abs();
            all.push(near(dtype, sum + added, error + 4.0 * unit * size));
        }
    }
    vec![all]
}

fn gated(dtype: Dtype, (gate, of_gate): ExpectedElement, up: ExpectedElement) -> ExpectedElement {
    let ((up, of_up), unit) = (up, unit_roundoff(Dtype::F32));
    let silu = gate * sigmoid(gate);
    let value = up * silu;
    // No slope of SiLU is above 1.1.
    let (of_silu, size) = (1.1 * of_gate + 16.0 * unit * silu.abs(), up.abs() + of_up);
    let error = of_up * silu.abs() + size * of_silu + 4.0 * unit * value.abs();
    near(dtype, value, error + f64::exp2(-140.0))
}

fn linear_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    results(TokenForm::Plain, op, operands)
}

fn linear(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    lower(TokenForm::Plain, op, program)
}

fn linear_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    expected(TokenForm::Plain, op, x, results)
}

fn normed_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    results(TokenForm::Normed, op, operands)
}

fn normed(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    lower(TokenForm::Normed, op, program)
}

fn normed_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    expected(TokenForm::Normed, op, x, results)
}

fn gated_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    results(TokenForm::Gated, op, operands)
}

fn gated_lower(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    lower(TokenForm::Gated, op, program)
}

fn gated_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    expected(TokenForm::Gated, op, x, results)
}

const TYPED: &[(&str, TypeClass)] = &[
    ("w", TypeClass::All),
    ("w2", TypeClass::All),
    ("w3", TypeClass::All),
    ("gate", TypeClass::All),
    ("up", TypeClass::All),
];

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Product "token_linear" ("x", "w", "residual") NotF64 {} []
        { optional: 1, typed: TYPED, choices: CHOICES }
        "cuda.token", linear_results, linear, linear_expected,
        "x w^T + residual of at most 8 vectors, in one launch; w has floats, or blocks of a format; with weights=constant they are read while the kernel before still runs, which must not write them"),
    native!(Product "normed_linear" ("x", "norm", "w", "w2", "w3") NotF64 {"eps": 1e-6} []
        { optional: 2, typed: TYPED, choices: CHOICES }
        "cuda.token", normed_results, normed, normed_expected,
        "token_linear of rms_norm(x) norm, by up to three matrices whose outputs follow one another"),
    native!(Product "normed_swiglu" ("x", "norm", "gate", "up") NotF64 {"eps": 1e-6} []
        { typed: TYPED, choices: CHOICES }
        "cuda.token", gated_results, gated_lower, gated_expected,
        "silu(n gate^T) (n up^T) of n = rms_norm(x) norm, as token_linear"),
];
