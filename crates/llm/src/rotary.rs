//! Angles by which pairs of elements are turned, as they follow from positions.

use fercuda_modelfile::{GgufValue, ModelFile};

use crate::error::{LlmError, unsupported};
use crate::keys::ArchitectureKeys;

/// How angles follow from positions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RotaryConfig {
    /// Elements of a head that are turned.
    pub(crate) turned: u64,
    pub(crate) base: f64,
    pub(crate) scaling: RotaryScaling,
    /// Factor of sines and cosines.
    pub(crate) magnitude: f64,
    /// Divisors of the frequencies, from a tensor of the file.
    pub(crate) divisors: RotaryDivisors,
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
        /// Turns within that context, from which on pairs are kept, and up to which they are
        /// divided.
        turns: [f64; 2],
        /// Whether the pairs of these turns are rounded to whole ones.
        is_whole: bool,
    },
}

/// Divisors of the frequencies of pairs; none for 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RotaryDivisors {
    /// Those of a context that is not longer than the original one.
    pub(crate) short: Vec<f32>,
    pub(crate) long: Vec<f32>,
    pub(crate) original: u64,
}

impl RotaryConfig {
    /// Frequency of each pair for requests of that context, and the factor of sines and cosines.
    pub(crate) fn frequencies(&self, context: u64) -> (Vec<f32>, f64) {
        let pairs = self.turned / 2;
        let own = |pair: u64| self.base.powf(-2.0 * pair as f64 / self.turned as f64);
        let scaled = |pair: u64| match self.scaling {
            RotaryScaling::None => own(pair),
            RotaryScaling::Linear(factor) => own(pair) / factor,
            RotaryScaling::Yarn {
                factor,
                original,
                turns,
                is_whole,
            } => {
                // The pair that turns so many times within the original context.
                let of_turns = |turns: f64| {
                    let length = self.turned as f64;
                    length * (original / (turns * std::f64::consts::TAU)).ln()
                        / (2.0 * self.base.ln())
                };
                let [low, high] = turns.map(of_turns);
                let (low, high) = match is_whole {
                    true => (low.floor(), high.ceil()),
                    false => (low, high),
                };
                let (low, high) = (low.max(0.0), high.min(self.turned as f64 - 1.0));
                let ramp = (pair as f64 - low) / (high - low).max(0.001);
                let kept = 1.0 - ramp.clamp(0.0, 1.0);
                own(pair) * (kept + (1.0 - kept) / factor)
            }
        };
        let all = &self.divisors;
        let divisors = match context > all.original {
            true => &all.long,
            false => &all.short,
        };
        let divided = |pair: u64| {
            let by = divisors.get(pair as usize).copied().unwrap_or(1.0);
            (scaled(pair) / f64::from(by)) as f32
        };
        let magnitude = match self.scaling {
            RotaryScaling::Yarn { factor, .. } => self.magnitude * (1.0 + 0.1 * factor.ln()),
            _ => self.magnitude,
        };
        ((0..pairs).map(divided).collect(), magnitude)
    }

    /// That of layers with a window, where it is another one.
    pub(crate) fn of_windows<B: AsRef<[u8]>>(
        &self,
        keys: &ArchitectureKeys<'_, B>,
        default: Option<f64>,
    ) -> Result<Option<Self>, LlmError> {
        let own = keys.positive("rope.freq_base_swa")?;
        Ok(match (own, default) {
            (None, None) => None,
            // Where they have a base of their own, they were not made for a longer context.
            (base, Some(default)) => Some(Self {
                base: base.unwrap_or(default),
                scaling: RotaryScaling::None,
                ..self.clone()
            }),
            (Some(base), None) => Some(Self {
                base,
                ..self.clone()
            }),
        })
    }
}

fn scaling<B: AsRef<[u8]>>(
    keys: &ArchitectureKeys<'_, B>,
    context: u64,
    is_whole: bool,
) -> Result<RotaryScaling, LlmError> {
    let kind = keys.get("rope.scaling.type");
    let kind = kind.as_ref().and_then(GgufValue::as_str);
    let factor = keys.positive("rope.scaling.factor")?;
    let factor = factor.or(keys.positive("rope.scale_linear")?);
    let factor = factor.unwrap_or(1.0);
    match kind.unwrap_or("linear") {
        // Of the last one the divisors of the frequencies are tensors.
        "none" | "longrope" => Ok(RotaryScaling::None),
        "linear" if factor == 1.0 => Ok(RotaryScaling::None),
        "linear" => Ok(RotaryScaling::Linear(factor)),
        "yarn" => Ok(RotaryScaling::Yarn {
            factor,
            original: match keys.number("rope.scaling.original_context_length")? {
                None | Some(0) => context as f64,
                Some(original) => original as f64,
            },
            turns: [
                keys.positive("rope.scaling.yarn_beta_fast")?
                    .unwrap_or(32.0),
                keys.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            ],
            is_whole,
        }),
        other => Err(unsupported(
            format!("positions are scaled by {other:?}"),
            "a file with none, linear, yarn or longrope",
        )),
    }
}

fn divisors<B: AsRef<[u8]>>(
    keys: &ArchitectureKeys<'_, B>,
    model: &ModelFile,
    pairs: u64,
) -> Result<RotaryDivisors, LlmError> {
    let read = |name: &str| -> Result<Vec<f32>, LlmError> {
        let Ok(tensor) = model.tensor(name) else {
            return Ok(Vec::new());
        };
        let divisors = match tensor.elements() == pairs {
            true => tensor.decode()?,
            false => Vec::new(),
        };
        match divisors.iter().all(|it| it.is_finite() && *it > 0.0) && !divisors.is_empty() {
            true => Ok(divisors),
            false => Err(unsupported(
                format!("{name} is no list of {pairs} numbers above 0"),
                "another file: this one is damaged",
            )),
        }
    };
    let [short, long] = ["short", "long"].map(|it| read(&format!("rope_factors_{it}.weight")));
    let (short, long) = (short?, long?);
    if short.is_empty() && long.is_empty() {
        let all = read("rope_freqs.weight")?;
        return Ok(RotaryDivisors {
            short: all.clone(),
            long: all,
            original: 0,
        });
    }
    Ok(RotaryDivisors {
        short,
        long,
        original: keys.required("rope.scaling.original_context_length", u64::from(u32::MAX))?,
    })
}

/// Reads how heads of that length are turned.
pub(crate) fn rotary<B: AsRef<[u8]>>(
    keys: &ArchitectureKeys<'_, B>,
    model: &ModelFile,
    (length, context): (u64, u64),
    has_whole_yarn: bool,
) -> Result<RotaryConfig, LlmError> {
    let turned = match keys.number("rope.dimension_count")? {
        Some(turned) if turned <= length && turned % 2 == 0 => turned,
        Some(turned) => {
            let what = format!("{turned} turned elements of heads of {length}");
            return Err(unsupported(what, "another file: this one is damaged"));
        }
        None => length / 2 * 2,
    };
    Ok(RotaryConfig {
        turned,
        base: keys.positive("rope.freq_base")?.unwrap_or(10_000.0),
        scaling: scaling(keys, context, has_whole_yarn)?,
        magnitude: keys.positive("rope.scaling.attn_factor")?.unwrap_or(1.0),
        divisors: divisors(keys, model, turned / 2)?,
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
            magnitude: 1.0,
            divisors: RotaryDivisors::default(),
        }
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let (plain, _) = config(RotaryScaling::None).frequencies(1);
        let yarn = RotaryScaling::Yarn {
            factor: 4.0,
            original: 4096.0,
            turns: [32.0, 1.0],
            is_whole: true,
        };
        let (scaled, magnitude) = config(yarn).frequencies(1);
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
        own.divisors = RotaryDivisors {
            short: vec![8.0; 32],
            long: vec![4.0; 32],
            original: 64,
        };
        for (context, wanted) in [(64, 16.0), (65, 8.0)] {
            let (scaled, _) = own.frequencies(context);
            assert_eq!(scaled[0], 1.0 / wanted);
        }
    }
}
