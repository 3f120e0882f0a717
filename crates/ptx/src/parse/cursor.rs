//! Tokeniser: white space, names, words, numbers, strings.
//!
//! Invariant: between calls the position is at the first byte of a token, or at the end.

use super::error::{ParseError, excerpt};
use crate::ast::Imm;
use crate::word_table::{HASH_START, hash_step};

/// The parser's result; the error is boxed so that a success costs no more than its value.
pub(super) type ParseResult<T> = Result<T, Box<ParseError>>;

/// Characters of a message that are kept.
const MESSAGE: usize = 200;

const NAME: u8 = 1;
const WORD: u8 = 2;

/// What a byte may be part of.
static CLASS: [u8; 256] = {
    let mut class = [0; 256];
    let mut b = 0;
    while b < 256 {
        let c = b as u8;
        if c.is_ascii_alphanumeric() || c == b'_' {
            class[b] = NAME | WORD;
        } else if c == b'$' || c == b'%' {
            class[b] = NAME;
        }
        b += 1;
    }
    class
};

#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    pos: usize,
    line: u32,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Cursor<'a> {
        let mut cursor = Cursor {
            text,
            pos: 0,
            line: 1,
        };
        // A C string handed over with its terminator is common enough to allow.
        cursor.text = cursor.text.trim_end_matches('\0');
        cursor.skip();
        cursor
    }

    pub(super) fn line(&self) -> u32 {
        self.line
    }

    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    /// The next byte; 0 at the end (a zero byte in the text is no token either).
    #[inline]
    pub(super) fn peek(&self) -> u8 {
        self.peek_at(0)
    }

    #[inline]
    pub(super) fn peek_at(&self, ahead: usize) -> u8 {
        self.text
            .as_bytes()
            .get(self.pos + ahead)
            .copied()
            .unwrap_or(0)
    }

    pub(super) fn at_end(&self) -> bool {
        self.pos >= self.text.len()
    }

    /// Passes white space and comments. Stops in front of a comment that never ends.
    #[inline]
    pub(super) fn skip(&mut self) {
        let bytes = self.text.as_bytes();
        while let Some(&b) = bytes.get(self.pos) {
            match b {
                b'\n' => {
                    self.line += 1;
                    self.pos += 1;
                }
                b' ' | b'\t' | b'\r' | 0x0b | 0x0c => self.pos += 1,
                b'/' if self.comment() => {}
                _ => break,
            }
        }
    }

    #[cold]
    fn comment(&mut self) -> bool {
        let rest = &self.text.as_bytes()[self.pos..];
        if rest.starts_with(b"//") {
            self.pos += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
            return true;
        }
        if !rest.starts_with(b"/*") {
            return false;
        }
        let Some(len) = rest[2..].windows(2).position(|w| w == b"*/") else {
            return false;
        };
        let len = len + 4;
        self.line += rest[..len].iter().filter(|&&b| b == b'\n').count() as u32;
        self.pos += len;
        true
    }

    /// Takes `byte` if it is next.
    #[inline]
    pub(super) fn eat(&mut self, byte: u8) -> bool {
        if self.peek() == byte && !self.at_end() {
            self.pos += 1;
            self.skip();
            true
        } else {
            false
        }
    }

    #[inline]
    pub(super) fn expect(&mut self, byte: u8, context: &str) -> ParseResult<()> {
        if self.eat(byte) {
            Ok(())
        } else {
            Err(self.expected(&format!("`{}` {context}", byte as char)))
        }
    }

    /// Takes the name that is next, such as `foo`, `%r1`, `$L_1` or `_`.
    #[inline]
    pub(super) fn name(&mut self, what: &str) -> ParseResult<&'a str> {
        let text = self.name_raw(what)?;
        self.skip();
        Ok(text)
    }

    /// As [`Self::name`], but stays right behind the name, where a `.x` may follow.
    #[inline]
    pub(super) fn name_raw(&mut self, what: &str) -> ParseResult<&'a str> {
        let bytes = self.text.as_bytes();
        let start = self.pos;
        let first = self.peek();
        let mut end = start;
        if CLASS[first as usize] & NAME != 0 && !first.is_ascii_digit() {
            end += 1;
            while end < bytes.len() && CLASS[bytes[end] as usize] & NAME != 0 {
                end += 1;
            }
            if matches!(first, b'%' | b'$') && end == start + 1 {
                end = start;
            }
        }
        if end == start {
            return Err(self.expected(what));
        }
        self.pos = end;
        Ok(&self.text[start..end])
    }

    /// Whether the name that is next is `word`.
    pub(super) fn at_word(&self, word: &str) -> bool {
        let rest = &self.text.as_bytes()[self.pos..];
        let behind = rest.get(word.len()).copied().unwrap_or(0);
        rest.starts_with(word.as_bytes()) && CLASS[behind as usize] & NAME == 0
    }

    /// Whether a name is next.
    pub(super) fn at_name(&self) -> bool {
        let b = self.peek();
        CLASS[b as usize] & NAME != 0 && !b.is_ascii_digit()
    }

    /// A word and its hash: letters, digits, `_`, and `::` between them. Stays right behind it.
    #[inline]
    pub(super) fn word_raw(&mut self) -> (&'a str, u32) {
        let bytes = self.text.as_bytes();
        let start = self.pos;
        let mut end = start;
        let mut hash = HASH_START;
        while let Some(&b) = bytes.get(end) {
            if CLASS[b as usize] & WORD != 0 {
                hash = hash_step(hash, b);
                end += 1;
            } else if b == b':'
                && bytes.get(end + 1) == Some(&b':')
                && bytes
                    .get(end + 2)
                    .is_some_and(|&b| CLASS[b as usize] & WORD != 0)
            {
                hash = hash_step(hash_step(hash, b':'), b':');
                end += 2;
            } else {
                break;
            }
        }
        self.pos = end;
        (&self.text[start..end], hash)
    }

    /// The word of a directive, past its dot, which is next.
    pub(super) fn dot_word(&mut self, what: &str) -> ParseResult<&'a str> {
        if self.peek() != b'.' {
            return Err(self.expected(what));
        }
        let start = self.pos;
        self.pos += 1;
        let (word, _) = self.word_raw();
        if word.is_empty() {
            self.pos = start;
            return Err(self.expected(what));
        }
        self.skip();
        Ok(word)
    }

    /// The word after the next dot, if a dot is next; the position stays.
    pub(super) fn peek_dot_word(&self) -> &'a str {
        let mut ahead = self.clone();
        if ahead.peek() != b'.' {
            return "";
        }
        ahead.pos += 1;
        ahead.word_raw().0
    }

    /// Stays right behind what it passes.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.pos += bytes;
    }

    /// Back to where [`Self::pos`] and [`Self::line`] were read, for an error that points there.
    pub(super) fn rewind(&mut self, pos: usize, line: u32) {
        self.pos = pos;
        self.line = line;
    }

    /// The text between two positions, which must be at tokens' edges.
    pub(super) fn slice(&self, start: usize, end: usize) -> &'a str {
        &self.text[start..end]
    }

    /// `"..."`: what stands between the quotes, as written.
    pub(super) fn string(&mut self, what: &str) -> ParseResult<String> {
        if self.peek() != b'"' {
            return Err(self.expected(what));
        }
        let rest = &self.text[self.pos + 1..];
        // PTX has no escapes: a backslash stands for itself, as in a path of Windows.
        match rest.bytes().position(|b| matches!(b, b'"' | b'\n')) {
            Some(len) if rest.as_bytes()[len] == b'"' => {
                self.pos += len + 2;
                self.skip();
                Ok(rest[..len].to_owned())
            }
            _ => Err(self.error("this string has no closing quote on its line")),
        }
    }

    /// The literal that is next: an integer in any base, with or without `U`, or a float.
    #[inline]
    pub(super) fn number(&mut self) -> ParseResult<Imm> {
        let imm = self.number_raw()?;
        if CLASS[self.peek() as usize] != 0 {
            return Err(self.error("malformed number"));
        }
        self.skip();
        Ok(imm)
    }

    fn number_raw(&mut self) -> ParseResult<Imm> {
        let bytes = self.text.as_bytes();
        let start = self.pos;
        let (radix, prefix) = match (self.peek(), self.peek_at(1)) {
            (b'0', b'x' | b'X') => (16, 2),
            (b'0', b'b' | b'B') => (2, 2),
            (b'0', b'f' | b'F') => return Ok(Imm::F32(self.bits(8)? as u32)),
            (b'0', b'd' | b'D') => return Ok(Imm::F64(self.bits(16)?)),
            (b'0', b'0'..=b'9') => (8, 1),
            (b'0'..=b'9', _) => (10, 0),
            _ => return Err(self.expected("a number")),
        };
        let mut end = start + prefix;
        let mut value: u64 = 0;
        let mut overflow = false;
        while let Some(digit) = bytes.get(end).and_then(|&b| (b as char).to_digit(radix)) {
            let next = value
                .checked_mul(u64::from(radix))
                .and_then(|v| v.checked_add(u64::from(digit)));
            overflow |= next.is_none();
            value = next.unwrap_or(0);
            end += 1;
        }
        let next = bytes.get(end).copied().unwrap_or(0);
        if radix <= 10 && prefix < 2 && matches!(next, b'.' | b'e' | b'E' | b'8' | b'9') {
            return self.decimal_float();
        }
        if end == start + prefix {
            return Err(self.error("a number needs a digit after its prefix"));
        }
        if overflow {
            return Err(self.error("this integer does not fit 64 bits"));
        }
        let unsigned = next == b'U';
        self.pos = end + usize::from(unsigned);
        Ok(Imm::Int {
            value: value as i64,
            unsigned,
        })
    }

    /// The bits behind `0f` or `0d`.
    fn bits(&mut self, digits: usize) -> ParseResult<u64> {
        let start = self.pos + 2;
        let end = self.text.as_bytes()[start..]
            .iter()
            .position(|b| !b.is_ascii_hexdigit())
            .map_or(self.text.len(), |len| start + len);
        if end - start != digits {
            return Err(self.error(&format!(
                "`{}` takes {digits} hexadecimal digits, here are {}",
                &self.text[self.pos..start],
                end - start
            )));
        }
        let bits = u64::from_str_radix(&self.text[start..end], 16)
            .map_err(|_| self.error("malformed number"))?;
        self.pos = end;
        Ok(bits)
    }

    fn decimal_float(&mut self) -> ParseResult<Imm> {
        let bytes = self.text.as_bytes();
        let digits = |mut at: usize| {
            while bytes.get(at).is_some_and(u8::is_ascii_digit) {
                at += 1;
            }
            at
        };
        let mut end = digits(self.pos);
        if bytes.get(end) == Some(&b'.') {
            end = digits(end + 1);
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            end = digits(end + 1 + sign);
        }
        let text = &self.text[self.pos..end];
        if text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(self.error("an octal number has no digit above 7"));
        }
        let value: f64 = text.parse().map_err(|_| self.error("malformed number"))?;
        if value.is_infinite() {
            return Err(
                self.error("this number does not fit 64 bits; infinity is 0d7ff0000000000000")
            );
        }
        self.pos = end;
        Ok(Imm::F64(value.to_bits()))
    }

    /// An error here.
    #[cold]
    pub(super) fn error(&self, message: &str) -> Box<ParseError> {
        // A message may quote the text, where a name can be of any length.
        let mut message = message.to_owned();
        if let Some((end, _)) = message.char_indices().nth(MESSAGE) {
            message.truncate(end);
            message.push_str("...");
        }
        let (column, excerpt) = excerpt(self.text, self.pos);
        Box::new(ParseError {
            line: self.line,
            column,
            message,
            excerpt,
        })
    }

    /// An error at this position with the expected and the actual token.
    #[cold]
    pub(super) fn expected(&self, what: &str) -> Box<ParseError> {
        let rest = &self.text[self.pos.min(self.text.len())..];
        let found = match rest.chars().next() {
            None => "the end of the text".to_owned(),
            Some('/') if rest.starts_with("/*") => "a comment that never ends".to_owned(),
            Some('"') => "a string".to_owned(),
            Some(first) => {
                let len = rest
                    .bytes()
                    .enumerate()
                    .position(|(i, b)| CLASS[b as usize] == 0 && !(i == 0 && b == b'.'))
                    .unwrap_or(rest.len());
                let shown: String = if len > 0 && first.is_ascii() {
                    rest[..len].chars().take(40).collect()
                } else {
                    first.escape_debug().collect()
                };
                format!("`{shown}`")
            }
        };
        self.error(&format!("expected {what}, found {found}"))
    }
}
