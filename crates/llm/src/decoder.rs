//! Ops of a step: from tokens to logits of some of them.

use std::collections::HashMap;

use fercuda_ops::OpDescriptor;
use fercuda_runtime::{GraphKey, Regime, Session};
use fercuda_tensor::{BlockFormat, Dtype, Layout};

use crate::config::ModelConfig;
use crate::error::{LlmError, unsupported};
use crate::recorder::{DeviceTensor, Planner, RecordedOps};
use crate::tensors::MatrixFormat;
use crate::weights::{DecoderWeights, LayerWeights, WeightMatrix};

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
    // Numbers of a file that lies may be of any size.
    let whole = |number: u64| u128::from(number);
    let bounded = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
    let lengths = whole(config.key_length) + whole(config.value_length);
    let each = whole(config.shared_heads) * lengths;
    let positions = whole(limits.blocks) * whole(limits.places);
    let cache = bounded(whole(config.layers) * positions * each * whole(cached.bytes()));
    let widths = 2 * whole(config.hidden)
        + whole(config.heads) * lengths
        + each
        + 2 * whole(config.feed_forward);
    let step = 4
        * (whole(limits.tokens) * widths
            + whole(limits.requests) * (whole(config.hidden) + whole(vocabulary))
            + whole(StepInputs::len(limits)));
    let step = bounded(step);
    (cache, step)
}

fn zeros(session: &Session, dtype: Dtype, shape: &[u64]) -> Result<DeviceTensor> {
    let id = session.alloc(Layout::contiguous(dtype, shape)?, Regime::Pool)?;
    session.fill_bytes(id, 0)?;
    Ok(DeviceTensor::of(session.bind(id)?))
}

/// The narrower types of matrices.
fn narrow_types(weights: &DecoderWeights) -> Vec<Dtype> {
    let of_layers = weights.layers.iter().flat_map(|layer| {
        let LayerWeights { attention, .. } = layer;
        attention
            .iter()
            .chain([&layer.out, &layer.gate, &layer.up, &layer.down])
    });
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
    let widest = config.hidden.max(config.feed_forward).max(heads);
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
            gate: floats(&[tokens, config.feed_forward])?,
            up: floats(&[tokens, config.feed_forward])?,
            normed_heads: match config.spec.has_head_norms {
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
        for (layer, cache) in weights.layers.iter().zip(&self.cache) {
            self.attention(&mut ops, layer, cache, &step, &x)?;
            self.unit(&mut ops, layer, &x)?;
        }
        let chosen = self.chosen.first(key.rows)?;
        let op = OpDescriptor::new("index_select")?.axes(&[0])?;
        ops.add(op, &[&x, &rows], &[&chosen])?;
        let normed = self.chosen_normed.first(key.rows)?;
        ops.norm(&chosen, &weights.norm, config.epsilon, &normed)?;
        let logits = self.logits.first(key.rows)?;
        ops.product(&normed, &weights.head, &logits)?;
        let op = OpDescriptor::new("argmax")?.axes(&[1])?;
        ops.add(op, &[&logits], &[&self.best.first(key.rows)?])?;
        Ok(ops.ops)
    }

    fn attention(
        &self,
        ops: &mut StepRecorder<'_>,
        layer: &LayerWeights,
        [keys, values]: &[DeviceTensor; 2],
        step: &StepArguments,
        x: &DeviceTensor,
    ) -> Result<()> {
        let config = &self.config;
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
        for turned in [&q, &k] {
            let op = OpDescriptor::new("rope")?
                .choice("pairs", config.spec.pairs)?
                .number("magnitude", self.weights.magnitude)?;
            let operands = [turned, &step.position, &self.weights.frequencies];
            ops.add(op, &operands, &[turned])?;
        }
        for (cache, new) in [(keys, &k), (values, &v)] {
            let op = OpDescriptor::new("cache_append")?;
            ops.add(op, &[cache, new, &step.place], &[cache])?;
        }
        let op = OpDescriptor::new("paged_attention")?.number("window", config.window as f64)?;
        let operands = [
            &q,
            keys,
            values,
            &step.table,
            &step.sequence,
            &step.position,
        ];
        ops.add(op, &operands, &[&attended])?;
        let flat = attended.reshape(&[tokens, config.heads * config.value_length])?;
        ops.product_onto(&flat, &layer.out, &normed, x)
    }

    fn unit(
        &self,
        ops: &mut StepRecorder<'_>,
        layer: &LayerWeights,
        x: &DeviceTensor,
    ) -> Result<()> {
        let tokens = x.shape()[0];
        let normed = self.normed.first(tokens)?;
        let (gate, up) = (self.gate.first(tokens)?, self.up.first(tokens)?);
        let unit = self.config.spec.unit;
        ops.norm(x, &layer.unit_norm, self.config.epsilon, &normed)?;
        match layer.gate.format {
            MatrixFormat::Blocks(format)
                if unit == "swiglu" && layer.up.format == layer.gate.format =>
            {
                let op = of_format("quantised_swiglu", format)?;
                ops.add(op, &[&normed, &layer.gate.tensor, &layer.up.tensor], &[&up])?;
            }
            _ => {
                ops.product(&normed, &layer.gate, &gate)?;
                ops.product(&normed, &layer.up, &up)?;
                ops.add(OpDescriptor::new(unit)?, &[&up, &gate], &[&up])?;
            }
        }
        ops.product_onto(&up, &layer.down, &normed, x)
    }
}

/// What the layers of a step read of its tokens.
struct StepArguments {
    position: DeviceTensor,
    sequence: DeviceTensor,
    place: DeviceTensor,
    table: DeviceTensor,
}

/// The ops of a step while they are planned.
struct StepRecorder<'a> {
    planner: &'a mut Planner,
    ops: RecordedOps,
    narrow: &'a HashMap<Dtype, [DeviceTensor; 2]>,
    no_bias: &'a DeviceTensor,
}

impl StepRecorder<'_> {
    fn add(
        &mut self,
        op: OpDescriptor,
        operands: &[&DeviceTensor],
        outputs: &[&DeviceTensor],
    ) -> Result<()> {
        self.ops.add(self.planner, op, operands, outputs)
    }

    /// x / root of the mean of its squares, by the weights, along the last dimension.
    fn norm(
        &mut self,
        x: &DeviceTensor,
        weight: &DeviceTensor,
        epsilon: f64,
        to: &DeviceTensor,
    ) -> Result<()> {
        let last = x.shape().len() - 1;
        let op = OpDescriptor::new("rms_norm")?
            .axes(&[last])?
            .number("eps", epsilon)?;
        self.add(op, &[x, weight], &[to])
    }

    /// x w^T.
    fn product(
        &mut self,
        x: &DeviceTensor,
        weight: &WeightMatrix,
        to: &DeviceTensor,
    ) -> Result<()> {
        let linear = OpDescriptor::new("linear")?;
        match weight.format {
            MatrixFormat::Blocks(format) => {
                let op = of_format("quantised_linear", format)?;
                self.add(op, &[x, &weight.tensor], &[to])
            }
            MatrixFormat::Plain(Dtype::F32) => self.add(linear, &[x, &weight.tensor], &[to]),
            MatrixFormat::Plain(dtype) => {
                let Some([from, product]) = self.narrow.get(&dtype) else {
                    return Err(unsupported(
                        format!("no memory was reserved for products of {dtype}"),
                        "a report of this: it is a defect",
                    ));
                };
                let from = of_shape(from, x.shape())?;
                let product = of_shape(product, to.shape())?;
                let cast = |to| OpDescriptor::new("cast").and_then(|op| op.to(to));
                self.add(cast(dtype)?, &[x], &[&from])?;
                self.add(linear, &[&from, &weight.tensor], &[&product])?;
                self.add(cast(Dtype::F32)?, &[&product], &[to])
            }
        }
    }

    /// x w^T + y, in y; elsewhere in between, where no op does both.
    fn product_onto(
        &mut self,
        x: &DeviceTensor,
        weight: &WeightMatrix,
        between: &DeviceTensor,
        y: &DeviceTensor,
    ) -> Result<()> {
        match weight.format {
            MatrixFormat::Blocks(format) => {
                let op = of_format("quantised_linear", format)?;
                self.add(op, &[x, &weight.tensor, self.no_bias, y], &[y])
            }
            MatrixFormat::Plain(_) => {
                self.product(x, weight, between)?;
                self.accumulate(y, between)
            }
        }
    }

    /// x + y, in x.
    fn accumulate(&mut self, x: &DeviceTensor, y: &DeviceTensor) -> Result<()> {
        self.add(OpDescriptor::new("add")?, &[x, y], &[x])
    }

    /// Rows of a matrix, as f32.
    fn choose_rows(
        &mut self,
        weight: &WeightMatrix,
        index: &DeviceTensor,
        to: &DeviceTensor,
    ) -> Result<()> {
        match weight.format {
            MatrixFormat::Blocks(format) => {
                let op = of_format("quantised_embedding", format)?;
                self.add(op, &[&weight.tensor, index], &[to])
            }
            MatrixFormat::Plain(Dtype::F32) => self.add(
                OpDescriptor::new("embedding")?,
                &[&weight.tensor, index],
                &[to],
            ),
            MatrixFormat::Plain(dtype) => {
                let Some([rows, _]) = self.narrow.get(&dtype) else {
                    return Err(unsupported(
                        format!("no memory was reserved for rows of {dtype}"),
                        "a report of this: it is a defect",
                    ));
                };
                let rows = of_shape(rows, to.shape())?;
                self.add(
                    OpDescriptor::new("embedding")?,
                    &[&weight.tensor, index],
                    &[&rows],
                )?;
                let cast = OpDescriptor::new("cast")?.to(Dtype::F32)?;
                self.add(cast, &[&rows], &[to])
            }
        }
    }
}

/// An op on blocks of a format.
fn of_format(op: &str, format: BlockFormat) -> Result<OpDescriptor> {
    let name = format.name().to_ascii_lowercase();
    Ok(OpDescriptor::new(op)?.choice("format", &name)?)
}

/// The first elements of reserved memory, in a shape.
fn of_shape(memory: &DeviceTensor, shape: &[u64]) -> Result<DeviceTensor> {
    memory.first(shape.iter().product())?.reshape(shape)
}
