//! Tokens and logarithms of their probabilities, as JSON has them.

use fercuda_tokenizer::Tokenizer;

/// A logarithm as JSON has it, which has no infinity.
pub(crate) fn finite(log: f32) -> f32 {
    if log.is_finite() { log } else { -9999.0 }
}

/// A token's text, and its bytes.
pub(crate) fn shown_token(tokenizer: &Tokenizer, token: u32) -> (String, Vec<u8>) {
    let bytes = tokenizer.token_bytes(token);
    (String::from_utf8_lossy(&bytes).into_owned(), bytes)
}
