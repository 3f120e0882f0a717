//! Filters, tests and functions that differ from minijinja's.

use std::time::SystemTime;

use minijinja::formatting::{FormatStyle, format};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::dates::strftime;
use super::limits::add_limits;
use super::methods::{MARKS, call_method, check_format, joined, strip};
use super::python::{JsonStyle, check_length, is_tuple, python_json, python_str};
use super::source::{EACH, PERCENT};

/// Steps of one rendering, at most.
const FUEL: u64 = 4_000_000;

fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<Value> = options.get("indent")?;
    let indent = match indent {
        None => None,
        Some(it) if it.is_none() => None,
        Some(it) => match it.as_str() {
            Some(text) => Some(text.to_owned()),
            None => Some(" ".repeat(usize::try_from(it)?.min(64))),
        },
    };
    let separators: Option<Value> = options.get("separators")?;
    let separators = separators.filter(|it| !it.is_none());
    let mut style = JsonStyle {
        is_ascii: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
        sorts_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        item_separator: if indent.is_some() { "," } else { ", " }.to_owned(),
        key_separator: ": ".to_owned(),
        indent,
    };
    if let Some(separators) = separators {
        let of =
            |at: usize| Ok::<String, Error>(separators.get_item(&Value::from(at))?.to_string());
        (style.item_separator, style.key_separator) = (of(0)?, of(1)?);
    }
    options.assert_all_used()?;
    let keeps = |it: char| MARKS.contains(&it);
    Ok(Value::from(python_json(value, &style, &keeps)?))
}

fn is_sized(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::String
            | ValueKind::Seq
            | ValueKind::Map
            | ValueKind::Undefined
            | ValueKind::Bytes
    )
}

fn is_iterated(value: &Value) -> bool {
    is_sized(value) || value.kind() == ValueKind::Iterable
}

/// Lines behind the first, or all, by a width or a text; empty ones only if asked.
fn indent(
    value: &Value,
    width: Option<Value>,
    (first, blank): (Option<bool>, Option<bool>),
    options: Kwargs,
) -> Result<String, Error> {
    let text = python_str(value)?;
    let width = match width {
        Some(width) => Some(width),
        None => options.get("width")?,
    };
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let by = match width {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(by) => by.to_owned(),
            None => " ".repeat(usize::try_from(width)?.min(1 << 10)),
        },
    };
    check_length(text.len() + text.matches('\n').count().saturating_mul(by.len()))?;
    let mut out = String::with_capacity(text.len());
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let is_indented = if index == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if is_indented {
            out.push_str(&by);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// A number of a number, a truth value or a text.
fn any_number(value: &Value) -> Option<f64> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => text.trim().replace('_', "").parse().ok(),
        (None, ValueKind::Bool) => Some(if value.is_true() { 1.0 } else { 0.0 }),
        (None, ValueKind::Number) => f64::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn whole_number(value: &Value) -> Option<Value> {
    if value.is_integer() {
        return Some(value.clone());
    }
    let text = value.as_str().map(str::trim);
    if let Some(whole) = text.and_then(|it| it.parse::<i64>().ok()) {
        return Some(Value::from(whole));
    }
    let number = any_number(value).filter(|it| it.abs() < 1e18);
    number.map(|it| Value::from(it.trunc() as i64))
}

fn raise(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// An environment whose templates render as in transformers.
pub(crate) fn environment() -> Environment<'static> {
    let mut made = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    // The delimiters are the usual ones, which build.
    if let Ok(syntax) = syntax.build() {
        made.set_syntax(syntax);
    }
    made.set_fuel(Some(FUEL));
    made.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    made.set_unknown_method_callback(call_method);
    made.set_formatter(|out, _, value: &Value| {
        if value.is_undefined() {
            return Ok(());
        }
        let text = match value.as_str() {
            Some(text) => return out.write_str(text).map_err(Error::from),
            None => python_str(value)?,
        };
        out.write_str(&text).map_err(Error::from)
    });
    made.add_filter("tojson", |value: &Value, options: Kwargs| {
        to_json(value, options)
    });
    made.add_filter("format", |text: &str, operands: Rest<Value>| {
        check_format(text)?;
        format(FormatStyle::Printf, text, &operands)
    });
    made.add_filter(
        "indent",
        |value: &Value,
         width: Option<Value>,
         first: Option<bool>,
         blank: Option<bool>,
         options: Kwargs| indent(value, width, (first, blank), options),
    );
    made.add_filter("string", |value: &Value| python_str(value));
    made.add_filter("trim", |value: &Value, chars: Option<String>| {
        let text = python_str(value)?;
        Ok::<String, Error>(strip(&text, chars.as_deref(), (true, true)))
    });
    made.add_filter(
        "join",
        |items: &Value, by: Option<String>, options: Kwargs| {
            let by = by.or(options.get("d")?);
            let attribute: Option<String> = options.get("attribute")?;
            options.assert_all_used()?;
            let by = by.unwrap_or_default();
            match attribute {
                None => joined(items, &by),
                Some(name) => {
                    let of = |it: Value| it.get_attr(&name);
                    let items: Result<Vec<Value>, Error> = items.try_iter()?.map(of).collect();
                    joined(&Value::from(items?), &by)
                }
            }
        },
    );
    made.add_filter("int", |value: &Value, default: Option<Value>| {
        whole_number(value).unwrap_or(default.unwrap_or(Value::from(0)))
    });
    made.add_filter("float", |value: &Value, default: Option<Value>| {
        any_number(value).map_or(default.unwrap_or(Value::from(0.0)), Value::from)
    });
    made.add_test("sequence", |it: &Value| is_sized(it));
    made.add_test("iterable", |it: &Value| is_iterated(it));
    made.add_function("raise_exception", raise);
    made.add_function(EACH, |values: Value| match values.is_none() {
        true => raise("none is not iterable".to_owned()),
        false => Ok(values),
    });
    made.add_filter(PERCENT, |text: &str, operand: Value| {
        check_format(text)?;
        let operands: Vec<Value> = match is_tuple(&operand) {
            true => operand.try_iter()?.collect(),
            false => vec![operand],
        };
        format(FormatStyle::Printf, text, &operands)
    });
    add_limits(&mut made);
    made
}

/// Adds what depends on the time.
pub(crate) fn add_clock(to: &mut Environment<'static>) {
    to.add_function("strftime_now", |state: &State<'_, '_>, format: String| {
        let now = state.lookup(NOW).and_then(|it| u64::try_from(it).ok());
        let now = match now {
            Some(seconds) => SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds),
            None => SystemTime::now(),
        };
        strftime(now, &format)
    });
}

/// The variable that has the time of a request, in seconds since 1970.
pub(crate) const NOW: &str = "__fercuda_now";
