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
use crate::model::ModelFile;

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
        let has = |end: &str| self.tensor(&format!("{name}{end}")).is_ok();
        let is_here = self.tensor(name).is_ok();
        let prefix = name.strip_suffix(".weight");
        let of_prefix =
            |end: &str| prefix.is_some_and(|prefix| self.tensor(&format!("{prefix}{end}")).is_ok());
        match () {
            () if is_here && has(".absmax") => lookup::table(self, name),
            () if is_here && has("_scale_2") => floats::nvfp4_of_modelopt(self, name),
            () if is_here && has("_scale_inv") => floats::scaled(self, name, "_scale_inv"),
            () if is_here && has("_scale") => floats::scaled(self, name, "_scale"),
            () if !is_here && of_prefix(".qweight") => {
                integers::words(self, prefix.unwrap_or_default())
            }
            () if !is_here && has("_packed") => match has("_shape") {
                true => integers::packed(self, name),
                false => floats::packed(self, name),
            },
            () if !is_here && has("_blocks") && has("_scales") => floats::blocks(self, name),
            () => {
                let tensor = self.tensor(name)?;
                Ok(WeightValues {
                    values: tensor.decode()?,
                    shape: tensor.shape,
                    format: WeightFormat::Plain,
                })
            }
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
