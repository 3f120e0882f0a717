//! Tokens of a tag: as much of the syntax of expressions as rewriting and limits need.

/// Sort of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TagTokenKind {
    Word,
    Number,
    /// A text in quotes.
    Quoted,
    Open,
    Close,
    Sign,
}

/// A token and its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TagToken<'a> {
    pub(crate) kind: TagTokenKind,
    pub(crate) text: &'a str,
    /// Where it begins.
    pub(crate) at: usize,
}

impl TagToken<'_> {
    /// Where it ends.
    pub(crate) fn end(&self) -> usize {
        self.at + self.text.len()
    }

    pub(crate) fn is_sign(&self, sign: &str) -> bool {
        self.kind == TagTokenKind::Sign && self.text == sign
    }

    pub(crate) fn is_word(&self, word: &str) -> bool {
        self.kind == TagTokenKind::Word && self.text == word
    }
}

/// Bytes of a text in quotes, with them.
pub(crate) fn quoted_len(text: &str) -> usize {
    let quote = text.as_bytes()[0];
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            byte if byte == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn word_len(text: &str) -> usize {
    let end = text.find(|it: char| !(it.is_alphanumeric() || it == '_'));
    end.unwrap_or(text.len())
}

/// Bytes of a number: digits, a fraction, an exponent.
fn number_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut at = word_len(text);
    if bytes.get(at) == Some(&b'.') && is_digit(at + 1) {
        at += 1 + word_len(&text[at + 1..]);
    }
    let is_exponent = at > 0 && matches!(bytes[at - 1], b'e' | b'E') && !text.starts_with("0x");
    if is_exponent && matches!(bytes.get(at), Some(b'+' | b'-')) && is_digit(at + 1) {
        at += 1 + word_len(&text[at + 1..]);
    }
    at
}

/// All tokens of what is in a tag, in order.
pub(crate) fn tag_tokens(text: &str) -> Vec<TagToken<'_>> {
    const PAIRS: [&str; 6] = ["==", "!=", "<=", ">=", "//", "**"];
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let (kind, len) = match first {
            it if it.is_whitespace() => {
                at += it.len_utf8();
                continue;
            }
            '\'' | '"' => (TagTokenKind::Quoted, quoted_len(rest)),
            '(' | '[' | '{' => (TagTokenKind::Open, 1),
            ')' | ']' | '}' => (TagTokenKind::Close, 1),
            it if it.is_ascii_digit() => (TagTokenKind::Number, number_len(rest)),
            it if it.is_alphabetic() || it == '_' => (TagTokenKind::Word, word_len(rest)),
            _ if PAIRS.iter().any(|it| rest.starts_with(it)) => (TagTokenKind::Sign, 2),
            it => (TagTokenKind::Sign, it.len_utf8()),
        };
        // A word has a letter at least, and a number a digit.
        let len = len.max(first.len_utf8());
        let text = &rest[..len];
        tokens.push(TagToken { kind, text, at });
        at += len;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_what_is_between_them_are_the_whole_text() {
        let texts: Vec<&str> =
            tag_tokens("a.b[1.5e+3 -2]//'x\\'+' ~ \"y\"|f(x0=1)==caf\u{e9} **_z")
                .iter()
                .map(|it| it.text)
                .collect();
        let wanted = [
            "a",
            ".",
            "b",
            "[",
            "1.5e+3",
            "-",
            "2",
            "]",
            "//",
            "'x\\'+'",
            "~",
            "\"y\"",
            "|",
            "f",
            "(",
            "x0",
            "=",
            "1",
            ")",
            "==",
            "caf\u{e9}",
            "**",
            "_z",
        ];
        assert_eq!(texts, wanted);
        let mut random = fercuda_trials::rng();
        let all: Vec<char> = "a1.e+-'\"([ \u{e9}\u{301}\u{b2}x{}0_\\".chars().collect();
        for _ in 0..2000 {
            let text = (0..random.usize(0..20)).map(|_| all[random.usize(..all.len())]);
            let text: String = text.collect();
            let mut at = 0;
            for token in tag_tokens(&text) {
                assert!(
                    text[at..token.at].chars().all(char::is_whitespace),
                    "{text:?}"
                );
                assert_eq!(&text[token.at..token.end()], token.text);
                at = token.end();
            }
            assert!(text[at..].chars().all(char::is_whitespace), "{text:?}");
        }
    }
}
