//! Values as Python prints them: `str`, `repr`, and `json.dumps`.

use std::fmt::Write;

use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Bytes of one text that is made of a value, at most.
const MOST_BYTES: usize = 1 << 26;
/// Containers in containers, at most.
const MOST_DEPTH: usize = 200;

/// As `str` has it.
pub(crate) fn python_str(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            let mut out = String::new();
            python_repr(value, &mut out, 0)?;
            Ok(out)
        }
    }
}

fn too_deep() -> Error {
    let what = format!("a value of more than {MOST_DEPTH} levels");
    Error::new(ErrorKind::InvalidOperation, what)
}

fn python_repr(value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    if depth > MOST_DEPTH {
        return Err(too_deep());
    }
    check_length(out.len())?;
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&python_number(value)),
        ValueKind::String if depth > 0 => repr_text(value.as_str().unwrap_or(""), out),
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if is_tuple(value) {
                ('(', ')')
            } else {
                ('[', ']')
            };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()? {
                if count > 0 {
                    out.push_str(", ");
                }
                python_repr(&item, out, depth + 1)?;
                count += 1;
            }
            if open == '(' && count == 1 {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                python_repr(&key, out, depth + 1)?;
                out.push_str(": ");
                python_repr(&value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
    Ok(())
}

/// Whether a value is one of Python's tuples.
pub(crate) fn is_tuple(value: &Value) -> bool {
    value.downcast_object_ref::<Tuple>().is_some()
}

/// Refuses a text that would fill the memory.
pub(crate) fn check_length(len: usize) -> Result<(), Error> {
    match len <= MOST_BYTES {
        true => Ok(()),
        false => {
            let what = format!("a text of more than {MOST_BYTES} bytes");
            Err(Error::new(ErrorKind::InvalidOperation, what))
        }
    }
}

/// A text in quotes.
fn repr_text(text: &str, out: &mut String) {
    let quote = match text.contains('\'') && !text.contains('"') {
        true => '"',
        false => '\'',
    };
    out.push(quote);
    for it in text.chars() {
        match it {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            it if it == quote => {
                out.push('\\');
                out.push(it);
            }
            it if u32::from(it) < 0x20 || u32::from(it) == 0x7f => {
                let _ = write!(out, "\\x{:02x}", u32::from(it));
            }
            it => out.push(it),
        }
    }
    out.push(quote);
}

/// A number: integers as they are, floats in the shortest form that reads back.
pub(crate) fn python_number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(float) => python_float(float),
        Err(_) => value.to_string(),
    }
}

/// As Python prints a float: an exponent from 1e16 on and below 1e-4.
pub(crate) fn python_float(it: f64) -> String {
    if it.is_nan() {
        return "nan".to_owned();
    }
    if it.is_infinite() {
        return if it > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{it:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if it != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{it}");
    match plain.contains('.') {
        true => plain,
        false => format!("{plain}.0"),
    }
}

/// How JSON is written.
#[derive(Clone, Debug)]
pub(crate) struct JsonStyle {
    pub(crate) is_ascii: bool,
    pub(crate) sorts_keys: bool,
    /// What a level is indented by.
    pub(crate) indent: Option<String>,
    pub(crate) item_separator: String,
    pub(crate) key_separator: String,
}

/// As `json.dumps` writes it.
pub(crate) fn python_json(
    value: &Value,
    style: &JsonStyle,
    keeps: &dyn Fn(char) -> bool,
) -> Result<String, Error> {
    let mut out = String::new();
    put_json(value, style, keeps, &mut out, 0)?;
    Ok(out)
}

fn put_json(
    value: &Value,
    style: &JsonStyle,
    keeps: &dyn Fn(char) -> bool,
    out: &mut String,
    depth: usize,
) -> Result<(), Error> {
    if depth > MOST_DEPTH {
        return Err(too_deep());
    }
    check_length(out.len())?;
    let begin = |out: &mut String, index: usize| {
        if index > 0 {
            out.push_str(&style.item_separator);
        }
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth + 1));
        }
    };
    let end = |out: &mut String, count: usize| {
        if let (Some(indent), 1..) = (&style.indent, count) {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => {
            let number = python_number(value);
            out.push_str(match &*number {
                "nan" => "NaN",
                "inf" => "Infinity",
                "-inf" => "-Infinity",
                number => number,
            });
        }
        ValueKind::String => json_text(value.as_str().unwrap_or(""), style.is_ascii, keeps, out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut count = 0;
            for item in value.try_iter()? {
                begin(out, count);
                put_json(&item, style, keeps, out, depth + 1)?;
                count += 1;
            }
            end(out, count);
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sorts_keys {
                keys.sort();
            }
            for (index, key) in keys.iter().enumerate() {
                begin(out, index);
                match key.kind() {
                    ValueKind::String => {
                        let key = key.as_str().unwrap_or("");
                        json_text(key, style.is_ascii, keeps, out);
                    }
                    _ => {
                        out.push('"');
                        put_json(key, style, keeps, out, depth + 1)?;
                        out.push('"');
                    }
                }
                out.push_str(&style.key_separator);
                put_json(&value.get_item(key)?, style, keeps, out, depth + 1)?;
            }
            end(out, keys.len());
            out.push('}');
        }
        kind => {
            let what = format!("a value of kind {kind} is not JSON serializable");
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
    }
    Ok(())
}

fn json_text(text: &str, is_ascii: bool, keeps: &dyn Fn(char) -> bool, out: &mut String) {
    out.push('"');
    for it in text.chars() {
        match it {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            it if u32::from(it) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(it));
            }
            it if is_ascii && !it.is_ascii() && !keeps(it) => {
                for unit in it.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            '\u{7f}' if is_ascii => out.push('\u{7f}'),
            it => out.push(it),
        }
    }
    out.push('"');
}
