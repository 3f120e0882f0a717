//! Notations of grammars, and their bounds.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use crate::error::{GrammarError, refused};
use crate::gbnf::{is_gbnf, lark_of};
use crate::lark_text::lark_text;

/// Most bytes of a schema or of the texts of a choice.
pub const MOST_SOURCE: usize = 128 << 10;
/// Most bytes of an expression or of a grammar in Lark's notation, whose cost may grow as the
/// square of their rules.
pub const MOST_RULES: usize = 32 << 10;
/// Most texts of a choice.
pub const MOST_CHOICES: usize = 4096;
/// Most open brackets within each other, in a grammar or an expression.
const MOST_BRACKETS: usize = 64;
/// Most repetitions with a number in a grammar: each is some ten rules, and the cost of a step
/// grows faster than their number.
const MOST_COUNTED: usize = 256;
/// Largest `multipleOf`, without its decimal point: each number below it is a state.
const MOST_MULTIPLE: f64 = 10_000.0;
/// Largest whole number up to which all are f64s.
const MOST_EXACT: u64 = 1 << 53;
/// Blanks between the tokens of JSON, where a schema names no others: a blank, or a line's end
/// with the indentation of the next line. Blanks without end would be a text of their own.
const JSON_BLANKS: &str = r"[ ]?|\n[ ]{0,32}";

/// A grammar as its author writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrammarSource {
    /// JSON that a JSON schema describes, which is JSON itself.
    JsonSchema(String),
    /// Any JSON object.
    JsonObject,
    /// A text that matches an expression whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text that a grammar in the notation of Lark describes, from `start` on, or one in GBNF,
    /// llama.cpp's notation, from `root` on.
    Lark(String),
    /// A grammar in that notation that a program made, of what [`lark_schema`] and [`lark_text`]
    /// give and of rules of its own.
    Generated(String),
}

impl GrammarSource {
    /// The sort of the grammar, as errors name it.
    pub fn kind(&self) -> &'static str {
        match self {
            GrammarSource::JsonSchema(_) | GrammarSource::JsonObject => "JSON schema",
            GrammarSource::Regex(_) => "regular expression",
            GrammarSource::Choice(_) => "choice",
            GrammarSource::Lark(_) if self.is_gbnf() => "grammar in GBNF",
            GrammarSource::Lark(_) => "grammar",
            GrammarSource::Generated(_) => "set of schemas",
        }
    }

    /// Whether it is a grammar in GBNF.
    pub(crate) fn is_gbnf(&self) -> bool {
        matches!(self, GrammarSource::Lark(text) if is_gbnf(without_mark(text)))
    }

    /// Compares its size and its nesting with what is computed.
    ///
    /// # Errors
    /// [`GrammarError::Source`].
    fn check_size(&self) -> Result<(), GrammarError> {
        let bytes = match self {
            GrammarSource::JsonObject => 0,
            GrammarSource::JsonSchema(text)
            | GrammarSource::Regex(text)
            | GrammarSource::Lark(text)
            | GrammarSource::Generated(text) => text.len(),
            GrammarSource::Choice(texts) => texts.iter().map(String::len).sum(),
        };
        let kind = self.kind();
        let most = match self {
            GrammarSource::Regex(_) | GrammarSource::Lark(_) => MOST_RULES,
            _ => MOST_SOURCE,
        };
        if bytes > most {
            let what = format!("the {kind} has {bytes} bytes, more than {most}");
            return Err(refused(what, "a smaller one"));
        }
        if let GrammarSource::Regex(text) | GrammarSource::Lark(text) = self {
            let depth = bracket_depth(text);
            if depth > MOST_BRACKETS {
                let what =
                    format!("the {kind} has {depth} brackets in each other, over {MOST_BRACKETS}");
                return Err(refused(what, "rules that name each other"));
            }
        }
        if let GrammarSource::Lark(text) = self {
            let count = counted_repetitions(text);
            if count > MOST_COUNTED {
                let what =
                    format!("the {kind} has {count} repetitions with numbers, over {MOST_COUNTED}");
                return Err(refused(what, "*, + or ?, or fewer of them"));
            }
        }
        Ok(())
    }

    /// The grammar as the parser has it.
    ///
    /// # Errors
    /// [`GrammarError::Source`].
    pub(crate) fn parse(&self) -> Result<TopLevelGrammar, GrammarError> {
        self.check_size()?;
        match self {
            GrammarSource::JsonSchema(text) => {
                let schema: Value = serde_json::from_str(text).map_err(|error| {
                    let what = format!("the JSON schema is no JSON: {error}");
                    refused(what, "an object such as {\"type\": \"object\"}")
                })?;
                Ok(TopLevelGrammar::from_json_schema(checked_schema(schema)?))
            }
            GrammarSource::JsonObject => {
                let schema = checked_schema(json!({ "type": "object" }))?;
                Ok(TopLevelGrammar::from_json_schema(schema))
            }
            GrammarSource::Regex(text) if text.is_empty() => Err(refused(
                "the regular expression is empty",
                "one that matches a text",
            )),
            GrammarSource::Regex(text) => Ok(TopLevelGrammar::from_regex(text)),
            GrammarSource::Choice(texts) => {
                if texts.is_empty() || texts.len() > MOST_CHOICES {
                    let what = format!(
                        "a choice of {} texts, not of 1 to {MOST_CHOICES}",
                        texts.len()
                    );
                    return Err(refused(what, "as many texts"));
                }
                if texts.iter().any(String::is_empty) {
                    return Err(refused(
                        "a choice has an empty text",
                        "texts of a character at least",
                    ));
                }
                let quoted = texts.iter().map(|it| lark_text(it));
                let quoted: Vec<String> = quoted.collect();
                Ok(TopLevelGrammar::from_lark(format!(
                    "start: {}",
                    quoted.join(" | ")
                )))
            }
            GrammarSource::Lark(text) if text.trim().is_empty() => {
                Err(refused("the grammar is empty", EITHER_RULE))
            }
            GrammarSource::Lark(text) => {
                let text = without_mark(text);
                if is_gbnf(text) {
                    return Ok(TopLevelGrammar::from_lark(lark_of(text)?));
                }
                check_embedded(text)?;
                Ok(TopLevelGrammar::from_lark(text.to_owned()))
            }
            GrammarSource::Generated(text) => Ok(TopLevelGrammar::from_lark(text.clone())),
        }
    }
}

/// A rule of each notation of grammars.
pub(crate) const EITHER_RULE: &str =
    "a rule such as root ::= \"yes\" | \"no\" in GBNF, or start: \"yes\" | \"no\" in Lark";

/// A text without a mark of the order of its bytes, with which some editors begin a file.
fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Repetitions such as `{3}`, `{3,}` and `{0,9}` in a grammar; those within texts count too.
fn counted_repetitions(text: &str) -> usize {
    let behind = text.split('{').skip(1);
    let counted = behind.filter(|it| {
        let rest = it.trim_start_matches(|it: char| it.is_ascii_digit() || " ,~\t".contains(it));
        rest.len() < it.len() && rest.starts_with('}')
    });
    counted.count()
}

/// Numbers of `multipleOf` in a grammar: whole ones, each by a power of ten.
#[derive(Default)]
struct Multiples {
    all: Vec<(u128, i32)>,
    /// Whether several of them may be of one number.
    are_joined: bool,
}

impl Multiples {
    /// Members of a schema by which several schemas describe one value.
    const JOINING: [&str; 5] = ["allOf", "anyOf", "oneOf", "$ref", "$dynamicRef"];

    /// Adds those of a schema.
    fn add_schema(&mut self, schema: &Value) -> Result<(), GrammarError> {
        match schema {
            Value::Array(items) => items.iter().try_for_each(|it| self.add_schema(it)),
            Value::Object(members) => members.iter().try_for_each(|(name, value)| {
                self.are_joined |= Self::JOINING.contains(&name.as_str());
                if name == "multipleOf"
                    && let Value::Number(number) = value
                {
                    self.add(&number.to_string())?;
                }
                self.add_schema(value)
            }),
            _ => Ok(()),
        }
    }

    /// Adds a number, and refuses one whose multiples have too many states.
    fn add(&mut self, number: &str) -> Result<(), GrammarError> {
        let (digits, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
        let behind = digits.split_once('.').map_or(0, |(_, it)| it.len());
        let digits = digits.replace('.', "");
        let exponent = exponent.parse::<i32>().unwrap_or(i32::MAX);
        let raised = exponent.max(0);
        let count = digits.parse::<f64>().unwrap_or(f64::INFINITY) * 10_f64.powi(raised);
        if count > MOST_MULTIPLE || !count.is_finite() {
            let what = format!("multipleOf {number} has {count} states, more than {MOST_MULTIPLE}");
            return Err(refused(what, "a number with fewer digits"));
        }
        // One that is below 0 is refused elsewhere.
        if let Ok(digits) = digits.parse::<u128>()
            && digits > 0
        {
            let power = exponent.saturating_sub(i32::try_from(behind).unwrap_or(i32::MAX));
            self.all.push((digits, power));
        }
        Ok(())
    }

    /// Refuses numbers whose common multiples have too many states, where one may have to be a
    /// multiple of all.
    fn check(&self) -> Result<(), GrammarError> {
        let Some(least) = self.all.iter().map(|(_, power)| *power).min() else {
            return Ok(());
        };
        let mut common = Some(1);
        for (digits, power) in &self.all {
            let by = 10_u128.checked_pow(power.abs_diff(least));
            let whole = by.and_then(|by| digits.checked_mul(by));
            common = common.zip(whole).and_then(|(a, b)| least_common(a, b));
        }
        match common {
            Some(common) if common as f64 <= MOST_MULTIPLE => Ok(()),
            _ if !self.are_joined => Ok(()),
            _ => {
                let what = format!(
                    "a multiple of each multipleOf of the schema has more than {MOST_MULTIPLE} \
                     states"
                );
                Err(refused(
                    what,
                    "numbers with fewer digits, or a schema without allOf, anyOf, oneOf and $ref",
                ))
            }
        }
    }
}

/// The least common multiple, if it is not too large.
fn least_common(a: u128, b: u128) -> Option<u128> {
    let (mut larger, mut rest) = (a, b);
    while rest > 0 {
        (larger, rest) = (rest, larger % rest);
    }
    (a / larger.max(1)).checked_mul(b)
}

/// Refuses whole numbers that a text has to be, if the parser would write another: it has numbers
/// as f64. Bounds further from 0, as those of 64 bits, become nearer ones, which are within them.
fn check_numbers(schema: &mut Value) -> Result<(), GrammarError> {
    match schema {
        Value::Array(items) => items.iter_mut().try_for_each(check_numbers),
        Value::Object(members) => members.iter_mut().try_for_each(|(name, value)| {
            match name.as_str() {
                "const" | "enum" => check_exact(value)?,
                "minimum" | "exclusiveMinimum" => narrow(name, value, true)?,
                "maximum" | "exclusiveMaximum" => narrow(name, value, false)?,
                _ => {}
            }
            check_numbers(value)
        }),
        _ => Ok(()),
    }
}

/// A whole number of a schema that is no f64 for sure.
fn is_inexact(value: &Value) -> bool {
    let Value::Number(number) = value else {
        return false;
    };
    match (number.as_i64(), number.as_u64()) {
        (Some(number), _) => number.unsigned_abs() > MOST_EXACT,
        (None, Some(number)) => number > MOST_EXACT,
        // What is beyond 64 bits, or no whole number.
        (None, None) => {
            let text = number.to_string();
            text.bytes().all(|it| it.is_ascii_digit() || it == b'-')
        }
    }
}

fn narrow(name: &str, bound: &mut Value, is_least: bool) -> Result<(), GrammarError> {
    if !is_inexact(bound) {
        return Ok(());
    }
    let is_below = bound.as_f64().is_some_and(|it| it < 0.0);
    if is_below != is_least {
        let what = format!("{name} {bound} of the JSON schema is beyond 2^53");
        return Err(refused(what, "numbers as texts, or smaller ones"));
    }
    *bound = json!(if is_below {
        -(1_i64 << 53)
    } else {
        1_i64 << 53
    });
    Ok(())
}

/// As [`check_numbers`], of a value and its parts.
fn check_exact(value: &Value) -> Result<(), GrammarError> {
    match value {
        Value::Array(items) => items.iter().try_for_each(check_exact),
        Value::Object(members) => members.values().try_for_each(check_exact),
        number if is_inexact(number) => {
            let what = format!("a value of the JSON schema is {number}, beyond 2^53");
            Err(refused(what, "the number as a text, or a smaller one"))
        }
        _ => Ok(()),
    }
}

/// Checks the schemas within a grammar in Lark's notation.
fn check_embedded(text: &str) -> Result<(), GrammarError> {
    if !text.contains("%json") {
        return Ok(());
    }
    let is_letter = |code: &str| {
        let code = code
            .get(..4)
            .and_then(|it| u32::from_str_radix(it, 16).ok());
        code.and_then(char::from_u32)
            .is_some_and(|it| it.is_ascii_alphabetic())
    };
    if text.split("\\u").skip(1).any(is_letter) {
        let what = "a letter of ASCII is written as \\u in a grammar with %json";
        return Err(refused(what, "the letter itself"));
    }
    let mut multiples = Multiples {
        are_joined: Multiples::JOINING.iter().any(|it| text.contains(it)),
        ..Multiples::default()
    };
    for rest in text.split("\"multipleOf\"").skip(1) {
        let rest = rest.trim_start().trim_start_matches(':').trim_start();
        let is_part = |it: char| it.is_ascii_digit() || "+-.eE".contains(it);
        let end = rest.find(|it| !is_part(it)).unwrap_or(rest.len());
        multiples.add(&rest[..end])?;
    }
    multiples.check()
}

/// The schema with bounds of the blanks in texts, if it has none.
fn checked_schema(mut schema: Value) -> Result<Value, GrammarError> {
    let mut multiples = Multiples::default();
    multiples.add_schema(&schema)?;
    multiples.check()?;
    check_numbers(&mut schema)?;
    let mut schema = match schema {
        Value::Object(members) => members,
        Value::Bool(true) => serde_json::Map::new(),
        other => {
            let what = format!("the JSON schema is {other:.40}, not an object");
            return Err(refused(what, "an object such as {\"type\": \"object\"}"));
        }
    };
    let options = schema.entry("x-guidance").or_insert_with(|| json!({}));
    if let Some(options) = options.as_object_mut()
        && !options.contains_key("whitespace_flexible")
    {
        options
            .entry("whitespace_pattern")
            .or_insert_with(|| JSON_BLANKS.into());
    }
    Ok(schema.into())
}

/// A schema within a grammar in Lark's notation.
///
/// # Errors
/// [`GrammarError::Source`] of what is no schema.
pub fn lark_schema(schema: Value) -> Result<String, GrammarError> {
    Ok(format!("%json {}", checked_schema(schema)?))
}

/// Most brackets within each other, wherever they stand.
fn bracket_depth(text: &str) -> usize {
    let (mut depth, mut most) = (0_usize, 0);
    for it in text.bytes() {
        match it {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        most = most.max(depth);
    }
    most
}
