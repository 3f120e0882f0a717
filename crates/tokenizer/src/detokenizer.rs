//! Text of tokens that come one by one, held back until it is decided.
//!
//! Bytes that may be the beginning of a character wait for its end. Of a model whose single bytes
//! are tokens of their own, a run of such tokens waits for the token that ends it: as Hugging
//! Face's decoder has it, the run is text if all of it is, and else one U+FFFD for each byte.

use crate::source::TokenizerSource;

/// Turns tokens into text as they come.
#[derive(Debug)]
pub struct Detokenizer<'a> {
    source: &'a TokenizerSource,
    /// Bytes that are not decided yet.
    held: Vec<u8>,
    /// Whether what is held is a run of tokens of single bytes.
    is_byte_run: bool,
    drops_space: bool,
    keeps_control: bool,
}

impl<'a> Detokenizer<'a> {
    pub(crate) fn new(
        source: &'a TokenizerSource,
        drops_space: bool,
        keeps_control: bool,
    ) -> Detokenizer<'a> {
        Detokenizer {
            source,
            held: Vec::new(),
            is_byte_run: false,
            drops_space,
            keeps_control,
        }
    }

    /// Bytes that wait for the tokens behind them.
    pub fn held_bytes(&self) -> usize {
        self.held.len()
    }

    /// Appends the text that this token decides, which may be none. Tokens that are not known
    /// have no text; nor have control tokens, unless they were asked for.
    pub fn push(&mut self, token: u32, text: &mut String) {
        if self.source.is_control(token) {
            self.flush(text);
            if self.keeps_control {
                let bytes = self.source.token_bytes(token);
                text.push_str(&String::from_utf8_lossy(&bytes));
            }
            return;
        }
        let is_byte = self.source.is_byte_token(token);
        if is_byte != self.is_byte_run {
            self.flush(text);
            self.is_byte_run = is_byte;
        }
        let bytes = self.source.token_bytes(token);
        let mut bytes = &bytes[..];
        if self.drops_space && !bytes.is_empty() {
            self.drops_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.held.extend(bytes);
        if !is_byte {
            self.release(text);
        }
    }

    /// Appends what is still held, as the last text.
    pub fn finish(&mut self, text: &mut String) {
        self.flush(text);
    }

    /// Appends all that is held.
    fn flush(&mut self, text: &mut String) {
        match str::from_utf8(&self.held) {
            Ok(held) => text.push_str(held),
            Err(_) if self.is_byte_run => {
                text.extend(self.held.iter().map(|_| char::REPLACEMENT_CHARACTER));
            }
            Err(_) => text.push_str(&String::from_utf8_lossy(&self.held)),
        }
        self.held.clear();
        self.is_byte_run = false;
    }

    /// Appends what is decided of a text in which any bytes may follow.
    fn release(&mut self, text: &mut String) {
        let mut decided = self.held.len();
        for chunk in self.held.utf8_chunks() {
            let invalid = chunk.invalid();
            let is_last = invalid.as_ptr_range().end == self.held.as_ptr_range().end;
            if !invalid.is_empty() && is_last && may_go_on(invalid) {
                decided -= invalid.len();
            }
        }
        text.push_str(&String::from_utf8_lossy(&self.held[..decided]));
        self.held.drain(..decided);
    }
}

/// Whether these bytes, which are no character, are the beginning of one.
fn may_go_on(bytes: &[u8]) -> bool {
    match str::from_utf8(bytes) {
        Ok(_) => false,
        Err(error) => error.valid_up_to() == 0 && error.error_len().is_none(),
    }
}
