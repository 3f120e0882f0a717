//! Tokenizers that GGUF files describe, as llama.cpp encodes with them.

mod bpe;
mod load;
mod split;
mod spm;
mod unigram;
mod wpm;

use crate::alphabet::byte_of;
use crate::prompt::PromptText;
use crate::special::{SpecialMatcher, TextPart};
use crate::vocabulary::{TokenKind, Vocabulary};
use bpe::MergeTable;
use split::{BpeTraits, WordSplitter};
use unigram::UnigramModel;
use wpm::WordPieceNormal;

pub(crate) use load::load;

/// A vocabulary and what encodes with it.
#[derive(Debug)]
pub(crate) struct GgufTokenizer {
    pub(crate) vocabulary: Vocabulary,
    model: GgufModel,
    specials: SpecialMatcher,
    pub(crate) ends: Framing,
}

/// Which tokens stand around a text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Framing {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) adds_bos: bool,
    pub(crate) adds_eos: bool,
    /// What comes last where it is not the EOS.
    pub(crate) separator: Option<u32>,
    pub(crate) generation_ends: Vec<u32>,
}

#[derive(Debug)]
enum GgufModel {
    Bpe {
        splitter: WordSplitter,
        traits: BpeTraits,
        merges: Box<MergeTable>,
    },
    Spm {
        adds_space_prefix: bool,
    },
    Unigram(UnigramModel),
    WordPiece(WordPieceNormal),
}

impl GgufTokenizer {
    /// Appends the tokens of a text, without those around it.
    pub(crate) fn encode(&self, text: PromptText<'_>, tokens: &mut Vec<u32>) {
        let mut is_behind_special = true;
        self.specials.parts(text, |part| match part {
            TextPart::Token(id, _) => {
                tokens.push(id);
                is_behind_special = true;
            }
            TextPart::Text(text) => {
                self.encode_part(text, is_behind_special, tokens);
                is_behind_special = false;
            }
        });
    }

    fn encode_part(&self, text: &str, is_behind_special: bool, tokens: &mut Vec<u32>) {
        let vocabulary = &self.vocabulary;
        match &self.model {
            GgufModel::Bpe {
                splitter,
                traits,
                merges,
            } => {
                let escaped = traits.escapes_spaces.then(|| escaped(text));
                splitter.words(escaped.as_deref().unwrap_or(text), |word| {
                    let is_whole =
                        traits.ignores_merges || (traits.keeps_newlines && word.starts_with('\n'));
                    match vocabulary.table.find(word.as_bytes()) {
                        Some(token) if is_whole => tokens.push(token),
                        _ => merges.encode(vocabulary, word, traits.is_byte_level, tokens),
                    }
                });
            }
            GgufModel::Spm { adds_space_prefix } => {
                let mut spelled = String::with_capacity(text.len() + 3);
                if *adds_space_prefix && is_behind_special {
                    spelled.push(SPACE);
                }
                spelled.push_str(&escaped(text));
                spm::encode(vocabulary, &spelled, tokens);
            }
            GgufModel::Unigram(model) => model.encode(vocabulary, text, tokens),
            GgufModel::WordPiece(normal) => wpm::encode(vocabulary, *normal, text, tokens),
        }
    }

    /// The bytes that a token stands for in text.
    pub(crate) fn token_bytes(&self, id: u32) -> Vec<u8> {
        let vocabulary = &self.vocabulary;
        let text = vocabulary.table.text(id);
        match vocabulary.kind(id) {
            Some(TokenKind::Byte) => match byte_of(vocabulary.pieces.text(id)) {
                Some(byte) => vec![byte],
                None => text.to_vec(),
            },
            Some(TokenKind::Normal | TokenKind::Unused) if self.unescapes() => {
                match str::from_utf8(text) {
                    Ok(text) => text.replace(SPACE, " ").into_bytes(),
                    Err(_) => text.to_vec(),
                }
            }
            _ => text.to_vec(),
        }
    }

    fn unescapes(&self) -> bool {
        match &self.model {
            GgufModel::Bpe { traits, .. } => traits.escapes_spaces,
            _ => true,
        }
    }

    /// Whether the first token's text begins with a space that is no part of the text.
    pub(crate) fn drops_first_space(&self) -> bool {
        match &self.model {
            GgufModel::Bpe { .. } => false,
            GgufModel::Spm { adds_space_prefix } => *adds_space_prefix,
            GgufModel::Unigram(model) => model.adds_space_prefix,
            GgufModel::WordPiece(_) => true,
        }
    }

    /// Whether a token is a single byte beside tokens of text.
    pub(crate) fn is_byte_token(&self, id: u32) -> bool {
        let is_byte_level = match &self.model {
            GgufModel::Bpe { traits, .. } => traits.is_byte_level,
            _ => false,
        };
        !is_byte_level && self.vocabulary.kind(id) == Some(TokenKind::Byte)
    }

    /// Texts of control tokens.
    pub(crate) fn control_texts(&self) -> impl Iterator<Item = &str> {
        let vocabulary = &self.vocabulary;
        let ids = (0..vocabulary.len() as u32).filter(|id| {
            let kind = vocabulary.kind(*id);
            kind.is_some_and(TokenKind::is_control)
        });
        ids.filter_map(|id| str::from_utf8(vocabulary.table.text(id)).ok())
            .filter(|it| !it.is_empty())
    }
}

const SPACE: char = '\u{2581}';

fn escaped(text: &str) -> String {
    text.replace(' ', "\u{2581}")
}
