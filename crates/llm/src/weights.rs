//! Tensors of a model in device memory, as the file has them.

use fercuda_runtime::{Regime, Session};
use fercuda_tensor::{Dtype, Layout};

use crate::config::ModelConfig;
use crate::error::LlmError;
use crate::recorder::DeviceTensor;
use crate::tensors::{FileMatrix, MatrixFormat, ModelTensors};

type Result<T> = std::result::Result<T, LlmError>;

/// Bytes of a matrix that are uploaded at once.
const PIECE_BYTES: usize = 8 << 20;

/// A matrix by which vectors are multiplied, or whose rows are chosen.
#[derive(Clone, Debug)]
pub(crate) struct WeightMatrix {
    pub(crate) tensor: DeviceTensor,
    pub(crate) format: MatrixFormat,
    pub(crate) outputs: u64,
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

/// Uploads tensors, whose shapes are checked.
struct WeightLoader<'a> {
    tensors: ModelTensors<'a>,
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
    fn has(&self, name: &str) -> bool {
        self.tensors.has(name)
    }

    /// A vector, as f32.
    fn vector(&self, name: &str, length: u64) -> Result<DeviceTensor> {
        upload_floats(self.session, &self.floats(name, length)?)
    }

    fn floats(&self, name: &str, length: u64) -> Result<Vec<f32>> {
        self.tensors.floats(name, length)
    }

    fn matrix(&self, name: &str, inputs: u64, outputs: Option<u64>) -> Result<FileMatrix<'a>> {
        self.tensors.matrix(name, inputs, outputs)
    }

    /// Uploads matrices of one type as one, one after another: rows of them at a time, so that a
    /// driver, which copies what it gets to memory of its own, holds no more than that.
    fn joined(&self, parts: &[FileMatrix<'_>]) -> Result<WeightMatrix> {
        let outputs = parts.iter().map(|it| it.outputs).sum();
        let FileMatrix {
            format, dtype, row, ..
        } = parts[0];
        let session = self.session;
        let layout = Layout::contiguous(dtype, &[outputs, row])?;
        let id = session.alloc(layout, Regime::Pool)?;
        let row_bytes = (row * dtype.bytes()) as usize;
        let rows = (PIECE_BYTES / row_bytes.max(1)).max(1) as u64;
        let mut first = 0;
        for bytes in parts
            .iter()
            .flat_map(|it| it.bytes.chunks(rows as usize * row_bytes))
        {
            let end = first + (bytes.len() / row_bytes) as u64;
            let piece = session.view(id, |all| Ok(all.slice(0, first..end, 1)?))?;
            session.upload_bytes(piece, bytes)?;
            session.free(piece)?;
            first = end;
        }
        Ok(WeightMatrix {
            tensor: DeviceTensor::of(session.bind(id)?),
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
    /// Uploads the weights of a model; `progress` gets the bytes that are there behind each layer.
    pub(crate) fn load(
        tensors: ModelTensors<'_>,
        config: &ModelConfig,
        session: &Session,
        mut progress: impl FnMut(u64),
    ) -> Result<Self> {
        let loader = WeightLoader { tensors, session };
        tensors.prefetch(0);
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
            tensors.prefetch(layer + 1);
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
