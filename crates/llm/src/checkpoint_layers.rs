//! Layers of a checkpoint, as its config.json says them: windows, states, experts.

use serde_json::Value;

use crate::checkpoint_keys::{CheckpointKeys, DAMAGED, refused, shown};
use crate::config::{ExpertConfig, MOST_EXPERTS};
use crate::error::{LlmError, unsupported};
use crate::keys::MOST_WIDTH;
use crate::model::{DecoderSpec, ExpertNames, RecurrenceRule, WindowKeys, WindowPattern};
use crate::recurrence_config::RecurrenceConfig;

type Result<T> = std::result::Result<T, LlmError>;

const FULL: &str = "full_attention";
const WINDOW: &str = "sliding_attention";
const STATE: &str = "linear_attention";
const CHUNKS: &str = "chunked_attention";

/// The type of each layer, if there is a list of them.
fn layer_types<'a>(keys: CheckpointKeys<'a>, layers: u64) -> Result<Option<Vec<&'a str>>> {
    let Some(all) = keys.list("layer_types")? else {
        return Ok(None);
    };
    if (all.len() as u64) < layers {
        let what = format!(
            "config.json: layer_types has {} of {layers} layers",
            all.len()
        );
        return Err(unsupported(what, DAMAGED));
    }
    let known = [FULL, WINDOW, STATE, CHUNKS];
    let own = all.iter().take(layers as usize);
    let own = own.map(|it| match it.as_str().filter(|it| known.contains(it)) {
        Some(own) => Ok(own),
        None => {
            let what = format!("config.json: layer_types has {}", shown(it));
            Err(unsupported(what, format!("layers of {}", known.join(", "))))
        }
    });
    own.collect::<Result<Vec<&str>>>().map(Some)
}

/// Last positions that tokens of each layer attend to; 0 for all.
pub(crate) fn windows(
    keys: CheckpointKeys<'_>,
    own: &DecoderSpec,
    (layers, context): (u64, u64),
) -> Result<Vec<u64>> {
    let none = vec![0; layers as usize];
    let types = layer_types(keys, layers)?;
    let pattern = keys.spec.windows;
    let is_on = match pattern {
        WindowKeys::None => false,
        WindowKeys::Switched | WindowKeys::SwitchedFrom => {
            keys.flag("use_sliding_window")? == Some(true)
        }
        WindowKeys::Each | WindowKeys::Period { .. } => true,
    };
    if !is_on {
        return Ok(none);
    }
    let types = types.filter(|_| pattern != WindowKeys::Switched);
    let key = "sliding_window";
    let has_window = |layer: u64, otherwise: bool| match &types {
        Some(types) => types[layer as usize] == WINDOW,
        None => otherwise,
    };
    let of_layers: Vec<bool> = match pattern {
        WindowKeys::Period { key } => {
            let default = match own.windows {
                WindowPattern::Period { layers, .. } => layers,
                _ => 1,
            };
            let given = match key {
                Some(key) => keys.number(key, u64::from(u32::MAX))?,
                None => None,
            };
            let period = given.unwrap_or(default);
            (0..layers)
                .map(|it| has_window(it, !(it + 1).is_multiple_of(period)))
                .collect()
        }
        _ => {
            // The first layer with a window, where they are not listed.
            let first = match pattern {
                WindowKeys::SwitchedFrom => keys.float("max_window_layers")?.unwrap_or(0.0),
                _ => 0.0,
            };
            let first = first.max(0.0) as u64;
            (0..layers).map(|it| has_window(it, it >= first)).collect()
        }
    };
    let window = match keys.number(key, u64::from(u32::MAX))? {
        Some(window) => window,
        // Of these there must be some.
        None if keys.spec.has_two_rotations && of_layers.contains(&true) => {
            keys.required(key, u64::from(u32::MAX))?
        }
        None => return Ok(none),
    };
    // Windows that are never left need no attention of their own, but they may have angles.
    if window >= context && !keys.spec.has_two_rotations {
        return Ok(none);
    }
    let of_layer = |has_window: bool| if has_window { window } else { 0 };
    Ok(of_layers.into_iter().map(of_layer).collect())
}

/// Layers whose state goes from token to token.
pub(crate) fn recurrence(
    keys: CheckpointKeys<'_>,
    rule: Option<RecurrenceRule>,
    (layers, hidden): (u64, u64),
) -> Result<Option<RecurrenceConfig>> {
    let number = |key: &str| keys.required(key, MOST_WIDTH);
    let config = match rule {
        None => return Ok(None),
        Some(rule @ RecurrenceRule::Delta { period }) => {
            let heads = number("linear_num_value_heads")?;
            let of_layers = match layer_types(keys, layers)? {
                Some(types) => types.iter().map(|it| *it == STATE).collect(),
                None => {
                    let key = "full_attention_interval";
                    let period = keys.number(key, u64::from(u32::MAX))?.unwrap_or(period);
                    (0..layers)
                        .map(|at| !(at + 1).is_multiple_of(period))
                        .collect::<Vec<bool>>()
                }
            };
            RecurrenceConfig {
                rule,
                taps: number("linear_conv_kernel_dim")?,
                heads,
                keys: number("linear_num_key_heads")?,
                key_length: number("linear_key_head_dim")?,
                value_length: number("linear_value_head_dim")?,
                is_tiled: false,
                norm_groups: heads,
                layers: of_layers,
            }
        }
        Some(rule @ RecurrenceRule::Scan) => {
            check_steps(keys)?;
            let (heads, length) = (number("num_heads")?, number("head_dim")?);
            let expand = number("expand")?;
            if heads.saturating_mul(length) != hidden.saturating_mul(expand) {
                let what = format!(
                    "config.json: {heads} heads of {length} elements, {expand} times {hidden}"
                );
                return Err(unsupported(what, DAMAGED));
            }
            let groups = number("n_groups")?;
            RecurrenceConfig {
                rule,
                taps: number("conv_kernel")?,
                heads,
                keys: groups,
                key_length: number("state_size")?,
                value_length: length,
                is_tiled: false,
                norm_groups: groups,
                layers: vec![true; layers as usize],
            }
        }
    };
    config.checked().map(Some)
}

/// Refuses limits of the steps of Mamba-2, which are not computed.
fn check_steps(keys: CheckpointKeys<'_>) -> Result<()> {
    let key = "time_step_limit";
    let Some(limits) = keys.get(key) else {
        return Ok(());
    };
    // Infinity is no number of JSON: `modelfile` makes texts of Python's, and newer programs write
    // objects.
    let is_infinite = |it: &Value| {
        let named = it.get("__float__").unwrap_or(it);
        named.as_str() == Some("Infinity") || named.as_f64() == Some(f64::INFINITY)
    };
    match limits.as_array().map(Vec::as_slice) {
        Some([least, most]) if least.as_f64() == Some(0.0) && is_infinite(most) => Ok(()),
        _ => Err(refused(key, limits, "0 to infinity")),
    }
}

/// Experts that a token chooses from, and how many. The number of all has two names.
pub(crate) fn experts(keys: CheckpointKeys<'_>, names: ExpertNames) -> Result<ExpertConfig> {
    let [first, second] = ["num_experts", "num_local_experts"];
    let (first_count, second_count) = (
        keys.get(first).and(keys.number(first, MOST_EXPERTS)?),
        keys.number(second, MOST_EXPERTS)?,
    );
    let count = match (first_count, second_count) {
        (Some(own), Some(other)) if own != other => {
            let what = format!("config.json: {first} is {own}, {second} {other}");
            return Err(unsupported(what, DAMAGED));
        }
        (Some(own), _) | (None, Some(own)) => own,
        (None, None) => keys.required(first, MOST_EXPERTS)?,
    };
    let feed_forward = keys.required(names.inner, MOST_WIDTH)?;
    Ok(ExpertConfig {
        count,
        used: keys.required("num_experts_per_tok", count)?,
        feed_forward,
        shared: match names.shared {
            Some(key) => keys.required(key, MOST_WIDTH)?,
            None => feed_forward,
        },
    })
}
