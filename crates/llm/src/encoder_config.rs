//! Configuration of an encoder, from a GGUF file's metadata or a checkpoint's config.json, bounded.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use fercuda_modelfile::{Gguf, ModelFile};
use serde_json::Value;

use crate::config::MOST_LAYERS;
use crate::error::{LlmError, unsupported};
use crate::keys::{ArchitectureKeys, MOST_WIDTH, check_heads};

type Result<T> = std::result::Result<T, LlmError>;

/// Architecture of encoders, by its name in GGUF files and in checkpoints.
const ARCHITECTURE: &str = "bert";
/// Most positions of a text.
const MOST_CONTEXT: u64 = 1 << 20;
/// Most bytes of the file that names a checkpoint's pooling.
const POOLING_BYTES: u64 = 1 << 20;
const DAMAGED: &str = "the model's own config.json";

/// How a text's vector is made of its tokens'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingPooling {
    /// Their mean.
    Mean,
    /// The first one's.
    First,
    /// The last one's.
    Last,
}

/// Configuration of an encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderConfig {
    /// Name of the model, if the files have one.
    pub name: String,
    /// Number of layers.
    pub layers: u64,
    /// Elements of a token's vector, and of a text's.
    pub hidden: u64,
    /// Heads of attention.
    pub heads: u64,
    /// Elements of the unit.
    pub feed_forward: u64,
    /// Positions that a text may have.
    pub context: u64,
    /// Constant of the norms.
    pub epsilon: f64,
    /// How a text's vector is made.
    pub pooling: EmbeddingPooling,
    /// The op of the unit.
    pub(crate) activation: &'static str,
    /// What names of a checkpoint's tensors begin with; `None` of a GGUF file.
    pub(crate) prefix: Option<&'static str>,
}

/// Parts of layers: names in GGUF files, and in checkpoints.
const PARTS: [(&str, &str); 12] = [
    ("token_embd", "embeddings.word_embeddings"),
    ("position_embd", "embeddings.position_embeddings"),
    ("token_types", "embeddings.token_type_embeddings"),
    ("token_embd_norm", "embeddings.LayerNorm"),
    ("attn_q", "attention.self.query"),
    ("attn_k", "attention.self.key"),
    ("attn_v", "attention.self.value"),
    ("attn_output", "attention.output.dense"),
    ("attn_output_norm", "attention.output.LayerNorm"),
    ("ffn_up", "intermediate.dense"),
    ("ffn_down", "output.dense"),
    ("layer_output_norm", "output.LayerNorm"),
];

impl EncoderConfig {
    /// Whether a model makes vectors of texts, and not texts.
    pub fn is_encoder(model: &ModelFile) -> bool {
        match (model.gguf(), model.config()) {
            (Some(file), _) => {
                let name = file.get("general.architecture");
                name.and_then(|it| it.as_str()) == Some(ARCHITECTURE)
            }
            (None, Some(config)) => config.get("model_type") == Some(&Value::from(ARCHITECTURE)),
            (None, None) => false,
        }
    }

    /// Reads the configuration of a model.
    ///
    /// # Errors
    /// [`LlmError::Model`] of what is no encoder, and of numbers that are absent or no model's.
    pub fn of(model: &ModelFile) -> Result<Self> {
        match (model.gguf(), model.config()) {
            _ if !Self::is_encoder(model) => Err(unsupported(
                "the model is no encoder: it generates texts, and makes no embeddings",
                "a model of the architecture bert, as all-MiniLM-L6-v2 or bge-small-en-v1.5",
            )),
            (Some(file), _) => of_gguf(file),
            (None, Some(config)) => of_checkpoint(model, config),
            (None, None) => Err(unsupported("no configuration", DAMAGED)),
        }
    }

    /// The name of a tensor in the files: of a part, of a layer or of the whole.
    pub(crate) fn tensor(&self, layer: Option<u64>, part: &str, kind: &str) -> String {
        let there = PARTS.iter().find(|it| it.0 == part).map_or(part, |it| it.1);
        match (self.prefix, layer) {
            (None, None) => format!("{part}.{kind}"),
            (None, Some(layer)) => format!("blk.{layer}.{part}.{kind}"),
            (Some(prefix), None) => format!("{prefix}{there}.{kind}"),
            (Some(prefix), Some(layer)) => format!("{prefix}encoder.layer.{layer}.{there}.{kind}"),
        }
    }

    fn check(self) -> Result<Self> {
        if !self.hidden.is_multiple_of(self.heads) {
            let what = format!(
                "{} elements are no multiple of {} heads",
                self.hidden, self.heads
            );
            return Err(unsupported(what, "another file: this one is damaged"));
        }
        check_heads(self.heads, self.hidden / self.heads)?;
        if !(self.epsilon > 0.0 && self.epsilon < 1.0) {
            let what = format!("norms with a constant of {}", self.epsilon);
            return Err(unsupported(what, "another file: this one is damaged"));
        }
        Ok(self)
    }
}

fn of_gguf<B: AsRef<[u8]>>(file: &Gguf<B>) -> Result<EncoderConfig> {
    let keys = ArchitectureKeys {
        file,
        architecture: ARCHITECTURE,
    };
    let pooling = match keys.number("pooling_type")? {
        // Files without one are of models whose tokens' vectors are wanted.
        None | Some(0 | 1) => EmbeddingPooling::Mean,
        Some(2) => EmbeddingPooling::First,
        Some(3) => EmbeddingPooling::Last,
        Some(other) => {
            let what = format!("{ARCHITECTURE}.pooling_type is {other}, which is not supported");
            return Err(unsupported(
                what,
                "a model with pooling of 1 (mean), 2 (CLS) or 3 (last)",
            ));
        }
    };
    let name = file
        .get("general.name")
        .and_then(|it| Some(it.as_str()?.to_owned()));
    EncoderConfig {
        name: name.unwrap_or_default(),
        layers: keys.required("block_count", MOST_LAYERS)?,
        hidden: keys.required("embedding_length", MOST_WIDTH)?,
        heads: keys.required("attention.head_count", MOST_WIDTH)?,
        feed_forward: keys.required("feed_forward_length", MOST_WIDTH)?,
        context: keys.required("context_length", MOST_CONTEXT)?,
        epsilon: keys.float("attention.layer_norm_epsilon").unwrap_or(1e-12),
        pooling,
        activation: "gelu",
        prefix: None,
    }
    .check()
}

/// A whole number of a config.json.
fn whole(config: &Value, key: &str, most: u64) -> Result<u64> {
    let value = config.get(key);
    let number = value
        .and_then(Value::as_u64)
        .filter(|it| (1..=most).contains(it));
    number.ok_or_else(|| {
        let shown = value.map_or_else(|| "absent".to_owned(), |it| format!("{it:.40}"));
        unsupported(
            format!("config.json: {key} is {shown}, not 1 to {most}"),
            DAMAGED,
        )
    })
}

fn of_checkpoint(model: &ModelFile, config: &Value) -> Result<EncoderConfig> {
    let text = |key: &str, default| config.get(key).and_then(Value::as_str).unwrap_or(default);
    let activation = match text("hidden_act", "gelu") {
        "gelu" => "gelu",
        "gelu_new" | "gelu_pytorch_tanh" => "gelu_tanh",
        "relu" => "relu",
        other => {
            let name: String = other.chars().take(60).collect();
            let what = format!("config.json: the activation {name:?} is not supported");
            return Err(unsupported(what, "a model with gelu, gelu_new or relu"));
        }
    };
    let positions = text("position_embedding_type", "absolute");
    if positions != "absolute" {
        let name: String = positions.chars().take(60).collect();
        let what = format!("config.json: positions of the type {name:?} are not supported");
        return Err(unsupported(what, "a model with absolute ones"));
    }
    let folder = model.parts().first().and_then(|it| it.path().parent());
    let name = folder.and_then(Path::file_name);
    let has = |prefix: &&str| {
        let name = format!("{prefix}embeddings.word_embeddings.weight");
        model.tensor(&name).is_ok()
    };
    let Some(prefix) = ["", "bert."].into_iter().find(has) else {
        return Err(unsupported(
            "the files have no tensor embeddings.word_embeddings.weight",
            "the files of a model of the architecture bert, all of them",
        ));
    };
    EncoderConfig {
        name: name.map_or_else(String::new, |it| it.to_string_lossy().into_owned()),
        layers: whole(config, "num_hidden_layers", MOST_LAYERS)?,
        hidden: whole(config, "hidden_size", MOST_WIDTH)?,
        heads: whole(config, "num_attention_heads", MOST_WIDTH)?,
        feed_forward: whole(config, "intermediate_size", MOST_WIDTH)?,
        context: whole(config, "max_position_embeddings", MOST_CONTEXT)?,
        epsilon: config
            .get("layer_norm_eps")
            .and_then(Value::as_f64)
            .unwrap_or(1e-12),
        pooling: pooling_of(folder)?,
        activation,
        prefix: Some(prefix),
    }
    .check()
}

/// The pooling that a folder of sentence-transformers names; the mean, where there is none.
fn pooling_of(folder: Option<&Path>) -> Result<EmbeddingPooling> {
    let Some(path) = folder.map(|it| it.join("1_Pooling").join("config.json")) else {
        return Ok(EmbeddingPooling::Mean);
    };
    if !path.is_file() {
        return Ok(EmbeddingPooling::Mean);
    }
    let mut text = String::new();
    File::open(&path)?
        .take(POOLING_BYTES)
        .read_to_string(&mut text)?;
    let config: Value = serde_json::from_str(&text).map_err(|error| {
        let what = format!("{} is no JSON: {error}", path.display());
        unsupported(what, "the model's own file of this name")
    })?;
    let is_set = |key: &str| config.get(key).and_then(Value::as_bool) == Some(true);
    let known = [
        ("pooling_mode_mean_tokens", EmbeddingPooling::Mean),
        ("pooling_mode_cls_token", EmbeddingPooling::First),
        ("pooling_mode_lasttoken", EmbeddingPooling::Last),
    ];
    let others = ["max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens"];
    let is_other = others
        .iter()
        .any(|it| is_set(&format!("pooling_mode_{it}")));
    let mut set = known.into_iter().filter(|it| is_set(it.0)).map(|it| it.1);
    match (set.next(), set.next(), is_other) {
        (Some(pooling), None, false) => Ok(pooling),
        _ => Err(unsupported(
            format!("{}: its pooling is not supported", path.display()),
            "a model whose vectors are the mean, the first or the last of its tokens'",
        )),
    }
}
