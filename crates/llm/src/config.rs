//! Configuration of a model, from a GGUF file's metadata, bounded.
//!
//! Elsewhere: that of checkpoints (`checkpoint`), what architectures have of their own (`model`),
//! the tensors (`tensors`, `weights`).

use fercuda_modelfile::{Gguf, GgufValue, ModelFile};
use fercuda_tensor::Dtype;

use crate::error::{LlmError, unsupported};
use crate::model::{self, CheckpointSpec, DecoderSpec};

/// Most layers that are read: more than any model has.
pub(crate) const MOST_LAYERS: u64 = 4096;
/// Most elements of a vector of a model.
pub(crate) const MOST_WIDTH: u64 = 1 << 24;

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
    /// Elements of the gated unit.
    pub feed_forward: u64,
    /// Positions that the model was made for.
    pub context: u64,
    /// Constant of the norms.
    pub epsilon: f64,
    /// Rotation by positions.
    pub(crate) rotary: RotaryConfig,
    /// Last positions that a token attends to; 0 for all.
    pub(crate) window: u64,
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
    /// Whether one matrix is for tokens and for logits.
    pub(crate) is_tied: bool,
    /// Type in which weights of several tensors lie in device memory.
    pub(crate) unpacked: Dtype,
}

impl Checkpoint {
    /// The checkpoint's name of a tensor that GGUF files call `name`.
    pub(crate) fn name(&self, name: &str) -> Option<String> {
        let there = self.spec.tensor(name)?;
        let prefix = if name.starts_with("output.") {
            ""
        } else {
            self.prefix
        };
        Some(format!("{prefix}{there}"))
    }
}

/// How angles follow from positions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RotaryConfig {
    /// Elements of a head that are turned.
    pub(crate) turned: u64,
    pub(crate) base: f64,
    pub(crate) scaling: RotaryScaling,
    /// Divisors of the frequencies, from a tensor of the file.
    pub(crate) divisors: Vec<f32>,
}

/// How frequencies are changed for longer contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RotaryScaling {
    None,
    /// All divided by the factor.
    Linear(f64),
    /// Low ones divided by the factor, high ones kept ("YaRN: Efficient Context Window Extension",
    /// Peng and others, 2023).
    Yarn {
        factor: f64,
        /// Context before it was made longer.
        original: f64,
        magnitude: f64,
    },
}

impl RotaryConfig {
    /// Frequency of each pair, and the factor of sines and cosines.
    pub(crate) fn frequencies(&self) -> (Vec<f32>, f64) {
        let pairs = self.turned / 2;
        let own = |pair: u64| self.base.powf(-2.0 * pair as f64 / self.turned as f64);
        let scaled = |pair: u64| match self.scaling {
            RotaryScaling::None => own(pair),
            RotaryScaling::Linear(factor) => own(pair) / factor,
            RotaryScaling::Yarn {
                factor, original, ..
            } => {
                // The pair that turns so many times within the original context.
                let of_turns = |turns: f64| {
                    let length = self.turned as f64;
                    length * (original / (turns * std::f64::consts::TAU)).ln()
                        / (2.0 * self.base.ln())
                };
                let low = of_turns(32.0).floor().max(0.0);
                let high = of_turns(1.0).ceil().min(self.turned as f64 - 1.0);
                let ramp = (pair as f64 - low) / (high - low).max(0.001);
                let kept = 1.0 - ramp.clamp(0.0, 1.0);
                own(pair) * (kept + (1.0 - kept) / factor)
            }
        };
        let divided = |pair: u64| {
            let by = self.divisors.get(pair as usize).copied().unwrap_or(1.0);
            (scaled(pair) / f64::from(by)) as f32
        };
        let magnitude = match self.scaling {
            RotaryScaling::Yarn {
                factor, magnitude, ..
            } => magnitude * (1.0 + 0.1 * factor.ln()),
            _ => 1.0,
        };
        ((0..pairs).map(divided).collect(), magnitude)
    }
}

/// The values of one architecture's keys.
struct ArchitectureKeys<'a, B> {
    file: &'a Gguf<B>,
    architecture: &'a str,
}

impl<'a, B: AsRef<[u8]>> ArchitectureKeys<'a, B> {
    fn get(&self, key: &str) -> Option<GgufValue<'a>> {
        self.file.get(&format!("{}.{key}", self.architecture))
    }

    /// A whole number; of a list with one for each layer, if all are equal.
    fn number(&self, key: &str) -> Result<Option<u64>, LlmError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let wrong = |what: &str| {
            let key = format!("{}.{key}", self.architecture);
            unsupported(
                format!("{key} {what}"),
                "a file that a current converter wrote",
            )
        };
        if let Some(all) = value.as_array() {
            let mut numbers = all.iter().map(|it| it.as_u64());
            let first = numbers.next().flatten();
            let is_same = first.is_some() && numbers.all(|it| it == first);
            return match is_same {
                true => Ok(first),
                false => Err(wrong("differs between layers, which is not supported")),
            };
        }
        match value.as_u64() {
            Some(number) => Ok(Some(number)),
            None => Err(wrong("is no whole number")),
        }
    }

    fn required(&self, key: &str, most: u64) -> Result<u64, LlmError> {
        let name = || format!("{}.{key}", self.architecture);
        match self.number(key)? {
            Some(number) if (1..=most).contains(&number) => Ok(number),
            Some(number) => Err(unsupported(
                format!("{} is {number}, not 1 to {most}", name()),
                "another file: this one is damaged",
            )),
            None => Err(unsupported(
                format!("the file does not have {}", name()),
                "a file with the metadata of its architecture",
            )),
        }
    }

    fn float(&self, key: &str) -> Option<f64> {
        self.get(key)?.as_f64().filter(|it| it.is_finite())
    }
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
        let layers = keys.required("block_count", MOST_LAYERS)?;
        let hidden = keys.required("embedding_length", MOST_WIDTH)?;
        let heads = keys.required("attention.head_count", MOST_WIDTH)?;
        let shared_heads = match keys.number("attention.head_count_kv")? {
            Some(_) => keys.required("attention.head_count_kv", heads)?,
            None => heads,
        };
        if heads % shared_heads != 0 {
            return Err(unsupported(
                format!("{heads} heads are no multiple of {shared_heads} heads of keys"),
                "another file: this one is damaged",
            ));
        }
        let length = |key| match keys.number(key)? {
            Some(_) => keys.required(key, MOST_WIDTH),
            None if hidden % heads == 0 => Ok(hidden / heads),
            None => Err(unsupported(
                format!("{hidden} elements are no multiple of {heads} heads"),
                "a file that has the lengths of keys and values",
            )),
        };
        let (key_length, value_length) = (
            length("attention.key_length")?,
            length("attention.value_length")?,
        );
        let context = keys.required("context_length", u64::from(u32::MAX))?;
        let epsilon = keys
            .float("attention.layer_norm_rms_epsilon")
            .unwrap_or(1e-5);
        let rotary = rotary(&keys, model, key_length, context)?;
        let window = match spec.has_window {
            true => keys.number("attention.sliding_window")?.unwrap_or(0),
            false => 0,
        };
        Ok(Self {
            name: text(file, "general.name").unwrap_or_default(),
            layers,
            hidden,
            heads,
            shared_heads,
            key_length,
            value_length,
            feed_forward: keys.required("feed_forward_length", MOST_WIDTH)?,
            context,
            epsilon,
            rotary,
            window,
            spec,
            checkpoint: None,
            architecture,
        })
    }
}

fn rotary<B: AsRef<[u8]>>(
    keys: &ArchitectureKeys<'_, B>,
    model: &ModelFile,
    length: u64,
    context: u64,
) -> Result<RotaryConfig, LlmError> {
    let turned = match keys.number("rope.dimension_count")? {
        Some(turned) if turned <= length && turned % 2 == 0 => turned,
        Some(turned) => {
            let what = format!("{turned} turned elements of heads of {length}");
            return Err(unsupported(what, "another file: this one is damaged"));
        }
        None => length,
    };
    let base = keys.float("rope.freq_base").unwrap_or(10_000.0);
    let kind = keys.get("rope.scaling.type");
    let kind = kind.as_ref().and_then(GgufValue::as_str).unwrap_or("none");
    let factor = keys.float("rope.scaling.factor");
    let factor = factor.or(keys.float("rope.scale_linear")).unwrap_or(1.0);
    let scaling = match kind {
        "none" => RotaryScaling::None,
        "linear" => RotaryScaling::Linear(factor),
        "yarn" => RotaryScaling::Yarn {
            factor,
            original: keys
                .float("rope.scaling.original_context_length")
                .unwrap_or(context as f64),
            magnitude: keys.float("rope.scaling.attn_factor").unwrap_or(1.0),
        },
        other => {
            return Err(unsupported(
                format!("positions are scaled by {other:?}"),
                "a file with none, linear or yarn",
            ));
        }
    };
    let is_positive = |it: f64| it.is_finite() && it > 0.0;
    if !is_positive(base) || !is_positive(factor) {
        let what = format!("positions have the base {base} and the factor {factor}");
        return Err(unsupported(what, "another file: this one is damaged"));
    }
    let divisors = match model.tensor("rope_freqs.weight") {
        Ok(_) => model.read_tensor("rope_freqs.weight")?,
        Err(_) => Vec::new(),
    };
    Ok(RotaryConfig {
        turned,
        base,
        scaling,
        divisors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(scaling: RotaryScaling) -> RotaryConfig {
        RotaryConfig {
            turned: 64,
            base: 10_000.0,
            scaling,
            divisors: Vec::new(),
        }
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let (plain, _) = config(RotaryScaling::None).frequencies();
        let yarn = RotaryScaling::Yarn {
            factor: 4.0,
            original: 4096.0,
            magnitude: 1.0,
        };
        let (scaled, magnitude) = config(yarn).frequencies();
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[31] * 4.0 / plain[31] - 1.0).abs() < 1e-6);
        // Those between are between.
        let all = scaled.iter().zip(&plain);
        assert!(
            all.clone()
                .all(|(own, of)| *own <= *of && *own * 4.001 >= *of)
        );
        assert!((magnitude - (1.0 + 0.1 * 4f64.ln())).abs() < 1e-12);
    }

    #[test]
    fn divisors_of_a_file_divide() {
        let mut own = config(RotaryScaling::Linear(2.0));
        own.divisors = vec![8.0; 32];
        let (scaled, _) = own.frequencies();
        assert_eq!(scaled[0], 1.0 / 16.0);
    }
}
