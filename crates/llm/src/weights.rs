//! Tensors of a model in device memory, as the file has them.

use std::cell::RefCell;
use std::collections::HashSet;

use fercuda_runtime::{Regime, Session};
use fercuda_tensor::{Dtype, Layout};

use crate::config::{ExpertConfig, ModelConfig};
use crate::error::{LlmError, unsupported};
use crate::file_matrix::{FileMatrix, MatrixFormat};
use crate::model::{BiasedProducts, ExpertWeighting, HeadNorms, RecurrenceRule};
use crate::recorder::DeviceTensor;
use crate::recurrence_config::RecurrenceConfig;
use crate::tensors::ModelTensors;

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
    pub(crate) mixer: MixerWeights,
    pub(crate) out: WeightMatrix,
    pub(crate) out_bias: Option<DeviceTensor>,
    /// The norm before the gated unit, and the unit, where there is one.
    pub(crate) unit: Option<(DeviceTensor, UnitWeights)>,
    /// Norms of what attention and the unit give.
    pub(crate) post_norms: Option<[DeviceTensor; 2]>,
}

/// Weights of that by which tokens get from those before them.
#[derive(Debug)]
pub(crate) enum MixerWeights {
    Attention(Box<AttentionWeights>),
    Recurrent(Box<RecurrentWeights>),
}

/// Weights of attention.
#[derive(Debug)]
pub(crate) struct AttentionWeights {
    /// Those of queries, keys, values and gates, one after another; neighbours of one type are one
    /// matrix.
    pub(crate) products: Vec<WeightMatrix>,
    /// Biases of the first three, one after another.
    pub(crate) biases: Option<DeviceTensor>,
    /// Norms of heads of queries and of keys.
    pub(crate) head_norms: Option<[DeviceTensor; 2]>,
    /// A score without value of each head.
    pub(crate) sinks: Option<DeviceTensor>,
}

/// Weights of a layer whose state goes from token to token.
#[derive(Debug)]
pub(crate) struct RecurrentWeights {
    /// Those of what the convolution goes over, of gates and of steps, in the order of
    /// [`RecurrentParts`]; neighbours of one type are one matrix.
    pub(crate) products: Vec<WeightMatrix>,
    pub(crate) parts: RecurrentParts,
    /// Of each channel, of so many tokens.
    pub(crate) window: DeviceTensor,
    pub(crate) window_bias: Option<DeviceTensor>,
    /// The logarithm of what is kept of the state at a step of 1, by head.
    pub(crate) rate: DeviceTensor,
    /// Added to steps.
    pub(crate) step_bias: DeviceTensor,
    /// Factor of values that go around the state.
    pub(crate) skip: Option<DeviceTensor>,
    pub(crate) norm: DeviceTensor,
}

/// Where the parts of what a token's vector is projected to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecurrentParts {
    pub(crate) channels: u64,
    pub(crate) gate: u64,
    pub(crate) step: u64,
    /// Rates of the delta rule.
    pub(crate) beta: Option<u64>,
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
    /// The row by which the sigmoid is that the result of the expert of all tokens is times.
    pub(crate) shared_gate: Option<WeightMatrix>,
}

impl LayerWeights {
    /// Matrices by which all tokens are multiplied.
    pub(crate) fn matrices(&self) -> Vec<&WeightMatrix> {
        let products = match &self.mixer {
            MixerWeights::Attention(own) => &own.products,
            MixerWeights::Recurrent(own) => &own.products,
        };
        let mut all: Vec<&WeightMatrix> = products.iter().chain([&self.out]).collect();
        match &self.unit {
            Some((_, UnitWeights::Dense(own))) => all.extend(own.iter()),
            Some((_, UnitWeights::Experts(experts))) => {
                all.push(&experts.router);
                all.extend(experts.shared.iter().flatten());
                all.extend(&experts.shared_gate);
            }
            None => {}
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

    /// Weights of a norm: checkpoints of some architectures have 1 less.
    fn norm(&self, name: &str, length: u64) -> Result<DeviceTensor> {
        let mut values = self.floats(name, length)?;
        let checkpoint = self.tensors.config().checkpoint.as_ref();
        if checkpoint.is_some_and(|it| it.spec.has_norms_around_0) {
            values.iter_mut().for_each(|it| *it += 1.0);
        }
        upload_floats(self.session, &values)
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
        let (dtype, row) = (parts[0].dtype, parts[0].row);
        let session = self.session;
        let layout = Layout::contiguous(dtype, &[all, row])?;
        let id = session.alloc(layout, Regime::Pool)?;
        let row_bytes = ((row * dtype.bytes()) as usize).max(1);
        let piece_bytes = (PIECE_BYTES / row_bytes).max(1) * row_bytes;
        let mut first = 0;
        let pieces = parts.iter().flat_map(|it| &it.pieces);
        for bytes in pieces.flat_map(|it| it.chunks(piece_bytes)) {
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

    /// Uploads matrices, one after another: neighbours of one type as one.
    fn upload(&self, matrices: &[FileMatrix<'_>]) -> Result<Vec<WeightMatrix>> {
        let is_same = |a: &FileMatrix<'_>, b: &FileMatrix<'_>| a.format == b.format;
        let runs = matrices.chunk_by(is_same);
        runs.map(|run| self.joined(run)).collect()
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
        let keys = self.matrix(&name("attn_k"), hidden, Some(k))?;
        let values = self.matrix(&name("attn_v"), hidden, Some(v))?;
        if config.spec.has_attention_gate {
            let both = self.matrix(&name("attn_q"), hidden, Some(2 * q))?;
            let [queries, gates] = both.alternating(config.key_length);
            return self.upload(&[queries, keys, values, gates]);
        }
        let queries = self.matrix(&name("attn_q"), hidden, Some(q))?;
        self.upload(&[queries, keys, values])
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
        if let Some(chosen) = self.tensors.experts_of(layer) {
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
                .alternating(inner)
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
        let shared_gate = match self.has(&name("ffn_gate_inp_shexp.weight")) {
            true => Some(self.row(&name("ffn_gate_inp_shexp.weight"), hidden)?),
            false => None,
        };
        let shared = match self.has(&name("ffn_gate_shexp.weight")) {
            true => {
                let inner = chosen.shared;
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
            shared_gate,
            chosen,
            router: self.single(&name("ffn_gate_inp.weight"), hidden, Some(count))?,
            router_bias: self.optional(&name("ffn_gate_inp.bias"), count, is_biased)?,
            gate: gate?,
            up: up?,
            down: down?,
            biases,
        })
    }

    /// A vector as a matrix of one row.
    fn row(&self, name: &str, inputs: u64) -> Result<WeightMatrix> {
        Ok(WeightMatrix {
            tensor: self.vector(name, inputs)?.reshape(&[1, inputs])?,
            format: MatrixFormat::Plain(Dtype::F32),
            outputs: 1,
        })
    }

    fn attention_mixer(&self, config: &ModelConfig, layer: u64) -> Result<AttentionWeights> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let length = config.key_length;
        Ok(AttentionWeights {
            products: self.attention(config, layer)?,
            biases: self.attention_biases(config, layer)?,
            head_norms: match config.head_norms_of(layer) {
                HeadNorms::Weighted => Some([
                    self.norm(&name("attn_q_norm"), length)?,
                    self.norm(&name("attn_k_norm"), length)?,
                ]),
                HeadNorms::Plain { .. } => {
                    let ones = vec![1.0; length as usize];
                    let ones = upload_floats(self.session, &ones)?;
                    Some([ones.clone(), ones])
                }
                HeadNorms::None => None,
            },
            sinks: match config.spec.has_sinks {
                true => Some(self.vector(&name("attn_sinks"), config.heads)?),
                false => None,
            },
        })
    }

    /// Weights of a layer whose state goes from token to token.
    fn recurrent(
        &self,
        config: &ModelConfig,
        of: &RecurrenceConfig,
        layer: u64,
    ) -> Result<RecurrentWeights> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (hidden, channels, values) = (config.hidden, of.channels(), of.values());
        let (heads, is_scan) = (of.heads, of.rule == RecurrenceRule::Scan);
        let weight = |part: &str, outputs| {
            self.matrix(&name(&format!("{part}.weight")), hidden, Some(outputs))
        };
        let (products, parts) = match is_scan {
            true => {
                let parts = RecurrentParts {
                    gate: 0,
                    channels: values,
                    step: values + channels,
                    beta: None,
                };
                (vec![weight("ssm_in", of.projected())?], parts)
            }
            false => {
                let parts = RecurrentParts {
                    channels: 0,
                    gate: channels,
                    step: channels + values,
                    beta: Some(channels + values + heads),
                };
                let products = vec![
                    weight("attn_qkv", channels)?,
                    weight("attn_gate", values)?,
                    weight("ssm_alpha", heads)?,
                    weight("ssm_beta", heads)?,
                ];
                (products, parts)
            }
        };
        let mut rate = self.floats(&name("ssm_a"), heads)?;
        if config.checkpoint.is_some() {
            rate.iter_mut().for_each(|it| *it = -it.exp());
        }
        let window = self.vector(&name("ssm_conv1d.weight"), channels * of.taps)?;
        let norm_length = values / of.norm_groups;
        let norm = match is_scan {
            true => self
                .vector(&name("ssm_norm.weight"), values)?
                .reshape(&[of.norm_groups, norm_length])?,
            false => self.vector(&name("ssm_norm.weight"), norm_length)?,
        };
        Ok(RecurrentWeights {
            products: self.upload(&products)?,
            parts,
            window: window.reshape(&[channels, of.taps])?,
            window_bias: self.optional(&name("ssm_conv1d.bias"), channels, false)?,
            rate: upload_floats(self.session, &rate)?,
            step_bias: self.vector(&name("ssm_dt.bias"), heads)?,
            skip: match is_scan {
                true => Some(self.vector(&name("ssm_d"), heads)?),
                false => None,
            },
            norm,
        })
    }

    fn layer(&self, config: &ModelConfig, layer: u64) -> Result<LayerWeights> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (spec, hidden) = (&config.spec, config.hidden);
        let norm = |part: &str| self.norm(&name(&format!("{part}.weight")), hidden);
        let is_biased = spec.biases == BiasedProducts::All;
        let recurrence = config.recurrence.as_ref();
        let recurrence = recurrence.filter(|_| config.is_recurrent(layer));
        let (out, values) = match recurrence {
            Some(of) => ("ssm_out", of.values()),
            None => ("attn_output", config.heads * config.value_length),
        };
        Ok(LayerWeights {
            attention_norm: norm("attn_norm")?,
            mixer: match recurrence {
                Some(of) => {
                    let own = self.recurrent(config, of, layer)?;
                    MixerWeights::Recurrent(Box::new(own))
                }
                None => MixerWeights::Attention(Box::new(self.attention_mixer(config, layer)?)),
            },
            out: self.single(&name(&format!("{out}.weight")), values, Some(hidden))?,
            out_bias: self.optional(&name(&format!("{out}.bias")), hidden, is_biased)?,
            unit: match spec.has_unit {
                true => Some((norm(spec.unit_norm)?, self.unit(config, layer)?)),
                false => None,
            },
            post_norms: match spec.has_post_norms {
                true => Some([norm("post_attention_norm")?, norm("post_ffw_norm")?]),
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
        let norm = loader.norm("output_norm.weight", config.hidden)?;
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
