//! Unigram models of SentencePiece: the most probable tokens of a normalised text.

use crate::error::{Result, TokenizerError};
use crate::vocabulary::{TokenKind, Vocabulary};

/// How much worse the unknown token is than the worst.
const UNKNOWN_PENALTY: f64 = 10.0;

/// What a Unigram model has beside its vocabulary.
#[derive(Debug)]
pub(crate) struct UnigramModel {
    pub(crate) adds_space_prefix: bool,
    pub(crate) merges_spaces: bool,
    unknown_score: f64,
    /// A double array of texts that are replaced: an offset into the replacements for each.
    nodes: Vec<u32>,
    replacements: Vec<u8>,
}

impl UnigramModel {
    /// Checks the map of characters, which may be empty.
    pub(crate) fn new(vocabulary: &Vocabulary, characters: &[u8]) -> Result<UnigramModel> {
        let hint = "a GGUF file whose tokenizer.ggml.precompiled_charsmap is whole";
        let (nodes, replacements) = match characters.split_at_checked(4) {
            None if characters.is_empty() => (Vec::new(), Vec::new()),
            None => {
                return Err(TokenizerError::malformed(
                    "a map of characters of 4 bytes",
                    hint,
                ));
            }
            Some((size, rest)) => {
                let size = u32::from_le_bytes([size[0], size[1], size[2], size[3]]) as usize;
                let Some((nodes, replacements)) = rest.split_at_checked(size) else {
                    let what = format!("a map of {size} bytes of characters in {}", rest.len());
                    return Err(TokenizerError::malformed(what, hint));
                };
                let nodes = nodes.chunks_exact(4);
                let nodes = nodes.map(|it| u32::from_le_bytes([it[0], it[1], it[2], it[3]]));
                (nodes.collect(), replacements.to_vec())
            }
        };
        let mut worst = f64::from(f32::MAX);
        for (id, kind) in vocabulary.kinds.iter().enumerate() {
            if *kind == TokenKind::Normal {
                worst = worst.min(f64::from(vocabulary.score(id as u32)));
            }
        }
        Ok(UnigramModel {
            adds_space_prefix: true,
            merges_spaces: true,
            unknown_score: worst - UNKNOWN_PENALTY,
            nodes,
            replacements,
        })
    }

    /// Appends the tokens of a text.
    pub(crate) fn encode(&self, vocabulary: &Vocabulary, text: &str, tokens: &mut Vec<u32>) {
        let text = self.normalized(vocabulary, text);
        if text.is_empty() {
            return;
        }
        // Of each end: the best score, the token that ends there, where it begins.
        let unknown = vocabulary.unknown;
        let mut best = vec![(f64::MIN, unknown, 0); text.len() + 1];
        best[0].0 = 0.0;
        for (from, first) in text.char_indices() {
            let so_far = best[from].0;
            let mut has_one = false;
            let rest = &text.as_bytes()[from..];
            vocabulary
                .order
                .prefixes(&vocabulary.table, rest, |len, token| {
                    let to = from + len;
                    if !text.is_char_boundary(to) {
                        return;
                    }
                    has_one |= len == first.len_utf8();
                    let is_defined = vocabulary.kind(token) == Some(TokenKind::UserDefined);
                    let score = match is_defined {
                        true => 0.0,
                        false => f64::from(vocabulary.score(token)),
                    };
                    if so_far + score > best[to].0 {
                        best[to] = (so_far + score, Some(token), from);
                    }
                });
            let to = from + first.len_utf8();
            if !has_one && so_far + self.unknown_score > best[to].0 {
                best[to] = (so_far + self.unknown_score, unknown, from);
            }
        }
        let start = tokens.len();
        let mut at = text.len();
        let mut before = None;
        while at > 0 {
            let (_, token, from) = best[at];
            // A run of unknown texts is one unknown token.
            if token != unknown || before != Some(unknown) {
                tokens.extend(token);
            }
            before = Some(token);
            at = from;
        }
        tokens[start..].reverse();
    }

    fn normalized(&self, vocabulary: &Vocabulary, text: &str) -> String {
        const SPACE: char = '\u{2581}';
        let mut normal = String::with_capacity(text.len() + 3);
        let (mut is_in_word, mut has_prefix) = (false, false);
        let mut take = |part: &str| {
            for it in part.chars() {
                if it == ' ' {
                    is_in_word = false;
                    if !self.merges_spaces {
                        normal.push(SPACE);
                    }
                    continue;
                }
                if !is_in_word {
                    is_in_word = true;
                    if self.merges_spaces || (self.adds_space_prefix && !has_prefix) {
                        normal.push(SPACE);
                        has_prefix = true;
                    }
                }
                normal.push(it);
            }
        };
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let defined = vocabulary.defined_prefix(rest);
            if defined > 0 {
                take(&rest[..defined]);
                rest = &rest[defined..];
                continue;
            }
            match self.replaced(rest) {
                Some((len, replacement)) => {
                    take(&replacement);
                    rest = &rest[len..];
                }
                None => {
                    take(&rest[..first.len_utf8()]);
                    rest = &rest[first.len_utf8()..];
                }
            }
        }
        normal
    }

    /// The longest text at the front that is replaced, and by what.
    fn replaced(&self, text: &str) -> Option<(usize, String)> {
        let node = |at: u32| self.nodes.get(at as usize).copied();
        let base = |unit: u32| (unit >> 10) << ((unit & (1 << 9)) >> 6);
        let mut at = base(node(0)?);
        let mut longest = None;
        for (index, byte) in text.bytes().enumerate() {
            at ^= u32::from(byte);
            let Some(unit) = node(at) else { break };
            if byte == 0 || unit & (1 << 31 | 0xff) != u32::from(byte) {
                break;
            }
            at ^= base(unit);
            if unit & (1 << 8) != 0
                && let Some(value) = node(at)
            {
                longest = Some((index + 1, value & !(1 << 31)));
            }
        }
        let (len, offset) = longest.filter(|it| text.is_char_boundary(it.0))?;
        let from = self.replacements.get(offset as usize..)?;
        let end = from.iter().position(|it| *it == 0)?;
        Some((len, str::from_utf8(&from[..end]).ok()?.to_owned()))
    }
}
