//! Configuration of layers whose state goes from token to token, bounded.

use fercuda_modelfile::GgufValue;

use crate::error::{LlmError, unsupported};
use crate::keys::{ArchitectureKeys, MOST_WIDTH, check_heads};
use crate::model::RecurrenceRule;

type Result<T> = std::result::Result<T, LlmError>;

/// Most elements of a convolution's window, as its op has it.
pub(crate) const MOST_TAPS: u64 = 16;
/// Most elements of a key or a value of a head, as the ops of states have it.
pub(crate) const MOST_LENGTH: u64 = 256;

/// Layers whose state goes from token to token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecurrenceConfig {
    pub(crate) rule: RecurrenceRule,
    /// Tokens that the convolution before has in its window.
    pub(crate) taps: u64,
    /// Heads of values, and those of keys that they share.
    pub(crate) heads: u64,
    pub(crate) keys: u64,
    pub(crate) key_length: u64,
    pub(crate) value_length: u64,
    /// Whether a head has the keys of its number modulo theirs, and not neighbours the same.
    pub(crate) is_tiled: bool,
    /// Parts of a token's values that have a norm each.
    pub(crate) norm_groups: u64,
    /// Whether each layer is one.
    pub(crate) layers: Vec<bool>,
}

impl RecurrenceConfig {
    /// Elements of all values of a token.
    pub(crate) fn values(&self) -> u64 {
        self.heads * self.value_length
    }

    /// Elements that the convolution goes over: of values and of two vectors of each head of keys.
    pub(crate) fn channels(&self) -> u64 {
        self.values() + 2 * self.keys * self.key_length
    }

    /// Elements that a token's vector is projected to: these, a gate of the values, and steps of
    /// heads, of which the delta rule has two.
    pub(crate) fn projected(&self) -> u64 {
        let steps = match self.rule {
            RecurrenceRule::Delta { .. } => 2,
            RecurrenceRule::Scan => 1,
        };
        self.channels() + self.values() + steps * self.heads
    }

    /// Floats of a layer's states in a slot: of the convolution, and of the heads.
    pub(crate) fn state_floats(&self) -> [u64; 2] {
        [
            (self.taps - 1) * self.channels(),
            self.values() * self.key_length,
        ]
    }

    /// Bytes of the states of all layers in a slot.
    pub(crate) fn slot_bytes(&self) -> u64 {
        let [window, state] = self.state_floats();
        let layers = self.layers.iter().filter(|it| **it).count() as u64;
        4 * layers * (window + state)
    }

    /// The configuration, if its numbers are ones that the ops have.
    pub(crate) fn checked(self) -> Result<Self> {
        let Self {
            taps,
            heads,
            keys,
            key_length,
            value_length,
            ..
        } = self;
        let damaged = |what: String| Err(unsupported(what, "another file: this one is damaged"));
        if !(1..=MOST_TAPS).contains(&taps) {
            return damaged(format!(
                "a convolution over {taps} tokens, not 1 to {MOST_TAPS}"
            ));
        }
        for length in [key_length, value_length] {
            if !(1..=MOST_LENGTH).contains(&length) {
                return damaged(format!(
                    "states of {length} elements, not 1 to {MOST_LENGTH}"
                ));
            }
        }
        if keys == 0 || heads == 0 || !heads.is_multiple_of(keys) {
            return damaged(format!(
                "{heads} heads are no multiple of {keys} heads of keys"
            ));
        }
        check_heads(heads, value_length)?;
        check_heads(keys, key_length)?;
        match self.norm_groups > 0 && self.values().is_multiple_of(self.norm_groups) {
            true => Ok(self),
            false => damaged(format!(
                "{} values in {} groups",
                self.values(),
                self.norm_groups
            )),
        }
    }
}

/// Reads it from a file's metadata.
pub(crate) fn recurrence<B: AsRef<[u8]>>(
    keys: &ArchitectureKeys<'_, B>,
    rule: Option<RecurrenceRule>,
    layers: u64,
) -> Result<Option<RecurrenceConfig>> {
    let Some(rule) = rule else {
        return Ok(None);
    };
    let number = |key: &str| keys.required(key, MOST_WIDTH);
    let (heads, shared) = (number("ssm.time_step_rank")?, number("ssm.group_count")?);
    let (inner, key_length) = (number("ssm.inner_size")?, number("ssm.state_size")?);
    if !inner.is_multiple_of(heads) {
        return Err(unsupported(
            format!("{inner} elements are no multiple of {heads} heads"),
            "another file: this one is damaged",
        ));
    }
    let config = RecurrenceConfig {
        rule,
        taps: number("ssm.conv_kernel")?,
        heads,
        keys: shared,
        key_length,
        value_length: inner / heads,
        is_tiled: rule != RecurrenceRule::Scan,
        norm_groups: match rule {
            RecurrenceRule::Delta { .. } => heads,
            RecurrenceRule::Scan => shared,
        },
        layers: recurrent_layers(keys, rule, layers)?,
    };
    config.checked().map(Some)
}

fn recurrent_layers<B: AsRef<[u8]>>(
    keys: &ArchitectureKeys<'_, B>,
    rule: RecurrenceRule,
    layers: u64,
) -> Result<Vec<bool>> {
    let RecurrenceRule::Delta { period } = rule else {
        return Ok(vec![true; layers as usize]);
    };
    let key = "attention.recurrent_layers";
    if let Some(value) = keys.get(key) {
        let flag = |it: GgufValue<'_>| match it {
            GgufValue::Bool(flag) => Some(flag),
            other => other.as_u64().map(|it| it != 0),
        };
        let all = value.as_array();
        let all = all.and_then(|all| all.iter().map(flag).collect::<Option<Vec<bool>>>());
        return match all.filter(|it| it.len() as u64 >= layers) {
            Some(all) => Ok(all[..layers as usize].to_vec()),
            None => Err(unsupported(
                format!("{}.{key} is no list of {layers}", keys.architecture),
                "a file that a current converter wrote",
            )),
        };
    }
    let key = "full_attention_interval";
    let period = match keys.number(key)? {
        Some(_) => keys.required(key, u64::from(u32::MAX))?,
        None => period,
    };
    Ok((0..layers)
        .map(|at| !(at + 1).is_multiple_of(period))
        .collect())
}
