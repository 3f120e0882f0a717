//! Choice of a request's next token by a row of logits.

use fercuda_grammar::{AllowedTokens, GrammarError};

use crate::chosen::ChosenToken;
use crate::request::{FinishReason, RunningRequest};
use crate::sampler::{log_sum, most_likely};

/// Chooses a token, of those that the request's grammar allows, and goes on in the grammar by it.
///
/// # Errors
/// Why there is none.
pub(crate) fn choose(
    request: &mut RunningRequest,
    logits: &mut [f32],
    allowed: Option<Result<AllowedTokens, GrammarError>>,
) -> Result<ChosenToken, FinishReason> {
    let is_possible = |logits: &[f32]| logits.iter().any(|it| *it != f32::NEG_INFINITY);
    if !is_possible(logits) || logits.iter().any(|it| it.is_nan()) {
        return Err(FinishReason::Failed);
    }
    let sum = request.top.map(|_| log_sum(logits));
    let own = sum.map(|_| logits.to_vec());
    let top = most_likely(logits, request.top.unwrap_or_default());
    let less = |logit: f32| logit - sum.unwrap_or_default();
    let top = top.into_iter().map(|(token, logit)| (token, less(logit)));
    let top: Vec<(u32, f32)> = top.collect();
    if let Some(allowed) = allowed {
        let allowed = allowed.map_err(|_| FinishReason::GrammarStuck)?;
        allowed.mask(logits);
        if !is_possible(logits) {
            return Err(FinishReason::GrammarStuck);
        }
    }
    let token = request.sampler.choose(logits, &request.tokens);
    if let Some(grammar) = &mut request.grammar {
        let accepted = grammar.accept(token);
        accepted.map_err(|_| FinishReason::GrammarStuck)?;
    }
    let own = own.and_then(|own| Some(less(*own.get(token as usize)?)));
    Ok(ChosenToken {
        token,
        log_probability: own,
        top,
    })
}

/// The most likely token, with its logit.
pub(crate) fn largest_of((token, logit): (u32, f32)) -> Result<ChosenToken, FinishReason> {
    match logit.is_nan() || logit == f32::NEG_INFINITY {
        true => Err(FinishReason::Failed),
        false => Ok(ChosenToken {
            token,
            log_probability: None,
            top: Vec::new(),
        }),
    }
}
