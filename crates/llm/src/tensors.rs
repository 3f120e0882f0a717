//! Tensors of a model by their names in GGUF files, whatever the files are.

use std::borrow::Cow;
use std::collections::HashSet;

use fercuda_modelfile::{ModelFile, StoredTensor, TensorType};
use fercuda_tensor::{BlockFormat, Dtype};

use crate::config::{ExpertConfig, ModelConfig};
use crate::error::{LlmError, unsupported};

type Result<T> = std::result::Result<T, LlmError>;

/// How a matrix lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixFormat {
    /// Elements of a type.
    Plain(Dtype),
    /// Bytes of blocks.
    Blocks(BlockFormat),
}

/// Whether ops multiply by plain matrices of that type.
fn is_multiplied(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16)
}

/// A matrix, or one of each expert, as it goes to the device: bytes of the file, or what was
/// unpacked of several tensors.
#[derive(Clone, Debug)]
pub(crate) struct FileMatrix<'a> {
    pub(crate) bytes: Cow<'a, [u8]>,
    pub(crate) format: MatrixFormat,
    /// Of what lies in memory.
    pub(crate) dtype: Dtype,
    /// Number of experts; 1 for a matrix.
    pub(crate) experts: u64,
    pub(crate) outputs: u64,
    /// Elements of that type in a row.
    pub(crate) row: u64,
}

impl FileMatrix<'_> {
    /// The first rows, and the others.
    pub(crate) fn parted(self, first: u64) -> [Self; 2] {
        let at = (first * self.row * self.dtype.bytes()) as usize;
        let at = at.min(self.bytes.len());
        let (before, behind) = match self.bytes {
            Cow::Borrowed(all) => {
                let (before, behind) = all.split_at(at);
                (Cow::Borrowed(before), Cow::Borrowed(behind))
            }
            Cow::Owned(mut all) => {
                let behind = all.split_off(at);
                (Cow::Owned(all), Cow::Owned(behind))
            }
        };
        let part = |bytes, outputs| Self {
            bytes,
            outputs,
            ..self
        };
        [
            part(before, first),
            part(behind, self.outputs.saturating_sub(first)),
        ]
    }
}

impl<'a> FileMatrix<'a> {
    /// Groups of so many rows in turns: the first of each pair, and the second.
    pub(crate) fn alternating(self, rows: u64) -> [FileMatrix<'a>; 2] {
        let group = ((rows * self.row * self.dtype.bytes()) as usize).max(1);
        let part = |first: usize| {
            let groups = self.bytes.chunks(group).skip(first).step_by(2);
            Self {
                bytes: Cow::Owned(groups.flatten().copied().collect()),
                outputs: self.outputs / 2,
                ..self.clone()
            }
        };
        [part(0), part(1)]
    }
}

/// The tensors of a model's files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelTensors<'a> {
    file: &'a ModelFile,
    config: &'a ModelConfig,
}

impl<'a> ModelTensors<'a> {
    pub(crate) fn of(file: &'a ModelFile, config: &'a ModelConfig) -> Self {
        Self { file, config }
    }

    pub(crate) fn config(&self) -> &'a ModelConfig {
        self.config
    }

    /// The name in the files.
    fn name(&self, name: &str) -> String {
        let there = self.config.checkpoint.as_ref();
        let there = there.and_then(|it| it.name(name));
        there.unwrap_or_else(|| name.to_owned())
    }

    /// Whether the model has a tensor. A head that a checkpoint's configuration ties to the
    /// embedding is none of its own.
    pub(crate) fn has(&self, name: &str) -> bool {
        let checkpoint = self.config.checkpoint.as_ref();
        match checkpoint {
            Some(own) if name == "output.weight" => !own.is_tied,
            _ => self.file.has_weight(&self.name(name)),
        }
    }

    /// The experts of a layer, if it has some instead of one gated unit.
    pub(crate) fn experts_of(&self, layer: u64) -> Option<ExpertConfig> {
        let has = |part: &str| self.has(&format!("blk.{layer}.{part}.weight"));
        let is_without_unit = self.config.feed_forward == 0;
        let has_experts =
            |_: &ExpertConfig| is_without_unit || has("ffn_gate_inp") || !has("ffn_down");
        self.config.experts.filter(has_experts)
    }

    /// The error of a tensor that the model does not have.
    pub(crate) fn missing(&self, name: &str) -> LlmError {
        let (there, architecture) = (self.name(name), &self.config.architecture);
        match self.config.checkpoint {
            Some(_) => unsupported(
                format!("the files do not have {there}, which {architecture} needs"),
                "all files of the model, as its authors publish them",
            ),
            None => unsupported(
                format!("the file does not have {there}, which {architecture} needs"),
                "a file with all tensors of its architecture, as a current converter writes it",
            ),
        }
    }

    /// Checks that no tensor of a layer of a GGUF file is left, which would change what the model
    /// computes. Those of frequencies are read elsewhere, or follow from the metadata.
    pub(crate) fn check_read(&self, read: &HashSet<String>) -> Result<()> {
        if self.config.checkpoint.is_some() {
            return Ok(());
        }
        let layer_of = |name: &str| {
            let number = name.strip_prefix("blk.")?.split('.').next()?;
            number.parse::<u64>().ok()
        };
        let is_left = |name: &str| {
            let of_layer = layer_of(name).is_some_and(|it| it < self.config.layers);
            of_layer
                && !read.contains(name)
                && !name.contains("rope_")
                && !name.contains("rot_embd")
        };
        match self.file.tensors().find(|it| is_left(&it.name)) {
            Some(left) => {
                let architecture = &self.config.architecture;
                Err(unsupported(
                    format!(
                        "the file has {}, which {architecture} is computed without here",
                        left.name
                    ),
                    "another file of the model",
                ))
            }
            None => Ok(()),
        }
    }

    /// Replaces the error of a tensor that is not there.
    fn found<T>(&self, name: &str, read: fercuda_modelfile::Result<T>) -> Result<T> {
        read.map_err(|error| match error {
            fercuda_modelfile::Error::NoTensor { .. } => self.missing(name),
            error => error.into(),
        })
    }

    fn tensor(&self, name: &str) -> Result<StoredTensor<'a>> {
        self.found(name, self.file.tensor(&self.name(name)))
    }

    /// Extent of the first dimension.
    pub(crate) fn first_extent(&self, name: &str) -> Result<u64> {
        let tensor = self.tensor(name)?;
        Ok(tensor.shape.first().copied().unwrap_or_default())
    }

    /// A vector's elements.
    pub(crate) fn floats(&self, name: &str, length: u64) -> Result<Vec<f32>> {
        let tensor = self.tensor(name)?;
        if tensor.elements() != length {
            let what = format!(
                "{} has {} elements, not {length}",
                tensor.name,
                tensor.elements()
            );
            return Err(unsupported(what, "another file: this one is damaged"));
        }
        Ok(tensor.decode()?)
    }

    /// A matrix of so many inputs, and outputs, if they are known; or one of each expert.
    pub(crate) fn matrices(
        &self,
        name: &str,
        experts: Option<u64>,
        inputs: u64,
        outputs: Option<u64>,
    ) -> Result<FileMatrix<'a>> {
        let there = self.name(name);
        // Outputs of each.
        let check = |shape: &[u64]| {
            let own = match (experts, shape) {
                (None, &[own, width]) if width == inputs => own,
                (Some(experts), &[all, own, width]) if (all, width) == (experts, inputs) => own,
                _ => 0,
            };
            if own > 0 && outputs.is_none_or(|it| it == own) {
                return Ok(own);
            }
            let wanted = outputs.map_or("any".to_owned(), |it| it.to_string());
            let of = experts.map_or(String::new(), |it| format!("{it}, "));
            let what = format!("{there} is {shape:?}, not [{of}{wanted}, {inputs}]");
            Err(unsupported(what, "another file: this one is damaged"))
        };
        let count = experts.unwrap_or(1);
        let plain = |dtype, bytes, outputs| FileMatrix {
            bytes,
            format: MatrixFormat::Plain(dtype),
            dtype,
            experts: count,
            outputs,
            row: inputs,
        };
        let checkpoint = self.config.checkpoint.as_ref();
        match self.tensor(name) {
            Ok(tensor) => match tensor.kind {
                TensorType::Scalar(dtype) if is_multiplied(dtype) => {
                    let own = check(&tensor.shape)?;
                    return Ok(plain(dtype, Cow::Borrowed(tensor.bytes), own));
                }
                TensorType::Block(format) => {
                    let own = check(&tensor.shape)?;
                    return Ok(FileMatrix {
                        row: tensor.bytes.len() as u64 / (own * count),
                        bytes: Cow::Borrowed(tensor.bytes),
                        format: MatrixFormat::Blocks(format),
                        dtype: Dtype::U8,
                        experts: count,
                        outputs: own,
                    });
                }
                kind if checkpoint.is_none() => {
                    return Err(unsupported(
                        format!("{there} has elements of {kind}"),
                        "`fercuda model quantize` to another type",
                    ));
                }
                _ => {}
            },
            Err(error) if checkpoint.is_none() => return Err(error),
            Err(_) => {}
        }
        // Checkpoints spread a quantised weight over several tensors.
        let weight = self.found(name, self.file.read_weight(&there))?;
        let own = check(&weight.shape)?;
        let dtype = self.unpacked();
        let kind = TensorType::Scalar(dtype);
        let mut bytes = vec![0; weight.values.len() * dtype.bytes() as usize];
        kind.encode(&weight.values, &mut bytes)?;
        Ok(plain(dtype, Cow::Owned(bytes), own))
    }

    /// The type of what is unpacked.
    fn unpacked(&self) -> Dtype {
        let checkpoint = self.config.checkpoint.as_ref();
        checkpoint.map_or(Dtype::F32, |it| it.unpacked)
    }

    /// Types of matrices that are narrower than f32, as they lie in device memory.
    pub(crate) fn narrow_types(&self) -> Vec<Dtype> {
        let mut all = Vec::new();
        for tensor in self.file.tensors().filter(|it| it.shape.len() > 1) {
            let dtype = match tensor.kind {
                TensorType::Scalar(dtype) if is_multiplied(dtype) => dtype,
                _ => self.unpacked(),
            };
            if dtype != Dtype::F32 && !all.contains(&dtype) {
                all.push(dtype);
            }
        }
        all
    }

    /// Bytes that the weights need on the device.
    pub(crate) fn bytes(&self) -> u64 {
        let Some(checkpoint) = &self.config.checkpoint else {
            return self.file.tensors().map(|it| it.bytes.len() as u64).sum();
        };
        let config = self.config;
        // Numbers of a file that lies may be of any size.
        let whole = |number: u64| u128::from(number);
        let lengths = whole(config.key_length) + whole(config.value_length);
        let gates = match config.spec.has_attention_gate {
            true => whole(config.heads) * whole(config.value_length),
            false => 0,
        };
        let heads = (whole(config.heads) + whole(config.shared_heads)) * lengths + gates;
        let recurrent = config
            .recurrence
            .as_ref()
            .map_or(0, |it| it.projected() + it.values());
        let attention_layers = whole(config.attention_layers());
        let mixers =
            attention_layers * heads + (whole(config.layers) - attention_layers) * whole(recurrent);
        let units = whole(config.layers) * 3 * whole(config.feed_forward);
        let vocabulary = self.first_extent("token_embd.weight").unwrap_or_default();
        let matrices = if checkpoint.is_tied { 1 } else { 2 };
        let beside = whole(vocabulary) * whole(config.hidden) * matrices;
        let first = self.matrix_type("blk.0.ffn_up.weight");
        let size = first.unwrap_or(checkpoint.unpacked).bytes();
        let all = (whole(config.hidden) * (mixers + units) + beside) * whole(size);
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// The type of a matrix that lies as it is in device memory.
    pub(crate) fn matrix_type(&self, name: &str) -> Option<Dtype> {
        let tensor = self.file.tensor(&self.name(name)).ok()?;
        match tensor.kind {
            TensorType::Scalar(dtype) if is_multiplied(dtype) => Some(dtype),
            _ => None,
        }
    }

    /// Reads the tensors of a layer from the disk in advance, while others are uploaded.
    pub(crate) fn prefetch(&self, layer: u64) {
        let begin = self.name(&format!("blk.{layer}.attn_q.weight"));
        let Some((begin, _)) = begin
            .split_once(&format!(".{layer}."))
            .map(|(begin, rest)| (format!("{begin}.{layer}."), rest))
        else {
            return;
        };
        self.file.prefetch(&begin);
    }
}
