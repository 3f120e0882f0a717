//! Text of a template, rewritten where minijinja reads it unlike jinja2.
//!
//! - Line ends are one newline each, and the one behind `{% raw %}` stays.
//! - `generation` blocks, which only mark what an assistant wrote, become blocks with a scope.
//! - What a loop goes over passes through a function that refuses none, as Python does.
//! - A text before `%` passes through a filter, as minijinja has no such operator for texts.
//! - Sums and assigned values pass through filters that bound them (`sums`).
//!
//! It takes steps that are linear in the text, as brackets in brackets are few. What would take
//! the compiler too deep is refused before that.
//!
//! No line is added or taken away, so that errors name the template's own.

use super::sums::{with_kept_value, with_sums};
use super::tag_tokens::{TagTokenKind, quoted_len, tag_tokens};

/// The function that refuses none.
pub(crate) const EACH: &str = "__fercuda_each";
/// The filter that fills a format.
pub(crate) const PERCENT: &str = "__fercuda_percent";

/// Bytes of a template, at most.
const MOST_BYTES: usize = 1 << 18;
/// Tokens of a tag, at most: the compiler goes a level down for each.
const MOST_TOKENS: usize = 2000;
/// Brackets in brackets, at most.
const MOST_BRACKETS: usize = 32;
/// Tags `elif`, at most, for the same reason.
const MOST_ELIF: usize = 1000;

/// A limit that a template exceeds.
#[derive(Debug)]
pub(crate) struct SourceExcess {
    /// The line, from 1.
    pub(crate) line: usize,
    pub(crate) what: String,
}

/// The text that minijinja compiles.
///
/// # Errors
/// Which limit the template exceeds, and where.
pub(crate) fn rewritten(source: &str) -> Result<String, SourceExcess> {
    if source.len() > MOST_BYTES {
        let what = format!("{} bytes, more than {MOST_BYTES}", source.len());
        return Err(SourceExcess { line: 1, what });
    }
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = &source[..];
    let mut elifs = 0;
    while let Some((at, end)) = next_tag(rest) {
        out.push_str(&rest[..at]);
        let (tag, behind) = (&rest[at..end], &rest[end..]);
        let is_closed = ["%}", "}}", "#}"].iter().any(|it| tag.ends_with(it));
        if !tag.starts_with("{#") {
            elifs += usize::from(tag.starts_with("{%") && tag[2..].contains("elif"));
            check_tag(tag, elifs).map_err(|what| {
                let before = source.len() - rest.len() + at;
                let line = 1 + source[..before].matches('\n').count();
                SourceExcess { line, what }
            })?;
        }
        if tag.len() < 4 || !is_closed {
            // It does not end, as the compiler will say.
            rest = &rest[at..];
            break;
        }
        rest = behind;
        if tag.starts_with("{#") {
            out.push_str(tag);
            continue;
        }
        let (open, inner, close) = parts_of(tag);
        match inner.trim() {
            "generation" | "endgeneration" if tag.starts_with("{%") => {
                out.push_str(open);
                out.push_str(&inner.replacen("generation", "with", 1));
                out.push_str(close);
            }
            "raw" if tag.starts_with("{%") => {
                // Nothing in it is a tag.
                let to = behind.find("endraw").unwrap_or(behind.len());
                let to = behind[..to].rfind("{%").unwrap_or(to);
                out.push_str(tag);
                if behind.starts_with('\n') && close == "%}" {
                    out.push('\n');
                }
                out.push_str(&behind[..to]);
                rest = &behind[to..];
            }
            _ => {
                let is_block = tag.starts_with("{%");
                let mut inner = with_formats(inner);
                if is_block {
                    inner = with_kept_value(&with_checked_loop(&inner));
                }
                out.push_str(open);
                out.push_str(&with_sums(&inner, is_block));
                out.push_str(close);
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Compares a tag with the limits; `elifs` are the tags `elif` so far.
fn check_tag(tag: &str, elifs: usize) -> Result<(), String> {
    let tokens = tag_tokens(&tag[2..]);
    let (mut depth, mut deepest) = (0_usize, 0);
    for token in &tokens {
        match token.kind {
            TagTokenKind::Open => depth += 1,
            TagTokenKind::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    for (count, most, what) in [
        (tokens.len(), MOST_TOKENS, "a tag of more tokens than"),
        (deepest, MOST_BRACKETS, "more brackets in brackets than"),
        (elifs, MOST_ELIF, "more tags elif than"),
    ] {
        if count > most {
            return Err(format!("{what} {most}"));
        }
    }
    Ok(())
}

/// Where the next tag begins and ends; texts within it may have what ends one.
fn next_tag(text: &str) -> Option<(usize, usize)> {
    let opens = |pair: &[u8]| pair[0] == b'{' && matches!(pair[1], b'%' | b'{' | b'#');
    let at = text.as_bytes().windows(2).position(opens)?;
    let closing = match &text[at..at + 2] {
        "{%" => "%}",
        "{{" => "}}",
        _ => {
            let end = text[at..].find("#}").map_or(text.len(), |it| at + it + 2);
            return Some((at, end));
        }
    };
    let mut place = at + 2;
    let mut depth = 0_usize;
    while place < text.len() {
        let rest = &text[place..];
        let first = rest.as_bytes()[0];
        if depth == 0 && rest.starts_with(closing) {
            return Some((at, place + 2));
        }
        place += match first {
            b'\'' | b'"' => quoted_len(rest),
            b'{' | b'[' | b'(' => {
                depth += 1;
                1
            }
            b'}' | b']' | b')' => {
                depth = depth.saturating_sub(1);
                1
            }
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
    }
    // One that does not end: the compiler says so.
    Some((at, text.len()))
}

/// The beginning of a tag, what is in it, and its end, with the signs that trim.
fn parts_of(tag: &str) -> (&str, &str, &str) {
    let is_sign = |it: u8| it == b'-' || it == b'+';
    let bytes = tag.as_bytes();
    let open = 2 + usize::from(bytes.get(2).is_some_and(|it| is_sign(*it)));
    let mut close = tag.len().saturating_sub(2);
    if close > open && is_sign(bytes[close - 1]) {
        close -= 1;
    }
    let (open, close) = (open.min(tag.len()), close.max(open.min(tag.len())));
    (&tag[..open], &tag[open..close], &tag[close..])
}

/// Steps over texts in quotes and what is in brackets: calls with each place outside of them.
fn outside(text: &str, mut is_found: impl FnMut(&str, usize) -> bool) -> Option<usize> {
    let (mut at, mut depth) = (0, 0_usize);
    while at < text.len() {
        let rest = &text[at..];
        if depth == 0 && is_found(rest, at) {
            return Some(at);
        }
        at += match rest.as_bytes()[0] {
            b'\'' | b'"' => quoted_len(rest),
            b'{' | b'[' | b'(' => {
                depth += 1;
                1
            }
            b'}' | b']' | b')' => {
                depth = depth.saturating_sub(1);
                1
            }
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
    }
    None
}

/// Whether a word stands at a place, with nothing of a name before or behind it.
fn is_word_at(text: &str, at: usize, word: &str) -> bool {
    let is_name = |it: Option<char>| it.is_some_and(|it| it.is_alphanumeric() || it == '_');
    text[at..].starts_with(word)
        && !is_name(text[..at].chars().next_back())
        && !is_name(text[at + word.len()..].chars().next())
}

/// `for x in EACH(values) if ...`.
fn with_checked_loop(inner: &str) -> String {
    let trimmed = inner.trim_start();
    let start = inner.len() - trimmed.len();
    if !is_word_at(inner, start, "for") {
        return inner.to_owned();
    }
    let Some(of) = outside(inner, |_, at| is_word_at(inner, at, "in")) else {
        return inner.to_owned();
    };
    let values = &inner[of + 2..];
    let end = outside(values, |_, at| {
        is_word_at(values, at, "if") || is_word_at(values, at, "recursive")
    });
    let (values, behind) = values.split_at(end.unwrap_or(values.len()));
    format!("{}in {EACH}({}) {behind}", &inner[..of], values)
}

/// `'format'|PERCENT(operand)` for `'format' % operand`.
fn with_formats(inner: &str) -> String {
    let mut out = String::with_capacity(inner.len());
    let mut rest = inner;
    while !rest.is_empty() {
        let len = match rest.as_bytes()[0] {
            b'\'' | b'"' => quoted_len(rest),
            _ => {
                let len = rest.find(['\'', '"']).unwrap_or(rest.len());
                out.push_str(&rest[..len]);
                rest = &rest[len..];
                continue;
            }
        };
        out.push_str(&rest[..len]);
        rest = &rest[len..];
        let operand = rest.trim_start().strip_prefix('%');
        if let Some(operand) = operand {
            let operand = operand.trim_start();
            let len = operand_len(operand);
            out.push_str(&format!("|{PERCENT}({})", with_formats(&operand[..len])));
            rest = &operand[len..];
        }
    }
    out
}

/// Bytes of a name, a literal or brackets, and of what is called or taken of it.
fn operand_len(text: &str) -> usize {
    let mut at = match text.as_bytes().first() {
        Some(b'\'' | b'"') => quoted_len(text),
        Some(b'(' | b'[' | b'{') => bracket_len(text),
        _ => 0,
    };
    while at < text.len() {
        let rest = &text[at..];
        let Some(first) = rest.chars().next() else {
            break;
        };
        at += match first {
            '(' | '[' => bracket_len(rest),
            '.' | '_' => 1,
            it if it.is_alphanumeric() => it.len_utf8(),
            _ => break,
        };
    }
    at
}

/// Bytes of brackets with what is in them.
fn bracket_len(text: &str) -> usize {
    let end = outside(&text[1..], |rest, _| rest.starts_with([')', ']', '}']));
    end.map_or(text.len(), |it| it + 2)
}
