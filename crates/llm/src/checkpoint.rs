//! Configuration of a checkpoint, from its config.json, bounded.
//!
//! Elsewhere: names of its tensors and defaults of its keys (`model::checkpoint`), its layers
//! (`checkpoint_layers`), configurations of GGUF files (`config`).

use std::path::Path;

use fercuda_modelfile::ModelFile;
use fercuda_tensor::Dtype;
use serde_json::Value;

use crate::checkpoint_keys::{CheckpointKeys, DAMAGED, refused};
use crate::checkpoint_layers::{experts, recurrence, windows};
use crate::checkpoint_rotary::{RotarySizes, rotaries};
use crate::config::{Checkpoint, ExpertConfig, FURTHER, HeadSizes, MOST_LAYERS, ModelConfig};
use crate::encoder_config::EncoderConfig;
use crate::error::{LlmError, unsupported};
use crate::keys::{MOST_WIDTH, check_heads};
use crate::model::{self, AttentionBiases, CHECKPOINTS, CheckpointSpec, DecoderSpec, HeadNorms};

type Result<T> = std::result::Result<T, LlmError>;

/// Keys that are no part of any model here, of whatever architecture.
const NEVER: [&str; 2] = ["mlp_bias", "lm_head_bias"];

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
    let whole = CheckpointKeys {
        object: whole,
        spec,
    };
    let keys = match whole.part("text_config") {
        Some(part) => {
            check_part(part)?;
            part
        }
        None => whole,
    };
    let layers = keys.required("num_hidden_layers", MOST_LAYERS)?;
    let hidden = keys.required("hidden_size", MOST_WIDTH)?;
    let mut own = model::spec(spec.architecture)?;
    own.pairs = spec.pairs;
    let HeadSizes {
        heads,
        shared_heads,
        key_length,
        value_length,
    } = match own.has_attention {
        true => head_sizes(keys, hidden)?,
        false => HeadSizes::default(),
    };
    let context = context(keys, &own)?;
    check_computed(keys)?;
    let is_tied = match whole.flag("tie_word_embeddings")? {
        Some(is_tied) => Some(is_tied),
        None => keys.flag("tie_word_embeddings")?,
    };
    let (prefix, head_prefix) = prefixes_of(model, spec)?;
    let checkpoint = Checkpoint {
        spec,
        prefix,
        head_prefix,
        is_tied: is_tied.unwrap_or(spec.is_tied),
        unpacked: unpacked_type(keys, whole)?,
    };
    let experts = match spec.experts {
        Some(names) => Some(experts(keys, names)?),
        None => None,
    };
    check_llama4(keys, &own, (layers, experts))?;
    let rotaries = match own.has_attention {
        true => {
            let length = key_length;
            rotaries(keys, RotarySizes { length, context })?
        }
        false => Vec::new(),
    };
    let (scale, limits) = score_keys(keys, &own)?;
    let config = ModelConfig {
        architecture: spec.architecture.to_owned(),
        name: name_of(model),
        left_out: left_out(model, whole.object),
        layers,
        hidden,
        heads,
        shared_heads,
        key_length,
        value_length,
        feed_forward: feed_forward(model, keys, (&own, &checkpoint, layers))?,
        context,
        epsilon: keys.positive(spec.epsilon)?.unwrap_or(1e-6),
        experts,
        rotaries,
        windows: windows(keys, &own, (layers, context))?,
        recurrence: recurrence(keys, own.recurrence, (layers, hidden))?,
        scale,
        limits,
        spec: own,
        checkpoint: Some(checkpoint),
    };
    check_biases(model, keys, (&config, &checkpoint))?;
    Ok(config)
}

/// Refuses a text model of another architecture than that of the whole.
fn check_part(part: CheckpointKeys<'_>) -> Result<()> {
    if !part.object.is_object() {
        return Err(refused("text_config", part.object, "an object"));
    }
    let key = "model_type";
    let Some(own) = part.text(key)? else {
        return Ok(());
    };
    let found = CHECKPOINTS.iter().find(|it| it.model_type == own);
    match found.is_some_and(|it| it.architecture == part.spec.architecture) {
        true => Ok(()),
        false => Err(refused(
            &format!("text_config.{key}"),
            &own.into(),
            &format!("that of the text of {}", part.spec.model_type),
        )),
    }
}

/// Heads of attention, and their elements.
fn head_sizes(keys: CheckpointKeys<'_>, hidden: u64) -> Result<HeadSizes> {
    let heads = keys.required("num_attention_heads", MOST_WIDTH)?;
    let shared_heads = keys.number("num_key_value_heads", heads)?.unwrap_or(heads);
    let length = match keys.number("head_dim", MOST_WIDTH)? {
        Some(length) => length,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let what = format!("{hidden} elements are no multiple of {heads} heads");
            return Err(unsupported(what, "a config.json that has head_dim"));
        }
    };
    if !heads.is_multiple_of(shared_heads) {
        let what = format!("{heads} heads are no multiple of {shared_heads} heads of keys");
        return Err(unsupported(what, DAMAGED));
    }
    check_heads(heads, length)?;
    Ok(HeadSizes {
        heads,
        shared_heads,
        key_length: length,
        value_length: length,
    })
}

/// Positions that are computed as the model does.
fn context(keys: CheckpointKeys<'_>, own: &DecoderSpec) -> Result<u64> {
    let number = |key: &str| keys.number(key, u64::from(u32::MAX));
    let context = keys.required("max_position_embeddings", u64::from(u32::MAX))?;
    let Some(most) = own.most_context else {
        return Ok(context);
    };
    // Attention goes over chunks, and queries of layers without rotation grow from one on.
    let chunk = number("attention_chunk_size")?.unwrap_or(most);
    // It is a number in the first files.
    let grown = match keys.get("attn_temperature_tuning") {
        Some(Value::Bool(false)) => most,
        _ => number("floor_scale")?.unwrap_or(most).saturating_sub(1),
    };
    let all = context.min(most).min(chunk).min(grown);
    match all > 0 {
        true => Ok(all),
        false => Err(unsupported("config.json: floor_scale is 1", DAMAGED)),
    }
}

/// Refuses what Llama 4 may have and is not computed.
fn check_llama4(
    keys: CheckpointKeys<'_>,
    own: &DecoderSpec,
    (layers, experts): (u64, Option<ExpertConfig>),
) -> Result<()> {
    let Some(every) = own.unturned else {
        return Ok(());
    };
    if let HeadNorms::Plain { unless_experts } = own.head_norms {
        let key = "use_qk_norm";
        let has_norms = keys.flag(key)?.unwrap_or(true);
        let wanted = experts.is_none_or(|it| it.count != unless_experts);
        if has_norms != wanted {
            return Err(refused(key, &has_norms.into(), &wanted.to_string()));
        }
    }
    let key = "no_rope_layers";
    let is_turned = |layer: u64| !(layer + 1).is_multiple_of(every);
    let listed = keys.list(key)?.filter(|it| !it.is_empty());
    let is_usual = match listed {
        Some(all) => {
            let own = all.iter().map(|it| it.as_u64() == Some(1));
            all.len() as u64 >= layers && own.zip(0..layers).all(|(it, at)| it == is_turned(at))
        }
        None => keys.required("no_rope_layer_interval", MOST_LAYERS)? == every,
    };
    match is_usual {
        true => Ok(()),
        false => {
            let what = format!("config.json: {key} is not each but the last one of {every}");
            Err(unsupported(
                what,
                "a model whose layers are turned as Llama 4's",
            ))
        }
    }
}

/// Refuses keys whose values change what is computed and are not supported.
fn check_computed(keys: CheckpointKeys<'_>) -> Result<()> {
    let spec = keys.spec;
    let (key, names) = spec.activation;
    // The first files of Gemma have both keys.
    for key in [key, "hidden_activation"] {
        let Some(activation) = keys.text(key)? else {
            continue;
        };
        if !names.contains(&activation) {
            let name: String = activation.chars().take(60).collect();
            let what = format!("config.json: the activation {name:?} is not supported");
            return Err(unsupported(
                what,
                format!("a model whose {key} is {}", names[0]),
            ));
        }
    }
    let never = NEVER.map(|key| (key, false, false));
    for (key, wanted, default) in never.iter().chain(spec.flags) {
        let own = keys.flag(key)?.unwrap_or(*default);
        if own != *wanted {
            return Err(refused(key, &own.into(), &wanted.to_string()));
        }
    }
    for (key, wanted) in spec.constants {
        if let Some(own) = keys.float(key)?.filter(|it| it != wanted) {
            return Err(refused(key, &own.into(), &wanted.to_string()));
        }
    }
    Ok(())
}

/// The factor of scores, and limits of scores and of logits; 0 for that of the length of keys,
/// and for none.
fn score_keys(keys: CheckpointKeys<'_>, own: &DecoderSpec) -> Result<(f64, [f64; 2])> {
    if !keys.spec.has_score_keys {
        return Ok((0.0, own.limits));
    }
    let limit = |key: &str| keys.positive(key).map(|it| it.unwrap_or(0.0));
    let scale = keys.positive("query_pre_attn_scalar")?;
    Ok((
        scale.map_or(0.0, |it| 1.0 / it.sqrt()),
        [
            limit("attn_logit_softcapping")?,
            limit("final_logit_softcapping")?,
        ],
    ))
}

/// Elements of the gated unit of layers without experts; 0 where there are none.
fn feed_forward(
    model: &ModelFile,
    keys: CheckpointKeys<'_>,
    (own, checkpoint, layers): (&DecoderSpec, &Checkpoint, u64),
) -> Result<u64> {
    let has_router = |layer: u64| {
        let router = checkpoint.name(model, &format!("blk.{layer}.ffn_gate_inp.weight"));
        router.is_some_and(|it| model.has_weight(&it))
    };
    match keys.spec.experts {
        _ if !own.has_unit => Ok(0),
        Some(_) if (0..layers).all(has_router) => Ok(0),
        Some(names) => keys.required(names.dense, MOST_WIDTH),
        None => keys.required("intermediate_size", MOST_WIDTH),
    }
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

/// What names of tensors begin with, and that of the head: `model.`, in models for images a part
/// of that, or nothing where the model was saved without its head.
fn prefixes_of(model: &ModelFile, spec: &CheckpointSpec) -> Result<(&'static str, &'static str)> {
    let first = spec.tensors("token_embd.weight").concat();
    let prefixes = [
        ("model.", ""),
        ("model.language_model.", ""),
        // As Gemma 3 and Llama 4 are published.
        ("language_model.model.", "language_model."),
        ("backbone.", ""),
        ("", ""),
    ];
    let has = |(prefix, _): &(&str, &str)| model.tensor(&format!("{prefix}{first}")).is_ok();
    prefixes.into_iter().find(has).ok_or_else(|| {
        unsupported(
            format!("the files have no tensor model.{first}"),
            "the files of a language model, all of them",
        )
    })
}

/// The type of weights that are unpacked when they are loaded.
fn unpacked_type(keys: CheckpointKeys<'_>, whole: CheckpointKeys<'_>) -> Result<Dtype> {
    for keys in [keys, whole] {
        for key in ["torch_dtype", "dtype"] {
            match keys.text(key)? {
                Some("float16") => return Ok(Dtype::F16),
                Some("float32") => return Ok(Dtype::F32),
                Some(_) => return Ok(Dtype::Bf16),
                None => {}
            }
        }
    }
    Ok(Dtype::Bf16)
}

/// Refuses biases that no op of the decoder adds, and those of attention that the configuration
/// does not have.
fn check_biases(
    model: &ModelFile,
    keys: CheckpointKeys<'_>,
    (config, checkpoint): (&ModelConfig, &Checkpoint),
) -> Result<()> {
    let of = |layer: u64, part: &str| {
        let name = checkpoint.name(model, &format!("blk.{layer}.{part}.bias"))?;
        Some((model.tensor(&name).is_ok(), name))
    };
    let key = "attention_bias";
    let wanted = match keys.spec.biases {
        AttentionBiases::Never => Some(false),
        // The loader asks for them.
        AttentionBiases::Always => None,
        AttentionBiases::ByKey(default) => Some(keys.flag(key)?.unwrap_or(default)),
    };
    for layer in 0..config.layers {
        for part in ["ffn_gate", "ffn_up", "ffn_down"] {
            if let Some((true, name)) = of(layer, part) {
                return Err(unsupported(
                    format!("the model has {name}, a bias that is not supported"),
                    "a model without biases there",
                ));
            }
        }
        if config.is_recurrent(layer) {
            continue;
        }
        for part in ["attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output"] {
            let is_out = part == "attn_output";
            match (of(layer, part), wanted) {
                (Some((true, name)), Some(false)) => {
                    let what = format!("the model has {name}, and {key} is not true");
                    return Err(unsupported(what, DAMAGED));
                }
                (Some((false, name)), Some(true)) if !is_out => {
                    let what = format!("config.json: {key} is true, and there is no {name}");
                    return Err(unsupported(what, DAMAGED));
                }
                _ => {}
            }
        }
    }
    Ok(())
}
