//! Weights of quantised checkpoints: one matrix of several tensors.
//!
//! A checkpoint of AWQ, GPTQ, compressed-tensors, bitsandbytes or with FP8 has, for a weight
//! `P.weight`, tensors with codes, scales and zero points beside it. Which format it is, is known
//! from the tensors' names, types and shapes; the configuration only says what those do not.
//!
//! Invariant: values are those that the format's reference library computes: codes minus zero
//! point, times scale, rounded to the type of the scale where that is F16 or BF16.

mod floats;
mod integers;
mod lookup;
mod parts;
mod weight;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::model::{ModelFile, StoredTensor};

pub use weight::{WeightFormat, WeightValues};

/// Ends of names of tensors that belong to a weight, behind what its name begins with.
const COMPANIONS: [(&str, &str); 17] = [
    (".qzeros", ".qweight"),
    (".scales", ".qweight"),
    (".g_idx", ".qweight"),
    (".weight_scale", ".weight_packed"),
    (".weight_global_scale", ".weight_packed"),
    (".weight_zero_point", ".weight_packed"),
    (".weight_shape", ".weight_packed"),
    (".weight_g_idx", ".weight_packed"),
    (".weight_scale", ".weight"),
    (".weight_scale_2", ".weight"),
    (".weight_scale_inv", ".weight"),
    (".weight_zero_point", ".weight"),
    (".weight.absmax", ".weight"),
    (".weight.quant_map", ".weight"),
    (".weight.nested_absmax", ".weight"),
    (".weight.nested_quant_map", ".weight"),
    ("_scales", "_blocks"),
];

/// How a weight is read.
enum WeightWay {
    Plain,
    Read(fn(&ModelFile, &str) -> Result<WeightValues>),
}

impl ModelFile {
    /// Names of the weights: those of the tensors, where several are one weight its own.
    pub fn weight_names(&self) -> Vec<String> {
        let mut names = Vec::with_capacity(self.tensor_count());
        for tensor in self.tensors() {
            let name = &*tensor.name;
            let is_companion = COMPANIONS.iter().any(|(end, of)| {
                let prefix = name.strip_suffix(end);
                prefix.is_some_and(|prefix| self.tensor(&format!("{prefix}{of}")).is_ok())
            });
            let is_state = name.contains(".weight.quant_state.bitsandbytes__");
            if is_companion || is_state {
                continue;
            }
            let packed = [".qweight", ".weight_packed"].into_iter();
            let prefix = packed.filter_map(|end| name.strip_suffix(end)).next();
            let of_blocks = name.strip_suffix("_blocks");
            let of_blocks = of_blocks.filter(|it| self.tensor(&format!("{it}_scales")).is_ok());
            names.push(match (prefix, of_blocks) {
                (Some(prefix), _) => format!("{prefix}.weight"),
                (None, Some(prefix)) => prefix.to_owned(),
                (None, None) => name.to_owned(),
            });
        }
        names
    }

    /// Whether there is a weight of that name, of however many tensors.
    pub fn has_weight(&self, name: &str) -> bool {
        match self.way_of(name) {
            WeightWay::Plain => self.tensor(name).is_ok(),
            WeightWay::Read(_) => true,
        }
    }

    /// A weight as f32, of however many tensors.
    ///
    /// # Errors
    /// [`Error::NoTensor`]; [`Error::Mismatch`] if tensors do not belong together;
    /// [`Error::Unsupported`].
    pub fn read_weight(&self, name: &str) -> Result<WeightValues> {
        let read = self.weight(name);
        read.map_err(|error| match error {
            Error::Mismatch { what, hint } => Error::Mismatch {
                what: format!("weight {name:?}: {what}"),
                hint,
            },
            other => other,
        })
    }

    fn weight(&self, name: &str) -> Result<WeightValues> {
        match self.way_of(name) {
            WeightWay::Plain => {
                let tensor = self.tensor(name)?;
                Ok(WeightValues {
                    values: tensor.decode()?,
                    shape: tensor.shape,
                    format: WeightFormat::Plain,
                })
            }
            WeightWay::Read(read) => read(self, name),
        }
    }

    /// The tensor of a weight that is one tensor.
    pub(crate) fn plain_tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        match self.way_of(name) {
            WeightWay::Plain => self.tensor(name).ok(),
            WeightWay::Read(_) => None,
        }
    }

    fn way_of(&self, name: &str) -> WeightWay {
        let has = |end: &str| self.tensor(&format!("{name}{end}")).is_ok();
        let prefix = name.strip_suffix(".weight");
        let has_words = || prefix.is_some_and(|it| self.tensor(&format!("{it}.qweight")).is_ok());
        match self.tensor(name) {
            Ok(tensor) => match () {
                () if has(".absmax") => WeightWay::Read(lookup::table),
                () if has("_scale_2") => WeightWay::Read(floats::nvfp4_of_modelopt),
                // Beside other types, scales are of activations, or stale.
                () if !floats::is_of_eight_bits(tensor.kind) => WeightWay::Plain,
                () if has("_scale_inv") => {
                    WeightWay::Read(|model, name| floats::scaled(model, name, "_scale_inv"))
                }
                () if has("_scale") => {
                    WeightWay::Read(|model, name| floats::scaled(model, name, "_scale"))
                }
                () => WeightWay::Plain,
            },
            Err(_) => match () {
                () if has_words() => WeightWay::Read(integers::words),
                () if has("_packed") && has("_shape") => WeightWay::Read(integers::packed),
                () if has("_packed") => WeightWay::Read(floats::packed),
                () if has("_blocks") && has("_scales") => WeightWay::Read(floats::blocks),
                () => WeightWay::Plain,
            },
        }
    }

    /// What the configuration says of quantisation.
    pub(crate) fn quantisation(&self) -> Option<&Value> {
        let config = self.config()?;
        config
            .get("quantization_config")
            .or_else(|| config.get("compression_config"))
    }
}
