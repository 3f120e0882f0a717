//! Matrices of a layer's experts in a checkpoint: one tensor of each, or one of all.

use std::borrow::Cow;

use fercuda_modelfile::{ModelFile, StoredTensor, TensorType};
use fercuda_tensor::{BlockFormat, Dtype};

use crate::error::{LlmError, unsupported};
use crate::file_matrix::{FileMatrix, MatrixFormat};
use crate::model::{ExpertNames, ExpertOrder, ExpertPart};

type Result<T> = std::result::Result<T, LlmError>;

const DAMAGED: &str = "the files of one version of the model";
/// Elements of a block of MXFP4, bytes of their codes, and of the block as ops read it.
const BLOCK: u64 = 32;
const CODES: usize = 16;
const PACKED: usize = 17;
/// Rows and columns that are transposed at once.
const TILE: usize = 32;

/// Experts of one layer in a checkpoint's files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertTensors<'a, 'b> {
    pub(crate) file: &'a ModelFile,
    pub(crate) names: ExpertNames,
    /// What names of the layer's tensors begin with.
    pub(crate) layer: &'b str,
    pub(crate) count: u64,
}

/// Outputs of a tensor of all experts that belong to one matrix.
#[derive(Clone, Copy)]
struct OutputRange {
    /// The first, the distance to the next, and how many there are.
    first: u64,
    step: u64,
    count: u64,
}

impl<'a> ExpertTensors<'a, '_> {
    /// Name of the tensor of one expert.
    fn each(&self, part: ExpertPart, expert: u64) -> Option<String> {
        let (place, ends) = self.names.each?;
        let end = ends[part as usize];
        Some(format!("{}{place}.{expert}.{end}.weight", self.layer))
    }

    /// Name of the tensor of all experts that has the matrix, perhaps beside another one.
    fn joined(&self, part: ExpertPart) -> String {
        let end = match part {
            ExpertPart::Gate | ExpertPart::Up => "gate_up_proj",
            ExpertPart::Down => "down_proj",
        };
        format!("{}{}.{end}", self.layer, self.names.joined)
    }

    /// The name of a tensor that is not there.
    pub(crate) fn missing(&self, part: ExpertPart) -> String {
        let each = self.each(part, 0).filter(|_| !self.has_joined(part));
        each.unwrap_or_else(|| self.joined(part))
    }

    fn has_joined(&self, part: ExpertPart) -> bool {
        self.file.has_weight(&self.joined(part))
    }

    /// Whether there are such matrices.
    pub(crate) fn has(&self, part: ExpertPart) -> bool {
        let each = self.each(part, 0);
        self.has_joined(part) || each.is_some_and(|it| self.file.has_weight(&it))
    }

    /// Whether there are biases of such matrices.
    pub(crate) fn has_bias(&self, part: ExpertPart) -> bool {
        let name = format!("{}_bias", self.joined(part));
        self.file.tensor(&name).is_ok()
    }

    /// Bytes of a matrix's element as it lies in device memory, times a number of elements.
    pub(crate) fn bytes_of(&self, part: ExpertPart, elements: u128, unpacked: Dtype) -> u128 {
        let joined = self.joined(part);
        if self.file.tensor(&format!("{joined}_blocks")).is_ok() {
            return elements * PACKED as u128 / u128::from(BLOCK);
        }
        let each = self.each(part, 0).unwrap_or_default();
        let found = self.file.tensor(&joined).or(self.file.tensor(&each));
        let dtype = match found.map(|it| it.kind) {
            Ok(TensorType::Scalar(dtype)) if is_multiplied(dtype) => dtype,
            _ => unpacked,
        };
        elements * u128::from(dtype.bytes())
    }

    /// The name of a tensor of each expert, if there is no tensor of all that has the matrix.
    pub(crate) fn separate(&self, part: ExpertPart, expert: u64) -> Option<String> {
        match self.has_joined(part) {
            true => None,
            false => self.each(part, expert),
        }
    }

    /// One matrix of those of all experts.
    pub(crate) fn together(&self, all: Vec<FileMatrix<'a>>) -> Result<FileMatrix<'a>> {
        let mut all = all.into_iter();
        let Some(mut first) = all.next() else {
            return Err(unsupported("a layer of no experts", DAMAGED));
        };
        for other in all {
            if other.format != first.format {
                let name = format!("{}{}", self.layer, self.names.joined);
                return Err(unsupported(
                    format!("experts of {name} have different types"),
                    "a model whose experts have one type",
                ));
            }
            first.pieces.extend(other.pieces);
        }
        first.experts = self.count;
        Ok(first)
    }

    /// Which outputs of the tensor of all experts are those of the matrix.
    fn lane(&self, part: ExpertPart, outputs: u64) -> OutputRange {
        let (first, step) = match (part, self.names.order) {
            (ExpertPart::Down, _) => (0, 1),
            (ExpertPart::Gate, ExpertOrder::ColumnsInTurns) => (0, 2),
            (ExpertPart::Up, ExpertOrder::ColumnsInTurns) => (1, 2),
            (ExpertPart::Gate, _) => (0, 1),
            (ExpertPart::Up, _) => (outputs, 1),
        };
        OutputRange {
            first,
            step,
            count: outputs,
        }
    }

    /// Outputs of the tensor of all experts.
    fn all_outputs(part: ExpertPart, outputs: u64) -> u64 {
        match part {
            ExpertPart::Down => outputs,
            _ => outputs.saturating_mul(2),
        }
    }

    fn check(tensor: &StoredTensor<'_>, wanted: &[u64]) -> Result<()> {
        match tensor.shape == wanted {
            true => Ok(()),
            false => {
                let (name, shape) = (&tensor.name, &tensor.shape);
                let what = format!("{name} is {shape:?}, not {wanted:?}");
                Err(unsupported(what, DAMAGED))
            }
        }
    }

    /// The matrices of one kind, of so many inputs and outputs, in a tensor of all experts.
    pub(crate) fn matrices(
        &self,
        part: ExpertPart,
        inputs: u64,
        outputs: u64,
    ) -> Result<FileMatrix<'a>> {
        let name = self.joined(part);
        let blocks = self.file.tensor(&format!("{name}_blocks"));
        let blocks = blocks.ok().filter(|_| self.file.tensor(&name).is_err());
        if let Some(codes) = blocks {
            let scales = self.file.tensor(&format!("{name}_scales"))?;
            return self.of_blocks((part, inputs, outputs), &codes, &scales);
        }
        let tensor = self.file.tensor(&name)?;
        let dtype = match tensor.kind {
            TensorType::Scalar(dtype) if is_multiplied(dtype) => dtype,
            kind => {
                return Err(unsupported(
                    format!("{name}, a tensor of all experts, has elements of {kind}"),
                    "a checkpoint whose experts are of F32, F16, BF16 or MXFP4",
                ));
            }
        };
        let all = Self::all_outputs(part, outputs);
        let matrix = |pieces, outputs| FileMatrix {
            pieces,
            format: MatrixFormat::Plain(dtype),
            dtype,
            experts: self.count,
            outputs,
            row: inputs,
        };
        if self.names.order == ExpertOrder::Rows {
            Self::check(&tensor, &[self.count, all, inputs])?;
            let whole = matrix(vec![Cow::Borrowed(tensor.bytes)], all);
            return Ok(match part {
                ExpertPart::Down => whole,
                _ => {
                    let [gates, ups] = whole.alternating(outputs);
                    if part == ExpertPart::Gate { gates } else { ups }
                }
            });
        }
        Self::check(&tensor, &[self.count, inputs, all])?;
        let lane = self.lane(part, outputs);
        let element = dtype.bytes() as usize;
        let each = tensor.bytes.len() / self.count as usize;
        let experts = tensor.bytes.chunks_exact(each.max(1));
        let pieces = experts.map(|it| Cow::Owned(transposed(it, inputs as usize, lane, element)));
        Ok(matrix(pieces.collect(), outputs))
    }

    /// Blocks of MXFP4 as ops read them: a scale, then codes of elements with those 16 behind.
    fn of_blocks(
        &self,
        (part, inputs, outputs): (ExpertPart, u64, u64),
        codes: &StoredTensor<'_>,
        scales: &StoredTensor<'_>,
    ) -> Result<FileMatrix<'a>> {
        let all = Self::all_outputs(part, outputs);
        let groups = inputs / BLOCK;
        if !inputs.is_multiple_of(BLOCK) {
            let what = format!("{} has rows of {inputs} elements", codes.name);
            return Err(unsupported(what, "rows of whole blocks of 32"));
        }
        Self::check(codes, &[self.count, all, groups, CODES as u64])?;
        Self::check(scales, &[self.count, all, groups])?;
        for tensor in [codes, scales] {
            if tensor.bytes.len() as u64 != tensor.elements() {
                let what = format!("{} has elements of {}", tensor.name, tensor.kind);
                return Err(unsupported(what, "codes and scales of bytes"));
            }
        }
        let lane = self.lane(part, outputs);
        let groups = groups as usize;
        let mut bytes = Vec::with_capacity((self.count * outputs) as usize * groups * PACKED);
        for expert in 0..self.count {
            for output in 0..lane.count {
                let row = (expert * all + lane.first + output * lane.step) as usize;
                for block in row * groups..(row + 1) * groups {
                    bytes.push(scales.bytes[block]);
                    let own = &codes.bytes[block * CODES..][..CODES];
                    bytes.extend_from_slice(&apart(own));
                }
            }
        }
        Ok(FileMatrix {
            pieces: vec![Cow::Owned(bytes)],
            format: MatrixFormat::Blocks(BlockFormat::MXFP4),
            dtype: Dtype::U8,
            experts: self.count,
            outputs,
            row: (groups * PACKED) as u64,
        })
    }

    /// Biases of all experts, of so many outputs each.
    pub(crate) fn biases(&self, part: ExpertPart, outputs: u64) -> Result<Vec<f32>> {
        let name = format!("{}_bias", self.joined(part));
        let tensor = self.file.tensor(&name)?;
        let all = Self::all_outputs(part, outputs);
        Self::check(&tensor, &[self.count, all])?;
        let values = tensor.decode()?;
        let lane = self.lane(part, outputs);
        let of_expert = |expert: &[f32]| {
            let places = (0..lane.count).map(|it| (lane.first + it * lane.step) as usize);
            places.map(|at| expert[at]).collect::<Vec<f32>>()
        };
        let experts = values.chunks_exact((all as usize).max(1));
        Ok(experts.flat_map(of_expert).collect())
    }
}

/// Whether ops multiply by plain matrices of that type.
pub(crate) fn is_multiplied(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16)
}

/// Codes of four bits whose neighbours share a byte, so that those share one that are half of all
/// apart.
fn apart(codes: &[u8]) -> [u8; CODES] {
    let code = |at: usize| codes[at / 2] >> (4 * (at % 2)) & 15;
    std::array::from_fn(|at| code(at) | code(at + CODES) << 4)
}

/// Some columns of a matrix of so many rows, as rows.
fn transposed(matrix: &[u8], rows: usize, lane: OutputRange, element: usize) -> Vec<u8> {
    let (first, step, count) = (lane.first as usize, lane.step as usize, lane.count as usize);
    let from_row = matrix.len() / rows.max(1);
    let to_row = rows * element;
    let mut to = vec![0; count * to_row];
    // By tiles, whose lines stay in a processor's cache.
    for row_tile in (0..rows).step_by(TILE) {
        for column_tile in (0..count).step_by(TILE) {
            for column in column_tile..(column_tile + TILE).min(count) {
                let at = (first + column * step) * element;
                for row in row_tile..(row_tile + TILE).min(rows) {
                    let value = &matrix[row * from_row + at..][..element];
                    to[column * to_row + row * element..][..element].copy_from_slice(value);
                }
            }
        }
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_in_turns_become_rows() {
        // 33 rows of 2 * 3 columns, whose elements are their row and column.
        let matrix: Vec<u8> = (0..33u8)
            .flat_map(|row| (0..6).flat_map(move |it| [row, it]))
            .collect();
        let lane = OutputRange {
            first: 1,
            step: 2,
            count: 3,
        };
        let rows = transposed(&matrix, 33, lane, 2);
        for (column, row) in rows.chunks(66).enumerate() {
            for (at, element) in row.chunks(2).enumerate() {
                assert_eq!(element, [at as u8, 2 * column as u8 + 1]);
            }
        }
    }

    #[test]
    fn blocks_have_the_values_of_their_codes() {
        let codes: [u8; 16] =
            std::array::from_fn(|at| (2 * at as u8 % 16) | (2 * at as u8 + 1) << 4);
        let mut block = vec![127];
        block.extend(apart(&codes));
        let mut values = [0.0; 32];
        BlockFormat::MXFP4.decode(&block, &mut values).unwrap();
        let levels = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for (at, value) in values.iter().enumerate() {
            let level = levels[at % 8];
            assert_eq!(*value, if at % 16 < 8 { level } else { -level });
        }
    }
}
