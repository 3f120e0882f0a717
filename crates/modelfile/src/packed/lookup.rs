//! Weights of bitsandbytes: codes of four bits into a table of levels, times a scale of a block.

use fercuda_tensor::Dtype;
use serde_json::Value;

use super::parts::{check_kind, mismatch, rounded};
use super::weight::{WeightFormat, WeightValues};
use crate::error::Result;
use crate::kinds::{TensorType, elements_of};
use crate::model::ModelFile;

/// The longest description of a weight.
const STATE_BYTES: usize = 1 << 16;

/// What a description says.
struct TableState {
    shape: Vec<u64>,
    kind: TensorType,
    block: usize,
    nested_block: usize,
    nested_offset: f32,
}

impl TableState {
    fn parse(bytes: &[u8]) -> Option<TableState> {
        let text = bytes.get(..bytes.len().min(STATE_BYTES))?;
        let state: Value = serde_json::from_slice(text).ok()?;
        let number = |key: &str| state.get(key).and_then(Value::as_u64);
        let shape: Option<Vec<u64>> = state
            .get("shape")?
            .as_array()?
            .iter()
            .map(Value::as_u64)
            .collect();
        let kind = match state.get("dtype")?.as_str()? {
            "float16" => Dtype::F16,
            "bfloat16" => Dtype::Bf16,
            "float32" => Dtype::F32,
            _ => return None,
        };
        let offset = state.get("nested_offset").and_then(Value::as_f64);
        Some(TableState {
            shape: shape?,
            kind: TensorType::Scalar(kind),
            block: number("blocksize").filter(|it| *it > 0)? as usize,
            nested_block: number("nested_blocksize").unwrap_or(0) as usize,
            nested_offset: offset.unwrap_or(0.0) as f32,
        })
    }
}

/// NF4 or FP4: the table is in the file.
pub(super) fn table(model: &ModelFile, name: &str) -> Result<WeightValues> {
    let part = |end: &str| model.tensor(&format!("{name}.{end}"));
    let state =
        part("quant_state.bitsandbytes__nf4").or_else(|_| part("quant_state.bitsandbytes__fp4"))?;
    let parsed = TableState::parse(state.bytes);
    let state = parsed.ok_or_else(|| mismatch(format!("{:?} is no description", state.name)))?;
    let codes = model.tensor(name)?;
    check_kind(&codes, &[Dtype::U8])?;
    let elements = elements_of(&state.shape);
    let elements = elements.filter(|it| it.div_ceil(2) == codes.bytes.len() as u64);
    let Some(elements) = elements.map(|it| it as usize) else {
        let what = format!(
            "{} bytes of codes for shape {:?}",
            codes.bytes.len(),
            state.shape
        );
        return Err(mismatch(what));
    };
    let levels = part("quant_map")?.decode()?;
    let scales = scales(&state, model, name)?;
    if levels.len() != 16 || scales.len() != elements.div_ceil(state.block) {
        let what = format!(
            "{} levels, and {} scales of {} of {elements} elements",
            levels.len(),
            scales.len(),
            state.block
        );
        return Err(mismatch(what));
    }
    let mut values = Vec::with_capacity(elements);
    for at in 0..elements {
        // The first of two elements is in the high half.
        let code = codes.bytes[at / 2] >> (4 * (1 - at % 2)) & 15;
        let value = levels[usize::from(code)] * scales[at / state.block];
        values.push(rounded(state.kind, value));
    }
    Ok(WeightValues {
        shape: state.shape,
        values,
        format: WeightFormat::Table,
    })
}

/// The scales, which may be codes of a table of 256 levels themselves.
fn scales(state: &TableState, model: &ModelFile, name: &str) -> Result<Vec<f32>> {
    let part = |end: &str| model.tensor(&format!("{name}.{end}"));
    let scales = part("absmax")?;
    if scales.kind != TensorType::Scalar(Dtype::U8) {
        check_kind(&scales, &[Dtype::F32])?;
        return scales.decode();
    }
    let levels = part("nested_quant_map")?.decode()?;
    let factors = part("nested_absmax")?.decode()?;
    let count = scales.bytes.len();
    let is_whole = state.nested_block > 0 && factors.len() == count.div_ceil(state.nested_block);
    if levels.len() != 256 || !is_whole {
        let (levels, factors) = (levels.len(), factors.len());
        let what = format!("{levels} levels and {factors} factors of {count} scales");
        return Err(mismatch(what));
    }
    let codes = scales.bytes.iter().enumerate();
    let scale = |(at, code): (usize, &u8)| {
        levels[usize::from(*code)] * factors[at / state.nested_block] + state.nested_offset
    };
    Ok(codes.map(scale).collect())
}
