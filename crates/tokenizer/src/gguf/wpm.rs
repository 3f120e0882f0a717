//! WordPiece of BERT models: words of normalised text, each the longest tokens from its front.

use std::sync::LazyLock;

use regex::Regex;
use unicode_normalization_alignments::UnicodeNormalization;

use crate::vocabulary::Vocabulary;

/// Characters of a word that is split; a longer one is unknown, as BERT's own tokenizer has it.
const LONGEST_WORD: usize = 100;

/// How text is normalised before it is split.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordPieceNormal {
    pub(crate) lowers: bool,
    pub(crate) strips_accents: bool,
}

/// Appends the tokens of a text.
pub(crate) fn encode(
    vocabulary: &Vocabulary,
    normal: WordPieceNormal,
    text: &str,
    tokens: &mut Vec<u32>,
) {
    let mut word = String::new();
    let mut take = |it: char| match kind_of(it) {
        CharKind::Blank => finish(vocabulary, &mut word, tokens),
        CharKind::Dropped => {}
        CharKind::Accent if normal.strips_accents => {}
        CharKind::Alone => {
            finish(vocabulary, &mut word, tokens);
            word.push(it);
            finish(vocabulary, &mut word, tokens);
        }
        _ if normal.lowers => word.extend(it.to_lowercase()),
        _ => word.push(it),
    };
    match normal.strips_accents {
        true => text.nfd().for_each(|(it, _)| take(it)),
        false => text.chars().for_each(&mut take),
    }
    finish(vocabulary, &mut word, tokens);
}

enum CharKind {
    Blank,
    Dropped,
    Accent,
    /// A word by itself.
    Alone,
    Word,
}

fn kind_of(it: char) -> CharKind {
    if it.is_whitespace() {
        CharKind::Blank
    } else if it.is_ascii() {
        match (it.is_ascii_punctuation(), it.is_ascii_control()) {
            (true, _) => CharKind::Alone,
            (_, true) => CharKind::Dropped,
            _ => CharKind::Word,
        }
    } else if is_ideograph(it) {
        CharKind::Alone
    } else {
        CLASSES.kind_of(it)
    }
}

/// Classes of characters beyond ASCII, as BERT's own normaliser has them.
struct CharClasses {
    dropped: Regex,
    accent: Regex,
    alone: Regex,
}

static CLASSES: LazyLock<CharClasses> = LazyLock::new(|| {
    let class = |name: &str| Regex::new(name).expect("an expression of this file");
    CharClasses {
        dropped: class(r"\A[\p{Cc}\p{Cf}\p{Co}\x{fffd}]"),
        accent: class(r"\A\p{Mn}"),
        alone: class(r"\A\p{P}"),
    }
});

impl CharClasses {
    fn kind_of(&self, it: char) -> CharKind {
        let mut bytes = [0; 4];
        let text = it.encode_utf8(&mut bytes);
        if it.is_alphabetic() && !self.accent.is_match(text) {
            CharKind::Word
        } else if self.dropped.is_match(text) {
            CharKind::Dropped
        } else if self.accent.is_match(text) {
            CharKind::Accent
        } else if self.alone.is_match(text) {
            CharKind::Alone
        } else {
            CharKind::Word
        }
    }
}

/// Ideographs, each a word; the ranges are those of the models' own code.
fn is_ideograph(it: char) -> bool {
    matches!(u32::from(it),
        0x4e00..=0x9fff
        | 0x3400..=0x4dbf
        | 0x20000..=0x2a6df
        | 0x2a700..=0x2b73f
        | 0x2b740..=0x2b81f
        | 0x2b920..=0x2ceaf
        | 0xf900..=0xfaff
        | 0x2f800..=0x2fa1f)
}

/// Appends the tokens of a word, or the unknown token if one part of it has none.
fn finish(vocabulary: &Vocabulary, word: &mut String, tokens: &mut Vec<u32>) {
    if word.is_empty() {
        return;
    }
    let before = tokens.len();
    if word.chars().count() > LONGEST_WORD {
        word.clear();
        tokens.extend(vocabulary.unknown);
        return;
    }
    let spelled = format!("\u{2581}{word}");
    word.clear();
    let bytes = spelled.as_bytes();
    let mut from = 0;
    while from < bytes.len() {
        let mut found = None;
        let rest = &bytes[from..];
        vocabulary
            .order
            .prefixes(&vocabulary.table, rest, |len, token| {
                if spelled.is_char_boundary(from + len) {
                    found = Some((token, from + len));
                }
            });
        let Some((token, to)) = found else {
            tokens.truncate(before);
            break;
        };
        tokens.push(token);
        from = to;
    }
    if tokens.len() == before {
        tokens.extend(vocabulary.unknown);
    }
}
