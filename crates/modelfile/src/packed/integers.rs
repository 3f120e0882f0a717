//! Weights of AWQ, GPTQ and compressed-tensors' packed integers: codes of a few bits in words.

use fercuda_tensor::Dtype;
use serde_json::Value;

use super::parts::{check_kind, check_shape, matrix, mismatch, rounded, word};
use super::weight::{WeightFormat, WeightValues};
use crate::error::Result;
use crate::model::{ModelFile, StoredTensor};

const FLOATS: [Dtype; 3] = [Dtype::F16, Dtype::Bf16, Dtype::F32];

/// AWQ or GPTQ, which the shape of the codes beside that of the scales says.
pub(super) fn words(model: &ModelFile, name: &str) -> Result<WeightValues> {
    let prefix = name.strip_suffix(".weight").unwrap_or(name);
    let part = |end: &str| model.tensor(&format!("{prefix}.{end}"));
    let (codes, zeros, scales) = (part("qweight")?, part("qzeros")?, part("scales")?);
    check_kind(&codes, &[Dtype::I32, Dtype::U32])?;
    check_kind(&zeros, &[Dtype::I32, Dtype::U32])?;
    check_kind(&scales, &FLOATS)?;
    let (groups, outputs) = matrix(&scales)?;
    let (rows, columns) = matrix(&codes)?;
    match () {
        () if columns == outputs && outputs > 0 => {
            let order = part("g_idx").ok();
            gptq(model, &codes, &zeros, &scales, order.as_ref())
        }
        () if columns.checked_mul(8) == Some(outputs) && groups > 0 && rows % groups == 0 => {
            check_shape(&zeros, &[groups, columns])?;
            awq(&codes, &zeros, &scales)
        }
        () => Err(mismatch(format!(
            "codes of {:?} with scales of {:?} are neither AWQ's nor GPTQ's",
            codes.shape, scales.shape
        ))),
    }
}

/// Codes of four bits: a word has those of eight outputs, the even ones before the odd ones.
fn awq(
    codes: &StoredTensor<'_>,
    zeros: &StoredTensor<'_>,
    scales: &StoredTensor<'_>,
) -> Result<WeightValues> {
    let (inputs, columns) = matrix(codes)?;
    let (groups, outputs) = matrix(scales)?;
    let factors = scales.decode()?;
    let in_group = inputs / groups;
    let code = |bytes: &[u8], row: usize, output: usize| {
        let within = output % 8;
        let place = within / 2 + within % 2 * 4;
        (word(bytes, row * columns + output / 8) >> (4 * place) & 15) as i32
    };
    let mut values = Vec::with_capacity(outputs * inputs);
    for output in 0..outputs {
        for input in 0..inputs {
            let group = input / in_group;
            let level = code(codes.bytes, input, output) - code(zeros.bytes, group, output);
            let factor = factors[group * outputs + output];
            values.push(rounded(scales.kind, level as f32 * factor));
        }
    }
    Ok(WeightValues {
        shape: vec![outputs as u64, inputs as u64],
        values,
        format: WeightFormat::Awq,
    })
}

/// Bits `at * bits` and on of a sequence of words.
fn field(word: impl Fn(usize) -> u32, at: usize, bits: usize) -> u32 {
    let (first, shift) = (at * bits / 32, at * bits % 32);
    let low = word(first) >> shift;
    let high = match shift + bits > 32 {
        true => word(first + 1) << (32 - shift),
        false => 0,
    };
    (low | high) & ((1 << bits) - 1)
}

/// Codes of 2, 3, 4 or 8 bits in columns of words, whose zero points are stored less one.
fn gptq(
    model: &ModelFile,
    codes: &StoredTensor<'_>,
    zeros: &StoredTensor<'_>,
    scales: &StoredTensor<'_>,
    order: Option<&StoredTensor<'_>>,
) -> Result<WeightValues> {
    let (rows, outputs) = matrix(codes)?;
    let (groups, _) = matrix(scales)?;
    let (_, zero_words) = matrix(zeros)?;
    check_shape(zeros, &[groups, zero_words])?;
    let bits = zero_words * 32 / outputs;
    let is_whole = bits * outputs == zero_words * 32 && rows * 32 % bits.max(1) == 0;
    if !matches!(bits, 2 | 3 | 4 | 8) || !is_whole {
        let (codes, zeros) = (&codes.shape, &zeros.shape);
        return Err(mismatch(format!(
            "codes of {codes:?} with zero points of {zeros:?}"
        )));
    }
    let inputs = rows * 32 / bits;
    let group_of: Vec<usize> = match order {
        Some(order) => {
            check_kind(order, &[Dtype::I32])?;
            check_shape(order, &[inputs])?;
            (0..inputs)
                .map(|at| word(order.bytes, at) as usize)
                .collect()
        }
        None if groups > 0 && inputs % groups == 0 => {
            (0..inputs).map(|at| at / (inputs / groups)).collect()
        }
        None => return Err(mismatch(format!("{groups} groups of {inputs} inputs"))),
    };
    if let Some(group) = group_of.iter().find(|group| **group >= groups) {
        return Err(mismatch(format!("group {} of {groups}", *group as i32)));
    }
    let format = model
        .quantisation()
        .and_then(|it| it.get("checkpoint_format"));
    let added = u32::from(format.and_then(Value::as_str) != Some("gptq_v2"));
    let factors = scales.decode()?;
    let mut values = Vec::with_capacity(outputs * inputs);
    for output in 0..outputs {
        for (input, group) in group_of.iter().enumerate() {
            let code = field(|at| word(codes.bytes, at * outputs + output), input, bits);
            let zero = field(
                |at| word(zeros.bytes, group * zero_words + at),
                output,
                bits,
            );
            // Of a stored -1 the zero point is 0.
            let zero = (zero + added) & ((1 << bits) - 1);
            let factor = factors[group * outputs + output];
            let level = code as i32 - zero as i32;
            values.push(rounded(scales.kind, level as f32 * factor));
        }
    }
    Ok(WeightValues {
        shape: vec![outputs as u64, inputs as u64],
        values,
        format: WeightFormat::Gptq,
    })
}

/// Numbers of bits that the configuration gives weights, if it gives all the same.
fn configured_bits(model: &ModelFile) -> Option<usize> {
    let groups = model.quantisation()?.get("config_groups")?.as_object()?;
    let mut bits = groups
        .values()
        .filter_map(|group| group.get("weights")?.get("num_bits")?.as_u64());
    let first = bits.next()?;
    bits.all(|it| it == first).then_some(first as usize)
}

/// Codes along inputs, as signed numbers with an offset. Those of 3, 5, 6 and 7 bits cross words
/// in files of current versions, and did not in those of older ones.
pub(super) fn packed(model: &ModelFile, name: &str) -> Result<WeightValues> {
    let part = |end: &str| model.tensor(&format!("{name}_{end}"));
    let (codes, scales, shape) = (part("packed")?, part("scale")?, part("shape")?);
    check_kind(&codes, &[Dtype::I32])?;
    check_kind(&scales, &FLOATS)?;
    check_kind(&shape, &[Dtype::I64, Dtype::I32])?;
    check_shape(&shape, &[2])?;
    let extent = |at: usize| match shape.kind.block_bytes() {
        8 => u64::from(word(shape.bytes, 2 * at)) | u64::from(word(shape.bytes, 2 * at + 1)) << 32,
        _ => u64::from(word(shape.bytes, at)),
    };
    let (outputs, columns) = matrix(&codes)?;
    let inputs = extent(1) as usize;
    let packing = configured_bits(model).into_iter().chain([4, 8]);
    let packing = packing
        .filter_map(|bits| WordPacking::of(bits, inputs, columns))
        .next();
    let Some(packing) = packing.filter(|_| extent(0) == outputs as u64) else {
        let shape = [extent(0), extent(1)];
        return Err(mismatch(format!(
            "words of {:?} for a shape of {shape:?}",
            codes.shape
        )));
    };
    let (_, groups) = matrix(&scales)?;
    check_shape(&scales, &[outputs, groups])?;
    let group_of = packed_groups(part("g_idx").ok().as_ref(), inputs, groups)?;
    let zeros = part("zero_point").ok();
    if let Some(zeros) = &zeros {
        check_kind(zeros, &[Dtype::I32])?;
        check_shape(zeros, &[packing.words(outputs).unwrap_or(0), groups])?;
    }
    let factors = scales.decode()?;
    let mut values = Vec::with_capacity(outputs * inputs);
    for output in 0..outputs {
        for (input, group) in group_of.iter().enumerate() {
            let code = packing.code(|at| word(codes.bytes, output * columns + at), input);
            let zero = match &zeros {
                Some(zeros) => packing.code(|at| word(zeros.bytes, at * groups + group), output),
                None => 1 << (packing.bits - 1),
            };
            let factor = factors[output * groups + group];
            let level = code as i32 - zero as i32;
            values.push(rounded(scales.kind, level as f32 * factor));
        }
    }
    Ok(WeightValues {
        shape: vec![outputs as u64, inputs as u64],
        values,
        format: WeightFormat::Packed,
    })
}

/// How codes lie in words.
#[derive(Clone, Copy)]
struct WordPacking {
    bits: usize,
    is_dense: bool,
}

impl WordPacking {
    /// That of `count` codes in `words` words.
    fn of(bits: usize, count: usize, words: usize) -> Option<WordPacking> {
        let ways = [true, false].map(|is_dense| WordPacking { bits, is_dense });
        let is_possible = (1..=8).contains(&bits);
        ways.into_iter()
            .find(|way| is_possible && way.words(count) == Some(words))
    }

    fn words(self, count: usize) -> Option<usize> {
        match self.is_dense {
            true => Some(count.checked_mul(self.bits)?.div_ceil(32)),
            false => Some(count.div_ceil(32 / self.bits)),
        }
    }

    fn code(self, word: impl Fn(usize) -> u32, at: usize) -> u32 {
        match self.is_dense {
            true => field(word, at, self.bits),
            false => {
                let in_word = 32 / self.bits;
                word(at / in_word) >> (at % in_word * self.bits) & ((1 << self.bits) - 1)
            }
        }
    }
}

/// The group of each input.
fn packed_groups(
    order: Option<&StoredTensor<'_>>,
    inputs: usize,
    groups: usize,
) -> Result<Vec<usize>> {
    if groups == 0 {
        return Err(mismatch("no scales".to_owned()));
    }
    let in_group = inputs.div_ceil(groups).max(1);
    let even = || (0..inputs).map(|at| at / in_group).collect();
    let Some(order) = order else {
        return Ok(even());
    };
    check_kind(order, &[Dtype::I32])?;
    check_shape(order, &[inputs])?;
    let of: Vec<usize> = (0..inputs)
        .map(|at| word(order.bytes, at) as usize)
        .collect();
    // All -1 where inputs are in order.
    if of.iter().all(|group| *group == u32::MAX as usize) {
        return Ok(even());
    }
    match of.iter().find(|group| **group >= groups) {
        Some(group) => Err(mismatch(format!("group {} of {groups}", *group as i32))),
        None => Ok(of),
    }
}
