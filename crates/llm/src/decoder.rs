//! Ops of a step: from tokens to logits of some of them.

use std::collections::HashMap;

use fercuda_ops::{OpDescriptor, has_token_attention};
use fercuda_runtime::{Regime, Session};
use fercuda_tensor::{Dtype, Layout};

use crate::adapter_targets::AdaptedPlace;
use crate::adapters::{AdapterPool, StepAdapters};
use crate::config::{ExpertConfig, ModelConfig};
use crate::error::LlmError;
use crate::recorder::{DeviceTensor, Planner, RecordedOps};
use crate::recurrent::RecurrentMemory;
use crate::step_inputs::{
    ADAPTER, InputParts, RUN_NUMBERS, SETTINGS, StepInputs, StepKey, StepLimits, TokenSource,
};
use crate::step_ops::{ExpertMemory, NormedInput, StepRecorder, WIDE, of_format};
use crate::tensors::{MatrixFormat, ModelTensors};
use crate::weights::{
    AttentionWeights, DecoderWeights, LayerWeights, MixerWeights, UnitWeights, WeightMatrix,
};

type Result<T> = std::result::Result<T, LlmError>;

/// Tokens of a prompt that follow one another in a step, about.
const RUN: u64 = 64;

/// A decoder with the memory of its steps.
#[derive(Debug)]
pub(crate) struct ModelDecoder {
    config: ModelConfig,
    weights: DecoderWeights,
    limits: StepLimits,
    /// Keys and values of each layer that has attention.
    cache: Vec<Option<[DeviceTensor; 2]>>,
    recurrent: Option<RecurrentMemory>,
    arguments: DeviceTensor,
    x: DeviceTensor,
    normed: DeviceTensor,
    /// Queries, keys, values and gates of a token, one after another.
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
    /// The chosen token of each row.
    best: DeviceTensor,
    /// Its logit, or the largest one of a row whose token is sampled.
    best_values: DeviceTensor,
    /// Chosen tokens of some rows of the step before.
    chosen_before: DeviceTensor,
    /// Adapters, where there may be some.
    pub(crate) adapters: Option<AdapterPool>,
}

/// Bytes of the cache for each position.
pub(crate) fn position_bytes(config: &ModelConfig, cached: Dtype) -> u64 {
    let whole = |number: u64| u128::from(number);
    let each = whole(config.shared_heads) * whole(config.key_length + config.value_length);
    let of_layers = whole(config.attention_layers() * cached.bytes());
    u64::try_from(each.saturating_mul(of_layers)).unwrap_or(u64::MAX)
}

/// Bytes of what a decoder needs beside its weights: the cache, the states of layers without
/// attention, and the memory of its steps.
pub(crate) fn memory_bytes(
    tensors: &ModelTensors<'_>,
    limits: &StepLimits,
    cached: Dtype,
) -> Result<[u64; 3]> {
    let config = tensors.config();
    // Numbers of a file that lies may be of any size.
    let whole = |number: u64| u128::from(number);
    let bounded = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
    let vocabulary = tensors.first_extent("token_embd.weight")?;
    let each = whole(config.shared_heads) * whole(config.key_length + config.value_length);
    let positions = whole(limits.blocks) * whole(limits.places);
    let cache = positions * whole(position_bytes(config, cached));
    let recurrence = config.recurrence.as_ref();
    let states = recurrence.map_or(0, |it| whole(limits.slots) * whole(it.slot_bytes()));
    let gates = match config.spec.has_attention_gate {
        true => whole(config.heads) * whole(config.value_length),
        false => 0,
    };
    let widths = 2 * whole(config.hidden)
        + gates
        + recurrence.map_or(0, |it| whole(RecurrentMemory::floats_each(it)))
        + whole(config.heads) * whole(2 * config.key_length + config.value_length)
        + each
        + 2 * whole(config.feed_forward)
        + whole(ExpertMemory::floats_each(config));
    let mut step = 4
        * (whole(limits.tokens) * widths
            + whole(limits.rows)
                * (whole(config.hidden) + whole(vocabulary) + whole(config.heads))
            + whole(StepInputs::len(limits)));
    let mut narrow = tensors.narrow_types();
    if limits.is_wide() {
        step += whole(WIDE.bytes()) * whole(widest_matrix(config));
        if !narrow.contains(&WIDE) {
            narrow.push(WIDE);
        }
    }
    let factors = whole(limits.tokens.max(limits.rows)) * whole(widest_vector(config));
    step += narrow
        .iter()
        .map(|it| whole(it.bytes()) * factors)
        .sum::<u128>();
    Ok([cache, states, step].map(bounded))
}

/// Elements of the largest matrix of a layer that all tokens have.
fn widest_matrix(config: &ModelConfig) -> u64 {
    let shared = config.shared_heads * (config.key_length + config.value_length);
    let projected = config.heads * config.key_length + shared;
    let attended = config.heads * config.value_length;
    let gates = match config.spec.has_attention_gate {
        true => attended,
        false => 0,
    };
    let recurrent = config.recurrence.as_ref().map_or(0, |it| it.projected());
    let widest = (projected + gates).max(attended).max(recurrent);
    config.hidden * widest.max(config.feed_forward)
}

/// Elements of the longest vector that a layer multiplies.
fn widest_vector(config: &ModelConfig) -> u64 {
    let attended = config.heads * config.value_length;
    let of_experts = |it: ExpertConfig| it.count.max(it.feed_forward).max(it.shared);
    let experts = config.experts.map_or(0, of_experts);
    let recurrent = config.recurrence.as_ref().map_or(0, |it| it.values());
    let widest = config.hidden.max(config.feed_forward).max(recurrent);
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
    let of_tokens = limits.tokens.max(limits.rows) * widest_vector(config);
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
        for layer in 0..config.layers {
            if config.is_recurrent(layer) {
                cache.push(None);
                continue;
            }
            let part = |length: u64| {
                let shape = [limits.blocks, limits.places, shared, length];
                DeviceTensor::reserve(session, cached, &shape)
            };
            let both = [part(config.key_length)?, part(config.value_length)?];
            cache.push(Some(both));
        }
        let gates = match config.spec.has_attention_gate {
            true => heads * config.value_length,
            false => 0,
        };
        let of_heads =
            heads * config.key_length + shared * (config.key_length + config.value_length) + gates;
        Ok(Self {
            cache,
            arguments,
            x: floats(&[tokens, config.hidden])?,
            normed: floats(&[tokens, config.hidden])?,
            projected: floats(&[tokens, of_heads.max(1)])?,
            recurrent: match &config.recurrence {
                Some(own) => {
                    let of = (tokens, limits.slots);
                    Some(RecurrentMemory::reserve(session, own, of)?)
                }
                None => None,
            },
            attended: floats(&[tokens, (heads * config.value_length).max(1)])?,
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
            queries: floats(&[tokens, (heads * config.key_length).max(1)])?,
            narrow: narrow_memory(&config, &weights, &limits, session)?,
            wide: match limits.is_wide() {
                true => {
                    let shape = [widest_matrix(&config)];
                    Some(DeviceTensor::reserve(session, WIDE, &shape)?)
                }
                false => None,
            },
            no_bias: zeros(session, Dtype::F32, &[config.hidden])?,
            arrived: zeros(session, Dtype::U32, &[(limits.requests * heads).max(1)])?,
            chosen: floats(&[limits.rows, config.hidden])?,
            chosen_normed: floats(&[limits.rows, config.hidden])?,
            logits,
            best,
            chosen_before: DeviceTensor::reserve(session, Dtype::I64, &[limits.requests])?,
            best_values,
            adapters: None,
            config,
            weights,
            limits,
        })
    }

    /// Number of tokens that there are.
    pub(crate) fn vocabulary(&self) -> u64 {
        self.weights.vocabulary
    }

    /// Bytes of a block of the cache, in all layers.
    pub(crate) fn block_bytes(&self) -> u64 {
        let parts = self.cache.iter().flatten().flatten();
        let all: u64 = parts.map(|it| it.layout().bytes()).sum();
        all / self.limits.blocks.max(1)
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
        let InputParts {
            rows,
            settings,
            runs,
            table,
            ..
        } = self.limits.parts();
        let step = StepArguments {
            key,
            position: argument(1)?,
            sequence: argument(2)?,
            place: argument(3)?,
            table: self
                .arguments
                .part(table..table + self.limits.requests * self.limits.blocks_each)?
                .reshape(&[self.limits.requests, self.limits.blocks_each])?,
            runs: match self.recurrent {
                Some(_) => {
                    let count = self.limits.runs_of(key);
                    let all = self.arguments.part(runs..runs + count * RUN_NUMBERS)?;
                    Some(all.reshape(&[count, RUN_NUMBERS])?)
                }
                None => None,
            },
        };
        let rows = self.arguments.part(rows..rows + key.rows)?;
        let mut ops = StepRecorder {
            planner,
            ops: RecordedOps::default(),
            narrow: &self.narrow,
            wide: self.wide.as_ref().map(|it| (it, self.limits.wide_from)),
            no_bias: &self.no_bias,
            is_fused: self.limits.is_fused,
            adapters: match &self.adapters {
                Some(pool) if key.has_adapters => Some(StepAdapters {
                    pool,
                    numbers: argument(ADAPTER)?.reshape(&[tokens, 1])?,
                }),
                _ => None,
            },
        };
        let x = self.x.first(tokens)?;
        self.embed(&mut ops, key, &argument(0)?, &x)?;
        if config.spec.is_scaled {
            let op = OpDescriptor::new("scale")?.number("by", (config.hidden as f64).sqrt())?;
            ops.add(op, &[&x], &[&x])?;
        }
        for (at, layer) in weights.layers.iter().enumerate() {
            self.mix(&mut ops, (at, layer), &step, &x)?;
            if let Some((norm, unit)) = &layer.unit {
                self.unit(&mut ops, (at, layer, norm, unit), &x)?;
            }
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
        let best = self.best.first(key.rows)?;
        if key.is_sampled {
            let count = key.rows * SETTINGS;
            let settings = self.arguments.part(settings..settings + count)?;
            let settings = settings.reshape(&[key.rows, SETTINGS])?;
            let values = self.best_values.first(key.rows)?;
            let op = OpDescriptor::new("choose_by_weight")?;
            ops.add(op, &[&logits, &settings], &[&best, &values])?;
            return Ok(ops.ops);
        }
        let op = OpDescriptor::new("argmax")?.axes(&[1])?;
        ops.add(op, &[&logits], &[&best])?;
        let column = |it: &DeviceTensor| it.first(key.rows)?.reshape(&[key.rows, 1]);
        let op = OpDescriptor::new("gather")?.axes(&[1])?;
        let values = column(&self.best_values)?;
        ops.add(op, &[&logits, &column(&best)?], &[&values])?;
        Ok(ops.ops)
    }

    /// Vectors of the tokens of a step: those that are known, and those that the step before has
    /// chosen.
    fn embed(
        &self,
        ops: &mut StepRecorder<'_>,
        key: StepKey,
        known: &DeviceTensor,
        x: &DeviceTensor,
    ) -> Result<()> {
        let table = &self.weights.embedding;
        let chosen = match key.source {
            TokenSource::Host => return ops.choose_rows(table, known, x),
            TokenSource::Before => self.best.first(key.singles)?,
            TokenSource::BeforeByRow => {
                let chosen = self.chosen_before.first(key.singles)?;
                let op = OpDescriptor::new("index_select")?.axes(&[0])?;
                let rows = known.part(0..key.singles)?;
                ops.add(op, &[&self.best, &rows], &[&chosen])?;
                chosen
            }
        };
        ops.choose_rows(table, &chosen, &x.part(0..key.singles)?)?;
        if key.runs == 0 {
            return Ok(());
        }
        let part = key.singles..key.tokens();
        ops.choose_rows(table, &known.part(part.clone())?, &x.part(part)?)
    }

    /// Adds to x what its tokens get from those before them.
    fn mix(
        &self,
        ops: &mut StepRecorder<'_>,
        (number, layer): (usize, &LayerWeights),
        step: &StepArguments,
        x: &DeviceTensor,
    ) -> Result<()> {
        let normed = self.normed.first(x.shape()[0])?;
        let epsilon = self.config.epsilon;
        let input = (x, (&layer.attention_norm, epsilon));
        let flat = match (&layer.mixer, &self.recurrent, &step.runs) {
            (MixerWeights::Attention(own), _, _) => {
                self.attention(ops, (number, own), step, input)?
            }
            (MixerWeights::Recurrent(own), Some(memory), Some(runs)) => {
                ops.norm(x, &layer.attention_norm, epsilon, &normed)?;
                memory.layer(ops, (number, own), (&normed, runs), epsilon)?
            }
            // Memory is reserved where a layer is one.
            (MixerWeights::Recurrent(_), _, _) => return Ok(()),
        };
        let out = (&layer.out, layer.out_bias.as_ref());
        let adapted = (number, AdaptedPlace::Out);
        match &layer.post_norms {
            None => {
                ops.product_onto(&flat, out, &normed, x)?;
                ops.adapt(&flat, adapted, &[x])
            }
            Some([norm, _]) => {
                ops.product(&flat, &layer.out, &normed)?;
                ops.adapt(&flat, adapted, &[&normed])?;
                if let Some(bias) = &layer.out_bias {
                    ops.accumulate(&normed, bias)?;
                }
                self.add_normed(ops, &normed, norm, x)
            }
        }
    }

    /// What attention gives for tokens by their norm, all heads of a token in a row.
    fn attention(
        &self,
        ops: &mut StepRecorder<'_>,
        (number, weights): (usize, &AttentionWeights),
        step: &StepArguments,
        input: NormedInput<'_>,
    ) -> Result<DeviceTensor> {
        let config = &self.config;
        let tokens = input.0.shape()[0];
        let normed = self.normed.first(tokens)?;
        let flat = self.attended.first(tokens)?;
        let all = self.projected.first(tokens)?;
        ops.normed_products(input, &weights.products, &normed, &all)?;
        ops.adapt(&normed, (number, AdaptedPlace::Attention), &[&all])?;
        let done: u64 = weights.products.iter().map(|weight| weight.outputs).sum();
        let of_values = config.heads * config.value_length;
        let (of_heads, gate) = match config.spec.has_attention_gate {
            true => {
                let gate = all.columns(done - of_values..done)?;
                (all.columns(0..done - of_values)?, Some(gate))
            }
            false => (all, None),
        };
        if let Some(biases) = &weights.biases {
            ops.accumulate(&of_heads, biases)?;
        }
        let attended = flat.reshape(&[tokens, config.heads, config.value_length])?;
        self.attend(ops, (number, weights), step, (&of_heads, &attended))?;
        if let Some(gate) = gate {
            ops.add(OpDescriptor::new("glu")?, &[&flat, &gate], &[&flat])?;
        }
        Ok(flat)
    }

    /// Attention of what was projected, which is stored in the cache.
    fn attend(
        &self,
        ops: &mut StepRecorder<'_>,
        (number, weights): (usize, &AttentionWeights),
        step: &StepArguments,
        (all, attended): (&DeviceTensor, &DeviceTensor),
    ) -> Result<()> {
        let Some([keys, values]) = &self.cache[number] else {
            return Ok(());
        };
        let (config, window) = (&self.config, self.config.windows[number]);
        let tokens = all.shape()[0];
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
        let norms: Vec<&DeviceTensor> = weights.head_norms.iter().flatten().collect();
        let key = step.key;
        // Tokens of requests that have one each, in one launch.
        let joined = match self.joins_attention(weights, keys) {
            true => key.singles,
            false => 0,
        };
        if joined > 0 {
            let op = of_heads(OpDescriptor::new("token_attention")?)?
                .number("window", window as f64)?
                .number("scale", config.scale)?
                .number("limit", config.limits[0])?
                // Arguments are there before a step begins, and earlier keys from earlier steps.
                .choice("cache", "constant")?;
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
            let operands: Vec<&DeviceTensor> = operands.into_iter().chain(&weights.sinks).collect();
            ops.add(op, &operands, &[&of_part(attended)?])?;
        }
        Ok(())
    }

    /// Whether one launch has all of attention for tokens of requests that have one each.
    fn joins_attention(&self, weights: &AttentionWeights, keys: &DeviceTensor) -> bool {
        self.limits.is_fused
            && weights.sinks.is_none()
            && self.config.key_length == self.config.value_length
            && has_token_attention(keys.layout().dtype(), self.config.key_length)
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
        (number, layer, unit_norm, weights): (usize, &LayerWeights, &DeviceTensor, &UnitWeights),
        x: &DeviceTensor,
    ) -> Result<()> {
        let tokens = x.shape()[0];
        let normed = self.normed.first(tokens)?;
        let (gate_to, up_to) = (self.gate.first(tokens)?, self.up.first(tokens)?);
        let unit = self.config.spec.unit;
        let post_norm = layer.post_norms.as_ref().map(|[_, norm]| norm);
        let norm = (unit_norm, self.config.epsilon);
        if let UnitWeights::Dense(own) = weights
            && let [gate, up, down] = own.as_ref()
            && unit == "swiglu"
            && gate.format == up.format
            && ops.adapters.is_none()
            && ops.fuses(x, gate)
        {
            ops.normed_swiglu((x, norm), [gate, up], &up_to)?;
            return self.close_unit(ops, (number, &up_to, down), post_norm, x);
        }
        ops.norm(x, norm.0, norm.1, &normed)?;
        let [gate, up, down] = match (weights, &self.experts) {
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
                if unit == "swiglu"
                    && up.format == gate.format
                    && ops.adapters.is_none()
                    && !ops.widens(&normed, gate) =>
            {
                let op = of_format("quantised_swiglu", format)?;
                ops.add(op, &[&normed, &gate.tensor, &up.tensor], &[&up_to])?;
            }
            _ => {
                ops.products(&normed, &[(gate, gate_to.clone()), (up, up_to.clone())])?;
                ops.adapt(&normed, (number, AdaptedPlace::Gates), &[&gate_to, &up_to])?;
                ops.add(OpDescriptor::new(unit)?, &[&up_to, &gate_to], &[&up_to])?;
            }
        }
        self.close_unit(ops, (number, &up_to, down), post_norm, x)
    }

    /// x + the gated unit's product, by its norm where there is one.
    fn close_unit(
        &self,
        ops: &mut StepRecorder<'_>,
        (number, gated, down): (usize, &DeviceTensor, &WeightMatrix),
        post_norm: Option<&DeviceTensor>,
        x: &DeviceTensor,
    ) -> Result<()> {
        let normed = self.normed.first(x.shape()[0])?;
        let adapted = (number, AdaptedPlace::Down);
        match post_norm {
            None => {
                ops.product_onto(gated, (down, None), &normed, x)?;
                ops.adapt(gated, adapted, &[x])
            }
            Some(norm) => {
                ops.product(gated, down, &normed)?;
                ops.adapt(gated, adapted, &[&normed])?;
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
    /// Tokens that follow one another, where layers have states.
    runs: Option<DeviceTensor>,
}
