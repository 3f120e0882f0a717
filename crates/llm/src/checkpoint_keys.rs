//! Values of a config.json, bounded, with those that absent keys stand for.

use serde_json::Value;

use crate::error::{LlmError, unsupported};
use crate::model::CheckpointSpec;

type Result<T> = std::result::Result<T, LlmError>;

pub(crate) const DAMAGED: &str = "the model's own config.json";

/// An object of a config.json, and what absent keys stand for.
#[derive(Clone, Copy)]
pub(crate) struct CheckpointKeys<'a> {
    pub(crate) object: &'a Value,
    pub(crate) spec: &'static CheckpointSpec,
}

/// A value in an error: a file may have a whole list there.
pub(crate) fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

/// The error of a key whose value is not one that is computed.
pub(crate) fn refused(key: &str, value: &Value, wanted: &str) -> LlmError {
    let what = format!(
        "config.json: {key} is {}, which is not supported",
        shown(value)
    );
    unsupported(what, format!("a model whose {key} is {wanted}"))
}

impl<'a> CheckpointKeys<'a> {
    /// A value that is there and not null.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|it| !it.is_null())
    }

    /// The keys of an object in it.
    pub(crate) fn part(&self, key: &str) -> Option<Self> {
        self.get(key).map(|object| Self { object, ..*self })
    }

    /// A value that has a type, or the error that it has another one.
    fn of_type<T>(
        &self,
        key: &str,
        kind: &str,
        of: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        of(value).map(Some).ok_or_else(|| {
            let what = format!("config.json: {key} is {}, no {kind}", shown(value));
            unsupported(what, DAMAGED)
        })
    }

    /// A number; the default's where the key is absent. What is `null` has none.
    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>> {
        if self.object.get(key).is_none() {
            return Ok(self.spec.default_of(key));
        }
        self.of_type(key, "number", |it| it.as_f64().filter(|it| it.is_finite()))
    }

    /// A number above 0.
    pub(crate) fn positive(&self, key: &str) -> Result<Option<f64>> {
        match self.float(key)? {
            Some(number) if number <= 0.0 => {
                let what = format!("config.json: {key} is {number}, not above 0");
                Err(unsupported(what, DAMAGED))
            }
            number => Ok(number),
        }
    }

    pub(crate) fn number(&self, key: &str, most: u64) -> Result<Option<u64>> {
        let Some(number) = self.float(key)? else {
            return Ok(None);
        };
        // Whole numbers of that size are f64s.
        let is_one = number.fract() == 0.0 && number >= 1.0 && number <= most as f64;
        match is_one {
            true => Ok(Some(number as u64)),
            false => {
                let what = format!("config.json: {key} is {number}, not 1 to {most}");
                Err(unsupported(what, DAMAGED))
            }
        }
    }

    pub(crate) fn required(&self, key: &str, most: u64) -> Result<u64> {
        self.number(key, most)?
            .ok_or_else(|| unsupported(format!("config.json does not have {key}"), DAMAGED))
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.of_type(key, "truth value", Value::as_bool)
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.of_type(key, "text", Value::as_str)
    }

    pub(crate) fn list(&self, key: &str) -> Result<Option<&'a [Value]>> {
        self.of_type(key, "list", |it| it.as_array().map(Vec::as_slice))
    }
}
