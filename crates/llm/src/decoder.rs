//! Ops of a step: from tokens to logits of some of them.

use std::collections::HashMap;

use fercuda_ops::{OpDescriptor, has_token_attention};
use fercuda_runtime::{GraphKey, Regime, Session};
use fercuda_tensor::{Dtype, Layout};

use crate::config::ModelConfig;
use crate::error::LlmError;
use crate::recorder::{DeviceTensor, Planner, RecordedOps};
use crate::step_ops::{ExpertMemory, StepRecorder, WIDE, of_format};
use crate::tensors::{MatrixFormat, ModelTensors};
use crate::weights::{DecoderWeights, LayerWeights, UnitWeights, WeightMatrix};

type Result<T> = std::result::Result<T, LlmError>;

/// Tokens of a prompt that follow one another in a step, about.
const RUN: u64 = 64;

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
    /// Tokens of a step from which blocks of weights become 16-bit floats before they are
    /// multiplied, which tensor cores do faster.
    pub(crate) wide_from: u64,
    /// Whether products of few tokens are one launch with their norm, gate and residual.
    pub(crate) is_fused: bool,
}

impl StepLimits {
    fn is_wide(&self) -> bool {
        self.tokens >= self.wide_from
    }

    /// Where rows of logits and the table begin among the numbers of a step, and their count. Each
    /// part begins at a multiple of 16 bytes, which kernels are faster for.
    fn parts(&self) -> [u64; 3] {
        let each = |count: u64| count.next_multiple_of(4);
        let rows = 4 * each(self.tokens);
        let table = rows + each(self.requests);
        [rows, table, table + self.requests * self.blocks_each]
    }

    /// Where a number of each token begins.
    fn part_of_tokens(&self, number: u64) -> u64 {
        number * self.tokens.next_multiple_of(4)
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
        limits.parts()[2]
    }

    /// Makes every token padding: it has no position, and a place behind the cache.
    pub(crate) fn clear(&mut self) {
        let limits = self.limits;
        let behind = i32::try_from(limits.blocks * limits.places).unwrap_or(i32::MAX);
        self.values.fill(0);
        let mut set = |number: u64, value: i32| {
            let first = limits.part_of_tokens(number) as usize;
            self.values[first..first + limits.tokens as usize].fill(value);
        };
        set(1, -1);
        set(3, behind);
    }

    fn place(&self, number: u64, at: usize) -> usize {
        self.limits.part_of_tokens(number) as usize + at
    }

    /// Sets a token of the step.
    pub(crate) fn set_token(&mut self, at: usize, token: u32, position: usize, sequence: usize) {
        let values = [token.cast_signed(), position as i32, sequence as i32];
        for (number, value) in (0..).zip(values) {
            let place = self.place(number, at);
            self.values[place] = value;
        }
    }

    /// Sets where a token's keys and values are stored, by its position and the blocks of its
    /// sequence.
    pub(crate) fn set_place(&mut self, at: usize, position: usize, blocks: &[u32]) {
        let places = self.limits.places as usize;
        let stored = blocks[position / places] * places as u32 + (position % places) as u32;
        let own = self.place(3, at);
        self.values[own] = stored.cast_signed();
    }

    /// Sets the token of a row of logits.
    pub(crate) fn set_row(&mut self, row: usize, token: i32) {
        let [rows, ..] = self.limits.parts();
        self.values[rows as usize + row] = token;
    }

    /// Sets the blocks of a sequence.
    pub(crate) fn set_blocks(&mut self, sequence: usize, blocks: &[u32]) {
        let each = self.limits.blocks_each as usize;
        let [_, table, _] = self.limits.parts();
        let first = table as usize + sequence * each;
        for (to, own) in self.values[first..first + each].iter_mut().zip(blocks) {
            *to = own.cast_signed();
        }
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
    /// What attention or the unit gives, by its norm, where there is one.
    summand: Option<DeviceTensor>,
    experts: Option<ExpertMemory>,
    /// Factors of products of narrower types.
    narrow: HashMap<Dtype, DeviceTensor>,
    /// One matrix as [`WIDE`].
    wide: Option<DeviceTensor>,
    /// Zeros, as many as a token's vector has.
    no_bias: DeviceTensor,
    /// Zeros by which blocks of attention find out which of them is the last one.
    arrived: DeviceTensor,
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
    tensors: &ModelTensors<'_>,
    limits: &StepLimits,
    cached: Dtype,
) -> Result<(u64, u64)> {
    let config = tensors.config();
    // Numbers of a file that lies may be of any size.
    let whole = |number: u64| u128::from(number);
    let bounded = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
    let vocabulary = tensors.first_extent("token_embd.weight")?;
    let each = whole(config.shared_heads) * whole(config.key_length + config.value_length);
    let positions = whole(limits.blocks) * whole(limits.places);
    let cache = whole(config.layers) * positions * each * whole(cached.bytes());
    let widths = 2 * whole(config.hidden)
        + whole(config.heads) * whole(2 * config.key_length + config.value_length)
        + each
        + 2 * whole(config.feed_forward)
        + whole(ExpertMemory::floats_each(config));
    let mut step = 4
        * (whole(limits.tokens) * widths
            + whole(limits.requests)
                * (whole(config.hidden) + whole(vocabulary) + whole(config.heads))
            + whole(StepInputs::len(limits)));
    let mut narrow = tensors.narrow_types();
    if limits.is_wide() {
        step += whole(WIDE.bytes()) * whole(widest_matrix(config));
        if !narrow.contains(&WIDE) {
            narrow.push(WIDE);
        }
    }
    let factors = whole(limits.tokens.max(limits.requests)) * whole(widest_vector(config));
    step += narrow
        .iter()
        .map(|it| whole(it.bytes()) * factors)
        .sum::<u128>();
    Ok((bounded(cache), bounded(step)))
}

/// Elements of the largest matrix of a layer that all tokens have.
fn widest_matrix(config: &ModelConfig) -> u64 {
    let shared = config.shared_heads * (config.key_length + config.value_length);
    let projected = config.heads * config.key_length + shared;
    let attended = config.heads * config.value_length;
    config.hidden * projected.max(attended).max(config.feed_forward)
}

/// Elements of the longest vector that a layer multiplies.
fn widest_vector(config: &ModelConfig) -> u64 {
    let attended = config.heads * config.value_length;
    let experts = config.experts.map_or(0, |it| it.count.max(it.feed_forward));
    let widest = config.hidden.max(config.feed_forward);
    widest.max(attended).max(experts)
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
            arrived: zeros(session, Dtype::U32, &[limits.requests * heads])?,
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
        let tokens = key.tokens();
        let argument = |number: u64| {
            let first = self.limits.part_of_tokens(number);
            self.arguments.part(first..first + tokens)
        };
        let [rows, table, end] = self.limits.parts();
        let step = StepArguments {
            key,
            position: argument(1)?,
            sequence: argument(2)?,
            place: argument(3)?,
            table: self
                .arguments
                .part(table..end)?
                .reshape(&[self.limits.requests, self.limits.blocks_each])?,
        };
        let rows = self.arguments.part(rows..rows + key.rows)?;
        let mut ops = StepRecorder {
            planner,
            ops: RecordedOps::default(),
            narrow: &self.narrow,
            wide: self.wide.as_ref().map(|it| (it, self.limits.wide_from)),
            no_bias: &self.no_bias,
            is_fused: self.limits.is_fused,
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
        let logits = self.logits.first(key.rows)?;
        let norm = (&weights.norm, config.epsilon);
        let head = std::slice::from_ref(&weights.head);
        ops.normed_products((&chosen, norm), head, &normed, &logits)?;
        if config.limits[1] > 0.0 {
            let op = OpDescriptor::new("soft_limit")?.number("limit", config.limits[1])?;
            ops.add(op, &[&logits], &[&logits])?;
        }
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
        (number, layer): (usize, &LayerWeights),
        step: &StepArguments,
        x: &DeviceTensor,
    ) -> Result<()> {
        let (config, tokens) = (&self.config, x.shape()[0]);
        let normed = self.normed.first(tokens)?;
        let all = self.projected.first(tokens)?;
        let norm = (&layer.attention_norm, config.epsilon);
        ops.normed_products((x, norm), &layer.attention, &normed, &all)?;
        if let Some(biases) = &layer.biases {
            ops.accumulate(&all, biases)?;
        }
        let attended = self.attended.first(tokens)?;
        let attended = attended.reshape(&[tokens, config.heads, config.value_length])?;
        self.attend(ops, (number, layer), step, (&all, &attended))?;
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

    /// Attention of what was projected, which is stored in the cache.
    fn attend(
        &self,
        ops: &mut StepRecorder<'_>,
        (number, layer): (usize, &LayerWeights),
        step: &StepArguments,
        (all, attended): (&DeviceTensor, &DeviceTensor),
    ) -> Result<()> {
        let (config, [keys, values]) = (&self.config, &self.cache[number]);
        let (window, tokens) = (config.windows[number], all.shape()[0]);
        let heads = [tokens, config.heads, config.key_length];
        let q = self.queries.first(tokens)?.reshape(&heads)?;
        let rotary = config.rotary_of(number as u64);
        let (frequencies, magnitude) = match rotary.map(|at| &self.weights.rotaries[at]) {
            Some((frequencies, magnitude)) => (frequencies.clone(), *magnitude),
            // Nothing is turned.
            None => (self.no_bias.first(0)?, 1.0),
        };
        let of_heads = |op: OpDescriptor| -> Result<OpDescriptor> {
            let op = op.choice("pairs", config.spec.pairs)?;
            let op = op.number("eps", config.epsilon)?;
            Ok(op.number("magnitude", magnitude)?)
        };
        let norms: Vec<&DeviceTensor> = layer.head_norms.iter().flatten().collect();
        let key = step.key;
        // Tokens of requests that have one each, in one launch.
        let joined = match self.joins_attention(layer) {
            true => key.singles,
            false => 0,
        };
        if joined > 0 {
            let op = of_heads(OpDescriptor::new("token_attention")?)?
                .number("window", window as f64)?
                .number("scale", config.scale)?
                .number("limit", config.limits[0])?;
            let parts = [all, &step.position, &step.place, &step.sequence];
            let [all, position, place, sequence] = parts.map(|it| it.part(0..joined));
            let (all, position, place, sequence) = (all?, position?, place?, sequence?);
            let arrived = &self.arrived;
            let mut operands = vec![&all, &position, &frequencies, &place, keys, values];
            operands.extend([&step.table, &sequence, arrived]);
            operands.extend(norms.clone());
            let to = attended.part(0..joined)?;
            ops.add(op, &operands, &[&to, keys, values, arrived])?;
        }
        if joined < tokens {
            let parts = [all, &step.position, &step.place, &q];
            let [all, position, place, q] = parts.map(|it| it.part(joined..tokens));
            let (all, position, place, q) = (all?, position?, place?, q?);
            let mut operands = vec![&all, &position, &frequencies, &place, keys, values];
            operands.extend(norms);
            let op = of_heads(OpDescriptor::new("attention_inputs")?)?;
            ops.add(op, &operands, &[&q, keys, values])?;
        }
        for (part, run) in [(joined..key.singles, 1), (key.singles..tokens, RUN)] {
            if part.is_empty() {
                continue;
            }
            let op = OpDescriptor::new("paged_attention")?
                .number("window", window as f64)?
                .number("scale", config.scale)?
                .number("limit", config.limits[0])?
                .choice("products", "cached")?
                .number("run", run as f64)?;
            let of_part = |it: &DeviceTensor| it.part(part.clone());
            let (q, sequence) = (of_part(&q)?, of_part(&step.sequence)?);
            let position = of_part(&step.position)?;
            let operands = [&q, keys, values, &step.table, &sequence, &position];
            let operands: Vec<&DeviceTensor> = operands.into_iter().chain(&layer.sinks).collect();
            ops.add(op, &operands, &[&of_part(&attended)?])?;
        }
        Ok(())
    }

    /// Whether one launch has all of attention for tokens of requests that have one each.
    fn joins_attention(&self, layer: &LayerWeights) -> bool {
        let (config, [keys, _]) = (&self.config, &self.cache[0]);
        self.limits.is_fused
            && layer.sinks.is_none()
            && config.key_length == config.value_length
            && has_token_attention(keys.layout().dtype(), config.key_length)
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
        let norm = (&layer.unit_norm, self.config.epsilon);
        if let UnitWeights::Dense(own) = &layer.unit
            && let [gate, up, down] = own.as_ref()
            && unit == "swiglu"
            && gate.format == up.format
            && ops.fuses(x, gate)
        {
            ops.normed_swiglu((x, norm), [gate, up], &up_to)?;
            return self.close_unit(ops, (&up_to, down), post_norm, x);
        }
        ops.norm(x, norm.0, norm.1, &normed)?;
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
            MatrixFormat::Blocks(format)
                if unit == "swiglu" && up.format == gate.format && !ops.widens(&normed, gate) =>
            {
                let op = of_format("quantised_swiglu", format)?;
                ops.add(op, &[&normed, &gate.tensor, &up.tensor], &[&up_to])?;
            }
            _ => {
                ops.products(&normed, &[(gate, gate_to.clone()), (up, up_to.clone())])?;
                ops.add(OpDescriptor::new(unit)?, &[&up_to, &gate_to], &[&up_to])?;
            }
        }
        self.close_unit(ops, (&up_to, down), post_norm, x)
    }

    /// x + the gated unit's product, by its norm where there is one.
    fn close_unit(
        &self,
        ops: &mut StepRecorder<'_>,
        (gated, down): (&DeviceTensor, &WeightMatrix),
        post_norm: Option<&DeviceTensor>,
        x: &DeviceTensor,
    ) -> Result<()> {
        let normed = self.normed.first(x.shape()[0])?;
        match post_norm {
            None => ops.product_onto(gated, (down, None), &normed, x),
            Some(norm) => {
                ops.product(gated, down, &normed)?;
                self.add_normed(ops, &normed, norm, x)
            }
        }
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
