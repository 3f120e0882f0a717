//! Memory of an engine, planned before any is taken.

use fercuda_runtime::Runtime;
use fercuda_tensor::Dtype;

use crate::adapter_targets::adapter_bytes;
use crate::config::ModelConfig;
use crate::decoder::{memory_bytes, position_bytes};
use crate::error::{LlmError, refused};
use crate::request::EngineConfig;
use crate::step_inputs::{PLACES, StepLimits};
use crate::tensors::ModelTensors;

type Result<T> = std::result::Result<T, LlmError>;

/// Tokens of a step from which blocks of weights become 16-bit floats before they are multiplied.
const WIDE_FROM: u64 = 64;
/// Tokens of prompts in a step in which others generate: those wait for them.
const BESIDE: u64 = 256;
/// Most guesses of a request in a step.
const MOST_DRAFTS: u64 = 63;
/// Rows of logits for guesses of all requests, about: that of many requests would be large, and
/// many at once are faster without.
const DRAFT_ROWS: u64 = 56;
/// Positions of a cache that is not given by its positions: their numbers have 31 bits.
const MOST_POSITIONS: u64 = 1 << 30;
/// Most adapters of an engine, and their largest rank.
const MOST_ADAPTERS: u64 = 1024;
const MOST_ADAPTER_RANK: u64 = 1024;
/// Room for the code of kernels, and for what they need between them.
const KERNELS: u64 = 8 << 20;

/// The limits of an engine, after the model and the configuration.
pub(crate) fn limits_of(
    model: &ModelConfig,
    config: &EngineConfig,
    is_software: bool,
) -> Result<(StepLimits, u64)> {
    let context = config.context_of(model.context);
    if context == 0 || context > model.context {
        return Err(refused(
            format!("a context of {context} of a model with {}", model.context),
            format!("1 to {} positions", model.context),
        ));
    }
    let batch_tokens = config.batch_tokens.unwrap_or(match is_software {
        true => 64,
        false => 1024,
    });
    if batch_tokens == 0 || config.requests == 0 {
        return Err(refused("steps without tokens or requests", "one at least"));
    }
    let positions = config.cache_tokens.unwrap_or(context);
    let blocks = positions.div_ceil(PLACES);
    if blocks == 0 || blocks > (i32::MAX as u64) / PLACES {
        return Err(refused(
            format!("a cache of {positions} positions"),
            format!("{PLACES} positions at least, and below 2^31"),
        ));
    }
    if config.adapters > MOST_ADAPTERS {
        let what = format!("room for {} adapters", config.adapters);
        return Err(refused(what, format!("at most {MOST_ADAPTERS}")));
    }
    if !(1..=MOST_ADAPTER_RANK).contains(&config.adapter_rank) {
        let what = format!("adapters of the rank {}", config.adapter_rank);
        return Err(refused(what, format!("1 to {MOST_ADAPTER_RANK}")));
    }
    let requests = config.requests.min(1 << 16).next_power_of_two();
    let drafts = config.draft_tokens.min(MOST_DRAFTS);
    let rows = requests + (requests * drafts).min(drafts.max(DRAFT_ROWS));
    // One for each request, another behind its guesses, and those that are kept.
    let kept = config.kept_states.unwrap_or(requests).min(1 << 20);
    let slots = match &model.recurrence {
        Some(_) if drafts > 0 => 2 * requests + kept,
        Some(_) => requests + kept,
        None => 0,
    };
    let tokens = batch_tokens.min(1 << 20).next_power_of_two();
    let limits = StepLimits {
        // Prompts go on beside as many requests as there may be.
        tokens: tokens
            .max(2 * requests)
            .max((1 + drafts).next_power_of_two()),
        requests,
        rows: rows.next_power_of_two(),
        drafts,
        beside: match is_software {
            true => u64::MAX,
            false => BESIDE,
        },
        blocks_each: context.div_ceil(PLACES).min(blocks),
        blocks,
        places: PLACES,
        slots,
        wide_from: match config.wide_products.unwrap_or(!is_software) {
            true => WIDE_FROM,
            false => u64::MAX,
        },
        is_fused: config.fused_products.unwrap_or(!is_software),
        adapters: config.adapters,
        // Elements that are read at once.
        adapter_rank: config.adapter_rank.next_multiple_of(8),
    };
    Ok((limits, context.min(limits.blocks_each * PLACES)))
}

/// Positions of the cache where its bytes are given, or the part of the device's memory that it is
/// taken up to; `None` where neither is.
///
/// # Errors
/// [`LlmError::Request`] of a size without meaning, and [`LlmError::Memory`] if there is no room
/// for a block.
pub(crate) fn cache_positions(
    runtime: &Runtime,
    tensors: &ModelTensors<'_>,
    config: &EngineConfig,
    limits: &StepLimits,
) -> Result<Option<u64>> {
    let model = tensors.config();
    let given = [
        config.cache_tokens.is_some(),
        config.cache_bytes.is_some(),
        config.memory_limit.is_some(),
    ];
    if given.iter().filter(|it| **it).count() > 1 {
        return Err(refused(
            "several sizes of one cache",
            "its positions, its bytes, or a part of the device's memory",
        ));
    }
    let each = position_bytes(model, config.cached);
    let bytes = match (config.cache_bytes, config.memory_limit) {
        (Some(bytes), _) => bytes,
        (None, Some(limit)) => {
            let memory = runtime.memory()?;
            let [_, states, step] = memory_bytes(tensors, limits, config.cached)?;
            let others = memory.total_bytes.saturating_sub(memory.free_bytes);
            let beside = [tensors.bytes(), states, step, KERNELS, others];
            let beside = beside
                .iter()
                .fold(0, |sum: u64, it| sum.saturating_add(*it));
            let upper = limit.min(memory.total_bytes);
            let left = upper.saturating_sub(beside);
            if left < each.saturating_mul(PLACES) {
                return Err(LlmError::Memory {
                    what: format!(
                        "{} of the device's {} may be used, and without a cache {} are needed: \
                         weights {}, states {}, steps {}, others {}",
                        mebibytes(upper),
                        mebibytes(memory.total_bytes),
                        mebibytes(beside),
                        mebibytes(tensors.bytes()),
                        mebibytes(states),
                        mebibytes(step.saturating_add(KERNELS)),
                        mebibytes(others)
                    ),
                    advice: "a larger part, or a smaller model".to_owned(),
                    needed_bytes: beside,
                    free_bytes: memory.free_bytes,
                });
            }
            left
        }
        (None, None) => return Ok(None),
    };
    if each == 0 {
        // No layer has keys.
        return Ok(None);
    }
    let positions = (bytes / each / PLACES * PLACES).min(MOST_POSITIONS);
    if positions == 0 {
        let least = mebibytes(each.saturating_mul(PLACES));
        let what = format!("a cache of {}", mebibytes(bytes));
        return Err(refused(
            what,
            format!("{least} at least, {PLACES} positions"),
        ));
    }
    Ok(Some(positions))
}

fn mebibytes(bytes: u64) -> String {
    if bytes < 1 << 16 {
        return format!("{bytes} bytes");
    }
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Compares what is planned with the device's free memory; returns the bytes of the weights.
pub(crate) fn check_memory(
    runtime: &Runtime,
    tensors: &ModelTensors<'_>,
    limits: &StepLimits,
    cached: Dtype,
) -> Result<u64> {
    let weights = tensors.bytes();
    let [cache, states, step] = memory_bytes(tensors, limits, cached)?;
    let step = step.saturating_add(KERNELS);
    let adapters = adapter_bytes(tensors, limits);
    let free = runtime.memory()?.free_bytes;
    let beside = [states, step, adapters]
        .into_iter()
        .fold(weights, u64::saturating_add);
    let all = beside.saturating_add(cache);
    if all <= free {
        return Ok(weights);
    }
    let of_states = match limits.slots {
        0 => String::new(),
        slots => format!("{slots} states {}, ", mebibytes(states)),
    };
    let of_adapters = match limits.adapters {
        0 => String::new(),
        count => {
            let rank = limits.adapter_rank;
            format!(
                "{count} adapters of the rank {rank} {}, ",
                mebibytes(adapters)
            )
        }
    };
    let what = format!(
        "the model needs {}: weights {}, a cache of {} positions {}, {of_states}{of_adapters}steps \
         {}; {} are free",
        mebibytes(all),
        mebibytes(weights),
        limits.blocks * limits.places,
        mebibytes(cache),
        mebibytes(step),
        mebibytes(free)
    );
    let each = cache / (limits.blocks * limits.places).max(1);
    let left = free.saturating_sub(beside);
    let advice = match left / each.max(1) {
        0 if limits.adapters > 0 && beside > free && beside.saturating_sub(adapters) <= free => {
            "fewer adapters, or a smaller rank".to_owned()
        }
        0 if limits.slots > 0 && beside > free => {
            "fewer requests at once, each of which has a state, or a smaller model".to_owned()
        }
        0 => "a smaller model, or one quantised to fewer bits".to_owned(),
        positions => format!("a cache of at most {positions} positions"),
    };
    Err(LlmError::Memory {
        what,
        advice,
        needed_bytes: all,
        free_bytes: free,
    })
}

/// Compares what is planned, of which nothing is a choice of the caller, with the device's free
/// memory.
///
/// # Errors
/// [`LlmError::Memory`].
pub(crate) fn check_free(runtime: &Runtime, bytes: u64, advice: &str) -> Result<()> {
    let (all, free) = (bytes.saturating_add(KERNELS), runtime.memory()?.free_bytes);
    match all <= free {
        true => Ok(()),
        false => Err(LlmError::Memory {
            what: format!(
                "the model needs {}; {} are free",
                mebibytes(all),
                mebibytes(free)
            ),
            advice: advice.to_owned(),
            needed_bytes: all,
            free_bytes: free,
        }),
    }
}
