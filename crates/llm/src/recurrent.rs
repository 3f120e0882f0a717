//! Layers whose state goes from token to token: their memory, and the ops of a step.
//!
//! States are in slots; a step's rows of `runs` say which tokens of the step follow one another,
//! and in which slots their state is read, written and kept.

use fercuda_ops::OpDescriptor;
use fercuda_runtime::Session;
use fercuda_tensor::Dtype;

use crate::error::LlmError;
use crate::model::RecurrenceRule;
use crate::recorder::DeviceTensor;
use crate::recurrence_config::RecurrenceConfig;
use crate::step_ops::StepRecorder;
use crate::weights::RecurrentWeights;

type Result<T> = std::result::Result<T, LlmError>;

/// Memory of such layers.
#[derive(Debug)]
pub(crate) struct RecurrentMemory {
    config: RecurrenceConfig,
    /// States of the convolution and of the heads of each layer that has some, by its number.
    states: Vec<Option<[DeviceTensor; 2]>>,
    projected: DeviceTensor,
    /// What the convolution gives.
    mixed: DeviceTensor,
    values: DeviceTensor,
}

impl RecurrentMemory {
    /// Reserves it for steps of so many tokens, and for states in so many slots.
    pub(crate) fn reserve(
        session: &Session,
        config: &RecurrenceConfig,
        (tokens, slots): (u64, u64),
    ) -> Result<Self> {
        let floats = |shape: &[u64]| DeviceTensor::reserve(session, Dtype::F32, shape);
        let state = |is_recurrent: &bool| match is_recurrent {
            true => {
                let state = [slots, config.heads, config.value_length, config.key_length];
                // A window of one token has no state, but memory is never empty.
                let window = [slots, (config.taps - 1).max(1), config.channels()];
                Ok(Some([floats(&window)?, floats(&state)?]))
            }
            false => Ok(None),
        };
        let states: Result<Vec<Option<[DeviceTensor; 2]>>> =
            config.layers.iter().map(state).collect();
        Ok(Self {
            states: states?,
            projected: floats(&[tokens, config.projected()])?,
            mixed: floats(&[tokens, config.channels()])?,
            values: floats(&[tokens, config.values()])?,
            config: config.clone(),
        })
    }

    /// Floats that a token needs.
    pub(crate) fn floats_each(config: &RecurrenceConfig) -> u64 {
        config.projected() + config.channels() + config.values()
    }

    /// The values of a layer that are multiplied by its last matrix, of tokens whose norm is given.
    pub(crate) fn layer(
        &self,
        ops: &mut StepRecorder<'_>,
        (number, weights): (usize, &RecurrentWeights),
        (normed, runs): (&DeviceTensor, &DeviceTensor),
        epsilon: f64,
    ) -> Result<DeviceTensor> {
        let (config, tokens) = (&self.config, normed.shape()[0]);
        let values = self.values.first(tokens)?;
        let Some([window, state]) = &self.states[number] else {
            return Ok(values);
        };
        let projected = self.projected.first(tokens)?;
        let (mut done, mut products) = (0, Vec::new());
        for weight in &weights.products {
            products.push((weight, projected.columns(done..done + weight.outputs)?));
            done += weight.outputs;
        }
        ops.products(normed, &products)?;
        let part = |first: u64, length: u64| projected.columns(first..first + length);
        let parts = weights.parts;
        let channels = part(parts.channels, config.channels())?;
        let mixed = self.mixed.first(tokens)?;
        let window = window.columns(0..config.taps - 1)?;
        let operands = [&channels, &weights.window, &window, runs];
        let operands: Vec<&DeviceTensor> =
            operands.into_iter().chain(&weights.window_bias).collect();
        ops.add(
            OpDescriptor::new("causal_convolution")?,
            &operands,
            &[&mixed, &window],
        )?;
        let by_heads = values.reshape(&[tokens, config.heads, config.value_length])?;
        let step = part(parts.step, config.heads)?;
        let keys = match config.is_tiled {
            true => "tiled",
            false => "grouped",
        };
        let op = match config.rule {
            RecurrenceRule::Delta { .. } => "gated_delta_rule",
            RecurrenceRule::Scan => "selective_scan",
        };
        let op = OpDescriptor::new(op)?.choice("keys", keys)?;
        let beta = match parts.beta {
            Some(first) => Some(part(first, config.heads)?),
            None => None,
        };
        let operands: Vec<&DeviceTensor> = [&mixed, &step]
            .into_iter()
            .chain(&beta)
            .chain([&weights.rate, &weights.step_bias, state, runs])
            .chain(&weights.skip)
            .collect();
        ops.add(op, &operands, &[&by_heads, state])?;
        let gate = part(parts.gate, config.values())?;
        let groups = [
            tokens,
            config.norm_groups,
            config.values() / config.norm_groups,
        ];
        let (by_groups, gate) = (values.reshape(&groups)?, gate.reshape(&groups)?);
        let op = match config.rule {
            RecurrenceRule::Delta { .. } => "rms_norm_gated",
            RecurrenceRule::Scan => "rms_norm_of_gated",
        };
        let op = OpDescriptor::new(op)?.axes(&[2])?.number("eps", epsilon)?;
        // What the convolution gave was read.
        let count = tokens * config.values();
        let all = self.mixed.reshape(&[self.mixed.layout().len()])?;
        let normed = all.first(count)?.reshape(&groups)?;
        ops.add(op, &[&by_groups, &weights.norm, &gate], &[&normed])?;
        normed.reshape(&[tokens, config.values()])
    }
}
