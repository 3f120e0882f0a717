//! Ops of a step: from tokens to logits of some of them.

use std::collections::HashMap;

use fercuda_modelfile::{ModelFile, TensorType};
use fercuda_ops::OpDescriptor;
use fercuda_runtime::{GraphKey, Regime, Session};
use fercuda_tensor::{BlockFormat, Dtype, Layout};

use crate::config::ModelConfig;
use crate::error::{LlmError, unsupported};
use crate::recorder::{DeviceTensor, Planner, RecordedOps};
use crate::weights::{DecoderWeights, LayerWeights, MatrixFormat, WeightMatrix};

type Result<T> = std::result::Result<T, LlmError>;

/// Positions of a block of the cache.
pub(crate) const PLACES: u64 = 16;

/// What blocks of weights become: it has the range of f32, and errs less than activations that are
/// quantised to 8 bits.
const WIDE: Dtype = Dtype::Bf16;

/// Tokens of a prompt that follow one another in a step, about.
const RUN: u64 = 64;

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
    /// Tokens of a step from which blocks of weights become 16-bit floats before they are
    /// multiplied, which tensor cores do faster.
    pub(crate) wide_from: u64,
}

impl StepLimits {
    fn is_wide(&self) -> bool {
        self.tokens >= self.wide_from
    }
}

/// Numbers of tokens and of rows of logits that a step is prepared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StepKey {
    /// Tokens of requests that have one each, which come first.
    pub(crate) singles: u64,
    /// Tokens of requests that have several.
    pub(crate) runs: u64,
    /// Rows of logits.
    pub(crate) rows: u64,
}

impl StepKey {
    fn tokens(self) -> u64 {
        self.singles + self.runs
    }

    /// The key of its graph.
    pub(crate) fn graph(self) -> GraphKey {
        GraphKey {
            // Both are below 2^32, as the argument block has numbers of 32 bits.
            words: [self.singles << 32 | self.runs, self.rows],
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
    queries: DeviceTensor,
    /// Factors of products of narrower types.
    narrow: HashMap<Dtype, DeviceTensor>,
    /// One matrix as [`WIDE`].
    wide: Option<DeviceTensor>,
    /// Zeros, as many as a token's vector has.
    no_bias: DeviceTensor,
    chosen: DeviceTensor,
    chosen_normed: DeviceTensor,
    logits: DeviceTensor,
    /// The most likely token of each row.
    best: DeviceTensor,
    /// Its logit.
    best_values: DeviceTensor,
}

/// Bytes of what a decoder needs beside its weights: the cache, and the memory of its steps.
pub(crate) fn memory_bytes(
    config: &ModelConfig,
    limits: &StepLimits,
    file: &ModelFile,
    cached: Dtype,
) -> Result<(u64, u64)> {
    let vocabulary = file.tensor("token_embd.weight")?.shape;
    let vocabulary = vocabulary.first().copied().unwrap_or_default();
    // Bounded by the tensors of the file, but not each by all of them yet.
    let wide = |factors: &[u64]| factors.iter().fold(1u64, |all, it| all.saturating_mul(*it));
    let each = wide(&[config.shared_heads, config.key_length + config.value_length]);
    let positions = limits.blocks * limits.places;
    let cache = wide(&[config.layers, positions, each, cached.bytes()]);
    let widths = 2 * config.hidden
        + config.heads * (2 * config.key_length + config.value_length)
        + each
        + 2 * config.feed_forward;
    let mut step = 4
        * (limits.tokens * widths
            + limits.requests * (config.hidden + vocabulary)
            + StepInputs::len(limits));
    let mut narrow: Vec<Dtype> = file
        .tensors()
        .filter_map(|it| match it.kind {
            TensorType::Scalar(dtype) if it.shape.len() > 1 => Some(dtype),
            _ => None,
        })
        .filter(|dtype| *dtype != Dtype::F32)
        .collect();
    if limits.is_wide() {
        step += WIDE.bytes() * widest_matrix(config);
        narrow.push(WIDE);
    }
    narrow.sort_unstable_by_key(|dtype| dtype.name());
    narrow.dedup();
    let factors = limits.tokens.max(limits.requests) * widest_vector(config);
    step += narrow.iter().map(|it| it.bytes() * factors).sum::<u64>();
    Ok((cache, step))
}

/// Elements of the largest matrix of a layer.
fn widest_matrix(config: &ModelConfig) -> u64 {
    let shared = config.shared_heads * (config.key_length + config.value_length);
    let projected = config.heads * config.key_length + shared;
    let attended = config.heads * config.value_length;
    config.hidden * projected.max(attended).max(config.feed_forward)
}

/// Elements of the longest vector that a layer multiplies.
fn widest_vector(config: &ModelConfig) -> u64 {
    let attended = config.heads * config.value_length;
    config.hidden.max(config.feed_forward).max(attended)
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
) -> Result<HashMap<Dtype, DeviceTensor>> {
    let of_tokens = limits.tokens.max(limits.requests) * widest_vector(config);
    let memory = |dtype| -> Result<(Dtype, DeviceTensor)> {
        Ok((dtype, DeviceTensor::reserve(session, dtype, &[of_tokens])?))
    };
    let mut types = narrow_types(weights);
    if limits.is_wide() && !types.contains(&WIDE) {
        types.push(WIDE);
    }
    types.into_iter().map(memory).collect()
}

impl ModelDecoder {
    /// Reserves memory for steps within these limits, but what is given: of the argument block,
    /// of logits, and of the most likely tokens.
    /// The type is that of the cache.
    pub(crate) fn new(
        config: ModelConfig,
        weights: DecoderWeights,
        limits: StepLimits,
        (cached, arguments, [logits, best, best_values]): (Dtype, DeviceTensor, [DeviceTensor; 3]),
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
            queries: floats(&[tokens, heads * config.key_length])?,
            narrow: narrow_memory(&config, &weights, &limits, session)?,
            wide: match limits.is_wide() {
                true => {
                    let shape = [widest_matrix(&config)];
                    Some(DeviceTensor::reserve(session, WIDE, &shape)?)
                }
                false => None,
            },
            no_bias: zeros(session, Dtype::F32, &[config.hidden])?,
            chosen: floats(&[limits.requests, config.hidden])?,
            chosen_normed: floats(&[limits.requests, config.hidden])?,
            logits,
            best,
            best_values,
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
        let tokens = key.tokens();
        let argument = |number: u64| self.arguments.part(number * all..number * all + tokens);
        let step = StepArguments {
            key,
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
            wide: self.wide.as_ref().map(|it| (it, self.limits.wide_from)),
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
        let best = self.best.first(key.rows)?;
        ops.add(op, &[&logits], &[&best])?;
        let column = |it: &DeviceTensor| it.first(key.rows)?.reshape(&[key.rows, 1]);
        let op = OpDescriptor::new("gather")?.axes(&[1])?;
        let values = column(&self.best_values)?;
        ops.add(op, &[&logits, &column(&best)?], &[&values])?;
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
        let (mut done, mut parts) = (0, Vec::new());
        for weight in &layer.attention {
            parts.push((weight, all.columns(done..done + weight.outputs)?));
            done += weight.outputs;
        }
        ops.products(&normed, &parts)?;
        if let Some(biases) = &layer.biases {
            ops.accumulate(&all, biases)?;
        }
        let heads = [tokens, config.heads, config.key_length];
        let q = self.queries.first(tokens)?.reshape(&heads)?;
        let attended = self.attended.first(tokens)?;
        let attended = attended.reshape(&[tokens, config.heads, config.value_length])?;
        let op = OpDescriptor::new("attention_inputs")?
            .choice("pairs", config.spec.pairs)?
            .number("eps", config.epsilon)?
            .number("magnitude", self.weights.magnitude)?;
        let mut operands = vec![
            &all,
            &step.position,
            &self.weights.frequencies,
            &step.place,
            keys,
            values,
        ];
        operands.extend(layer.head_norms.iter().flatten());
        ops.add(op, &operands, &[&q, keys, values])?;
        let key = step.key;
        for (part, run) in [(0..key.singles, 1), (key.singles..tokens, RUN)] {
            if part.is_empty() {
                continue;
            }
            let op = OpDescriptor::new("paged_attention")?
                .number("window", config.window as f64)?
                .choice("products", "cached")?
                .number("run", run as f64)?;
            let of_part = |it: &DeviceTensor| it.part(part.clone());
            let operands = [
                &of_part(&q)?,
                keys,
                values,
                &step.table,
                &of_part(&step.sequence)?,
                &of_part(&step.position)?,
            ];
            ops.add(op, &operands, &[&of_part(&attended)?])?;
        }
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
                if unit == "swiglu"
                    && layer.up.format == layer.gate.format
                    && !ops.widens(&normed, &layer.gate) =>
            {
                let op = of_format("quantised_swiglu", format)?;
                ops.add(op, &[&normed, &layer.gate.tensor, &layer.up.tensor], &[&up])?;
            }
            _ => {
                let parts = [(&layer.gate, gate.clone()), (&layer.up, up.clone())];
                ops.products(&normed, &parts)?;
                ops.add(OpDescriptor::new(unit)?, &[&up, &gate], &[&up])?;
            }
        }
        ops.product_onto(&up, &layer.down, &normed, x)
    }
}

/// What the layers of a step read of its tokens.
struct StepArguments {
    key: StepKey,
    position: DeviceTensor,
    sequence: DeviceTensor,
    place: DeviceTensor,
    table: DeviceTensor,
}

/// The ops of a step while they are planned.
struct StepRecorder<'a> {
    planner: &'a mut Planner,
    ops: RecordedOps,
    narrow: &'a HashMap<Dtype, DeviceTensor>,
    /// Memory of a matrix, where blocks become wider, and the rows for which they do.
    wide: Option<(&'a DeviceTensor, u64)>,
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
        self.products(x, &[(weight, to.clone())])
    }

    /// x w^T of several matrices.
    fn products(&mut self, x: &DeviceTensor, all: &[(&WeightMatrix, DeviceTensor)]) -> Result<()> {
        let mut narrowed: Option<(Dtype, DeviceTensor)> = None;
        for (weight, to) in all {
            let linear = OpDescriptor::new("linear")?;
            match weight.format {
                MatrixFormat::Blocks(format) if self.widens(x, weight) => {
                    let from = match narrowed.take() {
                        Some((WIDE, from)) => from,
                        _ => self.narrowed(x, WIDE)?,
                    };
                    let wide = self.widened(weight, format, from.shape()[1])?;
                    let op = linear.choice("result", "f32")?;
                    self.add(op, &[&from, &wide], &[to])?;
                    narrowed = Some((WIDE, from));
                }
                MatrixFormat::Blocks(format) => {
                    let op = of_format("quantised_linear", format)?;
                    self.add(op, &[x, &weight.tensor], &[to])?;
                }
                MatrixFormat::Plain(Dtype::F32) => self.add(linear, &[x, &weight.tensor], &[to])?,
                MatrixFormat::Plain(dtype) => {
                    let from = match narrowed.take() {
                        Some((known, from)) if known == dtype => from,
                        _ => self.narrowed(x, dtype)?,
                    };
                    let op = linear.choice("result", "f32")?;
                    self.add(op, &[&from, &weight.tensor], &[to])?;
                    narrowed = Some((dtype, from));
                }
            }
        }
        Ok(())
    }

    /// Whether blocks of a matrix become wider first.
    fn widens(&self, x: &DeviceTensor, weight: &WeightMatrix) -> bool {
        let (Some((wide, from)), &[rows, inputs]) = (self.wide, x.shape()) else {
            return false;
        };
        let is_block = matches!(weight.format, MatrixFormat::Blocks(_));
        is_block && rows >= from && inputs * weight.outputs <= wide.shape()[0]
    }

    /// A matrix of blocks as [`WIDE`]. It lasts until the next one.
    fn widened(
        &mut self,
        weight: &WeightMatrix,
        format: BlockFormat,
        inputs: u64,
    ) -> Result<DeviceTensor> {
        let Some((memory, _)) = self.wide else {
            return Err(unsupported(
                "no memory was reserved for wider weights".to_owned(),
                "a report of this: it is a defect",
            ));
        };
        let to = memory.first(weight.outputs * inputs)?;
        let to = to.reshape(&[weight.outputs, inputs])?;
        let op = of_format("dequantise_blocks", format)?.to(WIDE)?;
        self.add(op, &[&weight.tensor], &[&to])?;
        Ok(to)
    }

    /// Memory of a narrower type.
    fn reserved(&self, dtype: Dtype, shape: &[u64]) -> Result<DeviceTensor> {
        match self.narrow.get(&dtype) {
            Some(memory) => memory.first(shape.iter().product())?.reshape(shape),
            None => Err(unsupported(
                format!("no memory was reserved for products of {dtype}"),
                "a report of this: it is a defect",
            )),
        }
    }

    /// A copy of x as a narrower type. It lasts until the next one.
    fn narrowed(&mut self, x: &DeviceTensor, dtype: Dtype) -> Result<DeviceTensor> {
        let to = self.reserved(dtype, x.shape())?;
        self.add(OpDescriptor::new("cast")?.to(dtype)?, &[x], &[&to])?;
        Ok(to)
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
            MatrixFormat::Blocks(format) if !self.widens(x, weight) => {
                let op = of_format("quantised_linear", format)?;
                self.add(op, &[x, &weight.tensor, self.no_bias, y], &[y])
            }
            _ => {
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
                let rows = self.reserved(dtype, to.shape())?;
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
