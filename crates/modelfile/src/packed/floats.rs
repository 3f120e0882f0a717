//! Weights of small floats, or of bytes, with scales for all, for rows or for blocks of elements.

use fercuda_tensor::Dtype;
use serde_json::Value;

use super::parts::{check_kind, check_shape, matrix, mismatch, rounded};
use super::weight::{WeightFormat, WeightValues};
use crate::error::Result;
use crate::kinds::{NarrowType, TensorType, e2m1, e8m0};
use crate::model::{ModelFile, StoredTensor};

/// The block of a scale where neither the configuration nor the shapes say another.
const BLOCK: usize = 128;

/// How many rows and columns have one scale.
fn block_of(model: &ModelFile, extents: [usize; 2], scales: [usize; 2]) -> Option<[usize; 2]> {
    let fits = |block: &[usize; 2]| {
        (0..2).all(|at| block[at] > 0 && extents[at].div_ceil(block[at]) == scales[at])
    };
    let config = model.quantisation();
    let configured = config
        .and_then(|it| it.get("weight_block_size"))
        .and_then(Value::as_array);
    let configured = configured.and_then(|pair| match &pair[..] {
        [rows, columns] => Some([rows.as_u64()? as usize, columns.as_u64()? as usize]),
        _ => None,
    });
    // One for all along a dimension, one for each along it, equal parts, or the usual blocks.
    let even = [0, 1].map(|at| match scales[at] {
        0 => 0,
        count if extents[at].is_multiple_of(count) => extents[at] / count,
        _ => BLOCK,
    });
    let candidates = [configured, Some([BLOCK, BLOCK]), Some(even)];
    candidates.into_iter().flatten().find(fits)
}

/// Whether elements of a type are bytes.
pub(super) fn is_of_eight_bits(kind: TensorType) -> bool {
    kind.block_bytes() == 1 && kind.block_elements() == 1
}

/// Codes of 8 bits times a scale. Two of the names say by what: `weight_scale` and
/// `weight_scale_inv` are both factors.
pub(super) fn scaled(model: &ModelFile, name: &str, end: &str) -> Result<WeightValues> {
    let codes = model.tensor(name)?;
    let scales = model.tensor(&format!("{name}{end}"))?;
    let zeros = model.tensor(&format!("{name}_zero_point")).ok();
    let mut values = codes.decode()?;
    let factors = factors(&scales)?;
    let offsets = match &zeros {
        Some(zeros) if zeros.shape == scales.shape => Some(zeros.decode()?),
        Some(zeros) => {
            let shapes = (&zeros.shape, &scales.shape);
            return Err(mismatch(format!(
                "zero points of {:?} with scales of {:?}",
                shapes.0, shapes.1
            )));
        }
        None => None,
    };
    let place = scale_places(model, &codes, &scales)?;
    for (at, value) in values.iter_mut().enumerate() {
        let place = place.of(at);
        let level = offsets
            .as_ref()
            .map_or(*value, |offsets| *value - offsets[place]);
        *value = rounded(scales.kind, level * factors[place]);
    }
    Ok(WeightValues {
        shape: codes.shape,
        values,
        format: WeightFormat::Scaled,
    })
}

/// Scales as f32; bytes are powers of two (MXFP8).
fn factors(scales: &StoredTensor<'_>) -> Result<Vec<f32>> {
    match scales.kind {
        TensorType::Scalar(Dtype::U8) => Ok(scales.bytes.iter().map(|code| e8m0(*code)).collect()),
        _ => scales.decode(),
    }
}

/// Places of scales of a matrix's elements, or of several matrices'.
struct ScalePlaces {
    rows: usize,
    columns: usize,
    block: [usize; 2],
    scale_rows: usize,
    scale_columns: usize,
}

impl ScalePlaces {
    fn of(&self, at: usize) -> usize {
        let (row, column) = (at / self.columns, at % self.columns);
        let (batch, row) = (row / self.rows, row % self.rows);
        let scale_row = batch * self.scale_rows + row / self.block[0];
        scale_row * self.scale_columns + column / self.block[1]
    }
}

fn scale_places(
    model: &ModelFile,
    codes: &StoredTensor<'_>,
    scales: &StoredTensor<'_>,
) -> Result<ScalePlaces> {
    let unfit = || {
        let (codes, scales) = (&codes.shape, &scales.shape);
        mismatch(format!("a shape of {codes:?} with scales of {scales:?}"))
    };
    let extents: Vec<usize> = codes.shape.iter().map(|it| *it as usize).collect();
    let (batch, rows, columns) = match extents[..] {
        [columns] => (&[][..], 1, columns),
        [ref batch @ .., rows, columns] => (batch, rows, columns),
        [] => (&[][..], 1, 1),
    };
    let of_scales: Vec<usize> = scales.shape.iter().map(|it| *it as usize).collect();
    let (scale_rows, scale_columns) = match of_scales[..] {
        [] | [1] => (1, 1),
        [count] if batch.is_empty() && count == rows => (rows, 1),
        [ref of_batch @ .., rows, columns] if of_batch == batch => (rows, columns),
        _ => return Err(unfit()),
    };
    let is_shared = scales.shape.iter().product::<u64>() == 1;
    let block = match is_shared {
        // Also for several matrices.
        true => Some([usize::MAX, usize::MAX]),
        false => block_of(model, [rows, columns], [scale_rows, scale_columns]),
    };
    Ok(ScalePlaces {
        rows: if is_shared { usize::MAX } else { rows.max(1) },
        columns: columns.max(1),
        block: block.ok_or_else(unfit)?,
        scale_rows,
        scale_columns,
    })
}

/// Elements of E2M1, two a byte, the first in the low half, times the scale of their group.
fn e2m1_groups(
    codes: &StoredTensor<'_>,
    factors: &[f32],
    in_group: usize,
) -> Result<(Vec<u64>, Vec<f32>)> {
    check_kind(codes, &[Dtype::U8])?;
    let elements = codes.bytes.len() * 2;
    if factors.len().checked_mul(in_group) != Some(elements) {
        let what = format!(
            "{} scales of {in_group} elements for {elements}",
            factors.len()
        );
        return Err(mismatch(what));
    }
    let mut values = Vec::with_capacity(elements);
    for (at, byte) in codes.bytes.iter().enumerate() {
        let factor = factors[at * 2 / in_group];
        values.extend([e2m1(byte & 15) * factor, e2m1(byte >> 4) * factor]);
    }
    let mut shape = codes.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last *= 2;
    }
    Ok((shape, values))
}

/// compressed-tensors' NVFP4, whose global scale divides, or MXFP4.
pub(super) fn packed(model: &ModelFile, name: &str) -> Result<WeightValues> {
    let part = |end: &str| model.tensor(&format!("{name}_{end}"));
    let (codes, scales) = (part("packed")?, part("scale")?);
    let (outputs, _) = matrix(&codes)?;
    let (_, groups) = matrix(&scales)?;
    check_shape(&scales, &[outputs, groups])?;
    match part("global_scale") {
        Ok(global) => {
            let global = one(&global)?;
            let mut factors = nvfp4_scales(&scales)?;
            for factor in &mut factors {
                *factor /= global;
            }
            nvfp4(&codes, &factors)
        }
        Err(_) => mxfp4(&codes, &scales),
    }
}

fn nvfp4_scales(scales: &StoredTensor<'_>) -> Result<Vec<f32>> {
    check_kind(scales, &[Dtype::F8E4m3])?;
    scales.decode()
}

fn nvfp4(codes: &StoredTensor<'_>, factors: &[f32]) -> Result<WeightValues> {
    let (shape, values) = e2m1_groups(codes, factors, 16)?;
    Ok(WeightValues {
        shape,
        values,
        format: WeightFormat::Nvfp4,
    })
}

/// Model Optimizer's NVFP4, whose second scale multiplies.
pub(super) fn nvfp4_of_modelopt(model: &ModelFile, name: &str) -> Result<WeightValues> {
    let codes = model.tensor(name)?;
    let scales = model.tensor(&format!("{name}_scale"))?;
    let second = one(&model.tensor(&format!("{name}_scale_2"))?)?;
    let mut factors = nvfp4_scales(&scales)?;
    for factor in &mut factors {
        *factor *= second;
    }
    nvfp4(&codes, &factors)
}

/// The only element of a tensor.
fn one(tensor: &StoredTensor<'_>) -> Result<f32> {
    match tensor.decode()?[..] {
        [value] => Ok(value),
        _ => {
            let what = format!(
                "{:?} has shape {:?}, not one element",
                tensor.name, tensor.shape
            );
            Err(mismatch(what))
        }
    }
}

fn mxfp4(codes: &StoredTensor<'_>, scales: &StoredTensor<'_>) -> Result<WeightValues> {
    if scales.kind != TensorType::Narrow(NarrowType::F8E8m0) {
        check_kind(scales, &[Dtype::U8])?;
    }
    let (shape, values) = e2m1_groups(codes, &factors(scales)?, 32)?;
    Ok(WeightValues {
        shape,
        values,
        format: WeightFormat::Mxfp4,
    })
}

/// MXFP4 of models that were trained with it: blocks of 16 bytes in a dimension of their own.
pub(super) fn blocks(model: &ModelFile, name: &str) -> Result<WeightValues> {
    let codes = model.tensor(&format!("{name}_blocks"))?;
    let scales = model.tensor(&format!("{name}_scales"))?;
    let is_same = matches!(&codes.shape[..], [outer @ .., 16] if *outer == scales.shape[..]);
    if !is_same {
        let shapes = (&codes.shape, &scales.shape);
        return Err(mismatch(format!(
            "blocks of {:?} with scales of {:?}",
            shapes.0, shapes.1
        )));
    }
    let mut weight = mxfp4(&codes, &scales)?;
    weight.shape.truncate(weight.shape.len() - 2);
    weight
        .shape
        .push(scales.shape.last().map_or(1, |it| it * 32));
    Ok(weight)
}
