//! Values of an architecture's keys in a file's metadata, bounded.

use fercuda_modelfile::{Gguf, GgufValue};

use crate::error::{LlmError, unsupported};

/// Most elements of a vector of a model.
pub(crate) const MOST_WIDTH: u64 = 1 << 24;

/// Refuses heads whose elements are more in all than a vector may have.
pub(crate) fn check_heads(heads: u64, length: u64) -> Result<(), LlmError> {
    match heads.saturating_mul(length) > MOST_WIDTH {
        true => Err(unsupported(
            format!("{heads} heads of {length} elements"),
            format!("at most {MOST_WIDTH} elements in all"),
        )),
        false => Ok(()),
    }
}

/// The values of one architecture's keys.
pub(crate) struct ArchitectureKeys<'a, B> {
    pub(crate) file: &'a Gguf<B>,
    pub(crate) architecture: &'a str,
}

impl<'a, B: AsRef<[u8]>> ArchitectureKeys<'a, B> {
    pub(crate) fn get(&self, key: &str) -> Option<GgufValue<'a>> {
        self.file.get(&format!("{}.{key}", self.architecture))
    }

    /// A whole number; of a list with one for each layer, if all are equal.
    pub(crate) fn number(&self, key: &str) -> Result<Option<u64>, LlmError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let wrong = |what: &str| {
            let key = format!("{}.{key}", self.architecture);
            unsupported(
                format!("{key} {what}"),
                "a file that a current converter wrote",
            )
        };
        if let Some(all) = value.as_array() {
            let mut numbers = all.iter().map(|it| it.as_u64());
            let first = numbers.next().flatten();
            let is_same = first.is_some() && numbers.all(|it| it == first);
            return match is_same {
                true => Ok(first),
                false => Err(wrong("differs between layers, which is not supported")),
            };
        }
        match value.as_u64() {
            Some(number) => Ok(Some(number)),
            None => Err(wrong("is no whole number")),
        }
    }

    pub(crate) fn required(&self, key: &str, most: u64) -> Result<u64, LlmError> {
        let name = || format!("{}.{key}", self.architecture);
        match self.number(key)? {
            Some(number) if (1..=most).contains(&number) => Ok(number),
            Some(number) => Err(unsupported(
                format!("{} is {number}, not 1 to {most}", name()),
                "another file: this one is damaged",
            )),
            None => Err(unsupported(
                format!("the file does not have {}", name()),
                "a file with the metadata of its architecture",
            )),
        }
    }

    pub(crate) fn float(&self, key: &str) -> Option<f64> {
        self.get(key)?.as_f64().filter(|it| it.is_finite())
    }

    /// A float, which is above 0.
    pub(crate) fn positive(&self, key: &str) -> Result<Option<f64>, LlmError> {
        match self.float(key) {
            Some(value) if value <= 0.0 => Err(unsupported(
                format!("{}.{key} is {value}, not above 0", self.architecture),
                "another file: this one is damaged",
            )),
            value => Ok(value),
        }
    }
}
