//! Configuration of a checkpoint, from its config.json, bounded.
//!
//! Elsewhere: names of its tensors (`model::checkpoint`), configurations of GGUF files (`config`).

use std::path::Path;

use fercuda_modelfile::ModelFile;
use fercuda_tensor::Dtype;
use serde_json::Value;

use crate::config::{Checkpoint, FURTHER, MOST_LAYERS, ModelConfig};
use crate::encoder_config::EncoderConfig;
use crate::error::{LlmError, unsupported};
use crate::keys::{MOST_WIDTH, check_heads};
use crate::model::{self, CHECKPOINTS, CheckpointSpec, RecurrenceRule};
use crate::recurrence_config::RecurrenceConfig;
use crate::rotary::{RotaryConfig, RotaryDivisors, RotaryScaling};

type Result<T> = std::result::Result<T, LlmError>;

const DAMAGED: &str = "the model's own config.json";

/// Objects of a config.json, and what absent keys stand for.
#[derive(Clone, Copy)]
struct CheckpointKeys<'a> {
    object: &'a Value,
    spec: &'static CheckpointSpec,
}

impl<'a> CheckpointKeys<'a> {
    /// A value that is there and not null.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|it| !it.is_null())
    }

    /// A number; the default's where the key is absent. What is `null` has none.
    fn float(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.object.get(key) else {
            return Ok(self.spec.default_of(key));
        };
        if value.is_null() {
            return Ok(None);
        }
        let number = value.as_f64().filter(|it| it.is_finite());
        number.map(Some).ok_or_else(|| {
            let what = format!("config.json: {key} is {}, no number", shown(value));
            unsupported(what, DAMAGED)
        })
    }

    fn number(&self, key: &str, most: u64) -> Result<Option<u64>> {
        let Some(number) = self.float(key)? else {
            return Ok(None);
        };
        // Whole numbers of that size are f64s.
        let is_one = number.fract() == 0.0 && number >= 1.0 && number <= most as f64;
        match is_one {
            true => Ok(Some(number as u64)),
            false => {
                let what = format!("config.json: {key} is {number}, not 1 to {most}");
                Err(unsupported(what, DAMAGED))
            }
        }
    }

    fn required(&self, key: &str, most: u64) -> Result<u64> {
        self.number(key, most)?
            .ok_or_else(|| unsupported(format!("config.json does not have {key}"), DAMAGED))
    }

    fn has(&self, key: &str) -> bool {
        self.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        self.get(key).and_then(Value::as_str)
    }
}

/// A value in an error: a file may have a whole list there.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

impl ModelConfig {
    /// Reads the configuration of a model: of a GGUF file its metadata, of safetensors files the
    /// config.json beside them.
    ///
    /// # Errors
    /// [`LlmError::Model`] of files without a configuration, of an architecture that is not
    /// supported, and of numbers that are absent or no model's.
    pub fn of(model: &ModelFile) -> Result<Self> {
        if EncoderConfig::is_encoder(model) {
            return Err(unsupported(
                "the model is an encoder: it makes embeddings, and generates no text",
                "fercuda embed, or a model that generates text",
            ));
        }
        match (model.gguf(), model.config()) {
            (Some(file), _) => Self::of_gguf(model, file),
            (None, Some(config)) => of_checkpoint(model, config),
            (None, None) => Err(unsupported(
                "there is no config.json beside the safetensors files",
                "the folder of the model, with all its files",
            )),
        }
    }
}

/// The row of a configuration's architecture.
fn spec_of(config: &Value) -> Result<&'static CheckpointSpec> {
    let known = || {
        let names: Vec<&str> = CHECKPOINTS.iter().map(|it| it.model_type).collect();
        format!("a model of one of: {}", names.join(", "))
    };
    let Some(own) = config.get("model_type").and_then(Value::as_str) else {
        return Err(unsupported("config.json does not have model_type", known()));
    };
    let found = CHECKPOINTS.iter().find(|it| it.model_type == own);
    found.ok_or_else(|| {
        let name: String = own.chars().take(60).collect();
        unsupported(
            format!("config.json: models of the type {name:?} are not supported"),
            known(),
        )
    })
}

fn of_checkpoint(model: &ModelFile, whole: &Value) -> Result<ModelConfig> {
    let spec = spec_of(whole)?;
    // Models for images have the configuration of their text in a part of their own.
    let config = whole.get("text_config").unwrap_or(whole);
    let is_tied = |config: &Value| config.get("tie_word_embeddings").and_then(Value::as_bool);
    let keys = CheckpointKeys {
        object: config,
        spec,
    };
    let layers = keys.required("num_hidden_layers", MOST_LAYERS)?;
    let hidden = keys.required("hidden_size", MOST_WIDTH)?;
    let heads = keys.required("num_attention_heads", MOST_WIDTH)?;
    let shared_heads = keys.number("num_key_value_heads", heads)?.unwrap_or(heads);
    let length = match keys.number("head_dim", MOST_WIDTH)? {
        Some(length) => length,
        None if hidden % heads == 0 => hidden / heads,
        None => {
            let what = format!("{hidden} elements are no multiple of {heads} heads");
            return Err(unsupported(what, "a config.json that has head_dim"));
        }
    };
    if heads % shared_heads != 0 {
        let what = format!("{heads} heads are no multiple of {shared_heads} heads of keys");
        return Err(unsupported(what, DAMAGED));
    }
    check_heads(heads, length)?;
    let context = keys.required("max_position_embeddings", u64::from(u32::MAX))?;
    let epsilon = keys.float("rms_norm_eps")?.unwrap_or(1e-6);
    let activation = keys.text("hidden_act").unwrap_or("silu");
    if !matches!(activation, "silu" | "swish") {
        let what = format!("config.json: the activation {activation:?} is not supported");
        return Err(unsupported(what, "a model with silu"));
    }
    let mut own = model::spec(spec.architecture)?;
    // Rows of queries and keys are not permuted in checkpoints, whatever a file of llama.cpp has.
    own.pairs = "halves";
    let checkpoint = Checkpoint {
        spec,
        prefix: prefix_of(model, spec)?,
        is_tied: is_tied(whole).or(is_tied(config)).unwrap_or(false),
        unpacked: unpacked_type(&keys),
    };
    check_biases(model, &checkpoint)?;
    Ok(ModelConfig {
        architecture: spec.architecture.to_owned(),
        name: name_of(model),
        left_out: left_out(model, whole),
        layers,
        hidden,
        heads,
        shared_heads,
        key_length: length,
        value_length: length,
        feed_forward: keys.required("intermediate_size", MOST_WIDTH)?,
        context,
        epsilon,
        experts: None,
        rotaries: vec![rotary(&keys, length, context)?],
        windows: windows(&keys, layers, context)?,
        recurrence: recurrence(&keys, own.recurrence, layers)?,
        scale: 0.0,
        limits: own.limits,
        spec: own,
        checkpoint: Some(checkpoint),
    })
}

/// Parts of the model that are not computed.
fn left_out(model: &ModelFile, config: &Value) -> Vec<&'static str> {
    let has = |begin: &str| model.tensors().any(|it| it.name.starts_with(begin));
    let parts = [
        (
            "parts for images and videos",
            config.get("vision_config").is_some(),
        ),
        (FURTHER, has("mtp.")),
    ];
    let there = parts.iter().filter(|(_, is_there)| *is_there);
    there.map(|(name, _)| *name).collect()
}

/// The folder's name.
fn name_of(model: &ModelFile) -> String {
    let folder = model.parts().first().and_then(|it| it.path().parent());
    let name = folder.and_then(Path::file_name);
    name.map_or_else(String::new, |it| it.to_string_lossy().into_owned())
}

/// Layers whose state goes from token to token.
fn recurrence(
    keys: &CheckpointKeys<'_>,
    rule: Option<RecurrenceRule>,
    layers: u64,
) -> Result<Option<RecurrenceConfig>> {
    let Some(rule @ RecurrenceRule::Delta { period }) = rule else {
        return Ok(None);
    };
    let number = |key: &str| keys.required(key, MOST_WIDTH);
    let heads = number("linear_num_value_heads")?;
    let types = keys.get("layer_types").and_then(Value::as_array);
    let of_layers = match types {
        Some(types) => types
            .iter()
            .map(|it| it.as_str() == Some("linear_attention"))
            .collect(),
        None => {
            let key = "full_attention_interval";
            let period = keys.number(key, u64::from(u32::MAX))?.unwrap_or(period);
            (0..layers)
                .map(|at| !(at + 1).is_multiple_of(period))
                .collect::<Vec<bool>>()
        }
    };
    if of_layers.len() as u64 != layers {
        let count = of_layers.len();
        let what = format!("config.json: layer_types has {count} of {layers} layers");
        return Err(unsupported(what, DAMAGED));
    }
    let config = RecurrenceConfig {
        rule,
        taps: number("linear_conv_kernel_dim")?,
        heads,
        keys: number("linear_num_key_heads")?,
        key_length: number("linear_key_head_dim")?,
        value_length: number("linear_value_head_dim")?,
        is_tiled: false,
        norm_groups: heads,
        layers: of_layers,
    };
    config.checked().map(Some)
}

/// What names of tensors begin with: `model.`, in models for images a part of that, or nothing
/// where the model was saved without its head.
fn prefix_of(model: &ModelFile, spec: &CheckpointSpec) -> Result<&'static str> {
    let first = spec.tensor("token_embd.weight").unwrap_or_default();
    let has = |prefix: &&str| model.tensor(&format!("{prefix}{first}")).is_ok();
    let prefixes = ["model.", "model.language_model.", ""];
    let found = prefixes.into_iter().find(has);
    found.ok_or_else(|| {
        unsupported(
            format!("the files have no tensor model.{first}"),
            "the files of a language model, all of them",
        )
    })
}

/// The type of weights that are unpacked when they are loaded.
fn unpacked_type(keys: &CheckpointKeys<'_>) -> Dtype {
    match keys.text("torch_dtype").or_else(|| keys.text("dtype")) {
        Some("float16") => Dtype::F16,
        Some("float32") => Dtype::F32,
        _ => Dtype::Bf16,
    }
}

/// Refuses biases that no op of the decoder adds.
fn check_biases(model: &ModelFile, checkpoint: &Checkpoint) -> Result<()> {
    for part in ["ffn_gate", "ffn_up", "ffn_down"] {
        let name = checkpoint.name(&format!("blk.0.{part}.bias"));
        if let Some(name) = name.filter(|it| model.tensor(it).is_ok()) {
            return Err(unsupported(
                format!("the model has {name}, a bias that is not supported"),
                "a model without biases there",
            ));
        }
    }
    Ok(())
}

/// Last positions that tokens of each layer attend to; 0 for all.
fn windows(keys: &CheckpointKeys<'_>, layers: u64, context: u64) -> Result<Vec<u64>> {
    let none = vec![0; layers as usize];
    let is_switched = keys.spec.default_of("max_window_layers").is_some();
    if is_switched && !keys.has("use_sliding_window") {
        return Ok(none);
    }
    let Some(window) = keys.number("sliding_window", u64::from(u32::MAX))? else {
        return Ok(none);
    };
    if window >= context {
        return Ok(none);
    }
    let types = keys.get("layer_types").and_then(Value::as_array);
    if let Some(types) = types.filter(|it| (it.len() as u64) < layers) {
        let what = format!(
            "config.json: layer_types has {} of {layers} layers",
            types.len()
        );
        return Err(unsupported(what, DAMAGED));
    }
    // The first layer with a window, where they are not listed.
    let first = match is_switched {
        true => keys.float("max_window_layers")?.unwrap_or(0.0).max(0.0) as u64,
        false => 0,
    };
    let has_window = |layer: u64| match types {
        Some(types) => types[layer as usize].as_str() == Some("sliding_attention"),
        None => layer >= first,
    };
    let of_layer = |layer| if has_window(layer) { window } else { 0 };
    Ok((0..layers).map(of_layer).collect())
}

fn rotary(keys: &CheckpointKeys<'_>, length: u64, context: u64) -> Result<RotaryConfig> {
    let empty = &Value::Null;
    let scaling = keys.get("rope_parameters").or(keys.get("rope_scaling"));
    let scaling = CheckpointKeys {
        object: scaling.unwrap_or(empty),
        spec: keys.spec,
    };
    let base = match scaling.get("rope_theta") {
        Some(_) => scaling.float("rope_theta")?,
        None => keys.float("rope_theta")?,
    };
    let part = match scaling.get("partial_rotary_factor") {
        Some(_) => scaling.float("partial_rotary_factor")?,
        None => keys.float("partial_rotary_factor")?,
    };
    let turned = (length as f64 * part.unwrap_or(1.0)) as u64;
    let base = base.unwrap_or(1e4);
    if !(2..=length).contains(&turned) || !turned.is_multiple_of(2) || base <= 0.0 {
        let what = format!("{turned} turned elements of heads of {length}, the base {base}");
        return Err(unsupported(what, DAMAGED));
    }
    let kind = scaling.text("rope_type").or(scaling.text("type"));
    // The scaling, the factor of sines and cosines, and divisors of frequencies.
    let (scaling, magnitude, divisors) = match kind.unwrap_or("default") {
        // Dynamic scaling begins beyond the context.
        "default" | "dynamic" => (RotaryScaling::None, 1.0, Vec::new()),
        "linear" => (RotaryScaling::Linear(factor(&scaling)?), 1.0, Vec::new()),
        "yarn" => {
            let (yarn, magnitude) = yarn(&scaling, context)?;
            (yarn, magnitude, Vec::new())
        }
        "llama3" => {
            let divisors = llama3_divisors(&scaling, turned, base, context)?;
            (RotaryScaling::None, 1.0, divisors)
        }
        other => {
            let name: String = other.chars().take(60).collect();
            return Err(unsupported(
                format!("config.json: positions are scaled by {name:?}"),
                "a model with default, linear, dynamic, llama3 or yarn",
            ));
        }
    };
    Ok(RotaryConfig {
        turned,
        base,
        scaling,
        magnitude,
        divisors: RotaryDivisors {
            short: divisors.clone(),
            long: divisors,
            original: 0,
        },
    })
}

/// A number above 0.
fn positive(keys: &CheckpointKeys<'_>, key: &str, default: Option<f64>) -> Result<f64> {
    match keys.float(key)?.or(default) {
        Some(number) if number > 0.0 => Ok(number),
        Some(number) => {
            let what = format!("config.json: {key} is {number}, not above 0");
            Err(unsupported(what, DAMAGED))
        }
        None => Err(unsupported(
            format!("config.json: scaled positions without {key}"),
            DAMAGED,
        )),
    }
}

fn factor(keys: &CheckpointKeys<'_>) -> Result<f64> {
    positive(keys, "factor", None)
}

/// YaRN, and what the factor that follows from its own is multiplied by.
fn yarn(keys: &CheckpointKeys<'_>, context: u64) -> Result<(RotaryScaling, f64)> {
    let factor = factor(keys)?;
    let scaled = |by: f64| match factor <= 1.0 {
        true => 1.0,
        false => 0.1 * by * factor.ln() + 1.0,
    };
    let attention = match (
        keys.float("attention_factor")?,
        keys.float("mscale")?,
        keys.float("mscale_all_dim")?,
    ) {
        (Some(own), _, _) => own,
        (None, Some(own), Some(all)) => scaled(own) / scaled(all),
        (None, _, _) => scaled(1.0),
    };
    let original = "original_max_position_embeddings";
    let scaling = RotaryScaling::Yarn {
        factor,
        original: positive(keys, original, Some(context as f64))?,
        turns: [
            positive(keys, "beta_fast", Some(32.0))?,
            positive(keys, "beta_slow", Some(1.0))?,
        ],
        is_whole: keys.get("truncate").and_then(Value::as_bool) != Some(false),
    };
    // What `RotaryConfig::frequencies` multiplies by.
    Ok((scaling, attention / (1.0 + 0.1 * factor.ln())))
}

/// Divisors of frequencies in Llama 3.1 and later: slow pairs are divided by the factor, fast ones
/// kept, those between are between.
fn llama3_divisors(
    keys: &CheckpointKeys<'_>,
    turned: u64,
    base: f64,
    context: u64,
) -> Result<Vec<f32>> {
    let factor = factor(keys)?;
    let original = positive(
        keys,
        "original_max_position_embeddings",
        Some(context as f64),
    )?;
    let low = positive(keys, "low_freq_factor", Some(1.0))?;
    let high = positive(keys, "high_freq_factor", Some(4.0))?;
    if high <= low {
        let what = format!("config.json: high_freq_factor {high}, low_freq_factor {low}");
        return Err(unsupported(what, DAMAGED));
    }
    let divisor = |pair: u64| {
        let frequency = base.powf(-2.0 * pair as f64 / turned as f64);
        // Turns of the pair within the original context.
        let turns = original * frequency / std::f64::consts::TAU;
        let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        1.0 / (kept + (1.0 - kept) / factor)
    };
    Ok((0..turned / 2).map(|pair| divisor(pair) as f32).collect())
}
