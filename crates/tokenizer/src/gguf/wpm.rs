//! WordPiece of BERT models: words of normalised text, each the longest tokens from its front.

use unicode_normalization_alignments::UnicodeNormalization;
use unicode_normalization_alignments::char::is_combining_mark;

use crate::vocabulary::Vocabulary;

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
        _ if normal.lowers => word.push(lowered(it)),
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
    } else if it == '\0' || it == '\u{fffd}' || it.is_control() {
        CharKind::Dropped
    } else if is_combining_mark(it) {
        CharKind::Accent
    } else if is_punctuation(it) || is_ideograph(it) {
        CharKind::Alone
    } else {
        CharKind::Word
    }
}

fn is_punctuation(it: char) -> bool {
    it.is_ascii_punctuation()
        || (!it.is_ascii() && punctuation().is_match(it.encode_utf8(&mut [0; 4])))
}

fn punctuation() -> &'static regex::Regex {
    use std::sync::LazyLock;
    static CLASS: LazyLock<regex::Regex> =
        LazyLock::new(|| regex::Regex::new(r"^\p{P}$").expect("an expression of this file"));
    &CLASS
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

/// The lower case of a character where it is one character.
fn lowered(it: char) -> char {
    let mut lower = it.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some(one), None) => one,
        _ => it,
    }
}

/// Appends the tokens of a word, or the unknown token if one part of it has none.
fn finish(vocabulary: &Vocabulary, word: &mut String, tokens: &mut Vec<u32>) {
    if word.is_empty() {
        return;
    }
    let before = tokens.len();
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
