//! Tokenizers of Hugging Face's `tokenizer.json`, by the crate `tokenizers`.
//!
//! That crate encodes. What it lacks is added here: text that becomes no control token, prompts in
//! which some text is structure and some is not, a BOS that does not come twice, and the bytes of
//! single tokens.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;
use tokenizers::tokenizer::{Model, Normalizer, PreTokenizer};
use tokenizers::{AddedVocabulary, NormalizedString, OffsetType, PreTokenizedString, Token};

use crate::alphabet::{ByteAlphabet, byte_of};
use crate::ends::{is_generation_end, without_inner_ends};
use crate::error::{Result, TokenizerError};
use crate::prompt::{PromptText, Special};
use crate::special::{SpecialMatcher, SpecialToken, TextPart};

const HINT: &str = "a tokenizer.json that the Python package tokenizers reads";

/// How tokens spell bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenSpelling {
    /// In GPT-2's alphabet.
    Bytes,
    /// As text, in which this character is a space; single bytes are `<0xAB>`.
    Text { has_byte_tokens: bool },
    /// As words, but for what begins with `##`.
    WordPieces,
}

/// A tokenizer of that format.
#[derive(Debug)]
pub(crate) struct HfTokenizer {
    inner: tokenizers::Tokenizer,
    /// The added tokens without those that are control tokens.
    plain: AddedVocabulary,
    specials: SpecialMatcher,
    control: BTreeSet<u32>,
    unknown: Option<u32>,
    /// Tokens before and behind every text.
    before: Vec<u32>,
    behind: Vec<u32>,
    spelling: TokenSpelling,
    drops_first_space: bool,
    alphabet: ByteAlphabet,
    pub(crate) generation_ends: Vec<u32>,
}

fn failed(what: &str, error: impl std::fmt::Display) -> TokenizerError {
    TokenizerError::Text {
        what: format!("{what}: {error}"),
        hint: "a shorter text, and a tokenizer.json that the Python package tokenizers reads",
    }
}

/// Runs code of the crate `tokenizers`, some of which panics on files that contradict themselves.
fn guarded<T>(what: &str, work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(made)) => Ok(made),
        Ok(Err(error)) => Err(failed(what, error)),
        Err(_) => Err(failed(what, "the crate tokenizers panicked")),
    }
}

impl HfTokenizer {
    pub(crate) fn new(file: &[u8]) -> Result<HfTokenizer> {
        let malformed = |what: String| TokenizerError::malformed(what, HINT);
        let json: Value =
            serde_json::from_slice(file).map_err(|error| malformed(error.to_string()))?;
        let read = || {
            let mut inner = tokenizers::Tokenizer::from_bytes(file)?;
            // Of training; an engine decides how much fits.
            inner.with_truncation(None)?;
            inner.with_padding(None);
            Ok(inner)
        };
        let inner = guarded("tokenizer.json", read)?;
        let mut plain = AddedVocabulary::new();
        let added = inner.get_added_tokens_decoder();
        let mut ids: Vec<u32> = added.keys().copied().collect();
        ids.sort_unstable();
        let tokens = ids.iter().map(|id| added[id].clone());
        let add = || plain.add_tokens(tokens, inner.get_model(), inner.get_normalizer());
        guarded("added tokens", add)?;
        plain.set_encode_special_tokens(true);
        let control = ids.iter().copied().filter(|id| added[id].special);
        let special = |id: &u32| {
            let token = &added[id];
            let special = SpecialToken {
                id: *id,
                is_control: token.special,
                strips_left: token.lstrip,
                strips_right: token.rstrip,
            };
            (special, token.content.as_bytes())
        };
        let specials: Vec<(SpecialToken, &[u8])> = ids.iter().map(special).collect();
        let (spelling, drops_first_space) = spelling_of(&json["decoder"]);
        let unknown = unknown_of(&json["model"], &inner);
        let mut made = HfTokenizer {
            unknown,
            control: control.collect(),
            specials: SpecialMatcher::new(&specials)?,
            plain,
            inner,
            before: Vec::new(),
            behind: Vec::new(),
            spelling,
            drops_first_space,
            alphabet: ByteAlphabet::new(),
            generation_ends: Vec::new(),
        };
        made.learn_ends()?;
        Ok(made)
    }

    /// Finds what the post-processor puts around a text, and which tokens end a generation.
    fn learn_ends(&mut self) -> Result<()> {
        let encode = |framed| {
            let encoding = guarded("a", || self.inner.encode_fast("a", framed))?;
            Ok::<Vec<u32>, TokenizerError>(encoding.get_ids().to_vec())
        };
        let (bare, framed) = (encode(false)?, encode(true)?);
        let starts = (0..=framed.len().saturating_sub(bare.len()))
            .find(|at| framed[*at..].starts_with(&bare) && !bare.is_empty());
        if let Some(at) = starts {
            self.before = framed[..at].to_vec();
            self.behind = framed[at + bare.len()..].to_vec();
        }
        let added = self.inner.get_added_tokens_decoder();
        let texts = added
            .iter()
            .map(|(id, token)| (token.content.as_str(), *id));
        let texts: Vec<(&str, u32)> = texts.collect();
        let ends = texts.iter().filter(|it| is_generation_end(it.0));
        let mut ends: BTreeSet<u32> = ends.map(|it| it.1).collect();
        let find = |text: &str| texts.iter().find(|it| it.0 == text).map(|it| it.1);
        without_inner_ends(&mut ends, find);
        self.generation_ends = ends.into_iter().collect();
        Ok(())
    }

    pub(crate) fn encode(&self, text: PromptText<'_>, is_framed: bool) -> Result<Vec<u32>> {
        let mut tokens = self.tokens_of(text, false)?;
        // A model may have control tokens among its pieces, and so make one of text.
        let is_made = |id: &u32| self.is_control(*id) && Some(*id) != self.unknown;
        if text.has_no_structure() && tokens.iter().any(is_made) {
            tokens = self.tokens_of(text, true)?;
        }
        if is_framed {
            if !(self.before.len() == 1 && tokens.starts_with(&self.before)) {
                tokens.splice(..0, self.before.iter().copied());
            }
            if !(self.behind.len() == 1 && tokens.ends_with(&self.behind)) {
                tokens.extend(&self.behind);
            }
        }
        Ok(tokens)
    }

    fn tokens_of(&self, text: PromptText<'_>, breaks_control: bool) -> Result<Vec<u32>> {
        let what = format!("a text of {} bytes", text.text.len());
        let work = || {
            let mut split = match breaks_control {
                true => self.broken_split(text)?,
                false => self.added_split(text)?,
            };
            if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut split)?;
            }
            let model = self.inner.get_model();
            model.tokenize_in_pretokenized(&mut split, None)?;
            split.into_encoding(None, 0, OffsetType::None)
        };
        Ok(guarded(&what, work)?.get_ids().to_vec())
    }

    /// A normalised text in which added tokens are found.
    fn added_split(&self, text: PromptText<'_>) -> tokenizers::Result<PreTokenizedString> {
        let normalizer = self.inner.get_normalizer();
        if text.has_no_structure() {
            return Ok(self.plain.extract_and_normalize(normalizer, text.text));
        }
        if text.is_all_structure() {
            let added = self.inner.get_added_vocabulary();
            return Ok(added.extract_and_normalize(normalizer, text.text));
        }
        let mut parts = Vec::new();
        self.specials.parts(text, |part| {
            parts.push(match part {
                TextPart::Text(it) => (it.len(), None),
                TextPart::Token(id, it) => (it.len(), Some(id)),
            });
        });
        self.split_at(text.text, &parts)
    }

    /// A normalised text that is split within every text of a control token.
    fn broken_split(&self, text: PromptText<'_>) -> tokenizers::Result<PreTokenizedString> {
        let mut parts = Vec::new();
        let all = PromptText::new(text.text, Special::Parsed);
        self.specials.parts(all, |part| match part {
            TextPart::Text(it) => parts.push((it.len(), None)),
            TextPart::Token(id, it) if !self.is_control(id) => parts.push((it.len(), Some(id))),
            // Every character by itself, so that no piece is left that is the whole.
            TextPart::Token(_, it) => parts.extend(it.chars().map(|it| (it.len_utf8(), None))),
        });
        self.split_at(text.text, &parts)
    }

    /// A normalised text in parts of these lengths, some of which are tokens.
    fn split_at(
        &self,
        text: &str,
        parts: &[(usize, Option<u32>)],
    ) -> tokenizers::Result<PreTokenizedString> {
        let mut split: PreTokenizedString = text.into();
        split.split(|_, whole| {
            let mut pieces: Vec<(NormalizedString, Option<Vec<Token>>)> = Vec::new();
            let mut at = 0;
            for (len, token) in parts {
                let range = tokenizers::normalizer::Range::Original(at..at + len);
                let piece = whole.slice(range).unwrap_or_default();
                let tokens = token.map(|id| vec![Token::new(id, String::new(), (0, 0))]);
                pieces.push((piece, tokens));
                at += len;
            }
            Ok(pieces)
        })?;
        split.normalize(|part| match self.inner.get_normalizer() {
            Some(normalizer) => normalizer.normalize(part),
            None => Ok(()),
        })?;
        Ok(split)
    }

    /// The token before every text, if it is one.
    pub(crate) fn leading_bos(&self) -> Option<u32> {
        match self.before[..] {
            [bos] => Some(bos),
            _ => None,
        }
    }

    pub(crate) fn vocabulary_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    pub(crate) fn piece(&self, token: u32) -> Option<String> {
        self.inner.id_to_token(token)
    }

    pub(crate) fn token_of_piece(&self, piece: &str) -> Option<u32> {
        self.inner.token_to_id(piece)
    }

    pub(crate) fn is_control(&self, token: u32) -> bool {
        self.control.contains(&token)
    }

    /// The token of text that has no other.
    pub(crate) fn unknown(&self) -> Option<u32> {
        self.unknown
    }

    pub(crate) fn is_byte_token(&self, token: u32) -> bool {
        let has_byte_tokens = matches!(
            self.spelling,
            TokenSpelling::Text {
                has_byte_tokens: true
            }
        );
        let piece = has_byte_tokens.then(|| self.piece(token)).flatten();
        piece.is_some_and(|it| byte_of(it.as_bytes()).is_some())
    }

    pub(crate) fn drops_first_space(&self) -> bool {
        self.drops_first_space
    }

    pub(crate) fn token_bytes(&self, token: u32) -> Vec<u8> {
        let added = self.inner.get_added_vocabulary();
        if let Some(added) = added.get_added_tokens_decoder().get(&token) {
            return added.content.clone().into_bytes();
        }
        let Some(piece) = self.inner.id_to_token(token) else {
            return Vec::new();
        };
        match self.spelling {
            TokenSpelling::Bytes => {
                let bytes = self.alphabet.bytes(piece.as_bytes());
                bytes.unwrap_or_else(|| piece.into_bytes())
            }
            TokenSpelling::Text { has_byte_tokens } => {
                match byte_of(piece.as_bytes()).filter(|_| has_byte_tokens) {
                    Some(byte) => vec![byte],
                    None => piece.replace('\u{2581}', " ").into_bytes(),
                }
            }
            TokenSpelling::WordPieces => match piece.strip_prefix("##") {
                Some(rest) => rest.as_bytes().to_vec(),
                None => format!(" {piece}").into_bytes(),
            },
        }
    }

    pub(crate) fn control_texts(&self) -> Vec<String> {
        let added = self.inner.get_added_tokens_decoder();
        let control = added.into_iter().filter(|it| it.1.special);
        control.map(|it| it.1.content).collect()
    }
}

/// The token that a model has for what it cannot encode: by its text, or its place.
fn unknown_of(model: &Value, inner: &tokenizers::Tokenizer) -> Option<u32> {
    let text = model["unk_token"].as_str();
    let place = model["unk_id"].as_u64().and_then(|it| it.try_into().ok());
    text.and_then(|it| inner.token_to_id(it)).or(place)
}

/// How the tokens of a decoder spell text, and whether a text loses a space at its front.
fn spelling_of(decoder: &Value) -> (TokenSpelling, bool) {
    let kind = |it: &Value| it["type"].as_str().unwrap_or("").to_owned();
    let steps = match decoder["decoders"].as_array() {
        Some(steps) => steps.clone(),
        None => vec![decoder.clone()],
    };
    let kinds: Vec<String> = steps.iter().map(kind).collect();
    let has = |wanted: &str| kinds.iter().any(|it| it == wanted);
    if has("ByteLevel") {
        return (TokenSpelling::Bytes, false);
    }
    if has("WordPiece") {
        return (TokenSpelling::WordPieces, true);
    }
    let strips = |it: &Value| it["type"] == "Strip" && it["start"].as_u64() > Some(0);
    let is_metaspace = |it: &Value| {
        let scheme = it["prepend_scheme"].as_str();
        it["type"] == "Metaspace" && scheme != Some("never") && it["add_prefix_space"] != false
    };
    let drops = steps.iter().any(|it| strips(it) || is_metaspace(it));
    let has_byte_tokens = has("ByteFallback");
    (TokenSpelling::Text { has_byte_tokens }, drops)
}
