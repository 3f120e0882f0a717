//! Tensors of a model in device memory, as the file has them.

use std::cell::RefCell;
use std::collections::HashSet;

use fercuda_runtime::{Regime, Session};
use fercuda_tensor::{Dtype, Layout};

use crate::config::{ExpertConfig, ModelConfig};
use crate::error::{LlmError, unsupported};
use crate::model::{BiasedProducts, ExpertWeighting, HeadNorms};
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
    /// A score without value of each head.
    pub(crate) sinks: Option<DeviceTensor>,
    pub(crate) out: WeightMatrix,
    pub(crate) out_bias: Option<DeviceTensor>,
    pub(crate) unit_norm: DeviceTensor,
    pub(crate) unit: UnitWeights,
    /// Norms of what attention and the unit give.
    pub(crate) post_norms: Option<[DeviceTensor; 2]>,
}

/// Weights of a gated unit.
#[derive(Debug)]
pub(crate) enum UnitWeights {
    /// Of all tokens: matrices of the gate, of what it is multiplied with, and of the result.
    Dense(Box<[WeightMatrix; 3]>),
    Experts(Box<ExpertWeights>),
}

/// Weights of experts, of which each token chooses some.
#[derive(Debug)]
pub(crate) struct ExpertWeights {
    pub(crate) chosen: ExpertConfig,
    pub(crate) router: WeightMatrix,
    pub(crate) router_bias: Option<DeviceTensor>,
    /// Matrices of all experts: of the gate, of what it is multiplied with, and of the result.
    pub(crate) gate: WeightMatrix,
    pub(crate) up: WeightMatrix,
    pub(crate) down: WeightMatrix,
    /// Biases of the three, of each expert.
    pub(crate) biases: Option<[DeviceTensor; 3]>,
    /// Matrices of an expert of all tokens, whose result is added.
    pub(crate) shared: Option<[WeightMatrix; 3]>,
}

impl LayerWeights {
    /// Matrices by which all tokens are multiplied.
    pub(crate) fn matrices(&self) -> Vec<&WeightMatrix> {
        let mut all: Vec<&WeightMatrix> = self.attention.iter().chain([&self.out]).collect();
        match &self.unit {
            UnitWeights::Dense(own) => all.extend(own.iter()),
            UnitWeights::Experts(experts) => {
                all.push(&experts.router);
                all.extend(experts.shared.iter().flatten());
            }
        }
        all
    }
}

/// Weights of a decoder.
#[derive(Debug)]
pub(crate) struct DecoderWeights {
    pub(crate) embedding: WeightMatrix,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) norm: DeviceTensor,
    pub(crate) head: WeightMatrix,
    /// Frequencies of pairs and the factor of sines and cosines, of each of the rotations.
    pub(crate) rotaries: Vec<(DeviceTensor, f64)>,
    pub(crate) vocabulary: u64,
}

/// Uploads tensors, whose shapes are checked.
struct WeightLoader<'a> {
    tensors: ModelTensors<'a>,
    session: &'a Session,
    /// Names of tensors that were read.
    read: RefCell<HashSet<String>>,
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
    /// Tensors, of which that one is read.
    fn reading(&self, name: &str) -> ModelTensors<'a> {
        self.read.borrow_mut().insert(name.to_owned());
        self.tensors
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.has(name)
    }

    /// A vector, as f32.
    fn vector(&self, name: &str, length: u64) -> Result<DeviceTensor> {
        upload_floats(self.session, &self.floats(name, length)?)
    }

    fn floats(&self, name: &str, length: u64) -> Result<Vec<f32>> {
        self.reading(name).floats(name, length)
    }

    /// A vector, as f32, if the file has it or must have it.
    fn optional(&self, name: &str, length: u64, is_needed: bool) -> Result<Option<DeviceTensor>> {
        match is_needed || self.has(name) {
            true => Ok(Some(self.vector(name, length)?)),
            false => Ok(None),
        }
    }

    /// A matrix of so many inputs, and outputs, if they are known.
    fn matrix(&self, name: &str, inputs: u64, outputs: Option<u64>) -> Result<FileMatrix<'a>> {
        self.reading(name).matrices(name, None, inputs, outputs)
    }

    /// Uploads matrices of one type, one after another, as rows of one: some rows at a time, so
    /// that a driver, which copies what it gets to memory of its own, holds no more than that.
    fn rows(&self, parts: &[FileMatrix<'_>]) -> Result<DeviceTensor> {
        let all = parts.iter().map(|it| it.experts * it.outputs).sum();
        let FileMatrix { dtype, row, .. } = parts[0];
        let session = self.session;
        let layout = Layout::contiguous(dtype, &[all, row])?;
        let id = session.alloc(layout, Regime::Pool)?;
        let row_bytes = ((row * dtype.bytes()) as usize).max(1);
        let piece_bytes = (PIECE_BYTES / row_bytes).max(1) * row_bytes;
        let mut first = 0;
        for bytes in parts.iter().flat_map(|it| it.bytes.chunks(piece_bytes)) {
            let end = first + (bytes.len() / row_bytes) as u64;
            let piece = session.view(id, |all| Ok(all.slice(0, first..end, 1)?))?;
            session.upload_bytes(piece, bytes)?;
            session.free(piece)?;
            first = end;
        }
        Ok(DeviceTensor::of(session.bind(id)?))
    }

    /// Uploads matrices of experts.
    fn of_experts(&self, matrix: FileMatrix<'_>) -> Result<WeightMatrix> {
        let shape = [matrix.experts, matrix.outputs, matrix.row];
        let (format, outputs) = (matrix.format, matrix.outputs);
        Ok(WeightMatrix {
            tensor: self.rows(&[matrix])?.reshape(&shape)?,
            format,
            outputs,
        })
    }

    /// Uploads matrices of one type as one, one after another.
    fn joined(&self, parts: &[FileMatrix<'_>]) -> Result<WeightMatrix> {
        Ok(WeightMatrix {
            tensor: self.rows(parts)?,
            format: parts[0].format,
            outputs: parts.iter().map(|it| it.outputs).sum(),
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

    /// Products for queries, keys and values: one matrix, or three.
    fn attention(&self, config: &ModelConfig, layer: u64) -> Result<Vec<WeightMatrix>> {
        let hidden = config.hidden;
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let [q, k, v] = of_heads(config);
        if self.has(&name("attn_qkv")) {
            return self.upload(&[self.matrix(&name("attn_qkv"), hidden, Some(q + k + v))?]);
        }
        self.upload(&[
            self.matrix(&name("attn_q"), hidden, Some(q))?,
            self.matrix(&name("attn_k"), hidden, Some(k))?,
            self.matrix(&name("attn_v"), hidden, Some(v))?,
        ])
    }

    /// Biases of these products, one after another.
    fn attention_biases(&self, config: &ModelConfig, layer: u64) -> Result<Option<DeviceTensor>> {
        let name = |part: &str| format!("blk.{layer}.{part}.bias");
        let lengths = of_heads(config);
        if self.has(&name("attn_qkv")) {
            return Ok(Some(self.vector(&name("attn_qkv"), lengths.iter().sum())?));
        }
        if config.spec.biases == BiasedProducts::None && !self.has(&name("attn_q")) {
            return Ok(None);
        }
        let mut all = Vec::new();
        for (part, length) in ["attn_q", "attn_k", "attn_v"].iter().zip(lengths) {
            all.extend(self.floats(&name(part), length)?);
        }
        Ok(Some(upload_floats(self.session, &all)?))
    }

    fn unit(&self, config: &ModelConfig, layer: u64) -> Result<UnitWeights> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let (hidden, inner) = (config.hidden, config.feed_forward);
        if let Some(chosen) = config.experts
            && (inner == 0 || self.has(&name("ffn_gate_inp")) || !self.has(&name("ffn_down")))
        {
            let experts = self.experts(config, chosen, layer)?;
            return Ok(UnitWeights::Experts(Box::new(experts)));
        }
        let [gate, up] = match self.has(&name("ffn_gate")) {
            true => [
                self.matrix(&name("ffn_gate"), hidden, Some(inner))?,
                self.matrix(&name("ffn_up"), hidden, Some(inner))?,
            ],
            // Both in one.
            false => {
                let both = self.matrix(&name("ffn_up"), hidden, Some(2 * inner));
                both.map_err(|error| match self.has(&name("ffn_up")) {
                    true => unsupported(
                        format!("the file does not have {}, and {error}", name("ffn_gate")),
                        "a file that has all tensors of its architecture",
                    ),
                    false => error,
                })?
                .parted(inner)
            }
        };
        Ok(UnitWeights::Dense(Box::new([
            self.joined(&[gate])?,
            self.joined(&[up])?,
            self.single(&name("ffn_down"), inner, Some(hidden))?,
        ])))
    }

    fn experts(
        &self,
        config: &ModelConfig,
        chosen: ExpertConfig,
        layer: u64,
    ) -> Result<ExpertWeights> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (hidden, inner, count) = (config.hidden, chosen.feed_forward, chosen.count);
        let parts = [
            ("ffn_gate_exps", hidden, inner),
            ("ffn_up_exps", hidden, inner),
            ("ffn_down_exps", inner, hidden),
        ];
        let [gate, up, down] = parts.map(|(part, inputs, outputs)| {
            let name = name(&format!("{part}.weight"));
            let matrices = self
                .reading(&name)
                .matrices(&name, Some(count), inputs, Some(outputs));
            self.of_experts(matrices?)
        });
        let is_biased = config.spec.biases == BiasedProducts::All;
        let biases = match is_biased || self.has(&name("ffn_gate_exps.bias")) {
            true => {
                let [gate, up, down] = parts.map(|(part, _, outputs)| {
                    let bias = self.vector(&name(&format!("{part}.bias")), count * outputs)?;
                    bias.reshape(&[count, outputs])
                });
                Some([gate?, up?, down?])
            }
            false => None,
        };
        let shared = match self.has(&name("ffn_gate_shexp.weight")) {
            true => {
                let single = |part: &str, inputs, outputs| {
                    self.single(&name(&format!("{part}.weight")), inputs, Some(outputs))
                };
                Some([
                    single("ffn_gate_shexp", hidden, inner)?,
                    single("ffn_up_shexp", hidden, inner)?,
                    single("ffn_down_shexp", inner, hidden)?,
                ])
            }
            false if config.spec.weighting == ExpertWeighting::SigmoidBefore => {
                return Err(self.tensors.missing(&name("ffn_gate_shexp.weight")));
            }
            false => None,
        };
        Ok(ExpertWeights {
            shared,
            chosen,
            router: self.single(&name("ffn_gate_inp.weight"), hidden, Some(count))?,
            router_bias: self.optional(&name("ffn_gate_inp.bias"), count, is_biased)?,
            gate: gate?,
            up: up?,
            down: down?,
            biases,
        })
    }

    fn layer(&self, config: &ModelConfig, layer: u64) -> Result<LayerWeights> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (spec, hidden) = (&config.spec, config.hidden);
        let values = config.heads * config.value_length;
        let norm = |part: &str, length| self.vector(&name(&format!("{part}.weight")), length);
        let norms = |parts: [&str; 2], length| -> Result<[DeviceTensor; 2]> {
            Ok([norm(parts[0], length)?, norm(parts[1], length)?])
        };
        let head_norms = ["attn_q_norm", "attn_k_norm"];
        let post_norms = ["post_attention_norm", "post_ffw_norm"];
        let is_biased = spec.biases == BiasedProducts::All;
        Ok(LayerWeights {
            attention_norm: norm("attn_norm", hidden)?,
            attention: self.attention(config, layer)?,
            biases: self.attention_biases(config, layer)?,
            head_norms: match config.head_norms_of(layer) {
                HeadNorms::Weighted => Some(norms(head_norms, config.key_length)?),
                HeadNorms::Plain { .. } => {
                    let ones = vec![1.0; config.key_length as usize];
                    let ones = upload_floats(self.session, &ones)?;
                    Some([ones.clone(), ones])
                }
                HeadNorms::None => None,
            },
            sinks: match spec.has_sinks {
                true => Some(norm("attn_sinks", config.heads)?),
                false => None,
            },
            out: self.single(&name("attn_output.weight"), values, Some(hidden))?,
            out_bias: self.optional(&name("attn_output.bias"), hidden, is_biased)?,
            unit_norm: norm(spec.unit_norm, hidden)?,
            unit: self.unit(config, layer)?,
            post_norms: match spec.has_post_norms {
                true => Some(norms(post_norms, hidden)?),
                false => None,
            },
        })
    }
}

/// Elements of all queries, keys and values of a token.
fn of_heads(config: &ModelConfig) -> [u64; 3] {
    let shared = config.shared_heads;
    [
        config.heads * config.key_length,
        shared * config.key_length,
        shared * config.value_length,
    ]
}

impl DecoderWeights {
    /// Uploads the weights of a model for requests of that context; `progress` gets the bytes that
    /// are there behind each layer.
    pub(crate) fn load(
        tensors: ModelTensors<'_>,
        context: u64,
        session: &Session,
        mut progress: impl FnMut(u64),
    ) -> Result<Self> {
        let config = tensors.config();
        let loader = WeightLoader {
            tensors,
            session,
            read: RefCell::default(),
        };
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
        let rotaries = config.rotaries.iter().map(|rotary| {
            let (frequencies, magnitude) = rotary.frequencies(context);
            Ok((upload_floats(session, &frequencies)?, magnitude))
        });
        let rotaries: Result<Vec<(DeviceTensor, f64)>> = rotaries.collect();
        let norm = loader.vector("output_norm.weight", config.hidden)?;
        tensors.check_read(&loader.read.borrow())?;
        Ok(Self {
            embedding,
            layers,
            norm,
            head,
            rotaries: rotaries?,
            vocabulary,
        })
    }
}
