//! Ops of a step while they are planned: norms, products with weights of any format, and gated
//! units of experts.

use std::collections::HashMap;

use fercuda_ops::{OpDescriptor, has_token_products};
use fercuda_runtime::Session;
use fercuda_tensor::{BlockFormat, Dtype};

use crate::adapters::StepAdapters;
use crate::config::{ExpertConfig, ModelConfig};
use crate::error::{LlmError, unsupported};
use crate::model::{DecoderSpec, ExpertWeighting};
use crate::recorder::{DeviceTensor, Planner, RecordedOps};
use crate::tensors::MatrixFormat;
use crate::weights::{ExpertWeights, WeightMatrix};

type Result<T> = std::result::Result<T, LlmError>;

/// What blocks of weights become: it has the range of f32, and errs less than activations that are
/// quantised to 8 bits.
pub(crate) const WIDE: Dtype = Dtype::Bf16;

/// The ops of a step while they are planned.
pub(crate) struct StepRecorder<'a> {
    pub(crate) planner: &'a mut Planner,
    pub(crate) ops: RecordedOps,
    /// Memory of a factor of each narrower type.
    pub(crate) narrow: &'a HashMap<Dtype, DeviceTensor>,
    /// Memory of a matrix, where blocks become wider, and the rows for which they do.
    pub(crate) wide: Option<(&'a DeviceTensor, u64)>,
    pub(crate) no_bias: &'a DeviceTensor,
    /// Whether products of few tokens are one launch with their norm, gate and residual.
    pub(crate) is_fused: bool,
    /// Adapters and the numbers of those of its tokens, if requests of the step have some.
    pub(crate) adapters: Option<StepAdapters<'a>>,
}

/// A vector of each token, and the weights and the epsilon of its norm.
pub(crate) type NormedInput<'a> = (&'a DeviceTensor, (&'a DeviceTensor, f64));

impl StepRecorder<'_> {
    pub(crate) fn add(
        &mut self,
        op: OpDescriptor,
        operands: &[&DeviceTensor],
        outputs: &[&DeviceTensor],
    ) -> Result<()> {
        self.ops.add(self.planner, op, operands, outputs)
    }

    /// x / root of the mean of its squares, by the weights, along the last dimension.
    pub(crate) fn norm(
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

    /// Whether one launch multiplies such vectors by a matrix.
    pub(crate) fn fuses(&self, x: &DeviceTensor, weight: &WeightMatrix) -> bool {
        let &[rows, inputs] = x.shape() else {
            return false;
        };
        let format = match weight.format {
            MatrixFormat::Blocks(format) => Some(format),
            MatrixFormat::Plain(_) => None,
        };
        self.is_fused && has_token_products(format, rows, inputs)
    }

    /// n w^T of several matrices side by side, where n is the norm of x; elsewhere in between,
    /// where no op does all, or where adapters read it too.
    pub(crate) fn normed_products(
        &mut self,
        (x, (norm, epsilon)): NormedInput<'_>,
        weights: &[WeightMatrix],
        between: &DeviceTensor,
        to: &DeviceTensor,
    ) -> Result<()> {
        let mut done = 0;
        let is_apart = self.adapters.is_some();
        if is_apart || !weights.iter().all(|weight| self.fuses(x, weight)) {
            self.norm(x, norm, epsilon, between)?;
            let mut parts = Vec::new();
            for weight in weights {
                parts.push((weight, to.columns(done..done + weight.outputs)?));
                done += weight.outputs;
            }
            return self.products(between, &parts);
        }
        for of_format in weights.chunk_by(|a, b| a.format == b.format) {
            for some in of_format.chunks(3) {
                let outputs: u64 = some.iter().map(|weight| weight.outputs).sum();
                let own = to.columns(done..done + outputs)?;
                done += outputs;
                let op = fused("normed_linear", some[0].format)?.number("eps", epsilon)?;
                let matrices = some.iter().map(|weight| &weight.tensor);
                let operands: Vec<&DeviceTensor> = [x, norm].into_iter().chain(matrices).collect();
                self.add(op, &operands, &[&own])?;
            }
        }
        Ok(())
    }

    /// The gated unit of the norm of x, before its last product.
    pub(crate) fn normed_swiglu(
        &mut self,
        (x, (norm, epsilon)): NormedInput<'_>,
        [gate, up]: [&WeightMatrix; 2],
        to: &DeviceTensor,
    ) -> Result<()> {
        let op = fused("normed_swiglu", gate.format)?.number("eps", epsilon)?;
        self.add(op, &[x, norm, &gate.tensor, &up.tensor], &[to])
    }

    /// x w^T.
    pub(crate) fn product(
        &mut self,
        x: &DeviceTensor,
        weight: &WeightMatrix,
        to: &DeviceTensor,
    ) -> Result<()> {
        self.products(x, &[(weight, to.clone())])
    }

    /// x w^T of several matrices.
    pub(crate) fn products(
        &mut self,
        x: &DeviceTensor,
        all: &[(&WeightMatrix, DeviceTensor)],
    ) -> Result<()> {
        let mut narrowed: Option<(Dtype, DeviceTensor)> = None;
        for (weight, to) in all {
            if self.fuses(x, weight) {
                let op = fused("token_linear", weight.format)?;
                self.add(op, &[x, &weight.tensor], &[to])?;
                continue;
            }
            let dtype = match weight.format {
                MatrixFormat::Blocks(format) if !self.widens(x, weight) => {
                    let op = of_format("quantised_linear", format)?;
                    self.add(op, &[x, &weight.tensor], &[to])?;
                    continue;
                }
                MatrixFormat::Plain(Dtype::F32) => {
                    let op = OpDescriptor::new("linear")?;
                    self.add(op, &[x, &weight.tensor], &[to])?;
                    continue;
                }
                MatrixFormat::Blocks(_) => WIDE,
                MatrixFormat::Plain(dtype) => dtype,
            };
            let from = match narrowed.take() {
                Some((known, from)) if known == dtype => from,
                _ => self.narrowed(x, dtype)?,
            };
            let matrix = match weight.format {
                MatrixFormat::Blocks(format) => self.widened(weight, format, from.shape()[1])?,
                MatrixFormat::Plain(_) => weight.tensor.clone(),
            };
            let op = OpDescriptor::new("linear")?.choice("result", "f32")?;
            self.add(op, &[&from, &matrix], &[to])?;
            narrowed = Some((dtype, from));
        }
        Ok(())
    }

    /// Whether blocks of a matrix become wider first.
    pub(crate) fn widens(&self, x: &DeviceTensor, weight: &WeightMatrix) -> bool {
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
                "no memory was reserved for wider weights",
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
            Some(memory) => of_shape(memory, shape),
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

    /// x w^T + bias + y, in y; elsewhere in between, where no op does all.
    pub(crate) fn product_onto(
        &mut self,
        x: &DeviceTensor,
        (weight, bias): (&WeightMatrix, Option<&DeviceTensor>),
        between: &DeviceTensor,
        y: &DeviceTensor,
    ) -> Result<()> {
        if bias.is_none() && self.fuses(x, weight) {
            let op = fused("token_linear", weight.format)?;
            return self.add(op, &[x, &weight.tensor, y], &[y]);
        }
        match weight.format {
            MatrixFormat::Blocks(format) if !self.widens(x, weight) => {
                let op = of_format("quantised_linear", format)?;
                let bias = bias.unwrap_or(self.no_bias);
                self.add(op, &[x, &weight.tensor, bias, y], &[y])
            }
            _ => {
                self.product(x, weight, between)?;
                if let Some(bias) = bias {
                    self.accumulate(between, bias)?;
                }
                self.accumulate(y, between)
            }
        }
    }

    /// x + y, in x.
    pub(crate) fn accumulate(&mut self, x: &DeviceTensor, y: &DeviceTensor) -> Result<()> {
        self.add(OpDescriptor::new("add")?, &[x, y], &[x])
    }

    /// x of each token by the matrix of each expert that it has chosen.
    fn by_experts(
        &mut self,
        x: &DeviceTensor,
        (weight, bias): (&WeightMatrix, Option<&DeviceTensor>),
        chosen: &DeviceTensor,
        to: &DeviceTensor,
    ) -> Result<()> {
        let op = match weight.format {
            MatrixFormat::Blocks(format) => of_format("quantised_expert_linear", format)?,
            MatrixFormat::Plain(_) => OpDescriptor::new("expert_linear")?,
        };
        let first = [x, &weight.tensor, chosen];
        let operands: Vec<&DeviceTensor> = first.into_iter().chain(bias).collect();
        self.add(op, &operands, &[to])
    }

    /// Weights and numbers of the experts that each token chooses.
    fn choose_experts(
        &mut self,
        x: &DeviceTensor,
        (experts, weighting): (&ExpertWeights, ExpertWeighting),
        memory: &ExpertMemory,
    ) -> Result<[DeviceTensor; 2]> {
        let tokens = x.shape()[0];
        let first = |memory: &DeviceTensor| memory.first(tokens);
        let (scores, index) = (first(&memory.scores)?, first(&memory.index)?);
        self.product(x, &experts.router, &scores)?;
        if let Some(bias) = &experts.router_bias {
            self.accumulate(&scores, bias)?;
        }
        let (best, weights) = (first(&memory.best)?, first(&memory.weights)?);
        let used = experts.chosen.used;
        let op = OpDescriptor::new("topk")?
            .axes(&[1])?
            .number("k", used as f64)?;
        self.add(op, &[&scores], &[&best, &index])?;
        let op = match weighting {
            ExpertWeighting::Softmax => OpDescriptor::new("softmax")?.axes(&[1])?,
            ExpertWeighting::SigmoidBefore => OpDescriptor::new("sigmoid")?,
        };
        self.add(op, &[&best], &[&weights])?;
        Ok([weights.reshape(&[tokens, used, 1])?, index])
    }

    /// The gated units of the experts that each token chooses, by their weights, and that of the
    /// expert of all tokens.
    pub(crate) fn experts(
        &mut self,
        x: &DeviceTensor,
        (experts, spec): (&ExpertWeights, &DecoderSpec),
        memory: &ExpertMemory,
        to: &DeviceTensor,
    ) -> Result<()> {
        let (tokens, hidden) = (x.shape()[0], x.shape()[1]);
        let is_before = spec.weighting == ExpertWeighting::SigmoidBefore;
        let [weights, index] = self.choose_experts(x, (experts, spec.weighting), memory)?;
        let first = |memory: &DeviceTensor| memory.first(tokens);
        let (gate, up, down) = (
            first(&memory.gate)?,
            first(&memory.up)?,
            first(&memory.down)?,
        );
        let read = match is_before {
            // The results' memory is free until they are computed from the gated units.
            true => {
                let each = x.reshape(&[tokens, 1, hidden])?;
                self.add(OpDescriptor::new("mul")?, &[&each, &weights], &[&down])?;
                down.clone()
            }
            false => x.clone(),
        };
        let [of_gate, of_up, of_down] = match &experts.biases {
            Some(all) => all.each_ref().map(Some),
            None => [None; 3],
        };
        match experts.gate.format {
            MatrixFormat::Blocks(format)
                if spec.unit == "swiglu"
                    && experts.up.format == experts.gate.format
                    && experts.biases.is_none() =>
            {
                let op = of_format("quantised_expert_swiglu", format)?;
                let operands = [&read, &experts.gate.tensor, &experts.up.tensor, &index];
                self.add(op, &operands, &[&up])?;
            }
            _ => {
                self.by_experts(&read, (&experts.gate, of_gate), &index, &gate)?;
                self.by_experts(&read, (&experts.up, of_up), &index, &up)?;
                self.add(OpDescriptor::new(spec.unit)?, &[&up, &gate], &[&up])?;
            }
        }
        self.by_experts(&up, (&experts.down, of_down), &index, &down)?;
        // The experts have read x when their sum is written, but the one of all has not.
        let shared = match &experts.shared {
            Some([of_gate, of_up, of_down]) => {
                let [gate, up] = [&memory.gate, &memory.up].map(|it| {
                    let all = it.reshape(&[it.layout().len()])?;
                    of_shape(&all, &[tokens, experts.chosen.shared])
                });
                let (gate, up, shared) = (gate?, up?, first(&memory.shared)?);
                self.product(x, of_gate, &gate)?;
                self.product(x, of_up, &up)?;
                self.add(OpDescriptor::new(spec.unit)?, &[&up, &gate], &[&up])?;
                self.product(&up, of_down, &shared)?;
                if let Some(row) = &experts.shared_gate {
                    // The gated unit's memory is free.
                    let by = of_shape(&gate.reshape(&[gate.layout().len()])?, &[tokens, 1])?;
                    self.product(x, row, &by)?;
                    self.add(OpDescriptor::new("glu")?, &[&shared, &by], &[&shared])?;
                }
                Some(shared)
            }
            None => None,
        };
        match is_before {
            true => {
                let op = OpDescriptor::new("sum")?.axes(&[1])?;
                self.add(op, &[&down], &[to])?;
            }
            false => {
                let op = OpDescriptor::new("dot")?.axes(&[1])?;
                self.add(op, &[&down, &weights], &[to])?;
            }
        }
        match shared {
            Some(shared) => self.accumulate(to, &shared),
            None => Ok(()),
        }
    }

    /// Rows of a matrix, as f32.
    pub(crate) fn choose_rows(
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
pub(crate) fn of_format(op: &str, format: BlockFormat) -> Result<OpDescriptor> {
    let name = format.name().to_ascii_lowercase();
    Ok(OpDescriptor::new(op)?.choice("format", &name)?)
}

/// An op of few tokens by weights of a format, which nothing writes while the engine runs.
fn fused(op: &str, format: MatrixFormat) -> Result<OpDescriptor> {
    let op = match format {
        MatrixFormat::Blocks(format) => of_format(op, format)?,
        MatrixFormat::Plain(_) => OpDescriptor::new(op)?,
    };
    Ok(op.choice("weights", "constant")?)
}

/// The first elements of reserved memory, in a shape.
pub(crate) fn of_shape(memory: &DeviceTensor, shape: &[u64]) -> Result<DeviceTensor> {
    memory.first(shape.iter().product())?.reshape(shape)
}

/// Memory of gated units of experts.
#[derive(Debug)]
pub(crate) struct ExpertMemory {
    /// Scores of all experts, those of the chosen ones, their numbers and their weights.
    scores: DeviceTensor,
    best: DeviceTensor,
    index: DeviceTensor,
    weights: DeviceTensor,
    gate: DeviceTensor,
    up: DeviceTensor,
    down: DeviceTensor,
    /// Results of the expert of all tokens.
    shared: DeviceTensor,
}

impl ExpertMemory {
    /// Reserves it for steps of so many tokens.
    pub(crate) fn reserve(
        session: &Session,
        (experts, hidden): (ExpertConfig, u64),
        tokens: u64,
    ) -> Result<Self> {
        let ExpertConfig {
            count,
            used,
            feed_forward,
            ..
        } = experts;
        let floats = |shape: &[u64]| DeviceTensor::reserve(session, Dtype::F32, shape);
        Ok(Self {
            scores: floats(&[tokens, count])?,
            best: floats(&[tokens, used])?,
            index: DeviceTensor::reserve(session, Dtype::I64, &[tokens, used])?,
            weights: floats(&[tokens, used])?,
            gate: floats(&[tokens, used, feed_forward])?,
            up: floats(&[tokens, used, feed_forward])?,
            down: floats(&[tokens, used, hidden])?,
            shared: floats(&[tokens, hidden])?,
        })
    }

    /// Floats that a token needs.
    pub(crate) fn floats_each(config: &ModelConfig) -> u64 {
        let of = |experts: ExpertConfig| {
            let each = 4 + 2 * experts.feed_forward + config.hidden;
            experts.count + experts.used * each + config.hidden
        };
        config.experts.map_or(0, of)
    }
}
