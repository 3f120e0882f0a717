//! Configuration that PEFT saves with a LoRA adapter: scales, and what is refused of it.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{LlmError, unsupported};

type Result<T> = std::result::Result<T, LlmError>;

/// The largest file that is read.
const MOST_BYTES: u64 = 1 << 20;
/// Ways to begin an adapter that change the model's own weights too.
const CHANGED_WEIGHTS: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

/// What an adapter's configuration says.
#[derive(Clone, Debug)]
pub(crate) struct PeftConfig {
    rank: u64,
    alpha: f64,
    /// Whether scales are by the root of the rank.
    has_root: bool,
    /// Ranks and alphas of modules of which names end so.
    ranks: Vec<(ModulePattern, u64)>,
    alphas: Vec<(ModulePattern, f64)>,
}

/// The end of a module's name, or the whole of it.
#[derive(Clone, Debug)]
struct ModulePattern {
    text: String,
    is_whole: bool,
}

impl ModulePattern {
    /// A key of a table of patterns. PEFT takes it as a regular expression; here it is a name.
    fn new(table: &str, key: &str) -> Result<Self> {
        let text = key.strip_suffix('$').unwrap_or(key).replace("\\.", ".");
        let (text, is_whole) = match text.strip_prefix('^') {
            Some(rest) => (rest.to_owned(), true),
            None => (text, false),
        };
        let is_plain = |it: char| it.is_ascii_alphanumeric() || "_.-".contains(it);
        if text.is_empty() || !text.chars().all(is_plain) {
            let shown: String = key.chars().take(60).collect();
            return Err(unsupported(
                format!("adapter_config.json: {table} has the expression {shown:?}"),
                "names of modules there, as q_proj or layers.0.mlp.up_proj",
            ));
        }
        Ok(Self { text, is_whole })
    }

    fn is_of(&self, module: &str) -> bool {
        match module.strip_suffix(&self.text) {
            Some("") => true,
            Some(before) => !self.is_whole && before.ends_with('.'),
            None => false,
        }
    }
}

/// A member that is not absent, null, false or empty.
fn given<'a>(config: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    config.get(key).filter(|it| match it {
        Value::Null | Value::Bool(false) => false,
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => true,
    })
}

fn shown(value: &Value) -> String {
    value.to_string().chars().take(60).collect()
}

fn refuse(key: &str, value: &Value, advice: &str) -> LlmError {
    let value = shown(value);
    let what = format!("adapter_config.json: {key} is {value}, which is not supported");
    unsupported(what, advice)
}

/// Refuses what would compute something else.
fn check_kind(config: &Map<String, Value>) -> Result<()> {
    let plain = "an adapter that was trained with LoRA's defaults";
    match config.get("peft_type") {
        Some(Value::String(kind)) if kind.eq_ignore_ascii_case("lora") => {}
        other => {
            let value = other.unwrap_or(&Value::Null);
            return Err(refuse("peft_type", value, "an adapter of the type LORA"));
        }
    }
    for key in [
        "use_dora",
        "lora_bias",
        "fan_in_fan_out",
        "target_parameters",
        "trainable_token_indices",
        "layer_replication",
        "alora_invocation_tokens",
        "use_qalora",
        "arrow_config",
    ] {
        if let Some(value) = given(config, key) {
            return Err(refuse(key, value, plain));
        }
    }
    if let Some(value) = given(config, "modules_to_save") {
        let advice = "an adapter without whole modules, or the model with it merged: \
                      merge_and_unload of PEFT";
        return Err(refuse("modules_to_save", value, advice));
    }
    if let Some(value) = given(config, "bias").filter(|it| it.as_str() != Some("none")) {
        return Err(refuse("bias", value, "an adapter with the bias \"none\""));
    }
    let begun = given(config, "init_lora_weights").and_then(Value::as_str);
    let is_changed = |it: &&str| {
        let own = it.to_ascii_lowercase();
        CHANGED_WEIGHTS.iter().any(|kind| own.starts_with(kind))
    };
    if let Some(begun) = begun.filter(is_changed) {
        let advice = "save_pretrained of PEFT with path_initial_model_for_weight_conversion, \
                      which makes an adapter of the unchanged model";
        return Err(refuse("init_lora_weights", &begun.into(), advice));
    }
    Ok(())
}

/// A table of values by modules, in the file's order.
fn patterns<T>(
    config: &Map<String, Value>,
    table: &str,
    value: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<(ModulePattern, T)>> {
    let rows = match config.get(table) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(rows)) => rows,
        Some(other) => return Err(refuse(table, other, "a table of modules")),
    };
    let row = |(key, own): (&String, &Value)| {
        let value = value(own).ok_or_else(|| refuse(table, own, "numbers there"))?;
        Ok((ModulePattern::new(table, key)?, value))
    };
    rows.iter().map(row).collect()
}

fn rank(value: &Value) -> Option<u64> {
    value.as_u64().filter(|it| *it > 0)
}

fn alpha(value: &Value) -> Option<f64> {
    value.as_f64().filter(|it| it.is_finite())
}

fn of_module<T: Copy>(table: &[(ModulePattern, T)], module: &str, other: T) -> T {
    let found = table.iter().find(|(pattern, _)| pattern.is_of(module));
    found.map_or(other, |(_, value)| *value)
}

impl PeftConfig {
    /// Reads an adapter_config.json.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let about = |action| {
            move |source| {
                LlmError::File(fercuda_modelfile::Error::Io {
                    action,
                    path: path.to_owned(),
                    source,
                })
            }
        };
        let mut text = Vec::new();
        let file = File::open(path).map_err(about("open"))?;
        let read = file.take(MOST_BYTES + 1).read_to_end(&mut text);
        read.map_err(about("read"))?;
        if text.len() as u64 > MOST_BYTES {
            let what = format!("{} has more than {MOST_BYTES} bytes", path.display());
            return Err(unsupported(what, "the file that PEFT has saved"));
        }
        Self::parse(&text)
    }

    fn parse(text: &[u8]) -> Result<Self> {
        let parsed: std::result::Result<Map<String, Value>, _> = serde_json::from_slice(text);
        let config = parsed.map_err(|error| {
            let what = format!("adapter_config.json: {error}");
            unsupported(what, "the file that PEFT has saved")
        })?;
        check_kind(&config)?;
        let number = |key: &str| config.get(key).unwrap_or(&Value::Null);
        let (r, lora_alpha) = (number("r"), number("lora_alpha"));
        let whole = "a whole number above 0";
        Ok(Self {
            rank: rank(r).ok_or_else(|| refuse("r", r, whole))?,
            alpha: alpha(lora_alpha).ok_or_else(|| refuse("lora_alpha", lora_alpha, "a number"))?,
            has_root: given(&config, "use_rslora").is_some(),
            ranks: patterns(&config, "rank_pattern", rank)?,
            alphas: patterns(&config, "alpha_pattern", alpha)?,
        })
    }

    /// By what the product of a module's factors is multiplied, if they have the rank that is said
    /// of it.
    pub(crate) fn scale(&self, module: &str, rank: u64) -> Result<f64> {
        let said = of_module(&self.ranks, module, self.rank);
        if said != rank {
            let what =
                format!("{module} has factors of rank {rank}, adapter_config.json says {said}");
            return Err(unsupported(what, "the configuration of this adapter"));
        }
        let alpha = of_module(&self.alphas, module, self.alpha);
        Ok(match self.has_root {
            true => alpha / (rank as f64).sqrt(),
            false => alpha / rank as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(more: Value) -> Result<PeftConfig> {
        let mut all = json!({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none"});
        if let (Value::Object(all), Value::Object(more)) = (&mut all, more) {
            all.extend(more);
        }
        PeftConfig::parse(all.to_string().as_bytes())
    }

    #[test]
    fn scales_follow_the_patterns_of_modules() {
        let config = parsed(json!({
            "rank_pattern": {"q_proj": 4, "^model.layers.1.mlp.up_proj": 2},
            "alpha_pattern": {r"layers\.0\.self_attn\.q_proj": 2.0},
        }));
        let config = config.unwrap();
        let scale = |module: &str, rank| config.scale(module, rank).unwrap();
        assert_eq!(scale("model.layers.0.self_attn.q_proj", 4), 0.5);
        assert_eq!(scale("model.layers.1.self_attn.q_proj", 4), 4.0);
        assert_eq!(scale("model.layers.1.mlp.up_proj", 2), 8.0);
        assert_eq!(scale("model.layers.0.mlp.up_proj", 8), 2.0);
        assert!(config.scale("model.layers.0.mlp.up_proj", 4).is_err());
        assert_eq!(scale("model.layers.0.self_attn.not_q_proj", 8), 2.0);
        let config = parsed(json!({"use_rslora": true, "r": 4, "lora_alpha": 3})).unwrap();
        assert_eq!(config.scale("x", 4).unwrap(), 1.5);
    }

    #[test]
    fn other_kinds_are_refused_by_their_key() {
        for (key, value) in [
            ("peft_type", json!("LOHA")),
            ("use_dora", json!(true)),
            ("bias", json!("all")),
            ("lora_bias", json!(true)),
            ("modules_to_save", json!(["lm_head"])),
            ("fan_in_fan_out", json!(true)),
            ("target_parameters", json!(["experts.gate_up_proj"])),
            ("trainable_token_indices", json!([1])),
            ("init_lora_weights", json!("pissa_niter_4")),
            ("r", json!(0)),
            ("r", json!(-1)),
            ("lora_alpha", json!("16")),
            ("alpha_pattern", json!({".*q_proj": 2})),
            ("rank_pattern", json!({"q_proj": "4"})),
            ("rank_pattern", json!([4])),
        ] {
            let error = parsed(json!({key: value})).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
            assert!(error.contains("\ntry: "), "{error}");
        }
        for same in [
            json!({"use_dora": false, "modules_to_save": null, "init_lora_weights": true}),
            json!({"init_lora_weights": "gaussian", "layer_replication": null}),
        ] {
            parsed(same).unwrap();
        }
        assert!(PeftConfig::parse(b"[1]").is_err());
        assert!(PeftConfig::parse(b"{").is_err());
    }
}
