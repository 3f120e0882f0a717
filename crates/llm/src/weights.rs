//! Tensors of a model in device memory, as the file has them.

use std::borrow::Cow;

use fercuda_modelfile::{ModelFile, StoredTensor, TensorType};
use fercuda_runtime::{Regime, Session};
use fercuda_tensor::{BlockFormat, Dtype, Layout};

use crate::config::ModelConfig;
use crate::error::{LlmError, unsupported};
use crate::recorder::DeviceTensor;

type Result<T> = std::result::Result<T, LlmError>;

/// A matrix by which vectors are multiplied, or whose rows are chosen.
#[derive(Clone, Debug)]
pub(crate) struct WeightMatrix {
    pub(crate) tensor: DeviceTensor,
    pub(crate) format: MatrixFormat,
    pub(crate) outputs: u64,
}

/// How a matrix lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatrixFormat {
    /// Elements of a type.
    Plain(Dtype),
    /// Bytes of blocks.
    Blocks(BlockFormat),
}

/// Weights of a layer.
#[derive(Debug)]
pub(crate) struct LayerWeights {
    pub(crate) attention_norm: DeviceTensor,
    /// Those of queries, keys and values, one after another; one matrix, if their types are one.
    pub(crate) attention: Vec<WeightMatrix>,
    /// Biases of the three, one after another.
    pub(crate) biases: Option<DeviceTensor>,
    /// Norms of heads of queries and of keys.
    pub(crate) head_norms: Option<[DeviceTensor; 2]>,
    pub(crate) out: WeightMatrix,
    pub(crate) unit_norm: DeviceTensor,
    pub(crate) gate: WeightMatrix,
    pub(crate) up: WeightMatrix,
    pub(crate) down: WeightMatrix,
}

/// Weights of a decoder.
#[derive(Debug)]
pub(crate) struct DecoderWeights {
    pub(crate) embedding: WeightMatrix,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) norm: DeviceTensor,
    pub(crate) head: WeightMatrix,
    pub(crate) frequencies: DeviceTensor,
    pub(crate) magnitude: f64,
    pub(crate) vocabulary: u64,
}

/// A matrix as the file has it.
#[derive(Clone, Copy)]
struct FileMatrix<'a> {
    bytes: &'a [u8],
    format: MatrixFormat,
    /// Of what lies in memory.
    dtype: Dtype,
    outputs: u64,
    /// Elements of that type in a row.
    row: u64,
}

/// Reader of tensors, which checks their shapes.
struct WeightLoader<'a> {
    model: &'a ModelFile,
    session: &'a Session,
}

fn upload(session: &Session, dtype: Dtype, shape: &[u64], bytes: &[u8]) -> Result<DeviceTensor> {
    let id = session.alloc(Layout::contiguous(dtype, shape)?, Regime::Pool)?;
    session.upload_bytes(id, bytes)?;
    Ok(DeviceTensor::of(session.bind(id)?))
}

fn upload_floats(session: &Session, values: &[f32]) -> Result<DeviceTensor> {
    let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
    upload(session, Dtype::F32, &[values.len() as u64], &bytes)
}

impl<'a> WeightLoader<'a> {
    fn tensor(&self, name: &str) -> Result<StoredTensor<'a>> {
        Ok(self.model.tensor(name)?)
    }

    fn has(&self, name: &str) -> bool {
        self.model.tensor(name).is_ok()
    }

    /// A vector, as f32.
    fn vector(&self, name: &str, length: u64) -> Result<DeviceTensor> {
        upload_floats(self.session, &self.floats(name, length)?)
    }

    fn floats(&self, name: &str, length: u64) -> Result<Vec<f32>> {
        let tensor = self.tensor(name)?;
        if tensor.elements() != length {
            let what = format!("{name} has {} elements, not {length}", tensor.elements());
            return Err(unsupported(what, "another file: this one is damaged"));
        }
        Ok(tensor.decode()?)
    }

    /// A matrix of so many inputs, and outputs, if they are known.
    fn matrix(&self, name: &str, inputs: u64, outputs: Option<u64>) -> Result<FileMatrix<'a>> {
        let tensor = self.tensor(name)?;
        let damaged = |shape: &[u64]| {
            let wanted = outputs.map_or("any".to_owned(), |it| it.to_string());
            let what = format!("{name} is {shape:?}, not [{wanted}, {inputs}]");
            unsupported(what, "another file: this one is damaged")
        };
        let &[own, width] = tensor.shape.as_slice() else {
            return Err(damaged(&tensor.shape));
        };
        if width != inputs || own == 0 || outputs.is_some_and(|it| it != own) {
            return Err(damaged(&tensor.shape));
        }
        let (format, dtype, row) = match tensor.kind {
            TensorType::Scalar(dtype @ (Dtype::F32 | Dtype::F16 | Dtype::Bf16)) => {
                (MatrixFormat::Plain(dtype), dtype, width)
            }
            TensorType::Block(format) => {
                let row = tensor.bytes.len() as u64 / own;
                (MatrixFormat::Blocks(format), Dtype::U8, row)
            }
            kind => {
                return Err(unsupported(
                    format!("{name} has elements of {kind}"),
                    "`fercuda model quantize` to another type",
                ));
            }
        };
        Ok(FileMatrix {
            bytes: tensor.bytes,
            format,
            dtype,
            outputs: own,
            row,
        })
    }

    /// Uploads matrices of one type as one, one after another.
    fn joined(&self, part: &[FileMatrix<'_>]) -> Result<WeightMatrix> {
        let outputs = part.iter().map(|it| it.outputs).sum();
        let FileMatrix {
            format, dtype, row, ..
        } = part[0];
        let bytes = match part {
            [one] => Cow::Borrowed(one.bytes),
            several => Cow::Owned(several.iter().flat_map(|it| it.bytes).copied().collect()),
        };
        Ok(WeightMatrix {
            tensor: upload(self.session, dtype, &[outputs, row], &bytes)?,
            format,
            outputs,
        })
    }

    /// Uploads matrices, one after another: as one, if their types are one.
    fn upload(&self, matrices: &[FileMatrix<'_>]) -> Result<Vec<WeightMatrix>> {
        let is_same = |a: &FileMatrix<'_>, b: &FileMatrix<'_>| a.format == b.format;
        match matrices.windows(2).all(|pair| is_same(&pair[0], &pair[1])) {
            true => Ok(vec![self.joined(matrices)?]),
            false => matrices.chunks(1).map(|one| self.joined(one)).collect(),
        }
    }

    /// A matrix alone.
    fn single(&self, name: &str, inputs: u64, outputs: Option<u64>) -> Result<WeightMatrix> {
        self.joined(&[self.matrix(name, inputs, outputs)?])
    }

    fn layer(&self, config: &ModelConfig, layer: u64) -> Result<LayerWeights> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let hidden = config.hidden;
        let of_q = config.heads * config.key_length;
        let of_k = config.shared_heads * config.key_length;
        let of_v = config.shared_heads * config.value_length;
        let values = config.heads * config.value_length;
        let file = |part: &str, inputs, outputs| {
            self.matrix(&name(&format!("{part}.weight")), inputs, Some(outputs))
        };
        let matrix = |part: &str, inputs, outputs| {
            self.single(&name(&format!("{part}.weight")), inputs, Some(outputs))
        };
        let vector = |part: &str, length| self.vector(&name(part), length);
        let biases = match config.spec.has_biases || self.has(&name("attn_q.bias")) {
            true => {
                let mut all = Vec::new();
                for (part, length) in [("q", of_q), ("k", of_k), ("v", of_v)] {
                    all.extend(self.floats(&name(&format!("attn_{part}.bias")), length)?);
                }
                Some(upload_floats(self.session, &all)?)
            }
            false => None,
        };
        let head_norms = match config.spec.has_head_norms {
            true => Some([
                vector("attn_q_norm.weight", config.key_length)?,
                vector("attn_k_norm.weight", config.key_length)?,
            ]),
            false => None,
        };
        Ok(LayerWeights {
            attention_norm: vector("attn_norm.weight", hidden)?,
            attention: self.upload(&[
                file("attn_q", hidden, of_q)?,
                file("attn_k", hidden, of_k)?,
                file("attn_v", hidden, of_v)?,
            ])?,
            biases,
            head_norms,
            out: matrix("attn_output", values, hidden)?,
            unit_norm: vector("ffn_norm.weight", hidden)?,
            gate: matrix("ffn_gate", hidden, config.feed_forward)?,
            up: matrix("ffn_up", hidden, config.feed_forward)?,
            down: matrix("ffn_down", config.feed_forward, hidden)?,
        })
    }
}

impl DecoderWeights {
    /// Uploads the weights of a file; `progress` gets the bytes of each layer when they are there.
    pub(crate) fn load(
        model: &ModelFile,
        config: &ModelConfig,
        session: &Session,
        mut progress: impl FnMut(u64),
    ) -> Result<Self> {
        let loader = WeightLoader { model, session };
        let embedding = loader.single("token_embd.weight", config.hidden, None)?;
        let vocabulary = embedding.outputs;
        let head = match loader.has("output.weight") {
            true => loader.single("output.weight", config.hidden, Some(vocabulary))?,
            // One matrix for both.
            false => embedding.clone(),
        };
        progress(session.held_bytes());
        let mut layers = Vec::new();
        for layer in 0..config.layers {
            layers.push(loader.layer(config, layer)?);
            progress(session.held_bytes());
        }
        let (frequencies, magnitude) = config.rotary.frequencies();
        Ok(Self {
            embedding,
            layers,
            norm: loader.vector("output_norm.weight", config.hidden)?,
            head,
            frequencies: upload_floats(session, &frequencies)?,
            magnitude,
            vocabulary,
        })
    }
}
