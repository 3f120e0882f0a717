//! Tensors that a weight is of, with checks of their types and shapes.

use fercuda_tensor::Dtype;
use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::kinds::TensorType;
use crate::model::StoredTensor;

pub(super) const OTHERS: &str = "a checkpoint that one of the known libraries has written";

pub(super) fn mismatch(what: String) -> Error {
    Error::mismatch(what, OTHERS)
}

/// The two extents of a matrix, neither of which is 0: a matrix without elements could claim any
/// number of rows.
pub(super) fn matrix(tensor: &StoredTensor<'_>) -> Result<(usize, usize)> {
    match tensor.shape[..] {
        [rows, columns] if rows > 0 && columns > 0 => Ok((rows as usize, columns as usize)),
        _ => Err(mismatch(format!(
            "{:?} has shape {:?}, not that of a matrix with elements",
            tensor.name, tensor.shape
        ))),
    }
}

pub(super) fn check_kind(tensor: &StoredTensor<'_>, kinds: &[Dtype]) -> Result<()> {
    let is_known = kinds
        .iter()
        .any(|it| tensor.kind == TensorType::Scalar(*it));
    match is_known {
        true => Ok(()),
        false => Err(mismatch(format!(
            "{:?} is of {}, not of one of {kinds:?}",
            tensor.name, tensor.kind
        ))),
    }
}

pub(super) fn check_shape(tensor: &StoredTensor<'_>, shape: &[usize]) -> Result<()> {
    let is_same = tensor.shape.len() == shape.len()
        && tensor.shape.iter().zip(shape).all(|(a, b)| *a == *b as u64);
    match is_same {
        true => Ok(()),
        false => Err(mismatch(format!(
            "{:?} has shape {:?}, not {shape:?}",
            tensor.name, tensor.shape
        ))),
    }
}

/// Word `at` of a tensor of words.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    let (words, _) = bytes.as_chunks();
    u32::from_le_bytes(words[at])
}

/// A product rounded as in arithmetic of this type.
pub(super) fn rounded(kind: TensorType, value: f32) -> f32 {
    match kind {
        TensorType::Scalar(Dtype::F16) => f16::from_f32(value).to_f32(),
        TensorType::Scalar(Dtype::Bf16) => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}
