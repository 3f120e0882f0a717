//! Weights of an encoder and the ops of its steps: from tokens of texts to a vector of each token.
//!
//! Attention goes both ways: every token of a text has the text's last position where keys are
//! read, so that it reads all of them. Keys and values lie in blocks as those of decoders do, and
//! for one layer at a time.

use std::collections::HashMap;

use fercuda_modelfile::ModelFile;
use fercuda_ops::OpDescriptor;
use fercuda_runtime::{BufferId, Regime, Session};
use fercuda_tensor::{Dtype, Layout};

use crate::encoder_config::EncoderConfig;
use crate::error::{LlmError, unsupported};
use crate::recorder::{DeviceTensor, Planner, RecordedOps};

type Result<T> = std::result::Result<T, LlmError>;

/// Positions of a block of keys and values.
pub(crate) const ENCODER_PLACES: u64 = 16;

/// Sizes for which memory is reserved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncoderLimits {
    /// Tokens of a step.
    pub(crate) tokens: u64,
    /// Texts of a step.
    pub(crate) texts: u64,
    /// Blocks of a text.
    pub(crate) blocks_each: u64,
}

impl EncoderLimits {
    /// Blocks of all texts of a step, each of which has its own.
    fn blocks(&self) -> u64 {
        self.tokens / ENCODER_PLACES + self.texts
    }

    /// Numbers that a step reads: five of each token, and the table.
    fn numbers(&self) -> u64 {
        5 * self.tokens + self.texts * self.blocks_each
    }
}

/// What a step reads of its tokens: for each itself, its position, the last one of its text, its
/// text and its place; and the blocks of each text.
#[derive(Debug)]
pub(crate) struct EncoderInputs {
    limits: EncoderLimits,
    pub(crate) values: Vec<i32>,
}

impl EncoderInputs {
    /// One with these texts, which fit; other tokens are padding.
    pub(crate) fn of(limits: EncoderLimits, texts: &[&[u32]]) -> Self {
        let tokens = limits.tokens as usize;
        let mut values = vec![0; limits.numbers() as usize];
        let behind = i32::try_from(limits.blocks() * ENCODER_PLACES).unwrap_or(i32::MAX);
        values[2 * tokens..3 * tokens].fill(-1);
        values[4 * tokens..5 * tokens].fill(behind);
        let (mut at, mut block) = (0, 0);
        for (number, text) in texts.iter().enumerate() {
            let table = 5 * tokens + number * limits.blocks_each as usize;
            let places = ENCODER_PLACES as usize;
            for (position, token) in text.iter().enumerate() {
                let place = block * places + position;
                let all = [
                    token.cast_signed(),
                    position as i32,
                    text.len() as i32 - 1,
                    number as i32,
                    place as i32,
                ];
                for (part, value) in all.into_iter().enumerate() {
                    values[part * tokens + at] = value;
                }
                values[table + position / places] = (block + position / places) as i32;
                at += 1;
            }
            block += text.len().div_ceil(places);
        }
        Self { limits, values }
    }

    /// Their bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.values.iter().flat_map(|it| it.to_le_bytes()).collect()
    }

    pub(crate) fn limits(&self) -> EncoderLimits {
        self.limits
    }
}

/// A product with its bias.
#[derive(Debug)]
struct EncoderProduct {
    weight: DeviceTensor,
    bias: DeviceTensor,
}

/// A norm's factors and summands.
#[derive(Debug)]
struct EncoderNorm {
    weight: DeviceTensor,
    bias: DeviceTensor,
}

#[derive(Debug)]
struct EncoderLayer {
    /// Of queries, keys and values.
    attention: [EncoderProduct; 3],
    out: EncoderProduct,
    out_norm: EncoderNorm,
    up: EncoderProduct,
    down: EncoderProduct,
    down_norm: EncoderNorm,
}

/// Uploads tensors as f32, whose shapes are checked.
struct EncoderLoader<'a> {
    file: &'a ModelFile,
    config: &'a EncoderConfig,
    session: &'a Session,
}

impl EncoderLoader<'_> {
    /// Elements of a tensor, and its first extent.
    fn floats(
        &self,
        (layer, part, kind): (Option<u64>, &str, &str),
        width: u64,
        rows: Option<u64>,
    ) -> Result<(Vec<f32>, u64)> {
        let name = self.config.tensor(layer, part, kind);
        // Older checkpoints have other names of norms' parts.
        let older = name.replace("LayerNorm.weight", "LayerNorm.gamma");
        let older = older.replace("LayerNorm.bias", "LayerNorm.beta");
        let found = self
            .file
            .tensor(&name)
            .or_else(|_| self.file.tensor(&older));
        let tensor = found.map_err(|error| match error {
            fercuda_modelfile::Error::NoTensor { .. } => unsupported(
                format!("the files do not have {name}, which bert needs"),
                "all files of the model, as its authors publish them",
            ),
            error => error.into(),
        })?;
        let own = match tensor.shape[..] {
            [length] if rows.is_none() && kind == "bias" || part.ends_with("norm") => {
                (length == width).then_some(1)
            }
            [own, inputs] if inputs == width && rows.is_none_or(|it| it == own) => Some(own),
            _ => None,
        };
        let Some(own) = own else {
            let wanted = match rows {
                Some(rows) => format!("[{rows}, {width}]"),
                None => format!("of rows of {width}"),
            };
            let what = format!("{name} is {:?}, not {wanted}", tensor.shape);
            return Err(unsupported(what, "another file: this one is damaged"));
        };
        Ok((tensor.decode()?, own))
    }

    fn upload(&self, values: &[f32], shape: &[u64]) -> Result<DeviceTensor> {
        let bytes: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        let layout = Layout::contiguous(Dtype::F32, shape)?;
        let id = self.session.alloc(layout, Regime::Pool)?;
        self.session.upload_bytes(id, &bytes)?;
        Ok(DeviceTensor::of(self.session.bind(id)?))
    }

    fn vector(&self, place: (Option<u64>, &str, &str), length: u64) -> Result<DeviceTensor> {
        self.upload(&self.floats(place, length, None)?.0, &[length])
    }

    fn product(&self, layer: u64, part: &str, inputs: u64, outputs: u64) -> Result<EncoderProduct> {
        let layer = Some(layer);
        let (values, _) = self.floats((layer, part, "weight"), inputs, Some(outputs))?;
        Ok(EncoderProduct {
            weight: self.upload(&values, &[outputs, inputs])?,
            bias: self.vector((layer, part, "bias"), outputs)?,
        })
    }

    fn norm(&self, layer: Option<u64>, part: &str) -> Result<EncoderNorm> {
        let hidden = self.config.hidden;
        Ok(EncoderNorm {
            weight: self.vector((layer, part, "weight"), hidden)?,
            bias: self.vector((layer, part, "bias"), hidden)?,
        })
    }

    fn layer(&self, layer: u64) -> Result<EncoderLayer> {
        let EncoderConfig {
            hidden,
            feed_forward: inner,
            ..
        } = *self.config;
        let square = |part| self.product(layer, part, hidden, hidden);
        Ok(EncoderLayer {
            attention: [square("attn_q")?, square("attn_k")?, square("attn_v")?],
            out: square("attn_output")?,
            out_norm: self.norm(Some(layer), "attn_output_norm")?,
            up: self.product(layer, "ffn_up", hidden, inner)?,
            down: self.product(layer, "ffn_down", inner, hidden)?,
            down_norm: self.norm(Some(layer), "layer_output_norm")?,
        })
    }

    /// Vectors of positions, to which that of the first type of tokens is added: all have it.
    fn positions(&self) -> Result<Vec<f32>> {
        let EncoderConfig {
            hidden, context, ..
        } = *self.config;
        let place = |part| (None, part, "weight");
        let (mut all, _) = self.floats(place("position_embd"), hidden, Some(context))?;
        let (types, _) = self.floats(place("token_types"), hidden, None)?;
        for row in all.chunks_mut(hidden as usize) {
            for (value, own) in row.iter_mut().zip(&types) {
                *value += own;
            }
        }
        Ok(all)
    }
}

/// An encoder with the memory of its steps.
#[derive(Debug)]
pub(crate) struct TextEncoder {
    config: EncoderConfig,
    limits: EncoderLimits,
    vocabulary: u64,
    embedding: DeviceTensor,
    positions: DeviceTensor,
    norm: EncoderNorm,
    layers: Vec<EncoderLayer>,
    /// Keys and values of a layer.
    cache: [DeviceTensor; 2],
    arguments: (BufferId, DeviceTensor),
    /// Vectors of tokens.
    x: (BufferId, DeviceTensor),
    scratch: DeviceTensor,
    /// Queries, keys and values.
    projected: [DeviceTensor; 3],
    inner: DeviceTensor,
    steps: HashMap<u64, RecordedOps>,
    workspace: Option<DeviceTensor>,
}

/// Bytes that an encoder needs on a device: weights, and the memory of its steps.
pub(crate) fn encoder_bytes(
    file: &ModelFile,
    config: &EncoderConfig,
    limits: &EncoderLimits,
) -> u64 {
    let whole = |number: u64| u128::from(number);
    let weights: u128 = file.tensors().map(|it| whole(it.elements())).sum();
    let widths = 6 * whole(config.hidden) + whole(config.feed_forward);
    let cache = 2 * whole(limits.blocks() * ENCODER_PLACES) * whole(config.hidden);
    let step = whole(limits.tokens) * widths + cache + whole(limits.numbers());
    u64::try_from(4 * (weights + step)).unwrap_or(u64::MAX)
}

impl TextEncoder {
    /// Uploads the weights, and reserves memory for steps within these limits.
    pub(crate) fn load(
        file: &ModelFile,
        config: EncoderConfig,
        limits: EncoderLimits,
        session: &Session,
        mut progress: impl FnMut(u64),
    ) -> Result<Self> {
        let loader = EncoderLoader {
            file,
            config: &config,
            session,
        };
        let (hidden, heads) = (config.hidden, config.heads);
        let (embedding, vocabulary) =
            loader.floats((None, "token_embd", "weight"), hidden, None)?;
        let embedding = loader.upload(&embedding, &[vocabulary, hidden])?;
        let positions = loader.upload(&loader.positions()?, &[config.context, hidden])?;
        let norm = loader.norm(None, "token_embd_norm")?;
        let mut layers = Vec::new();
        for layer in 0..config.layers {
            layers.push(loader.layer(layer)?);
            progress(session.held_bytes());
        }
        let floats = |shape: &[u64]| DeviceTensor::reserve(session, Dtype::F32, shape);
        let cache = [limits.blocks(), ENCODER_PLACES, heads, hidden / heads];
        let named = |dtype, shape: &[u64]| -> Result<(BufferId, DeviceTensor)> {
            let id = session.alloc(Layout::contiguous(dtype, shape)?, Regime::Pool)?;
            Ok((id, DeviceTensor::of(session.bind(id)?)))
        };
        let of_tokens = [limits.tokens, hidden];
        Ok(Self {
            cache: [floats(&cache)?, floats(&cache)?],
            arguments: named(Dtype::I32, &[limits.numbers()])?,
            x: named(Dtype::F32, &of_tokens)?,
            scratch: floats(&of_tokens)?,
            projected: [
                floats(&of_tokens)?,
                floats(&of_tokens)?,
                floats(&of_tokens)?,
            ],
            inner: floats(&[limits.tokens, config.feed_forward])?,
            steps: HashMap::new(),
            workspace: None,
            config,
            limits,
            vocabulary,
            embedding,
            positions,
            norm,
            layers,
        })
    }

    pub(crate) fn config(&self) -> &EncoderConfig {
        &self.config
    }

    /// Number of tokens that there are.
    pub(crate) fn vocabulary(&self) -> u64 {
        self.vocabulary
    }

    /// Vectors of the tokens of texts, one after another.
    pub(crate) fn encode(
        &mut self,
        planner: &mut Planner,
        session: &Session,
        inputs: &EncoderInputs,
        count: u64,
    ) -> Result<Vec<f32>> {
        let tokens = count.next_power_of_two().clamp(16, inputs.limits().tokens);
        if !self.steps.contains_key(&tokens) {
            let mut step = self.prepare(planner, tokens)?;
            let bytes = step.workspace_bytes();
            let held = self.workspace.as_ref().map_or(0, |it| it.layout().bytes());
            if bytes > held {
                self.workspace = Some(DeviceTensor::reserve(session, Dtype::U8, &[bytes])?);
            }
            if let Some(workspace) = &self.workspace {
                step.use_workspace(workspace.clone());
            }
            self.steps.insert(tokens, step);
        }
        session.upload_bytes(self.arguments.0, &inputs.bytes())?;
        if let Some(step) = self.steps.get(&tokens) {
            step.run(session.stream())?;
        }
        let view = session.view(self.x.0, |all| Ok(all.slice(0, 0..count, 1)?))?;
        let values = session.download(view);
        session.free(view)?;
        Ok(values?)
    }

    /// Plans the ops of a step of so many tokens.
    fn prepare(&self, planner: &mut Planner, tokens: u64) -> Result<RecordedOps> {
        let mut ops = RecordedOps::default();
        let argument = |number: u64| {
            let first = number * self.limits.tokens;
            self.arguments.1.part(first..first + tokens)
        };
        let table = 5 * self.limits.tokens..self.limits.numbers();
        let table = self.arguments.1.part(table)?;
        let table = table.reshape(&[self.limits.texts, self.limits.blocks_each])?;
        let (x, scratch) = (self.x.1.first(tokens)?, self.scratch.first(tokens)?);
        let rows = OpDescriptor::new("embedding")?;
        ops.add(
            planner,
            rows.clone(),
            &[&self.embedding, &argument(0)?],
            &[&x],
        )?;
        ops.add(
            planner,
            rows,
            &[&self.positions, &argument(1)?],
            &[&scratch],
        )?;
        ops.add(
            planner,
            OpDescriptor::new("add")?,
            &[&x, &scratch],
            &[&scratch],
        )?;
        self.add_norm(&mut ops, planner, &self.norm, (&scratch, &x))?;
        let heads = self.config.heads;
        let of_heads = [tokens, heads, self.config.hidden / heads];
        for layer in &self.layers {
            for (product, to) in layer.attention.iter().zip(&self.projected) {
                let op = OpDescriptor::new("linear")?;
                let operands = [&x, &product.weight, &product.bias];
                ops.add(planner, op, &operands, &[&to.first(tokens)?])?;
            }
            let [q, k, v] = &self.projected;
            let place = argument(4)?;
            for (cache, rows) in self.cache.iter().zip([k, v]) {
                let rows = rows.first(tokens)?.reshape(&of_heads)?;
                let op = OpDescriptor::new("cache_append")?;
                ops.add(planner, op, &[cache, &rows, &place], &[cache])?;
            }
            let q = q.first(tokens)?.reshape(&of_heads)?;
            let [keys, values] = &self.cache;
            let (sequence, last) = (argument(3)?, argument(2)?);
            // Keys are in the cache, and their memory is free for what attention gives.
            let attended = k.first(tokens)?;
            let op = OpDescriptor::new("paged_attention")?.number("run", 16.0)?;
            let operands = [&q, keys, values, &table, &sequence, &last];
            ops.add(planner, op, &operands, &[&attended.reshape(&of_heads)?])?;
            self.add_product(&mut ops, planner, &layer.out, (&attended, &x, &scratch))?;
            self.add_norm(&mut ops, planner, &layer.out_norm, (&scratch, &x))?;
            let inner = self.inner.first(tokens)?;
            let op = OpDescriptor::new("linear")?;
            ops.add(
                planner,
                op,
                &[&x, &layer.up.weight, &layer.up.bias],
                &[&inner],
            )?;
            let op = OpDescriptor::new(self.config.activation)?;
            ops.add(planner, op, &[&inner], &[&inner])?;
            self.add_product(&mut ops, planner, &layer.down, (&inner, &x, &scratch))?;
            self.add_norm(&mut ops, planner, &layer.down_norm, (&scratch, &x))?;
        }
        Ok(ops)
    }

    /// A product with its bias, and what is added to it.
    fn add_product(
        &self,
        ops: &mut RecordedOps,
        planner: &mut Planner,
        product: &EncoderProduct,
        (from, summand, to): (&DeviceTensor, &DeviceTensor, &DeviceTensor),
    ) -> Result<()> {
        let op = OpDescriptor::new("linear")?;
        let operands = [from, &product.weight, &product.bias, summand];
        ops.add(planner, op, &operands, &[to])
    }

    fn add_norm(
        &self,
        ops: &mut RecordedOps,
        planner: &mut Planner,
        norm: &EncoderNorm,
        (from, to): (&DeviceTensor, &DeviceTensor),
    ) -> Result<()> {
        let op = OpDescriptor::new("layer_norm")?.axes(&[1])?;
        let op = op.number("eps", self.config.epsilon)?;
        ops.add(planner, op, &[from, &norm.weight, &norm.bias], &[to])
    }
}
