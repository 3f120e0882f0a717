//! Tensors of a model by their names in GGUF files, whatever the files are.

use std::borrow::Cow;

use fercuda_modelfile::{ModelFile, TensorType};
use fercuda_tensor::{BlockFormat, Dtype};

use crate::config::ModelConfig;
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

/// A matrix as it goes to the device: bytes of the file, or what was unpacked of several tensors.
#[derive(Clone, Debug)]
pub(crate) struct FileMatrix<'a> {
    pub(crate) bytes: Cow<'a, [u8]>,
    pub(crate) format: MatrixFormat,
    /// Of what lies in memory.
    pub(crate) dtype: Dtype,
    pub(crate) outputs: u64,
    /// Elements of that type in a row.
    pub(crate) row: u64,
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
            _ => self.file.tensor(&self.name(name)).is_ok(),
        }
    }

    /// Extent of the first dimension.
    pub(crate) fn first_extent(&self, name: &str) -> Result<u64> {
        let tensor = self.file.tensor(&self.name(name))?;
        Ok(tensor.shape.first().copied().unwrap_or_default())
    }

    /// A vector's elements.
    pub(crate) fn floats(&self, name: &str, length: u64) -> Result<Vec<f32>> {
        let tensor = self.file.tensor(&self.name(name))?;
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

    /// A matrix of so many inputs, and outputs, if they are known.
    pub(crate) fn matrix(
        &self,
        name: &str,
        inputs: u64,
        outputs: Option<u64>,
    ) -> Result<FileMatrix<'a>> {
        let name = self.name(name);
        let check = |shape: &[u64]| match *shape {
            [own, width] if width == inputs && own > 0 && outputs.is_none_or(|it| it == own) => {
                Ok(own)
            }
            _ => {
                let wanted = outputs.map_or("any".to_owned(), |it| it.to_string());
                let what = format!("{name} is {shape:?}, not [{wanted}, {inputs}]");
                Err(unsupported(what, "another file: this one is damaged"))
            }
        };
        let tensor = self.file.tensor(&name);
        let plain = |dtype, bytes, own| FileMatrix {
            bytes,
            format: MatrixFormat::Plain(dtype),
            dtype,
            outputs: own,
            row: inputs,
        };
        let kind = match tensor {
            Ok(tensor) => match tensor.kind {
                TensorType::Scalar(dtype @ (Dtype::F32 | Dtype::F16 | Dtype::Bf16)) => {
                    let own = check(&tensor.shape)?;
                    return Ok(plain(dtype, Cow::Borrowed(tensor.bytes), own));
                }
                TensorType::Block(format) => {
                    let own = check(&tensor.shape)?;
                    return Ok(FileMatrix {
                        row: tensor.bytes.len() as u64 / own,
                        bytes: Cow::Borrowed(tensor.bytes),
                        format: MatrixFormat::Blocks(format),
                        dtype: Dtype::U8,
                        outputs: own,
                    });
                }
                kind => Some(kind),
            },
            Err(_) => None,
        };
        let Some(checkpoint) = &self.config.checkpoint else {
            // The error of a tensor that is not there, if that is the reason.
            self.file.tensor(&name)?;
            let kind = kind.map_or(String::new(), |it| it.to_string());
            return Err(unsupported(
                format!("{name} has elements of {kind}"),
                "`fercuda model quantize` to another type",
            ));
        };
        // Checkpoints spread a quantised weight over several tensors.
        let weight = self.file.read_weight(&name)?;
        let own = check(&weight.shape)?;
        let dtype = checkpoint.unpacked;
        let kind = TensorType::Scalar(dtype);
        let mut bytes = vec![0; weight.values.len() * dtype.bytes() as usize];
        kind.encode(&weight.values, &mut bytes)?;
        Ok(plain(dtype, Cow::Owned(bytes), own))
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
        let heads = (whole(config.heads) + whole(config.shared_heads)) * lengths;
        let layer = whole(config.hidden) * (heads + 3 * whole(config.feed_forward));
        let vocabulary = self.first_extent("token_embd.weight").unwrap_or_default();
        let matrices = if checkpoint.is_tied { 1 } else { 2 };
        let beside = whole(vocabulary) * whole(config.hidden) * matrices;
        let size = self.matrix_type().unwrap_or(checkpoint.unpacked).bytes();
        let all = (whole(config.layers) * layer + beside) * whole(size);
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// The type of a checkpoint's matrices, by those of the first layer.
    fn matrix_type(&self) -> Option<Dtype> {
        let tensor = self.file.tensor(&self.name("blk.0.ffn_up.weight")).ok()?;
        match tensor.kind {
            TensorType::Scalar(dtype @ (Dtype::F32 | Dtype::F16 | Dtype::Bf16)) => Some(dtype),
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
