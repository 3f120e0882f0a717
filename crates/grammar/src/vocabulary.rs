//! The tokens of a tokenizer as the parser of grammars has them.

use std::sync::Arc;

use fercuda_tokenizer::Tokenizer;
use toktrie::{INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::error::GrammarError;

/// Bytes of the longest token that a grammar may choose.
const LONGEST: usize = 255;
/// Most tokens and most bytes of all of them.
const MOST_TOKENS: usize = 1 << 21;
const MOST_BYTES: usize = 4_000_000;

/// A table of tokens without a tokenizer: a model chooses how a text is cut into tokens.
struct GrammarVocabulary {
    trie: TokTrie,
}

impl TokenizerEnv for GrammarVocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(text)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// The tokens of a tokenizer. Control tokens have a mark that no text has, so that grammars find
/// them by their names and numbers alone.
///
/// # Errors
/// [`GrammarError::Vocabulary`].
pub(crate) fn vocabulary(tokenizer: &Tokenizer) -> Result<TokEnv, GrammarError> {
    let refused = |what: String| GrammarError::Vocabulary { what };
    let count = tokenizer.vocabulary_size();
    if count == 0 || count > MOST_TOKENS {
        return Err(refused(format!(
            "it has {count} tokens, not 1 to {MOST_TOKENS}"
        )));
    }
    let (mut words, mut bytes) = (Vec::with_capacity(count), 0);
    for token in 0..count as u32 {
        let text = tokenizer.token_bytes(token);
        let is_control = tokenizer.is_control(token);
        let is_left_out =
            text.len() > LONGEST || text.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER);
        let word = match (is_left_out, is_control) {
            (true, _) => Vec::new(),
            (false, true) => [&[TokTrie::SPECIAL_TOKEN_MARKER], &text[..]].concat(),
            (false, false) => text,
        };
        bytes += word.len();
        words.push(word);
    }
    if bytes > MOST_BYTES {
        return Err(refused(format!(
            "its tokens have {bytes} bytes, more than {MOST_BYTES}"
        )));
    }
    let known = tokenizer.generation_ends().iter().copied();
    let ends: Vec<u32> = known.filter(|it| (*it as usize) < count).collect();
    let first = ends.first().copied().unwrap_or(INVALID_TOKEN);
    // Two tokens of one text are one to the table: the first.
    let trie = TokTrie::from(&TokRxInfo::new(count as u32, first), &words);
    let trie = match ends.is_empty() {
        true => trie,
        false => trie.with_eos_tokens(&ends),
    };
    Ok(Arc::new(GrammarVocabulary { trie }))
}
