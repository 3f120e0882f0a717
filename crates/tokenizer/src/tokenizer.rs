//! The tokenizer of a model, from a GGUF file or a tokenizer.json.

use fercuda_modelfile::Gguf;

use crate::detokenizer::Detokenizer;
use crate::error::{Result, TokenizerError};
use crate::gguf;
use crate::hf::HfTokenizer;
use crate::prompt::{Prompt, PromptText, Special};
use crate::source::TokenizerSource;

/// Bytes of the longest text that is encoded in one call; places in it are u32.
const MOST_TEXT: usize = 1 << 30;
/// Tokens at the end of a vocabulary that one of two models of a family may lack, at most.
const PADDING: usize = 1024;

/// Turns text into tokens and back.
#[derive(Debug)]
pub struct Tokenizer {
    source: TokenizerSource,
}

impl Tokenizer {
    /// The tokenizer that a GGUF file's metadata describe.
    ///
    /// # Errors
    /// [`TokenizerError::Key`] for keys that are absent or of another type,
    /// [`TokenizerError::Unsupported`] for a model or a pre-tokenizer that is not known, and
    /// [`TokenizerError::Malformed`] for lists that contradict each other.
    pub fn from_gguf<B: AsRef<[u8]>>(file: &Gguf<B>) -> Result<Tokenizer> {
        let source = TokenizerSource::Gguf(Box::new(gguf::load(file)?));
        Ok(Tokenizer { source })
    }

    /// The tokenizer of a Hugging Face `tokenizer.json`.
    ///
    /// # Errors
    /// [`TokenizerError::Malformed`] for what the reader of that format refuses.
    pub fn from_json(file: &[u8]) -> Result<Tokenizer> {
        let source = TokenizerSource::Hf(Box::new(HfTokenizer::new(file)?));
        Ok(Tokenizer { source })
    }

    /// Says which tokens end a generation, as a `generation_config.json` names them, instead of
    /// those found by their texts.
    pub fn set_generation_ends(&mut self, tokens: Vec<u32>) {
        match &mut self.source {
            TokenizerSource::Gguf(it) => it.ends.generation_ends = tokens,
            TokenizerSource::Hf(it) => it.generation_ends = tokens,
        }
    }

    /// The tokens of a text, with those around it that the model wants (BOS, EOS), none twice.
    ///
    /// # Errors
    /// [`TokenizerError::Text`] for a text of more than 1 GiB, or one that the tokenizer refuses.
    pub fn encode(&self, text: &str, special: Special) -> Result<Vec<u32>> {
        self.encode_text(PromptText::new(text, special), true)
    }

    /// The tokens of a text that stands within others: no BOS, no EOS.
    ///
    /// # Errors
    /// As of [`Tokenizer::encode`].
    pub fn encode_part(&self, text: &str, special: Special) -> Result<Vec<u32>> {
        self.encode_text(PromptText::new(text, special), false)
    }

    /// The tokens of a rendered prompt. The template's control tokens become tokens, those in the
    /// texts of messages stay text. A BOS comes first if the model wants one and the template has
    /// not written it; an EOS is the template's to write.
    ///
    /// # Errors
    /// As of [`Tokenizer::encode`].
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        let mut tokens = self.encode_text(PromptText::of(prompt), false)?;
        if let Some(bos) = self.leading_bos()
            && tokens.first() != Some(&bos)
        {
            tokens.insert(0, bos);
        }
        Ok(tokens)
    }

    fn encode_text(&self, text: PromptText<'_>, is_framed: bool) -> Result<Vec<u32>> {
        let len = text.text.len();
        if len > MOST_TEXT {
            return Err(TokenizerError::Text {
                what: format!("a text of {len} bytes, at most {MOST_TEXT} are encoded at once"),
                hint: "the text in parts",
            });
        }
        let gguf = match &self.source {
            TokenizerSource::Gguf(gguf) => gguf,
            TokenizerSource::Hf(hf) => return hf.encode(text, is_framed),
        };
        let mut tokens = Vec::new();
        gguf.encode(text, &mut tokens);
        let ends = &gguf.ends;
        if is_framed {
            let bos = ends.bos.filter(|_| ends.adds_bos);
            if let Some(bos) = bos.filter(|bos| tokens.first() != Some(bos)) {
                tokens.insert(0, bos);
            }
            let eos = ends.eos.filter(|_| ends.adds_eos).or(ends.separator);
            tokens.extend(eos.filter(|eos| tokens.last() != Some(eos)));
        }
        Ok(tokens)
    }

    /// The token that every text begins with.
    fn leading_bos(&self) -> Option<u32> {
        match &self.source {
            TokenizerSource::Gguf(it) => it.ends.bos.filter(|_| it.ends.adds_bos),
            TokenizerSource::Hf(it) => it.leading_bos(),
        }
    }

    /// The text of tokens, control tokens left out.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut text = String::new();
        let mut detokenizer = self.detokenizer();
        for token in tokens {
            detokenizer.push(*token, &mut text);
        }
        detokenizer.finish(&mut text);
        text
    }

    /// A stream of tokens to text that begins a text.
    pub fn detokenizer(&self) -> Detokenizer<'_> {
        let drops_space = match &self.source {
            TokenizerSource::Gguf(it) => it.drops_first_space(),
            TokenizerSource::Hf(it) => it.drops_first_space(),
        };
        Detokenizer::new(&self.source, drops_space, false)
    }

    /// A stream of tokens to text that goes on behind a prompt: a first space is kept. With
    /// `keeps_control` the texts of control tokens are kept too.
    pub fn detokenizer_behind(&self, keeps_control: bool) -> Detokenizer<'_> {
        Detokenizer::new(&self.source, false, keeps_control)
    }

    /// Number of tokens; ids are below it.
    pub fn vocabulary_size(&self) -> usize {
        match &self.source {
            TokenizerSource::Gguf(it) => it.vocabulary.len(),
            TokenizerSource::Hf(it) => it.vocabulary_size(),
        }
    }

    /// The first token that means another text in that tokenizer, if there is one. Models of one
    /// family pad their vocabularies to different lengths: up to 1024 tokens at the end may be of
    /// one alone.
    pub fn first_other_token(&self, than: &Tokenizer) -> Option<u32> {
        let sizes = [self.vocabulary_size(), than.vocabulary_size()];
        let both = sizes[0].min(sizes[1]) as u32;
        let is_other = |it: &u32| self.token_bytes(*it) != than.token_bytes(*it);
        let is_longer = sizes[0].abs_diff(sizes[1]) > PADDING;
        (0..both).find(is_other).or(is_longer.then_some(both))
    }

    /// A token as the model's file spells it.
    pub fn piece(&self, token: u32) -> Option<String> {
        match &self.source {
            TokenizerSource::Gguf(it) => {
                let piece = it.vocabulary.pieces.text(token);
                let is_known = (token as usize) < it.vocabulary.len();
                is_known.then(|| String::from_utf8_lossy(piece).into_owned())
            }
            TokenizerSource::Hf(it) => it.piece(token),
        }
    }

    /// The token that the model's file spells so.
    pub fn token_of_piece(&self, piece: &str) -> Option<u32> {
        match &self.source {
            TokenizerSource::Gguf(it) => it.vocabulary.pieces.find(piece.as_bytes()),
            TokenizerSource::Hf(it) => it.token_of_piece(piece),
        }
    }

    /// The bytes that a token stands for within a text; of control tokens those of their texts.
    pub fn token_bytes(&self, token: u32) -> Vec<u8> {
        self.source.token_bytes(token)
    }

    /// Whether a token is structure, not text.
    pub fn is_control(&self, token: u32) -> bool {
        self.source.is_control(token)
    }

    /// Whether generation ends at this token.
    pub fn ends_generation(&self, token: u32) -> bool {
        self.generation_ends().contains(&token)
    }

    /// Tokens at which generation ends: of a text, of a turn, of a message.
    pub fn generation_ends(&self) -> &[u32] {
        match &self.source {
            TokenizerSource::Gguf(it) => &it.ends.generation_ends,
            TokenizerSource::Hf(it) => &it.generation_ends,
        }
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        match &self.source {
            TokenizerSource::Gguf(it) => it.ends.bos,
            TokenizerSource::Hf(it) => it.leading_bos(),
        }
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        match &self.source {
            TokenizerSource::Gguf(it) => it.ends.eos,
            TokenizerSource::Hf(it) => it.generation_ends.first().copied(),
        }
    }

    /// The token that stands for text without tokens.
    pub fn unknown(&self) -> Option<u32> {
        match &self.source {
            TokenizerSource::Gguf(it) => it.vocabulary.unknown,
            TokenizerSource::Hf(it) => it.unknown(),
        }
    }

    /// Texts of control tokens, for a chat template to keep them out of messages.
    pub fn control_texts(&self) -> Vec<String> {
        match &self.source {
            TokenizerSource::Gguf(it) => it.control_texts().map(str::to_owned).collect(),
            TokenizerSource::Hf(it) => it.control_texts(),
        }
    }
}
