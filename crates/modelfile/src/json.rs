//! Scanner of JSON texts that keeps places, not values.
//!
//! A header of a hundred megabytes would be several times as large as a tree of values. Here the
//! caller keeps offsets of what it will read again.
//!
//! Invariant: strings are checked to be UTF-8 when they are passed over, so that a text need not be
//! checked as a whole each time that a part of it is read; no depth of nesting overflows the stack.

use std::borrow::Cow;

use crate::error::{Error, Result, shown};

/// Nesting below a value that is skipped.
const DEPTH: usize = 64;

/// A place in a JSON text, which is `base` bytes behind the beginning of its file.
#[derive(Clone)]
pub(crate) struct JsonCursor<'a> {
    text: &'a [u8],
    at: usize,
    base: usize,
}

impl<'a> JsonCursor<'a> {
    pub(crate) fn new(text: &'a [u8], at: usize, base: usize) -> JsonCursor<'a> {
        JsonCursor { text, at, base }
    }

    /// Offset in the text.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn malformed(&self, what: impl Into<String>) -> Error {
        Error::malformed(self.base + self.at, what)
    }

    fn expected(&self, what: &str) -> Error {
        match self.text.get(self.at) {
            Some(found) => {
                let found = char::from(*found);
                self.malformed(format!("{found:?} where {what} should be"))
            }
            None => self.malformed(format!("the text ends where {what} should be")),
        }
    }

    fn skip_blanks(&mut self) {
        let rest = &self.text[self.at..];
        let blanks = rest.iter().take_while(|it| b" \t\n\r".contains(it));
        self.at += blanks.count();
    }

    /// The next byte behind blanks, if there is one.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        self.skip_blanks();
        self.text.get(self.at).copied()
    }

    pub(crate) fn expect(&mut self, byte: u8) -> Result<()> {
        if self.peek() != Some(byte) {
            return Err(self.expected(&format!("`{}`", char::from(byte))));
        }
        self.at += 1;
        Ok(())
    }

    /// Whether `byte` is next; it is passed over if so.
    pub(crate) fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Whether only blanks are left.
    pub(crate) fn expect_end(&mut self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.expected("the end")),
        }
    }

    /// A string with its escapes undone.
    pub(crate) fn string(&mut self) -> Result<Cow<'a, str>> {
        let quoted = self.quoted()?;
        let within = &quoted[1..quoted.len() - 1];
        if !within.contains('\\') {
            return Ok(Cow::Borrowed(within));
        }
        match serde_json::from_str(quoted) {
            Ok(text) => Ok(Cow::Owned(text)),
            Err(_) => Err(self.malformed(format!(
                "no escapes of a string: {}",
                shown(quoted.as_bytes())
            ))),
        }
    }

    /// A string as it is written.
    fn quoted(&mut self) -> Result<&'a str> {
        let from = {
            self.expect(b'"')?;
            self.at - 1
        };
        while let Some(byte) = self.text.get(self.at) {
            match byte {
                b'"' => {
                    let quoted = &self.text[from..=self.at];
                    let text = str::from_utf8(quoted);
                    let text = text.map_err(|_| self.malformed("a string that is no UTF-8"))?;
                    self.at += 1;
                    return Ok(text);
                }
                b'\\' => self.at += 2,
                0..0x20 => return Err(self.malformed("a control character within a string")),
                _ => self.at += 1,
            }
        }
        self.at = from;
        Err(self.malformed("a string without an end"))
    }

    /// The key at a place that was passed over.
    pub(crate) fn key(&self, at: usize) -> Cow<'a, str> {
        let mut cursor = JsonCursor { at, ..self.clone() };
        cursor.string().unwrap_or_default()
    }

    /// A number that is neither negative nor a fraction.
    pub(crate) fn number(&mut self) -> Result<u64> {
        self.skip_blanks();
        let rest = &self.text[self.at..];
        let len = rest.iter().take_while(|it| it.is_ascii_digit()).count();
        let is_whole = !matches!(rest.get(len), Some(b'.' | b'e' | b'E'));
        let has_zero = len > 1 && rest[0] == b'0';
        let number = str::from_utf8(&rest[..len])
            .ok()
            .and_then(|it| it.parse().ok());
        match number.filter(|_| is_whole && !has_zero) {
            Some(number) => {
                self.at += len;
                Ok(number)
            }
            None => Err(self.expected("a number from 0 to 2^64 - 1")),
        }
    }

    /// Hands the cursor, behind each key, to `member`, which passes the value over.
    pub(crate) fn members(
        &mut self,
        mut member: impl FnMut(&mut JsonCursor<'a>, usize) -> Result<()>,
    ) -> Result<()> {
        self.expect(b'{')?;
        if self.take(b'}') {
            return Ok(());
        }
        loop {
            self.skip_blanks();
            let key_at = self.at;
            self.quoted()?;
            self.expect(b':')?;
            member(self, key_at)?;
            if self.take(b'}') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// Hands the cursor to `item` before each item of an array.
    pub(crate) fn items(
        &mut self,
        mut item: impl FnMut(&mut JsonCursor<'a>) -> Result<()>,
    ) -> Result<()> {
        self.expect(b'[')?;
        if self.take(b']') {
            return Ok(());
        }
        loop {
            item(self)?;
            if self.take(b']') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// Passes over a value of any kind.
    pub(crate) fn skip(&mut self) -> Result<()> {
        self.skip_within(DEPTH)
    }

    fn skip_within(&mut self, depth: usize) -> Result<()> {
        let Some(below) = depth.checked_sub(1) else {
            return Err(self.malformed(format!("more than {DEPTH} values within each other")));
        };
        match self.peek() {
            Some(b'"') => self.quoted().map(|_| ()),
            Some(b'{') => self.members(|cursor, _| cursor.skip_within(below)),
            Some(b'[') => self.items(|cursor| cursor.skip_within(below)),
            _ => {
                let rest = &self.text[self.at..];
                let is_part = |it: &&u8| it.is_ascii_alphanumeric() || b"+-.".contains(it);
                let word = &rest[..rest.iter().take_while(is_part).count()];
                let is_value = matches!(word, b"true" | b"false" | b"null")
                    || serde_json::from_slice::<serde_json::Number>(word).is_ok();
                let len = word.len();
                if !is_value {
                    return Err(self.expected("a value"));
                }
                self.at += len;
                Ok(())
            }
        }
    }
}

/// The text with quotes around the words that Python's writer has for floats that JSON does not
/// have: `NaN`, `Infinity` and `-Infinity`.
pub(crate) fn with_texts_for_no_numbers(text: &str) -> Cow<'_, str> {
    const WORDS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
    let (mut to, mut done, mut at) = (String::new(), 0, 0);
    let bytes = text.as_bytes();
    let mut is_text = false;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if is_text => at += 1,
            b'"' => is_text = !is_text,
            b'-' | b'I' | b'N' if !is_text => {
                if let Some(word) = WORDS
                    .iter()
                    .find(|it| bytes[at..].starts_with(it.as_bytes()))
                {
                    to.push_str(&text[done..at]);
                    to.extend(["\"", word, "\""]);
                    at += word.len();
                    done = at;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    match done {
        0 => Cow::Borrowed(text),
        _ => {
            to.push_str(&text[done..]);
            Cow::Owned(to)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Result<()> {
        let mut cursor = JsonCursor::new(text.as_bytes(), 0, 100);
        cursor.skip()?;
        cursor.expect_end()
    }

    #[test]
    fn texts_are_valid_as_serde_json_says() {
        let texts = [
            "{}",
            "[]",
            " [1, -2.5e+3, true, null, \"a\\\"b\\u00e9\"] ",
            "{\"a\": {\"b\": [[]]}}",
            "",
            "{",
            "[1,]",
            "{\"a\"}",
            "{\"a\":1,}",
            "nul",
            "[01]",
            "\"a",
            "\"a\nb\"",
            "1 2",
            "--1",
        ];
        for text in texts {
            let valid = serde_json::from_str::<serde_json::Value>(text).is_ok();
            assert_eq!(said(text).is_ok(), valid, "{text:?}");
        }
        let deep = "[".repeat(1 << 20);
        let error = said(&deep).unwrap_err().to_string();
        assert!(error.contains("byte 164: more than 64 values"), "{error}");
    }

    #[test]
    fn strings_and_numbers_are_read_with_their_places() {
        let text = "{\"na\\u006de\" : [0, 18446744073709551615]}";
        let mut seen = Vec::new();
        let mut cursor = JsonCursor::new(text.as_bytes(), 0, 0);
        let read = cursor.members(|cursor, key_at| {
            let mut key = JsonCursor::new(text.as_bytes(), key_at, 0);
            assert_eq!((key_at, key.string()?.as_ref()), (1, "name"));
            cursor.items(|cursor| {
                seen.push(cursor.number()?);
                Ok(())
            })
        });
        read.unwrap();
        assert_eq!(seen, [0, u64::MAX]);
        for wrong in ["-1", "1.5", "1e3", "18446744073709551616", "00", "x"] {
            assert!(
                JsonCursor::new(wrong.as_bytes(), 0, 0).number().is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn words_that_are_no_numbers_become_texts() {
        for (text, wanted) in [
            (
                r#"{"a": [0.0, Infinity], "b": NaN}"#,
                r#"{"a": [0.0, "Infinity"], "b": "NaN"}"#,
            ),
            (r"[-Infinity,-1]", r#"["-Infinity",-1]"#),
            (
                r#"{"NaN\"": "\\", "x": NaN"#,
                r#"{"NaN\"": "\\", "x": "NaN""#,
            ),
            (r#"["Infinity \" NaN"]"#, r#"["Infinity \" NaN"]"#),
            ("Infinit", "Infinit"),
            (r#""\"#, r#""\"#),
        ] {
            assert_eq!(with_texts_for_no_numbers(text), wanted);
        }
    }
}
