//! Search for the texts of tokens that are found before a text is split into words.
//!
//! Control tokens are found only where a prompt has structure; texts that the model's authors
//! defined as tokens (`<think>` in some models) are found everywhere, as both Hugging Face's and
//! llama.cpp's tokenizers do. Of texts that begin at one place the longest is taken.

use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind, StartKind};

use crate::error::{Result, TokenizerError};
use crate::prompt::PromptText;

/// A token that is found by its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpecialToken {
    pub(crate) id: u32,
    pub(crate) is_control: bool,
    /// Whitespace before and behind it is dropped.
    pub(crate) strips_left: bool,
    pub(crate) strips_right: bool,
}

/// Finders of all such tokens.
#[derive(Debug)]
pub(crate) struct SpecialMatcher {
    all: AhoCorasick,
    tokens: Vec<SpecialToken>,
    /// Those that are no control tokens.
    defined: AhoCorasick,
    defined_tokens: Vec<SpecialToken>,
}

/// A part of a text: a token, or text to encode.
#[derive(Debug, PartialEq)]
pub(crate) enum TextPart<'a> {
    /// A token, and its text with the whitespace that it drops.
    Token(u32, &'a str),
    Text(&'a str),
}

fn finder(texts: &[&[u8]]) -> Result<AhoCorasick> {
    let mut builder = AhoCorasick::builder();
    builder.match_kind(MatchKind::LeftmostLongest);
    builder.start_kind(StartKind::Both);
    builder.build(texts).map_err(|error| {
        let what = format!("{} special tokens: {error}", texts.len());
        TokenizerError::malformed(what, "a model with fewer or shorter special tokens")
    })
}

impl SpecialMatcher {
    /// Of tokens with their texts. An empty text is never found.
    pub(crate) fn new(specials: &[(SpecialToken, &[u8])]) -> Result<SpecialMatcher> {
        let found = specials.iter().filter(|it| !it.1.is_empty());
        let texts: Vec<&[u8]> = found.clone().map(|it| it.1).collect();
        let tokens = found.clone().map(|it| it.0).collect();
        let defined = found.filter(|it| !it.0.is_control);
        let defined_texts: Vec<&[u8]> = defined.clone().map(|it| it.1).collect();
        Ok(SpecialMatcher {
            all: finder(&texts)?,
            tokens,
            defined: finder(&defined_texts)?,
            defined_tokens: defined.map(|it| it.0).collect(),
        })
    }

    /// The next token at or behind a place, and where its text is.
    fn next(&self, prompt: &PromptText<'_>, at: usize) -> Option<(SpecialToken, usize, usize)> {
        let text = prompt.text;
        let input = |from| Input::new(text).span(from..text.len());
        let defined = |input: Input<'_>| {
            let found = self.defined.find(input)?;
            let token = self.defined_tokens[found.pattern().as_usize()];
            Some((token, found.start(), found.end()))
        };
        if prompt.has_no_structure() {
            return defined(input(at));
        }
        let mut from = at;
        loop {
            let found = self.all.find(input(from))?;
            let token = self.tokens[found.pattern().as_usize()];
            let range = found.range();
            if !token.is_control || prompt.is_structure(&range) {
                return Some((token, range.start, range.end));
            }
            // A shorter one may begin there that is defined.
            let here = input(range.start).anchored(Anchored::Yes);
            if let Some(found) = defined(here) {
                return Some(found);
            }
            let first = text[range.start..].chars().next();
            from = range.start + first.map_or(1, char::len_utf8);
        }
    }

    /// Splits a text.
    pub(crate) fn parts<'a>(&self, prompt: PromptText<'a>, mut each: impl FnMut(TextPart<'a>)) {
        let text = prompt.text;
        let mut at = 0;
        while let Some((token, mut from, mut to)) = self.next(&prompt, at) {
            if token.strips_left {
                from = at + text[at..from].trim_end_matches(is_blank).len();
            }
            if token.strips_right {
                to = text.len() - text[to..].trim_start_matches(is_blank).len();
            }
            if from > at {
                each(TextPart::Text(&text[at..from]));
            }
            each(TextPart::Token(token.id, &text[from..to]));
            at = to;
        }
        if at < text.len() {
            each(TextPart::Text(&text[at..]));
        }
    }
}

/// Whitespace as C's functions know it.
fn is_blank(it: char) -> bool {
    it.is_ascii_whitespace() || it == '\u{b}'
}
