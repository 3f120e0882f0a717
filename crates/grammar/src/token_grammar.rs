//! One text on its way through a grammar: which tokens may follow, and which one does.
//!
//! Invariant: what `allowed` says holds for the tokens that were accepted so far.

use std::fmt;

use llguidance::Matcher;
use llguidance::api::StopReason;
use toktrie::SimpleVob;

use crate::error::{GrammarError, first_lines};

/// What is in the way where the parser finds no token.
pub(crate) const NO_TOKEN: &str = "no token of the model fits";

/// Tokens that may follow.
pub struct AllowedTokens(SimpleVob);

impl AllowedTokens {
    /// Whether a token is among them.
    pub fn has(&self, token: u32) -> bool {
        (token as usize) < self.0.len() && self.0.is_allowed(token)
    }

    /// Makes all others impossible.
    pub fn mask(&self, logits: &mut [f32]) {
        let (known, beyond) = logits.split_at_mut(self.0.len().min(logits.len()));
        for (part, bits) in known.chunks_mut(u32::BITS as usize).zip(self.0.as_slice()) {
            if *bits == u32::MAX {
                continue;
            }
            for (at, logit) in part.iter_mut().enumerate() {
                if bits >> at & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        // What the model computes beyond its vocabulary is no token.
        beyond.fill(f32::NEG_INFINITY);
    }
}

impl fmt::Debug for AllowedTokens {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "AllowedTokens({} of {})",
            self.0.num_set(),
            self.0.len()
        )
    }
}

/// A text that follows a grammar. A clone goes on by itself.
#[derive(Clone)]
pub struct TokenGrammar {
    matcher: Matcher,
}

impl TokenGrammar {
    pub(crate) fn new(matcher: Matcher) -> TokenGrammar {
        TokenGrammar { matcher }
    }

    /// The tokens that may follow: where the text may end, those that end a generation too.
    ///
    /// # Errors
    /// [`GrammarError::Stuck`].
    pub fn allowed(&mut self) -> Result<AllowedTokens, GrammarError> {
        match self.matcher.compute_mask_or_eos() {
            Ok(tokens) if tokens.is_zero() => Err(stuck(NO_TOKEN)),
            Ok(tokens) => Ok(AllowedTokens(tokens)),
            Err(error) => Err(self.failure(&error.to_string())),
        }
    }

    /// Goes on by a token that may follow; returns whether the text has ended with it.
    ///
    /// # Errors
    /// [`GrammarError::Stuck`], also of a token that may not follow.
    pub fn accept(&mut self, token: u32) -> Result<bool, GrammarError> {
        match self.matcher.consume_token(token) {
            Ok(()) => Ok(self.has_ended()),
            Err(error) => Err(self.failure(&error.to_string())),
        }
    }

    /// Whether nothing may follow.
    pub fn has_ended(&self) -> bool {
        self.matcher.stop_reason().is_ok() && self.matcher.is_stopped()
    }

    /// Takes back the last tokens that were accepted.
    ///
    /// # Errors
    /// [`GrammarError::Stuck`] of more than there are, or behind an error.
    pub fn take_back(&mut self, count: usize) -> Result<(), GrammarError> {
        let taken = self.matcher.rollback(count);
        taken.map_err(|error| stuck(first_lines(&error.to_string())))
    }

    fn failure(&self, message: &str) -> GrammarError {
        match first_lines(message) {
            what if what.contains("NoExtension") => stuck(NO_TOKEN),
            what => stuck(what),
        }
    }
}

fn stuck(what: impl Into<String>) -> GrammarError {
    GrammarError::Stuck { what: what.into() }
}

impl fmt::Debug for TokenGrammar {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.matcher.stop_reason() {
            StopReason::NotStopped => "goes on".to_owned(),
            reason => reason.to_string(),
        };
        write!(out, "TokenGrammar({state})")
    }
}
