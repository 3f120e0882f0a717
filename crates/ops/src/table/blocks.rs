//! Rows of weights in blocks of quantised elements, as GGUF files have them: products of language
//! models, rows of embeddings, conversions.
//!
//! A product quantises its activations to 8 bits as llama.cpp does on a processor: in blocks of
//! 256 for formats of 256 elements, else of 32; for formats with a minimum a block's sum is rounded
//! to f16. An element of x that is not finite makes all results of its row NaN.

use fercuda_jit::TypeClass;
use fercuda_kernels::block::{self, ActivationBlocks, BlockProduct};
use fercuda_kernels::{KernelError, MemoryView, NativeProgram};
use fercuda_tensor::{BlockFormat, Dtype, Layout};

use super::bounds::{magnitudes, stored, unit_roundoff};
use super::products::check_added;
use super::scalar::sigmoid;
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

pub(super) const FORMATS: &[&str] = &[
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_k",
    "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs",
    "tq1_0", "tq2_0", "mxfp4", "nvfp4", "q1_0", "q2_0",
];
pub(super) const OF_FORMAT: &[(&str, &[&str])] = &[("format", FORMATS)];
const OF_ACTIVATIONS: &[(&str, &[&str])] = &[("format", &["q8_0", "q8_1", "q8_k"])];

/// The format that is chosen.
pub(super) fn format(op: &OpParameters) -> Result<BlockFormat, Misfit> {
    let name = op.choice_of("format");
    name.parse().map_err(|_| {
        let what = format!("there is no block format {name:?}");
        Misfit::new(what, FORMATS.join(", "))
    })
}

/// The type of floats that it gives, or one by default.
pub(super) fn result_type(op: &OpParameters, default: Dtype) -> Result<Dtype, Misfit> {
    let to = op.target().unwrap_or(default);
    match to.is_float() && to != Dtype::F64 {
        true => Ok(to),
        false => Err(Misfit::new(
            format!("it gives no {to}"),
            "a float other than f64",
        )),
    }
}

/// Elements of a row of so many bytes.
pub(super) fn elements(format: BlockFormat, bytes: u64) -> Result<u64, Misfit> {
    let of_block = format.bytes() as u64;
    let what = || format!("{bytes} bytes of a row are no whole blocks of {format}");
    match bytes % of_block {
        0 => (bytes / of_block)
            .checked_mul(format.elements() as u64)
            .ok_or_else(|| Misfit::new(what(), "fewer bytes")),
        _ => Err(Misfit::new(
            what(),
            format!(
                "{of_block} bytes for each {} elements of a row",
                format.elements()
            ),
        )),
    }
}

pub(super) fn check_bytes(layout: &Layout, what: &str) -> Result<(), Misfit> {
    match layout.dtype() {
        Dtype::U8 => Ok(()),
        dtype => Err(Misfit::new(
            format!("{what} is of {dtype}"),
            "u8: the bytes of blocks",
        )),
    }
}

/// Rows of a weight and their elements.
pub(super) fn matrix(
    format: BlockFormat,
    weight: &Layout,
    what: &str,
) -> Result<(u64, u64), Misfit> {
    check_bytes(weight, what)?;
    match weight.shape() {
        [rows, bytes] => Ok((*rows, elements(format, *bytes)?)),
        shape => Err(Misfit::new(
            format!("{what} has {} dimensions", shape.len()),
            "two: a row of blocks for each output",
        )),
    }
}

/// The shape of the product of x and a weight.
fn product_shape(
    format: BlockFormat,
    x: &Layout,
    weight: &Layout,
    what: &str,
) -> Result<Vec<u64>, Misfit> {
    let (columns, depth) = matrix(format, weight, what)?;
    let Some((inputs, outer)) = x.shape().split_last() else {
        return Err(Misfit::new("x has no dimensions", "x[.., inputs]"));
    };
    if *inputs != depth {
        let what = format!("x has {inputs} inputs, {what} {depth} as {format}");
        return Err(Misfit::new(what, "as many, and the format of the blocks"));
    }
    Ok(outer.iter().copied().chain([columns]).collect())
}

fn linear_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let x = &operands[0];
    let shape = product_shape(format(op)?, x, &operands[1], "w")?;
    check_added(operands, &shape)?;
    Ok(vec![(result_type(op, x.dtype())?, shape)])
}

fn gated_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (format, x) = (format(op)?, &operands[0]);
    let shape = product_shape(format, x, &operands[1], "gate")?;
    let other = product_shape(format, x, &operands[2], "up")?;
    if other != shape {
        let what = format!("gate gives {shape:?}, up {other:?}");
        return Err(Misfit::new(what, "as many rows of both"));
    }
    Ok(vec![(result_type(op, x.dtype())?, shape)])
}

/// What an op of a format that its rule of results has accepted adds.
pub(super) fn lowered(
    op: &OpParameters,
    lower: impl FnOnce(BlockFormat) -> Result<(), KernelError>,
) -> RowLowering {
    format(op).map_or(Ok(()), lower)
}

fn linear(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, weight, to) = (program.input(0), program.input(1), program.output(0));
    let given = program.operands();
    let optional = |at: usize| -> Option<MemoryView> { (given > at).then(|| program.input(at)) };
    let (bias, residual) = (optional(2), optional(3));
    let views = BlockProduct {
        x: &x,
        weight: &weight,
        choice: None,
        gate: None,
        bias: bias.as_ref(),
        residual: residual.as_ref(),
        to: &to,
    };
    lowered(op, |format| block::product(program, format, views))
}

fn gated(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, gate, up) = (program.input(0), program.input(1), program.input(2));
    let to = program.output(0);
    let views = BlockProduct {
        x: &x,
        weight: &up,
        choice: None,
        gate: Some(&gate),
        bias: None,
        residual: None,
        to: &to,
    };
    lowered(op, |format| block::product(program, format, views))
}

fn dequantise_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (format, blocks) = (format(op)?, &operands[0]);
    check_bytes(blocks, "w")?;
    let Some((bytes, outer)) = blocks.shape().split_last() else {
        return Err(Misfit::new("w has no dimensions", "w[.., bytes of blocks]"));
    };
    let row = elements(format, *bytes)?;
    let shape = outer.iter().copied().chain([row]).collect();
    Ok(vec![(result_type(op, Dtype::F32)?, shape)])
}

fn dequantise(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (blocks, to) = (program.input(0), program.output(0));
    lowered(op, |format| block::decode(program, format, &blocks, &to))
}

fn embedding_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let (_, width) = matrix(format(op)?, &operands[0], "w")?;
    let mut shape = operands[1].shape().to_vec();
    shape.push(width);
    Ok(vec![(result_type(op, Dtype::F32)?, shape)])
}

fn embedding(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (blocks, index, to) = (program.input(0), program.input(1), program.output(0));
    lowered(op, |format| {
        block::choose(program, format, &blocks, &index, &to)
    })
}

/// The format of 8 bits that is chosen.
fn activations(op: &OpParameters) -> ActivationBlocks {
    match op.choice_of("format") {
        "q8_1" => ActivationBlocks::Q8_1,
        "q8_k" => ActivationBlocks::Q8K,
        _ => ActivationBlocks::Q8_0,
    }
}

fn quantise_results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let format = activations(op).format();
    let Some((inputs, outer)) = operands[0].shape().split_last() else {
        return Err(Misfit::new("x has no dimensions", "x[.., inputs]"));
    };
    let (elements, bytes) = (format.elements() as u64, format.bytes() as u64);
    if inputs % elements != 0 {
        let what = format!("{inputs} elements of a row are no whole blocks of {format}");
        return Err(Misfit::new(what, format!("a multiple of {elements}")));
    }
    // Of q8_1 a block has more bytes than elements.
    let row = (inputs / elements).checked_mul(bytes);
    let row = row.ok_or_else(|| Misfit::new(format!("{inputs} elements"), "fewer elements"))?;
    let shape = outer.iter().copied().chain([row]).collect();
    Ok(vec![(Dtype::U8, shape)])
}

fn quantise(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let (x, to) = (program.input(0), program.output(0));
    block::encode(program, activations(op), &x, &to)
}

// References.

pub(super) fn bytes_of(x: &HostArray) -> Vec<u8> {
    x.values.iter().map(|value| *value as u8).collect()
}

fn decoded(format: BlockFormat, blocks: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; blocks.len() / format.bytes() * format.elements()];
    // Whole blocks, by the rule of results.
    format.decode(blocks, &mut values).unwrap_or_default();
    values
}

fn half_at(block: &[u8], at: usize) -> f64 {
    let bits = u16::from_le_bytes([block[at], block[at + 1]]);
    Dtype::F16.value(bits.into())
}

/// A row of activations as a product has it.
pub(super) struct QuantisedRow {
    /// Values that the codes stand for.
    values: Vec<f64>,
    /// By how much the sum of a block of 32 is off that of its values, for formats with a minimum.
    sums_off: Vec<f64>,
    is_finite: bool,
    /// Whether all scales are finite.
    has_scales: bool,
}

fn quantised(kind: ActivationBlocks, row: &[f64]) -> QuantisedRow {
    let format = kind.format();
    let own: Vec<f32> = row.iter().map(|value| *value as f32).collect();
    let mut blocks = vec![0; own.len() / format.elements() * format.bytes()];
    format.encode(&own, &mut blocks).unwrap_or_default();
    let values: Vec<f64> = decoded(format, &blocks)
        .into_iter()
        .map(f64::from)
        .collect();
    let sums_off = match kind {
        ActivationBlocks::Q8_1 => {
            let blocks = blocks.chunks(format.bytes()).zip(values.chunks(32));
            let off =
                |(block, values): (&[u8], &[f64])| half_at(block, 2) - values.iter().sum::<f64>();
            blocks.map(off).collect()
        }
        _ => Vec::new(),
    };
    QuantisedRow {
        has_scales: values
            .iter()
            .chain(&sums_off)
            .all(|value| value.is_finite()),
        values,
        sums_off,
        is_finite: own.iter().all(|value| value.is_finite()),
    }
}

/// A row of a weight.
pub(super) struct WeightRow {
    pub(super) values: Vec<f64>,
    /// Magnitudes of what is subtracted from scaled codes.
    pub(super) offsets: Vec<f64>,
    /// Minimums of blocks of 32, for the formats with them.
    pub(super) minimums: Vec<f64>,
}

pub(super) fn weight_row(format: BlockFormat, bytes: &[u8]) -> WeightRow {
    let codes = match format {
        BlockFormat::Q4_1 => 4..20,
        BlockFormat::Q5_1 => 4..24,
        BlockFormat::Q2_K => 16..80,
        BlockFormat::Q4_K => 16..144,
        BlockFormat::Q5_K => 16..176,
        _ => 0..0,
    };
    let mut without = bytes.to_vec();
    if !codes.is_empty() {
        let blocks = without.chunks_mut(format.bytes());
        blocks.for_each(|block| block[codes.clone()].fill(0));
    }
    let has_minimum = ActivationBlocks::of(format) == ActivationBlocks::Q8_1;
    let blocks = bytes.chunks(format.bytes()).filter(|_| has_minimum);
    WeightRow {
        values: decoded(format, bytes).into_iter().map(f64::from).collect(),
        offsets: match codes.is_empty() {
            true => vec![0.0; bytes.len() / format.bytes() * format.elements()],
            false => decoded(format, &without)
                .into_iter()
                .map(|value| f64::from(value).abs())
                .collect(),
        },
        minimums: blocks.map(|block| half_at(block, 2)).collect(),
    }
}

/// The sum of products, and the bound of its error.
pub(super) fn dot(x: &QuantisedRow, weight: &WeightRow) -> ExpectedElement {
    if !x.is_finite {
        return (f64::NAN, 0.0);
    }
    let (mut sum, mut size) = (0.0, 0.0);
    let weights = weight.values.iter().zip(&weight.offsets);
    for (x, (w, offset)) in x.values.iter().zip(weights) {
        sum = x.mul_add(*w, sum);
        size += x.abs() * (w.abs() + 2.0 * offset);
    }
    for (off, minimum) in x.sums_off.iter().zip(&weight.minimums) {
        sum += off * minimum;
        size += (off * minimum).abs();
    }
    if !x.has_scales || !size.is_finite() || size >= magnitudes(Dtype::F32).0 {
        return (sum, f64::INFINITY);
    }
    let units = x.values.len() as f64 / 32.0;
    let least = f64::exp2(-140.0) * (units + 1.0);
    (
        sum,
        2.0 * (units + 16.0) * unit_roundoff(Dtype::F32) * size + least,
    )
}

pub(super) fn rows_of(format: BlockFormat, weight: &HostArray) -> Vec<WeightRow> {
    let bytes = bytes_of(weight);
    let width = weight.shape[1] as usize;
    (0..weight.shape[0] as usize)
        .map(|row| weight_row(format, &bytes[row * width..][..width]))
        .collect()
}

pub(super) fn quantised_rows(format: BlockFormat, x: &HostArray) -> Vec<QuantisedRow> {
    let (depth, outer) = match x.shape.split_last() {
        Some((depth, outer)) => (*depth as usize, outer.iter().product::<u64>() as usize),
        None => (0, 0),
    };
    let kind = ActivationBlocks::of(format);
    (0..outer)
        .map(|row| quantised(kind, &x.values[row * depth..][..depth]))
        .collect()
}

fn linear_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (Ok(format), dtype) = (format(op), results[0].dtype()) else {
        return Vec::new();
    };
    let (rows, weights) = (quantised_rows(format, &x[0]), rows_of(format, &x[1]));
    let unit = unit_roundoff(Dtype::F32);
    let all = rows
        .iter()
        .flat_map(|row| weights.iter().map(move |w| dot(row, w)));
    let finish = |(at, (sum, error)): (usize, ExpectedElement)| {
        let column = at % weights.len();
        let bias = x.get(2).map_or(0.0, |bias| bias.values[column]);
        let residual = x.get(3).map_or(0.0, |residual| residual.values[at]);
        let size = sum.abs() + bias.abs() + residual.abs();
        near(dtype, sum + bias + residual, error + 4.0 * unit * size)
    };
    vec![all.enumerate().map(finish).collect()]
}

/// A value stored as a type; nothing is promised of one that is not finite, but of NaN by x.
pub(super) fn near(dtype: Dtype, value: f64, error: f64) -> ExpectedElement {
    match value.is_finite() {
        true => stored(dtype, value, error),
        false if value.is_nan() && error == 0.0 => (value, 0.0),
        false => (value, f64::INFINITY),
    }
}

fn gated_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (Ok(format), dtype) = (format(op), results[0].dtype()) else {
        return Vec::new();
    };
    let rows = quantised_rows(format, &x[0]);
    let (gates, ups) = (rows_of(format, &x[1]), rows_of(format, &x[2]));
    let all = rows.iter().flat_map(|row| {
        let both = gates.iter().zip(&ups);
        both.map(move |(gate, up)| gated_element(dtype, row, gate, up))
    });
    vec![all.collect()]
}

/// An element of a gated product.
pub(super) fn gated_element(
    dtype: Dtype,
    row: &QuantisedRow,
    gate: &WeightRow,
    up: &WeightRow,
) -> ExpectedElement {
    let unit = unit_roundoff(Dtype::F32);
    let ((gate, of_gate), (up, of_up)) = (dot(row, gate), dot(row, up));
    let silu = gate * sigmoid(gate);
    let value = up * silu;
    // No slope of SiLU is above 1.1.
    let (of_silu, size) = (1.1 * of_gate + 16.0 * unit * silu.abs(), up.abs() + of_up);
    let error = of_up * silu.abs() + size * of_silu + 4.0 * unit * value.abs();
    near(
        dtype,
        value,
        error + f64::exp2(-140.0) * f64::from(u8::from(of_up > 0.0)),
    )
}

fn decoded_expected(format: BlockFormat, blocks: &[u8], dtype: Dtype) -> Vec<ExpectedElement> {
    let values = decoded(format, blocks).into_iter();
    values
        .map(|value| (dtype.nearest(value.into()), 0.0))
        .collect()
}

fn dequantise_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let blocks = bytes_of(&x[0]);
    let dtype = results[0].dtype();
    let all = format(op).map(|format| decoded_expected(format, &blocks, dtype));
    vec![all.unwrap_or_default()]
}

fn embedding_expected(
    op: &OpParameters,
    x: &[HostArray],
    results: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let (Ok(format), dtype) = (format(op), results[0].dtype()) else {
        return Vec::new();
    };
    let (blocks, rows, width) = (bytes_of(&x[0]), x[0].shape[0], x[0].shape[1] as usize);
    let row = |index: &f64| match *index >= 0.0 && *index < rows as f64 {
        true => decoded_expected(format, &blocks[*index as usize * width..][..width], dtype),
        false => vec![(0.0, 0.0); width / format.bytes() * format.elements()],
    };
    vec![x[1].values.iter().flat_map(row).collect()]
}

fn quantise_expected(
    op: &OpParameters,
    x: &[HostArray],
    _: &[Layout],
) -> Vec<Vec<ExpectedElement>> {
    let format = activations(op).format();
    let block = |values: &[f64]| {
        let own: Vec<f32> = values.iter().map(|value| *value as f32).collect();
        let mut bytes = vec![0; format.bytes()];
        format.encode(&own, &mut bytes).unwrap_or_default();
        // Of a block with an element that is not finite the bytes have no meaning.
        let error = match own.iter().all(|value| value.is_finite()) {
            true => 0.0,
            false => f64::INFINITY,
        };
        bytes.into_iter().map(move |byte| (byte.into(), error))
    };
    let blocks = x[0].values.chunks(format.elements());
    vec![blocks.flat_map(block).collect()]
}

const TYPED: &[(&str, TypeClass)] = &[
    ("w", TypeClass::Bytes),
    ("gate", TypeClass::Bytes),
    ("up", TypeClass::Bytes),
];

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Quantisation "quantise_blocks" ("x") NotF64 {} []
        { choices: OF_ACTIVATIONS }
        "cuda.block", quantise_results, quantise, quantise_expected,
        "u8[.., bytes] of blocks of 8 bits, as llama.cpp's reference quantiser; of one with an element that is not finite the scale is NaN"),
    native!(Quantisation "dequantise_blocks" ("w") Bytes {} ["to"]
        { choices: OF_FORMAT }
        "cuda.block", dequantise_results, dequantise, dequantise_expected,
        "elements of w[.., bytes], blocks of a format of GGUF, with the bits of llama.cpp's C code, rounded once; f32 without `to`"),
    native!(Quantisation "quantised_linear" ("x", "w", "bias", "residual") NotF64 {} ["to"]
        { optional: 2, typed: TYPED, choices: OF_FORMAT }
        "cuda.block", linear_results, linear, linear_expected,
        "x w^T + bias + residual, of blocks w[outputs, bytes] and x quantised to 8 bits as llama.cpp does on a processor; a row of x that is not finite gives NaN"),
    native!(Quantisation "quantised_swiglu" ("x", "gate", "up") NotF64 {} ["to"]
        { typed: TYPED, choices: OF_FORMAT }
        "cuda.block", gated_results, gated, gated_expected,
        "silu(x gate^T) (x up^T), each product as quantised_linear"),
    native!(Quantisation "quantised_embedding" ("w", "index") Bytes {} ["to"]
        { choices: OF_FORMAT }
        "cuda.block", embedding_results, embedding, embedding_expected,
        "elements of the rows of blocks w[rows, bytes] that the index chooses; zeros for an index outside; f32 without `to`"),
];
