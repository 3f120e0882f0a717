//! Angles by positions, as a config.json says them.

use crate::checkpoint_keys::{CheckpointKeys, DAMAGED};
use crate::error::{LlmError, unsupported};
use crate::rotary::{RotaryConfig, RotaryDivisors, RotaryScaling};

type Result<T> = std::result::Result<T, LlmError>;

/// Types of layers that may have angles of their own.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];
const ORIGINAL: &str = "original_max_position_embeddings";

/// Sizes that angles depend on.
#[derive(Clone, Copy)]
pub(crate) struct RotarySizes {
    /// Elements of a head.
    pub(crate) length: u64,
    pub(crate) context: u64,
}

/// How heads are turned: those of all layers, or of layers without a window and of others.
pub(crate) fn rotaries(keys: CheckpointKeys<'_>, sizes: RotarySizes) -> Result<Vec<RotaryConfig>> {
    let (new, old) = (keys.part("rope_parameters"), keys.part("rope_scaling"));
    if new.is_some() && old.is_some() {
        return Err(unsupported(
            "config.json has rope_parameters and rope_scaling",
            "a model that has one of them",
        ));
    }
    let scaling = new.or(old);
    if scaling.is_some_and(|it| !it.object.is_object()) {
        let what = "config.json: the parameters of the rotation are no object";
        return Err(unsupported(what, DAMAGED));
    }
    let nested = LAYER_TYPES.map(|it| scaling.and_then(|all| all.part(it)));
    let is_nested = nested.iter().any(Option::is_some);
    if !keys.spec.has_two_rotations {
        return match is_nested {
            true => Err(unsupported(
                "config.json: rope_parameters differ between types of layers",
                "a model all of whose layers have the same angles",
            )),
            false => Ok(vec![rotary(keys, scaling, "rope_theta", sizes)?]),
        };
    }
    if new.is_some() && !is_nested {
        let what = format!(
            "config.json: rope_parameters does not have {}",
            LAYER_TYPES[0]
        );
        return Err(unsupported(what, DAMAGED));
    }
    let [full, sliding] = match new.is_some() {
        true => nested,
        // Layers with a window were not made for a longer context.
        false => [old, None],
    };
    Ok(vec![
        rotary(keys, full, "rope_theta", sizes)?,
        rotary(keys, sliding, "rope_local_base_freq", sizes)?,
    ])
}

/// A key's number in the parameters of the rotation, if they have it, else in the configuration.
fn either(
    keys: CheckpointKeys<'_>,
    scaling: Option<CheckpointKeys<'_>>,
    (key, outer): (&str, &str),
) -> Result<Option<f64>> {
    match scaling.filter(|it| it.get(key).is_some()) {
        Some(scaling) => scaling.float(key),
        None => keys.float(outer),
    }
}

fn rotary(
    keys: CheckpointKeys<'_>,
    scaling: Option<CheckpointKeys<'_>>,
    base: &str,
    RotarySizes { length, context }: RotarySizes,
) -> Result<RotaryConfig> {
    let base = either(keys, scaling, ("rope_theta", base))?.unwrap_or(1e4);
    let part = "partial_rotary_factor";
    let part = either(keys, scaling, (part, part))?;
    let turned = (length as f64 * part.unwrap_or(1.0)) as u64;
    if !(2..=length).contains(&turned) || !turned.is_multiple_of(2) || base <= 0.0 {
        let what = format!("{turned} turned elements of heads of {length}, the base {base}");
        return Err(unsupported(what, DAMAGED));
    }
    let mut config = RotaryConfig {
        turned,
        base,
        scaling: RotaryScaling::None,
        magnitude: 1.0,
        divisors: RotaryDivisors::default(),
    };
    let Some(scaling) = scaling else {
        return Ok(config);
    };
    let kind = scaling.text("rope_type")?.or(scaling.text("type")?);
    let is_phi = keys.spec.architecture == "phi3";
    match kind.unwrap_or("default") {
        // Dynamic scaling begins beyond the context.
        "default" => {}
        "longrope" => long_rope(&mut config, (keys, scaling), context)?,
        // Names of the first files.
        "su" | "yarn" if is_phi => long_rope(&mut config, (keys, scaling), context)?,
        "dynamic" if !is_phi => {}
        "linear" if !is_phi => config.scaling = RotaryScaling::Linear(factor(scaling)?),
        "yarn" => {
            let original = original(keys, scaling, context)?;
            (config.scaling, config.magnitude) = yarn(scaling, original)?;
        }
        "llama3" if !is_phi => {
            let original = original(keys, scaling, context)?;
            let divisors = llama3_divisors(scaling, (turned, base), original)?;
            config.divisors = RotaryDivisors {
                short: divisors.clone(),
                long: divisors,
                original: 0,
            };
        }
        other => {
            let name: String = other.chars().take(60).collect();
            return Err(unsupported(
                format!("config.json: positions are scaled by {name:?}"),
                "a model with default, linear, dynamic, llama3, yarn or longrope",
            ));
        }
    }
    Ok(config)
}

/// A number above 0, which is there.
fn positive(keys: CheckpointKeys<'_>, key: &str, default: Option<f64>) -> Result<f64> {
    keys.positive(key)?.or(default).ok_or_else(|| {
        let what = format!("config.json: scaled positions without {key}");
        unsupported(what, DAMAGED)
    })
}

fn factor(keys: CheckpointKeys<'_>) -> Result<f64> {
    positive(keys, "factor", None)
}

/// The context before it was made longer: the configuration's own key is before that of the
/// rotation's parameters.
fn original(keys: CheckpointKeys<'_>, scaling: CheckpointKeys<'_>, context: u64) -> Result<f64> {
    match keys.positive(ORIGINAL)? {
        Some(original) => Ok(original),
        None => positive(scaling, ORIGINAL, Some(context as f64)),
    }
}

/// Divisors of frequencies by whether the context is longer than the original one ("LongRoPE:
/// Extending LLM Context Window Beyond 2 Million Tokens", Ding and others, 2024).
fn long_rope(
    config: &mut RotaryConfig,
    (keys, scaling): (CheckpointKeys<'_>, CheckpointKeys<'_>),
    context: u64,
) -> Result<()> {
    let original = original(keys, scaling, context)?;
    let pairs = config.turned / 2;
    let divisors = |key: &str| -> Result<Vec<f32>> {
        let all = scaling.list(key)?.unwrap_or_default();
        let all: Vec<f32> = all
            .iter()
            .filter_map(|it| it.as_f64().map(|it| it as f32))
            .filter(|it| it.is_finite() && *it > 0.0)
            .collect();
        match all.len() as u64 == pairs {
            true => Ok(all),
            false => {
                let what = format!("config.json: {key} is no list of {pairs} numbers above 0");
                Err(unsupported(what, DAMAGED))
            }
        }
    };
    config.divisors = RotaryDivisors {
        short: divisors("short_factor")?,
        long: divisors("long_factor")?,
        original: original as u64,
    };
    let factor = positive(scaling, "factor", Some(context as f64 / original))?;
    let own = match factor <= 1.0 {
        true => 1.0,
        false => (1.0 + factor.ln() / original.ln()).sqrt(),
    };
    config.magnitude = positive(scaling, "attention_factor", Some(own))?;
    match config.magnitude.is_finite() {
        true => Ok(()),
        false => {
            let what = format!("config.json: {ORIGINAL} is {original}");
            Err(unsupported(what, DAMAGED))
        }
    }
}

/// YaRN, and what the factor that follows from its own is multiplied by.
fn yarn(keys: CheckpointKeys<'_>, original: f64) -> Result<(RotaryScaling, f64)> {
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
    let scaling = RotaryScaling::Yarn {
        factor,
        original,
        turns: [
            positive(keys, "beta_fast", Some(32.0))?,
            positive(keys, "beta_slow", Some(1.0))?,
        ],
        is_whole: keys.flag("truncate")? != Some(false),
    };
    // What `RotaryConfig::frequencies` multiplies by.
    Ok((scaling, attention / (1.0 + 0.1 * factor.ln())))
}

/// Divisors of frequencies in Llama 3.1 and later: slow pairs are divided by the factor, fast ones
/// kept, those between are between.
fn llama3_divisors(
    keys: CheckpointKeys<'_>,
    (turned, base): (u64, f64),
    original: f64,
) -> Result<Vec<f32>> {
    let factor = factor(keys)?;
    let low = positive(keys, "low_freq_factor", Some(1.0))?;
    let high = positive(keys, "high_freq_factor", Some(4.0))?;
    if high < low {
        let what = format!("config.json: high_freq_factor {high}, low_freq_factor {low}");
        return Err(unsupported(what, DAMAGED));
    }
    let divisor = |pair: u64| {
        let frequency = base.powf(-2.0 * pair as f64 / turned as f64);
        // Turns of the pair within the original context.
        let turns = original * frequency / std::f64::consts::TAU;
        let kept = match high > low {
            true => ((turns - low) / (high - low)).clamp(0.0, 1.0),
            // None are between.
            false => f64::from(u8::from(turns > low)),
        };
        1.0 / (kept + (1.0 - kept) / factor)
    };
    Ok((0..turned / 2).map(|pair| divisor(pair) as f32).collect())
}
