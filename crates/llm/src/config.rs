//! Configuration of a model, from a GGUF file's metadata, bounded.
//!
//! Elsewhere: that of checkpoints (`checkpoint`), what architectures have of their own (`model`),
//! the tensors (`tensors`, `weights`).

use fercuda_modelfile::{Gguf, GgufValue, ModelFile};
use fercuda_tensor::Dtype;

use crate::error::{LlmError, unsupported};
use crate::keys::{ArchitectureKeys, MOST_WIDTH, check_heads};
use crate::model::{self, CheckpointSpec, DecoderSpec, ExpertWeighting, HeadNorms, WindowPattern};
use crate::recurrence_config::{RecurrenceConfig, recurrence};
use crate::rotary::{RotaryConfig, rotary};

/// Most layers that are read: more than any model has.
pub(crate) const MOST_LAYERS: u64 = 4096;
/// Most experts of a layer.
pub(crate) const MOST_EXPERTS: u64 = 4096;

/// Layers behind the last one, which are not needed.
pub(crate) const FURTHER: &str = "layers that predict further tokens";

/// Configuration of a decoder.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Name of the architecture in the file.
    pub architecture: String,
    /// Name of the model, if the file has one.
    pub name: String,
    /// Number of layers.
    pub layers: u64,
    /// Elements of a token's vector.
    pub hidden: u64,
    /// Heads of queries.
    pub heads: u64,
    /// Heads of keys and values.
    pub shared_heads: u64,
    /// Elements of a key.
    pub key_length: u64,
    /// Elements of a value.
    pub value_length: u64,
    /// Elements of the gated unit; 0 where the file has those of experts only.
    pub feed_forward: u64,
    /// Experts of layers that have them.
    pub experts: Option<ExpertConfig>,
    /// The recurrence of layers without attention.
    pub(crate) recurrence: Option<RecurrenceConfig>,
    /// Parts of the model that are there and not computed.
    pub left_out: Vec<&'static str>,
    /// Positions that the model was made for.
    pub context: u64,
    /// Constant of the norms.
    pub epsilon: f64,
    /// Rotation by positions: that of all layers, or of those without a window and of others.
    pub(crate) rotaries: Vec<RotaryConfig>,
    /// Last positions that a token of each layer attends to; 0 for all.
    pub(crate) windows: Vec<u64>,
    /// Factor of scores of attention; 0 for that of the length of keys.
    pub(crate) scale: f64,
    /// Limits of scores of attention and of logits; 0 for none.
    pub(crate) limits: [f64; 2],
    pub(crate) spec: DecoderSpec,
    /// How the tensors of a checkpoint are named and unpacked; `None` of a GGUF file.
    pub(crate) checkpoint: Option<Checkpoint>,
}

/// What is known of a checkpoint's tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checkpoint {
    pub(crate) spec: &'static CheckpointSpec,
    /// What names begin with, but for that of the head.
    pub(crate) prefix: &'static str,
    /// What the name of the head begins with.
    pub(crate) head_prefix: &'static str,
    /// Whether one matrix is for tokens and for logits.
    pub(crate) is_tied: bool,
    /// Type in which weights of several tensors lie in device memory.
    pub(crate) unpacked: Dtype,
}

impl Checkpoint {
    /// The checkpoint's name of a tensor that GGUF files call `name`: of several that it may have,
    /// the one that the files have.
    pub(crate) fn name(&self, file: &ModelFile, name: &str) -> Option<String> {
        let prefix = match name.starts_with("output.") {
            true => self.head_prefix,
            false => self.prefix,
        };
        let mut all = self.spec.tensors(name);
        all.iter_mut().for_each(|it| it.insert_str(0, prefix));
        let found = all.iter().position(|it| file.has_weight(it));
        match all.is_empty() {
            true => None,
            false => Some(all.swap_remove(found.unwrap_or(0))),
        }
    }
}

/// Experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertConfig {
    /// Number of experts.
    pub count: u64,
    /// Number that each token chooses.
    pub used: u64,
    /// Elements of the gated unit of each.
    pub feed_forward: u64,
    /// Elements of the gated unit of the expert of all tokens, where there is one.
    pub shared: u64,
}

fn text<B: AsRef<[u8]>>(file: &Gguf<B>, key: &str) -> Option<String> {
    Some(file.get(key)?.as_str()?.to_owned())
}

impl ModelConfig {
    /// Reads the configuration in a GGUF file.
    pub(crate) fn of_gguf<B: AsRef<[u8]>>(
        model: &ModelFile,
        file: &Gguf<B>,
    ) -> Result<Self, LlmError> {
        let Some(architecture) = text(file, "general.architecture") else {
            return Err(unsupported(
                "the file does not have general.architecture",
                "a file with a model's metadata: this one may be a vocabulary or an adapter",
            ));
        };
        let spec = model::spec(&architecture)?;
        let keys = ArchitectureKeys {
            file,
            architecture: &architecture,
        };
        let layers = layers(&keys)?;
        let further = keys.number("nextn_predict_layers")?.unwrap_or(0);
        let left_out = if further > 0 {
            vec![FURTHER]
        } else {
            Vec::new()
        };
        let hidden = keys.required("embedding_length", MOST_WIDTH)?;
        let HeadSizes {
            heads,
            shared_heads,
            key_length,
            value_length,
        } = match spec.has_attention {
            true => head_sizes(&keys, hidden)?,
            false => HeadSizes::default(),
        };
        let context = keys.required("context_length", u64::from(u32::MAX))?;
        let context = spec.most_context.map_or(context, |most| context.min(most));
        let epsilon = keys
            .float("attention.layer_norm_rms_epsilon")
            .unwrap_or(1e-5);
        let mut rotaries = Vec::new();
        if spec.has_attention {
            let first = rotary(&keys, model, (key_length, context), spec.has_whole_yarn)?;
            let of_windows = first.of_windows(&keys, spec.window_base)?;
            rotaries.extend([first].into_iter().chain(of_windows));
        }
        let experts = experts(&keys, spec.weighting)?;
        let feed_forward = match (&experts, keys.number("feed_forward_length")?) {
            (Some(_), None | Some(0)) => 0,
            _ if !spec.has_unit => 0,
            _ => keys.required("feed_forward_length", MOST_WIDTH)?,
        };
        let limit = |key: &str, default| keys.positive(key).map(|it| it.unwrap_or(default));
        let limits = [
            limit("attn_logit_softcapping", spec.limits[0])?,
            limit("final_logit_softcapping", spec.limits[1])?,
        ];
        let scale = match keys.positive("attention.scale")? {
            Some(scale) => scale,
            None if spec.wide_scale_layers == Some(layers) => {
                1.0 / ((hidden / heads) as f64).sqrt()
            }
            None => 0.0,
        };
        Ok(Self {
            left_out,
            name: text(file, "general.name").unwrap_or_default(),
            layers,
            hidden,
            heads,
            shared_heads,
            key_length,
            value_length,
            feed_forward,
            experts,
            context,
            epsilon,
            rotaries,
            windows: windows(&keys, spec.windows, layers)?,
            recurrence: recurrence(&keys, spec.recurrence, layers)?,
            scale,
            limits,
            spec,
            checkpoint: None,
            architecture,
        })
    }
}

/// Heads of attention, and their elements.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeadSizes {
    pub(crate) heads: u64,
    pub(crate) shared_heads: u64,
    pub(crate) key_length: u64,
    pub(crate) value_length: u64,
}

fn head_sizes<B: AsRef<[u8]>>(
    keys: &ArchitectureKeys<'_, B>,
    hidden: u64,
) -> Result<HeadSizes, LlmError> {
    let heads = keys.required("attention.head_count", MOST_WIDTH)?;
    let shared_heads = match keys.number("attention.head_count_kv")? {
        Some(_) => keys.required("attention.head_count_kv", heads)?,
        None => heads,
    };
    if !heads.is_multiple_of(shared_heads) {
        return Err(unsupported(
            format!("{heads} heads are no multiple of {shared_heads} heads of keys"),
            "another file: this one is damaged",
        ));
    }
    let length = |key| match keys.number(key)? {
        Some(_) => keys.required(key, MOST_WIDTH),
        None if hidden.is_multiple_of(heads) => Ok(hidden / heads),
        None => Err(unsupported(
            format!("{hidden} elements are no multiple of {heads} heads"),
            "a file that has the lengths of keys and values",
        )),
    };
    let (key_length, value_length) = (
        length("attention.key_length")?,
        length("attention.value_length")?,
    );
    check_heads(heads, key_length)?;
    check_heads(heads, value_length)?;
    Ok(HeadSizes {
        heads,
        shared_heads,
        key_length,
        value_length,
    })
}

/// Number of layers, without those behind them that predict further tokens.
fn layers<B: AsRef<[u8]>>(keys: &ArchitectureKeys<'_, B>) -> Result<u64, LlmError> {
    let all = keys.required("block_count", MOST_LAYERS)?;
    let further = keys.number("nextn_predict_layers")?.unwrap_or(0);
    match all.checked_sub(further) {
        Some(layers) if layers > 0 => Ok(layers),
        _ => Err(unsupported(
            format!("{further} of {all} layers predict further tokens"),
            "another file: this one is damaged",
        )),
    }
}

impl ModelConfig {
    /// Whether a layer has a state that goes from token to token, and no attention.
    pub(crate) fn is_recurrent(&self, layer: u64) -> bool {
        let recurrence = self.recurrence.as_ref();
        recurrence.is_some_and(|it| it.layers.get(layer as usize).copied().unwrap_or(false))
    }

    /// Number of layers with attention.
    pub(crate) fn attention_layers(&self) -> u64 {
        (0..self.layers)
            .filter(|it| !self.is_recurrent(*it))
            .count() as u64
    }

    /// Number of a layer's rotation; layers with a window may have one of their own, which is the
    /// last one.
    pub(crate) fn rotary_of(&self, layer: u64) -> Option<usize> {
        let is_unturned = |every: u64| (layer + 1).is_multiple_of(every);
        if self.spec.unturned.is_some_and(is_unturned) {
            return None;
        }
        let has_window = self.windows.get(layer as usize).is_some_and(|it| *it > 0);
        let last = self.rotaries.len().checked_sub(1)?;
        Some(last.min(usize::from(has_window)))
    }

    /// Norms of the heads of a layer.
    pub(crate) fn head_norms_of(&self, layer: u64) -> HeadNorms {
        match self.spec.head_norms {
            HeadNorms::Plain { unless_experts } => {
                let has_none = self.experts.is_some_and(|it| it.count == unless_experts);
                match has_none || self.rotary_of(layer).is_none() {
                    true => HeadNorms::None,
                    false => self.spec.head_norms,
                }
            }
            norms => norms,
        }
    }
}

/// The window of each layer.
fn windows<B: AsRef<[u8]>>(
    keys: &ArchitectureKeys<'_, B>,
    pattern: WindowPattern,
    layers: u64,
) -> Result<Vec<u64>, LlmError> {
    let own = match pattern {
        WindowPattern::None => None,
        _ => keys.number("attention.sliding_window")?,
    };
    let (period, positions) = match pattern {
        WindowPattern::None => (1, 0),
        WindowPattern::Each => (u64::MAX, own.unwrap_or(0)),
        WindowPattern::Period { layers, positions } => (layers, own.unwrap_or(positions)),
    };
    let key = "attention.sliding_window_pattern";
    let given = match pattern {
        WindowPattern::Period { .. } => keys.get(key),
        _ => None,
    };
    let wrong = || {
        unsupported(
            format!(
                "{}.{key} is no period and no list of {layers}",
                keys.architecture
            ),
            "a file that a current converter wrote",
        )
    };
    let of_layers = match given {
        // Whether each layer has a window.
        Some(value) if value.as_array().is_some() => {
            let all = value.as_array().ok_or_else(wrong)?;
            let all: Vec<Option<bool>> = all.iter().map(flag).collect();
            let all: Option<Vec<bool>> = all.into_iter().collect();
            all.filter(|it| it.len() as u64 >= layers)
                .ok_or_else(wrong)?
        }
        Some(value) => {
            let period = value.as_u64().ok_or_else(wrong)?;
            (0..layers).map(|at| has_window(at, period)).collect()
        }
        None => (0..layers).map(|at| has_window(at, period)).collect(),
    };
    let of_layer = |has_window: &bool| if *has_window { positions } else { 0 };
    Ok(of_layers
        .iter()
        .take(layers as usize)
        .map(of_layer)
        .collect())
}

fn flag(value: GgufValue<'_>) -> Option<bool> {
    match value {
        GgufValue::Bool(flag) => Some(flag),
        _ => None,
    }
}

/// Whether a layer is not the last one of its period.
fn has_window(layer: u64, period: u64) -> bool {
    period == 0 || layer % period + 1 < period
}

fn experts<B: AsRef<[u8]>>(
    keys: &ArchitectureKeys<'_, B>,
    weighting: ExpertWeighting,
) -> Result<Option<ExpertConfig>, LlmError> {
    if keys.number("expert_count")?.unwrap_or(0) == 0 {
        return Ok(None);
    }
    let count = keys.required("expert_count", MOST_EXPERTS)?;
    let refused = |key: &str, value: String| {
        Err(unsupported(
            format!(
                "{}.{key} is {value}, which is not supported",
                keys.architecture
            ),
            "a model whose experts are weighted as its architecture's first models are",
        ))
    };
    let is_known = |gating: &u64| match (weighting, gating) {
        // Of all or of those that are chosen: their ratios are the same.
        (ExpertWeighting::Softmax, 0 | 1 | 3) => true,
        (ExpertWeighting::SigmoidBefore, 0 | 2) => true,
        _ => false,
    };
    let gating = keys.number("expert_gating_func")?;
    if let Some(gating) = gating.filter(|it| !is_known(it)) {
        return refused("expert_gating_func", gating.to_string());
    }
    if let Some(scale) = keys
        .float("expert_weights_scale")
        .filter(|it| *it != 0.0 && *it != 1.0)
    {
        return refused("expert_weights_scale", scale.to_string());
    }
    if let Some(number) = keys.number("expert_group_count")?.filter(|it| *it > 1) {
        return refused("expert_group_count", number.to_string());
    }
    let is_normed = keys.get("expert_weights_norm");
    if is_normed.and_then(flag) == Some(weighting == ExpertWeighting::SigmoidBefore) {
        let own = weighting == ExpertWeighting::SigmoidBefore;
        return refused("expert_weights_norm", own.to_string());
    }
    let inner = match keys.number("expert_feed_forward_length")? {
        Some(_) => "expert_feed_forward_length",
        None => "feed_forward_length",
    };
    let (used, feed_forward) = (
        keys.required("expert_used_count", count)?,
        keys.required(inner, MOST_WIDTH)?,
    );
    let key = "expert_shared_feed_forward_length";
    let shared = match keys.number(key)? {
        Some(_) => keys.required(key, used.saturating_mul(feed_forward))?,
        None => feed_forward,
    };
    Ok(Some(ExpertConfig {
        count,
        used,
        feed_forward,
        shared,
    }))
}
