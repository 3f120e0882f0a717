//! Methods of Python's strings, lists and dicts, for templates that call them.
//!
//! Marks are transparent to what strips a text or looks at its ends.

use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::python::{check_length, python_str};

/// The characters from which marks are taken.
pub(crate) const MARKS: std::ops::RangeInclusive<char> = '\u{ffff0}'..='\u{ffffd}';

fn is_mark(it: char) -> bool {
    MARKS.contains(&it)
}

/// Whether Python's `str.isspace` says so.
fn is_python_space(it: char) -> bool {
    it.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&it)
}

/// A text without these characters at its front; marks among them stay.
fn stripped_front(text: &str, is_stripped: &dyn Fn(char) -> bool) -> String {
    let kept = text.find(|it| !is_mark(it) && !is_stripped(it));
    let kept = kept.unwrap_or(text.len());
    let marks = text[..kept].chars().filter(|it| is_mark(*it));
    let mut out: String = marks.collect();
    out.push_str(&text[kept..]);
    out
}

fn stripped_back(text: &str, is_stripped: &dyn Fn(char) -> bool) -> String {
    let last = text
        .char_indices()
        .rfind(|(_, it)| !is_mark(*it) && !is_stripped(*it));
    let kept = last.map_or(0, |(at, it)| at + it.len_utf8());
    let mut out = text[..kept].to_owned();
    out.extend(text[kept..].chars().filter(|it| is_mark(*it)));
    out
}

/// Both sides or one, of whitespace or of these characters.
pub(crate) fn strip(text: &str, chars: Option<&str>, sides: (bool, bool)) -> String {
    let is_stripped = |it: char| match chars {
        Some(chars) => chars.contains(it),
        None => is_python_space(it),
    };
    let front = match sides.0 {
        true => stripped_front(text, &is_stripped),
        false => text.to_owned(),
    };
    match sides.1 {
        true => stripped_back(&front, &is_stripped),
        false => front,
    }
}

fn no_such(text: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.to_owned())
}

/// Splits at whitespace, at most so often, as `str.split` without a separator.
fn split_blank(text: &str, most: Option<usize>) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_python_space);
    while !rest.is_empty() {
        if most == Some(parts.len()) {
            parts.push(rest.to_owned());
            return parts;
        }
        let end = rest.find(is_python_space).unwrap_or(rest.len());
        parts.push(rest[..end].to_owned());
        rest = rest[end..].trim_start_matches(is_python_space);
    }
    parts
}

fn split(text: &str, args: &[Value], is_reverse: bool) -> Result<Value, Error> {
    let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
    let most = most.and_then(|it| usize::try_from(it).ok());
    let parts: Vec<String> = match (separator, is_reverse) {
        (Some(""), _) => return Err(no_such("empty separator")),
        (None, false) => split_blank(text, most),
        (None, true) => match most {
            None => split_blank(text, None),
            Some(most) => {
                let reversed: String = text.chars().rev().collect();
                let parts = split_blank(&reversed, Some(most));
                let parts = parts.iter().rev().map(|it| it.chars().rev().collect());
                parts.collect()
            }
        },
        (Some(by), false) => match most {
            Some(most) => text.splitn(most + 1, by).map(str::to_owned).collect(),
            None => text.split(by).map(str::to_owned).collect(),
        },
        (Some(by), true) => {
            let parts: Vec<&str> = match most {
                Some(most) => text.rsplitn(most + 1, by).collect(),
                None => text.rsplit(by).collect(),
            };
            parts.iter().rev().map(|it| (*it).to_owned()).collect()
        }
    };
    Ok(Value::from(parts))
}

fn partition(text: &str, by: &str, is_last: bool) -> Result<Value, Error> {
    if by.is_empty() {
        return Err(no_such("empty separator"));
    }
    let found = match is_last {
        true => text.rsplit_once(by),
        false => text.split_once(by),
    };
    let parts = match (found, is_last) {
        (Some((before, behind)), _) => [before, by, behind],
        (None, false) => [text, "", ""],
        (None, true) => ["", "", text],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

/// A text of at least so many characters, filled up on both sides or one.
fn filled(text: &str, args: &[Value], sides: (bool, bool)) -> Result<Value, Error> {
    let (width, fill): (usize, Option<char>) = from_args(args)?;
    let missing = width.min(1 << 16).saturating_sub(text.chars().count());
    let fill = fill.unwrap_or(' ');
    let before = match sides {
        (true, true) => missing / 2 + (missing & width & 1),
        (true, false) => missing,
        _ => 0,
    };
    let mut out = String::new();
    out.extend(std::iter::repeat_n(fill, before));
    out.push_str(text);
    out.extend(std::iter::repeat_n(fill, missing - before));
    Ok(Value::from(out))
}

fn zero_filled(text: &str, width: usize) -> String {
    let missing = width.min(1 << 16).saturating_sub(text.chars().count());
    let (sign, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => (&text[..1], digits),
        None => ("", text),
    };
    format!("{sign}{}{digits}", "0".repeat(missing))
}

/// Lines as Python splits them.
fn lines(text: &str, keeps_ends: bool) -> Vec<String> {
    let ends = [
        '\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}',
        '\u{2029}',
    ];
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some(at) = rest.find(ends) else {
            lines.push(rest.to_owned());
            break;
        };
        let is_pair = rest[at..].starts_with("\r\n");
        let end = rest[at..].chars().next().map_or(1, char::len_utf8);
        let end = at + if is_pair { 2 } else { end };
        lines.push(rest[..if keeps_ends { end } else { at }].to_owned());
        rest = &rest[end..];
    }
    lines
}

/// Whether a text begins or ends so; of a list any.
fn has_end(text: &str, args: &[Value], is_front: bool) -> Result<Value, Error> {
    let (wanted,): (&Value,) = from_args(args)?;
    let text = match is_front {
        true => text.trim_start_matches(is_mark),
        false => text.trim_end_matches(is_mark),
    };
    let is_there = |it: &str| match is_front {
        true => text.starts_with(it),
        false => text.ends_with(it),
    };
    if let Some(wanted) = wanted.as_str() {
        return Ok(Value::from(is_there(wanted)));
    }
    if wanted.kind() != ValueKind::Seq {
        return Err(no_such("a text or a tuple of texts is wanted"));
    }
    let mut any = wanted.try_iter()?;
    Ok(Value::from(any.any(|it| it.as_str().is_some_and(is_there))))
}

/// Refuses formats whose fields are wider than any that a template needs, or take their width from
/// a value: they would fill the memory.
pub(crate) fn check_format(text: &str) -> Result<(), Error> {
    const MOST_DIGITS: usize = 4;
    let (mut digits, mut is_wide) = (0, false);
    for it in text.chars() {
        digits = if it.is_ascii_digit() { digits + 1 } else { 0 };
        is_wide |= digits > MOST_DIGITS;
    }
    let takes_width = text.contains(":{") || text.contains('*') && text.contains('%');
    match (is_wide && text.contains(['%', ':', '{'])) || takes_width {
        true => Err(no_such(
            "a format with a field of more than 9999 characters",
        )),
        false => Ok(()),
    }
}

fn text_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let chars = |args: &[Value]| {
        let (chars,): (Option<String>,) = from_args(args)?;
        Ok::<Option<String>, Error>(chars)
    };
    Ok(Some(match method {
        "strip" => Value::from(strip(text, chars(args)?.as_deref(), (true, true))),
        "lstrip" => Value::from(strip(text, chars(args)?.as_deref(), (true, false))),
        "rstrip" => Value::from(strip(text, chars(args)?.as_deref(), (false, true))),
        "split" => split(text, args, false)?,
        "rsplit" => split(text, args, true)?,
        "partition" | "rpartition" => {
            let (by,): (&str,) = from_args(args)?;
            partition(text, by, method == "rpartition")?
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "index" | "rindex" => {
            let (wanted,): (&str,) = from_args(args)?;
            let found = match method {
                "index" => text.find(wanted),
                _ => text.rfind(wanted),
            };
            let at = found.ok_or_else(|| no_such("substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            Value::from(zero_filled(text, width))
        }
        "ljust" => filled(text, args, (false, true))?,
        "rjust" => filled(text, args, (true, false))?,
        "center" => filled(text, args, (true, true))?,
        "startswith" => has_end(text, args, true)?,
        "endswith" => has_end(text, args, false)?,
        "splitlines" => {
            let (keeps_ends,): (Option<bool>,) = from_args(args)?;
            Value::from(lines(text, keeps_ends.unwrap_or(false)))
        }
        "format" => {
            check_format(text)?;
            return Ok(None);
        }
        "replace" => {
            let (old, new, _): (&str, &str, Option<i64>) = from_args(args)?;
            let found = text.matches(old).count();
            check_length(text.len().saturating_add(found.saturating_mul(new.len())))?;
            return Ok(None);
        }
        "casefold" => Value::from(text.to_lowercase()),
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            let mut out = String::new();
            for (index, item) in items.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(text);
                }
                match item.as_str() {
                    Some(item) => out.push_str(item),
                    None => return Err(no_such("join: a text is wanted of each item")),
                }
                check_length(out.len())?;
            }
            Value::from(out)
        }
        _ => return Ok(None),
    }))
}

/// Calls a method that minijinja does not know.
pub(crate) fn call_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(made) = text_method(text, method, args)?
    {
        return Ok(made);
    }
    match (value.kind(), method) {
        (ValueKind::Seq, "index") => {
            let (wanted,): (&Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|it| it == *wanted);
            let at = at.ok_or_else(|| no_such("the value is not in the list"))?;
            Ok(Value::from(at))
        }
        (ValueKind::Seq | ValueKind::Map, "copy") => Ok(value.clone()),
        (
            ValueKind::Seq | ValueKind::Map,
            "append" | "pop" | "update" | "extend" | "insert" | "setdefault" | "clear" | "remove",
        ) => {
            let what = format!("{method} changes a value, which templates cannot");
            Err(Error::new(ErrorKind::InvalidOperation, what))
        }
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// Joins values as Python prints them.
pub(crate) fn joined(items: &Value, by: &str) -> Result<String, Error> {
    let mut out = String::new();
    for (index, item) in items.try_iter()?.enumerate() {
        if index > 0 {
            out.push_str(by);
        }
        out.push_str(&python_str(&item)?);
        check_length(out.len())?;
    }
    Ok(out)
}
