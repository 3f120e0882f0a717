//! Tensors of a model in device memory, as the file has them.

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
    pub(crate) q: WeightMatrix,
    pub(crate) k: WeightMatrix,
    pub(crate) v: WeightMatrix,
    /// Biases of the three.
    pub(crate) biases: Option<[DeviceTensor; 3]>,
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
        let tensor = self.tensor(name)?;
        if tensor.elements() != length {
            let what = format!("{name} has {} elements, not {length}", tensor.elements());
            return Err(unsupported(what, "another file: this one is damaged"));
        }
        upload_floats(self.session, &tensor.decode()?)
    }

    /// A matrix of so many inputs, and outputs, if they are known.
    fn matrix(&self, name: &str, inputs: u64, outputs: Option<u64>) -> Result<WeightMatrix> {
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
        let (format, dtype, shape) = match tensor.kind {
            TensorType::Scalar(dtype @ (Dtype::F32 | Dtype::F16 | Dtype::Bf16)) => {
                (MatrixFormat::Plain(dtype), dtype, [own, width])
            }
            TensorType::Block(format) => {
                let row = tensor.bytes.len() as u64 / own;
                (MatrixFormat::Blocks(format), Dtype::U8, [own, row])
            }
            kind => {
                return Err(unsupported(
                    format!("{name} has elements of {kind}"),
                    "`fercuda model quantise` to another type",
                ));
            }
        };
        Ok(WeightMatrix {
            tensor: upload(self.session, dtype, &shape, tensor.bytes)?,
            format,
            outputs: own,
        })
    }

    fn layer(&self, config: &ModelConfig, layer: u64) -> Result<LayerWeights> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let hidden = config.hidden;
        let of_q = config.heads * config.key_length;
        let of_k = config.shared_heads * config.key_length;
        let of_v = config.shared_heads * config.value_length;
        let values = config.heads * config.value_length;
        let matrix = |part: &str, inputs, outputs| {
            self.matrix(&name(&format!("{part}.weight")), inputs, Some(outputs))
        };
        let vector = |part: &str, length| self.vector(&name(part), length);
        let biases = match config.spec.has_biases || self.has(&name("attn_q.bias")) {
            true => Some([
                vector("attn_q.bias", of_q)?,
                vector("attn_k.bias", of_k)?,
                vector("attn_v.bias", of_v)?,
            ]),
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
            q: matrix("attn_q", hidden, of_q)?,
            k: matrix("attn_k", hidden, of_k)?,
            v: matrix("attn_v", hidden, of_v)?,
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

/// Bytes that the weights of a file need.
pub(crate) fn weight_bytes(model: &ModelFile) -> u64 {
    model.tensors().map(|it| it.bytes.len() as u64).sum()
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
        let embedding = loader.matrix("token_embd.weight", config.hidden, None)?;
        let vocabulary = embedding.outputs;
        let head = match loader.has("output.weight") {
            true => loader.matrix("output.weight", config.hidden, Some(vocabulary))?,
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
