//! Ops of a step: from tokens to logits of some of them.

use std::collections::HashMap;

use fercuda_ops::OpDescriptor;
use fercuda_runtime::{GraphKey, Regime, Session};
use fercuda_tensor::{Dtype, Layout};

use crate::config::ModelConfig;
use crate::error::LlmError;
use crate::model::HeadNorms;
use crate::recorder::{DeviceTensor, Planner, RecordedOps};
use crate::step_ops::{ExpertMemory, StepRecorder, of_format};
use crate::weights::{DecoderWeights, LayerWeights, MatrixFormat, UnitWeights};

type Result<T> = std::result::Result<T, LlmError>;

/// Positions of a block of the cache.
pub(crate) const PLACES: u64 = 16;

/// Sizes for which memory is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepLimits {
    /// Tokens of a step.
    pub(crate) tokens: u64,
    /// Requests, and rows of logits.
    pub(crate) requests: u64,
    /// Blocks of a request.
    pub(crate) blocks_each: u64,
    /// Blocks of the cache.
    pub(crate) blocks: u64,
    /// Positions of a block.
    pub(crate) places: u64,
}

/// Numbers of tokens and of rows of logits that a step is prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StepKey {
    pub(crate) tokens: u64,
    pub(crate) rows: u64,
}

impl StepKey {
    /// The key of its graph.
    pub(crate) fn graph(self) -> GraphKey {
        GraphKey {
            words: [self.tokens, self.rows],
            ..GraphKey::default()
        }
    }
}

/// What a step reads of its tokens, one after another in one block of memory: for each token
/// itself, its position, its sequence and its place in the cache; the numbers of the tokens with
/// logits; and the blocks of each sequence.
#[derive(Debug)]
pub(crate) struct StepInputs {
    pub(crate) limits: StepLimits,
    pub(crate) values: Vec<i32>,
}

impl StepInputs {
    /// One in which every token is padding.
    pub(crate) fn new(limits: StepLimits) -> Self {
        let mut block = Self {
            values: vec![0; Self::len(&limits) as usize],
            limits,
        };
        block.clear();
        block
    }

    fn len(limits: &StepLimits) -> u64 {
        4 * limits.tokens + limits.requests + limits.requests * limits.blocks_each
    }

    /// Makes every token padding: it has no position, and a place behind the cache.
    pub(crate) fn clear(&mut self) {
        let tokens = self.limits.tokens as usize;
        let behind = i32::try_from(self.limits.blocks * self.limits.places).unwrap_or(i32::MAX);
        self.values.fill(0);
        self.values[tokens..2 * tokens].fill(-1);
        self.values[3 * tokens..4 * tokens].fill(behind);
    }

    /// Sets a token of the step.
    pub(crate) fn set_token(&mut self, at: usize, token: i32, position: i32, sequence: i32) {
        let tokens = self.limits.tokens as usize;
        self.values[at] = token;
        self.values[tokens + at] = position;
        self.values[2 * tokens + at] = sequence;
    }

    /// Sets where a token's keys and values are stored.
    pub(crate) fn set_place(&mut self, at: usize, place: i32) {
        let tokens = self.limits.tokens as usize;
        self.values[3 * tokens + at] = place;
    }

    /// Sets the token of a row of logits.
    pub(crate) fn set_row(&mut self, row: usize, token: i32) {
        let tokens = self.limits.tokens as usize;
        self.values[4 * tokens + row] = token;
    }

    /// The blocks of a sequence.
    pub(crate) fn table(&mut self, sequence: usize) -> &mut [i32] {
        let each = self.limits.blocks_each as usize;
        let first = (4 * self.limits.tokens + self.limits.requests) as usize + sequence * each;
        &mut self.values[first..first + each]
    }
}

/// A decoder with the memory of its steps.
#[derive(Debug)]
pub(crate) struct ModelDecoder {
    config: ModelConfig,
    weights: DecoderWeights,
    limits: StepLimits,
    /// Keys and values of each layer.
    cache: Vec<[DeviceTensor; 2]>,
    arguments: DeviceTensor,
    x: DeviceTensor,
    normed: DeviceTensor,
    /// Queries, keys and values of a token, one after another.
    projected: DeviceTensor,
    attended: DeviceTensor,
    gate: DeviceTensor,
    up: DeviceTensor,
    /// Queries and keys by the norms of their heads, where there are any.
    normed_heads: Option<[DeviceTensor; 2]>,
    /// What attention or the unit gives, by its norm, where there is one.
    summand: Option<DeviceTensor>,
    experts: Option<ExpertMemory>,
    /// Operands and results of products of narrower types.
    narrow: HashMap<Dtype, [DeviceTensor; 2]>,
    /// Zeros, as many as a token's vector has.
    no_bias: DeviceTensor,
    chosen: DeviceTensor,
    chosen_normed: DeviceTensor,
    logits: DeviceTensor,
    /// The most likely token of each row.
    best: DeviceTensor,
}

/// Bytes of what a decoder needs beside its weights: the cache, and the memory of its steps.
pub(crate) fn memory_bytes(
    config: &ModelConfig,
    limits: &StepLimits,
    vocabulary: u64,
    cached: Dtype,
) -> (u64, u64) {
    let each = config.shared_heads * (config.key_length + config.value_length);
    let cache = config.layers * limits.blocks * limits.places * each * cached.bytes();
    let widths = 2 * config.hidden
        + config.heads * (config.key_length + config.value_length)
        + each
        + 2 * config.feed_forward
        + ExpertMemory::floats_each(config);
    let step = 4
        * (limits.tokens * widths
            + limits.requests * (config.hidden + vocabulary)
            + StepInputs::len(limits));
    (cache, step)
}

fn zeros(session: &Session, dtype: Dtype, shape: &[u64]) -> Result<DeviceTensor> {
    let id = session.alloc(Layout::contiguous(dtype, shape)?, Regime::Pool)?;
    session.fill_bytes(id, 0)?;
    Ok(DeviceTensor::of(session.bind(id)?))
}

/// The narrower types of matrices.
fn narrow_types(weights: &DecoderWeights) -> Vec<Dtype> {
    let of_layers = weights.layers.iter().flat_map(LayerWeights::matrices);
    let mut all = Vec::new();
    for matrix in of_layers.chain([&weights.embedding, &weights.head]) {
        match matrix.format {
            MatrixFormat::Plain(dtype) if dtype != Dtype::F32 && !all.contains(&dtype) => {
                all.push(dtype);
            }
            _ => {}
        }
    }
    all
}

/// Memory for products of narrower types: as much as the widest needs.
fn narrow_memory(
    config: &ModelConfig,
    weights: &DecoderWeights,
    limits: &StepLimits,
    session: &Session,
) -> Result<HashMap<Dtype, [DeviceTensor; 2]>> {
    let heads =
        (config.heads + 2 * config.shared_heads) * config.key_length.max(config.value_length);
    let experts = config.experts.map_or(0, |it| it.count.max(it.feed_forward));
    let widest = config.hidden.max(config.feed_forward).max(heads);
    let widest = widest.max(experts);
    let of_tokens = limits.tokens.max(limits.requests) * widest;
    let of_logits = limits.requests * weights.vocabulary;
    let memory = |dtype| -> Result<(Dtype, [DeviceTensor; 2])> {
        let from = DeviceTensor::reserve(session, dtype, &[of_tokens])?;
        let to = DeviceTensor::reserve(session, dtype, &[of_tokens.max(of_logits)])?;
        Ok((dtype, [from, to]))
    };
    narrow_types(weights).into_iter().map(memory).collect()
}

impl ModelDecoder {
    /// Reserves memory for steps within these limits, but what is given: of the argument block,
    /// of logits, and of the most likely tokens.
    /// The type is that of the cache.
    pub(crate) fn new(
        config: ModelConfig,
        weights: DecoderWeights,
        limits: StepLimits,
        (cached, arguments, [logits, best]): (Dtype, DeviceTensor, [DeviceTensor; 2]),
        session: &Session,
    ) -> Result<Self> {
        let floats = |shape: &[u64]| DeviceTensor::reserve(session, Dtype::F32, shape);
        let tokens = limits.tokens;
        let (heads, shared) = (config.heads, config.shared_heads);
        let mut cache = Vec::new();
        for _ in 0..config.layers {
            let part = |length: u64| {
                let shape = [limits.blocks, limits.places, shared, length];
                DeviceTensor::reserve(session, cached, &shape)
            };
            cache.push([part(config.key_length)?, part(config.value_length)?]);
        }
        Ok(Self {
            cache,
            arguments,
            x: floats(&[tokens, config.hidden])?,
            normed: floats(&[tokens, config.hidden])?,
            projected: floats(&[
                tokens,
                heads * config.key_length + shared * (config.key_length + config.value_length),
            ])?,
            attended: floats(&[tokens, heads * config.value_length])?,
            gate: floats(&[tokens, config.feed_forward.max(1)])?,
            up: floats(&[tokens, config.feed_forward.max(1)])?,
            summand: match config.spec.has_post_norms {
                true => Some(floats(&[tokens, config.hidden])?),
                false => None,
            },
            experts: match config.experts {
                Some(experts) => {
                    let of = (experts, config.hidden);
                    Some(ExpertMemory::reserve(session, of, tokens)?)
                }
                None => None,
            },
            normed_heads: match config.spec.head_norms != HeadNorms::None {
                true => Some([
                    floats(&[tokens, heads * config.key_length])?,
                    floats(&[tokens, shared * config.key_length])?,
                ]),
                false => None,
            },
            narrow: narrow_memory(&config, &weights, &limits, session)?,
            no_bias: zeros(session, Dtype::F32, &[config.hidden])?,
            chosen: floats(&[limits.requests, config.hidden])?,
            chosen_normed: floats(&[limits.requests, config.hidden])?,
            logits,
            best,
            config,
            weights,
            limits,
        })
    }

    /// Number of tokens that there are.
    pub(crate) fn vocabulary(&self) -> u64 {
        self.weights.vocabulary
    }

    /// Layout of the argument block.
    pub(crate) fn argument_layout(limits: &StepLimits) -> Result<Layout> {
        Ok(Layout::contiguous(Dtype::I32, &[StepInputs::len(limits)])?)
    }

    /// Plans the ops of a step.
    pub(crate) fn prepare(&self, planner: &mut Planner, key: StepKey) -> Result<RecordedOps> {
        let (config, weights) = (&self.config, &self.weights);
        let all = self.limits.tokens;
        let tokens = key.tokens;
        let argument = |number: u64| self.arguments.part(number * all..number * all + tokens);
        let step = StepArguments {
            position: argument(1)?,
            sequence: argument(2)?,
            place: argument(3)?,
            table: self
                .arguments
                .part(4 * all + self.limits.requests..StepInputs::len(&self.limits))?
                .reshape(&[self.limits.requests, self.limits.blocks_each])?,
        };
        let rows = self.arguments.part(4 * all..4 * all + key.rows)?;
        let mut ops = StepRecorder {
            planner,
            ops: RecordedOps::default(),
            narrow: &self.narrow,
            no_bias: &self.no_bias,
        };
        let x = self.x.first(tokens)?;
        ops.choose_rows(&weights.embedding, &argument(0)?, &x)?;
        if config.spec.is_scaled {
            let op = OpDescriptor::new("scale")?.number("by", (config.hidden as f64).sqrt())?;
            ops.add(op, &[&x], &[&x])?;
        }
        for (at, layer) in weights.layers.iter().enumerate() {
            self.attention(&mut ops, (at, layer), &step, &x)?;
            self.unit(&mut ops, layer, &x)?;
        }
        let chosen = self.chosen.first(key.rows)?;
        let op = OpDescriptor::new("index_select")?.axes(&[0])?;
        ops.add(op, &[&x, &rows], &[&chosen])?;
        let normed = self.chosen_normed.first(key.rows)?;
        ops.norm(&chosen, &weights.norm, config.epsilon, &normed)?;
        let logits = self.logits.first(key.rows)?;
        ops.product(&normed, &weights.head, &logits)?;
        if config.limits[1] > 0.0 {
            let op = OpDescriptor::new("soft_limit")?.number("limit", config.limits[1])?;
            ops.add(op, &[&logits], &[&logits])?;
        }
        let op = OpDescriptor::new("argmax")?.axes(&[1])?;
        ops.add(op, &[&logits], &[&self.best.first(key.rows)?])?;
        Ok(ops.ops)
    }

    fn attention(
        &self,
        ops: &mut StepRecorder<'_>,
        (number, layer): (usize, &LayerWeights),
        step: &StepArguments,
        x: &DeviceTensor,
    ) -> Result<()> {
        let (config, [keys, values]) = (&self.config, &self.cache[number]);
        let window = config.windows[number];
        let tokens = x.shape()[0];
        let normed = self.normed.first(tokens)?;
        ops.norm(x, &layer.attention_norm, config.epsilon, &normed)?;
        let all = self.projected.first(tokens)?;
        let mut done = 0;
        for weight in &layer.attention {
            let own = all.columns(done..done + weight.outputs)?;
            ops.product(&normed, weight, &own)?;
            done += weight.outputs;
        }
        if let Some(biases) = &layer.biases {
            ops.accumulate(&all, biases)?;
        }
        let mut from = 0;
        let mut of_heads = |heads: u64, length: u64| -> Result<DeviceTensor> {
            let own = all.columns(from..from + heads * length)?;
            from += heads * length;
            own.reshape(&[tokens, heads, length])
        };
        let q = of_heads(config.heads, config.key_length)?;
        let k = of_heads(config.shared_heads, config.key_length)?;
        let v = of_heads(config.shared_heads, config.value_length)?;
        let attended = self.attended.first(tokens)?;
        let attended = attended.reshape(&[tokens, config.heads, config.value_length])?;
        let mut turned_heads = [q, k];
        if let (Some(norms), Some(normed)) = (&layer.head_norms, &self.normed_heads) {
            for ((own, norm), to) in turned_heads.iter_mut().zip(norms).zip(normed) {
                let to = to.first(tokens)?.reshape(own.shape())?;
                ops.norm(own, norm, config.epsilon, &to)?;
                *own = to;
            }
        }
        let [q, k] = turned_heads;
        let rotary = config.rotary_of(number as u64);
        if let Some((frequencies, magnitude)) = rotary.map(|at| &self.weights.rotaries[at]) {
            for turned in [&q, &k] {
                let op = OpDescriptor::new("rope")?
                    .choice("pairs", config.spec.pairs)?
                    .number("magnitude", *magnitude)?;
                ops.add(op, &[turned, &step.position, frequencies], &[turned])?;
            }
        }
        for (cache, new) in [(keys, &k), (values, &v)] {
            let op = OpDescriptor::new("cache_append")?;
            ops.add(op, &[cache, new, &step.place], &[cache])?;
        }
        let op = OpDescriptor::new("paged_attention")?
            .number("window", window as f64)?
            .number("scale", config.scale)?
            .number("limit", config.limits[0])?;
        let operands = [
            &q,
            keys,
            values,
            &step.table,
            &step.sequence,
            &step.position,
        ];
        let operands: Vec<&DeviceTensor> = operands.into_iter().chain(&layer.sinks).collect();
        ops.add(op, &operands, &[&attended])?;
        let flat = attended.reshape(&[tokens, config.heads * config.value_length])?;
        let out = (&layer.out, layer.out_bias.as_ref());
        match &layer.post_norms {
            None => ops.product_onto(&flat, out, &normed, x),
            Some([norm, _]) => {
                ops.product(&flat, &layer.out, &normed)?;
                if let Some(bias) = &layer.out_bias {
                    ops.accumulate(&normed, bias)?;
                }
                self.add_normed(ops, &normed, norm, x)
            }
        }
    }

    /// x + what attention or the unit gave, by its norm.
    fn add_normed(
        &self,
        ops: &mut StepRecorder<'_>,
        given: &DeviceTensor,
        norm: &DeviceTensor,
        x: &DeviceTensor,
    ) -> Result<()> {
        let Some(summand) = &self.summand else {
            return ops.accumulate(x, given);
        };
        let summand = summand.first(x.shape()[0])?;
        ops.norm(given, norm, self.config.epsilon, &summand)?;
        ops.accumulate(x, &summand)
    }

    fn unit(
        &self,
        ops: &mut StepRecorder<'_>,
        layer: &LayerWeights,
        x: &DeviceTensor,
    ) -> Result<()> {
        let tokens = x.shape()[0];
        let normed = self.normed.first(tokens)?;
        let (gate_to, up_to) = (self.gate.first(tokens)?, self.up.first(tokens)?);
        let unit = self.config.spec.unit;
        let post_norm = layer.post_norms.as_ref().map(|[_, norm]| norm);
        ops.norm(x, &layer.unit_norm, self.config.epsilon, &normed)?;
        let [gate, up, down] = match (&layer.unit, &self.experts) {
            (UnitWeights::Dense(own), _) => own.as_ref(),
            (UnitWeights::Experts(experts), Some(memory)) => {
                // The experts have read the norm when their sum is written.
                ops.experts(&normed, (experts, &self.config.spec), memory, &normed)?;
                return match post_norm {
                    Some(norm) => self.add_normed(ops, &normed, norm, x),
                    None => ops.accumulate(x, &normed),
                };
            }
            // Memory is reserved where a layer may have experts.
            (UnitWeights::Experts(_), None) => return Ok(()),
        };
        match gate.format {
            MatrixFormat::Blocks(format) if unit == "swiglu" && up.format == gate.format => {
                let op = of_format("quantised_swiglu", format)?;
                ops.add(op, &[&normed, &gate.tensor, &up.tensor], &[&up_to])?;
            }
            _ => {
                ops.product(&normed, gate, &gate_to)?;
                ops.product(&normed, up, &up_to)?;
                ops.add(OpDescriptor::new(unit)?, &[&up_to, &gate_to], &[&up_to])?;
            }
        }
        match post_norm {
            None => ops.product_onto(&up_to, (down, None), &normed, x),
            Some(norm) => {
                ops.product(&up_to, down, &normed)?;
                self.add_normed(ops, &normed, norm, x)
            }
        }
    }
}

/// What the layers of a step read of its tokens.
struct StepArguments {
    position: DeviceTensor,
    sequence: DeviceTensor,
    place: DeviceTensor,
    table: DeviceTensor,
}
